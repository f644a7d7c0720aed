//! A listener's backlog: how many of its requests wait for their accept, and how many wait behind those.
//!
//! The backlog that a program passes to `rdma_listen` bounds the requests that the program has been told of and has not
//! accepted. Requests beyond it are queued in the daemon (`queue.rs`) and told as places become free, so that a burst larger
//! than the backlog does not cost its peers a retransmission timeout (80 ms). Both counts are shared by the workers.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Requests that may wait for their accept, if the program has read their events, however small the backlog is.
pub const READ_MIN: u32 = 128;
/// Queued requests for each place of the backlog: a program that asks for a small backlog gets a short queue.
pub const QUEUED_PER_PLACE: u32 = 16;
/// Most queued requests of one listener, all workers together.
pub const LISTENER_QUEUE_MAX: u32 = 12 << 10;

/// What a queued request costs the listener's user: the host's own type, which is given back when it is dropped.
pub type RequestCharge = Box<dyn Any + Send>;

/// Counts of a listener's requests that wait. Programs rely on room for as many requests as their backlog whose events they have
/// not read (ucma of Linux): they may collect a few more than the backlog before they accept the first.
#[derive(Debug)]
pub struct Backlog {
    limit: u32,
    waiting: AtomicU32,
    queued: AtomicU32,
}

impl Backlog {
    /// A backlog of at most `limit` requests.
    pub const fn new(limit: u32) -> Backlog {
        Backlog { limit, waiting: AtomicU32::new(0), queued: AtomicU32::new(0) }
    }

    /// Takes a place; calls `unread` for the number of unread events only if the answer depends on it.
    fn enter(&self, unread: impl FnOnce() -> u32) -> bool {
        take(&self.waiting, self.limit)
            || self.limit < READ_MIN && unread() < self.limit && take(&self.waiting, READ_MIN)
    }

    /// Requests that the program was told of and has not accepted.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Requests that wait for a place.
    pub fn queued(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Most queued requests of this listener.
    pub fn queue_limit(&self) -> u32 {
        self.limit.saturating_mul(QUEUED_PER_PLACE).min(LISTENER_QUEUE_MAX)
    }
}

/// Adds one to a count, unless it has reached `most`.
fn take(count: &AtomicU32, most: u32) -> bool {
    // Relaxed: the count guards nothing but itself.
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
}

/// Subtracts one from a count.
fn give_back(count: &AtomicU32) {
    let before = count.fetch_sub(1, Ordering::Relaxed);
    debug_assert!(before > 0, "a place was given back twice");
}

/// A place in a backlog, given back when dropped.
#[derive(Debug)]
pub struct BacklogPlace(Arc<Backlog>);

impl BacklogPlace {
    pub(crate) fn enter(backlog: &Arc<Backlog>, unread: impl FnOnce() -> u32) -> Option<BacklogPlace> {
        backlog.enter(unread).then(|| BacklogPlace(backlog.clone()))
    }

    pub(crate) fn backlog(&self) -> &Arc<Backlog> {
        &self.0
    }
}

impl Drop for BacklogPlace {
    fn drop(&mut self) {
        give_back(&self.0.waiting);
    }
}

/// A place in the queue behind a backlog, given back when dropped.
#[derive(Debug)]
pub(crate) struct RequestPlace {
    backlog: Arc<Backlog>,
    /// What it costs the listener's user.
    charge: Option<RequestCharge>,
}

impl RequestPlace {
    pub fn enter(backlog: &Arc<Backlog>) -> Option<RequestPlace> {
        take(&backlog.queued, backlog.queue_limit()).then(|| RequestPlace { backlog: backlog.clone(), charge: None })
    }

    /// Keeps what the place costs the listener's user as long as the place.
    pub fn hold(&mut self, charge: Option<RequestCharge>) {
        debug_assert!(self.charge.is_none(), "a place is charged once");
        self.charge = charge;
    }

    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        give_back(&self.backlog.queued);
    }
}
