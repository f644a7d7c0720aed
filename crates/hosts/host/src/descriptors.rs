//! Descriptors: each program costs the daemon a few, and there are only as many as the host allows.
//!
//! The daemon takes all that it may have ([`raise_limit`]), whatever the limit it was started with. A context may hold a share
//! of them for what only costs a request (channels, device memory, domains), so that one program that makes channels without
//! end does not keep all others out. When there is none left for another client, the spare one turns it away, with a sentence
//! in the log: a client that was left waiting would wake the daemon for ever.

use crate::session::refuse;
use burst_control::Refusal;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::OwnedFd;

/// A context may hold one in so many.
const SHARE: u64 = 4;

/// Raises the limit as far as the host lets us; returns what it is.
pub fn raise_limit() -> u64 {
    let was = getrlimit(Resource::Nofile);
    // A refusal leaves what was there.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: was.maximum, ..was });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether a context that holds `held` may hold one more, where the daemon may have `limit`.
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

/// A descriptor that can be given up for another.
pub fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_before_the_limit() {
        assert!(check_share(0, 4).is_ok() && check_share(255, 1024).is_ok() && check_share(1 << 20, u64::MAX).is_ok());
        assert_eq!(check_share(256, 1024).expect_err("no more").errno, libc::EMFILE);
        assert!(check_share(0, 3).is_err());
    }

    #[test]
    fn the_limit_is_what_the_host_allows() {
        let limit = raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX), limit);
        assert!(spare().is_some());
    }
}
