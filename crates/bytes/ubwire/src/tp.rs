//! Transport headers: RTPH and UTPH (16 bytes each), CETPH (congestion echo, 8 bytes) and SAETPH (selective acknowledgement).

use crate::bytes::{be16, be24, be32, put, put24};
use burst_base::{Psn, Reason};

/// Operation of a reliable transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TpOpcode {
    /// A packet of a transaction.
    Data,
    /// Acknowledgement of all packets up to the PSN, or with the status of a target error, of all before it (NAK).
    Ack {
        /// A CETPH follows.
        congestion: bool,
    },
    /// Selective acknowledgement: a SAETPH follows.
    Sack {
        /// A CETPH follows, before the SAETPH.
        congestion: bool,
    },
}

impl TpOpcode {
    const fn from_number(n: u8) -> Option<TpOpcode> {
        match n {
            1 => Some(TpOpcode::Data),
            2 => Some(TpOpcode::Ack { congestion: false }),
            3 => Some(TpOpcode::Ack { congestion: true }),
            5 => Some(TpOpcode::Sack { congestion: false }),
            6 => Some(TpOpcode::Sack { congestion: true }),
            _ => None,
        }
    }
    const fn number(self) -> u8 {
        match self {
            TpOpcode::Data => 1,
            TpOpcode::Ack { congestion } => 2 + congestion as u8,
            TpOpcode::Sack { congestion } => 5 + congestion as u8,
        }
    }
    /// Whether a CETPH follows.
    pub const fn has_congestion(self) -> bool {
        matches!(self, TpOpcode::Ack { congestion: true } | TpOpcode::Sack { congestion: true })
    }
}

/// Status in RTPH and ATAH, with its information field (5 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UbStatus {
    /// RSPST, 3 bits.
    pub status: u8,
    /// RSPINFO, 5 bits.
    pub info: u8,
}

impl UbStatus {
    /// Executed.
    pub const OK: u8 = 0;
    /// Receiver not ready: send again.
    pub const RNR: u8 = 1;
    /// A page is missing: send again.
    pub const PAGE_FAULT: u8 = 2;
    /// The target refuses. In a transport acknowledgement: NAK.
    pub const ERROR: u8 = 3;
    /// A transport acknowledgement that also acknowledges the transaction.
    pub const FUSED: u8 = 5;
    /// Success.
    pub const SUCCESS: UbStatus = UbStatus { status: Self::OK, info: 0 };

    pub(crate) const fn parse(byte: u8) -> UbStatus {
        UbStatus { status: byte >> 5, info: byte & 0x1f }
    }
    pub(crate) const fn byte(self) -> u8 {
        self.status << 5 | self.info & 0x1f
    }
}

/// Reliable transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtph {
    /// Last packet of its message.
    pub last: bool,
    /// Operation.
    pub opcode: TpOpcode,
    /// Version, 2 bits.
    pub version: u8,
    /// Padding field, 2 bits.
    pub padding: u8,
    /// Sender's channel number, 24 bits.
    pub src_tpn: u32,
    /// Receiver's channel number, 24 bits.
    pub dst_tpn: u32,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Bit F. In a packet of data of Burst: the sender takes acknowledgements of packets from TAACKs
    /// ([`crate::Atah::acknowledges`]).
    pub flag: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// Status of an acknowledgement.
    pub status: UbStatus,
    /// Number of the message, 24 bits.
    pub tpmsn: u32,
}

