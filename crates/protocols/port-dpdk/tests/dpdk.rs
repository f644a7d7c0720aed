//! A `dpdk` port on net_ring, which returns every packet: the process exchanges packets with itself. net_ring passes packets by
//! reference, so payload is copied into the device's buffers, as for the driver of a NIC.
//!
//! DPDK starts once for all tests of the process; each test has a device of its own.
#![cfg(feature = "linked")]

#[path = "../../port/tests/common/mod.rs"]
mod common;

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::{
    Encapsulation, PacketChecksum, Port, PortError, PortKind, PortSpec, ReceivePressure, RxSink, open_all, open_beside,
};
use burst_port_dpdk::DpdkPort;
use common::{Collect, flow, push};

/// Opens a port as a program does that links libdpdk.
fn open(spec: &PortSpec, encapsulation: &Encapsulation) -> Result<Box<dyn Port>, PortError> {
    burst_port_dpdk::enable();
    burst_port::open(spec, encapsulation)
}

/// Opens the port of one worker on ring number `ring`, without the wrapper that would loop packets to own addresses back.
fn ring(ring: u32) -> DpdkPort {
    let text = format!("dpdk:dev=net_ring{ring},addr=10.0.0.1/24,addr=fd00::1/64,huge=off");
    let spec = PortSpec::parse(&text).unwrap();
    let PortKind::Dpdk(dpdk) = &spec.kind else { panic!("a dpdk port") };
    DpdkPort::open(dpdk, &Encapsulation::ROCE, &text, 0, 1).unwrap()
}

/// Sends the payloads at `now`; returns the reasons of drops.
fn send(port: &mut dyn Port, now: Nanos, flow: &Flow, payloads: &[Vec<u8>]) -> Vec<Reason> {
    let mut batch = TxBatch::new(payloads.len());
    payloads.iter().for_each(|p| push(&mut batch, flow, p));
    let mut dropped = Vec::new();
    port.tx_burst(now, &batch, &mut |reason| dropped.push(reason));
    dropped
}

fn payloads(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| (0..i * 131 % 4097).map(|at| (i * 7 + at) as u8).collect()).collect()
}

/// Names the first wrong payload, instead of printing all of them.
fn assert_same(got: &[Vec<u8>], want: &[Vec<u8>]) {
    let lengths = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(got), lengths(want));
    let wrong: Vec<usize> = (0..want.len()).filter(|i| got[*i] != want[*i]).collect();
    assert!(wrong.is_empty(), "payloads {wrong:?} are damaged");
}

/// Receives until no packet arrives any more.
fn receive(port: &mut dyn Port, now: Nanos, sink: &mut dyn RxSink) {
    while port.rx_burst(now, 256, sink) > 0 {}
}

#[test]
fn frames_arrive_whole_once_the_neighbour_is_resolved() {
    let mut port = ring(0);
    assert_eq!((port.caps().link_mtu, port.caps().addrs.len(), port.caps().up), (4200, 2, true));
    let now = Nanos::from_ms(5);
    for address in ["10.0.0.1", "fd00::1"] {
        let flow = Flow { src_port: 50_000, tos: 2, ..flow(address, address) };
        let want = payloads(100);
        // The first packets wait for the answer to the ARP request, which this port itself gives through the ring.
        let mut sink = Collect::default();
        assert_eq!(send(&mut port, now, &flow, &want), []);
        receive(&mut port, now, &mut sink);
        // The port's own replies and announcements arrive as well, and are not for it.
        assert!(sink.dropped.iter().all(|r| *r == Reason::NotOurs), "{:?}", sink.dropped);
        assert_same(&sink.payloads(), &want);
        assert!(sink.frames.iter().all(|(f, _)| *f == flow));
        // Later packets do not wait.
        let mut sink = Collect::default();
        for part in want.chunks(40) {
            assert_eq!(send(&mut port, now, &flow, part), []);
            receive(&mut port, now, &mut sink);
        }
        assert_same(&sink.payloads(), &want);
    }
}

#[test]
fn packets_that_cannot_be_sent_have_a_reason() {
    let mut port = ring(1);
    let one = payloads(2);
    let foreign = flow("10.0.0.7", "10.0.0.1");
    assert_eq!(send(&mut port, Nanos(0), &foreign, &one), [Reason::SendFailed; 2]);
    let nowhere = flow("10.0.0.1", "192.0.2.1");
    assert_eq!(send(&mut port, Nanos(0), &nowhere, &one), [Reason::NoRoute; 2]);
    let long = vec![vec![0; 4180]];
    assert_eq!(send(&mut port, Nanos(0), &flow("10.0.0.1", "10.0.0.1"), &long), [Reason::SendTooLong]);
    // No host answers: waiting packets are dropped after three solicitations, later packets at once.
    let silent = flow("10.0.0.1", "10.0.0.99");
    assert_eq!(send(&mut port, Nanos(0), &silent, &one), []);
    let mut sink = Collect::default();
    for tenth in 1..10 {
        receive(&mut port, Nanos::from_ms(100 * tenth), &mut sink);
    }
    let silence: Vec<&Reason> = sink.dropped.iter().filter(|r| **r == Reason::NoNeighbour).collect();
    assert_eq!(silence.len(), 2, "{:?}", sink.dropped);
    assert_eq!(send(&mut port, Nanos::from_ms(900), &silent, &one), [Reason::NoNeighbour; 2]);
}

