//! Transaction headers: BTAH of requests and ATAH of responses (16 bytes each), and the extended headers MAETAH (memory),
//! TVETAH (token), MTETAH (target), operands and immediate data. The table of opcodes says which ones follow.

use crate::bytes::{be16, be24, be32, be64, put, put24};
use crate::dialect::Dialect;
use crate::tp::UbStatus;
use burst_base::Reason;

macro_rules! ta_opcodes {
    ($($(#[$doc:meta])* $v:ident = $n:literal, $memory:literal, $operands:literal, $payload:literal, $imm:literal, $response:literal;)+) => {
        /// Operation of a transaction header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum TaOpcode { $($(#[$doc])* $v = $n),+ }

        impl TaOpcode {
            /// All of them.
            pub const ALL: &'static [TaOpcode] = &[$(TaOpcode::$v),+];
            /// The opcode with this number.
            pub const fn from_number(n: u8) -> Option<TaOpcode> { match n { $($n => Some(TaOpcode::$v),)+ _ => None } }
            /// Whether a MAETAH follows.
            pub const fn has_memory(self) -> bool { match self { $(TaOpcode::$v => $memory),+ } }
            /// Operands of an atomic; CAS has as many as the dialect says.
            const fn operand_count(self) -> u8 { match self { $(TaOpcode::$v => $operands),+ } }
            /// Whether payload may follow.
            pub const fn has_payload(self) -> bool { match self { $(TaOpcode::$v => $payload),+ } }
            /// Whether immediate data follow, in dialects that carry them.
            pub const fn has_immediate(self) -> bool { match self { $(TaOpcode::$v => $imm),+ } }
            /// Whether the header is an ATAH.
            pub const fn is_response(self) -> bool { match self { $(TaOpcode::$v => $response),+ } }
        }
    };
}

ta_opcodes! {
    /// Message.
    Send = 0x00, false, 0, true, false, false;
    /// Message with immediate data.
    SendImm = 0x01, false, 0, true, true, false;
    /// Write.
    Write = 0x03, true, 0, true, false, false;
    /// Write, then a receive completion with immediate data.
    WriteImm = 0x04, true, 0, true, true, false;
    /// Write, then a notification.
    WriteNotify = 0x05, true, 0, true, true, false;
    /// Read.
    Read = 0x06, true, 0, false, false, false;
    /// Compare and swap.
    Cas = 0x07, true, 1, false, false, false;
    /// Swap.
    Swap = 0x08, true, 1, false, false, false;
    /// Fetch and add.
    FetchAdd = 0x0b, true, 1, false, false, false;
    /// Fetch and subtract.
    FetchSub = 0x0c, true, 1, false, false, false;
    /// Fetch and and.
    FetchAnd = 0x0d, true, 1, false, false, false;
    /// Fetch and or.
    FetchOr = 0x0e, true, 1, false, false, false;
    /// Fetch and exclusive or.
    FetchXor = 0x0f, true, 1, false, false, false;
    /// Management.
    Management = 0x10, false, 0, true, false, false;
    /// Transaction acknowledgement.
    TaAck = 0x11, false, 0, false, false, true;
    /// Data of a read.
    ReadResponse = 0x12, false, 0, true, false, true;
    /// Old value of an atomic.
    AtomicResponse = 0x13, false, 0, true, false, true;
    /// A sequence context is not needed any more.
    DisconnectContext = 0x16, false, 0, false, false, false;
}

impl TaOpcode {
    /// Whether the operation returns an old value.
    pub const fn is_atomic(self) -> bool {
        self.operand_count() > 0
    }
    /// Operands on the wire.
    pub const fn operands(self, dialect: &Dialect) -> u8 {
        match self {
            TaOpcode::Cas => dialect.cas_operands,
            _ => self.operand_count(),
        }
    }
}

/// Service mode: who enforces order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceMode {
    /// Reliable, ordered by the initiator.
    Roi,
    /// Reliable, ordered by the target.
    Rot,
    /// Reliable, ordered by lower layers: the transport acknowledgement is the transaction's as well.
    Rol,
    /// Unreliable, not ordered.
    Uno,
}

impl ServiceMode {
    const fn from_number(n: u8) -> ServiceMode {
        match n & 3 {
            0 => ServiceMode::Roi,
            1 => ServiceMode::Rot,
            2 => ServiceMode::Rol,
            _ => ServiceMode::Uno,
        }
    }
}

/// Execution tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OrderTag {
    /// NO: any time.
    #[default]
    None,
    /// RO: a later SO waits for it.
    Relaxed,
    /// SO: after all earlier RO and SO.
    Strong,
}

