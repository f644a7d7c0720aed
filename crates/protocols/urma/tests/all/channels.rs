//! Channels that open late, are busy for long, or whose peer has gone.

use crate::common::forge::write;
use crate::common::*;
use burst_base::Nanos;
use burst_ubwire::{Dialect, OrderTag, TaOpcode, TpOpcode, UbPacket};
use burst_urma::{CrStatus, JettyConfig, JettyState, JfrState, JfsWr, NodeEid};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn the_timers_of_a_busy_channel_do_not_grow() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    world.weather = Weather { loss: 50_000, ns_per_kb: 800, delay: Nanos(20_000), ..FAIR };
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { depth: 1024, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let mut outstanding = 0;
    for _ in 0..200_000 {
        while outstanding < 200 {
            let wr = write(&world, 0, segment, 0, 8000);
            world.post_sound(0, jetty, wr);
            outstanding += 1;
        }
        world.step(Nanos::NEVER);
        outstanding -= world.poll(0, jfc).len();
    }
    let bytes = world.hosts[0].node.state().channel_bytes;
    assert!(bytes < 12_000, "{bytes} bytes for one channel and its timers");
}

#[test]
fn a_peer_that_dies_before_its_answer_is_noticed() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 0, 8);
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(1_000_000));
    assert_eq!(world.poll(0, jfc0).len(), 1);
    // Host 1 acknowledges the packet and dies before its answer leaves.
    world.filter = Some(Box::new(|from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        from == 1 && packet.head.rtph.is_none_or(|r| r.opcode == TpOpcode::Data)
    }));
    let wr = write(&world, 0, segment, 0, 8);
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(100_000));
    world.filter = Some(Box::new(|_, _, _| true));
    world.run_for(Nanos(3_600_000_000_000));
    let crs = world.poll(0, jfc0);
    assert_eq!(crs.len(), 1, "an outcome within an hour");
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_message_keeps_no_receive_queue() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { jfr, jetty: to, target } = world.receiver();
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    world.recv(1, jfr, 0, 20_000, 1);
    let mut count = 0;
    world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        count += usize::from(from == 0 && packet.head.rtph.is_some());
        from == 0 && count > 1
    }));
    let wr = JfsWr { target: Some(target), ..JfsWr::new(TaOpcode::Send, world.data(0, 0, 20_000), 1) };
    world.post(0, jetty, wr).expect("accepted");
    world.run_for(Nanos(60_000_000_000));
    world.filter = Some(Box::new(|_, _, _| true));
    world.run_for(Nanos(3_600_000_000_000));
    world.with(1, |node, env| node.modify_jetty(to, JettyState::Error, env.fx)).expect("ready");
    world.with(1, |node, env| node.modify_jfr(jfr, JfrState::Error, env.fx)).expect("ready");
    assert_eq!(world.hosts[1].node.delete_jetty(to), Ok(()));
    assert_eq!(world.hosts[1].node.delete_jfr(jfr), Ok(()));
}

#[test]
fn a_late_request_of_a_former_channel_does_not_spoil_the_new_one() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let (jfc0, jfc1) = (world.jfc(0), world.jfc(1));
    let jetty0 = world.jetty(0, JettyConfig::new(jfc0, None));
    let jetty1 = world.jetty(1, JettyConfig::new(jfc1, None));
    let (s0, s1) = (world.import_all(0, 1), world.import_all(1, 0));
    let saved: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copy = saved.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        if from == 1 && UbPacket::parse(bytes, &Dialect::BURST).is_ok_and(|p| p.head.rtph.is_none()) {
            copy.borrow_mut().push(bytes.to_vec());
        }
        false
    }));
    // Host 1 opens the channel; the network keeps a copy of its REQUEST.
    let wr = write(&world, 1, s1, 0, 8);
    world.post_sound(1, jetty1, wr);
    world.run_for(Nanos(1_000_000));
    world.filter = None;
    let late = saved.borrow()[0].clone();
    // Host 0 ends the channel and asks for another one; the copy arrives before the answer.
    world.hosts[0].node.end_channel(NodeEid::numbered(2));
    let wr = write(&world, 0, s0, 0, 8);
    world.post_sound(0, jetty0, wr);
    world.transmit();
    world.with(0, |node, env| node.on_packet(env, crate::common::sender(&late), &late));
    world.run_for(Nanos(5_000_000_000));
    let crs = world.poll(0, jfc0);
    assert_eq!(crs.iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success]);
}

