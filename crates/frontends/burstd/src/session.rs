//! The share of the daemon's session where the kernel shares processors by session (autogroups, sched(7)).
//!
//! A program that polls then takes half of a processor that it shares with the daemon, whatever it does with it, while the
//! daemon does the larger part of the work of a message: a polled round trip takes a quarter longer than without autogroups.
//! With a larger share for the daemon it does not. What the daemon does not use, the program has.

use std::fs;

/// The process's session for the scheduler.
const AUTOGROUP: &str = "/proc/self/autogroup";
/// Three times the share of a session with nice 0.
const NICE: &str = "-5";

/// The outcome of [`prefer`].
#[derive(Debug, PartialEq, Eq)]
pub enum SessionShare {
    /// The session has the larger share.
    Larger,
    /// The kernel or the session's owner has decided otherwise; the reason.
    Unchanged(String),
}

/// Gives this session a larger share of the processors, if it is the daemon's own and its share is the default.
pub fn prefer() -> SessionShare {
    match objection(is_own(), fs::read_to_string(AUTOGROUP)) {
        Some(reason) => SessionShare::Unchanged(reason),
        None => match fs::write(AUTOGROUP, NICE) {
            Ok(()) => SessionShare::Larger,
            Err(error) => SessionShare::Unchanged(format!("{AUTOGROUP} refuses nice {NICE}: {error}")),
        },
    }
}

/// Whether this process leads its session.
fn is_own() -> bool {
    // Not of rustix: the identifier of a session from outside of the container is 0, which is none to it.
    // SAFETY: a system call without pointers.
    let session = unsafe { libc::getsid(0) };
    u32::try_from(session) == Ok(std::process::id())
}

/// The reason to leave the session as it is, by the content of [`AUTOGROUP`].
fn objection(is_own: bool, line: std::io::Result<String>) -> Option<String> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(format!("{AUTOGROUP}: {error}")),
    };
    if !is_own {
        return Some("other programs belong to the daemon's session".to_owned());
    }
    // "/autogroup-12 nice 0"; empty for a process in none.
    (line.split_whitespace().nth(2) != Some("0")).then(|| format!("{AUTOGROUP} is {:?} already", line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_session_of_its_own_without_another_setting_is_changed() {
        let line = || Ok("/autogroup-12 nice 0\n".to_owned());
        assert_eq!(objection(true, line()), None);
        assert!(objection(false, line()).is_some());
        assert!(
            objection(true, Ok("/autogroup-12 nice 10\n".to_owned())).is_some_and(|reason| reason.contains("nice 10"))
        );
        assert!(objection(true, Ok(String::new())).is_some());
        assert!(objection(true, Err(std::io::ErrorKind::NotFound.into())).is_some());
    }
}
