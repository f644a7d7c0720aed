//! Acknowledgements of packets that leave in TAACKs: a host that answers a request and sends its own needs two packets.

use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, Nth, TaHeader, TaOpcode, TpOpcode, UbPacket};
use burst_urma::{CrStatus, JettyConfig, JfsWr, LossRecovery, NodeEid};
use std::cell::RefCell;
use std::rc::Rc;

/// Too short a time for a channel that asks after a silence.
const MS: Nanos = Nanos(1_000_000);

/// What a packet is: its sender, its transaction (none in a TPACK), its length, and the PSN that a TAACK acknowledges.
type Seen = (usize, Option<TaOpcode>, usize, Option<u32>);

fn seen(from: usize, bytes: &[u8]) -> Seen {
    let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
    let is_data = packet.head.rtph.is_some_and(|rtph| rtph.opcode == TpOpcode::Data);
    let carried = match &packet.head.ta {
        Some(TaHeader::Response(response)) if response.acknowledges => Some(response.offset),
        _ => None,
    };
    (from, packet.head.ta.filter(|_| is_data).map(|ta| ta.opcode()), bytes.len(), carried)
}

/// Two hosts without C-AQM, whose Jetties write to each other.
struct Ends {
    world: World,
    jfcs: [u32; 2],
    jetties: [u32; 2],
    segments: [u32; 2],
    seen: Rc<RefCell<Vec<Seen>>>,
}

impl Ends {
    fn new() -> Ends {
        Ends::with(LossRecovery::Selective)
    }
    fn with(recovery: LossRecovery) -> Ends {
        let mut world = World::new(2, 1 << 16, 3, |config| (config.caqm, config.recovery) = (false, recovery));
        let jfcs = [0, 1].map(|host| world.jfc(host));
        let jetties = [0, 1].map(|host| world.jetty(host, JettyConfig::new(jfcs[host], None)));
        let segments = [0, 1].map(|host| world.import_all(host, 1 - host));
        let seen_packets = Rc::new(RefCell::new(Vec::new()));
        let list = seen_packets.clone();
        world.filter = Some(Box::new(move |from, _, bytes| {
            list.borrow_mut().push(seen(from, bytes));
            false
        }));
        Ends { world, jfcs, jetties, segments, seen: seen_packets }
    }
    fn write(&mut self, host: usize, len: u32) {
        let data = self.world.data(host, 0, len);
        let segment = Some(self.segments[host]);
        let wr = JfsWr { segment, remote_addr: RAM_BASE + 8192, ..JfsWr::new(TaOpcode::Write, data, 0) };
        self.world.post_sound(host, self.jetties[host], wr);
    }
    /// Opens the channel.
    fn open(&mut self) {
        self.write(0, 8);
        self.world.run_for(MS);
        assert_eq!(self.world.poll(0, self.jfcs[0]).len(), 1);
        self.seen.borrow_mut().clear();
    }
    /// Writes in turns: each host writes as soon as the other's bytes are there. Returns the number of completions.
    fn ping_pong(&mut self, rounds: usize) -> usize {
        let mut done = 0;
        for turn in 0..2 * rounds {
            self.write(turn % 2, 64);
            let executed = self.world.hosts[1 - turn % 2].log.executed.len();
            let limit = self.world.now + Nanos(1_000_000_000);
            while self.world.hosts[1 - turn % 2].log.executed.len() == executed {
                assert!(self.world.step(limit), "turn {turn}");
            }
            done += self.world.poll(turn % 2, self.jfcs[turn % 2]).len();
            done += self.world.poll(1 - turn % 2, self.jfcs[1 - turn % 2]).len();
        }
        done
    }
}

#[test]
fn a_ping_pong_takes_two_packets_in_each_direction() {
    let mut ends = Ends::new();
    ends.open();
    assert_eq!(ends.ping_pong(100), 199, "all but the last are done when the answer is there");
    let seen = ends.seen.borrow();
    // The first turn has nothing to answer.
    for (turn, packets) in seen[1..].chunks_exact(2).enumerate() {
        let [write, answer] = packets else { unreachable!("two packets") };
        assert_eq!((write.0, write.1), ((turn + 1) % 2, Some(TaOpcode::Write)), "turn {turn}: {packets:?}");
        assert_eq!((answer.0, answer.1), ((turn + 1) % 2, Some(TaOpcode::TaAck)), "turn {turn}: {packets:?}");
        assert!(answer.2 < write.2, "a train may end with a shorter packet only");
        assert!(answer.3.is_some(), "it acknowledges the other's packets");
    }
    assert_eq!(seen.len(), 1 + 2 * 199);
}

