//! Next hops: the questions that need a worker's port, a device or a counter.

use super::Host;
use crate::cm::{Destination, HopChanges, HopQuery, PendingHop, ResolveMethod};
use burst_base::{DeviceId, Nanos, Reason};
use burst_netif::hops::NeighbourState;
use std::net::IpAddr;

impl Host {
    /// The next hop to `found` if it is unresolved; it is being resolved then. `None`: packets can be sent.
    pub(crate) fn unresolved_hop(&mut self, now: Nanos, found: &Destination) -> Option<PendingHop> {
        if found.via == ResolveMethod::Local {
            return None;
        }
        let device = &self.devices[found.device.index()];
        let ifindex = device.caps.addrs[found.index].ifindex;
        let query = HopQuery { src: found.src, dst: found.dst, device: device.id, ifindex };
        if let Some(unresolved) = self.cm.hops.cache.lookup(now, &query) {
            return unresolved;
        }
        let unresolved = match found.via {
            ResolveMethod::Port => {
                let resolved = self.hop_of_port(query.device, query.dst) == NeighbourState::Resolved;
                (!resolved).then_some(PendingHop::Port(query.device, query.dst))
            }
            ResolveMethod::Kernel | ResolveMethod::Local => self.cm.hops.unresolved_by_kernel(&query),
        };
        self.cm.hops.cache.insert(now, query, unresolved);
        unresolved
    }

    fn hop_of_port(&self, device: DeviceId, dst: IpAddr) -> NeighbourState {
        self.on_worker(0, move |w, now| w.next_hop(now, device, dst))
    }

    /// The changes of next hops that ids wait for. `readable`: the kernel has events.
    pub fn hop_changes(&mut self, now: Nanos, readable: bool) -> HopChanges {
        let mut changes = HopChanges::default();
        if readable {
            self.cm.hops.read_kernel_events(now, &mut changes);
        }
        for polled in self.cm.hops.ports_to_poll(now) {
            if let PendingHop::Port(device, dst) = polled.0 {
                let state = self.hop_of_port(device, dst);
                self.cm.hops.note_port_state(now, polled, state, &mut changes);
            }
        }
        self.cm.hops.apply(now, &mut changes);
        changes
    }

    /// Adds the ids whose next hop did not answer to the counters of worker 0.
    pub fn count_unanswered(&mut self) {
        for (device, ids) in self.cm.hops.unanswered.drain().collect::<Vec<_>>() {
            self.post(0, move |w, _| {
                let counters = w.counters(device);
                (0..ids).for_each(|_| counters.count(Reason::CmNoNextHop));
            });
        }
    }
}
