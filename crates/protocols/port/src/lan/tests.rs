//! Two hosts whose frames the test passes from one to the other: a frame arrives, an action must follow.

use super::*;
use neighbours::{FAILED_TIME, FRESH, RETRY, TRIES, WAITING_MAX};

const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(mac: MacAddr, last: u8) -> Arc<LanHost> {
    let addrs = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")].iter().map(|p| p.parse().unwrap()).collect();
    Arc::new(LanHost { mac, addrs, gateways: vec![ip("10.0.0.254")] })
}

fn lan(mac: MacAddr, last: u8) -> Lan {
    Lan::new(host(mac, last), Arc::default(), 2048)
}

/// Runs `f`; returns its result and the frames that it has sent.
fn sent<R>(f: impl FnOnce(SendFrame<'_>) -> R) -> (R, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    let result = f(&mut |frame| frames.push(frame.to_vec()));
    (result, frames)
}

/// Gives the frames to `to`, which must accept them; returns the frames that it sends in reply.
fn receive(to: &mut Lan, now: Nanos, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    sent(|send| frames.iter().for_each(|f| assert!(to.receive(now, f, send), "{f:02x?}"))).1
}

fn no_drops(reason: Reason) {
    panic!("{reason}");
}

const NOW: Nanos = Nanos::from_ms(1000);

#[test]
fn a_solicitation_is_answered_and_both_hosts_learn() {
    for peer in ["10.0.0.2", "fd00::2"] {
        let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
        let (found, question) = sent(|send| a.neighbour(NOW, ip(peer), send));
        assert_eq!((found, question.len()), (Ok(LanNeighbour::Incomplete), 1));
        let version = a.version();
        let answer = receive(&mut b, NOW, &question);
        assert_eq!(answer.len(), 1);
        assert_eq!(receive(&mut a, NOW, &answer).len(), 0);
        assert_ne!(a.version(), version);
        assert_eq!(sent(|send| a.neighbour(NOW, ip(peer), send)), (Ok(LanNeighbour::Resolved(MAC_B)), vec![]));
        let back = if peer.contains(':') { "fd00::1" } else { "10.0.0.1" };
        assert_eq!(sent(|send| b.neighbour(NOW, ip(back), send)), (Ok(LanNeighbour::Resolved(MAC_A)), vec![]));
    }
}

#[test]
fn a_failed_neighbour_was_solicited_three_times_and_its_frames_are_dropped() {
    let mut a = lan(MAC_A, 1);
    let dst = ip("10.0.0.9");
    let mut questions = sent(|send| a.neighbour(NOW, dst, send)).1.len();
    assert!(a.enqueue(dst, &[0; 100]));
    let (mut now, mut dropped) = (NOW, Vec::new());
    for _ in 0..TRIES {
        now = now + RETRY;
        questions += sent(|send| a.tick(now, send, &mut |r| dropped.push(r))).1.len();
    }
    assert_eq!((questions, dropped), (usize::from(TRIES), vec![Reason::NoNeighbour]));
    assert_eq!(sent(|send| a.neighbour(now, dst, send)), (Ok(LanNeighbour::Failed), vec![]));
    // Later it is solicited again.
    sent(|send| a.tick(now + FAILED_TIME, send, &mut no_drops));
    assert_eq!(sent(|send| a.neighbour(now + FAILED_TIME, dst, send)).1.len(), 1);
}

#[test]
fn frames_wait_for_the_answer_and_are_sent_in_order() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    let dst = ip("10.0.0.2");
    let question = sent(|send| a.neighbour(NOW, dst, send)).1;
    for number in 0..WAITING_MAX {
        assert!(a.enqueue(dst, &[number as u8; 60]));
    }
    assert!(!a.enqueue(dst, &[0; 60]), "the queue is full");
    let answer = receive(&mut b, NOW, &question);
    let out = receive(&mut a, NOW, &answer);
    assert_eq!(out.len(), WAITING_MAX);
    assert!(out.iter().enumerate().all(|(i, f)| f[..6] == MAC_B.0 && f[6..] == [i as u8; 54]));
    assert!(a.enqueue(dst, &[0; 60]), "there is room again");
}

#[test]
fn a_neighbour_in_use_is_confirmed_and_keeps_its_address_meanwhile() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    let dst = ip("fd00::2");
    let question = sent(|send| a.neighbour(NOW, dst, send)).1;
    let answer = receive(&mut b, NOW, &question);
    receive(&mut a, NOW, &answer);
    a.used(dst);
    let later = NOW + FRESH;
    let probe = sent(|send| a.tick(later, send, &mut no_drops)).1;
    assert_eq!(probe.len(), 1);
    assert_eq!(probe[0][..6], MAC_B.0, "by unicast");
    assert_eq!(sent(|send| a.neighbour(later, dst, send)).0, Ok(LanNeighbour::Resolved(MAC_B)));
    let answer = receive(&mut b, later, &probe);
    receive(&mut a, later, &answer);
    let probe = sent(|send| a.tick(later + FRESH, send, &mut no_drops)).1;
    let answer = receive(&mut b, later + FRESH, &probe);
    receive(&mut a, later + FRESH, &answer);
    // Not in use since then: removed after FRESH.
    let version = a.version();
    assert_eq!(sent(|send| a.tick(later + FRESH + FRESH, send, &mut no_drops)).1.len(), 0);
    assert_ne!(a.version(), version);
}

