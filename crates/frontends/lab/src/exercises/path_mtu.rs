//! Messages that are larger than a packet.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, number, settings};
use crate::packet::PacketKind;
use crate::task::{LabTask, RunRecord, Settings};

/// Into how many packets is a message cut?
pub struct PathMtu;

const CHOICES: [Choice; 1] = [Choice {
    name: "mtu",
    values: ChoiceValues::Words(&["256", "512", "1024", "2048", "4096"]),
    help: "bytes of a message that a packet carries at most",
}];

fn is_part(packet: &crate::packet::LabPacket) -> bool {
    packet.kind == PacketKind::Data
}

fn parts(run: &RunRecord) -> u64 {
    run.count(is_part)
}

impl Exercise for PathMtu {
    fn name(&self) -> &'static str {
        "mtu"
    }

    fn title(&self) -> &'static str {
        "messages that are larger than a packet"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "send"), ("receives", "4")]);
        drawn.insert("mtu", dice.pick(&["256", "512", "1024"]).to_owned());
        drawn.insert("size", dice.between(2100, 4000).to_string());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.is_good() && parts(run) > 1)
    }

    fn question(&self, task: &LabTask) -> String {
        format!(
            "Host a has sent one message of {} bytes to b. It did not fit in one packet, so it was cut into parts.

Words
  path MTU  how many bytes of a message one packet may carry; both ends agree
            on it when the connection is made
  First, Middle, Last, Only
            which part of a message a packet is; Only is a message in one packet

Question 1: what was the path MTU of this connection?
Question 2: there are five sizes. With which one does this message need one packet only? Run it.

Look:    burst lab ladder
Try:     burst lab run mtu=NUMBER
Answer:  burst lab check NUMBER      (the number of question 1)
",
            task.number("size")
        )
    }

    fn said(&self, task: &LabTask, run: &RunRecord) -> String {
        match run.is_good() {
            true => format!("a's program:  the message of {} bytes is complete\n", task.number("size")),
            false => "The message did not arrive.\n".to_owned(),
        }
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(first) = task.first() else { return Judgement::Wrong("Nothing has run yet.".to_owned()) };
        let largest =
            first.packets.iter().filter(|packet| is_part(packet)).map(|packet| packet.bytes).max().unwrap_or(0);
        if answer != largest as u64 {
            return Judgement::Wrong(format!(
                "It was not {answer}. The message came in {} packets; all but the last are full. How many bytes has the one named First? \
                 (burst lab ladder --first)",
                parts(first)
            ));
        }
        let Some(run) = task.runs.iter().skip(1).rfind(|run| run.is_good() && run.changed.get("mtu").is_some()) else {
            return Judgement::More(format!(
                "Right, {answer}. Now question 2: burst lab run mtu=NUMBER, then check again."
            ));
        };
        // Packets are kept of the last run.
        let packets = task.last().map_or(0, parts);
        if packets != 1 {
            return Judgement::Wrong(format!(
                "With mtu={} it were {packets} packets. One is enough where the path MTU is as large as the message.",
                run.changed.get("mtu").map_or("", String::as_str)
            ));
        }
        Judgement::Right(format!(
            "With a path MTU of {answer} the message needed {} packets, with {} one. Your program sends messages; it never sees the packets. Fewer \
             packets cost less work at both ends. But a packet must fit into the frames of the network with some 60 bytes of headers: \
             usual Ethernet (1500 bytes) carries a path MTU of 1024, and 4096 needs \"jumbo frames\". If one end believes in larger \
             frames than the network has, small messages work and large ones vanish.",
            parts(first),
            run.changed.get("mtu").map_or("", String::as_str)
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        vec![settings(&[("mtu", "4096")])]
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        Some(task.number("mtu").to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, Some((task.number("mtu") * 2).to_string()))
    }
}
