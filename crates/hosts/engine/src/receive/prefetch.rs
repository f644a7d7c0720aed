//! Packets of a burst whose queue pairs are prefetched.
//!
//! With thousands of queue pairs each packet is one of a queue pair that no cache holds. It reads some twenty lines, of which one
//! leads to the next. So the worker prefetches in two steps: first the lines of the queue pair itself, some packets later, when
//! these have come, the lines that it points to (the entries of its rings). Turns and doorbells do the same with the queue pairs
//! that are next in the ready queue, and those that have posted.
//!
//! With fewer than [`crate::core::MANY`] queue pairs all is in the cache, and nothing is prefetched.

use crate::objects::{QpSlot, slot_at};
use crate::qpn::Directory;
use burst_base::Qpn;
use burst_port::EXPECTED_MAX;

/// Packets between the request for a queue pair and its packet.
const PACKETS_AHEAD: usize = 8;
/// Packets between the request for the lines that a queue pair points to and its packet.
const POINTED_AHEAD: usize = 4;

/// The packets that a port has announced.
#[derive(Debug, Default)]
pub(crate) struct ExpectedPackets {
    /// Queue pair number of each, and whether it is a response.
    packets: [(u32, bool); EXPECTED_MAX],
    announced: usize,
    /// Those whose queue pairs have been asked for.
    asked: usize,
    handled: usize,
}

/// Queue pair number of a packet, and whether it is a response; number 0, which no table has, of a packet that is too short.
fn named_by(packet: &[u8]) -> (u32, bool) {
    let Some(bth) = packet.first_chunk::<8>() else { return (0, false) };
    // READ responses, ACKNOWLEDGE and ATOMIC ACKNOWLEDGE of all services (IBA 9.2.1).
    let is_response = (0x0d..=0x12).contains(&(bth[0] & 0x1f));
    (u32::from_be_bytes([0, bth[5], bth[6], bth[7]]), is_response)
}

impl ExpectedPackets {
    /// A port announces a packet.
    #[inline]
    pub fn add(&mut self, packet: &[u8], directory: &Directory) {
        if self.announced == EXPECTED_MAX {
            return;
        }
        let (qpn, is_response) = named_by(packet);
        directory.prefetch(Qpn::new(qpn));
        self.packets[self.announced] = (qpn, is_response);
        self.announced += 1;
    }
    /// Asks for the next queue pair.
    #[inline]
    fn ask(&mut self, directory: &Directory, qps: &[Option<Box<QpSlot>>], is_selective: bool) {
        let (qpn, is_response) = self.packets[self.asked];
        self.packets[self.asked].0 = directory.find(Qpn::new(qpn));
        if let Some(slot) = slot_at(qps, self.packets[self.asked].0) {
            if is_response {
                slot.prefetch_requester(is_selective);
            } else {
                slot.prefetch_responder();
            }
        }
        self.asked += 1;
    }
    /// Whether packets are expected.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.announced > 0
    }
    /// Forgets packets that the port did not hand over.
    pub fn clear(&mut self) {
        (self.announced, self.asked, self.handled) = (0, 0, 0);
    }
    /// Announces the next packets of a train, if they are of different queue pairs.
    #[inline(never)]
    pub fn add_train(&mut self, train: &[u8], stride: usize, directory: &Directory) {
        let mut packets = train.chunks_exact(stride);
        let is_mixed = packets.next().map(named_by) != packets.next().map(named_by);
        if is_mixed {
            train.chunks_exact(stride).take(EXPECTED_MAX).for_each(|packet| self.add(packet, directory));
        }
    }
    /// The next packet is handled now.
    #[inline(never)]
    pub fn advance(&mut self, directory: &Directory, qps: &[Option<Box<QpSlot>>], is_selective: bool) {
        debug_assert!(self.handled < self.announced && self.asked <= self.announced, "a packet that was not announced");
        while self.asked < (self.handled + PACKETS_AHEAD).min(self.announced) {
            self.ask(directory, qps, is_selective);
        }
        let first = if self.handled == 0 { 1 } else { POINTED_AHEAD };
        for at in (self.handled + first..=self.handled + POINTED_AHEAD).take_while(|at| *at < self.announced) {
            let (index, is_response) = self.packets[at];
            if let Some(slot) = slot_at(qps, index) {
                slot.qp.prefetch_packet(is_response);
            }
        }
        self.handled += 1;
        if self.handled == self.announced {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_wire::{Bth, Opcode};

    fn packet(opcode: Opcode, qpn: Qpn) -> Vec<u8> {
        let mut bytes = vec![0; Bth::LEN];
        Bth::new(opcode, qpn, burst_base::Psn::new(5)).emit(&mut bytes);
        bytes
    }

    #[test]
    fn a_packet_names_its_queue_pair_and_its_half() {
        let qpn = Qpn::new(0x12_3456);
        for (opcode, is_response) in [
            (Opcode::RcSendOnly, false),
            (Opcode::RcReadRequest, false),
            (Opcode::RcReadResponseFirst, true),
            (Opcode::RcReadResponseOnly, true),
            (Opcode::RcAck, true),
            (Opcode::RcAtomicAck, true),
            (Opcode::RcCmpSwap, false),
        ] {
            assert_eq!(named_by(&packet(opcode, qpn)), (qpn.get(), is_response), "{opcode:?}");
        }
        assert_eq!(named_by(&[0; 7]), (0, false));
    }

    #[test]
    fn trains_of_one_queue_pair_and_more_packets_than_places_are_not_noted() {
        let (directory, mut expected) = (Directory::new(), ExpectedPackets::default());
        let one = packet(Opcode::RcSendMiddle, Qpn::new(16)).repeat(40);
        expected.add_train(&one, one.len() / 40, &directory);
        assert!(!expected.has_any());
        let two = [packet(Opcode::RcSendOnly, Qpn::new(16)), packet(Opcode::RcSendOnly, Qpn::new(32))].concat();
        expected.add_train(&two.repeat(40), two.len() / 2, &directory);
        for _ in 0..EXPECTED_MAX {
            assert!(expected.has_any());
            expected.add(&two, &directory);
            expected.advance(&directory, &[], false);
        }
        // Places are free again when all have been handled.
        assert!(!expected.has_any());
        expected.add(&two, &directory);
        expected.clear();
        assert!(!expected.has_any());
    }
}
