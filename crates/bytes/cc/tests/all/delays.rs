//! DCTCP, Swift and TIMELY against the rules of their publications.

use burst_base::Nanos;
use burst_cc::{AckSample, Controller, LossKind, Params, RATE_UNPACED};

const MTU: u64 = 1000;
const US: u64 = 1_000;

fn controller(spec: &str) -> Controller {
    let params = Params::parse(spec, 100 * MTU).expect("a valid specification");
    Controller::new(&params, Nanos(0), 10_000_000_000, MTU as u32)
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

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}

/// A window of `packets` acknowledged packets, `marked` of them with CE.
fn window(packets: u32, marked: u32) -> AckSample {
    let bytes = u64::from(packets) * MTU;
    AckSample { acked_bytes: bytes, packets, ce_packets: marked, inflight_bytes: bytes, ..AckSample::default() }
}

#[test]
fn dctcp_doubles_until_the_first_mark() {
    let mut c = controller("dctcp:initial_window=10000,slow_start=1");
    assert_eq!((c.limits().window_bytes, c.limits().rate_bps), (10_000, RATE_UNPACED));
    for want in [20_000, 40_000, 80_000, 100_000] {
        let packets = (c.limits().window_bytes / MTU) as u32;
        c.on_ack(us(1), &window(packets, 0));
        assert_eq!(c.limits().window_bytes, want);
    }
}

#[test]
fn dctcp_reduces_the_window_by_half_of_alpha_once_per_window() {
    let mut c = controller("dctcp:slow_start=0,initial_alpha=0");
    assert_eq!(c.limits().window_bytes, 100_000);
    // 100 packets, 80 marked: alpha = 0.8/16.
    c.on_ack(us(1), &window(100, 80));
    let alpha = 0.8 / 16.0;
    assert!(near(value(&c, "alpha"), alpha));
    assert!(near(value(&c, "window_bytes"), 100_000.0 * (1.0 - alpha / 2.0)));
    // The next window has no mark: one MTU more, and alpha falls.
    let before = value(&c, "window_bytes");
    c.on_ack(us(2), &window(99, 0));
    assert_eq!(value(&c, "window_bytes"), before, "the window has 100 packets");
    c.on_ack(us(3), &window(1, 0));
    assert!(near(value(&c, "alpha"), alpha * 15.0 / 16.0));
    assert!(near(value(&c, "window_bytes"), before + MTU as f64));
}

/// Marks last for about a round trip, because the packets behind the first marked one are on their way already, and so they fall
/// into two windows of the estimate. One cut answers them, at the first mark (RFC 8257, section 3.3; RFC 3168, section 6.1.2).
#[test]
fn dctcp_answers_marks_of_one_round_trip_once() {
    let mut c = controller("dctcp:slow_start=0,initial_alpha=0.2,g=0.001");
    // The last 60 packets of one window and the first 41 of the next one are marked.
    for (packets, marked) in [(40, 0), (1, 1)] {
        c.on_ack(us(1), &AckSample { inflight_bytes: 100 * MTU, ..window(packets, marked) });
    }
    let cut = value(&c, "window_bytes");
    assert!(near(cut, 100_000.0 * (1.0 - 0.2 / 2.0)), "{cut}");
    for (packets, marked) in [(59, 59), (41, 41)] {
        c.on_ack(us(2), &AckSample { inflight_bytes: 90 * MTU, ..window(packets, marked) });
        assert_eq!(value(&c, "window_bytes"), cut);
    }
    // Marks that go on are answered again.
    c.on_ack(us(3), &AckSample { inflight_bytes: 90 * MTU, ..window(1, 1) });
    assert!(value(&c, "window_bytes") < 0.92 * cut);
}

#[test]
fn dctcp_alpha_converges_to_the_share_of_marks() {
    let mut c = controller("dctcp");
    for _ in 0..400 {
        c.on_ack(us(1), &window(10, 3));
    }
    assert!((value(&c, "alpha") - 0.3).abs() < 1e-6, "{}", value(&c, "alpha"));
    // More marks than packets count as all packets.
    (0..400).for_each(|_| c.on_ack(us(1), &window(10, 300)));
    assert!(value(&c, "alpha") <= 1.0 && c.limits().window_bytes == MTU);
}

