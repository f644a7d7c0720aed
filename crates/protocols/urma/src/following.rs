//! Further packets of the message of which a packet was sent, or received, last.
//!
//! Most packets are of long messages. Their heads differ from the one before in a few bytes, and while a message has its turn
//! only the window applies of the rules of [`crate::transmit`], and of those of [`crate::receive`] and [`crate::messages`] only
//! the places of PSN and payload. If another one does, the packet takes the usual way: the outcome is the same.

use crate::api::{UrmaEnv, UrmaTransmit, WrData};
use crate::channels::CHANNEL_TURN_PACKETS;
use crate::channels::tx_window::{TxOwner, TxPacket};
use crate::heads::has_one_head;
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::RequestPhase;
use crate::transmit::ACK_EVERY;
use burst_base::{Nanos, Psn};
use burst_span::Span;
use burst_ubwire::{Cna, CongestionField, MessageHead};

/// Packets of a run at most: as many as there are bits for.
const RUN_MAX: u32 = 32;

/// Packets of one message that follow each other, of equal length. Their payload stays where it is.
#[derive(Clone, Copy, Debug)]
pub struct UrmaRun {
    /// Where to.
    pub dest: Cna,
    /// The lane.
    pub lane: u8,
    /// Payload of all packets.
    pub payload: Span,
    /// Bytes of each packet's payload.
    pub len: u16,
    psn: Psn,
    offset: u32,
    /// Number of packets.
    count: u32,
    /// Bit of each packet that asks for an acknowledgement.
    ack_reqs: u32,
    /// The last packet is its message's.
    is_last: bool,
    /// Nothing else waits on the channel.
    is_drained: bool,
}

impl UrmaRun {
    /// Number of packets.
    pub const fn count(&self) -> usize {
        self.count as usize
    }
    /// Writes what differs to the head of packet number `index`, from 0 on: the head is that of [`UrmaNode::run_head`].
    #[inline]
    pub fn vary(&self, index: u32, head: &mut [u8]) {
        let is_last = self.is_last && index + 1 == self.count;
        let offset = self.offset + index * u32::from(self.len);
        MessageHead::set(head, self.psn.add(index), (is_last, self.ack_reqs >> index & 1 != 0), offset);
    }
}

impl UrmaNode {
    /// The next packet of the channel whose turn it is, if it is of the message of the last one and nothing else is to be
    /// considered; also whether the channel has none left. `None` says nothing, and changes nothing.
    pub(crate) fn poll_following(
        &mut self,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<(UrmaTransmit, bool)> {
        let run = self.take_following(at, env, 1)?;
        let channel = self.shared.channels.table.get_mut(at)?;
        let is_caqm = self.shared.channels.config.caqm;
        let congestion = if is_caqm { channel.window.stamp(u32::from(run.len)) } else { CongestionField::default() };
        let len = self.last_head.head.emit(congestion, out);
        run.vary(0, out);
        Some((UrmaTransmit { dest: run.dest, lane: run.lane, len, lent: Some(run.payload) }, run.is_drained))
    }
    /// Packets that [`UrmaNode::poll_tx_lent`] would give one by one, up to `count_max`. `None` says nothing: that function may
    /// have one. The head of each begins as [`UrmaNode::run_head`].
    pub fn poll_run(&mut self, env: &mut UrmaEnv<'_>, count_max: usize) -> Option<UrmaRun> {
        let at = *self.shared.channels.active.front()?;
        let is_other_due =
            !self.shared.channels.management.is_empty() || !self.unreliable.is_empty() || self.accesses.wants_tx();
        // C-AQM marks each packet by those before it.
        if is_other_due || self.shared.channels.config.caqm || count_max == 0 {
            return None;
        }
        let turn_left = u32::from(CHANNEL_TURN_PACKETS - self.shared.channels.channel_turn);
        let run = self.take_following(at, env, (count_max as u32).min(turn_left))?;
        self.shared.channels.channel_turn += run.count as u8;
        self.shared.channels.end_turn(run.is_drained);
        Some(run)
    }
    /// The head of the packets of the run that was taken last, but for what [`UrmaRun::vary`] writes.
    pub fn run_head(&self) -> &[u8] {
        self.last_head.head.bytes()
    }
    /// Sends up to `count_max` packets of equal length, 1 at least, if they follow the last one.
    fn take_following(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>, count_max: u32) -> Option<UrmaRun> {
        let (kept_of, owner @ TxOwner::Request(request_at, attempt)) = self.last_head.of? else { return None };
        if kept_of != at {
            return None;
        }
        let channel = self.shared.channels.table.get_mut(at)?;
        let window = channel.window_bytes(&self.shared.channels.config);
        let has_turn = channel.queue.front() == Some(&owner) && channel.next_turn(window) == Some(false);
        if !has_turn || channel.owes_more_than_data(env.now) {
            return None;
        }
        let request = self.requests.get_mut(request_at)?;
        let WrData::Local(range) = request.data else { return None };
        let is_going_on = request.attempt == attempt && request.phase == RequestPhase::Issued && request.sent > 0;
        if !is_going_on || !has_one_head(request) {
            return None;
        }
        let (offset, left) = (request.sent, range.len - request.sent);
        let len = left.min(u32::from(self.shared.channels.config.mtu));
        let bytes = len * (left / len.max(1)).clamp(1, count_max.min(RUN_MAX));
        let addr = range.addr + u64::from(offset);
        let span = env.mem.lend(self.shared.objects.segments.held(request.segment, addr, bytes)?, addr, bytes)?;

        let first = channel.tx.next_psn();
        let mut run = UrmaRun {
            dest: channel.peer,
            lane: channel.lane,
            payload: span,
            len: len as u16,
            psn: first,
            offset,
            count: 0,
            ack_reqs: 0,
            is_last: false,
            is_drained: false,
        };
        // As behind any other packet: one more in flight does not change the deadline.
        let is_first = channel.tx.packets() == 0 || channel.timer_at == Nanos::NEVER;
        channel.is_confirmed = false;
        let mut goes_on = true;
        while goes_on && run.count * len < bytes {
            request.sent += len;
            run.is_last = request.sent == range.len;
            let offset = request.sent - len;
            let packet = TxPacket { owner, offset, len: run.len, last: run.is_last, tpmsn: request.tpmsn };
            let psn = channel.tx.push(env.now, packet);
            goes_on = !channel.end_packet(false, run.is_last) || channel.is_only(owner);
            let next = channel.next_turn(window);
            run.is_drained = channel.has_nothing_to_send();
            let ack_req = run.is_drained || psn.get().is_multiple_of(ACK_EVERY) || next.is_none();
            run.ack_reqs |= u32::from(ack_req) << run.count;
            run.count += 1;
            goes_on &= next == Some(false);
        }
        run.payload = span.sub(0, (run.count * len) as usize);
        if run.is_last {
            (request.all_sent, request.last_psn) = (true, Some(first.add(run.count - 1)));
        }
        if is_first {
            self.shared.channels.arm_channel(at, env.now);
        }
        Some(run)
    }
}
