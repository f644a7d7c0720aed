//! Execution of peers' requests: checks of target, token, range and right, then memory, receives and answers. Each refusal
//! answers one request and touches nothing else.

use crate::api::{
    CompletionRecord, CrStatus, JettyState, JfrState, LossRecovery, TransMode, UrmaEnv, UrmaEvent, access,
};
use crate::channel::FusedAck;
use crate::node::UrmaNode;
use crate::pool::PoolRef;
use crate::records::{MessageOrigin, Placement, ResponseKind, ResponseRecord, UrmaRefusal};
use crate::segment::PeerAccess;
use crate::sequence::{OrderTracker, SequenceContext};
use crate::tx_window::TxOwner;
use burst_base::Reason;
use burst_ubwire::{Maetah, Mtetah, RC_TYPE_CONTEXT, ServiceMode, TaOpcode, UbStatus};

impl UrmaNode {
    /// Executes a request whose payload is complete and whose turn it is.
    pub(crate) fn execute_whole(&mut self, env: &mut UrmaEnv<'_>, origin: MessageOrigin, payload: &[u8]) {
        let base = &origin.request.base;
        let outcome = if base.poison {
            Err(UrmaRefusal::error(UrmaRefusal::POISON, Reason::UbPoisoned))
        } else if base.opcode == TaOpcode::Read {
            self.execute_read(env, &origin)
        } else if base.opcode.is_atomic() {
            self.execute_atomic(env, &origin)
        } else {
            self.execute_message(env, &origin, payload)
        };
        if let Err(refusal) = outcome {
            self.refuse(env, &origin, refusal);
        }
    }
    fn execute_message(
        &mut self,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        payload: &[u8],
    ) -> Result<(), UrmaRefusal> {
        if origin.request.memory.is_some_and(|memory| memory.len as usize != payload.len()) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
        }
        let placement = self.place_of(env, origin)?;
        let is_fit = self.put_payload(env, &placement, 0, payload);
        match is_fit {
            Ok(()) => self.finish(env, origin, &placement, payload.len() as u32),
            Err(refusal) => {
                self.fail_receive(env, &placement);
                return Err(refusal);
            }
        }
        Ok(())
    }
    /// Where the payload of a SEND or WRITE goes. Takes a receive if one is used.
    pub(crate) fn place_of(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<Placement, UrmaRefusal> {
        let request = &origin.request;
        let opcode = request.base.opcode;
        let mut placement = Placement { token_id: 0, addr: 0, limit: 0, jfr: None, receive: None, local_id: 0 };
        if opcode.has_memory() {
            let memory = self.check_memory(origin, access::WRITE)?;
            (placement.token_id, placement.addr, placement.limit) = (memory.token_id, memory.addr, memory.len);
        }
        if opcode == TaOpcode::Write {
            return Ok(placement);
        }
        let (local_id, jfr) = self.check_target(origin)?;
        (placement.local_id, placement.jfr) = (local_id, Some(jfr));
        if opcode == TaOpcode::WriteNotify {
            return Ok(placement);
        }
        let queue =
            self.jfrs.get_mut(jfr).ok_or(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget))?;
        let timer = queue.config.rnr_timer;
        let receive = queue.receives.pop_front().ok_or(UrmaRefusal::rnr(timer, Reason::UbNotReady))?;
        if queue.receives.len() < usize::from(queue.config.limit) && !queue.is_limit_told {
            queue.is_limit_told = true;
            env.fx.event(UrmaEvent::JfrLimit(jfr.index() + crate::api::JETTY_ID_FIRST));
        }
        placement.receive = Some(receive);
        if !opcode.has_memory() {
            let range = receive.range;
            (placement.token_id, placement.addr, placement.limit) = (range.token_id, range.addr, range.len);
        }
        Ok(placement)
    }
    /// Copies a part of the payload to its place.
    pub(crate) fn put_payload(
        &mut self,
        env: &mut UrmaEnv<'_>,
        placement: &Placement,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), UrmaRefusal> {
        if u64::from(offset) + payload.len() as u64 > u64::from(placement.limit) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbTooLong));
        }
        let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
        if payload.is_empty() {
            return Ok(());
        }
        let addr = placement.addr + u64::from(offset);
        // The segment may have been deregistered since the first packet.
        if !self.segments.is_local(placement.token_id, addr, payload.len() as u32) {
            return Err(gone);
        }
        env.mem.write(addr, payload).map_err(|_| gone)
    }
    /// The segment of a request, checked.
    fn check_memory(&self, origin: &MessageOrigin, right: u8) -> Result<Maetah, UrmaRefusal> {
        let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
        let memory = origin.request.memory.ok_or(missing)?;
        let wanted = PeerAccess {
            token_id: memory.token_id,
            token: origin.request.token,
            addr: memory.addr,
            len: memory.len,
            right,
        };
        self.segments.check(wanted).map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))?;
        Ok(memory)
    }
    /// The receive queue of the Jetty or JFR that a request names: its number, and the queue.
    fn check_target(&self, origin: &MessageOrigin) -> Result<(u32, PoolRef), UrmaRefusal> {
        let unknown = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget);
        let refused = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused);
        let target = origin.request.target.ok_or(unknown)?;
        let (jfr, token) = match target.kind {
            Mtetah::JFR => (target.id, None),
            Mtetah::JETTY => {
                let jetty = self.jetty_ref(target.id).and_then(|at| self.jetties.get(at)).ok_or(unknown)?;
                let is_unreliable = origin.request.base.mode == ServiceMode::Uno;
                let is_peer = match jetty.config.mode {
                    TransMode::Rc => {
                        jetty.bound.is_some_and(|b| (b.cna, b.id) == (origin.peer, origin.request.base.rc_id))
                    }
                    TransMode::Rm => !is_unreliable,
                    TransMode::Um => is_unreliable,
                };
                if !matches!(jetty.state, JettyState::Ready | JettyState::Suspended) {
                    return Err(unknown);
                }
                if !is_peer {
                    return Err(refused);
                }
                (jetty.config.jfr.ok_or(unknown)?, jetty.config.token)
            }
            _ => return Err(UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbUnknownTarget)),
        };
        let at = self.jfr_ref(jfr).ok_or(unknown)?;
        let queue = self.jfrs.get(at).filter(|queue| queue.state == JfrState::Ready).ok_or(unknown)?;
        let needed = if target.kind == Mtetah::JFR { queue.config.token } else { token };
        // A WRITE with notification carries the token of the segment, which was checked.
        let is_shown = needed.is_none() || origin.request.base.opcode.has_memory() || origin.request.token == needed;
        if is_shown { Ok((target.id, at)) } else { Err(UrmaRefusal::error(UrmaRefusal::ACCESS, Reason::UbToken)) }
    }
    fn execute_read(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<(), UrmaRefusal> {
        let memory = self.check_memory(origin, access::READ)?;
        let granted = self.grant(env, origin);
        let kind = ResponseKind::Read { addr: memory.addr, len: memory.len, token_id: memory.token_id, granted };
        let context = self.context_of(origin, granted);
        env.fx.executed(origin.peer, origin.request.base.rc_id, origin.request.base.tassn);
        self.respond(origin, kind, context);
        Ok(())
    }
    fn execute_atomic(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<(), UrmaRefusal> {
        let memory = self.check_memory(origin, access::ATOMIC)?;
        if memory.len != 8 || !memory.addr.is_multiple_of(8) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::MisalignedAtomic));
        }
        let [a, b] = origin.request.operands;
        let opcode = origin.request.base.opcode;
        let change = |old: u64| match opcode {
            TaOpcode::Cas => {
                if old == a {
                    b
                } else {
                    old
                }
            }
            TaOpcode::Swap => a,
            TaOpcode::FetchAdd => old.wrapping_add(a),
            TaOpcode::FetchSub => old.wrapping_sub(a),
            TaOpcode::FetchAnd => old & a,
            TaOpcode::FetchOr => old | a,
            TaOpcode::FetchXor => old ^ a,
            _ => old,
        };
        let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
        let value = env.mem.update(memory.addr, &change).map_err(|_| gone)?;
        let granted = self.grant(env, origin);
        self.executed(env, origin, granted);
        self.respond(origin, ResponseKind::Atomic { value, granted }, None);
        Ok(())
    }
    /// A SEND or WRITE has reached its place: completion, answer.
    pub(crate) fn finish(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, placement: &Placement, len: u32) {
        if let Some(jfr) = placement.jfr {
            self.complete_receive(env, origin, placement, (jfr, CrStatus::Success, len));
        }
        let granted = self.grant(env, origin);
        self.executed(env, origin, granted);
        let base = &origin.request.base;
        if base.mode == ServiceMode::Uno {
            return;
        }
        if base.mode == ServiceMode::Rol && !base.alloc {
            if let Some(channel) = self.channels.get_mut(origin.channel) {
                channel.rx.release(origin.last_psn);
                channel.fused.push_back(FusedAck { rc_id: base.rc_id, tassn: base.tassn });
                self.activate(origin.channel);
            }
            return;
        }
        self.acknowledge(origin, UbStatus::SUCCESS, granted);
    }
    fn complete_receive(
        &mut self,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        placement: &Placement,
        (jfr, status, len): (PoolRef, CrStatus, u32),
    ) {
        let Some(jfc) = self.jfrs.get(jfr).map(|jfr| jfr.config.jfc) else { return };
        let record = CompletionRecord {
            status,
            user_ctx: placement.receive.map_or(0, |receive| receive.user_ctx),
            opcode: origin.request.base.opcode,
            is_receive: true,
            len,
            local_id: placement.local_id,
            remote: Some((origin.peer, origin.request.base.rc_id)),
            immediate: origin.request.immediate,
        };
        self.complete(jfc, record, env.fx);
    }
    /// A receive that was taken cannot be filled: it ends with an error.
    pub(crate) fn fail_receive(&mut self, env: &mut UrmaEnv<'_>, placement: &Placement) {
        let (Some(jfr), Some(receive)) = (placement.jfr, placement.receive) else { return };
        let Some(jfc) = self.jfrs.get(jfr).map(|jfr| jfr.config.jfc) else { return };
        let record = CompletionRecord {
            status: CrStatus::LocLen,
            user_ctx: receive.user_ctx,
            opcode: TaOpcode::Send,
            is_receive: true,
            len: 0,
            local_id: placement.local_id,
            remote: None,
            immediate: 0,
        };
        self.complete(jfc, record, env.fx);
    }
    /// Answers a request by a refusal.
    pub(crate) fn refuse(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, refusal: UrmaRefusal) {
        env.fx.count(refusal.reason);
        let base = &origin.request.base;
        if base.mode == ServiceMode::Uno {
            return env.fx.count(Reason::UbUnreliableLost);
        }
        if refusal.is_final()
            && let Some((context, number)) = self.context_of(origin, None)
        {
            self.context_executed(context, number);
        }
        let response = self.acknowledge(origin, refusal.status, None);
        if base.mode == ServiceMode::Rol && is_fusable(base.opcode) && !base.alloc {
            // The packet is acknowledged when the peer has the refusal.
            self.withhold_for(origin, response);
        }
    }
    fn withhold_for(&mut self, origin: &MessageOrigin, response: Option<PoolRef>) {
        let Some(channel) = self.channels.get_mut(origin.channel) else { return };
        channel.rx.release(origin.last_psn);
        let Some(response) = response else { return };
        if channel.rx.can_withhold() {
            channel.rx.withhold(origin.last_psn);
            channel.rx.refuse(origin.last_psn, response);
        }
    }
    fn acknowledge(&mut self, origin: &MessageOrigin, status: UbStatus, granted: Option<u16>) -> Option<PoolRef> {
        if status == UbStatus::SUCCESS && granted.is_none() && self.join_acknowledgement(origin) {
            return None;
        }
        self.respond(origin, ResponseKind::Ack { status, also: 0, granted }, None)
    }
    /// Adds a success to the acknowledgement of the request before it, if that one is the last in the queue and not sent.
    fn join_acknowledgement(&mut self, origin: &MessageOrigin) -> bool {
        let last = self.channels.get(origin.channel).and_then(|channel| channel.answers.back().copied());
        let Some(TxOwner::Response(at)) = last else { return false };
        let Some(response) = self.responses.get_mut(at) else { return false };
        let base = &origin.request.base;
        let ResponseKind::Ack { status: UbStatus::SUCCESS, also, granted: None } = &mut response.kind else {
            return false;
        };
        let is_next = response.unacked == 0
            && response.rc_id == base.rc_id
            && response.mode == base.mode
            && base.tassn == response.tassn.wrapping_add(u16::from(*also) + 1)
            && *also < 31;
        if is_next {
            *also += 1;
        }
        is_next
    }
    /// Queues a response. There is room: `on_request` accepts no more than can be answered.
    fn respond(
        &mut self,
        origin: &MessageOrigin,
        kind: ResponseKind,
        context: Option<(PoolRef, u16)>,
    ) -> Option<PoolRef> {
        let base = &origin.request.base;
        let record = ResponseRecord {
            channel: origin.channel,
            rc_id: base.rc_id,
            tassn: base.tassn,
            mode: base.mode,
            kind,
            tpmsn: 0,
            sent: 0,
            all_sent: false,
            unacked: 0,
            context,
        };
        let at = self.responses.insert(record).ok()?;
        self.enqueue(origin.channel, TxOwner::Response(at));
        Some(at)
    }
    /// Gives a sequence context to a request that asks for one.
    fn grant(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Option<u16> {
        let base = &origin.request.base;
        if !base.alloc || base.mode == ServiceMode::Uno {
            return None;
        }
        // With go-back-N a ROL request that waits would keep the one that it waits for from arriving.
        if base.mode == ServiceMode::Rol && self.config.recovery == LossRecovery::GoBackN {
            return None;
        }
        let context = SequenceContext {
            channel: origin.channel,
            rc_id: base.rc_id,
            tracker: OrderTracker::new(base.order_number),
            waiting: Vec::new(),
        };
        match self.contexts.insert(context) {
            Ok(at) => Some(at.index() as u16),
            Err(_) => {
                env.fx.count(Reason::UbContextDenied);
                None
            }
        }
    }
    /// The sequence context of a request, and its number there.
    pub(crate) fn context_of(&self, origin: &MessageOrigin, granted: Option<u16>) -> Option<(PoolRef, u16)> {
        let base = &origin.request.base;
        let index = match granted {
            Some(granted) => granted,
            None if base.rc_type == RC_TYPE_CONTEXT => base.context,
            None => return None,
        };
        let at = self.contexts.ref_of(u32::from(index))?;
        let context = self.contexts.get(at)?;
        let is_its = context.channel == origin.channel && context.rc_id == base.rc_id;
        is_its.then_some((at, base.order_number))
    }
    fn executed(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, granted: Option<u16>) {
        env.fx.executed(origin.peer, origin.request.base.rc_id, origin.request.base.tassn);
        if let Some((context, number)) = self.context_of(origin, granted) {
            self.context_executed(context, number);
        }
    }
    /// A request of a context was executed; others may follow when the packet has been handled.
    pub(crate) fn context_executed(&mut self, at: PoolRef, number: u16) {
        if let Some(context) = self.contexts.get_mut(at) {
            context.tracker.executed(number);
            if !context.waiting.is_empty() {
                self.moved_contexts.push(at);
            }
        }
    }
}

/// Whether a transport acknowledgement is the answer, in ROL.
pub(crate) const fn is_fusable(opcode: TaOpcode) -> bool {
    matches!(opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Write | TaOpcode::WriteImm | TaOpcode::WriteNotify)
}
