//! Many simulations: a grid of them (`sweep`), random ones under the oracle (`hunt`), and one of those again (`replay`).

use super::{EXIT_STOPPED, check_memory, read_text, stop_flag};
use burst_sim::hunt::{self, Draft, Found};
use burst_sim::liveness::Liveness;
use burst_sim::sweep::{Axis, Point, grid, run, shown};
use burst_sim::world::SimError;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds of a hunt without `--seconds` and `--seeds`.
const HUNT_SECONDS: u64 = 60;

fn jobs() -> Arg {
    Arg::new("jobs")
        .long("jobs")
        .value_name("THREADS")
        .value_parser(value_parser!(u16).range(1..))
        .help("Threads [default: all cores]")
}

fn threads(matches: &ArgMatches) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    matches.get_one::<u16>("jobs").map_or_else(cores, |jobs| usize::from(*jobs))
}

/// The grammar of `sweep`.
pub fn sweep_command() -> Command {
    Command::new("sweep")
        .about("Run a scenario with all combinations of some values, on all cores")
        .after_help("burst sim sweep incast.toml --set hosts.cc=aimd,dctcp,dcqcn --set traffic.0.senders=2,4,8 --json grid.json")
        .arg(Arg::new("scenario").value_name("SCENARIO.toml").required(true).value_parser(value_parser!(PathBuf)).help("The scenario"))
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE,…")
                .action(ArgAction::Append)
                .required(true)
                .help("Values of a key; values that have commas are separated by `;`"),
        )
        .arg(Arg::new("json").long("json").value_name("FILE").value_parser(value_parser!(PathBuf)).help("Write all results as JSON"))
        .arg(jobs())
}

/// Carries out `sweep`.
pub fn sweep(matches: &ArgMatches) -> ExitCode {
    let path = matches.get_one::<PathBuf>("scenario").expect("a required argument");
    let axes = matches.get_many::<String>("set").expect("a required argument").map(|text| Axis::parse(text));
    let points = axes
        .collect::<Result<Vec<_>, _>>()
        .and_then(|axes| grid(&read_text(path)?, &axes).map_err(|sentence| format!("{}: {sentence}", path.display())));
    let points = match points {
        Ok(points) => points,
        Err(sentence) => {
            return super::misused(sentence);
        }
    };
    let threads = threads(matches);
    let (sum, at_once) = needs(&points, threads);
    eprintln!(
        "estimate: {} simulations, {sum:.0} s of one core, {} MiB at one time",
        points.len(),
        (at_once >> 20) + 1
    );
    let stop = match check_memory(at_once).and_then(|()| stop_flag()) {
        Ok(stop) => stop,
        Err(sentence) => return super::fail(format!("{}: {sentence}, or fewer --jobs", path.display())),
    };
    let bar = ProgressBar::new(points.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let results = run(&points, threads, &stop, &|| bar.inc(1));
    bar.finish_and_clear();
    let rows: Vec<Value> = points.iter().zip(&results).map(|(point, result)| row(point, result.as_ref())).collect();
    if let Some(file) = matches.get_one::<PathBuf>("json") {
        let text = serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n";
        if let Err(error) = std::fs::write(file, text) {
            return super::fail(format!("{}: {error}", file.display()));
        }
    }
    let mut failures = 0;
    for (point, result) in points.iter().zip(&results) {
        match result {
            Some(Ok(results)) => print!("{}\n{}\n", shown(&point.set), super::table::of(results)),
            Some(Err(sentence)) => {
                failures += 1;
                println!("{}\nfailed: {sentence}\n", shown(&point.set));
            }
            None => println!("{}\nnot run\n", shown(&point.set)),
        }
    }
    // Relaxed: the flag carries nothing else.
    match (stop.load(Ordering::Relaxed), failures) {
        (true, _) => ExitCode::from(EXIT_STOPPED),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::FAILURE,
    }
}

/// Seconds of one core of all points, and the most bytes that so many of them need at one time.
fn needs(points: &[Point], threads: usize) -> (f64, u64) {
    let estimates: Vec<_> = points.iter().map(|point| point.scenario.estimate()).collect();
    let mut bytes: Vec<u64> = estimates.iter().map(|estimate| estimate.bytes).collect();
    bytes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    (estimates.iter().map(|estimate| estimate.seconds).sum(), bytes.iter().take(threads).sum())
}

fn row(point: &Point, result: Option<&Result<burst_sim::results::Results, String>>) -> Value {
    let set: serde_json::Map<String, Value> =
        point.set.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    match result {
        Some(Ok(results)) => json!({ "set": set, "results": results }),
        Some(Err(sentence)) => json!({ "set": set, "error": sentence }),
        None => json!({ "set": set, "error": "not run" }),
    }
}

/// The grammar of `hunt`.
pub fn hunt_command() -> Command {
    let number =
        |name, help| Arg::new(name).long(name).value_name("NUMBER").value_parser(value_parser!(u64)).help(help);
    Command::new("hunt")
        .about(
            "Look for faults: random scenarios under the oracle; a failure is made smaller and shown with its command",
        )
        .arg(number("from", "First seed [default: from the clock]"))
        .arg(number("seeds", "Number of seeds").conflicts_with("seconds"))
        .arg(number("seconds", "How long [default: 60]"))
        .arg(
            Arg::new("liveness")
                .long("liveness")
                .action(ArgAction::SetTrue)
                .help("Scenarios of liveness instead: goodput after a loss, drops at a bottleneck"),
        )
        .arg(jobs())
}

/// Carries out `hunt`.
pub fn hunt(matches: &ArgMatches) -> ExitCode {
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs() << 16);
    let from = matches.get_one::<u64>("from").copied().unwrap_or_else(clock);
    let count = matches.get_one::<u64>("seeds").copied();
    let seconds = matches.get_one::<u64>("seconds").copied().unwrap_or(HUNT_SECONDS);
    let end = if count.is_some() { None } else { Some(Instant::now() + Duration::from_secs(seconds)) };
    let stop = match stop_flag() {
        Ok(stop) => stop,
        Err(sentence) => return super::fail(sentence),
    };
    let seeds = HuntSeeds { from, count: count.unwrap_or(u64::MAX), is_liveness: matches.get_flag("liveness") };
    let (tried, found) = search(seeds, end, &stop, threads(matches));
    for Found { seed, error, scenario, tried, is_liveness } in &found {
        let flag = if *is_liveness { " --liveness" } else { "" };
        println!(
            "seed {seed}: {error}\nafter {tried} attempts to make it smaller:\n\n{scenario}\nburst sim replay {seed}{flag}\n"
        );
    }
    println!("{tried} seeds from {from} on: {} violations", found.len());
    // Relaxed: the flag carries nothing else.
    match (found.is_empty(), stop.load(Ordering::Relaxed)) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(EXIT_STOPPED),
        (true, false) => ExitCode::SUCCESS,
    }
}

