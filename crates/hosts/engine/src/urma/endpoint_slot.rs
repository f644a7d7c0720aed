//! An endpoint in a worker: with the memory of its programs, their queues, and what the node has reported.

use crate::counters::Counters;
use crate::urma::endpoint::{NodeIo, UrmaEndpoint};
use crate::urma::endpoints::UrmaShared;
use crate::urma::failures::note;
use crate::urma::orphans::{OrphanNumbers, OrphanedObjects, Orphans};
use crate::urma::region_memory::RegionMemory;
use crate::urma::tenant::{ByNumber, ImportCall, NextRecord, TURN_BYTES, TURN_RECORDS, TenantCall, UrmaTenant};
use burst_base::{DeviceId, Nanos, Reason};
use burst_control::urma_calls::UrmaAnswer;
use burst_mem::MrTable;
use burst_urma::{SegmentConfig, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent, UrmaMemory, UrmaNode};
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Reports that are listed as they come. Further ones are listed once each, so that all together are no more than the node's
/// objects have, however late their reader comes; nothing is lost.
const REPORTS_LISTED: usize = 4096;

/// Reports in the order in which they came.
#[derive(Debug)]
pub struct ReportList<T> {
    listed: Vec<T>,
    /// Those of the list, and those behind it, if it is long.
    known: HashSet<T, foldhash::fast::RandomState>,
}

impl<T> Default for ReportList<T> {
    fn default() -> ReportList<T> {
        ReportList { listed: Vec::new(), known: HashSet::default() }
    }
}

impl<T: Copy + Eq + Hash> ReportList<T> {
    /// Adds a report, unless it is the last one.
    #[inline]
    fn push(&mut self, report: T) {
        if self.listed.last() == Some(&report) {
            return;
        }
        if self.listed.len() >= REPORTS_LISTED && !self.is_new(report) {
            return;
        }
        self.listed.push(report);
    }

    /// Whether a report is not in the long list yet.
    #[cold]
    fn is_new(&mut self, report: T) -> bool {
        if self.known.is_empty() {
            self.known = self.listed.iter().copied().collect();
        }
        self.known.insert(report)
    }

    /// All reports. Afterwards there are none.
    pub fn take(&mut self) -> Vec<T> {
        if !self.known.is_empty() {
            self.known = HashSet::default();
        }
        std::mem::take(&mut self.listed)
    }

    /// Gives the memory of a list back that was read.
    fn reuse(&mut self, mut read: Vec<T>) {
        debug_assert!(self.listed.is_empty() && self.known.is_empty(), "reports are forgotten");
        read.clear();
        if read.capacity() <= REPORTS_LISTED {
            self.listed = read;
        }
    }

    /// The reports.
    pub fn list(&self) -> &[T] {
        &self.listed
    }
}

/// What the node has reported: completion queues with new records, and events.
#[derive(Debug)]
pub struct UrmaReports {
    counters: Arc<Counters>,
    /// Completion queues with new records, each as often as it got one after it was read, or once.
    pub completions: ReportList<u32>,
    /// Events.
    pub events: ReportList<UrmaEvent>,
}

impl UrmaEffects for UrmaReports {
    fn count(&mut self, reason: Reason) {
        self.counters.count(reason);
    }
    fn completion(&mut self, jfc: u32) {
        self.completions.push(jfc);
    }
    fn event(&mut self, event: UrmaEvent) {
        self.events.push(event);
    }
}

/// What a program's turn has posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TenantTurn {
    /// Records that were taken.
    pub requests: u32,
    /// Bytes of the work requests.
    pub bytes: u64,
    /// Whether the program has more records.
    pub goes_on: bool,
}

/// An endpoint in a worker.
pub(crate) struct EndpointSlot {
    pub endpoint: UrmaEndpoint,
    /// Device, for its counters.
    pub device: Option<DeviceId>,
    /// Memory of the one program; `None`: the regions of the worker's programs.
    pub memory: Option<Box<dyn UrmaMemory + Send>>,
    pub reports: UrmaReports,
    /// Contexts of the programs that have completion queues, by JFC.
    pub owners: ByNumber<u32>,
    /// Objects of programs that have ended.
    pub orphans: Orphans,
    /// Programs that use the node.
    pub tenants: u32,
}

