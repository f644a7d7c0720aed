//! A CM request is not repeated while received packets are unread: the answer may be among them.
use crate::harness::Host;
use burst_base::conn::ConnParam;
use burst_base::verbs::{Mtu, QpType};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cm::{PathRecord, service};
use burst_control::cm::{CmData, PortSpace};
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmRequest, CmSession};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::mem::{Hub, MemConfig, MemPort};
use burst_port::{Port, RxSink};
use std::net::IpAddr;
use std::sync::Arc;

const OWN: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const FIRST_TIMEOUT_IS_OVER: Nanos = Nanos::from_ms(200);

/// Counts packets to QP1.
#[derive(Default)]
struct Mads(usize);

impl RxSink for Mads {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.0 += usize::from(frame.bytes[5..8] == [0, 0, 1]);
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason}");
    }
}

fn mads(peer: &mut MemPort, now: Nanos) -> usize {
    let mut sink = Mads::default();
    while peer.rx_burst(now, 64, &mut sink) > 0 {}
    sink.0
}

/// Sends packets to an unknown queue pair, which the host must receive and drop.
fn distract(peer: &mut MemPort, now: Nanos, count: usize) {
    let flow = Flow { src: PEER.into(), dst: OWN.into(), ..Flow::default() };
    let mut head = [0; 12];
    head[4..8].copy_from_slice(&Qpn::new(0x77_7700).get().to_be_bytes());
    for _ in 0..count {
        let mut batch = TxBatch::new(1);
        assert!(batch.push(&flow, &head, &[], 0));
        peer.tx_burst(now, &batch, &mut |reason| panic!("{reason}"));
    }
}

/// A host that has sent a request, and the peer that got it.
fn asking() -> (Host, MemPort) {
    let hub = Hub::new(MemConfig::default());
    let mut host = Host::new(Box::new(hub.port("own", &[OWN.into()])), 4096);
    let mut peer = hub.port("peer", &[PEER.into()]);
    let channel = Arc::new(CmChannel::new().expect("channel"));
    let entry = CmEntry::new(Arc::new(CmSession::default()), 1, PortSpace::Udp, QpType::Ud, channel);
    let flow = Flow { src: OWN.into(), dst: PEER.into(), ..Flow::default() };
    let header = service::PrivateDataHeader { src: IpAddr::from(OWN), port: 7, dst: IpAddr::from(PEER) };
    let request = CmRequest {
        path: PathRecord { device: DeviceId(0), flow },
        header,
        port: 7174,
        mtu: Mtu::B1024,
        ack_timeout: 14,
        param: ConnParam::default(),
        data: CmData::EMPTY,
    };
    host.worker.cm_jobs(Nanos(0), vec![CmJob::Connect(Arc::new(entry), Box::new(request))]);
    host.worker.run_once(Nanos(0));
    assert_eq!(mads(&mut peer, Nanos(0)), 1, "the request");
    (host, peer)
}

#[test]
fn unread_packets_delay_the_repetition() {
    let (mut host, mut peer) = asking();
    distract(&mut peer, Nanos(0), 300);
    let now = FIRST_TIMEOUT_IS_OVER;
    host.worker.run_once(now);
    assert_eq!(mads(&mut peer, now), 0, "packets are unread");
    host.worker.run_once(now);
    assert_eq!(mads(&mut peer, now), 1, "none is unread");
}

#[test]
fn a_flood_of_packets_does_not_prevent_the_repetition() {
    let (mut host, mut peer) = asking();
    let mut repeated = 0;
    for ms in 0..1000 {
        let now = FIRST_TIMEOUT_IS_OVER + Nanos::from_ms(ms);
        distract(&mut peer, now, if ms == 0 { 300 } else { 256 });
        host.worker.run_once(now);
        repeated += mads(&mut peer, now);
    }
    assert!((1..6).contains(&repeated), "{repeated}");
}