#[test]
fn what_no_answer_carries_leaves_by_itself() {
    let mut ends = Ends::new();
    ends.open();
    for _ in 0..20 {
        ends.write(0, 64);
        ends.world.run_for(MS);
    }
    let kinds: Vec<_> = ends.seen.borrow().iter().map(|seen| (seen.0, seen.1, seen.3.is_some())).collect();
    let want = [(0, Some(TaOpcode::Write), false), (1, Some(TaOpcode::TaAck), true), (0, None, false)];
    assert_eq!(kinds, want.repeat(20));
    assert_eq!(ends.world.count(0, Reason::UbRepeated) + ends.world.count(1, Reason::UbRepeated), 0);
    ends.world.assert_drained();
}

#[test]
fn lost_answers_and_their_acknowledgements_come_again() {
    let mut ends = Ends::new();
    ends.open();
    let mut answers = 0;
    ends.world.filter = Some(Box::new(move |from, _, bytes| {
        let is_answer = seen(from, bytes).1 == Some(TaOpcode::TaAck);
        answers += u32::from(is_answer);
        is_answer && answers % 5 == 0
    }));
    let done = ends.ping_pong(100);
    ends.world.run_for(Nanos(1_000_000_000));
    let late = ends.world.poll(0, ends.jfcs[0]).len() + ends.world.poll(1, ends.jfcs[1]).len();
    assert_eq!(done + late, 200);
    // Early retransmit repeats the lost answer itself; after a time-out it would be the request that it acknowledges.
    let repeated = ends.world.count(0, Reason::UbRepeated) + ends.world.count(1, Reason::UbRepeated);
    assert!(repeated > 5 && ends.world.count(0, Reason::UbBadAck) == 0);
    ends.world.assert_drained();
}

#[test]
fn an_answer_that_go_back_n_drops_behind_a_gap_acknowledges_all_the_same() {
    let mut ends = Ends::with(LossRecovery::GoBackN);
    ends.open();
    let answers = [0; 2].map(|_| {
        ends.write(0, 64);
        let write = take(&mut ends.world, 0).expect("the WRITE");
        ends.world.with(1, |node, env| node.on_packet(env, crate::common::sender(&write), &write));
        take(&mut ends.world, 1).expect("the TAACK")
    });
    let in_flight =
        |ends: &Ends| ends.world.hosts[0].node.channels_from(NodeEid::UNSPECIFIED).map(|c| c.packets).sum::<usize>();
    assert_eq!(in_flight(&ends), 2);
    // The first one is lost.
    ends.world.with(0, |node, env| node.on_packet(env, crate::common::sender(&answers[1]), &answers[1]));
    assert_eq!((in_flight(&ends), ends.world.count(0, Reason::UbGap)), (0, 1));
    assert_eq!(ends.world.poll(0, ends.jfcs[0]).len(), 0);
    for answer in &answers {
        ends.world.with(0, |node, env| node.on_packet(env, crate::common::sender(answer), answer));
    }
    ends.world.run_for(Nanos(1_000_000_000));
    assert_eq!(ends.world.poll(0, ends.jfcs[0]).len(), 2);
    ends.world.assert_drained();
}

/// The next packet of a host.
fn take(world: &mut World, host: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 16384];
    let sent = world.with(host, |node, env| node.poll_tx(env, &mut buffer))?;
    buffer.truncate(sent.len);
    Some(buffer)
}

#[test]
fn a_peer_that_does_not_say_that_it_reads_them_gets_acknowledgements_by_themselves() {
    let mut ends = Ends::new();
    ends.open();
    for is_reader in [false, true, false] {
        ends.write(0, 64);
        let mut write = take(&mut ends.world, 0).expect("the WRITE");
        assert!(write[Nth::LEN + 8] & 0x40 != 0, "bit F");
        if !is_reader {
            write[Nth::LEN + 8] &= !0x40;
        }
        ends.world.with(1, |node, env| node.on_packet(env, crate::common::sender(&write), &write));
        let packets: Vec<Vec<u8>> = std::iter::from_fn(|| take(&mut ends.world, 1)).collect();
        let kinds: Vec<_> = packets.iter().map(|p| seen(1, p)).map(|seen| (seen.1, seen.3.is_some())).collect();
        match is_reader {
            true => assert_eq!(kinds, [(Some(TaOpcode::TaAck), true)]),
            false => assert_eq!(kinds, [(None, false), (Some(TaOpcode::TaAck), false)]),
        }
        for packet in packets {
            ends.world.with(0, |node, env| node.on_packet(env, crate::common::sender(&packet), &packet));
        }
        ends.world.run_for(MS);
        let crs = ends.world.poll(0, ends.jfcs[0]);
        assert_eq!(crs.iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success]);
    }
}

