//! The engine on the modelled network against closed formulas (`ideal` hosts): loss recovery, and the fixed points of
//! controllers. Builds with debug assertions check a part of it, unless `BURST_ANALYTIC` is `all`.
//!
//! The network alone is checked in `crates/base/fabric/tests/theory.rs`, controllers alone in `crates/bytes/cc/tests`.

use burst_base::rng::Rng;
use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;
use std::collections::VecDeque;

/// Whether all is checked.
fn checks_all() -> bool {
    !cfg!(debug_assertions) || std::env::var("BURST_ANALYTIC").is_ok_and(|which| which == "all")
}
/// Picoseconds.
const US: u64 = 1_000_000;
/// `base_target` of Swift and twice the round trip of a star with links of 1 us, in microseconds.
const BASE: f64 = 25.0 + 2.0 * 4.2;

fn world(text: &str) -> World {
    World::new(&Scenario::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))).expect("a world")
}

fn simulate(text: &str) -> Results {
    let mut world = world(text);
    while world.step().expect("no violation") {}
    world.results(false)
}

/// A pair over a loop of about 285 packets (SRNIC, figure 11), or of about 50.
fn pair(repair: &str, delay: &str, time: &str, links: &str) -> String {
    format!(
        "time = \"{time}\"\nwarm_up = \"1ms\"\n[topology]\nkind = \"pair\"\ndelay = \"{delay}\"\n[hosts]\nmtu = 1024\n\
         cc = \"none\"\nwindow = \"4MiB\"\nsend_queue = \"4KiB\"\ntrain = \"2KiB\"\nselective_repeat = {repair}\n{links}\n\
         [[traffic]]\nkind = \"stream\"\nsize = 4096\ndepth = 512\n"
    )
}

fn goodput(repair: &str, delay: &str, time: &str, loss: f64) -> f64 {
    simulate(&pair(repair, delay, time, &format!("[links]\nloss = {loss}"))).traffic[0].goodput_gbps
}

/// Packets on the way between a loss and its repair: those that arrive in vain behind one lost packet, and that packet.
fn packets_per_loss(delay: &str) -> f64 {
    let fault = "[[fault]]\nkind = \"packets\"\nhost = 0\nat = \"0us\"\nnumbers = [1000]\nfate = \"lost\"";
    let engine = simulate(&pair("false", delay, "1ms", fault).replace("warm_up = \"1ms\"", "")).engine;
    (engine["gap_repeated"] + engine["sequence_gap"] + 1) as f64
}

/// Packets that the link carries while a loss waits that nothing reports: a repetition that was lost is found after 200 us (the
/// shortest time of a probe), a lost NAK after 50 us.
const PACKETS_PER_WAIT: f64 = 250e3 / 89.4;

/// Goodput over that without loss is (1 - p) / (1 - p + pW) with go-back-N, W packets being lost with each; and 1 - p with
/// selective repeat; within five percent of the line. The formula knows no repetition or NAK that is lost: each costs a wait
/// more.
#[test]
fn goodput_under_loss_is_that_of_the_formulas() {
    let loops: &[(&str, f64)] = if checks_all() { &[("1700ns", 50.0), ("12us", 285.0)] } else { &[("12us", 285.0)] };
    let losses: &[(f64, &str)] = if checks_all() {
        &[(0.0001, "21ms"), (0.001, "11ms"), (0.005, "11ms"), (0.01, "11ms"), (0.02, "11ms"), (0.05, "11ms")]
    } else {
        &[(0.01, "6ms")]
    };
    for (delay, about) in loops {
        let in_vain = packets_per_loss(delay);
        println!("delay {delay}: {in_vain} packets per loss");
        assert!((in_vain / about - 1.0f64).abs() < 0.1, "{in_vain} packets per loss, about {about} expected");
        let lossless = ["false", "true"].map(|repair| goodput(repair, delay, "2ms", 0.0));
        for (loss, time) in losses {
            let expected = |in_vain: f64| (1.0 - loss) / (1.0 - loss + loss * in_vain);
            let (plain, whole) = (expected(in_vain), expected(in_vain + loss * PACKETS_PER_WAIT));
            let kept = goodput("false", delay, time, *loss) / lossless[0];
            println!(
                "delay {delay}, loss {loss}: go-back-N keeps {kept:.3}; {plain:.3} expected, {whole:.3} with lost repetitions"
            );
            assert!((kept - whole).abs() < 0.05, "loss {loss}: go-back-N keeps {kept}, {whole} expected");
            let kept = goodput("true", delay, time, *loss) / lossless[1];
            println!("delay {delay}, loss {loss}: selective repeat keeps {kept:.3}, {:.3} expected", 1.0 - loss);
            assert!((kept - (1.0 - loss)).abs() < 0.05, "loss {loss}: selective repeat keeps {kept}");
        }
    }
}

