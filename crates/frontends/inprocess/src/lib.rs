//! `libburst-inprocess.so.1`: a host inside a program's process, for `BURST_MODE=inprocess` and `BURST_MODE=lent`.
//!
//! The same control plane, engine and ports as a daemon's, without a daemon: the process owns its address, QP1 and connection
//! management. In lent mode these stay a daemon's, and the process has the queue pairs of one worker number. The
//! drop-in libraries load this one and use its table of functions ([`InProcessCalls`]).
//!
//! | file | what it holds |
//! |---|---|
//! | `house` | the host and its sessions: requests and commands |
//! | `instance` | the one host of a process, and who runs its worker: polls, posts, waits |
//! | `keeper` | the thread that runs it while the program does not |
//! | `lender` | lent mode: the daemon whose addresses this program shares |
//! | `inspection` | the socket for `burst ls`, `stats` and `cm` |
//! | `ports` | opening the ports, and who holds a taken one |
//! | `process` | fork and exit |
//!
//! Threads that poll run the worker's passes (`Instance::turn`). A thread that posts sends at once, unless a pass will follow
//! soon. While no thread of the program does either, the keeper serves: peers are answered and time-outs repeat packets though
//! the program computes. Locks are taken in the order house, worker; a pass holds the worker alone, and never waits for it.
//!
//! Nothing unwinds into the program: each function catches panics. After one the host is gone, as a daemon that has ended: its
//! pipes hang up, and the libraries flush what is posted and report IBV_EVENT_DEVICE_FATAL.

mod house;
mod inspection;
mod instance;
mod keeper;
mod lender;
mod ports;
mod process;

use burst_control::in_process::{InProcessCalls, InProcessPacket, InProcessReply, TURN_GONE};
use burst_ffi::block::NotNow;
use instance::Instance;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

static CALLS: InProcessCalls = InProcessCalls {
    version: burst_shm::ABI_VERSION,
    open,
    call,
    close,
    is_open,
    turn,
    posted,
    armed,
    begin_wait,
    end_wait,
};

/// The functions of this library. The table lives as long as the library, which is never unloaded.
#[unsafe(no_mangle)]
pub extern "C" fn burst_inprocess_calls() -> *const InProcessCalls {
    &raw const CALLS
}

/// Runs `inside` where it can neither unwind into the program nor be cancelled; `None` after a panic.
fn enclosed<T>(inside: impl FnOnce() -> T) -> Option<T> {
    let _not_now = NotNow::begin();
    catch_unwind(AssertUnwindSafe(inside)).ok()
}

/// As [`InProcessCalls::open`].
///
/// # Safety
/// `why` has room for `room` bytes.
unsafe extern "C" fn open(why: *mut u8, room: usize) -> u64 {
    let opened = enclosed(|| Instance::get_or_open().and_then(Instance::open_session));
    let sentence = match opened {
        Some(Ok(session)) => return session,
        Some(Err(sentence)) => sentence,
        None => "the host in this process has failed".to_owned(),
    };
    let bytes = sentence.as_bytes();
    let len = bytes.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: `room` bytes are writable, and the sentence with its zero is not longer.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), why, len);
            why.add(len).write(0);
        }
    }
    0
}

/// As [`InProcessCalls::call`].
///
/// # Safety
/// Both structs are valid, and so are the pointers in them for the lengths beside them.
unsafe extern "C" fn call(session: u64, packet: *const InProcessPacket, reply: *mut InProcessReply) -> c_int {
    let result = enclosed(|| {
        let instance = Instance::current().ok_or(libc::EIO)?;
        // SAFETY: the caller's promise.
        let (bytes, fds, reply) = unsafe {
            let packet = &*packet;
            let bytes = slice(packet.bytes, packet.len);
            (bytes, slice(packet.fds, packet.fd_count), &mut *reply)
        };
        let answer = instance.call(session, bytes, fds)?;
        let room = if reply.bytes.is_null() { 0 } else { reply.len };
        if answer.bytes.len() > room || answer.fds.len() > reply.fds.len() {
            return Err(libc::EIO);
        }
        if !answer.bytes.is_empty() {
            // SAFETY: the bytes fit, as was compared.
            unsafe { std::ptr::copy_nonoverlapping(answer.bytes.as_ptr(), reply.bytes, answer.bytes.len()) };
        }
        (reply.len, reply.fd_count) = (answer.bytes.len(), answer.fds.len());
        for (place, fd) in reply.fds.iter_mut().zip(answer.fds) {
            *place = std::os::fd::IntoRawFd::into_raw_fd(fd);
        }
        Ok(())
    });
    match result {
        Some(Ok(())) => 0,
        Some(Err(errno)) => errno,
        None => {
            fail();
            libc::EIO
        }
    }
}

/// # Safety
/// `first` is NULL, or `len` values are readable there.
unsafe fn slice<'a, T>(first: *const T, len: usize) -> &'a [T] {
    if first.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, len) }
}

extern "C" fn close(session: u64) {
    let closed = enclosed(|| {
        if let Some(instance) = Instance::current() {
            instance.close_session(session);
        }
    });
    if closed.is_none() {
        fail();
    }
}

extern "C" fn is_open(session: u64) -> c_int {
    enclosed(|| Instance::current().is_some_and(|instance| instance.has_session(session))).unwrap_or(false).into()
}

extern "C" fn turn() -> c_int {
    let Some(instance) = Instance::current() else { return TURN_GONE };
    match enclosed(|| instance.turn()) {
        // A pass has panicked now, or the worker in a command before.
        None | Some(TURN_GONE) => {
            fail();
            TURN_GONE
        }
        Some(result) => result,
    }
}

extern "C" fn posted() {
    if enclosed(|| Instance::current().into_iter().for_each(Instance::posted)).is_none() {
        fail();
    }
}

extern "C" fn armed() {
    // Nothing in it runs the engine.
    let _ = enclosed(|| Instance::current().into_iter().for_each(Instance::armed));
}

/// As [`InProcessCalls::begin_wait`].
///
/// # Safety
/// `fds` has room for `room` descriptors, and `timeout_ns` is writable.
unsafe extern "C" fn begin_wait(fd: RawFd, fds: *mut RawFd, room: usize, timeout_ns: *mut i64) -> c_int {
    // SAFETY: the caller's promise.
    let (fds, timeout_ns) = unsafe { (std::slice::from_raw_parts_mut(fds, room), &mut *timeout_ns) };
    let Some(instance) = Instance::current() else { return -1 };
    match enclosed(|| instance.begin_wait(fd, fds, timeout_ns)) {
        Some(count) => count,
        None => {
            fail();
            -1
        }
    }
}

extern "C" fn end_wait() {
    if enclosed(|| Instance::current().into_iter().for_each(Instance::end_wait)).is_none() {
        fail();
    }
}

/// Lets the worker panic, as a fault of the engine would. For tests.
#[doc(hidden)]
pub fn fall() {
    let fallen = enclosed(|| {
        if let Some(house) = Instance::current().and_then(Instance::house) {
            house.host.on_worker(0, |_, _| panic!("a fault for a test"));
        }
    });
    assert!(fallen.is_none(), "there was no host to fall");
}

/// A panic has left the host unusable.
#[cold]
fn fail() {
    if Instance::current().is_some_and(|instance| !instance.has_failed()) {
        tracing::error!("the engine in this process has failed; its queue pairs end");
    }
    // What it drops may panic again; then it stays.
    let _ = enclosed(|| Instance::current().into_iter().for_each(Instance::fail));
}
