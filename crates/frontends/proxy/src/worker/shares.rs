//! What the programs of each user may have of a worker: sockets, held SYNs, and memory for streams.
//!
//! A worker has descriptors for so many connections only. Without shares one user's would take them, and the connections of all
//! others would wait in the kernel. The user of a connection is that of the program's socket ([`SocketTable`]); ids that were
//! given to a user (`/etc/subuid`) belong to it. A peer's streams take sockets of the same pool, as an owner of their own.

use super::place::NetworkPlaces;
use super::sockets::Ends;
use burst_ledger::{OpenPool, Policy, PoolCharge, PoolOwner, SubordinateIds, UserPool};
use rustix::process::{Resource, geteuid, getrlimit};

/// Ids that users may use beside their own.
const SUBUID: &str = "/etc/subuid";
/// The part of the descriptors that listeners, links and the control thread have: one in this many.
const OWN_PART: u64 = 8;
/// Sockets of a connection: the program's, and the one to the server if it goes by TCP.
pub(super) const CONN_SOCKETS: u64 = 2;

/// What a connection has of the worker's pools.
#[derive(Debug, Default)]
pub(super) struct ConnCharges {
    /// `None`: the connection is closed.
    pub(super) sockets: Option<PoolCharge>,
    /// `None`: it goes by TCP with small buffers, or a peer has opened it.
    pub(super) memory: Option<PoolCharge>,
}

/// The shares.
#[derive(Debug)]
pub(super) struct WorkerShares {
    sockets: UserPool,
    syns: UserPool,
    memory: UserPool,
    subordinate: SubordinateIds,
    /// It was said that users cannot be found.
    has_complained: bool,
}

