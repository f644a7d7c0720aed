//! The control thread: channels to peers, the heartbeat, the directory file, the maps of prefixes with a connected peer, and the
//! admin socket.
//!
//! Of two proxies the one whose name sorts first dials. A peer is known by name and session number: another number is
//! another process, or one that has given this peer up, and all streams of the earlier session are reset. A channel
//! that breaks is dialled again each second; the streams wait for `resume_s`, unless the peer's address refuses
//! connections, which says that its process has ended. New connections go by TCP as long as the channel or a link does
//! not work. Channels that no peer has opened are few, and end soon (`front`).

mod admin;
mod front;
mod peers;
mod reload;

use crate::config::{Checked, EncryptLinks, Prefix, RelayBy};
use crate::intercept::Interception;
use crate::intercept::watch::TakenHere;
use crate::message::{Command, ControlMessage, Introduction, Report};
use crate::peer_loss::PeerLoss;
use crate::sys::{EventFlags, Poll, Waker};
use crate::tls::{ControlChannel, TlsKeys};
use front::HANDSHAKE;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime};

/// Time between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Silence after which a channel counts as broken.
const SILENCE: Duration = Duration::from_secs(5);
/// Pause after a peer broke the protocol or showed a wrong certificate.
const PAUSE: Duration = Duration::from_secs(5);
/// Bytes of commands that may wait for a worker before channels are read on.
const QUEUED_MAX: usize = 16 << 20;
/// Pause before a worker's backlog is looked at again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);
/// Refused channels that are logged between two heartbeats: others can cause as many as they like.
const REFUSALS_LOGGED: u32 = 4;
/// Events taken at once.
const EVENTS_MAX: usize = 64;

const TOKEN_WAKE: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
const TOKEN_ADMIN: u64 = 2;
const TOKEN_SIGNAL: u64 = 3;
const TOKEN_CHANNEL: u64 = 16;

/// A worker, as the control thread knows it.
pub struct RelayHandle {
    /// To the worker.
    pub commands: Sender<Command>,
    /// Wakes it.
    pub wake: Arc<Waker>,
    /// Where it listens for queue pairs; 0: nowhere.
    pub port: u16,
    /// Bytes of commands that it has not taken yet.
    pub queued: Arc<AtomicUsize>,
}

/// A peer.
struct PeerState {
    name: String,
    /// Where to dial.
    address: SocketAddr,
    /// What it may serve; `None`: anything.
    serves: Option<Vec<Prefix>>,
    channel: Option<usize>,
    introduction: Option<Introduction>,
    /// What this side's introductions say.
    session: u64,
    /// Since when the channel is broken.
    lost: Option<Instant>,
    retry: Instant,
    /// The numbers of the links that work.
    links: BTreeSet<u32>,
    alive: bool,
    token: [u8; 16],
    /// The last complaint, so that each is logged once.
    complaint: String,
    /// The directory file names it.
    is_listed: bool,
    /// Neither the configuration nor the directory file names it any more: its number stays, because workers know it by that.
    is_removed: bool,
}

pub use admin::DRAIN_MAX;
pub use reload::PolicySource;

/// A namespace in which connections are taken.
pub struct InterceptedPlace {
    /// Its path; `None`: the process's own.
    pub path: Option<PathBuf>,
    /// Itself, and the prefixes whose routes are kept.
    pub routed: TakenHere,
    /// Its name, for people.
    pub namespace: String,
    /// How.
    pub interception: Interception,
    /// Why in this way.
    pub why: String,
}

/// What the control thread is made from.
pub struct ControlStart {
    /// The configuration.
    pub config: Arc<Checked>,
    /// TlsKeys.
    pub keys: TlsKeys,
    /// The workers.
    pub workers: Vec<RelayHandle>,
    /// From the workers.
    pub reports: Receiver<Report>,
    /// Wakes this thread.
    pub wake: Arc<Waker>,
    /// Of each namespace in which connections are taken.
    pub interceptions: Vec<InterceptedPlace>,
    /// Where the policy is read again.
    pub policy: PolicySource,
    /// Becomes readable when the process should end.
    pub signal: OwnedFd,
}

