//! Sources of requests: who is charged for them, and whether they have proved that they receive what is sent to them.
//!
//! A forged source address costs its sender nothing, so requests from addresses that have proved nothing must not displace
//! others. An address is proved by any message that carries an id of ours, because ids cannot be guessed: an RTU, a REP, a DREP.
//! Under pressure a request from another address makes no state. The machine sends a DREQ for a connection that does not exist,
//! whose ids are a keyed hash of address and time, and holds the request in a ring. Connection managers (IBA 12.9.8; Linux,
//! Burst) answer such a DREQ by a DREP with the same ids. The DREP is what a cookie is to TCP: it proves the address, and the
//! held requests go on. A peer that does not answer waits until the pressure ends.
//!
//! A DREQ is as long as the REQ that caused it, and an address gets at most one in `ASK_AGAIN`, so nothing is amplified.

use crate::api::PathRecord;
use crate::fold::Fold;
use crate::message::Mad;
use crate::table::Secret;
use burst_base::Nanos;
use burst_wire::MAD_LEN;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Addresses with connections that have proved nothing: requests from further ones must prove their address first.
pub(crate) const UNPROVEN_MAX: usize = 4096;
/// Most requests that wait for the proof of their address.
pub(crate) const HELD_MAX: usize = 2048;
/// How long an address counts as proved.
const PROVEN_FOR: Nanos = Nanos::from_ms(600_000);
/// Time between two questions to one address.
const ASK_AGAIN: Nanos = Nanos::from_ms(20);
/// The hash in a question changes after this time; the previous one is still accepted.
const EPOCH: Nanos = Nanos::from_ms(8_000);
/// Addresses that are remembered as proved, and as asked.
const REMEMBERED: usize = 4096;
/// Domain of the numbers of this file among those of the secret.
const DOMAIN: u8 = 4;

/// Who is charged for a message: an IPv4 address, a link-local address, or the /64 prefix of another IPv6 address, because one
/// host can use all addresses of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    is_local: bool,
    number: u64,
}

impl Source {
    /// The source of messages from an address.
    pub fn of(ip: IpAddr) -> Source {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Source { is_local: true, number: u64::from(v4.to_bits()) },
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Source { is_local: true, number: v6.to_bits() as u64 },
            IpAddr::V6(v6) => Source { is_local: false, number: (v6.to_bits() >> 64) as u64 },
        }
    }
}

/// A request that waits for the proof of its address.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub path: PathRecord,
    pub bytes: [u8; MAD_LEN],
}

/// The requests that wait: a ring, and where in it each address has requests, so that a proof looks at no other address's.
#[derive(Debug)]
struct HeldRequests {
    /// The oldest first; `None`: its address was proved.
    ring: VecDeque<Option<HeldRequest>>,
    /// How many have left the front of the ring.
    left: u64,
    /// The numbers of each address's requests, counted from the first that was ever held.
    numbers: HashMap<IpAddr, VecDeque<u64>, Fold>,
}

impl HeldRequests {
    fn new(fold: Fold) -> HeldRequests {
        HeldRequests { ring: VecDeque::new(), left: 0, numbers: HashMap::with_hasher(fold) }
    }

    /// Adds a request, in place of the oldest if there is no room.
    fn push(&mut self, request: HeldRequest) {
        if self.ring.len() == HELD_MAX {
            self.drop_oldest();
        }
        let number = self.left + self.ring.len() as u64;
        self.numbers.entry(request.path.flow.dst).or_default().push_back(number);
        self.ring.push_back(Some(request));
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.ring.pop_front() else { return };
        self.left += 1;
        let Some(ip) = oldest.map(|request| request.path.flow.dst) else { return };
        if let Some(numbers) = self.numbers.get_mut(&ip) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.numbers.remove(&ip);
            }
        }
    }

    /// Takes out the requests from an address, the oldest first.
    fn take(&mut self, ip: IpAddr) -> Vec<HeldRequest> {
        let numbers = self.numbers.remove(&ip).unwrap_or_default();
        let taken = |number: u64| self.ring.get_mut((number - self.left) as usize)?.take();
        let taken: Vec<HeldRequest> = numbers.into_iter().filter_map(taken).collect();
        while let Some(None) = self.ring.front() {
            self.drop_oldest();
        }
        debug_assert!(self.numbers.len() <= self.ring.len(), "an address without a request");
        taken
    }
}

