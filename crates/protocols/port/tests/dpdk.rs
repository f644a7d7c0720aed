//! A `dpdk` port on net_ring, which returns every packet: the process exchanges packets with itself. net_ring passes packets by
//! reference, so payload is copied into the device's buffers, as for the driver of a NIC.
//!
//! DPDK starts once for all tests of the process; each test has a device of its own.
#![cfg(feature = "dpdk")]

mod common;

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::dpdk::DpdkPort;
use burst_port::{Encapsulation, Port, PortKind, PortSpec, ReceivePressure, RxSink, open, open_all};
use common::{Collect, flow, push};

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
    let mut told = |frames: usize| {
        assert_eq!(send(&mut port, now, &flow, &vec![vec![7; 64]; frames]), []);
        let mut sink = Collect::default();
        assert_eq!(port.rx_burst(now, 256, &mut sink), frames);
        sink.pressure
    };
    let levels = [100, 150, 200, 0].map(&mut told);
    let want = [vec![], vec![ReceivePressure::Half], vec![ReceivePressure::ThreeQuarters], vec![ReceivePressure::Free]];
    assert_eq!(levels, want);
}
