//! Further packets of the message of which a packet was sent, or received, last.
//!
//! Most packets are of long messages, and nothing but them is under way on their channel. Their heads differ from the one before
//! in a few bytes, and of the rules of [`crate::transmit`] only the window applies, of those of [`crate::receive`] and
//! [`crate::messages`] only the places of PSN and payload. If another one does, the packet takes the usual way: the outcome is
//! the same.

use crate::api::{UrmaEnv, WrData};
use crate::channel::{ChannelState, REQUEST_WINDOW};
use crate::heads::{data_header, has_one_head};
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::receive::DeliveredPacket;
use crate::records::{InboundPhase, RequestPhase};
use crate::rx_window::PsnVerdict;
use crate::transmit::{ACK_EVERY, TURN_PACKETS, UrmaTransmit};
use crate::tx_window::{TxOwner, TxPacket};
use burst_base::Nanos;
use burst_ubwire::{CongestionField, Rtph, ServiceMode, TaRequest};

impl UrmaNode {
    /// The next packet of the channel whose turn it is, if it is of the message of the last one and nothing else is to be
    /// considered; also whether the channel has none left. `None` says nothing, and changes nothing.
    pub(crate) fn poll_following(
        &mut self,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<(UrmaTransmit, bool)> {
        let (kept_of, owner @ TxOwner::Request(request_at, attempt)) = self.last_head.of? else { return None };
        if kept_of != at {
            return None;
        }
        let channel = self.channels.get_mut(at)?;
        let window = if self.config.caqm { channel.window.bytes() } else { self.config.window_max };
        let is_alone = channel.queue.len() == 1 && channel.queue.front() == Some(&owner) && channel.answers.is_empty();
        if !is_alone || !channel.tx.has_room(window, REQUEST_WINDOW) || channel.owes_more_than_data(env.now) {
            return None;
        }
        let request = self.requests.get_mut(request_at)?;
        let WrData::Local(range) = request.data else { return None };
        let is_going_on = request.attempt == attempt && request.phase == RequestPhase::Issued && request.sent > 0;
        if !is_going_on || !has_one_head(request) {
            return None;
        }
        let offset = request.sent;
        let len = (range.len - offset).min(u32::from(self.config.mtu));
        let addr = range.addr + u64::from(offset);
        let span = env.mem.lend(self.segments.held(request.segment, addr, len)?, addr, len)?;

        request.sent += len;
        let last = request.sent == range.len;
        let packet = TxPacket { owner, offset, len: len as u16, last, tpmsn: request.tpmsn };
        let psn = channel.tx.push(env.now, packet);
        channel.is_confirmed = false;
        channel.turn += 1;
        if last {
            (request.all_sent, request.last_psn) = (true, Some(psn));
            channel.queue.pop_front();
        }
        if last || channel.turn >= TURN_PACKETS {
            (channel.turn, channel.is_answers_turn) = (0, !channel.is_answers_turn);
        }
        let ack_req = last || psn.get().is_multiple_of(ACK_EVERY) || !channel.tx.has_room(window, REQUEST_WINDOW);
        let rtph = data_header((channel.local_tpn, channel.peer_tpn), psn, &packet, ack_req);
        let congestion = if self.config.caqm { channel.window.stamp(len) } else { CongestionField::default() };
        let (dest, lane) = (channel.peer, channel.lane);
        // As behind any other packet: one more in flight does not change the deadline.
        let is_first = channel.tx.packets() <= 1 || channel.timer_at == Nanos::NEVER;
        let len = self.last_head.head.emit(congestion, &rtph, offset, out);
        if is_first {
            self.arm_channel(at, env.now);
        }
        Some((UrmaTransmit { dest, lane, len, lent: Some(span) }, last))
    }
    /// A packet was taken by the usual way. Others of its message are recognized, if it has a record that needs nothing but them.
    pub(crate) fn keep_part(&mut self, at: PoolRef, rtph: &Rtph, request: &TaRequest, head: &[u8]) {
        if rtph.last || request.base.mode == ServiceMode::Rol || request.base.poison {
            return;
        }
        let Some(channel) = self.channels.get(at) else { return };
        let of = (at, channel.last_message);
        if self.inbound.get(of.1).is_some_and(|message| message.tpmsn == rtph.tpmsn && message.origin.channel == at) {
            let len = request.memory.map(|memory| memory.len);
            (self.last_part.of, self.last_part.len, self.last_part.peer_reads_acks) = (Some(of), len, rtph.flag);
            self.last_part.head.keep(head);
        }
    }
    /// Takes a packet that follows the last one of its message in every respect. False: it is another one, and nothing has
    /// changed.
    pub(crate) fn on_following(&mut self, env: &mut UrmaEnv<'_>, bytes: &[u8]) -> bool {
        let Some((at, message_at)) = self.last_part.of else { return false };
        let Some(part) = self.last_part.head.follow(bytes) else { return false };
        let (Some(channel), Some(message)) = (self.channels.get_mut(at), self.inbound.get_mut(message_at)) else {
            return false;
        };
        let InboundPhase::Placing(placement) = &message.phase else { return false };
        let len = part.payload.len() as u32;
        let end = part.offset.saturating_add(len);
        let is_next = channel.state == ChannelState::Open
            && channel.is_used
            && !channel.is_doubted
            && channel.refused.is_empty()
            && channel.rx.judge(part.psn) == PsnVerdict::Expected
            && message.total.is_none()
            && !(part.last && message.received < part.offset)
            && self.last_part.len.is_none_or(|len| end <= len)
            && end <= placement.limit
            && len > 0;
        if !is_next {
            return false;
        }
        let addr = placement.addr + u64::from(part.offset);
        // The segment may have been deregistered since the first packet.
        let Some(region) = self.segments.held(placement.segment, addr, len) else { return false };
        if env.mem.write(region, addr, part.payload).is_err() {
            return false;
        }
        (channel.heard_at, channel.peer_reads_acks) = (env.now, self.last_part.peer_reads_acks);
        channel.echo.on_packet(part.congestion, bytes.len() as u32);
        message.received = message.received.saturating_add(len);
        if part.last {
            (message.total, message.origin.last_psn) = (Some(end), part.psn);
            self.check_complete(env, message_at);
        }
        let delivered = DeliveredPacket { psn: part.psn, ack_req: part.ack_req, is_carrier: false };
        self.packet_delivered(env, at, &delivered, PsnVerdict::Expected);
        true
    }
}
