//! One client: its conversation, and its context if it opened one.

use crate::cm::{CmClient, HopChanges};
use crate::context::{Context, ReplyParts};
use crate::device::PortChanges;
use crate::host::Host;
use burst_base::DeviceId;
use burst_base::verbs::EventType;
use burst_control::commands::CommandReceiver;
use burst_control::frame::{self, ControlHeader, ControlPacket};
use burst_control::{AsyncObject, ControlError, Counter, Refusal, Reply, Request, Response};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use tracing::{debug, info, warn};

/// Whether a client stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It stays.
    Open,
    /// The conversation is over.
    Closed,
}

/// Requests answered before other clients get their turn.
const REQUESTS_PER_PASS: usize = 64;
/// Refusals of one client that are logged at level info.
const REFUSALS_LOGGED_MAX: u32 = 16;

/// See the module.
pub struct Session {
    socket: OwnedFd,
    /// The process that said hello: readable when it has ended. A child that inherited the socket must not hide that.
    life: Option<OwnedFd>,
    pid: u32,
    uid: u32,
    program: String,
    said_hello: bool,
    refusals: u32,
    context: Option<Context>,
    token: Option<u64>,
    cm: Option<CmClient>,
    wishes: Option<CommandReceiver>,
}

/// A refusal with its errno.
pub fn refuse<T>(errno: i32, sentence: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, sentence: sentence.into() })
}

impl Session {
    /// A client that has just connected.
    pub fn new(socket: OwnedFd) -> Session {
        let peer = rustix::net::sockopt::socket_peercred(&socket);
        let (pid, uid) = peer.map_or((0, u32::MAX), |c| (c.pid.as_raw_nonzero().get() as u32, c.uid.as_raw()));
        Session {
            socket,
            life: None,
            pid,
            uid,
            program: String::new(),
            said_hello: false,
            refusals: 0,
            context: None,
            token: None,
            cm: None,
            wishes: None,
        }
    }

