//! What frames of a peer do. Each is checked; the first fault ends the peer's channel and resets its streams.

use super::RelayWorker;
use super::conn::{Phase, ProxyConn};
use super::credit_rounds::CreditRounds;
use super::decisions::reason;
use super::held_syns::SynOwner;
use super::sockets;
use super::table::TableKey;
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::message::Report;
use burst_relay::{Frame, FrameReader, Header, MessageKind, Novelty, Outcome, PeerFault, PeerWindow, Stream};
use std::net::SocketAddr;
use std::time::Instant;

/// Refused streams of a link whose last frame the peer may owe.
const REFUSED_MAX: u64 = 4096;
/// Batches of a link that may wait for the peer's acknowledgements, beside those under way.
const WAITING_MAX: usize = 1024;

impl RelayWorker {
    /// Takes a message of a link.
    pub(super) fn on_message(&mut self, link: usize, message: &[u8]) {
        if let Err(fault) = self.try_message(link, message) {
            self.fault(link, fault);
        }
    }

    pub(super) fn fault(&mut self, link: usize, fault: PeerFault) {
        self.env.count(ProxyCounter::PeerFaults);
        let Some(broken) = &self.links[link] else { return };
        let peer = broken.peer;
        self.env.report(Report::PeerFault(peer, fault.to_string()));
        self.peer_gone(peer, "it broke the protocol");
    }

    fn try_message(&mut self, link: usize, message: &[u8]) -> Result<(), PeerFault> {
        let (header, body) = Header::read(message)?;
        if header.kind != MessageKind::Batch {
            return Err(PeerFault::What(2));
        }
        let Some(state) = &mut self.links[link] else { return Ok(()) };
        state.outbox.acknowledged(header.ack)?;
        state.round_trips.acknowledged(header.ack, state.here, Instant::now());
        if state.inbox.take(header.seq)? == Novelty::Repeated {
            return Ok(());
        }
        let mut frames = FrameReader::new(body);
        while let Some((id, frame)) = frames.next_frame()? {
            self.on_frame(link, id, frame)?;
        }
        // Its frames make this side say something each, and it takes nothing.
        if self.links[link].as_ref().is_some_and(|state| state.outbox.waiting() > WAITING_MAX) {
            return Err(PeerFault::TooMuch);
        }
        if let Some(state) = &self.links[link]
            && (state.inbox.ack_due() || state.outbox.ready(&state.inbox) || !state.waiting.is_empty())
        {
            self.mark_dirty(link);
        }
        Ok(())
    }

    fn on_frame(&mut self, link: usize, id: u32, frame: Frame<'_>) -> Result<(), PeerFault> {
        if let Frame::Open { client, server, window } = frame {
            return self.on_open(link, id, client, server, window);
        }
        if let Frame::Probe { is_answer } = frame {
            self.on_probe(link, is_answer);
            return Ok(());
        }
        let place =
            self.links[link].as_ref().and_then(|l| l.streams.get(&id).copied()).ok_or(PeerFault::Unknown(id))?;
        if let Frame::End { outcome } = frame {
            return self.on_end(place, outcome);
        }
        let (Some(conn), Some(state)) = (self.conns.get_mut(place), &mut self.links[link]) else {
            return Err(PeerFault::Unknown(id));
        };
        if conn.stream.has_ended() {
            return Ok(());
        }
        match frame {
            Frame::Accept { window } if conn.phase == Phase::Opening => {
                conn.stream.on_accept(window)?;
                conn.phase = Phase::Open;
                let (ends, owner) = ((conn.client, conn.server), SynOwner::Stream(place));
                self.env.pass_syn(ends, owner);
                self.env.count(ProxyCounter::StreamsOpened);
            }
            Frame::Data { offset, bytes } => {
                conn.stream.on_data(offset, bytes.len())?;
                let slot = conn.slot.ok_or(PeerFault::Turn(id))?;
                let mut done = 0;
                while done < bytes.len() {
                    let to = state.pool.received(slot, offset + done as u64, bytes.len() - done);
                    to.copy_from_slice(&bytes[done..done + to.len()]);
                    done += to.len();
                }
            }
            Frame::Placed { offset, len } => conn.stream.on_data(offset, len as usize)?,
            Frame::Credit { delivered } => {
                conn.stream.on_credit(delivered)?;
                self.after_credit(place);
                self.finish(place);
            }
            Frame::Want { len } => self.on_want(place, len),
            Frame::Grow { window, from } => self.on_grow(place, window, from)?,
            Frame::Fin { end } => conn.stream.on_fin(end)?,
            Frame::Urgent { offset, byte } => {
                // A second one replaces the first, as TCP's urgent pointer moves on.
                let (_, received) = conn.stream.undelivered();
                if offset != received {
                    return Err(PeerFault::Offset(id));
                }
                conn.urgent = Some((offset, byte));
            }
            Frame::Open { .. } | Frame::End { .. } | Frame::Accept { .. } | Frame::Probe { .. } => {
                return Err(PeerFault::Turn(id));
            }
        }
        self.queue(place);
        Ok(())
    }

