//! What a simulation has measured: counted while it runs ([`Tally`]), and as it is written ([`Results`]).

use crate::flows::Transfer;
use crate::run::PacketRun;
use crate::scenario::{Pattern, Scenario};
use crate::topology;
use burst_base::verbs::WcStatus;
use burst_fabric::{Network, Train};
use serde::Serialize;
use std::collections::BTreeMap;

/// Points of each series over time.
const SERIES_POINTS: u64 = 200;
/// Most hosts for which a series is kept.
const SERIES_HOSTS: u32 = 64;
/// Times at which queues are looked at.
const QUEUE_SAMPLES: u64 = 10_000;
/// Parts of the messages, by size, for which slowdowns are given.
const BINS: usize = 20;
/// Picoseconds per microsecond.
const MICROSECOND: f64 = 1e6;

/// A message that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    traffic: u16,
    bytes: u64,
    from: u32,
    to: u32,
    begin: u64,
    end: u64,
}

/// What is counted while a simulation runs.
#[derive(Debug)]
pub struct Tally {
    /// Passes of hosts.
    pub passes: u64,
    /// Trains that have arrived at hosts.
    pub trains: u64,
    /// Packets that have arrived at hosts.
    pub packets: u64,
    /// Packets for which a host had no room.
    pub overflows: u64,
    /// Packets whose ICRC was wrong.
    pub corrupted: u64,
    /// Messages on their way.
    pub in_flight: u64,
    /// Messages that have failed, by part of the traffic; and those of them whose host has restarted.
    failed: Vec<u64>,
    restarted: Vec<u64>,
    /// By part of the traffic and status: those that have failed though no host has restarted.
    statuses: Vec<BTreeMap<u8, u64>>,
    /// Counters of the engines of hosts that have restarted.
    old_counters: BTreeMap<&'static str, u64>,
    /// The first message that has failed and whose hosts have not restarted.
    pub first_failure: Option<Transfer>,
    ended: Vec<Ended>,
    warm_up: u64,
    interval: u64,
    /// When queues are looked at next, from one time to the next, and the sum of what was found so often.
    sample_at: u64,
    sample_every: u64,
    queue_sum: u64,
    samples: u64,
    /// By source: bytes that have arrived in each interval.
    series: Vec<Vec<u64>>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(scenario: &Scenario) -> Tally {
        let hosts = if scenario.hosts <= SERIES_HOSTS { scenario.hosts as usize } else { 0 };
        Tally {
            passes: 0,
            trains: 0,
            packets: 0,
            overflows: 0,
            corrupted: 0,
            in_flight: 0,
            failed: vec![0; scenario.traffic.len()],
            restarted: vec![0; scenario.traffic.len()],
            statuses: vec![BTreeMap::new(); scenario.traffic.len()],
            old_counters: BTreeMap::new(),
            first_failure: None,
            ended: Vec::new(),
            warm_up: scenario.warm_up,
            interval: scenario.time.div_ceil(SERIES_POINTS).max(1),
            sample_at: scenario.warm_up,
            sample_every: (scenario.time - scenario.warm_up).div_ceil(QUEUE_SAMPLES).max(1),
            queue_sum: 0,
            samples: 0,
            series: vec![vec![0; SERIES_POINTS as usize]; hosts],
        }
    }

    /// Messages that have failed though their hosts have not restarted.
    pub fn failed(&self) -> u64 {
        self.failed.iter().sum::<u64>() - self.restarted.iter().sum::<u64>()
    }

    /// Keeps the counters of an engine that is lost.
    pub fn keep_counters(&mut self, counters: &[(&'static str, u64)]) {
        for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
            *self.old_counters.entry(name).or_insert(0) += value;
        }
    }

    /// Counters of the engines that are lost.
    pub fn old_counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.old_counters
    }

