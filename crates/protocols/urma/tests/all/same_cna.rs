//! Peers whose addresses end alike: their packets name the same source, and only the addresses tell them apart.

use crate::common::forge::{nothing, open_and_cut, packet, send, write, write_request};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Btah, Maetah, Rtph, ServiceMode, TaHeader, TaRequest};
use burst_urma::{CrStatus, JettyConfig, NodeEid, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, UrmaConfig};

/// Another address that ends as host 1's.
fn twin() -> NodeEid {
    NodeEid::numbered(99 << 24 | 2)
}

/// Host 2 has an address that ends as host 1's.
fn like_host_1(config: &mut UrmaConfig) {
    if config.eid == NodeEid::numbered(3) {
        config.eid = twin();
    }
}

#[test]
fn two_peers_with_one_cna_are_used_at_the_same_time() {
    const LEN: u32 = 100_000;
    for weather in [FAIR, STORM] {
        let mut world = World::new(3, 1 << 20, 7, like_host_1);
        assert_eq!(world.eids[1].cna(), world.eids[2].cna());
        world.weather = weather;
        let jfc = world.jfc(0);
        let jetty = world.jetty(0, JettyConfig::new(jfc, None));
        for host in [1, 2] {
            world.hosts[host].ram.bytes[..LEN as usize].fill(10 + host as u8);
        }
        world.hosts[0].ram.bytes[..LEN as usize].fill(9);
        // Host 0 writes to both, and both write to host 0, all at once.
        for host in [1, 2] {
            let segment = world.import_all(0, host);
            let wr = write(&world, 0, segment, 1 << 18, LEN);
            world.post_sound(0, jetty, wr);
            let (jfc, segment) = (world.jfc(host), world.import_all(host, 0));
            let jetty = world.jetty(host, JettyConfig::new(jfc, None));
            let wr = write(&world, host, segment, (host as u64) << 18, LEN);
            world.post_sound(host, jetty, wr);
        }
        let receivers = [1, 2].map(|host| {
            let jfc = world.jfc(host);
            let jfr = world.jfr(host, jfc);
            world.recv(host, jfr, 1 << 19, 8, 40 + host as u64);
            let id = world.jetty(host, JettyConfig::new(jfc, Some(jfr)));
            let target = world.import_jetty(0, host, id);
            let wr = send(&world, 0, target, 5);
            world.post_sound(0, jetty, wr);
            jfc
        });
        world.run_for(Nanos(3_000_000_000));
        let done = world.poll(0, jfc);
        assert!(done.len() == 4 && done.iter().all(|cr| cr.status == CrStatus::Success), "{done:?}");
        for (host, jfc) in [1, 2].into_iter().zip(receivers) {
            let got = world.poll(host, jfc);
            assert_eq!(got.iter().map(|cr| cr.user_ctx).collect::<Vec<_>>(), [40 + host as u64]);
            let (own, at) = (&world.hosts[0].ram.bytes, host << 18);
            assert!(own[at..at + LEN as usize].iter().all(|byte| usize::from(*byte) == 10 + host), "from host {host}");
            let written = &world.hosts[host].ram.bytes[1 << 18..];
            assert!(written[..LEN as usize].iter().all(|byte| *byte == 9), "to host {host}");
        }
        let peers: Vec<NodeEid> = world.hosts[0].node.channels().map(|channel| channel.peer).collect();
        assert!(peers.contains(&world.eids[1]) && peers.contains(&twin()), "{peers:?}");
        world.assert_drained();
    }
}

#[test]
fn an_address_at_which_there_is_no_node_takes_nothing_from_the_peer_that_ends_alike() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let receiver = world.receiver();
    let jfc = world.jfc(0);
    let jetties = [0; 2].map(|_| world.jetty(0, JettyConfig { err_timeout: 10, ..JettyConfig::new(jfc, None) }));
    let invented = RemoteJetty { eid: twin(), id: receiver.jetty, kind: TargetKind::Jetty, token: None };
    let invented = world.hosts[0].node.import_jetty(invented).expect("room");
    for round in 0..20 {
        world.recv(1, receiver.jfr, 0, 8, round);
        for (jetty, target) in jetties.into_iter().zip([invented, receiver.target]) {
            let wr = send(&world, 0, target, round);
            // The first one's Jetty stops in the end.
            let _ = world.post(0, jetty, wr);
        }
        world.run_for(Nanos(1_000_000));
        let done = world.poll(0, jfc);
        assert!(
            done.iter().any(|cr| (cr.status, cr.user_ctx) == (CrStatus::Success, round)),
            "round {round}: {done:?}"
        );
        assert!(!world.hosts[0].node.has_open_channel(twin()) && world.hosts[0].node.has_open_channel(world.eids[1]));
    }
}

