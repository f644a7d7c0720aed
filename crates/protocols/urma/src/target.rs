//! Execution of peers' requests: checks of target, token, range and right, then memory, receives and answers. Each refusal
//! answers one request and touches nothing else.

use crate::api::{
    CompletionRecord, CrStatus, JettyState, JfrState, LossRecovery, TargetKind, TransMode, URMA_MESSAGE_MAX,
    UrmaEffects, UrmaEnv, access,
};
use crate::channels::channel::FusedAck;
use crate::channels::tx_window::TxOwner;
use crate::echo::is_for_echo;
use crate::node::UrmaNode;
use crate::objects::segment_table::PeerAccess;
use crate::pool::PoolRef;
use crate::records::{Inbound, InboundPhase, MessageOrigin, Placement, ResponseKind, ResponseRecord, UrmaRefusal};
use crate::sequence::{OrderTracker, SequenceContext};
use burst_base::Reason;
use burst_ubwire::{Maetah, Mtetah, NotifyTarget, RC_TYPE_CONTEXT, ServiceMode, TaOpcode, UbStatus};

/// What an atomic makes of a value.
pub(crate) fn changed(opcode: TaOpcode, [a, b]: [u64; 2], old: u64) -> u64 {
    match opcode {
        TaOpcode::Cas if old == a => b,
        TaOpcode::Swap => a,
        TaOpcode::FetchAdd => old.wrapping_add(a),
        TaOpcode::FetchSub => old.wrapping_sub(a),
        TaOpcode::FetchAnd => old & a,
        TaOpcode::FetchOr => old | a,
        TaOpcode::FetchXor => old ^ a,
        _ => old,
    }
}

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
        if is_for_echo(origin) {
            return self.echo_whole(env, origin, payload);
        }
        let placement = self.place_of(env, origin)?;
        let is_fit = self.put_payload(env, &placement, 0, payload).and_then(|()| self.notify(env, origin));
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
        let mut placement = Placement {
            segment: PoolRef::NONE,
            addr: 0,
            limit: 0,
            jfr: None,
            receive: None,
            local: (TargetKind::Jfr, 0),
        };
        if opcode.has_memory() {
            let (memory, _) = self.check_memory(origin, access::WRITE)?;
            placement.segment = self.shared.objects.segments.hold(memory.token_id);
            (placement.addr, placement.limit) = (memory.addr, memory.len);
        }
        if opcode == TaOpcode::WriteNotify {
            self.check_notify(origin)?;
        }
        if matches!(opcode, TaOpcode::Write | TaOpcode::WriteNotify) {
            return Ok(placement);
        }
        let (local, jfr) = self.check_target(origin)?;
        (placement.local, placement.jfr) = (local, Some(jfr));
        let timer = self.shared.objects.jfrs.get(jfr).map_or(0, |queue| queue.config.rnr_timer);
        let receive = self.shared.objects.take_receive(jfr, env.fx);
        let receive = receive.ok_or(UrmaRefusal::rnr(timer, Reason::UbNotReady))?;
        placement.receive = Some(receive);
        if !opcode.has_memory() {
            let range = receive.wr.range;
            (placement.segment, placement.addr, placement.limit) = (receive.segment, range.addr, range.len);
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
        let region = self.shared.objects.segments.held(placement.segment, addr, payload.len() as u32).ok_or(gone)?;
        env.mem.write(region, addr, payload).map_err(|_| gone)
    }
    /// The segment of a request, checked, and its region.
    fn check_memory(&self, origin: &MessageOrigin, right: u8) -> Result<(Maetah, u32), UrmaRefusal> {
        let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
        let memory = origin.request.memory.ok_or(missing)?;
        if memory.len > URMA_MESSAGE_MAX {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
        }
        let wanted = PeerAccess {
            token_id: memory.token_id,
            token: origin.request.token,
            addr: memory.addr,
            len: memory.len,
            right,
        };
        let region = self.shared.objects.segments.check(wanted);
        Ok((memory, region.map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))?))
    }
    /// Where the data of a WRITE with notification go, checked: region, address and data.
    fn check_notify(&self, origin: &MessageOrigin) -> Result<(u32, u64, [u8; 8]), UrmaRefusal> {
        let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
        let NotifyTarget { addr, token_id, token } = origin.request.notify.ok_or(missing)?;
        let wanted = PeerAccess { token_id, token, addr, len: 8, right: access::WRITE };
        let region = self.shared.objects.segments.check(wanted);
        let region = region.map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))?;
        Ok((region, addr, origin.request.immediate.to_le_bytes()))
    }
    /// Writes the data of a WRITE with notification, behind all others.
    pub(crate) fn notify(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<(), UrmaRefusal> {
        if origin.request.base.opcode != TaOpcode::WriteNotify {
            return Ok(());
        }
        let (region, addr, data) = self.check_notify(origin)?;
        env.mem.write(region, addr, &data).map_err(|_| UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess))
    }
    /// The receive queue of the Jetty or JFR that a request names: what that is, its number, and the queue.
    fn check_target(&mut self, origin: &MessageOrigin) -> Result<((TargetKind, u32), PoolRef), UrmaRefusal> {
        let unknown = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget);
        let refused = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused);
        let mut target = origin.request.target.ok_or(unknown)?;
        let mut group_token = None;
        if target.kind == Mtetah::GROUP {
            let (member, token) = self.shared.objects.choose_member(target.id, target.hint).ok_or(unknown)?;
            group_token = Some(token);
            target = Mtetah { kind: Mtetah::JETTY, id: member, ..target };
        }
        let (jfr, token, owner) = match target.kind {
            Mtetah::JFR => (target.id, None, None),
            Mtetah::JETTY => {
                let jetty = self
                    .shared
                    .objects
                    .jetty_ref(target.id)
                    .and_then(|at| self.shared.objects.jetties.get(at))
                    .ok_or(unknown)?;
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
                (jetty.config.jfr.ok_or(unknown)?, jetty.config.token, Some(jetty.config.owner))
            }
            _ => return Err(UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbUnknownTarget)),
        };
        let at = self.shared.objects.jfr_ref(jfr).ok_or(unknown)?;
        let queue = self.shared.objects.jfrs.get(at).filter(|queue| queue.state == JfrState::Ready).ok_or(unknown)?;
        let own = if target.kind == Mtetah::JFR { queue.config.token } else { token };
        let needed = group_token.unwrap_or(own);
        // A WRITE with immediate carries the token of its segment, which was checked: it opens receives of the same program only.
        let is_owner = |memory: Maetah| owner.is_some() && self.shared.objects.segments.owner(memory.token_id) == owner;
        let is_shown =
            needed.is_none() || origin.request.token == needed || origin.request.memory.is_some_and(is_owner);
        let kind = if target.kind == Mtetah::JFR { TargetKind::Jfr } else { TargetKind::Jetty };
        if is_shown {
            Ok(((kind, target.id), at))
        } else {
            Err(UrmaRefusal::error(UrmaRefusal::ACCESS, Reason::UbToken))
        }
    }
    fn execute_read(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<(), UrmaRefusal> {
        let (memory, _) = self.check_memory(origin, access::READ)?;
        let granted = self.grant(env, origin);
        let segment = self.shared.objects.segments.hold(memory.token_id);
        let kind = ResponseKind::Read { addr: memory.addr, len: memory.len, segment, granted };
        let context = self.context_of(origin, granted);
        env.fx.executed(origin.peer, origin.request.base.rc_id, origin.request.base.tassn);
        self.respond(origin, kind, context);
        Ok(())
    }
    fn execute_atomic(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Result<(), UrmaRefusal> {
        let (memory, region) = self.check_memory(origin, access::ATOMIC)?;
        if memory.len != 8 || !memory.addr.is_multiple_of(8) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::MisalignedAtomic));
        }
        let (opcode, operands) = (origin.request.base.opcode, origin.request.operands);
        let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
        let value = env.mem.update(region, memory.addr, &|old| changed(opcode, operands, old)).map_err(|_| gone)?;
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
        if base.mode == ServiceMode::Rol && !base.alloc && !origin.is_deferred {
            if let Some(channel) = self.shared.channels.get_mut(origin.channel) {
                channel.rx.release(origin.last_psn);
                channel.fused.push_back(FusedAck { rc_id: base.rc_id, tassn: base.tassn });
                self.shared.channels.activate(origin.channel);
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
        let record = CompletionRecord {
            status,
            user_ctx: placement.receive.map_or(0, |receive| receive.wr.user_ctx),
            opcode: origin.request.base.opcode,
            is_receive: true,
            len,
            local_kind: placement.local.0,
            local_id: placement.local.1,
            remote: Some((origin.peer, origin.request.base.rc_id)),
            immediate: origin.request.immediate,
        };
        self.shared.objects.complete_receive(jfr, record, env.fx);
    }
    /// A receive that was taken cannot be filled: it ends with an error.
    pub(crate) fn fail_receive(&mut self, env: &mut UrmaEnv<'_>, placement: &Placement) {
        self.end_receive(placement, CrStatus::LocLen, env.fx);
    }
    fn end_receive(&mut self, placement: &Placement, status: CrStatus, fx: &mut dyn UrmaEffects) {
        let (Some(jfr), Some(receive)) = (placement.jfr, placement.receive) else { return };
        let record = CompletionRecord {
            status,
            user_ctx: receive.wr.user_ctx,
            opcode: TaOpcode::Send,
            is_receive: true,
            len: 0,
            local_kind: placement.local.0,
            local_id: placement.local.1,
            remote: None,
            immediate: 0,
        };
        self.shared.objects.complete_receive(jfr, record, fx);
    }
    /// A receive queue is moved to ERROR: messages that are being placed into its receives are refused.
    pub(crate) fn end_messages(&mut self, jfr: PoolRef, fx: &mut dyn UrmaEffects) {
        let is_its = |m: &Inbound| match m.phase {
            InboundPhase::Placing(p) if p.jfr == Some(jfr) && p.receive.is_some() => Some(p),
            _ => None,
        };
        let ended: Vec<_> = self.inbound.iter().filter_map(|(at, m)| is_its(m).map(|p| (at, p))).collect();
        for (at, placement) in ended {
            self.end_receive(&placement, CrStatus::FlushErr, fx);
            self.set_refused(at, UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget));
        }
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
        if base.mode == ServiceMode::Rol && is_fusable(base.opcode) && !base.alloc && !origin.is_deferred {
            // The packet is acknowledged when the peer has the refusal.
            self.withhold_for(origin, response);
        }
    }
    fn withhold_for(&mut self, origin: &MessageOrigin, response: Option<PoolRef>) {
        let Some(channel) = self.shared.channels.get_mut(origin.channel) else { return };
        let Some(response) = response else { return channel.rx.release(origin.last_psn) };
        if channel.rx.can_withhold() {
            channel.rx.withhold(origin.last_psn);
        }
        channel.rx.refuse(origin.last_psn, response);
    }
    fn acknowledge(&mut self, origin: &MessageOrigin, status: UbStatus, granted: Option<u16>) -> Option<PoolRef> {
        if status == UbStatus::SUCCESS && granted.is_none() && self.join_acknowledgement(origin) {
            return None;
        }
        self.respond(origin, ResponseKind::Ack { status, also: 0, granted }, None)
    }
    /// Adds a success to the acknowledgement of the request before it, if that one is the last in the queue and not sent.
    fn join_acknowledgement(&mut self, origin: &MessageOrigin) -> bool {
        let last = self.shared.channels.get(origin.channel).and_then(|channel| channel.answers.back().copied());
        let Some(TxOwner::Response(at)) = last else { return false };
        let Some(response) = self.shared.responses.get_mut(at) else { return false };
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
        self.shared.queue_response(record)
    }
    /// Tells the peer that a ROL request waits, so that the acknowledgement of its last packet need not.
    pub(crate) fn defer(&mut self, at: PoolRef) {
        let Some(origin) = self.inbound.get(at).map(|message| message.origin) else { return };
        let kind = ResponseKind::Deferred { psn: origin.last_psn };
        let Some(response) = self.respond(&origin, kind, None) else { return };
        if let Some(message) = self.inbound.get_mut(at) {
            message.origin.is_deferred = true;
        }
        if let Some(channel) = self.shared.channels.get_mut(origin.channel) {
            channel.rx.refuse(origin.last_psn, response);
        }
    }
    /// Gives a sequence context to a request that asks for one.
    fn grant(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Option<u16> {
        let base = &origin.request.base;
        if !base.alloc || base.mode == ServiceMode::Uno {
            return None;
        }
        // With go-back-N a ROL request that waits would keep the one that it waits for from arriving.
        if base.mode == ServiceMode::Rol && self.shared.channels.config.recovery == LossRecovery::GoBackN {
            return None;
        }
        let context = SequenceContext {
            channel: origin.channel,
            rc_id: base.rc_id,
            tracker: OrderTracker::new(base.order_number),
            waiting: Vec::new(),
        };
        let key = (origin.channel.index(), base.rc_id);
        let old = self.context_keys.get(&key).copied();
        let free = self.shared.channels.config.contexts_max.saturating_sub(self.contexts.len());
        let own = self.shared.channels.get(origin.channel).map_or(0, |channel| channel.contexts);
        // A channel leaves half of them for the others.
        let has_room = old.is_some() || self.shared.is_share(own, free);
        let Some(at) = Some(context).filter(|_| has_room).and_then(|context| self.contexts.insert(context).ok()) else {
            env.fx.count(Reason::UbContextDenied);
            return None;
        };
        // A Jetty has one. No later one gets its number soon, because the message that ends it may be late.
        if let Some(old) = old {
            self.end_context(env, old);
        }
        self.context_keys.insert(key, at);
        if let Some(channel) = self.shared.channels.get_mut(origin.channel) {
            channel.contexts += 1;
            self.contexts.push_back(&mut channel.context_list, at);
        }
        Some(at.short(self.contexts.limit()))
    }
    /// A peer's Jetty has a newer context: what waits in this one is refused.
    fn end_context(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let waiting = self.contexts.get_mut(at).map(|context| std::mem::take(&mut context.waiting));
        for (_, message) in waiting.into_iter().flatten() {
            self.set_refused(message, UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
            self.check_complete(env, message);
        }
        self.remove_context(at);
    }
    pub(crate) fn remove_context(&mut self, at: PoolRef) {
        let Some(&SequenceContext { channel, rc_id, .. }) = self.contexts.get(at) else { return };
        self.context_keys.remove(&(channel.index(), rc_id));
        if let Some(channel) = self.shared.channels.get_mut(channel) {
            channel.contexts -= 1;
            self.contexts.take_out(&mut channel.context_list, at);
        }
        self.contexts.remove(at);
    }
    /// The sequence context of a request, and its number there.
    pub(crate) fn context_of(&self, origin: &MessageOrigin, granted: Option<u16>) -> Option<(PoolRef, u16)> {
        let base = &origin.request.base;
        let index = match granted {
            Some(granted) => granted,
            None if base.rc_type == RC_TYPE_CONTEXT => base.context,
            None => return None,
        };
        let at = self.contexts.ref_of_short(index)?;
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
