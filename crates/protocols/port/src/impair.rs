//! `impair`: simulates a bad network around any port, with a seed, for tests and experiments.
//!
//! The fate of each frame is drawn once per direction, from one random sequence of that direction: whether it is lost, corrupted,
//! marked or duplicated, and how long it is delayed. Two runs with the same seed, clock and frames are equal.
//!
//! - **loss**: the frame is dropped, counted as `impaired`.
//! - **corrupt**: a bit is flipped after the ICRC was computed. The wrapper is above the port that computes and verifies the
//!   ICRC, so it has the effect that the receiver would see: received frames become `BadIcrc`; sent frames are dropped as
//!   `impaired`.
//! - **ecn**: ECT(0) or ECT(1) becomes CE; frames that are not ECN-capable are not changed.
//! - **dup**: the frame passes twice, the second time with a delay of its own.
//! - **delay**, **jitter**: the frame is delayed by `delay` plus a uniform random part of `jitter`.
//! - **reorder**: the frame is delayed by a further random time in [`REORDER_NS`], so that later frames overtake it.
//!
//! Delayed frames are copied into slots allocated at opening, and only if the options can delay a frame at all.
//! [`Port::next_event`] returns when the next one is due; `rx_burst` and `tx_burst` release due frames. A full store drops frames
//! as `SendQueueFull` or `ReceiveOverflow`. Frames longer than [`DELAYED_BYTES`] are never delayed.

use crate::spec::{Direction, ImpairSpec, Ppm};
use crate::sys::lend::{DelayedFrame, send_delayed};
use crate::{NeighbourState, Port, PortCaps, PortError, RxSink};
use burst_base::rng::Rng;
use burst_base::{Nanos, Reason};
use burst_frame::{Ecn, Flow, HEAD_MAX, RxFrame, SPANS_MAX, TxBatch, TxFrame};
use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Most frames delayed at once in one direction.
pub const DELAYED_MAX: usize = 2048;
/// Bytes of the longest frame that can be delayed: a 4 KiB path MTU with its headers and padding.
pub const DELAYED_BYTES: usize = HEAD_MAX + 4096 + 4;
/// Further delay of a reordered frame, in nanoseconds.
pub const REORDER_NS: core::ops::RangeInclusive<u64> = 20_000..=120_000;
/// Frames given to the wrapped port in one batch.
const BATCH: usize = 256;
/// Most delayed frames released by one call, whatever the budget.
const RELEASE_MAX: usize = DELAYED_MAX;

const _: () = assert!(BATCH >= SPANS_MAX && RELEASE_MAX <= DELAYED_MAX);

/// The fate of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameFate {
    Lost,
    Damaged,
    Pass {
        mark: bool,
        delay_ns: u64,
        /// Whether the frame is duplicated, and the delay of the second copy in nanoseconds.
        twice: Option<u64>,
    },
}

/// The random choices of one direction.
struct FateSequence {
    spec: ImpairSpec,
    active: bool,
    rng: Rng,
}

impl FateSequence {
    fn new(spec: ImpairSpec, active: bool, salt: u64) -> FateSequence {
        FateSequence { spec, active, rng: Rng::new(spec.seed ^ salt) }
    }

    fn draw(&mut self, ecn: Ecn) -> FrameFate {
        if !self.active {
            return FrameFate::Pass { mark: false, delay_ns: 0, twice: None };
        }
        let spec = self.spec;
        if self.happens(spec.loss) {
            return FrameFate::Lost;
        }
        if self.happens(spec.corrupt) {
            return FrameFate::Damaged;
        }
        let mark = self.happens(spec.ecn) && matches!(ecn, Ecn::Ect0 | Ecn::Ect1);
        let delay_ns = self.delay_ns();
        let twice = self.happens(spec.dup).then(|| self.delay_ns());
        FrameFate::Pass { mark, delay_ns, twice }
    }

