//! The control connection to a host in the same process: a packet goes to a function and not to a socket.
//!
//! The library `libburst-inprocess.so.1` holds a host. The drop-in libraries load it, and pass it the same packets as a daemon
//! would get by its socket, with descriptors by number ([`InProcessCalls`]). Rust values would save nothing that matters: the
//! libraries are shared objects of their own, and nothing guarantees that two copies of this crate agree on layouts.

use crate::{ControlError, FDS_MAX};
use std::ffi::{CStr, c_int};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// File name of the library with the host.
pub const LIBRARY: &str = "libburst-inprocess.so.1";
/// Its symbol: `extern "C" fn() -> *const InProcessCalls`.
pub const CALLS_SYMBOL: &CStr = c"burst_inprocess_calls";
/// Environment variable that chooses between a daemon and a host in the process.
pub const MODE_ENV: &str = "BURST_MODE";
/// Value of [`MODE_ENV`] for a host in the process.
pub const IN_PROCESS_MODE: &str = "inprocess";

/// Value of [`MODE_ENV`] for a host in the process that shares the addresses of a daemon ([`crate::lend`]).
pub const LENT_MODE: &str = "lent";

/// Value of [`MODE_ENV`] for a daemon, as without the variable.
pub const DAEMON_MODE: &str = "daemon";

/// Whether the environment asks for a host in the process. Not in a program with more rights than the one that has started it.
pub fn is_chosen() -> bool {
    let asks = std::env::var_os(MODE_ENV).is_some_and(|mode| mode == IN_PROCESS_MODE || mode == LENT_MODE);
    asks && !burst_peer::process::is_secure_execution()
}

/// Whether that host shares the addresses of a daemon.
pub fn is_lent() -> bool {
    is_chosen() && std::env::var_os(MODE_ENV).is_some_and(|mode| mode == LENT_MODE)
}

/// A packet to the host.
#[repr(C)]
#[derive(Debug)]
pub struct InProcessPacket {
    /// Its bytes: a [`crate::frame::ControlHeader`] and a body.
    pub bytes: *const u8,
    /// Their number.
    pub len: usize,
    /// Descriptors that go with it; they stay the caller's.
    pub fds: *const RawFd,
    /// Their number, at most [`FDS_MAX`].
    pub fd_count: usize,
}

/// Room for the host's reply.
#[repr(C)]
#[derive(Debug)]
pub struct InProcessReply {
    /// Where the bytes of the reply go; NULL if no reply is wanted.
    pub bytes: *mut u8,
    /// Before the call the room in bytes, after it the length of the reply; 0: the packet has none.
    pub len: usize,
    /// Descriptors that belong to the reply; they are the caller's from now on.
    pub fds: [RawFd; FDS_MAX],
    /// Their number.
    pub fd_count: usize,
}

/// One turn of the host has found an earlier failure: the host is gone.
pub const TURN_GONE: c_int = -1;

/// The functions of a host in the process. None of them unwinds, none is a cancellation point.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InProcessCalls {
    /// `ABI_VERSION` of the library. The other fields are valid if it is the caller's.
    pub version: u32,
    /// Opens a session, and the host, if there is none yet. 0: that failed, and a sentence is in the buffer, ended by a zero.
    pub open: unsafe extern "C" fn(why: *mut u8, room: usize) -> u64,
    /// Passes a packet to a session. Returns 0, or an errno if the session is unusable.
    pub call: unsafe extern "C" fn(session: u64, packet: *const InProcessPacket, reply: *mut InProcessReply) -> c_int,
    /// Ends a session.
    pub close: extern "C" fn(session: u64),
    /// Whether a session is that of a host that lives: 1, or 0.
    pub is_open: extern "C" fn(session: u64) -> c_int,
    /// Runs one pass of the worker, unless another thread does. 1: it found work, 0: none, [`TURN_GONE`].
    pub turn: extern "C" fn() -> c_int,
    /// The program has rung a doorbell.
    pub posted: extern "C" fn(),
    /// The program has armed a completion queue, and will wait for its event.
    pub armed: extern "C" fn(),
    /// The program waits for a descriptor to become readable. Fills in up to `room` descriptors to poll, the program's first,
    /// and the time-out in nanoseconds. Returns their number; 0: nothing is to be polled, call again after a look at the
    /// descriptor. A negative number: another thread serves the ports, poll the descriptor alone.
    pub begin_wait: unsafe extern "C" fn(fd: RawFd, fds: *mut RawFd, room: usize, timeout_ns: *mut i64) -> c_int,
    /// Ends a wait for which `begin_wait` has returned a positive number.
    pub end_wait: extern "C" fn(),
}

/// A connection to a host in the same process.
pub trait InProcessLink: Send + Sync + std::fmt::Debug {
    /// Passes a packet. Returns the length of the reply in `reply`, 0 if there is none, and its descriptors.
    ///
    /// # Errors
    /// [`ControlError::Closed`]: the host has ended, or is the parent's.
    fn call(
        &self,
        packet: &[u8],
        fds: &[BorrowedFd<'_>],
        reply: &mut [u8],
    ) -> Result<(usize, Vec<OwnedFd>), ControlError>;
    /// Whether the host still serves the connection.
    fn is_open(&self) -> bool;
}
