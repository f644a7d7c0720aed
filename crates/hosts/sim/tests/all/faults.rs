//! Faults of hosts: clocks that are wrong, restarts.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

fn simulate(text: &str) -> Results {
    let scenario = Scenario::parse(text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a world");
    while world.step().unwrap_or_else(|error| panic!("{error}\n{text}")) {}
    world.check_end().unwrap_or_else(|error| panic!("{error}\n{text}"));
    world.results(false)
}

/// A pair with one stream, loss and `faults`.
fn pair(faults: &str) -> Results {
    simulate(&format!(
        "time = \"4ms\"\npayload = \"pattern\"\n[topology]\nkind = \"pair\"\n[links]\nloss = \"0.2%\"\n[[traffic]]\n\
         kind = \"stream\"\nsize = \"32KiB\"\n{faults}"
    ))
}

#[test]
fn a_timeout_is_one_of_the_hosts_own_clock() {
    // A message of one packet, whose packet is lost: it ends when the sender's timer has run out.
    let time = |host: u32, drift: &str| {
        let results = simulate(&format!(
            "time = \"1ms\"\n[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 64\ndepth = 1\ncount = 1\n\
             [[fault]]\nkind = \"packets\"\nat = 0\nhost = 0\nnumbers = [0]\nfate = \"lost\"\n\
             [[fault]]\nkind = \"clock\"\nat = 0\nhost = {host}\ndrift = \"{drift}\"\n"
        ));
        assert_eq!(results.network.losses, 1);
        results.traffic[0].time_us.max
    };
    let right = time(0, "0%");
    assert!(right > 50.0, "{right} us are a time-out");
    for (drift, factor) in [("5%", 1.0 / 1.05), ("-5%", 1.0 / 0.95), ("50%", 1.0 / 1.5)] {
        let wrong = time(0, drift);
        assert!(
            (wrong / right / factor - 1.0).abs() < 0.02,
            "{drift}: {wrong} us, {right} us with a clock that is right"
        );
    }
    assert_eq!(time(1, "50%"), right, "the receiver's clock has no part in it");
}

/// Messages of one packet and of eight, whose last packet is lost: the time until it is sent again.
#[test]
fn waits_of_loss_recovery_are_those_of_the_mode() {
    let time = |rto: &str, size: u32, packet: u32| {
        let results = simulate(&format!(
            "time = \"9ms\"\n[topology]\nkind = \"pair\"\n[hosts]\nmtu = 1024\ntimeout = 14\nrto = \"{rto}\"\n\
             [[traffic]]\nkind = \"stream\"\nsize = {size}\ndepth = 1\ncount = 40\n\
             [[fault]]\nkind = \"packets\"\nat = 0\nhost = 0\nnumbers = [{packet}]\nfate = \"lost\"\n"
        ));
        assert_eq!((results.network.losses, results.traffic[0].failed), (1, 0));
        results.traffic[0].time_us.max
    };
    for (rto, one, many) in [("shared", 200.0, 200.0), ("dedicated", 20.0, 20.0), ("irn", 100.0, 320.0)] {
        // Of messages of eight packets all eight are unacknowledged when the last one is lost.
        for (size, packet, wait) in [(64, 30, one), (8 * 1024, 8 * 20 + 7, many)] {
            let took = time(rto, size, packet);
            assert!((0.87 * wait..1.13 * wait + 12.0).contains(&took), "{rto}, {size} bytes: {took} us");
        }
    }
}

#[test]
fn a_clock_that_jumps_loses_no_message() {
    let right = pair("");
    for host in 0..2 {
        let jump = format!("[[fault]]\nkind = \"clock\"\nat = \"1ms\"\nhost = {host}\noffset = \"10s\"\n");
        let jumped = pair(&jump);
        assert_eq!(jumped.traffic[0].failed, 0);
        let (jumped, right) = (jumped.traffic[0].goodput_gbps, right.traffic[0].goodput_gbps);
        assert!(jumped > 0.7 * right, "host {host}: {jumped} Gbit/s, {right} without the jump");
    }
}

#[test]
fn a_clock_that_drifts_loses_no_message() {
    for (host, drift) in [(0, "5%"), (0, "-5%"), (1, "5%"), (1, "-5%"), (0, "-50%"), (1, "50%")] {
        let fault = format!(
            "[[fault]]\nkind = \"clock\"\nat = \"500us\"\nfor = \"2ms\"\nhost = {host}\ndrift = \"{drift}\"\noffset = \"3us\"\n"
        );
        assert_eq!(pair(&fault).traffic[0].failed, 0, "host {host}, {drift}");
    }
}

#[test]
fn a_link_that_flaps_loses_packets_each_time_and_no_message() {
    let flaps =
        pair("[[fault]]\nkind = \"link-down\"\nlink = \"host1\"\nat = \"100us\"\nfor = \"30us\"\nevery = \"500us\"\n");
    assert_eq!(flaps.traffic[0].failed, 0);
    // At 0.1, 0.6, … 3.6 ms: each time what is sent in 30 us of 80 ps a byte, less what waits for a time-out.
    assert!(flaps.network.losses > 8 * 10, "{:?}", flaps.network);
    let storms = |every: &str| {
        let storm = "[[fault]]\nkind = \"pause-storm\"\nhost = 1\nat = \"100us\"\nfor = \"10us\"\n";
        pair(&format!("{storm}{every}")).network.pauses
    };
    assert_eq!((storms(""), storms("every = \"400us\"\n")), (1, 10));
}

#[test]
fn what_is_wrong_with_repetition_is_said() {
    for (keys, expected) in [
        ("every = \"1us\"", "every: expected more than for, which is more than 0"),
        ("for = \"2us\"\nevery = \"2us\"", "line 11: every: expected more than for"),
        ("for = \"1ns\"\nevery = \"2ns\"", "line 11: every: 500000 times until the end; expected 10000 at most"),
    ] {
        let text = format!(
            "time = \"1ms\"\n[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 1\n[[fault]]\n\
             kind = \"stall\"\nhost = 0\n{keys}\nat = 0\n"
        );
        let sentence = Scenario::parse(&text).expect_err("a wrong scenario").to_string();
        assert!(sentence.contains(expected), "{sentence:?} does not have {expected:?}");
    }
}

#[test]
fn what_is_wrong_with_a_clock_is_said() {
    let refused = |keys: &str| {
        let text = format!(
            "time = \"1ms\"\n[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 1\n[[fault]]\nkind = \"clock\"\n\
             at = 0\nhost = 0\n{keys}"
        );
        Scenario::parse(&text).expect_err("a wrong scenario").to_string()
    };
    for (keys, expected) in [
        ("", "line 7: offset is missing, and drift"),
        ("drift = \"51%\"", "line 11: drift: \"51%\" is not a drift such as \"50ppm\" or \"-5%\""),
        ("drift = \"fast\"", "line 11: drift: \"fast\" is not a drift"),
        ("offset = \"-1us\"", "line 11: offset: \"-1us\" is not a duration"),
        ("share = \"1%\"", "share has no meaning for kind \"clock\""),
    ] {
        let sentence = refused(keys);
        assert!(sentence.contains(expected), "{sentence:?} does not have {expected:?}");
    }
}

/// Four hosts around a switch, of which host 2 restarts at 1 ms.
fn restart(payload: &str, lasts: &str, traffic: &str) -> Results {
    simulate(&format!(
        "time = \"8ms\"\ndrain = \"10s\"\npayload = \"{payload}\"\n[topology]\nkind = \"star\"\nhosts = 4\n[hosts]\n\
         timeout = 5\n[[fault]]\nkind = \"restart\"\nat = \"1ms\"\nhost = 2\n{lasts}\n{traffic}"
    ))
}

#[test]
fn a_host_that_restarts_loses_its_messages_and_sends_new_ones() {
    let cases = [("real", "write"), ("real", "send"), ("pattern", "read"), ("pattern", "write-imm")];
    for (payload, verb) in cases {
        // Every 200 us, each to each; a round is on its way at 1 ms. Of its 12 messages, 6 have host 2 at an end.
        let results = restart(
            payload,
            "",
            &format!(
                "[[traffic]]\nkind = \"all-to-all\"\nsize = \"30KiB\"\nevery = \"200us\"\nbegin = \"195us\"\nverb = \"{verb}\"\n"
            ),
        );
        let traffic = &results.traffic[0];
        assert_eq!(traffic.messages + traffic.failed, 12 * 40, "{payload} {verb}");
        assert_eq!(traffic.restarted, traffic.failed, "{payload} {verb}");
        assert!((1..=6).contains(&traffic.failed), "{payload} {verb}: {} have failed", traffic.failed);
    }
}

#[test]
fn messages_of_a_host_that_is_down_fail_at_once() {
    let traffic = "[[traffic]]\nkind = \"permutation\"\nshift = 1\nsize = 1000\nevery = \"100us\"\nbegin = \"50us\"\n";
    let results = restart("pattern", "for = \"2ms\"", traffic);
    // In 2 ms are 20 rounds, and in each host 2 sends one message and is sent one.
    assert_eq!((results.traffic[0].failed, results.traffic[0].messages), (40, 4 * 80 - 40));
}

#[test]
fn streams_go_on_when_the_host_is_up() {
    // To host 2, from host 2, and one that has nothing to do with it. Those that send to host 2 take 27 ms to give up.
    let stream = |from: u32, to: u32, verb: &str| {
        format!(
            "[[traffic]]\nkind = \"stream\"\nfrom = {from}\nto = {to}\nsize = \"4KiB\"\ndepth = 2\nverb = \"{verb}\"\n"
        )
    };
    for verb in ["write", "send", "read"] {
        let results = simulate(&format!(
            "time = \"60ms\"\npayload = \"pattern\"\n[topology]\nkind = \"star\"\nhosts = 4\nrate = \"1Gbit\"\n[hosts]\ntimeout = 5\n\
             [[fault]]\nkind = \"restart\"\nat = \"10ms\"\nhost = 2\nfor = \"5ms\"\n{}{}{}",
            stream(0, 2, verb),
            stream(2, 3, verb),
            stream(1, 0, verb)
        ));
        let [to, from, other] = [0, 1, 2].map(|part: usize| &results.traffic[part]);
        assert_eq!(other.failed, 0, "{verb}");
        // The host whose requests get no answer waits longest.
        let least = if verb == "read" { [0.9, 0.45] } else { [0.45, 0.9] };
        for (part, name, least) in [(to, "to", least[0]), (from, "from", least[1])] {
            // The requests on their way; one more for each when the host is down.
            assert!((2..=4).contains(&part.failed), "{verb} {name} host 2: {} have failed", part.failed);
            let share = part.goodput_gbps / other.goodput_gbps;
            assert!((least..1.0).contains(&share), "{verb} {name} host 2: {share} of the undisturbed stream's rate");
        }
    }
}

#[test]
fn a_read_under_repair_ends_when_its_peer_restarts() {
    // Some READs wait for responses that were lost when the responder restarts: their repairs are never answered.
    for seed in 1..=6 {
        let results = simulate(&format!(
            "seed = {seed}\ntime = \"20ms\"\ndrain = \"60s\"\npayload = \"pattern\"\n[topology]\nkind = \"star\"\nhosts = 3\n\
             rate = \"1Gbit\"\n[hosts]\nmtu = 1024\ntimeout = 10\n[links]\nloss = \"3%\"\n[[traffic]]\nkind = \"stream\"\n\
             from = 2\nto = 0\nsize = 20000\nverb = \"read\"\n[[fault]]\nkind = \"restart\"\nat = \"2ms\"\nhost = 2\n"
        ));
        // 16 were on their way, and the responses to some of them had left host 2.
        let failed = results.traffic[0].failed;
        assert!((8..=16).contains(&failed), "seed {seed}: {failed} have failed");
    }
}
