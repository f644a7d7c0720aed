//! What acknowledgements of the selective repeat family say of the way to the peer, for congestion control.
//!
//! An acknowledgement has two counters of the peer, cumulative modulo 2^16: packets received, and those of them marked
//! "congestion experienced". Their differences to the acknowledgement before are what arrived since; a lost acknowledgement
//! loses no information. Nothing of it is believed beyond what is plausible: a counter that goes back belongs to an
//! acknowledgement that was overtaken and says nothing, no difference is larger than [`PACKETS_MAX`], and no more packets were
//! marked than arrived. A peer that lies changes the limits of what is sent to its own address.

use crate::api::Env;
use crate::psn_bits::WINDOW_PSNS;
use burst_base::Nanos;
use burst_wire::Saeth;
use burst_wire::selective::DELAY_UNIT_NS;

/// Most packets that arrive between two acknowledgements: everything in the largest window, twice.
const PACKETS_MAX: u16 = 2 * WINDOW_PSNS as u16;
/// Packets of which nothing may be reported, if they were not marked.
const UNREPORTED_MAX: u16 = 1024;
/// A difference from here on is a counter that has gone back.
const BACK: u16 = 1 << 15;

const _: () = assert!(2 * WINDOW_PSNS < BACK as u32);

/// What one acknowledgement, or several handled together, say of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckReport {
    /// Round trip without `remote_delay`; `None` if no packet that was sent once measures it.
    pub rtt: Option<Nanos>,
    /// Time from the arrival of the newest packet at the peer to the departure of the acknowledgement.
    pub remote_delay: Nanos,
    /// Packets that the peer has received since the report before.
    pub packets: u32,
    /// Those of `packets` that arrived with the ECN codepoint CE.
    pub ce_packets: u32,
    /// Pressure on the peer's receive buffers: 0 none, 1 over half full, 2 over three quarters, 3 packets were lost there.
    pub pressure: u8,
}

impl AckReport {
    /// Adds a later report: counts are summed up, the newest times count, and the highest pressure.
    pub fn add(&mut self, later: &AckReport) {
        self.rtt = later.rtt.or(self.rtt);
        self.remote_delay = later.remote_delay;
        self.packets = self.packets.saturating_add(later.packets);
        self.ce_packets = self.ce_packets.saturating_add(later.ce_packets);
        self.pressure = self.pressure.max(later.pressure);
    }
}

/// The peer's counters in the newest acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EchoedCounts {
    packets: u16,
    ce_packets: u16,
}

impl EchoedCounts {
    /// Whether the peer has received so many packets since the report before that the next one is due.
    #[inline]
    pub(crate) fn is_behind(&self, saeth: &Saeth) -> bool {
        saeth.received_packets.wrapping_sub(self.packets) >= UNREPORTED_MAX
    }
    /// Takes the header of an acknowledgement. `rtt` is what it measures.
    pub(crate) fn take(&mut self, saeth: &Saeth, rtt: Option<Nanos>) -> AckReport {
        let remote_delay = Nanos(u64::from(saeth.delay) * DELAY_UNIT_NS);
        let report = AckReport { rtt, remote_delay, pressure: saeth.pressure.min(3), ..AckReport::default() };
        let packets = saeth.received_packets.wrapping_sub(self.packets);
        if packets >= BACK {
            return report;
        }
        let packets = packets.min(PACKETS_MAX);
        let ce_packets = saeth.congested_packets.wrapping_sub(self.ce_packets);
        let ce_packets = if ce_packets >= BACK { 0 } else { ce_packets.min(packets) };
        *self = EchoedCounts { packets: saeth.received_packets, ce_packets: saeth.congested_packets };
        AckReport { packets: packets.into(), ce_packets: ce_packets.into(), ..report }
    }
}

/// The highest level of host pressure without losses, and host pressure with losses.
const PRESSURE_LEVEL_MAX: u8 = 2;
const PRESSURE_LOST: u8 = 3;

/// Host pressure that an acknowledgement reports, and the losses that it has reported then: those after `lost_seen` are new.
pub(crate) fn pressure_now(lost_seen: Option<u32>, env: &Env<'_>) -> (u8, u32) {
    let host = env.fx.host_pressure();
    let has_lost = lost_seen.is_some_and(|seen| seen != host.lost);
    (if has_lost { PRESSURE_LOST } else { host.level.min(PRESSURE_LEVEL_MAX) }, host.lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;

    fn ack(received_packets: u16, congested_packets: u16) -> Saeth {
        Saeth { received_packets, congested_packets, ..Saeth::default() }
    }
    fn counts(report: AckReport) -> (u32, u32) {
        (report.packets, report.ce_packets)
    }

    #[test]
    fn differences_are_what_arrived_since_also_where_the_counters_wrap() {
        let mut seen = EchoedCounts { packets: 0xfff0, ce_packets: 0xffff };
        assert_eq!(counts(seen.take(&ack(0xfffc, 0xffff), None)), (12, 0));
        assert_eq!(counts(seen.take(&ack(4, 3), None)), (8, 4));
        assert_eq!(counts(seen.take(&ack(4, 3), None)), (0, 0), "said again");
    }

    #[test]
    fn an_acknowledgement_that_was_overtaken_counts_nothing_and_takes_nothing_back() {
        let mut seen = EchoedCounts::default();
        assert_eq!(counts(seen.take(&ack(20, 5), None)), (20, 5));
        assert_eq!(counts(seen.take(&ack(10, 2), None)), (0, 0));
        assert_eq!(counts(seen.take(&ack(24, 6), None)), (4, 1));
    }

    #[test]
    fn delay_and_pressure_are_those_of_the_header() {
        let saeth = Saeth { delay: 100, pressure: 3, ..ack(0, 0) };
        let report = EchoedCounts::default().take(&saeth, Some(Nanos(77)));
        assert_eq!((report.rtt, report.remote_delay, report.pressure), (Some(Nanos(77)), Nanos(6_400), 3));
    }

    #[test]
    fn whatever_a_peer_says_is_plausible() {
        let mut rng = Rng::new(5);
        let mut seen = EchoedCounts::default();
        for _ in 0..100_000 {
            let said = ack(rng.next_u32() as u16, rng.next_u32() as u16);
            let report = seen.take(&Saeth { pressure: rng.next_u32() as u8, ..said }, None);
            assert!(report.packets <= u32::from(PACKETS_MAX) && report.ce_packets <= report.packets);
            assert!(report.pressure <= 3);
        }
    }

    #[test]
    fn reports_of_one_burst_are_summed_up() {
        let mut all = AckReport { rtt: Some(Nanos(5)), packets: 3, ce_packets: 1, pressure: 2, ..AckReport::default() };
        all.add(&AckReport { remote_delay: Nanos(9), packets: 4, ce_packets: 4, pressure: 1, ..AckReport::default() });
        let sum = AckReport { rtt: Some(Nanos(5)), remote_delay: Nanos(9), packets: 7, ce_packets: 5, pressure: 2 };
        assert_eq!(all, sum);
        all.add(&AckReport { rtt: Some(Nanos(6)), packets: u32::MAX, ..AckReport::default() });
        assert_eq!((all.rtt, all.packets), (Some(Nanos(6)), u32::MAX));
    }
}
