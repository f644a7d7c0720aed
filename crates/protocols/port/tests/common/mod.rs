//! Shared by the tests with real sockets: ports on loopback or in namespaces, payloads, a sink.
#![allow(dead_code)]

pub mod wire;

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::ether::ICRC;
use burst_port::udp::UdpPort;
use burst_port::{Encapsulation, Port, PortKind, PortSpec, ReceivePressure, RxSink};
use burst_span::Span;
use std::time::{Duration, Instant};

/// Bytes of the head that [`push`] makes: a BTH.
pub const HEAD: usize = 12;

/// Opens a `udp` port by its specification.
pub fn open(text: &str) -> UdpPort {
    open_worker(text, 0, 1)
}

/// Opens one worker's part of a `udp` port.
pub fn open_worker(text: &str, worker: usize, workers: usize) -> UdpPort {
    let spec = PortSpec::parse(text).unwrap();
    let PortKind::Udp(udp) = &spec.kind else { panic!("a udp port") };
    UdpPort::open(udp, &Encapsulation::ROCE, text, worker, workers).unwrap()
}

/// A flow from `src` to `dst`.
pub fn flow(src: &str, dst: &str) -> Flow {
    Flow { src: src.parse().unwrap(), dst: dst.parse().unwrap(), ..Flow::default() }
}

/// Appends a frame with this payload, which must live until the batch is sent.
pub fn push(batch: &mut TxBatch, flow: &Flow, payload: &[u8]) {
    push_qpn(batch, flow, payload, 17);
}

/// [`push`] with a destination queue pair number.
pub fn push_qpn(batch: &mut TxBatch, flow: &Flow, payload: &[u8], qpn: u32) {
    let pad = (4 - payload.len() % 4) as u8 % 4;
    let mut head = [0u8; HEAD];
    (head[0], head[1]) = (0x0a, pad << 4);
    head[4..8].copy_from_slice(&qpn.to_be_bytes());
    // SAFETY: the caller keeps the payload alive until the batch is sent; nothing writes through the span.
    let span = unsafe { Span::local(payload.as_ptr().cast_mut(), payload.len() as u32) };
    assert!(batch.push(flow, &head, &[span], pad));
}

/// Keeps the delivered packets and drop reasons.
#[derive(Default)]
pub struct Collect {
    pub frames: Vec<(Flow, Vec<u8>)>,
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
        self.frames.extend(train.chunks_exact(stride).map(|packet| (*flow, packet[..stride - ICRC].to_vec())));
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

/// Sends the payloads in one batch; returns the reasons of drops.
pub fn send(port: &mut dyn Port, flow: &Flow, payloads: &[Vec<u8>]) -> Vec<Reason> {
    let mut batch = TxBatch::new(payloads.len().max(1));
    payloads.iter().for_each(|p| push(&mut batch, flow, p));
    let mut reasons = Vec::new();
    port.tx_burst(Nanos(0), &batch, &mut |reason| reasons.push(reason));
    reasons
}

/// A time limit that ends when the clock has passed it and the test has slept that long. On a busy machine, or one that stood
/// still, the clock alone does not show whether other threads had time to run.
pub struct Deadline {
    end: Instant,
    naps: u128,
}

impl Deadline {
    pub fn new(time: Duration) -> Deadline {
        Deadline { end: Instant::now() + time, naps: time.as_millis() }
    }
    /// Sleeps a millisecond; returns whether time is left.
    pub fn nap(&mut self) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        self.naps = self.naps.saturating_sub(1);
        self.naps > 0 || Instant::now() < self.end
    }
}

/// Receives a few packets at a time until `count` packets or drops have arrived, at most two seconds.
pub fn receive(port: &mut dyn Port, count: usize) -> Collect {
    let (mut sink, mut deadline) = (Collect::default(), Deadline::new(Duration::from_secs(2)));
    let mut budget = 1;
    while sink.frames.len() + sink.dropped.len() < count {
        let taken = port.rx_burst(Nanos(0), budget, &mut sink);
        assert!(taken <= budget);
        budget = budget % 37 + 3;
        if taken == 0 && !deadline.nap() {
            break;
        }
    }
    sink
}

/// Receives everything that arrives within this time.
pub fn receive_for(port: &mut dyn Port, time: Duration) -> Collect {
    let (mut sink, mut deadline) = (Collect::default(), Deadline::new(time));
    while deadline.nap() {
        port.rx_burst(Nanos(0), 64, &mut sink);
    }
    sink
}

/// Payloads of these lengths with different bytes.
pub fn payloads(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(i, len)| (0..*len).map(|j| (i * 131 + j * 7) as u8).collect()).collect()
}
