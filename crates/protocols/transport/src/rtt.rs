//! Round trips of a queue pair, and the times that follow from them: when to probe, when a time-out has come, how much reordering
//! is tolerated (selective repeat).
//!
//! Smoothed round trip and variation are those of RFC 6298. A measurement is the time from sending a packet to the
//! acknowledgement that reports it, without the time that the peer says it took to answer. Packets that were repeated measure
//! nothing (Karn). The longest time that the peer took to answer is halved after each [`DELAY_WINDOW`] measurements in which
//! none took as long: one slow answer does not make all later waits long. The tolerance for reordering is that of RFC 8985
//! (RACK): zero until the path has reordered, then quarters of a round trip, at most one, and forgotten after
//! [`CLEAN_RECOVERIES`] recoveries without reordering.

use burst_base::{Nanos, RtoMode};

/// Shortest retransmission time-out.
const fn timeout_min(mode: RtoMode) -> Nanos {
    match mode {
        RtoMode::Shared => Nanos::from_ms(1),
        RtoMode::Dedicated | RtoMode::Irn => Nanos::from_us(100),
    }
}

/// Shortest time until a probe.
const fn probe_min(mode: RtoMode) -> Nanos {
    match mode {
        // With IRN's time-outs only the standard family has probes.
        RtoMode::Shared | RtoMode::Irn => Nanos::from_us(200),
        RtoMode::Dedicated => Nanos::from_us(20),
    }
}

/// IRN's time-outs, with few packets in flight and with more.
const IRN_TIMEOUTS: [Nanos; 2] = [Nanos::from_us(100), Nanos::from_us(320)];
/// Packets that are few.
const IRN_FEW: u32 = 3;
/// Retransmission time-out before the first measurement.
pub(crate) const RTO_FIRST: Nanos = Nanos::from_ms(10);
/// Probes before a time-out.
pub(crate) const PROBES_MAX: u8 = 2;
/// A time-out is doubled at most this often.
const BACKOFF_MAX: u8 = 6;
/// Measurements below the longest time of the peer after which half of it counts.
const DELAY_WINDOW: u8 = 64;
/// Recoveries without reordering after which it is forgotten (RFC 8985, 6.2).
const CLEAN_RECOVERIES: u8 = 16;
/// Most quarters of a round trip that are tolerated.
const QUARTERS_MAX: u8 = 4;
/// A measurement costs as much as a tenth of a short message, and the round trip of a path changes slowly.
const TURNS_PER_MEASUREMENT: u8 = 16;
/// Longest round trip that is believed.
const RTT_MAX: u64 = 1_000_000_000;

/// Round trips of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttEstimate {
    /// Smoothed round trip in nanoseconds; 0 before the first measurement.
    srtt: u32,
    /// Variation in nanoseconds; before the first measurement the wait in which an answer has come, 1 after the first, 0 before.
    rttvar: u32,
    /// Longest time that the peer took to answer lately, in nanoseconds.
    delay_max: u32,
    /// Measurements since one took as long.
    shorter: u8,
    reordering: Reordering,
    /// Turns of sending that are not measured before the next one is.
    unmeasured: u8,
    mode: RtoMode,
}

