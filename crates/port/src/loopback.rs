//! `loopback`: what a port sends to its own addresses comes back to it at once, as in an adapter.
//!
//! Such frames never reach the wire or the kernel: they are copied into a store, and the next `rx_burst` hands them out,
//! those side by side in the store that are of one flow and one length as a train. There is no ICRC, because nothing
//! but this process touches them. Ports that cannot reach their own addresses at all (whole frames on an interface) can
//! do so by this wrapper.
//!
//! Only frames to queue pairs of the same worker turn round here. Those of another worker go through the port below, which
//! steers; so all frames to one queue pair take one way and keep their order. [`crate::impair`] wraps around this wrapper,
//! so that its loss and delay concern these frames too.
//!
//! The store is a ring of [`STORE_BYTES`], made once; its pages are touched only as far as they are used, and it begins
//! anew whenever it is empty, so that it stays in the cache. What does not fit is dropped as `ReceiveOverflow`, as it is by
//! a socket.

use crate::ether::seal::ICRC;
use crate::{Port, PortCaps, PortError, RxSink};
use burst_base::{Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame, SPANS_MAX, TxBatch, TxFrame};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Bytes of frames on their way: as much as a socket's receive buffer holds by default.
pub const STORE_BYTES: usize = 8 << 20;
/// Trains on their way.
pub const TRAINS_MAX: usize = 16 << 10;
/// Frames passed on to the port below in one batch, where some of the batch turn round.
const BATCH: usize = 256;

const _: () = assert!(BATCH >= SPANS_MAX && STORE_BYTES < u32::MAX as usize);

/// Frames of one flow and one length, side by side in the store, each followed by room for an ICRC.
#[derive(Clone, Copy, Debug)]
struct Train {
    flow: Flow,
    at: u32,
    stride: u32,
    packets: u32,
}

/// Frames between sending and receiving.
struct Store {
    bytes: Vec<u8>,
    /// In order of sending. The bytes from the first one's to `tail`, round the end if need be, are taken.
    trains: VecDeque<Train>,
    tail: usize,
}

impl Store {
    fn new(bytes: usize) -> Store {
        Store { bytes: vec![0; bytes], trains: VecDeque::with_capacity(TRAINS_MAX), tail: 0 }
    }

