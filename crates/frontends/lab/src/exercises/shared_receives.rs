//! A queue of receives that connections share.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings, status_text};
use crate::task::{LabTask, RunRecord, Settings};

/// How many receives do three senders need together?
pub struct SharedReceives;

/// Receives of each connection in the first run.
const EACH: u64 = 4;
const LETTERS: [&str; 3] = ["a", "c", "d"];

const CHOICES: [Choice; 1] =
    [Choice { name: "srq", values: ChoiceValues::Range(1, 64), help: "receives in one queue that all three share" }];

/// The last run with so many shared receives.
fn run_of(task: &LabTask, number: u64) -> Option<&RunRecord> {
    task.run_with("srq", &number.to_string())
}

impl Exercise for SharedReceives {
    fn name(&self) -> &'static str {
        "srq"
    }

    fn title(&self) -> &'static str {
        "receives that connections share (SRQ)"
    }

    fn hosts(&self) -> usize {
        4
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "send"), ("size", "64"), ("rnr", "0")]);
        drawn.insert("receives", EACH.to_string());
        let mut counts = [dice.between(6, 9), dice.between(1, 3), dice.between(1, 3)];
        counts.rotate_left(dice.between(0, 2) as usize);
        drawn.insert("count", counts.map(|count| count.to_string()).join(","));
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| !run.is_good() && run.clients.iter().any(|client| client.status == 0))
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "Three hosts, a, c and d, send messages to b, each over a connection of its own. b's program put in {EACH} receives for each of them, {} \
             together. One host has much to say, the others little:

{said}
The receives of the quiet hosts are of no use to the busy one. A shared queue of receives (SRQ) lies in one place, and each message takes \
             one from it, whoever sent it.

Words
  receive  a place for one message (exercise 3)
  SRQ      shared receive queue: receives for several connections

Question: what is the smallest number of shared receives with which all messages of all three arrive?

Try:     burst lab run srq=NUMBER
Look:    burst lab on b burst stats, burst lab ladder
Answer:  burst lab check NUMBER
",
            3 * EACH
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let line = |(client, letter): (&crate::task::ClientFacts, &str)| {
            format!("{letter}'s program:  {}\n", status_text(client.status))
        };
        run.clients.iter().zip(LETTERS).map(line).collect()
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(run) = run_of(task, answer) else {
            return Judgement::Wrong(format!("You have not tried {answer}: burst lab run srq={answer}"));
        };
        if !run.is_good() {
            return Judgement::Wrong(format!(
                "With {answer} b took {} messages, and one was not taken. More receives are needed.",
                run.received
            ));
        }
        let most = run.clients.iter().map(|client| client.received).max().unwrap_or(0);
        match answer.checked_sub(1).and_then(|fewer| run_of(task, fewer)) {
            Some(fewer) if !fewer.is_good() => Judgement::Right(format!(
                "{answer} shared receives are enough, {} are not: as many as there are messages. With a queue for each connection b would need {most} for each, \
                 {} together, because it does not know who will be the busy one. A server with a thousand clients saves most of its memory \
                 this way. The price: one busy client can use up the receives of all, so watch how many are left (SRQ limit event).",
                answer - 1,
                3 * most
            )),
            _ => {
                Judgement::Wrong(format!("{answer} are enough, that is true. Is it the smallest number? Try one less."))
            }
        }
    }

    fn runs(&self, task: &LabTask) -> Vec<Settings> {
        let all: u64 = task
            .settings
            .get("count")
            .map_or(0, |counts| counts.split(',').filter_map(|one| one.parse::<u64>().ok()).sum());
        vec![settings(&[("srq", all.saturating_sub(1))]), settings(&[("srq", all)])]
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        task.runs.iter().rfind(|run| run.is_good()).and_then(|run| run.changed.get("srq").cloned())
    }

    fn wrong(&self, _task: &LabTask) -> (Option<Settings>, Option<String>) {
        (Some(settings(&[("srq", 2)])), Some("2".to_owned()))
    }
}
