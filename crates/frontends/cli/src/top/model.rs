//! Rates of ports, workers and queue pairs, from two reports of each engine.

use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::activity::{HostReport, QpUse, WorkerTime, state_name, type_name};
use burst_metrics::exposition::EngineReport;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Reasons that say that packets were sent again.
const REPETITIONS: &[Reason] = &[
    Reason::AckTimeout,
    Reason::SequenceNakReceived,
    Reason::ImpliedNak,
    Reason::SrRepeated,
    Reason::SrTimeout,
    Reason::SrReadTimeout,
    Reason::TailProbe,
    Reason::BackRepeated,
    Reason::UbRepeated,
];

/// Columns by which queue pairs are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Packets per second.
    Packets,
    /// Requests per second.
    Requests,
    /// Bytes in flight.
    Inflight,
    /// Repetitions.
    Repetitions,
    /// Round trip.
    RoundTrip,
}

impl SortBy {
    const ALL: [SortBy; 5] =
        [SortBy::Packets, SortBy::Requests, SortBy::Inflight, SortBy::Repetitions, SortBy::RoundTrip];
    /// The next column.
    pub fn next(self) -> SortBy {
        SortBy::ALL[(self as usize + 1) % SortBy::ALL.len()]
    }
    /// Its head.
    pub const fn name(self) -> &'static str {
        match self {
            SortBy::Packets => "pkt/s",
            SortBy::Requests => "req/s",
            SortBy::Inflight => "flight",
            SortBy::Repetitions => "again",
            SortBy::RoundTrip => "rtt",
        }
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRow {
    /// Engine and device.
    pub name: String,
    /// Whether the link is up.
    pub is_up: bool,
    /// Bits per second: received, sent.
    pub bits: [f64; 2],
    /// Packets per second, likewise.
    pub packets: [f64; 2],
    /// Packets sent again, per second.
    pub repetitions: f64,
    /// Packets dropped, per second.
    pub drops: f64,
}

/// A worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRow {
    /// Number.
    pub worker: u32,
    /// Shares of time: busy, spinning, asleep.
    pub shares: [f64; 3],
    /// Queue pairs.
    pub queue_pairs: u32,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq)]
pub struct QpRow {
    /// What was reported last.
    pub qp: QpUse,
    /// Packets per second in both directions: of requests and of the peer's requests.
    pub packets: f64,
    /// Requests per second.
    pub requests: f64,
    /// Repetitions since the queue pair began, as far as they were counted.
    pub repetitions: u32,
}

impl QpRow {
    /// Whether a filter's text is part of what identifies it.
    pub fn matches(&self, text: &str) -> bool {
        let QpUse { qpn, peer, program, .. } = &self.qp;
        let state = (type_name(self.qp.qp_type), state_name(self.qp.state));
        format!("{} {} {qpn} {qpn:#x} {peer} {} {}", program.name, program.pid, state.0, state.1).contains(text)
    }
    fn key(&self, sort: SortBy) -> f64 {
        match sort {
            SortBy::Packets => self.packets,
            SortBy::Requests => self.requests,
            SortBy::Inflight => self.qp.inflight_bytes as f64,
            SortBy::Repetitions => f64::from(self.repetitions),
            SortBy::RoundTrip => self.qp.rtt_ns as f64,
        }
    }
}

/// What is shown.
#[derive(Debug, Default)]
pub struct TopModel {
    /// Ports.
    pub ports: Vec<PortRow>,
    /// Workers of the daemon.
    pub workers: Vec<WorkerRow>,
    /// Queue pairs, in no order.
    pub queue_pairs: Vec<QpRow>,
    /// Queue pairs of other users.
    pub hidden: u64,
    /// Connections, and listeners.
    pub connections: [u64; 2],
    before: Option<(Instant, Vec<EngineReport>)>,
}

impl TopModel {
    /// Takes reports that were made at a time. Rates are those since the reports before.
    pub fn update(&mut self, reports: Vec<EngineReport>, at: Instant) {
        let before = self.before.take();
        let seconds = before.as_ref().map_or(0.0, |(then, _)| at.duration_since(*then).as_secs_f64());
        let empty = HostReport::default();
        (self.ports, self.workers, self.queue_pairs) = (Vec::new(), Vec::new(), Vec::new());
        (self.hidden, self.connections) = (0, [0; 2]);
        for EngineReport { engine, report } in &reports {
            let earlier = before.iter().flat_map(|(_, reports)| reports).find(|other| other.engine == *engine);
            let interval = Interval { seconds: if earlier.is_some() { seconds } else { 0.0 } };
            let earlier = earlier.map_or(&empty, |other| &other.report);
            self.ports.extend(ports(engine, earlier, report, interval));
            self.workers.extend(workers(earlier, report));
            self.queue_pairs.extend(queue_pairs(earlier, report, interval));
            self.hidden += report.hidden_queue_pairs;
            for (sum, name) in self.connections.iter_mut().zip(["connections", "listeners"]) {
                *sum += report.cm.numbers.iter().find(|(known, _)| known == name).map_or(0, |(_, number)| *number);
            }
        }
        self.before = Some((at, reports));
    }

