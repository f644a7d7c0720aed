//! Calls of a queue pair whose bytes are placed by an executor: what says that they are there waits for them ([`crate::trail`]).

use crate::api::{Env, INFLIGHT_WQES_MAX, TxBudget, TxState};
use crate::copies::{CopyExecutor, CopyProgress};
use crate::failure::{FailedPart, QpFailure};
use crate::qp::Qp;
use crate::trail::{CALL_COMPLETIONS, DueAnswers, END_COMPLETIONS, Trail, TrailingEffects};
use burst_base::heap::OutOfMemory;
use burst_base::verbs::{EventType, QpState, WcStatus};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, MiddleRun, RxFrame};
use burst_wire::{NakCode, OpKind, Packet, Syndrome};

/// After how long it is looked again whether a timer may fire that found no room.
const TIMER_REST: Nanos = Nanos::from_ms(1);

/// What a call needs.
#[derive(Clone, Copy)]
struct CallNeeds {
    /// Room for so many completions besides those that are owed ([`Qp::owed_completions`]).
    completions: usize,
    /// Room for copies.
    places: bool,
}

impl CallNeeds {
    const ACKNOWLEDGEMENT: CallNeeds = CallNeeds { completions: END_COMPLETIONS, places: false };
    const RESPONSE: CallNeeds = CallNeeds { places: true, ..CallNeeds::ACKNOWLEDGEMENT };
    // So many may be owed afterwards, and what ends them must have room, too.
    const TURN: CallNeeds = CallNeeds { completions: CALL_COMPLETIONS + END_COMPLETIONS, places: false };
    const REQUEST: CallNeeds = CallNeeds { places: true, ..CallNeeds::TURN };
}

/// The answers of a queue pair that trails, to its calls.
impl Qp {
    /// Has its bytes placed by the executor of each call ([`crate::Effects::copies`]) from now on. What it has placed before is
    /// there: nothing waits for that.
    ///
    /// # Errors
    /// There is no memory for what waits.
    pub fn use_copies(&mut self) -> Result<(), OutOfMemory> {
        if self.shared.trails {
            return Ok(());
        }
        self.shared.trail = Some(Box::new(Trail::new()?));
        self.shared.trails = true;
        Ok(())
    }

    /// Whether something waits for copies.
    pub fn is_trailing(&self) -> bool {
        self.shared.trail.as_ref().is_some_and(|trail| trail.is_open())
    }

    /// Copies have ended: what waited for them leaves.
    pub fn on_copies(&mut self, progress: CopyProgress, env: &mut Env<'_>) {
        if !self.shared.trails {
            return;
        }
        // Bytes may be staged for which it has waited.
        self.req.stalled = false;
        self.resp.unpark();
        let Some(trail) = self.shared.trail.as_mut().filter(|trail| trail.is_open()) else { return };
        let due = trail.advance(progress, env.fx);
        let fails = trail.fails_by(progress);
        self.shared.held_from = trail.is_open().then_some(trail.limit.0);
        self.take_due(due);
        if fails {
            self.fail_copies(env);
        }
    }

    /// Makes the answers pending that may be sent now.
    fn take_due(&mut self, due: DueAnswers) {
        self.resp.ack_due = due.ack.or(self.resp.ack_due);
        self.resp.nak_due = due.nak.or(self.resp.nak_due);
        self.resp.unpark();
    }

    /// A copy has failed: what waits for it ends in error, and the queue pair with it.
    #[cold]
    fn fail_copies(&mut self, env: &mut Env<'_>) {
        let Some(trail) = &mut self.shared.trail else { return };
        let (psn, msn) = trail.limit;
        let is_said = trail.fail(env.fx);
        self.shared.held_from = None;
        if !is_said && self.resp.recv.loaded {
            // Its message has not come whole.
            let (status, reason) = (WcStatus::LocProtErr, Reason::CopyFailed);
            self.resp.complete_receive_error(&self.shared, status, reason, env);
        } else if !is_said {
            env.fx.count(Reason::CopyFailed);
        }
        if !matches!(self.shared.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return;
        }
        env.fx.failed(QpFailure::of(FailedPart::PeerRequest, WcStatus::LocProtErr, Reason::CopyFailed, psn));
        env.fx.event(self.shared.id.qpn, EventType::QpFatal);
        if self.shared.id.qp_type.is_reliable() && self.resp.expected != psn {
            self.resp.drop_pending();
            (self.resp.expected, self.resp.msn, self.resp.ack_due) = (psn, msn, None);
            self.resp.nak_due = Some((psn, Syndrome::Nak(NakCode::RemoteOperation)));
        }
        self.enter_error();
    }

