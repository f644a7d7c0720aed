//! Whole packets that have arrived before their turn (selective repeat, strict placement).
//!
//! Normally the payload of an early packet is written to its place at once. A program that polls other bytes than the last of a
//! message may then see bytes of later messages before those of earlier ones. With strict placement early packets are kept as
//! they are and executed in their turn, so memory changes in the order of the packets, as with an adapter that goes back. The
//! price is a copy of each early packet and the memory of the store.

use burst_base::heap;
use burst_wire::HEAD_MAX;

/// Bytes of the largest packet: head, payload of the largest path MTU, padding.
const PACKET_BYTES: usize = HEAD_MAX + 4096 + 3;

/// A packet, from the BTH to the padding.
pub(crate) struct StoredPacket {
    bytes: Vec<u8>,
}

impl StoredPacket {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The packets that a worker can keep.
pub(crate) struct PacketStore {
    free: Vec<StoredPacket>,
    made: usize,
    max: usize,
}

impl PacketStore {
    /// A store of at most `max` packets.
    pub(crate) fn new(max: usize) -> PacketStore {
        PacketStore { free: Vec::new(), made: 0, max }
    }
    /// Keeps a packet; `None` if there is no room, or no memory for more.
    pub(crate) fn keep(&mut self, packet: &[u8]) -> Option<StoredPacket> {
        if packet.len() > PACKET_BYTES {
            return None;
        }
        let mut place = match self.free.pop() {
            Some(place) => place,
            None if self.made < self.max => {
                // Room for `give` as well, so that it cannot fail.
                heap::reserve(&mut self.free, self.made + 1).ok()?;
                let bytes = heap::with_room(PACKET_BYTES).ok()?;
                self.made += 1;
                StoredPacket { bytes }
            }
            None => return None,
        };
        place.bytes.clear();
        place.bytes.extend_from_slice(packet);
        Some(place)
    }
    /// The packet was executed, or is not wanted any more.
    pub(crate) fn give(&mut self, packet: StoredPacket) {
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
    fn without_memory_a_packet_is_not_kept() {
        let mut store = PacketStore::new(2);
        let kept = store.keep(&[1]).expect("memory");
        for after in 0..2 {
            burst_base::fault::arm(after);
            assert!(store.keep(&[2]).is_none());
            assert!(burst_base::fault::disarm(), "room and bytes are allocations that can fail");
        }
        assert!(store.keep(&[2]).is_some());
        store.give(kept);
    }

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
