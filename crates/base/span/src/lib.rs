//! A piece of memory that belongs to an application and may change at any time (storey 0).
//!
//! A [`Span`] is an address and a length, checked once by whoever made it (the memory region table, the send
//! queue's inline area). It is never turned into a `&[u8]` that outlives one call. Memory that is not mapped in
//! this process is reached through the file of its process's memory (module `remote`).
//!
//! Every access is all or nothing in its verdict: a transfer that stops half-way reports [`Gone`], and whatever it
//! has already moved is undefined content, as after any failed RDMA operation. Atomics (IBA 9.4.5) are real atomics
//! on local spans, and read-modify-write by system calls on remote ones: atomic among this process's workers only
//! as far as one worker serves the responder, never against the owner's own stores. The verbs attribute
//! `IBV_ATOMIC_HCA` promises no more than that.

mod copy;
mod remote;

pub use copy::{PIECE, copy};
pub use remote::ProcessMemory;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A contiguous piece of reachable memory. Cheap to copy.
///
/// Valid until its owner reclaims the mapping; the engine reclaims only between turns, when no span is alive.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    addr: u64,
    len: u32,
    /// [`LOCAL`], or the descriptor of the memory of its process.
    memory: RawFd,
}

/// Mapped in this process.
const LOCAL: RawFd = -1;