    /// The queue pairs that a filter leaves, sorted: the largest first.
    pub fn sorted(&self, sort: SortBy, filter: &str) -> Vec<&QpRow> {
        let mut rows: Vec<&QpRow> = self.queue_pairs.iter().filter(|row| row.matches(filter)).collect();
        rows.sort_by(|a, b| b.key(sort).total_cmp(&a.key(sort)).then(a.qp.qpn.cmp(&b.qp.qpn)));
        rows
    }
}

/// The time between two reports; 0: there is no earlier one.
#[derive(Clone, Copy)]
struct Interval {
    seconds: f64,
}

impl Interval {
    /// A rise as a rate. A value that has fallen began anew.
    fn rate(self, before: u64, now: u64) -> f64 {
        if self.seconds > 0.0 { now.saturating_sub(before) as f64 / self.seconds } else { 0.0 }
    }
}

fn ports(engine: &str, earlier: &HostReport, now: &HostReport, interval: Interval) -> Vec<PortRow> {
    let names: BTreeSet<&str> =
        now.counters.iter().map(|c| c.device.as_str()).filter(|name| !name.is_empty()).collect();
    let port = |name: &str| {
        let value = |report: &HostReport, counter: &str| {
            report.counters.iter().find(|c| c.device == name && c.name == counter).map_or(0, |c| c.value)
        };
        let rate = |counter: &str| interval.rate(value(earlier, counter), value(now, counter));
        let sum = |of: &dyn Fn(&Reason) -> bool| -> f64 {
            Reason::ALL.iter().filter(|reason| of(reason)).map(|reason| rate(reason.name())).sum()
        };
        PortRow {
            name: if engine == "daemon" { name.to_owned() } else { format!("{name} {engine}") },
            is_up: now.devices.iter().find(|device| device.name == name).is_none_or(|device| device.up),
            bits: ["rx_bytes", "tx_bytes"].map(|counter| 8.0 * rate(counter)),
            packets: ["rx_packets", "tx_packets"].map(rate),
            repetitions: sum(&|reason| REPETITIONS.contains(reason)),
            drops: sum(&|reason| reason.class() == Class::Drop),
        }
    };
    names.into_iter().map(port).collect()
}

fn workers(earlier: &HostReport, now: &HostReport) -> Vec<WorkerRow> {
    let parts = |time: &WorkerTime| [time.busy_ns, time.spinning_ns, time.asleep_ns];
    now.workers
        .iter()
        .map(|worker| {
            let before = earlier.workers.iter().find(|other| other.worker == worker.worker);
            let before = before.map_or([0; 3], |other| parts(&other.time));
            let now = parts(&worker.time);
            let risen: [f64; 3] = std::array::from_fn(|part| now[part].saturating_sub(before[part]) as f64);
            let all = risen.iter().sum::<f64>().max(1.0);
            let shares = risen.map(|part| part / all);
            WorkerRow { worker: worker.worker, shares, queue_pairs: worker.queue_pairs }
        })
        .collect()
}

