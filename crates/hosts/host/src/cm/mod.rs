//! Connection management on the control thread: ids of programs, their addresses and channels.
//!
//! The control thread owns ids and addresses; workers own connections. The commands of a request become jobs, which are
//! posted to the workers at its end, one post per worker. The control thread does not wait for them: the program learns the
//! results from events. Only listening waits, because all workers must know a listener when the call returns.
//!
//! | module | contents |
//! |---|---|
//! | [`service`] | state that all programs share |
//! | [`client`] | the ids and channels of one program |
//! | `commands` | which function carries out which command |
//! | `connect` | connecting, listening, accepting, rejecting, disconnecting |
//! | `resolve` | binding and resolving addresses |
//! | `destination` | from a destination address to device, source and way |
//! | `hop_cache` | the memory of next hops |
//! | [`hops`] | next hops that are being resolved |
//! | `id` | one id |
//! | `waits` | ids that wait for next hops |
//! | `multicast` | ids in multicast groups |
//! | `ports` | port numbers |
//! | `route` | the kernel's routes |

pub mod client;
mod commands;
mod connect;
mod destination;
mod hop_cache;
pub mod hops;
mod id;
mod multicast;
mod ports;
mod resolve;
mod route;
pub mod service;
pub(crate) mod waits;

pub use client::CmClient;
pub(crate) use destination::{Destination, ResolveMethod};
pub use hops::{HopChanges, NextHops};
pub(crate) use hops::{HopQuery, PendingHop};
pub use service::{CmService, FinishedStep, UNKNOWN_PEER};