impl EndpointSlot {
    pub fn new(
        endpoint: UrmaEndpoint,
        device: Option<DeviceId>,
        memory: Option<Box<dyn UrmaMemory + Send>>,
    ) -> EndpointSlot {
        let mut endpoint = endpoint;
        endpoint.join_worker(device.unwrap_or(DeviceId(0)));
        let counters = endpoint.counters().clone();
        EndpointSlot {
            endpoint,
            device,
            memory,
            reports: UrmaReports { counters, completions: ReportList::default(), events: ReportList::default() },
            owners: ByNumber::default(),
            orphans: Orphans::default(),
            tenants: 0,
        }
    }
    /// When timers are due, or more orphans can be deleted.
    pub fn next_deadline(&self) -> Nanos {
        if self.orphans.is_due { Nanos(0) } else { self.endpoint.node.next_deadline() }
    }
    /// Calls something of the endpoint with its memory and its reports.
    pub fn call<R>(
        &mut self,
        regions: &MrTable,
        call: impl FnOnce(&mut UrmaEndpoint, &mut dyn UrmaMemory, &mut UrmaReports) -> R,
    ) -> R {
        let mut regions = RegionMemory(regions);
        let memory: &mut dyn UrmaMemory = match &mut self.memory {
            Some(own) => &mut **own,
            None => &mut regions,
        };
        call(&mut self.endpoint, memory, &mut self.reports)
    }
    /// Calls something of the node.
    pub fn call_node<R>(
        &mut self,
        shared: &mut UrmaShared<'_>,
        call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R,
    ) -> R {
        let (now, tables) = (shared.now, shared.tables.reborrow());
        self.call(shared.regions, |endpoint, mem, fx| endpoint.call_node(NodeIo { now, mem, fx, tables }, call))
    }
    /// Takes the objects of a program that has ended. That takes as long however many they are, if its segments, imports and
    /// completion queues have left before ([`UrmaTenant::take_leaving`]).
    pub fn inherit(&mut self, mut tenant: UrmaTenant) {
        tenant.take_leaving().for_each(|object| object.end(self));
        let jfcs = tenant.take_leaving().take_ended_jfcs();
        self.orphans.add(OrphanedObjects {
            jetties: OrphanNumbers::new(tenant.jetties.into_keys()),
            jfrs: OrphanNumbers::new(tenant.jfrs.into_keys()),
            groups: OrphanNumbers::new(tenant.groups.into_iter()),
            jfcs: OrphanNumbers::new(jfcs.into_iter()),
            _charges: tenant.charges,
            abandoned: 0,
        });
    }
    /// Deletes a part of the orphans, as far as nothing uses them any more.
    pub fn delete_orphans(&mut self, shared: &mut UrmaShared<'_>) {
        let mut orphans = std::mem::take(&mut self.orphans);
        self.call_node(shared, |node, env| {
            orphans.delete_some(node, env);
        });
        self.orphans = orphans;
    }
    /// A program's turn: posts the next records of its ring to the node.
    pub fn post_next(&mut self, tenant: &mut UrmaTenant, shared: &mut UrmaShared<'_>) -> TenantTurn {
        debug_assert!(tenant.address == self.endpoint.address(), "a program of another node");
        let mut turn = TenantTurn::default();
        while turn.requests < TURN_RECORDS && turn.bytes < TURN_BYTES {
            let (post, wr) = match tenant.next_request(&mut self.endpoint, shared.events) {
                NextRecord::Empty => return turn,
                NextRecord::Used => {
                    turn.requests += 1;
                    continue;
                }
                NextRecord::Request(post, wr) => (post, wr),
            };
            let posted = self.call_node(shared, |node, env| node.post_send(post.queue, &wr, env));
            turn.requests += 1;
            if posted.is_ok() {
                turn.bytes += u64::from(wr.data.len());
            }
            if !tenant.posted((post, wr), posted, &mut self.endpoint, shared.events) {
                return turn;
            }
        }
        TenantTurn { goes_on: true, ..turn }
    }
    /// Gives programs the completions that the node has reported. Returns whether a program's queue had any.
    pub fn deliver_completions(&mut self, tenants: &ByNumber<UrmaTenant>, shared: &mut UrmaShared<'_>) -> bool {
        let (mut delivered, mut failures) = (false, Vec::new());
        let EndpointSlot { endpoint, owners, reports, .. } = self;
        // A Jetty that has lost a completion stops, which may complete something: each stops once.
        while !reports.completions.list().is_empty() {
            let completions = reports.completions.take();
            for jfc in completions.iter().copied() {
                match owners.get(&jfc).and_then(|context| tenants.get(context)) {
                    Some(tenant) => {
                        failures.extend(tenant.deliver(jfc, endpoint, reports, shared.events));
                        delivered = true;
                    }
                    // Of a program that has ended.
                    None => while endpoint.node.poll_jfc(jfc).is_some() {},
                }
            }
            if reports.completions.list().is_empty() {
                reports.completions.reuse(completions);
                break;
            }
        }
        failures.iter().for_each(|failure| note(failure, endpoint, shared));
        delivered
    }
    /// Gives programs the events that the node has reported.
    pub fn deliver_events(&mut self, tenants: &ByNumber<UrmaTenant>) {
        for event in self.reports.events.take() {
            // Each object uses a JFC of its program. An event of a program that has ended has no reader.
            let owner = self.endpoint.node.jfc_of(event).and_then(|jfc| self.owners.get(&jfc));
            if let Some(tenant) = owner.and_then(|context| tenants.get(context)) {
                tenant.deliver_event(event);
            }
        }
    }
    /// Carries out a call of a program for an object.
    ///
    /// # Errors
    /// The node's refusal; [`UrmaError::NoObject`] also for objects of others.
    pub fn carry_out(
        &mut self,
        tenant: &mut UrmaTenant,
        call: TenantCall,
        shared: &mut UrmaShared<'_>,
    ) -> Result<UrmaAnswer, UrmaError> {
        if let TenantCall::RegisterSegment(key, config) = &call
            && !reaches(shared.regions, *key, config)
        {
            return Err(UrmaError::Access);
        }
        let import = ImportCall::of(&call);
        let ended = import.and_then(|import| import.ended(tenant));
        let result = self.call_node(shared, |node, env| tenant.carry_out(node, env, call));
        match (import, &result) {
            (Some(ImportCall::Begins(peer)), Ok(_)) => self.endpoint.hold_import(peer),
            (Some(_), Ok(_)) => ended.into_iter().for_each(|peer| self.endpoint.end_import(peer)),
            _ => {}
        }
        if let Ok(UrmaAnswer::Number(number)) = result
            && tenant.jfcs.contains_key(&number)
        {
            debug_assert!(
                self.owners.get(&number).is_none_or(|owner| *owner == tenant.context),
                "JFC {number} has an owner"
            );
            self.owners.insert(number, tenant.context);
        }
        result
    }
}

/// Whether a region has all bytes of a segment.
fn reaches(regions: &MrTable, key: u32, config: &SegmentConfig) -> bool {
    let region = regions.get(key);
    let last = config.addr.checked_add(config.len.saturating_sub(1));
    let reaches = |addr: u64| region.is_some_and(|region| region.span(addr, 1).is_some());
    config.len > 0 && reaches(config.addr) && last.is_some_and(reaches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_report_is_lost_however_many_queues_report_before_anybody_reads() {
        let mut reports = ReportList::default();
        let queues = 3 * REPORTS_LISTED as u32;
        (0..queues).chain(0..queues).for_each(|jfc| reports.push(jfc));
        assert!(reports.list().len() <= queues as usize + REPORTS_LISTED, "{}", reports.list().len());
        let read = reports.take();
        assert!((0..queues).all(|jfc| read.contains(&jfc)));
        assert!(reports.list().is_empty());
        reports.reuse(read);
        // A queue that reports again after it was read is listed again.
        [5, 5, 6, 5].into_iter().for_each(|jfc| reports.push(jfc));
        assert_eq!(reports.take(), [5, 6, 5]);
    }
}
