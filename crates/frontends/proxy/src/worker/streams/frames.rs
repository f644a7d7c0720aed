//! What frames of a peer do. Each is checked; the first fault ends the peer's channel and resets its streams.

use super::{ByTcp, Streams};
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::worker::conn::{Phase, ProxyConn};
use crate::worker::decisions::reason;
use crate::worker::env::WorkerEnv;
use crate::worker::held_syns::SynOwner;
use crate::worker::sockets::{self, Ends, TcpEnd};
use crate::worker::token::StreamKey;
use burst_relay::{Frame, Outcome, PeerFault, Stream};
use std::io::ErrorKind;

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
            Frame::Placed { offset, len } => conn.stream.on_data(offset, len as usize)?,
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
            self.forget_if_gone(key);
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
            env.end_syn(ends, SynOwner::Stream(key), Verdict::Drop);
        }
        self.reset(env, key, Outcome::Reset);
        Ok(None)
    }

    fn on_open(&mut self, env: &mut WorkerEnv, at: usize, stream: Stream, ends: Ends) {
        let slot = self.links.take_slot(env, at);
        let connected = match slot {
            _ if env.draining => Err(Outcome::Draining),
            None => Err(Outcome::NoMemory),
            Some(_) => connect_server(env, ends),
        };
        let refused = connected.as_ref().err().copied();
        let end = connected.unwrap_or(TcpEnd { place: 0, socket: None, ends });
        let key = self.add(env, at, ProxyConn::new(Phase::Connecting, end, stream, slot));
        match (refused, key) {
            (Some(outcome), Some(key)) => {
                env.decisions.note(ends.0, ends.1, reason(outcome));
                self.reset(env, key, outcome);
            }
            _ => env.count(ProxyCounter::StreamsAccepted),
        }
    }
}

/// Connects to the server from the client's address.
fn connect_server(env: &WorkerEnv, ends: Ends) -> Result<TcpEnd, Outcome> {
    let ((client, server), mark) = (ends, env.mark());
    let place = env.places.serving(&env.config, server.ip()).ok_or(Outcome::NotServed)?;
    match env.places.enter(place, || sockets::connect_as(client, server, mark)) {
        Ok(socket) => Ok(TcpEnd { place, socket: Some(socket), ends }),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Err(Outcome::Refused),
        Err(e) => {
            crate::log(format_args!("cannot connect to {server} from {client}: {e}"));
            Err(Outcome::NotServed)
        }
    }
}
