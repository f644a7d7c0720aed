//! The client's end of the control socket: blocking calls over one connection.

use crate::commands::CommandSender;
use crate::frame::{self, ControlHeader, ControlPacket, HEADER_BYTES};
use crate::in_process::InProcessLink;
use crate::trust::TrustedUsers;
use crate::{ControlError, DaemonInfo, FDS_MAX, FIRST_SEQUENCE, MESSAGE_MAX, Reply, Request, Response};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// After this time without an answer of the daemon the caller's own way to wait is used ([`Client::wait_by`]).
const ANSWER_SOON: Duration = Duration::from_secs(1);

/// Most bytes of the body of a request that [`Client::call_in_fork`] sends.
const SHORT_MAX: usize = 16;

/// Waits for a daemon that does not answer soon, because it is stopped, or the machine is busy.
pub trait SlowAnswer: Send + Sync + std::fmt::Debug {
    /// Returns when the socket can be read from, or written to if `writes` is true, or earlier.
    fn wait(&self, socket: BorrowedFd<'_>, writes: bool);
    /// Takes the signals that may come during [`SlowAnswer::wait`], and returns: the daemon has not accepted the connection yet.
    fn take_signals(&self);
}

/// How packets reach the host.
#[derive(Debug)]
pub(crate) enum ControlLink {
    /// By the socket of a daemon.
    Socket(OwnedFd),
    /// By a function of a host in this process.
    InProcess(Arc<dyn InProcessLink>),
}

impl ControlLink {
    /// Sends a packet that has no reply. `slow` waits while the socket has no room, or the call itself if there is none.
    pub fn send_alone(&self, packet: &[u8], slow: Option<&dyn SlowAnswer>) -> Result<(), ControlError> {
        match self {
            ControlLink::Socket(socket) => {
                let flags = if slow.is_some() { SendFlags::DONTWAIT } else { SendFlags::empty() };
                until_ready(slow, socket.as_fd(), true, || frame::send_bytes(socket, packet, flags))
            }
            ControlLink::InProcess(link) => link.call(packet, &[], &mut []).map(drop),
        }
    }

    fn try_clone(&self) -> Result<ControlLink, ControlError> {
        Ok(match self {
            ControlLink::Socket(socket) => ControlLink::Socket(socket.try_clone()?),
            ControlLink::InProcess(link) => ControlLink::InProcess(link.clone()),
        })
    }
}

/// A connection to a daemon, or to a host in this process.
#[derive(Debug)]
pub struct Client {
    link: ControlLink,
    sequence: u32,
    buffer: Vec<u8>,
    daemon: DaemonInfo,
    /// Set: the socket gives up after [`ANSWER_SOON`], and this waits.
    slow: Option<Arc<dyn SlowAnswer>>,
}

/// A response, and the descriptors that came with it.
#[derive(Debug)]
pub struct ClientReply {
    /// The response.
    pub response: Response,
    /// Descriptors that belong to the response.
    pub fds: Vec<OwnedFd>,
    /// Descriptors of new arena segments, to be mapped in this order before places in the response are used.
    pub segments: Vec<OwnedFd>,
}

impl Client {
    /// Connects to the daemon at `path`; `program` is the name for the daemon's log.
    ///
    /// # Errors
    /// `Connect` if there is no daemon, `Untrusted` if the socket or the daemon belongs to another user than this or root,
    /// `Version` if the daemon is of another version.
    pub fn connect(path: &Path, program: &str) -> Result<Client, ControlError> {
        Client::connect_within(path, program, None)
    }

    /// As [`Client::connect`], to a host that must answer each request within a time, if one is given. A program with an engine
    /// of its own may be stopped.
    ///
    /// # Errors
    /// As [`Client::connect`]; `Io` of the kind `WouldBlock` when no answer comes.
    pub fn connect_within(path: &Path, program: &str, time: Option<Duration>) -> Result<Client, ControlError> {
        Client::greet(ControlLink::Socket(trusted_socket(path, time, None)?), program, None)
    }

    /// As [`Client::connect`]; `slow` waits where the daemon does not answer soon, from the connection on ([`Client::wait_by`]).
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_waiting(path: &Path, program: &str, slow: Arc<dyn SlowAnswer>) -> Result<Client, ControlError> {
        let socket = trusted_socket(path, Some(ANSWER_SOON), Some(&*slow))?;
        Client::greet(ControlLink::Socket(socket), program, Some(slow))
    }

