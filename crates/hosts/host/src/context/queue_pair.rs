//! Queue pairs: capacities are granted, queues laid out in the arena, numbers allocated, and the slot is sent to its worker.

use super::queues::made;
use super::state::{Context, HostQp};
use crate::cm::{FinishedStep, UNKNOWN_PEER};
use crate::device::DeviceObject;
use crate::groups::group_of;
use crate::host::Host;
use crate::host::room::{no_memory, table_entries};
use crate::limits::LIMITS;
use crate::refusal::{no_room, refuse, unknown};
use crate::reply::ReplyParts;
use burst_base::Qpn;
use burst_base::verbs::{Mtu, QpAttr, QpCap, QpType, attr_mask};
use burst_control::{QPS_AT_ONCE, QpCookies, QpGrant, QpInitAttr, QueuePlace, Refusal, Response};
use burst_engine::flow::{entropy_of, flow_of};
use burst_engine::gsi::CmPhase;
use burst_engine::gsi::probes::CmProbe;
use burst_engine::objects::SrqShared;
use burst_engine::{QpChange, QpSlot, Worker};
use burst_ledger::{Charge, Resource};
use burst_peer::Capability;
use burst_shm::rq::{RqConsumer, RqSpec};
use burst_shm::sq::{SqConsumer, SqSpec};
use burst_shm::{ShmRef, rq_stride, sq_stride};
use burst_transport::{ModifyError, Qp, QpConfig, RecvQueue, TRAIL_BYTES};
use std::sync::Arc;

/// The bit of privileged ("controlled") Q_Keys (IBA 3.5.3): the management datagrams of QP1 have one.
const PRIVILEGED_QKEY: u32 = 1 << 31;

/// Minimum number of entries of a send queue that has any. Providers of adapters round up as well, and programs
/// that ask for one entry rely on it: `ib_send_lat -e` posts after the event of a receive, before it has polled the completion
/// of its last send.
const SEND_WR_MIN: u32 = 4;

/// The checked attributes that all queue pairs of one request share.
struct QpPlan {
    init: QpInitAttr,
    /// Number of the protection domain in the workers' tables; the same for the completion queues.
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<Arc<SrqShared>>,
    /// Capacities as granted.
    cap: QpCap,
    port_mtu: Mtu,
    sq: SqSpec,
    rq: Option<RqSpec>,
}

/// The place of a queue, for the program.
fn queue_place(place: ShmRef, entries: u32, stride: u32, max_sge: u32) -> QueuePlace {
    QueuePlace { place: place.into(), entries, stride, max_sge }
}

/// The capacities to grant: at least those that the program asked for.
fn grant(cap: &QpCap, has_srq: bool) -> Result<QpCap, Refusal> {
    let over = [
        ("max_send_wr", cap.max_send_wr, LIMITS.max_qp_wr),
        ("max_recv_wr", cap.max_recv_wr, LIMITS.max_qp_wr),
        ("max_send_sge", cap.max_send_sge, LIMITS.max_sge),
        ("max_recv_sge", cap.max_recv_sge, LIMITS.max_sge),
        ("max_inline_data", cap.max_inline_data, LIMITS.max_inline),
    ];
    if let Some((name, value, max)) = over.iter().find(|(_, value, max)| value > max) {
        return refuse(libc::EINVAL, format!("{name} of {value} is over the device's {max}"));
    }
    let (max_send_sge, stride) = (cap.max_send_sge.max(1), sq_stride(cap.max_send_sge.max(1), cap.max_inline_data));
    // The rings have a power of two of entries: grant all of them.
    let whole = |wr: u32| if wr == 0 { 0 } else { wr.next_power_of_two() };
    Ok(QpCap {
        max_send_wr: if cap.max_send_wr == 0 { 0 } else { whole(cap.max_send_wr.max(SEND_WR_MIN)) },
        max_recv_wr: if has_srq { 0 } else { whole(cap.max_recv_wr) },
        max_send_sge,
        max_recv_sge: if has_srq { 0 } else { cap.max_recv_sge.max(1) },
        // The entries have this much room in any case.
        max_inline_data: (stride - 64).min(LIMITS.max_inline),
    })
}

/// The numbers of a new queue pair.
struct QpNumbers {
    worker: usize,
    qpn: Qpn,
    doorbell: u32,
    charge: Charge,
}

