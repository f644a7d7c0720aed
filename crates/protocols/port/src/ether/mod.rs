//! Whole frames, for ports that write and read their own headers: no sockets, no system calls, no allocation.
//!
//! | module | what |
//! |---|---|
//! | [`template`] | the headers of a flow, made once: Ethernet, 802.1Q, IPv4 or IPv6, UDP |
//! | [`parse`] | a received frame down to the UDP payload, each defect with its reason |
//! | [`checksum`] | the internet checksum: sums, pseudo headers, what is left to a device |
//! | [`seal`] | the ICRC of a flow's packets, and the IPv4 identifications that it covers |
//!
//! To send: [`HeaderTemplate::new`] per flow, [`HeaderTemplate::write`] per packet or train, then the transport part and the ICRC
//! that [`seal::IcrcSeal`] makes of it with the same identification. To receive: [`parse::parse`], then
//! [`seal::IcrcChecker::begin_train`] with the header found, and [`seal::IcrcChecker::check`].
#![forbid(unsafe_code)]

pub mod checksum;
pub mod icrc;
pub mod parse;
pub mod template;

pub use icrc::{ICRC, IcrcChecker, IcrcSeal, IpId};
pub use parse::{ChecksumState, Datagram};
pub use template::{HEADERS_MAX, HeaderTemplate, LinkHeader, UdpChecksum};

use burst_base::Reason;

/// Longest transport part of a RoCEv2 packet, ICRC included: headers, 4096 bytes, padding.
pub const TRANSPORT_MAX: usize = burst_frame::HEAD_MAX + 4096 + 3 + ICRC;
/// Shortest transport part: BTH and ICRC.
pub const TRANSPORT_MIN: usize = 12 + ICRC;

/// Whether a transport part can be one of RoCEv2; `len_max` is [`TRANSPORT_MAX`] where longer ones are to be refused.
///
/// # Errors
/// Why not.
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
