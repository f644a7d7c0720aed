//! The streams of all links: how they begin and end, and which of them have a turn.
//!
//! What a peer's frames do to them is in [`frames`].

mod frames;

use super::CONNS_AT_ONCE;
use super::conn::{Phase, ProxyConn, ReadStop, ReadTurn};
use super::decisions::reason;
use super::env::WorkerEnv;
use super::held_syns::SynOwner;
use super::links::Links;
use super::shares::ConnCharges;
use super::snapshot::StreamView;
use super::sockets::TcpEnd;
use super::stream_record::{RecordedLink, RecordedStream, StreamFault};
use super::token::{PollToken, StreamKey};
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::intercept::steer;
use crate::log::log_connection;
use crate::message::Report;
use crate::sys::EventFlags;
use burst_base::Reason;
use burst_relay::{Frame, Outcome, Stream};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A link that has ended with its peer.
#[derive(Debug)]
pub(super) struct EndedLink {
    /// As it was.
    pub(super) link: RecordedLink,
    /// Whether this side dialled it.
    pub(super) dials: bool,
    /// What happened to the peer.
    pub(super) why: Arc<str>,
}

/// A connection that has to go by TCP, and why.
pub(super) type ByTcp = (TcpEnd, Reason);

/// The streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) links: Links,
    /// Connections that have a turn.
    ready: VecDeque<StreamKey>,
    /// Connections whose peer has not answered, with their deadlines, oldest first.
    opening: VecDeque<(Instant, StreamKey)>,
    /// Connects to servers that are tried again.
    postponed: VecDeque<PostponedConnect>,
}

/// A connect that is tried again: its addresses and ports are those of a connection that is not closed yet.
#[derive(Debug)]
struct PostponedConnect {
    key: StreamKey,
    /// When it is tried again.
    next: Instant,
    /// Time between the last try and the next.
    wait: Duration,
    /// When the stream is refused.
    until: Instant,
}

impl Streams {
    /// Adds a connection to a link.
    fn add(&mut self, env: &mut WorkerEnv, at: usize, conn: ProxyConn) -> Option<StreamKey> {
        let link = self.links.get_mut(at)?;
        let key = StreamKey { link: at, key: link.add(env, conn) };
        let socket = link.conns.get(key.key).and_then(|conn| conn.socket.get());
        if let Some(Err(e)) = socket.map(|socket| env.watch(socket, PollToken::Stream(key))) {
            self.reset(env, key, Outcome::Reset, e.into());
        }
        Some(key)
    }

    /// Opens a stream of a link for a taken connection.
    ///
    /// # Errors
    /// There is no memory or no number for it, or its user has all the memory that it may have.
    pub(super) fn open(&mut self, env: &mut WorkerEnv, at: usize, mut taken: TcpEnd) -> Result<(), ByTcp> {
        let bytes = self.links.get(at).map_or(0, |link| link.pool.first_bytes());
        if !env.shares.memory(&mut taken.charges, bytes) {
            return Err((taken, Reason::ProxyUserShare));
        }
        let Some(slot) = self.links.take_slot(env, at) else { return Err((taken, Reason::ProxyNoMemory)) };
        let Some(link) = self.links.get_mut(at) else { return Err((taken, Reason::ProxyNoLink)) };
        let Some(id) = link.take_id() else {
            // The control thread ends the session with the peer: its links start again, with ids from 1.
            link.pool.give(slot);
            env.report(Report::PeerFault(link.peer, "the stream ids of a link are used up".into()));
            return Err((taken, Reason::ProxyNoLink));
        };
        let (ends, is_held) = (taken.ends, taken.socket.is_none());
        let (ring, window) = (link.pool.ring_len(), link.pool.window(slot));
        link.outbox.push(id, &Frame::Open { client: ends.0, server: ends.1, window });
        let (number, by) = (link.number, link.transport.carrier());
        log_connection(format_args!("{} to {}: stream {id} of link {number}, by {by}", ends.0, ends.1));
        let stream = Stream::new(id, ring, ring, None);
        let conn = ProxyConn::new((Phase::Opening, env.timer.now()), taken, stream, Some(slot));
        let Some(key) = self.add(env, at, conn) else { return Ok(()) };
        if is_held {
            env.syns.set_owner(ends, SynOwner::Stream(key));
        }
        self.opening.push_back((env.timer.now() + Duration::from_millis(env.config.config.open_ms), key));
        self.links.mark_dirty(at);
        env.timer.start();
        Ok(())
    }

