//! Received packets: address, channel, PSN; then to the target's or the initiator's side. Acknowledgements and management.

use crate::api::{LossRecovery, UrmaEnv};
use crate::channels::management::TpMessage;
use crate::channels::rx_window::{DeliveredPackets, PsnVerdict};
use crate::channels::tx_window::{Acked, TxOwner};
use crate::initiator::responses::ResponsePacket;
use crate::node::UrmaNode;
use crate::node_eid::NodeEid;
use crate::paths::PathChange;
use crate::pool::PoolRef;
use crate::urma_target::message::{MessageOrigin, RequestPacket};
use crate::urma_target::runs::ReceivedRun;
use burst_base::{Psn, Reason};
use burst_ubwire::{
    Atah, Dialect, NextLayer, Rtph, Saetph, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbHead, UbPacket, UbStatus,
};

impl UrmaNode {
    /// A packet arrived from a node, from the NTH on and without checksum. Drops are counted by reason: a packet is dropped that
    /// names another source than its sender's address ends with.
    pub fn on_packet(&mut self, env: &mut UrmaEnv<'_>, from: NodeEid, bytes: &[u8]) {
        self.on_packet_of(env, (from, false), bytes);
    }
    /// As [`UrmaNode::on_packet`], for a packet that a switch has marked in its IP header (ECN). Its sender hears of it.
    pub fn on_marked_packet(&mut self, env: &mut UrmaEnv<'_>, from: NodeEid, bytes: &[u8]) {
        self.on_packet_of(env, (from, true), bytes);
    }
    #[inline]
    fn on_packet_of(&mut self, env: &mut UrmaEnv<'_>, (from, is_marked): (NodeEid, bool), bytes: &[u8]) {
        if !is_marked && self.target.on_following(&mut self.shared, env, (from, bytes)) {
            if self.target.contexts.has_moved() {
                self.target.run_contexts(&mut self.shared, env);
            }
            return;
        }
        let mut packet = UbPacket::empty();
        if let Err(reason) = packet.read(bytes, &Dialect::BURST) {
            return env.fx.count(reason);
        }
        let nth = &packet.head.nth;
        if (nth.source, nth.dest) != (from.cna(), self.cna()) {
            return env.fx.count(Reason::UbForeign);
        }
        let verdict = match (packet.head.nth.next, &packet.head.rtph) {
            (NextLayer::Reliable, Some(_)) => self.on_reliable(env, (from, is_marked), &packet, bytes.len() as u32),
            (NextLayer::Unreliable, _) => self.on_unreliable(env, from, &packet).map(|()| None),
            (NextLayer::Bypass, _) => {
                self.accesses.on_packet(&mut self.shared.objects, env, (from, &packet)).map(|()| None)
            }
            (NextLayer::Reliable, None) => Err(Reason::UbNextLayer),
        };
        match verdict {
            Ok(Some(at)) => {
                if let (Some(rtph), Some(TaHeader::Request(request))) = (&packet.head.rtph, &packet.head.ta)
                    && let Some(channel) = self.shared.channels.get(at)
                {
                    let head = &bytes[..bytes.len() - packet.payload.len()];
                    self.target.keep_part((at, channel.last_message), rtph, request, head);
                }
            }
            Ok(None) => {}
            Err(reason) => env.fx.count(reason),
        }
        if self.target.contexts.has_moved() {
            self.target.run_contexts(&mut self.shared, env);
        }
        self.end_overrun(env.fx);
    }
    /// The channel, if the packet was one of data and is taken.
    fn on_reliable(
        &mut self,
        env: &mut UrmaEnv<'_>,
        sender: (NodeEid, bool),
        packet: &UbPacket<'_>,
        len: u32,
    ) -> Result<Option<PoolRef>, Reason> {
        let (from, is_marked) = sender;
        let Some(rtph) = &packet.head.rtph else { return Err(Reason::UbNextLayer) };
        let channels = &mut self.shared.channels;
        let at = match channels.receiver(from, rtph) {
            Ok(at) => at,
            Err(reason) => {
                channels.tell_unknown(env.now, from, rtph);
                return Err(reason);
            }
        };
        channels.on_heard(env.now, at);
        if rtph.opcode != TpOpcode::Data {
            return self.on_ack(env, at, &packet.head, rtph).map(|()| None);
        }
        let channel = self.shared.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        channel.echo.on_packet(packet.head.nth.congestion, len);
        if is_marked {
            channel.echo.on_mark();
        }
        self.on_data(env, at, packet, rtph).map(|()| Some(at))
    }
    /// A packet of data: an acknowledgement that it carries, and its request or response.
    #[inline]
    fn on_data(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packet: &UbPacket<'_>,
        rtph: &Rtph,
    ) -> Result<(), Reason> {
        let recovery = self.shared.channels.config.recovery;
        let channel = self.shared.channels.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
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
                self.target.on_request(&mut self.shared, env, &RequestPacket { origin, rtph, payload: packet.payload })
            }
            Some(TaHeader::Response(response)) => {
                let packet = ResponsePacket { channel: at, last: rtph.last, response, payload: packet.payload };
                self.initiator.on_response(&mut self.shared, env, &packet);
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
        Ok(())
    }
    fn on_ack(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, head: &UbHead, rtph: &Rtph) -> Result<(), Reason> {
        let is_nak = rtph.status.status == UbStatus::ERROR;
        let is_sack = head.saetph.is_some();
        let cumulative = if is_sack || is_nak { rtph.psn.prev() } else { rtph.psn };
        let marked = head.cetph.map_or(0, |cetph| cetph.marked.into());
        let result = self.on_arrived(env, at, (cumulative, head.saetph.as_ref()), marked);
        let channel = self.shared.channels.table.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if let (Ok(_), Some(cetph)) = (&result, &head.cetph) {
            channel.window.on_echo(env.now, channel.tx.srtt(), cetph);
        }
        if result.is_ok()
            && is_nak
            && !channel.tx.is_empty()
            && self.shared.channels.config.recovery == LossRecovery::GoBackN
        {
            let is_loss = channel.tx.on_nak();
            self.shared.channels.tell_path(at, env, PathChange { is_loss, ..PathChange::default() });
        }
        if let (Ok(Acked { is_old: false, .. }), Some(TaHeader::Response(response))) = (&result, &head.ta)
            && (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::FUSED)
        {
            self.initiator.on_fused(&mut self.shared, env, at, response);
        }
        self.shared.channels.activate(at);
        self.shared.channels.arm_channel(at, env.now);
        result.map(|_| ())
    }
    /// The acknowledgement of packets in a TAACK. It holds whatever becomes of the answer, which go-back-N drops behind a gap. A
    /// bad one is counted; the answer is as good as without it.
    fn on_carried(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, transaction: Option<&TaHeader>) {
        let Some(TaHeader::Response(response @ Atah { acknowledges: true, .. })) = transaction else { return };
        if let Err(reason) = self.on_arrived(env, at, (Psn::new(response.offset), None), 0) {
            env.fx.count(reason);
        }
        self.shared.channels.activate(at);
        self.shared.channels.arm_channel(at, env.now);
    }
    /// The peer has all packets up to `cumulative`, and those of the bitmap, so many of which were marked.
    fn on_arrived(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        arrived: (Psn, Option<&Saetph>),
        ce_packets: u32,
    ) -> Result<Acked, Reason> {
        let (cumulative, bitmap) = arrived;
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
        if let Ok(Acked { packets, bytes, rtt, is_signal, .. }) = result
            && (packets + ce_packets > 0 || is_signal)
        {
            let (acked_bytes, is_loss, packets) = (bytes, is_signal, packets.max(ce_packets));
            let change = PathChange { acked_bytes, packets, ce_packets, rtt, is_loss, ..PathChange::default() };
            self.shared.channels.tell_path(at, env, change);
        }
        for packet in &acked {
            match packet.owner {
                TxOwner::Request(request, attempt) => {
                    self.initiator.request_delivered(&mut self.shared, env, request, attempt)
                }
                TxOwner::Busy { .. } | TxOwner::Filler => {}
                TxOwner::Response(response) => self.target.response_delivered(&mut self.shared, response),
            }
        }
        self.acked = acked;
        result
    }
    fn on_unreliable(&mut self, env: &mut UrmaEnv<'_>, peer: NodeEid, packet: &UbPacket<'_>) -> Result<(), Reason> {
        let Some(TaHeader::Request(request)) = &packet.head.ta else { return Err(Reason::UbLate) };
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
                self.target.execute_whole(&mut self.shared, env, &origin, packet.payload);
                Ok(())
            }
            _ => Err(Reason::UbUnreliableLost),
        }
    }
    /// Packets have come from a node, of which one begins every so many bytes of `packets`, and has so many (`lengths`). Takes
    /// those from the first one on that follow the last one of their message in every respect, but not the message's last one.
    /// Returns their number; the outcome is that of [`UrmaNode::on_packet`] for each. 0 changes nothing but, where memory is
    /// gone, payload that comes again.
    pub fn on_run(&mut self, env: &mut UrmaEnv<'_>, from: NodeEid, packets: &[u8], lengths: (usize, usize)) -> usize {
        let (stride, len) = lengths;
        self.target.on_run(&mut self.shared, env, &ReceivedRun { from, packets, stride, len })
    }
    /// The next packet takes the usual way, whatever the last one was: for tests that compare the two.
    #[doc(hidden)]
    pub fn forget_part(&mut self) {
        self.target.last_part.of = None;
    }
}
