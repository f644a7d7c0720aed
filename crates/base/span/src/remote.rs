//! Memory of another process, by its file `/proc/PID/mem`.
//!
//! The file belongs to the address space that the process has when the file is opened, and rights are checked then. After
//! the process has ended, or runs another program by `exec`, the file reaches nothing any more. `process_vm_readv` takes a
//! process number instead: it would reach any process that has the number at the time, so a daemon with privileges could
//! be led into a set-user-ID program, or into the process of another user.
//!
//! The kernel checks every address; a wrong one is an error and never a fault here. A call may move less than asked
//! when a later page is unmapped: it is repeated for the rest, so that the end of the mapped part shows as an error, and
//! any shortfall is [`Unreachable::Gone`].
//!
//! Pieces are copied into a buffer before they are written. `pwritev` would not need one, but the file has no vectored write
//! of its own: the kernel writes each piece by itself, and each costs it the search of a page and a page of kernel memory. 60
//! pieces of 1 KiB take 44 us by `pwritev` and 10 us by a copy and one `pwrite`; 15 pieces of 4 KiB take 12.6 and 9.5
//! (`cargo bench -p burst-span --bench remote`).
//!
//! While the process forks, pages are exchanged and mappings may be missing for a moment:
//! a shortfall is [`Unreachable::Late`] then ([`ProcessMemory::span_in_fork`]).

use crate::guarded::{self, AccessThreads, GuardedMemory};
use crate::{Span, SpanKind, Unreachable, copy};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Most bytes of several pieces that one system call writes: as many as one GSO send has.
pub const TRAIN_BYTES: usize = 64 << 10;

/// Bytes of a page; where pages are longer, a cut behind so many costs little and gains nothing.
const PAGE: usize = 4096;
/// The kernel moves a page's length at a time, from the first byte on: where that lies inside a page, each step takes two pages.
/// An access of so many bytes or more is cut behind its first page: 60 KiB then take 9.2 us and not 12.3, 16 KiB 3.4 and not
/// 3.8, and 8 KiB would take longer.
const CUT_BYTES_MIN: usize = 16 << 10;

thread_local! {
    /// Where the pieces of a train are put one behind the other: [`TRAIN_BYTES`] of memory, once this thread has needed it.
    static GATHERED: RefCell<Option<Box<[u8]>>> = const { RefCell::new(None) };
}

/// Number of a descriptor of `/proc/PID/mem`, in 24 bits so that a span stays 16 bytes long. The highest bit says that the
/// memory is reached by threads (module `guarded`), the next one that its process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFd(u32);

impl MemoryFd {
    const GUARDED: u32 = 1 << 23;
    const FORKS: u32 = 1 << 22;
    /// Memory that must not be accessed at present; no descriptor has the number.
    const HELD: MemoryFd = MemoryFd((1 << 24) - 1);

    /// `None` for numbers of 2^22 - 1 and more; `fs.nr_open` is 2^20 on usual systems.
    fn new(fd: RawFd) -> Option<MemoryFd> {
        u32::try_from(fd).ok().filter(|fd| *fd < Self::FORKS - 1).map(MemoryFd)
    }
    fn forks(self) -> bool {
        self.0 & Self::FORKS != 0
    }
    /// Of memory whose process forks, that it cannot be reached is no more than late.
    fn why(self, why: Unreachable) -> Unreachable {
        if self.forks() { Unreachable::Late } else { why }
    }
    fn guarded(self) -> MemoryFd {
        MemoryFd(self.0 | Self::GUARDED)
    }
    /// The descriptor, if the memory is guarded.
    fn if_guarded(self) -> Option<u32> {
        (self.0 & Self::GUARDED != 0).then_some(self.raw() as u32)
    }
    fn raw(self) -> RawFd {
        (self.0 & !(Self::GUARDED | Self::FORKS)) as RawFd
    }
    /// All 24 bits.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }
    /// From [`MemoryFd::bits`].
    pub(crate) fn from_bits(bits: u32) -> MemoryFd {
        debug_assert!(bits < 1 << 24);
        MemoryFd(bits)
    }
}

