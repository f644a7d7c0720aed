//! File descriptors of the daemon: each program costs a few, and the system limits their number.
//!
//! The daemon raises its soft limit to the hard limit ([`raise_limit`]). One context may hold a quarter of the descriptors for
//! objects that cost only a request (channels, device memory, XRC domains), so that a program that creates channels without
//! end does not exclude all others. When no descriptor is left for another client, the spare descriptor is closed to accept and
//! refuse the client, with a sentence in the log: a client left in the backlog would wake the daemon again and again.

use crate::refusal::refuse;
use burst_control::Refusal;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::OwnedFd;

/// Descriptors that are no user's: the listener, signals, netlink, and for each worker its port, its inbox and its timers.
pub(crate) const OWN_DESCRIPTORS: u64 = 64;

/// Descriptors of one message (`SCM_MAX_FD` of the kernel).
pub(crate) const MESSAGE_DESCRIPTORS: u64 = 253;

/// A context may hold one in this many of the daemon's descriptors.
const SHARE: u64 = 4;

/// Raises the soft limit of open files to the hard limit. Returns the limit in force.
pub fn raise_limit() -> u64 {
    let was = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: was.maximum, ..was });
    limit()
}

/// The limit in force, for a host in a program's process: the limit is the program's.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether the daemon may have fewer descriptors left than a message brings, where users have `used` of `limit`.
pub(crate) const fn is_scarce(used: u64, limit: u64) -> bool {
    used.saturating_add(OWN_DESCRIPTORS + MESSAGE_DESCRIPTORS) > limit
}

/// Checks that a context with `held` descriptors may hold one more, where the daemon may open `limit`.
///
/// # Errors
/// EMFILE.
pub fn check_share(held: usize, limit: u64) -> Result<(), Refusal> {
    let most = limit / SHARE;
    if (held as u64) < most {
        return Ok(());
    }
    refuse(
        libc::EMFILE,
        format!(
            "a program has at most {most} channels, device memories and XRC domains: a quarter of the daemon's descriptors"
        ),
    )
}

/// A descriptor that can be closed to make room for another.
pub fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_context_ends_before_the_limit() {
        assert!(check_share(0, 4).is_ok() && check_share(255, 1024).is_ok() && check_share(1 << 20, u64::MAX).is_ok());
        assert_eq!(check_share(256, 1024).expect_err("no more").errno, libc::EMFILE);
        assert!(check_share(0, 3).is_err());
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let limit = raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX), limit);
        assert!(spare().is_some());
    }
}
