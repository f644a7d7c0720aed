//! Links of this worker: their transports, and how a broken one is replaced.
//!
//! The side whose name sorts first dials. An attempt has a number; the dialing side connects a queue pair (its
//! request carries token, link and attempt), and both sides exchange a hello over the control channel: what each has
//! received, and where its windows are. From the peer's hello on a side sends, beginning with what the peer lacks.
//! Without RDMA, or if it fails, the attempt is for the control channel itself; then RDMA is tried again every
//! second. A side whose queue pair fails dials anew, or tells the dialing side.

use super::RelayWorker;
use super::carry::{whole, writes};
use super::held_syns::SynOwner;
use super::held_syns::TakenConnection;
use super::round_trips::RoundTrips;
use super::table::TableKey;
use super::tick_timer::TICK;
use super::token::PollToken;
use crate::config::within;
use crate::counters::ProxyCounter;
use crate::engine::OwnEngine;
use crate::hold::Verdict;
use crate::message::{ControlMessage, Introduction, Report};
use crate::pool::WindowPool;
use crate::rdma::{CmId, Done, EventKind, LinkQp, PRIVATE_BYTES, RECEIVES_POLLED, Rdma};
use burst_base::Reason;
use burst_relay::{BATCHES, LinkHello, LinkInbox, LinkOutbox, WindowOf};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Time between attempts to use RDMA again.
const RDMA_AGAIN: Duration = Duration::from_secs(1);

/// Messages of a link taken per pass.
const RECEIVES: u64 = 2 * BATCHES;
/// Longest time between attempts to find an RDMA device.
const RDMA_PAUSE: Duration = Duration::from_secs(5);

/// A peer, as this worker knows it.
#[derive(Debug)]
pub(super) struct PeerView {
    pub(super) introduction: Introduction,
    pub(super) channel: bool,
    /// What the peer's requests must carry.
    token: [u8; 16],
    /// By its worker: listener and token.
    pub(super) listens: HashMap<u32, (SocketAddr, [u8; 16])>,
}

/// One link.
#[derive(Debug)]
pub(super) struct PeerLink {
    pub(super) peer: usize,
    pub(super) number: u32,
    pub(super) dials: bool,
    pub(super) attempt: u64,
    began: Option<Instant>,
    resolving: Option<CmId>,
    /// Before `pool`: a queue pair ends before the memory that its peer may write.
    qp: Option<LinkQp>,
    qp_ready: bool,
    /// The control channel carries the link (also while an attempt for a queue pair runs).
    pub(super) here: bool,
    /// The attempt by which it does.
    here_attempt: u64,
    /// The peer's hello of the present attempt, and whether it is for the control channel.
    hello: Option<(bool, LinkHello)>,
    /// Batches may be sent.
    pub(super) active: bool,
    rdma_at: Instant,
    pub(super) outbox: LinkOutbox,
    pub(super) round_trips: RoundTrips,
    pub(super) inbox: LinkInbox,
    pub(super) streams: HashMap<u32, TableKey>,
    pub(super) next_id: u32,
    pub(super) last_opened: u32,
    pub(super) waiting: VecDeque<TableKey>,
    pub(super) pool: WindowPool,
}

impl PeerLink {
    pub(super) fn carrier(&self) -> &'static str {
        match (self.active, self.here) {
            (false, _) => "down",
            (true, true) => "control channel",
            (true, false) => "rdma",
        }
    }

    fn stop(&mut self) {
        self.active = false;
        self.here = false;
        self.qp_ready = false;
        self.hello = None;
        self.qp = None;
    }
}

