//! Packets to the port's own addresses: they never leave it. A ring of bytes made once, filled by `tx_burst`, emptied by
//! the next `rx_burst` of the same worker; the engine hands packets over to the worker that has the queue pair.

use crate::RxSink;
use crate::ether::ICRC;
use crate::sending::write;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};
use std::collections::VecDeque;

/// Bytes on the way; the engine's windows keep far fewer. The system backs them with memory when first used.
const BYTES: usize = 8 << 20;
/// Packets on the way.
const PACKETS: usize = 16 << 10;

struct Entry {
    flow: Flow,
    at: usize,
    len: usize,
}

/// The ring.
pub struct Home {
    bytes: Vec<u8>,
    entries: VecDeque<Entry>,
}

impl Home {
    /// An empty ring.
    pub fn new() -> Home {
        Home { bytes: vec![0; BYTES], entries: VecDeque::with_capacity(PACKETS) }
    }
    /// Whether nothing is on the way.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Takes a packet, or says why not.
    pub fn push(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let len = frame.udp_payload_len();
        let at = self.room(len).ok_or(Reason::SendQueueFull)?;
        if !write(&mut self.bytes[at..at + len], batch, frame, None, 0) {
            return Err(Reason::SendFailed);
        }
        let hop_limit = if frame.flow.hop_limit == 0 { 64 } else { frame.flow.hop_limit };
        self.entries.push_back(Entry { flow: Flow { hop_limit, ..frame.flow }, at, len: len - ICRC });
        Ok(())
    }
    /// Where `len` bytes in one piece are free.
    fn room(&self, len: usize) -> Option<usize> {
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
    /// Hands out up to `budget` packets; returns how many.
    pub fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        for taken in 0..budget {
            let Some(Entry { flow, at, len }) = self.entries.pop_front() else { return taken };
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
    fn packets_come_back_in_order_round_and_round() {
        let mut home = Home::new();
        let payloads: Vec<Vec<u8>> = (0..200u32).map(|i| vec![i as u8; (i * 37 % 4097) as usize]).collect();
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &payloads);
        for _ in 0..50 {
            let mut sink = Collect::default();
            batch.frames().iter().for_each(|f| home.push(&batch, f).unwrap());
            assert_eq!(home.deliver(70, &mut sink), 70);
            while home.deliver(64, &mut sink) > 0 {}
            assert_eq!(sink.payloads(), payloads);
            assert!(home.is_empty());
        }
    }

    #[test]
    fn a_full_ring_says_so_and_goes_on() {
        let mut home = Home::new();
        let payloads = [vec![7u8; 4096]];
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &payloads);
        let fits = BYTES / batch.frames()[0].udp_payload_len();
        let mut sink = Collect::default();
        for round in 0..3 {
            while home.push(&batch, &batch.frames()[0]).is_ok() {}
            assert!(home.entries.len() >= fits - 1, "{round}");
            assert_eq!(home.push(&batch, &batch.frames()[0]), Err(Reason::SendQueueFull));
            home.deliver(fits / 3 + round, &mut sink);
        }
        while home.deliver(64, &mut sink) > 0 {}
        assert!(sink.payloads().iter().all(|p| *p == payloads[0]));
    }
}