    /// A message has begun.
    pub fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A message has ended; `by_restart` if one of its hosts has restarted since it began, or is down.
    pub fn end(&mut self, flow: &Transfer, by_restart: bool) {
        self.in_flight -= 1;
        let (message, traffic) = (&flow.message, flow.traffic);
        if flow.status != WcStatus::Success as u8 {
            self.failed[usize::from(traffic)] += 1;
            self.restarted[usize::from(traffic)] += u64::from(by_restart);
            if !by_restart {
                *self.statuses[usize::from(traffic)].entry(flow.status).or_insert(0) += 1;
                self.first_failure.get_or_insert(*flow);
            }
        } else if flow.end >= self.warm_up {
            let (bytes, from, to) = (message.bytes, message.from, message.to);
            self.ended.push(Ended { traffic, bytes, from, to, begin: message.at, end: flow.end });
        }
    }

    /// Nothing happens before `now`: what waits at the switches until then, if it is to be looked at.
    #[inline]
    pub fn on_time(&mut self, now: u64, network: &Network<PacketRun>) {
        if now >= self.sample_at {
            self.sample(now, network.queue_now());
        }
    }

    /// `queue` bytes have waited until `now`.
    #[cold]
    fn sample(&mut self, now: u64, queue: u64) {
        let count = 1 + (now - self.sample_at) / self.sample_every;
        self.sample_at += count * self.sample_every;
        self.queue_sum += count * queue;
        self.samples += count;
    }

    /// A train has arrived at a host at `now`.
    pub fn on_arrival(&mut self, now: u64, train: &Train<PacketRun>, is_corrupted: bool) {
        self.trains += 1;
        self.packets += u64::from(train.count);
        if is_corrupted {
            self.corrupted += u64::from(train.count);
        }
        let bytes = u64::from(train.stride) * u64::from(train.count - 1) + u64::from(train.last);
        if let Some(series) = self.series.get_mut(train.from.0 as usize)
            && let Some(point) = series.get_mut((now / self.interval) as usize)
        {
            *point += bytes;
        }
    }

    /// What is known at `now`.
    pub fn results(&self, scenario: &Scenario, network: &Network<PacketRun>, now: u64) -> Results {
        let traffic = (0..scenario.traffic.len()).map(|part| self.traffic(scenario, network, part as u16)).collect();
        Results {
            version: env!("CARGO_PKG_VERSION"),
            scenario: scenario.name.clone(),
            scenario_hash: format!("{:016x}", scenario.hash),
            seed: scenario.seed,
            cpu: scenario.node.cpu.name,
            payload: scenario.payload.name(),
            is_partial: false,
            hosts: scenario.hosts,
            ack_timeout_us: scenario.node.ack_timeout() as f64 / MICROSECOND,
            simulated_us: now as f64 / MICROSECOND,
            passes: self.passes,
            trains: self.trains,
            packets: self.packets,
            traffic,
            unfinished: self.in_flight,
            network: NetworkTotals {
                queue_bytes_mean: self.queue_sum / self.samples.max(1),
                ..topology::totals(network, self.overflows, self.corrupted)
            },
            engine: BTreeMap::new(),
            interval_us: self.interval as f64 / MICROSECOND,
            series_gbps: self
                .series
                .iter()
                .map(|points| points.iter().map(|bytes| self.gbps(*bytes)).collect())
                .collect(),
        }
    }

    /// The rate at which so many bytes pass in an interval of the series.
    fn gbps(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / (self.interval as f64 / 1e3)
    }

