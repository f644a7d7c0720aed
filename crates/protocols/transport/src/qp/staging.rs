//! Turns of a queue pair whose payload may lie in memory of a device: it is staged before it is sent ([`crate::copies`]).
//!
//! A turn first asks its executor for the bytes that come next: of the request that is sent next, and of the oldest READ that is
//! answered. What is staged is sent, and no more; without a packet's bytes the requests, or the answers, wait until the executor
//! has ended copies. Frames are made as ever, with spans of the device. Before the turn ends these are replaced by spans of the
//! staged bytes.
//!
//! Payload that is sent again may not be staged any more: its frames then count as lost, their bytes are asked for, and the next
//! repetition finds them. Bytes are staged for one request or READ, and for [`STAGED_FOR`] at most: afterwards the program may
//! have changed its memory.

use crate::api::{Env, TxBudget, TxState};
use crate::copies::{PacketCuts, StagedFor};
use crate::opcodes::Work;
use crate::qp::Qp;
use crate::requester::recovery::InflightWqe;
use burst_base::verbs::{QpState, WcStatus, access, send_flags};
use burst_base::{Lkey, Nanos, Psn, Reason};
use burst_mem::Peer;
use burst_span::Span;
use burst_wire::OpKind;
use std::ops::Range;

/// Bytes that are asked for ahead of the next packet.
const AHEAD_BYTES: u32 = 128 << 10;

/// What may be sent of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagedPart {
    /// Its bytes need not be staged, as far as it matters.
    Free,
    /// So many bytes.
    Bytes(u64),
    /// Not even the next packet.
    Nothing,
}

impl StagedPart {
    /// Of `staged` bytes, of `wanted`, what fills packets of `mtu` bytes, the last one of the message excepted.
    fn of_bytes(staged: u32, wanted: u32, mtu: u32) -> StagedPart {
        debug_assert!(staged <= wanted);
        let whole = if staged == wanted { staged } else { staged / mtu * mtu };
        if whole == 0 { StagedPart::Nothing } else { StagedPart::Bytes(whole.into()) }
    }
    /// The budget for it.
    fn bound(self, bytes: u64) -> u64 {
        match self {
            StagedPart::Free => bytes,
            StagedPart::Bytes(staged) => bytes.min(staged),
            StagedPart::Nothing => 0,
        }
    }
}

impl Qp {
    /// A turn ([`Qp::poll_tx`]): answers, then requests one by one; an acknowledgement alone follows the requests.
    pub(crate) fn poll_staged_turn(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        let has_requests = self.req.wants_requests(&self.shared);
        let ack_last = has_requests && self.resp.has_only_ack_pending();
        let mut answered = true;
        if !ack_last && self.resp.has_pending() {
            let kept = if has_requests { budget.bytes / 2 } else { 0 };
            budget.bytes -= kept;
            answered = self.poll_staged_answers(budget, env);
            budget.bytes += kept;
        }
        let state = self.poll_staged_requests(budget, env);
        if ack_last && self.resp.has_pending() {
            answered = self.poll_staged_answers(budget, env);
        }
        let state = if answered { state } else { TxState::More };
        if self.wants_flush() { self.poll_flush(budget, env) } else { state }
    }

