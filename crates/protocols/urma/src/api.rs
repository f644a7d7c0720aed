//! Arguments and results of the calls on a node: configuration, work requests, completions, events, and the traits by which a
//! node reaches memory and reports.
//!
//! Names and numbers are those of the URMA interface (liburma 0.9), so that a library can pass them through.

use crate::node_eid::NodeEid;
use crate::paths::{NO_PATH, UrmaPaths};
use burst_base::{Nanos, Reason};
use burst_span::Span;
use burst_ubwire::{OrderTag, ServiceMode, TaOpcode};

/// Longest message.
pub const URMA_MESSAGE_MAX: u32 = (1 << 24) - 1;
/// Most bytes of inline data.
pub const URMA_INLINE_MAX: usize = 64;
/// First Jetty and JFR number for programs; smaller ones are public or reserved.
pub const JETTY_ID_FIRST: u32 = 1024;
/// Lanes between two nodes at most.
pub const LANES_MAX: u8 = 8;
/// Members of a Jetty group at most.
pub const GROUP_MEMBERS_MAX: usize = 32;
/// `rnr_retry` that stands for no limit.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// Memory of the host's programs. A call fails if the memory is gone; the node has checked segment and range before. `region` is
/// what the segment was registered with ([`crate::UrmaNode::register_segment_of`]): the same address may be in several programs.
pub trait UrmaMemory {
    /// Copies from memory.
    fn read(&self, region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone>;
    /// Copies to memory.
    fn write(&mut self, region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone>;
    /// Copies `pieces` of equal length, `len` bytes in all, to memory one behind the other. After an error some may be there.
    fn write_pieces(
        &mut self,
        region: u32,
        addr: u64,
        _len: u32,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), MemoryGone> {
        let mut at = addr;
        for piece in pieces {
            self.write(region, at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
    /// Replaces eight aligned bytes by `change` of them, in one step for all who use the memory; returns the old value. Numbers
    /// are little-endian, as the processors that use the memory.
    fn update(&mut self, region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone>;
    /// The memory itself, to send from it without a copy ([`crate::UrmaNode::poll_tx_lent`]); `None`: it must be copied.
    fn lend(&self, _region: u32, _addr: u64, _len: u32) -> Option<Span> {
        None
    }
}

/// The memory behind a segment cannot be reached any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGone;

/// Receiver of what a call reports beside its result.
pub trait UrmaEffects {
    /// A counter of a reason rises by one.
    fn count(&mut self, reason: Reason);
    /// A queue of completions has a new record.
    fn completion(&mut self, _jfc: u32) {}
    /// Something happened to an object.
    fn event(&mut self, _event: UrmaEvent) {}
    /// A request of a peer was executed here: its effect on memory or a receive queue is complete, or its data begin to be read.
    fn executed(&mut self, _peer: NodeEid, _rc_id: u32, _tassn: u16) {}
}

/// Arguments that most calls need.
pub struct UrmaEnv<'a> {
    /// Time of the call.
    pub now: Nanos,
    /// The process's memory.
    pub mem: &'a mut dyn UrmaMemory,
    /// Receiver of reports.
    pub fx: &'a mut dyn UrmaEffects,
    /// Congestion control of the paths to peers.
    pub paths: &'a mut dyn UrmaPaths,
}

/// How lost packets are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossRecovery {
    /// The receiver keeps packets behind a gap and acknowledges selectively.
    Selective,
    /// The receiver drops packets behind a gap, and asks for all from the gap on.
    GoBackN,
}

/// Constants of a node.
#[derive(Clone, Copy, Debug)]
pub struct UrmaConfig {
    /// Own address.
    pub eid: NodeEid,
    /// Greater after each restart of the node; peers end a channel of an older one.
    pub incarnation: u64,
    /// Seed of channel numbers and initial PSNs. A daemon takes it from the system's generator.
    pub seed: u64,
    /// Seed of token ids, which must not follow from channel numbers and PSNs. A daemon takes it from the system's
    /// generator, apart from `seed`.
    pub token_seed: u64,
    /// Payload bytes of a packet, 256..=8192.
    pub mtu: u16,
    /// Loss recovery, the same on both ends.
    pub recovery: LossRecovery,
    /// First retransmission time-out; the n-th is `rto_base * 2^(rto_shift * n)`.
    pub rto_base: Nanos,
    /// See `rto_base`.
    pub rto_shift: u8,
    /// Time-outs in a row after which a channel fails.
    pub rto_tries: u8,
    /// A packet counts as lost when one with a PSN at least this much greater has arrived.
    pub reorder_degree: u32,
    /// Lanes to each peer: channels that take different paths, 1..=[`LANES_MAX`]. The fewer of both ends' are used.
    pub lanes: u8,
    /// Most channels. Lanes behind the first ones of their peers take half of them at most.
    pub channels_max: usize,
    /// Most work requests outstanding.
    pub requests_max: usize,
    /// Most messages of peers that are incomplete or wait for their turn.
    pub inbound_max: usize,
    /// Packets in the reorder buffer, of `mtu` bytes each.
    pub reorder_packets: usize,
    /// Sequence contexts for peers' ordered requests.
    pub contexts_max: usize,
    /// Most responses that wait or are not acknowledged.
    pub responses_max: usize,
    /// Whether C-AQM limits the bytes in flight, for networks whose switches answer. Otherwise the path does ([`UrmaPaths`]), and
    /// `window_max`.
    pub caqm: bool,
    /// Most bytes in flight on a channel.
    pub window_max: u32,
}

impl UrmaConfig {
    /// Usual values for a node.
    pub const fn new(eid: NodeEid, seed: u64) -> UrmaConfig {
        UrmaConfig {
            eid,
            incarnation: 1,
            seed,
            token_seed: seed.rotate_left(32) ^ 0x746f_6b65_6e69_6473,
            mtu: 4096,
            recovery: LossRecovery::Selective,
            rto_base: Nanos::from_ms(2),
            rto_shift: 1,
            rto_tries: 7,
            reorder_degree: 3,
            lanes: 1,
            channels_max: 4096,
            requests_max: 1 << 16,
            inbound_max: 4096,
            reorder_packets: 1024,
            contexts_max: 4096,
            responses_max: 1 << 14,
            caqm: true,
            window_max: 1 << 20,
        }
    }
}

/// Transport mode of a Jetty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransMode {
    /// Reliable messages to any number of targets.
    Rm,
    /// Reliable connection: bound to one peer.
    Rc,
    /// Unreliable messages.
    Um,
}

/// Attributes of a Jetty or JFS.
#[derive(Clone, Copy, Debug)]
pub struct JettyConfig {
    /// Transport mode.
    pub mode: TransMode,
    /// Service mode (the order type); see [`UrmaError::Unsupported`] for refused combinations.
    pub service: ServiceMode,
    /// Queue of send completions.
    pub jfc: u32,
    /// Receive queue; `None` makes a JFS.
    pub jfr: Option<u32>,
    /// Work requests outstanding.
    pub depth: u16,
    /// Token that importers must show to send to it.
    pub token: Option<u32>,
    /// A failed channel suspends the Jetty. Otherwise only the request fails.
    pub error_suspend: bool,
    /// Completions out of order; work requests may not ask for order.
    pub outorder_comp: bool,
    /// Repetitions after RNR, [`RNR_RETRY_FOREVER`].
    pub rnr_retry: u8,
    /// A request does not end with [`CrStatus::AckTimeout`] before its peer was silent for `4.096 us * 2^n`, n in 0..=31. The
    /// time that the channel's own time-outs take ([`UrmaConfig::rto_tries`]) passes in any case: the channel is shared.
    pub err_timeout: u8,
    /// Group of which it becomes a member, [`GROUP_MEMBERS_MAX`] at most.
    pub group: Option<u32>,
    /// Program of the host that it belongs to. A WRITE with immediate that shows the token of a segment may use the receives of
    /// Jetties of the segment's owner ([`crate::UrmaNode::register_segment_of`]).
    pub owner: u32,
}

impl JettyConfig {
    /// A Jetty of mode RM that keeps order at the initiator.
    pub const fn new(jfc: u32, jfr: Option<u32>) -> JettyConfig {
        JettyConfig {
            mode: TransMode::Rm,
            service: ServiceMode::Roi,
            jfc,
            jfr,
            depth: 128,
            token: None,
            error_suspend: false,
            outorder_comp: false,
            rnr_retry: RNR_RETRY_FOREVER,
            err_timeout: 0,
            group: None,
            owner: 0,
        }
    }
}

/// Largest [`JettyConfig::err_timeout`].
pub(crate) const ERR_TIMEOUT_MAX: u8 = 31;

/// Least silence before a request fails, for a [`JettyConfig::err_timeout`].
pub(crate) const fn err_timeout(exponent: u8) -> Nanos {
    Nanos(4096 << exponent)
}

/// States of a Jetty or JFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JettyState {
    /// Made, or drained after an error.
    Reset,
    /// In use.
    Ready,
    /// A channel failed.
    Suspended,
    /// Broken.
    Error,
}

/// States of a JFR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JfrState {
    /// Not in use.
    Reset,
    /// In use.
    Ready,
    /// Broken.
    Error,
}

/// Attributes of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct JfrConfig {
    /// Receives posted at most.
    pub depth: u16,
    /// Queue of receive completions.
    pub jfc: u32,
    /// Token that importers must show.
    pub token: Option<u32>,
    /// Delay that an RNR answer asks for: `10 us * 2^n`, 0..=15.
    pub rnr_timer: u8,
    /// Event when fewer receives are left; 0 for none.
    pub limit: u16,
    /// Messages of mode UM that name it may use its receives; otherwise reliable ones may. Those that name a Jetty are for the
    /// Jetty's mode.
    pub is_unreliable: bool,
}

