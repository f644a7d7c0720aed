//! Which paths' hellos are due: a heap with the next time of each path, so that a pass looks at the paths that are due and at no
//! others, however many peers the programs of the host have.
//!
//! An entry counts if its time is the one that the path has noted ([`Path::hello_listed`]); another one is left from a time that
//! has been brought forward. Entries that do not count are removed when they come to the front, or when they are the majority.

use crate::paths::path::Path;
use burst_base::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most paths whose hellos are served in one pass.
pub(crate) const HELLOS_PER_PASS: usize = 64;

/// The times of the paths' hellos.
#[derive(Debug)]
pub(crate) struct HelloTimes {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Time of the first entry; 0 if something else is to be done in the next pass.
    due: Nanos,
}

impl Default for HelloTimes {
    fn default() -> HelloTimes {
        HelloTimes { heap: BinaryHeap::new(), due: Nanos::NEVER }
    }
}

impl HelloTimes {
    /// When a hello is due.
    #[inline]
    pub fn due(&self) -> Nanos {
        self.due
    }

    /// The time of path `at` may have been brought forward.
    pub fn note(&mut self, at: u32, path: &mut Path) {
        self.add(path.hello.due(), at, path);
    }

    /// Something about path `at` has changed that the next pass follows.
    pub fn note_change(&mut self, now: Nanos, at: u32, path: &mut Path) {
        self.add(now, at, path);
    }

    /// An answer is to be sent in the next pass.
    pub fn note_answer(&mut self) {
        self.due = Nanos(0);
    }

    fn add(&mut self, due: Nanos, at: u32, path: &mut Path) {
        if due < path.hello_listed {
            path.hello_listed = due;
            self.heap.push(Reverse((due, at)));
            self.due = self.due.min(due);
        }
    }

    /// Takes out the next path that is due at `now`.
    pub fn next(&mut self, now: Nanos, paths: &mut [Path]) -> Option<u32> {
        while let Some(Reverse((due, at))) = self.heap.peek().copied()
            && due <= now
        {
            self.heap.pop();
            if let Some(path) = paths.get_mut(at as usize)
                && path.hello_listed == due
            {
                path.hello_listed = Nanos::NEVER;
                return Some(at);
            }
        }
        None
    }

    /// The end of a pass that has served hellos.
    pub fn settle(&mut self, paths: &[Path]) {
        const FEW: usize = 64;
        if self.heap.len() > 2 * paths.len() + FEW {
            let counts = |entry: &Reverse<(Nanos, u32)>| {
                paths.get(entry.0.1 as usize).is_some_and(|path| path.hello_listed == entry.0.0)
            };
            self.heap.retain(counts);
        }
        self.due = self.heap.peek().map_or(Nanos::NEVER, |first| first.0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::path::PathLink;
    use burst_base::DeviceId;
    use burst_cc::Params;
    use burst_frame::Flow;

    fn paths(count: u32) -> Vec<Path> {
        let link = PathLink { cc: Params::default(), line_rate_bps: 0, mtu: 1024 };
        let path = |n: u32| {
            let mut path = Path::new(Nanos(0), std::net::IpAddr::from(n.to_be_bytes()), DeviceId(0), &link);
            path.hello.join(Nanos(u64::from(1_000 + n)), &Flow::default(), true);
            path
        };
        (0..count).map(path).collect()
    }

    #[test]
    fn paths_come_out_when_they_are_due_each_once() {
        let (mut paths, mut times) = (paths(3), HelloTimes::default());
        for at in [2, 0, 1, 0] {
            times.note(at, &mut paths[at as usize]);
        }
        assert_eq!((times.due(), times.next(Nanos(999), &mut paths)), (Nanos(1_000), None));
        // A time that is brought forward counts, and not the one before.
        times.note_change(Nanos(7), 2, &mut paths[2]);
        assert_eq!(
            (times.due(), times.next(Nanos(7), &mut paths), times.next(Nanos(7), &mut paths)),
            (Nanos(7), Some(2), None)
        );
        let rest: Vec<u32> = std::iter::from_fn(|| times.next(Nanos(5_000), &mut paths)).collect();
        assert_eq!(rest, [0, 1]);
        times.settle(&paths);
        assert_eq!(times.due(), Nanos::NEVER);
        times.note_answer();
        assert_eq!(times.due(), Nanos(0));
    }

    /// A peer that asks again and again brings its own path's time forward.
    #[test]
    fn times_that_change_without_end_leave_few_entries() {
        let (mut paths, mut times) = (paths(10), HelloTimes::default());
        for now in 0..10_000 {
            times.note_change(Nanos(now), 3, &mut paths[3]);
            assert_eq!(times.next(Nanos(now), &mut paths), Some(3));
            paths[3].hello.on_due(Nanos(now), 1);
            times.note(3, &mut paths[3]);
            paths[3].hello = Default::default();
            paths[3].hello.join(Nanos(now), &Flow::default(), true);
            paths[3].hello_listed = Nanos::NEVER;
            times.settle(&paths);
        }
        assert!(times.heap.len() <= 2 * paths.len() + 64, "{} entries", times.heap.len());
    }
}
