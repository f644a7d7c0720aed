//! The invariant CRC of RoCEv2 (IBA annex A17.3.3): CRC-32 over the packet as it was when it left, fields that
//! routers may change replaced by ones.
//!
//! Covered: eight bytes of ones (where InfiniBand has its LRH), the IP header with TOS, TTL and checksum as ones (IPv6:
//! traffic class, flow label and hop limit), the UDP header with its checksum as ones, the BTH with its byte 4 (FECN,
//! BECN) as ones, and everything after it to the end of the padding. The result goes on the wire low byte first.
//!
//! The IPv4 identification is covered, but a UDP socket neither sets nor sees it. CRCs are linear: [`IdDelta`] gives
//! the difference that an identification makes to the CRC with identification 0. A sender prepares a train with
//! identifications 0, 1, 2... from CRCs with 0, and a receiver computes the identification that explains a difference. One in
//! 65536 corrupted packets has such an identification by chance, so a receiver should try the predicted value first, and
//! count other values or require that they follow the packet before.
//!
//! The CRC itself (crate `burst_crc`) is libdeflate's, except on processors that multiply 128 bits only. The ICRCs of a train
//! are checked together ([`crate::train`]). `cargo bench -p burst-wire` compares it with its rivals; on a Zen 3 core (VPCLMULQDQ,
//! 256 bits; noisy, ranges of six runs) they took, relative to it: crc32fast 1.6-2.2 times as long for 20 bytes, 1.3-2.7
//! for 64, 1.2-1.7 for 1 KiB, 0.7-1.1 for 4 KiB; crc-fast 3.9-5.7, 3.0-5.5, 1.6-3.2 and 1.4-2.3. Every packet has a head
//! of 40 to 100 bytes, and there the lead is largest.

use crate::bth::Bth;
use crate::crc32::{FieldDelta, MASK_BYTE_4, MASK_BYTES_7_8, explain_once};
use crate::ip::{IP_PROTOCOL_UDP, Ipv4, Ipv6, ROCE_PORT, Udp};
use crate::train::FirstRegister;
use crate::{HEAD_MAX, ICRC_LEN};
use burst_crc::{short, update};
use burst_span::{Span, Unreachable};
use core::net::{Ipv4Addr, Ipv6Addr};

/// Fields of IPv4 and UDP that the ICRC covers, besides the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PseudoV4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset as on the wire.
    pub flags_fragment: u16,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

impl PseudoV4 {
    /// The usual values: DF, identification 0, the RoCEv2 port.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16) -> PseudoV4 {
        PseudoV4 { src, dst, id: 0, flags_fragment: Ipv4::DONT_FRAGMENT, src_port, dst_port: ROCE_PORT }
    }
    /// From the headers themselves.
    pub const fn of(ip: &Ipv4, udp: &Udp) -> PseudoV4 {
        PseudoV4 {
            src: ip.src,
            dst: ip.dst,
            id: ip.id,
            flags_fragment: ip.flags_fragment,
            src_port: udp.src_port,
            dst_port: udp.dst_port,
        }
    }
    /// The headers with ones where the ICRC has them.
    fn emit(&self, udp_payload_len: usize, masked: &mut [u8]) {
        let udp_len = (udp_payload_len + Udp::LEN) as u16;
        let ip = Ipv4 {
            tos: 0xff,
            total_len: udp_len.wrapping_add(Ipv4::LEN as u16),
            id: self.id,
            flags_fragment: self.flags_fragment,
            ttl: 0xff,
            protocol: IP_PROTOCOL_UDP,
            checksum: 0xffff,
            src: self.src,
            dst: self.dst,
        };
        ip.emit(masked);
        masked_udp(self.src_port, self.dst_port, udp_len).emit(&mut masked[Ipv4::LEN..]);
    }
}

/// Fields of IPv6 and UDP that the ICRC covers, besides the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PseudoV6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

