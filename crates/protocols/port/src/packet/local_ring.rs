//! A ring of packets that the port delivers itself: to its own addresses, and copies of packets to multicast groups that it has
//! joined.
//!
//! Such packets never leave the port. `tx_burst` fills the ring, and the next `rx_burst` of the same worker empties it; the
//! engine hands packets over to the worker that has the queue pair. The memory is allocated once.

use crate::RxSink;
use crate::ether::ICRC;
use crate::tx_train::write;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};
use std::collections::VecDeque;

/// Bytes of the ring. The engine's windows keep far fewer in flight, and the system backs only pages in use with memory.
const BYTES: usize = 8 << 20;
/// Most packets in the ring.
const PACKETS: usize = 16 << 10;

/// A packet in the ring: `len` bytes at offset `at`, and room for an ICRC.
struct RingEntry {
    flow: Flow,
    at: usize,
    len: usize,
}

/// The ring of packets.
pub struct LocalRing {
    bytes: Vec<u8>,
    entries: VecDeque<RingEntry>,
}

impl LocalRing {
    /// An empty ring.
    pub fn new() -> LocalRing {
        LocalRing { bytes: vec![0; BYTES], entries: VecDeque::with_capacity(PACKETS) }
    }
    /// Whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Copies a packet into the ring.
    ///
    /// # Errors
    /// [`Reason::SendQueueFull`] without room, [`Reason::SendFailed`] when the memory of the payload is gone.
    pub fn push(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let len = frame.udp_payload_len();
        let at = self.find_room(len).ok_or(Reason::SendQueueFull)?;
        if !write(&mut self.bytes[at..at + len], batch, frame, None, 0) {
            return Err(Reason::SendFailed);
        }
        debug_assert!(at + len <= BYTES && self.entries.len() < PACKETS);
        let hop_limit = if frame.flow.hop_limit == 0 { 64 } else { frame.flow.hop_limit };
        self.entries.push_back(RingEntry { flow: Flow { hop_limit, ..frame.flow }, at, len: len - ICRC });
        Ok(())
    }
    /// Offset at which `len` contiguous bytes are free.
    fn find_room(&self, len: usize) -> Option<usize> {
        let (Some(first), Some(last)) = (self.entries.front(), self.entries.back()) else {
            return Some(0).filter(|_| len <= BYTES);
        };
        if self.entries.len() == PACKETS {
            return None;
        }
        let end = last.at + last.len + ICRC;
        match last.at < first.at {
            true => Some(end).filter(|end| end + len <= first.at),
            false if end + len <= BYTES => Some(end),
            false => Some(0).filter(|_| len <= first.at),
        }
    }
    /// Delivers up to `budget` packets; returns how many.
    pub fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        for taken in 0..budget {
            let Some(RingEntry { flow, at, len }) = self.entries.pop_front() else { return taken };
            sink.frame(&RxFrame { flow, bytes: &self.bytes[at..at + len] });
        }
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Collect, batch_of, flow};

    #[test]
    fn packets_are_delivered_in_order_while_the_ring_wraps() {
        let mut ring = LocalRing::new();
        let payloads: Vec<Vec<u8>> = (0..200u32).map(|i| vec![i as u8; (i * 37 % 4097) as usize]).collect();
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &payloads);
        for _ in 0..50 {
            let mut sink = Collect::default();
            batch.frames().iter().for_each(|f| ring.push(&batch, f).unwrap());
            assert_eq!(ring.deliver(70, &mut sink), 70);
            while ring.deliver(64, &mut sink) > 0 {}
            assert_eq!(sink.payloads(), payloads);
            assert!(ring.is_empty());
        }
    }

    #[test]
    fn a_full_ring_refuses_packets_until_some_are_delivered() {
        let mut ring = LocalRing::new();
        let payloads = [vec![7u8; 4096]];
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &payloads);
        let fits = BYTES / batch.frames()[0].udp_payload_len();
        let mut sink = Collect::default();
        for round in 0..3 {
            while ring.push(&batch, &batch.frames()[0]).is_ok() {}
            assert!(ring.entries.len() >= fits - 1, "{round}");
            assert_eq!(ring.push(&batch, &batch.frames()[0]), Err(Reason::SendQueueFull));
            ring.deliver(fits / 3 + round, &mut sink);
        }
        while ring.deliver(64, &mut sink) > 0 {}
        assert!(sink.payloads().iter().all(|p| *p == payloads[0]));
    }
}
