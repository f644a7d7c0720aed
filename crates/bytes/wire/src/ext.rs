//! Extension headers that follow the BTH (IBA 9.3), except the AETH, and the payload of a CNP.

use crate::bytes::{array, be24, be32, be64, put, put24};
use burst_base::{Qkey, Qpn, Rkey};

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: Qkey,
    /// Source queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// Reads the first [`Deth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Deth> {
        let b = bytes.first_chunk::<{ Deth::LEN }>()?;
        Some(Deth { qkey: Qkey(be32(b, 0)), src_qpn: Qpn::new(be24(b, 5)) })
    }
    /// Writes the first [`Deth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.qkey.0.to_be_bytes());
        out[4] = 0;
        put24(out, 5, self.src_qpn.get());
    }
}

/// XRC extended transport header: the SRQ that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcEth {
    /// XRC SRQ number, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// Reads the first [`XrcEth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<XrcEth> {
        let b = bytes.first_chunk::<{ XrcEth::LEN }>()?;
        Some(XrcEth { srqn: be24(b, 1) })
    }
    /// Writes the first [`XrcEth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        out[0] = 0;
        put24(out, 1, self.srqn);
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reth {
    /// Remote virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// DMA length: bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;
    /// Reads the first [`Reth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Reth> {
        let b = bytes.first_chunk::<{ Reth::LEN }>()?;
        Some(Reth { addr: be64(b, 0), rkey: Rkey(be32(b, 8)), len: be32(b, 12) })
    }
    /// Writes the first [`Reth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.addr.to_be_bytes());
        put(out, 8, &self.rkey.0.to_be_bytes());
        put(out, 12, &self.len.to_be_bytes());
    }
    /// Writes another address into a header that begins at `at`.
    #[inline]
    pub fn set_addr(out: &mut [u8], at: usize, addr: u64) {
        put(out, at, &addr.to_be_bytes());
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Remote virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Value to swap in, or to add.
    pub swap_add: u64,
    /// Value to compare with (compare and swap only).
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;
    /// Reads the first [`AtomicEth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<AtomicEth> {
        let b = bytes.first_chunk::<{ AtomicEth::LEN }>()?;
        Some(AtomicEth { addr: be64(b, 0), rkey: Rkey(be32(b, 8)), swap_add: be64(b, 12), compare: be64(b, 20) })
    }
    /// Writes the first [`AtomicEth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.addr.to_be_bytes());
        put(out, 8, &self.rkey.0.to_be_bytes());
        put(out, 12, &self.swap_add.to_be_bytes());
        put(out, 20, &self.compare.to_be_bytes());
    }
}

/// Atomic acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length in bytes.
    pub const LEN: usize = 8;
    /// Reads the first [`AtomicAckEth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<AtomicAckEth> {
        let b = bytes.first_chunk::<{ AtomicAckEth::LEN }>()?;
        Some(AtomicAckEth { original: be64(b, 0) })
    }
    /// Writes the first [`AtomicAckEth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.original.to_be_bytes());
    }
}

/// Immediate data: four bytes of the application, in the verbs API a `__be32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ImmDt {
    /// The bytes in wire order.
    pub bytes: [u8; 4],
}

impl ImmDt {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// From a `__be32` as it lies in memory (a work request).
    pub const fn from_be32(in_memory: u32) -> ImmDt {
        ImmDt { bytes: in_memory.to_ne_bytes() }
    }
    /// To a `__be32` as it lies in memory (a completion).
    pub const fn to_be32(self) -> u32 {
        u32::from_ne_bytes(self.bytes)
    }
    /// Reads the first [`ImmDt::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<ImmDt> {
        Some(ImmDt { bytes: *bytes.first_chunk::<{ ImmDt::LEN }>()? })
    }
    /// Writes the first [`ImmDt::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.bytes);
    }
}

/// Invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ieth {
    /// The key to invalidate.
    pub rkey: Rkey,
}

impl Ieth {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// Reads the first [`Ieth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Ieth> {
        let b = bytes.first_chunk::<{ Ieth::LEN }>()?;
        Some(Ieth { rkey: Rkey(be32(b, 0)) })
    }
    /// Writes the first [`Ieth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.rkey.0.to_be_bytes());
    }
}

/// Payload of a congestion notification packet: reserved, sent as zero, ignored when received (annex A17.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CnpPayload {
    /// The reserved bytes as received.
    pub reserved: [u8; 16],
}

impl CnpPayload {
    /// Length in bytes.
    pub const LEN: usize = 16;
    /// Reads the first [`CnpPayload::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<CnpPayload> {
        let b = bytes.first_chunk::<{ CnpPayload::LEN }>()?;
        Some(CnpPayload { reserved: array(b, 0) })
    }
    /// Writes the first [`CnpPayload::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &self.reserved);
    }
}
