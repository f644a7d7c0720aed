//! UC and UD: complete messages are delivered, others are dropped. Shared receive queues.
use crate::common::{End, LinkFaults, Pair, QKEY, Setup, ip_of, qpn_of};
use burst_base::verbs::{
    EventType, Mtu, QpAttr, QpState, QpType, WcOpcode, WcStatus, WrOpcode, attr_mask, send_flags, wc_flags,
};
use burst_base::{Nanos, Qkey, Reason};
use burst_frame::{Flow, RxFrame};
use burst_shm::layout::SendWqe;
use burst_shm::paired;
use burst_transport::{Env, GRH_BYTES, QpConfig, RecvQueue, TxBudget};
use burst_wire::Packet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

const NOW: Nanos = Nanos(1_000);

fn uc() -> Setup {
    Setup { qp_type: QpType::Uc, ..Setup::default() }
}
fn ud() -> Setup {
    Setup { qp_type: QpType::Ud, ..Setup::default() }
}

fn wqe(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe {
        wr_id,
        opcode: opcode as u8,
        flags: send_flags::SIGNALED as u16,
        imm: 0x0a0b,
        remote_qpn: qpn_of(1).get(),
        remote_qkey: QKEY.0,
        ..SendWqe::default()
    }
}

fn post(end: &mut End, opcode: WrOpcode, wr_id: u64, len: u32) {
    let sges = [end.sge(0, len)];
    end.post(&wqe(opcode, wr_id), &sges);
}

fn post_receive(end: &mut End, wr_id: u64, len: u32) {
    let sges = [end.sge(100_000, len)];
    end.post_receive(wr_id, &sges);
}

#[test]
fn uc_delivers_sends_and_writes_and_completes_when_sent() {
    let mut pair = Pair::new(&uc(), 1, LinkFaults::default());
    let key = pair.ends[1].lkey;
    pair.ends[0].write_memory(0, &[9; 5000]);
    for wr_id in 0..3 {
        post_receive(&mut pair.ends[1], wr_id, 5000);
    }
    post(&mut pair.ends[0], WrOpcode::Send, 1, 5000);
    post(&mut pair.ends[0], WrOpcode::SendWithImm, 2, 3);
    let sges = [pair.ends[0].sge(0, 2000)];
    let write = SendWqe { rkey: key, remote_addr: 200_000, ..wqe(WrOpcode::RdmaWriteWithImm, 3) };
    pair.ends[0].post(&write, &sges);
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 3]);
    let got: Vec<_> = pair.ends[1].fx.receives.iter().map(|(c, _)| (c.opcode, c.byte_len, c.imm)).collect();
    let (recv, with_imm) = (WcOpcode::Recv as u8, WcOpcode::RecvRdmaWithImm as u8);
    assert_eq!(got, [(recv, 5000, 0), (recv, 3, 0x0a0b), (with_imm, 2000, 0x0a0b)]);
    assert_eq!(pair.ends[1].memory(200_000, 2000), [9; 2000]);
    assert_eq!(pair.link.sent, 5 + 1 + 2);
}

#[test]
fn the_send_queue_of_an_unreliable_service_drains_with_an_event() {
    for setup in [uc(), ud()] {
        let mut end = End::new(0, &setup);
        end.fx.ah = Some(Flow { dst: ip_of(1), ..Flow::default() });
        end.bring_up(1, &setup, QpState::Rts);
        let len = if setup.qp_type == QpType::Uc { 5000 } else { 500 };
        post(&mut end, WrOpcode::Send, 1, len);
        post(&mut end, WrOpcode::Send, 2, len);
        // Only the first request was begun or taken.
        let bytes = if setup.qp_type == QpType::Uc { 1000 } else { 0 };
        end.poll(NOW, &mut TxBudget { wqes: 8, bytes, window_bytes: 0 });
        let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        end.modify(&sqd, attr_mask::STATE | attr_mask::EN_SQD_ASYNC_NOTIFY, 1).expect("it may drain");
        assert!(end.qp.query().sq_draining && end.fx.events.is_empty());
        end.drain(NOW);
        assert_eq!(end.statuses(), [WcStatus::Success]);
        assert!(!end.qp.query().sq_draining);
        assert_eq!(end.fx.events, [EventType::SqDrained]);
        end.move_to(QpState::Rts);
        end.drain(NOW);
        assert_eq!((end.statuses().len(), end.fx.events.len()), (2, 1));
    }
}

