//! `burst-sim`, which `burst sim` executes: hosts that run the real engine, on a modelled network, in virtual time.
//!
//! This file parses the command line and runs one scenario. A program of its own, because it contains the whole engine, which
//! `burst` does not. Results go to stdout, errors and progress to stderr. Exit codes: 0 success, 1 failure, 2 usage error, 130
//! ended by Ctrl-C.
//!
//! | module | what |
//! |---|---|
//! | `many` | sweeps, hunts, and one seed of a hunt again |
//! | `table`, `plot` | the results as text and as a drawing |
#![deny(unsafe_code)]

mod many;
mod plot;
mod table;

use burst_sim::capture::SimCapture;
use burst_sim::results::Results;
use burst_sim::scenario::Scenario;
use burst_sim::world::World;
use clap::{Arg, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Exit code of a simulation that was stopped: 128 and the number of SIGINT, as a shell shows it.
const EXIT_STOPPED: u8 = 130;
/// Largest file of a scenario in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Steps of the simulation between two looks at the clock.
const STEPS_PER_LOOK: u32 = 1 << 14;
/// Part of the available memory, in percent, that a simulation may need by its estimate.
const MEMORY_PERCENT: u64 = 80;

/// Carries out the command line of this process; returns its exit code.
pub fn main() -> ExitCode {
    match burst_args::parse(command(), std::env::args_os()) {
        Ok(matches) => sim(&matches),
        Err(code) => ExitCode::from(code),
    }
}

/// The grammar of the command line.
pub fn command() -> Command {
    let file =
        |name, help| Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help);
    Command::new("burst-sim")
        .bin_name("burst sim")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Simulate hosts that run the real engine on a modelled network (docs/simulator.md)")
        .long_about(
            "Simulate hosts that run the real engine on a modelled network, in virtual time.\n\n\
             Transport, loss recovery, congestion control and scheduling are the code of the daemon; links, switches and \
             what a host's processor costs are models. A scenario and a seed always give the same results. Ctrl-C ends the \
             simulation with the results so far, marked as partial (exit code 130).",
        )
        .after_help("burst sim incast.toml\nburst sim incast.toml --seed 7 --json incast.json --svg incast.svg")
        .arg(
            Arg::new("scenario")
                .value_name("SCENARIO.toml")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("The scenario"),
        )
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("NUMBER")
                .value_parser(value_parser!(u64))
                .help("Seed, instead of the scenario's"),
        )
        .arg(file("json", "Write the results as JSON to this file; `-`: to the standard output, without the table"))
        .arg(file("svg", "Plot the results into this file"))
        .args(capture_args())
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .subcommand(many::sweep_command())
        .subcommand(many::hunt_command())
        .subcommand(many::replay_command())
}

/// The options of a capture.
fn capture_args() -> [Arg; 2] {
    [
        Arg::new("capture")
            .long("capture")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Write the packets of one host into this file, for Wireshark and tshark"),
        Arg::new("capture-host")
            .long("capture-host")
            .value_name("HOST")
            .requires("capture")
            .value_parser(value_parser!(u32))
            .default_value("0")
            .help("Host whose packets are captured"),
    ]
}

/// Captures in `world` what the user has asked for.
fn begin_capture(matches: &ArgMatches, world: &mut World) -> Result<(), String> {
    let Some(path) = matches.get_one::<PathBuf>("capture") else { return Ok(()) };
    let host = *matches.get_one::<u32>("capture-host").expect("an argument with a default");
    let capture = SimCapture::create(path, host).map_err(|e| format!("{}: {e}", path.display()))?;
    world.set_capture(capture)
}

/// Lets the allocator take each large table of a host from the system, and not from what others have freed: of a table by queue
/// pair numbers, only the pages with a queue pair occupy memory then. Two thirds of the memory of a simulation with a thousand
/// hosts, otherwise.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn keep_tables_sparse() {
    const FROM_BYTES: i32 = 96 << 10;
    // SAFETY: a setting of the allocator, made before there is a second thread. If it refuses, more memory is used.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FROM_BYTES);
    }
}

#[cfg(not(target_env = "gnu"))]
fn keep_tables_sparse() {}

