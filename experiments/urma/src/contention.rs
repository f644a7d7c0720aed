//! A lock in one word: programs try to get it by compare and swap, and free it in the same way.

use crate::artefact;
use crate::closed_form::{StudyVerb, TwoNodes};
use crate::interface::StudyStack;
use crate::measure::{RUN_MAX, warm_world};
use crate::program::{EndedOp, StudyOp, StudyProgram};
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::StudyConfig;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockStep {
    /// It begins an attempt.
    Try,
    /// It waits for the outcome of an attempt.
    Trying,
    /// It has the lock, and begins to free it.
    Free,
    /// It waits for the lock to be free.
    Freeing,
    /// All are done.
    Done,
}

/// Programs of hosts 1 and on, which take a lock in host 0's memory.
struct LockProgram {
    steps: Vec<LockStep>,
    /// Acquisitions that are left.
    left: u64,
    /// Attempts.
    tries: u64,
    /// Acquisitions: of which host.
    acquired: Vec<u64>,
    /// Programs that have the lock.
    holders: i64,
    /// Whether two had it at a time.
    is_broken: bool,
}

impl StudyProgram for LockProgram {
    fn next(&mut self, host: u32, _now: u64) -> Option<StudyOp> {
        let step = self.steps.get_mut(host.checked_sub(1)? as usize)?;
        let own = u64::from(host);
        let (next, operands) = match *step {
            LockStep::Try if self.left == 0 => {
                *step = LockStep::Done;
                return None;
            }
            LockStep::Try => (LockStep::Trying, [0, own]),
            LockStep::Free => (LockStep::Freeing, [own, 0]),
            LockStep::Trying | LockStep::Freeing | LockStep::Done => return None,
        };
        *step = next;
        self.tries += u64::from(next == LockStep::Trying);
        // The word at 0; the old value goes to the program's own.
        Some(StudyOp { operands, ..StudyOp::new(StudyVerb::CompareSwap, 8, 0) })
    }
    fn ended(&mut self, host: u32, ended: &EndedOp) {
        let at = host as usize - 1;
        self.steps[at] = match self.steps[at] {
            LockStep::Trying if ended.value == 0 && !ended.is_failure => {
                self.acquired[at] += 1;
                self.left = self.left.saturating_sub(1);
                self.holders += 1;
                LockStep::Free
            }
            LockStep::Freeing => {
                self.is_broken |= self.holders != 1 || ended.value != u64::from(host);
                self.holders -= 1;
                LockStep::Try
            }
            _ => LockStep::Try,
        };
    }
}

/// Compare and swap by many contenders.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn lock(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "a lock of 8 bytes, K hosts that take and free it by CAS without a pause: time between acquisitions";
    let mut table = StudyTable::new("contention", title, "ns", scale);
    let mut broken = 0;
    let mut ratio = Vec::new();
    let most = scale.of(32, 4);
    for contenders in [1u64, 4, 16, 32].into_iter().filter(|contenders| *contenders <= most) {
        for (column, stack) in [(0, StudyStack::LoadStore), (1, StudyStack::Urma), (3, StudyStack::Dma)] {
            let pairs = (1..=contenders as u32).map(|host| (host, 0)).collect();
            let hosts = contenders as u32 + 1;
            let config = StudyConfig { hosts, pairs, has_memory: true, seed: scale.seed, ..StudyConfig::new(stack) };
            // READs, which leave the word as it is.
            let mut world = warm_world(config, StudyOp { offset: 64, ..StudyOp::new(StudyVerb::Read, 8, 0) })?;
            let count = scale.of(1_000, 100);
            let mut program = LockProgram {
                steps: vec![LockStep::Try; contenders as usize],
                left: count,
                tries: 0,
                acquired: vec![0; contenders as usize],
                holders: 0,
                is_broken: false,
            };
            let began = world.now;
            if !world.run(&mut program, RUN_MAX)? {
                return Err("the lock is never free".into());
            }
            broken += u32::from(program.is_broken || program.acquired.iter().sum::<u64>() < count);
            let each = (world.now - began) as f64 / 1e3 / count as f64;
            ratio.push(each);
            let nodes = TwoNodes::new(stack, StudyVerb::CompareSwap, 8);
            let case = format!("{contenders}");
            let known = artefact::CONTENTION.iter().find(|known| known.0 == contenders);
            let row = StudyRow::new(case, stack.name()).closed_form(nodes.latency() as f64);
            let row = known.map_or(row.clone(), |known| row.artefact(known.1[column] as f64));
            let why = "The artefact's figure is the latency of one CAS. With one contender an acquisition is two of them, one that \
                       takes and one that frees the lock; with K, attempts of others are always on their way, and it falls to one. \
                       Each succeeds with every K-th attempt, so a program waits K times this, as in the paper.";
            table.row(row.ours(each, why));
            let tries = program.tries as f64 / count as f64;
            table.row(StudyRow::new(format!("{contenders}, attempts"), stack.name()).ours(tries, ""));
        }
    }
    table.promise("locks that two had at one time, or no host got", f64::from(broken), [0.0, 0.0]);
    table.promise("one contender: RoCE DMA over accesses", ratio[2] / ratio[0], [3.5, 4.5]);
    Ok(table)
}
