//! What `burst ls`, `stats` and `cm` see of a program with an engine of its own: a socket for read-only requests.
//!
//! The socket is `in-process-PID.sock` beside the daemon's, for this user and root alone. The keeper serves it; requests that
//! change anything are refused. Nothing here is needed for the program: without the socket it runs as well.

use crate::house::House;
use burst_base::Nanos;
use burst_control::frame::{self, ControlPacket};
use burst_control::{MESSAGE_MAX, Refusal, Reply, Request, socket_path};
use burst_host::{ClientProcess, Clock, PacketAnswer, Session, listener};
use burst_peer::credentials;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Connections at a time; further ones wait.
const CLIENTS_MAX: usize = 4;
/// A connection ends after this time without a request.
const SILENT_MAX: Nanos = Nanos::from_ms(5000);
/// Only the user of the program may connect, and root.
const MODE: u32 = 0o600;

/// The socket and its connections.
pub struct InspectionSocket {
    path: PathBuf,
    listener: OwnedFd,
    clients: Vec<InspectionClient>,
    buffer: Vec<u8>,
}

struct InspectionClient {
    socket: OwnedFd,
    session: Session,
    since: Nanos,
}

impl InspectionSocket {
    /// Binds the socket of this process. `None`: it cannot be bound, and nobody sees the program.
    pub fn open() -> Option<InspectionSocket> {
        let path = socket_path::in_process_socket(std::process::id());
        path.parent().into_iter().for_each(remove_dead);
        match listener::bind_socket(&path, MODE) {
            Ok(listener) => {
                Some(InspectionSocket { path, listener, clients: Vec::new(), buffer: vec![0; MESSAGE_MAX] })
            }
            Err(why) => {
                tracing::info!("burst ls, stats and cm do not see this program: {why}");
                None
            }
        }
    }

    /// Descriptors to watch.
    pub fn fds(&self) -> Vec<RawFd> {
        let accepts = (self.clients.len() < CLIENTS_MAX).then(|| self.listener.as_raw_fd());
        accepts.into_iter().chain(self.clients.iter().map(|c| c.socket.as_raw_fd())).collect()
    }

    /// Accepts connections, answers requests, and ends silent connections.
    pub fn serve(&mut self, house: &mut House) {
        let now = Clock::Monotonic.now();
        while self.clients.len() < CLIENTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { break };
            self.clients.extend(admit(house, socket, now));
        }
        let mut at = 0;
        while at < self.clients.len() {
            if self.clients[at].serve(house, &mut self.buffer, now) {
                at += 1;
            } else {
                self.clients.swap_remove(at).session.end(&mut house.host);
            }
        }
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

fn admit(house: &House, socket: OwnedFd, now: Nanos) -> Option<InspectionClient> {
    let peer = credentials::of(&socket).ok()?;
    let session = Session::admit(&house.host, ClientProcess { pid: peer.pid, uid: peer.uid }).ok()?;
    Some(InspectionClient { socket, session, since: now })
}

impl InspectionClient {
    /// Answers requests that have arrived. Returns whether the connection goes on.
    fn serve(&mut self, house: &mut House, buffer: &mut [u8], now: Nanos) -> bool {
        loop {
            let mut fds = Vec::new();
            let packet = match frame::receive(&self.socket, buffer, RecvFlags::DONTWAIT, &mut fds) {
                Ok(packet) => packet,
                Err(burst_control::ControlError::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return now.since(self.since) < SILENT_MAX;
                }
                Err(_) => return false,
            };
            self.since = now;
            let Some(reply) = self.answer(house, &packet) else { return false };
            if frame::send(self.socket.as_fd(), packet.header.sequence, &reply, &[], SendFlags::DONTWAIT).is_err() {
                return false;
            }
        }
    }

    fn answer(&mut self, house: &mut House, packet: &ControlPacket<'_>) -> Option<Reply> {
        let request: Request = packet.decode().ok()?;
        if !only_reads(&request) {
            let sentence = "this socket of a program with an engine of its own answers questions only".to_owned();
            return Some(Reply { new_segments: 0, result: Err(Refusal { errno: libc::EPERM, sentence }) });
        }
        let fds = self.session.foreign(&house.host, Vec::new());
        match self.session.answer_packet(&mut house.host, packet, fds) {
            PacketAnswer::Reply(reply) => Some(reply.0),
            _ => None,
        }
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
    )
}

/// Removes sockets of programs that have ended without doing so.
fn remove_dead(directory: &Path) {
    for (pid, path) in socket_path::in_process_sockets(directory) {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            // Another program's, or removed meanwhile: it stays.
            let _ = std::fs::remove_file(path);
        }
    }
}
