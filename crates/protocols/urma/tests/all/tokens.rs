//! What keeps memory and receives from those who know nothing but an address: tokens, channels, and limits on guesses.

use crate::common::forge::{deliver, nth, open_and_cut, packet, write_request};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{
    Btah, Dialect, Maetah, Mtetah, NextLayer, Nth, ServiceMode, TaHeader, TaOpcode, TaRequest, UB_HEAD_MAX, UbHead,
};
use burst_urma::{JettyConfig, JfrConfig, JfrWr, NodeEid, RemoteJetty, SegmentConfig, TransMode, access};

/// A packet without channel in the name of host 1 to host 0, as any program with a UDP socket can send it.
fn datagram(next: NextLayer, request: TaRequest, payload: &[u8]) -> Vec<u8> {
    let head = UbHead {
        nth: Nth { next, ..nth() },
        rtph: None,
        cetph: None,
        saetph: None,
        ta: Some(TaHeader::Request(request)),
    };
    let mut bytes = vec![0; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    bytes.truncate(len);
    bytes.extend(payload);
    bytes
}

/// A WRITE of eight bytes to a segment of host 0: as a message of mode UM, or as a store.
fn write_without_channel(next: NextLayer, token_id: u32, token: Option<u32>, rc_id: u32) -> Vec<u8> {
    let memory = Maetah { addr: RAM_BASE, token_id, len: 8 };
    let mode = if next == NextLayer::Bypass { ServiceMode::Roi } else { ServiceMode::Uno };
    let request = write_request(mode, memory, 0);
    let base = Btah { has_token: token.is_some(), rc_id, ..request.base };
    datagram(next, TaRequest { base, token, ..request }, &[0x66; 8])
}

fn is_written(world: &World) -> bool {
    world.hosts[0].ram.bytes[..8] == [0x66; 8]
}

#[test]
fn one_datagram_changes_no_memory_without_token_and_reads_none() {
    for next in [NextLayer::Unreliable, NextLayer::Bypass] {
        let mut world = World::new(2, 1 << 12, 1, |_| ());
        let token_id = world.hosts[0].all;
        for token in [None, Some(0), Some(TOKEN)] {
            deliver(&mut world, &write_without_channel(next, token_id, token, 1024));
        }
        assert!(!is_written(&world), "{next:?}");
        assert_eq!(world.count(0, Reason::UbNoChannel), 3, "{next:?}");
        // With the token of the segment it is what the program has allowed.
        let shown = SegmentConfig { token: Some(TOKEN), ..world.whole_segment(0) };
        let token_id = world.hosts[0].node.register_segment(shown).expect("room");
        deliver(&mut world, &write_without_channel(next, token_id, Some(TOKEN), 1024));
        assert!(is_written(&world), "{next:?}");
    }
}

#[test]
fn a_store_in_the_name_of_another_host_without_token_ends_no_accesses_of_that_host() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let shown = SegmentConfig { token: Some(TOKEN), ..world.whole_segment(0) };
    let token_id = world.hosts[0].node.register_segment(shown).expect("room");
    deliver(&mut world, &write_without_channel(NextLayer::Bypass, token_id, Some(TOKEN), 77));
    // Another requester context would say that the host has restarted: what it sends later would be late.
    deliver(&mut world, &write_without_channel(NextLayer::Bypass, token_id, Some(1), 78));
    world.hosts[0].ram.bytes[..8].fill(0);
    let request = write_request(ServiceMode::Roi, Maetah { addr: RAM_BASE, token_id, len: 8 }, 0);
    let base = Btah { has_token: true, rc_id: 77, ..Btah::new(TaOpcode::Write, 6, 77) };
    deliver(&mut world, &datagram(NextLayer::Bypass, TaRequest { base, token: Some(TOKEN), ..request }, &[0x66; 8]));
    assert_eq!((is_written(&world), world.count(0, Reason::UbLate)), (true, 0));
}

/// A SEND of mode UM to an object of host 0, in the name of a Jetty of host 1.
fn send_without_channel(kind: u8, id: u32, rc_id: u32) -> Vec<u8> {
    let base = Btah { mode: ServiceMode::Uno, has_target: true, rc_id, ..Btah::new(TaOpcode::Send, 5, rc_id) };
    let target = Some(Mtetah { hint: 0, kind, id });
    datagram(NextLayer::Unreliable, TaRequest { target, ..TaRequest::new(base) }, &[0x66; 8])
}

