//! One worker: a thread that relays the streams of its links, with an epoll instance, queue pairs and memory of its
//! own.
//!
//! A pass (`RelayWorker::pass`): wait for events; take what queue pairs and the control thread have brought; give
//! each ready stream a turn of at most [`TURN_BYTES`]; flush each link. So batches grow with the load and leave at
//! once without it; there is no timer on the path. With nothing to do the thread sleeps in `epoll_wait` with armed
//! completion queues. A stream belongs to one worker at each end, so nothing is locked.

mod busy_poll;
mod carry;
mod conn;
mod credit_rounds;
mod frames;
mod grow;
mod link;
mod listen;
mod round_trips;
mod snapshot;
mod syn;
mod tcp_pairs;

pub use conn::ProxyConn;
pub use listen::{listener, own_mark};
pub use snapshot::{StreamView, WorkerSnapshot};

use crate::config::Checked;
use crate::counters::ProxyCounters;
use crate::engine::{OwnEngine, SleepEnd};
use crate::hold::SynQueue;
use crate::message::{Command, Report};
use crate::rdma::Rdma;
use crate::sys::{self, Poll, PollEvent, Waker};
use burst_base::Reason;
use burst_relay::Outcome;
use busy_poll::{BUSY_POLL_MAX, BusyPollScore, YIELD_MAX};
use link::{PeerLink, PeerView};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use syn::{Ends, HeldSyn};
use tcp_pairs::TcpPair;

/// Bytes that a stream may move before others have their turn.
pub const TURN_BYTES: usize = 256 << 10;
/// Events taken per pass.
const EVENTS: usize = 256;
/// Connections accepted per pass and listener.
const ACCEPTS: usize = 64;
/// Time between looks at links that do not work and streams that wait.
const TICK: Duration = Duration::from_millis(250);
/// Decisions that `burst proxy why` can show.
const DECISIONS: usize = 256;

const TOKEN_WAKE: u64 = 0;
const TOKEN_CM: u64 = 1;
const TOKEN_COMPLETIONS: u64 = 2;
const KIND_LISTENER: u64 = 1;
const KIND_CONN: u64 = 2;
const KIND_PAIR: u64 = 3;
const KIND_SYNS: u64 = 4;

/// A namespace in which this worker listens and connects.
#[derive(Debug)]
pub struct NetworkPlace {
    /// The namespace; `None`: that of the process.
    pub namespace: Option<Arc<OwnedFd>>,
    /// Listeners of this worker here: IPv4, IPv6.
    pub listeners: Vec<OwnedFd>,
    /// This worker's held SYNs here; `None`: the kernel answers them at once.
    pub queue: Option<SynQueue>,
    /// Accepted sockets ask for signs of life: rules of nf_tables would forget connections without packets.
    pub keep_alive: bool,
    /// Index of the configuration's `take`s and `serve`s here.
    pub takes: Vec<usize>,
    /// The same.
    pub serves: Vec<usize>,
}

/// What a worker is made from.
#[derive(Debug)]
pub struct WorkerStart {
    /// Number among the workers.
    pub number: u32,
    /// The configuration.
    pub config: Arc<Checked>,
    /// Namespaces.
    pub places: Vec<NetworkPlace>,
    /// The namespace of the process, to return to.
    pub home: Arc<OwnedFd>,
    /// From the control thread.
    pub commands: Receiver<Command>,
    /// Wakes this worker.
    pub wake: Arc<Waker>,
    /// Bytes of batches in `commands`.
    pub queued: Arc<AtomicUsize>,
    /// To the control thread.
    pub reports: Sender<Report>,
    /// Wakes the control thread.
    pub wake_control: Arc<Waker>,
}

/// Why a connection was taken or not.
#[derive(Clone, Debug)]
struct Decision {
    client: SocketAddr,
    server: SocketAddr,
    reason: Reason,
}

/// The worker.
pub struct RelayWorker {
    number: u32,
    config: Arc<Checked>,
    places: Vec<NetworkPlace>,
    home: Arc<OwnedFd>,
    commands: Receiver<Command>,
    queued: Arc<AtomicUsize>,
    wake: Arc<Waker>,
    reports: Sender<Report>,
    wake_control: Arc<Waker>,
    poll: Poll,
    rdma: Option<Rdma>,
    /// Burst's engine in this process; `None`: the device needs none of this thread's time.
    engine: Option<OwnEngine>,
    busy_poll: BusyPollScore,
    completions_added: bool,
    /// What was last reported; `None`: nothing yet.
    rdma_port: Option<u16>,
    /// When a device is looked for again, and the pause after that.
    rdma_again: Instant,
    rdma_pause: Duration,
    /// Links whose messages were not all taken in their last turn.
    unreceived: Vec<usize>,
    peers: HashMap<usize, PeerView>,
    links: Vec<Option<PeerLink>>,
    conns: Vec<Option<ProxyConn>>,
    pairs: Vec<Option<TcpPair>>,
    /// Places of `conns` and `pairs` that are free, and generations that tell old events from new ones.
    free_conns: Vec<usize>,
    free_pairs: Vec<usize>,
    generation: u32,
    ready: VecDeque<usize>,
    ready_pairs: VecDeque<usize>,
    dirty: Vec<usize>,
    /// Streams that wait for the peer's answer, oldest first.
    opening: VecDeque<(Instant, usize, u32)>,
    /// SYNs that are held, or have passed and lead to a socket soon.
    held: HashMap<Ends, HeldSyn>,
    /// Those that have passed, oldest first.
    passed: VecDeque<(Instant, Ends)>,
    draining: bool,
    /// No connection is accepted until the next tick.
    listeners_paused: bool,
    next_tick: Option<Instant>,
    counters: ProxyCounters,
    decisions: VecDeque<Decision>,
    scratch: Vec<u8>,
}

