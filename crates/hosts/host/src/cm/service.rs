//! The state of connection management that all programs share.

use super::hops::NextHops;
use super::ports::PortTable;
use super::route::RouteTable;
use super::waits::HopWaits;
use crate::clock::Clock;
use crate::session_number::SessionNumber;
use burst_base::Nanos;
use burst_cm::Fold;
use burst_control::cm::{CmEvent, CmId};
use burst_engine::gsi::probes::{self, CmProbe};
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmPhase, CmTimes};
use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Maximum number of event records in one write: PIPE_BUF bytes, which a pipe takes whole.
const EVENTS_AT_ONCE: usize = 4096 / CmEvent::BYTES;

/// The peer address that probes report as long as the peer is unknown.
pub const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A finished step of connection management, for the histograms and the probes.
#[derive(Clone, Copy, Debug)]
pub struct FinishedStep {
    /// The histogram.
    pub phase: CmPhase,
    /// The probe.
    pub probe: CmProbe,
    /// The program's number of the id; 0: none.
    pub id: CmId,
    /// The queue pair number; 0: none.
    pub qpn: u32,
    /// The peer's address, or [`UNKNOWN_PEER`].
    pub peer: IpAddr,
    /// When the step began.
    pub begun: Nanos,
}

/// The state that all programs share.
#[derive(Debug)]
pub struct CmService {
    clock: Clock,
    pub(crate) ports: PortTable,
    pub(crate) routes: RouteTable,
    /// Next hops that ids wait for.
    pub hops: NextHops,
    /// The ids that wait for them.
    pub(crate) waits: HopWaits,
    /// The number of the last session.
    sessions: Cell<u64>,
    /// Contexts by their tokens.
    tokens: HashMap<u64, u32, Fold>,
    /// Jobs of this request, by worker.
    jobs: Vec<Vec<CmJob>>,
    /// Durations of the steps that the control thread carries out.
    times: CmTimes,
    /// How many ids exist.
    pub(crate) ids: u64,
    /// How many ids listen.
    pub(crate) listeners: u64,
    /// How many commands were refused.
    pub(crate) refused: u64,
    /// How many writes of events failed.
    pub(crate) lost: u64,
    /// Event records to write, all for one channel.
    events: Vec<(Arc<CmChannel>, [u8; CmEvent::BYTES])>,
}

impl CmService {
    /// Connection management without ids, by this clock.
    pub fn new(clock: Clock) -> CmService {
        CmService {
            clock,
            ports: PortTable::default(),
            routes: RouteTable::default(),
            hops: NextHops::default(),
            waits: HopWaits::default(),
            sessions: Cell::new(0),
            tokens: HashMap::default(),
            jobs: Vec::new(),
            times: CmTimes::default(),
            ids: 0,
            listeners: 0,
            refused: 0,
            lost: 0,
            events: Vec::new(),
        }
    }

    /// A number for a new session.
    pub(crate) fn session_number(&self) -> SessionNumber {
        self.sessions.set(self.sessions.get() + 1);
        SessionNumber(self.sessions.get())
    }

    /// The number of the context with this token.
    pub fn context_of(&self, token: u64) -> Option<u32> {
        self.tokens.get(&token).copied()
    }

    /// Adds the token of a context.
    pub fn add_token(&mut self, token: u64, context: u32) {
        self.tokens.insert(token, context);
    }

    /// Removes the token of a context that has been closed.
    pub fn remove_token(&mut self, token: u64) {
        self.tokens.remove(&token);
    }

    /// Returns the memory of ended ids and contexts to the heap.
    pub fn shrink(&mut self) {
        self.ports.shrink();
        self.tokens.shrink_to_fit();
        self.jobs.iter_mut().for_each(Vec::shrink_to_fit);
        self.events.shrink_to_fit();
    }

    /// Records the duration of a step that has just ended. Returns it in nanoseconds, at most 4 s.
    pub fn record_step(&self, step: FinishedStep) -> u32 {
        let elapsed = self.clock.now().since(step.begun);
        self.times.note(step.phase, elapsed);
        probes::fire(step.probe, step.id, step.qpn, step.peer, elapsed);
        u32::try_from(elapsed.0).unwrap_or(u32::MAX)
    }

    /// The durations recorded so far.
    pub(crate) fn times(&self) -> &CmTimes {
        &self.times
    }

    /// Adds a job for a worker. It is posted at the end of the request.
    pub(crate) fn job(&mut self, worker: u32, job: CmJob) {
        let worker = worker as usize;
        if self.jobs.len() <= worker {
            self.jobs.resize_with(worker + 1, Vec::new);
        }
        self.jobs[worker].push(job);
    }

    /// Adds an event of an id, written by the control thread at the end of this pass at the latest.
    pub(crate) fn write(&mut self, entry: &CmEntry, event: &CmEvent) {
        entry.note_record();
        self.write_to(&entry.channel(), event);
    }

    /// As [`CmService::write`], for a record that the entry has counted already.
    fn write_to(&mut self, channel: &Arc<CmChannel>, event: &CmEvent) {
        if self.events.len() == EVENTS_AT_ONCE || self.events.first().is_some_and(|(c, _)| !Arc::ptr_eq(c, channel)) {
            self.write_events();
        }
        self.events.push((channel.clone(), event.to_bytes()));
    }

    /// Writes the pending records, which are all for one channel.
    pub(crate) fn write_events(&mut self) {
        let Some((channel, _)) = self.events.first().cloned() else { return };
        let records: Vec<u8> = self.events.drain(..).flat_map(|(_, record)| record).collect();
        if channel.write(&records).is_err() {
            self.lost += 1;
        }
        if channel.has_backlog() {
            self.job(0, CmJob::Retry(channel));
        }
    }

    /// The pending jobs of all workers, by worker; afterwards there are none.
    pub(crate) fn take_jobs(&mut self) -> Vec<(usize, Vec<CmJob>)> {
        let mut taken = Vec::new();
        for (worker, jobs) in self.jobs.iter_mut().enumerate().filter(|(_, jobs)| !jobs.is_empty()) {
            let room = Vec::with_capacity(jobs.len());
            taken.push((worker, std::mem::replace(jobs, room)));
        }
        taken
    }
}
