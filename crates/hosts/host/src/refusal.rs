//! Constructors of [`Refusal`]: the errno and the sentence with which a request fails.
//!
//! The program gets the errno; the sentence goes to the log and, where the interface has room for it, to the program.

use burst_control::Refusal;

/// A refusal as an error.
///
/// # Errors
/// Always: `errno` with `sentence`.
pub fn refuse<T>(errno: i32, sentence: impl Into<String>) -> Result<T, Refusal> {
    debug_assert!(errno > 0, "an errno, not a negated one");
    Err(Refusal { errno, sentence: sentence.into() })
}

/// ENOMEM: memory, descriptors or numbers for another `what` are exhausted.
pub(crate) fn no_room<T>(what: &str) -> Result<T, Refusal> {
    refuse(libc::ENOMEM, format!("no room for another {what}"))
}

/// EINVAL: the context has no object `what` with this handle.
pub(crate) fn unknown<T>(what: &str, handle: u32) -> Result<T, Refusal> {
    refuse(libc::EINVAL, format!("there is no {what} {handle} in this context"))
}

/// EBUSY: other objects still refer to the object.
pub(crate) fn busy<T>(what: &str, users: u32) -> Result<T, Refusal> {
    refuse(libc::EBUSY, format!("the {what} is still used by {users} other object(s)"))
}

/// Converts the error of a failed system call: its errno, and a sentence that says what failed.
pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Refusal {
    move |e| Refusal { errno: e.raw_os_error().unwrap_or(libc::EIO), sentence: format!("cannot {what}: {e}") }
}
