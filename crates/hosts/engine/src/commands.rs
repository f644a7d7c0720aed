//! Commands of the control thread, which run on the worker between two passes.
//!
//! Tables are indexed by numbers that the control thread gives out. A table grows only here, outside the data path.

use crate::calls::{Completions, Egress};
use crate::congestion::sent_tos;
use crate::counters::Counters;
use crate::objects::{
    AddressHandle, ContextSlot, EngineCq, NO_DOORBELL, NO_PATH, QpSlot, SrqShared, is_ready, waits_for,
};
use crate::path::{Path, PathLink};
use crate::paths::NOT_WAITING;
use crate::port_slot::PortSlot;
use crate::qpn::worker_of;
use crate::sched::NO_TICKET;
use crate::tap::PortTap;
use crate::tombstone::{self, LINGER, Tombstone};
use crate::tombstone_file::TombstoneFile;
use crate::worker::{Core, DataPath, Worker};
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{QpAttr, QpState, QpType};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cc::PeerKind;
use burst_frame::Flow;
use burst_mem::{MrTable, Region, Window};
use burst_port::impair::Impair;
use burst_port::spec::ImpairSpec;
use burst_port::{NeighbourState, PortCaps};
use burst_transport::{Env, ModifyError, Qp};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Puts `value` at `index` of a table of options.
fn put<T>(table: &mut Vec<Option<T>>, index: u32, value: T) {
    let index = index as usize;
    if table.len() <= index {
        table.resize_with(index + 1, || None);
    }
    assert!(table[index].is_none(), "slot {index} is in use");
    table[index] = Some(value);
}

/// Returns the memory behind the last entry in use.
fn shrink<T>(table: &mut Vec<Option<T>>) {
    let used = table.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    table.truncate(used);
    table.shrink_to_fit();
}

/// Takes the entry at `index` out of a table of options.
fn take<T>(table: &mut [Option<T>], index: u32) -> Option<T> {
    table.get_mut(index as usize).and_then(Option::take)
}

impl Worker {
    /// Adds a context.
    pub fn add_context(&mut self, context: u32, slot: ContextSlot) {
        self.core.sched.add_context(context, &slot.account, self.core.options.id as usize, slot.fills.clone());
        put(&mut self.core.contexts, context, slot);
    }

    /// Removes a context whose queue pairs have been destroyed.
    pub fn remove_context(&mut self, context: u32) {
        take(&mut self.core.contexts, context);
        self.core.sched.remove_context(context);
    }

    /// Adds a completion queue, for queue pairs of this worker.
    pub fn add_cq(&mut self, cq: u32, shared: Arc<EngineCq>) {
        put(&mut self.core.cqs, cq, shared);
    }

    /// Removes a completion queue.
    pub fn remove_cq(&mut self, cq: u32) {
        take(&mut self.core.cqs, cq);
    }

    /// A completion queue, to be resized.
    pub fn cq(&self, cq: u32) -> Option<&Arc<EngineCq>> {
        self.core.cqs.get(cq as usize).and_then(Option::as_ref)
    }

    /// Adds an address handle.
    pub fn add_ah(&mut self, ah: u32, handle: AddressHandle) {
        self.ports.iter_mut().for_each(|slot| slot.port.prepare(&handle.flow));
        put(&mut self.core.ahs, ah, handle);
    }

    /// Removes an address handle.
    pub fn remove_ah(&mut self, ah: u32) {
        take(&mut self.core.ahs, ah);
    }

    /// Adds a memory region to this worker's copy of the key table.
    pub fn add_region(&mut self, region: Arc<Region>) {
        let fresh = self.core.mem.insert(region);
        assert!(fresh, "the key space gave out a key twice");
    }

    /// Removes a memory region. Its mapping ends when the last worker has removed it.
    pub fn remove_region(&mut self, key: u32) {
        self.core.mem.remove(key);
        self.core.reclaim();
    }

    /// Adds a memory window to this worker's copy of the key table.
    pub fn add_window(&mut self, window: Arc<Window>) {
        let fresh = self.core.mem.insert_window(window);
        assert!(fresh, "the key space gave out a key twice");
    }

    /// Removes a memory window.
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

    /// State of the next hop to `dst` at the port of `device`. The port begins to resolve an unknown next hop.
    pub fn next_hop(&mut self, now: Nanos, device: DeviceId, dst: IpAddr) -> NeighbourState {
        self.ports[device.index()].port.next_hop(now, dst)
    }

    /// Address, MTU and link state of the port of `device`, read again.
    pub fn refresh_port(&mut self, device: DeviceId) -> PortCaps {
        let slot = &mut self.ports[device.index()];
        slot.port.refresh();
        slot.port.caps().clone()
    }

