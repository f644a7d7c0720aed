//! Ids of one program that wait for a next hop, found by whom they wait for and by when they give up.

use super::client::CmIdStage;
use super::hops::PendingHop;
use burst_base::DeviceId;
use burst_control::cm::{CmAddr, CmId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Longest wait, whatever the program allows: a kernel gives a neighbour up after three seconds.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// An address that is being resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddrResolution {
    /// Source, if the program or an earlier bind named one.
    pub src: Option<CmAddr>,
    pub dst: CmAddr,
    pub begun: Instant,
    pub deadline: Instant,
    /// How far the id was before.
    pub before: CmIdStage,
}

impl AddrResolution {
    /// From `src` to `dst`, as long as the program's timeout allows.
    pub fn new(
        (src, dst): (Option<CmAddr>, CmAddr),
        timeout_ms: u32,
        begun: Instant,
        before: CmIdStage,
    ) -> AddrResolution {
        let patience = Duration::from_millis(timeout_ms.into()).min(WAIT_MAX);
        AddrResolution { src, dst, begun, deadline: begun + patience, before }
    }
}

/// What an id waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HopWait {
    pub hop: PendingHop,
    pub what: AddrResolution,
    pub device: DeviceId,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HopWaits {
    by_hop: BTreeSet<(PendingHop, CmId)>,
    by_time: BTreeSet<(Instant, CmId)>,
}

impl HopWaits {
    pub fn insert(&mut self, id: CmId, wait: &HopWait) {
        self.by_hop.insert((wait.hop, id));
        self.by_time.insert((wait.what.deadline, id));
    }

    pub fn remove(&mut self, id: CmId, wait: &HopWait) {
        self.by_hop.remove(&(wait.hop, id));
        self.by_time.remove(&(wait.what.deadline, id));
    }

    /// Who waits for it.
    pub fn of(&self, hop: PendingHop) -> Vec<CmId> {
        self.by_hop.range((hop, CmId::MIN)..=(hop, CmId::MAX)).map(|(_, id)| *id).collect()
    }

    /// Everybody.
    pub fn all(&self) -> Vec<CmId> {
        self.by_time.iter().map(|(_, id)| *id).collect()
    }

    /// Who has waited long enough.
    pub fn expired(&self, now: Instant) -> Vec<CmId> {
        self.by_time.range(..=(now, CmId::MAX)).map(|(_, id)| *id).collect()
    }

    /// When the next one has.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(device: u16, timeout_ms: u32, begun: Instant) -> HopWait {
        let dst = CmAddr { ip: "192.0.2.9".parse().expect("ip"), port: 1, scope: 0 };
        let what = AddrResolution::new((None, dst), timeout_ms, begun, CmIdStage::Idle);
        HopWait { hop: PendingHop::Port(DeviceId(device), dst.ip), what, device: DeviceId(0) }
    }

    #[test]
    fn ids_are_found_by_hop_and_by_time_and_leave_nothing() {
        let (mut waits, now) = (HopWaits::default(), Instant::now());
        let each = [(1, wait(1, 500, now)), (2, wait(2, 100, now)), (3, wait(1, 100, now)), (4, wait(1, 0, now))];
        each.iter().for_each(|(id, wait)| waits.insert(*id, wait));
        assert_eq!(waits.of(each[0].1.hop), [1, 3, 4]);
        assert_eq!(waits.of(each[1].1.hop), [2]);
        assert_eq!((waits.expired(now), waits.next()), (vec![4], Some(now)));
        assert_eq!(waits.expired(now + Duration::from_millis(100)), [4, 2, 3]);
        waits.remove(4, &each[3].1);
        assert_eq!((waits.expired(now), waits.all().len()), (vec![], 3));
        each.iter().for_each(|(id, wait)| waits.remove(*id, wait));
        assert!(waits.by_hop.is_empty() && waits.by_time.is_empty() && waits.next().is_none());
    }

    #[test]
    fn no_timeout_is_for_ever() {
        let now = Instant::now();
        assert_eq!(wait(1, u32::MAX, now).what.deadline, now + WAIT_MAX);
    }
}