/// Mathis et al. 1997: a window that grows by a packet in each round trip and is halved when each (1/p)-th packet is lost is
/// 1.22 / sqrt(p) packets long in the mean. `dctcp` on a network without marks is such a controller.
#[test]
fn the_window_of_additive_increase_and_halving_is_that_of_mathis() {
    let all = [(10_000, 122.0, 300), (1_000, 38.7, 200), (100, 12.2, 60)];
    for (every, expected, time_ms) in if checks_all() { &all[..] } else { &all[2..] }.iter().copied() {
        let lost: Vec<String> = (1..400_000 / every).map(|k| (k * every).to_string()).collect();
        let text = format!(
            "time = \"{time_ms}ms\"\nwarm_up = \"20ms\"\n[topology]\nkind = \"pair\"\ndelay = \"50us\"\n[hosts]\nmtu = 1024\n\
             train = \"2KiB\"\ncc = \"dctcp\"\n[[traffic]]\nkind = \"stream\"\nsize = 1024\ndepth = 512\n\
             [[fault]]\nkind = \"packets\"\nhost = 0\nat = \"0us\"\nfate = \"lost\"\nnumbers = [{}]\n",
            lost.join(", ")
        );
        let rate = simulate(&text).traffic[0].goodput_gbps;
        // A round trip of two links, and a packet's time on one.
        let window = rate * 1e9 / 8.0 / 1_024.0 * 100.1e-6;
        println!("one of {every} lost: {window:.1} packets, {expected} expected");
        assert!(
            (window / expected - 1.0f64).abs() < 0.15,
            "one of {every} lost: {window} packets, {expected} expected"
        );
    }
}

/// Streams from hosts 1 to N to host 0.
fn streams(flows: u32, settings: &str, time: &str, size: u32) -> String {
    let stream = |from| format!("[[traffic]]\nkind = \"stream\"\nfrom = {from}\nto = 0\nsize = {size}\ndepth = 256\n");
    let all: String = (1..=flows).map(stream).collect();
    format!("time = \"{time}\"\n[topology]\nkind = \"star\"\nhosts = {}\n{settings}\n{all}", flows + 1)
}

/// The queue at the bottleneck in packets of `packet` bytes, at each of `count` times from `from` on, `every` picoseconds apart.
fn queue_samples(text: &str, (from, every, count): (u64, u64, u64), packet: f64) -> (Vec<f64>, Results) {
    let mut world = world(text);
    let mut samples = Vec::new();
    while (samples.len() as u64) < count && world.step().expect("no violation") {
        while world.now() >= from + samples.len() as u64 * every && (samples.len() as u64) < count {
            samples.push(world.queue_bytes() as f64 / packet);
        }
    }
    let results = world.results(true);
    (samples, results)
}

/// Mean time between two rises of `samples` through `level`, in samples; a rise begins `margin` below it and ends `margin` above.
fn period_of(samples: &[f64], level: f64, margin: f64) -> f64 {
    let (mut rises, mut is_low) = (Vec::new(), false);
    for (at, sample) in samples.iter().enumerate() {
        if *sample < level - margin {
            is_low = true;
        } else if *sample > level + margin && std::mem::take(&mut is_low) {
            rises.push(at);
        }
    }
    match rises[..] {
        [first, .., last] => (last - first) as f64 / (rises.len() - 1) as f64,
        _ => f64::NAN,
    }
}

