//! Messages, packets and acknowledgements.

use crate::exercise::{Choice, Dice, DrawnTask, Exercise, Judgement, number, settings};
use crate::packet::{LabPacket, PacketKind};
use crate::task::{LabTask, RunRecord, Settings};

/// How many acknowledgements does a game of ping-pong need?
pub struct PingPong;

fn acks(run: &RunRecord) -> u64 {
    run.count(|packet| packet.kind == PacketKind::Ack)
}

/// Packets with a message, and how many of them are repetitions.
fn messages(run: &RunRecord) -> (u64, u64) {
    let data: Vec<&LabPacket> = run.packets.iter().filter(|packet| packet.kind == PacketKind::Data).collect();
    let is_again = |at: usize| data[..at].iter().any(|one| one.from == data[at].from && one.psn == data[at].psn);
    (data.len() as u64, (0..data.len()).filter(|at| is_again(*at)).count() as u64)
}

impl Exercise for PingPong {
    fn name(&self) -> &'static str {
        "pingpong"
    }

    fn title(&self) -> &'static str {
        "messages, packets and acknowledgements"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "ping"), ("size", "64")]);
        drawn.insert("count", dice.between(3, 9).to_string());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &[]
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.is_good() && run.missed == 0)
    }

    fn question(&self, _task: &LabTask) -> String {
        "Host a has sent a message to host b, and b has sent one back; then again, like table tennis. How often is not said here.

Words
  message     the bytes that a program wants to have sent: here 64
  queue pair  one end of a connection; the program puts its requests into it
  packet      what travels over the network; a short message fits in one packet
  ACK         acknowledgement: a packet that only says \"arrived\"

Question: how many of the packets were ACKs, both ways together?

Look:    burst lab ladder --all      (each line is a packet; time runs down)
Answer:  burst lab check NUMBER
"
        .to_owned()
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        match run.is_good() {
            true => "The game is over: each message has come back.\n".to_owned(),
            false => "The game broke off.\n".to_owned(),
        }
    }

    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement {
        let answer = match number(answer) {
            Ok(answer) => answer,
            Err(verdict) => return verdict,
        };
        let Some(run) = task.last() else { return Judgement::Wrong("Nothing has run yet.".to_owned()) };
        let (acks, (messages, again)) = (acks(run), messages(run));
        if answer != acks {
            return Judgement::Wrong(format!(
                "It was not {answer}. {messages} packets carried a message (SEND); the others are to be counted: the lines with ACK."
            ));
        }
        let repeated = match again {
            0 => String::new(),
            _ => format!(
                " {again} of the messages went twice or more: the ACK came late, because this machine is busy, so the sender tried again; \
                 the receiver knows them by their numbers and takes each once."
            ),
        };
        Judgement::Right(format!(
            "{messages} packets carried a message and {acks} said \"arrived\". This is what a reliable connection (RC) does: the sender keeps each \
             message until it is acknowledged, and only then tells its program that the request is complete. An ACK means \"all up to this \
             number\", so one can stand for several messages. You have also seen the price of a short message: a packet there, and \
             often one back.{repeated}"
        ))
    }

    fn runs(&self, _task: &LabTask) -> Vec<Settings> {
        Vec::new()
    }

    fn answer(&self, task: &LabTask) -> Option<String> {
        task.last().map(|run| acks(run).to_string())
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (None, task.last().map(|run| (acks(run) + messages(run).0).to_string()))
    }
}
