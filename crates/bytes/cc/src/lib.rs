//! Congestion controllers: how many bytes, and at which rate, may be in flight towards one peer.
//!
//! A [`Controller`] gets events (acknowledgements, congestion notifications, losses, timers) and returns
//! [`SendLimits`]. The caller owns everything else: the bytes in flight, the queue pairs that wait, the pacing. One controller
//! serves all queue pairs that share a path.
//!
//! Contract of every controller: no I/O, clock, randomness or allocation; each call takes constant time; arithmetic is
//! on integers, or on `f64` with + - * / and square root only, so that a run gives the same bits on every machine; a window is
//! never below one MTU unless sends are paced; the state takes at most [`CONTROLLER_BYTES_MAX`] bytes. The type is an enum and
//! not a trait object, so that a path holds it in place and the compiler can inline the calls.
//!
//! | file | what it holds |
//! |---|---|
//! | `api` | samples, kinds of loss, limits, parameters |
//! | `aimd` | [`Aimd`]: additive increase, halved on loss |
//! | `controller` | [`Controller`]: the enum of all controllers |
//!
//! Not here: ECN marks on outgoing packets, generation of congestion notifications, pacing.
#![forbid(unsafe_code)]

mod aimd;
mod api;
mod controller;

pub use aimd::{Aimd, HALVE_PAUSE, INCREASE_BYTES, WINDOW_MIN};
pub use api::{AckSample, Algorithm, LossKind, Params, RATE_UNPACED, SendLimits};
pub use controller::{CONTROLLER_BYTES_MAX, Controller};
