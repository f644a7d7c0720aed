//! What a record of a failure must know that nothing else counts: what the packets of one queue pair met, and what the device has
//! counted since a path began.
//!
//! A tally has six places: the first six reasons, each with a count up to 65,535. Packets that are handled as usual have
//! no reason.

use crate::counters::Counters;
use burst_base::{Nanos, Reason};
use burst_control::failures::LastPacketRecord;
use burst_wire::{Bth, Opcode};

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

/// Bits of a time that [`LastPackets`] leaves out: it counts in 65.5 us, up to 78 hours.
const TIME_SHIFT: u32 = 16;

/// The last packet that a queue pair has sent, and the last one that it has received: when, opcode and PSN. It is small, because
/// each idle queue pair has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPackets {
    at: [u32; 2],
    /// Opcode above the PSN; all bits are set if there was no packet.
    words: [u32; 2],
}

impl Default for LastPackets {
    fn default() -> Self {
        LastPackets { at: [0; 2], words: [u32::MAX; 2] }
    }
}

impl LastPackets {
    const fn time(at: Nanos) -> u32 {
        (at.0 >> TIME_SHIFT) as u32
    }
    /// It receives packets of a burst.
    #[inline]
    pub fn received_at(&mut self, at: Nanos) {
        self.at[1] = LastPackets::time(at);
    }
    /// It receives a packet, of the burst of [`LastPackets::received_at`].
    #[inline]
    pub fn received(&mut self, bth: &Bth) {
        self.words[1] = u32::from(bth.opcode as u8) << 24 | bth.psn.get();
    }
    /// It has sent a packet with this opcode, in the upper 8 bits, and PSN.
    #[inline]
    pub fn sent(&mut self, at: Nanos, word: u32) {
        self.at[0] = LastPackets::time(at);
        self.words[0] = word;
    }
    /// The last packets sent and received, as they are shown at `now`.
    #[cold]
    pub fn records(&self, now: Nanos) -> [Option<LastPacketRecord>; 2] {
        [0, 1].map(|way| {
            let word = self.words[way];
            let opcode = Opcode::from_number((word >> 24) as u8)?;
            let ago_ns = u64::from(LastPackets::time(now).wrapping_sub(self.at[way])) << TIME_SHIFT;
            Some(LastPacketRecord { ago_ns, opcode: opcode.name().into(), psn: word & 0xff_ffff })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::{Psn, Qpn};

    #[test]
    fn the_last_packet_each_way_is_known_with_its_time() {
        let mut last = LastPackets::default();
        let unit = |count: u64| Nanos(count << TIME_SHIFT);
        assert_eq!(last.records(unit(9)), [None, None]);
        last.sent(unit(3), 0x0401_0203);
        last.received_at(unit(7));
        last.received(&Bth::new(Opcode::RcAck, Qpn::new(6), Psn::new(0xfffffe)));
        let record = |ago_ns, opcode: &str, psn| Some(LastPacketRecord { ago_ns, opcode: opcode.into(), psn });
        let [sent, received] = [unit(6).0, unit(2).0];
        assert_eq!(
            last.records(unit(9)),
            [record(sent, "RC SEND Only", 0x010203), record(received, "RC Acknowledge", 0xfffffe)]
        );
    }

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
