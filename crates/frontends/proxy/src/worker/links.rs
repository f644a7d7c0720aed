//! All links of a worker, and what it knows of their peers.
//!
//! The dialing of links is in [`dialing`], the growth of their streams' windows in [`window_growth`].

mod dialing;
mod idle_memory;
mod window_growth;

use super::conn::ProxyConn;
use super::env::WorkerEnv;
use super::link::PeerLink;
use super::peer_index::PeerIndex;
use super::rdma_port::RdmaPort;
use super::seals::LinkSeals;
use super::snapshot::LinkView;
use super::token::{LINKS_MAX, StreamKey};
use crate::message::{Introduction, PeerUp};
use crate::pool::{PoolTotals, WindowPool};
use crate::rdma::{CmId, LinkQp};
use burst_base::Reason;
use burst_relay::{BatchPlace, LinkOutbox, PeerFault};
use idle_memory::IdleMemory;
#[cfg(test)]
pub(super) use idle_memory::{REGIONS_AT_ONCE, SWEEP_PAUSE};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

/// A fault of a link's peer, with the link's index.
pub(super) type LinkFault = (usize, PeerFault);

/// A listener for queue pairs, and what requests to it must carry.
type QpListener = (SocketAddr, [u8; 16]);

/// A peer, as this worker knows it.
#[derive(Debug)]
struct PeerView {
    introduction: Introduction,
    /// The control channel works.
    channel: bool,
    /// What the peer's requests must carry.
    token: [u8; 16],
    /// By its worker.
    listens: HashMap<u32, QpListener>,
}

impl PeerView {
    /// The listener for a link.
    fn listener_of(&self, link: u32) -> Option<QpListener> {
        self.listens.get(&(link % self.introduction.workers)).copied()
    }
}

/// The links. There are none at first.
#[derive(Debug, Default)]
pub(super) struct Links {
    peers: HashMap<usize, PeerView>,
    /// `None`: free. Before `rdma`: queue pairs end before the device.
    links: Vec<Option<PeerLink>>,
    /// Memory of all links.
    totals: Rc<PoolTotals>,
    index: PeerIndex,
    /// Links by identifiers of connections that they have had; [`Links::find_id`] asks the link.
    ids: HashMap<CmId, usize>,
    /// The link at which the next check of links begins.
    mended: usize,
    idle_memory: IdleMemory,
    pub(super) rdma: RdmaPort,
    /// Links that may have something to send, in order.
    dirty: VecDeque<usize>,
    /// Links whose messages were not all taken in their last turn.
    pub(super) unreceived: VecDeque<usize>,
    /// Links whose connections have waited for room in the outbox, which had it when they were added.
    pub(super) unblocked: VecDeque<usize>,
}

impl Links {
    /// A link.
    pub(super) fn get(&self, at: usize) -> Option<&PeerLink> {
        self.links.get(at)?.as_ref()
    }

