//! Arguments and results of the calls between the engine and a queue pair, and the limits of a queue pair.
//!
//! The engine calls a [`crate::Qp`] with an [`Env`]: the time, the memory regions, a batch for frames, and an
//! [`Effects`] that receives the results (completions, events, counted reasons). A call never blocks, and keeps no
//! reference after it returns.

use crate::ack_report::AckReport;
use crate::copies::CopyExecutor;
use crate::failure::QpFailure;
use crate::records::RecordPool;
use burst_base::verbs::{EventType, Mtu, QpCap, QpState, QpType, attr_mask as m};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, TxBatch};
use burst_mem::table::MrTable;
use burst_shm::layout::Cqe;
use burst_shm::rq::{RqConsumer, SrqConsumer};
use burst_shm::sq::SqConsumer;
use std::sync::Arc;

/// Most READs and ATOMICs of a QP outstanding, in either role. The kernel's rxe has the same number: a perftest client
/// uses the number of the server's device.
pub const RD_ATOMIC_MAX: u8 = 128;
/// Most work requests of a QP in flight. Others stay in the shared queue until an earlier one is acknowledged.
pub const INFLIGHT_WQES_MAX: u32 = 512;
/// Most scatter/gather entries of the work requests in flight of a QP.
pub const INFLIGHT_SGES_MAX: u32 = 1024;
/// A READ is requested in pieces of at most this many bytes, so that the responses cannot overrun the requester's socket buffer.
pub const READ_CHUNK_BYTES: u32 = 128 << 10;
/// A packet asks for an acknowledgement at least once in this many bytes.
pub const ACK_REQUEST_BYTES: u32 = 64 << 10;
/// Most PSNs between the oldest unacknowledged packet and the next: a quarter of the PSN space, half of what IBA allows.
pub(crate) const PSN_DISTANCE_MAX: i32 = 1 << 22;
/// Largest RC and UC message (IBA 9.7.2: 2^31 bytes).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;
/// Shortest local ACK timeout: a software peer may sleep that long.
pub const ACK_TIMEOUT_MIN: Nanos = Nanos::from_ms(1);
/// Longest wait that back-off makes. After one time-out the next wait is twice the local ACK timeout, after more four times (IBA
/// 9.7.6.1.3 allows up to four times always), because a software peer may not run for a second. A local ACK timeout longer than
/// this is not backed off, so that programs with a timeout of seconds learn of a failure soon.
pub const ACK_BACKOFF_MAX: Nanos = Nanos::from_ms(500);
/// The only partition key: full member of the default partition.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The source of a queue pair's receives.
#[allow(clippy::large_enum_variant)]
pub enum RecvQueue {
    /// The queue pair's own receive queue.
    Own(RqConsumer),
    /// A shared receive queue.
    Shared(Arc<SrqConsumer>),
    /// The shared receive queue of this XRC domain that each request names ([`Effects::xrc_srq`]).
    Xrc {
        /// Number of the domain.
        domain: u32,
    },
    /// None (`max_recv_wr` was 0).
    None,
}

/// A shared receive queue of an XRC domain.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// The domain.
    pub domain: u32,
    /// Protection domain of its receives and of the regions that requests may access.
    pub pd: u32,
    /// Completion queue of its receives.
    pub cq: u32,
    /// The ring.
    pub queue: Arc<SrqConsumer>,
}

/// Constants and queues of a new queue pair.
pub struct QpConfig {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Service type.
    pub qp_type: QpType,
    /// Protection domain number in the memory region table.
    pub pd: u32,
    /// Completion queue of sends, passed to [`Effects::complete`].
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// The application library's number for the QP, written to each completion.
    pub cookie: u32,
    /// Capacities.
    pub cap: QpCap,
    /// Largest payload of the port's packets: the MTU of UD, and the largest `path_mtu`.
    pub port_mtu: Mtu,
    /// Send queue.
    pub sq: SqConsumer,
    /// Receive queue.
    pub rq: RecvQueue,
}

/// Arguments that every call needs.
pub struct Env<'a> {
    /// Time of the call.
    pub now: Nanos,
    /// How long the received packet has waited in the port's buffer until `now`, as far as the port can tell; else 0.
    pub waited: Nanos,
    /// Memory regions.
    pub mem: &'a MrTable,
    /// Batch to which frames are appended. Its spans point into application memory: send the batch before the
    /// completions of the same turn become visible (see [`Effects::complete`]).
    pub tx: &'a mut TxBatch,
    /// Receiver of results.
    pub fx: &'a mut dyn Effects,
}

