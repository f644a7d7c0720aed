//! Numbered batches of frames, kept until the peer has received them.
//!
//! [`LinkOutbox`] gathers frames into batches and hands out at most [`BATCHES`] that the peer has not acknowledged;
//! each message acknowledges by its `ack`. The last place is for a batch that acknowledges only: two ends that have
//! used all places could otherwise wait for each other. [`LinkInbox`] takes each batch once. After a change of
//! transport, [`LinkOutbox::resume`] marks what has to be sent again.

use crate::frame::{Frame, FrameReader, HEADER_BYTES, Header, MessageKind, PeerFault, PeerWindow};
use std::collections::VecDeque;

/// Most bytes of a batch, with its header.
pub const BATCH_BYTES: usize = 16 << 10;
/// Most batches that the peer has not acknowledged; receives that an end keeps posted.
pub const BATCHES: u64 = 64;
/// Most RDMA WRITEs that go before a batch.
pub const PLACES: usize = 32;

const _: () = assert!(BATCHES.is_power_of_two() && BATCHES >= 4);

/// Bytes of a stream that must be in the peer's window before the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// The stream's id.
    pub stream: u32,
    /// Offset of the first byte.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// Frames under one number.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The number; 0 until it is handed out.
    pub seq: u64,
    /// Header and frames.
    pub bytes: Vec<u8>,
    /// What to write before.
    pub places: Vec<BatchPlace>,
    /// How many frames there are.
    pub frames: u32,
}

impl Batch {
    fn clear(&mut self) {
        (self.seq, self.frames) = (0, 0);
        self.places.clear();
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
    }
}

/// The sending end of a link.
#[derive(Debug, Default)]
pub struct LinkOutbox {
    /// Not handed out yet, in order.
    waiting: VecDeque<Batch>,
    /// Numbered and not acknowledged, in order.
    kept: VecDeque<Batch>,
    /// How many of `kept` were handed out on the present transport.
    sent: usize,
    /// Number of the last batch that has one.
    last: u64,
    /// Batches whose memory is used again.
    spare: Vec<Batch>,
}

impl LinkOutbox {
    /// Appends a frame.
    pub fn push(&mut self, stream: u32, frame: &Frame<'_>) {
        let place = match *frame {
            Frame::Placed { offset, len } => Some(BatchPlace { stream, offset, len }),
            _ => None,
        };
        assert!(HEADER_BYTES + frame.len() <= BATCH_BYTES, "a frame is larger than a batch");
        let fits = self.waiting.back().is_some_and(|batch| {
            batch.bytes.len() + frame.len() <= BATCH_BYTES && (place.is_none() || batch.places.len() < PLACES)
        });
        if !fits {
            let batch = self.fresh();
            self.waiting.push_back(batch);
        }
        let batch = self.waiting.back_mut().expect("one was pushed");
        let before = batch.bytes.len();
        frame.write(stream, &mut batch.bytes);
        debug_assert_eq!(batch.bytes.len(), before + frame.len(), "a frame has the length that it says");
        batch.frames += 1;
        batch.places.extend(place);
    }

    fn fresh(&mut self) -> Batch {
        let mut batch = self.spare.pop().unwrap_or_default();
        batch.clear();
        batch
    }

    /// Whether frames wait that cannot leave now: the sender should gather, and read no more from sockets.
    pub fn blocked(&self) -> bool {
        self.waiting.len() > 1
    }

    /// Whether there is anything to hand out.
    pub fn ready(&self, inbox: &LinkInbox) -> bool {
        self.sent < self.kept.len() || self.may_number() || (inbox.ack_due() && (self.kept.len() as u64) < BATCHES)
    }

    fn may_number(&self) -> bool {
        !self.waiting.is_empty() && (self.kept.len() as u64) < BATCHES - 1
    }

    /// The next batch to send, with its number and acknowledgement; `None` if nothing can leave now.
    pub fn next(&mut self, inbox: &mut LinkInbox) -> Option<&Batch> {
        if self.sent == self.kept.len() {
            let mut batch = if self.may_number() {
                self.waiting.pop_front().expect("one waits")
            } else if inbox.ack_due() && (self.kept.len() as u64) < BATCHES {
                self.fresh()
            } else {
                return None;
            };
            self.last += 1;
            batch.seq = self.last;
            self.kept.push_back(batch);
        }
        self.check();
        let batch = &mut self.kept[self.sent];
        self.sent += 1;
        Header { kind: MessageKind::Batch, seq: batch.seq, ack: inbox.acknowledge() }.write(&mut batch.bytes);
        Some(batch)
    }

