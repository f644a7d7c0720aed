//! One client: its description, its context and its connection management.
//!
//! A session knows no socket: a request reaches it by [`Session::answer`] from a daemon's socket, from a simulator or from the
//! same process. Commands of connection management without a reply come through shared memory
//! ([`Session::receive_commands`]).

use crate::authority::{Caller, ClientProcess};
use crate::cm::CmClient;
use crate::cm::waits::WaitEnd;
use crate::context::Context;
use crate::device::PortChanges;
use crate::foreign::ForeignFds;
use crate::host::Host;
use crate::lent::is_lenders;
use crate::log_limit::LogCause;
use crate::refusal::{refuse, system};
use crate::reply::ReplyParts;
use crate::session_number::SessionNumber;
use burst_base::verbs::EventType;
use burst_base::{DeviceId, Nanos};
use burst_control::cm::CmId;
use burst_control::commands::CommandReceiver;
use burst_control::{AsyncObject, ControlError, Refusal, Reply, Request, Response};
use burst_ledger::{Account, Charge, Resource};
use burst_peer::PeerProcess;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tracing::{debug, info};

/// Maximum length of a program's name, in characters.
const PROGRAM_MAX: usize = 64;

/// Descriptors of a connection: the socket and the pidfd.
const SESSION_DESCRIPTORS: u64 = 2;

/// Objects that are released in one step of a session's end.
pub const ENDED_AT_ONCE: usize = 256;

/// A reply and the descriptors to send with it.
pub type ReplyWithFds = (Reply, Vec<OwnedFd>);

/// One client.
pub struct Session {
    number: SessionNumber,
    caller: Caller,
    /// What the connection itself costs.
    _charge: Charge,
    program: String,
    said_hello: bool,
    context: Option<Context>,
    /// The number by which other connections of the program name the context.
    token: Option<u64>,
    cm: Option<CmClient>,
    commands: Option<CommandReceiver>,
    /// What the ring of commands costs.
    commands_charge: Option<Charge>,
    /// The worker number that is lent to the client.
    lease: Option<usize>,
    /// How many queue pairs the program had when its session began to end.
    left_behind: Option<usize>,
}

impl Session {
    /// A client that has just connected.
    ///
    /// # Errors
    /// EMFILE, ENOMEM: the user has as many connections as one user may have, or the daemon has no room for another.
    pub fn admit(host: &Host, process: ClientProcess) -> Result<Session, Refusal> {
        let caller = Caller { process, peer: None, account: host.account_of(process), is_own: false };
        let charge = caller.charge(&[(Resource::Session, 1), (Resource::Descriptor, SESSION_DESCRIPTORS)])?;
        Ok(Session {
            number: host.cm.session_number(),
            caller,
            _charge: charge,
            program: String::new(),
            said_hello: false,
            context: None,
            token: None,
            cm: None,
            commands: None,
            commands_charge: None,
            lease: None,
            left_behind: None,
        })
    }

    /// A client that is the program in whose process the host runs. A region that it registers as one piece
    /// (`MrPieceKind::InProcess`) is reached by its address; one without pieces by the kernel, which checks each access.
    ///
    /// # Errors
    /// As [`Session::admit`].
    ///
    /// # Safety
    /// The program keeps memory that it registers as one piece mapped, with the rights of the region, until the request that
    /// ends the region has been answered, or the session has ended.
    pub unsafe fn admit_own(host: &Host) -> Result<Session, Refusal> {
        let uid = rustix::process::geteuid().as_raw();
        let process = ClientProcess { pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(), uid };
        let mut session = Session::admit(host, process)?;
        session.caller.is_own = true;
        Ok(session)
    }

    /// The number of the session.
    pub fn number(&self) -> SessionNumber {
        self.number
    }

    /// The client's process.
    pub fn process(&self) -> ClientProcess {
        self.caller.process
    }

    /// Sets the kernel's description of the client's process. Without it, only the owner of a private daemon has privileges.
    pub fn set_peer(&mut self, peer: PeerProcess) {
        self.caller.peer = Some(Arc::new(peer));
    }

    /// The kernel's description of the client's process.
    pub fn peer(&self) -> Option<&PeerProcess> {
        self.caller.peer.as_deref()
    }

    /// The name of the client's program, from its hello.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Whether the client has sent its hello.
    pub fn has_said_hello(&self) -> bool {
        self.said_hello
    }

    /// The account that pays for the client.
    pub fn account(&self) -> &Account {
        &self.caller.account
    }

    /// Whether the client has a ring for commands.
    pub fn has_command_ring(&self) -> bool {
        self.commands.is_some()
    }

    /// Whether the client has a context.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Closes the client's socket, after the session has ended.
    pub fn close_socket(&self, host: &Host, socket: OwnedFd) {
        host.disposal.close_socket(&self.caller.account, socket);
    }

