//! The store: what a worker sends to its own queue pairs, between sending and receiving.
//!
//! A ring of bytes made once; its pages are touched only as far as they are used, and it begins anew whenever it is empty,
//! so that it stays in the cache.

use super::train::{self, Train};
use crate::RxSink;
use burst_base::Reason;
use burst_frame::{TxBatch, TxFrame};
use std::collections::VecDeque;

/// Bytes of frames on their way: as much as a socket's receive buffer holds by default.
pub const STORE_BYTES: usize = 8 << 20;
/// Trains on their way.
pub const TRAINS_MAX: usize = 16 << 10;

const _: () = assert!(STORE_BYTES < u32::MAX as usize);

/// Frames between sending and receiving.
pub(super) struct Store {
    bytes: Vec<u8>,
    /// In order of sending. The bytes from the first one's to `tail`, round the end if need be, are taken.
    trains: VecDeque<Train>,
    tail: usize,
}

impl Store {
    pub fn new(bytes: usize) -> Store {
        Store { bytes: vec![0; bytes], trains: VecDeque::with_capacity(TRAINS_MAX), tail: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Where `len` bytes find room. A store that is not empty never becomes so full that its ends meet.
    fn place(&mut self, len: usize) -> Option<usize> {
        let Some(head) = self.trains.front().map(Train::at) else {
            self.tail = 0;
            return (len <= self.bytes.len()).then_some(0);
        };
        if self.tail < head {
            return (head - self.tail > len).then_some(self.tail);
        }
        if self.bytes.len() - self.tail >= len {
            return Some(self.tail);
        }
        (head > len).then_some(0)
    }

    pub fn put(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let stride = frame.udp_payload_len();
        let at = self.place(stride).ok_or(Reason::ReceiveOverflow)?;
        let joins = self.trains.back().is_some_and(|last| last.goes_on(frame, at));
        if !joins && self.trains.len() == TRAINS_MAX {
            return Err(Reason::ReceiveOverflow);
        }
        train::copy(batch, frame, &mut self.bytes[at..at + stride])?;
        self.tail = at + stride;
        match self.trains.back_mut() {
            Some(last) if joins => last.grow(),
            _ => self.trains.push_back(Train::new(frame, at)),
        }
        Ok(())
    }

    /// Hands out up to `budget` frames; returns how many.
    pub fn hand_out(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(train) = self.trains.front_mut()
        {
            left -= train.hand_out(&self.bytes, left, sink);
            if train.packets() == 0 {
                self.trains.pop_front();
            }
        }
        budget - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Collect, batch_of, flow};
    use proptest::prelude::*;

    proptest! {
        /// Whatever the lengths and the rhythm of sending and receiving: what is not dropped comes whole and in order.
        #[test]
        fn the_store_keeps_order(
            steps in prop::collection::vec((prop::collection::vec(0usize..700, 0..12), 0usize..14), 1..60)
        ) {
            let mut store = Store::new(4096);
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
                    if store.put(&batch, frame).is_ok() {
                        sent.push(payload.clone());
                    }
                }
                store.hand_out(budget, &mut sink);
            }
            store.hand_out(usize::MAX, &mut sink);
            prop_assert_eq!(sink.payloads(), sent);
            prop_assert!(store.is_empty());
        }
    }
}
