//! Classes, storms of pauses and rings of switches, from the scenario's file to the messages.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

fn simulate(text: &str) -> Results {
    let scenario = Scenario::parse(text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a world");
    while world.step().expect("no violation") {}
    world.results(false)
}

/// Two streams of different classes share the link to host 2; the rates of both.
fn shared(classes: &str) -> [f64; 2] {
    let text = format!(
        "time = \"40ms\"\nwarm_up = \"1ms\"\n[topology]\nkind = \"star\"\nhosts = 3\nrate = \"10Gbit\"\n[hosts]\ncc = \"none\"\n\
         train = \"4KiB\"\ntimeout = 14\n{classes}\n[[traffic]]\nkind = \"stream\"\nclass = 1\nfrom = 0\nto = 2\nsize = \"64KiB\"\ndepth = 4\n\
         [[traffic]]\nkind = \"stream\"\nclass = 2\nfrom = 1\nto = 2\nsize = \"64KiB\"\ndepth = 4\n"
    );
    let results = simulate(&text);
    [0, 1].map(|part: usize| results.traffic[part].goodput_gbps)
}

#[test]
fn weights_divide_a_bottleneck() {
    let [one, two] = shared("[[class]]\nclass = 1\nweight = 4000\n[[class]]\nclass = 2\nweight = 12000");
    assert!((one + two) > 9.0 && (two / one - 3.0).abs() < 0.15, "{one} and {two} Gbit/s");
    let [one, two] = shared("");
    assert!(two > 9.0 && one < 0.5, "strict priority: {one} and {two} Gbit/s");
    let [one, two] = shared("[[class]]\nclass = 2\nweight = 12000");
    assert!(one > 9.0 && two < 0.5, "strict priority before weights: {one} and {two} Gbit/s");
}

#[test]
fn a_class_has_marks_and_flow_control_of_its_own() {
    let incast = |class: u8| {
        let text = format!(
            "time = \"2ms\"\n[topology]\nkind = \"star\"\nhosts = 9\n[hosts]\ncc = \"dctcp\"\n[switches]\nbuffer = \"200KiB\"\n\
             [[class]]\nclass = 3\npfc = true\necn_min = \"20KiB\"\n[[traffic]]\nkind = \"incast\"\nclass = {class}\n\
             size = \"128KiB\"\nevery = \"200us\"\n"
        );
        simulate(&text).network
    };
    let (plain, lossless) = (incast(0), incast(3));
    assert!(plain.buffer_drops > 0 && plain.marks == 0 && plain.pauses == 0, "{plain:?}");
    assert!(lossless.buffer_drops == 0 && lossless.marks > 0 && lossless.pauses > 0, "{lossless:?}");
}

/// Five switches in a ring, flow control, and traffic that goes two switches further.
fn ring(watchdog: &str) -> Results {
    let text = format!(
        "time = \"2ms\"\ndrain = \"20ms\"\n[topology]\nkind = \"ring\"\nhosts = 10\nswitches = 5\n[hosts]\ncc = \"none\"\ntimeout = 7\n\
         [switches]\nbuffer = \"600KiB\"\nalpha = 0.25\npfc = true\n{watchdog}\n[[traffic]]\nkind = \"permutation\"\nshift = 4\n\
         size = \"1MiB\"\nevery = \"400us\"\n"
    );
    simulate(&text)
}

#[test]
fn a_watchdog_ends_the_deadlock_of_a_ring_of_switches() {
    let stuck = ring("");
    assert!(stuck.traffic[0].messages < 20, "{:?} of 50 messages, {:?}", stuck.traffic[0].messages, stuck.network);
    let freed = ring("pfc_watchdog = \"200us\"");
    assert!(freed.network.pause_storms > 0 && freed.network.watchdog_drops > 0, "{:?}", freed.network);
    assert!(freed.traffic[0].messages == 50, "{} of 50 messages, {:?}", freed.traffic[0].messages, freed.network);
}

#[test]
fn a_storm_of_pauses_spreads_until_the_watchdog_ends_it() {
    let storm = |watchdog: &str| {
        let text = format!(
            "time = \"4ms\"\nwarm_up = \"1ms\"\n[topology]\nkind = \"star\"\nhosts = 4\n[switches]\nbuffer = \"400KiB\"\npfc = true\n\
             {watchdog}\n[[traffic]]\nkind = \"stream\"\nfrom = 0\nto = 1\nsize = \"64KiB\"\n[[traffic]]\nkind = \"stream\"\n\
             from = 0\nto = 2\nsize = \"64KiB\"\n[[fault]]\nkind = \"pause-storm\"\nhost = 2\nat = \"1ms\"\n"
        );
        simulate(&text)
    };
    let (spread, ended) = (storm(""), storm("pfc_watchdog = \"100us\""));
    assert_eq!((spread.network.pause_storms, ended.network.pause_storms), (0, 1));
    let [victim, saved] = [&spread, &ended].map(|results| results.traffic[0].goodput_gbps);
    assert!(victim < 5.0 && saved > 50.0, "to host 1 with a storm at host 2: {victim} and {saved} Gbit/s");
}
