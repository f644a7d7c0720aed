//! The engine: one worker's loop over transport, memory, shared queues and ports.
//!
//! [`Worker::run_once`] is one pass: doorbells, transmit, receive, management, timers, publish. A worker owns its queue pairs,
//! its copy of the key table and its ports; nothing on its path is shared with another worker but completion queues and shared
//! receive queues, which are lock-free. A worker reads no clock and draws no random numbers: the caller passes `now`, and the
//! secret in [`WorkerOptions`] is the seed of everything random. [`runner`] gives a worker a thread, a clock and sleep, or lets
//! its owner run it; tests also call it directly.
//!
//! | file | what it holds |
//! |---|---|
//! | `worker` | [`Worker`]: the pass; calls of the control thread |
//! | `core`, `data_path` | what the rooms of a worker share: its tables; the tables with the ports |
//! | `calls`, `outbox` | calls to queue pairs; completions and events on their way to programs |
//! | [`copiers`] | programs that copy to devices for a worker |
//! | `objects`, `table`, `options` | what the tables hold; tables by number; options of a worker |
//! | [`urma`] | nodes of the Unified Bus, and programs of URMA in other processes |
//! | `transmit` | turns; in it doorbells, fair order (`sched`), classes within an account (`priority`) |
//! | `receive` | demultiplexing; in it groups, packets of other workers and processes, queue pairs that are prefetched |
//! | `timers` | timers, and what is due; ACKs that wait for the program's answer |
//! | `paths` | paths by peer: congestion controller and next hop (`path`), rates, ECN, what the peer's daemon can do (`hello`) |
//! | `failures`, `tally` | records of queue pairs that have ended in error; what their packets met |
//! | `histograms` | times of messages, round trips and waits; packets of turns |
//! | `tap`, `ring` | copies of packets, for `burst capture`; a worker's last packets, for `burst why` |
//! | `probes` | static tracepoints |
//! | `tombstone` | answers for queue pairs whose process died |
//! | `tombstone_file` | connected queue pairs, for a successor of this process |
//! | `port_slot` | a port, what waits to leave by it, and how often it is looked at |
//! | `flow`, `qpn`, `counters` | addresses to flows; queue pair numbers; counters |
//! | `runner` | the worker's thread, its wake-ups, its clock; a worker without a thread (`in_place`) |
//! | `pulse` | whether a thread goes on, for a watchdog |

pub mod copiers;
pub mod counters;
mod failures;
pub mod flow;
pub mod objects;
mod paths;
mod port_slot;
pub mod pulse;
pub mod qpn;
pub mod ring;
pub mod runner;
pub mod tap;
pub mod tombstone;
pub mod tombstone_file;
pub mod urma;
pub mod worker;

mod calls;
mod core;
mod data_path;
mod histograms;
mod options;
mod outbox;
mod probes;
mod receive;
mod table;
mod tally;
mod timers;
mod transmit;

pub use burst_gsi as gsi;
pub use counters::Counters;
pub use data_path::QpChange;
pub use objects::{AddressHandle, ContextSlot, EngineCq, QpHolder, QpSlot};
pub use options::WorkerOptions;
pub use paths::ecn::{CNP_DSCP, CNP_PATH_INTERVAL, CNP_QP_INTERVAL};
pub use receive::{handover, lent, multicast};
pub use runner::{RunnerOptions, WorkerHandle};
pub use runner::{clock, in_place};
pub use worker::Worker;
pub use worker::check::PathLoad;
pub use worker::tables::WorkerTable;
