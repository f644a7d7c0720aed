//! Packets from another source port than the peer's last ([`crate::peer_port`] has the rules).

use crate::api::Env;
use crate::peer_port::PeerPort;
use crate::qp::Qp;
use burst_base::verbs::QpType;
use burst_base::{Psn, Reason};
use burst_frame::RxFrame;
use burst_wire::{OpKind, Packet};

/// Distance of PSNs, in both directions, that a peer reaches by its own packets in flight after a change of its port.
const NEAR: i32 = 4096;

impl Qp {
    /// Handles a packet from another source port than the peer's last.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_other_port(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if self.shared.id.qp_type == QpType::Ud || pkt.info.kind == OpKind::Cnp {
            return self.dispatch_any(frame, pkt, env);
        }
        if env.now < self.shared.peer_port.shut_until {
            return env.fx.count(Reason::SourcePortShut);
        }
        let before = self.progress();
        let near = self.is_near(pkt);
        // A blind sender does not know the key of an executed READ.
        let proven = pkt.info.kind == OpKind::ReadRequest && self.resp.names_read(&self.shared, pkt).is_some();
        self.dispatch_any(frame, pkt, env);
        if proven || self.shared.id.qp_type == QpType::Uc || self.progress() != before {
            let earlier = self.shared.peer_port.port;
            self.shared.peer_port = PeerPort::known(frame.flow.src_port);
            if earlier != 0 {
                env.fx.count(Reason::SourcePortChanged);
            }
        } else if self.shared.peer_port.port != 0 && !near {
            self.shared.peer_port.note_far(env.now);
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