    /// The peer has received all up to `ack`.
    ///
    /// # Errors
    /// [`PeerFault::Ack`] if they were not sent.
    pub fn acknowledged(&mut self, ack: u64) -> Result<(), PeerFault> {
        let sent_last = self.last - (self.kept.len() - self.sent) as u64;
        if ack > sent_last {
            return Err(PeerFault::Ack);
        }
        while self.kept.front().is_some_and(|batch| batch.seq <= ack) {
            let batch = self.kept.pop_front().expect("there is one");
            self.sent -= 1;
            if self.spare.len() < BATCHES as usize {
                self.spare.push(batch);
            }
        }
        self.check();
        Ok(())
    }

    /// Batches that are kept have consecutive numbers up to the last one, and places for all are at the peer.
    fn check(&self) {
        debug_assert!(self.sent <= self.kept.len() && self.kept.len() as u64 <= BATCHES);
        debug_assert!(self.kept.back().is_none_or(|batch| batch.seq == self.last));
        debug_assert!(self.kept.front().is_none_or(|batch| batch.seq + self.kept.len() as u64 == self.last + 1));
        debug_assert!(self.waiting.iter().all(|batch| batch.seq == 0), "a batch gets its number when it leaves");
    }

    /// Replaces the windows that frames not yet received name: memory that was registered again has other keys.
    /// `window`: that of a stream with so many bytes, `None` to leave it.
    pub fn move_windows(&mut self, window: impl Fn(u32, u32) -> Option<PeerWindow>) {
        for batch in self.kept.iter_mut().chain(&mut self.waiting) {
            let mut bytes = batch.bytes[..HEADER_BYTES].to_vec();
            let mut frames = FrameReader::new(&batch.bytes[HEADER_BYTES..]);
            // Written by this outbox: all of it can be read.
            while let Ok(Some((id, mut frame))) = frames.next_frame() {
                if let Frame::Open { window: named, .. }
                | Frame::Accept { window: named }
                | Frame::Grow { window: named, .. } = &mut frame
                {
                    *named = window(id, named.len).unwrap_or(*named);
                }
                frame.write(id, &mut bytes);
            }
            assert_eq!(bytes.len(), batch.bytes.len(), "windows have one length");
            batch.bytes = bytes;
        }
    }

    /// A new transport begins, and the peer has received all up to `received`: the rest is handed out again.
    ///
    /// # Errors
    /// [`PeerFault::Ack`] if the peer claims batches that have no number yet.
    pub fn resume(&mut self, received: u64) -> Result<(), PeerFault> {
        if received > self.last || self.kept.front().is_some_and(|batch| received + 1 < batch.seq) {
            return Err(PeerFault::Ack);
        }
        self.sent = self.kept.len();
        self.acknowledged(received)?;
        self.sent = 0;
        Ok(())
    }

    /// Number of batches that have not been handed out for the first time.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of batches that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.kept.len()
    }
}

/// Whether a batch is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Novelty {
    /// The next one: its frames take effect.
    New,
    /// It has taken effect before.
    Repeated,
}

/// The receiving end of a link.
#[derive(Debug, Default)]
pub struct LinkInbox {
    received: u64,
    /// Up to here the peer has an acknowledgement, or will have it by what is being sent.
    acknowledged: u64,
}

impl LinkInbox {
    /// Takes the number of a batch.
    ///
    /// # Errors
    /// [`PeerFault::Gap`] if one before it is missing.
    pub fn take(&mut self, seq: u64) -> Result<Novelty, PeerFault> {
        if seq <= self.received {
            return Ok(Novelty::Repeated);
        }
        if seq != self.received + 1 {
            return Err(PeerFault::Gap { had: self.received, got: seq });
        }
        self.received = seq;
        Ok(Novelty::New)
    }

    /// Number of the last batch received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether the peer needs an acknowledgement of its own.
    pub fn ack_due(&self) -> bool {
        self.received - self.acknowledged >= BATCHES / 4
    }

    fn acknowledge(&mut self) -> u64 {
        debug_assert!(self.acknowledged <= self.received, "acknowledgements only go up");
        self.acknowledged = self.received;
        self.received
    }

    /// What was acknowledged on a transport that broke may be lost: the hello of the next one acknowledges it again.
    /// To be called when that hello is made. What comes after it is not acknowledged by it.
    pub fn resume(&mut self) {
        self.acknowledge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fin(end: u64) -> Frame<'static> {
        Frame::Fin { end }
    }

