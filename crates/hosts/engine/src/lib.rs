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
//! | `objects`, `table`, `options` | what the tables hold; tables by number; options of a worker |
//! | `endpoint` | [`Endpoint`]: one end of a transport protocol |
//! | [`urma`] | nodes of the Unified Bus, and programs of URMA in other processes |
//! | `transmit` | turns; in it doorbells, fair order (`sched`), classes within an account (`priority`) |
//! | `receive` | demultiplexing; in it groups, packets of other workers and processes, queue pairs that are prefetched |
//! | `timers` | timers, and what is due; ACKs that wait for the program's answer |
//! | `path`, `signals` | one peer address: congestion controller, next hop; signals of one call |
//! | `hello`, `peer_hello` | what a peer's daemon can do: asked on QP1; kept for each path |
//! | `peer_report` | what a peer's acknowledgements say of the path |
//! | `paths` | the paths of a worker, found by peer; the line of queue pairs that wait for a window |
//! | `pacing` | rates: gates of paths, and when they open |
//! | `congestion` | ECN: which packets may be marked, and the notifications that answer marks |
//! | `tap` | copies of packets, for `burst capture` |
//! | `tombstone` | answers for queue pairs whose process died |
//! | `tombstone_file` | connected queue pairs, for a successor of this process |
//! | `port_slot` | a port, what waits to leave by it, and how often it is looked at |
//! | `flow`, `qpn`, `counters` | addresses to flows; queue pair numbers; counters |
//! | `runner` | the worker's thread, its wake-ups, its clock; a worker without a thread (`in_place`) |
//! | `pulse` | whether a thread goes on, for a watchdog |

pub mod counters;
pub mod endpoint;
pub mod flow;
pub mod objects;
pub mod path;
pub mod paths;
mod peer_hello;
mod peer_report;
mod port_slot;
pub mod pulse;
pub mod qpn;
pub mod runner;
pub mod signals;
pub mod tap;
pub mod tombstone;
pub mod tombstone_file;
pub mod urma;
pub mod worker;

mod calls;
mod congestion;
mod core;
mod data_path;
mod hello;
mod options;
mod outbox;
mod pacing;
mod receive;
mod table;
mod timers;
mod transmit;

pub use burst_gsi as gsi;
pub use congestion::{CNP_DSCP, CNP_PATH_INTERVAL, CNP_QP_INTERVAL};
pub use counters::Counters;
pub use data_path::QpChange;
pub use endpoint::Endpoint;
pub use objects::{AddressHandle, ContextSlot, EngineCq, QpHolder, QpSlot};
pub use options::WorkerOptions;
pub use receive::{handover, lent, multicast};
pub use runner::{RunnerOptions, WorkerHandle};
pub use runner::{clock, in_place};
pub use worker::Worker;
pub use worker::check::PathLoad;
pub use worker::tables::WorkerTable;
