//! One relayed connection: its socket here, and its stream on a link.
//!
//! A turn delivers what has come from the peer, then reads from the socket. Both stop when the socket, the window or the link's
//! outbox has no room, or after 256 KiB.

use super::credit_rounds::CreditRounds;
use super::shares::ConnCharges;
use super::sockets::{Ends, SOCKET_BUFFER, TURN_BYTES, TcpEnd, close_in_order};
use super::watched_socket::{Received, WatchedSocket};
use crate::pool::{WindowPool, WindowSlot};
use burst_relay::{Frame, LinkOutbox, Outcome, Stream};
use std::io::{ErrorKind, Result};
use std::time::Instant;

/// Bytes of one turn after which they are sent, though the turn goes on.
const FLUSH_BYTES: usize = 64 << 10;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The server's answer to this side's `connect`.
    Connecting,
    /// The peer's answer to OPEN.
    Opening,
    /// Bytes flow.
    Open,
    /// The peer's last frame.
    Ended,
}

/// One connection.
#[derive(Debug)]
pub(super) struct ProxyConn {
    pub(super) phase: Phase,
    pub(super) socket: WatchedSocket,
    pub(super) ends: Ends,
    /// When it began here.
    pub(super) began: Instant,
    /// Index of the place to which the socket belongs.
    pub(super) place: usize,
    pub(super) stream: Stream,
    /// The stream's memory in the link's pool; `None`: it was refused.
    pub(super) slot: Option<WindowSlot>,
    /// What it has of the worker's pools.
    pub(super) charges: Box<ConnCharges>,
    /// Whether the window limits the stream.
    pub(super) rounds: CreditRounds,
    /// It is in the list of those that have a turn.
    pub(super) queued: bool,
    /// It is in the link's list of those that wait for room in the outbox.
    pub(super) waits: bool,
    /// An urgent byte to deliver at an offset.
    urgent: Option<(u64, u8)>,
    /// Bytes delivered when the program last made this side wait.
    blocked_at: u64,
}

/// Why reading has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStop {
    /// So much was read that it should be sent before more is.
    Flush,
    /// The outbox is full.
    Blocked,
    /// Nothing more can be read now.
    Idle,
    /// Others have their turn.
    TurnOver,
}

/// What a turn may still read, and whether it has asked the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTurn {
    budget: usize,
    pub(super) has_asked: bool,
}

impl ReadTurn {
    pub(super) fn new() -> Self {
        Self { budget: TURN_BYTES, has_asked: false }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        (TURN_BYTES - self.budget) as u64
    }
}

/// Whether a program that has taken so many bytes without making this side wait reads as fast as they come: a whole
/// window beside what the socket holds anyway. The kernel doubles the size of a buffer.
fn is_fast(taken: u64, window: u32) -> bool {
    taken >= 2 * SOCKET_BUFFER as u64 + u64::from(window)
}

impl ProxyConn {
    /// A connection of a stream. `now`: when it begins.
    pub(super) fn new((phase, now): (Phase, Instant), end: TcpEnd, stream: Stream, slot: Option<WindowSlot>) -> Self {
        Self {
            phase,
            began: now,
            socket: WatchedSocket::new(end.socket),
            ends: end.ends,
            place: end.place,
            stream,
            slot,
            charges: end.charges,
            rounds: CreditRounds::default(),
            queued: false,
            waits: false,
            urgent: None,
            blocked_at: 0,
        }
    }

    /// Whether the server has accepted this side's connect.
    ///
    /// # Errors
    /// How the stream ends: the server has refused, or cannot be reached.
    pub(super) fn is_connected(&self) -> std::result::Result<bool, Outcome> {
        match self.socket.take_error() {
            Ok(None) => Ok(self.socket.is_writable()),
            Ok(Some(e)) if e.kind() == ErrorKind::ConnectionRefused => Err(Outcome::Refused),
            Ok(Some(_)) | Err(_) => Err(Outcome::Unreachable),
        }
    }

    /// Ends the stream if both directions have ended and everything is delivered at both ends; whether it has done so.
    pub(super) fn finish(&mut self, outbox: &mut LinkOutbox) -> bool {
        let is_complete = self.phase == Phase::Open && self.stream.complete();
        if is_complete {
            self.phase = Phase::Ended;
            self.socket.take().iter().for_each(close_in_order);
            self.charges.sockets = None;
            self.stream.end(Outcome::Clean, outbox);
        }
        is_complete
    }

