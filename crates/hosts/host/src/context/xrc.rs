//! XRC objects of a context (IBA annex A14): domains, shared receive queues in them, and target queue pairs, created or opened.

use super::state::{Context, HostQp, InUse, SrqInDomain};
use crate::device::DeviceObject;
use crate::foreign::ForeignFds;
use crate::host::Host;
use crate::refusal::{busy, no_room, refuse, unknown};
use crate::reply::ReplyParts;
use crate::xrc::XrcTarget;
use burst_base::Qpn;
use burst_base::verbs::{QpCap, QpType};
use burst_control::{Refusal, Response};
use burst_engine::objects::{NO_DOORBELL, SrqShared, XrcEntry};
use burst_engine::{QpHolder, QpSlot};
use burst_ledger::{Charge, Resource};
use burst_shm::sq::SqConsumer;
use burst_transport::{Qp, QpConfig, RecvQueue, XrcSrq};
use std::sync::Arc;

/// The handle or number of an object that a target queue pair does not have.
const NONE: u32 = u32::MAX;
/// Target queue pairs of others that a context may have open, counted once for each `ibv_open_qp`.
const TARGETS_OPEN_MAX: u32 = 4096;

impl Context {
    /// Opens an XRC domain. `flags` are open(2)'s.
    pub(super) fn open_xrcd(
        &mut self,
        host: &mut Host,
        with_file: bool,
        flags: i32,
        mut fds: ForeignFds,
    ) -> Result<ReplyParts, Refusal> {
        self.check_descriptor_share(host)?;
        let charge = self.caller.charge(&[(Resource::Xrcd, 1), (Resource::Descriptor, 1)])?;
        let file = if with_file { fds.take_file() } else { None };
        if with_file && file.is_none() {
            return refuse(libc::EINVAL, "the descriptor of the XRC domain's file was not sent");
        }
        let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        let number = host.xrc.open(self.device, file, (create, exclusive), &charge)?;
        Ok(Response::Handle(self.xrcds.insert(InUse::new(number), charge)).into())
    }

    /// Closes an XRC domain.
    pub(super) fn close_xrcd(&mut self, host: &mut Host, xrcd: u32) -> Result<ReplyParts, Refusal> {
        match self.xrcds.get(xrcd) {
            None => unknown("XRC domain", xrcd),
            Some(x) if x.users > 0 => busy("XRC domain", x.users),
            Some(x) => {
                host.xrc.close(x.object);
                self.xrcds.remove(xrcd);
                host.note_ended(1);
                Ok(Response::Done.into())
            }
        }
    }

    /// The number of an XRC domain.
    fn domain(&self, xrcd: u32) -> Result<u32, Refusal> {
        self.xrcds.get(xrcd).map_or_else(|| unknown("XRC domain", xrcd), |x| Ok(x.object))
    }

    /// Adds `by` to the count of objects that refer to a domain.
    fn use_xrcd(&mut self, xrcd: u32, by: i32) {
        if let Some(x) = self.xrcds.get_mut(xrcd) {
            let users = x.users.checked_add_signed(by);
            x.users = users.expect("an XRC domain without users");
        }
    }

    /// Checks the objects that an XRC shared receive queue names, and allocates its number.
    pub(super) fn enter_domain(&mut self, host: &mut Host, xrcd: u32, cq: u32) -> Result<SrqInDomain, Refusal> {
        self.domain(xrcd)?;
        if self.cqs.get(cq).is_none() {
            return unknown("completion queue", cq);
        }
        let charge = self.caller.charge(&[(Resource::XrcSrq, 1)])?;
        let Some(srqn) = host.xrc.take_srqn(&charge) else {
            return no_room("shared receive queue in an XRC domain");
        };
        Ok(SrqInDomain { srqn, xrcd, cq, _charge: charge })
    }

    /// Adds a shared receive queue in an XRC domain to all workers.
    pub(super) fn announce_srq(&mut self, host: &Host, of: &SrqInDomain, pd: u32, shared: &Arc<SrqShared>) {
        let (Some(domain), Some(cq), Some(pd)) =
            (self.xrcds.get(of.xrcd).map(|x| x.object), self.cqs.get(of.cq).map(|c| c.object.number), self.pds.get(pd))
        else {
            return;
        };
        let srq = XrcSrq { domain, pd: pd.object, cq, queue: shared.consumer.clone() };
        let entry = XrcEntry { srq, shared: shared.clone(), async_events: self.async_events.clone() };
        let srqn = of.srqn;
        host.on_all(move |w| w.add_xrc_srq(srqn, entry.clone()));
        self.use_xrcd(of.xrcd, 1);
        if let Some(c) = self.cqs.get_mut(of.cq) {
            c.add_user();
        }
    }