/// RC type: what the sequence of the request refers to.
pub const RC_TYPE_QUEUE: u8 = 0;
/// RC type of a request in a sequence context.
pub const RC_TYPE_CONTEXT: u8 = 2;

/// Bits of BTAH that Burst does not use, for dialects that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BtahFlags {
    /// Target_Hint.
    pub target_hint: bool,
    /// UD_Flag.
    pub user_data: bool,
    /// FCE.
    pub fce: bool,
    /// E_bit.
    pub e_bit: bool,
}

/// Basic transaction header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Btah {
    /// Operation.
    pub opcode: TaOpcode,
    /// Version, 2 bits.
    pub version: u8,
    /// Execution environment, 2 bits; 1 is outside of an enclave.
    pub environment: u8,
    /// A token follows (TVETAH).
    pub has_token: bool,
    /// The sender could not read the data.
    pub poison: bool,
    /// Other bits.
    pub flags: BtahFlags,
    /// Sequence number of the transaction.
    pub tassn: u16,
    /// Execution tag.
    pub order: OrderTag,
    /// Completions are in order.
    pub completion_order: bool,
    /// A target follows (MTETAH).
    pub has_target: bool,
    /// Sent again after a refusal.
    pub retry: bool,
    /// Asks for a sequence context.
    pub alloc: bool,
    /// RC type, 2 bits.
    pub rc_type: u8,
    /// Service mode.
    pub mode: ServiceMode,
    /// Requester context: the sending queue's id, 20 bits.
    pub rc_id: u32,
    /// Sequence context at the target (RC type [`RC_TYPE_CONTEXT`]); 0 in dialects without placement.
    pub context: u16,
    /// Number of the request among the ordered ones of its context; 0 in dialects without placement.
    pub order_number: u16,
    /// Offset of the payload in its message, 24 bits; 0 in dialects without placement.
    pub offset: u32,
}

const SKELETON: usize = 16;

impl Btah {
    /// Length in bytes.
    pub const LEN: usize = SKELETON;
    /// Where the payload's offset lies.
    pub(crate) const OFFSET_AT: usize = 13;
    /// A request with everything off.
    pub const fn new(opcode: TaOpcode, tassn: u16, rc_id: u32) -> Btah {
        Btah {
            opcode,
            version: 0,
            environment: 1,
            has_token: false,
            poison: false,
            flags: BtahFlags { target_hint: false, user_data: false, fce: false, e_bit: false },
            tassn,
            order: OrderTag::None,
            completion_order: false,
            has_target: false,
            retry: false,
            alloc: false,
            rc_type: RC_TYPE_QUEUE,
            mode: ServiceMode::Roi,
            rc_id,
            context: 0,
            order_number: 0,
            offset: 0,
        }
    }
    fn read(b: &[u8; SKELETON], opcode: TaOpcode, dialect: &Dialect) -> Btah {
        let on = |byte: usize, bit: u8| b[byte] >> bit & 1 != 0;
        let placement = |value: u32| if dialect.placement { value } else { 0 };
        Btah {
            opcode,
            version: b[1] >> 6,
            environment: b[1] >> 4 & 3,
            has_token: on(1, 3),
            poison: on(1, 2),
            flags: BtahFlags { target_hint: on(1, 1), user_data: on(1, 0), fce: on(4, 2), e_bit: on(5, 7) },
            tassn: be16(b, 2),
            order: match b[4] >> 4 & 3 {
                0 => OrderTag::None,
                1 => OrderTag::Relaxed,
                _ => OrderTag::Strong,
            },
            completion_order: on(4, 6),
            has_target: on(4, 3),
            retry: on(4, 1),
            alloc: on(4, 0),
            rc_type: b[5] >> 5 & 3,
            mode: ServiceMode::from_number(b[5]),
            rc_id: be24(b, 8) & 0xf_ffff,
            context: placement(u32::from(be16(b, 6))) as u16,
            order_number: placement(u32::from(be16(b, 11))) as u16,
            offset: placement(be24(b, Self::OFFSET_AT)),
        }
    }
    #[inline]
    fn emit(&self, dialect: &Dialect, out: &mut [u8]) {
        let out = &mut out[..SKELETON];
        let bit = |on: bool, at: u8| u8::from(on) << at;
        out[0] = self.opcode as u8;
        out[1] = self.version << 6
            | (self.environment & 3) << 4
            | bit(self.has_token, 3)
            | bit(self.poison, 2)
            | bit(self.flags.target_hint, 1)
            | bit(self.flags.user_data, 0);
        put(out, 2, &self.tassn.to_be_bytes());
        out[4] = bit(self.completion_order, 6)
            | (self.order as u8) << 4
            | bit(self.has_target, 3)
            | bit(self.flags.fce, 2)
            | bit(self.retry, 1)
            | bit(self.alloc, 0);
        out[5] = bit(self.flags.e_bit, 7) | (self.rc_type & 3) << 5 | self.mode as u8;
        out[6..8].fill(0);
        put24(out, 8, self.rc_id & 0xf_ffff);
        out[11..16].fill(0);
        if dialect.placement {
            put(out, 6, &self.context.to_be_bytes());
            put(out, 11, &self.order_number.to_be_bytes());
            put24(out, Self::OFFSET_AT, self.offset);
        }
    }
}

