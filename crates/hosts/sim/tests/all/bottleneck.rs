//! Senders at one bottleneck with the whole engine: what is dropped, how long the queue is, how much of the link is used, and
//! what a ping-pong of 64 bytes takes beside them.

use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;

/// Bytes of a packet on the wire beside its payload.
const HEADERS: u32 = 94;
const MTU: u32 = 1024;

struct Bottleneck {
    cc: &'static str,
    senders: u32,
    mbit: u32,
    buffer_kib: u32,
    /// 0: no marks.
    marks_kib: u32,
    mtu: u32,
    ms: u32,
    verb: &'static str,
    /// Rate of the hosts' own links, before a bottleneck between two switches; 0: the bottleneck is the receiver's link.
    own_mbit: u32,
}

/// 300 Mbit/s.
const SLOW: Bottleneck = Bottleneck {
    cc: "cubic",
    senders: 4,
    mbit: 300,
    buffer_kib: 200,
    marks_kib: 0,
    mtu: MTU,
    ms: 450,
    verb: "write",
    own_mbit: 0,
};

impl Bottleneck {
    /// `senders` streams of 64 KiB, and a ping-pong of 64 bytes from a host of its own.
    fn run(&self) -> Results {
        let Bottleneck { cc, senders, mbit, buffer_kib, marks_kib, mtu, ms, verb, own_mbit } = *self;
        let marks = match marks_kib {
            0 => String::new(),
            kib => format!("ecn_min = \"{kib}KiB\"\necn_max = \"{kib}KiB\""),
        };
        // The last host receives; READs are its own.
        let hosts = if own_mbit > 0 { 2 * (senders + 1) } else { senders + 2 };
        let stream = |host: u32, size: &str, depth: u32| {
            let (from, to) = if verb == "read" { (hosts - 1, host - 1) } else { (host - 1, hosts - 1) };
            format!(
                "[[traffic]]\nkind = \"stream\"\nfrom = {from}\nto = {to}\nsize = \"{size}\"\ndepth = {depth}\n\
                 verb = \"{verb}\"\n"
            )
        };
        let topology = match own_mbit {
            0 => format!("kind = \"star\"\nrate = \"{mbit}Mbit\""),
            own => format!("kind = \"dumbbell\"\nrate = \"{own}Mbit\"\nfabric_rate = \"{mbit}Mbit\""),
        };
        let streams: String = (1..=senders).map(|from| stream(from, "64KiB", 16)).collect();
        let text = format!(
            "time = \"{ms}ms\"\nwarm_up = \"{}ms\"\ndrain = \"2s\"\n[topology]\n{topology}\nhosts = {hosts}\n\
             delay = \"10us\"\n[hosts]\nmtu = {mtu}\ncc = \"{cc}\"\ntimeout = 14\ntrain = \"2KiB\"\n[switches]\n\
             buffer = \"{buffer_kib}KiB\"\n{marks}\n{streams}{}",
            ms / 3,
            stream(senders + 1, "64", 1)
        );
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut world = World::new(&scenario).expect("a world");
        while world.step().unwrap_or_else(|error| panic!("{error}\n{text}")) {}
        world.check_end().unwrap_or_else(|error| panic!("{error}\n{text}"));
        world.results(false)
    }

    /// Share of packets dropped, share of the link used by the streams, Jain's index, mean queue in KiB, p99 of the ping-pong
    /// in ms.
    fn measure(&self) -> Measured {
        let results = self.run();
        let network = results.network;
        let rates: Vec<f64> =
            results.traffic[..self.senders as usize].iter().map(|part| part.goodput_gbps * 1e3).collect();
        let (n, sum) = (rates.len() as f64, rates.iter().sum::<f64>());
        let measured = Measured {
            dropped: network.buffer_drops as f64 / (network.buffer_drops + results.packets) as f64,
            used: sum / f64::from(self.mbit) * f64::from(self.mtu + HEADERS) / f64::from(self.mtu),
            jain: sum * sum / (n * rates.iter().map(|rate| rate * rate).sum::<f64>()),
            queue_kib: network.queue_bytes_mean as f64 / 1024.0,
            mouse_ms: results.traffic[self.senders as usize].time_us.p99 / 1e3,
        };
        println!("{} x {} at {} Mbit/s, {} KiB: {measured:?}", self.senders, self.cc, self.mbit, self.buffer_kib);
        measured
    }
}

#[derive(Debug)]
struct Measured {
    dropped: f64,
    used: f64,
    jain: f64,
    queue_kib: f64,
    mouse_ms: f64,
}

