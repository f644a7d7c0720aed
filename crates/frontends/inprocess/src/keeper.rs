//! The keeper: the thread that runs the worker while the program does not, and the periodic work of the control plane.
//!
//! It *serves* (sleeps until a port or a time-out needs the worker) or *watches* (naps, and sees by a counter whether the
//! program runs the worker). While it watches it touches no port, so that packets of a program that polls wake nobody. A
//! program that stops polling is served after the present nap, at most [`NAP_MAX`] and [`QUIET_FROM`] later; where there is one
//! processor, [`NAP_MIN`] later still. One that begins to poll is noticed at the next packets, by its passes and because it has
//! the worker: that wakes the keeper in vain, a few times.

use crate::inspection;
use crate::instance::{Instance, Sleeper};
use crate::lender::LenderState;
use burst_base::Nanos;
use burst_control::inspection::InspectionSocket;
use burst_engine::in_place::TurnOutcome;
use burst_ffi::keeper::{nap, spawn, wait};
use burst_ffi::tool_socket;
use burst_host::{Clock, Session};
use rustix::event::{PollFd, PollFlags};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

/// First nap, and the longest: each nap in which the program ran the worker is followed by one twice as long.
const NAP_MIN: Nanos = Nanos::from_us(500);
/// See [`NAP_MIN`].
const NAP_MAX: Nanos = Nanos::from_ms(2);
/// Time since the program last ran the worker from which on it does not poll any more.
const QUIET_FROM: Nanos = Nanos::from_us(300);
/// Naps between two looks at the control plane: each look takes time from a program that polls.
const NAPS_PER_UPKEEP: u32 = 16;
/// Passes and posts of the program within [`POLLS_WITHIN`] from which on it polls.
const POLLS_FROM: u64 = 16;
/// Two passes or posts in this time are not a program that sleeps: a keeper on the program's processor may be awake at each.
const POLLS_WITHIN: Nanos = Nanos::from_ms(2);
/// Passes and posts in a nap below which the program does not poll any more.
const POLLS_LEAST: u64 = 2;
/// What it counts when the keeper finds that the program has the worker. Seldom by chance.
const POLLS_MET: u64 = POLLS_FROM / 4;
/// Passes with work before the keeper looks at the control plane.
const PASSES_MAX: u32 = 64;
/// Longest sleep, and the pause while another thread runs the worker.
const SLEEP_MAX: Nanos = Nanos::from_ms(1000);
const BUSY_PAUSE: Nanos = Nanos::from_us(50);
/// Longest pause while another thread, which may wait for a processor, has the control plane. The first is [`NAP_MIN`].
const HOUSE_PAUSE_MAX: Nanos = Nanos::from_ms(8);

/// Environment variable: with `off` there is no such thread, and only the program's polls run the worker.
const KEEPER_ENV: &str = "BURST_KEEPER";

/// Whether the user wants no such thread.
pub fn is_off() -> bool {
    burst_control::environment::is_switched_off(KEEPER_ENV)
}

/// Starts the thread.
///
/// # Errors
/// A sentence: the system starts no thread.
pub fn start(instance: &'static Instance) -> Result<(), String> {
    if is_off() {
        return Ok(());
    }
    spawn("burst-keeper", move || run(instance))
}

fn run(instance: &'static Instance) {
    let kept = crate::enclosed(|| {
        let inspection = inspection::open();
        if let Some(socket) = &inspection {
            tool_socket::note(socket.path(), socket.listener());
        }
        Keeper {
            instance,
            seen: 0,
            rule: NapRule::new(instance.has_one_processor),
            naps: 0,
            house_pause: NAP_MIN,
            inspection,
            news: None,
        }
        .run()
    });
    if kept.is_none() {
        crate::fail();
    }
}

/// When the keeper stops serving: what the program did lately.
#[derive(Default)]
struct ServeRule {
    since: Nanos,
    activity: u64,
}

impl ServeRule {
    /// The program has run the worker, or posted, `activity` times since the last call. `is_met`: it had the worker just now,
    /// which alone may be by a request to the control plane. Returns whether it polls.
    fn polls(&mut self, activity: u64, is_met: bool, now: Nanos) -> bool {
        if now.since(self.since) >= POLLS_WITHIN {
            (self.since, self.activity) = (now, 0);
        }
        let met = if is_met && activity > 0 { POLLS_MET } else { 0 };
        self.activity += activity + met;
        self.activity >= POLLS_FROM
    }
}

