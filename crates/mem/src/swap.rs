//! Sharing an application's memory with the daemon, inside the application.
use std::os::fd::BorrowedFd;

/// Most pieces of a registration; a range that needs more is reached by `process_vm` as a whole.
pub const PIECES_MAX: usize = crate::region::PIECES_MAX;

/// Where a part of a registered range can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In the file of [`Registration::fd`]`(fd)`, from `offset` on.
    Fd {
        /// Number of the descriptor in the registration.
        fd: usize,
        /// Byte offset in the file.
        offset: u64,
    },
    /// In this process's memory only: the daemon uses `process_vm_readv`/`writev`.
    ProcessVm,
}

/// A part of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address in this process.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Where the daemon finds it.
    pub kind: Kind,
}

/// Why a range cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// A part of the range is not mapped, or not readable, or not writable although writing was asked for: `EFAULT`.
    Fault,
    /// Length 0 or beyond the address space: `EINVAL`.
    BadRange,
}

/// A registered range. Give it back by [`release`], after the daemon has dropped the region.
#[derive(Debug)]
pub struct Registration(());

impl Registration {
    /// The parts, in order of address, joined without gaps.
    pub fn pieces(&self) -> &[Piece] {
        &[]
    }
    /// Number of descriptors.
    pub fn fds(&self) -> usize {
        0
    }
    /// Descriptor `i`, to be sent to the daemon at once.
    pub fn fd(&self, _i: usize) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Makes `[addr, addr + len)` reachable for the daemon. `write`: somebody will write through the region.
pub fn register(_addr: usize, _len: usize, _write: bool) -> Result<Registration, RegisterError> {
    Err(RegisterError::BadRange)
}

/// Ends a registration: pages that no other registration covers become private again.
pub fn release(_registration: Registration) {}
