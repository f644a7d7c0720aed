//! The hunt's scenarios of liveness: goodput that comes back after a loss, and a bottleneck at which few packets are lost.
//!
//! Each seed gives one scenario in virtual time; rates, round trips, path MTU, congestion control, family and verb are random.
//! After a loss the laws of `dcqcn`, `swift` and `timely` may lead back later than in [`TRIPS_MAX`], so they are not among them.
//!
//! * A whole flight is lost, because the sender's link is down for up to three round trips; or all acknowledgements, because the
//!   receiver's is; or a flight and its repetitions, because the sender's is down twice. Goodput must be at half of what it was
//!   within [`TRIPS_MAX`] round trips; `dctcp` has more after two losses, as its law needs them. In the standard family they
//!   count from the next time-out, if the repetitions after the first one are lost. The largest window is two products of rate
//!   and round trip: with more, packets wait in the sender's own adapter, and an acknowledgement takes tens of the round trips
//!   that are counted.
//! * Several senders share a bottleneck. It must drop at most [`DROPS_MAX`] of all packets, and its link must be used.

use crate::results::Results;
use crate::scenario::Scenario;
use crate::world::{SimError, World};
use burst_base::rng::Rng;
use std::fmt;

/// Round trips after which goodput is at half of what it was.
pub const TRIPS_MAX: f64 = 20.0;
/// Largest share of packets that is dropped at a bottleneck, and with marks.
pub const DROPS_MAX: [f64; 2] = [0.03, 0.001];
/// Least use of a bottleneck's link.
const USED_MIN: f64 = 0.85;
/// Round trips until the fault, and until the end.
const FAULT_TRIPS: u32 = 100;
const END_TRIPS: u32 = 240;
/// The largest window after a fault: so many products of rate and round trip, and at least so many bytes.
const WINDOW_TRIPS: u64 = 2;
const WINDOW_LEAST: u64 = 64 << 10;
/// Points of a series over which a rate is taken: a window may leave as a train in each round trip.
const POINTS: usize = 4;
/// Rate of a bottleneck in Mbit/s, and for how many milliseconds it is watched.
const BOTTLENECK_MBIT: u32 = 300;
const BOTTLENECK_MS: u32 = 900;
/// The queue at which it marks, in KiB.
const MARKS_KIB: u32 = 30;
/// Packets of each sender for which a bottleneck has room: with fewer than the floor of two, and one that comes, losses are the
/// only way to share.
const ROOM_PACKETS: u32 = 3;

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Flight,
    Acknowledgements,
    Repetitions { after_trips: u32 },
    Overflow { senders: u32, buffer_kib: u32, is_marked: bool },
}

/// A random scenario of liveness.
#[derive(Clone, Debug, PartialEq)]
pub struct Liveness {
    seed: u64,
    mtu: u32,
    cc: &'static str,
    selective: bool,
    verb: &'static str,
    rate_mbit: u32,
    rtt_us: u32,
    down_us: u32,
    lost: Lost,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[(rng.next_u64() % from.len() as u64) as usize]
}

impl Liveness {
    /// The scenario of a seed.
    pub fn of_seed(seed: u64) -> Liveness {
        let rng = &mut Rng::new(!seed);
        let (rate_mbit, rtt_us) = (pick(rng, &[100, 200, 400]), pick(rng, &[2_000, 5_000, 10_000]));
        let mut draft = Liveness {
            seed,
            mtu: pick(rng, &[256, 1_024, 1_024, 4_096]),
            cc: pick(rng, &["auto", "cubic", "cubic", "aimd", "none", "dctcp"]),
            selective: !rng.next_u32().is_multiple_of(4),
            verb: pick(rng, &["write", "write", "read", "send"]),
            rate_mbit,
            rtt_us,
            down_us: rtt_us * (2 + rng.next_u32() % 29) / 10,
            lost: Lost::Flight,
        };
        draft.lost = match rng.next_u32() % 4 {
            0 => Lost::Flight,
            1 => Lost::Acknowledgements,
            2 => Lost::Repetitions { after_trips: 2 + rng.next_u32() % 6 },
            _ => draft.bottleneck(rng),
        };
        draft
    }

