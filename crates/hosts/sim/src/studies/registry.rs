//! All studies, by name.

use crate::studies::latency;
use crate::studies::report::{StudyScale, StudyTable};

/// Runs a study.
pub type RunStudy = fn(&StudyScale) -> Result<StudyTable, String>;

/// Name, what it is about, and how it is run.
pub const STUDIES: &[(&str, &str, RunStudy)] = &[
    ("latency", "operations of 64 bytes (table 6)", latency::operations),
    ("phases", "where the time of a READ goes (table 7)", latency::phases),
    ("link", "by the link's delay", latency::link),
    ("payload", "by payload", latency::payload),
];

/// The study of a name.
pub fn find(name: &str) -> Option<RunStudy> {
    STUDIES.iter().find(|study| study.0 == name).map(|study| study.2)
}