#[test]
fn dctcp_takes_a_notification_of_a_standard_peer_for_a_marked_window() {
    let silent = AckSample { acked_bytes: 100 * MTU, inflight_bytes: 100 * MTU, ..AckSample::default() };
    let mut c = controller("dctcp:slow_start=0,initial_alpha=0");
    (0..3).for_each(|_| c.on_cnp(us(1)));
    assert_eq!(c.limits().window_bytes, 100_000);
    c.on_ack(us(2), &silent);
    assert!(near(value(&c, "alpha"), 1.0 / 16.0));
    assert!(near(value(&c, "window_bytes"), 100_000.0 * (1.0 - 1.0 / 32.0)));
    c.on_ack(us(3), &silent);
    assert!(near(value(&c, "window_bytes"), 100_000.0 * (1.0 - 1.0 / 32.0) + 1000.0));
}

#[test]
fn dctcp_halves_on_a_loss_once_per_window_and_starts_anew_after_a_timeout() {
    let mut c = controller("dctcp:slow_start=0");
    c.on_loss(us(1), LossKind::Fast);
    c.on_loss(us(1), LossKind::Fast);
    assert_eq!(c.limits().window_bytes, 50_000);
    c.on_ack(us(2), &window(100, 0));
    assert_eq!(c.limits().window_bytes, 51_000);
    c.on_loss(us(3), LossKind::Timeout);
    assert_eq!(c.limits().window_bytes, MTU);
    // Slow start up to half of 51,000, then one MTU per window.
    (0..5).for_each(|_| c.on_ack(us(4), &window((c.limits().window_bytes / MTU) as u32, 0)));
    assert_eq!(c.limits().window_bytes, 32_000);
    c.on_ack(us(5), &window(100, 0));
    assert_eq!(c.limits().window_bytes, 33_000);
}

/// An acknowledgement of `packets` after `rtt` and `remote`, in microseconds.
fn delay(packets: u64, rtt: u64, remote: u64) -> AckSample {
    AckSample { acked_bytes: packets * MTU, rtt: Some(us(rtt)), remote_delay: us(remote), ..AckSample::default() }
}

#[test]
fn swift_holds_below_the_target_and_reduces_in_proportion_above() {
    let mut c = controller("swift:base_target=25,fs_range=0,min_rtts=2");
    assert_eq!((c.limits().window_bytes, c.limits().rate_bps), (100_000, RATE_UNPACED));
    // The smallest round trip is 10 us: the target is 25 + 20 us.
    c.on_ack(us(1_000), &delay(1, 10, 0));
    assert_eq!((value(&c, "target_delay_ns"), value(&c, "fcwnd_bytes")), (45_000.0, 100_000.0));
    c.on_ack(us(2_000), &delay(1, 60, 0));
    let packets = 100.0 * (1.0 - 0.8 * 15.0 / 60.0);
    assert!(near(value(&c, "fcwnd_bytes"), packets * 1000.0));
    // Not again within a round trip.
    c.on_ack(us(2_059), &delay(1, 60, 0));
    assert!(near(value(&c, "fcwnd_bytes"), packets * 1000.0));
    // One packet more for each window acknowledged.
    c.on_ack(us(2_100), &delay(40, 20, 0));
    assert!(near(value(&c, "fcwnd_bytes"), (packets + 40.0 / packets) * 1000.0));
    // The largest decrease is a half.
    let before = value(&c, "fcwnd_bytes");
    c.on_ack(us(900_000), &delay(1, 60_000, 0));
    assert!(near(value(&c, "fcwnd_bytes"), before / 2.0));
}

#[test]
fn swift_scales_the_target_with_the_window() {
    let mut c = controller("swift:base_target=25,min_rtts=2,fs_range=100,fs_min=0.25,fs_max=100");
    c.on_ack(us(1_000), &delay(1, 10, 0));
    assert!(near(value(&c, "target_delay_ns"), 45_000.0), "a window of 100 packets has no scaling");
    // a = 100 us / (2 - 0.1), b = -a / 10; 25 packets: a (0.2 - 0.1).
    c.on_ack(us(200_000), &delay(0, 100_000, 0));
    c.on_ack(us(400_000), &delay(0, 100_000, 0));
    assert!(near(value(&c, "fcwnd_bytes"), 25_000.0));
    assert!((value(&c, "target_delay_ns") - (45_000.0 + 100_000.0 / 1.9 * 0.1)).abs() < 1e-6);
    for k in 0..40 {
        c.on_ack(us(600_000 + 200_000 * k), &delay(0, 100_000, 0));
    }
    assert!(near(value(&c, "target_delay_ns"), 145_000.0), "the largest scaling");
}

