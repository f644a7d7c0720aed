//! The store: packets from a worker to its own queue pairs, between `tx_burst` and `rx_burst`.
//!
//! A ring of bytes allocated once. Only the pages in use are touched, and the ring starts at offset 0 again whenever it is empty,
//! so that it stays in the cache.

use super::train::{self, LoopbackTrain};
use crate::RxSink;
use crate::sys::give_back::give_back;
use burst_base::Reason;
use burst_frame::{TxBatch, TxFrame};
use std::collections::VecDeque;

/// Bytes of the store: as many as a socket's receive buffer has by default.
pub const STORE_BYTES: usize = 8 << 20;
/// Most trains in the store.
pub const TRAINS_MAX: usize = 16 << 10;

const _: () = assert!(STORE_BYTES < u32::MAX as usize);

/// Packets between sending and receiving.
pub(super) struct LoopbackStore {
    bytes: Vec<u8>,
    /// Trains in order of sending. The bytes from the first train's offset to `tail` are in use, round the end of the ring if
    /// need be.
    trains: VecDeque<LoopbackTrain>,
    /// Offset behind the last packet.
    tail: usize,
}

impl LoopbackStore {
    pub fn new(bytes: usize) -> LoopbackStore {
        LoopbackStore { bytes: vec![0; bytes], trains: VecDeque::with_capacity(TRAINS_MAX), tail: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Offset at which `len` contiguous bytes are free. `tail` never reaches the first packet's offset, so equal offsets mean
    /// empty.
    fn find_room(&mut self, len: usize) -> Option<usize> {
        let Some(head) = self.trains.front().map(LoopbackTrain::at) else {
            self.tail = 0;
            // The next train takes the first place again, too.
            self.trains.clear();
            return (len <= self.bytes.len()).then_some(0);
        };
        debug_assert!(self.tail <= self.bytes.len() && self.tail != head);
        if self.tail < head {
            return (head - self.tail > len).then_some(self.tail);
        }
        if self.bytes.len() - self.tail >= len {
            return Some(self.tail);
        }
        (head > len).then_some(0)
    }

    /// Copies a packet into the store.
    ///
    /// # Errors
    /// [`Reason::ReceiveOverflow`] without room, [`Reason::SendFailed`] when the memory of the payload is gone.
    pub fn push(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let stride = frame.udp_payload_len();
        let at = self.find_room(stride).ok_or(Reason::ReceiveOverflow)?;
        let joins = self.trains.back().is_some_and(|last| last.is_continued_by(frame, at));
        if !joins && self.trains.len() == TRAINS_MAX {
            return Err(Reason::ReceiveOverflow);
        }
        train::copy(batch, frame, &mut self.bytes[at..at + stride])?;
        debug_assert!(at + stride <= self.bytes.len(), "a packet beyond the ring");
        self.tail = at + stride;
        match self.trains.back_mut() {
            Some(last) if joins => last.grow(),
            _ => self.trains.push_back(LoopbackTrain::new(frame, at)),
        }
        debug_assert!(self.trains.len() <= TRAINS_MAX);
        Ok(())
    }

    /// Gives the memory of delivered packets back to the system, if no packet waits.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            give_back(&mut self.bytes);
        }
    }

    /// Pages of the ring that are resident.
    #[cfg(test)]
    pub fn resident_pages(&self) -> usize {
        crate::sys::give_back::resident_pages(&self.bytes)
    }

    /// Delivers up to `budget` packets; returns how many.
    pub fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(train) = self.trains.front_mut()
        {
            left -= train.deliver(&self.bytes, left, sink);
            if train.packets() == 0 {
                self.trains.pop_front();
            }
        }
        debug_assert!(left == 0 || self.trains.is_empty(), "packets are left though the budget is not spent");
        budget - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Collect, batch_of, flow};
    use proptest::prelude::*;

    #[test]
    fn an_empty_store_begins_at_its_first_train() {
        let (mut store, mut sink) = (LoopbackStore::new(4096), Collect::default());
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &[vec![7; 100]]);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..100 {
            assert!(store.push(&batch, &batch.frames()[0]).is_ok());
            places.insert(store.trains.as_slices().0.as_ptr());
            assert_eq!(store.deliver(1, &mut sink), 1);
        }
        assert_eq!(places.len(), 1, "the list of trains is touched no further than it is long");
    }

    proptest! {
        /// For any lengths and any interleaving of sending and receiving, the packets that are not dropped arrive whole and in
        /// order.
        #[test]
        fn the_store_keeps_order(
            steps in prop::collection::vec((prop::collection::vec(0usize..700, 0..12), 0usize..14), 1..60)
        ) {
            let mut store = LoopbackStore::new(4096);
            let (mut sent, mut sink, mut number) = (Vec::new(), Collect::default(), 0u8);
            for (lengths, budget) in steps {
                let payloads: Vec<Vec<u8>> = lengths
                    .iter()
                    .map(|len| {
                        number = number.wrapping_add(1);
                        vec![number; *len]
                    })
                    .collect();
                let batch = batch_of(&flow("10.0.0.1", "10.0.0.1"), &payloads);
                for (frame, payload) in batch.frames().iter().zip(&payloads) {
                    if store.push(&batch, frame).is_ok() {
                        sent.push(payload.clone());
                    }
                }
                store.deliver(budget, &mut sink);
            }
            store.deliver(usize::MAX, &mut sink);
            prop_assert_eq!(sink.payloads(), sent);
            prop_assert!(store.is_empty());
        }
    }
}
