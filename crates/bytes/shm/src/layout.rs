//! Formats of all data in shared memory. Changing any of them, or a control message, changes [`ABI_VERSION`].
//!
//! All integers are native-endian; both ends run on one host. Offsets and sizes are fixed by `const` assertions.
//! Ring headers keep the application-written and the daemon-written words on different cache lines.

use core::mem::size_of;

/// Version of the shared-memory formats and of the control messages; both ends must agree exactly.
pub const ABI_VERSION: u32 = 17;
/// Size of a freshly made arena segment (sparse: pages cost memory when touched).
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// Cache line.
pub const LINE: usize = 64;
/// Largest number of scatter/gather entries of a work request.
pub const SGE_MAX: u32 = 32;
/// Largest inline payload.
pub const INLINE_MAX: u32 = 1024;
/// Largest number of work requests in a queue.
pub const WR_MAX: u32 = 32_768;
/// Largest number of completion queue entries.
pub const CQE_MAX: u32 = 1 << 20;
/// Largest number of workers.
pub const WORKER_MAX: usize = 16;

/// A position in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ShmRef {
    /// Segment number, from 0.
    pub segment: u32,
    /// Byte offset in the segment, 64-aligned.
    pub offset: u32,
}

/// Header of a send, receive or shared receive queue; entries follow at byte 128.
/// The shared words are accessed as atomics by `sq`/`rq`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct QueueHeader {
    /// Entries ever posted (application writes, release).
    pub producer: u32,
    /// Non-zero when the daemon has stopped reading this queue and needs a doorbell (both ends write; SQ only).
    pub idle: u32,
    _app_line: [u32; 14],
    /// Entries ever taken (daemon writes, release). For an SRQ and RQ the application derives free slots from it; that of a send
    /// queue is written at RESET only, because completions tell what has ended.
    pub consumer: u32,
    _daemon_line: [u32; 15],
}
/// Bytes before the first entry of a queue.
pub const QUEUE_HEADER_BYTES: usize = 128;
const _: () = assert!(size_of::<QueueHeader>() == QUEUE_HEADER_BYTES);

/// A scatter/gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Virtual address in the application (or offset of a zero-based region).
    pub addr: u64,
    /// Bytes. 0 means 0 here (the library has already applied the verbs rule).
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}
const _: () = assert!(size_of::<Sge>() == 16);

impl Sge {
    /// Whether two entries name some of the same addresses. Only under one key are these the same bytes.
    pub fn shares_addresses(&self, other: &Sge) -> bool {
        self.addr < other.addr.saturating_add(u64::from(other.length))
            && other.addr < self.addr.saturating_add(u64::from(self.length))
    }
}

/// Head of a send queue entry; `num_sge` [`Sge`]s, or `length` inline bytes, follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SendWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// `base::verbs::WrOpcode` number.
    pub opcode: u8,
    /// Number of SGEs (0 when inline).
    pub num_sge: u8,
    /// `base::verbs::send_flags` bits. The library sets SIGNALED for `sq_sig_all` queue pairs.
    pub flags: u16,
    /// Immediate data as the application gave it (already big-endian bytes), or the rkey to invalidate.
    pub imm: u32,
    /// Remote address of RDMA and atomics.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Inline bytes (INLINE only).
    pub length: u32,
    /// Atomic: compare value, or the addend of fetch-and-add.
    pub compare_add: u64,
    /// Atomic: swap value.
    pub swap: u64,
    /// UD: destination QP. XRC: destination SRQ.
    pub remote_qpn: u32,
    /// UD: Q_Key.
    pub remote_qkey: u32,
    /// UD: address handle number of this context.
    pub ah: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<SendWqe>() == 64);

/// Head of a receive queue entry; `num_sge` [`Sge`]s follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RecvWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Number of SGEs.
    pub num_sge: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RecvWqe>() == 16);

/// Bytes between send queue entries: head plus the larger of SGEs and inline data, in whole lines.
pub const fn sq_stride(max_sge: u32, max_inline: u32) -> u32 {
    let body = if max_sge * 16 > max_inline { max_sge * 16 } else { max_inline };
    (64 + body).next_multiple_of(64)
}
/// Bytes between receive queue entries.
pub const fn rq_stride(max_sge: u32) -> u32 {
    (16 + max_sge * 16).next_multiple_of(32)
}

