//! One scraper's connection: one request, one answer, and its end.
//!
//! The request is read until its empty line, [`REQUEST_MAX`] bytes at most; a body is not read. The connection ends
//! [`LIFE_MAX`] after it began, whatever the scraper does.

use crate::audience::Audience;
use crate::exposition::TextFormat;
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

/// Which connection ends so that there is room for one more of `source`: the oldest of the same source if that has `of_one`
/// already; the oldest of the source with the most if there are `of_all`. `None`: there is room.
pub fn displaced(sources: &[ScraperSource], source: ScraperSource, of_one: usize, of_all: usize) -> Option<usize> {
    let count = |source: &ScraperSource| sources.iter().filter(|other| *other == source).count();
    let oldest_of = |source: &ScraperSource| sources.iter().position(|other| other == source);
    if count(&source) >= of_one {
        return oldest_of(&source);
    }
    if sources.len() < of_all {
        return None;
    }
    sources.iter().max_by_key(|source| count(source)).and_then(oldest_of)
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
        assert_eq!(displaced(&[a, b, a], a, 2, 8), Some(0));
        assert_eq!(displaced(&[a, b, a], b, 2, 8), None);
        assert_eq!(displaced(&[c, a, b, a], b, 3, 4), Some(1));
        assert_eq!(displaced(&[], a, 1, 1), None);
    }
}
