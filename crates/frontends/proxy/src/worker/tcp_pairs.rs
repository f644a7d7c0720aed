//! The connections relayed by TCP alone ([`TcpPair`]).
//!
//! They are those that no peer carries, before their first byte, and those of the policy `relay = "tcp"`, which is the floor of
//! the benchmark.

use super::CONNS_AT_ONCE;
use super::env::WorkerEnv;
use super::held_syns::SynOwner;
use super::snapshot::StreamView;
use super::sockets::{self, TcpEnd};
use super::stream_record::StreamFault;
use super::table::{ConnTable, TableKey};
use super::tcp_pair::TcpPair;
use super::token::PollToken;
use crate::config::EncryptLinks;
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::sys::{self, EventFlags};
use burst_base::Reason;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;

/// Buffer of each direction when the configured memory is used up.
const PAIR_BYTES_MIN: usize = 16 << 10;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct TcpPairs {
    pairs: ConnTable<TcpPair>,
    ready: VecDeque<TableKey>,
}

impl TcpPairs {
    /// Relays a taken connection, or refuses it if nothing may go in clear.
    pub(super) fn relay(&mut self, env: &mut WorkerEnv, (mut taken, why): (TcpEnd, Reason)) {
        if env.config.config.encrypt == EncryptLinks::Only {
            return refuse(env, taken, why);
        }
        let TcpEnd { place, ends: (client, server), .. } = taken;
        env.count(ProxyCounter::ConnectionsByTcp);
        env.decisions.note(client, server, why);
        let mark = env.mark();
        let onward = match env.places.enter(place, || sockets::connect_onward(client, server, mark)) {
            Ok(onward) => onward,
            Err(e) => {
                // Without descriptors the program's TCP tries again.
                let answer =
                    if sys::no_descriptors(&e) { Verdict::Drop } else { answer_to(&e).unwrap_or(Verdict::Refuse) };
                env.end_syn((client, server), SynOwner::None, answer);
                crate::log(format_args!("{client} to {server} by TCP: {e}"));
                return env.note_failure((client, server), failed(&e, why), None);
            }
        };
        // Without memory left, or with no more for its user, a connection goes on slowly rather than not at all.
        let window = env.config.window;
        let both = 2 * u64::from(window);
        let full = env.pair_bytes + both > env.memory_share() || !env.shares.memory(&mut taken.charges, both);
        let bytes = if full { PAIR_BYTES_MIN.min(window as usize) } else { window as usize };
        let keep_alive = env.places.get(place).keep_alive;
        let is_held = taken.socket.is_none();
        let pair = TcpPair::new(taken, onward, bytes, keep_alive, why);
        let key = self.pairs.insert(&mut env.generations, pair);
        let Some(pair) = self.pairs.get(key) else { return };
        env.pair_bytes += pair.bytes();
        let watched = (0..2).try_for_each(|side| {
            pair.socket(side).map_or(Ok(()), |socket| env.watch(socket, PollToken::Pair(key, side)))
        });
        if is_held {
            env.syns.set_owner((client, server), SynOwner::Pair(key));
        }
        if watched.is_err() {
            self.end(env, key, Verdict::Drop);
        }
    }

    /// Ends a connection; `answer`: what its SYN gets if it is held.
    pub(super) fn end(&mut self, env: &mut WorkerEnv, key: TableKey, answer: Verdict) {
        if let Some(pair) = self.pairs.remove(key) {
            debug_assert!(env.pair_bytes >= pair.bytes(), "each pair was counted");
            env.pair_bytes -= pair.bytes();
            env.end_syn(pair.ends, SynOwner::Pair(key), answer);
        }
    }

    /// Ends a connection of which a socket has failed, and keeps why.
    fn fail(&mut self, env: &mut WorkerEnv, key: TableKey, error: &Error) {
        if let Some(pair) = self.pairs.get(key) {
            env.note_failure(pair.ends, failed(error, pair.why), None);
        }
        self.end(env, key, answer_to(error).unwrap_or(Verdict::Drop));
    }

