//! All studies, by name.

use crate::report::{StudyScale, StudyTable};
use crate::{absent, congestion, contention, disorder, latency, load, order, pressure, state};

/// Runs a study.
pub type RunStudy = fn(&StudyScale) -> Result<StudyTable, String>;

/// Name, what it is about, and how it is run.
pub const STUDIES: &[(&str, &str, RunStudy)] = &[
    ("latency", "operations of 64 bytes (table 6)", latency::operations),
    ("phases", "where the time of a READ goes (table 7)", latency::phases),
    ("link", "by the link's delay", latency::link),
    ("payload", "by payload", latency::payload),
    ("concurrency", "many operations at a time", load::concurrency),
    ("open-loop", "arrivals at random", load::open_loop),
    ("ycsb", "half READs, half WRITEs", load::ycsb),
    ("locality", "loads that hit the processor's caches", load::locality),
    ("mixed-order", "a share of operations with strong order", order::share),
    ("rol", "acknowledgements of ROL", order::fused),
    ("loss", "lost packets, one operation at a time", disorder::loss),
    ("loss-rate", "lost packets, many operations in flight", disorder::loss_rate),
    ("jitter", "random waits", disorder::jitter),
    ("tp-sharing", "many Jetties on one channel", pressure::sharing),
    ("fan-out", "messages to many receivers", pressure::fan_out),
    ("spill", "contexts that the adapter's cache does not hold", pressure::spill),
    ("cluster", "all hosts to all", pressure::cluster),
    ("contention", "a lock by compare and swap", contention::lock),
    ("congestion", "C-AQM and DCQCN at one port", congestion::one_port),
    ("state", "bytes of state (tables 4 and 5)", state::sizes),
    ("setup", "connection setup", state::setup),
    ("absent", "what is not measured, and why", absent::list),
];

/// The study of a name.
pub fn find(name: &str) -> Option<RunStudy> {
    STUDIES.iter().find(|study| study.0 == name).map(|study| study.2)
}
