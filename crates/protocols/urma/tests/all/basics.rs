//! Each operation once between two hosts, in fair weather and with losses; refusals; states.

use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbPacket};
use burst_urma::{
    CrStatus, JettyConfig, JfrConfig, JfrState, JfsWr, LossRecovery, NodeEid, RemoteJetty, RemoteSegment,
    SegmentConfig, TargetKind, TransMode, UrmaError, UrmaEvent, WrData, access,
};
use std::cell::RefCell;
use std::rc::Rc;

const SECOND: Nanos = Nanos(1_000_000_000);

/// Two hosts, a Jetty on each, the second one's imported by the first one.
struct Pair {
    world: World,
    jfc: [u32; 2],
    jfr: [u32; 2],
    jetty: [u32; 2],
    target: u32,
    segment: u32,
}

fn pair(recovery: LossRecovery, change: impl Fn(&mut JettyConfig)) -> Pair {
    let mut world = World::new(2, 1 << 20, 7, |config| config.recovery = recovery);
    let jfc = [world.jfc(0), world.jfc(1)];
    let jfr = [world.jfr(0, jfc[0]), world.jfr(1, jfc[1])];
    let mut configs = [JettyConfig::new(jfc[0], Some(jfr[0])), JettyConfig::new(jfc[1], Some(jfr[1]))];
    configs.iter_mut().for_each(change);
    let jetty = [world.jetty(0, configs[0]), world.jetty(1, configs[1])];
    let target = world.import_jetty(0, 1, jetty[1]);
    let segment = world.import_all(0, 1);
    Pair { world, jfc, jfr, jetty, target, segment }
}

impl Pair {
    fn wr(&self, opcode: TaOpcode, offset: u64, len: u32, remote: u64) -> JfsWr {
        JfsWr {
            target: Some(self.target),
            segment: Some(self.segment),
            remote_addr: RAM_BASE + remote,
            ..JfsWr::new(opcode, self.world.data(0, offset, len), 77)
        }
    }
    fn fill(&mut self, host: usize, offset: usize, len: usize) {
        for i in 0..len {
            self.world.hosts[host].ram.bytes[offset + i] = (i * 7 + 3) as u8;
        }
    }
    /// Posts, runs, and returns the statuses at both ends.
    fn go(&mut self, wr: JfsWr) -> (Vec<CrStatus>, Vec<CrStatus>) {
        self.world.post(0, self.jetty[0], wr).expect("accepted");
        self.world.run_for(SECOND);
        let send = self.world.poll(0, self.jfc[0]).iter().map(|cr| cr.status).collect();
        (send, self.world.poll(1, self.jfc[1]).iter().map(|cr| cr.status).collect())
    }
}

#[test]
fn every_operation_moves_its_bytes_with_and_without_losses() {
    for recovery in [LossRecovery::Selective, LossRecovery::GoBackN] {
        for loss in [0, 50_000] {
            let mut p = pair(recovery, |_| ());
            p.world.weather.loss = loss;
            p.fill(0, 0, 100_000);
            for len in [0u32, 1, 4096, 4097, 100_000] {
                let wr = p.wr(TaOpcode::Write, 0, len, 200_000);
                assert_eq!(p.go(wr).0, [CrStatus::Success], "{recovery:?} {loss} {len}");
                let [a, b] = [&p.world.hosts[0].ram.bytes, &p.world.hosts[1].ram.bytes];
                assert_eq!(a[..len as usize], b[200_000..200_000 + len as usize]);
                p.world.recv(1, p.jfr[1], 400_000, 100_000, 5);
                let wr = p.wr(TaOpcode::Send, 0, len, 0);
                assert_eq!(p.go(wr), (vec![CrStatus::Success], vec![CrStatus::Success]));
                let [a, b] = [&p.world.hosts[0].ram.bytes, &p.world.hosts[1].ram.bytes];
                assert_eq!(a[..len as usize], b[400_000..400_000 + len as usize]);
                let wr = p.wr(TaOpcode::Read, 600_000, len, 400_000);
                assert_eq!(p.go(wr).0, [CrStatus::Success]);
                let a = &p.world.hosts[0].ram.bytes;
                assert_eq!(a[..len as usize], a[600_000..600_000 + len as usize]);
            }
            p.world.assert_drained();
        }
    }
}

