//! The log: lines on stderr, written by `tracing`. A line that cannot be written (a full disk) is lost; the daemon continues.

use crate::{LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;

/// Starts the log, for the life of the process.
pub fn init(level: LogLevel, format: LogFormat) {
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
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
}
