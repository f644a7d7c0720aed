//! Tests of [`Path`].

use super::*;
use std::net::Ipv4Addr;

const MTU: u64 = 4096;

/// A path whose window has grown to its maximum.
fn path() -> Path {
    let mut p = path_with(Algorithm::Aimd);
    while p.window() < 512 << 10 {
        let window = p.window();
        p.moved(Nanos(0), 1, 0, window);
        p.moved(Nanos(0), 1, window, 0);
    }
    p
}

fn path_with(algorithm: Algorithm) -> Path {
    path_of(Params::new(algorithm, 512 << 10))
}

fn path_of(cc: Params) -> Path {
    let link = PathLink { cc, line_rate_bps: 10_000_000_000, mtu: 4096 };
    Path::new(Nanos(0), IpAddr::V4(Ipv4Addr::LOCALHOST), DeviceId(0), &link)
}

#[test]
fn below_other_controllers_the_window_against_full_buffers_remains() {
    for algorithm in Algorithm::ALL {
        let mut p = path_with(algorithm);
        for ms in 1..10 {
            p.on_signal(Nanos::from_ms(10 * ms), Signal::Loss);
        }
        let least = if algorithm == Algorithm::None { 512 << 10 } else { burst_cc::WINDOW_MIN };
        assert!(p.window() <= least, "{algorithm}: {}", p.window());
        let min = 4096;
        p.moved(Nanos::from_ms(200), 1, 0, 512 << 10);
        assert_eq!((p.room(0), p.room(min)), (min, 0), "{algorithm}");
    }
}

#[test]
fn room_shrinks_with_flight_but_each_keeps_its_minimum() {
    let mut p = path();
    assert_eq!(p.room(0), 512 << 10);
    p.moved(Nanos(0), 1, 0, 512 << 10);
    assert_eq!(p.room(0), MTU);
    assert_eq!(p.room(MTU), 0);
}

#[test]
fn responses_get_the_window_and_requests_what_they_leave() {
    let mut p = path();
    p.moved(Nanos(0), 1, 0, 512 << 10);
    assert_eq!((p.room(0), p.response_room(0)), (MTU, 512 << 10), "requests alone");
    p.moved(Nanos(0), 2, 0, 500 << 10);
    p.responses_moved(0, 500 << 10);
    assert_eq!((p.room(0), p.response_room(500 << 10)), (MTU, 12 << 10));
    p.moved(Nanos(0), 1, 512 << 10, 0);
    assert_eq!((p.room(0), p.response_room(0)), (12 << 10, 12 << 10));
    p.moved(Nanos(0), 2, 500 << 10, 100);
    p.responses_moved(500 << 10, 100);
    assert_eq!((p.room(0), p.response_room(100)), (p.window() - 100, p.window() - 100));
}

#[test]
fn round_trips_are_measured_by_one_queue_pair_at_a_time() {
    let mut p = path_with(Algorithm::Swift);
    let rtt = |p: &Path| {
        let mut found = 0.0;
        p.controller.observe(&mut |name, value| {
            if name == "rtt_ns" {
                found = value
            }
        });
        found
    };
    let unknown = rtt(&p);
    p.moved(Nanos(0), 1, 0, 8192);
    p.left_bytes(Nanos(1_000), 1, (8192, 8192), (0, 8192));
    p.moved(Nanos(2_000), 2, 0, 4096);
    p.left_bytes(Nanos(2_000), 2, (4096, 4096), (0, 4096));
    p.moved(Nanos(9_000), 2, 4096, 0);
    p.moved(Nanos(10_000), 1, 8192, 4096);
    assert_eq!(rtt(&p), unknown);
    p.moved(Nanos(31_000), 1, 4096, 0);
    assert_eq!(rtt(&p), 30_000.0);
    // A READ asks for more than it sends, a loss and a queue pair that leaves end the measurement.
    p.moved(Nanos(40_000), 1, 0, 65_536);
    p.left_bytes(Nanos(40_000), 1, (0, 0), (0, 65_536));
    p.moved(Nanos(90_000), 1, 65_536, 0);
    for end in [|p: &mut Path| p.on_signal(Nanos(45_000), Signal::Loss), |p: &mut Path| p.forget(1)] {
        p.moved(Nanos(40_000), 1, 0, 4096);
        p.left_bytes(Nanos(40_000), 1, (4096, 4096), (0, 4096));
        end(&mut p);
        p.moved(Nanos(90_000), 1, 4096, 0);
    }
    assert_eq!(rtt(&p), 30_000.0);
}