/// Whether a program that waits by descriptors of its own needs the keeper, however much it polls and posts.
#[derive(Default)]
struct ArmedRule {
    since: Option<Nanos>,
}

impl ArmedRule {
    /// `has_armed`: it has armed a queue since the last call. It sleeps soon after that, once it has posted its answers.
    fn sleeps_soon(&mut self, has_armed: bool, now: Nanos) -> bool {
        if has_armed {
            self.since = Some(now);
        }
        self.since.is_some_and(|since| now.since(since) < POLLS_WITHIN)
    }
}

/// How long the keeper naps, and when it serves.
struct NapRule {
    nap: Nanos,
    has_one_processor: bool,
    /// The program ran the worker in the last nap, but not at its end: it has stopped, or somebody else has the only processor.
    is_unsure: bool,
}

impl NapRule {
    fn new(has_one_processor: bool) -> NapRule {
        NapRule { nap: NAP_MIN, has_one_processor, is_unsure: false }
    }

    /// A nap has ended in which the program was active so often; it last ran the worker `since` ago. Returns whether it does
    /// not run the worker any more.
    fn is_quiet(&mut self, activity: u64, since: Nanos, has_waiter: bool) -> bool {
        let is_active = activity >= POLLS_LEAST;
        if has_waiter || is_active && since < QUIET_FROM {
            (self.nap, self.is_unsure) = (Nanos(self.nap.0 * 2).min(NAP_MAX), false);
            return false;
        }
        (self.nap, self.is_unsure) = (NAP_MIN, self.has_one_processor && is_active && !self.is_unsure);
        !self.is_unsure
    }
}

struct Keeper {
    instance: &'static Instance,
    /// The program's activity when the keeper was last awake.
    seen: u64,
    rule: NapRule,
    /// Naps so far.
    naps: u32,
    /// The next pause if another thread has the control plane.
    house_pause: Nanos,
    /// What tools see of the program.
    inspection: Option<InspectionSocket<Session>>,
    /// What the last sleep has found, until it is used or the keeper watches.
    news: Option<ControlNews>,
}

impl Keeper {
    fn run(mut self) {
        while !self.instance.has_failed() {
            if self.watch() {
                self.serve();
            }
        }
    }

    /// The program's passes since the last call.
    fn activity(&mut self) -> u64 {
        let now = self.instance.activity();
        now.wrapping_sub(std::mem::replace(&mut self.seen, now))
    }

    /// Naps until the program does not run the worker. Returns whether the keeper shall serve.
    fn watch(&mut self) -> bool {
        self.news = None;
        let is_rung = nap(&self.instance.bell, self.rule.nap) && self.instance.bell.take();
        self.naps = self.naps.wrapping_add(1);
        let waits = self.instance.try_house().is_some_and(|house| house.host.cm.hops.is_waited_for());
        if waits || self.naps.is_multiple_of(NAPS_PER_UPKEEP) {
            self.keep_up();
            self.instance.answer_rings();
        }
        let activity = self.activity();
        let since = Clock::Monotonic.now().since(self.instance.worker().last_turn());
        self.rule.is_quiet(activity, since, self.instance.has_waiter()) || is_rung
    }

    /// Runs the worker until the program does.
    fn serve(&mut self) {
        let mut armed = ArmedRule::default();
        loop {
            self.instance.keeper_serves.store(true, Ordering::SeqCst);
            self.activity();
            let mut rule = ServeRule::default();
            while !self.instance.has_failed() && !self.instance.has_waiter() {
                let is_met = self.serve_once();
                if rule.polls(self.activity(), is_met, Clock::Monotonic.now()) {
                    break;
                }
            }
            self.instance.keeper_serves.store(false, Ordering::SeqCst);
            self.instance.answer_rings();
            let sleeps = armed.sleeps_soon(self.instance.take_armed(), Clock::Monotonic.now());
            if !sleeps || self.instance.has_waiter() || self.instance.has_failed() {
                break;
            }
        }
        self.rule = NapRule::new(self.instance.has_one_processor);
    }

