//! Requests of peers before they are executed: messages of several packets, and those that wait for their turn.
//!
//! A packet says where its payload belongs. If it is the message's turn, the payload is placed at once, in whatever order the
//! packets come; only the last packet waits for the others, because programs poll the last byte of a WRITE. Otherwise the
//! payload waits in the reorder buffer. If that is full, the message is refused by RNR and sent again; it never blocks the
//! channel.

use crate::api::{LossRecovery, UrmaEnv};
use crate::channels::tx_window::TxOwner;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::urma_target::UrmaTarget;
use crate::urma_target::checks::{notify, place_of};
use crate::urma_target::contexts::Turn;
use crate::urma_target::echo::is_for_echo;
use crate::urma_target::execution::is_fusable;
use crate::urma_target::message::{Inbound, InboundPhase, MessageOrigin, Placement, RequestPacket};
use burst_base::Reason;
use burst_ubwire::{Btah, ServiceMode, TaRequest};

/// Timer code of an RNR answer when the order buffer is full: 80 us.
const FULL_TIMER: u8 = 3;
/// Responses of a channel that wait at most, if requests are refused without a record.
const BUSY_MAX: usize = 4096;
const REFUSED: UrmaRefusal = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused);
const POISONED: UrmaRefusal = UrmaRefusal::error(UrmaRefusal::POISON, Reason::UbPoisoned);
const FULL: UrmaRefusal = UrmaRefusal::rnr(FULL_TIMER | UrmaRefusal::BUSY, Reason::UbOrderBufferFull);

/// What became of a packet of a request.
pub(crate) enum RequestTaken {
    /// There is no room: it counts as not received.
    No,
    /// Its message has been answered.
    Done,
    /// It belongs to this record, unless that is complete.
    Stored(PoolRef),
    /// It is no packet of the message that its number names: dropped, and acknowledged as any other.
    Foreign,
}

/// Whether the transport acknowledgement of a request's last packet is its answer.
pub(crate) fn is_fused(origin: &MessageOrigin) -> bool {
    let base = &origin.request.base;
    base.mode == ServiceMode::Rol && is_fusable(base.opcode) && !base.alloc
}

/// Whether a packet continues a message: but for the offset (and poison) all its packets have one header, and one is the last.
fn is_same_message(message: &Inbound, origin: &MessageOrigin, is_last: bool) -> bool {
    is_same_head(&message.origin.request, &origin.request) && !(is_last && message.total.is_some())
}

/// Whether two packets have one header but for offset and poison.
pub(crate) fn is_same_head(first: &TaRequest, other: &TaRequest) -> bool {
    let base = Btah { offset: other.base.offset, poison: other.base.poison, ..first.base };
    base == other.base
        && (first.memory, first.token, first.target) == (other.memory, other.token, other.target)
        && (first.operands, first.immediate, first.notify) == (other.operands, other.immediate, other.notify)
}

