//! The automatic choice of a congestion control: by the vendor id in the bytes of REQ and REP, by notifications of a peer that
//! answers no hello, by marks that acknowledgements count; and who may overrule it.
use crate::harness::{AppQp, BASE, Host, poll, request, run};
use burst_base::conn::{BURST_VENDOR, ConnParam};
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason};
use burst_cc::{CcChoice, CcTable, ChoiceRank};
use burst_cm::message::{Rep, Req};
use burst_cm::service::{PS_TCP, PrivateDataHeader, service_id};
use burst_cm::{Backlog, CmMessage, Mad, PathRecord};
use burst_control::cm::{CmData, PortSpace};
use burst_control::monitor::CcPeer;
use burst_engine::WorkerOptions;
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmQpRef, CmRequest, CmSession, GSI_QKEY, ListenAddr};
use burst_engine::handover::Inbox;
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::impair::Impair;
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use burst_port::{Port, RxSink};
use burst_wire::{Bth, Deth, HeadBuf, MAD_LEN, Opcode};
use std::net::IpAddr;
use std::sync::Arc;

const BYTES: u32 = 1 << 20;
/// An adapter's vendor id.
const ADAPTER_VENDOR: u32 = 0x00_02c9;
const PEER_QPN: u32 = 0x1234;
const PORT: u16 = 7174;
/// Bytes of BTH, DETH and MAD header before a message of the connection manager.
const BODY: usize = 12 + 8 + 24;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn ports() -> (MemPort, MemPort) {
    pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, ip(1), ip(2))
}

/// The one peer of a host.
fn peer_of(host: &Host) -> CcPeer {
    let (mut peers, _) = host.worker.cc_peers(0, 8);
    assert_eq!(peers.len(), 1, "{peers:?}");
    peers.remove(0)
}

/// Kind of the peer, algorithm, and why.
fn shown(host: &Host) -> (String, String, String) {
    let CcPeer { kind, cc, why, .. } = peer_of(host);
    (kind, cc, why)
}

#[derive(Default)]
struct Received(Vec<(Flow, Vec<u8>)>);

impl RxSink for Received {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.0.push((frame.flow, frame.bytes.to_vec()));
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason}");
    }
}

/// A host, and a peer of which each message is made by hand. The peer answers no hello.
struct ByHand {
    host: Host,
    peer: MemPort,
    now: Nanos,
    qp: AppQp,
}

impl ByHand {
    fn new() -> ByHand {
        let (own, peer) = ports();
        let mut host = Host::new(Box::new(own), BYTES);
        let qp = host.create(QpType::Rc);
        ByHand { host, peer, now: Nanos::from_ms(1), qp }
    }

    /// An id of the host's program with the queue pair.
    fn id(&self, session: &Arc<CmSession>) -> CmEntry {
        let channel = Arc::new(CmChannel::new().expect("channel"));
        let entry = CmEntry::new(session.clone(), 1, PortSpace::Tcp, QpType::Rc, channel);
        self.give_qp(&entry);
        entry
    }

    fn give_qp(&self, entry: &CmEntry) {
        entry.qp.set(CmQpRef { qpn: self.qp.qpn, context: 0 }).expect("no queue pair yet");
    }

    /// Lets time pass, and returns what has come to the peer.
    fn pass(&mut self) -> Vec<(Flow, Vec<u8>)> {
        let mut received = Received::default();
        for _ in 0..4 {
            self.now = self.now + Nanos(3_000);
            self.host.worker.run_once(self.now);
            while self.peer.rx_burst(self.now, 64, &mut received) > 0 {}
        }
        received.0
    }

    /// Sends a message of the connection manager; `vendor`: the places of its vendor id in the message, and its bytes.
    fn say(&mut self, message: CmMessage, data: &[u8], vendor: [(usize, u8); 3]) {
        let mut mad = [0; MAD_LEN];
        Mad { tid: 5, modifier: 0, message, data }.emit(&mut mad);
        vendor.into_iter().for_each(|(at, byte)| mad[24 + at] = byte);
        let head = HeadBuf::new(&Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::default()));
        let head = head.deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        let flow = Flow { src: ip(2), dst: ip(1), ..Flow::default() };
        let mut batch = TxBatch::new(1);
        assert!(batch.push_copied(&flow, head.as_slice(), &mad));
        self.peer.tx_burst(self.now, &batch, &mut |reason| panic!("{reason}"));
    }

    /// The ECN bits of a SEND of the queue pair.
    fn ecn_of_send(&mut self) -> u8 {
        let (sge, key) = (self.host.sge(0, 64), self.host.key);
        self.host.post(&mut self.qp, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
        let frames = self.pass();
        let (flow, _) = frames.iter().find(|(_, bytes)| bytes[5..8] == [0, 0x12, 0x34]).expect("a packet");
        flow.tos & 3
    }
}

