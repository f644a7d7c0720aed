//! The echo at Jetty 5: what comes back and to whom, what does not, and that a flood finds a bound.

use crate::common::forge::{deliver, open_and_cut, packet};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Btah, Dialect, Mtetah, ServiceMode, TaHeader, TaOpcode, TaRequest, UbPacket};
use burst_urma::{
    CompletionRecord, CrStatus, ECHO_JETTY, ECHO_MAX, JETTY_ID_FIRST, JettyConfig, JettyState, JfsWr, LossRecovery,
    NodeEid, TransMode, UrmaError,
};

/// Where answers go in a host's memory.
const BACK: u64 = 0x4000;
const RAM: usize = 1 << 15;

/// A Jetty that pings, with its queues.
struct Pinger {
    host: usize,
    sends: u32,
    receives: u32,
    jfr: u32,
    jetty: u32,
    echo: u32,
}

impl Pinger {
    fn new(world: &mut World, host: usize, to: usize, service: ServiceMode) -> Pinger {
        let (sends, receives) = (world.jfc(host), world.jfc(host));
        let jfr = world.jfr(host, receives);
        let mode = if service == ServiceMode::Uno { TransMode::Um } else { TransMode::Rm };
        let jetty = world.jetty(host, JettyConfig { mode, service, ..JettyConfig::new(sends, Some(jfr)) });
        let echo = world.import_jetty(host, to, ECHO_JETTY);
        Pinger { host, sends, receives, jfr, jetty, echo }
    }
    fn wr(&self, world: &World, len: u32, sequence: u64) -> JfsWr {
        JfsWr {
            target: Some(self.echo),
            immediate: sequence,
            ..JfsWr::new(TaOpcode::SendImm, world.data(self.host, 0, len), sequence)
        }
    }
    /// Posts a receive and a message.
    fn ping(&self, world: &mut World, len: u32, sequence: u64) {
        // Answers may come in another order.
        world.recv(self.host, self.jfr, BACK, ECHO_MAX, sequence);
        let wr = self.wr(world, len, sequence);
        world.post(self.host, self.jetty, wr).expect("accepted");
    }
    /// What the message ended with.
    fn status(&self, world: &mut World) -> CrStatus {
        world.run_for(Nanos(50_000_000));
        let records = world.poll(self.host, self.sends);
        assert_eq!(records.len(), 1, "{records:?}");
        records[0].status
    }
    fn answers(&self, world: &mut World) -> Vec<CompletionRecord> {
        world.poll(self.host, self.receives)
    }
}

fn fill(world: &mut World, host: usize, seed: u8) {
    for (i, byte) in world.hosts[host].ram.bytes[..BACK as usize].iter_mut().enumerate() {
        *byte = (i as u8).wrapping_mul(31).wrapping_add(seed);
    }
}

#[test]
fn what_is_sent_to_jetty_5_comes_back_with_its_immediate_data() {
    for (mtu, service) in
        [(4096, ServiceMode::Roi), (1024, ServiceMode::Roi), (256, ServiceMode::Rot), (512, ServiceMode::Rol)]
    {
        let mut world = World::new(2, RAM, 3, |config| config.mtu = mtu);
        let pinger = Pinger::new(&mut world, 0, 1, service);
        for (i, len) in [4, 0, 1, 255, 1024, 1025, ECHO_MAX].into_iter().enumerate() {
            let sequence = i as u64 + 1;
            fill(&mut world, 0, i as u8);
            pinger.ping(&mut world, len, sequence);
            assert_eq!(pinger.status(&mut world), CrStatus::Success);
            let answers = pinger.answers(&mut world);
            let [answer] = answers[..] else { panic!("{answers:?}") };
            assert_eq!((answer.status, answer.len, answer.immediate), (CrStatus::Success, len, sequence));
            assert_eq!((answer.opcode, answer.local_id), (TaOpcode::SendImm, pinger.jetty));
            assert_eq!(answer.remote, Some((NodeEid::numbered(2), ECHO_JETTY)));
            let ram = &world.hosts[0].ram.bytes;
            assert!(ram[..len as usize] == ram[BACK as usize..][..len as usize], "{mtu} {len}");
        }
        assert_eq!((world.count(1, Reason::UbEcho), world.count(1, Reason::UbEchoLost)), (7, 0));
        assert_eq!(world.count(1, Reason::UbLate), 0, "answers to echoes are expected");
        world.assert_drained();
    }
}

#[test]
fn a_node_pings_itself() {
    let mut world = World::new(1, RAM, 3, |_| ());
    let pinger = Pinger::new(&mut world, 0, 0, ServiceMode::Roi);
    pinger.ping(&mut world, 100, 7);
    assert_eq!(pinger.status(&mut world), CrStatus::Success);
    assert_eq!(pinger.answers(&mut world).iter().map(|cr| cr.immediate).collect::<Vec<_>>(), [7]);
    world.assert_drained();
}

