//! Many senders, one receiver.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings};
use crate::run::SENDERS;
use crate::task::{LabTask, RunRecord, Settings};

/// From how many senders on does the queue overflow?
pub struct Incast;

/// Packets that each sender sends.
const EACH: u64 = 32;
const SENDERS_MAX: u64 = 4;

const CHOICES: [Choice; 1] =
    [Choice { name: SENDERS, values: ChoiceValues::Range(1, SENDERS_MAX), help: "hosts that send at the same moment" }];

fn senders(run: &RunRecord) -> u64 {
    run.clients.len() as u64
}

fn missing(run: &RunRecord) -> u64 {
    (senders(run) * EACH).saturating_sub(run.received)
}

/// The last run with so many senders.
fn run_of(task: &LabTask, number: u64) -> Option<&RunRecord> {
    task.runs.iter().rfind(|run| senders(run) == number)
}

impl Exercise for Incast {
    fn name(&self) -> &'static str {
        "incast"
    }

    fn title(&self) -> &'static str {
        "many senders, one receiver"
    }

    fn hosts(&self) -> usize {
        5
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "flood"), ("size", "1024"), ("receives", "64")]);
        drawn.insert("count", EACH.to_string());
        drawn.insert(SENDERS, "1".to_owned());
        // Two, three or four bursts of 34 KiB are too many.
        let queue = dice.pick(&[50, 85, 120]);
        DrawnTask { settings: drawn, wire: format!("impair:rate=4Mbit,queue={queue}KiB,dir=rx/") }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| missing(run) == 0)
    }

    fn question(&self, _task: &LabTask) -> String {
        format!(
            "There are five hosts: b receives; a, c, d and e can send to it. The link to b is slow. What comes faster waits in a queue before the \
             link, as in a switch. What finds the queue full is dropped. Each sender sends {EACH} packets of 1024 bytes at once. a has just done so \
             alone, and all arrived.

Words
  incast  many hosts send to one at the same moment
  queue   packets that wait until the link is free
  UC      a connection that does not send again what is lost; used here so that
          you can count

Question: what is the smallest number of senders at which b misses packets?

Try:     burst lab run senders=NUMBER
Look:    burst lab on b burst stats  ({} counts what was dropped)
Answer:  burst lab check NUMBER
",
            "impaired"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let letters: Vec<&str> = ["a", "c", "d", "e"].into_iter().take(run.clients.len()).collect();
        format!("{} sent {} packets to b; b's program got {}\n", letters.join(", "), senders(run) * EACH, run.received)
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(run) = run_of(task, answer) else {
            return Judgement::Wrong(format!("You have not tried {answer}: burst lab run senders={answer}"));
        };
        if missing(run) == 0 {
            return Judgement::Wrong(format!("With {answer} all {} packets arrived. Try more.", run.received));
        }
        match run_of(task, answer - 1) {
            Some(fewer) if missing(fewer) == 0 => Judgement::Right(format!(
                "{answer} senders lost {} of {} packets, {} lost none. Each sender alone did nothing wrong: the link was as fast as before, but the \
                 queue has a size. Data centres meet this whenever one host asks many at once. More queue only moves the limit. What helps: \
                 that senders hear early that a queue grows, and slow down (exercise 10), or that the receiver asks fewer at a time.",
                missing(run),
                senders(run) * EACH,
                answer - 1
            )),
            Some(fewer) => {
                Judgement::Wrong(format!("With {} sender(s) b missed {} packets already.", answer - 1, missing(fewer)))
            }
            None => Judgement::Wrong(format!(
                "With {answer} some are missing, that is true. Is it the smallest number? Try burst lab run senders={}.",
                answer - 1
            )),
        }
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        (1..=SENDERS_MAX).map(|number| settings(&[(SENDERS, number)])).collect()
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        (1..=SENDERS_MAX)
            .find(|number| run_of(task, *number).is_some_and(|run| run.counter_of("b", "impaired") > 0))
            .map(|number| number.to_string())
    }

    fn wrong(&self, _task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, Some("1".to_owned()))
    }
}