    /// Connects to a host in this process.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn connect_in_process(link: Arc<dyn InProcessLink>, program: &str) -> Result<Client, ControlError> {
        Client::greet(ControlLink::InProcess(link), program, None)
    }

    /// Says hello.
    fn greet(link: ControlLink, program: &str, slow: Option<Arc<dyn SlowAnswer>>) -> Result<Client, ControlError> {
        let daemon = DaemonInfo { version: String::new(), pid: 0, uid: 0, uptime_s: 0, workers: 0, contexts: 0 };
        let (sequence, buffer) = (FIRST_SEQUENCE - 1, vec![0; MESSAGE_MAX]);
        let mut client = Client { link, sequence, buffer, daemon, slow };
        match client.call(&Request::Hello { program: program.to_owned() }, &[])?.response {
            Response::Daemon(info) => client.daemon = info,
            other => {
                return Err(ControlError::Malformed(format!("unexpected answer to hello: {other:?}")));
            }
        }
        Ok(client)
    }

    /// From now on `slow` waits where the daemon does not answer soon. Without effect on a host in this process.
    ///
    /// # Errors
    /// The system refuses the socket's time-out.
    pub fn wait_by(&mut self, slow: Arc<dyn SlowAnswer>) -> Result<(), ControlError> {
        if let ControlLink::Socket(socket) = &self.link {
            set_socket_timeout(socket, Timeout::Recv, Some(ANSWER_SOON)).map_err(std::io::Error::from)?;
            self.slow = Some(slow);
        }
        Ok(())
    }

    /// The daemon's reply to `Hello`.
    pub fn daemon(&self) -> &DaemonInfo {
        &self.daemon
    }

    /// The socket of a daemon; `None` for a host in this process.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            ControlLink::Socket(socket) => Some(socket.as_fd()),
            ControlLink::InProcess(_) => None,
        }
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// `Refused` if the daemon refuses the request; any other error means that the connection is unusable.
    pub fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<ClientReply, ControlError> {
        debug_assert!(fds.len() <= FDS_MAX);
        self.sequence = self.sequence.wrapping_add(1);
        match &self.link {
            ControlLink::Socket(socket) => {
                let sent = frame::send(socket, self.sequence, request, fds, SendFlags::empty());
                take_answer(socket, self.slow.as_deref(), sent, (self.sequence, &mut self.buffer))
            }
            ControlLink::InProcess(link) => {
                let packet = frame::encode(self.sequence, request)?;
                let (len, fds) = link.call(&packet, fds, &mut self.buffer)?;
                let reply = self.buffer.get(..len).ok_or(ControlError::Closed)?;
                take_reply(&ControlPacket::parse(reply)?, fds, self.sequence)
            }
        }
    }

    /// As [`Client::call`] without descriptors, for fork handlers: with a daemon that carries the request out, it allocates no
    /// memory. A handler may run while its thread has a lock of the allocator.
    ///
    /// # Errors
    /// As [`Client::call`]; `Malformed` for a request of more than 16 bytes.
    pub fn call_in_fork(&mut self, request: &Request) -> Result<ClientReply, ControlError> {
        let ControlLink::Socket(socket) = &self.link else { return self.call(request, &[]) };
        self.sequence = self.sequence.wrapping_add(1);
        let mut body = [0; SHORT_MAX];
        let body = postcard::to_slice(request, &mut body).map_err(|e| ControlError::Malformed(e.to_string()))?;
        let sent = frame::send_raw(socket, ControlHeader::new(self.sequence), body, &[], SendFlags::empty());
        take_answer(socket, self.slow.as_deref(), sent, (self.sequence, &mut self.buffer))
    }

    /// Sends a request that has no reply.
    ///
    /// # Errors
    /// Any error means that the connection is unusable.
    pub fn send_without_reply(&self, request: &Request) -> Result<(), ControlError> {
        debug_assert!(request.is_without_reply());
        // Only replies repeat the sequence number, so its value does not matter.
        self.link.send_alone(&frame::encode(0, request)?, self.slow.as_deref())
    }

    /// Waits until the daemon has carried out all commands sent before ([`CommandSender`]).
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn flush_commands(&mut self) -> Result<(), ControlError> {
        self.call(&Request::DaemonInfo, &[]).map(drop)
    }

    /// Makes the sender of one-way commands over this connection, once per connection.
    ///
    /// # Errors
    /// `Refused` if there is one already, or no room for it; any other error means that the connection is unusable.
    pub fn command_sender(&mut self) -> Result<CommandSender, ControlError> {
        let mut answer = self.call(&Request::CmCommandRing, &[])?;
        let (Response::Done, Some(ring)) = (answer.response, answer.fds.pop()) else {
            return Err(ControlError::Malformed("the reply has no descriptor of a ring".into()));
        };
        CommandSender::over(self.link.try_clone()?, ring)
    }
}

