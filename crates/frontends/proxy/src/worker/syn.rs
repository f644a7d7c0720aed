//! SYNs that the kernel holds until the server's answer is known ([`crate::hold`]).
//!
//! A held SYN opens a stream, or a connection by TCP, that has no socket of the program yet. When the server has
//! accepted, the SYN passes to the listener, and the accepted socket is joined to what waits for it.

use super::conn::Phase;
use super::{KIND_CONN, RelayWorker, listen};
use crate::counters::ProxyCounter;
use crate::hold::{Syn, Verdict};
use burst_relay::Outcome;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a connection may take from the server's answer to the listener. It takes longer when the process has no
/// descriptors left, and for ever if the program has closed its socket meanwhile.
const ACCEPTED_MOST: Duration = Duration::from_secs(30);

/// Client and server.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// The program's side of a connection.
#[derive(Debug)]
pub(super) enum ClientEnd {
    /// Its socket.
    Accepted(OwnedFd),
    /// Its SYN is held.
    Held,
}

/// What waits for the program's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldFor {
    /// A stream: place and generation.
    Stream(usize, u32),
    /// A connection by TCP.
    Pair(usize, u32),
    /// Nothing any more: the socket is reset.
    Nobody,
}

/// One held SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldSyn {
    packet: u32,
    /// Index of the place whose queue has it.
    at: usize,
    pub(super) owner: HeldFor,
    /// Since it has passed: when nothing waits for the socket any more.
    until: Option<Instant>,
}

impl RelayWorker {
    /// Takes the SYNs that wait in the queue of a place.
    pub(super) fn take_syns(&mut self, at: usize) {
        loop {
            let Some(queue) = &self.places[at].queue else { return };
            match queue.next() {
                Ok(Some(syn)) => self.on_syn(at, syn),
                Ok(None) => return,
                Err(e) => {
                    self.counters.count(ProxyCounter::SynsLost);
                    return crate::log(format_args!("SYNs were lost, and will be repeated: {e}"));
                }
            }
        }
    }

    fn on_syn(&mut self, at: usize, syn: Syn) {
        let ends = (syn.client, syn.server);
        if let Some(held) = self.held.get(&ends) {
            // The program's TCP repeats its SYN while the first one waits.
            let again = if held.until.is_some() { Verdict::Pass } else { Verdict::Drop };
            return self.verdict(at, syn.packet, again);
        }
        // Connections of this proxy to a server for a peer have the mark as well.
        let is_own =
            || listen::serves(&self.places[at], &self.config, syn.server.ip()) && !listen::is_local(syn.client);
        if listen::named(&self.config, &self.places[at].takes, syn.server).is_none() || is_own() {
            return self.verdict(at, syn.packet, Verdict::Pass);
        }
        self.counters.count(ProxyCounter::SynsHeld);
        self.held.insert(ends, HeldSyn { packet: syn.packet, at, owner: HeldFor::Nobody, until: None });
        self.dispatch(at, ClientEnd::Held, syn.client, syn.server);
    }

    fn verdict(&mut self, at: usize, packet: u32, verdict: Verdict) {
        let Some(queue) = &self.places[at].queue else { return };
        if let Err(e) = queue.decide(packet, verdict, self.config.config.mark) {
            crate::log(format_args!("a SYN stays held: {e}"));
        }
    }

    /// Notes what waits for the socket of a held SYN.
    pub(super) fn hold_for(&mut self, ends: Ends, owner: HeldFor) {
        if let Some(held) = self.held.get_mut(&ends) {
            held.owner = owner;
        }
    }

    /// The server has accepted: lets a held SYN pass.
    pub(super) fn pass_syn(&mut self, ends: Ends, owner: HeldFor) {
        let Some(held) = self.held.get_mut(&ends).filter(|held| held.owner == owner && held.until.is_none()) else {
            return;
        };
        let until = Instant::now() + ACCEPTED_MOST;
        held.until = Some(until);
        let (at, packet) = (held.at, held.packet);
        self.passed.push_back((until, ends));
        self.verdict(at, packet, Verdict::Pass);
        self.tick_soon();
    }

    /// What waited for the socket of a held SYN has ended: answers the SYN, or lets the socket be reset that it has
    /// led to.
    pub(super) fn end_syn(&mut self, ends: Ends, owner: HeldFor, answer: Verdict) {
        let Some(held) = self.held.get_mut(&ends).filter(|held| held.owner == owner) else { return };
        if held.until.is_some() {
            held.owner = HeldFor::Nobody;
            return;
        }
        let (at, packet) = (held.at, held.packet);
        self.held.remove(&ends);
        self.counters
            .add(if answer == Verdict::Refuse { ProxyCounter::SynsRefused } else { ProxyCounter::SynsDropped }, 1);
        self.verdict(at, packet, answer);
    }

    /// Whether the SYN of a stream or connection waits for a verdict.
    pub(super) fn is_held(&self, ends: Ends, owner: HeldFor) -> bool {
        self.held.get(&ends).is_some_and(|held| held.owner == owner && held.until.is_none())
    }

    /// Joins an accepted socket to what has waited for it; gives it back if nothing has.
    pub(super) fn join_accepted(&mut self, socket: OwnedFd, ends: Ends) -> Option<OwnedFd> {
        if self.held.get(&ends).is_none_or(|held| held.until.is_none()) {
            return Some(socket);
        }
        match self.held.remove(&ends).map_or(HeldFor::Nobody, |held| held.owner) {
            HeldFor::Stream(place, generation) => self.join_stream(place, generation, socket),
            HeldFor::Pair(place, generation) => self.join_pair(place, generation, socket),
            // Closed with its option set: a reset.
            HeldFor::Nobody => self.counters.count(ProxyCounter::SocketsWithoutStream),
        }
        None
    }

    fn join_stream(&mut self, place: usize, generation: u32, socket: OwnedFd) {
        let Some(Some(conn)) = self.conns.get_mut(place) else { return };
        if conn.generation != generation || conn.phase != Phase::Open {
            return;
        }
        let token = KIND_CONN << 56 | u64::from(generation) << 32 | place as u64;
        let added = self.poll.add(socket.as_raw_fd(), super::conn::WATCHED, token);
        conn.socket = Some(socket);
        if let Err(e) = added {
            crate::log(format_args!("a connection cannot be watched: {e}"));
            return self.reset(place, Outcome::Reset);
        }
        self.queue(place);
    }

    /// Ends what has waited for too long.
    pub(super) fn give_up_passed(&mut self, now: Instant) {
        while let Some((until, ends)) = self.passed.front().copied() {
            let waits = self.held.get(&ends).is_some_and(|held| held.until == Some(until));
            if waits && until > now {
                break;
            }
            self.passed.pop_front();
            if !waits {
                continue;
            }
            match self.held.remove(&ends).map_or(HeldFor::Nobody, |held| held.owner) {
                HeldFor::Stream(place, generation) => {
                    if self.conns[place].as_ref().is_some_and(|conn| conn.generation == generation) {
                        self.reset(place, Outcome::Reset);
                    }
                }
                HeldFor::Pair(place, generation) => self.drop_pair_of(place, generation),
                HeldFor::Nobody => {}
            }
        }
        if !self.passed.is_empty() {
            self.tick_soon();
        }
    }
}
