//! The programs that the lab runs.

use std::path::PathBuf;

/// The programs that the lab runs.
pub struct LabPrograms {
    /// `burst` itself.
    pub burst: PathBuf,
    /// The daemon.
    pub burstd: PathBuf,
    /// The traffic.
    pub exercise: PathBuf,
    /// Directory of Burst's libraries.
    pub libraries: PathBuf,
}