impl JfrConfig {
    /// A queue for 128 receives, without token.
    pub const fn new(jfc: u32) -> JfrConfig {
        JfrConfig { depth: 128, jfc, token: None, rnr_timer: 1, limit: 0, is_unreliable: false }
    }
}

/// Rights of a segment, by bit.
pub mod access {
    /// No peer may use it.
    pub const LOCAL_ONLY: u8 = 1;
    /// Peers may read.
    pub const READ: u8 = 2;
    /// Peers may write.
    pub const WRITE: u8 = 4;
    /// Peers may do atomics.
    pub const ATOMIC: u8 = 8;
}

/// A segment to be registered.
#[derive(Clone, Copy, Debug)]
pub struct SegmentConfig {
    /// First byte.
    pub addr: u64,
    /// Length.
    pub len: u64,
    /// Token that requests must carry; `None`: policy "none".
    pub token: Option<u32>,
    /// Rights ([`access`]).
    pub access: u8,
}

/// What an owner tells of its segment, and an initiator imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The owner.
    pub eid: NodeEid,
    /// Names the segment on the wire.
    pub token_id: u32,
    /// First byte.
    pub addr: u64,
    /// Length.
    pub len: u64,
    /// The token.
    pub token: Option<u32>,
}

/// Kind of a receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A receive queue.
    Jfr,
    /// A Jetty.
    Jetty,
    /// A group of Jetties, one of which gets each message.
    Group,
}

