//! `burst lab`: ten exercises for people who learn RDMA.
//!
//! An exercise starts hosts (a daemon of this user for each, on loopback addresses), lets real traffic run between them with
//! something drawn at random, asks about it, and judges the answer by what was measured: counters, packets, completions, memory.
//! Nothing needs a right, a compiler or an adapter. The traffic comes from a verbs program of its own (`burst-exercise`, in C),
//! because this one is small and loads no verbs library.
//!
//! | module | what |
//! |---|---|
//! | [`place`] | where the files are |
//! | [`pairs`] | names with values |
//! | [`task`] | the exercise in hand, kept in a file |
//! | [`programs`] | the programs that the lab runs |
//! | [`host`], [`hosts`] | a daemon; starting and ending them |
//! | [`run`] | one run of the traffic, with what it measured |
//! | [`capture`], [`packet`], [`ladder`] | packets: noted, named, drawn |
//! | [`exercise`], [`exercises`], [`table`] | what an exercise is; the ten; all of them |
//! | [`text`] | paragraphs for a terminal |
#![forbid(unsafe_code)]

pub mod capture;
pub mod exercise;
pub mod exercises;
pub mod host;
pub mod hosts;
pub mod ladder;
pub mod packet;
pub mod pairs;
pub mod place;
pub mod programs;
pub mod run;
pub mod table;
pub mod task;
pub mod text;

use crate::exercise::{Dice, Exercise, Judgement};
use crate::place::LabPlace;
pub use crate::programs::LabPrograms;
use crate::task::{LabTask, RunRecord, Settings};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;

/// Tries of a set-up until its first run shows what the exercise needs (something lost, for example).
const SETUPS_MAX: usize = 5;
/// What is said where there is no task.
const MISSING: &str = "no exercise has begun: burst lab NAME (burst lab lists the names)";

/// The grammar of `burst lab`.
pub fn command() -> Command {
    let words = |name: &'static str, help: &'static str| Arg::new(name).num_args(0..).value_name("WORD").help(help);
    Command::new("lab")
        .about("Learn RDMA: ten exercises of ten minutes, with real packets and no rights (docs/lab.md)")
        .long_about(
            "Learn RDMA: ten exercises of ten minutes, with real packets and no rights.\n\n\
             Each sets up hosts on this machine, lets traffic run between them, asks a question, checks the answer by what was measured, \
             and explains. Without a word: lists the exercises.",
        )
        .after_help("burst lab pingpong\nburst lab ladder --all\nburst lab check 7")
        .args_conflicts_with_subcommands(true)
        .arg(Arg::new("exercise").value_name("EXERCISE").help("Begin this exercise: its name, or its number"))
        .subcommand(
            Command::new("check")
                .about("Check an answer of the exercise in hand")
                .arg(words("words", "The answer, if the question asks for one; the exercise's name may stand before it")),
        )
        .subcommand(
            Command::new("run")
                .about("Let the traffic of the exercise run again")
                .arg(words("settings", "What shall be different this time, NAME=VALUE; the exercise says which names there are")),
        )
        .subcommand(
            Command::new("ladder")
                .about("Draw the packets of the last run")
                .arg(flag("all", "All packets, not only the first ones"))
                .arg(flag("first", "Of the run of the set-up")),
        )
        .subcommand(
            Command::new("on")
                .about("Run a command as on a host of the exercise: burst lab on b burst why")
                .arg(Arg::new("host").required(true).value_name("HOST").help("a, b, …"))
                .arg(
                    Arg::new("line")
                        .value_name("COMMAND")
                        .required(true)
                        .num_args(1..)
                        .trailing_var_arg(true)
                        .allow_hyphen_values(true)
                        .value_parser(clap::value_parser!(OsString))
                        .help("Program and its arguments"),
                ),
        )
        .subcommand(Command::new("again").about("Print the question of the exercise in hand again"))
        .subcommand(
            Command::new("solve")
                .about("Show how exercises are solved: a wrong answer, then the right one")
                .arg(Arg::new("exercise").value_name("EXERCISE").num_args(0..).help("Names or numbers [default: the one in hand]"))
                .arg(flag("all", "All ten")),
        )
        .subcommand(Command::new("stop").about("End the hosts of the exercise in hand"))
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// What a command has printed, and whether the answer was right.
pub struct LabOutcome {
    /// For stdout.
    pub text: String,
    /// Exit code 0; 1 otherwise.
    pub is_good: bool,
}

/// Carries out `burst lab`.
///
/// # Errors
/// A sentence.
pub fn lab(matches: &ArgMatches, programs: &LabPrograms) -> Result<LabOutcome, String> {
    let lab = Lab { programs, place: LabPlace::open()? };
    if let Some(("on", m)) = matches.subcommand() {
        return lab.on(m);
    }
    let (text, is_good) = match matches.subcommand() {
        Some(("check", m)) => lab.check(&words_of(m, "words"))?,
        Some(("solve", m)) => lab.solve(&words_of(m, "exercise"), m.get_flag("all"))?,
        Some((name, m)) => (lab.show(name, m)?, true),
        None => match matches.get_one::<String>("exercise") {
            Some(word) => (lab.open(word)?, true),
            None => (lab.list(), true),
        },
    };
    Ok(LabOutcome { text: text::wrapped(&text), is_good })
}

fn words_of(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many(name).into_iter().flatten().cloned().collect()
}

struct Lab<'a> {
    programs: &'a LabPrograms,
    place: LabPlace,
}

