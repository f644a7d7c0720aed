//! Signals of a queue pair about its path during one call.
//!
//! One call may report several signals: a NAK that shows a loss and a congestion notification, or two losses in one train. The
//! congestion controller must get each of them: controllers count notifications and distinguish a timeout from a fast loss.

use burst_transport::Signal;

/// The signals of one call, counted by kind.
///
/// The counts lie in one word, because almost every call has none and each call is asked: bits 0..16 for losses, 16..32 for
/// timeouts, 32..48 for congestion notifications, 48..59 for losses that were none, 61 for a flight without answer. Single bits:
/// 59: bytes in flight have left it without an acknowledgement, 60: the queue pair has failed, 62: there is a report of the path
/// (all three lie in the outbox), 63: the peer refuses the selective repeat family. One call sees a packet or a train of at most
/// 64 KiB, so no count overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals(u64);

/// First bit and width of the count of each kind.
const KINDS: [(Signal, u32, u32); 5] = [
    (Signal::Loss, 0, 16),
    (Signal::Timeout, 16, 16),
    (Signal::Cnp, 32, 16),
    (Signal::Spurious, 48, 11),
    (Signal::Unanswered, 61, 1),
];
const UNACKNOWLEDGED: u64 = 1 << 59;
const FAILED: u64 = 1 << 60;
const REPORTED: u64 = 1 << 62;
const REFUSED: u64 = 1 << 63;

impl Signals {
    /// Adds a signal.
    pub fn add(&mut self, signal: Signal) {
        let shift = match signal {
            Signal::Loss => 0,
            Signal::Timeout => 16,
            Signal::Cnp => 32,
            Signal::Spurious => 48,
            Signal::Unanswered => 61,
        };
        self.0 += 1 << shift;
        debug_assert!(self.count(signal) > 0, "a count has overflowed");
    }

    /// The peer does not answer packets of the selective repeat family.
    pub fn refuse(&mut self) {
        self.0 |= REFUSED;
    }
    /// Whether the peer does not answer packets of the selective repeat family.
    pub fn is_refused(&self) -> bool {
        self.0 & REFUSED != 0
    }

    /// Bytes in flight have left it without an acknowledgement.
    pub fn lose_bytes(&mut self) {
        self.0 |= UNACKNOWLEDGED;
    }
    /// Whether bytes in flight have left it without an acknowledgement.
    pub fn has_lost_bytes(&self) -> bool {
        self.0 & UNACKNOWLEDGED != 0
    }

    /// The queue pair has ended in error.
    pub fn fail(&mut self) {
        self.0 |= FAILED;
    }
    /// Whether the queue pair has ended in error.
    pub fn is_failed(&self) -> bool {
        self.0 & FAILED != 0
    }

    /// Whether what the queue pair had in flight is not answered. That is no event of the path: its timeouts may be none either.
    pub fn is_unanswered(&self) -> bool {
        self.count(Signal::Unanswered) > 0
    }

    /// There is a report of the path.
    #[inline]
    pub fn report(&mut self) {
        self.0 |= REPORTED;
    }
    /// Whether there is a report of the path.
    #[inline]
    pub fn is_reported(&self) -> bool {
        self.0 & REPORTED != 0
    }
    /// Whether there is anything besides a report.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.0 & !REPORTED != 0
    }

    /// Whether there was none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Number of signals of one kind.
    pub fn count(&self, signal: Signal) -> u32 {
        let count = |(_, first, bits): &(Signal, u32, u32)| (self.0 >> first & ((1 << bits) - 1)) as u32;
        KINDS.iter().find(|kind| kind.0 == signal).map_or(0, count)
    }

    /// Gives each signal of the path to `take`, kind by kind. The order of their arrival is not kept: it would not matter,
    /// because all of them belong to one moment.
    #[cold]
    pub fn for_each(&self, mut take: impl FnMut(Signal)) {
        for (signal, ..) in KINDS.into_iter().filter(|kind| kind.0 != Signal::Unanswered) {
            (0..self.count(signal)).for_each(|_| take(signal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_signal_does_not_replace_an_earlier_one() {
        let mut signals = Signals::default();
        assert!(signals.is_empty() && !signals.is_refused() && !signals.is_reported());
        signals.report();
        assert!(signals.is_reported() && !signals.is_empty() && !signals.has_events());
        let all = [Signal::Loss, Signal::Cnp, Signal::Cnp, Signal::Spurious, Signal::Timeout, Signal::Cnp];
        all.into_iter().for_each(|s| signals.add(s));
        let kinds = [Signal::Loss, Signal::Timeout, Signal::Cnp, Signal::Spurious];
        assert_eq!(kinds.map(|kind| signals.count(kind)), [1, 1, 3, 1]);
        assert!(!signals.is_unanswered());
        signals.add(Signal::Unanswered);
        assert!(signals.is_unanswered());
        assert!(!signals.has_lost_bytes());
        signals.lose_bytes();
        assert!(signals.has_lost_bytes() && !signals.is_failed() && signals.count(Signal::Spurious) == 1);
        signals.refuse();
        assert!(signals.is_refused() && signals.has_events() && !signals.is_failed());
        signals.fail();
        assert!(signals.is_failed());
        let mut seen = Vec::new();
        signals.for_each(|s| seen.push(s));
        let cnps = [Signal::Cnp; 3];
        assert_eq!(
            seen,
            [&[Signal::Loss, Signal::Timeout][..], &cnps, &[Signal::Spurious]].concat(),
            "not the flight without answer"
        );
    }
}
