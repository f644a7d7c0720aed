//! Communication management on QP1: connections and datagram services, by port.
//!
//! IBA chapter 12 with annexes A11 (RDMA-CM's use of private data and service ids) and A17 (RoCEv2), as a state machine
//! without I/O: [`Cm::on_mad`], [`Cm::on_timer`] and the calls of programs take the time as an argument and return
//! [`CmEffects`]. One
//! machine per worker; a connection belongs to the machine that its communication id names, and machines share nothing but
//! the counts of listeners' backlogs.
//!
//! Left out, because RoCE and RDMA-CM have no use for them: RD, alternate paths (a LAP is declined by an APR),
//! redirection, and IBA's peer-to-peer mode (two ends that ask each other at once get two connections).
#![forbid(unsafe_code)]

pub mod api;
pub mod backlog;
pub mod conn;
pub mod conn_view;
pub mod fields;
pub mod machine;
pub mod message;
pub mod service;
pub mod source;
pub mod table;

mod active;
mod early;
mod fold;
mod passive;
mod queue;
mod release;
mod rto;
mod show;
mod sidr;

pub use api::{
    AdmissionRefusal, BURST_VENDOR, CmEffects, CmIds, CmStep, ConnAttr, ConnEvent, ConnEventKind, ConnParam,
    ConnRequest, ConnectParams, Ece, EndParams, PathRecord, PeerClass, QpSetup, StepTime, Transport,
};
pub use backlog::{Backlog, BacklogPlace, RequestCharge};
pub use conn::CmState;
pub use fold::Fold;
pub use machine::{Cm, CmError, Listener};
pub use message::{CmMessage, Mad, names_burst};
pub use queue::WORKER_QUEUE_MAX;
pub use source::Source;
pub use table::{CONNECTIONS_CHARGED, Secret};
