//! Headers of the selective repeat family, Burst's own packets between two Burst peers: SETH, WETH, SAETH and the bitmap of an
//! acknowledgement. `docs/protocol.md` has every format as a byte diagram.
//!
//! The opcodes are those that IBA leaves to manufacturers (0xC0 to 0xFF), so a peer that does not know them drops the packets.
//! Each packet says by itself where it belongs: SETH gives the index of the packet in its message, WETH the address of its first
//! byte. That allows a receiver to place a packet before the packets in front of it have arrived.
//!
//! `check` refuses values that no sender of this format produces. Checks that need the state of a queue pair (an index that
//! does not fit the PSN, an acknowledgement of packets that were never sent) belong to the transport.

use crate::aeth::{Aeth, NakCode, Syndrome};
use crate::bth::Bth;
use crate::bytes::{be16, be24, be32, be64, put, put24};
use crate::opcode::OpKind;
use crate::packet::Packet;
use burst_base::num::MASK_24;
use burst_base::{Psn, Reason, Rkey};

/// The version of the family that this crate reads and writes (SETH, two bits).
pub const VERSION: u8 = 0;
/// Packets of the largest message: 2^31 bytes (IBA 9.7.2) at the smallest path MTU, 256 bytes.
pub const MESSAGE_PACKETS_MAX: u32 = 1 << 23;
/// Most words of a bitmap: the field has four bits.
pub const BITMAP_WORDS_MAX: usize = 15;
/// PSNs of one word of a bitmap.
pub const PSNS_PER_WORD: u32 = 64;
/// Largest transmission number: later repetitions have this number, too.
pub const TRANSMISSION_MAX: u8 = 15;
/// Nanoseconds of one unit of [`Saeth::delay`].
pub const DELAY_UNIT_NS: u64 = 64;
const WORD: usize = (PSNS_PER_WORD / 8) as usize;

/// Selective repeat header, in every packet of the family but [`OpKind::Ack`] and [`OpKind::ReadAck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seth {
    /// Version, two bits: [`VERSION`].
    pub version: u8,
    /// The requester repeats its last packet to provoke an acknowledgement.
    pub is_probe: bool,
    /// A READ request for a part of a READ whose response has gaps, or a response to such a request.
    pub is_repair: bool,
    /// Transmission number: 0 for the first transmission of the packet, at most [`TRANSMISSION_MAX`].
    pub transmission: u8,
    /// Requests: receives consumed by the messages before this one, modulo 2^24. READ responses: MSN.
    pub rsn: u32,
    /// Zero; reserved for several paths.
    pub lane: u8,
    /// Index of the packet in its message, 24 bits. Of a READ repair: index of the first packet of the range.
    pub index: u32,
}

impl Seth {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// Reads the first [`Seth::LEN`] bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Seth> {
        let b = bytes.first_chunk::<{ Seth::LEN }>()?;
        let (first, second) = (be32(b, 0), be32(b, 4));
        Some(Seth {
            version: b[0] >> 6,
            is_probe: b[0] & 0x20 != 0,
            is_repair: b[0] & 0x10 != 0,
            transmission: b[0] & 0x0f,
            rsn: first & MASK_24,
            lane: b[4],
            index: second & MASK_24,
        })
    }
    /// The header as words, in host order.
    #[inline]
    pub fn words(&self) -> [u32; Seth::LEN / 4] {
        let flags = u32::from(self.is_probe) << 5 | u32::from(self.is_repair) << 4;
        let first = u32::from(self.version & 3) << 6 | flags | u32::from(self.transmission.min(TRANSMISSION_MAX));
        [first << 24 | self.rsn & MASK_24, u32::from(self.lane) << 24 | self.index & MASK_24]
    }
    /// Writes the first [`Seth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let (out, [first, second]) = (&mut out[..Seth::LEN], self.words());
        put(out, 0, &first.to_be_bytes());
        put(out, 4, &second.to_be_bytes());
    }
    /// Writes another index into a header that begins at `at`.
    #[inline]
    pub fn set_index(out: &mut [u8], at: usize, index: u32) {
        put24(out, at + 5, index & MASK_24);
    }
}

