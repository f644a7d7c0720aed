//! Authority: which users see which objects, and which programs may make privileged requests.
//!
//! Root and the user who runs the daemon see the objects of all users; other users see their own and the number of the rest.
//!
//! Some requests need a capability, as they do in Linux. The daemon reads the capabilities of the program's process from the
//! kernel when the program makes the request ([`PeerProcess::check`]). A private daemon is an exception: the user who runs it
//! owns its devices. A daemon is private if it does not run as root, or lacks the capability itself (a container without it).
//!
//! In a user namespace other than the initial one, all users without a number there have the same user id. Such users see
//! numbers only and have no privilege.

use crate::refusal::refuse;
use burst_base::Reason;
use burst_control::Refusal;
use burst_ledger::{Account, Charge, PlaceCharge, Resource, SharePool};
use burst_mem::ProcessMemory;
use burst_peer::process::own_capability;
use burst_peer::{Capability, PeerProcess, namespace};
use std::io;
use std::sync::Arc;

/// The process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    /// Process id, as seen by the daemon; 0: not visible.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// The client of a session, as the kernel describes it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Process and user.
    pub process: ClientProcess,
    /// The process's pidfd; `None` if the process cannot be seen from here.
    pub peer: Option<Arc<PeerProcess>>,
    /// The account of the user, or of the control group.
    pub account: Account,
    /// Whether the client is the process of the host itself: its memory is reached by its addresses.
    pub is_own: bool,
}

impl Caller {
    /// Charges amounts to the caller's account. The charge gives them back when it is dropped.
    ///
    /// # Errors
    /// EMFILE for descriptors, otherwise ENOMEM: the user has the share of one user, the daemon has no more, or it uses its
    /// reserve of memory.
    pub(crate) fn charge(&self, items: &[(Resource, u64)]) -> Result<Charge, Refusal> {
        if burst_base::fault::fails() {
            return refuse(libc::ENOMEM, "the daemon has no more");
        }
        if burst_base::heap::is_reserve_spent() && !self.account.is_privileged() {
            return refuse(libc::ENOMEM, Reason::MemoryReserve.to_string());
        }
        self.account.charge(items).or_else(crate::refusal::refuse_charge)
    }

    /// Charges a place of a pool to the account.
    ///
    /// # Errors
    /// ENOMEM: the user has the share of one user, or the pool has no more.
    pub(crate) fn place(&self, pool: &SharePool) -> Result<PlaceCharge, Refusal> {
        pool.charge(&self.account).or_else(crate::refusal::refuse_charge)
    }

    /// Opens the memory of the process.
    ///
    /// # Errors
    /// The system's: the process has ended, is not visible here, or belongs to another user.
    pub(crate) fn open_memory(&self) -> io::Result<ProcessMemory> {
        burst_base::fault::check()?;
        if self.is_own {
            return ProcessMemory::own();
        }
        let ClientProcess { pid, uid } = self.process;
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let memory = match self.peer.as_ref().map_or(pid, |peer| peer.pid()) {
            0 => return Err(gone()),
            pid => ProcessMemory::open(pid, uid)?,
        };
        // The number was the process's own when the file was opened: the process still has it.
        if self.peer.as_ref().is_some_and(|peer| peer.has_exited()) { Err(gone()) } else { Ok(memory) }
    }
}

/// The user who runs the daemon, and the user ids that several users share.
#[derive(Clone, Copy, Debug)]
pub struct Authority {
    /// Effective user id of this process.
    owner: u32,
    /// The user id of all users without a number in this user namespace.
    unmapped: Option<u32>,
    /// Whether this process has a capability.
    has: fn(Capability) -> bool,
}

impl Authority {
    /// The authority of this process's user.
    pub fn of_this_process() -> Authority {
        let owner = rustix::process::geteuid().as_raw();
        Authority { owner, unmapped: namespace::unmapped_uid(), has: own_capability }
    }

    /// Whether the user id belongs to one user only.
    fn is_known(&self, uid: u32) -> bool {
        uid != u32::MAX && Some(uid) != self.unmapped
    }

    /// Whether the user is the one who runs this process.
    pub fn is_owner(&self, uid: u32) -> bool {
        self.is_known(uid) && uid == self.owner
    }

