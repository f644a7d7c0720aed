//! A program's use of URMA: the node of an address, and calls for its objects.
//!
//! The worker knows which objects are the program's ([`burst_engine::urma`]); here they are charged, and the handles of
//! completion queues and memory regions become what the worker's tables have.

use super::state::Context;
use crate::host::Host;
use crate::refusal::{no_room, refuse, system, unknown};
use crate::reply::ReplyParts;
use crate::urma_peers::PeerHold;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_control::{Refusal, Response};
use burst_engine::urma::address_of;
use burst_engine::urma::{TenantCall, UrmaTenant};
use burst_ledger::{Charge, Resource};
use burst_mem::Mapping;
use burst_shm::record_ring;
use burst_urma::SegmentConfig;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, IntoIter, IntoValues};
use std::net::IpAddr;

/// Bytes that a request costs a node while it is outstanding: its record.
const REQUEST_BYTES: u64 = 256;
/// What a ring of records costs the daemon: for posts of URMA, or for commands.
pub(crate) const RING_COST: [(Resource, u64); 3] =
    [(Resource::Descriptor, 1), (Resource::Mapping, 1), (Resource::AddressSpace, record_ring::BYTES as u64)];

/// Kinds of objects that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UrmaKind {
    Jfc,
    Jfr,
    Jetty,
    Group,
    Segment,
    RemoteSegment,
    Target,
}

/// What an object costs.
struct UrmaCost {
    charge: Charge,
    /// Its peer, if it is an import.
    _peer: Option<PeerHold>,
}

/// The end of a program's use of URMA, in parts.
struct UrmaEnding {
    costs: IntoIter<(UrmaKind, u32), UrmaCost>,
    cqs: IntoValues<u32, u32>,
    /// The costs so far of what the worker still has: of Jetties, and of queues and groups.
    sums: [Option<Charge>; 2],
}

impl UrmaEnding {
    fn add(&mut self, kind: UrmaKind, cost: UrmaCost) {
        let sum = match kind {
            UrmaKind::Jetty => &mut self.sums[0],
            UrmaKind::Jfc | UrmaKind::Jfr | UrmaKind::Group => &mut self.sums[1],
            // The worker has deleted them.
            UrmaKind::Segment | UrmaKind::RemoteSegment | UrmaKind::Target => return,
        };
        match sum {
            Some(sum) => sum.absorb(cost.charge),
            none => *none = Some(cost.charge),
        }
    }
}

/// What a context has of URMA.
pub(super) struct HostUrma {
    worker: usize,
    address: IpAddr,
    doorbell: u32,
    _ring: Charge,
    charges: HashMap<(UrmaKind, u32), UrmaCost>,
    /// The completion queues of JFCs.
    cqs: HashMap<u32, u32>,
    /// The memory regions of segments, and how many segments each region has.
    regions: HashMap<u32, u32>,
    region_users: HashMap<u32, u32>,
    /// The program has ended, and its objects end.
    ending: Option<UrmaEnding>,
}

impl HostUrma {
    /// The worker of the node.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// How many objects it has.
    pub fn objects(&self) -> usize {
        self.charges.len()
    }

    /// Whether its objects are being released.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// The completion queue of each JFC.
    pub fn cqs_in_use(&self) -> impl Iterator<Item = u32> {
        self.cqs.values().copied()
    }

    /// Checks that each region's count of segments is the number of segments that name it, and that each segment, and each JFC,
    /// is charged.
    pub fn check(&self) {
        for (region, users) in &self.region_users {
            assert_eq!(
                self.regions.values().filter(|of| *of == region).count(),
                *users as usize,
                "segments of {region}"
            );
        }
        assert_eq!(self.region_users.values().sum::<u32>() as usize, self.regions.len(), "segments that count nowhere");
        let is_charged = |kind, number: &u32| self.charges.contains_key(&(kind, *number));
        assert!(
            self.regions.keys().all(|token_id| is_charged(UrmaKind::Segment, token_id)),
            "a segment without a charge"
        );
        assert!(self.cqs.keys().all(|jfc| is_charged(UrmaKind::Jfc, jfc)), "a JFC without a charge");
    }
}

