//! Wire formats of the Unified Bus: network, transport and transaction headers, packets, the dialect table, and the
//! encapsulation in UDP.
//!
//! Order on the wire: NTH, then RTPH (or UTPH, or nothing with TP bypass), then CETPH and SAETPH of acknowledgements, then
//! BTAH or ATAH, extended headers, payload. `docs/urma-packets.md` draws every format. Numbers are big-endian.
//! [`UbPacket::parse`] accepts any bytes and never panics; only this crate finds a packet too short.
//!
//! | module | what it holds |
//! |---|---|
//! | `bytes` | big-endian numbers |
//! | `dialect` | what differs between encoders |
//! | `encap` | the datagram of UDP and its checksum |
//! | `nth` | network header, congestion field |
//! | `packet` | whole packets |
//! | `ta` | transaction headers and opcodes |
//! | `tp` | transport headers |
#![forbid(unsafe_code)]

mod bytes;
pub mod dialect;
pub mod encap;
mod nth;
mod packet;
mod ta;
mod tp;

pub use dialect::{Dialect, UB_UDP_PORT, UbEncapsulation};
pub use nth::{Cna, CongestionField, NextLayer, Nth};
pub use packet::{MessageHead, NextPart, UB_HEAD_MAX, UTPH_LEN, UbHead, UbPacket};
pub use ta::{
    Atah, Btah, BtahFlags, Maetah, Mtetah, NotifyTarget, OrderTag, RC_TYPE_CONTEXT, RC_TYPE_QUEUE, ServiceMode,
    TA_HEAD_MAX, TaHeader, TaOpcode, TaRequest,
};
pub use tp::{Cetph, Rtph, SACK_WORDS_MAX, Saetph, TpOpcode, UbStatus};
