//! The admin socket: one word comes, one text goes.

use super::{Control, HEARTBEAT};
use crate::exporter::{self, ProxyReport};
use crate::log::{self, ProxyLogLevel};
use crate::message::{Command, ControlMessage};
use crate::stream_failure::StreamFailure;
use crate::sys::EventFlags;
use crate::worker::WorkerSnapshot;
use burst_metrics::exposition::TextFormat;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// Most seconds that a proxy may take to end.
pub const DRAIN_MAX: u64 = 86_400;
/// How long a worker or the asking process may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Changes the level of the log, if one is named, and shows it.
fn log_level(name: &str) -> String {
    match ProxyLogLevel::named(name) {
        Some(level) => log::set_level(level),
        None if name.is_empty() => {}
        None => return format!("error: the levels are {}\n", ProxyLogLevel::NAMES.join(" and ")),
    }
    format!("{}\n", log::level().name())
}

/// When a proxy that is drained ends.
#[derive(Clone, Copy)]
pub(super) struct DrainEnd {
    /// Not before: connections that were taken when it was asked have come to a worker by then.
    after: Instant,
    /// At the latest.
    by: Instant,
}

/// Listens; a socket without a server is replaced.
///
/// # Errors
/// One sentence.
pub(super) fn listen(path: &Path) -> Result<UnixListener, String> {
    let failed = |e: std::io::Error| format!("admin socket {}: {e}", path.display());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    if let Ok(facts) = std::fs::symlink_metadata(path) {
        if !facts.file_type().is_socket() {
            return Err(format!("admin socket {}: there is a file that is no socket", path.display()));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(format!("another proxy serves {}: choose another admin socket", path.display()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    // Others must not connect before the permissions are set: the socket gets its name afterwards.
    let hidden = path.with_extension(format!("new-{}", std::process::id()));
    let listener = UnixListener::bind(&hidden).map_err(failed)?;
    let named = std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&hidden, path));
    if let Err(e) = named {
        let _ = std::fs::remove_file(&hidden);
        return Err(failed(e));
    }
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl Control {
    pub(super) fn answer(&mut self) {
        let mut socket = match self.admin.accept() {
            Ok((socket, _)) => socket,
            Err(e) if crate::sys::no_descriptors(&e) => return self.listen_for(EventFlags::empty()),
            // It has gone again.
            Err(_) => return,
        };
        let mut word = [0; 64];
        let asked = socket
            .set_nonblocking(false)
            .and_then(|()| socket.set_read_timeout(Some(TIMEOUT)))
            .and_then(|()| socket.set_write_timeout(Some(TIMEOUT)))
            .and_then(|()| socket.read(&mut word));
        let Ok(len) = asked else { return };
        let answer = self.answer_to(String::from_utf8_lossy(&word[..len]).trim());
        // The client may have closed the connection.
        let _ = socket.write_all(answer.as_bytes());
    }

    fn answer_to(&mut self, word: &str) -> String {
        let (name, about) = word.split_once(' ').unwrap_or((word, ""));
        match name {
            "show" => format!("{}\n", self.show()),
            "why" => format!("{}\n", self.why()),
            "metrics" => self.report().text(TextFormat::Prometheus, true),
            exporter::ASKED => format!("{}\n", json!(self.report())),
            "log" => log_level(about),
            "drain" => match about.parse() {
                Ok(seconds) if seconds <= DRAIN_MAX => self.drain(Some(Duration::from_secs(seconds))),
                Err(_) if about.is_empty() => self.drain(None),
                _ => format!("error: {about} is no number of seconds up to {DRAIN_MAX}\n"),
            },
            "reload" => self.reload().unwrap_or_else(|why| format!("error: {why}\n")),
            "break-queue-pairs" => {
                self.command_all(|| Command::BreakQueuePairs);
                "queue pairs are broken\n".into()
            }
            other => format!("error: unknown word {other}\n"),
        }
    }

    /// Takes no new connections. `within`: the process ends with the last open stream, at the latest after so long.
    fn drain(&mut self, within: Option<Duration>) -> String {
        self.draining = true;
        self.command_all(|| Command::Drain);
        for peer in 0..self.peers.len() {
            self.send(peer, &ControlMessage::Draining);
        }
        self.update_alive();
        let Some(within) = within else { return "no new connections are taken; open streams go on\n".into() };
        let now = Instant::now();
        // A later request neither takes back what an earlier one has said nor shortens the time that it gave to streams.
        let by = self.end.map_or(now + within.max(HEARTBEAT), |end| end.by);
        self.end.get_or_insert(DrainEnd { after: now + HEARTBEAT, by });
        let left = by.saturating_duration_since(now).as_secs();
        if left > within.as_secs() + 1 {
            return format!("error: the proxy ends already, with its last open stream or in {left} s\n");
        }
        format!("no new connections are taken; the proxy ends with the last open stream, or in {left} s\n")
    }

    /// Whether a proxy that is drained should end now. Streams that are open then are reset by the end of the process.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        let Some(DrainEnd { after, by }) = self.end else { return false };
        if now < after {
            return false;
        }
        let counts = self.ask_workers(Command::CountOpen);
        let open: usize = counts.iter().sum();
        // A worker that does not answer may have streams.
        let is_idle = open == 0 && counts.len() == self.workers.len();
        if !is_idle && now >= by {
            crate::log(format_args!("{open} connections are reset: the time in which they should have ended is over"));
        }
        is_idle || now >= by
    }

    /// What `show` has, and the failures that the workers keep, the latest first.
    fn why(&self) -> Value {
        let now = SystemTime::now();
        let records = self.ask_workers(Command::ShowFailures);
        let mut failures: Vec<StreamFailure> =
            records.iter().flatten().map(|record| StreamFailure::of(record, now)).collect();
        failures.sort_by_key(|failure| failure.ago_ms);
        let mut shown = self.show();
        shown["failures"] = json!(failures);
        shown
    }

    fn snapshots(&self) -> Vec<WorkerSnapshot> {
        self.ask_workers(Command::Show)
    }

    /// The answers of the workers, in their order, without those that do not answer.
    fn ask_workers<T>(&self, question: impl Fn(Sender<T>) -> Command) -> Vec<T> {
        let asked = self.workers.iter().enumerate().map(|(worker, _)| {
            let (to, from) = channel();
            self.command(worker, question(to));
            from
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().filter_map(|from| from.recv_timeout(TIMEOUT).ok()).collect()
    }

    fn counters(&self, snapshots: &[WorkerSnapshot]) -> BTreeMap<&'static str, u64> {
        let of_workers = snapshots.iter().flat_map(|snapshot| snapshot.counters.iter());
        let of_connects = self.interceptions.iter().flat_map(|place| place.interception.counts());
        let mut sums = BTreeMap::new();
        for (counter, value) in of_workers.chain(of_connects) {
            *sums.entry(counter.name()).or_default() += value;
        }
        sums
    }

    fn show(&self) -> Value {
        let snapshots = self.snapshots();
        let peers: Vec<Value> = self
            .peers
            .iter()
            .filter(|peer| !peer.is_removed)
            .map(|peer| {
                json!({
                    "name": peer.name,
                    "address": peer.address.to_string(),
                    "channel": peer.introduction.is_some() && peer.channel.is_some(),
                    "carries": peer.alive,
                    "draining": peer.introduction.as_ref().is_some_and(|i| i.draining),
                    "trouble": peer.complaint,
                    "serves": peer.introduction.iter().flat_map(|i| &i.serves).map(|(ip, bits)| format!("{ip}/{bits}")).collect::<Vec<_>>(),
                })
            })
            .collect();
        let taken_by = self
            .interceptions
            .iter()
            .map(|place| json!({ "namespace": place.namespace, "by": place.interception.name(), "why": place.why }));
        json!({
            "name": self.config.config.name,
            "intercept": taken_by.collect::<Vec<_>>(),
            "draining": self.draining,
            "takes": self.config.config.take.iter().map(|take| json!({ "to": take.to, "ports": take.ports })).collect::<Vec<_>>(),
            "workers": snapshots.len(),
            "peers": peers,
            "links": snapshots.iter().flat_map(|p| &p.links).collect::<Vec<_>>(),
            "streams": snapshots.iter().flat_map(|p| &p.streams).collect::<Vec<_>>(),
            "decisions": snapshots.iter().flat_map(|p| &p.decisions).collect::<Vec<_>>(),
            "counters": self.counters(&snapshots),
        })
    }

    /// What is counted, for metrics.
    fn report(&self) -> ProxyReport {
        let snapshots = self.snapshots();
        let counters = self.counters(&snapshots).into_iter().map(|(name, value)| (name.to_owned(), value));
        let peers = self.peers.iter().filter(|peer| !peer.is_removed).map(|peer| (peer.name.clone(), peer.alive));
        ProxyReport {
            counters: counters.collect(),
            streams: snapshots.iter().map(|snapshot| snapshot.streams.len() as u64).sum(),
            memory: snapshots.iter().flat_map(|snapshot| &snapshot.links).map(|link| link.memory).sum(),
            peers: peers.collect(),
        }
    }
}