    /// Where `len` bytes find room. A store that is not empty never becomes so full that its ends meet.
    fn place(&mut self, len: usize) -> Option<usize> {
        let Some(head) = self.trains.front().map(|train| train.at as usize) else {
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

    fn put(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let stride = frame.udp_payload_len();
        let at = self.place(stride).ok_or(Reason::ReceiveOverflow)?;
        let alike = |last: &Train| {
            last.stride as usize == stride
                && (last.at + last.stride * last.packets) as usize == at
                && (frame.continues || last.flow == frame.flow)
        };
        let joins = self.trains.back().is_some_and(alike);
        if !joins && self.trains.len() == TRAINS_MAX {
            return Err(Reason::ReceiveOverflow);
        }
        let (head, mut rest) = self.bytes[at..at + stride - ICRC].split_at_mut(frame.head().len());
        head.copy_from_slice(frame.head());
        for span in batch.spans_of(frame) {
            let (piece, after) = rest.split_at_mut(span.len());
            span.read_to(piece).map_err(|_| Reason::SendFailed)?;
            rest = after;
        }
        rest.fill(0);
        self.tail = at + stride;
        match self.trains.back_mut() {
            Some(last) if joins => last.packets += 1,
            _ => {
                let train = Train { flow: frame.flow, at: at as u32, stride: stride as u32, packets: 1 };
                self.trains.push_back(train);
            }
        }
        Ok(())
    }

    /// Hands out up to `budget` frames; returns how many.
    fn hand_out(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(train) = self.trains.front_mut()
        {
            let (at, stride) = (train.at as usize, train.stride as usize);
            let packets = left.min(train.packets as usize);
            match &self.bytes[at..at + packets * stride] {
                packet if packets == 1 => sink.frame(&RxFrame { flow: train.flow, bytes: &packet[..stride - ICRC] }),
                several => sink.train(&train.flow, several, stride),
            }
            left -= packets;
            train.at += (packets * stride) as u32;
            train.packets -= packets as u32;
            if train.packets == 0 {
                self.trains.pop_front();
            }
        }
        budget - left
    }
}

/// A port whose frames to itself turn round.
pub struct Loopback {
    inner: Box<dyn Port>,
    /// The addresses of the port below.
    own: Vec<IpAddr>,
    /// The worker that drives the port, if there are others.
    worker: Option<u32>,
    store: Store,
    /// The frames of a batch that do not turn round, when some do.
    others: TxBatch,
}

impl Loopback {
    /// Wraps `inner`, the port of worker `worker` of `workers`.
    pub fn new(inner: Box<dyn Port>, worker: usize, workers: usize) -> Loopback {
        let mut port = Loopback {
            inner,
            own: Vec::new(),
            worker: (workers > 1).then_some(worker as u32),
            store: Store::new(STORE_BYTES),
            others: TxBatch::new(BATCH),
        };
        port.follow();
        port
    }

    fn follow(&mut self) {
        self.own.clear();
        self.own.extend(self.inner.caps().addrs.iter().map(|addr| addr.ip));
    }

    fn turns_round(&self, frame: &TxFrame) -> bool {
        self.own.contains(&frame.flow.dst) && self.worker.is_none_or(|worker| dest_qpn(frame).worker() == worker)
    }

    /// Passes a frame on to the port below, with others.
    fn pass(&mut self, now: Nanos, batch: &TxBatch, frame: &TxFrame, dropped: &mut dyn FnMut(Reason)) {
        let spans = batch.spans_of(frame);
        if !self.others.push(&frame.flow, frame.head(), spans, frame.pad) {
            self.flush(now, dropped);
            let fits = self.others.push(&frame.flow, frame.head(), spans, frame.pad);
            assert!(fits, "an empty batch takes any frame");
        }
    }

    fn flush(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        if !self.others.is_empty() {
            self.inner.tx_burst(now, &self.others, dropped);
            self.others.clear();
        }
    }
}

/// The queue pair that a frame's BTH names; 0 in a frame that is shorter than one.
fn dest_qpn(frame: &TxFrame) -> Qpn {
    let word = frame.head().get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
    Qpn::new(word.map_or(0, |word| u32::from_be_bytes(*word)))
}

impl Port for Loopback {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        // The wire gets its turn in every pass, however much turns round.
        let own = self.store.hand_out(budget - budget / 4, sink);
        if own > 0 {
            sink.turned_round(own);
        }
        own + self.inner.rx_burst(now, budget - own, sink)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        if !frames.iter().any(|frame| !frame.continues && self.own.contains(&frame.flow.dst)) {
            return self.inner.tx_burst(now, batch, dropped);
        }
        let mut turns_round = false;
        for frame in frames {
            turns_round = if frame.continues { turns_round } else { self.turns_round(frame) };
            if !turns_round {
                self.pass(now, batch, frame, dropped);
            } else if let Err(reason) = self.store.put(batch, frame) {
                dropped(reason);
            }
        }
        self.flush(now, dropped);
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn prepare(&mut self, flow: &Flow) {
        if !self.own.contains(&flow.dst) {
            self.inner.prepare(flow);
        }
    }

    fn is_seeking(&mut self, now: Nanos, flow: &Flow) -> bool {
        !self.own.contains(&flow.dst) && self.inner.is_seeking(now, flow)
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep() | !self.store.trains.is_empty()
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn next_event(&self) -> Nanos {
        if self.store.trains.is_empty() { self.inner.next_event() } else { Nanos(0) }
    }

    fn refresh(&mut self) -> bool {
        let changed = self.inner.refresh();
        self.follow();
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Hub, MemConfig, MemPort};
    use crate::testing::{Collect, HEAD, batch_of, flow, push};
    use burst_span::Span;
    use proptest::prelude::*;

    const OWN: &str = "10.0.0.1";
    const OWN6: &str = "fd00::1";
    const PEER: &str = "10.0.0.2";

    /// A port with two addresses for worker `worker` of `workers`, and its peer on the same wire.
    fn wrapped(worker: usize, workers: usize) -> (Loopback, MemPort) {
        let hub = Hub::new(MemConfig { link_mtu: 9000, ..MemConfig::default() });
        let own = hub.port("own", &[OWN.parse().unwrap(), OWN6.parse().unwrap()]);
        (Loopback::new(Box::new(own), worker, workers), hub.port("peer", &[PEER.parse().unwrap()]))
    }

    fn numbered(count: u32, len: usize) -> Vec<Vec<u8>> {
        (0..count).map(|i| i.to_be_bytes().into_iter().cycle().take(len).collect()).collect()
    }

    fn take(port: &mut Loopback) -> Collect {
        let mut sink = Collect::default();
        while port.rx_burst(Nanos(0), 64, &mut sink) > 0 {}
        sink
    }

    #[test]
    fn frames_to_own_addresses_turn_round_and_others_leave() {
        let (mut own, mut peer) = wrapped(0, 1);
        let payloads = numbered(30, 300);
        let mut batch = TxBatch::new(30);
        for (i, payload) in payloads.iter().enumerate() {
            let to = [flow(OWN, OWN), flow(OWN, PEER), flow(OWN6, OWN6)][i % 3];
            assert!(push(&mut batch, &Flow { tos: 0x6a, ..to }, payload));
        }
        own.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
        assert_eq!(own.next_event(), Nanos(0));
        assert!(own.before_sleep());
        let (came, mut left) = (take(&mut own), Collect::default());
        peer.rx_burst(Nanos(0), 64, &mut left);
        let every = |from: usize| payloads[from..].iter().step_by(3).cloned();
        assert_eq!(left.payloads(), every(1).collect::<Vec<_>>());
        let expected: Vec<_> = every(0).zip(every(2)).flat_map(|(a, b)| [a, b]).collect();
        assert_eq!(came.payloads(), expected);
        assert!(came.frames.iter().all(|(f, _)| f.tos == 0x6a && f.src == f.dst));
        assert_eq!((own.next_event(), own.before_sleep()), (Nanos::NEVER, false));
    }

    #[test]
    fn a_run_comes_back_as_a_train() {
        let (mut own, _peer) = wrapped(0, 1);
        let mut memory: Vec<u8> = (0..20 * 1024u32).map(|i| (i / 7) as u8).collect();
        // SAFETY: the memory outlives the batch.
        #[allow(unsafe_code)]
        let span = unsafe { Span::local(memory.as_mut_ptr(), memory.len() as u32) };
        let mut batch = TxBatch::new(64);
        assert!(batch.push_run(&flow(OWN, OWN), &[0; HEAD], &span, 1024, |k, head| head[11] = k as u8));
        own.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
        let came = take(&mut own);
        assert_eq!(came.trains, [20]);
        assert_eq!(came.payloads().concat(), memory);
        assert!(came.frames.iter().enumerate().all(|(k, (_, bytes))| usize::from(bytes[11]) == k));
    }

    #[test]
    fn frames_to_another_workers_queue_pairs_go_below() {
        let (mut own, _peer) = wrapped(1, 2);
        let payload = numbered(1, 64);
        let mut batch = TxBatch::new(8);
        // SAFETY: the payload outlives the batch.
        #[allow(unsafe_code)]
        let span = unsafe { Span::local(payload[0].as_ptr().cast_mut(), 64) };
        for qpn in [0x100, 0x101, 0x110, 0x111] {
            let mut head = [0; HEAD];
            head[4..8].copy_from_slice(&u32::to_be_bytes(qpn));
            assert!(batch.push(&flow(OWN, OWN), &head, &[span], 0));
        }
        own.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
        assert_eq!(own.store.trains.iter().map(|t| t.packets).sum::<u32>(), 2);
        let qpns = |sink: &Collect| sink.frames.iter().map(|(_, b)| (b[6], b[7])).collect::<Vec<_>>();
        assert_eq!(qpns(&take(&mut own)), [(1, 0x01), (1, 0x11), (1, 0x00), (1, 0x10)]);
    }

    #[test]
    fn what_does_not_fit_is_dropped_with_its_reason_and_room_comes_back() {
        let (mut own, _peer) = wrapped(0, 1);
        let payloads = numbered(2100, 4096);
        let mut reasons = Vec::new();
        own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads), &mut |r| reasons.push(r));
        assert!(!reasons.is_empty() && reasons.iter().all(|r| *r == Reason::ReceiveOverflow));
        let fit = payloads.len() - reasons.len();
        assert!(fit * 4112 <= STORE_BYTES && (fit + 1) * 4112 > STORE_BYTES);
        assert_eq!(take(&mut own).payloads(), payloads[..fit]);
        own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads[..9]), &mut |r| panic!("{r}"));
        assert_eq!(take(&mut own).payloads(), payloads[..9]);
    }

    #[test]
    fn memory_that_is_gone_costs_its_frame_only() {
        let (mut own, _peer) = wrapped(0, 1);
        let payloads = numbered(2, 100);
        let mut batch = TxBatch::new(3);
        assert!(push(&mut batch, &flow(OWN, OWN), &payloads[0]));
        assert!(batch.push(&flow(OWN, OWN), &[0; HEAD], &[Span::remote(std::process::id(), 8, 100)], 0));
        assert!(push(&mut batch, &flow(OWN, OWN), &payloads[1]));
        let mut reasons = Vec::new();
        own.tx_burst(Nanos(0), &batch, &mut |r| reasons.push(r));
        assert_eq!(reasons, [Reason::SendFailed]);
        assert_eq!(take(&mut own).payloads(), payloads);
    }

    #[test]
    fn the_wire_has_its_turn_beside_what_turns_round() {
        let (mut own, mut peer) = wrapped(0, 1);
        let payloads = numbered(500, 64);
        own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads), &mut |r| panic!("{r}"));
        peer.tx_burst(Nanos(0), &batch_of(&flow(PEER, OWN), &payloads[..1]), &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        assert_eq!(own.rx_burst(Nanos(0), 64, &mut sink), 49);
        assert!(sink.frames.iter().any(|(f, _)| f.src == flow(PEER, OWN).src));
    }

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
                let batch = batch_of(&flow(OWN, OWN), &payloads);
                for (frame, payload) in batch.frames().iter().zip(&payloads) {
                    if store.put(&batch, frame).is_ok() {
                        sent.push(payload.clone());
                    }
                }
                store.hand_out(budget, &mut sink);
            }
            store.hand_out(usize::MAX, &mut sink);
            prop_assert_eq!(sink.payloads(), sent);
            prop_assert!(store.trains.is_empty());
        }
    }
}
