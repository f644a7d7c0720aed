//! Senders share one link to a receiver, in simulated time: `shared_link CC SENDERS MS [selective]`.
//!
//! Whole workers, one per host, are joined by the `mem` port. The receiver's port simulates a link of 10 Gbit/s with a queue
//! before it that marks (`impair`). Each sender keeps eight WRITEs of 64 KiB outstanding over one RC queue pair, path MTU 1024,
//! for MS milliseconds; the senders begin one after the other. The link marks as the controllers' publications ask for: a step
//! at 65 packets for `dctcp` (Alizadeh et al., SIGCOMM 2010, section 3.4); for `dcqcn` RED with the thresholds of HPCC's
//! simulator (100 to 400 KB, 20 %, for each 25 Gbit/s), scaled to this link, because the fixed point of 16 senders lies outside
//! the ramp of 1 % in DCQCN's paper; `swift` and `timely` need no marks.
//!
//! Prints JSON: `goodput_gbits` of each sender, `jain`, `link_share`, mean and percentiles of `queue_kb` in the second half of
//! the time, and a `series` of 100 rows [ms, queue_kb, gbits of each sender] for a plot. Time is virtual and random numbers are
//! seeded: two runs print the same.
#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{DeviceId, Nanos};
use burst_cc::Params;
use burst_port::mem::{Hub, MemConfig};
use burst_port::spec::ImpairSpec;
use harness::{AppQp, BASE, Host, poll, request};
use std::net::IpAddr;

const LINK_BPS: u64 = 10_000_000_000;
const MESSAGE: u32 = 64 << 10;
const OUTSTANDING: u64 = 8;
/// Time between two passes of each worker.
const STEP: Nanos = Nanos(1_000);
/// Each way; with the acknowledgement's way and two steps the round trip without a queue is about 20 us.
const LATENCY: Nanos = Nanos(8_000);
/// Time between the first messages of two senders.
const BEGIN_APART: Nanos = Nanos::from_us(500);
const ROWS: u64 = 100;
const DEVICE: DeviceId = DeviceId(0);

/// A host that sends, its queue pair, and what it has sent.
struct Sender {
    host: Host,
    qp: AppQp,
    posted: u64,
    completed: u64,
    begins: Nanos,
}

impl Sender {
    /// Keeps [`OUTSTANDING`] messages posted, and runs the worker once.
    fn step(&mut self, now: Nanos, rkey: u32) {
        while let Some(cqe) = poll(&mut self.qp) {
            assert_eq!(cqe.status, 0, "a request failed");
            self.completed += 1;
        }
        while now >= self.begins && self.posted < self.completed + OUTSTANDING {
            let sge = self.host.sge(0, MESSAGE);
            self.host.post(&mut self.qp, request(WrOpcode::RdmaWrite, self.posted, BASE, rkey), &[sge]);
            self.posted += 1;
        }
        self.host.worker.run_once(now);
    }
    fn acknowledged(&self) -> u64 {
        self.completed * u64::from(MESSAGE)
    }
}

/// What the switch does for this algorithm.
fn marking(cc: &str) -> &'static str {
    match cc.split(':').next() {
        Some("dcqcn" | "dcqcn-nvidia") => "kmin=40000,kmax=160000,pmax=20%",
        Some("dctcp") => "kmin=72000",
        _ => "",
    }
}

fn link(cc: &str) -> ImpairSpec {
    let marking = marking(cc);
    let comma = if marking.is_empty() { "" } else { "," };
    ImpairSpec::parse(&format!("rate=10Gbit,queue=1M,dir=rx{comma}{marking}")).expect("valid options")
}

