//! Deadlines: retransmission and opening of channels, repetition of requests after RNR.
//!
//! A channel fails after the time-outs of its own, but not before the longest error time-out of the Jetties that have a request
//! on it; the channel counts its requests by their time-out. One call handles a bounded number of deadlines.

use crate::api::UrmaEnv;
use crate::channels::sweeps::PASS_STEPS;
use crate::node::UrmaNode;
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
                UrmaTimer::Retry(at) => self.initiator.on_retry(&mut self.shared, at, env),
                UrmaTimer::Access(tag) => {
                    self.accesses.on_timer(tag, due, self.shared.channels.config.rto_tries, env.fx);
                }
            }
            self.clear_ended();
        }
        self.initiator.run_sweeps(&mut self.shared, env);
        self.target.run_contexts(&mut self.shared, env);
        self.end_overrun(env.fx);
    }
}