/// Transaction header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atah {
    /// Operation.
    pub opcode: TaOpcode,
    /// Byte 1 without the bits of SV and poison.
    pub other: u8,
    /// A sequence context was granted: [`Atah::context`].
    pub granted: bool,
    /// The target could not read the data.
    pub poison: bool,
    /// Sequence number of the request.
    pub tassn: u16,
    /// Outcome.
    pub status: UbStatus,
    /// RC type, 2 bits.
    pub rc_type: u8,
    /// Service mode.
    pub mode: ServiceMode,
    /// The requester's context.
    pub rc_id: u32,
    /// The granted sequence context; 0 in dialects without placement.
    pub context: u16,
    /// Offset of the payload in the data read, 24 bits; 0 in dialects without placement.
    pub offset: u32,
    /// A TAACK that acknowledges packets as well: all up to the PSN in `offset` have arrived. False in dialects without
    /// placement.
    pub acknowledges: bool,
}

impl Atah {
    /// Length in bytes.
    pub const LEN: usize = SKELETON;
    /// A success without data.
    pub const fn new(opcode: TaOpcode, tassn: u16, rc_id: u32) -> Atah {
        Atah {
            opcode,
            other: 0x10,
            granted: false,
            poison: false,
            tassn,
            status: UbStatus::SUCCESS,
            rc_type: RC_TYPE_QUEUE,
            mode: ServiceMode::Roi,
            rc_id,
            context: 0,
            offset: 0,
            acknowledges: false,
        }
    }
    fn read(b: &[u8; SKELETON], opcode: TaOpcode, dialect: &Dialect) -> Atah {
        let placement = |value: u32| if dialect.placement { value } else { 0 };
        Atah {
            opcode,
            other: b[1] & !0x0c,
            granted: b[1] & 8 != 0,
            poison: b[1] & 4 != 0,
            tassn: be16(b, 2),
            status: UbStatus::parse(b[4]),
            rc_type: b[5] >> 5 & 3,
            mode: ServiceMode::from_number(b[5]),
            rc_id: be24(b, 8) & 0xf_ffff,
            context: placement(u32::from(be16(b, 6))) as u16,
            offset: placement(be24(b, 13)),
            acknowledges: dialect.placement && opcode == TaOpcode::TaAck && b[12] & 0x80 != 0,
        }
    }
    #[inline]
    fn emit(&self, dialect: &Dialect, out: &mut [u8]) {
        let out = &mut out[..SKELETON];
        out[0] = self.opcode as u8;
        out[1] = self.other & !0x0c | u8::from(self.granted) << 3 | u8::from(self.poison) << 2;
        put(out, 2, &self.tassn.to_be_bytes());
        out[4] = self.status.byte();
        out[5] = (self.rc_type & 3) << 5 | self.mode as u8;
        out[6..8].fill(0);
        put24(out, 8, self.rc_id & 0xf_ffff);
        out[11..16].fill(0);
        if dialect.placement {
            put(out, 6, &self.context.to_be_bytes());
            out[12] = u8::from(self.acknowledges) << 7;
            put24(out, 13, self.offset);
        }
    }
}

