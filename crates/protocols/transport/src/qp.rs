//! A queue pair: its state, and the calls by which the engine drives it.
//!
//! `on_packet` checks partition, service and source of a packet and passes it to the responder or the completer; `poll_tx` sends
//! pending answers, then requests; `on_timer` fires the timers that are due; `modify` moves the queue pair through its
//! states by the rules of [`crate::qp::transitions`]. A queue pair shares no state with another.

pub(crate) mod check;
pub(crate) mod errors;
pub(crate) mod facts;
pub(crate) mod families;
pub(crate) mod prefetch;
pub(crate) mod receipts;
pub(crate) mod source_port;
pub(crate) mod staging;
pub(crate) mod trailing;
pub(crate) mod trains;
pub(crate) mod transitions;

use crate::api::{Env, ModifyError, QpConfig, Signal, TxBudget, TxState};
use crate::opcodes::Work;
use crate::peer_port::PeerPort;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::probe_state::MEASURE_DUE;
use crate::responder::answers::AnswerTurn;
use crate::responder::{READ_ACK_DUE, Responder};
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{Mtu, QpAttr, QpState, QpType, attr_mask};
use burst_base::{Nanos, Psn, Qpn, Reason, RtoMode};
use burst_frame::{Flow, RxFrame};
use burst_shm::rq::SrqConsumer;
use burst_wire::{OpKind, Packet, Service, Syndrome};
use std::sync::Arc;

/// A queue pair. One thread drives it; each call gets an [`Env`].
// In the order of use: see `qp::prefetch`.
#[repr(C, align(64))]
pub struct Qp {
    pub(crate) shared: QpShared,
    pub(crate) resp: Responder,
    pub(crate) req: Requester,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Qp {
        let (cap, sq) = (&config.cap, &config.sq);
        // Requests are checked against the queue's limits, which lie in a line that each turn uses.
        debug_assert!(cap.max_send_wr == 0 || sq.spec().max_sge() == cap.max_send_sge);
        debug_assert!(cap.max_send_wr == 0 || sq.spec().max_inline() == cap.max_inline_data);
        let receipts = (config.qp_type == QpType::Uc).then(Box::default);
        Qp {
            shared: QpShared::new(&config),
            resp: Responder::new(config.rq),
            req: Requester { receipts, ..Requester::new(RtoMode::default(), config.sq) },
        }
    }

