//! Finding the running daemon: which sockets are tried, and the result of each attempt.

use burst_client::{ClientError, Daemon};
use burst_control::ControlError;
use burst_control::socket_path::{ProgramKind, program_sockets, remove_dead};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of this program for the daemon's log.
const PROGRAM: &str = "burst";
/// How long a program with a host of its own may take to answer: it may be stopped.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long a daemon may take: on a busy machine it may have much to do before it answers.
const DAEMON_ANSWER_MAX: Duration = Duration::from_secs(8);

/// What is said of a daemon that accepts and does not answer.
const STANDS_STILL: &str = "its daemon does not answer: it stands still, or is stopped (burst why daemon)";

/// Result of an attempt to connect to one socket.
#[derive(Debug)]
pub enum FoundDaemon {
    /// A daemon that answers.
    Alive(Daemon),
    /// There is no socket.
    Absent,
    /// No process listens on the socket: its daemon has died.
    Stale,
    /// This user may not connect.
    Forbidden,
    /// The socket or its daemon belongs to a user who is not trusted: the sentence, with the cure.
    Untrusted(String),
    /// A daemon of another version, or a program that is no daemon: the sentence.
    Strange(String),
}

impl FoundDaemon {
    /// The result in a few words.
    pub fn describe(&self) -> String {
        match self {
            FoundDaemon::Alive(client) => format!("daemon {}", client.info().pid),
            FoundDaemon::Absent => "nothing there".to_owned(),
            FoundDaemon::Stale => "its daemon is dead".to_owned(),
            FoundDaemon::Forbidden => "permission denied".to_owned(),
            FoundDaemon::Untrusted(sentence) | FoundDaemon::Strange(sentence) => sentence.clone(),
        }
    }
}

/// The sockets to try, in order.
pub fn candidates(chosen: Option<&Path>) -> Vec<PathBuf> {
    chosen.map_or_else(burst_control::socket_path::candidates, |path| vec![path.to_owned()])
}

/// Tries one socket.
pub fn try_socket(path: &Path) -> FoundDaemon {
    try_within(path, DAEMON_ANSWER_MAX)
}

fn try_within(path: &Path, time: Duration) -> FoundDaemon {
    found(Daemon::connect_within(path, PROGRAM, time))
}

fn found(connected: Result<Daemon, ClientError>) -> FoundDaemon {
    match connected {
        Ok(client) => FoundDaemon::Alive(client),
        Err(ClientError::Control(ControlError::Connect { source, .. })) => match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => FoundDaemon::Absent,
            ErrorKind::ConnectionRefused => FoundDaemon::Stale,
            ErrorKind::PermissionDenied => FoundDaemon::Forbidden,
            _ => FoundDaemon::Strange(source.to_string()),
        },
        Err(ClientError::Control(ControlError::Untrusted(sentence))) => FoundDaemon::Untrusted(sentence),
        Err(ClientError::Control(ControlError::Closed)) => FoundDaemon::Stale,
        Err(ClientError::Control(ControlError::Io(source))) if source.kind() == ErrorKind::WouldBlock => {
            FoundDaemon::Strange(STANDS_STILL.to_owned())
        }
        Err(other) => FoundDaemon::Strange(other.to_string()),
    }
}

/// Tries the sockets until a daemon answers; the list has every attempt.
pub fn find(chosen: Option<&Path>) -> Vec<(PathBuf, FoundDaemon)> {
    let mut tried = Vec::new();
    for path in candidates(chosen) {
        let found = try_socket(&path);
        let alive = matches!(found, FoundDaemon::Alive(_));
        tried.push((path, found));
        if alive {
            break;
        }
    }
    tried
}

/// The attempts in one clause.
pub fn tried_clause(tried: &[(PathBuf, FoundDaemon)]) -> String {
    let parts: Vec<String> = tried.iter().map(|(p, f)| format!("{} ({})", p.display(), f.describe())).collect();
    parts.join(", ")
}

