//! What holds for every controller after every sequence of events, however impossible.

use burst_base::Nanos;
use burst_cc::{AckSample, Algorithm, CONTROLLER_BYTES_MAX, Controller, LossKind, Params, RATE_UNPACED};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Ack(AckSample),
    Cnp,
    Loss(LossKind),
    Spurious,
    Idle(u64),
    Timer,
    Deadline,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..=10u64, 0..=10_000_000u64, any::<u64>(), Just(u64::MAX)]
}

/// Bytes: at most 2^40, more than any host has in flight.
fn bytes() -> impl Strategy<Value = u64> {
    number().prop_map(|n| n % (1 << 40))
}

fn event() -> impl Strategy<Value = Event> {
    let counts = prop_oneof![0..=64u32, any::<u32>()];
    let ack = (bytes(), proptest::option::of(number()), number(), counts.clone(), counts, bytes(), any::<u8>());
    let ack = ack.prop_map(|(acked_bytes, rtt, remote, ce_packets, packets, inflight_bytes, pressure)| {
        let (rtt, remote_delay) = (rtt.map(Nanos), Nanos(remote));
        let (is_recovering, is_full) = (acked_bytes % 5 == 4, acked_bytes % 7 == 6);
        Event::Ack(AckSample {
            acked_bytes,
            rtt,
            remote_delay,
            ce_packets,
            packets,
            inflight_bytes,
            pressure,
            is_recovering,
            is_full,
        })
    });
    prop_oneof![
        4 => ack,
        3 => Just(Event::Cnp),
        1 => prop_oneof![Just(LossKind::Fast), Just(LossKind::Timeout), Just(LossKind::LocalDrop)].prop_map(Event::Loss),
        1 => Just(Event::Spurious),
        1 => number().prop_map(Event::Idle),
        2 => Just(Event::Timer),
        1 => Just(Event::Deadline),
    ]
}

/// An algorithm with each parameter at its default, its smallest or its largest value.
fn params() -> impl Strategy<Value = Params> {
    let choices = proptest::collection::vec(0..3u8, burst_cc::PARAMETERS_MAX);
    (0..Algorithm::ALL.len(), choices, bytes()).prop_map(|(at, choices, window)| {
        let algorithm = Algorithm::ALL[at];
        let mut params = Params::new(algorithm, window);
        for (row, choice) in algorithm.parameters().iter().zip(choices) {
            let value = [row.default, row.min, row.max][usize::from(choice)];
            params.set(row.name, &row.show(value)).expect("a value in range");
        }
        params
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_the_contract(
        params in params(),
        line_rate in number(),
        mtu in prop_oneof![Just(0u32), Just(256), Just(1024), Just(4096), 0..=65_536u32],
        events in proptest::collection::vec((event(), number(), any::<bool>()), 0..80),
    ) {
        let mut now = Nanos(0);
        let mut c = Controller::new(&params, now, line_rate, mtu);
        for (event, time, jumps) in events {
            // The clock goes on by up to 10 ms, or jumps anywhere, back as well.
            now = if jumps { Nanos(time) } else { now + Nanos(time % 10_000_000) };
            match event {
                Event::Ack(sample) => c.on_ack(now, &sample),
                Event::Cnp => c.on_cnp(now),
                Event::Loss(kind) => c.on_loss(now, kind),
                Event::Spurious => c.on_spurious(now),
                Event::Idle(since) => c.on_idle(now, Nanos(since)),
                Event::Timer => c.on_timer(now),
                Event::Deadline => {
                    let due = c.next_deadline();
                    if due != Nanos::NEVER {
                        now = due;
                        c.on_timer(now);
                    }
                }
            }
            let limits = c.limits();
            prop_assert!(limits.window_bytes >= u64::from(mtu), "{limits:?}");
            prop_assert!(limits.burst_bytes >= u64::from(mtu), "{limits:?}");
            c.observe(&mut |name, value| assert!(value.is_finite() && (value >= 0.0 || name == "gradient"), "{name} {value}"));
        }
    }

    #[test]
    fn whatever_happened_a_calm_network_ends_the_limit(
        at in 0..Algorithm::ALL.len(),
        cnps in proptest::collection::vec(0..100_000u64, 0..200),
    ) {
        let params = Params::new(Algorithm::ALL[at], 1 << 20);
        let mut now = Nanos(0);
        let mut c = Controller::new(&params, now, 10_000_000_000, 4096);
        for pause in cnps {
            now = now + Nanos(pause);
            c.on_cnp(now);
            c.on_ack(now, &AckSample { acked_bytes: 65_536, inflight_bytes: 65_536, ..AckSample::default() });
        }
        // Ten seconds of acknowledgements after 10 us, each of 64 KiB, of a window that is used.
        for _ in 0..2_000 {
            now = now + Nanos(5_000_000);
            let (rtt, inflight_bytes) = (Some(Nanos(10_000)), c.limits().window_bytes);
            c.on_ack(now, &AckSample { acked_bytes: 65_536, inflight_bytes, rtt, ..AckSample::default() });
        }
        prop_assert_eq!(c.limits().rate_bps, RATE_UNPACED);
        prop_assert!(c.limits().window_bytes >= 1 << 19);
    }
}

/// Each of the controllers fits the two cache lines that a path has for it.
#[test]
fn controllers_are_small() {
    assert!(size_of::<Controller>() <= CONTROLLER_BYTES_MAX, "{}", size_of::<Controller>());
}