    /// The next connection whose peer has not answered in time; it has to go by TCP. Each connection that it looks at takes one
    /// of `steps`; when none is left, the timer expires at once.
    pub(super) fn take_unanswered(&mut self, env: &mut WorkerEnv, now: Instant, steps: &mut usize) -> Option<ByTcp> {
        while *steps > 0
            && let Some((deadline, key)) = self.opening.front().copied()
        {
            let waits = self.links.conn(key).is_some_and(|conn| conn.phase == Phase::Opening);
            if waits && deadline > now {
                break;
            }
            self.opening.pop_front();
            *steps -= 1;
            if waits && let Some(taken) = self.release(env, key, Outcome::Cancelled) {
                return Some((taken, Reason::ProxyPeerSilent));
            }
        }
        match (self.opening.is_empty(), *steps) {
            (true, _) => {}
            (false, 0) => env.timer.start_by(now),
            (false, _) => env.timer.start(),
        }
        None
    }

    /// Ends a stream that the peer does not carry: nothing was sent yet. Returns its connection, which has to go by TCP.
    fn release(&mut self, env: &mut WorkerEnv, key: StreamKey, outcome: Outcome) -> Option<TcpEnd> {
        let (conn, ..) = self.links.conn_mut(key)?;
        let released = release_end(env, conn, key);
        if released.is_none() {
            self.note_failure(env, key, Reason::ProxyReset.into());
        }
        self.end_at_once(env, key, outcome);
        released
    }

    /// Ends a connection whose link has ended. Returns it if it has to go by TCP: the peer had not answered.
    pub(super) fn end_with_link(
        env: &mut WorkerEnv,
        key: StreamKey,
        mut conn: ProxyConn,
        link: &EndedLink,
    ) -> Option<TcpEnd> {
        let released = match conn.phase {
            Phase::Opening => release_end(env, &mut conn, key),
            Phase::Connecting | Phase::Open => {
                let fault = StreamFault::new(Reason::ProxyPeerLost, link.why.clone());
                let lasted = env.timer.now() - conn.began;
                let moved = RecordedStream::of(&conn, link.link.clone(), lasted, link.dials);
                env.note_failure(conn.ends, fault, Some(moved));
                None
            }
            Phase::Ended => None,
        };
        env.end_syn(conn.ends, SynOwner::Stream(key), Verdict::Refuse);
        released
    }

    /// Joins an accepted socket to the stream that its SYN has opened.
    pub(super) fn join(&mut self, env: &mut WorkerEnv, key: StreamKey, socket: OwnedFd) {
        let Some((conn, ..)) = self.links.conn_mut(key).filter(|(conn, ..)| conn.phase == Phase::Open) else { return };
        let watched = env.watch(&socket, PollToken::Stream(key));
        conn.socket.set(socket);
        if let Err(e) = watched {
            return self.reset(env, key, Outcome::Reset, e.into());
        }
        self.queue(key);
    }

