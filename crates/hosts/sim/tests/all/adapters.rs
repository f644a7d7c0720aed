//! Hosts that stand for adapters: they speak the standard family, have a congestion control of their own, and may leave marks
//! unanswered.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

fn simulate(text: &str) -> Results {
    let scenario = Scenario::parse(text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a world");
    world.check_engines();
    while world.step().unwrap_or_else(|error| panic!("{error}\n{text}")) {}
    world.check_end().unwrap_or_else(|error| panic!("{error}\n{text}"));
    world.results(false)
}

fn count(results: &Results, name: &str) -> u64 {
    results.engine.get(name).copied().unwrap_or(0)
}

#[test]
fn between_an_adapter_and_another_host_the_standard_family_is_spoken() {
    // Long enough for all three questions of a hello: after 0, 0.25 and 1.25 s.
    let text = |adapter: &str| {
        format!(
            "time = \"2s\"\npayload = \"pattern\"\n[topology]\nkind = \"pair\"\nrate = \"1Gbit\"\n[links]\nloss = \"1%\"\n{adapter}\n\
             [[traffic]]\nkind = \"stream\"\nsize = \"20KiB\"\ncount = 2000\n[[traffic]]\nkind = \"stream\"\nfrom = 1\nto = 0\n\
             size = \"20KiB\"\ndepth = 1\ncount = 2000\nverb = \"read\"\n"
        )
    };
    let families = |adapter: &str| {
        let results = simulate(&text(adapter));
        let standard = ["sequence_gap", "sequence_nak_received"].map(|name| count(&results, name) > 0);
        let selective = ["sr_early", "sr_recovery"].map(|name| count(&results, name) > 0);
        (standard, selective)
    };
    assert_eq!(families(""), ([false; 2], [true; 2]));
    for host in ["0", "1", "0, 1"] {
        assert_eq!(families(&format!("[[adapter]]\nhosts = [{host}]")), ([true; 2], [false; 2]), "host {host}");
    }
}

/// Four hosts that send to host 0 over a link that marks.
fn star(hosts: &str, adapter: &str) -> Results {
    let streams: String = (1..=4)
        .map(|from| format!("[[traffic]]\nkind = \"stream\"\nfrom = {from}\nto = 0\nsize = \"64KiB\"\n"))
        .collect();
    simulate(&format!(
        "time = \"4ms\"\n[topology]\nkind = \"star\"\nhosts = 5\n[hosts]\n{hosts}\n[[adapter]]\n{adapter}\n[switches]\n\
         ecn_min = \"100KiB\"\necn_max = \"400KiB\"\necn_share = \"20%\"\n{streams}"
    ))
}

#[test]
fn an_adapter_answers_marks_unless_it_is_told_not_to() {
    for (cnps, answered) in [("", true), ("cnps = true", true), ("cnps = false", false)] {
        let results = star("cc = \"dcqcn\"", &format!("hosts = [0]\n{cnps}"));
        assert!(results.network.marks > 0, "{cnps}");
        let counts = ["marked_packets", "cnps_sent", "cnp_received"].map(|name| count(&results, name) > 0);
        assert_eq!(counts, [answered; 3], "{cnps}");
    }
}

#[test]
fn an_adapter_has_its_own_congestion_control() {
    // Only controllers that react to marks send packets that may be marked.
    for (own, others, marked) in [
        ("cc = \"swift\"", "dcqcn", false),
        ("cc = \"dcqcn\"", "aimd", true),
        ("", "aimd", true),
        ("cc = \"none\"\nwindow = \"64KiB\"", "dcqcn", false),
    ] {
        let results = star(&format!("cc = \"{others}\""), &format!("hosts = [1, 2, 3, 4]\n{own}"));
        assert_eq!(results.network.marks > 0, marked, "{own}, others {others}");
        assert!(results.traffic.iter().all(|part| part.messages > 0), "{own}");
    }
    // Four windows are all that is in flight, and never more in the queue.
    let queue =
        star("cc = \"none\"", "hosts = [1, 2, 3, 4]\ncc = \"none\"\nwindow = \"64KiB\"").network.queue_bytes_max;
    assert!((150_000..4 * (64 << 10) * 103 / 100).contains(&queue), "{queue} bytes");
}

#[test]
fn what_is_wrong_with_an_adapter_is_said() {
    let refused = |keys: &str| {
        let text = format!(
            "time = \"1ms\"\n[topology]\nkind = \"star\"\nhosts = 4\n[[traffic]]\nkind = \"stream\"\nsize = 1\n[[adapter]]\n{keys}\n"
        );
        Scenario::parse(&text).expect_err("a wrong scenario").to_string()
    };
    for (keys, expected) in [
        ("cc = \"dcqcn\"", "line 8: missing field `hosts`"),
        ("hosts = []", "line 9: hosts: none; expected the numbers of one host or more"),
        ("hosts = [0, 4]", "line 9: hosts: there is no host 4; the hosts are 0 to 3"),
        ("hosts = 3", "line 9: hosts: invalid type: integer `3`"),
        ("hosts = [1, 2]\n[[adapter]]\nhosts = [0, 2]", "line 11: hosts: host 2 is in two tables"),
        ("hosts = [1]\ncc = \"dcqc\"", "line 10: cc: unknown congestion controller 'dcqc'; did you mean 'dcqcn'?"),
        ("hosts = [1]\ncnps = \"no\"", "line 10: cnps: invalid type: string"),
        ("hosts = [1]\nmtu = 1024", "line 10: unknown field `mtu`"),
    ] {
        let sentence = refused(keys);
        assert!(sentence.contains(expected), "{sentence:?} does not have {expected:?}");
    }
}