impl RelayWorker {
    /// A worker with its RDMA listener.
    ///
    /// # Errors
    /// No descriptors.
    pub fn new(start: WorkerStart) -> std::io::Result<Self> {
        let WorkerStart { number, config, places, home, commands, queued, wake, reports, wake_control } = start;
        let poll = Poll::new()?;
        poll.add(wake.fd(), libc::EPOLLIN, TOKEN_WAKE)?;
        let mut worker = Self {
            number,
            config,
            places,
            home,
            commands,
            queued,
            wake,
            reports,
            wake_control,
            poll,
            rdma: None,
            engine: None,
            busy_poll: BusyPollScore::new(),
            completions_added: false,
            rdma_port: None,
            rdma_again: Instant::now(),
            rdma_pause: TICK,
            unreceived: Vec::new(),
            peers: HashMap::new(),
            links: Vec::new(),
            conns: Vec::new(),
            pairs: Vec::new(),
            free_conns: Vec::new(),
            free_pairs: Vec::new(),
            generation: 1,
            ready: VecDeque::new(),
            ready_pairs: VecDeque::new(),
            dirty: Vec::new(),
            opening: VecDeque::new(),
            held: HashMap::new(),
            passed: VecDeque::new(),
            draining: false,
            listeners_paused: false,
            next_tick: None,
            counters: ProxyCounters::default(),
            decisions: VecDeque::new(),
            scratch: Vec::new(),
        };
        worker.add_listeners()?;
        worker.open_rdma();
        Ok(worker)
    }