/// How a group chooses a member for a message. Members that are not ready are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// One after the other.
    RoundRobin,
    /// The sender's hint modulo the number of members that are ready.
    HashHint,
    /// The one with the most receives posted; among equals one after the other.
    Depth,
}

/// What an owner tells of its Jetty or JFR, and an initiator imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteJetty {
    /// The owner.
    pub eid: NodeEid,
    /// Number.
    pub id: u32,
    /// What it is.
    pub kind: TargetKind,
    /// The token.
    pub token: Option<u32>,
}

/// Local memory of a work request or receive: a range of a registered segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRange {
    /// The segment.
    pub token_id: u32,
    /// First byte.
    pub addr: u64,
    /// Length.
    pub len: u32,
}

/// Payload of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrData {
    /// Registered memory: source, or destination of a READ or atomic's old value.
    Local(LocalRange),
    /// The first bytes of an array.
    Inline {
        /// How many.
        len: u8,
        /// The bytes.
        bytes: [u8; URMA_INLINE_MAX],
    },
}

impl WrData {
    /// Inline data; `None` if there are too many.
    pub fn inline(data: &[u8]) -> Option<WrData> {
        let mut bytes = [0; URMA_INLINE_MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(WrData::Inline { len: data.len() as u8, bytes })
    }
    /// Bytes.
    pub const fn len(&self) -> u32 {
        match self {
            WrData::Local(range) => range.len,
            WrData::Inline { len, .. } => *len as u32,
        }
    }
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct JfsWr {
    /// SEND, SEND_IMM, WRITE, WRITE_IMM, WRITE_NOTIFY, READ or an atomic.
    pub opcode: TaOpcode,
    /// Returned in the completion.
    pub user_ctx: u64,
    /// Source, or destination of a READ or atomic.
    pub data: WrData,
    /// Imported Jetty: receiver of messages and notifications. In mode RC the bound peer is used.
    pub target: Option<u32>,
    /// For a group's choice of a member.
    pub hint: u8,
    /// Imported segment.
    pub segment: Option<u32>,
    /// Address in it.
    pub remote_addr: u64,
    /// Operand of an atomic; compare value of CAS.
    pub operand: u64,
    /// Swap value of CAS.
    pub swap: u64,
    /// Immediate data.
    pub immediate: u64,
    /// WRITE with notification: imported segment and address (eight bytes) to which the immediate data are written, after all
    /// others.
    pub notify: Option<(u32, u64)>,
    /// Place order.
    pub order: OrderTag,
    /// Completion in posting order, among the requests that have this bit.
    pub completion_order: bool,
    /// Waits until all earlier READs and atomics are answered.
    pub fence: bool,
    /// A success has a completion, too. Unless the Jetty has `outorder_comp`, it comes when all earlier requests that have none
    /// are done.
    pub complete: bool,
}

impl JfsWr {
    /// A request without order whose success is reported.
    pub const fn new(opcode: TaOpcode, data: WrData, user_ctx: u64) -> JfsWr {
        JfsWr {
            opcode,
            user_ctx,
            data,
            target: None,
            hint: 0,
            segment: None,
            remote_addr: 0,
            operand: 0,
            swap: 0,
            immediate: 0,
            notify: None,
            order: OrderTag::None,
            completion_order: false,
            fence: false,
            complete: true,
        }
    }
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct JfrWr {
    /// Where to.
    pub range: LocalRange,
    /// Returned in the completion.
    pub user_ctx: u64,
}

/// Status of a completion, by URMA's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CrStatus {
    /// Done.
    Success = 0,
    /// A message is longer than the receive.
    LocLen = 2,
    /// The request cannot be carried out by its Jetty as it is now.
    LocOperation = 3,
    /// Local memory may not be used so.
    LocAccess = 4,
    /// The peer's receive is too short.
    RemRespLen = 5,
    /// The peer does not allow the operation.
    RemUnsupportedReq = 6,
    /// The peer could not do it.
    RemOperation = 7,
    /// Token, range or right is wrong.
    RemAccessAbort = 8,
    /// The channel failed.
    AckTimeout = 9,
    /// No receive after all repetitions.
    RnrRetryExceeded = 10,
    /// It waited for the peer to be ready when its Jetty or receive queue was moved to ERROR.
    FlushErr = 11,
    /// A Jetty has been suspended and holds no request any more.
    SuspendDone = 12,
    /// A Jetty has failed and holds no request any more.
    FlushErrDone = 13,
    /// Handed back, not executed.
    Unhandled = 14,
    /// The peer's memory was gone.
    RemDataPoison = 16,
}

impl CrStatus {
    const ALL: [CrStatus; 15] = [
        CrStatus::Success,
        CrStatus::LocLen,
        CrStatus::LocOperation,
        CrStatus::LocAccess,
        CrStatus::RemRespLen,
        CrStatus::RemUnsupportedReq,
        CrStatus::RemOperation,
        CrStatus::RemAccessAbort,
        CrStatus::AckTimeout,
        CrStatus::RnrRetryExceeded,
        CrStatus::FlushErr,
        CrStatus::SuspendDone,
        CrStatus::FlushErrDone,
        CrStatus::Unhandled,
        CrStatus::RemDataPoison,
    ];

    /// The status with this number.
    pub fn from_number(n: u8) -> Option<CrStatus> {
        CrStatus::ALL.into_iter().find(|status| *status as u8 == n)
    }
}

/// A completion record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRecord {
    /// Outcome.
    pub status: CrStatus,
    /// Of the request; meaningless for `SuspendDone` and `FlushErrDone`.
    pub user_ctx: u64,
    /// Operation.
    pub opcode: TaOpcode,
    /// Of a receive, not of a send.
    pub is_receive: bool,
    /// Bytes.
    pub len: u32,
    /// Whether `local_id` is a Jetty's (or JFS's) number or a JFR's: both are counted from [`JETTY_ID_FIRST`].
    pub local_kind: TargetKind,
    /// The Jetty or JFR.
    pub local_id: u32,
    /// The peer's Jetty: of receives, and of requests that failed (0: the request names none).
    pub remote: Option<(NodeEid, u32)>,
    /// Immediate data (receives).
    pub immediate: u64,
}

impl CompletionRecord {
    /// Whether it says that a stopped Jetty holds no request any more: it is of no request.
    pub const fn is_drain_end(&self) -> bool {
        matches!(self.status, CrStatus::SuspendDone | CrStatus::FlushErrDone)
    }
}

/// Asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UrmaEvent {
    /// A completion queue overflowed.
    JfcError(u32),
    /// A Jetty or JFS is suspended or in error.
    JettyError(u32),
    /// A receive queue is in error.
    JfrError(u32),
    /// A receive queue has fewer receives than its limit.
    JfrLimit(u32),
}

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrmaError {
    /// EINVAL: no such object.
    NoObject,
    /// EINVAL: a value is out of range.
    Value,
    /// EINVAL: this combination of modes, order and operation is not offered (mode UM and out-of-order completion accept no
    /// order, no fence; RM and RC need a reliable order type; UM carries SEND and WRITE of one packet).
    Unsupported,
    /// EPERM: the local segment or range does not allow it.
    Access,
    /// ENOMEM: queue or table is full, or the oldest request of the Jetty has waited while 2^15 others were posted.
    Full,
    /// EINVAL: not in this state.
    State,
    /// EEXIST: already bound.
    Bound,
    /// EAGAIN: still in use.
    Busy,
}