#[test]
fn swift_follows_the_delay_of_the_peer_with_a_window_of_its_own() {
    let mut c = controller("swift:endpoint_target=50,base_target=50,min_rtts=0");
    c.on_ack(us(1_000), &delay(1, 10, 100));
    assert!(near(value(&c, "ecwnd_bytes"), 60_000.0), "{}", value(&c, "ecwnd_bytes"));
    assert_eq!((value(&c, "fcwnd_bytes"), c.limits().window_bytes), (100_000.0, 60_000));
    // A full receive buffer counts as twice the target: 1 - 0.8/2.
    c.on_ack(us(2_000), &AckSample { pressure: 2, ..delay(1, 10, 0) });
    assert!(near(value(&c, "ecwnd_bytes"), 36_000.0));
    c.on_ack(us(3_000), &AckSample { pressure: 1, ..delay(36, 10, 0) });
    assert!(near(value(&c, "ecwnd_bytes"), 37_000.0));
}

#[test]
fn swift_paces_windows_under_one_packet() {
    let mut c = controller("swift:min_window=0.1,base_target=50,min_rtts=0");
    for k in 1..20 {
        c.on_ack(us(10_000 * k), &delay(0, 1_000, 0));
    }
    let packets = value(&c, "fcwnd_bytes") / 1000.0;
    assert!(packets < 1.0, "{packets} packets");
    let limits = c.limits();
    assert_eq!((limits.window_bytes, limits.burst_bytes), (MTU, MTU));
    assert_eq!(limits.rate_bps, (packets * 1000.0 * 8.0 / (1e6 * 1e-9)) as u64);
    // Below one packet the window grows by `ai` for each packet, not for each window.
    c.on_ack(us(1_000_000), &delay(1, 1, 0));
    assert!(near(value(&c, "fcwnd_bytes"), (packets + 1.0) * 1000.0));
    assert_eq!(c.limits().rate_bps, RATE_UNPACED);
}

/// Repairs of READ responses acknowledge no byte for the first time, but the peer says that it has received them, and how long it
/// kept them.
#[test]
fn swift_follows_the_delay_of_the_peer_where_only_repairs_arrive() {
    let mut c = controller("swift:base_target=50,min_rtts=0");
    for k in 1..40 {
        c.on_ack(us(10_000 * k), &delay(0, 10, 1_000));
    }
    assert!(near(value(&c, "ecwnd_bytes"), 1.0), "a thousandth of a packet");
    let repaired = AckSample { packets: 1, remote_delay: us(3), ..AckSample::default() };
    c.on_ack(us(400_000), &repaired);
    assert!(near(value(&c, "ecwnd_bytes"), 1_001.0), "{}", value(&c, "ecwnd_bytes"));
    c.on_ack(us(401_000), &AckSample { packets: 2, ..repaired });
    assert!(near(value(&c, "ecwnd_bytes"), 1_001.0 + 2_000.0 / 1.001), "two packets for each window");
}

/// The delay of a long queue neither stops a path for seconds, nor for as long as only repeated packets are acknowledged.
#[test]
fn swift_comes_back_from_the_smallest_window_without_measurements() {
    let mut c = controller("swift:base_target=50,min_rtts=0");
    for k in 1..40 {
        c.on_ack(us(10_000 * k), &delay(0, 1_000, 0));
    }
    assert!(near(value(&c, "fcwnd_bytes"), 1.0), "a thousandth of a packet");
    // Round trip / window is a second.
    assert_eq!(c.limits().rate_bps, (MTU as f64 * 8.0 / 16e-3) as u64);
    // A packet that was sent twice, and one that counts as in flight no more: each halves the gap, once in a gap.
    let repeated = AckSample { acked_bytes: MTU, ..AckSample::default() };
    let repaired = AckSample { packets: 1, ..AckSample::default() };
    c.on_ack(us(400_000), &repeated);
    assert!(near(value(&c, "fcwnd_bytes"), 1.0), "too soon");
    for (k, sample) in (0..).zip([repeated, repaired, repeated]) {
        c.on_ack(us(410_000 + 16_000 * k), &sample);
        c.on_ack(us(410_000 + 16_000 * k), &sample);
        assert_eq!(c.limits().rate_bps, (MTU as f64 * 8.0 / 8e-3) as u64 * (1 << k));
    }
    assert!(near(value(&c, "fcwnd_bytes"), 500.0), "{}", value(&c, "fcwnd_bytes"));
    (0..20).for_each(|k| c.on_ack(us(444_000 + 2_000 * k), &repeated));
    assert_eq!((value(&c, "fcwnd_bytes"), c.limits().rate_bps), (1000.0, RATE_UNPACED), "no more than a packet");
}

