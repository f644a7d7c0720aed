//! What acknowledgements of selective repeat say reaches the controllers: the share of marks, round trips, pressure on a
//! receiver's buffers. Two engines over the `mem` port, whose frames `impair` marks, or behind a receive buffer that is small.
use crate::harness::small_buffer::SmallBuffer;
use crate::harness::{AppQp, BASE, Host, poll, request};
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Reason};
use burst_cc::Params;
use burst_engine::counters::Traffic;
use burst_port::Port;
use burst_port::impair::Impair;
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::spec::{Direction, ImpairSpec, Ppm};
use std::net::IpAddr;

const BYTES: u32 = 1 << 20;
const MTU: u64 = 1024;

/// Two hosts and a connected queue pair of each.
struct Both {
    a: Host,
    b: Host,
    qa: AppQp,
    _qb: AppQp,
    now: Nanos,
    /// Time between two passes of the receiver.
    pause: Nanos,
    /// The smallest window to which one was reduced.
    lowest: u64,
    last: u64,
    /// Whether the peer has ever reported pressure of 2 or more.
    pressed: bool,
}

impl Both {
    /// Packets are marked at this rate.
    fn marked(cc: &str, ecn: u32, selective: bool) -> Both {
        let wrap = |port, seed| -> Box<dyn Port> {
            let spec = ImpairSpec { ecn: Ppm(ecn), dir: Direction::Tx, seed, ..ImpairSpec::default() };
            Box::new(Impair::new(Box::new(port), spec))
        };
        Both::new((cc, 256 << 10), wrap, selective, Nanos(1_000))
    }

    /// Receive buffers hold [`ROOM`] packets, and the receiver runs once in 30 us.
    fn crowded(cc: &str, window: u64, selective: bool) -> Both {
        let wrap = |inner, _| -> Box<dyn Port> { Box::new(SmallBuffer::new(inner, ROOM)) };
        Both::new((cc, window), wrap, selective, Nanos(30_000))
    }

    fn new(
        (cc, window): (&str, u64),
        wrap: impl Fn(MemPort, u64) -> Box<dyn Port>,
        selective: bool,
        pause: Nanos,
    ) -> Both {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2));
        let cc = Params::parse(cc, window).expect("a valid specification");
        let host =
            |port| if selective { Host::with_selective(port, BYTES, cc) } else { Host::with_cc(port, BYTES, cc) };
        let (mut a, mut b) = (host(wrap(pa, 1)), host(wrap(pb, 2)));
        let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
        let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
        a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
        b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
        let mut both = Both { a, b, qa, _qb: qb, now: Nanos(0), pause, lowest: u64::MAX, last: 0, pressed: false };
        // The hellos pass; a silent peer is given up after five seconds.
        while both.now < Nanos::from_ms(7_000) {
            both.a.worker.run_once(both.now);
            both.b.worker.run_once(both.now);
            let next = both.a.worker.next_deadline().min(both.b.worker.next_deadline());
            both.now = next.clamp(both.now + Nanos(1_000), both.now + Nanos::from_ms(100));
        }
        both
    }

    /// Writes a mebibyte of other bytes each time, and checks what has arrived.
    fn write(&mut self, seed: u8) {
        let bytes: Vec<u8> =
            (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect();
        self.a.memory.write_from(&bytes).expect("local");
        let rkey = self.b.key;
        for k in 0..16u64 {
            let sge = self.a.sge(k << 16, 1 << 16);
            self.a.post(&mut self.qa, request(WrOpcode::RdmaWrite, k, BASE + (k << 16), rkey), &[sge]);
        }
        let (mut done, end, mut receives_at) = (0, self.now + Nanos::from_ms(5_000), self.now);
        while done < 16 {
            self.a.worker.run_once(self.now);
            if self.now >= receives_at {
                self.b.worker.run_once(self.now);
                receives_at = self.now + self.pause;
            }
            if (self.now.0 / 1_000).is_multiple_of(16) {
                let window = self.window();
                if window < self.last {
                    self.lowest = self.lowest.min(window);
                }
                self.last = window;
                self.pressed |= self.variable("pressure").is_some_and(|pressure| pressure >= 2.0);
            }
            while let Some(cqe) = poll(&mut self.qa) {
                assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success as u8));
                done += 1;
            }
            self.now = self.now + Nanos(1_000);
            assert!(self.now < end, "only {done} completions in five seconds");
        }
        let mut there = vec![0; BYTES as usize];
        self.b.memory.read_to(&mut there).expect("local");
        assert!(there == bytes, "round {seed}");
    }

    /// A variable of the sender's path.
    fn variable(&self, name: &str) -> Option<f64> {
        let (peers, _) = self.a.worker.cc_peers(0, 8);
        let found = peers[0].variables.iter().find(|variable| variable.name == name);
        found.map(|variable| variable.millionths as f64 / 1e6)
    }

    fn window(&self) -> u64 {
        self.a.worker.cc_peers(0, 8).0[0].window_bytes
    }

    /// Packets that found no room in the receiver's buffer.
    fn lost(&self) -> u64 {
        self.b.worker.counters(DeviceId(0)).reason(Reason::ReceiveOverflow)
    }
}

