//! What a queue pair says of its end in error, and what it knows of itself: for a record that outlives it.
//!
//! The half that fails passes a [`QpFailure`] to [`crate::Effects::failed`] before anything is flushed. Everything else that a
//! reader of the record must know lies in the queue pair already ([`crate::Qp::facts`]), so packets pay nothing for it.

use burst_base::verbs::{QpState, QpType, WcStatus, WrOpcode};
use burst_base::{Nanos, Psn, Qpn, Reason, Rkey};
use burst_frame::Flow;

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedPart {
    /// A request of this end.
    Request,
    /// A request of the peer, which this end refuses.
    PeerRequest,
    /// A completion was lost, or a queue in shared memory is damaged.
    Queue,
}

/// Memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedMemory {
    /// The key.
    pub rkey: Rkey,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The right that is needed (`base::verbs::access`).
    pub right: u32,
}

/// The end of a queue pair, or of its send queue, in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFailure {
    /// What has failed.
    pub part: FailedPart,
    /// Status of the completion at this end, [`WcStatus::GeneralErr`] if there is none.
    pub status: WcStatus,
    /// Why.
    pub reason: Reason,
    /// PSN of the packet: of this end's requests the oldest without an answer, of the peer's the refused one.
    pub psn: Psn,
    /// Operation of the request, if it is this end's.
    pub opcode: Option<WrOpcode>,
    /// Bytes of the request.
    pub length: u32,
    /// Packets of the request, and how many of them were answered.
    pub packets: u32,
    /// See `packets`.
    pub answered_packets: u32,
    /// Peer's memory of an own request, own memory of a peer's.
    pub memory: Option<NamedMemory>,
    /// Repetitions that were left.
    pub retries_left: u8,
    /// Bytes of this end's requests that were answered before.
    pub answered_bytes: u64,
}

/// What a queue pair knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFacts {
    /// Number.
    pub qpn: Qpn,
    /// Service type.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Number of the peer's queue pair.
    pub dest_qpn: Qpn,
    /// Source and destination of its packets.
    pub flow: Flow,
    /// Payload bytes per packet, and the most that the port allows.
    pub mtu: u32,
    /// See `mtu`.
    pub port_mtu: u32,
    /// The PSN with which its requests began, the oldest without an answer, and the first that was never sent.
    pub first_psn: Psn,
    /// See `first_psn`.
    pub una_psn: Psn,
    /// See `first_psn`.
    pub sent_psn: Psn,
    /// The PSN with which the peer's requests were to begin, and the one that is expected next.
    pub first_expected_psn: Psn,
    /// See `first_expected_psn`.
    pub expected_psn: Psn,
    /// The program's limits: repetitions, repetitions after RNR NAKs, local ACK timeout (0: none).
    pub retry_cnt: u8,
    /// See `retry_cnt`.
    pub rnr_retry: u8,
    /// See `retry_cnt`.
    pub ack_timeout: Nanos,
    /// The code of the local ACK timeout.
    pub timeout: u8,
    /// Smoothed round trip, 0 if none was measured.
    pub rtt: Nanos,
    /// Its requests are sent in the selective repeat family.
    pub is_selective: bool,
    /// Work requests that it has begun, modulo 2^32.
    pub requests: u32,
}

impl QpFailure {
    /// A failure without a request of this end.
    pub(crate) fn of(part: FailedPart, status: WcStatus, reason: Reason, psn: Psn) -> QpFailure {
        QpFailure {
            part,
            status,
            reason,
            psn,
            opcode: None,
            length: 0,
            packets: 0,
            answered_packets: 0,
            memory: None,
            retries_left: 0,
            answered_bytes: 0,
        }
    }
}