impl WorkerShares {
    /// The shares of a worker with so many bytes of memory, one of `workers`. `percent`: what one user may have of what others
    /// leave.
    pub(super) fn new(workers: u32, memory: u64, percent: u8) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::with((descriptors - descriptors / OWN_PART) / u64::from(workers), memory, percent)
    }

    /// The same with so many sockets.
    pub(super) fn with(sockets: u64, memory: u64, percent: u8) -> Self {
        let policy = Policy { share_percent: percent, ..Policy::default() };
        Self {
            sockets: UserPool::new(OpenPool::ProxySocket, sockets, policy),
            syns: UserPool::new(OpenPool::ProxySyn, u64::MAX, policy),
            memory: UserPool::new(OpenPool::ProxyMemory, memory, policy),
            subordinate: SubordinateIds::new(Some(SUBUID.into())),
            has_complained: false,
        }
    }

    /// Whose connection it is that a program of a place has opened.
    pub(super) fn owner_of(&mut self, places: &NetworkPlaces, place: usize, (client, server): Ends) -> PoolOwner {
        let asked = places.get(place).sockets.as_ref().map_or(Ok(None), |table| table.user_of(client, server));
        let uid = asked.unwrap_or_else(|e| self.complain(&e));
        uid.map_or(PoolOwner::Unknown, |uid| self.account_of(uid))
    }

    fn complain(&mut self, why: &std::io::Error) -> Option<u32> {
        if !std::mem::replace(&mut self.has_complained, true) {
            crate::log(format_args!(
                "users of connections are not found, so they share what one may have: {why} (sock_diag)"
            ));
        }
        None
    }

    /// The owner of a user's connections. Root gives ranges of ids to users of their own.
    fn account_of(&mut self, uid: u32) -> PoolOwner {
        let sees_all = |uid: u32| uid == 0 || uid == geteuid().as_raw();
        if sees_all(uid) {
            return PoolOwner::Privileged;
        }
        let owner = self.subordinate.owner_of(uid, crate::log);
        PoolOwner::User(if sees_all(owner) { uid } else { owner })
    }

    /// Charges the sockets of a connection; `None`: its owner has all that it may have.
    pub(super) fn connection(&self, owner: PoolOwner) -> Option<Box<ConnCharges>> {
        let places = if matches!(owner, PoolOwner::Peer(_)) { 1 } else { CONN_SOCKETS };
        self.sockets.charge(owner, places).map(|sockets| Box::new(ConnCharges { sockets: Some(sockets), memory: None }))
    }

    /// Charges a place in the queue of SYNs.
    pub(super) fn syn(&self, owner: PoolOwner) -> Option<PoolCharge> {
        self.syns.charge(owner, 1)
    }

    /// Charges memory to the owner of a connection; false: it has all that it may have.
    pub(super) fn memory(&self, charges: &mut ConnCharges, bytes: u64) -> bool {
        let owner = charges.sockets.as_ref().map_or(PoolOwner::Unknown, PoolCharge::owner);
        charges.memory = self.memory.charge(owner, bytes);
        charges.memory.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::ProxyCounter;
    use crate::hold::{Syn, Verdict};
    use crate::worker::fuzzed_worker::FuzzedWorker;
    use std::net::SocketAddr;

    const ALICE: PoolOwner = PoolOwner::User(1001);
    const BOB: PoolOwner = PoolOwner::User(1002);
    const PEER: PoolOwner = PoolOwner::Peer(0);

    /// As many charges as there are for an owner.
    fn all<T>(mut one: impl FnMut() -> Option<T>) -> Vec<T> {
        std::iter::from_fn(&mut one).take(1 << 16).collect()
    }

    #[test]
    fn a_user_with_all_it_may_have_leaves_others_sockets() {
        let shares = WorkerShares::with(1000, 1 << 30, 50);
        let alice = all(|| shares.connection(ALICE));
        assert_eq!(alice.len(), 225, "sockets of {}", OpenPool::ProxySocket.words());
        let others = [BOB, PoolOwner::Unknown, PEER].map(|owner| all(|| shares.connection(owner)).len());
        assert_eq!(others, [112, 112, 225], "each has half of what is left");
        assert_eq!(all(|| shares.connection(PoolOwner::Privileged)).len(), 1 << 16, "root is refused nothing");
        drop(alice);
        assert_eq!(all(|| shares.connection(BOB)).len(), 225, "all is given back");
    }

    #[test]
    fn a_user_whose_syns_fill_its_share_leaves_others_places() {
        let shares = WorkerShares::with(1000, 1 << 30, 50);
        let alice = all(|| shares.syn(ALICE));
        assert_eq!(alice.len(), OpenPool::ProxySyn.places() * 45 / 100);
        assert_eq!(all(|| shares.syn(BOB)).len(), alice.len() / 2);
    }

    #[test]
    fn a_user_that_fills_its_share_of_the_memory_leaves_others_streams() {
        let shares = WorkerShares::with(1000, 1000 << 10, 50);
        let stream = |owner| {
            let mut charges = shares.connection(owner)?;
            shares.memory(&mut charges, 10 << 10).then_some(charges)
        };
        let alice = all(|| stream(ALICE));
        assert_eq!(alice.len(), 45, "of {}", OpenPool::ProxyMemory.words());
        assert_eq!(all(|| stream(BOB)).len(), 22);
        assert!(shares.connection(ALICE).is_some(), "without memory it goes by TCP");
    }

    #[test]
    fn a_share_of_all_leaves_the_reserve_only() {
        let shares = WorkerShares::with(1000, 1 << 30, 100);
        assert_eq!(all(|| shares.connection(ALICE)).len(), 450);
    }

    #[test]
    fn what_a_user_opens_beyond_its_share_is_dropped_and_what_ends_makes_room() {
        let mut fuzzed = FuzzedWorker::new(false).expect("descriptors");
        let worker = &mut fuzzed.worker;
        worker.env.shares = WorkerShares::with(40, 16 << 20, 50);
        // No program has such a socket, so all are of one unknown user: 18 sockets.
        let mut syn = |port: u16| {
            let (client, server) = (SocketAddr::from(([127, 0, 0, 1], port)), ([127, 0, 0, 2], 9).into());
            worker.on_syn(0, Syn { packet: u32::from(port), client, server, seq: 1 });
            worker.env.decided.pop()
        };
        assert!((1..=9).all(|port| syn(port).is_none()), "held until the server answers");
        assert_eq!([10, 11].map(&mut syn), [Some((10, Verdict::Drop)), Some((11, Verdict::Drop))]);
        assert_eq!(worker.env.counters.get(ProxyCounter::ConnectionsOverShare), Some(2));
        let last = worker.env.decisions.show().pop().expect("a decision");
        assert_eq!((last.0.as_str(), last.2.as_str()), ("127.0.0.1:11", "proxy_user_share"));
        assert_eq!(worker.env.shares.sockets.used(PoolOwner::Unknown), 18);
        fuzzed.peer_gone();
        while fuzzed.worker.end_leaving() > 0 {}
        // Those go by TCP now, and end when their servers refuse.
        while fuzzed.worker.env.shares.sockets.used(PoolOwner::Unknown) > 0 {
            fuzzed.work();
        }
        assert_eq!(fuzzed.worker.env.shares.syns.used(PoolOwner::Unknown), 0);
        assert_eq!(fuzzed.worker.env.shares.memory.used(PoolOwner::Unknown), 0);
    }
}
