//! The HTTP server: one thread, which sleeps until a scraper comes.
//!
//! The thread is a client of its host, as every tool: it asks for a report when it is scraped, and the host gives it its share of
//! time. Reports, and the pages made of them, are kept for [`REPORT_KEPT`], so that scrapers cannot make the host do more than
//! that. Connections are bounded, in number ([`OpenPool::Scraper`]) and in time
//! ([`crate::connection::LIFE_MAX`]): a scrape that stalls is cut off, and does not delay others.

use crate::audience::Audience;
use crate::connection::{Asked, BodyWanted, Progress, ScraperConnection, ScraperSource, displaced};
use crate::exposition::{EngineReport, TextFormat, write};
use burst_control::metrics_place::MetricsPlace;
use burst_ledger::OpenPool;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a report is shown.
pub const REPORT_KEPT: Duration = Duration::from_millis(250);
/// Pages of one report that are kept: one for each format and kind of audience, and for some users.
const PAGES_KEPT: usize = 16;
/// Connections that are accepted in one pass.
const ACCEPTS_AT_ONCE: usize = 256;
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What was reported, before it is known who asks.
pub trait MetricsReport: Send {
    /// The page that an audience sees.
    ///
    /// # Errors
    /// A sentence.
    fn page(&self, audience: Audience, format: TextFormat) -> Result<String, String>;
}

impl MetricsReport for Vec<EngineReport> {
    fn page(&self, audience: Audience, format: TextFormat) -> Result<String, String> {
        let mut reports = self.clone();
        reports.iter_mut().for_each(|engine| audience.restrict(&mut engine.report));
        write(&reports, format).map_err(|e| format!("cannot write the metrics: {e}"))
    }
}

/// What gets reports: asks hosts, within a bounded time.
pub type ReportSource = Box<dyn FnMut() -> Result<Box<dyn MetricsReport>, String> + Send>;

/// A server of metrics, until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    /// Its end ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The socket file to be removed.
    file: Option<std::path::PathBuf>,
}

