//! The end of a channel, and sweeps: work on all requests of a channel, done in parts.
//!
//! A node keeps up to a million requests, and thousands of its channels may fail at the same time. So nothing looks at the
//! requests of all channels: each channel has a list of its own ([`crate::pool::PoolList`]). And no call handles a whole list:
//! [`UrmaNode::on_timer`] takes a part of it, at most about [`PASS_STEPS`] requests, and is due again at once
//! ([`UrmaNode::next_deadline`]) until all is done. Channels take turns, so that a short list does not wait for a long one.
//!
//! A channel that has failed is removed at once, with all that its peer has under way here. Its list of requests is kept until
//! each of them has moved to another lane, was taken back because the peer has restarted, or has failed. Meanwhile nothing can
//! happen to them but the end of their Jetty: packets, acknowledgements and timers find no channel.

use crate::api::{CrStatus, JettyState, UrmaEnv};
use crate::lanes::LaneHealth;
use crate::node::UrmaNode;
use crate::pool::{PoolList, PoolRef};
use crate::records::{RequestPhase, SendRecord};
use crate::tx_window::TxOwner;
use burst_ubwire::Cna;
use std::collections::{HashMap, VecDeque};

/// Requests, packets and timers that one call of [`UrmaNode::on_timer`] handles before others go on. Tens of microseconds.
pub(crate) const PASS_STEPS: u64 = 1024;
/// Requests of one channel in its turn.
const TURN_REQUESTS: usize = 256;

/// Why a channel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelEnd {
    /// The peer does not answer, or has ended it.
    Failed,
    /// The peer has restarted: requests of which nothing was sent leave on a new channel.
    Restarted,
}

/// A channel that has ended, and whose requests have not.
#[derive(Debug)]
struct EndedChannel {
    peer: Cna,
    why: ChannelEnd,
    requests: PoolList,
}

/// What is done with the requests of a channel.
#[derive(Clone, Copy, Debug)]
enum SweepKind {
    /// The channel has ended.
    End,
    /// The lane is silent: what may go on on another one that is at least this healthy does.
    Relieve(LaneHealth),
    /// Another lane was heard for the first time: it takes its share of what is not sent.
    Share(PoolRef),
}

#[derive(Clone, Copy, Debug)]
struct Sweep {
    channel: PoolRef,
    kind: SweepKind,
    /// Requests that were in the list when the sweep began, and have not been looked at. Those behind them are newer.
    left: u32,
}

/// Sweeps that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    queue: VecDeque<Sweep>,
    ended: HashMap<PoolRef, EndedChannel, foldhash::fast::RandomState>,
    /// Requests, packets and timers that calls of [`UrmaNode::on_timer`] have handled.
    pub(crate) steps: u64,
}

impl Sweeps {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// The list of a channel that has ended.
    #[cold]
    pub(crate) fn list_of(&mut self, channel: PoolRef) -> Option<&mut PoolList> {
        self.ended.get_mut(&channel).map(|ended| &mut ended.requests)
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Sweep>() + self.ended.capacity() * size_of::<(PoolRef, EndedChannel)>()
    }
}

