//! The UDP source port from which a connected queue pair's packets come.
//!
//! Nothing in a RoCEv2 packet proves its sender. A sender that forges the peer's address and knows the queue pair's number can
//! try all 2^24 PSNs; the one that is expected next would be executed. Stacks keep one source port per queue pair (rxe, adapters,
//! Burst's `packet` and `dpdk` ports), from a hash of numbers that such a sender does not know, so its packets come from another
//! port. (Burst's `udp` ports send all packets from 4791, which is well known: their peers are protected by the queue pair
//! numbers only.) But RoCEv2 permits the port to change, because switches spread flows by it (annex A17): a change alone must
//! not cost an honest peer a packet.
//!
//! Therefore packets from another port are accepted, and the port follows the packets that make progress. Packets from another
//! port whose PSNs are more than 4,096 ([`crate::qp`]) away from the expected ones are counted: a peer that changes its port
//! continues where it was (a response in flight is always near), while 99.9 % of the tries of a blind sender are far away. After
//! [`FAR_MAX`] of them all packets from other ports are dropped for [`SHUT`]. A peer whose port changes during such an attack
//! loses at most that time. A blind sender has `FAR_MAX` tries per `SHUT` instead of hundreds of thousands, and needs an hour on
//! average where it would need twenty seconds.
//!
//! The port is checked for RC and XRC. UC has no expected PSN for the first packet of a message, so its port is only noted.
//! Datagrams and congestion notifications may come from any port.

use burst_base::Nanos;

/// Packets from other ports with PSNs far away until other ports are shut.
const FAR_MAX: u16 = 1024;
/// How long packets from other ports are dropped then.
const SHUT: Nanos = Nanos::from_ms(1_000);

/// The source port of the peer's packets, and what came from others.
#[derive(Clone, Copy, Debug, Default)]
// What packets use comes first: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct PeerPort {
    /// 0 until a packet has made progress.
    pub(crate) port: u16,
    far: u16,
    pub(crate) shut_until: Nanos,
}

impl PeerPort {
    /// Packets have made progress that came from `port`.
    pub(crate) fn known(port: u16) -> PeerPort {
        PeerPort { port, ..PeerPort::default() }
    }
    /// Notes a packet from another port with a PSN far away.
    pub(crate) fn note_far(&mut self, now: Nanos) {
        self.far += 1;
        if self.far == FAR_MAX {
            (self.far, self.shut_until) = (0, now + SHUT);
        }
    }
}
