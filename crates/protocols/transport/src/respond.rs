//! Sends the responder's pending answers in PSN order: acknowledgements, NAKs, READ and ATOMIC responses (IBA 9.7.5.1.1).
//!
//! An acknowledgement that precedes all pending responses is sent first. A later one, and a NAK, wait for the responses. They
//! need neither budget nor window. READ responses are limited by the turn's bytes; their memory is looked up once in a turn.

use crate::api::{Env, TxBudget};
use crate::head;
use crate::qp::Qp;
use crate::repair_queue::READ_REPAIR_DUE;
use crate::responder::READ_ACK_DUE;
use crate::responder_resource::ResponderResource;
use crate::selective_answers::selective_form;
use burst_base::verbs::access;
use burst_base::{Psn, Reason};
use burst_mem::Peer;
use burst_span::Span;
use burst_wire::{Aeth, AtomicAckEth, Bth, HeadBuf, NakCode, OpKind, Opcode, Position, Seth, Syndrome};

impl Qp {
    /// Sends pending answers; false if budget or batch ended before all were sent.
    pub(crate) fn poll_responses(&mut self, budget: &mut TxBudget, env: &mut Env<'_>) -> bool {
        if self.resp.pending & READ_ACK_DUE != 0 && !self.push_read_ack(env) {
            return false;
        }
        if self.resp.pending & READ_REPAIR_DUE != 0 && !self.push_repairs(budget, env) {
            return false;
        }
        if let Some((psn, msn)) = self.resp.ack_due
            && (self.resp.sel.active
                || self.resp.oldest_pending().is_none_or(|resource| psn.is_before(resource.psn.add(resource.next))))
        {
            if !self.push_ack(psn, msn, Syndrome::ACK, env) {
                return false;
            }
            self.resp.ack_due = None;
        }
        while let Some(resource) = self.resp.oldest_pending().copied() {
            let done = match resource.kind {
                OpKind::ReadRequest => self.push_read_response(resource, budget, env),
                _ => self.push_atomic_response(resource, env),
            };
            if !done && self.resp.parked > 0 {
                break;
            }
            if !done {
                return false;
            }
            if self.resp.continue_rest() {
                continue;
            }
            debug_assert!(self.resp.pending > 0);
            self.resp.pending = self.resp.pending.saturating_sub(1);
        }
        if let Some((psn, msn)) = self.resp.ack_due {
            if !self.push_ack(psn, msn, Syndrome::ACK, env) {
                return false;
            }
            self.resp.ack_due = None;
        }
        if let Some((psn, syndrome)) = self.resp.nak_due {
            if !self.push_ack(psn, self.resp.msn, syndrome, env) {
                return false;
            }
            self.resp.nak_due = None;
        }
        true
    }

    /// Sends the pending acknowledgement before the queue pair goes to RESET or ERR or is destroyed. A program may end as soon as
    /// it has its last message, and the sender must not see an error for a message that arrived.
    pub fn send_pending_ack(&mut self, env: &mut Env<'_>) {
        if let Some((psn, msn)) = self.resp.ack_due
            && self.resp.has_only_ack_pending()
            && self.push_ack(psn, msn, Syndrome::ACK, env)
        {
            self.resp.ack_due = None;
        }
    }

    fn answer_opcode(&self, kind: OpKind) -> Opcode {
        head::single_opcode(self.id.qp_type, kind)
    }

    fn push_ack(&mut self, psn: Psn, msn: u32, syndrome: Syndrome, env: &mut Env<'_>) -> bool {
        if self.resp.sel.active {
            return match syndrome {
                Syndrome::Ack { .. } => self.push_selective_ack(env),
                _ => self.push_selective_answer(psn, syndrome, env),
            };
        }
        let head =
            HeadBuf::new(&Bth::new(self.answer_opcode(OpKind::Ack), self.dest_qpn, psn)).aeth(Aeth { syndrome, msn });
        env.tx.push(&self.flow, head.as_slice(), &[], 0)
    }

    fn push_atomic_response(&mut self, resource: ResponderResource, env: &mut Env<'_>) -> bool {
        let opcode = self.answer_opcode(OpKind::AtomicAck);
        let bth = |opcode| Bth::new(opcode, self.dest_qpn, resource.psn);
        let head = match resource.selective {
            false => HeadBuf::new(&bth(opcode)),
            true => HeadBuf::new(&bth(selective_form(opcode))).seth(Seth::default()),
        };
        let head = head
            .aeth(Aeth { syndrome: Syndrome::ACK, msn: resource.msn })
            .atomic_ack(AtomicAckEth { original: resource.original });
        let pushed = env.tx.push(&self.flow, head.as_slice(), &[], 0);
        if pushed && let Some(resource) = self.resp.oldest_pending() {
            resource.next = 1;
            resource.answered = true;
        }
        pushed
    }

