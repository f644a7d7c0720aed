//! Flows share one link: a model of rates and queue lengths in virtual time, in steps of 1 us, without packets.
//!
//! The link serves one queue. Each step adds to the queue what the flows send and removes what the link carries. A flow with a
//! window sends window / round trip; a flow with a rate sends that. Marks and round trips follow from the queue's length.
//! Nothing is random: where packets are marked with a probability, a flow is notified when its expected number of marked
//! packets reaches one.

use burst_base::Nanos;
use burst_cc::{AckSample, Controller, Params, RATE_UNPACED};

/// Bits per second of the link.
const LINK: f64 = 10e9;
const MTU: f64 = 1000.0;
/// Bytes that the link carries in a step.
const STEP_BYTES: f64 = bytes_in_step(LINK);
/// Round trip without a queue, in microseconds.
const RTT_US: f64 = 12.0;

/// Bytes that a link of so many bits per second carries in a step.
const fn bytes_in_step(link: f64) -> f64 {
    link / 8.0 * 1e-6
}

/// When and how the switch marks.
#[derive(Clone, Copy)]
enum Marking {
    /// All packets while the queue is longer than so many bytes.
    Over(f64),
    /// With a probability that rises from 0 at the first length to the third value at the second, and is 1 above.
    Ramp(f64, f64, f64),
}

impl Marking {
    fn probability(self, queue: f64) -> f64 {
        match self {
            Marking::Over(least) => f64::from(u8::from(queue > least)),
            Marking::Ramp(low, _, _) if queue <= low => 0.0,
            Marking::Ramp(low, high, most) if queue <= high => most * (queue - low) / (high - low),
            Marking::Ramp(..) => 1.0,
        }
    }
}

struct Sender {
    controller: Controller,
    /// Bits per second of its link, which is that of the bottleneck.
    link: f64,
    /// Sent bytes that were not reported as acknowledged yet.
    unreported: f64,
    marked: f64,
    notified_us: u64,
    /// Bytes sent in the second half of the run.
    carried: f64,
}

impl Sender {
    fn new(spec: &str, link: f64) -> Sender {
        let params = Params::parse(spec, 1 << 20).expect("a valid specification");
        let controller = Controller::new(&params, Nanos(0), link as u64, MTU as u32);
        Sender { controller, link, unreported: 0.0, marked: 0.0, notified_us: 0, carried: 0.0 }
    }

    /// Bytes of this step.
    fn sends(&self, rtt_us: f64) -> f64 {
        let limits = self.controller.limits();
        let rate = if limits.rate_bps == RATE_UNPACED { self.link } else { limits.rate_bps as f64 };
        (limits.window_bytes as f64 / rtt_us).min(rate / 8.0 * 1e-6)
    }

    /// Tells the controller of what was sent: marks by notifications, at most one in 50 us, or in the acknowledgements.
    fn hear(&mut self, now_us: u64, sent: f64, rtt_us: f64, probability: f64, by_notification: bool) {
        let now = Nanos(now_us * 1000);
        self.unreported += sent;
        self.marked += sent / MTU * probability;
        if by_notification && self.marked >= 1.0 {
            self.marked = 0.0;
            if now_us >= self.notified_us + 50 {
                self.notified_us = now_us;
                self.controller.on_cnp(now);
            }
        }
        if self.unreported >= 4.0 * MTU {
            let packets = (self.unreported / MTU) as u32;
            let ce_packets = if by_notification { 0 } else { (self.marked as u32).min(packets) };
            self.marked -= f64::from(ce_packets);
            let inflight_bytes = self.controller.limits().window_bytes;
            let rtt = Some(Nanos((rtt_us * 1000.0) as u64));
            let acked_bytes = u64::from(packets) * MTU as u64;
            let sample = AckSample { acked_bytes, rtt, packets, ce_packets, inflight_bytes, ..AckSample::default() };
            self.controller.on_ack(now, &sample);
            self.unreported -= f64::from(packets) * MTU;
        }
        if self.controller.next_deadline() <= now {
            self.controller.on_timer(now);
        }
    }
}

struct Outcome {
    jain: f64,
    /// Share of the link that was used in the second half.
    used: f64,
    /// Mean and largest queue in the second half, in bytes.
    queue_mean: f64,
    queue_max: f64,
}

/// Runs two flows for `us`; the second begins after a tenth of it, when the first has the link alone.
fn share(spec: &str, marking: Marking, by_notification: bool, us: u64) -> Outcome {
    share_of(spec, LINK, (2, us / 10), (marking, by_notification), us)
}

/// Runs `count` flows for `us` on a link of so many bits per second; each begins `apart` microseconds after the one before it.
fn share_of(
    spec: &str,
    link: f64,
    (count, apart): (u64, u64),
    (marking, by_notification): (Marking, bool),
    us: u64,
) -> Outcome {
    let step_bytes = bytes_in_step(link);
    let mut flows: Vec<Sender> = (0..count).map(|_| Sender::new(spec, link)).collect();
    let (mut queue, mut queue_sum, mut queue_max) = (0.0f64, 0.0, 0.0f64);
    for now in 0..us {
        let rtt = RTT_US + queue / step_bytes;
        let probability = marking.probability(queue);
        let active = (now / apart + 1).min(count) as usize;
        let mut sum = 0.0;
        for flow in &mut flows[..active] {
            let sent = flow.sends(rtt);
            flow.hear(now, sent, rtt, probability, by_notification);
            sum += sent;
            if now >= us / 2 {
                flow.carried += sent;
            }
        }
        queue = (queue + sum - step_bytes).max(0.0);
        if now >= us / 2 {
            queue_sum += queue;
            queue_max = queue_max.max(queue);
        }
    }
    let carried = || flows.iter().map(|flow| flow.carried);
    let (half, sum) = (us as f64 / 2.0, carried().sum::<f64>());
    let jain = sum * sum / (count as f64 * carried().map(|bytes| bytes * bytes).sum::<f64>());
    Outcome { jain, used: sum / (step_bytes * half), queue_mean: queue_sum / half, queue_max }
}

