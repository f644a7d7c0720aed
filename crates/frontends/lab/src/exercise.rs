//! What an exercise is, and what exercises share.

use crate::task::{LabTask, RunRecord, Settings};

/// An exercise: sets up, asks, checks by what was measured, explains.
pub trait Exercise: Sync {
    /// The word by which it is called.
    fn name(&self) -> &'static str;
    /// What it is about, in a line.
    fn title(&self) -> &'static str;
    /// Number of hosts: `a` to `e`; `b` serves.
    fn hosts(&self) -> usize {
        2
    }
    /// Draws what is hidden.
    fn draw(&self, dice: &mut Dice) -> DrawnTask;
    /// What the learner may choose with `burst lab run`.
    fn choices(&self) -> &'static [Choice];
    /// Whether the run of the set-up shows what the question is about.
    fn is_worth_asking(&self, task: &LabTask) -> bool;
    /// What has happened, the new words, and the question.
    fn question(&self, task: &LabTask) -> String;
    /// What the programs of a run say. Not what is asked for.
    fn said(&self, task: &LabTask, run: &RunRecord) -> String;
    /// Judges an answer.
    fn check(&self, task: &LabTask, answer: Option<&str>) -> Judgement;
    /// The runs of a learner who knows what is hidden, before the answer.
    fn runs(&self, task: &LabTask) -> Vec<Settings>;
    /// The right answer after these runs; `None` where the runs are the answer.
    fn answer(&self, task: &LabTask) -> Option<String>;
    /// A run that mends nothing, or an answer that is wrong: in this order, each if there is one.
    fn wrong(&self, task: &LabTask) -> (Option<Settings>, Option<String>);
}

/// What was drawn.
pub struct DrawnTask {
    /// Settings of the traffic program.
    pub settings: Settings,
    /// Wrappers of the port of `b`.
    pub wire: String,
}

/// A setting that the learner may choose.
pub struct Choice {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub values: ChoiceValues,
    /// What it is.
    pub help: &'static str,
}

/// Values of a setting.
pub enum ChoiceValues {
    /// One of these words.
    Words(&'static [&'static str]),
    /// A number in this range.
    Range(u64, u64),
}

impl Choice {
    /// Reads a value.
    ///
    /// # Errors
    /// A sentence that says which values there are.
    pub fn read(&self, text: &str) -> Result<String, String> {
        let fits = match self.values {
            ChoiceValues::Words(words) => words.contains(&text),
            ChoiceValues::Range(low, high) => text.parse().is_ok_and(|number| (low..=high).contains(&number)),
        };
        match fits {
            true => Ok(text.to_owned()),
            false => Err(format!("{}={text} is not possible: write {}", self.name, self.shown())),
        }
    }

    /// The values in words.
    pub fn shown(&self) -> String {
        match self.values {
            ChoiceValues::Words(words) => format!("{}={}", self.name, words.join("|")),
            ChoiceValues::Range(low, high) => format!("{}={low}..{high}", self.name),
        }
    }
}

/// The judgement of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Solved: the explanation.
    Right(String),
    /// Right so far: what is to be done next.
    More(String),
    /// Wrong: a hint from what was measured.
    Wrong(String),
}

/// Random numbers of the system.
pub struct Dice;

impl Dice {
    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let mut bytes = [0; 8];
        // The call cannot fail where the daemon runs; a fixed number would only make the exercise the same each time.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        low + u64::from_ne_bytes(bytes) % (high - low + 1)
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.between(0, all.len() as u64 - 1) as usize]
    }
}

/// Settings from pairs.
pub fn settings<V: ToString>(pairs: &[(&str, V)]) -> Settings {
    let mut made = Settings::default();
    for (name, value) in pairs {
        made.insert(name, value.to_string());
    }
    made
}

/// Reads an answer that has to be a number.
///
/// # Errors
/// The verdict on one that is none.
pub fn number(answer: Option<&str>) -> Result<u64, Judgement> {
    let wrong = |why: &str| Judgement::Wrong(format!("{why} The answer is a number: burst lab check NUMBER"));
    let text = answer.ok_or_else(|| wrong("There is no answer yet."))?;
    text.parse().map_err(|_| wrong(&format!("{text} is no number.")))
}

/// What a completion of this status says.
pub fn status_text(status: u32) -> String {
    match status {
        0 => "IBV_WC_SUCCESS: all went well".to_owned(),
        9 => "IBV_WC_REM_INV_REQ_ERR: the other host calls the request invalid".to_owned(),
        10 => "IBV_WC_REM_ACCESS_ERR: the other host refused access".to_owned(),
        12 => "IBV_WC_RETRY_EXC_ERR: no answer came, however often it was tried".to_owned(),
        13 => "IBV_WC_RNR_RETRY_EXC_ERR: the receiver was not ready, no tries are left".to_owned(),
        other => format!("completion status {other}"),
    }
}
