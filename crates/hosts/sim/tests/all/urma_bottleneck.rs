//! URMA's senders at one bottleneck, beside RC in the same place: what is dropped, how much of the link is used, how it is
//! shared. The senders' links have 10 Gbit/s, that of the receiver 300 Mbit/s.

use crate::urma_network::{Bottleneck, Seen, Transport};
use burst_engine::PathLoad;

const SLOW: Bottleneck =
    Bottleneck { cc: "cubic", mbit: 300, buffer: 50_000, marks: 0, delay_us: 25, window: 1 << 20, train: 2_048 };

/// After `ms` milliseconds, for twice as long.
fn measure(bottleneck: &Bottleneck, transport: Transport, senders: u32, ms: u64) -> Seen {
    let mut lab = bottleneck.of(transport, senders);
    lab.run(ms * 1_000);
    let first = lab.look();
    lab.run(ms * 2_000);
    let seen = lab.look();
    let Bottleneck { cc, buffer, delay_us, .. } = bottleneck;
    let (begin, dropped) = (first.dropped, seen.dropped);
    println!(
        "{senders} x {transport:?} {cc}, {buffer} B, {delay_us} us: dropped {begin:.4} {dropped:.4}, used {:.3}, Jain {:.3}",
        seen.used, seen.jain
    );
    assert_eq!(lab.failed(), 0);
    lab.network.check_conservation().expect("each packet is somewhere");
    seen
}

#[test]
fn urma_is_as_kind_to_a_short_buffer_as_rc() {
    for senders in [1, 4, 16] {
        let [urma, rc] = [Transport::Urma, Transport::Rc].map(|transport| measure(&SLOW, transport, senders, 300));
        assert!(urma.dropped <= 0.03, "{senders} senders: {urma:?}");
        assert!(urma.used >= 0.9 * rc.used, "{senders} senders: {urma:?}, RC {rc:?}");
        // Sixteen windows have two packets each, and differ for longer than this.
        assert!(senders > 4 || urma.jain >= 0.95, "{senders} senders: {urma:?}");
    }
}

/// A round trip of 4 ms: 150 KB are in flight.
#[test]
fn urma_fills_a_longer_path_and_its_buffer_drops_little() {
    for (senders, buffer) in [(1, 150_000), (4, 150_000), (1, 600_000), (4, 600_000)] {
        let bottleneck = Bottleneck { buffer, delay_us: 1_000, ..SLOW };
        let seen = measure(&bottleneck, Transport::Urma, senders, 600);
        assert!(seen.dropped <= 0.03 && seen.used >= 0.95, "{senders} senders, {buffer} bytes: {seen:?}");
    }
}

#[test]
fn marks_keep_a_buffer_from_dropping() {
    for cc in ["dctcp", "dcqcn"] {
        for senders in [1, 4] {
            let marked = Bottleneck { cc, buffer: 256 << 10, marks: 30 << 10, ..SLOW };
            let seen = measure(&marked, Transport::Urma, senders, 200);
            assert!(seen.marks > 0, "{senders} x {cc}: {seen:?}");
            assert!(seen.dropped == 0.0 && seen.used >= 0.9 && seen.jain >= 0.95, "{senders} x {cc}: {seen:?}");
        }
    }
}

/// An RC sender and one of URMA at one host have one window, and each gets a part of it; another host has another one.
#[test]
fn a_host_with_both_transports_takes_no_more_than_one_with_one() {
    let long = Bottleneck { buffer: 150_000, delay_us: 1_000, ..SLOW };
    let marked = Bottleneck { cc: "dctcp", buffer: 256 << 10, marks: 30 << 10, ..SLOW };
    let rates = Bottleneck { cc: "dcqcn", ..marked };
    // In a long round trip what is in flight may be that of the window before the last loss.
    // There hosts also need seconds until both have their share, whatever they send.
    for (place, begin, rounds, over) in
        [(SLOW, 30, 60, 1.0), (long, 180, 150, 1.0 / 0.7), (marked, 30, 60, 1.0), (rates, 30, 60, 1.0)]
    {
        let mut lab = place.build(&[(1, Transport::Rc), (1, Transport::Urma), (2, Transport::Urma)]);
        lab.run(begin * 10_000);
        lab.look();
        for _ in 0..rounds {
            lab.run(10_000);
            let load = lab.path(1).expect("a path");
            assert_eq!(load.users, 2, "the queue pair and the channel");
            let exceeds = |load: PathLoad| {
                load.inflight > (load.window.max(2 * load.least) as f64 * over) as u64 + 2 * load.least
            };
            if exceeds(load) {
                // It is that of the window before, if this was a loss, and fits a round trip later.
                lab.run(5_000);
                let later = lab.path(1).expect("a path");
                assert!(!exceeds(later), "{load:?}, {later:?}");
            }
        }
        let seen = lab.look();
        let [rc, urma, other] = [0, 1, 2].map(|sender| seen.bytes[sender] as f64);
        println!("{}: RC {rc}, URMA beside it {urma}, URMA alone {other}: {seen:?}", place.cc);
        assert!(seen.dropped <= 0.03 && seen.used >= 0.9, "{seen:?}");
        assert!((0.5..=2.0).contains(&((rc + urma) / other)), "{seen:?}");
        assert!((0.4..=0.6).contains(&(urma / (rc + urma))), "the transports share the window: {seen:?}");
    }
}