    /// Bytes in the queue of the link that the port of `device` simulates for received frames; `None` if it simulates none.
    pub fn received_queue(&mut self, now: Nanos, device: DeviceId) -> Option<u64> {
        self.ports[device.index()].port.impairment().and_then(|wrapper| wrapper.received_queue(now))
    }

    /// From now on frames of the port of `device` have the fate that `spec` says, for `time`, beside the impairments of its
    /// specification; `None` ends this.
    pub fn impair(&mut self, now: Nanos, device: DeviceId, spec: Option<ImpairSpec>, time: Nanos) {
        let until = Nanos(now.0.saturating_add(time.0));
        if self.ports[device.index()].port.impairment().is_none() {
            let slot = self.ports.remove(device.index());
            let port = Box::new(Impair::changeable(slot.port));
            self.ports.insert(device.index(), PortSlot { port, ..slot });
        }
        let wrapper = self.ports[device.index()].port.impairment().expect("a wrapper that was just made");
        wrapper.set(spec.as_ref(), until);
    }

    /// Packets of the device, those of URMA included, are captured. False if there are too many taps.
    pub fn capture(&mut self, device: DeviceId, tap: PortTap) -> bool {
        let endpoints = self.urma.as_ref().map_or(0, |urma| urma.of_device(device).count());
        let more: Vec<PortTap> = (0..endpoints).filter_map(|_| tap.try_clone().ok()).collect();
        let is_added = self.ports[device.index()].taps.add(tap);
        if is_added && let Some(urma) = &mut self.urma {
            urma.add_taps(device, more);
        }
        is_added
    }

    /// Descriptors to sleep on.
    pub fn wait_fds(&self) -> Vec<std::os::fd::RawFd> {
        let urma = self.urma.iter().flat_map(|slot| slot.wait_fds());
        self.ports.iter().flat_map(|p| p.port.wait_fds()).chain(urma).collect()
    }

    /// All descriptors of the ports.
    pub fn port_descriptors(&self) -> Vec<std::os::fd::RawFd> {
        let urma = self.urma.iter().flat_map(|slot| slot.descriptors());
        self.ports.iter().flat_map(|p| p.port.descriptors()).chain(urma).collect()
    }

    /// Adds a queue pair.
    pub fn add_qp(&mut self, mut slot: Box<QpSlot>) {
        assert_eq!(worker_of(slot.qpn), self.core.options.id, "a queue pair of another worker");
        assert!(
            slot.ticket == NO_TICKET && slot.path == NO_PATH && slot.waiting == NOT_WAITING,
            "a queue pair that is in use"
        );
        let index = self.core.directory.add(slot.qpn);
        slot.index = index;
        slot.has_more = slot.srq.is_some();
        let qp = slot.endpoint.qp_mut();
        qp.accept_selective(self.core.options.selective);
        qp.set_rto(self.core.options.rto);
        if slot.doorbell != NO_DOORBELL
            && let Some(context) = self.core.contexts.get_mut(slot.holder.context as usize).and_then(Option::as_mut)
        {
            context.set_queue(slot.doorbell, index);
        }
        if self.core.wheel.capacity() <= index {
            self.core.wheel.grow((index + 1).next_power_of_two());
        }
        put(&mut self.core.qps, index, slot);
    }

    /// Returns memory of destroyed objects. For times without traffic: it allocates, and so will the creation of the next
    /// objects.
    pub fn shrink(&mut self) {
        let Core { qps, cqs, ahs, xrc, contexts, mem, sched, wheel, directory, .. } = &mut self.core;
        shrink(qps);
        directory.shrink(qps.len() as u32);
        shrink(cqs);
        shrink(ahs);
        shrink(xrc);
        shrink(contexts);
        mem.shrink();
        // URMA's endpoints have a context that is in no other table.
        let urma = self.urma.as_ref().map_or(0, |slot| slot.context() as usize + 1);
        sched.shrink(contexts.len().max(urma));
        wheel.shrink(qps.len().next_power_of_two() as u32);
        self.agent.shrink();
        self.ports.iter_mut().for_each(|slot| slot.port.shrink());
        burst_base::heap::return_thread_cache();
    }

    /// Changes attributes; `flow` is the resolved address vector when the mask has one.
    ///
    /// # Errors
    /// The transport's error; [`ModifyError::Value`] with an empty mask for an unknown number.
    pub fn modify_qp(
        &mut self,
        now: Nanos,
        qpn: Qpn,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
    ) -> Result<QpAttr, ModifyError> {
        let mut data_path = self.data_path();
        let result = data_path.modify_qp(now, qpn, attr, mask, flow);
        data_path.flush_all(now);
        result
    }