    fn traffic(&self, scenario: &Scenario, network: &Network<PacketRun>, part: u16) -> TrafficResults {
        let traffic = &scenario.traffic[usize::from(part)];
        let all = || self.ended.iter().filter(|ended| ended.traffic == part);
        let ended: Vec<&Ended> = all().filter(|ended| ended.begin >= scenario.warm_up).collect();
        let window = traffic.begin.max(scenario.warm_up)..=traffic.end;
        // What ended while traffic was offered, whenever it began: later the rest has the network for itself. At both ends of
        // this time messages are under way; those that end in it stand for those that begin in it.
        let in_window = all().filter(|ended| window.contains(&ended.end));
        let bytes: u64 = in_window.clone().map(|ended| ended.bytes).sum();
        let seconds = (window.end() - window.start()) as f64 / 1e12;
        let mut by_source = vec![0u64; scenario.hosts as usize];
        in_window.for_each(|ended| by_source[ended.from as usize] += ended.bytes);
        let times: Vec<f64> = ended.iter().map(|ended| (ended.end - ended.begin) as f64 / MICROSECOND).collect();
        let slowdown = |ended: &&Ended| {
            let ideal = topology::ideal_time(scenario, network, ended.from, ended.to, ended.bytes);
            ((ended.end - ended.begin) as f64 / ideal as f64).max(1.0)
        };
        let mut slowdowns: Vec<(u64, f64)> = ended.iter().map(|ended| (ended.bytes, slowdown(ended))).collect();
        slowdowns.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let values = |part: &[(u64, f64)]| part.iter().map(|(_, slowdown)| *slowdown).collect::<Vec<f64>>();
        let mut series = vec![0u64; SERIES_POINTS as usize];
        for ended in all() {
            if let Some(point) = series.get_mut((ended.end / self.interval) as usize) {
                *point += ended.bytes;
            }
        }
        let per_bin = slowdowns.len().div_ceil(BINS).max(1);
        let bins = slowdowns
            .chunks(per_bin)
            .map(|bin| SizeBin { bytes_max: bin[bin.len() - 1].0, slowdown: Distribution::of(values(bin)) });
        TrafficResults {
            kind: kind_of(&traffic.pattern),
            messages: ended.len() as u64,
            failed: self.failed[usize::from(part)],
            restarted: self.restarted[usize::from(part)],
            failures: self.statuses[usize::from(part)].iter().map(|(code, count)| (name_of(*code), *count)).collect(),
            goodput_gbps: bytes as f64 * 8.0 / seconds / 1e9,
            jain: jain(&by_source),
            time_us: Distribution::of(times),
            slowdown: Distribution::of(values(&slowdowns)),
            bins: bins.collect(),
            series_gbps: series.iter().map(|bytes| self.gbps(*bytes)).collect(),
        }
    }
}

fn kind_of(pattern: &Pattern) -> &'static str {
    match pattern {
        Pattern::Stream { .. } => "stream",
        Pattern::Poisson { .. } => "poisson",
        Pattern::Incast { .. } => "incast",
        Pattern::AllToAll { .. } => "all-to-all",
        Pattern::Permutation { .. } => "permutation",
        Pattern::Ring { .. } => "ring",
    }
}

/// The name of a status of completions.
fn name_of(code: u8) -> String {
    WcStatus::from_number(code.into()).map_or_else(|| code.to_string(), |status| format!("{status:?}"))
}

/// Jain's index of fairness of those that are not 0.
fn jain(values: &[u64]) -> f64 {
    let active = values.iter().filter(|value| **value > 0);
    let (count, sum) = (active.clone().count() as f64, active.clone().sum::<u64>() as f64);
    let squares: f64 = active.map(|value| *value as f64 * *value as f64).sum();
    if squares > 0.0 { sum * sum / (count * squares) } else { 1.0 }
}

