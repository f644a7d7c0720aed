//! The 15 cases of order (specification notes 4.2), each by its number, between whole nodes. Cases 3 to 6 are also tests of the
//! tracker in `src/sequence.rs`.

use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, NextLayer, OrderTag, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbPacket, UbStatus};
use burst_urma::{CrStatus, JettyConfig, JfsWr, TransMode, UrmaError};
use std::cell::RefCell;
use std::rc::Rc;

const DELAY: Nanos = Nanos(1_000);
const SECOND: Nanos = Nanos(1_000_000_000);
use OrderTag::{None as No, Relaxed, Strong};

/// A Jetty on host 0, with the memory of host 1.
struct Line {
    world: World,
    jfc: u32,
    jetty: u32,
    segment: u32,
    target: u32,
    jfc_there: u32,
    jfr_there: u32,
}

fn line(service: ServiceMode) -> Line {
    let mut world = World::new(2, 1 << 16, 3, |_| ());
    let jfc = world.jfc(0);
    let mode = if service == ServiceMode::Uno { TransMode::Um } else { TransMode::Rm };
    let jetty = world.jetty(0, JettyConfig { service, mode, ..JettyConfig::new(jfc, None) });
    let (jfc_there, segment) = (world.jfc(1), world.import_all(0, 1));
    let jfr_there = world.jfr(1, jfc_there);
    let there = world.jetty(1, JettyConfig { service, mode, ..JettyConfig::new(jfc_there, Some(jfr_there)) });
    let target = world.import_jetty(0, 1, there);
    Line { world, jfc, jetty, segment, target, jfc_there, jfr_there }
}

impl Line {
    fn wr(&self, opcode: TaOpcode, order: OrderTag, user_ctx: u64) -> JfsWr {
        JfsWr {
            segment: Some(self.segment),
            target: Some(self.target),
            remote_addr: RAM_BASE,
            order,
            ..JfsWr::new(opcode, self.world.data(0, 0, 8), user_ctx)
        }
    }
    fn post(&mut self, wr: JfsWr) {
        self.world.post(0, self.jetty, wr).expect("accepted");
    }
    fn write(&mut self, order: OrderTag, user_ctx: u64) {
        let wr = self.wr(TaOpcode::Write, order, user_ctx);
        self.post(wr);
    }
    /// A finished request, so that the channel is open; and in ROT and ROL the context, too.
    fn warm_up(&mut self) {
        self.write(Strong, 1000);
        // Not so long that the channel asks again before it sends.
        self.world.run_for(Nanos::from_ms(100));
        assert_eq!(self.finished(), [1000]);
        self.world.hosts[1].log.executed.clear();
    }
    /// User contexts of new completions, all successful.
    fn finished(&mut self) -> Vec<u64> {
        let crs = self.world.poll(0, self.jfc);
        assert!(crs.iter().all(|cr| cr.status == CrStatus::Success), "{crs:?}");
        crs.iter().map(|cr| cr.user_ctx).collect()
    }
    /// TASSNs in the order of execution at host 1, counted from `first`.
    fn executed(&self, first: u16) -> Vec<u16> {
        self.world.hosts[1].log.executed.iter().map(|e| e.2 - first).collect()
    }
    /// Records request packets that leave host 0: TASSN. `hold` drops a packet the first time it is sent.
    fn watch(&mut self, hold: &[u16]) -> Rc<RefCell<Vec<u16>>> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (log, mut hold) = (seen.clone(), hold.to_vec());
        self.world.filter = Some(Box::new(move |from, _, bytes| {
            let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
            let Some(TaHeader::Request(request)) = packet.head.ta else { return false };
            if from != 0 || request.base.opcode == TaOpcode::Management {
                return false;
            }
            let tassn = request.base.tassn;
            log.borrow_mut().push(tassn);
            let is_held = hold.contains(&tassn);
            hold.retain(|held| *held != tassn);
            is_held
        }));
        seen
    }
    /// Sends what may be sent at this moment.
    fn now(&mut self) {
        self.world.transmit();
    }
    fn round_trip(&mut self) {
        self.world.run_for(Nanos(2 * DELAY.0 + 1));
    }
}

#[test]
fn case_01_roi_holds_a_strong_request_until_the_relaxed_one_is_answered() {
    let mut l = line(ServiceMode::Roi);
    l.warm_up();
    let seen = l.watch(&[]);
    for (i, order) in [No, Relaxed, Strong].into_iter().enumerate() {
        l.write(order, i as u64);
    }
    l.now();
    assert_eq!(*seen.borrow(), [1, 2]);
    l.round_trip();
    assert_eq!(*seen.borrow(), [1, 2, 3]);
}