impl Context {
    /// Creates one queue pair for each element of `names`: fewer when resources are exhausted, but at least one. The duration of
    /// each creation is recorded.
    pub(super) fn create_qps(
        &mut self,
        host: &mut Host,
        init: QpInitAttr,
        names: &[QpCookies],
    ) -> Result<ReplyParts, Refusal> {
        if names.is_empty() || names.len() > QPS_AT_ONCE {
            return refuse(libc::EINVAL, format!("{} queue pairs at once", names.len()));
        }
        let plan = self.plan(host, init)?;
        let mut fresh: Vec<Vec<Box<QpSlot>>> = Vec::new();
        fresh.resize_with(host.workers().len(), Vec::new);
        let mut grants = Vec::with_capacity(names.len());
        for name in names {
            let begun = host.now();
            match self.create_qp(host, &plan, *name) {
                Ok((mut slot, grant)) => {
                    let (phase, probe, peer) = (CmPhase::CreateQp, CmProbe::QpCreated, UNKNOWN_PEER);
                    slot.made_ns =
                        host.cm.record_step(FinishedStep { phase, probe, id: 0, qpn: grant.qpn, peer, begun });
                    fresh[grant.worker as usize].push(slot);
                    grants.push(grant);
                }
                Err(refusal) if grants.is_empty() => return Err(refusal),
                Err(_) => break,
            }
        }
        for (worker, slots) in fresh.into_iter().enumerate().filter(|(_, slots)| !slots.is_empty()) {
            // No need to wait: later requests on the queue pairs are behind this one in the worker's queue.
            host.post(worker, move |w, _| slots.into_iter().for_each(|slot| w.add_qp(slot)));
        }
        Ok(self.with_segments(Response::Qps(grants)))
    }

    /// Checks the attributes of a request and looks up the objects that it names.
    fn plan(&self, host: &Host, init: QpInitAttr) -> Result<QpPlan, Refusal> {
        if init.qp_type == QpType::XrcRecv {
            return refuse(libc::EINVAL, "an XRC target has no queues: create it in an XRC domain (CreateTarget)");
        }
        let cap = grant(&init.cap, init.srq.is_some() || init.qp_type == QpType::XrcSend)?;
        let cq_number =
            |c: u32| self.cqs.get(c).map_or_else(|| unknown("completion queue", c), |u| Ok(u.object.number));
        let srq = match init.srq {
            Some(s) => match self.srqs.get(s) {
                None => return unknown("shared receive queue", s),
                Some(used) => Some(used.object.shared.clone()),
            },
            None => None,
        };
        let rq = match srq {
            Some(_) => None,
            None if init.qp_type == QpType::XrcSend => None,
            None => Some(made(RqSpec::new(cap.max_recv_wr.max(1), cap.max_recv_sge))?),
        };
        Ok(QpPlan {
            pd: self.pd_number(init.pd)?,
            send_cq: cq_number(init.send_cq)?,
            recv_cq: cq_number(init.recv_cq)?,
            srq,
            cap,
            port_mtu: host.devices[self.device.index()].caps.active_mtu(),
            sq: made(SqSpec::new(cap.max_send_wr.max(1), cap.max_send_sge, cap.max_inline_data))?,
            rq,
            init,
        })
    }

