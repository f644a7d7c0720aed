//! Whole packets, from the NTH to the end of the payload: checked once when parsed, written from a head and a payload.
//!
//! Checks, in order: NTH and its next layer, transport header and version, congestion echo and bitmap of an acknowledgement,
//! transaction header, extended headers, and that the payload fits opcode, offset and length.

use crate::bytes::{be16, be24, put24};
use crate::dialect::Dialect;
use crate::nth::{CongestionField, NextLayer, Nth};
use crate::ta::{Btah, Mtetah, TA_HEAD_MAX, TaHeader, TaOpcode};
use crate::tp::{Cetph, Rtph, SACK_WORDS_MAX, Saetph, TpOpcode, UbStatus};
use burst_base::{Psn, Reason};

/// Bytes of a UTPH; all but the version are zero.
pub const UTPH_LEN: usize = 16;
/// Room for the longest head.
pub const UB_HEAD_MAX: usize = Nth::LEN + Rtph::LEN + Cetph::LEN + Saetph::FIXED + 8 * SACK_WORDS_MAX + TA_HEAD_MAX;

/// All headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UbHead {
    /// Network header; its next layer says whether `rtph` is present.
    pub nth: Nth,
    /// Reliable transport header.
    pub rtph: Option<Rtph>,
    /// Congestion echo, in acknowledgements that have one.
    pub cetph: Option<Cetph>,
    /// Bitmap of a selective acknowledgement.
    pub saetph: Option<Saetph>,
    /// Transaction headers; absent in plain acknowledgements.
    pub ta: Option<TaHeader>,
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UbPacket<'a> {
    /// The headers.
    pub head: UbHead,
    /// The payload.
    pub payload: &'a [u8],
}

impl UbHead {
    /// A head of a network header alone.
    pub const fn new(nth: Nth) -> UbHead {
        UbHead { nth, rtph: None, cetph: None, saetph: None, ta: None }
    }
    /// Writes the headers and returns their length. Panics if `out` is shorter than [`UB_HEAD_MAX`].
    pub fn emit(&self, dialect: &Dialect, out: &mut [u8]) -> usize {
        self.nth.emit(out);
        let mut at = Nth::LEN;
        match (self.nth.next, &self.rtph) {
            (NextLayer::Reliable, Some(rtph)) => {
                rtph.emit(&mut out[at..]);
                at += Rtph::LEN;
            }
            (NextLayer::Reliable, None) => debug_assert!(false, "a reliable packet has an RTPH"),
            (NextLayer::Unreliable, _) => {
                out[at..at + UTPH_LEN].fill(0);
                at += UTPH_LEN;
            }
            (NextLayer::Bypass, _) => {}
        }
        if let Some(cetph) = &self.cetph {
            cetph.emit(&mut out[at..]);
            at += Cetph::LEN;
        }
        if let Some(saetph) = &self.saetph {
            saetph.emit(&mut out[at..]);
            at += saetph.len();
        }
        if let Some(ta) = &self.ta {
            at += ta.emit(dialect, &mut out[at..]);
        }
        at
    }
}

/// The head of a request's packet as bytes, from which those of the message's other packets are made and recognized: they differ
/// in the congestion field, the PSN, two bits of the transport header and the offset. For dialects with placement.
#[derive(Clone, Debug)]
pub struct MessageHead {
    bytes: [u8; Self::MAX],
    /// The bits that all packets of the message share.
    mask: [u8; Self::MAX],
    len: usize,
}

impl MessageHead {
    /// Whole words.
    const MAX: usize = (Nth::LEN + Rtph::LEN + TA_HEAD_MAX).next_multiple_of(8);
    const TA_AT: usize = Nth::LEN + Rtph::LEN;

