//! What tools see of a program with a host of its own: a socket for read-only requests.
//!
//! The socket is beside the daemon's ([`socket_path::program_socket`]), for this user and root alone. A thread of the program
//! that has other work serves it, so everything is bounded: connections at a time, requests of each call, the time without a
//! request, and the length of answers, which are dropped if the socket is full. Requests that change anything are refused. A
//! capture changes nothing: its packets come by sockets of their own, and the worker does not wait for who reads them.
//! Nothing here is needed for the program: without the socket it runs as well.

use crate::frame::{self, ControlPacket};
use crate::listener::bind_socket;
use crate::socket_path::{self, ProgramKind};
use crate::{ControlError, MESSAGE_MAX, Refusal, Reply, Request};
use burst_base::Nanos;
use burst_peer::credentials::{self, PeerCredentials};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// Connections at a time; further ones wait.
const CLIENTS_MAX: usize = 4;
/// Requests of a connection that are answered in one call.
const REQUESTS_AT_ONCE: u32 = 2;
/// A connection ends after this time without a request.
const SILENT_MAX: Nanos = Nanos::from_ms(5000);
/// Only the user of the program may connect, and root.
const MODE: u32 = 0o600;

/// A host about which tools ask.
pub trait InspectedHost {
    /// What the host keeps of a connection.
    type Visitor;
    /// Admits a connection.
    fn admit(&mut self, peer: PeerCredentials) -> Option<Self::Visitor>;
    /// Answers a request that only reads; descriptors go with the reply. `None` ends the connection.
    fn answer(&mut self, visitor: &mut Self::Visitor, request: Request) -> Option<(Reply, Vec<OwnedFd>)>;
    /// A connection has ended.
    fn leave(&mut self, visitor: Self::Visitor);
}

/// The socket and its connections.
pub struct InspectionSocket<V> {
    path: PathBuf,
    listener: OwnedFd,
    clients: Vec<InspectionClient<V>>,
    buffer: Vec<u8>,
    /// Closes descriptors that came with requests. That can block, so this thread does not.
    closer: Option<JoinHandle<()>>,
}

struct InspectionClient<V> {
    socket: OwnedFd,
    visitor: V,
    since: Nanos,
}

impl<V> InspectionSocket<V> {
    /// Binds the socket of this process, and removes those of programs that were killed.
    ///
    /// # Errors
    /// A sentence: it cannot be bound, and tools do not see the program.
    pub fn open(kind: ProgramKind) -> Result<InspectionSocket<V>, String> {
        InspectionSocket::open_at(socket_path::program_socket(kind, std::process::id()))
    }

    fn open_at(path: PathBuf) -> Result<InspectionSocket<V>, String> {
        path.parent().into_iter().for_each(socket_path::remove_dead);
        let listener = bind_socket(&path, MODE)?;
        Ok(InspectionSocket { path, listener, clients: Vec::new(), buffer: vec![0; MESSAGE_MAX], closer: None })
    }

    /// Descriptors to watch: at most [`InspectionSocket::FDS_MAX`].
    pub fn fds(&self) -> Vec<RawFd> {
        if self.is_closing() {
            return Vec::new();
        }
        let accepts = (self.clients.len() < CLIENTS_MAX).then(|| self.listener.as_raw_fd());
        accepts.into_iter().chain(self.clients.iter().map(|c| c.socket.as_raw_fd())).collect()
    }

    /// Most descriptors to watch.
    pub const FDS_MAX: usize = CLIENTS_MAX + 1;

