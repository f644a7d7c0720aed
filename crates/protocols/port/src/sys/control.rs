//! Control messages (`cmsg`) of sockets, written and read by hand: bytes only, no pointers.

use burst_base::Nanos;

/// Bytes for the control messages of one datagram or train: four messages with values of up to 8 bytes, and a time.
pub const CONTROL_MAX: usize = 128;
/// `struct cmsghdr` on 64-bit Linux: length (8), level (4), type (4).
const HEADER: usize = 16;
/// `CMSG_ALIGN`.
const ALIGN: usize = 8;
/// Control message type of `struct tpacket_auxdata`: a status word, lengths, offsets, and the VLAN tag at byte 16.
const PACKET_AUXDATA: i32 = 8;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const AUXDATA_TCI: usize = 16;
/// `SO_RXQ_OVFL` as a control message type.
const SO_RXQ_OVFL: i32 = 40;

const _: () = assert!(size_of::<libc::cmsghdr>() == HEADER && size_of::<usize>() == ALIGN);
const _: () = assert!(4 * (HEADER + ALIGN) + HEADER + size_of::<libc::timespec>() <= CONTROL_MAX);

/// The control messages of one message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct ControlBuffer(pub [u8; CONTROL_MAX]);

impl ControlBuffer {
    /// Without control messages.
    pub const EMPTY: ControlBuffer = ControlBuffer([0; CONTROL_MAX]);

    /// Appends a control message at offset `at`; returns the offset behind it.
    fn put(&mut self, at: usize, level: i32, kind: i32, value: &[u8]) -> usize {
        let next = at + HEADER + value.len().next_multiple_of(ALIGN);
        let place = &mut self.0[at..next];
        place[..8].copy_from_slice(&(HEADER + value.len()).to_ne_bytes());
        place[8..12].copy_from_slice(&level.to_ne_bytes());
        place[12..16].copy_from_slice(&kind.to_ne_bytes());
        place[16..16 + value.len()].copy_from_slice(value);
        next
    }

    /// Writes the options of a message to send; returns the bytes used, 0 without options.
    pub fn write(&mut self, v6: bool, segment: Option<u16>, tos: Option<u8>, hops: Option<u8>) -> usize {
        let mut at = 0;
        if let Some(bytes) = segment {
            at = self.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        }
        let (level, tos_kind, hops_kind) = if v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        } else {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        };
        if let Some(tos) = tos {
            at = self.put(at, level, tos_kind, &i32::from(tos).to_ne_bytes());
        }
        if let Some(hops) = hops {
            at = self.put(at, level, hops_kind, &i32::from(hops).to_ne_bytes());
        }
        at
    }

    /// Reads the first `len` bytes of a received message's control messages.
    pub fn read(&self, len: usize) -> ReceivedControl {
        let mut got = ReceivedControl::default();
        let mut rest = &self.0[..len.min(CONTROL_MAX)];
        while rest.len() > HEADER {
            let size = usize::from_ne_bytes(rest[..8].try_into().expect("8 bytes"));
            if size < HEADER || size > rest.len() {
                break;
            }
            let level = i32::from_ne_bytes(rest[8..12].try_into().expect("4 bytes"));
            let kind = i32::from_ne_bytes(rest[12..16].try_into().expect("4 bytes"));
            got.take(level, kind, &rest[HEADER..size]);
            rest = &rest[size.next_multiple_of(ALIGN).min(rest.len())..];
        }
        got
    }
}

/// The number in a control message: one byte (`IP_TOS`), two, or four.
fn number(value: &[u8]) -> u32 {
    match value {
        [] => 0,
        [a] => u32::from(*a),
        [a, b] => u32::from(u16::from_ne_bytes([*a, *b])),
        [a, b, c, d, ..] => u32::from_ne_bytes([*a, *b, *c, *d]),
        [a, ..] => u32::from(*a),
    }
}

/// The time in a `struct timespec`.
fn time(value: &[u8]) -> Option<Nanos> {
    let (seconds, rest) = value.split_first_chunk()?;
    let nanos = rest.first_chunk()?;
    Some(Nanos(u64::from_ne_bytes(*seconds).checked_mul(1_000_000_000)?.checked_add(u64::from_ne_bytes(*nanos))?))
}

