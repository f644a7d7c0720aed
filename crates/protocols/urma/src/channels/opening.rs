//! How channels open and end: the answers to management messages ([`crate::channels::channel`] has the rules).

use crate::api::UrmaEnv;
use crate::channels::Channels;
use crate::channels::channel::{ChannelState, TpChannel};
use crate::channels::management::{TpMessage, TpMessageKind};
use crate::channels::sweeps::ChannelEnd;
use crate::node_eid::NodeEid;
use crate::pool::PoolRef;
use burst_base::Reason;

/// Channels at which a REQUEST looks that finds the table full.
const IDLE_LOOKS: u32 = 64;

impl Channels {
    /// A management message arrived.
    pub(crate) fn on_management(
        &mut self,
        env: &mut UrmaEnv<'_>,
        peer: NodeEid,
        message: &TpMessage,
    ) -> Result<(), Reason> {
        match message.kind {
            TpMessageKind::Request => self.on_open_request(env, peer, message),
            TpMessageKind::Reply => self.on_open_reply(env, peer, message),
            TpMessageKind::Challenge => self.on_challenge(env, peer, message),
            TpMessageKind::End => self.on_end(env, peer, message),
            TpMessageKind::Unknown => self.on_unknown(env.now, peer, message),
        }
    }
    fn on_open_request(&mut self, env: &mut UrmaEnv<'_>, peer: NodeEid, message: &TpMessage) -> Result<(), Reason> {
        let echo = (message.tpn, message.incarnation);
        if message.lane >= self.config.lanes {
            return Err(Reason::UbChannelLimit);
        }
        let has_restarted = self.end_older(peer, message)?;
        let at = match self.by_peer.get(&(peer, message.lane)) {
            Some(at) => *at,
            None => self.accept(env, peer, message)?,
        };
        // An end that asks, too, answers, but opens only with the answer to its own REQUEST: this one may be late.
        let reply = self.table.get(at).map(|channel| channel.message(TpMessageKind::Reply, echo, &self.config));
        if let Some(reply) = reply {
            self.push_management(peer, reply);
        }
        self.activate(at);
        self.arm_channel(at, env.now);
        if has_restarted {
            self.end_former_lives(peer, message.life);
        }
        Ok(())
    }
    /// Ends the open channel in the place of which a REQUEST asks for one, if the peer shows that it asks now. Whether it has.
    fn end_older(&mut self, peer: NodeEid, message: &TpMessage) -> Result<bool, Reason> {
        let Some(at) = self.by_peer.get(&(peer, message.lane)).copied() else { return Ok(false) };
        let Some(channel) = self.table.get(at) else { return Ok(false) };
        if channel.state != ChannelState::Open || channel.is_of_peer(message) {
            return Ok(false);
        }
        if !channel.is_echoed(message) {
            let echo = (message.tpn, message.incarnation);
            let challenge = channel.message(TpMessageKind::Challenge, echo, &self.config);
            self.push_management(peer, challenge);
            return Err(Reason::UbStaleChannel);
        }
        self.end(at, ChannelEnd::Failed);
        Ok(true)
    }
    /// Makes the channel for which a peer asks.
    fn accept(&mut self, env: &UrmaEnv<'_>, peer: NodeEid, message: &TpMessage) -> Result<PoolRef, Reason> {
        if message.lane > 0 && !self.has_lane_room() {
            return Err(Reason::UbChannelLimit);
        }
        if !self.table.has_room() {
            // The table may be full of those that forged REQUESTs have made.
            let idle = self.idle_channel().ok_or(Reason::UbChannelLimit)?;
            self.end(idle, ChannelEnd::Failed);
        }
        let at = self.new_channel(peer, message.lane).ok_or(Reason::UbChannelLimit)?;
        if let Some(channel) = self.table.get_mut(at) {
            channel.open(message, env.now);
        }
        Ok(at)
    }
    /// A channel that only a REQUEST has made, if there is one among the next few. The search goes round, so that a channel stays
    /// as long as it can, and a peer that asks again finds one if there is any.
    fn idle_channel(&mut self) -> Option<PoolRef> {
        let places = self.table.limit() as u32;
        for _ in 0..IDLE_LOOKS.min(places) {
            self.sweeps.steps += 1;
            self.looked = (self.looked + 1) % places;
            let at = self.table.ref_of(self.looked);
            if let Some(at) = at.filter(|at| self.table.get(*at).is_some_and(TpChannel::is_idle_from_birth)) {
                return Some(at);
            }
        }
        None
    }
    fn on_open_reply(&mut self, env: &mut UrmaEnv<'_>, peer: NodeEid, message: &TpMessage) -> Result<(), Reason> {
        let at = *self.by_peer.get(&(peer, message.lane)).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.table.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if !channel.is_echoed(message) {
            return Err(Reason::UbStaleChannel);
        }
        if channel.state == ChannelState::Opening {
            channel.open(message, env.now);
            self.activate(at);
            self.arm_channel(at, env.now);
            self.lane_is_open(at, peer);
            self.end_former_lives(peer, message.life);
        } else if channel.is_of_peer(message) {
            channel.heard_at = env.now;
            self.end_doubt(at, env.now);
        } else if channel.is_doubted {
            self.peer_has_restarted(env, at, message);
        }
        Ok(())
    }
    /// The peer has another channel to this node, and wants to see that this node asks now.
    fn on_challenge(&mut self, env: &mut UrmaEnv<'_>, peer: NodeEid, message: &TpMessage) -> Result<(), Reason> {
        let at = *self.by_peer.get(&(peer, message.lane)).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.table.get_mut(at).ok_or(Reason::UbUnknownChannel)?;
        if !channel.is_echoed(message) || !channel.is_asking() {
            return Err(Reason::UbStaleChannel);
        }
        if channel.is_doubted {
            self.peer_has_restarted(env, at, message);
            return Ok(());
        }
        let request = channel.message(TpMessageKind::Request, (message.tpn, message.incarnation), &self.config);
        self.push_management(peer, request);
        Ok(())
    }
    /// The peer has ended a channel.
    pub(crate) fn on_end(&mut self, env: &mut UrmaEnv<'_>, peer: NodeEid, message: &TpMessage) -> Result<(), Reason> {
        let at = *self.by_peer.get(&(peer, message.lane)).ok_or(Reason::UbUnknownChannel)?;
        let channel = self.table.get(at).ok_or(Reason::UbUnknownChannel)?;
        if !channel.is_of_peer(message) || !channel.is_echoed(message) {
            return Err(Reason::UbStaleChannel);
        }
        env.fx.count(Reason::UbChannelEnded);
        self.rest_lane(at, env.now);
        self.end(at, ChannelEnd::Failed);
        Ok(())
    }
}
