//! Answers to this node's requests, and their completions.

use crate::api::{CrStatus, JettyState, RNR_RETRY_FOREVER, UrmaEffects, UrmaEnv, WrData};
use crate::channels::tx_window::TxOwner;
use crate::initiator::Initiator;
use crate::initiator::completions::RequestOutcome;
use crate::initiator::send_record::RequestPhase;
use crate::node_shared::NodeShared;
use crate::objects::records::{OrderStream, StreamState};
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::timers::UrmaTimer;
use crate::urma_target::echo::{ECHO_JETTY, on_echo_answer};
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{Atah, ServiceMode, TaOpcode, UbStatus};

/// RSPINFO of a TAACK with RSPST 5 that says that the request waits.
pub(crate) const DEFERRED: u8 = 1;
/// The delay after refusals for want of room doubles up to this often.
const BUSY_SHIFT_MAX: u8 = 7;
/// The same for the request that all later ones of its stream wait for, so that it does not always come with them.
const OLDEST_SHIFT_MAX: u8 = 2;

/// Delay after an RNR answer with this timer code.
const fn rnr_delay(info: u8) -> Nanos {
    Nanos(10_000 << (if info > 15 { 15 } else { info }))
}

/// A packet of a response.
pub(crate) struct ResponsePacket<'a> {
    /// The channel on which it came.
    pub(crate) channel: PoolRef,
    /// The last one of its message.
    pub(crate) last: bool,
    pub(crate) response: &'a Atah,
    pub(crate) payload: &'a [u8],
}

