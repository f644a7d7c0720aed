//! The end of the daemon, as the program sees it: its queue pairs are in ERR, and the library flushes them.
//!
//! The daemon holds the write ends of all pipes of events; their hang-up tells the library that the daemon has ended. Whoever
//! finds this out (a poll, or a read of events) calls [`flush`], which walks over the queue pairs of the context, makes the
//! missing completions ([`burst_client::raw::flush`]), and owes the program the event IBV_EVENT_DEVICE_FATAL, and
//! IBV_EVENT_QP_LAST_WQE_REACHED for each queue pair with a shared receive queue (IBA 11.6.3.1: its receives are not flushed).
//! Later polls go through functions that flush first, because programs may still post.
//!
//! Locks that another holder has are not waited for: a program may post or poll in the middle of an extended call. The next poll
//! flushes what is left.

use crate::context::{EventSource, VerbsContext};
use crate::cq::VerbsCq;
use crate::cq_ex;
use crate::poll;
use crate::qp::VerbsQp;
use crate::sys::*;
use burst_base::verbs::{EventType, QpType};
use burst_client::raw::completion::CompletionRing;
use burst_client::raw::flush::{FlushCursor, FlushedQueue, flush_receives, flush_sends};
use burst_client::raw::lock::lock;
use burst_control::{AsyncObject, AsyncRecord};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Entries of each work queue that have completed, by completion queue.
type Completed = HashMap<*const VerbsCq, HashMap<FlushedQueue, u32>>;

/// Flushes all queue pairs of a context whose daemon has ended. `poller` is the CQ that this thread polls: a CQ that is used
/// without a lock is flushed by its poller only.
#[cold]
pub fn flush(context: &VerbsContext, poller: Option<&VerbsCq>) {
    let sources = lock(&context.sources);
    let mut owed = lock(&context.owed);
    context.set_poll_cq(poll::poll_flushed);
    // A daemon that ends as it should says so, and raises the events of its queue pairs itself.
    let fell = !owed.fatal;
    if fell {
        owed.fatal = true;
        let event = EventType::DeviceFatal as u32;
        owed.records.push_back(AsyncRecord { event, object: AsyncObject::Device, cookie: 0 });
    }
    let mut completed = Completed::new();
    for source in sources.all() {
        match source {
            // SAFETY: objects leave the table under its lock before they are freed.
            EventSource::Cq(cq) => unsafe { cq_ex::poll_flushed(cq.as_ptr()) },
            EventSource::Qp(qp) => {
                // SAFETY: as above.
                let Ok(qp) = (unsafe { VerbsQp::from_ibv(qp.as_ptr()) }) else { continue };
                if flush_qp(qp, poller, &mut completed) && fell {
                    let event = EventType::QpLastWqeReached as u32;
                    owed.records.push_back(AsyncRecord { event, object: AsyncObject::Qp, cookie: qp.event_cookie() });
                }
            }
            EventSource::Srq(_) => {}
        }
    }
}

/// Flushes a queue pair. True: its state was not ERR before, and it has a shared receive queue.
fn flush_qp(qp: &VerbsQp, poller: Option<&VerbsCq>, completed: &mut Completed) -> bool {
    if qp.state() == IBV_QPS_RESET {
        return false;
    }
    let is_first = qp.state() != IBV_QPS_ERR;
    qp.set_state(IBV_QPS_ERR);
    if qp.qp_type == QpType::XrcRecv {
        return false;
    }
    // SAFETY: the queue pair is in the table, hence alive, and no target.
    let Ok((send_cq, recv_cq)) = (unsafe { qp.send_and_recv_cq() }) else { return false };
    let mut flushed = qp.flushed.lock();
    if may_flush(send_cq, poller) {
        flush_send_queue(qp, send_cq, &mut flushed, completed);
    }
    if may_flush(recv_cq, poller) {
        flush_receive_queue(qp, recv_cq, &mut flushed, completed);
    }
    is_first && qp.uses_srq()
}

fn may_flush(cq: &VerbsCq, poller: Option<&VerbsCq>) -> bool {
    !cq.single_threaded.load(Ordering::Relaxed) || poller.is_some_and(|poller| std::ptr::eq(poller, cq))
}

fn flush_send_queue(qp: &VerbsQp, cq: &VerbsCq, flushed: &mut FlushCursor, completed: &mut Completed) {
    let (Some(side), Some(mut ring)) = (qp.sq.side.try_lock(), cq.inner.try_lock()) else { return };
    let queue = FlushedQueue { cookie: qp.named().cookie, is_recv: false };
    let from = flushed.send.unwrap_or_else(|| {
        completed_in(cq, &mut ring, completed).get(&queue).copied().unwrap_or_else(|| qp.sq.slots.retired())
    });
    flushed.send = Some(flush_sends(qp.named(), &side.ring, from, &mut ring.carried));
}

fn flush_receive_queue(qp: &VerbsQp, cq: &VerbsCq, flushed: &mut FlushCursor, completed: &mut Completed) {
    let Some(queue) = &qp.rq else { return };
    let (Some(ends), Some(mut ring)) = (queue.try_lock(), cq.inner.try_lock()) else { return };
    let queue = FlushedQueue { cookie: qp.named().cookie, is_recv: true };
    let from = flushed.recv.unwrap_or_else(|| {
        completed_in(cq, &mut ring, completed).get(&queue).copied().unwrap_or_else(|| qp.sq.slots.received())
    });
    flushed.recv = Some(flush_receives(qp.named(), &ends, from, &mut ring.carried));
}

/// The completed entries by the completions that the daemon has written. They come before those of the library.
fn completed_in<'a>(
    cq: &VerbsCq,
    ring: &mut CompletionRing,
    completed: &'a mut Completed,
) -> &'a HashMap<FlushedQueue, u32> {
    completed.entry(std::ptr::from_ref(cq)).or_insert_with(|| ring.carry_all())
}

/// The cookie of a CQ of a channel whose program waits for an event, and which has completions. `None`: there is none.
pub fn next_event(context: &VerbsContext, channel: *mut ibv_comp_channel) -> Option<u64> {
    flush(context, None);
    let sources = lock(&context.sources);
    let mut cqs = sources.all().filter_map(|source| match source {
        // SAFETY: objects leave the table under its lock before they are freed.
        EventSource::Cq(cq) => unsafe { VerbsCq::from_ibv(cq.as_ptr()) }.ok(),
        _ => None,
    });
    let due = cqs.find(|cq| {
        std::ptr::eq(cq.channel(), channel)
            && cq.inner.try_lock().is_some_and(|ring| {
                let flushed_later = cq.single_threaded.load(Ordering::Relaxed);
                (flushed_later || !ring.carried.is_empty()) && ring.ring.disarm()
            })
    })?;
    Some(due.cookie())
}

/// The next asynchronous event that the library owes the program; `None`: there is none.
pub fn next_async_event(context: &VerbsContext) -> Option<AsyncRecord> {
    flush(context, None);
    lock(&context.owed).records.pop_front()
}

/// Notes an event that the daemon has written. After DEVICE_FATAL the library owes nothing: the daemon ends as it should, and has
/// raised the other events itself.
pub fn note_async_event(context: &VerbsContext, record: &AsyncRecord) {
    if record.event == EventType::DeviceFatal as u32 {
        let mut owed = lock(&context.owed);
        owed.fatal = true;
        owed.records.clear();
    }
}
