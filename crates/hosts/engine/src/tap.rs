//! Copies of what a port sends and receives, for `burst capture`.
//!
//! A tap is a socket to the one who captures. Packets of a burst go in few messages; a reader that is too slow loses whole
//! messages, and learns how many packets. It never holds up the worker. A tap ends when its reader has gone. Ports without
//! taps pay a look at an empty list for each burst.

use burst_base::{Nanos, Reason};
use burst_control::capture::{CAPTURE_MESSAGE_HEAD, CAPTURE_MESSAGE_MAX, CAPTURED_HEAD, CapturedPacket};
use burst_frame::{Flow, RxFrame, TRAILER_LEN, TxBatch};
use burst_ledger::Charge;
use burst_port::{Port, ReceivePressure, RxSink};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Taps of one port at most.
pub const TAPS_MAX: usize = 8;

/// One who captures.
#[derive(Debug)]
pub struct PortTap {
    socket: OwnedFd,
    /// Bytes that are captured of each packet.
    snap: usize,
    /// The message that is being put together.
    message: Vec<u8>,
    /// Packets in it.
    packets: u64,
    /// Packets that are lost since the last message that was sent.
    lost: u64,
    is_over: bool,
    /// What the capture costs, with its other taps.
    _charge: Option<Arc<Charge>>,
}

fn realtime() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

impl PortTap {
    /// A tap that sends the first `snap` bytes of each packet's UDP payload to `socket`, of the kind SEQPACKET.
    pub fn new(socket: OwnedFd, snap: u16, charge: Option<Arc<Charge>>) -> PortTap {
        let snap = usize::from(snap);
        PortTap { socket, snap, message: Vec::new(), packets: 0, lost: 0, is_over: false, _charge: charge }
    }
    /// Another one for the same reader.
    ///
    /// # Errors
    /// The system's.
    pub fn try_clone(&self) -> std::io::Result<PortTap> {
        Ok(PortTap::new(self.socket.try_clone()?, self.snap as u16, self._charge.clone()))
    }
    /// Begins a packet with at most so many captured bytes, `bytes`; returns how many there may be.
    fn begin(&mut self, packet: &CapturedPacket<'_>, bytes: usize) -> usize {
        let bytes = bytes.min(self.snap);
        if self.message.len() + CAPTURED_HEAD + bytes > CAPTURE_MESSAGE_MAX {
            self.finish();
        }
        if self.message.is_empty() {
            self.message.extend([0; CAPTURE_MESSAGE_HEAD]);
        }
        self.message.extend(packet.head(bytes as u16));
        self.packets += 1;
        bytes
    }
    fn received(&mut self, at_ns: u64, udp_port: u16, frame: &RxFrame<'_>) {
        let packet = described(at_ns, udp_port, &frame.flow, frame.bytes.len() + TRAILER_LEN);
        let bytes = self.begin(&packet, frame.bytes.len());
        self.message.extend(&frame.bytes[..bytes]);
    }
    fn sent(&mut self, at_ns: u64, udp_port: u16, batch: &TxBatch) {
        for frame in batch.frames() {
            let len = frame.udp_payload_len();
            let packet = CapturedPacket { is_sent: true, ..described(at_ns, udp_port, &frame.flow, len) };
            let bytes = self.begin(&packet, len - TRAILER_LEN);
            let end = self.message.len() + bytes;
            self.message.extend(&frame.head()[..bytes.min(frame.head().len())]);
            for span in batch.spans_of(frame) {
                let (at, len) = (self.message.len(), span.len().min(end - self.message.len()));
                self.message.resize(at + len, 0);
                // The port drops a packet whose payload is gone; the capture shows zeros.
                let _ = span.sub(0, len).read_to(&mut self.message[at..]);
            }
            self.message.resize(end, 0);
        }
    }
    /// Sends the message.
    fn finish(&mut self) {
        if self.packets == 0 {
            return;
        }
        debug_assert!(self.message.len() <= CAPTURE_MESSAGE_MAX, "a message that the reader cannot take");
        self.message[..CAPTURE_MESSAGE_HEAD].copy_from_slice(&self.lost.to_ne_bytes());
        match send(&self.socket, &self.message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => self.lost = 0,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => self.lost += self.packets,
            Err(_) => self.is_over = true,
        }
        self.packets = 0;
        self.message.clear();
    }
    /// Whether the reader has gone. For taps of ports without packets.
    fn is_left(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::empty())];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

fn described(at_ns: u64, udp_port: u16, flow: &Flow, udp_len: usize) -> CapturedPacket<'static> {
    CapturedPacket {
        at_ns,
        is_sent: false,
        src: flow.src,
        dst: flow.dst,
        src_port: flow.src_port,
        dst_port: udp_port,
        tos: flow.tos,
        hop_limit: flow.hop_limit,
        flow_label: flow.flow_label,
        udp_len: udp_len.min(usize::from(u16::MAX)) as u16,
        bytes: &[],
    }
}

/// The taps of a port.
#[derive(Debug)]
pub(crate) struct PortTaps {
    taps: Vec<PortTap>,
    udp_port: u16,
}

