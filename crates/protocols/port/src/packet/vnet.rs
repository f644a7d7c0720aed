//! `struct virtio_net_hdr`: ten bytes before each frame that say what is left to do with it. Numbers are in the
//! machine's order.

use crate::ether::{Checksums, Template};
use burst_base::Reason;

/// Bytes.
pub const LEN: usize = 10;
/// The checksum is the sum of the pseudo header only.
const NEEDS_CSUM: u8 = 1;
/// The checksum has been verified.
const DATA_VALID: u8 = 2;
/// A single packet.
const GSO_NONE: u8 = 0;
/// A train of UDP packets (Linux 6.2).
const GSO_UDP_L4: u8 = 5;
/// A flag of the type.
const GSO_ECN: u8 = 0x80;
/// Where the UDP checksum is in its header.
const UDP_CHECKSUM: u16 = 6;

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// What is known of the checksum.
    pub checksums: Checksums,
    /// UDP payload bytes of each packet of a train; `None` for a single packet.
    pub segment: Option<usize>,
}

/// Reads the header of a received frame.
pub fn read(header: &[u8; LEN]) -> Result<Received, Reason> {
    let trusted = header[0] & (NEEDS_CSUM | DATA_VALID) != 0;
    let checksums = if trusted { Checksums::Trusted } else { Checksums::Unknown };
    let size = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    let segment = match header[1] & !GSO_ECN {
        GSO_NONE => None,
        GSO_UDP_L4 if size > 0 => Some(size),
        _ => return Err(Reason::TrainUnknown),
    };
    Ok(Received { checksums, segment })
}

/// Writes the header of a frame to send: a train of packets with `segment` bytes of UDP payload, or a packet. A train's
/// checksums are completed by whoever cuts it, so its UDP checksum must be the partial one; so must a packet's
/// if `partial`.
pub fn write(header: &mut [u8], template: &Template, segment: Option<usize>, partial: bool) {
    let header = &mut header[..LEN];
    header.fill(0);
    header[2..4].copy_from_slice(&(template.header_len() as u16).to_ne_bytes());
    if partial || segment.is_some() {
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&(template.udp_at() as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&UDP_CHECKSUM.to_ne_bytes());
    }
    if let Some(size) = segment {
        header[1] = GSO_UDP_L4;
        header[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ether::Link;
    use crate::testing::flow;
    use burst_wire::MacAddr;

    #[test]
    fn headers_are_read_as_written() {
        let link = Link { src: MacAddr::default(), dst: MacAddr::default(), vlan: None };
        let template = Template::new(&link, &flow("10.0.0.1", "10.0.0.2"), 1, 2).unwrap();
        let round = |segment, partial| {
            let mut header = [0xee; LEN];
            write(&mut header, &template, segment, partial);
            read(&header).unwrap()
        };
        assert_eq!(round(None, false), Received { checksums: Checksums::Unknown, segment: None });
        assert_eq!(round(None, true), Received { checksums: Checksums::Trusted, segment: None });
        assert_eq!(round(Some(4112), true), Received { checksums: Checksums::Trusted, segment: Some(4112) });
    }

    #[test]
    fn foreign_trains_are_refused() {
        assert_eq!(read(&[0, 1, 0, 0, 9, 0, 0, 0, 0, 0]), Err(Reason::TrainUnknown));
        assert_eq!(read(&[0, 5, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Reason::TrainUnknown));
        assert!(read(&[2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]).is_ok());
    }
}
