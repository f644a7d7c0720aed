//! The ids of all programs that wait for next hops, indexed by next hop, by deadline and by when they began to wait.
//!
//! A next hop that answers, or a change of routes, may concern all ids that wait. They go on in passes:
//! [`HopWaits::take_due`] gives one after the other, and its caller stops after a bounded number. What is left is due at once in
//! the next pass. An id that looks its next hop up again and waits again has a later number, so it is not taken twice for one
//! change. Neither a pass in which nothing is due nor the search for the earliest deadline depends on how many ids wait, or on
//! how many programs there are.

use super::hops::{HopChange, HopChanges, PendingHop};
use super::id::HopWait;
use crate::session_number::SessionNumber;
use burst_base::Nanos;
use burst_control::cm::CmId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An id of a program.
pub(crate) type WaitingId = (SessionNumber, CmId);

/// How an id that waits for a next hop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// It looks its next hop up again.
    Retry,
    /// The next hop did not answer.
    Failed,
    /// The id has waited for as long as it may.
    TimedOut,
}

/// Indices of waiting ids.
#[derive(Debug, Default)]
pub(crate) struct HopWaits {
    by_hop: BTreeSet<(PendingHop, u64, WaitingId)>,
    by_deadline: BTreeSet<(Nanos, WaitingId)>,
    by_number: BTreeMap<u64, WaitingId>,
    /// The number of the next wait.
    next: u64,
    /// Changes for which ids have to go on, each with the number of the first wait that began after it.
    changed: VecDeque<(HopChange, u64)>,
    /// Waits with lower numbers look their next hops up again.
    recheck: u64,
}

impl HopWaits {
    /// A number for a wait that begins.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds a waiting id.
    pub(super) fn insert(&mut self, id: WaitingId, wait: &HopWait) {
        self.by_hop.insert((wait.hop, wait.number, id));
        self.by_deadline.insert((wait.resolution.deadline, id));
        self.by_number.insert(wait.number, id);
        debug_assert_eq!(self.by_hop.len(), self.by_deadline.len());
    }

    /// Removes an id that waited.
    pub(super) fn remove(&mut self, id: WaitingId, wait: &HopWait) {
        self.by_hop.remove(&(wait.hop, wait.number, id));
        self.by_deadline.remove(&(wait.resolution.deadline, id));
        self.by_number.remove(&wait.number);
        debug_assert_eq!(self.by_hop.len(), self.by_deadline.len());
    }

    /// The ids that wait now go on as the changes say.
    pub fn note(&mut self, changes: &HopChanges) {
        self.changed.extend(changes.hops.iter().map(|change| (*change, self.next + 1)));
        if changes.all {
            self.recheck = self.next + 1;
        }
    }

    /// The next id that goes on at `now`. It must be removed, or wait again with a new number, before the next call.
    pub fn take_due(&mut self, now: Nanos) -> Option<(WaitingId, WaitEnd)> {
        while let Some((change, end)) = self.changed.front() {
            let first = (SessionNumber::MIN, CmId::MIN);
            let of_hop = self.by_hop.range((change.hop, 0, first)..(change.hop, *end, first)).next();
            match of_hop {
                Some((.., id)) => return Some((*id, if change.retry { WaitEnd::Retry } else { WaitEnd::Failed })),
                None => _ = self.changed.pop_front(),
            }
        }
        if let Some((number, id)) = self.by_number.first_key_value()
            && *number < self.recheck
        {
            return Some((*id, WaitEnd::Retry));
        }
        let (deadline, id) = self.by_deadline.first()?;
        (*deadline <= now).then_some((*id, WaitEnd::TimedOut))
    }

    /// When [`HopWaits::take_due`] has an id; `None`: not before a change.
    pub fn due_at(&self, now: Nanos) -> Option<Nanos> {
        let is_behind = self.by_number.first_key_value().is_some_and(|(number, _)| *number < self.recheck);
        if is_behind || !self.changed.is_empty() {
            return Some(now);
        }
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{AddrPair, AddrResolution, CmIdStage};
    use super::*;
    use burst_base::DeviceId;
    use burst_control::cm::CmAddr;

    fn wait(waits: &mut HopWaits, device: u16, timeout_ms: u32, begun: Nanos) -> HopWait {
        let dst = CmAddr { ip: "192.0.2.9".parse().expect("ip"), port: 1, scope: 0 };
        let resolution = AddrResolution::new(AddrPair { src: None, dst }, timeout_ms, begun, CmIdStage::Idle);
        let hop = PendingHop::Port(DeviceId(device), dst.ip);
        HopWait { hop, resolution, device: DeviceId(0), number: waits.number() }
    }

    fn id(number: u32) -> WaitingId {
        (SessionNumber(u64::from(number) % 2), number)
    }

    /// The ids that are due, each of which ends.
    fn taken(waits: &mut HopWaits, each: &[(WaitingId, HopWait)], now: Nanos) -> Vec<(u32, WaitEnd)> {
        std::iter::from_fn(|| {
            let (due, end) = waits.take_due(now)?;
            let (_, wait) = each.iter().find(|(id, _)| *id == due).expect("an id that waits");
            waits.remove(due, wait);
            Some((due.1, end))
        })
        .collect()
    }

    #[test]
    fn ids_go_on_by_next_hop_and_by_deadline_and_leave_nothing_behind() {
        let (mut waits, now) = (HopWaits::default(), Nanos::from_ms(5));
        let of = [(1, 1, 500), (2, 2, 100), (3, 1, 100), (4, 1, 0), (5, 3, 100)];
        let each = of.map(|(number, device, timeout)| (id(number), wait(&mut waits, device, timeout, now)));
        each.iter().for_each(|(id, wait)| waits.insert(*id, wait));
        assert_eq!(waits.due_at(now), Some(now));
        assert_eq!(taken(&mut waits, &each, now), [(4, WaitEnd::TimedOut)]);
        assert_eq!(waits.due_at(now), Some(now + Nanos::from_ms(100)));
        let change = |device, retry| HopChange {
            hop: PendingHop::Port(DeviceId(device), "192.0.2.9".parse().expect("ip")),
            retry,
        };
        waits.note(&HopChanges { hops: vec![change(1, true), change(2, false)], all: false });
        assert_eq!(waits.due_at(now), Some(now), "at once");
        assert_eq!(taken(&mut waits, &each, now), [(1, WaitEnd::Retry), (3, WaitEnd::Retry), (2, WaitEnd::Failed)]);
        assert_eq!(waits.due_at(now), Some(now + Nanos::from_ms(100)), "the fifth");
        waits.note(&HopChanges { hops: Vec::new(), all: true });
        assert_eq!((waits.due_at(now), taken(&mut waits, &each, now)), (Some(now), vec![(5, WaitEnd::Retry)]));
        assert!(waits.by_hop.is_empty() && waits.by_deadline.is_empty() && waits.by_number.is_empty());
        assert_eq!(waits.due_at(now), None);
    }

    #[test]
    fn an_id_that_waits_again_goes_on_once_for_each_change() {
        let (mut waits, now) = (HopWaits::default(), Nanos::from_ms(5));
        let first = wait(&mut waits, 1, 500, now);
        waits.insert(id(1), &first);
        waits.note(&HopChanges { hops: vec![HopChange { hop: first.hop, retry: true }], all: true });
        assert_eq!(waits.take_due(now), Some((id(1), WaitEnd::Retry)));
        waits.remove(id(1), &first);
        let again = HopWait { number: waits.number(), ..first };
        waits.insert(id(1), &again);
        assert_eq!((waits.take_due(now), waits.due_at(now)), (None, Some(first.resolution.deadline)));
    }
}
