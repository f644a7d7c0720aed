//! Requests of peers before they are executed: messages of several packets, and those that wait for their turn.
//!
//! A packet says where its payload belongs. If it is the message's turn, the payload is placed at once, in whatever order the
//! packets come; only the last packet waits for the others, because programs poll the last byte of a WRITE. Otherwise the
//! payload waits in the reorder buffer. If that is full, the message is refused by RNR and sent again; it never blocks the
//! channel.

use crate::api::{LossRecovery, UrmaEnv};
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::{Inbound, InboundPhase, MessageOrigin, UrmaRefusal};
use crate::sequence::OrderVerdict;
use crate::target::is_fusable;
use crate::tx_window::TxOwner;
use burst_base::Reason;
use burst_ubwire::{OrderTag, RC_TYPE_CONTEXT, Rtph, ServiceMode, TaOpcode};

/// Timer code of an RNR answer when the order buffer is full: 80 us.
const FULL_TIMER: u8 = 3;
/// Responses of a channel that wait at most, if requests are refused without a record.
const BUSY_MAX: usize = 4096;
const FULL: UrmaRefusal = UrmaRefusal::rnr(FULL_TIMER, Reason::UbOrderBufferFull);

/// What became of a packet of a request.
enum RequestTaken {
    /// There is no room: it counts as not received.
    No,
    /// Its message has been answered.
    Done,
    /// It belongs to this record, unless that is complete.
    Stored(PoolRef),
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
        if is_fused && !self.channels.get(origin.channel).is_some_and(|channel| channel.rx.can_withhold()) {
            return false;
        }
        match self.take_request(env, &origin, rtph, payload) {
            RequestTaken::No => return false,
            RequestTaken::Done => {}
            RequestTaken::Stored(at) => {
                // A ROL request whose last packet has arrived and that is not executed: the packet is not acknowledged yet.
                if let (true, true, Some(channel)) =
                    (is_fused, self.inbound.get(at).is_some(), self.channels.get_mut(origin.channel))
                {
                    channel.rx.withhold(origin.last_psn);
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
        let key = (origin.channel.index(), rtph.tpmsn);
        if let Some(&at) = self.inbound_keys.get(&key) {
            let is_taken = self.continue_message(env, at, origin, rtph, payload);
            return if is_taken { RequestTaken::Stored(at) } else { RequestTaken::No };
        }
        // Each record will need a response, and so does this request. A ROL request needs one only if it is refused; those
        // are limited by the PSNs that a channel withholds.
        let is_full = self.responses.len() + self.inbound.len() >= self.config.responses_max;
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
        let is_waiting = matches!(turn, Turn::Later(..));
        if is_waiting && is_whole && self.inbound.len() * 2 >= self.config.inbound_max {
            self.refuse(env, origin, FULL);
            return RequestTaken::Done;
        }
        if !self.inbound.has_room() || self.is_refused_rest(origin) {
            return self.no_room(env, origin, rtph);
        }
        let phase = self.first_phase(env, origin, &turn);
        let message = Inbound { origin: *origin, tpmsn: rtph.tpmsn, phase, received: 0, total: None, held: None };
        let Ok(at) = self.inbound.insert(message) else { return RequestTaken::No };
        if let (Turn::Later(context, number), InboundPhase::Waiting) = (&turn, phase)
            && let Some(context) = self.contexts.get_mut(*context)
        {
            context.waiting.push((*number, at));
        }
        self.inbound_keys.insert(key, at);
        if self.continue_message(env, at, origin, rtph, payload) {
            return RequestTaken::Stored(at);
        }
        // Not even begun: a receive that was taken goes back.
        self.inbound_keys.remove(&key);
        self.drop_inbound(at);
        RequestTaken::No
    }
    /// There is no record for a message. With selective repeat the packet counts as not received, and others pass it. With
    /// go-back-N that would stop all that is behind it, the peer's responses too: the message is refused by RNR.
    fn no_room(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, rtph: &Rtph) -> RequestTaken {
        let base = &origin.request.base;
        let Some(channel) = self.channels.get_mut(origin.channel) else { return RequestTaken::No };
        if self.config.recovery == LossRecovery::Selective || channel.answers.len() >= BUSY_MAX {
            return RequestTaken::No;
        }
        if rtph.last && is_fused(origin) {
            self.refuse(env, origin, FULL);
        } else if rtph.last {
            env.fx.count(Reason::UbOrderBufferFull);
            let owner = TxOwner::Busy { rc_id: base.rc_id, tassn: base.tassn, mode: base.mode };
            self.enqueue(origin.channel, owner);
        }
        RequestTaken::Done
    }
    /// With go-back-N: a packet of a message whose first packet found no room.
    fn is_refused_rest(&self, origin: &MessageOrigin) -> bool {
        self.config.recovery == LossRecovery::GoBackN && origin.request.base.offset > 0
    }
    fn first_phase(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, turn: &Turn) -> InboundPhase {
        match turn {
            Turn::Later(..) if self.inbound.len() * 2 >= self.config.inbound_max => InboundPhase::Refused(FULL),
            Turn::Later(..) => InboundPhase::Waiting,
            Turn::Never => InboundPhase::Refused(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused)),
            Turn::Now => self.begin(env, origin),
        }
    }
    fn begin(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> InboundPhase {
        if !is_fusable(origin.request.base.opcode) {
            return InboundPhase::Refused(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
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
                if !self.buffer.hold(&mut message.held, offset, payload) {
                    message.phase = InboundPhase::Refused(FULL);
                    self.buffer.drop_list(&mut message.held);
                }
            }
            InboundPhase::Placing(_) if is_last_early => {
                if !self.buffer.hold(&mut message.held, offset, payload) {
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
    fn set_refused(&mut self, at: PoolRef, refusal: UrmaRefusal) {
        if let Some(message) = self.inbound.get_mut(at) {
            message.phase = InboundPhase::Refused(refusal);
            self.buffer.drop_list(&mut message.held);
        }
    }
    /// Ends a message that has arrived as a whole.
    fn check_complete(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef) {
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
                    outcome = self.place_held(env, at, &placement);
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
        let Some(mut held) = self.inbound.get_mut(at).and_then(|message| message.held.take()).map(Some) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        // The packets come last first; the last one must be placed at the end.
        let mut last: Option<(u32, Vec<u8>)> = None;
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
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
        let Some(mut message) = self.inbound.remove(at) else { return };
        self.buffer.drop_list(&mut message.held);
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
        let Some(message) = self.inbound.get_mut(at) else { return };
        message.phase = phase;
        match phase {
            InboundPhase::Placing(placement) if !is_complete => {
                // Others are missing: what is here is placed, and the last packet comes to its place in time.
                if let Err(refusal) = self.place_early(env, at, &placement) {
                    self.fail_receive(env, &placement);
                    self.set_refused(at, refusal);
                }
            }
            InboundPhase::Refused(_) => {
                let mut held = message.held.take();
                self.buffer.drop_list(&mut held);
            }
            _ => {}
        }
        self.check_complete(env, at);
    }
    /// Places all payloads of an incomplete message but the last packet's.
    fn place_early(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        placement: &crate::records::Placement,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get_mut(at) else { return Ok(()) };
        let (mut held, total) = (message.held.take(), message.total);
        let mut kept: Option<(u32, Vec<u8>)> = None;
        let mut outcome = Ok(());
        while let Some((offset, payload)) = self.buffer.take(&mut held) {
            let payload = payload.to_vec();
            if total == Some(offset + payload.len() as u32) {
                kept = Some((offset, payload));
            } else {
                outcome = outcome.and(self.put_payload(env, placement, offset, &payload));
            }
        }
        if let (Some((offset, payload)), Some(message)) = (kept, self.inbound.get_mut(at)) {
            // Its place was freed just now.
            let is_held = self.buffer.hold(&mut message.held, offset, &payload);
            debug_assert!(is_held);
        }
        outcome
    }
    fn on_disconnect(&mut self, origin: &MessageOrigin) {
        if let Some((at, _)) = self.context_of(origin, None)
            && self.contexts.get(at).is_some_and(|context| context.waiting.is_empty())
        {
            self.contexts.remove(at);
        }
    }
}
