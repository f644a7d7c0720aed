//! Sending: a frame of the engine becomes a frame of the device.
//!
//! Payload of registered memory is lent to drivers that have taken a packet when `tx_burst` of DPDK returns (memif, tap,
//! AF_PACKET: they copy or write it there and then): head, memory, tail. For other drivers it is copied once into a
//! buffer of the device, with the ICRC computed on the way: they keep a packet for as long as they like, while the
//! engine may give the memory back to its program right after the burst.
//!
//! IPv4 goes with identification 0 and without a UDP checksum, as RoCEv2 allows; IPv6 with one, because hosts whose
//! kernel reads the datagrams insist on it.

use super::flows::{Flows, Place};
use crate::ether::{ICRC, UdpChecksum};
use crate::lan::Lan;
use burst_base::{Nanos, Reason};
use burst_dpdk::{FrameBuf, QueuePair, Sent};
use burst_frame::{TxBatch, TxFrame};
use burst_wire::Icrc;

/// Payloads up to this length are copied: dearer to lend.
const COPY_MAX: usize = 512;
/// How often neighbours are told which of them are in use: well within their freshness.
const TOUCH_EVERY: Nanos = Nanos::from_ms(5_000);

/// See the module.
pub struct Tx {
    flows: Flows,
    mtu: usize,
    /// A frame that must wait for its neighbour.
    scratch: Vec<u8>,
    touch_at: Nanos,
}

impl Tx {
    /// `mtu` limits IP packets.
    pub fn new(mtu: usize, frame_max: usize) -> Tx {
        Tx { flows: Flows::new(), mtu, scratch: vec![0; frame_max], touch_at: Nanos(0) }
    }

    /// Sends the whole batch.
    pub fn burst(
        &mut self,
        now: Nanos,
        queue: &mut QueuePair,
        lan: &mut Lan,
        batch: &TxBatch,
        dropped: &mut dyn FnMut(Reason),
    ) {
        if now >= self.touch_at {
            self.touch_at = now + TOUCH_EVERY;
            self.flows.untouch();
        }
        for frame in batch.frames() {
            if queue.is_full() {
                report(queue.flush(), dropped);
            }
            if let Err(reason) = self.stage(now, queue, lan, batch, frame) {
                dropped(reason);
            }
        }
        report(queue.flush(), dropped);
    }

    /// Stages one frame, or keeps it until its neighbour answers. The queue has room for it.
    fn stage(
        &mut self,
        now: Nanos,
        queue: &mut QueuePair,
        lan: &mut Lan,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), Reason> {
        // Questions that are sent on the way leave at once, so that the frame finds its room.
        let mut ask = |bytes: &[u8]| {
            super::emit(queue, bytes);
            queue.flush();
        };
        let place = self.flows.find(now, &frame.flow, lan, &mut ask)?;
        let udp_payload = frame.udp_payload_len();
        if place.template.ip_len(udp_payload) > self.mtu {
            return Err(Reason::SendTooLong);
        }
        let len = place.template.header_len() + udp_payload;
        if place.waits {
            let bytes = &mut self.scratch[..len];
            fill(place, batch, frame, bytes)?;
            return if lan.hold(frame.flow.dst, bytes) { Ok(()) } else { Err(Reason::NoNeighbour) };
        }
        if usize::from(frame.payload_len) > COPY_MAX && queue.lends() && !place.template.is_v6() {
            let (head, tail) = (place.template.header_len() + frame.head().len(), usize::from(frame.pad) + ICRC);
            if let Some(buffer) = queue.lend(head, batch.spans_of(frame), tail) {
                fill_around(place, batch, frame, buffer);
                return Ok(());
            }
        }
        let buffer = queue.frame(len).ok_or(Reason::SendQueueFull)?;
        let filled = fill(place, batch, frame, buffer.head);
        if filled.is_err() {
            queue.unframe();
        }
        filled
    }
}

/// Writes the whole frame into `out`, which has its length.
#[inline]
fn fill(place: &mut Place, batch: &TxBatch, frame: &TxFrame, out: &mut [u8]) -> Result<(), Reason> {
    let udp_payload = frame.udp_payload_len();
    let (headers, transport) = out.split_at_mut(place.template.header_len());
    place.template.write(headers, 0, udp_payload, UdpChecksum::Zero);
    let (head, mut rest) = transport.split_at_mut(frame.head().len());
    head.copy_from_slice(frame.head());
    let mut icrc = place.seal.begin(0, udp_payload, head);
    for span in batch.spans_of(frame) {
        let (piece, after) = rest.split_at_mut(span.len());
        icrc = icrc.copy_span(span, piece).map_err(|_| Reason::SendFailed)?;
        rest = after;
    }
    finish(icrc, rest);
    if place.template.is_v6() {
        place.template.complete_checksum(out);
    }
    Ok(())
}

/// Writes what is around lent memory, whose bytes the ICRC reads where they are.
#[inline]
fn fill_around(place: &mut Place, batch: &TxBatch, frame: &TxFrame, buffer: FrameBuf<'_>) {
    let udp_payload = frame.udp_payload_len();
    let (headers, head) = buffer.head.split_at_mut(place.template.header_len());
    place.template.write(headers, 0, udp_payload, UdpChecksum::Zero);
    head.copy_from_slice(frame.head());
    let mut icrc = place.seal.begin(0, udp_payload, head);
    for span in batch.spans_of(frame) {
        // Only local spans are lent, and those cannot be gone.
        icrc = icrc.update_span(span).unwrap_or(icrc);
    }
    finish(icrc, buffer.tail);
}

/// Padding and ICRC.
#[inline]
fn finish(icrc: Icrc, tail: &mut [u8]) {
    let (pad, trailer) = tail.split_at_mut(tail.len() - ICRC);
    pad.fill(0);
    trailer.copy_from_slice(&icrc.update(pad).finish());
}

/// Counts what a flush could not send.
#[inline]
pub fn report(sent: Sent, dropped: &mut dyn FnMut(Reason)) {
    (0..sent.down).for_each(|_| dropped(Reason::SendFailed));
    (0..sent.full).for_each(|_| dropped(Reason::SendQueueFull));
}
