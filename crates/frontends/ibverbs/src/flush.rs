//! The end of the daemon, as the program sees it: its queue pairs are in ERR, and the library flushes them.
//!
//! The daemon holds the write ends of all pipes of events; their hang-up tells the library that the daemon has ended. Whoever
//! finds this out (a poll, or a read of events) calls [`flush`], which walks over the queue pairs of the context, makes the
//! missing completions ([`burst_client::raw::flush`]), and owes the program the event IBV_EVENT_DEVICE_FATAL, and
//! IBV_EVENT_QP_LAST_WQE_REACHED for each queue pair with a shared receive queue (IBA 11.6.3.1: its receives are not flushed).
//! Later polls go through functions that flush first, because programs may still post; and who posts flushes ([`posted`]).
//!
//! Locks that another holder has are not waited for: a program may post or poll in the middle of an extended call. The next poll,
//! or read of events, flushes what is left.
//!
//! A descriptor of events hangs up until the program has got what is due. Then it rests, and is readable when more is due
//! ([`burst_client::raw::ended_pipe`]).

use crate::channel::VerbsChannel;
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
use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};

/// Entries of each work queue that have completed, by completion queue.
type Completed = HashMap<*const VerbsCq, HashMap<FlushedQueue, u32>>;

/// What a look for something has found, after the end of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueEvent<T> {
    /// It.
    Found(T),
    /// Nothing.
    Nothing,
    /// Another thread holds a lock: look again.
    Busy,
}

/// Flushes all queue pairs of a context whose daemon has ended. `poller` is the CQ that this thread polls: a CQ that is used
/// without a lock is flushed by its poller only. Returns false if another holder has a lock, so that not all was flushed.
#[cold]
pub fn flush(context: &VerbsContext, poller: Option<&VerbsCq>) -> bool {
    // A thread that posts without seeing the end of the daemon (`RawContext::is_known_to_have_ended`) did so before this fence:
    // it holds the lock of its queue, or its request is seen below.
    fence(Ordering::SeqCst);
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
    let (mut completed, mut is_whole) = (Completed::new(), true);
    for source in sources.all() {
        match source {
            // SAFETY: objects leave the table under its lock before they are freed.
            EventSource::Cq(cq) => unsafe { cq_ex::poll_flushed(cq.as_ptr()) },
            EventSource::Qp(qp) => {
                // SAFETY: as above.
                let Ok(qp) = (unsafe { VerbsQp::from_ibv(qp.as_ptr()) }) else { continue };
                let flushed = flush_qp(qp, poller, &mut completed);
                is_whole &= flushed.is_whole;
                if flushed.is_last_of_srq && fell {
                    let event = EventType::QpLastWqeReached as u32;
                    owed.records.push_back(AsyncRecord { event, object: AsyncObject::Qp, cookie: qp.event_cookie() });
                }
            }
            EventSource::Srq(_) => {}
        }
    }
    is_whole
}

/// What a flush of a queue pair has come to.
struct FlushedNow {
    /// No other holder has a lock.
    is_whole: bool,
    /// Its state was not ERR before, and it has a shared receive queue.
    is_last_of_srq: bool,
}

impl FlushedNow {
    /// There was nothing to do.
    const NOTHING: FlushedNow = FlushedNow { is_whole: true, is_last_of_srq: false };
}

fn flush_qp(qp: &VerbsQp, poller: Option<&VerbsCq>, completed: &mut Completed) -> FlushedNow {
    if qp.state() == IBV_QPS_RESET {
        return FlushedNow::NOTHING;
    }
    let is_first = qp.state() != IBV_QPS_ERR;
    qp.set_state(IBV_QPS_ERR);
    if qp.qp_type == QpType::XrcRecv {
        return FlushedNow::NOTHING;
    }
    // SAFETY: the queue pair is in the table, hence alive, and no target.
    let Ok((send_cq, recv_cq)) = (unsafe { qp.send_and_recv_cq() }) else { return FlushedNow::NOTHING };
    let mut flushed = qp.flushed.lock();
    let mut is_whole = true;
    if may_flush(send_cq, poller) {
        is_whole &= flush_send_queue(qp, send_cq, &mut flushed, completed);
    }
    if may_flush(recv_cq, poller) {
        is_whole &= flush_receive_queue(qp, recv_cq, &mut flushed, completed);
    }
    FlushedNow { is_whole, is_last_of_srq: is_first && qp.uses_srq() }
}

fn may_flush(cq: &VerbsCq, poller: Option<&VerbsCq>) -> bool {
    !cq.single_threaded.load(Ordering::Relaxed) || poller.is_some_and(|poller| std::ptr::eq(poller, cq))
}

/// Flushes a send queue. False: another holder has a lock.
fn flush_send_queue(qp: &VerbsQp, cq: &VerbsCq, flushed: &mut FlushCursor, completed: &mut Completed) -> bool {
    let (Some(side), Some(mut ring)) = (qp.sq.side.try_lock(), cq.inner.try_lock()) else { return false };
    let queue = FlushedQueue { cookie: qp.named().cookie, is_recv: false };
    let from = flushed.send.unwrap_or_else(|| {
        completed_in(cq, &mut ring, completed).get(&queue).copied().unwrap_or_else(|| qp.sq.slots.retired())
    });
    flushed.send = Some(flush_sends(qp.named(), &side.ring, from, &mut ring.carried));
    true
}

