//! Packets of a sender that forges the peer's address: what they change, and what they make the queue pair send.
use crate::common::{End, Setup, describe, ip_of, qpn_of};
use burst_base::verbs::QpState;
use burst_base::{Nanos, Psn, Reason, Rkey};
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Reth, Saeth, Seth, Syndrome, Weth};

/// Source port of the peer, and of the sender that forges its address.
const PEER: u16 = 50_000;
const FORGER: u16 = 51_234;
/// PSN that the responder expects first.
const FIRST: u32 = 100;

fn send(psn: u32) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcSendOnly, qpn_of(1), Psn::new(psn)) };
    HeadBuf::new(&bth).as_slice().to_vec()
}

fn read(psn: u32, rkey: u32, addr: u64, len: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RcReadRequest, qpn_of(1), Psn::new(psn));
    HeadBuf::new(&bth).reth(Reth { addr, rkey: Rkey(rkey), len }).as_slice().to_vec()
}

fn responder() -> End {
    let setup = Setup::default();
    let mut end = End::new(1, &setup);
    end.bring_up(0, &setup, QpState::Rts);
    (0..64).for_each(|wr_id| end.post_receive(wr_id, &[end.sge(0, 64)]));
    end
}

/// A responder that has executed one SEND of its peer.
fn connected() -> End {
    let mut end = responder();
    assert_eq!(from(&mut end, Nanos(1_000), PEER, &send(FIRST)).len(), 1);
    end
}

/// A packet from this port; returns the answers.
fn from(end: &mut End, now: Nanos, port: u16, bytes: &[u8]) -> Vec<Vec<u8>> {
    end.receive_from_port(now, ip_of(0), port, bytes);
    end.drain(now)
}

#[test]
fn a_scan_of_all_psns_executes_nothing_and_is_hardly_answered() {
    let mut end = connected();
    // One PSN in sixteen, the expected one among them, at the rate of a scan of all in 40 s.
    let (mut now, mut answers) = (Nanos(2_000), 0);
    for k in (0..1 << 24).step_by(16) {
        now = now + Nanos(40_000);
        answers += from(&mut end, now, FORGER, &send((1 << 23) + FIRST + 1 + k)).len();
    }
    assert_eq!(end.fx.receives.len(), 1, "a forged SEND was executed");
    // At most 1,024 packets with PSNs far away, in each of 42 s, are not dropped at once.
    assert!(answers < 43 * 1024, "{answers} answers to a million packets");
    assert!(end.fx.count_of(Reason::SourcePortShut) > 900_000, "{:?}", end.fx.reasons());
    // The peer notices nothing, whether it sends in between or afterwards.
    let answer = from(&mut end, now, PEER, &send(FIRST + 1));
    assert_eq!(describe(&answer[0]), format!("RcAck {} {:?}", FIRST + 1, Syndrome::ACK));
    assert_eq!((end.fx.receives.len(), end.fx.count_of(Reason::SourcePortChanged)), (2, 0));
}

#[test]
fn a_peer_may_change_its_port_even_after_a_loss() {
    let mut end = connected();
    assert_eq!(from(&mut end, Nanos(2_000), PEER + 1, &send(FIRST + 1)).len(), 1);
    // The first packets by a third path are lost; thousands follow them.
    let nak = from(&mut end, Nanos(3_000), PEER + 2, &send(FIRST + 500));
    assert_eq!(describe(&nak[0]), format!("RcAck {} {:?}", FIRST + 2, Syndrome::Nak(NakCode::PsnSequence)));
    (501..4000).for_each(|k| drop(from(&mut end, Nanos(3_000), PEER + 2, &send(FIRST + k))));
    assert_eq!(from(&mut end, Nanos(4_000), PEER + 2, &send(FIRST + 2)).len(), 1);
    assert_eq!((end.fx.receives.len(), end.fx.count_of(Reason::SourcePortChanged)), (3, 2));
    assert_eq!(end.fx.count_of(Reason::SourcePortShut), 0);
}

#[test]
fn a_reset_queue_pair_takes_the_port_of_its_next_peer() {
    let mut end = connected();
    end.move_to(QpState::Reset);
    end.bring_up(0, &Setup::default(), QpState::Rts);
    end.post_receive(1, &[end.sge(0, 64)]);
    assert_eq!(from(&mut end, Nanos(2_000), PEER + 7, &send(FIRST)).len(), 1);
    assert_eq!(end.fx.count_of(Reason::SourcePortChanged), 0);
}

