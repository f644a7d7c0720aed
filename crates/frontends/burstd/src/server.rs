//! The control socket of the daemon: it accepts clients, serves them in one event loop, handles signals, and ends.
//!
//! Everything is non-blocking: a client that sends half a message delays only itself. SIGTERM, SIGINT and SIGHUP stop accepting
//! and write the event IBV_EVENT_DEVICE_FATAL to every context; the daemon then waits up to [`DRAIN_MAX`] for programs to exit,
//! and ends. A second signal ends it at once.

use crate::config::Config;
use crate::conversation::{Conversation, ConversationState};
use crate::listener::{bind_socket, remove_socket};
use crate::signals::signal_pipe;
use burst_base::Nanos;
use burst_control::MESSAGE_MAX;
use burst_host::descriptors;
use burst_host::host::WORKER_GONE;
use burst_host::log_limit::LogCause;
use burst_host::{Host, Session, Upkeep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use tracing::{info, warn};

/// How long programs may take to exit after the first signal.
pub const DRAIN_MAX: Nanos = Nanos::from_ms(5000);

/// The daemon's event loop and everything that it owns.
pub struct Server {
    path: PathBuf,
    /// `None` once the daemon drains.
    listener: Option<OwnedFd>,
    signals: OwnedFd,
    clients: Vec<Conversation>,
    host: Host,
    upkeep: Upkeep,
    /// A descriptor that is closed to accept and refuse a client when no other is left.
    spare: Option<OwnedFd>,
    /// Room for one control message.
    buffer: Vec<u8>,
    /// The daemon ends when there has been no client for this long.
    idle_exit: Option<Nanos>,
    /// When the last client left, or the daemon started.
    idle_since: Nanos,
    /// When the first signal came.
    draining: Option<Nanos>,
}

impl Server {
    /// Binds the control socket. A socket file on which no process listens is replaced.
    ///
    /// # Errors
    /// A sentence.
    pub fn bind(config: &Config, host: Host) -> Result<Server, String> {
        let path = config.socket.clone();
        let listener = bind_socket(&path, config.socket_mode)?;
        let signals = signal_pipe().map_err(|e| format!("cannot take signals: {e}"))?;
        let now = host.now();
        Ok(Server {
            path,
            listener: Some(listener),
            signals,
            clients: Vec::new(),
            host,
            upkeep: Upkeep::new(now),
            spare: descriptors::spare(),
            buffer: vec![0; MESSAGE_MAX],
            idle_exit: config.idle_exit.map(|limit| Nanos(limit.as_nanos() as u64)),
            idle_since: now,
            draining: None,
        })
    }

    /// Announces that the daemon serves: log lines, and `ready` on the descriptor that the starter gave.
    ///
    /// # Errors
    /// A sentence when the descriptor cannot be written.
    pub fn announce(&self, ready_fd: Option<i32>) -> Result<(), String> {
        for d in &self.host.devices {
            let info = d.info();
            info!(
                device = info.name,
                port = info.port,
                mtu = info.link_mtu,
                gids = info.gids.len(),
                up = info.up,
                "device"
            );
        }
        info!(socket = %self.path.display(), workers = self.host.workers().len(), "serving");
        if let Some(fd) = ready_fd {
            // SAFETY: the starter gave this descriptor to us alone; nothing else in the process knows its number.
            let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
            rustix::io::write(&fd, b"ready\n").map_err(|e| format!("cannot write to the ready descriptor: {e}"))?;
        }
        Ok(())
    }

    /// Serves until the daemon is asked to end or has been idle for long enough.
    ///
    /// # Errors
    /// A sentence when a worker has died.
    pub fn serve(&mut self) -> Result<(), String> {
        loop {
            let ready = self.wait();
            if ready.signal && self.on_signal() {
                break;
            }
            if ready.accept {
                self.accept();
            }
            if ready.interfaces {
                self.upkeep.note_interface_events(self.host.now());
            }
            self.serve_clients(&ready);
            if self.upkeep.run(&mut self.host, &mut self.clients, ready.hops) {
                crate::return_heap();
            }
            if self.host.workers().iter().any(|w| !w.is_alive()) {
                return Err(WORKER_GONE.into());
            }
            if self.is_over() {
                break;
            }
        }
        self.close();
        Ok(())
    }

    /// Sleeps until a descriptor is readable or something is due.
    fn wait(&mut self) -> PollResult {
        if self.spare.is_none() {
            self.spare = descriptors::spare();
        }
        // Either a program sees that we are idle and wakes us for its next command, or we see the command here.
        let with_commands: Vec<usize> =
            (0..self.clients.len()).filter(|i| !self.clients[*i].session_mut().try_idle()).collect();
        let mut ready = self.sleep(with_commands.is_empty());
        self.clients.iter_mut().for_each(|c| c.session_mut().stay_awake());
        ready.clients.extend(with_commands);
        ready
    }

    fn sleep(&self, may_sleep: bool) -> PollResult {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.clients.iter().map(|c| PollFd::from_borrowed_fd(c.fd(), PollFlags::IN)));
        // Without a spare descriptor no client can be accepted or refused: clients wait in the backlog.
        let accept = if self.spare.is_some() { PollFlags::IN } else { PollFlags::empty() };
        fds.extend(self.listener.as_ref().map(|l| PollFd::new(l, accept)));
        let interfaces_at = fds.len();
        let interfaces = self.upkeep.interface_events().filter(|_| !self.clients.is_empty());
        fds.extend(interfaces.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let hops_at = fds.len();
        fds.extend(self.host.cm.hops.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let exits_at = fds.len();
        let exits = self.clients.iter().enumerate().filter_map(|(i, c)| Some((i, c.process_exit()?)));
        let (processes, exits): (Vec<_>, Vec<_>) =
            exits.map(|(i, fd)| (i, PollFd::from_borrowed_fd(fd, PollFlags::IN))).unzip();
        fds.extend(exits);
        let timeout = if may_sleep { self.timeout() } else { Some(Duration::ZERO) };
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        // An interrupted poll is a pass in which nothing is readable.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return PollResult::default();
        }
        let readable = |f: &PollFd<'_>| !f.revents().is_empty();
        let n = self.clients.len();
        PollResult {
            signal: readable(&fds[0]),
            accept: self.listener.is_some() && readable(&fds[n + 1]),
            interfaces: interfaces_at < hops_at && readable(&fds[interfaces_at]),
            hops: hops_at < exits_at && readable(&fds[hops_at]),
            clients: (0..n).filter(|i| readable(&fds[i + 1])).collect(),
            exited: processes.into_iter().zip(&fds[exits_at..]).filter(|(_, f)| readable(f)).map(|(i, _)| i).collect(),
        }
    }

    /// The time until something is due; `None`: nothing is.
    fn timeout(&self) -> Option<Duration> {
        let drain = self.draining.map(|since| since + DRAIN_MAX);
        let idle = self.idle_exit.filter(|_| self.clients.is_empty()).map(|limit| self.idle_since + limit);
        let due = [drain, idle, self.upkeep.due_at(&self.host, &self.clients)].into_iter().flatten().min()?;
        Some(burst_host::clock::duration(due.since(self.host.now())))
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.clients.extend(Conversation::admit(socket, &mut self.host)),
                Err(Errno::MFILE | Errno::NFILE) => {
                    drop(self.spare.take());
                    let refused = accept_with(listener, SocketFlags::CLOEXEC).map(|socket| uid_of(&socket));
                    self.spare = descriptors::spare();
                    let (Ok(uid), true) = (refused, self.spare.is_some()) else { return };
                    if self.host.may_log(LogCause::NoRoom, uid) {
                        warn!(
                            "no descriptor left for another client: raise the limit of open files (LimitNOFILE=, ulimit -Hn)"
                        );
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Serves the clients whose descriptors are readable, then ends the sessions of those that have left.
    ///
    /// A program's connection management and its context have connections of their own. Commands of connection management that
    /// were sent before a request on a queue pair must be in force when the request is carried out. So clients without a context
    /// are served first, and the commands of programs whose contexts have requests are carried out even if their descriptors are
    /// not readable.
    fn serve_clients(&mut self, ready: &PollResult) {
        let mut all: Vec<usize> = ready.clients.iter().chain(&ready.exited).copied().collect();
        all.sort_unstable();
        all.dedup();
        let (contexts, first): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|index| self.clients[**index].session().has_context());
        // The last requests of a process are carried out; then its exit counts, whichever child still holds the socket.
        let mut ended = ready.exited.clone();
        for index in self.other_connections(&all, &contexts) {
            if self.clients[index].serve_commands(&mut self.host) == ConversationState::Closed {
                ended.push(index);
            }
        }
        for (at, index) in first.iter().chain(&contexts).enumerate() {
            if at == first.len() {
                self.host.post_cm_jobs();
            }
            if self.clients[*index].serve(&mut self.host, &mut self.buffer) == ConversationState::Closed {
                ended.push(*index);
            }
        }
        ended.sort_unstable();
        ended.dedup();
        // From the last to the first, so that removing one does not move those still to be removed.
        for index in ended.into_iter().rev() {
            let mut gone = self.clients.swap_remove(index);
            gone.session_mut().end(&mut self.host);
            self.idle_since = self.host.now();
        }
    }

    /// The connections for connection management of the programs that own `contexts`, as far as they are not among `served`.
    fn other_connections(&self, served: &[usize], contexts: &[usize]) -> Vec<usize> {
        if contexts.is_empty() {
            return Vec::new();
        }
        debug_assert!(served.is_sorted());
        let pid = |session: &Session| session.process().pid;
        let owns = |session: &Session| contexts.iter().any(|i| pid(self.clients[*i].session()) == pid(session));
        let is_other = |index: &usize| {
            let session = self.clients[*index].session();
            session.has_cm() && owns(session) && served.binary_search(index).is_err()
        };
        (0..self.clients.len()).filter(is_other).collect()
    }

    /// Begins to drain. Returns true when the daemon must end at once.
    fn on_signal(&mut self) -> bool {
        let mut drain = [0; 64];
        let _ = rustix::io::read(&self.signals, &mut drain);
        if self.draining.is_some() {
            return true;
        }
        info!(clients = self.clients.len(), "asked to end: draining");
        self.draining = Some(self.host.now());
        self.listener = None;
        remove_socket(&self.path);
        for client in &mut self.clients {
            client.session_mut().device_fatal();
        }
        false
    }

    fn is_over(&self) -> bool {
        let now = self.host.now();
        if let Some(since) = self.draining {
            return self.clients.iter().all(|c| !c.session().has_context()) || now.since(since) >= DRAIN_MAX;
        }
        let idle = self.idle_exit.is_some_and(|limit| self.clients.is_empty() && now.since(self.idle_since) >= limit);
        if idle {
            info!("idle: ending");
        }
        idle
    }

    /// Ends the sessions that are left. Queue pairs are flushed and their peers notified, because the programs still run.
    fn close(&mut self) {
        if self.listener.take().is_some() {
            remove_socket(&self.path);
        }
        for mut client in std::mem::take(&mut self.clients) {
            client.session_mut().fail_queue_pairs(&mut self.host);
            client.session_mut().end(&mut self.host);
        }
        self.host.post_cm_jobs();
        info!("ended");
    }
}

/// The user at the other end of a socket.
fn uid_of(socket: &OwnedFd) -> u32 {
    burst_peer::credentials::of(socket).map_or(u32::MAX, |peer| peer.uid)
}

/// Descriptors that [`Server::wait`] found readable.
#[derive(Default)]
struct PollResult {
    /// A signal has come.
    signal: bool,
    /// A client has connected.
    accept: bool,
    /// The kernel has events of interfaces.
    interfaces: bool,
    /// The kernel has events of next hops.
    hops: bool,
    /// Indices of clients that have sent something.
    clients: Vec<usize>,
    /// Indices of clients whose processes have exited, in ascending order.
    exited: Vec<usize>,
}
