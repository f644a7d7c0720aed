//! How links get their transports, and how a broken one is replaced.
//!
//! The side whose name sorts first dials. An attempt has a number; the dialing side connects a queue pair (its
//! request carries token, link and attempt), and both sides exchange a hello over the control channel. From the peer's hello on a
//! side sends, beginning with what the peer lacks. Without RDMA, or if it fails, the attempt is for the control channel itself;
//! then RDMA is tried again every second. A side whose queue pair fails dials again, or sends `Broken` to the dialing side.

use super::{LinkFault, Links, QpListener};
use crate::counters::ProxyCounter;
use crate::message::Report;
use crate::rdma::{CmId, EventKind, LinkQp, PRIVATE_BYTES, Rdma, RdmaEvent};
use crate::worker::env::WorkerEnv;
use crate::worker::link::PeerLink;
use burst_relay::{BATCHES, LinkHello};
use std::io::{Error, Result};
use std::time::{Duration, Instant};

/// How long an attempt may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);
/// Identifiers of former attempts that are kept beside as many as there are links.
const IDS_KEPT: usize = 64;
/// Links that one pass looks at for whether they work.
pub(super) const MENDED_AT_ONCE: usize = 64;
/// Time between attempts to use RDMA again.
const RDMA_AGAIN: Duration = Duration::from_secs(1);

/// What a request for a queue pair carries: token, link and attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QpRequest {
    token: [u8; 16],
    link: u32,
    attempt: u64,
}

impl QpRequest {
    fn to_private(self) -> [u8; PRIVATE_BYTES] {
        let mut bytes = [0; PRIVATE_BYTES];
        bytes[..16].copy_from_slice(&self.token);
        bytes[16..20].copy_from_slice(&self.link.to_le_bytes());
        bytes[20..].copy_from_slice(&self.attempt.to_le_bytes());
        bytes
    }

    fn from_private(bytes: &[u8; PRIVATE_BYTES]) -> Self {
        let (mut token, mut link, mut attempt) = ([0; 16], [0; 4], [0; 8]);
        token.copy_from_slice(&bytes[..16]);
        link.copy_from_slice(&bytes[16..20]);
        attempt.copy_from_slice(&bytes[20..]);
        Self { token, link: u32::from_le_bytes(link), attempt: u64::from_le_bytes(attempt) }
    }
}

impl Links {
    /// The device is gone: everything of it ends, and the listener begins again.
    pub(super) fn restart_rdma(&mut self, env: &mut WorkerEnv) {
        env.count(ProxyCounter::RdmaRestarts);
        for link in self.links.iter_mut().flatten() {
            self.rdma.destroy(link.transport.resolving.take());
            let had_qp = link.transport.qp.is_some();
            if had_qp {
                link.transport.stop();
            }
            link.pool.deregister();
            if had_qp {
                link.report_down(env);
            }
        }
        self.rdma.open(env);
        env.timer.start();
    }

    /// A peer's listener for queue pairs, or none: links are dialled by it at once.
    pub(crate) fn peer_listens(&mut self, env: &mut WorkerEnv, peer: usize, worker: u32, at: Option<QpListener>) {
        let Some(view) = self.peers.get_mut(&peer) else { return };
        match at {
            Some(at) => view.listens.insert(worker, at),
            None => view.listens.remove(&worker),
        };
        let theirs = view.introduction.workers;
        let links: Vec<usize> = self.index.links_of(peer).collect();
        for at in links {
            let Some(link) = self.get(at) else { continue };
            if link.number % theirs == worker && link.dials && link.transport.qp.is_none() {
                self.attempt(env, at);
            }
        }
    }

    /// The control channel of a peer works, or not: the links that it has carried stop.
    pub(crate) fn set_channel(&mut self, env: &mut WorkerEnv, peer: usize, up: bool) {
        if let Some(view) = self.peers.get_mut(&peer) {
            view.channel = up;
        }
        for at in self.index.links_of(peer) {
            for link in self.links[at].iter_mut().filter(|link| link.transport.by_channel) {
                link.transport.stop();
                link.report_down(env);
            }
        }
        env.timer.start();
    }

