//! The control socket of the daemon: it accepts clients, serves them in one event loop, handles signals, and ends.
//!
//! Everything is non-blocking: a client that sends half a message delays only itself. SIGTERM, SIGINT and SIGHUP stop accepting
//! and write the event IBV_EVENT_DEVICE_FATAL to every context; the daemon then waits up to [`DRAIN_MAX`] for programs to exit,
//! and ends. A second signal ends it at once. The end of the file of `end_with_fd` counts as a signal.

use crate::clients::{ClientToken, Clients, HELLO_MAX};
use crate::conversation::{Conversation, ConversationState, TurnBudget};
use crate::endings::Endings;
use crate::reserve::ReserveLog;
use crate::rounds::Rounds;
use crate::signals::signal_pipe;
use crate::systemd::{self, Notifier, WatchdogNotifier};
use burst_base::Nanos;
use burst_base::verbs::Mtu;
use burst_config::Config;
use burst_control::MESSAGE_MAX;
use burst_host::descriptors;
use burst_host::host::WORKER_GONE;
use burst_host::listener::{bind_socket, remove_socket};
use burst_host::log_limit::LogCause;
use burst_host::session::ENDED_AT_ONCE;
use burst_host::{Host, Session, Upkeep};
use burst_ledger::{Account, AccountId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use tracing::{info, warn};

/// How long programs may take to exit after the first signal.
pub const DRAIN_MAX: Nanos = Nanos::from_ms(5000);

/// Requests of the clients of one account that are answered before those of the next account.
const REQUESTS_PER_ACCOUNT: usize = 256;

/// Clients that are accepted in one pass.
const ACCEPTS_PER_PASS: usize = 64;

/// The daemon's event loop and everything that it owns.
pub struct Server {
    path: PathBuf,
    /// `None` once the daemon drains.
    listener: Option<OwnedFd>,
    /// Whether the socket's file is the daemon's own, to be removed at the end; that of a supervisor's socket is not.
    owns_file: bool,
    notifier: Notifier,
    watchdog: Option<WatchdogNotifier>,
    signals: OwnedFd,
    /// A pipe of the process that has started the daemon: at its end the daemon ends, too. `None` after that, or without one.
    end_with: Option<OwnedFd>,
    clients: Clients,
    host: Host,
    upkeep: Upkeep,
    /// A descriptor that is closed to accept and refuse a client when no other is left.
    spare: Option<OwnedFd>,
    reserve: ReserveLog,
    /// Room for one control message.
    buffer: Vec<u8>,
    /// The daemon ends when there has been no client for this long.
    idle_exit: Option<Nanos>,
    /// When the last client left, or the daemon started.
    idle_since: Nanos,
    /// When the first signal came.
    draining: Option<Nanos>,
    /// Clients that have left, whose sessions are being ended.
    ending: Endings,
    /// Which accounts have a turn, and for how long.
    rounds: Rounds,
    /// Number of passes.
    pass: usize,
}

impl Server {
    /// Takes over the control socket that the supervisor keeps, which comes as `listener`, or that systemd has bound; else
    /// binds it. A socket file on which no process listens is replaced.
    ///
    /// # Errors
    /// A sentence.
    pub fn bind(config: &Config, host: Host, listener: Option<OwnedFd>) -> Result<Server, String> {
        let path = config.socket.clone();
        let passed = systemd::passes_socket(&systemd::own_environment);
        let inherited =
            listener.map_or_else(|| systemd::listening_socket(&systemd::own_environment), |l| Ok(Some(l)))?;
        let listener = inherited.map_or_else(|| bind_socket(&path, config.socket_mode), Ok)?;
        let owns_file = !passed;
        let signals = signal_pipe().map_err(|e| format!("cannot take signals: {e}"))?;
        let not_open = |number| format!("the descriptor {number} of end_with_fd is not open");
        let end_with = config.end_with_fd.map(|fd| crate::inherited(fd).ok_or_else(|| not_open(fd))).transpose()?;
        let now = host.now();
        Ok(Server {
            path,
            listener: Some(listener),
            owns_file,
            notifier: Notifier::new(&systemd::own_environment),
            watchdog: WatchdogNotifier::new(&systemd::own_environment, now, host.workers().len()),
            signals,
            end_with,
            clients: Clients::default(),
            host,
            upkeep: Upkeep::new(now),
            spare: descriptors::spare(),
            reserve: ReserveLog::default(),
            buffer: vec![0; MESSAGE_MAX],
            idle_exit: config.idle_exit.map(|limit| Nanos(limit.as_nanos() as u64)),
            idle_since: now,
            draining: None,
            ending: Endings::default(),
            rounds: Rounds::default(),
            pass: 0,
        })
    }

    /// Starts the watchdog over this thread and the workers.
    ///
    /// # Errors
    /// A sentence when the system starts no thread.
    pub fn watch(&mut self) -> Result<(), String> {
        self.host.start_watchdog()
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
            if let Some(sentence) = small_mtu(&info.name, info.link_mtu) {
                warn!("{sentence}");
            }
        }
        info!(socket = %self.path.display(), workers = self.host.workers().len(), "serving");
        let names: Vec<String> = self.host.devices.iter().map(|d| d.info().name).collect();
        self.notifier.ready(&format!("serving {} at {}", names.join(", "), self.path.display()));
        if let Some(number) = ready_fd {
            let fd = crate::inherited(number).ok_or_else(|| format!("the ready descriptor {number} is not open"))?;
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
            self.host.pulse.beat();
            if ready.signal && self.on_signal() {
                break;
            }
            if ready.starter {
                self.look_at_starter();
            }
            if ready.accept {
                self.accept();
            }
            if ready.interfaces {
                self.upkeep.note_interface_events(self.host.now());
            }
            let hops = ready.hops;
            self.serve_clients(ready.accounts);
            self.reserve.refill();
            if self.upkeep.run(&mut self.host, &mut self.clients, hops) {
                self.clients.shrink();
                crate::return_heap();
            }
            if self.host.workers().iter().any(|w| !w.is_alive()) {
                return Err(WORKER_GONE.into());
            }
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.run(&self.host, &self.notifier);
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
        let has_work = self.clients.idle_rings();
        self.sleep(!has_work)
    }

    fn sleep(&self, may_sleep: bool) -> PollResult {
        let has_clients = !self.clients.all().is_empty();
        // Without a spare descriptor no client can be accepted or refused: clients wait in the backlog.
        let accept = if self.spare.is_some() { PollFlags::IN } else { PollFlags::empty() };
        let single = [
            (Some(self.signals.as_fd()), PollFlags::IN),
            (self.end_with.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (self.listener.as_ref().map(AsFd::as_fd), accept),
            (self.upkeep.interface_events().filter(|_| has_clients), PollFlags::IN),
            (self.host.cm.hops.fd(), PollFlags::IN),
        ];
        let accounts: Vec<(&Account, BorrowedFd<'_>)> = self.clients.fds().collect();
        let mut fds: Vec<PollFd<'_>> =
            single.iter().filter_map(|(fd, flags)| fd.map(|fd| PollFd::from_borrowed_fd(fd, *flags))).collect();
        let of_accounts = fds.len();
        fds.extend(accounts.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout = if may_sleep && self.ending.is_empty() { self.timeout() } else { Some(Duration::ZERO) };
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        self.host.pulse.rest();
        // An interrupted poll is a pass in which nothing is readable.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return PollResult::default();
        }
        let readable = |f: &PollFd<'_>| !f.revents().is_empty();
        let mut results = fds[..of_accounts].iter().map(readable);
        let [signal, starter, accept, interfaces, hops] =
            single.map(|(fd, _)| fd.is_some() && results.next().is_some_and(|is_readable| is_readable));
        let ready = accounts.iter().zip(&fds[of_accounts..]).filter(|(_, fd)| readable(fd));
        let accounts = ready.map(|((account, _), _)| (*account).clone()).collect();
        PollResult { signal, starter, accept, interfaces, hops, accounts }
    }

    /// The time until something is due; `None`: nothing is.
    fn timeout(&self) -> Option<Duration> {
        let drain = self.draining.map(|since| since + DRAIN_MAX);
        let idle = self.idle_exit.filter(|_| self.clients.all().is_empty()).map(|limit| self.idle_since + limit);
        let watchdog = self.watchdog.as_ref().map(WatchdogNotifier::due_at);
        let due = [
            drain,
            idle,
            watchdog,
            self.upkeep.due_at(&self.host, !self.clients.all().is_empty()),
            self.clients.silent_at(),
        ]
        .into_iter()
        .flatten()
        .min()?;
        Some(burst_host::clock::duration(due.since(self.host.now())))
    }

    /// Accepts some of the clients that wait.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_PASS {
            let Some(listener) = &self.listener else { return };
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.admit(socket),
                Err(Errno::MFILE | Errno::NFILE) => {
                    drop(self.spare.take());
                    let refused =
                        accept_with(listener, SocketFlags::CLOEXEC).map(|socket| turn_away(&self.host, socket));
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

    fn admit(&mut self, socket: OwnedFd) {
        let begin = self.host.now();
        let account = match Conversation::admit(socket, &mut self.host) {
            Ok(client) => {
                let (account, uid) = (client.session().account().clone(), client.session().process().uid);
                if let Err(refused) = self.clients.add(client, begin) {
                    let (client, error) = *refused;
                    client.close(&self.host);
                    if self.host.may_log(LogCause::NoRoom, uid) {
                        warn!(uid, "a client cannot be watched, and was disconnected: {error}");
                    }
                }
                account
            }
            Err(account) => account,
        };
        let spent = self.account_for(&account, begin);
        self.rounds.spent_besides(account.id(), spent);
    }

    /// Accounts for the time from `begin` until now. Returns it.
    fn account_for(&self, account: &Account, begin: Nanos) -> Nanos {
        let end = self.host.now();
        account.add_control_time(begin.0, end.0);
        end.since(begin)
    }

    /// Serves the accounts of whose clients some have sent something or have left, in turn: see [`Rounds`].
    fn serve_clients(&mut self, ready: Vec<Account>) {
        let mut turns = self.turns(ready);
        self.rounds.begin(turns.iter().map(|turn| turn.account.id()));
        // Another account is the first in each pass.
        self.pass = self.pass.wrapping_add(1);
        let first = self.pass % turns.len().max(1);
        turns.rotate_left(first);
        for turn in turns {
            let Some(time) = self.rounds.turn(turn.account.id()) else { continue };
            let begin = self.host.now();
            self.take_turn(&turn, begin + time);
            let spent = self.account_for(&turn.account, begin);
            self.rounds.spent_in_turn(turn.account.id(), time, spent);
        }
        self.end_silent();
    }

    /// The accounts that have something to do, in the order of their owners.
    fn turns(&self, ready: Vec<Account>) -> Vec<AccountTurn> {
        let mut turns: BTreeMap<AccountId, AccountTurn> = BTreeMap::new();
        let endings = self.ending.accounts().cloned().map(|account| (account, None));
        let commands = self.clients.with_work().into_iter().map(|(account, token)| (account, Some(token)));
        for (account, token) in ready.into_iter().map(|account| (account, None)).chain(endings).chain(commands) {
            let id = account.id().clone();
            let turn = turns.entry(id).or_insert_with(|| AccountTurn { account, with_work: Vec::new() });
            turn.with_work.extend(token);
        }
        turns.into_values().collect()
    }

    /// One account's turn: its clients' requests and commands, and the ends of its sessions. A step of these comes first, so
    /// that they go on however many requests there are.
    fn take_turn(&mut self, turn: &AccountTurn, until: Nanos) {
        self.continue_ending(turn.account.id());
        let mut ended = Vec::new();
        self.serve_account(turn, TurnBudget { requests: REQUESTS_PER_ACCOUNT, until }, &mut ended);
        // Indices change when clients are removed: after each account.
        self.end_clients(&mut ended);
        while self.host.now() < until && self.continue_ending(turn.account.id()) {}
        self.host.post_cm_jobs();
    }

    /// Serves clients of one account until its turn is over. Another client is the first in each turn.
    ///
    /// A program's connection management and its context have connections of their own. Commands of connection management that
    /// were sent before a request on a queue pair must be in force when the request is carried out. So the commands of a
    /// context's program are carried out before its requests, even if their descriptor is not readable.
    fn serve_account(&mut self, turn: &AccountTurn, mut budget: TurnBudget, ended: &mut Vec<usize>) {
        let ready = self.clients.ready(turn.account.id());
        let with_work = turn.with_work.iter().filter_map(|token| self.clients.index_of(*token));
        let mut all: Vec<usize> = ready.readable.iter().chain(&ready.exited).copied().chain(with_work).collect();
        all.sort_unstable();
        all.dedup();
        // Clients without a context first: the jobs of their commands are posted together.
        all.sort_by_key(|index| self.clients.all()[*index].session().has_context());
        let first = ready.turn % all.len().max(1);
        all.rotate_left(first);
        for index in all {
            if self.clients.all()[index].session().has_context() {
                self.carry_out_commands_beside(index, ended);
                self.host.post_cm_jobs();
            }
            let client = self.clients.get_mut(index);
            let state = client.serve(&mut self.host, &mut self.buffer, &mut budget);
            self.clients.served(index);
            // The last requests of a process are carried out; then its exit counts, whichever child still holds the socket.
            if state == ConversationState::Closed || ready.exited.binary_search(&index).is_ok() {
                ended.push(index);
            }
            if self.host.now() >= budget.until {
                return;
            }
        }
    }

    /// Carries out the commands of the program of a context.
    fn carry_out_commands_beside(&mut self, context: usize, ended: &mut Vec<usize>) {
        for index in self.clients.rings_beside(context) {
            if self.clients.get_mut(index).serve_commands(&mut self.host) == ConversationState::Closed {
                ended.push(index);
            }
        }
    }

    /// Disconnects clients that have not said hello in time.
    fn end_silent(&mut self) {
        let mut silent = self.clients.silent(self.host.now());
        for index in &silent {
            let process = self.clients.get_mut(*index).session().process();
            if self.host.may_log(LogCause::Disconnected, process.uid) {
                warn!(
                    pid = process.pid,
                    uid = process.uid,
                    "client disconnected: no hello within {} s",
                    HELLO_MAX.0 / 1_000_000_000
                );
            }
        }
        self.end_clients(&mut silent);
    }

    /// Removes clients; their sessions end in turns of their accounts.
    fn end_clients(&mut self, ended: &mut Vec<usize>) {
        ended.sort_unstable();
        ended.dedup();
        // From the last to the first, so that removing one does not move those still to be removed.
        while let Some(index) = ended.pop() {
            self.ending.add(self.clients.remove(index));
            self.idle_since = self.host.now();
        }
    }

    /// Ends a part of a session of a client of the account that has left. Returns false if there is none.
    fn continue_ending(&mut self, account: &AccountId) -> bool {
        let Some(mut gone) = self.ending.take(account) else { return false };
        if gone.session_mut().end_some(&mut self.host, ENDED_AT_ONCE) {
            gone.close(&self.host);
            self.host.note_ended(1);
        } else {
            self.ending.add(gone);
        }
        self.idle_since = self.host.now();
        true
    }

    /// Begins to drain. Returns true when the daemon must end at once.
    fn on_signal(&mut self) -> bool {
        let mut drain = [0; 64];
        let _ = rustix::io::read(&self.signals, &mut drain);
        if self.draining.is_some() {
            return true;
        }
        self.drain("asked to end");
        false
    }

    /// The pipe of the starter is readable: at its end the daemon drains. What the starter writes means nothing.
    fn look_at_starter(&mut self) {
        let Some(pipe) = &self.end_with else { return };
        match rustix::io::read(pipe, &mut [0; 64]) {
            Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => {
                self.end_with = None;
                if self.draining.is_none() {
                    self.drain("the process that has started the daemon has ended");
                }
            }
        }
    }

    fn drain(&mut self, why: &str) {
        info!(clients = self.clients.all().len(), "{why}: draining");
        self.draining = Some(self.host.now());
        self.stop_listening("waiting for programs to exit");
        for client in self.clients.all_mut() {
            client.session_mut().device_fatal();
            client.session().announce_end(&mut self.host);
        }
    }

    /// Accepts no more clients, and notifies the supervisor. Has no effect the second time.
    fn stop_listening(&mut self, status: &str) {
        if self.listener.take().is_none() {
            return;
        }
        self.notifier.stopping(status);
        if self.owns_file {
            remove_socket(&self.path);
        }
    }

    fn is_over(&self) -> bool {
        let now = self.host.now();
        if let Some(since) = self.draining {
            let uses = |session: &Session| session.has_context() || session.has_number();
            let all_gone = !self.clients.all().iter().chain(self.ending.all()).any(|c| uses(c.session()));
            return all_gone || now.since(since) >= DRAIN_MAX;
        }
        let idle = self.idle_exit.is_some_and(|limit| {
            self.clients.all().is_empty() && self.ending.is_empty() && now.since(self.idle_since) >= limit
        });
        if idle {
            info!("idle: ending");
        }
        idle
    }

    /// Ends the sessions that are left. Queue pairs are flushed and their peers notified, because the programs still run.
    fn close(&mut self) {
        self.stop_listening("ending");
        for mut gone in self.ending.take_all() {
            gone.session_mut().end(&mut self.host);
        }
        for mut client in self.clients.take_all() {
            client.session_mut().fail_queue_pairs(&mut self.host);
            client.session_mut().end(&mut self.host);
        }
        self.host.post_cm_jobs();
        info!("ended");
    }
}

/// A sentence if no RoCE packet fits the MTU of an interface in bytes.
fn small_mtu(device: &str, link_mtu: u32) -> Option<String> {
    let least = (0..).find(|mtu| Mtu::for_link(*mtu).is_some())?;
    let too_small = format!(
        "the MTU of {device} is {link_mtu}, but RoCE needs {least}: full packets do not leave; raise it by ip link set DEV mtu 1500"
    );
    (link_mtu < least).then_some(too_small)
}

/// Closes the socket of a client for which there is no descriptor, with what it has sent already. Returns its user.
fn turn_away(host: &Host, socket: OwnedFd) -> u32 {
    let process = crate::conversation::process_of(&socket);
    host.disposal.close_socket(&host.account_of(process), socket);
    process.uid
}

/// What an account has to do in one round.
struct AccountTurn {
    account: Account,
    /// Clients with commands in their rings, or with a request that has steps left.
    with_work: Vec<ClientToken>,
}

/// Descriptors that [`Server::wait`] found readable.
#[derive(Default)]
struct PollResult {
    /// A signal has come.
    signal: bool,
    /// The pipe of the process that has started the daemon is readable, or has ended.
    starter: bool,
    /// A client has connected.
    accept: bool,
    /// The kernel has events of interfaces.
    interfaces: bool,
    /// The kernel has events of next hops.
    hops: bool,
    /// Accounts whose clients have sent something, or have exited.
    accounts: Vec<Account>,
}

#[cfg(test)]
mod tests;