#[test]
fn a_request_that_waited_for_others_when_the_peer_restarted_reaches_the_new_peer() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    let segment = world.import_all(0, 1);
    let wr = JfsWr { order: OrderTag::Strong, ..write(&world, 0, segment, 0, 8) };
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(1_000_000));
    // The first one is sent and the second one waits for it when host 1 restarts and asks for a channel.
    world.filter = Some(Box::new(|from, _, _| from == 0));
    world.post_sound(0, jetty, wr);
    world.post_sound(0, jetty, wr);
    world.transmit();
    world.filter = None;
    world.restart(1, |config| config.incarnation = 5000);
    let jfc1 = world.jfc(1);
    let jetty1 = world.jetty(1, JettyConfig::new(jfc1, None));
    let back = world.import_all(1, 0);
    let wr = write(&world, 1, back, 0, 8);
    world.post_sound(1, jetty1, wr);
    world.run_for(Nanos(1_000_000));
    let statuses = |crs: Vec<burst_urma::CompletionRecord>| crs.iter().map(|cr| cr.status).collect::<Vec<_>>();
    let own = world.poll(0, jfc0);
    assert_eq!(statuses(own), [CrStatus::Success, CrStatus::AckTimeout, CrStatus::Success]);
    let theirs = world.poll(1, jfc1);
    assert_eq!(statuses(theirs), [CrStatus::Success]);
}

#[test]
fn a_node_whose_clock_went_back_is_heard() {
    let mut world = World::new(2, 1 << 16, 1, |c| c.incarnation = 1000);
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 0, 8);
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(1_000_000));
    // Host 0 restarts; its clock was set back a second meanwhile.
    world.restart(0, |config| config.incarnation = 900);
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    let segment = world.import_all(0, 1);
    for _ in 0..3 {
        let wr = write(&world, 0, segment, 0, 8);
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(600_000_000_000));
    }
    let wr = write(&world, 0, segment, 0, 8);
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(600_000_000_000));
    assert_eq!(world.poll(0, jfc0)[0].status, CrStatus::Success);
}

#[test]
fn tools_see_objects_and_channels_in_every_state() {
    let mut world = World::new(3, 1 << 16, 1, |_| ());
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segments = [world.import_all(0, 1), world.import_all(0, 2)];
    let peers = [NodeEid::numbered(2), NodeEid::numbered(3)];
    let before = world.hosts[0].node.object_counts();
    assert_eq!((before.jetties, before.jfrs, before.jfcs, before.segments, before.requests), (1, 0, 1, 1, 0));
    assert_eq!(world.hosts[0].node.channels_from(NodeEid::UNSPECIFIED).count(), 0);
    for segment in segments {
        let wr = write(&world, 0, segment, 0, 8);
        world.post_sound(0, jetty, wr);
    }
    let node = &world.hosts[0].node;
    let opening: Vec<_> = node.channels_from(NodeEid::UNSPECIFIED).collect();
    assert_eq!(opening.iter().map(|c| c.peer).collect::<Vec<_>>(), peers, "in order");
    assert!(opening.iter().all(|c| !c.is_open && (c.packets, c.peer_tpn) == (0, 0)), "{opening:?}");
    assert_eq!(node.object_counts().requests, 2);
    assert_eq!(node.channels_from(peers[1]).count(), 1, "a page begins at a peer");
    world.run_for(Nanos(1_000_000));
    let wr = write(&world, 0, segments[0], 0, 8000);
    world.post_sound(0, jetty, wr);
    world.transmit();
    let open: Vec<_> = world.hosts[0].node.channels_from(NodeEid::UNSPECIFIED).collect();
    assert!(open.iter().all(|c| c.is_open && c.peer_tpn != 0 && c.srtt > Nanos(0)), "{open:?}");
    let mtu = usize::from(world.hosts[0].node.mtu());
    assert_eq!((open[0].packets, open[0].bytes, open[0].unanswered), (8000usize.div_ceil(mtu), 8000, 1));
    assert_eq!((open[1].packets, open[1].bytes, open[1].unanswered), (0, 0, 0));
    world.run_for(Nanos(1_000_000));
    assert_eq!(world.hosts[0].node.channels_from(NodeEid::UNSPECIFIED).map(|c| c.packets).sum::<usize>(), 0);
}