/// Memory header (MAETAH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maetah {
    /// Address of the message's first byte.
    pub addr: u64,
    /// Token id: names the segment, 20 bits.
    pub token_id: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Maetah {
    /// Length in bytes.
    pub const LEN: usize = 16;
}

/// Kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mtetah {
    /// For the choice among the members of a group.
    pub hint: u8,
    /// TC type, 2 bits: 0 JFR, 1 Jetty, 2 Jetty group.
    pub kind: u8,
    /// Number, 20 bits.
    pub id: u32,
}

impl Mtetah {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// TC type of a JFR.
    pub const JFR: u8 = 0;
    /// TC type of a Jetty.
    pub const JETTY: u8 = 1;
    /// TC type of a Jetty group.
    pub const GROUP: u8 = 2;
}

/// Where a WRITE with notification writes its immediate data (Burst's own header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyTarget {
    /// Address of eight bytes.
    pub addr: u64,
    /// Token id of their segment.
    pub token_id: u32,
    /// Token value, if one is shown.
    pub token: Option<u32>,
}

impl NotifyTarget {
    /// Length in bytes.
    pub const LEN: usize = 16;
    const SHOWN: u32 = 1 << 31;
}

/// A request's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaRequest {
    /// The basic header.
    pub base: Btah,
    /// Present for the opcodes that reach memory.
    pub memory: Option<Maetah>,
    /// Token value.
    pub token: Option<u32>,
    /// The receiver of a message or notification.
    pub target: Option<Mtetah>,
    /// Operands of an atomic: value, or compare and swap.
    pub operands: [u64; 2],
    /// Immediate data.
    pub immediate: u64,
    /// Where the data of a WRITE with notification go; present for that opcode in dialects with immediate data.
    pub notify: Option<NotifyTarget>,
}

/// Headers of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum TaHeader {
    /// A request.
    Request(TaRequest),
    /// A response.
    Response(Atah),
}

/// Longest transaction header: BTAH, MAETAH, TVETAH, MTETAH and two operands or
/// immediate data and their target.
pub const TA_HEAD_MAX: usize = SKELETON + Maetah::LEN + 4 + Mtetah::LEN + 8 + NotifyTarget::LEN;