    fn on_end(&mut self, place: TableKey, outcome: Outcome) -> Result<(), PeerFault> {
        let Some(conn) = self.conns.get_mut(place) else { return Ok(()) };
        conn.stream.on_end(outcome)?;
        if conn.stream.has_ended() {
            self.forget_if_gone(place);
            return Ok(());
        }
        let (client, server, opening) = (conn.client, conn.server, conn.phase == Phase::Opening);
        let reason = reason(outcome);
        if opening {
            self.env.decisions.note(client, server, reason);
        }
        if opening && outcome.leaves_tcp() {
            self.go_by_tcp(place, outcome, reason);
            return Ok(());
        }
        if outcome == Outcome::Unreachable {
            self.env.end_syn((client, server), SynOwner::Stream(place), Verdict::Drop);
        }
        self.reset(place, Outcome::Reset);
        Ok(())
    }

    fn on_open(
        &mut self,
        link: usize,
        id: u32,
        client: SocketAddr,
        server: SocketAddr,
        window: PeerWindow,
    ) -> Result<(), PeerFault> {
        let Some(state) = &mut self.links[link] else { return Ok(()) };
        // Ids of each side go up by two; the dialing side has the odd ones.
        if (id % 2 == 1) == state.dials || id <= state.last_opened {
            return Err(PeerFault::InUse(id));
        }
        state.last_opened = id;
        // Each has memory, or was refused and waits for the peer's last frame.
        let most = self.env.config.memory / (2 * u64::from(self.env.config.window)) + REFUSED_MAX;
        if state.streams.len() as u64 >= most {
            return Err(PeerFault::TooMuch);
        }
        let ring = state.pool.ring_len();
        let slot = self.take_slot(link);
        let conn = ProxyConn {
            link,
            phase: Phase::Connecting,
            socket: None,
            stream: Stream::new(id, ring, ring, Some(window)),
            slot,
            client,
            server,
            place: 0,
            readable: false,
            writable: false,
            hung_up: false,
            queued: false,
            waits: false,
            urgent_here: false,
            urgent: None,
            rounds: CreditRounds::default(),
            blocked_at: 0,
        };
        let refused = if self.env.draining {
            Some(Outcome::Draining)
        } else if slot.is_none() {
            Some(Outcome::NoMemory)
        } else {
            None
        };
        let connected = match refused {
            Some(outcome) => Err(outcome),
            None => self.connect_server(client, server),
        };
        match connected {
            Ok((socket, at)) => {
                self.env.count(ProxyCounter::StreamsAccepted);
                self.add_conn(ProxyConn { socket: Some(socket), place: at, ..conn });
            }
            Err(outcome) => {
                let place = self.add_conn(conn);
                self.env.decisions.note(client, server, reason(outcome));
                self.reset(place, outcome);
            }
        }
        Ok(())
    }

    /// Connects to the server from the client's address.
    fn connect_server(
        &mut self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Result<(std::os::fd::OwnedFd, usize), Outcome> {
        let at = self.env.places.serving(&self.env.config, server.ip()).ok_or(Outcome::NotServed)?;
        let mark = self.env.mark();
        let made = self.env.places.enter(at, || sockets::connect_as(client, server, mark));
        match made {
            Ok(socket) => Ok((socket, at)),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Err(Outcome::Refused),
            Err(e) => {
                crate::log(format_args!("cannot connect to {server} from {client}: {e}"));
                Err(Outcome::NotServed)
            }
        }
    }
}
