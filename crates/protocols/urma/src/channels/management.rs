//! Management messages: what the ends of a channel say to each other, and the bytes on the wire.

use burst_base::Psn;

/// Kind of a management message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TpMessageKind {
    Request,
    Reply,
    Challenge,
    End,
    Unknown,
}

/// A management message between public Jetties 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TpMessage {
    pub(crate) kind: TpMessageKind,
    pub(crate) mtu: u16,
    pub(crate) tpn: u32,
    pub(crate) psn: Psn,
    /// Which of the channels between the two nodes is meant.
    pub(crate) lane: u8,
    /// Lanes that the sender takes; on the wire one less, so that it is zero of those that know no lanes.
    pub(crate) lanes: u8,
    /// Differs, in most cases, between the lives of a node that takes several lanes; 0 of others.
    pub(crate) life: u8,
    pub(crate) incarnation: u64,
    pub(crate) echo_tpn: u32,
    pub(crate) echo_incarnation: u64,
}

impl TpMessage {
    pub(crate) const LEN: usize = 32;
    const VERSION: u8 = 1;

    pub(crate) fn parse(b: &[u8]) -> Option<TpMessage> {
        let b: &[u8; Self::LEN] = b.try_into().ok()?;
        let be24 = |at: usize| u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]]);
        let be64 = |at: usize| {
            u64::from(u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])) << 32
                | u64::from(u32::from_be_bytes([b[at + 4], b[at + 5], b[at + 6], b[at + 7]]))
        };
        let kind = match b[0] {
            1 => TpMessageKind::Request,
            2 => TpMessageKind::Reply,
            3 => TpMessageKind::Challenge,
            4 => TpMessageKind::End,
            5 => TpMessageKind::Unknown,
            _ => return None,
        };
        (b[1] == Self::VERSION).then(|| TpMessage {
            kind,
            mtu: u16::from_be_bytes([b[2], b[3]]),
            tpn: be24(4),
            psn: Psn::new(be24(7)),
            echo_tpn: be24(10),
            lane: b[13],
            lanes: b[14].saturating_add(1),
            life: b[15],
            incarnation: be64(16),
            echo_incarnation: be64(24),
        })
    }
    pub(crate) fn bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = match self.kind {
            TpMessageKind::Request => 1,
            TpMessageKind::Reply => 2,
            TpMessageKind::Challenge => 3,
            TpMessageKind::End => 4,
            TpMessageKind::Unknown => 5,
        };
        b[1] = Self::VERSION;
        b[2..4].copy_from_slice(&self.mtu.to_be_bytes());
        b[4..7].copy_from_slice(&self.tpn.to_be_bytes()[1..]);
        b[7..10].copy_from_slice(&self.psn.get().to_be_bytes()[1..]);
        b[10..13].copy_from_slice(&self.echo_tpn.to_be_bytes()[1..]);
        b[13] = self.lane;
        (b[14], b[15]) = (self.lanes - 1, self.life);
        b[16..24].copy_from_slice(&self.incarnation.to_be_bytes());
        b[24..32].copy_from_slice(&self.echo_incarnation.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_others_refused() {
        let message = TpMessage {
            kind: TpMessageKind::Reply,
            mtu: 4096,
            tpn: 0x12_3456,
            psn: Psn::new(0x65_4321),
            lane: 3,
            lanes: 4,
            life: 5,
            incarnation: 0x0102_0304_0506_0708,
            echo_tpn: 0xab_cdef,
            echo_incarnation: u64::MAX - 1,
        };
        let bytes = message.bytes();
        assert_eq!(TpMessage::parse(&bytes), Some(message));
        assert_eq!(TpMessage::parse(&bytes[1..]), None);
        for (at, value) in [(0, 6), (0, 0), (1, 2)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(TpMessage::parse(&other), None);
        }
    }
}
