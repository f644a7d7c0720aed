//! Types that every other crate uses.
//!
//! Newtypes for numbers ([`Psn`], [`Qpn`], keys), protocol time ([`Nanos`]), the enumerations that the verbs API and the
//! transport share ([`verbs`]), and the table of reasons ([`reason`]) from which counters, log sentences, `vendor_err` and
//! the documentation are derived. Nothing here does I/O or reads a clock. Only the tables ([`slab`], [`wheel`]) allocate, when
//! they are made or grown.
//!
//! | file | what it holds |
//! |---|---|
//! | `bucket` | token buckets: limits on how often something is done |
//! | `conn` | parameters of a connection, room for private data |
//! | `fault` | failures that tests inject |
//! | `gid` | GIDs and IP addresses |
//! | `heap` | allocations that can fail; freed memory that the allocator keeps for a thread |
//! | `num` | newtypes: PSN, QPN, keys, device number |
//! | `reason` | the table of reasons for drops and errors |
//! | `rng` | a seeded random number generator |
//! | `rto` | which waits loss recovery has |
//! | `sharing` | whether a polling thread shares its processor |
//! | `slab` | objects of fixed capacity behind generation handles |
//! | `time` | protocol time in nanoseconds |
//! | `verbs` | the enumerations and attributes of the verbs API |
//! | `wheel` | a hierarchical timing wheel |
#![forbid(unsafe_code)]

pub mod bucket;
pub mod conn;
pub mod fault;
pub mod gid;
pub mod heap;
pub mod num;
pub mod reason;
pub mod rng;
pub mod rto;
pub mod sharing;
pub mod slab;
pub mod time;
pub mod verbs;
pub mod wheel;

pub use bucket::TokenBucket;
pub use num::{DeviceId, Lkey, Psn, Qkey, Qpn, Rkey};
pub use reason::Reason;
pub use rto::RtoMode;
pub use time::Nanos;
