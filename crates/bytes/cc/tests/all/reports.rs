//! What a Burst peer says in its acknowledgements: the share of marked packets, its own delay, pressure on its receive buffers;
//! and losses that were none.

use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_cc::{AckSample, Algorithm, Controller, LossKind, Params};

const MTU: u64 = 1024;
const MAX: u64 = 1 << 20;

fn controller(spec: &str) -> Controller {
    let params = Params::parse(spec, MAX).expect("a valid specification");
    Controller::new(&params, Nanos(0), 10_000_000_000, MTU as u32)
}

/// A controller whose window has grown to its maximum.
fn grown(spec: &str) -> Controller {
    let mut c = controller(spec);
    while bytes(&c) < MAX {
        let acked_bytes = bytes(&c);
        c.on_ack(ms(1), &AckSample { acked_bytes, ..AckSample::default() });
    }
    c
}

fn ms(time: u64) -> Nanos {
    Nanos::from_ms(time)
}

fn value(c: &Controller, name: &str) -> f64 {
    let mut found = None;
    c.observe(&mut |seen, value| found = if seen == name { Some(value) } else { found });
    found.expect("a variable of this name")
}

fn bytes(c: &Controller) -> u64 {
    c.limits().window_bytes
}

/// A window of acknowledgements at once, with this pressure.
fn acked(c: &Controller, pressure: u8) -> AckSample {
    let acked_bytes = bytes(c);
    let rtt = Some(Nanos(20_000));
    AckSample { acked_bytes, inflight_bytes: acked_bytes, pressure, rtt, ..AckSample::default() }
}

#[test]
fn pressure_over_three_quarters_reduces_each_window_and_under_it_none() {
    for (spec, reacts) in [("aimd", true), ("dctcp:slow_start=0", true), ("swift", true), ("none", false)] {
        for pressure in 0..=3 {
            let mut c = controller(spec);
            for k in 1..=10 {
                let sample = acked(&c, pressure);
                c.on_ack(ms(10 * k), &sample);
            }
            let (after, expect) = (bytes(&c), reacts && pressure >= 2);
            assert_eq!(after < MAX / 2, expect, "{spec} {pressure}: {after}");
            assert_eq!(after == MAX, !expect, "{spec} {pressure}: {after}");
        }
    }
    // Controllers of rates leave it to the window that the caller keeps below them.
    for spec in ["dcqcn", "timely"] {
        let mut c = controller(spec);
        let before = c.limits();
        for k in 1..=10 {
            let sample = acked(&c, 3);
            c.on_ack(ms(10 * k), &sample);
        }
        assert_eq!(c.limits(), before, "{spec}");
    }
}

#[test]
fn aimd_halves_once_per_round_trip_of_pressure_and_grows_when_it_ends() {
    let mut c = grown("aimd");
    let pressed =
        |rtt: u64| AckSample { acked_bytes: MTU, pressure: 2, rtt: (rtt > 0).then(|| ms(rtt)), ..AckSample::default() };
    // Before a round trip is measured as for losses, and together with them.
    c.on_ack(ms(9), &pressed(0));
    c.on_loss(ms(9), LossKind::Fast);
    assert_eq!(bytes(&c), MAX / 2);
    c.on_ack(Nanos(9_999_999), &pressed(0));
    assert_eq!(bytes(&c), MAX / 2);
    c.on_ack(ms(14), &pressed(5));
    c.on_ack(ms(18), &pressed(0));
    assert_eq!(bytes(&c), MAX / 4, "within a round trip");
    c.on_ack(ms(19), &pressed(0));
    assert_eq!(bytes(&c), MAX / 8);
    // A round trip is shorter than the pause between losses.
    let short = AckSample { rtt: Some(Nanos(30_000)), ..pressed(0) };
    c.on_ack(Nanos(19_100_000), &short);
    assert_eq!(bytes(&c), MAX / 16);
    c.on_loss(Nanos(19_200_000), LossKind::Fast);
    assert_eq!(bytes(&c), MAX / 16);
    for k in 0..1000 {
        c.on_ack(ms(20 + k), &pressed(0));
    }
    assert_eq!(bytes(&c), 2 * MTU);
    let calm = acked(&c, 1);
    c.on_ack(ms(2_000), &calm);
    assert!(bytes(&c) > 2 * MTU);
}

