//! What frames of a peer do. Each is checked; the first fault ends the peer's channel and resets its streams.

use super::{ByTcp, PostponedConnect, Streams};
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::worker::conn::{Phase, ProxyConn};
use crate::worker::decisions::reason;
use crate::worker::env::WorkerEnv;
use crate::worker::held_syns::SynOwner;
use crate::worker::sockets::{self, Ends, TcpEnd};
use crate::worker::token::{PollToken, StreamKey};
use burst_base::Reason;
use burst_ledger::PoolOwner;
use burst_relay::{Frame, Outcome, PeerFault, Stream};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

impl Streams {
    /// Takes a frame of the stream with an id on a link. Returns a connection that has to go by TCP.
    ///
    /// # Errors
    /// A [`PeerFault`] of the frame.
    pub(crate) fn on_frame(
        &mut self,
        env: &mut WorkerEnv,
        at: usize,
        (id, frame): (u32, Frame<'_>),
    ) -> Result<Option<ByTcp>, PeerFault> {
        match frame {
            Frame::Open { client, server, window } => {
                let streams_max = env.config.memory / (2 * u64::from(env.config.window));
                let Some(link) = self.links.get_mut(at) else { return Ok(None) };
                let stream = link.opened_by_peer(id, window, streams_max)?;
                self.on_open(env, at, stream, (client, server));
                return Ok(None);
            }
            Frame::Probe { is_answer } => {
                self.links.on_probe(at, is_answer);
                return Ok(None);
            }
            _ => {}
        }
        let key = self.links.get(at).and_then(|link| link.find(id)).ok_or(PeerFault::Unknown(id))?;
        let key = StreamKey { link: at, key };
        if let Frame::End { outcome } = frame {
            return self.on_end(env, key, outcome);
        }
        if self.links.conn(key).is_some_and(|conn| !conn.stream.has_ended()) {
            match frame {
                Frame::Credit { delivered } => {
                    self.links.on_credit(env, key, delivered)?;
                    self.finish(env, key);
                }
                Frame::Want { len } => self.links.on_want(env, key, len),
                Frame::Grow { window, from } => self.links.on_grow(env, key, window, from)?,
                other => self.on_conn_frame(env, key, other)?,
            }
            self.queue(key);
        }
        Ok(None)
    }

    /// Takes a frame that concerns the connection alone.
    fn on_conn_frame(&mut self, env: &mut WorkerEnv, key: StreamKey, frame: Frame<'_>) -> Result<(), PeerFault> {
        let Some((conn, _, pool)) = self.links.conn_mut(key) else { return Ok(()) };
        let id = conn.stream.id();
        match frame {
            Frame::Accept { window } if conn.phase == Phase::Opening => {
                conn.stream.on_accept(window)?;
                conn.phase = Phase::Open;
                env.pass_syn(conn.ends, SynOwner::Stream(key));
                env.count(ProxyCounter::StreamsOpened);
            }
            Frame::Data { offset, bytes } => {
                conn.stream.on_data(offset, bytes.len())?;
                pool.fill(conn.slot.ok_or(PeerFault::Turn(id))?, offset, bytes);
            }
            Frame::Placed { offset, len } => return self.links.take_placed(key, offset, len),
            Frame::Fin { end } => conn.stream.on_fin(end)?,
            Frame::Urgent { offset, byte } if offset == conn.stream.undelivered().1 => conn.set_urgent(byte),
            Frame::Urgent { .. } => return Err(PeerFault::Offset(id)),
            _ => return Err(PeerFault::Turn(id)),
        }
        Ok(())
    }

    fn on_end(&mut self, env: &mut WorkerEnv, key: StreamKey, outcome: Outcome) -> Result<Option<ByTcp>, PeerFault> {
        let Some((conn, ..)) = self.links.conn_mut(key) else { return Ok(None) };
        conn.stream.on_end(outcome)?;
        if conn.stream.has_ended() {
            self.forget_if_gone(env, key);
            return Ok(None);
        }
        let (ends, is_opening, why) = (conn.ends, conn.phase == Phase::Opening, reason(outcome));
        if is_opening {
            env.decisions.note(ends.0, ends.1, why);
        }
        if is_opening && outcome.leaves_tcp() {
            return Ok(self.release(env, key, outcome).map(|taken| (taken, why)));
        }
        if outcome == Outcome::Unreachable {
            env.end_syn(ends, SynOwner::Stream(key), Verdict::Unreachable);
        }
        let fault = if outcome == Outcome::Reset { Reason::ProxyPeerReset } else { why };
        self.reset(env, key, Outcome::Reset, fault.into());
        Ok(None)
    }

    fn on_open(&mut self, env: &mut WorkerEnv, at: usize, stream: Stream, ends: Ends) {
        let slot = self.links.take_slot(env, at);
        let connected = match slot {
            _ if env.draining => Err(Outcome::Draining),
            None => Err(Outcome::NoMemory),
            Some(_) => self.connect_for_peer(env, at, ends),
        };
        let connected = connected.and_then(|end| self.admit_postponed(end));
        let (refused, waits) =
            (connected.as_ref().err().copied(), matches!(&connected, Ok(end) if end.socket.is_none()));
        let end = connected.unwrap_or(TcpEnd { place: 0, socket: None, ends, charges: Box::default() });
        let key = self.add(env, at, ProxyConn::new((Phase::Connecting, env.timer.now()), end, stream, slot));
        match (refused, key) {
            (Some(outcome), Some(key)) => self.refuse(env, key, outcome),
            (None, Some(key)) if waits => {
                let now = env.timer.now();
                // The opener waits no longer than `open_ms`, which is mostly the same at both ends.
                let until = now + Duration::from_millis(env.config.config.open_ms) / 2;
                self.postponed.push_back(PostponedConnect { key, next: now + RETRY_FIRST, wait: RETRY_FIRST, until });
                env.timer.start_by(now + RETRY_FIRST);
                env.count(ProxyCounter::ConnectsPostponed);
            }
            _ => env.count(ProxyCounter::StreamsAccepted),
        }
    }

    /// Connects to the server of a peer's stream, at the cost of the peer's share of the sockets.
    fn connect_for_peer(&self, env: &WorkerEnv, at: usize, ends: Ends) -> Result<TcpEnd, Outcome> {
        let peer = self.links.get(at).ok_or(Outcome::NotServed)?.peer;
        let charges = env.shares.connection(PoolOwner::Peer(peer)).ok_or(Outcome::NoMemory)?;
        connect_server(env, ends).map(|end| TcpEnd { charges, ..end })
    }

    /// A connect that has to be tried again, if there is a place for it. Some of those that wait may have ended.
    fn admit_postponed(&self, end: TcpEnd) -> Result<TcpEnd, Outcome> {
        let is_full = self.postponed.len() >= POSTPONED_MAX;
        if end.socket.is_none() && is_full { Err(Outcome::NoMemory) } else { Ok(end) }
    }

    /// Ends a stream whose server could not be reached; the opener learns why.
    fn refuse(&mut self, env: &mut WorkerEnv, key: StreamKey, outcome: Outcome) {
        if let Some(conn) = self.links.conn(key) {
            env.decisions.note(conn.ends.0, conn.ends.1, reason(outcome));
        }
        self.reset(env, key, outcome, reason(outcome).into());
    }

    /// Connects again for streams whose client has used its port again before its former connection was closed here.
    pub(crate) fn connect_postponed(&mut self, env: &mut WorkerEnv, now: Instant) {
        if self.postponed.len() > CONNECTS_PER_TICK {
            // The others have their turn then.
            env.timer.start_by(now + RETRY_FIRST);
        }
        for _ in 0..self.postponed.len().min(CONNECTS_PER_TICK) {
            let Some(mut postponed) = self.postponed.pop_front() else { return };
            let key = postponed.key;
            let waits = |conn: &&ProxyConn| conn.phase == Phase::Connecting && conn.socket.get().is_none();
            let Some(ends) = self.links.conn(key).filter(waits).map(|conn| conn.ends) else { continue };
            if postponed.next <= now {
                let connected = connect_server(env, ends);
                if !matches!(&connected, Ok(end) if end.socket.is_none() && now < postponed.until) {
                    self.on_postponed(env, key, connected);
                    continue;
                }
                postponed.wait = (postponed.wait * 2).min(RETRY_MAX);
                postponed.next = now + postponed.wait;
            }
            env.timer.start_by(postponed.next);
            self.postponed.push_back(postponed);
        }
    }

    /// A postponed connect has begun, or has failed for good.
    fn on_postponed(&mut self, env: &mut WorkerEnv, key: StreamKey, connected: Result<TcpEnd, Outcome>) {
        let socket = match connected {
            Err(outcome) => return self.refuse(env, key, outcome),
            Ok(TcpEnd { socket: None, .. }) => return self.refuse(env, key, Outcome::NotServed),
            Ok(TcpEnd { socket: Some(socket), .. }) => socket,
        };
        let Some((conn, ..)) = self.links.conn_mut(key) else { return };
        let watched = env.watch(&socket, PollToken::Stream(key));
        conn.socket.set(socket);
        if let Err(e) = watched {
            return self.reset(env, key, Outcome::Reset, e.into());
        }
        env.count(ProxyCounter::StreamsAccepted);
    }
}

/// Time until a connect is tried again, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(64);
/// Connects that may be postponed at the same time, those of streams that have ended since included.
const POSTPONED_MAX: usize = 4096;
/// Postponed connects that are looked at in one tick of the worker.
const CONNECTS_PER_TICK: usize = 64;

/// Connects to the server from the client's address. Without a socket: the former connection between the two addresses and ports
/// is not closed yet. A client may use its port again as soon as the server has closed its end, while the last packets of this
/// end are on their way.
fn connect_server(env: &WorkerEnv, ends: Ends) -> Result<TcpEnd, Outcome> {
    let ((client, server), mark) = (ends, env.mark());
    let place = env.places.serving(&env.config, server.ip()).ok_or(Outcome::NotServed)?;
    match env.places.enter(place, || sockets::connect_as(client, server, mark)) {
        Ok(socket) => Ok(TcpEnd { place, socket: Some(socket), ends, charges: Box::default() }),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Err(Outcome::Refused),
        Err(e) if matches!(e.kind(), ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse) => {
            Ok(TcpEnd { place, socket: None, ends, charges: Box::default() })
        }
        Err(e) => {
            crate::log(format_args!("cannot connect to {server} from {client}: {e}"));
            Err(Outcome::NotServed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::RelayWorker;
    use crate::worker::fuzzed_worker::FuzzedWorker;
    use crate::worker::table::{ConnTable, Generations};

    #[test]
    fn connects_are_postponed_up_to_a_bound_and_those_that_have_ended_make_room_in_turns() {
        let mut fuzzed = FuzzedWorker::new(false).expect("descriptors");
        let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
        let again = || {
            let ends = (([10, 9, 9, 9], 5).into(), ([127, 0, 0, 3], 9).into());
            TcpEnd { place: 0, socket: None, ends, charges: Box::default() }
        };
        let (mut gone, mut generations, now) = (ConnTable::default(), Generations::default(), Instant::now());
        for _ in 0..POSTPONED_MAX {
            assert!(streams.admit_postponed(again()).is_ok());
            // Of a stream that has ended since.
            let key = StreamKey { link: 0, key: gone.insert(&mut generations, ()) };
            streams.postponed.push_back(PostponedConnect { key, next: now, wait: RETRY_FIRST, until: now });
        }
        assert_eq!(streams.admit_postponed(again()).err(), Some(Outcome::NoMemory));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a descriptor").into();
        assert!(streams.admit_postponed(TcpEnd { socket: Some(socket), ..again() }).is_ok(), "it waits for nothing");
        for tick in 1..=POSTPONED_MAX / CONNECTS_PER_TICK {
            streams.connect_postponed(env, now);
            assert_eq!(streams.postponed.len(), POSTPONED_MAX - tick * CONNECTS_PER_TICK);
            assert!(streams.admit_postponed(again()).is_ok());
        }
    }
}