/// The memory of a process. Its spans are good for as long as it lives.
#[derive(Debug)]
pub struct ProcessMemory {
    /// Keeps the descriptor open.
    file: File,
    fd: MemoryFd,
    /// The memory as threads reach it, if they do.
    guarded: Option<Arc<GuardedMemory>>,
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        if let Some(number) = self.fd.if_guarded() {
            GuardedMemory::forget(number);
        }
    }
}

impl ProcessMemory {
    /// Opens the memory of process `pid` if the process belongs to user `owner`. A process that runs a set-user-ID program,
    /// or has made itself untraceable, belongs to root in `/proc`, whichever user has started it.
    ///
    /// # Errors
    /// When there is no such process, when this process may not reach it, or when it belongs to another user.
    pub fn open(pid: u32, owner: u32) -> io::Result<ProcessMemory> {
        let path = format!("/proc/{pid}/mem");
        let memory = ProcessMemory::of(OpenOptions::new().read(true).write(true).open(&path)?)?;
        // After opening: a program with more rights that was started before is seen here, a later one is not reached.
        if std::fs::metadata(&path)?.uid() != owner {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(memory)
    }
    /// This process's own memory.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn own() -> io::Result<ProcessMemory> {
        OpenOptions::new().read(true).write(true).open("/proc/self/mem").and_then(ProcessMemory::of)
    }
    fn of(file: File) -> io::Result<ProcessMemory> {
        let fd = MemoryFd::new(file.as_raw_fd()).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(ProcessMemory { file, fd, guarded: None })
    }
    /// The same memory, reached by threads: a page that never comes blocks a thread and not the caller of an access.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn by_threads(mut self, threads: &AccessThreads) -> io::Result<ProcessMemory> {
        assert!(self.guarded.is_none(), "guarded once");
        let number = self.fd.raw() as u32;
        self.guarded = Some(GuardedMemory::register(number, self.file.try_clone()?, threads));
        self.fd = self.fd.guarded();
        Ok(self)
    }
    /// Whether a page of the memory has not come for [`crate::LATE_MAX`].
    pub fn has_failed(&self) -> bool {
        self.guarded.as_ref().is_some_and(|memory| memory.has_failed())
    }
    /// `len` bytes at `addr`. Use the span no longer than `self` lives: the number may be another file's then.
    pub fn span(&self, addr: u64, len: u32) -> Span {
        Span { addr, len, kind: SpanKind::remote(self.fd) }
    }
    /// As [`ProcessMemory::span`], while the process forks: what cannot be reached is late, and so is each atomic operation,
    /// which system calls do in two steps.
    pub fn span_in_fork(&self, addr: u64, len: u32) -> Span {
        Span { addr, len, kind: SpanKind::remote(MemoryFd(self.fd.0 | MemoryFd::FORKS)) }
    }
}

/// Whether an atomic operation must wait: others may change the word between its read and its write.
pub(crate) fn postpones_atomics(memory: MemoryFd) -> bool {
    memory.forks()
}

/// `len` bytes of memory that must not be accessed at present: each access is [`Unreachable::Late`].
pub(crate) fn held(len: u32) -> Span {
    Span { addr: 0, len, kind: SpanKind::remote(MemoryFd::HELD) }
}

/// The number of the memory, if threads reach it.
fn guarded_number(memory: MemoryFd) -> Result<Option<u32>, Unreachable> {
    if memory == MemoryFd::HELD { Err(Unreachable::Late) } else { Ok(memory.if_guarded()) }
}

/// Copies `dst.len()` bytes from `addr` of a process.
pub(crate) fn read(memory: MemoryFd, addr: u64, dst: &mut [u8]) -> Result<(), Unreachable> {
    read_now(memory, addr, dst).map_err(|why| memory.why(why))
}

