//! Packets of requests: where a message is cut, the header, the payload.

impl Initiator {
    /// Writes an unreliable message.
    pub(crate) fn write_unreliable(
        &mut self,
        node: &mut NodeShared,
        at: PoolRef,
        env: &mut UrmaEnv<'_>,
        out: &mut [u8],
    ) -> Option<UrmaTransmit> {
        let request = self.requests.get(at)?;
        let dest = request.dest;
        let head = UbHead {
            nth: node.channels.network_header(dest, NextLayer::Unreliable),
            rtph: None,
            cetph: None,
            saetph: None,
            ta: Some(TaHeader::Request(request_header(&node.objects, request, 0, false))),
        };
        let len = head.emit(&Dialect::BURST, out);
        let payload_len = request.data.len() as usize;
        let is_read = request.gather(&node.objects.segments, env.mem, 0, &mut out[len..len + payload_len]);
        let status = if is_read { CrStatus::Success } else { CrStatus::LocAccess };
        self.answer(node, at, status, env);
        is_read.then_some(UrmaTransmit::whole((dest, 0), len + payload_len))
    }
}

/// The transaction header of a packet.
#[inline]
pub(crate) fn request_header(objects: &Objects, request: &SendRecord, offset: u32, is_numbered: bool) -> TaRequest {
    let jetty = objects.jetties.get(request.jetty);
    let mode = jetty.map_or(ServiceMode::Roi, |jetty| jetty.config.service);
    let mut base = Btah::new(request.opcode, request.tassn, id_of(request.jetty));
    base.has_token = request.token.is_some();
    base.poison = request.abandoned.is_some();
    (base.order, base.completion_order) = (request.order, request.completion_order);
    (base.has_target, base.mode, base.offset) = (request.target.is_some(), mode, offset);
    (base.retry, base.alloc) = (request.attempt > 0, request.alloc);
    if is_numbered {
        base.order_number = request.order_number.unwrap_or(0);
        if let (false, Some(StreamState::Granted { context })) = (request.alloc, jetty.map(|jetty| jetty.stream.state))
        {
            (base.rc_type, base.context) = (RC_TYPE_CONTEXT, context);
        }
    }
    TaRequest {
        base,
        memory: request.memory,
        token: request.token,
        target: request.target,
        operands: request.operands,
        immediate: request.immediate,
        notify: request.notify,
    }
}
use crate::api::{CrStatus, UrmaEnv, UrmaTransmit};
use crate::initiator::Initiator;
use crate::initiator::send_record::SendRecord;
use crate::node_shared::NodeShared;
use crate::objects::records::StreamState;
use crate::objects::{Objects, id_of};
use crate::pool::PoolRef;
use burst_ubwire::{Btah, Dialect, NextLayer, RC_TYPE_CONTEXT, ServiceMode, TaHeader, TaRequest, UbHead};