#[test]
fn case_02_a_strong_request_waits_for_all_earlier_relaxed_ones() {
    for count in 0..=4u16 {
        let mut l = line(ServiceMode::Roi);
        l.warm_up();
        // The last relaxed request is lost once: until it is repeated, the strong one may not leave.
        let seen = l.watch(&[count]);
        for i in 0..count {
            l.write(Relaxed, u64::from(i));
        }
        l.write(Strong, 99);
        l.now();
        let all: Vec<u16> = (1..=count).collect();
        if count == 0 {
            assert_eq!(*seen.borrow(), [1]);
            continue;
        }
        assert_eq!(*seen.borrow(), all);
        l.round_trip();
        assert_eq!(*seen.borrow(), all, "{count}: one is not answered");
        l.world.run_for(SECOND);
        assert_eq!(seen.borrow().last(), Some(&(count + 1)));
        assert_eq!(l.executed(0).last(), Some(&(count + 1)));
    }
}

#[test]
fn case_03_rot_executes_strong_requests_in_order_although_one_arrives_late() {
    let mut l = line(ServiceMode::Rot);
    l.warm_up();
    let seen = l.watch(&[2]);
    for i in 0..3 {
        l.write(Strong, i);
    }
    l.now();
    assert_eq!(*seen.borrow(), [1, 2, 3], "all leave at once");
    l.round_trip();
    assert_eq!(l.executed(1), [0]);
    l.world.run_for(SECOND);
    assert_eq!(l.executed(1), [0, 1, 2]);
    assert_eq!(l.finished(), [0, 1, 2]);
    l.world.assert_drained();
}

#[test]
fn case_03_rot_a_read_whose_answer_is_repeated_does_not_see_a_later_strong_write() {
    for service in [ServiceMode::Rot, ServiceMode::Rol] {
        let mut l = line(service);
        l.warm_up();
        let mut losses = 0;
        l.world.filter = Some(Box::new(move |from, _, bytes| {
            let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
            let is_data = matches!(packet.head.ta, Some(TaHeader::Response(r)) if r.opcode == TaOpcode::ReadResponse);
            losses += u32::from(is_data);
            from == 1 && is_data && losses <= 2
        }));
        l.world.hosts[1].ram.bytes[..8].copy_from_slice(b"earlier.");
        l.world.hosts[0].ram.bytes[100..108].copy_from_slice(b"..later!");
        let read = l.wr(TaOpcode::Read, Strong, 0);
        let write = JfsWr { data: l.world.data(0, 100, 8), ..l.wr(TaOpcode::Write, Strong, 1) };
        l.post(read);
        l.post(write);
        l.world.run_for(SECOND);
        assert_eq!(l.finished(), [0, 1]);
        assert_eq!(
            (&l.world.hosts[0].ram.bytes[..8], &l.world.hosts[1].ram.bytes[..8]),
            (&b"earlier."[..], &b"..later!"[..])
        );
    }
}

#[test]
fn case_04_rot_executes_strong_requests_around_one_without_order() {
    let mut l = line(ServiceMode::Rot);
    l.warm_up();
    // Even if the request without order is lost.
    l.watch(&[2]);
    for (i, order) in [Strong, No, Strong].into_iter().enumerate() {
        l.write(order, i as u64);
    }
    l.round_trip();
    assert_eq!(l.executed(1), [0, 2]);
    l.world.run_for(SECOND);
    assert_eq!(l.executed(1), [0, 2, 1]);
}

#[test]
fn case_05_rot_a_relaxed_request_that_overtakes_loses_no_strong_one() {
    let mut l = line(ServiceMode::Rot);
    l.warm_up();
    l.watch(&[1, 2, 4]);
    for (i, order) in [Relaxed, Strong, Strong, Relaxed, Relaxed].into_iter().enumerate() {
        l.write(order, i as u64 + 1);
    }
    l.round_trip();
    assert_eq!(l.executed(0), [5], "3 waits for 1 and 2");
    l.world.run_for(SECOND);
    let executed = l.executed(0);
    let place = |n: u16| executed.iter().position(|e| *e == n).expect("executed");
    assert!(executed.len() == 5 && place(1) < place(2) && place(2) < place(3), "{executed:?}");
}

#[test]
fn case_06_rot_later_relaxed_requests_do_not_delay_a_strong_one() {
    let mut l = line(ServiceMode::Rot);
    l.warm_up();
    l.watch(&[3]);
    for (i, order) in [Relaxed, Strong, Relaxed, Relaxed, Relaxed].into_iter().enumerate() {
        l.write(order, i as u64 + 1);
    }
    l.round_trip();
    assert_eq!(l.executed(0), [1, 2, 4, 5], "2 does not wait for 3, which is lost");
}