#[test]
fn atomics_change_eight_bytes_and_return_the_old_value() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let cases: [(TaOpcode, u64, u64, u64, u64); 8] = [
        (TaOpcode::FetchAdd, 5, 0, 10, 15),
        (TaOpcode::FetchSub, 3, 0, 15, 12),
        (TaOpcode::Cas, 12, 99, 12, 99),
        (TaOpcode::Cas, 12, 1, 99, 99),
        (TaOpcode::Swap, 0xff, 0, 99, 0xff),
        (TaOpcode::FetchAnd, 0x0f, 0, 0xff, 0x0f),
        (TaOpcode::FetchOr, 0xf0, 0, 0x0f, 0xff),
        (TaOpcode::FetchXor, 0x01, 0, 0xff, 0xfe),
    ];
    p.world.hosts[1].ram.bytes[64] = 10;
    for (opcode, operand, swap, old, new) in cases {
        let wr = JfsWr { operand, swap, ..p.wr(opcode, 8, 8, 64) };
        assert_eq!(p.go(wr).0, [CrStatus::Success]);
        let word = |host: usize, at: usize| {
            u64::from_le_bytes(p.world.hosts[host].ram.bytes[at..at + 8].try_into().expect("eight"))
        };
        assert_eq!((word(0, 8), word(1, 64)), (old, new), "{opcode:?}");
    }
    let wr = p.wr(TaOpcode::FetchAdd, 8, 8, 65);
    assert_eq!(p.go(wr).0, [CrStatus::RemRespLen], "not aligned");
    assert_eq!(p.world.count(1, Reason::MisalignedAtomic), 1);
}

#[test]
fn immediate_data_arrive_with_the_bytes() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    p.fill(0, 0, 10_000);
    p.world.recv(1, p.jfr[1], 0, 16, 41);
    p.world.recv(1, p.jfr[1], 0, 16, 42);
    for (opcode, len, user_ctx) in [(TaOpcode::WriteImm, 10_000, 41), (TaOpcode::SendImm, 16, 42)] {
        let wr = JfsWr { immediate: 0x1234_5678_9abc_def0, ..p.wr(opcode, 0, len, 100_000) };
        p.world.post(0, p.jetty[0], wr).expect("accepted");
        p.world.run_for(SECOND);
        let crs = p.world.poll(1, p.jfc[1]);
        assert_eq!(crs.len(), 1, "{opcode:?}");
        let cr = crs[0];
        assert_eq!((cr.status, cr.opcode, cr.len, cr.user_ctx), (CrStatus::Success, opcode, len, user_ctx));
        assert_eq!((cr.immediate, cr.remote), (0x1234_5678_9abc_def0, Some((NodeEid::numbered(1), p.jetty[0]))));
        if opcode == TaOpcode::WriteImm {
            assert_eq!(p.world.hosts[0].ram.bytes[..10_000], p.world.hosts[1].ram.bytes[100_000..110_000]);
        }
    }
}

#[test]
fn a_notification_is_written_after_the_bytes_and_needs_the_right_to_write() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    p.fill(0, 0, 9_000);
    let plain = p.wr(TaOpcode::WriteNotify, 0, 9_000, 100_000);
    assert_eq!(p.world.post(0, p.jetty[0], plain), Err(UrmaError::Value), "no place for the notification");
    let wr = JfsWr { immediate: 0x1122_3344_5566_7788, notify: Some((p.segment, RAM_BASE + 64)), ..plain };
    assert_eq!(p.go(wr), (vec![CrStatus::Success], vec![]));
    let there = &p.world.hosts[1].ram.bytes;
    assert_eq!(there[64..72], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(p.world.hosts[0].ram.bytes[..9_000], there[100_000..109_000]);
    let config = SegmentConfig { addr: RAM_BASE + 64, len: 8, token: Some(5), access: access::READ };
    let token_id = p.world.hosts[1].node.register_segment(config).expect("room");
    let readable = p.world.hosts[1].node.export_segment(token_id).expect("registered");
    let readable = p.world.hosts[0].node.import_segment(readable).expect("room");
    for len in [8, 9_000] {
        let notify = Some((readable, RAM_BASE + 64));
        let wr = JfsWr { immediate: 9, notify, ..p.wr(TaOpcode::WriteNotify, 0, len, 0x8000) };
        assert_eq!(p.go(wr).0, [CrStatus::RemAccessAbort]);
    }
    assert_eq!(p.world.hosts[1].ram.bytes[64], 0x88);
    p.world.assert_drained();
}

