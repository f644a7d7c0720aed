//! Command-line parsing shared by `burst` and `burstd`: [`parse`] runs clap and reports an error in one sentence; [`check`] does
//! the same without printing.
//!
//! A wrong flag, command or value is answered by one sentence that names it and the nearest valid word, and by exit code
//! [`EXIT_USAGE`]. The grammar of values (sizes, durations, names) is the crate `burst_grammar`.
#![forbid(unsafe_code)]

use burst_grammar::nearest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Exit code of every program for a wrong flag, key or value.
pub const EXIT_USAGE: u8 = 2;

/// Why [`check`] did not accept a command line.
#[derive(Debug)]
pub enum ArgsRefusal {
    /// The user asked for help or the version, or gave no arguments: clap's text and where it belongs.
    Shown(clap::Error),
    /// One sentence about the mistake, with the program's name before it.
    Wrong(String),
}

impl ArgsRefusal {
    /// Prints the text; returns the exit code: 0 for help or version that was asked for, else [`EXIT_USAGE`].
    pub fn print(&self) -> u8 {
        match self {
            ArgsRefusal::Shown(text) => {
                // Ignore errors of the write: the reader may have closed the pipe (`burst --help | head -1`).
                let _ = text.print();
                if text.use_stderr() { EXIT_USAGE } else { 0 }
            }
            ArgsRefusal::Wrong(sentence) => {
                eprintln!("{sentence}");
                EXIT_USAGE
            }
        }
    }
}

/// Parses `args`; prints help or version (exit code 0) or one sentence about what is wrong (exit code 2).
///
/// # Errors
/// The exit code of the program; the message was printed.
pub fn parse(command: clap::Command, args: impl IntoIterator<Item = OsString>) -> Result<clap::ArgMatches, u8> {
    check(command, args).map_err(|refusal| refusal.print())
}

/// Parses `args` without printing anything.
///
/// # Errors
/// What is to be printed, by [`ArgsRefusal::print`].
pub fn check(
    mut command: clap::Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<clap::ArgMatches, ArgsRefusal> {
    let program = command.get_name().to_owned();
    let args: Vec<OsString> = args.into_iter().collect();
    let error = match command.try_get_matches_from_mut(args.iter()) {
        Ok(matches) => return Ok(matches),
        Err(error) => error,
    };
    let shown = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if shown {
        return Err(ArgsRefusal::Shown(error));
    }
    Err(ArgsRefusal::Wrong(format!("{program}: {}", sentence(&command, &args, &error))))
}

/// One sentence about a usage error.
fn sentence(command: &clap::Command, args: &[OsString], error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(s)) => Some(s.clone()),
        Some(ContextValue::Strings(s)) => s.first().cloned(),
        _ => None,
    };
    let arg = text(ContextKind::InvalidArg);
    let scope = innermost(command, args);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let wrong = arg.unwrap_or_default();
            if !wrong.starts_with('-') {
                return format!("unexpected word {wrong:?}; see --help");
            }
            let end = args.iter().position(|a| is_flag(a, &wrong)).unwrap_or(args.len());
            let flags: Vec<String> = long_flags(innermost(command, &args[..end]));
            if !flags.contains(&wrong) && long_flags(scope).contains(&wrong) {
                return format!("{wrong:?} is a flag of {:?}: it stands behind that word", scope.get_name());
            }
            match nearest(&wrong, flags.iter().map(String::as_str)) {
                Some(near) => format!("unknown flag {wrong:?}; the nearest valid one is {near:?}"),
                None => format!("unknown flag {wrong:?}; see --help"),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let wrong = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            let names = scope.get_subcommands().map(clap::Command::get_name);
            let near = nearest(&wrong, names).unwrap_or("help");
            format!("unknown command {wrong:?}; the nearest valid one is {near:?}")
        }
        ErrorKind::ArgumentConflict => {
            let arg = arg.unwrap_or_default();
            match text(ContextKind::PriorArg) {
                Some(other) if other != arg => format!("{arg} and {other} exclude each other: give one of them"),
                _ => format!("{arg} is given twice"),
            }
        }
        _ => first_line(error),
    }
}

/// The subcommand in `args`, at any depth: only its flags are suggested.
fn innermost<'a>(command: &'a clap::Command, args: &[OsString]) -> &'a clap::Command {
    args.iter().skip(1).fold(command, |scope, word| scope.find_subcommand(word).unwrap_or(scope))
}

