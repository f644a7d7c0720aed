//! Room in the workers' tables: made before an object is counted, so that no worker needs memory when it gets the object.

use super::Host;
use crate::device::DeviceObject;
use burst_control::Refusal;
use burst_engine::WorkerTable;
use burst_engine::qpn::QpnSpace;

/// The fewest entries of a table for which room is made.
const ENTRIES_MIN: u32 = 8;

/// Entries for which every worker has room, by table.
#[derive(Debug, Default)]
pub(crate) struct TableRoom([u32; WorkerTable::COUNT]);

/// Why there is no `what`: a worker's table cannot grow to `entries`.
pub(crate) fn no_memory(what: &str, entries: u32) -> Refusal {
    let sentence =
        format!("no memory for another {what}: the system gives none for a worker's table of {entries} entries");
    Refusal { errno: libc::ENOMEM, sentence }
}

/// Entries of a table that has room for `needed`.
pub(crate) fn table_entries(needed: u32) -> u32 {
    needed.next_power_of_two().max(ENTRIES_MIN)
}

impl Host {
    /// Makes room in all workers for one more object.
    ///
    /// # Errors
    /// ENOMEM: there is no memory.
    pub(super) fn make_room_for(&mut self, object: DeviceObject) -> Result<(), Refusal> {
        match object {
            DeviceObject::Qp => self.make_room(WorkerTable::QueuePairs, "queue pair"),
            DeviceObject::Cq => self.make_room(WorkerTable::Cqs, "completion queue"),
            DeviceObject::Mr => self.make_room(WorkerTable::Keys, "memory region"),
            DeviceObject::Mw => self.make_room(WorkerTable::Keys, "memory window"),
            DeviceObject::Ah => self.make_room(WorkerTable::AddressHandles, "address handle"),
            DeviceObject::Srq => self.make_room(WorkerTable::XrcQueues, "shared receive queue"),
            DeviceObject::Pd => Ok(()),
        }
    }

    /// Makes room in a table of all workers for one more entry.
    ///
    /// # Errors
    /// ENOMEM: there is no memory.
    pub(crate) fn make_room(&mut self, table: WorkerTable, what: &str) -> Result<(), Refusal> {
        let present = match table {
            WorkerTable::Contexts => self.contexts.taken_end(),
            // Entry 0 is never used.
            WorkerTable::QueuePairs => 1 + self.qpns.iter().map(QpnSpace::in_use).max().unwrap_or(0),
            WorkerTable::Cqs => self.cqs.taken_end(),
            WorkerTable::AddressHandles => self.ahs.taken_end(),
            WorkerTable::XrcQueues => self.xrc.srqns_end(),
            WorkerTable::Keys => self.keys.index_end() as u32,
        };
        if present < self.room.0[table as usize] {
            return Ok(());
        }
        let entries = table_entries(present + 1);
        for worker in 0..self.workers().len() {
            self.on_worker(worker, move |w, _| w.reserve(table, entries)).map_err(|_| no_memory(what, entries))?;
        }
        self.room.0[table as usize] = entries;
        Ok(())
    }

    /// The workers' tables have been trimmed.
    pub(super) fn forget_room(&mut self) {
        self.room = TableRoom::default();
    }
}