/// Each host answers the other's requests, whose window is full, too: answers wait for the rate only.
#[test]
fn programs_in_opposite_directions_do_not_wait_for_each_other() {
    for cc in ["cubic", "dcqcn", "swift"] {
        for others in [&[][..], &[(1, Transport::Rc)]] {
            let place = Bottleneck { cc, buffer: 256 << 10, marks: 30 << 10, ..SLOW };
            let senders: Vec<(u32, Transport)> = [(1, Transport::Urma)].iter().chain(others).copied().collect();
            let mut lab = place.build(&senders);
            lab.add_urma_back(1);
            lab.run(200_000);
            lab.look();
            lab.run(600_000);
            let seen = lab.look();
            println!("{cc}, {others:?}: {seen:?}");
            assert!(seen.bytes.iter().all(|bytes| *bytes > 0), "{cc}, {others:?}: {seen:?}");
            assert_eq!(lab.failed(), 0);
        }
    }
}

/// All that is in flight is lost, and what is sent for two time-outs: afterwards half of the rate is back within ten round trips
/// of the first acknowledgement.
#[test]
fn a_lost_flight_comes_back_within_ten_round_trips() {
    let path = Bottleneck { buffer: 600_000, delay_us: 1_000, ..SLOW };
    let mut lab = path.of(Transport::Urma, 1);
    lab.run(1_000_000);
    lab.black_hole = Some((1, 0));
    lab.run(30_000);
    assert!(lab.swallowed > 20, "{} trains were lost", lab.swallowed);
    lab.black_hole = None;
    // Until the next time-out.
    let before = lab.ended(0);
    let mut waited = 0;
    while lab.ended(0) == before && waited < 500 {
        lab.run(1_000);
        waited += 1;
    }
    lab.look();
    lab.run(10 * 4_000);
    lab.look();
    lab.run(10 * 4_000);
    let seen = lab.look();
    println!("first message after {waited} ms, then {seen:?}");
    assert!(waited < 100 && seen.used >= 0.5, "{waited} ms, {seen:?}");
    assert_eq!(lab.failed(), 0);
}

/// Hosts send trains, and one acknowledgement answers a train: a window that leaves at once comes back at once, waits for a round
/// trip, and meets the queue as a whole. At a queue that marks from a third on, one sender used 0.29 of the link.
#[test]
fn windows_that_follow_marks_are_spread_over_a_round_trip() {
    for (buffer, delay_us, ms) in [(50_000, 250, 400), (150_000, 250, 400), (750_000, 5_000, 1_500)] {
        let place = Bottleneck { cc: "dctcp", buffer, marks: buffer / 3, delay_us, train: 64 << 10, ..SLOW };
        for senders in [1, 2, 4, 16] {
            let seen = measure(&place, Transport::Rc, senders, ms);
            assert!(seen.dropped == 0.0 && seen.used >= 0.9, "{senders} senders, {buffer} bytes: {seen:?}");
            // Sixteen windows differ for longer than this.
            assert!(senders == 16 || seen.jain >= 0.95, "{senders} senders, {buffer} bytes: {seen:?}");
        }
    }
}

/// 300 Mbit/s for 20 ms are 730 packets. By rules for round trips of tens of microseconds `timely` used a third of it, its
/// smallest rate, and `dcqcn` was cut by half twice at each mark.
#[test]
fn one_sender_uses_a_long_path_with_every_controller() {
    for (cc, marks, least) in
        [("timely", 0, 0.7), ("dcqcn", 250_000, 0.75), ("swift", 0, 0.85), ("dctcp", 250_000, 0.95)]
    {
        let place = Bottleneck { cc, buffer: 750_000, marks, delay_us: 5_000, train: 16 << 10, ..SLOW };
        let seen = measure(&place, Transport::Rc, 1, 1_500);
        assert!(seen.dropped <= 0.03 && seen.used >= least, "{cc}: {seen:?}");
    }
}