/// Nothing acknowledges the responses to READs of the standard family: a responder must not stay at the rate to which losses or a
/// long queue have taken it, or requests of other queue pairs wait longer than they are patient.
#[test]
fn swift_comes_back_where_the_peer_says_nothing() {
    for rtt_us in [10, 2_000, 100_000] {
        let mut c = controller("swift:base_target=50,min_rtts=0");
        for k in 1..40 {
            c.on_ack(us(100_000 * k), &delay(0, rtt_us, 0));
            c.on_loss(us(100_000 * k + 50_000), LossKind::Fast);
        }
        let (begin, small) = (us(4_000_000), value(&c, "fcwnd_bytes"));
        assert!(small < 1000.0 && c.next_deadline() != Nanos::NEVER, "{small}");
        c.on_ack(begin, &delay(0, rtt_us, 0));
        let before = value(&c, "fcwnd_bytes");
        c.on_timer(begin + Nanos(c.next_deadline().since(begin).0 - 1));
        assert!(near(value(&c, "fcwnd_bytes"), before), "before its time nothing happens");
        while c.next_deadline() != Nanos::NEVER {
            c.on_timer(c.next_deadline());
            assert!(c.next_deadline() == Nanos::NEVER || c.next_deadline() < begin + Nanos::from_ms(900), "{rtt_us}");
        }
        assert_eq!((value(&c, "fcwnd_bytes"), c.limits().rate_bps), (1000.0, RATE_UNPACED), "no more than a packet");
    }
}

/// The window of the peer's delay, too.
#[test]
fn swift_comes_back_where_a_slow_peer_says_nothing_more() {
    let mut c = controller("swift:base_target=50,min_rtts=0");
    for k in 1..40 {
        c.on_ack(us(10_000 * k), &delay(1, 10, 1_000));
    }
    assert!(near(value(&c, "ecwnd_bytes"), 1.0) && value(&c, "fcwnd_bytes") == 100_000.0, "a thousandth of a packet");
    // A packet in 10 ms: twice that, and a round trip.
    assert_eq!(c.next_deadline(), us(390_000 + 20_010));
    let mut before = value(&c, "ecwnd_bytes");
    while c.next_deadline() != Nanos::NEVER {
        c.on_timer(c.next_deadline());
        assert!(near(value(&c, "ecwnd_bytes"), (2.0 * before).min(1_000.0)), "{before}");
        before = value(&c, "ecwnd_bytes");
    }
    assert_eq!((before, value(&c, "fcwnd_bytes")), (1_000.0, 100_000.0), "no more than a packet");
    // What the peer says counts again.
    c.on_ack(us(900_000), &delay(0, 10, 1_000));
    assert!(near(value(&c, "ecwnd_bytes"), 500.0), "{}", value(&c, "ecwnd_bytes"));
}

#[test]
fn swift_sends_a_packet_in_each_millisecond_whatever_is_lost() {
    for (rtt_us, kind) in
        [(10, LossKind::Timeout), (10, LossKind::Fast), (500, LossKind::Timeout), (500, LossKind::Fast)]
    {
        let mut c = controller("swift:base_target=50,min_rtts=0");
        c.on_ack(us(1_000), &delay(0, rtt_us, 0));
        for k in 1..100 {
            c.on_loss(us(10_000 * k), kind);
        }
        let rate = c.limits().rate_bps as f64 / (MTU as f64 * 8.0);
        assert!((999.0..1_001.0).contains(&rate), "{rate} packets per second after {kind:?}, round trip {rtt_us} us");
    }
}

#[test]
fn swift_reduces_after_losses_notifications_and_five_timeouts() {
    for event in [|c: &mut Controller| c.on_loss(us(5_000), LossKind::Fast), |c: &mut Controller| c.on_cnp(us(5_000))] {
        let mut c = controller("swift:max_mdf=0.4,base_target=50,min_rtts=0");
        event(&mut c);
        event(&mut c);
        assert!(near(value(&c, "fcwnd_bytes"), 60_000.0));
    }
    let mut c = controller("swift:min_window=0.5,base_target=50,min_rtts=0");
    for k in 1..5 {
        c.on_loss(us(5_000 * k), LossKind::Timeout);
    }
    assert!(near(value(&c, "fcwnd_bytes"), 100_000.0 / 16.0));
    c.on_loss(us(25_000), LossKind::Timeout);
    assert!(near(value(&c, "fcwnd_bytes"), 500.0));
    // An acknowledgement ends the row.
    c.on_ack(us(26_000), &delay(1, 10, 0));
    let before = value(&c, "fcwnd_bytes");
    c.on_loss(us(40_000), LossKind::Timeout);
    assert!(near(value(&c, "fcwnd_bytes"), before / 2.0));
}

