//! A worker's process falls after it has executed requests and before it has acknowledged them. Its successor tells the peers
//! at once: they do not wait for their time-out, in virtual time.
use crate::harness::{AppQp, BASE, Host, poll, request};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpState, QpType, WcStatus, WrOpcode};
use burst_engine::tombstone_file::TombstoneFile;
use burst_port::mem::{MemConfig, pair};
use burst_shm::Cqe;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Less than the time-out of the harness's queue pairs (2^10 times 4.096 us).
const SOON: Nanos = Nanos::from_us(100);

struct Peers {
    client: Host,
    server: Host,
    client_qp: AppQp,
    server_qp: AppQp,
    /// What a supervisor keeps of the server's worker.
    kept: (OwnedFd, Option<OwnedFd>),
    now: Nanos,
}

impl Peers {
    fn new() -> Peers {
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, a, b);
        let (mut client, mut server) = (Host::new(Box::new(pa), 1 << 16), Host::new(Box::new(pb), 1 << 16));
        let file = TombstoneFile::create().expect("memory");
        let records = file.records_fd().try_clone_to_owned().expect("a copy");
        let psns = file.psns_fd().map(|fd| fd.try_clone_to_owned().expect("a copy"));
        assert!(server.worker.adopt_tombstones(Nanos(0), file).expect("an empty file").is_empty());
        let (client_qp, server_qp) = (client.create(QpType::Rc), server.create(QpType::Rc));
        let (client_caps, server_caps) = (client.caps.clone(), server.caps.clone());
        client.connect(&client_qp, server_qp.qpn, &server_caps, Mtu::B1024);
        server.connect(&server_qp, client_qp.qpn, &client_caps, Mtu::B1024);
        Peers { client, server, client_qp, server_qp, kept: (records, psns), now: Nanos(0) }
    }

    fn post(&mut self, opcode: WrOpcode, wr_id: u64, length: u32) {
        let sge = self.client.sge(0, length);
        let wqe = request(opcode, wr_id, BASE + 8192, self.server.key);
        self.client.post(&mut self.client_qp, wqe, &[sge]);
    }

    /// Requests leave, and the server executes what arrives, until `packets` have been received. Its answers have not left:
    /// they leave in its next pass.
    fn execute(&mut self, packets: u64) {
        let expected = self.expected() + packets;
        while self.expected() < expected {
            self.client.worker.run_once(self.now);
            self.now = self.now + Nanos(2_000);
            self.server.worker.run_once(self.now);
        }
    }

    fn expected(&self) -> u64 {
        let psn = self.server.worker.query_qp(self.server_qp.qpn).expect("a queue pair").rq_psn;
        psn.diff(burst_base::Psn::new(0x00ff_fff0)) as u64
    }

    /// The successor takes over. The dead queue pair is gone without a word of its own.
    fn fall(&mut self) {
        let (records, psns) = &self.kept;
        let copy = |fd: &OwnedFd| fd.try_clone().expect("a copy");
        let file = TombstoneFile::from_fds(copy(records), psns.as_ref().map(copy)).expect("mapped");
        assert_eq!(self.server.worker.adopt_tombstones(self.now, file).expect("read"), [self.server_qp.qpn]);
        self.server.worker.destroy_qp(self.now, self.server_qp.qpn, false).expect("a queue pair");
    }

    /// The client's completions within [`SOON`].
    fn soon(&mut self, count: usize) -> Vec<(u64, u8)> {
        let (mut seen, end): (Vec<Cqe>, Nanos) = (Vec::new(), self.now + SOON);
        while self.now < end && seen.len() < count {
            self.client.worker.run_once(self.now);
            self.server.worker.run_once(self.now);
            seen.extend(std::iter::from_fn(|| poll(&mut self.client_qp)));
            self.now = self.now + Nanos(1_000);
        }
        seen.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
    }
}

const DEAD: u8 = WcStatus::RemOpErr as u8;
const FLUSHED: u8 = WcStatus::WrFlushErr as u8;

#[test]
fn a_peer_whose_requests_have_all_arrived_is_notified() {
    for (opcode, length, packets) in [(WrOpcode::RdmaWrite, 64, 1), (WrOpcode::RdmaWrite, 4096, 4)] {
        let mut peers = Peers::new();
        peers.post(opcode, 7, length);
        peers.execute(packets);
        peers.fall();
        assert_eq!(peers.soon(1), [(7, DEAD)], "{length} bytes");
    }
}

#[test]
fn a_peer_whose_reads_have_arrived_and_were_not_answered_is_notified() {
    let mut peers = Peers::new();
    peers.post(WrOpcode::RdmaRead, 7, 4096);
    peers.post(WrOpcode::RdmaRead, 8, 64);
    peers.execute(5);
    peers.fall();
    assert_eq!(peers.soon(2), [(7, DEAD), (8, FLUSHED)]);
}

#[test]
fn a_peer_with_requests_on_the_way_is_notified_of_the_first() {
    let mut peers = Peers::new();
    peers.post(WrOpcode::RdmaWrite, 7, 64);
    peers.execute(1);
    // It arrives after the fall, and the successor answers it as well.
    peers.post(WrOpcode::RdmaWrite, 8, 64);
    peers.client.worker.run_once(peers.now);
    peers.fall();
    assert_eq!(peers.soon(2), [(7, DEAD), (8, FLUSHED)]);
}

#[test]
fn a_peer_without_requests_is_not_disturbed() {
    let mut peers = Peers::new();
    peers.post(WrOpcode::RdmaWrite, 7, 64);
    peers.execute(1);
    peers.server.worker.run_once(peers.now);
    assert_eq!(peers.soon(1), [(7, WcStatus::Success as u8)]);
    peers.fall();
    assert_eq!(peers.soon(1), []);
    let state = peers.client.worker.query_qp(peers.client_qp.qpn).expect("a queue pair").qp_state;
    assert_eq!(state, QpState::Rts);
    peers.post(WrOpcode::RdmaWrite, 8, 64);
    assert_eq!(peers.soon(1), [(8, DEAD)], "its next request is answered");
}
