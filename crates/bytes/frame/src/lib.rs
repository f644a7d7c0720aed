//! Frames to send and received frames, as transports and ports exchange them.
//!
//! A frame to send is a *flow* (addresses), a head (the transport's headers: for RoCEv2 BTH and extension headers, built by
//! `wire`), spans of application memory, and a pad count. The port adds IP, UDP and the trailer. For RoCEv2 that is the ICRC:
//! it covers the IPv4 identification, which only the port knows. A received frame is the bytes from the transport's header to
//! the end of the padding; the port has verified and removed the trailer. Nothing here reads a header, so a transport with other
//! headers uses the same frames, batches and trains.
//!
//! | file | what it holds |
//! |---|---|
//! | `run` | [`MiddleRun`]: received packets of one length side by side |
#![forbid(unsafe_code)]

mod run;

pub use run::MiddleRun;

use burst_span::{Span, Staging};
use std::net::{IpAddr, Ipv4Addr};

/// Most bytes of a transport's headers in a frame. Each transport asserts at compile time that its longest head fits.
pub const HEAD_MAX: usize = 64;
/// Bytes of the trailer that a port adds behind the padding (for RoCEv2 the ICRC).
pub const TRAILER_LEN: usize = 4;
/// Most payload spans of one frame: an MTU gathered from 30 scatter/gather entries, and two more where a piece ends.
pub const SPANS_MAX: usize = 32;

/// ECN codepoints of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Not ECN capable.
    #[default]
    NotEct = 0,
    /// ECT(1).
    Ect1 = 1,
    /// ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

/// Addresses and IP header fields of a stream of packets. IPv4 addresses are `IpAddr::V4`, never IPv4-mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address: one of the port's GIDs.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Requested UDP source port. A port that cannot choose it uses its own.
    pub src_port: u16,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// IPv6 scope (interface index) of link-local addresses, else 0.
    pub scope: u32,
}

