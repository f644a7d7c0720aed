//! One worker: a thread that relays the streams of its links, with an epoll instance, queue pairs and memory of its
//! own.
//!
//! A pass (`RelayWorker::pass`): wait for events; take what queue pairs and the control thread have brought; give
//! each ready stream a turn of at most 256 KiB; flush each link. So batches grow with the load and leave at
//! once without it; there is no timer on the path. With nothing to do the thread sleeps in `epoll_wait` with armed
//! completion queues. A stream belongs to one worker at each end, so nothing is locked.

mod accept;
mod busy_poll;
mod carry;
mod conn;
mod credit_rounds;
mod decisions;
mod env;
mod frames;
mod grow;
mod held_syns;
mod link;
mod place;
mod round_trips;
mod snapshot;
mod sockets;
mod table;
mod tcp_pair;
mod tcp_pairs;
mod tick_timer;
mod token;

pub use conn::ProxyConn;
pub use place::NetworkPlace;
pub use snapshot::{StreamView, WorkerSnapshot};
pub use sockets::{listener, own_mark};

use crate::config::Checked;
use crate::counters::ProxyCounters;
use crate::engine::{OwnEngine, SleepEnd};
use crate::message::{Command, Report};
use crate::rdma::Rdma;
use crate::sys::{self, Poll, PollEvent, Waker};
use busy_poll::{BUSY_POLL_MAX, BusyPollScore, YIELD_MAX};
use decisions::Decisions;
use env::WorkerEnv;
use held_syns::HeldSyns;
use link::{PeerLink, PeerView};
use place::NetworkPlaces;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use table::{ConnTable, TableKey};
use tcp_pairs::TcpPairs;
use tick_timer::{TICK, TickTimer};
use token::PollToken;

/// Events taken per pass.
const EVENTS: usize = 256;

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
    pub own_namespace: Arc<OwnedFd>,
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

/// The worker.
pub struct RelayWorker {
    env: WorkerEnv,
    commands: Receiver<Command>,
    queued: Arc<AtomicUsize>,
    wake: Arc<Waker>,
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
    pairs: TcpPairs,
    conns: ConnTable<ProxyConn>,
    ready: VecDeque<TableKey>,
    dirty: Vec<usize>,
    /// Streams that wait for the peer's answer, oldest first.
    opening: VecDeque<(Instant, TableKey)>,
    scratch: Vec<u8>,
}

impl RelayWorker {
    /// A worker with its RDMA listener.
    ///
    /// # Errors
    /// No descriptors.
    pub fn new(start: WorkerStart) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.add(start.wake.fd(), libc::EPOLLIN, PollToken::Wake.to_bits())?;
        let env = WorkerEnv {
            number: start.number,
            config: start.config,
            places: NetworkPlaces::new(start.places, start.own_namespace),
            syns: HeldSyns::default(),
            poll,
            timer: TickTimer::default(),
            counters: ProxyCounters::default(),
            decisions: Decisions::default(),
            draining: false,
            pair_bytes: 0,
            reports: start.reports,
            wake_control: start.wake_control,
        };
        env.places.watch(&env.poll)?;
        let mut worker = Self {
            env,
            commands: start.commands,
            queued: start.queued,
            wake: start.wake,
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
            pairs: TcpPairs::default(),
            conns: ConnTable::default(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            opening: VecDeque::new(),
            scratch: Vec::new(),
        };
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
        let busy = !self.ready.is_empty() || self.pairs.has_ready() || !self.unreceived.is_empty();
        let count = if busy { self.env.poll.wait(events, 0)?.len() } else { self.rest(events)? };
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
        self.pairs.turns(&mut self.env);
        for _ in 0..self.ready.len() {
            let Some(place) = self.ready.pop_front() else { break };
            let link = self.conns.get(place).map(|conn| conn.link);
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
        match PollToken::from_bits(token) {
            PollToken::Wake => {
                self.wake.clear();
                return self.take_commands();
            }
            PollToken::CmEvents => self.take_cm_events(),
            PollToken::Completions => self.take_completions(),
            PollToken::Listener { place, which } => self.accept(place, which),
            PollToken::Syns { place } => self.take_syns(place),
            PollToken::Conn(key) => self.conn_event(key, flags),
            PollToken::Pair(key, side) => self.pairs.on_event(&mut self.env, key, side, flags),
        }
        true
    }

    /// Waits until there is something to do; returns the number of events in `events`.
    fn rest(&mut self, events: &mut [PollEvent]) -> std::io::Result<usize> {
        if let Some(count) = self.look_for_a_while(events)? {
            return Ok(count);
        }
        let Some(engine) = self.engine else {
            return self.env.poll.wait(events, self.env.timer.left_ms()).map(<[_]>::len);
        };
        // Another thread may run the engine at any time, and take the packet for which this one sleeps.
        if !self.all_armed() {
            self.arm_all();
            if self.look() {
                return Ok(0);
            }
        }
        let most = self.env.timer.left();
        let (look, poll) = match engine.sleep(self.env.poll.fd(), most) {
            SleepEnd::Found { engine, poll } => (engine, poll),
            SleepEnd::Quiet => return self.env.poll.wait(events, self.env.timer.left_ms()).map(<[_]>::len),
        };
        if look {
            self.look();
        }
        if poll { self.env.poll.wait(events, 0).map(<[_]>::len) } else { Ok(0) }
    }

    /// Looks for events and messages without sleeping. `None`: there were none, or looking does not pay.
    fn look_for_a_while(&mut self, events: &mut [PollEvent]) -> std::io::Result<Option<usize>> {
        if !self.busy_poll.pays() {
            return Ok(None);
        }
        let began = Instant::now();
        let mut last = began;
        loop {
            let count = self.env.poll.wait(events, 0)?.len();
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

    /// Looks after links that do not work and streams that wait, while there are any.
    fn tick(&mut self) {
        let now = Instant::now();
        if !self.env.timer.take_due(now) {
            return;
        }
        self.env.places.resume(&self.env.poll);
        self.give_up_opening(now);
        self.give_up_passed(now);
        self.mend_links(now);
    }

    fn mark_dirty(&mut self, link: usize) {
        if !self.dirty.contains(&link) {
            self.dirty.push(link);
        }
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
                Command::Drain => self.env.draining = true,
                Command::BreakQueuePairs => self.break_queue_pairs(),
                Command::Show(answer) => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.snapshot());
                }
            }
        }
    }
}