fn queue_pairs(earlier: &HostReport, now: &HostReport, interval: Interval) -> Vec<QpRow> {
    let known: HashMap<u32, &QpUse> = earlier.queue_pairs.iter().map(|qp| (qp.qpn, qp)).collect();
    // Modulo 2^24 and 2^32: an interval sees less than one turn.
    let psns = |before: u32, now: u32| u64::from(now.wrapping_sub(before) & 0x00ff_ffff);
    now.queue_pairs
        .iter()
        .map(|qp| {
            let (packets, requests) = known.get(&qp.qpn).map_or((0, 0), |before| {
                let both = psns(before.sent_psn, qp.sent_psn) + psns(before.expected_psn, qp.expected_psn);
                (both, u64::from(qp.requests.wrapping_sub(before.requests)))
            });
            let is_repetition =
                |number: u16| Reason::ALL.get(usize::from(number)).is_some_and(|reason| REPETITIONS.contains(reason));
            let repetitions =
                qp.counts.iter().filter(|(number, _)| is_repetition(*number)).map(|(_, count)| count).sum();
            QpRow {
                qp: qp.clone(),
                packets: interval.rate(0, packets),
                requests: interval.rate(0, requests),
                repetitions,
            }
        })
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use burst_base::verbs::{QpState, QpType};
    use burst_control::Counter;
    use burst_control::activity::WorkerUse;
    use burst_control::failures::FailedProgram;
    use std::time::Duration;

    fn queue_pair(qpn: u32, program: &str, sent_psn: u32, requests: u32) -> QpUse {
        QpUse {
            worker: 0,
            device: 0,
            qpn,
            qp_type: QpType::Rc,
            state: QpState::Rts,
            peer: [10, 0, 0, 2].into(),
            peer_qpn: 9,
            program: FailedProgram { name: program.into(), pid: 4711, uid: 0 },
            requests,
            mtu: 1024,
            sent_psn,
            expected_psn: 5,
            inflight_bytes: 4096,
            rtt_ns: 30_000,
            counts: vec![(Reason::AckTimeout.index() as u16, 3), (Reason::StaleAck.index() as u16, 9)],
        }
    }

    /// Reports of a daemon at two times: `step` 0 and 1.
    pub fn reports(step: u64) -> Vec<EngineReport> {
        let counter = |name: &str, value| Counter { name: name.into(), device: "burst0".into(), value };
        let time = WorkerTime { busy_ns: 250 * step, spinning_ns: 250 * step, asleep_ns: 500 * step };
        let psn = if step == 0 { 0x00ff_fff0 } else { 0x0000_0010 };
        let report = HostReport {
            counters: vec![
                counter("rx_bytes", 1_000_000 * step),
                counter("tx_packets", 50 * step),
                counter("bad_icrc", 4 * step),
            ],
            workers: vec![WorkerUse { worker: 0, time, queue_pairs: 2, paths: 1, traffic: Vec::new() }],
            queue_pairs: vec![
                queue_pair(0x111, "ib_send_bw", psn, 10 + 90 * step as u32),
                queue_pair(0x112, "idle", 7, 1),
            ],
            hidden_queue_pairs: 3,
            ..HostReport::default()
        };
        vec![EngineReport { engine: "daemon".into(), report }]
    }

    pub fn model() -> TopModel {
        let (mut model, begin) = (TopModel::default(), Instant::now());
        model.update(reports(0), begin);
        model.update(reports(1), begin + Duration::from_secs(2));
        model
    }

    #[test]
    fn rates_are_rises_per_second_and_numbers_wrap() {
        let model = model();
        let [port] = &model.ports[..] else { panic!("one port") };
        assert_eq!((port.bits, port.packets, port.drops), ([4_000_000.0, 0.0], [0.0, 25.0], 2.0));
        assert_eq!(model.workers[0].shares, [0.25, 0.25, 0.5]);
        let rows = model.sorted(SortBy::Packets, "");
        assert_eq!((rows[0].qp.qpn, rows[0].packets, rows[0].requests, rows[0].repetitions), (0x111, 16.0, 45.0, 3));
        assert_eq!(rows[1].packets, 0.0);
    }

    #[test]
    fn the_first_report_has_no_rates_and_a_daemon_that_began_anew_none_that_are_wrong() {
        let (mut model, begin) = (TopModel::default(), Instant::now());
        model.update(reports(1), begin);
        assert_eq!((model.ports[0].bits, model.queue_pairs[0].packets), ([0.0; 2], 0.0));
        model.update(reports(0), begin + Duration::from_secs(1));
        assert_eq!(model.ports[0].bits, [0.0; 2]);
    }

    #[test]
    fn filters_and_columns() {
        let model = model();
        assert_eq!(model.sorted(SortBy::Packets, "idle").len(), 1);
        assert_eq!(model.sorted(SortBy::Packets, "0x111")[0].qp.qpn, 0x111);
        assert_eq!(model.sorted(SortBy::Packets, "10.0.0.2").len(), 2);
        assert_eq!(model.sorted(SortBy::Packets, "nothing").len(), 0);
        let mut sort = SortBy::Packets;
        for _ in 0..SortBy::ALL.len() {
            assert_eq!(model.sorted(sort, "").len(), 2);
            sort = sort.next();
        }
        assert_eq!(sort, SortBy::Packets);
    }
}
