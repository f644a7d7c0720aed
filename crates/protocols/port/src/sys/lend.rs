//! Lending bytes that a port wrapper holds to the port below, for one call.

use crate::Port;
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, HEAD_MAX, TxBatch};
use burst_span::Span;

/// A frame whose bytes the caller holds: head, then payload, then `pad` zero bytes that are not stored.
pub struct HeldFrame<'a> {
    /// Where to.
    pub flow: Flow,
    /// BTH and extension headers, at most [`HEAD_MAX`] bytes.
    pub head: &'a [u8],
    /// Payload without padding.
    pub payload: &'a [u8],
    /// Pad count.
    pub pad: u8,
}

/// Sends `frame` by `port`, using `batch`, which must be empty and is left empty.
pub fn send_held(
    port: &mut dyn Port,
    now: Nanos,
    batch: &mut TxBatch,
    frame: &HeldFrame<'_>,
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