impl Initiator {
    /// A response arrived.
    pub(crate) fn on_response(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, packet: &ResponsePacket<'_>) {
        let response = packet.response;
        if response.rc_id == ECHO_JETTY {
            return on_echo_answer(env.fx, response);
        }
        let Some(jetty) = node.objects.jetty_ref(response.rc_id) else { return env.fx.count(Reason::UbLate) };
        let also = if response.status.status == UbStatus::OK { response.status.info } else { 0 };
        for i in 0..=u16::from(also) {
            let request = self.find_request(node, jetty, response.tassn.wrapping_add(i));
            let Some((at, request)) = request.and_then(|at| self.requests.get(at).map(|r| (at, r))) else {
                env.fx.count(Reason::UbLate);
                continue;
            };
            // A message for which there is no room is refused before its last packet.
            let is_early = (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::RNR);
            let is_sent = request.all_sent || is_early && request.sent > 0;
            if request.channel != packet.channel || request.phase != RequestPhase::Issued || !is_sent {
                env.fx.count(Reason::UbLate);
                continue;
            }
            self.on_answer(node, env, at, packet);
        }
    }
    fn on_answer(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef, packet: &ResponsePacket<'_>) {
        let response = packet.response;
        match response.opcode {
            TaOpcode::TaAck => self.on_outcome(node, env, at, response),
            TaOpcode::ReadResponse => {
                self.take_data(node, env, at, packet);
                let Some(request) = self.requests.get(at) else { return };
                if request.received >= request.data.len() {
                    let status = request.fault.unwrap_or(CrStatus::Success);
                    self.take_grant(node, at, response);
                    self.answer(node, at, status, env);
                }
            }
            TaOpcode::AtomicResponse if packet.last => {
                let status = self.take_old_value(node, env, at, packet);
                self.take_grant(node, at, response);
                self.answer(node, at, status, env);
            }
            _ => env.fx.count(Reason::UbLate),
        }
    }
    /// A part of the data of a READ.
    fn take_data(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef, packet: &ResponsePacket<'_>) {
        let (response, payload) = (packet.response, packet.payload);
        let Some(request) = self.requests.get_mut(at) else { return };
        let WrData::Local(range) = request.data else { return };
        let end = u64::from(response.offset) + payload.len() as u64;
        if request.opcode != TaOpcode::Read || end > u64::from(range.len) {
            request.fault = Some(CrStatus::RemRespLen);
            request.received = range.len;
            return;
        }
        request.received += payload.len() as u32;
        if response.poison {
            request.fault = Some(CrStatus::RemDataPoison);
            return;
        }
        let addr = range.addr + u64::from(response.offset);
        let is_written = node
            .objects
            .segments
            .held(request.segment, addr, payload.len() as u32)
            .is_some_and(|region| env.mem.write(region, addr, payload).is_ok());
        if !is_written {
            request.fault = Some(CrStatus::LocAccess);
        }
    }
    fn take_old_value(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packet: &ResponsePacket<'_>,
    ) -> CrStatus {
        let (response, payload) = (packet.response, packet.payload);
        let Some(request) = self.requests.get(at) else { return CrStatus::RemRespLen };
        let (WrData::Local(range), Ok(value)) = (request.data, <[u8; 8]>::try_from(payload)) else {
            return CrStatus::RemRespLen;
        };
        if !request.opcode.is_atomic() || response.poison {
            return CrStatus::RemRespLen;
        }
        let value = u64::from_be_bytes(value).to_le_bytes();
        let is_written = node
            .objects
            .segments
            .held(request.segment, range.addr, 8)
            .is_some_and(|region| env.mem.write(region, range.addr, &value).is_ok());
        if is_written { CrStatus::Success } else { CrStatus::LocAccess }
    }
    /// A transaction acknowledgement: success, a refusal, or receiver not ready.
    fn on_outcome(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef, response: &Atah) {
        let Some(request) = self.requests.get(at) else { return };
        let status = response.status;
        match status.status {
            UbStatus::FUSED if status.info == DEFERRED => {
                if let Some(request) = self.requests.get_mut(at)
                    && request.last_psn == Some(Psn::new(response.offset))
                {
                    request.is_deferred = true;
                }
            }
            UbStatus::OK | UbStatus::FUSED => {
                if request.is_read() {
                    return self.answer(node, at, CrStatus::RemRespLen, env);
                }
                self.take_grant(node, at, response);
                self.answer(node, at, CrStatus::Success, env);
            }
            UbStatus::RNR | UbStatus::PAGE_FAULT => self.on_rnr(node, env, at, status.info),
            _ => {
                let status = request.abandoned.unwrap_or(match status.info {
                    UrmaRefusal::UNSUPPORTED => CrStatus::RemUnsupportedReq,
                    UrmaRefusal::ACCESS => CrStatus::RemAccessAbort,
                    UrmaRefusal::LENGTH => CrStatus::RemRespLen,
                    UrmaRefusal::POISON => CrStatus::LocAccess,
                    _ => CrStatus::RemOperation,
                });
                self.refused_first(node, at);
                self.answer(node, at, status, env);
            }
        }
    }
    fn on_rnr(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef, timer: u8) {
        env.fx.count(Reason::RnrNakReceived);
        let shift_max = if self.is_oldest_of_stream(node, at) { OLDEST_SHIFT_MAX } else { BUSY_SHIFT_MAX };
        let Some(request) = self.requests.get_mut(at) else { return };
        let Some(jetty) = node.objects.jetties.get(request.jetty) else { return };
        let limit = jetty.config.rnr_retry;
        request.attempt = request.attempt.wrapping_add(1);
        let mut delay = rnr_delay(timer & (UrmaRefusal::BUSY - 1));
        if request.abandoned.is_none() {
            if jetty.state == JettyState::Error {
                return self.give_up(node, at, CrStatus::FlushErr, env.fx);
            }
            let is_busy = timer & UrmaRefusal::BUSY != 0;
            if !is_busy && limit != RNR_RETRY_FOREVER && request.rnr_tries >= limit {
                return self.give_up(node, at, CrStatus::RnrRetryExceeded, env.fx);
            }
            if is_busy {
                delay = Nanos(delay.0 << request.busy_tries.min(shift_max));
                request.busy_tries = request.busy_tries.saturating_add(1);
            } else {
                request.rnr_tries = request.rnr_tries.saturating_add(1);
            }
        }
        request.phase = RequestPhase::Waiting;
        node.channels.timers.add(env.now + delay, UrmaTimer::Retry(at));
    }
    /// Whether the target keeps all later requests of a Jetty's stream for this one.
    fn is_oldest_of_stream(&self, node: &mut NodeShared, at: PoolRef) -> bool {
        let jetty = self.requests.get(at).map(|request| request.jetty);
        jetty.is_some_and(|jetty| self.oldest_of_stream(node, jetty) == Some(at))
    }
    /// No further attempt of a request is made.
    pub(crate) fn give_up(&mut self, node: &mut NodeShared, at: PoolRef, status: CrStatus, fx: &mut dyn UrmaEffects) {
        let Some(request) = self.requests.get_mut(at) else { return };
        debug_assert!(status != CrStatus::Success, "a request is given up and succeeds");
        if request.order_number.is_none() || request.alloc {
            self.refused_first(node, at);
            return self.conclude(node, RequestOutcome { at, status }, Nanos(0), fx);
        }
        // The target waits for this number: it is told that nothing will come.
        request.abandoned = Some(status);
        request.begin_attempt();
        let (channel, attempt) = (request.channel, request.attempt);
        node.channels.enqueue(channel, TxOwner::Request(at, attempt));
    }
    /// The answer of a ROL request that came in a transport acknowledgement. That may be lost: the acknowledgement of the
    /// request's last packet says the same, but covers all packets before it.
    pub(crate) fn on_fused(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, channel: PoolRef, response: &Atah) {
        let jetty = node.objects.jetty_ref(response.rc_id);
        let Some(at) = jetty.and_then(|jetty| self.find_request(node, jetty, response.tassn)) else { return };
        let Some(request) = self.requests.get(at) else { return };
        if request.channel == channel && request.all_sent {
            let attempt = request.attempt;
            self.request_delivered(node, env, at, attempt);
        }
    }
    /// The first request of a stream was executed: the target has given a context or not.
    fn take_grant(&mut self, node: &mut NodeShared, at: PoolRef, response: &Atah) {
        let Some(request) = self.requests.get(at).filter(|request| request.alloc) else { return };
        let Some(jetty) = node.objects.jetties.get_mut(request.jetty) else { return };
        if jetty.stream.state == StreamState::Asking && jetty.stream.channel == request.channel {
            jetty.stream.state = match response.granted {
                true => StreamState::Granted { context: response.context },
                false => StreamState::Denied,
            };
        }
    }
    /// The first request of a stream was refused: the next one asks again.
    fn refused_first(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(request) = self.requests.get(at).filter(|request| request.alloc) else { return };
        if let Some(jetty) = node.objects.jetties.get_mut(request.jetty)
            && jetty.stream.state == StreamState::Asking
        {
            let none = OrderStream { state: StreamState::None, channel: PoolRef::NONE, ..jetty.stream };
            jetty.stream = none;
        }
    }
    /// All packets up to the last one of a request have arrived: in ROL it is executed.
    pub(crate) fn request_delivered(&mut self, node: &mut NodeShared, env: &mut UrmaEnv<'_>, at: PoolRef, attempt: u8) {
        let Some(request) = self.requests.get(at) else { return };
        let jetty = node.objects.jetties.get(request.jetty);
        let is_rol = jetty.is_some_and(|jetty| jetty.config.service == ServiceMode::Rol);
        let is_answer = request.is_fusable() && !request.is_deferred;
        if is_rol && request.attempt == attempt && request.phase == RequestPhase::Issued && is_answer {
            // An abandoned request is answered by an error before its packet is acknowledged.
            self.answer(node, at, CrStatus::Success, env);
        }
    }
}
