//! What tools see of a node: numbers of its objects, and its channels.

use crate::api::UrmaEvent;
use crate::channels::channel::ChannelState;
use crate::node::UrmaNode;
use crate::node_eid::NodeEid;
use crate::paths::FlightBytes;
use crate::pool::PoolRef;
use burst_base::Nanos;

/// Numbers of objects of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Jetties and JFSs.
    pub jetties: usize,
    /// Receive queues.
    pub jfrs: usize,
    /// Completion queues.
    pub jfcs: usize,
    /// Registered segments.
    pub segments: usize,
    /// Requests outstanding.
    pub requests: usize,
}

/// A channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelView {
    /// Address of the peer.
    pub peer: NodeEid,
    /// Which of the channels to the peer.
    pub lane: u8,
    /// Number of this end.
    pub local_tpn: u32,
    /// Number of the peer's end; 0 until it is known.
    pub peer_tpn: u32,
    /// Whether the peer has answered; else the channel is being opened.
    pub is_open: bool,
    /// Packets in flight: sent, from the oldest one on that is not acknowledged.
    pub packets: usize,
    /// Their payload in bytes, without packets that are acknowledged or taken for lost.
    pub bytes: u32,
    /// Requests that are issued and that the peer has not answered.
    pub unanswered: u32,
    /// Smoothed round-trip time; 0 until it is measured.
    pub srtt: Nanos,
    /// Its path; [`crate::NO_PATH`] before something was to be sent.
    pub path: u32,
    /// What was reported of it to the path.
    pub reported: FlightBytes,
}

impl UrmaNode {
    /// The completion queue that the object of an event uses, or is; `None` if it was deleted.
    pub fn jfc_of(&self, event: UrmaEvent) -> Option<u32> {
        match event {
            UrmaEvent::JfcError(jfc) => Some(jfc),
            UrmaEvent::JettyError(jetty) => self.shared.objects.jetty(jetty).map(|jetty| jetty.config.jfc),
            UrmaEvent::JfrError(jfr) | UrmaEvent::JfrLimit(jfr) => {
                self.shared.objects.jfr(jfr).map(|jfr| jfr.config.jfc)
            }
        }
    }
    /// Maximum payload of a packet in bytes.
    pub const fn mtu(&self) -> u16 {
        self.shared.channels.config.mtu
    }
    /// Work requests of a Jetty that are outstanding.
    pub fn outstanding(&self, jetty: u32) -> Option<u16> {
        self.shared.objects.jetty_ref(jetty).and_then(|at| self.shared.objects.jetties.get(at)).map(|jetty| jetty.count)
    }
    /// Receives that are posted to a receive queue.
    pub fn posted_receives(&self, jfr: u32) -> Option<usize> {
        self.shared.objects.jfr_ref(jfr).and_then(|at| self.shared.objects.jfrs.get(at)).map(|jfr| jfr.receives.len())
    }
    /// Whether there is room for another work request.
    pub fn has_request_room(&self) -> bool {
        self.initiator.requests.has_room()
    }
    /// Whether there is a channel to a peer, open or being opened.
    pub fn has_channel(&self, peer: NodeEid) -> bool {
        self.shared.channels.by_peer.range((peer, 0)..=(peer, u8::MAX)).next().is_some()
    }
    /// Whether a channel to a peer is open. No request, token or payload is sent before, and a channel opens only if the peer
    /// sends back numbers that are known to a receiver at its address alone. So such a peer is where its packets are sent.
    pub fn has_open_channel(&self, peer: NodeEid) -> bool {
        self.shared.channels.lanes_to(peer).any(|(_, channel)| channel.state == ChannelState::Open)
    }
    /// How many channels there are, to all peers.
    pub fn channel_count(&self) -> usize {
        self.shared.channels.table.len()
    }
    /// Whether more than acknowledgements of the transport is ready to be sent.
    pub fn owes_answers(&self) -> bool {
        let has_messages = |at: &PoolRef| {
            let channel = self.shared.channels.get(*at);
            channel.is_some_and(|c| !(c.answers.is_empty() && c.queue.is_empty() && c.fused.is_empty()))
        };
        !(self.shared.channels.management.is_empty() && self.initiator.unreliable.is_empty())
            || self.accesses.wants_tx()
            || self.shared.channels.active.iter().any(has_messages)
    }
    /// Groups of Jetties.
    pub fn group_count(&self) -> usize {
        self.shared.objects.groups.len()
    }
    /// Numbers of the objects; takes the same time for any number.
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            jetties: self.shared.objects.jetties.len(),
            jfrs: self.shared.objects.jfrs.len(),
            jfcs: self.shared.objects.jfcs.len(),
            segments: self.shared.objects.segments.len(),
            requests: self.initiator.requests.len(),
        }
    }
    /// All channels.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView> + '_ {
        self.channels_from(NodeEid::UNSPECIFIED)
    }
    /// The channels to peers from this one on, in order of their addresses, and lanes.
    pub fn channels_from(&self, peer: NodeEid) -> impl Iterator<Item = ChannelView> + '_ {
        let channels =
            self.shared.channels.by_peer.range((peer, 0)..).filter_map(|(_, at)| self.shared.channels.get(*at));
        channels.map(|channel| ChannelView {
            peer: channel.peer,
            lane: channel.lane,
            local_tpn: channel.local_tpn,
            peer_tpn: channel.peer_tpn,
            is_open: channel.state == ChannelState::Open,
            packets: channel.tx.packets(),
            bytes: channel.tx.bytes().all,
            path: channel.path,
            reported: channel.reported,
            unanswered: channel.unanswered,
            srtt: channel.tx.srtt(),
        })
    }
    /// Requests, packets and timers that calls of [`UrmaNode::on_timer`] have handled since the node was made, and requests that
    /// searches have passed. One call of it handles a bounded number, however many there are.
    pub const fn timer_steps(&self) -> u64 {
        self.shared.channels.sweeps.steps
    }
}
