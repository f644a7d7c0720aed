//! Cache of next hops: states that were found a moment ago, and next hops that are being resolved, with their number of ids.
//!
//! The state of a next hop is kept for [`CACHE_TIME`], so that a storm of connects to one host asks once. An unresolved next hop
//! is resolved once, however many ids wait for it. No I/O happens here.

use burst_base::{DeviceId, Nanos};
use burst_cm::Fold;
use burst_netif::hops::Hop;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;

/// How long the state of a next hop is kept.
pub(crate) const CACHE_TIME: Nanos = Nanos::from_ms(200);
/// Maximum number of queries kept.
const QUERIES_MAX: usize = 4096;

/// A next hop that is being resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PendingHop {
    /// The kernel resolves this neighbour.
    Kernel(Hop),
    /// The port of a device resolves the next hop to this destination.
    Port(DeviceId, IpAddr),
}

/// Addresses, device and interface of packets from a source to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopQuery {
    /// Source address on the wire.
    pub src: IpAddr,
    /// Destination address on the wire.
    pub dst: IpAddr,
    /// Device.
    pub device: DeviceId,
    /// Index of the interface.
    pub ifindex: u32,
}

/// A next hop that is being resolved, and the ids that wait for it.
#[derive(Debug)]
pub(crate) struct Resolution {
    /// How many ids wait; at least one.
    pub ids: usize,
    /// When the first of them began to wait.
    pub since: Nanos,
    /// The state of the next hop has changed since; whether it is still being resolved is unknown.
    pub stale: bool,
    /// The cache's epoch when an id last began to wait; another one: stale.
    epoch: u64,
}

/// The cached states of next hops.
#[derive(Debug, Default)]
pub(crate) struct HopCache {
    /// When each query was answered, and which next hop was unresolved then, if any.
    answers: HashMap<HopQuery, (Nanos, Option<PendingHop>), Fold>,
    /// Next hops that are being resolved.
    pub pending: HashMap<PendingHop, Resolution, Fold>,
    /// Those of them that ports resolve.
    of_ports: BTreeSet<PendingHop>,
    /// How often all states have become invalid.
    epoch: u64,
}

impl HopCache {
    /// The answer to a query if it is still valid: the unresolved next hop, or `None` if packets can be sent.
    pub fn lookup(&self, now: Nanos, query: &HopQuery) -> Option<Option<PendingHop>> {
        let (answered, unresolved) = self.answers.get(query)?;
        let valid = now.since(*answered) < CACHE_TIME && unresolved.is_none_or(|hop| self.is_resolving(&hop));
        valid.then_some(*unresolved)
    }

    /// Keeps the answer to a query.
    pub fn insert(&mut self, now: Nanos, query: HopQuery, unresolved: Option<PendingHop>) {
        if self.answers.len() >= QUERIES_MAX {
            self.answers.clear();
        }
        self.answers.insert(query, (now, unresolved));
        debug_assert!(self.answers.len() <= QUERIES_MAX);
    }

    /// Whether a next hop is being resolved for an id.
    pub fn is_resolving(&self, hop: &PendingHop) -> bool {
        self.pending.get(hop).is_some_and(|resolution| !resolution.stale && resolution.epoch == self.epoch)
    }

    /// Adds an id that waits for a next hop, which is being resolved.
    pub fn join(&mut self, now: Nanos, hop: PendingHop) {
        let begun = Resolution { ids: 0, since: now, stale: false, epoch: self.epoch };
        let resolution = self.pending.entry(hop).or_insert(begun);
        debug_assert!(resolution.since <= now, "a resolution that begins later");
        resolution.ids += 1;
        (resolution.stale, resolution.epoch) = (false, self.epoch);
        if matches!(hop, PendingHop::Port(..)) {
            self.of_ports.insert(hop);
        }
    }

