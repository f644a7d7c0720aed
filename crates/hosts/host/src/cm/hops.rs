//! Next hops of addresses that are being resolved: `rdma_resolve_addr` succeeds when the next hop is known to answer.
//!
//! The kernel, or a port that owns its interface, knows the state of a next hop. An unresolved next hop is resolved once, however
//! many ids wait for it (`HopCache`). The kernel's events (rtnetlink) report the result; a port is polled every
//! `PORT_POLL_INTERVAL`. When routes change, all ids look their next hops up again, at most every `RECHECK_INTERVAL`. Where
//! no state can be had (no netlink, a firewall), ids do not wait: the connection will show whether the peer answers.

use super::hop_cache::HopCache;
pub use super::hop_cache::{HopQuery, PendingHop};
use burst_base::{DeviceId, Nanos};
use burst_control::failures::NextHop;
use burst_netif::hops::{HopEvent, Hops, NeighbourState};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// Minimum time between two looks at the next hops of all ids.
const RECHECK_INTERVAL: Nanos = Nanos::from_ms(100);
/// Time between two questions to a port that resolves its next hops itself.
const PORT_POLL_INTERVAL: Nanos = Nanos::from_ms(10);
/// Next hops about which ports are asked at once. Each question waits for a worker.
const PORT_POLLS_MAX: usize = 64;
/// How long a port may resolve a next hop that does not answer: two rounds of its requests.
const PORT_TIMEOUT: Nanos = Nanos::from_ms(2000);

/// The changes of next hops that ids wait for.
#[derive(Debug, Default)]
pub struct HopChanges {
    /// Next hops whose state has changed.
    pub(crate) hops: Vec<HopChange>,
    /// Routes have changed: all ids look their next hops up again.
    pub(crate) all: bool,
}

/// A next hop whose state has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HopChange {
    /// The next hop.
    pub hop: PendingHop,
    /// False: it did not answer. True: the ids that wait for it look it up again.
    pub retry: bool,
}

/// The next hops that ids of all programs wait for.
#[derive(Default)]
pub struct NextHops {
    pub(crate) cache: HopCache,
    /// The kernel's neighbours; `None` before the first lookup, and where there is no netlink.
    kernel: Option<Hops>,
    /// Whether opening netlink was tried.
    opened: bool,
    /// When all ids shall look their next hops up again.
    recheck_at: Option<Nanos>,
    /// When they last did.
    rechecked: Option<Nanos>,
    /// When ports were last polled.
    ports_polled: Option<Nanos>,
    /// The last next hop about which a port was asked.
    last_polled: Option<PendingHop>,
    /// How many ids had a next hop that did not answer, by device; not yet added to the workers' counters.
    pub(crate) unanswered: HashMap<DeviceId, u32>,
}

