//! Apertures: memory that shows a part of an imported segment (`include/burst_urma.h`, `docs/urma.md`).
//!
//! Pages come when they are first used, by userfaultfd: a thread of the aperture fetches them by READ, and more at once while
//! they are used in order. They are protected against stores; the first store to one makes a copy of it (a *twin*). A flush
//! compares page and twin in words of eight bytes and writes the words that differ, so that hosts that store to different words
//! of a page do not undo each other's stores. There is no coherence beyond that: who flushes makes stores visible, who
//! invalidates sees those of others.
//!
//! A page that the program drops (`madvise`) while it has a twin comes back as the twin: its stores are lost, and a flush writes
//! nothing of it. A program must not drop pages while another thread of it flushes them.
//!
//! A page that cannot be fetched is poisoned: a load cannot return an error, so the thread gets SIGBUS.
//!
//! | module | what it holds |
//! |---|---|
//! | `lane` | the Jetty that moves pages |
//! | `uffd` | page faults as messages |

mod lane;
mod uffd;

use crate::abi::{EINVAL, SUCCESS, Status, TargetSeg, UrmaContext};
use crate::device::OwnedContext;
use crate::log::explain;
use crate::macros::exported;
use crate::objects::{create, destroy, set_errno};
use lane::{ChangedBytes, PAGES_MAX, PageLane};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use uffd::{PAGE, PageFault, PageFaults, errno};

/// `BURST_URMA_WRITE`.
const WRITE: u32 = 1;
/// Stores are compared and written in words of so many bytes.
const WORD: usize = 8;

/// An aperture, as C sees it.
pub struct Aperture {
    ctx: *mut UrmaContext,
    shared: Arc<ApertureMapping>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the calls share.
struct ApertureMapping {
    base: usize,
    /// Bytes that were asked for; the mapping is as many whole pages.
    len: usize,
    /// Remote address of the first byte.
    remote: u64,
    faults: PageFaults,
    /// Readable: the thread ends.
    end: OwnedFd,
    state: Mutex<ApertureState>,
}

struct ApertureState {
    lane: PageLane,
    present: Vec<bool>,
    /// Pages with stores, and what they were before.
    twins: BTreeMap<usize, Box<[u8; PAGE]>>,
    /// The page behind the last fetched one, and how many are fetched next if it is that.
    next: usize,
    ahead: usize,
}

impl ApertureMapping {
    fn lock(&self) -> MutexGuard<'_, ApertureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn page_at(&self, page: usize) -> usize {
        self.base + page * PAGE
    }
    /// Bytes of a page that belong to the aperture.
    fn bytes_of(&self, page: usize) -> usize {
        (self.len - page * PAGE).min(PAGE)
    }
    /// A copy of a page that is present.
    fn read(&self, page: usize, out: &mut [u8]) {
        // SAFETY: a present page of the mapping; the program may store to it meanwhile, as to any memory that is sent.
        unsafe { std::ptr::copy_nonoverlapping(self.page_at(page) as *const u8, out.as_mut_ptr(), out.len()) };
    }
    fn serve(&self) {
        loop {
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [poll(self.faults.fd()), poll(self.end.as_raw_fd())];
            // SAFETY: an array of two.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
            if fds[1].revents != 0 {
                return;
            }
            while let Some(fault) = self.faults.next() {
                self.resolve(fault);
            }
        }
    }
    fn resolve(&self, fault: PageFault) {
        let page = (fault.addr - self.base) / PAGE;
        let mut state = self.lock();
        let brought = if fault.is_protected && state.present[page] { Ok(()) } else { self.bring(&mut state, page) };
        if let Err(status) = brought {
            let what = std::io::Error::from_raw_os_error(status);
            explain(&format!("a page at {:#x} of an aperture cannot be fetched: {what}", self.page_at(page)));
            return self.faults.poison(self.page_at(page));
        }
        if fault.is_write || fault.is_protected {
            state.twins.entry(page).or_insert_with(|| {
                let mut twin = Box::new([0; PAGE]);
                self.read(page, &mut twin[..]);
                twin
            });
            self.faults.unprotect(self.page_at(page));
        } else {
            self.faults.wake(self.page_at(page), PAGE);
        }
    }
    /// Brings a page that is missing: it was not used yet, or the program has dropped it (`madvise`). Another thread's fault may
    /// have brought it meanwhile: a page that is there stays.
    fn bring(&self, state: &mut ApertureState, page: usize) -> Result<(), Status> {
        state.present[page] = false;
        match state.twins.get(&page) {
            // The stores to it are lost, as to any memory that is dropped. What the segment has by now would look like stores.
            Some(twin) => {
                self.faults.fill(self.page_at(page), &twin[..])?;
                state.present[page] = true;
                Ok(())
            }
            None => self.fetch(state, page),
        }
    }
    fn fetch(&self, state: &mut ApertureState, page: usize) -> Result<(), Status> {
        state.ahead = if page == state.next { (state.ahead * 2).min(PAGES_MAX) } else { 1 };
        let missing = state.present[page..].iter().take(state.ahead).take_while(|present| !**present).count();
        let len = (self.len - page * PAGE).min(missing * PAGE);
        let from = self.remote + (page * PAGE) as u64;
        state.lane.fetch(from, len as u32)?;
        let buffer = state.lane.buffer();
        buffer[len..missing * PAGE].fill(0);
        self.faults.fill(self.page_at(page), &buffer[..missing * PAGE])?;
        state.present[page..page + missing].fill(true);
        state.next = page + missing;
        Ok(())
    }
    /// The pages of a range.
    fn pages(&self, offset: u64, len: u64) -> Result<std::ops::Range<usize>, Status> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len as u64).ok_or(EINVAL)?;
        Ok(offset as usize / PAGE..(end as usize).div_ceil(PAGE))
    }
    fn flush(&self, state: &mut ApertureState, pages: std::ops::Range<usize>) -> Result<(), Status> {
        let dirty: Vec<usize> = state.twins.range(pages).map(|(page, _)| *page).collect();
        for page in dirty {
            // Stores from now on fault, and wait until the page is written.
            self.faults.protect(self.page_at(page), PAGE);
            let Some(twin) = state.twins.get(&page) else { continue };
            // If the program has dropped the page, reading it would wait for the aperture's thread, and that for this lock.
            self.faults.fill(self.page_at(page), &twin[..])?;
            let mut now = [0; PAGE];
            self.read(page, &mut now);
            let pieces = changes(&twin[..], &now, self.bytes_of(page));
            state.lane.buffer()[..PAGE].copy_from_slice(&now);
            let at = self.remote + (page * PAGE) as u64;
            let place = |(from, len): (usize, usize)| ChangedBytes { from, to: at + from as u64, len: len as u32 };
            let pieces: Vec<ChangedBytes> = pieces.into_iter().map(place).collect();
            // After a failure the twin stays: the next flush tries again.
            state.lane.put(&pieces)?;
            state.twins.remove(&page);
        }
        Ok(())
    }
    fn invalidate(&self, state: &mut ApertureState, pages: std::ops::Range<usize>) -> Result<(), Status> {
        self.flush(state, pages.clone())?;
        state.present[pages.clone()].fill(false);
        // SAFETY: pages of the mapping without stores that were not flushed; who uses them faults.
        let result =
            unsafe { libc::madvise(self.page_at(pages.start) as *mut _, pages.len() * PAGE, libc::MADV_DONTNEED) };
        if result == 0 { Ok(()) } else { Err(errno()) }
    }
}