impl TaRequest {
    /// A request with the basic header only.
    pub const fn new(base: Btah) -> TaRequest {
        TaRequest { base, memory: None, token: None, target: None, operands: [0; 2], immediate: 0, notify: None }
    }
    fn token_follows(&self, dialect: &Dialect) -> bool {
        self.base.has_token && (dialect.token_with_send || self.base.opcode.has_memory())
    }
    fn target_follows(&self) -> bool {
        self.base.has_target || matches!(self.base.opcode, TaOpcode::Send | TaOpcode::SendImm)
    }
    /// Reads the extended headers and returns what follows.
    #[inline]
    fn read_rest<'a>(&mut self, rest: &'a [u8], dialect: &Dialect) -> Result<&'a [u8], Reason> {
        let opcode = self.base.opcode;
        let mut cursor = Cursor(rest);
        if opcode.has_memory() {
            let b = cursor.take(Maetah::LEN)?;
            self.memory = Some(Maetah { addr: be64(b, 0), token_id: be32(b, 8) & 0xf_ffff, len: be32(b, 12) });
        }
        if self.token_follows(dialect) {
            self.token = Some(be32(cursor.take(4)?, 0));
        }
        if self.target_follows() {
            let b = cursor.take(Mtetah::LEN)?;
            self.target = Some(Mtetah { hint: b[0], kind: b[1] >> 6, id: be24(b, 1) & 0xf_ffff });
        }
        for i in 0..usize::from(opcode.operands(dialect)) {
            self.operands[i] = be64(cursor.take(8)?, 0);
        }
        if dialect.immediate && opcode.has_immediate() {
            self.immediate = be64(cursor.take(8)?, 0);
        }
        if dialect.immediate && opcode == TaOpcode::WriteNotify {
            let b = cursor.take(NotifyTarget::LEN)?;
            let shown = be32(b, 8) & NotifyTarget::SHOWN != 0;
            let token_id = be32(b, 8) & 0xf_ffff;
            self.notify = Some(NotifyTarget { addr: be64(b, 0), token_id, token: shown.then(|| be32(b, 12)) });
        }
        Ok(cursor.0)
    }
    #[inline]
    fn emit(&self, dialect: &Dialect, out: &mut [u8]) -> usize {
        self.base.emit(dialect, out);
        let mut at = SKELETON;
        if let (true, Some(m)) = (self.base.opcode.has_memory(), self.memory) {
            put(out, at, &m.addr.to_be_bytes());
            put(out, at + 8, &(m.token_id & 0xf_ffff).to_be_bytes());
            put(out, at + 12, &m.len.to_be_bytes());
            at += Maetah::LEN;
        }
        if self.token_follows(dialect) {
            put(out, at, &self.token.unwrap_or(0).to_be_bytes());
            at += 4;
        }
        if self.target_follows() {
            let t = self.target.unwrap_or(Mtetah { hint: 0, kind: 0, id: 0 });
            put24(out, at + 1, t.id & 0xf_ffff | u32::from(t.kind & 3) << 22);
            out[at] = t.hint;
            at += Mtetah::LEN;
        }
        for i in 0..usize::from(self.base.opcode.operands(dialect)) {
            put(out, at, &self.operands[i].to_be_bytes());
            at += 8;
        }
        if dialect.immediate && self.base.opcode.has_immediate() {
            put(out, at, &self.immediate.to_be_bytes());
            at += 8;
        }
        if dialect.immediate && self.base.opcode == TaOpcode::WriteNotify {
            let notify = self.notify.unwrap_or(NotifyTarget { addr: 0, token_id: 0, token: None });
            let shown = if notify.token.is_some() { NotifyTarget::SHOWN } else { 0 };
            put(out, at, &notify.addr.to_be_bytes());
            put(out, at + 8, &(notify.token_id & 0xf_ffff | shown).to_be_bytes());
            put(out, at + 12, &notify.token.unwrap_or(0).to_be_bytes());
            at += NotifyTarget::LEN;
        }
        at
    }
}

impl TaHeader {
    /// Reads the headers in place and returns what follows: [`Reason::Truncated`] or [`Reason::UbTransactionOpcode`].
    #[inline]
    pub(crate) fn read<'a>(
        into: &mut Option<TaHeader>,
        bytes: &'a [u8],
        dialect: &Dialect,
    ) -> Result<&'a [u8], Reason> {
        let (b, rest) = bytes.split_first_chunk::<SKELETON>().ok_or(Reason::Truncated)?;
        let opcode = TaOpcode::from_number(b[0]).ok_or(Reason::UbTransactionOpcode)?;
        if opcode.is_response() {
            *into = Some(TaHeader::Response(Atah::read(b, opcode, dialect)));
            return Ok(rest);
        }
        match into.insert(TaHeader::Request(TaRequest::new(Btah::read(b, opcode, dialect)))) {
            TaHeader::Request(request) => request.read_rest(rest, dialect),
            TaHeader::Response(_) => Ok(rest),
        }
    }
    /// Writes the headers and returns their length; panics if `out` is shorter than [`TA_HEAD_MAX`].
    #[inline]
    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut [u8]) -> usize {
        match self {
            TaHeader::Request(request) => request.emit(dialect, out),
            TaHeader::Response(response) => {
                response.emit(dialect, out);
                SKELETON
            }
        }
    }
    /// The operation.
    pub const fn opcode(&self) -> TaOpcode {
        match self {
            TaHeader::Request(request) => request.base.opcode,
            TaHeader::Response(response) => response.opcode,
        }
    }
}

/// The bytes that are not read yet.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Reason> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Reason::Truncated)?;
        self.0 = rest;
        Ok(head)
    }
}
