//! What the two drop-in libraries share at the threshold between C and Rust (storey 2).
//!
//! [`guarded`] runs the inside of a door: a panic there is a bug of ours, and the caller sees EIO instead of an abort; a
//! cancelled thread (pthread_cancel) ends before or after it, not within ([`block`]). [`say`] tells a person what a number
//! cannot. How the result is reported (an errno value, -1, NULL) is each library's own.

pub mod block;
pub mod say;

use block::NotNow;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// Result of the inside of a door.
pub type Outcome<T> = Result<T, Errno>;

/// The argument is wrong, or the object is not in a state for this.
pub const EINVAL: Errno = Errno(libc::EINVAL);
/// No room.
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
/// Not offered.
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
/// No device, or no daemon.
pub const ENODEV: Errno = Errno(libc::ENODEV);
/// The conversation with the daemon broke, or the object belongs to the parent process.
pub const EIO: Errno = Errno(libc::EIO);

impl From<burst_control::ControlError> for Errno {
    fn from(e: burst_control::ControlError) -> Errno {
        say::why(&e);
        Errno(e.errno())
    }
}

impl From<burst_client::ClientError> for Errno {
    fn from(e: burst_client::ClientError) -> Errno {
        match e {
            burst_client::ClientError::Control(e) => e.into(),
            other => {
                say::explain(&other);
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

/// What `inside` returns; EIO if it panics.
///
/// # Errors
/// As `inside`, or [`EIO`].
pub fn guarded<T>(inside: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _not_now = NotNow::begin();
    catch_unwind(AssertUnwindSafe(inside)).unwrap_or(Err(EIO))
}
