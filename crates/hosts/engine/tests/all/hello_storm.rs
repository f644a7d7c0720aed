//! A program with queue pairs to very many hosts: what their hellos cost a pass does not grow with their number.
use crate::harness::{CAP, Host};
use burst_base::verbs::{Mtu, QpType};
use burst_base::{Nanos, Qpn, Reason};
use burst_cc::Params;
use burst_control::events::EventQueue;
use burst_frame::RxFrame;
use burst_port::mem::{Hub, MemConfig, MemPort};
use burst_port::{Port, RxSink};
use std::net::IpAddr;
use std::sync::Arc;

const OWN: [u8; 4] = [10, 0, 0, 1];

/// Counts packets to QP1.
struct Hellos(usize);

impl RxSink for Hellos {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.0 += usize::from(frame.bytes[5..8] == [0, 0, 1]);
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason}");
    }
}

fn arrived(peers: &mut MemPort, now: Nanos) -> usize {
    let mut sink = Hellos(0);
    while peers.rx_burst(now, 64, &mut sink) > 0 {}
    sink.0
}

/// A host with a queue pair to each of `count` hosts that answer nothing, and the port where their packets arrive.
fn with_peers(count: u16) -> (Host, MemPort) {
    let ips: Vec<IpAddr> = (0..count).map(|n| IpAddr::from([10, 0, 1 + (n >> 8) as u8, n as u8])).collect();
    let hub = Hub::new(MemConfig::default());
    let mut host = Host::with_selective(Box::new(hub.port("own", &[OWN.into()])), 4096, Params::default());
    let (cq, _) = host.create_cq(16, Arc::new(EventQueue::default()));
    let peers = hub.port("peers", &ips);
    let mut caps = host.caps.clone();
    for ip in &ips {
        caps.addrs[0].ip = *ip;
        let (qpn, ..) = host.create_on(QpType::Rc, CAP, cq);
        host.connect_qpn(qpn, Qpn::new(0x77), &caps, Mtu::B1024);
    }
    (host, peers)
}

#[test]
fn a_pass_asks_few_peers_and_the_next_passes_the_others() {
    let most = [300, 1_200].map(|count| {
        let (mut host, mut peers) = with_peers(count);
        let (mut now, mut asked, mut most) = (Nanos(1_000), 0, 0);
        while asked < usize::from(count) {
            assert!(host.worker.next_deadline() <= now, "{asked} of {count} were asked");
            host.worker.run_once(now);
            let in_pass = arrived(&mut peers, now);
            (asked, most) = (asked + in_pass, most.max(in_pass));
            now = now + Nanos(1_000);
        }
        assert_eq!(asked, usize::from(count), "each once");
        // Then nothing is due until the first questions are repeated.
        assert!(host.worker.next_deadline() >= Nanos::from_ms(250), "{:?}", host.worker.next_deadline());
        most
    });
    assert_eq!(most, [64; 2]);
}
