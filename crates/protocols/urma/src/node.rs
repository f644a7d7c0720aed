//! A node: all objects of one host (or one Unified Bus entity), and the calls that create, change and destroy them.

pub(crate) mod check;
pub(crate) mod deadlines;
pub(crate) mod receive;
pub(crate) mod transmit;
pub(crate) mod view;

use crate::api::{
    AccessKind, AccessOutcome, AccessTag, CompletionRecord, GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState,
    JfrWr, JfsWr, LANES_MAX, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, UrmaConfig, UrmaEffects, UrmaEnv,
    UrmaError, UrmaEvent,
};
use crate::bypass::Accesses;
use crate::channels::tx_window::TxPacket;
use crate::initiator::{Initiator, posting};
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::objects::id_of;
use crate::objects::records::{JETTY_BYTES, StreamState};
use crate::urma_target::UrmaTarget;
use burst_base::Nanos;
use burst_ubwire::{Cna, TaOpcode};

/// Longest payload of a packet.
const PAYLOAD_MAX: u16 = 8192;

/// One host's URMA.
pub struct UrmaNode {
    pub(crate) shared: NodeShared,
    pub(crate) initiator: Initiator,
    pub(crate) target: UrmaTarget,
    /// Loads, stores and atomics without a channel.
    pub(crate) accesses: Accesses,
    /// Scratch for packets that an acknowledgement covers.
    acked: Vec<TxPacket>,
}

/// Counts and bytes of a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Jetties and JFSs.
    pub jetties: usize,
    /// Channels.
    pub channels: usize,
    /// Bytes of all Jetties and of what belongs to them.
    pub jetty_bytes: usize,
    /// Bytes of all channels and of what belongs to them.
    pub channel_bytes: usize,
    /// Bytes of the rest: requests, messages, responses, reorder buffer, segments, queues.
    pub other_bytes: usize,
    /// Requests outstanding.
    pub requests: usize,
    /// Messages of peers that are incomplete or wait.
    pub inbound: usize,
    /// Packets in the reorder buffer.
    pub held_packets: usize,
    /// Responses that wait or are not acknowledged.
    pub responses: usize,
    /// Sequence contexts kept for peers.
    pub contexts: usize,
}