impl UrmaNode {
    /// A channel has failed, or its peer has started a new one: all that used it ends. Its requests end in later calls of
    /// [`UrmaNode::on_timer`].
    pub(crate) fn end_lane(&mut self, at: PoolRef, why: ChannelEnd) {
        let Some(channel) = self.channels.remove(at) else { return };
        let (peer, key) = (channel.peer, (channel.peer, channel.lane));
        if self.by_peer.get(&key) == Some(&at) {
            self.by_peer.remove(&key);
        }
        // Its place in `active` is found vacant when it has its turn.
        let messages: Vec<PoolRef> = self.inbound.listed(channel.messages).collect();
        for message in messages {
            if let Some(tpmsn) = self.inbound.get(message).map(|message| message.tpmsn) {
                self.inbound_keys.remove(&(at.index(), tpmsn));
            }
            self.drop_inbound(message);
        }
        let contexts: Vec<PoolRef> = self.contexts.listed(channel.context_list).collect();
        for context in contexts {
            self.remove_context(context);
        }
        // A response waits for its turn, or has packets in flight.
        for owner in channel.answers.iter().copied().chain(channel.tx.owners()) {
            if let TxOwner::Response(response) = owner {
                self.responses.discard(response);
            }
        }
        if self.lanes_to(peer).next().is_none() {
            self.forget_rests(peer);
        }
        if !channel.requests.is_empty() {
            self.sweeps.ended.insert(at, EndedChannel { peer, why, requests: channel.requests });
            self.sweeps.queue.push_back(Sweep { channel: at, kind: SweepKind::End, left: 0 });
        }
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
        let Some(record) = self.channels.get_mut(channel) else { return };
        if record.unanswered > 0 && !record.is_swept {
            record.is_swept = true;
            self.sweeps.queue.push_back(Sweep { channel, kind, left: record.unanswered });
        }
    }
    /// Handles about [`PASS_STEPS`] requests of the channels that are swept.
    pub(crate) fn run_sweeps(&mut self, env: &mut UrmaEnv<'_>) {
        let limit = self.sweeps.steps + PASS_STEPS;
        while self.sweeps.steps < limit
            && let Some(sweep) = self.sweeps.queue.pop_front()
        {
            let rest = match sweep.kind {
                SweepKind::End => self.end_some(sweep.channel, env).then_some(sweep),
                _ => self.move_some(sweep),
            };
            match rest {
                Some(rest) => self.sweeps.queue.push_back(rest),
                None => {
                    if let Some(channel) = self.channels.get_mut(sweep.channel) {
                        channel.is_swept = false;
                    }
                }
            }
        }
    }
    /// Ends the first requests of a channel that has ended. True if there are more.
    fn end_some(&mut self, channel: PoolRef, env: &mut UrmaEnv<'_>) -> bool {
        let Some(&EndedChannel { peer, why, requests }) = self.sweeps.ended.get(&channel) else { return false };
        let first = self.requests.listed(requests).take(TURN_REQUESTS).collect();
        let mut taken_back = Vec::new();
        for at in self.in_posting_order(first) {
            self.sweeps.steps += 1;
            // The outcome of one before it may have ended it.
            let Some(request) = self.requests.get(at).filter(|r| r.channel == channel && r.is_under_way()) else {
                continue;
            };
            if why == ChannelEnd::Restarted && request.is_unsent() && request.abandoned.is_none() {
                taken_back.extend(self.take_back(at));
            } else if self.may_move(request)
                && let Some((to, _)) = self.best_lane(peer, LaneHealth::Silent)
            {
                self.move_request(at, to);
            } else {
                self.end_request(at, env);
            }
        }
        taken_back.dedup();
        for jetty in taken_back {
            self.issue_at(jetty, env.now);
        }
        if self.sweeps.ended.get(&channel).is_some_and(|ended| !ended.requests.is_empty()) {
            return true;
        }
        self.sweeps.ended.remove(&channel);
        false
    }
    /// A request fails with its channel.
    fn end_request(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(jetty) = self.requests.get(at).map(|request| request.jetty) else { return };
        let is_suspended =
            |record: &crate::objects::records::Jetty| record.config.error_suspend && record.state == JettyState::Ready;
        // Before the answer, which would issue the next request.
        if self.shared.objects.jetties.get(jetty).is_some_and(is_suspended) {
            self.stop_jetty(jetty, JettyState::Suspended, env.fx);
        }
        self.answer(at, CrStatus::AckTimeout, env);
    }
    /// Moves the first requests of a lane to others, as far as they may. Returns the rest of the sweep.
    fn move_some(&mut self, sweep: Sweep) -> Option<Sweep> {
        let Sweep { channel: from, kind, left } = sweep;
        let channel = self.channels.get_mut(from)?;
        let peer = channel.peer;
        let first = self.requests.listed(channel.requests).take(TURN_REQUESTS.min(left as usize));
        let first: Vec<PoolRef> = first.collect();
        // Those that stay are not looked at again.
        for at in &first {
            self.requests.take_out(&mut channel.requests, *at);
            self.requests.push_back(&mut channel.requests, *at);
        }
        let left = left.saturating_sub(first.len() as u32);
        let is_last = first.is_empty() || left == 0;
        for at in self.in_posting_order(first) {
            self.sweeps.steps += 1;
            let Some(request) = self.requests.get(at).filter(|request| self.may_move(request)) else { continue };
            match kind {
                SweepKind::Share(to) => {
                    if request.is_unsent() && !request.alloc && self.is_lighter(request, to)? {
                        self.move_request(at, to);
                    }
                }
                SweepKind::Relieve(worst) => match self.best_lane(peer, worst) {
                    Some((to, _)) if to != from => self.move_request(at, to),
                    _ => return None,
                },
                SweepKind::End => {}
            }
        }
        (!is_last).then_some(Sweep { left, ..sweep })
    }
    /// Requests in posting order for each Jetty (a Jetty has fewer than 2^15 outstanding).
    fn in_posting_order(&self, mut list: Vec<PoolRef>) -> Vec<PoolRef> {
        let key = |at: &PoolRef| self.requests.get(*at).map_or((0, 0), |r| (r.jetty.index(), r.tassn));
        list.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then((a.1.wrapping_sub(b.1) as i16).cmp(&0))
        });
        list
    }
    /// Requests, packets and timers that calls of [`UrmaNode::on_timer`] have handled since the node was made. One call handles a
    /// bounded number, however many there are.
    pub const fn timer_steps(&self) -> u64 {
        self.sweeps.steps
    }
}

impl SendRecord {
    /// Whether it is issued and not answered.
    fn is_under_way(&self) -> bool {
        matches!(self.phase, RequestPhase::Issued | RequestPhase::Waiting)
    }
    /// Whether it is issued, and no packet of this attempt was sent.
    fn is_unsent(&self) -> bool {
        self.phase == RequestPhase::Issued && self.sent == 0 && !self.all_sent
    }
}
