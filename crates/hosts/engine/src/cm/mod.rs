//! Connection management in the worker's loop.
//!
//! MADs for QP1 are copied out of the receive burst (`CmHost::arrived`) and given to the machine after it, so that the
//! machine may move queue pairs. What it sends goes into the port's batch from a ring of buffers; events are collected and
//! written per channel at the end of the pass, up to eight records in one system call.

mod channel;
mod effects;
mod entry;
mod host;
mod jobs;
mod late;
mod list;
mod move_qp;
pub mod probes;
mod stats;

pub use channel::CmChannel;
pub(crate) use effects::GSI_QKEY;
pub use entry::{CmEntry, CmQpRef, CmSession};
pub use host::CmHost;
pub use jobs::{CmJob, CmRequest};
pub use stats::{CmPhase, CmTimes};
