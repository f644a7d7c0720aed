//! Why a request was refused.

use serde::{Deserialize, Serialize};

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The errno of the verbs call.
    pub errno: i32,
    /// Cause, and what to do.
    pub sentence: String,
}