impl Context {
    /// Opens the node of an address for this program.
    pub(super) fn urma_open(&mut self, host: &mut Host, eid: [u8; 16]) -> Result<ReplyParts, Refusal> {
        if self.urma.is_some() {
            return refuse(libc::EEXIST, "this context has a node already");
        }
        let charge = self.caller.charge(&RING_COST)?;
        let (segment, ring) = record_ring::create()
            .map_err(|why| Refusal { errno: libc::ENOMEM, sentence: format!("cannot make a ring for posts: {why}") })?;
        let fd = match segment.fd() {
            Some(fd) => fd.try_clone_to_owned().map_err(system("share the ring for posts"))?,
            None => return refuse(libc::EIO, "the ring for posts has no descriptor"),
        };
        let place = host.open_urma(self.device, address_of(eid))?;
        let doorbell =
            self.make_room_for_doorbell(host, place.worker).ok().and_then(|()| self.doorbells[place.worker].take());
        let Some(doorbell) = doorbell else {
            // A node that was opened for this program alone has no other one.
            let is_unused = host.on_worker(place.worker, move |w, _| !w.has_urma_tenant(place.address));
            self.leave_urma(host, place.address, is_unused);
            return no_room("doorbell");
        };
        let tenant = UrmaTenant::new(self.id, place.address, ring, doorbell, self.async_events.clone());
        host.on_worker(place.worker, move |w, _| w.add_urma_tenant(tenant));
        self.urma = Some(HostUrma {
            worker: place.worker,
            address: place.address,
            doorbell,
            _ring: charge,
            charges: HashMap::new(),
            cqs: HashMap::new(),
            regions: HashMap::new(),
            region_users: HashMap::new(),
            ending: None,
        });
        let response = Response::UrmaOpened { cna: place.cna, mtu: place.mtu, worker: place.worker as u32, doorbell };
        Ok(ReplyParts::with_fds(response, vec![fd]))
    }

    /// Notes an object that a call has made, its charge, and the completion queue or region that it uses.
    fn note_made(&mut self, key: (UrmaKind, u32), charge: UrmaCost, (cq, region): (Option<u32>, Option<u32>)) {
        let Some(urma) = &mut self.urma else { return };
        urma.charges.insert(key, charge);
        if let Some(cq) = cq
            && let Some(used) = self.cqs.get_mut(cq)
        {
            used.add_user();
            urma.cqs.insert(key.1, cq);
        }
        if let Some(mr) = region {
            urma.regions.insert(key.1, mr);
            *urma.region_users.entry(mr).or_default() += 1;
        }
    }

    /// Carries out a call for an object.
    pub(super) fn urma_call(&mut self, host: &mut Host, call: UrmaCall) -> Result<ReplyParts, Refusal> {
        let Some((worker, own)) = self.urma.as_ref().map(|urma| (urma.worker, urma.address)) else {
            return refuse(libc::EPROTO, "open a node of URMA first");
        };
        let made = self.charge_call(host, own, &call)?;
        let ended = ended_by(&call);
        let (mut cq_of_jfc, mut region_of_segment) = (None, None);
        let call = match call {
            UrmaCall::CreateJfc { cq } => {
                let Some(used) = self.cqs.get_mut(cq) else { return unknown("completion queue", cq) };
                cq_of_jfc = Some(cq);
                TenantCall::CreateJfc(used.object.number, used.object.shared.clone())
            }
            UrmaCall::RegisterSegment { mr, addr, len, token, access } => {
                let Some(region) = self.mrs.get(mr) else { return unknown("memory region", mr) };
                if matches!(region.region.mapping, Mapping::Device { .. }) {
                    return refuse(libc::EOPNOTSUPP, "URMA does not reach the memory of a GPU");
                }
                region_of_segment = Some(mr);
                TenantCall::RegisterSegment(region.key, SegmentConfig { addr, len, token, access })
            }
            other => TenantCall::Plain(other),
        };
        let id = self.id;
        let Some(result) = host.on_worker(worker, move |w, now| w.urma_call(now, id, call)) else {
            return refuse(libc::EIO, "the node of the address has ended");
        };
        let answer = result.unwrap_or_else(|error| {
            let number = burst_urma::UrmaError::ALL.iter().position(|known| *known == error);
            UrmaAnswer::Refused(number.unwrap_or(0) as u8)
        });
        if let (UrmaAnswer::Number(number), Some((kind, charge))) = (&answer, made) {
            self.note_made((kind, *number), charge, (cq_of_jfc, region_of_segment));
        }
        if let Some(key) = ended.filter(|_| answer == UrmaAnswer::Done) {
            self.end_charge(key);
            host.note_ended(1);
        }
        Ok(Response::UrmaDone(answer).into())
    }

    /// Gives back what an object cost that has ended, and what it used.
    fn end_charge(&mut self, key: (UrmaKind, u32)) {
        let Some(urma) = &mut self.urma else { return };
        urma.charges.remove(&key);
        if key.0 == UrmaKind::Segment
            && let Some(mr) = urma.regions.remove(&key.1)
            && let Entry::Occupied(mut users) = urma.region_users.entry(mr)
        {
            *users.get_mut() -= 1;
            if *users.get() == 0 {
                users.remove();
            }
        }
        if key.0 == UrmaKind::Jfc
            && let Some(used) = urma.cqs.remove(&key.1).and_then(|cq| self.cqs.get_mut(cq))
        {
            used.remove_user();
        }
    }

    /// How many segments use a memory region. Its key must not be another region's meanwhile.
    pub(super) fn segments_of(&self, mr: u32) -> u32 {
        self.urma.as_ref().and_then(|urma| urma.region_users.get(&mr)).copied().unwrap_or(0)
    }

