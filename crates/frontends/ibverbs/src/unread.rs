//! Unread events of destroyed objects are taken out of their pipe.
//!
//! As in the kernel (`ib_uverbs_release_ucq`, `ib_uverbs_release_uevent`), an event that no program has read goes with its
//! object: otherwise the descriptor stays readable with nothing to read, and a blocking `ibv_get_cq_event` blocks. The daemon
//! writes into the pipe, and the library has its read end, which it opens again for both directions
//! ([`burst_control::events::EventPipe::new_editable`]). [`UnreadEvents::purge`] then reads each record once and writes back
//! those that stay.

use burst_client::raw::ended_pipe::open_again;
use burst_client::raw::lock::lock;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The records of a pipe that found no room when they were written back: the daemon had filled the pipe meanwhile. They are the
/// oldest.
#[derive(Debug, Default)]
pub struct UnreadEvents<const N: usize> {
    records: Mutex<VecDeque<[u8; N]>>,
    has_records: AtomicBool,
}

impl<const N: usize> UnreadEvents<N> {
    /// Takes the oldest record that is not in the pipe.
    pub fn pop(&self) -> Option<[u8; N]> {
        // Acquire: pairs with the store in `purge`.
        if !self.has_records.load(Ordering::Acquire) {
            return None;
        }
        let mut records = lock(&self.records);
        let record = records.pop_front();
        self.has_records.store(!records.is_empty(), Ordering::Release);
        record
    }

    /// Removes the records for which `is_gone` holds from the pipe whose read end is `fd`. The others keep their order. Where
    /// `/proc` is missing nothing is removed, and readers skip those records.
    pub fn purge(&self, fd: RawFd, is_gone: impl Fn(&[u8; N]) -> bool) {
        // Two purges at the same time would exchange records.
        let mut records = lock(&self.records);
        records.retain(|record| !is_gone(record));
        if let Some(unread) = unread_bytes(fd).filter(|bytes| *bytes >= N)
            && let Some(mut pipe) = open_again(fd)
        {
            for _ in 0..unread / N {
                let mut record = [0; N];
                // A thread of the program may read at the same time, and find the pipe empty or take what was left.
                if pipe.read_exact(&mut record).is_err() {
                    break;
                }
                if is_gone(&record) {
                    continue;
                }
                // What does not fit, and all that follows it, stays here.
                if !records.is_empty() || pipe.write_all(&record).is_err() {
                    records.push_back(record);
                }
            }
        }
        self.has_records.store(!records.is_empty(), Ordering::Release);
    }
}

/// Bytes in the pipe.
fn unread_bytes(fd: RawFd) -> Option<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let rc = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) };
    usize::try_from(bytes).ok().filter(|_| rc == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::events::{EventPipe, EventSink};
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn read(fd: &OwnedFd) -> Vec<u64> {
        let mut found = Vec::new();
        while unread_bytes(fd.as_raw_fd()).is_some_and(|bytes| bytes >= 8) {
            let mut record = [0; 8];
            let mut pipe = File::from(fd.try_clone().expect("a descriptor"));
            pipe.read_exact(&mut record).expect("a record");
            found.push(u64::from_ne_bytes(record));
        }
        found
    }

    #[test]
    fn records_of_one_object_go_and_others_keep_their_order() {
        let (pipe, fd) = EventPipe::new_editable().expect("a pipe");
        for cookie in [1u64, 2, 1, 3, 1, 4] {
            pipe.write(&cookie.to_ne_bytes()).expect("written");
        }
        let unread = UnreadEvents::default();
        unread.purge(fd.as_raw_fd(), |record| *record == 1u64.to_ne_bytes());
        assert_eq!(read(&fd), [2, 3, 4]);
        assert_eq!(unread.pop(), None);
        unread.purge(fd.as_raw_fd(), |_| true);
        assert_eq!(read(&fd), [0u64; 0]);
    }

    #[test]
    fn a_full_pipe_loses_nothing() {
        let (pipe, fd) = EventPipe::new_editable().expect("a pipe");
        let mut written = 0u64;
        while !pipe.has_backlog() {
            pipe.write(&written.to_ne_bytes()).expect("written");
            written += 1;
        }
        let unread = UnreadEvents::default();
        unread.purge(fd.as_raw_fd(), |record| u64::from_ne_bytes(*record) % 2 == 1);
        pipe.retry();
        let mut found: Vec<u64> = std::iter::from_fn(|| unread.pop()).map(u64::from_ne_bytes).collect();
        found.extend(read(&fd));
        let mut expected: Vec<u64> = (0..written).filter(|number| number % 2 == 0).collect();
        // The last record waited in the daemon.
        if written.is_multiple_of(2) {
            expected.push(written - 1);
        }
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
