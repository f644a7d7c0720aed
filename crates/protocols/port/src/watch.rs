//! Hears from the kernel that interfaces or their addresses have changed, so that nobody has to look all the time.
//!
//! A netlink socket of the groups for links and addresses. What has changed is not read: whoever wakes by it looks at
//! everything again ([`crate::Port::refresh`]).

use crate::sys::netlink as sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
/// Datagrams taken at once; more make the descriptor readable again.
const READS_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Opens it.
    ///
    /// # Errors
    /// As the kernel says; some sandboxes know no netlink.
    pub fn open() -> io::Result<Watch> {
        sys::open(GROUPS).map(Watch)
    }

    /// Readable when something has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Forgets what was heard.
    pub fn drain(&self) {
        // Of a datagram that is longer, the rest is gone with it; an overflow is reported once, as an error.
        let mut buffer = [0; 64];
        for _ in 0..READS_MAX {
            match sys::recv(&self.0, &mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }
}
