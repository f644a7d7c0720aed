//! Worker numbers lent to other processes, by real sockets on the loopback interface: who gets which packets before, while and
//! after a number is lent.

mod common;

use burst_base::{Nanos, Qpn};
use burst_frame::TxBatch;
use burst_port::{
    AddressSharing, DescriptorStore, Encapsulation, LentSocket, Port, PortError, PortSpec, can_lend, open_lent,
    open_shared,
};
use common::{Collect, flow, open, payloads, push_qpn, receive};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// A UDP port of this process for a test's number, because tests of another checkout may run on this machine.
fn here(number: u16) -> u16 {
    number + (std::process::id() % 200) as u16 * 100
}

const LENDER: &str = "127.0.0.2";
const PEER: &str = "127.0.0.1";

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

fn spec(number: u16) -> PortSpec {
    PortSpec::parse(&format!("udp:dev=lo,addr={LENDER},udp_port={}", here(number))).unwrap()
}

fn lender(number: u16, workers: usize, store: Option<&Arc<dyn DescriptorStore>>) -> Vec<Box<dyn Port>> {
    open_shared(&spec(number), &Encapsulation::ROCE, workers, store, AddressSharing::Lends).unwrap()
}

fn borrower(number: u16, worker: usize, sockets: Vec<LentSocket>) -> Box<dyn Port> {
    let store: Arc<dyn DescriptorStore> = Arc::new(MemoryStore(Mutex::new(sockets.into_iter().collect())));
    open_lent(&spec(number), &Encapsulation::ROCE, worker, &store).unwrap()
}

/// Sends one packet to each queue pair, by itself.
fn send(port: &mut dyn Port, from: &str, qpns: &[u32]) {
    let payload = payloads(&[64]);
    for qpn in qpns {
        let mut batch = TxBatch::new(1);
        push_qpn(&mut batch, &flow(from, LENDER), &payload[0], *qpn);
        port.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
    }
}

/// The destinations of `count` packets, which are all that arrive.
fn destinations(port: &mut dyn Port, count: usize) -> Vec<u32> {
    let got = receive(port, count);
    let mut rest = Collect::default();
    port.rx_burst(Nanos(0), 64, &mut rest);
    assert_eq!((got.dropped.len(), rest.frames.len()), (0, 0));
    got.frames.iter().map(|(_, b)| u32::from_be_bytes([0, b[5], b[6], b[7]])).collect()
}

#[test]
fn each_process_gets_the_packets_of_its_number_and_worker_0_those_of_management() {
    let mut peer = open(&format!("udp:dev=lo,addr={PEER},udp_port={},gso=off", here(10_820)));
    let mut own = lender(10_820, 2, None);
    let mut third = borrower(10_820, 2, own[0].lend(2).unwrap());
    let mut fourth = borrower(10_820, 3, own[0].lend(3).unwrap());
    let reserved = [0, 1, Qpn::MULTICAST.get()];
    let numbers: Vec<u32> = (0..6).map(|worker| 0x500 | worker).chain(reserved).collect();
    send(&mut peer, PEER, &numbers);
    // Numbers that nobody has are spread over the lender's workers.
    assert_eq!(destinations(&mut *own[0], 5), [0x500, 0x504, 0, 1, Qpn::MULTICAST.get()]);
    assert_eq!(destinations(&mut *own[1], 2), [0x501, 0x505]);
    assert_eq!(destinations(&mut *third, 1), [0x502]);
    assert_eq!(destinations(&mut *fourth, 1), [0x503]);
}

