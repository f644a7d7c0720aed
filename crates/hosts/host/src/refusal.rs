//! Constructors of [`Refusal`]: the errno and the sentence with which a request fails.
//!
//! The program gets the errno; the sentence goes to the log and, where the interface has room for it, to the program.

use burst_base::Reason;
use burst_control::Refusal;
use burst_ledger::{Exhausted, Resource};

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

/// The refusal of a charge.
///
/// # Errors
/// Always: EMFILE for descriptors, otherwise ENOMEM.
pub(crate) fn refuse_charge<T>(exhausted: Exhausted) -> Result<T, Refusal> {
    let errno = if exhausted.resource == Resource::Descriptor { libc::EMFILE } else { libc::ENOMEM };
    let reason = if exhausted.over_share { Reason::UserShare } else { Reason::DaemonFull };
    refuse(errno, format!("{exhausted} ({}; see burst ls --users)", reason.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::AccountId;

    #[test]
    fn a_refusal_names_reason_and_cure() {
        let exhausted = Exhausted {
            owner: AccountId::User(7),
            resource: Resource::Descriptor,
            amount: 1,
            used: 5,
            limit: 5,
            capacity: 20,
            over_share: true,
            scope: None,
        };
        let refusal = refuse_charge::<()>(exhausted.clone()).expect_err("a refusal");
        assert_eq!(refusal.errno, libc::EMFILE);
        assert!(refusal.sentence.contains("user_share") && refusal.sentence.contains("burst ls --users"));
        let full = Exhausted { resource: Resource::Qp, over_share: false, ..exhausted };
        let refusal = refuse_charge::<()>(full).expect_err("a refusal");
        assert!(refusal.errno == libc::ENOMEM && refusal.sentence.contains("daemon_full"), "{}", refusal.sentence);
    }
}