    /// Breaks the queue pairs: for tests of resumption.
    pub(crate) fn break_queue_pairs(&mut self, env: &mut WorkerEnv) {
        for link in self.links.iter_mut().flatten().filter(|link| link.transport.qp.is_some()) {
            link.transport.stop();
            link.report_down(env);
        }
        env.timer.start_by(env.timer.now());
    }

    /// The peer's side of a link has lost the transport of an attempt.
    pub(crate) fn on_broken(&mut self, env: &mut WorkerEnv, at: usize, attempt: u64) {
        let Some(link) = self.get_mut(at) else { return };
        if link.dials && link.transport.attempt == attempt {
            link.transport.stop();
            self.attempt(env, at);
        }
    }

    /// Begins another attempt of a link that this side dials: RDMA if both have it, else the control channel.
    pub(super) fn attempt(&mut self, env: &mut WorkerEnv, at: usize) {
        let Some(link) = self.links[at].as_mut() else { return };
        debug_assert!(link.dials, "one side of a link counts its attempts");
        self.rdma.destroy(link.transport.resolving.take());
        let Some(peer) = self.peers.get(&link.peer) else { return };
        let (transport, now) = (&mut link.transport, env.timer.now());
        transport.attempt += 1;
        transport.began = Some(now);
        env.timer.start_if_stopped();
        if let Some((address, _)) = peer.listener_of(link.number).filter(|_| transport.may_use_rdma(now))
            && let Some(rdma) = &mut self.rdma.listener
        {
            transport.rdma_at = Some(now + RDMA_AGAIN);
            match rdma.dial(address) {
                Ok(id) => {
                    transport.qp = None;
                    transport.resolving = Some(id);
                    return self.note_id(id, at);
                }
                Err(e) => crate::log(format_args!("RDMA to {address}: {e}")),
            }
        }
        if transport.by_channel || !peer.channel {
            transport.began = None;
            return;
        }
        transport.use_channel(transport.attempt);
        link.say_hello(env);
    }

    /// The peer's hello for a link.
    ///
    /// # Errors
    /// Of [`PeerLink::resume`].
    pub(crate) fn on_hello(
        &mut self,
        env: &mut WorkerEnv,
        at: usize,
        by_channel: bool,
        hello: LinkHello,
    ) -> std::result::Result<(), LinkFault> {
        let Some(link) = self.get_mut(at) else { return Ok(()) };
        if by_channel && !link.dials && hello.attempt > link.transport.attempt {
            link.transport.use_channel(hello.attempt);
            link.transport.hello = Some((true, hello));
            link.say_hello(env);
        } else if !link.transport.take_hello(by_channel, hello) {
            return Ok(());
        }
        self.activate(env, at)
    }

    /// Begins to send, if the transport is ready and the peer's hello for it has come.
    fn activate(&mut self, env: &mut WorkerEnv, at: usize) -> std::result::Result<(), LinkFault> {
        let Some(link) = self.get_mut(at) else { return Ok(()) };
        let Some(hello) = link.transport.take_beginning() else { return Ok(()) };
        if !link.transport.by_channel && !link.take_offer(hello.seal).map_err(|fault| (at, fault))? {
            self.qp_failed(env, at, &Error::other("the peer's hello names the key of another control channel"));
            return Ok(());
        }
        link.resume(hello).map_err(|fault| (at, fault))?;
        link.transport.active = true;
        link.transport.began = None;
        let (peer, number, by_channel) = (link.peer, link.number, link.transport.by_channel);
        env.count(if by_channel { ProxyCounter::LinksOnControlChannel } else { ProxyCounter::LinksOnRdma });
        if link.transport.sealer.is_some() {
            env.count(ProxyCounter::LinksEncrypted);
        }
        env.report(Report::PeerLink { peer, link: number, up: true });
        self.probe(env, at);
        self.flush(env, at);
        env.timer.start();
        Ok(())
    }