#[test]
fn forged_responses_from_another_port_are_shut_out_as_well() {
    let mut end = connected();
    let ack = |psn: u32| {
        let bth = Bth::new(Opcode::RcAck, qpn_of(1), Psn::new(psn));
        HeadBuf::new(&bth).aeth(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperation), msn: 0 }).as_slice().to_vec()
    };
    (0..1 << 20).for_each(|psn| drop(from(&mut end, Nanos(2_000), FORGER, &ack(0x80_0000 + psn))));
    assert_eq!(end.fx.count_of(Reason::SourcePortShut), (1 << 20) - 1024);
    // A second later, and not before, the port is open again.
    let opens = Nanos(2_000) + Nanos::from_ms(1_000);
    assert!(from(&mut end, Nanos(opens.0 - 1), FORGER, &send(FIRST + 1)).is_empty());
    assert_eq!(from(&mut end, opens, FORGER, &send(FIRST + 1)).len(), 1);
}

#[test]
fn answers_to_gaps_and_repetitions_are_bounded_by_time() {
    let mut end = connected();
    let (mut now, mut naks, mut acks) = (Nanos(2_000), 0, 0);
    let mut next = FIRST + 1;
    // 100,000 forged packets of each kind in 300 ms by the peer's own port. Each packet of the peer ends the state in which a
    // gap has been reported.
    for k in 0..100_000u32 {
        now = now + Nanos(1_000);
        naks += from(&mut end, now, PEER, &send(next + 9)).len();
        now = now + Nanos(1_000);
        acks += from(&mut end, now, PEER, &send(next - 1)).len();
        now = now + Nanos(1_000);
        if k % 2_000 == 0 {
            assert_eq!(
                from(&mut end, now, PEER, &send(next)).len(),
                1,
                "the peer's packet is answered whatever else came"
            );
            next += 1;
        }
    }
    assert!(naks + acks <= 1024 + 3_000 + 1, "{naks} NAKs and {acks} repeated acknowledgements in 300 ms");
    assert!(end.fx.count_of(Reason::AnswerWithheld) > 90_000);
}

#[test]
fn a_repeated_read_is_answered_up_to_a_multiple_of_its_length() {
    let mut end = responder();
    const LEN: u32 = 64 << 10;
    let rkey = end.lkey;
    let bytes = |answers: Vec<Vec<u8>>| answers.iter().map(Vec::len).sum::<usize>();
    let once = bytes(from(&mut end, Nanos(1_000), PEER, &read(FIRST, rkey, 0, LEN)));
    assert!(once > LEN as usize);
    let mut again = 0;
    for k in 0..10_000u64 {
        again += bytes(from(&mut end, Nanos(2_000 + 100_000 * k), PEER, &read(FIRST, rkey, 0, LEN)));
    }
    // 32 times, and twice for each of its 64 packets.
    assert_eq!(again, (32 + 2 * 64) * once, "640 MB would be asked for by 320 kB");
    assert_eq!(end.fx.count_of(Reason::AnswerWithheld), 10_000 - 160);
    // Another READ has a budget of its own, and is executed.
    let packets = LEN.div_ceil(1024);
    assert!(bytes(from(&mut end, Nanos::from_ms(2_000), PEER, &read(FIRST + packets, rkey, 0, LEN))) > LEN as usize);
}

/// A peer on a bad path asks again for a long READ from each packet that it has lost.
#[test]
fn a_read_repeated_further_on_each_time_is_always_answered() {
    let mut end = responder();
    const PACKETS: u32 = 256;
    let rkey = end.lkey;
    let count = |answers: Vec<Vec<u8>>| answers.len() as u32;
    assert_eq!(count(from(&mut end, Nanos(1_000), PEER, &read(FIRST, rkey, 0, PACKETS * 1024))), PACKETS);
    for lost in 1..PACKETS {
        let rest = read(FIRST + lost, rkey, u64::from(lost) * 1024, (PACKETS - lost) * 1024);
        assert_eq!(count(from(&mut end, Nanos::from_us(10 * u64::from(lost)), PEER, &rest)), PACKETS - lost, "{lost}");
    }
    assert_eq!(end.fx.count_of(Reason::AnswerWithheld), 0);
}