impl RelayWorker {
    pub(super) fn open_rdma(&mut self) {
        let port = match Rdma::listen(SocketAddr::new(self.env.config.rdma(), 0)) {
            Ok(rdma) => match self.env.poll.add(rdma.fd, libc::EPOLLIN, PollToken::CmEvents.to_bits()) {
                Ok(()) => {
                    let port = rdma.port;
                    self.rdma = Some(rdma);
                    self.engine = OwnEngine::find();
                    self.rdma_pause = TICK;
                    self.completions_added = false;
                    port
                }
                Err(e) => {
                    crate::log(format_args!("RDMA events cannot be watched: {e}"));
                    0
                }
            },
            Err(e) => {
                if self.env.counters.get(ProxyCounter::RdmaMissing).is_none() {
                    let at = self.env.config.rdma();
                    crate::log(format_args!("no RDMA device at {at} ({e}): streams travel over the control channel"));
                }
                self.env.count(ProxyCounter::RdmaMissing);
                0
            }
        };
        if port == 0 {
            self.rdma_again = Instant::now() + self.rdma_pause;
            self.rdma_pause = (2 * self.rdma_pause).min(RDMA_PAUSE);
        }
        if self.rdma_port != Some(port) {
            self.rdma_port = Some(port);
            self.env.report(Report::Listening { worker: self.env.number, port });
        }
    }

