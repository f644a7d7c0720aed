//! Two ends move streams over transports that break at random points: every byte arrives once, in order, and both
//! ends see the end.

use burst_relay::{Batch, Frame, FrameReader, Header, LinkInbox, LinkOutbox, Novelty, Outcome, PeerWindow, Stream};
use proptest::prelude::*;
use std::collections::VecDeque;

const RING: usize = 4096;
const WINDOW: PeerWindow = PeerWindow { address: 0x1000, rkey: 1, len: RING as u32 };

/// Bytes that an RDMA WRITE moves, and their offset.
type Placed = (u64, Vec<u8>);

/// One end with one stream: what its program sends, and what its program has received.
struct End {
    stream: Stream,
    out: LinkOutbox,
    inbox: LinkInbox,
    to_send: Vec<u8>,
    ring: Vec<u8>,
    window: Vec<u8>,
    got: Vec<u8>,
    got_end: bool,
}

impl End {
    fn new(to_send: Vec<u8>) -> Self {
        let stream = Stream::new(1, RING as u32, RING as u32, Some(WINDOW));
        let (ring, window) = (vec![0; RING], vec![0; RING]);
        Self {
            stream,
            out: LinkOutbox::default(),
            inbox: LinkInbox::default(),
            to_send,
            ring,
            window,
            got: vec![],
            got_end: false,
        }
    }

    fn read(&mut self, most: usize) {
        let from = self.stream.sent() as usize;
        let count = self.stream.room().min(most).min(self.to_send.len() - from);
        let at = from % RING;
        self.ring[at..at + count].copy_from_slice(&self.to_send[from..from + count]);
        if count > 0 {
            let bytes = self.ring[at..at + count].to_vec();
            self.stream.read(&bytes, &mut self.out);
        } else if from == self.to_send.len() && !self.stream.has_read_end() {
            self.stream.read_end(&mut self.out);
        }
    }

    /// Batches that leave now, each with the bytes that are written before it.
    fn send(&mut self) -> Vec<(Batch, Vec<Placed>)> {
        let mut sent = vec![];
        while let Some(batch) = self.out.next(&mut self.inbox) {
            let batch = batch.clone();
            let bytes =
                |offset: u64, len: u32| (0..len.into()).map(|n| self.ring[(offset + n) as usize % RING]).collect();
            let places = batch.places.iter().map(|p| (p.offset, bytes(p.offset, p.len))).collect();
            sent.push((batch, places));
        }
        sent
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (byte, n) in bytes.iter().zip(0..) {
            self.window[(offset + n) as usize % RING] = *byte;
        }
    }

    fn receive(&mut self, batch: &Batch, places: &[Placed]) {
        for (offset, bytes) in places {
            self.write(*offset, bytes);
        }
        let (header, frames) = Header::read(&batch.bytes).unwrap();
        self.out.acknowledged(header.ack).unwrap();
        if self.inbox.take(header.seq).unwrap() == Novelty::Repeated {
            return;
        }
        let mut reader = FrameReader::new(frames);
        while let Some((_, frame)) = reader.next_frame().unwrap() {
            match frame {
                Frame::Data { offset, bytes } => {
                    self.write(offset, bytes);
                    self.stream.on_data(offset, bytes.len()).unwrap();
                }
                Frame::Placed { offset, len } => self.stream.on_data(offset, len as usize).unwrap(),
                Frame::Credit { delivered } => self.stream.on_credit(delivered).unwrap(),
                Frame::Fin { end } => self.stream.on_fin(end).unwrap(),
                Frame::End { outcome } => self.stream.on_end(outcome).unwrap(),
                Frame::Open { .. } | Frame::Accept { .. } | Frame::Urgent { .. } => unreachable!(),
            }
        }
    }