/// Behind long READs a short one is repeated with each of their lost packets. What it has been allowed stays allowed when new
/// READs have taken the places of the long ones.
#[test]
fn the_bound_of_repetitions_does_not_shrink() {
    let mut end = responder();
    let rkey = end.lkey;
    let count = |answers: Vec<Vec<u8>>| answers.len() as u32;
    for k in 0..3 {
        assert_eq!(count(from(&mut end, Nanos(1_000), PEER, &read(FIRST + 64 * k, rkey, 0, 64 << 10))), 64);
    }
    let short = FIRST + 192;
    let most = 32 + 2 * 193;
    assert_eq!(count(from(&mut end, Nanos(1_000), PEER, &read(short, rkey, 0, 1024))), 1);
    for _ in 0..most - 1 {
        assert_eq!(count(from(&mut end, Nanos(2_000), PEER, &read(short, rkey, 0, 1024))), 1);
    }
    for k in 1..4 {
        assert_eq!(count(from(&mut end, Nanos(3_000), PEER, &read(short + k, rkey, 0, 1024))), 1);
    }
    for again in [1, 0] {
        assert_eq!(count(from(&mut end, Nanos(4_000), PEER, &read(short, rkey, 0, 1024))), again, "up to the bound");
    }
}

#[test]
fn a_congestion_notification_is_counted_and_may_come_from_any_port() {
    let mut end = connected();
    let cnp = |psn: u32| {
        let mut bytes = HeadBuf::new(&Bth::new(Opcode::Cnp, qpn_of(1), Psn::new(psn))).as_slice().to_vec();
        bytes.extend_from_slice(&[0; 16]);
        bytes
    };
    (0..3).for_each(|k| drop(from(&mut end, Nanos(2_000), FORGER + k, &cnp(0))));
    assert_eq!((end.fx.count_of(Reason::CnpReceived), end.fx.count_of(Reason::SourcePortChanged)), (3, 0));
}

/// A packet of the selective repeat family, whole in itself, whose PSN is the one expected.
fn selective(opcode: Opcode) -> Vec<u8> {
    let head = HeadBuf::new(&Bth { ack_req: true, ..Bth::new(opcode, qpn_of(1), Psn::new(FIRST)) });
    let head = match opcode {
        Opcode::RcSrAck => head.aeth(Aeth { syndrome: Syndrome::ACK, msn: 1 }).saeth(Saeth::default()),
        Opcode::RcSrReadAck => head.saeth(Saeth::default()),
        Opcode::RcSrWriteOnly => head.seth(Seth::default()).weth(Weth::default()),
        _ => head.seth(Seth::default()),
    };
    head.as_slice().to_vec()
}

#[test]
fn packets_of_selective_repeat_are_dropped_and_counted() {
    let mut end = responder();
    let some = [Opcode::RcSrSendOnly, Opcode::RcSrWriteOnly, Opcode::RcSrAck, Opcode::RcSrReadAck, Opcode::RcSrProbe];
    for (k, opcode) in (1..).zip(some) {
        assert_eq!(from(&mut end, Nanos(1_000), PEER, &selective(opcode)), Vec::<Vec<u8>>::new(), "{opcode}");
        assert_eq!(end.fx.count_of(Reason::SrNotNegotiated), k, "{opcode}");
    }
    let other = HeadBuf::new(&Bth::new(Opcode::XrcSrReadAck, qpn_of(1), Psn::new(FIRST))).saeth(Saeth::default());
    from(&mut end, Nanos(1_000), PEER, other.as_slice());
    assert_eq!((end.fx.count_of(Reason::SrNotNegotiated), end.fx.count_of(Reason::WrongTransport)), (5, 1));
    // A train of them is refused packet by packet.
    end.receive_train(Nanos(1_000), ip_of(0), &vec![selective(Opcode::RcSrSendOnly); 3]);
    assert_eq!((end.fx.count_of(Reason::SrNotNegotiated), end.fx.receives.len()), (8, 0));
    assert_eq!(from(&mut end, Nanos(2_000), PEER, &send(FIRST)).len(), 1, "the standard packet is executed");
}
