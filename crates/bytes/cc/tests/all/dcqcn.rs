//! DCQCN against cut and recovery sequences computed by hand from the rules of its publication, and of NVIDIA's variant.

use burst_base::Nanos;
use burst_cc::{AckSample, Controller, Params, RATE_UNPACED};

const G: f64 = 1e9;
const US: u64 = 1_000;

fn controller(spec: &str) -> Controller {
    let params = Params::parse(spec, 1 << 20).expect("a valid specification");
    Controller::new(&params, Nanos(0), 40_000_000_000, 1024)
}

fn us(time: u64) -> Nanos {
    Nanos(time * US)
}

fn value(c: &Controller, name: &str) -> f64 {
    let mut found = None;
    c.observe(&mut |seen, value| {
        if seen == name {
            found = Some(value);
        }
    });
    found.expect("a variable of this name")
}

fn rate(c: &Controller) -> f64 {
    value(c, "rate_bps")
}

fn acked(bytes: u64) -> AckSample {
    AckSample { acked_bytes: bytes, ..AckSample::default() }
}

#[test]
fn without_notifications_nothing_is_limited() {
    for spec in ["dcqcn", "dcqcn-nvidia"] {
        let mut c = controller(spec);
        c.on_ack(us(10), &acked(1 << 30));
        c.on_timer(us(1_000_000));
        let limits = c.limits();
        assert_eq!((limits.rate_bps, limits.window_bytes, c.next_deadline()), (RATE_UNPACED, 1 << 20, Nanos::NEVER));
    }
}

#[test]
fn the_first_notification_halves_the_rate_and_five_fast_recoveries_follow() {
    let mut c = controller("dcqcn");
    c.on_cnp(us(1_000));
    // alpha = 1: R_T = 40, R_C = 20 Gbit/s.
    assert_eq!((rate(&c), value(&c, "target_rate_bps"), value(&c, "alpha")), (20.0 * G, 40.0 * G, 1.0));
    assert_eq!((c.limits().rate_bps, c.next_deadline()), (20_000_000_000, us(1_055)));
    let mut seen = Vec::new();
    for k in 1..=5 {
        c.on_timer(us(1_000 + 55 * k));
        seen.push(rate(&c) / G);
    }
    assert_eq!(seen, [30.0, 35.0, 37.5, 38.75, 39.375]);
    assert_eq!(value(&c, "target_rate_bps"), 40.0 * G);
}

#[test]
fn additive_increase_follows_fast_recovery() {
    let mut c = controller("dcqcn");
    c.on_cnp(us(1_000));
    c.on_cnp(us(1_050));
    // Second cut: R_T = 20, R_C = 10; alpha stayed 1.
    assert_eq!((rate(&c), value(&c, "target_rate_bps")), (10.0 * G, 20.0 * G));
    c.on_timer(us(1_050 + 5 * 55));
    assert_eq!(rate(&c), 20.0 * G - 10.0 * G / 32.0);
    c.on_timer(us(1_050 + 6 * 55));
    assert_eq!(value(&c, "target_rate_bps"), 20.04 * G);
    assert_eq!(rate(&c), (20.0 * G - 10.0 * G / 32.0 + 20.04 * G) / 2.0);
}

#[test]
fn alpha_falls_by_one_minus_g_each_period_without_notification() {
    for (spec, period_ns, keep) in [("dcqcn", 55_000, 1020.0 / 1024.0), ("dcqcn-nvidia", 1_000, 1019.0 / 1024.0)] {
        let mut c = controller(spec);
        c.on_cnp(Nanos(0));
        let first: f64 = value(&c, "alpha");
        // One late call, and a call in each period, give the same.
        let (mut late, mut expected) = (c.clone(), first);
        for n in 1..=200u64 {
            c.on_timer(Nanos(n * period_ns + period_ns / 2));
            expected *= keep;
            assert!((value(&c, "alpha") / expected - 1.0).abs() < 1e-12, "{spec} after {n} periods");
        }
        late.on_timer(Nanos(200 * period_ns));
        assert!((value(&late, "alpha") / expected - 1.0).abs() < 1e-12, "{spec}");
    }
}

