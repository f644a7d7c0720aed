//! The transport channels of a node: their table, and whose turn to send it is.
//!
//! A channel belongs to two hosts, or to one of their lanes, and serves all their Jetties. Channels know neither Jetty nor
//! message: their queues hold references, by which the node asks initiator and target for the packets. A channel that ends is
//! kept in `ended` until the node has removed what its peer had under way here.
//!
//! | file | what it holds |
//! |---|---|
//! | `channel` | one channel: identity, queues, counts |
//! | `tx_window`, `rx_window` | its two halves: packets in flight, arrived packets |
//! | `acknowledgements` | when an acknowledgement is due, and its packet |
//! | `path_room` | the paths to peers: what may leave, what was sent and acknowledged |
//! | `management`, `opening` | the messages by which channels open and end; answers to them |
//! | `restart` | peers that may have restarted, or have ended |
//! | `lanes` | several channels to one peer: choice, opening, failure |
//! | `deadlines` | retransmission, probes, late acknowledgements |
//! | `sweeps` | work on all requests of a channel that is to be done |
//! | `check` | what must hold between two calls |

pub(crate) mod acknowledgements;
pub(crate) mod channel;
pub(crate) mod check;
pub(crate) mod deadlines;
pub(crate) mod lanes;
pub(crate) mod management;
pub(crate) mod opening;
pub(crate) mod path_room;
pub(crate) mod restart;
pub(crate) mod rx_window;
pub(crate) mod sweeps;
pub(crate) mod tx_window;

use crate::api::{LANES_MAX, UrmaConfig, UrmaTransmit};
use crate::channels::channel::{ChannelState, TpChannel};
use crate::channels::lanes::LaneRest;
use crate::channels::management::{TpMessage, TpMessageKind};
use crate::channels::sweeps::{ChannelEnd, Sweeps};
use crate::channels::tx_window::TxOwner;
use crate::initiator::send_record::SendRecord;
use crate::node_eid::NodeEid;
use crate::paths::{FlightBytes, NO_PATH};
use crate::pool::{PoolList, PoolRef, UrmaPool};
use crate::timers::UrmaTimers;
use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_ubwire::{
    Btah, CongestionField, Dialect, Mtetah, NextLayer, Nth, Rtph, ServiceMode, TaHeader, TaOpcode, TaRequest, UbHead,
};
use std::collections::{BTreeMap, VecDeque};

/// Packets of one channel in its turn: ports make trains of consecutive packets to one peer on one lane.
pub(crate) const CHANNEL_TURN_PACKETS: u8 = 16;
/// Queued management messages at most.
pub(crate) const MANAGEMENT_MAX: usize = 256;

/// All channels of a node.
pub(crate) struct Channels {
    /// The node's constants.
    pub(crate) config: UrmaConfig,
    rng: Rng,
    incarnations: u64,
    pub(crate) table: UrmaPool<TpChannel>,
    /// Channels by peer and lane.
    pub(crate) by_peer: BTreeMap<(NodeEid, u8), PoolRef>,
    /// Lanes that have failed and are not open.
    rests: BTreeMap<(NodeEid, u8), LaneRest>,
    /// Channels that may have something to send. It is the first one's turn.
    pub(crate) active: VecDeque<PoolRef>,
    /// Packets that it has sent in its turn.
    pub(crate) channel_turn: u8,
    /// Channels that wait for their paths.
    pub(crate) blocked: Vec<PoolRef>,
    /// Paths of channels that have ended, and what those had in flight.
    pub(crate) left: Vec<(u32, FlightBytes)>,
    /// When the next UNKNOWN may leave, if it were not for the burst that is allowed.
    unknown_at: Nanos,
    /// Management messages to send: where to, on the path of which lane, and the message.
    pub(crate) management: VecDeque<(NodeEid, u8, TpMessage)>,
    pub(crate) timers: UrmaTimers,
    pub(crate) sweeps: Sweeps,
    /// The place of the table at which was looked last for a channel that nothing needs.
    looked: u32,
    /// Channels that have ended in this call of the node.
    pub(crate) ended: Vec<(PoolRef, TpChannel)>,
}

