//! Lent mode: the daemon has the ids, and the queue pairs are in this process (`docs/in-process.md`). What [`crate::qp`] does
//! about it, and what is refused.

use crate::boundary::{EOPNOTSUPP, Outcome};
use burst_ffi::report;
use std::sync::OnceLock;

/// Whether the queue pairs of this process have numbers that a daemon has lent.
pub fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(burst_control::in_process::is_lent)
}

/// Refuses what only the daemon's queue pairs can do.
///
/// # Errors
/// EOPNOTSUPP in lent mode.
pub fn refuse(what: &str) -> Outcome<()> {
    if !is_on() {
        return Ok(());
    }
    report::explain(format_args!("refused: {what} is not for programs in lent mode: run it without BURST_MODE"));
    Err(EOPNOTSUPP)
}
