//! Two engines agree on a congestion control by their hellos; others get what their kind is given.
use crate::harness::{AppQp, Host};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType};
use burst_cc::{CcChoice, CcTable, ChoiceRank, Params, PeerKind};
use burst_cm::Secret;
use burst_control::monitor::CcPeer;
use burst_port::mem::{MemConfig, pair};
use std::net::IpAddr;

const WINDOW: u64 = 1 << 20;
const MS: Nanos = Nanos::from_ms(1);

fn choice(text: &str, rank: ChoiceRank) -> CcChoice {
    CcChoice { params: Params::parse(text, WINDOW).expect("a valid specification"), rank }
}

/// A table with one choice for all kinds.
fn all(text: &str, rank: ChoiceRank) -> CcTable {
    let mut table = CcTable::default();
    table.set(None, choice(text, rank));
    table
}

/// Two connected hosts whose boot ids follow from different secrets. Returns the time after some milliseconds, too.
struct Pair {
    hosts: [Host; 2],
    _qps: Vec<AppQp>,
    now: Nanos,
}

impl Pair {
    fn new(tables: [CcTable; 2]) -> Pair {
        let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (pa, pb) = pair(MemConfig::default(), ip_a, ip_b);
        let host = |port, table, seed| Host::with_table(Box::new(port), 4096, table, Secret::new([seed; 2]));
        let mut hosts = [host(pa, tables[0], 1), host(pb, tables[1], 2)];
        let [a, b] = &mut hosts;
        let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
        let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
        a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
        b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
        let mut pair = Pair { hosts, _qps: vec![qa, qb], now: MS };
        pair.pass(5);
        pair
    }
    /// Lets so many milliseconds pass.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now + MS;
            for host in &mut self.hosts {
                host.worker.run_once(self.now);
            }
        }
    }
    fn peers(&self) -> [CcPeer; 2] {
        self.hosts.each_ref().map(|host| host.worker.cc_peers(0, 8).0.remove(0))
    }
    /// The algorithms of both ends.
    fn algorithms(&self) -> [String; 2] {
        self.peers().map(|peer| peer.cc)
    }
}

#[test]
fn two_hosts_without_a_choice_say_nothing() {
    let pair = Pair::new([CcTable::default(); 2]);
    assert_eq!(pair.algorithms(), ["cubic", "cubic"]);
    assert_eq!(pair.peers().map(|peer| peer.kind), ["standard", "standard"], "no hello was sent");
}

#[test]
fn the_choice_of_one_holds_for_both() {
    for chooser in [0, 1] {
        let mut tables = [CcTable::default(); 2];
        tables[chooser] = all("swift:beta=0.5", ChoiceRank::Configured);
        let pair = Pair::new(tables);
        assert_eq!(pair.algorithms(), ["swift:beta=0.5", "swift:beta=0.5"]);
        let peers = pair.peers();
        assert_eq!([0, 1].map(|at| peers[at].is_peers_choice), [chooser == 1, chooser == 0]);
        assert!(peers.iter().all(|peer| peer.kind == "burst"));
    }
}

#[test]
fn of_two_choices_both_take_the_same() {
    let pair = Pair::new([all("dctcp", ChoiceRank::Configured), all("swift", ChoiceRank::Configured)]);
    let [a, b] = pair.algorithms();
    assert_eq!(a, b);
    let peers = pair.peers();
    assert!(peers[0].is_peers_choice != peers[1].is_peers_choice);
}

#[test]
fn a_command_holds_at_once_and_the_peer_follows() {
    let mut pair = Pair::new([all("dctcp", ChoiceRank::Configured), CcTable::default()]);
    assert_eq!(pair.algorithms(), ["dctcp", "dctcp"]);
    let now = pair.now;
    pair.hosts[1].worker.set_cc(now, all("timely", ChoiceRank::Commanded));
    assert_eq!(pair.algorithms()[1], "timely");
    // The change is asked for a second after the last answer.
    pair.pass(1_100);
    assert_eq!(pair.algorithms(), ["timely", "timely"]);
    let now = pair.now;
    pair.hosts[0].worker.set_cc(now, all("swift", ChoiceRank::Commanded));
    pair.pass(2_200);
    assert_eq!(pair.algorithms(), ["swift", "timely"], "each keeps to its own command");
}

#[test]
fn kinds_of_peers_have_their_own() {
    let mut table = all("aimd", ChoiceRank::Default);
    table.set(Some(PeerKind::Burst), choice("swift", ChoiceRank::Configured));
    table.set(Some(PeerKind::Standard), choice("dcqcn", ChoiceRank::Configured));
    table.set(Some(PeerKind::Loopback), choice("none", ChoiceRank::Configured));
    let mut pair = Pair::new([table, CcTable::default()]);
    assert_eq!(pair.algorithms(), ["swift", "swift"]);
    // A queue pair that is connected to another one of its own host.
    let a = &mut pair.hosts[0];
    let caps = a.caps.clone();
    let (one, other) = (a.create(QpType::Rc), a.create(QpType::Rc));
    a.connect(&one, other.qpn, &caps, Mtu::B1024);
    let (peers, _) = a.worker.cc_peers(0, 8);
    let own = peers.iter().find(|peer| peer.kind == "loopback").expect("a path to the own address");
    assert_eq!(own.cc, "none");
    // A silent peer is standard; it was asked in vain.
    let mut lonely = Pair::new([table, CcTable::default()]);
    let [a, _] = &mut lonely.hosts;
    let absent = a.create(QpType::Rc);
    let mut caps = a.caps.clone();
    caps.addrs[0].ip = IpAddr::from([10, 0, 0, 9]);
    a.connect(&absent, absent.qpn, &caps, Mtu::B1024);
    lonely.pass(6_000);
    let (peers, _) = lonely.hosts[0].worker.cc_peers(0, 8);
    let silent = peers.iter().find(|peer| peer.peer == IpAddr::from([10, 0, 0, 9])).expect("a path");
    assert_eq!((silent.kind.as_str(), silent.cc.as_str()), ("standard", "dcqcn"));
}
