//! Wakes a sleeping worker when another worker has put packets in the queue to it.
//!
//! A word in memory says whether the worker is about to sleep; an eventfd wakes it. The rules are those of
//! [`burst_shm::protocol`], with its models: the sleeper sets the word and then looks at its queues once more; a sender puts
//! packets in a queue and then looks at the word. Of several senders only one writes the eventfd, and none does while the worker
//! is awake.

use crate::PortError;
use burst_shm::protocol::{claim_wake, go_to_sleep, rise};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The word and the eventfd of one worker, shared by the worker and all senders.
#[derive(Debug)]
pub struct WorkerWakeup {
    sleeping: AtomicU32,
    fd: OwnedFd,
}

impl WorkerWakeup {
    /// A word of a worker that does not sleep.
    ///
    /// # Errors
    /// [`PortError`]: no descriptor for the eventfd.
    pub fn new() -> Result<WorkerWakeup, PortError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PortError::from_io("make an eventfd", errno.into()))?;
        Ok(WorkerWakeup { sleeping: AtomicU32::new(0), fd })
    }

    /// Wakes the worker if it sleeps. To be called after putting packets in the queue.
    pub fn wake(&self) {
        if claim_wake(&self.sleeping) {
            // The counter cannot overflow: there is one write for each sleep.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

/// The sleeping worker's side of a [`WorkerWakeup`].
#[derive(Debug)]
pub struct WorkerSleep {
    wakeup: Arc<WorkerWakeup>,
    /// Whether the worker has announced a sleep and not yet its end.
    announced: bool,
    /// Writes to the eventfd that were claimed and not read yet; a write may come after the worker has woken.
    unread: u64,
}

impl WorkerSleep {
    /// The side of the worker that `wakeup` wakes.
    pub fn new(wakeup: Arc<WorkerWakeup>) -> WorkerSleep {
        WorkerSleep { wakeup, announced: false, unread: 0 }
    }

    /// The part that senders share.
    pub fn wakeup(&self) -> &Arc<WorkerWakeup> {
        &self.wakeup
    }

    /// The descriptor that is readable when a sender has woken the worker.
    pub fn fd(&self) -> RawFd {
        self.wakeup.fd.as_raw_fd()
    }

    /// Announces that the worker is about to sleep. The caller looks at every queue afterwards.
    pub fn enter(&mut self) {
        if self.announced {
            // A wake since the last announcement is still to be read.
            self.unread += u64::from(rise(&self.wakeup.sleeping));
        }
        self.announced = true;
        go_to_sleep(&self.wakeup.sleeping);
    }

    /// Announces that the worker is awake. The caller looks at the queues afterwards.
    pub fn leave(&mut self) {
        if self.announced {
            self.announced = false;
            self.unread += u64::from(rise(&self.wakeup.sleeping));
        }
        let mut written = [0; 8];
        // The read fails while the sender that claimed the wake has not written yet.
        if self.unread > 0 && rustix::io::read(&self.wakeup.fd, &mut written).is_ok() {
            let count = u64::from_ne_bytes(written);
            debug_assert!(count <= self.unread, "more writes than claimed wakes");
            self.unread = self.unread.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn was_written(wakeup: &WorkerWakeup) -> bool {
        let mut fds = [PollFd::new(&wakeup.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_worker_that_enters_sleep_twice_reads_both_wakes() {
        let wakeup = Arc::new(WorkerWakeup::new().unwrap());
        let mut sleep = WorkerSleep::new(wakeup.clone());
        for _ in 0..2 {
            sleep.enter();
            wakeup.wake();
        }
        sleep.leave();
        assert!(!was_written(&wakeup) && sleep.unread == 0);
    }

    #[test]
    fn only_a_sleeping_worker_is_woken_and_only_once() {
        let wakeup = Arc::new(WorkerWakeup::new().unwrap());
        let mut sleep = WorkerSleep::new(wakeup.clone());
        wakeup.wake();
        assert!(!was_written(&wakeup));
        for _ in 0..2 {
            sleep.enter();
            wakeup.wake();
            wakeup.wake();
            assert!(was_written(&wakeup));
            sleep.leave();
            assert!(!was_written(&wakeup) && sleep.unread == 0);
            wakeup.wake();
            assert!(!was_written(&wakeup));
        }
    }

    #[test]
    fn a_late_write_wakes_the_worker_once_more_and_only_once() {
        let wakeup = Arc::new(WorkerWakeup::new().unwrap());
        let mut sleep = WorkerSleep::new(wakeup.clone());
        sleep.enter();
        assert!(claim_wake(&wakeup.sleeping));
        sleep.leave();
        assert_eq!(sleep.unread, 1);
        sleep.enter();
        wakeup.wake();
        sleep.leave();
        assert_eq!(sleep.unread, 1, "one of two writes was read");
        sleep.enter();
        rustix::io::write(&wakeup.fd, &1u64.to_ne_bytes()).unwrap();
        assert!(was_written(&wakeup));
        sleep.leave();
        assert!(!was_written(&wakeup) && sleep.unread == 0);
    }
}
