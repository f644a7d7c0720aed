//! What a peer of `burst proxy` sends: messages with frames for one stream, and hellos.
//!
//! The input is a list of messages, each behind two bytes of length. Whatever comes, nothing panics; a stream never has more
//! undelivered bytes than its window, which may grow, offsets never go back, and what is read writes back as the same bytes. On
//! an encrypted link nothing opens that the peer has not sealed, and what it has sealed opens unless a byte was changed.
#![no_main]

use burst_relay::{
    BatchPlace, ChannelSecret, EXPORT_BYTES, Frame, FrameReader, Header, LinkHello, LinkInbox, LinkOpener, LinkOutbox,
    LinkSealer, MessageKind, Novelty, PeerFault, PeerWindow, SealOffer, SealedDirection, Stream,
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

/// Seals the input's parts, changes a byte as the input says, and opens them.
fn encrypted(input: &[u8]) {
    let secret = ChannelSecret::new(&[7; EXPORT_BYTES]);
    let offer = SealOffer { secret: secret.id(), random: [9; 32] };
    let of = SealedDirection { link: 0, attempt: 1, of_dialer: true };
    let (mut sealer, mut opener) = (LinkSealer::new(&secret, &offer, of), LinkOpener::new(&secret, &offer, of));
    let forged = LinkOpener::new(&secret, &offer, of).open_message(&mut input[..input.len().min(20_000)].to_vec());
    assert_eq!(forged, Err(PeerFault::Unauthentic));
    for part in input.chunks(64) {
        let (change, place) = (part[0], usize::from(part[part.len() - 1]));
        let at = BatchPlace { stream: 1, offset: 5, len: part.len() as u32 };
        let (mut bytes, mut message) = (part.to_vec(), Vec::new());
        sealer.seal_place(at, &mut bytes);
        sealer.seal_message(part, &mut message);
        match change % 8 {
            0 => message[place % (part.len() + 33)] ^= change | 1,
            1 => bytes[place % part.len()] ^= change | 1,
            _ => {}
        }
        let opened = opener.open_message(&mut message).and_then(|()| opener.take_place());
        let opened = opened.and_then(|()| opener.open_place(at, &mut bytes));
        assert_eq!(opened.is_ok(), change % 8 > 1, "a change is found");
        if opened.is_err() {
            return;
        }
        assert!(message == part && bytes == part);
        opener.finish_message();
    }
}

fuzz_target!(|input: &[u8]| {
    encrypted(input);
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