#[test]
fn dctcp_alpha_follows_the_echoed_share_and_not_notifications() {
    let mut rng = Rng::new(3);
    for share in [0.0, 0.1, 0.5, 1.0] {
        let mut c = controller("dctcp:slow_start=0");
        for k in 0..4_000 {
            let packets = 8;
            let ce_packets = (0..packets).filter(|_| rng.below(1_000) < (share * 1_000.0) as u64).count() as u32;
            // The same marks are answered by notifications as well: they must not count twice.
            if ce_packets > 0 {
                c.on_cnp(Nanos(10_000 * k));
            }
            let (acked_bytes, inflight_bytes) = (u64::from(packets) * MTU, 32 * MTU);
            let sample = AckSample { acked_bytes, packets, ce_packets, inflight_bytes, ..AckSample::default() };
            c.on_ack(Nanos(10_000 * k), &sample);
        }
        let alpha = value(&c, "alpha");
        assert!((alpha - share).abs() < 0.1, "share {share}: alpha {alpha}");
    }
}

#[test]
fn swift_hears_the_peer_in_acknowledgements_that_measure_nothing() {
    let mut c = controller("swift:endpoint_target=50");
    let late = AckSample { acked_bytes: MTU, packets: 1, remote_delay: Nanos(100_000), ..AckSample::default() };
    c.on_ack(ms(1), &late);
    assert_eq!(bytes(&c), (MAX as f64 * 0.6) as u64, "1 - 0.8 (100 - 50) / 100");
    assert_eq!(value(&c, "fcwnd_bytes"), MAX as f64, "the fabric's delay is not known");
    // A peer of the standard family says nothing.
    let silent = AckSample { acked_bytes: MTU, ..AckSample::default() };
    let before = c.clone();
    c.on_ack(ms(2), &silent);
    assert_eq!(c, before);
}

#[test]
fn swift_hears_the_peer_by_any_of_what_it_says() {
    let said = [
        AckSample { packets: 1, ..AckSample::default() },
        AckSample { remote_delay: Nanos(1), ..AckSample::default() },
        AckSample { pressure: 1, ..AckSample::default() },
    ];
    for sample in said {
        let mut c = controller("swift:endpoint_target=50");
        c.on_ack(ms(1), &AckSample { pressure: 2, ..AckSample::default() });
        let before = value(&c, "ecwnd_bytes");
        assert_eq!(before, MAX as f64 * 0.6);
        c.on_ack(ms(2), &AckSample { acked_bytes: bytes(&c), ..sample });
        assert!(value(&c, "ecwnd_bytes") > before, "{sample:?}");
    }
}

#[test]
fn swift_undoes_a_loss_unless_the_delay_has_reduced_the_window_since() {
    // Under the target; over it within a round trip of the loss, which changes nothing; over it later.
    for (after, rtt, undone) in [(1_000, 10_000, true), (1, 1_000_000, true), (2_000_000, 1_000_000, false)] {
        let mut c = controller("swift:base_target=50,min_rtts=0");
        c.on_loss(ms(10), LossKind::Fast);
        c.on_ack(ms(10) + Nanos(after), &AckSample { rtt: Some(Nanos(rtt)), ..AckSample::default() });
        c.on_spurious(ms(20));
        assert_eq!(value(&c, "fcwnd_bytes") == MAX as f64, undone, "{after} {rtt}");
    }
}

