//! A processor whose frames are not known: nothing is caught.

use core::ffi::c_void;

pub(super) const CAN_GUARD: bool = false;

/// Calls `f(data)`.
///
/// # Safety
/// `f(data)` may be called.
pub(super) unsafe fn call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    unsafe { f(data) };
    true
}

/// There is no frame.
///
/// # Safety
/// None: the kernel's word on the thread is not read.
pub(super) unsafe fn leave(_context: *mut c_void) -> bool {
    false
}
