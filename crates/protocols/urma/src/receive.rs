//! Received packets: address, channel, PSN; then to the target's or the initiator's side. Acknowledgements and management.

use crate::api::{LossRecovery, UrmaEnv};
use crate::channel::{ChannelState, TpMessage, TpMessageKind};
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::MessageOrigin;
use crate::rx_window::PsnVerdict;
use crate::sweep::ChannelEnd;
use crate::tx_window::{Acked, TxOwner};
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{
    Atah, Cna, Dialect, NextLayer, Nth, Rtph, Saetph, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbHead, UbPacket,
    UbStatus,
};

/// Packets after which an acknowledgement is sent without being asked for.
const ACK_PACKETS_MAX: u8 = 16;
/// How long the acknowledgement of an answer waits for something that carries it, or for further answers. Less than the sender's
/// probe: `PROBE_MIN` if the round trip is short, else four round trips.
pub(crate) const ACK_DELAY: Nanos = Nanos::from_us(30);

/// What an acknowledgement has to say of packets of data that follow each other.
pub(crate) struct DeliveredPackets {
    /// The first one's number.
    pub(crate) psn: Psn,
    pub(crate) count: u8,
    /// One of them asks for an acknowledgement.
    pub(crate) ack_req: bool,
    /// It is an answer that acknowledges packets itself.
    pub(crate) is_carrier: bool,
}

