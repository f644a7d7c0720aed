//! What the control thread asks of a worker, between two passes of the loop.
//!
//! Tables are indexed by numbers that the control thread gives out; a table grows here, outside the data path.

use crate::counters::Counters;
use crate::effects::{Fx, SlotView};
use crate::objects::{AddressHandle, ContextSlot, CqShared, NO_DOORBELL, NO_PATH, QpSlot, SrqShared, is_ready};
use crate::path::Path;
use crate::qpn::slot_of;
use crate::sched::NO_TICKET;
use crate::tombstone::{self, LINGER, Tombstone};
use crate::worker::{Core, PortSlot, Worker};
use burst_base::verbs::{QpAttr, QpState, QpType};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_frame::Flow;
use burst_mem::{MrTable, Region, Window};
use burst_port::{NeighbourState, PortCaps};
use burst_transport::{Env, ModifyError};
use std::net::IpAddr;
use std::sync::Arc;

/// Puts `value` at `index` of a table of options.
fn put<T>(table: &mut Vec<Option<T>>, index: u32, value: T) {
    let index = index as usize;
    if table.len() <= index {
        table.resize_with(index + 1, || None);
    }
    debug_assert!(table[index].is_none(), "slot {index} is taken");
    table[index] = Some(value);
}

/// Gives back the room after the last that is there.
fn shrink<T>(table: &mut Vec<Option<T>>) {
    let used = table.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    table.truncate(used);
    table.shrink_to_fit();
}

fn take<T>(table: &mut [Option<T>], index: u32) -> Option<T> {
    table.get_mut(index as usize).and_then(Option::take)
}

impl Worker {
    /// A context that this worker shall serve.
    pub fn add_context(&mut self, context: u32, slot: ContextSlot) {
        self.core.sched.add_context(context);
        put(&mut self.core.contexts, context, slot);
    }

    /// Forgets a context whose queue pairs are gone.
    pub fn remove_context(&mut self, context: u32) {
        take(&mut self.core.contexts, context);
        self.core.sched.remove_context(context);
    }

    /// A completion queue that queue pairs of this worker may use.
    pub fn add_cq(&mut self, cq: u32, shared: Arc<CqShared>) {
        put(&mut self.core.cqs, cq, shared);
    }

    /// Forgets a completion queue.
    pub fn remove_cq(&mut self, cq: u32) {
        take(&mut self.core.cqs, cq);
    }

    /// A completion queue, to be resized between passes.
    pub fn cq(&self, cq: u32) -> Option<&Arc<CqShared>> {
        self.core.cqs.get(cq as usize).and_then(Option::as_ref)
    }

    /// An address handle.
    pub fn add_ah(&mut self, ah: u32, handle: AddressHandle) {
        self.ports.iter_mut().for_each(|slot| slot.port.prepare(&handle.flow));
        put(&mut self.core.ahs, ah, handle);
    }

    /// Forgets an address handle.
    pub fn remove_ah(&mut self, ah: u32) {
        take(&mut self.core.ahs, ah);
    }

    /// A memory region, for this worker's replica of the table.
    pub fn add_region(&mut self, region: Arc<Region>) {
        let fresh = self.core.mem.insert(region);
        debug_assert!(fresh, "the key space gave out a key twice");
    }

    /// Forgets a memory region; its mapping ends with the last worker's.
    pub fn remove_region(&mut self, key: u32) {
        self.core.mem.remove(key);
        self.core.mem.reclaim();
    }

    /// A memory window, for this worker's replica of the table.
    pub fn add_window(&mut self, window: Arc<Window>) {
        let fresh = self.core.mem.insert_window(window);
        debug_assert!(fresh, "the key space gave out a key twice");
    }

    /// Forgets a memory window.
    pub fn remove_window(&mut self, key: u32) {
        self.core.mem.remove_window(key);
    }

    /// The key table.
    pub fn mem(&self) -> &MrTable {
        &self.core.mem
    }

    /// Counters of `device`.
    pub fn counters(&self, device: DeviceId) -> Arc<Counters> {
        self.ports[device.index()].counters.clone()
    }

