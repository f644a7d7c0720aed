//! Deadlines: retransmission and opening of channels, repetition of requests after RNR; and the end of a channel.

use crate::api::{CrStatus, JettyState, JfrState, LANES_MAX, UrmaEnv};
use crate::channel::UrmaTimer;
use crate::node::{TimerEntry, UrmaNode};
use crate::pool::PoolRef;
use crate::queues::{OrderStream, StreamState};
use crate::records::{Inbound, InboundPhase, RequestPhase, SendRecord};
use crate::tx_window::TxOwner;
use burst_base::{Nanos, Reason};
use burst_ubwire::Cna;
use std::cmp::Reverse;

impl UrmaNode {
    /// Time has passed: handles all that is due.
    pub fn on_timer(&mut self, env: &mut UrmaEnv<'_>) {
        while let Some(Reverse(entry)) = self.timers.peek().copied() {
            if entry.at > env.now {
                break;
            }
            self.timers.pop();
            match entry.timer {
                UrmaTimer::Channel(at) => self.on_channel_timer(at, entry.at, env),
                UrmaTimer::Retry(at) => self.on_retry(at, env),
                UrmaTimer::Access(tag) => self.on_access_timer(tag, entry.at, env),
            }
        }
        self.run_contexts(env);
    }
    pub(crate) fn add_timer(&mut self, at: Nanos, timer: UrmaTimer) {
        self.timer_count += 1;
        self.timers.push(Reverse(TimerEntry { at, number: self.timer_count, timer }));
    }
    /// Makes sure that a channel's deadline is in the heap. A deadline that moves later keeps its entry.
    pub(crate) fn arm_channel(&mut self, at: PoolRef, now: Nanos) {
        let config = self.config;
        let Some(channel) = self.channels.get_mut(at) else { return };
        let deadline = channel.deadline(&config).max(now);
        if deadline < channel.timer_at {
            channel.timer_at = deadline;
            self.add_timer(deadline, UrmaTimer::Channel(at));
        }
    }
    fn on_channel_timer(&mut self, at: PoolRef, due: Nanos, env: &mut UrmaEnv<'_>) {
        let config = self.config;
        let Some(channel) = self.channels.get_mut(at) else { return };
        if due != channel.timer_at {
            // An earlier deadline came after it and has an entry of its own.
            return;
        }
        channel.timer_at = Nanos::NEVER;
        let deadline = channel.deadline(&config);
        if deadline == Nanos::NEVER {
            return;
        }
        if deadline > env.now {
            return self.arm_channel(at, env.now);
        }
        if channel.ack_at <= env.now && self.ack_is_due(at, env.now) {
            return self.arm_channel(at, env.now);
        }
        let Some(channel) = self.channels.get_mut(at) else { return };
        let is_asking = channel.is_asking();
        if !is_asking && channel.tx.is_empty() {
            // Nothing is in flight, but something is awaited: is the peer alive?
            channel.heard_at = env.now;
            self.enqueue(at, TxOwner::Filler);
            return self.arm_channel(at, env.now);
        }
        if !is_asking && channel.tx.probe(env.now, &config) {
            self.activate(at);
            return self.arm_channel(at, env.now);
        }
        if is_asking && channel.asks == 0 {
            // The first REQUEST has not left yet.
            return self.activate(at);
        }
        env.fx.count(Reason::UbTimeout);
        let is_spent = if is_asking {
            channel.asks > config.rto_tries
        } else {
            let tries = channel.tx.silent_tries();
            if tries == 0 {
                channel.quiet_since = env.now;
            }
            tries >= config.rto_tries
        };
        let quiet = env.now.since(channel.quiet_since);
        if is_spent && (config.rto_tries == 0 || !self.has_patience(at, quiet)) {
            env.fx.count(Reason::UbChannelFailed);
            self.rest_lane(at, env.now);
            self.tell_end(at);
            return self.fail_channel(at, env);
        }
        let Some(channel) = self.channels.get_mut(at) else { return };
        if is_asking {
            // One REQUEST more.
            channel.asks = channel.asks.min(config.rto_tries);
        } else {
            channel.window.on_timeout(env.now);
            channel.tx.on_timeout(env.now);
        }
        self.lane_is_silent(at, env.now);
        self.activate(at);
        // Otherwise it is armed when its next REQUEST leaves.
        if self.channels.get(at).is_some_and(|channel| !channel.is_asking()) {
            self.arm_channel(at, env.now);
        }
    }
    /// Nothing has carried the acknowledgement of lone answers: it leaves. Whether nothing else is due.
    fn ack_is_due(&mut self, at: PoolRef, now: Nanos) -> bool {
        self.ask_ack(at);
        let Some(channel) = self.channels.get_mut(at) else { return true };
        channel.ack_at = Nanos::NEVER;
        channel.deadline(&self.config) > now
    }
    /// True if the Jetty of a request on the channel has an error time-out longer than `quiet`, the silence of the peer. The
    /// channel must not fail then, because a Jetty's error time-out is the least silence before its requests fail.
    fn has_patience(&self, at: PoolRef, quiet: Nanos) -> bool {
        let jetties =
            self.requests.iter().filter(|(_, request)| request.channel == at).map(|(_, request)| request.jetty);
        jetties.filter_map(|jetty| self.jetties.get(jetty)).any(|jetty| quiet < jetty.config.err_timeout())
    }
    /// A request that waited after RNR, or for which there is no channel.
    fn on_retry(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(request) = self.requests.get_mut(at) else { return };
        if self.channels.get(request.channel).is_none() {
            return self.answer(at, CrStatus::AckTimeout, env);
        }
        if request.phase != RequestPhase::Waiting {
            return;
        }
        request.begin_attempt();
        let (channel, attempt) = (request.channel, request.attempt);
        self.enqueue(channel, TxOwner::Request(at, attempt));
    }
    /// Ends the channels to a peer as if they had failed: all requests to it end with [`CrStatus::AckTimeout`]. For a peer that
    /// acknowledges packets and answers nothing; no time-out of the transport notices that. Does nothing without a channel.
    pub fn end_channel(&mut self, peer: Cna, env: &mut UrmaEnv<'_>) {
        let lanes: Vec<PoolRef> = self.lanes_to(peer).map(|(at, _)| at).collect();
        // None of them takes the requests of another one.
        (0..LANES_MAX).for_each(|lane| _ = self.by_peer.remove(&(peer, lane)));
        for at in lanes {
            self.fail_channel(at, env);
        }
    }
    /// A channel has failed or its peer has started a new one: all that used it ends.
    pub(crate) fn fail_channel(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(channel) = self.channels.remove(at) else { return };
        let key = (channel.peer, channel.lane);
        if self.by_peer.get(&key) == Some(&at) {
            self.by_peer.remove(&key);
        }
        if self.active.front() == Some(&at) {
            self.channel_turn = 0;
        }
        self.active.retain(|other| *other != at);
        let inbound: Vec<PoolRef> =
            self.inbound.iter().filter(|(_, m)| m.origin.channel == at).map(|(r, _)| r).collect();
        for message in inbound {
            self.drop_inbound(message);
        }
        self.inbound_keys.retain(|key, _| key.0 != at.index());
        let contexts: Vec<PoolRef> = self.contexts.iter().filter(|(_, c)| c.channel == at).map(|(r, _)| r).collect();
        for context in contexts {
            self.remove_context(context);
        }
        let responses: Vec<PoolRef> = self.responses.iter().filter(|(_, r)| r.channel == at).map(|(r, _)| r).collect();
        for response in responses {
            self.responses.remove(response);
        }
        self.relieve_failed(at, channel.peer);
        self.fail_requests(at, channel.peer, env);
    }
    fn fail_requests(&mut self, at: PoolRef, peer: Cna, env: &mut UrmaEnv<'_>) {
        let jetties: Vec<PoolRef> =
            self.jetties.iter().filter(|(_, j)| j.stream.channel == at).map(|(r, _)| r).collect();
        for jetty in jetties {
            if let Some(jetty) = self.jetties.get_mut(jetty) {
                jetty.stream = OrderStream { state: StreamState::None, peer, channel: PoolRef::NONE, next_number: 0 };
            }
        }
        let is_under_way = |r: &SendRecord| matches!(r.phase, RequestPhase::Issued | RequestPhase::Waiting);
        let failed: Vec<PoolRef> =
            self.requests.iter().filter(|(_, r)| r.channel == at && is_under_way(r)).map(|(r, _)| r).collect();
        let failed = self.in_posting_order(failed);
        for request in &failed {
            if let Some(jetty) = self.requests.get(*request).map(|r| r.jetty)
                && let Some(record) = self.jetties.get(jetty)
                && record.config.error_suspend
                && record.state == JettyState::Ready
            {
                self.stop_jetty(jetty, JettyState::Suspended, env.fx);
            }
        }
        for request in failed {
            self.answer(request, CrStatus::AckTimeout, env);
        }
    }
    /// Requests in posting order for each Jetty (a Jetty has fewer than 2^15 outstanding).
    pub(crate) fn in_posting_order(&self, mut list: Vec<PoolRef>) -> Vec<PoolRef> {
        let key = |at: &PoolRef| self.requests.get(*at).map_or((0, 0), |r| (r.jetty.index(), r.tassn));
        list.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then((a.1.wrapping_sub(b.1) as i16).cmp(&0))
        });
        list
    }
    /// Forgets an incomplete message; its receive goes back to the front of its queue.
    pub(crate) fn drop_inbound(&mut self, at: PoolRef) {
        self.drop_held(at);
        let Some(message) = self.remove_inbound(at) else { return };
        if let InboundPhase::Placing(placement) = message.phase
            && let (Some(jfr), Some(receive)) =
                (placement.jfr.and_then(|jfr| self.jfrs.get_mut(jfr)), placement.receive)
            && jfr.state == JfrState::Ready
        {
            jfr.receives.push_front(receive);
        }
    }
    /// Removes the record of a message, and only that.
    pub(crate) fn remove_inbound(&mut self, at: PoolRef) -> Option<Inbound> {
        let message = self.inbound.remove(at)?;
        if let Some(channel) = self.channels.get_mut(message.origin.channel) {
            channel.inbound -= 1;
            channel.waiting -= u32::from(matches!(message.phase, InboundPhase::Waiting));
        }
        Some(message)
    }
}
