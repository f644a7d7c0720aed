//! A queue pair: its state, and the calls by which the engine drives it.
//!
//! `on_packet` checks partition, service and source of a packet and passes it to the responder or the completer; `poll_tx` sends
//! pending answers, then requests; `on_timer` fires the timers that are due; `modify` moves the queue pair through its
//! states by the rules of [`crate::state`]. A queue pair shares no state with another.

use crate::api::{Env, ModifyError, PKEY_DEFAULT, QpConfig, Signal, TxBudget, TxState};
use crate::peer_port::PeerPort;
use crate::read_acks::ReadAcks;
use crate::receive::Receiver;
use crate::repair_queue::ResponseRepairs;
use crate::requester::Requester;
use crate::responder::{READ_ACK_DUE, Responder};
use crate::state;
use crate::watch::ProbeState;
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{Mtu, QpAttr, QpState, QpType, attr_mask};
use burst_base::{Nanos, Psn, Qpn, Reason, RtoMode};
use burst_frame::{Flow, RxFrame};
use burst_mem::Peer;
use burst_shm::rq::SrqConsumer;
use burst_shm::sq::SqConsumer;
use burst_wire::{OpKind, Packet, Service};
use std::sync::Arc;

/// Constants of a queue pair, with two exceptions: protection domain and receive completion queue of an XRC target follow the
/// requests, and the port's MTU follows the port ([`Qp::follow_port`]).
// In the order of use: see `hot`.
#[repr(C)]
pub(crate) struct QpIdentity {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) cookie: u32,
    pub(crate) qp_type: QpType,
    port_mtu: Mtu,
}

/// A queue pair. One thread drives it; each call gets an [`Env`].
// In the order of use: see `hot`.
#[repr(C)]
pub struct Qp {
    /// READ responses are acknowledged.
    pub(crate) read_acks: Option<Box<ReadAcks>>,
    /// Parts of READ responses that the peer asks for again.
    pub(crate) repairs: ResponseRepairs,
    /// The wait for progress, and probes.
    pub(crate) probes: ProbeState,
    /// SQD: the drained event has been raised.
    pub(crate) drained: bool,
    pub(crate) attr: QpAttr,
    /// `attr.dest_qpn` and `attr.qp_access_flags`, in a line that each packet uses.
    pub(crate) dest_qpn: Qpn,
    pub(crate) access_flags: u32,
    /// Payload bytes per packet.
    pub(crate) mtu: u32,
    /// Selective repeat: losses of packets before this PSN were reported to congestion control (RFC 6582's `recover`), if it lies
    /// between the first missing PSN and the first that was never sent.
    pub(crate) recover: Psn,
    /// The wait that each sign of progress begins: the local ACK timeout, or the time until a probe ([`crate::probes`]).
    pub(crate) answer_wait: Nanos,
    pub(crate) id: QpIdentity,
    pub(crate) flow: Flow,
    pub(crate) peer_port: PeerPort,
    pub(crate) state: QpState,
    /// ERR: the receive queue may hold receives to flush.
    pub(crate) flush_recv: bool,
    /// ERR: LAST_WQE_REACHED was raised.
    pub(crate) last_wqe_raised: bool,
    /// The send queue's indices are impossible: it is not read any more.
    pub(crate) corrupt: bool,
    /// Requests of the selective repeat family are accepted.
    pub(crate) accepts_selective: bool,
    pub(crate) resp: Responder,
    pub(crate) recv: Receiver,
    pub(crate) req: Requester,
    pub(crate) sq: SqConsumer,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Qp {
        let QpConfig { qpn, qp_type, pd, send_cq, recv_cq, cookie, cap, port_mtu, sq, rq } = config;
        // Requests are checked against the queue's limits, which lie in a line that each turn uses.
        debug_assert!(cap.max_send_wr == 0 || sq.spec().max_sge() == cap.max_send_sge);
        debug_assert!(cap.max_send_wr == 0 || sq.spec().max_inline() == cap.max_inline_data);
        Qp {
            id: QpIdentity { qpn, qp_type, pd, send_cq, recv_cq, cookie, port_mtu },
            state: QpState::Reset,
            attr: QpAttr { cap, ..QpAttr::default() },
            dest_qpn: QpAttr::default().dest_qpn,
            access_flags: 0,
            flow: Flow::default(),
            peer_port: PeerPort::default(),
            mtu: port_mtu.bytes(),
            recover: Psn::new(0),
            answer_wait: Nanos::NEVER,
            sq,
            req: Requester::new(RtoMode::default()),
            resp: Responder::new(),
            recv: Receiver::new(rq),
            flush_recv: false,
            last_wqe_raised: false,
            corrupt: false,
            accepts_selective: false,
            read_acks: None,
            repairs: ResponseRepairs::default(),
            probes: ProbeState::new(),
            drained: false,
        }
    }

