//! Acknowledgements of READ responses (selective repeat), which the requester of READs sends.
//!
//! While responses come it sends an acknowledgement every [`READ_ACK_BYTES`], at the end of each READ, and in each
//! pass in which a response was marked, came behind a gap or filled one, or asked for it. It is cumulative: its PSN is that of
//! the last packet in front of *una*. [`crate::responder::response_window`] is the other side.

use crate::ack_report::pressure_now;
use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use burst_base::{Nanos, Psn};
use burst_frame::{Ecn, Flow};
use burst_wire::selective::DELAY_UNIT_NS;
use burst_wire::{Bth, HeadBuf, Opcode, Saeth};

/// Bytes of responses between two acknowledgements.
pub(crate) const READ_ACK_BYTES: u32 = 64 << 10;

/// What a requester keeps whose peer wants acknowledgements of READ responses.
#[derive(Default)]
pub(crate) struct ReadAckSender {
    /// Bytes placed since the last acknowledgement.
    since: u32,
    /// PSN and transmission number of the newest response, and when it arrived.
    trigger: Psn,
    transmission: u8,
    /// An acknowledgement is to be sent.
    pub(crate) is_due: bool,
    is_congested: bool,
    arrived_at: Nanos,
    /// Responses received, and those marked "congestion experienced".
    received: u16,
    congested: u16,
    /// Losses in the host's receive buffers that were reported to the peer.
    lost_seen: Option<u32>,
}

impl Requester {
    /// The queue pair ends: nothing is to be acknowledged.
    pub(crate) fn forget_read_acks(&mut self) {
        if let Some(acks) = &mut self.read_acks {
            (acks.since, acks.is_due) = (0, false);
        }
    }

    /// Responses have arrived, the newest with this PSN and transmission number.
    #[inline]
    pub(crate) fn note_responses(&mut self, flow: &Flow, newest: (Psn, u8), (count, bytes): (u16, u32), now: Nanos) {
        let Some(acks) = &mut self.read_acks else { return };
        (acks.trigger, acks.transmission) = newest;
        acks.arrived_at = now;
        acks.received = acks.received.wrapping_add(count);
        acks.since = acks.since.saturating_add(bytes);
        if flow.tos & 3 == Ecn::Ce as u8 {
            acks.congested = acks.congested.wrapping_add(count);
            acks.is_congested = true;
        }
        acks.is_due |= acks.since >= READ_ACK_BYTES || acks.is_congested;
    }

    /// An acknowledgement is sent in this pass.
    pub(crate) fn owe_read_ack(&mut self) {
        if let Some(acks) = &mut self.read_acks {
            acks.is_due = true;
        }
    }

    /// Sends the acknowledgement that is due. False if the batch is full.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_read_ack(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        let Some(acks) = &mut self.read_acks else { return true };
        let delay = env.now.since(acks.arrived_at).0 / DELAY_UNIT_NS;
        let (pressure, lost) = pressure_now(acks.lost_seen, env);
        let saeth = Saeth {
            pressure,
            is_congested: acks.is_congested,
            trigger: acks.trigger,
            delay: delay.min(u16::MAX.into()) as u16,
            congested_packets: acks.congested,
            received_packets: acks.received,
            transmission: acks.transmission,
            ..Saeth::default()
        };
        let opcode = if qp.id.qp_type.is_xrc() { Opcode::XrcSrReadAck } else { Opcode::RcSrReadAck };
        debug_assert!(qp.id.qp_type.is_reliable());
        let psn = self.recovery.una_psn().prev();
        let head = HeadBuf::new(&Bth::new(opcode, qp.dest_qpn, psn)).saeth(saeth);
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed {
            (acks.since, acks.is_congested, acks.lost_seen) = (0, false, Some(lost));
        }
        pushed
    }
}