    #[test]
    fn batches_are_numbered_and_kept_until_acknowledged() {
        let (mut out, mut inbox) = (LinkOutbox::default(), LinkInbox::default());
        assert!(!out.ready(&inbox) && out.next(&mut inbox).is_none());
        out.push(1, &fin(0));
        assert_eq!(out.next(&mut inbox).unwrap().seq, 1);
        assert_eq!(out.unacknowledged(), 1);
        assert_eq!(out.acknowledged(2), Err(PeerFault::Ack));
        out.acknowledged(1).unwrap();
        assert_eq!(out.unacknowledged(), 0);
        out.acknowledged(1).unwrap();
    }

    #[test]
    fn after_a_change_of_transport_the_rest_is_sent_again() {
        let (mut out, mut inbox) = (LinkOutbox::default(), LinkInbox::default());
        for number in 1..=3 {
            out.push(1, &fin(number));
            assert_eq!(out.next(&mut inbox).unwrap().seq, number);
        }
        assert_eq!(out.resume(4), Err(PeerFault::Ack));
        out.resume(1).unwrap();
        assert_eq!(out.next(&mut inbox).unwrap().seq, 2);
        assert_eq!(out.acknowledged(3), Err(PeerFault::Ack), "3 was not sent again yet");
        assert_eq!(out.next(&mut inbox).unwrap().seq, 3);
        assert!(out.next(&mut inbox).is_none());
        out.acknowledged(3).unwrap();
        assert_eq!(out.resume(1), Ok(()), "nothing is kept that could be asked for");
    }

    #[test]
    fn windows_that_were_not_received_can_move() {
        let (mut out, mut inbox) = (LinkOutbox::default(), LinkInbox::default());
        let window = |rkey| PeerWindow { address: 0x1000, rkey, len: 4096 };
        let (client, server) = ("10.0.0.1:5".parse().unwrap(), "[fd00::1]:6".parse().unwrap());
        let open = |rkey| Frame::Open { client, server, window: window(rkey) };
        out.push(1, &open(1));
        out.push(3, &fin(9));
        out.next(&mut inbox).unwrap();
        out.push(2, &Frame::Accept { window: window(1) });
        out.push(5, &open(1));
        out.move_windows(|id, _| (id != 5).then(|| window(7)));
        out.resume(0).unwrap();
        let mut seen = vec![];
        while let Some(batch) = out.next(&mut inbox) {
            let bytes = batch.bytes.clone();
            let mut frames = FrameReader::new(Header::read(&bytes).unwrap().1);
            while let Some((id, frame)) = frames.next_frame().unwrap() {
                assert!(match id {
                    1 => frame == open(7),
                    2 => frame == Frame::Accept { window: window(7) },
                    3 => frame == fin(9),
                    _ => frame == open(1),
                });
                seen.push(id);
            }
        }
        assert_eq!(seen, [1, 3, 2, 5]);
    }

    #[test]
    fn two_ends_with_all_places_used_do_not_wait_for_each_other() {
        let mut ends = [(LinkOutbox::default(), LinkInbox::default()), (LinkOutbox::default(), LinkInbox::default())];
        for (out, _) in &mut ends {
            for number in 0..10_000 {
                out.push(1, &Frame::Placed { offset: number, len: 1 });
            }
        }
        let mut delivered = [0; 2];
        let mut idle = 0;
        while idle < 2 {
            idle += 1;
            // Each end sends all that it may before the other one receives.
            let messages: Vec<Vec<Vec<u8>>> = ends
                .iter_mut()
                .map(|(out, inbox)| std::iter::from_fn(|| out.next(inbox).map(|b| b.bytes.clone())).collect())
                .collect();
            for (to, messages) in [1, 0].into_iter().zip(messages) {
                for message in messages {
                    idle = 0;
                    let (header, frames) = Header::read(&message).unwrap();
                    assert_eq!(ends[to].1.take(header.seq), Ok(Novelty::New));
                    ends[to].0.acknowledged(header.ack).unwrap();
                    let mut reader = crate::FrameReader::new(frames);
                    while let Some((_, frame)) = reader.next_frame().unwrap() {
                        assert_eq!(frame, Frame::Placed { offset: delivered[to], len: 1 });
                        delivered[to] += 1;
                    }
                }
            }
        }
        assert_eq!(delivered, [10_000; 2]);
    }

    #[test]
    fn an_inbox_takes_each_batch_once_and_in_order() {
        let mut inbox = LinkInbox::default();
        assert_eq!(inbox.take(2), Err(PeerFault::Gap { had: 0, got: 2 }));
        assert_eq!(inbox.take(1), Ok(Novelty::New));
        assert_eq!(inbox.take(1), Ok(Novelty::Repeated));
        assert_eq!(inbox.received(), 1);
    }
}
