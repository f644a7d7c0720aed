//! The configuration of a host: flags over environment over TOML file over defaults, for a daemon and for a host inside a
//! program, which has no flags.
//!
//! One table (`keys::KEYS`) lists every key: its flag, variable, place in the file, type, default, range and help.
//! Clap's arguments, the reading of the environment and of the file, and `docs/configuration.md` are derived from
//! it; a test keeps the document in step. [`environment`] lists the variables that are no keys. An error is one sentence with
//! the place, the mistake and the nearest valid word, and exit code 2. The daemon does not start with a configuration that it had
//! to guess.

#![forbid(unsafe_code)]

pub mod environment;
mod file;
mod keys;
pub mod log;
mod removed;
mod value;

use burst_args::ArgsRefusal;
use burst_cc::{CcChoice, CcTable, ChoiceRank, PeerKind};
use burst_control::metrics_place::MetricsPlace;
use burst_host::{AccountBy, HostOptions, Policy, WorkerMode};
use keys::{ConfigKey, KEYS, KeyId, NumberKey, TextKey};
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use value::{ConfigValue, ValueKind};

/// The daemon's settings, all checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Control socket. The server creates its directory if it is missing (mode 0755 for root, else 0700).
    pub socket: PathBuf,
    /// Permission bits of the control socket.
    pub socket_mode: u32,
    /// Ports, workers and windows.
    pub host: HostOptions,
    /// The daemon ends when no program has been connected for this long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Descriptor that gets one line (`ready\n`) when the daemon serves and is closed then.
    pub ready_fd: Option<RawFd>,
    /// Descriptor at whose end of file the daemon ends.
    pub end_with_fd: Option<RawFd>,
    /// Whether a supervisor starts a successor when the daemon falls.
    pub guarded: bool,
    /// Directory of crash reports; `None`: the default one.
    pub state_dir: Option<PathBuf>,
    /// Where metrics are shown; `None`: nowhere.
    pub metrics: Option<MetricsPlace>,
    /// Least severe line that is logged.
    pub log_level: LogLevel,
    /// Format of log lines.
    pub log_format: LogFormat,
}

impl Config {
    /// The settings that decide which sockets the daemon opens, as one word: a successor with other settings opens its own.
    pub fn socket_settings(&self) -> String {
        let mut hasher = std::hash::DefaultHasher::new();
        (&self.host.ports, self.host.workers, self.host.lend).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
    /// The sentence to log if the window is smaller than the smallest one and therefore raised.
    pub fn raised_window(&self) -> Option<String> {
        let (wanted, used) = (self.host.window_bytes, self.host.window_in_force());
        let show = |bytes: u32| burst_grammar::show_bytes(bytes.into());
        (used != wanted).then(|| {
            format!("window: {} is raised to {}, the smallest window of a peer address", show(wanted), show(used))
        })
    }
}

/// Severities of log lines, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// An operation of the daemon has failed.
    Error,
    /// A condition that a person should know.
    Warn,
    /// Start, stop, clients, refusals.
    Info,
    /// Requests, objects and states.
    Debug,
    /// Everything.
    Trace,
}

/// Formats of log lines, both on stderr.
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
/// The exit code; the sentence, the help or the version has been printed.
pub fn load() -> Result<Config, ExitCode> {
    let env = |name: &str| std::env::var_os(name);
    read_from(std::env::args_os(), &env).map_err(|refusal| ExitCode::from(refusal.print()))
}

/// Reads environment and file for a host inside this process: one worker, which has no thread. Keys of a daemon alone have no
/// effect.
///
/// # Errors
/// One sentence.
pub fn for_this_process() -> Result<Config, String> {
    let env = |name: &str| std::env::var_os(name);
    let words = [OsString::from("burst")];
    let read = read_from(words, &env).map_err(|refusal| match refusal {
        ArgsRefusal::Wrong(sentence) => sentence.trim_start_matches("burstd: ").to_owned(),
        other => format!("{other:?}"),
    });
    let mut config = read?;
    (config.host.workers, config.host.worker_mode) = (1, WorkerMode::InPlace);
    Ok(config)
}

/// Reads the flags in `words`, whose first is the program's name, the variables that `env` returns, and the file.
///
/// # Errors
/// What is to be printed: help or version, or one sentence.
pub fn read_from(words: impl IntoIterator<Item = OsString>, env: Env) -> Result<Config, ArgsRefusal> {
    let wrong = |sentence| ArgsRefusal::Wrong(format!("burstd: {sentence}"));
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(sentence) = removed::find(&words, env) {
        return Err(wrong(sentence));
    }
    resolve(&burst_args::check(command(), words)?, env).map_err(wrong)
}

