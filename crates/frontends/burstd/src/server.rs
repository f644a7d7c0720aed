//! The control socket: accept, one event loop for all clients, signals, and the end.
//!
//! Everything is non-blocking; a client that sends half a message or none only wastes its own time. A message that
//! cannot be decoded ends that client's connection, with a logged sentence. SIGTERM, SIGINT and SIGHUP stop the accepting,
//! tell every context (device fatal), wait up to [`DRAIN_MAX`] for programs to finish, and end; a second signal ends at once.

use crate::config::Config;
use burst_control::MESSAGE_MAX;
use burst_host::Host;
use burst_host::descriptors;
use burst_host::{Session, SessionState};
use burst_netif::watch::Watch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Programs may finish for this long after the first signal.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How often interfaces are looked at while programs are connected, whatever the kernel tells.
const REFRESH_EVERY: Duration = Duration::from_secs(2);
/// How long after the first news from the kernel: changes come in bursts.
const SETTLE: Duration = Duration::from_millis(50);
/// Clients at once.
const CLIENTS_MAX: usize = 16_384;
const BACKLOG: i32 = 256;
/// Clients wait until there is a descriptor at least to turn them away.
const NOTHING: PollFlags = PollFlags::empty();

/// See the module.
pub struct Server {
    path: PathBuf,
    listener: Option<OwnedFd>,
    signals: OwnedFd,
    clients: Vec<Session>,
    host: Host,
    /// Given up to turn a client away when there is no other.
    spare: Option<OwnedFd>,
    /// For one control message.
    buffer: Vec<u8>,
    idle_exit: Option<Duration>,
    idle_since: Instant,
    refreshed: Instant,
    /// Tells of changes of interfaces, where a sandbox allows it.
    watch: Option<Watch>,
    /// When it told of one that has not been looked at.
    changed: Option<Instant>,
    draining: Option<Instant>,
}

impl Server {
    /// Binds the socket. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// A sentence.
    pub fn bind(config: &Config, host: Host) -> Result<Server, String> {
        let path = config.socket.clone();
        let listener = bind_socket(&path, config.socket_mode)?;
        let signals = signal_pipe().map_err(|e| format!("cannot take signals: {e}"))?;
        let now = Instant::now();
        Ok(Server {
            path,
            listener: Some(listener),
            signals,
            clients: Vec::new(),
            host,
            spare: descriptors::spare(),
            buffer: vec![0; MESSAGE_MAX],
            idle_exit: config.idle_exit,
            idle_since: now,
            refreshed: now,
            watch: Watch::open().ok(),
            changed: None,
            draining: None,
        })
    }

    /// Says that the daemon serves: a log line, and `ready` on the descriptor that the starter gave.
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