impl PseudoV6 {
    /// The usual values: the RoCEv2 port.
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> PseudoV6 {
        PseudoV6 { src, dst, src_port, dst_port: ROCE_PORT }
    }
    /// From the headers themselves.
    pub const fn of(ip: &Ipv6, udp: &Udp) -> PseudoV6 {
        PseudoV6 { src: ip.src, dst: ip.dst, src_port: udp.src_port, dst_port: udp.dst_port }
    }
    /// The headers with ones where the ICRC has them.
    fn emit(&self, udp_payload_len: usize, masked: &mut [u8]) {
        let udp_len = (udp_payload_len + Udp::LEN) as u16;
        let ip = Ipv6 {
            traffic_class: 0xff,
            flow_label: 0xf_ffff,
            payload_len: udp_len,
            next_header: IP_PROTOCOL_UDP,
            hop_limit: 0xff,
            src: self.src,
            dst: self.dst,
        };
        ip.emit(masked);
        masked_udp(self.src_port, self.dst_port, udp_len).emit(&mut masked[Ipv6::LEN..]);
    }
}

fn masked_udp(src_port: u16, dst_port: u16, len: u16) -> Udp {
    Udp { src_port, dst_port, len, checksum: 0xffff }
}

/// Bytes of the pseudo headers over IPv4.
const V4_LEN: usize = Ipv4::LEN + Udp::LEN;
/// Bytes of the pseudo headers over IPv6.
const V6_LEN: usize = Ipv6::LEN + Udp::LEN;
/// Contribution of the identification to the CRC of the pseudo headers alone. It is the same for all packets.
static ID_IN_PSEUDO: FieldDelta = FieldDelta::constant((V4_LEN - 6) as u16);

/// CRC-32 of the eight bytes of ones that begin every ICRC.
const ONES_8: u32 = 0x2144_df1c;
/// Longest piece for which the table is faster than the other methods: a BTH and one more word.
const HEAD_BYTES: usize = 16;
/// Bytes of a remote span copied at a time.
const REMOTE_CHUNK: usize = 4096;

/// An unfinished ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icrc {
    crc: u32,
}

impl Icrc {
    /// Begins an ICRC over IPv4. `transport` begins with the BTH and may go on as far as the caller has it in one
    /// piece; `udp_payload_len` counts the whole UDP payload, ICRC included. Panics without a whole BTH.
    pub fn ipv4(pseudo: &PseudoV4, udp_payload_len: usize, transport: &[u8]) -> Icrc {
        let mut masked = [0; V4_LEN + HEAD_MAX];
        pseudo.emit(udp_payload_len, &mut masked);
        Icrc { crc: ONES_8 }.begin(&mut masked, V4_LEN, transport)
    }
    /// Begins an ICRC over IPv6; like [`Icrc::ipv4`].
    pub fn ipv6(pseudo: &PseudoV6, udp_payload_len: usize, transport: &[u8]) -> Icrc {
        let mut masked = [0; V6_LEN + HEAD_MAX];
        pseudo.emit(udp_payload_len, &mut masked);
        Icrc { crc: ONES_8 }.begin(&mut masked, V6_LEN, transport)
    }
    /// Copies the first bytes of `transport` behind the pseudo headers, masks the BTH, and adds all in one call.
    fn begin(self, masked: &mut [u8], at: usize, transport: &[u8]) -> Icrc {
        assert!(transport.len() >= Bth::LEN);
        let (head, rest) = transport.split_at(transport.len().min(HEAD_MAX));
        let end = at + head.len();
        masked[at..end].copy_from_slice(head);
        masked[at + 4] = 0xff;
        self.update(&masked[..end]).update(rest)
    }
    /// Adds the next bytes.
    #[must_use]
    #[inline]
    pub fn update(self, bytes: &[u8]) -> Icrc {
        // The table is faster for heads.
        let crc = if bytes.len() <= HEAD_BYTES { short(self.crc, bytes) } else { update(self.crc, bytes) };
        Icrc { crc }
    }
    /// Adds the bytes of a span. Another process's memory is copied piece by piece to the stack.
    pub fn update_span(self, span: &Span) -> Result<Icrc, Unreachable> {
        if let Some(icrc) = span.with_bytes(|bytes| self.update(bytes)) {
            return Ok(icrc);
        }
        let mut buffer = [0; REMOTE_CHUNK];
        let mut icrc = self;
        let mut done = 0;
        while done < span.len() {
            let n = (span.len() - done).min(REMOTE_CHUNK);
            span.sub(done, n).read_to(&mut buffer[..n])?;
            icrc = icrc.update(&buffer[..n]);
            done += n;
        }
        Ok(icrc)
    }
    /// Copies a span to `dst`, which must have its length (panics otherwise), and adds the copied bytes: the
    /// CRC is correct for the bytes of `dst` even if the application writes to the span meanwhile. The copy costs little,
    /// because each piece is still in the first cache when the CRC reads it.
    pub fn copy_span(self, span: &Span, dst: &mut [u8]) -> Result<Icrc, Unreachable> {
        assert_eq!(dst.len(), span.len());
        // One system call for another process's memory, small pieces for this process's.
        let piece = if span.is_local() { burst_span::PIECE } else { usize::MAX };
        let mut icrc = self;
        let mut done = 0;
        for dst in dst.chunks_mut(piece) {
            span.sub(done, dst.len()).read_to(dst)?;
            icrc = icrc.update(dst);
            done += dst.len();
        }
        Ok(icrc)
    }
    /// The bytes for the wire.
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        self.crc.to_le_bytes()
    }
    /// The bytes for the wire if the packet is sent with this identification instead of 0. `delta` must be that of the
    /// packet's length.
    pub fn finish_with_id(self, delta: &IdDelta, id: u16) -> [u8; ICRC_LEN] {
        (self.crc ^ delta.field.of(id)).to_le_bytes()
    }
}

