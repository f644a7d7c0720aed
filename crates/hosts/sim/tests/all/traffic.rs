//! Patterns of traffic whose messages depend on each other, and permutations, by whole simulations.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

fn simulate(text: &str) -> Results {
    let scenario = Scenario::parse(text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a world");
    while world.step().expect("no violation") {}
    world.check_end().expect("an end");
    world.results(false)
}

fn ring(verb: &str, payload: &str, size: &str, rest: &str) -> Results {
    simulate(&format!(
        "time = \"4ms\"\npayload = \"{payload}\"\n[topology]\nkind = \"star\"\nhosts = 4\n[hosts]\nmemory = \"16MiB\"\n[[traffic]]\n\
         kind = \"ring\"\nsize = \"{size}\"\n{verb}\n{rest}"
    ))
}

#[test]
fn a_ring_takes_the_time_of_its_steps() {
    // A step is 512 KiB: 128 packets of 4,096 bytes and 82 more, 42.8 us at 100 Gbit/s; two links of 1 us, one packet's time in
    // the switch. The host learns of it when the last packet has come, or, with READ, a request earlier and later.
    let step = 128.0 * 4_178.0 * 80e-6 + 2.0 + 0.34;
    for (verb, more) in [("", 0.0), ("verb = \"send\"", 0.0), ("verb = \"read\"", 2.1)] {
        let results = ring(verb, "void", "2MiB", "");
        let steps = results.traffic[0].messages as f64 / 4.0;
        // The last round ends after 4 ms; its last step began before the simulation's end.
        let mean = results.simulated_us / steps;
        assert!((mean / (step + more) - 1.0).abs() < 0.03, "{verb}: {mean} us, expected {}", step + more);
    }
}

#[test]
fn a_ring_ends_its_rounds_under_loss_and_stalls() {
    let lossy = "[links]\nloss = \"0.3%\"\nreorder = \"1%\"\n";
    let stall = "[[fault]]\nkind = \"stall\"\nhost = 2\nat = \"1ms\"\nfor = \"2ms\"\n";
    for verb in ["verb = \"write-imm\"", "verb = \"send\"", "verb = \"read\""] {
        let results = ring(verb, "real", "256KiB", &format!("{stall}{lossy}"));
        let messages = results.traffic[0].messages;
        // Four pieces go round; each ends its round of six steps, and one may have begun another round before 4 ms.
        assert!(messages > 24 && messages.is_multiple_of(6), "{verb}: whole rounds, {messages} messages");
    }
}

#[test]
fn a_random_permutation_loads_all_hosts_alike() {
    let results = simulate(
        // Slow start towards each new peer would take longer than a message.
        "time = \"2ms\"\n[topology]\nkind = \"star\"\nhosts = 16\n[hosts]\ncc = \"none\"\n[[traffic]]\nkind = \"permutation\"\nrandom = true\n\
         size = \"128KiB\"\nevery = \"20us\"\n",
    );
    let traffic = &results.traffic[0];
    assert_eq!((traffic.messages, traffic.failed), (16 * 100, 0));
    assert!(traffic.jain > 0.999 && traffic.slowdown.p99 < 2.0, "{} {:?}", traffic.jain, traffic.slowdown);
}

/// Nothing acknowledges the responses of the standard family, so a responder that has once been slowed down must become faster by
/// itself: else READs of other queue pairs fail behind them.
#[test]
fn reads_of_standard_peers_end_well_under_swift() {
    let results = simulate(
        "seed = 117686174353662\ntime = \"5ms\"\ndrain = \"600s\"\n[topology]\nkind = \"star\"\nrate = \"1Gbit\"\nhosts = 4\n\
         [hosts]\nmtu = 256\ncc = \"swift\"\nselective_repeat = false\ntrain = \"4KiB\"\ntimeout = 14\n[links]\nreorder = \"10%\"\n\
         [[traffic]]\nkind = \"permutation\"\nshift = 2\nsize = 300001\nevery = \"1ms\"\nverb = \"read\"\nclass = 3\n",
    );
    assert_eq!((results.traffic[0].messages, results.traffic[0].failed), (20, 0));
}