    /// Serves until the end.
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
            if ready.changed {
                self.watch.iter().for_each(Watch::drain);
                self.changed.get_or_insert_with(Instant::now);
            }
            self.serve_clients(&ready);
            self.follow_hops(ready.hops);
            // One post per worker for all that programs asked in this pass.
            self.host.post_cm_jobs();
            self.every_so_often();
            if self.host.trimmer.is_due() {
                self.clients.iter_mut().for_each(Session::shrink);
                self.host.shrink();
                crate::give_heap_back();
            }
            if self.host.workers().iter().any(|w| !w.is_alive()) {
                return Err(burst_host::host::WORKER_GONE.into());
            }
            if self.is_over() {
                break;
            }
        }
        self.close();
        Ok(())
    }

    /// Sleeps until something is readable or a clock runs out.
    fn wait(&mut self) -> ReadySet {
        if self.spare.is_none() {
            self.spare = descriptors::spare();
        }
        // Of two rules one holds: a program finds us idle and rings, or we see its wish here.
        let wishing: Vec<usize> = (0..self.clients.len()).filter(|i| !self.clients[*i].try_idle()).collect();
        let mut ready = self.sleep(wishing.is_empty());
        self.clients.iter_mut().for_each(Session::stay_awake);
        ready.clients.extend(wishing);
        ready
    }

    fn sleep(&self, may_sleep: bool) -> ReadySet {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.clients.iter().map(|c| PollFd::from_borrowed_fd(c.fd(), PollFlags::IN)));
        fds.extend(
            self.listener.as_ref().map(|l| PollFd::new(l, if self.spare.is_some() { PollFlags::IN } else { NOTHING })),
        );
        let watch_at = fds.len();
        fds.extend(
            self.watch
                .as_ref()
                .filter(|_| !self.clients.is_empty())
                .map(|w| PollFd::from_borrowed_fd(w.fd(), PollFlags::IN)),
        );
        let hops_at = fds.len();
        fds.extend(self.host.cm.hops.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let lives = self.clients.iter().enumerate().filter_map(|(i, c)| Some((i, c.life()?)));
        let (living, lives): (Vec<_>, Vec<_>) =
            lives.map(|(i, fd)| (i, PollFd::from_borrowed_fd(fd, PollFlags::IN))).unzip();
        let lives_at = fds.len();
        fds.extend(lives);
        let timeout = if may_sleep { self.timeout() } else { Some(Duration::ZERO) };
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        // An interrupted poll is a pass without news.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return ReadySet::default();
        }
        let hot = |f: &PollFd<'_>| !f.revents().is_empty();
        let n = self.clients.len();
        ReadySet {
            signal: hot(&fds[0]),
            accept: self.listener.is_some() && hot(&fds[n + 1]),
            changed: watch_at < hops_at && hot(&fds[watch_at]),
            hops: hops_at < lives_at && hot(&fds[hops_at]),
            clients: (0..n).filter(|i| hot(&fds[i + 1])).collect(),
            ended: living.into_iter().zip(&fds[lives_at..]).filter(|(_, f)| hot(f)).map(|(i, _)| i).collect(),
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let drain = self.draining.map(|since| DRAIN_MAX.saturating_sub(since.elapsed()));
        let idle = self
            .idle_exit
            .filter(|_| self.clients.is_empty())
            .map(|limit| limit.saturating_sub(self.idle_since.elapsed()));
        let refresh = (!self.clients.is_empty()).then(|| self.refresh_in());
        [drain, idle, refresh, self.host.trimmer.due_in(), self.hops_due()].into_iter().flatten().min()
    }

    /// Until interfaces are looked at again.
    fn refresh_in(&self) -> Duration {
        let by_clock = REFRESH_EVERY.saturating_sub(self.refreshed.elapsed());
        self.changed.map_or(by_clock, |since| by_clock.min(SETTLE.saturating_sub(since.elapsed())))
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(_) if self.clients.len() >= CLIENTS_MAX => warn!("more than {CLIENTS_MAX} clients: refused one"),
                Ok(socket) => self.clients.push(Session::new(socket)),
                Err(Errno::MFILE | Errno::NFILE) => {
                    drop(self.spare.take());
                    let turned_away = accept_with(listener, SocketFlags::CLOEXEC).is_ok();
                    self.spare = descriptors::spare();
                    if !turned_away || self.spare.is_none() {
                        return;
                    }
                    warn!(
                        "no descriptor left for another client: raise the limit of open files (LimitNOFILE=, ulimit -Hn)"
                    );
                }
                Err(_) => return,
            }
        }
    }

    /// From the last to the first, so that those that go do not move those still to be looked at.
    /// Serves who has something to say. What a program asked of the connection manager before it asks something of a queue
    /// pair comes first, and is in force then: the two have sockets of their own.
    fn serve_clients(&mut self, ready: &ReadySet) {
        let mut all: Vec<usize> = ready.clients.iter().chain(&ready.ended).copied().collect();
        all.sort_unstable();
        all.dedup();
        let (contexts, first): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|index| self.clients[**index].has_context());
        let mut ended = ready.ended.clone();
        if !contexts.is_empty() {
            let is_theirs = |c: &Session| c.has_cm() && contexts.iter().any(|i| self.clients[*i].pid() == c.pid());
            let theirs = (0..self.clients.len()).filter(|index| is_theirs(&self.clients[*index]));
            let silent: Vec<usize> = theirs.filter(|index| all.binary_search(index).is_err()).collect();
            for index in silent {
                if self.clients[index].serve_wishes(&mut self.host) == SessionState::Closed {
                    ended.push(index);
                }
            }
        }
        for (at, index) in first.iter().chain(&contexts).enumerate() {
            if at == first.len() {
                self.host.post_cm_jobs();
            }
            if self.clients[*index].serve(&mut self.host, &mut self.buffer) == SessionState::Closed {
                ended.push(*index);
            }
        }
        // What a process said last is heard, then its end counts, whoever else holds the socket.
        ended.sort_unstable();
        ended.dedup();
        for index in ended.into_iter().rev() {
            let mut gone = self.clients.swap_remove(index);
            gone.end(&mut self.host);
            self.idle_since = Instant::now();
        }
    }

    /// Goes on with addresses whose next hops have answered, or did not.
    fn follow_hops(&mut self, readable: bool) {
        if !self.host.cm.hops.is_waited_for() {
            return;
        }
        let now = Instant::now();
        let news = self.host.news_of_hops(now, readable);
        for client in &mut self.clients {
            client.resolve_on(&mut self.host, now, &news);
        }
        self.host.count_unanswered();
    }

    /// When the wait for a next hop ends, or a port is asked again.
    fn hops_due(&self) -> Option<Duration> {
        let hops = &self.host.cm.hops;
        if !hops.is_waited_for() {
            return None;
        }
        let first = self.clients.iter().filter_map(Session::gives_up_at).chain(hops.due()).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Interfaces may have changed; tell the contexts.
    fn every_so_often(&mut self) {
        if self.clients.is_empty() || !self.refresh_in().is_zero() {
            return;
        }
        self.refreshed = Instant::now();
        self.changed = None;
        self.host.refresh();
        for d in &mut self.host.devices {
            let Some(news) = d.news() else { continue };
            info!(
                device = d.info().name,
                up = d.caps.up,
                addresses = d.caps.addrs.len(),
                mtu = d.caps.link_mtu,
                "port changed"
            );
            for client in &mut self.clients {
                client.port_changed(d.id, news);
            }
        }
    }

    /// True when the daemon shall end at once.
    fn on_signal(&mut self) -> bool {
        let mut drain = [0; 64];
        let _ = rustix::io::read(&self.signals, &mut drain);
        if self.draining.is_some() {
            return true;
        }
        info!(clients = self.clients.len(), "asked to end: draining");
        self.draining = Some(Instant::now());
        self.listener = None;
        remove_socket(&self.path);
        for client in &mut self.clients {
            client.device_fatal();
        }
        false
    }

    fn is_over(&self) -> bool {
        if let Some(since) = self.draining {
            return self.clients.iter().all(|c| !c.has_context()) || since.elapsed() >= DRAIN_MAX;
        }
        let idle = self.idle_exit.is_some_and(|limit| self.clients.is_empty() && self.idle_since.elapsed() >= limit);
        if idle {
            info!("idle: ending");
        }
        idle
    }

    /// Ends what is left: queue pairs are flushed and their peers told, because the applications still look.
    fn close(&mut self) {
        if self.listener.take().is_some() {
            remove_socket(&self.path);
        }
        for mut client in std::mem::take(&mut self.clients) {
            client.fail_queue_pairs(&mut self.host);
            client.end(&mut self.host);
        }
        self.host.post_cm_jobs();
        info!("ended");
    }
}