    fn deliver(&mut self, most: usize) {
        let (from, to) = self.stream.undelivered();
        let count = (to - from).min(most as u64);
        self.got.extend((from..from + count).map(|offset| self.window[offset as usize % RING]));
        self.stream.delivered(count as usize, &mut self.out);
        if self.stream.end_due() {
            self.stream.delivered_end(&mut self.out);
            self.got_end = true;
        }
        if self.stream.complete() {
            self.stream.end(Outcome::Clean, &mut self.out);
        }
    }
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order(
        payloads in [0usize..30_000, 0usize..30_000],
        steps in proptest::collection::vec((0u8..12, 1usize..6000), 50..400),
    ) {
        let bytes = |count: usize, salt: usize| (0..count).map(|n| (n * 31 + n / 251 + salt) as u8).collect::<Vec<_>>();
        let sent = [bytes(payloads[0], 1), bytes(payloads[1], 2)];
        let mut ends = [End::new(sent[0].clone()), End::new(sent[1].clone())];
        let mut wires = [VecDeque::new(), VecDeque::new()];
        // After the random steps, regular ones finish whatever is left.
        let finish = std::iter::repeat_n([(0, 5000), (1, 5000), (2, 0), (3, 0), (4, 0), (5, 0), (6, 9000), (7, 9000)], 200).flatten();
        for (what, size) in steps.into_iter().chain(finish) {
            let who = usize::from(what % 2);
            match what {
                0 | 1 => ends[who].read(size),
                2 | 3 => wires[who].extend(ends[who].send()),
                4 | 5 => for (batch, places) in wires[1 - who].drain(..) {
                    ends[who].receive(&batch, &places);
                },
                6..=9 => ends[who].deliver(size),
                _ => {
                    // The transport breaks: what was under way may have arrived in part.
                    for to in [0, 1] {
                        let arrive = size % (wires[1 - to].len() + 1);
                        for (batch, places) in wires[1 - to].drain(..).take(arrive).collect::<Vec<_>>() {
                            ends[to].receive(&batch, &places);
                        }
                        wires[1 - to].clear();
                    }
                    let received = [ends[0].inbox.received(), ends[1].inbox.received()];
                    for (end, peer) in ends.iter_mut().zip([received[1], received[0]]) {
                        end.inbox.resume();
                        end.out.resume(peer).unwrap();
                    }
                }
            }
        }
        prop_assert!(ends[0].got == sent[1] && ends[1].got == sent[0]);
        prop_assert!(ends.iter().all(|end| end.got_end && end.stream.gone()));
    }
}

#[test]
fn wrong_repeated_and_late_frames_are_refused() {
    let mut out = LinkOutbox::default();
    let fresh = || Stream::new(1, 4096, 100, Some(WINDOW));
    let mut stream = fresh();
    assert!(stream.on_accept(WINDOW).is_err(), "accepted twice");
    assert!(stream.on_data(1, 1).is_err(), "a gap");
    assert!(stream.on_data(0, 101).is_err(), "over the window");
    assert!(stream.on_credit(1).is_err(), "credit for nothing");
    assert!(stream.on_fin(1).is_err(), "a FIN after missing bytes");
    assert!(stream.on_end(Outcome::Clean).is_err(), "clean, but nothing has ended");
    stream.on_data(0, 100).unwrap();
    assert!(stream.on_data(100, 1).is_err(), "the window is full");
    stream.delivered(100, &mut out);
    stream.on_data(100, 1).unwrap();
    stream.on_fin(101).unwrap();
    assert!(stream.on_fin(101).is_err(), "twice");
    assert!(stream.on_data(101, 1).is_err(), "after the end");
    stream.read(&[7], &mut out);
    stream.on_credit(1).unwrap();
    assert!(stream.on_credit(0).is_err(), "backwards");
    assert!(stream.on_credit(2).is_err(), "the FIN was not sent");
    stream.on_end(Outcome::Reset).unwrap();
    assert!(stream.on_end(Outcome::Reset).is_err(), "twice");
    assert!(fresh().move_peer_window(PeerWindow { len: 5, ..WINDOW }).is_err(), "another length");
}