#[test]
fn with_marks_nothing_is_dropped_and_the_queue_is_short() {
    for cc in ["dcqcn", "dctcp"] {
        for senders in [1, 4, 16] {
            // Sixteen windows of ten packets are 175 KiB.
            let got = Bottleneck { cc, senders, marks_kib: 30, buffer_kib: 256, ..SLOW }.measure();
            assert_eq!(got.dropped, 0.0, "{senders} x {cc}");
            assert!(got.used > 0.9 && got.queue_kib < 3.0 * 30.0 && got.jain > 0.95, "{senders} x {cc}: {got:?}");
            assert!(got.mouse_ms < 3.0, "{senders} x {cc}: {got:?}");
        }
    }
}

#[test]
fn so_it_is_at_10_gbit_per_second() {
    for senders in [4, 16] {
        let got = Bottleneck { cc: "dcqcn", senders, mbit: 10_000, buffer_kib: 1024, marks_kib: 100, ms: 45, ..SLOW };
        let got = got.measure();
        assert_eq!(got.dropped, 0.0, "{senders} senders");
        assert!(got.used > 0.9 && got.queue_kib < 3.0 * 100.0 && got.jain > 0.95, "{senders} senders: {got:?}");
    }
}

#[test]
fn swift_measures_the_path_and_uses_it() {
    for senders in [1, 4, 16] {
        let got = Bottleneck { cc: "swift", senders, ms: 900, ..SLOW }.measure();
        assert!(got.used > 0.85 && got.queue_kib < 98.0 && got.jain > 0.9, "{senders} senders: {got:?}");
        assert!(got.mouse_ms < 3.0, "{senders} senders: {got:?}");
    }
}

/// Sixteen windows of two packets are two thirds of the buffer at an MTU of 1024, and 2.6 times the buffer at 4096.
#[test]
fn few_packets_are_dropped_where_the_buffer_holds_fewer_packets_than_there_are_senders() {
    for mtu in [1_024, 2_048, 4_096] {
        let got = Bottleneck { senders: 16, buffer_kib: 50, mtu, ms: 900, ..SLOW }.measure();
        assert!(got.dropped < 0.03 && got.used > 0.9, "MTU {mtu}: {got:?}");
    }
}

/// The responses of READs are governed by the paths of the responders, of which each sees its own only.
#[test]
fn reads_alone_lose_no_more_than_writes() {
    for (cc, senders, marks_kib, buffer_kib) in
        [("cubic", 4, 0, 50), ("cubic", 16, 0, 200), ("dctcp", 4, 30, 256), ("dcqcn", 4, 30, 256), ("swift", 4, 0, 200)]
    {
        let got = Bottleneck { cc, senders, marks_kib, buffer_kib, verb: "read", ms: 900, own_mbit: 10_000, ..SLOW };
        let got = got.measure();
        let most = if marks_kib > 0 { 0.0 } else { 0.03 };
        assert!(got.dropped <= most && got.used > 0.85, "{senders} x {cc}: {got:?}");
    }
}

/// No person has chosen an algorithm: marks choose `dctcp`, and a queue that marks nothing leaves the default.
#[test]
fn the_automatic_choice_follows_marks() {
    let marked = Bottleneck { cc: "auto", marks_kib: 30, ms: 900, ..SLOW }.measure();
    assert!(marked.dropped == 0.0 && marked.used > 0.9 && marked.queue_kib < 2.0 * 30.0, "{marked:?}");
    let unmarked = Bottleneck { cc: "auto", ..SLOW }.measure();
    let default = SLOW.measure();
    assert_eq!((unmarked.dropped, unmarked.queue_kib), (default.dropped, default.queue_kib));
}

/// The queue makes the round trip longer than the local ACK timeout of these queue pairs, and each packet seemed to be lost: the
/// first two streams had nothing after the others had come.
#[test]
fn streams_that_come_later_leave_the_first_ones_their_share() {
    let text = include_str!("../../../../../experiments/bottleneck/latecomers.toml");
    for keys in ["cc = \"cubic\"", "cc = \"cubic\"\ntimeout = 14"] {
        let scenario = Scenario::parse(&text.replace("cc = \"cubic\"", keys)).expect("a scenario");
        let mut world = World::new(&scenario).expect("a world");
        while world.step().expect("a step") {}
        let results = world.results(false);
        let rates: Vec<f64> = results.traffic.iter().map(|part| part.goodput_gbps).collect();
        let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
        assert!(sum > 0.24 && sum * sum / (4.0 * squares) > 0.9, "{keys}: {rates:?} Gbit/s");
    }
}