    /// What the port of `device` knows of the next hop to `dst`; asks for it if that is nothing.
    pub fn next_hop(&mut self, now: Nanos, device: DeviceId, dst: IpAddr) -> NeighbourState {
        self.ports[device.index()].port.next_hop(now, dst)
    }

    /// What the port of `device` is now; re-reads addresses and link state first.
    pub fn refresh_port(&mut self, device: DeviceId) -> PortCaps {
        let slot = &mut self.ports[device.index()];
        slot.port.refresh();
        slot.port.caps().clone()
    }

    /// Descriptors to sleep on.
    pub fn wait_fds(&self) -> Vec<std::os::fd::RawFd> {
        self.ports.iter().flat_map(|p| p.port.wait_fds()).collect()
    }

    /// A queue pair of this worker; its number names the slot.
    pub fn add_qp(&mut self, slot: Box<QpSlot>) {
        let index = slot_of(slot.qpn);
        if slot.doorbell != NO_DOORBELL
            && let Some(context) = self.core.contexts.get_mut(slot.context as usize).and_then(Option::as_mut)
        {
            let doorbell = slot.doorbell as usize;
            if context.queues.len() <= doorbell {
                context.queues.resize(doorbell + 1, u32::MAX);
            }
            context.queues[doorbell] = index;
        }
        if self.core.wheel.capacity() <= index {
            self.core.wheel.grow((index + 1).next_power_of_two());
        }
        put(&mut self.core.qps, index, slot);
    }

    /// Gives back the room of objects that have gone. For quiet times: it allocates, and so will the next objects.
    pub fn shrink(&mut self) {
        let Core { qps, cqs, ahs, wheel, cm, .. } = &mut self.core;
        shrink(qps);
        shrink(cqs);
        shrink(ahs);
        wheel.shrink(qps.len().next_power_of_two() as u32);
        if let Some(cm) = cm {
            cm.shrink();
        }
    }

    /// Changes attributes; `flow` is the resolved address vector when the mask has one.
    ///
    /// # Errors
    /// As the transport says, or [`ModifyError::Value`] of nothing for an unknown number.
    pub fn modify_qp(
        &mut self,
        now: Nanos,
        qpn: Qpn,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
    ) -> Result<QpAttr, ModifyError> {
        let result = self.modify_qp_unsent(now, qpn, attr, mask, flow);
        self.flush_all(now);
        result
    }

    /// As above; what the change wants sent leaves with the next burst.
    pub(crate) fn modify_qp_unsent(
        &mut self,
        now: Nanos,
        qpn: Qpn,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
    ) -> Result<QpAttr, ModifyError> {
        self.follow_port(qpn);
        let result = self
            .with_qp(qpn, now, |slot, env| slot.qp.modify(attr, mask, flow, env).map(|()| slot.qp.query()))
            .unwrap_or(Err(ModifyError::Value(0)));
        if let (Ok(_), Some(flow)) = (&result, flow) {
            self.join_path(now, qpn, flow);
        }
        self.core.settle(now, slot_of(qpn));
        result
    }

    /// The interface's MTU may have changed since the queue pair was made.
    pub(crate) fn follow_port(&mut self, qpn: Qpn) {
        let Some(slot) = self.core.qps.get_mut(slot_of(qpn) as usize).and_then(Option::as_mut) else { return };
        slot.qp.follow_port(self.ports[slot.device.index()].port.caps().active_mtu());
    }

    /// A shared receive queue has moved to another ring: its queue pairs follow.
    pub fn replace_srq(&mut self, old: &Arc<SrqShared>, new: &Arc<SrqShared>) {
        for slot in self.core.qps.iter_mut().flatten() {
            if slot.srq.as_ref().is_some_and(|srq| Arc::ptr_eq(srq, old)) {
                slot.srq = Some(new.clone());
                slot.qp.follow_srq(new.consumer.clone());
            }
        }
        for entry in self.core.xrc.iter_mut().flatten().filter(|e| Arc::ptr_eq(&e.shared, old)) {
            entry.shared = new.clone();
            entry.srq.queue = new.consumer.clone();
        }
    }

