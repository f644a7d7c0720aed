//! Whole frames, for ports that write and read their own headers: no sockets, no system calls, no allocation.
//!
//! | module | what |
//! |---|---|
//! | [`template`] | the headers of a flow, made once: Ethernet, 802.1Q, IPv4 or IPv6, UDP |
//! | [`parse`] | parses a received frame down to the UDP payload; each defect has its reason |
//! | [`checksum`] | the internet checksum: sums, pseudo headers, partial sums for devices |
//! | [`icrc`] | the ICRC of a flow's packets, and the IPv4 identification that it covers |
//!
//! To send: [`HeaderTemplate::new`] per flow, [`HeaderTemplate::write`] per packet or train, then the transport's bytes and the
//! ICRC that [`IcrcSeal`] computes with the same identification. To receive: [`parse::parse`], then [`IcrcChecker::begin_train`]
//! with the identification found, and [`IcrcChecker::check`] per packet.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod icrc;
pub mod parse;
pub mod template;

pub use icrc::{ICRC, IcrcChecker, IcrcSeal, IpId};
pub use parse::{ChecksumState, Datagram};
pub use template::{HEADERS_MAX, HeaderTemplate, LinkHeader, UdpChecksum};

use burst_base::Reason;

/// Bytes of the longest RoCEv2 packet, ICRC included: headers, 4096 bytes of payload, padding.
pub const TRANSPORT_MAX: usize = burst_frame::HEAD_MAX + 4096 + 3 + ICRC;
/// Bytes of the shortest RoCEv2 packet: BTH and ICRC.
pub const TRANSPORT_MIN: usize = 12 + ICRC;

/// Checks the length of a packet, trailer included.
///
/// # Errors
/// [`Reason::Truncated`] below `len_min`, [`Reason::Oversize`] above `len_max`.
#[inline]
pub fn check_length(packet: &[u8], len_min: usize, len_max: usize) -> Result<(), Reason> {
    if packet.len() < len_min {
        return Err(Reason::Truncated);
    }
    if packet.len() > len_max {
        return Err(Reason::Oversize);
    }
    Ok(())
}
