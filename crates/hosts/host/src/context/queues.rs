//! Completion queues and shared receive queues.

use super::state::{Context, HostCq, HostSrq, InUse};
use crate::device::DeviceObject;
use crate::host::Host;
use crate::limits::LIMITS;
use crate::refusal::{busy, no_room, refuse, unknown};
use crate::reply::ReplyParts;
use burst_control::{CqInitAttr, CqPlace, QueuePlace, Refusal, Response, SrqInitAttr};
use burst_engine::EngineCq;
use burst_engine::objects::SrqShared;
use burst_ledger::{Charge, Resource};
use burst_shm::cq::{CqProducer, CqSpec};
use burst_shm::rq::{RqSpec, SrqConsumer};
use burst_shm::{Area, ShmRef, rq_stride};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Minimum number of entries of a completion queue, however few the program asks for: rdma-core's test suite makes a queue
/// smaller than the number of its requests in flight, which must not overrun the queue.
const CQE_MIN: u32 = 16;

/// Checks the dimensions of a completion queue.
fn cq_spec(entries: u32) -> Result<CqSpec, Refusal> {
    let fits = (1..=LIMITS.max_cqe).contains(&entries);
    let spec = CqSpec::new(entries.max(CQE_MIN)).filter(|_| fits);
    spec.map_or_else(
        || refuse(libc::EINVAL, format!("a completion queue has 1 to {} entries, not {entries}", LIMITS.max_cqe)),
        Ok,
    )
}

/// Unwraps a queue end. It is `None` only if the queue does not fit its area; both come from the same dimensions.
pub(super) fn made<T>(end: Option<T>) -> Result<T, Refusal> {
    end.map_or_else(|| refuse(libc::EINVAL, "queue dimensions out of range"), Ok)
}

impl Context {
    /// Charges the bytes of a ring.
    fn charge_ring(&self, bytes: usize) -> Result<Charge, Refusal> {
        self.caller.charge(&[(Resource::QueueBytes, bytes as u64)])
    }

    /// Allocates a ring for completions.
    fn new_ring(&mut self, spec: CqSpec) -> Result<(ShmRef, Area), Refusal> {
        let place = self.room(spec.bytes())?;
        Ok((place, made(self.arena.area(place, spec.bytes()))?))
    }

