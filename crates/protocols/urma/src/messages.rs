//! Requests of peers before they are executed: messages of several packets, and those that wait for their turn.
//!
//! A packet says where its payload belongs. If it is the message's turn, the payload is placed at once, in whatever order the
//! packets come; only the last packet waits for the others, because programs poll the last byte of a WRITE. Otherwise the
//! payload waits in the reorder buffer. If that is full, the message is refused by RNR and sent again; it never blocks the
//! channel.

use crate::api::{LossRecovery, UrmaEnv};
use crate::channels::tx_window::TxOwner;
use crate::echo::is_for_echo;
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::{Inbound, InboundPhase, MessageOrigin, UrmaRefusal};
use crate::sequence::OrderVerdict;
use crate::target::is_fusable;
use burst_base::Reason;
use burst_ubwire::{Btah, OrderTag, RC_TYPE_CONTEXT, Rtph, ServiceMode, TaOpcode, TaRequest};

/// Timer code of an RNR answer when the order buffer is full: 80 us.
const FULL_TIMER: u8 = 3;
/// Responses of a channel that wait at most, if requests are refused without a record.
const BUSY_MAX: usize = 4096;
const FULL: UrmaRefusal = UrmaRefusal::rnr(FULL_TIMER | UrmaRefusal::BUSY, Reason::UbOrderBufferFull);

/// What became of a packet of a request.
enum RequestTaken {
    /// There is no room: it counts as not received.
    No,
    /// Its message has been answered.
    Done,
    /// It belongs to this record, unless that is complete.
    Stored(PoolRef),
    /// It is no packet of the message that its number names: dropped, and acknowledged as any other.
    Foreign,
}

/// Whether a request may be executed.
enum Turn {
    Now,
    Later(PoolRef, u16),
    Never,
}

