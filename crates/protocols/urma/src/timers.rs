//! Deadlines: retransmission and opening of channels, repetition of requests after RNR.
//!
//! A channel fails after the time-outs of its own, but not before the longest error time-out of the Jetties that have a request
//! on it; the channel counts its requests by their time-out. One call handles a bounded number of deadlines.

use crate::api::{CrStatus, LANES_MAX, UrmaEnv};
use crate::channel::UrmaTimer;
use crate::node::{TimerEntry, UrmaNode};
use crate::pool::PoolRef;
use crate::records::{Inbound, InboundPhase, RequestPhase};
use crate::sweep::{ChannelEnd, PASS_STEPS};
use crate::tx_window::TxOwner;
use burst_base::{Nanos, Reason};
use burst_ubwire::Cna;
use std::cmp::Reverse;

impl UrmaNode {
    /// Time has passed: handles what is due. What is too much for one call is due again at once.
    pub fn on_timer(&mut self, env: &mut UrmaEnv<'_>) {
        let limit = self.sweeps.steps + PASS_STEPS;
        while self.sweeps.steps < limit
            && let Some(Reverse(entry)) = self.timers.peek().copied().filter(|entry| entry.0.at <= env.now)
        {
            self.timers.pop();
            self.sweeps.steps += 1;
            match entry.timer {
                UrmaTimer::Channel(at) => self.on_channel_timer(at, entry.at, env),
                UrmaTimer::Retry(at) => self.on_retry(at, env),
                UrmaTimer::Access(tag) => self.on_access_timer(tag, entry.at, env),
            }
        }
        self.run_sweeps(env);
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
        let is_late = config.rto_tries == 0 || channel.err_timeout().is_none_or(|error| quiet >= error);
        if is_spent && is_late {
            env.fx.count(Reason::UbChannelFailed);
            self.rest_lane(at, env.now);
            self.tell_end(at);
            return self.end_lane(at, ChannelEnd::Failed);
        }
        let Some(channel) = self.channels.get_mut(at) else { return };
        if is_asking {
            // One REQUEST more.
            channel.asks = channel.asks.min(config.rto_tries);
        } else {
            self.sweeps.steps += channel.tx.packets() as u64;
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
    /// Ends the channels to a peer as if they had failed: all requests to it end with [`CrStatus::AckTimeout`], in the next calls
    /// of [`UrmaNode::on_timer`]. For a peer that acknowledges packets and answers nothing; no time-out of the transport notices
    /// that. Does nothing without a channel.
    pub fn end_channel(&mut self, peer: Cna) {
        let lanes: Vec<PoolRef> = self.lanes_to(peer).map(|(at, _)| at).collect();
        // None of them takes the requests of another one.
        (0..LANES_MAX).for_each(|lane| _ = self.by_peer.remove(&(peer, lane)));
        for at in lanes {
            self.end_lane(at, ChannelEnd::Failed);
        }
    }
    /// Forgets an incomplete message; its receive goes back to the front of its queue.
    pub(crate) fn drop_inbound(&mut self, at: PoolRef) {
        self.drop_held(at);
        let Some(message) = self.remove_inbound(at) else { return };
        if let InboundPhase::Placing(placement) = message.phase
            && let (Some(jfr), Some(receive)) = (placement.jfr, placement.receive)
        {
            self.shared.objects.put_receive_back(jfr, receive);
        }
    }
    /// Removes the record of a message, and only that.
    pub(crate) fn remove_inbound(&mut self, at: PoolRef) -> Option<Inbound> {
        let message = self.inbound.get(at)?;
        if let Some(channel) = self.channels.get_mut(message.origin.channel) {
            channel.inbound -= 1;
            channel.waiting -= u32::from(matches!(message.phase, InboundPhase::Waiting));
            self.inbound.take_out(&mut channel.messages, at);
        }
        self.inbound.remove(at)
    }
}
