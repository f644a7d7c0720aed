//! Room in a worker's tables, made before an object exists.
//!
//! The tables grow with the objects that programs create. A worker cannot refuse an object when its command runs, because the
//! control thread has created it then. So the control thread asks for room first ([`Worker::reserve`]), in steps that double the
//! table, and refuses the program's request if there is no memory. Commands that add objects then do not allocate.

use crate::worker::{Core, Worker};
use burst_base::heap::{self, OutOfMemory};

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
    /// Makes room for the entries below `entries`, a power of two.
    ///
    /// # Errors
    /// There is no memory. The table has not changed.
    pub fn reserve(&mut self, table: WorkerTable, entries: u32) -> Result<(), OutOfMemory> {
        debug_assert!(entries.is_power_of_two());
        let Core { qps, cqs, ahs, xrc, contexts, mem, sched, wheel, directory, .. } = &mut self.core;
        let count = entries as usize;
        match table {
            WorkerTable::Contexts => {
                heap::reserve(contexts, count)?;
                sched.reserve(count)
            }
            WorkerTable::QueuePairs => {
                heap::reserve(qps, count)?;
                directory.reserve(count)?;
                wheel.reserve(entries)
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
}
