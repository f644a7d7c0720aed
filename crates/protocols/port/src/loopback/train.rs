//! Looped back packets of one flow and one length that lie side by side in a buffer: how they are copied there and delivered.

use crate::RxSink;
use crate::ether::icrc::ICRC;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};

/// Packets of one flow and one length side by side, each followed by room for an ICRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopbackTrain {
    flow: Flow,
    /// Offset of the first packet in the buffer, in bytes.
    at: u32,
    /// Bytes from one packet to the next: the packet and the room for its ICRC.
    stride: u32,
    /// Packets not yet delivered.
    packets: u32,
}

impl LoopbackTrain {
    /// A train of the packet `frame` alone, which lies at offset `at`.
    pub fn new(frame: &TxFrame, at: usize) -> LoopbackTrain {
        LoopbackTrain { flow: frame.flow, at: at as u32, stride: frame.udp_payload_len() as u32, packets: 1 }
    }

    /// Whether `frame`, copied to offset `at`, can be appended to this train. `frame.continues` cannot be used: the frame before
    /// it in its batch may have been dropped for want of room.
    pub fn is_continued_by(&self, frame: &TxFrame, at: usize) -> bool {
        self.stride as usize == frame.udp_payload_len()
            && (self.at + self.stride * self.packets) as usize == at
            && self.flow == frame.flow
    }

    /// Appends one packet.
    pub fn grow(&mut self) {
        debug_assert!(self.packets > 0);
        self.packets += 1;
    }

    /// Offset of the first packet not yet delivered.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// Number of packets not yet delivered.
    pub fn packets(&self) -> usize {
        self.packets as usize
    }

    /// Delivers the first packets, at most `max` of them, and removes them from the train. Returns how many.
    pub fn deliver(&mut self, bytes: &[u8], max: usize, sink: &mut dyn RxSink) -> usize {
        let (at, stride) = (self.at as usize, self.stride as usize);
        let packets = max.min(self.packets as usize);
        debug_assert!(stride > ICRC && at + packets * stride <= bytes.len());
        match &bytes[at..at + packets * stride] {
            [] => {}
            packet if packets == 1 => sink.frame(&RxFrame { flow: self.flow, bytes: &packet[..stride - ICRC] }),
            train => sink.train(&self.flow, train, stride),
        }
        self.at += (packets * stride) as u32;
        self.packets -= packets as u32;
        packets
    }
}

/// Copies `frame` to `room`, which is as long as the packet and its ICRC. The bytes of the ICRC are left as they are.
///
/// # Errors
/// [`Reason::SendFailed`] when the memory of the payload is gone.
pub fn copy(batch: &TxBatch, frame: &TxFrame, room: &mut [u8]) -> Result<(), Reason> {
    debug_assert!(room.len() == frame.udp_payload_len());
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
    fn a_run_whose_first_frame_was_dropped_does_not_continue_another_flow() {
        // The memory is never read.
        let memory = ProcessMemory::own().expect("own memory");
        let span = memory.span(4096, 300);
        let mut batch = TxBatch::new(8);
        for src in ["10.0.0.1", "10.0.0.2"] {
            assert!(batch.push_run(&flow(src, "10.0.0.1"), &[0; 12], &span, 100, |_, _| ()));
        }
        let frames = batch.frames();
        let train = LoopbackTrain::new(&frames[0], 0);
        let end = frames[0].udp_payload_len();
        assert!(train.is_continued_by(&frames[1], end));
        assert!(frames[4].continues && !train.is_continued_by(&frames[4], end));
    }
}