    /// Replaces the ring of a shared receive queue in all of its queue pairs.
    pub fn replace_srq(&mut self, old: &Arc<SrqShared>, new: &Arc<SrqShared>) {
        for slot in self.core.qps.iter_mut().flatten() {
            if slot.srq.as_ref().is_some_and(|srq| Arc::ptr_eq(srq, old)) {
                slot.srq = Some(new.clone());
                slot.endpoint.qp_mut().follow_srq(new.consumer.clone());
            }
        }
        for entry in self.core.xrc.iter_mut().flatten().filter(|e| Arc::ptr_eq(&e.shared, old)) {
            entry.shared = new.clone();
            entry.srq.queue = new.consumer.clone();
        }
    }

    /// The present attributes of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        Some(self.core.slot(qpn)?.endpoint.qp().query())
    }

    /// The number of the context that holds a queue pair.
    pub fn context_of(&self, qpn: Qpn) -> Option<u32> {
        self.core.slot(qpn).map(|slot| slot.holder.context)
    }

    /// Destroys a queue pair and returns its slot. With `unclean` its process has died: the peer is notified, and a tombstone
    /// answers further requests for a while.
    pub fn destroy_qp(&mut self, now: Nanos, qpn: Qpn, unclean: bool) -> Option<Box<QpSlot>> {
        let mut data_path = self.data_path();
        data_path.call_qp(now, qpn, |qp, env| {
            qp.send_pending_ack(env);
            qp.release_records(env);
        })?;
        data_path.flush_all(now);
        let index = self.core.directory.find(qpn);
        let mut slot = take(&mut self.core.qps, index)?;
        self.core.directory.remove(qpn);
        self.core.wheel.cancel(index);
        if slot.ticket != NO_TICKET {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(slot.holder.context, |place| is_ready(qps, place));
        }
        self.core.leave_path(now, &mut slot, index);
        if let Some(context) = self.core.contexts.get_mut(slot.holder.context as usize).and_then(Option::as_mut) {
            context.clear_queue(slot.doorbell);
        }
        if let Some(file) = &self.core.tombstone_file {
            file.clear(index);
        }
        if unclean {
            self.add_tombstone(now, &slot);
        }
        Some(slot)
    }

    /// Number of this worker.
    pub fn id(&self) -> u32 {
        self.core.options.id
    }

    /// Answers from now on for the queue pairs in the file of this worker's predecessor, and notes its own there. Peers of the
    /// connection manager, and peers with requests outstanding, are told at once. Returns the numbers of the dead queue pairs.
    ///
    /// # Errors
    /// The system's: the file cannot be read.
    pub fn adopt_tombstones(&mut self, now: Nanos, file: TombstoneFile) -> io::Result<Vec<Qpn>> {
        let stones = file.take_over(now, self.core.options.id, self.ports.len())?;
        self.core.tombstone_file = Some(file);
        self.agent.note_established();
        self.bury(now, &stones);
        Ok(stones.iter().map(|stone| stone.qpn).collect())
    }

    /// Announces the death of a queue pair's process to its peer, and keeps a tombstone that answers further requests.
    fn add_tombstone(&mut self, now: Nanos, slot: &QpSlot) {
        let qp = slot.endpoint.qp();
        let attr = qp.query();
        let connected = matches!(attr.qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let (true, QpType::Rc | QpType::XrcRecv) = (connected, qp.qp_type()) else { return };
        let stone = Tombstone { until: now + LINGER, expected: Some(attr.rq_psn), ..slot.tombstone(*qp.flow(), None) };
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        tombstone::announce(&stone, batch);
        counters.count(Reason::ProcessDied);
        self.core.tombstones.add(stone);
        self.flush_all(now);
    }
}