impl UrmaTarget {
    pub(crate) fn take_request(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        packet: &RequestPacket<'_>,
    ) -> RequestTaken {
        let origin = &packet.origin;
        let Some(channel) = node.channels.get_mut(origin.channel) else { return RequestTaken::No };
        if channel.is_refused(packet.rtph.tpmsn) {
            return RequestTaken::Done;
        }
        let last_message = channel.last_message;
        if let Some(at) = self.inbound_of(node, origin.channel, packet.rtph.tpmsn, last_message) {
            if !self.inbound.get(at).is_some_and(|message| is_same_message(message, origin, packet.rtph.last)) {
                return RequestTaken::Foreign;
            }
            let is_taken = self.continue_message(node, env, at, packet);
            return if is_taken { RequestTaken::Stored(at) } else { RequestTaken::No };
        }
        // Each record will need a response, and so does this request. A ROL request needs one only if it is refused; those
        // are limited by the PSNs that a channel withholds.
        let is_full = !node.has_response_room(origin.channel);
        if is_full && !is_fused(origin) {
            return self.no_room(node, env, packet);
        }
        let turn = self.contexts.turn(origin);
        if packet.is_whole()
            && let Some(taken) = self.take_whole(node, env, packet, &turn)
        {
            return taken;
        }
        // With go-back-N: a packet of a message whose first packet found no room.
        let is_rest = node.channels.config.recovery == LossRecovery::GoBackN && origin.request.base.offset > 0;
        if is_rest || !node.has_message_room(origin.channel) {
            return self.no_room(node, env, packet);
        }
        self.begin_message(node, env, packet, &turn)
    }
    /// Handles a message of one packet. `None`: it waits for its turn, and there is room.
    fn take_whole(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        packet: &RequestPacket<'_>,
        turn: &Turn,
    ) -> Option<RequestTaken> {
        let origin = &packet.origin;
        match turn {
            Turn::Now => self.execute_whole(node, env, origin, packet.payload),
            Turn::Never => self.refuse(node, env, origin, REFUSED),
            // Given up by its sender: nothing waits for it any more.
            Turn::Later(..) if origin.request.base.poison => self.refuse(node, env, origin, POISONED),
            Turn::Later(..) if !node.has_waiting_room(origin.channel) => return Some(self.no_room(node, env, packet)),
            Turn::Later(..) => return None,
        }
        Some(RequestTaken::Done)
    }
    /// The first packet of a message that gets a record.
    fn begin_message(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        packet: &RequestPacket<'_>,
        turn: &Turn,
    ) -> RequestTaken {
        let (origin, tpmsn) = (packet.origin, packet.rtph.tpmsn);
        let phase = match turn {
            Turn::Later(..) if !node.has_waiting_room(origin.channel) => InboundPhase::Refused(FULL),
            Turn::Later(..) => InboundPhase::Waiting,
            Turn::Never => InboundPhase::Refused(REFUSED),
            Turn::Now => begin(node, env, &origin),
        };
        let message = Inbound { origin, tpmsn, phase, received: 0, total: None, held: None };
        let Some(at) = self.store_message(node, message) else { return RequestTaken::No };
        if let (Turn::Later(context, number), InboundPhase::Waiting) = (turn, phase)
            && let Some(context) = self.contexts.get_mut(*context)
        {
            context.waiting.push((*number, at));
        }
        let before = self.inbound_keys.insert((origin.channel.index(), tpmsn), at);
        debug_assert!(before.is_none(), "a message has two records");
        if self.continue_message(node, env, at, packet) {
            return RequestTaken::Stored(at);
        }
        // Not even begun: a receive that was taken goes back.
        self.inbound_keys.remove(&(origin.channel.index(), tpmsn));
        self.drop_inbound(node, at);
        RequestTaken::No
    }
    /// There is no record for a message. One of a single packet is refused by RNR. With go-back-N each is, because a packet that
    /// counts as not received would stop all that is behind it, the peer's responses too. With selective repeat others pass it,
    /// until it is the oldest one: then its message is refused at once, because those for which there are records may wait for
    /// the sender's window.
    fn no_room(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, packet: &RequestPacket<'_>) -> RequestTaken {
        let (origin, rtph) = (&packet.origin, packet.rtph);
        let base = &origin.request.base;
        let Some(channel) = node.channels.table.get_mut(origin.channel) else { return RequestTaken::No };
        let is_part = node.channels.config.recovery == LossRecovery::Selective && !packet.is_whole();
        let is_oldest = channel.rx.expected() == rtph.psn && (channel.rx.can_withhold() || !is_fused(origin));
        if is_part && !is_oldest || channel.answers.len() >= BUSY_MAX {
            return RequestTaken::No;
        }
        if is_part {
            channel.refused.push_back((rtph.tpmsn, rtph.psn));
        }
        if (rtph.last || is_part) && is_fused(origin) {
            self.refuse(node, env, origin, FULL);
        } else if rtph.last || is_part {
            env.fx.count(Reason::UbOrderBufferFull);
            let owner = TxOwner::Busy { rc_id: base.rc_id, tassn: base.tassn, mode: base.mode };
            node.channels.enqueue(origin.channel, owner);
        }
        RequestTaken::Done
    }
    /// A packet of a message that has a record. False: there is no room for it.
    fn continue_message(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packet: &RequestPacket<'_>,
    ) -> bool {
        if !self.take_payload(node, env, at, packet) {
            return false;
        }
        let (base, payload) = (&packet.origin.request.base, packet.payload);
        let Some(message) = self.inbound.get_mut(at) else { return false };
        message.received = message.received.saturating_add(payload.len() as u32);
        if packet.rtph.last {
            message.total = Some(base.offset.saturating_add(payload.len() as u32));
            message.origin.last_psn = packet.rtph.psn;
        }
        if base.poison {
            if let InboundPhase::Placing(placement) = message.phase {
                placement.fail(&mut node.objects, env);
            }
            self.set_refused(node, at, POISONED);
        }
        self.check_complete(node, env, at);
        true
    }
    /// The payload of a packet goes to its place, or waits. False: there is no room for it.
    fn take_payload(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packet: &RequestPacket<'_>,
    ) -> bool {
        let (offset, payload) = (packet.origin.request.base.offset, packet.payload);
        let Some(message) = self.inbound.get(at) else { return false };
        let is_last_early = packet.rtph.last && message.received < offset;
        match message.phase {
            InboundPhase::Waiting => {
                if !payload.is_empty() && !self.hold(node, at, offset, payload) {
                    self.set_refused(node, at, FULL);
                }
            }
            InboundPhase::Echo => {
                if let Err(refusal) = self.echo_part(node, at, offset, payload) {
                    self.set_refused(node, at, refusal);
                }
            }
            InboundPhase::Placing(_) if is_last_early => return self.hold(node, at, offset, payload),
            InboundPhase::Placing(placement) => {
                if let Err(refusal) = placement.put(&node.objects.segments, env, offset, payload) {
                    placement.fail(&mut node.objects, env);
                    self.set_refused(node, at, refusal);
                }
            }
            InboundPhase::Refused(_) => {}
        }
        true
    }
    /// Ends a message that has arrived as a whole.
    pub(crate) fn check_complete(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let Some(message) = self.inbound.get(at).filter(|message| message.is_complete()) else { return };
        let (origin, total) = (message.origin, message.total.unwrap_or(0));
        self.inbound_keys.remove(&(origin.channel.index(), message.tpmsn));
        let outcome = match message.phase {
            InboundPhase::Waiting => return,
            InboundPhase::Placing(placement) => {
                let outcome = self.place_all(node, env, at, &placement);
                self.forget(node, at);
                match outcome {
                    Ok(()) => {
                        if let Some((jfr, record)) = placement.received(&origin, total) {
                            node.objects.complete_receive(jfr, record, env.fx);
                        }
                        self.finish(node, env, &origin);
                    }
                    Err(_) => placement.fail(&mut node.objects, env),
                }
                outcome
            }
            InboundPhase::Echo => {
                let outcome = self.echo_message(node, env, at, total);
                self.forget(node, at);
                outcome
            }
            InboundPhase::Refused(refusal) => {
                self.forget(node, at);
                Err(refusal)
            }
        };
        if let Err(refusal) = outcome {
            self.refuse(node, env, &origin, refusal);
        }
    }
    /// A message has arrived as a whole: what waits of it is placed, and the notification is written.
    fn place_all(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get(at) else { return Ok(()) };
        let (origin, total) = (message.origin, message.total);
        if origin.request.memory.is_some_and(|memory| Some(memory.len) != total) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
        }
        self.place_held(node, env, at, placement)?;
        notify(&node.objects.segments, env, &origin)
    }
    /// Places the payloads of a message that are in the reorder buffer, the last packet's at the end.
    fn place_held(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get_mut(at) else { return Ok(()) };
        let (channel, mut held) = (message.origin.channel, message.held.take());
        let mut outcome = Ok(());
        // The packets come last first.
        let mut last: Option<(u32, Vec<u8>)> = None;
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
            node.channels.unhold(channel, 1);
            let (offset, payload) = match &mut last {
                Some(last) if last.0 >= offset => (offset, payload),
                Some(last) => std::mem::replace(last, (offset, payload)),
                None => {
                    last = Some((offset, payload));
                    continue;
                }
            };
            outcome = outcome.and(placement.put(&node.objects.segments, env, offset, &payload));
        }
        if let Some((offset, payload)) = last {
            outcome = outcome.and(placement.put(&node.objects.segments, env, offset, &payload));
        }
        outcome
    }
    /// Removes the record of a message.
    fn forget(&mut self, node: &mut NodeShared, at: PoolRef) {
        self.drop_held(node, at);
        let Some(message) = self.remove_inbound(node, at) else { return };
        self.inbound_keys.remove(&(message.origin.channel.index(), message.tpmsn));
        self.contexts.forget(&message.origin, at);
    }
    /// Executes messages whose turn has come.
    pub(crate) fn run_contexts(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>) {
        while let Some(context) = self.contexts.pop_moved() {
            while let Some(message) = self.contexts.next_ready(context) {
                self.start_message(node, env, message);
            }
        }
    }
    /// The turn of a message that waited has come.
    fn start_message(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let Some(message) = self.inbound.get(at) else { return };
        let (origin, is_complete) = (message.origin, message.is_complete());
        if !matches!(message.phase, InboundPhase::Waiting) {
            return;
        }
        if !is_fusable(origin.request.base.opcode) && is_complete {
            // READs and atomics have no payload.
            self.forget(node, at);
            return self.execute_whole(node, env, &origin, &[]);
        }
        let phase = begin(node, env, &origin);
        self.set_phase(node, at, phase);
        match phase {
            InboundPhase::Placing(placement) if !is_complete => {
                // Others are missing: what is here is placed, and the last packet comes to its place in time.
                if let Err(refusal) = self.place_early(node, env, at, &placement) {
                    placement.fail(&mut node.objects, env);
                    self.set_refused(node, at, refusal);
                }
            }
            InboundPhase::Echo => self.start_echo(node, at),
            InboundPhase::Refused(_) => self.drop_held(node, at),
            _ => {}
        }
        self.check_complete(node, env, at);
    }
    /// The turn of a message to the echo has come: its payloads leave the reorder buffer.
    fn start_echo(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let (channel, mut held) = (message.origin.channel, message.held.take());
        while let Some((offset, part)) = self.buffer.take(&mut held) {
            let part = part.to_vec();
            node.channels.unhold(channel, 1);
            if let Err(refusal) = self.echo_part(node, at, offset, &part) {
                self.set_refused(node, at, refusal);
            }
        }
    }
    /// Places all payloads of an incomplete message but the last packet's.
    fn place_early(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get_mut(at) else { return Ok(()) };
        let (channel, mut held, total) = (message.origin.channel, message.held.take(), message.total);
        let mut kept: Option<(u32, Vec<u8>)> = None;
        let mut outcome = Ok(());
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
            node.channels.unhold(channel, 1);
            if total == Some(offset + payload.len() as u32) {
                kept = Some((offset, payload));
            } else {
                outcome = outcome.and(placement.put(&node.objects.segments, env, offset, &payload));
            }
        }
        if let Some((offset, payload)) = kept {
            // Its place was freed just now.
            let is_held = self.hold(node, at, offset, &payload);
            debug_assert!(is_held);
        }
        outcome
    }
    /// Makes a record of a message. `None`: there is no room.
    fn store_message(&mut self, node: &mut NodeShared, message: Inbound) -> Option<PoolRef> {
        let (channel, phase) = (message.origin.channel, message.phase);
        let is_waiting = matches!(phase, InboundPhase::Waiting);
        debug_assert!(message.received == 0 && message.held.is_none(), "a message begins with packets");
        let at = self.inbound.insert(message).ok()?;
        node.messages += 1;
        node.objects.count_placing(phase.receives_of(), true);
        if let Some(channel) = node.channels.get_mut(channel) {
            (channel.inbound, channel.last_message) = (channel.inbound + 1, at);
            channel.waiting += u32::from(is_waiting);
            self.inbound.push_back(&mut channel.messages, at);
        }
        Some(at)
    }
    /// The record of a message; most packets are of the same one as the packet before them.
    fn inbound_of(&mut self, node: &mut NodeShared, channel: PoolRef, tpmsn: u32, last: PoolRef) -> Option<PoolRef> {
        if self.inbound.get(last).is_some_and(|message| message.tpmsn == tpmsn && !message.is_complete()) {
            return Some(last);
        }
        if self.inbound_keys.is_empty() {
            return None;
        }
        let at = *self.inbound_keys.get(&(channel.index(), tpmsn))?;
        if let Some(channel) = node.channels.get_mut(channel) {
            channel.last_message = at;
        }
        Some(at)
    }
    pub(crate) fn set_refused(&mut self, node: &mut NodeShared, at: PoolRef, refusal: UrmaRefusal) {
        self.set_phase(node, at, InboundPhase::Refused(refusal));
        self.drop_held(node, at);
    }
    /// A message does not wait for its turn any more.
    fn set_phase(&mut self, node: &mut NodeShared, at: PoolRef, phase: InboundPhase) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let before = std::mem::replace(&mut message.phase, phase);
        node.objects.count_placing(before.receives_of(), false);
        node.objects.count_placing(phase.receives_of(), true);
        if let (InboundPhase::Waiting, Some(channel)) = (before, node.channels.get_mut(message.origin.channel)) {
            channel.waiting -= 1;
        }
    }
    /// Keeps a payload of a message in the reorder buffer, of which a channel leaves half for the others. False without room.
    fn hold(&mut self, node: &mut NodeShared, at: PoolRef, offset: u32, payload: &[u8]) -> bool {
        let Some(message) = self.inbound.get_mut(at) else { return false };
        let Some(channel) = node.channels.table.get_mut(message.origin.channel) else { return false };
        let has_room = (channel.held as usize) * usize::from(node.channels.config.lanes) < self.buffer.free();
        let is_held = has_room && self.buffer.hold(&mut message.held, offset, payload);
        channel.held += u32::from(is_held);
        is_held
    }
    /// Drops the payloads of a message that are in the reorder buffer.
    pub(crate) fn drop_held(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let (channel, count) = (message.origin.channel, self.buffer.drop_list(&mut message.held));
        node.channels.unhold(channel, count);
    }
    /// Forgets an incomplete message; its receive goes back to the front of its queue.
    pub(crate) fn drop_inbound(&mut self, node: &mut NodeShared, at: PoolRef) {
        self.drop_held(node, at);
        let Some(message) = self.remove_inbound(node, at) else { return };
        if let InboundPhase::Placing(placement) = message.phase
            && let (Some(jfr), Some(receive)) = (placement.jfr, placement.receive)
        {
            node.objects.put_receive_back(jfr, receive);
        }
    }
    /// Removes the record of a message, and only that.
    pub(crate) fn remove_inbound(&mut self, node: &mut NodeShared, at: PoolRef) -> Option<Inbound> {
        let message = self.inbound.get(at)?;
        let phase = message.phase;
        if let Some(channel) = node.channels.get_mut(message.origin.channel) {
            channel.inbound -= 1;
            channel.waiting -= u32::from(matches!(phase, InboundPhase::Waiting));
            self.inbound.take_out(&mut channel.messages, at);
        }
        debug_assert!(node.messages > 0);
        node.messages -= 1;
        node.objects.count_placing(phase.receives_of(), false);
        self.inbound.remove(at)
    }
}

/// The phase of a message whose turn it is.
fn begin(node: &mut NodeShared, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> InboundPhase {
    if !is_fusable(origin.request.base.opcode) {
        return InboundPhase::Refused(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
    }
    if is_for_echo(origin) {
        return InboundPhase::Echo;
    }
    match place_of(&mut node.objects, env, origin) {
        Ok(placement) => InboundPhase::Placing(placement),
        Err(refusal) => InboundPhase::Refused(refusal),
    }
}