    /// Creates a completion queue.
    pub(super) fn create_cq(&mut self, host: &mut Host, init: &CqInitAttr) -> Result<ReplyParts, Refusal> {
        let CqInitAttr { entries, channel, cookie, vector } = *init;
        let spec = cq_spec(entries)?;
        let pipe = match channel {
            None => None,
            Some(c) => match self.channels.get(c) {
                None => return unknown("completion channel", c),
                Some(used) => Some(used.object.clone()),
            },
        };
        let ring = self.charge_ring(spec.bytes())?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Cq)?;
        let Some(number) = host.cqs.take(&charge) else {
            host.uncount_object(self.device, DeviceObject::Cq);
            return no_room("completion queue");
        };
        let (place, producer) =
            match self.new_ring(spec).and_then(|(place, area)| Ok((place, made(CqProducer::new(area, spec))?))) {
                Ok(made) => made,
                Err(refusal) => {
                    host.cqs.put(number);
                    host.uncount_object(self.device, DeviceObject::Cq);
                    return Err(refusal);
                }
            };
        let shared = Arc::new(EngineCq {
            producer,
            channel: pipe,
            cookie,
            async_events: self.async_events.clone(),
            overrun_reported: AtomicBool::new(false),
        });
        let for_workers = shared.clone();
        host.on_all(move |w| w.add_cq(number, for_workers.clone()));
        let worker = host.workers_of(self.device).of_vector(vector);
        if let Some(c) = channel.and_then(|c| self.channels.get_mut(c)) {
            c.add_user();
        }
        let cq = self.cqs.insert(
            InUse::new(HostCq { number, worker, shared, place, old: Vec::new(), rings: vec![ring], channel }),
            charge,
        );
        Ok(self.with_segments(Response::Cq { cq, ring: CqPlace { place: place.into(), entries: spec.entries() } }))
    }

    /// Moves a completion queue to another ring.
    pub(super) fn resize_cq(&mut self, cq: u32, entries: u32) -> Result<ReplyParts, Refusal> {
        let spec = cq_spec(entries)?;
        let Some(shared) = self.cqs.get(cq).map(|c| c.object.shared.clone()) else {
            return unknown("completion queue", cq);
        };
        let ring = self.charge_ring(spec.bytes())?;
        let (place, area) = self.new_ring(spec)?;
        // Workers go on publishing.
        let Ok(old_end) = shared.producer.switch_to(area, spec) else {
            self.free_room(place);
            return refuse(
                libc::EBUSY,
                "the completion queue is being resized already (poll it first), or was resized too often",
            );
        };
        // The old ring stays until the program has read it to its end and sends RetireCq.
        if let Some(c) = self.cqs.get_mut(cq) {
            c.object.old.push(std::mem::replace(&mut c.object.place, place));
            c.object.rings.push(ring);
        }
        Ok(self.with_segments(Response::CqResized {
            ring: CqPlace { place: place.into(), entries: spec.entries() },
            old_end,
        }))
    }

    /// Frees the rings from before the last resizes: the program has read them.
    pub(super) fn retire_cq(&mut self, host: &mut Host, cq: u32) -> Result<ReplyParts, Refusal> {
        let Some(c) = self.cqs.get_mut(cq) else { return unknown("completion queue", cq) };
        let old = std::mem::take(&mut c.object.old);
        c.object.shared.producer.retire_old();
        // A worker that has carried out a command has ended its pass: no worker writes to the old ring any more.
        host.on_all(|_| ());
        for place in old {
            self.free_room(place);
        }
        if let Some(c) = self.cqs.get_mut(cq) {
            let present = c.object.rings.pop();
            c.object.rings.clear();
            c.object.rings.extend(present);
        }
        Ok(Response::Done.into())
    }

    /// Destroys a completion queue.
    pub(super) fn destroy_cq(&mut self, host: &mut Host, cq: u32) -> Result<ReplyParts, Refusal> {
        match self.cqs.get(cq) {
            None => return unknown("completion queue", cq),
            Some(c) if c.users > 0 => return busy("completion queue", c.users),
            Some(_) => {}
        }
        if let Some(InUse { object, .. }) = self.cqs.remove(cq) {
            let number = object.number;
            host.on_all(move |w| w.remove_cq(number));
            host.cqs.put(number);
            host.uncount_object(self.device, DeviceObject::Cq);
            if let Some(c) = object.channel.and_then(|c| self.channels.get_mut(c)) {
                c.remove_user();
            }
            drop(object.shared);
            for place in object.old.into_iter().chain([object.place]) {
                self.free_room(place);
            }
        }
        Ok(Response::Done.into())
    }

    /// Creates a shared receive queue.
    pub(super) fn create_srq(&mut self, host: &mut Host, init: SrqInitAttr) -> Result<ReplyParts, Refusal> {
        let SrqInitAttr { pd, max_wr, max_sge, limit, cookie, xrc } = init;
        self.pd_number(pd)?;
        if max_wr == 0 || max_wr > LIMITS.max_srq_wr || max_sge > LIMITS.max_sge {
            return refuse(
                libc::EINVAL,
                format!(
                    "a shared receive queue has 1 to {} requests of up to {} SGEs",
                    LIMITS.max_srq_wr, LIMITS.max_sge
                ),
            );
        }
        let spec = made(RqSpec::new(max_wr, max_sge.max(1)))?;
        let ring = self.charge_ring(spec.bytes())?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Srq)?;
        let made_place = self.room(spec.bytes());
        let place = made_place.inspect_err(|_| host.uncount_object(self.device, DeviceObject::Srq))?;
        let domain = match xrc.map(|x| self.enter_domain(host, x.xrcd, x.cq)).transpose() {
            Ok(domain) => domain,
            Err(refusal) => {
                self.free_room(place);
                host.uncount_object(self.device, DeviceObject::Srq);
                return Err(refusal);
            }
        };
        let area = made(self.arena.area(place, spec.bytes()))?;
        let consumer = Arc::new(made(SrqConsumer::new(area, spec))?);
        let shared = Arc::new(SrqShared { consumer, limit: AtomicU32::new(limit), cookie });
        self.use_pd(pd);
        if let Some(domain) = &domain {
            self.announce_srq(host, domain, pd, &shared);
        }
        let srqn = domain.as_ref().map_or(0, |domain| domain.srqn);
        let srq = self.srqs.insert(InUse::new(HostSrq { shared, place, ring, pd, domain }), charge);
        let (entries, max_sge) = (spec.entries(), spec.max_sge());
        let queue = QueuePlace { place: place.into(), entries, stride: rq_stride(max_sge), max_sge };
        Ok(self.with_segments(Response::Srq { srq, queue, max_wr: entries, srqn }))
    }

    /// Sets the limit of a shared receive queue.
    pub(super) fn modify_srq(&mut self, srq: u32, limit: Option<u32>) -> Result<ReplyParts, Refusal> {
        let Some(s) = self.srqs.get_mut(srq) else { return unknown("shared receive queue", srq) };
        if let Some(limit) = limit {
            s.object.shared.limit.store(limit, Ordering::Relaxed);
        }
        Ok(Response::Done.into())
    }

    /// Moves a shared receive queue to another ring. The workers change over one after the other, each between two passes.
    pub(super) fn resize_srq(&mut self, host: &mut Host, srq: u32, max_wr: u32) -> Result<ReplyParts, Refusal> {
        let Some(s) = self.srqs.get(srq) else { return unknown("shared receive queue", srq) };
        let (old, max_sge) = (s.object.shared.clone(), s.object.shared.consumer.spec().max_sge());
        if max_wr == 0 || max_wr > LIMITS.max_srq_wr {
            let max = LIMITS.max_srq_wr;
            return refuse(libc::EINVAL, format!("a shared receive queue has 1 to {max} requests, not {max_wr}"));
        }
        let spec = made(RqSpec::new(max_wr, max_sge))?;
        let ring = self.charge_ring(spec.bytes())?;
        let place = self.room(spec.bytes())?;
        let Some(consumer) = old.consumer.move_to(made(self.arena.area(place, spec.bytes()))?, spec) else {
            self.free_room(place);
            return refuse(libc::EINVAL, "more receives are posted than the new size holds");
        };
        // The limit moves to the new object; the old one cannot report it any more.
        let limit = AtomicU32::new(old.limit.swap(0, Ordering::Relaxed));
        let new = Arc::new(SrqShared { consumer: Arc::new(consumer), limit, cookie: old.cookie });
        let (from, to) = (old, new.clone());
        host.on_all(move |w| w.replace_srq(&from, &to));
        new.consumer.publish_taken();
        if let Some(s) = self.srqs.get_mut(srq) {
            s.object.shared = new;
            s.object.ring = ring;
            self.arena.free(std::mem::replace(&mut s.object.place, place));
        }
        let queue = QueuePlace { place: place.into(), entries: spec.entries(), stride: rq_stride(max_sge), max_sge };
        Ok(self.with_segments(Response::Srq { srq, queue, max_wr: spec.entries(), srqn: 0 }))
    }

    /// The limit of a shared receive queue.
    pub(super) fn query_srq(&self, srq: u32) -> Result<ReplyParts, Refusal> {
        let Some(s) = self.srqs.get(srq) else { return unknown("shared receive queue", srq) };
        Ok(Response::SrqLimit(s.object.shared.limit.load(Ordering::Relaxed)).into())
    }

    /// Destroys a shared receive queue.
    pub(super) fn destroy_srq(&mut self, host: &mut Host, srq: u32) -> Result<ReplyParts, Refusal> {
        match self.srqs.get(srq) {
            None => return unknown("shared receive queue", srq),
            Some(s) if s.users > 0 => return busy("shared receive queue", s.users),
            Some(_) => {}
        }
        if let Some(InUse { object, .. }) = self.srqs.remove(srq) {
            if let Some(domain) = &object.domain {
                self.leave_domain(host, domain);
            }
            host.uncount_object(self.device, DeviceObject::Srq);
            self.release_pd(object.pd);
            self.free_room(object.place);
        }
        Ok(Response::Done.into())
    }
}
