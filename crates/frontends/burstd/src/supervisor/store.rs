//! The descriptor store, as the daemon uses it: descriptors that its supervisor keeps for its successor.
//!
//! A daemon without a supervisor has no store. The number of the socket to the supervisor is in the environment variable
//! [`SUPERVISOR_FD`].

use super::message::{SupervisorMessage, receive, send};
use super::panic::record_panics;
use super::{PANIC, REPORTS, report};
use burst_control::monitor::DaemonCrashes;
use burst_port::DescriptorStore;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tracing::warn;

/// Environment variable with the number of the descriptor by which the daemon reaches its supervisor.
pub const SUPERVISOR_FD: &str = "BURST_SUPERVISOR_FD";

/// Environment variable with the directory of crash reports.
pub const REPORTS_DIRECTORY: &str = "BURST_SUPERVISOR_REPORTS";

/// The daemon's end of the descriptor store.
#[derive(Debug)]
pub struct SupervisorStore {
    supervisor: OwnedFd,
    /// Descriptors of the predecessor that were not taken yet.
    inherited: Mutex<BTreeMap<String, OwnedFd>>,
    /// Daemons that fell since the supervisor started.
    crashes: u64,
    /// Whether a warning was logged that the supervisor cannot be reached.
    warned: AtomicBool,
}

impl SupervisorStore {
    /// Gets the descriptors from the supervisor; `None` if this process has no supervisor. `settings` decides which sockets
    /// there are: after a change the supervisor gives none of the predecessor's.
    ///
    /// # Errors
    /// A sentence if the supervisor does not answer as it should.
    pub fn connect(settings: &str) -> Result<Option<SupervisorStore>, String> {
        let Some(number) = std::env::var_os(SUPERVISOR_FD) else { return Ok(None) };
        let number = number.to_str().and_then(|text| text.parse().ok());
        let wrong = |what: &str| format!("{SUPERVISOR_FD}: {what}; the variable is for burstd --guarded only");
        let supervisor = number.and_then(crate::inherited).ok_or_else(|| wrong("no descriptor has this number"))?;
        let _ = rustix::io::fcntl_setfd(&supervisor, FdFlags::CLOEXEC);
        let setup = SupervisorMessage::Setup(settings.to_owned());
        send(&supervisor, &setup, None).map_err(|e| wrong(&e.to_string()))?;
        let mut inherited = BTreeMap::new();
        loop {
            match receive(&supervisor).map_err(|e| wrong(&e.to_string()))? {
                Some((SupervisorMessage::Stored(name), Some(fd))) => drop(inherited.insert(name, fd)),
                Some((SupervisorMessage::End(crashes), _)) => {
                    let inherited = Mutex::new(inherited);
                    return Ok(Some(SupervisorStore {
                        supervisor,
                        inherited,
                        crashes,
                        warned: AtomicBool::new(false),
                    }));
                }
                _ => return Err(wrong("the supervisor does not answer")),
            }
        }
    }

    /// What the daemon shows of its predecessors. Its own panic will be recorded for its successor.
    pub fn crashes(&self) -> DaemonCrashes {
        match record_panics() {
            Ok(fd) => self.store(PANIC, fd.as_fd()),
            Err(error) => warn!("a panic of this daemon will not be recorded: {error}"),
        }
        DaemonCrashes {
            guarded: true,
            crashes: self.crashes,
            directory: std::env::var(REPORTS_DIRECTORY).ok(),
            reports: self.take(REPORTS).map(report::read_memfd).unwrap_or_default(),
        }
    }

    /// Tells the supervisor that the daemon serves.
    pub fn serving(&self) {
        self.tell(&SupervisorMessage::Serving, None);
    }

    fn tell(&self, message: &SupervisorMessage, fd: Option<BorrowedFd<'_>>) {
        if let Err(error) = send(self.supervisor.as_fd(), message, fd)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            warn!("the supervisor cannot be reached ({error}): this daemon has no successor if it falls");
        }
    }
}

impl DescriptorStore for SupervisorStore {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn store(&self, name: &str, fd: BorrowedFd<'_>) {
        self.tell(&SupervisorMessage::Store(name.to_owned()), Some(fd));
    }

    fn remove(&self, name: &str) {
        self.tell(&SupervisorMessage::Remove(name.to_owned()), None);
    }

    fn is_kept(&self) -> bool {
        // The supervisor's end of the socket ends with its process.
        let mut socket = [PollFd::new(&self.supervisor, PollFlags::empty())];
        let hung_up = PollFlags::HUP | PollFlags::ERR;
        poll(&mut socket, Some(&Timespec::default())).is_ok() && !socket[0].revents().intersects(hung_up)
    }
}