    /// Creates a queue pair: the slot for its worker, and the grant for the program.
    fn create_qp(
        &mut self,
        host: &mut Host,
        plan: &QpPlan,
        name: QpCookies,
    ) -> Result<(Box<QpSlot>, QpGrant), Refusal> {
        // One allocation holds both queues.
        let sq_bytes = plan.sq.bytes().next_multiple_of(64);
        let bytes = sq_bytes + plan.rq.map_or(0, |spec| spec.bytes());
        // What waits for copies, if the program has a copier.
        let waiting = if self.copier.is_some() { TRAIL_BYTES } else { 0 };
        let ring = self.caller.charge(&[(Resource::QueueBytes, (bytes + waiting) as u64)])?;
        let sq_place = self.room(bytes)?;
        let rq_place = ShmRef { offset: sq_place.offset + sq_bytes as u32, ..sq_place };
        let QpNumbers { worker, qpn, doorbell, charge } = match self.take_numbers(host, plan.init.recv_cq) {
            Ok(numbers) => numbers,
            Err(refusal) => {
                self.free_room(sq_place);
                return Err(refusal);
            }
        };
        let sq = made(SqConsumer::new(made(self.arena.area(sq_place, plan.sq.bytes()))?, plan.sq))?;
        let rq = match (plan.rq, &plan.srq) {
            (Some(spec), _) => {
                RecvQueue::Own(made(RqConsumer::new(made(self.arena.area(rq_place, spec.bytes()))?, spec))?)
            }
            (None, Some(shared)) => RecvQueue::Shared(shared.consumer.clone()),
            (None, None) => RecvQueue::None,
        };
        let config = QpConfig {
            qpn,
            qp_type: plan.init.qp_type,
            pd: plan.pd,
            send_cq: plan.send_cq,
            recv_cq: plan.recv_cq,
            cookie: name.cookie,
            cap: plan.cap,
            port_mtu: plan.port_mtu,
            sq,
            rq,
        };
        let holder = self.qp_holder(name.event_cookie);
        let mut slot = Box::new(QpSlot::new(Qp::new(config), qpn, self.device, doorbell, holder));
        slot.srq = plan.srq.clone();
        let QpInitAttr { pd, send_cq, recv_cq, srq, .. } = plan.init;
        self.add_users(pd, [send_cq, recv_cq], srq, 1);
        let rq = plan.rq.map(|s| queue_place(rq_place, s.entries(), rq_stride(s.max_sge()), s.max_sge()));
        let stride = sq_stride(plan.sq.max_sge(), plan.sq.max_inline());
        let sq = queue_place(sq_place, plan.sq.entries(), stride, plan.sq.max_sge());
        let qp = HostQp {
            qpn,
            qp_type: plan.init.qp_type,
            worker,
            doorbell,
            place: Some(sq_place),
            pd,
            send_cq,
            recv_cq,
            srq,
            xrcd: None,
            hold: 0,
            groups: Vec::new(),
        };
        // One charge for the object and its queues: there are many queue pairs.
        let qp = self.qps.insert(qp, charge.and(ring));
        let grant = QpGrant { qp, qpn: qpn.get(), sq, rq, cap: plan.cap, doorbell, worker: worker as u32 };
        Ok((slot, grant))
    }

    /// Allocates a queue pair number and a doorbell at the worker of the receive completion queue: no two workers write to it.
    fn take_numbers(&mut self, host: &mut Host, recv_cq: u32) -> Result<QpNumbers, Refusal> {
        let of_device = host.workers_of(self.device);
        let worker = match self.cqs.get_mut(recv_cq) {
            Some(cq) => *cq.object.worker.get_or_insert_with(|| of_device.pick()),
            None => of_device.pick(),
        };
        self.make_room_for_doorbell(host, worker)?;
        let mut charge = host.count_object(&self.caller, self.device, DeviceObject::Qp)?;
        let refusal = match self.doorbells[worker].take() {
            Some(doorbell) => match host.take_qpn(&self.caller, worker, &mut charge) {
                Ok(qpn) => return Ok(QpNumbers { worker, qpn, doorbell, charge }),
                Err(refusal) => {
                    self.doorbells[worker].put(doorbell);
                    Err(refusal)
                }
            },
            None => no_room("queue pair"),
        };
        host.uncount_object(self.device, DeviceObject::Qp);
        refusal
    }

    /// Makes room for one more doorbell of this context at a worker.
    pub(super) fn make_room_for_doorbell(&mut self, host: &Host, worker: usize) -> Result<(), Refusal> {
        let (context, present) = (self.id, self.doorbells[worker].taken_end());
        if present < self.doorbell_room[worker] {
            return Ok(());
        }
        let entries = table_entries(present + 1);
        host.on_worker(worker, move |w, _| w.reserve_doorbells(context, entries))
            .map_err(|_| no_memory("queue pair", entries))?;
        self.doorbell_room[worker] = entries;
        Ok(())
    }

    /// Adds `by` to the counts of objects that refer to a queue pair's protection domain and queues.
    fn add_users(&mut self, pd: u32, cqs: [u32; 2], srq: Option<u32>, by: i32) {
        let add = |users: &mut u32| *users = users.checked_add_signed(by).expect("an object without users");
        if let Some(p) = self.pds.get_mut(pd) {
            add(&mut p.users);
        }
        for cq in cqs {
            if let Some(c) = self.cqs.get_mut(cq) {
                add(&mut c.users);
            }
        }
        if let Some(s) = srq.and_then(|s| self.srqs.get_mut(s)) {
            add(&mut s.users);
        }
    }

