//! XRC objects that contexts share (IBA annex A14): domains, numbers of shared receive queues, target queue pairs.
//!
//! A file names a domain: all contexts that open a domain with a descriptor of the same file share it. A domain that is opened
//! without a file belongs to its context alone. A domain exists until its last holder closes it, a target queue pair until its
//! last holder destroys it; the creator has no special rights.

use crate::foreign::ForeignFile;
use crate::id_allocator::ChargedNumbers;
use crate::limits::{XRC_DOMAINS_MAX, XRC_HOLDS_MAX, XRC_SRQS_MAX};
use crate::refusal::refuse;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use burst_ledger::{Charge, Policy, Resource, Scope, SharePool};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;

/// Device, file system and inode.
type FileKey = (DeviceId, u64, u64);

#[derive(Debug)]
struct XrcDomain {
    /// How many contexts have it open.
    holders: u32,
    /// The file that names it. It is kept open so that its inode number is not reused.
    file: Option<(FileKey, ForeignFile)>,
}

/// A target queue pair (IBA A14.3.2).
#[derive(Debug)]
pub struct XrcTarget {
    /// Number of its domain.
    pub domain: u32,
    /// Index of its worker.
    pub worker: usize,
    /// How many handles refer to it, in all contexts.
    holders: u32,
    /// Number of the last hold.
    last_hold: u64,
    /// Places for holds beside the creator's; `None` before the first.
    places: Option<Box<SharePool>>,
}

impl XrcTarget {
    /// A target held by its creator. The number of that hold is 0.
    pub fn new(domain: u32, worker: usize) -> XrcTarget {
        XrcTarget { domain, worker, holders: 1, last_hold: 0, places: None }
    }

    /// Places for holds beside the creator's.
    pub fn places(&mut self, policy: Policy) -> &SharePool {
        let pool = || SharePool::new(Resource::Qp, Scope::XrcTarget, u64::from(XRC_HOLDS_MAX) - 1, policy);
        self.places.get_or_insert_with(|| Box::new(pool()))
    }

    /// Adds a hold; returns its number.
    ///
    /// # Errors
    /// ENOMEM when there are [`XRC_HOLDS_MAX`].
    pub fn add_hold(&mut self) -> Result<u64, Refusal> {
        if self.holders == XRC_HOLDS_MAX {
            return refuse(libc::ENOMEM, format!("an XRC target may be open {XRC_HOLDS_MAX} times"));
        }
        self.holders += 1;
        self.last_hold += 1;
        Ok(self.last_hold)
    }

    /// Ends a hold. Returns whether there are others.
    pub fn end_hold(&mut self) -> bool {
        assert!(self.holders > 0, "a target queue pair without a holder");
        self.holders -= 1;
        self.holders > 0
    }
}

/// The XRC objects of all contexts.
#[derive(Debug)]
pub struct XrcTable {
    ids: ChargedNumbers,
    domains: HashMap<u32, XrcDomain>,
    by_file: HashMap<FileKey, u32>,
    srqns: ChargedNumbers,
    /// Target queue pairs by number.
    pub targets: HashMap<Qpn, XrcTarget>,
}

impl Default for XrcTable {
    fn default() -> XrcTable {
        XrcTable {
            ids: ChargedNumbers::new(Resource::Xrcd, XRC_DOMAINS_MAX),
            domains: HashMap::new(),
            by_file: HashMap::new(),
            srqns: ChargedNumbers::new(Resource::XrcSrq, XRC_SRQS_MAX),
            targets: HashMap::new(),
        }
    }
}