    /// Links that do not work are dialled again, and those on the control channel try RDMA. Looks at [`MENDED_AT_ONCE`] links at
    /// most, and at the others in the next pass; returns at how many.
    pub(crate) fn mend(&mut self, env: &mut WorkerEnv, now: Instant) -> usize {
        if self.rdma.listener.is_none() && !self.links.is_empty() {
            if self.rdma.again.is_none_or(|again| now >= again) {
                self.rdma.open(env);
            }
            self.rdma.again.into_iter().for_each(|again| env.timer.start_by(again));
        }
        let mut waits = false;
        let all = self.links.len();
        let first = if self.mended < all { self.mended } else { 0 };
        let end = all.min(first + MENDED_AT_ONCE);
        self.mended = end;
        for at in first..end {
            let Some(link) = self.get(at).filter(|link| !link.transport.is_on_rdma()) else { continue };
            waits |= self.rdma.listener.is_some() || !link.transport.active;
            if !link.dials {
                continue;
            }
            match link.transport.began {
                // RDMA did not come about: the control channel, if it works. If that carried the link before, the peer
                // has left it for the queue pair when the request came.
                Some(began) if now > began + ATTEMPT_MAX => self.fall_back(env, at),
                None if !link.transport.active || link.transport.may_use_rdma(now) => self.attempt(env, at),
                Some(_) | None => {}
            }
        }
        match end < all {
            true => env.timer.start_by(now),
            false => self.mended = 0,
        }
        if waits {
            env.timer.start();
        }
        end - first
    }

    /// The attempt for a queue pair has failed.
    fn fall_back(&mut self, env: &mut WorkerEnv, at: usize) {
        let Some(link) = self.links[at].as_mut() else { return };
        self.rdma.destroy(link.transport.resolving.take());
        link.transport.stop();
        link.transport.began = None;
        link.transport.rdma_at = Some(env.timer.now() + RDMA_AGAIN);
        env.count(ProxyCounter::RdmaAttemptsFailed);
        // Also if the control channel carried the link: the peer may have left it for the queue pair.
        self.attempt(env, at);
    }

    /// Takes an event of librdmacm; `None`: none waits.
    pub(crate) fn next_cm_event(&mut self, env: &mut WorkerEnv) -> Option<std::result::Result<(), LinkFault>> {
        let event = match self.rdma.listener.as_mut()?.next_event() {
            Ok(event) => event?,
            Err(e) => {
                crate::log(format_args!("RDMA begins again: {e}"));
                self.restart_rdma(env);
                return None;
            }
        };
        if Rdma::device_is_gone(event.kind) {
            crate::log(format_args!("the RDMA device is gone"));
            self.restart_rdma(env);
            return None;
        }
        Some(self.on_cm_event(env, &event))
    }

    fn on_cm_event(&mut self, env: &mut WorkerEnv, event: &RdmaEvent) -> std::result::Result<(), LinkFault> {
        if event.kind == EventKind::Request {
            self.on_request(env, event.id, &event.private);
            return Ok(());
        }
        let Some(at) = self.find_id(event.id) else { return Ok(()) };
        let done = match event.kind {
            EventKind::AddressResolved => {
                self.rdma.listener.as_mut().map_or(Ok(()), |rdma| rdma.resolve_route(event.id))
            }
            EventKind::RouteResolved => self.connect(env, at, event.id),
            EventKind::Established => return self.on_established(env, at),
            EventKind::Failed(number) => Err(Error::other(format!("event {number}"))),
            EventKind::Request | EventKind::Other => Ok(()),
        };
        if let Err(e) = done {
            self.qp_failed(env, at, &e);
        }
        Ok(())
    }

    fn find_id(&self, id: CmId) -> Option<usize> {
        let at = self.ids.get(&id).copied()?;
        self.get(at).is_some_and(|link| link.has_id(id)).then_some(at)
    }