#[test]
fn a_returned_number_is_the_lenders_and_can_be_lent_again() {
    let mut peer = open(&format!("udp:dev=lo,addr={PEER},udp_port={},gso=off", here(10_821)));
    let mut own = lender(10_821, 1, None);
    let sockets = own[0].lend(1).unwrap();
    let mut later = borrower(10_821, 2, own[0].lend(2).unwrap());
    // What a hostile holder can do: it takes all packets of a peer.
    let to: std::net::SocketAddrV4 = format!("{PEER}:{}", here(10_821)).parse().unwrap();
    let raw = sockets[0].1.as_raw_fd();
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: a socket address of the length given.
    let rc = unsafe { libc::connect(raw, (&raw const name).cast(), size_of_val(&name) as libc::socklen_t) };
    assert_eq!(rc, 0);
    send(&mut peer, PEER, &[0x510, 0x520, 0x530, 0x501]);
    let mut robbed = Collect::default();
    own[0].rx_burst(Nanos(0), 64, &mut robbed);
    assert!(robbed.frames.is_empty(), "if the kernel has closed this door, docs/threats.md should say so");
    drop(sockets);
    own[0].take_back(1);
    send(&mut peer, PEER, &[0x540, 0x541, 0x502]);
    assert_eq!(destinations(&mut *own[0], 2), [0x540, 0x541], "and nothing that came before");
    assert_eq!(destinations(&mut *later, 1), [0x502], "the indices of others stay");
    let mut again = borrower(10_821, 1, own[0].lend(1).unwrap());
    send(&mut peer, PEER, &[0x551, 0x550]);
    assert_eq!(destinations(&mut *again, 1), [0x551]);
    assert_eq!(destinations(&mut *own[0], 1), [0x550]);
    // What nobody has lent changes nothing.
    own[0].take_back(9);
}

#[test]
fn processes_of_one_address_reach_each_other_through_the_kernel() {
    let mut own = lender(10_822, 1, None);
    let mut first = borrower(10_822, 1, own[0].lend(1).unwrap());
    let mut second = borrower(10_822, 2, own[0].lend(2).unwrap());
    send(&mut *own[0], LENDER, &[0x501, 0x500, 1]);
    send(&mut *first, LENDER, &[0x511, 0x512, 0x510, 1]);
    assert_eq!(destinations(&mut *first, 2), [0x511, 0x501], "its own are looped back in the process");
    assert_eq!(destinations(&mut *second, 1), [0x512]);
    assert_eq!(destinations(&mut *own[0], 4), [0x500, 1, 0x510, 1]);
}

#[test]
fn a_successor_keeps_the_sockets_and_lends_them_anew() {
    let store: Arc<dyn DescriptorStore> = Arc::new(MemoryStore::default());
    let mut peer = open(&format!("udp:dev=lo,addr={PEER},udp_port={},gso=off", here(10_823)));
    let mut own = lender(10_823, 2, Some(&store));
    let orphan = (own[0].lend(2).unwrap(), own[0].lend(3).unwrap());
    drop(own);
    let mut own = lender(10_823, 2, Some(&store));
    send(&mut peer, PEER, &[0x502, 0x503]);
    assert_eq!(destinations(&mut *own[0], 1), [0x502], "lent to nobody");
    assert_eq!(destinations(&mut *own[1], 1), [0x503]);
    drop(orphan);
    let mut third = borrower(10_823, 2, own[0].lend(2).unwrap());
    send(&mut peer, PEER, &[0x512, 0x513]);
    assert_eq!(destinations(&mut *third, 1), [0x512]);
    assert_eq!(destinations(&mut *own[1], 1), [0x513]);
}

#[test]
fn others_lend_nothing() {
    let refused = |port: &mut dyn Port| matches!(port.lend(1), Err(PortError::Unsupported { .. }));
    assert!(refused(&mut *burst_port::open(&spec(10_824), &Encapsulation::ROCE).unwrap()));
    let mut own = lender(10_825, 2, None);
    assert!(refused(&mut *own[1]), "only worker 0");
    let sockets = own[0].lend(2).unwrap();
    assert!(refused(&mut *borrower(10_825, 2, sockets)));
    let kinds = ["udp", "impair:loss=1%/udp:dev=lo", "packet:dev=lo"].map(|text| PortSpec::parse(text).unwrap());
    assert_eq!(kinds.each_ref().map(can_lend), [true, true, false]);
    let empty: Arc<dyn DescriptorStore> = Arc::new(MemoryStore::default());
    assert!(open_lent(&spec(10_826), &Encapsulation::ROCE, 1, &empty).is_err(), "no socket, no address");
}