/// DCTCP (Alizadeh et al. 2010, section 3.3): N flows of one round trip make a sawtooth whose upper end is K + N packets and
/// whose height is sqrt(2N(C RTT + K)) / 2, as long as they are in step. Two flows whose slow start ends with one packet more or
/// less in the queue may leave step, so the window of the beginning is given.
#[test]
fn the_queue_of_dctcp_is_the_published_sawtooth() {
    // Packets of 1,024 bytes take 1,118 on the wire: 89 ns. Four links of 2.9 us: 134 packets in a round trip of 12 us.
    let (packet, threshold, round_trip) = (1_118.0, 300.0, 12.0e3 / 89.4);
    for (flows, tolerance) in if checks_all() { vec![(2u32, 0.15), (16, 0.25)] } else { Vec::new() } {
        let settings = format!(
            "delay = \"2900ns\"\n[hosts]\nmtu = 1024\ntrain = \"2KiB\"\ncc = \"dctcp:initial_window=64K\"\nsend_queue = \"4KiB\"\n[switches]\necn_min = {0}\necn_max = {0}",
            threshold * packet
        );
        let text = streams(flows, &settings, "20ms", 1_024);
        let (samples, _) = queue_samples(&text, (8_000 * US, US, 8_000), packet);
        let (least, most) =
            samples.iter().fold((f64::MAX, 0.0f64), |(least, most), packets| (least.min(*packets), most.max(*packets)));
        let n = f64::from(flows);
        let height = 0.5 * (2.0 * n * (round_trip + threshold)).sqrt();
        println!(
            "{flows} flows: {least:.0} to {most:.0} packets; {:.0} to {:.0} expected",
            threshold + n - height,
            threshold + n
        );
        assert!((most / (threshold + n) - 1.0).abs() < tolerance, "{flows} flows: at most {most} packets");
        assert!((least / (threshold + n - height) - 1.0).abs() < tolerance, "{flows} flows: at least {least} packets");
        assert!(((most - least) / height - 1.0).abs() < tolerance, "{flows} flows: {least} to {most} packets");
        // Each flow adds a packet in a round trip, of which the queue is a part, until it sees marks. The formula leaves out the
        // round trip until then and that of the cut, in which windows do not grow. To 16 flows, which grow for less than four
        // round trips, they matter.
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let trip_us = (round_trip + mean) * 89.4e-3;
        let without_growth = if flows == 2 { 0.0 } else { 2.0 };
        let expected = 0.5 * (2.0 * (round_trip + threshold) / n).sqrt() + without_growth;
        let period = period_of(&samples, mean, (most - least) / 4.0) / trip_us;
        println!(
            "{flows} flows: height {:.1}, {height:.1} expected; period {period:.1} round trips, {expected:.1} expected",
            most - least
        );
        assert!((period / expected - 1.0).abs() < tolerance, "{flows} flows: a period of {period} round trips");
    }
}