    /// Several senders at a queue.
    fn bottleneck(&mut self, rng: &mut Rng) -> Lost {
        (self.cc, self.selective) = (pick(rng, &["auto", "cubic", "cubic", "dctcp", "dcqcn", "swift"]), true);
        (self.rate_mbit, self.rtt_us, self.down_us) = (BOTTLENECK_MBIT, 80, 0);
        self.mtu = pick(rng, &[1_024, 1_024, 2_048]);
        let senders = pick(rng, &[1, 2, 4, 8, 16]);
        let is_marked = matches!(self.cc, "dctcp" | "dcqcn");
        let least = (senders * ROOM_PACKETS * (self.mtu + 94)).div_ceil(1 << 10);
        // Where a queue marks, it has room for the ten packets with which each sender begins.
        let (least, sizes) = match (is_marked, self.cc) {
            (true, _) => (senders * 10 * (self.mtu + 94) / 1024 + MARKS_KIB, [256, 400]),
            (_, "swift") => (least, [200, 400]),
            _ => (least, [50, 200]),
        };
        Lost::Overflow { senders, buffer_kib: pick(rng, &sizes).max(least), is_marked }
    }

    /// The seed from which the scenario was drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Runs the scenario.
    ///
    /// # Errors
    /// What is violated.
    pub fn run(&self) -> Result<(), SimError> {
        let scenario = Scenario::parse(&self.to_string()).map_err(|e| SimError::Engine(e.to_string()))?;
        let mut world = World::new(&scenario)?;
        while world.step()? {}
        world.check_end()?;
        let what = match self.lost {
            Lost::Overflow { .. } => self.check_bottleneck(&world.results(false)),
            _ => self.check_recovery(&world.results(false)),
        };
        what.map_err(|what| SimError::Violation { at: world.now(), what })
    }

    /// When the last fault ends and the sender can know of it, in microseconds. In the standard family nothing but the local ACK
    /// timeout shows that a whole flight was lost,. If it ends
    /// while the link is down again, the repetition is lost, too, and the next wait is twice as long (IBA 9.7.6.1.3).
    fn ends_at_us(&self, ack_timeout_us: f64) -> u32 {
        let begin = FAULT_TRIPS * self.rtt_us;
        let Lost::Repetitions { after_trips } = self.lost else { return begin + self.down_us };
        let again = begin + after_trips * self.rtt_us;
        // It has run since the last acknowledgement, up to a round trip before.
        let due = begin + ack_timeout_us as u32;
        let is_repetition_lost = due > again && due < again + self.down_us + self.rtt_us;
        match self.selective || !is_repetition_lost {
            true => again + self.down_us,
            false => (again + self.down_us).max(begin + 3 * ack_timeout_us as u32),
        }
    }

    /// Round trips that the law of the controller needs besides [`TRIPS_MAX`]. `dctcp` has a quarter of its window after two
    /// losses, half of the product of rate and round trip, and adds a packet in each round trip (RFC 8257). It sends a window at
    /// once, so the link is half used when window and product are equal, and a round trip takes up to twice as long until then.
    ///
    /// One fault is two losses to READs of the standard family: what was lost of responses shows when others arrive, and
    /// requests that were lost are missed by the local ACK timeout, which reduces again (RFC 5681, 3.1; RFC 8257, 3.5).
    fn law_trips(&self) -> f64 {
        let is_fault_twice = !self.selective && self.verb == "read";
        let is_reduced_twice = self.cc == "dctcp" && (is_fault_twice || matches!(self.lost, Lost::Repetitions { .. }));
        let product = f64::from(self.rate_mbit) * f64::from(self.rtt_us) / 8.0;
        if is_reduced_twice { 2.0 * (product / 2.0) / f64::from(self.mtu) } else { 0.0 }
    }

