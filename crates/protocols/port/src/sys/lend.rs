//! Lends bytes that a wrapper holds to the wrapped port, for one call.

use crate::Port;
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, HEAD_MAX, TxBatch};
use burst_span::Span;

/// A frame in the wrapper's memory: head, payload, and `pad` zero bytes that are not stored.
pub struct DelayedFrame<'a> {
    /// Flow of the frame.
    pub flow: Flow,
    /// Transport headers, at most [`HEAD_MAX`] bytes.
    pub head: &'a [u8],
    /// Payload without padding.
    pub payload: &'a [u8],
    /// Number of padding bytes.
    pub pad: u8,
}

/// Sends `frame` by `port`, using `batch`, which must be empty and is left empty.
pub fn send_delayed(
    port: &mut dyn Port,
    now: Nanos,
    batch: &mut TxBatch,
    frame: &DelayedFrame<'_>,
    dropped: &mut dyn FnMut(Reason),
) {
    assert!(batch.is_empty() && frame.head.len() <= HEAD_MAX);
    let addr = frame.payload.as_ptr().cast_mut();
    // SAFETY: the payload is borrowed for the whole call; `tx_burst` only reads spans and does not use them after it
    // returns (contract of `Port`), and the batch is cleared before this function returns.
    let span = unsafe { Span::local(addr, frame.payload.len() as u32) };
    let spans = if frame.payload.is_empty() { &[][..] } else { core::slice::from_ref(&span) };
    if batch.push(&frame.flow, frame.head, spans, frame.pad) {
        port.tx_burst(now, batch, dropped);
    } else {
        dropped(Reason::SendTooLong);
    }
    batch.clear();
}