impl XrcTable {
    /// Opens the domain that a file names, or a new domain without a file, for a handle that is charged. The two flags,
    /// `create` and `exclusive`, mean what O_CREAT and O_EXCL mean to open(2).
    ///
    /// # Errors
    /// EBADF: the descriptor was opened with O_PATH. EAGAIN: the file has no domain and `create` is false. EINVAL: the file has a
    /// domain and `exclusive` is true. ENOMEM: there are too many domains.
    pub fn open(
        &mut self,
        device: DeviceId,
        file: Option<ForeignFile>,
        flags: (bool, bool),
        charge: &Charge,
    ) -> Result<u32, Refusal> {
        let (create, exclusive) = flags;
        let Some(file) = file else { return self.make(None, charge) };
        check_access(file.fd())?;
        let key = key_of(device, file.fd())?;
        match self.by_file.get(&key).copied() {
            Some(_) if exclusive => refuse(libc::EINVAL, "the file has an XRC domain already"),
            Some(number) => {
                if let Some(domain) = self.domains.get_mut(&number) {
                    domain.holders += 1;
                }
                Ok(number)
            }
            None if !create => refuse(libc::EAGAIN, "the file has no XRC domain: create one with O_CREAT"),
            None => {
                let number = self.make(Some((key, file)), charge)?;
                self.by_file.insert(key, number);
                Ok(number)
            }
        }
    }

    fn make(&mut self, file: Option<(FileKey, ForeignFile)>, charge: &Charge) -> Result<u32, Refusal> {
        let Some(number) = self.ids.take(charge) else {
            return refuse(libc::ENOMEM, format!("there are at most {XRC_DOMAINS_MAX} XRC domains"));
        };
        self.domains.insert(number, XrcDomain { holders: 1, file });
        Ok(number)
    }

    /// Removes a holder of a domain; the last one ends it.
    pub fn close(&mut self, number: u32) {
        let Some(domain) = self.domains.get_mut(&number) else { return };
        assert!(domain.holders > 0, "an XRC domain without a holder");
        domain.holders -= 1;
        if domain.holders == 0 {
            if let Some((key, _)) = self.domains.remove(&number).and_then(|d| d.file) {
                self.by_file.remove(&key);
            }
            self.ids.put(number);
        }
    }

    /// Returns the memory of ended domains and targets to the heap.
    pub fn shrink(&mut self) {
        self.ids.shrink();
        self.domains.shrink_to_fit();
        self.by_file.shrink_to_fit();
        self.srqns.shrink();
        self.targets.shrink_to_fit();
    }

    /// One more than the largest number of a shared receive queue.
    pub fn srqns_end(&self) -> u32 {
        self.srqns.taken_end() + 1
    }

    /// Allocates a number for a shared receive queue that is charged. Number 0 means "no shared receive queue".
    pub fn take_srqn(&mut self, charge: &Charge) -> Option<u32> {
        self.srqns.take(charge).map(|number| number + 1)
    }

    /// Frees the number of a shared receive queue.
    pub fn put_srqn(&mut self, srqn: u32) {
        self.srqns.put(srqn - 1);
    }
}

/// Checks that the descriptor was opened with access to the file. The kernel checks rights when a file is opened, except with
/// O_PATH: such a descriptor names any file that can be found, also one of another user with mode 0600. As in Linux, any other
/// descriptor will do, whether it reads or writes.
fn check_access(fd: BorrowedFd<'_>) -> Result<(), Refusal> {
    use rustix::fs::{OFlags, fcntl_getfl};
    match fcntl_getfl(fd) {
        Ok(flags) if !flags.contains(OFlags::PATH) => Ok(()),
        Ok(_) => refuse(
            libc::EBADF,
            "the descriptor of the XRC domain's file was opened with O_PATH: open the file to read it",
        ),
        Err(e) => refuse(e.raw_os_error(), format!("cannot find out how the XRC domain's file was opened: {e}")),
    }
}