    /// Whether the user sees the objects of all users.
    pub fn sees_all(&self, viewer: u32) -> bool {
        self.is_known(viewer) && (viewer == 0 || viewer == self.owner)
    }

    /// Whether the user sees the objects of a user; `None`: the owner has gone.
    pub fn may_see(&self, viewer: u32, owner: Option<u32>) -> bool {
        self.sees_all(viewer) || self.is_known(viewer) && owner == Some(viewer)
    }

    /// Checks that the caller may do `what`, which needs a capability.
    ///
    /// # Errors
    /// `errno`, with a sentence that says what is missing.
    pub fn check(&self, caller: &Caller, capability: Capability, errno: i32, what: &str) -> Result<(), Refusal> {
        let ClientProcess { uid, .. } = caller.process;
        let owns = self.is_known(uid) && uid == self.owner;
        if owns && (uid != 0 || !(self.has)(capability)) {
            return Ok(());
        }
        let checked = match &caller.peer {
            _ if !self.is_known(uid) => Err("the program's user has no number in the daemon's user namespace".into()),
            Some(peer) => peer.check(capability),
            None => Err("the program's process cannot be seen by the daemon".into()),
        };
        checked.or_else(|why| {
            refuse(errno, format!("{what} needs {} in the daemon's user namespace: {why}", capability.name()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::{AccountId, Capacities, Ledger, Policy};
    use std::os::unix::net::UnixStream;

    fn authority(owner: u32, unmapped: Option<u32>) -> Authority {
        Authority { owner, unmapped, has: |_| true }
    }

    fn account(uid: u32) -> Account {
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        ledger.account(AccountId::User(uid), false)
    }

    fn caller(uid: u32) -> Caller {
        Caller { process: ClientProcess { pid: 1, uid }, peer: None, account: account(uid), is_own: false }
    }

    fn this_process() -> Caller {
        let (socket, _other) = UnixStream::pair().expect("a pair");
        let peer = PeerProcess::of(&socket).expect("this process");
        let uid = rustix::process::geteuid().as_raw();
        let process = ClientProcess { pid: peer.pid(), uid };
        Caller { process, peer: Some(Arc::new(peer)), account: account(uid), is_own: false }
    }

    #[test]
    fn root_and_the_owner_see_all_and_others_their_own() {
        let of = authority(500, None);
        for viewer in [0, 500] {
            assert!(of.may_see(viewer, Some(1001)) && of.may_see(viewer, None));
        }
        assert!(of.may_see(1001, Some(1001)));
        assert!(!of.may_see(1001, Some(1002)) && !of.may_see(1001, None) && !of.may_see(1001, Some(0)));
        assert!(!of.may_see(u32::MAX, Some(u32::MAX)), "credentials that could not be read");
    }

    #[test]
    fn users_without_a_number_have_one_user_id() {
        let of = authority(65_534, Some(65_534));
        assert!(!of.may_see(65_534, Some(65_534)), "two users may have this number");
        assert!(of.check(&caller(65_534), Capability::NetRaw, libc::EPERM, "this").is_err());
        assert!(authority(65_534, None).may_see(65_534, Some(1)), "in the initial namespace it is one user's");
    }

    #[test]
    fn the_owner_of_a_private_daemon_owns_its_devices() {
        assert_eq!(authority(1001, None).check(&caller(1001), Capability::NetRaw, libc::EPERM, "this"), Ok(()));
        let without = Authority { has: |_| false, ..authority(0, None) };
        assert_eq!(without.check(&caller(0), Capability::NetRaw, libc::EPERM, "this"), Ok(()));
        assert!(without.check(&caller(1001), Capability::NetRaw, libc::EPERM, "this").is_err());
    }

    #[test]
    fn a_program_of_a_daemon_of_root_needs_the_capability_itself() {
        let me = this_process();
        let checked = authority(0, None).check(&me, Capability::NetRaw, libc::EPERM, "a privileged Q_Key");
        assert_eq!(checked.is_ok(), own_capability(Capability::NetRaw));
        let why = authority(0, None).check(&caller(0), Capability::NetRaw, libc::EPERM, "a privileged Q_Key");
        let why = why.expect_err("no process to ask");
        assert_eq!(why.errno, libc::EPERM);
        assert!(why.sentence.starts_with("a privileged Q_Key needs CAP_NET_RAW"), "{}", why.sentence);
    }
}
