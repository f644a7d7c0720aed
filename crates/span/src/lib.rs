//! A piece of memory that belongs to an application and may change at any time (storey 0).
//!
//! A [`Span`] is an address and a length, checked once by whoever made it (the memory region table, the send
//! queue's inline area). It is never turned into a `&[u8]` that outlives one call. Memory that is not mapped in
//! this process is reached through `process_vm_readv`/`writev`.

/// A contiguous piece of reachable memory. Cheap to copy.
///
/// Valid until its owner reclaims the mapping; the engine reclaims only between turns, when no span is alive.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    addr: u64,
    len: u32,
    /// 0: mapped in this process; otherwise the id of the process whose memory it is.
    pid: u32,
}

/// The owning process vanished, or the range is no longer mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl Span {
    /// Memory mapped in this process.
    ///
    /// # Safety
    /// `addr .. addr + len` must stay mapped readable and writable (or only readable, if the maker has checked that
    /// nobody writes through it) for as long as copies of the span are used.
    pub unsafe fn local(addr: *mut u8, len: u32) -> Span {
        Span { addr: addr as u64, len, pid: 0 }
    }
    /// Memory of process `pid`, reached by system calls; never undefined behaviour, at worst [`Gone`].
    pub const fn remote(pid: u32, addr: u64, len: u32) -> Span {
        Span { addr, len, pid }
    }
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether the bytes are mapped in this process ([`Span::as_ptr`] may be given to the kernel).
    pub const fn is_local(&self) -> bool {
        self.pid == 0
    }
    /// Address in this process (local spans) or in the owner.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }
    /// `len` bytes from `offset`. Panics if they are not inside.
    #[must_use]
    pub fn sub(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len() && len <= self.len() - offset);
        Span { addr: self.addr + offset as u64, len: len as u32, pid: self.pid }
    }
}
