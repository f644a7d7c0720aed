//! The samples of each metric, from reports. What grows with programs and peers is bounded: of queue pairs, processes, accounts
//! and peer addresses those are shown that use the most.

use crate::exposition::EngineReport;
use crate::families::{FAMILIES, FamilyKind, Metric};
use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::activity::{HostReport, QpUse, WORK_HISTOGRAMS, WorkHistogram, state_name, type_name};
use burst_control::monitor::{CmStepHistogram, TRAFFIC};
use burst_ledger::Resource;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Queue pairs, processes, accounts and peer addresses of one engine that are shown.
pub const SHOWN_MAX: usize = 64;

/// First and last upper bound of histograms, as powers of two nanoseconds: 1 us and 69 s.
const OCTAVES: std::ops::RangeInclusive<u32> = 10..=36;

/// The same for packets of a turn: 1 and 511.
const TRAIN_OCTAVES: std::ops::RangeInclusive<u32> = 1..=9;

/// Labels of a sample.
pub(crate) type SampleLabels = Vec<(&'static str, String)>;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SampleValue {
    /// A gauge, or a counter of seconds.
    Number(f64),
    /// A counter.
    Count(u64),
    /// A histogram, of seconds or packets.
    Times {
        /// Sum of all.
        sum: f64,
        /// Number.
        count: u64,
        /// Upper bounds, each with the number of those between it and the one before.
        buckets: Vec<(f64, u64)>,
    },
}

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub labels: SampleLabels,
    pub value: SampleValue,
}

/// The samples of all metrics.
#[derive(Debug)]
pub(crate) struct MetricSamples {
    families: Vec<Vec<Sample>>,
}

impl MetricSamples {
    pub fn of(reports: &[EngineReport]) -> MetricSamples {
        let mut samples = MetricSamples { families: FAMILIES.iter().map(|_| Vec::new()).collect() };
        for EngineReport { engine, report } in reports {
            let mut of_engine = EngineSamples { engine, samples: &mut samples };
            of_engine.host(report);
            of_engine.devices(report);
            of_engine.workers(report);
            of_engine.histograms(report);
            of_engine.queue_pairs(report);
            of_engine.accounts(report);
            of_engine.peers(report);
            of_engine.connections(report);
        }
        samples
    }
}

