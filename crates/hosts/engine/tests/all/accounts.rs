//! Turns are shared between the accounts of users: the busy queue pairs of many programs of one user get no more than a single
//! one of another user. Packets that a user's queue pairs receive count as well.
use crate::harness::{AppQp, BASE, Host, poll, request};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_cc::{Algorithm, Params};
use burst_ledger::{Account, AccountId, Capacities, Ledger, Policy, WorkSum};
use burst_port::loopback::Loopback;
use burst_port::mem::{Hub, MemConfig};
use std::net::IpAddr;

/// Requests of each queue pair that are posted and not completed.
const POSTED: usize = 100;

/// Bytes in flight to one peer: much more than the 16 KiB that each queue pair may have in flight in any case.
const WINDOW: u64 = 8 << 20;

/// A host whose worker has work of two users, and the peers of their queue pairs.
struct Busy {
    host: Host,
    peers: Vec<Host>,
    qps: Vec<AppQp>,
    /// The peers' queue pairs.
    others: Vec<AppQp>,
    accounts: [Account; 2],
    now: Nanos,
}

impl Busy {
    /// `many` programs of one user with a queue pair each to the first peer, one program of another user with a queue pair to the
    /// last of `peers` peers.
    fn new(many: usize, peers: u8, latency: Nanos) -> Busy {
        let hub = Hub::new(MemConfig { latency, depth: 1 << 14, ..MemConfig::default() });
        let host_at = |last: u8| {
            let port = hub.port(&format!("mem{last}"), &[IpAddr::from([10, 0, 0, last])]);
            Host::with_cc(Box::new(port), 1 << 20, Params::new(Algorithm::None, WINDOW))
        };
        let (mut host, mut peers) = (host_at(1), (0..peers).map(|peer| host_at(2 + peer)).collect::<Vec<_>>());
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        let accounts = [1001, 1002].map(|uid| ledger.account(AccountId::User(uid), false));
        let (mut qps, mut others) = (Vec::new(), Vec::new());
        let last = peers.len() - 1;
        let programs = std::iter::repeat_n((&accounts[0], 0), many).chain([(&accounts[1], last)]);
        for (account, peer) in programs {
            host.add_context(account);
            let (qp, other) = (host.create(QpType::Rc), peers[peer].create(QpType::Rc));
            let (caps, peer_caps) = (host.caps.clone(), peers[peer].caps.clone());
            host.connect(&qp, other.qpn, &peer_caps, Mtu::B4096);
            peers[peer].connect(&other, qp.qpn, &caps, Mtu::B4096);
            qps.push(qp);
            others.push(other);
        }
        Busy { host, peers, qps, others, accounts, now: Nanos(0) }
    }

    /// Runs `passes` passes in which every queue pair has requests of `bytes` to send. Returns the work of each account.
    fn run(&mut self, passes: usize, bytes: u32) -> [WorkSum; 2] {
        self.run_with(passes, bytes, |_| {})
    }

    /// [`Busy::run`]; `flood` runs before each pass.
    fn run_with(&mut self, passes: usize, bytes: u32, mut flood: impl FnMut(&mut Busy)) -> [WorkSum; 2] {
        let mut posted = vec![0; self.qps.len()];
        let last = self.peers.len() - 1;
        for _ in 0..passes {
            flood(self);
            for (index, qp) in self.qps.iter_mut().enumerate() {
                posted[index] -= std::iter::from_fn(|| poll(qp)).count();
                let peer = if index + 1 == posted.len() { last } else { 0 };
                while posted[index] < POSTED {
                    let write = request(WrOpcode::RdmaWrite, 0, BASE, self.peers[peer].key);
                    let sge = self.host.sge(0, bytes);
                    self.host.post(qp, write, &[sge]);
                    posted[index] += 1;
                }
            }
            self.host.worker.run_once(self.now);
            for peer in &mut self.peers {
                peer.worker.run_once(self.now);
            }
            self.now = self.now + Nanos(1_000);
        }
        self.accounts.each_ref().map(Account::work)
    }
}

/// The part of the second account in percent.
fn part(of: impl Fn(&WorkSum) -> u64, work: &[WorkSum; 2]) -> u64 {
    of(&work[1]) * 100 / (of(&work[0]) + of(&work[1])).max(1)
}

