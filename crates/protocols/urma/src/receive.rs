//! Received packets: address, channel, PSN; then to the target's or the initiator's side. Acknowledgements and management.

use crate::api::{LossRecovery, UrmaEnv};
use crate::channels::channel::ChannelState;
use crate::channels::management::TpMessage;
use crate::channels::rx_window::{DeliveredPackets, PsnVerdict};
use crate::channels::tx_window::{Acked, TxOwner};
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::MessageOrigin;
use burst_base::{Psn, Reason};
use burst_ubwire::{
    Atah, Dialect, NextLayer, Nth, Rtph, Saetph, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbHead, UbPacket, UbStatus,
};

impl UrmaNode {
    /// A packet arrived, from the NTH on and without checksum. Drops are counted by reason.
    pub fn on_packet(&mut self, env: &mut UrmaEnv<'_>, bytes: &[u8]) {
        if self.on_following(env, bytes) {
            if !self.moved_contexts.is_empty() {
                self.run_contexts(env);
            }
            return;
        }
        let mut packet = UbPacket::empty();
        if let Err(reason) = packet.read(bytes, &Dialect::BURST) {
            return env.fx.count(reason);
        }
        if packet.head.nth.dest != self.shared.channels.config.cna {
            return env.fx.count(Reason::UbForeign);
        }
        let verdict = match (packet.head.nth.next, &packet.head.rtph) {
            (NextLayer::Reliable, Some(rtph)) => self.on_reliable(env, &packet, rtph, bytes.len() as u32),
            (NextLayer::Unreliable, _) => self.on_unreliable(env, &packet).map(|()| None),
            (NextLayer::Bypass, _) => self.on_access(env, &packet).map(|()| None),
            (NextLayer::Reliable, None) => Err(Reason::UbNextLayer),
        };
        match verdict {
            Ok(Some(at)) => {
                if let (Some(rtph), Some(TaHeader::Request(request))) = (&packet.head.rtph, &packet.head.ta) {
                    self.keep_part(at, rtph, request, &bytes[..bytes.len() - packet.payload.len()]);
                }
            }
            Ok(None) => {}
            Err(reason) => env.fx.count(reason),
        }
        if !self.moved_contexts.is_empty() {
            self.run_contexts(env);
        }
    }
    /// The channel that a packet names, if it is the sender's.
    fn channel_of(&self, nth: &Nth, rtph: &Rtph) -> Result<PoolRef, Reason> {
        let at = self.shared.channels.table.ref_of(rtph.dst_tpn & 0xffff).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.shared.channels.get(at).ok_or(Reason::UbUnknownChannel)?;
        let is_its = channel.state == ChannelState::Open
            && (channel.local_tpn, channel.peer_tpn, channel.peer) == (rtph.dst_tpn, rtph.src_tpn, nth.source);
        if is_its { Ok(at) } else { Err(Reason::UbUnknownChannel) }
    }
    /// The channel, if the packet was one of data and is taken.
    fn on_reliable(
        &mut self,
        env: &mut UrmaEnv<'_>,
        packet: &UbPacket<'_>,
        rtph: &Rtph,
        len: u32,
    ) -> Result<Option<PoolRef>, Reason> {
        let at = match self.channel_of(&packet.head.nth, rtph) {
            Ok(at) => at,
            Err(reason) => {
                self.shared.channels.tell_unknown(env.now, packet.head.nth.source, rtph);
                return Err(reason);
            }
        };
        if let Some(channel) = self.shared.channels.get_mut(at) {
            channel.heard_at = env.now;
            if channel.is_doubted {
                self.shared.channels.end_doubt(at, env.now);
            } else if !channel.is_used {
                (channel.is_used, channel.failures) = (true, 0);
                self.shared.channels.lane_is_heard(at, packet.head.nth.source, env.now);
            }
        }
        if rtph.opcode != TpOpcode::Data {
            return self.on_ack(env, at, &packet.head, rtph).map(|()| None);
        }
        let recovery = self.shared.channels.config.recovery;
        let channel = self.shared.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        channel.echo.on_packet(packet.head.nth.congestion, len);
        let verdict = channel.rx.judge(rtph.psn);
        if verdict != PsnVerdict::Outside {
            self.on_carried(env, at, packet.head.ta.as_ref());
        }
        let channel = self.shared.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        match verdict {
            PsnVerdict::Duplicate => {
                self.shared.channels.ask_ack(at);
                return Err(Reason::UbDuplicate);
            }
            PsnVerdict::Outside => return Err(Reason::UbOutsideWindow),
            PsnVerdict::Early if recovery == LossRecovery::GoBackN => {
                self.shared.channels.refuse_early(at);
                return Err(Reason::UbGap);
            }
            PsnVerdict::Early | PsnVerdict::Expected => {}
        }
        channel.peer_reads_acks = rtph.flag;
        let peer = channel.peer;
        let is_taken = match &packet.head.ta {
            Some(TaHeader::Request(request)) => {
                let origin =
                    MessageOrigin { channel: at, peer, last_psn: rtph.psn, is_deferred: false, request: *request };
                self.on_request(env, origin, rtph, packet.payload)
            }
            Some(TaHeader::Response(response)) => {
                self.on_response(env, at, rtph, response, packet.payload);
                true
            }
            None => true,
        };
        if !is_taken {
            // A sign of life for its sender, who sends it again.
            self.shared.channels.ask_ack(at);
            return Err(Reason::UbPoolFull);
        }
        self.shared.channels.packets_delivered(env, at, &DeliveredPackets::one(rtph, packet.head.ta.as_ref()), verdict);
        Ok(Some(at))
    }
    fn on_ack(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, head: &UbHead, rtph: &Rtph) -> Result<(), Reason> {
        let is_nak = rtph.status.status == UbStatus::ERROR;
        let is_sack = head.saetph.is_some();
        let cumulative = if is_sack || is_nak { rtph.psn.prev() } else { rtph.psn };
        let result = self.on_arrived(env, at, cumulative, head.saetph.as_ref());
        let channel = self.shared.channels.table.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if let (Ok(_), Some(cetph)) = (&result, &head.cetph) {
            channel.window.on_echo(env.now, channel.tx.srtt(), cetph);
        }
        if result.is_ok()
            && is_nak
            && !channel.tx.is_empty()
            && self.shared.channels.config.recovery == LossRecovery::GoBackN
        {
            channel.tx.on_nak();
        }
        if let (Ok(Acked { is_old: false, .. }), Some(TaHeader::Response(response))) = (&result, &head.ta)
            && (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::FUSED)
        {
            self.on_fused(env, at, response);
        }
        self.shared.channels.activate(at);
        self.shared.channels.arm_channel(at, env.now);
        result.map(|_| ())
    }
    /// The acknowledgement of packets in a TAACK. It holds whatever becomes of the answer, which go-back-N drops behind a gap. A
    /// bad one is counted; the answer is as good as without it.
    fn on_carried(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, transaction: Option<&TaHeader>) {
        let Some(TaHeader::Response(response @ Atah { acknowledges: true, .. })) = transaction else { return };
        if let Err(reason) = self.on_arrived(env, at, Psn::new(response.offset), None) {
            env.fx.count(reason);
        }
        self.shared.channels.activate(at);
        self.shared.channels.arm_channel(at, env.now);
    }
    /// The peer has all packets up to `cumulative`, and those of the bitmap.
    fn on_arrived(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        cumulative: Psn,
        bitmap: Option<&Saetph>,
    ) -> Result<Acked, Reason> {
        let degree = self.shared.channels.config.reorder_degree.max(1);
        let mut acked = std::mem::take(&mut self.acked);
        acked.clear();
        let channel = self.shared.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        let sack = bitmap.map(|saetph| (saetph, degree));
        let result = channel.tx.on_ack(env.now, cumulative, sack, &mut |packet| {
            if packet.last || matches!(packet.owner, TxOwner::Response(_)) {
                acked.push(packet);
            }
        });
        for packet in &acked {
            match packet.owner {
                TxOwner::Request(request, attempt) => self.request_delivered(env, request, attempt),
                TxOwner::Busy { .. } | TxOwner::Filler => {}
                TxOwner::Response(response) => self.response_delivered(response),
            }
        }
        self.acked = acked;
        result
    }
    /// A packet of a response has arrived.
    fn response_delivered(&mut self, at: PoolRef) {
        let Some(response) = self.shared.responses.get_mut(at) else { return };
        response.unacked -= 1;
        if !response.all_sent || response.unacked > 0 {
            return;
        }
        let Some(response) = self.shared.responses.remove(at) else { return };
        if let Some(channel) = self.shared.channels.get_mut(response.channel) {
            channel.responses -= 1;
            if channel.rx.response_arrived(at) {
                channel.ack_due = true;
            }
        }
        if let Some((context, number)) = response.context {
            // Later requests may change the memory now: a repetition of the data would have read it again.
            self.context_executed(context, number);
        }
    }
    fn on_unreliable(&mut self, env: &mut UrmaEnv<'_>, packet: &UbPacket<'_>) -> Result<(), Reason> {
        let Some(TaHeader::Request(request)) = &packet.head.ta else { return Err(Reason::UbLate) };
        let peer = packet.head.nth.source;
        match request.base.opcode {
            TaOpcode::Management => {
                let message = TpMessage::parse(packet.payload).ok_or(Reason::UbManagement)?;
                let result = self.shared.channels.on_management(env, peer, &message);
                self.clear_ended();
                result
            }
            TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Write if request.base.mode == ServiceMode::Uno => {
                let origin = MessageOrigin {
                    channel: PoolRef::NONE,
                    peer,
                    last_psn: Psn::new(0),
                    is_deferred: false,
                    request: *request,
                };
                self.execute_whole(env, origin, packet.payload);
                Ok(())
            }
            _ => Err(Reason::UbUnreliableLost),
        }
    }
}
