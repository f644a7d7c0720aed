//! A thread that names a control or worker thread that stands still.
//!
//! Every 250 ms the watchdog looks at the pulse of each thread. A thread that neither rests nor goes on for [`STALL_MIN`] is
//! named in the log, with what it does and where it is in the kernel, and counted as `thread_stalled`; again each time that the
//! duration has doubled, and once more when it goes on. The watchdog changes nothing: a thread that blocks in the kernel cannot
//! be ended, and to end the daemon is a decision of its administrator.

use burst_engine::pulse::{Pulse, PulseSample, PulseTask};
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// A thread that does not go on for this long stands still.
pub const STALL_MIN: Duration = Duration::from_secs(1);
/// Maximum number of characters of the thread's place in the kernel.
const PLACE_MAX: usize = 600;

/// A thread that stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its name.
    pub thread: String,
    /// How long it has not gone on.
    pub duration: Duration,
    /// What it was doing.
    pub task: PulseTask,
    /// State, system call, and functions of the kernel, as far as the kernel shows them.
    pub place: String,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall { thread, duration, task, place } = self;
        write!(f, "thread {thread} has stood still for {:.1} s", duration.as_secs_f64())?;
        match task {
            PulseTask::Unknown => {}
            PulseTask::QueuePair(qpn) => write!(f, "; the last queue pair that it served: {qpn:#x}")?,
            PulseTask::Process { pid, uid } => write!(f, "; it serves process {pid} of user {uid}")?,
        }
        write!(f, "; {place} (thread_stalled)")
    }
}

/// One thread under watch.
#[derive(Debug)]
struct Watched {
    pulse: Arc<Pulse>,
    /// The first look at the present step, and when it was.
    step: Option<(PulseSample, Instant)>,
    /// When the present stall is named next.
    named_at: Duration,
}

impl Watched {
    fn new(pulse: Arc<Pulse>) -> Watched {
        Watched { pulse, step: None, named_at: STALL_MIN }
    }

    /// Looks at the thread. The stall, when it must be named.
    fn look(&mut self, now: Instant) -> Option<Stall> {
        let sample = self.pulse.sample();
        if let (Some(sample), Some((first, since))) = (&sample, &self.step)
            && sample.is_same_step(first)
        {
            let duration = now.saturating_duration_since(*since);
            if duration < self.named_at {
                return None;
            }
            self.named_at = duration * 2;
            let place = place_of(sample.thread);
            return Some(Stall { thread: self.pulse.name().into(), duration, task: sample.task, place });
        }
        if let Some((_, since)) = self.step
            && self.named_at > STALL_MIN
        {
            let seconds = now.saturating_duration_since(since).as_secs_f64();
            warn!("thread {} goes on after it has stood still for about {seconds:.1} s", self.pulse.name());
        }
        self.named_at = STALL_MIN;
        self.step = sample.map(|sample| (sample, now));
        None
    }
}

/// Where a thread of this process is: its state, its system call, and functions of the kernel.
fn place_of(thread: u32) -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap_or_default();
    let stat = read("stat");
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
    let call = read("syscall");
    let call = call.split_whitespace().next().unwrap_or("?");
    let stack = read("stack");
    let functions: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let functions = if functions.is_empty() { read("wchan") } else { functions.join(" < ") };
    let call = if call == "running" { "no system call".to_owned() } else { format!("system call {call}") };
    format!("state {state}, {call}, {functions}").chars().take(PLACE_MAX).collect()
}

#[derive(Debug, Default)]
struct WatchdogShared {
    ended: Mutex<bool>,
    changed: Condvar,
    stalls: AtomicU64,
    /// Whether a thread stands still now.
    is_stalled: AtomicBool,
}

