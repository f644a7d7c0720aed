//! Calls for queue pairs: creation, attributes, end; targets of XRC, which several contexts hold; queue pairs of dead processes.
//!
//! A target of XRC takes its turns in the name of the context that has held it longest. When that context releases it, the next
//! one follows.

use crate::core::Core;
use crate::data_path::{DataPath, QpChange};
use crate::objects::{NO_DOORBELL, NO_PATH, QpHolder, QpSlot, is_ready};
use crate::paths::NOT_WAITING;
use crate::port_slot::PortSlot;
use crate::qpn::worker_of;
use crate::table::{put, take};
use crate::tombstone::{self, LINGER, Tombstone};
use crate::tombstone_file::TombstoneFile;
use crate::transmit::sched::NO_TICKET;
use crate::worker::Worker;
use burst_base::verbs::{QpAttr, QpState, QpType};
use burst_base::{Nanos, Qpn, Reason};
use burst_cm::PathRecord;
use burst_transport::ModifyError;
use std::io;

impl Worker {
    /// Adds a queue pair.
    pub fn add_qp(&mut self, mut slot: Box<QpSlot>) {
        assert_eq!(worker_of(slot.qpn), self.core.options.id, "a queue pair of another worker");
        assert!(
            slot.ticket == NO_TICKET && slot.path == NO_PATH && slot.waiting == NOT_WAITING,
            "a queue pair that is in use"
        );
        let index = self.core.directory.add(slot.qpn);
        debug_assert!(self.core.directory.find(slot.qpn) == index && index != 0, "an entry without a number");
        slot.index = index;
        slot.has_more = slot.srq.is_some();
        if let Some(excerpts) = &mut self.core.outbox.excerpts {
            excerpts.begin(index);
        }
        let qp = &mut slot.qp;
        qp.accept_selective(self.core.options.selective);
        qp.set_rto(self.core.options.rto);
        if qp.qp_type() != QpType::XrcRecv && self.core.outbox.copiers.has(slot.holder.context) {
            // Without memory for it, what it places on a device is refused.
            let _ = qp.use_copies();
        }
        if slot.doorbell != NO_DOORBELL
            && let Some(context) = self.core.contexts.get_mut(slot.holder.context as usize).and_then(Option::as_mut)
        {
            context.set_queue(slot.doorbell, index);
        }
        if self.core.timers.wheel.capacity() <= index {
            self.core.timers.wheel.grow((index + 1).next_power_of_two());
        }
        put(&mut self.core.qps, index, slot);
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// The transport's error; [`ModifyError::Value`] with an empty mask for an unknown number.
    pub fn modify_qp(&mut self, now: Nanos, qpn: Qpn, change: QpChange<'_>) -> Result<QpAttr, ModifyError> {
        let mut data_path = self.data_path();
        let result = data_path.modify_qp(now, qpn, change);
        data_path.flush_all(now);
        result
    }

    /// The present attributes of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        Some(self.core.slot(qpn)?.qp.query())
    }

    /// The number of the context that holds a queue pair.
    pub fn context_of(&self, qpn: Qpn) -> Option<u32> {
        self.core.slot(qpn).map(|slot| slot.holder.context)
    }

    /// The program of these queue pairs begins or ends a fork: its memory is held, or is back.
    pub fn hold_memory(&mut self, now: Nanos, qpns: &[Qpn], hold: bool) {
        for &qpn in qpns {
            let index = self.core.directory.find(qpn);
            // One of them may have been destroyed since.
            if let Some(slot) =
                self.core.qps.get_mut(index as usize).and_then(Option::as_mut).filter(|slot| slot.qpn == qpn)
            {
                slot.qp.hold_memory(now, hold);
                self.core.settle(now, index);
            }
        }
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
        debug_assert!(slot.qpn == qpn && slot.index == index, "the slot of another queue pair");
        self.core.directory.remove(qpn);
        self.core.timers.wheel.cancel(index);
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

    /// Answers from now on for the queue pairs in the file of this worker's predecessor, and notes its own there. Peers of the
    /// connection manager, and peers with requests outstanding, are notified at once. Returns the numbers of dead queue pairs.
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
        let qp = &slot.qp;
        let attr = qp.query();
        let connected = matches!(attr.qp_state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        let (true, QpType::Rc | QpType::XrcRecv) = (connected, qp.qp_type()) else { return };
        let stone = Tombstone { until: now + LINGER, expected: Some(attr.rq_psn), ..slot.tombstone(*qp.flow(), None) };
        let PortSlot { batch, counters, .. } = &mut self.ports[slot.device.index()];
        tombstone::announce(&stone, batch);
        counters.count(Reason::ProcessDied);
        self.core.tombstones.add(stone);
        self.data_path().flush_all(now);
    }

    /// Adds a context that holds a target queue pair.
    pub fn hold_qp(&mut self, qpn: Qpn, holder: QpHolder) {
        let index = self.core.directory.find(qpn);
        if let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut)
            && slot.qpn == qpn
        {
            let before = slot.other_holders.insert(holder);
            assert!(before.is_none(), "two holds of one queue pair have the same number");
        }
    }

    /// Ends one hold of a target queue pair, if there are others. Takes time for the logarithm of their number: a program may
    /// have thousands when it ends.
    pub fn release_qp(&mut self, qpn: Qpn, hold: u64) {
        let index = self.core.directory.find(qpn);
        let Some(slot) = self.core.qps.get_mut(index as usize).and_then(Option::as_mut).filter(|s| s.qpn == qpn) else {
            return;
        };
        if slot.holder.hold != hold {
            slot.other_holders.remove(hold);
            return;
        }
        let Some(next) = slot.other_holders.pop_first() else { return };
        let was = std::mem::replace(&mut slot.holder, next).context;
        if std::mem::replace(&mut slot.ticket, NO_TICKET) != NO_TICKET {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(was, |place| is_ready(qps, place));
        }
        self.core.make_ready(index);
    }

    /// Whether requests to a dead queue pair are answered.
    pub fn has_tombstone(&self, qpn: Qpn) -> bool {
        self.core.tombstones.has(qpn)
    }

    /// Announces the deaths of queue pairs of another process to their peers, and answers further requests to them.
    pub fn bury(&mut self, now: Nanos, stones: &[Tombstone]) {
        stones.iter().for_each(|stone| self.core.tombstones.add(*stone));
        let Worker { core, ports, agent, .. } = self;
        let mut data_path = DataPath { core, ports };
        for (at, stone) in stones.iter().enumerate() {
            let Tombstone { peer, cm, device, flow, .. } = stone;
            if let Some(ids) = cm {
                agent.announce_end(now, &PathRecord { device: *device, flow: *flow }, *ids, *peer, &mut data_path);
            }
            tombstone::announce(stone, &mut data_path.ports[device.index()].batch);
            // A batch must have room for the next one.
            if at % (data_path.core.options.batch_frames / 4).max(1) == 0 {
                data_path.flush_all(now);
            }
        }
        data_path.flush_all(now);
    }
}