impl UrmaNode {
    /// A node without objects.
    pub fn new(config: UrmaConfig) -> Self {
        // Messages that wait leave room for those that they wait for, and for all their responses.
        let inbound_max = config.inbound_max.max(2);
        let responses_max = config.responses_max.max(inbound_max + 4);
        let (mtu, lanes) = (config.mtu.clamp(256, PAYLOAD_MAX), config.lanes.clamp(1, LANES_MAX));
        let config = UrmaConfig { mtu, lanes, inbound_max, responses_max, ..config };
        debug_assert!(responses_max > inbound_max, "messages leave no room for what they wait for");
        UrmaNode {
            initiator: Initiator::new(config.requests_max),
            target: UrmaTarget::new(&config, PAYLOAD_MAX),
            accesses: Accesses::new(
                (config.seed ^ config.incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as u32,
            ),
            acked: Vec::new(),
            shared: NodeShared::new(config),
        }
    }
    /// Own address.
    pub const fn cna(&self) -> Cna {
        self.shared.channels.config.eid.cna()
    }
    /// Lanes to each peer at most.
    pub const fn lanes(&self) -> u8 {
        self.shared.channels.config.lanes
    }
    /// A completion queue for at most `depth` records. [`UrmaError::Value`] for 0.
    pub fn create_jfc(&mut self, depth: u32) -> Result<u32, UrmaError> {
        self.shared.objects.create_jfc(depth)
    }
    /// [`UrmaError::Busy`] while Jetties or JFRs use it.
    pub fn delete_jfc(&mut self, jfc: u32) -> Result<(), UrmaError> {
        self.shared.objects.delete_jfc(jfc)
    }
    /// A receive queue.
    pub fn create_jfr(&mut self, config: JfrConfig) -> Result<u32, UrmaError> {
        self.shared.objects.create_jfr(config)
    }
    /// [`UrmaError::Busy`] while Jetties share it, or a message is being placed: move it to ERROR first.
    pub fn delete_jfr(&mut self, jfr: u32) -> Result<(), UrmaError> {
        let at = self.shared.objects.jfr_ref(jfr).ok_or(UrmaError::NoObject)?;
        let is_used = self.shared.objects.jfrs.get(at).is_some_and(|jfr| jfr.placing > 0);
        if is_used { Err(UrmaError::Busy) } else { self.shared.objects.delete_jfr(at) }
    }
    /// The state of a receive queue, and its limit.
    pub fn jfr_state(&self, jfr: u32) -> Option<(JfrState, u16)> {
        self.shared.objects.jfr(jfr).map(|jfr| (jfr.state, jfr.config.limit))
    }
    /// Changes the number of receives below which there is an event; 0 for none. Armed anew.
    pub fn set_jfr_limit(&mut self, jfr: u32, limit: u16) -> Result<(), UrmaError> {
        self.shared.objects.set_jfr_limit(jfr, limit)
    }
    /// Moves a receive queue to ERROR, or from ERROR to RESET (its receives are dropped), or from RESET to READY. In ERROR,
    /// receives into which messages are being placed end with [`CrStatus::FlushErr`](crate::CrStatus::FlushErr).
    pub fn modify_jfr(&mut self, jfr: u32, state: JfrState, fx: &mut dyn UrmaEffects) -> Result<(), UrmaError> {
        let at = self.shared.objects.modify_jfr(jfr, state)?;
        if state == JfrState::Error {
            fx.event(UrmaEvent::JfrError(jfr));
            self.target.end_messages(&mut self.shared, at, fx);
        }
        Ok(())
    }
    /// A Jetty (with a receive queue) or JFS (without).
    pub fn create_jetty(&mut self, config: JettyConfig) -> Result<u32, UrmaError> {
        self.shared.objects.create_jetty(config)
    }
    /// [`UrmaError::Busy`] while requests are outstanding: move it to ERROR, wait and flush first. The record that says that it
    /// is drained goes with it.
    pub fn delete_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        let at = self.shared.objects.idle_jetty(jetty)?;
        self.shared.end_stream(at);
        self.shared.objects.delete_jetty(at)
    }
    /// The state of a Jetty.
    pub fn jetty_state(&self, jetty: u32) -> Option<JettyState> {
        self.shared.objects.jetty(jetty).map(|jetty| jetty.state)
    }
    /// Moves a Jetty: READY or SUSPENDED to ERROR, SUSPENDED to READY, drained ERROR to RESET, RESET to READY.
    pub fn modify_jetty(&mut self, jetty: u32, to: JettyState, fx: &mut dyn UrmaEffects) -> Result<(), UrmaError> {
        let at = self.shared.objects.jetty_ref(jetty).ok_or(UrmaError::NoObject)?;
        self.initiator.modify_jetty(&mut self.shared, at, to, fx)
    }
    /// A Jetty whose program has ended stops, as if it were moved to ERROR, but without event and completion: when it is drained,
    /// [`UrmaNode::pop_drained`] returns it, and again after a further call of this for it. Returns how many requests it has.
    pub fn abandon_jetty(&mut self, jetty: u32, fx: &mut dyn UrmaEffects) -> usize {
        let Some(at) = self.shared.objects.jetty_ref(jetty) else { return 0 };
        self.initiator.abandon_jetty(&mut self.shared, at, fx)
    }
    /// The next abandoned Jetty that is drained: it can be flushed and deleted.
    pub fn pop_drained(&mut self) -> Option<u32> {
        self.shared.objects.drained.pop_front().map(id_of)
    }
    /// The next end of a request of a Jetty is awaited: [`UrmaNode::pop_freed`] returns its owner then
    /// ([`JettyConfig::owner`]). False: it has no request that could end.
    pub fn await_end(&mut self, jetty: u32) -> bool {
        let at = self.shared.objects.jetty_ref(jetty);
        let Some(record) = at.and_then(|at| self.shared.objects.jetties.get_mut(at)) else { return false };
        record.is_awaited = record.count > 0;
        record.is_awaited
    }
    /// The owner of a Jetty whose request has ended, and that was awaited.
    pub fn pop_freed(&mut self) -> Option<u32> {
        self.shared.objects.freed.pop()
    }
    /// Hands back the oldest request of a stopped Jetty: as a record with the status `Unhandled` if it was not executed, else
    /// with its outcome, which waited for an earlier one. `None` if there is none (any more).
    pub fn flush_jetty(&mut self, jetty: u32) -> Option<CompletionRecord> {
        let at = self.shared.objects.jetty_ref(jetty)?;
        self.initiator.flush_jetty(&mut self.shared, at)
    }
    /// A group without members. Jetties join it when they are created ([`JettyConfig::group`]).
    pub fn create_group(&mut self, policy: GroupPolicy, token: Option<u32>) -> Result<u32, UrmaError> {
        self.shared.objects.create_group(policy, token)
    }
    /// [`UrmaError::Busy`] while it has members.
    pub fn delete_group(&mut self, group: u32) -> Result<(), UrmaError> {
        self.shared.objects.delete_group(group)
    }
    /// Registers memory and returns its token id. [`UrmaError::Value`] if it ends behind the address space.
    pub fn register_segment(&mut self, config: SegmentConfig) -> Result<u32, UrmaError> {
        self.register_segment_of(0, 0, config)
    }
    /// The same for one of several programs ([`JettyConfig::owner`]). `region` names its memory in calls of
    /// [`crate::UrmaMemory`].
    pub fn register_segment_of(&mut self, owner: u32, region: u32, config: SegmentConfig) -> Result<u32, UrmaError> {
        self.shared.objects.segments.insert(owner, region, config).ok_or(UrmaError::Value)
    }
    /// Deregisters memory. Requests and answers that still use it fail.
    pub fn unregister_segment(&mut self, token_id: u32) -> Result<(), UrmaError> {
        if self.shared.objects.segments.remove(token_id) { Ok(()) } else { Err(UrmaError::NoObject) }
    }
    /// What a peer needs for the import of a segment.
    pub fn export_segment(&self, token_id: u32) -> Option<RemoteSegment> {
        let config = self.shared.objects.segments.get(token_id)?;
        Some(RemoteSegment {
            eid: self.shared.channels.config.eid,
            token_id,
            addr: config.addr,
            len: config.len,
            token: config.token,
        })
    }
    /// Imports a peer's segment.
    pub fn import_segment(&mut self, segment: RemoteSegment) -> Result<u32, UrmaError> {
        self.shared.objects.import_segment(segment)
    }
    /// Forgets an imported segment. Requests that were posted keep its values.
    pub fn unimport_segment(&mut self, segment: u32) -> Result<(), UrmaError> {
        self.shared.objects.unimport_segment(segment)
    }
    /// Imports a peer's Jetty or JFR.
    pub fn import_jetty(&mut self, jetty: RemoteJetty) -> Result<u32, UrmaError> {
        self.shared.objects.import_jetty(jetty)
    }
    /// Forgets an imported Jetty. Requests that were posted keep its values.
    pub fn unimport_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        self.shared.objects.unimport_jetty(jetty)
    }
    /// Binds a Jetty of mode RC to an imported one. [`UrmaError::Bound`] if it is bound.
    pub fn bind_jetty(&mut self, jetty: u32, remote: u32) -> Result<(), UrmaError> {
        self.shared.objects.bind_jetty(jetty, remote)
    }
    /// Ends the binding. [`UrmaError::Busy`] while requests are outstanding.
    pub fn unbind_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        let at = self.shared.objects.unbind_jetty(jetty)?;
        self.shared.end_stream(at);
        Ok(())
    }
    /// Posts a receive.
    pub fn post_recv(&mut self, jfr: u32, wr: JfrWr) -> Result<(), UrmaError> {
        self.shared.objects.post_recv(jfr, wr)
    }
    /// Posts a work request to a Jetty or JFS. The answer comes as a completion record; a refusal has no effect.
    pub fn post_send(&mut self, jetty: u32, wr: &JfsWr, env: &mut UrmaEnv<'_>) -> Result<(), UrmaError> {
        let result = self.initiator.post_send(&mut self.shared, jetty, wr, env);
        self.end_overrun(env.fx);
        result
    }
    /// Whether a Jetty of this configuration may post a request, as far as it can be known without other objects. `mtu`: payload
    /// of a packet.
    pub fn check_request(config: &JettyConfig, mtu: u16, wr: &JfsWr) -> Result<(), UrmaError> {
        posting::check_request(config, mtu, wr)
    }
    /// Whether a request names a receiver of messages.
    pub const fn needs_target(opcode: TaOpcode) -> bool {
        posting::needs_target(opcode)
    }
    /// Begins a load, store or atomic of an imported segment. The outcome is taken by [`UrmaNode::take_access`].
    ///
    /// # Errors [`UrmaError::NoObject`] without such a segment, [`UrmaError::Value`] for a length or an address that the kind
    /// does not allow, [`UrmaError::Access`] outside of the segment, [`UrmaError::Full`] with
    /// [`ACCESS_WINDOW`](crate::ACCESS_WINDOW) under way to the peer.
    pub fn begin_access(&mut self, segment: u32, addr: u64, kind: AccessKind) -> Result<AccessTag, UrmaError> {
        let segment = *self.shared.objects.remote_segments.at(segment).ok_or(UrmaError::NoObject)?;
        self.accesses.begin(segment, addr, kind)
    }
    /// The outcome of an access, once; `None` while there is none.
    pub fn take_access(&mut self, tag: AccessTag) -> Option<AccessOutcome> {
        self.accesses.take(tag)
    }
    /// Takes the oldest record of a completion queue.
    pub fn poll_jfc(&mut self, jfc: u32) -> Option<CompletionRecord> {
        self.shared.objects.jfcs.at_mut(jfc)?.records.pop_front()
    }
    /// A completion was lost, because its queue is full: the Jetty that it is of, or the JFR that the peer has named, moves to
    /// ERROR, as a queue pair whose completion queue is overrun. To be called by who takes the records ([`UrmaNode::poll_jfc`])
    /// and has no room for one.
    pub fn completion_lost(&mut self, kind: TargetKind, id: u32, fx: &mut dyn UrmaEffects) {
        // Refused if it has stopped already.
        let _ = match kind {
            TargetKind::Jfr => self.modify_jfr(id, JfrState::Error, fx),
            TargetKind::Jetty | TargetKind::Group => self.modify_jetty(id, JettyState::Error, fx),
        };
    }
    /// Moves to ERROR what has lost a completion in this call.
    pub(crate) fn end_overrun(&mut self, fx: &mut dyn UrmaEffects) {
        // What moves may lose a completion, too; each moves once.
        while let Some((kind, id)) = self.shared.objects.overrun.pop() {
            self.completion_lost(kind, id, fx);
        }
    }
    /// Whether a completion queue has records.
    pub fn has_completions(&self, jfc: u32) -> bool {
        self.shared.objects.jfcs.at(jfc).is_some_and(|queue| !queue.records.is_empty())
    }
    /// Counts and bytes of the state.
    pub fn state(&self) -> NodeState {
        NodeState {
            jetties: self.shared.objects.jetties.len(),
            channels: self.shared.channels.table.len(),
            jetty_bytes: self.shared.objects.jetties.heap_bytes(),
            channel_bytes: self.shared.channels.heap_bytes(),
            other_bytes: self.initiator.requests.heap_bytes()
                + self.initiator.index.heap_bytes()
                + self.shared.channels.sweeps.heap_bytes()
                + self.shared.responses.heap_bytes()
                + self.shared.objects.heap_bytes()
                + self.target.heap_bytes()
                + self.accesses.heap_bytes(),
            requests: self.initiator.requests.len(),
            inbound: self.target.inbound.len(),
            held_packets: self.target.buffer.len(),
            responses: self.shared.responses.len(),
            contexts: self.target.contexts.len(),
        }
    }
    /// Bytes of one Jetty's record.
    pub const fn jetty_bytes() -> usize {
        JETTY_BYTES
    }
    /// Begins to open a channel to a peer before there is a request, unless there is one, or there are too many.
    pub fn open_channel(&mut self, peer: NodeEid, now: Nanos) {
        let _ = self.shared.channels.channel_to(peer, now);
    }
    /// Ends the channels to a peer as if they had failed: all requests to it end with
    /// [`CrStatus::AckTimeout`](crate::CrStatus::AckTimeout), in the next calls of [`UrmaNode::on_timer`]. For a peer that
    /// acknowledges packets and answers nothing; no time-out of the transport notices that. Does nothing without a channel.
    pub fn end_channel(&mut self, peer: NodeEid) {
        self.shared.channels.end_all_to(peer);
        self.clear_ended();
    }
    /// The node is about to be closed: all peers are notified, so that their requests end at once, and their next ones open new
    /// channels. Nothing but that leaves any more; what should must have been sent before.
    pub fn leave(&mut self) {
        self.initiator.unreliable.clear();
        self.shared.channels.leave();
    }
    /// Whether a Jetty has a sequence context at a peer.
    pub fn has_context(&self, jetty: u32) -> bool {
        let at = self.shared.objects.jetty_ref(jetty);
        at.and_then(|at| self.shared.objects.jetties.get(at)).is_some_and(|j| {
            matches!(j.stream.state, StreamState::Granted { .. })
                && self.shared.channels.get(j.stream.channel).is_some()
        })
    }
    /// Removes what the peers of channels that have ended had under way here.
    pub(crate) fn clear_ended(&mut self) {
        if self.shared.channels.ended.is_empty() {
            return;
        }
        for (at, channel) in std::mem::take(&mut self.shared.channels.ended) {
            self.target.channel_ended(&mut self.shared, at, &channel);
        }
    }
}
