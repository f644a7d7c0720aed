//! Full pools: what one peer takes leaves room for the others, and a request for which there is none is sent again.

use crate::common::forge::{deliver, open_and_cut, packet, write, write_request};
use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Cna, Dialect, Maetah, OrderTag, RC_TYPE_CONTEXT, ServiceMode, TaHeader, TaOpcode, UbPacket};
use burst_urma::{CrStatus, JettyConfig, JfsWr, NodeEid};
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn one_greedy_reader_ends_no_channel() {
    // Scaled down: at most 64 responses; by default 16384 with 65536 requests.
    let mut world = World::new(3, 1 << 17, 1, |c| (c.inbound_max, c.responses_max) = (16, 64));
    world.weather.ns_per_kb = 80_000; // 100 Mbit/s
    let jfc: Vec<u32> = (0..3).map(|h| world.jfc(h)).collect();
    let greedy = world.jetty(0, JettyConfig { depth: 4096, ..JettyConfig::new(jfc[0], None) });
    let honest = world.jetty(1, JettyConfig::new(jfc[1], None));
    let (s0, s1) = (world.import_all(0, 2), world.import_all(1, 2));
    for i in 0..300 {
        let wr = JfsWr {
            segment: Some(s0),
            remote_addr: RAM_BASE,
            ..JfsWr::new(TaOpcode::Read, world.data(0, 0, 1 << 17), i)
        };
        world.post(0, greedy, wr).expect("accepted");
    }
    world.run_for(Nanos(50_000_000));
    let wr = write(&world, 1, s1, 0, 8);
    world.post(1, honest, wr).expect("accepted");
    world.run_for(Nanos(5_000_000_000));
    let (a, b) = (world.poll(0, jfc[0]), world.poll(1, jfc[1]));
    let bad = a.iter().filter(|cr| cr.status != CrStatus::Success).count();
    assert_eq!(b.first().map(|cr| cr.status), Some(CrStatus::Success));
    assert_eq!((a.len(), bad), (300, 0));
}

#[test]
fn two_hosts_that_read_from_each_other_do_not_stop_each_other() {
    let mut world = World::new(2, 1 << 16, 1, |c| (c.inbound_max, c.responses_max) = (16, 64));
    world.weather.ns_per_kb = 800;
    let jfc: Vec<u32> = (0..2).map(|h| world.jfc(h)).collect();
    let jetty: Vec<u32> =
        (0..2).map(|h| world.jetty(h, JettyConfig { depth: 4096, ..JettyConfig::new(jfc[h], None) })).collect();
    let s = [world.import_all(0, 1), world.import_all(1, 0)];
    for i in 0..600 {
        for h in 0..2 {
            let wr = JfsWr {
                segment: Some(s[h]),
                remote_addr: RAM_BASE,
                ..JfsWr::new(TaOpcode::Read, world.data(h, 0, 1 << 16), i)
            };
            world.post(h, jetty[h], wr).expect("accepted");
        }
    }
    world.run_for(Nanos(6_000_000_000));
    for (h, jfc) in jfc.into_iter().enumerate() {
        let a = world.poll(h, jfc);
        let bad = a.iter().filter(|cr| cr.status != CrStatus::Success).count();
        assert_eq!((a.len(), bad), (600, 0));
    }
}

#[test]
fn incomplete_messages_of_one_peer_do_not_stop_those_of_others() {
    let mut world = World::new(3, 1 << 16, 1, |_| ());
    let known = open_and_cut(&mut world);
    let memory = Maetah { addr: RAM_BASE, token_id: world.hosts[0].all, len: 24 };
    for n in 1..=4096 {
        let first = TaHeader::Request(write_request(ServiceMode::Roi, memory, 0));
        deliver(&mut world, &packet(&known, n, (n + 100, false), first, &[1; 8]));
    }
    let jfc = world.jfc(2);
    let jetty = world.jetty(2, JettyConfig::new(jfc, None));
    let segment = world.import_all(2, 0);
    let wr = write(&world, 2, segment, 0, 20_000);
    world.post(2, jetty, wr).expect("accepted");
    world.run_for(Nanos(10_000_000));
    assert_eq!(world.poll(2, jfc).iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success]);
}