    /// Makes a call whose completions and answers may have to wait.
    fn trailing<T>(
        &mut self,
        mut trail: Box<Trail>,
        env: &mut Env<'_>,
        call: impl FnOnce(&mut Qp, &mut Env<'_>) -> T,
    ) -> T {
        trail.begin((self.resp.expected, self.resp.msn));
        self.shared.held_from = trail.is_open().then_some(trail.limit.0);
        let mut fx = TrailingEffects { fx: &mut *env.fx, trail: &mut trail };
        let &mut Env { now, waited, mem, .. } = env;
        let result = call(self, &mut Env { now, waited, mem, tx: &mut *env.tx, fx: &mut fx });
        self.hold_answers(&mut trail);
        self.shared.trail = Some(trail);
        result
    }

    /// Takes the answers that must wait out of the responder.
    fn hold_answers(&mut self, trail: &mut Trail) {
        if !trail.is_open() {
            self.shared.held_from = None;
            return;
        }
        let limit = trail.limit.0;
        let ack = self.resp.ack_due.take_if(|(psn, _)| !psn.is_before(limit));
        let nak = self.resp.nak_due.take_if(|(psn, _)| *psn != limit || self.resp.expected != limit);
        trail.note((self.resp.expected, self.resp.msn), DueAnswers { ack, nak });
        self.shared.held_from = Some(trail.limit.0);
    }

    /// Completions that are certain to come: those of requests in flight, and of receives that were taken early.
    fn owed_completions(&self) -> usize {
        let early = self.resp.recv.early.as_ref().map_or(0, |receives| receives.len());
        let inflight = self.begun_requests().wrapping_sub(self.ended_requests()).min(INFLIGHT_WQES_MAX);
        inflight as usize + early
    }

    /// The trail, if a call may be made that needs this.
    fn take_trail(&mut self, needs: CallNeeds, env: &mut Env<'_>) -> Option<Box<Trail>> {
        let more = self.owed_completions() + needs.completions;
        // Without an executor bytes are moved at once.
        let has_room =
            !needs.places || env.fx.copies().is_none_or(|executor: &mut dyn CopyExecutor| executor.has_room());
        let mut trail = self.shared.trail.take()?;
        if !has_room || !trail.make_room(more) {
            self.shared.trail = Some(trail);
            return None;
        }
        Some(trail)
    }

    /// [`Qp::on_packet`].
    #[cold]
    #[inline(never)]
    pub(crate) fn on_packet_trailing(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let needs = match pkt.info.kind {
            OpKind::Ack | OpKind::ReadAck | OpKind::Cnp => CallNeeds::ACKNOWLEDGEMENT,
            kind if kind.is_response() => CallNeeds::RESPONSE,
            _ => CallNeeds::REQUEST,
        };
        match self.take_trail(needs, env) {
            Some(trail) => self.trailing(trail, env, |qp, env| qp.on_packet(frame, pkt, env)),
            None => env.fx.count(Reason::CopyQueueFull),
        }
    }

    /// [`Qp::on_middles`]. Without room the packets are dropped one by one.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_middles_trailing(&mut self, flow: &Flow, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        match self.take_trail(CallNeeds::REQUEST, env) {
            Some(trail) => self.trailing(trail, env, |qp, env| qp.on_middles(flow, train, env)),
            None => 0,
        }
    }

    /// [`Qp::poll_tx`].
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_tx_trailing(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        debug_assert!(budget.wqes as usize <= CALL_COMPLETIONS);
        match self.take_trail(CallNeeds::TURN, env) {
            Some(trail) => self.trailing(trail, env, |qp, env| qp.poll_staged_turn(budget, env)),
            None => TxState::Idle,
        }
    }

    /// [`Qp::on_timer`]. While a turn would do nothing, what is due rests: what a timer repeats could not leave, and a repetition
    /// would count that was none.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_timer_trailing(&mut self, env: &mut Env<'_>) {
        match self.take_trail(CallNeeds::TURN, env) {
            Some(trail) => self.trailing(trail, env, |qp, env| qp.on_timer(env)),
            None => self.postpone_timers(env.now),
        }
    }

    /// Has the timers that are due fire [`TIMER_REST`] later.
    fn postpone_timers(&mut self, now: Nanos) {
        let requester = [&mut self.req.ack_deadline, &mut self.req.rnr_deadline, &mut self.req.sel.deadline];
        for deadline in requester.into_iter().chain([&mut self.resp.response_deadline]) {
            if *deadline <= now {
                *deadline = now + TIMER_REST;
            }
        }
    }

    /// Whether a turn would do nothing because too much waits.
    #[cold]
    #[inline(never)]
    pub(crate) fn waits_for_copies(&self) -> bool {
        self.shared
            .trail
            .as_ref()
            .is_some_and(|trail| trail.is_full(self.owed_completions() + CallNeeds::TURN.completions))
    }
}