/// The owning process vanished or runs another program, or the range is no longer mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl Span {
    /// Memory mapped in this process.
    ///
    /// # Safety
    /// `addr .. addr + len` must stay mapped readable and writable (or only readable, if the maker has checked that
    /// nobody writes through it) for as long as copies of the span are used.
    pub unsafe fn local(addr: *mut u8, len: u32) -> Span {
        Span { addr: addr as u64, len, memory: LOCAL }
    }
    /// No bytes, at no address.
    pub const fn nothing() -> Span {
        // Well aligned and not null, for the kernel's iovecs.
        Span { addr: align_of::<u64>() as u64, len: 0, memory: LOCAL }
    }
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether the bytes are mapped in this process ([`Span::as_ptr`] may be given to the kernel).
    pub const fn is_local(&self) -> bool {
        self.memory == LOCAL
    }
    /// Address in this process (local spans) or in the owner.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }
    /// `len` bytes from `offset`. Panics if they are not inside.
    #[must_use]
    pub fn sub(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len() && len <= self.len() - offset);
        Span { addr: self.addr + offset as u64, len: len as u32, memory: self.memory }
    }
    /// Copies the span to `dst`, which must have the span's length (panics otherwise).
    pub fn read_to(&self, dst: &mut [u8]) -> Result<(), Gone> {
        assert_eq!(dst.len(), self.len());
        if !self.is_local() {
            return remote::read(self.memory, self.addr, dst);
        }
        // SAFETY: the maker of a local span promised `addr .. addr + len` is readable; `dst` is ours, has the same
        // length, and cannot overlap application memory because it is a Rust reference.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().cast_const(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }
    /// Copies `src` into the span, which must have the same length (panics otherwise).
    pub fn write_from(&self, src: &[u8]) -> Result<(), Gone> {
        assert_eq!(src.len(), self.len());
        if !self.is_local() {
            return remote::write(self.memory, self.addr, src);
        }
        // SAFETY: the maker of a local span promised `addr .. addr + len` is writable for whoever writes through it;
        // `src` has the same length and cannot overlap application memory because it is a Rust reference.
        unsafe { copy::raw(self.as_ptr(), src.as_ptr(), src.len()) };
        Ok(())
    }
    /// Lends the bytes of a local span for one call, without copying; `None` for a remote span. The application may
    /// change them meanwhile: `f` may compute a checksum or copy, but must not read a byte twice and trust both.
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if !self.is_local() {
            return None;
        }
        if self.len == 0 {
            return Some(f(&[]));
        }
        // SAFETY: the maker promised the range is mapped and readable; the slice ends with this call.
        Some(f(unsafe { core::slice::from_raw_parts(self.as_ptr().cast_const(), self.len()) }))
    }
    /// Adds `addend` to the 8 bytes (host byte order) and returns the value before. Panics if the span is not 8 bytes.
    pub fn fetch_add(&self, addend: u64) -> Result<u64, Gone> {
        match self.atomic() {
            Some(word) => Ok(word.fetch_add(addend, Ordering::SeqCst)),
            None => self.read_modify_write(|old| Some(old.wrapping_add(addend))),
        }
    }
    /// Stores `swap` in the 8 bytes (host byte order) if they hold `compare`; returns the value before. Panics if the
    /// span is not 8 bytes.
    pub fn cmp_swap(&self, compare: u64, swap: u64) -> Result<u64, Gone> {
        match self.atomic() {
            Some(word) => Ok(word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found)),
            None => self.read_modify_write(|old| (old == compare).then_some(swap)),
        }
    }

    /// The 8 bytes as an atomic, if they are local and naturally aligned.
    fn atomic(&self) -> Option<&AtomicU64> {
        assert_eq!(self.len, 8, "an atomic works on 8 bytes");
        if !self.is_local() || !self.addr.is_multiple_of(8) {
            return None;
        }
        // SAFETY: the maker promised 8 readable and writable bytes; the alignment was checked. SeqCst pairs with
        // whatever the application does on the same word.
        Some(unsafe { AtomicU64::from_ptr(self.as_ptr().cast::<u64>()) })
    }
    /// Atomic in name only: for memory of another process.
    fn read_modify_write(&self, f: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Gone> {
        let mut bytes = [0; 8];
        self.read_to(&mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        if let Some(new) = f(old) {
            self.write_from(&new.to_ne_bytes())?;
        }
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_of(bytes: &mut [u8]) -> Span {
        // SAFETY: the vectors of these tests outlive their spans.
        unsafe { Span::local(bytes.as_mut_ptr(), bytes.len() as u32) }
    }

    #[test]
    fn local_span_is_read_and_written() {
        let mut memory = *b"0123456789";
        let span = span_of(&mut memory).sub(2, 4);
        let mut out = [0; 4];
        span.read_to(&mut out).unwrap();
        assert_eq!(&out, b"2345");
        span.write_from(b"wxyz").unwrap();
        assert_eq!(span.with_bytes(|b| b.to_vec()).unwrap(), b"wxyz");
        assert_eq!(&memory, b"01wxyz6789");
    }

    #[test]
    fn empty_span_needs_no_memory() {
        // SAFETY: no byte is ever touched.
        let span = unsafe { Span::local(core::ptr::null_mut(), 0) };
        span.read_to(&mut []).unwrap();
        span.write_from(&[]).unwrap();
        assert_eq!(span.with_bytes(|b| b.len()), Some(0));
        Span::nothing().read_to(&mut []).unwrap();
        ProcessMemory::own().unwrap().span(8, 0).read_to(&mut []).unwrap();
    }

    #[test]
    fn atomics_return_the_value_before() {
        let mut words = [0u64; 2];
        // SAFETY: `words` outlives the span.
        let span = unsafe { Span::local(words.as_mut_ptr().cast(), 8) };
        assert_eq!(span.fetch_add(5), Ok(0));
        assert_eq!(span.fetch_add(u64::MAX), Ok(5));
        assert_eq!(span.cmp_swap(7, 1), Ok(4));
        assert_eq!(span.cmp_swap(4, 9), Ok(4));
        assert_eq!(words, [9, 0]);
    }

    #[test]
    fn unaligned_local_atomic_does_not_fault() {
        let mut memory = [0u8; 24];
        let base = memory.as_ptr() as usize;
        let offset = (8 - base % 8) % 8 + 3;
        let span = span_of(&mut memory).sub(offset, 8);
        assert_eq!(span.fetch_add(2), Ok(0));
        assert_eq!(span.cmp_swap(2, 3), Ok(2));
        assert_eq!(span.fetch_add(0), Ok(3));
    }

    #[test]
    fn remote_span_of_this_very_process() {
        let mut words = [1u64, 2];
        let memory = ProcessMemory::own().unwrap();
        let span = memory.span(words.as_mut_ptr() as u64, 16);
        let mut out = [0; 16];
        span.read_to(&mut out).unwrap();
        assert_eq!(out[..8], 1u64.to_ne_bytes());
        assert_eq!(span.sub(8, 8).fetch_add(40), Ok(2));
        assert_eq!(span.sub(8, 8).cmp_swap(42, 7), Ok(42));
        assert!(span.with_bytes(|_| ()).is_none());
        assert_eq!(words, [1, 7]);
    }

    #[test]
    fn unmapped_is_gone() {
        let mut out = [0; 8];
        let memory = ProcessMemory::own().unwrap();
        for addr in [8, 4096, 1 << 62, u64::MAX - 3, u64::MAX >> 1] {
            let span = memory.span(addr, 8);
            assert_eq!((span.read_to(&mut out), span.write_from(&out)), (Err(Gone), Err(Gone)), "{addr:#x}");
            assert_eq!(span.fetch_add(1), Err(Gone));
        }
        assert!(ProcessMemory::open(u32::MAX >> 1, 0).is_err());
    }

    #[test]
    fn only_the_owners_processes_are_reached() {
        // SAFETY: asks for numbers.
        let uid = unsafe { libc::getuid() };
        assert!(ProcessMemory::open(std::process::id(), uid).is_ok());
        assert!(ProcessMemory::open(std::process::id(), uid + 1).is_err());
    }
}