    /// Queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.id.qpn
    }
    /// Its service type.
    pub fn qp_type(&self) -> QpType {
        self.id.qp_type
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// Its domain and number, by which memory tables check access.
    pub(crate) fn peer(&self) -> Peer {
        Peer { pd: self.id.pd, qpn: self.id.qpn }
    }
    /// Source and destination of its packets (connected types, once an address vector was given).
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Sets the traffic class of packets sent from now on.
    pub fn set_tos(&mut self, tos: u8) {
        self.flow.tos = tos;
    }

    /// Sets the port's MTU, the largest path MTU that `modify` accepts and the MTU of a queue pair in RESET.
    pub fn follow_port(&mut self, mtu: Mtu) {
        self.id.port_mtu = mtu;
        if self.state == QpState::Reset {
            self.mtu = mtu.bytes();
        }
    }

    /// All attributes, as `ibv_query_qp` returns them.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            sq_psn: if self.id.qp_type == QpType::Ud { self.attr.sq_psn } else { self.req.recovery.next_request_psn() },
            rq_psn: if self.state as u8 >= QpState::Rtr as u8 { self.resp.expected } else { self.attr.rq_psn },
            sq_draining: self.state == QpState::Sqd && !self.drained,
            ..self.attr
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
        let mask = state::effective_mask(self.id.qp_type, mask);
        let to = state::check(self.id.qp_type, self.state, self.id.port_mtu, attr, mask)?;
        let flow = if mask & attr_mask::AV == 0 { None } else { Some(flow.ok_or(ModifyError::NoFlow)?) };
        self.reserve(to, attr, mask).map_err(|OutOfMemory| ModifyError::NoMemory)?;
        if let Some(flow) = flow {
            self.flow = flow;
            self.peer_port = PeerPort::default();
        }
        state::apply(&mut self.attr, attr, mask);
        (self.dest_qpn, self.access_flags) = (self.attr.dest_qpn, self.attr.qp_access_flags);
        if self.id.qp_type != QpType::Ud {
            self.mtu = self.attr.path_mtu.bytes();
        }
        self.set_answer_wait(env);
        self.enter(to, env);
        Ok(())
    }

    /// Reserves the memory that the queue pair needs in state `to`.
    fn reserve(&mut self, to: QpState, attr: &QpAttr, mask: u32) -> Result<(), OutOfMemory> {
        match (self.state, to) {
            (QpState::Reset, QpState::Init) => {
                self.recv.reserve()?;
                self.req.allocate(self.attr.cap.max_send_wr, self.attr.cap.max_send_sge)
            }
            (QpState::Init, QpState::Rtr) => {
                let is_given = mask & attr_mask::MAX_DEST_RD_ATOMIC != 0;
                let depth = if is_given { attr.max_dest_rd_atomic } else { self.attr.max_dest_rd_atomic };
                self.resp.reserve(depth)
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, to: QpState, env: &mut Env<'_>) {
        let from = self.state;
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
                self.resp.start(self.attr.rq_psn, self.attr.max_dest_rd_atomic);
                self.recv.consumed = 0;
            }
            QpState::Rts if from == QpState::Rtr => {
                self.req.start(self.attr.sq_psn, self.attr.retry_cnt, self.attr.rnr_retry);
                self.req.sq_active = true;
            }
            QpState::Rts => {
                self.req.sq_active = true;
                self.req.stalled = false;
            }
            QpState::Sqd if from == QpState::Rts => self.drained = false,
            _ => {}
        }
        self.state = to;
        self.check_drained(env);
    }

    /// Removes all requests and receives without completions, and all attributes (IBA 10.3.1.1).
    fn reset(&mut self) {
        self.sq.discard_all();
        self.recv.discard();
        let (window, rto) = (self.req.sel.window, self.req.sel.rtt.mode());
        (self.req, self.probes, self.drained) = (Requester::new(rto), ProbeState::new(), false);
        self.req.sel.window = window;
        self.req.set_family(false);
        self.req.retired = self.sq.taken();
        self.resp = Responder::new();
        self.attr = QpAttr { cap: self.attr.cap, ..QpAttr::default() };
        (self.dest_qpn, self.access_flags) = (self.attr.dest_qpn, self.attr.qp_access_flags);
        self.flow = Flow::default();
        self.peer_port = PeerPort::default();
        self.mtu = self.id.port_mtu.bytes();
        self.answer_wait = Nanos::NEVER;
        self.state = QpState::Reset;
        self.forget_responses();
        self.flush_recv = false;
        self.last_wqe_raised = false;
        self.corrupt = false;
    }

    /// Handles a packet for this queue pair. Answers become pending, and [`Qp::poll_tx`] sends them: see [`Qp::wants_tx`].
    #[inline]
    pub fn on_packet(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if pkt.info.service.is_selective() {
            return self.on_selective(frame, pkt, env);
        }
        if let Err(reason) = self.check_packet(frame, pkt) {
            return env.fx.count(reason);
        }
        if frame.flow.src_port != self.peer_port.port {
            return self.on_other_port(frame, pkt, env);
        }
        self.dispatch(frame, pkt, env);
    }

    /// Checks and handles a packet of the selective repeat family.
    #[inline(never)]
    fn on_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let is_usual = self.id.qp_type == QpType::Rc && pkt.info.service == Service::RcSr && self.accepts_selective;
        if !is_usual || self.check_peer(frame, pkt).is_err() || frame.flow.src_port != self.peer_port.port {
            return self.on_unusual_selective(frame, pkt, env);
        }
        match pkt.info.kind {
            OpKind::Send | OpKind::Write => self.on_selective_message(frame, pkt, env),
            OpKind::Ack => self.on_selective_ack(pkt, env),
            _ => self.dispatch_selective(frame, pkt, env),
        }
    }

    /// The same for XRC, for a queue pair that only sends requests of the family, for packets from another source port, and for
    /// packets that are dropped.
    #[inline(never)]
    fn on_unusual_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if let Err(reason) = self.check_selective(frame, pkt) {
            return env.fx.count(reason);
        }
        if frame.flow.src_port != self.peer_port.port {
            return self.on_other_port(frame, pkt, env);
        }
        self.dispatch_selective(frame, pkt, env);
    }

    /// Checks that every packet of the family must pass.
    fn check_selective(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        let is_xrc = match self.id.qp_type {
            QpType::Rc => false,
            QpType::XrcSend | QpType::XrcRecv => true,
            QpType::Uc | QpType::Ud => return Err(Reason::WrongTransport),
        };
        if is_xrc != (pkt.info.service == Service::XrcSr) {
            return Err(Reason::WrongTransport);
        }
        if !(self.accepts_selective || self.req.sel.active) {
            return Err(Reason::SrNotNegotiated);
        }
        self.check_peer(frame, pkt)
    }

    /// Handles a packet of the selective repeat family that has passed the checks.
    #[inline(never)]
    pub(crate) fn dispatch_selective(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        match pkt.info.kind {
            OpKind::Ack => self.on_selective_ack(pkt, env),
            kind if kind.is_response() => self.on_selective_response(frame, pkt, env),
            OpKind::ReadAck => self.on_read_ack(pkt, env),
            _ => self.on_selective_request(frame, pkt, env),
        }
    }

    /// Handles a packet that has passed the checks.
    pub(crate) fn dispatch(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        match (self.id.qp_type, pkt.info.kind) {
            (_, OpKind::Cnp) => {
                env.fx.count(Reason::CnpReceived);
                env.fx.congestion(Signal::Cnp);
            }
            (QpType::Ud, _) => self.on_datagram(frame, pkt, env),
            (QpType::Uc, _) => self.on_uc_packet(pkt, env),
            (QpType::Rc | QpType::XrcRecv, kind) if kind.is_request() => self.on_request(pkt, env),
            (QpType::Rc | QpType::XrcSend, kind) if kind.is_response() => self.on_response(pkt, env),
            // An initiator has no responder, a target no requester.
            (QpType::Rc | QpType::XrcSend | QpType::XrcRecv, _) => env.fx.count(Reason::WrongTransport),
        }
    }

    /// Checks that every packet must pass (IBA 9.6.1).
    #[inline]
    fn check_packet(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        let service = match self.id.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        };
        if pkt.info.service != service && pkt.info.service != Service::Cnp {
            return Err(Reason::WrongTransport);
        }
        self.check_peer(frame, pkt)
    }

    /// Checks partition, state and source.
    #[inline(always)]
    fn check_peer(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        // The low 15 bits are the partition. Only two limited members may not communicate, and Burst is a full member.
        if pkt.bth.pkey & 0x7fff != PKEY_DEFAULT & 0x7fff {
            return Err(Reason::BadPkey);
        }
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            return Err(Reason::WrongState);
        }
        if self.id.qp_type != QpType::Ud && frame.flow.src != self.flow.dst {
            return Err(Reason::WrongSource);
        }
        Ok(())
    }

    /// Sends pending acknowledgements and NAKs, then READ and ATOMIC responses, then requests, within `budget` and the batch.
    ///
    /// An acknowledgement alone is sent after the requests of the same turn, unless it is longer: one GSO send can end, but not
    /// begin, with a short packet. So both arrive together, and programs see that a message has been sent before they see the
    /// answer. If requests wait, responses get at most half of the turn's bytes, so that a peer that reads much cannot
    /// stop them.
    pub fn poll_tx(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        let has_requests = self.wants_requests();
        let ack_last = self.resp.has_only_ack_pending() && has_requests;
        let (mut answered, first) = (true, env.tx.len());
        if !ack_last && self.resp.has_pending() {
            let kept = if has_requests { budget.bytes / 2 } else { 0 };
            budget.bytes -= kept;
            answered = self.poll_responses(budget, env);
            budget.bytes += kept;
            if !answered && !has_requests {
                return TxState::More;
            }
        }
        let state = match self.state {
            QpState::Rts | QpState::Sqd => self.poll_requests(budget, env),
            _ => TxState::Idle,
        };
        // Responses get what the requests have left of the budget.
        if (ack_last || !answered) && self.resp.has_pending() {
            answered = self.poll_responses(budget, env);
            if ack_last && answered && env.tx.len() > first {
                env.tx.begin_with_longer(first);
            }
        }
        if self.wants_flush() {
            self.poll_flush(budget, env);
            return if self.wants_flush() { TxState::More } else { TxState::Idle };
        }
        if answered { state } else { TxState::More }
    }

    /// Whether `poll_tx` would do something now. False for a queue pair that waits for its window, until an acknowledgement
    /// comes, unless an answer is pending: answers never wait for a window.
    pub fn wants_tx(&self) -> bool {
        self.resp.has_pending() || self.wants_requests() || self.wants_flush()
    }

    /// Whether the only thing to send is an acknowledgement of a message that has just completed a receive. A program that
    /// answers each message posts soon; then one system call and one wake-up of the peer carry answer and acknowledgement.
    /// Never for an XRC target: it has no send queue, so an answer leaves through another queue pair and would pass the ACK.
    #[inline]
    pub fn ack_may_wait(&self) -> bool {
        self.resp.ack_follows_receive
            && self.resp.has_only_ack_pending()
            && !self.wants_requests()
            && !self.wants_flush()
            && self.id.qp_type != QpType::XrcRecv
    }

    /// The application posted to an idle send queue, or to the receive queue of a queue pair in ERR.
    pub fn on_doorbell(&mut self) {
        self.req.sq_active = true;
        if self.state == QpState::Err {
            self.flush_recv = true;
        }
    }

    /// Takes receives from another ring: the shared receive queue was resized.
    pub fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.recv.follow_srq(srq);
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
        if matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.on_requester_timer(env);
        }
        if self.resp.response_deadline <= env.now {
            self.on_response_timeout(env);
        }
    }

    /// Whether requests of a reliable service were sent that the peer has not acknowledged.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.id.qp_type.is_reliable() && self.req.recovery.is_outstanding()
    }

    /// Whether an acknowledgement or a NAK is to be sent to the peer.
    pub fn owes_acknowledgement(&self) -> bool {
        self.resp.ack_due.is_some() || self.resp.nak_due.is_some() || self.resp.pending & READ_ACK_DUE != 0
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
        if !self.id.qp_type.is_reliable() {
            return 0;
        }
        self.req.recovery.inflight_bytes(self.mtu).saturating_sub(self.req.sel.covered_bytes)
    }
}
