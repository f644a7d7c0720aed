//! Wire formats of RoCEv2: every header as a plain struct, the opcode table, packets, heads and the ICRC; and the headers of
//! Burst's selective repeat family.
//!
//! A header type `H` has `H::LEN`, `H::parse(&[u8]) -> Option<H>` (reads the first `LEN` bytes, `None` if there are
//! fewer or a version field is foreign) and `h.emit(&mut [u8])` (writes the first `LEN` bytes, panics if there are
//! fewer). Reserved bits are written as zero and ignored when read. Only this crate checks whether a packet is too short:
//! headers and payload of a [`Packet`] need no further checks.
//!
//! ```
//! use burst_base::{Psn, Qpn, Rkey};
//! use burst_wire::{Bth, HeadBuf, Opcode, Packet, Reth};
//!
//! let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcWriteOnly, Qpn::new(17), Psn::new(5)) };
//! let head = HeadBuf::new(&bth).reth(Reth { addr: 0x1000, rkey: Rkey(7), len: 4 });
//! let mut bytes = head.as_slice().to_vec();
//! bytes.extend_from_slice(b"data");
//! let packet = Packet::parse(&bytes).unwrap();
//! assert_eq!(packet.reth().unwrap().addr, 0x1000);
//! assert_eq!(packet.payload, b"data");
//! ```
#![forbid(unsafe_code)]

pub mod aeth;
mod bth;
mod bytes;
mod crc32;
mod eth;
mod ext;
mod head;
pub mod hello;
pub mod icrc;
mod ip;
mod layers;
mod mad;
mod opcode;
mod packet;
pub mod selective;
pub mod train;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use bth::{Bth, DEFAULT_PKEY};
pub use eth::{EtherType, Ethernet, MacAddr, Vlan};
pub use ext::{AtomicAckEth, AtomicEth, CnpPayload, Deth, Ieth, ImmDt, Reth, XrcEth};
pub use head::{HEAD_MAX, HeadBuf};
pub use icrc::Icrc;
pub use ip::{Grh, IP_PROTOCOL_UDP, Ipv4, Ipv6, ROCE_PORT, Udp, grh_area_ipv4};
pub use layers::{Ip, Layers};
pub use mad::{MAD_LEN, MadHeader, MgmtClass};
pub use opcode::{OpKind, Opcode, OpcodeInfo, Position, Service};
pub use packet::Packet;
pub use selective::{AckBitmap, Saeth, Seth, Weth};
pub use train::{FirstRegister, TrainCheck};

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;
