//! The metrics of the daemon: a thread that is a client of the daemon's own control socket, as `burst metrics` is, and shows the
//! answers over HTTP. So a scrape has its share of the event loop as every tool's request, and the daemon goes on if the thread
//! waits.

use burst_client::{ClientError, Daemon};
use burst_config::Config;
use burst_metrics::exposition::EngineReport;
use burst_metrics::server::{MetricsReport, MetricsServer};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::info;

/// Name of the thread for the daemon's log.
const PROGRAM: &str = "burst-metrics";
/// How long the daemon may take for each question.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Starts to show metrics, if the configuration says where.
///
/// # Errors
/// A sentence: the place cannot be bound.
pub fn start(config: &Config) -> Result<Option<MetricsServer>, String> {
    let Some(place) = &config.metrics else { return Ok(None) };
    let socket: PathBuf = config.socket.clone();
    let owner = rustix::process::geteuid().as_raw();
    let source = move || ask(&socket).map_err(|e| format!("the daemon does not answer: {e}"));
    let server = MetricsServer::start(place, owner, Box::new(source))?;
    info!(%place, "metrics");
    Ok(Some(server))
}

fn ask(socket: &Path) -> Result<Box<dyn MetricsReport>, ClientError> {
    let report = Daemon::connect_within(socket, PROGRAM, ANSWER_MAX)?.report()?;
    Ok(Box::new(vec![EngineReport { engine: "daemon".into(), report }]))
}
