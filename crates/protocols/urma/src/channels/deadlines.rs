//! Deadlines of channels: retransmission, probes, REQUESTs, late acknowledgements, signs of life.
//!
//! A channel fails after the time-outs of its own, but not before the longest error time-out of the Jetties that have a request
//! on it; the channel counts its requests by their time-out.

use crate::api::UrmaEnv;
use crate::channels::Channels;
use crate::channels::sweeps::ChannelEnd;
use crate::channels::tx_window::TxOwner;
use crate::paths::PathChange;
use crate::pool::PoolRef;
use crate::timers::UrmaTimer;
use burst_base::{Nanos, Reason};

impl Channels {
    /// Makes sure that a channel's deadline is in the heap. A deadline that moves later keeps its entry.
    pub(crate) fn arm_channel(&mut self, at: PoolRef, now: Nanos) {
        let config = self.config;
        let Some(channel) = self.table.get_mut(at) else { return };
        let deadline = channel.deadline(&config).max(now);
        if deadline < channel.timer_at {
            channel.timer_at = deadline;
            self.timers.add(deadline, UrmaTimer::Channel(at));
        }
    }
    pub(crate) fn on_channel_timer(&mut self, at: PoolRef, due: Nanos, env: &mut UrmaEnv<'_>) {
        let config = self.config;
        let Some(channel) = self.table.get_mut(at) else { return };
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
        self.on_due_channel(at, env);
    }
    /// The deadline of a channel has come that is no late acknowledgement's.
    fn on_due_channel(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let config = self.config;
        let Some(channel) = self.table.get_mut(at) else { return };
        let is_asking = channel.is_asking();
        if !is_asking && channel.tx.is_empty() {
            // Nothing is in flight, but something is awaited: is the peer alive?
            channel.heard_at = env.now;
            self.enqueue(at, TxOwner::Filler);
            return self.arm_channel(at, env.now);
        }
        if !is_asking && channel.tx.is_waiting() {
            // Nothing is in flight, so nothing is late.
            channel.tx.wait_on(env.now);
            self.activate(at);
            return self.arm_channel(at, env.now);
        }
        if !is_asking && channel.tx.probe(env.now, &config) {
            self.tell_path(at, env, PathChange::default());
            self.activate(at);
            return self.arm_channel(at, env.now);
        }
        if is_asking && channel.asks == 0 {
            // The first REQUEST has not left yet.
            return self.activate(at);
        }
        self.on_timeout(at, env);
    }
    /// No sign of the peer has come in time.
    fn on_timeout(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        env.fx.count(Reason::UbTimeout);
        let Some(channel) = self.table.get_mut(at) else { return };
        if channel.has_failed(env.now, &self.config) {
            env.fx.count(Reason::UbChannelFailed);
            self.rest_lane(at, env.now);
            self.tell_end(at);
            return self.end(at, ChannelEnd::Failed);
        }
        let is_asking = channel.is_asking();
        if is_asking {
            // One REQUEST more.
            channel.asks = channel.asks.min(self.config.rto_tries);
        } else {
            self.sweeps.steps += channel.tx.packets() as u64;
            channel.window.on_timeout(env.now);
            channel.tx.on_timeout(env.now);
            self.tell_path(at, env, PathChange { is_timeout: true, ..PathChange::default() });
        }
        self.lane_is_silent(at, env.now);
        self.activate(at);
        // Otherwise it is armed when its next REQUEST leaves.
        if !is_asking {
            self.arm_channel(at, env.now);
        }
    }
    /// Nothing has carried the acknowledgement of lone answers: it leaves. Whether nothing else is due.
    fn ack_is_due(&mut self, at: PoolRef, now: Nanos) -> bool {
        self.ask_ack(at);
        let Some(channel) = self.table.get_mut(at) else { return true };
        channel.ack_at = Nanos::NEVER;
        channel.deadline(&self.config) > now
    }
}