fn read_now(memory: MemoryFd, addr: u64, dst: &mut [u8]) -> Result<(), Unreachable> {
    if let Some(number) = guarded_number(memory)? {
        return guarded::read(number, addr, dst);
    }
    let mut done = 0;
    while done < dst.len() {
        let (rest, place) = (&mut dst[done..], at(addr, done)?);
        let asked = rest.len();
        let (first, aligned) = rest.split_at_mut(cut(place, asked));
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(aligned)];
        let count = if parts[1].is_empty() { 1 } else { 2 };
        // SAFETY: an `IoSliceMut` is an `iovec` by contract, and the slices are live and exclusive.
        let moved = unsafe { libc::preadv(memory.raw(), parts.as_mut_ptr().cast(), count, place) };
        done += progress(moved, asked)?;
    }
    Ok(())
}

/// Copies `src` to `addr` of a process.
pub(crate) fn write(memory: MemoryFd, addr: u64, src: &[u8]) -> Result<(), Unreachable> {
    write_now(memory, addr, src).map_err(|why| memory.why(why))
}

fn write_now(memory: MemoryFd, addr: u64, src: &[u8]) -> Result<(), Unreachable> {
    if let Some(number) = guarded_number(memory)? {
        return guarded::write(number, addr, src);
    }
    let mut done = 0;
    while done < src.len() {
        let (rest, place) = (&src[done..], at(addr, done)?);
        let (first, aligned) = rest.split_at(cut(place, rest.len()));
        let parts = [IoSlice::new(first), IoSlice::new(aligned)];
        let count = if aligned.is_empty() { 1 } else { 2 };
        // SAFETY: an `IoSlice` is an `iovec` by contract, and the kernel only reads the live slices.
        let moved = unsafe { libc::pwritev(memory.raw(), parts.as_ptr().cast(), count, place) };
        done += progress(moved, rest.len())?;
    }
    Ok(())
}

/// Copies `pieces`, `len` bytes together, to `addr` of a process: one behind the other into a buffer of this thread, and from
/// there by one system call for [`TRAIN_BYTES`].
pub(crate) fn write_pieces<'a>(
    memory: MemoryFd,
    addr: u64,
    len: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<(), Unreachable> {
    GATHERED.with_borrow_mut(|buffer| {
        let place = buffer.get_or_insert_with(|| vec![0; TRAIN_BYTES].into_boxed_slice());
        let (mut written, mut filled) = (0, 0);
        for mut piece in pieces {
            assert!(piece.len() <= len - written - filled, "pieces longer than the span");
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(TRAIN_BYTES - filled));
                copy(&mut place[filled..filled + now.len()], now);
                (piece, filled) = (later, filled + now.len());
                if filled == TRAIN_BYTES {
                    write(memory, offset_by(addr, written)?, place)?;
                    (written, filled) = (written + filled, 0);
                }
            }
        }
        debug_assert_eq!(written + filled, len, "pieces of the span's length");
        if filled == 0 { Ok(()) } else { write(memory, offset_by(addr, written)?, &place[..filled]) }
    })
}

/// Where an access to `len` bytes from `place` on is cut in two: behind a page, unless it begins there; at its end, if it is
/// short. Both parts go with one system call.
fn cut(place: libc::off_t, len: usize) -> usize {
    let ahead = place.wrapping_neg().rem_euclid(PAGE as libc::off_t) as usize;
    if ahead == 0 || len < CUT_BYTES_MIN { len } else { ahead }
}

fn offset_by(addr: u64, offset: usize) -> Result<u64, Unreachable> {
    addr.checked_add(offset as u64).ok_or(Unreachable::Gone)
}

fn at(addr: u64, offset: usize) -> Result<libc::off_t, Unreachable> {
    libc::off_t::try_from(offset_by(addr, offset)?).map_err(|_| Unreachable::Gone)
}

