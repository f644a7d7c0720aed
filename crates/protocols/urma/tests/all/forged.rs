//! Single forged packets on an open channel: each case is an attack that once did harm.

use crate::common::forge::{deliver, nothing, nth, open_and_cut, packet, write, write_request};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{
    Btah, Dialect, Maetah, Rtph, ServiceMode, TaHeader, TaOpcode, TaRequest, TpOpcode, UB_HEAD_MAX, UbHead, UbPacket,
    UbStatus,
};
use burst_urma::{CrStatus, JettyConfig, JfsWr, SegmentConfig, access};
use std::cell::RefCell;
use std::rc::Rc;

/// No such segment: a WRITE to it is refused when it is complete.
const UNKNOWN: Maetah = Maetah { addr: 0, token_id: 0x7_7777, len: 24 };

#[test]
fn a_message_whose_packets_differ_in_their_headers_moves_no_window_back() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let known = open_and_cut(&mut world);
    let mut ahead = 0;
    let mut send = |world: &mut World, message: (u32, bool), ta: TaHeader, payload: &[u8]| {
        ahead += 1;
        deliver(world, &packet(&known, ahead, message, ta, payload));
    };
    let part = |mode, offset| TaHeader::Request(write_request(mode, UNKNOWN, offset));
    send(&mut world, (77, false), part(ServiceMode::Rol, 0), &[1; 8]);
    send(&mut world, (77, true), part(ServiceMode::Roi, 16), &[1; 8]);
    for _ in 0..1100 {
        send(&mut world, (78, true), nothing(), &[]);
    }
    send(&mut world, (77, false), part(ServiceMode::Roi, 8), &[1; 8]);
    assert!(world.count(0, Reason::UbRefused) > 0, "a packet of another message under a number in use");
}

#[test]
fn hundreds_of_packets_may_come_between_two_turns_to_send() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let known = open_and_cut(&mut world);
    for ahead in 1..=300 {
        let bytes = packet(&known, ahead, (78, true), nothing(), &[]);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
}

#[test]
fn a_begun_write_does_not_go_on_in_a_segment_that_came_after_with_the_same_token_id() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let known = open_and_cut(&mut world);
    let rights = access::READ | access::WRITE;
    let old = SegmentConfig { addr: RAM_BASE + 0x8000, len: 0x100, token: Some(1), access: rights };
    let token_id = world.hosts[0].node.register_segment(old).expect("room");
    let part = |offset| {
        let request = write_request(ServiceMode::Roi, Maetah { addr: old.addr, token_id, len: 24 }, offset);
        TaHeader::Request(TaRequest { token: Some(1), base: Btah { has_token: true, ..request.base }, ..request })
    };
    deliver(&mut world, &packet(&known, 1, (9, false), part(0), &[1; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8000..0x8008], [1; 8]);
    // The program revokes it and registers the same memory for its own use, until the id comes again.
    let node = &mut world.hosts[0].node;
    node.unregister_segment(token_id).expect("there");
    let own = SegmentConfig { access: access::LOCAL_ONLY, token: Some(2), ..old };
    loop {
        let now = node.register_segment(own).expect("room");
        if now == token_id {
            break;
        }
        node.unregister_segment(now).expect("there");
    }
    deliver(&mut world, &packet(&known, 2, (9, false), part(8), &[0x66; 8]));
    assert_eq!(world.hosts[0].ram.bytes[0x8008..0x8010], [0; 8], "memory without rights for peers");
}

#[test]
fn a_forged_nak_does_not_repeat_the_window_again_and_again() {
    let mut world = World::new(2, 1 << 22, 1, |config| config.caqm = false);
    let known = open_and_cut(&mut world);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 0, 1 << 20);
    world.post(0, jetty, wr).expect("accepted");
    let first: Rc<RefCell<Option<Rtph>>> = Rc::default();
    let copy = first.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        let rtph = UbPacket::parse(bytes, &Dialect::BURST).expect("packet").head.rtph;
        if from == 0 && copy.borrow().is_none() {
            *copy.borrow_mut() = rtph;
        }
        true
    }));
    world.run_for(Nanos(10_000_000));
    let before = world.sent;
    let first = first.borrow().expect("sent");
    for _ in 0..10 {
        let status = UbStatus { status: UbStatus::ERROR, info: 0 };
        let rtph = Rtph { opcode: TpOpcode::Ack { congestion: false }, psn: first.psn, status, ..known };
        let head = UbHead { nth: nth(), rtph: Some(rtph), cetph: None, saetph: None, ta: None };
        let mut bytes = vec![0; UB_HEAD_MAX];
        let len = head.emit(&Dialect::BURST, &mut bytes);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes[..len]), &bytes[..len]));
        world.transmit();
    }
    assert!(world.sent - before <= 300, "{} packets after ten NAKs of 28 bytes", world.sent - before);
}

#[test]
fn a_read_longer_than_a_message_may_be_is_refused() {
    let mut world = World::new(2, 1 << 25, 1, |_| ());
    let known = open_and_cut(&mut world);
    let memory = Maetah { addr: RAM_BASE, token_id: world.hosts[0].all, len: 1 << 24 };
    let request = TaRequest { memory: Some(memory), ..TaRequest::new(Btah::new(TaOpcode::Read, 5, 1024)) };
    let answers = deliver(&mut world, &packet(&known, 1, (9, true), TaHeader::Request(request), &[]));
    assert_eq!((world.count(0, Reason::UbLength), answers <= 2), (1, true), "{answers} packets");
}

#[test]
fn write_imm_takes_no_receive_of_another_program_whose_token_it_does_not_show() {
    for (owner, status) in [(1, CrStatus::RemAccessAbort), (0, CrStatus::Success)] {
        let mut world = World::new(2, 1 << 16, 1, |_| ());
        let (jfc0, jfc1) = (world.jfc(0), world.jfc(1));
        let jfr = world.jfr(1, jfc1);
        let to = world.jetty(1, JettyConfig { token: Some(0x5ec2e7), owner, ..JettyConfig::new(jfc1, Some(jfr)) });
        let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
        let target = world.import_jetty(0, 1, to);
        // A segment without token, of the program 0.
        let segment = world.import_all(0, 1);
        world.recv(1, jfr, 0, 64, 1);
        let plain = write(&world, 0, segment, 1000, 8);
        let wr = JfsWr { opcode: TaOpcode::WriteImm, target: Some(target), immediate: 666, ..plain };
        world.post(0, jetty, wr).expect("accepted");
        world.run_for(Nanos(1_000_000));
        let is_received = !world.poll(1, jfc1).is_empty();
        assert_eq!((world.poll(0, jfc0)[0].status, is_received), (status, status == CrStatus::Success));
    }
}