#[test]
fn a_device_has_one_port_and_as_many_workers_as_queues() {
    let _port = ring(2);
    let again = open(&PortSpec::parse("dpdk:dev=net_ring2,addr=10.0.0.1/24").unwrap(), &Encapsulation::ROCE);
    assert!(again.err().is_some_and(|e| e.to_string().contains("has a port already")));
    let many = open_all(
        &PortSpec::parse("dpdk:dev=net_ring3,addr=10.0.0.1/24,huge=off").unwrap(),
        &Encapsulation::ROCE,
        64,
        None,
    );
    assert!(many.err().is_some_and(|e| e.to_string().contains("start burstd with --workers")));
    drop(_port);
    drop(ring(2));
}

#[test]
fn a_receive_queue_of_which_a_burst_takes_most_is_under_pressure() {
    let mut port = ring(7);
    let flow = flow("10.0.0.1", "10.0.0.1");
    let now = Nanos::from_ms(5);
    assert_eq!(send(&mut port, now, &flow, &payloads(1)), []);
    receive(&mut port, now, &mut Collect::default());
    let mut reported = |frames: usize| {
        assert_eq!(send(&mut port, now, &flow, &vec![vec![7; 64]; frames]), []);
        let mut sink = Collect::default();
        assert_eq!(port.rx_burst(now, 256, &mut sink), frames);
        sink.pressure
    };
    let levels = [100, 150, 200, 0].map(&mut reported);
    let want = [vec![], vec![ReceivePressure::Half], vec![ReceivePressure::ThreeQuarters], vec![ReceivePressure::Free]];
    assert_eq!(levels, want);
}

/// The specification of ring number `ring`, whose two addresses are reached through the device.
fn through_the_ring(ring: u32) -> PortSpec {
    let text = format!("dpdk:dev=net_ring{ring},addr=10.0.0.1/24,addr=fd00::1/64,huge=off,loopback=off");
    PortSpec::parse(&text).unwrap()
}

fn guest(spec: &PortSpec, address: &str) -> Result<Box<dyn Port>, PortError> {
    open_beside(spec, &Encapsulation::UNIFIED_BUS, address.parse().unwrap(), 0)
}

#[test]
fn a_guest_of_the_device_sends_and_receives_beside_the_port() {
    let spec = through_the_ring(8);
    let mut port = open(&spec, &Encapsulation::ROCE).unwrap();
    let mut guests = ["10.0.0.1", "fd00::1"].map(|address| guest(&spec, address).unwrap());
    let (now, want) = (Nanos::from_ms(5), payloads(100));
    for (index, address) in ["10.0.0.1", "fd00::1"].into_iter().enumerate() {
        let names: Vec<String> = guests[index].caps().addrs.iter().map(|a| a.ip.to_string()).collect();
        assert_eq!(names, [address], "it has one of the device's addresses");
        let flow = Flow { src_port: 50_000, tos: 2, ..flow(address, address) };
        // The first round waits for the neighbour, which the port resolves.
        for _ in 0..2 {
            let (mut of_port, mut of_guest) = (Collect::default(), Collect::default());
            assert_eq!(send(&mut *guests[index], now, &flow, &want[..50]), []);
            assert_eq!(send(&mut *port, now, &flow, &want), []);
            assert_eq!(send(&mut *guests[index], now, &flow, &want[50..]), []);
            receive(&mut *port, now, &mut of_port);
            receive(&mut *guests[index], now, &mut of_guest);
            assert_same(&of_port.payloads(), &want);
            assert_same(&of_guest.payloads(), &want);
            assert!(of_guest.frames.iter().all(|(f, _)| *f == flow) && of_guest.dropped.is_empty());
            let other = &mut guests[1 - index];
            assert_eq!(other.rx_burst(now, 256, &mut Collect::default()), 0, "not for the other address");
        }
    }
}