/// The results of a simulation.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Version of the code.
    pub version: &'static str,
    /// Name of the scenario.
    pub scenario: String,
    /// Hash of the scenario's text.
    pub scenario_hash: String,
    /// The seed.
    pub seed: u64,
    /// Profile of the processors.
    pub cpu: &'static str,
    /// What became of payload.
    pub payload: &'static str,
    /// Whether the simulation was stopped before its end.
    #[serde(rename = "partial")]
    pub is_partial: bool,
    /// Number of hosts.
    pub hosts: u32,
    /// Local ACK timeout of queue pairs.
    pub ack_timeout_us: f64,
    /// Virtual time that has passed.
    pub simulated_us: f64,
    /// Passes of hosts.
    pub passes: u64,
    /// Trains that have arrived at hosts.
    pub trains: u64,
    /// Packets that have arrived at hosts.
    pub packets: u64,
    /// The parts of the traffic, as in the scenario.
    pub traffic: Vec<TrafficResults>,
    /// Messages that had not ended when the simulation did.
    pub unfinished: u64,
    /// The network.
    pub network: NetworkTotals,
    /// Counters of the engines, those that are not 0, summed over all hosts: traffic, and the reasons of `burst why`.
    pub engine: BTreeMap<&'static str, u64>,
    /// Time between two points of the series.
    pub interval_us: f64,
    /// For each source, when there are at most 64 hosts: the rate at which its packets arrived.
    pub series_gbps: Vec<Vec<f64>>,
}

/// A part of the traffic.
#[derive(Clone, Debug, Serialize)]
pub struct TrafficResults {
    /// The pattern.
    pub kind: &'static str,
    /// Messages that have ended well, after the warm-up.
    pub messages: u64,
    /// Messages that have failed.
    pub failed: u64,
    /// Those of them whose host has restarted or was down.
    pub restarted: u64,
    /// The others, by the status of their completion.
    pub failures: BTreeMap<String, u64>,
    /// Bytes of messages that ended while traffic was offered, over that time.
    pub goodput_gbps: f64,
    /// Jain's index over the sources.
    pub jain: f64,
    /// From the post to the completion.
    pub time_us: Distribution,
    /// That time over the time alone in an idle network; at least 1.
    pub slowdown: Distribution,
    /// Slowdowns of equal parts of the messages, by size.
    pub bins: Vec<SizeBin>,
    /// The rate at which bytes of whole messages arrived, after the warm-up.
    pub series_gbps: Vec<f64>,
}

/// Messages of similar size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeBin {
    /// The largest of them.
    pub bytes_max: u64,
    /// Their slowdowns.
    pub slowdown: Distribution,
}

/// A distribution: percentile p is element ⌊n·p⌋ of the sorted values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// The distribution of `values`; zeros if there are none.
    pub fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        let (n, sum) = (values.len(), values.iter().sum::<f64>());
        let Some(max) = values.last().copied() else { return Distribution::default() };
        let at = |per_mille: usize| values[(n * per_mille / 1_000).min(n - 1)];
        Distribution { mean: sum / n as f64, p50: at(500), p95: at(950), p99: at(990), p999: at(999), max }
    }
}

/// Totals of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NetworkTotals {
    /// Packets that switches had no buffer for.
    pub buffer_drops: u64,
    /// Packets lost on links and by faults.
    pub losses: u64,
    /// Packets with a wrong ICRC.
    pub corrupted: u64,
    /// Packets that hosts had no room for.
    pub receive_overflows: u64,
    /// Packets marked.
    pub marks: u64,
    /// Pause frames.
    pub pauses: u64,
    /// Pauses that the watchdog has ended.
    pub pause_storms: u64,
    /// Packets that the watchdog has dropped.
    pub watchdog_drops: u64,
    /// The fullest queue of a switch, in bytes.
    pub queue_bytes_max: u64,
    /// Mean of the longest queue of a switch after the warm-up, in bytes.
    pub queue_bytes_mean: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_elements() {
        let d = Distribution::of((0..100).rev().map(f64::from).collect());
        assert_eq!((d.mean, d.p50, d.p95, d.p99, d.p999, d.max), (49.5, 50.0, 95.0, 99.0, 99.0, 99.0));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    #[test]
    fn jain_of_equal_and_of_one_sided() {
        assert_eq!((jain(&[5, 5, 0, 5]), jain(&[]), jain(&[1, 1, 1, 9])), (1.0, 1.0, 144.0 / (4.0 * 84.0)));
    }
}
