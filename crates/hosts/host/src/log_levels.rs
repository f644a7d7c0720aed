//! The log of the process, as the host shows and changes it (`burst log`).
//!
//! The log belongs to the process, not to the host: who starts the log implements [`LogLevels`], and gives it to the host
//! (`Host::log`). The log of a host inside a program is the program's, and such a host has none.

use burst_base::Nanos;
use burst_control::monitor::LogState;

/// The log of this process.
pub trait LogLevels: Send + Sync {
    /// The level of each target, and the number of lines left out.
    fn state(&self) -> LogState;

    /// Changes levels: `host=debug port=warn`, one level for all, or `default`.
    ///
    /// # Errors
    /// A sentence: a word is wrong; then nothing has changed.
    fn set(&self, levels: &str) -> Result<(), String>;

    /// When [`LogLevels::report`] must be called next; `None`: no line was left out.
    fn due_at(&self, now: Nanos) -> Option<Nanos>;

    /// Logs how many lines were left out in the interval that has ended.
    fn report(&self, now: Nanos);
}
