//! One worker: a thread that relays the streams of its links, with an epoll instance, queue pairs and memory of its
//! own.
//!
//! A pass (`RelayWorker::pass`): wait for events; take what queue pairs and the control thread have brought; give
//! each ready stream a turn of at most 256 KiB; flush each link. So batches grow with the load and leave at
//! once without it; there is no timer on the path. With nothing to do the thread sleeps in `epoll_wait` with armed
//! completion queues. A stream belongs to one worker at each end, so nothing is locked.

mod accept;
mod busy_poll;
mod conn;
mod credit_rounds;
mod decisions;
mod env;
#[cfg(any(test, fuzzing))]
pub mod fuzzed_worker;
mod held_syns;
mod link;
mod link_transport;
mod links;
mod peer_index;
mod place;
mod rdma_port;
mod receive;
mod round_trips;
mod seals;
mod shares;
mod snapshot;
mod sockets;
mod stream_record;
mod streams;
#[cfg(test)]
mod syn_orders;
mod table;
mod tcp_pair;
mod tcp_pairs;
mod tick_timer;
mod token;
#[cfg(test)]
mod walks;
mod watched_socket;

pub use place::NetworkPlace;
pub use snapshot::WorkerSnapshot;
pub use sockets::{listener, own_mark};
pub use stream_record::{RecordedStream, StreamRecord};

use crate::config::Checked;
use crate::counters::{ProxyCounter, ProxyCounters};
use crate::engine::{OwnEngine, SleepEnd};
use crate::message::{Command, Report};
use crate::peer_loss::PeerLoss;
use crate::sys::{EventFlags, Poll, PollEvent, Waker};
use burst_base::Reason;
use burst_relay::LinkHello;
use busy_poll::{BUSY_POLL_MAX, BusyPollScore, YIELD_MAX};
use conn::{Phase, ProxyConn};
use decisions::Decisions;
use env::WorkerEnv;
use held_syns::HeldSyns;
use links::LinkFault;
use place::NetworkPlaces;
use shares::WorkerShares;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};
use stream_record::StreamRecords;
use streams::{EndedLink, Streams};
use table::{Generations, TakenObjects};
use tcp_pairs::TcpPairs;
use tick_timer::TickTimer;
use token::{PollToken, StreamKey};

/// Events taken per pass.
const EVENTS_MAX: usize = 256;
/// Connections that one pass gives a turn, and connections and SYNs that it ends or sends by TCP because their time is over or
/// their peer has gone. The others' come in the next pass, before which events are taken.
const CONNS_AT_ONCE: usize = 256;

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
    /// Bytes of what is in `commands`.
    pub queued: Arc<AtomicUsize>,
    /// To the control thread.
    pub reports: Sender<Report>,
    /// Wakes the control thread.
    pub wake_control: Arc<Waker>,
}

/// The worker.
pub struct RelayWorker {
    env: WorkerEnv,
    streams: Streams,
    pairs: TcpPairs,
    busy_poll: BusyPollScore,
    /// The connections of links that have ended, each with its link and that one's index.
    leaving: VecDeque<(usize, EndedLink, TakenObjects<ProxyConn>)>,
    commands: Receiver<Command>,
    /// Bytes of what is in `commands`.
    queued: Arc<AtomicUsize>,
    wake: Arc<Waker>,
    /// The message that is being taken.
    message: Vec<u8>,
}

