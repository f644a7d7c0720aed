//! The asking end of the admin socket.

use burst_peer::PeerProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a proxy may take to end beyond the time that it has for its streams: rules and routes are removed then.
const END_SLACK: Duration = Duration::from_secs(10);
/// Time between two looks at a process that has no number here.
const LOOK: Duration = Duration::from_millis(100);

/// A connection to the admin socket of a running proxy: for one question.
pub struct AdminClient {
    socket: UnixStream,
    path: PathBuf,
}

impl AdminClient {
    /// Connects.
    ///
    /// # Errors
    /// One sentence.
    pub fn connect(path: &Path) -> Result<Self, String> {
        Self::connect_to_any(path)?.ok_or_else(|| no_answer(path, &Error::from_raw_os_error(libc::ENOENT)))
    }

    /// Connects; `None`: no proxy runs there.
    ///
    /// # Errors
    /// One sentence: this user may not connect, for example.
    pub fn connect_to_any(path: &Path) -> Result<Option<Self>, String> {
        match UnixStream::connect(path) {
            Ok(socket) => Ok(Some(Self { socket, path: path.to_owned() })),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
            Err(e) => Err(no_answer(path, &e)),
        }
    }

    /// Asks one question.
    ///
    /// # Errors
    /// One sentence: the proxy's own, or why there is no answer.
    pub fn ask(mut self, word: &str) -> Result<String, String> {
        let mut answer = String::new();
        let asked = self.socket.write_all(word.as_bytes()).and_then(|()| self.socket.read_to_string(&mut answer));
        asked.map_err(|e| no_answer(&self.path, &e))?;
        match answer.strip_prefix("error: ") {
            Some(why) => Err(why.trim_end().to_owned()),
            None => Ok(answer),
        }
    }

    /// Asks the proxy to end with its last open stream, at the latest after `seconds`, and waits until its process has ended, or
    /// `stop` is readable.
    ///
    /// # Errors
    /// One sentence.
    pub fn end(self, seconds: u64, stop: Option<BorrowedFd<'_>>) -> Result<String, String> {
        let (process, path) = (PeerProcess::of(&self.socket), self.path.clone());
        let limit = Instant::now() + Duration::from_secs(seconds) + END_SLACK;
        let answer = self.ask(&format!("drain {seconds}"))?;
        let ended = match process {
            Some(process) => exits(&process, limit, stop)?,
            None => stops_listening(&path, limit, stop)?,
        };
        match ended {
            Awaited::Ended => Ok(answer),
            Awaited::TooLate => Err(format!("the proxy at {} has not ended in time", path.display())),
            Awaited::Stopped => Err(format!("ended by a signal; the proxy at {} still drains", path.display())),
        }
    }
}

fn no_answer(path: &Path, e: &Error) -> String {
    format!("no proxy answers at {}: {e}", path.display())
}

/// What a wait for the end of a proxy has come to.
enum Awaited {
    Ended,
    TooLate,
    Stopped,
}

/// Waits until a process has exited.
fn exits(process: &PeerProcess, limit: Instant, stop: Option<BorrowedFd<'_>>) -> Result<Awaited, String> {
    readable(Some(process.exit()), stop, limit)
}

/// Waits until no process listens at a socket.
fn stops_listening(path: &Path, limit: Instant, stop: Option<BorrowedFd<'_>>) -> Result<Awaited, String> {
    while UnixStream::connect(path).is_ok() {
        if Instant::now() >= limit {
            return Ok(Awaited::TooLate);
        }
        if let Awaited::Stopped = readable(None, stop, Instant::now() + LOOK)? {
            return Ok(Awaited::Stopped);
        }
    }
    Ok(Awaited::Ended)
}

/// Waits until a descriptor is readable.
fn readable(exit: Option<BorrowedFd<'_>>, stop: Option<BorrowedFd<'_>>, limit: Instant) -> Result<Awaited, String> {
    let fds = exit.into_iter().chain(stop).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = fds.collect();
    loop {
        let rest = limit.saturating_duration_since(Instant::now());
        let rest = Timespec::try_from(rest).map_err(|e| format!("the time to wait: {e}"))?;
        match poll(&mut fds, Some(&rest)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => return Ok(Awaited::TooLate),
            Ok(_) if exit.is_some() && !fds[0].revents().is_empty() => return Ok(Awaited::Ended),
            Ok(_) => return Ok(Awaited::Stopped),
            Err(e) => return Err(format!("the end of the proxy cannot be awaited: {e}")),
        }
    }
}
