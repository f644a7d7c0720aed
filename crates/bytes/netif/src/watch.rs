//! Wakes the control plane when the kernel reports a change of interfaces or addresses, so that the control plane need not poll
//! them.
//!
//! [`Watch`] is a netlink socket of the groups for links and addresses. It does not read what has changed: the caller lists all
//! interfaces again.

use crate::sys::netlink as sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
/// Datagrams that one [`Watch::drain`] takes; any that are left make the descriptor readable again.
const READS_MAX: usize = 64;

/// A socket that becomes readable when interfaces or addresses have changed.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's error; some sandboxes allow no netlink sockets.
    pub fn open() -> io::Result<Watch> {
        sys::open(GROUPS).map(Watch)
    }

    /// The descriptor, readable when something has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Discards the queued events.
    pub fn drain(&self) {
        // The kernel discards the rest of a longer datagram. It reports an overflow once, as an error.
        let mut buffer = [0; 64];
        for _ in 0..READS_MAX {
            match sys::recv(&self.0, &mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }
}
