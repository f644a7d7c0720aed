//! Scenarios that are read, and sentences for those that are not.
use super::*;

const GOOD: &str = r#"
name = "two hosts"
time = "1ms"

[topology]
kind = "pair"
rate = "100Gbit"
delay = "1us"

[hosts]
mtu = 1024
cc = "dcqcn"

[[traffic]]
kind = "stream"
size = "64KiB"
"#;

fn refused(what: &str, by: &str) -> String {
    assert!(GOOD.contains(what), "{what}");
    Scenario::parse(&GOOD.replacen(what, by, 1)).expect_err("a wrong scenario").to_string()
}

#[test]
fn a_scenario_is_read() {
    let scenario = Scenario::parse(GOOD).expect("a right scenario");
    assert_eq!(
        (scenario.name.as_str(), scenario.seed, scenario.hosts, scenario.time),
        ("two hosts", 1, 2, 1_000_000_000)
    );
    assert_eq!((scenario.node.mtu, scenario.node.cpu.name, scenario.node.selective), (Mtu::B1024, "ideal", true));
    let [TrafficPart { pattern: Pattern::Stream { from: 0, to: 1, bytes: 65_536, depth: 16, .. }, .. }] =
        scenario.traffic[..]
    else {
        panic!("{:?}", scenario.traffic)
    };
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let cases = [
        ("mtu = 1024", "mtu = 1500", "line 11: mtu: 1500; expected 256, 512, 1024, 2048 or 4096"),
        ("mtu = 1024", "mtuu = 1024", "line 11: unknown field `mtuu`"),
        ("\"100Gbit\"", "\"-1Gbit\"", "line 7: rate: \"-1Gbit\" is not a bit rate above 0"),
        ("\"100Gbit\"", "100", "line 7: rate: 100 is not a bit rate above 0"),
        ("\"1us\"", "\"soon\"", "line 8: delay: \"soon\" is not a duration"),
        ("\"pair\"", "\"rings\"", "line 6: kind: unknown variant `rings`"),
        ("\"pair\"", "\"star\"", "line 5: hosts is missing"),
        ("delay = \"1us\"", "leaves = 2", "line 5: leaves has no meaning for kind \"pair\""),
        ("\"dcqcn\"", "\"dcqc\"", "line 12: cc: unknown congestion controller 'dcqc'; did you mean 'dcqcn'?"),
        ("size = \"64KiB\"", "size = 0", "line 16: size: a message of 0 bytes; expected 1 byte to 1 GiB"),
        ("size = \"64KiB\"", "", "line 14: size is missing"),
        ("size = \"64KiB\"", "size = 1\nto = 2", "line 17: to: there is no host 2; the hosts are 0 to 1"),
        ("size = \"64KiB\"", "size = 1\nfrom = 1", "to: host 1 would send to itself"),
        ("size = \"64KiB\"", "size = 1\nload = 0.5", "line 14: load has no meaning for kind \"stream\""),
        ("size = \"64KiB\"", "size = 1\ndepth = 5000", "line 17: depth: 5000; expected 1 to 1024"),
        ("[hosts]", "[switches]\nalpha = -1.0\n[hosts]", "line 11: alpha: -1; expected 0.001 to 1000"),
        ("[hosts]", "[switches]\necn_max = 1\n[hosts]", "line 11: ecn_max: without ecn_min"),
        ("[hosts]", "[switches]\necn_min = 9\necn_max = 1\n[hosts]", "line 12: ecn_max: less than ecn_min"),
        ("[hosts]", "[[class]]\nclass = 8\n[hosts]", "line 11: class: 8; expected 0 to 7"),
        ("[hosts]", "[[class]]\nclass = 1\nweight = 9\n[hosts]", "line 12: weight: 9 bytes; expected 64 to 16777216"),
        ("[hosts]", "[[class]]\nclass = 1\nweight = \"heavy\"\n[hosts]", "line 12: weight: \"heavy\" is not a size"),
        (
            "[hosts]",
            "[[class]]\nclass = 1\n[[class]]\nclass = 1\n[hosts]",
            "line 13: class: there are two tables of class 1",
        ),
        ("[hosts]", "[[class]]\nclass = 1\necn_max = 9\n[hosts]", "line 12: ecn_max: without ecn_min"),
        ("[hosts]", "[[class]]\nweight = 99\n[hosts]", "line 10: missing field `class`"),
        ("size = \"64KiB\"", "size = 1\nclass = 9", "line 17: class: 9; expected 0 to 7"),
        (
            "\"pair\"",
            "\"ring\"\nhosts = 4\nswitches = 2",
            "line 5: hosts: 4 hosts do not fit kind \"ring\"; expected at least 3",
        ),
        (
            "kind = \"stream\"\nsize",
            "kind = \"ring\"\nverb = \"write\"\nsize",
            "line 14: verb: \"write\" for kind \"ring\"; expected write-imm, send or read",
        ),
        (
            "kind = \"stream\"\nsize",
            "kind = \"permutation\"\nrandom = true\nshift = 1\nsize",
            "line 17: shift: beside random; expected one of them",
        ),
        ("time = \"1ms\"", "time = \"0s\"", "line 3: time: expected more than 0"),
        ("size = \"64KiB\"", "size = 1\nto = 0", "line 17: to: host 0 would send to itself"),
        (
            "size = \"64KiB\"",
            "size = 1\n[[fault]]\nkind = \"link-down\"\nat = 0\nlink = \"host7\"",
            "line 20: link: there is no link \"host7\"; a host's is \"host0\"",
        ),
    ];
    for (what, by, expected) in cases {
        let sentence = refused(what, by);
        assert!(sentence.contains(expected), "{sentence:?} does not have {expected:?}");
    }
}