    /// Sends the rest of a READ's response within the budget; true when it is complete.
    fn push_read_response(
        &mut self,
        mut resource: ResponderResource,
        budget: &mut TxBudget,
        env: &mut Env<'_>,
    ) -> bool {
        if resource.held > resource.next {
            let is_done = resource.skip_held();
            if let Some(stored) = self.resp.oldest_pending() {
                stored.next = resource.next;
                stored.answered |= resource.next == resource.packets;
            }
            if is_done {
                return true;
            }
        }
        let room = self.response_room(&resource);
        if room.is_closed {
            self.resp.park();
            return false;
        }
        let whole = std::mem::replace(&mut resource.end, room.end);
        let offset = resource.next * self.mtu;
        let rest = (resource.length - offset).min((resource.end - resource.next) * self.mtu);
        let span = if rest == 0 {
            Span::nothing()
        } else {
            let addr = resource.addr.wrapping_add(u64::from(offset));
            match env.mem.remote(
                Peer { pd: resource.pd, qpn: self.id.qpn },
                resource.rkey,
                addr,
                rest,
                access::REMOTE_READ,
            ) {
                Ok(span) => span,
                Err(reason) => {
                    self.refuse_read(&resource, reason, env);
                    return false;
                }
            }
        };
        let next = self.push_responses(&resource, (&span, rest), room.counts, budget, env);
        debug_assert!(next <= resource.end);
        if resource.selective {
            self.note_response_sent(&resource, next, env.now);
        }
        if let Some(resource) = self.resp.oldest_pending() {
            resource.next = next;
            resource.answered |= next == resource.packets;
        }
        if next == resource.end && next < whole {
            self.resp.park();
        }
        next == whole
    }

    /// Pushes packets of a READ's response, whose memory from packet `next` on is `span`, as far as budget and batch have room.
    /// With `counts` the last before sending stops asks for an acknowledgement. Returns the packet behind them.
    pub(crate) fn push_responses(
        &self,
        resource: &ResponderResource,
        (span, rest): (&Span, u32),
        counts: bool,
        budget: &mut TxBudget,
        env: &mut Env<'_>,
    ) -> u32 {
        let mut next = resource.next;
        while next < resource.end && budget.bytes > 0 && env.tx.has_room() {
            let begin = (next - resource.next) * self.mtu;
            let behind = span.sub(begin as usize, (rest - begin) as usize);
            // One packet of the budget is left for the one that asks.
            let most = (budget.bytes - u64::from(counts)) / u64::from(self.mtu);
            let run = self.push_middle_responses(resource, next, behind, most, env);
            if run > 0 {
                budget.bytes -= u64::from(run * self.mtu);
                next += run;
                continue;
            }
            let len = (rest - begin).min(self.mtu);
            let payload = if len == 0 { None } else { Some(span.sub(begin as usize, len as usize)) };
            let stops = next + 1 == resource.end || budget.bytes <= u64::from(len) || env.tx.room() == 1;
            let asks = counts && stops && next + 1 < resource.packets;
            let head = self.read_response_head(resource, next, len, asks);
            if !env.tx.push(&self.flow, head.as_slice(), payload.as_slice(), head::pad_of(len)) {
                break;
            }
            budget.bytes = budget.bytes.saturating_sub(u64::from(len));
            next += 1;
        }
        next
    }

    /// Pushes at most `most` middle packets of a READ's response from packet `next` on, as many as the batch has room for. `rest`
    /// is the memory from the payload of packet `next` on. Returns their number.
    fn push_middle_responses(
        &self,
        resource: &ResponderResource,
        next: u32,
        rest: Span,
        most: u64,
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
        let payload = rest.sub(0, (count * self.mtu) as usize);
        let head = self.read_response_head(resource, next, self.mtu, false);
        let number = |k, head: &mut [u8; burst_frame::HEAD_MAX]| {
            Bth::set_psn(head, resource.psn.add(next + k));
            if resource.selective {
                Seth::set_index(head, Bth::LEN, next + k);
            }
        };
        if !env.tx.push_run(&self.flow, head.as_slice(), &payload, self.mtu as u16, number) {
            return 0;
        }
        count
    }

    fn read_response_head(&self, resource: &ResponderResource, index: u32, len: u32, asks: bool) -> HeadBuf {
        if resource.selective {
            return self.selective_response_head(resource, index, len, asks);
        }
        let place = head::position(index == resource.start, index + 1 == resource.end);
        let bth = Bth {
            pad: head::pad_of(len),
            ..Bth::new(head::read_response_opcode(self.id.qp_type, place), self.dest_qpn, resource.psn.add(index))
        };
        let head = HeadBuf::new(&bth);
        if place == Position::Middle { head } else { head.aeth(Aeth { syndrome: Syndrome::ACK, msn: resource.msn }) }
    }

    /// Answers a READ by a NAK because its region was deregistered after the request, or a page of it does not come. The queue
    /// pair goes to ERR.
    pub(crate) fn refuse_read(&mut self, resource: &ResponderResource, reason: Reason, env: &mut Env<'_>) {
        env.fx.count(reason);
        self.resp.drop_pending();
        self.resp.ack_due = None;
        self.resp.nak_due = Some((resource.psn.add(resource.next), Syndrome::Nak(NakCode::RemoteAccess)));
        env.fx.event(self.id.qpn, burst_base::verbs::EventType::QpAccessErr);
        self.enter_error();
    }
}
