//! The echo at Jetty 5: every node sends back what arrives there, as UMDK's `urma_ping` expects of every host.
//!
//! A SEND, with or without immediate, comes back to the Jetty that sent it: same opcode, payload, immediate data and TASSN, from
//! Jetty 5. No program has a part in it. The way back is a response of the channel ([`ResponseKind::Echo`]): it uses the
//! responses' window, is repeated by the channel's loss recovery, and ends when its packets are acknowledged or the channel
//! fails. The requester answers it by a TAACK as any SEND; if that is a refusal the echo is lost, and not sent again.
//!
//! What keeps it harmless:
//! * It answers on the channel by which the message came, so only to who has shown that it receives at its address (the
//!   handshake of channels). Unreliable messages (UNO) have no answer.
//! * One message of the same length for each, [`ECHO_MAX`] bytes at most. A Jetty of a program must have sent it: two echoes
//!   would answer each other forever.
//! * Its memory is [`ECHO_SLOTS`] payloads, made as they are needed. A peer leaves half of what is free to the others. Without
//!   room the message is refused as not ready, and its sender tries again later, at the transport's pace.

use crate::api::{JETTY_ID_FIRST, UrmaEffects, UrmaEnv};
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::response_record::{ECHO_SLOTS, ResponseKind, ResponseRecord};
use crate::urma_target::UrmaTarget;
use crate::urma_target::message::{InboundPhase, MessageOrigin};
use burst_base::Reason;
use burst_ubwire::{Atah, Btah, Mtetah, ServiceMode, TaOpcode, TaRequest, UbStatus};

/// Number of the echo's Jetty: that of `urma_ping`.
pub const ECHO_JETTY: u32 = 5;
/// Longest message that comes back, in bytes: that of `urma_ping`.
pub const ECHO_MAX: u32 = 4096;
/// Timer code of a refusal without room: 80 us.
const BUSY_TIMER: u8 = 3;

const _: () = assert!(ECHO_JETTY < JETTY_ID_FIRST, "no program's Jetty has the number");
const _: () = assert!(ECHO_SLOTS <= 1 << 8, "the number of a slot is a byte");

/// Payloads on their way back.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    slots: Vec<EchoSlot>,
}

/// Whose a slot is. It is free when that is gone.
#[derive(Clone, Copy, Debug)]
enum SlotOwner {
    /// A message of which packets are missing.
    Message(PoolRef),
    /// An echo on its way.
    Response(PoolRef),
}

/// A payload that goes back: where it is, and its length.
#[derive(Clone, Copy)]
struct EchoPayload {
    slot: usize,
    len: u32,
}

/// Room for a payload.
#[derive(Debug)]
struct EchoSlot {
    owner: SlotOwner,
    peer: NodeEid,
    payload: Vec<u8>,
}

impl Echo {
    /// Copies a part of a payload; false if there is none.
    pub(crate) fn read(&self, slot: u8, offset: u32, out: &mut [u8]) -> bool {
        let payload = self.slots.get(usize::from(slot)).map(|slot| &slot.payload[..]);
        let part = payload.and_then(|payload| payload.get(offset as usize..)?.get(..out.len()));
        part.is_some_and(|part| {
            out.copy_from_slice(part);
            true
        })
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        let payloads: usize = self.slots.iter().map(|slot| slot.payload.capacity()).sum();
        self.slots.capacity() * size_of::<EchoSlot>() + payloads
    }
}

/// Whether a message is the echo's.
pub(crate) fn is_for_echo(origin: &MessageOrigin) -> bool {
    let base = &origin.request.base;
    let is_target = origin.request.target.is_some_and(|t| (t.kind, t.id) == (Mtetah::JETTY, ECHO_JETTY));
    is_target && matches!(base.opcode, TaOpcode::Send | TaOpcode::SendImm) && base.mode != ServiceMode::Uno
}

/// Whether a message so long may come back to its sender.
fn check(origin: &MessageOrigin, len: u32) -> Result<(), UrmaRefusal> {
    if len > ECHO_MAX {
        return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbTooLong));
    }
    if origin.request.base.rc_id < JETTY_ID_FIRST {
        return Err(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
    }
    Ok(())
}

/// The header of an echo's packet.
pub(crate) fn echo_header(response: &ResponseRecord, (opcode, immediate): (TaOpcode, u64), offset: u32) -> TaRequest {
    let mut base = Btah { offset, mode: response.mode, ..Btah::new(opcode, response.tassn, ECHO_JETTY) };
    base.has_target = true;
    let target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: response.rc_id });
    TaRequest { target, immediate, ..TaRequest::new(base) }
}