/// Ids and transaction id of the DREQ that asks an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub local_id: u32,
    pub remote_id: u32,
    pub tid: u64,
}

/// One worker's records of the addresses of its peers.
#[derive(Debug)]
pub(crate) struct Sources {
    worker: u32,
    secret: Secret,
    fold: Fold,
    /// By hash of the address: address and end of the proof. Empty until the first proof.
    proven: Vec<(Option<IpAddr>, Nanos)>,
    /// By hash of the address: when it was asked. Empty until the first question.
    asked: Vec<(Option<IpAddr>, Nanos)>,
    held: HeldRequests,
    /// Number of connections of each address that has proved nothing.
    unproven: HashMap<IpAddr, u32, Fold>,
    /// Their sum.
    unproven_sum: u32,
    /// Time of the last message.
    pub now: Nanos,
}

impl Sources {
    pub fn new(worker: u32, secret: Secret) -> Sources {
        let fold = secret.fold();
        Sources {
            worker,
            secret,
            fold,
            proven: Vec::new(),
            asked: Vec::new(),
            held: HeldRequests::new(fold),
            unproven: HashMap::with_hasher(fold),
            unproven_sum: 0,
            now: Nanos(0),
        }
    }

    /// Counts a connection of an address that has proved nothing.
    pub fn add_unproven(&mut self, ip: IpAddr) {
        *self.unproven.entry(ip).or_default() += 1;
        self.unproven_sum += 1;
    }

    /// Such a connection has ended, or its address has been proved.
    pub fn remove_unproven(&mut self, ip: IpAddr) {
        let Some(count) = self.unproven.get_mut(&ip) else { return debug_assert!(false, "a connection counted twice") };
        *count -= 1;
        if *count == 0 {
            self.unproven.remove(&ip);
        }
        self.unproven_sum -= 1;
        debug_assert!(self.unproven.len() <= self.unproven_sum as usize);
    }

    /// Whether so many addresses have proved nothing, or have so many of the `limit` connections, that others must prove
    /// themselves before they get one.
    pub fn is_pressed(&self, limit: u32) -> bool {
        self.unproven.len() >= UNPROVEN_MAX || self.unproven_sum >= (limit / 2).max(UNPROVEN_MAX as u32)
    }

    fn place(&self, ip: IpAddr) -> usize {
        self.fold.hash_one(ip) as usize % REMEMBERED
    }

    /// Whether an address has proved that it receives what is sent to it.
    pub fn is_proven(&self, now: Nanos, ip: IpAddr) -> bool {
        !self.proven.is_empty()
            && matches!(self.proven[self.place(ip)], (Some(known), until) if known == ip && now < until)
    }

    /// Notes that an address has proved itself.
    pub fn prove(&mut self, now: Nanos, ip: IpAddr) {
        if self.proven.is_empty() {
            self.proven = vec![(None, Nanos(0)); REMEMBERED];
        }
        let place = self.place(ip);
        self.proven[place] = (Some(ip), now + PROVEN_FOR);
    }

    /// Holds a request, in place of the oldest if there is no room. Returns the question to ask, unless it was asked lately.
    pub fn challenge(&mut self, now: Nanos, path: &PathRecord, mad: &Mad<'_>) -> Option<Question> {
        let mut bytes = [0; MAD_LEN];
        mad.emit(&mut bytes);
        self.held.push(HeldRequest { path: *path, bytes });
        if self.asked.is_empty() {
            self.asked = vec![(None, Nanos(0)); REMEMBERED];
        }
        let (ip, place) = (path.flow.dst, self.place(path.flow.dst));
        let (known, at) = self.asked[place];
        if known == Some(ip) && now < at + ASK_AGAIN {
            return None;
        }
        self.asked[place] = (Some(ip), now);
        Some(self.question(ip, now.0 / EPOCH.0))
    }

