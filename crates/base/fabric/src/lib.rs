//! A modelled network in virtual time: links, switches, adapters, and the traffic of publications.
//!
//! Time is in picoseconds, rates in bit/s. Packets of one flow travel together as a [`Train`], whose content the network does not
//! know; it is cut only where packets of it fare differently.
//!
//! # Model
//!
//! A link has a rate and a propagation delay. Each end has queues by class, first in, first out. Classes of strict priority
//! go first, the highest of them before the others; classes with weights share what they leave by deficit round robin.
//! Switches store and forward packet by packet: a train's first packet goes on when it has arrived, not when the last one
//! has. A train occupies an outgoing link for the time of its bytes; it arrives whole when its last packet does, which is not
//! before that packet came in and was sent. So the first and the last packet of a train that meets no other are exact on
//! links of any rates, and a link never carries more than its rate. Where trains of different inputs meet, they are not
//! interleaved packet by packet: shorter trains make that finer.
//!
//! A switch has one buffer. Bytes count for the port and class by which they came in, from the first packet's arrival until the
//! train has been sent. A port and class may hold `alpha` times what is free. Beyond that packets are dropped, or, with priority
//! flow control of that class, the sender is paused and what still comes goes into the headroom. A watchdog ends pauses that are
//! too long by dropping what they hold up. Trains that enter a queue are marked by its length (RED, or a step).
//!
//! Everything random comes from one seed, forked by purpose and entity. Events of one time are handled in the order in which they
//! were scheduled.
//!
//! | module | what |
//! |---|---|
//! | [`topology`] | hosts, switches, links; the usual arrangements; routes |
//! | [`network`] | the network that runs |
//! | `events` | what will happen, by time |
//! | `port` | an end of a link: queues, pauses |
//! | [`schedule`] | what happens to single packets of a host |
//! | [`traffic`] | published sizes of messages |
#![forbid(unsafe_code)]

mod events;
pub mod network;
mod port;
pub mod schedule;
pub mod topology;
pub mod traffic;

pub use network::{Delivery, Network, QueueHook, QueueView, Totals};
pub use schedule::{PacketFate, PacketSchedule};
pub use topology::{CLASSES, ClassSettings, LinkFaults, Switches, Topology};

/// A host's number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// The content of a train, as far as the network must know it.
pub trait Cut: Clone {
    /// Keeps the first `keep` packets and returns the others.
    #[must_use]
    fn cut(&mut self, keep: u32) -> Self;
}

/// Packets of one flow, one behind the other.
#[derive(Clone, Debug)]
pub struct Train<T> {
    /// What chooses among equal routes: a hash of addresses and ports.
    pub flow: u64,
    /// The source.
    pub from: HostId,
    /// The destination.
    pub to: HostId,
    /// Class, 0 to 7; the highest is sent first.
    pub class: u8,
    /// Whether switches may mark it.
    pub ecn_capable: bool,
    /// Whether its packets are marked (CE).
    pub marked: bool,
    /// Number of packets, at least 1.
    pub count: u32,
    /// Bytes of each packet but the last, with all that it takes on a link.
    pub stride: u32,
    /// Bytes of the last packet.
    pub last: u32,
    /// The content.
    pub body: T,
}

impl<T> Train<T> {
    /// Bytes of all packets.
    pub fn bytes(&self) -> u64 {
        u64::from(self.stride) * u64::from(self.count - 1) + u64::from(self.last)
    }
    /// Bytes of the first packet.
    pub fn first(&self) -> u64 {
        u64::from(if self.count == 1 { self.last } else { self.stride })
    }
}

impl<T: Cut> Train<T> {
    /// Keeps the first `keep` packets, at least 1 and not all, and returns the others.
    #[must_use]
    pub fn cut(&mut self, keep: u32) -> Train<T> {
        assert!(keep >= 1 && keep < self.count, "a cut leaves packets on both sides");
        let rest = Train { count: self.count - keep, body: self.body.cut(keep), ..*self };
        (self.count, self.last) = (keep, self.stride);
        rest
    }
}
