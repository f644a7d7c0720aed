//! The library against a real daemon, both ends of each queue pair in this process.

#[path = "../../../../hosts/client/tests/live/daemon.rs"]
mod daemon;
mod data;
mod events;
mod extended;
mod lifetimes;
mod pair;
mod refusals;
mod sharing;
mod threads;
