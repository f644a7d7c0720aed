//! The shared-memory contract between an application and the daemon (storey 1).
//!
//! A context owns an *arena*: a few large sealed memfd segments made by the daemon. Queues lie in it at offsets
//! that the daemon chose ([`ShmRef`]). Everything an application writes is hostile: the daemon copies an entry,
//! checks the copy and uses the copy ([`layout`] gives the formats; [`ring`] the two ends of each queue).
pub mod arena;
pub mod cq;
pub mod doorbell;
pub mod layout;
pub mod rq;
pub mod sq;
pub mod status;

pub use layout::*;
