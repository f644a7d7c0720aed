//! The whole of a daemon, several times in one process and one thread: control plane, sessions, connection management, shared
//! memory, engine and transport of two hosts, with programs and a network that follow from a seed. The time is virtual.
//!
//! | variable | meaning |
//! |---|---|
//! | `BURST_SEED` | runs this seed only |
//! | `BURST_SEEDS` | number of seeds, from `BURST_FIRST_SEED` on |
//! | `BURST_STEPS` | steps of each seed |
//! | `BURST_COUNTERS` | prints the counters of all hosts: what a run has reached |
//!
//! A seed that fails is printed with its step and the command that repeats it. `kept-seeds` has the seeds that once failed; they
//! always run. `tests/hunt/whole.sh` looks for new ones.

mod honest;
mod hostile;
mod network;
mod node;
mod program;
mod requests;
mod world;

use burst_base::fault;
use burst_base::rng::Rng;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Summary, World};

/// Seeds and steps of a run without settings.
const SEEDS: u64 = 6;
const STEPS: u64 = 40_000;

thread_local! {
    /// The step that fails in the next request, and whether one has failed.
    static PLANNED: Cell<Option<u64>> = const { Cell::new(None) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Sometimes lets a system call or allocation of the host fail during the next request.
pub fn plan_failure(rng: &mut Rng) {
    PLANNED.set(rng.chance(1, 4).then(|| rng.below(12)));
}

/// Runs the host for a request, with the planned failure.
pub fn with_failure<T>(run: impl FnOnce() -> T) -> T {
    let Some(after) = PLANNED.take() else { return run() };
    fault::arm(after);
    let result = run();
    FAILED.set(fault::disarm() | FAILED.get());
    result
}

/// Whether a failure was injected since the last call. Ends the plan.
pub fn take_failure() -> bool {
    PLANNED.set(None);
    FAILED.take()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Open descriptors and mappings of this process.
fn held() -> (usize, usize) {
    // The process has one userfaultfd from the first registration on.
    let counts = |fd: &std::fs::DirEntry| {
        !std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.flatten().filter(counts).count());
    let mappings = std::fs::read_to_string("/proc/self/maps")
        .map_or(0, |text| text.lines().filter(|line| line.contains("memfd:")).count());
    (descriptors, mappings)
}

/// Runs a seed. The error is what failed.
fn run(seed: u64, steps: u64) -> Result<Summary, String> {
    let step = Cell::new(0);
    let before = held();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed);
        while step.get() < steps {
            world.step();
            step.set(step.get() + 1);
        }
        let summary = world.end();
        if held() != before {
            let open = std::fs::read_dir("/proc/self/fd").expect("listed").flatten();
            let names: Vec<_> = open.map(|fd| std::fs::read_link(fd.path())).collect();
            panic!("descriptors and mappings of shared memory: {before:?} before, {:?} after: {names:?}", held());
        }
        summary
    }));
    fault::disarm();
    take_failure();
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
        format!(
            "seed {seed} failed at step {}: {text}\nrepeat it: BURST_SEED={seed} BURST_STEPS={steps} cargo test -p burst-host --test whole",
            step.get()
        )
    })
}

/// The seeds of a file: one a line, with the number of steps; `#` begins a comment.
fn kept_seeds() -> Vec<(u64, u64)> {
    let lines = include_str!("kept-seeds").lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let number = |word: Option<&str>| word.and_then(|w| w.parse().ok()).expect("a seed and a number of steps");
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            (number(words.next()), number(words.next()))
        })
        .collect()
}

#[test]
fn programs_of_any_kind_disturb_no_other_and_leave_nothing() {
    let steps = setting("BURST_STEPS").unwrap_or(STEPS);
    let mut seeds: Vec<(u64, u64)> = kept_seeds();
    let first = setting("BURST_FIRST_SEED").unwrap_or(1);
    seeds.extend((first..first + setting("BURST_SEEDS").unwrap_or(SEEDS)).map(|seed| (seed, steps)));
    if let Some(seed) = setting("BURST_SEED") {
        seeds = vec![(seed, steps)];
    }
    let (mut failed, mut all, begun) = (Vec::new(), Summary::default(), std::time::Instant::now());
    for (seed, steps) in seeds {
        match run(seed, steps) {
            Ok(summary) => {
                println!("seed {seed}: {summary}");
                all.add(&summary);
            }
            Err(why) => {
                println!("{why}");
                failed.push(seed);
            }
        }
    }
    println!("all seeds: {all}, {:.1} s", begun.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "these seeds failed: {failed:?}");
}
