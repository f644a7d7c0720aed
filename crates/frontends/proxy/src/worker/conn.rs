//! One relayed connection: its socket here, its stream to the peer, and its turn.
//!
//! The socket is registered edge-triggered once; flags remember what it is ready for. All sockets reset their
//! connection when they are closed, also by the death of the process, until both directions have ended in order: so
//! that a program never takes a cut stream for a whole one.

use super::credit_rounds::CreditRounds;
use super::syn::HeldFor;
use super::{KIND_CONN, RelayWorker, TURN_BYTES};
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::intercept::steer;
use crate::pool::WindowSlot;
use crate::sys;
use burst_relay::{Frame, Outcome, Stream};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of one turn after which they are sent, though the turn goes on.
const FLUSH_BYTES: usize = 64 << 10;

/// Events for which a socket is watched.
pub(super) const WATCHED: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
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
pub struct ProxyConn {
    pub(super) generation: u32,
    pub(super) link: usize,
    pub(super) phase: Phase,
    pub(super) socket: Option<OwnedFd>,
    pub(super) stream: Stream,
    pub(super) slot: Option<WindowSlot>,
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    /// Index of the place in which the socket lives.
    pub(super) place: usize,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer's FIN or RST has come to the socket: reading on finds it.
    pub(super) hung_up: bool,
    pub(super) queued: bool,
    /// It is in the link's list of streams that wait for room in the outbox.
    pub(super) waits: bool,
    pub(super) urgent_here: bool,
    /// An urgent byte to deliver at an offset.
    pub(super) urgent: Option<(u64, u8)>,
    pub(super) rounds: CreditRounds,
    /// Bytes delivered when the program last made this side wait.
    pub(super) blocked_at: u64,
}

impl RelayWorker {
    /// Registers a connection's socket; the connection has a place in `conns` from now on.
    pub(super) fn add_conn(&mut self, mut conn: ProxyConn) -> usize {
        conn.generation = self.next_generation();
        let place = self.free_conns.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        let token = KIND_CONN << 56 | u64::from(conn.generation) << 32 | place as u64;
        let added = conn.socket.as_ref().map_or(Ok(()), |socket| self.poll.add(socket.as_raw_fd(), WATCHED, token));
        let (link, id) = (conn.link, conn.stream.id());
        self.conns[place] = Some(conn);
        if let Some(link) = &mut self.links[link] {
            link.streams.insert(id, place);
        }
        if let Err(e) = added {
            crate::log(format_args!("a connection cannot be watched: {e}"));
            self.reset(place, Outcome::Reset);
        }
        place
    }

    pub(super) fn queue(&mut self, place: usize) {
        if let Some(conn) = &mut self.conns[place]
            && !conn.queued
        {
            conn.queued = true;
            self.ready.push_back(place);
        }
    }