#[test]
fn a_jetty_of_a_peer_has_one_context_and_a_peer_half_of_them() {
    for (jetties, contexts) in [(1, 1), (4200, 2048)] {
        let mut world = World::new(2, 1 << 12, 1, |_| ());
        let known = open_and_cut(&mut world);
        let memory = Maetah { addr: RAM_BASE, token_id: world.hosts[0].all, len: 8 };
        for n in 1..=4200 {
            let mut request = write_request(ServiceMode::Rot, memory, 0);
            (request.base.alloc, request.base.rc_id) = (true, 1024 + n % jetties);
            deliver(&mut world, &packet(&known, n, (n + 100, true), TaHeader::Request(request), &[1; 8]));
        }
        assert_eq!(world.hosts[0].node.state().contexts, contexts);
    }
}

#[test]
fn a_full_order_buffer_does_not_count_as_receiver_not_ready() {
    let mut world = World::new(2, 1 << 16, 1, |c| c.inbound_max = 4);
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { service: ServiceMode::Rot, rnr_retry: 0, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let strong = |world: &World| JfsWr { order: OrderTag::Strong, ..write(world, 0, segment, 0, 8) };
    let wr = strong(&world);
    world.post(0, jetty, wr).expect("accepted");
    world.run_for(Nanos(1_000_000));
    let mut dropped = false;
    world.filter = Some(Box::new(move |from, _, bytes| {
        let ta = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet").head.ta;
        from == 0 && matches!(ta, Some(TaHeader::Request(_))) && !std::mem::replace(&mut dropped, true)
    }));
    for _ in 0..20 {
        let wr = strong(&world);
        world.post(0, jetty, wr).expect("accepted");
    }
    world.run_for(Nanos(1_000_000_000));
    let crs: Vec<_> = world.poll(0, jfc).iter().map(|cr| cr.status).collect();
    assert!(crs.iter().all(|s| *s == CrStatus::Success));
}

/// Delivers the first REQUEST of host 1 to host 0 as it would come from another address. Host 1 posts a write, by which it asks.
fn open_requests(world: &mut World) -> impl Fn(&mut World, u32) + use<> {
    let seen: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copy = seen.clone();
    world.filter = Some(Box::new(move |from, _, bytes| {
        let is_request = from == 1 && copy.borrow().is_empty();
        if is_request {
            copy.borrow_mut().push(bytes.to_vec());
        }
        is_request
    }));
    let jfc = world.jfc(1);
    let jetty = world.jetty(1, JettyConfig::new(jfc, None));
    let segment = world.import_all(1, 0);
    let wr = write(world, 1, segment, 0, 8);
    world.post(1, jetty, wr).expect("accepted");
    world.transmit();
    world.filter = None;
    move |world, source| {
        let mut bytes = seen.borrow()[0].clone();
        let mut head = UbPacket::parse(&bytes, &Dialect::BURST).expect("a packet").head;
        head.nth.source = Cna::new(source);
        head.emit(&Dialect::BURST, &mut bytes);
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
    }
}

#[test]
fn channels_that_carry_nothing_make_room_for_others() {
    let mut world = World::new(2, 1 << 12, 1, |config| config.channels_max = 4);
    let request_from = open_requests(&mut world);
    // REQUESTs of addresses at which nobody is.
    for source in 100..110 {
        request_from(&mut world, source);
        assert!(world.hosts[0].node.state().channels <= 4);
    }
    while world.with(0, |node, env| node.poll_tx(env, &mut [0; 16384])).is_some() {}
    world.run_for(Nanos(10_000_000));
    assert_eq!(world.poll(1, 0).iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success]);
}

#[test]
fn a_request_that_finds_the_table_full_costs_the_same_however_long_it_is() {
    let steps = |channels: u32| {
        let mut world = World::new(2, 1 << 12, 1, |config| config.channels_max = channels as usize);
        let request_from = open_requests(&mut world);
        let now = world.now;
        let open = |world: &mut World, peer: u32| world.hosts[0].node.open_channel(NodeEid::numbered(peer), now);
        // Others' channels, and behind them one that only a REQUEST has made.
        (0..channels - 1).for_each(|n| open(&mut world, 10_000 + n));
        request_from(&mut world, 100);
        let has = |world: &World, peer: u32| {
            let (from, peer) = (&world.hosts[0].node, NodeEid::numbered(peer));
            from.channels_from(peer).next().is_some_and(|channel| channel.peer == peer)
        };
        assert!(has(&world, 100));
        let (mut most, mut asked) = (0, 0);
        while !has(&world, 101) {
            let before = world.hosts[0].node.timer_steps();
            request_from(&mut world, 101);
            most = most.max(world.hosts[0].node.timer_steps() - before);
            asked += 1;
            assert!(asked <= channels, "a peer that asks again gets the place");
        }
        assert!(!has(&world, 100));
        most
    };
    let (few, many) = (steps(256), steps(1024));
    assert!(few > 0 && few == many, "{few} steps with 256 channels, {many} with 1,024");
}