#[test]
fn alpha_of_dctcp_is_the_share_of_marks_that_the_peer_reports() {
    for share in [0.0, 0.05, 0.3, 1.0] {
        let mut both = Both::marked("dctcp:initial_alpha=0", (share * 1e6) as u32, true);
        let (mut sum, mut count) = (0.0, 0);
        for round in 0..12 {
            both.write(round);
            if round >= 4 {
                sum += both.variable("alpha").expect("dctcp has it");
                count += 1;
            }
        }
        let (alpha, echoed) = (sum / f64::from(count), both.variable("ce_share").expect("the peer reports"));
        println!("share {share}: alpha {alpha:.3}, echoed {echoed:.3}, window {}", both.window());
        assert!((alpha - share).abs() < 0.05, "share {share}: alpha {alpha}");
        assert!((echoed - share).abs() < 0.03, "share {share}: echoed {echoed}");
        assert_eq!(both.window() == 256 << 10, share == 0.0, "share {share}");
        assert_eq!(both.variable("selective_repeat"), Some(1.0));
    }
}

#[test]
fn marks_are_answered_by_notifications_where_the_peers_controller_follows_them() {
    for (cc, selective, answered) in
        [("dctcp", true, false), ("dcqcn", true, true), ("dcqcn-nvidia", true, true), ("dctcp", false, true)]
    {
        let mut both = Both::marked(cc, 300_000, selective);
        (0..4).for_each(|round| both.write(round));
        let counters = both.b.worker.counters(DeviceId(0));
        assert!(counters.traffic(Traffic::MarkedPackets) > 100, "{cc}");
        assert_eq!(counters.traffic(Traffic::CnpsSent) > 0, answered, "{cc} {selective}");
    }
}

#[test]
fn in_the_standard_family_dctcp_follows_notifications() {
    for share in [0, 300_000] {
        let mut both = Both::marked("dctcp:initial_alpha=0,slow_start=0", share, false);
        (0..32).for_each(|round| both.write(round));
        let cnps = both.a.worker.counters(DeviceId(0)).reason(Reason::CnpReceived);
        let alpha = both.variable("alpha").expect("dctcp has it");
        println!("{cnps} notifications, alpha {alpha:.3}, smallest window {}", both.lowest);
        let follows = share > 0;
        assert_eq!((cnps > 10, alpha > 0.01, both.lowest < 256 << 10), (follows, follows, follows));
        assert_eq!((both.variable("ce_share"), both.variable("pressure")), (None, None), "no peer reports");
        assert_eq!(both.variable("selective_repeat"), Some(0.0));
    }
}

#[test]
fn round_trips_are_those_of_the_path() {
    let mut both = Both::marked("swift", 0, true);
    (0..4).for_each(|round| both.write(round));
    let rtt = both.variable("path_rtt_ns").expect("measured");
    assert_eq!(both.variable("rtt_ns"), Some(rtt), "swift gets it");
    // Two latencies, and the microseconds between two passes of each host.
    assert!((4_000.0..10_000.0).contains(&rtt), "{rtt}");
    assert!(both.variable("remote_delay_ns").is_some_and(|delay| delay < 4_000.0));
}

/// The window is less than the receive buffer holds, and more than three quarters of it: no packet is lost.
const WINDOW: u64 = 112 * MTU;
const ROOM: usize = 128;

#[test]
fn a_sender_slows_down_before_the_receiver_loses_packets() {
    for (cc, reacts) in [
        ("cubic", true),
        ("aimd", true),
        ("dctcp", true),
        ("swift", true),
        ("dcqcn", true),
        ("timely", true),
        ("none", false),
    ] {
        let mut both = Both::crowded(cc, WINDOW, true);
        (0..16).for_each(|round| both.write(round));
        println!("{cc}: smallest window {}, last {} of {WINDOW}", both.lowest, both.window());
        assert!(both.lost() == 0 && both.pressed, "{cc}");
        if reacts {
            assert!((MTU..ROOM as u64 * MTU * 3 / 4).contains(&both.lowest), "{cc}: {}", both.lowest);
        } else {
            assert_eq!(both.lowest, u64::MAX, "{cc}");
        }
    }
    // A sender that the receiver cannot tell.
    let mut both = Both::crowded("aimd", WINDOW, false);
    (0..16).for_each(|round| both.write(round));
    assert_eq!((both.lowest, both.window()), (u64::MAX, WINDOW));
}

#[test]
fn packets_lost_in_a_full_buffer_are_reported_and_repaired() {
    for cc in ["cubic", "aimd", "dctcp:slow_start=0", "swift", "dcqcn"] {
        let mut both = Both::crowded(cc, 512 << 10, true);
        let mut lost: Vec<u64> = Vec::new();
        for round in 0..16 {
            both.write(round);
            lost.push(both.lost());
        }
        println!("{cc}: lost after each mebibyte {lost:?}, smallest window {}", both.lowest);
        assert!(lost[0] > 0, "{cc}: the window was larger than the buffer");
        assert_eq!(lost[0], lost[15], "{cc}: the sender stays below what the buffer holds");
        assert!((MTU..ROOM as u64 * MTU).contains(&both.lowest), "{cc}: {}", both.lowest);
    }
    // Without reports the sender only learns by losses, and comes back to them each time.
    let mut both = Both::crowded("aimd", 512 << 10, false);
    both.write(0);
    let first = both.lost();
    (1..8).for_each(|round| both.write(round));
    println!("aimd, standard family: {first} at first, {} after 8 MiB", both.lost());
    assert!(both.lost() > 2 * first);
}