    /// What to wait on for the end of the process; none before hello, or for a process that cannot be seen from here.
    pub fn life(&self) -> Option<BorrowedFd<'_>> {
        self.life.as_ref().map(AsFd::as_fd)
    }

    /// The socket, to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has to do with connection management.
    pub fn has_cm(&self) -> bool {
        self.cm.is_some()
    }

    /// Whether it has a context.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Answers what has arrived.
    pub fn serve(&mut self, host: &mut Host, buffer: &mut [u8]) -> SessionState {
        let mut turns = REQUESTS_PER_PASS;
        let mut verdict = self.carry_out_wishes(host, &mut turns);
        while verdict == SessionState::Open && turns > 0 {
            turns -= 1;
            verdict = match frame::receive(&self.socket, buffer, RecvFlags::DONTWAIT) {
                Ok(packet) => match self.carry_out_wishes(host, &mut turns) {
                    SessionState::Open if !(packet.is_bell() && self.said_hello) => self.answer(host, packet),
                    other => other,
                },
                Err(ControlError::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => return SessionState::Open,
                Err(ControlError::Closed) => {
                    // What it wished last counts.
                    self.carry_out_wishes(host, &mut turns);
                    SessionState::Closed
                }
                Err(e) => self.disconnected(&e),
            };
        }
        verdict
    }

    /// Carries out what was wished until now, at the cost of `turns`. CommandReceiver have no answer; their failures become events.
    fn carry_out_wishes(&mut self, host: &mut Host, turns: &mut usize) -> SessionState {
        let (Some(wishes), Some(cm)) = (&mut self.wishes, &mut self.cm) else { return SessionState::Open };
        match wishes.receive(|op| cm.wish(host, &op)) {
            Ok(count) => {
                *turns = turns.saturating_sub(count as usize);
                SessionState::Open
            }
            Err(e) => self.disconnected(&e),
        }
    }

    /// Carries out what was wished until now; nothing else that the program has to say.
    pub fn serve_wishes(&mut self, host: &mut Host) -> SessionState {
        self.carry_out_wishes(host, &mut 0)
    }

    /// When the next of its ids gives its next hop up, if any waits for one.
    pub fn gives_up_at(&self) -> Option<Instant> {
        self.cm.as_ref().and_then(CmClient::gives_up_at)
    }

    /// Tells its ids what has become of the next hops that they wait for.
    pub fn resolve_on(&mut self, host: &mut Host, now: Instant, news: &HopChanges) {
        if let Some(cm) = &mut self.cm {
            cm.resolve_on(host, now, news);
        }
    }

    /// Before the daemon sleeps: this program's next wish shall wake it. False: there are wishes already.
    pub fn try_idle(&mut self) -> bool {
        self.wishes.as_mut().is_none_or(CommandReceiver::try_idle)
    }

    /// The daemon is awake.
    pub fn stay_awake(&mut self) {
        if let Some(wishes) = &mut self.wishes {
            wishes.stay_awake();
        }
    }

    fn disconnected(&self, why: &ControlError) -> SessionState {
        warn!(pid = self.pid, uid = self.uid, program = self.program, "client disconnected: {why}");
        SessionState::Closed
    }

    fn answer(&mut self, host: &mut Host, mut packet: ControlPacket<'_>) -> SessionState {
        let sequence = packet.header.sequence;
        let request = match packet.decode::<Request>() {
            Ok(request) => request,
            Err(ControlError::Version { theirs, .. }) => return self.refuse_version(sequence, theirs),
            Err(e) => return self.disconnected(&e),
        };
        debug!(pid = self.pid, ?request, "request");
        let fds = std::mem::take(&mut packet.fds);
        if request.is_without_reply() && self.said_hello {
            self.quietly(host, request);
            return SessionState::Open;
        }
        let (result, out, segments) = match self.handle(host, request, fds) {
            Ok(ReplyParts { response, fds, segments }) => (Ok(response), fds, segments),
            Err(refusal) => {
                self.log_refusal(&refusal);
                (Err(refusal), Vec::new(), Vec::new())
            }
        };
        let reply = Reply { new_segments: segments.len() as u32, result };
        let all: Vec<BorrowedFd<'_>> = out.iter().chain(&segments).map(AsFd::as_fd).collect();
        match frame::send(&self.socket, sequence, &reply, &all, SendFlags::DONTWAIT) {
            Ok(()) => SessionState::Open,
            Err(e) => {
                warn!(pid = self.pid, program = self.program, "client disconnected: it does not take its answers: {e}");
                SessionState::Closed
            }
        }
    }

    /// The program learns a number only, so the sentence stands in the log; a program that goes on asking does not fill it.
    fn log_refusal(&mut self, refusal: &Refusal) {
        self.refusals = self.refusals.saturating_add(1);
        let (pid, errno, program) = (self.pid, refusal.errno, &self.program);
        if self.refusals <= REFUSALS_LOGGED_MAX {
            info!(pid, program, errno, "refused: {}", refusal.sentence);
        } else {
            debug!(pid, program, errno, "refused: {}", refusal.sentence);
        }
    }

    fn refuse_version(&self, sequence: u32, theirs: u32) -> SessionState {
        let sentence = format!(
            "burstd {} speaks version {}, your library version {theirs}; use the library that came with the daemon",
            env!("CARGO_PKG_VERSION"),
            burst_shm::ABI_VERSION
        );
        warn!(pid = self.pid, "client refused: {sentence}");
        // The client is turned away in any case.
        let _ =
            frame::send_raw(&self.socket, ControlHeader::new(sequence), sentence.as_bytes(), &[], SendFlags::DONTWAIT);
        SessionState::Closed
    }

    fn handle(&mut self, host: &mut Host, request: Request, fds: Vec<OwnedFd>) -> Result<ReplyParts, Refusal> {
        if !self.said_hello && !matches!(request, Request::Hello { .. }) {
            return refuse(libc::EPROTO, "say hello first");
        }
        match request {
            Request::Hello { program } => {
                self.said_hello = true;
                self.life = life_of(self.pid);
                self.program = program.chars().filter(|c| !c.is_control()).take(64).collect();
                Ok(Response::Daemon(host.info()).into())
            }
            Request::DaemonInfo => Ok(Response::Daemon(host.info()).into()),
            Request::ListDevices => {
                host.refresh();
                Ok(Response::Devices(host.devices.iter().map(|d| d.info()).collect()).into())
            }
            Request::Stats => Ok(Response::Stats(stats(host)).into()),
            Request::OpenContext { device } => self.open(host, device),
            Request::Token => self.token(host),
            Request::CmStats => Ok(Response::CmStats(host.cm_stats()).into()),
            Request::CmConnections { from } => Ok(host.cm_connections(from).into()),
            Request::CmCommandRing => self.lane(),
            Request::CmChannel { channel } => self.cm().create_channel(channel),
            Request::CmCloseChannel { channel } => self.cm().close_channel(channel),
            Request::Cm { commands } => Ok(Response::Cm(self.cm().carry_out(host, &commands)).into()),
            other => match &mut self.context {
                Some(context) => context.handle(host, other, fds),
                None => refuse(libc::EPROTO, "open a context first"),
            },
        }
    }

    /// Its ids and event channels.
    fn cm(&mut self) -> &mut CmClient {
        self.cm.get_or_insert_with(|| CmClient::new(&self.program, self.pid))
    }

    /// The way of its wishes.
    fn lane(&mut self) -> Result<ReplyParts, Refusal> {
        if self.wishes.is_some() {
            return refuse(libc::EEXIST, "this connection has a lane already");
        }
        let made = CommandReceiver::create().map_err(|e| Refusal {
            errno: e.raw_os_error().unwrap_or(libc::ENOMEM),
            sentence: format!("cannot make a lane for wishes: {e}"),
        });
        let (fd, wishes) = made?;
        self.cm();
        self.wishes = Some(wishes);
        Ok(ReplyParts { response: Response::Done, fds: vec![fd], segments: Vec::new() })
    }

    /// Operations on queue pairs without replies.
    fn quietly(&mut self, host: &mut Host, request: Request) {
        match (request, &mut self.context) {
            (Request::ModifyQpWithoutReply { qp, attr, mask }, Some(context)) => {
                context.modify_qp_quietly(host, qp, attr, mask)
            }
            (Request::DropQps { qps }, Some(context)) => context.drop_qps(host, &qps),
            (other, _) => debug!(pid = self.pid, request = ?other, "nobody to carry this out"),
        }
    }

    /// A number that proves that a queue pair of this context is the caller's.
    fn token(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        let Some(context) = &self.context else { return refuse(libc::EPROTO, "open a context first") };
        let token = match self.token {
            Some(token) => token,
            None => crate::host::random_number().or_else(|e| refuse(libc::EIO, e))?,
        };
        self.token = Some(token);
        host.cm.know_token(token, context.number());
        Ok(Response::Token(token).into())
    }

    fn open(&mut self, host: &mut Host, device: u32) -> Result<ReplyParts, Refusal> {
        if self.context.is_some() {
            return refuse(libc::EPROTO, "this connection has a context already");
        }
        let (context, outcome) = Context::open(host, device, (self.pid, self.uid))?;
        info!(pid = self.pid, uid = self.uid, program = self.program, device, "context opened");
        self.context = Some(context);
        Ok(outcome)
    }

    /// The device's port went up or down, or changed addresses: first a loss, then addresses, then that it works again.
    pub fn port_changed(&mut self, device: DeviceId, news: PortChanges) {
        let Some(context) = self.context.as_ref().filter(|c| c.device() == device) else { return };
        if news.up == Some(false) {
            context.tell(EventType::PortErr, AsyncObject::Port, 1);
        }
        if news.gids {
            context.tell(EventType::GidChange, AsyncObject::Port, 1);
        }
        if news.up == Some(true) {
            context.tell(EventType::PortActive, AsyncObject::Port, 1);
        }
    }

    /// The daemon is about to end.
    pub fn device_fatal(&mut self) {
        if let Some(context) = &self.context {
            context.tell(EventType::DeviceFatal, AsyncObject::Device, 0);
        }
    }

    /// Moves all queue pairs to error, so that their completions are flushed.
    pub fn fail_queue_pairs(&mut self, host: &mut Host) {
        if let Some(context) = &mut self.context {
            context.fail_queue_pairs(host);
        }
    }

    /// Gives back the room of what has ended.
    pub fn shrink(&mut self) {
        if let Some(cm) = &mut self.cm {
            cm.shrink();
        }
        if let Some(context) = &self.context {
            context.shrink();
        }
    }

    /// Gives everything back. What the program had not closed itself was left by its death.
    pub fn end(&mut self, host: &mut Host) {
        if let Some(mut cm) = self.cm.take() {
            cm.end(host);
        }
        if let Some(token) = self.token.take() {
            host.cm.forget_token(token);
        }
        if let Some(mut context) = self.context.take() {
            let left = context.close(host);
            info!(pid = self.pid, program = self.program, left, "context closed");
        }
    }
}

/// A descriptor of a process. Kernels before 5.3 have none, nor has a process in a foreign PID namespace: then only the
/// socket tells of its end.
fn life_of(pid: u32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid as i32)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Sum over workers of every counter of every device.
fn stats(host: &Host) -> Vec<Counter> {
    let mut all = Vec::new();
    for device in &host.devices {
        let id = device.id;
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for worker in 0..host.workers().len() {
            let one = host.on_worker(worker, move |w, _| w.counters(id)).snapshot();
            if sums.is_empty() {
                sums = one;
            } else {
                sums.iter_mut().zip(one).for_each(|(s, o)| s.1 += o.1);
            }
        }
        let name = format!("burst{}", device.id);
        all.extend(sums.into_iter().map(|(counter, value)| Counter {
            name: counter.into(),
            device: name.clone(),
            value,
        }));
    }
    all
}
