//! Requests of one worker that wait for a place in their listener's backlog.
//!
//! One first-in-first-out line per listener holds the ids of connections in `CmState::Queued`; each keeps its REQ or SIDR_REQ.
//! A request leaves its line when its listener has a place, when the peer withdraws it (REJ) or has certainly given up (a
//! timer), and when the listener ends. Nothing is sent for a queued request except one MRA for each repetition of it, so a
//! queue amplifies nothing. A line is bounded by [`Backlog::queue_limit`], all lines of a worker by [`WORKER_QUEUE_MAX`].
//!
//! A place that this worker frees is given away in the same or the next pass. A place may also be freed by another worker, by the
//! control thread, or because a program with a small backlog has read its events; none of these wakes this worker, so
//! non-empty lines are looked at every [`LOOK_INTERVAL`] as well.

use crate::backlog::{Backlog, RequestPlace};
use burst_base::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most queued requests of one worker.
pub(crate) const WORKER_QUEUE_MAX: usize = 16 << 10;
/// Longest time until a place that something else has freed is given away.
pub(crate) const LOOK_INTERVAL: Nanos = Nanos::from_ms(10);

const _: () =
    assert!((crate::backlog::LISTENER_QUEUE_MAX as usize) < WORKER_QUEUE_MAX, "one listener leaves room for others");

/// Queued requests of one listener, oldest first. Never empty.
#[derive(Debug)]
pub(crate) struct Line {
    pub backlog: Arc<Backlog>,
    pub ids: VecDeque<u32>,
}

/// The lines of one worker.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    lines: VecDeque<Line>,
    len: usize,
    /// When the lines are looked at.
    look_at: Nanos,
}

impl RequestQueue {
    pub fn new() -> RequestQueue {
        RequestQueue { lines: VecDeque::new(), len: 0, look_at: Nanos::NEVER }
    }

    /// Queued requests of all listeners.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a request of this listener is queued here: a later one must not overtake it.
    pub fn has(&self, backlog: &Arc<Backlog>) -> bool {
        // Listeners with queued requests are few, so a search is cheap.
        backlog.queued() > 0 && self.lines.iter().any(|line| Arc::ptr_eq(&line.backlog, backlog))
    }

    /// A place for another request, unless the line or the worker's store is full.
    pub fn reserve(&self, backlog: &Arc<Backlog>) -> Option<RequestPlace> {
        if self.len < WORKER_QUEUE_MAX { RequestPlace::enter(backlog) } else { None }
    }

    /// Appends a request to the line of its listener.
    pub fn push(&mut self, now: Nanos, backlog: &Arc<Backlog>, id: u32) {
        debug_assert!(self.len < WORKER_QUEUE_MAX && backlog.queued() > 0, "the caller has reserved a place");
        self.len += 1;
        if self.lines.is_empty() {
            self.look_at = now + LOOK_INTERVAL;
        }
        match self.lines.iter_mut().find(|line| Arc::ptr_eq(&line.backlog, backlog)) {
            Some(line) => line.ids.push_back(id),
            None => self.lines.push_back(Line { backlog: backlog.clone(), ids: VecDeque::from([id]) }),
        }
    }

    /// Takes out a request, wherever it stands in its line.
    pub fn remove(&mut self, backlog: &Arc<Backlog>, id: u32) {
        let Some(at) = self.lines.iter().position(|line| Arc::ptr_eq(&line.backlog, backlog)) else { return };
        let ids = &mut self.lines[at].ids;
        // Peers withdraw the oldest requests first, so the search is short.
        let Some(place) = ids.iter().position(|other| *other == id) else { return };
        ids.remove(place);
        self.len -= 1;
        if ids.is_empty() {
            self.lines.remove(at);
        }
        self.check();
    }

    /// A place may have become free, or a listener may have ended: the lines are looked at in the next pass.
    pub fn look(&mut self) {
        if !self.lines.is_empty() {
            self.look_at = Nanos(0);
        }
    }

    /// When [`RequestQueue::lines_due`] has lines.
    pub fn next_deadline(&self) -> Nanos {
        self.look_at
    }

    /// How many lines are to be looked at now.
    pub fn lines_due(&mut self, now: Nanos) -> usize {
        if self.look_at > now {
            return 0;
        }
        self.look_at = now + LOOK_INTERVAL;
        self.check();
        self.lines.len()
    }

    /// The first line's oldest request, with its listener's backlog.
    pub fn first(&self) -> Option<(u32, Arc<Backlog>)> {
        let line = self.lines.front()?;
        line.ids.front().map(|id| (*id, line.backlog.clone()))
    }

    /// Moves the first line behind the others, if it is the line of `backlog`.
    pub fn rotate(&mut self, backlog: &Arc<Backlog>) {
        if self.lines.front().is_some_and(|line| Arc::ptr_eq(&line.backlog, backlog)) {
            self.lines.rotate_left(1);
        }
    }

    /// Gives back room that is not in use.
    pub fn shrink(&mut self) {
        self.lines.iter_mut().for_each(|line| line.ids.shrink_to_fit());
        self.lines.shrink_to_fit();
    }

    fn check(&mut self) {
        if self.lines.is_empty() {
            self.look_at = Nanos::NEVER;
        }
        debug_assert_eq!(self.len, self.lines.iter().map(|line| line.ids.len()).sum());
        debug_assert!(self.lines.iter().all(|line| !line.ids.is_empty()));
    }
}
