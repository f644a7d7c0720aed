//! `burst lab`: finds the programs that the exercises need, and prints what the crate `lab` says.

use crate::install;
use burst_lab::{LabOutcome, LabPrograms};
use clap::{ArgMatches, Command};
use std::process::ExitCode;

/// Words and flags of `burst lab`.
pub fn command() -> Command {
    burst_lab::command()
}

/// Runs `burst lab`: exit code 1 for an answer that is not right (yet).
pub fn lab(matches: &ArgMatches) -> ExitCode {
    match programs().and_then(|programs| burst_lab::lab(matches, &programs)) {
        Ok(LabOutcome { text, is_good: true }) => crate::finish(&text),
        Ok(LabOutcome { text, is_good: false }) => crate::print(&text).map_or_else(crate::fail, |()| ExitCode::FAILURE),
        Err(sentence) => crate::fail(sentence),
    }
}

fn programs() -> Result<LabPrograms, String> {
    let libraries = install::library_directory()?;
    let exercise = libraries.join(install::EXERCISE_PROGRAM);
    if !exercise.is_file() {
        return Err(format!("{} is missing: build it with make build, or install Burst again", exercise.display()));
    }
    let burst = std::env::current_exe().map_err(|e| format!("cannot find out where burst itself is: {e}"))?;
    Ok(LabPrograms { burst, burstd: install::daemon_program()?, exercise, libraries })
}
