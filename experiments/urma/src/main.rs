//! The program that experiments/urma/run starts: runs studies and prints their tables.
#![forbid(unsafe_code)]

use burst_urma_studies::registry::{STUDIES, find};
use burst_urma_studies::report::{StudyScale, StudyTable};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match burst_args::parse(command(), std::env::args_os()) {
        Ok(matches) => run(&matches),
        Err(code) => ExitCode::from(code),
    }
}

/// The grammar of the command line.
fn command() -> Command {
    let list: String = STUDIES.iter().map(|(name, about, _)| format!("  {name:<14}{about}\n")).collect();
    Command::new("urma-studies")
        .about("Run studies of the Unified Bus beside the OpenURMA paper's (docs/urma-studies.md)")
        .long_about(
            "Run studies of the Unified Bus: hosts run the real URMA and RC code in virtual time behind modelled host \
             interfaces. Each table has the OpenURMA paper's figures, those of its repository, the closed form and the simulated \
             ones, and says why they differ.\n\nExit code 1: a promise of a study is not kept; 3: a study could not run.",
        )
        .after_help(format!("Studies:\n{list}"))
        .arg(Arg::new("study").value_name("STUDY").num_args(0..).help("Studies [default: all]"))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("NUMBER")
                .default_value("1")
                .value_parser(value_parser!(u64))
                .help("Seed of what is random"),
        )
        .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Fewer operations"))
        .arg(
            Arg::new("json")
                .long("json")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write the tables as JSON to this file; `-`: to the standard output, without the text"),
        )
}

/// Carries it out.
fn run(matches: &ArgMatches) -> ExitCode {
    let scale = StudyScale {
        is_quick: matches.get_flag("quick"),
        seed: *matches.get_one("seed").expect("an argument with a default"),
    };
    let json = matches.get_one::<PathBuf>("json");
    let wanted: Vec<String> = match matches.get_many::<String>("study") {
        Some(words) => words.cloned().collect(),
        None => STUDIES.iter().map(|study| study.0.into()).collect(),
    };
    if let Some(word) = wanted.iter().find(|word| find(word).is_none()) {
        let all: Vec<&str> = STUDIES.iter().map(|study| study.0).collect();
        eprintln!("urma-studies: there is no study \"{word}\"; there are: {}", all.join(", "));
        return ExitCode::from(burst_args::EXIT_USAGE);
    }
    let mut tables = Vec::new();
    for name in &wanted {
        let Some(run) = find(name) else { continue };
        match run(&scale) {
            Ok(table) => {
                if json.is_none_or(|path| path.as_os_str() != "-") {
                    println!("{}", table.text());
                }
                tables.push(table);
            }
            Err(sentence) => return fail(format!("study {name}: {sentence}")),
        }
    }
    if let Some(sentence) = json.and_then(|path| write(path, &tables).err()) {
        return fail(sentence);
    }
    ExitCode::from(u8::from(!tables.iter().all(StudyTable::is_met)))
}

fn write(path: &Path, tables: &[StudyTable]) -> Result<(), String> {
    let mut text = serde_json::to_string_pretty(tables).map_err(|e| format!("JSON: {e}"))?;
    text.push('\n');
    if path.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Prints one sentence to stderr; returns the exit code of a study that could not run.
fn fail(sentence: impl std::fmt::Display) -> ExitCode {
    eprintln!("urma-studies: {sentence}");
    ExitCode::from(3)
}
