//! Answers to this node's requests, and their completions.

use crate::api::{CompletionRecord, CrStatus, JettyState, RNR_RETRY_FOREVER, TargetKind, UrmaEffects, UrmaEnv, WrData};
use crate::channels::tx_window::TxOwner;
use crate::node::UrmaNode;
use crate::objects::id_of;
use crate::objects::records::{OrderStream, StreamState, TASSN_WINDOW};
use crate::pool::PoolRef;
use crate::records::{RequestPhase, SendRecord};
use crate::refusal::UrmaRefusal;
use crate::timers::UrmaTimer;
use crate::urma_target::echo::{ECHO_JETTY, on_echo_answer};
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{Atah, Rtph, ServiceMode, TaOpcode, UbStatus};

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

impl UrmaNode {
    /// A response arrived.
    pub(crate) fn on_response(
        &mut self,
        env: &mut UrmaEnv<'_>,
        channel: PoolRef,
        rtph: &Rtph,
        response: &Atah,
        payload: &[u8],
    ) {
        if response.rc_id == ECHO_JETTY {
            return on_echo_answer(env.fx, response);
        }
        let Some(jetty) = self.shared.objects.jetty_ref(response.rc_id) else { return env.fx.count(Reason::UbLate) };
        let also = if response.status.status == UbStatus::OK { response.status.info } else { 0 };
        for i in 0..=u16::from(also) {
            let request = self.find_request(jetty, response.tassn.wrapping_add(i));
            let Some((at, request)) = request.and_then(|at| self.requests.get(at).map(|r| (at, r))) else {
                env.fx.count(Reason::UbLate);
                continue;
            };
            // A message for which there is no room is refused before its last packet.
            let is_early = (response.opcode, response.status.status) == (TaOpcode::TaAck, UbStatus::RNR);
            let is_sent = request.all_sent || is_early && request.sent > 0;
            if request.channel != channel || request.phase != RequestPhase::Issued || !is_sent {
                env.fx.count(Reason::UbLate);
                continue;
            }
            self.on_answer(env, at, rtph, response, payload);
        }
    }
    fn on_answer(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, rtph: &Rtph, response: &Atah, payload: &[u8]) {
        match response.opcode {
            TaOpcode::TaAck => self.on_outcome(env, at, response),
            TaOpcode::ReadResponse => {
                self.take_data(env, at, response, payload);
                let Some(request) = self.requests.get(at) else { return };
                if request.received >= request.data.len() {
                    let status = request.fault.unwrap_or(CrStatus::Success);
                    self.take_grant(at, response);
                    self.answer(at, status, env);
                }
            }
            TaOpcode::AtomicResponse if rtph.last => {
                let status = self.take_old_value(env, at, response, payload);
                self.take_grant(at, response);
                self.answer(at, status, env);
            }
            _ => env.fx.count(Reason::UbLate),
        }
    }
    /// A part of the data of a READ.
    fn take_data(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, response: &Atah, payload: &[u8]) {
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
        let is_written = self
            .shared
            .objects
            .segments
            .held(request.segment, addr, payload.len() as u32)
            .is_some_and(|region| env.mem.write(region, addr, payload).is_ok());
        if !is_written {
            request.fault = Some(CrStatus::LocAccess);
        }
    }
    fn take_old_value(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, response: &Atah, payload: &[u8]) -> CrStatus {
        let Some(request) = self.requests.get(at) else { return CrStatus::RemRespLen };
        let (WrData::Local(range), Ok(value)) = (request.data, <[u8; 8]>::try_from(payload)) else {
            return CrStatus::RemRespLen;
        };
        if !request.opcode.is_atomic() || response.poison {
            return CrStatus::RemRespLen;
        }
        let value = u64::from_be_bytes(value).to_le_bytes();
        let is_written = self
            .shared
            .objects
            .segments
            .held(request.segment, range.addr, 8)
            .is_some_and(|region| env.mem.write(region, range.addr, &value).is_ok());
        if is_written { CrStatus::Success } else { CrStatus::LocAccess }
    }
    /// A transaction acknowledgement: success, a refusal, or receiver not ready.
    fn on_outcome(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, response: &Atah) {
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
                    return self.answer(at, CrStatus::RemRespLen, env);
                }
                self.take_grant(at, response);
                self.answer(at, CrStatus::Success, env);
            }
            UbStatus::RNR | UbStatus::PAGE_FAULT => self.on_rnr(env, at, status.info),
            _ => {
                let status = request.abandoned.unwrap_or(match status.info {
                    UrmaRefusal::UNSUPPORTED => CrStatus::RemUnsupportedReq,
                    UrmaRefusal::ACCESS => CrStatus::RemAccessAbort,
                    UrmaRefusal::LENGTH => CrStatus::RemRespLen,
                    UrmaRefusal::POISON => CrStatus::LocAccess,
                    _ => CrStatus::RemOperation,
                });
                self.refused_first(at);
                self.answer(at, status, env);
            }
        }
    }
    fn on_rnr(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, timer: u8) {
        env.fx.count(Reason::RnrNakReceived);
        let shift_max = if self.is_oldest_of_stream(at) { OLDEST_SHIFT_MAX } else { BUSY_SHIFT_MAX };
        let Some(request) = self.requests.get_mut(at) else { return };
        let Some(jetty) = self.shared.objects.jetties.get(request.jetty) else { return };
        let limit = jetty.config.rnr_retry;
        request.attempt = request.attempt.wrapping_add(1);
        let mut delay = rnr_delay(timer & (UrmaRefusal::BUSY - 1));
        if request.abandoned.is_none() {
            if jetty.state == JettyState::Error {
                return self.give_up(at, CrStatus::FlushErr, env.fx);
            }
            let is_busy = timer & UrmaRefusal::BUSY != 0;
            if !is_busy && limit != RNR_RETRY_FOREVER && request.rnr_tries >= limit {
                return self.give_up(at, CrStatus::RnrRetryExceeded, env.fx);
            }
            if is_busy {
                delay = Nanos(delay.0 << request.busy_tries.min(shift_max));
                request.busy_tries = request.busy_tries.saturating_add(1);
            } else {
                request.rnr_tries = request.rnr_tries.saturating_add(1);
            }
        }
        request.phase = RequestPhase::Waiting;
        self.shared.channels.timers.add(env.now + delay, UrmaTimer::Retry(at));
    }
    /// Whether the target keeps all later requests of a Jetty's stream for this one.
    fn is_oldest_of_stream(&self, at: PoolRef) -> bool {
        let Some(jetty) = self.requests.get(at).and_then(|request| self.shared.objects.jetties.get(request.jetty))
        else {
            return false;
        };
        self.oldest_of_stream(jetty) == Some(at)
    }
    /// No further attempt of a request is made.
    fn give_up(&mut self, at: PoolRef, status: CrStatus, fx: &mut dyn UrmaEffects) {
        let Some(request) = self.requests.get_mut(at) else { return };
        if request.order_number.is_none() || request.alloc {
            self.refused_first(at);
            return self.conclude(at, status, Nanos(0), fx);
        }
        // The target waits for this number: it is told that nothing will come.
        request.abandoned = Some(status);
        request.begin_attempt();
        let (channel, attempt) = (request.channel, request.attempt);
        self.shared.channels.enqueue(channel, TxOwner::Request(at, attempt));
    }
    /// A Jetty is moved to ERROR: its requests that wait for the peer to be ready end.
    pub(crate) fn end_waiting(&mut self, jetty: PoolRef, fx: &mut dyn UrmaEffects) {
        let Some(mut at) = self.shared.objects.jetties.get(jetty).map(|jetty| jetty.head) else { return };
        while let Some(request) = self.requests.get(at) {
            let next = request.next;
            if request.phase == RequestPhase::Waiting && request.abandoned.is_none() {
                self.give_up(at, CrStatus::FlushErr, fx);
            }
            at = next;
        }
    }
    /// The answer of a ROL request that came in a transport acknowledgement. That may be lost: the acknowledgement of the
    /// request's last packet says the same, but covers all packets before it.
    pub(crate) fn on_fused(&mut self, env: &mut UrmaEnv<'_>, channel: PoolRef, response: &Atah) {
        let jetty = self.shared.objects.jetty_ref(response.rc_id);
        let Some(at) = jetty.and_then(|jetty| self.find_request(jetty, response.tassn)) else { return };
        let Some(request) = self.requests.get(at) else { return };
        if request.channel == channel && request.all_sent {
            let attempt = request.attempt;
            self.request_delivered(env, at, attempt);
        }
    }
    /// The first request of a stream was executed: the target has given a context or not.
    fn take_grant(&mut self, at: PoolRef, response: &Atah) {
        let Some(request) = self.requests.get(at).filter(|request| request.alloc) else { return };
        let Some(jetty) = self.shared.objects.jetties.get_mut(request.jetty) else { return };
        if jetty.stream.state == StreamState::Asking && jetty.stream.channel == request.channel {
            jetty.stream.state = match response.granted {
                true => StreamState::Granted { context: response.context },
                false => StreamState::Denied,
            };
        }
    }
    /// The first request of a stream was refused: the next one asks again.
    fn refused_first(&mut self, at: PoolRef) {
        let Some(request) = self.requests.get(at).filter(|request| request.alloc) else { return };
        if let Some(jetty) = self.shared.objects.jetties.get_mut(request.jetty)
            && jetty.stream.state == StreamState::Asking
        {
            let none = OrderStream { state: StreamState::None, channel: PoolRef::NONE, ..jetty.stream };
            jetty.stream = none;
        }
    }
    /// All packets up to the last one of a request have arrived: in ROL it is executed.
    pub(crate) fn request_delivered(&mut self, env: &mut UrmaEnv<'_>, at: PoolRef, attempt: u8) {
        let Some(request) = self.requests.get(at) else { return };
        let is_rol = self
            .shared
            .objects
            .jetties
            .get(request.jetty)
            .is_some_and(|jetty| jetty.config.service == ServiceMode::Rol);
        let is_answer = request.is_fusable() && !request.is_deferred;
        if is_rol && request.attempt == attempt && request.phase == RequestPhase::Issued && is_answer {
            // An abandoned request is answered by an error before its packet is acknowledged.
            self.answer(at, CrStatus::Success, env);
        }
    }
    /// A request has an outcome: reports it in the order that it asks for, and issues what waited for it.
    pub(crate) fn answer(&mut self, at: PoolRef, status: CrStatus, env: &mut UrmaEnv<'_>) {
        self.conclude(at, status, env.now, env.fx);
    }
    fn conclude(&mut self, at: PoolRef, status: CrStatus, now: Nanos, fx: &mut dyn UrmaEffects) {
        let Some(request) = self.requests.get(at) else { return };
        if !matches!(request.phase, RequestPhase::Issued | RequestPhase::Waiting) {
            return;
        }
        let jetty = request.jetty;
        self.mark_answered(jetty, at);
        let Some(request) = self.requests.get_mut(at) else { return };
        request.phase = RequestPhase::Done(status);
        let (is_silent, prev, next) = (!request.complete, request.prev, request.next);
        if request.completion_order {
            if self.report_in_order(jetty, fx) {
                self.report_behind(jetty, self.head_of(jetty), fx);
            }
        } else if is_silent {
            self.report(at, fx);
            if !self.is_behind_silent(prev) {
                self.report_behind(jetty, next, fx);
            }
        } else if self.completes_early(jetty) || !self.is_behind_silent(prev) {
            self.report(at, fx);
        }
        self.shared.objects.check_drained(jetty, fx);
        self.issue_at(jetty, now);
    }
    fn head_of(&self, jetty: PoolRef) -> PoolRef {
        self.shared.objects.jetties.get(jetty).map_or(PoolRef::NONE, |jetty| jetty.head)
    }
    /// Whether completions of a Jetty say nothing about earlier requests.
    fn completes_early(&self, jetty: PoolRef) -> bool {
        self.shared.objects.jetties.get(jetty).is_some_and(|jetty| jetty.config.outorder_comp)
    }
    /// Whether a request without completion is outstanding at a place of the list or before it. The completion of a request
    /// says that those are done, too: the program uses their memory again and counts their room in the queue as free.
    fn is_behind_silent(&self, at: PoolRef) -> bool {
        let Some(request) = self.requests.get(at) else { return false };
        let oldest =
            self.shared.objects.jetties.get(request.jetty).and_then(|jetty| self.requests.get(jetty.oldest_silent));
        oldest.is_some_and(|oldest| request.tassn.wrapping_sub(oldest.tassn) < TASSN_WINDOW)
    }
    /// Reports what has waited for a request without completion: the requests from a place on to the next such request.
    fn report_behind(&mut self, jetty: PoolRef, mut at: PoolRef, fx: &mut dyn UrmaEffects) {
        loop {
            let mut has_ordered = false;
            while let Some(request) = self.requests.get(at).filter(|request| request.complete) {
                let next = request.next;
                if matches!(request.phase, RequestPhase::Done(_)) {
                    if request.completion_order {
                        has_ordered = true;
                    } else {
                        self.report(at, fx);
                    }
                }
                at = next;
            }
            if !has_ordered || !self.report_in_order(jetty, fx) {
                return;
            }
            at = self.head_of(jetty);
        }
    }
    /// Reports the requests with ordered completion up to the first one without outcome. True if one of them asked for no
    /// completion.
    fn report_in_order(&mut self, jetty: PoolRef, fx: &mut dyn UrmaEffects) -> bool {
        let waits = !self.completes_early(jetty);
        let (mut at, mut is_behind_silent, mut had_silent) = (self.head_of(jetty), false, false);
        while let Some(request) = self.requests.get(at) {
            self.shared.channels.sweeps.steps += 1;
            let next = request.next;
            if request.completion_order {
                let is_done = matches!(request.phase, RequestPhase::Done(_));
                if !is_done || request.complete && is_behind_silent && waits {
                    break;
                }
                had_silent |= !request.complete;
                self.report(at, fx);
            } else {
                is_behind_silent |= !request.complete;
            }
            at = next;
        }
        had_silent
    }
    fn report(&mut self, at: PoolRef, fx: &mut dyn UrmaEffects) {
        let Some(request) = self.requests.get(at) else { return };
        let told = match request.phase {
            RequestPhase::Done(CrStatus::Success) if !request.complete => None,
            RequestPhase::Done(status) => {
                let jfc = self.shared.objects.jetties.get(request.jetty).map(|jetty| jetty.config.jfc);
                jfc.map(|jfc| (jfc, send_record(request, status)))
            }
            _ => None,
        };
        self.unlink(at);
        if let Some((jfc, record)) = told {
            self.shared.objects.complete(jfc, record, fx);
        }
    }
}

/// The completion of a request.
pub(crate) fn send_record(request: &SendRecord, status: CrStatus) -> CompletionRecord {
    CompletionRecord {
        status,
        user_ctx: request.user_ctx,
        opcode: request.opcode,
        is_receive: false,
        len: request.data.len(),
        local_kind: TargetKind::Jetty,
        local_id: id_of(request.jetty),
        remote: None,
        immediate: 0,
    }
}
