//! The host of a program and its sessions.
//!
//! A session is opened for each connection that a library makes: one for each context, and one for connection management.
//! Requests come as the packets that a daemon would get by its socket. Commands of connection management come by a ring; its
//! reader is always marked as asleep, so that each command is followed by a bell, which is a packet without a reply.

use crate::lender::{Lender, LenderState};
use burst_base::Nanos;
use burst_control::frame::{self, ControlHeader, ControlPacket, HEADER_BYTES};
use burst_control::in_process;
use burst_engine::handover::Inbox;
use burst_host::{Clock, Host, HostOptions, PacketAnswer, Session, Upkeep};
use burst_peer::PeerProcess;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A reply.
#[derive(Debug, Default)]
pub struct PacketReply {
    /// Its bytes; empty if the packet has no reply.
    pub bytes: Vec<u8>,
    /// Descriptors that go with it.
    pub fds: Vec<OwnedFd>,
}

/// The host and its sessions.
pub struct House {
    /// The control plane.
    pub host: Host,
    /// The open sessions, by number.
    sessions: Vec<OwnSession>,
    /// Periodic work.
    pub upkeep: Upkeep,
    /// How long a waiting thread looks for packets before it sleeps.
    pub spin: Nanos,
    next: u64,
    /// The daemon whose addresses this process shares. It must be dropped after the host's sockets.
    lender: Option<Lender>,
    inbox: Arc<Inbox>,
}

/// Gets a worker number of a daemon, and its settings.
fn borrow(options: &mut HostOptions) -> Result<Lender, String> {
    if crate::keeper::is_off() {
        return Err("lent mode needs the keeper, which sees when the daemon ends: leave BURST_KEEPER=off out".into());
    }
    let lender = Lender::find()?;
    lender.settle(options);
    Ok(lender)
}

struct OwnSession {
    number: u64,
    session: Session,
}