/// Packets of 1 KiB that hosts 1 and 2 are to get, each by a channel of its own: the order in which they leave host 0.
fn order_of_two_channels(packets: [u32; 2]) -> Vec<usize> {
    let mut world = World::new(3, 1 << 18, 1, |c| (c.mtu, c.caqm, c.window_max) = (1024, false, 1 << 20));
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segments = [world.import_all(0, 1), world.import_all(0, 2)];
    for segment in segments {
        let wr = write(&world, 0, segment, 0, 8);
        world.post_sound(0, jetty, wr);
    }
    world.run_for(Nanos(1_000_000));
    let order: Rc<RefCell<Vec<usize>>> = Rc::default();
    let copy = order.clone();
    world.filter = Some(Box::new(move |_, dest, _| {
        copy.borrow_mut().push(dest);
        false
    }));
    for (segment, packets) in segments.into_iter().zip(packets) {
        let wr = write(&world, 0, segment, 0, packets * 1024);
        world.post_sound(0, jetty, wr);
    }
    world.transmit();
    order.take()
}

fn runs(runs: &[(usize, usize)]) -> Vec<usize> {
    runs.iter().flat_map(|(dest, packets)| vec![*dest; *packets]).collect()
}

#[test]
fn channels_take_turns_of_sixteen_packets() {
    let order = order_of_two_channels([40, 33]);
    assert_eq!(order, runs(&[(1, 16), (2, 16), (1, 16), (2, 16), (1, 8), (2, 1)]));
}

#[test]
fn the_turn_after_a_short_one_is_whole() {
    assert_eq!(order_of_two_channels([10, 40]), runs(&[(1, 10), (2, 40)]));
    assert_eq!(order_of_two_channels([26, 40]), runs(&[(1, 16), (2, 16), (1, 10), (2, 24)]));
}

#[test]
fn a_channel_that_fails_takes_its_turn_with_it() {
    let mut world = World::new(3, 1 << 18, 1, |c| (c.mtu, c.caqm, c.window_max) = (1024, false, 1 << 20));
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segments = [world.import_all(0, 1), world.import_all(0, 2)];
    for packets in [1, 40] {
        for segment in segments {
            let wr = write(&world, 0, segment, 0, packets * 1024);
            world.post_sound(0, jetty, wr);
        }
        if packets == 1 {
            world.run_for(Nanos(1_000_000));
        }
    }
    let mut buffer = vec![0; 16384];
    let mut dests = Vec::new();
    let mut send = |world: &mut World, packets: usize| {
        for _ in 0..packets {
            let sent = world.with(0, |node, env| node.poll_tx(env, &mut buffer)).expect("a packet");
            dests.push(sent.dest.cna().get() as usize - 1);
        }
    };
    send(&mut world, 16 + 10);
    world.hosts[0].node.end_channel(NodeEid::numbered(3));
    send(&mut world, 16);
    assert_eq!(dests, runs(&[(1, 16), (2, 10), (1, 16)]));
}
