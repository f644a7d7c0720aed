//! Helpers of this crate's unit tests: batches of plain payloads behind a 12-byte head, and a sink that keeps frames.
#![allow(unsafe_code)]

use crate::ether::ICRC;
use crate::{ReceivePressure, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_span::Span;

/// Bytes of the head that [`batch_of`] makes: a BTH.
pub const HEAD: usize = 12;

/// A flow from `src` to `dst`.
pub fn flow(src: &str, dst: &str) -> Flow {
    Flow { src: src.parse().unwrap(), dst: dst.parse().unwrap(), ..Flow::default() }
}

/// A batch of frames with these payloads, padded to four bytes; the pad count is in the head as in a BTH. The payloads
/// must outlive the batch's use.
pub fn batch_of(flow: &Flow, payloads: &[Vec<u8>]) -> TxBatch {
    let mut batch = TxBatch::new(payloads.len().max(1));
    for payload in payloads {
        assert!(push(&mut batch, flow, payload));
    }
    batch
}

/// Appends a frame with this payload.
pub fn push(batch: &mut TxBatch, flow: &Flow, payload: &[u8]) -> bool {
    let pad = (4 - payload.len() % 4) as u8 % 4;
    let mut head = [0u8; HEAD];
    head[0] = 0x04;
    head[1] = pad << 4;
    head[2..4].fill(0xff);
    // SAFETY: the tests keep the payload alive until the batch is sent; nothing writes through the span.
    let span = unsafe { Span::local(payload.as_ptr().cast_mut(), payload.len() as u32) };
    batch.push(flow, &head, &[span], pad)
}

/// Keeps the delivered packets and drop reasons.
#[derive(Default)]
pub struct Collect {
    /// Delivered packets, in order.
    pub frames: Vec<(Flow, Vec<u8>)>,
    /// Reasons of drops.
    pub dropped: Vec<Reason>,
    /// Numbers of packets of the trains that were delivered whole; their packets are among the frames.
    pub trains: Vec<usize>,
    /// Pressure on the receive buffers, as it was told.
    pub pressure: Vec<ReceivePressure>,
    /// Waits, as they were told.
    pub waits: Vec<Nanos>,
}

impl Collect {
    /// The payloads, without heads and padding.
    pub fn payloads(&self) -> Vec<Vec<u8>> {
        self.frames.iter().map(|(_, b)| b[HEAD..b.len() - usize::from(b[1] >> 4 & 3)].to_vec()).collect()
    }
}

impl RxSink for Collect {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.frames.push((frame.flow, frame.bytes.to_vec()));
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let frames = train.chunks_exact(stride).map(|packet| (*flow, packet[..stride - ICRC].to_vec()));
        self.frames.extend(frames);
        self.trains.push(train.len() / stride);
    }
    fn dropped(&mut self, reason: Reason) {
        self.dropped.push(reason);
    }
    fn waited(&mut self, waited: Nanos) {
        self.waits.push(waited);
    }
    fn pressure(&mut self, pressure: ReceivePressure) {
        self.pressure.push(pressure);
    }
}