#[test]
fn inline_data_are_copied_when_posted() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let wr = JfsWr { data: WrData::inline(b"inline").expect("short"), ..p.wr(TaOpcode::Write, 0, 6, 50) };
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    assert_eq!(&p.world.hosts[1].ram.bytes[50..56], b"inline");
    assert!(WrData::inline(&[0; 65]).is_none());
}

#[test]
fn wrong_token_range_and_right_are_refused_for_each_request_and_others_go_on() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let config = SegmentConfig { addr: RAM_BASE + 0x1000, len: 0x1000, token: Some(0xacfe), access: access::READ };
    let token_id = p.world.hosts[1].node.register_segment(config).expect("room");
    let good = p.world.hosts[1].node.export_segment(token_id).expect("registered");
    let mut import = |segment: RemoteSegment| p.world.hosts[0].node.import_segment(segment).expect("room");
    let (right, wrong) = (import(good), import(RemoteSegment { token: Some(1), ..good }));
    let none = import(RemoteSegment { token: None, ..good });
    let unknown = import(RemoteSegment { token_id: 0xf_ffff, ..good });
    let read = |p: &Pair, segment, remote| JfsWr { segment: Some(segment), ..p.wr(TaOpcode::Read, 0, 16, remote) };
    for (segment, remote, status) in [
        (right, 0x1000, CrStatus::Success),
        (wrong, 0x1000, CrStatus::RemAccessAbort),
        (none, 0x1000, CrStatus::RemAccessAbort),
        (unknown, 0x1000, CrStatus::RemAccessAbort),
        (right, 0x0fff, CrStatus::RemAccessAbort),
        (right, 0x1ff1, CrStatus::RemAccessAbort),
        (right, 0x1ff0, CrStatus::Success),
    ] {
        let wr = read(&p, segment, remote);
        assert_eq!(p.go(wr).0, [status], "{segment} {remote:x}");
    }
    for (opcode, len) in [(TaOpcode::Write, 16), (TaOpcode::FetchAdd, 8), (TaOpcode::Write, 4096)] {
        let wr = JfsWr { segment: Some(right), ..p.wr(opcode, 0, len, 0x1000) };
        assert_eq!(p.go(wr).0, [CrStatus::RemAccessAbort], "{opcode:?}");
    }
    p.world.hosts[1].node.unregister_segment(token_id).expect("registered");
    let wr = read(&p, right, 0x1000);
    assert_eq!(p.go(wr).0, [CrStatus::RemAccessAbort]);
    assert_eq!([Reason::UbToken, Reason::UbRange, Reason::UbAccess].map(|r| p.world.count(1, r)), [4, 2, 3]);
    let wr = p.wr(TaOpcode::Write, 0, 64, 0);
    assert_eq!(p.go(wr).0, [CrStatus::Success], "the Jetty goes on");
}

