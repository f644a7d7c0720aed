//! Messages: what is to be sent when, and what has become of it.
//!
//! A [`TrafficSource`] turns one part of a scenario's traffic into messages. Open-loop patterns (Poisson, incast, all-to-all,
//! permutation) know the times; closed-loop patterns (stream, ring) begin a message when an earlier one has ended or has been
//! received.

use crate::node::Verb;
use crate::scenario::{Pattern, Sizes, TrafficPart};
use burst_base::rng::Rng;
use burst_fabric::traffic::{SizeTable, permutation};

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimMessage {
    /// When it begins, in picoseconds.
    pub at: u64,
    /// TrafficSource of the bytes.
    pub from: u32,
    /// Destination of the bytes.
    pub to: u32,
    /// Bytes.
    pub bytes: u64,
    /// Identifies the connection among those of the pattern; messages of one lane go one after the other on one connection.
    /// `None`: any free connection.
    pub lane: Option<u32>,
    /// The pattern's own number.
    pub tag: u64,
}

/// A message on its way or at its end.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The message.
    pub message: SimMessage,
    /// Which part of the traffic it belongs to.
    pub traffic: u16,
    /// The verb.
    pub verb: Verb,
    /// The connection.
    pub connection: u32,
    /// Offsets in the memory of source and destination.
    pub memory: [u64; 2],
    /// When the completion came, in picoseconds; 0: not yet.
    pub end: u64,
    /// `WcStatus` of the completion.
    pub status: u8,
}

/// Makes the messages of one part of the traffic.
pub struct TrafficSource {
    traffic: TrafficPart,
    hosts: u32,
    rate_bps: u64,
    sizes: Option<SizeTable>,
    /// Messages whose time is known, the next one last.
    planned: Vec<SimMessage>,
    /// The next round of a pattern that repeats.
    next_round: Option<u64>,
    /// For `Poisson`: the next time of each host, in a heap by time.
    arrivals: std::collections::BinaryHeap<std::cmp::Reverse<(u64, u32)>>,
    /// Random numbers of each host.
    forks: Vec<Rng>,
    /// Random numbers of the whole pattern.
    rng: Rng,
    /// Messages of a stream that have begun.
    begun: u64,
}

/// Picoseconds per second.
const SECOND: f64 = 1e12;

/// An exponentially distributed number with mean 1.
pub fn exponential(rng: &mut Rng) -> f64 {
    // 53 bits, never 0.
    let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -natural_log(uniform)
}

