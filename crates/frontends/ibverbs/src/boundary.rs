//! The FFI boundary of libibverbs: how a call from C reports an error.
//!
//! Verbs functions report in three ways: an errno value (0 is success), NULL with `errno` set, or -1 with `errno` set. A panic is
//! a bug in this library; the caller sees EIO instead of an abort. Neither panics nor cancellation cross the boundary
//! ([`burst_ffi`]).

use burst_ffi::guarded;
pub use burst_ffi::{EBADF, EINVAL, EIO, ENOMEM, EOPNOTSUPP, Errno, Outcome, errno, set_errno};
use std::ffi::c_int;

/// For functions that return an errno value.
pub fn value(inside: impl FnOnce() -> Outcome<()>) -> c_int {
    match guarded(inside) {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e);
            e.0
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

/// For functions that return a number, -1 on error.
pub fn number(inside: impl FnOnce() -> Outcome<c_int>) -> c_int {
    guarded(inside).unwrap_or_else(|e| {
        set_errno(e);
        -1
    })
}

/// For functions that return nothing.
pub fn nothing(inside: impl FnOnce()) {
    let _ = guarded(|| {
        inside();
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_function_reports_errors_in_its_way() {
        assert_eq!(value(|| Ok(())), 0);
        assert_eq!(value(|| Err(EINVAL)), libc::EINVAL);
        assert!(pointer::<u8>(|| Err(ENOMEM)).is_null());
        assert_eq!(errno(), ENOMEM);
        assert_eq!(number(|| Err(EOPNOTSUPP)), -1);
        assert_eq!(errno(), EOPNOTSUPP);
    }

    #[test]
    fn a_panic_stays_inside() {
        std::panic::set_hook(Box::new(|_| ()));
        let rc = value(|| panic!("inside"));
        let _ = std::panic::take_hook();
        assert_eq!(rc, libc::EIO);
    }
}
