//! General Services Interface agent: connection management on QP1 for one worker (IBA 13.5 and chapter 12).
//!
//! A [`GsiAgent`] owns the connection manager's state machine (crate `cm`). The worker hands it the management datagrams (MADs)
//! of each receive burst by [`GsiAgent::receive`]; [`GsiAgent::run`] gives them to the machine after the burst, because the
//! machine may move queue pairs. Outgoing MADs lie in a ring of buffers until the port has sent them; events are collected
//! during a pass and written at its end, up to eight records of one channel by one system call.
//!
//! The agent has no access to queue pairs and ports, except by the trait [`WorkerAccess`] of its worker.
//!
//! | file | what it holds |
//! |---|---|
//! | `access` | [`WorkerAccess`]: what the agent needs of its worker |
//! | `agent` | [`GsiAgent`]: received MADs, budgets, events of a pass |
//! | `effects` | what the state machine decides, carried out |
//! | `jobs` | what programs ask for, as the control thread passes it on |
//! | `entry` | an id, as control thread and worker share it |
//! | `channel` | event channels |
//! | `backlogged` | channels with unread events, tried again in parts |
//! | `timewait` | ends of time-wait, reported in portions |
//! | `list` | connections and listeners for `burst cm` |
//! | `mad_queue` | received MADs, with a share for each source |
//! | `stats` | times of the steps of a setup |
//! | `failures` | records of connections that failed |
//! | `probes` | static tracepoints |

mod access;
mod agent;
mod backlogged;
mod channel;
mod effects;
mod entry;
mod failures;
mod jobs;
mod list;
mod mad_queue;
pub mod probes;
mod stats;
mod timewait;

pub use access::WorkerAccess;
pub use agent::{ConnCounts, GsiAgent, PassLoad, RECEIVED_MAX};
pub use channel::CmChannel;
pub use effects::GSI_QKEY;
pub use entry::{CmEntry, CmPlaces, CmProgram, CmQpRef, CmSession};
pub use jobs::{CmJob, CmRequest, ListenAddr};
pub use stats::{CmPhase, CmTimes};
