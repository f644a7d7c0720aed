//! Two ends move streams over transports that break at random points: every byte arrives once, in order, and both
//! ends see the end. A WRITE takes its bytes from the ring when it arrives, so a ring that is used again too early
//! shows. After a break each end resumes by itself, when it reads the other one's hello.

use burst_relay::{Batch, Frame, FrameReader, Header, LinkInbox, LinkOutbox, Novelty, Outcome, PeerWindow, Stream};
use proptest::prelude::*;
use std::collections::VecDeque;

const WINDOW: PeerWindow = window(4096);

const fn window(len: usize) -> PeerWindow {
    PeerWindow { address: 0x1000, rkey: 1, len: len as u32 }
}

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
    /// What the other end has received when the present transport began; `None` once it is read.
    hello: Option<u64>,
}

impl End {
    /// An end with a window of `len` bytes, a ring of `more` bytes more, and a peer whose window has `peer` bytes.
    fn new(to_send: Vec<u8>, len: usize, more: usize, peer: usize) -> Self {
        let stream = Stream::new(1, (len + more) as u32, len as u32, Some(window(peer)));
        Self {
            stream,
            out: LinkOutbox::default(),
            inbox: LinkInbox::default(),
            to_send,
            ring: vec![0; len + more],
            window: vec![0; len],
            got: vec![],
            got_end: false,
            hello: None,
        }
    }

    fn read(&mut self, most: usize) {
        let from = self.stream.sent() as usize;
        let count = self.stream.room().min(most).min(self.to_send.len() - from);
        let at = from % self.ring.len();
        self.ring[at..at + count].copy_from_slice(&self.to_send[from..from + count]);
        if count > 0 {
            let bytes = self.ring[at..at + count].to_vec();
            self.stream.read(&bytes, &mut self.out);
        } else if from == self.to_send.len() && !self.stream.has_read_end() {
            self.stream.read_end(&mut self.out);
        }
    }

    /// Batches that leave now: none before the peer's hello was read.
    fn send(&mut self) -> Vec<Batch> {
        if self.hello.is_some() {
            return vec![];
        }
        std::iter::from_fn(|| self.out.next(&mut self.inbox).cloned()).collect()
    }

    fn read_hello(&mut self) {
        if let Some(received) = self.hello.take() {
            self.out.resume(received).unwrap();
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let len = self.window.len();
        for (byte, n) in bytes.iter().zip(0..) {
            self.window[(offset + n) as usize % len] = *byte;
        }
    }

    /// A batch of the end whose ring is `ring` arrives, after its WRITEs.
    fn receive(&mut self, batch: &Batch, ring: &[u8]) {
        for place in &batch.places {
            let bytes: Vec<u8> =
                (0..place.len.into()).map(|n: u64| ring[(place.offset + n) as usize % ring.len()]).collect();
            self.write(place.offset, &bytes);
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
        let (count, len) = ((to - from).min(most as u64), self.window.len());
        self.got.extend((from..from + count).map(|offset| self.window[offset as usize % len]));
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

/// Delivers to an end what its wire holds, at most `most` batches.
fn arrive(ends: &mut [End; 2], wires: &mut [VecDeque<Batch>; 2], to: usize, most: usize) {
    for _ in 0..most {
        let Some(batch) = wires[1 - to].pop_front() else { return };
        let ring = ends[1 - to].ring.clone();
        ends[to].receive(&batch, &ring);
    }
}

fn bytes(count: usize, salt: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 31 + n / 251 + salt) as u8).collect()
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order(
        payloads in [0usize..30_000, 0usize..30_000],
        lens in [prop::sample::select(vec![700, 4096, 20_000]), prop::sample::select(vec![700, 4096, 20_000])],
        more in prop::sample::select(vec![0usize, 333]),
        steps in proptest::collection::vec((0u8..14, 1usize..6000), 50..400),
    ) {
        let sent = [bytes(payloads[0], 1), bytes(payloads[1], 2)];
        let mut ends = [End::new(sent[0].clone(), lens[0], more, lens[1]), End::new(sent[1].clone(), lens[1], more, lens[0])];
        let mut wires = [VecDeque::new(), VecDeque::new()];
        // After the random steps, regular ones finish whatever is left.
        let round = [(10, 0), (11, 0), (0, 5000), (1, 5000), (2, 0), (3, 0), (4, 0), (5, 0), (6, 9000), (7, 9000)];
        let finish = std::iter::repeat_n(round, 200).flatten();
        for (what, size) in steps.into_iter().chain(finish) {
            let who = usize::from(what % 2);
            match what {
                0 | 1 => ends[who].read(size),
                2 | 3 => wires[who].extend(ends[who].send()),
                4 | 5 => arrive(&mut ends, &mut wires, who, usize::MAX),
                6..=9 => ends[who].deliver(size),
                10 | 11 => ends[who].read_hello(),
                _ => {
                    // The transport breaks: what was under way may have arrived in part.
                    for to in [0, 1] {
                        let some = size % (wires[1 - to].len() + 1);
                        arrive(&mut ends, &mut wires, to, some);
                    }
                    wires.iter_mut().for_each(VecDeque::clear);
                    for to in [0, 1] {
                        ends[1 - to].inbox.resume();
                        ends[to].hello = Some(ends[1 - to].inbox.received());
                    }
                }
            }
        }
        prop_assert!(ends[0].got == sent[1] && ends[1].got == sent[0]);
        prop_assert!(ends.iter().all(|end| end.got_end && end.stream.gone()));
    }
}

#[test]
fn unequal_windows_do_not_stop_a_stream() {
    for lens in [[4096, 1 << 20], [1 << 20, 4096], [4096, 4097]] {
        let sent = bytes(50_000, 1);
        let mut ends = [End::new(sent.clone(), lens[0], 0, lens[1]), End::new(sent.clone(), lens[1], 0, lens[0])];
        let mut wires = [VecDeque::new(), VecDeque::new()];
        for _ in 0..200 {
            for who in [0, 1] {
                ends[who].read(5000);
                wires[who].extend(ends[who].send());
                arrive(&mut ends, &mut wires, 1 - who, usize::MAX);
                ends[1 - who].deliver(9000);
            }
        }
        assert!(ends.iter().all(|end| end.got == sent && end.stream.gone()), "{lens:?}");
    }
}

#[test]
fn an_end_that_resumes_late_still_acknowledges_what_came_before() {
    let (mut early, mut late) = (End::new(vec![], 4096, 0, 4096), End::new(vec![], 4096, 0, 4096));
    late.inbox.resume();
    (early.hello, late.hello) = (Some(0), Some(0));
    early.read_hello();
    for _ in 0..100 {
        early.out.push(1, &Frame::Credit { delivered: 0 });
        for batch in early.send() {
            late.receive(&batch, &[]);
        }
    }
    late.read_hello();
    let answers = late.send();
    assert!(!answers.is_empty(), "the early end waits for an acknowledgement");
    for batch in answers {
        early.receive(&batch, &[]);
    }
    assert!(early.out.ready(&early.inbox));
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
