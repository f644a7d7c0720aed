//! Answers to peers' requests: acknowledgements, refusals, and when a response has arrived.

/// Further requests that an acknowledgement answers at most: the field has five bits.
const JOINED_MAX: u8 = 31;

impl UrmaTarget {
    /// Answers a request by a refusal.
    pub(crate) fn refuse(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        origin: &MessageOrigin,
        refusal: UrmaRefusal,
    ) {
        env.fx.count(refusal.reason);
        let base = &origin.request.base;
        if base.mode == ServiceMode::Uno {
            return env.fx.count(Reason::UbUnreliableLost);
        }
        if refusal.is_final()
            && let Some((context, number)) = self.contexts.find(origin, None)
        {
            self.contexts.executed(context, number);
        }
        let response = acknowledge(node, origin, refusal.status, None);
        if base.mode == ServiceMode::Rol && is_fusable(base.opcode) && !base.alloc && !origin.is_deferred {
            // The packet is acknowledged when the peer has the refusal.
            withhold_for(node, origin, response);
        }
    }
    /// Tells the peer that a ROL request waits, so that the acknowledgement of its last packet need not.
    pub(crate) fn defer(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(origin) = self.inbound.get(at).map(|message| message.origin) else { return };
        let kind = ResponseKind::Deferred { psn: origin.last_psn };
        let Some(response) = respond(node, &origin, kind, None) else { return };
        if let Some(message) = self.inbound.get_mut(at) {
            message.origin.is_deferred = true;
        }
        if let Some(channel) = node.channels.get_mut(origin.channel) {
            channel.rx.refuse(origin.last_psn, response);
        }
    }
    /// A packet of a response has arrived.
    pub(crate) fn response_delivered(&mut self, node: &mut NodeShared, at: PoolRef) {
        let Some(response) = node.responses.get_mut(at) else { return };
        debug_assert!(response.unacked > 0, "a packet is acknowledged that is not in flight");
        response.unacked -= 1;
        if !response.all_sent || response.unacked > 0 {
            return;
        }
        let Some(response) = node.responses.remove(at) else { return };
        if let Some(channel) = node.channels.get_mut(response.channel) {
            channel.responses -= 1;
            if channel.rx.response_arrived(at) {
                channel.ack_due = true;
            }
        }
        if let Some((context, number)) = response.context {
            // Later requests may change the memory now: a repetition of the data would have read it again.
            self.contexts.executed(context, number);
        }
    }
}

/// The packet of a refused ROL request is acknowledged when its refusal is.
fn withhold_for(node: &mut NodeShared, origin: &MessageOrigin, response: Option<PoolRef>) {
    let Some(channel) = node.channels.get_mut(origin.channel) else { return };
    let Some(response) = response else { return channel.rx.release(origin.last_psn) };
    if channel.rx.can_withhold() {
        channel.rx.withhold(origin.last_psn);
    }
    channel.rx.refuse(origin.last_psn, response);
}

/// Answers a request by a status.
pub(crate) fn acknowledge(
    node: &mut NodeShared,
    origin: &MessageOrigin,
    status: UbStatus,
    granted: Option<u16>,
) -> Option<PoolRef> {
    if status == UbStatus::SUCCESS && granted.is_none() && join_acknowledgement(node, origin) {
        return None;
    }
    respond(node, origin, ResponseKind::Ack { status, also: 0, granted }, None)
}

/// Adds a success to the acknowledgement of the request before it, if that one is the last in the queue and not sent.
fn join_acknowledgement(node: &mut NodeShared, origin: &MessageOrigin) -> bool {
    let last = node.channels.get(origin.channel).and_then(|channel| channel.answers.back().copied());
    let Some(TxOwner::Response(at)) = last else { return false };
    let Some(response) = node.responses.get_mut(at) else { return false };
    let base = &origin.request.base;
    let ResponseKind::Ack { status: UbStatus::SUCCESS, also, granted: None } = &mut response.kind else {
        return false;
    };
    let is_next = response.unacked == 0
        && response.rc_id == base.rc_id
        && response.mode == base.mode
        && base.tassn == response.tassn.wrapping_add(u16::from(*also) + 1)
        && *also < JOINED_MAX;
    if is_next {
        *also += 1;
    }
    is_next
}

/// Queues a response. There is room: [`UrmaTarget::on_request`] accepts no more than can be answered.
pub(crate) fn respond(
    node: &mut NodeShared,
    origin: &MessageOrigin,
    kind: ResponseKind,
    context: Option<(PoolRef, u16)>,
) -> Option<PoolRef> {
    let base = &origin.request.base;
    let record = ResponseRecord {
        channel: origin.channel,
        rc_id: base.rc_id,
        tassn: base.tassn,
        mode: base.mode,
        kind,
        tpmsn: 0,
        sent: 0,
        all_sent: false,
        unacked: 0,
        context,
    };
    node.queue_response(record)
}
use crate::api::UrmaEnv;
use crate::channels::tx_window::TxOwner;
use crate::node_shared::NodeShared;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::response_record::{ResponseKind, ResponseRecord};
use crate::urma_target::UrmaTarget;
use crate::urma_target::execution::is_fusable;
use crate::urma_target::message::MessageOrigin;
use burst_base::Reason;
use burst_ubwire::{ServiceMode, UbStatus};