#[test]
fn a_message_without_receive_is_sent_again_until_one_is_posted_or_retries_end() {
    for (retry, len) in [(7, 100u32), (3, 100), (7, 20_000), (3, 20_000)] {
        let mut p = pair(LossRecovery::Selective, |config| config.rnr_retry = retry);
        p.fill(0, 0, 20_000);
        let wr = p.wr(TaOpcode::Send, 0, len, 0);
        p.world.post(0, p.jetty[0], wr).expect("accepted");
        p.world.run_for(Nanos(2_000_000));
        let early = p.world.poll(0, p.jfc[0]);
        p.world.recv(1, p.jfr[1], 50_000, 20_000, 9);
        p.world.run_for(SECOND);
        let late = p.world.poll(0, p.jfc[0]);
        let status = |crs: &[burst_urma::CompletionRecord]| crs.iter().map(|cr| cr.status).collect::<Vec<_>>();
        if retry == 7 {
            assert_eq!((status(&early), status(&late)), (vec![], vec![CrStatus::Success]));
            assert_eq!(
                p.world.hosts[0].ram.bytes[..len as usize],
                p.world.hosts[1].ram.bytes[50_000..][..len as usize]
            );
        } else {
            assert_eq!((status(&early), status(&late)), (vec![CrStatus::RnrRetryExceeded], vec![]));
            assert_eq!(p.world.count(0, Reason::RnrNakReceived), 4);
        }
        p.world.assert_drained();
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    for len in [17u32, 9000] {
        let mut p = pair(LossRecovery::Selective, |_| ());
        p.world.recv(1, p.jfr[1], 1000, 16, 9);
        let wr = p.wr(TaOpcode::Send, 0, len, 0);
        assert_eq!(p.go(wr), (vec![CrStatus::RemRespLen], vec![CrStatus::LocLen]));
        assert_eq!(p.world.hosts[1].ram.bytes[1016], 0);
        p.world.assert_drained();
    }
}

#[test]
fn a_jetty_with_a_token_and_a_bound_one_refuse_others() {
    let mut p = pair(LossRecovery::Selective, |config| config.token = Some(5));
    p.world.recv(1, p.jfr[1], 0, 100, 1);
    let wr = p.wr(TaOpcode::Send, 0, 10, 0);
    assert_eq!(p.go(wr).0, [CrStatus::RemAccessAbort]);
    let shown = RemoteJetty { eid: NodeEid::numbered(2), id: p.jetty[1], kind: TargetKind::Jetty, token: Some(5) };
    let target = p.world.hosts[0].node.import_jetty(shown).expect("room");
    let wr = JfsWr { target: Some(target), ..wr };
    assert_eq!(p.go(wr).0, [CrStatus::Success]);

    let mut p = pair(LossRecovery::Selective, |config| (config.mode, config.token) = (TransMode::Rc, None));
    p.world.recv(1, p.jfr[1], 0, 100, 1);
    let wr = p.wr(TaOpcode::Send, 0, 10, 0);
    assert_eq!(p.world.post(0, p.jetty[0], wr), Err(UrmaError::State), "not bound");
    p.world.hosts[0].node.bind_jetty(p.jetty[0], p.target).expect("imported");
    assert_eq!(p.world.hosts[0].node.bind_jetty(p.jetty[0], p.target), Err(UrmaError::Bound));
    assert_eq!(p.go(wr).0, [CrStatus::RemOperation], "the peer is not bound");
    let back = p.world.import_jetty(1, 0, p.jetty[0]);
    p.world.hosts[1].node.bind_jetty(p.jetty[1], back).expect("imported");
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
}

#[test]
fn a_dead_peer_ends_requests_after_all_time_outs_and_a_new_channel_follows() {
    let mut p = pair(LossRecovery::Selective, |config| config.error_suspend = false);
    let wr = p.wr(TaOpcode::Write, 0, 5000, 0);
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    p.world.filter = Some(Box::new(|from, _, _| from == 1));
    assert_eq!(p.go(wr).0, [CrStatus::AckTimeout]);
    assert_eq!(p.world.count(0, Reason::UbChannelFailed), 1);
    p.world.filter = None;
    assert_eq!(p.go(wr).0, [CrStatus::Success], "the peer accepts a newer channel");
    assert_eq!(p.world.hosts[1].node.state().channels, 1);
    p.world.assert_drained();
}

#[test]
fn a_failed_channel_suspends_a_jetty_that_asks_for_it_and_flush_returns_the_rest() {
    use burst_urma::JettyState::{Error, Ready, Reset, Suspended};
    let mut p = pair(LossRecovery::Selective, |config| config.error_suspend = true);
    let wr = p.wr(TaOpcode::Write, 0, 64, 0);
    p.world.filter = Some(Box::new(|_, _, _| true));
    p.world.post(0, p.jetty[0], JfsWr { user_ctx: 1, ..wr }).expect("accepted");
    let strong = burst_ubwire::OrderTag::Strong;
    p.world.post(0, p.jetty[0], JfsWr { user_ctx: 2, order: burst_ubwire::OrderTag::Relaxed, ..wr }).expect("accepted");
    p.world.post(0, p.jetty[0], JfsWr { user_ctx: 3, order: strong, ..wr }).expect("accepted");
    p.world.run_for(SECOND);
    let crs: Vec<_> = p.world.poll(0, p.jfc[0]).iter().map(|cr| (cr.status, cr.user_ctx)).collect();
    assert_eq!(crs, [(CrStatus::AckTimeout, 1), (CrStatus::AckTimeout, 2), (CrStatus::SuspendDone, 0)]);
    let node = &mut p.world.hosts[0].node;
    assert_eq!(node.jetty_state(p.jetty[0]), Some(Suspended));
    assert_eq!(p.world.hosts[0].log.events, [UrmaEvent::JettyError(p.jetty[0])]);
    assert_eq!(p.world.post(0, p.jetty[0], wr), Err(UrmaError::State));
    let node = &mut p.world.hosts[0].node;
    let flushed = node.flush_jetty(p.jetty[0]).expect("one was not executed");
    assert_eq!((flushed.status, flushed.user_ctx, node.flush_jetty(p.jetty[0])), (CrStatus::Unhandled, 3, None));
    p.world.filter = None;
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Ready, env.fx)).expect("drained");
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Reset, env.fx)).expect_err("not in error");
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Error, env.fx)).expect("allowed");
    assert_eq!(p.world.poll(0, p.jfc[0])[0].status, CrStatus::FlushErrDone);
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Reset, env.fx)).expect("drained");
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Ready, env.fx)).expect("allowed");
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    p.world.with(0, |node, env| node.modify_jetty(p.jetty[0], Error, env.fx)).expect("allowed");
    p.world.hosts[0].node.delete_jetty(p.jetty[0]).expect("nothing outstanding");
    assert_eq!(p.world.poll(0, p.jfc[0]), [], "the number may be another Jetty's next");
    assert_eq!(p.world.hosts[0].node.delete_jetty(p.jetty[0]), Err(UrmaError::NoObject));
}

