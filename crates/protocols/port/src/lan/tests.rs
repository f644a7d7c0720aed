//! Two hosts that exchange frames by hand: this arrives, that must happen.

use super::*;
use neighbours::{FRESH, RETRY, SILENCE, TRIES, WAITING_MAX};

const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(mac: MacAddr, last: u8) -> Arc<Host> {
    let addrs = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")].iter().map(|p| p.parse().unwrap()).collect();
    Arc::new(Host { mac, addrs, gateways: vec![ip("10.0.0.254")] })
}

fn lan(mac: MacAddr, last: u8) -> Lan {
    Lan::new(host(mac, last), Arc::default(), 2048)
}

/// Runs `f` with a place for frames; returns its result and the frames.
fn sent<R>(f: impl FnOnce(Send<'_>) -> R) -> (R, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    let result = f(&mut |frame| frames.push(frame.to_vec()));
    (result, frames)
}

/// What `to` sends when it hears these frames.
fn hear(to: &mut Lan, now: Nanos, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    sent(|send| frames.iter().for_each(|f| assert!(to.hear(now, f, send), "{f:02x?}"))).1
}

fn no_drops(reason: Reason) {
    panic!("{reason}");
}

const NOW: Nanos = Nanos::from_ms(1000);

#[test]
fn a_question_is_answered_and_both_know_each_other() {
    for peer in ["10.0.0.2", "fd00::2"] {
        let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
        let (found, question) = sent(|send| a.neighbour(NOW, ip(peer), send));
        assert_eq!((found, question.len()), (Ok(Neighbour::Asked), 1));
        let version = a.version();
        let answer = hear(&mut b, NOW, &question);
        assert_eq!(answer.len(), 1);
        assert_eq!(hear(&mut a, NOW, &answer).len(), 0);
        assert_ne!(a.version(), version);
        assert_eq!(sent(|send| a.neighbour(NOW, ip(peer), send)), (Ok(Neighbour::Known(MAC_B)), vec![]));
        let back = if peer.contains(':') { "fd00::1" } else { "10.0.0.1" };
        assert_eq!(sent(|send| b.neighbour(NOW, ip(back), send)), (Ok(Neighbour::Known(MAC_A)), vec![]));
    }
}

#[test]
fn a_silent_neighbour_is_asked_three_times_and_its_frames_are_dropped() {
    let mut a = lan(MAC_A, 1);
    let dst = ip("10.0.0.9");
    let mut questions = sent(|send| a.neighbour(NOW, dst, send)).1.len();
    assert!(a.hold(dst, &[0; 100]));
    let (mut now, mut dropped) = (NOW, Vec::new());
    for _ in 0..TRIES {
        now = now + RETRY;
        questions += sent(|send| a.tick(now, send, &mut |r| dropped.push(r))).1.len();
    }
    assert_eq!((questions, dropped), (usize::from(TRIES), vec![Reason::NoNeighbour]));
    assert_eq!(sent(|send| a.neighbour(now, dst, send)), (Ok(Neighbour::Silent), vec![]));
    // After a while it is worth another question.
    sent(|send| a.tick(now + SILENCE, send, &mut no_drops));
    assert_eq!(sent(|send| a.neighbour(now + SILENCE, dst, send)).1.len(), 1);
}

#[test]
fn frames_wait_for_the_answer_and_leave_in_order() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    let dst = ip("10.0.0.2");
    let question = sent(|send| a.neighbour(NOW, dst, send)).1;
    for number in 0..WAITING_MAX {
        assert!(a.hold(dst, &[number as u8; 60]));
    }
    assert!(!a.hold(dst, &[0; 60]), "the store is full");
    let answer = hear(&mut b, NOW, &question);
    let out = hear(&mut a, NOW, &answer);
    assert_eq!(out.len(), WAITING_MAX);
    assert!(out.iter().enumerate().all(|(i, f)| f[..6] == MAC_B.0 && f[6..] == [i as u8; 54]));
    assert!(a.hold(dst, &[0; 60]), "there is room again");
}

#[test]
fn a_used_neighbour_is_refreshed_and_keeps_its_address_meanwhile() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    let dst = ip("fd00::2");
    let question = sent(|send| a.neighbour(NOW, dst, send)).1;
    let answer = hear(&mut b, NOW, &question);
    hear(&mut a, NOW, &answer);
    a.used(dst);
    let later = NOW + FRESH;
    let probe = sent(|send| a.tick(later, send, &mut no_drops)).1;
    assert_eq!(probe.len(), 1);
    assert_eq!(probe[0][..6], MAC_B.0, "itself is asked, not everybody");
    assert_eq!(sent(|send| a.neighbour(later, dst, send)).0, Ok(Neighbour::Known(MAC_B)));
    let answer = hear(&mut b, later, &probe);
    hear(&mut a, later, &answer);
    let probe = sent(|send| a.tick(later + FRESH, send, &mut no_drops)).1;
    let answer = hear(&mut b, later + FRESH, &probe);
    hear(&mut a, later + FRESH, &answer);
    // Not used since: forgotten when the answer is old.
    let version = a.version();
    assert_eq!(sent(|send| a.tick(later + FRESH + FRESH, send, &mut no_drops)).1.len(), 0);
    assert_ne!(a.version(), version);
}