    /// Removes an id that waited for a next hop.
    pub fn leave(&mut self, hop: &PendingHop) {
        let Some(resolution) = self.pending.get_mut(hop) else { return };
        assert!(resolution.ids > 0, "a resolution without ids");
        resolution.ids -= 1;
        if resolution.ids == 0 {
            self.pending.remove(hop);
            self.of_ports.remove(hop);
        }
    }

    /// Whether a port resolves a next hop.
    pub fn has_hops_of_ports(&self) -> bool {
        !self.of_ports.is_empty()
    }

    /// The next hops that ports resolve, at most `most` of them: those behind `last`, then from the first on.
    pub fn hops_of_ports(&self, last: Option<PendingHop>, most: usize) -> Vec<(PendingHop, Nanos)> {
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let (later, others) =
            (self.of_ports.range((behind, Bound::Unbounded)), last.map(|last| self.of_ports.range(..=last)));
        let hops = later.chain(others.into_iter().flatten()).take(most);
        hops.filter_map(|hop| Some((*hop, self.pending.get(hop)?.since))).collect()
    }

    /// The state of a next hop has changed: answers that name it are no longer valid.
    pub fn invalidate(&mut self, hop: &PendingHop) {
        if let Some(resolution) = self.pending.get_mut(hop) {
            resolution.stale = true;
        }
    }

    /// Routes have changed: no answer is valid any more.
    pub fn invalidate_all(&mut self) {
        self.answers.clear();
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(dst: &str) -> HopQuery {
        HopQuery {
            src: "192.0.2.1".parse().expect("ip"),
            dst: dst.parse().expect("ip"),
            device: DeviceId(0),
            ifindex: 7,
        }
    }

    fn hop(ip: &str) -> PendingHop {
        PendingHop::Kernel(Hop { ifindex: 7, ip: ip.parse().expect("ip") })
    }

    #[test]
    fn an_answer_is_valid_for_the_cache_time() {
        let (mut cache, now) = (HopCache::default(), Nanos::from_ms(1));
        assert_eq!(cache.lookup(now, &query("192.0.2.9")), None);
        cache.insert(now, query("192.0.2.9"), None);
        assert_eq!(cache.lookup(now + Nanos(CACHE_TIME.0 / 2), &query("192.0.2.9")), Some(None));
        assert_eq!(cache.lookup(now + CACHE_TIME, &query("192.0.2.9")), None);
        assert_eq!(cache.lookup(now, &query("192.0.2.8")), None);
        cache.invalidate_all();
        assert_eq!(cache.lookup(now, &query("192.0.2.9")), None);
    }

    #[test]
    fn one_resolution_serves_all_ids_until_the_next_hop_changes() {
        let (mut cache, now) = (HopCache::default(), Nanos::from_ms(1));
        let (query, gateway) = (query("198.51.100.9"), hop("192.0.2.254"));
        cache.insert(now, query, Some(gateway));
        assert_eq!(cache.lookup(now, &query), None, "no id waits for it yet");
        (0..10_000).for_each(|_| cache.join(now, gateway));
        assert_eq!((cache.pending.len(), cache.lookup(now, &query)), (1, Some(Some(gateway))));
        cache.invalidate(&gateway);
        assert_eq!((cache.is_resolving(&gateway), cache.lookup(now, &query)), (false, None));
        // The first id that asks again finds the next hop still unresolved: it is being resolved again, for all ids.
        cache.leave(&gateway);
        cache.join(now, gateway);
        assert!(cache.is_resolving(&gateway));
        (0..10_000).for_each(|_| cache.leave(&gateway));
        assert!(cache.pending.is_empty());
        cache.leave(&gateway);
        cache.invalidate(&gateway);
        assert!(cache.pending.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut cache, now) = (HopCache::default(), Nanos::from_ms(1));
        for i in 0..3 * QUERIES_MAX as u32 {
            cache.insert(now, HopQuery { ifindex: i, ..query("192.0.2.9") }, None);
            assert!(cache.answers.len() <= QUERIES_MAX);
        }
    }
}
