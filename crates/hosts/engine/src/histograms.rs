//! How long messages, round trips and waits take, and how many packets a turn sends: histograms of one worker.
//!
//! The worker adds, and answers the control thread between two passes, so a histogram is a row of plain numbers: one for each
//! power of two, and the sum. Times are differences between passes, because a worker reads no clock; what ends in the pass in
//! which it began takes 0 ns.
//!
//! A histogram of every turn and message would cost more than a hundredth of a message's instructions. So one turn of
//! [`SAMPLED`] is measured: its packets, and how long its first new request takes ([`TimedRequest`]), unless an earlier one of
//! the queue pair is still timed. Of the waits for a turn one is timed at a time (`transmit::sched`).

use burst_base::Nanos;
use burst_control::activity::{HISTOGRAM_BUCKETS, WORK_HISTOGRAMS, WorkHistogram};

/// Of so many turns one is measured.
const SAMPLED: u32 = 16;

/// A histogram, as an index of [`WORK_HISTOGRAMS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Measure {
    /// From the turn that begins a request to its completion.
    Message = 0,
    /// From a packet to its acknowledgement.
    RoundTrip = 1,
    /// From the pass in which a queue pair became ready to that of its turn.
    Queueing = 2,
    /// Packets of a turn that sends some.
    Train = 3,
}

const _: () = assert!(Measure::Train as usize + 1 == WORK_HISTOGRAMS.len());

#[derive(Clone, Copy, Debug)]
struct Octaves {
    sum: u64,
    buckets: [u64; HISTOGRAM_BUCKETS],
}

/// The histograms of a worker.
#[derive(Debug)]
pub(crate) struct WorkHistograms {
    all: [Octaves; WORK_HISTOGRAMS.len()],
    turns: u32,
}

impl Default for WorkHistograms {
    fn default() -> WorkHistograms {
        let all = [Octaves { sum: 0, buckets: [0; HISTOGRAM_BUCKETS] }; WORK_HISTOGRAMS.len()];
        WorkHistograms { all, turns: 0 }
    }
}

impl WorkHistograms {
    /// A turn begins. Returns whether it is measured.
    #[inline]
    pub fn samples_turn(&mut self) -> bool {
        let turn = self.turns;
        self.turns = turn.wrapping_add(1);
        turn.is_multiple_of(SAMPLED)
    }

    /// Adds the packets of a turn that is measured, if it has sent some.
    #[cold]
    pub fn add_train(&mut self, packets: usize) {
        if packets > 0 {
            self.add(Measure::Train, packets as u64);
        }
    }

    /// Adds a value: nanoseconds, or packets.
    #[inline(never)]
    pub fn add(&mut self, work: Measure, value: u64) {
        let Octaves { sum, buckets } = &mut self.all[work as usize];
        *sum = sum.wrapping_add(value);
        buckets[WorkHistogram::bucket(value)] += 1;
    }

    /// As the control plane shows them.
    pub fn to_list(&self) -> Vec<WorkHistogram> {
        self.all.iter().map(|Octaves { sum, buckets }| WorkHistogram { sum: *sum, buckets: buckets.to_vec() }).collect()
    }
}

/// The time of a pass in four bytes: 64 ns units, which come again after 275 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassStamp(u32);

impl PassStamp {
    const SHIFT: u32 = 6;

    /// The stamp of a time.
    #[inline]
    pub fn of(now: Nanos) -> PassStamp {
        PassStamp((now.0 >> PassStamp::SHIFT) as u32)
    }

    /// Nanoseconds from this stamp to a time at most 275 s later.
    #[inline]
    pub fn until(self, now: Nanos) -> u64 {
        u64::from(PassStamp::of(now).0.wrapping_sub(self.0)) << PassStamp::SHIFT
    }
}

/// The request of a queue pair that is timed. Numbers of requests are kept modulo 2^16: send queues are shorter than half of
/// that.
// Six bytes, which fit into a queue pair's slot without another line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimedRequest {
    /// When its turn was: the lower and the upper half of a [`PassStamp`].
    since: [u16; 2],
    /// The number of requests that have ended when it has; 0: none is timed.
    end: u16,
}

const _: () = assert!(size_of::<TimedRequest>() == 6);

impl TimedRequest {
    /// A measured turn has begun requests, the first of which was the number `first`, and `begun` have begun since the queue pair
    /// was made.
    #[cold]
    pub fn begin(&mut self, now: Nanos, first: u32, begun: u32) {
        // A number that is still to come is left over from before a reset.
        if first != begun && (self.end == 0 || ((begun as u16).wrapping_sub(self.end) as i16) < 0) {
            let PassStamp(since) = PassStamp::of(now);
            *self = TimedRequest { since: [since as u16, (since >> 16) as u16], end: (first as u16).wrapping_add(1) };
        }
    }

    /// Whether one is timed.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.end > 0
    }

    /// So many requests have ended. Returns the nanoseconds that the timed one took, if it is among them.
    #[cold]
    pub fn end(&mut self, now: Nanos, ended: u32) -> Option<u64> {
        if !self.is_running() || ((ended as u16).wrapping_sub(self.end) as i16) < 0 {
            return None;
        }
        self.end = 0;
        Some((PassStamp(u32::from(self.since[0]) | u32::from(self.since[1]) << 16)).until(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time of so many units.
    fn at(units: u64) -> Nanos {
        Nanos(units << PassStamp::SHIFT)
    }

    #[test]
    fn a_request_is_timed_until_its_end() {
        let mut timed = TimedRequest::default();
        assert_eq!(timed.end(at(5), 1), None, "none is timed");
        timed.begin(at(10), 0, 3);
        timed.begin(at(20), 3, 4);
        assert_eq!(timed.end(at(30), 1), Some(at(20).0));
        assert_eq!(timed.end(at(31), 2), None, "the second was not timed");
        timed.begin(at(40), 4, 5);
        assert_eq!(timed.end(at(50), 4), None, "an earlier one");
        assert_eq!(timed.end(at(60), 6), Some(at(20).0), "with another one");
        timed.begin(at(70), 6, 6);
        assert_eq!(timed.end(at(80), 7), None, "no request has begun");
    }

    #[test]
    fn numbers_and_times_wrap_and_begin_again_after_a_reset() {
        let mut timed = TimedRequest::default();
        timed.begin(at(u32::MAX.into()), 5, 6);
        assert_eq!(timed.end(at(1 << 32 | 2), 6), Some(at(3).0));
        timed.begin(at(1), u32::MAX - 1, u32::MAX);
        assert_eq!(timed.end(at(4), u32::MAX), Some(at(3).0));
        // The next one is not timed: its mark is that of none.
        timed.begin(at(5), u32::MAX, 0);
        assert_eq!(timed.end(at(6), 0), None);
        timed.begin(at(5), 700, 701);
        timed.begin(at(9), 0, 1);
        assert_eq!(timed.end(at(10), 1), Some(at(1).0), "the one of before the reset is forgotten");
    }

    #[test]
    fn values_are_counted_by_powers_of_two() {
        let mut all = WorkHistograms::default();
        for value in [0, 1, 2, 3, 4, u64::MAX] {
            all.add(Measure::Train, value);
        }
        let list = all.to_list();
        assert_eq!(list[Measure::Train as usize].buckets[..4], [1, 1, 2, 1]);
        assert_eq!(list[Measure::Train as usize].buckets[HISTOGRAM_BUCKETS - 1], 1);
        assert_eq!(list[Measure::Message as usize].count(), 0);
    }
}
