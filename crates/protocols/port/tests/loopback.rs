//! Real sockets on the loopback interface: sent packets arrive whole, in order, with their addresses, over IPv4 and IPv6, with
//! and without trains; packets that cannot be sent, are damaged or too short have a drop reason.

mod common;

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::{DescriptorStore, Encapsulation, Port, PortError, PortSpec};
use burst_span::Span;
use common::{Collect, flow, open, open_worker, payloads, push_qpn, receive, send};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// A UDP port of this process for a test's number, because tests of another checkout may run on this machine.
fn here(number: u16) -> u16 {
    number + (std::process::id() % 200) as u16 * 100
}

/// A port on an address, with a UDP port of the test's own, so that tests do not receive each other's packets.
fn lo(addr: &str, number: u16, more: &str) -> burst_port::udp::UdpPort {
    open(&format!("udp:dev=lo,addr={addr},udp_port={}{more}", here(number)))
}

/// Sends payloads of these lengths from one port to another and expects them there.
fn transfer(src: &str, dst: &str, udp_port: u16, options: [&str; 2], lengths: &[usize]) {
    let mut a = lo(src, udp_port, options[0]);
    let mut b = if src == dst { None } else { Some(lo(dst, udp_port, options[1])) };
    let sent = payloads(lengths);
    let flow = Flow { tos: 0x6a, hop_limit: 33, ..flow(src, dst) };
    // Few at a time: nothing reads in between, so the socket's buffer is the limit.
    for part in sent.chunks(48) {
        assert_eq!(send(&mut a, &flow, part), []);
        let got = receive(b.as_mut().unwrap_or(&mut a), part.len());
        assert_eq!(got.dropped, []);
        assert!(got.payloads() == part, "{src} {dst} {options:?}: {} of {}", got.frames.len(), part.len());
        for (f, _) in &got.frames {
            assert_eq!((f.src, f.dst, f.src_port), (flow.src, flow.dst, here(udp_port)));
            assert_eq!((f.tos, f.hop_limit), (0x6a, 33));
        }
    }
    let recovered = a.ids_recovered() + b.map_or(0, |b| b.ids_recovered());
    // Without GRO a train arrives in pieces, whose positions in the train are unknown.
    let cut = options == ["", ",gro=off"];
    assert!(cut || recovered == 0, "identifications are predicted, {recovered} were not");
}

const LENGTHS: &[usize] = &[
    0, 1, 2, 3, 4, 5, 64, 64, 64, 64, 255, 256, 257, 258, 1024, 1024, 1024, 1000, 4096, 4096, 4096, 4096, 4096, 4095,
    1, 0, 0, 4096, 9000, 16384, 16384, 16384, 16384, 16384, 60000,
];

#[test]
fn ipv4_with_trains() {
    transfer("127.0.0.1", "127.0.0.2", 10_791, ["", ""], LENGTHS);
    transfer("127.0.0.1", "127.0.0.2", 10_791, ["", ""], &[4096; 300]);
    transfer("127.0.0.1", "127.0.0.2", 10_791, ["", ""], &[64; 1000]);
}

#[test]
fn ipv4_to_ourselves() {
    transfer("127.0.0.1", "127.0.0.1", 10_792, ["", ""], LENGTHS);
}

#[test]
fn ipv4_without_gso_or_gro() {
    transfer("127.0.0.1", "127.0.0.2", 10_793, [",gso=off", ""], LENGTHS);
    transfer("127.0.0.1", "127.0.0.2", 10_793, ["", ",gro=off"], LENGTHS);
    transfer("127.0.0.1", "127.0.0.2", 10_793, [",gso=off", ",gro=off"], LENGTHS);
}

#[test]
fn ipv6_with_and_without_trains() {
    if lo_has_no_ipv6() {
        eprintln!("skipped: lo has no ::1 here");
        return;
    }
    transfer("::1", "::1", 10_794, ["", ""], LENGTHS);
    transfer("::1", "::1", 10_794, [",gso=off", ""], LENGTHS);
    transfer("::1", "::1", 10_794, [",gro=off", ""], LENGTHS);
}

fn lo_has_no_ipv6() -> bool {
    UdpSocket::bind("[::1]:0").is_err()
}

