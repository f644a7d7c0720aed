//! Next hops of addresses that are being resolved: an address is resolved when its next hop is known to answer.
//!
//! What the kernel, or a port that finds its next hops itself, knows of a way is kept for [`HOLDS`], so that a storm of connects
//! to one host asks once. Where a next hop is missing it is asked for once, however many ids wait for it; the kernel's news
//! (rtnetlink) then tell of its answer, ports are asked every [`PORTS_EVERY`]. Routes that change make everybody look again, at
//! most every [`AGAIN`]. Where nobody can be asked (no netlink, a firewall), nobody waits either: the connection will tell.
//!
//! [`Board`] is who is asked for and what is remembered, without any I/O; ids are their clients' (`waits.rs`).

use super::resolve::{Destination, ResolveMethod};
use crate::host::Host;
use burst_base::{DeviceId, Reason};
use burst_cm::Fold;
use burst_netif::hops::{Hop, HopEvent, Hops, NeighbourState};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long an answer holds.
const HOLDS: Duration = Duration::from_millis(200);
/// Ways kept.
const KEPT_MAX: usize = 4096;
/// Between two looks at everything.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two questions to a port that finds its next hops itself.
const PORTS_EVERY: Duration = Duration::from_millis(10);
/// A port's neighbour that is silent is asked again until then, which makes two rounds.
const PORTS_PATIENCE: Duration = Duration::from_secs(2);

/// Whom ids wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PendingHop {
    /// A next hop that the kernel asks.
    Kernel(Hop),
    /// The next hop to an address that the port of a device asks.
    Port(DeviceId, IpAddr),
}

/// From a source to a destination by a device, on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HopQuery {
    src: IpAddr,
    dst: IpAddr,
    device: DeviceId,
    ifindex: u32,
}

/// What has become of those that ids wait for.
#[derive(Debug, Default)]
pub struct HopChanges {
    /// Each is to be looked at again (true), or did not answer.
    pub(super) hops: Vec<(PendingHop, bool)>,
    /// All are to be looked at again.
    pub(super) all: bool,
}

#[derive(Debug)]
struct PendingIds {
    ids: usize,
    since: Instant,
    /// It is not being asked any more, as far as is known.
    moved: bool,
}

/// See the module.
#[derive(Debug, Default)]
struct HopCache {
    /// When it was looked at, and who was missing.
    kept: HashMap<HopQuery, (Instant, Option<PendingHop>), Fold>,
    asked: HashMap<PendingHop, PendingIds, Fold>,
}

impl HopCache {
    /// What is still true of a way: who is missing, if anybody.
    fn remembered(&self, now: Instant, way: &HopQuery) -> Option<Option<PendingHop>> {
        let (looked, missing) = self.kept.get(way)?;
        let holds = now.duration_since(*looked) < HOLDS && missing.is_none_or(|a| self.is_asked(&a));
        holds.then_some(*missing)
    }
    fn remember(&mut self, now: Instant, way: HopQuery, missing: Option<PendingHop>) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(way, (now, missing));
    }
    /// Whether it is being asked for somebody.
    fn is_asked(&self, hop: &PendingHop) -> bool {
        self.asked.get(hop).is_some_and(|a| !a.moved)
    }
    fn join(&mut self, now: Instant, hop: PendingHop) {
        let asked = self.asked.entry(hop).or_insert(PendingIds { ids: 0, since: now, moved: false });
        asked.ids += 1;
        asked.moved = false;
    }
    fn leave(&mut self, hop: &PendingHop) {
        let Some(asked) = self.asked.get_mut(hop) else { return };
        asked.ids -= 1;
        if asked.ids == 0 {
            self.asked.remove(hop);
        }
    }
    /// What is remembered of it holds no more.
    fn moved(&mut self, hop: &PendingHop) {
        if let Some(asked) = self.asked.get_mut(hop) {
            asked.moved = true;
        }
    }
    fn all_moved(&mut self) {
        self.kept.clear();
        self.asked.values_mut().for_each(|asked| asked.moved = true);
    }
}

/// See the module.
#[derive(Default)]
pub struct NextHops {
    board: HopCache,
    kernel: Option<Hops>,
    /// Whether netlink was tried.
    opened: bool,
    /// When everything is to be looked at again, and when it last was.
    again_at: Option<Instant>,
    again: Option<Instant>,
    ports_asked: Option<Instant>,
    /// Ids whose next hop did not answer, by device, still to be counted.
    unanswered: HashMap<DeviceId, u32>,
}

