//! Deadlines: retransmission and opening of channels, repetition of requests after RNR.
//!
//! A channel fails after the time-outs of its own, but not before the longest error time-out of the Jetties that have a request
//! on it; the channel counts its requests by their time-out. One call handles a bounded number of deadlines.

use crate::api::{CrStatus, UrmaEnv};
use crate::channels::sweeps::PASS_STEPS;
use crate::channels::tx_window::TxOwner;
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::RequestPhase;
use crate::timers::UrmaTimer;

impl UrmaNode {
    /// Time has passed: handles what is due. What is too much for one call is due again at once.
    pub fn on_timer(&mut self, env: &mut UrmaEnv<'_>) {
        let limit = self.shared.channels.sweeps.steps + PASS_STEPS;
        while self.shared.channels.sweeps.steps < limit
            && let Some((due, timer)) = self.shared.channels.timers.pop_due(env.now)
        {
            self.shared.channels.sweeps.steps += 1;
            match timer {
                UrmaTimer::Channel(at) => self.shared.channels.on_channel_timer(at, due, env),
                UrmaTimer::Retry(at) => self.on_retry(at, env),
                UrmaTimer::Access(tag) => self.on_access_timer(tag, due, env),
            }
            self.clear_ended();
        }
        self.run_sweeps(env);
        self.target.run_contexts(&mut self.shared, env);
    }
    /// A request that waited after RNR, or for which there is no channel.
    fn on_retry(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(request) = self.requests.get_mut(at) else { return };
        if self.shared.channels.get(request.channel).is_none() {
            return self.answer(at, CrStatus::AckTimeout, env);
        }
        if request.phase != RequestPhase::Waiting {
            return;
        }
        request.begin_attempt();
        let (channel, attempt) = (request.channel, request.attempt);
        self.shared.channels.enqueue(channel, TxOwner::Request(at, attempt));
    }
}
