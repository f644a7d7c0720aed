//! A program's use of URMA: the node of an address, and calls for its objects.
//!
//! The worker knows which objects are the program's ([`burst_engine::urma`]); here they are charged, and the handles of
//! completion queues and memory regions become what the worker's tables have.

use super::state::Context;
use crate::host::Host;
use crate::refusal::{no_room, refuse, system, unknown};
use crate::reply::ReplyParts;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_control::{Refusal, Response};
use burst_engine::urma::address_of;
use burst_engine::urma::{TenantCall, UrmaTenant};
use burst_ledger::{Charge, Resource};
use burst_shm::record_ring;
use burst_urma::SegmentConfig;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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

/// What a context has of URMA.
pub(super) struct HostUrma {
    worker: usize,
    address: IpAddr,
    doorbell: u32,
    _ring: Charge,
    charges: HashMap<(UrmaKind, u32), Charge>,
    /// The completion queues of JFCs.
    cqs: HashMap<u32, u32>,
    /// The memory regions of segments, and how many segments each region has.
    regions: HashMap<u32, u32>,
    region_users: HashMap<u32, u32>,
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
        });
        let response = Response::UrmaOpened { cna: place.cna, mtu: place.mtu, worker: place.worker as u32, doorbell };
        Ok(ReplyParts::with_fds(response, vec![fd]))
    }

    /// Carries out a call for an object.
    pub(super) fn urma_call(&mut self, host: &mut Host, call: UrmaCall) -> Result<ReplyParts, Refusal> {
        let Some(worker) = self.urma.as_ref().map(|urma| urma.worker) else {
            return refuse(libc::EPROTO, "open a node of URMA first");
        };
        let made = self.charge_call(&call)?;
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
        if let Some(urma) = &mut self.urma {
            if let (UrmaAnswer::Number(number), Some((kind, charge))) = (&answer, made) {
                urma.charges.insert((kind, *number), charge);
                if let Some(cq) = cq_of_jfc
                    && let Some(used) = self.cqs.get_mut(cq)
                {
                    used.add_user();
                    urma.cqs.insert(*number, cq);
                }
                if let Some(mr) = region_of_segment {
                    urma.regions.insert(*number, mr);
                    *urma.region_users.entry(mr).or_default() += 1;
                }
            }
            if let (UrmaAnswer::Done, Some(key)) = (&answer, ended) {
                urma.charges.remove(&key);
                host.note_ended(1);
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
        }
        Ok(Response::UrmaDone(answer).into())
    }

    /// How many segments use a memory region. Its key must not be another region's meanwhile.
    pub(super) fn segments_of(&self, mr: u32) -> u32 {
        self.urma.as_ref().and_then(|urma| urma.region_users.get(&mr)).copied().unwrap_or(0)
    }

    /// What a new object costs.
    fn charge_call(&self, call: &UrmaCall) -> Result<Option<(UrmaKind, Charge)>, Refusal> {
        let records = |depth: u16| (Resource::QueueBytes, u64::from(depth) * REQUEST_BYTES);
        let (kind, items) = match call {
            // Its completion queue is charged already.
            UrmaCall::CreateJfc { .. } => (UrmaKind::Jfc, Vec::new()),
            UrmaCall::CreateJfr { depth, .. } => (UrmaKind::Jfr, vec![(Resource::Srq, 1), records(*depth)]),
            UrmaCall::CreateJetty(attr) => (UrmaKind::Jetty, vec![(Resource::Qp, 1), records(attr.depth)]),
            UrmaCall::CreateGroup { .. } => (UrmaKind::Group, vec![(Resource::Srq, 1)]),
            // Its memory region is charged already, but may have many.
            UrmaCall::RegisterSegment { .. } => (UrmaKind::Segment, vec![(Resource::Mw, 1)]),
            UrmaCall::ImportSegment { .. } => (UrmaKind::RemoteSegment, vec![(Resource::Ah, 1)]),
            UrmaCall::ImportJetty { .. } => (UrmaKind::Target, vec![(Resource::Ah, 1)]),
            _ => return Ok(None),
        };
        Ok(Some((kind, self.caller.charge(&items)?)))
    }

    /// Ends the program's use of URMA, with all its objects.
    pub(super) fn end_urma(&mut self, host: &mut Host) -> bool {
        let Some(urma) = self.urma.take() else { return false };
        let id = self.id;
        let is_last = host.on_worker(urma.worker, move |w, now| w.remove_urma_tenant(now, id));
        self.doorbells[urma.worker].put(urma.doorbell);
        for cq in urma.cqs.values() {
            if let Some(used) = self.cqs.get_mut(*cq) {
                used.remove_user();
            }
        }
        host.note_ended(urma.charges.len() + 1);
        self.leave_urma(host, urma.address, is_last);
        true
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
