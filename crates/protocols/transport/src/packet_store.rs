//! Whole packets that have arrived before their turn (selective repeat, strict placement).
//!
//! Normally the payload of an early packet is written to its place at once. A program that polls other bytes than the last of a
//! message may then see bytes of later messages before those of earlier ones. With strict placement early packets are kept as
//! they are and executed in their turn, so memory changes in the order of the packets, as with an adapter that goes back. The
//! price is a copy of each early packet and the memory of the store.

use burst_wire::HEAD_MAX;

/// Bytes of the largest packet: head, payload of the largest path MTU, padding.
const PACKET_BYTES: usize = HEAD_MAX + 4096 + 3;

/// A packet, from the BTH to the padding.
pub(crate) struct StoredPacket {
    len: usize,
    bytes: [u8; PACKET_BYTES],
}

impl StoredPacket {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The packets that a worker can keep.
pub(crate) struct PacketStore {
    free: Vec<Box<StoredPacket>>,
    made: usize,
    max: usize,
}

impl PacketStore {
    /// A store of at most `max` packets.
    pub(crate) fn new(max: usize) -> PacketStore {
        PacketStore { free: Vec::new(), made: 0, max }
    }
    /// Keeps a packet; `None` if there is no room.
    pub(crate) fn keep(&mut self, packet: &[u8]) -> Option<Box<StoredPacket>> {
        if packet.len() > PACKET_BYTES {
            return None;
        }
        let mut place = match self.free.pop() {
            Some(place) => place,
            None if self.made < self.max => {
                self.made += 1;
                Box::new(StoredPacket { len: 0, bytes: [0; PACKET_BYTES] })
            }
            None => return None,
        };
        place.len = packet.len();
        place.bytes[..packet.len()].copy_from_slice(packet);
        Some(place)
    }
    /// The packet was executed, or is not wanted any more.
    pub(crate) fn give(&mut self, packet: Box<StoredPacket>) {
        debug_assert!(self.free.len() < self.made, "a packet of another store");
        self.free.push(packet);
    }
    /// Packets that are kept.
    pub(crate) fn in_use(&self) -> usize {
        self.made - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_keeps_no_more_packets_than_its_limit_and_none_that_is_too_long() {
        let mut store = PacketStore::new(2);
        let (a, b) = (store.keep(&[1, 2, 3]).expect("first"), store.keep(&[4; PACKET_BYTES]).expect("second"));
        assert!(store.keep(&[5]).is_none());
        assert_eq!((a.bytes(), b.bytes().len(), store.in_use()), (&[1, 2, 3][..], PACKET_BYTES, 2));
        store.give(b);
        assert!(store.keep(&[6; PACKET_BYTES + 1]).is_none());
        let again = store.keep(&[7, 8]).expect("free again");
        assert_eq!(again.bytes(), [7, 8]);
        store.give(again);
        store.give(a);
        assert_eq!(store.in_use(), 0);
    }
}