    /// No head.
    pub const fn new() -> MessageHead {
        MessageHead { bytes: [0; Self::MAX], mask: [0; Self::MAX], len: 0 }
    }
    /// Keeps what [`UbHead::emit`] has written, for a reliable packet without congestion echo and bitmap. Panics if it is longer
    /// than such a head can be.
    pub fn keep(&mut self, head: &[u8]) {
        self.bytes[..head.len()].copy_from_slice(head);
        if self.len != head.len() {
            self.len = head.len();
            self.mask = Self::SHARED;
            self.mask[head.len()..].fill(0);
        }
    }
    /// All but congestion field, last bit, bit that asks for an acknowledgement, PSN and offset.
    const SHARED: [u8; Self::MAX] = {
        let mut mask = [0xff; Self::MAX];
        let (rtph, ta) = (Nth::LEN, Self::TA_AT);
        (mask[Nth::CONGESTION_AT], mask[Nth::CONGESTION_AT + 1]) = (0, 0);
        (mask[rtph], mask[rtph + Rtph::ACK_AT]) = (!Rtph::LAST, !Rtph::ACK);
        let mut at = 0;
        while at < 3 {
            (mask[rtph + Rtph::PSN_AT + at], mask[ta + Btah::OFFSET_AT + at]) = (0, 0);
            at += 1;
        }
        mask
    };
    /// The head that was kept.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
    /// Writes the head with another congestion field and returns its length; [`MessageHead::set`] does the rest. Panics if
    /// `out` is shorter than [`UB_HEAD_MAX`].
    pub fn emit(&self, congestion: CongestionField, out: &mut [u8]) -> usize {
        // The whole array: a copy of constant length.
        out[..Self::MAX].copy_from_slice(&self.bytes);
        out[Nth::CONGESTION_AT..Nth::CONGESTION_AT + 2].copy_from_slice(&congestion.bits().to_be_bytes());
        self.len
    }
    /// Makes a head that of another packet of its message: PSN, whether it is the last packet and whether it asks for an
    /// acknowledgement, offset. Panics if `out` is shorter than the head of a request.
    #[inline]
    pub fn set(out: &mut [u8], psn: Psn, (last, ack_req): (bool, bool), offset: u32) {
        const RTPH: usize = Nth::LEN;
        const ACK: usize = RTPH + Rtph::ACK_AT;
        let out = &mut out[..Self::TA_AT + Btah::LEN];
        out[RTPH] = out[RTPH] & !Rtph::LAST | if last { Rtph::LAST } else { 0 };
        out[ACK] = out[ACK] & !Rtph::ACK | if ack_req { Rtph::ACK } else { 0 };
        put24(out, RTPH + Rtph::PSN_AT, psn.get());
        put24(out, Self::TA_AT + Btah::OFFSET_AT, offset);
    }
    /// Reads a packet that has this head but for what differs between the packets of one message; `None` for any other. The
    /// payload is not checked.
    #[inline]
    pub fn follow<'a>(&self, bytes: &'a [u8]) -> Option<NextPart<'a>> {
        const RTPH: usize = Nth::LEN;
        const ACK: usize = RTPH + Rtph::ACK_AT;
        const OFFSET: usize = MessageHead::TA_AT + Btah::OFFSET_AT;
        let (head, payload) = bytes.split_at_checked(self.len)?;
        let is_next = self.len >= Self::TA_AT + Btah::LEN
            && match bytes.first_chunk::<{ Self::MAX }>() {
                Some(head) => self.is_same(head),
                None => {
                    // A packet whose payload is shorter than what a longer head has more.
                    let mut whole = [0; Self::MAX];
                    whole[..head.len()].copy_from_slice(head);
                    self.is_same(&whole)
                }
            };
        is_next.then(|| NextPart {
            congestion: CongestionField::parse(be16(head, Nth::CONGESTION_AT)),
            last: head[RTPH] & Rtph::LAST != 0,
            ack_req: head[ACK] & Rtph::ACK != 0,
            psn: Psn::new(be24(head, RTPH + Rtph::PSN_AT)),
            offset: be24(head, OFFSET),
            payload,
        })
    }
    /// Whether these bytes begin with this head but for what differs between the packets of one message. Behind the head they
    /// may be any.
    #[inline]
    fn is_same(&self, bytes: &[u8; Self::MAX]) -> bool {
        let word = |bytes: &[u8; Self::MAX], at: usize| u64::from_ne_bytes(bytes.as_chunks().0[at]);
        let differing = |at: usize| (word(bytes, at) ^ word(&self.bytes, at)) & word(&self.mask, at);
        (0..Self::MAX / 8).fold(0, |all, at| all | differing(at)) == 0
    }
}

/// A packet that follows another one of its message ([`MessageHead::follow`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextPart<'a> {
    /// Congestion field.
    pub congestion: CongestionField,
    /// Last packet of its message.
    pub last: bool,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// Offset of the payload in its message.
    pub offset: u32,
    /// The payload.
    pub payload: &'a [u8],
}

impl Default for MessageHead {
    fn default() -> MessageHead {
        MessageHead::new()
    }
}