    /// Runs passes of the worker while there is work, serves the control plane, then sleeps. Returns true if another thread was
    /// running the worker: then the keeper has only paused.
    fn serve_once(&mut self) -> bool {
        for _ in 0..PASSES_MAX {
            match self.instance.look() {
                TurnOutcome::Active => continue,
                TurnOutcome::Idle => break,
                TurnOutcome::Gone => {
                    crate::fail();
                    return false;
                }
                TurnOutcome::Busy => {
                    if nap(&self.instance.bell, BUSY_PAUSE) {
                        self.instance.bell.take();
                    }
                    return true;
                }
            }
        }
        self.instance.sleep_until(Sleeper::Keeper, Nanos::NEVER);
        let upkeep = self.keep_up();
        let Some(plan) = self.instance.worker().try_sleep() else {
            self.instance.sleep_until(Sleeper::Keeper, Nanos(0));
            return false;
        };
        let until = plan.until.min(upkeep.due).min(Clock::Monotonic.now() + SLEEP_MAX);
        self.instance.sleep_until(Sleeper::Keeper, until);
        self.instance.answer_rings();
        let raw = std::iter::once(self.instance.bell.as_fd().as_raw_fd()).chain(upkeep.fds).chain(plan.fds);
        // SAFETY: the ports' descriptors are open as long as the worker is, which only `fail` ends: a closed one ends the sleep.
        let fds = raw.map(|fd| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let slept = wait(&mut fds, until.since(Clock::Monotonic.now()));
        let ready = |at: usize| !slept || !fds[at].revents().is_empty();
        self.news = Some(ControlNews {
            interfaces: upkeep.interfaces.is_some_and(|at| ready(1 + at)),
            hops: upkeep.hops.is_some_and(|at| ready(1 + at)),
            inspection: (upkeep.inspection.start..upkeep.inspection.end).any(|at| ready(1 + at)),
        });
        // The last descriptor of a plan is that of commands.
        let is_woken = ready(fds.len() - 1);
        self.instance.worker().end_sleep_after(is_woken);
        if self.instance.activity() == self.seen {
            // It has the worker for a request, if at all, whose answer may be what has woken the keeper. A program that posts or
            // polls would be stopped each time.
            self.instance.worker().wait_for_others();
        }
        self.instance.sleep_until(Sleeper::Keeper, Nanos(0));
        if is_woken && self.instance.has_waiter() {
            // The wake-up may have been for it.
            self.instance.worker().wake();
        }
        if ready(0) {
            self.instance.bell.take();
        }
        false
    }

    /// Carries out what is due in the control plane, unless a thread of the program uses it. A sleep that has just ended knows
    /// which descriptors have news; otherwise they are asked.
    fn keep_up(&mut self) -> UpkeepPlan {
        // Of a sleep long ago they say nothing.
        let news = self.news.take();
        let soon = |pause| UpkeepPlan { due: Clock::Monotonic.now() + pause, ..UpkeepPlan::default() };
        let Some(mut house) = self.instance.try_house() else {
            let pause = self.house_pause;
            self.house_pause = Nanos(pause.0 * 2).min(HOUSE_PAUSE_MAX);
            return soon(pause);
        };
        self.house_pause = NAP_MIN;
        if house.look_at_lender() == LenderState::Gone {
            drop(house);
            self.instance.lender_gone();
            return soon(NAP_MIN);
        }
        let mut plan = UpkeepPlan::default();
        let interfaces = house.upkeep.interface_events().map(|fd| fd.as_raw_fd());
        let hops = house.host.cm.hops.fd().map(|fd| fd.as_raw_fd());
        plan.interfaces = interfaces.map(|fd| plan.add(fd));
        plan.hops = hops.map(|fd| plan.add(fd));
        let has_interfaces = news.map_or_else(|| interfaces.is_some_and(is_readable), |news| news.interfaces);
        let has_hops = news.map_or_else(|| hops.is_some_and(is_readable), |news| news.hops);
        let now = house.host.now();
        if has_interfaces || has_hops || house.due_at().is_some_and(|due| due <= now) {
            house.keep_up(has_interfaces, has_hops);
        }
        plan.fds.extend(house.lender_fds());
        if let Some(inspection) = &mut self.inspection {
            // Silent connections are ended by time.
            if inspection.has_clients() || news.is_none_or(|news| news.inspection) {
                inspection.serve(&mut *house, now);
            }
            plan.inspection.start = plan.fds.len();
            plan.fds.extend(inspection.fds());
            plan.inspection.end = plan.fds.len();
        }
        plan.due = house.due_at().unwrap_or(Nanos::NEVER);
        plan
    }
}

/// What the control plane waits for.
#[derive(Default)]
struct UpkeepPlan {
    fds: Vec<RawFd>,
    due: Nanos,
    /// Places in `fds`: of changes of interfaces and of next hops, and of the tools' connections.
    interfaces: Option<usize>,
    hops: Option<usize>,
    inspection: Range<usize>,
}

impl UpkeepPlan {
    /// Adds a descriptor, and returns its place.
    fn add(&mut self, fd: RawFd) -> usize {
        self.fds.push(fd);
        self.fds.len() - 1
    }
}

/// Which of the control plane's descriptors were readable when a sleep ended. What comes later ends the next one.
#[derive(Clone, Copy)]
struct ControlNews {
    interfaces: bool,
    hops: bool,
    inspection: bool,
}

fn is_readable(fd: RawFd) -> bool {
    // SAFETY: a descriptor of the house, which the caller has locked.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    wait(&mut fds, Nanos(0)) && !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUST_NOW: Nanos = Nanos(5_000);

    /// When the keeper serves a program that polls every 5 us until `end`, in microseconds. It then goes on posting if it
    /// `posts`, of which the worker learns by the first post alone.
    fn serves_at(end: u64, has_one_processor: bool, posts: bool) -> u64 {
        let (mut rule, mut now) = (NapRule::new(has_one_processor), 0);
        for _ in 0..1_000_000 {
            let until = now + rule.nap.0 / 1_000;
            let polls = if posts { (until - now) / 5 } else { (until.min(end) - now.min(end)) / 5 };
            now = until;
            if rule.is_quiet(polls, Nanos::from_us(now.saturating_sub(end)), false) {
                return now;
            }
        }
        panic!("it never serves a program that has stopped at {end} us");
    }

    #[test]
    fn a_program_that_posts_often_polls_even_if_the_keeper_sees_each_post() {
        let polls = |every_us: u64, each: u64| {
            let mut rule = ServeRule::default();
            (0..1_000).any(|n| rule.polls(each, false, Nanos::from_us(1_000_000 + n * every_us)))
        };
        assert!(polls(50, 1), "one post for each sleep of the keeper");
        assert!(polls(1_000, POLLS_FROM), "many at a time");
        assert!(!polls(200, 1) && !polls(2_000, POLLS_FROM - 1));
    }

    #[test]
    fn a_program_that_has_the_worker_now_and_again_polls_but_not_by_requests_alone() {
        let polls = |activity: u64| {
            let mut rule = ServeRule::default();
            (0..8).any(|n| rule.polls(activity, true, Nanos::from_us(1_000_000 + n * 200)))
        };
        assert!(polls(1) && !polls(0));
    }

    #[test]
    fn a_program_that_has_armed_a_queue_is_served_while_it_posts_its_answers() {
        let (mut rule, at) = (ArmedRule::default(), |us: u64| Nanos::from_us(1_000_000 + us));
        assert!(!rule.sleeps_soon(false, at(0)));
        assert!(rule.sleeps_soon(true, at(1)));
        assert!(rule.sleeps_soon(false, at(2_000)) && !rule.sleeps_soon(false, at(2_001)), "it polls for longer");
        assert!(rule.sleeps_soon(true, at(9_000)));
    }

    #[test]
    fn a_program_that_computes_is_served_in_less_than_three_milliseconds() {
        let longest = |one, posts| (0..20_000).map(|end| serves_at(end, one, posts) - end).max().expect("some");
        assert!(longest(false, false) <= 2_300 && longest(false, true) <= 2_300);
        assert!(longest(true, false) <= 2_500 && longest(true, true) <= 2_800);
    }

    #[test]
    fn a_program_that_polls_or_waits_is_left_alone_and_wakes_the_keeper_seldom() {
        let mut rule = NapRule::new(true);
        assert!((0..10).all(|_| !rule.is_quiet(POLLS_LEAST, JUST_NOW, false) && !rule.is_quiet(0, NAP_MAX, true)));
        assert_eq!(rule.nap, NAP_MAX);
        assert!(rule.is_quiet(POLLS_LEAST - 1, JUST_NOW, false));
        assert_eq!(rule.nap, NAP_MIN, "it may poll again soon");
        assert!(!rule.is_quiet(1_000, QUIET_FROM, false), "its processor may have been taken from it within the nap");
        assert!(rule.is_quiet(1_000, QUIET_FROM, false), "it posts and does not poll");
        assert!(!rule.is_quiet(1_000, QUIET_FROM, false) && !rule.is_quiet(1_000, JUST_NOW, false), "it had been");
        assert!(!rule.is_quiet(1_000, QUIET_FROM, false) && rule.is_quiet(0, NAP_MIN, false), "it has stopped");
        assert!(NapRule::new(false).is_quiet(1_000, QUIET_FROM, false), "it has stopped, or it would have run");
    }
}