#[test]
fn one_queue_pair_gets_as_many_turns_as_another_users_64() {
    // Their windows are not shared: the worker is what they share.
    let work = Busy::new(64, 2, Nanos(0)).run(400, 64 << 10);
    assert!((49..=51).contains(&part(|w| w.bytes, &work)) && (49..=51).contains(&part(|w| w.turns, &work)), "{work:?}");
    assert!(work[1].bytes > 40 << 20, "{work:?}");
}

#[test]
fn one_queue_pair_gets_as_much_of_a_window_as_another_users_64() {
    let work = Busy::new(64, 1, Nanos(40_000)).run(2000, 64 << 10);
    assert!((40..=60).contains(&part(|w| w.bytes, &work)), "{work:?}");
}

/// Requests of `bytes` of each of the queue pairs, which have these DSCPs and always something to send, that end in 400 passes.
/// Those before `hostile` belong to one user, the others to another.
fn shares_of(dscps: &[u8], hostile: usize, bytes: u32) -> Vec<usize> {
    let mut busy = Busy::new(0, 1, Nanos(0));
    let Busy { host, peers, accounts, now, .. } = &mut busy;
    let caps = (host.caps.clone(), peers[0].caps.clone());
    let mut qps = Vec::new();
    for (index, dscp) in dscps.iter().enumerate() {
        host.add_context(&accounts[usize::from(index >= hostile)]);
        host.traffic_class = dscp << 2;
        let (qp, other) = (host.create(QpType::Rc), peers[0].create(QpType::Rc));
        host.connect(&qp, other.qpn, &caps.1, Mtu::B4096);
        peers[0].connect(&other, qp.qpn, &caps.0, Mtu::B4096);
        qps.push(qp);
    }
    let mut ended = vec![0; qps.len()];
    for _ in 0..400 {
        for (qp, ended) in qps.iter_mut().zip(&mut ended) {
            *ended += std::iter::from_fn(|| poll(qp)).count();
            while qp.sq.room() > 0 {
                let sge = host.sge(0, bytes);
                host.post(qp, request(WrOpcode::RdmaWrite, 0, BASE, peers[0].key), &[sge]);
            }
        }
        host.worker.run_once(*now);
        peers[0].worker.run_once(*now);
        *now = *now + Nanos(1_000);
    }
    ended
}

/// Parts of a hundred.
fn percent(shares: Vec<usize>) -> Vec<usize> {
    let all: usize = shares.iter().sum();
    shares.iter().map(|one| (one * 100 + all / 2) / all).collect()
}

#[test]
fn traffic_classes_of_one_user_have_their_weights() {
    // AF41, none, CS1: 4, 2, 1.
    let shares = percent(shares_of(&[34, 0, 8], 3, 4096));
    assert!(shares[0].abs_diff(57) <= 2 && shares[1].abs_diff(29) <= 2 && shares[2].abs_diff(14) <= 2, "{shares:?}");
    // EF first; the others have one turn after 16 of its.
    let shares = percent(shares_of(&[46, 0], 2, 16 << 10));
    assert!((92..=96).contains(&shares[0]), "{shares:?}");
    assert_eq!(percent(shares_of(&[0, 0, 24, 26], 4, 4096)), [25; 4], "all of one class");
}

#[test]
fn no_traffic_class_gains_on_another_user() {
    // One user has CS1 and the default, the other three queue pairs of EF.
    let shares = percent(shares_of(&[8, 0, 46, 46, 46], 2, 4096));
    let hostile: usize = shares[2..].iter().sum();
    assert!(hostile.abs_diff(50) <= 1 && shares[0].abs_diff(17) <= 2 && shares[1].abs_diff(33) <= 2, "{shares:?}");
}

/// Keeps the peer's queue pair at `index` busy with WRITEs of 64 KiB to the host.
fn keep_writing(busy: &mut Busy, index: usize) {
    let Busy { host, peers, others, .. } = busy;
    let (qp, peer) = (&mut others[index], &mut peers[0]);
    std::iter::from_fn(|| poll(qp)).for_each(drop);
    let sge = peer.sge(0, 64 << 10);
    while qp.sq.write(&request(WrOpcode::RdmaWrite, 0, BASE, host.key), &[sge]).is_ok() {
        if qp.sq.post() {
            peer.bells[qp.context as usize].ring(0, qp.doorbell);
        }
    }
}

#[test]
fn an_account_that_receives_as_well_gets_fewer_turns() {
    let mut busy = Busy::new(4, 2, Nanos(0));
    let work = busy.run_with(400, 64 << 10, |busy| (0..4).for_each(|index| keep_writing(busy, index)));
    assert!(work[0].bytes_received > 10 << 20, "{work:?}");
    // Half of what is sent and received together, not of what is sent.
    assert!(part(|w| w.bytes, &work) >= 60, "{work:?}");
    assert!((40..=60).contains(&part(|w| w.bytes + w.bytes_received, &work)), "{work:?}");
}