#[test]
fn a_report_reaches_the_controller_with_the_bytes_that_it_acknowledges() {
    let mut p = path_with(Algorithm::Swift);
    let value = |p: &Path, wanted: &str| {
        let mut found = None;
        p.observe(&mut |name, value| found = if name == wanted { Some(value) } else { found });
        found
    };
    p.moved(Nanos(0), 1, 0, 65_536);
    p.left_bytes(Nanos(0), 1, (65_536, 65_536), (0, 65_536));
    let report = AckReport { rtt: Some(Nanos(20_000)), packets: 8, ce_packets: 2, ..AckReport::default() };
    p.on_report(Nanos(40_000), &report);
    p.on_report(Nanos(40_000), &AckReport { remote_delay: Nanos(6_400), packets: 8, ..AckReport::default() });
    assert_eq!(value(&p, "rtt_ns"), Some(100_000.0), "no bytes were acknowledged");
    p.moved(Nanos(40_000), 1, 65_536, 0);
    assert_eq!(value(&p, "rtt_ns"), Some(20_000.0), "not the 40 us that the worker's clock shows");
    let shown = ["path_rtt_ns", "remote_delay_ns", "ce_share", "pressure"].map(|name| value(&p, name));
    assert_eq!(shown, [20_000.0, 6_400.0, 0.125, 0.0].map(Some));
    // The next bytes come without a report.
    p.moved(Nanos(50_000), 1, 0, 4096);
    p.left_bytes(Nanos(50_000), 1, (4096, 4096), (0, 4096));
    p.moved(Nanos(80_000), 1, 4096, 0);
    assert_eq!(value(&p, "rtt_ns"), Some(30_000.0));
}

#[test]
fn whatever_peers_report_a_packet_may_be_in_flight() {
    for algorithm in Algorithm::ALL {
        let mut rng = burst_base::rng::Rng::new(9);
        let (mut p, mut now) = (path_with(algorithm), Nanos(0));
        for _ in 0..20_000 {
            now = now + Nanos(rng.below(50_000));
            let (packets, bits) = (rng.below(4_097) as u32, rng.between(1, 40));
            let rtt = Nanos(rng.below(1 << bits));
            p.on_report(
                now,
                &AckReport {
                    rtt: (rng.below(3) > 0).then_some(rtt),
                    remote_delay: Nanos(64 * rng.below(1 << 16)),
                    packets,
                    ce_packets: rng.below(u64::from(packets) + 1) as u32,
                    pressure: rng.below(4) as u8,
                },
            );
            if rng.below(20) == 0 {
                p.on_signal(now, [Signal::Loss, Signal::Spurious, Signal::Timeout][rng.below(3) as usize]);
            }
            let bytes = rng.below(256 << 10);
            p.moved(now, 1, 0, bytes);
            p.moved(now, 1, bytes, 0);
            assert!(p.window() >= 4096 && p.room(0) >= 4096, "{algorithm}: {}", p.window());
        }
    }
}

