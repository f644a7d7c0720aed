//! The list of the outstanding requests of a Jetty, in posting order.

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
        let is_silent = !request.complete;
        let at = self.requests.insert(request).map_err(|_| UrmaError::Full)?;
        match self.requests.get_mut(record.tail) {
            Some(tail) => tail.next = at,
            None => record.head = at,
        }
        record.tail = at;
        if record.cursor.is_none() {
            record.cursor = at;
        }
        record.count += 1;
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
        let Some(&SendRecord { jetty, prev, next, complete, .. }) = self.requests.get(at) else { return };
        self.requests.discard(at);
        if let Some(prev) = self.requests.get_mut(prev) {
            prev.next = next;
        }
        if let Some(record) = self.requests.get_mut(next) {
            record.prev = prev;
        }
        if let Some(jetty) = node.objects.jetties.get_mut(jetty) {
            if jetty.head == at {
                jetty.head = next;
            }
            if jetty.tail == at {
                jetty.tail = prev;
            }
            if jetty.cursor == at {
                jetty.cursor = next;
            }
            debug_assert!(jetty.count > 0, "a request leaves an empty list");
            jetty.count -= 1;
        }
        if !complete {
            self.unlink_silent(node, jetty, at, next);
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
    pub(crate) fn find_request(&self, node: &NodeShared, jetty: PoolRef, tassn: u16) -> Option<PoolRef> {
        let record = node.objects.jetties.get(jetty)?;
        let mut at = record.head;
        let first = self.requests.get(at)?.tassn;
        let ahead = tassn.wrapping_sub(first);
        if ahead >= record.next_tassn.wrapping_sub(first) {
            return None;
        }
        // The list is in the order of the numbers.
        loop {
            let request = self.requests.get(at)?;
            if request.tassn.wrapping_sub(first) >= ahead {
                return (request.tassn == tassn).then_some(at);
            }
            at = request.next;
        }
    }
}
use crate::api::UrmaError;
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
