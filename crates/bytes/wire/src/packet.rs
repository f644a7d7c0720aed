//! Checks a received packet, from the BTH to the end of the payload, and gives access to its headers.
//!
//! Checks, in order: 12 bytes of BTH, version, opcode, room for the opcode's headers, whole four-byte
//! words, padding within the payload, no payload if the opcode has none, and the values of the selective repeat headers.
//! After that nothing can fail, so the accessors of the headers are a table look-up and a few loads.

use crate::aeth::Aeth;
use crate::bth::Bth;
use crate::bytes::be32;
use crate::ext::{AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth};
use crate::opcode::{Check, Ext, Opcode, OpcodeInfo};
use crate::selective::{self, AckBitmap, Saeth, Seth, Weth};
use burst_base::Reason;

/// The transport part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// Row of the opcode table.
    pub info: &'static OpcodeInfo,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// BTH and extension headers, as long as `info` says.
    head: &'a [u8],
}

macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident: $ext:ident $header:ident;)+) => {
        $($(#[$doc])*
        #[inline]
        pub fn $name(&self) -> Option<$header> {
            match self.info.offset(Ext::$ext) {
                0 => None,
                at => $header::parse(self.head.get(at..)?),
            }
        })+
    };
}

/// Whether a packet of the selective repeat family, whose lengths have been checked, is one of the most frequent ones and without
/// a fault.
#[inline(never)]
fn is_sound(bytes: &[u8], info: &'static OpcodeInfo, payload_len: usize) -> bool {
    match info.check {
        Check::Write => selective::is_sound_write(bytes, info.is_start, payload_len),
        Check::Send => selective::is_sound_send(bytes, info.is_start),
        Check::Ack => selective::is_sound_ack(bytes, payload_len),
        _ => false,
    }
}

/// Checks of a packet whose lengths have been checked. They make a packet of their own: with the address of the one that
/// [`Packet::parse`] returns, every packet would be built in memory instead of in registers.
#[cold]
#[inline(never)]
fn check_fully(bytes: &[u8], info: &'static OpcodeInfo, payload_len: usize) -> Result<(), Reason> {
    let (head, rest) = bytes.split_at(usize::from(info.head_len));
    if !info.has_payload && !rest.is_empty() {
        return Err(Reason::TrailingBytes);
    }
    // A receipt of UC has a header of that family, too.
    if !info.service.is_selective() && info.offset(Ext::Saeth) == 0 {
        return Ok(());
    }
    let bth = Bth::parse(head)?;
    selective::check(&Packet { bth, info, payload: &rest[..payload_len], head })
}

