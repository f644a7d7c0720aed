//! The host of one address inside the program: node, port, and who runs both.
//!
//! Polls of the program run a pass each ([`UrmaHost::turn`]). The first post since the last pass sends at once; later ones wait
//! for the next pass, so that they leave as trains. If the program does not poll, the keeper ([`crate::keeper`]) makes it;
//! while the keeper serves, each post sends.

use crate::daemon::DaemonNode;
use crate::descriptors::sleep;
use crate::keeper;
use crate::link;
use crate::node::{Inner, ProgramNode};
use crate::reports::Reports;
use burst_base::Nanos;
use burst_engine::urma::node_at;
use burst_ffi::keeper::Bell;
use burst_shm::life::LifePage;
use burst_urma::{LANES_MAX, UrmaConfig, UrmaEffects};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Names the number of lanes to each peer.
const LANES_ENV: &str = "BURST_URMA_LANES";
/// Attempts to lock the node before a thread sleeps, and those of them between which it does not even yield.
const LOCK_ATTEMPTS: u32 = 24;
const LOCK_SPINS: u32 = 16;

/// The lanes to each peer that the environment names, 1 by default.
///
/// # Errors
/// A sentence.
fn lanes(text: Option<&str>) -> Result<u8, String> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(1) };
    let lanes = text.parse().ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
    lanes.ok_or_else(|| format!("{LANES_ENV} is \"{text}\": the number of lanes to a peer is 1 to {LANES_MAX}"))
}

/// One address.
pub struct UrmaHost {
    inner: Mutex<Inner>,
    /// Dead in a child that the process has forked: it has the parent's socket and no keeper.
    life: LifePage,
    start: Instant,
    /// Passes that the program's threads have made.
    activity: AtomicU64,
    /// A post since the last pass has been sent.
    posted: AtomicBool,
    /// A later post, or what the last burst has made ready, waits for a pass.
    deferred: AtomicBool,
    /// Whether the keeper watches the port, so that it, not the program, answers.
    pub keeper_serves: AtomicBool,
    /// When node or port must be looked at, as of the last use.
    due: AtomicU64,
    /// Descriptors that become readable when packets arrive.
    fds: Vec<RawFd>,
    /// Until when the keeper sleeps; 0: it is awake.
    sleeps_until: AtomicU64,
    /// Wakes the keeper.
    pub bell: Bell,
    /// A queue has been armed: the program waits for events.
    uses_events: AtomicBool,
    /// Whether the node is in the daemon, which runs it.
    is_daemons: bool,
    pub address: IpAddr,
}