    fn delay_ns(&mut self) -> u64 {
        let spec = self.spec;
        let extra =
            if self.happens(spec.reorder) { self.rng.between(*REORDER_NS.start(), *REORDER_NS.end()) } else { 0 };
        let jitter = if spec.jitter_ns > 0 { self.rng.between(0, spec.jitter_ns) } else { 0 };
        spec.delay_ns + jitter + extra
    }

    /// Draws a number only for rates above zero, so that an unused option does not shift the sequence of the others.
    fn happens(&mut self, rate: Ppm) -> bool {
        rate.0 > 0 && self.rng.chance(u64::from(rate.0), u64::from(Ppm::ONE.0))
    }
}

/// Delayed frames of one direction until they are due.
struct DelayStore {
    slots: Vec<DelaySlot>,
    free: Vec<u32>,
    /// (due time, sequence number, slot): the earliest first, equal times in order of arrival.
    due: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    sequence: u64,
}

struct DelaySlot {
    flow: Flow,
    head_len: u8,
    pad: u8,
    bytes: Vec<u8>,
}

impl DelayStore {
    fn new(capacity: usize) -> DelayStore {
        let slot =
            |_| DelaySlot { flow: Flow::default(), head_len: 0, pad: 0, bytes: Vec::with_capacity(DELAYED_BYTES) };
        DelayStore {
            slots: (0..capacity).map(slot).collect(),
            free: (0..capacity as u32).rev().collect(),
            due: BinaryHeap::with_capacity(capacity),
            sequence: 0,
        }
    }

    /// Lets `fill` fill a free slot; false when there is none, or when `fill` returns false.
    fn insert(&mut self, due: Nanos, fill: impl FnOnce(&mut DelaySlot) -> bool) -> bool {
        debug_assert!(self.free.len() + self.due.len() <= self.slots.len(), "a slot is free or in use, not both");
        let Some(at) = self.free.pop() else { return false };
        if !fill(&mut self.slots[at as usize]) {
            self.free.push(at);
            return false;
        }
        self.sequence += 1;
        self.due.push(Reverse((due, self.sequence, at)));
        debug_assert!(self.due.len() <= self.slots.len());
        true
    }

    /// Takes the next slot that is due at `now`; the caller returns it by `free`.
    fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        if self.due.peek()?.0.0 > now {
            return None;
        }
        self.due.pop().map(|Reverse((_, _, at))| at)
    }

    fn next(&self) -> Nanos {
        self.due.peek().map_or(Nanos::NEVER, |Reverse((due, _, _))| *due)
    }
}

/// A port with impairments around it.
pub struct Impair {
    inner: Box<dyn Port>,
    tx: FateSequence,
    rx: FateSequence,
    tx_delayed: DelayStore,
    rx_delayed: DelayStore,
    batch: TxBatch,
    single: TxBatch,
}

impl Impair {
    /// Wraps `inner`.
    pub fn new(inner: Box<dyn Port>, spec: ImpairSpec) -> Impair {
        let delays = spec.delay_ns > 0 || spec.jitter_ns > 0 || spec.reorder > Ppm(0);
        let capacity = |acts: bool| if delays && acts { DELAYED_MAX } else { 0 };
        let (tx, rx) = (spec.dir != Direction::Rx, spec.dir != Direction::Tx);
        Impair {
            inner,
            tx: FateSequence::new(spec, tx, 0x7478),
            rx: FateSequence::new(spec, rx, 0x7278),
            tx_delayed: DelayStore::new(capacity(tx)),
            rx_delayed: DelayStore::new(capacity(rx)),
            batch: TxBatch::new(BATCH),
            single: TxBatch::new(1),
        }
    }

    /// Sends the batch by the wrapped port.
    fn flush(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        if !self.batch.is_empty() {
            self.inner.tx_burst(now, &self.batch, dropped);
            self.batch.clear();
        }
    }

