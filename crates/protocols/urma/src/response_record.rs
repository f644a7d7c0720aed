//! Responses to peers that wait for their turn, or are not acknowledged.

use crate::pool::PoolRef;
use burst_base::Psn;
use burst_ubwire::{TaOpcode, UbStatus};

/// Echoes under way at most.
pub(crate) const ECHO_SLOTS: usize = 32;

/// What a response says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseKind {
    /// Outcome of this and the following `also` requests.
    Ack { status: UbStatus, also: u8, granted: Option<u16> },
    /// In ROL: the request whose last packet this was waits for its turn. The transport acknowledgement is not its answer.
    Deferred { psn: Psn },
    /// Data of memory.
    Read { addr: u64, len: u32, segment: PoolRef, granted: Option<u16> },
    /// Old value.
    Atomic { value: u64, granted: Option<u16> },
    /// A message to the echo goes back ([`crate::urma_target::echo`]).
    Echo { slot: u8, len: u32, opcode: TaOpcode, immediate: u64 },
    /// A sequence context of the peer is not needed any more.
    Disconnect { context: u16 },
}

/// A response to a peer (or another message without answer).
#[derive(Debug)]
pub(crate) struct ResponseRecord {
    pub(crate) channel: PoolRef,
    pub(crate) rc_id: u32,
    pub(crate) tassn: u16,
    pub(crate) mode: burst_ubwire::ServiceMode,
    pub(crate) kind: ResponseKind,
    pub(crate) tpmsn: u32,
    pub(crate) sent: u32,
    pub(crate) all_sent: bool,
    /// Packets sent and not acknowledged.
    pub(crate) unacked: u32,
    /// A READ of a sequence context: executed when the data have arrived.
    pub(crate) context: Option<(PoolRef, u16)>,
}

impl ResponseRecord {
    pub(crate) const fn payload_len(&self) -> u32 {
        match self.kind {
            ResponseKind::Read { len, .. } | ResponseKind::Echo { len, .. } => len,
            ResponseKind::Atomic { .. } => 8,
            ResponseKind::Ack { .. } | ResponseKind::Deferred { .. } | ResponseKind::Disconnect { .. } => 0,
        }
    }
}