    /// Whether there is a connection, which may have to be ended because it is silent.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Accepts connections, answers requests, and ends silent connections.
    pub fn serve(&mut self, host: &mut impl InspectedHost<Visitor = V>, now: Nanos) {
        if self.is_closing() {
            return;
        }
        for _ in self.clients.len()..CLIENTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { break };
            let visitor = credentials::of(&socket).ok().and_then(|peer| host.admit(peer));
            self.clients.extend(visitor.map(|visitor| InspectionClient { socket, visitor, since: now }));
        }
        let (mut at, mut strays) = (0, Vec::new());
        while at < self.clients.len() {
            if self.clients[at].serve(host, &mut self.buffer, now, &mut strays) {
                at += 1;
            } else {
                host.leave(self.clients.swap_remove(at).visitor);
            }
        }
        if !strays.is_empty() {
            let closing = std::thread::Builder::new().name("burst-close".into()).spawn(move || drop(strays));
            self.closer = closing.ok();
        }
    }

    /// Whether descriptors of a former request are still being closed: until then no request is served.
    fn is_closing(&self) -> bool {
        self.closer.as_ref().is_some_and(|closer| !closer.is_finished())
    }

    /// The socket by which clients connect.
    pub fn listener(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl<V> InspectionClient<V> {
    /// Answers requests that have arrived. Returns whether the connection goes on.
    fn serve(
        &mut self,
        host: &mut impl InspectedHost<Visitor = V>,
        buffer: &mut [u8],
        now: Nanos,
        strays: &mut Vec<OwnedFd>,
    ) -> bool {
        for _ in 0..REQUESTS_AT_ONCE {
            let mut fds = Vec::new();
            let received = frame::receive(&self.socket, buffer, RecvFlags::DONTWAIT, &mut fds);
            let has_fds = !fds.is_empty();
            strays.append(&mut fds);
            let packet = match received {
                Ok(_) if has_fds => return false,
                Ok(packet) => packet,
                Err(ControlError::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return now.since(self.since) < SILENT_MAX;
                }
                Err(_) => return false,
            };
            self.since = now;
            let Some((reply, fds)) = self.answer(host, &packet) else { return false };
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if frame::send(self.socket.as_fd(), packet.header.sequence, &reply, &fds, SendFlags::DONTWAIT).is_err() {
                return false;
            }
        }
        true
    }

    fn answer(
        &mut self,
        host: &mut impl InspectedHost<Visitor = V>,
        packet: &ControlPacket<'_>,
    ) -> Option<(Reply, Vec<OwnedFd>)> {
        let request: Request = packet.decode().ok()?;
        if !only_reads(&request) {
            let sentence = "this socket of a program with a host of its own answers questions only".to_owned();
            let refused = Reply { new_segments: 0, result: Err(Refusal { errno: libc::EPERM, sentence }) };
            return Some((refused, Vec::new()));
        }
        host.answer(&mut self.visitor, request)
    }
}

/// Whether a request changes nothing.
fn only_reads(request: &Request) -> bool {
    matches!(
        request,
        Request::Hello { .. }
            | Request::DaemonInfo
            | Request::ListDevices
            | Request::Stats
            | Request::Crashes
            | Request::Users { .. }
            | Request::Cc { .. }
            | Request::CmStats
            | Request::CmConnections { .. }
            | Request::Urma { .. }
            | Request::Failures(_)
            | Request::KeptPackets { .. }
            | Request::Workers
            | Request::QueuePairs { .. }
            | Request::Capture { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, DaemonInfo, Response};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket_with};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    /// Counts what it is asked.
    #[derive(Default)]
    struct Counting {
        visitors: i32,
        answers: u32,
    }

    impl InspectedHost for Counting {
        type Visitor = ();
        fn admit(&mut self, _peer: PeerCredentials) -> Option<()> {
            self.visitors += 1;
            Some(())
        }
        fn answer(&mut self, (): &mut (), request: Request) -> Option<(Reply, Vec<OwnedFd>)> {
            self.answers += 1;
            let info = DaemonInfo { version: "1".into(), pid: 2, uid: 3, uptime_s: 4, workers: 0, contexts: 1 };
            let result = match request {
                Request::Hello { .. } | Request::DaemonInfo => Ok(Response::Daemon(info)),
                _ => Ok(Response::Done),
            };
            Some((Reply { new_segments: 0, result }, Vec::new()))
        }
        fn leave(&mut self, (): ()) {
            self.visitors -= 1;
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("burst-inspection-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// A connection that says what it likes.
    fn visit(path: &Path) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn tools_ask_and_change_nothing() {
        let directory = scratch("asks");
        fs::write(directory.join("urma-999999999.sock"), "").unwrap();
        let path = directory.join(format!("urma-{}.sock", std::process::id()));
        let mut socket = InspectionSocket::open_at(path.clone()).unwrap();
        assert!(!directory.join("urma-999999999.sock").exists(), "a killed program's socket is removed");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let tool = std::thread::spawn(move || {
            let mut client = Client::connect_within(&path, "tool", Some(Duration::from_secs(20))).unwrap();
            let refused = client.call(&Request::AllocPd, &[]).unwrap_err();
            (client.daemon().pid, refused.errno(), refused.to_string())
        });
        let mut host = Counting::default();
        while !tool.is_finished() {
            socket.serve(&mut host, Nanos(1));
            std::thread::sleep(Duration::from_millis(1));
        }
        let (pid, errno, sentence) = tool.join().unwrap();
        assert_eq!((pid, errno, host.answers), (2, libc::EPERM, 1), "{sentence}");
        assert!(sentence.contains("answers questions only"), "{sentence}");
        socket.serve(&mut host, Nanos(1));
        assert!(host.visitors == 0 && !socket.has_clients());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_flood_takes_a_bounded_time_of_each_call() {
        let directory = scratch("flood");
        let path = directory.join("urma-1.sock");
        let mut socket = InspectionSocket::open_at(path.clone()).unwrap();
        let visitors: Vec<OwnedFd> = (0..CLIENTS_MAX + 2).map(|_| visit(&path)).collect();
        for visitor in &visitors {
            for sequence in 0..6 {
                frame::send(visitor, sequence, &Request::Stats, &[], SendFlags::DONTWAIT).unwrap();
            }
        }
        let mut host = Counting::default();
        for call in 1..=3 {
            socket.serve(&mut host, Nanos(1));
            assert_eq!(host.answers, call * REQUESTS_AT_ONCE * CLIENTS_MAX as u32);
            assert_eq!((host.visitors as usize, socket.fds().len()), (CLIENTS_MAX, CLIENTS_MAX), "others wait");
        }
        // Those that are silent make room.
        let later = Nanos(1) + SILENT_MAX;
        socket.serve(&mut host, later);
        assert_eq!((host.visitors, socket.fds().len()), (0, 1));
        socket.serve(&mut host, later);
        assert_eq!((host.visitors, host.answers), (2, 3 * 2 * CLIENTS_MAX as u32 + 2 * REQUESTS_AT_ONCE));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn rubbish_and_descriptors_end_a_connection() {
        let directory = scratch("rubbish");
        let path = directory.join("urma-1.sock");
        let mut socket = InspectionSocket::open_at(path.clone()).unwrap();
        let mut host = Counting::default();
        let rubbish = visit(&path);
        rustix::net::send(&rubbish, b"rubbish", SendFlags::empty()).unwrap();
        socket.serve(&mut host, Nanos(1));
        assert_eq!((host.visitors, host.answers), (0, 0));
        let (visitor, (mine, theirs)) = (visit(&path), std::os::unix::net::UnixStream::pair().unwrap());
        frame::send(&visitor, 1, &Request::Stats, &[theirs.as_fd()], SendFlags::empty()).unwrap();
        drop(theirs);
        socket.serve(&mut host, Nanos(1));
        assert_eq!((host.visitors, host.answers), (0, 0));
        // Another thread closes the descriptor: its other end reads the end.
        mine.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(std::io::Read::read(&mut &mine, &mut [0]).unwrap(), 0);
        let start = Instant::now();
        while socket.is_closing() && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(socket.fds(), [socket.listener()]);
        fs::remove_dir_all(directory).unwrap();
    }
}
