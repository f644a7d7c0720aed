//! A piece of memory that belongs to an application and may change at any time.

/// A contiguous piece of reachable memory. Cheap to copy. Valid until the owning [`crate::MrTable`] reclaims
/// (`MrTable::reclaim`), which the engine calls only between turns, when no span is alive.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// 0: mapped in this process; otherwise the process id whose memory is reached by process_vm_readv/writev.
    pub(crate) pid: u32,
}

impl Span {
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
}
