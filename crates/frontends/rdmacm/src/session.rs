//! This process's session with the daemon: one connection for all ids, and the devices opened for them.
//!
//! A session belongs to the process that made it. A child after fork makes its own when it needs one and never takes the parent's
//! locks; calls on the parent's objects fail in the child (EIO). A session is never freed: rdma_get_devices(3) says that
//! devices stay open as long as the library is loaded. When the daemon ends, calls on the session's objects fail as well, and
//! the next call that creates an object opens a session with the new daemon.
//!
//! [`DaemonSession::ask`] waits for a reply, one caller at a time. [`DaemonSession::send`] does not wait, and makes no system
//! call while the daemon is awake.

use crate::boundary::{EIO, ENODEV, Errno, Outcome};
use crate::device::Opened;
use crate::id::Id;
use crate::ids::IdTable;
use crate::sys;
use burst_client::ClientError;
use burst_client::raw::place::HostPlace;
use burst_client::raw::session::CmControl;
use burst_control::client::ClientReply;
use burst_control::cm::{CmCommand, CmId, CmReply};
use burst_control::{ControlError, Request};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static CURRENT: AtomicPtr<DaemonSession> = AtomicPtr::new(null_mut());

/// A session with the daemon.
pub struct DaemonSession {
    connection: CmControl,
    /// Devices opened so far.
    pub devices: Opened,
    ids: IdTable<Id>,
    next_channel: AtomicU32,
}

/// This process's session.
///
/// # Errors
/// ENODEV if no daemon answers; `libibverbs` prints the reason to stderr, once.
pub fn session() -> Outcome<&'static DaemonSession> {
    let found = CURRENT.load(Ordering::Acquire);
    // SAFETY: sessions are never freed. Acquire pairs with the exchange below.
    if let Some(session) = unsafe { found.as_ref() }
        && session.is_alive()
        && session.connection.is_connected()
    {
        return Ok(session);
    }
    let made = Box::into_raw(Box::new(DaemonSession::connect()?));
    match CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from now on.
        Ok(_) => Ok(unsafe { &*made }),
        Err(other) => {
            // SAFETY: no other thread has seen `made`; `other` is never freed.
            unsafe {
                drop(Box::from_raw(made));
                Ok(&*other)
            }
        }
    }
}

/// Lets `libibverbs` print to stderr why there is no device.
fn explain() {
    // SAFETY: NULL is allowed; the list is given back at once.
    unsafe {
        let list = sys::ibv_get_device_list(null_mut());
        if !list.is_null() {
            sys::ibv_free_device_list(list);
        }
    }
}

/// The errno of a failed call. If the connection fails, the daemon has ended: EIO, whatever errno the system call had.
fn errno_of(error: ClientError) -> Errno {
    match error {
        ClientError::Control(ControlError::Io(_)) => EIO,
        other => other.into(),
    }
}

impl DaemonSession {
    fn connect() -> Outcome<DaemonSession> {
        let opened =
            HostPlace::of_connections().into_iter().map(|place| CmControl::open(&place)).find_map(
                |result| match result {
                    Ok(connection) => Some(Ok(connection)),
                    Err(ClientError::Control(
                        ControlError::Connect { .. }
                        | ControlError::Untrusted(_)
                        | ControlError::Version { .. }
                        | ControlError::Closed,
                    )) => None,
                    Err(e) => Some(Err(e)),
                },
            );
        let Some(opened) = opened else {
            explain();
            return Err(ENODEV);
        };
        let next_channel = AtomicU32::new(1);
        let (devices, ids) = (Opened::default(), IdTable::default());
        Ok(DaemonSession { connection: opened.map_err(errno_of)?, devices, ids, next_channel })
    }

    /// Whether this process made the session.
    pub fn is_alive(&self) -> bool {
        self.connection.is_alive()
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The daemon's refusal, or EIO.
    pub fn call(&self, request: &Request) -> Outcome<ClientReply> {
        self.connection.call(request).map_err(errno_of)
    }

    /// Sends commands as one request, which the daemon executes in order. Returns the last command's reply.
    ///
    /// # Errors
    /// The first refusal, or EIO.
    pub fn ask(&self, commands: Vec<CmCommand>) -> Outcome<CmReply> {
        self.connection.ask(commands).map_err(errno_of)
    }

    /// Sends commands and does not wait, unless the ring of commands is full; failures become events.
    ///
    /// # Errors
    /// EIO when the daemon has ended.
    pub fn send(&self, commands: &[CmCommand]) -> Outcome<()> {
        self.connection.send(commands).map_err(errno_of)
    }

    /// A channel number that was not used before.
    pub fn channel_number(&self) -> u32 {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a new id. A number is used again only after all others, so that late events find no other id.
    pub fn id_number(&self) -> CmId {
        self.ids.number()
    }

    /// Enters an id under its number.
    pub fn put(&self, number: CmId, id: NonNull<Id>) {
        self.ids.put(number, id);
    }

    /// Removes an id: later events of it are dropped.
    pub fn remove(&self, number: CmId) {
        self.ids.remove(number);
    }

    /// The number of some id that `accepts` accepts.
    pub fn find(&self, accepts: impl Fn(&Id) -> bool) -> Option<CmId> {
        self.ids.find(accepts)
    }

    /// Calls `inside` with an id, which cannot be destroyed meanwhile.
    pub fn with<R>(&self, number: CmId, inside: impl FnOnce(&Id) -> R) -> Option<R> {
        self.ids.with(number, inside)
    }
}