#[test]
fn a_path_with_a_rate_sends_bursts_with_pauses() {
    let mut p = path_with(Algorithm::Dcqcn);
    let now = Nanos::from_ms(1);
    assert_eq!(p.burst(now), Some(u64::MAX));
    p.on_signal(now, Signal::Cnp);
    // 5 Gbit/s: 31,250 bytes in 50 us.
    assert_eq!(p.burst(now), Some(31_250));
    // What the lag allows, and 50 us more.
    p.left_bytes(now, 1, (93_750, 93_750), (0, 93_750));
    assert!(p.burst(now).is_none() && p.closed_gate(now).is_some());
    let open = now + Nanos(50_000 - 8_192);
    assert!(p.burst(open - Nanos(1)).is_none() && p.burst(open).is_some());
    // Others have no gate.
    assert!(path().gate().is_none() && path().burst(now) == Some(u64::MAX));
}

/// Only repairs of READ responses are sent, which do not count as in flight: what the peer says of them must not wait for
/// bytes that are acknowledged.
#[test]
fn reports_reach_a_paced_path_that_has_nothing_in_flight() {
    // With a target that does not follow the path, whose round trips are long from the beginning.
    let mut p = path_of(Params::parse("swift:min_rtts=0,base_target=25", 512 << 10).expect("a specification"));
    let ms = Nanos::from_ms;
    p.moved(ms(1), 1, 0, 4096);
    for k in 1..20 {
        // Round trips of a millisecond: the window becomes smaller than a packet.
        p.on_report(ms(10 * k), &AckReport { rtt: Some(ms(1)), packets: 1, ..AckReport::default() });
        p.moved(ms(10 * k), 1, 4096, 4095);
        p.moved(ms(10 * k), 1, 4095, 4096);
    }
    p.moved(ms(190), 1, 4096, 0);
    let gap = |p: &mut Path, now: Nanos| {
        assert!(p.burst(now).is_some());
        p.left_bytes(now, 1, (4096, 4096), (0, 0));
        p.closed_gate(now).map(|gate| gate.opens_at().since(now))
    };
    let slow = gap(&mut p, ms(190)).expect("a rate");
    assert!(p.faster_gate(ms(190)).is_none());
    let reported = AckReport { packets: 1, ..AckReport::default() };
    // In this time, the window would not grow without a word of the peer.
    (1..30).for_each(|k| p.on_report(ms(190 + k), &reported));
    let now = ms(219);
    let fast = gap(&mut p, now).expect("a rate");
    assert!(fast < Nanos(slow.0 / 4), "{fast:?} {slow:?}");
    // A gate that is closed opens earlier as well.
    let due = p.gate().expect("paced").opens_at();
    p.on_report(now, &AckReport { rtt: Some(Nanos(10_000)), packets: 1, ..AckReport::default() });
    p.moved(now, 1, 0, 4096);
    p.moved(now, 1, 4096, 0);
    assert!(p.faster_gate(now).is_some_and(|gate| gate.opens_at() < due));
}

#[test]
fn a_waiting_queue_pair_is_woken_by_room_for_its_next_packet() {
    let mut p = path();
    p.moved(Nanos(0), 1, 0, 512 << 10);
    assert!(!p.has_room(MTU, 1) && !p.has_room(MTU, 0) && p.has_room(0, 64 << 10));
    p.moved(Nanos(0), 1, 512 << 10, 480 << 10);
    assert!(p.has_room(MTU, 32 << 10) && !p.has_room(MTU, 64 << 10));
}

#[test]
fn messages_without_acknowledgement_wait_for_the_next_hop() {
    let mut p = path();
    let begin = Nanos::from_ms(50_000);
    let unasked = || panic!("asked too early");
    assert_eq!(p.may_send(begin, unasked), UNRESOLVED_BYTES);
    p.sent(UNRESOLVED_BYTES - 2 * WQE_BYTES, 1);
    assert_eq!(p.may_send(begin, unasked), WQE_BYTES);
    p.sent(0, 1);
    let soon = begin + Nanos::from_ms(1);
    assert_eq!((p.may_send(begin, || true), p.may_send(soon, || true)), (0, 0));
    assert_eq!((p.may_send(soon, || false), p.may_send(soon, unasked)), (u64::MAX, u64::MAX));
    // After a pause the next hop counts as unknown again.
    let late = soon + IDLE;
    assert_eq!(p.may_send(late, unasked), UNRESOLVED_BYTES);
    p.sent(UNRESOLVED_BYTES, 0);
    // The wait is bounded: the port drops packets to an unresolved next hop, with a reason.
    assert_eq!(p.may_send(late, || true), 0);
    assert_eq!(p.may_send(late + RESOLVING_MAX, unasked), u64::MAX);
}

