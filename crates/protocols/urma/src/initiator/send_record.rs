//! A work request of this node that has no outcome, or whose outcome is not reported.

/// Where a request of this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestPhase {
    /// Its order or a fence holds it.
    Posted,
    /// It is sent.
    Issued,
    /// It was refused by RNR, and is sent again later.
    Waiting,
    /// It has an outcome, but earlier ones must be reported first.
    Done(CrStatus),
}

/// A work request of this node.
#[derive(Debug)]
pub(crate) struct SendRecord {
    pub(crate) jetty: PoolRef,
    pub(crate) dest: NodeEid,
    pub(crate) tassn: u16,
    pub(crate) opcode: TaOpcode,
    pub(crate) order: OrderTag,
    pub(crate) completion_order: bool,
    pub(crate) fence: bool,
    pub(crate) complete: bool,
    pub(crate) phase: RequestPhase,
    pub(crate) user_ctx: u64,
    pub(crate) data: WrData,
    /// Registration of the data's segment.
    pub(crate) segment: PoolRef,
    pub(crate) target: Option<Mtetah>,
    pub(crate) token: Option<u32>,
    pub(crate) memory: Option<Maetah>,
    pub(crate) operands: [u64; 2],
    pub(crate) immediate: u64,
    pub(crate) notify: Option<NotifyTarget>,
    pub(crate) channel: PoolRef,
    pub(crate) tpmsn: u32,
    /// Payload bytes sent in this attempt.
    pub(crate) sent: u32,
    /// All packets of this attempt are sent.
    pub(crate) all_sent: bool,
    /// PSN of the last packet of this attempt, when that is sent.
    pub(crate) last_psn: Option<Psn>,
    /// In ROL: the target holds it, and answers it by a TAACK.
    pub(crate) is_deferred: bool,
    pub(crate) attempt: u8,
    /// [`crate::JettyConfig::err_timeout`] of its Jetty.
    pub(crate) err_timeout: u8,
    pub(crate) rnr_tries: u8,
    /// Refusals for want of room at the target.
    pub(crate) busy_tries: u8,
    /// Bytes of the answer that have arrived.
    pub(crate) received: u32,
    /// The answer is larger than it may be, or local memory is gone.
    pub(crate) fault: Option<CrStatus>,
    /// In the stream of the Jetty: with this order number.
    pub(crate) order_number: Option<u16>,
    /// Asks for a sequence context.
    pub(crate) alloc: bool,
    /// No attempt is made any more; the target is told that it need not wait for this number.
    pub(crate) abandoned: Option<CrStatus>,
    pub(crate) prev: PoolRef,
    pub(crate) next: PoolRef,
}

impl SendRecord {
    /// Whether the answer carries data.
    pub(crate) fn is_read(&self) -> bool {
        self.opcode == TaOpcode::Read || self.opcode.is_atomic()
    }
    /// All packets are sent again, as a new message.
    pub(crate) const fn begin_attempt(&mut self) {
        (self.phase, self.sent, self.all_sent) = (RequestPhase::Issued, 0, false);
        (self.last_psn, self.is_deferred) = (None, false);
    }
    /// What it adds to the load of a lane: the bytes of its data, sent or asked for, and about those of a header.
    pub(crate) const fn load(&self) -> u64 {
        self.data.len() as u64 + 64
    }
    /// Payload bytes to send.
    pub(crate) fn payload_len(&self) -> u32 {
        if self.is_read() || self.abandoned.is_some() { 0 } else { self.data.len() }
    }
    /// Whether a transport acknowledgement completes it, in service mode ROL.
    pub(crate) fn is_fusable(&self) -> bool {
        !self.is_read() && !self.alloc
    }
    /// Whether it is issued and not answered.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.phase, RequestPhase::Issued | RequestPhase::Waiting)
    }
    /// Whether it is issued, and no packet of this attempt was sent.
    pub(crate) fn is_unsent(&self) -> bool {
        self.phase == RequestPhase::Issued && self.sent == 0 && !self.all_sent
    }
    /// Whether all packets have one head but for the offset. An order number may get its context meanwhile.
    pub(crate) const fn has_one_head(&self) -> bool {
        self.order_number.is_none() && self.abandoned.is_none()
    }
    /// Reads a part of the payload; false if the memory is gone.
    pub(crate) fn gather(&self, segments: &SegmentTable, mem: &dyn UrmaMemory, offset: u32, out: &mut [u8]) -> bool {
        match &self.data {
            WrData::Inline { bytes, .. } => {
                let from = offset as usize;
                bytes.get(from..from + out.len()).is_some_and(|bytes| {
                    out.copy_from_slice(bytes);
                    true
                })
            }
            WrData::Local(range) => {
                let addr = range.addr + u64::from(offset);
                let region = segments.held(self.segment, addr, out.len() as u32);
                region.is_some_and(|region| mem.read(region, addr, out).is_ok())
            }
        }
    }
    /// Its data, if packets of this attempt have been sent and others follow with the same head.
    #[inline]
    pub(crate) fn further_data(&self, attempt: u8) -> Option<LocalRange> {
        let WrData::Local(range) = self.data else { return None };
        let is_going_on = self.attempt == attempt && self.phase == RequestPhase::Issued && self.sent > 0;
        (is_going_on && self.has_one_head()).then_some(range)
    }
    /// The completion of the request.
    pub(crate) fn completion(&self, status: CrStatus) -> CompletionRecord {
        CompletionRecord {
            status,
            user_ctx: self.user_ctx,
            opcode: self.opcode,
            is_receive: false,
            len: self.data.len(),
            local_kind: TargetKind::Jetty,
            local_id: id_of(self.jetty),
            remote: (status != CrStatus::Success).then(|| (self.dest, self.target.map_or(0, |target| target.id))),
            immediate: 0,
        }
    }
}
use crate::api::{CompletionRecord, CrStatus, LocalRange, TargetKind, UrmaMemory, WrData};
use crate::node_eid::NodeEid;
use crate::objects::id_of;
use crate::objects::segment_table::SegmentTable;
use crate::pool::PoolRef;
use burst_base::Psn;
use burst_ubwire::{Maetah, Mtetah, NotifyTarget, OrderTag, TaOpcode};
