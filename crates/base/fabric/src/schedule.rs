//! What happens to single packets of a host: adversarial schedules.
//!
//! A [`PacketSchedule`] counts the packets that an adapter sends from the time at which it is given to the network, and names
//! some of them: those are lost, doubled, late, corrupted or marked. Several schedules of one adapter act side by side.

use std::collections::VecDeque;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFate {
    /// It is lost.
    pub is_lost: bool,
    /// It comes again, so many picoseconds later.
    pub again: Option<u64>,
    /// Picoseconds by which it is late.
    pub late: u64,
    /// It comes with a wrong ICRC.
    pub is_corrupted: bool,
    /// It comes with a mark (CE), if it is capable of marks.
    pub is_marked: bool,
}

impl PacketFate {
    /// Both fates.
    #[must_use]
    pub fn and(self, other: PacketFate) -> PacketFate {
        PacketFate {
            is_lost: self.is_lost || other.is_lost,
            again: self.again.or(other.again),
            late: self.late.max(other.late),
            is_corrupted: self.is_corrupted || other.is_corrupted,
            is_marked: self.is_marked || other.is_marked,
        }
    }
    /// Whether nothing happens.
    pub fn is_none(&self) -> bool {
        *self == PacketFate::default()
    }
}

/// Which packets have a fate.
#[derive(Clone, Debug)]
pub struct PacketSchedule {
    fate: PacketFate,
    /// Packets until the next one that has the fate, and from each of them to the next one after.
    gaps: VecDeque<u64>,
}

impl PacketSchedule {
    /// Packets with these numbers have the fate; the first packet is number 0.
    pub fn new(numbers: &[u64], fate: PacketFate) -> PacketSchedule {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let first = sorted.first().copied();
        let gaps = first.into_iter().chain(sorted.windows(2).map(|w| w[1] - w[0] - 1)).collect();
        PacketSchedule { fate, gaps }
    }
    /// Whether no packet has the fate any more.
    pub(crate) fn is_over(&self) -> bool {
        self.gaps.is_empty()
    }
    /// The fate of the next packet.
    pub(crate) fn next(&mut self) -> PacketFate {
        match self.gaps.front_mut() {
            None => PacketFate::default(),
            Some(0) => {
                self.gaps.pop_front();
                self.fate
            }
            Some(gap) => {
                *gap -= 1;
                PacketFate::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_packets_have_the_fate() {
        let lost = PacketFate { is_lost: true, ..PacketFate::default() };
        let mut schedule = PacketSchedule::new(&[5, 0, 1, 5], lost);
        let found: Vec<bool> = (0..8).map(|_| schedule.next().is_lost).collect();
        assert_eq!(found, [true, true, false, false, false, true, false, false]);
        assert!(schedule.is_over() && PacketSchedule::new(&[], lost).is_over());
    }
}