    fn question(&self, ip: IpAddr, epoch: u64) -> Question {
        let number = |k: u8| self.secret.number((DOMAIN, k, ip, epoch));
        let ids = number(0);
        // The answer must come to this worker, as messages with an id of its connections do.
        let local_id = self.secret.id_of(self.worker, ids as u32);
        Question { local_id, remote_id: (ids >> 32) as u32, tid: number(1) }
    }

    /// Whether a DREP with these ids answers a question to this address.
    pub fn is_answer(&self, now: Nanos, ip: IpAddr, answer: Question) -> bool {
        let epoch = now.0 / EPOCH.0;
        !self.asked.is_empty() && [epoch, epoch.wrapping_sub(1)].iter().any(|e| self.question(ip, *e) == answer)
    }

    /// Takes out the requests from an address.
    pub fn take_held(&mut self, ip: IpAddr) -> Vec<HeldRequest> {
        self.held.take(ip)
    }

    /// Returns unused memory.
    pub fn shrink(&mut self) {
        self.unproven.shrink_to_fit();
        if self.unproven.is_empty() {
            (self.held, self.asked) = (HeldRequests::new(self.fold), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("ip")
    }

    #[test]
    fn a_prefix_is_one_source_and_neighbours_on_the_link_are_several() {
        let same = |a: &str, b: &str| Source::of(ip(a)) == Source::of(ip(b));
        assert!(same("2001:db8:1:2::3", "2001:db8:1:2:ffff::4") && !same("2001:db8:1:2::3", "2001:db8:1:3::3"));
        assert!(!same("fe80::1", "fe80::2") && !same("10.0.0.1", "10.0.0.2"));
        assert!(same("10.0.0.1", "::ffff:10.0.0.1") && !same("::a00:1", "10.0.0.1"));
    }

    #[test]
    fn an_address_is_proved_by_the_answer_to_its_own_question_for_a_time() {
        let mut sources = Sources::new(3, Secret::new([1, 2]));
        let (peer, other, now) = (ip("10.0.0.9"), ip("10.0.0.8"), Nanos::from_ms(50_000));
        let question = sources.question(peer, now.0 / EPOCH.0);
        assert!(!sources.is_answer(now, peer, question), "nothing was asked");
        sources.asked = vec![(None, Nanos(0)); REMEMBERED];
        assert!(sources.is_answer(now, peer, question) && sources.is_answer(now + EPOCH, peer, question));
        assert!(!sources.is_answer(now, other, question) && !sources.is_answer(now + EPOCH + EPOCH, peer, question));
        for forged in [
            Question { local_id: question.local_id ^ 1, ..question },
            Question { remote_id: question.remote_id ^ 1, ..question },
            Question { tid: question.tid ^ 1, ..question },
        ] {
            assert!(!sources.is_answer(now, peer, forged));
        }
        assert_eq!(Secret::new([1, 2]).worker_of(question.local_id), 3, "the answer comes to the worker that asked");
        sources.prove(now, peer);
        assert!(sources.is_proven(now, peer) && !sources.is_proven(now, other));
        assert!(sources.is_proven(now + PROVEN_FOR - Nanos(1), peer) && !sources.is_proven(now + PROVEN_FOR, peer));
    }

    #[test]
    fn many_unproven_addresses_or_half_of_the_connections_make_others_prove_themselves() {
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let mut many = Sources::new(0, Secret::new([1, 2]));
        (1..UNPROVEN_MAX as u32).for_each(|n| many.add_unproven(address(n)));
        assert!(!many.is_pressed(1 << 20) && !many.is_pressed(0), "{} addresses", many.unproven.len());
        many.add_unproven(address(0));
        assert!(many.is_pressed(1 << 20));
        many.remove_unproven(address(7));
        assert!(!many.is_pressed(1 << 20));
        // One address with many connections: half of the limit, and no fewer than 4,096.
        let mut one = Sources::new(0, Secret::new([1, 2]));
        (0..4_999).for_each(|_| one.add_unproven(address(1)));
        assert!(!one.is_pressed(10_000) && one.is_pressed(100));
        one.add_unproven(address(1));
        assert!(one.is_pressed(10_000) && !one.is_pressed(10_002));
        (0..4_999).for_each(|_| one.remove_unproven(address(1)));
        assert_eq!((one.unproven.get(&address(1)), one.unproven_sum), (Some(&1), 1));
        one.remove_unproven(address(1));
        assert!(one.unproven.is_empty() && one.unproven_sum == 0);
    }

    #[test]
    fn an_address_is_asked_at_most_every_20_milliseconds_and_its_newest_requests_are_held() {
        use crate::message::Req;
        let mut sources = Sources::new(3, Secret::new([1, 2]));
        let path_from = |text: &str| {
            let flow = burst_frame::Flow { dst: ip(text), ..Default::default() };
            PathRecord { device: burst_base::DeviceId(0), flow }
        };
        let (peer, other, now) = (path_from("10.0.0.9"), path_from("10.0.0.8"), Nanos::from_ms(50_000));
        let mad = |tid| Mad { tid, modifier: 0, message: Req::default().into(), data: &[] };
        let first = sources.challenge(now, &peer, &mad(0)).expect("never asked");
        assert_eq!(sources.challenge(now + ASK_AGAIN - Nanos(1), &peer, &mad(1)), None);
        assert!(sources.challenge(now, &other, &mad(2)).is_some_and(|question| question != first));
        assert_eq!(sources.challenge(now + ASK_AGAIN, &peer, &mad(3)), Some(first), "the same question of this time");
        let next = sources.challenge(now + EPOCH, &peer, &mad(4));
        assert!(next.is_some_and(|question| question != first), "another one later");
        let tids = |held: Vec<HeldRequest>| -> Vec<u64> {
            held.iter().map(|held| Mad::parse(&held.bytes).expect("a request").tid).collect()
        };
        assert_eq!(tids(sources.take_held(peer.flow.dst)), [0, 1, 3, 4]);
        assert_eq!(tids(sources.take_held(other.flow.dst)), [2]);
        // The oldest gives its place to the newest.
        (0..HELD_MAX as u64 + 3).for_each(|tid| _ = sources.challenge(now, &peer, &mad(tid)));
        let held = tids(sources.take_held(peer.flow.dst));
        assert_eq!((held.len(), held[0], held[HELD_MAX - 1]), (HELD_MAX, 3, HELD_MAX as u64 + 2));
    }

    #[test]
    fn a_proof_takes_the_requests_of_its_address_and_the_others_keep_their_places() {
        let flow = |n: u32| burst_frame::Flow { dst: IpAddr::from(n.to_be_bytes()), ..Default::default() };
        let request = |n: u32, mark: u8| HeldRequest {
            path: PathRecord { device: burst_base::DeviceId(0), flow: flow(n) },
            bytes: [mark; MAD_LEN],
        };
        let mut held = HeldRequests::new(Secret::new([1, 2]).fold());
        let marks = |taken: Vec<HeldRequest>| -> Vec<u8> { taken.iter().map(|request| request.bytes[0]).collect() };
        for mark in 0..9 {
            held.push(request(u32::from(mark) % 3, mark));
        }
        assert_eq!(marks(held.take(flow(1).dst)), [1, 4, 7]);
        assert_eq!((marks(held.take(flow(1).dst)), held.ring.len()), (vec![], 9), "the others are not moved");
        assert_eq!(marks(held.take(flow(0).dst)), [0, 3, 6]);
        assert_eq!((held.ring.len(), held.left), (7, 2), "what has gone at the front makes room");
        // A full ring drops its oldest, of whichever address, and places of those that have gone.
        (0..HELD_MAX as u32).for_each(|n| held.push(request(1_000 + n, 9)));
        assert_eq!((held.ring.len(), marks(held.take(flow(2).dst))), (HELD_MAX, vec![]));
        assert_eq!(marks(held.take(flow(1_000).dst)), [9]);
        (0..HELD_MAX as u32).for_each(|n| drop(held.take(flow(1_000 + n).dst)));
        assert!(held.ring.is_empty() && held.numbers.is_empty());
    }
}