    fn check_recovery(&self, results: &Results) -> Result<(), String> {
        // Of the host that sends the data.
        let sum = |series: &&Vec<f64>| series.iter().sum::<f64>();
        let Some(series) = results.series_gbps.iter().max_by(|a, b| sum(a).total_cmp(&sum(b))) else {
            return Err("no series".into());
        };
        let at = |us: u32| (f64::from(us) / results.interval_us) as usize;
        let rate = |at: usize| series[at..at + POINTS].iter().sum::<f64>() / POINTS as f64;
        let (fault, end) = (at(FAULT_TRIPS * self.rtt_us), at(self.ends_at_us(results.ack_timeout_us)));
        let before = (1..5).map(|k| rate(fault - POINTS * k - 1)).sum::<f64>() / 4.0;
        let back = (end..series.len() - POINTS).find(|at| rate(*at) >= before / 2.0);
        let trips = |points: usize| points as f64 * results.interval_us / f64::from(self.rtt_us);
        let most = TRIPS_MAX + self.law_trips();
        match back.map(|back| trips(back - end)) {
            Some(took) if took <= most => Ok(()),
            None if most > trips(series.len() - POINTS - end) => Ok(()),
            Some(took) => Err(format!("half of {before:.4} Gbit/s came back {took:.0} round trips after the fault")),
            None => Err(format!("half of {before:.4} Gbit/s has not come back after the fault")),
        }
    }

    fn check_bottleneck(&self, results: &Results) -> Result<(), String> {
        let Lost::Overflow { is_marked, .. } = self.lost else { return Ok(()) };
        let drops = results.network.buffer_drops as f64;
        let share = drops / (drops + results.packets as f64);
        let most = DROPS_MAX[usize::from(is_marked)];
        if share > most {
            return Err(format!("{share:.4} of all packets were dropped at the bottleneck; expected {most} at most"));
        }
        if self.verb == "read" {
            // What a requester asks for at a time is bounded besides.
            return Ok(());
        }
        let goodput: f64 = results.traffic.iter().map(|part| part.goodput_gbps * 1e3).sum();
        let used = goodput * f64::from(self.mtu + 94) / f64::from(self.mtu) / f64::from(self.rate_mbit);
        if used < USED_MIN {
            return Err(format!("{used:.3} of the bottleneck was used; expected {USED_MIN} at least"));
        }
        Ok(())
    }

    fn faults(&self) -> String {
        let Liveness { rtt_us, down_us, lost, .. } = *self;
        let fault = |host: u32, after_trips: u32| {
            let at = (FAULT_TRIPS + after_trips) * rtt_us;
            format!(
                "\n[[fault]]\nkind = \"link-down\"\nlink = \"host{host}\"\nat = \"{at}us\"\nfor = \"{down_us}us\"\n"
            )
        };
        match lost {
            Lost::Flight => fault(0, 0),
            Lost::Acknowledgements => fault(1, 0),
            Lost::Repetitions { after_trips } => fault(0, 0) + &fault(0, after_trips),
            Lost::Overflow { .. } => String::new(),
        }
    }
}