/// Number in its stream of the request that a packet belongs to.
fn order_number(bytes: &[u8]) -> Option<u16> {
    match UbPacket::parse(bytes, &Dialect::BURST).expect("a packet").head.ta {
        Some(TaHeader::Request(request)) if request.base.rc_type == RC_TYPE_CONTEXT => Some(request.base.order_number),
        _ => None,
    }
}

/// A stream whose requests all come to a node with little room, each time in an order in which the one that all others wait
/// for comes last.
fn a_stream_that_arrives_with_its_oldest_last(is_read: fn(u64) -> bool) {
    let mut world = World::new(2, 1 << 16, 1, |c| (c.inbound_max, c.responses_max) = (6, 6));
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { service: ServiceMode::Rol, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let mut done = Vec::new();
    for i in 0..12 {
        let opcode = if is_read(i) { TaOpcode::Read } else { TaOpcode::Write };
        let data = world.data(0, 0, 8);
        let wr = JfsWr { segment: Some(segment), remote_addr: RAM_BASE, ..JfsWr::new(opcode, data, i) };
        world.post_sound(0, jetty, wr);
    }
    for _ in 0..600 {
        let mut flying: [Vec<Vec<u8>>; 2] = Default::default();
        for (host, sent) in flying.iter_mut().enumerate() {
            let mut out = vec![0; 16384];
            while let Some(packet) = world.with(host, |node, env| node.poll_tx(env, &mut out)) {
                sent.push(out[..packet.len].to_vec());
            }
            // Those without number first: they are not of the stream.
            sent.sort_by_key(|bytes| order_number(bytes).map(std::cmp::Reverse));
        }
        for (host, packets) in flying.iter().enumerate() {
            for bytes in packets {
                world.with(1 - host, |node, env| node.on_packet(env, crate::common::sender(bytes), bytes));
            }
        }
        (0..2).for_each(|host| world.with(host, |node, env| node.on_timer(env)));
        done.extend(world.poll(0, jfc));
        world.now = world.now + Nanos(100_000);
    }
    let done: Vec<_> = done.iter().map(|cr| (cr.user_ctx, cr.status)).collect();
    assert_eq!(done, (0..12).map(|i| (i, CrStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn refused_requests_do_not_take_the_room_of_the_one_that_they_wait_for() {
    a_stream_that_arrives_with_its_oldest_last(|_| true);
    a_stream_that_arrives_with_its_oldest_last(|i| i % 3 == 0);
    a_stream_that_arrives_with_its_oldest_last(|i| i % 3 != 0);
}

#[test]
fn a_request_that_would_wait_is_refused_without_a_place_for_a_response() {
    let mut world = World::new(2, 1 << 16, 1, |c| (c.inbound_max, c.responses_max) = (6, 6));
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { service: ServiceMode::Rol, ..JettyConfig::new(jfc, None) });
    let segment = world.import_all(0, 1);
    let data = world.data(0, 0, 8);
    let read = JfsWr { segment: Some(segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Read, data, 0) };
    world.post_sound(0, jetty, read);
    world.run_for(Nanos(1_000_000));
    (0..8).for_each(|_| world.post_sound(0, jetty, read));
    let mut out = vec![0; 16384];
    let mut packets: Vec<Vec<u8>> = std::iter::from_fn(|| {
        let sent = world.with(0, |node, env| node.poll_tx(env, &mut out))?;
        Some(out[..sent.len].to_vec())
    })
    .filter(|bytes| order_number(bytes).is_some())
    .collect();
    packets.reverse();
    let (oldest, later) = packets.split_last().expect("READs of the stream");
    assert_eq!(later.len(), 7);
    for packet in later {
        world.with(1, |node, env| node.on_packet(env, crate::common::sender(packet), packet));
    }
    let state = world.hosts[1].node.state();
    assert_eq!((state.inbound, state.responses), (2, 0), "two wait, five are refused");
    assert_eq!(world.count(1, Reason::UbOrderBufferFull), 5);
    world.with(1, |node, env| node.on_packet(env, crate::common::sender(oldest), oldest));
    assert!(world.hosts[1].node.state().responses > 0, "the oldest one is executed");
    world.run_for(Nanos(1_000_000_000));
    let done = world.poll(0, jfc);
    assert_eq!(done.iter().map(|cr| cr.status).collect::<Vec<_>>(), [CrStatus::Success; 9]);
    world.assert_drained();
}