    /// The device is gone: everything of it ends, and the listener begins again.
    fn restart_rdma(&mut self) {
        self.env.count(ProxyCounter::RdmaRestarts);
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            if let Some(id) = link.resolving.take()
                && let Some(rdma) = &mut self.rdma
            {
                rdma.destroy(id);
            }
            let had = link.qp.is_some();
            if had {
                link.stop();
            }
            link.pool.deregister();
            if had {
                self.link_down(at);
            }
        }
        self.rdma = None;
        self.open_rdma();
        self.env.timer.start();
    }

    pub(super) fn peer_up(&mut self, number: usize, introduction: Introduction, dials: bool, token: [u8; 16]) {
        let (own, theirs) = (self.env.config.workers, introduction.workers);
        let known = self.peers.insert(number, PeerView { introduction, channel: true, token, listens: HashMap::new() });
        if known.is_some() {
            return self.channel(number, true);
        }
        for link in (0..own.max(theirs)).filter(|link| link % own == self.env.number) {
            let link = PeerLink {
                peer: number,
                number: link,
                dials,
                attempt: 0,
                began: None,
                resolving: None,
                qp: None,
                qp_ready: false,
                here: false,
                here_attempt: 0,
                hello: None,
                active: false,
                rdma_at: Instant::now(),
                outbox: LinkOutbox::default(),
                round_trips: RoundTrips::default(),
                inbox: LinkInbox::default(),
                streams: HashMap::new(),
                next_id: if dials { 1 } else { 2 },
                last_opened: 0,
                waiting: VecDeque::new(),
                pool: WindowPool::new(self.env.config.window),
            };
            match self.links.iter().position(Option::is_none) {
                Some(free) => self.links[free] = Some(link),
                None => self.links.push(Some(link)),
            }
        }
        self.env.timer.start();
    }

    pub(super) fn peer_listens(&mut self, peer: usize, worker: u32, at: Option<(SocketAddr, [u8; 16])>) {
        let Some(view) = self.peers.get_mut(&peer) else { return };
        match at {
            Some(at) => view.listens.insert(worker, at),
            None => view.listens.remove(&worker),
        };
        let theirs = view.introduction.workers;
        for at in 0..self.links.len() {
            let Some(link) = &self.links[at] else { continue };
            if link.peer == peer && link.number % theirs == worker && link.dials && link.qp.is_none() {
                self.attempt(at);
            }
        }
    }

    pub(super) fn channel(&mut self, peer: usize, up: bool) {
        if let Some(view) = self.peers.get_mut(&peer) {
            view.channel = up;
        }
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            if link.peer == peer && link.here {
                link.stop();
                self.link_down(at);
            }
        }
        self.env.timer.start();
    }

    pub(super) fn peer_gone(&mut self, peer: usize, why: &str) {
        if self.peers.remove(&peer).is_none() {
            return;
        }
        for at in 0..self.links.len() {
            if self.links[at].as_ref().is_none_or(|link| link.peer != peer) {
                continue;
            }
            let Some(mut link) = self.links[at].take() else { continue };
            if let (Some(id), Some(rdma)) = (link.resolving.take(), &mut self.rdma) {
                rdma.destroy(id);
            }
            let streams: Vec<TableKey> = link.streams.values().copied().collect();
            if !streams.is_empty() {
                crate::log(format_args!("{} streams are reset: {why}", streams.len()));
            }
            self.env.counters.add(ProxyCounter::StreamsReset, streams.len() as u64);
            for place in streams {
                if let Some(conn) = self.conns.get_mut(place) {
                    let (ends, opening) = ((conn.client, conn.server), conn.phase == super::conn::Phase::Opening);
                    let (socket, from) = (conn.socket.take(), conn.place);
                    let owner = SynOwner::Stream(place);
                    let end = if opening { self.release_end(socket, ends, place) } else { None };
                    self.env.end_syn(ends, owner, Verdict::Refuse);
                    self.forget(place);
                    if let Some(end) = end {
                        let taken = TakenConnection { place: from, end, ends };
                        self.pairs.relay(&mut self.env, taken, Reason::ProxyPeerGone);
                    }
                }
            }
            self.env.report(Report::PeerLink { peer, link: link.number, up: false });
        }
    }

    fn link_down(&mut self, at: usize) {
        let Some(link) = &self.links[at] else { return };
        let (peer, number, attempt, dials) = (link.peer, link.number, link.attempt, link.dials);
        self.env.report(Report::PeerLink { peer, link: number, up: false });
        if !dials {
            self.env.report(Report::ToPeer(peer, ControlMessage::Broken { link: number, attempt }));
        }
        self.env.timer.start();
    }

    pub(super) fn on_broken(&mut self, peer: usize, number: u32, attempt: u64) {
        let Some(at) = self.find(peer, number) else { return };
        let Some(link) = &mut self.links[at] else { return };
        if link.dials && link.attempt == attempt {
            link.stop();
            self.attempt(at);
        }
    }

    pub(super) fn break_queue_pairs(&mut self) {
        for at in 0..self.links.len() {
            if let Some(link) = &mut self.links[at]
                && link.qp.is_some()
            {
                link.stop();
                self.link_down(at);
            }
        }
        self.env.timer.start_by(Instant::now());
    }

    /// The link for a destination, or why there is none.
    pub(super) fn choose_link(&self, server: SocketAddr) -> Result<usize, Reason> {
        let serves = self.peers.iter().flat_map(|(number, peer)| {
            let prefixes = peer.introduction.serves.iter().filter(|prefix| within(server.ip(), **prefix));
            prefixes.map(move |prefix| (prefix.1, *number, peer))
        });
        let Some((_, number, peer)) = serves.max_by_key(|(bits, number, _)| (*bits, *number)) else {
            return Err(Reason::ProxyNoPeer);
        };
        if peer.introduction.draining {
            return Err(Reason::ProxyDraining);
        }
        let links = self.links.iter().enumerate().filter_map(|(at, link)| link.as_ref().map(|link| (at, link)));
        let active = links.filter(|(_, link)| link.peer == number && link.active);
        active.min_by_key(|(_, link)| link.streams.len()).map(|(at, _)| at).ok_or(Reason::ProxyNoLink)
    }

    pub(super) fn find(&self, peer: usize, number: u32) -> Option<usize> {
        self.links.iter().position(|link| link.as_ref().is_some_and(|l| l.peer == peer && l.number == number))
    }

    fn find_id(&self, id: CmId) -> Option<usize> {
        let is = |link: &PeerLink| link.resolving == Some(id) || link.qp.as_ref().is_some_and(|qp| qp.id() == id);
        self.links.iter().position(|link| link.as_ref().is_some_and(is))
    }

    /// Begins another attempt of a link that this side dials: RDMA if both have it, else the control channel.
    fn attempt(&mut self, at: usize) {
        let Some(link) = &mut self.links[at] else { return };
        if let (Some(id), Some(rdma)) = (link.resolving.take(), &mut self.rdma) {
            rdma.destroy(id);
        }
        let Some(peer) = self.peers.get(&link.peer) else { return };
        let now = Instant::now();
        link.attempt += 1;
        link.began = Some(now);
        self.env.timer.start_if_stopped();
        let target = peer.listens.get(&(link.number % peer.introduction.workers)).copied();
        if now >= link.rdma_at
            && let (Some((address, _)), Some(rdma)) = (target, &mut self.rdma)
        {
            link.rdma_at = now + RDMA_AGAIN;
            match rdma.dial(address) {
                Ok(id) => {
                    link.qp = None;
                    link.resolving = Some(id);
                    return;
                }
                Err(e) => crate::log(format_args!("RDMA to {address}: {e}")),
            }
        }
        if link.here || !peer.channel {
            link.began = None;
            return;
        }
        self.attempt_here(at);
    }

    fn attempt_here(&mut self, at: usize) {
        let Some(link) = &mut self.links[at] else { return };
        link.stop();
        link.here = true;
        link.here_attempt = link.attempt;
        self.say_hello(at);
    }

    fn say_hello(&mut self, at: usize) {
        let Some(link) = &mut self.links[at] else { return };
        link.inbox.resume();
        let pool = &link.pool;
        let windows = link.streams.iter().flat_map(|(id, place)| {
            let slot = self.conns.get(*place).and_then(|conn| conn.slot);
            let windows = slot.into_iter().flat_map(|slot| pool.windows(slot));
            windows.map(|window| WindowOf { stream: *id, window })
        });
        let attempt = if link.here { link.here_attempt } else { link.attempt };
        let (number, received, peer, here) = (link.number, link.inbox.received(), link.peer, link.here);
        let hello = LinkHello { link: number, attempt, received, windows: windows.collect() };
        self.env.report(Report::ToPeer(peer, ControlMessage::LinkHello { here, bytes: hello.to_bytes() }));
    }

    pub(super) fn on_hello(&mut self, peer: usize, here: bool, hello: LinkHello) {
        let Some(at) = self.find(peer, hello.link) else { return };
        let Some(link) = &mut self.links[at] else { return };
        if here && !link.dials && hello.attempt > link.attempt {
            link.stop();
            link.attempt = hello.attempt;
            link.here_attempt = hello.attempt;
            link.here = true;
            link.hello = Some((true, hello));
            self.say_hello(at);
        } else if hello.attempt == if here { link.here_attempt } else { link.attempt } {
            link.hello = Some((here, hello));
        } else {
            return;
        }
        self.activate(at);
    }

    fn activate(&mut self, at: usize) {
        let Some(link) = &mut self.links[at] else { return };
        if link.active || !(link.qp_ready || link.here) {
            return;
        }
        let Some((_, hello)) = link.hello.take_if(|(here, _)| *here == link.here) else { return };
        for WindowOf { stream, window } in hello.windows {
            if let Some(conn) = link.streams.get(&stream).and_then(|place| self.conns.get_mut(*place))
                && conn.stream.peer_window().is_some()
            {
                conn.stream.move_peer_window(window);
            }
        }
        let (streams, pool, conns) = (&link.streams, &link.pool, &self.conns);
        link.outbox.move_windows(|id, len| {
            let slot = conns.get(*streams.get(&id)?)?.slot?;
            pool.windows(slot).find(|window| window.len == len)
        });
        if let Err(fault) = link.outbox.resume(hello.received) {
            return self.fault(at, fault);
        }
        link.active = true;
        link.began = None;
        let (peer, number, here) = (link.peer, link.number, link.here);
        self.env.counters.add(if here { ProxyCounter::LinksOnControlChannel } else { ProxyCounter::LinksOnRdma }, 1);
        self.env.report(Report::PeerLink { peer, link: number, up: true });
        self.probe(at);
        self.flush(at);
        self.env.timer.start();
    }

    /// Every link that does not work is dialled again, and one on the control channel tries RDMA.
    pub(super) fn mend_links(&mut self, now: Instant) {
        let mut more = false;
        if self.rdma.is_none() && !self.links.is_empty() {
            if now >= self.rdma_again {
                self.open_rdma();
            }
            self.env.timer.start_by(self.rdma_again);
        }
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            if link.active && !link.here {
                continue;
            }
            more |= self.rdma.is_some() || !link.active;
            if !link.dials {
                continue;
            }
            let late = link.began.is_some_and(|began| now > began + ATTEMPT);
            if late {
                // RDMA did not come about: the control channel, if it works. If that carried the link before, the peer
                // has left it for the queue pair when the request came.
                self.fall_back(at);
            } else if link.began.is_none() {
                if link.active && now < link.rdma_at {
                    continue;
                }
                self.attempt(at);
            }
        }
        if more {
            self.env.timer.start();
        }
    }

    fn fall_back(&mut self, at: usize) {
        let Some(link) = &mut self.links[at] else { return };
        if let (Some(id), Some(rdma)) = (link.resolving.take(), &mut self.rdma) {
            rdma.destroy(id);
        }
        link.stop();
        link.began = None;
        link.rdma_at = Instant::now() + RDMA_AGAIN;
        self.env.count(ProxyCounter::RdmaAttemptsFailed);
        // Also if the control channel carried the link: the peer may have left it for the queue pair.
        self.attempt(at);
    }

    pub(super) fn take_cm_events(&mut self) {
        loop {
            let Some(rdma) = &mut self.rdma else { return };
            let event = match rdma.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(e) => {
                    crate::log(format_args!("RDMA begins again: {e}"));
                    return self.restart_rdma();
                }
            };
            if Rdma::device_is_gone(event.kind) {
                crate::log(format_args!("the RDMA device is gone"));
                return self.restart_rdma();
            }
            if event.kind == EventKind::Request {
                self.on_request(event.id, &event.private);
                continue;
            }
            let Some(at) = self.find_id(event.id) else { continue };
            let done = match event.kind {
                EventKind::AddressResolved => self.rdma.as_mut().map_or(Ok(()), |rdma| rdma.resolve_route(event.id)),
                EventKind::RouteResolved => self.join(at, event.id),
                EventKind::Established => {
                    if let Some(link) = &mut self.links[at] {
                        if link.here {
                            link.stop_here();
                        }
                        link.qp_ready = true;
                        link.resolving = None;
                    }
                    self.say_hello(at);
                    self.activate(at);
                    Ok(())
                }
                EventKind::Failed(number) => Err(std::io::Error::other(format!("event {number}"))),
                EventKind::Request | EventKind::Other => Ok(()),
            };
            if let Err(e) = done {
                self.qp_failed(at, &e);
            }
        }
    }

    fn qp_failed(&mut self, at: usize, error: &std::io::Error) {
        let Some(link) = &mut self.links[at] else { return };
        self.env.count(ProxyCounter::QueuePairsBroken);
        crate::log(format_args!("link {}: the queue pair is broken ({error})", link.number));
        if link.dials {
            let carried = link.active && !link.here;
            self.fall_back(at);
            if carried {
                self.link_down(at);
            }
        } else if link.qp.is_some() {
            link.stop();
            self.link_down(at);
        }
    }

    fn private(token: &[u8; 16], number: u32, attempt: u64) -> [u8; PRIVATE_BYTES] {
        let mut private = [0; PRIVATE_BYTES];
        private[..16].copy_from_slice(token);
        private[16..20].copy_from_slice(&number.to_le_bytes());
        private[20..].copy_from_slice(&attempt.to_le_bytes());
        private
    }

    /// Makes the queue pair of a link and connects it.
    fn join(&mut self, at: usize, id: CmId) -> std::io::Result<()> {
        let device = self.device(id)?;
        let Some(link) = &mut self.links[at] else { return Ok(()) };
        let Some(peer) = self.peers.get(&link.peer) else { return Ok(()) };
        let Some((_, token)) = peer.listens.get(&(link.number % peer.introduction.workers)) else {
            return Err(std::io::Error::other("the peer listens no more"));
        };
        link.pool.register(&device)?;
        let mut qp = LinkQp::new(id, &device, at, BATCHES)?;
        link.resolving = None;
        let joined = qp.join(&Self::private(token, link.number, link.attempt), false);
        link.qp = Some(qp);
        joined
    }

    fn device(&mut self, id: CmId) -> std::io::Result<std::rc::Rc<crate::rdma::ProxyDevice>> {
        let rdma = self.rdma.as_mut().ok_or_else(|| std::io::Error::other("no RDMA"))?;
        let device = rdma.device(id)?;
        if !self.completions_added {
            self.env.poll.add(device.fd, libc::EPOLLIN, PollToken::Completions.to_bits())?;
            self.completions_added = true;
        }
        Ok(device)
    }

    fn on_request(&mut self, id: CmId, private: &[u8; PRIVATE_BYTES]) {
        let number = u32::from_le_bytes([private[16], private[17], private[18], private[19]]);
        let mut attempt = [0; 8];
        attempt.copy_from_slice(&private[20..]);
        let attempt = u64::from_le_bytes(attempt);
        // The token tells the peer: each gets its own.
        let links = self.links.iter().position(|link| {
            link.as_ref().is_some_and(|link| {
                let ours = self.peers.get(&link.peer).is_some_and(|peer| private[..16] == peer.token);
                ours && !link.dials && link.number == number && attempt > link.attempt
            })
        });
        let Some(at) = links else {
            self.env.count(ProxyCounter::RequestsRefused);
            if let Some(rdma) = &mut self.rdma {
                rdma.reject(id);
            }
            return;
        };
        let accepted = self.device(id).and_then(|device| {
            let Some(link) = &mut self.links[at] else { return Ok(()) };
            link.stop();
            link.attempt = attempt;
            link.pool.register(&device)?;
            let mut qp = LinkQp::new(id, &device, at, BATCHES)?;
            let joined = qp.join(private, true);
            link.qp = Some(qp);
            joined
        });
        if let Err(e) = accepted {
            let owned = self.links[at].as_ref().is_some_and(|link| link.qp.is_some());
            if let (false, Some(rdma)) = (owned, &mut self.rdma) {
                rdma.reject(id);
            }
            self.qp_failed(at, &e);
        }
    }

    pub(super) fn take_completions(&mut self) {
        let Some(device) = self.rdma.as_ref().and_then(Rdma::known_device) else { return };
        loop {
            let (at, cq) = match device.completion_event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(e) => {
                    crate::log(format_args!("RDMA begins again: {e}"));
                    drop(device);
                    return self.restart_rdma();
                }
            };
            let Some(Some(link)) = self.links.get_mut(at) else { continue };
            let Some(qp) = &mut link.qp else { continue };
            qp.event_taken(cq);
            if let Err(e) = qp.arm() {
                self.qp_failed(at, &e);
                continue;
            }
            self.receive(at);
            // A completion of a send makes room for what waits.
            self.mark_dirty(at);
        }
    }

    /// Takes what has come by the queue pairs, without completion events.
    pub(super) fn look(&mut self) -> bool {
        let (mut found, mut looked) = (false, false);
        for at in 0..self.links.len() {
            if self.links[at].as_ref().is_some_and(|link| link.qp.is_some()) {
                looked = true;
                found |= self.receive(at);
            }
        }
        if let (Some(engine), false) = (&self.engine, looked) {
            // Otherwise the look at an empty queue is a pass of the engine.
            engine.turn();
        }
        found
    }

    /// Whether each queue pair tells of its next message. What came before must be taken after this was made so.
    pub(super) fn all_armed(&self) -> bool {
        self.links.iter().flatten().filter_map(|link| link.qp.as_ref()).all(LinkQp::is_armed)
    }

    /// Lets each queue pair tell of its next message.
    pub(super) fn arm_all(&mut self) {
        for at in 0..self.links.len() {
            let Some(qp) = self.links[at].as_mut().and_then(|link| link.qp.as_mut()) else { continue };
            if !qp.is_armed()
                && let Err(e) = qp.arm()
            {
                self.qp_failed(at, &e);
            }
        }
    }

    /// Takes messages that have come, at most about [`RECEIVES`] before others have their turn. Returns whether any has.
    ///
    /// With an engine in this process a queue that gave less than was asked for is not asked again: each look at an empty
    /// queue is a pass of it.
    pub(super) fn receive(&mut self, at: usize) -> bool {
        let mut message = std::mem::take(&mut self.scratch);
        let mut done = [Done::default(); RECEIVES_POLLED];
        let mut taken = 0;
        while let Some(qp) = self.links.get_mut(at).and_then(Option::as_mut).and_then(|link| link.qp.as_mut()) {
            if taken >= RECEIVES {
                self.unreceived.push(at);
                break;
            }
            let count = match qp.poll_receives(&mut done) {
                Ok(count) => count,
                Err(e) => {
                    self.qp_failed(at, &e);
                    break;
                }
            };
            taken += count as u64;
            let empty = count == 0 || (self.engine.is_some() && count < RECEIVES_POLLED);
            if !self.take_messages(at, &done[..count], &mut message) || empty {
                break;
            }
        }
        self.scratch = message;
        if taken > 0 {
            self.mark_dirty(at);
        }
        taken > 0
    }

    /// Takes the messages of completions; false if the queue pair has ended meanwhile.
    fn take_messages(&mut self, at: usize, done: &[Done], message: &mut Vec<u8>) -> bool {
        let id = self.qp_id(at);
        for one in done {
            // A message can end the link, or its queue pair.
            let Some(link) = self.links.get_mut(at).and_then(Option::as_mut) else { return false };
            let Some(qp) = link.qp.as_mut().filter(|qp| Some(qp.id()) == id) else { return false };
            message.clear();
            if let Err(e) = qp.receive(*one, message) {
                self.qp_failed(at, &e);
                return false;
            }
            self.on_message(at, message);
        }
        true
    }

    fn qp_id(&self, at: usize) -> Option<CmId> {
        self.links.get(at)?.as_ref()?.qp.as_ref().map(LinkQp::id)
    }

    pub(super) fn on_channel_batch(&mut self, peer: usize, number: u32, attempt: u64, bytes: &[u8]) {
        let Some(at) = self.find(peer, number) else { return };
        let current = self.links[at].as_ref().is_some_and(|link| link.here && link.here_attempt == attempt);
        if current {
            self.on_message(at, bytes);
            self.mark_dirty(at);
        }
    }

    /// Sends what waits, and lets streams go on that waited for room.
    pub(super) fn flush(&mut self, at: usize) {
        let (mut messages, mut frames, mut placed) = (0, 0, 0);
        let failed = loop {
            let Some(link) = &mut self.links[at] else { return };
            if !link.active {
                return;
            }
            if let (Some(qp), false) = (&mut link.qp, link.here) {
                match qp.room() {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(e) => break Some(e),
                }
            }
            let (streams, conns) = (&link.streams, &self.conns);
            let stream = |id: u32| {
                let conn = conns.get(*streams.get(&id)?)?;
                Some((&conn.stream, conn.slot?))
            };
            let Some(batch) = link.outbox.next(&mut link.inbox) else { break None };
            link.round_trips.sent(batch.seq, Instant::now());
            messages += 1;
            frames += u64::from(batch.frames);
            placed += batch.places.len() as u64;
            if link.here {
                let bytes = whole(batch, &mut link.pool, stream);
                let (peer, message) =
                    (link.peer, ControlMessage::Batch { link: link.number, attempt: link.here_attempt, bytes });
                self.env.report(Report::ToPeer(peer, message));
                continue;
            }
            let writes = match writes(batch, &link.pool, stream) {
                Ok(writes) => writes,
                Err(e) => break Some(e),
            };
            let Some(qp) = &mut link.qp else { return };
            if let Err(e) = qp.send(batch.seq, &batch.bytes, &writes) {
                break Some(e);
            }
        };
        if messages > 0 {
            self.env.counters.add(ProxyCounter::MessagesSent, messages);
            self.env.counters.add(ProxyCounter::FramesSent, frames);
            self.env.counters.add(ProxyCounter::WritesSent, placed);
        }
        if let Some(e) = failed {
            return self.qp_failed(at, &e);
        }
        let Some(link) = &mut self.links[at] else { return };
        if link.outbox.blocked() {
            return;
        }
        for place in std::mem::take(&mut link.waiting) {
            if let Some(conn) = self.conns.get_mut(place) {
                conn.waits = false;
                self.queue(place);
            }
        }
    }
}

impl PeerLink {
    fn stop_here(&mut self) {
        self.here = false;
        self.active = false;
    }
}