#[test]
fn many_spans_and_foreign_memory_are_gathered() {
    let mut a = lo("127.0.0.1", 10_795, "");
    let mut b = lo("127.0.0.2", 10_795, "");
    let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 11) as u8).collect();
    let flow = flow("127.0.0.1", "127.0.0.2");
    let memory = burst_span::ProcessMemory::own().expect("own memory");
    let mut batch = TxBatch::new(1000);
    let mut head = [0u8; 12];
    head[0] = 0x0a;
    for i in 0..40 {
        let spans: Vec<Span> = bytes
            .chunks(137)
            .map(|c| match i % 2 {
                // SAFETY: `bytes` lives to the end of the test.
                0 => unsafe { Span::local(c.as_ptr().cast_mut(), c.len() as u32) },
                _ => memory.span(c.as_ptr() as u64, c.len() as u32),
            })
            .collect();
        assert!(batch.push(&flow, &head, &spans, 0));
    }
    a.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
    let got = receive(&mut b, 40);
    assert_eq!(got.dropped, []);
    assert!(got.payloads().iter().all(|p| *p == bytes) && got.frames.len() == 40);
}

#[test]
fn damaged_and_short_packets_have_a_reason() {
    let mut b = lo("127.0.0.2", 10_796, "");
    let raw = UdpSocket::bind("127.0.0.1:0").unwrap();
    raw.send_to(&[0xff; 64], ("127.0.0.2", here(10_796))).unwrap();
    raw.send_to(&[0xff; 15], ("127.0.0.2", here(10_796))).unwrap();
    raw.send_to(&[], ("127.0.0.2", here(10_796))).unwrap();
    let got = receive(&mut b, 3);
    assert_eq!(got.dropped, [Reason::BadIcrc, Reason::Truncated, Reason::Truncated]);
    assert!(got.frames.is_empty());
}

#[test]
fn packets_from_foreign_addresses_or_mixed_families_are_not_sent() {
    let mut a = lo("127.0.0.1", 10_797, "");
    let payload = payloads(&[8]);
    assert_eq!(send(&mut a, &flow("127.0.0.9", "127.0.0.2"), &payload), [Reason::SendFailed]);
    assert_eq!(send(&mut a, &flow("127.0.0.1", "::1"), &payload), [Reason::SendFailed]);
}

#[test]
fn an_unbound_destination_is_reported_once_and_does_not_persist() {
    let mut a = lo("127.0.0.1", 10_798, "");
    let payload = payloads(&[8]);
    let mut told = 0;
    for _ in 0..3 {
        told += send(&mut a, &flow("127.0.0.1", "127.0.0.3"), &payload).len();
        told += receive(&mut a, 1).dropped.len();
    }
    assert_eq!(told, 3, "each packet's refusal is counted once");
    let mut b = lo("127.0.0.2", 10_798, "");
    assert_eq!(send(&mut a, &flow("127.0.0.1", "127.0.0.2"), &payload), []);
    assert_eq!(receive(&mut b, 1).frames.len(), 1);
}

#[test]
fn an_overflow_is_counted() {
    let mut a = lo("127.0.0.1", 10_799, "");
    let mut b = lo("127.0.0.2", 10_799, ",rcvbuf=64K");
    let sent = payloads(&[4096; 200]);
    let flow = flow("127.0.0.1", "127.0.0.2");
    assert_eq!(send(&mut a, &flow, &sent), []);
    let first = receive(&mut b, 200);
    assert!(first.frames.len() < 200);
    // The count comes with the next packet.
    send(&mut a, &flow, &sent[..1]);
    let next = receive(&mut b, 1);
    assert!(next.dropped.contains(&Reason::ReceiveOverflow), "{:?}", next.dropped);
}

#[test]
fn a_second_daemon_gets_a_sentence_about_the_bound_port() {
    let _a = lo("127.0.0.1", 10_800, "");
    let spec = PortSpec::parse(&format!("udp:dev=lo,addr=127.0.0.1,udp_port={}", here(10_800))).unwrap();
    for workers in [1, 2] {
        match burst_port::open_all(&spec, &Encapsulation::ROCE, workers, None) {
            Err(error @ PortError::InUse { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("127.0.0.1") && text.contains(&here(10_800).to_string()) && text.contains("rdma_rxe"),
                    "{text}"
                );
            }
            other => panic!("{:?}", other.map(|_| "ports")),
        }
    }
    let spec = PortSpec::parse("udp:dev=lo,addr=203.0.113.9").unwrap();
    let text = burst_port::open(&spec, &Encapsulation::ROCE).err().unwrap().to_string();
    assert!(text.contains("203.0.113.9"), "{text}");
}

/// A store of descriptors in memory.
#[derive(Debug, Default)]
struct MemoryStore(Mutex<BTreeMap<String, OwnedFd>>);

