//! The shared-memory contract between an application and the daemon.
//!
//! A context owns an *arena*: a few large sealed memfd segments made by the daemon ([`arena`]). Queues lie in it
//! at offsets that the daemon chose ([`ShmRef`]). All data that an application writes is hostile: the daemon copies
//! an entry, checks the copy and uses the copy. [`layout`] gives the formats; [`sq`], [`rq`], [`cq`], [`doorbell`],
//! [`record_ring`], [`copy_ring`] and [`status`] have the two ends of each structure; [`protocol`] has the few rules about
//! shared words that all of them follow, written once so that loom can check them (`scripts/loom`). [`words`] is no part of the
//! contract: memory in which a daemon leaves notes for its successor.
//!
//! Index arithmetic is modulo 2^32 everywhere: an index is "entries ever", a slot is `index & (entries - 1)`.
#[cfg(not(loom))]
pub mod area;
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod copy_ring;
#[cfg(not(loom))]
pub mod cq;
#[cfg(not(loom))]
pub mod doorbell;
pub mod layout;
#[cfg(not(loom))]
pub mod life;
#[cfg(not(loom))]
pub mod paired;
pub mod protocol;
#[cfg(not(loom))]
pub mod record_ring;
#[cfg(not(loom))]
pub mod rq;
#[cfg(not(loom))]
pub mod sq;
#[cfg(not(loom))]
pub mod status;
mod sync;
#[cfg(not(loom))]
pub mod words;

#[cfg(not(loom))]
pub use area::Area;
pub use layout::*;

/// Result of a `fetch` by the daemon. The copy of a taken entry is in the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fetch {
    /// No entry is posted.
    Empty,
    /// The entry with this index was taken and lies within the queue's limits.
    Taken(u32),
    /// The entry with this index was taken, but it claims more SGEs or inline bytes than the queue was created
    /// with. The head's copy is valid (its `wr_id` names the failed request), the SGEs are not.
    Malformed(u32),
    /// The application's producer index is impossible: more entries than the queue has. Nothing was taken.
    Corrupt,
}

/// Why a work request could not be written into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// No free slot (`ENOMEM`).
    Full,
    /// More SGEs than the queue was created with (`EINVAL`).
    TooManySges,
    /// More inline bytes than the queue was created with (`EINVAL`).
    InlineTooLong,
}
