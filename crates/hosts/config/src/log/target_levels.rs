//! The level of each target of the log: a target is a part of the daemon whose lines a person switches together.
//!
//! `tracing` knows targets by the paths of modules; [`TARGETS`] gives them the names that `burst log` uses. The filter has a row
//! for each target, so that a target whose path begins as another one's keeps its own level.

use crate::LogLevel;
use burst_control::monitor::LogTargetLevel;
use burst_grammar::nearest;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// A part of the daemon.
struct LogTarget {
    /// Its name.
    name: &'static str,
    /// The path of its modules; `None`: whatever is in no other row.
    path: Option<&'static str>,
    /// What its lines are about.
    about: &'static str,
}

/// Every target.
const TARGETS: &[LogTarget] = &[
    LogTarget { name: "burstd", path: Some("burstd"), about: "start and end, clients, supervisor, metrics" },
    LogTarget { name: "host", path: Some("burst_host"), about: "requests and contexts of programs, interfaces" },
    LogTarget { name: "cm", path: Some("burst_host::cm"), about: "connection management, next hops, multicast" },
    LogTarget { name: "urma", path: Some("burst_host::host::urma"), about: "nodes of URMA" },
    LogTarget { name: "port", path: Some("burst_port"), about: "sockets and addresses of ports" },
    LogTarget { name: "dpdk", path: Some("burst_port_dpdk"), about: "devices of DPDK" },
    LogTarget { name: "other", path: None, about: "everything else" },
];

/// The word that brings back the configured level.
const DEFAULT: &str = "default";

/// The names of levels, and what `tracing` calls them.
const LEVELS: &[(&str, LevelFilter)] = &[
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The level of each target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLevels {
    /// As the configuration has it.
    configured: LevelFilter,
    levels: [LevelFilter; TARGETS.len()],
}

impl TargetLevels {
    /// One level for all targets.
    pub fn new(level: LogLevel) -> TargetLevels {
        let configured = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        TargetLevels { configured, levels: [configured; TARGETS.len()] }
    }

    /// For `tracing`.
    pub fn filter(&self) -> Targets {
        let rows = TARGETS.iter().zip(self.levels);
        rows.fold(Targets::new(), |all, (target, level)| match target.path {
            Some(path) => all.with_target(path, level),
            None => all.with_default(level),
        })
    }

    /// For people.
    pub fn state(&self) -> Vec<LogTargetLevel> {
        let row = |(target, level): (&LogTarget, LevelFilter)| LogTargetLevel {
            name: target.name.into(),
            level: level.to_string(),
            about: target.about.into(),
        };
        TARGETS.iter().zip(self.levels).map(row).collect()
    }

    /// These levels with changes in the order of the words: `TARGET=LEVEL`, or `LEVEL` for all targets.
    ///
    /// # Errors
    /// A sentence with the nearest valid word.
    pub fn changed(mut self, words: &str) -> Result<TargetLevels, String> {
        let mut any = false;
        for word in words.split([' ', ',']).filter(|word| !word.is_empty()) {
            any = true;
            match word.split_once('=') {
                None => self.levels = [self.level(word)?; TARGETS.len()],
                Some((name, level)) => self.levels[target(name)?] = self.level(level)?,
            }
        }
        any.then_some(self).ok_or_else(|| "no level: write host=debug, or one level for all targets".into())
    }

    fn level(&self, word: &str) -> Result<LevelFilter, String> {
        let names = || LEVELS.iter().map(|(name, _)| *name).chain([DEFAULT]);
        let found = LEVELS.iter().find(|(name, _)| *name == word).map(|(_, level)| *level);
        found.or((word == DEFAULT).then_some(self.configured)).ok_or_else(|| {
            let near = nearest(word, names()).unwrap_or(DEFAULT);
            let all: Vec<&str> = names().collect();
            format!("{word:?} is no level: {}; the nearest valid one is {near:?}", all.join(", "))
        })
    }
}

/// The row of a target.
fn target(name: &str) -> Result<usize, String> {
    TARGETS.iter().position(|target| target.name == name).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let near = nearest(name, names.iter().copied()).unwrap_or(names[0]);
        format!("{name:?} is no target: {}; the nearest valid one is {near:?}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_change_is_of_its_target_alone() {
        let levels = TargetLevels::new(LogLevel::Info).changed("port=debug cm=error").expect("valid words");
        let filter = levels.filter();
        let shows = |target: &str, level| filter.would_enable(target, &level);
        assert!(shows("burst_port::udp::socks", Level::DEBUG) && !shows("burst_port::udp", Level::TRACE));
        // Its path begins as that of the port.
        assert!(!shows("burst_port_dpdk::eal", Level::DEBUG) && shows("burst_port_dpdk::eal", Level::INFO));
        assert!(!shows("burst_host::cm::commands", Level::WARN) && shows("burst_host::session", Level::INFO));
        assert!(shows("rustls::conn", Level::INFO) && !shows("rustls::conn", Level::DEBUG), "in no row");
        let rows = levels.state();
        assert_eq!(
            rows.iter().map(|row| row.level.as_str()).collect::<Vec<_>>().join(" "),
            "info info error info debug info info"
        );
    }

    #[test]
    fn words_work_in_their_order_and_default_is_the_configured_level() {
        let levels = TargetLevels::new(LogLevel::Warn);
        let debug = levels.changed("debug,host=trace").expect("valid words");
        assert_eq!((debug.levels[0], debug.levels[1]), (LevelFilter::DEBUG, LevelFilter::TRACE));
        assert_eq!(debug.changed("default"), Ok(levels));
        assert_eq!(debug.changed("host=debug debug"), debug.changed("debug"));
    }

    #[test]
    fn a_wrong_word_changes_nothing_and_gets_the_nearest() {
        let levels = TargetLevels::new(LogLevel::Info);
        for (words, near) in
            [("prot=debug", "\"port\""), ("port=dbug", "\"debug\""), ("inof", "\"info\""), (" ,", "host=debug")]
        {
            let why = levels.changed(words).expect_err(words);
            assert!(why.contains(near), "{why}");
        }
    }
}
