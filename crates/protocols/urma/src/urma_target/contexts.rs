//! Sequence contexts: the order of the requests of peers' Jetties, and the messages that wait for their turn.

use crate::channels::Channels;
use crate::channels::channel::TpChannel;
use crate::pool::{PoolRef, UrmaPool};
use crate::urma_target::message::MessageOrigin;
use crate::urma_target::order_tracker::{OrderTracker, OrderVerdict};
use burst_ubwire::{OrderTag, RC_TYPE_CONTEXT, ServiceMode};
use std::collections::HashMap;

/// A sequence context that this node keeps for a peer's Jetty.
#[derive(Debug)]
pub(crate) struct SequenceContext {
    /// Channel of the peer.
    channel: PoolRef,
    /// The peer's Jetty.
    rc_id: u32,
    /// What has been executed.
    tracker: OrderTracker,
    /// Messages that wait for their turn: number and record.
    pub(crate) waiting: Vec<(u16, PoolRef)>,
}

/// Whether a request may be executed.
pub(crate) enum Turn {
    Now,
    /// When the requests before it in this context are executed; its number there.
    Later(PoolRef, u16),
    Never,
}

/// All contexts.
#[derive(Debug)]
pub(crate) struct Contexts {
    pool: UrmaPool<SequenceContext>,
    /// The context of a peer's Jetty, by channel and Jetty.
    keys: HashMap<(u32, u32), PoolRef>,
    /// Contexts in which a request was executed, so that others may follow.
    moved: Vec<PoolRef>,
}

impl Contexts {
    pub(crate) fn new(contexts_max: usize) -> Self {
        Contexts { pool: UrmaPool::new(contexts_max.clamp(1, 1 << 16)), keys: HashMap::new(), moved: Vec::new() }
    }
    pub(crate) fn len(&self) -> usize {
        self.pool.len()
    }
    pub(crate) fn get_mut(&mut self, at: PoolRef) -> Option<&mut SequenceContext> {
        self.pool.get_mut(at)
    }
    /// Whether messages may have got their turn.
    #[inline]
    pub(crate) fn has_moved(&self) -> bool {
        !self.moved.is_empty()
    }
    /// The sequence context of a request, and its number there. `granted`: the context that it has been given just now.
    pub(crate) fn find(&self, origin: &MessageOrigin, granted: Option<u16>) -> Option<(PoolRef, u16)> {
        let base = &origin.request.base;
        let index = match granted {
            Some(granted) => granted,
            None if base.rc_type == RC_TYPE_CONTEXT => base.context,
            None => return None,
        };
        let at = self.pool.ref_of_short(index)?;
        let context = self.pool.get(at)?;
        let is_its = context.channel == origin.channel && context.rc_id == base.rc_id;
        is_its.then_some((at, base.order_number))
    }
    /// When a request may be executed.
    pub(crate) fn turn(&self, origin: &MessageOrigin) -> Turn {
        let base = &origin.request.base;
        if base.rc_type != RC_TYPE_CONTEXT {
            return Turn::Now;
        }
        let Some((at, number)) = self.find(origin, None) else { return Turn::Never };
        let Some(context) = self.pool.get(at) else { return Turn::Never };
        let order = if base.mode == ServiceMode::Rol { OrderTag::Strong } else { base.order };
        match context.tracker.judge(number, order) {
            OrderVerdict::Execute => Turn::Now,
            // A second one with its number would wait for ever.
            OrderVerdict::Wait if context.waiting.iter().any(|waiting| waiting.0 == number) => Turn::Never,
            OrderVerdict::Wait => Turn::Later(at, number),
            OrderVerdict::Repeated | OrderVerdict::Outside => Turn::Never,
        }
    }
    /// The present context of the Jetty that has sent a request.
    pub(crate) fn of_jetty(&self, origin: &MessageOrigin) -> Option<PoolRef> {
        self.keys.get(&(origin.channel.index(), origin.request.base.rc_id)).copied()
    }
    /// All contexts of a channel.
    pub(crate) fn of_channel(&self, channel: &TpChannel) -> Vec<PoolRef> {
        self.pool.listed(channel.context_list).collect()
    }
    /// Makes a context that begins with a request. `None`: there is no room.
    pub(crate) fn insert(&mut self, origin: &MessageOrigin) -> Option<PoolRef> {
        let base = &origin.request.base;
        let tracker = OrderTracker::new(base.order_number);
        let context = SequenceContext { channel: origin.channel, rc_id: base.rc_id, tracker, waiting: Vec::new() };
        self.pool.insert(context).ok()
    }
    /// A new context is its Jetty's from now on. The number by which the peer names it.
    pub(crate) fn register(&mut self, channels: &mut Channels, at: PoolRef) -> u16 {
        debug_assert!(self.pool.get(at).is_some(), "a context is given that is not there");
        if let Some(context) = self.pool.get(at) {
            let channel = context.channel;
            let before = self.keys.insert((channel.index(), context.rc_id), at);
            debug_assert!(before.is_none(), "a Jetty has two contexts");
            if let Some(channel) = channels.get_mut(channel) {
                channel.contexts += 1;
                self.pool.push_back(&mut channel.context_list, at);
            }
        }
        at.short(self.pool.limit())
    }
    pub(crate) fn remove(&mut self, channels: &mut Channels, at: PoolRef) {
        let Some(&SequenceContext { channel, rc_id, .. }) = self.pool.get(at) else { return };
        self.keys.remove(&(channel.index(), rc_id));
        if let Some(channel) = channels.get_mut(channel) {
            debug_assert!(channel.contexts > 0, "contexts of a channel are counted wrong");
            channel.contexts -= 1;
            self.pool.take_out(&mut channel.context_list, at);
        }
        self.pool.remove(at);
    }
    /// A request of a context was executed; others may follow when the packet has been handled.
    pub(crate) fn executed(&mut self, at: PoolRef, number: u16) {
        if let Some(context) = self.pool.get_mut(at) {
            context.tracker.executed(number);
            if !context.waiting.is_empty() {
                self.moved.push(at);
            }
        }
    }
    /// The next context in which messages may have got their turn.
    pub(crate) fn pop_moved(&mut self) -> Option<PoolRef> {
        self.moved.pop()
    }
    /// The next message of a context whose turn has come; it does not wait any more.
    pub(crate) fn next_ready(&mut self, at: PoolRef) -> Option<PoolRef> {
        let context = self.pool.get_mut(at)?;
        let is_ready = |number| context.tracker.judge(number, OrderTag::Strong) == OrderVerdict::Execute;
        let next = context.waiting.iter().position(|waiting| is_ready(waiting.0))?;
        Some(context.waiting.swap_remove(next).1)
    }
    /// A message does not wait any more.
    pub(crate) fn forget(&mut self, origin: &MessageOrigin, message: PoolRef) {
        if let Some((context, _)) = self.find(origin, None)
            && let Some(context) = self.pool.get_mut(context)
        {
            context.waiting.retain(|waiting| waiting.1 != message);
        }
    }
    /// A peer does not need its context any more.
    pub(crate) fn on_disconnect(&mut self, channels: &mut Channels, origin: &MessageOrigin) {
        if let Some((at, _)) = self.find(origin, None)
            && self.pool.get(at).is_some_and(|context| context.waiting.is_empty())
        {
            self.remove(channels, at);
        }
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let waiting: usize = self.pool.iter().map(|(_, c)| c.waiting.capacity() * size_of::<(u16, PoolRef)>()).sum();
        self.pool.heap_bytes() + self.keys.capacity() * size_of::<((u32, u32), PoolRef)>() + waiting
    }
}