    /// Changes attributes of a queue pair and waits for the result.
    pub(super) fn modify_qp(
        &mut self,
        host: &mut Host,
        qp: u32,
        attr: QpAttr,
        mask: u32,
    ) -> Result<ReplyParts, Refusal> {
        let Some(object) = self.qps.get(qp) else { return unknown("queue pair", qp) };
        self.check_qkey(host, &attr, mask)?;
        let flow = if mask & attr_mask::AV != 0 {
            let caps = &host.devices[self.device.index()].caps;
            let entropy = entropy_of(object.qpn, attr.dest_qpn);
            Some(flow_of(caps, &attr.ah, entropy).map_err(|e| Refusal { errno: libc::EINVAL, sentence: e.0 })?)
        } else {
            None
        };
        let qpn = object.qpn;
        let done =
            host.on_worker(object.worker, move |w, now| w.modify_qp(now, qpn, QpChange { attr: &attr, mask, flow }));
        match done {
            Ok(attr) => Ok(Response::QpAttr(attr).into()),
            Err(e @ ModifyError::NoMemory) => refuse(libc::ENOMEM, e.to_string()),
            Err(e) => refuse(libc::EINVAL, e.to_string()),
        }
    }

    /// Checks that the program may set a privileged Q_Key (IBA 10.2.5), if `mask` sets one.
    fn check_qkey(&self, host: &Host, attr: &QpAttr, mask: u32) -> Result<(), Refusal> {
        if mask & attr_mask::QKEY == 0 || attr.qkey.0 & PRIVILEGED_QKEY == 0 {
            return Ok(());
        }
        host.authority.check(&self.caller, Capability::NetRaw, libc::EPERM, "a Q_Key with the highest bit set")
    }

    /// Changes attributes of a queue pair without waiting. A refusal is only logged.
    pub fn modify_qp_without_reply(&self, host: &Host, qp: u32, attr: QpAttr, mask: u32) {
        let Some(object) = self.qps.get(qp) else { return };
        let qpn = object.qpn;
        if let Err(refusal) = self.check_qkey(host, &attr, mask) {
            return tracing::debug!(qpn = qpn.get(), "change without a reply refused: {}", refusal.sentence);
        }
        host.post(object.worker, move |w, now| {
            if let Err(e) = w.modify_qp(now, qpn, QpChange { attr: &attr, mask: mask & !attr_mask::AV, flow: None }) {
                tracing::debug!(qpn = qpn.get(), "change without a reply refused: {e}");
            }
        });
    }

    /// The attributes of a queue pair.
    pub(super) fn query_qp(&mut self, host: &mut Host, qp: u32) -> Result<ReplyParts, Refusal> {
        let Some(object) = self.qps.get(qp) else { return unknown("queue pair", qp) };
        let qpn = object.qpn;
        match host.on_worker(object.worker, move |w, _| w.query_qp(qpn)) {
            Some(attr) => Ok(Response::QpAttr(attr).into()),
            None => unknown("queue pair", qp),
        }
    }

    /// Destroys a queue pair.
    pub(super) fn destroy_qp(&mut self, host: &mut Host, qp: u32) -> Result<ReplyParts, Refusal> {
        if let Some(n) = self.qps.get(qp).map(|q| q.groups.len()).filter(|n| *n > 0) {
            return refuse(libc::EBUSY, format!("the queue pair is attached to {n} multicast group(s)"));
        }
        if self.end_qps(host, &[qp], false) == 1 { Ok(Response::Done.into()) } else { unknown("queue pair", qp) }
    }

    /// Attaches a queue pair to a multicast group.
    pub(super) fn attach_mcast(&mut self, host: &mut Host, qp: u32, gid: [u8; 16]) -> Result<ReplyParts, Refusal> {
        let device = self.device;
        let Some(object) = self.qps.get_mut(qp) else { return unknown("queue pair", qp) };
        let ip = group_of(gid)?;
        if object.qp_type != QpType::Ud {
            return refuse(libc::EINVAL, "only datagram queue pairs can be attached to multicast groups");
        }
        host.attach(&self.caller, device, ip, object.qpn)?;
        if !object.groups.contains(&ip) {
            object.groups.push(ip);
        }
        Ok(Response::Done.into())
    }