/// The daemon, or a sentence with the sockets that were tried and the cure.
pub fn connect(chosen: Option<&Path>) -> Result<Daemon, String> {
    let mut tried = find(chosen);
    match tried.pop() {
        Some((_, FoundDaemon::Alive(client))) => Ok(client),
        last => {
            tried.extend(last);
            Err(format!(
                "no daemon answers; tried {}: start burstd, or use burst run, which starts one",
                tried_clause(&tried)
            ))
        }
    }
}

/// A host that answers: a daemon, or what is inside a program.
pub struct ShownHost {
    /// The connection.
    pub host: Daemon,
    /// Name and process number of the program that the host is inside of; `None`: a daemon.
    pub program: Option<(String, u32)>,
    /// What the host runs.
    pub kind: ProgramKind,
}

impl ShownHost {
    /// The line above what is shown of it; none above a daemon's.
    pub fn heading(&self) -> String {
        self.program.as_ref().map_or_else(String::new, |(name, pid)| format!("In {name} (pid {pid}):\n"))
    }
    /// Adds the program to a JSON object that shows something of the host.
    pub fn label(&self, mut value: serde_json::Value) -> serde_json::Value {
        if let (Some((name, pid)), Some(object)) = (&self.program, value.as_object_mut()) {
            object.insert("program".into(), name.as_str().into());
            object.insert("pid".into(), (*pid).into());
        }
        value
    }
}

/// The daemon, if one answers, and the programs of this user with hosts of their own of these kinds.
///
/// # Errors
/// A sentence: there is none of them.
pub fn hosts(chosen: Option<&Path>, kinds: &[ProgramKind]) -> Result<Vec<ShownHost>, String> {
    let daemon = connect(chosen);
    let mut directories: Vec<PathBuf> =
        candidates(chosen).iter().filter_map(|p| p.parent().map(Path::to_owned)).collect();
    directories.dedup();
    directories.iter().for_each(|directory| remove_dead(directory));
    let programs = directories.iter().flat_map(|directory| program_sockets(directory));
    let asked = programs.filter(|(kind, ..)| kinds.contains(kind));
    let inside: Vec<ShownHost> = asked.filter_map(|(kind, pid, path)| program(kind, pid, &path)).collect();
    match daemon {
        Err(why) if inside.is_empty() => Err(why),
        daemon => {
            let daemon = daemon.ok().map(|host| ShownHost { host, program: None, kind: ProgramKind::InProcess });
            Ok(daemon.into_iter().chain(inside).collect())
        }
    }
}

/// The host of a program, if it answers.
fn program(kind: ProgramKind, pid: u32, path: &Path) -> Option<ShownHost> {
    match found(Daemon::connect_within(path, PROGRAM, ANSWER_MAX)) {
        FoundDaemon::Alive(host) => Some(ShownHost { host, program: Some((name_of(pid), pid)), kind }),
        // It has ended, or is another user's.
        FoundDaemon::Absent | FoundDaemon::Stale | FoundDaemon::Forbidden | FoundDaemon::Untrusted(_) => None,
        FoundDaemon::Strange(why) => {
            crate::complain(format!("{} (pid {pid}) does not answer: {why}", name_of(pid)));
            None
        }
    }
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("burst-cli-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn absent_and_stale_sockets_differ() {
        let path = scratch("sock");
        assert!(matches!(try_socket(&path), FoundDaemon::Absent));
        let kind = rustix::net::SocketType::SEQPACKET;
        let dead = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&dead, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(matches!(try_socket(&path), FoundDaemon::Stale));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_daemon_that_stands_still_is_not_waited_for() {
        let path = scratch("still");
        let kind = rustix::net::SocketType::SEQPACKET;
        let stopped = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&stopped, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&stopped, 4).unwrap();
        let found = try_within(&path, Duration::from_millis(50));
        assert!(matches!(&found, FoundDaemon::Strange(why) if why == STANDS_STILL), "{found:?}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn something_that_is_no_daemon_is_strange() {
        let path = scratch("stream");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(try_socket(&path), FoundDaemon::Strange(_)));
        let sentence = connect(Some(&path)).unwrap_err();
        assert!(sentence.contains(path.to_str().unwrap()), "{sentence}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_chosen_socket_is_the_only_one() {
        assert_eq!(candidates(Some(Path::new("/x"))), [PathBuf::from("/x")]);
        assert!(!candidates(None).is_empty());
    }
}
