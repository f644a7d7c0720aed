//! What the daemon was told: flags over environment over TOML file over defaults.
//!
//! One table ([`keys::KEYS`]) lists every key: its flag, variable, place in the file, type, default, range and help.
//! Clap's arguments, the reading of the environment and of the file, and `docs/configuration.md` are derived from
//! it; a test keeps the document in step. Something wrong gets one sentence that names where it was written, what is
//! wrong and the nearest valid word, and exit code 2; the daemon never starts on a guess.

mod file;
mod keys;
mod value;

use burst_host::HostOptions;
use keys::{ConfigKey, KEYS};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use value::ConfigValue;

/// The daemon's settings, all checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Control socket. Its directory is made by the server if it is missing (mode 0755 for root, else 0700).
    pub socket: PathBuf,
    /// Permission bits of the control socket.
    pub socket_mode: u32,
    /// Ports, workers and windows.
    pub host: HostOptions,
    /// End when no program has been connected for so long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Descriptor that gets one line (`ready\n`) when the daemon serves, and is closed then.
    pub ready_fd: Option<RawFd>,
    /// Least severe line that is logged.
    pub log_level: LogLevel,
    /// Shape of log lines.
    pub log_format: LogFormat,
}

/// Severities, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is odd.
    Warn,
    /// Start, stop, clients.
    Info,
    /// Objects and states.
    Debug,
    /// Everything.
    Trace,
}

/// Shapes of log lines, both on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Reads flags, environment and file of this process.
///
/// # Errors
/// The exit code; the sentence (or help, or version) has been printed.
pub fn load() -> Result<Config, ExitCode> {
    let env = |name: &str| std::env::var_os(name);
    let matches = burst_args::parse(command(), std::env::args_os()).map_err(ExitCode::from)?;
    resolve(&matches, &env).map_err(|sentence| {
        eprintln!("burstd: {sentence}");
        ExitCode::from(burst_args::EXIT_USAGE)
    })
}

/// The command line, one argument per row of the table.
fn command() -> clap::Command {
    let about = "The Burst daemon: carries RoCEv2 for the verbs programs of this host.\n\n\
        It stays in the foreground and logs to stderr; `burst run` starts one for you when none runs.";
    let config = clap::Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("TOML file to read [default: $XDG_CONFIG_HOME/burst/burstd.toml, else /etc/burst/burstd.toml, if there]");
    let base = clap::Command::new("burstd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .after_help("Each key can also be given as an environment variable or in the file; a flag wins over a variable, a variable over the file.")
        .arg(config);
    KEYS.iter().fold(base, |command, key| command.arg(argument(key)))
}

fn argument(key: &'static ConfigKey) -> clap::Arg {
    let default = if key.default.is_empty() { String::new() } else { format!(", default: {}", key.default) };
    clap::Arg::new(key.name)
        .long(key.flag)
        .value_name(key.kind.placeholder())
        .help(format!("{} [env: {}{default}]", key.help, key.env))
        .allow_hyphen_values(true)
        .action(if key.many { clap::ArgAction::Append } else { clap::ArgAction::Set })
}

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Every key's value by precedence, then the typed whole.
fn resolve(matches: &clap::ArgMatches, env: Env) -> Result<Config, String> {
    let chosen = matches.get_one::<String>("config").map(PathBuf::from);
    let file = file::read(chosen, env)?;
    let mut values = BTreeMap::new();
    for key in KEYS {
        values.insert(key.name, key_values(key, matches, env, &file)?);
    }
    Ok(assemble(&ConfigValues(values)))
}

/// What one key was set to: the first source that names it.
fn key_values(
    key: &ConfigKey,
    matches: &clap::ArgMatches,
    env: Env,
    file: &file::ConfigFile,
) -> Result<Vec<ConfigValue>, String> {
    let (source, texts): (String, Vec<String>) = if let Some(given) = matches.get_many::<String>(key.name) {
        (format!("--{}", key.flag), given.cloned().collect())
    } else if let Some(set) = env(key.env).filter(|v| !v.is_empty()) {
        let text = set.into_string().map_err(|_| format!("{} is not UTF-8", key.env))?;
        (key.env.to_owned(), if key.many { text.split_whitespace().map(str::to_owned).collect() } else { vec![text] })
    } else if let Some((place, texts)) = file.get(key.name) {
        (format!("{place}: {}", key.name), texts)
    } else if key.default.is_empty() {
        return Ok(Vec::new());
    } else {
        ("default".to_owned(), vec![key.default.to_owned()])
    };
    texts.iter().map(|t| key.kind.read(t).map_err(|why| format!("{source}: {why}"))).collect()
}

/// Checked values by key name.
struct ConfigValues(BTreeMap<&'static str, Vec<ConfigValue>>);

impl ConfigValues {
    fn first(&self, name: &str) -> Option<&ConfigValue> {
        self.0.get(name).and_then(|v| v.first())
    }
    fn number(&self, name: &str) -> u64 {
        self.first(name).map_or(0, ConfigValue::number)
    }
    fn text(&self, name: &str) -> &str {
        self.first(name).map_or("", ConfigValue::text)
    }
}

fn assemble(values: &ConfigValues) -> Config {
    let socket = match values.first("socket") {
        Some(path) => PathBuf::from(path.text()),
        None => burst_control::socket_path::daemon_socket(),
    };
    let idle_ns = values.number("idle_exit");
    let ports = values.0.get("port").map(|v| v.iter().map(|p| p.text().to_owned()).collect());
    Config {
        socket,
        socket_mode: values.number("socket_mode") as u32,
        host: HostOptions {
            ports: ports.unwrap_or_default(),
            workers: values.number("workers") as usize,
            spin: Duration::from_nanos(values.number("spin")),
            window_bytes: values.number("window") as u32,
            seed: None,
        },
        idle_exit: (idle_ns != 0).then(|| Duration::from_nanos(idle_ns)),
        ready_fd: values.first("ready_fd").map(|v| v.number() as RawFd),
        log_level: match values.text("log.level") {
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "debug" => LogLevel::Debug,
            "trace" => LogLevel::Trace,
            _ => LogLevel::Info,
        },
        log_format: if values.text("log.format") == "json" { LogFormat::Json } else { LogFormat::Text },
    }
}

#[cfg(test)]
mod tests;
