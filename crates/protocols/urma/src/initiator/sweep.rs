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
use crate::channels::channel::LaneHealth;
use crate::channels::sweeps::{ChannelEnd, EndedChannel, PASS_STEPS, Sweep, SweepKind, TURN_REQUESTS};
use crate::channels::tx_window::TxOwner;
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_shared::NodeShared;
use crate::objects::records::StreamState;
use crate::pool::PoolRef;
use burst_ubwire::TaOpcode;

impl Initiator {
    /// Handles about [`PASS_STEPS`] requests of the channels that are swept.
    pub(crate) fn run_sweeps(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>) {
        let limit = node.channels.sweeps.steps + PASS_STEPS;
        while node.channels.sweeps.steps < limit
            && let Some(sweep) = node.channels.sweeps.queue.pop_front()
        {
            let rest = match sweep.kind {
                SweepKind::End => self.end_some(node, sweep.channel, env).then_some(sweep),
                _ => self.move_some(node, sweep),
            };
            match rest {
                Some(rest) => node.channels.sweeps.queue.push_back(rest),
                None => {
                    if let Some(channel) = node.channels.get_mut(sweep.channel) {
                        channel.is_swept = false;
                    }
                }
            }
        }
    }
    /// Ends the first requests of a channel that has ended. True if there are more.
    fn end_some(&mut self, node: &mut NodeShared, channel: PoolRef, env: &mut UrmaEnv<'_>) -> bool {
        let Some(&EndedChannel { peer, why, requests }) = node.channels.sweeps.ended.get(&channel) else {
            return false;
        };
        let first = self.requests.listed(requests).take(TURN_REQUESTS).collect();
        let mut taken_back = Vec::new();
        for at in self.in_posting_order(first) {
            node.channels.sweeps.steps += 1;
            // The outcome of one before it may have ended it.
            let Some(request) = self.requests.get(at).filter(|r| r.channel == channel && r.is_under_way()) else {
                continue;
            };
            if why == ChannelEnd::Restarted && request.is_unsent() && request.abandoned.is_none() {
                taken_back.extend(self.take_back(node, at));
            } else if may_move(node, request)
                && let Some((to, _)) = node.channels.best_lane(peer, LaneHealth::Silent)
            {
                self.move_request(node, at, to);
            } else {
                self.end_request(node, at, env);
            }
        }
        taken_back.dedup();
        for jetty in taken_back {
            self.issue_at(node, jetty, env.now);
        }
        if node.channels.sweeps.ended.get(&channel).is_some_and(|ended| !ended.requests.is_empty()) {
            return true;
        }
        node.channels.sweeps.ended.remove(&channel);
        false
    }
    /// A request fails with its channel.
    fn end_request(&mut self, node: &mut NodeShared, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(jetty) = self.requests.get(at).map(|request| request.jetty) else { return };
        let is_suspended =
            |record: &crate::objects::records::Jetty| record.config.error_suspend && record.state == JettyState::Ready;
        // Before the answer, which would issue the next request.
        if node.objects.jetties.get(jetty).is_some_and(is_suspended) {
            self.stop_jetty(node, jetty, JettyState::Suspended, env.fx);
        }
        self.answer(node, at, CrStatus::AckTimeout, env);
    }
    /// Moves the first requests of a lane to others, as far as they may. Returns the rest of the sweep.
    fn move_some(&mut self, node: &mut NodeShared, sweep: Sweep) -> Option<Sweep> {
        let Sweep { channel: from, kind, left } = sweep;
        let channel = node.channels.get_mut(from)?;
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
            node.channels.sweeps.steps += 1;
            let Some(request) = self.requests.get(at).filter(|request| may_move(node, request)) else { continue };
            match kind {
                SweepKind::Share(to) => {
                    if request.is_unsent() && !request.alloc && node.channels.is_lighter(request, to)? {
                        self.move_request(node, at, to);
                    }
                }
                SweepKind::Relieve(worst) => match node.channels.best_lane(peer, worst) {
                    Some((to, _)) if to != from => self.move_request(node, at, to),
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
    pub(crate) fn move_request(&mut self, node: &mut NodeShared, at: PoolRef, to: PoolRef) {
        let Some(request) = self.requests.get(at) else { return };
        if let Some(list) = node.channels.end_request(request) {
            self.requests.take_out(list, at);
        }
        let Some(request) = self.requests.get_mut(at) else { return };
        request.channel = to;
        if let Some(channel) = node.channels.get_mut(to) {
            channel.begin(request);
            self.requests.push_back(&mut channel.requests, at);
        }
        let Some(request) = self.requests.get_mut(at) else { return };
        if let (true, Some(jetty)) = (request.alloc, node.objects.jetties.get_mut(request.jetty)) {
            jetty.stream.channel = to;
        }
        if request.phase == RequestPhase::Issued {
            request.attempt = request.attempt.wrapping_add(1);
            request.begin_attempt();
            (request.received, request.fault) = (0, None);
            let attempt = request.attempt;
            node.channels.enqueue(to, TxOwner::Request(at, attempt));
        }
    }
    /// A request of which nothing was sent is as if it had not been issued. Its Jetty.
    pub(crate) fn take_back(&mut self, node: &mut NodeShared, at: PoolRef) -> Option<PoolRef> {
        let jetty = self.requests.get(at)?.jetty;
        self.mark_answered(node, jetty, at);
        let request = self.requests.get_mut(at)?;
        request.begin_attempt();
        request.attempt = request.attempt.wrapping_add(1);
        (request.phase, request.channel) = (RequestPhase::Posted, PoolRef::NONE);
        (request.order_number, request.alloc) = (None, false);
        (request.received, request.fault) = (0, None);
        let record = node.objects.jetties.get_mut(jetty)?;
        (record.cursor, record.stream_from) = (record.head, record.head);
        Some(jetty)
    }
}

/// Whether a request may be sent on another lane: it was not executed on its own, or does no harm if it is executed twice.
fn may_move(node: &NodeShared, request: &SendRecord) -> bool {
    let is_harmless = match request.phase {
        RequestPhase::Waiting => true,
        RequestPhase::Issued => request.opcode == TaOpcode::Read || request.sent == 0 && !request.all_sent,
        RequestPhase::Posted | RequestPhase::Done(_) => false,
    };
    // The target knows the others of a sequence context on its lane only.
    let is_first = || {
        let stream = node.objects.jetties.get(request.jetty).map(|jetty| (jetty.stream.state, jetty.stream.channel));
        request.alloc && stream == Some((StreamState::Asking, request.channel))
    };
    is_harmless && request.abandoned.is_none() && (request.order_number.is_none() || is_first())
}