    /// A link.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut PeerLink> {
        self.links.get_mut(at)?.as_mut()
    }

    /// A connection.
    pub(super) fn conn(&self, key: StreamKey) -> Option<&ProxyConn> {
        self.get(key.link)?.conns.get(key.key)
    }

    /// A connection, and what of its link it uses.
    pub(super) fn conn_mut(&mut self, key: StreamKey) -> Option<(&mut ProxyConn, &mut LinkOutbox, &mut WindowPool)> {
        let PeerLink { conns, outbox, pool, .. } = self.get_mut(key.link)?;
        Some((conns.get_mut(key.key)?, outbox, pool))
    }

    /// A PLACED announces bytes of a connection, which are decrypted if the link is encrypted.
    ///
    /// # Errors
    /// A [`PeerFault`]; the bytes must not be delivered.
    pub(super) fn take_placed(&mut self, key: StreamKey, offset: u64, len: u32) -> Result<(), PeerFault> {
        let Some(PeerLink { conns, transport, pool, seals, .. }) = self.get_mut(key.link) else { return Ok(()) };
        let Some(ProxyConn { stream, slot, .. }) = conns.get_mut(key.key) else { return Ok(()) };
        stream.on_data(offset, len as usize)?;
        if !seals.is_on() {
            return Ok(());
        }
        let (id, slot) = (stream.id(), slot.ok_or(PeerFault::Turn(stream.id()))?);
        let opener = transport.opener.as_mut().ok_or(PeerFault::Unauthentic)?;
        let bytes = pool.take_sealed(slot, offset, len as usize).ok_or(PeerFault::Offset(id))?;
        opener.open_place(BatchPlace { stream: id, offset, len }, bytes)
    }

    /// The index of a peer's link.
    pub(super) fn find(&self, peer: usize, number: u32) -> Option<usize> {
        self.index.link(peer, number)
    }

    /// One more than the greatest index.
    pub(super) fn end(&self) -> usize {
        self.links.len()
    }

    /// A peer is there, perhaps again.
    pub(super) fn peer_up(&mut self, env: &mut WorkerEnv, up: PeerUp) {
        let PeerUp { peer, introduction, dials, token, encrypts, secret } = up;
        let (own, theirs) = (env.config.workers, introduction.workers);
        self.index.add_peer(peer, token, &introduction.serves);
        let view = PeerView { introduction, channel: true, token, listens: HashMap::new() };
        if let Some(before) = self.peers.insert(peer, view) {
            let now = &self.peers[&peer].introduction.serves;
            let gone: Vec<_> =
                before.introduction.serves.iter().filter(|prefix| !now.contains(prefix)).copied().collect();
            self.index.remove_serves(peer, &gone);
            for at in self.index.links_of(peer) {
                self.links[at].iter_mut().for_each(|link| link.seals.learn(&secret));
            }
            return self.set_channel(env, peer, true);
        }
        for number in (0..own.max(theirs)).filter(|number| number % own == env.number) {
            let seals = LinkSeals::new(encrypts, &secret);
            let link = PeerLink::new(
                (peer, number),
                dials,
                WindowPool::new(env.config.window, seals.is_on(), &self.totals),
                seals,
            );
            let at = self.index.add_link(peer, number, self.links.len());
            if at == self.links.len() {
                self.links.push(None);
            }
            self.links[at] = Some(link);
        }
        assert!(self.links.len() <= LINKS_MAX, "memory for queue pairs ends long before");
        env.timer.start();
    }

    /// A peer takes no new streams.
    pub(super) fn peer_drains(&mut self, peer: usize) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.introduction.draining = true;
        }
    }

    /// Forgets a peer; whether it was known. Its links are to be taken out.
    pub(super) fn forget_peer(&mut self, peer: usize) -> bool {
        let Some(gone) = self.peers.remove(&peer) else { return false };
        self.index.remove_peer(peer, gone.token, &gone.introduction.serves);
        true
    }

    /// Takes a link of a peer out, if it has one; with its index.
    pub(super) fn take_link_of(&mut self, peer: usize) -> Option<(usize, PeerLink)> {
        let at = self.index.take_link_of(peer)?;
        let mut link = self.links[at].take()?;
        self.rdma.destroy(link.transport.resolving.take());
        Some((at, link))
    }

    /// The link for a new stream to a server, or why there is none: the least used one of the peer with the longest prefix.
    pub(super) fn choose(&self, server: SocketAddr) -> Result<usize, Reason> {
        let known = self.index.serving(server.ip()).and_then(|number| Some((number, self.peers.get(&number)?)));
        let Some((number, peer)) = known else { return Err(Reason::ProxyNoPeer) };
        if peer.introduction.draining {
            return Err(Reason::ProxyDraining);
        }
        let links = self.index.links_of(number).filter_map(|at| self.get(at).map(|link| (at, link)));
        let active = links.filter(|(_, link)| link.transport.active);
        active.min_by_key(|(_, link)| link.conns.len()).map(|(at, _)| at).ok_or(Reason::ProxyNoLink)
    }

    /// The link may have something to send.
    pub(super) fn mark_dirty(&mut self, at: usize) {
        if self.get_mut(at).is_some_and(|link| !std::mem::replace(&mut link.is_dirty, true)) {
            self.dirty.push_back(at);
        }
    }

    /// How often links are in the list of those that may have something to send.
    #[cfg(test)]
    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Sends what waits on all links that may have something to send.
    pub(super) fn flush_all(&mut self, env: &mut WorkerEnv) {
        while let Some(at) = self.dirty.pop_front() {
            self.get_mut(at).into_iter().for_each(|link| link.is_dirty = false);
            self.flush(env, at);
        }
    }

    /// Sends what waits on a link. If its outbox has room then, and connections have waited for that, it is in `unblocked`.
    pub(super) fn flush(&mut self, env: &mut WorkerEnv, at: usize) {
        let Some(link) = self.links[at].as_mut().filter(|link| link.transport.active) else { return };
        if let Err(e) = link.send(env) {
            return self.qp_failed(env, at, &e);
        }
        if !link.outbox.blocked() && !link.waiting.is_empty() && !std::mem::replace(&mut link.is_unblocked, true) {
            self.unblocked.push_back(at);
        }
    }

    /// The next connection that has waited for room in an outbox that has it. Takes it from its link.
    pub(super) fn take_unblocked(&mut self) -> Option<StreamKey> {
        while let Some(at) = self.unblocked.front().copied() {
            let link = self.links[at].as_mut();
            if let Some(link) = link.filter(|link| link.is_unblocked && !link.outbox.blocked())
                && let Some(key) = link.waiting.pop_front()
            {
                return Some(StreamKey { link: at, key });
            }
            self.unblocked.pop_front();
            self.get_mut(at).into_iter().for_each(|link| link.is_unblocked = false);
        }
        None
    }

    /// The queue pair of a link.
    pub(super) fn qp_mut(&mut self, at: usize) -> Option<&mut LinkQp> {
        self.get_mut(at)?.transport.qp.as_mut()
    }

    /// The value of a call for a link's queue pair, which has failed otherwise.
    pub(super) fn unless_failed<T>(&mut self, env: &mut WorkerEnv, at: usize, done: std::io::Result<T>) -> Option<T> {
        done.map_err(|e| self.qp_failed(env, at, &e)).ok()
    }

    /// Whether each queue pair announces its next message by an event. What came before must be taken after this was made so.
    pub(super) fn all_armed(&self) -> bool {
        self.links.iter().flatten().filter_map(|link| link.transport.qp.as_ref()).all(LinkQp::is_armed)
    }

    /// Lets each queue pair announce its next message by an event.
    pub(super) fn arm_all(&mut self, env: &mut WorkerEnv) {
        for at in 0..self.links.len() {
            let armed = self.qp_mut(at).filter(|qp| !qp.is_armed()).map_or(Ok(()), LinkQp::arm);
            self.unless_failed(env, at, armed);
        }
    }

    /// Takes a completion event and arms its queue again; returns the link, whose completions are to be taken.
    pub(super) fn next_completion(&mut self, env: &mut WorkerEnv) -> Option<usize> {
        loop {
            let device = self.rdma.known_device()?;
            let (at, cq) = match device.completion_event() {
                Ok(event) => event?,
                Err(e) => {
                    crate::log(format_args!("RDMA begins again: {e}"));
                    // Queue pairs, regions and identifiers end before it.
                    drop(device);
                    self.restart_rdma(env);
                    return None;
                }
            };
            let Some(qp) = self.qp_mut(at) else { continue };
            qp.event_taken(cq);
            let armed = qp.arm();
            if self.unless_failed(env, at, armed).is_some() {
                return Some(at);
            }
        }
    }

    /// The name of a peer.
    pub(super) fn peer_name(&self, peer: usize) -> String {
        self.peers.get(&peer).map_or(String::new(), |peer| peer.introduction.name.clone())
    }

    /// For `burst proxy ls`.
    pub(super) fn views(&self) -> impl Iterator<Item = LinkView> {
        self.iter().map(|link| link.view(self.peer_name(link.peer)))
    }

    /// All links.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PeerLink> {
        self.links.iter().flatten()
    }
}
