//! The fate of packets: a seeded sequence of rare events among packets to which nothing happens.
//!
//! An event (loss, corruption, mark, duplication, late delivery) happens to each packet with its own rate, independently of the
//! others. The distance to the next packet with any event is geometrically distributed and is drawn once, so that the packets
//! before it cost no random number and can pass as whole trains.

use crate::spec::{ImpairSpec, Ppm};
use burst_base::rng::Rng;
use burst_frame::Ecn;

/// Further delay of a packet that is delivered late, in nanoseconds.
pub const REORDER_NS: core::ops::RangeInclusive<u64> = 20_000..=120_000;
/// Events, in the order in which they are decided.
const EVENTS: usize = 5;
const LOSS: usize = 0;
const CORRUPT: usize = 1;
const ECN: usize = 2;
const REORDER: usize = 3;
const DUP: usize = 4;
/// Bits of a distance. With the smallest rate, 1 ppm, a longer one has a probability of 10^-1865.
const DISTANCE_BITS: usize = 32;

/// The fate of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameFate {
    Lost,
    Damaged,
    Pass {
        mark: bool,
        delay_ns: u64,
        /// Whether the packet is duplicated, and the delay of the second copy in nanoseconds.
        twice: Option<u64>,
    },
}

/// The random choices of one direction.
#[derive(Debug)]
pub(super) struct FateSequence {
    rates: [f64; EVENTS],
    /// Probability of any event.
    any: f64,
    /// The probability of a one, times 2^64, of each bit of a distance: the bits of a geometrically distributed number are
    /// independent.
    bits: [u64; DISTANCE_BITS],
    /// Packets before the next one with an event; `u64::MAX` without events.
    clear: u64,
    delay_ns: u64,
    jitter_ns: u64,
    rng: Rng,
}

impl FateSequence {
    /// The sequence of `spec` whose random numbers follow from its seed and `salt`.
    pub fn new(spec: &ImpairSpec, salt: u64) -> FateSequence {
        let mut rates = [0.0; EVENTS];
        let given =
            [(LOSS, spec.loss), (CORRUPT, spec.corrupt), (ECN, spec.ecn), (REORDER, spec.reorder), (DUP, spec.dup)];
        for (event, rate) in given {
            rates[event] = f64::from(rate.0) / f64::from(Ppm::ONE.0);
        }
        let none: f64 = rates.iter().map(|rate| 1.0 - rate).product();
        let mut power = none;
        let bits = core::array::from_fn(|_| {
            let one = power / (1.0 + power);
            power *= power;
            (one * 2f64.powi(64)) as u64
        });
        let (delay_ns, jitter_ns) = (spec.delay_ns, spec.jitter_ns);
        let rng = Rng::new(spec.seed ^ salt);
        let mut sequence = FateSequence { rates, any: 1.0 - none, bits, clear: 0, delay_ns, jitter_ns, rng };
        sequence.clear = sequence.distance();
        sequence
    }

    /// The sequence in which nothing happens.
    pub fn nothing() -> FateSequence {
        FateSequence::new(&ImpairSpec::default(), 0)
    }

    /// Number of packets, at most `count`, to which nothing happens; they need no call of [`FateSequence::draw`].
    pub fn skip_clear(&mut self, count: u64) -> u64 {
        if self.delay_ns > 0 || self.jitter_ns > 0 {
            return 0;
        }
        let skipped = self.clear.min(count);
        if self.clear != u64::MAX {
            self.clear -= skipped;
        }
        skipped
    }

    /// The fate of the next packet.
    pub fn draw(&mut self, ecn: Ecn) -> FrameFate {
        if self.clear > 0 {
            self.clear -= u64::from(self.clear != u64::MAX);
            return FrameFate::Pass { mark: false, delay_ns: self.delay(false), twice: None };
        }
        self.clear = self.distance();
        let happens = self.events();
        if happens[LOSS] {
            return FrameFate::Lost;
        }
        if happens[CORRUPT] {
            return FrameFate::Damaged;
        }
        let mark = happens[ECN] && matches!(ecn, Ecn::Ect0 | Ecn::Ect1);
        let delay_ns = self.delay(happens[REORDER]);
        let twice = happens[DUP].then(|| {
            let late = self.rng.unit() < self.rates[REORDER];
            self.delay(late)
        });
        FrameFate::Pass { mark, delay_ns, twice }
    }

    fn distance(&mut self) -> u64 {
        if self.any == 0.0 {
            return u64::MAX;
        }
        let drawn = self.bits.iter().take_while(|one| **one > 0).enumerate();
        drawn.fold(0, |distance, (bit, one)| distance | u64::from(self.rng.next_u64() < *one) << bit)
    }