#[test]
fn each_message_comes_back_once_through_losses() {
    for recovery in [LossRecovery::Selective, LossRecovery::GoBackN] {
        let mut world = World::new(2, RAM, 5, |config| (config.mtu, config.recovery) = (512, recovery));
        world.weather = STORM;
        let pinger = Pinger::new(&mut world, 0, 1, ServiceMode::Roi);
        // More at once than a peer has room for: the rest is refused as not ready, and sent again.
        let mut wanted = Vec::new();
        for round in 0..20 {
            for i in 0..40 {
                let sequence = round * 40 + i + 1;
                pinger.ping(&mut world, 1 + (sequence as u32 * 97) % ECHO_MAX, sequence);
                wanted.push(sequence);
            }
            world.run_for(Nanos::from_ms(200));
        }
        let mut answers: Vec<u64> = pinger
            .answers(&mut world)
            .iter()
            .filter(|cr| cr.status == CrStatus::Success)
            .map(|cr| cr.immediate)
            .collect();
        let lost = world.count(1, Reason::UbEchoLost);
        answers.sort_unstable();
        let before = answers.len();
        answers.dedup();
        assert_eq!((answers.len(), before, lost), (800, 800, 0), "once each");
        assert!(answers.iter().all(|sequence| wanted.contains(sequence)));
        assert!(world.count(1, Reason::UbEchoBusy) > 0, "there was no room for all at once");
        world.assert_drained();
    }
}

#[test]
fn what_does_not_come_back() {
    let mut world = World::new(2, RAM, 3, |_| ());
    let pinger = Pinger::new(&mut world, 0, 1, ServiceMode::Roi);
    // Too long.
    pinger.ping(&mut world, ECHO_MAX + 1, 1);
    assert_eq!(pinger.status(&mut world), CrStatus::RemRespLen);
    // Something else than a SEND.
    let segment = world.import_all(0, 1);
    let write =
        JfsWr { opcode: TaOpcode::WriteImm, segment: Some(segment), remote_addr: RAM_BASE, ..pinger.wr(&world, 8, 2) };
    world.post(0, pinger.jetty, write).expect("accepted");
    assert_eq!(pinger.status(&mut world), CrStatus::RemOperation);
    // A datagram may have a forged source.
    let unreliable = Pinger::new(&mut world, 0, 1, ServiceMode::Uno);
    unreliable.ping(&mut world, 8, 3);
    assert_eq!(unreliable.status(&mut world), CrStatus::Success, "sent");
    assert_eq!(world.count(1, Reason::UbUnreliableLost), 1);
    assert_eq!((pinger.answers(&mut world).len(), unreliable.answers(&mut world).len()), (0, 0));
    assert_eq!(world.count(1, Reason::UbEcho), 0);
    world.assert_drained();
}

#[test]
fn an_echo_that_is_not_taken_is_lost_and_leaves_nothing() {
    let mut world = World::new(2, RAM, 3, |_| ());
    let pinger = Pinger::new(&mut world, 0, 1, ServiceMode::Roi);
    let wr = pinger.wr(&world, 64, 1);
    world.post(0, pinger.jetty, wr).expect("accepted");
    assert_eq!(pinger.status(&mut world), CrStatus::Success, "it has arrived there");
    assert_eq!((world.count(1, Reason::UbEcho), world.count(1, Reason::UbEchoLost)), (1, 1), "no receive is posted");
    world.assert_drained();
}

#[test]
fn no_object_of_a_program_has_the_number() {
    let mut world = World::new(1, RAM, 3, |_| ());
    let jfc = world.jfc(0);
    for _ in 0..8 {
        assert!(world.jetty(0, JettyConfig::new(jfc, None)) >= JETTY_ID_FIRST);
        assert!(world.jfr(0, jfc) >= JETTY_ID_FIRST);
    }
    let wr = JfsWr::new(TaOpcode::Send, world.data(0, 0, 8), 1);
    assert_eq!(world.post(0, ECHO_JETTY, wr), Err(UrmaError::NoObject));
    let refused = world.with(0, |node, env| {
        [
            node.delete_jetty(ECHO_JETTY),
            node.modify_jetty(ECHO_JETTY, JettyState::Error, env.fx),
            node.unbind_jetty(ECHO_JETTY),
        ]
    });
    assert_eq!(refused, [Err(UrmaError::NoObject); 3]);
    let counts = world.hosts[0].node.object_counts();
    assert_eq!((counts.jetties, counts.jfrs), (8, 8), "it is none of a program's");
}

/// A SEND of the cut-off host 1 to the echo of host 0.
fn forged(rc_id: u32, tassn: u16, offset: u32) -> TaHeader {
    let mut request = TaRequest::new(Btah { offset, ..Btah::new(TaOpcode::Send, tassn, rc_id) });
    request.base.has_target = true;
    request.target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: ECHO_JETTY });
    TaHeader::Request(request)
}

