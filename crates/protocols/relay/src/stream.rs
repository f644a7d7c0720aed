//! One TCP connection between two proxies, as offsets: no bytes, no socket.
//!
//! Outgoing: the owner reads from its socket into a ring, calls [`Stream::read`] or [`Stream::read_end`],
//! and may reuse what the peer has credited. Incoming: the peer's frames are checked ([`Stream::on_data`],
//! [`Stream::on_fin`]), and the owner says what its socket took ([`Stream::delivered`], [`Stream::delivered_end`]).
//! Credits go back after a quarter of the smaller window, and for the FIN at once. An end's ring is at least as long as
//! the window that it announces first, so a sender never waits for a credit that is not due.
//!
//! A window can grow. The receiver names larger memory and the offset from which on it counts ([`Stream::grow_window`]):
//! the first that the sender cannot have reached, because the credits given so far end there. So both ends know of each
//! byte where it belongs, also after a change of transport, and nothing is copied. The window before is needed until the
//! bytes below that offset are delivered; once they are credited, the next growth may begin. The sender's ring grows in the same
//! way ([`Stream::grow_ring`]), for bytes that are not read from the socket yet.

use crate::batch::LinkOutbox;
use crate::frame::{Frame, Outcome, PeerFault, PeerWindow};

/// Data of at most so many bytes travels inside a batch: a WRITE of its own would cost more than the copy.
pub const INLINE_BYTES: usize = 2048;

/// The offsets and states of one stream.
#[derive(Clone, Debug)]
pub struct Stream {
    id: u32,
    /// Memory of the peer for outgoing bytes; `None` until the peer has accepted.
    peer: Option<PeerWindow>,
    /// The one before, for bytes below the offset; until those are credited.
    peer_before: Option<(PeerWindow, u64)>,
    ring: u32,
    sent: u64,
    credited: u64,
    sent_end: bool,
    window: u32,
    /// Offset from which on the window counts.
    window_from: u64,
    /// Bytes after which a credit is due: of the first windows, because the peer's ring may stay as it is.
    credit_every: u32,
    received: u64,
    delivered: u64,
    /// The last credit sent to the peer.
    credit_given: u64,
    received_end: bool,
    delivered_end: bool,
    last_sent: Option<Outcome>,
    last_received: Option<Outcome>,
}

impl Stream {
    /// A stream whose outgoing ring has `ring` bytes and whose incoming window has `window`. `peer`: where the peer
    /// wants its bytes, if it has said so.
    pub fn new(id: u32, ring: u32, window: u32, peer: Option<PeerWindow>) -> Self {
        Self {
            id,
            peer,
            peer_before: None,
            ring,
            sent: 0,
            credited: 0,
            sent_end: false,
            window,
            window_from: 0,
            credit_every: peer.map_or(window, |peer| window.min(peer.len)) / 4,
            received: 0,
            delivered: 0,
            credit_given: 0,
            received_end: false,
            delivered_end: false,
            last_sent: None,
            last_received: None,
        }
    }

    /// Its id on the link.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The peer's window, once known; for bytes that come next.
    pub fn peer_window(&self) -> Option<PeerWindow> {
        self.peer
    }

    /// The peer's window into which the byte at an offset belongs.
    pub fn peer_window_at(&self, offset: u64) -> Option<PeerWindow> {
        match self.peer_before {
            Some((window, from)) if offset < from => Some(window),
            _ => self.peer,
        }
    }

    /// The peer's window has moved to other memory of the same length. Other lengths are left out: a hello may be older
    /// than what has come since over the new transport, or name a window whose frame is still to come.
    pub fn move_peer_window(&mut self, to: PeerWindow) {
        let before = self.peer_before.as_mut().map(|(window, _)| window);
        let same = self.peer.as_mut().into_iter().chain(before).find(|window| window.len == to.len);
        if let Some(window) = same {
            *window = to;
        }
    }

    /// The peer has accepted.
    ///
    /// # Errors
    /// [`PeerFault::Turn`] if it had before.
    pub fn on_accept(&mut self, window: PeerWindow) -> Result<(), PeerFault> {
        if self.peer.is_some() || self.last_received.is_some() {
            return Err(PeerFault::Turn(self.id));
        }
        self.peer = Some(window);
        self.credit_every = self.window.min(window.len) / 4;
        Ok(())
    }