impl Lab<'_> {
    /// Commands that answer nothing right or wrong.
    fn show(&self, name: &str, matches: &ArgMatches) -> Result<String, String> {
        match name {
            "run" => self.run_again(&words_of(matches, "settings")),
            "ladder" => self.ladder(matches.get_flag("all"), matches.get_flag("first")),
            "stop" => Ok(self.stop()),
            _ => self.again(),
        }
    }

    /// `burst lab EXERCISE`.
    fn open(&self, word: &str) -> Result<String, String> {
        let exercise = table::find(word)?;
        let task = self.begin(exercise)?;
        Ok(opening(exercise, &task))
    }

    /// The exercises, with what was solved.
    fn list(&self) -> String {
        let (solved, task) = (self.place.solved(), self.place.task());
        let mut text = "Ten exercises for people who learn RDMA. Each takes about ten minutes. The hosts are programs on this machine, what they send \
                        each other are real packets, and you need no rights and no adapter.\n\n"
            .to_owned();
        for (number, one) in table::all().iter().enumerate() {
            let state = match (&task, solved.iter().any(|known| known == one.name())) {
                (Some(task), _) if task.exercise == one.name() => "in hand",
                (_, true) => "solved",
                _ => "",
            };
            let line = format!("  {:>2}  {:<11} {:<58} {state}", number + 1, one.name(), one.title());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let next = self.next().map_or("pingpong", |one| one.name());
        let _ = writeln!(
            text,
            "\nBegin with: burst lab {next}\n\nburst lab again prints the question once more, burst lab stop ends the hosts; they end by themselves \
             after half an hour. One exercise is in hand at a time."
        );
        text
    }

    /// The first exercise that is not solved.
    fn next(&self) -> Option<&'static dyn Exercise> {
        let solved = self.place.solved();
        table::all().into_iter().find(|one| !solved.iter().any(|known| known == one.name()))
    }

    /// The task in hand and its exercise.
    fn in_hand(&self) -> Result<(LabTask, &'static dyn Exercise), String> {
        let task = self.place.task().ok_or(MISSING)?;
        let exercise = table::find(&task.exercise)?;
        Ok((task, exercise))
    }

    /// Sets an exercise up.
    fn begin(&self, exercise: &'static dyn Exercise) -> Result<LabTask, String> {
        for _ in 0..SETUPS_MAX {
            self.end_hosts();
            let drawn = exercise.draw(&mut Dice);
            let hosts = hosts::start(self.programs, &self.place, exercise.hosts(), &drawn.wire)?;
            let mut task = LabTask {
                exercise: exercise.name().to_owned(),
                hosts,
                helpers: Vec::new(),
                settings: drawn.settings,
                wire: drawn.wire,
                runs: Vec::new(),
            };
            // Kept at once, so that the hosts are found and ended whatever happens next.
            self.place.keep(&task)?;
            self.start_server(&mut task)?;
            run::run(self.programs, &mut task, &Settings::default())?;
            self.place.keep(&task)?;
            if exercise.is_worth_asking(&task) {
                return Ok(task);
            }
        }
        Err(format!(
            "{}: the traffic did not show what the exercise is about, {SETUPS_MAX} times: is this machine very busy?",
            exercise.name()
        ))
    }

    /// Starts the server that some exercises have.
    fn start_server(&self, task: &mut LabTask) -> Result<(), String> {
        let (Some(port), Some(b)) = (task.settings.get(run::LISTEN), task.hosts.get(1)) else { return Ok(()) };
        let mut command = run::program(self.programs);
        command.arg(format!("serve={}", b.socket.display())).args([
            "op=listen".to_owned(),
            format!("address={}", b.address),
            format!("port={port}"),
        ]);
        task.helpers.push(hosts::start_helper(&mut command)?);
        self.place.keep(task)
    }

    fn end_hosts(&self) {
        if let Some(task) = self.place.task() {
            hosts::end(&task.hosts, &task.helpers, &self.place);
        }
        self.place.forget();
    }

    fn stop(&self) -> String {
        self.end_hosts();
        "The hosts have ended. burst lab lists the exercises.\n".to_owned()
    }

    fn again(&self) -> Result<String, String> {
        let (task, exercise) = self.in_hand()?;
        Ok(opening(exercise, &task))
    }

    /// `burst lab run`.
    fn run_again(&self, words: &[String]) -> Result<String, String> {
        let (mut task, exercise) = self.in_hand()?;
        let changed = chosen(exercise, words)?;
        run::run(self.programs, &mut task, &changed)?;
        self.place.keep(&task)?;
        let run = task.last().ok_or(MISSING)?;
        Ok(exercise.said(&task, run))
    }

    fn ladder(&self, all: bool, first: bool) -> Result<String, String> {
        let (task, _) = self.in_hand()?;
        let run = if first { task.first() } else { task.last() }.ok_or("nothing has run yet: burst lab run")?;
        Ok(drawn(&task, run, all))
    }

    /// `burst lab check`.
    fn check(&self, words: &[String]) -> Result<(String, bool), String> {
        let (task, exercise) = self.in_hand()?;
        let answer = match words {
            [] => None,
            [name] if name == exercise.name() => None,
            [answer] => Some(answer.as_str()),
            [name, answer] if name == exercise.name() => Some(answer.as_str()),
            _ => {
                return Err(format!(
                    "one answer, please, to the exercise in hand ({}): burst lab check ANSWER",
                    exercise.name()
                ));
            }
        };
        Ok(self.judged(&task, exercise, answer))
    }

    fn judged(&self, task: &LabTask, exercise: &dyn Exercise, answer: Option<&str>) -> (String, bool) {
        match exercise.check(task, answer) {
            Judgement::Wrong(hint) => (format!("Not yet. {hint}\n"), false),
            Judgement::More(next) => (format!("{next}\n"), false),
            Judgement::Right(explanation) => {
                self.place.note_solved(exercise.name());
                let end = match self.next() {
                    Some(next) => format!("\nNext: burst lab {}\n", next.name()),
                    None => "\nThat were all ten. burst lab stop ends the hosts.\n".to_owned(),
                };
                (format!("Solved.\n\n{explanation}\n{}{end}", evidence(task)), true)
            }
        }
    }

    /// `burst lab on`. Returns only if the command cannot be run.
    fn on(&self, matches: &ArgMatches) -> Result<LabOutcome, String> {
        let (task, _) = self.in_hand()?;
        let letter = matches.get_one::<String>("host").map_or("", String::as_str);
        let letters: Vec<&str> = task.hosts.iter().map(|host| host.letter.as_str()).collect();
        let host = task.hosts.iter().find(|host| host.letter == letter);
        let host =
            host.ok_or_else(|| format!("there is no host {letter:?}; the exercise has {}", letters.join(", ")))?;
        let mut words = matches.get_many::<OsString>("line").into_iter().flatten();
        let program = words.next().ok_or("name a command: burst lab on b burst why")?;
        // As the learner types it, even if `burst` is not in the PATH.
        let program = if program == "burst" { self.programs.burst.clone().into_os_string() } else { program.clone() };
        let mut command = std::process::Command::new(&program);
        command.args(words).env("BURST_SOCKET", &host.socket).env("LD_LIBRARY_PATH", &self.programs.libraries);
        let error = command.exec();
        Err(format!("cannot run {}: {error}", program.to_string_lossy()))
    }

    /// `burst lab solve`.
    fn solve(&self, names: &[String], all: bool) -> Result<(String, bool), String> {
        let mut list: Vec<&'static dyn Exercise> =
            names.iter().map(|name| table::find(name)).collect::<Result<_, _>>()?;
        if all {
            list = table::all().to_vec();
        } else if list.is_empty() {
            list.push(self.in_hand()?.1);
        }
        let (mut text, mut is_good) = (String::new(), true);
        for one in list {
            let solved = self.solve_one(one, &mut text);
            self.end_hosts();
            is_good &= solved?;
        }
        Ok((text, is_good))
    }

    /// Does an exercise as a learner would: wrong at first, then right. True if the first was refused and the second was not.
    fn solve_one(&self, exercise: &'static dyn Exercise, text: &mut String) -> Result<bool, String> {
        let mut task = self.begin(exercise)?;
        let _ = write!(text, "== {}: {}\n\n", exercise.name(), exercise.title());
        let (wrong_run, wrong_answer) = exercise.wrong(&task);
        if let Some(changed) = wrong_run {
            self.step(exercise, &mut task, &changed, text)?;
        }
        let (said, accepted_wrong) = self.judged(&task, exercise, wrong_answer.as_deref());
        note_check(text, wrong_answer.as_deref(), &said);
        for changed in exercise.runs(&task) {
            self.step(exercise, &mut task, &changed, text)?;
        }
        let answer = exercise.answer(&task);
        let (said, accepted_right) = self.judged(&task, exercise, answer.as_deref());
        note_check(text, answer.as_deref(), &said);
        Ok(!accepted_wrong && accepted_right)
    }

    /// A run, and what it printed.
    fn step(
        &self,
        exercise: &dyn Exercise,
        task: &mut LabTask,
        changed: &Settings,
        text: &mut String,
    ) -> Result<(), String> {
        let words: Vec<String> = changed.iter().map(|(name, value)| format!("{name}={value}")).collect();
        run::run(self.programs, task, changed)?;
        let said = task.last().map_or_else(String::new, |run| exercise.said(task, run));
        let _ = write!(text, "$ burst lab run {}\n{said}\n", words.join(" "));
        Ok(())
    }
}