impl DescriptorStore for MemoryStore {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.0.lock().unwrap().get(name).map(|fd| fd.try_clone().unwrap())
    }
    fn store(&self, name: &str, fd: BorrowedFd<'_>) {
        self.0.lock().unwrap().insert(name.to_owned(), fd.try_clone_to_owned().unwrap());
    }
    fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
    fn is_kept(&self) -> bool {
        true
    }
}

#[test]
fn a_successor_takes_over_sockets_with_their_packets_and_not_with_their_losses() {
    let store = Arc::new(MemoryStore::default());
    let shared: Arc<dyn DescriptorStore> = store.clone();
    let udp_port = here(10_812);
    let spec = PortSpec::parse(&format!("udp:dev=lo,addr=127.0.0.2,udp_port={udp_port},rcvbuf=64K")).unwrap();
    let open = || burst_port::open_all(&spec, &Encapsulation::ROCE, 2, Some(&shared)).unwrap();
    drop(open());
    assert_eq!(store.0.lock().unwrap().len(), 2, "one socket for each worker");
    // No process has the port open: packets wait, and those that find no room are lost.
    let mut a = lo("127.0.0.1", 10_812, "");
    let flow = flow("127.0.0.1", "127.0.0.2");
    assert_eq!(send(&mut a, &flow, &payloads(&[4096; 200])), []);
    let mut ports = open();
    let worker = 17 % 2;
    let mut sink = Collect::default();
    while ports[worker].rx_burst(Nanos(0), 1000, &mut sink) > 0 {}
    assert!((1..200).contains(&sink.frames.len()), "{}", sink.frames.len());
    send(&mut a, &flow, &payloads(&[64]));
    assert_eq!(receive(ports[worker].as_mut(), 1).dropped, [], "the losses are the predecessor's");
    assert_eq!(sink.dropped, []);
}

#[test]
fn workers_share_an_address_by_qpn() {
    let mut a = lo("127.0.0.1", 10_801, ",gso=off");
    let text = &format!("udp:dev=lo,addr=127.0.0.2,udp_port={}", here(10_801));
    let mut workers: Vec<_> = (0..3).map(|i| open_worker(text, i, 3)).collect();
    let payload = payloads(&[64]);
    let mut batch = TxBatch::new(30);
    // The low four bits name the worker; slots and generations are in the other bits.
    for qpn in (0..10).flat_map(|slot| (0..3).map(move |worker| slot << 4 | worker)) {
        push_qpn(&mut batch, &flow("127.0.0.1", "127.0.0.2"), &payload[0], qpn);
    }
    a.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
    for (index, port) in workers.iter_mut().enumerate() {
        let got = receive(port, 10);
        let qpns: Vec<u32> = got.frames.iter().map(|(_, b)| u32::from(b[7])).collect();
        assert_eq!(qpns, (0..10).map(|slot| slot << 4 | index as u32).collect::<Vec<_>>());
    }
}

#[test]
fn each_of_several_workers_sends_from_a_port_of_its_own() {
    let mut peer = lo("127.0.0.1", 10_807, "");
    let text = &format!("udp:dev=lo,addr=127.0.0.2,udp_port={}", here(10_807));
    let mut workers: Vec<_> = (0..3).map(|i| open_worker(text, i, 3)).collect();
    let mut ports = Vec::new();
    for port in &mut workers {
        assert_eq!(send(port, &flow("127.0.0.2", "127.0.0.1"), &payloads(&[64; 3])), []);
        let got = receive(&mut peer, 3);
        assert_eq!((got.frames.len(), got.dropped), (3, vec![]), "the ICRCs are right");
        ports.extend(got.frames.iter().map(|(flow, _)| flow.src_port));
    }
    ports.dedup();
    assert!(ports.len() == 3 && !ports.contains(&here(10_807)), "{ports:?}");
}

#[test]
fn the_wait_descriptors_are_readable_when_packets_wait() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fd::BorrowedFd;
    let mut a = lo("127.0.0.1", 10_802, "");
    let mut b = lo("127.0.0.2", 10_802, "");
    let readable = |fds: &[std::os::fd::RawFd]| {
        // SAFETY: the port, which owns the descriptors, lives to the end of the test.
        let fds: Vec<_> = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    for _ in 0..3 {
        assert!(!b.before_sleep());
        let fds = b.wait_fds();
        assert!(!readable(&fds));
        assert_eq!(send(&mut a, &flow("127.0.0.1", "127.0.0.2"), &payloads(&[8])), []);
        assert!(readable(&fds));
        receive(&mut b, 1);
    }
    assert!(!b.refresh(), "nothing changed on lo");
}

