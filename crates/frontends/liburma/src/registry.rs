//! The registry of memory that this library shares with Burst's libibverbs in one process (`burst_mem::swap`).

use burst_mem::swap::{self, RegistryTable};

/// The functions of this library's registry of memory.
#[unsafe(no_mangle)]
pub extern "C" fn burst_memory_registry() -> *const RegistryTable {
    swap::own_registry()
}