/// Bytes of a vendor id, which a REQ has together and a REP in three places (IBA 12.6.5, 12.6.8).
fn at(places: [usize; 3], vendor: u32) -> [(usize, u8); 3] {
    let bytes = vendor.to_be_bytes();
    [0, 1, 2].map(|byte| (places[byte], bytes[byte + 1]))
}
const IN_REQ: [usize; 3] = [5, 6, 7];
const IN_REP: [usize; 3] = [15, 19, 23];

fn param() -> ConnParam {
    ConnParam { responder_resources: 1, initiator_depth: 1, retry_count: 7, ..ConnParam::default() }
}

/// The host asks, and the peer's REP has this vendor id. Returns the vendor id of the REQ, too.
fn connected_actively(vendor: u32) -> (ByHand, u32) {
    let mut by_hand = ByHand::new();
    let entry = Arc::new(by_hand.id(&Arc::default()));
    let flow = Flow { src: ip(1), dst: ip(2), ..Flow::default() };
    let request = CmRequest {
        path: PathRecord { device: DeviceId(0), flow },
        header: PrivateDataHeader { src: ip(1), port: 7, dst: ip(2) },
        port: PORT,
        mtu: Mtu::B1024,
        ack_timeout: 14,
        param: param(),
        data: CmData::EMPTY,
    };
    by_hand.host.worker.cm_jobs(by_hand.now, vec![CmJob::Connect(entry.clone(), Box::new(request))]);
    let frames = by_hand.pass();
    let [(_, req)] = &frames[..] else { panic!("{} frames", frames.len()) };
    let asked = u32::from_be_bytes([0, req[BODY + 5], req[BODY + 6], req[BODY + 7]]);
    let mad: &[u8; MAD_LEN] = req[BODY - 24..].first_chunk().expect("a whole MAD");
    let CmMessage::Req(Req { local_id, .. }) = Mad::parse(mad).expect("a message").message else { panic!("no REQ") };
    let rep = Rep { local_id: 9, remote_id: local_id, qpn: PEER_QPN, initiator_depth: 1, ..Rep::default() };
    by_hand.say(rep.into(), &[], at(IN_REP, vendor));
    by_hand.pass();
    (by_hand, asked)
}

/// The peer's REQ has this vendor id, and the host accepts. Returns the vendor id of the REP, too.
fn connected_passively(vendor: u32) -> (ByHand, u32) {
    let mut by_hand = ByHand::new();
    let session = Arc::new(CmSession::default());
    let channel = Arc::new(CmChannel::new().expect("channel"));
    let listener = Arc::new(CmEntry::new(session.clone(), 2, PortSpace::Tcp, QpType::Rc, channel));
    let at_all = ListenAddr { addr: None, device: None, port: PORT };
    by_hand.host.worker.cm_listen(listener, at_all, Arc::new(Backlog::new(8))).expect("a free port");
    let req = Req {
        local_id: 1,
        service_id: service_id(PS_TCP, PORT),
        qpn: PEER_QPN,
        responder_resources: 1,
        initiator_depth: 1,
        pkey: 0xffff,
        mtu: Mtu::B1024 as u8,
        retry_count: 7,
        ack_timeout: 14,
        ..Req::default()
    };
    let header = PrivateDataHeader { src: ip(2), port: 5, dst: ip(1) };
    by_hand.say(req.into(), &header.to_bytes(), at(IN_REQ, vendor));
    by_hand.pass();
    let entry = session.arrivals.pop().expect("an id of the request");
    by_hand.give_qp(&entry);
    by_hand.host.worker.cm_jobs(by_hand.now, vec![CmJob::Accept(entry, param(), Box::new(CmData::EMPTY))]);
    let frames = by_hand.pass();
    let [(_, rep), ..] = &frames[..] else { panic!("no REP") };
    let [high, middle, low] = IN_REP.map(|at| rep[BODY + at]);
    (by_hand, u32::from_be_bytes([0, high, middle, low]))
}

#[test]
fn the_vendor_id_of_a_connection_chooses_dcqcn_towards_adapters() {
    for (vendor, cc, said) in
        [(ADAPTER_VENDOR, "dcqcn", "not Burst"), (0, "dcqcn", "not Burst"), (BURST_VENDOR, "cubic", "default")]
    {
        let (active, asked) = connected_actively(vendor);
        assert_eq!(asked, BURST_VENDOR, "the bytes of the REQ");
        let (passive, answered) = connected_passively(vendor);
        assert_eq!(answered, if vendor == BURST_VENDOR { BURST_VENDOR } else { 0 }, "the bytes of the REP");
        for mut by_hand in [active, passive] {
            let (kind, chosen, why) = shown(&by_hand.host);
            assert_eq!((kind.as_str(), chosen.as_str()), ("standard", cc), "{vendor:#x}");
            assert!(why.contains(said), "{vendor:#x}: {why}");
            assert_eq!(by_hand.ecn_of_send(), 2, "ECT(0): a RoCE fabric drops the others where it marks these");
        }
    }
}