impl UrmaError {
    /// All of them, by number.
    pub const ALL: [UrmaError; 8] = [
        UrmaError::NoObject,
        UrmaError::Value,
        UrmaError::Unsupported,
        UrmaError::Access,
        UrmaError::Full,
        UrmaError::State,
        UrmaError::Bound,
        UrmaError::Busy,
    ];
}

impl std::fmt::Display for UrmaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UrmaError::NoObject => "an object that it names does not exist",
            UrmaError::Value => "a value is out of range",
            UrmaError::Unsupported => "the combination of mode, order type and operation is not offered",
            UrmaError::Access => "the memory does not allow it",
            UrmaError::Full => "a queue or table is full, or the user's share is used up",
            UrmaError::State => "the object is not in the state for it",
            UrmaError::Bound => "it is bound to another one already",
            UrmaError::Busy => "it is in use",
        })
    }
}

/// A packet that is in the caller's buffer.
#[derive(Clone, Copy, Debug)]
pub struct UrmaTransmit {
    /// Where to.
    pub dest: NodeEid,
    /// The lane; packets of different ones should take different paths through the network.
    pub lane: u8,
    /// Bytes in the buffer.
    pub len: usize,
    /// Payload that follows them and stays where it is ([`crate::UrmaNode::poll_tx_lent`]).
    pub lent: Option<Span>,
    /// The path of the channel to which the packet belongs; [`crate::NO_PATH`] of packets of no channel.
    pub path: u32,
}

