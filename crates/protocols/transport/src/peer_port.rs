//! The UDP source port from which a connected queue pair's packets come.
//!
//! Nothing in a RoCEv2 packet proves its sender. A sender that forges the peer's address and knows the queue pair's number can
//! try all 2^24 PSNs; the one that is expected next would be executed. Stacks keep one source port per queue pair (rxe, adapters,
//! Burst's `packet` and `dpdk` ports), from a hash of numbers that such a sender does not know, so its packets come from another
//! port. (Burst's `udp` ports send all packets from 4791, which everybody knows: their peers are protected by the queue pair
//! numbers only.) But RoCEv2 permits the port to change, because switches spread flows by it (annex A17): a change alone must
//! not cost an honest peer a packet.
//!
//! Therefore packets from another port are accepted, and the port follows the packets that make progress. Packets from another
//! port whose PSNs are more than [`NEAR`] away from the expected ones are counted: a peer that changes its port continues where
//! it was (a response in flight is always near), while 99.9 % of the tries of a blind sender are far away. After [`FAR_MAX`] of
//! them all packets from other ports are dropped for [`SHUT`]. A peer whose port changes during such an attack loses at most that
//! time. A blind sender has `FAR_MAX` tries per `SHUT` instead of hundreds of thousands, and needs an hour on average where it
//! would need twenty seconds.
//!
//! The port is checked for RC and XRC. UC has no expected PSN for the first packet of a message, so its port is only noted.
//! Datagrams and congestion notifications may come from any port.

use crate::api::Env;
use crate::qp::Qp;
use burst_base::verbs::QpType;
use burst_base::{Nanos, Psn, Reason};
use burst_frame::RxFrame;
use burst_wire::{OpKind, Packet};

/// Distance of PSNs, in both directions, that a peer reaches by its own packets in flight after a change of its port.
const NEAR: i32 = 4096;
/// Packets from other ports with PSNs far away until other ports are shut.
const FAR_MAX: u16 = 1024;
/// How long packets from other ports are dropped then.
const SHUT: Nanos = Nanos::from_ms(1_000);

/// The source port of the peer's packets, and what came from others.
#[derive(Clone, Copy, Debug, Default)]
// What packets use comes first: see `hot`.
#[repr(C)]
pub(crate) struct PeerPort {
    /// 0 until a packet has made progress.
    pub(crate) port: u16,
    far: u16,
    shut_until: Nanos,
}

impl PeerPort {
    /// Notes a packet from another port with a PSN far away.
    fn note_far(&mut self, now: Nanos) {
        self.far += 1;
        if self.far == FAR_MAX {
            (self.far, self.shut_until) = (0, now + SHUT);
        }
    }
}

impl Qp {
    /// Handles a packet from another source port than the peer's last.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_other_port(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if self.id.qp_type == QpType::Ud || pkt.info.kind == OpKind::Cnp {
            return self.dispatch_any(frame, pkt, env);
        }
        if env.now < self.peer_port.shut_until {
            return env.fx.count(Reason::SourcePortShut);
        }
        let before = self.progress();
        let near = self.is_near(pkt);
        // A blind sender does not know the key of an executed READ.
        let proven = pkt.info.kind == OpKind::ReadRequest && self.names_read(pkt).is_some();
        self.dispatch_any(frame, pkt, env);
        if proven || self.id.qp_type == QpType::Uc || self.progress() != before {
            let earlier = self.peer_port.port;
            self.peer_port = PeerPort { port: frame.flow.src_port, ..PeerPort::default() };
            if earlier != 0 {
                env.fx.count(Reason::SourcePortChanged);
            }
        } else if self.peer_port.port != 0 && !near {
            self.peer_port.note_far(env.now);
        }
    }

    fn dispatch_any(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        match pkt.info.service.is_selective() {
            true => self.dispatch_selective(frame, pkt, env),
            false => self.dispatch(frame, pkt, env),
        }
    }

    /// State that changes when a packet is executed or a response is accepted.
    fn progress(&self) -> (Psn, Psn) {
        (self.resp.expected, self.req.recovery.una_psn())
    }

    fn is_near(&self, pkt: &Packet<'_>) -> bool {
        let (expected, una) = self.progress();
        let (first, last) =
            if pkt.info.kind.is_request() { (expected, expected) } else { (una, self.req.recovery.sent_psn()) };
        pkt.bth.psn.diff(first) >= -NEAR && pkt.bth.psn.diff(last) <= NEAR
    }
}