    pub(super) fn conn_event(&mut self, place: usize, generation: u32, flags: u32) {
        let Some(Some(conn)) = self.conns.get_mut(place) else { return };
        if conn.generation != generation {
            return;
        }
        let has = |flag: i32| flags & flag as u32 != 0;
        if has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI) {
            conn.readable = true;
        }
        if has(libc::EPOLLPRI) {
            conn.urgent_here = true;
        }
        if has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) {
            conn.hung_up = true;
        }
        if has(libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) {
            conn.writable = true;
        }
        match conn.phase {
            Phase::Connecting => return self.connected(place),
            Phase::Opening if has(libc::EPOLLERR | libc::EPOLLHUP) => return self.reset(place, Outcome::Reset),
            Phase::Open if has(libc::EPOLLERR) => {
                let failed = conn.socket.as_ref().is_none_or(|s| !matches!(sys::take_error(s), Ok(None)));
                if failed {
                    return self.reset(place, Outcome::Reset);
                }
            }
            _ => {}
        }
        self.queue(place);
    }

    /// The server has answered this side's connect.
    fn connected(&mut self, place: usize) {
        let Some(conn) = &mut self.conns[place] else { return };
        let error = conn.socket.as_ref().map(sys::take_error);
        match error {
            Some(Ok(None)) if conn.writable => {}
            Some(Ok(None)) => return,
            Some(Ok(Some(e))) if e.kind() == ErrorKind::ConnectionRefused => {
                return self.reset(place, Outcome::Refused);
            }
            Some(Ok(Some(_)) | Err(_)) | None => return self.reset(place, Outcome::Unreachable),
        }
        conn.phase = Phase::Open;
        let (link, id, slot) = (conn.link, conn.stream.id(), conn.slot);
        if let (Some(slot), Some(link)) = (slot, &mut self.links[link]) {
            let window = link.pool.window(slot);
            link.outbox.push(id, &Frame::Accept { window });
        }
        self.mark_dirty(link);
        self.queue(place);
    }

    /// Gives a stream its turn: delivers what has come, then reads.
    pub(super) fn turn(&mut self, place: usize) {
        let Some(conn) = &mut self.conns[place] else { return };
        conn.queued = false;
        if conn.phase != Phase::Open {
            return;
        }
        self.deliver(place);
        self.read(place);
    }

    fn deliver(&mut self, place: usize) {
        let (mut moved, mut credits) = (0u64, false);
        let failed = loop {
            let Some(conn) = &mut self.conns[place] else { return };
            let (Some(socket), Some(slot), Some(link)) = (&conn.socket, conn.slot, &mut self.links[conn.link]) else {
                return;
            };
            let (from, mut to) = conn.stream.undelivered();
            if let Some((at, byte)) = conn.urgent {
                to = to.min(at);
                if from == at && conn.writable {
                    match sys::send(socket, &[byte], libc::MSG_OOB) {
                        Ok(_) => conn.urgent = None,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => conn.writable = false,
                        Err(_) => break true,
                    }
                    continue;
                }
            }
            if from == to || !conn.writable {
                break false;
            }
            let bytes = link.pool.received(slot, from, (to - from) as usize);
            match sys::send(socket, bytes, 0) {
                Ok(sent) => {
                    conn.writable = sent == bytes.len();
                    moved += sent as u64;
                    conn.stream.delivered(sent, &mut link.outbox);
                    if !conn.writable {
                        conn.blocked_at = conn.stream.undelivered().0;
                    }
                    credits = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => conn.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
        };
        self.counters.add(ProxyCounter::BytesDelivered, moved);
        if failed {
            return self.reset(place, Outcome::Reset);
        }
        self.retire_window(place);
        let Some(conn) = &mut self.conns[place] else { return };
        let number = conn.link;
        if conn.stream.end_due() && conn.urgent.is_none() {
            let shut = conn.socket.as_ref().map(|socket| sys::shutdown(socket, Shutdown::Write));
            if !matches!(shut, Some(Ok(()))) {
                return self.reset(place, Outcome::Reset);
            }
            if let Some(link) = &mut self.links[number] {
                conn.stream.delivered_end(&mut link.outbox);
            }
            credits = true;
        }
        if credits {
            self.mark_dirty(number);
        }
        self.finish(place);
    }

    /// Ends the stream if both directions have ended and everything is delivered at both ends.
    pub(super) fn finish(&mut self, place: usize) {
        let Some(conn) = &mut self.conns[place] else { return };
        if !conn.stream.complete() || conn.phase != Phase::Open {
            return;
        }
        if let Some(socket) = conn.socket.take() {
            // What the kernel still holds must reach the program: the close is an ordinary one.
            if let Err(e) = sys::set_reset_on_close(&socket, false) {
                crate::log(format_args!("a socket keeps its reset on close: {e}"));
            }
        }
        conn.phase = Phase::Ended;
        let number = conn.link;
        if let Some(link) = &mut self.links[number] {
            conn.stream.end(Outcome::Clean, &mut link.outbox);
        }
        self.counters.count(ProxyCounter::StreamsEnded);
        self.mark_dirty(number);
        self.forget_if_gone(place);
    }

    fn read(&mut self, place: usize) {
        let mut budget = TURN_BYTES;
        let (mut moved, mut again, mut unflushed) = (0u64, false, 0);
        let failed = loop {
            if unflushed >= FLUSH_BYTES {
                // What was read is on its way while more is read.
                unflushed = 0;
                if let Some(conn) = &self.conns[place] {
                    self.flush(conn.link);
                }
            }
            let Some(conn) = &mut self.conns[place] else { return };
            let (Some(socket), Some(slot), Some(link)) = (&conn.socket, conn.slot, &mut self.links[conn.link]) else {
                return;
            };
            if !conn.readable || conn.stream.has_read_end() {
                break false;
            }
            if link.outbox.blocked() {
                if !conn.waits {
                    conn.waits = true;
                    link.waiting.push_back(place);
                }
                break false;
            }
            if budget == 0 {
                again = true;
                break false;
            }
            let room = conn.stream.room().min(budget);
            if room == 0 {
                conn.rounds.stop(conn.stream.sent(), conn.stream.credit_every());
                break false;
            }
            let from = conn.stream.sent();
            if conn.urgent_here && matches!(sys::at_mark(socket), Ok(true)) {
                conn.urgent_here = false;
                if let Ok(byte) = sys::receive_urgent(socket) {
                    link.outbox.push(conn.stream.id(), &Frame::Urgent { offset: from, byte });
                    moved += 1;
                }
            }
            match sys::receive(socket, link.pool.ring(slot, from, room)) {
                Ok(0) => conn.stream.read_end(&mut link.outbox),
                Ok(got) => {
                    conn.readable = got == room || conn.hung_up || conn.urgent_here;
                    conn.stream.read(link.pool.ring(slot, from, got), &mut link.outbox);
                    budget -= got;
                    unflushed += got;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => conn.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break true,
            }
            moved += 1;
        };
        if failed {
            return self.reset(place, Outcome::Reset);
        }
        if again {
            self.queue(place);
        }
        if moved > 0 {
            self.counters.add(ProxyCounter::BytesRead, (TURN_BYTES - budget) as u64);
            self.after_read(place);
        }
    }

    fn after_read(&mut self, place: usize) {
        let Some(conn) = &self.conns[place] else { return };
        let half_closed = conn.stream.has_read_end() && self.places[conn.place].keep_alive;
        if let (true, Some(socket)) = (half_closed, &conn.socket) {
            steer::keep_half_closed(socket);
        }
        let link = conn.link;
        self.mark_dirty(link);
    }

    /// Ends a connection at once; the program's socket is reset.
    pub(super) fn reset(&mut self, place: usize, outcome: Outcome) {
        let Some(conn) = &mut self.conns[place] else { return };
        conn.phase = Phase::Ended;
        // Closed with the option set when it was made: RST.
        conn.socket = None;
        let number = conn.link;
        let (ends, owner) = ((conn.client, conn.server), HeldFor::Stream(place, conn.generation));
        if let Some(link) = &mut self.links[number]
            && !conn.stream.has_ended()
        {
            conn.stream.end(outcome, &mut link.outbox);
            let name = match outcome {
                Outcome::Refused => ProxyCounter::StreamsRefused,
                Outcome::Unreachable => ProxyCounter::StreamsUnreachable,
                _ => ProxyCounter::StreamsReset,
            };
            self.counters.add(name, 1);
        }
        self.mark_dirty(number);
        let answer = if outcome == Outcome::Unreachable { Verdict::Drop } else { Verdict::Refuse };
        self.end_syn(ends, owner, answer);
        self.forget_if_gone(place);
    }

    /// Frees the memory of a stream that neither side will name again.
    pub(super) fn forget_if_gone(&mut self, place: usize) {
        let Some(conn) = &self.conns[place] else { return };
        if !conn.stream.gone() {
            return;
        }
        self.forget(place);
    }

    pub(super) fn forget(&mut self, place: usize) {
        let Some(conn) = self.conns[place].take() else { return };
        if let Some(link) = &mut self.links[conn.link] {
            link.streams.remove(&conn.stream.id());
            if let Some(slot) = conn.slot {
                link.pool.give(slot);
            }
        }
        self.free_conns.push(place);
    }
}