/// The seeds of a hunt.
#[derive(Clone, Copy)]
struct HuntSeeds {
    from: u64,
    count: u64,
    is_liveness: bool,
}

/// Tries seeds on some threads, until `end` or `stop`. Returns how many, and the failures in the order of their seeds.
fn search(seeds: HuntSeeds, end: Option<Instant>, stop: &AtomicBool, threads: usize) -> (u64, Vec<Found>) {
    let (next, tried, found) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Relaxed: each number is taken once, and the failures are under a lock.
                while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= seeds.count {
                        return;
                    }
                    if let Some(failure) = hunt::hunt(seeds.from.wrapping_add(number), seeds.is_liveness) {
                        found.lock().unwrap_or_else(|e| e.into_inner()).push(failure);
                    }
                    tried.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut found: Vec<Found> = found.into_inner().unwrap_or_else(|e| e.into_inner());
    found.sort_by_key(|failure| failure.seed);
    (tried.into_inner(), found)
}

/// The grammar of `replay`.
pub fn replay_command() -> Command {
    Command::new("replay")
        .about("Run the random scenario of a seed again, as `hunt` did")
        .arg(Arg::new("seed").value_name("SEED").required(true).value_parser(value_parser!(u64)).help("The seed"))
        .arg(Arg::new("show").long("show").action(ArgAction::SetTrue).help("Print the scenario and do not run it"))
        .arg(
            Arg::new("liveness")
                .long("liveness")
                .action(ArgAction::SetTrue)
                .conflicts_with("capture")
                .help("The seed's scenario of liveness instead: goodput after a loss, drops at a bottleneck"),
        )
        .args(super::capture_args())
}

fn replay_liveness(draft: &Liveness, is_shown: bool) -> ExitCode {
    if is_shown {
        print!("{draft}");
        return ExitCode::SUCCESS;
    }
    match draft.run() {
        Ok(()) => {
            println!("seed {}: nothing is violated", draft.seed());
            ExitCode::SUCCESS
        }
        Err(error) => super::fail(format!("seed {}: {error}", draft.seed())),
    }
}

/// Carries out `replay`.
pub fn replay(matches: &ArgMatches) -> ExitCode {
    let seed = *matches.get_one::<u64>("seed").expect("a required argument");
    if matches.get_flag("liveness") {
        return replay_liveness(&Liveness::of_seed(seed), matches.get_flag("show"));
    }
    let draft = Draft::of_seed(seed);
    if matches.get_flag("show") {
        print!("{draft}");
        return ExitCode::SUCCESS;
    }
    match draft.run_with(|world| super::begin_capture(matches, world).map_err(SimError::Engine)) {
        Ok(()) => {
            println!("seed {}: nothing is violated", draft.seed);
            ExitCode::SUCCESS
        }
        Err(error) => super::fail(format!("seed {}: {error}", draft.seed)),
    }
}