impl Env<'_> {
    /// When the received packet came to this host.
    #[inline]
    pub fn arrived_at(&self) -> Nanos {
        Nanos(self.now.0.saturating_sub(self.waited.0))
    }
}

/// Events on the path of a QP that congestion control needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The peer reported a lost packet, or a gap in its answers shows one.
    Loss,
    /// No answer in time.
    Timeout,
    /// A congestion notification packet arrived.
    Cnp,
    /// What an unreliable queue pair has sent is not answered in time. It does not count as in flight any more, and says nothing
    /// of the path: the peer's queue pair may be gone. A [`Signal::Timeout`] in the same call counts only if nothing else that
    /// was sent to the peer is acknowledged either.
    Unanswered,
    /// The last loss was none: each packet that was sent again had arrived.
    Spurious,
}

/// How full the receive buffers of the port are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPressure {
    /// 0 free, 1 over half full, 2 over three quarters.
    pub level: u8,
    /// Packets lost there, counted modulo 2^32; or the times that some were.
    pub lost: u32,
}

/// Receives the results of a call.
pub trait Effects {
    /// A work request ended. `solicited`: the peer asked for an event, or the completion is an error.
    ///
    /// A completion during `poll_tx` of a UC or UD queue pair belongs to frames that are still in `Env::tx`. It must not
    /// become visible to the application before the batch has been passed to the port.
    fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool);
    /// The queue pair raised an asynchronous event.
    fn event(&mut self, qpn: Qpn, event: EventType);
    /// The queue pair, or its send queue, has ended in error.
    fn failed(&mut self, _failure: QpFailure) {}
    /// A counter of a reason rises by one.
    fn count(&mut self, reason: Reason);
    /// The flow of address handle `ah` of protection domain `pd`.
    fn ah_flow(&self, pd: u32, ah: u32) -> Option<Flow>;
    /// The shared receive queue `srqn`, if it belongs to XRC domain `domain`.
    fn xrc_srq(&self, _domain: u32, _srqn: u32) -> Option<&XrcSrq> {
        None
    }
    /// Something happened that congestion control needs.
    fn congestion(&mut self, signal: Signal);
    /// An acknowledgement of the selective repeat family says this of the path.
    fn acknowledged(&mut self, _report: &AckReport) {}
    /// A packet was answered after this time. Of each queue pair one packet at a time is measured.
    fn round_trip(&mut self, _elapsed: Nanos) {}
    /// So many bytes are not in flight any more ([`crate::Qp::inflight_bytes`]) and were not acknowledged; below 0: bytes were
    /// acknowledged that did not count as in flight. What else the bytes in flight lose in the call was acknowledged, unless the
    /// queue pair has failed in it.
    fn unacknowledged(&mut self, _bytes: i64) {}
    /// How full the receive buffers of this host's port are.
    fn host_pressure(&self) -> HostPressure {
        HostPressure::default()
    }
    /// Shortest wait until a probe of the standard family. Queue pairs that have been given a timer for it each would keep a
    /// worker busy if they were many.
    fn probe_wait_min(&self) -> Nanos {
        Nanos(0)
    }
    /// The records of loss recovery; `None` if there are none, so that queue pairs go back to the first missing packet.
    fn records(&mut self) -> Option<&mut RecordPool> {
        None
    }
    /// Who places the bytes of queue pairs that have executors ([`crate::Qp::use_copies`]).
    fn copies(&mut self) -> Option<&mut dyn CopyExecutor> {
        None
    }
    /// Whether a copy that the queue pair has begun has not ended.
    fn has_open_copies(&self) -> bool {
        false
    }
    /// The peer does not answer packets of the selective repeat family. The queue pair uses the standard family from now on.
    fn selective_refused(&mut self) {}
}

/// Limits of one turn. Each field is counted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxBudget {
    /// Work requests (and read request pieces).
    pub wqes: u32,
    /// Payload bytes; the last packet may overshoot.
    pub bytes: u64,
    /// Bytes that may be added to those in flight: payload sent plus READ responses requested. A QP with nothing in
    /// flight may exceed it by one packet (or one READ piece) unless it is 0.
    pub window_bytes: u64,
}