    /// Removes a shared receive queue from its XRC domain and from all workers.
    pub(super) fn leave_domain(&mut self, host: &mut Host, of: &SrqInDomain) {
        let srqn = of.srqn;
        host.on_all(move |w| w.remove_xrc_srq(srqn));
        host.xrc.put_srqn(srqn);
        self.use_xrcd(of.xrcd, -1);
        if let Some(c) = self.cqs.get_mut(of.cq) {
            c.remove_user();
        }
    }

    /// Creates a target queue pair: it has no queues, and receives into the shared receive queues of its domain.
    pub(super) fn create_target(&mut self, host: &mut Host, xrcd: u32, cookie: u64) -> Result<ReplyParts, Refusal> {
        let domain = self.domain(xrcd)?;
        let Some(sq) = SqConsumer::detached() else { return no_room("queue pair") };
        let mut charge = host.count_object(&self.caller, self.device, DeviceObject::Qp)?;
        let worker = host.workers_of(self.device).pick();
        let qpn = host.take_qpn(&self.caller, worker, &mut charge);
        let qpn = qpn.inspect_err(|_| host.uncount_object(self.device, DeviceObject::Qp))?;
        let config = QpConfig {
            qpn,
            qp_type: QpType::XrcRecv,
            pd: NONE,
            send_cq: NONE,
            recv_cq: NONE,
            // Completions of a target carry the cookie of the shared receive queue.
            cookie: 0,
            cap: QpCap::default(),
            port_mtu: host.devices[self.device.index()].caps.active_mtu(),
            sq,
            rq: RecvQueue::Xrc { domain },
        };
        let slot = QpSlot::new(Qp::new(config), qpn, self.device, NO_DOORBELL, self.qp_holder(cookie));
        host.post(worker, move |w, _| w.add_qp(Box::new(slot)));
        host.xrc.targets.insert(qpn, XrcTarget::new(domain, worker));
        Ok(self.hold_target(qpn, worker, xrcd, 0, charge))
    }

    /// Opens a target queue pair that another context may have created.
    pub(super) fn open_qp(&mut self, host: &mut Host, xrcd: u32, qpn: u32, cookie: u64) -> Result<ReplyParts, Refusal> {
        let domain = self.domain(xrcd)?;
        let qpn = Qpn::new(qpn);
        let charge = host.charge_object(&self.caller, self.device, DeviceObject::Qp)?;
        let policy = host.ledger.policy();
        let Some(target) = host.xrc.targets.get_mut(&qpn).filter(|t| t.domain == domain) else {
            return refuse(libc::EINVAL, format!("queue pair {} is no target of this XRC domain", qpn.get()));
        };
        if self.targets_open == TARGETS_OPEN_MAX {
            return refuse(libc::ENOMEM, format!("a context may have {TARGETS_OPEN_MAX} XRC targets open"));
        }
        let charge = charge.with_place(self.caller.place(target.places(policy))?);
        let hold = target.add_hold()?;
        let worker = target.worker;
        let holder = QpHolder { hold, ..self.qp_holder(cookie) };
        self.targets_open += 1;
        host.post(worker, move |w, _| w.hold_qp(qpn, holder));
        Ok(self.hold_target(qpn, worker, xrcd, hold, charge))
    }

    /// Adds a target queue pair to this context.
    fn hold_target(&mut self, qpn: Qpn, worker: usize, xrcd: u32, hold: u64, charge: Charge) -> ReplyParts {
        self.use_xrcd(xrcd, 1);
        let qp = HostQp {
            qpn,
            qp_type: QpType::XrcRecv,
            worker,
            doorbell: NO_DOORBELL,
            place: None,
            pd: NONE,
            send_cq: NONE,
            recv_cq: NONE,
            srq: None,
            xrcd: Some(xrcd),
            hold,
            groups: Vec::new(),
        };
        let qp = self.qps.insert(qp, charge);
        Response::Target { qp, qpn: qpn.get() }.into()
    }

    /// Releases this context's hold on a target queue pair; the last release destroys the target.
    pub(super) fn end_target(&mut self, host: &mut Host, object: &HostQp) {
        let (qpn, hold) = (object.qpn, object.hold);
        self.targets_open -= u32::from(hold != 0);
        if let Some(xrcd) = object.xrcd {
            self.use_xrcd(xrcd, -1);
        }
        if host.xrc.targets.get_mut(&qpn).is_some_and(XrcTarget::end_hold) {
            // Not waited for: a program may end thousands of holds at once. Its context leaves the worker after them.
            host.post(object.worker, move |w, _| w.release_qp(qpn, hold));
            host.note_ended(1);
            return;
        }
        host.xrc.targets.remove(&qpn);
        drop(host.on_worker(object.worker, move |w, now| w.destroy_qp(now, qpn, false)));
        host.put_qpn(object.worker, qpn);
        host.uncount_object(self.device, DeviceObject::Qp);
    }
}