    /// The peer's window is larger from an offset on.
    ///
    /// # Errors
    /// [`PeerFault::Turn`] before the peer has accepted, while an earlier growth is under way, and if the window is not
    /// larger; [`PeerFault::Offset`] if bytes from that offset on were sent already, or could not be sent before it.
    pub fn on_grow(&mut self, window: PeerWindow, from: u64) -> Result<(), PeerFault> {
        let Some(known) = self.peer else { return Err(PeerFault::Turn(self.id)) };
        if self.peer_before.is_some() || self.last_received.is_some() || window.len <= known.len {
            return Err(PeerFault::Turn(self.id));
        }
        if from < self.sent || from > self.credited + u64::from(known.len) {
            return Err(PeerFault::Offset(self.id));
        }
        self.peer_before = Some((known, from));
        self.peer = Some(window);
        self.retire();
        Ok(())
    }

    /// What holds between two calls.
    fn check(&self) {
        debug_assert!(self.credited <= self.sent + u64::from(self.sent_end), "credit is for what was sent");
        debug_assert!(
            self.sent - self.credited.min(self.sent) <= self.ring.into(),
            "the ring holds what has no credit"
        );
        debug_assert!(
            self.delivered <= self.received && self.credit_given <= self.delivered + u64::from(self.delivered_end)
        );
        debug_assert!(self.received - self.delivered <= self.window.into(), "the window holds what is not delivered");
        debug_assert!(self.peer_before.is_none_or(|(_, from)| from > self.credited), "the window before is needed");
        debug_assert!(!self.delivered_end || (self.received_end && self.delivered == self.received));
    }

    /// Forgets the peer's window before, once all of its bytes are credited.
    fn retire(&mut self) {
        self.peer_before.take_if(|(_, from)| *from <= self.credited);
    }

    /// The ring has `len` bytes from the returned offset on. Bytes below it stay where they are until they are credited.
    pub fn grow_ring(&mut self, len: u32) -> u64 {
        assert!(len > self.ring, "a ring only grows");
        self.ring = len;
        self.sent
    }

    /// Whether the window can grow now: the last growth is complete, as the peer knows by a credit, and bytes may still
    /// come.
    pub fn can_grow_window(&self) -> bool {
        let open = !self.received_end && self.last_sent.is_none() && self.last_received.is_none();
        open && self.peer.is_some() && self.credit_given >= self.window_from
    }

    /// Announces a larger window to the peer; returns the offset from which on it counts. Bytes below it stay in the window
    /// before until they are delivered.
    pub fn grow_window(&mut self, window: PeerWindow, out: &mut LinkOutbox) -> u64 {
        assert!(self.can_grow_window() && window.len > self.window, "a window grows when it can");
        self.window_from = self.credit_given + u64::from(self.window);
        self.window = window.len;
        out.push(self.id, &Frame::Grow { window, from: self.window_from });
        self.window_from
    }

    /// Bytes of the window for what comes.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Bytes of the ring for what is read next.
    pub fn ring(&self) -> u32 {
        self.ring
    }

    /// Most bytes that may be on their way to the peer's socket.
    pub fn flight_max(&self) -> u32 {
        self.peer.map_or(0, |peer| self.ring.min(peer.len))
    }

    /// Bytes after which the peer has to give credit.
    pub fn credit_every(&self) -> u32 {
        self.credit_every
    }

    /// Offset of the next byte to read from the socket.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// First offset whose bytes the ring must still hold.
    pub fn credited(&self) -> u64 {
        self.credited
    }

    /// Bytes that may be read from the socket now, without wrapping in the ring or in the peer's window.
    pub fn room(&self) -> usize {
        let Some(peer) = self.peer_window_at(self.sent) else { return 0 };
        if self.sent_end || self.last_sent.is_some() {
            return 0;
        }
        let left = |len: u32| u64::from(len) - self.sent % u64::from(len);
        let flight = u64::from(self.flight_max()) - (self.sent - self.credited);
        let window = match self.peer_before {
            Some((_, from)) if self.sent < from => left(peer.len).min(from - self.sent),
            _ => left(peer.len),
        };
        flight.min(left(self.ring)).min(window) as usize
    }

    /// `bytes` were read from the socket into the ring at `sent()`; at most `room()`.
    pub fn read(&mut self, bytes: &[u8], out: &mut LinkOutbox) {
        assert!(bytes.len() <= self.room(), "more was read than there is room");
        let offset = self.sent;
        self.sent += bytes.len() as u64;
        self.check();
        let registered = self.peer_window_at(offset).is_some_and(|window| window.address != 0);
        if registered && bytes.len() > INLINE_BYTES {
            out.push(self.id, &Frame::Placed { offset, len: bytes.len() as u32 });
            return;
        }
        for (part, number) in bytes.chunks(INLINE_BYTES).zip(0..) {
            out.push(self.id, &Frame::Data { offset: offset + number * INLINE_BYTES as u64, bytes: part });
        }
    }