fn hosts(cc: &str, senders: usize, selective: bool) -> (Host, Vec<Sender>) {
    let hub = Hub::new(MemConfig { latency: LATENCY, depth: 4096, ..MemConfig::default() });
    let params = Params::parse(cc, 1 << 20).unwrap_or_else(|why| panic!("{why}"));
    let make = |last: usize| {
        let port = Box::new(hub.port(&format!("mem{last}"), &[IpAddr::from([10, 0, 0, last as u8])]));
        if selective { Host::with_selective(port, MESSAGE, params) } else { Host::with_cc(port, MESSAGE, params) }
    };
    let mut receiver = make(1);
    receiver.worker.impair(Nanos(0), DEVICE, Some(link(cc)), Nanos::NEVER);
    let senders = (0..senders).map(|n| {
        let mut host = make(n + 2);
        let (qp, peer) = (host.create(QpType::Rc), receiver.create(QpType::Rc));
        let (caps, of_receiver) = (host.caps.clone(), receiver.caps.clone());
        host.connect(&qp, peer.qpn, &of_receiver, Mtu::B1024);
        receiver.connect(&peer, qp.qpn, &caps, Mtu::B1024);
        // The hellos pass in the first milliseconds.
        let begins = Nanos::from_ms(2) + Nanos(BEGIN_APART.0 * n as u64);
        Sender { host, qp, posted: 0, completed: 0, begins }
    });
    let senders = senders.collect();
    (receiver, senders)
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
fn jain(of: &[f64]) -> f64 {
    let (sum, squares) = of.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 0.0 } else { sum * sum / (of.len() as f64 * squares) }
}

fn list(of: &[f64]) -> String {
    of.iter().map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(", ")
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [cc, senders, ms, rest @ ..] = &words[..] else { panic!("shared_link CC SENDERS MS [selective]") };
    let (count, ms): (usize, u64) = (senders.parse().expect("a number"), ms.parse().expect("a number"));
    let (mut receiver, mut senders) = hosts(cc, count, rest.iter().any(|word| word == "selective"));
    let rkey = receiver.key;
    let (mut queue, mut rows) = (Vec::new(), Vec::new());
    let (mut at_half, mut before) = (vec![0; count], vec![0; count]);
    let (end, row) = (Nanos::from_ms(ms), Nanos::from_us(ms * 1000 / ROWS));
    let (mut now, mut next_row, mut row_queue) = (Nanos(0), row, (0u64, 0u64));
    let gbits = |bytes: u64, time: Nanos| bytes as f64 * 8.0 / time.0 as f64;
    while now < end {
        now = now + STEP;
        senders.iter_mut().for_each(|sender| sender.step(now, rkey));
        receiver.worker.run_once(now);
        let bytes = receiver.worker.received_queue(now, DEVICE).expect("a simulated link");
        row_queue = (row_queue.0 + bytes, row_queue.1 + 1);
        if now.0 * 2 <= end.0 {
            at_half = senders.iter().map(Sender::acknowledged).collect();
        } else {
            queue.push(bytes);
        }
        if now >= next_row {
            next_row = next_row + row;
            let done: Vec<u64> = senders.iter().map(Sender::acknowledged).collect();
            let rates: Vec<f64> = done.iter().zip(&before).map(|(now, was)| gbits(now - was, row)).collect();
            let mean = row_queue.0 as f64 / row_queue.1 as f64 / 1e3;
            rows.push(format!("[{:.3}, {mean:.2}, {}]", now.0 as f64 / 1e6, list(&rates)));
            (before, row_queue) = (done, (0, 0));
        }
    }
    let half = Nanos(end.0 / 2);
    let goodput: Vec<f64> = senders.iter().zip(&at_half).map(|(s, was)| gbits(s.acknowledged() - was, half)).collect();
    queue.sort_unstable();
    let percentile = |p: usize| queue[(queue.len() - 1) * p / 100] as f64 / 1e3;
    // Bytes of payload in 1024-byte packets, of what the link carries for them.
    let share = goodput.iter().sum::<f64>() * 1e9 / LINK_BPS as f64 * (1024.0 + 94.0) / 1024.0;
    println!(
        "{{\"cc\": \"{cc}\", \"senders\": {count}, \"jain\": {:.4}, \"link_share\": {share:.4}, \"goodput_gbits\": [{}], \
         \"queue_kb\": {{\"mean\": {:.1}, \"p1\": {:.1}, \"p50\": {:.1}, \"p99\": {:.1}, \"max\": {:.1}}}, \"series\": [{}]}}",
        jain(&goodput),
        list(&goodput),
        queue.iter().sum::<u64>() as f64 / queue.len() as f64 / 1e3,
        percentile(1),
        percentile(50),
        percentile(99),
        percentile(100),
        rows.join(", ")
    );
}