impl std::fmt::Debug for NextHops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NextHops").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl NextHops {
    /// Whether an id waits for a next hop.
    pub fn is_waited_for(&self) -> bool {
        !self.cache.pending.is_empty()
    }

    /// How many ids wait.
    pub fn waiting(&self) -> u64 {
        self.cache.pending.values().map(|resolution| resolution.ids as u64).sum()
    }

    /// A descriptor that is readable when the kernel has events of next hops.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.as_ref().and_then(Hops::fd)
    }

    /// When next hops must be looked at again although the kernel has reported nothing; `None`: never. At `now` if ports were
    /// never polled.
    pub fn due_at(&self, now: Nanos) -> Option<Nanos> {
        let ports = self.cache.has_hops_of_ports().then(|| self.ports_polled.map_or(now, |at| at + PORT_POLL_INTERVAL));
        [self.recheck_at, ports].into_iter().flatten().min()
    }

    /// Adds an id that waits for a next hop.
    pub(crate) fn join(&mut self, now: Nanos, hop: PendingHop) {
        self.cache.join(now, hop);
    }

    /// Removes an id that waited for a next hop.
    pub(crate) fn leave(&mut self, hop: &PendingHop) {
        self.cache.leave(hop);
        self.stop_if_idle();
    }

    /// Counts an id whose next hop did not answer.
    pub(crate) fn note_unanswered(&mut self, device: DeviceId) {
        *self.unanswered.entry(device).or_default() += 1;
    }

    fn stop_if_idle(&mut self) {
        if let Some(kernel) = self.kernel.as_mut().filter(|_| self.cache.pending.is_empty()) {
            kernel.stop_events();
            (self.recheck_at, self.ports_polled) = (None, None);
        }
    }

    /// The next hop of a query if the kernel has not resolved it; the kernel resolves it from now on.
    pub(crate) fn unresolved_by_kernel(&mut self, query: &HopQuery) -> Option<PendingHop> {
        if !std::mem::replace(&mut self.opened, true) {
            self.kernel = Hops::open().inspect_err(|e| tracing::debug!("ids do not wait for next hops: {e}")).ok();
        }
        let kernel = self.kernel.as_mut()?;
        let hop = kernel.unresolved(query.src, query.dst, query.ifindex)?;
        let pending = PendingHop::Kernel(hop);
        if self.cache.is_resolving(&pending) {
            return Some(pending);
        }
        match kernel.resolve(query.src, hop) {
            Ok(NeighbourState::Incomplete) => return Some(pending),
            Ok(_) => (),
            Err(error) => tracing::debug!("ids do not wait for next hop {}: {error}", hop.ip),
        }
        self.stop_if_idle();
        None
    }

    /// What the kernel knows of the next hop from `src` to `dst`, which is not resolved for that. `None`: nothing can be known.
    pub(crate) fn look(&mut self, src: IpAddr, dst: IpAddr, ifindex: u32) -> Option<NextHop> {
        if !std::mem::replace(&mut self.opened, true) {
            self.kernel = Hops::open().inspect_err(|e| tracing::debug!("ids do not wait for next hops: {e}")).ok();
        }
        let kernel = self.kernel.as_mut()?;
        if !kernel.has_route(src, dst, ifindex) {
            return Some(NextHop::NoRoute);
        }
        Some(match kernel.unresolved(src, dst, ifindex).map(|hop| kernel.state(hop)) {
            None | Some(NeighbourState::Resolved) => NextHop::Resolved,
            Some(NeighbourState::Failed) => NextHop::Silent,
            Some(NeighbourState::Incomplete | NeighbourState::Unresolved) => NextHop::Asked,
        })
    }

    /// Reads the kernel's events and adds the changes of next hops that ids wait for.
    pub(crate) fn read_kernel_events(&mut self, now: Nanos, changes: &mut HopChanges) {
        let Some(kernel) = &mut self.kernel else { return };
        let mut touched = BTreeSet::new();
        let (pending, recheck_at) = (&self.cache.pending, &mut self.recheck_at);
        let soonest = self.rechecked.map_or(now, |last| now.max(last + RECHECK_INTERVAL));
        kernel.events(&mut |event| match event {
            HopEvent::Hop(hop) => touched.extend(pending.contains_key(&PendingHop::Kernel(hop)).then_some(hop)),
            HopEvent::Everything => *recheck_at = recheck_at.or(Some(soonest)),
        });
        for hop in touched {
            // An event reports the state at the time of the event; the present state counts.
            match kernel.state(hop) {
                NeighbourState::Incomplete => (),
                state => {
                    let retry = state != NeighbourState::Failed;
                    changes.hops.push(HopChange { hop: PendingHop::Kernel(hop), retry });
                }
            }
        }
    }

    /// The next hops that ports resolve, and since when, if ports are due to be polled.
    pub(crate) fn ports_to_poll(&mut self, now: Nanos) -> Vec<(PendingHop, Nanos)> {
        if self.ports_polled.is_some_and(|at| now < at + PORT_POLL_INTERVAL) {
            return Vec::new();
        }
        self.ports_polled = Some(now);
        let polled = self.cache.hops_of_ports(self.last_polled, PORT_POLLS_MAX);
        self.last_polled = polled.last().map(|(hop, _)| *hop);
        polled
    }

    /// Adds the change of a next hop that a port resolves since `since`, if its state is final.
    pub(crate) fn note_port_state(
        &mut self,
        now: Nanos,
        (hop, since): (PendingHop, Nanos),
        state: NeighbourState,
        changes: &mut HopChanges,
    ) {
        match state {
            NeighbourState::Resolved => changes.hops.push(HopChange { hop, retry: true }),
            NeighbourState::Failed if now.since(since) >= PORT_TIMEOUT => {
                changes.hops.push(HopChange { hop, retry: false })
            }
            NeighbourState::Incomplete | NeighbourState::Unresolved | NeighbourState::Failed => (),
        }
    }

    /// Invalidates what the changes have made obsolete, and adds the recheck of all next hops if it is due.
    pub(crate) fn apply(&mut self, now: Nanos, changes: &mut HopChanges) {
        changes.hops.iter().for_each(|change| self.cache.invalidate(&change.hop));
        if self.recheck_at.is_some_and(|at| at <= now) {
            (self.recheck_at, self.rechecked, changes.all) = (None, Some(now), true);
            self.cache.invalidate_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_port() -> PendingHop {
        PendingHop::Port(DeviceId(0), "192.0.2.9".parse().expect("ip"))
    }

    #[test]
    fn a_port_is_polled_at_its_interval_and_given_time_to_answer() {
        let (mut hops, begun) = (NextHops::default(), Nanos::from_ms(5));
        assert_eq!(hops.due_at(begun), None);
        hops.join(begun, of_port());
        assert_eq!((hops.due_at(begun), hops.waiting()), (Some(begun), 1));
        assert_eq!(hops.ports_to_poll(begun), [(of_port(), begun)]);
        assert!(hops.ports_to_poll(begun).is_empty(), "not twice");
        assert_eq!(hops.due_at(begun), Some(begun + PORT_POLL_INTERVAL));
        let mut changes = HopChanges::default();
        hops.note_port_state(begun, (of_port(), begun), NeighbourState::Failed, &mut changes);
        hops.note_port_state(begun, (of_port(), begun), NeighbourState::Incomplete, &mut changes);
        assert!(changes.hops.is_empty());
        hops.note_port_state(begun + PORT_TIMEOUT, (of_port(), begun), NeighbourState::Failed, &mut changes);
        assert_eq!(changes.hops, [HopChange { hop: of_port(), retry: false }]);
        hops.apply(begun, &mut changes);
        assert!(!changes.all && !hops.cache.is_resolving(&of_port()));
        hops.leave(&of_port());
        assert!(!hops.is_waited_for());
    }

    #[test]
    fn ports_are_asked_about_a_bounded_number_of_next_hops_in_turns() {
        let begun = Nanos::from_ms(5);
        for count in [200u16, 800] {
            let mut hops = NextHops::default();
            let hop = |device| PendingHop::Port(DeviceId(device), "192.0.2.9".parse().expect("ip"));
            (0..count).for_each(|device| hops.join(begun, hop(device)));
            let mut asked = BTreeSet::new();
            for pass in 0..u64::from(count).div_ceil(PORT_POLLS_MAX as u64) {
                let polled = hops.ports_to_poll(begun + Nanos(pass * PORT_POLL_INTERVAL.0));
                assert_eq!(polled.len(), PORT_POLLS_MAX, "of {count}");
                asked.extend(polled.into_iter().map(|(hop, _)| hop));
            }
            assert_eq!(asked.len(), usize::from(count), "each has its turn");
        }
    }
}