    /// Passes one copy of a frame on, at once or delayed.
    fn pass_tx(
        &mut self,
        now: Nanos,
        from: (&TxBatch, &TxFrame),
        flow: &Flow,
        delay_ns: u64,
        dropped: &mut dyn FnMut(Reason),
    ) {
        let (batch, frame) = from;
        let length = usize::from(frame.head_len) + usize::from(frame.payload_len);
        if delay_ns > 0 && length + usize::from(frame.pad) <= DELAYED_BYTES {
            let delayed = self.tx_delayed.insert(now + Nanos(delay_ns), |slot| {
                (slot.flow, slot.head_len, slot.pad) = (*flow, frame.head_len, frame.pad);
                slot.bytes.clear();
                slot.bytes.extend_from_slice(frame.head());
                append_spans(&mut slot.bytes, batch, frame)
            });
            if !delayed {
                dropped(Reason::SendQueueFull);
            }
            return;
        }
        let spans = batch.spans_of(frame);
        if !self.batch.push(flow, frame.head(), spans, frame.pad) {
            self.flush(now, dropped);
            let fits = self.batch.push(flow, frame.head(), spans, frame.pad);
            assert!(fits, "an empty batch takes any frame");
        }
    }

    /// Sends the delayed frames that are due.
    fn release_tx(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        for _ in 0..RELEASE_MAX {
            let Some(at) = self.tx_delayed.pop_due(now) else { return };
            let slot = &self.tx_delayed.slots[at as usize];
            let (head, payload) = slot.bytes.split_at(usize::from(slot.head_len));
            let frame = DelayedFrame { flow: slot.flow, head, payload, pad: slot.pad };
            send_delayed(&mut *self.inner, now, &mut self.single, &frame, dropped);
            self.tx_delayed.free.push(at);
        }
    }

    /// Delivers the delayed received frames that are due; returns how many.
    fn release_rx(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        for done in 0..budget.min(RELEASE_MAX) {
            let Some(at) = self.rx_delayed.pop_due(now) else { return done };
            let slot = &self.rx_delayed.slots[at as usize];
            sink.frame(&RxFrame { flow: slot.flow, bytes: &slot.bytes });
            self.rx_delayed.free.push(at);
        }
        budget.min(RELEASE_MAX)
    }
}

fn append_spans(bytes: &mut Vec<u8>, batch: &TxBatch, frame: &TxFrame) -> bool {
    batch.spans_of(frame).iter().all(|span| {
        let at = bytes.len();
        bytes.resize(at + span.len(), 0);
        span.read_to(&mut bytes[at..]).is_ok()
    })
}

/// The flow with its ECN codepoint set to CE if `mark`.
fn marked(flow: &Flow, mark: bool) -> Flow {
    Flow { tos: if mark { flow.tos | Ecn::Ce as u8 } else { flow.tos }, ..*flow }
}

fn ecn_of(tos: u8) -> Ecn {
    RxFrame { flow: Flow { tos, ..Flow::default() }, bytes: &[] }.ecn()
}

/// Draws the fate of received frames on their way to the sink.
struct ImpairSink<'a> {
    now: Nanos,
    draw: &'a mut FateSequence,
    delayed: &'a mut DelayStore,
    sink: &'a mut dyn RxSink,
}

impl ImpairSink<'_> {
    fn pass(&mut self, frame: &RxFrame<'_>, delay_ns: u64) {
        if delay_ns == 0 || frame.bytes.len() > DELAYED_BYTES {
            return self.sink.frame(frame);
        }
        let delayed = self.delayed.insert(self.now + Nanos(delay_ns), |slot| {
            slot.flow = frame.flow;
            slot.bytes.clear();
            slot.bytes.extend_from_slice(frame.bytes);
            true
        });
        if !delayed {
            self.sink.dropped(Reason::ReceiveOverflow);
        }
    }
}

impl RxSink for ImpairSink<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        match self.draw.draw(frame.ecn()) {
            FrameFate::Lost => self.sink.dropped(Reason::Impaired),
            FrameFate::Damaged => self.sink.dropped(Reason::BadIcrc),
            FrameFate::Pass { mark, delay_ns, twice } => {
                let frame = RxFrame { flow: marked(&frame.flow, mark), bytes: frame.bytes };
                self.pass(&frame, delay_ns);
                if let Some(delay_ns) = twice {
                    self.pass(&frame, delay_ns);
                }
            }
        }
    }
    fn dropped(&mut self, reason: Reason) {
        self.sink.dropped(reason);
    }
    fn looped_back(&mut self, packets: usize) {
        self.sink.looped_back(packets);
    }
}

