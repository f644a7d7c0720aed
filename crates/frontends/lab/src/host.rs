//! A host of an exercise.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A host: a daemon on a loopback address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabHost {
    /// What the learner calls it: `a`, `b`, …
    pub letter: String,
    /// Its address.
    pub address: String,
    /// Control socket of its daemon.
    pub socket: PathBuf,
    /// Process number of its daemon.
    pub pid: i32,
}