/// Where the first `len` bytes of a page differ from those before, in whole words: offsets and lengths.
fn changes(before: &[u8], now: &[u8], len: usize) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for at in (0..len).step_by(WORD) {
        let word = at..(at + WORD).min(len);
        if before[word.clone()] == now[word.clone()] {
            continue;
        }
        match found.last_mut() {
            Some((from, count)) if *from + *count == at => *count += word.len(),
            _ => found.push((at, word.len())),
        }
    }
    found
}

impl Drop for ApertureMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` has made; the thread has ended.
        unsafe { libc::munmap(self.base as *mut _, self.len.next_multiple_of(PAGE)) };
    }
}

/// Memory without pages, which a forked child does not get: it has no thread that would fill it.
fn reserve(len: usize, is_writable: bool) -> Result<usize, Status> {
    let prot = if is_writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory.
    unsafe {
        let base = libc::mmap(null_mut(), len, prot, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return Err(errno());
        }
        // A huge page would need all of its bytes at the first touch.
        if libc::madvise(base, len, libc::MADV_DONTFORK) != 0 {
            let status = errno();
            libc::munmap(base, len);
            return Err(status);
        }
        libc::madvise(base, len, libc::MADV_NOHUGEPAGE);
        Ok(base as usize)
    }
}

/// # Safety
/// The segment is an imported one and alive.
unsafe fn map(seg: *mut TargetSeg, va: u64, len: u64, flags: u32) -> Result<*mut Aperture, Status> {
    // SAFETY: as the caller promises.
    let (ctx, segment, first, bytes) = unsafe { ((*seg).ctx, (*seg).handle as u32, (*seg).mva, (*seg).seg.len) };
    let is_inside = va.checked_sub(first).and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= bytes);
    let whole = usize::try_from(len).ok().and_then(|len| len.checked_next_multiple_of(PAGE));
    let (Some(whole), true) = (whole, len > 0 && flags & !WRITE == 0) else { return Err(EINVAL) };
    if !is_inside {
        return Err(crate::abi::EPERM);
    }
    // SAFETY: makes a descriptor; no memory is passed.
    let end = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if end < 0 {
        return Err(errno());
    }
    // SAFETY: a new descriptor that nobody else owns; contexts of this library begin a `OwnedContext`.
    let (end, host) = unsafe { (OwnedFd::from_raw_fd(end), (*ctx.cast::<OwnedContext>()).host.clone()) };
    let make = |inner: &mut MutexGuard<'_, crate::node::Inner>| {
        let lane = PageLane::new(host, inner, segment)?;
        let mapped = reserve(whole, flags & WRITE != 0).and_then(|base| {
            let faults = PageFaults::new(base, whole).inspect_err(|_| {
                // SAFETY: new memory that nobody uses.
                unsafe { libc::munmap(base as *mut _, whole) };
            })?;
            Ok((base, faults))
        });
        Ok((lane, mapped))
    };
    // SAFETY: as the caller promises.
    let made = unsafe { create(ctx, make) };
    if made.is_null() {
        return Err(errno());
    }
    // SAFETY: `create` has made it.
    let (lane, mapped) = *unsafe { Box::from_raw(made) };
    let result = mapped.and_then(|(base, faults)| {
        let pages = whole / PAGE;
        let state = ApertureState { lane, present: vec![false; pages], twins: BTreeMap::new(), next: 0, ahead: 1 };
        let shared =
            Arc::new(ApertureMapping { base, len: len as usize, remote: va, faults, end, state: Mutex::new(state) });
        let thread = start(shared.clone())?;
        Ok(Box::into_raw(Box::new(Aperture { ctx, shared, thread: Some(thread) })))
    });
    if result.is_err() {
        // SAFETY: `create` has counted an object that is not there.
        unsafe { destroy(ctx, Box::into_raw(Box::new(())), SUCCESS) };
    }
    result
}

/// Starts the thread of an aperture. It takes no signals: they are the program's.
fn start(mapping: Arc<ApertureMapping>) -> Result<JoinHandle<()>, Status> {
    // SAFETY: plain data that the calls fill.
    let spawned = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let spawned = std::thread::Builder::new().name("burst-aperture".into()).spawn(move || {
            // A thread that vanished would leave those that wait for a page without end.
            if catch_unwind(AssertUnwindSafe(|| mapping.serve())).is_err() {
                std::process::abort();
            }
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        spawned
    };
    spawned.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))
}

fn done(result: Result<(), Status>) -> Status {
    result.map_or_else(|status| status, |()| SUCCESS)
}

exported! {
    /// Maps a part of an imported segment.
    fn burst_urma_map(seg: *mut TargetSeg, va: u64, len: u64, flags: u32) -> *mut Aperture {
        if seg.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        map(seg, va, len, flags).unwrap_or_else(|status| {
            set_errno(status);
            null_mut()
        })
    }
    /// Address of the first byte of an aperture.
    fn burst_urma_address(aperture: *mut Aperture) -> *mut u8 {
        if aperture.is_null() {
            return null_mut();
        }
        let own = &*aperture;
        own.shared.base as *mut u8
    }
    /// Writes what was changed back to the segment.
    fn burst_urma_flush(aperture: *mut Aperture, offset: u64, len: u64) -> Status {
        if aperture.is_null() {
            return EINVAL;
        }
        let mapping = &(*aperture).shared;
        done(mapping.pages(offset, len).and_then(|pages| mapping.flush(&mut mapping.lock(), pages)))
    }
    /// Flushes a range and forgets it.
    fn burst_urma_invalidate(aperture: *mut Aperture, offset: u64, len: u64) -> Status {
        if aperture.is_null() {
            return EINVAL;
        }
        let mapping = &(*aperture).shared;
        done(mapping.pages(offset, len).and_then(|pages| mapping.invalidate(&mut mapping.lock(), pages)))
    }
    /// Flushes everything and ends the mapping.
    fn burst_urma_unmap(aperture: *mut Aperture) -> Status {
        if aperture.is_null() {
            return EINVAL;
        }
        let mut own = Box::from_raw(aperture);
        let ctx = own.ctx;
        let pages = 0..own.shared.len.div_ceil(PAGE);
        let result = own.shared.flush(&mut own.shared.lock(), pages);
        crate::descriptors::ring(own.shared.end.as_raw_fd());
        if let Some(thread) = own.thread.take() {
            // A panic of it ends the process.
            let _ = thread.join();
        }
        drop(own);
        destroy(ctx, Box::into_raw(Box::new(())), SUCCESS);
        done(result)
    }
}