    /// The events of a packet to which at least one happens: the first one by its share of [`FateSequence::any`], the ones after
    /// it by their own rates.
    fn events(&mut self) -> [bool; EVENTS] {
        debug_assert!(self.any > 0.0, "an event without a rate");
        let mut left = self.rng.unit() * self.any;
        let mut none_before = 1.0;
        let mut happens = [false; EVENTS];
        let mut first = None;
        for (event, &rate) in self.rates.iter().enumerate() {
            if first.is_some() {
                happens[event] = rate > 0.0 && self.rng.unit() < rate;
                continue;
            }
            let share = none_before * rate;
            if left < share {
                happens[event] = true;
                first = Some(event);
            }
            left -= share;
            none_before *= 1.0 - rate;
        }
        if first.is_none() {
            // Rounding: the number lay beyond the sum of all shares.
            let last = self.rates.iter().rposition(|rate| *rate > 0.0).expect("a rate above zero");
            happens[last] = true;
        }
        happens
    }

    fn delay(&mut self, late: bool) -> u64 {
        let extra = if late { self.rng.between(*REORDER_NS.start(), *REORDER_NS.end()) } else { 0 };
        let jitter = if self.jitter_ns > 0 { self.rng.between(0, self.jitter_ns) } else { 0 };
        self.delay_ns + jitter + extra
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(loss: u32, corrupt: u32, dup: u32) -> ImpairSpec {
        ImpairSpec { loss: Ppm(loss), corrupt: Ppm(corrupt), dup: Ppm(dup), seed: 5, ..ImpairSpec::default() }
    }

    /// (lost, damaged, doubled) of so many packets.
    fn counts(sequence: &mut FateSequence, packets: u32) -> [u32; 3] {
        let mut counts = [0; 3];
        for _ in 0..packets {
            match sequence.draw(Ecn::NotEct) {
                FrameFate::Lost => counts[0] += 1,
                FrameFate::Damaged => counts[1] += 1,
                FrameFate::Pass { twice: Some(_), .. } => counts[2] += 1,
                FrameFate::Pass { .. } => {}
            }
        }
        counts
    }

    #[test]
    fn each_event_has_its_own_rate() {
        // 200,000 packets; four standard deviations of the rarest count are 80.
        let [lost, damaged, doubled] = counts(&mut FateSequence::new(&spec(100_000, 10_000, 2_000), 0), 200_000);
        assert!((19_400..20_600).contains(&lost), "{lost}");
        assert!((1_630..1_970).contains(&damaged), "10 ‰ of what is not lost: {damaged}");
        assert!((280..435).contains(&doubled), "2 ‰ of the rest: {doubled}");
    }

    #[test]
    fn distances_are_geometric() {
        let mut sequence = FateSequence::new(&spec(50_000, 0, 0), 0);
        let mut counts = [0u32; 4];
        for _ in 0..100_000 {
            counts[sequence.distance().min(3) as usize] += 1;
        }
        // 0.05, 0.05 * 0.95, 0.05 * 0.95^2 of 100,000; the standard deviation is 69.
        for (count, expected) in counts.into_iter().zip([5_000, 4_750, 4_512]) {
            assert!(count.abs_diff(expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn packets_that_are_skipped_count_like_packets_that_are_drawn() {
        let (mut by_one, mut by_trains) =
            (FateSequence::new(&spec(30_000, 0, 0), 1), FateSequence::new(&spec(30_000, 0, 0), 1));
        let mut expected = Vec::new();
        let mut got = Vec::new();
        for packet in 0..20_000u64 {
            if by_one.draw(Ecn::NotEct) == FrameFate::Lost {
                expected.push(packet);
            }
        }
        let mut packet = 0;
        while packet < 20_000 {
            packet += by_trains.skip_clear((20_000 - packet).min(45));
            if packet < 20_000 && by_trains.clear == 0 {
                assert_eq!(by_trains.draw(Ecn::NotEct), FrameFate::Lost);
                got.push(packet);
                packet += 1;
            }
        }
        assert_eq!(got, expected);
    }

    #[test]
    fn certain_events_happen_to_every_packet_and_absent_ones_to_none() {
        assert_eq!(counts(&mut FateSequence::new(&spec(1_000_000, 0, 0), 0), 100), [100, 0, 0]);
        assert_eq!(counts(&mut FateSequence::new(&spec(0, 0, 1_000_000), 0), 100), [0, 0, 100]);
        let mut nothing = FateSequence::nothing();
        assert_eq!(counts(&mut nothing, 100), [0, 0, 0]);
        assert_eq!(nothing.skip_clear(u64::MAX - 1), u64::MAX - 1);
        assert_eq!(nothing.skip_clear(7), 7, "a sequence without events does not end");
    }
}