/// Whether the transport acknowledgement of a request's last packet is its answer.
fn is_fused(origin: &MessageOrigin) -> bool {
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

impl UrmaNode {
    /// A packet of a request. False: there is no room for it, and it counts as not received.
    pub(crate) fn on_request(
        &mut self,
        env: &mut UrmaEnv<'_>,
        origin: MessageOrigin,
        rtph: &Rtph,
        payload: &[u8],
    ) -> bool {
        let base = &origin.request.base;
        match base.opcode {
            TaOpcode::DisconnectContext => {
                self.on_disconnect(&origin);
                return true;
            }
            TaOpcode::Management => {
                env.fx.count(Reason::UbManagement);
                return true;
            }
            _ => {}
        }
        if base.mode == ServiceMode::Uno {
            env.fx.count(Reason::UbRefused);
            return true;
        }
        let is_fused = is_fused(&origin) && rtph.last;
        if is_fused && !self.shared.channels.get(origin.channel).is_some_and(|channel| channel.rx.can_withhold()) {
            return false;
        }
        match self.take_request(env, &origin, rtph, payload) {
            RequestTaken::No => return false,
            RequestTaken::Done => {}
            RequestTaken::Foreign => env.fx.count(Reason::UbRefused),
            RequestTaken::Stored(at) => {
                // A ROL request whose last packet has arrived and that is not executed: the packet is not acknowledged yet.
                if let (true, Some(message), Some(channel)) =
                    (is_fused, self.inbound.get(at), self.shared.channels.get_mut(origin.channel))
                {
                    channel.rx.withhold(origin.last_psn);
                    if matches!(message.phase, InboundPhase::Waiting) {
                        self.defer(at);
                    }
                }
            }
        }
        true
    }
    fn take_request(
        &mut self,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        rtph: &Rtph,
        payload: &[u8],
    ) -> RequestTaken {
        let Some(channel) = self.shared.channels.get_mut(origin.channel) else { return RequestTaken::No };
        if channel.is_refused(rtph.tpmsn) {
            return RequestTaken::Done;
        }
        let last_message = channel.last_message;
        if let Some(at) = self.inbound_of(origin.channel, rtph.tpmsn, last_message) {
            if !self.inbound.get(at).is_some_and(|message| is_same_message(message, origin, rtph.last)) {
                return RequestTaken::Foreign;
            }
            let is_taken = self.continue_message(env, at, origin, rtph, payload);
            return if is_taken { RequestTaken::Stored(at) } else { RequestTaken::No };
        }
        // Each record will need a response, and so does this request. A ROL request needs one only if it is refused; those
        // are limited by the PSNs that a channel withholds.
        let is_full = !self.shared.has_response_room(origin.channel);
        if is_full && !is_fused(origin) {
            return self.no_room(env, origin, rtph);
        }
        let is_whole = rtph.last && origin.request.base.offset == 0;
        let turn = self.turn(origin);
        match turn {
            Turn::Now if is_whole => {
                self.execute_whole(env, *origin, payload);
                return RequestTaken::Done;
            }
            Turn::Never if is_whole => {
                self.refuse(env, origin, UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
                return RequestTaken::Done;
            }
            Turn::Later(..) if is_whole && origin.request.base.poison => {
                // Given up by its sender: nothing waits for it any more.
                self.refuse(env, origin, UrmaRefusal::error(UrmaRefusal::POISON, Reason::UbPoisoned));
                return RequestTaken::Done;
            }
            _ => {}
        }
        if is_whole && matches!(turn, Turn::Later(..)) && !self.shared.has_waiting_room(origin.channel) {
            return self.no_room(env, origin, rtph);
        }
        if !self.shared.has_message_room(origin.channel) || self.is_refused_rest(origin) {
            return self.no_room(env, origin, rtph);
        }
        let phase = self.first_phase(env, origin, &turn);
        let message = Inbound { origin: *origin, tpmsn: rtph.tpmsn, phase, received: 0, total: None, held: None };
        let Some(at) = self.store_message(message) else { return RequestTaken::No };
        if let (Turn::Later(context, number), InboundPhase::Waiting) = (&turn, phase)
            && let Some(context) = self.contexts.get_mut(*context)
        {
            context.waiting.push((*number, at));
        }
        self.inbound_keys.insert((origin.channel.index(), rtph.tpmsn), at);
        if self.continue_message(env, at, origin, rtph, payload) {
            return RequestTaken::Stored(at);
        }
        // Not even begun: a receive that was taken goes back.
        self.inbound_keys.remove(&(origin.channel.index(), rtph.tpmsn));
        self.drop_inbound(at);
        RequestTaken::No
    }
    /// Makes a record of a message. `None`: there is no room.
    fn store_message(&mut self, message: Inbound) -> Option<PoolRef> {
        let (channel, is_waiting) = (message.origin.channel, matches!(message.phase, InboundPhase::Waiting));
        let at = self.inbound.insert(message).ok()?;
        self.shared.messages += 1;
        if let Some(channel) = self.shared.channels.get_mut(channel) {
            (channel.inbound, channel.last_message) = (channel.inbound + 1, at);
            channel.waiting += u32::from(is_waiting);
            self.inbound.push_back(&mut channel.messages, at);
        }
        Some(at)
    }
    /// The record of a message; most packets are of the same one as the packet before them.
    fn inbound_of(&mut self, channel: PoolRef, tpmsn: u32, last: PoolRef) -> Option<PoolRef> {
        if self.inbound.get(last).is_some_and(|message| message.tpmsn == tpmsn && !message.is_complete()) {
            return Some(last);
        }
        if self.inbound_keys.is_empty() {
            return None;
        }
        let at = *self.inbound_keys.get(&(channel.index(), tpmsn))?;
        if let Some(channel) = self.shared.channels.get_mut(channel) {
            channel.last_message = at;
        }
        Some(at)
    }
    /// There is no record for a message. One of a single packet is refused by RNR. With go-back-N each is, because a packet that
    /// counts as not received would stop all that is behind it, the peer's responses too. With selective repeat others pass it,
    /// until it is the oldest one: then its message is refused at once, because those for which there are records may wait for
    /// the sender's window.
    fn no_room(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, rtph: &Rtph) -> RequestTaken {
        let base = &origin.request.base;
        let Some(channel) = self.shared.channels.table.get_mut(origin.channel) else { return RequestTaken::No };
        let is_part =
            self.shared.channels.config.recovery == LossRecovery::Selective && !(rtph.last && base.offset == 0);
        let is_oldest = channel.rx.expected() == rtph.psn && (channel.rx.can_withhold() || !is_fused(origin));
        if is_part && !is_oldest || channel.answers.len() >= BUSY_MAX {
            return RequestTaken::No;
        }
        if is_part {
            channel.refused.push_back((rtph.tpmsn, rtph.psn));
        }
        if (rtph.last || is_part) && is_fused(origin) {
            self.refuse(env, origin, FULL);
        } else if rtph.last || is_part {
            env.fx.count(Reason::UbOrderBufferFull);
            let owner = TxOwner::Busy { rc_id: base.rc_id, tassn: base.tassn, mode: base.mode };
            self.shared.channels.enqueue(origin.channel, owner);
        }
        RequestTaken::Done
    }
    /// With go-back-N: a packet of a message whose first packet found no room.
    fn is_refused_rest(&self, origin: &MessageOrigin) -> bool {
        self.shared.channels.config.recovery == LossRecovery::GoBackN && origin.request.base.offset > 0
    }
    fn first_phase(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, turn: &Turn) -> InboundPhase {
        match turn {
            Turn::Later(..) if !self.shared.has_waiting_room(origin.channel) => InboundPhase::Refused(FULL),
            Turn::Later(..) => InboundPhase::Waiting,
            Turn::Never => InboundPhase::Refused(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused)),
            Turn::Now => self.begin(env, origin),
        }
    }
    fn begin(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> InboundPhase {
        if !is_fusable(origin.request.base.opcode) {
            return InboundPhase::Refused(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
        }
        if is_for_echo(origin) {
            return InboundPhase::Echo;
        }
        match self.place_of(env, origin) {
            Ok(placement) => InboundPhase::Placing(placement),
            Err(refusal) => InboundPhase::Refused(refusal),
        }
    }
    fn turn(&self, origin: &MessageOrigin) -> Turn {
        let base = &origin.request.base;
        if base.rc_type != RC_TYPE_CONTEXT {
            return Turn::Now;
        }
        let Some((at, number)) = self.context_of(origin, None) else { return Turn::Never };
        let Some(context) = self.contexts.get(at) else { return Turn::Never };
        let order = if base.mode == ServiceMode::Rol { OrderTag::Strong } else { base.order };
        match context.tracker.judge(number, order) {
            OrderVerdict::Execute => Turn::Now,
            // A second one with its number would wait for ever.
            OrderVerdict::Wait if context.waiting.iter().any(|waiting| waiting.0 == number) => Turn::Never,
            OrderVerdict::Wait => Turn::Later(at, number),
            OrderVerdict::Repeated | OrderVerdict::Outside => Turn::Never,
        }
    }
    /// A packet of a message that has a record.
    fn continue_message(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        origin: &MessageOrigin,
        rtph: &Rtph,
        payload: &[u8],
    ) -> bool {
        let offset = origin.request.base.offset;
        let Some(message) = self.inbound.get_mut(at) else { return false };
        let is_last_early = rtph.last && message.received < offset;
        match message.phase {
            InboundPhase::Waiting => {
                if !payload.is_empty() && !self.hold(at, offset, payload) {
                    self.set_refused(at, FULL);
                }
            }
            InboundPhase::Echo => {
                if let Err(refusal) = self.echo_part(at, offset, payload) {
                    self.set_refused(at, refusal);
                }
            }
            InboundPhase::Placing(_) if is_last_early => {
                if !self.hold(at, offset, payload) {
                    return false;
                }
            }
            InboundPhase::Placing(placement) => {
                if let Err(refusal) = self.put_payload(env, &placement, offset, payload) {
                    self.fail_receive(env, &placement);
                    self.set_refused(at, refusal);
                }
            }
            InboundPhase::Refused(_) => {}
        }
        let Some(message) = self.inbound.get_mut(at) else { return false };
        message.received = message.received.saturating_add(payload.len() as u32);
        if rtph.last {
            message.total = Some(offset.saturating_add(payload.len() as u32));
            message.origin.last_psn = rtph.psn;
        }
        if origin.request.base.poison {
            if let InboundPhase::Placing(placement) = message.phase {
                self.fail_receive(env, &placement);
            }
            self.set_refused(at, UrmaRefusal::error(UrmaRefusal::POISON, Reason::UbPoisoned));
        }
        self.check_complete(env, at);
        true
    }
    pub(crate) fn set_refused(&mut self, at: PoolRef, refusal: UrmaRefusal) {
        self.set_phase(at, InboundPhase::Refused(refusal));
        self.drop_held(at);
    }
    /// A message does not wait for its turn any more.
    fn set_phase(&mut self, at: PoolRef, phase: InboundPhase) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let before = std::mem::replace(&mut message.phase, phase);
        if let (InboundPhase::Waiting, Some(channel)) = (before, self.shared.channels.get_mut(message.origin.channel)) {
            channel.waiting -= 1;
        }
    }
    /// Keeps a payload of a message in the reorder buffer, of which a channel leaves half for the others. False without room.
    fn hold(&mut self, at: PoolRef, offset: u32, payload: &[u8]) -> bool {
        let Some(message) = self.inbound.get_mut(at) else { return false };
        let Some(channel) = self.shared.channels.table.get_mut(message.origin.channel) else { return false };
        let has_room = (channel.held as usize) * usize::from(self.shared.channels.config.lanes) < self.buffer.free();
        let is_held = has_room && self.buffer.hold(&mut message.held, offset, payload);
        channel.held += u32::from(is_held);
        is_held
    }
    /// Drops the payloads of a message that are in the reorder buffer.
    pub(crate) fn drop_held(&mut self, at: PoolRef) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let (channel, count) = (message.origin.channel, self.buffer.drop_list(&mut message.held));
        self.unhold(channel, count);
    }
    /// So many payloads of a channel have left the reorder buffer.
    pub(crate) fn unhold(&mut self, channel: PoolRef, count: u32) {
        if let Some(channel) = self.shared.channels.get_mut(channel) {
            channel.held -= count;
        }
    }
    /// Ends a message that has arrived as a whole.
    pub(crate) fn check_complete(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let Some(message) = self.inbound.get(at).filter(|message| message.is_complete()) else { return };
        let (origin, total) = (message.origin, message.total.unwrap_or(0));
        self.inbound_keys.remove(&(origin.channel.index(), message.tpmsn));
        match message.phase {
            InboundPhase::Waiting => {}
            InboundPhase::Placing(placement) => {
                let is_whole = origin.request.memory.is_none_or(|memory| memory.len == total);
                let mut outcome =
                    if is_whole { Ok(()) } else { Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength)) };
                if outcome.is_ok() {
                    outcome = self.place_held(env, at, &placement).and_then(|()| self.notify(env, &origin));
                }
                self.forget(at);
                match outcome {
                    Ok(()) => self.finish(env, &origin, &placement, total),
                    Err(refusal) => {
                        self.fail_receive(env, &placement);
                        self.refuse(env, &origin, refusal);
                    }
                }
            }
            InboundPhase::Echo => {
                let outcome = self.echo_message(env, at, &origin, total);
                self.forget(at);
                if let Err(refusal) = outcome {
                    self.refuse(env, &origin, refusal);
                }
            }
            InboundPhase::Refused(refusal) => {
                self.forget(at);
                self.refuse(env, &origin, refusal);
            }
        }
    }
    /// Places the payloads of a message that are in the reorder buffer.
    fn place_held(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &crate::records::Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get_mut(at) else { return Ok(()) };
        let (channel, mut held) = (message.origin.channel, message.held.take());
        let mut outcome = Ok(());
        // The packets come last first; the last one must be placed at the end.
        let mut last: Option<(u32, Vec<u8>)> = None;
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
            self.unhold(channel, 1);
            let (offset, payload) = match &mut last {
                Some(last) if last.0 >= offset => (offset, payload),
                Some(last) => std::mem::replace(last, (offset, payload)),
                None => {
                    last = Some((offset, payload));
                    continue;
                }
            };
            outcome = outcome.and(self.put_payload(env, placement, offset, &payload));
        }
        if let Some((offset, payload)) = last {
            outcome = outcome.and(self.put_payload(env, placement, offset, &payload));
        }
        outcome
    }
    /// Removes the record of a message.
    fn forget(&mut self, at: PoolRef) {
        self.drop_held(at);
        let Some(message) = self.remove_inbound(at) else { return };
        self.inbound_keys.remove(&(message.origin.channel.index(), message.tpmsn));
        if let Some((context, _)) = self.context_of(&message.origin, None)
            && let Some(context) = self.contexts.get_mut(context)
        {
            context.waiting.retain(|waiting| waiting.1 != at);
        }
    }
    /// Executes messages whose turn has come.
    pub(crate) fn run_contexts(&mut self, env: &mut UrmaEnv<'_>) {
        while let Some(at) = self.moved_contexts.pop() {
            while let Some(context) = self.contexts.get_mut(at) {
                let tracker = context.tracker;
                let next =
                    context.waiting.iter().position(|w| tracker.judge(w.0, OrderTag::Strong) == OrderVerdict::Execute);
                let Some(next) = next else { break };
                let (_, message) = context.waiting.swap_remove(next);
                self.start_message(env, message);
            }
        }
    }
    /// The turn of a message that waited has come.
    fn start_message(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let Some(message) = self.inbound.get(at) else { return };
        let (origin, is_complete) = (message.origin, message.is_complete());
        if !matches!(message.phase, InboundPhase::Waiting) {
            return;
        }
        if !is_fusable(origin.request.base.opcode) && is_complete {
            // READs and atomics have no payload.
            self.forget(at);
            return self.execute_whole(env, origin, &[]);
        }
        let phase = self.begin(env, &origin);
        self.set_phase(at, phase);
        match phase {
            InboundPhase::Placing(placement) if !is_complete => {
                // Others are missing: what is here is placed, and the last packet comes to its place in time.
                if let Err(refusal) = self.place_early(env, at, &placement) {
                    self.fail_receive(env, &placement);
                    self.set_refused(at, refusal);
                }
            }
            InboundPhase::Echo => self.echo_waited(at),
            InboundPhase::Refused(_) => self.drop_held(at),
            _ => {}
        }
        self.check_complete(env, at);
    }
    /// The turn of a message to the echo has come: its payloads leave the reorder buffer.
    fn echo_waited(&mut self, at: PoolRef) {
        let Some(message) = self.inbound.get_mut(at) else { return };
        let (channel, mut held) = (message.origin.channel, message.held.take());
        while let Some((offset, part)) = self.buffer.take(&mut held) {
            let part = part.to_vec();
            self.unhold(channel, 1);
            if let Err(refusal) = self.echo_part(at, offset, &part) {
                self.set_refused(at, refusal);
            }
        }
    }
    /// Places all payloads of an incomplete message but the last packet's.
    fn place_early(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &crate::records::Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get_mut(at) else { return Ok(()) };
        let (channel, mut held, total) = (message.origin.channel, message.held.take(), message.total);
        let mut kept: Option<(u32, Vec<u8>)> = None;
        let mut outcome = Ok(());
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
            self.unhold(channel, 1);
            if total == Some(offset + payload.len() as u32) {
                kept = Some((offset, payload));
            } else {
                outcome = outcome.and(self.put_payload(env, placement, offset, &payload));
            }
        }
        if let Some((offset, payload)) = kept {
            // Its place was freed just now.
            let is_held = self.hold(at, offset, &payload);
            debug_assert!(is_held);
        }
        outcome
    }
    fn on_disconnect(&mut self, origin: &MessageOrigin) {
        if let Some((at, _)) = self.context_of(origin, None)
            && self.contexts.get(at).is_some_and(|context| context.waiting.is_empty())
        {
            self.remove_context(at);
        }
    }
}
