//! Lost packets and repetition.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings, status_text};
use crate::packet::PacketKind;
use crate::task::{LabTask, RunRecord, Settings};

/// How many packets were lost?
pub struct Loss;

const CHOICES: [Choice; 1] =
    [Choice { name: "size", values: ChoiceValues::Range(1, 65536), help: "bytes that a writes" }];

/// Counter of a port's own faults.
const IMPAIRED: &str = "impaired";

fn lost(run: &RunRecord) -> u64 {
    run.counter_of("b", IMPAIRED)
}

fn sent(run: &RunRecord) -> u64 {
    run.count(|packet| packet.from == "a" && packet.kind == PacketKind::Data)
}

/// Packets that a message of this size has.
fn needed(task: &LabTask) -> u64 {
    task.number("size").div_ceil(task.number("mtu").max(1))
}

impl Exercise for Loss {
    fn name(&self) -> &'static str {
        "loss"
    }

    fn title(&self) -> &'static str {
        "packets that get lost, and are sent again"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let drawn = settings(&[("op", "write"), ("size", "40960"), ("mtu", "1024"), ("timeout", "10")]);
        let (loss, seed) = (dice.between(6, 14), dice.between(1, 1 << 30));
        DrawnTask { settings: drawn, wire: format!("impair:loss={loss}%,seed={seed},dir=rx/") }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.is_good() && lost(run) > 0)
    }

    fn question(&self, task: &LabTask) -> String {
        format!(
            "The network to host b is bad now: it loses some packets, at random. Host a has written {} bytes into b's memory, in packets of {} \
             bytes. The bytes arrived, complete and right, because what got lost was sent again.

Words
  lost     sent, and never arrived. Cables, switches and full buffers do that
  counter  how often something happened on a host; `burst stats` prints them
  {IMPAIRED}
           the counter of the packets that this bad network has lost

Question: how many packets got lost in the last run?

Look:    burst lab ladder --all      (lost packets end half way)
         burst lab on b burst stats
Again:   burst lab run               (burst stats counts all runs together)
Answer:  burst lab check NUMBER
",
            task.number("size"),
            task.number("mtu")
        )
    }

    fn said(&self, task: &LabTask, run: &RunRecord) -> String {
        let status = run.clients.first().map_or(0, |client| client.status);
        match run.is_good() {
            true => format!(
                "a's program:  the WRITE is complete; it needed {} packets at least\nb's memory:   has the bytes\n",
                needed(task)
            ),
            false => format!("a's program:  {}\n", status_text(status)),
        }
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(run) = task.last() else { return Judgement::Wrong("Nothing has run yet.".to_owned()) };
        let (lost, sent, needed) = (lost(run), sent(run), needed(task));
        let naks = run.count(|packet| packet.kind == PacketKind::Refused);
        if answer != lost {
            let hint = if answer == sent.saturating_sub(needed) && sent > needed {
                "That is how many were sent again. More are sent again than were lost"
            } else {
                "Count the lines of the ladder that end with LOST"
            };
            return Judgement::Wrong(format!(
                "It was not {answer}. {hint}. a has sent {sent} packets with data in the last run."
            ));
        }
        Judgement::Right(format!(
            "{lost} packets were lost. The message has {needed} packets, but a sent {sent}. b takes packets in order only: after a gap it said \"a packet is \
             missing\" ({naks} times), and a went back to the missing one and sent everything from there on again (\"go back N\"). That is why \
             RDMA likes networks that lose nothing. Burst can also send only what is missing (\"selective repeat\", docs/protocol.md) between two of its \
             hosts; it was off here, so that you see what adapters do. If the last packet is lost there is no gap: then a waits for \
             the acknowledgement until a time has passed, and sends again."
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        Vec::new()
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        // What the ladder shows; the check reads the counter.
        task.last().map(|run| run.count(|packet| packet.to == "b" && !packet.arrived).to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, task.last().map(|run| (lost(run) + 1).to_string()))
    }
}
