//! What a queue pair reports about its path during one call.
//!
//! One call may report several signals: a NAK that shows a loss and a congestion notification, or two losses in one train. The
//! congestion controller must get each of them: controllers count notifications and distinguish a timeout from a fast loss.

use burst_transport::Signal;

/// The signals of one call, counted by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Losses reported by the peer, or shown by a gap in its answers.
    pub losses: u32,
    /// Acknowledgement timeouts.
    pub timeouts: u32,
    /// Congestion notification packets.
    pub notifications: u32,
}

impl Signals {
    /// Adds a signal.
    pub fn add(&mut self, signal: Signal) {
        let count = match signal {
            Signal::Loss => &mut self.losses,
            Signal::Timeout => &mut self.timeouts,
            Signal::Cnp => &mut self.notifications,
        };
        *count += 1;
    }

    /// Whether there was none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.losses | self.timeouts | self.notifications == 0
    }

    /// Gives each signal to `take`, kind by kind. The order of their arrival is not kept: it would not matter, because all of
    /// them belong to one moment.
    pub fn for_each(&self, mut take: impl FnMut(Signal)) {
        for (signal, count) in
            [(Signal::Loss, self.losses), (Signal::Timeout, self.timeouts), (Signal::Cnp, self.notifications)]
        {
            (0..count).for_each(|_| take(signal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_signal_does_not_replace_an_earlier_one() {
        let mut signals = Signals::default();
        assert!(signals.is_empty());
        [Signal::Loss, Signal::Cnp, Signal::Cnp, Signal::Timeout, Signal::Cnp].into_iter().for_each(|s| signals.add(s));
        assert_eq!(signals, Signals { losses: 1, timeouts: 1, notifications: 3 });
        let mut seen = Vec::new();
        signals.for_each(|s| seen.push(s));
        assert_eq!(seen, [Signal::Loss, Signal::Timeout, Signal::Cnp, Signal::Cnp, Signal::Cnp]);
    }
}
