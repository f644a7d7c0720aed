//! A peer that may have restarted, or has ended.
//!
//! A node that closes sends END on all its channels ([`crate::UrmaNode::leave`]). One that could not answers packets of a channel
//! that it does not have by UNKNOWN. Neither UNKNOWN nor a long silence proves anything: anybody may send the one, and a
//! peer may have nothing to say. Either puts the channel *in doubt*: it asks by the REQUEST that has opened it, with its
//! present values, and sends nothing but acknowledgements until an answer comes.
//!
//! * REPLY with the peer's values, or any packet on the channel: the peer is in the same life, and all goes on.
//! * REPLY or CHALLENGE with other values, and with the echo of this end, which only who asks now knows: the peer has
//!   restarted. Requests of which packets were sent end with the channel, because the former life may have executed them.
//!   The others are taken back and leave on a new channel: so a peer that restarts while nothing is under way costs no
//!   request.

use crate::api::{UrmaEnv, UrmaTransmit};
use crate::channels::Channels;
use crate::channels::channel::{ChannelState, TpChannel};
use crate::channels::management::{TpMessage, TpMessageKind};
use crate::channels::sweeps::ChannelEnd;
use crate::node_eid::NodeEid;
use crate::pool::PoolRef;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Rtph, TpOpcode};

/// One UNKNOWN in this time, on average, and at once as many as come in the second time.
const UNKNOWN_EVERY: Nanos = Nanos::from_ms(1);
const UNKNOWN_BURST: Nanos = Nanos::from_ms(64);

impl Channels {
    /// The next REQUEST of a channel that is being opened, if it is due.
    pub(crate) fn ask(&mut self, at: PoolRef, now: Nanos, out: &mut [u8]) -> Option<UrmaTransmit> {
        let channel = self.table.get_mut(at)?;
        if channel.ask_at > now || channel.asks > self.config.rto_tries {
            return None;
        }
        channel.asked(now, &self.config);
        let echo = (channel.peer_tpn, channel.peer_incarnation);
        let (dest, message) =
            ((channel.peer, channel.lane), channel.message(TpMessageKind::Request, echo, &self.config));
        Some(self.write_management(dest, &message, out))
    }
    /// The next REQUEST of a channel in doubt, if it is due.
    pub(crate) fn ask_again(&mut self, at: PoolRef, now: Nanos, out: &mut [u8]) -> Option<UrmaTransmit> {
        let channel = self.table.get_mut(at)?;
        if !channel.is_doubted {
            channel.doubt(now);
        }
        self.ask(at, now, out)
    }
    /// The peer was heard, so it is in the same life.
    pub(crate) fn end_doubt(&mut self, at: PoolRef, now: Nanos) {
        let Some(channel) = self.table.get_mut(at) else { return };
        if std::mem::take(&mut channel.is_doubted) {
            channel.is_confirmed = true;
            self.activate(at);
            self.arm_channel(at, now);
        }
    }
    /// A packet came on a channel that this node does not have, perhaps of its former life: its sender is told.
    pub(crate) fn tell_unknown(&mut self, now: Nanos, peer: NodeEid, rtph: &Rtph) {
        // Which is being opened, and not open yet at this end.
        let is_own = |channel: &TpChannel| channel.local_tpn == rtph.dst_tpn;
        if rtph.opcode != TpOpcode::Data || self.lanes_to(peer).any(|(_, channel)| is_own(channel)) {
            return;
        }
        let next = self.unknown_at.max(now) + UNKNOWN_EVERY;
        if next > now + UNKNOWN_BURST {
            return;
        }
        self.unknown_at = next;
        let message = TpMessage {
            kind: TpMessageKind::Unknown,
            mtu: self.config.mtu,
            tpn: rtph.dst_tpn,
            psn: rtph.psn,
            lane: 0,
            lanes: self.config.lanes,
            life: 0,
            incarnation: 0,
            echo_tpn: rtph.src_tpn,
            echo_incarnation: 0,
        };
        self.push_management(peer, message);
    }
    /// A peer says that it does not have a channel.
    pub(crate) fn on_unknown(&mut self, now: Nanos, peer: NodeEid, message: &TpMessage) -> Result<(), Reason> {
        let is_meant = |channel: &TpChannel| {
            channel.state == ChannelState::Open
                && (channel.local_tpn, channel.peer_tpn) == (message.echo_tpn, message.tpn)
                && channel.tx.is_in_flight(message.psn)
        };
        let at = self.lanes_to(peer).find(|(_, channel)| is_meant(channel)).map(|(at, _)| at);
        let at = at.ok_or(Reason::UbStaleChannel)?;
        let Some(channel) = self.table.get_mut(at).filter(|channel| !channel.is_doubted) else { return Ok(()) };
        channel.doubt(now);
        self.activate(at);
        Ok(())
    }
    /// The peer of a channel in doubt has answered in another life.
    pub(crate) fn peer_has_restarted(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, message: &TpMessage) {
        let Some(peer) = self.table.get(at).map(|channel| channel.peer) else { return };
        env.fx.count(Reason::UbPeerRestarted);
        self.end(at, ChannelEnd::Restarted);
        self.end_former_lives(peer, message.life);
    }
}