/// Whether the word is the flag, alone or with a value (`--flag=value`).
fn is_flag(word: &std::ffi::OsStr, flag: &str) -> bool {
    word.to_str().is_some_and(|word| word.split('=').next() == Some(flag))
}

fn long_flags(command: &clap::Command) -> Vec<String> {
    let globals = ["help"].into_iter();
    let own = command.get_arguments().filter_map(clap::Arg::get_long);
    own.chain(globals).map(|l| format!("--{l}")).collect()
}

/// The first line of clap's message, without its `error:` prefix.
fn first_line(error: &clap::Error) -> String {
    let whole = error.render().to_string();
    let lines: Vec<&str> = whole.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
    let joined = lines.join(" ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    fn demo() -> Command {
        Command::new("demo")
            .arg(Arg::new("workers").long("workers"))
            .subcommand(Command::new("doctor").arg(Arg::new("json").long("json")))
            .subcommand(
                Command::new("run")
                    .arg(Arg::new("one").long("one").action(clap::ArgAction::SetTrue).conflicts_with("other"))
                    .arg(Arg::new("other").long("other").action(clap::ArgAction::SetTrue)),
            )
    }

    fn complaint(words: &[&str]) -> String {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        let mut command = demo();
        let error = command.try_get_matches_from_mut(args.iter()).expect_err("must be refused");
        sentence(&command, &args, &error)
    }

    #[test]
    fn a_wrong_flag_names_itself_and_the_nearest() {
        let message = complaint(&["demo", "--wrokers", "3"]);
        assert_eq!(message, "unknown flag \"--wrokers\"; the nearest valid one is \"--workers\"");
    }

    #[test]
    fn a_wrong_flag_of_a_command_suggests_that_commands_flags() {
        let message = complaint(&["demo", "doctor", "--jsno"]);
        assert_eq!(message, "unknown flag \"--jsno\"; the nearest valid one is \"--json\"");
    }

    #[test]
    fn a_flag_before_its_command_is_sent_behind_it() {
        let message = complaint(&["demo", "--json=1", "doctor"]);
        assert_eq!(message, "\"--json\" is a flag of \"doctor\": it stands behind that word");
        let message = complaint(&["demo", "--jsno", "doctor"]);
        assert!(message.starts_with("unknown flag \"--jsno\"; the nearest valid one is "), "{message}");
    }

    #[test]
    fn a_flag_like_nothing_still_gets_a_suggestion() {
        assert!(complaint(&["demo", "--zzz"]).contains("the nearest valid one is"));
    }

    #[test]
    fn a_wrong_command_names_the_nearest() {
        let message = complaint(&["demo", "docter"]);
        assert_eq!(message, "unknown command \"docter\"; the nearest valid one is \"doctor\"");
    }

    #[test]
    fn flags_that_exclude_each_other_are_both_named() {
        for words in [["demo", "run", "--one", "--other"], ["demo", "run", "--other", "--one"]] {
            let message = complaint(&words);
            assert!(message.contains("--one") && message.contains("--other"), "{message}");
            assert!(message.ends_with(" exclude each other: give one of them"), "{message}");
        }
        assert_eq!(complaint(&["demo", "run", "--one", "--one"]), "--one is given twice");
    }

    #[test]
    fn a_missing_value_is_one_line() {
        let message = complaint(&["demo", "--workers"]);
        assert!(message.contains("--workers") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn a_refusal_says_what_is_to_be_printed() {
        let refusal = |words: &[&str]| check(demo(), words.iter().map(OsString::from)).expect_err("refused");
        let ArgsRefusal::Wrong(sentence) = refusal(&["demo", "--wrokers=3"]) else { panic!("help") };
        assert!(sentence.starts_with("demo: unknown flag"), "{sentence}");
        let ArgsRefusal::Shown(text) = refusal(&["demo", "--help"]) else { panic!("a mistake") };
        assert!(!text.use_stderr() && text.render().to_string().contains("--workers"));
    }

    #[test]
    fn exit_codes() {
        let args = |w: &[&str]| w.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(parse(demo(), args(&["demo", "--wrong"])).unwrap_err(), EXIT_USAGE);
        assert!(parse(demo(), args(&["demo", "run"])).is_ok());
    }
}
