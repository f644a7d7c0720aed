//! What the libraries say to a person, on stderr: the C ABI has room for a number only.
//!
//! A device that goes away is said once, because few programs tell it from any other error. Why a call was refused the daemon
//! knows and logs; a program started with `BURST_EXPLAIN=1` shows it itself (programs try what may be refused, so not by
//! default). `BURST_QUIET=1` silences the first kind.

use burst_control::ControlError;
use std::ffi::OsString;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

/// Variable that silences what is said unasked.
const QUIET_ENV: &str = "BURST_QUIET";
/// Variable that asks for the daemon's sentence with every refused call.
const EXPLAIN_ENV: &str = "BURST_EXPLAIN";

/// Whether a variable is set, and not to 0.
fn is_on(value: Option<OsString>) -> bool {
    value.is_some_and(|v| !v.is_empty() && v != "0")
}

/// Says a sentence unless it was said before or the user wants silence; `said` remembers.
pub fn once(said: &AtomicBool, sentence: &str) {
    if !is_on(std::env::var_os(QUIET_ENV)) && !said.swap(true, Ordering::Relaxed) {
        line(&format!("{sentence} ({QUIET_ENV}=1 silences this)."));
    }
}

/// Says, once per library, that the daemon has ended.
pub fn daemon_gone() {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(
        &SAID,
        "the daemon has ended: this program's devices and connections are gone, and it must be started again when a daemon runs",
    );
}

/// Says what a failed call to the daemon is about, as far as anybody wants to know.
pub fn why(error: &ControlError) {
    match error {
        ControlError::Closed | ControlError::Io(_) => daemon_gone(),
        _ => explain(format_args!("refused: {error}")),
    }
}

/// Says why something failed, if the program was started to be told.
pub fn explain(sentence: impl Display) {
    if is_on(std::env::var_os(EXPLAIN_ENV)) {
        line(&format!("{sentence}."));
    }
}

/// Writes a line in one piece; a closed stderr is no concern of ours.
fn line(sentence: &str) {
    let text = format!("burst: {sentence}\n");
    let before = crate::errno();
    // SAFETY: writes the sentence's bytes.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    crate::set_errno(before);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_on_unless_it_is_0_or_empty() {
        assert!(is_on(Some("1".into())) && is_on(Some("yes".into())));
        assert!(!is_on(Some("0".into())) && !is_on(Some("".into())) && !is_on(None));
    }
}
