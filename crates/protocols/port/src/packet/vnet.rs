//! `struct virtio_net_hdr`: ten bytes before each frame that describe the work that is left to do with the frame: checksum and
//! segmentation. Numbers are in the machine's byte order.

use crate::ether::{ChecksumState, HeaderTemplate};
use burst_base::Reason;

/// Bytes of the header.
pub const LEN: usize = 10;
/// Flag: the checksum field holds the sum of the pseudo header only.
const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum has been verified.
const DATA_VALID: u8 = 2;
/// Segmentation type: a single packet.
const GSO_NONE: u8 = 0;
/// Segmentation type: a train of UDP packets (Linux 6.2).
const GSO_UDP_L4: u8 = 5;
/// Flag of the segmentation type.
const GSO_ECN: u8 = 0x80;
/// Offset of the checksum in the UDP header.
const UDP_CHECKSUM: u16 = 6;

/// The header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    /// Whether the UDP checksum is to be verified.
    pub checksums: ChecksumState,
    /// UDP payload bytes of each packet of a train; `None` for a single packet.
    pub segment: Option<usize>,
}

/// Reads the header of a received frame.
///
/// # Errors
/// [`Reason::TrainUnknown`] for a train that is not of UDP packets.
pub fn read(header: &[u8; LEN]) -> Result<VnetHeader, Reason> {
    let trusted = header[0] & (NEEDS_CSUM | DATA_VALID) != 0;
    let checksums = if trusted { ChecksumState::Trusted } else { ChecksumState::Unknown };
    let size = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    let segment = match header[1] & !GSO_ECN {
        GSO_NONE => None,
        GSO_UDP_L4 if size > 0 => Some(size),
        _ => return Err(Reason::TrainUnknown),
    };
    Ok(VnetHeader { checksums, segment })
}

/// Writes the header of a frame to send: a train of packets with `segment` bytes of UDP payload each, or a single packet. The
/// kernel or the NIC completes the checksums of a train, so the UDP checksum field of a train must hold the partial sum; so must
/// that of a single packet if `partial`.
pub fn write(header: &mut [u8], template: &HeaderTemplate, segment: Option<usize>, partial: bool) {
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
    use crate::ether::LinkHeader;
    use crate::testing::flow;
    use burst_wire::MacAddr;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let link = LinkHeader { src: MacAddr::default(), dst: MacAddr::default(), vlan: None };
        let template = HeaderTemplate::new(&link, &flow("10.0.0.1", "10.0.0.2"), 1, 2).unwrap();
        let round = |segment, partial| {
            let mut header = [0xee; LEN];
            write(&mut header, &template, segment, partial);
            read(&header).unwrap()
        };
        assert_eq!(round(None, false), VnetHeader { checksums: ChecksumState::Unknown, segment: None });
        assert_eq!(round(None, true), VnetHeader { checksums: ChecksumState::Trusted, segment: None });
        assert_eq!(round(Some(4112), true), VnetHeader { checksums: ChecksumState::Trusted, segment: Some(4112) });
    }

    #[test]
    fn trains_of_other_protocols_are_refused() {
        assert_eq!(read(&[0, 1, 0, 0, 9, 0, 0, 0, 0, 0]), Err(Reason::TrainUnknown));
        assert_eq!(read(&[0, 5, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Reason::TrainUnknown));
        assert!(read(&[2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]).is_ok());
    }
}
