//! What the engine and a queue pair say to each other.
//!
//! The engine calls a [`crate::Qp`] with an [`Env`]: the time, the memory regions, a batch for frames, and an
//! [`Effects`] that takes what the protocol decides (completions, events, counted reasons). Nothing here calls up,
//! blocks or keeps a reference beyond the call.

use burst_base::verbs::{EventType, Mtu, QpCap, QpState, QpType};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, TxBatch};
use burst_mem::table::MrTable;
use burst_shm::layout::Cqe;
use burst_shm::rq::{RqConsumer, SrqConsumer};
use burst_shm::sq::SqConsumer;
use std::sync::Arc;

/// Most reads and atomics a QP may have outstanding, in either role. As many as the kernel's rxe has: perftest on a client
/// takes the number of the server's device for its own.
pub const RD_ATOMIC_MAX: u8 = 128;
/// Most work requests of a QP in flight; further ones stay in the shared queue until an earlier one is acknowledged.
pub const INFLIGHT_WQES_MAX: u32 = 256;
/// Most scatter/gather entries of in-flight work requests that are kept.
pub const INFLIGHT_SGES_MAX: u32 = 1024;
/// A READ is asked for in pieces of at most this many bytes, so that the answers cannot flood the requester's buffers.
pub const READ_CHUNK_BYTES: u32 = 128 << 10;
/// An acknowledgement is asked for at least after this many bytes.
pub const ACK_REQUEST_BYTES: u32 = 64 << 10;
/// Largest RC and UC message (IBA 9.7.2: 2^31 bytes).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;
/// Local ACK timeouts are never shorter than this: a software peer may sleep that long.
pub const ACK_TIMEOUT_MIN: Nanos = Nanos::from_ms(1);
/// After a time-out the next wait is twice the local ACK timeout, later ones four times (IBA 9.7.6.1.3 allows that much for
/// any), as long as that makes no wait longer than this: a software peer may be away for a second, and programs that set a
/// timeout of seconds want to know soon.
pub const ACK_BACKOFF_MAX: Nanos = Nanos::from_ms(500);
/// The only partition key: the default partition, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// Where a queue pair's receives come from.
#[allow(clippy::large_enum_variant)]
pub enum RecvQueue {
    /// Its own receive queue.
    Own(RqConsumer),
    /// A shared receive queue.
    Shared(Arc<SrqConsumer>),
    /// Whatever shared receive queue of this XRC domain a request names ([`Effects::xrc_srq`]).
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
    /// Protection domain: of its receives, and of the regions that requests may reach.
    pub pd: u32,
    /// Completion queue of its receives.
    pub cq: u32,
    /// The ring.
    pub queue: Arc<SrqConsumer>,
}

/// What a queue pair is made of.
pub struct QpConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Service type.
    pub qp_type: QpType,
    /// Protection domain number, as the memory region table knows it.
    pub pd: u32,
    /// Completion queue of sends, handed back in [`Effects::complete`].
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// The library's number for the QP, returned in each completion.
    pub cookie: u32,
    /// Capacities.
    pub cap: QpCap,
    /// Largest payload of the port's packets: the path MTU of UD, and what `path_mtu` may not exceed.
    pub port_mtu: Mtu,
    /// Send queue.
    pub sq: SqConsumer,
    /// Receive queue.
    pub rq: RecvQueue,
}

/// The world during one call.
pub struct Env<'a> {
    /// Now.
    pub now: Nanos,
    /// Memory regions.
    pub mem: &'a MrTable,
    /// Frames to send are appended here. Its spans point into application memory: send the batch before the
    /// completions of the same turn are shown (see [`Effects::complete`]).
    pub tx: &'a mut TxBatch,
    /// Decisions.
    pub fx: &'a mut dyn Effects,
}

/// What happened to the path of a QP, for congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The peer, or a gap in its answers, reported a lost packet.
    Loss,
    /// No answer in time.
    Timeout,
    /// A congestion notification packet.
    Cnp,
}

/// Takes what a queue pair decides.
pub trait Effects {
    /// A work request ended. `solicited`: the peer asked for an event, or this is an error.
    ///
    /// A completion made during `poll_tx` of a UC or UD queue pair belongs to frames that are still in `Env::tx`:
    /// it must not become visible to the application before that batch has been handed to the port.
    fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool);
    /// An asynchronous event of the queue pair.
    fn event(&mut self, qpn: Qpn, event: EventType);
    /// Something worth counting.
    fn count(&mut self, reason: Reason);
    /// The flow of address handle `ah` of protection domain `pd`.
    fn ah_flow(&self, pd: u32, ah: u32) -> Option<Flow>;
    /// The shared receive queue `srqn`, if it belongs to XRC domain `domain`.
    fn xrc_srq(&self, _domain: u32, _srqn: u32) -> Option<&XrcSrq> {
        None
    }
    /// News for congestion control.
    fn congestion(&mut self, signal: Signal);
}

/// What one turn may send. Each field is counted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxBudget {
    /// Work requests (and read request pieces).
    pub wqes: u32,
    /// Payload bytes; the last packet may overshoot.
    pub bytes: u64,
    /// Bytes that may be added to those in flight: payload sent plus read responses asked for. A QP with nothing in
    /// flight may overshoot by one packet (or one read piece) unless this is 0.
    pub window_bytes: u64,
}

/// Why `poll_tx` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Nothing to send until a packet, a doorbell or a timer comes.
    Idle,
    /// Budget or batch used up: call again.
    More,
    /// The window is closed: call again when it has opened (an acknowledgement makes `wants_tx` true as well).
    Window,
    /// Waiting for `next_deadline` (receiver not ready).
    Timer,
}

/// Why a modify was refused. Nothing has changed then. All are `EINVAL` to verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// `cur_qp_state` does not match, or there is no such transition.
    Transition {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// Compulsory attributes that are missing (mask bits).
    Missing(u32),
    /// Attributes that this transition does not allow (mask bits).
    NotAllowed(u32),
    /// An attribute's value is out of range (mask bit).
    Value(u32),
    /// The path could not be resolved: no flow was given with the address vector.
    NoFlow,
}

impl core::fmt::Display for ModifyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ModifyError::Transition { from, to } => {
                write!(f, "a queue pair in {from:?} cannot be moved to {to:?}")
            }
            ModifyError::Missing(mask) => write!(f, "the attributes of mask {mask:#x} are compulsory here"),
            ModifyError::NotAllowed(mask) => write!(f, "the attributes of mask {mask:#x} are not allowed here"),
            ModifyError::Value(mask) => write!(f, "the attribute of mask {mask:#x} is out of range"),
            ModifyError::NoFlow => write!(f, "the address vector leads nowhere"),
        }
    }
}

impl std::error::Error for ModifyError {}