impl MetricsServer {
    /// Listens at a place and starts the thread. `owner` is the user who sees all, beside root.
    ///
    /// # Errors
    /// A sentence: the place cannot be bound, or the system starts no thread.
    pub fn start(place: &MetricsPlace, owner: u32, source: ReportSource) -> Result<MetricsServer, String> {
        let listener = place.listen()?;
        let (stop, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(reader, writer)| (writer, reader))
            .map_err(|e| format!("cannot make a pipe: {e}"))?;
        let mut state = ServerLoop::new(listener, owner, source);
        let body = move || while state.pass(Some(&ours)) {};
        let thread = std::thread::Builder::new().name("burst-metrics".into()).spawn(body);
        let thread = thread.map_err(|e| format!("cannot start a thread for metrics: {e}"))?;
        let file = match place {
            MetricsPlace::Unix(path) => Some(path.clone()),
            MetricsPlace::Tcp(_) => None,
        };
        Ok(MetricsServer { stop: Some(stop), thread: Some(thread), file })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
        if let Some(file) = &self.file {
            // It may have been removed, or replaced, by others.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Serves in the calling thread, for ever.
///
/// # Errors
/// A sentence: the place cannot be bound.
pub fn serve(place: &MetricsPlace, owner: u32, source: ReportSource) -> Result<std::convert::Infallible, String> {
    let mut state = ServerLoop::new(place.listen()?, owner, source);
    loop {
        state.pass(None);
    }
}

/// Reports, and the pages that were made of them.
struct KeptReports {
    made: Instant,
    report: Result<Box<dyn MetricsReport>, String>,
    pages: Vec<(Audience, TextFormat, Arc<str>)>,
}

impl KeptReports {
    /// The page that an audience sees.
    fn page(&mut self, audience: Audience, format: TextFormat) -> Result<Arc<str>, String> {
        if let Some((.., page)) = self.pages.iter().find(|(of, form, _)| (*of, *form) == (audience, format)) {
            return Ok(page.clone());
        }
        let report = self.report.as_ref().map_err(String::clone)?;
        let page: Arc<str> = report.page(audience, format)?.into();
        if self.pages.len() < PAGES_KEPT {
            self.pages.push((audience, format, page.clone()));
        }
        Ok(page)
    }
}

/// A number that no scraper can foresee: the keys of the hash are random.
fn random() -> usize {
    RandomState::new().build_hasher().finish() as usize
}

struct ServerLoop {
    listener: OwnedFd,
    owner: u32,
    source: ReportSource,
    /// The oldest first.
    connections: Vec<ScraperConnection>,
    /// The last reports.
    kept: Option<KeptReports>,
    /// No connection is accepted before.
    accept_from: Instant,
}

impl ServerLoop {
    fn new(listener: OwnedFd, owner: u32, source: ReportSource) -> ServerLoop {
        ServerLoop { listener, owner, source, connections: Vec::new(), kept: None, accept_from: Instant::now() }
    }

    /// Sleeps until something is ready, and does it. Returns false at the end of `stop`.
    fn pass(&mut self, stop: Option<&OwnedFd>) -> bool {
        let (stopped, accepts, ready) = self.wait(stop);
        if stopped {
            return false;
        }
        let now = Instant::now();
        // From the last to the first, so that removing one does not move those still to be looked at.
        for (at, is_ready) in ready.iter().enumerate().rev() {
            let is_over = *is_ready && self.advance(at) || self.connections[at].until <= now;
            if is_over {
                self.connections.remove(at);
            }
        }
        if accepts {
            // As many as wait, so that one who connects again and again does not fill the queue of the listener.
            let more = (0..ACCEPTS_AT_ONCE).take_while(|_| self.accept(now));
            let _ = more.count();
        }
        true
    }

    /// Whether the server is to end, whether a scraper has connected, and which connections are ready.
    fn wait(&self, stop: Option<&OwnedFd>) -> (bool, bool, Vec<bool>) {
        let now = Instant::now();
        let may_accept = self.accept_from <= now;
        let (listens, none) = (if may_accept { PollFlags::IN } else { PollFlags::empty() }, PollFlags::empty());
        let mut fds = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), listens)];
        fds.extend(self.connections.iter().map(|connection| {
            let flags = if connection.is_answering() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(connection.fd(), flags)
        }));
        fds.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop.as_fd(), none)));
        let ends = self.connections.iter().map(|connection| connection.until);
        let until = ends.chain((!may_accept).then_some(self.accept_from)).min();
        let timeout = until.map(|until| {
            // Rounded up: a pass before the time would find nothing to do.
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        // An interrupted poll is a pass in which nothing is ready.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return (false, false, vec![false; self.connections.len()]);
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let stopped = stop.is_some() && ready.last() == Some(&true);
        (stopped, may_accept && ready[0], ready[1..=self.connections.len()].to_vec())
    }

    /// Accepts a connection; returns whether one was there.
    fn accept(&mut self, now: Instant) -> bool {
        match acceptfrom_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok((socket, from)) => {
                let (source, audience) = self.scraper(&socket, from);
                let sources: Vec<ScraperSource> = self.connections.iter().map(|connection| connection.source).collect();
                let gone = displaced(&sources, source, OpenPool::Scraper, random());
                if let Some(at) = gone {
                    self.connections.remove(at);
                }
                self.connections.push(ScraperConnection::new(socket, source, audience, now));
                debug_assert!(self.connections.len() <= OpenPool::Scraper.places());
                // Its request may have come already: then it needs no place for long, and the next one displaces it no more.
                // Whose places are all in use waits for its turn: to make an answer takes longer than to accept.
                let at = self.connections.len() - 1;
                if gone.is_none() && self.advance(at) {
                    self.connections.remove(at);
                }
                return true;
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => self.accept_from = now + ACCEPT_PAUSE,
            // None is left, or it has gone again.
            Err(_) => {}
        }
        false
    }

    /// Whom a connection comes from. The kernel names the user of a socket in the file system, and no user over TCP.
    fn scraper(&self, socket: &OwnedFd, from: Option<SocketAddrAny>) -> (ScraperSource, Audience) {
        if let Some(address) = from.and_then(|any| SocketAddr::try_from(any).ok()) {
            let number = match address.ip().to_canonical() {
                IpAddr::V4(v4) => u128::from(v4.to_bits()),
                IpAddr::V6(v6) => v6.to_bits() >> 64 << 64,
            };
            return (ScraperSource::Address(number), Audience::Anybody);
        }
        match socket_peercred(socket) {
            Ok(peer) => {
                let uid = peer.uid.as_raw();
                (ScraperSource::User(uid), Audience::of_user(uid, self.owner))
            }
            Err(_) => (ScraperSource::User(u32::MAX), Audience::Anybody),
        }
    }

    /// Goes on with a connection that is ready. Returns whether it is over.
    fn advance(&mut self, at: usize) -> bool {
        let progress = match self.connections[at].advance() {
            Progress::Asks(asked) => self.answer(at, asked),
            other => other,
        };
        progress == Progress::Over
    }

    fn answer(&mut self, at: usize, asked: Asked) -> Progress {
        const TEXT: &str = "text/plain; charset=utf-8";
        let (format, wanted) = match asked {
            Asked::Other(status, sentence) => {
                return self.connections[at].answer(status, TEXT, sentence, BodyWanted::Yes);
            }
            Asked::Metrics(format, wanted) => (format, wanted),
        };
        let audience = self.connections[at].audience;
        let page = self.reports().page(audience, format);
        let connection = &mut self.connections[at];
        match page {
            Ok(page) => connection.answer("200 OK", format.media_type(), &page, wanted),
            Err(why) => connection.answer("503 Service Unavailable", TEXT, &format!("{why}\n"), BodyWanted::Yes),
        }
    }

    /// Reports that are young enough.
    fn reports(&mut self) -> &mut KeptReports {
        let young = self.kept.take().filter(|kept| kept.made.elapsed() < REPORT_KEPT);
        let kept = young.unwrap_or_else(|| {
            let report = (self.source)();
            KeptReports { made: Instant::now(), report, pages: Vec::new() }
        });
        self.kept.insert(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::report;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A server at a socket file, and how often it has asked for reports.
    fn server(name: &str, owner: u32) -> (MetricsServer, PathBuf, Arc<AtomicUsize>) {
        let path = std::env::temp_dir().join(format!("burst-metrics-{}-{name}", std::process::id()));
        let asked = Arc::new(AtomicUsize::new(0));
        let counts = asked.clone();
        let source = move || {
            counts.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(vec![EngineReport { engine: "daemon".into(), report: report() }]) as Box<dyn MetricsReport>)
        };
        let place = MetricsPlace::Unix(path.clone());
        (MetricsServer::start(&place, owner, Box::new(source)).expect("a server"), path, asked)
    }

    fn scrape(mut socket: impl Read + Write) -> String {
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("room");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn the_owner_is_shown_programs_and_the_file_is_removed_at_the_end() {
        let (server, path, asked) = server("owner", own_uid());
        let answer = scrape(UnixStream::connect(&path).expect("a server"));
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("burst_queue_pair_requests_total{"),
            "{answer}"
        );
        scrape(UnixStream::connect(&path).expect("a server"));
        assert!(asked.load(Ordering::SeqCst) <= 2);
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn a_page_is_written_once_for_each_audience_and_format() {
        let reports = vec![EngineReport { engine: "daemon".into(), report: report() }];
        let mut kept = KeptReports { made: Instant::now(), report: Ok(Box::new(reports)), pages: Vec::new() };
        let first = kept.page(Audience::All, TextFormat::OpenMetrics).expect("a page");
        let again = kept.page(Audience::All, TextFormat::OpenMetrics).expect("a page");
        assert!(Arc::ptr_eq(&first, &again));
        let all: Vec<Arc<str>> =
            (0..100).map(|uid| kept.page(Audience::User(uid), TextFormat::OpenMetrics).expect("a page")).collect();
        assert!(all.iter().all(|page| **page != *first), "they see less");
        assert_eq!(kept.pages.len(), PAGES_KEPT);
    }

    #[test]
    fn over_tcp_only_totals_are_shown() {
        let source =
            || Ok(Box::new(vec![EngineReport { engine: "daemon".into(), report: report() }]) as Box<dyn MetricsReport>);
        let mut state = ServerLoop::new(
            MetricsPlace::Tcp("127.0.0.1:0".parse().expect("an address")).listen().expect("a port"),
            own_uid(),
            Box::new(source),
        );
        let bound =
            SocketAddr::try_from(rustix::net::getsockname(&state.listener).expect("bound")).expect("an address");
        let (ours, stop) = rustix::pipe::pipe().expect("a pipe");
        let server = std::thread::spawn(move || while state.pass(Some(&ours)) {});
        let answer = scrape(TcpStream::connect(bound).expect("a server"));
        drop(stop);
        server.join().expect("no panic");
        assert!(answer.contains("burst_rx_packets_total{") && !answer.contains("program="), "{answer}");
        assert!(!answer.contains("10.0.0.2") && !answer.contains("user 1001"), "{answer}");
    }

    #[test]
    fn scrapers_that_stall_take_no_ones_place() {
        let (_server, path, _) = server("stalls", own_uid());
        let stalled: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&path).expect("a server")).collect();
        let answer = scrape(UnixStream::connect(&path).expect("a server"));
        assert!(answer.contains("# TYPE burst_rx_packets"), "{answer}");
        // All but those of one source's places were cut off.
        let is_open = |mut socket: &UnixStream| {
            socket.set_nonblocking(true).expect("a socket");
            socket.read(&mut [0; 8]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
        };
        let most = OpenPool::Scraper.of_one();
        assert_eq!(stalled.iter().filter(|socket| is_open(socket)).count(), most - 1, "the scraper had a place");
    }

    #[test]
    fn a_pass_accepts_all_that_wait() {
        let path = std::env::temp_dir().join(format!("burst-metrics-{}-waiting", std::process::id()));
        let listener = MetricsPlace::Unix(path.clone()).listen().expect("a place");
        let mut state = ServerLoop::new(listener, 0, Box::new(|| Err("no daemon answers".into())));
        let waiting: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).expect("room")).collect();
        assert!(state.pass(None));
        assert_eq!(state.connections.len(), OpenPool::Scraper.of_one());
        // Whoever connects now waits behind none of them.
        let mut last = UnixStream::connect(&path).expect("room");
        last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("room");
        (0..2).for_each(|_| assert!(state.pass(None)));
        let mut answer = String::new();
        last.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        drop(waiting);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_host_that_does_not_answer_is_said_to_the_scraper() {
        let path = std::env::temp_dir().join(format!("burst-metrics-{}-gone", std::process::id()));
        let place = MetricsPlace::Unix(path.clone());
        let _server = MetricsServer::start(&place, 0, Box::new(|| Err("no daemon answers".into()))).expect("a server");
        let answer = scrape(UnixStream::connect(&path).expect("a server"));
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("no daemon answers\n"), "{answer}");
    }
}
