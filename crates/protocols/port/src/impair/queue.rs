//! A simulated bottleneck: a link of a rate, with a queue before it that marks by RED and drops what does not fit.
//!
//! Marking follows the published meaning of `kmin`, `kmax` and `pmax` (Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", section 3.1): a packet that finds at most `kmin` bytes in the queue is not marked, one that finds more than
//! `kmax` is marked, and between them the probability rises linearly to `pmax`. With `kmin` = `kmax` this is DCTCP's step.

use crate::spec::{ImpairSpec, Ppm};
use burst_base::Nanos;
use burst_base::rng::Rng;

/// Bytes of a packet on an Ethernet link beside those that a port sees: preamble, header, FCS, gap, UDP header and ICRC.
const ETHERNET_BYTES: u64 = 8 + 14 + 4 + 12 + 8 + 4;
/// Bytes of IP headers without options.
const V4_BYTES: u64 = 20;
const V6_BYTES: u64 = 40;
const PS_PER_SECOND: u128 = 1_000_000_000_000;

/// What the queue does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    /// It does not fit.
    Dropped,
    /// It has left the link after this time, marked or not.
    Passes { mark: bool, delay_ns: u64 },
}

/// The link and its queue.
#[derive(Debug)]
pub(super) struct LinkQueue {
    bits_per_second: u64,
    limit: u64,
    kmin: u64,
    kmax: u64,
    /// Probability of a mark at `kmax`.
    pmax: f64,
    /// When the link has sent all that waits, in picoseconds of the port's clock.
    free_at: u128,
    rng: Rng,
}

impl LinkQueue {
    /// The queue of `spec`; `None` if it names no rate.
    pub fn new(spec: &ImpairSpec, salt: u64) -> Option<LinkQueue> {
        let limit = u64::from(spec.queue);
        // Without thresholds nothing is marked; one alone is a step.
        let (kmin, kmax) = match (spec.kmin, spec.kmax) {
            (None, None) => (u64::MAX, u64::MAX),
            (Some(k), None) | (None, Some(k)) => (u64::from(k), u64::from(k)),
            (Some(kmin), Some(kmax)) => (u64::from(kmin), u64::from(kmax.max(kmin))),
        };
        let pmax = f64::from(spec.pmax.0) / f64::from(Ppm::ONE.0);
        let rng = Rng::new(spec.seed ^ salt);
        let bits_per_second = spec.rate;
        debug_assert!(kmin <= kmax && (0.0..=1.0).contains(&pmax));
        (bits_per_second > 0).then_some(LinkQueue { bits_per_second, limit, kmin, kmax, pmax, free_at: 0, rng })
    }

    /// Adds a packet of `len` bytes from the base transport header to the end of the payload.
    pub fn add(&mut self, now: Nanos, len: usize, is_v4: bool) -> Queued {
        let waiting = self.waiting(now);
        let now = u128::from(now.0) * 1000;
        let bytes = len as u64 + ETHERNET_BYTES + if is_v4 { V4_BYTES } else { V6_BYTES };
        if waiting + bytes > self.limit {
            return Queued::Dropped;
        }
        let mark = self.marks(waiting);
        let time = u128::from(bytes) * 8 * PS_PER_SECOND / u128::from(self.bits_per_second);
        self.free_at = self.free_at.max(now) + time;
        let delay_ns = (self.free_at - now).div_ceil(1000) as u64;
        debug_assert!(delay_ns > 0);
        debug_assert!(self.free_at > now, "the link is busy with this packet");
        Queued::Passes { mark, delay_ns }
    }

    /// Bytes that wait or are being sent.
    pub fn waiting(&self, now: Nanos) -> u64 {
        let time = self.free_at.saturating_sub(u128::from(now.0) * 1000);
        (time * u128::from(self.bits_per_second) / (8 * PS_PER_SECOND)) as u64
    }

    fn marks(&mut self, waiting: u64) -> bool {
        if waiting <= self.kmin {
            return false;
        }
        if waiting > self.kmax {
            return true;
        }
        let part = (waiting - self.kmin) as f64 / (self.kmax - self.kmin) as f64;
        self.rng.unit() < part * self.pmax
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of payload and headers that make 1,250 bytes on the link, 1 us at 10 Gbit/s.
    const LEN: usize = 1_250 - 70;

    fn queue(kmin: Option<u32>, kmax: Option<u32>, pmax: u32) -> LinkQueue {
        let spec =
            ImpairSpec { rate: 10_000_000_000, queue: 125_000, kmin, kmax, pmax: Ppm(pmax), ..ImpairSpec::default() };
        LinkQueue::new(&spec, 0).expect("a rate")
    }

    #[test]
    fn packets_leave_at_the_rate_and_what_does_not_fit_is_dropped() {
        let mut queue = queue(None, None, 0);
        for packet in 1..=100 {
            assert_eq!(queue.add(Nanos(5), LEN, true), Queued::Passes { mark: false, delay_ns: packet * 1_000 });
        }
        assert_eq!((queue.add(Nanos(5), LEN, true), queue.waiting(Nanos(5))), (Queued::Dropped, 125_000));
        assert_eq!((queue.waiting(Nanos(50_005)), queue.waiting(Nanos(200_000))), (62_500, 0));
        assert_eq!(queue.add(Nanos(1_005), LEN, true), Queued::Passes { mark: false, delay_ns: 100_000 });
        // An idle link keeps nothing of the past.
        assert_eq!(queue.add(Nanos::from_ms(1), LEN, true), Queued::Passes { mark: false, delay_ns: 1_000 });
        assert_eq!(queue.add(Nanos::from_ms(2), LEN - 20, false), Queued::Passes { mark: false, delay_ns: 1_000 });
    }

    #[test]
    fn one_threshold_is_a_step() {
        let mut queue = queue(Some(12_500), None, 0);
        let marks: Vec<_> =
            (0..20).map(|_| matches!(queue.add(Nanos(0), LEN, true), Queued::Passes { mark: true, .. })).collect();
        assert!(marks[..11].iter().all(|mark| !mark) && marks[11..].iter().all(|mark| *mark), "{marks:?}");
    }

    #[test]
    fn between_two_thresholds_the_probability_rises() {
        let mut queue = queue(Some(0), Some(100_000), 500_000);
        let marked = |queue: &mut LinkQueue, waiting: u64| (0..10_000).filter(|_| queue.marks(waiting)).count();
        assert_eq!(marked(&mut queue, 0), 0);
        // A quarter of the way, 12.5 %; the standard deviation is 33.
        let quarter = marked(&mut queue, 25_000);
        assert!((1_100..1_400).contains(&quarter), "{quarter}");
        let end = marked(&mut queue, 100_000);
        assert!((4_800..5_200).contains(&end), "{end}");
        assert_eq!(marked(&mut queue, 100_001), 10_000);
    }
}