#[test]
fn a_cut_in_a_calm_network_is_small() {
    let mut c = controller("dcqcn");
    c.on_cnp(us(0));
    c.on_timer(us(55 * 200));
    let (alpha, before) = (value(&c, "alpha"), rate(&c));
    assert!((alpha / (255.0f64 / 256.0).powi(200) - 1.0).abs() < 1e-9, "alpha {alpha}");
    c.on_cnp(us(55 * 200));
    assert!((rate(&c) / (before * (1.0 - alpha / 2.0)) - 1.0).abs() < 1e-12);
    assert!((value(&c, "alpha") / (alpha * 255.0 / 256.0 + 1.0 / 256.0) - 1.0).abs() < 1e-12);
}

#[test]
fn notifications_of_many_queue_pairs_within_a_period_are_one_cut_at_its_end() {
    let mut c = controller("dcqcn");
    c.on_cnp(us(1_000));
    (1..50).for_each(|k| c.on_cnp(us(1_000 + k)));
    assert_eq!((rate(&c), c.next_deadline()), (20.0 * G, us(1_050)));
    c.on_timer(us(1_050));
    assert_eq!((rate(&c), value(&c, "target_rate_bps")), (10.0 * G, 20.0 * G));
    c.on_timer(us(1_100));
    assert_eq!(rate(&c), 10.0 * G);
    // The increases begin anew at the cut.
    assert_eq!(c.next_deadline(), us(1_105));
}

#[test]
fn a_flood_of_notifications_leaves_the_smallest_rate() {
    let mut c = controller("dcqcn:rpg_min_rate=100M");
    (0..100_000).for_each(|k| c.on_cnp(us(k)));
    assert_eq!(rate(&c), 0.1 * G);
    assert_eq!(c.limits().rate_bps, 100_000_000);
    assert!(c.limits().burst_bytes >= 1024);
}

#[test]
fn bytes_make_increases_of_their_own_and_both_together_hyper_increase() {
    let mut c =
        controller("dcqcn:rpg_byte_reset=1000000,rpg_time_reset=1000,rpg_threshold=2,rpg_ai_rate=10,rpg_hai_rate=100");
    c.on_cnp(us(1_000));
    c.on_cnp(us(1_050));
    // Target 20, rate 10 Gbit/s. Two fast recoveries by bytes, then additive increase.
    c.on_ack(us(1_060), &acked(2_000_000));
    assert_eq!((rate(&c), value(&c, "target_rate_bps")), (17.5 * G, 20.0 * G));
    c.on_ack(us(1_070), &acked(999_999));
    assert_eq!(rate(&c), 17.5 * G);
    c.on_ack(us(1_080), &acked(1));
    assert_eq!(value(&c, "target_rate_bps"), 20.01 * G);
    c.on_ack(us(1_090), &acked(1_000_000));
    assert_eq!(value(&c, "target_rate_bps"), 20.02 * G);
    // Four increases by bytes; with the timer's third, min(T, B) = 2 is not over F = 2, with the fourth it is 3.
    c.on_timer(us(1_050 + 3_000));
    let three = value(&c, "target_rate_bps");
    assert!((three - 20.05 * G).abs() < 1.0, "{three}");
    c.on_timer(us(1_050 + 4_000));
    let four = value(&c, "target_rate_bps");
    assert!((four - three - 0.1 * G).abs() < 1.0, "{four}");
}

#[test]
fn a_late_call_does_what_many_calls_would_have_done() {
    for spec in ["dcqcn", "dcqcn-nvidia:rpg_time_reset=55,rpg_hai_rate=40"] {
        let mut punctual = controller(spec);
        (0..40).for_each(|k| punctual.on_cnp(us(100 * k)));
        let mut late = punctual.clone();
        let end = 4_000 + 55 * 400;
        (4_000..=end).for_each(|t| punctual.on_timer(us(t)));
        late.on_timer(us(end));
        let ratio = rate(&late) / rate(&punctual);
        assert!((ratio - 1.0).abs() < 1e-3, "{spec}: {} against {}", rate(&late), rate(&punctual));
        assert_eq!(late.next_deadline(), punctual.next_deadline());
    }
}

#[test]
fn the_limit_ends_at_the_line_rate() {
    for spec in ["dcqcn", "dcqcn-nvidia"] {
        let mut c = controller(spec);
        (0..20).for_each(|k| c.on_cnp(us(100 * k)));
        assert_ne!(c.limits().rate_bps, RATE_UNPACED);
        c.on_idle(us(20_000_000), us(2_000));
        assert_eq!(
            (c.limits().rate_bps, rate(&c), c.next_deadline()),
            (RATE_UNPACED, 40.0 * G, Nanos::NEVER),
            "{spec}"
        );
    }
}