impl Channels {
    pub(crate) fn new(config: UrmaConfig) -> Self {
        Channels {
            rng: Rng::new(config.seed),
            incarnations: config.incarnation,
            table: UrmaPool::new(config.channels_max.min(1 << 16)),
            by_peer: BTreeMap::new(),
            rests: BTreeMap::new(),
            active: VecDeque::new(),
            channel_turn: 0,
            blocked: Vec::new(),
            left: Vec::new(),
            unknown_at: Nanos(0),
            management: VecDeque::new(),
            timers: UrmaTimers::default(),
            sweeps: Sweeps::default(),
            looked: 0,
            ended: Vec::new(),
            config,
        }
    }
    #[inline]
    pub(crate) fn get(&self, at: PoolRef) -> Option<&TpChannel> {
        self.table.get(at)
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, at: PoolRef) -> Option<&mut TpChannel> {
        self.table.get_mut(at)
    }
    /// A packet of the channel whose turn it is leaves; `is_last`: it has no other one.
    pub(crate) fn end_turn(&mut self, is_last: bool) {
        debug_assert!(!self.active.is_empty(), "a turn ends that no channel has");
        if is_last {
            self.deactivate_first();
        } else if self.channel_turn >= CHANNEL_TURN_PACKETS {
            self.channel_turn = 0;
            self.active.rotate_left(1);
        }
    }
    /// The channel whose turn it is has nothing to send any more, or may not.
    pub(crate) fn deactivate_first(&mut self) {
        self.channel_turn = 0;
        let first = self.active.pop_front();
        if let Some(channel) = first.and_then(|channel| self.table.get_mut(channel)) {
            channel.is_active = false;
            channel.is_confirmed &= !channel.has_nothing_to_send();
            channel.trim();
        }
    }
    /// The channel may have something to send.
    pub(crate) fn activate(&mut self, at: PoolRef) {
        if let Some(channel) = self.table.get_mut(at)
            && !channel.is_active
        {
            channel.is_active = true;
            // A request and the answer to the peer's: the longer packet first, so that both are one train, and the peer has the
            // request when it learns that its own is done.
            channel.is_answers_turn = false;
            self.active.push_back(at);
        }
    }
    /// A message waits for its turn on a channel.
    pub(crate) fn enqueue(&mut self, channel: PoolRef, owner: TxOwner) {
        if let Some(record) = self.table.get_mut(channel) {
            record.enqueue(owner);
            self.activate(channel);
        }
    }
    pub(crate) fn network_header(&self, dest: NodeEid, next: NextLayer) -> Nth {
        let congestion = CongestionField::default();
        let (source, dest) = (self.config.eid.cna(), dest.cna());
        Nth { source, dest, congestion, balance: 0, service_level: 0, next }
    }
    pub(crate) fn write_management(
        &self,
        (dest, lane): (NodeEid, u8),
        message: &TpMessage,
        out: &mut [u8],
    ) -> UrmaTransmit {
        let mut request = TaRequest::new(Btah { mode: ServiceMode::Uno, ..Btah::new(TaOpcode::Management, 0, 0) });
        request.base.has_target = true;
        request.target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: 0 });
        let nth = self.network_header(dest, NextLayer::Unreliable);
        let head = UbHead { nth, rtph: None, cetph: None, saetph: None, ta: Some(TaHeader::Request(request)) };
        let len = head.emit(&Dialect::BURST, out);
        out[len..len + TpMessage::LEN].copy_from_slice(&message.bytes());
        UrmaTransmit::whole((dest, lane), len + TpMessage::LEN)
    }
    pub(crate) fn push_management(&mut self, dest: NodeEid, message: TpMessage) {
        self.push_management_on(dest, message.lane, message);
    }
    /// The same on the path of a lane.
    pub(crate) fn push_management_on(&mut self, dest: NodeEid, lane: u8, message: TpMessage) {
        if self.management.len() < MANAGEMENT_MAX {
            self.management.push_back((dest, lane, message));
        }
    }
    /// The channel that a packet names, if it is the sender's.
    pub(crate) fn receiver(&self, from: NodeEid, rtph: &Rtph) -> Result<PoolRef, Reason> {
        let at = self.table.ref_of(rtph.dst_tpn & 0xffff).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.table.get(at).ok_or(Reason::UbUnknownChannel)?;
        let is_its = channel.state == ChannelState::Open
            && (channel.local_tpn, channel.peer_tpn, channel.peer) == (rtph.dst_tpn, rtph.src_tpn, from);
        if is_its { Ok(at) } else { Err(Reason::UbUnknownChannel) }
    }
    /// A packet of the peer has come on a channel.
    #[inline]
    pub(crate) fn on_heard(&mut self, now: Nanos, at: PoolRef) {
        let Some(channel) = self.table.get_mut(at) else { return };
        channel.heard_at = now;
        if channel.is_doubted {
            self.end_doubt(at, now);
        } else if !channel.is_used {
            (channel.is_used, channel.failures) = (true, 0);
            let peer = channel.peer;
            self.lane_is_heard(at, peer, now);
        }
    }
    /// So many payloads of a channel have left the reorder buffer.
    pub(crate) fn unhold(&mut self, at: PoolRef, count: u32) {
        if let Some(channel) = self.table.get_mut(at) {
            debug_assert!(channel.held >= count);
            channel.held -= count;
        }
    }
    /// A request of a channel is answered, or goes on on another one: the list in which it is.
    #[inline]
    pub(crate) fn end_request(&mut self, request: &SendRecord) -> Option<&mut PoolList> {
        match self.table.get_mut(request.channel) {
            Some(channel) => {
                channel.end(request);
                Some(&mut channel.requests)
            }
            None => self.sweeps.list_of(request.channel),
        }
    }
    /// A channel has failed, or its peer has started a new one. Its requests end in later calls of [`crate::UrmaNode::on_timer`].
    pub(crate) fn end(&mut self, at: PoolRef, why: ChannelEnd) {
        let Some(channel) = self.table.remove(at) else { return };
        let (peer, key) = (channel.peer, (channel.peer, channel.lane));
        if self.by_peer.get(&key) == Some(&at) {
            self.by_peer.remove(&key);
        }
        // Its place in `active` is found vacant when it has its turn.
        if self.lanes_to(peer).next().is_none() {
            self.forget_rests(peer);
        }
        if channel.path != NO_PATH {
            self.left.push((channel.path, channel.reported));
        }
        self.sweeps.end(at, (peer, why), channel.requests);
        self.ended.push((at, channel));
    }
    /// Ends the channels to a peer as if they had failed.
    pub(crate) fn end_all_to(&mut self, peer: NodeEid) {
        let lanes: Vec<PoolRef> = self.lanes_to(peer).map(|(at, _)| at).collect();
        // None of them takes the requests of another one.
        (0..LANES_MAX).for_each(|lane| _ = self.by_peer.remove(&(peer, lane)));
        for at in lanes {
            self.end(at, ChannelEnd::Failed);
        }
    }
    /// The node is about to be closed: all peers are sent END, and nothing else leaves any more.
    pub(crate) fn leave(&mut self) {
        self.active.clear();
        self.channel_turn = 0;
        for (_, channel) in self.table.iter().filter(|(_, channel)| channel.state == ChannelState::Open) {
            let echo = (channel.peer_tpn, channel.peer_incarnation);
            let message = channel.message(TpMessageKind::End, echo, &self.config);
            self.management.push_back((channel.peer, channel.lane, message));
        }
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let own: usize = self.table.iter().map(|(_, c)| c.heap_bytes()).sum();
        self.table.heap_bytes()
            + own
            + self.by_peer.len() * 2 * size_of::<((NodeEid, u8), PoolRef)>()
            + self.rests.len() * 2 * size_of::<((NodeEid, u8), LaneRest)>()
            + (self.active.capacity() + self.blocked.capacity()) * size_of::<PoolRef>()
            + self.left.capacity() * size_of::<(u32, FlightBytes)>()
            + self.timers.heap_bytes()
    }
}