/// Facts about a received message, from its control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedControl {
    /// Bytes per packet if the message is a train.
    pub segment: Option<u16>,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit, 0 if it was not reported.
    pub hops: u8,
    /// Packets that the socket has lost since it was opened.
    pub lost: Option<u32>,
    /// VLAN tag (priority and VLAN ID) that the kernel has removed from a frame.
    pub vlan: Option<u16>,
    /// When the kernel received it, or the first packet of a train: nanoseconds of the real-time clock.
    pub received: Option<Nanos>,
}

impl ReceivedControl {
    fn take(&mut self, level: i32, kind: i32, bytes: &[u8]) {
        let value = number(bytes);
        match (level, kind) {
            (libc::SOL_PACKET, PACKET_AUXDATA) if value & TP_STATUS_VLAN_VALID != 0 => {
                self.vlan = bytes.get(AUXDATA_TCI..).map(|tci| number(&tci[..tci.len().min(2)]) as u16);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = u16::try_from(value).ok().filter(|&s| s > 0),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.tos = value as u8,
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.hops = value as u8,
            (libc::SOL_SOCKET, SO_RXQ_OVFL) => self.lost = Some(value),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => self.received = time(bytes),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_options_nothing_is_written() {
        let mut control = ControlBuffer::EMPTY;
        assert_eq!(control.write(false, None, None, None), 0);
        assert_eq!(ControlBuffer::EMPTY.read(0), ReceivedControl::default());
    }

    #[test]
    fn written_messages_are_read_back() {
        for v6 in [false, true] {
            let mut control = ControlBuffer::EMPTY;
            let len = control.write(v6, Some(4124), Some(0x6a), Some(7));
            assert_eq!(len, 3 * 24);
            // The option UDP_SEGMENT of a sender corresponds to UDP_GRO of a receiver.
            assert_eq!(
                control.read(len),
                ReceivedControl { segment: None, tos: 0x6a, hops: 7, ..ReceivedControl::default() }
            );
        }
        let mut control = ControlBuffer::EMPTY;
        let at = control.put(0, libc::SOL_UDP, libc::UDP_GRO, &1040i32.to_ne_bytes());
        let at = control.put(at, libc::SOL_SOCKET, SO_RXQ_OVFL, &9u32.to_ne_bytes());
        let at = control.put(at, libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        assert_eq!(
            control.read(at),
            ReceivedControl { segment: Some(1040), tos: 3, hops: 0, lost: Some(9), vlan: None, received: None }
        );
    }

    #[test]
    fn times_of_arrival_are_read() {
        let mut control = ControlBuffer::EMPTY;
        let value = [3u64, 5].map(u64::to_ne_bytes).concat();
        let at = control.put(0, libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &value);
        assert_eq!(control.read(at).received, Some(Nanos(3_000_000_005)));
        assert_eq!((time(&value[..15]), time(&[0xff; 16])), (None, None));
    }

    #[test]
    fn removed_vlan_tags_are_read() {
        let aux = |status: u32| {
            let mut aux = [0u8; 20];
            aux[..4].copy_from_slice(&status.to_ne_bytes());
            aux[AUXDATA_TCI..AUXDATA_TCI + 2].copy_from_slice(&0x2005u16.to_ne_bytes());
            let mut control = ControlBuffer::EMPTY;
            let at = control.put(0, libc::SOL_PACKET, PACKET_AUXDATA, &aux);
            control.read(at).vlan
        };
        assert_eq!(aux(TP_STATUS_VLAN_VALID | 1), Some(0x2005));
        assert_eq!(aux(1), None);
    }

    #[test]
    fn malformed_messages_end_the_loop() {
        for fill in [0u8, 1, 15, 17, 0xff] {
            let _ = ControlBuffer([fill; CONTROL_MAX]).read(CONTROL_MAX);
        }
        let _ = ControlBuffer::EMPTY.read(usize::MAX);
    }
}
