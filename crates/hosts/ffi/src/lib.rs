//! Common parts of the FFI boundaries, between C and Rust, of the two drop-in libraries.
//!
//! [`guarded`] runs the Rust part of a call: a panic there is a bug in Burst, and the caller sees EIO instead of an abort; a
//! cancelled thread (pthread_cancel) ends before or after the Rust part, not within ([`block`]). [`report`] writes sentences to
//! stderr where an errno is not enough, [`failed_completion`] where the status of a completion is not. Each library reports
//! results in its own way (an errno value, -1, NULL).
//!
//! An engine inside a program has a thread ([`keeper`]) and a socket for tools ([`tool_socket`]).

pub mod block;
pub mod failed_completion;
pub mod in_process;
pub mod keeper;
pub mod report;
pub mod tool_socket;

use block::NotNow;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// Result of the Rust part of a call.
pub type Outcome<T> = Result<T, Errno>;

/// The argument is wrong, or the object is not in a state for this.
pub const EINVAL: Errno = Errno(libc::EINVAL);
/// No descriptor.
pub const EBADF: Errno = Errno(libc::EBADF);
/// No memory, or no room in a queue.
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
/// Not offered.
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
/// No device, or no daemon.
pub const ENODEV: Errno = Errno(libc::ENODEV);
/// The connection to the daemon failed, or the object belongs to the parent process.
pub const EIO: Errno = Errno(libc::EIO);

impl From<burst_control::ControlError> for Errno {
    fn from(e: burst_control::ControlError) -> Errno {
        report::refused_call(&e);
        Errno(e.errno())
    }
}

impl From<burst_client::ClientError> for Errno {
    fn from(e: burst_client::ClientError) -> Errno {
        match e {
            burst_client::ClientError::Control(e) => e.into(),
            other => {
                report::explain(&other);
                Errno(other.errno())
            }
        }
    }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(e: Errno) {
    // SAFETY: glibc returns the address of this thread's errno, which is always valid.
    unsafe { *libc::__errno_location() = e.0 }
}

/// The calling thread's `errno`.
pub fn errno() -> Errno {
    // SAFETY: as in `set_errno`.
    Errno(unsafe { *libc::__errno_location() })
}

/// Calls `inside`, and returns its result; EIO if it panics.
///
/// # Errors
/// As `inside`, or [`EIO`].
pub fn guarded<T>(inside: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _not_now = NotNow::begin();
    catch_unwind(AssertUnwindSafe(inside)).unwrap_or(Err(EIO))
}