#[test]
fn an_acknowledgement_of_packets_that_were_never_sent_is_counted_and_its_answer_counts() {
    let mut ends = Ends::new();
    ends.open();
    ends.write(0, 64);
    let write = take(&mut ends.world, 0).expect("the WRITE");
    ends.world.with(1, |node, env| node.on_packet(env, crate::common::sender(&write), &write));
    let mut answer = take(&mut ends.world, 1).expect("the TAACK");
    let at = answer.len() - 3;
    // A thousand packets ahead.
    answer[at + 1] = answer[at + 1].wrapping_add(4);
    ends.world.with(0, |node, env| node.on_packet(env, crate::common::sender(&answer), &answer));
    assert_eq!(ends.world.count(0, Reason::UbBadAck), 1);
    assert_eq!(ends.world.poll(0, ends.jfcs[0]).len(), 1);
    ends.world.run_for(Nanos(1_000_000_000));
    ends.world.assert_drained();
}

#[test]
fn a_lone_taack_is_acknowledged_after_a_delay_and_several_at_once() {
    let mut ends = Ends::new();
    ends.open();
    let tpacks = |ends: &Ends| ends.seen.borrow().iter().filter(|seen| seen.0 == 0 && seen.1.is_none()).count();
    // 5 us of the path in each direction, and the delay.
    ends.write(0, 64);
    while ends.world.poll(0, ends.jfcs[0]).is_empty() {
        assert!(ends.world.step(ends.world.now + MS));
    }
    ends.world.run_for(Nanos(29_000));
    assert_eq!(tpacks(&ends), 0, "the TAACK has an acknowledgement, and nobody waits for its own");
    ends.world.run_for(Nanos(2_000));
    assert_eq!(tpacks(&ends), 1);
    ends.world.run_for(MS);
    let seen = ends.seen.borrow().iter().map(|seen| (seen.0, seen.1)).collect::<Vec<_>>();
    assert_eq!(seen, [(0, Some(TaOpcode::Write)), (1, Some(TaOpcode::TaAck)), (0, None)], "no probe comes before");
    assert!((0..2).all(|host| ends.world.count(host, Reason::UbRepeated) == 0));
    ends.world.assert_drained();
    ends.seen.borrow_mut().clear();
    // A stream of requests: one acknowledgement of many answers.
    let mut done = 0;
    for _ in 0..40 {
        ends.write(0, 64);
        ends.world.run_for(Nanos(1_000));
        done += ends.world.poll(0, ends.jfcs[0]).len();
    }
    ends.world.run_for(MS);
    assert_eq!(done + ends.world.poll(0, ends.jfcs[0]).len(), 40);
    assert!((1..=4).contains(&tpacks(&ends)), "{}", tpacks(&ends));
    ends.world.assert_drained();
}

/// The sender asks with its last packet for a time. If what it shares with others is taken before that one, the acknowledgement
/// of the others comes all the same; two channels of one path waited for each other's time-outs without it.
#[test]
fn packets_that_ask_for_nothing_are_acknowledged_after_a_longer_delay() {
    let mut ends = Ends::new();
    ends.open();
    let (list, mut sent) = (ends.seen.clone(), 0);
    ends.world.filter = Some(Box::new(move |from, _, bytes| {
        list.borrow_mut().push(seen(from, bytes));
        sent += u32::from(from == 0);
        from == 0 && sent > 1
    }));
    let tpacks = |ends: &Ends| ends.seen.borrow().iter().filter(|seen| seen.0 == 1 && seen.1.is_none()).count();
    ends.write(0, 3 * 4096);
    ends.world.run_for(Nanos(1_900_000));
    assert_eq!(tpacks(&ends), 0);
    ends.world.run_for(Nanos(200_000));
    assert_eq!(tpacks(&ends), 1);
}