    /// The program has ended its direction.
    pub fn read_end(&mut self, out: &mut LinkOutbox) {
        assert!(!self.sent_end, "a direction ends once");
        self.sent_end = true;
        out.push(self.id, &Frame::Fin { end: self.sent });
    }

    /// Whether the program's end was read.
    pub fn has_read_end(&self) -> bool {
        self.sent_end
    }

    /// Whether the peer's direction has ended.
    pub fn has_received_end(&self) -> bool {
        self.received_end
    }

    /// The peer's socket has taken `delivered` bytes (one more with the FIN).
    ///
    /// # Errors
    /// [`PeerFault::Ack`] if that is less than before or more than was sent.
    pub fn on_credit(&mut self, delivered: u64) -> Result<(), PeerFault> {
        if delivered < self.credited || delivered > self.sent + u64::from(self.sent_end) {
            return Err(PeerFault::Ack);
        }
        self.credited = delivered;
        self.retire();
        self.check();
        Ok(())
    }

    /// Bytes at `offset` have come.
    ///
    /// # Errors
    /// [`PeerFault::Offset`], [`PeerFault::Overrun`], or [`PeerFault::Turn`] after the peer's FIN.
    pub fn on_data(&mut self, offset: u64, len: usize) -> Result<(), PeerFault> {
        if self.received_end || self.last_received.is_some() {
            return Err(PeerFault::Turn(self.id));
        }
        if offset != self.received {
            return Err(PeerFault::Offset(self.id));
        }
        if self.received - self.delivered + len as u64 > self.window.into() {
            return Err(PeerFault::Overrun(self.id));
        }
        self.received += len as u64;
        self.check();
        Ok(())
    }

    /// The peer's direction has ended.
    ///
    /// # Errors
    /// [`PeerFault::Offset`] if bytes are missing, [`PeerFault::Turn`] if it had ended before.
    pub fn on_fin(&mut self, end: u64) -> Result<(), PeerFault> {
        if self.received_end || self.last_received.is_some() {
            return Err(PeerFault::Turn(self.id));
        }
        if end != self.received {
            return Err(PeerFault::Offset(self.id));
        }
        self.received_end = true;
        Ok(())
    }

    /// Offsets of the bytes that wait for the socket: from, to.
    pub fn undelivered(&self) -> (u64, u64) {
        (self.delivered, self.received)
    }

    /// Whether the socket's outgoing direction has to end now.
    pub fn end_due(&self) -> bool {
        self.received_end && self.delivered == self.received && !self.delivered_end
    }

    /// The socket took `count` bytes.
    pub fn delivered(&mut self, count: usize, out: &mut LinkOutbox) {
        self.delivered += count as u64;
        assert!(self.delivered <= self.received, "more was delivered than has come");
        if !self.received_end && self.delivered - self.credit_given >= u64::from(self.credit_every) {
            self.give_credit(self.delivered, out);
        }
    }

    /// The socket took the peer's end.
    pub fn delivered_end(&mut self, out: &mut LinkOutbox) {
        assert!(self.end_due(), "the end comes after all bytes");
        self.delivered_end = true;
        self.give_credit(self.delivered + 1, out);
    }

    fn give_credit(&mut self, delivered: u64, out: &mut LinkOutbox) {
        debug_assert!(delivered >= self.credit_given, "credit only goes up");
        self.credit_given = delivered;
        if self.last_sent.is_none() {
            out.push(self.id, &Frame::Credit { delivered });
        }
    }

    /// Whether both directions have ended and all is delivered at both ends.
    pub fn complete(&self) -> bool {
        self.delivered_end && self.sent_end && self.credited == self.sent + 1
    }

    /// Sends the last frame of this side, if it was not sent before.
    pub fn end(&mut self, outcome: Outcome, out: &mut LinkOutbox) {
        if self.last_sent.is_none() {
            self.last_sent = Some(outcome);
            out.push(self.id, &Frame::End { outcome });
        }
    }

    /// The peer's last frame.
    ///
    /// # Errors
    /// [`PeerFault::Turn`] if it came before, or says that a stream is complete that is not.
    pub fn on_end(&mut self, outcome: Outcome) -> Result<(), PeerFault> {
        let early = outcome == Outcome::Clean && !self.complete() && self.last_sent.is_none();
        if self.last_received.is_some() || early {
            return Err(PeerFault::Turn(self.id));
        }
        self.last_received = Some(outcome);
        Ok(())
    }

    /// Whether this side has sent its last frame: frames that still come are ignored.
    pub fn has_ended(&self) -> bool {
        self.last_sent.is_some()
    }

    /// Whether neither side will name the stream again: its memory is free.
    pub fn gone(&self) -> bool {
        self.last_sent.is_some() && self.last_received.is_some()
    }
}
