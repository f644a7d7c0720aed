//! Memory of an application, which may change at any time.
//!
//! A [`Span`] is an address, a length and a [`Backing`], checked once by its maker (the memory region table, the send
//! queue's inline area). A span never becomes a `&[u8]` that outlives one call. Memory that is not mapped in this
//! process is reached through the file `/proc/PID/mem` of its process (module `remote`), a run of packets by one system
//! call ([`Span::write_pieces`], [`Span::joined`]). A null span has no memory: writes vanish, reads give zeroes. A pattern span
//! has none either, and checks what is written (module `pattern`).
//!
//! Every access succeeds or fails as a whole: a transfer that stops half-way reports [`Unreachable`], and the bytes that it has
//! already moved are undefined content, as after any failed RDMA operation. Atomics (IBA 9.4.5) are real atomics
//! on local spans. On remote spans they are a read and a write by system calls: atomic among the workers of this process
//! as long as one worker serves the responder, never against stores of the owner. The verbs attribute
//! `IBV_ATOMIC_HCA` promises no more than that.

mod copy;
mod faults;
mod guarded;
mod pattern;
mod prefetch;
mod remote;
mod staging;
mod zeroed;

pub use copy::{PIECE, copy};
pub use faults::catch_faults;
pub use guarded::{AccessThreads, LATE_MAX, THREADS_MAX, WAIT_MAX, WAIT_PERCENT};
pub use pattern::{PatternWrite, pattern_fill, take_pattern_writes};
pub use prefetch::{prefetch, prefetch_line};
pub use remote::{MemoryFd, ProcessMemory, TRAIN_BYTES};
pub use staging::{STAGING_BYTES, StagedReads, Staging};
pub use zeroed::ZeroedWords;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the bytes of a span are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Mapped in this process; the address is one of this process.
    Local,
    /// Memory of the process whose `/proc/PID/mem` this is; the address is one of that process.
    Remote(MemoryFd),
    /// No memory: writes vanish and reads give zeroes (`ibv_alloc_null_mr`). The address has no meaning.
    Null,
    /// No memory: reads give bytes that depend on the address alone, and writes are compared with them and noted
    /// ([`take_pattern_writes`]).
    Pattern,
    /// Memory of a device, which only the owner of this number can have copied; the address is one of the device. Each access
    /// from here is [`Unreachable::Gone`].
    Device(DeviceNumber),
}

/// Whose device memory a span lies in: a number below [`DeviceNumber::END`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber(u32);

impl DeviceNumber {
    /// One more than the largest number.
    pub const END: u32 = (1 << 29) - 1;
    /// `None` from [`DeviceNumber::END`] on.
    pub const fn new(number: u32) -> Option<DeviceNumber> {
        if number < Self::END { Some(DeviceNumber(number)) } else { None }
    }
    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A contiguous piece of reachable memory. Cheap to copy.
///
/// Valid until its owner reclaims the mapping; the engine reclaims only between turns, when no span is alive.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    addr: u64,
    len: u32,
    kind: SpanKind,
}

// The batches of the data path copy spans: two registers. A `Backing` as a field has bytes of padding and alignment 1, and the
// compiler copies it piece by piece, twice as many instructions for each span.
const _: () = assert!(size_of::<Span>() == 16 && size_of::<Option<Span>>() == 16);

/// A [`Backing`] in one word: 1 local, 2 null, 4 pattern, 3 and the bits of a [`MemoryFd`] above two bits, or a
/// [`DeviceNumber`] plus one above three bits that are 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SpanKind(NonZeroU32);

impl SpanKind {
    const LOCAL: SpanKind = SpanKind(NonZeroU32::new(1).unwrap());
    const NULL: SpanKind = SpanKind(NonZeroU32::new(2).unwrap());
    const PATTERN: SpanKind = SpanKind(NonZeroU32::new(4).unwrap());
    const REMOTE: NonZeroU32 = NonZeroU32::new(3).unwrap();

    fn remote(memory: MemoryFd) -> SpanKind {
        SpanKind(Self::REMOTE | memory.bits() << 2)
    }
    const fn device(number: DeviceNumber) -> SpanKind {
        SpanKind(NonZeroU32::new((number.0 + 1) << 3).expect("a number below the end"))
    }
    const fn is_device(self) -> bool {
        self.0.get() & 7 == 0
    }
    const fn is_local(self) -> bool {
        self.0.get() == 1
    }
    const fn is_remote(self) -> bool {
        self.0.get() & 3 == 3
    }
    fn backing(self) -> Backing {
        match self.0.get() {
            1 => Backing::Local,
            2 => Backing::Null,
            4 => Backing::Pattern,
            device if device & 7 == 0 => Backing::Device(DeviceNumber((device >> 3) - 1)),
            remote => Backing::Remote(MemoryFd::from_bits(remote >> 2)),
        }
    }
}

