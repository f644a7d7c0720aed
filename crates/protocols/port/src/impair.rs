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
//! - **rate**, **queue**, **kmin**, **kmax**, **pmax**: the frame passes a simulated link of a rate with a queue before it, which
//!   marks and drops (module `queue`).
//!
//! Frames to which nothing happens are not touched: a batch without an event is sent as it is, and received trains pass in parts
//! between two events. Delayed frames are copied into slots, allocated with the options that can delay a frame at all.
//! [`Port::next_event`] returns when the next one is due; `rx_burst` and `tx_burst` release due frames. A full store drops frames
//! as `SendQueueFull` or `ReceiveOverflow`. Frames longer than [`DELAYED_BYTES`] are never delayed.
//!
//! [`Impair::set`] changes the options while the port runs, for a time.

mod fate;
mod queue;
mod store;

pub use fate::REORDER_NS;
pub use store::{DELAYED_BYTES, DELAYED_MAX};

use crate::ether::icrc::ICRC;
use crate::spec::{Direction, ImpairSpec, Ppm};
use crate::sys::lend::{DelayedFrame, send_delayed};
use crate::{LentSocket, NeighbourState, Port, PortCalls, PortCaps, PortError, ReceivePressure, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::{Ecn, Flow, RxFrame, SPANS_MAX, TxBatch, TxFrame};
use fate::{FateSequence, FrameFate};
use queue::{LinkQueue, Queued};
use std::net::IpAddr;
use std::os::fd::RawFd;
use store::DelayStore;

/// Frames given to the wrapped port in one batch.
const BATCH: usize = 256;
/// Most delayed frames released by one call, whatever the budget.
const RELEASE_MAX: usize = DELAYED_MAX;
/// Numbers that make the random sequences of directions and queues differ.
const TX_SALT: u64 = 0x7478;
const RX_SALT: u64 = 0x7278;
const QUEUE_SALT: u64 = 0x71_0000;

const _: () = assert!(BATCH >= SPANS_MAX && RELEASE_MAX <= DELAYED_MAX);

/// What happens to the frames of one direction.
struct Lane {
    fates: FateSequence,
    link: Option<LinkQueue>,
    /// Whether the options can delay a frame.
    delays: bool,
    delayed: DelayStore,
}

impl Lane {
    /// The direction of `spec`; nothing happens if it does not act on this direction.
    fn new(spec: Option<&ImpairSpec>, other: Direction, salt: u64) -> Lane {
        let mut lane = Lane { fates: FateSequence::nothing(), link: None, delays: false, delayed: DelayStore::new(0) };
        lane.set(spec, other, salt);
        lane
    }

    /// Changes the options. Frames that are delayed stay so until they are due.
    fn set(&mut self, spec: Option<&ImpairSpec>, other: Direction, salt: u64) {
        let spec = spec.filter(|spec| spec.dir != other);
        self.fates = spec.map_or_else(FateSequence::nothing, |spec| FateSequence::new(spec, salt));
        self.link = spec.and_then(|spec| LinkQueue::new(spec, salt ^ QUEUE_SALT));
        self.delays = spec.is_some_and(delays);
        debug_assert!(self.delays || self.link.is_none(), "a link delays");
        if self.delays {
            self.delayed.allocate();
        }
    }

    /// Returns the memory of delayed frames when options that delay have ended.
    fn shrink(&mut self) {
        if !self.delays {
            self.delayed.shrink();
        }
    }

    /// Number of the next frames, at most `count`, to which nothing happens.
    fn skip_clear(&mut self, count: usize) -> usize {
        if self.link.is_some() { 0 } else { self.fates.skip_clear(count as u64) as usize }
    }

    /// The fate of the next frame, of `len` bytes.
    fn draw(&mut self, now: Nanos, flow: &Flow, len: usize) -> FrameFate {
        let ecn = ecn_of(flow.tos);
        let drawn = self.fates.draw(ecn);
        let (Some(link), FrameFate::Pass { mark, delay_ns, twice }) = (&mut self.link, drawn) else { return drawn };
        match link.add(now, len, flow.dst.is_ipv4()) {
            Queued::Dropped => FrameFate::Lost,
            Queued::Passes { mark: full, delay_ns: waits } => {
                let mark = mark || full && matches!(ecn, Ecn::Ect0 | Ecn::Ect1);
                FrameFate::Pass { mark, delay_ns: delay_ns + waits, twice: twice.map(|delay| delay + waits) }
            }
        }
    }
}

/// Whether the options can delay a frame.
fn delays(spec: &ImpairSpec) -> bool {
    spec.delay_ns > 0 || spec.jitter_ns > 0 || spec.reorder > Ppm(0) || spec.rate > 0
}

/// A port with impairments around it.
pub struct Impair {
    inner: Box<dyn Port>,
    tx: Lane,
    rx: Lane,
    /// When the options end, in the port's clock.
    until: Nanos,
    /// Whether it was put around the port while it ran, to be changed by [`Impair::set`].
    changeable: bool,
    batch: TxBatch,
    single: TxBatch,
}

impl Impair {
    /// Wraps `inner` for good.
    pub fn new(inner: Box<dyn Port>, spec: ImpairSpec) -> Impair {
        Impair::with(inner, Some(&spec), false)
    }

    /// Wraps `inner`, for [`Impair::set`]; nothing happens to frames until then.
    pub fn changeable(inner: Box<dyn Port>) -> Impair {
        Impair::with(inner, None, true)
    }

    fn with(inner: Box<dyn Port>, spec: Option<&ImpairSpec>, changeable: bool) -> Impair {
        let (tx, rx) = (Lane::new(spec, Direction::Rx, TX_SALT), Lane::new(spec, Direction::Tx, RX_SALT));
        let (batch, single) = (TxBatch::new(BATCH), TxBatch::new(1));
        Impair { inner, tx, rx, until: Nanos::NEVER, changeable, batch, single }
    }

    /// From now on frames have the fate that `spec` says, until `until`; `None`: nothing happens to them. Frames that are delayed
    /// stay so until they are due.
    pub fn set(&mut self, spec: Option<&ImpairSpec>, until: Nanos) {
        self.tx.set(spec, Direction::Rx, TX_SALT);
        self.rx.set(spec, Direction::Tx, RX_SALT);
        self.until = if spec.is_some() { until } else { Nanos::NEVER };
    }

    /// Bytes in the queue of the simulated link, of received frames; `None` without one.
    pub fn received_queue(&self, now: Nanos) -> Option<u64> {
        self.rx.link.as_ref().map(|link| link.waiting(now))
    }

    /// Ends options whose time is over.
    #[inline]
    fn expire(&mut self, now: Nanos) {
        if now >= self.until {
            self.set(None, Nanos::NEVER);
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
            let delayed = self.tx.delayed.insert(now + Nanos(delay_ns), |slot| {
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
            let Some(at) = self.tx.delayed.pop_due(now) else { return };
            let slot = self.tx.delayed.slot(at);
            debug_assert!(slot.bytes.len() >= usize::from(slot.head_len), "a delayed frame without its head");
            let (head, payload) = slot.bytes.split_at(usize::from(slot.head_len));
            let frame = DelayedFrame { flow: slot.flow, head, payload, pad: slot.pad };
            send_delayed(&mut *self.inner, now, &mut self.single, &frame, dropped);
            self.tx.delayed.free(at);
        }
    }

    /// Delivers the delayed received frames that are due; returns how many.
    fn release_rx(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        for done in 0..budget.min(RELEASE_MAX) {
            let Some(at) = self.rx.delayed.pop_due(now) else { return done };
            let slot = self.rx.delayed.slot(at);
            sink.frame(&RxFrame { flow: slot.flow, bytes: &slot.bytes });
            self.rx.delayed.free(at);
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
    lane: &'a mut Lane,
    sink: &'a mut dyn RxSink,
}

impl ImpairSink<'_> {
    fn pass(&mut self, frame: &RxFrame<'_>, delay_ns: u64) {
        if delay_ns == 0 || frame.bytes.len() > DELAYED_BYTES {
            return self.sink.frame(frame);
        }
        let delayed = self.lane.delayed.insert(self.now + Nanos(delay_ns), |slot| {
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
        if self.lane.skip_clear(1) == 1 {
            return self.sink.frame(frame);
        }
        match self.lane.draw(self.now, &frame.flow, frame.bytes.len()) {
            FrameFate::Lost => self.sink.refused(frame, Reason::Impaired),
            FrameFate::Damaged => self.sink.refused(frame, Reason::BadIcrc),
            FrameFate::Pass { mark, delay_ns, twice } => {
                let frame = RxFrame { flow: marked(&frame.flow, mark), bytes: frame.bytes };
                self.pass(&frame, delay_ns);
                if let Some(delay_ns) = twice {
                    self.pass(&frame, delay_ns);
                }
            }
        }
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let mut rest = train;
        while rest.len() >= stride {
            match self.lane.skip_clear(rest.len() / stride) * stride {
                0 => {
                    let (packet, others) = rest.split_at(stride);
                    self.frame(&RxFrame { flow: *flow, bytes: &packet[..stride - ICRC] });
                    rest = others;
                }
                clear => {
                    let (passes, others) = rest.split_at(clear);
                    self.sink.train(flow, passes, stride);
                    rest = others;
                }
            }
        }
    }
    fn dropped(&mut self, reason: Reason) {
        self.sink.dropped(reason);
    }
    fn refused(&mut self, frame: &RxFrame<'_>, reason: Reason) {
        self.sink.refused(frame, reason);
    }
    fn looped_back(&mut self, packets: usize) {
        self.sink.looped_back(packets);
    }
    fn waited(&mut self, waited: Nanos) {
        self.sink.waited(waited);
    }
    fn pressure(&mut self, pressure: ReceivePressure) {
        self.sink.pressure(pressure);
    }
}

impl Port for Impair {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        self.inner.join(group)
    }

    fn groups_max(&self) -> usize {
        self.inner.groups_max()
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.expire(now);
        self.release_tx(now, &mut |reason| sink.dropped(reason));
        let released = self.release_rx(now, budget, sink);
        if released == budget {
            return released;
        }
        let mut receiver = ImpairSink { now, lane: &mut self.rx, sink };
        released + self.inner.rx_burst(now, budget - released, &mut receiver)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.expire(now);
        self.release_tx(now, dropped);
        let mut clear = self.tx.skip_clear(batch.len());
        if clear == batch.len() {
            return self.inner.tx_burst(now, batch, dropped);
        }
        for frame in batch.frames() {
            if clear > 0 || self.tx.skip_clear(1) > 0 {
                clear = clear.saturating_sub(1);
                self.pass_tx(now, (batch, frame), &frame.flow, 0, dropped);
                continue;
            }
            let len = usize::from(frame.head_len) + usize::from(frame.payload_len) + usize::from(frame.pad);
            match self.tx.draw(now, &frame.flow, len) {
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

    fn open_source_ports(&mut self, count: usize) -> Result<(), PortError> {
        self.inner.open_source_ports(count)
    }

    fn source_port(&self, src: IpAddr, number: usize) -> Option<u16> {
        self.inner.source_port(src, number)
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

    fn after_sleep(&mut self) {
        self.inner.after_sleep();
    }

    fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.inner.each_descriptor(take);
    }

    fn take_calls(&mut self) -> PortCalls {
        self.inner.take_calls()
    }

    fn time_arrivals(&mut self) {
        self.inner.time_arrivals();
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event().min(self.tx.delayed.next()).min(self.rx.delayed.next()).min(self.until)
    }

    fn refresh(&mut self) -> bool {
        self.tx.shrink();
        self.rx.shrink();
        self.inner.refresh()
    }

    fn shrink(&mut self) {
        self.tx.shrink();
        self.rx.shrink();
        self.inner.shrink();
    }

    fn lend(&mut self, number: usize) -> Result<Vec<LentSocket>, PortError> {
        self.inner.lend(number)
    }

    fn take_back(&mut self, number: usize) {
        self.inner.take_back(number);
    }

    fn impairment(&mut self) -> Option<&mut Impair> {
        self.changeable.then_some(self)
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

    /// Trains by the numbers of their packets, and packets that came alone.
    #[derive(Default)]
    struct Trains {
        trains: Vec<Vec<u32>>,
        alone: Vec<u32>,
        dropped: usize,
    }

    fn number(bytes: &[u8]) -> u32 {
        u32::from_be_bytes(bytes[..4].try_into().unwrap())
    }

    impl RxSink for Trains {
        fn frame(&mut self, frame: &RxFrame<'_>) {
            self.alone.push(number(frame.bytes));
        }
        fn train(&mut self, _flow: &Flow, train: &[u8], stride: usize) {
            self.trains.push(train.chunks(stride).map(number).collect());
        }
        fn dropped(&mut self, _reason: Reason) {
            self.dropped += 1;
        }
    }

    #[test]
    fn a_train_passes_in_parts_between_two_losses() {
        const PACKETS: u32 = 64;
        const STRIDE: usize = 20;
        let train: Vec<u8> = (0..PACKETS).flat_map(|n| [&n.to_be_bytes()[..], &[0; STRIDE - 4]].concat()).collect();
        let spec = ImpairSpec { loss: Ppm(50_000), ..ImpairSpec::default() };
        let mut lane = Lane::new(Some(&spec), Direction::Tx, 0);
        let mut trains = Trains::default();
        for _ in 0..100 {
            let mut sink = ImpairSink { now: Nanos(0), lane: &mut lane, sink: &mut trains };
            sink.train(&flow(A, B), &train, STRIDE);
        }
        let passed: usize = trains.trains.iter().map(Vec::len).sum();
        assert_eq!((passed + trains.dropped, trains.alone.len()), (6_400, 0));
        // 320 expected, the standard deviation is 17; each loss within a train splits it.
        assert!((250..390).contains(&trains.dropped), "{}", trains.dropped);
        assert!(trains.trains.len() <= 100 + trains.dropped);
        assert!(trains.trains.iter().all(|train| train.windows(2).all(|w| w[1] == w[0] + 1)));
    }

    #[test]
    fn options_change_while_the_port_runs_and_end_in_time() {
        let (a, mut b) = pair(MemConfig::default(), A.parse().unwrap(), B.parse().unwrap());
        let mut a = Impair::changeable(Box::new(a));
        let (mut lost, mut sink) = (0, Collect::default());
        let mut send = |a: &mut Impair, us: u64| {
            a.tx_burst(Nanos::from_us(us), &batch_of(&flow(A, B), &[vec![1u8; 8]]), &mut |_| lost += 1);
            b.rx_burst(Nanos::from_us(us), 8, &mut sink);
            lost
        };
        assert_eq!(send(&mut a, 0), 0);
        let all = ImpairSpec { loss: Ppm::ONE, ..ImpairSpec::default() };
        a.impairment().unwrap().set(Some(&all), Nanos::from_us(10));
        assert_eq!((send(&mut a, 1), a.next_event()), (1, Nanos::from_us(10)));
        assert_eq!(send(&mut a, 9), 2);
        assert_eq!((send(&mut a, 10), a.next_event()), (2, Nanos::NEVER), "the time is over");
        a.impairment().unwrap().set(Some(&all), Nanos::NEVER);
        assert_eq!(send(&mut a, 11), 3);
        a.impairment().unwrap().set(None, Nanos::NEVER);
        assert_eq!(send(&mut a, 12), 3);
        assert_eq!(sink.frames.len(), 3);
    }

    #[test]
    fn what_is_delayed_arrives_after_the_impairment_has_ended() {
        let (a, mut b) = pair(MemConfig::default(), A.parse().unwrap(), B.parse().unwrap());
        let mut a = Impair::changeable(Box::new(a));
        let late = ImpairSpec { delay_ns: 100_000, ..ImpairSpec::default() };
        a.set(Some(&late), Nanos::from_us(50));
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &[vec![1u8; 8]]), &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        for us in [49, 60, 99] {
            a.rx_burst(Nanos::from_us(us), 8, &mut sink);
            assert_eq!(b.rx_burst(Nanos::from_us(us), 8, &mut sink), 0);
        }
        assert_eq!(a.next_event(), Nanos::from_us(100));
        a.rx_burst(Nanos::from_us(100), 8, &mut sink);
        assert_eq!(b.rx_burst(Nanos::from_us(100), 8, &mut sink), 1);
    }

    #[test]
    fn a_simulated_link_delays_marks_and_drops() {
        // 1,000 bytes of payload are 1,070 on the link and at 1 Gbit/s 8.56 us; the queue takes eleven.
        let (mut a, mut b) = wrapped("rate=1Gbit,queue=12000B,kmin=5000B,dir=tx");
        let mut reasons = Vec::new();
        let flow = Flow { tos: 2, ..flow(A, B) };
        let frames = vec![vec![0u8; 1_000 - crate::testing::HEAD]; 20];
        a.tx_burst(Nanos(0), &batch_of(&flow, &frames), &mut |r| reasons.push(r));
        assert_eq!(reasons, [Reason::Impaired; 9]);
        let (mut sink, mut times) = (Collect::default(), Vec::new());
        while a.next_event() != Nanos::NEVER {
            let now = a.next_event();
            a.rx_burst(now, 8, &mut sink);
            times.push((now.0, b.rx_burst(now, 8, &mut sink)));
        }
        assert_eq!(times, (1..=11).map(|k| (k * 8_560, 1)).collect::<Vec<_>>());
        let marks: Vec<bool> = sink.frames.iter().map(|(flow, _)| flow.tos == 3).collect();
        assert!(marks[..5].iter().all(|mark| !mark) && marks[5..].iter().all(|mark| *mark), "{marks:?}");
    }

    #[test]
    fn pressure_on_the_wrapped_port_passes() {
        let config = MemConfig { depth: 8, ..MemConfig::default() };
        let (a, mut b) = pair(config, A.parse().unwrap(), B.parse().unwrap());
        let spec = PortSpec::parse("impair:loss=50%/udp").unwrap();
        let mut a = Impair::new(Box::new(a), spec.impair[0]);
        b.tx_burst(Nanos(0), &batch_of(&flow(B, A), &vec![vec![7; 64]; 7]), &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        a.rx_burst(Nanos(0), 64, &mut sink);
        assert_eq!(sink.pressure, [ReceivePressure::ThreeQuarters]);
    }
}
