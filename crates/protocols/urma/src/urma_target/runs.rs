//! Further packets of the message of which a packet was received last.
//!
//! Most packets are of long messages. Their heads differ from the one before in a few bytes, and of the rules of
//! [`crate::urma_target::messages`] only the places of PSN and payload apply. If another one does, the packet takes the usual
//! way: the outcome is the same.

use crate::api::UrmaEnv;
use crate::channels::rx_window::{DeliveredPackets, PsnVerdict, RX_WINDOW};
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use crate::urma_target::UrmaTarget;
use crate::urma_target::message::InboundPhase;
use crate::urma_target::messages::is_same_head;
use burst_base::Psn;
use burst_ubwire::{CongestionField, MessageHead, NextPart, Rtph, ServiceMode, TaRequest};

/// The head of a packet that was received, of a message that goes on; `of` says whether that is still there.
#[derive(Debug, Default)]
pub(crate) struct LastPart {
    /// The message's channel and record.
    pub(crate) of: Option<(PoolRef, PoolRef)>,
    /// Bytes that the head announces, if it does.
    pub(crate) len: Option<u32>,
    pub(crate) peer_reads_acks: bool,
    pub(crate) head: MessageHead,
}

/// Packets of equal length from one node, of which one begins every `stride` bytes.
pub(crate) struct ReceivedRun<'a> {
    pub(crate) from: NodeEid,
    pub(crate) packets: &'a [u8],
    pub(crate) stride: usize,
    /// Bytes of each packet.
    pub(crate) len: usize,
}

/// Packets that follow the last one of their message, and each other.
#[derive(Default)]
struct RunParts {
    offset: u32,
    bytes: u32,
    count: u32,
    ack_req: bool,
}

impl RunParts {
    /// Adds a packet, if it follows the others: the first one has the PSN `first`, and the last byte's place is below `limit`.
    #[inline]
    fn take(&mut self, part: &NextPart<'_>, (first, base): (Psn, Psn), limit: u32) -> bool {
        let piece = part.payload.len() as u32;
        if self.count == 0 {
            self.offset = part.offset;
        }
        let is_next = part.psn == first.add(self.count)
            && part.psn.is_within(base, RX_WINDOW)
            && part.offset == self.offset.saturating_add(self.bytes)
            && part.offset.saturating_add(piece) <= limit
            // C-AQM counts packet by packet.
            && !part.congestion.is_caqm()
            && !part.last
            && piece > 0
            && self.count < u32::from(u8::MAX);
        if is_next {
            (self.count, self.bytes, self.ack_req) = (self.count + 1, self.bytes + piece, self.ack_req || part.ack_req);
        }
        is_next
    }
}

impl UrmaTarget {
    /// A packet has come by the usual way, of a channel whose last message is the other reference. Others of the message are
    /// recognized by its head, if it was one of a message that needs nothing but them: a packet of another one under the same
    /// number is dropped, but counts as received.
    pub(crate) fn keep_part(&mut self, of: (PoolRef, PoolRef), rtph: &Rtph, request: &TaRequest, head: &[u8]) {
        let Some(message) = self.inbound.get(of.1) else { return };
        let first = &message.origin.request;
        let is_its = message.tpmsn == rtph.tpmsn && message.origin.channel == of.0 && is_same_head(first, request);
        if is_its && !rtph.last && first.base.mode != ServiceMode::Rol && !request.base.poison {
            let len = request.memory.map(|memory| memory.len);
            (self.last_part.of, self.last_part.len, self.last_part.peer_reads_acks) = (Some(of), len, rtph.flag);
            self.last_part.head.keep(head);
        }
    }
    /// Takes the packets of a run from the first one on that follow the last one of their message ([`crate::UrmaNode::on_run`]).
    pub(crate) fn on_run(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, run: &ReceivedRun<'_>) -> usize {
        let Some((at, message_at)) = self.last_part.of else { return 0 };
        let (Some(channel), Some(message)) = (node.channels.get_mut(at), self.inbound.get_mut(message_at)) else {
            return 0;
        };
        let InboundPhase::Placing(placement) = &message.phase else { return 0 };
        if !channel.takes_following_of(run.from) || message.total.is_some() || channel.rx.has_gap() {
            return 0;
        }
        let ReceivedRun { packets, stride, len, .. } = *run;
        debug_assert!(0 < len && len <= stride, "packets of a run overlap");
        let head = &self.last_part.head;
        let limit = self.last_part.len.map_or(placement.limit, |len| len.min(placement.limit));
        let (psn, base) = (channel.rx.expected(), channel.rx.base());
        let mut parts = RunParts::default();
        for part in packets.chunks_exact(stride).map_while(|packet| head.follow(packet.get(..len)?)) {
            if !parts.take(&part, (psn, base), limit) {
                break;
            }
        }
        let RunParts { offset, bytes, count, ack_req } = parts;
        if count == 0 {
            return 0;
        }
        let (addr, piece) = (placement.addr + u64::from(offset), (bytes / count) as usize);
        let Some(region) = node.objects.segments.held(placement.segment, addr, bytes) else { return 0 };
        let mut pieces = packets.chunks_exact(stride).take(count as usize).map(|packet| &packet[len - piece..len]);
        if env.mem.write_pieces(region, addr, bytes, &mut pieces).is_err() {
            return 0;
        }
        (channel.heard_at, channel.peer_reads_acks) = (env.now, self.last_part.peer_reads_acks);
        channel.echo.on_packet(CongestionField::default(), count * len as u32);
        message.received = message.received.saturating_add(bytes);
        let delivered = DeliveredPackets { psn, count: count as u8, ack_req, is_carrier: false };
        node.channels.packets_delivered(env, at, &delivered, PsnVerdict::Expected);
        count as usize
    }
    /// Takes a packet that follows the last one of its message in every respect. False: it is another one, and nothing has
    /// changed.
    pub(crate) fn on_following(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        (from, bytes): (NodeEid, &[u8]),
    ) -> bool {
        let Some((at, message_at)) = self.last_part.of else { return false };
        let Some(part) = self.last_part.head.follow(bytes) else { return false };
        let (Some(channel), Some(message)) = (node.channels.get_mut(at), self.inbound.get_mut(message_at)) else {
            return false;
        };
        let InboundPhase::Placing(placement) = &message.phase else { return false };
        let len = part.payload.len() as u32;
        let end = part.offset.saturating_add(len);
        let limit = self.last_part.len.map_or(placement.limit, |len| len.min(placement.limit));
        let is_last_early = part.last && message.received < part.offset;
        let has_place = message.total.is_none() && !is_last_early && len > 0 && end <= limit;
        if !has_place || !channel.takes_following_of(from) || channel.rx.judge(part.psn) != PsnVerdict::Expected {
            return false;
        }
        let addr = placement.addr + u64::from(part.offset);
        // The segment may have been deregistered since the first packet.
        let Some(region) = node.objects.segments.held(placement.segment, addr, len) else { return false };
        if env.mem.write(region, addr, part.payload).is_err() {
            return false;
        }
        (channel.heard_at, channel.peer_reads_acks) = (env.now, self.last_part.peer_reads_acks);
        channel.echo.on_packet(part.congestion, bytes.len() as u32);
        message.received = message.received.saturating_add(len);
        if part.last {
            (message.total, message.origin.last_psn) = (Some(end), part.psn);
            self.check_complete(node, env, message_at);
        }
        let delivered = DeliveredPackets { psn: part.psn, count: 1, ack_req: part.ack_req, is_carrier: false };
        node.channels.packets_delivered(env, at, &delivered, PsnVerdict::Expected);
        true
    }
}
