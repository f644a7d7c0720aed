//! Turns are shared between the accounts of users: the busy queue pairs of many programs of one user get no more than a single
//! one of another user.
mod harness;

use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_cc::Params;
use burst_ledger::{Account, AccountId, Capacities, Ledger, Policy, WorkSum};
use burst_port::mem::{Hub, MemConfig};
use harness::{AppQp, BASE, Host, poll, request};
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
            Host::with_cc(Box::new(port), 1 << 20, Params::default().with_window(WINDOW))
        };
        let (mut host, mut peers) = (host_at(1), (0..peers).map(|peer| host_at(2 + peer)).collect::<Vec<_>>());
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        let accounts = [1001, 1002].map(|uid| ledger.account(AccountId::User(uid), false));
        let mut qps = Vec::new();
        let last = peers.len() - 1;
        let programs = std::iter::repeat_n((&accounts[0], 0), many).chain([(&accounts[1], last)]);
        for (account, peer) in programs {
            host.add_context(account);
            let (qp, other) = (host.create(QpType::Rc), peers[peer].create(QpType::Rc));
            let (caps, peer_caps) = (host.caps.clone(), peers[peer].caps.clone());
            host.connect(&qp, other.qpn, &peer_caps, Mtu::B4096);
            peers[peer].connect(&other, qp.qpn, &caps, Mtu::B4096);
            qps.push(qp);
        }
        Busy { host, peers, qps, accounts, now: Nanos(0) }
    }

    /// Runs `passes` passes in which every queue pair has requests of `bytes` to send. Returns the work of each account.
    fn run(&mut self, passes: usize, bytes: u32) -> [WorkSum; 2] {
        let mut posted = vec![0; self.qps.len()];
        let last = self.peers.len() - 1;
        for _ in 0..passes {
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