#[test]
fn workers_share_answers() {
    let shared = Arc::<Shared>::default();
    let worker = || Lan::new(host(MAC_A, 1), shared.clone(), 2048);
    let (mut first, mut second, mut b) = (worker(), worker(), lan(MAC_B, 2));
    let dst = ip("10.0.0.2");
    let question = sent(|send| first.neighbour(NOW, dst, send)).1;
    assert!(first.hold(dst, &[7; 60]));
    let answer = hear(&mut b, NOW, &question);
    // The device gives the answer to the other worker.
    hear(&mut second, NOW, &answer);
    let out = sent(|send| first.follow(NOW, send)).1;
    assert_eq!(out.len(), 1);
    assert_eq!(sent(|send| first.neighbour(NOW, dst, send)).0, Ok(Neighbour::Known(MAC_B)));
    // A refresh whose answer says nothing new counts as well.
    first.used(dst);
    let later = NOW + FRESH;
    let probe = sent(|send| first.tick(later, send, &mut no_drops)).1;
    let answer = hear(&mut b, later, &probe);
    hear(&mut second, later, &answer);
    sent(|send| first.follow(later, send));
    assert_eq!(sent(|send| first.tick(later + RETRY, send, &mut no_drops)).1.len(), 0, "nothing is asked again");
}

#[test]
fn strangers_teach_nothing_and_foreign_questions_are_left_alone() {
    let (mut a, mut b) = (lan(MAC_A, 1), lan(MAC_B, 2));
    // Announcements of unknown hosts.
    let announced = sent(|send| b.announce(send)).1;
    assert_eq!(announced.len(), 2);
    hear(&mut a, NOW, &announced);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("10.0.0.2"), send)).0, Ok(Neighbour::Asked));
    // Once asked for, an announcement is an answer.
    hear(&mut a, NOW, &announced);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("10.0.0.2"), send)).0, Ok(Neighbour::Known(MAC_B)));
    // A question for a third host, and one with our own address as its source.
    let third = sent(|send| b.neighbour(NOW, ip("10.0.0.77"), send)).1;
    assert!(!sent(|send| a.hear(NOW, &third[0], send)).0);
    let mut forged = announced[0].clone();
    forged[28..32].copy_from_slice(&[10, 0, 0, 1]);
    assert!(!sent(|send| a.hear(NOW, &forged, send)).0);
}

#[test]
fn what_is_off_the_link_goes_to_the_gateway_or_nowhere() {
    let mut a = lan(MAC_A, 1);
    let question = sent(|send| a.neighbour(NOW, ip("8.8.8.8"), send)).1;
    assert_eq!(question[0][38..42], [10, 0, 0, 254]);
    assert_eq!(sent(|send| a.neighbour(NOW, ip("2001:db8::1"), send)), (Err(Reason::NoRoute), vec![]));
}

/// An echo request to 10.0.0.2 or fd00::2, made by asking smoltcp for the bytes.
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
fn echo_is_answered_with_the_same_data_and_damage_is_not() {
    let mut b = lan(MAC_B, 2);
    for v6 in [false, true] {
        let request = echo(v6, b"abcdefgh");
        let reply = hear(&mut b, NOW, std::slice::from_ref(&request));
        assert_eq!(reply.len(), 1);
        assert_eq!(reply[0].len(), request.len());
        assert_eq!(reply[0][..6], MAC_A.0);
        assert_eq!(reply[0][reply[0].len() - 8..], *b"abcdefgh");
        assert_eq!(reply[0][if v6 { 54 } else { 34 }], if v6 { 129 } else { 0 }, "the type of a reply");
        let end = request.len();
        for at in (14..end).filter(|at| !v6 || *at >= 54) {
            let mut bad = request.clone();
            bad[at] ^= 0x10;
            assert_eq!(sent(|send| b.hear(NOW, &bad, send)).1.len(), 0, "byte {at}");
        }
        for len in 0..end {
            assert_eq!(sent(|send| b.hear(NOW, &request[..len], send)).1.len(), 0, "cut to {len}");
        }
    }
}

#[test]
fn nothing_that_arrives_is_a_panic() {
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
        sent(|send| b.hear(NOW, &frame, send));
    }
}
