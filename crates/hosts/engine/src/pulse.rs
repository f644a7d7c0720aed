//! The pulse of a thread: whether it goes on, and what it does, for a watchdog in another thread.
//!
//! The thread adds to a counter at each step that must be short ([`Pulse::beat`]) and marks the time in which it waits for work
//! ([`Pulse::rest`]). A watchdog looks from time to time: a thread that neither rests nor beats stands still. Both calls are a
//! relaxed load and store, because one thread writes and the watchdog needs no order. A worker also adds up here what it spends
//! its time on ([`Pulse::spend`]), in the line that each pass writes anyway.

use burst_base::Nanos;
use burst_control::activity::WorkerTime;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a thread was doing at its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PulseTask {
    /// Nothing is known.
    Unknown,
    /// A worker serves a queue pair with this number.
    QueuePair(u32),
    /// The control thread serves a process (0: not visible) of a user.
    Process {
        /// Process id.
        pid: u32,
        /// User id.
        uid: u32,
    },
}

/// What a worker's thread spends a pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PassKind {
    /// It did something.
    Busy = 0,
    /// It found nothing to do.
    Spinning = 1,
    /// It found nothing to do for so long that the worker slept.
    Asleep = 2,
}

/// The pulse of one thread.
// A pass writes `beats`, one of `spent` and perhaps `qpn`: one line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Pulse {
    /// Odd while the thread rests.
    beats: AtomicU64,
    /// Nanoseconds by [`PassKind`].
    spent: [AtomicU64; 3],
    /// Last queue pair of a worker; 0: none.
    qpn: AtomicU32,
    /// Number of the thread; 0 before it has begun.
    thread: AtomicU32,
    /// Last process and user of the control thread.
    process: AtomicU64,
    user: AtomicU32,
    name: String,
}

/// A look at a pulse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulseSample {
    beats: u64,
    /// Number of the thread.
    pub thread: u32,
    /// What the thread does.
    pub task: PulseTask,
}

/// In [`Pulse::process`]: there is a process.
const HAS_PROCESS: u64 = 1 << 32;

impl Pulse {
    /// The pulse of a thread called `name`, which rests until its first beat.
    pub fn new(name: String) -> Pulse {
        let [thread, qpn, user] = [const { AtomicU32::new(0) }; 3];
        let spent = [const { AtomicU64::new(0) }; 3];
        Pulse { beats: AtomicU64::new(1), spent, qpn, thread, process: AtomicU64::new(0), user, name }
    }
    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The calling thread is the one to be watched.
    pub fn begin(&self) {
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(number.cast_unsigned(), Relaxed);
    }
    /// The thread goes on.
    #[inline]
    pub fn beat(&self) {
        // The next even number.
        self.beats.store((self.beats.load(Relaxed) | 1) + 1, Relaxed);
    }
    /// The thread waits for work until its next beat.
    #[inline]
    pub fn rest(&self) {
        self.beats.store(self.beats.load(Relaxed) | 1, Relaxed);
    }
    /// A pass of this kind has taken this time. For the thread itself alone.
    #[inline]
    pub fn spend(&self, kind: PassKind, time: Nanos) {
        let sum = &self.spent[kind as usize];
        sum.store(sum.load(Relaxed).wrapping_add(time.0), Relaxed);
    }
    /// What the thread has spent its time on since it began.
    pub fn time(&self) -> WorkerTime {
        let [busy_ns, spinning_ns, asleep_ns] = [0, 1, 2].map(|kind: usize| self.spent[kind].load(Relaxed));
        WorkerTime { busy_ns, spinning_ns, asleep_ns }
    }
    /// The thread serves this queue pair.
    #[inline]
    pub fn serve_qp(&self, qpn: u32) {
        self.qpn.store(qpn, Relaxed);
    }
    /// The thread serves this process; a beat, too.
    pub fn serve_process(&self, pid: u32, uid: u32) {
        self.process.store(HAS_PROCESS | u64::from(pid), Relaxed);
        self.user.store(uid, Relaxed);
        self.beat();
    }
    /// The state now; `None` while the thread rests.
    pub fn sample(&self) -> Option<PulseSample> {
        let beats = self.beats.load(Relaxed);
        let (qpn, process) = (self.qpn.load(Relaxed), self.process.load(Relaxed));
        let task = match (qpn, process) {
            (0, 0) => PulseTask::Unknown,
            (0, process) => PulseTask::Process { pid: process as u32, uid: self.user.load(Relaxed) },
            (qpn, _) => PulseTask::QueuePair(qpn),
        };
        beats.is_multiple_of(2).then(|| PulseSample { beats, thread: self.thread.load(Relaxed), task })
    }
}

impl PulseSample {
    /// Whether the thread has not gone on since an earlier look.
    pub fn is_same_step(&self, earlier: &PulseSample) -> bool {
        self.beats == earlier.beats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_rests_does_not_stand_still() {
        let pulse = Pulse::new("worker 0".into());
        assert_eq!((pulse.sample(), pulse.name()), (None, "worker 0"), "not begun");
        pulse.begin();
        pulse.beat();
        let first = pulse.sample().expect("at work");
        assert!(first.thread != 0 && first.task == PulseTask::Unknown);
        assert!(pulse.sample().expect("at work").is_same_step(&first));
        pulse.beat();
        assert!(!pulse.sample().expect("at work").is_same_step(&first));
        pulse.rest();
        pulse.rest();
        assert_eq!(pulse.sample(), None);
        pulse.beat();
        assert!(pulse.sample().is_some());
    }

    #[test]
    fn time_is_added_up_by_kind() {
        let pulse = Pulse::new("worker 0".into());
        for (kind, ns) in [(PassKind::Busy, 5), (PassKind::Asleep, 100), (PassKind::Busy, 2), (PassKind::Spinning, 1)] {
            pulse.spend(kind, Nanos(ns));
        }
        assert_eq!(pulse.time(), WorkerTime { busy_ns: 7, spinning_ns: 1, asleep_ns: 100 });
    }

    #[test]
    fn the_task_is_the_last_one() {
        let pulse = Pulse::new("control".into());
        pulse.serve_process(0, 7);
        assert_eq!(pulse.sample().map(|s| s.task), Some(PulseTask::Process { pid: 0, uid: 7 }));
        pulse.serve_qp(77);
        assert_eq!(pulse.sample().map(|s| s.task), Some(PulseTask::QueuePair(77)));
    }
}