/// Carries it out.
fn sim(matches: &ArgMatches) -> ExitCode {
    keep_tables_sparse();
    match matches.subcommand() {
        Some(("sweep", m)) => return many::sweep(m),
        Some(("hunt", m)) => return many::hunt(m),
        Some(("replay", m)) => return many::replay(m),
        _ => {}
    }
    let path = matches.get_one::<PathBuf>("scenario").expect("a required argument");
    let mut scenario = match read(path) {
        Ok(scenario) => scenario,
        Err(sentence) => return misused(sentence + &meant_command(path)),
    };
    if let Some(seed) = matches.get_one::<u64>("seed") {
        scenario.seed = *seed;
    }
    let results = match simulate(matches, &scenario) {
        Ok(results) => results,
        Err(sentence) => return fail(format!("{}: {sentence}", path.display())),
    };
    if let Err(sentence) = write(matches, &results) {
        return fail(sentence);
    }
    if results.is_partial { ExitCode::from(EXIT_STOPPED) } else { ExitCode::SUCCESS }
}

/// Words that ask whether a path that does not exist is a misspelt command.
fn meant_command(path: &Path) -> String {
    let word = path.to_str().filter(|_| !path.exists());
    let command = command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let near = word.and_then(|word| burst_grammar::nearest_within(word, names, 2));
    near.map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// Reads a scenario; the sentence of an error begins with the file's name.
fn read(path: &Path) -> Result<Scenario, String> {
    Scenario::parse(&read_text(path)?).map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads a file that is short enough to be a scenario.
fn read_text(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?.len();
    if length > FILE_MAX {
        return Err(format!("{shown}: longer than {FILE_MAX} bytes"));
    }
    std::fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))
}

/// Runs a scenario to its end or until Ctrl-C.
fn simulate(matches: &ArgMatches, scenario: &Scenario) -> Result<Results, String> {
    let stop = stop_flag()?;
    let estimate = scenario.estimate();
    eprintln!("{estimate}");
    check_memory(estimate.bytes)?;
    let mut world = World::new(scenario).map_err(|e| e.to_string())?;
    begin_capture(matches, &mut world)?;
    let bar = progress_bar(scenario);
    let results = to_the_end(&mut world, &stop, &bar);
    bar.finish_and_clear();
    world.end_capture()?;
    results
}

/// Refuses what would need too much of the memory that is available.
fn check_memory(bytes: u64) -> Result<(), String> {
    let available = available_memory();
    if bytes <= available / 100 * MEMORY_PERCENT {
        return Ok(());
    }
    Err(format!(
        "needs about {} MiB, more than {MEMORY_PERCENT} % of the {} MiB that are available; use fewer hosts or less load",
        bytes >> 20,
        available >> 20
    ))
}

/// Goes from step to step until the end, or until `stop` is set.
fn to_the_end(world: &mut World, stop: &AtomicBool, bar: &ProgressBar) -> Result<Results, String> {
    let began = Instant::now();
    loop {
        for _ in 0..STEPS_PER_LOOK {
            if !world.step().map_err(|e| e.to_string())? {
                return Ok(world.results(false));
            }
        }
        bar.set_position(world.now() / 1_000);
        let rate = world.events() as f64 / began.elapsed().as_secs_f64().max(1e-3);
        bar.set_message(format!("{:.2} M events/s", rate / 1e6));
        // Relaxed: the flag carries nothing else.
        if stop.load(Ordering::Relaxed) {
            return Ok(world.results(true));
        }
    }
}

/// A flag that Ctrl-C sets.
fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone()).map_err(|e| format!("SIGINT: {e}"))?;
    Ok(stop)
}

fn progress_bar(scenario: &Scenario) -> ProgressBar {
    let bar = ProgressBar::new(scenario.time / 1_000);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}  {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Bytes of memory that programs may still use; all there can be, if the system does not say.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Writes what the user has asked for.
fn write(matches: &ArgMatches, results: &Results) -> Result<(), String> {
    let json = matches.get_one::<PathBuf>("json");
    if let Some(path) = json {
        let mut text = serde_json::to_string_pretty(results).map_err(|e| format!("JSON: {e}"))?;
        text.push('\n');
        if path.as_os_str() == "-" {
            print!("{text}");
        } else {
            std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    if let Some(path) = matches.get_one::<PathBuf>("svg") {
        let drawing = plot::draw(results).map_err(|e| format!("plot: {e}"))?;
        std::fs::write(path, drawing).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if json.is_none_or(|path| path.as_os_str() != "-") {
        print!("{}", table::of(results));
    }
    Ok(())
}

/// Prints one sentence to stderr; returns exit code 1.
fn fail(sentence: impl std::fmt::Display) -> ExitCode {
    eprintln!("burst-sim: {sentence}");
    ExitCode::FAILURE
}

/// Prints one sentence to stderr; returns the exit code of a wrong scenario or command line.
fn misused(sentence: impl std::fmt::Display) -> ExitCode {
    eprintln!("burst-sim: {sentence}");
    ExitCode::from(burst_args::EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
