//! One scraper's connection: one request, one answer, and its end.
//!
//! The request is read until its empty line, [`REQUEST_MAX`] bytes at most; a body is not read. The connection ends
//! [`LIFE_MAX`] after it began, whatever the scraper does.

use crate::audience::Audience;
use crate::exposition::TextFormat;
use burst_ledger::OpenPool;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest request.
pub const REQUEST_MAX: usize = 4 << 10;
/// How long a connection may take from its beginning to the last byte of the answer.
pub const LIFE_MAX: Duration = Duration::from_secs(5);
/// Where the metrics are.
pub const PATH: &str = "/metrics";

/// Whom a connection comes from, for the number of connections that each may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScraperSource {
    /// A user of this host.
    User(u32),
    /// An address; the first 64 bits of one of IPv6.
    Address(u128),
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The metrics, in a format, with or without the body.
    Metrics(TextFormat, BodyWanted),
    /// Something else: the status line and a sentence.
    Other(&'static str, &'static str),
}

/// Whether an answer has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyWanted {
    /// GET.
    Yes,
    /// HEAD.
    No,
}

/// What has become of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for its scraper.
    Waits,
    /// A request has come.
    Asks(Asked),
    /// It is over.
    Over,
}

/// A connection.
#[derive(Debug)]
pub struct ScraperConnection {
    socket: OwnedFd,
    /// Whom it comes from.
    pub source: ScraperSource,
    /// What the scraper may see.
    pub audience: Audience,
    /// When it ends at the latest.
    pub until: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl ScraperConnection {
    /// A connection that was accepted now, not blocking.
    pub fn new(socket: OwnedFd, source: ScraperSource, audience: Audience, now: Instant) -> ScraperConnection {
        let (request, answer) = (Vec::new(), Vec::new());
        ScraperConnection { socket, source, audience, until: now + LIFE_MAX, request, answer, sent: 0 }
    }

    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it waits for room to send, not for bytes to receive.
    pub fn is_answering(&self) -> bool {
        !self.answer.is_empty()
    }

    /// Goes on once the socket is ready.
    pub fn advance(&mut self) -> Progress {
        if self.is_answering() { self.send_more() } else { self.receive_more() }
    }

    fn receive_more(&mut self) -> Progress {
        let mut bytes = [0; REQUEST_MAX];
        let room = REQUEST_MAX - self.request.len();
        match recv(&self.socket, &mut bytes[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Progress::Over,
            Ok((len, _)) => self.request.extend_from_slice(&bytes[..len]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Progress::Waits,
            Err(_) => return Progress::Over,
        }
        match asked(&self.request) {
            Some(asked) => Progress::Asks(asked),
            None if self.request.len() == REQUEST_MAX => {
                Progress::Asks(Asked::Other("431 Request Header Fields Too Large", "The request is too long.\n"))
            }
            None => Progress::Waits,
        }
    }

    /// Sends an answer from now on.
    pub fn answer(&mut self, status: &str, media_type: &str, body: &str, wanted: BodyWanted) -> Progress {
        let length = body.len();
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        if wanted == BodyWanted::Yes {
            text.push_str(body);
        }
        self.answer = text.into_bytes();
        self.send_more()
    }

    fn send_more(&mut self) -> Progress {
        loop {
            let rest = &self.answer[self.sent..];
            if rest.is_empty() {
                return Progress::Over;
            }
            match send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(len) => self.sent += len,
                Err(rustix::io::Errno::AGAIN) => return Progress::Waits,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Progress::Over,
            }
        }
    }
}

/// What a request asks for; `None`: its end has not come.
fn asked(request: &[u8]) -> Option<Asked> {
    let end = request.windows(4).position(|four| four == b"\r\n\r\n")?;
    let Ok(head) = std::str::from_utf8(&request[..end]) else {
        return Some(Asked::Other("400 Bad Request", "The request is no text.\n"));
    };
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or("").split(' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or(""));
    if !version.starts_with("HTTP/1.") || words.next().is_some() {
        return Some(Asked::Other("400 Bad Request", "This is no request of HTTP/1.1.\n"));
    }
    let wanted = match method {
        Some("GET") => BodyWanted::Yes,
        Some("HEAD") => BodyWanted::No,
        _ => return Some(Asked::Other("405 Method Not Allowed", "Only GET and HEAD are answered.\n")),
    };
    if target.split('?').next() != Some(PATH) {
        return Some(Asked::Other("404 Not Found", "The metrics are at /metrics.\n"));
    }
    let fields = lines.filter_map(|line| line.split_once(':'));
    let accept: String =
        fields.filter(|(name, _)| name.eq_ignore_ascii_case("accept")).map(|(_, value)| value).collect();
    Some(Asked::Metrics(TextFormat::accepted_by(&accept), wanted))
}

/// Which connection ends so that there is room for one more of `source`: one of the same source if that has as many as the pool
/// gives one; one of the sources with the most if there are as many as it has. `None`: there is room. `random`, any number,
/// decides which: who connects again and again then cuts off another's scrape sometimes, and not always.
pub fn displaced(sources: &[ScraperSource], source: ScraperSource, pool: OpenPool, random: usize) -> Option<usize> {
    let count = |source: &ScraperSource| sources.iter().filter(|other| *other == source).count();
    let one_of = |may_end: &dyn Fn(&ScraperSource) -> bool| {
        let all: Vec<usize> = (0..sources.len()).filter(|at| may_end(&sources[*at])).collect();
        all.get(random % all.len().max(1)).copied()
    };
    if count(&source) >= pool.of_one() {
        return one_of(&|other| *other == source);
    }
    if sources.len() < pool.places() {
        return None;
    }
    let most = sources.iter().map(count).max();
    one_of(&|other| Some(count(other)) == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (ScraperConnection, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets");
        (ScraperConnection::new(ours, ScraperSource::User(1), Audience::All, Instant::now()), theirs)
    }

    fn send_all(to: &OwnedFd, bytes: &[u8]) {
        assert_eq!(send(to, bytes, SendFlags::empty()), Ok(bytes.len()));
    }

    #[test]
    fn a_request_that_comes_in_pieces_is_answered_at_its_end() {
        let (mut ours, theirs) = pair();
        assert_eq!(ours.advance(), Progress::Waits);
        let request = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naCCept: application/openmetrics-text\r\n\r\n";
        for byte in &request[..request.len() - 1] {
            send_all(&theirs, &[*byte]);
            assert_eq!(ours.advance(), Progress::Waits);
        }
        send_all(&theirs, b"\n");
        assert_eq!(ours.advance(), Progress::Asks(Asked::Metrics(TextFormat::OpenMetrics, BodyWanted::Yes)));
        assert_eq!(ours.answer("200 OK", "text/plain", "body", BodyWanted::Yes), Progress::Over);
        let mut answer = [0; 4096];
        let (len, _) = recv(&theirs, &mut answer[..], RecvFlags::empty()).expect("an answer");
        let text = String::from_utf8_lossy(&answer[..len]);
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n")
                && text.ends_with("Content-Length: 4\r\nConnection: close\r\n\r\nbody"),
            "{text}"
        );
    }

    #[test]
    fn rubbish_is_refused_by_a_sentence() {
        let status = |request: &[u8]| match asked(request) {
            Some(Asked::Other(status, _)) => status.split(' ').next().unwrap_or("").to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status(b"GET /metrics/../etc HTTP/1.1\r\n\r\n"), "404");
        for bad in [
            &b"\r\n\r\n"[..],
            b"GET\r\n\r\n",
            b"GET /metrics\r\n\r\n",
            b"\xff\xfe\r\n\r\n",
            b"GET /metrics HTTP/1.1 x\r\n\r\n",
        ] {
            assert_eq!(status(bad), "400", "{bad:?}");
        }
        assert_eq!(asked(b"GET /metrics HTTP/1.1\r\n"), None);
        assert_eq!(
            asked(b"HEAD /metrics HTTP/1.0\r\n\r\n"),
            Some(Asked::Metrics(TextFormat::Prometheus, BodyWanted::No))
        );
    }

    #[test]
    fn a_request_without_end_is_refused_at_its_limit() {
        let (mut ours, theirs) = pair();
        send_all(&theirs, &[b'a'; REQUEST_MAX]);
        assert!(matches!(ours.advance(), Progress::Asks(Asked::Other(status, _)) if status.starts_with("431")));
    }

    #[test]
    fn a_scraper_that_does_not_read_makes_the_connection_wait() {
        let (mut ours, theirs) = pair();
        let body = "x".repeat(8 << 20);
        assert_eq!(ours.answer("200 OK", "text/plain", &body, BodyWanted::Yes), Progress::Waits);
        assert!(ours.is_answering());
        drop(theirs);
        assert_eq!(ours.advance(), Progress::Over);
    }

    #[test]
    fn a_source_has_its_share_and_the_largest_gives_way() {
        let (a, b, c) = (ScraperSource::User(1), ScraperSource::User(2), ScraperSource::Address(3));
        let pool = OpenPool::Scraper;
        let places = |of: &[(ScraperSource, usize)]| -> Vec<ScraperSource> {
            of.iter().flat_map(|(source, count)| vec![*source; *count]).collect()
        };
        let full = places(&[(a, pool.of_one()), (b, 1)]);
        for random in 0..8 {
            assert_eq!(displaced(&full, a, pool, random), Some(random % pool.of_one()));
        }
        assert_eq!(displaced(&full, b, pool, 3), None);
        // As many as there may be, of sources with different counts.
        let others = (0..).map(|n| (ScraperSource::Address(n), 1)).take(pool.places() - pool.of_one());
        let all = places(&[(a, pool.of_one())].into_iter().chain(others).collect::<Vec<_>>());
        assert!((0..64).all(|random| displaced(&all, c, pool, random).is_some_and(|at| all[at] == a)));
        assert_eq!(displaced(&[], a, pool, 0), None);
    }

    #[test]
    fn one_who_connects_from_many_addresses_does_not_cut_off_every_scrape() {
        let pool = OpenPool::Scraper;
        let mut survived = 0;
        for seed in 0..1000 {
            let mut sources: Vec<ScraperSource> = (0..pool.places() as u128).map(ScraperSource::Address).collect();
            for n in 0..4 {
                let source = ScraperSource::Address(if n == 0 { 1 << 64 } else { 1000 + n });
                let gone = displaced(&sources, source, pool, seed * 31 + n as usize * 17).expect("no room");
                sources.remove(gone);
                sources.push(source);
            }
            survived += usize::from(sources.contains(&ScraperSource::Address(1 << 64)));
        }
        assert!(survived > 700, "{survived} of 1000");
    }
}
