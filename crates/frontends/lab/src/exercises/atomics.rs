//! Operations that no other request can interrupt.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings};
use crate::task::{LabTask, RunRecord, Settings};

/// How many additions got lost?
pub struct Atomics;

const HOSTS: u64 = 2;

const CHOICES: [Choice; 1] = [Choice {
    name: "op",
    values: ChoiceValues::Words(&["read_write", "fetch_add"]),
    help: "how to add 1: READ and WRITE, or both in one",
}];

fn added(run: &RunRecord) -> u64 {
    run.clients.iter().map(|client| client.done).sum()
}

fn lost(run: &RunRecord) -> u64 {
    let (before, after) = run.counter.unwrap_or((0, 0));
    (before + added(run)).saturating_sub(after)
}

impl Exercise for Atomics {
    fn name(&self) -> &'static str {
        "atomics"
    }

    fn title(&self) -> &'static str {
        "two hosts, one counter: atomic operations"
    }

    fn hosts(&self) -> usize {
        3
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "read_write"), ("rights", "atomic")]);
        let count = dice.between(15, 25);
        drawn.insert("count", count.to_string());
        drawn.insert("together", dice.between(3, count - 2).to_string());
        drawn.insert("start", dice.between(100, 999).to_string());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.is_good() && lost(run) > 0)
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "A counter is in the memory of host b. {HOSTS} hosts, a and c, add 1 to it, again and again. They do it as one would: read the counter, \
             add 1, write the sum back.

{said}
Words
  READ       a request that fetches bytes from another host's memory
  atomic     what happens as a whole: no other request comes in between
  fetch_add  an atomic request: adds to a number in the other host's memory, and
             answers what was there before

Question 1: how many additions got lost?
Question 2: with which op does none get lost? Run it.

Look:    burst lab ladder            (who read before the other had written?)
Try:     burst lab run op=NAME
Answer:  burst lab check NUMBER      (the number of question 1)
"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let (before, after) = run.counter.unwrap_or((0, 0));
        let each: Vec<String> = run
            .clients
            .iter()
            .zip(["a", "c"])
            .map(|(client, letter)| format!("{letter} added 1 {} times", client.done))
            .collect();
        format!("The counter was {before}. {}. Now it is {after}.\n", each.join("; "))
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(first) = task.first() else { return Judgement::Wrong("Nothing has run yet.".to_owned()) };
        if answer != lost(first) {
            return Judgement::Wrong(format!(
                "It was not {answer}. {} additions were made. By how much did the counter grow in the first run? ({})",
                added(first),
                self.said(task, first).trim_end()
            ));
        }
        let Some(run) = task.run_with("op", "fetch_add").filter(|run| run.is_good()) else {
            return Judgement::More(format!(
                "Right, {answer}. Now question 2: burst lab run op=NAME, then check again."
            ));
        };
        Judgement::Right(format!(
            "{answer} of {} additions got lost: both hosts read the same number, both added 1, and both wrote the same sum. Each READ and each WRITE went \
             well, and yet the result is wrong. With fetch_add {} got lost: b's side reads, adds and writes as one step, and other \
             requests wait. Locks, counters and lists that several hosts share are built on this, and on compare and swap, which writes only \
             if the old value is what one believes.",
            added(first),
            lost(run)
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        vec![settings(&[("op", "fetch_add")])]
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        Some(task.number("together").to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, Some((task.number("together") + 1).to_string()))
    }
}
