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
//! | `api` | samples, kinds of loss, limits |
//! | `params` | [`Algorithm`], [`Params`]: tables of parameters, and how they are written |
//! | `classes` | [`CcTable`]: the choice for each [`PeerKind`], and what two daemons agree on |
//! | `conditions` | [`PathConditions`]: what a path's packets have met, for the automatic choice |
//! | `cubic` | [`Cubic`]: grows in time, paced, reduced by losses and marks; the default |
//! | `aimd` | [`Aimd`]: additive increase, halved on loss |
//! | `dcqcn` | [`Dcqcn`]: a rate, reduced by congestion notifications; as published, and as in NVIDIA's adapters |
//! | `dctcp` | [`Dctcp`]: a window, reduced by the share of marked packets |
//! | `swift` | [`Swift`]: two windows that follow delays to their targets |
//! | `timely` | [`Timely`]: a rate that follows the gradient of round-trip times |
//! | `spread` | windows that leave over a round trip: those of `dctcp` and `swift` |
//! | `math` | arithmetic that is equal on every machine |
//! | `controller` | [`Controller`]: the enum of all controllers |
//!
//! Not here, but in the engine: ECN marks on outgoing packets, congestion notifications, measured round trips, pacing.
#![forbid(unsafe_code)]

mod aimd;
mod api;
mod classes;
mod conditions;
mod controller;
mod cubic;
mod dcqcn;
mod dctcp;
mod math;
mod params;
mod spread;
mod swift;
mod timely;

pub use aimd::{Aimd, HALVE_PAUSE, INCREASE_BYTES, WINDOW_MIN};
pub use api::{AckSample, LossKind, PRESSURE_CONGESTED, PRESSURE_LOST, RATE_UNPACED, SendLimits};
pub use classes::{AUTOMATIC, CcChoice, CcTable, ChoiceRank, ChoiceReason, PeerChoice, PeerKind, SettledChoice};
pub use conditions::{PathConditions, PathNature};
pub use controller::{CONTROLLER_BYTES_MAX, Controller, LINE_RATE_DEFAULT_BPS};
pub use cubic::Cubic;
pub use dcqcn::Dcqcn;
pub use dctcp::Dctcp;
pub use params::{Algorithm, PARAMETERS_MAX, Parameter, ParameterUnit, Params};
pub use swift::Swift;
pub use timely::Timely;