#[test]
fn a_table_of_sizes_rises_to_its_end() {
    let with = |sizes: &str| {
        let traffic = format!("kind = \"poisson\"\nload = 0.5\nsizes = {sizes}");
        Scenario::parse(&GOOD.replace("kind = \"stream\"\nsize = \"64KiB\"", &traffic))
    };
    assert!(with("[[100, 0.5], [1000, 1.0]]").is_ok());
    assert!(with("\"web-search\"").is_ok());
    for wrong in ["[[100, 0.5], [50, 1.0]]", "[[100, 0.5], [1000, 0.4]]", "[[100, 0.5]]", "[]"] {
        let sentence = with(wrong).expect_err("not monotone").to_string();
        assert!(sentence.starts_with("line 17: sizes: the table is not monotone"), "{wrong}: {sentence}");
    }
    assert!(with("\"webserch\"").expect_err("unknown").to_string().contains("there is no table \"webserch\""));
}

#[test]
fn trains_are_short_beside_the_buffers_of_switches() {
    let of = |buffer: &str| {
        let text = GOOD.replacen("[hosts]", &format!("[switches]\nbuffer = \"{buffer}\"\n[hosts]"), 1);
        Scenario::parse(&text).expect("a right scenario").node.train_bytes
    };
    assert_eq!((of("32MiB"), of("64KiB"), of("1KiB")), (64 << 10, 4 << 10, 64));
}

#[test]
fn what_is_wrong_with_names_of_the_network_and_with_payload_is_named_with_its_line() {
    let star = |hosts: u32, before: &str, after: &str| {
        let text = format!(
            "time = \"1ms\"\n{before}\n[topology]\nkind = \"star\"\nhosts = {hosts}\n[[traffic]]\nkind = \"stream\"\nsize = 1\n{after}\n"
        );
        Scenario::parse(&text).map(|scenario| scenario.hosts).map_err(|error| error.to_string())
    };
    let drops = |switch: &str| format!("[[fault]]\nkind = \"drops\"\nat = 0\nshare = 0.1\nswitch = \"{switch}\"");
    assert_eq!(star(3, "", &drops("switch")), Ok(3));
    let sentence = star(3, "", &drops("leaf0")).expect_err("no such switch");
    assert_eq!(sentence, "line 13: switch: there is no switch \"leaf0\"; there are: switch");
    let real = "payload = \"real\"";
    assert_eq!(star(64, real, ""), Ok(64));
    let sentence = star(65, real, "").expect_err("too many");
    assert!(sentence.starts_with("line 2: payload: \"real\" is for 64 hosts at most, not 65"), "{sentence}");
}