#[test]
fn workers_share_learnt_addresses() {
    let shared = Arc::<SharedNeighbours>::default();
    let worker = || Lan::new(host(MAC_A, 1), shared.clone(), 2048);
    let (mut first, mut second, mut b) = (worker(), worker(), lan(MAC_B, 2));
    let dst = ip("10.0.0.2");
    let question = sent(|send| first.neighbour(NOW, dst, send)).1;
    assert!(first.enqueue(dst, &[7; 60]));
    let answer = receive(&mut b, NOW, &question);
    // The device gives the advertisement to the other worker.
    receive(&mut second, NOW, &answer);
    let out = sent(|send| first.follow(NOW, send)).1;
    assert_eq!(out.len(), 1);
    assert_eq!(sent(|send| first.neighbour(NOW, dst, send)).0, Ok(LanNeighbour::Resolved(MAC_B)));
    // An advertisement with the same address confirms it.
    first.used(dst);
    let later = NOW + FRESH;
    let probe = sent(|send| first.tick(later, send, &mut no_drops)).1;
    let answer = receive(&mut b, later, &probe);
    receive(&mut second, later, &answer);
    sent(|send| first.follow(later, send));
    assert_eq!(sent(|send| first.tick(later + RETRY, send, &mut no_drops)).1.len(), 0, "nothing is solicited again");
}

#[test]
fn unsolicited_advertisements_and_requests_for_other_hosts_are_ignored() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    // Announcements of hosts that were not solicited.
    let announced = sent(|send| b.announce(send)).1;
    assert_eq!(announced.len(), 2);
    receive(&mut a, NOW, &announced);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("10.0.0.2"), send)).0, Ok(LanNeighbour::Incomplete));
    // After a solicitation an announcement counts as an advertisement.
    receive(&mut a, NOW, &announced);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("10.0.0.2"), send)).0, Ok(LanNeighbour::Resolved(MAC_B)));
    // A solicitation for a third host, and an announcement with this host's own address.
    let third = sent(|send| b.neighbour(NOW, ip("10.0.0.77"), send)).1;
    assert!(!sent(|send| a.receive(NOW, &third[0], send)).0);
    let mut forged = announced[0].clone();
    forged[28..32].copy_from_slice(&[10, 0, 0, 1]);
    assert!(!sent(|send| a.receive(NOW, &forged, send)).0);
}

#[test]
fn packets_off_the_link_go_to_the_gateway_or_are_refused() {
    let mut a = lan(MAC_A, 1);
    let question = sent(|send| a.neighbour(NOW, ip("8.8.8.8"), send)).1;
    assert_eq!(question[0][38..42], [10, 0, 0, 254]);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("2001:db8::1"), send)), (Err(Reason::NoRoute), vec![]));
}

/// An echo request to 10.0.0.2 or fd00::2, written by smoltcp.
fn echo(v6: bool, data: &[u8]) -> Vec<u8> {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::*;
    let all = ChecksumCapabilities::default();
    let mut frame = vec![0; 14];
    frame[..6].copy_from_slice(&MAC_B.0);
    frame[6..12].copy_from_slice(&MAC_A.0);
    if v6 {
        let (src, dst): (Ipv6Address, Ipv6Address) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let message = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 3, data };
        let payload_len = message.buffer_len();
        let header =
            Ipv6Repr { src_addr: src, dst_addr: dst, next_header: IpProtocol::Icmpv6, payload_len, hop_limit: 9 };
        frame[12..].copy_from_slice(&[0x86, 0xdd]);
        frame.resize(14 + 40 + payload_len, 0);
        header.emit(&mut Ipv6Packet::new_unchecked(&mut frame[14..]));
        message.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(&mut frame[54..]), &all);
    } else {
        let (src, dst): (Ipv4Address, Ipv4Address) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let message = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 3, data };
        let payload_len = message.buffer_len();
        let header =
            Ipv4Repr { src_addr: src, dst_addr: dst, next_header: IpProtocol::Icmp, payload_len, hop_limit: 9 };
        frame[12..].copy_from_slice(&[8, 0]);
        frame.resize(14 + 20 + payload_len, 0);
        message.emit(&mut Icmpv4Packet::new_unchecked(&mut frame[34..]), &all);
        header.emit(&mut Ipv4Packet::new_unchecked(&mut frame[14..]), &all);
    }
    frame
}

#[test]
fn echo_is_answered_with_the_same_data_and_damaged_requests_are_not() {
    let mut b = lan(MAC_B, 2);
    for v6 in [false, true] {
        let request = echo(v6, b"abcdefgh");
        let reply = receive(&mut b, NOW, std::slice::from_ref(&request));
        assert_eq!(reply.len(), 1);
        assert_eq!(reply[0].len(), request.len());
        assert_eq!(reply[0][..6], MAC_A.0);
        assert_eq!(reply[0][reply[0].len() - 8..], *b"abcdefgh");
        assert_eq!(reply[0][if v6 { 54 } else { 34 }], if v6 { 129 } else { 0 }, "the type of a reply");
        let end = request.len();
        for at in (14..end).filter(|at| !v6 || *at >= 54) {
            let mut bad = request.clone();
            bad[at] ^= 0x10;
            assert_eq!(sent(|send| b.receive(NOW, &bad, send)).1.len(), 0, "byte {at}");
        }
        for len in 0..end {
            assert_eq!(sent(|send| b.receive(NOW, &request[..len], send)).1.len(), 0, "cut to {len}");
        }
    }
}

#[test]
fn no_received_frame_causes_a_panic() {
    let mut b = lan(MAC_B, 2);
    let mut seed = 7u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    let good = [echo(false, b"x"), echo(true, b"x"), sent(|s| lan(MAC_A, 1).announce(s)).1[1].clone()];
    for round in 0..20_000 {
        let mut frame = good[round % 3].clone();
        for _ in 0..1 + round % 4 {
            let at = usize::from(random()) % frame.len();
            frame[at] = random();
        }
        frame.truncate(14 + usize::from(random()) % frame.len());
        sent(|send| b.receive(NOW, &frame, send));
    }
}