impl std::fmt::Debug for SpanKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.backing().fmt(f)
    }
}

/// Why memory was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The owning process has ended or runs another program, the range is no longer mapped there, or a page has not come for
    /// [`LATE_MAX`].
    Gone,
    /// A page has not come yet. The access may be repeated later.
    Late,
}

impl Span {
    /// Memory mapped in this process.
    ///
    /// # Safety
    /// `addr .. addr + len` must stay mapped readable and writable (or only readable, if the maker has checked that
    /// no copy of the span is written through) for as long as copies of the span are used.
    pub unsafe fn local(addr: *mut u8, len: u32) -> Span {
        Span { addr: addr as u64, len, kind: SpanKind::LOCAL }
    }
    /// `len` bytes without memory: writes vanish and reads give zeroes.
    pub const fn null(len: u32) -> Span {
        Span { addr: 0, len, kind: SpanKind::NULL }
    }
    /// `len` bytes without memory that have the bytes which belong to `addr` and the addresses behind it.
    pub const fn pattern(addr: u64, len: u32) -> Span {
        Span { addr, len, kind: SpanKind::PATTERN }
    }
    /// `len` bytes at `addr` of a device's memory.
    pub const fn device(number: DeviceNumber, addr: u64, len: u32) -> Span {
        Span { addr, len, kind: SpanKind::device(number) }
    }
    /// `len` bytes of memory that must not be accessed at present: each access is [`Unreachable::Late`].
    pub fn held(len: u32) -> Span {
        remote::held(len)
    }
    /// A span of length 0.
    pub const fn nothing() -> Span {
        // Well aligned and not null, for the kernel's iovecs.
        Span { addr: align_of::<u64>() as u64, len: 0, kind: SpanKind::LOCAL }
    }
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
    /// Where the bytes are.
    pub fn backing(&self) -> Backing {
        self.kind.backing()
    }
    /// Whether the bytes are mapped in this process ([`Span::as_ptr`] may be given to the kernel).
    pub const fn is_local(&self) -> bool {
        self.kind.is_local()
    }
    /// Whether the bytes are in another process, so that each access costs a system call.
    pub const fn is_remote(&self) -> bool {
        self.kind.is_remote()
    }
    /// Whether the bytes are in the memory of a device.
    pub const fn is_device(&self) -> bool {
        self.kind.is_device()
    }
    /// Address in this process (local spans), in the owner (remote spans), of the device or of the pattern.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }
    /// `len` bytes from `offset`. Panics if they are not inside.
    #[must_use]
    pub fn sub(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len() && len <= self.len() - offset);
        Span { addr: self.addr.wrapping_add(offset as u64), len: len as u32, kind: self.kind }
    }
    /// This span and `next` as one; `None` unless `next` begins where this one ends, in the same memory.
    #[must_use]
    pub fn joined(&self, next: &Span) -> Option<Span> {
        let len = self.len.checked_add(next.len)?;
        let adjacent = self.kind == next.kind && self.addr.checked_add(u64::from(self.len)) == Some(next.addr);
        adjacent.then_some(Span { len, ..*self })
    }
    /// Copies the span to `dst`, which must have the span's length (panics otherwise).
    #[inline]
    pub fn read_to(&self, dst: &mut [u8]) -> Result<(), Unreachable> {
        assert_eq!(dst.len(), self.len());
        if !self.is_local() {
            return self.read_elsewhere(dst);
        }
        if faults::is_on() {
            return self.read_guarded(dst);
        }
        // SAFETY: the maker of a local span promised `addr .. addr + len` is readable; `dst` is ours, has the same
        // length, and cannot overlap application memory because it is a Rust reference.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().cast_const(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }
    /// [`Span::read_to`] for local memory that may be gone.
    fn read_guarded(&self, dst: &mut [u8]) -> Result<(), Unreachable> {
        let (from, to, len) = (self.as_ptr().cast_const(), dst.as_mut_ptr(), dst.len());
        // SAFETY: as in `read_to`, for what is mapped. A copy may be left anywhere.
        if unsafe { faults::guarded(|| core::ptr::copy_nonoverlapping(from, to, len)) } {
            return Ok(());
        }
        faults::read(self.addr, dst)
    }
    /// [`Span::write_from`] at `offset` of local memory that may be gone.
    fn write_guarded(&self, offset: usize, src: &[u8]) -> Result<(), Unreachable> {
        debug_assert!(offset + src.len() <= self.len());
        let (to, from, len) = (self.as_ptr().wrapping_add(offset), src.as_ptr(), src.len());
        // SAFETY: as in `write_from`, for what is mapped. A copy may be left anywhere.
        if unsafe { faults::guarded(|| copy::raw(to, from, len)) } {
            return Ok(());
        }
        faults::write(self.addr + offset as u64, src)
    }
    /// [`Span::read_to`] for a span that is not local.
    #[cold]
    fn read_elsewhere(&self, dst: &mut [u8]) -> Result<(), Unreachable> {
        match self.backing() {
            Backing::Remote(memory) => remote::read(memory, self.addr, dst),
            Backing::Pattern => {
                pattern::pattern_fill(self.addr, dst);
                Ok(())
            }
            Backing::Device(_) => Err(Unreachable::Gone),
            Backing::Local | Backing::Null => {
                debug_assert!(!self.is_local(), "local spans are copied by the caller");
                dst.fill(0);
                Ok(())
            }
        }
    }
    /// Copies `src` into the span, which must have the same length (panics otherwise).
    #[inline]
    pub fn write_from(&self, src: &[u8]) -> Result<(), Unreachable> {
        assert_eq!(src.len(), self.len());
        if !self.is_local() {
            return self.write_elsewhere(src);
        }
        if faults::is_on() {
            return self.write_guarded(0, src);
        }
        // SAFETY: the maker of a local span promised `addr .. addr + len` is writable if it is written through;
        // `src` has the same length and cannot overlap application memory because it is a Rust reference.
        unsafe { copy::raw(self.as_ptr(), src.as_ptr(), src.len()) };
        Ok(())
    }
    /// [`Span::write_from`] for a span that is not local.
    #[cold]
    fn write_elsewhere(&self, src: &[u8]) -> Result<(), Unreachable> {
        match self.backing() {
            Backing::Remote(memory) => remote::write(memory, self.addr, src),
            Backing::Pattern => {
                pattern::note(self.addr, std::iter::once(src));
                Ok(())
            }
            Backing::Device(_) => Err(Unreachable::Gone),
            Backing::Local | Backing::Null => {
                debug_assert!(!self.is_local(), "local spans are copied by the caller");
                Ok(())
            }
        }
    }
    /// Copies `pieces` one behind the other into the span. Together they must have the span's length (panics if they are
    /// longer; a shorter sum leaves the rest of the span as it is). Memory of another process costs one system call for
    /// [`TRAIN_BYTES`], not one for each piece: the payloads of a train are written together.
    pub fn write_pieces<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Unreachable> {
        match self.backing() {
            Backing::Local => {
                let mut at = 0;
                for piece in pieces {
                    assert!(piece.len() <= self.len() - at);
                    if faults::is_on() {
                        self.write_guarded(at, piece)?;
                    } else {
                        // SAFETY: as in `write_from`; the piece ends inside the span, just asserted.
                        unsafe { copy::raw(self.as_ptr().add(at), piece.as_ptr(), piece.len()) };
                    }
                    at += piece.len();
                }
                debug_assert_eq!(at, self.len(), "pieces of the span's length");
                Ok(())
            }
            Backing::Remote(memory) => remote::write_pieces(memory, self.addr, self.len(), pieces),
            Backing::Null => Ok(()),
            Backing::Device(_) => Err(Unreachable::Gone),
            Backing::Pattern => {
                pattern::note(self.addr, pieces);
                Ok(())
            }
        }
    }
    /// Computes `f` of the bytes of a local span, without copying; `None` for any other span, and for memory that is gone or
    /// protected. The application may change the bytes meanwhile: `f` must not read a byte twice and trust both. It only
    /// computes, because it may be left anywhere: nothing that it makes before its result needs to be dropped.
    pub fn with_bytes<R: Copy>(&self, f: impl Fn(&[u8]) -> R) -> Option<R> {
        if !self.is_local() {
            return None;
        }
        if self.len == 0 {
            return Some(f(&[]));
        }
        // SAFETY: the maker promised the range is mapped and readable, or faults are caught; the slice ends with this call.
        let bytes = || unsafe { core::slice::from_raw_parts(self.as_ptr().cast_const(), self.len()) };
        if !faults::is_on() {
            return Some(f(bytes()));
        }
        let mut result = None;
        let place = &mut result;
        let call = &f;
        // SAFETY: the caller's `f` computes. The references need no drop.
        unsafe { faults::guarded(|| *place = Some(call(bytes()))) };
        result
    }
    /// Adds `addend` to the 8 bytes (host byte order) and returns the value before. Panics if the span is not 8 bytes.
    pub fn fetch_add(&self, addend: u64) -> Result<u64, Unreachable> {
        match self.on_atomic(|word| word.fetch_add(addend, Ordering::SeqCst)) {
            Some(old) => Ok(old),
            None => self.read_modify_write(|old| Some(old.wrapping_add(addend))),
        }
    }
    /// Stores `swap` in the 8 bytes (host byte order) if they hold `compare`; returns the value before. Panics if the
    /// span is not 8 bytes.
    pub fn cmp_swap(&self, compare: u64, swap: u64) -> Result<u64, Unreachable> {
        let exchange = |word: &AtomicU64| {
            word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
        };
        match self.on_atomic(exchange) {
            Some(old) => Ok(old),
            None => self.read_modify_write(|old| (old == compare).then_some(swap)),
        }
    }

    /// Applies `f` to the 8 bytes as an atomic, if they are local and naturally aligned; `None` also if they are gone or
    /// protected.
    fn on_atomic(&self, f: impl Fn(&AtomicU64) -> u64) -> Option<u64> {
        assert_eq!(self.len, 8, "an atomic works on 8 bytes");
        if !self.is_local() || !self.addr.is_multiple_of(8) {
            return None;
        }
        // SAFETY: the maker promised 8 readable and writable bytes, or faults are caught; the alignment was checked. SeqCst pairs
        // with any atomic operation of the application on the same word.
        let word = unsafe { AtomicU64::from_ptr(self.as_ptr().cast::<u64>()) };
        if !faults::is_on() {
            return Some(f(word));
        }
        let mut result = None;
        let (place, call) = (&mut result, &f);
        // SAFETY: one access, which may be left. The references need no drop.
        unsafe { faults::guarded(|| *place = Some(call(word))) };
        result
    }
    /// A read and a write, for words that are not local or not aligned: other processes may store in between.
    fn read_modify_write(&self, f: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Unreachable> {
        if let Backing::Remote(memory) = self.backing()
            && remote::postpones_atomics(memory)
        {
            return Err(Unreachable::Late);
        }
        let mut bytes = [0; 8];
        self.read_to(&mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        if let Some(new) = f(old) {
            // A late write may still be carried out. The caller must not repeat the operation then.
            self.write_from(&new.to_ne_bytes()).map_err(|_| Unreachable::Gone)?;
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
        assert_eq!(span.with_bytes(|b| <[u8; 4]>::try_from(b).unwrap()).unwrap(), *b"wxyz");
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
    fn writes_to_a_null_span_vanish_and_reads_give_zeroes() {
        let span = Span::null(24);
        let mut out = [7; 24];
        span.write_from(&[1; 24]).unwrap();
        span.write_pieces([&[1u8; 16][..], &[2; 8]].into_iter()).unwrap();
        span.read_to(&mut out).unwrap();
        assert_eq!(out, [0; 24]);
        assert_eq!((span.sub(16, 8).fetch_add(5), span.sub(0, 8).cmp_swap(0, 5)), (Ok(0), Ok(0)));
        assert_eq!(span.sub(8, 8).fetch_add(1), Ok(0), "the sums before vanished");
        assert!(span.with_bytes(|_| ()).is_none() && !span.is_local() && !span.is_remote());
        assert_eq!((span.len(), span.sub(20, 4).len()), (24, 4));
    }

    #[test]
    fn memory_of_a_device_is_never_accessed_from_here() {
        assert_eq!(DeviceNumber::new(DeviceNumber::END), None);
        for number in [0, 1, 7, DeviceNumber::END - 1] {
            let number = DeviceNumber::new(number).expect("below the end");
            let span = Span::device(number, 0x10_0000, 16);
            assert!(span.is_device() && !span.is_local() && !span.is_remote());
            assert_eq!((span.backing(), span.sub(8, 8).as_ptr() as u64), (Backing::Device(number), 0x10_0008));
            assert_eq!(span.read_to(&mut [0; 16]), Err(Unreachable::Gone));
            assert_eq!(span.write_from(&[0; 16]), Err(Unreachable::Gone));
            assert_eq!(span.write_pieces([&[0u8; 16][..]].into_iter()), Err(Unreachable::Gone));
            assert_eq!(span.sub(0, 8).fetch_add(1), Err(Unreachable::Gone));
            assert_eq!(span.sub(0, 8).cmp_swap(0, 1), Err(Unreachable::Gone));
            assert!(span.with_bytes(|_| ()).is_none());
        }
        assert!(!Span::null(8).is_device() && !Span::held(8).is_device() && !Span::pattern(0, 8).is_device());
    }

    #[test]
    fn adjacent_spans_join() {
        let own = ProcessMemory::own().unwrap();
        let whole = own.span(0x1000, 100);
        let joined = whole.sub(0, 40).joined(&whole.sub(40, 60)).expect("adjacent");
        assert_eq!((joined.as_ptr() as u64, joined.len(), joined.backing()), (0x1000, 100, whole.backing()));
        assert!(whole.sub(0, 40).joined(&whole.sub(41, 59)).is_none(), "a gap of one byte");
        assert!(whole.sub(0, 40).joined(&whole.sub(39, 60)).is_none(), "an overlap of one byte");
        // SAFETY: no byte is touched.
        let local = unsafe { Span::local(0x1028 as *mut u8, 60) };
        assert!(whole.sub(0, 40).joined(&local).is_none(), "other memory");
        let other = ProcessMemory::own().unwrap();
        assert!(whole.sub(0, 40).joined(&other.span(0x1028, 60)).is_none(), "another process");
        assert!(own.span(0, u32::MAX).joined(&own.span(u64::from(u32::MAX), 1)).is_none(), "longer than a span can be");
        assert!(own.span(u64::MAX, 1).joined(&own.span(0, 1)).is_none(), "around the end of the address space");
    }

    /// System calls of this thread that have written; `None` where the kernel does not count them.
    fn writes() -> Option<u64> {
        let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        io.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok())
    }

    #[test]
    fn pieces_of_a_train_lie_one_behind_the_other() {
        // Payloads of 300 bytes in packets of 303: three bytes more than two system calls write.
        let packets = (2 * TRAIN_BYTES).div_ceil(300);
        let train: Vec<u8> = (0..packets * 303).map(|i| ((i * 7) >> 3) as u8).collect();
        let payloads = || train.chunks(303).map(|packet| &packet[1..301]);
        let expect: Vec<u8> = payloads().flatten().copied().collect();
        let mut memory = vec![0xee_u8; expect.len() + 2];
        let own = ProcessMemory::own().unwrap();
        for remote in [false, true] {
            memory.fill(0xee);
            let all = if remote { own.span(memory.as_ptr() as u64, memory.len() as u32) } else { span_of(&mut memory) };
            let span = all.sub(1, expect.len());
            let before = writes();
            span.write_pieces(payloads()).unwrap();
            let calls = writes().zip(before).map(|(now, before)| now - before);
            assert!(memory[1..=expect.len()] == expect && memory[0] == 0xee && memory[expect.len() + 1] == 0xee);
            assert!(calls.is_none_or(|calls| calls == if remote { 3 } else { 0 }), "{calls:?} system calls");
        }
        assert!(std::panic::catch_unwind(|| Span::null(0).sub(0, 1)).is_err());
        let short = own.span(memory.as_ptr() as u64, 5);
        let long = std::panic::catch_unwind(|| short.write_pieces(payloads()));
        assert!(long.is_err(), "pieces longer than the span");
    }

    #[test]
    fn a_train_that_meets_an_unmapped_page_is_gone() {
        let own = ProcessMemory::own().unwrap();
        // SAFETY: two fresh pages that only this test knows; the second is unmapped again.
        let at = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 8192, rights, flags, -1, 0);
            assert_eq!(libc::munmap(at.add(4096), 4096), 0);
            at as u64
        };
        let pieces = [[1u8; 1000], [2; 1000], [3; 1000]];
        let write = |from| own.span(from, 3000).write_pieces(pieces.iter().map(|p| &p[..]));
        assert_eq!((write(at), write(at + 1096)), (Ok(()), Ok(())));
        for from in [at + 1097, at + 2500, at + 4095, at + 4096] {
            assert_eq!(write(from), Err(Unreachable::Gone));
        }
        assert_eq!(own.span(u64::MAX - 10, 3000).write_pieces(pieces.iter().map(|p| &p[..])), Err(Unreachable::Gone));
    }

    #[test]
    fn unmapped_is_gone() {
        let mut out = [0; 8];
        let memory = ProcessMemory::own().unwrap();
        for addr in [8, 4096, 1 << 62, u64::MAX - 3, u64::MAX >> 1] {
            let span = memory.span(addr, 8);
            assert_eq!(
                (span.read_to(&mut out), span.write_from(&out)),
                (Err(Unreachable::Gone), Err(Unreachable::Gone)),
                "{addr:#x}"
            );
            assert_eq!(span.fetch_add(1), Err(Unreachable::Gone));
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