/// Header of a WRITE packet of the family: where its payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Weth {
    /// Remote virtual address of the first byte of this packet's payload.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
}

impl Weth {
    /// Length in bytes.
    pub const LEN: usize = 12;
    /// Reads the first [`Weth::LEN`] bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Weth> {
        let b = bytes.first_chunk::<{ Weth::LEN }>()?;
        Some(Weth { addr: be64(b, 0), rkey: Rkey(be32(b, 8)) })
    }
    /// The header as words, in host order.
    #[inline]
    pub const fn words(&self) -> [u32; Weth::LEN / 4] {
        [(self.addr >> 32) as u32, self.addr as u32, self.rkey.0]
    }
    /// Writes the first [`Weth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.addr.to_be_bytes());
        put(out, 8, &self.rkey.0.to_be_bytes());
    }
    /// Writes another address into a header that begins at `at`.
    #[inline]
    pub fn set_addr(out: &mut [u8], at: usize, addr: u64) {
        put(out, at, &addr.to_be_bytes());
    }
}

/// Acknowledgement header: state of the receiver, and the length of the bitmap that follows. The counters are cumulative, so a
/// lost acknowledgement loses no information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Saeth {
    /// Pressure on the receiving host: 0 none, 1 receive buffer over half full, 2 over three quarters, 3 packets lost there.
    pub pressure: u8,
    /// A packet marked "congestion experienced" arrived since the last acknowledgement.
    pub is_congested: bool,
    /// Words of the bitmap, 0..=15.
    pub words: u8,
    /// PSN of the newest packet received: the one that arrived last, whatever its PSN.
    pub trigger: Psn,
    /// Time from the arrival of the newest packet to this acknowledgement, in units of [`DELAY_UNIT_NS`], saturating.
    pub delay: u16,
    /// Packets marked "congestion experienced", modulo 2^16.
    pub congested_packets: u16,
    /// Packets received, modulo 2^16.
    pub received_packets: u16,
    /// Transmission number of the newest packet, 0..=15.
    pub transmission: u8,
}

impl Saeth {
    /// Length in bytes, without the bitmap.
    pub const LEN: usize = 12;
    /// Reads the first [`Saeth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Saeth> {
        let b = bytes.first_chunk::<{ Saeth::LEN }>()?;
        Some(Saeth {
            pressure: b[0] >> 5 & 3,
            is_congested: b[0] & 0x10 != 0,
            words: b[0] & 0x0f,
            trigger: Psn::new(be24(b, 1)),
            delay: be16(b, 4),
            congested_packets: be16(b, 6),
            received_packets: be16(b, 8),
            transmission: b[10] >> 4,
        })
    }
    /// The header as words, in host order.
    #[inline]
    pub fn words(&self) -> [u32; Saeth::LEN / 4] {
        debug_assert!(usize::from(self.words) <= BITMAP_WORDS_MAX && self.pressure < 4);
        let first = (self.pressure & 3) << 5 | u8::from(self.is_congested) << 4 | self.words & 0x0f;
        let transmission = u32::from(self.transmission.min(TRANSMISSION_MAX)) << 12;
        [
            u32::from(first) << 24 | self.trigger.get(),
            u32::from(self.delay) << 16 | u32::from(self.congested_packets),
            u32::from(self.received_packets) << 16 | transmission,
        ]
    }
    /// Writes the first [`Saeth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        for (at, word) in (0..).step_by(4).zip(self.words()) {
            put(out, at, &word.to_be_bytes());
        }
    }
}

/// The bitmap of an acknowledgement, as received. Bit *i* stands for the *i*-th PSN after the first missing one; it is bit
/// *i mod 8*, counted from the least significant, of byte *i / 8*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AckBitmap<'a> {
    bytes: &'a [u8],
}