    /// Runs until the control thread is gone.
    ///
    /// # Errors
    /// Of `epoll_wait`.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = [PollEvent { events: 0, u64: 0 }; EVENTS];
        while self.pass(&mut events)? {}
        Ok(())
    }

    /// One pass; false if the worker should end.
    fn pass(&mut self, events: &mut [PollEvent]) -> std::io::Result<bool> {
        let busy = !self.ready.is_empty() || !self.ready_pairs.is_empty() || !self.unreceived.is_empty();
        let count = if busy { self.poll.wait(events, 0)?.len() } else { self.rest(events)? };
        for event in &events[..count] {
            if !self.on_event(event.events, event.u64) {
                return Ok(false);
            }
        }
        if busy && self.engine.is_some() {
            self.look();
        }
        self.tick();
        for link in std::mem::take(&mut self.unreceived) {
            self.receive(link);
        }
        for _ in 0..self.ready_pairs.len() {
            let Some(pair) = self.ready_pairs.pop_front() else { break };
            self.turn_pair(pair);
        }
        for _ in 0..self.ready.len() {
            let Some(place) = self.ready.pop_front() else { break };
            let link = self.conns[place].as_ref().map(|conn| conn.link);
            self.turn(place);
            // A full batch need not wait for the rest of the list.
            if let Some(at) = link
                && self.links[at].as_ref().is_some_and(|link| link.outbox.blocked())
            {
                self.flush(at);
            }
        }
        for link in std::mem::take(&mut self.dirty) {
            self.flush(link);
        }
        Ok(true)
    }

    fn on_event(&mut self, flags: u32, token: u64) -> bool {
        match (token >> 56, token) {
            (0, TOKEN_WAKE) => {
                self.wake.clear();
                return self.take_commands();
            }
            (0, TOKEN_CM) => self.take_cm_events(),
            (0, TOKEN_COMPLETIONS) => self.take_completions(),
            (KIND_LISTENER, _) => self.accept((token & 0xffff) as usize, (token >> 16 & 0xffff) as usize),
            (KIND_SYNS, _) => self.take_syns((token & 0xffff) as usize),
            (KIND_CONN, _) => {
                self.conn_event((token & 0xffff_ffff) as usize, (token >> 32) as u32 & 0x00ff_ffff, flags)
            }
            (KIND_PAIR, _) => {
                let place = (token & 0x7fff_ffff) as usize;
                self.pair_event(place, (token >> 32) as u32 & 0x00ff_ffff, (token >> 31 & 1) as usize, flags);
            }
            _ => {}
        }
        true
    }

    /// Waits until there is something to do; returns the number of events in `events`.
    fn rest(&mut self, events: &mut [PollEvent]) -> std::io::Result<usize> {
        if let Some(count) = self.look_for_a_while(events)? {
            return Ok(count);
        }
        let Some(engine) = self.engine else {
            return self.poll.wait(events, self.timeout_ms()).map(<[_]>::len);
        };
        // Another thread may run the engine at any time, and take the packet for which this one sleeps.
        if !self.all_armed() {
            self.arm_all();
            if self.look() {
                return Ok(0);
            }
        }
        let most = self.next_tick.map(|at| at.saturating_duration_since(Instant::now()));
        let (look, poll) = match engine.sleep(self.poll.fd(), most) {
            SleepEnd::Found { engine, poll } => (engine, poll),
            SleepEnd::Quiet => return self.poll.wait(events, self.timeout_ms()).map(<[_]>::len),
        };
        if look {
            self.look();
        }
        if poll { self.poll.wait(events, 0).map(<[_]>::len) } else { Ok(0) }
    }

    /// Looks for events and messages without sleeping. `None`: there were none, or looking does not pay.
    fn look_for_a_while(&mut self, events: &mut [PollEvent]) -> std::io::Result<Option<usize>> {
        if !self.busy_poll.pays() {
            return Ok(None);
        }
        let began = Instant::now();
        let mut last = began;
        loop {
            let count = self.poll.wait(events, 0)?.len();
            if self.look() || count > 0 {
                self.busy_poll.note(true);
                return Ok(Some(count));
            }
            sys::yield_now();
            let now = Instant::now();
            if now - last > YIELD_MAX || now - began > BUSY_POLL_MAX {
                self.busy_poll.note(false);
                return Ok(None);
            }
            last = now;
        }
    }

    fn timeout_ms(&self) -> i32 {
        match self.next_tick {
            Some(at) => at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1,
            None => -1,
        }
    }

    /// Looks after links that do not work and streams that wait, while there are any.
    fn tick(&mut self) {
        let Some(at) = self.next_tick else { return };
        let now = Instant::now();
        if now < at {
            return;
        }
        self.next_tick = None;
        self.resume_listeners();
        self.give_up_opening(now);
        self.give_up_passed(now);
        self.mend_links(now);
    }

    fn tick_soon(&mut self) {
        let soon = Instant::now() + TICK;
        self.next_tick = Some(self.next_tick.map_or(soon, |at| at.min(soon)));
    }

    fn decide(&mut self, client: SocketAddr, server: SocketAddr, reason: Reason) {
        if self.decisions.len() == DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision { client, server, reason });
    }

    fn report(&self, report: Report) {
        // The control thread ends first only when the process ends.
        if self.reports.send(report).is_ok() {
            self.wake_control.wake();
        }
    }

    fn mark_dirty(&mut self, link: usize) {
        if !self.dirty.contains(&link) {
            self.dirty.push(link);
        }
    }

    /// A number that tells what an event belongs to, from all earlier holders of the same place.
    fn next_generation(&mut self) -> u32 {
        self.generation = (self.generation + 1) & 0x00ff_ffff;
        self.generation
    }

    fn take_commands(&mut self) -> bool {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            };
            match command {
                Command::PeerUp { peer, introduction, dials, token } => self.peer_up(peer, introduction, dials, token),
                Command::ControlChannel { peer, up } => self.channel(peer, up),
                Command::PeerGone { peer, why } => self.peer_gone(peer, &why),
                Command::Rdma { peer, worker, at } => self.peer_listens(peer, worker, at),
                Command::LinkHello { peer, here, hello } => self.on_hello(peer, here, hello),
                Command::Batch { peer, link, attempt, bytes } => {
                    self.on_channel_batch(peer, link, attempt, &bytes);
                    self.queued.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                Command::Broken { peer, link, attempt } => self.on_broken(peer, link, attempt),
                Command::PeerDraining(peer) => {
                    if let Some(peer) = self.peers.get_mut(&peer) {
                        peer.introduction.draining = true;
                    }
                }
                Command::Drain => self.draining = true,
                Command::BreakQueuePairs => self.break_queue_pairs(),
                Command::Show(answer) => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.snapshot());
                }
            }
        }
    }
}

/// The reason of an outcome, in the one table of reasons.
pub fn reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Clean | Outcome::Reset => Reason::ProxyReset,
        Outcome::Refused => Reason::ProxyRefused,
        Outcome::Unreachable => Reason::ProxyUnreachable,
        Outcome::NotServed => Reason::ProxyNotServed,
        Outcome::NoMemory => Reason::ProxyNoMemory,
        Outcome::Cancelled => Reason::ProxyPeerSilent,
        Outcome::Draining => Reason::ProxyDraining,
    }
}
