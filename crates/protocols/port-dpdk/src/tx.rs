//! Sending of the `dpdk` port: packets of the engine become frames of the device.
//!
//! The payload is copied once into a buffer of the device, and the ICRC is computed while copying. Lent memory would have to stay
//! as it was until the driver has read it, but a program may write to it at any time, and the engine may return it to its program
//! right after the burst.
//!
//! IPv4 packets have identification 0 and no UDP checksum, as RoCEv2 allows; IPv6 packets have a UDP checksum, because hosts
//! whose kernel receives the datagrams demand one.

use crate::flow_cache::{CachedFlow, FlowCache};
use crate::queue::{EthQueue, FlushResult};
use crate::share::EthLine;
use burst_base::{Nanos, Reason};
use burst_frame::{TxBatch, TxFrame};
use burst_port::Encapsulation;
use burst_port::ether::{ICRC, UdpChecksum};
use burst_port::lan::Lan;
use burst_wire::Icrc;

/// Interval at which used neighbours are marked in the neighbour table; well below [`burst_port::lan::neighbours::FRESH`].
const REPORT_EVERY: Nanos = Nanos::from_ms(5_000);

/// The sending half of the port.
pub struct DpdkTx {
    flows: FlowCache,
    mtu: usize,
    /// Buffer for a frame that must wait for its next hop.
    scratch: Vec<u8>,
    report_at: Nanos,
}

impl DpdkTx {
    /// `mtu`: bytes of the longest IP packet; `frame_max`: bytes of the longest frame.
    pub fn new(encapsulation: &Encapsulation, mtu: usize, frame_max: usize) -> DpdkTx {
        DpdkTx { flows: FlowCache::new(encapsulation), mtu, scratch: vec![0; frame_max], report_at: Nanos(0) }
    }

    /// Sends the whole batch, but for the frames of which `divert` knows what becomes.
    pub fn burst(
        &mut self,
        now: Nanos,
        (queue, lan): (&mut EthQueue, &mut Lan),
        batch: &TxBatch,
        divert: impl Fn(&TxFrame) -> Option<Result<(), Reason>>,
        dropped: &mut dyn FnMut(Reason),
    ) {
        if now >= self.report_at {
            self.report_at = now + REPORT_EVERY;
            self.flows.report_use();
        }
        for frame in batch.frames() {
            if queue.is_full() {
                report(queue.flush(), dropped);
            }
            let staged = divert(frame).unwrap_or_else(|| self.stage(now, queue, lan, batch, frame));
            if let Err(reason) = staged {
                dropped(reason);
            }
        }
        report(queue.flush(), dropped);
    }

    /// Stages one packet, or queues it until its next hop is resolved. The device's queue has room for it.
    fn stage(
        &mut self,
        now: Nanos,
        queue: &mut EthQueue,
        lan: &mut Lan,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), Reason> {
        // A solicitation is sent at once, so that the queue still has room for the packet.
        let mut send = |bytes: &[u8]| {
            EthLine::emit(queue, bytes);
            queue.flush();
        };
        let cached = self.flows.find(now, &frame.flow, lan, &mut send)?;
        let udp_payload = frame.udp_payload_len();
        if cached.template.ip_len(udp_payload) > self.mtu {
            return Err(Reason::SendTooLong);
        }
        let len = cached.template.header_len() + udp_payload;
        if cached.is_incomplete {
            let bytes = &mut self.scratch[..len];
            fill(cached, batch, frame, bytes)?;
            return if lan.enqueue(frame.flow.dst, bytes) { Ok(()) } else { Err(Reason::NoNeighbour) };
        }
        let buffer = queue.frame(len).ok_or(Reason::SendQueueFull)?;
        let filled = fill(cached, batch, frame, buffer);
        if filled.is_err() {
            queue.discard_frame();
        }
        filled
    }
}

/// Writes the whole frame into `out`, which has the frame's length.
#[inline]
fn fill(cached: &mut CachedFlow, batch: &TxBatch, frame: &TxFrame, out: &mut [u8]) -> Result<(), Reason> {
    let udp_payload = frame.udp_payload_len();
    let (headers, transport) = out.split_at_mut(cached.template.header_len());
    cached.template.write(headers, 0, udp_payload, UdpChecksum::Zero);
    let (head, mut rest) = transport.split_at_mut(frame.head().len());
    head.copy_from_slice(frame.head());
    let mut icrc = cached.seal.begin(0, udp_payload, head);
    for span in batch.spans_of(frame) {
        let (piece, after) = rest.split_at_mut(span.len());
        icrc = icrc.copy_span(span, piece).map_err(|_| Reason::SendFailed)?;
        rest = after;
    }
    finish(icrc, rest);
    if cached.template.is_v6() {
        cached.template.complete_checksum(out);
    }
    Ok(())
}

/// Writes padding and ICRC.
#[inline]
fn finish(icrc: Icrc, tail: &mut [u8]) {
    let (pad, trailer) = tail.split_at_mut(tail.len() - ICRC);
    pad.fill(0);
    trailer.copy_from_slice(&icrc.update(pad).finish());
}

/// Reports the packets that a flush could not send.
#[inline]
pub fn report(sent: FlushResult, dropped: &mut dyn FnMut(Reason)) {
    (0..sent.down).for_each(|_| dropped(Reason::SendFailed));
    (0..sent.full).for_each(|_| dropped(Reason::SendQueueFull));
}
