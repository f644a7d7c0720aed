//! The list of the outstanding requests of a Jetty, in posting order.
//!
//! A Jetty may have 2^15 requests outstanding, and no packet or completion may cost as many steps. So the list knows its oldest
//! request of each kind that is looked for: places that move forward only, so that each request is passed once. A response names
//! its request by number. Nearly always it is one of the first; a search that passes [`PASSED_MAX`] others makes an index of the
//! Jetty's requests ([`RequestIndex`]), which is kept while it has any.

/// Requests that a search for a number passes at most.
const PASSED_MAX: u32 = 64;

impl Initiator {
    /// Adds a request to the end of its Jetty's list.
    pub(crate) fn link(
        &mut self,
        node: &mut NodeShared,
        jetty: PoolRef,
        mut request: SendRecord,
    ) -> Result<PoolRef, UrmaError> {
        let Some(record) = node.objects.jetties.get_mut(jetty) else { return Err(UrmaError::NoObject) };
        debug_assert!(request.phase == RequestPhase::Posted && request.next.is_none());
        request.prev = record.tail;
        let (is_silent, is_in_order, tassn) = (!request.complete, request.completion_order, request.tassn);
        let at = self.requests.insert(request).map_err(|_| UrmaError::Full)?;
        if record.is_indexed {
            self.index.insert(jetty, tassn, at);
        }
        match self.requests.get_mut(record.tail) {
            Some(tail) => tail.next = at,
            None => record.head = at,
        }
        record.tail = at;
        if record.cursor.is_none() {
            record.cursor = at;
        }
        if record.stream_from.is_none() {
            record.stream_from = at;
        }
        if is_in_order && record.oldest_in_order.is_none() {
            record.oldest_in_order = at;
        }
        record.count += 1;
        debug_assert!(record.count <= record.config.depth, "a Jetty has more requests than it may");
        if is_silent {
            record.silents += 1;
            if record.oldest_silent.is_none() {
                record.oldest_silent = at;
            }
        }
        record.next_tassn = record.next_tassn.wrapping_add(1);
        Ok(at)
    }
    /// Removes a request and takes it from its Jetty's list.
    pub(crate) fn unlink(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(&SendRecord { jetty, prev, next, complete, tassn, .. }) = self.requests.get(at) else { return };
        self.requests.discard(at);
        if let Some(prev) = self.requests.get_mut(prev) {
            prev.next = next;
        }
        if let Some(record) = self.requests.get_mut(next) {
            record.prev = prev;
        }
        if let Some(record) = node.objects.jetties.get_mut(jetty) {
            if record.head == at {
                record.head = next;
            }
            if record.tail == at {
                record.tail = prev;
            }
            if record.cursor == at {
                record.cursor = next;
            }
            if record.stream_from == at {
                record.stream_from = next;
            }
            debug_assert!(record.count > 0, "a request leaves an empty list");
            record.count -= 1;
            debug_assert!((record.count == 0) == record.head.is_none(), "a Jetty's requests are counted wrong");
            if std::mem::take(&mut record.is_awaited) {
                node.objects.freed.push(record.config.owner);
            }
            if record.is_indexed {
                self.index.remove(jetty, tassn);
                record.is_indexed = record.count > 0;
            }
            if record.oldest_in_order == at {
                self.unlink_in_order(node, jetty, next);
            }
        }
        if !complete {
            self.unlink_silent(node, jetty, at, next);
        }
    }
    /// The oldest request with ordered completion has left its Jetty's list.
    fn unlink_in_order(&mut self, node: &mut NodeShared, jetty: PoolRef, mut next: PoolRef) {
        while let Some(request) = self.requests.get(next).filter(|request| !request.completion_order) {
            node.channels.sweeps.steps += 1;
            next = request.next;
        }
        if let Some(record) = node.objects.jetties.get_mut(jetty) {
            record.oldest_in_order = next;
        }
    }
    /// A request that asked for no completion has left its Jetty's list. The search for the next one goes forward only, so that
    /// each request is passed once.
    fn unlink_silent(&mut self, node: &mut NodeShared, jetty: PoolRef, at: PoolRef, mut next: PoolRef) {
        let Some(record) = node.objects.jetties.get_mut(jetty) else { return };
        debug_assert!(record.silents > 0, "requests without completion are counted wrong");
        record.silents -= 1;
        if record.oldest_silent != at {
            return;
        }
        if record.silents == 0 {
            next = PoolRef::NONE;
        }
        while let Some(request) = self.requests.get(next).filter(|request| request.complete) {
            next = request.next;
        }
        record.oldest_silent = next;
    }
    /// The outstanding request of a Jetty with this TASSN.
    pub(crate) fn find_request(&mut self, node: &mut NodeShared, jetty: PoolRef, tassn: u16) -> Option<PoolRef> {
        let record = node.objects.jetties.get(jetty)?;
        let mut at = record.head;
        let first = self.requests.get(at)?.tassn;
        let ahead = tassn.wrapping_sub(first);
        if ahead >= record.next_tassn.wrapping_sub(first) {
            return None;
        }
        if record.is_indexed {
            return self.index.get(jetty, tassn);
        }
        // The list is in the order of the numbers.
        for _ in 0..PASSED_MAX {
            let request = self.requests.get(at)?;
            if request.tassn.wrapping_sub(first) >= ahead {
                return (request.tassn == tassn).then_some(at);
            }
            node.channels.sweeps.steps += 1;
            at = request.next;
        }
        self.index_requests(node, jetty);
        self.index.get(jetty, tassn)
    }
    /// Indexes the requests of a Jetty: once, until it has none.
    #[cold]
    fn index_requests(&mut self, node: &mut NodeShared, jetty: PoolRef) {
        let Some(record) = node.objects.jetties.get_mut(jetty) else { return };
        debug_assert!(!record.is_indexed, "the requests of a Jetty are indexed twice");
        record.is_indexed = true;
        let mut at = record.head;
        while let Some(request) = self.requests.get(at) {
            node.channels.sweeps.steps += 1;
            self.index.insert(jetty, request.tassn, at);
            at = request.next;
        }
    }
}
use crate::api::UrmaError;
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