    /// Joins the program's socket to a connection whose SYN was held.
    pub(super) fn join(&mut self, env: &mut WorkerEnv, key: TableKey, socket: OwnedFd) {
        let Some(pair) = self.pairs.get_mut(key) else { return };
        let watched = env.watch(&socket, PollToken::Pair(key, 0));
        pair.set_program(socket);
        if watched.is_err() {
            self.end(env, key, Verdict::Drop);
        }
    }

    /// Takes an event of a socket.
    pub(super) fn on_event(&mut self, env: &mut WorkerEnv, key: TableKey, side: usize, flags: EventFlags) {
        let Some(pair) = self.pairs.get_mut(key) else { return };
        let (event, ends) = (pair.on_event(side, flags), pair.ends);
        let is_connected = match event {
            Ok(is_connected) => is_connected,
            Err(e) => return self.fail(env, key, &e),
        };
        if !std::mem::replace(&mut pair.queued, true) {
            self.ready.push_back(key);
        }
        if is_connected {
            env.pass_syn(ends, SynOwner::Pair(key));
        }
    }

    /// Gives the connections that were ready a turn, at most [`CONNS_AT_ONCE`] of them.
    pub(super) fn turns(&mut self, env: &mut WorkerEnv) {
        for _ in 0..self.ready.len().min(CONNS_AT_ONCE) {
            let Some(key) = self.ready.pop_front() else { return };
            let Some(pair) = self.pairs.get_mut(key) else { continue };
            pair.queued = false;
            let turn = pair.turn();
            let (read, delivered) = pair.take_moved();
            env.counters.add(ProxyCounter::BytesRead, read);
            env.counters.add(ProxyCounter::BytesDelivered, delivered);
            match turn {
                Ok(Some(more)) => pair.queued = more,
                Ok(None) => self.end(env, key, Verdict::Drop),
                Err(e) => self.fail(env, key, &e),
            }
            if self.pairs.get(key).is_some_and(|pair| pair.queued) {
                self.ready.push_back(key);
            }
        }
    }

    /// Whether a connection has to have a turn.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Connections.
    pub(super) fn open_count(&self) -> usize {
        self.pairs.len()
    }

    /// For `burst proxy ls`.
    pub(super) fn views(&self) -> impl Iterator<Item = StreamView> {
        self.pairs.iter().map(|pair| StreamView {
            client: pair.ends.0.to_string(),
            server: pair.ends.1.to_string(),
            state: format!("tcp: {}", pair.why.name()),
            ..StreamView::default()
        })
    }
}

/// The fault of a connection whose socket has failed so, and which no peer carried because of `why`.
fn failed(error: &Error, why: Reason) -> StreamFault {
    StreamFault::new(Reason::ProxyTcpFailed, error.to_string().into()).by_tcp(why)
}

/// What a program's SYN gets if the connection to its server has failed so; `None`: there was no answer.
fn answer_to(error: &Error) -> Option<Verdict> {
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(Verdict::Refuse),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Some(Verdict::Unreachable),
        _ => None,
    }
}

/// Refuses a connection that could go by TCP only: its SYN, or its socket, is answered by a reset.
fn refuse(env: &mut WorkerEnv, taken: TcpEnd, why: Reason) {
    let (client, server) = taken.ends;
    env.count(ProxyCounter::ConnectionsRefused);
    env.decisions.note(client, server, why);
    env.decisions.note(client, server, Reason::ProxyEncryptOnly);
    env.note_failure(taken.ends, StreamFault::from(Reason::ProxyEncryptOnly).by_tcp(why), None);
    // Closed with the option set when it was accepted: RST.
    drop(taken.socket);
    env.end_syn(taken.ends, SynOwner::None, Verdict::Refuse);
}