#[test]
fn loss_halves_once_per_pause_and_acks_grow() {
    let mut p = path();
    let t = Nanos::from_ms(10);
    p.on_signal(t, Signal::Loss);
    p.on_signal(t, Signal::Loss);
    assert_eq!(p.window(), 256 << 10);
    for _ in 0..20 {
        p.on_signal(t + Nanos::from_ms(100), Signal::Loss);
        p.on_signal(t + Nanos::from_ms(200), Signal::Timeout);
    }
    assert!(p.window() >= burst_cc::WINDOW_MIN);
    let small = p.window();
    for _ in 0..10_000 {
        p.moved(Nanos(0), 1, 0, 4096);
        p.moved(Nanos(0), 1, 4096, 0);
    }
    assert!(p.window() > small);
    assert_eq!(p.inflight(), 0);
}

/// A time-out is about all that is in flight. That parts of it are missing, or their repetitions, reduces the window no further:
/// from what it is after a time-out that would be a few packets, far below what the path has carried.
#[test]
fn losses_of_a_flight_that_timed_out_say_nothing_more() {
    let ms = Nanos::from_ms;
    for algorithm in Algorithm::ALL {
        let mut p = path_with(algorithm);
        p.moved(ms(1), 1, 0, 100 * MTU);
        p.moved(ms(2), 1, 100 * MTU, 50 * MTU);
        p.on_signal(ms(10), Signal::Timeout);
        let after = p.limits();
        (11..20).for_each(|at| p.on_signal(ms(10 * at), Signal::Loss));
        assert_eq!(p.limits().window_bytes, after.window_bytes, "{algorithm}");
        // What was sent since is another flight.
        p.moved(ms(300), 1, 50 * MTU, 0);
        let grown = p.window();
        (0..10).for_each(|at| p.on_signal(ms(400 + 100 * at), Signal::Loss));
        assert!(algorithm == Algorithm::None || p.window() < grown, "{algorithm}: {} of {grown}", p.window());
    }
}

/// What has left the network unacknowledged makes room, and no window grows by it, however often it is lost. Each byte counts
/// when it is acknowledged.
#[test]
fn lost_bytes_make_room_and_acknowledge_nothing() {
    for algorithm in Algorithm::ALL {
        let mut p = path_with(algorithm);
        let before = p.window();
        for _ in 0..50 {
            p.moved(Nanos(0), 1, 0, before);
            p.release(Nanos(0), 1, before as i64);
        }
        assert_eq!((p.inflight(), p.window(), p.acked_at()), (0, before, Nanos(0)), "{algorithm}");
        // Half of a flight is lost, and half of that was not: an acknowledgement of it says so.
        p.moved(Nanos(0), 1, 0, 8 * MTU);
        p.release(Nanos(0), 1, 4 * MTU as i64);
        assert_eq!(p.inflight(), 4 * MTU, "{algorithm}");
        p.release(Nanos(9), 1, -2 * MTU as i64);
        p.moved(Nanos(9), 1, 6 * MTU, 0);
        assert_eq!((p.inflight(), p.acked_at()), (0, Nanos(9)), "{algorithm}");
        if matches!(algorithm, Algorithm::Aimd | Algorithm::Dctcp) {
            assert_eq!(p.window(), before + 6 * MTU, "{algorithm}: slow start");
        }
    }
}