#[test]
fn an_adapters_requests_alone_choose_nothing() {
    let mut by_hand = ByHand::new();
    by_hand.host.connect(&by_hand.qp, Qpn::new(PEER_QPN), by_hand.peer.caps(), Mtu::B1024);
    // Anybody can send a REQ in the peer's name.
    by_hand.say(Req { local_id: 1, ..Req::default() }.into(), &[], at(IN_REQ, ADAPTER_VENDOR));
    by_hand.pass();
    let (_, cc, why) = shown(&by_hand.host);
    assert!(cc == "cubic" && why.contains("until packets are marked"), "{cc}: {why}");
}

/// Two hosts of which each receives all ECN-capable frames marked, and drops a part of the others.
fn marked_hosts(cc: CcTable, selective: bool) -> (Host, Host) {
    let (pa, pb) = ports();
    let spec = ImpairSpec { ecn: Ppm(1_000_000), seed: 1, ..ImpairSpec::default() };
    let host = |port: MemPort| {
        let inboxes = vec![Arc::new(Inbox::new(1).expect("inbox"))];
        let options = WorkerOptions { cc, selective, ..WorkerOptions::default() };
        Host::with_options(Box::new(Impair::new(Box::new(port), spec)), BYTES, inboxes, options)
    };
    (host(pa), host(pb))
}

/// Transfers for `ms` milliseconds.
fn transfer(a: &mut Host, b: &mut Host, qp: &mut AppQp, now: &mut Nanos, ms: u64) {
    let end = *now + Nanos::from_ms(ms);
    while *now < end {
        let (sge, key) = (a.sge(0, 256 << 10), b.key);
        a.post(qp, request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]);
        assert!(run(a, b, now, |_, _| poll(qp).is_some_and(|cqe| cqe.status == 0)), "a transfer");
        *now = *now + Nanos::from_us(500);
    }
}

fn connected(a: &mut Host, b: &mut Host) -> (AppQp, AppQp) {
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    (qa, qb)
}

/// The peer answers no hello and marks with notifications, as adapters do.
#[test]
fn notifications_of_a_silent_peer_choose_dcqcn_and_losses_without_marks_the_default() {
    let (mut a, mut b) = marked_hosts(CcTable::default(), false);
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos::from_ms(1);
    transfer(&mut a, &mut b, &mut qa, &mut now, 5);
    let (kind, cc, why) = shown(&a);
    assert_eq!((kind.as_str(), cc.as_str()), ("standard", "cubic"), "a few marks choose nothing");
    assert!(why.contains("default"), "{why}");
    transfer(&mut a, &mut b, &mut qa, &mut now, 60);
    let (_, cc, why) = shown(&a);
    assert!(cc == "dcqcn" && why.contains("notifications"), "{cc}: {why}");
    assert_eq!(peer_of(&b).cc, "cubic", "it has sent nothing");
}

#[test]
fn marks_that_acknowledgements_count_choose_dctcp_between_burst_daemons() {
    let (mut a, mut b) = marked_hosts(CcTable::default(), true);
    let (mut qa, _qb) = connected(&mut a, &mut b);
    let mut now = Nanos::from_ms(1);
    transfer(&mut a, &mut b, &mut qa, &mut now, 3);
    let (kind, cc, why) = shown(&a);
    assert_eq!((kind.as_str(), cc.as_str()), ("burst", "cubic"));
    assert!(why.contains("between Burst daemons"), "{why}");
    transfer(&mut a, &mut b, &mut qa, &mut now, 60);
    let (_, cc, why) = shown(&a);
    assert!(cc == "dctcp" && why.contains("counts the marks"), "{cc}: {why}");
}

#[test]
fn a_persons_choice_is_obeyed_whatever_is_marked() {
    let mut table = CcTable::default();
    table.set(None, CcChoice::parse("aimd", 1 << 20, ChoiceRank::Configured).expect("valid"));
    for selective in [false, true] {
        let (mut a, mut b) = marked_hosts(table, selective);
        let (mut qa, _qb) = connected(&mut a, &mut b);
        let mut now = Nanos::from_ms(1);
        transfer(&mut a, &mut b, &mut qa, &mut now, 60);
        let (_, cc, why) = shown(&a);
        assert!(cc == "aimd" && why.contains("configuration"), "{cc}: {why}");
        // After `burst cc auto` on both the path has what it has met; a command is obeyed again.
        b.worker.set_cc(now, CcTable::default());
        a.worker.set_cc(now, CcTable::default());
        for _ in 0..2_500 {
            now = now + Nanos::from_ms(1);
            a.worker.run_once(now);
            b.worker.run_once(now);
        }
        let (_, cc, why) = shown(&a);
        assert!(["dcqcn", "dctcp"].contains(&cc.as_str()) && why.contains("mark packets"), "{cc}: {why}");
        let mut commanded = CcTable::default();
        commanded.set(None, CcChoice::parse("swift", 1 << 20, ChoiceRank::Commanded).expect("valid"));
        a.worker.set_cc(now, commanded);
        let (_, cc, why) = shown(&a);
        assert!(cc == "swift" && why.contains("burst cc"), "{cc}: {why}");
    }
}
