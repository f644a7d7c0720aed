//! Frames of one flow and one length, side by side in a buffer: how they get there and how they are handed out.

use crate::RxSink;
use crate::ether::seal::ICRC;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};

/// Frames side by side, each followed by room for an ICRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    flow: Flow,
    at: u32,
    stride: u32,
    packets: u32,
}

impl Train {
    /// `frame` alone, whose bytes are at `at`.
    pub fn new(frame: &TxFrame, at: usize) -> Train {
        Train { flow: frame.flow, at: at as u32, stride: frame.udp_payload_len() as u32, packets: 1 }
    }

    /// Whether `frame`, put at `at`, goes on with this train. That it continues the frame before it in its batch says
    /// nothing: that one may have found no room.
    pub fn goes_on(&self, frame: &TxFrame, at: usize) -> bool {
        self.stride as usize == frame.udp_payload_len()
            && (self.at + self.stride * self.packets) as usize == at
            && self.flow == frame.flow
    }

    /// One packet longer.
    pub fn grow(&mut self) {
        self.packets += 1;
    }

    /// Where its first byte is.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// Packets not yet handed out.
    pub fn packets(&self) -> usize {
        self.packets as usize
    }

    /// Hands out its first packets, up to `most`, and forgets them; returns how many.
    pub fn hand_out(&mut self, bytes: &[u8], most: usize, sink: &mut dyn RxSink) -> usize {
        let (at, stride) = (self.at as usize, self.stride as usize);
        let packets = most.min(self.packets as usize);
        match &bytes[at..at + packets * stride] {
            [] => {}
            packet if packets == 1 => sink.frame(&RxFrame { flow: self.flow, bytes: &packet[..stride - ICRC] }),
            several => sink.train(&self.flow, several, stride),
        }
        self.at += (packets * stride) as u32;
        self.packets -= packets as u32;
        packets
    }
}

/// Copies `frame` to `room`, which has its length with an ICRC.
///
/// # Errors
/// [`Reason::SendFailed`] when the memory of the payload is gone.
pub(super) fn copy(batch: &TxBatch, frame: &TxFrame, room: &mut [u8]) -> Result<(), Reason> {
    let len = room.len() - ICRC;
    let (head, mut rest) = room[..len].split_at_mut(frame.head().len());
    head.copy_from_slice(frame.head());
    for span in batch.spans_of(frame) {
        let (piece, after) = rest.split_at_mut(span.len());
        span.read_to(piece).map_err(|_| Reason::SendFailed)?;
        rest = after;
    }
    rest.fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::flow;
    use burst_span::ProcessMemory;

    #[test]
    fn a_run_that_has_lost_its_first_frame_does_not_join_a_stranger() {
        // Nothing is read.
        let memory = ProcessMemory::own().expect("own memory");
        let span = memory.span(4096, 300);
        let mut batch = TxBatch::new(8);
        for src in ["10.0.0.1", "10.0.0.2"] {
            assert!(batch.push_run(&flow(src, "10.0.0.1"), &[0; 12], &span, 100, |_, _| ()));
        }
        let frames = batch.frames();
        let train = Train::new(&frames[0], 0);
        let end = frames[0].udp_payload_len();
        assert!(train.goes_on(&frames[1], end) && frames[4].continues && !train.goes_on(&frames[4], end));
    }
}