/// Flushes a receive queue. False: another holder has a lock.
fn flush_receive_queue(qp: &VerbsQp, cq: &VerbsCq, flushed: &mut FlushCursor, completed: &mut Completed) -> bool {
    let Some(queue) = &qp.rq else { return true };
    let (Some(ends), Some(mut ring)) = (queue.try_lock(), cq.inner.try_lock()) else { return false };
    let queue = FlushedQueue { cookie: qp.named().cookie, is_recv: true };
    let from = flushed.recv.unwrap_or_else(|| {
        completed_in(cq, &mut ring, completed).get(&queue).copied().unwrap_or_else(|| qp.sq.slots.received())
    });
    flushed.recv = Some(flush_receives(qp.named(), &ends, from, &mut ring.carried));
    true
}

/// The completed entries by the completions that the daemon has written. They come before those of the library.
fn completed_in<'a>(
    cq: &VerbsCq,
    ring: &mut CompletionRing,
    completed: &'a mut Completed,
) -> &'a HashMap<FlushedQueue, u32> {
    completed.entry(std::ptr::from_ref(cq)).or_insert_with(|| ring.carry_all())
}

/// Whether a CQ has completions for which its program waits for an event.
fn is_due(cq: &VerbsCq, ring: &CompletionRing) -> bool {
    let is_flushed_later = cq.single_threaded.load(Ordering::Relaxed);
    (is_flushed_later || !ring.carried.is_empty()) && ring.ring.is_armed()
}

/// The CQs among the objects of a context.
///
/// # Safety
/// The caller holds the lock of the table.
unsafe fn cqs<'a>(sources: impl Iterator<Item = EventSource>) -> impl Iterator<Item = &'a VerbsCq> {
    sources.filter_map(|source| match source {
        // SAFETY: objects leave the table under its lock before they are freed.
        EventSource::Cq(cq) => unsafe { VerbsCq::from_ibv(cq.as_ptr()) }.ok(),
        _ => None,
    })
}

/// The cookie of a CQ of a channel whose program waits for an event, and which has completions. Its request is answered.
fn next_event(context: &VerbsContext, channel: &VerbsChannel) -> DueEvent<u64> {
    let mut is_whole = flush(context, None);
    let sources = lock(&context.sources);
    // SAFETY: the lock is held.
    for cq in unsafe { cqs(sources.all()) }.filter(|cq| channel.is_of(cq)) {
        let Some(ring) = cq.inner.try_lock() else {
            is_whole = false;
            continue;
        };
        if is_due(cq, &ring) && ring.ring.disarm() {
            return DueEvent::Found(cq.cookie());
        }
    }
    if is_whole { DueEvent::Nothing } else { DueEvent::Busy }
}

/// The cookie of a CQ whose program must get an event next. If there is none, the channel rests until there is.
pub fn completion_event(context: &VerbsContext, channel: &VerbsChannel) -> Option<u64> {
    channel.end.drain();
    let mut due = next_event(context, channel);
    if due == DueEvent::Nothing {
        channel.end.rest(channel.pipe());
        // What became due before it rested was not announced.
        due = next_event(context, channel);
    }
    match due {
        DueEvent::Nothing => None,
        // Once more, for another holder's completions.
        DueEvent::Busy => {
            channel.end.announce();
            None
        }
        DueEvent::Found(cookie) => {
            announce_due(context, |other| channel.is_of(other));
            Some(cookie)
        }
    }
}

/// Lets the channels be readable whose programs must get an event of one of these CQs.
fn announce_due(context: &VerbsContext, of: impl Fn(&VerbsCq) -> bool) {
    let sources = lock(&context.sources);
    // SAFETY: the lock is held.
    for cq in unsafe { cqs(sources.all()) }.filter(|cq| of(cq)) {
        // SAFETY: a channel outlives its CQs (EBUSY).
        let Some(channel) = (unsafe { VerbsChannel::from_ibv(cq.channel()) }) else { continue };
        if cq.inner.try_lock().is_none_or(|ring| is_due(cq, &ring)) {
            channel.end.announce();
        }
    }
}

/// The next asynchronous event that the library owes the program. If there is none, the descriptor rests until there is.
pub fn async_event(context: &VerbsContext) -> Option<AsyncRecord> {
    context.async_end.drain();
    flush(context, None);
    let next = || {
        let mut owed = lock(&context.owed);
        let event = owed.records.pop_front();
        if !owed.records.is_empty() {
            context.async_end.announce();
        }
        event
    };
    next().or_else(|| {
        context.async_end.rest(context.async_fd().as_raw_fd());
        // As for completion events.
        next()
    })
}

/// A program has posted requests though the daemon has ended: they are flushed, and descriptors that rest are readable if the
/// program waits for that.
#[cold]
pub fn posted(context: &VerbsContext) {
    let is_whole = flush(context, None);
    if is_whole {
        announce_due(context, |_| true);
    } else {
        announce_all(context);
    }
    if !lock(&context.owed).records.is_empty() {
        context.async_end.announce();
    }
}

/// Lets all channels be readable: another thread holds a lock, and what is due is found by the next look.
fn announce_all(context: &VerbsContext) {
    let sources = lock(&context.sources);
    // SAFETY: the lock is held, and a channel outlives its CQs (EBUSY).
    let channels = unsafe { cqs(sources.all()).filter_map(|cq| VerbsChannel::from_ibv(cq.channel())) };
    channels.for_each(|channel| channel.end.announce());
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