#[test]
fn a_response_of_another_address_is_none_of_the_peer_s() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let known = open_and_cut(&mut world);
    let bytes = packet(&known, 1, (9, true), nothing(), &[]);
    for (from, reason) in [(twin(), Reason::UbUnknownChannel), (NodeEid::numbered(3), Reason::UbForeign)] {
        let before = world.count(0, reason);
        world.with(0, |node, env| node.on_packet(env, from, &bytes));
        assert_eq!(world.count(0, reason), before + 1, "{from:?}");
    }
}

#[test]
fn a_packet_of_another_address_does_not_go_on_with_the_peer_s_message() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let known: Rtph = open_and_cut(&mut world);
    let rights = burst_urma::access::READ | burst_urma::access::WRITE;
    let segment = SegmentConfig { addr: RAM_BASE + 0x8000, len: 0x100, token: Some(1), access: rights };
    let token_id = world.hosts[0].node.register_segment(segment).expect("room");
    let part = |offset| {
        let memory = Maetah { addr: segment.addr, token_id, len: 64 };
        let request = write_request(ServiceMode::Roi, memory, offset);
        TaHeader::Request(TaRequest { token: Some(1), base: Btah { has_token: true, ..request.base }, ..request })
    };
    let peer = world.eids[1];
    let parts =
        [0, 8, 16].map(|offset| packet(&known, 1 + offset / 8, (9, false), part(offset), &[offset as u8 + 1; 8]));
    world.with(0, |node, env| node.on_packet(env, peer, &parts[0]));
    world.with(0, |node, env| node.on_packet(env, twin(), &parts[1]));
    let run = [&parts[1][..], &parts[2]].concat();
    let places = (parts[1].len(), parts[1].len());
    assert_eq!(world.with(0, |node, env| node.on_run(env, twin(), &run, places)), 0);
    assert_eq!(world.hosts[0].ram.bytes[0x8000..0x8018], [[1; 8], [0; 8], [0; 8]].concat());
    assert_eq!(world.count(0, Reason::UbUnknownChannel), 1);
    assert_eq!(world.with(0, |node, env| node.on_run(env, peer, &run, places)), 2, "its own packets");
    assert_eq!(world.hosts[0].ram.bytes[0x8000..0x8018], [[1; 8], [9; 8], [17; 8]].concat());
}

#[test]
fn loads_of_peers_with_one_cna_have_numbers_of_their_own() {
    let mut world = World::new(3, 1 << 16, 3, like_host_1);
    let tags = [1, 2].map(|host| {
        world.hosts[host].ram.bytes[..8].fill(10 + host as u8);
        let segment = world.import_shown(0, host);
        let kind = burst_urma::AccessKind::Load { len: 8 };
        (host, world.hosts[0].node.begin_access(segment, RAM_BASE, kind).expect("room"))
    });
    let invented =
        RemoteSegment { eid: NodeEid::numbered(98 << 24 | 2), token_id: 1, addr: 0, len: 64, token: Some(1) };
    let invented = world.hosts[0].node.import_segment(invented).expect("room");
    let load = burst_urma::AccessKind::Load { len: 8 };
    let silent = world.hosts[0].node.begin_access(invented, 0, load).expect("room");
    world.run_for(Nanos(1_000_000));
    for (host, tag) in tags {
        let outcome = world.hosts[0].node.take_access(tag).expect("an answer");
        assert_eq!((outcome.status, outcome.bytes[0]), (CrStatus::Success, 10 + host as u8));
    }
    assert!(world.hosts[0].node.take_access(silent).is_none());
}