/// The control thread.
pub struct Control {
    config: Arc<Checked>,
    keys: TlsKeys,
    workers: Vec<RelayHandle>,
    reports: Receiver<Report>,
    wake: Arc<Waker>,
    interceptions: Vec<InterceptedPlace>,
    poll: Poll,
    listener: TcpListener,
    /// No channel is accepted until the next beat.
    listener_paused: bool,
    admin: UnixListener,
    admin_path: PathBuf,
    policy: PolicySource,
    signal: OwnedFd,
    peers: Vec<PeerState>,
    channels: Vec<Option<ControlChannel>>,
    directory_time: Option<SystemTime>,
    draining: bool,
    /// When it ends, if it was asked to.
    end: Option<admin::DrainEnd>,
    /// Channels that were not read to their end in their last turn.
    unread: Vec<usize>,
    next_beat: Instant,
    alive: BTreeSet<Prefix>,
    /// Channels that were refused since the last beat.
    refusals: u32,
}

impl Control {
    /// Listens.
    ///
    /// # Errors
    /// One sentence.
    pub fn new(start: ControlStart) -> Result<Self, String> {
        let ControlStart { config, keys, workers, reports, wake, interceptions, policy, signal } = start;
        let at = config.config.listen;
        let listener = TcpListener::bind(at).map_err(|e| format!("listen = \"{at}\": {e}"))?;
        let admin_path = config.admin();
        let admin = admin::listen(&admin_path)?;
        let failed = |e: std::io::Error| format!("the control thread cannot start: {e}");
        listener.set_nonblocking(true).map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        for (fd, token) in [
            (wake.as_fd(), TOKEN_WAKE),
            (listener.as_fd(), TOKEN_LISTENER),
            (admin.as_fd(), TOKEN_ADMIN),
            (signal.as_fd(), TOKEN_SIGNAL),
        ] {
            poll.add(fd, EventFlags::IN, token).map_err(failed)?;
        }
        let mut control = Self {
            keys,
            workers,
            reports,
            wake,
            interceptions,
            poll,
            listener,
            listener_paused: false,
            admin,
            admin_path,
            policy,
            signal,
            peers: Vec::new(),
            channels: Vec::new(),
            directory_time: None,
            draining: false,
            end: None,
            unread: Vec::new(),
            next_beat: Instant::now(),
            alive: BTreeSet::new(),
            refusals: 0,
            config,
        };
        for peer in control.config.config.peer.clone() {
            control.add_peer(&peer)?;
        }
        Ok(control)
    }

