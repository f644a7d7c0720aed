//! Lanes: several channels to one peer (a TP group), which take different paths through the network.
//!
//! Each lane is a channel with its own numbers, windows, loss recovery and congestion window. Lane 0 opens with the first
//! request. A further one begins to open when a request is issued while all open ones have something to do, one after the
//! other, up to the fewer of both nodes' numbers; each message that opens a channel says how many lanes its sender takes.
//!
//! **Choice**, for each request: the open lane with the least load (bytes of unanswered requests, in either direction)
//! relative to its window. Lanes on which nothing has come yet, or not in the last time-out, are taken only if there is no
//! other. Requests of a sequence context and all of ROL stay on the lane of their stream ([`crate::initiator::order`]). Answers
//! leave on the lane of the request.
//!
//! **Failure.** A packet is executed once because a channel takes each PSN once; lanes know nothing of each other's PSNs. So a
//! request goes on on another lane only if it has not been executed on its own, or may be executed twice: one of which nothing
//! was sent, one that was refused and waits, and a READ. Others end with their lane. They move when a lane fails, and before
//! that when it was silent for [`SILENT_TRIES`] time-outs. Requests of a sequence context but its first do not move: the
//! context ends with the lane. A failed lane may open again after [`REST`], doubling with each failure.

use crate::channels::Channels;
use crate::channels::channel::{ChannelState, LaneHealth, TpChannel};
use crate::channels::management::TpMessageKind;
use crate::channels::sweeps::{ChannelEnd, Sweep, SweepKind};
use crate::channels::tx_window::TxOwner;
use crate::initiator::send_record::SendRecord;
use crate::node_eid::NodeEid;
use crate::pool::PoolRef;
use burst_base::Nanos;

/// Time-outs in silence after which requests of a lane that may go on on another one do so, if that is heard.
const SILENT_TRIES: u8 = 3;
/// REQUESTs without answer after which the next lane is tried.
const ASKS: u8 = 3;
/// How long a lane that has failed is not opened.
const REST: Nanos = Nanos(1_000_000_000);
/// It doubles up to this often.
const REST_SHIFT_MAX: u8 = 6;

/// A lane that has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRest {
    again_at: Nanos,
    failures: u8,
}