impl PortTaps {
    /// No taps of a port whose packets go to this UDP port.
    pub fn new(udp_port: u16) -> PortTaps {
        PortTaps { taps: Vec::new(), udp_port }
    }
    /// Removes taps whose readers have gone.
    pub fn remove_left(&mut self) {
        self.taps.retain(|tap| !tap.is_left());
    }
    /// Adds a tap; false if there are too many.
    pub fn add(&mut self, tap: PortTap) -> bool {
        self.remove_left();
        let has_room = self.taps.len() < TAPS_MAX;
        if has_room {
            self.taps.push(tap);
        }
        has_room
    }
    /// The same readers, for another port.
    pub fn copies(&self) -> impl Iterator<Item = PortTap> {
        self.taps.iter().filter_map(|tap| tap.try_clone().ok())
    }
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }
    /// Packets that are about to be sent.
    #[cold]
    pub fn sent(&mut self, batch: &TxBatch) {
        let at = realtime();
        self.taps.iter_mut().for_each(|tap| tap.sent(at, self.udp_port, batch));
        self.finish();
    }
    /// A burst of a port, which goes to `sink` as well.
    #[cold]
    pub fn receive(&mut self, port: &mut dyn Port, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let packets = port.rx_burst(now, budget, &mut TapSink { taps: self, sink, at: realtime() });
        self.finish();
        packets
    }
    fn finish(&mut self) {
        self.taps.iter_mut().for_each(PortTap::finish);
        self.taps.retain(|tap| !tap.is_over);
    }
}

/// Passes a burst on.
struct TapSink<'a> {
    taps: &'a mut PortTaps,
    sink: &'a mut dyn RxSink,
    at: u64,
}

impl TapSink<'_> {
    fn note(&mut self, frame: &RxFrame<'_>) {
        self.taps.taps.iter_mut().for_each(|tap| tap.received(self.at, self.taps.udp_port, frame));
    }
}

impl RxSink for TapSink<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.note(frame);
        self.sink.frame(frame);
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        for packet in train.chunks_exact(stride) {
            self.note(&RxFrame { flow: *flow, bytes: &packet[..stride - TRAILER_LEN] });
        }
        self.sink.train(flow, train, stride);
    }
    fn expects(&self) -> bool {
        self.sink.expects()
    }
    fn expect(&mut self, packet: &[u8]) {
        self.sink.expect(packet);
    }
    fn dropped(&mut self, reason: Reason) {
        self.sink.dropped(reason);
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

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::capture::captured;
    use burst_span::ProcessMemory;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use std::net::IpAddr;

    fn tap(snap: u16) -> (PortTaps, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        let mut taps = PortTaps::new(4791);
        assert!(taps.add(PortTap::new(ours, snap, None)));
        (taps, theirs)
    }

    fn batch(count: usize) -> TxBatch {
        let flow = Flow { src: IpAddr::from([10, 0, 0, 1]), dst: IpAddr::from([10, 0, 0, 2]), ..Flow::default() };
        let bytes: &'static [u8] = Box::leak((0..3000).map(|i| i as u8).collect::<Vec<_>>().into_boxed_slice());
        let own = ProcessMemory::own().expect("own memory");
        let mut batch = TxBatch::new(count);
        for _ in 0..count {
            let spans = [own.span(bytes.as_ptr() as u64, 10), own.span(bytes[10..].as_ptr() as u64, 2990)];
            assert!(batch.push(&flow, &[9; 12], &spans, 2));
        }
        // As before each burst.
        batch.fetch_remote();
        batch
    }

    fn next(theirs: &OwnedFd) -> Option<Vec<u8>> {
        let mut buffer = vec![0; CAPTURE_MESSAGE_MAX];
        let (len, _) = recv(theirs, &mut buffer, RecvFlags::DONTWAIT).ok()?;
        buffer.truncate(len);
        (len > 0).then_some(buffer)
    }

    #[test]
    fn sent_packets_have_head_payload_and_padding_as_far_as_asked_for() {
        let whole: Vec<u8> = [9; 12].into_iter().chain((0..3000).map(|i| i as u8)).chain([0; 2]).collect();
        for snap in [u16::MAX, 1000, 17, 12, 5, 0] {
            let (mut taps, theirs) = tap(snap);
            taps.sent(&batch(2));
            let message = next(&theirs).expect("a message");
            let (lost, packets) = captured(&message).expect("sound");
            assert_eq!((lost, packets.len()), (0, 2));
            for packet in packets {
                assert_eq!((packet.is_sent, packet.udp_len, packet.dst_port), (true, 3018, 4791));
                assert!(packet.bytes == &whole[..whole.len().min(usize::from(snap))], "snap {snap}");
            }
        }
    }

    #[test]
    fn a_slow_reader_learns_of_lost_packets_and_one_that_has_gone_ends_the_tap() {
        let (mut taps, theirs) = tap(u16::MAX);
        let batch = batch(50);
        (0..100).for_each(|_| taps.sent(&batch));
        let mut seen = 0;
        while let Some(message) = next(&theirs) {
            let (lost, packets) = captured(&message).expect("sound");
            assert_eq!(lost, 0, "before the first loss");
            seen += packets.len() as u64;
        }
        assert!(seen > 0 && seen < 5000, "{seen}");
        taps.sent(&batch);
        let message = next(&theirs).expect("room again");
        let (lost, packets) = captured(&message).expect("sound");
        assert_eq!((seen + lost, packets.len() > 1), (5000, true));
        drop(theirs);
        taps.sent(&batch);
        assert!(taps.is_empty());
    }

    #[test]
    fn those_who_have_gone_make_room() {
        let (mut taps, first) = tap(1);
        let mut readers: Vec<OwnedFd> = vec![first];
        let mut another = || {
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
            readers.push(theirs);
            PortTap::new(ours, 1, None)
        };
        assert!((1..TAPS_MAX).all(|_| taps.add(another())));
        assert!(!taps.add(another()));
        readers.remove(3);
        let (ours, _reader) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        assert!(taps.add(PortTap::new(ours, 1, None)));
    }
}