/// Swift: the delay of a queue that N flows share is between the base target and that with the scaling of their windows, and
/// the link is used.
#[test]
fn the_delay_of_swift_lies_between_its_targets() {
    for flows in if checks_all() { vec![2u32, 8] } else { Vec::new() } {
        let settings = "delay = \"1us\"\n[hosts]\nmtu = 1024\ntrain = \"2KiB\"\ncc = \"swift\"\nsend_queue = \"4KiB\"";
        let (samples, results) =
            queue_samples(&streams(flows, settings, "20ms", 16_384), (10_000 * US, 10 * US, 1_000), 1.0);
        // The median: now and then the flows look at the path without their queue.
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let delay = sorted[sorted.len() / 2] * 8.0 / 100e9 * 1e6 + 4.2;
        // The window of each flow, in packets, and the target with it.
        let window = 100e9 / 8.0 * delay * 1e-6 / 1_118.0 / f64::from(flows);
        let (range, [least, most]) = (125.0, [0.1f64, 100.0]);
        let a = range / (least.sqrt().recip() - most.sqrt().recip());
        let scaling = (a / window.sqrt() - a / most.sqrt()).clamp(0.0, range);
        let used: f64 = results.traffic.iter().map(|part| part.goodput_gbps).sum::<f64>() / (100.0 * 1_024.0 / 1_118.0);
        println!("{flows} flows: {delay:.1} us, targets {BASE} to {:.1}; {used:.3} of the link", BASE + scaling);
        // What a flow measures has the packets in its own adapter in it, four at most.
        let own = 4.0 * 89.4e-3;
        let (shortest, longest) = (0.97 * BASE - own, 1.03 * (BASE + scaling));
        assert!(delay > shortest && delay < longest, "{flows} flows: {delay} us");
        assert!(used > 0.95, "{flows} flows use {used} of the link");
    }
}

/// The queue of N flows in KB: p* = (R_AI N^2 / (tau C^2) (1/B + N/(T C))^2)^(1/3), in packets and seconds, on a ramp from 5
/// to 200 KB and 1 %; packets of 1,024 bytes are 1,118 on the wire.
fn dcqcn_queue(flows: f64) -> f64 {
    let packet_bits = 8.0 * 1_118.0;
    let (capacity, increase, bytes) = (40e9 / packet_bits, 40e6 / packet_bits, 10e6 / 1_118.0);
    let (period, timer) = (55e-6, 55e-6);
    let events = 1.0 / bytes + flows / (timer * capacity);
    let marked = (increase * flows * flows / (period * capacity * capacity) * events * events).cbrt();
    5.0 + marked / 0.01 * 195.0
}

/// A flow of [`dcqcn_model`], by the rules of the publication. Times in seconds, rates in bit/s.
#[derive(Clone, Default)]
struct ModelFlow {
    rate: f64,
    target: f64,
    alpha: f64,
    alpha_at: f64,
    cut_at: f64,
    increased_at: f64,
    stage: u32,
    /// Bits that may be sent, and those that wait in the adapter.
    unsent: f64,
    waiting: f64,
    notified_at: f64,
    /// When notifications arrive.
    notifications: VecDeque<f64>,
}

impl ModelFlow {
    /// Cut and increases of `now`. Notifications that come within 50 us of a cut make one cut at the end of that time. (The byte
    /// counter, an increase each 10 MB, plays no part at these rates.)
    fn react(&mut self, now: f64) {
        let g = 4.0 / 1_024.0;
        if self.notifications.front().is_some_and(|at| *at <= now) && now >= self.cut_at + 50e-6 {
            self.notifications.retain(|at| *at > now);
            self.target = self.rate;
            self.rate *= 1.0 - self.alpha / 2.0;
            self.alpha = (1.0 - g) * self.alpha + g;
            (self.cut_at, self.alpha_at, self.increased_at, self.stage) = (now, now, now, 0);
        }
        if now >= self.alpha_at + 55e-6 {
            self.alpha *= 1.0 - g;
            self.alpha_at += 55e-6;
        }
        if now >= self.increased_at + 55e-6 {
            self.target += if self.stage >= 5 { 40e6 } else { 0.0 };
            self.rate = (self.rate + self.target) / 2.0;
            (self.stage, self.increased_at) = (self.stage + 1, self.increased_at + 55e-6);
        }
    }
}