    /// The peer's urgent byte follows what has been received. A second one replaces the first, as TCP's urgent pointer moves on.
    pub(super) fn set_urgent(&mut self, byte: u8) {
        self.urgent = Some((self.stream.undelivered().1, byte));
    }

    /// Whether the program takes bytes as fast as they come.
    pub(super) fn reads_fast(&self) -> bool {
        let (delivered, _) = self.stream.undelivered();
        debug_assert!(delivered >= self.blocked_at, "counts only go up");
        let taken = delivered - self.blocked_at;
        self.phase == Phase::Open && self.socket.is_writable() && is_fast(taken, self.stream.window())
    }

    /// Sends what has come from the peer to the socket; adds the bytes to `moved`.
    ///
    /// # Errors
    /// The socket has failed.
    pub(super) fn deliver(&mut self, outbox: &mut LinkOutbox, pool: &mut WindowPool, moved: &mut u64) -> Result<()> {
        let Some(slot) = self.slot else { return Ok(()) };
        loop {
            let (from, mut to) = self.stream.undelivered();
            if let Some((at, byte)) = self.urgent {
                to = to.min(at);
                if from == at && self.socket.is_writable() {
                    if self.socket.send_urgent(byte)? {
                        self.urgent = None;
                    }
                    continue;
                }
            }
            if from == to || !self.socket.is_writable() {
                return Ok(());
            }
            let Some(sent) = self.socket.send(pool.received(slot, from, (to - from) as usize))? else { continue };
            *moved += sent as u64;
            self.stream.delivered(sent, outbox);
            if !self.socket.is_writable() {
                self.blocked_at = self.stream.undelivered().0;
            }
        }
    }

    /// Ends the socket's outgoing direction if the peer's has ended and all of it is delivered; whether it has done so.
    ///
    /// # Errors
    /// The socket has failed.
    pub(super) fn deliver_end(&mut self, outbox: &mut LinkOutbox) -> Result<bool> {
        let is_due = self.stream.end_due() && self.urgent.is_none();
        if is_due {
            self.socket.end()?;
            self.stream.delivered_end(outbox);
        }
        Ok(is_due)
    }

    /// Gives the window before back, once its bytes are delivered.
    pub(super) fn retire_window(&mut self, pool: &mut WindowPool) {
        let (delivered, _) = self.stream.undelivered();
        if let Some(part) = self.slot.as_mut().and_then(|slot| slot.window.retire(delivered)) {
            pool.give_part(part);
        }
    }

    /// Reads from the socket into the stream.
    ///
    /// # Errors
    /// The socket has failed.
    pub(super) fn read(
        &mut self,
        outbox: &mut LinkOutbox,
        pool: &mut WindowPool,
        turn: &mut ReadTurn,
    ) -> Result<ReadStop> {
        let (Some(slot), stream, mut unflushed) = (self.slot, &mut self.stream, 0) else { return Ok(ReadStop::Idle) };
        while unflushed < FLUSH_BYTES {
            if !self.socket.is_readable() || stream.has_read_end() {
                return Ok(ReadStop::Idle);
            }
            if outbox.blocked() {
                return Ok(ReadStop::Blocked);
            }
            if turn.budget == 0 {
                return Ok(ReadStop::TurnOver);
            }
            let (from, room) = (stream.sent(), stream.room().min(turn.budget));
            if room == 0 {
                self.rounds.stop(from, stream.credit_every());
                return Ok(ReadStop::Idle);
            }
            turn.has_asked = true;
            if self.socket.is_at_urgent()
                && let Some(byte) = self.socket.receive_urgent()
            {
                outbox.push(stream.id(), &Frame::Urgent { offset: from, byte });
            }
            match self.socket.receive(pool.ring(slot, from, room))? {
                Received::Bytes(got) => {
                    stream.read(pool.ring(slot, from, got), outbox);
                    turn.budget -= got;
                    unflushed += got;
                }
                Received::End => stream.read_end(outbox),
                Received::Nothing => {}
            }
        }
        Ok(ReadStop::Flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_fast_after_more_than_its_socket_holds() {
        let buffered = 2 * SOCKET_BUFFER as u64;
        assert!(!is_fast(0, 4096) && !is_fast(buffered, 4096) && !is_fast(buffered + 4095, 4096));
        assert!(is_fast(buffered + 4096, 4096));
    }
}
