//! Further packets of the message of which a packet was sent last.
//!
//! Most packets are of long messages. Their heads differ from the one before in a few bytes, and while a message has its turn
//! only the window applies of the rules of [`crate::node::transmit`]. If another one does, the packet takes the usual way: the
//! outcome is the same.

use crate::api::{UrmaEnv, UrmaTransmit};
use crate::channels::channel::{ACK_EVERY, TpChannel};
use crate::channels::tx_window::{TxLimits, TxOwner, TxPacket};
use crate::initiator::Initiator;
use crate::initiator::send_record::SendRecord;
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use burst_base::{Nanos, Psn};
use burst_span::Span;
use burst_ubwire::{CongestionField, MessageHead};

/// Packets of a run at most: as many as there are bits for.
const RUN_MAX: u32 = 32;

/// Packets of one message that follow each other, of equal length. Their payload stays where it is.
#[derive(Clone, Copy, Debug)]
pub struct UrmaRun {
    /// Where to.
    pub dest: NodeEid,
    /// The lane.
    pub lane: u8,
    /// The path of the channel.
    pub path: u32,
    /// Payload of all packets.
    pub payload: Span,
    /// Bytes of each packet's payload.
    pub len: u16,
    psn: Psn,
    offset: u32,
    /// Number of packets.
    pub(crate) count: u32,
    /// Bit of each packet that asks for an acknowledgement.
    ack_reqs: u32,
    /// The last packet is its message's.
    is_last: bool,
    /// Nothing else waits on the channel.
    pub(crate) is_drained: bool,
}

impl UrmaRun {
    /// Number of packets.
    pub const fn count(&self) -> usize {
        self.count as usize
    }
    /// Adds the next packet of a request. False: it is the last one of its turn.
    #[inline]
    fn push(&mut self, channel: &mut TpChannel, request: &mut SendRecord, turn: &mut RunTurn) -> bool {
        debug_assert!(self.count < RUN_MAX && !self.is_last);
        let offset = request.sent;
        request.sent += u32::from(self.len);
        self.is_last = request.sent == request.data.len();
        let packet = TxPacket { owner: turn.owner, offset, len: self.len, last: self.is_last, tpmsn: request.tpmsn };
        let psn = channel.tx.push(turn.now, packet);
        let goes_on = !channel.end_packet(false, self.is_last) || channel.is_only(turn.owner);
        turn.limits.path.take(false, self.len);
        let next = channel.next_turn(&turn.limits);
        self.is_drained = channel.has_nothing_to_send();
        let ack_req = self.is_drained || psn.get().is_multiple_of(ACK_EVERY) || next.is_none();
        self.ack_reqs |= u32::from(ack_req) << self.count;
        self.count += 1;
        goes_on && next == Some(false)
    }
    /// Writes what differs to the head of packet number `index`, from 0 on: the head is that of [`crate::UrmaNode::run_head`].
    #[inline]
    pub fn vary(&self, index: u32, head: &mut [u8]) {
        let is_last = self.is_last && index + 1 == self.count;
        let offset = self.offset + index * u32::from(self.len);
        MessageHead::set(head, self.psn.add(index), (is_last, self.ack_reqs >> index & 1 != 0), offset);
    }
}

/// The head of a packet that was sent, of a message from registered memory; `of` says whether it is that of a packet to come.
#[derive(Debug, Default)]
pub(crate) struct LastHead {
    /// Channel, request and its attempt.
    pub(crate) of: Option<(PoolRef, TxOwner)>,
    pub(crate) head: MessageHead,
}

impl LastHead {
    /// A packet of a request leaves with this head, and others of its message follow.
    pub(crate) fn keep(&mut self, channel: PoolRef, owner: TxOwner, head: &[u8]) {
        self.of = Some((channel, owner));
        self.head.keep(head);
    }
}

/// The turn of a message on its channel.
struct RunTurn {
    owner: TxOwner,
    limits: TxLimits,
    now: Nanos,
}

impl RunTurn {
    /// The turn of a request on its channel. `None`: it has none, or something else is to be considered.
    #[inline]
    fn of(node: &mut NodeShared, (at, owner): (PoolRef, TxOwner), env: &mut UrmaEnv<'_>) -> Option<RunTurn> {
        let channel = node.channels.table.get(at)?;
        if channel.queue.front() != Some(&owner) || channel.owes_more_than_data(env.now) {
            return None;
        }
        let limits = node.channels.limits(at, env)?;
        let has_turn = node.channels.table.get(at)?.next_turn(&limits) == Some(false);
        has_turn.then_some(RunTurn { owner, limits, now: env.now })
    }
}

impl Initiator {
    /// The next packet of the channel whose turn it is, if it is of the message of the last one and nothing else is to be
    /// considered; also whether the channel has none left. `None` says nothing, and changes nothing.
    pub(crate) fn poll_following(
        &mut self,
        node: &mut NodeShared,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<(UrmaTransmit, bool)> {
        let run = self.take_following(node, at, env, 1)?;
        let channel = node.channels.table.get_mut(at)?;
        let is_caqm = node.channels.config.caqm;
        let congestion = if is_caqm { channel.window.stamp(u32::from(run.len)) } else { CongestionField::default() };
        let len = self.last_head.head.emit(congestion, out);
        run.vary(0, out);
        let sent = UrmaTransmit { dest: run.dest, lane: run.lane, len, lent: Some(run.payload), path: run.path };
        node.channels.tell_sent(at, env, (1, len + run.payload.len()));
        Some((sent, run.is_drained))
    }
    /// Sends up to `count_max` packets of equal length, 1 at least, if they follow the last one.
    pub(crate) fn take_following(
        &mut self,
        node: &mut NodeShared,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        count_max: u32,
    ) -> Option<UrmaRun> {
        let (kept_of, owner @ TxOwner::Request(request_at, attempt)) = self.last_head.of? else { return None };
        if kept_of != at {
            return None;
        }
        let mut turn = RunTurn::of(node, (at, owner), env)?;
        let channel = node.channels.table.get_mut(at)?;
        let request = self.requests.get_mut(request_at)?;
        let range = request.further_data(attempt)?;
        let (offset, left) = (request.sent, range.len - request.sent);
        let len = left.min(u32::from(node.channels.config.mtu));
        let bytes = len * (left / len.max(1)).clamp(1, count_max.min(RUN_MAX));
        let addr = range.addr + u64::from(offset);
        let span = env.mem.lend(node.objects.segments.held(request.segment, addr, bytes)?, addr, bytes)?;

        let first = channel.tx.next_psn();
        let mut run = UrmaRun {
            dest: channel.peer,
            lane: channel.lane,
            path: channel.path,
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
        while run.count * len < bytes && run.push(channel, request, &mut turn) {}
        run.payload = span.sub(0, (run.count * len) as usize);
        if run.is_last {
            (request.all_sent, request.last_psn) = (true, Some(first.add(run.count - 1)));
        }
        if is_first {
            node.channels.arm_channel(at, env.now);
        }
        Some(run)
    }
}
