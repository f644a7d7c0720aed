//! The paths of a worker: found by peer and device, and used again for other peers when no queue pair uses them.
//!
//! A path without users keeps its controller and what the peer has said of itself, for a queue pair that connects to the same
//! peer again. [`UNUSED_KEPT`] such paths stay; above it a new peer takes the place of the path that is unused for the longest
//! time.

use crate::paths::path::Path;
use burst_base::DeviceId;
use burst_base::heap::{self, OutOfMemory};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};

mod cc_page;
pub mod ecn;
pub(crate) mod hello;
pub(crate) mod hello_times;
mod line_index;
pub(crate) mod pacing;
pub mod path;
pub(crate) mod peer_hello;
mod peer_report;
pub(crate) mod signals;
pub mod window_line;

pub use window_line::{NOT_WAITING, WindowLine};

/// Paths that stay without users.
pub const UNUSED_KEPT: usize = 64;

/// The paths, by index.
#[derive(Debug, Default)]
pub struct Paths {
    paths: Vec<Path>,
    by_peer: HashMap<(DeviceId, IpAddr), u32>,
    /// Paths that lost their last user, in that order; each once. Some may have users again.
    unused: VecDeque<u32>,
    /// How many paths have no users.
    unused_count: usize,
}

impl Deref for Paths {
    type Target = [Path];
    fn deref(&self) -> &[Path] {
        &self.paths
    }
}

impl DerefMut for Paths {
    fn deref_mut(&mut self) -> &mut [Path] {
        &mut self.paths
    }
}

impl Paths {
    /// The path to a peer.
    pub fn find(&self, device: DeviceId, peer: IpAddr) -> Option<u32> {
        self.by_peer.get(&(device, peer)).copied()
    }

    /// Paths that have users.
    pub fn in_use(&self) -> usize {
        self.paths.len() - self.unused_count
    }

    /// Makes room for one more path.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve_one(&mut self) -> Result<(), OutOfMemory> {
        if self.paths.len() == self.paths.capacity() {
            heap::attempt(|| self.paths.try_reserve(1))?;
        }
        if self.by_peer.len() == self.by_peer.capacity() {
            heap::attempt(|| self.by_peer.try_reserve(1))?;
        }
        Ok(())
    }

    /// Adds a user to the path to a peer, which `make` creates if there is none. Returns the path's index.
    pub fn join(&mut self, device: DeviceId, peer: IpAddr, make: impl FnOnce() -> Path) -> u32 {
        let at = match self.find(device, peer) {
            Some(at) => at,
            None => {
                let at = self.place(make());
                self.by_peer.insert((device, peer), at);
                at
            }
        };
        let path = &mut self.paths[at as usize];
        debug_assert!(path.peer == peer && path.device == device, "the path to another peer");
        if path.users == 0 {
            self.unused_count -= 1;
        }
        path.users += 1;
        at
    }

    /// Puts a path without users at a free index.
    fn place(&mut self, path: Path) -> u32 {
        self.unused_count += 1;
        if self.unused_count > UNUSED_KEPT
            && let Some(at) = self.oldest_unused()
        {
            let old = std::mem::replace(&mut self.paths[at as usize], path);
            self.by_peer.remove(&(old.device, old.peer));
            self.unused_count -= 1;
            return at;
        }
        debug_assert!(self.unused_count <= self.paths.len() + 1, "more unused paths than paths");
        self.paths.push(path);
        self.paths.len() as u32 - 1
    }

    fn oldest_unused(&mut self) -> Option<u32> {
        while let Some(at) = self.unused.pop_front() {
            let path = &mut self.paths[at as usize];
            path.is_listed_unused = false;
            if path.users == 0 {
                return Some(at);
            }
        }
        None
    }

    /// Takes a user off path `at`.
    pub fn leave(&mut self, at: u32) {
        let path = &mut self.paths[at as usize];
        assert!(path.users > 0, "a queue pair leaves a path without users");
        path.users -= 1;
        if path.users > 0 {
            return;
        }
        debug_assert!(path.inflight() == 0, "bytes in flight on a path without users");
        self.unused_count += 1;
        if !std::mem::replace(&mut path.is_listed_unused, true) {
            self.unused.push_back(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::path::PathLink;
    use burst_base::Nanos;
    use burst_cc::Params;

    fn peer(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }
    fn join(paths: &mut Paths, n: u32) -> u32 {
        let link = PathLink { cc: Params::default(), line_rate_bps: 0, mtu: 1024 };
        paths.join(DeviceId(0), peer(n), || Path::new(Nanos(0), peer(n), DeviceId(0), &link))
    }

    #[test]
    fn queue_pairs_with_the_same_peer_and_device_share_a_path() {
        let mut paths = Paths::default();
        let first = join(&mut paths, 1);
        assert_ne!(join(&mut paths, 2), first);
        assert_eq!(join(&mut paths, 1), first);
        assert_eq!(paths[first as usize].users, 2);
        assert_eq!(paths.find(DeviceId(1), peer(1)), None, "another device");
    }

    #[test]
    fn an_unused_path_waits_for_its_peer() {
        let mut paths = Paths::default();
        let at = join(&mut paths, 1);
        paths.leave(at);
        for n in 2..UNUSED_KEPT as u32 + 1 {
            let other = join(&mut paths, n);
            paths.leave(other);
        }
        assert_eq!(join(&mut paths, 1), at);
        assert_eq!(paths.len(), UNUSED_KEPT);
    }

    #[test]
    fn a_new_peer_takes_the_place_of_the_path_that_is_unused_for_longest() {
        let mut paths = Paths::default();
        let at: Vec<u32> = (0..=UNUSED_KEPT as u32).map(|n| join(&mut paths, n)).collect();
        // Paths 1, 2, … lose their users, and then path 1 gets another one.
        at[1..].iter().for_each(|at| paths.leave(*at));
        assert_eq!(join(&mut paths, 1), at[1]);
        assert_eq!(join(&mut paths, 1000), UNUSED_KEPT as u32 + 1, "63 unused paths stay");
        paths.leave(at[0]);
        assert_eq!(join(&mut paths, 1001), at[2]);
        assert_eq!(paths.find(DeviceId(0), peer(2)), None);
        assert_eq!(paths.find(DeviceId(0), peer(1)), Some(at[1]));
    }

    #[test]
    fn peers_that_come_and_go_need_no_further_memory() {
        let mut paths = Paths::default();
        for n in 0..10_000 {
            let at = join(&mut paths, n);
            paths.leave(at);
        }
        assert_eq!(paths.len(), UNUSED_KEPT);
        assert_eq!(paths.by_peer.len(), UNUSED_KEPT);
        assert!(paths.unused.len() <= paths.len());
    }
}