#[test]
fn a_request_waits_for_a_silent_peer_as_long_as_its_jetty_says() {
    // The time-outs of a channel take 0.51 s, the next two end after 1.02 and 2.05 s; code 18 is 1.07 s.
    for (code, (early, late)) in [(0, (450, 600)), (18, (1_070, 2_100))] {
        for is_open in [false, true] {
            let mut p = pair(LossRecovery::Selective, |_| ());
            let config = JettyConfig { err_timeout: code, ..JettyConfig::new(p.jfc[0], None) };
            let jetty = p.world.jetty(0, config);
            let wr = p.wr(TaOpcode::Write, 0, 64, 0);
            if is_open {
                p.world.post(0, jetty, wr).expect("accepted");
                p.world.run_for(SECOND);
                assert_eq!(p.world.poll(0, p.jfc[0])[0].status, CrStatus::Success);
            }
            p.world.filter = Some(Box::new(|_, _, _| true));
            p.world.post(0, jetty, wr).expect("accepted");
            p.world.run_for(Nanos::from_ms(early));
            assert_eq!(p.world.poll(0, p.jfc[0]), [], "{code} {is_open}");
            p.world.run_for(Nanos::from_ms(late - early));
            let ends: Vec<_> = p.world.poll(0, p.jfc[0]).iter().map(|cr| cr.status).collect();
            assert_eq!(ends, [CrStatus::AckTimeout], "{code} {is_open}");
        }
    }
}