/// The natural logarithm of a number in (0, 1], by operations that give the same bits on every machine (the mathematics
/// libraries of systems differ in the last bit): the exponent apart, and a series for the mantissa.
fn natural_log(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1_023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1_023 << 52);
    // ln m = 2 (z + z³/3 + z⁵/5 + …) with z = (m - 1) / (m + 1), at most 1/3.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut term, mut sum, square) = (z, 0.0, z * z);
    for odd in 0..20 {
        sum += term / f64::from(2 * odd + 1);
        term *= square;
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

impl TrafficSource {
    /// The source of `traffic` among so many hosts, whose links have this rate.
    pub fn new(traffic: &TrafficPart, hosts: u32, rate_bps: u64, mut rng: Rng) -> TrafficSource {
        let sizes = match &traffic.pattern {
            Pattern::Poisson { sizes: Sizes::Table(name), .. } => SizeTable::published(name),
            Pattern::Poisson { sizes: Sizes::Own(steps), .. } => SizeTable::new(steps).ok(),
            _ => None,
        };
        let forks = (0..hosts).map(|_| rng.fork()).collect();
        let mut source = TrafficSource {
            traffic: traffic.clone(),
            hosts,
            rate_bps,
            sizes,
            planned: Vec::new(),
            next_round: None,
            arrivals: Default::default(),
            forks,
            rng,
            begun: 0,
        };
        source.begin();
        source
    }

    fn begin(&mut self) {
        let begin = self.traffic.begin;
        match self.traffic.pattern {
            Pattern::Stream { depth, .. } => {
                for _ in 0..depth {
                    self.plan_stream(begin);
                }
            }
            Pattern::Poisson { .. } => (0..self.hosts).for_each(|host| self.plan_arrival(begin, host)),
            Pattern::Ring { .. } => (0..self.hosts).for_each(|host| self.plan_ring(begin, host, 0)),
            _ => self.next_round = Some(begin),
        }
    }

    fn plan_stream(&mut self, at: u64) {
        let Pattern::Stream { from, to, bytes, count, .. } = self.traffic.pattern else { return };
        if self.begun < count && at < self.traffic.end {
            self.planned.push(SimMessage { at, from, to, bytes, lane: Some(0), tag: self.begun });
            self.begun += 1;
        }
    }

    fn mean_bytes(&self) -> f64 {
        match (&self.traffic.pattern, &self.sizes) {
            (Pattern::Poisson { sizes: Sizes::Fixed(bytes), .. }, _) => *bytes as f64,
            (_, Some(table)) => table.mean(),
            _ => 1.0,
        }
    }

    fn plan_arrival(&mut self, after: u64, host: u32) {
        let Pattern::Poisson { load, .. } = self.traffic.pattern else { return };
        let mean_gap = self.mean_bytes() * 8.0 / (load * self.rate_bps as f64) * SECOND;
        let at = after + (exponential(&mut self.forks[host as usize]) * mean_gap) as u64;
        if at < self.traffic.end {
            self.arrivals.push(std::cmp::Reverse((at, host)));
        }
    }

    /// Step `tag` of host `from` in the ring: reduce and gather are 2 (n - 1) steps of 1/n of the bytes.
    fn plan_ring(&mut self, at: u64, from: u32, tag: u64) {
        let Pattern::Ring { bytes } = self.traffic.pattern else { return };
        let steps = 2 * u64::from(self.hosts - 1);
        let is_new_round = tag.is_multiple_of(steps);
        if at < self.traffic.end || !is_new_round {
            let bytes = bytes.div_ceil(u64::from(self.hosts)).max(1);
            self.planned.push(SimMessage { at, from, to: (from + 1) % self.hosts, bytes, lane: Some(from), tag });
        }
    }

    fn plan_round(&mut self, at: u64) {
        let (hosts, mut round) = (self.hosts, Vec::new());
        let mut message = |from: u32, to: u32, bytes: u64| {
            round.push(SimMessage { at, from, to, bytes, lane: None, tag: 0 });
        };
        let every = match self.traffic.pattern {
            Pattern::Incast { to, senders, bytes, every } => {
                (0..hosts).filter(|from| *from != to).take(senders as usize).for_each(|from| message(from, to, bytes));
                every
            }
            Pattern::AllToAll { bytes, every } => {
                // Round-robin, so that not all send to the same host first.
                for shift in 1..hosts {
                    (0..hosts).for_each(|from| message(from, (from + shift) % hosts, bytes));
                }
                every
            }
            Pattern::Permutation { shift, bytes, every } => {
                let to = match shift {
                    Some(shift) => (0..hosts).map(|from| (from + shift) % hosts).collect(),
                    None => permutation(hosts, &mut self.rng),
                };
                (0..hosts).zip(to).for_each(|(from, to)| message(from, to, bytes));
                every
            }
            _ => 0,
        };
        round.reverse();
        self.planned = round;
        self.next_round = (every > 0 && at + every < self.traffic.end).then_some(at + every);
    }

    /// The time of the next message.
    pub fn next_at(&self) -> Option<u64> {
        let planned = self.planned.last().map(|message| message.at);
        let arrival = self.arrivals.peek().map(|next| next.0.0);
        [planned, arrival, self.next_round].into_iter().flatten().min()
    }

    /// Takes a message whose time has come.
    pub fn take(&mut self, now: u64) -> Option<SimMessage> {
        if self.planned.is_empty()
            && let Some(at) = self.next_round.filter(|at| *at <= now)
        {
            self.plan_round(at);
        }
        if self.planned.last().is_some_and(|message| message.at <= now) {
            return self.planned.pop();
        }
        let std::cmp::Reverse((at, from)) = self.arrivals.peek().copied().filter(|next| next.0.0 <= now)?;
        self.arrivals.pop();
        let rng = &mut self.forks[from as usize];
        let other = (rng.next_u64() % u64::from(self.hosts - 1)) as u32;
        let to = if other >= from { other + 1 } else { other };
        let bytes = match (&self.traffic.pattern, &self.sizes) {
            (Pattern::Poisson { sizes: Sizes::Fixed(bytes), .. }, _) => *bytes,
            (_, Some(table)) => table.sample((rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64),
            _ => 1,
        };
        self.plan_arrival(at, from);
        Some(SimMessage { at, from, to, bytes: bytes.max(1), lane: None, tag: 0 })
    }

    /// A message has arrived whole, and the program at its destination knows it.
    pub fn on_receipt(&mut self, now: u64, message: &SimMessage) {
        // The next host passes on what it has got.
        self.plan_ring(now, message.to, message.tag + 1);
    }

    /// A message has arrived whole, and the program that has posted its request knows it.
    pub fn on_end(&mut self, now: u64) {
        self.plan_stream(now);
    }

    /// A message was lost with a host that has restarted, and may be tried again at `at`.
    pub fn on_loss(&mut self, at: u64) {
        self.plan_stream(at);
    }

    /// The part of the traffic.
    pub fn traffic(&self) -> &TrafficPart {
        &self.traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_exact_to_15_digits() {
        for k in 1..=1_000 {
            let x = f64::from(k) / 1_000.0;
            assert!((natural_log(x) - x.ln()).abs() <= 1e-15 * x.ln().abs().max(1.0), "{x}");
        }
        assert!((natural_log(1e-16) - 1e-16f64.ln()).abs() < 1e-13);
    }

    fn source(pattern: Pattern, hosts: u32) -> TrafficSource {
        let traffic = TrafficPart { pattern, verb: Verb::Write, class: 0, begin: 0, end: 10_000_000_000 };
        TrafficSource::new(&traffic, hosts, 100_000_000_000, Rng::new(1))
    }

    fn all(source: &mut TrafficSource) -> Vec<SimMessage> {
        std::iter::from_fn(|| source.next_at().and_then(|at| source.take(at))).collect()
    }

    #[test]
    fn poisson_offers_its_load() {
        let mut source = source(Pattern::Poisson { sizes: Sizes::Fixed(50_000), load: 0.7 }, 16);
        let messages = all(&mut source);
        let offered: u64 = messages.iter().map(|message| message.bytes * 8).sum();
        let load = offered as f64 / (16.0 * 100e9 * 0.01);
        assert!((load - 0.7).abs() < 0.02, "{load}");
        assert!(messages.is_sorted_by_key(|message| message.at) && messages.iter().all(|m| m.from != m.to));
    }

    #[test]
    fn rounds_repeat() {
        let messages = all(&mut source(Pattern::Incast { to: 1, senders: 3, bytes: 5, every: 4_000_000_000 }, 5));
        let expect: Vec<(u64, u32, u32)> =
            [0, 4, 8].into_iter().flat_map(|ms| [0, 2, 3].map(|from| (ms * 1_000_000_000, from, 1))).collect();
        assert_eq!(messages.iter().map(|m| (m.at, m.from, m.to)).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn all_to_all_has_every_pair_once() {
        let messages = all(&mut source(Pattern::AllToAll { bytes: 5, every: 0 }, 4));
        let mut pairs: Vec<(u32, u32)> = messages.iter().map(|m| (m.from, m.to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!((messages.len(), pairs.len()), (12, 12));
    }

    #[test]
    fn a_ring_ends_its_round() {
        let mut source = source(Pattern::Ring { bytes: 400 }, 4);
        source.traffic.end = 1;
        let (mut now, mut count) = (0, 0);
        while let Some(message) = source.take(now) {
            assert_eq!(message.bytes, 100);
            (now, count) = (now + 1, count + 1);
            source.on_end(now);
            source.on_receipt(now, &message);
        }
        assert_eq!(count, 4 * 6);
    }

    #[test]
    fn a_host_of_a_ring_begins_a_step_when_it_has_received_the_one_before() {
        let mut source = source(Pattern::Ring { bytes: 400 }, 4);
        let first: Vec<SimMessage> = std::iter::from_fn(|| source.take(0)).collect();
        assert_eq!(first.len(), 4, "all hosts begin");
        source.on_end(5);
        assert_eq!(source.next_at(), None, "that a sender knows of it begins nothing");
        source.on_receipt(7, first.iter().find(|m| m.from == 2).expect("host 2 sends"));
        let next = source.take(7).expect("host 3 goes on");
        assert_eq!((next.at, next.from, next.to, next.tag), (7, 3, 0, 1));
        assert_eq!(source.take(7), None);
    }

    #[test]
    fn random_permutations_differ_from_round_to_round() {
        let messages = all(&mut source(Pattern::Permutation { shift: None, bytes: 5, every: 5_000_000_000 }, 16));
        let to: Vec<Vec<u32>> = messages.chunks(16).map(|round| round.iter().map(|m| m.to).collect()).collect();
        assert!(to.len() == 2 && to[0] != to[1] && messages.iter().all(|m| m.from != m.to), "{to:?}");
    }
}