/// Bytes moved by one call that was asked for `asked`; a call that moves none would be repeated for ever.
fn progress(moved: isize, asked: usize) -> Result<usize, Unreachable> {
    debug_assert!(moved <= asked as isize, "the kernel moves no more than it was asked to");
    usize::try_from(moved).ok().filter(|&n| n > 0).ok_or(Unreachable::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_accesses_are_cut_behind_their_first_page() {
        const LONG: usize = CUT_BYTES_MIN;
        let cuts = [(0, LONG), (1, LONG), (4095, LONG), (4096, LONG), (8000, LONG), (8000, LONG - 1), (8000, 1)];
        assert_eq!(cuts.map(|(place, len)| cut(place, len)), [LONG, 4095, 1, LONG, 192, LONG - 1, 1]);
    }
    #[test]
    fn descriptors_of_three_bytes_only() {
        for fd in [0, 1, 255, 256, 65_536, (1 << 22) - 2] {
            assert_eq!(MemoryFd::new(fd).map(MemoryFd::raw), Some(fd));
            assert_eq!(MemoryFd::new(fd).and_then(MemoryFd::if_guarded), None);
            assert_eq!(MemoryFd::new(fd).map(MemoryFd::guarded).and_then(MemoryFd::if_guarded), Some(fd as u32));
        }
        for fd in [-1, (1 << 22) - 1, 1 << 22, 1 << 23, i32::MAX] {
            assert_eq!(MemoryFd::new(fd), None);
        }
    }
    #[test]
    fn memory_of_a_process_that_forks_is_reached_or_late() {
        let own = ProcessMemory::own().expect("own memory");
        for own in
            [own, ProcessMemory::own().expect("own memory").by_threads(&AccessThreads::default()).expect("by threads")]
        {
            let mut words = [1u64, 2];
            let at = |addr: u64| own.span_in_fork(addr, 16);
            let there = at(&raw mut words as u64);
            // Threads of a busy machine may be late.
            let reach =
                |access: &mut dyn FnMut() -> Result<(), Unreachable>| while access() == Err(Unreachable::Late) {};
            let mut bytes = [0; 16];
            reach(&mut || there.read_to(&mut bytes));
            assert_eq!(bytes[0], 1);
            reach(&mut || there.write_from(&[7; 16]));
            assert_eq!(words, [u64::from_ne_bytes([7; 8]); 2]);
            reach(&mut || there.write_pieces([&[8u8; 4][..], &[9; 12]].into_iter()));
            assert_eq!(words[0].to_ne_bytes(), [8, 8, 8, 8, 9, 9, 9, 9]);
            // A read and a write of one word would lose what is stored in between.
            assert_eq!(there.sub(0, 8).fetch_add(1), Err(Unreachable::Late));
            assert_eq!(there.sub(8, 8).cmp_swap(1, 2), Err(Unreachable::Late));
            // Nothing is mapped at the first page; a span outside a fork says so.
            reach(&mut || match own.span(64, 8).read_to(&mut [0; 8]) {
                Err(Unreachable::Gone) => Ok(()),
                other => other.and(Err(Unreachable::Late)),
            });
            let absent = at(64);
            assert_eq!(absent.read_to(&mut [0; 16]), Err(Unreachable::Late));
            assert_eq!(absent.write_from(&[0; 16]), Err(Unreachable::Late));
            assert_eq!(absent.write_pieces([&[0u8; 16][..]].into_iter()), Err(Unreachable::Late));
        }
    }
    #[test]
    fn held_memory_is_late_in_every_access() {
        let span = held(8);
        assert_eq!((span.len(), span.is_remote()), (8, true));
        assert_eq!(span.read_to(&mut [0; 8]), Err(Unreachable::Late));
        assert_eq!(span.write_from(&[0; 8]), Err(Unreachable::Late));
        assert_eq!(span.write_pieces([&[0u8; 4][..], &[0; 4]].into_iter()), Err(Unreachable::Late));
        assert_eq!(span.fetch_add(1), Err(Unreachable::Late));
        assert_eq!(span.sub(2, 3).read_to(&mut [0; 3]), Err(Unreachable::Late));
    }
}