/// Header of a completion queue; entries follow at byte 192.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CqHeader {
    /// Entries ever consumed (application writes, release).
    pub consumer: u32,
    _app_line: [u32; 15],
    /// Next entry to reserve (daemon workers: fetch-add).
    pub producer: u32,
    /// Non-zero once an entry was lost because the queue was full.
    pub overrun: u32,
    _daemon_line: [u32; 14],
    /// 0 not armed, 1 next solicited, 2 next of any kind (application sets, daemon swaps to 0).
    pub armed: u32,
    _arm_line: [u32; 15],
}
/// Bytes before the first completion queue entry.
pub const CQ_HEADER_BYTES: usize = 192;
const _: () = assert!(size_of::<CqHeader>() == CQ_HEADER_BYTES);

/// A completion queue entry. `sequence` is the phase: the entry with index i (mod 2^32) is valid when it holds `i + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct Cqe {
    /// From the work request.
    pub wr_id: u64,
    /// Monotonic nanoseconds when the completion was made.
    pub timestamp_ns: u64,
    /// Bytes received, read or moved.
    pub byte_len: u32,
    /// Immediate data (big-endian bytes as received) or the invalidated rkey.
    pub imm: u32,
    /// Local QP number.
    pub qpn: u32,
    /// UD: source QP.
    pub src_qpn: u32,
    /// `base::verbs::wc_flags` bits.
    pub wc_flags: u32,
    /// Reason index + 1, or 0.
    pub vendor_err: u32,
    /// Library's own number of the QP (given at creation), so that it finds its QP without a search.
    pub qp_cookie: u32,
    /// Number of entries of the work queue that have ever completed, this one included. For sends the library frees slots by it.
    /// For receives it tells, after a fall of the daemon, which ones have not completed; 0 with a shared receive queue.
    pub sq_consumer: u32,
    /// `WcStatus` number.
    pub status: u8,
    /// `WcOpcode` number.
    pub opcode: u8,
    /// Service level.
    pub sl: u8,
    /// 1 when this completes a receive.
    pub is_recv: u8,
    /// P_Key index.
    pub pkey_index: u16,
    /// Zero.
    pub reserved: u16,
    /// Index + 1; written last, release.
    pub sequence: u32,
    /// Zero.
    pub reserved2: u32,
}
const _: () = assert!(size_of::<Cqe>() == 64);

/// Depth of the doorbell tree: 64 * 64 * 64 queues per (context, worker).
pub const DOORBELL_QUEUES: u32 = 64 * 64 * 64;
/// One worker's doorbells in a context: `top` word, 64 `mid` words, 4096 `leaf` words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct DoorbellTree {
    /// Bit i: `mid[i]` has a bit.
    pub top: u64,
    _line: [u64; 7],
    /// Bit j of word i: `leaf[64 * i + j]` has a bit.
    pub mid: [u64; 64],
    /// Bit k of word w: queue 64 * w + k rings.
    pub leaf: [u64; 4096],
}

/// The first bytes of segment 0 of an arena.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ContextPage {
    /// [`CONTEXT_MAGIC`].
    pub magic: u32,
    /// [`ABI_VERSION`].
    pub version: u32,
    _line: [u32; 14],
    /// Doorbells, by worker.
    pub doorbells: [DoorbellTree; WORKER_MAX],
}
/// "BRST".
pub const CONTEXT_MAGIC: u32 = 0x4252_5354;

/// The daemon's status page, mapped read-only by every application (a memfd of its own).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StatusPage {
    /// [`CONTEXT_MAGIC`].
    pub magic: u32,
    /// [`ABI_VERSION`].
    pub version: u32,
    _line: [u32; 14],
    /// By worker.
    pub workers: [WorkerStatus; WORKER_MAX],
}
/// State of a worker that applications read.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct WorkerStatus {
    /// Non-zero while the worker sleeps, or is about to: after ringing, write its eventfd.
    pub sleeping: u32,
    _line: [u32; 15],
}
