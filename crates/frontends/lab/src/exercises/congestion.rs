//! Marks, notifications, and a sender that slows down.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings, status_text};
use crate::run::CC;
use crate::task::{LabTask, RunRecord, Settings};

/// How does a sender learn that a queue grows?
pub struct Congestion;

const CHOICES: [Choice; 1] = [Choice {
    name: CC,
    values: ChoiceValues::Words(&["none", "dcqcn"]),
    help: "congestion control: none, or that of adapters",
}];

fn dropped(run: &RunRecord) -> u64 {
    run.counter_of("b", "impaired")
}

fn notifications(run: &RunRecord) -> u64 {
    run.counter_of("b", "cnps_sent")
}

impl Exercise for Congestion {
    fn name(&self) -> &'static str {
        "congestion"
    }

    fn title(&self) -> &'static str {
        "a sender that hears that a queue grows"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn =
            settings(&[("op", "write"), ("size", "8192"), ("mtu", "1024"), ("timeout", "18"), (CC, "none")]);
        drawn.insert("count", dice.between(60, 100).to_string());
        DrawnTask { settings: drawn, wire: "impair:rate=20Mbit,queue=128KiB,kmin=20KiB,dir=rx/".to_owned() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.is_good() && dropped(run) > 0)
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "The link to host b is slow again, with a queue before it. The queue marks packets as soon as it is longer than 20 KiB: a bit in the \
             packet says \"it is getting tight\". Host a has written {} bytes to b as fast as it could, without looking at anything:

{said}
Words
  ECN, CE             the mark in a packet, and its name when it is set
  CNP                 congestion notification packet, from b to a
  congestion control  what a does then: it slows down, and speeds up again later
  DCQCN               the congestion control of RDMA adapters

Question: run the same with cc=dcqcn. How many CNPs did b send in that run?

Try:     burst lab run cc=dcqcn
Look:    burst lab on b burst stats  (cnps_sent; {})
         burst lab ladder --all      (CNP goes from b to a)
Answer:  burst lab check NUMBER      (cnps_sent counts all runs)
",
            task.number("size") * task.number("count"),
            "impaired: dropped"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let status = run.clients.first().map_or(0, |client| client.status);
        match run.is_good() {
            true => format!(
                "a's program:  all is complete\non the way:   {} packets found the queue full and were dropped\n",
                dropped(run)
            ),
            false => format!("a's program:  {}\n", status_text(status)),
        }
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(run) = task.run_with(CC, "dcqcn") else {
            return Judgement::Wrong("There is no run with cc=dcqcn yet: burst lab run cc=dcqcn".to_owned());
        };
        let (sent, marked) = (notifications(run), run.counter_of("b", "marked_packets"));
        if answer != sent {
            return Judgement::Wrong(format!(
                "It was not {answer}. b received {marked} packets or trains of packets with a mark in that run; it does not send a CNP for each. \
                 Look at cnps_sent."
            ));
        }
        let none = task.first().map_or(0, dropped);
        Judgement::Right(format!(
            "b sent {sent} CNPs, and a slowed down each time. Without congestion control the full queue dropped {none} packets, which all had to be \
             sent again with what followed them; with DCQCN it dropped {}. The link was equally slow both times. That is the whole idea: a \
             mark costs nothing, a lost packet costs much. Real switches mark in the same way, and their limit (here 20 KiB) must be far \
             below the size of the queue, because a needs some time to hear of it.",
            dropped(run)
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        vec![settings(&[(CC, "dcqcn")])]
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        // The other end's counter; a CNP cannot get lost here.
        task.last().map(|run| run.counter_of("a", "cnp_received").to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, Some(task.first().map_or(1, |run| dropped(run) + 1_000_000).to_string()))
    }
}
