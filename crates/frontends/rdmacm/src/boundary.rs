//! The FFI boundary of librdmacm: how a call from C reports an error.
//!
//! Functions of this library report by -1 or NULL with `errno` set. A panic is a bug in this library; the caller sees EIO instead
//! of an abort. Neither panics nor cancellation cross the boundary ([`burst_ffi`]).

use burst_ffi::guarded;
pub use burst_ffi::{EINVAL, EIO, ENODEV, ENOMEM, EOPNOTSUPP, Errno, Outcome, errno, set_errno};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// For functions that return 0, or -1 on error.
pub fn status(inside: impl FnOnce() -> Outcome<()>) -> c_int {
    match guarded(inside) {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
            -1
        }
    }
}

/// For functions that return a pointer, NULL on error.
pub fn pointer<T>(inside: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guarded(inside).unwrap_or_else(|e| {
        set_errno(e);
        std::ptr::null_mut()
    })
}

/// For functions that return nothing.
pub fn nothing(inside: impl FnOnce() -> Outcome<()>) {
    // The function has no way to report an error.
    let _ = guarded(inside);
}

/// Locks a mutex, also after a panic of a holder: no holder leaves the data inconsistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a verbs function that returns an errno value.
pub fn verbs(returned: c_int) -> Outcome<()> {
    match returned {
        0 => Ok(()),
        n if n > 0 => Err(Errno(n)),
        _ => Err(errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_reported_in_the_function_s_way() {
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(status(|| Err(EINVAL)), -1);
        assert_eq!(errno(), EINVAL);
        assert!(pointer::<u8>(|| Err(ENOMEM)).is_null());
        assert_eq!(errno(), ENOMEM);
        assert_eq!((verbs(0), verbs(libc::EBUSY)), (Ok(()), Err(Errno(libc::EBUSY))));
    }

    #[test]
    fn a_panic_stays_inside() {
        std::panic::set_hook(Box::new(|_| ()));
        let rc = status(|| panic!("inside"));
        let _ = std::panic::take_hook();
        assert_eq!((rc, errno()), (-1, EIO));
    }
}
