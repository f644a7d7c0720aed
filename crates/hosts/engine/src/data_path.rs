//! Tables and ports of a worker together: calls to queue pairs outside of turns and bursts, and changes of their attributes.

use crate::calls::Egress;
use crate::core::Core;
use crate::objects::NO_PATH;
use crate::outbox::Completions;
use crate::paths::ecn::sent_tos;
use crate::paths::path::{Path, PathLink};
use crate::port_slot::PortSlot;
use crate::table::{put, take};
use crate::tally::device_counts;
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{QpAttr, QpType};
use burst_base::{DeviceId, Nanos, Qpn};
use burst_cc::{PathNature, PeerKind, SettledChoice};
use burst_frame::Flow;
use burst_transport::{Env, ModifyError, Qp};

mod congestion_control;
mod connections;
mod copies;
mod hellos;

/// A change of a queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct QpChange<'a> {
    /// Attributes.
    pub attr: &'a QpAttr,
    /// Which of them are to be set (`ibv_qp_attr_mask`).
    pub mask: u32,
    /// The resolved address vector, when the mask has one.
    pub flow: Option<Flow>,
}

/// A worker's tables and ports, borrowed while its agent runs.
pub(crate) struct DataPath<'a> {
    pub core: &'a mut Core,
    pub ports: &'a mut [PortSlot],
}

impl DataPath<'_> {
    /// The same tables and ports, for one call.
    #[inline(always)]
    pub fn reborrow(&mut self) -> DataPath<'_> {
        DataPath { core: self.core, ports: self.ports }
    }

    /// Calls a queue pair outside of turns and bursts. Its completions become visible when the batches are flushed next. `None`
    /// if there is no such queue pair.
    pub fn call_qp<T>(&mut self, now: Nanos, qpn: Qpn, f: impl FnOnce(&mut Qp, &mut Env<'_>) -> T) -> Option<T> {
        let (slot, tables) = self.core.slot_and_tables(now, self.core.directory.find(qpn));
        let slot = slot.filter(|slot| slot.qpn == qpn)?;
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        Some(tables.call_qp(slot, Egress { batch, counters }, Completions::AfterBatch, f))
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
        slot.qp.follow_port(mtu);
    }

    /// Makes room for one more path: [`Self::join_path`] follows.
    pub fn reserve_path(&mut self) -> Result<(), OutOfMemory> {
        let Core { paths, timers, .. } = &mut *self.core;
        paths.reserve_one()?;
        // One entry of each path counts, and each path may have followed another with one.
        timers.pacing.reserve(2 * (paths.len() + 1))
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
            let SettledChoice { params, why } = options.cc.settle(kind, None, PathNature::Unknown);
            let link = PathLink::new(params, self.ports[slot.device.index()].port.caps());
            if link.cc.algorithm().uses_delay() {
                self.ports[slot.device.index()].port.time_arrivals();
            }
            let mut path = Path::new(now, flow.dst, slot.device, &link);
            (path.is_own_address, path.why) = (is_own_address, why);
            path.counts_before = device_counts(&self.ports[slot.device.index()].counters);
            path
        });
        debug_assert!(slot.path == NO_PATH && slot.inflight_seen == 0, "a queue pair is on two paths");
        slot.path = at;
        let context = slot.holder.context;
        slot.line = self.core.paths[at as usize].waiting.join(context, self.core.sched.account_of(context));
        if let (Some(file), QpType::Rc) = (&self.core.tombstone_file, slot.qp.qp_type()) {
            file.note_expected(index, slot.qp.expected_psn());
            file.write(index, &slot.tombstone(flow, None));
        }
        let qp_type = slot.qp.qp_type();
        let path = &self.core.paths[at as usize];
        path.hello.tell(&mut slot.qp, self.core.options.selective);
        if is_own_address {
            // The other end is of this program, too, and is not asked.
            slot.qp.use_receipts(self.core.options.selective);
        }
        slot.qp.report_each(path.wants_each_report());
        put(&mut self.core.qps, index, slot);
        if qp_type != QpType::Ud {
            let Core { hellos, paths, options, .. } = &mut *self.core;
            let path = &mut paths[at as usize];
            path.greet(now, &flow, options.asks_peers());
            hellos.times.note(at, path);
        }
    }

    /// As [`crate::Worker::modify_qp`], but packets and completions of the change leave with the next flush.
    pub fn modify_qp(&mut self, now: Nanos, qpn: Qpn, change: QpChange<'_>) -> Result<QpAttr, ModifyError> {
        let QpChange { attr, mask, flow } = change;
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

    /// Sends the batch of every port, then makes the completions visible that waited for it.
    pub fn flush_all(&mut self, now: Nanos) {
        for slot in self.ports.iter_mut().filter(|slot| !slot.batch.is_empty()) {
            slot.flush(now);
        }
        self.core.show_completions(self.ports);
        debug_assert!(self.ports.iter().all(|slot| slot.batch.is_empty()), "frames wait after a flush");
    }
}
