//! Receives, and what happens without one.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings, status_text};
use crate::packet::PacketKind;
use crate::task::{LabTask, RunRecord, Settings};

/// How many receives were there?
pub struct NotReady;

const MESSAGES: u64 = 12;

const CHOICES: [Choice; 1] =
    [Choice { name: "rnr", values: ChoiceValues::Range(0, 7), help: "how often a asks again; 7: for ever" }];

fn taken(task: &LabTask) -> u64 {
    task.first().map_or(0, |run| run.received)
}

fn not_ready(run: &RunRecord) -> u64 {
    run.count(|packet| packet.kind == PacketKind::NotReady)
}

impl Exercise for NotReady {
    fn name(&self) -> &'static str {
        "rnr"
    }

    fn title(&self) -> &'static str {
        "a receiver that is not ready (RNR)"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "send"), ("size", "64"), ("rnr", "0")]);
        drawn.insert("count", MESSAGES.to_string());
        drawn.insert("receives", dice.between(2, 9).to_string());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.clients.iter().all(|client| client.status == 13))
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "Host a sends {MESSAGES} messages. A message needs a place at the other end: b's program must have put in a \"receive\" before, which \
             says where the bytes shall go. b's program had put in fewer than {MESSAGES}, and was slow to put in more.

{said}
Words
  SEND     a request that sends a message
  receive  a place for one message; each message uses one up
  RNR      receiver not ready: the answer to a message without a receive
  PSN      the number of a packet, with # in the ladder; they count up

Question 1: how many messages did b take before it said that it was not ready?
Question 2: with which value of rnr do all {MESSAGES} arrive? Run it.

Look:    burst lab ladder            (who sent what; \"NAK: receiver not ready\")
         burst lab on a burst why
Try:     burst lab run rnr=NUMBER
Answer:  burst lab check NUMBER      (the number of question 1)
"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let status = run.clients.first().map_or(0, |client| client.status);
        match run.is_good() {
            true => format!("a's program:  all {MESSAGES} messages are complete\n"),
            false => format!("a's program:  {}\n", status_text(status)),
        }
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let first = task.first().and_then(|run| run.packets.first()).map_or(0, |packet| packet.psn);
        if answer != taken(task) {
            return Judgement::Wrong(format!(
                "It was not {answer}. In the ladder of the first run the first message has the number #{first}; the RNR names the first one \
                 without a place. How many are between? (burst lab ladder --first)"
            ));
        }
        let Some(run) = task.runs.iter().skip(1).rfind(|run| run.is_good()) else {
            return Judgement::More(format!(
                "Right, {answer}. Now question 2: let a ask again (burst lab run rnr=NUMBER) until all arrive, then check again."
            ));
        };
        Judgement::Right(format!(
            "b took {answer} messages and had no receive for the next. It does not drop that message silently, as UDP would: it says \"not ready\" \
             and for how long to wait. With rnr=0 the first such answer ends the connection for good. With rnr={} a asked again, and b's \
             program put in the missing receives meanwhile. In real programs this error says that the receiver's program is too slow with \
             new receives, or puts in too few. rnr=7 hides that, and costs time: each \"not ready\" is a pause for the whole connection.",
            run.changed.get("rnr").map_or("0", String::as_str)
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        vec![settings(&[("rnr", "7")])]
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        Some(task.number("receives").to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        let with_packets = task.first().map_or(0, not_ready);
        (None, Some((taken(task) + with_packets.max(1)).to_string()))
    }
}