#[test]
fn case_07_a_fence_waits_for_earlier_reads_and_holds_what_is_behind() {
    let mut l = line(ServiceMode::Roi);
    l.warm_up();
    let seen = l.watch(&[]);
    let read = l.wr(TaOpcode::Read, No, 0);
    let fenced = JfsWr { fence: true, ..l.wr(TaOpcode::Write, No, 1) };
    l.post(read);
    l.post(fenced);
    l.post(read);
    l.now();
    assert_eq!(*seen.borrow(), [1]);
    l.round_trip();
    assert_eq!(*seen.borrow(), [1, 2, 3]);
}

#[test]
fn case_08_requests_without_order_pass_a_strong_one_and_a_fence_waits() {
    let mut l = line(ServiceMode::Roi);
    l.warm_up();
    // The first write is lost, so that the strong one waits until it comes again.
    let seen = l.watch(&[1]);
    l.write(Relaxed, 0);
    l.write(Strong, 1);
    let read = l.wr(TaOpcode::Read, No, 2);
    let fenced = JfsWr { fence: true, ..l.wr(TaOpcode::Write, No, 3) };
    l.post(read);
    l.post(fenced);
    l.post(read);
    l.now();
    assert_eq!(*seen.borrow(), [1, 3], "1 waits, 2 goes first, 3 waits for 2, 4 behind 3");
    l.round_trip();
    assert_eq!(*seen.borrow(), [1, 3, 1, 4, 5], "2 is answered, so 1 goes again");
    l.world.run_for(SECOND);
    assert_eq!(seen.borrow().last(), Some(&2));
    assert_eq!(l.executed(0).len(), 5);
}

#[test]
fn case_09_completions_are_in_posting_order_if_asked_for() {
    for (bits, expected) in [([true; 3], [0, 1, 2]), ([false; 3], [2, 0, 1])] {
        let mut l = line(ServiceMode::Roi);
        l.warm_up();
        // Answers come in the order 2, 0, 1: the packets of 0 and 1 are lost once.
        let seen = l.watch(&[1, 2]);
        for (i, bit) in bits.into_iter().enumerate() {
            let wr = JfsWr { completion_order: bit, ..l.wr(TaOpcode::Write, No, i as u64) };
            l.post(wr);
        }
        l.world.run_for(SECOND);
        assert_eq!(l.executed(1), [2, 0, 1]);
        assert_eq!(l.finished(), expected, "{:?}", seen.borrow());
    }
}

#[test]
fn case_10_a_completion_without_the_bit_does_not_stop_those_with_it() {
    let mut l = line(ServiceMode::Roi);
    l.warm_up();
    for (i, bit) in [true, false, true].into_iter().enumerate() {
        let wr = JfsWr { completion_order: bit, ..l.wr(TaOpcode::Write, No, i as u64) };
        l.post(wr);
    }
    l.world.run_for(SECOND);
    assert_eq!(l.finished(), [0, 1, 2]);
}

#[test]
fn case_11_a_jetty_that_waits_does_not_hold_another_one() {
    let mut l = line(ServiceMode::Roi);
    l.warm_up();
    let jfc = l.jfc;
    let uno = JettyConfig { mode: TransMode::Um, service: ServiceMode::Uno, ..JettyConfig::new(jfc, None) };
    let other = l.world.jetty(0, uno);
    let count = Rc::new(RefCell::new(0));
    let counter = count.clone();
    l.world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        *counter.borrow_mut() += u32::from(from == 0 && packet.head.nth.next == NextLayer::Unreliable);
        // Nothing of the first Jetty arrives, so that its strong request waits for ever.
        from == 0 && packet.head.nth.next == NextLayer::Reliable
    }));
    l.write(Relaxed, 0);
    l.write(Strong, 1);
    for i in 0..8 {
        let wr = l.wr(TaOpcode::Write, No, 10 + i);
        l.world.post(0, other, wr).expect("accepted");
    }
    l.now();
    assert_eq!(*count.borrow(), 8);
    assert_eq!(l.finished(), (10..18).collect::<Vec<_>>());
}

#[test]
fn case_12_rol_answers_each_request_by_one_packet() {
    let mut l = line(ServiceMode::Rol);
    l.warm_up();
    let answers = Rc::new(RefCell::new(Vec::new()));
    let log = answers.clone();
    l.world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        if from == 1 {
            let rtph = packet.head.rtph.expect("reliable");
            assert!(matches!(rtph.opcode, TpOpcode::Ack { .. }) && rtph.status.status == UbStatus::FUSED);
            let Some(TaHeader::Response(atah)) = packet.head.ta else { panic!("carries the transaction's answer") };
            log.borrow_mut().push(atah.tassn);
        }
        false
    }));
    for i in 0..5 {
        l.write(No, i);
    }
    l.world.run_for(SECOND);
    assert_eq!(*answers.borrow(), [1, 2, 3, 4, 5]);
    assert_eq!((l.finished(), l.executed(1)), ((0..5).collect(), (0..5).collect()));
}