/// Why `poll_tx` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Nothing to send until a packet, a doorbell or a timer.
    Idle,
    /// Budget or batch is used up: call again.
    More,
    /// The window is closed: call again when it has opened. An acknowledgement makes `wants_tx` true as well.
    Window,
    /// Waiting for `next_deadline` (receiver not ready).
    Timer,
}

/// Why `modify` was refused. Nothing has changed then. All but [`ModifyError::NoMemory`] (`ENOMEM`) are `EINVAL` in verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// `cur_qp_state` does not match, or there is no such transition.
    Transition {
        /// State before.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Mask bits of required attributes that are missing.
    Missing(u32),
    /// Mask bits of attributes that this transition does not allow.
    NotAllowed(u32),
    /// Mask bit of an attribute whose value is out of range.
    Value(u32),
    /// The address vector came without a flow: its path could not be resolved.
    NoFlow,
    /// The system gives no memory for the requests in flight, or for the path to the peer.
    NoMemory,
}

/// The names of attributes, by their bits in a mask.
struct AttributeNames(u32);

impl core::fmt::Display for AttributeNames {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names = [
            (m::STATE, "qp_state"),
            (m::CUR_STATE, "cur_qp_state"),
            (m::ACCESS_FLAGS, "qp_access_flags"),
            (m::PKEY_INDEX, "pkey_index"),
            (m::PORT, "port_num"),
            (m::QKEY, "qkey"),
            (m::AV, "ah_attr"),
            (m::PATH_MTU, "path_mtu"),
            (m::TIMEOUT, "timeout"),
            (m::RETRY_CNT, "retry_cnt"),
            (m::RNR_RETRY, "rnr_retry"),
            (m::RQ_PSN, "rq_psn"),
            (m::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
            (m::ALT_PATH, "alt_ah_attr"),
            (m::MIN_RNR_TIMER, "min_rnr_timer"),
            (m::SQ_PSN, "sq_psn"),
            (m::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
            (m::PATH_MIG_STATE, "path_mig_state"),
            (m::DEST_QPN, "dest_qp_num"),
        ];
        let mut found = names.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        write!(f, "{}", found.next().unwrap_or("an attribute"))?;
        found.try_for_each(|name| write!(f, ", {name}"))
    }
}

impl core::fmt::Display for ModifyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ModifyError::Transition { from, to } => {
                write!(f, "a queue pair in {from:?} cannot be moved to {to:?}")
            }
            ModifyError::Missing(mask) => {
                write!(f, "this transition requires {} (mask {mask:#x})", AttributeNames(*mask))
            }
            ModifyError::NotAllowed(mask) => {
                write!(f, "this transition does not allow {} (mask {mask:#x})", AttributeNames(*mask))
            }
            ModifyError::Value(m::PATH_MTU) => {
                write!(f, "path_mtu is larger than the MTU of the interface allows (mask {:#x})", m::PATH_MTU)
            }
            ModifyError::Value(mask) => {
                write!(f, "the value of {} is out of range (mask {mask:#x})", AttributeNames(*mask))
            }
            ModifyError::NoFlow => write!(f, "the address vector could not be resolved to a path"),
            ModifyError::NoMemory => {
                write!(
                    f,
                    "the system gives no memory for the queue pair's requests in flight, or for the path to its peer"
                )
            }
        }
    }
}

impl std::error::Error for ModifyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_modify_has_a_sentence_with_its_mask_or_states() {
        let transition = ModifyError::Transition { from: QpState::Reset, to: QpState::Rts };
        assert_eq!(transition.to_string(), "a queue pair in Reset cannot be moved to Rts");
        for error in [ModifyError::Missing(0x28000), ModifyError::NotAllowed(0x28000), ModifyError::Value(0x28000)] {
            assert!(error.to_string().contains("0x28000"), "{error}");
        }
        assert!(ModifyError::Missing(0x28000).to_string().contains("min_rnr_timer, max_dest_rd_atomic"));
        assert!(ModifyError::Value(0x100).to_string().contains("larger than the MTU of the interface"));
        assert!(ModifyError::Value(0).to_string().contains("an attribute"));
        assert!(ModifyError::NoFlow.to_string().contains("path"));
        assert!(ModifyError::NoMemory.to_string().contains("no memory"));
    }
}
