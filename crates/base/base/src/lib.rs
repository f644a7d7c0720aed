//! Storey 0: the words every other crate speaks.
//!
//! Newtypes for the field's numbers ([`Psn`], [`Qpn`], keys), protocol time ([`Nanos`]), the enumerations
//! that the verbs API and the transport share ([`verbs`]), and the one table of reasons ([`reason`]) from
//! which counters, log sentences, `vendor_err` and the documentation are derived.
//! Nothing here does I/O, reads a clock or allocates.
#![forbid(unsafe_code)]

pub mod num;
pub mod reason;
pub mod rng;
pub mod sharing;
pub mod slab;
pub mod time;
pub mod verbs;
pub mod wheel;

pub use num::{DeviceId, Lkey, Psn, Qkey, Qpn, Rkey};
pub use reason::Reason;
pub use time::Nanos;