/// The scenario's file.
impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Liveness { seed, mtu, cc, selective, verb, rate_mbit, rtt_us, lost, .. } = self;
        writeln!(f, "name = \"liveness {seed}\"\nseed = {seed}\ndrain = \"60s\"")?;
        let mut hosts = format!("mtu = {mtu}\ncc = \"{cc}\"\nselective_repeat = {selective}");
        let Lost::Overflow { senders, buffer_kib, is_marked } = lost else {
            // A window of many such round trips waits in the own adapter, and each takes as long as that queue.
            let window = (u64::from(*rate_mbit) * u64::from(*rtt_us) / 8 * WINDOW_TRIPS).max(WINDOW_LEAST);
            hosts += &format!("\nwindow = \"{window}\"");
            return writeln!(
                f,
                "time = \"{}us\"\n\n[topology]\nkind = \"pair\"\nrate = \"{rate_mbit}Mbit\"\ndelay = \"{}us\"\n\n[hosts]\n{hosts}\n\n\
                 [[traffic]]\nkind = \"stream\"\nsize = \"64KiB\"\ndepth = 128\nverb = \"{verb}\"\n{}",
                END_TRIPS * rtt_us,
                rtt_us / 2,
                self.faults()
            );
        };
        writeln!(
            f,
            "time = \"{BOTTLENECK_MS}ms\"\nwarm_up = \"{}ms\"\n\n[topology]\nkind = \"star\"\nhosts = {}\n\
             rate = \"{rate_mbit}Mbit\"\ndelay = \"10us\"\n\n[hosts]\n{hosts}\ntimeout = 14\ntrain = \"2KiB\"\n\n[switches]\n\
             buffer = \"{buffer_kib}KiB\"",
            BOTTLENECK_MS / 3,
            senders + 1
        )?;
        if *is_marked {
            writeln!(f, "ecn_min = \"{MARKS_KIB}KiB\"\necn_max = \"{MARKS_KIB}KiB\"")?;
        }
        (1..=*senders).try_for_each(|sender| {
            let (from, to) = if *verb == "read" { (0, sender) } else { (sender, 0) };
            writeln!(
                f,
                "\n[[traffic]]\nkind = \"stream\"\nfrom = {from}\nto = {to}\nsize = \"64KiB\"\ndepth = 16\nverb = \"{verb}\""
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_gives_a_scenario_and_always_the_same() {
        let mut kinds = [0; 4];
        for seed in 0..2_000 {
            let draft = Liveness::of_seed(seed);
            let text = draft.to_string();
            Scenario::parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            assert_eq!(draft, Liveness::of_seed(seed));
            kinds[match draft.lost {
                Lost::Flight => 0,
                Lost::Acknowledgements => 1,
                Lost::Repetitions { .. } => 2,
                Lost::Overflow { .. } => 3,
            }] += 1;
        }
        assert!(kinds.iter().all(|kind| *kind > 400), "{kinds:?}");
    }

    #[test]
    fn round_trips_are_counted_from_when_the_fault_can_be_known() {
        let twice = |selective, after_trips| Liveness {
            seed: 1,
            mtu: 256,
            cc: "cubic",
            selective,
            verb: "send",
            rate_mbit: 200,
            rtt_us: 10_000,
            down_us: 25_000,
            lost: Lost::Repetitions { after_trips },
        };
        // The link is down from 1.00 to 1.025 s, and again from 1.06 to 1.085 s or from 1.07 to 1.095 s.
        assert_eq!(twice(true, 6).ends_at_us(67_109.0), 1_085_000, "probes follow the round trip");
        assert_eq!(twice(false, 6).ends_at_us(67_109.0), 1_201_327, "what is sent at 1.067 s is lost");
        assert_eq!(twice(false, 7).ends_at_us(67_109.0), 1_095_000, "what is sent at 1.067 s arrives");
        assert_eq!(twice(false, 6).ends_at_us(134_218.0), 1_085_000, "nothing is sent before 1.134 s");
        let once = Liveness { lost: Lost::Flight, ..twice(false, 6) };
        assert_eq!(once.ends_at_us(67_109.0), 1_025_000);
        // 250,000 bytes are 244 packets of 1,024; half of them must be added.
        let slow = Liveness { cc: "dctcp", mtu: 1_024, ..twice(true, 6) };
        assert_eq!(slow.law_trips().round(), 244.0);
        assert_eq!(Liveness { cc: "cubic", ..slow.clone() }.law_trips(), 0.0);
        let once = Liveness { lost: Lost::Flight, ..slow };
        assert_eq!(once.law_trips(), 0.0);
        let read = Liveness { selective: false, verb: "read", ..once };
        assert_eq!(read.law_trips().round(), 244.0, "responses, and requests");
        assert_eq!(Liveness { verb: "write", ..read }.law_trips(), 0.0);
    }

    /// A flow that stays slow, and a bottleneck that drops, are seen.
    #[test]
    fn what_does_not_hold_is_found() {
        let flight = Liveness {
            seed: 1,
            mtu: 1_024,
            cc: "cubic",
            selective: true,
            verb: "write",
            rate_mbit: 100,
            rtt_us: 2_000,
            down_us: 2_000,
            lost: Lost::Flight,
        };
        assert!(flight.run().is_ok());
        // The link stays down for 60 round trips after the time at which the fault should have ended.
        let text = flight.to_string().replace("for = \"2000us\"", "for = \"122ms\"");
        let mut world = World::new(&Scenario::parse(&text).expect("a scenario")).expect("a world");
        while world.step().expect("a step") {}
        let found = flight.check_recovery(&world.results(false)).expect_err("slow");
        assert!(found.contains("after the fault"), "{found}");
        let overflow = Lost::Overflow { senders: 8, buffer_kib: 50, is_marked: false };
        let window = Liveness { cc: "none", rate_mbit: 300, rtt_us: 80, down_us: 0, lost: overflow, ..flight };
        let found = window.run().expect_err("eight windows of 1 MiB").to_string();
        assert!(found.contains("were dropped at the bottleneck"), "{found}");
    }
}