impl Drop for UrmaHost {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Hosts of this process, by address.
static HOSTS: Mutex<Vec<Weak<UrmaHost>>> = Mutex::new(Vec::new());

impl UrmaHost {
    /// The host of an address for a new context: the daemon's, if a daemon has the address, else one in this process.
    ///
    /// # Errors
    /// A sentence: the daemon refuses, or as [`UrmaHost::of`].
    pub fn for_context(address: IpAddr) -> Result<Arc<UrmaHost>, String> {
        match DaemonNode::open(address)? {
            Some(daemon) => Ok(Arc::new(UrmaHost::at(address, ProgramNode::Daemon(Box::new(daemon)), Vec::new())?)),
            None => UrmaHost::of(address),
        }
    }
    /// The host of an address in this process: the present one, or a new one.
    ///
    /// # Errors
    /// A sentence: the port cannot be opened, or the system gives no thread.
    pub fn of(address: IpAddr) -> Result<Arc<UrmaHost>, String> {
        let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|host| host.strong_count() > 0);
        if let Some(host) =
            hosts.iter().filter_map(Weak::upgrade).find(|host| host.address == address && host.is_ours())
        {
            return Ok(host);
        }
        let host = Arc::new(UrmaHost::new(address)?);
        hosts.push(Arc::downgrade(&host));
        keeper::start(&host)?;
        Ok(host)
    }
    /// All hosts of this process; `None` while one is being opened.
    pub fn try_all() -> Option<Vec<Arc<UrmaHost>>> {
        let hosts = match HOSTS.try_lock() {
            Ok(hosts) => hosts,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(hosts.iter().filter_map(Weak::upgrade).filter(|host| host.is_ours()).collect())
    }
    fn new(address: IpAddr) -> Result<UrmaHost, String> {
        let boot = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
        let mut seeds = [0u64; 2];
        // SAFETY: the buffer has 16 bytes.
        if unsafe { libc::getrandom(seeds.as_mut_ptr().cast(), size_of_val(&seeds), 0) } != 16 {
            return Err("the system gives no random numbers".into());
        }
        let [seed, token_seed] = seeds;
        let lanes = lanes(std::env::var_os(LANES_ENV).map(|text| text.to_string_lossy().into_owned()).as_deref())?;
        let end = link::open(address, |mtu, window_max| UrmaConfig {
            incarnation: boot,
            token_seed,
            lanes,
            mtu,
            // No switch answers: the path to each peer bounds what is in flight.
            caqm: false,
            window_max,
            rto_base: Nanos::from_ms(10),
            ..UrmaConfig::new(node_at(address), seed)
        })?;
        let fds = end.wait_fds();
        UrmaHost::at(address, ProgramNode::Own(Box::new(end)), fds)
    }
    fn at(address: IpAddr, node: ProgramNode, fds: Vec<RawFd>) -> Result<UrmaHost, String> {
        let is_daemons = matches!(node, ProgramNode::Daemon(_));
        let life =
            LifePage::new().map_err(|e| format!("the kernel cannot tell a forked child from its parent: {e}"))?;
        let inner = Mutex::new(Inner { node, reports: Reports::default() });
        Ok(UrmaHost {
            inner,
            life,
            start: Instant::now(),
            activity: AtomicU64::new(0),
            posted: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            keeper_serves: AtomicBool::new(false),
            due: AtomicU64::new(0),
            fds,
            sleeps_until: AtomicU64::new(0),
            bell: Bell::new()?,
            uses_events: AtomicBool::new(false),
            is_daemons,
            address,
        })
    }
    /// The node of this process ends with its last context, or with the process. If another thread has it, its peers find out
    /// themselves.
    pub fn leave(&self) {
        if self.is_ours()
            && let Some(mut inner) = self.try_lock()
        {
            inner.leave(self.now());
        }
    }
    /// Whether this process has opened the host, not its parent.
    pub fn is_ours(&self) -> bool {
        self.life.is_alive()
    }
    /// Locks the node for a call of the program; `None` in a child of the process that has opened it.
    pub fn enter(&self) -> Option<MutexGuard<'_, Inner>> {
        self.is_ours().then(|| self.lock())
    }
    /// Locks the node. Another thread has it for the time of a pass, a few microseconds: a sleep would take longer.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        for attempt in 0..LOCK_ATTEMPTS {
            if let Some(inner) = self.try_lock() {
                return inner;
            }
            if attempt < LOCK_SPINS {
                (0..64).for_each(|_| std::hint::spin_loop());
            } else {
                std::thread::yield_now();
            }
        }
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64 + 1)
    }
    /// A pass of the program. True if there was anything to do.
    pub fn turn(&self, inner: &mut Inner) -> bool {
        if self.is_daemons {
            return false;
        }
        // Not an addition in one step: a lost count does no harm.
        self.activity.store(self.activity.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.pass(inner)
    }
    fn pass(&self, inner: &mut Inner) -> bool {
        // Under the lock, as all other uses.
        self.posted.store(false, Ordering::Relaxed);
        let is_active = inner.pass(self.now());
        self.deferred.store(inner.own().node.wants_tx(), Ordering::Relaxed);
        self.due.store(inner.own().next_deadline().0, Ordering::Relaxed);
        is_active
    }
    /// Locks the node unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
    /// Locks the node for a look at a completion queue. `None`: another thread has the node, which looks for packets itself.
    /// Then a program that only polls comes again. One that had an event may poll once, and must find what it was told of.
    pub fn lock_for_poll(&self) -> Option<MutexGuard<'_, Inner>> {
        self.try_lock().or_else(|| self.uses_events.load(Ordering::Relaxed).then(|| self.lock()))
    }
    /// Whether a pass would find work. Without the lock, so that a keeper that looks stands in no post's way.
    pub fn has_work(&self) -> bool {
        let is_due = self.due.load(Ordering::Relaxed) <= self.now().0;
        is_due || self.deferred.load(Ordering::Relaxed) || sleep(&self.fds, Nanos(0))
    }
    /// A pass of the keeper; `None` if the program runs the node.
    pub fn try_pass(&self) -> Option<bool> {
        let mut inner = self.try_lock()?;
        Some(self.pass(&mut inner))
    }
    /// Passes that the program has made so far.
    pub fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }
    /// Prepares a sleep of the keeper: the descriptors to watch and when to wake up. `None`: there is work.
    pub fn plan_sleep(&self) -> Option<(Vec<RawFd>, Nanos)> {
        let mut inner = self.lock();
        if inner.own().before_sleep() {
            return None;
        }
        // Not `self.fds`: a device of DPDK has a descriptor since its first sleep.
        let fds = inner.own().wait_fds().into_iter().chain([self.bell.as_fd().as_raw_fd()]).collect();
        let until = inner.own().next_deadline();
        // Under the lock: a post that brings the deadline forward comes before it, or sees it.
        self.sleeps_until.store(until.0, Ordering::Relaxed);
        Some((fds, until))
    }
    /// The keeper is awake.
    pub fn end_sleep(&self) {
        self.sleeps_until.store(0, Ordering::Relaxed);
        self.bell.take();
    }
    /// Sends what a post has made ready, or leaves it to the pass that follows.
    pub fn flush(&self, inner: &mut Inner) {
        if let ProgramNode::Daemon(daemon) = &mut inner.node {
            return daemon.send_posted();
        }
        let is_second = self.posted.swap(true, Ordering::Relaxed);
        if is_second && !self.keeper_serves.load(Ordering::Relaxed) {
            self.deferred.store(true, Ordering::Relaxed);
            return;
        }
        inner.send(self.now());
        let deadline = inner.own().next_deadline().0;
        self.due.store(deadline, Ordering::Relaxed);
        if deadline < self.sleeps_until.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }
    /// Arms a completion queue; one that has records already reports at once.
    pub fn arm(&self, inner: &mut Inner, jfc: u32, channel: u64) {
        self.uses_events.store(true, Ordering::Relaxed);
        if let ProgramNode::Daemon(daemon) = &mut inner.node {
            return daemon.arm(jfc);
        }
        inner.reports.arm(jfc, channel);
        if inner.has_completions(jfc) {
            inner.reports.completion(jfc);
        }
        // The program is about to wait by a descriptor, which the keeper makes readable.
        if !self.keeper_serves.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_lanes_is_checked() {
        for (text, number) in [(None, 1), (Some(""), 1), (Some("1"), 1), (Some(" 4 "), 4), (Some("8"), 8)] {
            assert_eq!(lanes(text), Ok(number));
        }
        for text in ["0", "9", "-1", "256", "four", "4.0"] {
            let sentence = lanes(Some(text)).expect_err("refused");
            assert_eq!(sentence, format!("BURST_URMA_LANES is \"{text}\": the number of lanes to a peer is 1 to 8"));
        }
    }
}