#[test]
fn each_sign_of_congestion_ends_the_slow_start_of_dctcp_at_once() {
    let half = AckSample { acked_bytes: 16 * MTU, packets: 16, inflight_bytes: 16 * MTU, ..AckSample::default() };
    let window_after = |sign: fn(&mut Controller) -> AckSample| {
        let mut c = controller("dctcp:initial_window=32K");
        let sample = sign(&mut c);
        c.on_ack(ms(1), &AckSample { ce_packets: sample.ce_packets, pressure: sample.pressure, ..half });
        bytes(&c)
    };
    assert_eq!(window_after(|_| AckSample::default()), 48 * MTU, "doubles");
    assert_eq!(window_after(|_| AckSample { ce_packets: 1, ..AckSample::default() }), 16 * MTU, "alpha is 1 at first");
    assert_eq!(window_after(|_| AckSample { pressure: 2, ..AckSample::default() }), 32 * MTU);
    let notified = |c: &mut Controller| {
        c.on_cnp(ms(1));
        AckSample::default()
    };
    assert_eq!(window_after(notified), 32 * MTU);
}

#[test]
fn a_loss_that_was_none_is_undone() {
    for spec in ["aimd", "dctcp:slow_start=0", "swift"] {
        let mut c = grown(spec);
        c.on_loss(ms(10), LossKind::Fast);
        assert_eq!(bytes(&c), MAX / 2, "{spec}");
        c.on_spurious(ms(11));
        assert_eq!(bytes(&c), MAX, "{spec}");
        c.on_spurious(ms(12));
        assert_eq!(bytes(&c), MAX, "{spec}");
    }
}

#[test]
fn a_loss_is_not_undone_with_another_or_after_other_signs() {
    let events: [fn(&mut Controller, Nanos); 3] = [
        |c, now| c.on_loss(now, LossKind::Fast),
        |c, now| (0..2).for_each(|_| c.on_ack(now, &AckSample { packets: 9, ce_packets: 9, ..acked(c, 3) })),
        |c, now| {
            c.on_spurious(now);
            c.on_loss(now, LossKind::Timeout);
            c.on_loss(now, LossKind::Timeout);
        },
    ];
    for spec in ["aimd", "dctcp:slow_start=0", "swift"] {
        for (number, event) in events.iter().enumerate() {
            let mut c = controller(spec);
            c.on_loss(ms(10), LossKind::Fast);
            event(&mut c, Nanos(10_010_000));
            let before = bytes(&c);
            c.on_spurious(ms(12));
            // Swift's window of the fabric does not react to pressure.
            if (spec, number) != ("swift", 1) {
                assert_eq!(bytes(&c), before, "{spec} {number}");
            }
        }
    }
}

#[test]
fn what_a_hostile_peer_says_leaves_a_window_of_a_packet_at_least() {
    for algorithm in Algorithm::ALL {
        let mut rng = Rng::new(11);
        let mut c = Controller::new(&Params::new(algorithm, MAX), Nanos(0), 0, MTU as u32);
        let mut now = Nanos(0);
        for _ in 0..20_000 {
            now = now + Nanos(rng.below(100_000));
            let packets = rng.below(4_096) as u32;
            let sample = AckSample {
                is_recovering: rng.below(8) == 0,
                is_full: rng.below(4) == 0,
                acked_bytes: rng.below(128 * MTU),
                rtt: (rng.below(2) == 0).then(|| Nanos(rng.below(1 << 32))),
                remote_delay: Nanos(64 * rng.below(1 << 16)),
                ce_packets: rng.below(u64::from(packets) + 1) as u32,
                packets,
                inflight_bytes: rng.below(MAX),
                pressure: rng.below(4) as u8,
            };
            c.on_ack(now, &sample);
            if rng.below(50) == 0 {
                c.on_spurious(now);
            }
            let limits = c.limits();
            assert!(limits.window_bytes >= MTU && limits.window_bytes <= MAX, "{algorithm}: {limits:?}");
        }
    }
}