impl<'a> UbPacket<'a> {
    /// Parses `bytes`, from the NTH to the end of the payload (without a checksum). Fails with [`Reason::Truncated`],
    /// [`Reason::TrailingBytes`] or one of the reasons `Ub…`.
    pub fn parse(bytes: &'a [u8], dialect: &Dialect) -> Result<UbPacket<'a>, Reason> {
        let mut packet = UbPacket::empty();
        packet.read(bytes, dialect).map(|()| packet)
    }
    /// No packet, for [`UbPacket::read`].
    #[inline]
    pub const fn empty() -> UbPacket<'a> {
        UbPacket { head: UbHead::new(Nth::NONE), payload: &[] }
    }
    /// As [`UbPacket::parse`], in place: a head is long. After an error the packet is of no use.
    pub fn read(&mut self, bytes: &'a [u8], dialect: &Dialect) -> Result<(), Reason> {
        if bytes.len() < Nth::LEN {
            return Err(Reason::Truncated);
        }
        self.payload = &[];
        let head = &mut self.head;
        let nth = Nth::parse(bytes).ok_or(Reason::UbNextLayer)?;
        (head.nth, head.rtph, head.cetph, head.saetph, head.ta) = (nth, None, None, None, None);
        let mut rest = &bytes[Nth::LEN..];
        match nth.next {
            NextLayer::Bypass => {}
            NextLayer::Unreliable => {
                let utph = rest.get(..UTPH_LEN).ok_or(Reason::Truncated)?;
                check_utph(utph, dialect)?;
                rest = &rest[UTPH_LEN..];
            }
            NextLayer::Reliable => rest = parse_reliable(head, rest, dialect)?,
        }
        let is_data = head.rtph.is_none_or(|rtph| rtph.opcode == TpOpcode::Data);
        let is_fused = head.rtph.is_some_and(|rtph| rtph.status.status == UbStatus::FUSED);
        if !is_data && !is_fused {
            // Zeros follow in dialects that fill frames up.
            return if rest.is_empty() || dialect.padded { Ok(()) } else { Err(Reason::TrailingBytes) };
        }
        self.read_transaction(rest, is_data, dialect)
    }

    /// The Jetty of this host that the packet belongs to: the one that has sent a request or gets its response, or to which a
    /// received request is addressed. `None`: responses that were sent, and requests that reach memory or a JFR of its own, name
    /// none, and neither do packets of the transport alone.
    pub fn own_jetty(&self, is_sent: bool) -> Option<u32> {
        match self.head.ta? {
            TaHeader::Request(request) if is_sent => Some(request.base.rc_id),
            TaHeader::Request(request) => {
                request.target.filter(|target| target.kind == Mtetah::JETTY).map(|target| target.id)
            }
            TaHeader::Response(_) if is_sent => None,
            TaHeader::Response(response) => Some(response.rc_id),
        }
    }

    /// The transaction header and the payload behind it. `is_data`: not in an acknowledgement, which has responses alone.
    fn read_transaction(&mut self, rest: &'a [u8], is_data: bool, dialect: &Dialect) -> Result<(), Reason> {
        let rest = TaHeader::read(&mut self.head.ta, rest, dialect)?;
        let Some(ta) = &self.head.ta else { return Err(Reason::UbTransactionOpcode) };
        if !is_data && !ta.opcode().is_response() {
            return Err(Reason::UbTransactionOpcode);
        }
        self.payload = check_payload(ta, rest, dialect)?;
        Ok(())
    }
}

fn check_utph(utph: &[u8], dialect: &Dialect) -> Result<(), Reason> {
    if utph[0] & 0x7f != 0 {
        return Err(Reason::UbTransportOpcode);
    }
    if utph[1] & 0x0f != 0 {
        return Err(Reason::UbNextLayer);
    }
    check_version(utph[1] >> 6, dialect)
}

fn check_version(version: u8, dialect: &Dialect) -> Result<(), Reason> {
    if dialect.version_zero && version != 0 { Err(Reason::UbVersion) } else { Ok(()) }
}

/// RTPH, CETPH and SAETPH.
fn parse_reliable<'a>(head: &mut UbHead, bytes: &'a [u8], dialect: &Dialect) -> Result<&'a [u8], Reason> {
    let rtph = Rtph::parse(bytes)?;
    check_version(rtph.version, dialect)?;
    let mut rest = &bytes[Rtph::LEN..];
    if rtph.opcode.has_congestion() {
        let (b, after) = rest.split_at_checked(Cetph::LEN).ok_or(Reason::Truncated)?;
        head.cetph = Some(Cetph::read(b));
        rest = after;
    }
    if let TpOpcode::Sack { .. } = rtph.opcode {
        let saetph = Saetph::parse(rest)?;
        rest = &rest[saetph.len()..];
        head.saetph = Some(saetph);
    }
    head.rtph = Some(rtph);
    Ok(rest)
}

/// The payload, if it fits.
fn check_payload<'a>(ta: &TaHeader, rest: &'a [u8], dialect: &Dialect) -> Result<&'a [u8], Reason> {
    let opcode = ta.opcode();
    if !opcode.has_payload() {
        return if rest.is_empty() || dialect.padded { Ok(&[]) } else { Err(Reason::TrailingBytes) };
    }
    let TaHeader::Request(request) = ta else {
        let is_sound = opcode != TaOpcode::AtomicResponse || rest.len() == 8 || rest.is_empty() || dialect.padded;
        return if is_sound { Ok(rest) } else { Err(Reason::UbLength) };
    };
    let Some(memory) = request.memory else { return Ok(rest) };
    if dialect.padded {
        return rest.get(..memory.len as usize).ok_or(Reason::Truncated);
    }
    let end = u64::from(request.base.offset) + rest.len() as u64;
    if end > u64::from(memory.len) { Err(Reason::UbLength) } else { Ok(rest) }
}