#[test]
fn nvidia_keeps_the_target_of_cuts_without_an_increase_between() {
    let mut c = controller("dcqcn-nvidia:rpg_time_reset=300");
    c.on_cnp(us(1_000));
    c.on_cnp(us(1_004));
    // alpha = 1023/1024 at the first cut. No increase came between: the target stays.
    let first = 40.0 * G * (1.0 - 1023.0 / 2048.0);
    assert_eq!(value(&c, "target_rate_bps"), 40.0 * G);
    assert!(rate(&c) < first && rate(&c) >= first / 2.0);
    // After an increase the next cut sets the target.
    c.on_timer(us(1_304));
    let before = rate(&c);
    c.on_cnp(us(1_304));
    assert_eq!(value(&c, "target_rate_bps"), before);
    // With clamp_tgt_rate each cut does.
    let mut c = controller("dcqcn-nvidia:clamp_tgt_rate=1");
    c.on_cnp(us(1_000));
    let before = rate(&c);
    c.on_cnp(us(1_004));
    assert_eq!(value(&c, "target_rate_bps"), before);
}

#[test]
fn nvidia_increases_by_stages_of_the_timer_only() {
    let mut c = controller("dcqcn-nvidia:rpg_threshold=1,initial_alpha_value=1024");
    c.on_cnp(us(1_000));
    c.on_cnp(us(1_010));
    let (cut, mut target) = (rate(&c), 40.0 * G);
    c.on_ack(us(1_020), &acked(1 << 30));
    assert_eq!(rate(&c), cut);
    // The second cut leaves the target at the line rate, so that a third after an increase is needed to see it move.
    c.on_timer(us(1_310));
    assert_eq!(rate(&c), (cut + target) / 2.0);
    c.on_cnp(us(1_310));
    target = value(&c, "target_rate_bps");
    let mut expected = rate(&c);
    for (stage, step) in [(1, 0.0), (2, 5e6), (3, 50e6), (4, 50e6)] {
        c.on_timer(us(1_310 + 300 * stage));
        target += step;
        expected = (expected + target) / 2.0;
        assert_eq!((rate(&c), value(&c, "target_rate_bps")), (expected, target), "stage {stage}");
    }
}

#[test]
fn nvidia_adds_g_for_a_period_with_a_notification() {
    let mut c = controller("dcqcn-nvidia:dce_tcp_rtt=10,rate_reduce_monitor_period=100");
    c.on_cnp(us(0));
    let keep = 1019.0 / 1024.0;
    c.on_timer(us(10));
    let calm = 1023.0 / 1024.0 * keep;
    assert_eq!(value(&c, "alpha"), calm);
    c.on_cnp(us(15));
    c.on_timer(us(20));
    assert_eq!(value(&c, "alpha"), keep * calm + (1.0 - keep));
}

#[test]
fn the_first_rate_the_share_of_a_cut_and_the_largest_cut_are_parameters() {
    let mut c = controller("dcqcn-nvidia:rate_to_set_on_first_cnp=10G");
    c.on_cnp(us(1_000));
    assert_eq!((rate(&c), value(&c, "target_rate_bps")), (10.0 * G, 10.0 * G));
    let mut c = controller("dcqcn:rpg_gd=12");
    c.on_cnp(us(1_000));
    assert_eq!(rate(&c), 30.0 * G);
    let mut c = controller("dcqcn:rpg_gd=10,rpg_min_dec_fac=90%");
    c.on_cnp(us(1_000));
    assert_eq!(rate(&c), 36.0 * G);
}

#[test]
fn a_burst_lasts_50_us_or_is_one_packet_or_one_train() {
    let mut c = controller("dcqcn:rpg_min_rate=100M");
    c.on_cnp(us(1_000));
    assert_eq!(c.limits().burst_bytes, 64 << 10);
    (1..100).for_each(|k| c.on_cnp(us(1_000 + 50 * k)));
    let limits = c.limits();
    assert_eq!((limits.rate_bps, limits.burst_bytes), (100_000_000, 1024));
}