impl std::fmt::Debug for NextHops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NextHops").field("board", &self.board).finish_non_exhaustive()
    }
}

impl NextHops {
    /// Whether any id waits.
    pub fn is_waited_for(&self) -> bool {
        !self.board.asked.is_empty()
    }

    /// How many ids wait.
    pub fn waiting(&self) -> u64 {
        self.board.asked.values().map(|a| a.ids as u64).sum()
    }

    /// Readable when there is news for those that wait.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().and_then(Hops::fd)
    }

    /// When [`Host::news_of_hops`] has something to do without news, if ever.
    pub fn due(&self) -> Option<Instant> {
        let ports = self.board.asked.keys().any(|a| matches!(a, PendingHop::Port(..)));
        let ports = ports.then(|| self.ports_asked.map_or_else(Instant::now, |at| at + PORTS_EVERY));
        [self.again_at, ports].into_iter().flatten().min()
    }

    pub(super) fn join(&mut self, now: Instant, hop: PendingHop) {
        self.board.join(now, hop);
    }

    /// One that waited does not wait any more.
    pub(super) fn leave(&mut self, hop: &PendingHop) {
        self.board.leave(hop);
        self.rest();
    }

    /// Counts one that waited in vain.
    pub(super) fn count_unanswered(&mut self, device: DeviceId) {
        *self.unanswered.entry(device).or_default() += 1;
    }

    fn rest(&mut self) {
        if let Some(kernel) = self.kernel.as_mut().filter(|_| self.board.asked.is_empty()) {
            kernel.stop_events();
            (self.again_at, self.ports_asked) = (None, None);
        }
    }

    /// The next hop of a way that the kernel does not know, and asks from now on.
    fn missing_of_kernel(&mut self, way: &HopQuery) -> Option<PendingHop> {
        if !std::mem::replace(&mut self.opened, true) {
            self.kernel = Hops::open().inspect_err(|e| tracing::debug!("next hops are not waited for: {e}")).ok();
        }
        let kernel = self.kernel.as_mut()?;
        let hop = kernel.unresolved(way.src, way.dst, way.ifindex)?;
        let pending = PendingHop::Kernel(hop);
        if self.board.is_asked(&pending) {
            return Some(pending);
        }
        match kernel.resolve(way.src, hop) {
            Ok(NeighbourState::Incomplete) => return Some(pending),
            Ok(_) => (),
            Err(error) => tracing::debug!("next hop {} is not waited for: {error}", hop.ip),
        }
        self.rest();
        None
    }

    /// What the kernel has to say of those that it asks.
    fn hear_kernel(&mut self, now: Instant, news: &mut HopChanges) {
        let Some(kernel) = &mut self.kernel else { return };
        let mut touched = BTreeSet::new();
        let (asked, again_at) = (&self.board.asked, &mut self.again_at);
        let soonest = self.again.map_or(now, |last| now.max(last + AGAIN));
        kernel.events(&mut |event| match event {
            HopEvent::Hop(hop) => touched.extend(asked.contains_key(&PendingHop::Kernel(hop)).then_some(hop)),
            HopEvent::Everything => *again_at = again_at.or(Some(soonest)),
        });
        for hop in touched {
            // What it says was true when it was said; what counts is now.
            match kernel.state(hop) {
                NeighbourState::Incomplete => (),
                state => news.hops.push((PendingHop::Kernel(hop), state != NeighbourState::Failed)),
            }
        }
    }
}

impl Host {
    /// The next hop to `found` that nobody knows yet, and that is being asked for; `None`: packets can be sent.
    pub(super) fn missing_hop(&mut self, now: Instant, found: &Destination) -> Option<PendingHop> {
        if found.via == ResolveMethod::Local {
            return None;
        }
        let device = &self.devices[found.device.index()];
        let ifindex = device.caps.addrs[found.index].ifindex;
        let way = HopQuery { src: found.src, dst: found.dst, device: device.id, ifindex };
        if let Some(missing) = self.cm.hops.board.remembered(now, &way) {
            return missing;
        }
        let missing = match found.via {
            ResolveMethod::Port => (self.hop_of_port(way.device, way.dst) != NeighbourState::Resolved)
                .then_some(PendingHop::Port(way.device, way.dst)),
            ResolveMethod::Kernel | ResolveMethod::Local => self.cm.hops.missing_of_kernel(&way),
        };
        self.cm.hops.board.remember(now, way, missing);
        missing
    }