    /// Descriptors that the client has sent.
    pub fn foreign(&self, host: &Host, fds: Vec<OwnedFd>) -> ForeignFds {
        ForeignFds::new(fds, &self.caller.account, &host.disposal)
    }

    /// Carries out a request. Returns the reply and its descriptors; `None` for a request that has no reply.
    pub fn answer(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Option<ReplyWithFds> {
        host.pulse.serve_process(self.caller.process.pid, self.caller.process.uid);
        debug!(pid = self.caller.process.pid, ?request, "request");
        if request.is_without_reply() && self.said_hello {
            self.handle_without_reply(host, request);
            return None;
        }
        let ReplyParts { response, mut fds, segments } = match self.handle(host, request, fds) {
            Ok(parts) => parts,
            Err(refusal) => {
                self.log_refusal(host, &refusal);
                host.note_refusal(&self.caller, &self.program, &refusal);
                return Some((Reply { new_segments: 0, result: Err(refusal) }, Vec::new()));
            }
        };
        let reply = Reply { new_segments: segments.len() as u32, result: Ok(response) };
        fds.extend(segments);
        Some((reply, fds))
    }

    /// Whether the last request has steps left. Its reply is to be sent, and the next request to be carried out, after the last
    /// of them: [`Session::continue_request`].
    pub fn is_unfinished(&self) -> bool {
        self.context.as_ref().is_some_and(Context::is_holding)
    }

    /// A step of the last request, short enough for a turn. Returns whether it was the last one.
    pub fn continue_request(&mut self, host: &mut Host) -> bool {
        self.context.as_mut().is_none_or(|context| context.continue_hold(host))
    }

    /// Refuses what comes before the hello, and what a program that has borrowed its device asks of its own engine.
    fn check_turn(&self, host: &Host, request: &Request) -> Result<(), Refusal> {
        if !self.said_hello && !matches!(request, Request::Hello { .. }) {
            return refuse(libc::EPROTO, "say hello first");
        }
        match is_lenders(request).filter(|_| host.is_lent) {
            Some(what) => {
                refuse(libc::EOPNOTSUPP, format!("{what} is not for programs in lent mode: run it without BURST_MODE"))
            }
            None => Ok(()),
        }
    }

    /// Carries out a request that has a reply, or its first step: [`Session::is_unfinished`].
    ///
    /// # Errors
    /// The refusal for the client.
    pub fn handle(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        self.check_turn(host, &request)?;
        match request {
            Request::Hello { program } => {
                self.said_hello = true;
                self.program = program.chars().filter(|c| !c.is_control()).take(PROGRAM_MAX).collect();
                Ok(Response::Daemon(host.info()).into())
            }
            Request::DaemonInfo => Ok(Response::Daemon(host.info()).into()),
            Request::ListDevices => {
                host.refresh();
                let now = host.now();
                Ok(Response::Devices(host.devices.iter().map(|d| d.info_at(now)).collect()).into())
            }
            asked @ (Request::Impair { .. } | Request::SetCc { .. } | Request::Log { .. }) => self.change(host, asked),
            Request::Capture { device, snap } => host.capture(&self.caller, device, snap),
            asked @ (Request::Stats
            | Request::Crashes
            | Request::Users { .. }
            | Request::Failures(_)
            | Request::KeptPackets { .. }
            | Request::CmStats
            | Request::Cc { .. }
            | Request::CmConnections { .. }
            | Request::Urma { .. }
            | Request::Workers
            | Request::Histograms
            | Request::QueuePairs { .. }) => self.show(host, asked),
            Request::OpenContext { device } => self.open_context(host, device),
            Request::Token => self.token(host),
            Request::Lend => self.borrow(host),
            Request::CmCommandRing => self.create_command_ring(host),
            Request::CmChannel { channel } => self.cm(host).create_channel(channel),
            Request::CmCloseChannel { channel } => self.cm(host).close_channel(channel),
            Request::Cm { commands } => Ok(Response::Cm(self.cm(host).carry_out(host, &commands)).into()),
            other => self.ask_context(host, other, fds),
        }
    }

    /// A request on the context's objects.
    fn ask_context(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        let Some(context) = &mut self.context else { return refuse(libc::EPROTO, "open a context first") };
        let result = context.handle(host, request, fds);
        crate::context::check::check(context);
        result
    }

    /// Answers a request about what the host keeps, which changes nothing.
    fn show(&self, host: &mut Host, request: Request) -> Result<ReplyParts, Refusal> {
        match request {
            Request::Stats => Ok(Response::Stats(host.stats()).into()),
            Request::Crashes => Ok(Response::Crashes(host.crashes_for(self.caller.process.uid)).into()),
            Request::Users { from } => Ok(host.users(&self.caller.account, self.caller.process.uid, from).into()),
            Request::Failures(query) => Ok(host.failures(self.caller.process.uid, query).into()),
            Request::KeptPackets { of } => host.kept_packets(self.caller.process.uid, of),
            Request::CmStats => Ok(Response::CmStats(host.cm_stats()).into()),
            Request::Cc { from } => Ok(host.congestion(self.caller.process.uid, from).into()),
            Request::CmConnections { from } => Ok(host.cm_connections(self.caller.process.uid, from).into()),
            Request::Urma { from } => Ok(Response::Urma(host.urma_page_for(&self.caller, from)).into()),
            Request::Histograms => Ok(Response::Histograms(host.histograms()).into()),
            Request::Workers => Ok(Response::Workers(host.worker_uses()).into()),
            Request::QueuePairs { from } => Ok(host.queue_pairs(self.caller.process.uid, from).into()),
            _ => refuse(libc::EPROTO, "not a question about the host"),
        }
    }

    /// Answers a request that changes how the host works, for all programs.
    fn change(&self, host: &mut Host, request: Request) -> Result<ReplyParts, Refusal> {
        let uid = self.caller.process.uid;
        match request {
            Request::Impair { device, options, time_ns } => host.impair(uid, device, options, Nanos(time_ns)),
            Request::SetCc { kind, cc } => host.set_cc(uid, kind.as_deref(), &cc),
            Request::Log { levels } => host.log_levels(uid, levels.as_deref()),
            _ => refuse(libc::EPROTO, "not a change of the host"),
        }
    }

    /// Carries out a request on queue pairs that has no reply.
    fn handle_without_reply(&mut self, host: &mut Host, request: Request) {
        match (request, &mut self.context) {
            (Request::ModifyQpWithoutReply { qp, attr, mask }, Some(context)) => {
                context.modify_qp_without_reply(host, qp, attr, mask)
            }
            (Request::DropQps { qps }, Some(context)) => context.drop_qps(host, &qps),
            (other, _) => debug!(pid = self.caller.process.pid, request = ?other, "ignored: the client has no context"),
        }
    }

    /// Logs a refusal: the program learns only its errno.
    fn log_refusal(&self, host: &mut Host, refusal: &Refusal) {
        let (ClientProcess { pid, uid }, errno, program) = (self.caller.process, refusal.errno, &self.program);
        if host.may_log(LogCause::Refused, uid) {
            info!(pid, uid, program, errno, "refused: {}", refusal.sentence);
        } else {
            debug!(pid, uid, program, errno, "refused: {}", refusal.sentence);
        }
    }

    /// The client's ids and event channels.
    fn cm(&mut self, host: &Host) -> &mut CmClient {
        let workers = || host.cm_places.clone();
        self.cm.get_or_insert_with(|| CmClient::new(&self.program, self.caller.clone(), self.number, workers()))
    }

    /// Creates the ring for commands without replies.
    fn create_command_ring(&mut self, host: &Host) -> Result<ReplyParts, Refusal> {
        if self.commands.is_some() {
            return refuse(libc::EEXIST, "this connection has a ring for commands already");
        }
        let charge = self.caller.charge(&crate::context::RING_COST)?;
        let (fd, commands) = CommandReceiver::create().map_err(system("make a ring for commands"))?;
        self.cm(host);
        (self.commands, self.commands_charge) = (Some(commands), Some(charge));
        Ok(ReplyParts::with_fds(Response::Done, vec![fd]))
    }

    /// A number by which other connections of the program name this context. It cannot be guessed.
    fn token(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        let Some(context) = &self.context else { return refuse(libc::EPROTO, "open a context first") };
        let token = match self.token {
            Some(token) => token,
            None => host.random_number().or_else(|e| refuse(libc::EIO, e))?,
        };
        self.token = Some(token);
        host.cm.add_token(token, context.number());
        Ok(Response::Token(token).into())
    }

    /// Lends the client a worker number.
    fn borrow(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        if let Some(number) = self.lease {
            return refuse(libc::EPROTO, format!("this connection has worker number {number} already"));
        }
        let (number, reply) = host.lend(&self.caller)?;
        let ClientProcess { pid, uid } = self.caller.process;
        info!(pid, uid, program = self.program, number, "worker number lent");
        self.lease = Some(number);
        Ok(reply)
    }

    /// Whether the client has a worker number.
    pub fn has_number(&self) -> bool {
        self.lease.is_some()
    }

    fn open_context(&mut self, host: &mut Host, device: u32) -> Result<ReplyParts, Refusal> {
        if self.context.is_some() {
            return refuse(libc::EPROTO, "this connection has a context already");
        }
        let (context, reply) = Context::open(host, device, self.caller.clone(), &self.program)?;
        let ClientProcess { pid, uid } = self.caller.process;
        if host.may_log(LogCause::Opened, uid) {
            info!(pid, uid, program = self.program, device, "context opened");
        }
        self.context = Some(context);
        Ok(reply)
    }

    /// Carries out the commands in the ring. They have no replies; failures become events. Returns how many there were.
    ///
    /// # Errors
    /// The ring is damaged: the session must end.
    pub fn receive_commands(&mut self, host: &mut Host) -> Result<u32, ControlError> {
        let (Some(commands), Some(cm)) = (&mut self.commands, &mut self.cm) else { return Ok(0) };
        commands.receive(|command| cm.carry_out_without_reply(host, &command))
    }

    /// Call this before the control thread sleeps: the program's next command will wake it. Returns false if there are commands
    /// already.
    pub fn try_idle(&mut self) -> bool {
        self.commands.as_mut().is_none_or(CommandReceiver::try_idle)
    }

    /// Call this when the control thread is awake again: commands need not wake it.
    pub fn stay_awake(&mut self) {
        if let Some(commands) = &mut self.commands {
            commands.stay_awake();
        }
    }

    /// An id that waited for a next hop goes on.
    pub(crate) fn continue_resolving(&mut self, host: &mut Host, now: Nanos, id: CmId, how: WaitEnd) {
        if let Some(cm) = &mut self.cm {
            cm.continue_resolving(host, now, id, how);
        }
    }

    /// Writes asynchronous events for changes of a device's port: first that the link is down, then that addresses have changed,
    /// then that the link is up.
    pub fn port_changed(&mut self, device: DeviceId, changes: PortChanges) {
        let Some(context) = self.context.as_ref().filter(|c| c.device() == device) else { return };
        if changes.up == Some(false) {
            context.write_event(EventType::PortErr, AsyncObject::Port, 1);
        }
        if changes.gids {
            context.write_event(EventType::GidChange, AsyncObject::Port, 1);
        }
        if changes.up == Some(true) {
            context.write_event(EventType::PortActive, AsyncObject::Port, 1);
        }
    }

    /// Tells a client with a worker number that the host is about to end.
    pub fn announce_end(&self, host: &mut Host) {
        if let Some(number) = self.lease {
            host.announce_end_to(number);
        }
    }

    /// Writes the event IBV_EVENT_DEVICE_FATAL: the host is about to end.
    pub fn device_fatal(&mut self) {
        if let Some(context) = &self.context {
            context.write_event(EventType::DeviceFatal, AsyncObject::Device, 0);
        }
    }

    /// Moves all queue pairs to the error state, so that their work requests are flushed. To be called before the end of the
    /// host: the shared memory of the program keeps its contents from now on.
    pub fn fail_queue_pairs(&mut self, host: &mut Host) {
        if let Some(context) = &mut self.context {
            context.fail_queue_pairs(host);
        }
    }

    /// Releases all objects and tells the peers; the library of the program flushes what is posted, from the shared memory.
    pub fn abandon(&mut self, host: &mut Host) {
        if let Some(context) = &mut self.context {
            context.keep_contents();
        }
        self.end(host);
    }

    /// Ends connections and queue pairs, so that their peers learn of it, before the process of the host and of the program
    /// exits. What the program waits by stays: its threads may still run, and must not see the end of a host.
    pub fn leave_peers(&mut self, host: &mut Host) {
        if let Some(cm) = &mut self.cm {
            while !cm.end_ids(host, ENDED_AT_ONCE) {}
        }
        self.fail_queue_pairs(host);
    }

    /// Returns the memory of ended objects to the system.
    pub fn shrink(&mut self) {
        if let Some(cm) = &mut self.cm {
            cm.shrink();
        }
        if let Some(context) = &self.context {
            context.shrink();
        }
    }

    /// Releases all objects, also those that the program has left behind by dying.
    pub fn end(&mut self, host: &mut Host) {
        while !self.end_some(host, ENDED_AT_ONCE) {}
    }

    /// Releases about `budget` objects. Returns true when all have been released. A session that has begun to end serves no more
    /// requests: nothing else of it may be called.
    pub fn end_some(&mut self, host: &mut Host, budget: usize) -> bool {
        if let Some(number) = self.lease.take() {
            host.end_lease(number);
        }
        if let Some(cm) = &mut self.cm {
            if !cm.end_some(host, budget) {
                return false;
            }
            self.cm = None;
        }
        if let Some(token) = self.token.take() {
            host.cm.remove_token(token);
        }
        let Some(context) = &mut self.context else { return true };
        let left = *self.left_behind.get_or_insert(context.queue_pairs());
        if !context.close_some(host, budget) {
            return false;
        }
        if let Some(ended) = self.context.take() {
            ended.release(host);
        }
        let ClientProcess { pid, uid } = self.caller.process;
        if host.may_log(LogCause::Closed, uid) {
            info!(pid, uid, program = self.program, left, "context closed");
        }
        true
    }
}
