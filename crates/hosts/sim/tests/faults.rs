//! Faults of hosts: clocks that are wrong.

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
