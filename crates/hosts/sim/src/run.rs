//! Packets of one flow on their way through the modelled network.
//!
//! A [`PacketRun`] keeps what a port was given, packet by packet: head, length of the payload, padding; and the payload's bytes,
//! if the simulation moves them. It is one buffer, so that a train costs one allocation, and the buffers are used again.

use burst_fabric::Cut;
use burst_frame::{Flow, HEAD_MAX, TRAILER_LEN, TxFrame};
use burst_span::{Backing, Span, pattern_fill};

/// What becomes of the payload of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PayloadMode {
    /// The bytes travel: what was sent arrives, and a test may compare.
    Real,
    /// Programs have no memory, but each message has bytes of its own that follow from their address. They do not travel; the
    /// receiver's engine gets them and what it writes is compared, byte by byte.
    Pattern,
    /// Only lengths travel. Programs have no memory; reading and writing it does nothing. What the engine itself puts into a
    /// payload (bitmaps of acknowledgements, management datagrams) travels.
    #[default]
    Void,
}

impl PayloadMode {
    /// Its name in scenarios and results.
    pub fn name(self) -> &'static str {
        match self {
            PayloadMode::Real => "real",
            PayloadMode::Pattern => "pattern",
            PayloadMode::Void => "void",
        }
    }
}

/// Bytes before each packet's head in the buffer: length of the head, padding and flag, length of the payload (two bytes).
const PREFIX: usize = 4;
/// Flag beside the padding: the payload is in the buffer.
const CARRIED: u8 = 0x80;
/// Flag beside the padding: the payload's address in pattern memory is in the buffer.
const DERIVED: u8 = 0x40;

/// Packets of one flow.
#[derive(Clone, Debug)]
pub struct PacketRun {
    /// Addresses.
    pub flow: Flow,
    /// Number of packets.
    pub count: u32,
    /// For each packet: prefix, head, and the payload or its address, but for programs without memory.
    bytes: Vec<u8>,
}

/// Where the payload of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPayload<'a> {
    /// It does not travel.
    Nowhere,
    /// It travels.
    Bytes(&'a [u8]),
    /// It follows from this address.
    At(u64),
}

/// One packet of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunPacket<'a> {
    /// The transport's headers.
    pub head: &'a [u8],
    /// Bytes of payload.
    pub payload_len: usize,
    /// The payload.
    pub payload: RunPayload<'a>,
    /// Zero bytes behind the payload.
    pub pad: usize,
}

impl RunPacket<'_> {
    /// Bytes from the head to the end of the padding.
    #[allow(clippy::len_without_is_empty)] // a packet has a head
    pub fn len(&self) -> usize {
        self.head.len() + self.payload_len + self.pad
    }

    /// Writes the packet to `out`, which is longer by the trailer. Payload that does not travel stays as it is in `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        debug_assert_eq!(out.len(), self.len() + TRAILER_LEN);
        out[..self.head.len()].copy_from_slice(self.head);
        let place = &mut out[self.head.len()..][..self.payload_len];
        match self.payload {
            RunPayload::Nowhere => {}
            RunPayload::Bytes(payload) => place.copy_from_slice(payload),
            RunPayload::At(addr) => pattern_fill(addr, place),
        }
        out[self.head.len() + self.payload_len..].fill(0);
    }
}

/// The address of a payload that is in one piece of pattern memory.
fn pattern_of(spans: &[Span]) -> Option<u64> {
    let (first, rest) = spans.split_first()?;
    let whole = rest.iter().try_fold(*first, |whole, span| whole.joined(span))?;
    (whole.backing() == Backing::Pattern).then(|| whole.as_ptr() as u64)
}

impl PacketRun {
    /// A run without packets; `buffer` is used again.
    pub fn new(flow: Flow, mut buffer: Vec<u8>) -> PacketRun {
        buffer.clear();
        PacketRun { flow, count: 0, bytes: buffer }
    }

    /// Appends a frame with its payload. False, and nothing is appended, if the payload cannot be read.
    pub fn push(&mut self, frame: &TxFrame, spans: &[Span]) -> bool {
        debug_assert!(usize::from(frame.head_len) <= HEAD_MAX);
        let start = self.bytes.len();
        let [low, high] = frame.payload_len.to_le_bytes();
        let (pattern, is_null) = (pattern_of(spans), spans.iter().all(|span| span.backing() == Backing::Null));
        let flag = if pattern.is_some() { DERIVED } else { CARRIED };
        let flag = if is_null { 0 } else { flag };
        self.bytes.extend_from_slice(&[frame.head_len, frame.pad | flag, low, high]);
        self.bytes.extend_from_slice(frame.head());
        if let Some(addr) = pattern {
            self.bytes.extend_from_slice(&addr.to_le_bytes());
        } else if !is_null {
            for span in spans {
                let at = self.bytes.len();
                self.bytes.resize(at + span.len(), 0);
                if span.read_to(&mut self.bytes[at..]).is_err() {
                    self.bytes.truncate(start);
                    return false;
                }
            }
        }
        self.count += 1;
        true
    }