impl UrmaTarget {
    /// A message for the echo has arrived as a whole, and it is its turn.
    pub(crate) fn echo_whole(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        payload: &[u8],
    ) -> Result<(), UrmaRefusal> {
        let len = payload.len() as u32;
        check(origin, len)?;
        let slot = self.take_slot(node, origin.peer, SlotOwner::Response(PoolRef::NONE))?;
        self.echo.slots[slot].payload[..payload.len()].copy_from_slice(payload);
        self.send_back(node, env, origin, EchoPayload { slot, len });
        Ok(())
    }
    /// A part of a message of several packets.
    pub(crate) fn echo_part(
        &mut self,
        node: &mut NodeShared,
        at: PoolRef,
        offset: u32,
        part: &[u8],
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get(at) else { return Ok(()) };
        let origin = message.origin;
        check(&origin, offset.saturating_add(part.len() as u32))?;
        let slot = match self.slot_of(at) {
            Some(slot) => slot,
            None => self.take_slot(node, origin.peer, SlotOwner::Message(at))?,
        };
        let offset = offset as usize;
        self.echo.slots[slot].payload[offset..offset + part.len()].copy_from_slice(part);
        Ok(())
    }
    /// All parts of a message have arrived.
    pub(crate) fn echo_message(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        len: u32,
    ) -> Result<(), UrmaRefusal> {
        let Some(message) = self.inbound.get(at) else { return Ok(()) };
        let origin = message.origin;
        check(&origin, len)?;
        let slot = match self.slot_of(at) {
            Some(slot) => slot,
            // All its packets are empty.
            None => self.take_slot(node, origin.peer, SlotOwner::Message(at))?,
        };
        self.send_back(node, env, &origin, EchoPayload { slot, len });
        Ok(())
    }
    fn slot_of(&self, message: PoolRef) -> Option<usize> {
        self.echo.slots.iter().position(|slot| matches!(slot.owner, SlotOwner::Message(at) if at == message))
    }
    fn is_slot_used(&self, node: &mut NodeShared, owner: SlotOwner) -> bool {
        match owner {
            SlotOwner::Message(at) => self.inbound.get(at).is_some_and(|m| matches!(m.phase, InboundPhase::Echo)),
            SlotOwner::Response(at) => node.responses.get(at).is_some(),
        }
    }
    /// A free slot, full of zeros: a message with a hole must not show what another peer has sent.
    fn take_slot(&mut self, node: &mut NodeShared, peer: NodeEid, owner: SlotOwner) -> Result<usize, UrmaRefusal> {
        let (mut used, mut own, mut free) = (0, 0, None);
        for (i, slot) in self.echo.slots.iter().enumerate() {
            if self.is_slot_used(node, slot.owner) {
                used += 1;
                own += usize::from(slot.peer == peer);
            } else {
                free = Some(i);
            }
        }
        if own >= ECHO_SLOTS - used {
            return Err(UrmaRefusal::rnr(BUSY_TIMER | UrmaRefusal::BUSY, Reason::UbEchoBusy));
        }
        let Some(at) = free else {
            self.echo.slots.push(EchoSlot { owner, peer, payload: vec![0; ECHO_MAX as usize] });
            return Ok(self.echo.slots.len() - 1);
        };
        let slot = &mut self.echo.slots[at];
        (slot.owner, slot.peer) = (owner, peer);
        slot.payload.fill(0);
        Ok(at)
    }
    /// Answers a message, and sends it back.
    fn send_back(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        EchoPayload { slot, len }: EchoPayload,
    ) {
        debug_assert!(len <= ECHO_MAX && slot < ECHO_SLOTS);
        self.finish(node, env, origin);
        let base = &origin.request.base;
        let kind =
            ResponseKind::Echo { slot: slot as u8, len, opcode: base.opcode, immediate: origin.request.immediate };
        let record = ResponseRecord {
            channel: origin.channel,
            rc_id: base.rc_id,
            tassn: base.tassn,
            // Its answer is a TAACK, which needs no order and no record here.
            mode: ServiceMode::Roi,
            kind,
            tpmsn: 0,
            sent: 0,
            all_sent: false,
            unacked: 0,
            context: None,
        };
        // There is room: the pool of responses has a place for each slot.
        let Some(response) = node.queue_response(record) else { return env.fx.count(Reason::UbEchoLost) };
        self.echo.slots[slot].owner = SlotOwner::Response(response);
        env.fx.count(Reason::UbEcho);
    }
}

/// The requester has answered an echo.
pub(crate) fn on_echo_answer(fx: &mut dyn UrmaEffects, response: &Atah) {
    let is_done = (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::OK);
    if !is_done {
        fx.count(Reason::UbEchoLost);
    }
}