impl<'a> AckBitmap<'a> {
    /// The bitmap that these bytes hold; `None` unless they are whole words, at most [`BITMAP_WORDS_MAX`].
    pub fn of(bytes: &'a [u8]) -> Option<AckBitmap<'a>> {
        let is_whole = bytes.len().is_multiple_of(WORD) && bytes.len() <= BITMAP_WORDS_MAX * WORD;
        is_whole.then_some(AckBitmap { bytes })
    }
    /// Number of words.
    pub const fn words(&self) -> usize {
        self.bytes.len() / WORD
    }
    /// Word `w`: bit 0 is PSN `ePSN + 1 + 64 w`. Zero behind the end.
    pub fn word(&self, w: usize) -> u64 {
        let bytes = w.checked_mul(WORD).and_then(|at| self.bytes.get(at..)?.first_chunk::<WORD>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
    /// Whether PSN `ePSN + 1 + i` was received.
    pub fn is_received(&self, i: u32) -> bool {
        self.word((i / PSNS_PER_WORD) as usize) >> (i % PSNS_PER_WORD) & 1 != 0
    }
    /// Writes `words` to the front of `out` and returns the number of bytes. Panics if `out` is too short.
    pub fn emit(words: &[u64], out: &mut [u8]) -> usize {
        assert!(words.len() <= BITMAP_WORDS_MAX);
        for (word, out) in words.iter().zip(out[..words.len() * WORD].chunks_exact_mut(WORD)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        words.len() * WORD
    }
}

/// The bits of the second byte of a BTH that count padding.
const PAD_BITS: u8 = 0x30;
/// Bits of a SETH that are zero in every SEND and WRITE: version, repair, lane, and an index of [`MESSAGE_PACKETS_MAX`] or more.
const UNSET_BITS: u64 = 0xd000_0000_ff80_0000;
const _: () = assert!(MESSAGE_PACKETS_MAX == 0x80_0000 && VERSION == 0);

/// Whether a packet, whose lengths have been checked, is a SEND of RC with which [`check`] finds no fault: the same rules in a
/// few words.
#[inline(always)]
pub(crate) fn is_sound_send(bytes: &[u8], is_start: bool) -> bool {
    let Some(head) = bytes.first_chunk::<{ Bth::LEN + Seth::LEN }>() else { return false };
    let word = be64(head, Bth::LEN);
    word & UNSET_BITS == 0 && (word & u64::from(MASK_24) == 0) == is_start
}

/// The same for a WRITE.
#[inline(always)]
pub(crate) fn is_sound_write(bytes: &[u8], is_start: bool, payload_len: usize) -> bool {
    let Some(head) = bytes.first_chunk::<{ Bth::LEN + Seth::LEN + Weth::LEN }>() else { return false };
    is_sound_send(head, is_start) && be64(head, Bth::LEN + Seth::LEN).checked_add(payload_len as u64).is_some()
}

/// Whether an acknowledgement, whose lengths have been checked, is no NAK and has no fault: the rules of [`check`] in a few
/// words.
#[inline(always)]
pub(crate) fn is_sound_ack(bytes: &[u8], payload_len: usize) -> bool {
    let head = bytes.first_chunk::<{ Bth::LEN + Aeth::LEN + 1 }>();
    head.is_some_and(|head| {
        let (syndrome, words) = (head[Bth::LEN], head[Bth::LEN + Aeth::LEN] & 0x0f);
        syndrome >> 5 == 0 && usize::from(words) * WORD == payload_len && head[1] & PAD_BITS == 0
    })
}

/// Refuses a packet of the family whose headers have values that no sender produces.
///
/// # Errors
/// [`Reason::SrVersion`], [`Reason::SrFlags`], [`Reason::SrIndex`], [`Reason::SrAddress`], [`Reason::SrBitmap`] or
/// [`Reason::SrSyndrome`].
pub(crate) fn check(pkt: &Packet<'_>) -> Result<(), Reason> {
    if let Some(seth) = pkt.seth() {
        check_seth(&seth, pkt)?;
    }
    if let Some(weth) = pkt.weth()
        && weth.addr.checked_add(pkt.payload.len() as u64).is_none()
    {
        return Err(Reason::SrAddress);
    }
    if let Some(saeth) = pkt.saeth()
        && (usize::from(saeth.words) * WORD != pkt.payload.len() || pkt.bth.pad != 0)
    {
        return Err(Reason::SrBitmap);
    }
    match (pkt.info.kind, pkt.aeth().map(|aeth| aeth.syndrome)) {
        // A bitmap says better what is missing.
        (_, Some(Syndrome::Nak(NakCode::PsnSequence))) => Err(Reason::SrSyndrome),
        (OpKind::AtomicAck, Some(Syndrome::Rnr { .. } | Syndrome::Nak(_))) => Err(Reason::SrSyndrome),
        _ => Ok(()),
    }
}

fn check_seth(seth: &Seth, pkt: &Packet<'_>) -> Result<(), Reason> {
    let (kind, position) = (pkt.info.kind, pkt.info.position);
    if seth.version != VERSION || seth.lane != 0 {
        return Err(Reason::SrVersion);
    }
    let is_read = matches!(kind, OpKind::ReadRequest | OpKind::ReadResponse);
    let may_probe = kind.is_request() || kind == OpKind::Probe;
    if seth.is_repair && !is_read || seth.is_probe && !may_probe {
        return Err(Reason::SrFlags);
    }
    let is_range = kind == OpKind::ReadRequest && seth.is_repair;
    let fits = is_range || (seth.index == 0) == position.is_start();
    if fits && seth.index < MESSAGE_PACKETS_MAX { Ok(()) } else { Err(Reason::SrIndex) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_diagrams() {
        let mut out = [0xee; 12];
        let seth = Seth { is_probe: true, transmission: 3, rsn: 0x01_0203, index: 0x04_0506, ..Seth::default() };
        seth.emit(&mut out);
        assert_eq!(out[..8], [0b0010_0011, 1, 2, 3, 0, 4, 5, 6]);
        Seth { version: 2, is_repair: true, lane: 9, ..Seth::default() }.emit(&mut out);
        assert_eq!(out[..8], [0b1001_0000, 0, 0, 0, 9, 0, 0, 0]);
        Weth { addr: 0x0102_0304_0506_0708, rkey: Rkey(0x090a_0b0c) }.emit(&mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let saeth = Saeth {
            pressure: 2,
            is_congested: true,
            words: 5,
            trigger: Psn::new(0x01_0203),
            delay: 0x0405,
            congested_packets: 0x0607,
            received_packets: 0x0809,
            transmission: 10,
        };
        saeth.emit(&mut out);
        assert_eq!(out, [0b0101_0101, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa0, 0]);
    }

    #[test]
    fn a_transmission_number_saturates() {
        let mut out = [0; 12];
        Seth { transmission: 200, ..Seth::default() }.emit(&mut out);
        assert_eq!(Seth::parse(&out).map(|seth| (seth.version, seth.transmission)), Some((0, 15)));
        Saeth { transmission: 200, ..Saeth::default() }.emit(&mut out);
        assert_eq!(Saeth::parse(&out).map(|saeth| saeth.transmission), Some(15));
    }

    #[test]
    fn bits_are_counted_from_the_least_significant_of_the_first_byte() {
        let mut out = [0; 16];
        assert_eq!(AckBitmap::emit(&[1 | 1 << 9, 1 << 63], &mut out), 16);
        assert_eq!((out[0], out[1], out[15]), (1, 2, 0x80));
        let bitmap = AckBitmap::of(&out).unwrap();
        let received: Vec<u32> = (0..200).filter(|&i| bitmap.is_received(i)).collect();
        assert_eq!((received, bitmap.words()), (vec![0, 9, 127], 2));
        assert_eq!((bitmap.word(1), bitmap.word(2), bitmap.word(usize::MAX)), (1 << 63, 0, 0));
        assert_eq!(AckBitmap::of(&[0; 12]), None);
        assert_eq!(AckBitmap::of(&[0; 128]), None);
        assert!(AckBitmap::of(&[0; 120]).is_some() && AckBitmap::of(&[]).is_some());
    }
}