impl Collector for MetricSamples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for (family, samples) in FAMILIES.iter().zip(&self.families).filter(|(_, samples)| !samples.is_empty()) {
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, family.kind.metric_type())?;
            for Sample { labels, value } in samples {
                let mut of_labels = metric.encode_family(labels)?;
                match value {
                    SampleValue::Number(number) if family.kind == FamilyKind::Counter => {
                        of_labels.encode_counter::<[(&str, &str); 0], f64, f64>(number, None)?;
                    }
                    SampleValue::Number(number) => of_labels.encode_gauge(number)?,
                    SampleValue::Count(count) => {
                        of_labels.encode_counter::<[(&str, &str); 0], u64, f64>(count, None)?;
                    }
                    SampleValue::Times { sum, count, buckets } => {
                        of_labels.encode_histogram::<[(&str, &str); 0]>(*sum, *count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Adds the samples of one engine.
struct EngineSamples<'a> {
    engine: &'a str,
    samples: &'a mut MetricSamples,
}

impl EngineSamples<'_> {
    fn add(&mut self, metric: Metric, labels: &[(&'static str, String)], value: SampleValue) {
        let engine = std::iter::once(("engine", self.engine.to_owned()));
        let labels = engine.chain(labels.iter().cloned()).collect();
        self.samples.families[metric as usize].push(Sample { labels, value });
    }

    fn gauge(&mut self, metric: Metric, labels: &[(&'static str, String)], value: f64) {
        self.add(metric, labels, SampleValue::Number(value));
    }

    fn count(&mut self, metric: Metric, labels: &[(&'static str, String)], value: u64) {
        self.add(metric, labels, SampleValue::Count(value));
    }

    fn host(&mut self, report: &HostReport) {
        self.gauge(Metric::BuildInfo, &[("version", report.version.clone())], 1.0);
        self.gauge(Metric::Uptime, &[], report.uptime_s as f64);
        self.gauge(Metric::Contexts, &[], f64::from(report.contexts));
        self.count(Metric::Crashes, &[], report.crashes);
    }

    fn devices(&mut self, report: &HostReport) {
        for device in &report.devices {
            let name = ("device", device.name.clone());
            let labels = [name.clone(), ("interface", device.ifname.clone())];
            self.gauge(Metric::DeviceUp, &labels, f64::from(u8::from(device.up)));
            self.gauge(Metric::DeviceSpeed, std::slice::from_ref(&name), f64::from(device.speed_mbps) * 1e6 / 8.0);
            self.gauge(Metric::DeviceMtu, &[name], f64::from(device.link_mtu));
        }
        for counter in &report.counters {
            let device = ("device", counter.device.clone());
            if let Some(index) = TRAFFIC.iter().position(|name| *name == counter.name) {
                self.count(Metric::of_traffic(index), &[device], counter.value);
            } else if let Some(reason) = Reason::ALL.iter().find(|reason| reason.name() == counter.name) {
                let kind = ("kind", class_name(reason.class()).to_owned());
                self.count(Metric::Reasons, &[device, ("reason", counter.name.clone()), kind], counter.value);
            }
        }
    }

    fn workers(&mut self, report: &HostReport) {
        for worker in &report.workers {
            let number = ("worker", worker.worker.to_string());
            let time = worker.time;
            for (state, ns) in [("busy", time.busy_ns), ("spinning", time.spinning_ns), ("asleep", time.asleep_ns)] {
                let labels = [number.clone(), ("state", state.to_owned())];
                self.gauge(Metric::WorkerSeconds, &labels, seconds(ns));
            }
            self.gauge(Metric::WorkerQueuePairs, std::slice::from_ref(&number), f64::from(worker.queue_pairs));
            self.gauge(Metric::WorkerPeers, std::slice::from_ref(&number), f64::from(worker.paths));
            for (device, traffic) in worker.traffic.iter().enumerate() {
                let labels = |direction: &str| {
                    let device = ("device", device_name(report, device as u32));
                    [number.clone(), device, ("direction", direction.to_owned())]
                };
                for (direction, first) in [("received", 0), ("sent", 2)] {
                    self.count(Metric::WorkerPackets, &labels(direction), traffic[first]);
                    self.count(Metric::WorkerBytes, &labels(direction), traffic[first + 1]);
                }
            }
        }
    }

    fn histograms(&mut self, report: &HostReport) {
        const METRICS: [Metric; WORK_HISTOGRAMS.len()] =
            [Metric::MessageSeconds, Metric::RoundTripSeconds, Metric::QueueingSeconds, Metric::TrainPackets];
        for (metric, histogram) in METRICS.into_iter().zip(&report.histograms) {
            let value = match metric {
                Metric::TrainPackets => packets(histogram),
                _ => nanoseconds(histogram),
            };
            self.add(metric, &[], value);
        }
    }

    fn queue_pairs(&mut self, report: &HostReport) {
        let mut kinds = BTreeMap::new();
        let mut processes = BTreeMap::new();
        for qp in &report.queue_pairs {
            *kinds.entry((qp.device, type_name(qp.qp_type), state_name(qp.state))).or_insert(0u32) += 1;
            *processes.entry((qp.program.pid, qp.program.uid, qp.program.name.as_str())).or_insert(0u32) += 1;
        }
        for ((device, kind, state), number) in kinds {
            let labels =
                [("device", device_name(report, device)), ("type", kind.to_owned()), ("state", state.to_owned())];
            self.gauge(Metric::QueuePairs, &labels, f64::from(number));
        }
        self.gauge(Metric::QueuePairsHidden, &[], report.hidden_queue_pairs as f64);
        for ((pid, uid, name), number) in largest(processes, |(_, number)| *number) {
            let labels = [("program", name.to_owned()), ("pid", pid.to_string()), ("uid", uid.to_string())];
            self.gauge(Metric::ProcessQueuePairs, &labels, f64::from(number));
        }
        for qp in largest(report.queue_pairs.iter(), |qp| qp.requests) {
            self.queue_pair(report, qp);
        }
    }

    fn queue_pair(&mut self, report: &HostReport, qp: &QpUse) {
        let mut labels = vec![
            ("device", device_name(report, qp.device)),
            ("qpn", qp.qpn.to_string()),
            ("type", type_name(qp.qp_type).to_owned()),
            ("peer", if qp.peer_qpn == 0 { String::new() } else { qp.peer.to_string() }),
            ("program", qp.program.name.clone()),
            ("pid", qp.program.pid.to_string()),
        ];
        self.count(Metric::QueuePairRequests, &labels, qp.requests.into());
        self.gauge(Metric::QueuePairInflight, &labels, qp.inflight_bytes as f64);
        if qp.rtt_ns > 0 {
            self.gauge(Metric::QueuePairRtt, &labels, seconds(qp.rtt_ns));
        }
        for (number, count) in &qp.counts {
            let Some(reason) = Reason::ALL.get(usize::from(*number)) else { continue };
            labels.push(("reason", reason.name().to_owned()));
            self.count(Metric::QueuePairNotes, &labels, (*count).into());
            labels.pop();
        }
    }

    fn accounts(&mut self, report: &HostReport) {
        for user in largest(report.users.iter(), |user| user.control.total_ns) {
            let owner = ("account", user.owner.clone());
            for (resource, amount) in Resource::ALL.iter().zip(&user.resources) {
                let labels = [owner.clone(), ("resource", resource.name().to_owned())];
                self.gauge(Metric::AccountUsed, &labels, amount.used as f64);
                self.gauge(Metric::AccountLimit, &labels, amount.limit as f64);
            }
            let owner = [owner];
            self.count(Metric::AccountRefused, &owner, user.refused);
            self.gauge(Metric::AccountControlSeconds, &owner, seconds(user.control.total_ns));
            self.count(Metric::AccountTurns, &owner, user.work.turns);
            self.count(Metric::AccountRequests, &owner, user.work.requests);
            self.count(Metric::AccountBytes, &owner, user.work.bytes);
        }
    }

    fn peers(&mut self, report: &HostReport) {
        for peer in largest(report.peers.iter(), |peer| (peer.inflight_bytes, peer.queue_pairs)) {
            let labels = [
                ("worker", peer.worker.to_string()),
                ("device", device_name(report, peer.device)),
                ("peer", peer.peer.to_string()),
            ];
            self.gauge(Metric::PeerQueuePairs, &labels, f64::from(peer.queue_pairs));
            self.gauge(Metric::PeerChannels, &labels, f64::from(peer.channels));
            self.gauge(Metric::PeerInflight, &labels, peer.inflight_bytes as f64);
            self.gauge(Metric::PeerWindow, &labels, peer.window_bytes as f64);
            self.gauge(Metric::PeerRate, &labels, peer.rate_bps as f64 / 8.0);
        }
    }

    fn connections(&mut self, report: &HostReport) {
        for (name, number) in &report.cm.numbers {
            self.gauge(Metric::CmNumbers, &[("what", name.clone())], *number as f64);
        }
        for step in &report.cm.steps {
            self.add(Metric::CmSteps, &[("step", step.name.clone())], times(step));
        }
    }
}

/// The entries with the largest keys, at most [`SHOWN_MAX`], the largest first.
fn largest<T, K: Ord>(all: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut sorted: Vec<T> = all.into_iter().collect();
    sorted.sort_by_key(|entry| Reverse(key(entry)));
    sorted.truncate(SHOWN_MAX);
    sorted
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn device_name(report: &HostReport, number: u32) -> String {
    let found = report.devices.iter().find(|device| device.index == number);
    found.map_or_else(|| format!("burst{number}"), |device| device.name.clone())
}

/// The label of a class of reasons.
const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Drop => "drop",
        Class::Nak => "nak",
        Class::Completion => "completion",
        Class::Refusal => "refusal",
        Class::Note => "note",
    }
}

/// A histogram of times, with the bounds of [`OCTAVES`].
fn nanoseconds(histogram: &WorkHistogram) -> SampleValue {
    // Bucket `n` has the values below 2^n.
    by_bounds(histogram, OCTAVES, |octave| seconds(1 << octave), seconds(histogram.sum))
}

/// A histogram of packets, by the largest number of each bucket.
fn packets(histogram: &WorkHistogram) -> SampleValue {
    by_bounds(histogram, TRAIN_OCTAVES, |octave| ((1u64 << octave) - 1) as f64, histogram.sum as f64)
}

fn by_bounds(
    histogram: &WorkHistogram,
    octaves: std::ops::RangeInclusive<u32>,
    bound: impl Fn(u32) -> f64,
    sum: f64,
) -> SampleValue {
    let (first, last) = (*octaves.start() as usize, *octaves.end() as usize);
    let mut buckets: Vec<(f64, u64)> = octaves.map(|octave| (bound(octave), 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for (bucket, count) in histogram.buckets.iter().enumerate() {
        buckets[bucket.clamp(first, last + 1) - first].1 += count;
    }
    SampleValue::Times { sum, count: histogram.count(), buckets }
}

/// A step with a bound for each power of two: its own buckets are a quarter of that.
fn times(step: &CmStepHistogram) -> SampleValue {
    let mut buckets: Vec<(f64, u64)> = OCTAVES.map(|octave| (seconds(1 << octave), 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for (bucket, count) in step.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        let end = seconds(CmStepHistogram::bucket_end(bucket));
        if let Some(wide) = buckets.iter_mut().find(|(bound, _)| end <= *bound) {
            wide.1 += count;
        }
    }
    SampleValue::Times { sum: seconds(step.total_ns), count: step.count, buckets }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use burst_base::verbs::{QpState, QpType};
    use burst_control::Counter;
    use burst_control::activity::{WorkerTime, WorkerUse};
    use burst_control::failures::FailedProgram;
    use burst_control::monitor::{CcPeer, CmStats, STEP_BUCKETS, UserResource, UserTime, UserUse, UserWork};

    fn queue_pair(qpn: u32, uid: u32, requests: u32) -> QpUse {
        QpUse {
            worker: 0,
            device: 0,
            qpn,
            qp_type: QpType::Rc,
            state: QpState::Rts,
            peer: [10, 0, 0, 2].into(),
            peer_qpn: 9,
            program: FailedProgram { name: "a \"b\\\n".into(), pid: 70 + uid, uid },
            requests,
            mtu: 1024,
            sent_psn: 5,
            expected_psn: 6,
            inflight_bytes: 4096,
            rtt_ns: 30_000,
            counts: vec![(Reason::AckTimeout.index() as u16, 3)],
        }
    }

    fn user(owner: &str) -> UserUse {
        UserUse {
            owner: owner.into(),
            privileged: false,
            refused: 1,
            control: UserTime { total_ns: 5_000_000_000, recent_share: 0 },
            work: UserWork { turns: 1, requests: 2, bytes: 3 },
            resources: vec![UserResource { used: 1, limit: 2 }; Resource::COUNT],
            places: Vec::new(),
        }
    }

    /// A report with something of everything: queue pairs of two users.
    pub(crate) fn report() -> HostReport {
        let mut step = CmStepHistogram { name: "route".into(), count: 2, total_ns: 4_000, ..Default::default() };
        step.buckets = vec![0; STEP_BUCKETS];
        step.buckets[CmStepHistogram::bucket(1_000)] = 1;
        step.buckets[CmStepHistogram::bucket(3_000)] = 1;
        let peer = CcPeer {
            worker: 0,
            device: 0,
            peer: [10, 0, 0, 2].into(),
            queue_pairs: 2,
            channels: 0,
            inflight_bytes: 1,
            window_bytes: 2,
            rate_bps: 3,
            kind: "burst".into(),
            cc: "cubic".into(),
            is_peers_choice: false,
            why: String::new(),
            variables: Vec::new(),
        };
        let counter = |name: &str, value| Counter { name: name.into(), device: "burst0".into(), value };
        let mut traffic = [0; TRAFFIC.len()];
        traffic[0] = 7;
        HostReport {
            version: "1".into(),
            uid: 0,
            uptime_s: 9,
            contexts: 2,
            counters: vec![counter("rx_packets", 7), counter("bad_icrc", 1)],
            workers: vec![WorkerUse {
                worker: 0,
                time: WorkerTime { busy_ns: 1_500_000_000, spinning_ns: 1, asleep_ns: 2 },
                queue_pairs: 2,
                paths: 1,
                traffic: vec![traffic],
            }],
            histograms: vec![WorkHistogram { sum: 3_000, buckets: vec![1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] }; 4],
            queue_pairs: vec![queue_pair(0x111, 1001, 5), queue_pair(0x112, 1002, 50)],
            users: vec![user("user 1001"), user("user 1002")],
            peers: vec![peer],
            cm: CmStats { steps: vec![step], numbers: vec![("ids".into(), 4)] },
            ..HostReport::default()
        }
    }

    fn samples(report: HostReport, metric: Metric) -> Vec<Sample> {
        MetricSamples::of(&[EngineReport { engine: "daemon".into(), report }]).families[metric as usize].clone()
    }

    #[test]
    fn the_queue_pairs_with_the_most_requests_are_shown() {
        let mut many = report();
        many.queue_pairs = (0..1000).map(|n| queue_pair(n, 1001, n)).collect();
        let shown = samples(many.clone(), Metric::QueuePairRequests);
        assert_eq!(shown.len(), SHOWN_MAX);
        assert_eq!(
            (&shown[0].value, &shown[SHOWN_MAX - 1].value),
            (&SampleValue::Count(999), &SampleValue::Count(936))
        );
        let counted = samples(many, Metric::QueuePairs);
        assert_eq!(
            counted.iter().map(|s| &s.value).collect::<Vec<_>>(),
            [&SampleValue::Number(1000.0)],
            "all are counted"
        );
    }

    #[test]
    fn every_metric_of_a_host_at_work_has_samples() {
        let all = MetricSamples::of(&[EngineReport { engine: "daemon".into(), report: report() }]);
        // The report has no device, and counts two counters only.
        let devices = [Metric::DeviceUp, Metric::DeviceSpeed, Metric::DeviceMtu];
        for (family, samples) in FAMILIES.iter().zip(&all.families) {
            let is_other_traffic =
                (Metric::RxBytes as usize..=Metric::ReceiveCalls as usize).contains(&(family.metric as usize));
            assert_eq!(samples.is_empty(), devices.contains(&family.metric) || is_other_traffic, "{}", family.name);
        }
    }

    #[test]
    fn histograms_of_workers_have_the_bounds_of_their_unit() {
        let below = |metric, limit: f64| {
            let [sample] = &samples(report(), metric)[..] else { panic!("one histogram") };
            let SampleValue::Times { count, buckets, .. } = &sample.value else { panic!("a histogram") };
            assert_eq!((*count, buckets.iter().map(|(_, count)| count).sum::<u64>()), (3, 3));
            buckets.iter().filter(|(bound, _)| *bound <= limit).map(|(_, count)| count).sum::<u64>()
        };
        // 0, 2 or 3, and from 2048 to 4095: nanoseconds or packets.
        assert_eq!((below(Metric::MessageSeconds, 1.1e-6), below(Metric::MessageSeconds, 4.2e-6)), (2, 3));
        assert_eq!((below(Metric::TrainPackets, 1.0), below(Metric::TrainPackets, 511.0)), (1, 2));
    }

    #[test]
    fn times_lie_below_their_bounds() {
        let [step] = &samples(report(), Metric::CmSteps)[..] else { panic!("one step") };
        let SampleValue::Times { count, buckets, .. } = &step.value else { panic!("a histogram") };
        assert_eq!(*count, buckets.iter().map(|(_, count)| count).sum::<u64>());
        let below = |limit: f64| buckets.iter().filter(|(bound, _)| *bound <= limit).map(|(_, n)| n).sum::<u64>();
        assert_eq!((below(1.1e-6), below(2.1e-6), below(5e-6)), (1, 1, 2), "{buckets:?}");
    }
}
