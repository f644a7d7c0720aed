//! The conversation with one client: its socket, the end of its process, and its session.
//!
//! The socket is non-blocking. A message that cannot be decoded ends the conversation, with a line in the log. The process is
//! watched by a pidfd beside the socket: a child that has inherited the socket must not hide that the program has exited.

use crate::clients::ClientToken;
use burst_base::{Nanos, Reason};
use burst_control::frame::{self, ControlHeader, ControlPacket};
use burst_control::{ControlError, FIRST_SEQUENCE, Refusal, Reply};
use burst_host::foreign::ForeignFds;
use burst_host::log_limit::LogCause;
use burst_host::{ClientProcess, Host, PacketAnswer, ReplyWithFds, Session};
use burst_ledger::Account;
use burst_peer::{PeerCredentials, PeerProcess, credentials};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tracing::{info, warn};

/// Requests of one client that are answered before the next client is served.
const REQUESTS_PER_PASS: usize = 64;

/// What is left of an account's turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnBudget {
    /// Requests that may be answered.
    pub requests: usize,
    /// When the time of the turn is over.
    pub until: Nanos,
}

/// Whether a conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversationState {
    /// The connection continues.
    Open,
    /// The connection has ended: the session must end too.
    Closed,
}

/// The conversation with one client.
pub struct Conversation {
    socket: OwnedFd,
    session: Session,
    /// Its number in the table of clients.
    pub token: Option<ClientToken>,
    /// Whether the end of its process is watched.
    pub watches_exit: bool,
    /// Whether its ring for commands is not marked as idle.
    pub is_awake: bool,
    /// The reply to a request that has steps left, with the request's number.
    unfinished: Option<(u32, Box<ReplyWithFds>)>,
}

impl Conversation {
    /// A client that has just connected.
    ///
    /// # Errors
    /// The client's account: the daemon, or the user, has as many connections as allowed. The client learns why as the reply to
    /// its first request, and the socket is closed.
    pub fn admit(socket: OwnedFd, host: &mut Host) -> Result<Conversation, Account> {
        let process = process_of(&socket);
        let admitted = Session::admit(host, process).and_then(|session| match host.counts_groups() {
            // Only now it is known whose control group was read.
            true if has_exited(&socket, process) => Err(exited()),
            _ => Ok(session),
        });
        match admitted {
            Ok(session) => Ok(Conversation {
                socket,
                session,
                token: None,
                watches_exit: false,
                is_awake: false,
                unfinished: None,
            }),
            Err(refusal) => {
                if host.may_log(LogCause::NoRoom, process.uid) {
                    info!(pid = process.pid, uid = process.uid, "connection refused: {}", refusal.sentence);
                }
                let reply = Reply { new_segments: 0, result: Err(refusal) };
                // The client has gone, or gets no sentence: the connection ends in any case.
                let _ = frame::send(&socket, FIRST_SEQUENCE, &reply, &[], SendFlags::DONTWAIT);
                let account = host.account_of(process);
                host.disposal.close_socket(&account, socket);
                Err(account)
            }
        }
    }

    /// Closes the socket. The session must have ended.
    pub fn close(self, host: &Host) {
        self.session.close_socket(host, self.socket);
    }

