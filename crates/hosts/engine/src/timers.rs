//! Timers of a worker: those of queue pairs, gates of paths that have a rate, acknowledgements that wait.

use crate::paths::pacing::PaceQueue;
use crate::timers::ack_delay::DelayedAcks;
use burst_base::Nanos;
use burst_base::wheel::Wheel;

pub(crate) mod ack_delay;
pub(crate) mod timer_pass;

/// The timers.
pub(crate) struct Timers {
    /// Timers of queue pairs, by entry; that of URMA's endpoints is [`crate::transmit::sched::URMA_ENTRY`]'s.
    pub wheel: Wheel,
    /// Gates of paths that have a rate.
    pub pacing: PaceQueue,
    pub delayed_acks: DelayedAcks,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { wheel: Wheel::new(64), pacing: PaceQueue::default(), delayed_acks: DelayedAcks::default() }
    }
}

impl Timers {
    /// When the next one is due.
    pub fn next_deadline(&self) -> Nanos {
        self.wheel.next_deadline().min(self.pacing.next_deadline()).min(self.delayed_acks.next_deadline())
    }
}
