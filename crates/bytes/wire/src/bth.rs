//! The base transport header (IBA 9.2; RoCEv2 annex A17 puts FECN and BECN into the eight bits that the ICRC masks).

use crate::bytes::{be16, be24, put, put24};
use crate::opcode::Opcode;
use burst_base::{Psn, Qpn, Reason};

/// The default partition, full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// The responder should raise a solicited event.
    pub solicited: bool,
    /// Migration state. Burst sends true (migrated) and ignores it when received.
    pub mig_req: bool,
    /// Padding bytes after the payload, 0..=3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// The packet requests an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// The usual header: default partition, MigReq set, all other flags clear.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }
    /// Reads a header: [`Reason::Truncated`], [`Reason::BadVersion`] or [`Reason::UnknownOpcode`] if it is none.
    pub fn parse(bytes: &[u8]) -> Result<Bth, Reason> {
        let Some(b) = bytes.first_chunk::<{ Bth::LEN }>() else { return Err(Reason::Truncated) };
        if b[1] & 0x0f != 0 {
            return Err(Reason::BadVersion);
        }
        let opcode = Opcode::from_number(b[0]).ok_or(Reason::UnknownOpcode)?;
        Ok(Bth::read(b, opcode))
    }
    /// Reads a header whose version and opcode are known.
    pub(crate) fn read(b: &[u8; Bth::LEN], opcode: Opcode) -> Bth {
        Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            pkey: be16(b, 2),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: Qpn::new(be24(b, 5)),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(be24(b, 9)),
        }
    }
    /// Changes the packet sequence number of a header that was written to `head`.
    #[inline]
    pub fn set_psn(head: &mut [u8], psn: Psn) {
        put24(head, 9, psn.get());
    }
    /// The header as words, in host order.
    #[inline]
    pub const fn words(&self) -> [u32; Bth::LEN / 4] {
        let flags = (self.solicited as u32) << 7 | (self.mig_req as u32) << 6 | (self.pad as u32 & 3) << 4;
        let first = (self.opcode.number() as u32) << 24 | flags << 16 | self.pkey as u32;
        let marks = (self.fecn as u32) << 7 | (self.becn as u32) << 6;
        [first, marks << 24 | self.dest_qpn.get(), (self.ack_req as u32) << 31 | self.psn.get()]
    }
    /// Writes the header to the first [`Bth::LEN`] bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let (out, [first, second, third]) = (&mut out[..Bth::LEN], self.words());
        put(out, 0, &first.to_be_bytes());
        put(out, 4, &second.to_be_bytes());
        put(out, 8, &third.to_be_bytes());
    }
}