    /// The socket, to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A descriptor that is readable when the process has exited. `None` before the hello, and for a process that cannot be seen
    /// from here.
    pub fn process_exit(&self) -> Option<BorrowedFd<'_>> {
        self.session.peer().map(PeerProcess::exit)
    }

    /// The session of the client.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session of the client, to change.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Answers the requests that have arrived, at most [`REQUESTS_PER_PASS`], and takes them from `budget`. The commands in the
    /// ring are carried out in any case; after them no request is begun when the time of the turn is over.
    pub fn serve(&mut self, host: &mut Host, buffer: &mut [u8], budget: &mut TurnBudget) -> ConversationState {
        let most = REQUESTS_PER_PASS.min(budget.requests);
        let mut requests_left = most;
        let state = self.serve_some(host, buffer, &mut requests_left, budget.until);
        budget.requests -= most - requests_left;
        state
    }

    fn serve_some(
        &mut self,
        host: &mut Host,
        buffer: &mut [u8],
        requests_left: &mut usize,
        until: Nanos,
    ) -> ConversationState {
        let mut state = self.receive_commands(host, requests_left);
        if state == ConversationState::Open && self.is_unfinished() {
            state = self.finish(host, until);
            if self.is_unfinished() {
                return state;
            }
        }
        // The clock is read for each request: that costs less than a hundredth of receiving it and sending the reply.
        while state == ConversationState::Open && *requests_left > 0 && !self.is_unfinished() && host.now() < until {
            *requests_left -= 1;
            if host.refuses_next(self.session.account(), &self.socket) {
                return self.over_share(host);
            }
            let mut fds = Vec::new();
            let received = frame::receive(&self.socket, buffer, RecvFlags::DONTWAIT, &mut fds);
            let fds = self.session.foreign(host, fds);
            state = match received {
                // Commands in the ring were sent before this message: they come first.
                Ok(packet) => match self.receive_commands(host, requests_left) {
                    ConversationState::Open => self.answer(host, &packet, fds),
                    ConversationState::Closed => ConversationState::Closed,
                },
                Err(ControlError::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return ConversationState::Open;
                }
                Err(ControlError::Closed) => {
                    // The last commands of the program count.
                    self.receive_commands(host, requests_left);
                    ConversationState::Closed
                }
                Err(e) => self.disconnected(host, &e),
            };
        }
        state
    }

    /// Carries out the commands in the ring, and nothing else of the client.
    pub fn serve_commands(&mut self, host: &mut Host) -> ConversationState {
        self.receive_commands(host, &mut 0)
    }

    /// Carries out the commands in the ring; each counts as a request.
    fn receive_commands(&mut self, host: &mut Host, requests_left: &mut usize) -> ConversationState {
        match self.session.receive_commands(host) {
            Ok(count) => {
                *requests_left = requests_left.saturating_sub(count as usize);
                ConversationState::Open
            }
            Err(e) => self.disconnected(host, &e),
        }
    }

    /// Ends the conversation: descriptors that the user's programs have sent block while they are closed, and there are too many.
    fn over_share(&self, host: &mut Host) -> ConversationState {
        let ClientProcess { pid, uid } = self.session.process();
        if host.may_log(LogCause::Disconnected, uid) {
            let reason = Reason::UserShare.name();
            warn!(
                pid,
                uid, "client disconnected: too many descriptors that its user sent wait to be closed ({reason})"
            );
        }
        ConversationState::Closed
    }

    fn disconnected(&self, host: &mut Host, why: &ControlError) -> ConversationState {
        let ClientProcess { pid, uid } = self.session.process();
        if host.may_log(LogCause::Disconnected, uid) {
            warn!(pid, uid, program = self.session.program(), "client disconnected: {why}");
        }
        ConversationState::Closed
    }

    /// Decodes a message, carries the request out and sends the reply.
    fn answer(&mut self, host: &mut Host, packet: &ControlPacket<'_>, fds: ForeignFds) -> ConversationState {
        let sequence = packet.header.sequence;
        if !self.session.has_said_hello()
            && let Some(peer) = PeerProcess::of(&self.socket)
        {
            self.session.set_peer(peer);
        }
        let (reply, fds) = match self.session.answer_packet(host, packet, fds) {
            PacketAnswer::Nothing => return ConversationState::Open,
            PacketAnswer::Reply(reply) => *reply,
            PacketAnswer::WrongVersion(sentence) => return self.refuse_version(host, sequence, &sentence),
            PacketAnswer::Disconnect(why) => return self.disconnected(host, &why),
        };
        if self.session.is_unfinished() {
            self.unfinished = Some((sequence, Box::new((reply, fds))));
            return ConversationState::Open;
        }
        self.send(host, sequence, &reply, &fds)
    }

    /// Whether a request has steps left: it wants turns, whatever comes from the client.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Goes on with a request that has steps left until the turn is over, one step at least. Sends its reply after the last one.
    fn finish(&mut self, host: &mut Host, until: Nanos) -> ConversationState {
        while !self.session.continue_request(host) {
            if host.now() >= until {
                return ConversationState::Open;
            }
        }
        match self.unfinished.take() {
            Some((sequence, reply)) => self.send(host, sequence, &reply.0, &reply.1),
            None => ConversationState::Open,
        }
    }

    /// Sends a reply.
    fn send(&self, host: &mut Host, sequence: u32, reply: &Reply, fds: &[OwnedFd]) -> ConversationState {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        match frame::send(&self.socket, sequence, reply, &fds, SendFlags::DONTWAIT) {
            Ok(()) => ConversationState::Open,
            Err(e) => {
                let ClientProcess { pid, uid } = self.session.process();
                if host.may_log(LogCause::Disconnected, uid) {
                    warn!(
                        pid,
                        uid,
                        program = self.session.program(),
                        "client disconnected: it does not read its replies: {e}"
                    );
                }
                ConversationState::Closed
            }
        }
    }

    /// Refuses a client whose library has another version of the control messages.
    fn refuse_version(&self, host: &mut Host, sequence: u32, sentence: &str) -> ConversationState {
        let ClientProcess { pid, uid } = self.session.process();
        if host.may_log(LogCause::WrongVersion, uid) {
            warn!(pid, uid, "client refused: {sentence}");
        }
        // The conversation ends whether or not the client reads the sentence.
        let header = ControlHeader::new(sequence);
        let _ = frame::send_raw(&self.socket, header, sentence.as_bytes(), &[], SendFlags::DONTWAIT);
        ConversationState::Closed
    }
}

/// The process at the other end of a socket.
pub fn process_of(socket: &OwnedFd) -> ClientProcess {
    match credentials::of(socket) {
        Ok(PeerCredentials { pid, uid }) => ClientProcess { pid, uid },
        Err(_) => ClientProcess { pid: 0, uid: u32::MAX },
    }
}

/// Whether the process that connected has exited: its number may be another one's by now. One that is not visible has not.
fn has_exited(socket: &OwnedFd, process: ClientProcess) -> bool {
    process.pid != 0 && PeerProcess::of(socket).is_none_or(|peer| peer.has_exited())
}

/// A connection that a process has left to another one before it was admitted: nothing says whose control group's it is.
fn exited() -> Refusal {
    let sentence = "the process that connected has exited, so that its control group is unknown (account_by = cgroup)";
    Refusal { errno: libc::ESRCH, sentence: sentence.into() }
}

impl AsMut<Session> for Conversation {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}