impl RttEstimate {
    /// Nothing is known of the path.
    pub(crate) fn new(mode: RtoMode) -> RttEstimate {
        RttEstimate { mode, ..RttEstimate::default() }
    }
    pub(crate) fn mode(&self) -> RtoMode {
        self.mode
    }
    /// A turn has sent something. Whether it is to be measured: `each` is, or one of [`TURNS_PER_MEASUREMENT`].
    #[inline]
    pub(crate) fn is_due(&mut self, each: bool) -> bool {
        let is_due = each || self.unmeasured == 0;
        self.unmeasured = if is_due { TURNS_PER_MEASUREMENT } else { self.unmeasured } - 1;
        is_due
    }
    /// The next turn is to be measured: the last measurement has failed, or what is known may be old.
    pub(crate) fn measure_next(&mut self) {
        self.unmeasured = 0;
    }
    /// A measurement: `elapsed` from sending to acknowledgement, of which the peer took `delay` to answer.
    pub(crate) fn measured(&mut self, elapsed: Nanos, delay: Nanos) {
        let rtt = elapsed.0.saturating_sub(delay.0).clamp(1, RTT_MAX) as u32;
        let delay = delay.0.min(RTT_MAX) as u32;
        self.shorter += 1;
        if delay >= self.delay_max {
            (self.delay_max, self.shorter) = (delay, 0);
        } else if self.shorter == DELAY_WINDOW {
            (self.delay_max, self.shorter) = (delay.max(self.delay_max / 2), 0);
        }
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (rtt, rtt / 2);
            return;
        }
        self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(rtt) / 4;
        self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
    }
    /// Whether a round trip was measured.
    pub(crate) fn smoothed(&self) -> Nanos {
        Nanos(self.srtt.into())
    }
    pub(crate) fn is_known(&self) -> bool {
        self.srtt != 0
    }
    fn base(&self) -> u64 {
        u64::from(self.srtt) + 4 * u64::from(self.rttvar)
    }
    /// An answer has come in a wait of this length, which time-outs had made longer, and measures nothing, because all was sent
    /// twice. The second time this is so of all that was sent, no wait is shorter until the first measurement (RFC 6298, 5.5 to
    /// 5.7): nothing would ever be sent once. The first time the peer may only have paused.
    pub(crate) fn answered_in(&mut self, wait: Nanos) {
        if self.srtt == 0 {
            self.rttvar = if self.rttvar == 0 { 1 } else { self.rttvar.max(wait.0.min(RTT_MAX) as u32) };
        }
    }
    /// How long an answer takes at most, as far as measurements tell. Before the first: the longest wait in which one has come,
    /// if that was longer than the program's. 0 if nothing is known, and with IRN's time-outs.
    pub(crate) fn answered_within(&self) -> Nanos {
        Nanos(match (self.mode, self.srtt) {
            (RtoMode::Irn, _) => 0,
            (_, 0) => self.rttvar.into(),
            (_, srtt) => self.base().max(2 * u64::from(srtt)) + u64::from(self.delay_max),
        })
    }
    /// How long to wait for an acknowledgement before the last packet is repeated to provoke one, after `probes` without an
    /// answer. Before the first measurement each wait is twice the one before: the path may be longer than the first.
    pub(crate) fn probe_after(&self, probes: u8) -> Nanos {
        if self.srtt == 0 {
            return Nanos(RTO_FIRST.0 << probes.min(BACKOFF_MAX));
        }
        let wait = self.base().max(2 * u64::from(self.srtt)) + u64::from(self.delay_max);
        Nanos(wait).max(probe_min(self.mode))
    }
    /// How long to wait until all that is unacknowledged, `packets`, is lost, after `backoff` time-outs without progress.
    pub(crate) fn timeout_after(&self, backoff: u8, packets: u32) -> Nanos {
        let first = match self.mode {
            RtoMode::Irn => IRN_TIMEOUTS[usize::from(packets > IRN_FEW)].0,
            _ if self.srtt == 0 => RTO_FIRST.0,
            _ => self.base() + u64::from(self.delay_max),
        };
        Nanos(first.max(timeout_min(self.mode).0) << backoff.min(BACKOFF_MAX))
    }
    /// How long a missing packet may come after those behind it.
    pub(crate) fn tolerance(&self) -> Nanos {
        Nanos(u64::from(self.srtt) / u64::from(QUARTERS_MAX) * u64::from(self.reordering.quarters()))
    }
    /// The path has reordered packets.
    pub(crate) fn on_reordering(&mut self) {
        self.reordering = Reordering::new((self.reordering.quarters() + 1).min(QUARTERS_MAX), 0);
    }
    /// All that was missing has arrived.
    pub(crate) fn on_recovered(&mut self) {
        let (quarters, clean) = (self.reordering.quarters(), self.reordering.clean());
        let clean = clean + u8::from(quarters > 0);
        self.reordering = match clean {
            CLEAN_RECOVERIES.. => Reordering::default(),
            clean => Reordering::new(quarters, clean),
        };
    }
}