impl UrmaTransmit {
    pub(crate) const fn whole((dest, lane): (NodeEid, u8), len: usize) -> UrmaTransmit {
        UrmaTransmit { dest, lane, len, lent: None, path: NO_PATH }
    }
}

/// Most bytes of a load or store: a cache line.
pub const ACCESS_MAX: usize = 64;
/// Accesses under way to one peer at most.
pub const ACCESS_WINDOW: u16 = 64;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads so many bytes.
    Load {
        /// 1 to [`ACCESS_MAX`].
        len: u8,
    },
    /// Writes the first bytes of an array.
    Store {
        /// 1 to [`ACCESS_MAX`].
        len: u8,
        /// The bytes.
        bytes: [u8; ACCESS_MAX],
    },
    /// Changes eight aligned bytes.
    Atomic {
        /// CAS, SWAP or a fetching operation.
        opcode: TaOpcode,
        /// Operand; of CAS the value to compare with.
        operand: u64,
        /// New value of CAS.
        swap: u64,
    },
}

impl AccessKind {
    pub(crate) fn len(&self) -> u32 {
        match self {
            AccessKind::Load { len } | AccessKind::Store { len, .. } => u32::from(*len),
            AccessKind::Atomic { .. } => 8,
        }
    }
    pub(crate) fn opcode(&self) -> TaOpcode {
        match self {
            AccessKind::Load { .. } => TaOpcode::Read,
            AccessKind::Store { .. } => TaOpcode::Write,
            AccessKind::Atomic { opcode, .. } => *opcode,
        }
    }
    /// The opcode of its answer, if that is no refusal.
    pub(crate) fn answer(&self) -> TaOpcode {
        match self {
            AccessKind::Load { .. } => TaOpcode::ReadResponse,
            AccessKind::Store { .. } => TaOpcode::TaAck,
            AccessKind::Atomic { .. } => TaOpcode::AtomicResponse,
        }
    }
    pub(crate) fn is_sound(&self, addr: u64) -> bool {
        match self {
            AccessKind::Load { len } | AccessKind::Store { len, .. } => (1..=ACCESS_MAX).contains(&usize::from(*len)),
            AccessKind::Atomic { opcode, .. } => opcode.is_atomic() && addr.is_multiple_of(8),
        }
    }
}

/// Names an access until its outcome is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessTag {
    pub(crate) peer: NodeEid,
    pub(crate) number: u16,
}

/// How an access has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessOutcome {
    /// [`CrStatus::AckTimeout`]: no answer; a store or an atomic may have been executed or not.
    pub status: CrStatus,
    /// The bytes of a load, or the old value of an atomic in the order of the processor; otherwise zero.
    pub bytes: [u8; ACCESS_MAX],
}

impl AccessOutcome {
    pub(crate) const fn failed(status: CrStatus) -> AccessOutcome {
        AccessOutcome { status, bytes: [0; ACCESS_MAX] }
    }
    /// The old value of an atomic.
    pub fn value(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}