#[test]
fn a_guest_that_sleeps_is_woken_and_one_that_is_not_run_loses_packets_by_name() {
    let spec = through_the_ring(9);
    let mut port = open(&spec, &Encapsulation::ROCE).unwrap();
    let mut guest = guest(&spec, "10.0.0.1").unwrap();
    let (now, flow) = (Nanos::from_ms(5), flow("10.0.0.1", "10.0.0.1"));
    assert_eq!(send(&mut *guest, now, &flow, &payloads(2)), []);
    assert!(!guest.before_sleep() && !is_readable(&*guest) && guest.next_event() == Nanos::NEVER);
    receive(&mut *port, now, &mut Collect::default());
    assert!(is_readable(&*guest) && guest.next_event() == Nanos(0) && guest.before_sleep());
    let mut sink = Collect::default();
    receive(&mut *guest, now, &mut sink);
    assert_same(&sink.payloads(), &payloads(2));
    assert!(!is_readable(&*guest) && !guest.before_sleep());
    // 8 MiB to a guest that no worker runs.
    for _ in 0..40 {
        assert_eq!(send(&mut *guest, now, &flow, &vec![vec![7; 4000]; 50]), []);
        receive(&mut *port, now, &mut Collect::default());
    }
    let mut sink = Collect::default();
    receive(&mut *guest, now, &mut sink);
    assert!((200..2000).contains(&sink.frames.len()), "{}", sink.frames.len());
    assert_eq!(sink.dropped, vec![Reason::ReceiveOverflow; 2000 - sink.frames.len()]);
}

fn is_readable(port: &dyn Port) -> bool {
    let fds = port.wait_fds();
    assert_eq!(fds.len(), 1);
    let mut poll = libc::pollfd { fd: fds[0], events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure for one descriptor.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn guests_of_one_device_reach_each_other_without_it() {
    let text = "dpdk:dev=net_ring10,addr=10.0.0.1/24,addr=10.0.0.2/24,huge=off";
    let spec = PortSpec::parse(text).unwrap();
    let _port = open(&spec, &Encapsulation::ROCE).unwrap();
    let [mut a, mut b] = ["10.0.0.1", "10.0.0.2"].map(|address| guest(&spec, address).unwrap());
    let (now, want) = (Nanos::from_ms(5), payloads(100));
    assert_eq!(send(&mut *a, now, &flow("10.0.0.1", "10.0.0.2"), &want), []);
    let mut sink = Collect::default();
    receive(&mut *b, now, &mut sink);
    assert_same(&sink.payloads(), &want);
    drop(b);
    assert_eq!(send(&mut *a, now, &flow("10.0.0.1", "10.0.0.2"), &want[..2]), [Reason::NotOurs; 2]);
}

#[test]
fn an_address_has_one_guest_and_a_guest_needs_the_device() {
    let spec = through_the_ring(11);
    assert!(guest(&spec, "10.0.0.1").err().is_some_and(|e| e.to_string() == "DPDK device net_ring11 is closed"));
    let port = open(&spec, &Encapsulation::ROCE).unwrap();
    let first = guest(&spec, "10.0.0.1").unwrap();
    assert!(guest(&spec, "10.0.0.1").err().is_some_and(|e| matches!(e, PortError::InUse { port: 4792, .. })));
    let own = open_beside(&spec, &Encapsulation::ROCE, "10.0.0.1".parse().unwrap(), 0);
    assert!(own.err().is_some_and(|e| matches!(e, PortError::InUse { port: 4791, .. })));
    let absent = open_beside(&spec, &Encapsulation::UNIFIED_BUS, "fd00::1".parse().unwrap(), 3);
    assert!(absent.err().is_some_and(|e| e.to_string().contains("no queue 3")));
    drop(first);
    drop((port, guest(&spec, "10.0.0.1").unwrap()));
    drop(open(&spec, &Encapsulation::ROCE).expect("the device was closed"));
}

#[test]
fn a_guest_drops_packets_whose_checksum_is_wrong() {
    let text = "dpdk:dev=net_ring12,addr=10.0.0.1/24,addr=10.0.0.2/24,huge=off,loopback=off";
    let spec = PortSpec::parse(text).unwrap();
    let mut port = open(&spec, &Encapsulation::ROCE).unwrap();
    let other = Encapsulation { checksum: PacketChecksum::Icrc, ..Encapsulation::UNIFIED_BUS };
    let mut liar = open_beside(&spec, &other, "10.0.0.1".parse().unwrap(), 0).unwrap();
    let (mut honest, now) = (guest(&spec, "10.0.0.2").unwrap(), Nanos::from_ms(5));
    for (sender, src) in [(&mut liar, "10.0.0.1"), (&mut honest, "10.0.0.2")] {
        assert_eq!(send(&mut **sender, now, &flow(src, "10.0.0.2"), &payloads(3)), []);
    }
    receive(&mut *port, now, &mut Collect::default());
    let mut sink = Collect::default();
    receive(&mut *honest, now, &mut sink);
    assert_same(&sink.payloads(), &payloads(3));
    assert_eq!(sink.dropped, [Reason::UbChecksum; 3]);
}
