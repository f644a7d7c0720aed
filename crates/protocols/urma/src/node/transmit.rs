//! Packets to send: management, unreliable messages, and of each channel in turn acknowledgements, repetitions and new packets.

use crate::api::{UrmaEnv, UrmaTransmit, WrData};
use crate::channels::CHANNEL_TURN_PACKETS;
use crate::channels::channel::{ACK_EVERY, ChannelState};
use crate::channels::tx_window::{TxLimits, TxOwner, TxPacket};
use crate::initiator::packets::request_header;
use crate::initiator::responses::DEFERRED;
use crate::initiator::runs::UrmaRun;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node::UrmaNode;
use crate::paths::UrmaPaths;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::response_record::{ResponseKind, ResponseRecord};
use burst_base::{Nanos, Psn, Reason};
use burst_span::Span;
use burst_ubwire::{
    Atah, Btah, Dialect, NextLayer, RC_TYPE_CONTEXT, TaHeader, TaOpcode, TaRequest, UB_HEAD_MAX, UbHead, UbStatus,
};

/// Timer code of RNR answers that are about this node's records: 80 us.
const BUSY_TIMER: u8 = 3;

impl UrmaNode {
    /// Bytes that [`UrmaNode::poll_tx`] may write.
    pub const fn packet_max(&self) -> usize {
        UB_HEAD_MAX + self.shared.channels.config.mtu as usize
    }
    /// Writes the next packet to `out`, from the NTH on and without checksum. `None`: nothing may be sent now. Panics if `out` is
    /// shorter than [`UrmaNode::packet_max`].
    pub fn poll_tx(&mut self, env: &mut UrmaEnv<'_>, out: &mut [u8]) -> Option<UrmaTransmit> {
        self.poll_any(env, out, false)
    }
    /// As [`UrmaNode::poll_tx`], without a copy of payload in registered memory: the caller sends it from there, before anything
    /// else is done with the node.
    pub fn poll_tx_lent(&mut self, env: &mut UrmaEnv<'_>, out: &mut [u8]) -> Option<UrmaTransmit> {
        self.poll_any(env, out, true)
    }
    fn poll_any(&mut self, env: &mut UrmaEnv<'_>, out: &mut [u8], lends: bool) -> Option<UrmaTransmit> {
        if let Some((dest, lane, message)) = self.shared.channels.management.pop_front() {
            return Some(self.shared.channels.write_management((dest, lane), &message, out));
        }
        if let Some((dest, len)) = self.accesses.poll(&mut self.shared.channels, env.now, out) {
            return Some(UrmaTransmit::whole((dest, 0), len));
        }
        while let Some(request) = self.initiator.unreliable.pop_front() {
            if let Some(sent) = self.initiator.write_unreliable(&mut self.shared, request, env, out) {
                return Some(sent);
            }
        }
        while let Some(&channel) = self.shared.channels.active.front() {
            if lends && let Some((sent, is_last)) = self.initiator.poll_following(&mut self.shared, channel, env, out) {
                self.shared.channels.channel_turn += 1;
                self.shared.channels.end_turn(is_last);
                return Some(sent);
            }
            if let Some(sent) = self.poll_channel(channel, env, out, lends) {
                self.shared.channels.channel_turn += 1;
                let (mut is_first, mut is_last) = (false, false);
                if let Some(channel) = self.shared.channels.get(channel) {
                    // A further packet in flight does not change the deadline.
                    is_first = channel.tx.packets() <= 1 || channel.is_asking() || channel.timer_at == Nanos::NEVER;
                    is_last = channel.has_sent_all();
                }
                if is_first {
                    self.shared.channels.arm_channel(channel, env.now);
                }
                self.shared.channels.end_turn(is_last);
                return Some(sent);
            }
            self.shared.channels.wait_for_path(env);
            self.shared.channels.deactivate_first();
        }
        None
    }
    /// Whether something may be ready to be sent. A channel that waits for its window counts until it was asked.
    pub fn wants_tx(&self) -> bool {
        !(self.shared.channels.active.is_empty()
            && self.shared.channels.management.is_empty()
            && self.initiator.unreliable.is_empty())
            || self.accesses.wants_tx()
    }
    /// Acknowledgement, repetition or new packet of a channel, or a REQUEST if its peer may have restarted.
    fn poll_channel(
        &mut self,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
        lends: bool,
    ) -> Option<UrmaTransmit> {
        let channel = self.shared.channels.get_mut(at)?;
        if channel.state == ChannelState::Opening {
            return self.shared.channels.ask(at, env.now, out);
        }
        if let Some(fused) = channel.fused.pop_front() {
            return self.shared.channels.write_ack(at, Some(fused), out);
        }
        let is_due = channel.ack_due;
        let is_asking = channel.is_doubted || channel.is_stale(env.now);
        if channel.nak_due || is_due && (channel.answers.is_empty() || is_asking) {
            return self.shared.channels.write_ack(at, None, out);
        }
        if is_asking {
            return self.shared.channels.ask_again(at, env.now, out);
        }
        if channel.has_nothing_to_send() && !channel.tx.has_lost() {
            return None;
        }
        let limits = self.shared.channels.limits(at, env)?;
        if is_due && !self.is_carried(at, env.now, &limits) {
            return self.shared.channels.write_ack(at, None, out);
        }
        self.poll_data((at, limits), env, out, lends)
    }
    /// Repetition or new packet of data of a channel.
    #[inline]
    fn poll_data(
        &mut self,
        channel: (PoolRef, TxLimits),
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
        lends: bool,
    ) -> Option<UrmaTransmit> {
        let (at, mut limits) = channel;
        let channel = self.shared.channels.get_mut(at)?;
        if channel.tx.has_lost() {
            let (psn, packet) = channel.tx.take_lost(env.now, &limits)?;
            env.fx.count(Reason::UbRepeated);
            return self.send_packet(at, ChannelPacket { psn, packet, ack_req: true, lends }, env, out);
        }
        let (packet, is_last) = self.next_packet(at, &limits)?;
        let channel = self.shared.channels.table.get_mut(at)?;
        channel.is_confirmed = false;
        let psn = channel.tx.push(env.now, packet);
        if let (TxOwner::Request(request, _), true) = (packet.owner, packet.last)
            && let Some(request) = self.initiator.requests.get_mut(request)
        {
            request.last_psn = Some(psn);
        }
        limits.path.take(!matches!(packet.owner, TxOwner::Request(..)), packet.len);
        let ack_req = is_last || psn.get().is_multiple_of(ACK_EVERY) || channel.next_turn(&limits).is_none();
        self.send_packet(at, ChannelPacket { psn, packet, ack_req, lends }, env, out)
    }
    /// Whether a TAACK leaves next to which the acknowledgement that is due can be added.
    fn is_carried(&self, at: PoolRef, now: Nanos, limits: &TxLimits) -> bool {
        let Some(channel) = self.shared.channels.get(at) else { return false };
        let response = channel.carrier(now, limits).and_then(|at| self.shared.responses.get(at));
        response.is_some_and(|response| matches!(response.kind, ResponseKind::Ack { status, .. } if carries(status)))
    }
    /// Cuts the next new packet; also whether no other is ready.
    fn next_packet(&mut self, at: PoolRef, limits: &TxLimits) -> Option<(TxPacket, bool)> {
        loop {
            let channel = self.shared.channels.get_mut(at)?;
            let is_answer = channel.next_turn(limits)?;
            let owner = *channel.queue_of(is_answer).front()?;
            let cut = self.cut(at, owner);
            let channel = self.shared.channels.get_mut(at)?;
            let queue = channel.queue_of(is_answer);
            let Some((packet, is_done)) = cut else {
                // The request has an outcome already.
                queue.pop_front();
                continue;
            };
            channel.end_packet(is_answer, is_done);
            let is_last = channel.has_nothing_to_send();
            return Some((packet, is_last));
        }
    }
    /// The next packet of a message, and whether it is the last one.
    fn cut(&mut self, channel: PoolRef, owner: TxOwner) -> Option<(TxPacket, bool)> {
        let (mut busy_sent, mut busy_all, mut busy_tpmsn) = (0, false, 0);
        let mtu = u32::from(self.shared.channels.config.mtu);
        let (total, sent, all_sent, tpmsn) = match owner {
            TxOwner::Request(at, attempt) => {
                let request = self.initiator.requests.get_mut(at)?;
                if request.attempt != attempt || request.phase != RequestPhase::Issued {
                    return None;
                }
                (request.payload_len(), &mut request.sent, &mut request.all_sent, &mut request.tpmsn)
            }
            TxOwner::Response(at) => {
                let response = self.shared.responses.get_mut(at)?;
                response.unacked += 1;
                (response.payload_len(), &mut response.sent, &mut response.all_sent, &mut response.tpmsn)
            }
            TxOwner::Busy { .. } | TxOwner::Filler => (0, &mut busy_sent, &mut busy_all, &mut busy_tpmsn),
        };
        if *sent == 0 {
            *tpmsn = self.shared.channels.get_mut(channel)?.take_tpmsn();
        }
        let offset = *sent;
        let len = (total - offset).min(mtu);
        *sent += len;
        *all_sent = *sent == total;
        let packet = TxPacket { owner, offset, len: len as u16, last: *all_sent, tpmsn: *tpmsn };
        Some((packet, *all_sent))
    }
    /// Writes a packet of data, and tells its path.
    fn send_packet(
        &mut self,
        at: PoolRef,
        sent: ChannelPacket,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<UrmaTransmit> {
        let sent = self.write_packet(at, sent, env, out)?;
        let bytes = sent.len + sent.lent.map_or(0, |payload| payload.len());
        self.shared.channels.tell_sent(at, env, (1, bytes));
        Some(sent)
    }
    fn write_packet(
        &mut self,
        at: PoolRef,
        sent: ChannelPacket,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<UrmaTransmit> {
        let ChannelPacket { psn, packet, ack_req, lends } = sent;
        let dest = self.shared.channels.get(at)?.peer;
        // In place: headers are long.
        let mut head = UbHead::new(self.shared.channels.network_header(dest, NextLayer::Reliable));
        let source = self.transaction(&packet, &mut head.ta);
        let len = usize::from(packet.len);
        let channel = self.shared.channels.table.get_mut(at)?;
        if let (TxOwner::Response(_), Some(TaHeader::Response(response))) = (packet.owner, &mut head.ta)
            && response.opcode == TaOpcode::TaAck
            && carries(response.status)
            && let Some(arrived) = channel.acknowledgeable()
        {
            (response.acknowledges, response.offset) = (true, arrived.get());
            channel.acknowledged();
        }
        let (lane, path) = (channel.lane, channel.path);
        head.rtph = Some(channel.data_header(psn, &packet, ack_req));
        if self.shared.channels.config.caqm {
            head.nth.congestion = channel.window.stamp(u32::from(packet.len));
        }
        let head_len = head.emit(&Dialect::BURST, out);
        if lends && let Some(span) = self.lend(&source, len, env) {
            if let TxOwner::Request(request, _) = packet.owner
                && !packet.last
                && self.initiator.requests.get(request).is_some_and(SendRecord::has_one_head)
            {
                self.initiator.last_head.keep(at, packet.owner, &out[..head_len]);
            }
            return Some(UrmaTransmit { dest, lane, len: head_len, lent: Some(span), path });
        }
        let whole = |len| UrmaTransmit { path, ..UrmaTransmit::whole((dest, lane), len) };
        if matches!(source, PayloadSource::Nothing) {
            return Some(whole(head_len));
        }
        if self.read_payload(source, packet.offset, &mut out[head_len..head_len + len], env) {
            return Some(whole(head_len + len));
        }
        Some(whole(write_poisoned(&mut head, len, out)))
    }
    /// The memory in which a packet's payload is.
    #[inline]
    fn lend(&self, source: &PayloadSource, len: usize, env: &UrmaEnv<'_>) -> Option<Span> {
        let &PayloadSource::Segment { segment, addr } = source else { return None };
        let region = self.shared.objects.segments.held(segment, addr, len as u32)?;
        env.mem.lend(region, addr, len as u32)
    }
    /// Copies a packet's payload; false if the memory is gone.
    fn read_payload(&self, source: PayloadSource, offset: u32, out: &mut [u8], env: &mut UrmaEnv<'_>) -> bool {
        match source {
            PayloadSource::Nothing => true,
            PayloadSource::Inline(request) => self
                .initiator
                .requests
                .get(request)
                .is_some_and(|request| request.gather(&self.shared.objects.segments, env.mem, offset, out)),
            PayloadSource::Segment { segment, addr } => {
                let region = self.shared.objects.segments.held(segment, addr, out.len() as u32);
                region.is_some_and(|region| env.mem.read(region, addr, out).is_ok())
            }
            PayloadSource::Value(value) => {
                out.copy_from_slice(&value.to_be_bytes());
                true
            }
            PayloadSource::Echo(slot) => self.target.echo.read(slot, offset, out),
        }
    }
    /// Writes the transaction header; the source of the payload.
    #[inline]
    fn transaction(&self, packet: &TxPacket, ta: &mut Option<TaHeader>) -> PayloadSource {
        match packet.owner {
            TxOwner::Request(at, attempt) => {
                let Some(request) = self.initiator.requests.get(at).filter(|r| r.attempt == attempt) else {
                    return filler(ta);
                };
                *ta = Some(TaHeader::Request(request_header(
                    &self.shared.objects,
                    request,
                    packet.offset,
                    request.order_number.is_some(),
                )));
                match request.data {
                    _ if request.payload_len() == 0 => PayloadSource::Nothing,
                    WrData::Local(range) => {
                        PayloadSource::Segment { segment: request.segment, addr: range.addr + u64::from(packet.offset) }
                    }
                    WrData::Inline { .. } => PayloadSource::Inline(at),
                }
            }
            TxOwner::Response(at) => {
                let Some(response) = self.shared.responses.get(at) else { return filler(ta) };
                let (header, source) = response_header(response, packet.offset);
                *ta = Some(header);
                source
            }
            TxOwner::Busy { rc_id, tassn, mode } => {
                let status = UbStatus { status: UbStatus::RNR, info: BUSY_TIMER | UrmaRefusal::BUSY };
                let atah = Atah { status, mode, ..Atah::new(TaOpcode::TaAck, tassn, rc_id) };
                *ta = Some(TaHeader::Response(atah));
                PayloadSource::Nothing
            }
            TxOwner::Filler => filler(ta),
        }
    }
    /// Packets that [`UrmaNode::poll_tx_lent`] would give one by one, up to `count_max`. `None` says nothing: that function may
    /// have one. The head of each begins as [`UrmaNode::run_head`].
    pub fn poll_run(&mut self, env: &mut UrmaEnv<'_>, count_max: usize) -> Option<UrmaRun> {
        let at = *self.shared.channels.active.front()?;
        let is_other_due = !self.shared.channels.management.is_empty()
            || !self.initiator.unreliable.is_empty()
            || self.accesses.wants_tx();
        // C-AQM marks each packet by those before it.
        if is_other_due || self.shared.channels.config.caqm || count_max == 0 {
            return None;
        }
        let turn_left = u32::from(CHANNEL_TURN_PACKETS - self.shared.channels.channel_turn);
        let run = self.initiator.take_following(&mut self.shared, at, env, (count_max as u32).min(turn_left))?;
        let bytes = run.count() * self.initiator.last_head.head.bytes().len() + run.payload.len();
        self.shared.channels.tell_sent(at, env, (run.count, bytes));
        self.shared.channels.channel_turn += run.count as u8;
        self.shared.channels.end_turn(run.is_drained);
        Some(run)
    }
    /// The head of the packets of the run that was taken last, but for what [`UrmaRun::vary`] writes.
    pub fn run_head(&self) -> &[u8] {
        self.initiator.last_head.head.bytes()
    }
    /// There may be room on a path for channels that have waited for it ([`crate::UrmaPaths::wait`]).
    pub fn resume_path(&mut self, path: u32) {
        self.shared.channels.resume_path(path);
    }
    /// Takes channels that have ended off their paths.
    #[inline]
    pub fn leave_paths(&mut self, now: Nanos, paths: &mut dyn UrmaPaths) {
        if !self.shared.channels.left.is_empty() {
            self.shared.channels.leave_paths(now, paths);
        }
    }
    /// Takes all channels off their paths: the node is about to be dropped, or gets other paths.
    pub fn leave_all_paths(&mut self, now: Nanos, paths: &mut dyn UrmaPaths) {
        self.shared.channels.leave_all_paths(now, paths);
    }
    /// The time at which [`UrmaNode::on_timer`] must be called.
    pub fn next_deadline(&self) -> Nanos {
        if !self.shared.channels.sweeps.is_empty() {
            return Nanos(0);
        }
        self.shared.channels.timers.next()
    }
}

/// Whether a TAACK with this status has a field for an acknowledgement of packets: that of a deferred one names another PSN.
const fn carries(status: UbStatus) -> bool {
    status.status != UbStatus::FUSED
}

/// A packet of a channel that is sent now.
#[derive(Clone, Copy)]
struct ChannelPacket {
    psn: Psn,
    packet: TxPacket,
    ack_req: bool,
    /// Payload in registered memory is described, not copied.
    lends: bool,
}

/// Where a packet's payload comes from.
#[derive(Clone, Copy)]
enum PayloadSource {
    Nothing,
    /// Data in a request's record.
    Inline(PoolRef),
    /// Registered memory: its registration, and the first byte.
    Segment {
        segment: PoolRef,
        addr: u64,
    },
    Value(u64),
    /// What a peer has sent to the echo.
    Echo(u8),
}

/// What fills a PSN whose message has an outcome already: an acknowledgement of nothing.
fn filler(ta: &mut Option<TaHeader>) -> PayloadSource {
    *ta = Some(TaHeader::Response(Atah::new(TaOpcode::TaAck, 0, 0)));
    PayloadSource::Nothing
}

fn response_header(response: &ResponseRecord, offset: u32) -> (TaHeader, PayloadSource) {
    let base = |opcode| Atah { mode: response.mode, ..Atah::new(opcode, response.tassn, response.rc_id) };
    let grant =
        |atah: Atah, granted: Option<u16>| Atah { granted: granted.is_some(), context: granted.unwrap_or(0), ..atah };
    match response.kind {
        ResponseKind::Ack { status, also, granted } => {
            let info = if status.status == UbStatus::OK { also } else { status.info };
            let atah = Atah { status: UbStatus { info, ..status }, ..base(TaOpcode::TaAck) };
            (TaHeader::Response(grant(atah, granted)), PayloadSource::Nothing)
        }
        ResponseKind::Deferred { psn } => {
            let status = UbStatus { status: UbStatus::FUSED, info: DEFERRED };
            (TaHeader::Response(Atah { status, offset: psn.get(), ..base(TaOpcode::TaAck) }), PayloadSource::Nothing)
        }
        ResponseKind::Read { addr, segment, granted, len } => {
            let atah = Atah { offset, ..base(TaOpcode::ReadResponse) };
            let source = if len == 0 {
                PayloadSource::Nothing
            } else {
                PayloadSource::Segment { segment, addr: addr + u64::from(offset) }
            };
            (TaHeader::Response(grant(atah, granted)), source)
        }
        ResponseKind::Atomic { value, granted } => {
            (TaHeader::Response(grant(base(TaOpcode::AtomicResponse), granted)), PayloadSource::Value(value))
        }
        ResponseKind::Echo { slot, opcode, immediate, .. } => {
            let head = crate::urma_target::echo::echo_header(response, (opcode, immediate), offset);
            (TaHeader::Request(head), PayloadSource::Echo(slot))
        }
        ResponseKind::Disconnect { context } => {
            let base =
                Btah { context, rc_type: RC_TYPE_CONTEXT, ..Btah::new(TaOpcode::DisconnectContext, 0, response.rc_id) };
            (TaHeader::Request(TaRequest::new(base)), PayloadSource::Nothing)
        }
    }
}

/// Writes a packet whose payload is gone, and returns its length. The bytes are counted as sent, so that the peer's message
/// completes and is refused.
#[cold]
fn write_poisoned(head: &mut UbHead, len: usize, out: &mut [u8]) -> usize {
    match &mut head.ta {
        Some(TaHeader::Request(request)) => request.base.poison = true,
        Some(TaHeader::Response(response)) => response.poison = true,
        None => {}
    }
    let at = head.emit(&Dialect::BURST, out);
    out[at..at + len].fill(0);
    at + len
}