    /// Detaches a queue pair from a multicast group.
    pub(super) fn detach_mcast(&mut self, host: &mut Host, qp: u32, gid: [u8; 16]) -> Result<ReplyParts, Refusal> {
        let Some(object) = self.qps.get_mut(qp) else { return unknown("queue pair", qp) };
        let ip = group_of(gid)?;
        let Some(at) = object.groups.iter().position(|g| *g == ip) else {
            return refuse(libc::EINVAL, format!("the queue pair is not attached to {ip}"));
        };
        object.groups.swap_remove(at);
        host.detach(self.device, ip, object.qpn);
        Ok(Response::Done.into())
    }

    /// Destroys queue pairs that can reach no memory any more, without waiting. Unknown handles are ignored. A later user of
    /// their numbers or their room in the arena reaches the worker after this.
    pub fn drop_qps(&mut self, host: &mut Host, qps: &[u32]) {
        let attached = |context: &Context, qp: u32| context.qps.get(qp).is_some_and(|q| !q.groups.is_empty());
        let qps: Vec<u32> = qps.iter().copied().take(QPS_AT_ONCE).filter(|qp| !attached(self, *qp)).collect();
        self.end_with(host, &qps, |host, worker, qpns| {
            host.post(worker, move |w, now| qpns.into_iter().for_each(|qpn| drop(w.destroy_qp(now, qpn, false))));
        });
    }

    /// Removes queue pairs from their workers and releases their numbers and queues. Returns how many there were.
    pub(super) fn end_qps(&mut self, host: &mut Host, qps: &[u32], unclean: bool) -> usize {
        self.end_with(host, qps, |host, worker, qpns| {
            let end = move |w: &mut Worker, now| {
                qpns.into_iter().map(|qpn| w.destroy_qp(now, qpn, unclean)).collect::<Vec<_>>()
            };
            // The queue pairs themselves are dropped here, on the control thread, which allocated them.
            drop(host.on_worker(worker, end));
        })
    }

    /// As [`Context::end_qps`]; `end` removes queue pairs from a worker.
    fn end_with(&mut self, host: &mut Host, qps: &[u32], end: impl Fn(&Host, usize, Vec<Qpn>)) -> usize {
        let objects: Vec<HostQp> = qps.iter().filter_map(|qp| self.qps.remove(*qp)).collect();
        let (targets, objects): (Vec<_>, Vec<_>) = objects.into_iter().partition(|o| o.qp_type == QpType::XrcRecv);
        targets.iter().for_each(|target| self.end_target(host, target));
        for object in &objects {
            object.groups.iter().for_each(|group| host.detach(self.device, *group, object.qpn));
        }
        for worker in 0..host.workers().len() {
            let qpns: Vec<Qpn> = objects.iter().filter(|o| o.worker == worker).map(|o| o.qpn).collect();
            if !qpns.is_empty() {
                end(host, worker, qpns);
            }
        }
        let ended = targets.len() + objects.len();
        for object in objects {
            host.put_qpn(object.worker, object.qpn);
            host.uncount_object(self.device, DeviceObject::Qp);
            self.doorbells[object.worker].put(object.doorbell);
            if let Some(place) = object.place {
                self.free_room(place);
            }
            self.add_users(object.pd, [object.send_cq, object.recv_cq], object.srq, -1);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_queue_has_four_entries_or_none() {
        let granted = |wr: u32| {
            let cap = QpCap { max_send_wr: wr, max_recv_wr: wr, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let cap = grant(&cap, false).expect("within the limits");
            let spec = SqSpec::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data).expect("within the limits");
            assert!(wr == 0 || spec.entries() == cap.max_send_wr, "the capacity told is the ring's");
            (cap.max_send_wr, cap.max_recv_wr)
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(granted), [(0, 0), (4, 1), (4, 2), (4, 4), (4, 4), (8, 8)]);
        assert_eq!(granted(LIMITS.max_qp_wr), (LIMITS.max_qp_wr, LIMITS.max_qp_wr));
    }
}