/// The command line, one argument per row of the table.
pub fn command() -> clap::Command {
    let about = "The Burst daemon: carries RoCEv2 for the verbs programs of this host";
    let long_about = "The Burst daemon: carries RoCEv2 for the verbs programs of this host.\n\n\
        It stays in the foreground and logs to stderr; `burst run` starts one for you when none runs.";
    let config = clap::Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("TOML file to read [default: $XDG_CONFIG_HOME/burst/burstd.toml, else /etc/burst/burstd.toml, if there]");
    let base = clap::Command::new("burstd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .long_about(long_about)
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
        .num_args(if matches!(key.kind, ValueKind::Switch) { 0..=1 } else { 1..=1 })
        .require_equals(matches!(key.kind, ValueKind::Switch))
        .default_missing_value("on")
        .action(if key.many { clap::ArgAction::Append } else { clap::ArgAction::Set })
}

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads every key by precedence and makes the configuration.
fn resolve(matches: &clap::ArgMatches, env: Env) -> Result<Config, String> {
    let chosen = matches.get_one::<String>("config").map(PathBuf::from);
    let file = file::read(chosen, env)?;
    let values = KEYS.iter().map(|key| key_values(key, matches, env, &file)).collect::<Result<Vec<_>, _>>()?;
    Ok(assemble(&ConfigValues(values)))
}

/// Whether a variable is empty, or has spaces only. It counts as not set then.
fn is_blank(value: &OsStr) -> bool {
    value.to_str().is_some_and(|text| text.trim().is_empty())
}

/// The values of one key, from the first source that sets it.
fn key_values(
    key: &ConfigKey,
    matches: &clap::ArgMatches,
    env: Env,
    file: &file::ConfigFile,
) -> Result<Vec<ConfigValue>, String> {
    let (source, texts): (String, Vec<String>) = if let Some(given) = matches.get_many::<String>(key.name) {
        (format!("--{}", key.flag), given.cloned().collect())
    } else if let Some(set) = env(key.env).filter(|v| !is_blank(v)) {
        let text = set.into_string().map_err(|_| format!("{} is not UTF-8", key.env))?;
        (key.env.to_owned(), if key.many { text.split_whitespace().map(str::to_owned).collect() } else { vec![text] })
    } else if let Some((place, texts)) = file.get(key.name) {
        (format!("{place}: {}", key.name), texts)
    } else if key.default.is_empty() {
        return Ok(Vec::new());
    } else {
        ("default".to_owned(), vec![key.default.to_owned()])
    };
    let wrong = |text: &str, why| removed::refusal(&source, key.name, Some(text)).unwrap_or(format!("{source}: {why}"));
    texts.iter().map(|text| key.kind.read(text).map_err(|why| wrong(text, why))).collect()
}

/// The checked values of each key, in the order of [`KEYS`].
struct ConfigValues(Vec<Vec<ConfigValue>>);

impl ConfigValues {
    /// The number that a key is set to; `None` if it is not set and has no default.
    fn number(&self, key: NumberKey) -> Option<u64> {
        match self.0[key.index()].first()? {
            ConfigValue::Number(number) => Some(*number),
            ConfigValue::Text(text) => unreachable!("{key:?} has the value {text:?}"),
        }
    }
    /// The number of a key that has a default.
    fn number_or_default(&self, key: NumberKey) -> u64 {
        self.number(key).expect("the key has a default")
    }
    /// The texts that a key is set to.
    fn texts(&self, key: TextKey) -> impl Iterator<Item = &str> {
        self.0[key.index()].iter().map(move |value| match value {
            ConfigValue::Text(text) => text.as_str(),
            ConfigValue::Number(number) => unreachable!("{key:?} has the value {number}"),
        })
    }
    /// The first text that a key is set to.
    fn text(&self, key: TextKey) -> Option<&str> {
        self.texts(key).next()
    }
}

const SOCKET: TextKey = TextKey::new(KeyId::Socket);
const SOCKET_MODE: NumberKey = NumberKey::new(KeyId::SocketMode);
const PORT: TextKey = TextKey::new(KeyId::Port);
const WORKERS: NumberKey = NumberKey::new(KeyId::Workers);
const SPIN: NumberKey = NumberKey::new(KeyId::Spin);
const WINDOW: NumberKey = NumberKey::new(KeyId::Window);
const CC: TextKey = TextKey::new(KeyId::Cc);
const CC_KINDS: [(PeerKind, TextKey); 3] = [
    (PeerKind::Standard, TextKey::new(KeyId::CcStandard)),
    (PeerKind::Burst, TextKey::new(KeyId::CcBurst)),
    (PeerKind::Loopback, TextKey::new(KeyId::CcLoopback)),
];
const SELECTIVE_REPEAT: NumberKey = NumberKey::new(KeyId::SelectiveRepeat);
const URMA_LANES: NumberKey = NumberKey::new(KeyId::UrmaLanes);
const URMA_CAQM: NumberKey = NumberKey::new(KeyId::UrmaCaqm);
const URMA_HOLD: NumberKey = NumberKey::new(KeyId::UrmaHold);
const GPU: NumberKey = NumberKey::new(KeyId::Gpu);
const PACKET_RING: NumberKey = NumberKey::new(KeyId::PacketRing);
const IDLE_EXIT: NumberKey = NumberKey::new(KeyId::IdleExit);
const READY_FD: NumberKey = NumberKey::new(KeyId::ReadyFd);
const END_WITH_FD: NumberKey = NumberKey::new(KeyId::EndWithFd);
const USER_SHARE: NumberKey = NumberKey::new(KeyId::UserShare);
const USER_RESERVE: NumberKey = NumberKey::new(KeyId::UserReserve);
const RTO: TextKey = TextKey::new(KeyId::Rto);
const ACCOUNT_BY: TextKey = TextKey::new(KeyId::AccountBy);
const ACCOUNT_DEPTH: NumberKey = NumberKey::new(KeyId::AccountDepth);
const SUBUID_FILE: TextKey = TextKey::new(KeyId::SubuidFile);
const LEND: TextKey = TextKey::new(KeyId::Lend);
const GUARDED: NumberKey = NumberKey::new(KeyId::Guarded);
const STATE_DIR: TextKey = TextKey::new(KeyId::StateDir);
const METRICS: TextKey = TextKey::new(KeyId::Metrics);
const LOG_LEVEL: TextKey = TextKey::new(KeyId::LogLevel);
const LOG_FORMAT: TextKey = TextKey::new(KeyId::LogFormat);

/// The congestion control for each kind of peer. The texts were read before; the window is that of a key of its own.
fn congestion_control(values: &ConfigValues) -> CcTable {
    let choice = |key| values.text(key).and_then(|text| CcChoice::parse(text, 0, ChoiceRank::Configured).ok());
    let mut table = CcTable::default();
    choice(CC).into_iter().for_each(|of_all| table.set(None, of_all));
    for (kind, key) in CC_KINDS {
        choice(key).into_iter().for_each(|of_kind| table.set(Some(kind), of_kind));
    }
    table
}

fn assemble(values: &ConfigValues) -> Config {
    let idle_ns = values.number_or_default(IDLE_EXIT);
    Config {
        socket: values.text(SOCKET).map_or_else(burst_control::socket_path::daemon_socket, PathBuf::from),
        socket_mode: values.number_or_default(SOCKET_MODE) as u32,
        host: HostOptions {
            ports: values.texts(PORT).map(str::to_owned).collect(),
            workers: values.number_or_default(WORKERS) as usize,
            worker_mode: WorkerMode::Threads,
            spin: Duration::from_nanos(values.number_or_default(SPIN)),
            window_bytes: values.number_or_default(WINDOW) as u32,
            cc: congestion_control(values),
            selective: values.number_or_default(SELECTIVE_REPEAT) == 1,
            rto: values.text(RTO).and_then(|word| word.parse().ok()).unwrap_or_default(),
            urma_lanes: values.number_or_default(URMA_LANES) as u8,
            urma_caqm: values.number_or_default(URMA_CAQM) == 1,
            hold_urma: values.number_or_default(URMA_HOLD) == 1,
            gpu: values.number_or_default(GPU) == 1,
            packet_ring: values.number_or_default(PACKET_RING) == 1,
            policy: Policy {
                share_percent: values.number_or_default(USER_SHARE) as u8,
                reserve_percent: values.number_or_default(USER_RESERVE) as u8,
            },
            account_by: match values.text(ACCOUNT_BY) {
                Some("cgroup") => AccountBy::ControlGroup,
                _ => AccountBy::User,
            },
            account_depth: values.number_or_default(ACCOUNT_DEPTH) as usize,
            subordinate_ids: values.text(SUBUID_FILE).map(PathBuf::from),
            lend: values.text(LEND) == Some("same-user"),
            lent: None,
            seed: None,
        },
        idle_exit: (idle_ns != 0).then(|| Duration::from_nanos(idle_ns)),
        ready_fd: values.number(READY_FD).map(|fd| fd as RawFd),
        end_with_fd: values.number(END_WITH_FD).map(|fd| fd as RawFd),
        guarded: values.number_or_default(GUARDED) == 1,
        state_dir: values.text(STATE_DIR).map(PathBuf::from),
        // The text was read before.
        metrics: values.text(METRICS).and_then(|text| text.parse().ok()),
        log_level: match values.text(LOG_LEVEL) {
            Some("error") => LogLevel::Error,
            Some("warn") => LogLevel::Warn,
            Some("debug") => LogLevel::Debug,
            Some("trace") => LogLevel::Trace,
            _ => LogLevel::Info,
        },
        log_format: if values.text(LOG_FORMAT) == Some("json") { LogFormat::Json } else { LogFormat::Text },
    }
}

#[cfg(test)]
mod tests;