#[test]
fn deregistered_memory_fails_requests_that_use_it_and_nothing_else() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let config = SegmentConfig { addr: RAM_BASE + 0x8000, len: 0x8000, token: None, access: access::LOCAL_ONLY };
    let own = p.world.hosts[0].node.register_segment(config).expect("room");
    let range = burst_urma::LocalRange { token_id: own, addr: RAM_BASE + 0x8000, len: 0x8000 };
    let wr = JfsWr { data: WrData::Local(range), ..p.wr(TaOpcode::Write, 0, 0, 0x8000) };
    p.world.post(0, p.jetty[0], wr).expect("accepted");
    p.world.hosts[0].node.unregister_segment(own).expect("registered");
    p.world.run_for(SECOND);
    assert_eq!(p.world.poll(0, p.jfc[0])[0].status, CrStatus::LocAccess);
    assert_eq!(p.world.count(1, Reason::UbPoisoned), 1);
    let wr = p.wr(TaOpcode::Read, 0, 30_000, 0);
    p.world.post(0, p.jetty[0], wr).expect("accepted");
    // The request is on its way.
    p.world.run_for(Nanos(500));
    p.world.hosts[1].ram.is_gone = true;
    p.world.run_for(SECOND);
    assert_eq!(p.world.poll(0, p.jfc[0])[0].status, CrStatus::RemDataPoison);
    p.world.hosts[1].ram.is_gone = false;
    let wr = p.wr(TaOpcode::Write, 0, 64, 0);
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    p.world.assert_drained();
}

/// Drops these packets of requests that leave host 0, counted from the next one.
fn lose_requests(p: &mut Pair, lost: &'static [u32]) {
    let mut count = 0;
    p.world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        let is_request = matches!(packet.head.ta, Some(TaHeader::Request(r)) if r.base.opcode != TaOpcode::Management);
        count += u32::from(from == 0 && is_request);
        from == 0 && is_request && lost.contains(&count)
    }));
}

#[test]
fn the_last_byte_of_a_write_appears_after_all_others() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let wr = p.wr(TaOpcode::Write, 0, 8, 0);
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    p.world.hosts[0].ram.bytes[..12_288].fill(0xab);
    lose_requests(&mut p, &[2]);
    let wr = p.wr(TaOpcode::Write, 0, 12_288, 0x4000);
    p.world.post(0, p.jetty[0], wr).expect("accepted");
    p.world.run_for(Nanos(3_000));
    let there = &p.world.hosts[1].ram.bytes[0x4000..];
    assert_eq!(
        (there[0], there[4096], there[8192], there[12_287]),
        (0xab, 0, 0, 0),
        "the last packet waits for the second"
    );
    p.world.run_for(SECOND);
    assert!(p.world.hosts[1].ram.bytes[0x4000..0x4000 + 12_288].iter().all(|b| *b == 0xab));
    p.world.assert_drained();
}

#[test]
fn a_receive_that_a_broken_message_had_taken_is_used_by_the_next_one() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    p.world.recv(1, p.jfr[1], 1000, 20_000, 44);
    lose_requests(&mut p, &[2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]);
    let wr = p.wr(TaOpcode::Send, 0, 9_000, 0);
    assert_eq!(p.go(wr), (vec![CrStatus::AckTimeout], vec![]));
    p.world.filter = None;
    p.fill(0, 0, 9_000);
    assert_eq!(p.go(wr), (vec![CrStatus::Success], vec![CrStatus::Success]));
    assert_eq!(p.world.hosts[0].ram.bytes[..9_000], p.world.hosts[1].ram.bytes[1000..10_000]);
    p.world.assert_drained();
}

#[test]
fn a_late_acknowledgement_of_a_refused_attempt_is_no_success() {
    let mut p = pair(LossRecovery::Selective, |config| config.service = ServiceMode::Rol);
    let wr = p.wr(TaOpcode::Write, 0, 8, 0);
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    // Host 1's acknowledgements are lost for a while, its refusals arrive.
    let mut losses = 0;
    p.world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        let is_ack = packet.head.rtph.is_some_and(|rtph| rtph.opcode != TpOpcode::Data);
        losses += u32::from(from == 1 && is_ack);
        from == 1 && is_ack && losses < 6
    }));
    let wr = p.wr(TaOpcode::Send, 0, 64, 0);
    assert_eq!(p.go(wr).0, [], "no receive is posted");
    assert!(p.world.count(0, Reason::RnrNakReceived) > 10);
    p.world.recv(1, p.jfr[1], 0, 64, 3);
    p.world.run_for(SECOND);
    assert_eq!((p.world.poll(0, p.jfc[0]).len(), p.world.poll(1, p.jfc[1]).len()), (1, 1));
    p.world.assert_drained();
}