    fn hop_of_port(&self, device: DeviceId, dst: IpAddr) -> NeighbourState {
        self.on_worker(0, move |w, now| w.next_hop(now, device, dst))
    }

    /// What has become of the next hops that are waited for. `readable`: the kernel has news.
    pub fn news_of_hops(&mut self, now: Instant, readable: bool) -> HopChanges {
        let mut news = HopChanges::default();
        if readable {
            self.cm.hops.hear_kernel(now, &mut news);
        }
        self.hear_ports(now, &mut news);
        let hops = &mut self.cm.hops;
        news.hops.iter().for_each(|(hop, _)| hops.board.moved(hop));
        if hops.again_at.is_some_and(|at| at <= now) {
            (hops.again_at, hops.again, news.all) = (None, Some(now), true);
            hops.board.all_moved();
        }
        news
    }

    fn hear_ports(&mut self, now: Instant, news: &mut HopChanges) {
        let hops = &self.cm.hops;
        if hops.ports_asked.is_some_and(|at| now < at + PORTS_EVERY) {
            return;
        }
        let of_port = |(hop, asked): (&PendingHop, &PendingIds)| match *hop {
            PendingHop::Port(device, dst) => Some((device, dst, asked.since)),
            PendingHop::Kernel(_) => None,
        };
        let asked: Vec<_> = hops.board.asked.iter().filter_map(of_port).collect();
        for (device, dst, since) in asked {
            let hop = PendingHop::Port(device, dst);
            match self.hop_of_port(device, dst) {
                NeighbourState::Resolved => news.hops.push((hop, true)),
                NeighbourState::Failed if now.duration_since(since) >= PORTS_PATIENCE => news.hops.push((hop, false)),
                NeighbourState::Incomplete | NeighbourState::Unresolved | NeighbourState::Failed => (),
            }
        }
        self.cm.hops.ports_asked = Some(now);
    }

    /// Puts those that waited in vain into the counters.
    pub fn count_unanswered(&mut self) {
        for (device, ids) in self.cm.hops.unanswered.drain().collect::<Vec<_>>() {
            self.post(0, move |w, _| {
                let counters = w.counters(device);
                (0..ids).for_each(|_| counters.count(Reason::CmNoNextHop));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(dst: &str) -> HopQuery {
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
    fn a_known_way_is_looked_at_once_in_a_while() {
        let (mut board, now) = (HopCache::default(), Instant::now());
        assert_eq!(board.remembered(now, &way("192.0.2.9")), None);
        board.remember(now, way("192.0.2.9"), None);
        assert_eq!(board.remembered(now + HOLDS / 2, &way("192.0.2.9")), Some(None));
        assert_eq!(board.remembered(now + HOLDS, &way("192.0.2.9")), None);
        assert_eq!(board.remembered(now, &way("192.0.2.8")), None);
        board.all_moved();
        assert_eq!(board.remembered(now, &way("192.0.2.9")), None);
    }

    #[test]
    fn one_question_serves_all_that_wait_until_something_moves() {
        let (mut board, now) = (HopCache::default(), Instant::now());
        let (way, gateway) = (way("198.51.100.9"), hop("192.0.2.254"));
        board.remember(now, way, Some(gateway));
        assert_eq!(board.remembered(now, &way), None, "nobody waits for it yet");
        (0..10_000).for_each(|_| board.join(now, gateway));
        assert_eq!((board.asked.len(), board.remembered(now, &way)), (1, Some(Some(gateway))));
        board.moved(&gateway);
        assert_eq!((board.is_asked(&gateway), board.remembered(now, &way)), (false, None));
        // The first that looks again finds it missing still: it is being asked again, for all.
        board.leave(&gateway);
        board.join(now, gateway);
        assert!(board.is_asked(&gateway));
        (0..10_000).for_each(|_| board.leave(&gateway));
        assert!(board.asked.is_empty());
        board.leave(&gateway);
        board.moved(&gateway);
        assert!(board.asked.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut board, now) = (HopCache::default(), Instant::now());
        for i in 0..3 * KEPT_MAX as u32 {
            board.remember(now, HopQuery { ifindex: i, ..way("192.0.2.9") }, None);
            assert!(board.kept.len() <= KEPT_MAX);
        }
    }
}