#[test]
fn a_broken_uc_message_is_dropped_and_its_receive_serves_the_next() {
    for lost in 0..3 {
        let mut pair = Pair::new(&uc(), 1, LinkFaults::default());
        post_receive(&mut pair.ends[1], 7, 5000);
        post(&mut pair.ends[0], WrOpcode::Send, 1, 3000);
        post(&mut pair.ends[0], WrOpcode::Send, 2, 10);
        let packets = pair.ends[0].drain(NOW);
        assert_eq!(packets.len(), 4);
        for packet in packets.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, p)| p) {
            pair.ends[1].receive_from(NOW, ip_of(0), packet);
        }
        let fx = &pair.ends[1].fx;
        assert_eq!((fx.receives[0].0.wr_id, fx.receives[0].0.byte_len, fx.receives.len()), (7, 10, 1));
        assert!(fx.count_of(Reason::UcMessageBroken) > 0, "{lost}");
        assert!(pair.ends[1].drain(NOW).is_empty());
    }
}

#[test]
fn uc_refuses_requests_that_need_answers() {
    for opcode in [WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd, WrOpcode::SendWithInv] {
        let mut pair = Pair::new(&uc(), 1, LinkFaults::default());
        post(&mut pair.ends[0], opcode, 1, 8);
        post(&mut pair.ends[0], WrOpcode::Send, 2, 8);
        pair.settle();
        assert_eq!(pair.ends[0].statuses(), [WcStatus::LocQpOpErr, WcStatus::WrFlushErr]);
        // Only the send queue is in error, and moving to RTS restores it.
        assert_eq!(pair.ends[0].qp.state(), QpState::Sqe);
        pair.ends[0].move_to(QpState::Rts);
        post(&mut pair.ends[0], WrOpcode::Send, 3, 8);
        pair.settle();
        assert_eq!(pair.ends[0].statuses()[2], WcStatus::Success);
    }
}

#[test]
fn datagrams_arrive_behind_their_route_header() {
    let mut pair = Pair::new(&ud(), 1, LinkFaults::default());
    pair.ends[0].write_memory(0, b"datagram");
    for wr_id in 0..2 {
        post_receive(&mut pair.ends[1], wr_id, 2000);
    }
    post(&mut pair.ends[0], WrOpcode::SendWithImm, 1, 8);
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success]);
    let (cqe, _) = pair.ends[1].fx.receives[0];
    assert_eq!((cqe.byte_len, cqe.src_qpn, cqe.imm), (48, qpn_of(0).get(), 0x0a0b));
    assert_eq!(cqe.wc_flags, wc_flags::GRH | wc_flags::WITH_IMM);
    // The code for UDP and IPv4, as RNICs give it.
    assert_eq!(cqe.sl, 0xa);
    let got = pair.ends[1].memory(100_000, 48);
    assert_eq!(got[..20], [0; 20]);
    assert_eq!((got[20], got[29]), (0x45, 17));
    assert_eq!(got[32..40], [10, 77, 0, 0, 10, 77, 0, 1]);
    assert_eq!(&got[GRH_BYTES..], b"datagram");
}

/// The route header of the datagram `packet` if it comes by `flow`, and the IP version in its completion.
fn route_header_of(packet: &[u8], flow: Flow) -> (Vec<u8>, u8) {
    let mut end = End::new(1, &ud());
    end.bring_up(0, &ud(), QpState::Rts);
    post_receive(&mut end, 1, 2000);
    let parsed = Packet::parse(packet).expect("well-formed");
    let mut env = Env { now: NOW, waited: Nanos(0), mem: &end.mem, tx: &mut end.tx, fx: &mut end.fx };
    end.qp.on_packet(&RxFrame { flow, bytes: packet }, &parsed, &mut env);
    let (cqe, _) = end.fx.receives[0];
    (end.memory(100_000, GRH_BYTES), cqe.sl)
}

#[test]
fn the_route_header_has_the_fields_of_the_frame_it_came_in() {
    let mut sender = End::new(0, &ud());
    sender.bring_up(1, &ud(), QpState::Rts);
    post(&mut sender, WrOpcode::Send, 1, 8);
    let packet = sender.drain(NOW).remove(0);
    // BTH, DETH and 8 bytes; UDP header and ICRC.
    let udp_len = 12 + 8 + 8 + 8 + 4;
    let flow = Flow { tos: 0xb2, hop_limit: 63, flow_label: 0xc_de01, ..Flow::default() };
    let (header, version) = route_header_of(&packet, Flow { src: ip_of(0), dst: ip_of(1), ..flow });
    let checksum = header[30..32].to_vec();
    let fixed = [0x45, 0xb2, 0, udp_len + 20, 0, 0, 0x40, 0, 63, 17, checksum[0], checksum[1]];
    assert_eq!(header, [&[0; 20][..], &fixed, &[10, 77, 0, 0, 10, 77, 0, 1]].concat());
    // RFC 1071: the words of a header with its checksum add up to all ones.
    let sum: u32 = header[20..].chunks(2).map(|two| u32::from(two[0]) * 256 + u32::from(two[1])).sum();
    assert_eq!((sum % 0xffff, version), (0, 0xa));

    let (src, dst) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    let (header, version) = route_header_of(&packet, Flow { src: IpAddr::V6(src), dst: IpAddr::V6(dst), ..flow });
    let fixed = [0x6b, 0x2c, 0xde, 0x01, 0, udp_len, 17, 63];
    assert_eq!((header, version), ([&fixed[..], &src.octets(), &dst.octets()].concat(), 0x9));
}