    /// What a new object costs.
    fn charge_call(
        &self,
        host: &mut Host,
        own: IpAddr,
        call: &UrmaCall,
    ) -> Result<Option<(UrmaKind, UrmaCost)>, Refusal> {
        let records = |depth: u16| (Resource::QueueBytes, u64::from(depth) * REQUEST_BYTES);
        let (kind, items) = match call {
            // Its completion queue is charged already, but may have many.
            UrmaCall::CreateJfc { .. } => (UrmaKind::Jfc, vec![(Resource::UrmaJfc, 1)]),
            UrmaCall::CreateJfr { depth, .. } => (UrmaKind::Jfr, vec![(Resource::Srq, 1), records(*depth)]),
            UrmaCall::CreateJetty(attr) => {
                let requests = (Resource::UrmaRequest, u64::from(attr.depth));
                (UrmaKind::Jetty, vec![(Resource::Qp, 1), requests, records(attr.depth)])
            }
            UrmaCall::CreateGroup { .. } => (UrmaKind::Group, vec![(Resource::Srq, 1)]),
            // Its memory region is charged already, but may have many.
            UrmaCall::RegisterSegment { .. } => (UrmaKind::Segment, vec![(Resource::Mw, 1)]),
            UrmaCall::ImportSegment { .. } => (UrmaKind::RemoteSegment, vec![(Resource::Ah, 1)]),
            UrmaCall::ImportJetty { .. } => (UrmaKind::Target, vec![(Resource::Ah, 1)]),
            _ => return Ok(None),
        };
        let mut charge = self.caller.charge(&items)?;
        host.charge_in_node(&self.caller, own, &mut charge)?;
        let peer = match call {
            UrmaCall::ImportSegment { eid, .. } | UrmaCall::ImportJetty { eid, .. } => {
                Some(host.hold_urma_peer(&self.caller, own, address_of(*eid))?)
            }
            _ => None,
        };
        Ok(Some((kind, UrmaCost { charge, _peer: peer })))
    }

    /// Ends a part of the program's use of URMA: `most` of its objects. Returns how many; 0: there is no use of it any more.
    pub(super) fn end_urma_some(&mut self, host: &mut Host, most: usize) -> usize {
        let Some(urma) = &mut self.urma else { return 0 };
        let (id, worker) = (self.id, urma.worker);
        let left = host.on_worker(worker, move |w, _| w.leave_urma(id, most));
        if left > 0 {
            return left;
        }
        let ending = urma.ending.get_or_insert_with(|| UrmaEnding {
            costs: std::mem::take(&mut urma.charges).into_iter(),
            cqs: std::mem::take(&mut urma.cqs).into_values(),
            sums: [None, None],
        });
        let mut ended = 0;
        while ended < most
            && let Some(((kind, _), cost)) = ending.costs.next()
        {
            ended += 1;
            ending.add(kind, cost);
        }
        for cq in ending.cqs.by_ref().take(most.saturating_sub(ended)) {
            ended += 1;
            if let Some(used) = self.cqs.get_mut(cq) {
                used.remove_user();
            }
        }
        if ended > 0 {
            host.note_ended(ended);
            return ended;
        }
        self.end_urma(host);
        1
    }

    /// Ends the program's use of URMA, after its objects. What the worker has not deleted yet is charged until it is.
    fn end_urma(&mut self, host: &mut Host) {
        let Some(urma) = self.urma.take() else { return };
        let (id, charges) = (self.id, urma.ending.map(|ending| ending.sums));
        let is_last = host.on_worker(urma.worker, move |w, now| {
            charges.into_iter().for_each(|charges| w.keep_urma_charges(id, charges));
            w.remove_urma_tenant(now, id)
        });
        self.doorbells[urma.worker].put(urma.doorbell);
        host.note_ended(1);
        self.leave_urma(host, urma.address, is_last);
    }

    fn leave_urma(&self, host: &mut Host, address: IpAddr, is_last: bool) {
        if is_last {
            host.close_urma(address);
        }
    }
}

/// The object that a call ends if it is done.
const fn ended_by(call: &UrmaCall) -> Option<(UrmaKind, u32)> {
    Some(match call {
        UrmaCall::DeleteJfc { jfc } => (UrmaKind::Jfc, *jfc),
        UrmaCall::DeleteJfr { jfr } => (UrmaKind::Jfr, *jfr),
        UrmaCall::DeleteJetty { jetty } => (UrmaKind::Jetty, *jetty),
        UrmaCall::DeleteGroup { group } => (UrmaKind::Group, *group),
        UrmaCall::UnregisterSegment { token_id } => (UrmaKind::Segment, *token_id),
        UrmaCall::UnimportSegment { segment } => (UrmaKind::RemoteSegment, *segment),
        UrmaCall::UnimportJetty { jetty } => (UrmaKind::Target, *jetty),
        _ => return None,
    })
}
