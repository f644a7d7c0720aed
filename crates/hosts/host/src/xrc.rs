//! What XRC shares between contexts (IBA annex A14): domains, numbers of shared receive queues, target queue pairs.
//!
//! A domain is found by a file: whoever opens one with a descriptor of the same file gets the same domain. Without a file
//! it is its context's own. A domain lives until its last holder closes it, a target queue pair until its last holder
//! destroys it, whoever made it.

use crate::id_allocator::IdAllocator;
use crate::session::refuse;
use burst_base::{DeviceId, Qpn};
use burst_control::Refusal;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// XRC domains of the daemon.
const DOMAINS_MAX: u32 = 1 << 16;
/// Shared receive queues in XRC domains.
const SRQS_MAX: u32 = 1 << 16;

/// Device, file system and inode.
type FileKey = (DeviceId, u64, u64);

#[derive(Debug)]
struct XrcDomain {
    holders: u32,
    /// The file that names it, kept open so that its inode is nobody else's.
    file: Option<(FileKey, OwnedFd)>,
}

/// A target queue pair.
#[derive(Clone, Copy, Debug)]
pub struct XrcTarget {
    /// Its domain.
    pub domain: u32,
    /// Its worker.
    pub worker: usize,
    /// Handles to it in all contexts.
    pub holders: u32,
}

/// See the module.
#[derive(Debug)]
pub struct XrcTable {
    numbers: IdAllocator,
    domains: HashMap<u32, XrcDomain>,
    by_file: HashMap<FileKey, u32>,
    srqns: IdAllocator,
    /// Target queue pairs by number.
    pub targets: HashMap<Qpn, XrcTarget>,
}

impl Default for XrcTable {
    fn default() -> XrcTable {
        let mut srqns = IdAllocator::new(SRQS_MAX);
        // Number 0 names none.
        srqns.take();
        XrcTable {
            numbers: IdAllocator::new(DOMAINS_MAX),
            domains: HashMap::new(),
            by_file: HashMap::new(),
            srqns,
            targets: HashMap::new(),
        }
    }
}

impl XrcTable {
    /// Opens the domain of a file, or a new one without a file. `create` and `exclusive` as for open(2).
    ///
    /// # Errors
    /// EAGAIN for a file without a domain that is not to be created, EINVAL for one that has a domain already.
    pub fn open(
        &mut self,
        device: DeviceId,
        file: Option<OwnedFd>,
        create: bool,
        exclusive: bool,
    ) -> Result<u32, Refusal> {
        let Some(fd) = file else { return self.make(None) };
        let key = key_of(device, &fd)?;
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
                let number = self.make(Some((key, fd)))?;
                self.by_file.insert(key, number);
                Ok(number)
            }
        }
    }

    fn make(&mut self, file: Option<(FileKey, OwnedFd)>) -> Result<u32, Refusal> {
        let Some(number) = self.numbers.take() else {
            return refuse(libc::ENOMEM, format!("there are at most {DOMAINS_MAX} XRC domains"));
        };
        self.domains.insert(number, XrcDomain { holders: 1, file });
        Ok(number)
    }

    /// One holder less.
    pub fn close(&mut self, number: u32) {
        let Some(domain) = self.domains.get_mut(&number) else { return };
        domain.holders -= 1;
        if domain.holders == 0 {
            if let Some((key, _)) = self.domains.remove(&number).and_then(|d| d.file) {
                self.by_file.remove(&key);
            }
            self.numbers.put(number);
        }
    }

    /// A number for a shared receive queue.
    pub fn take_srqn(&mut self) -> Option<u32> {
        self.srqns.take()
    }

    /// Gives it back.
    pub fn put_srqn(&mut self, srqn: u32) {
        self.srqns.put(srqn);
    }
}

/// What is the same for all descriptors of a file. Only what the kernel knows: no file server is asked.
fn key_of(device: DeviceId, fd: &OwnedFd) -> Result<FileKey, Refusal> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(fd, "", flags, StatxFlags::INO).map_err(|e| Refusal {
        errno: e.raw_os_error(),
        sentence: format!("cannot tell which file names the XRC domain: {e}"),
    })?;
    let system = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok((device, system, stat.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Option<OwnedFd> {
        Some(std::fs::File::open(path).expect("readable").into())
    }

    #[test]
    fn a_file_names_one_domain_until_its_last_holder_has_gone() {
        let mut host = XrcTable::default();
        let errno = |r: Result<u32, Refusal>| r.expect_err("refused").errno;
        assert_eq!(errno(host.open(DeviceId(0), file("/proc/self/maps"), false, false)), libc::EAGAIN);
        let first = host.open(DeviceId(0), file("/etc/passwd"), true, false).expect("made");
        assert_eq!(host.open(DeviceId(0), file("/etc/passwd"), false, false).expect("found"), first);
        assert_eq!(errno(host.open(DeviceId(0), file("/etc/passwd"), true, true)), libc::EINVAL);
        assert_ne!(host.open(DeviceId(1), file("/etc/passwd"), true, false).expect("another device's"), first);
        host.close(first);
        assert_eq!(host.open(DeviceId(0), file("/etc/passwd"), false, false).expect("still there"), first);
        host.close(first);
        host.close(first);
        assert_eq!(errno(host.open(DeviceId(0), file("/etc/passwd"), false, false)), libc::EAGAIN);
    }

    #[test]
    fn without_a_file_each_domain_is_new() {
        let mut host = XrcTable::default();
        let (a, b) = (host.open(DeviceId(0), None, true, false), host.open(DeviceId(0), None, false, false));
        assert_ne!(a.expect("made"), b.expect("made"));
        assert_ne!(host.take_srqn(), Some(0));
    }
}