    /// The packet that begins at `at` in the buffer, and where the next one begins. `None` at the end.
    pub fn packet_at(&self, at: usize) -> Option<(RunPacket<'_>, usize)> {
        let &[head_len, mark, low, high] = self.bytes.get(at..)?.first_chunk::<PREFIX>()?;
        let payload_len = usize::from(u16::from_le_bytes([low, high]));
        let head_at = at + PREFIX;
        let payload_at = head_at + usize::from(head_len);
        let head = self.bytes.get(head_at..payload_at)?;
        let (payload, end) = match mark & (CARRIED | DERIVED) {
            0 => (RunPayload::Nowhere, payload_at),
            DERIVED => {
                let addr = self.bytes.get(payload_at..)?.first_chunk()?;
                (RunPayload::At(u64::from_le_bytes(*addr)), payload_at + size_of::<u64>())
            }
            _ => {
                let end = payload_at + payload_len;
                (RunPayload::Bytes(self.bytes.get(payload_at..end)?), end)
            }
        };
        Some((RunPacket { head, payload_len, payload, pad: usize::from(mark & !(CARRIED | DERIVED)) }, end))
    }

    /// Lets `change` change the head of each packet, as a switch does.
    pub fn change_heads(&mut self, mut change: impl FnMut(&mut [u8])) {
        let mut at = 0;
        while let Some((packet, next)) = self.packet_at(at) {
            let head = at + PREFIX..at + PREFIX + packet.head.len();
            change(&mut self.bytes[head]);
            at = next;
        }
    }

    /// Gives the buffer back, for another run.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

impl Cut for PacketRun {
    fn cut(&mut self, keep: u32) -> PacketRun {
        let mut at = 0;
        for _ in 0..keep {
            let Some((_, next)) = self.packet_at(at) else { break };
            at = next;
        }
        let rest = PacketRun { count: self.count.saturating_sub(keep), bytes: self.bytes.split_off(at), ..*self };
        self.count -= rest.count;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_frame::TxBatch;

    fn run(mode: PayloadMode) -> PacketRun {
        let memory: Vec<u8> = (0..200).collect();
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let span = match mode {
            PayloadMode::Real => own.span(memory.as_ptr() as u64, 200),
            PayloadMode::Pattern => Span::pattern(4_001, 200),
            PayloadMode::Void => Span::null(200),
        };
        let mut batch = TxBatch::new(8);
        assert!(batch.push(&Flow::default(), &[1; 28], &[span.sub(0, 50), span.sub(50, 50)], 0));
        assert!(batch.push(&Flow::default(), &[2; 12], &[span.sub(100, 7)], 1));
        assert!(batch.push(&Flow::default(), &[3; 16], &[], 0));
        let mut run = PacketRun::new(Flow::default(), Vec::new());
        for frame in batch.frames() {
            assert!(run.push(frame, batch.spans_of(frame)));
        }
        run
    }

    fn packets(run: &PacketRun) -> Vec<Vec<u8>> {
        let (mut at, mut all) = (0, Vec::new());
        while let Some((packet, next)) = run.packet_at(at) {
            let mut out = vec![0xee; packet.len() + TRAILER_LEN];
            packet.write_to(&mut out);
            all.push(out);
            at = next;
        }
        all
    }

    #[test]
    fn packets_come_out_as_they_went_in() {
        let all = packets(&run(PayloadMode::Real));
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [28 + 100 + 4, 12 + 7 + 1 + 4, 16 + 4]);
        assert_eq!((&all[0][..28], &all[0][28..128]), (&[1; 28][..], &(0..100).collect::<Vec<u8>>()[..]));
        assert_eq!(&all[1][12..], [100, 101, 102, 103, 104, 105, 106, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn payload_that_follows_from_its_address_does() {
        let all = packets(&run(PayloadMode::Pattern));
        let mut expected = vec![0; 200];
        pattern_fill(4_001, &mut expected);
        assert_eq!((&all[0][28..128], &all[1][12..19]), (&expected[..100], &expected[100..107]));
        assert_eq!((all[0][27], all[1].len(), all[1][19]), (1, 12 + 7 + 1 + 4, 0));
        // Two pieces that are not neighbours are read.
        let mut batch = TxBatch::new(8);
        let span = Span::pattern(4_001, 200);
        assert!(batch.push(&Flow::default(), &[1; 12], &[span.sub(0, 50), span.sub(60, 50)], 0));
        let mut run = PacketRun::new(Flow::default(), Vec::new());
        assert!(batch.frames().iter().all(|frame| run.push(frame, batch.spans_of(frame))));
        assert_eq!(packets(&run)[0][12..112], [&expected[..50], &expected[60..110]].concat());
    }

    #[test]
    fn payload_that_does_not_travel_has_its_length() {
        let all = packets(&run(PayloadMode::Void));
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [132, 24, 20]);
        assert_eq!((all[0][27], all[0][28], all[0][127], all[0][128]), (1, 0xee, 0xee, 0));
    }

    #[test]
    fn what_the_engine_puts_into_a_payload_travels_beside_what_does_not() {
        let mut batch = TxBatch::new(8);
        assert!(batch.push(&Flow::default(), &[1; 12], &[Span::null(100)], 0));
        assert!(batch.push_copied(&Flow::default(), &[2; 12], &[7; 8]));
        let mut run = PacketRun::new(Flow::default(), Vec::new());
        assert!(batch.frames().iter().all(|frame| run.push(frame, batch.spans_of(frame))));
        assert_eq!(packets(&run)[1][12..20], [7; 8]);
    }

    #[test]
    fn a_cut_run_has_the_same_packets() {
        for mode in [PayloadMode::Real, PayloadMode::Pattern, PayloadMode::Void] {
            for keep in 0..=3 {
                let whole = packets(&run(mode));
                let mut first = run(mode);
                let rest = first.cut(keep);
                assert_eq!((first.count, rest.count), (keep, 3 - keep));
                assert_eq!([packets(&first), packets(&rest)].concat(), whole);
            }
        }
    }
}
