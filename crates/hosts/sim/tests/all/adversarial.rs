//! Adversarial schedules: single packets of a flight are lost, doubled, late, corrupted, marked, exhaustively. Every message must
//! end well, exactly once, with the bytes that were sent.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

/// Packets of a message, which is a flight.
const FLIGHT: u64 = 12;

/// Two messages of a flight each, one after the other, and `faults`.
fn simulate(verb: &str, hosts: &str, faults: &str) -> Results {
    let text = format!(
        "time = \"1s\"\npayload = \"real\"\n[topology]\nkind = \"pair\"\n[hosts]\nmtu = 1024\n{hosts}\n[[traffic]]\n\
         kind = \"stream\"\nverb = \"{verb}\"\nsize = {}\ndepth = 1\ncount = 2\n{faults}",
        FLIGHT * 1_024
    );
    let scenario = Scenario::parse(&text).expect("a scenario");
    let mut world = World::new(&scenario).expect("a world");
    let run = |world: &mut World| {
        while world.step()? {}
        world.check_end()
    };
    run(&mut world).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let results = world.results(false);
    assert_eq!((results.traffic[0].messages, results.traffic[0].failed), (2, 0), "{text}");
    results
}

/// A fault that happens to packets of a host.
fn fate(host: u32, numbers: &[u64], fate: &str) -> String {
    format!("[[fault]]\nkind = \"packets\"\nat = 0\nhost = {host}\nnumbers = {numbers:?}\nfate = {fate}\n")
}

const REPAIRS: [&str; 2] = ["selective_repeat = true", "selective_repeat = false"];

#[test]
fn each_packet_of_a_flight_and_each_pair_may_be_lost() {
    for (verb, repair) in [("write", REPAIRS[0]), ("write", REPAIRS[1]), ("read", REPAIRS[0]), ("read", REPAIRS[1])] {
        for first in 0..FLIGHT {
            for second in first..FLIGHT {
                let results = simulate(verb, repair, &fate(0, &[first, second], "\"lost\""));
                let lost = 1 + u64::from(first != second);
                assert_eq!(results.network.losses, lost, "{verb}, {repair}: packets {first} and {second}");
            }
        }
    }
}

#[test]
fn the_retransmission_may_be_lost_too() {
    for repair in REPAIRS {
        for first in 0..FLIGHT {
            // What follows the flight are retransmissions: the first, the first two, the first five of them.
            for again in [1, 2, 5] {
                let numbers: Vec<u64> = [first].into_iter().chain(FLIGHT..FLIGHT + again).collect();
                simulate("write", repair, &fate(0, &numbers, "\"lost\""));
            }
        }
    }
}

#[test]
fn each_answer_and_the_first_answers_may_be_lost() {
    for verb in ["write", "send", "read"] {
        for repair in REPAIRS {
            for at in 0..4 {
                let single = simulate(verb, repair, &fate(1, &[at], "\"lost\""));
                assert!(at > 0 || single.network.losses == 1, "{verb}: the first packet of host 1 is there");
                simulate(verb, repair, &fate(1, &(0..=at).collect::<Vec<_>>(), "\"lost\""));
            }
            // Beside a loss: what tells of it is lost.
            simulate(verb, repair, &(fate(0, &[3], "\"lost\"") + &fate(1, &[0, 1], "\"lost\"")));
        }
    }
}

#[test]
fn each_packet_may_come_again_even_after_the_end() {
    for repair in REPAIRS {
        for by in ["1us", "20us", "5ms"] {
            for at in 0..FLIGHT {
                simulate("write", repair, &fate(0, &[at], &format!("\"twice\"\nby = \"{by}\"")));
            }
            simulate("send", repair, &fate(0, &(0..FLIGHT).collect::<Vec<_>>(), &format!("\"twice\"\nby = \"{by}\"")));
            simulate("read", repair, &fate(1, &[0, 1, 2], &format!("\"twice\"\nby = \"{by}\"")));
        }
    }
}

#[test]
fn a_flight_may_arrive_in_reverse_order() {
    for repair in REPAIRS {
        for verb in ["write", "send", "read"] {
            // Packet 0 is the latest; a microsecond is twelve packets' time.
            let faults: String =
                (0..FLIGHT).map(|at| fate(0, &[at], &format!("\"late\"\nby = \"{}us\"", FLIGHT - at))).collect();
            simulate(verb, repair, &faults);
        }
    }
}

#[test]
fn a_packet_with_a_wrong_checksum_is_a_lost_one() {
    for repair in REPAIRS {
        for at in 0..FLIGHT {
            let results = simulate("write", repair, &fate(0, &[at], "\"corrupted\""));
            assert_eq!((results.network.corrupted, results.network.losses), (1, 0));
        }
    }
}

#[test]
fn marks_on_all_packets_on_none_and_on_every_other_one() {
    for cc in ["dctcp", "dcqcn", "aimd"] {
        let marks = |numbers: Vec<u64>| {
            let faults = if numbers.is_empty() { String::new() } else { fate(0, &numbers, "\"marked\"") };
            let hosts = format!("cc = \"{cc}\"");
            simulate("write", &hosts, &faults).network.marks
        };
        let [none, all, half] =
            [Vec::new(), (0..2 * FLIGHT).collect(), (0..FLIGHT).map(|k| 2 * k).collect()].map(marks);
        let expected = if cc == "aimd" { [0, 0, 0] } else { [0, 2 * FLIGHT, FLIGHT] };
        assert_eq!([none, all, half], expected, "{cc}");
    }
}

#[test]
fn a_receive_buffer_of_four_packets_is_enough() {
    // The processor takes longer for a packet than the link: what finds no room is lost.
    for repair in REPAIRS {
        for verb in ["write", "send", "read"] {
            let hosts = format!("cpu = \"udp\"\ntrain = \"1KiB\"\nreceive_queue = 4600\n{repair}");
            let results = simulate(verb, &hosts, "");
            assert!(results.network.receive_overflows > 0, "{verb}: {:?}", results.network);
        }
    }
}

#[test]
fn what_is_wrong_with_a_fate_is_said() {
    let refused = |fault: &str| {
        let text = format!(
            "time = \"1ms\"\n[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 1\n[[fault]]\nkind = \"packets\"\n\
             at = 0\n{fault}"
        );
        Scenario::parse(&text).expect_err("a wrong scenario").to_string()
    };
    for (fault, expected) in [
        ("host = 0\nnumbers = []\nfate = \"lost\"", "line 11: numbers: 0 packets; expected 1 to 4096"),
        ("host = 0\nnumbers = [1]", "fate is missing"),
        ("host = 0\nnumbers = [1]\nfate = \"late\"", "by is missing"),
        ("host = 0\nnumbers = [1]\nfate = \"lost\"\nby = \"1us\"", "line 13: by: has a meaning for the fates"),
        ("host = 0\nnumbers = [-1]\nfate = \"lost\"", "line 11: "),
        ("host = 2\nnumbers = [1]\nfate = \"lost\"", "line 10: host: there is no host 2"),
        ("host = 0\nnumbers = [1]\nfate = \"lost\"\nfor = \"1us\"", "for has no meaning for kind \"packets\""),
    ] {
        let sentence = refused(fault);
        assert!(sentence.contains(expected), "{sentence:?} does not have {expected:?}");
    }
}
