//! The library against a real daemon, both ends of each queue pair in this process.
//!
//! The daemon runs on the loopback interface of a network namespace of its own; where that cannot be made (no root, no user
//! namespaces) or the daemon is not built (`cargo build -p burstd`), the tests say so and pass.

mod data;
mod events;
mod extended;
mod lifetimes;
mod pair;
mod refusals;
mod sharing;
mod threads;