impl Default for Flow {
    fn default() -> Self {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Flow { src: any, dst: any, src_port: 0, tos: 0, hop_limit: 64, flow_label: 0, scope: 0 }
    }
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame {
    /// Addresses.
    pub flow: Flow,
    /// The transport's headers in the first `head_len` bytes. The others have no meaning.
    pub head: [u8; HEAD_MAX],
    /// Bytes of `head`.
    pub head_len: u8,
    /// Zero bytes after the payload, 0..=3. The headers of RoCEv2 say it too.
    pub pad: u8,
    /// Payload bytes without padding.
    pub payload_len: u16,
    /// The frame belongs to the same run ([`TxBatch::push_run`]) as the frame before it, and has the same flow.
    pub continues: bool,
    /// Number of the queue pair that sends it, for captures; 0: not known ([`TxBatch::sign`]).
    pub sender: u32,
    /// First span in [`TxBatch::spans`].
    span_first: u32,
    /// Number of spans.
    span_count: u8,
}

/// Frames of one scheduling turn, in order of sending. Capacity is fixed; nothing is allocated after `new`.
#[derive(Debug)]
pub struct TxBatch {
    /// The frames, and behind them places with old contents: a frame is written where it stays.
    places: Vec<TxFrame>,
    /// Number of frames.
    len: usize,
    spans: Vec<Span>,
    /// Number of `spans` that belong to frames. Those behind them are the payload of the next frame.
    framed: usize,
    /// Bytes of the next frame's payload.
    payload_len: usize,
    /// Whether a span may lie in another process ([`TxBatch::fetch_remote`]).
    has_remote: bool,
    /// Whether frames are captured, so that their senders are noted.
    is_captured: bool,
    staging: Staging,
}

impl TxBatch {
    /// A batch with room for `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        let places = vec![TxFrame::default(); capacity];
        let spans = Vec::with_capacity(capacity * 2 + SPANS_MAX);
        TxBatch {
            places,
            len: 0,
            spans,
            framed: 0,
            payload_len: 0,
            has_remote: false,
            is_captured: false,
            staging: Staging::default(),
        }
    }
    /// Whether frames are captured: their senders should be noted.
    #[inline]
    pub fn is_captured(&self) -> bool {
        self.is_captured
    }
    /// Sets whether frames are captured.
    pub fn set_captured(&mut self, is_captured: bool) {
        self.is_captured = is_captured;
    }
    /// Opcode (in the upper 8 bits) and PSN of the last frame, which has a BTH. The batch must not be empty (panics).
    #[inline]
    pub fn last_packet(&self) -> u32 {
        let head = &self.places[self.len - 1].head;
        u32::from_be_bytes([head[0], head[9], head[10], head[11]])
    }
    /// Notes that the frames from number `first` on are sent by queue pair `sender`.
    pub fn sign(&mut self, first: usize, sender: u32) {
        let frames = self.places[..self.len].get_mut(first..).unwrap_or_default();
        frames.iter_mut().for_each(|frame| frame.sender = sender);
    }
    /// Whether another frame with up to [`SPANS_MAX`] spans fits.
    pub fn has_room(&self) -> bool {
        self.len < self.places.len() && self.spans.len() + SPANS_MAX <= self.spans.capacity()
    }
    /// Frames that still fit, not counting spans.
    pub fn room(&self) -> usize {
        self.places.len() - self.len
    }
    /// Frames of one span each that still fit, if room for one more frame of any kind is to be left.
    pub fn room_for_run(&self) -> usize {
        let spans = self.spans.capacity().saturating_sub(self.spans.len() + SPANS_MAX);
        self.room().saturating_sub(1).min(spans)
    }
    /// Appends a frame for each `len` bytes of `payload`, whose length must be a multiple of `len`. Each frame has the head
    /// `head` after `vary`, given the frame's index from 0, has written the fields in which the frames differ. Returns false
    /// and changes nothing if there is no room ([`TxBatch::room_for_run`]) or a length is out of range.
    #[must_use]
    pub fn push_run(
        &mut self,
        flow: &Flow,
        head: &[u8],
        payload: &Span,
        len: u16,
        mut vary: impl FnMut(u32, &mut [u8; HEAD_MAX]),
    ) -> bool {
        let count = payload.len() / usize::from(len.max(1));
        if count > self.room_for_run() || head.len() > HEAD_MAX || count * usize::from(len) != payload.len() {
            return false;
        }
        let mut frame = TxFrame {
            flow: *flow,
            head_len: head.len() as u8,
            payload_len: len,
            span_first: self.spans.len() as u32,
            span_count: 1,
            ..TxFrame::default()
        };
        frame.head[..head.len()].copy_from_slice(head);
        self.has_remote |= payload.is_remote();
        let pieces = (0..count).map(|k| payload.sub(k * usize::from(len), usize::from(len)));
        debug_assert_eq!(self.framed, self.spans.len(), "payload that belongs to no frame");
        self.spans.extend(pieces);
        self.framed = self.spans.len();
        for (k, place) in self.places[self.len..self.len + count].iter_mut().enumerate() {
            vary(k as u32, &mut frame.head);
            *place = frame;
            frame.continues = true;
            frame.span_first += 1;
        }
        self.len += count;
        true
    }
    /// Appends a frame. Returns false and changes nothing if the batch is full or a length is out of range.
    #[must_use]
    pub fn push(&mut self, flow: &Flow, head: &[u8], spans: &[Span], pad: u8) -> bool {
        if self.spans.len() + spans.len() > self.spans.capacity() {
            return false;
        }
        spans.iter().for_each(|span| self.add_payload(*span));
        self.push_payload(flow, head, pad)
    }
    /// Appends `span` to the payload of the frame that [`TxBatch::push_payload`] appends next. There must be room: a batch that
    /// [`TxBatch::has_room`] has it for [`SPANS_MAX`] spans (panics otherwise).
    #[inline]
    pub fn add_payload(&mut self, span: Span) {
        assert!(self.spans.len() < self.spans.capacity(), "room for a span");
        self.payload_len += span.len();
        self.has_remote |= span.is_remote();
        self.spans.push(span);
    }
    /// Drops the payload of the next frame.
    pub fn discard_payload(&mut self) {
        self.spans.truncate(self.framed);
        self.payload_len = 0;
    }
    /// Appends a frame with the payload that was added since the frame before. Returns false and drops that payload if the batch
    /// is full or a length is out of range.
    #[must_use]
    pub fn push_payload(&mut self, flow: &Flow, head: &[u8], pad: u8) -> bool {
        let Some(frame) = self.places.get_mut(self.len).filter(|_| head.len() <= HEAD_MAX) else {
            self.discard_payload();
            return false;
        };
        let Ok(payload_len) = u16::try_from(self.payload_len) else {
            self.discard_payload();
            return false;
        };
        frame.flow = *flow;
        frame.head[..head.len()].copy_from_slice(head);
        frame.head_len = head.len() as u8;
        frame.pad = pad;
        frame.payload_len = payload_len;
        frame.continues = false;
        frame.sender = 0;
        frame.span_first = self.framed as u32;
        frame.span_count = (self.spans.len() - self.framed) as u8;
        self.len += 1;
        (self.framed, self.payload_len) = (self.spans.len(), 0);
        true
    }
    /// Appends a frame whose payload is a copy of `payload`, kept until [`TxBatch::clear`]. Returns false and changes nothing if
    /// there is no room, or a length is out of range.
    #[must_use]
    pub fn push_copied(&mut self, flow: &Flow, head: &[u8], payload: &[u8]) -> bool {
        if !self.has_room() {
            return false;
        }
        self.staging.put(payload).is_some_and(|span| self.push(flow, head, &[span], 0))
    }
    /// Reads the payload that lies in other processes into memory of this batch, adjacent packets by one system call. All
    /// spans are local then, except for payload that cannot be read or for which there is no room. A port reads such payload
    /// packet by packet and counts the failures. Returns how many of the calls were given up because a page was not there in
    /// time.
    pub fn fetch_remote(&mut self) -> usize {
        if !self.has_remote {
            return 0;
        }
        self.has_remote = false;
        self.staging.fetch(&mut self.spans).late
    }
    /// Replaces the spans of frames from number `first` on that lie in memory of a device by what `find` gives for them, of the
    /// same length; it gets the frame's PSN. Frames without a replacement cannot be sent: ports drop them.
    #[cold]
    pub fn replace_device_spans(&mut self, first: usize, mut find: impl FnMut(u32, &Span) -> Option<Span>) {
        for frame in self.places[..self.len].get(first..).unwrap_or_default() {
            let psn = u32::from_be_bytes([0, frame.head[9], frame.head[10], frame.head[11]]);
            let begin = frame.span_first as usize;
            for span in &mut self.spans[begin..begin + usize::from(frame.span_count)] {
                if span.is_device()
                    && let Some(found) = find(psn, span)
                {
                    assert_eq!(found.len(), span.len(), "bytes of the span's length");
                    *span = found;
                }
            }
        }
    }
    /// Moves the last frame in front of the frames from number `first` on, if it is longer than that one: a train may end with a
    /// shorter packet, not with a longer one. There must be a frame `first`, which begins a run if it is of one (panics if there
    /// is none).
    pub fn begin_with_longer(&mut self, first: usize) {
        let frames = &mut self.places[first..self.len];
        let (next, last) = (&frames[0], &frames[frames.len() - 1]);
        if next.udp_payload_len() < last.udp_payload_len() {
            frames.rotate_right(1);
        }
    }
    /// The frames.
    pub fn frames(&self) -> &[TxFrame] {
        &self.places[..self.len]
    }
    /// The payload spans of `frame`, a frame of this batch.
    #[inline]
    pub fn spans_of(&self, frame: &TxFrame) -> &[Span] {
        let first = frame.span_first as usize;
        &self.spans[first..first + usize::from(frame.span_count)]
    }
    /// Number of frames.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the batch has no frame.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Removes all frames.
    pub fn clear(&mut self) {
        self.len = 0;
        self.spans.clear();
        (self.framed, self.payload_len) = (0, 0);
        self.has_remote = false;
        self.staging.clear();
    }
}

