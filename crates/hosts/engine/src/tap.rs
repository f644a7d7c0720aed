//! Copies of what a port sends and receives, for `burst capture`.
//!
//! Each received packet has the reason with which it was dropped or refused; so have those that the port dropped and has the
//! bytes of. Of packets of a train that are carried out together the first one has it. A packet that is handed over to another
//! worker has none: it is judged there.
//!
//! A tap is a socket to the one who captures. Packets of a burst go in few messages; a reader that is too slow loses whole
//! messages, and learns how many packets. It never holds up the worker. A tap ends when its reader has gone. Ports without
//! taps pay a look at an empty list for each burst. The worker's ring ([`crate::ring`]) sees the packets in the same places.

use crate::counters::Counters;
use crate::ring::{PacketPlace, PacketRing};
use burst_base::{DeviceId, Nanos, Reason};
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
    fn received(&mut self, (at_ns, udp_port): (u64, u16), frame: &RxFrame<'_>, reason: Option<Reason>) {
        let len = frame.bytes.len() + TRAILER_LEN;
        let packet = CapturedPacket { reason, ..described(at_ns, udp_port, &frame.flow, len) };
        let bytes = self.begin(&packet, frame.bytes.len());
        self.message.extend(&frame.bytes[..bytes]);
    }
    fn sent(&mut self, at_ns: u64, udp_port: u16, batch: &TxBatch) {
        for frame in batch.frames() {
            let len = frame.udp_payload_len();
            let packet =
                CapturedPacket { is_sent: true, sender: frame.sender, ..described(at_ns, udp_port, &frame.flow, len) };
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
        reason: None,
        sender: 0,
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
    /// The worker's ring, if it has one, with the port's device.
    ring: Option<(Arc<PacketRing>, DeviceId)>,
    /// Whether there are neither taps nor a ring.
    is_empty: bool,
    udp_port: u16,
}

impl PortTaps {
    /// No taps of a port whose packets go to this UDP port.
    pub fn new(udp_port: u16) -> PortTaps {
        PortTaps { taps: Vec::new(), ring: None, is_empty: true, udp_port }
    }
    /// From now on packets are kept in a ring, too.
    pub fn set_ring(&mut self, ring: Arc<PacketRing>, device: DeviceId) {
        self.ring = Some((ring, device));
        self.is_empty = false;
    }
    /// Some taps may have been removed.
    fn settle(&mut self) {
        self.is_empty = self.ring.is_none() && self.taps.is_empty();
    }
    /// Removes taps whose readers have gone.
    pub fn remove_left(&mut self) {
        self.taps.retain(|tap| !tap.is_left());
        self.settle();
    }
    /// Adds a tap; false if there are too many.
    pub fn add(&mut self, tap: PortTap) -> bool {
        self.remove_left();
        let has_room = self.taps.len() < TAPS_MAX;
        if has_room {
            self.taps.push(tap);
            self.is_empty = false;
        }
        has_room
    }
    /// The same readers, for another port.
    pub fn copies(&self) -> impl Iterator<Item = PortTap> {
        self.taps.iter().filter_map(|tap| tap.try_clone().ok())
    }
    /// Whether packets need not be shown to it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }
    /// Packets that are about to be sent.
    pub fn sent(&mut self, now: Nanos, batch: &TxBatch) {
        if let Some((ring, device)) = &self.ring {
            ring.sent(PacketPlace { at: now, udp_port: self.udp_port, device: *device }, batch);
        }
        if !self.taps.is_empty() {
            self.show_sent(batch);
        }
    }
    #[cold]
    fn show_sent(&mut self, batch: &TxBatch) {
        let at = realtime();
        self.taps.iter_mut().for_each(|tap| tap.sent(at, self.udp_port, batch));
        self.finish();
    }
    /// A burst of a port, which goes to `sink` as well. The reasons are counted in `counters`.
    pub fn receive(&mut self, now: Nanos, burst: TappedBurst<'_>) -> usize {
        let TappedBurst { port, budget, sink, counters } = burst;
        counters.note_reasons(true);
        let at = if self.taps.is_empty() { 0 } else { realtime() };
        let packets = port.rx_burst(now, budget, &mut TapSink { taps: self, sink, counters, now, at });
        counters.note_reasons(false);
        if !self.taps.is_empty() {
            self.finish();
        }
        packets
    }
    fn finish(&mut self) {
        self.taps.iter_mut().for_each(PortTap::finish);
        self.taps.retain(|tap| !tap.is_over);
        self.settle();
    }
}

/// What [`PortTaps::receive`] takes packets from, and where they go.
pub(crate) struct TappedBurst<'a> {
    pub port: &'a mut dyn Port,
    pub budget: usize,
    pub sink: &'a mut dyn RxSink,
    pub counters: &'a Counters,
}

/// Passes a burst on, and notes each packet when what it was counted as is known.
struct TapSink<'a> {
    taps: &'a mut PortTaps,
    sink: &'a mut dyn RxSink,
    counters: &'a Counters,
    now: Nanos,
    /// Nanoseconds since 1970, for taps.
    at: u64,
}

impl TapSink<'_> {
    fn note(&mut self, frame: &RxFrame<'_>, reason: Option<Reason>) {
        let (at, port) = (self.at, self.taps.udp_port);
        if let Some((ring, device)) = &self.taps.ring {
            ring.received(PacketPlace { at: self.now, udp_port: port, device: *device }, frame, reason);
        }
        self.taps.taps.iter_mut().for_each(|tap| tap.received((at, port), frame, reason));
    }
}

impl RxSink for TapSink<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        let before = self.counters.begin_notes();
        self.sink.frame(frame);
        self.note(frame, self.counters.noted(before + 1));
    }
    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let before = self.counters.begin_notes();
        self.sink.train(flow, train, stride);
        for (packet, count) in train.chunks_exact(stride).zip(before + 1..) {
            self.note(&RxFrame { flow: *flow, bytes: &packet[..stride - TRAILER_LEN] }, self.counters.noted(count));
        }
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
    fn refused(&mut self, frame: &RxFrame<'_>, reason: Reason) {
        self.sink.refused(frame, reason);
        self.note(frame, Some(reason));
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
            taps.sent(Nanos(1), &batch(2));
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
        (0..100).for_each(|_| taps.sent(Nanos(1), &batch));
        let mut seen = 0;
        while let Some(message) = next(&theirs) {
            let (lost, packets) = captured(&message).expect("sound");
            assert_eq!(lost, 0, "before the first loss");
            seen += packets.len() as u64;
        }
        assert!(seen > 0 && seen < 5000, "{seen}");
        taps.sent(Nanos(1), &batch);
        let message = next(&theirs).expect("room again");
        let (lost, packets) = captured(&message).expect("sound");
        assert_eq!((seen + lost, packets.len() > 1), (5000, true));
        drop(theirs);
        taps.sent(Nanos(1), &batch);
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
