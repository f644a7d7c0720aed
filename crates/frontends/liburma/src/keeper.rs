//! The keeper: the thread that runs the node of an address while the program does not.
//!
//! It *serves* (looks for packets, then sleeps until the port or a deadline needs the node) or *watches* (naps, and sees by a
//! counter whether the program polls). While it watches it touches no port, so that packets of a program that polls wake
//! nobody.
//!
//! It serves for longer than the keeper of verbs does: a program that posts and polls once for each message, and otherwise spins
//! on memory that the peer writes (`urma_perftest write_lat`), makes many passes in a millisecond and needs the keeper all the
//! same.

use crate::descriptors::await_fds;
use crate::host::UrmaHost;
use crate::inspection::UrmaInspection;
use burst_base::Nanos;
use burst_ffi::keeper::{nap, spawn};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// First nap, and the longest: each nap in which the program polled is followed by one twice as long.
const NAP_MIN: Nanos = Nanos::from_us(500);
const NAP_MAX: Nanos = Nanos::from_ms(2);
/// Passes of the program during one round of the keeper from which on the program serves itself.
const POLLS_FROM: u64 = 32;
/// Passes in a nap below which the program does not poll any more.
const POLLS_LEAST: u64 = 4;
/// Passes with work before the keeper looks at the program again.
const PASSES_MAX: u32 = 64;
/// How long the keeper looks for packets before it sleeps.
const SPIN: Nanos = Nanos::from_us(50);
/// A pass and a yield that take longer show that another thread wants the processor.
const YIELD_LONG: Nanos = Nanos::from_us(20);
/// Naps, or rounds without sleep, between two looks at the socket for tools: each look takes time from the program.
const ROUNDS_PER_LOOK: u32 = 16;
/// Longest sleep: the host may have ended.
const SLEEP_MAX: Nanos = Nanos::from_ms(100);

/// Starts the keeper of a host; it ends with the host.
///
/// # Errors
/// A sentence: the system starts no thread.
pub fn start(host: &Arc<UrmaHost>) -> Result<(), String> {
    let weak = Arc::downgrade(host);
    spawn("burst-urma", move || {
        // As in a call of the program: a thread that vanished would leave requests without end.
        if catch_unwind(AssertUnwindSafe(|| run(&weak))).is_err() {
            std::process::abort();
        }
    })
}

fn run(host: &Weak<UrmaHost>) {
    // SAFETY: changes the accuracy of this thread's sleeps only; without it they are 50 us longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut keeper = UrmaKeeper { seen: 0, nap: NAP_MIN, rounds: 0, inspection: UrmaInspection::new() };
    let mut serves = true;
    if let Some(host) = host.upgrade() {
        host.keeper_serves.store(true, Ordering::Relaxed);
    }
    loop {
        // Only between rounds: the host ends with its last context.
        let Some(host) = host.upgrade() else { return };
        serves = if serves { keeper.serve(&host) } else { keeper.watch(&host) };
        host.keeper_serves.store(serves, Ordering::Relaxed);
    }
}

struct UrmaKeeper {
    /// The program's activity when the keeper was last awake.
    seen: u64,
    nap: Nanos,
    /// Naps and rounds without sleep so far.
    rounds: u32,
    /// What tools see of the program.
    inspection: UrmaInspection,
}

impl UrmaKeeper {
    /// The program's passes since the last call.
    fn activity(&mut self, host: &UrmaHost) -> u64 {
        let now = host.activity();
        now.wrapping_sub(std::mem::replace(&mut self.seen, now))
    }
    /// A nap; whether the program does not poll any more, or waits.
    fn watch(&mut self, host: &UrmaHost) -> bool {
        let is_rung = nap(&host.bell, self.nap);
        self.look_at_tools();
        if is_rung {
            host.end_sleep();
        }
        let is_quiet = self.activity(host) < POLLS_LEAST;
        self.nap = if is_quiet { NAP_MIN } else { Nanos(self.nap.0 * 2).min(NAP_MAX) };
        is_quiet || is_rung
    }
    /// A round: passes while there is work, then a sleep. False if the program has begun to poll.
    fn serve(&mut self, host: &UrmaHost) -> bool {
        for _ in 0..PASSES_MAX {
            if !look(host) {
                break;
            }
        }
        match host.plan_sleep() {
            Some((fds, until)) => self.sleep_with_tools(host, fds, until),
            None => self.look_at_tools(),
        }
        self.nap = NAP_MIN;
        self.activity(host) < POLLS_FROM
    }
    /// Sleeps, also until a tool asks.
    fn sleep_with_tools(&mut self, host: &UrmaHost, mut fds: Vec<RawFd>, until: Nanos) {
        self.inspection.take_over();
        let own = fds.len() as u32;
        fds.extend(self.inspection.fds());
        let readable = await_fds(&fds, until.since(host.now()).min(SLEEP_MAX));
        host.end_sleep();
        if readable.checked_shr(own).is_some_and(|tools| tools != 0) || self.inspection.has_clients() {
            self.inspection.serve();
        }
    }
    /// Answers tools, once in so many calls.
    fn look_at_tools(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
            self.inspection.take_over();
            self.inspection.serve();
        }
    }
}
/// Looks until a pass finds work, another thread needs the processor, or the time is over after which to sleep. A thread of the
/// program that has the node looks itself.
fn look(host: &UrmaHost) -> bool {
    let mut now = host.now();
    let end = now + SPIN;
    loop {
        if host.has_work() && host.try_pass() == Some(true) {
            return true;
        }
        std::thread::yield_now();
        let before = std::mem::replace(&mut now, host.now());
        if now >= end || now.since(before) > YIELD_LONG {
            return false;
        }
    }
}
