//! Periodic work of the control thread, for any loop that drives a host: a daemon's, a simulator's, or one inside a program.
//!
//! [`Upkeep::run`] continues with resolved next hops, posts jobs of connection management, reads interfaces again, reports log
//! lines that were left out, and trims memory. [`Upkeep::due_at`] is when it must run next although no descriptor is readable.
//! Interfaces are read `SETTLE_TIME` after the kernel's first event, because changes come in bursts, and every `REFRESH_INTERVAL`
//! in any case, because a sandbox may hide the events.

use crate::host::Host;
use crate::log_limit::{LinesLeftOut, LogCause};
use crate::session::Session;
use crate::session_number::SessionNumber;
use burst_base::Nanos;
use burst_netif::watch::Watch;
use std::os::fd::BorrowedFd;
use tracing::{info, warn};

/// Maximum time between two reads of the interfaces while there are clients, or nodes of URMA that stand without.
const REFRESH_INTERVAL: Nanos = Nanos::from_ms(2000);
/// Time from the kernel's first event of a change to the read of the interfaces.
const SETTLE_TIME: Nanos = Nanos::from_ms(50);

/// Ids that go on in one run although they waited for next hops. Each takes some microseconds.
const WAITS_AT_ONCE: usize = 256;

/// The state of the periodic work.
pub struct Upkeep {
    /// The kernel's events of changed interfaces; `None` where a sandbox forbids them.
    watch: Option<Watch>,
    /// When interfaces were last read.
    refreshed: Nanos,
    /// When the first event came that no read has followed.
    changed: Option<Nanos>,
    /// Whether there were sessions in the last run.
    has_sessions: bool,
}

impl Upkeep {
    /// Upkeep that follows the kernel's events of changed interfaces.
    pub fn new(now: Nanos) -> Upkeep {
        Upkeep { watch: Watch::open().ok(), ..Upkeep::without_events(now) }
    }

    /// Upkeep by the clock alone, for a host whose ports are not the kernel's.
    pub fn without_events(now: Nanos) -> Upkeep {
        Upkeep { watch: None, refreshed: now, changed: None, has_sessions: false }
    }

    /// A descriptor that is readable when an interface has changed.
    pub fn interface_events(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(Watch::fd)
    }

    /// Reads the events of [`Upkeep::interface_events`].
    pub fn note_interface_events(&mut self, now: Nanos) {
        self.watch.iter().for_each(Watch::drain);
        self.changed.get_or_insert(now);
    }

    /// When [`Upkeep::run`] must be called next; `None`: not before a descriptor is readable or a client connects.
    /// `has_sessions`: whether a client is connected. Takes the same time however many there are.
    pub fn due_at(&self, host: &Host, has_sessions: bool) -> Option<Nanos> {
        let refresh = has_sessions.then(|| self.refresh_at());
        let log = host.log.as_ref().and_then(|log| log.due_at(host.now()));
        [refresh, host.trimmer.due_at(), host.log_limiter.due_at(), log, hops_due_at(host)].into_iter().flatten().min()
    }

    /// Carries out what is due. `hops_readable`: the kernel has events of next hops. Returns whether memory was trimmed, so that
    /// the caller can return its heap to the system.
    pub fn run<T: SessionTable + ?Sized>(&mut self, host: &mut Host, sessions: &mut T, hops_readable: bool) -> bool {
        continue_resolving(host, sessions, hops_readable);
        // One post per worker for all commands of this pass.
        host.post_cm_jobs();
        let now = host.now();
        if !sessions.is_empty() && self.refresh_at() <= now {
            (self.refreshed, self.changed) = (now, None);
            refresh(host, sessions);
        }
        report_lines_left_out(host, now);
        host.log.iter().for_each(|log| log.report(now));
        if std::mem::replace(&mut self.has_sessions, !sessions.is_empty()) && sessions.is_empty() {
            host.trimmer.note_left_alone(now);
        }
        let trims = host.trimmer.take_due(now);
        if trims {
            sessions.each(&mut Session::shrink);
            host.shrink();
        }
        trims
    }

    fn refresh_at(&self) -> Nanos {
        let by_clock = self.refreshed + REFRESH_INTERVAL;
        self.changed.map_or(by_clock, |since| by_clock.min(since + SETTLE_TIME))
    }
}

/// Logs how many lines were left out in the interval that has ended.
fn report_lines_left_out(host: &mut Host, now: Nanos) {
    for LinesLeftOut { cause, uid, count } in host.log_limiter.take_left_out(now) {
        let cause = cause.map_or("several causes", LogCause::name);
        let uid = uid.map_or_else(|| "several".to_owned(), |uid| uid.to_string());
        warn!(cause, uid, count, "lines were left out of this log: the programs of one user caused too many");
    }
}

/// Continues with addresses whose next hops have answered or failed, at most [`WAITS_AT_ONCE`] of them.
fn continue_resolving<T: SessionTable + ?Sized>(host: &mut Host, sessions: &mut T, readable: bool) {
    if !host.cm.hops.is_waited_for() {
        return;
    }
    let now = host.now();
    let changes = host.hop_changes(now, readable);
    host.cm.waits.note(&changes);
    for _ in 0..WAITS_AT_ONCE {
        let Some(((number, id), how)) = host.cm.waits.take_due(now) else { break };
        let Some(session) = sessions.find(number) else {
            debug_assert!(false, "an id waits whose session has gone");
            break;
        };
        let begin = host.now();
        session.continue_resolving(host, now, id, how);
        session.account().add_control_time(begin.0, host.now().0);
    }
    host.count_unanswered();
}

/// When the wait of an id ends, or a port must be asked again.
fn hops_due_at(host: &Host) -> Option<Nanos> {
    let hops = &host.cm.hops;
    if !hops.is_waited_for() {
        return None;
    }
    host.cm.waits.due_at(host.now()).into_iter().chain(hops.due_at(host.now())).min()
}

/// Reads the interfaces again and writes asynchronous events for what has changed.
fn refresh<T: SessionTable + ?Sized>(host: &mut Host, sessions: &mut T) {
    host.refresh();
    host.program_memory.renew();
    for device in &mut host.devices {
        let Some(changes) = device.take_changes() else { continue };
        let caps = &device.caps;
        info!(
            device = device.info().name,
            up = caps.up,
            addresses = caps.addrs.len(),
            mtu = caps.link_mtu,
            "port changed"
        );
        sessions.each(&mut |session| session.port_changed(device.id, changes));
    }
}

/// The sessions of the clients that are connected.
pub trait SessionTable {
    /// Whether there are none.
    fn is_empty(&self) -> bool;
    /// Calls something with each of them.
    fn each(&mut self, call: &mut dyn FnMut(&mut Session));
    /// The session with a number.
    fn find(&mut self, number: SessionNumber) -> Option<&mut Session>;
}

/// For hosts with a few clients: a session is found by looking at all of them.
impl<S: AsMut<Session>> SessionTable for [S] {
    fn is_empty(&self) -> bool {
        <[S]>::is_empty(self)
    }

    fn each(&mut self, call: &mut dyn FnMut(&mut Session)) {
        self.iter_mut().for_each(|session| call(session.as_mut()));
    }

    fn find(&mut self, number: SessionNumber) -> Option<&mut Session> {
        self.iter_mut().map(AsMut::as_mut).find(|session| session.number() == number)
    }
}

impl AsMut<Session> for Session {
    fn as_mut(&mut self) -> &mut Session {
        self
    }
}
