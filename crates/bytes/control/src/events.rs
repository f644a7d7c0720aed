//! Sinks of events: where records for a program go (completion events, asynchronous events, events of connections).
//!
//! [`EventSink`] is the interface. [`EventPipe`] is a real descriptor: the daemon holds the write end, non-blocking, and the
//! program reads whole records, by `poll` and `read` as verbs promise. [`EventQueue`] keeps records in memory, for the
//! simulator, and for an engine in the program's own process. A sink that is full keeps records as its *backlog* up to
//! [`BACKLOG_MAX`]; a program that never reads loses only its own events beyond that, and the caller counts the loss.

use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Records, or groups of records, that a full sink keeps.
pub const BACKLOG_MAX: usize = 65_536;

/// A program does not read its events: one was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLost;

/// Takes the records of a program's events, in order. Shared by workers.
pub trait EventSink: Send + Sync + std::fmt::Debug {
    /// Writes one record, or adds it to the backlog.
    ///
    /// # Errors
    /// [`EventLost`] when the backlog is full.
    fn write(&self, record: &[u8]) -> Result<(), EventLost>;
    /// Whether records wait for room: [`EventSink::retry`] must be called now and then.
    fn has_backlog(&self) -> bool;
    /// Writes the backlog, as far as there is room.
    fn retry(&self);
}

/// Records in memory, in the order of writing.
#[derive(Debug, Default)]
pub struct EventQueue {
    records: Mutex<VecDeque<Vec<u8>>>,
}

impl EventQueue {
    /// An empty queue.
    pub fn new() -> EventQueue {
        EventQueue::default()
    }

    fn records(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.records.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the oldest record.
    pub fn pop(&self) -> Option<Vec<u8>> {
        self.records().pop_front()
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records().len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.records().is_empty()
    }
}

impl EventSink for EventQueue {
    fn write(&self, record: &[u8]) -> Result<(), EventLost> {
        let mut records = self.records();
        if records.len() >= BACKLOG_MAX {
            return Err(EventLost);
        }
        records.push_back(record.to_vec());
        Ok(())
    }

    // Every kept record can be read at once, so nothing waits for room.
    fn has_backlog(&self) -> bool {
        false
    }

    fn retry(&self) {}
}

/// Whether event pipes keep a read end of their own.
static KEEPS_READERS: AtomicBool = AtomicBool::new(false);

/// Lets all later event pipes of this process keep a read end of their own. For a host inside a program: a program that has
/// closed its end would otherwise get SIGPIPE, which ends it.
pub fn keep_readers() {
    // Relaxed: called before there is a host.
    KEEPS_READERS.store(true, Ordering::Relaxed);
}

/// The write end of an event pipe. The lock is only taken while the pipe is full.
#[derive(Debug)]
pub struct EventPipe {
    fd: OwnedFd,
    /// See [`keep_readers`].
    _reader: Option<OwnedFd>,
    has_backlog: AtomicBool,
    backlog: Mutex<VecDeque<Vec<u8>>>,
}

impl EventSink for EventPipe {
    fn write(&self, record: &[u8]) -> Result<(), EventLost> {
        if !self.has_backlog() {
            match self.write_now(record) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => {}
                // The program has closed its end and wants no more events.
                Err(_) => return Ok(()),
            }
        }
        let mut backlog = self.backlog();
        if backlog.len() >= BACKLOG_MAX {
            return Err(EventLost);
        }
        backlog.push_back(record.to_vec());
        self.has_backlog.store(true, Ordering::Release);
        Ok(())
    }

    fn has_backlog(&self) -> bool {
        self.has_backlog.load(Ordering::Acquire)
    }

    fn retry(&self) {
        let mut backlog = self.backlog();
        while let Some(record) = backlog.front() {
            if self.write_now(record) == Err(Errno::AGAIN) {
                return;
            }
            backlog.pop_front();
        }
        self.has_backlog.store(false, Ordering::Release);
    }
}