    /// Attributes as they are.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        Some(self.slot(qpn)?.qp.query())
    }

    /// Takes a queue pair out. With `unclean`, its peer is told and told again for a while.
    pub fn destroy_qp(&mut self, now: Nanos, qpn: Qpn, unclean: bool) -> Option<Box<QpSlot>> {
        self.with_qp(qpn, now, |slot, env| slot.qp.send_pending_ack(env))?;
        self.flush_all(now);
        let index = slot_of(qpn);
        let mut slot = take(&mut self.core.qps, index)?;
        self.core.wheel.cancel(index);
        if slot.ticket != NO_TICKET {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(slot.context, |place| is_ready(qps, place));
        }
        self.leave_path(now, &mut slot, index);
        if let Some(context) = self.core.contexts.get_mut(slot.context as usize).and_then(Option::as_mut)
            && let Some(q) = context.queues.get_mut(slot.doorbell as usize)
        {
            *q = u32::MAX;
        }
        if unclean {
            self.bury(now, &slot);
        }
        Some(slot)
    }

    /// Runs `f` on a queue pair with the world around it.
    pub(crate) fn with_qp<T>(
        &mut self,
        qpn: Qpn,
        now: Nanos,
        f: impl FnOnce(&mut QpSlot, &mut Env<'_>) -> T,
    ) -> Option<T> {
        self.slot(qpn)?;
        let Core { qps, cqs, ahs, xrc, mem, outbox, .. } = &mut self.core;
        let slot = qps[slot_of(qpn) as usize].as_mut()?;
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        let (pipe, event_cookie, others) = (slot.async_events.clone(), slot.event_cookie, slot.others.clone());
        let view = SlotView { async_events: &pipe, event_cookie, others: &others };
        let mut fx = Fx { cqs, ahs, xrc, counters, outbox, slot: view, signal: None, defer: true };
        Some(f(slot, &mut Env { now, mem, tx: batch, fx: &mut fx }))
    }

    pub(crate) fn slot(&self, qpn: Qpn) -> Option<&QpSlot> {
        let slot = self.core.qps.get(slot_of(qpn) as usize)?.as_deref()?;
        (slot.qpn == qpn).then_some(slot)
    }

    /// Puts a newly connected queue pair on the path to its peer.
    pub(crate) fn join_path(&mut self, now: Nanos, qpn: Qpn, flow: Flow) {
        let index = slot_of(qpn);
        let Some(mut slot) = take(&mut self.core.qps, index) else { return };
        self.leave_path(now, &mut slot, index);
        self.ports[slot.device.index()].port.prepare(&flow);
        let Core { paths, options, .. } = &mut self.core;
        let found = paths.iter().position(|p| p.peer == flow.dst && p.device == slot.device);
        let reusable = || paths.iter().position(|p| p.users == 0);
        let at = found.or_else(reusable).unwrap_or(paths.len());
        if found.is_none() {
            let path = Path::new(flow.dst, slot.device, options.window_bytes);
            if at == paths.len() { paths.push(path) } else { paths[at] = path }
        }
        paths[at].users += 1;
        slot.path = at as u32;
        put(&mut self.core.qps, index, slot);
    }

    /// Takes a queue pair off its path, with what it has in flight there and its place in the line.
    fn leave_path(&mut self, now: Nanos, slot: &mut QpSlot, index: u32) {
        if slot.path == NO_PATH {
            return;
        }
        let path = &mut self.core.paths[slot.path as usize];
        path.moved(now, slot.inflight_seen, 0);
        path.users -= 1;
        if slot.waiting {
            path.waiting.retain(|q| *q != index);
        }
        (slot.path, slot.inflight_seen, slot.waiting) = (NO_PATH, 0, false);
    }

    /// Tells the peer of a queue pair whose process died.
    fn bury(&mut self, now: Nanos, slot: &QpSlot) {
        let attr = slot.qp.query();
        let connected = matches!(attr.qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let (true, QpType::Rc) = (connected, slot.qp.qp_type()) else { return };
        let flow = *slot.qp.flow();
        let stone = Tombstone { qpn: slot.qpn, peer: attr.dest_qpn, flow, until: now + LINGER };
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        tombstone::nak(&stone, attr.rq_psn, batch);
        counters.count(Reason::ProcessDied);
        self.core.graves.bury(stone);
        self.flush_all(now);
    }
}