/// The SENDs among the packets that host 0 sends now: payloads.
fn sent_back(world: &mut World) -> Vec<Vec<u8>> {
    let mut out = vec![0; 16384];
    let mut found = Vec::new();
    while let Some(sent) = world.with(0, |node, env| node.poll_tx(env, &mut out)) {
        let packet = UbPacket::parse(&out[..sent.len], &Dialect::BURST).expect("a packet");
        if matches!(packet.head.ta, Some(TaHeader::Request(request)) if request.base.opcode == TaOpcode::Send) {
            found.push(packet.payload.to_vec());
        }
    }
    found
}

#[test]
fn two_echoes_do_not_answer_each_other() {
    let mut world = World::new(2, RAM, 9, |_| ());
    let known = open_and_cut(&mut world);
    for (i, rc_id) in [ECHO_JETTY, 0, JETTY_ID_FIRST - 1].into_iter().enumerate() {
        let bytes = packet(&known, i as u32 + 1, (100 + i as u32, true), forged(rc_id, i as u16, 0), &[1; 64]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    // The same in two packets.
    for (ahead, offset, last) in [(4, 0, false), (5, 64, true)] {
        let bytes = packet(&known, ahead, (104, last), forged(ECHO_JETTY, 9, offset), &[1; 64]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    assert_eq!(sent_back(&mut world).len(), 0);
    assert_eq!((world.count(0, Reason::UbRefused), world.count(0, Reason::UbEcho)), (4, 0));
}

#[test]
fn a_message_with_a_hole_shows_nothing_of_others() {
    let mut world = World::new(3, RAM, 9, |_| ());
    fill(&mut world, 2, 1);
    let honest = Pinger::new(&mut world, 2, 0, ServiceMode::Roi);
    honest.ping(&mut world, ECHO_MAX, 1);
    assert_eq!(honest.status(&mut world), CrStatus::Success);
    let known = open_and_cut(&mut world);
    // Two packets at offset 0 and the last one: as many bytes as the message has, and a hole.
    for (ahead, offset, last) in [(1, 0, false), (2, 0, false), (3, 128, true)] {
        let bytes = packet(&known, ahead, (100, last), forged(1024, 1, offset), &[9; 64]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
    let back = sent_back(&mut world);
    assert_eq!(back, [[[9; 64], [0; 64], [9; 64]].concat()]);
    // Beyond the longest message, with an offset that a sum would carry over.
    for (i, offset) in [ECHO_MAX - 63, 0xff_ffff, ECHO_MAX].into_iter().enumerate() {
        let bytes = packet(&known, 4 + i as u32, (200 + i as u32, true), forged(1024, 2 + i as u16, offset), &[9; 64]);
        deliver(&mut world, &bytes);
    }
    assert_eq!(world.count(0, Reason::UbEcho), 2);
}

/// Numbers of the state of host 0 that a flood may raise.
fn bytes_of(world: &World) -> usize {
    world.hosts[0].node.state().other_bytes
}

#[test]
fn a_flood_finds_a_bound_and_others_are_served() {
    let mut world = World::new(3, RAM, 11, |_| ());
    let honest = Pinger::new(&mut world, 2, 0, ServiceMode::Roi);
    let known = open_and_cut(&mut world);
    let before = bytes_of(&world);
    // The attacker acknowledges nothing: what comes back to it is kept for repetitions. Half are messages that never end.
    let mut sent = 0;
    for i in 0..900u32 {
        let last = i % 2 == 0;
        let bytes = packet(&known, i + 1, (1000 + i, last), forged(1024, i as u16, 0), &[7; 4000]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        sent += sent_back(&mut world).len();
        if i % 100 == 99 {
            honest.ping(&mut world, 64, u64::from(i));
            assert_eq!(honest.status(&mut world), CrStatus::Success);
            assert_eq!(honest.answers(&mut world).len(), 1, "after {i}");
        }
    }
    assert!(sent <= 16, "one peer has half of the room: {sent} came back");
    assert!(world.count(0, Reason::UbEchoBusy) > 300, "{:?}", world.hosts[0].log.counts);
    let grown = bytes_of(&world) - before;
    assert!(grown < 32 * ECHO_MAX as usize + (1 << 18), "{grown} bytes");
    // When the channel of the attacker has failed, all is free again.
    world.run_for(Nanos(10_000_000_000));
    assert_eq!((world.hosts[0].node.state().responses, world.hosts[0].node.state().inbound), (0, 0));
}

#[test]
fn a_flood_of_messages_without_answers_is_no_amplification() {
    let mut world = World::new(2, RAM, 13, |_| ());
    let known = open_and_cut(&mut world);
    let (mut received, mut returned) = (0, 0);
    for i in 0..200u32 {
        let bytes = packet(&known, i + 1, (1000 + i, true), forged(1024, i as u16, 0), &[7; 500]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        received += 500;
        returned += sent_back(&mut world).iter().map(Vec::len).sum::<usize>();
    }
    assert!(returned <= received && returned > 0, "{returned} of {received} bytes");
}
