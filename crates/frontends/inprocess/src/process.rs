//! Fork and exit of the program.
//!
//! A child after fork has copies of the ports' descriptors. It closes them, so that a dead parent's address is free, and
//! forgets the host, which is the parent's: it can open one of its own. The numbers of the descriptors are collected before the
//! fork, because the child may not take a lock that another thread held.

use crate::instance::Instance;
use burst_ffi::tool_socket;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

/// How often, and after which pauses, the end of the process tries to use the house.
pub const EXIT_ATTEMPTS: u32 = 50;
/// See [`EXIT_ATTEMPTS`].
pub const EXIT_PAUSE: Duration = Duration::from_millis(2);
/// How often a fork tries to learn the ports' descriptors from a busy worker.
const FORK_ATTEMPTS: u32 = 1000;
/// Descriptors of ports that a child closes.
const FDS_MAX: usize = 64;

/// The descriptors of the ports, collected before a fork.
static FDS: [AtomicI32; FDS_MAX] = [const { AtomicI32::new(-1) }; FDS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Installs the handlers, once.
///
/// # Errors
/// A sentence: there is no memory.
pub fn watch() -> Result<(), String> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: functions that exist as long as the library, which is never unloaded.
    let failed =
        unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) != 0 || libc::atexit(at_exit) != 0 };
    if failed { Err("no memory to watch fork and exit".into()) } else { Ok(()) }
}

unsafe extern "C" fn before_fork() {
    COUNT.store(0, Ordering::Relaxed);
    let Some(instance) = Instance::current() else { return };
    let _ = crate::enclosed(|| {
        for _ in 0..FORK_ATTEMPTS {
            if instance.worker().try_each_port_descriptor(&mut note) {
                return;
            }
            std::thread::yield_now();
        }
    });
}

/// Notes a descriptor. Allocates nothing: the fork may be a signal handler's that has interrupted the allocator.
fn note(fd: RawFd) {
    let count = COUNT.load(Ordering::Relaxed);
    if let Some(place) = FDS.get(count) {
        place.store(fd, Ordering::Relaxed);
        COUNT.store(count + 1, Ordering::Relaxed);
    }
}

/// The descriptors of the connection to the daemon in lent mode, which a child closes.
static LENDER: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Notes the descriptors of the connection to the daemon in lent mode.
pub fn note_lender(fds: impl Iterator<Item = RawFd>) {
    LENDER.iter().zip(fds).for_each(|(place, fd)| place.store(fd, Ordering::Relaxed));
}

unsafe extern "C" fn in_child() {
    if Instance::current().is_none() {
        return;
    }
    Instance::forget();
    for fd in LENDER.iter().map(|place| place.swap(-1, Ordering::Relaxed)).filter(|fd| *fd >= 0) {
        // SAFETY: as below.
        unsafe { libc::close(fd) };
    }
    tool_socket::close_in_child();
    for place in &FDS[..COUNT.load(Ordering::Relaxed).min(FDS_MAX)] {
        // SAFETY: the number of a descriptor of this process, a copy of a port's, that nothing here uses any more. `close` may be
        // called in a child after fork.
        unsafe { libc::close(place.load(Ordering::Relaxed)) };
    }
}

extern "C" fn at_exit() {
    let _ = crate::enclosed(|| {
        let Some(instance) = Instance::current() else { return };
        tool_socket::remove();
        instance.end();
    });
}
