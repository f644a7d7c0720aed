//! Metrics of the proxy over HTTP (`burst proxy run --metrics`): the server of `burst_metrics`, with its limits, in a thread
//! that asks the admin socket as `burst proxy` does.
//!
//! Over TCP anybody may look, and a socket file is open to every user of the host: both see totals. Names of peers are shown to
//! root and to the user who runs the proxy, by a socket file.

use burst_control::metrics_place::MetricsPlace;
use burst_metrics::audience::Audience;
use burst_metrics::exposition::TextFormat;
use burst_metrics::server::{MetricsReport, MetricsServer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The word to the admin socket.
pub const ASKED: &str = "report";
/// How long the proxy may take for its report: longer than it waits for its workers.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// Longest report that is read.
const ANSWER_BYTES: u64 = 4 << 20;

/// What a proxy counts, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyReport {
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Open streams.
    pub streams: u64,
    /// Bytes of memory for streams.
    pub memory: u64,
    /// Peers by name: whether each carries connections.
    pub peers: BTreeMap<String, bool>,
}

impl ProxyReport {
    /// The report as text; peers only if they are to be named.
    pub fn text(&self, format: TextFormat, names_peers: bool) -> String {
        let mut text = String::new();
        for (name, value) in &self.counters {
            let head = match format {
                TextFormat::OpenMetrics => "",
                TextFormat::Prometheus => "_total",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# TYPE burst_proxy_{name}{head} counter\nburst_proxy_{name}_total {value}");
        }
        let peers = self.peers.values().filter(|carries| **carries).count() as u64;
        for (name, value) in [("streams", self.streams), ("memory_bytes", self.memory), ("peers_that_carry", peers)] {
            let _ = writeln!(text, "# TYPE burst_proxy_{name} gauge\nburst_proxy_{name} {value}");
        }
        if names_peers {
            text += "# TYPE burst_proxy_peer_carries gauge\n";
            for (peer, carries) in &self.peers {
                let _ = writeln!(text, "burst_proxy_peer_carries{{peer=\"{}\"}} {}", escaped(peer), u8::from(*carries));
            }
        }
        if format == TextFormat::OpenMetrics {
            text += "# EOF\n";
        }
        text
    }
}

impl MetricsReport for ProxyReport {
    fn page(&self, audience: Audience, format: TextFormat) -> Result<String, String> {
        Ok(self.text(format, audience == Audience::All))
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Shows the metrics of the proxy with this admin socket, if there is a place, until the server is dropped.
///
/// # Errors
/// A sentence: the place cannot be bound.
pub fn start(place: Option<&MetricsPlace>, admin: PathBuf) -> Result<Option<MetricsServer>, String> {
    let Some(place) = place else { return Ok(None) };
    let owner = rustix::process::geteuid().as_raw();
    let source = move || {
        let report = ask(&admin).map_err(|e| format!("the proxy does not answer: {e}"))?;
        Ok(Box::new(report) as Box<dyn MetricsReport>)
    };
    MetricsServer::start(place, owner, Box::new(source)).map(Some)
}

fn ask(admin: &Path) -> std::io::Result<ProxyReport> {
    let mut socket = UnixStream::connect(admin)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    socket.set_write_timeout(Some(ANSWER_MAX))?;
    socket.write_all(ASKED.as_bytes())?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> ProxyReport {
        let peers = [("west".to_owned(), true), ("a \"b\\".to_owned(), false)];
        let counters = [("streams_opened".to_owned(), 7)];
        ProxyReport { counters: counters.into(), streams: 3, memory: 4096, peers: peers.into() }
    }

    #[test]
    fn the_formats_differ_in_heads_and_in_the_end() {
        let old = report().text(TextFormat::Prometheus, true);
        let head = "# TYPE burst_proxy_streams_opened_total counter\nburst_proxy_streams_opened_total 7\n";
        assert!(old.starts_with(head) && !old.contains("EOF"), "{old}");
        let open = report().text(TextFormat::OpenMetrics, true);
        let head = "# TYPE burst_proxy_streams_opened counter\nburst_proxy_streams_opened_total 7\n";
        assert!(open.starts_with(head) && open.ends_with("# EOF\n"), "{open}");
        assert!(open.contains(r#"burst_proxy_peer_carries{peer="a \"b\\"} 0"#), "{open}");
    }

    #[test]
    fn only_root_and_the_owner_see_names_of_peers() {
        for (audience, sees) in [(Audience::All, true), (Audience::User(1001), false), (Audience::Anybody, false)] {
            let page = report().page(audience, TextFormat::Prometheus).expect("text");
            assert_eq!(page.contains("west"), sees, "{audience:?}");
            assert!(page.contains("burst_proxy_peers_that_carry 1\n") && page.contains("burst_proxy_streams 3\n"));
        }
    }
}