impl EventPipe {
    /// A pipe; returns the write side and the read end for the program.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> std::io::Result<(EventPipe, OwnedFd)> {
        burst_base::fault::check()?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&write)?;
        rustix::fs::fcntl_setfl(&write, flags | rustix::fs::OFlags::NONBLOCK)?;
        let reader = if KEEPS_READERS.load(Ordering::Relaxed) { Some(read.try_clone()?) } else { None };
        let pipe =
            EventPipe { fd: write, _reader: reader, has_backlog: AtomicBool::new(false), backlog: Mutex::default() };
        Ok((pipe, read))
    }

    /// A pipe as [`EventPipe::new`] makes it, whose read end the program may open again for writing by `/proc/self/fd`, although
    /// the daemon is another user: the library takes the records of a destroyed object out and writes the others back, and keeps
    /// the pipe of a daemon that has ended from hanging up for ever. Only the owners of a descriptor reach a pipe, whatever its
    /// mode; what a program writes there, it reads itself.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new_editable() -> std::io::Result<(EventPipe, OwnedFd)> {
        let (pipe, read) = EventPipe::new()?;
        rustix::fs::fchmod(&read, rustix::fs::Mode::from_raw_mode(0o666))?;
        Ok((pipe, read))
    }

    fn backlog(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.backlog.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Records, or groups of records, that wait for room.
    pub fn backlog_len(&self) -> usize {
        if self.has_backlog() { self.backlog().len() } else { 0 }
    }

    /// Drops the backlog.
    pub fn drop_backlog(&self) {
        self.backlog().clear();
        self.has_backlog.store(false, Ordering::Release);
    }

    /// Lets `edit` take records out of each write of the backlog, in order, until it returns false.
    pub fn edit_backlog(&self, mut edit: impl FnMut(&mut Vec<u8>) -> bool) {
        let mut backlog = self.backlog();
        let _ = backlog.iter_mut().all(&mut edit);
        backlog.retain(|records| !records.is_empty());
        self.has_backlog.store(!backlog.is_empty(), Ordering::Release);
    }

    /// Writes records again that were taken out of the pipe, in pieces of at most PIPE_BUF bytes. They go before the backlog.
    pub fn put_back<'a>(&self, pieces: impl DoubleEndedIterator<Item = &'a [u8]>) {
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some_and(|piece| self.write_now(piece) != Err(Errno::AGAIN)) {
            pieces.next();
        }
        // There was room for them before; if pieces are left, the program has made its pipe smaller.
        let mut backlog = self.backlog();
        pieces.rev().for_each(|piece| backlog.push_front(piece.to_vec()));
        self.has_backlog.store(!backlog.is_empty(), Ordering::Release);
    }

    /// Records are at most PIPE_BUF bytes, so a write is whole or not at all (pipe(7)).
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
    use std::os::fd::AsRawFd;

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
    fn a_record_beyond_the_limit_is_lost_and_reported() {
        let (pipe, _read) = EventPipe::new().expect("pipe");
        let lost = (0..BACKLOG_MAX + 20_000).filter(|_| pipe.write(&[0; 8]) == Err(EventLost)).count();
        assert!(lost > 0);
    }

    /// Reads the records of `N` bytes that are in the pipe.
    fn read_all<const N: usize>(read: &OwnedFd) -> Vec<[u8; N]> {
        let flags = rustix::fs::fcntl_getfl(read).expect("flags");
        rustix::fs::fcntl_setfl(read, flags | rustix::fs::OFlags::NONBLOCK).expect("non-blocking");
        let (mut all, mut record) = (Vec::new(), [0; N]);
        while rustix::io::read(read, &mut record) == Ok(N) {
            all.push(record);
        }
        all
    }

    /// A full pipe, and the number of its records, with a backlog of `waiting` records, numbered on.
    fn full(waiting: u64) -> (EventPipe, OwnedFd, u64) {
        let (pipe, read) = EventPipe::new().expect("pipe");
        let mut count = 0u64;
        while !pipe.has_backlog() {
            pipe.write(&count.to_ne_bytes()).expect("kept");
            count += 1;
        }
        for i in 1..waiting {
            pipe.write(&(count - 1 + i).to_ne_bytes()).expect("kept");
        }
        assert_eq!(pipe.backlog_len() as u64, waiting);
        (pipe, read, count - 1)
    }

    #[test]
    fn a_dropped_backlog_is_never_written() {
        let (pipe, read, count) = full(3);
        pipe.drop_backlog();
        assert_eq!((pipe.has_backlog(), pipe.backlog_len()), (false, 0));
        assert_eq!(read_all::<8>(&read).len() as u64, count);
        pipe.retry();
        pipe.write(&[7; 8]).expect("room");
        assert_eq!(read_all(&read), [[7; 8]]);
    }

    #[test]
    fn records_can_be_taken_out_of_the_backlog_until_enough_are_found() {
        let (pipe, read, count) = full(4);
        let mut seen = Vec::new();
        pipe.edit_backlog(|record| {
            seen.push(u64::from_ne_bytes(record[..].try_into().expect("8 bytes")));
            record.clear();
            seen.len() < 2
        });
        assert_eq!(seen, [count, count + 1]);
        assert_eq!((pipe.has_backlog(), pipe.backlog_len()), (true, 2));
        assert_eq!(read_all::<8>(&read).len() as u64, count);
        pipe.retry();
        assert_eq!(read_all(&read), [(count + 2).to_ne_bytes(), (count + 3).to_ne_bytes()]);

        let (pipe, _read, _) = full(4);
        pipe.edit_backlog(|record| {
            record.clear();
            true
        });
        assert_eq!((pipe.has_backlog(), pipe.backlog_len()), (false, 0), "nothing is left to retry");
    }

    #[test]
    fn records_that_are_put_back_come_before_the_backlog() {
        let (pipe, read, count) = full(1);
        let first: [_; 2] = [[1; 8], [2; 8]];
        assert_eq!(read_all::<8>(&read).len() as u64, count);
        pipe.put_back(first.iter().map(|record| &record[..]));
        assert_eq!((read_all(&read), pipe.backlog_len()), (first.to_vec(), 1), "there was room");

        let (pipe, read, count) = full(1);
        pipe.put_back(first.iter().map(|record| &record[..]));
        assert_eq!((read_all::<8>(&read).len() as u64, pipe.backlog_len()), (count, 3));
        pipe.retry();
        assert_eq!(read_all(&read), [first[0], first[1], count.to_ne_bytes()]);

        let (pipe, _read) = EventPipe::new().expect("pipe");
        pipe.put_back(first.iter().map(|record| &record[..]));
        assert!(!pipe.has_backlog(), "an empty pipe takes all");
    }

    #[test]
    fn only_a_pipe_with_records_in_the_backlog_has_one() {
        let (pipe, _read) = EventPipe::new().expect("pipe");
        pipe.write(&[0; 8]).expect("room");
        assert_eq!((pipe.has_backlog(), pipe.backlog_len()), (false, 0));
        assert_eq!(pipe.as_fd().as_raw_fd(), pipe.fd.as_raw_fd());
    }

    #[test]
    fn closed_reader_is_no_error() {
        let (pipe, read) = EventPipe::new().expect("pipe");
        drop(read);
        assert_eq!(pipe.write(&[0; 8]), Ok(()));
    }

    #[test]
    fn a_queue_gives_records_in_order_and_is_bounded() {
        let queue = EventQueue::new();
        let sink: &dyn EventSink = &queue;
        assert_eq!((queue.pop(), queue.is_empty()), (None, true));
        assert_eq!((sink.write(&[9]), queue.is_empty(), queue.pop()), (Ok(()), false, Some(vec![9])));
        for i in 0..BACKLOG_MAX as u64 {
            assert_eq!(sink.write(&i.to_ne_bytes()), Ok(()));
        }
        assert_eq!((sink.write(&[0; 8]), queue.len()), (Err(EventLost), BACKLOG_MAX));
        assert!(!sink.has_backlog(), "all records can be read: there is nothing to retry");
        for i in 0..BACKLOG_MAX as u64 {
            assert_eq!(queue.pop(), Some(i.to_ne_bytes().to_vec()));
        }
        assert_eq!((queue.pop(), sink.write(&[1])), (None, Ok(())));
    }
}
