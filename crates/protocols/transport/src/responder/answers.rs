//! Sends the responder's pending answers in PSN order: acknowledgements, NAKs, READ and ATOMIC responses (IBA 9.7.5.1.1).
//!
//! An acknowledgement that precedes all pending responses is sent first. A later one, and a NAK, wait for the responses. They
//! need neither budget nor window. READ responses are limited by the turn's bytes; their memory is looked up once in a turn.

use crate::api::{Env, TxBudget};
use crate::failure::{FailedPart, QpFailure};
use crate::opcodes::{self, selective_form};
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::repair_queue::READ_REPAIR_DUE;
use crate::responder::resource::ResponderResource;
use crate::responder::selective::acks::selective_response_head;
use crate::rtt::RttEstimate;
use burst_base::verbs::{WcStatus, access};
use burst_base::{Psn, Reason};
use burst_mem::Peer;
use burst_span::Span;
use burst_wire::{Aeth, AtomicAckEth, Bth, HeadBuf, NakCode, OpKind, Opcode, Position, Seth, Syndrome};

/// State of one turn of answers.
pub(crate) struct AnswerTurn<'t> {
    pub(crate) budget: &'t mut TxBudget,
    /// Round trips of the path, by which responses are waited for.
    pub(crate) rtt: &'t RttEstimate,
}

impl Responder {
    /// Sends pending answers; false if budget or batch ended before all were sent.
    pub(crate) fn poll_answers(&mut self, qp: &mut QpShared, turn: &mut AnswerTurn<'_>, env: &mut Env<'_>) -> bool {
        if self.pending & READ_REPAIR_DUE != 0 && !self.push_repairs(qp, turn, env) {
            return false;
        }
        if let Some((psn, msn)) = self.ack_due
            && (self.sel.active
                || self.oldest_pending().is_none_or(|resource| psn.is_before(resource.psn.add(resource.next))))
            && !self.push_due_ack(qp, (psn, msn), env)
        {
            return false;
        }
        while let Some(resource) = self.oldest_pending().copied() {
            let done = match resource.kind {
                OpKind::ReadRequest => self.push_read_response(qp, resource, turn, env),
                _ => self.push_atomic_response(qp, resource, env),
            };
            if !done && self.parked > 0 {
                break;
            }
            if !done {
                return false;
            }
            if self.continue_rest() {
                continue;
            }
            debug_assert!(self.pending > 0);
            self.pending = self.pending.saturating_sub(1);
        }
        if let Some(due) = self.ack_due
            && !self.push_due_ack(qp, due, env)
        {
            return false;
        }
        self.push_due_nak(qp, env)
    }

    /// Sends the pending acknowledgement. False if the batch is full.
    #[inline(always)]
    fn push_due_ack(&mut self, qp: &QpShared, due: (Psn, u32), env: &mut Env<'_>) -> bool {
        let pushed = self.push_ack(qp, due, Syndrome::ACK, env);
        if pushed {
            self.ack_due = None;
        }
        pushed
    }

    /// Sends the NAK that is pending, if one is. False if the batch is full.
    fn push_due_nak(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        let Some((psn, syndrome)) = self.nak_due else { return true };
        let pushed = self.push_ack(qp, (psn, self.msn), syndrome, env);
        if pushed {
            self.nak_due = None;
        }
        pushed
    }

    pub(crate) fn push_ack(
        &mut self,
        qp: &QpShared,
        (psn, msn): (Psn, u32),
        syndrome: Syndrome,
        env: &mut Env<'_>,
    ) -> bool {
        if self.sel.active {
            return match syndrome {
                Syndrome::Ack { .. } => self.push_selective_ack(qp, env),
                _ => self.push_selective_answer(qp, psn, syndrome, env),
            };
        }
        let head =
            HeadBuf::new(&Bth::new(answer_opcode(qp, OpKind::Ack), qp.dest_qpn, psn)).aeth(Aeth { syndrome, msn });
        env.tx.push(&qp.flow, head.as_slice(), &[], 0)
    }

    fn push_atomic_response(&mut self, qp: &QpShared, resource: ResponderResource, env: &mut Env<'_>) -> bool {
        let opcode = answer_opcode(qp, OpKind::AtomicAck);
        let bth = |opcode| Bth::new(opcode, qp.dest_qpn, resource.psn);
        let head = match resource.selective {
            false => HeadBuf::new(&bth(opcode)),
            true => HeadBuf::new(&bth(selective_form(opcode))).seth(Seth::default()),
        };
        let head = head
            .aeth(Aeth { syndrome: Syndrome::ACK, msn: resource.msn })
            .atomic_ack(AtomicAckEth { original: resource.original });
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed && let Some(resource) = self.oldest_pending() {
            resource.next = 1;
            resource.answered = true;
        }
        pushed
    }

