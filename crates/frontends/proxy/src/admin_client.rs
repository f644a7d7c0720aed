//! The asking end of the admin socket.

use burst_peer::PeerProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, Read, Write};
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
        match UnixStream::connect(path) {
            Ok(socket) => Ok(Self { socket, path: path.to_owned() }),
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

    /// Asks the proxy to end with its last open stream, at the latest after `seconds`, and waits until its process has ended.
    ///
    /// # Errors
    /// One sentence.
    pub fn end(self, seconds: u64) -> Result<String, String> {
        let (process, path) = (PeerProcess::of(&self.socket), self.path.clone());
        let limit = Instant::now() + Duration::from_secs(seconds) + END_SLACK;
        let answer = self.ask(&format!("drain {seconds}"))?;
        let has_ended = match process {
            Some(process) => exits(&process, limit)?,
            None => stops_listening(&path, limit),
        };
        if has_ended { Ok(answer) } else { Err(format!("the proxy at {} has not ended in time", path.display())) }
    }
}

fn no_answer(path: &Path, e: &Error) -> String {
    format!("no proxy answers at {}: {e}", path.display())
}

/// Waits until a process has exited; false: it has not until then.
fn exits(process: &PeerProcess, limit: Instant) -> Result<bool, String> {
    loop {
        let rest = limit.saturating_duration_since(Instant::now());
        let rest = Timespec::try_from(rest).map_err(|e| format!("the time to wait: {e}"))?;
        match poll(&mut [PollFd::from_borrowed_fd(process.exit(), PollFlags::IN)], Some(&rest)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(e) => return Err(format!("the end of the proxy cannot be awaited: {e}")),
        }
    }
}

/// Waits until no process listens at a socket; false: one did until then.
fn stops_listening(path: &Path, limit: Instant) -> bool {
    while UnixStream::connect(path).is_ok() {
        if Instant::now() >= limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}
