//! The conductor (storey 3): one worker's loop over transport, memory, shared queues and ports.
//!
//! [`Worker::run_once`] is the whole of it: commands, doorbells, receive, timers, transmit, publish. A worker owns
//! its queue pairs, its replica of the key table and its ports; nothing on its path is shared with another worker
//! but completion queues and shared receive queues, which are lock-free. It reads no clock: the caller passes `now`.
//! [`runner`] gives a worker a thread, a clock and sleep; the in-memory harness and the simulator call it directly.

pub mod cm;
pub mod counters;
pub mod events;
pub mod flow;
pub mod handover;
pub mod multicast;
pub mod objects;
pub mod path;
pub mod qpn;
pub mod runner;
pub mod sched;
pub mod tombstone;
pub mod wakes;
pub mod worker;

mod commands;
mod effects;
mod hold;
mod receive;
mod transmit;
mod xrc;

pub use counters::Counters;
pub use objects::{AddressHandle, ContextSlot, CqShared, QpSlot};
pub use runner::{RunnerOptions, WorkerHandle};
pub use worker::{Worker, WorkerOptions};