#[test]
fn a_specification_with_wrappers_opens_them() {
    let spec =
        PortSpec::parse(&format!("impair:loss=100%,dir=tx,seed=5/udp:dev=lo,addr=127.0.0.1,udp_port={}", here(10_805)))
            .unwrap();
    let mut port = burst_port::open(&spec, &Encapsulation::ROCE).unwrap();
    assert_eq!(port.caps().name, spec.to_string());
    let reasons = send(&mut *port, &flow("127.0.0.1", "127.0.0.1"), &payloads(&[4; 3]));
    assert_eq!(reasons, [Reason::Impaired; 3]);
}

#[test]
fn ports_without_packets_deliver_nothing() {
    let mut a = lo("127.0.0.1", 10_803, "");
    let mut sink = Collect::default();
    assert_eq!(a.rx_burst(Nanos(0), 64, &mut sink), 0);
    assert_eq!(a.rx_burst(Nanos(0), 0, &mut sink), 0);
    assert_eq!(send(&mut a, &flow("127.0.0.1", "127.0.0.2"), &[]), []);
    assert_eq!(a.caps().link_mtu, 65_535);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Packets of any lengths arrive as they were sent, in whatever trains they travel.
    #[test]
    fn any_lengths_arrive(lengths in prop::collection::vec(prop_oneof![0usize..80, 900usize..1100, Just(4096usize), 0usize..20_000], 1..60)) {
        transfer("127.0.0.1", "127.0.0.2", 10_804, ["", ""], &lengths);
    }
}

/// All ports of the group get a copy, the sender's own included, with the group as the destination.
fn group(src: [&str; 2], group: &str, udp_port: u16) {
    let (mut a, mut b) = (lo(src[0], udp_port, ""), lo(src[1], udp_port, ""));
    let ip: std::net::IpAddr = group.parse().unwrap();
    for port in [&mut a, &mut b] {
        port.join(ip).unwrap();
        port.join(ip).unwrap();
    }
    let flow = Flow { scope: 1, ..flow(src[0], group) };
    let sent = payloads(&[1, 64, 4096, 4096, 4096, 900]);
    assert_eq!(send(&mut a, &flow, &sent), []);
    for port in [&mut a, &mut b] {
        let got = receive(port, sent.len());
        assert_eq!((got.dropped.as_slice(), got.payloads() == sent), (&[][..], true), "{} frames", got.frames.len());
        assert!(got.frames.iter().all(|(f, _)| f.dst == ip && f.src == flow.src));
    }
    b.leave(ip);
    assert_eq!(send(&mut a, &flow, &sent), []);
    assert_eq!(receive(&mut a, sent.len()).frames.len(), sent.len());
    let mut nothing = Collect::default();
    assert_eq!(b.rx_burst(Nanos(0), 10, &mut nothing), 0);
}

#[test]
fn groups_get_copies_until_they_are_left() {
    group(["127.0.0.1", "127.0.0.2"], "239.9.8.7", 10_811);
}

#[test]
fn a_group_of_interface_local_scope_is_looped_back_by_every_kind_of_port() {
    // The default group of perftest. The port has no IPv6 address, and neither the kernel nor the link is needed.
    let group = "ff01:0:0:2:c985::";
    let text = format!("udp:dev=lo,addr=127.0.0.1,udp_port={}", here(10_806));
    let mut port = burst_port::open(&PortSpec::parse(&text).unwrap(), &Encapsulation::ROCE).unwrap();
    port.join(group.parse().unwrap()).unwrap();
    let sent = payloads(&[100, 100, 2000]);
    assert_eq!(send(port.as_mut(), &flow("::1", group), &sent), []);
    let got = receive(port.as_mut(), 3);
    assert_eq!((got.payloads(), got.dropped), (sent, vec![]));
    assert!(got.frames.iter().all(|(f, _)| f.dst == group.parse::<std::net::IpAddr>().unwrap()));
    port.leave(group.parse().unwrap());
}

#[test]
fn unicast_addresses_cannot_be_joined() {
    let mut a = lo("127.0.0.1", 10_812, "");
    assert!(a.join("10.1.2.3".parse().unwrap()).is_err());
    // Leaving a group that was not joined changes nothing.
    a.leave("127.0.0.1".parse().unwrap());
    assert_eq!(send(&mut a, &flow("127.0.0.1", "127.0.0.1"), &payloads(&[5])), []);
    assert_eq!(receive(&mut a, 1).frames.len(), 1);
}