#[test]
fn timely_follows_the_gradient_between_its_two_limits() {
    let segment = 64 << 10;
    let ack = |rtt: u64| AckSample { acked_bytes: segment, rtt: Some(us(rtt)), ..AckSample::default() };
    let mut c = controller("timely");
    let start = 10e9;
    assert_eq!((value(&c, "rate_bps"), c.limits().rate_bps), (start, RATE_UNPACED));
    c.on_ack(us(0), &ack(100));
    // +10 us: gradient 0.875 * 10 / 20, cut 0.8 * that.
    c.on_ack(us(1), &ack(110));
    let (first, gradient) = (start * (1.0 - 0.8 * 0.4375), 0.4375);
    assert!(near(value(&c, "rate_bps"), first) && near(value(&c, "gradient"), gradient));
    assert_eq!(c.limits().rate_bps, first as u64);
    // -20 us: the gradient is negative, so one step more; the fifth in a row adds five.
    let mut expected = first;
    for k in 0..6u64 {
        c.on_ack(us(2 + k), &ack(110 - 5 * (k + 1)));
        expected += if k < 4 { 10e6 } else { 50e6 };
        assert!(near(value(&c, "rate_bps"), expected), "increase {k}");
    }
    // Over t_high: 1 - 0.8 (1 - 500/1000), whatever the gradient; under t_low one step more.
    c.on_ack(us(10), &ack(1_000));
    assert!(near(value(&c, "rate_bps"), expected * 0.6));
    c.on_ack(us(11), &ack(40));
    assert!(near(value(&c, "rate_bps"), expected * 0.6 + 10e6));
    // A cut is a half at most.
    let before = value(&c, "rate_bps");
    c.on_ack(us(12), &ack(450));
    assert!(near(value(&c, "rate_bps"), before / 2.0));
}

#[test]
fn patched_timely_weighs_the_gradient_against_the_delay() {
    let ack = |rtt: u64| AckSample { acked_bytes: 64 << 10, rtt: Some(us(rtt)), ..AckSample::default() };
    let mut c = controller("timely:patched=1");
    c.on_ack(us(0), &ack(100));
    let mut expected = 10e9;
    // A gradient of zero: half of a step, and half of beta for each t_low = 50 us above it. It is the same however large the
    // rate is: the rates of all flows that see a round trip go to the same value.
    for k in 1..4 {
        c.on_ack(us(k), &ack(100));
        expected = expected * (1.0 - 0.8 * 0.5 * 1.0) + 5e6;
        assert!(near(value(&c, "rate_bps"), expected), "{k}");
    }
    // A gradient of a quarter or more: no increase; at most a half of the rate. Of minus a quarter or less: a step.
    c.on_ack(us(5), &ack(106));
    assert!(value(&c, "gradient") > 0.25);
    expected *= 1.0 - f64::min(0.8 * 56.0 / 50.0, 0.5);
    assert!(near(value(&c, "rate_bps"), expected));
    c.on_ack(us(6), &ack(96));
    assert!(value(&c, "gradient") < -0.25);
    expected += 10e6;
    assert!(near(value(&c, "rate_bps"), expected));
    // Outside of the two limits nothing is different.
    c.on_ack(us(7), &ack(40));
    expected += 10e6;
    assert!(near(value(&c, "rate_bps"), expected));
    c.on_ack(us(8), &ack(625));
    assert!(near(value(&c, "rate_bps"), (expected * (1.0 - 0.8 * 0.2)).max(100e6)));
}

#[test]
fn timely_updates_once_per_segment_and_obeys_notifications() {
    let mut c = controller("timely:segment=10000");
    let ack = |bytes, rtt| AckSample { acked_bytes: bytes, rtt: Some(us(rtt)), ..AckSample::default() };
    c.on_ack(us(0), &ack(10_000, 100));
    c.on_ack(us(1), &ack(9_999, 110));
    assert_eq!(value(&c, "rate_bps"), 10e9);
    c.on_ack(us(2), &ack(1, 110));
    assert!(value(&c, "rate_bps") < 10e9);
    let mut c = controller("timely");
    c.on_cnp(us(1_000));
    c.on_cnp(us(1_049));
    assert_eq!(value(&c, "rate_bps"), 5e9);
    c.on_cnp(us(1_050));
    assert_eq!(value(&c, "rate_bps"), 2.5e9);
    (0..100).for_each(|k| c.on_cnp(us(2_000 + 50 * k)));
    assert_eq!(c.limits().rate_bps, 100_000_000);
}

