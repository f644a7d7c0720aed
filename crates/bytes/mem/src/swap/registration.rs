//! A registered range: pieces that the daemon maps, or reaches in the process, and the descriptors of their files.
//!
//! The layout is C's, because the libraries of a process pass registrations to one another (`registries`).

use super::PIECES_MAX;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How the daemon reaches a part of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum PieceSource {
    /// By mapping the file of [`Registration::fd`]`(fd)`, from `offset` on.
    Fd {
        /// Index of the descriptor in the registration.
        fd: usize,
        /// Offset in the file, in bytes.
        offset: u64,
    },
    /// In this process only, by system calls.
    InProcess,
}

/// A part of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Address in this process.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// How the daemon reaches it.
    pub kind: PieceSource,
}

/// The descriptor of a file that backs pieces of a registration.
#[derive(Debug)]
#[repr(C)]
pub(super) enum PieceFile {
    /// There is none.
    Absent,
    /// Of the pool, which exists as long as the process.
    Pool(i32),
    /// A duplicate of a descriptor of the program.
    Own(OwnedFd),
}

impl PieceFile {
    fn is_absent(&self) -> bool {
        matches!(self, PieceFile::Absent)
    }
}

/// A registered range. [`release`](super::release) ends it, after the daemon has dropped the region.
#[derive(Debug)]
#[repr(C)]
pub struct Registration {
    pieces: [Piece; PIECES_MAX],
    count: usize,
    fds: [PieceFile; PIECES_MAX],
    /// First and end address of the pages that are counted in the registry; both 0 when no page is the pool's.
    pub(super) lo: usize,
    pub(super) hi: usize,
    /// Whether the pages stay in the process only to keep the number of its mappings low.
    pub(super) spares_mappings: bool,
    /// The epoch of the registry in which the pages were counted; a fork begins a new epoch in the child.
    pub(super) epoch: u64,
}

impl Registration {
    /// The pieces, in order of address and without gaps.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
    /// Number of descriptors.
    pub fn fds(&self) -> usize {
        self.fds.iter().filter(|file| !file.is_absent()).count()
    }
    /// Descriptor `i`, to be sent to the daemon at once.
    pub fn fd(&self, i: usize) -> Option<BorrowedFd<'_>> {
        match self.fds.get(i)? {
            PieceFile::Absent => None,
            // SAFETY: the pool's descriptor is never closed by us while the process lives; if the program closes
            // it, sending fails or sends a file that the daemon refuses, for it checks seals and size.
            PieceFile::Pool(fd) => Some(unsafe { BorrowedFd::borrow_raw(*fd) }),
            PieceFile::Own(fd) => Some(fd.as_fd()),
        }
    }
    /// Whether the daemon must use system calls.
    pub fn is_in_process(&self) -> bool {
        self.pieces().iter().any(|p| p.kind == PieceSource::InProcess)
    }
    /// Whether it is reached in the process only to keep the number of the process's mappings low:
    /// [`register_swapped`](super::register_swapped) would swap the pages.
    pub fn spares_mappings(&self) -> bool {
        self.spares_mappings
    }
    pub(super) fn in_process(addr: usize, len: usize) -> Registration {
        let mut r = Registration::empty();
        r.pieces[0] = Piece { addr, len, kind: PieceSource::InProcess };
        r.count = 1;
        r
    }
    /// As this one, which stays in the process only to keep the number of mappings low.
    pub(super) fn sparing_mappings(self) -> Registration {
        Registration { spares_mappings: true, ..self }
    }
    pub(super) fn empty() -> Registration {
        let none = Piece { addr: 0, len: 0, kind: PieceSource::InProcess };
        Registration {
            pieces: [none; PIECES_MAX],
            count: 0,
            fds: [const { PieceFile::Absent }; PIECES_MAX],
            lo: 0,
            hi: 0,
            spares_mappings: false,
            epoch: 0,
        }
    }
    /// Appends a piece, or extends the last one if the file goes on there. False: there are [`PIECES_MAX`] pieces already.
    pub(super) fn push(&mut self, addr: usize, len: usize, offset: u64, source: PieceFile) -> bool {
        let same = |file: &PieceFile| match (file, &source) {
            (PieceFile::Pool(a), PieceFile::Pool(b)) => a == b,
            _ => false,
        };
        let known = self.fds.iter().position(same);
        if let (Some(fd), Some(last)) = (known, self.count.checked_sub(1)) {
            let last = &mut self.pieces[last];
            if last.kind == (PieceSource::Fd { fd, offset: offset.wrapping_sub(last.len as u64) }) {
                last.len += len;
                return true;
            }
        }
        let Some(fd) = known.or_else(|| self.fds.iter().position(PieceFile::is_absent)) else { return false };
        debug_assert!(
            self.count == 0 || self.pieces[self.count - 1].addr + self.pieces[self.count - 1].len == addr,
            "no gaps"
        );
        let Some(piece) = self.pieces.get_mut(self.count) else { return false };
        *piece = Piece { addr, len, kind: PieceSource::Fd { fd, offset } };
        if self.fds[fd].is_absent() {
            self.fds[fd] = source;
        }
        self.count += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::PAGE;
    use super::super::testing::memfd;
    use super::*;

    #[test]
    fn pieces_of_the_pool_that_follow_one_another_are_one() {
        let mut reg = Registration::empty();
        let mut push = |addr: usize, pages: usize, offset: u64, source| {
            assert!(reg.push(addr, pages * PAGE, offset, source));
            let last = reg.pieces()[reg.count - 1];
            (reg.pieces().len(), reg.fds(), last.addr, last.len / PAGE)
        };
        let own = || PieceFile::Own(memfd(1, 0));
        assert_eq!(push(0x1000, 1, 0x1000, PieceFile::Pool(7)), (1, 1, 0x1000, 1));
        assert_eq!(push(0x2000, 2, 0x2000, PieceFile::Pool(7)), (1, 1, 0x1000, 3), "goes on in the file");
        assert_eq!(push(0x4000, 1, 0x9000, PieceFile::Pool(7)), (2, 1, 0x4000, 1), "elsewhere in the file");
        assert_eq!(push(0x5000, 1, 0xa000, PieceFile::Pool(8)), (3, 2, 0x5000, 1), "another pool");
        assert_eq!(push(0x6000, 1, 0xb000, own()), (4, 3, 0x6000, 1));
        assert_eq!(push(0x7000, 1, 0xc000, own()), (5, 4, 0x7000, 1), "each file of the program is one for itself");
        assert_eq!(push(0x8000, 1, 0xd000, PieceFile::Pool(8)), (6, 4, 0x8000, 1));
        assert_eq!(push(0x9000, 1, 0x0, own()), (7, 5, 0x9000, 1));
        assert_eq!(push(0xa000, 1, 0xa000, PieceFile::Pool(7)), (8, 5, 0xa000, 1));
        assert_eq!(push(0xb000, 1, 0xb000, PieceFile::Pool(7)), (8, 5, 0xa000, 2));
        assert!(!reg.push(0xc000, PAGE, 0, PieceFile::Pool(7)) && !reg.push(0xc000, PAGE, 0, own()), "too many");
        assert_eq!((reg.pieces().len(), reg.fds()), (PIECES_MAX, 5));
        assert!((0..5).all(|i| reg.fd(i).is_some()) && reg.fd(5).is_none() && reg.fd(PIECES_MAX).is_none());
        assert!(!reg.is_in_process() && Registration::in_process(1, 2).is_in_process());
    }
}