    /// Queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.shared.id.qpn
    }

    /// Number of its protection domain.
    pub fn domain(&self) -> u32 {
        self.shared.id.pd
    }

    /// Its service type.
    pub fn qp_type(&self) -> QpType {
        self.shared.id.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// Source and destination of its packets (connected types, once an address vector was given).
    pub fn flow(&self) -> &Flow {
        &self.shared.flow
    }

    /// Sets the traffic class of packets sent from now on.
    pub fn set_tos(&mut self, tos: u8) {
        self.shared.flow.tos = tos;
    }

    /// Sets the port's MTU, the largest path MTU that `modify` accepts and the MTU of a queue pair in RESET.
    pub fn follow_port(&mut self, mtu: Mtu) {
        self.shared.id.port_mtu = mtu;
        if self.shared.state == QpState::Reset {
            self.shared.mtu = mtu.bytes();
        }
    }

    /// All attributes, as `ibv_query_qp` returns them.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.shared.state,
            cur_qp_state: self.shared.state,
            sq_psn: if self.shared.id.qp_type == QpType::Ud {
                self.shared.attr.sq_psn
            } else {
                self.req.recovery.next_request_psn()
            },
            rq_psn: if self.shared.state as u8 >= QpState::Rtr as u8 {
                self.resp.expected
            } else {
                self.shared.attr.rq_psn
            },
            sq_draining: self.shared.state == QpState::Sqd && !self.req.drained,
            ..self.shared.attr
        }
    }

    /// Changes the attributes in `mask` ([`attr_mask`] bits). `flow` is the result of resolving `attr.ah`, compulsory with
    /// [`attr_mask::AV`]. An error changes nothing.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
        env: &mut Env<'_>,
    ) -> Result<(), ModifyError> {
        let mask = transitions::effective_mask(self.shared.id.qp_type, mask);
        let to = transitions::check(self.shared.id.qp_type, self.shared.state, self.shared.id.port_mtu, attr, mask)?;
        let flow = if mask & attr_mask::AV == 0 { None } else { Some(flow.ok_or(ModifyError::NoFlow)?) };
        self.reserve(to, attr, mask).map_err(|OutOfMemory| ModifyError::NoMemory)?;
        if let Some(flow) = flow {
            self.shared.flow = flow;
            self.shared.peer_port = PeerPort::default();
        }
        transitions::apply(&mut self.shared.attr, attr, mask);
        (self.shared.dest_qpn, self.shared.access_flags) =
            (self.shared.attr.dest_qpn, self.shared.attr.qp_access_flags);
        if self.shared.id.qp_type != QpType::Ud {
            self.shared.mtu = self.shared.attr.path_mtu.bytes();
        }
        self.req.set_answer_wait(&mut self.shared, env);
        self.enter(to, env);
        Ok(())
    }

    /// Reserves the memory that the queue pair needs in state `to`.
    fn reserve(&mut self, to: QpState, attr: &QpAttr, mask: u32) -> Result<(), OutOfMemory> {
        match (self.shared.state, to) {
            (QpState::Reset, QpState::Init) => {
                self.resp.recv.reserve()?;
                self.req.allocate(self.shared.attr.cap.max_send_wr, self.shared.attr.cap.max_send_sge)
            }
            (QpState::Init, QpState::Rtr) => {
                let is_given = mask & attr_mask::MAX_DEST_RD_ATOMIC != 0;
                let depth = if is_given { attr.max_dest_rd_atomic } else { self.shared.attr.max_dest_rd_atomic };
                self.resp.reserve(depth)
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, to: QpState, env: &mut Env<'_>) {
        let from = self.shared.state;
        match to {
            QpState::Reset => {
                self.send_pending_ack(env);
                self.release_records(env);
                return self.reset();
            }
            QpState::Err => {
                self.send_pending_ack(env);
                return self.enter_error();
            }
            QpState::Rtr if from == QpState::Init => {
                self.resp.start(self.shared.attr.rq_psn, self.shared.attr.max_dest_rd_atomic);
            }
            QpState::Rts if from == QpState::Rtr => {
                self.req.start(self.shared.attr.sq_psn, self.shared.attr.retry_cnt, self.shared.attr.rnr_retry);
                self.req.sq_active = true;
            }
            QpState::Rts => {
                self.req.sq_active = true;
                self.req.stalled = false;
            }
            QpState::Sqd if from == QpState::Rts => self.req.drained = false,
            _ => {}
        }
        self.shared.state = to;
        self.req.check_drained(&self.shared, env);
    }

    /// Removes all requests and receives without completions, and all attributes (IBA 10.3.1.1).
    fn reset(&mut self) {
        self.req.reset();
        self.resp.reset();
        self.shared.reset();
    }

    /// Handles a packet for this queue pair. Answers become pending, and [`Qp::poll_tx`] sends them: see [`Qp::wants_tx`].
    #[inline]
    pub fn on_packet(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        debug_assert!(self.shared.failed.is_none(), "a half has failed, and the other has not stopped");
        if self.shared.trails && self.shared.trail.is_some() {
            return self.on_packet_trailing(frame, pkt, env);
        }
        if pkt.info.service.is_selective() {
            return self.on_selective(frame, pkt, env);
        }
        if let Err(reason) = self.shared.check_packet(frame, pkt) {
            return env.fx.count(reason);
        }
        if frame.flow.src_port != self.shared.peer_port.port {
            return self.on_other_port(frame, pkt, env);
        }
        self.dispatch(frame, pkt, env);
    }

    /// Checks and handles a packet of the selective repeat family.
    #[inline(never)]
    fn on_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let is_usual =
            self.shared.id.qp_type == QpType::Rc && pkt.info.service == Service::RcSr && self.resp.accepts_selective;
        if !is_usual || self.shared.check_peer(frame, pkt).is_err() || frame.flow.src_port != self.shared.peer_port.port
        {
            return self.on_unusual_selective(frame, pkt, env);
        }
        match pkt.info.kind {
            OpKind::Send | OpKind::Write => self.resp.on_selective_message(&mut self.shared, frame, pkt, env),
            OpKind::Ack => self.req.on_selective_ack(&mut self.shared, pkt, env),
            _ => return self.dispatch_selective(frame, pkt, env),
        }
        self.settle_error();
    }

    /// The same for XRC, for a queue pair that only sends requests of the family, for packets from another source port, and for
    /// packets that are dropped.
    #[inline(never)]
    fn on_unusual_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if let Err(reason) = self.check_selective(frame, pkt) {
            return env.fx.count(reason);
        }
        if frame.flow.src_port != self.shared.peer_port.port {
            return self.on_other_port(frame, pkt, env);
        }
        self.dispatch_selective(frame, pkt, env);
    }

    /// Checks that every packet of the family must pass.
    fn check_selective(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        let is_xrc = match self.shared.id.qp_type {
            QpType::Rc => false,
            QpType::XrcSend | QpType::XrcRecv => true,
            QpType::Uc | QpType::Ud => return Err(Reason::WrongTransport),
        };
        if is_xrc != (pkt.info.service == Service::XrcSr) {
            return Err(Reason::WrongTransport);
        }
        if !(self.resp.accepts_selective || self.req.sel.active) {
            return Err(Reason::SrNotNegotiated);
        }
        self.shared.check_peer(frame, pkt)
    }

    /// Handles a packet of the selective repeat family that has passed the checks.
    #[inline(never)]
    pub(crate) fn dispatch_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        match pkt.info.kind {
            OpKind::Ack => self.req.on_selective_ack(&mut self.shared, pkt, env),
            kind if kind.is_response() => self.req.on_selective_response(&mut self.shared, frame, pkt, env),
            OpKind::ReadAck => self.on_read_ack(pkt, env),
            _ => self.resp.on_selective_request(&mut self.shared, frame, pkt, env),
        }
        self.settle_error();
        self.take_read_ack_due();
    }

    /// Handles a packet that has passed the checks.
    pub(crate) fn dispatch(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        match (self.shared.id.qp_type, pkt.info.kind) {
            (_, OpKind::Cnp) => {
                env.fx.count(Reason::CnpReceived);
                env.fx.congestion(Signal::Cnp);
            }
            (QpType::Ud, _) => self.resp.on_datagram(&mut self.shared, frame, pkt, env),
            (QpType::Uc, _) => self.on_uc_packet(frame, pkt, env),
            (QpType::Rc | QpType::XrcRecv, kind) if kind.is_request() => {
                self.resp.on_request(&mut self.shared, pkt, env)
            }
            (QpType::Rc | QpType::XrcSend, kind) if kind.is_response() => {
                self.req.on_response(&mut self.shared, pkt, env)
            }
            // An initiator has no responder, a target no requester.
            (QpType::Rc | QpType::XrcSend | QpType::XrcRecv, _) => env.fx.count(Reason::WrongTransport),
        }
        self.settle_error();
    }

    /// Sends pending acknowledgements and NAKs, then READ and ATOMIC responses, then requests, within `budget` and the batch.
    ///
    /// An acknowledgement alone is sent after the requests of the same turn, unless it is longer: one GSO send can end, but not
    /// begin, with a short packet. So both arrive together, and programs see that a message has been sent before they see the
    /// answer. If requests wait, responses get at most half of the turn's bytes, so that a peer that reads much cannot
    /// stop them.
    pub fn poll_tx(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        debug_assert!(self.shared.failed.is_none(), "a half has failed, and the other has not stopped");
        if self.shared.trails && self.shared.trail.is_some() {
            return self.poll_tx_trailing(budget, env);
        }
        self.poll_turn(budget, env)
    }

    /// [`Qp::poll_tx`], if nothing has to wait for copies.
    #[inline(always)]
    fn poll_turn(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        let has_requests = self.req.wants_requests(&self.shared);
        let ack_last = self.resp.has_only_ack_pending() && has_requests;
        let (mut answered, first) = (true, env.tx.len());
        if !ack_last && self.resp.has_pending() {
            answered = self.poll_first_responses(has_requests, budget, env);
            if !answered && !has_requests {
                return TxState::More;
            }
        }
        let state = self.poll_requests(budget, env);
        // Responses get what the requests have left of the budget.
        if (ack_last || !answered) && self.resp.has_pending() {
            answered = self.poll_responses(budget, env);
            if ack_last && answered && env.tx.len() > first {
                env.tx.begin_with_longer(first);
            }
        }
        let state = if answered { state } else { TxState::More };
        if self.wants_flush() { self.poll_flush(budget, env) } else { state }
    }

    /// Sends requests in the states that allow it.
    #[inline(always)]
    pub(crate) fn poll_requests(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        let state = match self.shared.state {
            QpState::Rts | QpState::Sqd => self.req.poll_requests(&mut self.shared, budget, env),
            _ => TxState::Idle,
        };
        self.settle_error();
        state
    }

    /// Sends pending answers before requests, and leaves half of the turn's bytes to these.
    #[inline(always)]
    fn poll_first_responses(&mut self, has_requests: bool, budget: &mut TxBudget, env: &mut Env<'_>) -> bool {
        let kept = if has_requests { budget.bytes / 2 } else { 0 };
        budget.bytes -= kept;
        let answered = self.poll_responses(budget, env);
        budget.bytes += kept;
        answered
    }

    /// Sends pending answers; false if budget or batch ended before all were sent.
    pub(crate) fn poll_responses(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> bool {
        if self.resp.pending & READ_ACK_DUE != 0 {
            let is_pushed = match self.shared.id.qp_type {
                QpType::Uc => self.push_receipt(env),
                _ => self.req.push_read_ack(&self.shared, env),
            };
            if !is_pushed {
                return false;
            }
            self.resp.pending &= !READ_ACK_DUE;
        }
        let answered =
            self.resp.poll_answers(&mut self.shared, &mut AnswerTurn { budget, rtt: &self.req.sel.rtt }, env);
        self.settle_error();
        answered
    }

    /// Whether `poll_tx` would do something now. False for a queue pair that waits for its window, until an acknowledgement
    /// comes, unless an answer is pending: answers never wait for a window.
    pub fn wants_tx(&self) -> bool {
        let wants = self.resp.has_pending() || self.req.wants_requests(&self.shared) || self.wants_flush();
        wants && !(self.shared.trails && self.waits_for_copies())
    }

    /// Whether the only thing to send is an acknowledgement of a message that has just completed a receive. A program that
    /// answers each message posts soon; then one system call and one wake-up of the peer carry answer and acknowledgement.
    /// Never for an XRC target: it has no send queue, so an answer leaves through another queue pair and would pass the ACK.
    #[inline]
    pub fn ack_may_wait(&self) -> bool {
        self.resp.ack_follows_receive
            && self.resp.has_only_ack_pending()
            && !self.req.wants_requests(&self.shared)
            && !self.wants_flush()
            && self.shared.id.qp_type != QpType::XrcRecv
    }

    /// The application posted to an idle send queue, or to the receive queue of a queue pair in ERR.
    pub fn on_doorbell(&mut self) {
        self.req.sq_active = true;
        if self.shared.state == QpState::Err {
            self.resp.flush_recv = true;
        }
    }

    /// Takes receives from another ring: the shared receive queue was resized.
    pub fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.resp.recv.follow_srq(srq);
    }

    /// The program begins or ends a fork: its memory is held, or is back. Meanwhile accesses to it are late.
    pub fn hold_memory(&mut self, now: Nanos, hold: bool) {
        match hold {
            true => self.resp.begin_fork(),
            false => self.resp.end_fork(&self.shared, now),
        }
    }

    /// The PSN that is expected next from the peer.
    #[inline]
    pub fn expected_psn(&self) -> Psn {
        self.resp.expected
    }

    /// The time at which [`Qp::on_timer`] should be called.
    pub fn next_deadline(&self) -> Nanos {
        self.req.ack_deadline.min(self.req.rnr_deadline).min(self.req.sel.deadline).min(self.resp.response_deadline)
    }

    /// Fires the timers that are due.
    pub fn on_timer(&mut self, env: &mut Env<'_>) {
        if self.shared.trails && self.shared.trail.is_some() {
            return self.on_timer_trailing(env);
        }
        if matches!(self.shared.state, QpState::Rts | QpState::Sqd) {
            match self.req.receipts {
                Some(_) => self.req.on_receipt_timer(env),
                None => self.req.on_requester_timer(&mut self.shared, env),
            }
            self.settle_error();
        }
        let known = (self.shared.mtu, self.req.sel.rtt.is_known());
        if self.resp.response_deadline <= env.now && self.resp.on_response_timeout(known, env) {
            self.req.stalled = false;
        }
    }

    /// Whether requests of a reliable service were sent that the peer has not acknowledged.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.shared.id.qp_type.is_reliable() && self.req.recovery.is_outstanding()
    }

    /// Whether anything is to be sent that answers the peer: acknowledgements, or responses to READs and ATOMICs.
    pub fn has_answers(&self) -> bool {
        self.resp.has_pending()
    }

    /// Whether something is to be sent that no window has to have room for: an answer to the peer, or the repetition without
    /// which nothing comes back of what is in flight.
    pub fn sends_without_room(&self) -> bool {
        self.has_answers() || (self.shared.id.qp_type.is_reliable() && self.req.repeats_without_room())
    }

    /// Whether an acknowledgement or a NAK is to be sent to the peer.
    pub fn owes_acknowledgement(&self) -> bool {
        self.resp.ack_due.is_some() || self.resp.nak_due.is_some() || self.resp.pending & READ_ACK_DUE != 0
    }

    /// Work requests that have ended, modulo 2^32.
    #[inline]
    pub fn ended_requests(&self) -> u32 {
        self.req.retired
    }

    /// Work requests that it has begun, modulo 2^32.
    #[inline]
    pub fn begun_requests(&self) -> u32 {
        self.req.sq.taken()
    }

    /// Payload bytes sent, or requested by READs, that are not yet acknowledged or received; and those of READ responses that the
    /// peer will acknowledge ([`Qp::response_bytes`]).
    #[inline]
    pub fn inflight_bytes(&self) -> u64 {
        self.request_bytes() + self.resp.response_bytes
    }

    /// The same without READ responses.
    #[inline]
    pub fn request_bytes(&self) -> u64 {
        if !self.shared.id.qp_type.is_reliable() {
            return self.req.receipts.as_ref().map_or(0, |receipts| receipts.inflight_bytes());
        }
        self.req.recovery.inflight_bytes(self.shared.mtu).saturating_sub(self.req.sel.covered_bytes)
    }
}