    /// Runs until a signal asks it to end.
    ///
    /// # Errors
    /// One sentence.
    pub fn run(mut self) -> Result<(), String> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let now = Instant::now();
            if now >= self.next_beat {
                self.next_beat = now + HEARTBEAT;
                self.beat(now);
                if self.is_drained(now) {
                    return self.leave();
                }
            }
            let timeout = match (self.unread.is_empty(), self.backlogged()) {
                (true, _) => self.next_beat.saturating_duration_since(Instant::now()),
                (false, false) => Duration::ZERO,
                (false, true) => BACKLOG_PAUSE,
            };
            self.poll.wait(&mut events, Some(timeout)).map_err(|e| format!("epoll: {e}"))?;
            for event in events.drain(..) {
                match event.data.u64() {
                    TOKEN_WAKE => self.wake.clear(),
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_ADMIN => self.answer(),
                    TOKEN_SIGNAL => {
                        // The signal's descriptor stays with the process, whose end resets what is left.
                        debug_assert!(self.signal.as_raw_fd() >= 0);
                        return self.leave();
                    }
                    channel => self.channel_event((channel - TOKEN_CHANNEL) as usize, event.flags),
                }
            }
            for at in std::mem::take(&mut self.unread) {
                self.channel_event(at, EventFlags::IN);
            }
            self.take_reports();
            self.write_channels();
        }
    }

    /// Leaves the loop: the process ends.
    fn leave(&self) -> Result<(), String> {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.admin_path);
        Ok(())
    }

    /// Whether a worker has so much to do that nothing more should be read for it.
    fn backlogged(&self) -> bool {
        self.workers.iter().any(|worker| worker.queued.load(Ordering::Relaxed) > QUEUED_MAX)
    }

    fn command(&self, worker: usize, command: Command) {
        if let Some(worker) = self.workers.get(worker) {
            // Counts only; the channel of commands orders the rest.
            worker.queued.fetch_add(command.waiting_bytes(), Ordering::Relaxed);
            if worker.commands.send(command).is_ok() {
                worker.wake.wake();
            }
        }
    }

    fn command_all(&self, command: impl Fn() -> Command) {
        (0..self.workers.len()).for_each(|worker| self.command(worker, command()));
    }

    fn owner(&self, link: u32) -> usize {
        link as usize % self.workers.len()
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::ToPeer(peer, message) => self.send(peer, &message),
                Report::Listening { worker, port } => {
                    if let Some(handle) = self.workers.get_mut(worker as usize) {
                        handle.port = port;
                    }
                    for peer in 0..self.peers.len() {
                        self.announce_worker(peer, worker);
                    }
                }
                Report::PeerLink { peer, link, up } => {
                    if let Some(peer) = self.peers.get_mut(peer) {
                        if up {
                            peer.links.insert(link)
                        } else {
                            peer.links.remove(&link)
                        };
                    }
                    self.update_alive();
                }
                Report::PeerFault(peer, what) => {
                    crate::log(format_args!("peer {}: its channel is closed: {what}", self.peers[peer].name));
                    self.give_up(peer, PeerLoss::BrokeProtocol);
                    self.peers[peer].retry = Instant::now() + PAUSE;
                }
            }
        }
    }

    /// Sends a peer the address where a worker listens for queue pairs.
    fn announce_worker(&mut self, peer: usize, worker: u32) {
        let (Some(handle), Some(to)) = (self.workers.get(worker as usize), self.peers.get(peer)) else { return };
        let address = SocketAddr::new(self.config.rdma(), handle.port);
        let message = ControlMessage::Rdma { worker, address, token: to.token };
        self.send(peer, &message);
    }

    /// Puts a message into the peer's channel. Without one it is lost: what matters is said again when the channel is
    /// back.
    fn send(&mut self, peer: usize, message: &ControlMessage) {
        let channel = self.peers.get(peer).and_then(|p| p.channel);
        let Some(at) = channel else { return };
        let Some(Some(open)) = self.channels.get_mut(at) else { return };
        // Before its introduction a peer may not know yet to which session a message belongs.
        if !open.introduced {
            return;
        }
        if let Err(why) = open.push(message) {
            self.close_channel(at, &why);
        }
    }

    fn write_channels(&mut self) {
        for at in 0..self.channels.len() {
            let Some(channel) = &mut self.channels[at] else { continue };
            if let Err(why) = channel.write() {
                self.close_channel(at, &why);
            }
        }
    }

    /// Writes to maps and sets which prefixes have a connected peer.
    fn update_alive(&mut self) {
        let own = self.config.workers;
        let mut prefixes: BTreeSet<Prefix> = BTreeSet::new();
        for peer in &mut self.peers {
            let Some(introduction) = &peer.introduction else { continue };
            let links = own.max(introduction.workers) as usize;
            let open = peer.channel.and_then(|at| self.channels[at].as_ref());
            peer.alive =
                open.is_some_and(|channel| channel.introduced) && peer.links.len() == links && !introduction.draining;
            if peer.alive && !self.draining {
                prefixes.extend(&introduction.serves);
            }
        }
        prefixes.extend(self.without_peer());
        let gone = self.alive.difference(&prefixes).map(|prefix| (*prefix, false));
        let changes: Vec<_> = gone.chain(prefixes.difference(&self.alive).map(|prefix| (*prefix, true))).collect();
        if changes.is_empty() {
            return;
        }
        for place in &mut self.interceptions {
            if let Err(why) = place.interception.set_alive(&changes) {
                crate::log(format_args!("living prefixes in {}: {why}", place.namespace));
            }
        }
        self.alive = prefixes;
    }

    /// Prefixes of policies whose connections are taken without a peer: those that go by TCP, and all if nothing may go in clear.
    fn without_peer(&self) -> Vec<Prefix> {
        let is_closed = self.config.config.encrypt == EncryptLinks::Only;
        let takes = self.config.config.take.iter().zip(&self.config.takes);
        let taken = takes.filter(|(take, _)| is_closed || take.relay == RelayBy::Tcp && !self.draining);
        taken.flat_map(|(_, (prefixes, _))| prefixes.clone()).collect()
    }

    /// What is done each second.
    fn beat(&mut self, now: Instant) {
        self.read_directory();
        self.follow_policy();
        let more = std::mem::take(&mut self.refusals).saturating_sub(REFUSALS_LOGGED);
        if more > 0 {
            crate::log(format_args!("{more} more control channels were refused in the last second"));
        }
        if self.listener_paused {
            self.listen_for(EventFlags::IN);
        }
        self.update_alive();
        for at in 0..self.channels.len() {
            let Some(channel) = &self.channels[at] else { continue };
            if !channel.introduced && now.duration_since(channel.opened) > HANDSHAKE {
                self.close_channel(at, "it has not introduced itself in time");
            } else if now.duration_since(channel.heard) > SILENCE {
                self.close_channel(at, "it is silent");
            } else if channel.introduced
                && let Some(peer) = channel.peer
            {
                self.send(peer, &ControlMessage::Ping);
            }
        }
        for peer in 0..self.peers.len() {
            self.redial(peer, now);
        }
        self.write_channels();
    }
}
