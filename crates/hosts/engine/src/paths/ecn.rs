//! Explicit congestion notification (IBA annex A17.9.3): which packets say that they may be marked, and what a mark is
//! answered with.
//!
//! A switch marks packets with CE instead of dropping them, if their sender has set an ECN-capable codepoint. Queue pairs of
//! connected types set ECT(0) where the path's controller reacts to marks ([`sent_tos`]). Datagrams have no controller, so
//! they are sent as the program says, but no program may send CE: a mark that no switch has set would slow down the peer's own
//! traffic.
//!
//! The receiver of a marked packet sends a congestion notification packet (CNP) to the queue pair that it came from. At most
//! one in [`CNP_QP_INTERVAL`] for each queue pair, and one in [`CNP_PATH_INTERVAL`] for each peer address, whatever arrives: a
//! peer that marks its own packets makes this host send no more than that, and only to itself. READ responses are marked as
//! well; their receiver is the requester. Marked acknowledgements and CNPs are not answered: nothing could slow them down.
//! Nor are packets of the selective repeat family, unless the peer's controller follows notifications.
//!
//! A CNP is a packet of its own traffic class ([`CNP_DSCP`], not ECN-capable), so it makes a train of its own.

use crate::calls::Egress;
use crate::counters::Traffic;
use crate::objects::QpSlot;
use crate::paths::path::Path;
use crate::probes;
use burst_base::verbs::{QpState, QpType};
use burst_base::{Nanos, Psn};
use burst_cc::Algorithm;
use burst_frame::{Ecn, Flow};
use burst_wire::{Bth, CnpPayload, Opcode};
use std::net::IpAddr;

/// Shortest time between two CNPs for one queue pair (DCQCN's `min_time_between_cnps`).
pub const CNP_QP_INTERVAL: Nanos = Nanos::from_us(50);
/// Shortest time between two CNPs to one peer address.
pub const CNP_PATH_INTERVAL: Nanos = Nanos::from_us(4);
/// Traffic class of CNPs (`cnp_dscp`).
pub const CNP_DSCP: u8 = 48;

/// The ECN bits of a traffic class.
const ECN_BITS: u8 = 0b11;

/// Whether a packet of this flow was marked on its way.
#[inline]
pub(crate) fn is_marked(flow: &Flow) -> bool {
    flow.tos & ECN_BITS == Ecn::Ce as u8
}

/// The traffic class of sent packets: ECN-capable if the controller reacts to marks, and never marked already.
pub(crate) fn sent_tos(tos: u8, algorithm: Option<Algorithm>) -> u8 {
    let asked = tos & ECN_BITS;
    let reacts = algorithm.is_some_and(Algorithm::uses_ecn);
    let ecn = if asked == Ecn::Ce as u8 || (reacts && asked == Ecn::NotEct as u8) { Ecn::Ect0 as u8 } else { asked };
    tos & !ECN_BITS | ecn
}

/// Whether marks of packets with this opcode are answered: the others cannot be slowed down.
fn is_answered(opcode: Opcode) -> bool {
    use burst_wire::OpKind::{Ack, AtomicAck, Cnp};
    !matches!(opcode.info().kind, Ack | AtomicAck | Cnp)
}

/// A packet that was marked on its way.
#[derive(Clone, Copy)]
pub(crate) struct MarkedPacket {
    pub src: IpAddr,
    pub opcode: Opcode,
}

/// Sends a CNP for a marked packet, unless one was sent shortly before.
#[cold]
pub(crate) fn answer_mark(
    now: Nanos,
    packet: &MarkedPacket,
    slot: &mut QpSlot,
    path: Option<&mut Path>,
    egress: Egress<'_>,
) {
    let (MarkedPacket { src, opcode }, Egress { batch, counters }) = (*packet, egress);
    counters.add(Traffic::MarkedPackets, 1);
    let qp = &slot.qp;
    let Some(path) = path.filter(|path| slot.cnp_from <= now && path.cnp_from <= now) else { return };
    // Acknowledgements of the selective repeat family count marks. Only a controller of rates needs more.
    if opcode.info().service.is_selective() && !path.peer_follows_notifications() {
        return;
    }
    let receives = matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
    if !receives || qp.qp_type() == QpType::Ud || qp.flow().dst != src || !is_answered(opcode) {
        return;
    }
    let flow = Flow { tos: CNP_DSCP << 2 | Ecn::NotEct as u8, ..*qp.flow() };
    let bth = Bth { becn: true, mig_req: false, ..Bth::new(Opcode::Cnp, qp.query().dest_qpn, Psn::default()) };
    let mut head = [0; Bth::LEN + CnpPayload::LEN];
    bth.emit(&mut head);
    CnpPayload::default().emit(&mut head[Bth::LEN..]);
    if batch.push(&flow, &head, &[], 0) {
        counters.add(Traffic::CnpsSent, 1);
        probes::cnp(slot.qp.qpn().get(), false);
        slot.cnp_from = now + CNP_QP_INTERVAL;
        path.cnp_from = now + CNP_PATH_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_ecn_capable_if_the_controller_reacts_and_never_marked() {
        let dcqcn = Some(Algorithm::Dcqcn);
        let tos = |asked: u8, algorithm| sent_tos(0x68 | asked, algorithm) & ECN_BITS;
        assert_eq!([0, 1, 2, 3].map(|asked| tos(asked, dcqcn)), [2, 1, 2, 2]);
        assert_eq!([0, 1, 2, 3].map(|asked| tos(asked, Some(Algorithm::None))), [0, 1, 2, 2]);
        assert_eq!([0, 1, 2, 3].map(|asked| tos(asked, None)), [0, 1, 2, 2]);
        assert_eq!(sent_tos(0xff, None), 0xfe);
    }

    #[test]
    fn only_ce_is_a_mark() {
        let marked = |tos| is_marked(&Flow { tos, ..Flow::default() });
        assert_eq!([0x68, 0x69, 0x6a, 0x6b].map(marked), [false, false, false, true]);
    }

    #[test]
    fn acknowledgements_and_notifications_are_not_answered() {
        for opcode in [Opcode::RcAck, Opcode::RcAtomicAck, Opcode::Cnp] {
            assert!(!is_answered(opcode), "{opcode:?}");
        }
        for opcode in [Opcode::RcSendMiddle, Opcode::RcReadResponseLast, Opcode::RcReadRequest, Opcode::UcWriteOnly] {
            assert!(is_answered(opcode), "{opcode:?}");
        }
    }
}