    /// The connection has a turn in the next pass.
    fn queue(&mut self, key: StreamKey) {
        if let Some((conn, ..)) = self.links.conn_mut(key)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.ready.push_back(key);
        }
    }

    /// Connections that have waited for room in a link's outbox have a turn, if it has room now: [`CONNS_AT_ONCE`] at most, and
    /// the others in the next pass. Returns how many were looked at.
    pub(super) fn wake(&mut self) -> usize {
        let mut looked = 0;
        while looked < CONNS_AT_ONCE
            && let Some(key) = self.links.take_unblocked()
        {
            looked += 1;
            if let Some((conn, ..)) = self.links.conn_mut(key) {
                conn.waits = false;
                self.queue(key);
            }
        }
        looked
    }

    /// Whether a connection has a turn, or may have one.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.links.unblocked.is_empty()
    }

    /// Takes an event of a socket.
    pub(super) fn on_event(&mut self, env: &mut WorkerEnv, key: StreamKey, flags: EventFlags) {
        let Some((conn, ..)) = self.links.conn_mut(key) else { return };
        conn.socket.on_event(flags);
        let fault = match conn.phase {
            Phase::Connecting => return self.on_connected(env, key),
            Phase::Opening if flags.intersects(EventFlags::ERR | EventFlags::HUP) => Some(Reason::ProxyReset.into()),
            Phase::Open if flags.contains(EventFlags::ERR) => {
                conn.socket.take_error().unwrap_or_else(Some).map(StreamFault::from)
            }
            Phase::Opening | Phase::Open | Phase::Ended => None,
        };
        match fault {
            Some(fault) => self.reset(env, key, Outcome::Reset, fault),
            None => self.queue(key),
        }
    }

    /// The server may have answered this side's connect.
    fn on_connected(&mut self, env: &mut WorkerEnv, key: StreamKey) {
        let Some((conn, outbox, pool)) = self.links.conn_mut(key) else { return };
        match conn.is_connected() {
            Ok(false) => return,
            Err(outcome) => return self.reset(env, key, outcome, reason(outcome).into()),
            Ok(true) => conn.phase = Phase::Open,
        }
        if let Some(slot) = conn.slot {
            outbox.push(conn.stream.id(), &Frame::Accept { window: pool.window(slot) });
        }
        self.links.mark_dirty(key.link);
        self.queue(key);
    }

    /// Gives the connections that were ready a turn, at most [`CONNS_AT_ONCE`] of them.
    pub(super) fn turns(&mut self, env: &mut WorkerEnv) {
        for _ in 0..self.ready.len().min(CONNS_AT_ONCE) {
            let Some(key) = self.ready.pop_front() else { return };
            let Some((conn, ..)) = self.links.conn_mut(key) else { continue };
            conn.queued = false;
            if conn.phase == Phase::Open && conn.socket.get().is_some() {
                self.deliver(env, key);
                self.read(env, key);
            }
            // A full batch need not wait for the rest of the list.
            if self.links.get(key.link).is_some_and(|link| link.outbox.blocked()) {
                self.links.flush(env, key.link);
            }
        }
    }

    fn deliver(&mut self, env: &mut WorkerEnv, key: StreamKey) {
        let Some((conn, outbox, pool)) = self.links.conn_mut(key) else { return };
        let mut moved = 0;
        let delivered = conn.deliver(outbox, pool, &mut moved);
        env.counters.add(ProxyCounter::BytesDelivered, moved);
        let ended = delivered.and_then(|()| {
            conn.retire_window(pool);
            conn.deliver_end(outbox)
        });
        match ended {
            Err(e) => return self.reset(env, key, Outcome::Reset, e.into()),
            Ok(has_ended) if has_ended || moved > 0 => self.links.mark_dirty(key.link),
            Ok(_) => {}
        }
        self.finish(env, key);
    }

    /// Ends a stream of which nothing is left to do.
    fn finish(&mut self, env: &mut WorkerEnv, key: StreamKey) {
        let Some((conn, outbox, _)) = self.links.conn_mut(key) else { return };
        if conn.finish(outbox) {
            let ((client, server), sent, received) = (conn.ends, conn.stream.sent(), conn.stream.undelivered().0);
            log_connection(format_args!("{client} to {server}: ended; {sent} bytes read here, {received} delivered"));
            env.count(ProxyCounter::StreamsEnded);
            self.links.mark_dirty(key.link);
            self.forget_if_gone(env, key);
        }
    }

    fn read(&mut self, env: &mut WorkerEnv, key: StreamKey) {
        let mut turn = ReadTurn::new();
        loop {
            let Some((conn, outbox, pool)) = self.links.conn_mut(key) else { return };
            match conn.read(outbox, pool, &mut turn) {
                // What was read is on its way while more is read.
                Ok(ReadStop::Flush) => self.links.flush(env, key.link),
                Ok(ReadStop::Blocked) => break self.wait_for_outbox(key),
                Ok(ReadStop::TurnOver) => break self.queue(key),
                Ok(ReadStop::Idle) => break,
                Err(e) => return self.reset(env, key, Outcome::Reset, e.into()),
            }
        }
        if !turn.has_asked {
            return;
        }
        env.counters.add(ProxyCounter::BytesRead, turn.bytes());
        self.links.mark_dirty(key.link);
        let Some(conn) = self.links.conn(key) else { return };
        if conn.stream.has_read_end() && env.places.get(conn.place).keep_alive {
            conn.socket.get().into_iter().for_each(steer::keep_half_closed);
        }
    }

    /// The connection has a turn when the outbox of its link has room.
    fn wait_for_outbox(&mut self, key: StreamKey) {
        let Some(link) = self.links.get_mut(key.link) else { return };
        if let Some(conn) = link.conns.get_mut(key.key).filter(|conn| !conn.waits) {
            conn.waits = true;
            link.waiting.push_back(key.key);
        }
    }

    /// Ends a connection at once, and keeps why; the program's socket is reset.
    pub(super) fn reset(&mut self, env: &mut WorkerEnv, key: StreamKey, outcome: Outcome, fault: StreamFault) {
        self.note_failure(env, key, fault);
        self.end_at_once(env, key, outcome);
    }

    /// Keeps why a connection ends, unless it has ended.
    fn note_failure(&mut self, env: &mut WorkerEnv, key: StreamKey, fault: StreamFault) {
        let Some(link) = self.links.get(key.link) else { return };
        let Some(conn) = link.conns.get(key.key).filter(|conn| !conn.stream.has_ended()) else { return };
        let recorded = link.recorded(self.links.peer_name(link.peer).into());
        let moved = RecordedStream::of(conn, recorded, env.timer.now() - conn.began, link.dials);
        env.note_failure(conn.ends, fault, Some(moved));
    }

    /// Ends a connection at once; the program's socket is reset.
    fn end_at_once(&mut self, env: &mut WorkerEnv, key: StreamKey, outcome: Outcome) {
        let Some((conn, outbox, _)) = self.links.conn_mut(key) else { return };
        conn.phase = Phase::Ended;
        // Closed with the option set when it was made: RST.
        drop(conn.socket.take());
        conn.charges.sockets = None;
        let ends = conn.ends;
        if !conn.stream.has_ended() {
            conn.stream.end(outcome, outbox);
            env.count(match outcome {
                Outcome::Refused => ProxyCounter::StreamsRefused,
                Outcome::Unreachable => ProxyCounter::StreamsUnreachable,
                _ => ProxyCounter::StreamsReset,
            });
        }
        self.links.mark_dirty(key.link);
        let answer = if outcome == Outcome::Unreachable { Verdict::Drop } else { Verdict::Refuse };
        env.end_syn(ends, SynOwner::Stream(key), answer);
        self.forget_if_gone(env, key);
    }

    fn forget_if_gone(&mut self, env: &mut WorkerEnv, key: StreamKey) {
        if let Some(link) = self.links.get_mut(key.link) {
            link.forget_if_gone(key.key);
            self.links.note_idle_memory(env);
        }
    }

    /// Streams, those included of which only the peer's last frame is missing.
    pub(super) fn open_count(&self) -> usize {
        self.links.iter().map(|link| link.conns.len()).sum()
    }

    /// For `burst proxy ls`.
    pub(super) fn views(&self) -> impl Iterator<Item = StreamView> {
        self.links.iter().flat_map(|link| {
            let open = link.conns.iter().filter(|conn| conn.phase != Phase::Ended);
            open.map(|conn| StreamView {
                client: conn.ends.0.to_string(),
                server: conn.ends.1.to_string(),
                peer: self.links.peer_name(link.peer),
                state: match conn.phase {
                    Phase::Connecting => "connecting to the server".into(),
                    Phase::Opening => "waiting for the peer".into(),
                    Phase::Open | Phase::Ended => link.transport.carrier().into(),
                },
                window: conn.stream.flight_max(),
                window_in: conn.stream.window(),
                sent: conn.stream.sent(),
                delivered: conn.stream.undelivered().0,
            })
        })
    }
}

/// The program's end of a stream: its socket, or its SYN, which is no longer the stream's.
fn release_end(env: &mut WorkerEnv, conn: &mut ProxyConn, key: StreamKey) -> Option<TcpEnd> {
    let (place, ends) = (conn.place, conn.ends);
    let socket = match conn.socket.take() {
        // The old registration would report events under the old token; a duplicate is another entry of epoll.
        Some(socket) => Some(socket.try_clone().ok()?),
        None if env.syns.is_held(ends, SynOwner::Stream(key)) => {
            env.syns.set_owner(ends, SynOwner::None);
            None
        }
        None => return None,
    };
    let charges = Box::new(ConnCharges { sockets: conn.charges.sockets.take(), memory: None });
    Some(TcpEnd { place, socket, ends, charges })
}
