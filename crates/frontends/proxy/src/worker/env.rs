//! What all parts of a worker use: configuration, namespaces and their held SYNs, epoll, the timer, counters, and the way to the
//! control thread.

use super::decisions::Decisions;
use super::held_syns::{HeldSyns, QueuedSyn, SynOwner};
use super::place::NetworkPlaces;
use super::shares::WorkerShares;
use super::sockets::{Ends, WATCHED};
use super::stream_record::{RecordedStream, StreamFault, StreamRecords};
use super::table::Generations;
use super::tick_timer::TickTimer;
use super::token::PollToken;
use crate::config::Checked;
use crate::counters::{ProxyCounter, ProxyCounters};
use crate::hold::Verdict;
use crate::message::Report;
use crate::sys::{Poll, Waker};
use burst_base::Reason;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// The common part of a worker.
pub(super) struct WorkerEnv {
    /// Number among the workers.
    pub(super) number: u32,
    pub(super) config: Arc<Checked>,
    pub(super) places: NetworkPlaces,
    pub(super) syns: HeldSyns,
    pub(super) shares: WorkerShares,
    pub(super) poll: Poll,
    pub(super) timer: TickTimer,
    pub(super) generations: Generations,
    pub(super) counters: ProxyCounters,
    pub(super) decisions: Decisions,
    pub(super) records: StreamRecords,
    /// No new streams are opened or accepted.
    pub(super) draining: bool,
    /// Numbers of SYNs with what was decided about them.
    #[cfg(test)]
    pub(super) decided: Vec<(u32, Verdict)>,
    /// Bytes of memory for connections relayed by TCP, without the small buffers of those that have no share of it.
    pub(super) pair_bytes: u64,
    pub(super) reports: Sender<Report>,
    pub(super) wake_control: Arc<Waker>,
}

impl WorkerEnv {
    /// Bytes of memory that this worker may use.
    pub(super) fn memory_share(&self) -> u64 {
        self.config.memory_share()
    }

    /// The mark of intercepted connections.
    pub(super) fn mark(&self) -> i32 {
        self.config.config.mark as i32
    }

    /// Counts one event.
    pub(super) fn count(&mut self, counter: ProxyCounter) {
        self.counters.count(counter);
    }

    /// Counts and keeps a stream or connection that ends in error. `stream`: what it has moved, if a peer carried it.
    pub(super) fn note_failure(&mut self, ends: Ends, fault: StreamFault, stream: Option<RecordedStream>) {
        self.count(ProxyCounter::FailuresNoted);
        self.records.note(ends, fault, stream);
    }

    /// Sends a report to the control thread.
    pub(super) fn report(&self, report: Report) {
        // The control thread ends first only when the process ends.
        if self.reports.send(report).is_ok() {
            self.wake_control.wake();
        }
    }

    /// Watches the socket of a connection. Failure is logged; the caller ends the connection.
    ///
    /// # Errors
    /// Of `epoll_ctl`.
    pub(super) fn watch(&self, socket: &OwnedFd, token: PollToken) -> Result<()> {
        let added = self.poll.add(socket, WATCHED, token.to_bits());
        added.inspect_err(|e| crate::log(format_args!("a connection cannot be watched: {e}")))
    }

    /// Accepts nothing until the next tick: there are no descriptors.
    pub(super) fn pause_accepts(&mut self, why: &Error) {
        if self.counters.get(ProxyCounter::AcceptsPaused).is_none() {
            crate::log(format_args!("connections wait to be accepted: {why} (limit of open files: ulimit -n)"));
        }
        self.count(ProxyCounter::AcceptsPaused);
        self.places.pause(&self.poll);
        self.timer.start();
    }

    /// A connection is refused: its user has all that it may have.
    pub(super) fn note_over_share(&mut self, (client, server): Ends) {
        self.count(ProxyCounter::ConnectionsOverShare);
        self.decisions.note(client, server, Reason::ProxyUserShare);
    }

    /// Decides about a SYN of a queue.
    pub(super) fn decide(&mut self, syn: QueuedSyn, verdict: Verdict) {
        #[cfg(test)]
        self.decided.push((syn.packet, verdict));
        let Some(queue) = &self.places.get(syn.place).queue else { return };
        if let Err(e) = queue.decide(syn.packet, verdict, self.config.config.mark) {
            crate::log(format_args!("a SYN stays held: {e}"));
        }
    }

    /// The server has accepted: lets the SYN of a stream or connection by TCP pass, if it is held.
    pub(super) fn pass_syn(&mut self, ends: Ends, owner: SynOwner) {
        if let Some(syn) = self.syns.pass(ends, owner, self.timer.now()) {
            self.decide(syn, Verdict::Pass);
            self.timer.start();
        }
    }

    /// A stream or connection by TCP has ended: answers its SYN, if it is held, or lets the socket be reset to which it leads.
    pub(super) fn end_syn(&mut self, ends: Ends, owner: SynOwner, answer: Verdict) {
        if let Some(syn) = self.syns.end(ends, owner) {
            self.count(match answer {
                Verdict::Refuse => ProxyCounter::SynsRefused,
                Verdict::Unreachable => ProxyCounter::SynsUnreachable,
                Verdict::Pass | Verdict::Drop => ProxyCounter::SynsDropped,
            });
            self.decide(syn, answer);
            let queue = self.places.get(syn.place).queue.as_ref().filter(|_| answer == Verdict::Unreachable);
            if let Some(Err(e)) = queue.map(|queue| queue.tell_unreachable(ends.0, ends.1, syn.seq)) {
                crate::log(format_args!("{} is not notified that {} cannot be reached: {e}", ends.0, ends.1));
            }
        }
    }

    /// The owner of the next SYN that has passed and led to no socket in time.
    /// Takes one of `steps` for each that it looks at, and has the timer expire at once when none is left.
    pub(super) fn take_expired(&mut self, now: Instant, steps: &mut usize) -> Option<SynOwner> {
        let expired = self.syns.take_expired(now, steps);
        if expired.is_none() && self.syns.has_passed() {
            match *steps {
                0 => self.timer.start_by(now),
                _ => self.timer.start(),
            }
        }
        expired
    }
}
