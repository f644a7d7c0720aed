//! One relayed connection: its socket here, its stream to the peer, and its turn.
//!
//! The socket is registered edge-triggered once; flags remember what it is ready for. All sockets reset their
//! connection when they are closed, also by the death of the process, until both directions have ended in order: so
//! that a program never takes a cut stream for a whole one.

use super::RelayWorker;
use super::credit_rounds::CreditRounds;
use super::held_syns::SynOwner;
use super::held_syns::{ClientEnd, Ends, TakenConnection};
use super::sockets::{TURN_BYTES, close_in_order};
use super::table::TableKey;
use super::token::PollToken;
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::intercept::steer;
use crate::message::Report;
use crate::pool::WindowSlot;
use crate::sys;
use burst_base::Reason;
use burst_relay::{Frame, Outcome, Stream};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Bytes of one turn after which they are sent, though the turn goes on.
const FLUSH_BYTES: usize = 64 << 10;

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
    pub(super) fn add_conn(&mut self, conn: ProxyConn) -> TableKey {
        let (link, id) = (conn.link, conn.stream.id());
        let place = self.conns.insert(conn);
        if let Some(link) = &mut self.links[link] {
            link.streams.insert(id, place);
        }
        let socket = self.conns.get(place).and_then(|conn| conn.socket.as_ref());
        let watched = socket.map_or(Ok(()), |socket| self.env.watch(socket, PollToken::Conn(place)));
        if watched.is_err() {
            self.reset(place, Outcome::Reset);
        }
        place
    }

    /// Opens a stream of a link for a taken connection.
    pub(super) fn open(&mut self, link: usize, slot: WindowSlot, taken: TakenConnection) {
        let Some(state) = &mut self.links[link] else { return };
        let id = state.next_id;
        let Some(next) = id.checked_add(2) else {
            // The links begin anew.
            let peer = state.peer;
            state.pool.give(slot);
            self.env.report(Report::PeerFault(peer, "the stream ids of a link are used up".into()));
            return self.pairs.relay(&mut self.env, taken, Reason::ProxyNoLink);
        };
        let TakenConnection { place: at, end, ends: (client, server) } = taken;
        let (socket, is_held) = end.into_socket();
        state.next_id = next;
        let (ring, window) = (state.pool.ring_len(), state.pool.window(slot));
        state.outbox.push(id, &Frame::Open { client, server, window });
        let place = self.add_conn(ProxyConn {
            link,
            phase: Phase::Opening,
            socket,
            stream: Stream::new(id, ring, ring, None),
            slot: Some(slot),
            client,
            server,
            place: at,
            readable: false,
            writable: false,
            hung_up: false,
            queued: false,
            waits: false,
            urgent_here: false,
            urgent: None,
            rounds: CreditRounds::default(),
            blocked_at: 0,
        });
        if is_held {
            self.env.syns.set_owner((client, server), SynOwner::Stream(place));
        }
        let deadline = Instant::now() + Duration::from_millis(self.env.config.config.open_ms);
        self.opening.push_back((deadline, place));
        self.mark_dirty(link);
        self.env.timer.start();
    }

    /// Streams whose peer does not answer go by TCP.
    pub(super) fn give_up_opening(&mut self, now: Instant) {
        while let Some((deadline, place)) = self.opening.front().copied() {
            let waits = self.conns.get(place).is_some_and(|conn| conn.phase == Phase::Opening);
            if waits && deadline > now {
                break;
            }
            self.opening.pop_front();
            if waits {
                self.go_by_tcp(place, Outcome::Cancelled, Reason::ProxyPeerSilent);
            }
        }
        if !self.opening.is_empty() {
            self.env.timer.start();
        }
    }

    /// A stream that the peer does not carry goes on by TCP: nothing was sent yet.
    pub(super) fn go_by_tcp(&mut self, place: TableKey, outcome: Outcome, why: Reason) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        let (socket, at, ends) = (conn.socket.take(), conn.place, (conn.client, conn.server));
        let end = self.release_end(socket, ends, place);
        self.reset(place, outcome);
        if let Some(end) = end {
            self.pairs.relay(&mut self.env, TakenConnection { place: at, end, ends }, why);
        }
    }

    /// The program's end of a stream that goes on by TCP: its socket, or its SYN, which is no longer the stream's.
    pub(super) fn release_end(&mut self, socket: Option<OwnedFd>, ends: Ends, place: TableKey) -> Option<ClientEnd> {
        if let Some(socket) = socket {
            // The old registration would report events under the old token; a duplicate is another entry of epoll.
            return socket.try_clone().ok().map(ClientEnd::Accepted);
        }
        if !self.env.syns.is_held(ends, SynOwner::Stream(place)) {
            return None;
        }
        self.env.syns.set_owner(ends, SynOwner::None);
        Some(ClientEnd::Held)
    }

    /// Joins an accepted socket to the stream that its SYN has opened.
    pub(super) fn join_stream(&mut self, place: TableKey, socket: OwnedFd) {
        let Some(conn) = self.conns.get_mut(place).filter(|conn| conn.phase == Phase::Open) else { return };
        let watched = self.env.watch(&socket, PollToken::Conn(place));
        conn.socket = Some(socket);
        if watched.is_err() {
            return self.reset(place, Outcome::Reset);
        }
        self.queue(place);
    }

    pub(super) fn queue(&mut self, place: TableKey) {
        if let Some(conn) = self.conns.get_mut(place)
            && !conn.queued
        {
            conn.queued = true;
            self.ready.push_back(place);
        }
    }

    pub(super) fn conn_event(&mut self, place: TableKey, flags: u32) {
        let Some(conn) = self.conns.get_mut(place) else { return };
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
    fn connected(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get_mut(place) else { return };
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
    pub(super) fn turn(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        conn.queued = false;
        if conn.phase != Phase::Open {
            return;
        }
        self.deliver(place);
        self.read(place);
    }

    fn deliver(&mut self, place: TableKey) {
        let (mut moved, mut credits) = (0u64, false);
        let failed = loop {
            let Some(conn) = self.conns.get_mut(place) else { return };
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
        self.env.counters.add(ProxyCounter::BytesDelivered, moved);
        if failed {
            return self.reset(place, Outcome::Reset);
        }
        self.retire_window(place);
        let Some(conn) = self.conns.get_mut(place) else { return };
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
    pub(super) fn finish(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        if !conn.stream.complete() || conn.phase != Phase::Open {
            return;
        }
        if let Some(socket) = conn.socket.take() {
            close_in_order(&socket);
        }
        conn.phase = Phase::Ended;
        let number = conn.link;
        if let Some(link) = &mut self.links[number] {
            conn.stream.end(Outcome::Clean, &mut link.outbox);
        }
        self.env.count(ProxyCounter::StreamsEnded);
        self.mark_dirty(number);
        self.forget_if_gone(place);
    }

    fn read(&mut self, place: TableKey) {
        let mut budget = TURN_BYTES;
        let (mut moved, mut again, mut unflushed) = (0u64, false, 0);
        let failed = loop {
            if unflushed >= FLUSH_BYTES {
                // What was read is on its way while more is read.
                unflushed = 0;
                if let Some(conn) = self.conns.get(place) {
                    self.flush(conn.link);
                }
            }
            let Some(conn) = self.conns.get_mut(place) else { return };
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
            self.env.counters.add(ProxyCounter::BytesRead, (TURN_BYTES - budget) as u64);
            self.after_read(place);
        }
    }

    fn after_read(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get(place) else { return };
        let half_closed = conn.stream.has_read_end() && self.env.places.get(conn.place).keep_alive;
        if let (true, Some(socket)) = (half_closed, &conn.socket) {
            steer::keep_half_closed(socket);
        }
        let link = conn.link;
        self.mark_dirty(link);
    }

    /// Ends a connection at once; the program's socket is reset.
    pub(super) fn reset(&mut self, place: TableKey, outcome: Outcome) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        conn.phase = Phase::Ended;
        // Closed with the option set when it was made: RST.
        conn.socket = None;
        let number = conn.link;
        let (ends, owner) = ((conn.client, conn.server), SynOwner::Stream(place));
        if let Some(link) = &mut self.links[number]
            && !conn.stream.has_ended()
        {
            conn.stream.end(outcome, &mut link.outbox);
            let name = match outcome {
                Outcome::Refused => ProxyCounter::StreamsRefused,
                Outcome::Unreachable => ProxyCounter::StreamsUnreachable,
                _ => ProxyCounter::StreamsReset,
            };
            self.env.counters.add(name, 1);
        }
        self.mark_dirty(number);
        let answer = if outcome == Outcome::Unreachable { Verdict::Drop } else { Verdict::Refuse };
        self.env.end_syn(ends, owner, answer);
        self.forget_if_gone(place);
    }

    /// Frees the memory of a stream that neither side will name again.
    pub(super) fn forget_if_gone(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get(place) else { return };
        if !conn.stream.gone() {
            return;
        }
        self.forget(place);
    }

    pub(super) fn forget(&mut self, place: TableKey) {
        let Some(conn) = self.conns.remove(place) else { return };
        if let Some(link) = &mut self.links[conn.link] {
            link.streams.remove(&conn.stream.id());
            if let Some(slot) = conn.slot {
                link.pool.give(slot);
            }
        }
    }
}