impl AsMut<Session> for OwnSession {
    fn as_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl House {
    /// Opens the ports and the host by the settings of this process.
    ///
    /// # Errors
    /// A sentence: a setting is wrong, a port cannot be opened, or there is no memory.
    pub fn open() -> Result<House, String> {
        let mut config = burst_config::for_this_process()?;
        if std::env::var_os("BURST_LOG_LEVEL").is_none() {
            // The lines go among those of the program.
            config.log_level = burst_config::LogLevel::Warn;
        }
        burst_config::log::try_init(config.log_level, config.log_format);
        burst_control::events::keep_readers();
        let lender = if in_process::is_lent() { Some(borrow(&mut config.host)?) } else { None };
        let host = match &lender {
            Some(lender) => Host::with_lent_ports(&config.host, Clock::Monotonic, lender.ports()?, lender.store())?,
            None => Host::with_ports(&config.host, Clock::Monotonic, crate::ports::open(&config.host)?)?,
        };
        let inbox = host.on_worker(0, |worker, _| worker.inbox().clone());
        let upkeep = Upkeep::new(host.now());
        let spin = Nanos(config.host.spin.as_nanos() as u64);
        // A child after fork may still hold numbers of its parent's sessions, and close them.
        let next = u64::from(std::process::id()) << 32 | 1;
        crate::process::note_lender(lender.iter().flat_map(Lender::fds));
        Ok(House { host, sessions: Vec::new(), upkeep, spin, next, lender, inbox })
    }

    /// Opens a session, and returns its number.
    ///
    /// # Errors
    /// A sentence: the account has no room for another.
    pub fn open_session(&mut self) -> Result<u64, String> {
        // SAFETY: the library keeps what it registers by address mapped until the region has ended, as its documents demand of
        // the program.
        let admitted = unsafe { Session::admit_own(&self.host) };
        let mut session = admitted.map_err(|refusal| refusal.sentence)?;
        if let Ok((ours, _theirs)) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            && let Some(peer) = PeerProcess::of(&ours)
        {
            session.set_peer(peer);
        }
        let number = self.next;
        self.next += 1;
        self.sessions.push(OwnSession { number, session });
        Ok(number)
    }

    /// Ends a session.
    pub fn close_session(&mut self, number: u64) {
        let Some(at) = self.sessions.iter().position(|s| s.number == number) else { return };
        self.receive_commands();
        let mut ended = self.sessions.remove(at).session;
        ended.end(&mut self.host);
        self.host.note_ended(1);
        self.host.post_cm_jobs();
    }

    /// Whether there is a session with this number.
    pub fn has_session(&self, number: u64) -> bool {
        self.sessions.iter().any(|s| s.number == number)
    }

    /// Answers a packet of a session.
    ///
    /// # Errors
    /// An errno: the session is unusable.
    pub fn call(&mut self, number: u64, bytes: &[u8], fds: &[RawFd]) -> Result<PacketReply, i32> {
        // Commands that were sent before the request come first.
        self.receive_commands();
        let at = self.sessions.iter().position(|s| s.number == number).ok_or(libc::EIO)?;
        let packet = ControlPacket::parse(bytes).map_err(|_| libc::EPROTO)?;
        let copies: Result<Vec<OwnedFd>, _> = fds.iter().map(|fd| duplicate(*fd)).collect();
        let copies = copies?;
        let session = &mut self.sessions[at].session;
        let fds = session.foreign(&self.host, copies);
        let sequence = packet.header.sequence;
        let answer = match session.answer_packet(&mut self.host, &packet, fds) {
            PacketAnswer::Nothing => PacketReply::default(),
            PacketAnswer::Reply(reply) => {
                let (reply, fds) = *reply;
                let bytes = frame::encode(sequence, &reply).map_err(|_| libc::EPROTO)?;
                PacketReply { bytes, fds }
            }
            PacketAnswer::WrongVersion(sentence) => {
                let mut bytes = ControlHeader::new(sequence).bytes().to_vec();
                debug_assert_eq!(bytes.len(), HEADER_BYTES);
                bytes.extend_from_slice(sentence.as_bytes());
                PacketReply { bytes, fds: Vec::new() }
            }
            PacketAnswer::Disconnect(why) => {
                tracing::warn!("session ended: {why}");
                self.close_session(number);
                return Err(libc::EPROTO);
            }
        };
        if let Some(open) = self.sessions.iter_mut().find(|open| open.number == number) {
            // The engine is this program's alone: no other program waits.
            while open.session.is_unfinished() && !open.session.continue_request(&mut self.host) {}
        }
        self.host.post_cm_jobs();
        Ok(answer)
    }

    /// Carries out the commands in all rings, and marks their reader as asleep.
    fn receive_commands(&mut self) {
        let mut damaged = Vec::new();
        for OwnSession { number, session } in self.sessions.iter_mut().filter(|s| s.session.has_command_ring()) {
            loop {
                if let Err(why) = session.receive_commands(&mut self.host) {
                    tracing::warn!("session ended: {why}");
                    damaged.push(*number);
                    break;
                }
                if session.try_idle() {
                    break;
                }
            }
        }
        self.host.post_cm_jobs();
        for number in damaged {
            if let Some(at) = self.sessions.iter().position(|s| s.number == number) {
                self.sessions.remove(at).session.end(&mut self.host);
            }
        }
    }

    /// Carries out what is due. `hops_readable`: the kernel has events of next hops.
    pub fn keep_up(&mut self, interfaces_readable: bool, hops_readable: bool) {
        if interfaces_readable {
            self.upkeep.note_interface_events(self.host.now());
        }
        self.upkeep.run(&mut self.host, self.sessions.as_mut_slice(), hops_readable);
    }

    /// When [`House::keep_up`] must be called next.
    pub fn due_at(&self) -> Option<Nanos> {
        self.upkeep.due_at(&self.host, !self.sessions.is_empty())
    }

    /// Looks at the daemon that has lent the number, if one has. When it is about to end, the programs' libraries learn of it.
    pub fn look_at_lender(&mut self) -> LenderState {
        let Some(lender) = &mut self.lender else { return LenderState::Serves };
        let state = lender.look(&self.inbox);
        if state == LenderState::Ends {
            self.sessions.iter_mut().for_each(|own| own.session.device_fatal());
        }
        state
    }

    /// Descriptors that are readable when there is news of that daemon.
    pub fn lender_fds(&self) -> impl Iterator<Item = RawFd> {
        self.lender.iter().flat_map(Lender::fds)
    }

    /// Ends all sessions. The next passes tell the peers; the libraries flush all requests, with one reason.
    pub fn end_sessions(&mut self) {
        self.sessions.iter_mut().for_each(|own| own.session.abandon(&mut self.host));
        self.host.post_cm_jobs();
    }

    /// The process exits: peers are told.
    pub fn leave_peers(&mut self) {
        for OwnSession { session, .. } in &mut self.sessions {
            session.leave_peers(&mut self.host);
        }
        self.host.post_cm_jobs();
    }
}

/// A copy of a descriptor of the program.
fn duplicate(fd: RawFd) -> Result<OwnedFd, i32> {
    // SAFETY: the number is used for this call only; one that is not open gives EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0).map_err(|e| e.raw_os_error())
}