fn check(outcome: &Outcome, what: &str) {
    let Outcome { jain, used, queue_mean, queue_max } = outcome;
    println!("{what}: Jain {jain:.4}, used {used:.3}, queue {queue_mean:.0}, at most {queue_max:.0} bytes");
    assert!(*jain > 0.95, "{what}: Jain's index {jain}");
    assert!((0.9..1.1).contains(used), "{what}: {used} of the link");
}

#[test]
fn dcqcn_shares_fairly_and_keeps_the_queue_under_the_ramp_s_end() {
    let ramp = Marking::Ramp(5_000.0, 200_000.0, 0.01);
    let outcome = share("dcqcn", ramp, true, 2_000_000);
    check(&outcome, "dcqcn");
    assert!(outcome.queue_mean < 200_000.0);
}

#[test]
fn dcqcn_of_nvidia_shares_fairly_with_an_increase_that_fits_the_run() {
    let ramp = Marking::Ramp(40_000.0, 160_000.0, 0.2);
    let spec = "dcqcn-nvidia:rpg_ai_rate=20M,rpg_hai_rate=100M,rpg_min_rate=100M";
    check(&share(spec, ramp, true, 2_000_000), "dcqcn-nvidia");
}

#[test]
fn dctcp_shares_fairly_and_keeps_the_queue_near_the_mark() {
    let outcome = share("dctcp", Marking::Over(65_000.0), false, 400_000);
    check(&outcome, "dctcp");
    // The published bounds for N flows: the largest queue K + N packets, the smallest less the amplitude.
    let amplitude = 0.5 * (2.0 * 2.0 * (STEP_BYTES * RTT_US + 65_000.0) / MTU).sqrt() * MTU;
    assert!(outcome.queue_max <= 65_000.0 + 12.0 * MTU, "queue {}", outcome.queue_max);
    assert!(outcome.queue_mean >= 65_000.0 - 2.0 * amplitude, "queue {} with {amplitude}", outcome.queue_mean);
}

#[test]
fn swift_shares_fairly_and_keeps_the_delay_under_its_target() {
    let outcome = share("swift", Marking::Over(f64::MAX), false, 400_000);
    check(&outcome, "swift");
    // The target is 50 us + at most 125 us of flow scaling; the queue's share of it is less.
    assert!(outcome.queue_max * 8.0 / LINK * 1e6 < 175.0, "queue {}", outcome.queue_max);
}

/// A flow that begins while the queue is long takes the queue for the path, until it looks at the path without its own packets.
/// (Without such looks two flows share by 3 to 1.)
#[test]
fn swift_is_fair_to_the_flow_that_saw_the_empty_queue() {
    for (link, count, apart) in [(10e9, 2, 40_000), (10e9, 8, 10_000), (10e9, 8, 100)] {
        let outcome = share_of("swift", link, (count, apart), (Marking::Over(f64::MAX), false), 400_000);
        check(&outcome, "swift");
        // Without a queue a round trip takes 12 us: 25 us + 2 * 12 us + 125 us of flow scaling, and the packets of the looks.
        assert!(outcome.queue_mean * 8.0 / LINK * 1e6 < 175.0, "queue {}", outcome.queue_mean);
    }
}

/// TIMELY has no unique fixed point, so only the queue and the use of the link are bounded.
#[test]
fn timely_bounds_the_queue() {
    let outcome = share("timely", Marking::Over(f64::MAX), false, 400_000);
    println!("timely: Jain {:.3}, queue {:.0} to {:.0} bytes", outcome.jain, outcome.queue_mean, outcome.queue_max);
    assert!(outcome.used > 0.9 && outcome.used < 1.1, "{} of the link", outcome.used);
    assert!(outcome.queue_max * 8.0 / LINK * 1e6 < 600.0, "queue {}", outcome.queue_max);
}

/// Its rules alone keep flows apart that begin one after the other: any rates whose sum is that of the link are at rest. The
/// patch of Zhu et al. leaves one point of rest, where all are equal. (The simulator's experiment `convergence`: the same.)
#[test]
fn timely_is_unfair_to_flows_that_begin_later_unless_it_is_patched() {
    let without_marks = (Marking::Over(f64::MAX), false);
    for count in [4, 8, 16] {
        let [plain, patched] = ["timely", "timely:patched=1,beta=0.05,add_step=100M"]
            .map(|spec| share_of(spec, 100e9, (count, 1_000), without_marks, 60_000));
        println!("{count} flows: Jain {:.3}, patched {:.3}", plain.jain, patched.jain);
        assert!(plain.jain < 0.75, "{count} flows: Jain's index {}", plain.jain);
        check(&patched, "patched");
    }
}
