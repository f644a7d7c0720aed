//! Messages of peers: where they come from, where their payload goes, what is known of one that is incomplete.

use crate::api::{CompletionRecord, CrStatus, TargetKind, UrmaEffects, UrmaEnv};
use crate::node_eid::NodeEid;
use crate::objects::Objects;
use crate::objects::records::PostedReceive;
use crate::objects::segment_table::SegmentTable;
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use burst_base::{Psn, Reason};
use burst_ubwire::{Rtph, TaOpcode, TaRequest};

/// The message to which a packet or refusal belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageOrigin {
    pub(crate) channel: PoolRef,
    pub(crate) peer: NodeEid,
    /// PSN of the last packet.
    pub(crate) last_psn: Psn,
    /// In ROL: the peer knows that it waits and that its answer is a TAACK.
    pub(crate) is_deferred: bool,
    pub(crate) request: TaRequest,
}

/// A packet of a request.
pub(crate) struct RequestPacket<'a> {
    pub(crate) origin: MessageOrigin,
    pub(crate) rtph: &'a Rtph,
    pub(crate) payload: &'a [u8],
}

impl RequestPacket<'_> {
    /// Whether it is all of its message.
    pub(crate) fn is_whole(&self) -> bool {
        self.rtph.last && self.origin.request.base.offset == 0
    }
}

/// Where the payload goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Registration of the segment, checked again for each packet.
    pub(crate) segment: PoolRef,
    pub(crate) addr: u64,
    pub(crate) limit: u32,
    /// Receive queue whose completion queue gets a record, and the receive that is used.
    pub(crate) jfr: Option<PoolRef>,
    pub(crate) receive: Option<PostedReceive>,
    /// The Jetty or JFR that the request named.
    pub(crate) local: (TargetKind, u32),
}

impl Placement {
    /// Nowhere yet.
    pub(crate) const NONE: Placement =
        Placement { segment: PoolRef::NONE, addr: 0, limit: 0, jfr: None, receive: None, local: (TargetKind::Jfr, 0) };
    /// Copies a part of the payload to its place.
    pub(crate) fn put(
        &self,
        segments: &SegmentTable,
        env: &mut UrmaEnv<'_>,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), UrmaRefusal> {
        if u64::from(offset) + payload.len() as u64 > u64::from(self.limit) {
            return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbTooLong));
        }
        let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
        if payload.is_empty() {
            return Ok(());
        }
        let addr = self.addr + u64::from(offset);
        // The segment may have been deregistered since the first packet.
        let region = segments.held(self.segment, addr, payload.len() as u32).ok_or(gone)?;
        env.mem.write(region, addr, payload).map_err(|_| gone)
    }
    /// The completion of the receive of a message of `len` bytes, and its queue. `None`: the message uses none.
    pub(crate) fn received(&self, origin: &MessageOrigin, len: u32) -> Option<(PoolRef, CompletionRecord)> {
        let record = CompletionRecord {
            status: CrStatus::Success,
            user_ctx: self.receive.map_or(0, |receive| receive.wr.user_ctx),
            opcode: origin.request.base.opcode,
            is_receive: true,
            len,
            local_kind: self.local.0,
            local_id: self.local.1,
            remote: Some((origin.peer, origin.request.base.rc_id)),
            immediate: origin.request.immediate,
        };
        self.jfr.map(|jfr| (jfr, record))
    }
    /// A receive that was taken cannot be filled: it ends with an error.
    pub(crate) fn fail(&self, objects: &mut Objects, env: &mut UrmaEnv<'_>) {
        self.end_receive(objects, CrStatus::LocLen, env.fx);
    }
    /// The receive that was taken ends with a status.
    pub(crate) fn end_receive(&self, objects: &mut Objects, status: CrStatus, fx: &mut dyn UrmaEffects) {
        debug_assert!(status != CrStatus::Success);
        let (Some(jfr), Some(receive)) = (self.jfr, self.receive) else { return };
        let record = CompletionRecord {
            status,
            user_ctx: receive.wr.user_ctx,
            opcode: TaOpcode::Send,
            is_receive: true,
            len: 0,
            local_kind: self.local.0,
            local_id: self.local.1,
            remote: None,
            immediate: 0,
        };
        objects.complete_receive(jfr, record, fx);
    }
}

/// Where a message of a peer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InboundPhase {
    /// Earlier requests of its context must be executed first.
    Waiting,
    /// It goes to the echo when it is complete; payload waits in the reorder buffer.
    Echo,
    /// Payload goes to its place.
    Placing(Placement),
    /// It is refused when it is complete.
    Refused(UrmaRefusal),
}

impl InboundPhase {
    /// The queue of whose receives it uses one.
    pub(crate) fn receives_of(&self) -> Option<PoolRef> {
        match self {
            InboundPhase::Placing(place) if place.receive.is_some() => place.jfr,
            _ => None,
        }
    }
}

/// A message of a peer that is incomplete or waits.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) origin: MessageOrigin,
    pub(crate) tpmsn: u32,
    pub(crate) phase: InboundPhase,
    pub(crate) received: u32,
    pub(crate) total: Option<u32>,
    /// First of its packets in the reorder buffer.
    pub(crate) held: Option<u32>,
}

impl Inbound {
    pub(crate) fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.received >= total)
    }
    /// Its place, if that is a receive of this queue.
    pub(crate) fn placement_into(&self, jfr: PoolRef) -> Option<Placement> {
        match self.phase {
            InboundPhase::Placing(place) if place.jfr == Some(jfr) && place.receive.is_some() => Some(place),
            _ => None,
        }
    }
}
