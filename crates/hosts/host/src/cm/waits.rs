//! The ids of one program that wait for next hops, indexed by next hop and by deadline.

use super::hops::PendingHop;
use super::id::HopWait;
use burst_base::Nanos;
use burst_control::cm::CmId;
use std::collections::BTreeSet;

/// Indices of waiting ids.
#[derive(Debug, Default)]
pub(super) struct HopWaits {
    by_hop: BTreeSet<(PendingHop, CmId)>,
    by_deadline: BTreeSet<(Nanos, CmId)>,
}

impl HopWaits {
    /// Adds a waiting id.
    pub fn insert(&mut self, id: CmId, wait: &HopWait) {
        self.by_hop.insert((wait.hop, id));
        self.by_deadline.insert((wait.resolution.deadline, id));
        debug_assert_eq!(self.by_hop.len(), self.by_deadline.len());
    }

    /// Removes an id that waited.
    pub fn remove(&mut self, id: CmId, wait: &HopWait) {
        self.by_hop.remove(&(wait.hop, id));
        self.by_deadline.remove(&(wait.resolution.deadline, id));
        debug_assert_eq!(self.by_hop.len(), self.by_deadline.len());
    }

    /// The ids that wait for a next hop.
    pub fn of_hop(&self, hop: PendingHop) -> Vec<CmId> {
        self.by_hop.range((hop, CmId::MIN)..=(hop, CmId::MAX)).map(|(_, id)| *id).collect()
    }

    /// All waiting ids.
    pub fn all_ids(&self) -> Vec<CmId> {
        self.by_deadline.iter().map(|(_, id)| *id).collect()
    }

    /// The ids whose deadline is `now` or earlier.
    pub fn expired_ids(&self, now: Nanos) -> Vec<CmId> {
        self.by_deadline.range(..=(now, CmId::MAX)).map(|(_, id)| *id).collect()
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{AddrPair, AddrResolution, CmIdStage};
    use super::*;
    use burst_base::DeviceId;
    use burst_control::cm::CmAddr;

    fn wait(device: u16, timeout_ms: u32, begun: Nanos) -> HopWait {
        let dst = CmAddr { ip: "192.0.2.9".parse().expect("ip"), port: 1, scope: 0 };
        let resolution = AddrResolution::new(AddrPair { src: None, dst }, timeout_ms, begun, CmIdStage::Idle);
        HopWait { hop: PendingHop::Port(DeviceId(device), dst.ip), resolution, device: DeviceId(0) }
    }

    #[test]
    fn ids_are_found_by_next_hop_and_by_deadline_and_leave_nothing_behind() {
        let (mut waits, now) = (HopWaits::default(), Nanos::from_ms(5));
        let each = [(1, wait(1, 500, now)), (2, wait(2, 100, now)), (3, wait(1, 100, now)), (4, wait(1, 0, now))];
        each.iter().for_each(|(id, wait)| waits.insert(*id, wait));
        assert_eq!(waits.of_hop(each[0].1.hop), [1, 3, 4]);
        assert_eq!(waits.of_hop(each[1].1.hop), [2]);
        assert_eq!((waits.expired_ids(now), waits.next_deadline()), (vec![4], Some(now)));
        assert_eq!(waits.expired_ids(now + Nanos::from_ms(100)), [4, 2, 3]);
        waits.remove(4, &each[3].1);
        assert_eq!((waits.expired_ids(now), waits.all_ids().len()), (vec![], 3));
        each.iter().for_each(|(id, wait)| waits.remove(*id, wait));
        assert!(waits.by_hop.is_empty() && waits.by_deadline.is_empty() && waits.next_deadline().is_none());
    }
}