impl Rtph {
    /// Length in bytes.
    pub const LEN: usize = 16;
    /// The bit of `last`, in byte 0.
    pub(crate) const LAST: u8 = 0x80;
    /// The byte and the bit of `ack_req`.
    pub(crate) const ACK_AT: usize = 8;
    pub(crate) const ACK: u8 = 0x80;
    /// Where the PSN lies.
    pub(crate) const PSN_AT: usize = 9;
    /// Reads the first [`Rtph::LEN`] bytes: [`Reason::Truncated`], [`Reason::UbTransportOpcode`] or [`Reason::UbNextLayer`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Rtph, Reason> {
        let b = bytes.first_chunk::<{ Rtph::LEN }>().ok_or(Reason::Truncated)?;
        if b[1] & 0x0f != 0 {
            return Err(Reason::UbNextLayer);
        }
        Ok(Rtph {
            last: b[0] & Self::LAST != 0,
            opcode: TpOpcode::from_number(b[0] & 0x7f).ok_or(Reason::UbTransportOpcode)?,
            version: b[1] >> 6,
            padding: b[1] >> 4 & 3,
            src_tpn: be24(b, 2),
            dst_tpn: be24(b, 5),
            ack_req: b[Self::ACK_AT] & Self::ACK != 0,
            flag: b[8] & 0x40 != 0,
            psn: Psn::new(be24(b, Self::PSN_AT)),
            status: UbStatus::parse(b[12]),
            tpmsn: be24(b, 13),
        })
    }
    /// Writes the first [`Rtph::LEN`] bytes; panics if there are fewer.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Rtph::LEN];
        out[0] = u8::from(self.last) << 7 | self.opcode.number();
        out[1] = self.version << 6 | (self.padding & 3) << 4;
        put24(out, 2, self.src_tpn);
        put24(out, 5, self.dst_tpn);
        out[8] = u8::from(self.ack_req) << 7 | u8::from(self.flag) << 6;
        put24(out, 9, self.psn.get());
        out[12] = self.status.byte();
        put24(out, 13, self.tpmsn);
    }
}

/// Congestion echo of the receiver, form of C-AQM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cetph {
    /// Bytes received in order, modulo 2^32.
    pub ack_bytes: u32,
    /// A packet asked for an increase, and no switch objected.
    pub increase: bool,
    /// Packets marked as congested since the last echo.
    pub marked: u8,
    /// Bytes granted since the last echo.
    pub granted: u16,
}

impl Cetph {
    /// Length in bytes.
    pub const LEN: usize = 8;
    pub(crate) fn read(b: &[u8]) -> Cetph {
        Cetph { ack_bytes: be32(b, 0), increase: b[4] & 1 != 0, marked: b[5], granted: be16(b, 6) }
    }
    pub(crate) fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.ack_bytes.to_be_bytes());
        out[4] = u8::from(self.increase);
        out[5] = self.marked;
        put(out, 6, &self.granted.to_be_bytes());
    }
}

/// Words of the longest bitmap (1024 bits).
pub const SACK_WORDS_MAX: usize = 16;

/// Selective acknowledgement: bit `i` stands for the PSN of the RTPH plus `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saetph {
    /// Greatest PSN received.
    pub max_psn: Psn,
    /// Bits, least significant first.
    pub bitmap: [u64; SACK_WORDS_MAX],
    /// 0 to 4: the bitmap has `64 << size_code` bits.
    pub size_code: u8,
}

impl Saetph {
    /// Bytes before the bitmap.
    pub const FIXED: usize = 4;
    /// Greatest size code.
    pub const SIZE_CODE_MAX: u8 = 4;
    /// Bits of the bitmap.
    pub const fn bits(&self) -> u32 {
        64 << self.size_code
    }
    /// Length in bytes.
    pub const fn len(&self) -> usize {
        Self::FIXED + (8 << self.size_code)
    }
    /// Never: there are at least 64 bits.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Whether bit `i` is set; not for those behind the end.
    pub fn has(&self, i: u32) -> bool {
        i < self.bits() && self.bitmap[i as usize / 64] >> (i % 64) & 1 != 0
    }
    /// [`Reason::Truncated`] or [`Reason::UbSackSize`].
    pub(crate) fn parse(b: &[u8]) -> Result<Saetph, Reason> {
        let head = b.first_chunk::<{ Saetph::FIXED }>().ok_or(Reason::Truncated)?;
        if head[0] > Self::SIZE_CODE_MAX {
            return Err(Reason::UbSackSize);
        }
        let mut out = Saetph { max_psn: Psn::new(be24(head, 1)), bitmap: [0; SACK_WORDS_MAX], size_code: head[0] };
        let bits = b.get(Self::FIXED..out.len()).ok_or(Reason::Truncated)?;
        for (word, eight) in out.bitmap.iter_mut().zip(bits.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*eight);
        }
        Ok(out)
    }
    pub(crate) fn emit(&self, out: &mut [u8]) {
        out[0] = self.size_code;
        put24(out, 1, self.max_psn.get());
        for (i, word) in self.bitmap.iter().take(1 << self.size_code).enumerate() {
            put(out, Self::FIXED + 8 * i, &word.to_le_bytes());
        }
    }
}
