//! Requests that arrived before their listener.
//!
//! Two programs that have synchronised by other means often call connect and listen at the same moment (perftest's `-R`
//! does so for its second connection). Where connecting takes milliseconds, the listener exists in time; here it takes
//! microseconds, and on a busy host the listener may come second. A REQ or SIDR_REQ for a service without listener is therefore
//! kept for [`GRACE`] before it is rejected. The time is short against any timeout of connection management. At most [`ROOM`]
//! requests are kept; further ones are rejected at once.

use crate::api::PathRecord;
use crate::message::Mad;
use crate::source::Source;
use burst_base::Nanos;
use burst_wire::MAD_LEN;
use std::collections::VecDeque;

/// Time for which an early request is kept.
pub(crate) const GRACE: Nanos = Nanos::from_ms(50);
/// Most early requests of a worker.
pub(crate) const ROOM: usize = 128;
/// Most early requests of one source.
const SOURCE_ROOM: usize = 64;

/// A request as received.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    pub path: PathRecord,
    pub bytes: [u8; MAD_LEN],
    /// Time at which the request is rejected.
    pub due: Nanos,
}

/// The early requests of a worker, oldest first.
#[derive(Debug)]
pub(crate) struct EarlyRequests {
    requests: VecDeque<EarlyRequest>,
    /// Number of requests, from the front, to compare with the listeners because a new one exists.
    look: usize,
}

impl EarlyRequests {
    pub fn new() -> EarlyRequests {
        EarlyRequests { requests: VecDeque::new(), look: 0 }
    }

    /// Keeps a request. Returns false if there was no room.
    pub fn add(&mut self, now: Nanos, path: &PathRecord, mad: &Mad<'_>) -> bool {
        let source = Source::of(path.flow.dst);
        let same = self.requests.iter().filter(|request| Source::of(request.path.flow.dst) == source).count();
        if self.requests.len() == ROOM || same == SOURCE_ROOM {
            return false;
        }
        let mut bytes = [0; MAD_LEN];
        mad.emit(&mut bytes);
        self.requests.push_back(EarlyRequest { path: *path, bytes, due: now + GRACE });
        true
    }

    /// A new listener exists: all requests must be compared with it.
    pub fn look(&mut self) {
        self.look = self.requests.len();
        debug_assert!(self.look <= ROOM);
    }

    /// Time at which [`EarlyRequests::next`] returns a request.
    pub fn next_deadline(&self) -> Nanos {
        match self.requests.front() {
            Some(_) if self.look > 0 => Nanos(0),
            Some(first) => first.due,
            None => Nanos::NEVER,
        }
    }

    /// The next request whose time has passed, or that may have a listener now.
    pub fn next(&mut self, now: Nanos) -> Option<EarlyRequest> {
        if self.next_deadline() > now {
            return None;
        }
        self.look = self.look.saturating_sub(1);
        let first = self.requests.pop_front();
        debug_assert!(self.look <= self.requests.len(), "only requests in the store are compared");
        first
    }

    /// Puts back a request without listener. It goes behind the others, so the order is the same again after all were compared.
    pub fn put_back(&mut self, request: EarlyRequest) {
        debug_assert!(self.requests.len() < ROOM, "it was in the store a moment ago");
        self.requests.push_back(request);
    }
}
