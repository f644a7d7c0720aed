//! Connections of programs: accepted from the listeners to which interception steers them, or announced by a held SYN, and sent
//! to a peer or on by TCP.
//!
//! Where SYNs cannot be held, the program is connected before the server has answered ("early accept"): a server that
//! refuses is seen as a reset after the connect.

use super::RelayWorker;
use super::held_syns::{QueuedSyn, SynCopy, SynOwner};
use super::sockets::{self, Ends, TcpEnd};
use crate::config::RelayBy;
use crate::counters::ProxyCounter;
use crate::hold::{Syn, Verdict};
use crate::intercept::steer;
use crate::sys;
use burst_base::Reason;
use burst_relay::Outcome;
use std::os::fd::OwnedFd;

/// Connections accepted per pass and listener.
const ACCEPTS: usize = 64;

impl RelayWorker {
    pub(super) fn accept(&mut self, place: usize, which: usize) {
        for _ in 0..ACCEPTS {
            let accepted = sys::accept(&self.env.places.get(place).listeners[which]);
            let (socket, client, server) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                // The rest waits in the kernel: the listener stays readable, so its events would come without end.
                Err(e) if sys::no_descriptors(&e) => return self.env.pause_accepts(&e),
                Err(e) => {
                    // ECONNABORTED and the like concern one connection.
                    crate::log(format_args!("a connection cannot be accepted: {e}"));
                    return;
                }
            };
            self.env.count(ProxyCounter::ConnectionsTaken);
            let here = self.env.places.get(place);
            let kept = || if here.keep_alive { steer::keep_alive(&socket, steer::KEEPALIVE_S) } else { Ok(()) };
            if let Err(e) = sockets::prepare(&socket).and_then(|()| kept()) {
                crate::log(format_args!("{client} to {server}: {e}"));
                continue;
            }
            // A listener is an ordinary socket to the programs of its namespace. Only what a policy took goes on: another
            // connection would lead to this listener again, or to addresses of the peer that no policy names.
            let own = sys::local_address(&here.listeners[which]).is_ok_and(|own| own == server);
            if own || here.named(&self.env.config, server).is_none() {
                self.env.count(ProxyCounter::ConnectionsNotNamed);
                continue;
            }
            self.on_accepted(place, socket, (client, server));
        }
    }

    /// Joins an accepted socket to what has waited for it; a connection whose SYN was not held begins here.
    fn on_accepted(&mut self, place: usize, socket: OwnedFd, ends: Ends) {
        match self.env.syns.take_passed(ends) {
            Some(SynOwner::Stream(key)) => self.streams.join(&mut self.env, key, socket),
            Some(SynOwner::Pair(key)) => self.pairs.join(&mut self.env, key, socket),
            // Closed with its option set: a reset.
            Some(SynOwner::None) => self.env.count(ProxyCounter::SocketsWithoutStream),
            None => {
                let owner = self.env.shares.owner_of(&self.env.places, place, ends);
                match self.env.shares.connection(owner) {
                    Some(charges) => self.dispatch(TcpEnd { place, socket: Some(socket), ends, charges }),
                    // Closed with its option set: a reset.
                    None => self.env.note_over_share(ends),
                }
            }
        }
    }

    /// Takes the SYNs that wait in the queue of a place.
    pub(super) fn take_syns(&mut self, place: usize) {
        loop {
            let Some(queue) = &self.env.places.get(place).queue else { return };
            match queue.next() {
                Ok(Some(syn)) => self.on_syn(place, syn),
                Ok(None) => return,
                Err(e) => {
                    self.env.count(ProxyCounter::SynsLost);
                    return crate::log(format_args!("SYNs were lost, and will be repeated: {e}"));
                }
            }
        }
    }

    pub(super) fn on_syn(&mut self, place: usize, syn: Syn) {
        let (ends, queued) = ((syn.client, syn.server), QueuedSyn { place, packet: syn.packet, seq: syn.seq });
        if let Some(copy) = self.env.syns.repeated(ends, self.env.places.is_paused()) {
            return self.on_copy(queued, copy);
        }
        let (here, config) = (self.env.places.get(place), &self.env.config);
        // Connections of this proxy to a server for a peer have the mark as well.
        let is_own = || here.serves(config, syn.server.ip()) && !sockets::is_local(syn.client);
        if here.named(config, syn.server).is_none() || is_own() {
            return self.env.decide(queued, Verdict::Pass);
        }
        let owner = self.env.shares.owner_of(&self.env.places, place, ends);
        let Some(charges) = self.env.shares.connection(owner) else {
            self.env.note_over_share(ends);
            return self.env.decide(queued, Verdict::Drop);
        };
        let Some(syn) = self.env.shares.syn(owner) else {
            // As with a full queue. The sockets are charged again when it is accepted.
            return self.env.decide(queued, Verdict::Pass);
        };
        self.env.count(ProxyCounter::SynsHeld);
        self.env.syns.hold(ends, queued, Some(syn));
        self.dispatch(TcpEnd { place, socket: None, ends, charges });
    }

    /// A copy of a SYN has come.
    fn on_copy(&mut self, queued: QueuedSyn, copy: SynCopy) {
        let owner = match copy {
            SynCopy::Drop => return self.env.decide(queued, Verdict::Drop),
            SynCopy::Pass => return self.env.decide(queued, Verdict::Pass),
            SynCopy::Refuse(owner) => owner,
        };
        self.env.count(ProxyCounter::SynsRefused);
        self.env.decide(queued, Verdict::Refuse);
        self.end_owner(owner);
    }

    /// No socket will come for an owner.
    pub(super) fn end_owner(&mut self, owner: SynOwner) {
        match owner {
            SynOwner::Stream(key) => self.streams.reset(&mut self.env, key, Outcome::Reset, Reason::ProxyReset.into()),
            SynOwner::Pair(key) => self.pairs.end(&mut self.env, key, Verdict::Drop),
            SynOwner::None => {}
        }
    }

    fn dispatch(&mut self, taken: TcpEnd) {
        let (_, server) = taken.ends;
        let here = self.env.places.get(taken.place);
        let by_tcp = |take: usize| self.env.config.config.take[take].relay == RelayBy::Tcp;
        let chosen = if here.named(&self.env.config, server).is_some_and(by_tcp) {
            Err(Reason::ProxyPolicyTcp)
        } else if self.env.draining {
            Err(Reason::ProxyDraining)
        } else {
            self.streams.links.choose(server)
        };
        let left = match chosen {
            Ok(link) => self.streams.open(&mut self.env, link, taken),
            Err(why) => Err((taken, why)),
        };
        if let Err(by_tcp) = left {
            self.pairs.relay(&mut self.env, by_tcp);
        }
    }
}