impl<'a> Packet<'a> {
    /// Parses `bytes`: BTH to the end of the padding, without the ICRC. Fails with [`Reason::Truncated`],
    /// [`Reason::BadVersion`], [`Reason::UnknownOpcode`], [`Reason::BadPadding`] or [`Reason::TrailingBytes`]; a packet of the
    /// selective repeat family also with the reasons of its headers, `Reason::Sr…`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Reason> {
        let Some(b) = bytes.first_chunk::<{ Bth::LEN }>() else { return Err(Reason::Truncated) };
        if b[1] & 0x0f != 0 {
            return Err(Reason::BadVersion);
        }
        let info = Opcode::lookup(b[0]).ok_or(Reason::UnknownOpcode)?;
        let (head, rest) = bytes.split_at_checked(usize::from(info.head_len)).ok_or(Reason::Truncated)?;
        let bth = Bth::read(b, info.opcode);
        let payload_len = rest.len().wrapping_sub(usize::from(bth.pad));
        if !bytes.len().is_multiple_of(4) || payload_len > rest.len() {
            return Err(Reason::BadPadding);
        }
        if info.check != Check::Nothing {
            let is_sound =
                if info.check == Check::Empty { rest.is_empty() } else { is_sound(bytes, info, payload_len) };
            if !is_sound {
                check_fully(bytes, info, payload_len)?;
            }
        }
        Ok(Packet { bth, info, payload: &rest[..payload_len], head })
    }
    accessors! {
        /// The DETH of a datagram.
        deth: Deth Deth;
        /// The XRCETH of an XRC request.
        xrceth: Xrc XrcEth;
        /// The RETH of a first or only WRITE packet, or of a READ request.
        reth: Reth Reth;
        /// The AtomicETH of an atomic request.
        atomic: Atomic AtomicEth;
        /// The AETH of an acknowledgement, or of a first, last or only READ response.
        aeth: Aeth Aeth;
        /// The AtomicAckETH of an atomic acknowledgement.
        atomic_ack: AtomicAck AtomicAckEth;
        /// Immediate data.
        imm: Imm ImmDt;
        /// The IETH of a SEND with invalidate.
        ieth: Ieth Ieth;
        /// The SETH of a packet of the selective repeat family.
        seth: Seth Seth;
        /// The WETH of a WRITE of the selective repeat family.
        weth: Weth Weth;
        /// The SAETH of an acknowledgement of the selective repeat family.
        saeth: Saeth Saeth;
    }
    /// The bitmap of an acknowledgement of the selective repeat family.
    pub fn bitmap(&self) -> Option<AckBitmap<'a>> {
        self.saeth().and_then(|_| AckBitmap::of(self.payload))
    }
    /// The words of the SETH of a SEND or WRITE of RC, in host order ([`Seth::words`]): its fields without those that are zero in
    /// all such packets.
    #[inline(always)]
    pub fn rc_message_seth(&self) -> Option<[u32; 2]> {
        debug_assert!(matches!(self.info.check, Check::Send | Check::Write));
        let head = self.head.first_chunk::<{ Bth::LEN + Seth::LEN }>()?;
        Some([be32(head, Bth::LEN), be32(head, Bth::LEN + 4)])
    }
    /// BTH and extension headers, as received.
    pub const fn head(&self) -> &'a [u8] {
        self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;

    /// Bytes of a packet of the selective repeat family after the BTH: each is zero, all ones, one bit or anything.
    fn fill(rng: &mut Rng, bytes: &mut [u8]) {
        for byte in bytes {
            let any = rng.next_u32();
            *byte = match any >> 28 {
                0..=10 => 0,
                11 => 0xff,
                12..=14 => 1 << (any & 7),
                _ => any as u8,
            };
        }
    }

    #[test]
    fn the_short_check_of_messages_finds_what_the_full_check_finds() {
        let mut rng = Rng::new(7);
        let (mut sound, mut faulty) = (0, 0);
        for info in (0..=255).filter_map(Opcode::lookup).filter(|info| info.service.is_selective()) {
            let is_message = matches!(info.check, Check::Send | Check::Write);
            let payload_len = if info.has_payload { 16 } else { 0 };
            for _ in 0..20_000 {
                let mut bytes = vec![0; usize::from(info.head_len) + payload_len];
                fill(&mut rng, &mut bytes[Bth::LEN..]);
                bytes[0] = info.opcode.number();
                let is_sound = is_sound(&bytes, info, payload_len) && info.check != Check::Ack;
                let full = check_fully(&bytes, info, payload_len);
                assert_eq!(is_sound, is_message && full.is_ok(), "{info:?} {full:?} {bytes:x?}");
                sound += u32::from(is_sound);
                faulty += u32::from(is_message && !is_sound);
            }
        }
        assert!(sound > 10_000 && faulty > 10_000, "{sound} {faulty}");
    }

    #[test]
    fn the_short_check_of_acknowledgements_finds_what_the_full_check_finds() {
        let mut rng = Rng::new(8);
        let mut counts = [0; 3];
        for info in [Opcode::RcSrAck, Opcode::XrcSrAck].map(Opcode::info) {
            for round in 0..40_000 {
                let payload_len = 8 * (round % 17);
                let mut bytes = vec![0; usize::from(info.head_len) + payload_len];
                fill(&mut rng, &mut bytes[Bth::LEN..]);
                bytes[0] = info.opcode.number();
                let pad = if rng.below(8) == 0 { rng.below(4) as u8 } else { 0 };
                bytes[1] = pad << 4;
                if rng.below(2) == 0 {
                    bytes[Bth::LEN + Aeth::LEN] = (payload_len / 8) as u8 & 15;
                }
                let payload_len = payload_len.saturating_sub(pad.into());
                let is_sound = selective::is_sound_ack(&bytes, payload_len);
                let full = check_fully(&bytes, info, payload_len);
                let is_nak = bytes[Bth::LEN] >> 5 != 0;
                assert_eq!(is_sound, full.is_ok() && !is_nak, "{full:?} {bytes:x?}");
                counts[if is_sound { 0 } else { 1 + usize::from(full.is_ok()) }] += 1;
            }
        }
        assert!(counts.iter().all(|&count| count > 5_000), "sound, faulty, sound NAKs: {counts:?}");
    }
}