impl Channels {
    /// The channels to a peer, by lane.
    pub(crate) fn lanes_to(&self, peer: NodeEid) -> impl Iterator<Item = (PoolRef, &TpChannel)> {
        let lanes = self.by_peer.range((peer, 0)..=(peer, u8::MAX));
        lanes.filter_map(|(_, at)| self.table.get(*at).map(|channel| (*at, channel)))
    }
    /// The channel for a request to a peer; a new one begins to open. `None` if there are too many.
    pub(crate) fn channel_to(&mut self, peer: NodeEid, now: Nanos) -> Option<PoolRef> {
        if self.config.lanes == 1 {
            return self.by_peer.get(&(peer, 0)).copied().or_else(|| self.open_lane(peer, 0, now));
        }
        let Some((at, channel)) = self.best_lane(peer, LaneHealth::Opening) else {
            return self.open_lane(peer, 0, now);
        };
        if channel.load > 0 && channel.state == ChannelState::Open {
            self.open_further(peer, now);
        }
        Some(at)
    }
    /// Bytes that may be in flight on a channel.
    fn window(&self, channel: &TpChannel) -> u64 {
        u64::from(if self.config.caqm { channel.window.bytes() } else { self.config.window_max.max(1) })
    }
    /// The lane with the least load relative to its window, among the healthiest ones, which are at least so healthy.
    pub(crate) fn best_lane(&self, peer: NodeEid, worst: LaneHealth) -> Option<(PoolRef, &TpChannel)> {
        let lanes = self.lanes_to(peer).filter(|(_, channel)| channel.health() <= worst);
        lanes.min_by(|(_, a), (_, b)| {
            let loads = (a.load * self.window(b)).cmp(&(b.load * self.window(a)));
            a.health().cmp(&b.health()).then(loads)
        })
    }
    /// Whether the table of channels has room for a lane that is not the first one of its peer: those leave half of it to the
    /// first ones.
    pub(crate) fn has_lane_room(&self) -> bool {
        self.table.len() * 2 < self.config.channels_max
    }
    /// Begins to open the next lane to a peer, unless one is being opened.
    fn open_further(&mut self, peer: NodeEid, now: Nanos) {
        let is_opening = |channel: &TpChannel| channel.state == ChannelState::Opening && channel.asks < ASKS;
        let count = self.lanes_of_both(peer);
        let is_full = self.by_peer.range((peer, 0)..(peer, count)).count() >= usize::from(count);
        if is_full || !self.has_lane_room() || self.lanes_to(peer).any(|(_, channel)| is_opening(channel)) {
            return;
        }
        let may_open = |lane: &u8| {
            let rest = self.rests.get(&(peer, *lane));
            !self.by_peer.contains_key(&(peer, *lane)) && rest.is_none_or(|rest| rest.again_at <= now)
        };
        if let Some(lane) = (0..count).find(may_open) {
            self.open_lane(peer, lane, now);
        }
    }
    /// Lanes that both nodes take; as many as this one if nothing is known of the peer.
    fn lanes_of_both(&self, peer: NodeEid) -> u8 {
        let open = self.lanes_to(peer).filter(|(_, channel)| channel.state == ChannelState::Open);
        open.map(|(_, channel)| channel.peer_lanes)
            .max()
            .map_or(self.config.lanes, |lanes| lanes.min(self.config.lanes))
    }
    fn open_lane(&mut self, peer: NodeEid, lane: u8, now: Nanos) -> Option<PoolRef> {
        let at = self.new_channel(peer, lane)?;
        self.table.get_mut(at)?.ask_at = now;
        self.activate(at);
        self.arm_channel(at, now);
        Some(at)
    }
    pub(crate) fn new_channel(&mut self, peer: NodeEid, lane: u8) -> Option<PoolRef> {
        self.incarnations += 1;
        let channel = TpChannel::new((peer, lane), self.incarnations, &self.config, &mut self.rng);
        let at = self.table.insert(channel).ok()?;
        let high = self.rng.next_u32() & 0xff;
        let rest = self.rests.remove(&(peer, lane));
        if let Some(channel) = self.table.get_mut(at) {
            channel.local_tpn = high << 16 | at.index();
            channel.failures = rest.map_or(0, |rest| rest.failures);
        }
        let before = self.by_peer.insert((peer, lane), at);
        debug_assert!(before.is_none(), "a lane has two channels");
        Some(at)
    }
    /// A lane is about to fail. If there are others, it is not opened again for a while.
    pub(crate) fn rest_lane(&mut self, at: PoolRef, now: Nanos) {
        let Some(channel) = self.table.get(at) else { return };
        let (key, failures) = ((channel.peer, channel.lane), channel.failures);
        if self.open_beside(at, key.0).next().is_some() {
            let again_at = now + Nanos(REST.0 << failures.min(REST_SHIFT_MAX));
            self.rests.insert(key, LaneRest { again_at, failures: failures.saturating_add(1) });
        }
    }
    /// The peer is told on all other lanes that one ends: its end would take requests and lose them.
    pub(crate) fn tell_end(&mut self, at: PoolRef) {
        let Some(channel) = self.table.get(at).filter(|channel| channel.state == ChannelState::Open) else { return };
        let echo = (channel.peer_tpn, channel.peer_incarnation);
        let (peer, message) = (channel.peer, channel.message(TpMessageKind::End, echo, &self.config));
        let others: Vec<u8> = self.open_beside(at, peer).collect();
        for lane in others {
            self.push_management_on(peer, lane, message);
        }
    }
    /// The other open lanes.
    fn open_beside(&self, at: PoolRef, peer: NodeEid) -> impl Iterator<Item = u8> {
        let is_open = |channel: &TpChannel| channel.state == ChannelState::Open;
        self.lanes_to(peer).filter(move |(other, channel)| *other != at && is_open(channel)).map(|(_, c)| c.lane)
    }
    /// Closes channels to earlier incarnations of the peer, after a message of the incarnation `life`.
    pub(crate) fn end_former_lives(&mut self, peer: NodeEid, life: u8) {
        if self.config.lanes == 1 {
            return;
        }
        let is_former = |channel: &TpChannel| channel.state == ChannelState::Open && channel.peer_life != life;
        let former: Vec<PoolRef> = self.lanes_to(peer).filter(|(_, c)| is_former(c)).map(|(at, _)| at).collect();
        for at in former {
            self.end(at, ChannelEnd::Failed);
        }
    }
    /// A time-out of a lane has passed without a sign of the peer.
    pub(crate) fn lane_is_silent(&mut self, at: PoolRef, now: Nanos) {
        if self.config.lanes == 1 {
            return;
        }
        let Some(channel) = self.table.get(at) else { return };
        let peer = channel.peer;
        match channel.state {
            // The path of this lane may be the only one that is broken.
            ChannelState::Opening if channel.asks >= ASKS => self.open_further(peer, now),
            ChannelState::Open
                if channel.tx.silent_tries() >= SILENT_TRIES || channel.is_doubted && channel.asks >= ASKS =>
            {
                self.relieve(at, LaneHealth::Heard);
            }
            _ => {}
        }
    }
    /// A lane has opened. A packet of nothing shows both ends that the path carries data.
    pub(crate) fn lane_is_open(&mut self, at: PoolRef, peer: NodeEid) {
        if self.config.lanes == 1 {
            return;
        }
        let is_opening = |channel: &TpChannel| channel.state == ChannelState::Opening && channel.unanswered > 0;
        let opening: Vec<PoolRef> =
            self.lanes_to(peer).filter(|(_, channel)| is_opening(channel)).map(|(at, _)| at).collect();
        for other in opening {
            self.relieve(other, LaneHealth::Silent);
        }
        if self.table.get(at).is_some_and(|channel| channel.queue.is_empty()) {
            self.enqueue(at, TxOwner::Filler);
        }
    }
    /// The first packet of the peer has come on a lane: it takes its share of what the others have not begun to send, and the
    /// next lane may open.
    pub(crate) fn lane_is_heard(&mut self, at: PoolRef, peer: NodeEid, now: Nanos) {
        if self.config.lanes == 1 {
            return;
        }
        let others: Vec<PoolRef> = self.lanes_to(peer).map(|(other, _)| other).filter(|other| *other != at).collect();
        for other in others {
            self.share(other, at);
        }
        if self.best_lane(peer, LaneHealth::Heard).is_some_and(|(_, channel)| channel.unanswered > 1) {
            self.open_further(peer, now);
        }
    }
    /// No lane to a peer is left: the next one opens at once.
    pub(crate) fn forget_rests(&mut self, peer: NodeEid) {
        let resting: Vec<(NodeEid, u8)> = self.rests.range((peer, 0)..=(peer, u8::MAX)).map(|(key, _)| *key).collect();
        for key in resting {
            self.rests.remove(&key);
        }
    }
    /// Whether a lane would still have less to do than the present one of a request if it took it. `None`: there is no such lane.
    pub(crate) fn is_lighter(&self, request: &SendRecord, to: PoolRef) -> Option<bool> {
        let (from, to) = (self.table.get(request.channel)?, self.table.get(to)?);
        Some((to.load + request.load()) * self.window(from) < from.load * self.window(to))
    }
    /// Moves the requests of a lane that may go on on another one, which is at least this healthy.
    pub(crate) fn relieve(&mut self, from: PoolRef, worst: LaneHealth) {
        self.begin_sweep(from, SweepKind::Relieve(worst));
    }
    /// A lane takes its share of the requests of another one that has not begun to send them.
    pub(crate) fn share(&mut self, from: PoolRef, to: PoolRef) {
        self.begin_sweep(from, SweepKind::Share(to));
    }
    fn begin_sweep(&mut self, channel: PoolRef, kind: SweepKind) {
        let Some(record) = self.table.get_mut(channel) else { return };
        if record.unanswered > 0 && !record.is_swept {
            record.is_swept = true;
            self.sweeps.queue.push_back(Sweep { channel, kind, left: record.unanswered });
        }
    }
}
