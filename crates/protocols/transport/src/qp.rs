//! A queue pair: its parts, and the doors through which the engine reaches them.
//!
//! `on_packet` checks what every packet must satisfy (partition, service, source) and hands it to the responder or the
//! completer; `poll_tx` sends what the responder owes, then requests; `on_timer` fires what is due; `modify` moves the
//! queue pair through its states (see [`crate::state`] for the rules). All state is here; nothing is shared.

use crate::api::{ACK_TIMEOUT_MIN, Env, ModifyError, PKEY_DEFAULT, QpConfig, Signal, TxBudget, TxState};
use crate::receive::Receiver;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::state;
use burst_base::verbs::{Mtu, QpAttr, QpCap, QpState, QpType, attr_mask};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame};
use burst_mem::Peer;
use burst_shm::rq::SrqConsumer;
use burst_shm::sq::SqConsumer;
use burst_wire::aeth::ack_timeout;
use burst_wire::{Kind, Packet, Service};
use std::sync::Arc;

/// What never changes, with two exceptions: domain and receive completion queue of an XRC target follow the requests, and
/// the port's MTU follows the port ([`Qp::follow_port`]).
pub(crate) struct Identity {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) cookie: u32,
    pub(crate) cap: QpCap,
    port_mtu: Mtu,
}

