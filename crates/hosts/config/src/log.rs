//! The log: lines on stderr, written by `tracing`. A line that cannot be written (a full disk) is lost; the daemon continues.

use crate::{LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;

/// Starts the log, for the life of the process.
pub fn init(level: LogLevel, format: LogFormat) {
    assert!(try_init(level, format), "the log was started before");
}

/// Starts the log unless it was started before. Returns whether it was started.
pub fn try_init(level: LogLevel, format: LogFormat) -> bool {
    let filter = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(filter).with_writer(std::io::stderr).with_target(false);
    // tracing would report a failed write on stderr, which would panic.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(false).try_init().is_ok(),
        LogFormat::Json => builder.json().try_init().is_ok(),
    }
}