impl Port for Impair {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.release_tx(now, &mut |reason| sink.dropped(reason));
        let released = self.release_rx(now, budget, sink);
        if released == budget {
            return released;
        }
        let mut receiver = ImpairSink { now, draw: &mut self.rx, delayed: &mut self.rx_delayed, sink };
        released + self.inner.rx_burst(now, budget - released, &mut receiver)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.release_tx(now, dropped);
        for frame in batch.frames() {
            match self.tx.draw(ecn_of(frame.flow.tos)) {
                FrameFate::Lost | FrameFate::Damaged => dropped(Reason::Impaired),
                FrameFate::Pass { mark, delay_ns, twice } => {
                    let flow = marked(&frame.flow, mark);
                    self.pass_tx(now, (batch, frame), &flow, delay_ns, dropped);
                    if let Some(delay_ns) = twice {
                        self.pass_tx(now, (batch, frame), &flow, delay_ns, dropped);
                    }
                }
            }
        }
        self.flush(now, dropped);
    }

    fn prepare(&mut self, flow: &Flow) {
        self.inner.prepare(flow);
    }

    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        self.inner.is_resolving(now, flow)
    }

    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        self.inner.next_hop(now, dst)
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep()
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event().min(self.tx_delayed.next()).min(self.rx_delayed.next())
    }

    fn refresh(&mut self) -> bool {
        self.inner.refresh()
    }

    fn shrink(&mut self) {
        self.inner.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{MemConfig, MemPort, pair};
    use crate::spec::{PortKind, PortSpec};
    use crate::testing::{Collect, batch_of, flow, push};

    const A: &str = "10.0.0.1";
    const B: &str = "10.0.0.2";

    fn wrapped(options: &str) -> (Impair, MemPort) {
        let spec = PortSpec::parse(&format!("impair:{options}/udp")).unwrap();
        assert!(matches!(spec.kind, PortKind::Udp(_)));
        let (a, b) = pair(MemConfig::default(), A.parse().unwrap(), B.parse().unwrap());
        (Impair::new(Box::new(a), spec.impair[0]), b)
    }

    /// Sends `count` numbered frames, one per microsecond, and collects the frames that pass within a second.
    fn send(options: &str, count: u32, tos: u8) -> (Collect, Vec<Reason>) {
        let (mut a, mut b) = wrapped(options);
        let (mut sink, mut reasons) = (Collect::default(), Vec::new());
        let flow = Flow { tos, ..flow(A, B) };
        for i in 0..count {
            let now = Nanos::from_us(u64::from(i));
            let payload = [i.to_be_bytes().to_vec()];
            a.tx_burst(now, &batch_of(&flow, &payload), &mut |r| reasons.push(r));
            b.rx_burst(now, 64, &mut sink);
        }
        let mut turns = 0;
        while a.next_event() != Nanos::NEVER {
            a.rx_burst(a.next_event(), 64, &mut sink);
            b.rx_burst(Nanos::NEVER, 64, &mut sink);
            turns += 1;
            assert!(turns < 100_000);
        }
        (sink, reasons)
    }

    fn numbers(sink: &Collect) -> Vec<u32> {
        sink.payloads().iter().map(|p| u32::from_be_bytes(p[..].try_into().unwrap())).collect()
    }

    #[test]
    fn without_options_nothing_changes() {
        let (sink, reasons) = send("seed=3", 1000, 2);
        assert_eq!(numbers(&sink), (0..1000).collect::<Vec<_>>());
        assert!(reasons.is_empty() && sink.frames.iter().all(|(f, _)| f.tos == 2));
    }

    #[test]
    fn rates_are_kept_within_statistics() {
        // 20,000 trials at 5 %: mean 1,000, standard deviation 31.
        let (sink, reasons) = send("loss=5%,seed=1", 20_000, 0);
        assert!((850..1150).contains(&reasons.len()), "{}", reasons.len());
        assert_eq!(sink.frames.len() + reasons.len(), 20_000);
        let (sink, _) = send("dup=5%,seed=2", 20_000, 0);
        assert!((20_850..21_150).contains(&sink.frames.len()), "{}", sink.frames.len());
        let (sink, reasons) = send("corrupt=5%,dir=tx,seed=3", 20_000, 0);
        assert!(reasons.iter().all(|r| *r == Reason::Impaired) && (850..1150).contains(&reasons.len()));
        assert_eq!(sink.frames.len() + reasons.len(), 20_000);
    }

    #[test]
    fn reordered_frames_arrive_once_and_late() {
        let (sink, reasons) = send("reorder=5%,seed=4", 20_000, 0);
        let got = numbers(&sink);
        let mut sorted = got.clone();
        sorted.sort_unstable();
        assert!(reasons.is_empty());
        assert_eq!(sorted, (0..20_000).collect::<Vec<_>>());
        let late = got.windows(2).filter(|w| w[1] < w[0]).count();
        assert!((700..1200).contains(&late), "{late}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let options = "loss=2%,dup=2%,reorder=2%,jitter=5us,delay=10us,seed=9";
        assert_eq!(numbers(&send(options, 3000, 0).0), numbers(&send(options, 3000, 0).0));
        assert_ne!(numbers(&send(options, 3000, 0).0), numbers(&send("loss=2%,seed=10", 3000, 0).0));
    }

    #[test]
    fn only_ecn_capable_frames_are_marked() {
        let (sink, _) = send("ecn=100%", 10, 0x6a);
        assert!(sink.frames.iter().all(|(f, _)| f.tos == 0x6b));
        let (sink, _) = send("ecn=100%", 10, 0x68);
        assert!(sink.frames.iter().all(|(f, _)| f.tos == 0x68));
    }

    #[test]
    fn a_delayed_frame_arrives_when_it_is_due() {
        let (mut a, mut b) = wrapped("delay=100us,dir=tx");
        let payload = vec![7u8; 33];
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), core::slice::from_ref(&payload)), &mut |r| panic!("{r}"));
        assert_eq!(a.next_event(), Nanos::from_us(100));
        let mut sink = Collect::default();
        a.rx_burst(Nanos(99_999), 8, &mut sink);
        assert_eq!(b.rx_burst(Nanos(99_999), 8, &mut sink), 0);
        a.rx_burst(Nanos(100_000), 8, &mut sink);
        assert_eq!(b.rx_burst(Nanos(100_000), 8, &mut sink), 1);
        assert_eq!(sink.payloads(), [payload]);
    }

    #[test]
    fn received_frames_are_impaired_too() {
        let (a, mut b) = pair(MemConfig::default(), A.parse().unwrap(), B.parse().unwrap());
        let spec = ImpairSpec { corrupt: Ppm(500_000), seed: 1, dir: Direction::Rx, ..ImpairSpec::default() };
        let mut a = Impair::new(Box::new(a), spec);
        let payloads = vec![vec![1u8; 64]; 200];
        b.tx_burst(Nanos(0), &batch_of(&flow(B, A), &payloads), &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        assert_eq!(a.rx_burst(Nanos(0), 1000, &mut sink), 200);
        assert_eq!(sink.frames.len() + sink.dropped.len(), 200);
        assert!(sink.dropped.len() > 60 && sink.dropped.iter().all(|r| *r == Reason::BadIcrc));
    }

    #[test]
    fn a_full_store_drops_with_a_reason() {
        let (mut a, _b) = wrapped("delay=1s,dir=tx");
        let payload = vec![0u8; 4];
        let mut reasons = Vec::new();
        let mut batch = TxBatch::new(DELAYED_MAX + 3);
        while push(&mut batch, &flow(A, B), &payload) {}
        assert_eq!(batch.len(), DELAYED_MAX + 3);
        a.tx_burst(Nanos(0), &batch, &mut |r| reasons.push(r));
        assert_eq!(reasons, [Reason::SendQueueFull; 3]);
    }
}