#[test]
fn a_jfr_whose_completion_is_lost_takes_no_more_messages_and_another_one_does() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let (small, jfc) = (p.world.hosts[1].node.create_jfc(1).expect("room"), p.jfc[1]);
    let (full, other) = (p.world.jfr(1, small), p.world.jfr(1, jfc));
    for jfr in [full, full, full, other] {
        p.world.recv(1, jfr, 0, 64, 1);
    }
    let mut import = |id| {
        let remote = RemoteJetty { eid: NodeEid::numbered(2), id, kind: TargetKind::Jfr, token: None };
        p.world.hosts[0].node.import_jetty(remote).expect("room")
    };
    let (to_full, to_other) = (import(full), import(other));
    let send = |p: &mut Pair, target| {
        let wr = JfsWr { target: Some(target), ..p.wr(TaOpcode::Send, 0, 8, 0) };
        p.go(wr).0
    };
    assert_eq!(send(&mut p, to_full), [CrStatus::Success]);
    // The second one finds no room for its completion.
    assert_eq!(send(&mut p, to_full), [CrStatus::Success]);
    assert_eq!(p.world.hosts[1].node.jfr_state(full).map(|(state, _)| state), Some(JfrState::Error));
    assert_eq!(send(&mut p, to_full), [CrStatus::RemOperation]);
    assert_eq!(send(&mut p, to_other), [CrStatus::Success]);
    let events = [UrmaEvent::JfcError(small), UrmaEvent::JfrError(full)];
    assert_eq!((p.world.hosts[1].log.events.as_slice(), p.world.count(1, Reason::CqOverrun)), (&events[..], 1));
}

#[test]
fn queues_report_overflow_error_and_their_limit_once() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let small = p.world.hosts[0].node.create_jfc(2).expect("room");
    let jetty = p.world.jetty(0, JettyConfig::new(small, None));
    let wr = p.wr(TaOpcode::Write, 0, 8, 0);
    for _ in 0..4 {
        p.world.post(0, jetty, wr).expect("accepted");
    }
    p.world.run_for(SECOND);
    assert_eq!(p.world.hosts[0].log.events, [UrmaEvent::JfcError(small), UrmaEvent::JettyError(jetty)]);
    // Two completions and the record that the Jetty is drained.
    assert_eq!((p.world.poll(0, small).len(), p.world.count(0, Reason::CqOverrun)), (2, 3));
    assert_eq!(p.world.hosts[0].node.jetty_state(jetty), Some(burst_urma::JettyState::Error));
    assert_eq!(p.world.post(0, jetty, wr), Err(UrmaError::State), "as a queue pair whose CQ is overrun");
    assert_eq!(p.world.hosts[0].node.delete_jfc(small), Err(UrmaError::Busy));

    let config = JfrConfig { depth: 8, token: Some(4), rnr_timer: 0, limit: 2, ..JfrConfig::new(p.jfc[1]) };
    let jfr = p.world.hosts[1].node.create_jfr(config).expect("room");
    for i in 0..3 {
        p.world.recv(1, jfr, 0, 64, i);
    }
    let remote = RemoteJetty { eid: NodeEid::numbered(2), id: jfr, kind: TargetKind::Jfr, token: Some(4) };
    let target = p.world.hosts[0].node.import_jetty(remote).expect("room");
    let send = JfsWr { target: Some(target), ..p.wr(TaOpcode::Send, 0, 8, 0) };
    for events in [0, 1, 1] {
        assert_eq!(p.go(send), (vec![CrStatus::Success], vec![CrStatus::Success]));
        assert_eq!(p.world.hosts[1].log.events, vec![UrmaEvent::JfrLimit(jfr); events]);
    }
    p.world.with(1, |node, env| node.modify_jfr(jfr, JfrState::Error, env.fx)).expect("was ready");
    assert_eq!(p.world.hosts[1].log.events.last(), Some(&UrmaEvent::JfrError(jfr)));
    assert_eq!(p.go(send).0, [CrStatus::RemOperation]);
    p.world.with(1, |node, env| node.modify_jfr(jfr, JfrState::Ready, env.fx)).expect_err("reset comes first");
    p.world.with(1, |node, env| node.modify_jfr(jfr, JfrState::Reset, env.fx)).expect("allowed");
    p.world.with(1, |node, env| node.modify_jfr(jfr, JfrState::Ready, env.fx)).expect("allowed");
    p.world.recv(1, jfr, 0, 64, 9);
    assert_eq!(p.go(send).0, [CrStatus::Success]);
    p.world.hosts[1].node.delete_jfr(jfr).expect("not shared");
    assert_eq!(p.go(send).0, [CrStatus::RemOperation]);
    assert_eq!(p.world.hosts[1].node.delete_jfr(p.jfr[1]), Err(UrmaError::Busy), "a Jetty shares it");
}

