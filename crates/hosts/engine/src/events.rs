//! Event pipes: completion channels and asynchronous events, as real descriptors.
//!
//! The daemon holds the write end, non-blocking; the application reads whole records. A record that does not fit is
//! kept and written later ([`EventPipe::retry`]), up to [`OWED_MAX`]; an application that never reads loses only its
//! own events beyond that, and the loss is counted by the caller.

use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Records kept for a full pipe.
pub const OWED_MAX: usize = 65_536;

/// The write end of an event pipe. Shared by workers; the lock is only taken while the pipe is full.
#[derive(Debug)]
pub struct EventPipe {
    fd: OwnedFd,
    backlog: AtomicBool,
    owed: Mutex<VecDeque<Vec<u8>>>,
}

/// The application does not read its events: one was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLost;

impl EventPipe {
    /// A pipe; returns the write side and the read end for the application.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> std::io::Result<(EventPipe, OwnedFd)> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&write)?;
        rustix::fs::fcntl_setfl(&write, flags | rustix::fs::OFlags::NONBLOCK)?;
        let pipe = EventPipe { fd: write, backlog: AtomicBool::new(false), owed: Mutex::new(VecDeque::new()) };
        Ok((pipe, read))
    }

    /// Writes one record, or keeps it for later.
    ///
    /// # Errors
    /// [`EventLost`] when too many are kept already.
    pub fn write(&self, record: &[u8]) -> Result<(), EventLost> {
        if !self.backlog.load(Ordering::Acquire) {
            match self.write_now(record) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {}
                // The reader closed its end: nobody wants the event.
                Err(_) => return Ok(()),
            }
        }
        let mut owed = self.owed.lock().unwrap_or_else(|e| e.into_inner());
        if owed.len() >= OWED_MAX {
            return Err(EventLost);
        }
        owed.push_back(record.to_vec());
        self.backlog.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether records wait for room.
    pub fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Acquire)
    }

    /// How many records, or groups of records, wait for room.
    pub fn owed(&self) -> usize {
        if self.has_backlog() { self.owed.lock().unwrap_or_else(|e| e.into_inner()).len() } else { 0 }
    }

    /// Writes what is owed, as far as there is room.
    pub fn retry(&self) {
        let mut owed = self.owed.lock().unwrap_or_else(|e| e.into_inner());
        while let Some(record) = owed.front() {
            if self.write_now(record) == Err(Errno::AGAIN) {
                return;
            }
            owed.pop_front();
        }
        self.backlog.store(false, Ordering::Release);
    }

    /// Drops what is owed.
    pub(crate) fn forget_owed(&self) {
        self.owed.lock().unwrap_or_else(|e| e.into_inner()).clear();
        self.backlog.store(false, Ordering::Release);
    }

    /// Lets `edit` take something out of each write that is owed, in order, until it returns false.
    pub(crate) fn edit_owed(&self, mut edit: impl FnMut(&mut Vec<u8>) -> bool) {
        let mut owed = self.owed.lock().unwrap_or_else(|e| e.into_inner());
        let _ = owed.iter_mut().all(&mut edit);
        owed.retain(|records| !records.is_empty());
        self.backlog.store(!owed.is_empty(), Ordering::Release);
    }

    /// Writes records again that were taken out of the pipe, in pieces of at most PIPE_BUF: they go before what is owed.
    pub(crate) fn put_back<'a>(&self, pieces: impl DoubleEndedIterator<Item = &'a [u8]>) {
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some_and(|piece| self.write_now(piece) != Err(Errno::AGAIN)) {
            pieces.next();
        }
        // There was room for them before; so the program has made its pipe smaller.
        let mut owed = self.owed.lock().unwrap_or_else(|e| e.into_inner());
        pieces.rev().for_each(|piece| owed.push_front(piece.to_vec()));
        self.backlog.store(!owed.is_empty(), Ordering::Release);
    }

    /// Records are at most PIPE_BUF bytes, so a write is whole or not at all.
    fn write_now(&self, record: &[u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::write(&self.fd, record) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl AsFd for EventPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_pipe_keeps_records_in_order() {
        let (pipe, read) = EventPipe::new().expect("pipe");
        let total = 20_000u64;
        for i in 0..total {
            pipe.write(&i.to_ne_bytes()).expect("kept");
        }
        assert!(pipe.has_backlog());
        let mut buffer = [0; 8];
        for i in 0..total {
            assert_eq!(rustix::io::read(&read, &mut buffer), Ok(8));
            assert_eq!(u64::from_ne_bytes(buffer), i);
            pipe.retry();
        }
        assert!(!pipe.has_backlog());
    }

    #[test]
    fn beyond_the_limit_is_lost_and_said() {
        let (pipe, _read) = EventPipe::new().expect("pipe");
        let lost = (0..OWED_MAX + 20_000).filter(|_| pipe.write(&[0; 8]) == Err(EventLost)).count();
        assert!(lost > 0);
    }

    #[test]
    fn closed_reader_is_no_error() {
        let (pipe, read) = EventPipe::new().expect("pipe");
        drop(read);
        assert_eq!(pipe.write(&[0; 8]), Ok(()));
    }
}
