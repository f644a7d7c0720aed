//! Event channels with records for which their programs have not made room, and when a worker tries them again.
//!
//! A user may have as many channels as descriptors, and need not read any. So a worker tries [`RETRIES`] of them at once, and the
//! next ones after [`PAUSE`]. A round tries each channel once; the next round begins [`RETRY_AFTER`] after it. A channel that is
//! added postpones none.

use crate::channel::CmChannel;
use burst_base::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// Wait before a full channel is tried again.
const RETRY_AFTER: Nanos = Nanos::from_ms(1);
/// Channels that are tried at once.
const RETRIES: usize = 64;
/// Wait within a round.
const PAUSE: Nanos = Nanos::from_us(250);

/// The channels of one worker.
#[derive(Debug)]
pub(crate) struct BackloggedChannels {
    waiting: VecDeque<Arc<CmChannel>>,
    /// Channels from the first on that are left in this round.
    left: usize,
    due: Nanos,
}

impl Default for BackloggedChannels {
    fn default() -> BackloggedChannels {
        BackloggedChannels { waiting: VecDeque::new(), left: 0, due: Nanos::NEVER }
    }
}

impl BackloggedChannels {
    /// When [`BackloggedChannels::retry`] has something to do.
    pub fn due(&self) -> Nanos {
        self.due
    }

    /// Adds a full channel, unless a worker tries it already.
    pub fn add(&mut self, now: Nanos, channel: Arc<CmChannel>) {
        if !channel.begin_retries() {
            return;
        }
        self.waiting.push_back(channel);
        if self.due == Nanos::NEVER {
            self.due = now + RETRY_AFTER;
        }
        debug_assert!(self.left < self.waiting.len(), "a new channel belongs to the next round");
    }

    /// Tries the next channels. Returns how many.
    pub fn retry(&mut self, now: Nanos) -> usize {
        if now < self.due {
            return 0;
        }
        if self.left == 0 {
            self.left = self.waiting.len();
        }
        let tried = self.left.min(RETRIES);
        for _ in 0..tried {
            let Some(channel) = self.waiting.pop_front() else { break };
            channel.retry();
            if !channel.end_retries() {
                self.waiting.push_back(channel);
            }
        }
        self.left -= tried;
        self.due = match (self.waiting.is_empty(), self.left) {
            (true, _) => Nanos::NEVER,
            (false, 0) => now + RETRY_AFTER,
            (false, _) => now + PAUSE,
        };
        tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::cm::{CmEvent, CmEventKind};

    /// A channel whose pipe is full.
    fn full() -> Arc<CmChannel> {
        let channel = CmChannel::new().expect("a channel");
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        while !channel.has_backlog() {
            channel.write(&record).expect("kept");
        }
        Arc::new(channel)
    }

    /// The most channels of one call, and the calls until each was tried once.
    fn round(channels: usize) -> (usize, usize) {
        let (mut backlogged, mut now) = (BackloggedChannels::default(), Nanos(0));
        for _ in 0..channels {
            backlogged.add(now, full());
        }
        let (mut most, mut calls, mut tried) = (0, 0, 0);
        while tried < channels {
            now = backlogged.due();
            let some = backlogged.retry(now);
            (most, calls, tried) = (most.max(some), calls + 1, tried + some);
        }
        assert_eq!((tried, backlogged.due()), (channels, now + RETRY_AFTER), "each once");
        (most, calls)
    }

    #[test]
    fn a_call_tries_the_same_number_however_many_channels_are_full() {
        assert_eq!((round(100), round(400)), ((RETRIES, 2), (RETRIES, 7)));
    }

    #[test]
    fn channels_that_become_full_postpone_no_other() {
        let (mut backlogged, first) = (BackloggedChannels::default(), full());
        backlogged.add(Nanos(0), first.clone());
        backlogged.add(Nanos(0), first.clone());
        let due = backlogged.due();
        for n in 1..10 {
            backlogged.add(Nanos(n), full());
        }
        assert_eq!((due, backlogged.due(), backlogged.waiting.len()), (RETRY_AFTER, RETRY_AFTER, 10));
        // Its program reads, or closes it.
        first.close();
        assert_eq!((backlogged.retry(due), backlogged.waiting.len()), (10, 9));
        assert!(first.begin_retries(), "it can be added again");
    }
}
