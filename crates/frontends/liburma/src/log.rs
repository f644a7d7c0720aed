//! The log of the library: sentences to the function that the program has registered, or to stderr; names of levels; time stamps.

use crate::abi::{EINVAL, SUCCESS, Status};
use crate::macros::exported;
use burst_urma::UrmaError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Numbers of levels as in syslog, and the number of levels.
const ERROR: c_int = 3;
const INFO: c_int = 6;
const LEVELS: c_int = 8;
/// Names of levels that have one.
const NAMES: [(c_int, &CStr); 5] = [(2, c"fatal"), (ERROR, c"error"), (4, c"warning"), (INFO, c"info"), (7, c"debug")];

static LEVEL: AtomicI32 = AtomicI32::new(INFO);
/// The program's function, or null.
static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Writes a sentence where a status is not enough.
pub fn explain(sentence: &str) {
    if LEVEL.load(Ordering::Relaxed) < ERROR {
        return;
    }
    let function = FUNCTION.load(Ordering::Acquire);
    if function.is_null() {
        // Unlike `eprintln!`, it does not panic if nobody reads stderr any more.
        let _ = std::io::stderr().write_all(format!("liburma (burst): {sentence}\n").as_bytes());
        return;
    }
    let Ok(text) = CString::new(sentence) else { return };
    // SAFETY: registered as a function of this type; it takes a text that it may change, and does not keep it.
    unsafe {
        let function: extern "C" fn(c_int, *mut c_char) = std::mem::transmute(function);
        let text = text.into_raw();
        function(ERROR, text);
        drop(CString::from_raw(text));
    }
}

thread_local! {
    /// Why the call that this thread makes will be refused, if that is known better than by its error.
    static CAUSE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes why the call that this thread makes will be refused, and returns the error.
pub fn because(error: UrmaError, cause: impl Into<String>) -> UrmaError {
    let cause = cause.into();
    // A thread that ends has no cell any more: the error is explained without the cause.
    let _ = CAUSE.try_with(|cell| cell.replace(Some(cause)));
    error
}

/// A call begins: what was noted for an earlier one does not explain it.
pub fn begin_call() {
    let _ = CAUSE.try_with(RefCell::take);
}

/// Explains why an object was refused.
pub fn explain_refusal(what: &str, error: UrmaError) {
    let cause = CAUSE.try_with(RefCell::take).ok().flatten();
    explain(&match cause {
        Some(cause) => format!("{what} was refused: {cause}"),
        None => format!("{what} was refused: {error}"),
    });
}

exported! {
    fn urma_register_log_func(function: *mut c_void) -> Status {
        if function.is_null() {
            return EINVAL;
        }
        FUNCTION.store(function, Ordering::Release);
        SUCCESS
    }
    /// The form with the place in the source: sentences have none, so they go to stderr.
    fn urma_register_loc_log_func(function: *const c_void) -> Status { if function.is_null() { EINVAL } else { SUCCESS } }
    fn urma_unregister_log_func() -> Status {
        FUNCTION.store(std::ptr::null_mut(), Ordering::Release);
        SUCCESS
    }
    fn urma_log_set_level(level: c_int) { LEVEL.store(level.clamp(0, LEVELS - 1), Ordering::Relaxed) }
    fn urma_log_get_level() -> c_int { LEVEL.load(Ordering::Relaxed) }
    fn urma_log_set_thread_tag(_tag: *const c_char) {}
    fn urma_log_get_thread_tag() -> *const c_char { null() }
    fn urma_get_level_print(level: c_int) -> *const c_char {
        NAMES.iter().find(|(number, _)| *number == level).map_or(c"Unknown", |(_, name)| *name).as_ptr()
    }
    fn urma_log_get_level_from_string(text: *const c_char) -> c_int {
        if text.is_null() {
            return LEVELS;
        }
        let text = CStr::from_ptr(text).to_bytes();
        NAMES.iter().find(|(_, name)| name.to_bytes().eq_ignore_ascii_case(text)).map_or(LEVELS, |(number, _)| *number)
    }
    fn urma_log_drop(level: c_int) -> bool { level > LEVEL.load(Ordering::Relaxed) }
    fn urma_log_init() -> c_int { 0 }
    fn urma_getenv_log_level() {}
    fn urma_getenv_log_separator() {}
    fn urma_get_perf_timestamp() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
