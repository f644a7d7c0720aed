//! Burst's engine inside this process (`burst run --in-process`), run by a worker's own thread.
//!
//! Without this a packet wakes the library's keeper thread, which wakes the worker by a completion event: two
//! wake-ups where one is enough. [`OwnEngine::sleep`] waits for the worker's epoll instance and for the engine's ports
//! together. After a while without events the worker leaves the ports to the keeper and sleeps in epoll alone: while a
//! thread of the program watches the ports, the keeper looks after it every two milliseconds, which idle streams must not
//! cost. With any other RDMA device there is no such engine.
#![allow(unsafe_code)]

use burst_control::in_process::{CALLS_SYMBOL, InProcessCalls, LIBRARY, is_chosen};
use burst_shm::ABI_VERSION;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

/// Descriptors that are watched at most.
const FDS_MAX: usize = 64;
/// Longest sleep beside the ports; then the keeper watches them.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepEnd {
    /// Something happened, or time is over.
    Found {
        /// The engine has to run, and completions may have come.
        engine: bool,
        /// The worker's epoll instance may have events.
        poll: bool,
    },
    /// Nothing happened for a while, or another thread watches the ports: the caller sleeps in epoll alone.
    Quiet,
}

/// The functions of the engine in this process.
#[derive(Clone, Copy, Debug)]
pub struct OwnEngine(InProcessCalls);

// SAFETY: only its address is used.
unsafe extern "C" {
    fn ibv_alloc_pd(context: *mut libc::c_void) -> *mut libc::c_void;
}

/// The file beside the libibverbs in use that may hold the engine.
fn library() -> Option<CString> {
    // SAFETY: plain data that the call fills; the address is of a function of libibverbs.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(ibv_alloc_pd as *const () as *const _, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    let beside = Path::new(path.to_str().ok()?).parent()?.join(LIBRARY);
    CString::new(beside.to_str()?).ok()
}

/// Lets the engine of this process not look for packets by itself before it sleeps: it does not see the sockets of
/// programs, and would let them wait. To be called before there are threads.
pub fn prepare() {
    const SPIN: &str = "BURST_SPIN";
    if is_chosen() && std::env::var_os(SPIN).is_none() {
        // SAFETY: the caller says that no other thread reads the environment.
        unsafe { std::env::set_var(SPIN, "0") };
    }
}

impl OwnEngine {
    /// The engine that libibverbs has loaded; `None`: it uses a daemon, or it is not Burst's.
    pub fn find() -> Option<Self> {
        if !is_chosen() {
            return None;
        }
        [library(), CString::new(LIBRARY).ok()].into_iter().flatten().find_map(|name| {
            // SAFETY: a C string; only a library that is loaded already is found.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                return None;
            }
            // SAFETY: an open handle and a C string.
            let symbol = unsafe { libc::dlsym(handle, CALLS_SYMBOL.as_ptr()) };
            if symbol.is_null() {
                return None;
            }
            // SAFETY: the symbol of Burst's own library has this type in all versions; its table begins with the version.
            let table = unsafe {
                let calls: extern "C" fn() -> *const InProcessCalls = std::mem::transmute(symbol);
                &*calls()
            };
            (table.version == ABI_VERSION).then_some(Self(*table))
        })
    }

    /// Sleeps until the epoll instance has events, a packet comes, or `most` is over. Runs a pass of the engine before.
    pub fn sleep(&self, epoll: BorrowedFd<'_>, most: Option<Duration>) -> SleepEnd {
        let (mut fds, mut timeout_ns) = ([-1; FDS_MAX], 0);
        // SAFETY: room for as many descriptors, and a writable number.
        let count = unsafe { (self.0.begin_wait)(epoll.as_raw_fd(), fds.as_mut_ptr(), fds.len(), &raw mut timeout_ns) };
        if count <= 0 {
            return if count < 0 { SleepEnd::Quiet } else { SleepEnd::Found { engine: true, poll: true } };
        }
        let mut watched = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let engine = u64::try_from(timeout_ns).map_or(SLEEP_MAX, Duration::from_nanos);
        let time = most.unwrap_or(SLEEP_MAX).min(engine).min(SLEEP_MAX);
        let spec = libc::timespec { tv_sec: 0, tv_nsec: time.as_nanos() as libc::c_long };
        // SAFETY: as many entries as said; the signal mask stays as it is.
        let found = unsafe { libc::ppoll(watched.as_mut_ptr(), count as u64, &raw const spec, std::ptr::null()) };
        (self.0.end_wait)();
        if found == 0 && time == SLEEP_MAX {
            return SleepEnd::Quiet;
        }
        let poll = watched[0].revents != 0;
        SleepEnd::Found { engine: found != 1 || !poll, poll }
    }

    /// Runs a pass of the engine, unless another thread does.
    pub fn turn(&self) {
        (self.0.turn)();
    }
}
