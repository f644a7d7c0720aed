//! Two ends move streams over transports that break at random points, while windows and rings grow: every byte arrives
//! once, in order, and both ends see the end. A WRITE takes its bytes from the ring when it arrives, and goes to the key
//! that was known when it was sent, so memory that is used again or given back too early shows. After a break each end
//! resumes by itself, when it reads the other one's hello; all keys are other ones then.

use burst_relay::{
    Batch, Frame, FrameReader, Header, LinkInbox, LinkOutbox, Novelty, Outcome, PeerFault, PeerWindow, Stream,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const WINDOW: PeerWindow = window(4096, FIRST_KEY);
const FIRST_KEY: u32 = 1;
/// Longest window.
const LEN_MAX: usize = 40_000;

const fn window(len: usize, rkey: u32) -> PeerWindow {
    PeerWindow { address: 0x1000, rkey, len: len as u32 }
}

/// Memory for the bytes of a stream from an offset on, up to the next part.
struct Part {
    from: u64,
    key: u32,
    bytes: Vec<u8>,
}

impl Part {
    fn new(from: u64, key: u32, len: usize) -> Self {
        Self { from, key, bytes: vec![0; len] }
    }
}

/// The byte of an offset.
fn byte_at(parts: &mut [Part], offset: u64) -> &mut u8 {
    let part = parts.iter_mut().rev().find(|part| part.from <= offset).expect("memory that is gone is not used");
    let len = part.bytes.len() as u64;
    &mut part.bytes[(offset % len) as usize]
}

/// Gives the first part back if bytes are needed from `first` on only.
fn give_back(parts: &mut Vec<Part>, first: u64) {
    if parts.len() > 1 && parts[1].from <= first {
        parts.remove(0);
    }
}

/// A batch under way, with the peer's window of each place as it was known when it was sent.
type Sent = (Batch, Vec<PeerWindow>);

/// One end with one stream: what its program sends, and what its program has received.
struct End {
    stream: Stream,
    out: LinkOutbox,
    inbox: LinkInbox,
    to_send: Vec<u8>,
    rings: Vec<Part>,
    windows: Vec<Part>,
    next_key: u32,
    got: Vec<u8>,
    got_end: bool,
    /// What the other end has received when the present transport began, and its windows; `None` once it is read.
    hello: Option<(u64, Vec<PeerWindow>)>,
}

impl End {
    /// An end with a window of `len` bytes, a ring of `more` bytes more, and a peer whose window has `peer` bytes.
    fn new(to_send: Vec<u8>, len: usize, more: usize, peer: usize) -> Self {
        let stream = Stream::new(1, (len + more) as u32, len as u32, Some(window(peer, FIRST_KEY)));
        Self {
            stream,
            out: LinkOutbox::default(),
            inbox: LinkInbox::default(),
            to_send,
            rings: vec![Part::new(0, 0, len + more)],
            windows: vec![Part::new(0, FIRST_KEY, len)],
            next_key: FIRST_KEY + 1,
            got: vec![],
            got_end: false,
            hello: None,
        }
    }

    fn read(&mut self, most: usize) {
        let from = self.stream.sent() as usize;
        let count = self.stream.room().min(most).min(self.to_send.len() - from);
        let bytes = self.to_send[from..from + count].to_vec();
        for (byte, offset) in bytes.iter().zip(from as u64..) {
            *byte_at(&mut self.rings, offset) = *byte;
        }
        if count > 0 {
            self.stream.read(&bytes, &mut self.out);
        } else if from == self.to_send.len() && !self.stream.has_read_end() {
            self.stream.read_end(&mut self.out);
        }
    }

    /// Batches that leave now: none before the peer's hello was read.
    fn send(&mut self) -> Vec<Sent> {
        if self.hello.is_some() {
            return vec![];
        }
        let batches: Vec<Batch> = std::iter::from_fn(|| self.out.next(&mut self.inbox).cloned()).collect();
        let known = |batch: &Batch| {
            batch.places.iter().map(|place| self.stream.peer_window_at(place.offset).expect("accepted")).collect()
        };
        batches.into_iter().map(|batch| (batch.clone(), known(&batch))).collect()
    }

    fn named(&self) -> Vec<PeerWindow> {
        self.windows.iter().map(|part| window(part.bytes.len(), part.key)).collect()
    }

    fn read_hello(&mut self) {
        let Some((received, windows)) = self.hello.take() else { return };
        windows.into_iter().for_each(|window| self.stream.move_peer_window(window));
        let named = self.named();
        self.out.move_windows(|_, len| named.iter().copied().find(|window| window.len == len));
        self.out.resume(received).unwrap();
    }

    /// All memory is registered again.
    fn register(&mut self) {
        for part in &mut self.windows {
            part.key = self.next_key;
            self.next_key += 1;
        }
    }

    fn grow(&mut self) {
        let len = 2 * self.windows.last().unwrap().bytes.len();
        if self.stream.can_grow_window() && len <= LEN_MAX {
            assert_eq!(self.windows.len(), 1, "the window before is gone");
            let key = self.next_key;
            self.next_key += 1;
            let from = self.stream.grow_window(window(len, key), &mut self.out);
            self.windows.push(Part::new(from, key, len));
        }
    }

    /// The WRITE of a batch arrives.
    fn write(&mut self, offset: u64, bytes: &[u8], to: PeerWindow) {
        let part = self.windows.iter_mut().find(|part| part.key == to.rkey).expect("a WRITE finds its memory");
        assert_eq!(part.bytes.len() as u32, to.len);
        for (byte, n) in bytes.iter().zip(0..) {
            part.bytes[((offset + n) % u64::from(to.len)) as usize] = *byte;
        }
    }

    /// A batch of the end whose rings are `rings` arrives, after its WRITEs.
    fn receive(&mut self, (batch, windows): &Sent, rings: &mut [Part]) {
        for (place, window) in batch.places.iter().zip(windows) {
            let bytes: Vec<u8> = (0..place.len.into()).map(|n: u64| *byte_at(rings, place.offset + n)).collect();
            self.write(place.offset, &bytes, *window);
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
                    for (byte, offset) in bytes.iter().zip(offset..) {
                        *byte_at(&mut self.windows, offset) = *byte;
                    }
                    self.stream.on_data(offset, bytes.len()).unwrap();
                }
                Frame::Placed { offset, len } => self.stream.on_data(offset, len as usize).unwrap(),
                Frame::Credit { delivered } => {
                    self.stream.on_credit(delivered).unwrap();
                    give_back(&mut self.rings, self.stream.credited());
                }
                Frame::Grow { window, from } => {
                    self.stream.on_grow(window, from).unwrap();
                    // A ring may stay as it is.
                    if self.rings.len() == 1 && from % 3 > 0 && self.rings[0].bytes.len() < window.len as usize {
                        let from = self.stream.grow_ring(window.len);
                        self.rings.push(Part::new(from, 0, window.len as usize));
                        give_back(&mut self.rings, self.stream.credited());
                    }
                }
                Frame::Fin { end } => self.stream.on_fin(end).unwrap(),
                Frame::End { outcome } => self.stream.on_end(outcome).unwrap(),
                Frame::Open { .. }
                | Frame::Accept { .. }
                | Frame::Urgent { .. }
                | Frame::Want { .. }
                | Frame::Probe { .. } => unreachable!(),
            }
        }
    }

    fn deliver(&mut self, most: usize) {
        let (from, to) = self.stream.undelivered();
        let count = (to - from).min(most as u64);
        for offset in from..from + count {
            let byte = *byte_at(&mut self.windows, offset);
            self.got.push(byte);
        }
        self.stream.delivered(count as usize, &mut self.out);
        give_back(&mut self.windows, from + count);
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
fn arrive(ends: &mut [End; 2], wires: &mut [VecDeque<Sent>; 2], to: usize, most: usize) {
    for _ in 0..most {
        let Some(sent) = wires[1 - to].pop_front() else { return };
        let mut rings = std::mem::take(&mut ends[1 - to].rings);
        ends[to].receive(&sent, &mut rings);
        ends[1 - to].rings = rings;
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
        steps in proptest::collection::vec((0u8..16, 1usize..6000), 50..400),
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
                14 | 15 => ends[who].grow(),
                _ => {
                    // The transport breaks: what was under way may have arrived in part.
                    for to in [0, 1] {
                        let some = size % (wires[1 - to].len() + 1);
                        arrive(&mut ends, &mut wires, to, some);
                    }
                    wires.iter_mut().for_each(VecDeque::clear);
                    for to in [0, 1] {
                        ends[1 - to].inbox.resume();
                        ends[1 - to].register();
                        ends[to].hello = Some((ends[1 - to].inbox.received(), ends[1 - to].named()));
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
    (early.hello, late.hello) = (Some((0, vec![])), Some((0, vec![])));
    early.read_hello();
    for _ in 0..100 {
        early.out.push(1, &Frame::Credit { delivered: 0 });
        for batch in early.send() {
            late.receive(&batch, &mut []);
        }
    }
    late.read_hello();
    let answers = late.send();
    assert!(!answers.is_empty(), "the early end waits for an acknowledgement");
    for batch in answers {
        early.receive(&batch, &mut []);
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
    let mut moved = fresh();
    moved.move_peer_window(PeerWindow { rkey: 8, ..WINDOW });
    moved.move_peer_window(PeerWindow { rkey: 9, len: 5, ..WINDOW });
    assert_eq!(moved.peer_window(), Some(PeerWindow { rkey: 8, ..WINDOW }), "another length is left out");
}

#[test]
fn wrong_growths_are_refused() {
    let larger = PeerWindow { len: 8192, rkey: 2, ..WINDOW };
    let mut out = LinkOutbox::default();
    let mut stream = Stream::new(1, 8192, 100, Some(WINDOW));
    stream.read(&[7; 1000], &mut out);
    assert_eq!(stream.on_grow(WINDOW, 4096), Err(PeerFault::Turn(1)), "not larger");
    assert_eq!(stream.on_grow(larger, 999), Err(PeerFault::Offset(1)), "its byte was sent elsewhere");
    assert_eq!(stream.on_grow(larger, 4097), Err(PeerFault::Offset(1)), "no window has the byte before it");
    assert_eq!(Stream::new(1, 8192, 100, None).on_grow(larger, 0), Err(PeerFault::Turn(1)), "not accepted");
    stream.on_grow(larger, 4096).unwrap();
    assert_eq!((stream.peer_window_at(4095), stream.peer_window_at(4096)), (Some(WINDOW), Some(larger)));
    assert_eq!(
        stream.on_grow(PeerWindow { len: 9000, ..larger }, 5000),
        Err(PeerFault::Turn(1)),
        "the last one is under way"
    );
    assert_eq!(stream.room(), 3096, "up to where the next window begins");
    // What a resumed link names: both, and one that is not known yet.
    for window in [WINDOW, larger, PeerWindow { len: 16_384, ..larger }] {
        stream.move_peer_window(PeerWindow { address: 0x9000, ..window });
    }
    assert_eq!(stream.peer_window_at(0), Some(PeerWindow { address: 0x9000, ..WINDOW }));
    assert_eq!(stream.peer_window_at(4096), Some(PeerWindow { address: 0x9000, ..larger }));
    stream.read(&[7; 3096], &mut out);
    assert_eq!(stream.room(), 4096, "the ring ends there");
    stream.on_credit(4096).unwrap();
    assert_eq!(stream.peer_window_at(0).map(|window| window.len), Some(8192), "the window before is forgotten");
    assert!(!Stream::new(1, 100, 100, None).can_grow_window());
    let mut receiver = Stream::new(1, 100, 100, Some(WINDOW));
    receiver.on_data(0, 60).unwrap();
    receiver.delivered(60, &mut out);
    assert_eq!(receiver.grow_window(PeerWindow { len: 200, ..WINDOW }, &mut out), 160, "behind what was credited");
    assert!(!receiver.can_grow_window(), "until the bytes below that offset are credited");
    receiver.on_data(60, 200).unwrap();
    assert!(receiver.on_data(260, 1).is_err(), "over the larger window");
    receiver.delivered(100, &mut out);
    assert!(receiver.can_grow_window());
    receiver.on_fin(260).unwrap();
    assert!(!receiver.can_grow_window(), "nothing more comes");
}
