//! What a record of a failure must know that nothing else counts: what the packets of one queue pair met, and what the device has
//! counted since a path began.
//!
//! A tally has six places: the first six reasons, each with a count up to 65,535. Packets that are handled as usual have
//! no reason.

use crate::counters::Counters;
use burst_base::Reason;

/// Reasons of which a tally has place.
const TALLIED: usize = 6;

/// Counts of a device that a record compares with those at the beginning of the path: packets that did not leave, were too long,
/// came damaged or too fast, or found no RDMA stack.
pub(crate) const DEVICE_REASONS: [Reason; 8] = [
    Reason::SendFailed,
    Reason::NoNeighbour,
    Reason::NoRoute,
    Reason::SendTooLong,
    Reason::BadIcrc,
    Reason::BadUdpChecksum,
    Reason::ReceiveOverflow,
    Reason::PeerPortClosed,
];

/// The counts of [`DEVICE_REASONS`].
#[cold]
pub(crate) fn device_counts(counters: &Counters) -> [u64; DEVICE_REASONS.len()] {
    DEVICE_REASONS.map(|reason| counters.reason(reason))
}

/// What the packets of one queue pair have met: the first few reasons, with their counts. Nothing is noted of a packet that is
/// handled as usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReasonTally {
    counts: [u16; TALLIED],
    /// Numbers of the reasons plus one; 0 where there is none.
    reasons: [u8; TALLIED],
}

const _: () = assert!(Reason::COUNT < u8::MAX as usize, "the numbers of reasons fit into the places of a tally");

impl ReasonTally {
    /// Counts a reason, if there is place for it.
    pub fn count(&mut self, reason: Reason) {
        let number = reason.index() as u8 + 1;
        for (place, count) in self.reasons.iter_mut().zip(&mut self.counts) {
            if *place == number || *place == 0 {
                (*place, *count) = (number, count.saturating_add(1));
                return;
            }
        }
    }
    /// Numbers of reasons, and their counts.
    pub fn to_list(self) -> Vec<(u16, u32)> {
        let all = self.reasons.iter().zip(self.counts);
        all.filter(|(place, _)| **place > 0).map(|(place, count)| (u16::from(*place) - 1, u32::from(count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_the_first_reasons_that_come() {
        let mut tally = ReasonTally::default();
        for reason in [Reason::StaleAck, Reason::AckTimeout, Reason::StaleAck] {
            tally.count(reason);
        }
        Reason::ALL.iter().for_each(|reason| tally.count(*reason));
        let list = tally.to_list();
        assert_eq!(list.len(), TALLIED);
        assert_eq!(list[0], (Reason::StaleAck.index() as u16, 3));
        assert_eq!(list[1], (Reason::AckTimeout.index() as u16, 2));
        assert_eq!(list[2], (0, 1));
    }
}