/// An answer as a learner types it, and what was said to it.
fn note_check(text: &mut String, answer: Option<&str>, said: &str) {
    let line = format!("$ burst lab check {}", answer.unwrap_or_default());
    let _ = write!(text, "{}\n{said}\n", line.trim_end());
}

/// What the learner reads at the beginning.
fn opening(exercise: &dyn Exercise, task: &LabTask) -> String {
    let addresses: Vec<String> = task.hosts.iter().map(|host| format!("{} {}", host.letter, host.address)).collect();
    let mut text = format!(
        "Exercise: {}\n\nHosts: {}. Each is a program (burstd) that stands for a computer with an RDMA adapter.\n\n{}",
        exercise.title(),
        addresses.join(", "),
        exercise.question(task)
    );
    if !exercise.choices().is_empty() {
        text.push_str("\nSettings of burst lab run:\n");
    }
    for choice in exercise.choices() {
        let _ = writeln!(text, "  {:<28} {}", choice.shown(), choice.help);
    }
    text
}

/// What was measured last, and what `burst why` had to say.
fn evidence(task: &LabTask) -> String {
    let mut text = String::new();
    // The host that served knows more than the one that was refused.
    if let Some((host, (cause, cure))) =
        task.first().and_then(|run| run.why.iter().max_by_key(|(host, _)| *host == "b"))
    {
        let _ =
            write!(text, "\nAfter the first run `burst why` on host {host} had said:\ncause: {cause}\ncure: {cure}\n");
    }
    if let Some(run) = task.last() {
        let _ = write!(text, "\nThe packets of the last run:\n\n{}", drawn(task, run, false));
    }
    text
}

fn drawn(task: &LabTask, run: &RunRecord, all: bool) -> String {
    let mut text = ladder::draw(&task.hosts, &run.packets, all);
    if run.missed > 0 {
        let _ = writeln!(text, "  ({} packets came too fast to be drawn)", run.missed);
    }
    text
}

/// Reads the settings that a learner chose.
fn chosen(exercise: &dyn Exercise, words: &[String]) -> Result<Settings, String> {
    let mut changed = Settings::default();
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is no setting: write NAME=VALUE"))?;
        let choice = exercise.choices().iter().find(|choice| choice.name == name).ok_or_else(|| {
            let names: Vec<String> = exercise.choices().iter().map(exercise::Choice::shown).collect();
            match names.is_empty() {
                true => "this exercise has no settings; `burst lab run` repeats its traffic".to_owned(),
                false => format!("there is no setting {name:?}; this exercise has {}", names.join(", ")),
            }
        })?;
        changed.insert(name, choice.read(value)?);
    }
    Ok(changed)
}
