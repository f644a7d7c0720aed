//! Sweeps that are due: work on all requests of a channel, which [`crate::initiator::sweep`] does in parts.

use crate::channels::channel::LaneHealth;
use crate::node_eid::NodeEid;
use crate::pool::{PoolList, PoolRef};
use std::collections::{HashMap, VecDeque};

/// Requests, packets and timers that one call of [`crate::UrmaNode::on_timer`] handles before others go on. Tens of microseconds.
pub(crate) const PASS_STEPS: u64 = 1024;
/// Requests of one channel in its turn.
pub(crate) const TURN_REQUESTS: usize = 256;

/// Why a channel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelEnd {
    /// The peer does not answer, or has ended it.
    Failed,
    /// The peer has restarted: requests of which nothing was sent leave on a new channel.
    Restarted,
}

/// A channel that has ended, and whose requests have not.
#[derive(Debug)]
pub(crate) struct EndedChannel {
    pub(crate) peer: NodeEid,
    pub(crate) why: ChannelEnd,
    pub(crate) requests: PoolList,
}

/// What is done with the requests of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SweepKind {
    /// The channel has ended.
    End,
    /// The lane is silent: what may go on on another one that is at least this healthy does.
    Relieve(LaneHealth),
    /// Another lane was heard for the first time: it takes its share of what is not sent.
    Share(PoolRef),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) channel: PoolRef,
    pub(crate) kind: SweepKind,
    /// Requests that were in the list when the sweep began, and have not been looked at. Those behind them are newer.
    pub(crate) left: u32,
}

/// Sweeps that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    pub(crate) queue: VecDeque<Sweep>,
    pub(crate) ended: HashMap<PoolRef, EndedChannel, foldhash::fast::RandomState>,
    /// Requests, packets and timers that calls of [`crate::UrmaNode::on_timer`] have handled.
    pub(crate) steps: u64,
}

impl Sweeps {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
    /// The list of a channel that has ended.
    #[cold]
    pub(crate) fn list_of(&mut self, channel: PoolRef) -> Option<&mut PoolList> {
        self.ended.get_mut(&channel).map(|ended| &mut ended.requests)
    }
    /// A channel has ended, and its requests are to end.
    pub(crate) fn end(&mut self, channel: PoolRef, (peer, why): (NodeEid, ChannelEnd), requests: PoolList) {
        if !requests.is_empty() {
            let before = self.ended.insert(channel, EndedChannel { peer, why, requests });
            debug_assert!(before.is_none(), "a channel has ended twice");
            self.queue.push_back(Sweep { channel, kind: SweepKind::End, left: 0 });
        }
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Sweep>() + self.ended.capacity() * size_of::<(PoolRef, EndedChannel)>()
    }
}
