//! Missing parts of READ responses that the requester asks for: each is sent by itself, in either family.
//!
//! A requester that has lost packets of a response asks for each missing range. Losses are spread, so the ranges of one READ are
//! far apart, and several are asked for at once. They wait in a queue of their own ([`crate::responder::repair_queue`]) and leave
//! before anything that was never sent. What is in flight already needs no room in the window. A range that was not sent yet,
//! that is going to be sent anyway, or that finds the queue full is left to [`crate::responder`], which takes the response back.

use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::answers::{AnswerTurn, push_responses};
use crate::responder::repair_queue::{READ_REPAIR_DUE, Repair, RepairPart};
use crate::responder::resource::ResponderResource;
use burst_base::verbs::access;
use burst_mem::Peer;
use burst_span::Span;

impl Responder {
    /// The peer asks for packets `index..end` of this response, whose resource has `age` older ones.
    pub(crate) fn queue_repair(
        &mut self,
        qp: &QpShared,
        resource: &ResponderResource,
        (age, index, end): (usize, u32, u32),
    ) -> Repair {
        let is_sent = match resource.selective {
            true => end.saturating_mul(qp.mtu).min(resource.length) <= resource.sent_bytes,
            false => resource.answered || (resource.has_pending() && resource.rest.is_none()),
        };
        let is_pending = resource.has_pending() && end > resource.next;
        // A standard requester that goes back wants older answers first.
        let overtakes = !resource.selective && self.is_older_pending(age);
        if !is_sent || is_pending || overtakes {
            return Repair::Refused;
        }
        if self.pending & READ_REPAIR_DUE == 0 {
            self.repairs.clear();
        }
        let psn = resource.psn.add(index);
        if self.repairs.covers(psn, end - index) {
            return Repair::Waits;
        }
        if !self.repairs.add(psn, end - index, !resource.selective) {
            return Repair::Refused;
        }
        self.pending |= READ_REPAIR_DUE;
        Repair::Queued
    }

    /// Sends the ranges that wait; false if budget or batch ended before all were sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_repairs(&mut self, qp: &mut QpShared, turn: &mut AnswerTurn<'_>, env: &mut Env<'_>) -> bool {
        while let Some(part) = self.repairs.first() {
            let sent = match self.response_of(part.psn, part.count).copied() {
                Some(resource) => self.push_repair(qp, (&resource, part), turn, env),
                // The peer has asked for so many others since then that it must have this one.
                None => Some(part.count - part.sent),
            };
            let Some(sent) = sent else { return false };
            self.repairs.on_sent(sent);
            if part.sent + sent < part.count {
                return false;
            }
        }
        self.pending &= !READ_REPAIR_DUE;
        true
    }

    /// Sends packets of a range. Returns how many; `None` if its memory is not accessible any more, which ends the queue pair.
    fn push_repair(
        &mut self,
        qp: &mut QpShared,
        (resource, part): (&ResponderResource, RepairPart),
        turn: &mut AnswerTurn<'_>,
        env: &mut Env<'_>,
    ) -> Option<u32> {
        let start = part.psn.diff(resource.psn) as u32;
        let (index, end) = (start + part.sent, start + part.count);
        let part = ResponderResource { start, next: index, end, is_repair: true, ..*resource };
        let offset = index * qp.mtu;
        let len = (part.length - offset).min((part.end - index) * qp.mtu);
        let span = if len == 0 {
            Span::nothing()
        } else {
            let (peer, addr) = (Peer { pd: part.pd, qpn: qp.id.qpn }, part.addr.wrapping_add(u64::from(offset)));
            match env.mem.remote(peer, part.rkey, addr, len, access::REMOTE_READ) {
                Ok(span) => span,
                Err(reason) => {
                    self.refuse_read(qp, &part, reason, env);
                    return None;
                }
            }
        };
        Some(push_responses(qp, &part, ((&span, len), false), turn, env) - index)
    }
}