    /// Sends the rest of a READ's response within the budget; true when it is complete.
    fn push_read_response(
        &mut self,
        qp: &mut QpShared,
        mut resource: ResponderResource,
        turn: &mut AnswerTurn<'_>,
        env: &mut Env<'_>,
    ) -> bool {
        if qp.is_held(resource.psn) {
            self.park();
            return false;
        }
        if resource.held > resource.next {
            let is_done = resource.skip_held();
            if let Some(stored) = self.oldest_pending() {
                stored.next = resource.next;
                stored.answered |= resource.next == resource.packets;
            }
            if is_done {
                return true;
            }
        }
        let room = self.response_room(qp, &resource);
        if room.is_closed {
            self.park();
            return false;
        }
        let whole = std::mem::replace(&mut resource.end, room.end);
        let offset = resource.next * qp.mtu;
        let rest = (resource.length - offset).min((resource.end - resource.next) * qp.mtu);
        let span = if rest == 0 {
            Span::nothing()
        } else {
            let addr = resource.addr.wrapping_add(u64::from(offset));
            match env.mem.remote(
                Peer { pd: resource.pd, qpn: qp.id.qpn },
                resource.rkey,
                addr,
                rest,
                access::REMOTE_READ,
            ) {
                Ok(span) => span,
                Err(reason) => {
                    self.refuse_read(qp, &resource, reason, env);
                    return false;
                }
            }
        };
        let next = push_responses(qp, &resource, ((&span, rest), room.counts), turn, env);
        debug_assert!(next <= resource.end);
        if resource.selective {
            self.note_response_sent(qp, &resource, (next, turn.rtt), env.now);
        }
        if let Some(resource) = self.oldest_pending() {
            resource.next = next;
            resource.answered |= next == resource.packets;
        }
        if next == resource.end && next < whole {
            self.park();
        }
        next == whole
    }

    /// Answers a READ by a NAK because its region was deregistered after the request, or a page of it does not come. The queue
    /// pair goes to ERR.
    pub(crate) fn refuse_read(
        &mut self,
        qp: &mut QpShared,
        resource: &ResponderResource,
        reason: Reason,
        env: &mut Env<'_>,
    ) {
        env.fx.count(reason);
        env.fx.failed(QpFailure::of(FailedPart::PeerRequest, WcStatus::GeneralErr, reason, resource.psn));
        self.drop_pending();
        self.ack_due = None;
        self.nak_due = Some((resource.psn.add(resource.next), Syndrome::Nak(NakCode::RemoteAccess)));
        env.fx.event(qp.id.qpn, burst_base::verbs::EventType::QpAccessErr);
        self.fail(qp);
    }
}

fn answer_opcode(qp: &QpShared, kind: OpKind) -> Opcode {
    opcodes::single_opcode(qp.id.qp_type, kind)
}

/// Pushes packets of a READ's response, whose memory from packet `next` on is `span`, as far as budget and batch have room.
/// With `counts` the last before sending stops asks for an acknowledgement. Returns the packet behind them.
pub(crate) fn push_responses(
    qp: &QpShared,
    resource: &ResponderResource,
    ((span, rest), counts): ((&Span, u32), bool),
    turn: &mut AnswerTurn<'_>,
    env: &mut Env<'_>,
) -> u32 {
    let mut next = resource.next;
    while next < resource.end && turn.budget.bytes > 0 && env.tx.has_room() {
        let begin = (next - resource.next) * qp.mtu;
        let behind = span.sub(begin as usize, (rest - begin) as usize);
        // One packet of the budget is left for the one that asks.
        let most = (turn.budget.bytes - u64::from(counts)) / u64::from(qp.mtu);
        let run = push_middle_responses(qp, resource, (next, behind, most), env);
        if run > 0 {
            turn.budget.bytes -= u64::from(run * qp.mtu);
            next += run;
            continue;
        }
        let len = (rest - begin).min(qp.mtu);
        let payload = if len == 0 { None } else { Some(span.sub(begin as usize, len as usize)) };
        let stops = next + 1 == resource.end || turn.budget.bytes <= u64::from(len) || env.tx.room() == 1;
        let asks = counts && stops && next + 1 < resource.packets;
        let head = read_response_head(qp, resource, next, len, asks);
        if !env.tx.push(&qp.flow, head.as_slice(), payload.as_slice(), opcodes::pad_of(len)) {
            break;
        }
        turn.budget.bytes = turn.budget.bytes.saturating_sub(u64::from(len));
        next += 1;
    }
    next
}

/// Pushes at most `most` middle packets of a READ's response from packet `next` on, as many as the batch has room for. `rest`
/// is the memory from the payload of packet `next` on. Returns their number.
fn push_middle_responses(
    qp: &QpShared,
    resource: &ResponderResource,
    (next, rest, most): (u32, Span, u64),
    env: &mut Env<'_>,
) -> u32 {
    debug_assert!(resource.start <= next && next < resource.end);
    // In the selective repeat family the position in the whole READ counts, not that in what is sent now.
    if next == if resource.selective { 0 } else { resource.start } {
        return 0;
    }
    let count = u64::from(resource.end - next - 1).min(env.tx.room_for_run() as u64).min(most) as u32;
    if count == 0 {
        return 0;
    }
    let payload = rest.sub(0, (count * qp.mtu) as usize);
    let head = read_response_head(qp, resource, next, qp.mtu, false);
    let number = |k, head: &mut [u8; burst_frame::HEAD_MAX]| {
        Bth::set_psn(head, resource.psn.add(next + k));
        if resource.selective {
            Seth::set_index(head, Bth::LEN, next + k);
        }
    };
    if !env.tx.push_run(&qp.flow, head.as_slice(), &payload, qp.mtu as u16, number) {
        return 0;
    }
    count
}

fn read_response_head(qp: &QpShared, resource: &ResponderResource, index: u32, len: u32, asks: bool) -> HeadBuf {
    if resource.selective {
        return selective_response_head(qp, resource, index, len, asks);
    }
    let place = opcodes::position(index == resource.start, index + 1 == resource.end);
    let bth = Bth {
        pad: opcodes::pad_of(len),
        ..Bth::new(opcodes::read_response_opcode(qp.id.qp_type, place), qp.dest_qpn, resource.psn.add(index))
    };
    let head = HeadBuf::new(&bth);
    if place == Position::Middle { head } else { head.aeth(Aeth { syndrome: Syndrome::ACK, msn: resource.msn }) }
}
