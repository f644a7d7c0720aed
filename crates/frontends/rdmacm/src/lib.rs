//! The drop-in `librdmacm.so.1`: connection management for unmodified programs, over the Burst daemon.
//!
//! `scripts/build-libs.sh` links this crate's static library into the shared one, with the versions of `abi/public.txt`, against
//! Burst's `libibverbs.so.1`, whose public functions make devices, queues and queue pairs. The protocol runs in the daemon: calls
//! become [`burst_control::cm::CmCommand`]s ([`session`], [`id`]), and events come back as records in the pipes of the
//! application's event channels ([`channel`], [`event`]). The library has no thread.
//!
//! Objects that applications hold are `repr(C)` structs whose first field is the public struct. Errors are errno values; no
//! panic and no output crosses the C boundary ([`boundary`]). After fork, a child cannot use inherited objects; it may create new
//! ones.
//!
//! Locks, in the order in which they may be nested: an id's `creation`, the session's `client`; a device's XRC
//! domain, the table of ids, an id's `known` and its event count are held alone.

#[cfg(test)]
use burst_ibverbs as _;

pub mod addr;
pub mod attr;
pub mod boundary;
pub mod channel;
pub mod connect;
pub mod device;
pub mod ep;
pub mod event;
pub mod id;
pub mod ids;
pub mod info;
pub mod lent;
pub mod multicast;
pub mod option;
pub mod qp;
pub mod resolve;
pub mod rsocket;
pub mod session;
pub mod srq;
pub mod steps;
pub mod strings;
pub mod sys;