impl Default for TxFrame {
    /// A frame without head and payload.
    fn default() -> Self {
        TxFrame {
            flow: Flow::default(),
            head: [0; HEAD_MAX],
            head_len: 0,
            pad: 0,
            payload_len: 0,
            continues: false,
            sender: 0,
            span_first: 0,
            span_count: 0,
        }
    }
}

impl TxFrame {
    /// The header bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }
    /// Bytes of the UDP payload: head, payload, padding and trailer.
    #[inline]
    pub fn udp_payload_len(&self) -> usize {
        usize::from(self.head_len) + usize::from(self.payload_len) + usize::from(self.pad) + TRAILER_LEN
    }
}

/// A received frame whose integrity the port has verified.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Addresses as on the wire: `src` is the peer, `dst` is this port; `tos` includes the ECN bits.
    pub flow: Flow,
    /// The transport's headers to the end of the padding, without the trailer.
    pub bytes: &'a [u8],
}

impl RxFrame<'_> {
    /// The ECN codepoint.
    pub fn ecn(&self) -> Ecn {
        match self.flow.tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_gives_the_same_frames_as_single_pushes() {
        let mut memory = vec![0u8; 3000];
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let span = own.span(memory.as_mut_ptr() as u64, 3000);
        let (flow, mut batch) = (Flow { tos: 7, ..Flow::default() }, TxBatch::new(8));
        assert!(batch.push(&flow, &[1; 12], &[span], 1));
        assert!(batch.push_run(&flow, &[9; 12], &span, 1000, |k, head| head[11] = k as u8));
        assert_eq!(batch.len(), 4);
        for (k, frame) in batch.frames()[1..].iter().enumerate() {
            assert_eq!((frame.flow, frame.pad, frame.payload_len, frame.continues), (flow, 0, 1000, k > 0));
            assert_eq!((&frame.head()[..11], frame.head()[11]), (&[9; 11][..], k as u8));
            let [piece] = batch.spans_of(frame) else { panic!("one span") };
            assert_eq!((piece.as_ptr() as usize, piece.len()), (span.as_ptr() as usize + 1000 * k, 1000));
        }
    }

    #[test]
    fn payload_of_other_processes_is_fetched_before_a_port_sees_it() {
        let memory: Vec<u8> = (0..3000).map(|i| (i / 7) as u8).collect();
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let span = own.span(memory.as_ptr() as u64, 3000);
        let (flow, mut batch) = (Flow::default(), TxBatch::new(8));
        for _ in 0..2 {
            assert!(batch.push(&flow, &[1; 12], &[span.sub(5, 10), span.sub(100, 1)], 0));
            assert!(batch.push_run(&flow, &[9; 12], &span, 1000, |_, _| {}));
            batch.fetch_remote();
            let spans: Vec<Span> = batch.frames().iter().flat_map(|f| batch.spans_of(f)).copied().collect();
            let expect = [(5, 10), (100, 1), (0, 1000), (1000, 1000), (2000, 1000)];
            assert_eq!(spans.len(), expect.len());
            for (span, (from, len)) in spans.iter().zip(expect) {
                assert!(span.is_local() && bytes_of(span) == memory[from..from + len], "local and equal");
            }
            batch.clear();
        }
    }

    fn bytes_of(span: &Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len()];
        span.read_to(&mut bytes).expect("local");
        bytes
    }

    #[test]
    fn copied_payload_does_not_change_with_its_source() {
        let mut batch = TxBatch::new(2);
        let mut bytes = [7u8; 8];
        assert!(batch.push_copied(&Flow::default(), &[1; 12], &bytes));
        bytes.fill(0);
        assert!(batch.push_copied(&Flow::default(), &[1; 12], &bytes));
        assert!(!batch.push_copied(&Flow::default(), &[1; 12], &bytes), "full");
        let payload = |k: usize| batch.spans_of(&batch.frames()[k])[0];
        assert_eq!((bytes_of(&payload(0)), bytes_of(&payload(1))), (vec![7; 8], vec![0; 8]));
    }

    #[test]
    fn a_discarded_payload_is_in_no_frame() {
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let (flow, mut batch) = (Flow::default(), TxBatch::new(2));
        batch.add_payload(own.span(8, 300));
        batch.discard_payload();
        batch.add_payload(own.span(8, 40));
        batch.add_payload(own.span(64, 2));
        assert!(batch.push_payload(&flow, &[7; HEAD_MAX], 1));
        assert!(!batch.push_payload(&flow, &[0; HEAD_MAX + 1], 0), "the head is too long");
        (0..3).for_each(|_| batch.add_payload(own.span(8, 30_000)));
        assert!(!batch.push_payload(&flow, &[0; 12], 0), "the payload is too long");
        // The frame after a longer one shows nothing of it.
        assert!(batch.push(&flow, &[1; 12], &[own.span(8, 5)], 3));
        assert!(!batch.push(&flow, &[2; 12], &[own.span(8, 6)], 0), "full");
        let lens = |frame| batch.spans_of(frame).iter().map(|s: &Span| s.len()).collect::<Vec<_>>();
        let frames: Vec<_> = batch.frames().iter().map(|f| (f.head(), f.pad, f.payload_len, lens(f))).collect();
        assert_eq!(frames, [(&[7; HEAD_MAX][..], 1, 42, vec![40, 2]), (&[1; 12][..], 3, 5, vec![5])]);
        batch.clear();
        assert!(batch.is_empty() && batch.push(&flow, &[3; 12], &[], 0));
        assert!(batch.spans_of(&batch.frames()[0]).is_empty());
    }

    #[test]
    fn a_run_without_room_or_with_an_odd_length_changes_nothing() {
        let (flow, mut batch) = (Flow::default(), TxBatch::new(4));
        assert_eq!(batch.room_for_run(), 3);
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let span = |len| own.span(4096, len);
        assert!(!batch.push_run(&flow, &[0; 12], &span(4000), 1000, |_, _| {}));
        assert!(!batch.push_run(&flow, &[0; 12], &span(2500), 1000, |_, _| {}));
        assert!(!batch.push_run(&flow, &[0; HEAD_MAX + 1], &span(2000), 1000, |_, _| {}));
        assert!(batch.is_empty());
        assert!(batch.push_run(&flow, &[0; 12], &span(3000), 1000, |_, _| {}));
        assert_eq!((batch.len(), batch.room(), batch.room_for_run()), (3, 1, 0));
        assert!(batch.push(&flow, &[0; 12], &[span(5); SPANS_MAX], 0));
    }
}