/// What `wait` found.
#[derive(Default)]
struct ReadySet {
    signal: bool,
    accept: bool,
    /// Interfaces.
    changed: bool,
    /// Next hops that are waited for.
    hops: bool,
    /// With something to read.
    clients: Vec<usize>,
    /// Whose processes have ended, in ascending order.
    ended: Vec<usize>,
}

fn remove_socket(path: &Path) {
    if let Err(e) = fs::remove_file(path) {
        warn!("cannot remove {}: {e}", path.display());
    }
}

/// A pipe that gets a byte for SIGTERM and SIGINT, and for SIGHUP (the terminal closes) unless `nohup` had it ignored.
fn signal_pipe() -> std::io::Result<OwnedFd> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (read, write) = std::os::unix::net::UnixStream::pair()?;
    read.set_nonblocking(true)?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        if signal != SIGHUP || !is_ignored(&status, signal) {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
    }
    Ok(read.into())
}

/// Whether the status of a process (`/proc/PID/status`) says that it ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Binds and listens; replaces a dead socket, refuses a live one.
fn bind_socket(path: &Path, mode: u32) -> Result<OwnedFd, String> {
    let say = |what: &str, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
        fs::create_dir_all(dir).map_err(|e| say("make the directory of", e))?;
        let dir_mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        fs::set_permissions(dir, fs::Permissions::from_mode(dir_mode))
            .map_err(|e| say("set the mode of the directory of", e))?;
    }
    let address = SocketAddrUnix::new(path).map_err(|e| say("use the socket path", e.into()))?;
    let new_socket =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let listener = new_socket().map_err(|e| say("make the socket", e.into()))?;
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err(format!("{} is there already and is no socket; choose another --socket", path.display()));
        }
        let probe = new_socket().map_err(|e| say("make the socket", e.into()))?;
        match rustix::net::connect(&probe, &address) {
            Err(rustix::io::Errno::CONNREFUSED) => {
                fs::remove_file(path).map_err(|e| say("replace the dead socket", e))?
            }
            Ok(()) | Err(rustix::io::Errno::AGAIN) => {
                return Err(format!("another burstd serves {}; stop it, or choose another --socket", path.display()));
            }
            Err(e) => return Err(say("probe", e.into())),
        }
    }
    bind(&listener, &address).map_err(|e| say("bind", e.into()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| say("set the mode of", e))?;
    listen(listener.as_fd(), BACKLOG).map_err(|e| say("listen on", e.into()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        use signal_hook::consts::{SIGHUP, SIGTERM};
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP) && !is_ignored(status, SIGTERM) && !is_ignored("", SIGHUP));
    }

    #[test]
    fn only_a_socket_is_replaced() {
        let directory = std::env::temp_dir().join(format!("burstd-bind-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("precious");
        fs::write(&file, "data").unwrap();
        let why = bind_socket(&file, 0o600).unwrap_err();
        assert!(why.contains("is no socket"), "{why}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        let socket = directory.join("socket");
        drop(bind_socket(&socket, 0o600).unwrap());
        bind_socket(&socket, 0o600).expect("a dead socket is replaced");
        fs::remove_dir_all(directory).unwrap();
    }
}