#[test]
fn datagrams_longer_than_their_receive_are_dropped() {
    let setup = ud();
    let mut pair = Pair::new(&setup, 1, LinkFaults::default());
    post(&mut pair.ends[0], WrOpcode::Send, 1, 8);
    pair.settle();
    post_receive(&mut pair.ends[1], 5, 47);
    post(&mut pair.ends[0], WrOpcode::Send, 2, 8);
    pair.settle();
    let wrong = SendWqe { remote_qkey: 0x99, ..wqe(WrOpcode::Send, 3) };
    pair.ends[0].post(&wrong, &[]);
    // Bit 31 selects the queue pair's own Q_Key.
    let own = SendWqe { remote_qkey: 1 << 31, ..wqe(WrOpcode::Send, 4) };
    pair.ends[0].post(&own, &[]);
    pair.settle();
    let fx = &pair.ends[1].fx;
    for reason in [Reason::UdNoReceive, Reason::UdReceiveTooShort, Reason::BadQkey] {
        assert_eq!(fx.count_of(reason), 1, "{reason:?}");
    }
    assert_eq!((fx.receives.len(), fx.receives[0].0.byte_len), (1, 40));
    assert_eq!(pair.ends[0].statuses(), [WcStatus::Success; 4]);
}

#[test]
fn bad_datagram_requests_end_with_the_right_status() {
    let mut pair = Pair::new(&ud(), 1, LinkFaults::default());
    post(&mut pair.ends[0], WrOpcode::Send, 1, Mtu::B1024.bytes() + 1);
    pair.settle();
    let mut other = Pair::new(&ud(), 1, LinkFaults::default());
    other.ends[0].fx.ah = None;
    post(&mut other.ends[0], WrOpcode::Send, 1, 1);
    other.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::LocLenErr]);
    assert_eq!(other.ends[0].statuses(), [WcStatus::LocQpOpErr]);
    assert_eq!(other.ends[0].qp.state(), QpState::Sqe);
}

#[test]
fn the_qkey_may_change_in_rts() {
    let mut pair = Pair::new(&ud(), 1, LinkFaults::default());
    let attr = QpAttr { qkey: Qkey(5), ..QpAttr::default() };
    pair.ends[1].modify(&attr, attr_mask::QKEY, 0).expect("allowed");
    post_receive(&mut pair.ends[1], 1, 100);
    pair.ends[0].post(&SendWqe { remote_qkey: 5, ..wqe(WrOpcode::Send, 1) }, &[]);
    pair.settle();
    assert_eq!(pair.ends[1].fx.receives.len(), 1);
}

#[test]
fn an_error_flushes_no_receive_of_a_shared_queue() {
    let setup = Setup::default();
    let mut end = End::new(1, &setup);
    let (mut srq, consumer) = paired::srq(16, 2);
    let cap = setup.cap;
    let (sq, sq_consumer) = paired::sq(16, cap.max_send_sge, cap.max_inline_data);
    end.sq = sq;
    end.qp = burst_transport::Qp::new(QpConfig {
        qpn: qpn_of(1),
        qp_type: QpType::Rc,
        pd: crate::common::PD,
        send_cq: crate::common::SEND_CQ,
        recv_cq: crate::common::RECV_CQ,
        cookie: 1,
        cap,
        port_mtu: Mtu::B4096,
        sq: sq_consumer,
        rq: RecvQueue::Shared(Arc::new(consumer)),
    });
    end.bring_up(0, &setup, QpState::Rts);
    for wr_id in 0..3 {
        srq.write(wr_id, &[end.sge(0, 100)]).unwrap();
    }
    let _ = srq.post();
    let mut peer = End::new(0, &setup);
    peer.bring_up(1, &setup, QpState::Rts);
    post(&mut peer, WrOpcode::Send, 1, 4);
    post(&mut peer, WrOpcode::Send, 2, 2000);
    for packet in peer.drain(NOW) {
        end.receive_from(NOW, ip_of(0), &packet);
    }
    end.drain(NOW);
    // The first message was received; the second is longer than its receive; the third receive stays in the shared queue.
    assert_eq!(end.receive_statuses(), [WcStatus::Success, WcStatus::LocLenErr]);
    assert_eq!(end.fx.events, [EventType::QpLastWqeReached]);
}