/// The beginning of the ICRCs of packets of one flow and one length: the CRC of the pseudo headers.
///
/// Tables add the identification and the masked byte of the BTH, so that each packet needs one pass over its
/// bytes and no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    crc: u32,
    mask: CrcMask,
}

/// Bytes of a packet that count as ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrcMask {
    /// FECN and BECN of RoCEv2's BTH.
    Byte4,
    /// The congestion field of the Unified Bus's network header.
    Bytes7And8,
}

impl Prepared {
    /// Over IPv4. [`Prepared::begin`] adds the identification, so `pseudo.id` should be 0.
    pub fn ipv4(pseudo: &PseudoV4, udp_payload_len: usize) -> Prepared {
        let mut masked = [0; V4_LEN];
        pseudo.emit(udp_payload_len, &mut masked);
        Prepared { crc: Icrc { crc: ONES_8 }.update(&masked).crc, mask: CrcMask::Byte4 }
    }
    /// A packet over IPv6.
    pub fn ipv6(pseudo: &PseudoV6, udp_payload_len: usize) -> Prepared {
        let mut masked = [0; V6_LEN];
        pseudo.emit(udp_payload_len, &mut masked);
        Prepared { crc: Icrc { crc: ONES_8 }.update(&masked).crc, mask: CrcMask::Byte4 }
    }
    /// For packets whose CRC-32 covers no pseudo header, and bytes 7 and 8 of the packet as ones (the Unified Bus in UDP).
    pub const fn bare() -> Prepared {
        Prepared { crc: 0, mask: CrcMask::Bytes7And8 }
    }
    /// Like [`Icrc::ipv4`] with identification `id`, which must be 0 over IPv6. Panics without a whole BTH.
    #[inline]
    pub fn begin(&self, id: u16, transport: &[u8]) -> Icrc {
        assert!(transport.len() >= Bth::LEN);
        Icrc { crc: self.register(id, transport) }.update(transport)
    }
    /// The CRC before the first byte of a packet with this identification, so that its masked bytes count as ones.
    #[inline]
    pub(crate) fn register(&self, id: u16, packet: &[u8]) -> u32 {
        match self.mask {
            CrcMask::Byte4 => self.crc ^ ID_IN_PSEUDO.of(id) ^ MASK_BYTE_4[usize::from(packet[4])],
            CrcMask::Bytes7And8 => {
                self.crc ^ MASK_BYTES_7_8[0][usize::from(packet[7])] ^ MASK_BYTES_7_8[1][usize::from(packet[8])]
            }
        }
    }
}

impl FirstRegister for Prepared {
    #[inline]
    fn first_register(&self, id: u16, packet: &[u8]) -> u32 {
        self.register(id, packet)
    }
}

/// Bytes that the ICRC covers after the identification field, for a UDP payload of this length (ICRC included).
pub const fn len_after_id(udp_payload_len: usize) -> u16 {
    (Ipv4::LEN - 6 + Udp::LEN + udp_payload_len - ICRC_LEN) as u16
}

/// The contribution of an IPv4 identification to the ICRC of packets of one length. 260 bytes; make it once per length.
#[derive(Clone, Debug)]
pub struct IdDelta {
    field: FieldDelta,
}