#[test]
fn case_13_uno_is_not_answered_and_loss_is_silent() {
    let mut l = line(ServiceMode::Uno);
    l.world.recv(1, l.jfr_there, 100, 8, 5);
    let sent_back = Rc::new(RefCell::new(0));
    let (counter, mut sends) = (sent_back.clone(), 0);
    l.world.filter = Some(Box::new(move |from, _, _| {
        *counter.borrow_mut() += u32::from(from == 1);
        sends += 1;
        sends == 1
    }));
    for i in 0..3 {
        let wr = l.wr(TaOpcode::Send, No, i);
        l.post(wr);
    }
    l.world.run_for(SECOND);
    assert_eq!(l.finished(), [0, 1, 2]);
    assert_eq!(l.world.poll(1, l.jfc_there).len(), 1, "one is lost, one finds no receive");
    assert_eq!((*sent_back.borrow(), l.world.count(1, Reason::UbUnreliableLost)), (0, 1));
}

#[test]
fn case_14_order_is_refused_where_it_is_not_offered() {
    let mut l = line(ServiceMode::Uno);
    let (jfc, plain) = (l.jfc, l.wr(TaOpcode::Write, No, 0));
    let outorder = l.world.jetty(0, JettyConfig { outorder_comp: true, ..JettyConfig::new(jfc, None) });
    for jetty in [l.jetty, outorder] {
        for wr in [
            JfsWr { order: Relaxed, ..plain },
            JfsWr { order: Strong, ..plain },
            JfsWr { fence: true, ..plain },
            JfsWr { completion_order: true, ..plain },
        ] {
            assert_eq!(l.world.post(0, jetty, wr), Err(UrmaError::Unsupported));
        }
        l.world.post(0, jetty, plain).expect("without order");
    }
    for (mode, service) in
        [(TransMode::Um, ServiceMode::Roi), (TransMode::Rm, ServiceMode::Uno), (TransMode::Rc, ServiceMode::Uno)]
    {
        let config = JettyConfig { mode, service, ..JettyConfig::new(jfc, None) };
        assert_eq!(l.world.hosts[0].node.create_jetty(config), Err(UrmaError::Unsupported));
    }
}

#[test]
fn case_15_a_lost_packet_holds_only_its_own_request() {
    for service in [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol] {
        let mut l = line(service);
        l.warm_up();
        let jfc = l.jfc;
        let other = l.world.jetty(0, JettyConfig::new(jfc, None));
        let first = l.jetty;
        let mut is_lost = false;
        l.world.filter = Some(Box::new(move |from, _, bytes| {
            let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
            let is_first = matches!(packet.head.ta, Some(TaHeader::Request(r)) if r.base.rc_id == first);
            let drop = from == 0 && is_first && !is_lost;
            is_lost |= drop;
            drop
        }));
        l.write(Strong, 0);
        for i in 1..5 {
            let wr = l.wr(TaOpcode::Write, if i % 2 == 0 { Relaxed } else { No }, i);
            l.world.post(0, other, wr).expect("accepted");
        }
        l.round_trip();
        assert_eq!(l.finished(), [1, 2, 3, 4], "{service:?}");
        l.world.run_for(SECOND);
        assert_eq!(l.finished(), [0]);
        l.world.assert_drained();
    }
}

#[test]
fn a_late_end_of_a_former_context_does_not_end_the_present_one() {
    let mut world = World::new(3, 1 << 16, 1, |_| ());
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { service: ServiceMode::Rot, ..JettyConfig::new(jfc, None) });
    let segments = [world.import_all(0, 1), world.import_all(0, 2)];
    world.filter = Some(Box::new(|from, _, bytes| {
        let head = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet").head;
        from == 0 && matches!(head.ta, Some(TaHeader::Request(r)) if r.base.opcode == TaOpcode::DisconnectContext)
    }));
    let order = |world: &mut World, peer: usize| {
        let wr = JfsWr { order: OrderTag::Strong, ..crate::common::forge::write(world, 0, segments[peer - 1], 0, 8) };
        world.post_sound(0, jetty, wr);
        world.run_for(Nanos(100_000));
    };
    // The third context at host 1 has the place of the first one, whose end is still on its way.
    for peer in [1, 2, 1, 2, 1] {
        order(&mut world, peer);
    }
    world.filter = None;
    world.run_for(Nanos(50_000_000));
    for _ in 0..2 {
        order(&mut world, 1);
    }
    let statuses: Vec<CrStatus> = world.poll(0, jfc).iter().map(|cr| cr.status).collect();
    assert_eq!(statuses, [CrStatus::Success; 7]);
}