/// Sends 64 messages to a queue pair whose program has posted so many `receives`. Returns the work for its account.
fn flood_with_messages(receives: usize) -> WorkSum {
    let hub = Hub::new(MemConfig::default());
    let host_at = |last: u8| {
        let port = hub.port(&format!("mem{last}"), &[IpAddr::from([10, 0, 0, last])]);
        Host::with_cc(Box::new(port), 1 << 20, Params::default())
    };
    let (mut host, mut peer) = (host_at(1), host_at(2));
    let account = Ledger::new(Capacities::new(|_| 1), Policy::default()).account(AccountId::User(1001), false);
    host.add_context(&account);
    let (mut victim, mut flood) = (host.create(QpType::Rc), peer.create(QpType::Rc));
    let (caps, peer_caps) = (host.caps.clone(), peer.caps.clone());
    host.connect(&victim, flood.qpn, &peer_caps, Mtu::B1024);
    peer.connect(&flood, victim.qpn, &caps, Mtu::B1024);
    for _ in 0..receives {
        victim.rq.write(0, &[host.sge(0, 4096)]).expect("room");
        let _ = victim.rq.post();
    }
    for _ in 0..64 {
        let sge = peer.sge(0, 1000);
        peer.post(&mut flood, request(WrOpcode::Send, 0, 0, 0), &[sge]);
    }
    for pass in 0..100 {
        peer.worker.run_once(Nanos(pass * 1000));
        host.worker.run_once(Nanos(pass * 1000));
    }
    account.work()
}

#[test]
fn refused_packets_are_charged_to_no_account() {
    assert_eq!(flood_with_messages(0).packets_received, 0);
    let WorkSum { packets_received, bytes_received, .. } = flood_with_messages(64);
    // Each has a BTH of 12 bytes.
    assert_eq!((packets_received, bytes_received), (64, 64 * 1012));
}

#[test]
fn an_account_that_sends_to_itself_pays_for_both_ends() {
    let hub = Hub::new(MemConfig { depth: 1 << 14, ..MemConfig::default() });
    let host_at = |last: u8| {
        let port = hub.port(&format!("mem{last}"), &[IpAddr::from([10, 0, 0, last])]);
        let port = Loopback::new(Box::new(port), None);
        Host::with_cc(Box::new(port), 1 << 20, Params::new(Algorithm::None, WINDOW))
    };
    let (mut host, mut peer) = (host_at(1), host_at(2));
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    let accounts = [1001, 1002].map(|uid| ledger.account(AccountId::User(uid), false));
    let (caps, peer_caps) = (host.caps.clone(), peer.caps.clone());
    let (mut qps, mut targets) = (Vec::new(), Vec::new());
    host.add_context(&accounts[0]);
    for _ in 0..4 {
        let (qp, target) = (host.create(QpType::Rc), host.create(QpType::Rc));
        host.connect(&qp, target.qpn, &caps, Mtu::B4096);
        host.connect(&target, qp.qpn, &caps, Mtu::B4096);
        qps.push(qp);
        targets.push(target);
    }
    host.add_context(&accounts[1]);
    let (qp, target) = (host.create(QpType::Rc), peer.create(QpType::Rc));
    host.connect(&qp, target.qpn, &peer_caps, Mtu::B4096);
    peer.connect(&target, qp.qpn, &caps, Mtu::B4096);
    qps.push(qp);
    for pass in 0..400 {
        for (index, qp) in qps.iter_mut().enumerate() {
            std::iter::from_fn(|| poll(qp)).for_each(drop);
            let key = if index < 4 { host.key } else { peer.key };
            while qp.sq.room() > 0 {
                let sge = host.sge(0, 64 << 10);
                host.post(qp, request(WrOpcode::RdmaWrite, 0, BASE, key), &[sge]);
            }
        }
        host.worker.run_once(Nanos(pass * 1000));
        peer.worker.run_once(Nanos(pass * 1000));
    }
    let work = accounts.each_ref().map(Account::work);
    assert!(work[0].bytes_received > 10 << 20, "{work:?}");
    // Two thirds instead of a half.
    assert!((62..=70).contains(&part(|w| w.bytes, &work)), "{work:?}");
}
