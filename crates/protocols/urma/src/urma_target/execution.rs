//! Execution of peers' requests, after the checks ([`crate::urma_target::checks`]): memory, receives and answers. Each refusal
//! answers one request and touches nothing else.

use crate::api::{LossRecovery, UrmaEnv, access};
use crate::channels::channel::FusedAck;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::response_record::ResponseKind;
use crate::urma_target::UrmaTarget;
use crate::urma_target::answers::{acknowledge, respond};
use crate::urma_target::checks::{CheckedMemory, check_memory, notify, place_of};
use crate::urma_target::echo::is_for_echo;
use crate::urma_target::message::MessageOrigin;
use burst_base::Reason;
use burst_ubwire::{ServiceMode, TaOpcode, UbStatus};

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

impl UrmaTarget {
    /// Executes a request whose payload is complete and whose turn it is.
    pub(crate) fn execute_whole(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        payload: &[u8],
    ) {
        let base = &origin.request.base;
        let outcome = if base.poison {
            Err(UrmaRefusal::error(UrmaRefusal::POISON, Reason::UbPoisoned))
        } else if base.opcode == TaOpcode::Read {
            self.execute_read(node, env, origin)
        } else if base.opcode.is_atomic() {
            self.execute_atomic(node, env, origin)
        } else {
            self.execute_message(node, env, origin, payload)
        };
        if let Err(refusal) = outcome {
            self.refuse(node, env, origin, refusal);
        }
    }
    fn execute_message(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        payload: &[u8],
    ) -> Result<(), UrmaRefusal> {
        if origin.request.memory.is_some_and(|memory| memory.len as usize != payload.len()) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
        }
        if is_for_echo(origin) {
            return self.echo_whole(node, env, origin, payload);
        }
        let placement = place_of(&mut node.objects, env, origin)?;
        let segments = &node.objects.segments;
        match placement.put(segments, env, 0, payload).and_then(|()| notify(segments, env, origin)) {
            Ok(()) => {
                if let Some((jfr, record)) = placement.received(origin, payload.len() as u32) {
                    node.objects.complete_receive(jfr, record, env.fx);
                }
                self.finish(node, env, origin);
                Ok(())
            }
            Err(refusal) => {
                placement.fail(&mut node.objects, env);
                Err(refusal)
            }
        }
    }
    fn execute_read(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
    ) -> Result<(), UrmaRefusal> {
        let CheckedMemory { range, segment, .. } = check_memory(&mut node.objects, env, origin, access::READ)?;
        let granted = self.grant(node, env, origin);
        let kind = ResponseKind::Read { addr: range.addr, len: range.len, segment, granted };
        let context = self.contexts.find(origin, granted);
        env.fx.executed(origin.peer, origin.request.base.rc_id, origin.request.base.tassn);
        respond(node, origin, kind, context);
        Ok(())
    }
    fn execute_atomic(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
    ) -> Result<(), UrmaRefusal> {
        let CheckedMemory { range: memory, region, .. } = check_memory(&mut node.objects, env, origin, access::ATOMIC)?;
        if memory.len != 8 || !memory.addr.is_multiple_of(8) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::MisalignedAtomic));
        }
        let (opcode, operands) = (origin.request.base.opcode, origin.request.operands);
        let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
        let value = env.mem.update(region, memory.addr, &|old| changed(opcode, operands, old)).map_err(|_| gone)?;
        let granted = self.grant(node, env, origin);
        self.executed(env, origin, granted);
        respond(node, origin, ResponseKind::Atomic { value, granted }, None);
        Ok(())
    }
    /// A SEND or WRITE has reached its place, and its receive has a completion: it is answered.
    pub(crate) fn finish(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) {
        let granted = self.grant(node, env, origin);
        self.executed(env, origin, granted);
        let base = &origin.request.base;
        if base.mode == ServiceMode::Uno {
            return;
        }
        if base.mode == ServiceMode::Rol && !base.alloc && !origin.is_deferred {
            if let Some(channel) = node.channels.get_mut(origin.channel) {
                channel.rx.release(origin.last_psn);
                channel.fused.push_back(FusedAck { rc_id: base.rc_id, tassn: base.tassn });
                node.channels.activate(origin.channel);
            }
            return;
        }
        acknowledge(node, origin, UbStatus::SUCCESS, granted);
    }
    fn executed(&mut self, env: &mut UrmaEnv<'_>, origin: &MessageOrigin, granted: Option<u16>) {
        env.fx.executed(origin.peer, origin.request.base.rc_id, origin.request.base.tassn);
        if let Some((context, number)) = self.contexts.find(origin, granted) {
            self.contexts.executed(context, number);
        }
    }
    /// Gives a sequence context to a request that asks for one.
    fn grant(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, origin: &MessageOrigin) -> Option<u16> {
        let base = &origin.request.base;
        if !base.alloc || base.mode == ServiceMode::Uno {
            return None;
        }
        let config = &node.channels.config;
        // With go-back-N a ROL request that waits would keep the one that it waits for from arriving.
        if base.mode == ServiceMode::Rol && config.recovery == LossRecovery::GoBackN {
            return None;
        }
        let old = self.contexts.of_jetty(origin);
        let free = config.contexts_max.saturating_sub(self.contexts.len());
        let own = node.channels.get(origin.channel).map_or(0, |channel| channel.contexts);
        // A channel leaves half of them for the others.
        let has_room = old.is_some() || node.is_share(own, free);
        let Some(at) = has_room.then(|| self.contexts.insert(origin)).flatten() else {
            env.fx.count(Reason::UbContextDenied);
            return None;
        };
        // A Jetty has one. No later one gets its number soon, because the message that ends it may be late.
        if let Some(old) = old {
            self.end_context(node, env, old);
        }
        Some(self.contexts.register(&mut node.channels, at))
    }
    /// A peer's Jetty has a newer context: what waits in this one is refused.
    fn end_context(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef) {
        let waiting = self.contexts.get_mut(at).map(|context| std::mem::take(&mut context.waiting));
        for (_, message) in waiting.into_iter().flatten() {
            self.set_refused(node, message, UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
            self.check_complete(node, env, message);
        }
        self.contexts.remove(&mut node.channels, at);
    }
}

/// Whether a transport acknowledgement is the answer, in ROL.
pub(crate) const fn is_fusable(opcode: TaOpcode) -> bool {
    matches!(opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Write | TaOpcode::WriteImm | TaOpcode::WriteNotify)
}
