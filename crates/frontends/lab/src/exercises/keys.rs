//! Registered memory, keys and rights.

use crate::exercise::{Choice, ChoiceValues, Dice, DrawnTask, Exercise, Judgement, settings, status_text};
use crate::task::{LabTask, RunRecord, Settings};

/// Why is a WRITE refused?
pub struct RegionKeys;

/// Bytes of the memory that `b` has opened.
const ROOM: u64 = 1024;

const CHOICES: [Choice; 3] = [
    Choice {
        name: "rights",
        values: ChoiceValues::Words(&["none", "read", "write"]),
        help: "what others may do with b's memory",
    },
    Choice {
        name: "key",
        values: ChoiceValues::Words(&["right", "old"]),
        help: "the key that a uses: valid, or not any more",
    },
    Choice { name: "size", values: ChoiceValues::Range(1, 65536), help: "bytes that a writes" },
];

impl RegionKeys {
    /// The setting that is wrong, and a value that mends it.
    fn fault(task: &LabTask) -> (&'static str, &'static str) {
        match (task.settings.get("rights").map(String::as_str), task.settings.get("key").map(String::as_str)) {
            (Some("read"), _) => ("rights", "write"),
            (_, Some("old")) => ("key", "right"),
            _ => ("size", "600"),
        }
    }
}

impl Exercise for RegionKeys {
    fn name(&self) -> &'static str {
        "keys"
    }

    fn title(&self) -> &'static str {
        "who may reach memory: regions, keys, rights"
    }

    fn draw(&self, dice: &mut Dice) -> DrawnTask {
        let mut drawn =
            settings(&[("op", "write"), ("rights", "write"), ("key", "right"), ("size", "600"), ("mtu", "4096")]);
        drawn.insert("room", ROOM.to_string());
        let (name, value) = dice.pick(&[("rights", "read"), ("key", "old"), ("size", "3000")]);
        drawn.insert(name, value.to_owned());
        DrawnTask { settings: drawn, wire: String::new() }
    }

    fn choices(&self) -> &'static [Choice] {
        &CHOICES
    }

    fn is_worth_asking(&self, task: &LabTask) -> bool {
        task.first().is_some_and(|run| run.clients.iter().all(|client| client.status != 0))
    }

    fn question(&self, task: &LabTask) -> String {
        let said = task.first().map_or_else(String::new, |run| self.said(task, run));
        format!(
            "Host a wanted to write into the memory of host b. That is the point of RDMA: b's program does nothing for it, and does not notice. \
             It must have said before which memory others may reach. This time something is wrong:

{said}
Words
  region  a piece of memory that a program has opened for RDMA (\"registered\")
  key     the number of a region (rkey); b's program tells a's program before
  rights  what others may do with a region: read it, write into it
  WRITE   a request that puts bytes into another host's memory

Three things may be wrong: the rights, the key, or the size. a learns only that it was refused, so that it cannot find out more by \
             trying. b knows why.

Question: what is wrong? Run the traffic again with this one thing changed, so that the bytes arrive.

Look:    burst lab on b burst why    (what failed on host b, and why)
Try:     burst lab run NAME=VALUE    (one of the settings below)
Answer:  burst lab check
"
        )
    }

    fn said(&self, _task: &LabTask, run: &RunRecord) -> String {
        let status = run.clients.first().map_or(0, |client| client.status);
        match run.is_good() {
            true => "a's program:  the WRITE is complete\nb's memory:   has the bytes\n".to_owned(),
            false => format!("a's program:  {}\nb's memory:   has not changed\n", status_text(status)),
        }
    }

    fn check(&self, task: &LabTask, _answer: Option<&str>) -> Judgement {
        let runs = || task.runs.iter().skip(1);
        let Some(last) = runs().last() else {
            return Judgement::Wrong(
                "You have changed nothing yet: look with `burst lab on b burst why`, then `burst lab run NAME=VALUE`."
                    .to_owned(),
            );
        };
        if !runs().any(RunRecord::is_good) {
            return Judgement::Wrong(format!("The last WRITE was refused, too. Host b says: {}", last.cause("b")));
        }
        if !runs().any(|run| run.is_good() && run.changed.len() == 1) {
            return Judgement::Wrong(
                "It works, but you changed several things, so it is not clear which it was. Change one only."
                    .to_owned(),
            );
        }
        let (name, _) = RegionKeys::fault(task);
        Judgement::Right(format!(
            "It was the {name}. Each request names a key, an address and a length. b's side compares all three with what its \
             program has registered, before it touches a byte. A key opens one region, as far as it reaches, for what its rights say. \
             Programs usually get this error by an address that is off, by a region that was given up too early, or by a forgotten right."
        ))
    }

    fn runs(&self, task: &LabTask) -> Vec<Settings> {
        vec![settings(&[RegionKeys::fault(task)])]
    }

    fn answer(&self, _task: &LabTask) -> Option<String> {
        None
    }

    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>) {
        let other = if RegionKeys::fault(task).0 == "size" { ("rights", "write") } else { ("size", "100") };
        (Some(settings(&[other])), None)
    }
}
