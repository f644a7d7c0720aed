//! The bell of a worker's port: other workers ring it when they have put something in a lane and the worker sleeps.
//!
//! A word says whether the worker is about to sleep, an eventfd wakes it. The rules are those of
//! [`burst_shm::protocol`], with its models: the sleeper says so and looks at its lanes once more; who has put something
//! in a lane looks at the word afterwards. Only one of several ringers writes the eventfd, and nobody does while the worker
//! is awake.

use crate::PortError;
use burst_shm::protocol::{claim_wake, go_to_sleep, rise};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// See the module. Shared by the sleeper and all who may ring.
#[derive(Debug)]
pub(super) struct Bell {
    sleeping: AtomicU32,
    fd: OwnedFd,
}

impl Bell {
    pub fn new() -> Result<Bell, PortError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PortError::from_io("make an eventfd", errno.into()))?;
        Ok(Bell { sleeping: AtomicU32::new(0), fd })
    }

    /// After putting something in a lane: wakes its reader if that sleeps.
    pub fn ring(&self) {
        if claim_wake(&self.sleeping) {
            // The counter cannot be full: there is one ring for each sleep.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

/// The end of the worker that sleeps.
#[derive(Debug)]
pub(super) struct Sleeper {
    bell: Arc<Bell>,
    /// It has said that it sleeps, and not yet that it is awake.
    dozing: bool,
    /// Rings whose writing was not read yet; it may come late.
    owed: u64,
}

impl Sleeper {
    pub fn new(bell: Arc<Bell>) -> Sleeper {
        Sleeper { bell, dozing: false, owed: 0 }
    }

    /// The bell, for those who may ring it.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Readable when somebody has rung.
    pub fn fd(&self) -> RawFd {
        self.bell.fd.as_raw_fd()
    }

    /// Says that the worker is about to sleep. Look at every lane afterwards.
    pub fn lie_down(&mut self) {
        if self.dozing {
            // A ring since the last time is still to be read.
            self.owed += u64::from(rise(&self.bell.sleeping));
        }
        self.dozing = true;
        go_to_sleep(&self.bell.sleeping);
    }

    /// The worker is awake. Look at the lanes afterwards.
    pub fn rise(&mut self) {
        if self.dozing {
            self.dozing = false;
            self.owed += u64::from(rise(&self.bell.sleeping));
        }
        let mut written = [0; 8];
        // Nothing there yet: the ringer is about to write it.
        if self.owed > 0 && rustix::io::read(&self.bell.fd, &mut written).is_ok() {
            self.owed -= u64::from_ne_bytes(written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn has_rung(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(&bell.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn who_lies_down_twice_reads_both_rings() {
        let bell = Arc::new(Bell::new().unwrap());
        let mut sleeper = Sleeper::new(bell.clone());
        for _ in 0..2 {
            sleeper.lie_down();
            bell.ring();
        }
        sleeper.rise();
        assert!(!has_rung(&bell) && sleeper.owed == 0);
    }

    #[test]
    fn only_a_sleeper_is_rung_and_once() {
        let bell = Arc::new(Bell::new().unwrap());
        let mut sleeper = Sleeper::new(bell.clone());
        bell.ring();
        assert!(!has_rung(&bell));
        for _ in 0..2 {
            sleeper.lie_down();
            bell.ring();
            bell.ring();
            assert!(has_rung(&bell));
            sleeper.rise();
            assert!(!has_rung(&bell) && sleeper.owed == 0);
            bell.ring();
            assert!(!has_rung(&bell));
        }
    }

    #[test]
    fn a_ringer_that_writes_late_wakes_once_more_and_no_more() {
        let bell = Arc::new(Bell::new().unwrap());
        let mut sleeper = Sleeper::new(bell.clone());
        sleeper.lie_down();
        assert!(claim_wake(&bell.sleeping));
        sleeper.rise();
        assert_eq!(sleeper.owed, 1);
        sleeper.lie_down();
        bell.ring();
        sleeper.rise();
        assert_eq!(sleeper.owed, 1, "one of two was read");
        sleeper.lie_down();
        rustix::io::write(&bell.fd, &1u64.to_ne_bytes()).unwrap();
        assert!(has_rung(&bell));
        sleeper.rise();
        assert!(!has_rung(&bell) && sleeper.owed == 0);
    }
}