impl RelayWorker {
    /// A worker with its RDMA listener.
    ///
    /// # Errors
    /// No descriptors.
    pub fn new(start: WorkerStart) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.add(&start.wake, EventFlags::IN, PollToken::Wake.to_bits())?;
        let records = StreamRecords::new(start.number, start.config.workers);
        let mut env = WorkerEnv {
            number: start.number,
            shares: WorkerShares::new(
                start.config.workers,
                start.config.memory_share(),
                start.config.config.user_share,
            ),
            config: start.config,
            places: NetworkPlaces::new(start.places, start.own_namespace),
            syns: HeldSyns::default(),
            poll,
            timer: TickTimer::default(),
            generations: Generations::default(),
            counters: ProxyCounters::default(),
            decisions: Decisions::default(),
            records,
            draining: false,
            #[cfg(test)]
            decided: Vec::new(),
            pair_bytes: 0,
            reports: start.reports,
            wake_control: start.wake_control,
        };
        env.places.watch(&env.poll)?;
        let mut streams = Streams::default();
        streams.links.rdma.open(&mut env);
        Ok(Self {
            env,
            streams,
            pairs: TcpPairs::default(),
            busy_poll: BusyPollScore::new(),
            leaving: VecDeque::new(),
            commands: start.commands,
            queued: start.queued,
            wake: start.wake,
            message: Vec::new(),
        })
    }

    /// Runs until the control thread is gone.
    ///
    /// # Errors
    /// Of `epoll_wait`.
    pub fn run(mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while self.pass(&mut events)? {}
        Ok(())
    }

    /// One pass; false if the worker should end.
    fn pass(&mut self, events: &mut Vec<PollEvent>) -> std::io::Result<bool> {
        let busy = self.streams.has_ready()
            || self.pairs.has_ready()
            || !self.streams.links.unreceived.is_empty()
            || !self.leaving.is_empty();
        if busy {
            self.env.poll.wait(events, Some(Duration::ZERO))?;
        } else {
            self.wait(events)?;
        }
        for event in events.drain(..) {
            if !self.on_event(event.flags, event.data.u64()) {
                return Ok(false);
            }
        }
        if let (true, Some(engine)) = (busy, self.streams.links.rdma.engine) {
            // What it completes is an event in the next pass.
            engine.turn();
        }
        self.tick();
        self.end_leaving();
        self.receive_left();
        self.pairs.turns(&mut self.env);
        self.streams.turns(&mut self.env);
        self.streams.links.flush_all(&mut self.env);
        self.streams.wake();
        Ok(true)
    }

    fn on_event(&mut self, flags: EventFlags, token: u64) -> bool {
        match PollToken::from_bits(token) {
            PollToken::Wake => {
                self.wake.clear();
                return self.take_commands();
            }
            PollToken::CmEvents => {
                while let Some(done) = self.streams.links.next_cm_event(&mut self.env) {
                    self.after_hello(done);
                }
            }
            PollToken::Completions => {
                while let Some(at) = self.streams.links.next_completion(&mut self.env) {
                    self.receive(at);
                    // A completion of a send makes room for what waits.
                    self.streams.links.mark_dirty(at);
                }
            }
            PollToken::Listener(place, which) => self.accept(place, which),
            PollToken::Syns(place) => self.take_syns(place),
            PollToken::Stream(key) => self.streams.on_event(&mut self.env, key, flags),
            PollToken::Pair(key, side) => self.pairs.on_event(&mut self.env, key, side, flags),
        }
        true
    }

    /// Waits until there is something to do.
    fn wait(&mut self, events: &mut Vec<PollEvent>) -> std::io::Result<()> {
        if self.poll_busily(events)? {
            return Ok(());
        }
        let Some(engine) = self.streams.links.rdma.engine else { return self.sleep(events) };
        // Another thread may run the engine at any time, and take the packet for which this one sleeps.
        if !self.streams.links.all_armed() {
            self.streams.links.arm_all(&mut self.env);
            if self.receive_all() {
                return Ok(());
            }
        }
        match engine.sleep(self.env.poll.as_fd(), self.env.timer.left()) {
            SleepEnd::Found { engine: has_packets, poll } => {
                self.env.count(ProxyCounter::Sleeps);
                if has_packets {
                    // An event says what has been completed. Asking the queues would yield the processor if they are empty.
                    engine.turn();
                }
                if has_packets || poll {
                    self.env.poll.wait(events, Some(Duration::ZERO))?;
                }
                Ok(())
            }
            SleepEnd::Quiet => self.sleep(events),
        }
    }

    /// Sleeps in epoll alone.
    fn sleep(&mut self, events: &mut Vec<PollEvent>) -> std::io::Result<()> {
        self.env.count(ProxyCounter::Sleeps);
        self.env.poll.wait(events, self.env.timer.left()).map(drop)
    }

    /// Polls for events; messages are events, too. False: there were none, or polling does not pay.
    fn poll_busily(&mut self, events: &mut Vec<PollEvent>) -> std::io::Result<bool> {
        if !self.busy_poll.pays() {
            return Ok(false);
        }
        let began = Instant::now();
        if self.busy_poll.rests(began) {
            return Ok(false);
        }
        let mut last = began;
        loop {
            self.streams.links.rdma.engine.iter().for_each(OwnEngine::turn);
            if self.env.poll.wait(events, Some(Duration::ZERO))? > 0 {
                self.busy_poll.note(true);
                return Ok(true);
            }
            self.env.count(ProxyCounter::Yields);
            rustix::thread::sched_yield();
            let now = Instant::now();
            if now - last > YIELD_MAX {
                self.busy_poll.note_contended(now);
                return Ok(false);
            }
            if now - began > BUSY_POLL_MAX {
                self.busy_poll.note(false);
                return Ok(false);
            }
            last = now;
        }
    }

    /// Looks after links that do not work and connections that wait, while there are any.
    fn tick(&mut self) {
        let Some(now) = self.env.timer.take_due() else { return };
        self.env.places.resume(&self.env.poll);
        let mut steps = CONNS_AT_ONCE;
        while let Some(by_tcp) = self.streams.take_unanswered(&mut self.env, now, &mut steps) {
            self.pairs.relay(&mut self.env, by_tcp);
        }
        while let Some(owner) = self.env.take_expired(now, &mut steps) {
            self.end_owner(owner);
        }
        self.streams.connect_postponed(&mut self.env, now);
        self.streams.links.mend(&mut self.env, now);
        self.streams.links.free_idle_memory(&mut self.env, now);
    }

    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    let bytes = command.waiting_bytes();
                    self.on_command(command);
                    self.queued.fetch_sub(bytes, Ordering::Relaxed);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        let (env, links) = (&mut self.env, &mut self.streams.links);
        match command {
            Command::PeerUp(up) => links.peer_up(env, up),
            Command::ControlChannel { peer, up } => links.set_channel(env, peer, up),
            Command::PeerGone { peer, why } => self.peer_gone(peer, why),
            Command::Rdma { peer, worker, at } => links.peer_listens(env, peer, worker, at),
            Command::LinkHello { peer, by_channel, hello } => self.on_hello(peer, by_channel, hello),
            Command::Batch { peer, link, attempt, bytes } => {
                self.on_channel_batch(peer, link, attempt, &bytes);
            }
            Command::Broken { peer, link, attempt } => {
                if let Some(at) = links.find(peer, link) {
                    links.on_broken(env, at, attempt);
                }
            }
            Command::PeerDraining(peer) => links.peer_drains(peer),
            Command::Drain => env.draining = true,
            Command::Policy { config, rules, done } => {
                env.config = config;
                env.places.set_rules(rules);
                // The control thread may have stopped waiting.
                let _ = done.send(());
            }
            Command::BreakQueuePairs => links.break_queue_pairs(env),
            Command::CountOpen(answer) => {
                // The control thread may have stopped waiting.
                let _ = answer.send(self.streams.open_count() + self.pairs.open_count());
            }
            Command::ShowFailures(answer) => {
                // The control thread may have stopped waiting.
                let _ = answer.send(self.env.records.all());
            }
            Command::Show(answer) => {
                // The control thread may have stopped waiting.
                let _ = answer.send(self.snapshot());
            }
        }
    }

    fn on_hello(&mut self, peer: usize, by_channel: bool, hello: LinkHello) {
        if let Some(at) = self.streams.links.find(peer, hello.link) {
            let done = self.streams.links.on_hello(&mut self.env, at, by_channel, hello);
            self.after_hello(done);
        }
    }

    /// A link may have begun to send.
    fn after_hello(&mut self, done: Result<(), LinkFault>) {
        self.streams.wake();
        if let Err((at, fault)) = done {
            self.on_fault(at, fault);
        }
    }

    /// A peer has gone: resets its streams, but those that can still go by TCP.
    fn peer_gone(&mut self, peer: usize, why: PeerLoss) {
        let (name, why): (Arc<str>, Arc<str>) = (self.streams.links.peer_name(peer).into(), why.words().into());
        if !self.streams.links.forget_peer(peer) {
            return;
        }
        while let Some((at, mut link)) = self.streams.links.take_link_of(peer) {
            // Those that have ended wait for the peer's last frame only, and those that it has not answered go by TCP.
            let count = link.conns.iter().filter(|conn| matches!(conn.phase, Phase::Connecting | Phase::Open)).count();
            if count > 0 {
                crate::log(format_args!("{count} streams are reset: {why}"));
            }
            self.env.counters.add(ProxyCounter::StreamsReset, count as u64);
            let ended = EndedLink { link: link.recorded(name.clone()), dials: link.dials, why: why.clone() };
            self.leaving.push_back((at, ended, std::mem::take(&mut link.conns).into_all()));
            self.env.report(Report::PeerLink { peer, link: link.number, up: false });
        }
    }

    /// Resets some of the streams whose links have ended; returns how many.
    fn end_leaving(&mut self) -> usize {
        let mut ended = 0;
        while ended < CONNS_AT_ONCE
            && let Some((at, link, conns)) = self.leaving.front_mut()
        {
            let Some((key, conn)) = conns.next() else {
                self.leaving.pop_front();
                continue;
            };
            ended += 1;
            let key = StreamKey { link: *at, key };
            if let Some(taken) = Streams::end_with_link(&mut self.env, key, conn, link) {
                self.pairs.relay(&mut self.env, (taken, Reason::ProxyPeerGone));
            }
        }
        ended
    }

    fn snapshot(&self) -> WorkerSnapshot {
        WorkerSnapshot {
            streams: self.streams.views().chain(self.pairs.views()).collect(),
            links: self.streams.links.views().collect(),
            counters: self.env.counters.clone(),
            decisions: self.env.decisions.show(),
        }
    }
}
