//! Turns of a requester: work requests are taken from the send queue, checked, and sent until a limit stops it.
//!
//! A work request is copied out of the shared queue once, checked, and given to `Recovery`, which knows the packet that comes
//! next. After a loss the same requests pass again through the same code.

use crate::api::{Env, MESSAGE_BYTES_MAX, TxBudget, TxState};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::recovery::{InflightWqe, NewRequest};
use crate::requester::{Requester, SendStep, SendTurn};
use burst_base::verbs::{QpState, QpType, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::Fetch;
use burst_shm::layout::SendWqe;

const BAD_REQUEST: (WcStatus, Reason) = (WcStatus::LocQpOpErr, Reason::LocalOperation);
const TOO_LONG: (WcStatus, Reason) = (WcStatus::LocLenErr, Reason::LocalLength);
/// Operation, opcode and bytes of a checked work request.
type CheckedRequest = (Work, WrOpcode, u32);

/// Result of taking a work request from the send queue.
enum Fetched {
    Request,
    /// The queue is empty, or must not be read.
    Nothing,
    /// There is no room for another request in flight, or those in flight must end before the family of packets changes.
    Full,
    /// The next request is of the other family.
    Switched,
}

impl Requester {
    /// Whether requests could be sent now.
    #[inline]
    pub(crate) fn wants_requests(&self, qp: &QpShared) -> bool {
        let waits = self.rnr_deadline != Nanos::NEVER || self.stalled;
        match qp.state {
            QpState::Rts => !waits && (self.recovery.has_next() || self.sq_active),
            QpState::Sqd => !waits && self.wants_requests_draining(),
            _ => false,
        }
    }

    /// The same in SQD.
    #[cold]
    #[inline(never)]
    fn wants_requests_draining(&self) -> bool {
        self.recovery.has_next() || self.recovery.wants_repair() || self.sel.wants_repair() || self.turn_due != 0
    }

    /// Sends requests until a limit stops it.
    pub(crate) fn poll_requests(&mut self, qp: &mut QpShared, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        if self.rnr_deadline != Nanos::NEVER {
            return TxState::Timer;
        }
        if self.turn_due != 0
            && let Some(state) = self.begin_turn(qp, budget, env)
        {
            return state;
        }
        let mut turn = SendTurn { budget };
        if self.recovery.wants_repair() && !self.send_repairs(qp, &mut turn, env) {
            return TxState::More;
        }
        loop {
            let stopped = match self.sel.active {
                false => self.send_requests::<false>(qp, &mut turn, env),
                // Turns in which only answers leave are many: they need not look further.
                true if !self.has_selective_requests() => return TxState::Idle,
                true => self.send_selective_requests(qp, &mut turn, env),
            };
            if let Some(state) = stopped {
                if !qp.id.qp_type.is_reliable() {
                    self.await_receipt(env.now);
                }
                return state;
            }
        }
    }

    /// Sends requests of the selective repeat family or of the standard one until a limit stops it; `None` if the next request is
    /// of the other family. Each family has its own copy of the code, so that nothing is decided per request.
    #[inline(always)]
    pub(crate) fn send_requests<const SELECTIVE: bool>(
        &mut self,
        qp: &mut QpShared,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> Option<TxState> {
        debug_assert_eq!(self.sel.active, SELECTIVE);
        loop {
            let request = match self.recovery.next() {
                Some(request) => *request,
                None => match self.fetch(qp, env) {
                    Fetched::Request => continue,
                    Fetched::Nothing => return Some(TxState::Idle),
                    Fetched::Full => {
                        self.stalled = true;
                        return Some(TxState::Idle);
                    }
                    Fetched::Switched => return None,
                },
            };
            let step = self.send_request::<SELECTIVE>(qp, &request, turn, env);
            match step {
                SendStep::Sent => self.on_request_sent(qp, request.work, env),
                SendStep::Stop(state) => {
                    self.stalled = matches!(state, TxState::Idle | TxState::Window);
                    self.end_failed_oldest(qp, env);
                    return Some(state);
                }
            }
            if qp.state == QpState::Err || qp.state == QpState::Sqe {
                return Some(TxState::More);
            }
        }
    }

    /// Sends what the limits allow of the next request.
    #[inline(always)]
    fn send_request<const SELECTIVE: bool>(
        &mut self,
        qp: &QpShared,
        request: &InflightWqe,
        turn: &mut SendTurn<'_>,
        env: &mut Env<'_>,
    ) -> SendStep {
        match request.work {
            _ if request.fail.is_some() => SendStep::Stop(TxState::Idle),
            _ if !SELECTIVE && qp.id.qp_type == QpType::Ud => self.send_datagram(qp, request, turn, env),
            Work::Send | Work::Write => self.send_message::<SELECTIVE>(qp, request, turn, env),
            Work::Read => self.send_read(qp, request, turn, env),
            Work::Atomic => self.send_atomic(qp, request, turn, env),
            Work::Local => self.run_local(qp, request, turn, env),
        }
    }

    /// All of a request was sent. Requests of UC and UD end here, because no acknowledgement comes for them.
    fn on_request_sent(&mut self, qp: &QpShared, work: Work, env: &mut Env<'_>) {
        self.recovery.on_request_sent();
        if !qp.id.qp_type.is_reliable() {
            self.retire_oldest(qp, env);
            self.check_drained(qp, env);
        } else if work == Work::Local {
            self.retire_local(qp, env);
        }
    }

    /// Takes the next work request from the shared queue, checks it, and puts it in flight.
    #[inline(always)]
    fn fetch(&mut self, qp: &mut QpShared, env: &mut Env<'_>) -> Fetched {
        if qp.state != QpState::Rts || !self.sq_active {
            return Fetched::Nothing;
        }
        if self.sel.switch_due {
            return if self.switch_family(qp, env) { Fetched::Switched } else { Fetched::Full };
        }
        let r = &mut *self;
        if !r.recovery.has_room() && !r.recovery.grow() {
            return Fetched::Full;
        }
        debug_assert!(r.recovery.has_room(), "a work request that is taken has a place");
        let mut wqe = SendWqe::default();
        let (sq_index, is_well_formed) = match r.sq.fetch(&mut wqe, r.recovery.sge_places()) {
            Fetch::Taken(index) => (index, true),
            Fetch::Malformed(index) => (index, false),
            Fetch::Empty => {
                r.sq_active = !r.sq.try_idle();
                return Fetched::Nothing;
            }
            Fetch::Corrupt => {
                env.fx.count(Reason::QueueCorrupt);
                self.enter_fatal(qp, env);
                return Fetched::Nothing;
            }
        };
        let checked = if is_well_formed { self.check_wqe(qp, &wqe) } else { Err(BAD_REQUEST) };
        self.put_in_flight(qp, &mut wqe, sq_index, checked);
        Fetched::Request
    }

    /// Takes the next work request, if there is one that may be taken: for a turn that looks at its bytes first.
    pub(crate) fn take_next(&mut self, qp: &mut QpShared, env: &mut Env<'_>) {
        // What stops it stops the turn, too.
        let _: Fetched = self.fetch(qp, env);
    }

    #[inline(always)]
    fn put_in_flight(
        &mut self,
        qp: &QpShared,
        wqe: &mut SendWqe,
        sq_index: u32,
        checked: Result<CheckedRequest, (WcStatus, Reason)>,
    ) {
        let has_entries = checked.is_ok() && wqe.flags & send_flags::INLINE as u16 == 0;
        wqe.num_sge = if has_entries { wqe.num_sge } else { 0 };
        let (work, opcode, length, fail) = match checked {
            Ok((work, opcode, length)) => (work, opcode, length, None),
            Err(fail) => {
                let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).unwrap_or(WrOpcode::Send);
                (Work::Send, opcode, 0, Some(fail))
            }
        };
        let packets = match work {
            Work::Local => 0,
            Work::Atomic => 1,
            Work::Send | Work::Write | Work::Read => length.div_ceil(qp.mtu).max(1),
        };
        debug_assert!(u64::from(length) <= MESSAGE_BYTES_MAX && (fail.is_none() || packets == 1));
        let new = NewRequest { wqe, work, opcode, sq_index, packets, length, fail };
        self.recovery.push(new);
    }

    /// Checks a copied work request, and returns its operation and its bytes (IBA 10.8.2, 11.4.1.1).
    #[inline(always)]
    fn check_wqe(&self, qp: &QpShared, wqe: &SendWqe) -> Result<CheckedRequest, (WcStatus, Reason)> {
        let opcode = WrOpcode::from_number(u32::from(wqe.opcode)).ok_or(BAD_REQUEST)?;
        let work = Work::of(opcode);
        if !work.is_carried_by(qp.id.qp_type, opcode) {
            return Err(BAD_REQUEST);
        }
        let length = if wqe.flags & send_flags::INLINE as u16 != 0 {
            if work.has_response() || wqe.length > self.sq.spec().max_inline() {
                return Err(BAD_REQUEST);
            }
            u64::from(wqe.length)
        } else {
            if u32::from(wqe.num_sge) > self.sq.spec().max_sge() {
                return Err(BAD_REQUEST);
            }
            self.recovery.sges_written(wqe.num_sge).iter().map(|sge| u64::from(sge.length)).sum()
        };
        if work == Work::Local {
            return if length == 0 { Ok((work, opcode, 0)) } else { Err(BAD_REQUEST) };
        }
        let max = if qp.id.qp_type == QpType::Ud { u64::from(qp.mtu) } else { MESSAGE_BYTES_MAX };
        if length > max || (work == Work::Atomic && length != 8) {
            return Err(TOO_LONG);
        }
        if work.has_response() && qp.attr.max_rd_atomic == 0 {
            return Err(BAD_REQUEST);
        }
        Ok((work, opcode, length as u32))
    }

    /// Changes the family if nothing is in flight. False if it must be changed and requests are still in flight: no new one may
    /// be begun then.
    #[cold]
    pub(crate) fn switch_family(&mut self, qp: &mut QpShared, env: &Env<'_>) -> bool {
        if !self.recovery.is_empty() {
            return false;
        }
        debug_assert!(self.sel.losses.is_none(), "a record without requests in flight");
        self.stop_selective();
        self.set_family(self.sel.window > 0);
        self.set_answer_wait(qp, env);
        self.sel.answered = false;
        self.sel.acked = self.recovery.next_request_psn();
        true
    }
}
