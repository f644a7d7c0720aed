//! Sentences that the libraries print to stderr, because the C ABI has room for an errno only.
//!
//! The end of the daemon is reported once, because few programs distinguish it from other errors. The reason of a refused call is
//! in the daemon's log; a program started with `BURST_EXPLAIN=1` prints it as well (not by default, because programs make calls
//! that may be refused). `BURST_QUIET=1` silences the first kind.

use burst_control::ControlError;
use std::ffi::OsString;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

/// Variable that silences the sentences that are printed by default.
const QUIET_ENV: &str = "BURST_QUIET";
/// Variable that makes every refused call print the daemon's sentence.
const EXPLAIN_ENV: &str = "BURST_EXPLAIN";

/// Whether a variable is set, and not to a word for no.
fn is_on(value: Option<OsString>) -> bool {
    let is_no = |v: &OsString| v.to_str().and_then(burst_grammar::switch) == Some(false);
    value.is_some_and(|v| !v.is_empty() && !is_no(&v))
}

/// Prints a sentence, unless `printed` is set or the user has silenced it, and sets `printed`.
pub fn once(printed: &AtomicBool, sentence: &str) {
    if !is_on(std::env::var_os(QUIET_ENV)) && !printed.swap(true, Ordering::Relaxed) {
        line(&format!("{sentence} ({QUIET_ENV}=1 silences this)."));
    }
}

/// Prints, once per library, which variables of the environment have no effect because of a misspelt word.
pub fn misspelt_variables() {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    let sentences = burst_control::environment::misspelt(|name| std::env::var_os(name));
    if !sentences.is_empty() {
        once(&PRINTED, &sentences.join("; "));
    }
}

/// Prints, once per library, that the daemon has ended.
pub fn daemon_ended() {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    once(
        &PRINTED,
        "the daemon has ended: this program's devices and connections are gone, and it must open them again, or be started again, when a daemon runs",
    );
}

/// Prints why a call to the daemon failed: always if the daemon has ended, else if `BURST_EXPLAIN` is on.
pub fn refused_call(error: &ControlError) {
    match error {
        ControlError::Closed | ControlError::Io(_) => daemon_ended(),
        _ => explain(format_args!("refused: {error}")),
    }
}

/// Whether `BURST_EXPLAIN` is on.
pub(crate) fn explains() -> bool {
    is_on(std::env::var_os(EXPLAIN_ENV))
}

/// Prints why a call failed, if `BURST_EXPLAIN` is on.
pub fn explain(sentence: impl Display) {
    if explains() {
        line(&format!("{sentence}."));
    }
}

/// Writes a line by one system call; errors are ignored.
pub(crate) fn line(sentence: &str) {
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
    fn a_variable_is_on_unless_it_says_no_or_nothing() {
        assert!(is_on(Some("1".into())) && is_on(Some("yes".into())) && is_on(Some("on".into())));
        assert!(["0", "no", "off", "false", ""].into_iter().all(|word| !is_on(Some(word.into()))) && !is_on(None));
    }
}
