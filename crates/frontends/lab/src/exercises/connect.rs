//! The connection manager.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, settings};
use crate::packet::PacketKind;
use crate::run::LISTEN;
use crate::task::{LabTask, RunRecord, Settings};

/// Why is there no connection, and on which port would there be one?
pub struct Connect;

/// The port that `a` tries at first.
const WRONG_PORT: u64 = 4000;

const CHOICES: [Choice; 1] =
    [Choice { name: "port", values: ChoiceValues::Range(1, 65535), help: "the port of b that a asks for" }];

impl Exercise for Connect {
    fn name(&self) -> &'static str {
        "cm"
    }

    fn title(&self) -> &'static str {
        "how two programs find each other: the connection manager"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn = settings(&[("op", "connect")]);
        drawn.insert("port", WRONG_PORT.to_string());
        drawn.insert(LISTEN, dice.between(5000, 60000).to_string());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.event.is_some() && !run.is_good())
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "Before two programs can use RDMA each must know the other's queue pair number and more. The connection manager tells them: a server \
             listens on a port, a client asks for that port. A server runs on host b. a's client asked for port {WRONG_PORT}:

{said}
Words
  listen  to wait for clients on a port
  port    a number that names a service of a host
  REQ     \"I want a connection\", the client's first packet
  REP     the server's answer: yes
  RTU     \"ready to use\", the client's last word before data flows
  REJ     the answer: no, with a reason

Question: on which port does b's server listen? Connect to it, and find REQ, REP and RTU in the ladder.

Look:    burst lab on a burst why
         burst lab on b burst cm --connections
Try:     burst lab run port=NUMBER
Answer:  burst lab check
"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        match &run.event {
            Some((event, _)) if run.is_good() => {
                format!("a's program:  {event}: there is a connection (a has closed it again)\n")
            }
            Some((event, status)) => format!("a's program:  {event}, reason {status}\n"),
            None => "a's program:  got no answer\n".to_owned(),
        }
    }

    fn check(&self, task: &LabTask, _answer: Option<&str>) -> Judgement {
        let Some(run) = task.last().filter(|run| run.is_good()) else {
            let cause = task.last().map_or("", |run| run.cause("a"));
            return Judgement::Wrong(format!(
                "There is no connection yet. Host a says: {cause} Which port does `burst lab on b burst cm --connections` show?"
            ));
        };
        let names: Vec<&str> = run
            .packets
            .iter()
            .filter(|packet| packet.kind == PacketKind::Connection)
            .map(|packet| packet.name.as_str())
            .collect();
        Judgement::Right(format!(
            "On the wire you see {}. REQ and REP carry the queue pair numbers, first packet numbers and sizes, so that both ends can set up \
             their queue pairs; after RTU data flows. DREQ and DREP close the connection. On the wrong port the host answered REJ at once, \
             with reason 8: no such service. If no host is there at all no answer comes, and the client waits until its time is over: \
             that is how you tell the two apart.",
            names.join(", ")
        ))
    }

    fn runs(&self, task: &LabTask) -> Vec<Settings> {
        vec![settings(&[("port", task.number(LISTEN))])]
    }

    fn answer(&self, _task: &LabTask) -> Option<String> {
        None
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        (Some(settings(&[("port", task.number(LISTEN) - 1)])), None)
    }
}