impl DataPath<'_> {
    /// Calls a queue pair outside of turns and bursts. Its completions become visible when the batches are flushed next. `None`
    /// if there is no such queue pair.
    pub fn call_qp<T>(&mut self, now: Nanos, qpn: Qpn, f: impl FnOnce(&mut Qp, &mut Env<'_>) -> T) -> Option<T> {
        let (slot, tables) = self.core.slot_and_tables(now, self.core.directory.find(qpn));
        let slot = slot.filter(|slot| slot.qpn == qpn)?;
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        Some(tables.call_qp(slot, Egress { batch, counters }, Completions::AfterBatch, f))
    }

    /// As [`Worker::modify_qp`], but packets and completions of the change leave with the next flush.
    pub fn modify_qp(
        &mut self,
        now: Nanos,
        qpn: Qpn,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
    ) -> Result<QpAttr, ModifyError> {
        if flow.is_some() {
            self.reserve_path().map_err(|OutOfMemory| ModifyError::NoMemory)?;
        }
        self.follow_port(qpn);
        let flow = flow.map(|flow| self.markable(qpn, flow));
        let result = self
            .call_qp(now, qpn, |qp, env| qp.modify(attr, mask, flow, env).map(|()| qp.query()))
            .unwrap_or(Err(ModifyError::Value(0)));
        if let (Ok(_), Some(flow)) = (&result, flow) {
            self.join_path(now, qpn, flow);
        }
        self.core.settle(now, self.core.directory.find(qpn));
        result
    }

    /// The flow of a queue pair with the traffic class that the controller of its path wants.
    fn markable(&self, qpn: Qpn, flow: Flow) -> Flow {
        let device = self.core.slot(qpn).map_or(DeviceId(0), |slot| slot.device);
        let path = self.core.paths.find(device, flow.dst).map(|at| &self.core.paths[at as usize]);
        let kind = if self.has_address(device, &flow) { PeerKind::Loopback } else { PeerKind::Standard };
        let params = path.map_or(self.core.options.cc.of(kind).params, |path| path.params);
        Flow { tos: sent_tos(flow.tos, Some(params.algorithm())), ..flow }
    }

    /// Whether the destination of a flow is an address of the device itself.
    fn has_address(&self, device: DeviceId, flow: &Flow) -> bool {
        self.ports[device.index()].port.caps().addrs.iter().any(|own| own.ip == flow.dst)
    }

    /// Gives a queue pair the MTU of its port, which may have changed since the queue pair was created.
    pub fn follow_port(&mut self, qpn: Qpn) {
        let index = self.core.directory.find(qpn);
        let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let mtu = self.ports[slot.device.index()].port.caps().active_mtu();
        slot.endpoint.qp_mut().follow_port(mtu);
    }

    /// Makes room for one more path: [`DataPath::join_path`] follows.
    pub fn reserve_path(&mut self) -> Result<(), OutOfMemory> {
        let Core { paths, pacing, .. } = &mut *self.core;
        paths.reserve_one()?;
        // One entry of each path counts, and each path may have followed another with one.
        pacing.reserve(2 * (paths.len() + 1))
    }

    /// Puts a newly connected queue pair on the path to its peer.
    pub fn join_path(&mut self, now: Nanos, qpn: Qpn, flow: Flow) {
        let index = self.core.directory.find(qpn);
        let Some(mut slot) = take(&mut self.core.qps, index) else { return };
        self.core.leave_path(now, &mut slot, index);
        self.ports[slot.device.index()].port.prepare(&flow);
        let is_own_address = self.has_address(slot.device, &flow);
        let Core { paths, options, .. } = &mut *self.core;
        let at = paths.join(slot.device, flow.dst, || {
            let kind = if is_own_address { PeerKind::Loopback } else { PeerKind::Standard };
            let link = PathLink::new(options.cc.of(kind).params, self.ports[slot.device.index()].port.caps());
            if link.cc.algorithm().uses_delay() {
                self.ports[slot.device.index()].port.time_arrivals();
            }
            let mut path = Path::new(now, flow.dst, slot.device, &link);
            path.is_own_address = is_own_address;
            path
        });
        slot.path = at;
        if let (Some(file), QpType::Rc) = (&self.core.tombstone_file, slot.endpoint.qp().qp_type()) {
            file.note_expected(index, slot.endpoint.qp().expected_psn());
            file.write(index, &slot.tombstone(flow, None));
        }
        let qp_type = slot.endpoint.qp().qp_type();
        let path = &self.core.paths[at as usize];
        path.hello.tell(slot.endpoint.qp_mut(), self.core.options.selective);
        slot.endpoint.qp_mut().report_each(path.wants_each_report());
        put(&mut self.core.qps, index, slot);
        if qp_type == QpType::Rc || qp_type.is_xrc() {
            self.core.greet(now, at, &flow);
        }
    }
}

impl Core {
    /// The slot of a queue pair.
    pub(crate) fn slot(&self, qpn: Qpn) -> Option<&QpSlot> {
        let slot = self.qps.get(self.directory.find(qpn) as usize)?.as_deref()?;
        (slot.qpn == qpn).then_some(slot)
    }

    /// Takes a queue pair off its path, together with its bytes in flight and its place in the line for the window.
    fn leave_path(&mut self, now: Nanos, slot: &mut QpSlot, index: u32) {
        if slot.path == NO_PATH {
            return;
        }
        let path = &mut self.paths[slot.path as usize];
        path.forget(index);
        path.moved(now, index, slot.inflight_seen, 0);
        path.responses_moved(slot.responses_seen, 0);
        if slot.waiting != NOT_WAITING {
            path.waiting.leave(|place| waits_for(&self.qps, slot.path, place));
        }
        self.paths.leave(slot.path);
        (slot.path, slot.inflight_seen, slot.responses_seen, slot.waiting) = (NO_PATH, 0, 0, NOT_WAITING);
    }
}