/// A queue pair. Driven by one thread; see [`Env`] for what each call gets.
pub struct Qp {
    pub(crate) id: Identity,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) flow: Flow,
    /// Payload bytes per packet.
    pub(crate) mtu: u32,
    pub(crate) ack_timeout: Nanos,
    pub(crate) sq: SqConsumer,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    pub(crate) recv: Receiver,
    /// ERR: there may be receives to flush.
    pub(crate) flush_recv: bool,
    /// ERR: LAST_WQE_REACHED was raised.
    pub(crate) last_wqe_said: bool,
    /// The send queue's indices are impossible: it is not read any more.
    pub(crate) corrupt: bool,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: QpConfig) -> Qp {
        let QpConfig { qpn, qp_type, pd, send_cq, recv_cq, cookie, cap, port_mtu, sq, rq } = config;
        Qp {
            id: Identity { qpn, qp_type, pd, send_cq, recv_cq, cookie, cap, port_mtu },
            state: QpState::Reset,
            attr: QpAttr { cap, ..QpAttr::default() },
            flow: Flow::default(),
            mtu: port_mtu.bytes(),
            ack_timeout: Nanos::NEVER,
            sq,
            req: Requester::new(),
            resp: Responder::new(),
            recv: Receiver::new(rq),
            flush_recv: false,
            last_wqe_said: false,
            corrupt: false,
        }
    }

    /// Its number.
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
    /// As memory tables know it.
    pub(crate) fn peer(&self) -> Peer {
        Peer { pd: self.id.pd, qpn: self.id.qpn }
    }
    /// Where its packets go (connected types, once an address vector was given).
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The port's MTU is this now: path MTUs up to it are taken, and a queue pair in RESET begins with it.
    pub fn follow_port(&mut self, mtu: Mtu) {
        self.id.port_mtu = mtu;
        if self.state == QpState::Reset {
            self.mtu = mtu.bytes();
        }
    }

    /// All attributes, as `ibv_query_qp` gives them.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            qp_state: self.state,
            cur_qp_state: self.state,
            cap: self.id.cap,
            sq_psn: if self.id.qp_type == QpType::Ud { self.attr.sq_psn } else { self.req.next_psn },
            rq_psn: if self.state as u8 >= QpState::Rtr as u8 { self.resp.expected } else { self.attr.rq_psn },
            sq_draining: self.state == QpState::Sqd && !self.req.drained,
            ..self.attr
        }
    }

    /// Changes the attributes in `mask` ([`attr_mask`] bits). `flow` is what `attr.ah` was resolved to, compulsory with
    /// [`attr_mask::AV`]. An error changes nothing.
    pub fn modify(
        &mut self,
        attr: &QpAttr,
        mask: u32,
        flow: Option<Flow>,
        env: &mut Env<'_>,
    ) -> Result<(), ModifyError> {
        let to = state::check(self.id.qp_type, self.state, self.id.port_mtu, attr, mask)?;
        if mask & attr_mask::AV != 0 {
            self.flow = flow.ok_or(ModifyError::NoFlow)?;
        }
        state::apply(&mut self.attr, attr, mask);
        if self.id.qp_type != QpType::Ud {
            self.mtu = self.attr.path_mtu.bytes();
        }
        self.ack_timeout = ack_timeout(self.attr.timeout).max(ACK_TIMEOUT_MIN);
        self.enter(to, env);
        Ok(())
    }

    fn enter(&mut self, to: QpState, env: &mut Env<'_>) {
        let from = self.state;
        match to {
            QpState::Reset => {
                self.part(env);
                return self.reset();
            }
            QpState::Err => {
                self.part(env);
                return self.enter_error();
            }
            QpState::Init if from == QpState::Reset => {
                self.req.allocate(self.id.cap.max_send_wr, self.id.cap.max_send_sge);
            }
            QpState::Rtr if from == QpState::Init => self.resp.start(self.attr.rq_psn, self.attr.max_dest_rd_atomic),
            QpState::Rts if from == QpState::Rtr => {
                self.req.start(self.attr.sq_psn, self.attr.retry_cnt, self.attr.rnr_retry);
                self.req.sq_active = true;
            }
            QpState::Rts => {
                self.req.sq_active = true;
                self.req.stalled = false;
            }
            QpState::Sqd if from == QpState::Rts => self.req.drained = false,
            _ => {}
        }
        self.state = to;
        self.check_drained(env);
    }

    /// Forgets everything; what was posted is gone without completions (IBA 10.3.1.1).
    fn reset(&mut self) {
        self.sq.discard_all();
        self.recv.discard();
        self.req = Requester::new();
        self.req.retired = self.sq.taken();
        self.resp = Responder::new();
        self.attr = QpAttr { cap: self.id.cap, ..QpAttr::default() };
        self.flow = Flow::default();
        self.mtu = self.id.port_mtu.bytes();
        self.ack_timeout = Nanos::NEVER;
        self.state = QpState::Reset;
        self.flush_recv = false;
        self.last_wqe_said = false;
        self.corrupt = false;
    }

    /// A packet for this queue pair. Answers are owed, not sent: see [`Qp::wants_tx`].
    pub fn on_packet(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if let Err(reason) = self.check_packet(frame, pkt) {
            return env.fx.count(reason);
        }
        match (self.id.qp_type, pkt.info.kind) {
            (_, Kind::Cnp) => env.fx.congestion(Signal::Cnp),
            (QpType::Ud, _) => self.on_datagram(frame, pkt, env),
            (QpType::Uc, _) => self.on_uc_packet(pkt, env),
            (QpType::Rc | QpType::XrcRecv, kind) if kind.is_request() => self.on_request(pkt, env),
            (QpType::Rc | QpType::XrcSend, kind) if kind.is_response() => self.on_response(pkt, env),
            // An initiator has no responder, a target no requester.
            (QpType::Rc | QpType::XrcSend | QpType::XrcRecv, _) => env.fx.count(Reason::WrongTransport),
        }
    }

    /// What every packet must satisfy (IBA 9.6.1).
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
        // The low 15 bits name the partition; two limited members may not talk, and we are a full one.
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

    /// Sends: first what is owed to the peer, then read responses, then requests, as far as `budget` and the batch go.
    ///
    /// An acknowledgement alone goes behind the requests of the same turn: a port can send a short last packet in the
    /// same train (GSO), but not a short first one. Requests that wait have half of the turn, however much the peer reads.
    pub fn poll_tx(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        let has_requests = self.wants_requests();
        let ack_last = self.resp.owes_only_ack() && has_requests;
        let mut answered = true;
        if !ack_last && self.resp.owes() {
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
        // What requests have left is the answers' again.
        if (ack_last || !answered) && self.resp.owes() {
            answered = self.poll_responses(budget, env);
        }
        if self.wants_flush() {
            self.poll_flush(budget, env);
            return if self.wants_flush() { TxState::More } else { TxState::Idle };
        }
        if answered { state } else { TxState::More }
    }

    /// Whether `poll_tx` would do something now. A queue pair that waits for its window says no until an
    /// acknowledgement comes, unless it owes an answer: an answer must never wait for a window.
    pub fn wants_tx(&self) -> bool {
        self.resp.owes() || self.wants_requests() || self.wants_flush()
    }

    /// Whether the only thing to send is an acknowledgement of a message that the program has just been told of. A
    /// program that answers each message posts soon; then one system call and one wake-up of the peer carry both.
    pub fn ack_may_wait(&self) -> bool {
        self.resp.ack_follows_receive && self.resp.owes_only_ack() && !self.wants_requests() && !self.wants_flush()
    }

    /// The application posted to an idle queue (sends; or receives of a queue pair in error).
    pub fn on_doorbell(&mut self) {
        self.req.sq_active = true;
        if self.state == QpState::Err {
            self.flush_recv = true;
        }
    }

    /// The shared receive queue of this queue pair has moved to another ring.
    pub fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.recv.follow_srq(srq);
    }

    /// When [`Qp::on_timer`] should be called.
    pub fn next_deadline(&self) -> Nanos {
        self.req.ack_deadline.min(self.req.rnr_deadline)
    }

    /// Fires the timers that are due.
    pub fn on_timer(&mut self, env: &mut Env<'_>) {
        if matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.on_requester_timer(env);
        }
    }

    /// Payload bytes sent, or asked for by READs, that are not yet acknowledged.
    pub fn inflight_bytes(&self) -> u64 {
        if self.id.qp_type.is_reliable() { self.req.inflight_bytes(self.mtu) } else { 0 }
    }
}