/// The mean queue of N flows in KB by the published rules alone, packet by packet in steps of 0.1 us, without hosts. Packets are
/// evenly spaced and a notification takes 4 us, the round trip of the empty network. `with_delays`: a notification takes as
/// long as the marked packet has waited besides, and packets leave in bursts of 50 us of the rate, 64 KiB at most, as the
/// engine's do.
fn dcqcn_model(flows: u32, with_delays: bool) -> f64 {
    const STEP: f64 = 1e-7;
    let (line, packet) = (40e9, 8.0 * 1_118.0);
    let mut rng = Rng::new(7);
    let mut chance = move || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let rate = line / f64::from(flows);
    let flow = ModelFlow { rate, target: rate, alpha: 0.1, ..ModelFlow::default() };
    let mut all = vec![flow; flows as usize];
    for flow in &mut all {
        (flow.increased_at, flow.unsent) = (-55e-6 * chance(), packet * chance());
    }
    let (mut queue, mut sum, steps) = (0.0f64, 0.0, 5_000_000u32);
    for step in 0..steps {
        let now = f64::from(step) * STEP;
        let over = (queue / 8.0 - 5e3) / 195e3;
        let marked = if over > 1.0 { 1.0 } else { over.max(0.0) * 0.01 };
        for flow in &mut all {
            flow.react(now);
            flow.unsent += flow.rate * STEP;
            let burst = if with_delays { (flow.rate * 50e-6).clamp(packet, 8.0 * 65_536.0) } else { packet };
            if flow.unsent >= burst {
                flow.waiting += (flow.unsent / packet).floor() * packet;
                flow.unsent %= packet;
            }
            // At the rate of the link a packet takes two or three steps.
            if flow.waiting >= packet && chance() < line * STEP / packet {
                flow.waiting -= packet;
                queue += packet;
                if chance() < marked && now >= flow.notified_at + 50e-6 {
                    flow.notified_at = now;
                    let waits = if with_delays { queue / line } else { 0.0 };
                    flow.notifications.push_back(now + 4e-6 + waits);
                }
            }
        }
        queue = (queue - line * STEP).max(0.0);
        sum += if step >= steps / 2 { queue } else { 0.0 };
    }
    sum / f64::from(steps / 2) / 8_000.0
}

/// DCQCN with the parameters of its publication at 40 Gbit/s (Zhu et al. 2016): the queue has a fixed point on the ramp of
/// marks. The formula has neither delays nor bursts in it. With 8 flows the fixed point is at a queue of 26 us, after which
/// marks are seen: the queue swings up to the end of the ramp, where every packet is marked, and the rates fall, so that the
/// mean queue is shorter. A model of the rules, without hosts, has the fixed point of the formula without delays and bursts,
/// and that of the simulation with them.
#[test]
fn the_queue_of_dcqcn_is_at_its_fixed_point() {
    for flows in if checks_all() { vec![2u32, 4, 8] } else { Vec::new() } {
        let settings = "rate = \"40Gbit\"\ndelay = \"1us\"\n[hosts]\nmtu = 1024\ntrain = \"2KiB\"\ncc = \"dcqcn\"\nsend_queue = \"4KiB\"\n\
                        [switches]\necn_min = 5000\necn_max = 200000\necn_share = 0.01";
        let text =
            streams(flows, settings, "300ms", 16_384).replacen("[topology]", "warm_up = \"200ms\"\n[topology]", 1);
        let (samples, results) = queue_samples(&text, (200_000 * US, 20 * US, 5_000), 1_000.0);
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let rates: Vec<f64> = results.traffic.iter().map(|part| part.goodput_gbps).collect();
        let jain = rates.iter().sum::<f64>().powi(2) / (f64::from(flows) * rates.iter().map(|r| r * r).sum::<f64>());
        let (formula, prompt, late) =
            (dcqcn_queue(f64::from(flows)), dcqcn_model(flows, false), dcqcn_model(flows, true));
        println!(
            "{flows} flows: {mean:.1} KB; formula {formula:.1}, rules {prompt:.1}, with delays {late:.1}; Jain {jain:.4}"
        );
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.2;
        assert!(near(prompt, formula), "{flows} flows: {prompt} KB by the rules, {formula} by the formula");
        assert!(near(mean, late), "{flows} flows: {mean} KB, {late} by the rules");
        assert!(flows == 8 || near(mean, formula), "{flows} flows: {mean} KB, {formula} expected");
        assert!(jain > 0.99, "{flows} flows: Jain's index {jain}");
    }
}
