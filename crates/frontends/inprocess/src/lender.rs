//! Lent mode: the daemon whose addresses this program shares (`BURST_MODE=lent`).
//!
//! One connection to the daemon brings a worker number, its sockets, and the settings that the engines of an address must have
//! in common. While it lasts the number is this program's. The daemon passes on what comes to QP1 for this program by a second
//! socket; when that one hangs up, the daemon is about to end. The keeper looks at both.

use burst_cc::{CcChoice, CcTable, ChoiceRank, PeerKind};
use burst_control::lend::LentWorker;
use burst_control::{Client, ControlError, Request, Response, socket_path};
use burst_engine::handover::Inbox;
use burst_engine::lent::{MAIL_MAX, receive_mail};
use burst_host::HostOptions;
use burst_host::host::WorkerPorts;
use burst_host::lent::LentIdentity;
use burst_port::{DescriptorStore, Encapsulation, PortSpec, open_lent};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the daemon may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Messages that are read in one look.
const MAILS_AT_ONCE: usize = 64;

/// What a look at the daemon has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderState {
    /// It serves.
    Serves,
    /// It will end soon; said once.
    Ends,
    /// The connection is gone, and with it the number.
    Gone,
}

/// The daemon, and what it has lent.
pub struct Lender {
    client: Client,
    mail: OwnedFd,
    /// The daemon has announced its end.
    ends: bool,
    worker: LentWorker,
    store: Arc<dyn DescriptorStore>,
}

/// The descriptors that the daemon has sent, by name.
#[derive(Debug)]
struct LentDescriptors(Mutex<HashMap<String, OwnedFd>>);

impl DescriptorStore for LentDescriptors {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.0.lock().ok()?.remove(name)
    }
    // The daemon has its own duplicates.
    fn store(&self, _name: &str, _fd: BorrowedFd<'_>) {}
    fn remove(&self, _name: &str) {}
    fn is_kept(&self) -> bool {
        true
    }
}

impl Lender {
    /// Asks the first daemon that answers for a worker number.
    ///
    /// # Errors
    /// A sentence: no daemon answers, or it lends nothing to this program.
    pub fn find() -> Result<Lender, String> {
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let mut failures = Vec::new();
        for path in socket_path::candidates() {
            match Client::connect_within(&path, program.trim(), Some(ANSWER_MAX)) {
                Ok(client) => return Lender::ask(client).map_err(|error| error.to_string()),
                Err(error) => failures.push(error.to_string()),
            }
        }
        Err(format!("lent mode needs a running daemon: {}", failures.join("; ")))
    }

    fn ask(mut client: Client) -> Result<Lender, ControlError> {
        let reply = client.call(&Request::Lend, &[])?;
        let Response::Lent(worker) = reply.response else {
            return Err(ControlError::Malformed("no worker number".into()));
        };
        let mut fds = reply.fds.into_iter();
        let mail = fds.next().ok_or_else(|| ControlError::Malformed("a worker number without descriptors".into()))?;
        let named = worker.names.iter().cloned().zip(fds).collect();
        let store = Arc::new(LentDescriptors(Mutex::new(named)));
        Ok(Lender { client, mail, ends: false, worker, store })
    }

    /// Where the tombstone file is.
    pub fn store(&self) -> &dyn DescriptorStore {
        &*self.store
    }

    /// Puts the daemon's settings in the place of this program's.
    pub fn settle(&self, options: &mut HostOptions) {
        let LentWorker { number, boot_id, selective, rto, window_bytes, cc, ports, .. } = &self.worker;
        options.lent = Some(LentIdentity { number: *number, boot_id: *boot_id });
        options.ports = ports.iter().map(|port| port.spec.clone()).collect();
        (options.selective, options.window_bytes) = (*selective, *window_bytes);
        options.rto = rto.parse().unwrap_or_default();
        options.cc = CcTable::default();
        for of in cc {
            let choice = ChoiceRank::from_code(of.rank).and_then(|rank| CcChoice::parse(&of.cc, 0, rank).ok());
            if let (Ok(kind), Some(choice)) = (PeerKind::parse(&of.kind), choice) {
                options.cc.set(Some(kind), choice);
            }
        }
    }

    /// Opens the ports on the sockets of the number.
    ///
    /// # Errors
    /// A sentence: the daemon's port is none that this program can open.
    pub fn ports(&self) -> Result<WorkerPorts, String> {
        let open = |port: &burst_control::lend::LentPort| {
            let spec = PortSpec::parse(&port.spec).map_err(|e| e.to_string())?.on_interface(&port.ifname);
            let number = self.worker.number as usize;
            open_lent(&spec, &Encapsulation::ROCE, number, &self.store).map_err(|e| e.to_string())
        };
        self.worker.ports.iter().map(open).collect()
    }

    /// Descriptors that are readable when there is news; a child process closes its copies.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let connection = self.client.socket().map(|fd| fd.as_raw_fd());
        connection.into_iter().chain((!self.ends).then(|| self.mail.as_raw_fd()))
    }

    /// Gives the worker its mail, and says how the daemon is.
    pub fn look(&mut self, inbox: &Inbox) -> LenderState {
        let mut byte = [0; 1];
        // It says nothing unasked: a readable connection has ended.
        let said = self.client.socket().map(|socket| recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK));
        if !matches!(said, Some(Err(Errno::AGAIN | Errno::INTR))) {
            return LenderState::Gone;
        }
        if self.ends {
            return LenderState::Serves;
        }
        let mut message = [0; MAIL_MAX];
        for _ in 0..MAILS_AT_ONCE {
            match recv(&self.mail, &mut message, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => {
                    self.ends = true;
                    return LenderState::Ends;
                }
                Ok((len, _)) => receive_mail(&message[..len.min(MAIL_MAX)], self.worker.ports.len(), inbox),
                Err(_) => break,
            }
        }
        LenderState::Serves
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        crate::process::note_lender([-1, -1].into_iter());
    }
}
