//! What a peer of `burst proxy` sends: messages with frames for one stream, and hellos.
//!
//! The input is a list of messages, each behind two bytes of length. Whatever comes, nothing panics; a stream never has more
//! undelivered bytes than its window, which may grow, offsets never go back, and what is read writes back as the same bytes.
#![no_main]

use burst_relay::{
    Frame, FrameReader, Header, LinkHello, LinkInbox, LinkOutbox, MessageKind, Novelty, PeerFault, PeerWindow, Stream,
};
use libfuzzer_sys::fuzz_target;

const WINDOW: u32 = 8192;

struct End {
    stream: Stream,
    ring: u32,
    out: LinkOutbox,
    inbox: LinkInbox,
}

impl End {
    fn message(&mut self, bytes: &[u8]) -> Result<(), PeerFault> {
        let (header, body) = Header::read(bytes)?;
        if header.kind == MessageKind::LinkHello {
            let hello = LinkHello::read(header, body)?;
            let again = hello.to_bytes();
            assert_eq!(again[24..], *body);
            return self.out.resume(hello.received);
        }
        self.out.acknowledged(header.ack)?;
        if self.inbox.take(header.seq)? == Novelty::Repeated {
            return Ok(());
        }
        let mut reader = FrameReader::new(body);
        let mut again = Vec::new();
        while let Some((id, frame)) = reader.next_frame()? {
            frame.write(id, &mut again);
            self.frame(&frame)?;
        }
        assert_eq!(again, body);
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), PeerFault> {
        let (before, received) = self.stream.undelivered();
        match *frame {
            Frame::Open { .. } | Frame::Urgent { .. } | Frame::Probe { .. } => {}
            Frame::Want { len } => self.grow(len),
            Frame::Grow { window, from } => {
                self.stream.on_grow(window, from)?;
                if window.len > self.ring {
                    self.ring = window.len;
                    assert_eq!(self.stream.grow_ring(window.len), self.stream.sent());
                }
            }
            Frame::Accept { window } => self.stream.on_accept(window)?,
            Frame::Data { offset, bytes } => self.stream.on_data(offset, bytes.len())?,
            Frame::Placed { offset, len } => self.stream.on_data(offset, len as usize)?,
            Frame::Credit { delivered } => self.stream.on_credit(delivered)?,
            Frame::Fin { end } => self.stream.on_fin(end)?,
            Frame::End { outcome } => self.stream.on_end(outcome)?,
        }
        let (from, to) = self.stream.undelivered();
        assert!(from == before && to >= received && to - from <= u64::from(self.stream.window()));
        Ok(())
    }

    fn grow(&mut self, len: u32) {
        let larger = len.min(8 * WINDOW);
        if self.stream.can_grow_window() && larger > self.stream.window() {
            let window = PeerWindow { address: 8192, rkey: 2, len: larger };
            let from = self.stream.grow_window(window, &mut self.out);
            assert!(from >= self.stream.undelivered().0);
        }
    }

    /// The owner's part: delivers some of what has come, reads some more.
    fn step(&mut self, most: usize) {
        let (from, to) = self.stream.undelivered();
        self.stream.delivered(((to - from) as usize).min(most), &mut self.out);
        if self.stream.end_due() {
            self.stream.delivered_end(&mut self.out);
        }
        let room = self.stream.room().min(most);
        if room > 0 {
            self.stream.read(&vec![7; room], &mut self.out);
        }
        while self.out.next(&mut self.inbox).is_some() {}
    }
}

fuzz_target!(|input: &[u8]| {
    let window = PeerWindow { address: 4096, rkey: 1, len: WINDOW };
    let stream = Stream::new(1, WINDOW, WINDOW, (input.len() % 2 == 0).then_some(window));
    let mut end = End { stream, ring: WINDOW, out: LinkOutbox::default(), inbox: LinkInbox::default() };
    let mut rest = input;
    while let Some((head, tail)) = rest.split_at_checked(2) {
        let len = usize::from(u16::from_le_bytes([head[0], head[1]]) % 1024).min(tail.len());
        if end.message(&tail[..len]).is_err() {
            return;
        }
        end.step(len * 16);
        rest = &tail[len..];
    }
});
