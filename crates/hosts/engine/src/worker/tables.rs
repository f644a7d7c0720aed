//! Objects in a worker's tables, and room for them, made before an object exists.
//!
//! The tables grow with the objects that programs create. A worker cannot refuse an object when its command runs, because the
//! control thread has created it then. So the control thread asks for room first ([`Worker::reserve`]), in steps that double the
//! table, and refuses the program's request if there is no memory. Commands that add objects then do not allocate.
//!
//! Every worker has all shared receive queues of all XRC domains, because a request to a target of any worker may name any of
//! them.

use crate::core::Core;
use crate::objects::{AddressHandle, ContextSlot, EngineCq, SrqShared, XrcEntry};
use crate::qpn::worker_of;
use crate::receive::multicast::MulticastGroup;
use crate::table::{put, shrink, take};
use crate::worker::Worker;
use burst_base::heap::{self, OutOfMemory};
use burst_mem::{MrTable, Region, Window};
use std::sync::Arc;

/// A table with one entry for each object of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerTable {
    /// Contexts.
    Contexts,
    /// Queue pairs.
    QueuePairs,
    /// Completion queues.
    Cqs,
    /// Address handles.
    AddressHandles,
    /// Shared receive queues in XRC domains.
    XrcQueues,
    /// Keys of memory regions and windows.
    Keys,
}

impl WorkerTable {
    /// Number of tables.
    pub const COUNT: usize = WorkerTable::Keys as usize + 1;
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
        self.core.outbox.copiers.remove(context);
        self.core.sched.remove_context(context);
    }

    /// Adds a completion queue, for queue pairs of this worker.
    pub fn add_cq(&mut self, cq: u32, shared: Arc<EngineCq>) {
        put(&mut self.core.cqs, cq, shared);
    }

    /// Removes a completion queue. Its number may be another one's soon.
    pub fn remove_cq(&mut self, cq: u32) {
        self.core.outbox.forget_cq(cq);
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

    /// Adds a shared receive queue of an XRC domain.
    pub fn add_xrc_srq(&mut self, srqn: u32, entry: XrcEntry) {
        take(&mut self.core.xrc, srqn);
        put(&mut self.core.xrc, srqn, entry);
    }

    /// Removes a shared receive queue, also from the targets that use it.
    pub fn remove_xrc_srq(&mut self, srqn: u32) {
        take(&mut self.core.xrc, srqn);
        for slot in self.core.qps.iter_mut().flatten() {
            slot.qp.forget_srq(srqn);
        }
    }

    /// Replaces the ring of a shared receive queue in all of its queue pairs.
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

    /// Replaces a group. A group without members on any worker is removed.
    pub fn set_group(&mut self, group: MulticastGroup) {
        let own = self.core.options.id;
        assert!(group.members.iter().all(|qpn| worker_of(*qpn) == own), "a member of another worker");
        assert!(group.members.is_empty() || group.workers & 1 << own != 0, "members of a worker without its bit");
        self.receiver.groups.set(group);
    }

    /// Makes room for the entries below `entries`, a power of two.
    ///
    /// # Errors
    /// There is no memory. The table has not changed.
    pub fn reserve(&mut self, table: WorkerTable, entries: u32) -> Result<(), OutOfMemory> {
        debug_assert!(entries.is_power_of_two());
        let Core { qps, cqs, ahs, xrc, contexts, mem, sched, timers, directory, .. } = &mut self.core;
        let count = entries as usize;
        match table {
            WorkerTable::Contexts => {
                heap::reserve(contexts, count)?;
                sched.reserve(count)
            }
            WorkerTable::QueuePairs => {
                heap::reserve(qps, count)?;
                directory.reserve(count)?;
                timers.wheel.reserve(entries)
            }
            WorkerTable::Cqs => heap::reserve(cqs, count),
            WorkerTable::AddressHandles => heap::reserve(ahs, count),
            WorkerTable::XrcQueues => heap::reserve(xrc, count),
            WorkerTable::Keys => mem.reserve(count),
        }
    }

    /// Makes room for the doorbells below `doorbells` of a context.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve_doorbells(&mut self, context: u32, doorbells: u32) -> Result<(), OutOfMemory> {
        match self.core.contexts.get_mut(context as usize).and_then(Option::as_mut) {
            Some(context) => heap::reserve(&mut context.queues, doorbells as usize),
            None => Ok(()),
        }
    }

    /// Returns memory of destroyed objects. For times without traffic: it allocates, and so will the creation of the next
    /// objects.
    pub fn shrink(&mut self) {
        let Core { qps, cqs, ahs, xrc, contexts, mem, sched, timers, directory, .. } = &mut self.core;
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
        timers.wheel.shrink(qps.len().next_power_of_two() as u32);
        self.agent.shrink();
        self.ports.iter_mut().for_each(|slot| slot.port.shrink());
        burst_base::heap::return_thread_cache();
    }
}