#[test]
fn late_packets_of_a_former_channel_do_nothing() {
    let mut p = pair(LossRecovery::Selective, |_| ());
    let old: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let copy = old.clone();
    p.world.filter = Some(Box::new(move |from, _, bytes| {
        if from == 0 {
            copy.borrow_mut().push(bytes.to_vec());
        }
        false
    }));
    let wr = JfsWr { operand: 1, ..p.wr(TaOpcode::FetchAdd, 0, 8, 64) };
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    // The peer dies and the channel fails; then a new one is opened.
    p.world.filter = Some(Box::new(|_, _, _| true));
    assert_eq!(p.go(wr).0, [CrStatus::AckTimeout]);
    p.world.filter = None;
    assert_eq!(p.go(wr).0, [CrStatus::Success]);
    let before = p.world.hosts[1].ram.bytes[64];
    for packet in old.borrow().iter() {
        p.world.inject(1, packet);
    }
    p.world.run_for(SECOND);
    assert_eq!(p.world.hosts[1].ram.bytes[64], before);
    assert_eq!(p.world.count(1, Reason::UbStaleChannel), 2, "the new channel's first REQUEST, and the late one");
    assert!(p.world.count(1, Reason::UbUnknownChannel) >= 1);
    assert_eq!(p.go(wr).0, [CrStatus::Success], "the new channel goes on");
}

#[test]
fn a_completion_says_that_earlier_requests_without_one_are_done() {
    for is_ordered in [false, true] {
        let mut p = pair(LossRecovery::Selective, |_| ());
        let wr = JfsWr { completion_order: is_ordered, ..p.wr(TaOpcode::Write, 0, 64, 0) };
        // The request without completion, the only one of its length, is lost for a while.
        let (is_cut, len) = (std::rc::Rc::new(std::cell::Cell::new(true)), std::cell::Cell::new(0));
        let cut = is_cut.clone();
        p.world.filter = Some(Box::new(move |from, _, bytes| {
            if from == 0 && bytes.len() > 100 {
                len.set(bytes.len());
            }
            from == 0 && bytes.len() + 32 == len.get() && cut.get()
        }));
        // The channel opens first.
        p.world.post(0, p.jetty[0], JfsWr { user_ctx: 0, ..wr }).expect("accepted");
        p.world.run_for(Nanos(20_000));
        let short =
            JfsWr { user_ctx: 1, complete: false, completion_order: is_ordered, ..p.wr(TaOpcode::Write, 0, 32, 0) };
        p.world.post(0, p.jetty[0], short).expect("accepted");
        for (user_ctx, complete) in [(2, true), (3, false), (4, true)] {
            p.world.post(0, p.jetty[0], JfsWr { user_ctx, complete, ..wr }).expect("accepted");
        }
        let poll = |p: &mut Pair| p.world.poll(0, p.jfc[0]).iter().map(|cr| cr.user_ctx).collect::<Vec<_>>();
        p.world.run_for(Nanos(10_000));
        assert_eq!(poll(&mut p), [0], "2, 3 and 4 are done, but 1 is not");
        is_cut.set(false);
        p.world.run_for(SECOND);
        assert_eq!(poll(&mut p), [2, 4]);
    }
}