impl DeliveredPackets {
    fn one(rtph: &Rtph, ta: Option<&TaHeader>) -> DeliveredPackets {
        // The acknowledgement of such an answer may wait: no request waits for it. Other answers without payload may ask whether
        // this end is alive.
        let is_carrier = matches!(ta, Some(TaHeader::Response(Atah { acknowledges: true, .. })));
        DeliveredPackets { psn: rtph.psn, count: 1, ack_req: rtph.ack_req, is_carrier }
    }
}

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
        if packet.head.nth.dest != self.config.cna {
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
        let at = self.channels.ref_of(rtph.dst_tpn & 0xffff).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.channels.get(at).ok_or(Reason::UbUnknownChannel)?;
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
                self.tell_unknown(env.now, packet.head.nth.source, rtph);
                return Err(reason);
            }
        };
        if let Some(channel) = self.channels.get_mut(at) {
            channel.heard_at = env.now;
            if channel.is_doubted {
                self.end_doubt(at, env.now);
            } else if !channel.is_used {
                (channel.is_used, channel.failures) = (true, 0);
                self.lane_is_heard(at, packet.head.nth.source, env.now);
            }
        }
        if rtph.opcode != TpOpcode::Data {
            return self.on_ack(env, at, &packet.head, rtph).map(|()| None);
        }
        let recovery = self.config.recovery;
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        channel.echo.on_packet(packet.head.nth.congestion, len);
        let verdict = channel.rx.judge(rtph.psn);
        if verdict != PsnVerdict::Outside {
            self.on_carried(env, at, packet.head.ta.as_ref());
        }
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        match verdict {
            PsnVerdict::Duplicate => {
                self.ask_ack(at);
                return Err(Reason::UbDuplicate);
            }
            PsnVerdict::Outside => return Err(Reason::UbOutsideWindow),
            PsnVerdict::Early if recovery == LossRecovery::GoBackN => {
                self.refuse_early(at);
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
            self.ask_ack(at);
            return Err(Reason::UbPoolFull);
        }
        self.packets_delivered(env, at, &DeliveredPackets::one(rtph, packet.head.ta.as_ref()), verdict);
        Ok(Some(at))
    }
    /// Go-back-N: a NAK asks for what is missing, once.
    fn refuse_early(&mut self, at: PoolRef) {
        let Some(channel) = self.channels.get_mut(at) else { return };
        let expected = channel.rx.expected();
        if channel.nak_sent != Some(expected) {
            (channel.nak_sent, channel.nak_due) = (Some(expected), true);
            self.activate(at);
        }
    }
    pub(crate) fn packets_delivered(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packets: &DeliveredPackets,
        verdict: PsnVerdict,
    ) {
        let Some(channel) = self.channels.get_mut(at) else { return };
        match packets.count {
            1 => channel.rx.received(packets.psn),
            count => channel.rx.received_run(packets.psn, count.into()),
        }
        channel.packets_to_ack = channel.packets_to_ack.saturating_add(packets.count);
        // An echo is what the peer's window waits for.
        let is_answer = packets.is_carrier && !channel.echo.is_due();
        if packets.ack_req && !is_answer || channel.rx.has_gap() || channel.packets_to_ack >= ACK_PACKETS_MAX {
            channel.ack_due = true;
        } else if packets.ack_req && !channel.ack_due && channel.ack_at == Nanos::NEVER {
            channel.ack_at = env.now + ACK_DELAY;
        }
        if verdict == PsnVerdict::Early {
            env.fx.count(Reason::UbGap);
        }
        let is_awaiting = channel.inbound > 0 && channel.timer_at > channel.sign_of_life_at(&self.config);
        let is_unarmed = is_awaiting || channel.timer_at > channel.ack_at;
        if channel.ack_due || !channel.fused.is_empty() {
            self.activate(at);
        }
        if is_unarmed {
            self.arm_channel(at, env.now);
        }
    }
    fn on_ack(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, head: &UbHead, rtph: &Rtph) -> Result<(), Reason> {
        let is_nak = rtph.status.status == UbStatus::ERROR;
        let is_sack = head.saetph.is_some();
        let cumulative = if is_sack || is_nak { rtph.psn.prev() } else { rtph.psn };
        let result = self.on_arrived(env, at, cumulative, head.saetph.as_ref());
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if let (Ok(_), Some(cetph)) = (&result, &head.cetph) {
            channel.window.on_echo(env.now, channel.tx.srtt(), cetph);
        }
        if result.is_ok() && is_nak && !channel.tx.is_empty() && self.config.recovery == LossRecovery::GoBackN {
            channel.tx.on_nak();
        }
        if let (Ok(Acked { is_old: false, .. }), Some(TaHeader::Response(response))) = (&result, &head.ta)
            && (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::FUSED)
        {
            self.on_fused(env, at, response);
        }
        self.activate(at);
        self.arm_channel(at, env.now);
        result.map(|_| ())
    }
    /// The acknowledgement of packets in a TAACK. It holds whatever becomes of the answer, which go-back-N drops behind a gap. A
    /// bad one is counted; the answer is as good as without it.
    fn on_carried(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, transaction: Option<&TaHeader>) {
        let Some(TaHeader::Response(response @ Atah { acknowledges: true, .. })) = transaction else { return };
        if let Err(reason) = self.on_arrived(env, at, Psn::new(response.offset), None) {
            env.fx.count(reason);
        }
        self.activate(at);
        self.arm_channel(at, env.now);
    }
    /// The peer has all packets up to `cumulative`, and those of the bitmap.
    fn on_arrived(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        cumulative: Psn,
        bitmap: Option<&Saetph>,
    ) -> Result<Acked, Reason> {
        let degree = self.config.reorder_degree.max(1);
        let mut acked = std::mem::take(&mut self.acked);
        acked.clear();
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
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
        let Some(response) = self.responses.get_mut(at) else { return };
        response.unacked -= 1;
        if !response.all_sent || response.unacked > 0 {
            return;
        }
        let Some(response) = self.responses.remove(at) else { return };
        if let Some(channel) = self.channels.get_mut(response.channel) {
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
                self.on_management(env, peer, &message)
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
    fn on_management(&mut self, env: &mut UrmaEnv<'_>, peer: Cna, message: &TpMessage) -> Result<(), Reason> {
        match message.kind {
            TpMessageKind::Request => self.on_open_request(env, peer, message),
            TpMessageKind::Reply => self.on_open_reply(env, peer, message),
            TpMessageKind::Challenge => self.on_challenge(env, peer, message),
            TpMessageKind::End => self.on_end(env, peer, message),
            TpMessageKind::Unknown => self.on_unknown(env.now, peer, message),
        }
    }
    fn on_open_request(&mut self, env: &mut UrmaEnv<'_>, peer: Cna, message: &TpMessage) -> Result<(), Reason> {
        let config = self.config;
        let echo = (message.tpn, message.incarnation);
        if message.lane >= config.lanes {
            return Err(Reason::UbChannelLimit);
        }
        let key = (peer, message.lane);
        let (mut present, mut is_shown) = (self.by_peer.get(&key).copied(), false);
        if let Some(at) = present
            && let Some(channel) = self.channels.get(at)
            && channel.state == ChannelState::Open
            && !channel.is_of_peer(message)
        {
            if !channel.is_echoed(message) {
                let challenge = channel.message(TpMessageKind::Challenge, echo, &config);
                self.push_management(peer, challenge);
                return Err(Reason::UbStaleChannel);
            }
            self.end_lane(at, ChannelEnd::Failed);
            // Requests that waited for others may have begun to open another one.
            present = self.by_peer.get(&key).copied();
            is_shown = true;
        }
        let at = match present {
            Some(at) => at,
            None => {
                if message.lane > 0 && !self.has_lane_room() {
                    return Err(Reason::UbChannelLimit);
                }
                if !self.channels.has_room() {
                    // The table may be full of those that forged REQUESTs have made.
                    let idle = self.channels.iter().find(|(_, channel)| channel.is_idle_from_birth()).map(|(at, _)| at);
                    self.end_lane(idle.ok_or(Reason::UbChannelLimit)?, ChannelEnd::Failed);
                }
                let at = self.new_channel(peer, message.lane).ok_or(Reason::UbChannelLimit)?;
                if let Some(channel) = self.channels.get_mut(at) {
                    channel.open(message, env.now);
                }
                at
            }
        };
        // An end that asks, too, answers, but opens only with the answer to its own REQUEST: this one may be late.
        let reply = self.channels.get(at).map(|channel| channel.message(TpMessageKind::Reply, echo, &config));
        if let Some(reply) = reply {
            self.push_management(peer, reply);
        }
        self.activate(at);
        self.arm_channel(at, env.now);
        if is_shown {
            self.end_former_lives(peer, message.life);
        }
        Ok(())
    }
    fn on_open_reply(&mut self, env: &mut UrmaEnv<'_>, peer: Cna, message: &TpMessage) -> Result<(), Reason> {
        let at = *self.by_peer.get(&(peer, message.lane)).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if !channel.is_echoed(message) {
            return Err(Reason::UbStaleChannel);
        }
        if channel.state == ChannelState::Opening {
            channel.open(message, env.now);
            self.activate(at);
            self.arm_channel(at, env.now);
            self.lane_is_open(at, peer);
            self.end_former_lives(peer, message.life);
        } else if channel.is_of_peer(message) {
            channel.heard_at = env.now;
            self.end_doubt(at, env.now);
        } else if channel.is_doubted {
            self.peer_has_restarted(env, at, message);
        }
        Ok(())
    }
    /// The peer has another channel to this node, and wants to see that this node asks now.
    fn on_challenge(&mut self, env: &mut UrmaEnv<'_>, peer: Cna, message: &TpMessage) -> Result<(), Reason> {
        let config = self.config;
        let at = *self.by_peer.get(&(peer, message.lane)).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if !channel.is_echoed(message) || !channel.is_asking() {
            return Err(Reason::UbStaleChannel);
        }
        if channel.is_doubted {
            self.peer_has_restarted(env, at, message);
            return Ok(());
        }
        let request = channel.message(TpMessageKind::Request, (message.tpn, message.incarnation), &config);
        self.push_management(peer, request);
        Ok(())
    }
}