/// A socket that is connected to the daemon at `path`. Calls give up after `time`; `slow` lets signals come while the daemon does
/// not accept, because it is stopped and its queue of connections is full.
fn trusted_socket(path: &Path, time: Option<Duration>, slow: Option<&dyn SlowAnswer>) -> Result<OwnedFd, ControlError> {
    let wrap = |e: rustix::io::Errno| ControlError::Connect { path: path.display().to_string(), source: e.into() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(wrap)?;
    let trusted = TrustedUsers::of_this_process();
    trusted.check_file(path)?;
    let address = SocketAddrUnix::new(path).map_err(wrap)?;
    set_socket_timeout(&socket, Timeout::Send, time).map_err(wrap)?;
    set_socket_timeout(&socket, Timeout::Recv, time).map_err(wrap)?;
    loop {
        match (connect(&socket, &address), slow) {
            (Err(rustix::io::Errno::AGAIN), Some(slow)) => slow.take_signals(),
            (done, _) => break done.map_err(wrap)?,
        }
    }
    if slow.is_some() {
        // Requests are short, and the socket has room for one.
        set_socket_timeout(&socket, Timeout::Send, None).map_err(wrap)?;
    }
    trusted.check_peer(socket.as_fd(), path)?;
    Ok(socket)
}

/// Repeats a call that finds the socket not ready, once `slow` has waited.
fn until_ready<R>(
    slow: Option<&dyn SlowAnswer>,
    socket: BorrowedFd<'_>,
    writes: bool,
    mut call: impl FnMut() -> Result<R, ControlError>,
) -> Result<R, ControlError> {
    loop {
        match (call(), slow) {
            (Err(ControlError::Io(error)), Some(slow)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                slow.wait(socket, writes);
            }
            (done, _) => return done,
        }
    }
}

/// Waits for a daemon's reply to the request with this sequence number, once that was `sent`.
fn take_answer(
    socket: &OwnedFd,
    slow: Option<&dyn SlowAnswer>,
    sent: Result<(), ControlError>,
    (sequence, buffer): (u32, &mut [u8]),
) -> Result<ClientReply, ControlError> {
    // A daemon that refuses a connection says why and closes it, perhaps before the first request is sent or read. The kernel
    // then reports the end first (EPIPE, ECONNRESET) and the reply after it.
    let mut error = sent.err();
    for _ in 0..2 {
        let (flags, slow) = if error.is_some() { (RecvFlags::DONTWAIT, None) } else { (RecvFlags::empty(), slow) };
        let mut fds = Vec::new();
        let received = until_ready(slow, socket.as_fd(), false, || {
            frame::receive(socket, buffer, flags, &mut fds).map(|packet| HEADER_BYTES + packet.body.len())
        });
        match received {
            Ok(len) => return take_reply(&ControlPacket::parse(&buffer[..len])?, fds, sequence),
            Err(e) => error = Some(error.unwrap_or(e)),
        }
    }
    Err(error.unwrap_or(ControlError::Closed))
}

/// Receives the reply to the request with this sequence number.
fn take_reply(packet: &ControlPacket<'_>, mut fds: Vec<OwnedFd>, sequence: u32) -> Result<ClientReply, ControlError> {
    let reply: Reply = packet.decode()?;
    if packet.header.sequence != sequence {
        return Err(ControlError::Malformed("an answer to another question".into()));
    }
    let new = reply.new_segments as usize;
    if new > fds.len() {
        return Err(ControlError::Malformed("segments are missing".into()));
    }
    let segments = fds.split_off(fds.len() - new);
    match reply.result {
        Ok(response) => Ok(ClientReply { response, fds, segments }),
        Err(r) => Err(ControlError::Refused { errno: r.errno, sentence: r.sentence }),
    }
}
