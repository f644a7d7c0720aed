//! Outcomes of requests, and their completions in the order that the requests ask for.

/// How a request has ended.
#[derive(Clone, Copy)]
pub(crate) struct RequestOutcome {
    pub(crate) at: PoolRef,
    pub(crate) status: CrStatus,
}

impl Initiator {
    /// A request has an outcome: reports it in the order that it asks for, and issues what waited for it.
    pub(crate) fn answer(&mut self, node: &mut NodeShared, at: PoolRef, status: CrStatus, env: &mut UrmaEnv<'_>) {
        self.conclude(node, RequestOutcome { at, status }, env.now, env.fx);
    }
    pub(crate) fn conclude(
        &mut self,
        node: &mut NodeShared,
        outcome: RequestOutcome,
        now: Nanos,
        fx: &mut dyn UrmaEffects,
    ) {
        let RequestOutcome { at, status } = outcome;
        let Some(request) = self.requests.get(at) else { return };
        if !matches!(request.phase, RequestPhase::Issued | RequestPhase::Waiting) {
            return;
        }
        let jetty = request.jetty;
        self.mark_answered(node, jetty, at);
        let Some(request) = self.requests.get_mut(at) else { return };
        request.phase = RequestPhase::Done(status);
        let (is_silent, prev) = (!request.complete, request.prev);
        if request.completion_order {
            if let Some(before) = self.report_in_order(node, jetty, fx) {
                self.report_behind(node, jetty, before, fx);
            }
        } else if is_silent {
            self.report(node, at, fx);
            self.report_behind(node, jetty, prev, fx);
        } else if completes_early(node, jetty) || !self.is_behind_silent(node, prev) {
            self.report(node, at, fx);
        }
        node.objects.check_drained(jetty, fx);
        self.issue_at(node, jetty, now);
    }
    /// Whether a request without completion is outstanding at a place of the list or before it. The completion of a request
    /// says that those are done, too: the program uses their memory again and counts their room in the queue as free.
    fn is_behind_silent(&self, node: &NodeShared, at: PoolRef) -> bool {
        let Some(request) = self.requests.get(at) else { return false };
        let oldest = node.objects.jetties.get(request.jetty).and_then(|jetty| self.requests.get(jetty.oldest_silent));
        oldest.is_some_and(|oldest| request.tassn.wrapping_sub(oldest.tassn) < TASSN_WINDOW)
    }
    /// Reports what has waited for a request without completion that has left the place behind `before`: the requests from there
    /// to the next such request, unless one is before them. So each request is passed once.
    fn report_behind(&mut self, node: &mut NodeShared, jetty: PoolRef, mut before: PoolRef, fx: &mut dyn UrmaEffects) {
        while !self.is_behind_silent(node, before) {
            let mut at = self.requests.get(before).map_or_else(|| head_of(node, jetty), |request| request.next);
            let mut has_ordered = false;
            while let Some(request) = self.requests.get(at).filter(|request| request.complete) {
                node.channels.sweeps.steps += 1;
                let next = request.next;
                if matches!(request.phase, RequestPhase::Done(_)) {
                    if request.completion_order {
                        has_ordered = true;
                    } else {
                        self.report(node, at, fx);
                    }
                }
                at = next;
            }
            let reported = if has_ordered { self.report_in_order(node, jetty, fx) } else { None };
            let Some(next) = reported else { return };
            before = next;
        }
    }
    /// Reports the requests with ordered completion up to the first one without outcome. Returns the place before the first of
    /// them that asked for no completion.
    fn report_in_order(&mut self, node: &mut NodeShared, jetty: PoolRef, fx: &mut dyn UrmaEffects) -> Option<PoolRef> {
        let waits = !completes_early(node, jetty);
        let mut before_silent = None;
        loop {
            let at = node.objects.jetties.get(jetty)?.oldest_in_order;
            let Some(&SendRecord { phase, complete, completion_order, prev, .. }) = self.requests.get(at) else {
                break;
            };
            node.channels.sweeps.steps += 1;
            debug_assert!(completion_order, "a request without ordered completion is the oldest one with it");
            if !matches!(phase, RequestPhase::Done(_)) || complete && waits && self.is_behind_silent(node, prev) {
                break;
            }
            if !complete {
                before_silent.get_or_insert(prev);
            }
            self.report(node, at, fx);
        }
        before_silent
    }
    fn report(&mut self, node: &mut NodeShared, at: PoolRef, fx: &mut dyn UrmaEffects) {
        let Some(request) = self.requests.get(at) else { return };
        debug_assert!(matches!(request.phase, RequestPhase::Done(_)), "a request is reported that has no outcome");
        let reported = match request.phase {
            RequestPhase::Done(CrStatus::Success) if !request.complete => None,
            RequestPhase::Done(status) => {
                let jfc = node.objects.jetties.get(request.jetty).map(|jetty| jetty.config.jfc);
                jfc.map(|jfc| (jfc, request.completion(status)))
            }
            _ => None,
        };
        self.unlink(node, at);
        if let Some((jfc, record)) = reported {
            node.objects.complete(jfc, record, fx);
        }
    }
}

/// The oldest request of a Jetty.
fn head_of(node: &NodeShared, jetty: PoolRef) -> PoolRef {
    node.objects.jetties.get(jetty).map_or(PoolRef::NONE, |jetty| jetty.head)
}

/// Whether completions of a Jetty say nothing about earlier requests.
fn completes_early(node: &NodeShared, jetty: PoolRef) -> bool {
    node.objects.jetties.get(jetty).is_some_and(|jetty| jetty.config.outorder_comp)
}
use crate::api::{CrStatus, UrmaEffects, UrmaEnv};
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_shared::NodeShared;
use crate::objects::records::TASSN_WINDOW;
use crate::pool::PoolRef;
use burst_base::Nanos;