#[test]
fn a_datagram_takes_no_receive_that_is_for_reliable_messages() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let jfc = world.jfc(0);
    let reliable = world.jfr(0, jfc);
    let unreliable = JfrConfig { is_unreliable: true, ..JfrConfig::new(jfc) };
    let unreliable = world.hosts[0].node.create_jfr(unreliable).expect("room");
    let rc = world.jetty(0, JettyConfig { mode: TransMode::Rc, ..JettyConfig::new(jfc, Some(reliable)) });
    let rm = world.jetty(0, JettyConfig::new(jfc, Some(reliable)));
    let um = JettyConfig { mode: TransMode::Um, service: ServiceMode::Uno, ..JettyConfig::new(jfc, Some(reliable)) };
    let um = world.jetty(0, um);
    let remote = RemoteJetty { eid: NodeEid::numbered(2), id: 1024, kind: burst_urma::TargetKind::Jetty, token: None };
    let remote = world.hosts[0].node.import_jetty(remote).expect("room");
    world.hosts[0].node.bind_jetty(rc, remote).expect("not bound");
    for jfr in [reliable, unreliable] {
        world.recv(0, jfr, 0, 8, 1);
    }
    let cases = [
        (Mtetah::JETTY, rc, false, "the bound peer's name is not enough"),
        (Mtetah::JETTY, rm, false, "mode RM"),
        (Mtetah::JFR, reliable, false, "a queue of reliable mode"),
        (Mtetah::JFR, unreliable, true, "a queue of mode UM"),
        (Mtetah::JETTY, um, true, "a Jetty of mode UM"),
    ];
    for (kind, id, is_taken, what) in cases {
        deliver(&mut world, &send_without_channel(kind, id, 1024));
        assert_eq!(!world.poll(0, jfc).is_empty(), is_taken, "{what}");
    }
}

#[test]
fn a_reliable_message_takes_no_receive_of_a_queue_of_mode_um() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let known = open_and_cut(&mut world);
    let jfc = world.jfc(0);
    let config = JfrConfig { is_unreliable: true, ..JfrConfig::new(jfc) };
    let jfr = world.hosts[0].node.create_jfr(config).expect("room");
    let range = world.local(0, 0, 8);
    world.hosts[0].node.post_recv(jfr, JfrWr { range, user_ctx: 1 }).expect("room");
    let base = Btah { has_target: true, ..Btah::new(TaOpcode::Send, 5, 1024) };
    let target = Some(Mtetah { hint: 0, kind: Mtetah::JFR, id: jfr });
    let request = TaRequest { target, ..TaRequest::new(base) };
    deliver(&mut world, &packet(&known, 1, (9, true), TaHeader::Request(request), &[1; 8]));
    assert!(world.poll(0, jfc).is_empty());
}

#[test]
fn five_thousand_guesses_by_a_channel_are_sixteen() {
    let mut world = World::new(2, 1 << 12, 1, |_| ());
    let known = open_and_cut(&mut world);
    let shown = SegmentConfig { token: Some(TOKEN), access: access::WRITE, ..world.whole_segment(0) };
    let token_id = world.hosts[0].node.register_segment(shown).expect("room");
    let mut ahead = 0;
    let mut guess = |world: &mut World, token: u32, rc_id: u32| {
        ahead += 1;
        let request = write_request(ServiceMode::Roi, Maetah { addr: RAM_BASE, token_id, len: 8 }, 0);
        let base = Btah { has_token: true, rc_id, tassn: ahead as u16, ..request.base };
        let ta = TaHeader::Request(TaRequest { base, token: Some(token), ..request });
        deliver(world, &packet(&known, ahead, (ahead, true), ta, &[0x66; 8]));
        is_written(world)
    };
    for wrong in 0..1000 {
        assert!(!guess(&mut world, wrong, 1024));
    }
    assert_eq!((world.count(0, Reason::UbToken), world.count(0, Reason::UbGuesses)), (16, 984));
    assert!(!guess(&mut world, TOKEN, 1024), "the right token is no better guess now");
    assert!(guess(&mut world, TOKEN, 1025), "another Jetty is served");
    world.hosts[0].ram.bytes[..8].fill(0);
    world.now = world.now + Nanos::from_ms(1001);
    assert!(guess(&mut world, TOKEN, 1024), "after a second");
}

#[test]
fn guesses_without_channel_share_a_limit_whatever_address_they_come_from_and_end_no_reliable_request() {
    for next in [NextLayer::Unreliable, NextLayer::Bypass] {
        let mut world = World::new(2, 1 << 12, 1, |_| ());
        let known = open_and_cut(&mut world);
        let shown = SegmentConfig { token: Some(TOKEN), ..world.whole_segment(0) };
        let token_id = world.hosts[0].node.register_segment(shown).expect("room");
        for n in 0..5000 {
            deliver(&mut world, &write_without_channel(next, token_id, Some(n), 1024 + n));
        }
        assert_eq!(world.count(0, Reason::UbToken), 256, "{next:?}");
        deliver(&mut world, &write_without_channel(next, token_id, Some(TOKEN), 9999));
        assert!(!is_written(&world), "{next:?}");
        let request = write_request(ServiceMode::Roi, Maetah { addr: RAM_BASE, token_id, len: 8 }, 0);
        let base = Btah { has_token: true, ..request.base };
        let ta = TaHeader::Request(TaRequest { base, token: Some(TOKEN), ..request });
        deliver(&mut world, &packet(&known, 1, (9, true), ta, &[0x66; 8]));
        assert!(is_written(&world), "{next:?}: a request by a channel");
    }
}