#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let mut c = controller("dcqcn");
    c.on_cnp(us(5_000));
    let before = c.clone();
    c.on_timer(us(10));
    assert_eq!(c, before);
    c.on_cnp(us(10));
    assert_eq!(rate(&c), rate(&before));
    c.on_timer(us(5_050));
    assert_eq!(rate(&c), 10.0 * G);
}

/// NVIDIA's rules, integrated in steps of a microsecond, which is their period of alpha.
struct Rules {
    rate: f64,
    target: f64,
    alpha: f64,
    stage: u32,
    increased: u64,
    cut: u64,
    cnp_in_period: bool,
    cut_waits: bool,
    started: bool,
}

impl Rules {
    const LINE: f64 = 100.0 * G;
    const LEAST: f64 = 1e6;

    fn new() -> Rules {
        let (rate, target, alpha, stage, increased, cut) = (Rules::LINE, Rules::LINE, 1_023.0 / 1_024.0, 0, 0, 0);
        Rules { rate, target, alpha, stage, increased, cut, cnp_in_period: false, cut_waits: false, started: false }
    }
    fn cut(&mut self, now: u64) {
        if self.stage > 0 {
            self.target = self.rate;
        }
        self.rate = (self.rate * (1.0 - self.alpha / 2.0).max(0.5)).max(Rules::LEAST);
        (self.stage, self.increased, self.cut, self.cut_waits) = (0, now, now, false);
    }
    fn step(&mut self, now: u64, is_notified: bool) {
        if !self.started {
            if is_notified {
                self.started = true;
                self.cut(now);
            }
            return;
        }
        let g = 1.0 - 1_019.0 / 1_024.0;
        self.alpha = (1.0 - g) * self.alpha + if self.cnp_in_period { g } else { 0.0 };
        self.cnp_in_period = is_notified;
        if now - self.increased >= 300 {
            let more = match self.stage {
                0 => 0.0,
                1 => 5e6,
                _ => 50e6,
            };
            self.target = (self.target + more).min(Rules::LINE);
            self.rate = (self.rate + self.target) / 2.0;
            (self.stage, self.increased) = (self.stage + 1, now);
        }
        self.cut_waits |= is_notified;
        if self.cut_waits && now - self.cut >= 4 {
            self.cut(now);
        }
    }
}

/// Two flows from (100, 0) Gbit/s share a link that marks from 400 to 1,600 KB: rates and targets are those of the rules
/// within 10 %.
#[test]
fn two_flows_of_nvidias_variant_follow_a_numerical_integration_of_its_rules() {
    let params = Params::parse("dcqcn-nvidia", 1 << 30).expect("a valid specification");
    let mut flows: [_; 2] =
        std::array::from_fn(|_| (Controller::new(&params, Nanos(0), 100_000_000_000, 1024), Rules::new()));
    let (mut queue, mut marked, mut cnps) = (0.0f64, [0.0; 2], 0);
    for now in 1..60_000u64 {
        let share = ((queue - 400e3) / 1_200e3).clamp(0.0, 1.0) * 0.2;
        let share = if queue > 1_600e3 { 1.0 } else { share };
        let mut sent = 0.0;
        for (at, (controller, rules)) in flows.iter_mut().enumerate() {
            // The second flow is stopped by notifications first.
            let is_stopped = at == 1 && now < 400;
            let bytes = rate(controller) / 8.0 * 1e-6;
            sent += if is_stopped { 0.0 } else { bytes };
            marked[at] += bytes / 1_024.0 * share;
            let is_notified = now % 4 == 0 && (marked[at] >= 1.0 || is_stopped);
            controller.on_timer(us(now));
            if is_notified {
                (marked[at], cnps) = (0.0, cnps + 1);
                controller.on_cnp(us(now));
            }
            rules.step(now, is_notified);
            for (name, is, must) in
                [("rate", rate(controller), rules.rate), ("target", value(controller, "target_rate_bps"), rules.target)]
            {
                assert!((is / must - 1.0).abs() <= 0.1, "flow {at}, {now} us: {name} {is}, by the rules {must}");
            }
        }
        queue = (queue + sent - Rules::LINE / 8.0 * 1e-6).max(0.0);
    }
    assert!(cnps > 500, "only {cnps} notifications");
    println!("{cnps} notifications, {:.1} and {:.1} Gbit/s", rate(&flows[0].0) / G, rate(&flows[1].0) / G);
}