/// The watchdog's thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<WatchdogShared>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches threads. `name` gets each stall.
    ///
    /// # Errors
    /// A sentence when the system starts no thread.
    pub fn start(pulses: Vec<Arc<Pulse>>, name: impl Fn(&Stall) + Send + 'static) -> Result<Watchdog, String> {
        let shared = Arc::new(WatchdogShared::default());
        let of_thread = shared.clone();
        let mut watched: Vec<Watched> = pulses.into_iter().map(Watched::new).collect();
        let thread = std::thread::Builder::new().name("burst-watchdog".into());
        let thread = thread
            .spawn(move || of_thread.work(&mut watched, name))
            .map_err(|e| format!("cannot start the watchdog: {e}"))?;
        Ok(Watchdog { shared, thread: Some(thread) })
    }

    /// How many stalls were named, each as often as it was named.
    pub fn stalls(&self) -> u64 {
        self.shared.stalls.load(Relaxed)
    }

    /// Whether a thread stands still now.
    pub fn is_stalled(&self) -> bool {
        self.shared.is_stalled.load(Relaxed)
    }
}

impl WatchdogShared {
    fn work(&self, watched: &mut [Watched], name: impl Fn(&Stall)) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let now = Instant::now();
            for thread in &mut *watched {
                if let Some(stall) = thread.look(now) {
                    // First, because `name` may tell a thread that asks.
                    self.stalls.fetch_add(1, Relaxed);
                    self.is_stalled.store(true, Relaxed);
                    name(&stall);
                }
            }
            self.is_stalled.store(watched.iter().any(|thread| thread.named_at > STALL_MIN), Relaxed);
            ended = self.changed.wait_timeout(ended, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_step_is_named_when_it_is_long_and_again_when_it_has_doubled() {
        let pulse = Arc::new(Pulse::new("control".into()));
        pulse.begin();
        pulse.serve_process(1, 1001);
        let (mut watched, start) = (Watched::new(pulse.clone()), Instant::now());
        let named: Vec<u64> = (0..40).map(|k| k * 250).filter(|ms| watched.look(at(start, *ms)).is_some()).collect();
        assert_eq!(named, [1000, 2000, 4000, 8000]);
        pulse.beat();
        assert_eq!(watched.look(at(start, 20_000)), None);
        let stall = watched.look(at(start, 21_500)).expect("the next step is long, too");
        assert_eq!(
            (stall.duration, stall.task),
            (Duration::from_millis(1500), PulseTask::Process { pid: 1, uid: 1001 })
        );
        pulse.rest();
        assert!((0..40).all(|k| watched.look(at(start, 22_000 + k * 1000)).is_none()), "a thread that waits for work");
    }

    #[test]
    fn a_thread_that_blocks_is_named_with_its_system_call() {
        let pulse = Arc::new(Pulse::new("worker 3".into()));
        let (sender, stalls) = channel();
        let watchdog = Watchdog::start(vec![pulse.clone()], move |stall| {
            let _ = sender.send(stall.clone());
        });
        let watchdog = watchdog.expect("a thread");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let of_thread = pulse.clone();
        let blocked = std::thread::spawn(move || {
            of_thread.begin();
            of_thread.beat();
            of_thread.serve_qp(0x123);
            let _ = std::io::Read::read(&mut &reader, &mut [0]);
            of_thread.rest();
        });
        let stall = stalls.recv_timeout(Duration::from_secs(20)).expect("a stall");
        assert!(watchdog.is_stalled() && watchdog.stalls() > 0);
        drop(writer);
        blocked.join().expect("goes on");
        let text = stall.to_string();
        assert!(text.starts_with("thread worker 3 has stood still for "), "{text}");
        assert!(text.contains("queue pair that it served: 0x123") && text.contains("state S"), "{text}");
        // Number of read on this architecture, where the kernel shows it.
        let call = format!("system call {}", libc::SYS_read);
        assert!(text.contains(&call) || text.contains("system call ?"), "{text}");
        let begun = Instant::now();
        while watchdog.is_stalled() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it goes on");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