/// Quarters of a round trip that are tolerated, and recoveries without reordering since it was last seen, in one byte: a queue
/// pair has no room for two.
#[derive(Clone, Copy, Debug, Default)]
struct Reordering(u8);

const _: () = assert!(CLEAN_RECOVERIES <= 16 && QUARTERS_MAX < 16);

impl Reordering {
    fn new(quarters: u8, clean: u8) -> Reordering {
        Reordering(quarters << 4 | clean)
    }
    fn quarters(self) -> u8 {
        self.0 >> 4
    }
    fn clean(self) -> u8 {
        self.0 & 15
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_MIN: Nanos = timeout_min(RtoMode::Shared);
    const PROBE_MIN: Nanos = probe_min(RtoMode::Shared);

    #[test]
    fn hosts_with_processors_of_their_own_and_irn_have_shorter_waits() {
        let us = Nanos::from_us;
        let of = |mode| {
            let mut rtt = RttEstimate::new(mode);
            let first = rtt.timeout_after(0, 9);
            (0..100).for_each(|_| rtt.measured(us(5), Nanos(0)));
            (
                first,
                rtt.probe_after(0),
                [(0, 3), (0, 4), (2, 1)].map(|(tries, packets)| rtt.timeout_after(tries, packets)),
            )
        };
        assert_eq!(of(RtoMode::Shared), (RTO_FIRST, us(200), [us(1_000), us(1_000), us(4_000)]));
        assert_eq!(of(RtoMode::Dedicated), (RTO_FIRST, us(20), [us(100), us(100), us(400)]));
        let (first, _, later) = of(RtoMode::Irn);
        assert_eq!((first, later), (us(320), [us(100), us(320), us(400)]));
    }

    #[test]
    fn times_follow_the_measured_round_trips() {
        let mut rtt = RttEstimate::default();
        let first = [0, 1, 2].map(|probes| rtt.probe_after(probes));
        assert_eq!(first, [1, 2, 4].map(|factor| Nanos(factor * RTO_FIRST.0)));
        assert_eq!((rtt.timeout_after(0, 9), rtt.tolerance()), (RTO_FIRST, Nanos(0)));
        (0..100).for_each(|_| rtt.measured(Nanos::from_us(550), Nanos::from_us(50)));
        let srtt = rtt.srtt;
        assert!((490_000..=500_000).contains(&srtt), "{srtt}");
        let probe = rtt.probe_after(0).0;
        assert!((1_000_000..1_100_000).contains(&probe), "twice the round trip and the delay: {probe}");
        assert_eq!(rtt.timeout_after(0, 9), TIMEOUT_MIN);
        assert_eq!(rtt.timeout_after(2, 9), Nanos(4 * TIMEOUT_MIN.0));
        assert_eq!(rtt.timeout_after(200, 9), rtt.timeout_after(BACKOFF_MAX, 9));
    }

    #[test]
    fn reordering_is_tolerated_up_to_a_round_trip_and_forgotten() {
        let mut rtt = RttEstimate::default();
        rtt.measured(Nanos(8000), Nanos(0));
        rtt.on_reordering();
        assert_eq!(rtt.tolerance(), Nanos(2000));
        (0..9).for_each(|_| rtt.on_reordering());
        assert_eq!(rtt.tolerance(), Nanos(8000));
        (0..CLEAN_RECOVERIES - 1).for_each(|_| rtt.on_recovered());
        assert_eq!(rtt.tolerance(), Nanos(8000));
        rtt.on_recovered();
        assert_eq!(rtt.tolerance(), Nanos(0));
    }

    #[test]
    fn estimates_follow_measurements_by_the_weights_of_rfc_6298() {
        let ms = Nanos::from_ms;
        let mut rtt = RttEstimate::default();
        rtt.measured(ms(8), ms(0));
        assert_eq!((rtt.srtt, rtt.rttvar), (8_000_000, 4_000_000));
        assert_eq!(
            (rtt.probe_after(0), rtt.timeout_after(0, 9)),
            (ms(24), ms(24)),
            "round trip and four times its variation"
        );
        // 8 ms more, and 1 ms in which the peer did not answer.
        rtt.measured(ms(17), ms(1));
        assert_eq!((rtt.srtt, rtt.rttvar), (9_000_000, 5_000_000), "an eighth of it, and a quarter");
        assert_eq!(
            (rtt.probe_after(0), rtt.timeout_after(0, 9)),
            (ms(30), ms(30)),
            "and the time until the peer answers"
        );
        rtt.measured(ms(9), Nanos(0));
        assert_eq!((rtt.srtt, rtt.rttvar, rtt.delay_max), (9_000_000, 3_750_000, 1_000_000), "the longest time counts");
        assert_eq!((rtt.timeout_after(1, 9), rtt.timeout_after(6, 9)), (ms(50), ms(25 << 6)));
        rtt.on_reordering();
        rtt.on_reordering();
        assert_eq!(rtt.tolerance(), Nanos(4_500_000), "two quarters of a round trip");
        // Short round trips: a software peer needs more time than the path.
        let mut short = RttEstimate::default();
        short.measured(Nanos(10_000), Nanos(0));
        assert_eq!((short.probe_after(0), short.timeout_after(0, 9)), (PROBE_MIN, TIMEOUT_MIN));
        assert_eq!(short.timeout_after(3, 9), Nanos(8 * TIMEOUT_MIN.0));
        // A steady path: twice its round trip.
        let mut steady = RttEstimate { srtt: 1_000_000, rttvar: 100_000, ..RttEstimate::default() };
        assert_eq!((steady.probe_after(0), steady.timeout_after(0, 9)), (ms(2), Nanos(1_400_000)));
        steady.delay_max = 300_000;
        assert_eq!((steady.probe_after(0), steady.timeout_after(0, 9)), (Nanos(2_300_000), Nanos(1_700_000)));
    }

    #[test]
    fn one_slow_answer_is_forgotten() {
        let us = Nanos::from_us;
        let mut rtt = RttEstimate::default();
        (0..40).for_each(|_| rtt.measured(us(2_000), us(0)));
        rtt.measured(us(42_000), us(40_000));
        assert_eq!(rtt.delay_max, 40_000_000);
        // Answers take 30 us from then on.
        for halvings in 0..12 {
            for _ in 0..DELAY_WINDOW {
                assert_eq!(rtt.delay_max, (40_000_000 >> halvings).max(30_000), "{halvings}");
                rtt.measured(us(2_030), us(30));
            }
        }
        assert!(rtt.probe_after(0) < us(4_500) && rtt.timeout_after(0, 9) < us(2_500));
    }

    #[test]
    fn reordering_begins_a_new_count_of_clean_recoveries() {
        let mut rtt = RttEstimate { srtt: 8_000, ..RttEstimate::default() };
        (0..3 * CLEAN_RECOVERIES).for_each(|_| rtt.on_recovered());
        rtt.on_reordering();
        (1..CLEAN_RECOVERIES).for_each(|_| rtt.on_recovered());
        rtt.on_reordering();
        (1..CLEAN_RECOVERIES).for_each(|_| rtt.on_recovered());
        assert_eq!(rtt.tolerance(), Nanos(4_000));
        rtt.on_recovered();
        rtt.on_reordering();
        assert_eq!(rtt.tolerance(), Nanos(2_000), "forgotten, and met again");
    }

    #[test]
    fn impossible_measurements_do_no_harm() {
        let mut rtt = RttEstimate::default();
        rtt.measured(Nanos(5), Nanos(u64::MAX));
        rtt.measured(Nanos(u64::MAX), Nanos(0));
        assert!(rtt.timeout_after(6, 9) < Nanos::from_ms(1_000_000) && rtt.probe_after(0) >= PROBE_MIN);
    }
}