#[test]
fn swift_never_paces_above_the_rate_of_the_link() {
    let params =
        Params::parse("swift:min_window=0.1,base_target=50,min_rtts=0", 100 * MTU).expect("a valid specification");
    let mut c = Controller::new(&params, Nanos(0), 1_000_000_000, 4_096);
    let sample = |rtt| AckSample { acked_bytes: MTU, rtt: Some(rtt), ..AckSample::default() };
    // A full queue, again and again; then the round trip of a short packet.
    (1..200).for_each(|k| c.on_ack(us(k * 10_000), &sample(us(5_000))));
    assert!(c.limits().rate_bps < 1_000_000_000 && c.limits().rate_bps != RATE_UNPACED, "{:?}", c.limits());
    c.on_ack(us(2_000_000), &sample(us(2)));
    assert!(c.limits().rate_bps <= 1_000_000_000, "{:?}", c.limits());
}

/// The target follows the path, so that the window of a long path is not the smallest.
#[test]
fn swift_measures_the_path_without_its_own_queue() {
    let mut c = controller("swift:fs_range=0");
    // The first packets meet a long queue. Then one packet is in flight for two round trips.
    c.on_ack(us(10_000), &delay(1, 2_000, 0));
    assert_eq!((value(&c, "target_delay_ns"), c.limits().window_bytes), (4_025_000.0, MTU));
    c.on_ack(us(13_999), &delay(1, 900, 0));
    assert_eq!((value(&c, "target_delay_ns"), c.limits().window_bytes), (1_825_000.0, MTU));
    c.on_ack(us(14_000), &delay(1, 1_000, 0));
    assert_eq!((value(&c, "target_delay_ns"), c.limits().window_bytes), (1_825_000.0, 100 * MTU));
    // The next looks come after 4, 8, 16 round trips, and so on up to 128.
    let mut now = 14_000;
    for trips in [4, 8, 16, 32, 64, 128, 128] {
        now += 1_000 * trips;
        c.on_ack(us(now - 1), &delay(1, 1_000, 0));
        assert_eq!(c.limits().window_bytes, 100 * MTU);
        c.on_ack(us(now), &delay(1, 1_000, 0));
        assert_eq!(c.limits().window_bytes, MTU);
        now += 2_000;
        c.on_ack(us(now), &delay(1, 1_000, 0));
    }
}

/// A software peer takes half of a millisecond to answer. That is little on a path of 20 ms, and much on one of 0.2 ms.
#[test]
fn swift_measures_the_peers_delay_by_the_round_trip() {
    for (rtt, remote, is_reduced) in [(20_000, 500, false), (20_000, 3_000, true), (200, 500, true)] {
        let mut c = controller("swift");
        for k in 0..40 {
            c.on_ack(us(100_000 + 2 * rtt * k), &delay(1, rtt, remote));
        }
        let window = value(&c, "ecwnd_bytes");
        assert_eq!(window < 50.0 * MTU as f64, is_reduced, "{remote} of {rtt} us: {window} bytes");
    }
}

/// The path has become longer: more than its target, whatever the window is.
#[test]
fn swift_follows_a_path_that_has_become_longer() {
    let mut c = controller("swift");
    let mut now = 10_000;
    let mut run = |c: &mut Controller, rtt: u64, trips: u64| {
        for _ in 0..trips {
            now += rtt.max(c.limits().rate_bps.checked_ilog10().map_or(0, |_| 16_000));
            c.on_ack(us(now), &delay(1, rtt, 0));
        }
    };
    run(&mut c, 100, 300);
    assert_eq!(value(&c, "fcwnd_bytes"), 100_000.0);
    run(&mut c, 10_000, 20);
    assert!(value(&c, "fcwnd_bytes") < 1_000.0, "{}", value(&c, "fcwnd_bytes"));
    run(&mut c, 10_000, 500);
    assert!(value(&c, "target_delay_ns") > 20_000_000.0 && value(&c, "fcwnd_bytes") > 10_000.0);
}