impl IdDelta {
    /// For packets whose UDP payload has `udp_payload_len` bytes, ICRC included.
    pub fn new(udp_payload_len: usize) -> IdDelta {
        IdDelta { field: FieldDelta::new(len_after_id(udp_payload_len)) }
    }
    /// The identification with which `received` is the ICRC of a packet whose ICRC with identification 0 is
    /// `computed_with_id0`; `None` if no identification explains it: the packet is corrupt.
    pub fn recover(&self, computed_with_id0: [u8; ICRC_LEN], received: [u8; ICRC_LEN]) -> Option<u16> {
        self.field.explain(difference(computed_with_id0, received))
    }
}

/// [`IdDelta::recover`] without preparation, for rare lengths; see [`len_after_id`].
pub fn recover_ipv4_id(
    computed_with_id0: [u8; ICRC_LEN],
    received: [u8; ICRC_LEN],
    len_after_id_field: u16,
) -> Option<u16> {
    explain_once(difference(computed_with_id0, received), len_after_id_field)
}

fn difference(a: [u8; ICRC_LEN], b: [u8; ICRC_LEN]) -> u32 {
    u32::from_le_bytes(a) ^ u32::from_le_bytes(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_the_crc_of_eight_ones() {
        assert_eq!(ONES_8, crc32fast::hash(&[0xff; 8]));
    }

    #[test]
    fn pieces_and_spans_give_the_same_icrc() {
        let mut body: Vec<u8> = (0..9_000u32).map(|i| i as u8).collect();
        let pseudo = PseudoV4::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 50_000);
        let whole = Icrc::ipv4(&pseudo, body.len() + 4, &body);
        let split = Icrc::ipv4(&pseudo, body.len() + 4, &body[..28]).update(&body[28..77]).update(&body[77..]);
        assert_eq!(whole, split);
        let len = body.len() as u32;
        let memory = burst_span::ProcessMemory::own().expect("own memory");
        let remote = memory.span(body.as_mut_ptr() as u64, len);
        let start = Icrc::ipv4(&pseudo, body.len() + 4, &body[..12]);
        let mut copy = vec![0; body.len() - 12];
        assert_eq!(start.copy_span(&remote.sub(12, copy.len()), &mut copy), Ok(whole));
        assert_eq!(copy, body[12..]);
        assert_eq!(start.update_span(&remote.sub(12, body.len() - 12)), Ok(whole));
        assert_eq!(start.update_span(&memory.span(8, 8)), Err(Unreachable::Gone));
    }

    #[test]
    fn prepared_beginnings_give_the_same_icrc() {
        let mut body: Vec<u8> = (0..300u32).map(|i| (i * 7) as u8).collect();
        let v4 = PseudoV4::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 50_000);
        let v6 = PseudoV6::new(Ipv6Addr::LOCALHOST, "fd00::7".parse().unwrap(), 50_000);
        for len in [12, 13, 16, 28, 48, 49, 300] {
            for resv8a in [0, 0x40, 0x80, 0xc0, 0xff, 0x5a] {
                body[4] = resv8a;
                for id in [0, 1, 63, 0x1234, 0xffff] {
                    let plain = Icrc::ipv4(&PseudoV4 { id, ..v4 }, len + 4, &body[..len]);
                    assert_eq!(Prepared::ipv4(&v4, len + 4).begin(id, &body[..len]), plain);
                    assert_eq!(Prepared::ipv4(&v4, len + 4).begin(id, &body[..12]).update(&body[12..len]), plain);
                }
                assert_eq!(Prepared::ipv6(&v6, len + 4).begin(0, &body[..len]), Icrc::ipv6(&v6, len + 4, &body[..len]));
            }
        }
    }

    #[test]
    fn trains_are_prepared_and_identifications_recovered() {
        let body = [0x5a; 1024 + 16];
        let len = body.len() + ICRC_LEN;
        let pseudo = PseudoV4::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 49_152);
        let zero = Icrc::ipv4(&pseudo, len, &body);
        let delta = IdDelta::new(len);
        for id in [0, 1, 2, 255, 256, 0xfffe, 0xffff] {
            let full = Icrc::ipv4(&PseudoV4 { id, ..pseudo }, len, &body).finish();
            assert_eq!(zero.finish_with_id(&delta, id), full);
            assert_eq!(delta.recover(zero.finish(), full), Some(id));
            assert_eq!(recover_ipv4_id(zero.finish(), full, len_after_id(len)), Some(id));
        }
        assert_eq!(delta.recover(zero.finish(), [1, 2, 3, 4]), None);
    }
}