impl Qp {
    /// Sends the pending acknowledgement before the queue pair goes to RESET or ERR or is destroyed. A program may end as soon as
    /// it has its last message, and the sender must not see an error for a message that arrived.
    pub fn send_pending_ack(&mut self, env: &mut Env<'_>) {
        if let Some((psn, msn)) = self.resp.ack_due
            && self.resp.has_only_ack_pending()
            && self.resp.push_ack(&self.shared, (psn, msn), Syndrome::ACK, env)
        {
            self.resp.ack_due = None;
        }
    }
}

impl Qp {
    /// The first PSN that was never sent.
    pub fn sent_psn(&self) -> Psn {
        self.req.recovery.sent_psn()
    }

    /// Bytes of room in the window without which the next packet is not sent, unless nothing is in flight: those that it puts in
    /// flight, or half of those of a piece of a READ in the standard family.
    pub fn next_bytes(&self) -> u64 {
        if self.req.sel.active && self.req.sel.wants_repair() {
            return self.shared.mtu.into();
        }
        let Some(request) = self.req.recovery.next() else { return 0 };
        u64::from(match request.work {
            Work::Read => self.req.read_room(self.req.read_piece(&self.shared, request).1),
            _ => (request.length - self.req.recovery.next_packet() * self.shared.mtu).min(self.shared.mtu),
        })
    }
}

impl Qp {
    /// A timer that the engine had set for this queue pair has passed, and nothing was due: the round trip may have changed
    /// since the last measurement.
    #[inline]
    pub fn timer_passed(&mut self) {
        if self.req.watched == 0 && !self.req.sel.active && self.shared.id.qp_type.is_reliable() {
            self.req.watched = MEASURE_DUE;
        }
    }

    /// Whether packets are missing that were sent, or it has gone back to one.
    #[inline]
    pub fn is_recovering(&self) -> bool {
        self.req.sel.losses.is_some() || self.req.is_back()
    }
}

impl Qp {
    /// Number of the shared receive queue of the last request.
    pub fn srqn(&self) -> Option<u32> {
        if self.shared.id.qp_type == QpType::XrcRecv { self.resp.recv.srqn() } else { None }
    }

    /// Stops using a shared receive queue that is being destroyed.
    pub fn forget_srq(&mut self, srqn: u32) {
        if self.shared.id.qp_type != QpType::XrcRecv {
            return;
        }
        self.resp.revoke(srqn);
        if self.resp.recv.srqn() == Some(srqn) {
            self.shared.id.pd = u32::MAX;
        }
        self.resp.recv.forget_srq(srqn);
    }
}