    /// Sends pending answers; false if some are left that can be sent.
    fn poll_staged_answers(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> bool {
        let part = self.stage_answer(env);
        if part == StagedPart::Nothing {
            self.resp.park();
        }
        let (first, bytes) = (env.tx.len(), part.bound(budget.bytes));
        let mut bounded = TxBudget { bytes, ..*budget };
        let answered = self.poll_responses(&mut bounded, env);
        budget.bytes -= bytes - bounded.bytes;
        self.fill_answers(first, env);
        answered
    }

    /// Sends requests, each when its bytes are staged.
    fn poll_staged_requests(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> TxState {
        loop {
            let (part, tag) = self.stage_request(env);
            if part == StagedPart::Nothing {
                self.req.stalled = true;
                return TxState::Idle;
            }
            let (first, bytes, wqes) = (env.tx.len(), part.bound(budget.bytes), budget.wqes.min(1));
            let mut bounded = TxBudget { bytes, wqes, ..*budget };
            let state = self.poll_requests(&mut bounded, env);
            let has_sent = env.tx.len() > first || bounded.wqes < wqes;
            budget.bytes -= bytes - bounded.bytes.min(bytes);
            budget.wqes -= wqes - bounded.wqes;
            budget.window_bytes = bounded.window_bytes;
            self.fill_requests(first, tag, env);
            let has_more = state == TxState::More && has_sent && env.tx.has_room();
            if !has_more || budget.wqes == 0 || budget.bytes == 0 {
                return state;
            }
        }
    }

    /// For what the bytes of this request, or READ, are staged.
    fn tag(&self, is_answer: bool, psn: Psn, now: Nanos) -> StagedFor {
        let epoch = self.shared.staging_epoch;
        StagedFor { epoch, is_answer, psn, now }
    }

    /// Asks for the bytes of the request that is sent next.
    fn stage_request(&mut self, env: &mut Env<'_>) -> (StagedPart, Option<StagedFor>) {
        if self.req.rnr_deadline != Nanos::NEVER || !matches!(self.shared.state, QpState::Rts | QpState::Sqd) {
            return (StagedPart::Free, None);
        }
        if self.req.recovery.next().is_none() && self.req.turn_due == 0 {
            self.req.take_next(&mut self.shared, env);
        }
        let Some(request) = self.req.recovery.next().copied() else { return (StagedPart::Free, None) };
        let is_message = matches!(request.work, Work::Send | Work::Write) && request.fail.is_none();
        if !is_message || request.wqe.flags & send_flags::INLINE as u16 != 0 {
            return (StagedPart::Free, None);
        }
        let tag = self.tag(false, request.first_psn, env.now);
        let offset = self.req.recovery.next_packet() * self.shared.mtu;
        let wanted = (request.length - offset.min(request.length)).min(AHEAD_BYTES);
        match self.stage_entries(&request, offset..offset + wanted, tag, env) {
            Ok(None) => (StagedPart::Free, None),
            Ok(Some(staged)) => (StagedPart::of_bytes(staged, wanted, self.shared.mtu), Some(tag)),
            Err(reason) => {
                self.req.recovery.fail_next(WcStatus::LocProtErr, reason);
                (StagedPart::Free, None)
            }
        }
    }

    /// Asks for these bytes of a request: how many of them, from the first on, are staged or need not be; `None` if none is of a
    /// device. Memory that cannot be used is left to the turn, which fails there.
    fn stage_entries(
        &self,
        request: &InflightWqe,
        bytes: Range<u32>,
        tag: StagedFor,
        env: &mut Env<'_>,
    ) -> Result<Option<u32>, Reason> {
        let (mut begin, mut ready, mut is_staged, mtu) = (0u32, 0, false, self.shared.mtu);
        for sge in self.req.recovery.sges_of(request) {
            let end = begin.saturating_add(sge.length);
            let (from, to) = (begin.max(bytes.start), end.min(bytes.end));
            let into = from.saturating_sub(begin);
            begin = end;
            if from >= to {
                continue;
            }
            let addr = sge.addr.wrapping_add(into.into());
            let Ok(span) = env.mem.local(self.shared.id.pd, Lkey(sge.lkey), addr, to - from, 0) else {
                ready = bytes.end - bytes.start;
                break;
            };
            if !span.is_device() {
                ready += to - from;
                continue;
            }
            is_staged = true;
            let cuts = PacketCuts { first: from.next_multiple_of(mtu) - from, mtu };
            let staged = stage(&span, cuts, tag, env)?;
            ready += staged;
            if staged < to - from {
                break;
            }
        }
        Ok(is_staged.then_some(ready))
    }

    /// Asks for the bytes of the oldest READ that is to be answered.
    fn stage_answer(&mut self, env: &mut Env<'_>) -> StagedPart {
        let Some(resource) = self.resp.oldest_pending().copied() else { return StagedPart::Free };
        if resource.kind != OpKind::ReadRequest || self.shared.is_held(resource.psn) {
            return StagedPart::Free;
        }
        let next = resource.next.max(resource.held.min(resource.end));
        let offset = next * self.shared.mtu;
        let wanted = resource.length.saturating_sub(offset).min((resource.end - next) * self.shared.mtu);
        let wanted = wanted.min(AHEAD_BYTES);
        let (peer, addr) =
            (Peer { pd: resource.pd, qpn: self.shared.id.qpn }, resource.addr.wrapping_add(offset.into()));
        let span = match env.mem.remote(peer, resource.rkey, addr, wanted, access::REMOTE_READ) {
            Ok(span) if wanted > 0 && span.is_device() => span,
            // The READ behind it may need bytes that are not staged.
            _ => return StagedPart::Bytes(u64::from(wanted).max(1)),
        };
        let cuts = PacketCuts { first: 0, mtu: self.shared.mtu };
        match stage(&span, cuts, self.tag(true, resource.psn, env.now), env) {
            Ok(staged) => StagedPart::of_bytes(staged, wanted, self.shared.mtu),
            Err(reason) => {
                self.resp.refuse_read(&mut self.shared, &resource, reason, env);
                self.settle_error();
                StagedPart::Free
            }
        }
    }

    /// Replaces the device's spans of answers, the frames from number `first` on.
    fn fill_answers(&mut self, first: usize, env: &mut Env<'_>) {
        let Env { tx, fx, now, .. } = env;
        let Some(executor) = fx.copies() else { return };
        tx.replace_device_spans(first, |psn, span| {
            let psn = Psn::new(psn);
            let has = |psn: Psn, of: Psn, packets: u32| (0..packets as i32).contains(&psn.diff(of));
            let resource = self.resp.resources.iter().find(|resource| has(psn, resource.psn, resource.packets))?;
            executor.staged(span, self.tag(true, resource.psn, *now))
        });
    }

    /// Replaces the device's spans of requests, the frames from number `first` on. `tag`: of the request of this turn, which may
    /// have ended.
    fn fill_requests(&mut self, first: usize, tag: Option<StagedFor>, env: &mut Env<'_>) {
        let Env { tx, fx, now, .. } = env;
        let Some(executor) = fx.copies() else { return };
        tx.replace_device_spans(first, |psn, span| {
            let request = self.req.recovery.packet_of(Psn::new(psn), self.shared.mtu);
            let tag = request.map_or(tag, |(request, ..)| Some(self.tag(false, request.first_psn, *now)))?;
            executor.staged(span, tag)
        });
    }
}

/// Asks the executor for bytes of a device: how many from the first on are staged.
fn stage(span: &Span, cuts: PacketCuts, tag: StagedFor, env: &mut Env<'_>) -> Result<u32, Reason> {
    let executor = env.fx.copies().ok_or(Reason::CopyFailed)?;
    executor.stage(span, cuts, tag).map_err(|_| Reason::CopyFailed)
}
