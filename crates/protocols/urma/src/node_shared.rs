//! What initiator and target of a node share: objects, channels, and the responses that wait for their turn on the channels.
//!
//! Each part of a node gets it with each call, and changes its own state and this. Responses stand here because both parts send
//! them, and because messages are accepted only while there is room for all the responses that they will need.

use crate::api::UrmaConfig;
use crate::channels::Channels;
use crate::channels::channel::TpChannel;
use crate::channels::rx_window::WITHHELD_MAX;
use crate::channels::tx_window::TxOwner;
use crate::check::must;
use crate::node_eid::NodeEid;
use crate::objects::records::{OrderStream, StreamState};
use crate::objects::{Objects, id_of};
use crate::pool::{PoolRef, UrmaPool};
use crate::response_record::{ECHO_SLOTS, ResponseKind, ResponseRecord};
use burst_ubwire::ServiceMode;

/// What the parts of a node use.
pub(crate) struct NodeShared {
    pub(crate) channels: Channels,
    pub(crate) objects: Objects,
    pub(crate) responses: UrmaPool<ResponseRecord>,
    /// Messages of peers that are incomplete or wait. Each will need a response.
    pub(crate) messages: usize,
}

impl NodeShared {
    pub(crate) fn new(config: UrmaConfig) -> Self {
        NodeShared {
            objects: Objects::new(config.token_seed),
            // Beyond `responses_max` only echoes, and refusals of ROL requests, for each of which a PSN is withheld.
            responses: UrmaPool::new(config.responses_max + ECHO_SLOTS + WITHHELD_MAX * config.channels_max),
            messages: 0,
            channels: Channels::new(config),
        }
    }
    /// Adds a response to the queue of its channel. `None`: there is no room.
    pub(crate) fn queue_response(&mut self, record: ResponseRecord) -> Option<PoolRef> {
        debug_assert!(record.unacked == 0 && record.sent == 0, "a response is queued that was sent");
        let channel = record.channel;
        let at = self.responses.insert(record).ok()?;
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.responses += 1;
        }
        self.channels.enqueue(channel, TxOwner::Response(at));
        Some(at)
    }
    /// Removes the responses of a channel that has ended: each waits for its turn, or has packets in flight.
    pub(crate) fn discard_responses(&mut self, channel: &TpChannel) {
        for owner in channel.answers.iter().copied().chain(channel.tx.owners()) {
            if let TxOwner::Response(response) = owner {
                self.responses.discard(response);
            }
        }
    }
    /// Whether a channel may have another message or response under way: each may use as much as is free, so that one leaves half
    /// for the others. Messages that wait for earlier ones do not count, or those might find no room.
    pub(crate) fn has_response_room(&self, channel: PoolRef) -> bool {
        let free = self.channels.config.responses_max.saturating_sub(self.responses.len() + self.messages);
        let own = self.channels.get(channel).map_or(0, |c| c.responses + c.inbound - c.waiting);
        self.is_share(own, free)
    }
    /// Whether a channel that has `own` places of a pool may have another one of the `free` ones. Lanes of a peer share what one
    /// channel may have.
    pub(crate) fn is_share(&self, own: u32, free: usize) -> bool {
        own as usize * usize::from(self.channels.config.lanes) < free
    }
    /// The same for messages that are incomplete.
    pub(crate) fn has_message_room(&self, channel: PoolRef) -> bool {
        let free = self.channels.config.inbound_max.saturating_sub(self.messages);
        let own = self.channels.get(channel).map_or(0, |c| c.inbound - c.waiting);
        self.is_share(own, free) && self.has_response_room(channel)
    }
    /// The same for messages that wait for earlier ones. All together they leave half of the room to those.
    pub(crate) fn has_waiting_room(&self, channel: PoolRef) -> bool {
        let free = (self.channels.config.inbound_max / 2).saturating_sub(self.messages);
        let own = self.channels.get(channel).map_or(0, |c| c.waiting);
        self.is_share(own, free) && self.has_message_room(channel)
    }
    /// Tells the peer that the sequence context of a Jetty is not needed any more.
    pub(crate) fn end_stream(&mut self, jetty: PoolRef) {
        let Some(record) = self.objects.jetties.get_mut(jetty) else { return };
        let stream = record.stream;
        record.stream = OrderStream {
            state: StreamState::None,
            peer: NodeEid::UNSPECIFIED,
            channel: PoolRef::NONE,
            next_number: 0,
        };
        let StreamState::Granted { context } = stream.state else { return };
        if self.channels.get(stream.channel).is_none() {
            return;
        }
        let response = ResponseRecord {
            channel: stream.channel,
            rc_id: id_of(jetty),
            tassn: 0,
            mode: ServiceMode::Rot,
            kind: ResponseKind::Disconnect { context },
            tpmsn: 0,
            sent: 0,
            all_sent: false,
            unacked: 0,
            context: None,
        };
        if !self.has_response_room(stream.channel) {
            // The peer keeps the context until the channel ends.
            return;
        }
        self.queue_response(response);
    }
    /// Each response is one of its channel, which counts them.
    pub(crate) fn check_responses(&self) -> Result<(), &'static str> {
        for (at, channel) in self.channels.table.iter() {
            let count = self.responses.iter().filter(|(_, response)| response.channel == at).count();
            must(count == channel.responses as usize, "the responses of a channel are counted wrong")?;
        }
        let is_there = |response: &ResponseRecord| self.channels.get(response.channel).is_some();
        must(self.responses.iter().all(|(_, response)| is_there(response)), "a response is of no channel")
    }
}