    /// A link has a new identifier. Those of former attempts are forgotten when they outnumber the links.
    fn note_id(&mut self, id: CmId, at: usize) {
        self.ids.insert(id, at);
        if self.ids.len() > 2 * self.links.len() + IDS_KEPT {
            let links = &self.links;
            let is_its = |id: &CmId, at: usize| links[at].as_ref().is_some_and(|link| link.has_id(*id));
            self.ids.retain(|id, at| is_its(id, *at));
        }
    }

    fn on_established(&mut self, env: &mut WorkerEnv, at: usize) -> std::result::Result<(), LinkFault> {
        let Some(link) = self.get_mut(at) else { return Ok(()) };
        link.transport.on_connected();
        link.say_hello(env);
        self.activate(env, at)
    }

    /// A queue pair has failed, or could not be made.
    pub(super) fn qp_failed(&mut self, env: &mut WorkerEnv, at: usize, error: &Error) {
        let Some(link) = self.get_mut(at) else { return };
        env.count(ProxyCounter::QueuePairsBroken);
        crate::log(format_args!("link {}: the queue pair is broken ({error})", link.number));
        if link.dials {
            let carried = link.transport.is_on_rdma();
            self.fall_back(env, at);
            if let (true, Some(link)) = (carried, self.get(at)) {
                link.report_down(env);
            }
        } else if link.transport.qp.is_some() {
            link.transport.stop();
            link.report_down(env);
        }
    }

    /// Makes the queue pair of a link whose route is resolved, and connects it.
    fn connect(&mut self, env: &mut WorkerEnv, at: usize, id: CmId) -> Result<()> {
        let device = self.rdma.device(env, id)?;
        let Some(link) = self.links[at].as_mut() else { return Ok(()) };
        let Some(peer) = self.peers.get(&link.peer) else { return Ok(()) };
        let Some((_, token)) = peer.listener_of(link.number) else {
            return Err(Error::other("the peer listens no more"));
        };
        link.pool.register(&device)?;
        let mut qp = LinkQp::new(id, &device, at, BATCHES)?;
        let transport = &mut link.transport;
        transport.resolving = None;
        let joined = qp.join(&QpRequest { token, link: link.number, attempt: transport.attempt }.to_private(), false);
        transport.qp = Some(qp);
        joined
    }

    fn on_request(&mut self, env: &mut WorkerEnv, id: CmId, private: &[u8; PRIVATE_BYTES]) {
        let request = QpRequest::from_private(private);
        // The token identifies the peer: each peer gets its own.
        let known = self.index.peer_of(&request.token).and_then(|peer| self.index.link(peer, request.link));
        let is = |link: &PeerLink| !link.dials && request.attempt > link.transport.attempt;
        let Some(at) = known.filter(|at| self.get(*at).is_some_and(is)) else {
            env.count(ProxyCounter::RequestsRefused);
            return self.rdma.reject(id);
        };
        if let Err(e) = self.accept_qp(env, at, id, private) {
            if self.get(at).is_none_or(|link| link.transport.qp.is_none()) {
                self.rdma.reject(id);
            }
            self.qp_failed(env, at, &e);
        }
    }

    /// Replaces the transport of a link by the queue pair that the peer asks for.
    fn accept_qp(&mut self, env: &mut WorkerEnv, at: usize, id: CmId, private: &[u8; PRIVATE_BYTES]) -> Result<()> {
        let device = self.rdma.device(env, id)?;
        let Some(link) = self.get_mut(at) else { return Ok(()) };
        link.transport.stop();
        link.transport.attempt = QpRequest::from_private(private).attempt;
        link.pool.register(&device)?;
        let mut qp = LinkQp::new(id, &device, at, BATCHES)?;
        let joined = qp.join(private, true);
        link.transport.qp = Some(qp);
        self.note_id(id, at);
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let request = QpRequest { token: *b"0123456789abcdef", link: 7, attempt: 1 << 40 };
        assert_eq!(QpRequest::from_private(&request.to_private()), request);
    }
}
