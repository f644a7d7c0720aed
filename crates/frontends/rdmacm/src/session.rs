//! This process's conversation with the daemon: one connection for all ids, and the devices opened for them.
//!
//! A session belongs to the process that made it. A child after fork finds its [`LifePage`] wiped, makes its own when it
//! needs one, and never touches the parent's locks; the parent's objects are dead in the child (EIO). Sessions are never
//! freed: devices stay open as long as the library is loaded, as its manual says. When the daemon goes, the session's objects
//! are dead, too, and who asks for new ones gets a new session with the daemon's successor.
//!
//! Two ways lead to the daemon: [`Session::call`] waits for an answer, one caller at a time; [`Session::tell`] waits
//! for none, and is no system call while the daemon is awake.

use crate::device::Opened;
use crate::door::{EIO, ENODEV, ENOMEM, Errno, Outcome, lock};
use crate::id::Id;
use crate::ids::IdTable;
use crate::sys;
use burst_control::client::ClientReply;
use burst_control::cm::{CmCommand, CmId, CmReply};
use burst_control::{Client, CommandSender, ControlError, Request, Response, socket_path};
use burst_shm::life::LifePage;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static CURRENT: AtomicPtr<Session> = AtomicPtr::new(null_mut());

/// See the module.
pub struct Session {
    life: LifePage,
    client: Mutex<Client>,
    sender: CommandSender,
    /// Devices opened so far.
    pub devices: Opened,
    ids: IdTable,
    next_channel: AtomicU32,
}

/// This process's session.
///
/// # Errors
/// ENODEV when no daemon answers; the sentence that says why comes from `libibverbs`, once.
pub fn session() -> Outcome<&'static Session> {
    let found = CURRENT.load(Ordering::Acquire);
    // SAFETY: sessions are never freed. Acquire pairs with the exchange below.
    if let Some(session) = unsafe { found.as_ref() }
        && session.is_alive()
        && session.sender.is_connected()
    {
        return Ok(session);
    }
    let made = Box::into_raw(Box::new(Session::connect()?));
    match CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from now on.
        Ok(_) => Ok(unsafe { &*made }),
        Err(other) => {
            // SAFETY: nobody else has seen `made`; `other` is never freed.
            unsafe {
                drop(Box::from_raw(made));
                Ok(&*other)
            }
        }
    }
}

fn program_name() -> String {
    std::fs::read_to_string("/proc/self/comm").map_or_else(|_| "?".into(), |s| s.trim().to_owned())
}

/// Lets `libibverbs` say why there is no device, in its own way.
fn explain() {
    // SAFETY: NULL is allowed; the list is given back at once.
    unsafe {
        let list = sys::ibv_get_device_list(null_mut());
        if !list.is_null() {
            sys::ibv_free_device_list(list);
        }
    }
}

/// What a conversation that breaks off means, however the system calls it: the daemon is gone, and with it all objects.
fn dead(error: ControlError) -> Errno {
    match error {
        ControlError::Io(_) => EIO,
        other => other.into(),
    }
}

impl Session {
    fn connect() -> Outcome<Session> {
        let name = program_name();
        let Some(mut client) = socket_path::candidates().iter().find_map(|path| Client::connect(path, &name).ok())
        else {
            explain();
            return Err(ENODEV);
        };
        Ok(Session {
            life: LifePage::new().map_err(|_| ENOMEM)?,
            sender: client.command_sender()?,
            client: Mutex::new(client),
            devices: Opened::default(),
            ids: IdTable::default(),
            next_channel: AtomicU32::new(1),
        })
    }

    /// Whether this process made the session.
    pub fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    fn check(&self) -> Outcome<()> {
        if self.is_alive() { Ok(()) } else { Err(EIO) }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// The daemon's refusal, or EIO.
    pub fn call(&self, request: &Request) -> Outcome<ClientReply> {
        self.check()?;
        lock(&self.client).call(request, &[]).map_err(dead)
    }

    /// Carries out operations in order and gives the last one's answer; the first failure is the error.
    ///
    /// # Errors
    /// The daemon's refusal, or EIO.
    pub fn ask(&self, ops: Vec<CmCommand>) -> Outcome<CmReply> {
        let Response::Cm(replies) = self.call(&Request::Cm { commands: ops })?.response else { return Err(EIO) };
        let mut last = Err(EIO);
        for reply in replies {
            if let CmReply::Failed { errno, sentence } = reply {
                return Err(ControlError::Refused { errno, sentence }.into());
            }
            last = Ok(reply);
        }
        last
    }

    /// Carries out operations without waiting, unless many are not carried out yet; failures become events.
    ///
    /// # Errors
    /// EIO when the daemon is gone.
    pub fn tell(&self, ops: &[CmCommand]) -> Outcome<()> {
        self.check()?;
        while !self.sender.send(ops).map_err(dead)? {
            lock(&self.client).flush_commands().map_err(dead)?;
        }
        Ok(())
    }

    /// A channel number that was not used before.
    pub fn channel_number(&self) -> u32 {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for an id to come. Numbers go round, so that late events find nobody.
    pub fn id_number(&self) -> CmId {
        self.ids.number()
    }

    /// Makes an id known under its number.
    pub fn put(&self, number: CmId, id: NonNull<Id>) {
        self.ids.put(number, id);
    }

    /// Forgets an id: events of it find nobody from now on.
    pub fn remove(&self, number: CmId) {
        self.ids.remove(number);
    }

    /// Does something with an id while it cannot be destroyed.
    pub fn with<R>(&self, number: CmId, inside: impl FnOnce(&Id) -> R) -> Option<R> {
        self.ids.with(number, inside)
    }
}
