//! Connection management on the control thread: ids of programs, their addresses and channels.
//!
//! The control thread knows ids and addresses; workers know connections. A request's operations become jobs, which are
//! posted to the workers at its end, one post per worker, and nobody waits for them: what comes of them the program
//! learns from events. Only listening waits, because a listener must be everywhere when the call returns.

mod client;
mod connect;
mod hops;
mod multicast;
mod ports;
mod resolve;
mod route;
mod waits;

pub use client::CmClient;
pub use hops::{HopChanges, NextHops};

use crate::host::Host;
use burst_base::Nanos;
use burst_cm::Fold;
use burst_control::Response;
use burst_control::cm::{CmEvent, CmId};
use burst_control::monitor::{CM_PAGE, CmCursor, CmStats};
use burst_engine::gsi::probes::{self, CmProbe};
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmPhase, CmTimes};
use ports::PortTable;
use route::RouteTable;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records of one write: PIPE_BUF.
const EVENTS_AT_ONCE: usize = 4096 / CmEvent::BYTES;

/// What probes say of a peer that is not known yet.
pub const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What all programs share.
#[derive(Debug, Default)]
pub struct CmService {
    ports: PortTable,
    routes: RouteTable,
    /// Next hops that ids wait for.
    pub hops: NextHops,
    /// Contexts by their tokens.
    tokens: HashMap<u64, u32, Fold>,
    /// Jobs of this request, by worker.
    jobs: Vec<Vec<CmJob>>,
    /// Times of the steps that the control thread takes.
    times: CmTimes,
    ids: u64,
    listeners: u64,
    refused: u64,
    /// Since when refusals are counted for the log, and how many it has since then.
    logged: Option<(Instant, u32)>,
    lost: u64,
    /// Records to write, all of one channel.
    events: Vec<(Arc<CmChannel>, [u8; CmEvent::BYTES])>,
}

/// Refusals that are logged at level info within [`LOGGED_PER`].
const LOGGED_MAX: u32 = 16;
const LOGGED_PER: Duration = Duration::from_secs(10);

impl CmService {
    /// The program learns a number only, so the sentence stands in the log, as long as there are not too many.
    fn log_refusal(&mut self, id: CmId, errno: i32, sentence: &str) {
        let recent = self.logged.filter(|(since, _)| since.elapsed() < LOGGED_PER);
        let (since, count) = recent.unwrap_or_else(|| (Instant::now(), 0));
        self.logged = Some((since, count.saturating_add(1)));
        if count < LOGGED_MAX {
            tracing::info!(id, errno, "connection management refused: {sentence}");
        } else {
            tracing::debug!(id, errno, "connection management refused: {sentence}");
        }
    }

    /// The context with this token.
    pub fn context_of(&self, token: u64) -> Option<u32> {
        self.tokens.get(&token).copied()
    }

    /// Remembers the token of a context.
    pub fn know_token(&mut self, token: u64, context: u32) {
        self.tokens.insert(token, context);
    }

    /// The context is closed.
    pub fn forget_token(&mut self, token: u64) {
        self.tokens.remove(&token);
    }

    /// Notes how long a step of the control thread took since `since`. `what` goes to the probe: the program's number
    /// of the id, and of the queue pair; and the peer. In nanoseconds, at most 4 s.
    pub fn took(&self, step: CmPhase, probe: CmProbe, what: (u32, u32), peer: IpAddr, since: Instant) -> u32 {
        let elapsed = Nanos(since.elapsed().as_nanos() as u64);
        self.times.note(step, elapsed);
        probes::fire(probe, what.0, what.1, peer, elapsed);
        u32::try_from(elapsed.0).unwrap_or(u32::MAX)
    }

    fn job(&mut self, worker: u32, job: CmJob) {
        let worker = worker as usize;
        if self.jobs.len() <= worker {
            self.jobs.resize_with(worker + 1, Vec::new);
        }
        self.jobs[worker].push(job);
    }

    /// A record of an id that the control thread writes itself, at the end of this pass at the latest.
    fn write(&mut self, entry: &CmEntry, event: &CmEvent) {
        entry.note_record();
        self.write_to(&entry.channel(), event);
    }

    /// As [`CmService::write`], of a record that was counted before.
    fn write_to(&mut self, channel: &Arc<CmChannel>, event: &CmEvent) {
        if self.events.len() == EVENTS_AT_ONCE || self.events.first().is_some_and(|(c, _)| !Arc::ptr_eq(c, channel)) {
            self.write_events();
        }
        self.events.push((channel.clone(), event.to_bytes()));
    }

    /// Writes what was kept: records of one channel.
    fn write_events(&mut self) {
        let Some((channel, _)) = self.events.first().cloned() else { return };
        let records: Vec<u8> = self.events.drain(..).flat_map(|(_, record)| record).collect();
        if channel.write(&records).is_err() {
            self.lost += 1;
        }
        if channel.has_backlog() {
            self.job(0, CmJob::Retry(channel));
        }
    }
}

impl Host {
    /// Writes the events and posts the jobs of this pass.
    pub fn post_cm_jobs(&mut self) {
        // Events first: what a worker writes because of a job comes later.
        self.cm.write_events();
        for worker in 0..self.cm.jobs.len() {
            if !self.cm.jobs[worker].is_empty() {
                let room = Vec::with_capacity(self.cm.jobs[worker].len());
                let jobs = std::mem::replace(&mut self.cm.jobs[worker], room);
                self.post(worker, move |w, now| w.cm_jobs(now, jobs));
            }
        }
    }

    /// A page of the connections of all workers; listeners come first, less than a page of
    /// them, so that the next page begins elsewhere.
    pub fn cm_connections(&self, from: CmCursor) -> Response {
        let (mut worker, mut slot) = from;
        let mut connections = Vec::new();
        if from == (0, 0) {
            connections = self.on_worker(0, |w, _| w.cm_listeners(CM_PAGE - 1));
        }
        let room = CM_PAGE;
        while (worker as usize) < self.workers().len() && connections.len() < CM_PAGE {
            let most = room - connections.len();
            let (page, next) = self.on_worker(worker as usize, move |w, now| w.cm_page(now, slot, most));
            connections.extend(page);
            (worker, slot) = next.map_or((worker + 1, 0), |slot| (worker, slot));
        }
        let more = (worker as usize) < self.workers().len();
        Response::CmConnections { connections, next: more.then_some((worker, slot)) }
    }

    /// Histograms and numbers of all workers and the control thread.
    pub fn cm_stats(&self) -> CmStats {
        let mut steps = Vec::new();
        self.cm.times.add_to(&mut steps);
        let (mut connections, mut queued) = (0, 0);
        for worker in 0..self.workers().len() {
            let (times, counts) = self.on_worker(worker, |w, _| (w.cm_times(), w.cm_connections()));
            (connections, queued) = (connections + u64::from(counts.0), queued + u64::from(counts.1));
            times.add_to(&mut steps);
        }
        let numbers = [
            ("ids", self.cm.ids),
            ("listeners", self.cm.listeners),
            ("connections", connections),
            ("queued requests", queued),
            ("waiting for next hops", self.cm.hops.waiting()),
            ("refused", self.cm.refused),
            ("event writes lost", self.cm.lost),
        ];
        CmStats { steps, numbers: numbers.map(|(name, value)| (name.to_owned(), value)).into() }
    }
}
