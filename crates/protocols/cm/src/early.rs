//! Requests that came before their listener.
//!
//! Two programs that have agreed by other means often go on at the same moment, one to connect and one to listen (perftest's `-R`
//! does so for its second connection). Where connecting takes milliseconds the listener is there in time; here it takes
//! microseconds, and a program on a busy host may come second. So a request for a service that nobody has, a REQ or a SIDR_REQ,
//! is kept for [`GRACE`] before it is rejected. The time is short against any timeout of connection management, and the room is
//! bounded: what finds it full is rejected at once.

use crate::api::PathRecord;
use crate::message::Mad;
use burst_base::Nanos;
use burst_wire::MAD_LEN;
use std::collections::VecDeque;

/// How long a request may be early.
pub(crate) const GRACE: Nanos = Nanos::from_ms(50);
/// Most requests kept.
pub(crate) const ROOM: usize = 64;

/// A request, as it came.
#[derive(Debug)]
pub(crate) struct EarlyRequest {
    pub path: PathRecord,
    pub bytes: [u8; MAD_LEN],
    /// When it is rejected.
    pub due: Nanos,
}

/// The requests, oldest first.
#[derive(Debug)]
pub(crate) struct EarlyRequests {
    held: VecDeque<EarlyRequest>,
    /// How many of them, from the front, are to be looked at because somebody began to listen.
    look: usize,
}

impl EarlyRequests {
    pub fn new() -> EarlyRequests {
        EarlyRequests { held: VecDeque::with_capacity(ROOM), look: 0 }
    }

    /// Keeps a request; whether there was room.
    pub fn hold(&mut self, now: Nanos, path: &PathRecord, mad: &Mad<'_>) -> bool {
        if self.held.len() == ROOM {
            return false;
        }
        let mut bytes = [0; MAD_LEN];
        mad.emit(&mut bytes);
        self.held.push_back(EarlyRequest { path: *path, bytes, due: now + GRACE });
        true
    }

    /// Somebody listens: all must be looked at.
    pub fn look(&mut self) {
        self.look = self.held.len();
    }

    /// When [`Early::next`] has something.
    pub fn next_deadline(&self) -> Nanos {
        match self.held.front() {
            Some(_) if self.look > 0 => Nanos(0),
            Some(first) => first.due,
            None => Nanos::NEVER,
        }
    }

    /// The next that is over, or that may have a listener now.
    pub fn next(&mut self, now: Nanos) -> Option<EarlyRequest> {
        if self.next_deadline() > now {
            return None;
        }
        self.look = self.look.saturating_sub(1);
        self.held.pop_front()
    }

    /// It has no listener yet. It goes behind the others, so that the order is the old one when all have been looked at.
    pub fn keep(&mut self, held: EarlyRequest) {
        self.held.push_back(held);
    }
}
