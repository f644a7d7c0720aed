//! Extended reliable connections: each request names a shared receive queue. Its protection domain gives access to memory.
use crate::common::{DOMAIN, End, PD, Setup, ip_of};
use burst_base::verbs::{QpAttr, QpState, QpType, WcStatus, WrOpcode, attr_mask as m, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::layout::SendWqe;
use burst_shm::paired;
use burst_shm::rq::RqProducer;
use burst_transport::XrcSrq;
use burst_wire::{Opcode, Packet};
use std::sync::Arc;

const NOW: Nanos = Nanos(1000);

/// Initiator 1 and target 2.
fn connected() -> (End, End) {
    let setup = |qp_type| Setup { qp_type, ..Setup::default() };
    let (ini, tgt) = (setup(QpType::XrcSend), setup(QpType::XrcRecv));
    let (mut a, mut b) = (End::new(1, &ini), End::new(2, &tgt));
    a.bring_up(2, &ini, QpState::Rts);
    b.bring_up(1, &tgt, QpState::Rts);
    (a, b)
}

/// perftest 4.5 and newer moves both halves of an XRC connection with the attributes of RC. The kernel ignores those of the
/// missing half; their values are then neither checked nor taken.
#[test]
fn attributes_of_the_missing_half_are_ignored() {
    let rtr = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
    let rts = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC;
    for qp_type in [QpType::XrcSend, QpType::XrcRecv] {
        let setup = Setup { qp_type, ..Setup::default() };
        let mut end = End::new(1, &setup);
        end.bring_up(2, &setup, QpState::Init);
        let attr = |state| QpAttr { qp_state: state, path_mtu: setup.mtu, ..setup.attr };
        let wrong = match qp_type {
            QpType::XrcSend => QpAttr { min_rnr_timer: 99, max_dest_rd_atomic: 255, ..attr(QpState::Rtr) },
            _ => attr(QpState::Rtr),
        };
        assert_eq!(end.modify(&wrong, rtr | m::STATE, 2), Ok(()), "{qp_type:?} to RTR");
        let wrong = match qp_type {
            QpType::XrcRecv => QpAttr { retry_cnt: 9, rnr_retry: 9, max_rd_atomic: 255, ..attr(QpState::Rts) },
            _ => attr(QpState::Rts),
        };
        assert_eq!(end.modify(&wrong, rts | m::STATE, 2), Ok(()), "{qp_type:?} to RTS");
        let got = end.qp.query();
        match qp_type {
            QpType::XrcSend => assert_eq!((got.min_rnr_timer, got.max_dest_rd_atomic), (0, 0)),
            _ => assert_eq!((got.retry_cnt, got.rnr_retry, got.max_rd_atomic), (0, 0, 0)),
        }
    }
}

/// Adds a shared receive queue with four receives of 4 KiB to the target.
fn srq(end: &mut End, srqn: u32, domain: u32, pd: u32, cq: u32) -> RqProducer {
    let (mut app, queue) = paired::srq(4, 1);
    for n in 0..4 {
        let at = u64::from(srqn) * 65536 + n * 4096;
        app.write(u64::from(srqn) * 100 + n, &[end.sge(at, 4096)]).expect("room");
    }
    let _ = app.post();
    end.fx.srqs.push((srqn, XrcSrq { domain, pd, cq, queue: Arc::new(queue) }));
    app
}

fn wqe(opcode: WrOpcode, srqn: u32) -> SendWqe {
    SendWqe {
        wr_id: 1,
        opcode: opcode as u8,
        flags: send_flags::SIGNALED as u16,
        remote_qpn: srqn,
        ..Default::default()
    }
}

/// Exchanges packets until neither end sends any, and returns their opcodes in order.
fn exchange(a: &mut End, b: &mut End) -> Vec<Opcode> {
    let mut seen = Vec::new();
    for _ in 0..100 {
        let mut any = false;
        for (from, to, src) in [(true, false, 1), (false, true, 2)] {
            let packets = if from { a.drain(NOW) } else { b.drain(NOW) };
            for bytes in packets {
                any = true;
                seen.push(Packet::parse(&bytes).expect("well-formed").bth.opcode);
                if to { a.receive_from(NOW, ip_of(src), &bytes) } else { b.receive_from(NOW, ip_of(src), &bytes) }
            }
        }
        if !any {
            return seen;
        }
    }
    panic!("never silent");
}

#[test]
fn sends_use_the_shared_receive_queue_that_they_name() {
    let (mut a, mut b) = connected();
    let (_one, _two) = (srq(&mut b, 1, DOMAIN, PD, 11), srq(&mut b, 2, DOMAIN, PD, 12));
    a.write_memory(0, &[7; 3000]);
    for (srqn, len) in [(2, 3000), (1, 10), (2, 0)] {
        a.post(&wqe(WrOpcode::Send, srqn), &[a.sge(0, len)]);
    }
    let seen = exchange(&mut a, &mut b);
    assert_eq!(seen[..3], [Opcode::XrcSendFirst, Opcode::XrcSendMiddle, Opcode::XrcSendLast]);
    assert!(seen[3..].iter().all(|o| matches!(o, Opcode::XrcSendOnly | Opcode::XrcAck)));
    assert_eq!(a.statuses(), [WcStatus::Success; 3]);
    let got: Vec<_> = b.fx.receives.iter().map(|(c, _)| (c.wr_id, c.byte_len, c.is_recv)).collect();
    assert_eq!(got, [(200, 3000, 1), (100, 10, 1), (201, 0, 1)]);
    assert!(b.memory(2 * 65536, 3000) == [7; 3000]);
}

/// A program answers through its initiator. An acknowledgement that waited at the target would arrive behind the answer.
#[test]
fn a_target_acknowledges_at_once() {
    let (mut a, mut b) = connected();
    let _queue = srq(&mut b, 1, DOMAIN, PD, 11);
    assert_eq!(b.drain(NOW).len(), 0, "the first look at the empty send queue");
    a.post(&wqe(WrOpcode::Send, 1), &[a.sge(0, 10)]);
    let packets = a.drain(NOW);
    b.receive_from(NOW, ip_of(1), &packets[0]);
    assert_eq!(b.fx.receives.len(), 1);
    assert!(b.qp.wants_tx() && !b.qp.ack_may_wait());
}

#[test]
fn reads_writes_and_atomics_name_a_queue_too() {
    let (mut a, mut b) = connected();
    let _one = srq(&mut b, 1, DOMAIN, PD, 11);
    let rkey = b.lkey;
    a.write_memory(0, &[9; 5000]);
    a.post(&SendWqe { rkey, ..wqe(WrOpcode::RdmaWrite, 1) }, &[a.sge(0, 5000)]);
    a.post(&SendWqe { rkey, ..wqe(WrOpcode::RdmaRead, 1) }, &[a.sge(8192, 5000)]);
    a.post(
        &SendWqe { rkey, remote_addr: 32768, compare_add: 1, ..wqe(WrOpcode::AtomicFetchAndAdd, 1) },
        &[a.sge(16384, 8)],
    );
    let seen = exchange(&mut a, &mut b);
    assert_eq!(a.statuses(), [WcStatus::Success; 3]);
    assert!(a.memory(8192, 5000) == [9; 5000]);
    assert!(seen.contains(&Opcode::XrcReadResponseFirst) && seen.contains(&Opcode::XrcAtomicAck));
    assert!(seen.iter().all(|o| o.info().service == burst_wire::Service::Xrc));
    assert_eq!(b.fx.receives.len(), 0);
}

#[test]
fn a_queue_of_another_domain_or_none_is_refused() {
    for srqn in [3, 4] {
        let (mut a, mut b) = connected();
        let _other = srq(&mut b, 3, DOMAIN + 1, PD, 11);
        a.post(&wqe(WrOpcode::Send, srqn), &[a.sge(0, 10)]);
        exchange(&mut a, &mut b);
        assert_eq!(a.statuses(), [WcStatus::RemInvReqErr]);
        assert_eq!((b.fx.count_of(Reason::InvalidRequest), b.qp.state()), (1, QpState::Err));
        assert_eq!(b.fx.receives.len(), 0);
    }
}

#[test]
fn memory_is_checked_against_the_srqs_protection_domain() {
    let (mut a, mut b) = connected();
    let _one = srq(&mut b, 1, DOMAIN, PD + 1, 11);
    a.post(&SendWqe { rkey: b.lkey, ..wqe(WrOpcode::RdmaWrite, 1) }, &[a.sge(0, 8)]);
    exchange(&mut a, &mut b);
    assert_eq!(a.statuses(), [WcStatus::RemAccessErr]);
}

#[test]
fn the_queue_stays_the_same_within_a_message() {
    let (mut a, mut b) = connected();
    let (_one, _two) = (srq(&mut b, 1, DOMAIN, PD, 11), srq(&mut b, 2, DOMAIN, PD, 12));
    a.post(&wqe(WrOpcode::Send, 1), &[a.sge(0, 3000)]);
    let packets = a.drain(NOW);
    b.receive_from(NOW, ip_of(1), &packets[0]);
    let mut forged = packets[1].clone();
    // The last byte of the XRCETH.
    forged[15] = 2;
    b.receive_from(NOW, ip_of(1), &forged);
    assert_eq!((b.fx.count_of(Reason::InvalidOpcodeSequence), b.qp.state()), (1, QpState::Err));
    // The loaded receive is flushed.
    b.drain(NOW);
    assert_eq!(b.receive_statuses(), [WcStatus::WrFlushErr]);
}

#[test]
fn a_destroyed_srq_takes_its_loaded_receive_along() {
    let (mut a, mut b) = connected();
    let _one = srq(&mut b, 1, DOMAIN, PD, 11);
    a.post(&wqe(WrOpcode::Send, 1), &[a.sge(0, 3000)]);
    let packets = a.drain(NOW);
    b.receive_from(NOW, ip_of(1), &packets[0]);
    assert_eq!(b.qp.srqn(), Some(1));
    b.fx.srqs.clear();
    b.qp.forget_srq(1);
    assert_eq!(b.qp.srqn(), None);
    for packet in &packets[1..] {
        b.receive_from(NOW, ip_of(1), packet);
    }
    for packet in b.drain(NOW) {
        a.receive_from(NOW, ip_of(2), &packet);
    }
    assert_eq!(a.statuses(), [WcStatus::RemInvReqErr]);
    assert_eq!(b.fx.receives.len(), 0, "nothing is completed into a queue that is gone");
}

#[test]
fn an_initiator_answers_no_request_and_a_target_takes_no_answer() {
    let (mut a, mut b) = connected();
    let _one = srq(&mut b, 1, DOMAIN, PD, 11);
    a.post(&wqe(WrOpcode::Send, 1), &[a.sge(0, 10)]);
    let request = a.drain(NOW).remove(0);
    a.receive_from(NOW, ip_of(2), &request);
    assert_eq!(a.fx.count_of(Reason::WrongTransport), 1);
    b.receive_from(NOW, ip_of(1), &request);
    let answer = b.drain(NOW).remove(0);
    b.receive_from(NOW, ip_of(1), &answer);
    assert_eq!(b.fx.count_of(Reason::WrongTransport), 1);
    a.receive_from(NOW, ip_of(2), &answer);
    assert_eq!(a.statuses(), [WcStatus::Success]);
}

#[test]
fn an_empty_queue_is_not_ready_and_the_message_comes_again() {
    let (mut a, mut b) = connected();
    let (app, queue) = paired::srq(4, 1);
    let mut app = app;
    b.fx.srqs.push((1, XrcSrq { domain: DOMAIN, pd: PD, cq: 11, queue: Arc::new(queue) }));
    a.post(&wqe(WrOpcode::Send, 1), &[a.sge(0, 10)]);
    exchange(&mut a, &mut b);
    assert_eq!(b.fx.count_of(Reason::ReceiverNotReady), 1);
    app.write(5, &[b.sge(0, 64)]).expect("room");
    let _ = app.post();
    let later = a.qp.next_deadline();
    a.fire(later);
    exchange(&mut a, &mut b);
    assert_eq!((a.statuses(), b.fx.receives.len()), (vec![WcStatus::Success], 1));
}