/// The identity of a file, equal for all descriptors of it. AT_STATX_DONT_SYNC: a network file system is not asked.
fn key_of(device: DeviceId, fd: BorrowedFd<'_>) -> Result<FileKey, Refusal> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(fd, "", flags, StatxFlags::INO).map_err(|e| Refusal {
        errno: e.raw_os_error(),
        sentence: format!("cannot find out which file names the XRC domain: {e}"),
    })?;
    let system = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok((device, system, stat.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Disposal, ForeignFds};
    use burst_ledger::{AccountId, Capacities, Ledger};
    use std::os::fd::OwnedFd;

    /// A descriptor that a program has sent.
    fn foreign(fd: OwnedFd) -> Option<ForeignFile> {
        let ledger = Ledger::new(Capacities::new(|_| 100), Policy::default());
        let disposal = Disposal::start().expect("threads");
        let file = ForeignFds::new(vec![fd], &ledger.account(AccountId::User(1), false), &disposal).take_file();
        disposal.end();
        file
    }

    /// A charge of a handle.
    fn charge() -> Charge {
        let ledger = Ledger::new(Capacities::new(|_| 100), Policy::default());
        ledger.account(AccountId::User(1), false).charge(&[(Resource::Xrcd, 1), (Resource::XrcSrq, 1)]).expect("room")
    }

    fn file(path: &str) -> Option<ForeignFile> {
        foreign(std::fs::File::open(path).expect("readable").into())
    }

    #[test]
    fn a_file_names_one_domain_until_its_last_holder_closes_it() {
        let mut xrc = XrcTable::default();
        let errno = |r: Result<u32, Refusal>| r.expect_err("refused").errno;
        assert_eq!(errno(xrc.open(DeviceId(0), file("/proc/self/maps"), (false, false), &charge())), libc::EAGAIN);
        let first = xrc.open(DeviceId(0), file("/etc/passwd"), (true, false), &charge()).expect("made");
        assert_eq!(xrc.open(DeviceId(0), file("/etc/passwd"), (false, false), &charge()).expect("found"), first);
        assert_eq!(errno(xrc.open(DeviceId(0), file("/etc/passwd"), (true, true), &charge())), libc::EINVAL);
        assert_ne!(
            xrc.open(DeviceId(1), file("/etc/passwd"), (true, false), &charge()).expect("another device's"),
            first
        );
        xrc.close(first);
        assert_eq!(xrc.open(DeviceId(0), file("/etc/passwd"), (false, false), &charge()).expect("still there"), first);
        xrc.close(first);
        xrc.close(first);
        assert_eq!(errno(xrc.open(DeviceId(0), file("/etc/passwd"), (false, false), &charge())), libc::EAGAIN);
    }

    #[test]
    fn a_descriptor_that_only_names_the_file_opens_no_domain() {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let named = || foreign(openat(CWD, "/etc/passwd", OFlags::PATH, Mode::empty()).expect("found"));
        let mut xrc = XrcTable::default();
        assert_eq!(xrc.open(DeviceId(0), named(), (true, false), &charge()).expect_err("no access").errno, libc::EBADF);
        xrc.open(DeviceId(0), file("/etc/passwd"), (true, false), &charge()).expect("made");
        assert_eq!(
            xrc.open(DeviceId(0), named(), (false, false), &charge()).expect_err("no access").errno,
            libc::EBADF
        );
    }

    #[test]
    fn a_target_has_a_limit_of_holds_and_their_numbers_do_not_return() {
        let mut target = XrcTarget::new(3, 1);
        let holds: Vec<u64> = (1..XRC_HOLDS_MAX).map(|_| target.add_hold().expect("room")).collect();
        assert!(holds.is_sorted() && holds[0] == 1);
        assert_eq!(target.add_hold().expect_err("full").errno, libc::ENOMEM);
        assert!(target.end_hold());
        assert_eq!(target.add_hold().expect("room again"), u64::from(XRC_HOLDS_MAX));
        assert_eq!((0..XRC_HOLDS_MAX).filter(|_| target.end_hold()).count(), XRC_HOLDS_MAX as usize - 1);
    }

    #[test]
    fn without_a_file_each_domain_is_new() {
        let mut xrc = XrcTable::default();
        let (a, b) = (
            xrc.open(DeviceId(0), None, (true, false), &charge()),
            xrc.open(DeviceId(0), None, (false, false), &charge()),
        );
        assert_ne!(a.expect("made"), b.expect("made"));
        assert_ne!(xrc.take_srqn(&charge()), Some(0));
    }
}
