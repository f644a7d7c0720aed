//! Peers and their channels: dialling, introductions, messages, loss and return.

use super::{Control, HEARTBEAT, PAUSE, PeerState, REFUSALS_LOGGED, TOKEN_ADMIN, TOKEN_CHANNEL, TOKEN_LISTENER, front};
use crate::config::{self, Checked, PeerEntry, Prefix};
use crate::message::{self, CONTROL_VERSION, Command, ControlMessage, Introduction, MESSAGE_BYTES, PeerUp, features};
use crate::peer_loss::PeerLoss;
use crate::sys::{self, EventFlags};
use crate::tls::ControlChannel;
use burst_relay::{Header, LinkHello};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Prefixes that one peer may serve: the maps of the BPF programs hold 4096.
const SERVES_MAX: usize = 256;

impl Control {
    pub(super) fn add_peer(&mut self, entry: &PeerEntry) -> Result<(), String> {
        let serves = entry.allowed()?;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.name == entry.name) {
            peer.address = entry.address;
            peer.serves = serves;
            peer.is_removed = false;
            return Ok(());
        }
        self.peers.push(PeerState {
            name: entry.name.clone(),
            address: entry.address,
            serves,
            channel: None,
            introduction: None,
            session: u64::from_le_bytes(crate::random()?),
            lost: None,
            retry: Instant::now(),
            links: BTreeSet::new(),
            alive: false,
            token: crate::random()?,
            complaint: String::new(),
            is_listed: false,
            is_removed: false,
        });
        Ok(())
    }

    /// Ends the streams of a peer that is none any more.
    pub(super) fn remove_peer(&mut self, number: usize) {
        self.give_up(number, PeerLoss::Unnamed);
        self.peers[number].is_removed = true;
    }

    /// Reads the directory file if it has changed.
    pub(super) fn read_directory(&mut self) {
        let Some(path) = self.config.config.directory.clone() else { return };
        let time = std::fs::metadata(&path).and_then(|m| m.modified()).ok();
        if time == self.directory_time {
            return;
        }
        self.directory_time = time;
        let read = std::fs::read_to_string(&path).map_err(|e| e.to_string());
        match read.and_then(|text| crate::config::directory(&text)) {
            Ok(peers) => {
                let own = self.config.config.name.clone();
                for peer in peers.into_iter().filter(|peer| peer.name != own) {
                    if let Err(why) = self.add_peer(&peer) {
                        crate::log(format_args!("peer {}: {why}", peer.name));
                    }
                    self.peers
                        .iter_mut()
                        .filter(|known| known.name == peer.name)
                        .for_each(|known| known.is_listed = true);
                }
            }
            Err(why) => crate::log(format_args!("{}: {why}; the peers known before stay", path.display())),
        }
    }

    fn add_channel(&mut self, channel: ControlChannel) -> Option<usize> {
        let at = self.channels.iter().position(Option::is_none).unwrap_or_else(|| {
            self.channels.push(None);
            self.channels.len() - 1
        });
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = self.poll.add(channel.socket(), flags, TOKEN_CHANNEL + at as u64);
        if let Err(e) = added {
            crate::log(format_args!("a control channel cannot be watched: {e}"));
            return None;
        }
        self.channels[at] = Some(channel);
        Some(at)
    }

    pub(super) fn accept(&mut self) {
        loop {
            let (socket, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    crate::log(format_args!("a control channel cannot be accepted: {e}"));
                    if sys::no_descriptors(&e) {
                        // Until the next beat: the listener stays readable, so its events would come without end.
                        self.listen_for(EventFlags::empty());
                    }
                    return;
                }
            };
            if socket.set_nonblocking(true).and(socket.set_nodelay(true)).is_err() {
                continue;
            }
            let source = front::source_of(from.ip());
            self.make_room(source);
            match ControlChannel::accept(socket, source, &self.keys, waiting_max(&self.config)) {
                Ok(channel) => {
                    self.add_channel(channel);
                }
                Err(why) => crate::log(format_args!("a control channel cannot be accepted: {why}")),
            }
        }
    }

    /// Ends a channel without an introduction, if there are as many as there may be with one more of a source.
    fn make_room(&mut self, source: IpAddr) {
        let unknown = |(at, channel): (usize, &Option<ControlChannel>)| {
            let channel = channel.as_ref().filter(|channel| !channel.introduced)?;
            channel.source.map(|source| (at, source))
        };
        let unknown: Vec<_> = self.channels.iter().enumerate().filter_map(unknown).collect();
        let is_peers = |source| self.peers.iter().any(|peer| front::source_of(peer.address.ip()) == source);
        // Without random numbers the channel is a foreseeable one.
        let random = crate::random().map_or(0, u64::from_le_bytes);
        if let Some(at) = front::displaced(&unknown, source, is_peers, random) {
            self.close_channel(at, "its source opens too many channels");
        }
    }

    pub(super) fn listen_for(&mut self, events: EventFlags) {
        let listeners = [(self.listener.as_fd(), TOKEN_LISTENER), (self.admin.as_fd(), TOKEN_ADMIN)];
        for (fd, token) in listeners {
            if let Err(e) = self.poll.change(fd, events, token) {
                crate::log(format_args!("a listener of the control thread cannot be watched: {e}"));
            }
        }
        self.listener_paused = events.is_empty();
    }

    fn dials(&self, peer: usize) -> bool {
        self.config.config.name < self.peers[peer].name
    }

    /// Dials a peer without a channel, or finds out that it has ended.
    pub(super) fn redial(&mut self, number: usize, now: Instant) {
        if self.peers[number].is_removed {
            return;
        }
        let dials = self.dials(number);
        let peer = &mut self.peers[number];
        if peer.channel.is_some() || now < peer.retry {
            return;
        }
        let resume = Duration::from_secs(self.config.config.resume_s);
        if peer.lost.is_some_and(|lost| now > lost + resume) {
            self.give_up(number, PeerLoss::Away);
        }
        let peer = &mut self.peers[number];
        let address = peer.address;
        if !dials && peer.lost.is_none() {
            return;
        }
        let mark = crate::worker::own_mark(self.config.config.mark as i32);
        match sys::dial(address, mark) {
            Ok(socket) => {
                let name = peer.name.clone();
                match ControlChannel::dial(socket, &self.keys, &name, number, waiting_max(&self.config)) {
                    Ok(channel) => {
                        let at = self.add_channel(channel);
                        self.peers[number].channel = at;
                    }
                    Err(why) => self.complain(number, &why),
                }
            }
            Err(e) => self.dial_failed(number, &e),
        }
    }

    /// Whether a channel that the peer dialled crosses one that this side has dialled. After a loss both sides dial; if
    /// each kept the one accepted last, both could be closed. The one of the side whose name sorts first stays, unless
    /// its peer is silent or speaks of another session.
    fn crosses(&self, number: usize, said: &Introduction) -> bool {
        let peer = &self.peers[number];
        let Some(own) = peer.channel.and_then(|at| self.channels[at].as_ref()) else { return false };
        let same = peer.introduction.as_ref().is_none_or(|before| before.session == said.session);
        self.dials(number) && own.dialled.is_some() && !own.connecting && same && own.heard.elapsed() < 2 * HEARTBEAT
    }

    fn complain(&mut self, number: usize, why: &str) {
        let peer = &mut self.peers[number];
        if peer.complaint != why {
            crate::log(format_args!("peer {}: {why}", peer.name));
            why.clone_into(&mut peer.complaint);
        }
    }

    fn dial_failed(&mut self, number: usize, error: &std::io::Error) {
        if error.kind() == ErrorKind::ConnectionRefused && self.peers[number].introduction.is_some() {
            self.give_up(number, PeerLoss::Ended);
        }
        self.complain(number, &format!("{error}"));
    }

    /// Ends the peer's streams without its knowledge: it finds out by this side's next introduction.
    pub(super) fn give_up(&mut self, number: usize, why: PeerLoss) {
        match crate::random() {
            Ok(session) => self.peers[number].session = u64::from_le_bytes(session),
            Err(e) => crate::log(format_args!("peer {}: {e}", self.peers[number].name)),
        }
        self.end_peer(number, why);
    }

    /// The peer's streams end.
    fn end_peer(&mut self, number: usize, why: PeerLoss) {
        let peer = &mut self.peers[number];
        let channel = peer.channel.take();
        peer.lost = None;
        peer.links.clear();
        let known = peer.introduction.take().is_some();
        if let Some(at) = channel {
            self.channels[at] = None;
        }
        if known {
            crate::log(format_args!("peer {} is gone: {}", self.peers[number].name, why.words()));
            self.command_all(|| Command::PeerGone { peer: number, why });
        }
        self.update_alive();
    }

    pub(super) fn close_channel(&mut self, at: usize, why: &str) {
        let Some(channel) = self.channels[at].take() else { return };
        let Some(number) = channel.peer.or(channel.dialled) else {
            if !channel.introduced && why != "the peer closed it" {
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals <= REFUSALS_LOGGED {
                    let from = channel.source.map(|source| format!(" from {source}")).unwrap_or_default();
                    crate::log(format_args!("a control channel{from} is refused: {why}"));
                }
            }
            return;
        };
        if self.peers[number].channel != Some(at) {
            return;
        }
        self.peers[number].channel = None;
        self.complain(number, why);
        let peer = &mut self.peers[number];
        if channel.introduced {
            peer.lost = Some(Instant::now());
            peer.retry = Instant::now();
            self.command_all(|| Command::ControlChannel { peer: number, up: false });
            self.update_alive();
            // At once, not with the next beat: if the process has ended, its programs' connections should end, too.
            self.redial(number, Instant::now());
        } else if !channel.connecting {
            peer.retry = Instant::now() + PAUSE;
        }
    }

    pub(super) fn channel_event(&mut self, at: usize, flags: EventFlags) {
        if !self.is_connected(at, flags) {
            return;
        }
        if self.backlogged() {
            return self.read_later(at);
        }
        let mut messages = Vec::new();
        let Some(Some(channel)) = self.channels.get_mut(at) else { return };
        let read = channel.read(&mut messages).map(|more| {
            if more {
                self.read_later(at);
            }
        });
        for message in messages {
            if self.channels[at].is_none() {
                return;
            }
            if let Err(why) = self.on_channel_message(at, message) {
                self.close_channel(at, &why);
            }
        }
        let written = self.channels[at].as_mut().map_or(Ok(()), ControlChannel::write);
        if let Err(why) = read.and(written) {
            self.close_channel(at, &why);
        }
    }

    /// Whether there is such a channel and it is connected; one that this side has dialled may be now, or has failed.
    fn is_connected(&mut self, at: usize, flags: EventFlags) -> bool {
        let Some(Some(channel)) = self.channels.get_mut(at) else { return false };
        if !channel.connecting {
            return true;
        }
        let number = channel.dialled;
        match sys::take_error(channel.socket()) {
            Ok(None) if flags.contains(EventFlags::OUT) => {
                channel.connecting = false;
                number.into_iter().for_each(|number| self.introduce(number, at));
                true
            }
            Ok(None) => false,
            Ok(Some(e)) | Err(e) => {
                self.channels[at] = None;
                // Not if the peer's own channel has taken its place.
                if let Some(number) = number.filter(|number| self.peers[*number].channel == Some(at)) {
                    self.peers[number].channel = None;
                    self.dial_failed(number, &e);
                }
                false
            }
        }
    }

    fn read_later(&mut self, at: usize) {
        if !self.unread.contains(&at) {
            self.unread.push(at);
        }
    }

    /// Sends this proxy's introduction.
    fn introduce(&mut self, peer: usize, at: usize) {
        let introduction = Introduction {
            version: CONTROL_VERSION,
            features: features(&self.config),
            name: self.config.config.name.clone(),
            session: self.peers[peer].session,
            workers: self.config.workers,
            address: self.config.config.listen,
            serves: self.config.serves.concat(),
            draining: self.draining,
        };
        let Some(Some(channel)) = self.channels.get_mut(at) else { return };
        if let Err(why) = channel.push(&ControlMessage::Introduce(introduction)) {
            self.close_channel(at, &why);
        }
    }

    fn on_channel_message(&mut self, at: usize, message: ControlMessage) -> Result<(), String> {
        let Some(channel) = &self.channels[at] else { return Ok(()) };
        if let ControlMessage::Introduce(introduction) = message {
            if channel.introduced {
                return Err("it introduced itself twice".into());
            }
            return self.on_introduction(at, introduction);
        }
        let (Some(peer), true) = (channel.peer, channel.introduced) else {
            return Err("it spoke before its introduction".into());
        };
        match message {
            ControlMessage::Introduce(_) | ControlMessage::Ping => {}
            ControlMessage::Rdma { worker, address, token } => {
                let said = self.peers[peer].introduction.as_ref().map_or(0, |said| said.workers);
                check_worker(worker, said)?;
                let at = (address.port() != 0).then_some((address, token));
                self.command_all(|| Command::Rdma { peer, worker, at });
            }
            ControlMessage::LinkHello { by_channel, bytes } => {
                let (header, body) = Header::read(&bytes).map_err(|e| e.to_string())?;
                let hello = LinkHello::read(header, body).map_err(|e| e.to_string())?;
                self.command(self.owner(hello.link), Command::LinkHello { peer, by_channel, hello });
            }
            ControlMessage::Batch { link, attempt, bytes } => {
                self.command(self.owner(link), Command::Batch { peer, link, attempt, bytes });
            }
            ControlMessage::Broken { link, attempt } => {
                self.command(self.owner(link), Command::Broken { peer, link, attempt });
            }
            ControlMessage::Draining => {
                if let Some(introduction) = &mut self.peers[peer].introduction {
                    introduction.draining = true;
                }
                self.command_all(|| Command::PeerDraining(peer));
                self.update_alive();
            }
        }
        Ok(())
    }

    /// Whether an introduction on a channel is acceptable; returns the number of the peer.
    fn check_introduction(&self, channel: &ControlChannel, said: &Introduction) -> Result<usize, String> {
        let name = &said.name;
        if said.version != CONTROL_VERSION {
            return Err(format!("it speaks version {} of the control channel, not {CONTROL_VERSION}", said.version));
        }
        if !channel.shows(name) {
            return Err(format!("it says that it is {name}, but its certificate does not"));
        }
        if *name == self.config.config.name {
            return Err("it has this proxy's own name".into());
        }
        if said.workers == 0 || said.workers > crate::config::WORKERS_MAX {
            return Err(format!("it says that it has {} workers", said.workers));
        }
        check_served(&said.serves)?;
        let Some(number) = self.peers.iter().position(|peer| peer.name == *name && !peer.is_removed) else {
            return Err(format!("{name} is no peer of this proxy's configuration or directory file"));
        };
        if let Some(allowed) = &self.peers[number].serves {
            let outside = |prefix: &&Prefix| !allowed.iter().any(|allowed| config::inside(**prefix, *allowed));
            if let Some((ip, bits)) = said.serves.iter().find(outside) {
                return Err(format!("it serves {ip}/{bits}, which its [[peer]] does not allow"));
            }
        }
        match channel.dialled {
            Some(dialled) if dialled != number => Err(format!("it is {name}, another peer")),
            None if self.crosses(number, said) => Err("both sides have dialled: the other channel stays".into()),
            Some(_) | None => Ok(number),
        }
    }

    fn on_introduction(&mut self, at: usize, said: Introduction) -> Result<(), String> {
        let Some(Some(channel)) = self.channels.get(at) else { return Ok(()) };
        let (number, dialled, secret) = (self.check_introduction(channel, &said)?, channel.dialled, channel.secret()?);
        let encrypts = match message::encrypts(features(&self.config), said.features) {
            Ok(encrypts) => encrypts,
            Err(why) => {
                // The peer's own sentence is better than that the channel was closed.
                if dialled.is_none() {
                    self.introduce(number, at);
                    self.write_channels();
                }
                self.complain(number, &why);
                return Err(why);
            }
        };
        if self.peers[number].introduction.as_ref().is_some_and(|before| before.session != said.session) {
            let own = self.peers[number].channel.take_if(|open| *open == at);
            self.end_peer(number, PeerLoss::BegunAgain);
            self.peers[number].channel = own;
        }
        // The newer channel replaces an older one, which may be broken without this side's knowledge.
        if let Some(old) = self.peers[number].channel.replace(at)
            && old != at
        {
            self.channels[old] = None;
        }
        if let Some(channel) = &mut self.channels[at] {
            channel.introduced = true;
            channel.peer = Some(number);
        }
        if dialled.is_none() {
            self.introduce(number, at);
        }
        let dials = self.dials(number);
        let peer = &mut self.peers[number];
        peer.lost = None;
        peer.complaint.clear();
        peer.introduction = Some(said.clone());
        let token = peer.token;
        crate::log(format_args!("peer {} is there", said.name));
        self.command_all(|| {
            let (introduction, secret) = (said.clone(), secret.clone());
            Command::PeerUp(PeerUp { peer: number, introduction, dials, token, encrypts, secret })
        });
        for worker in 0..self.config.workers {
            self.announce_worker(number, worker);
        }
        if self.draining {
            // It may have begun to drain after it introduced itself.
            self.send(number, &ControlMessage::Draining);
        }
        self.update_alive();
        Ok(())
    }
}

/// Most bytes that may wait in a channel for a peer that does not read: what all windows hold, and the frames beside.
fn waiting_max(config: &Checked) -> u64 {
    config.memory + MESSAGE_BYTES as u64
}

/// Checks the prefixes that a peer says it serves.
fn check_served(serves: &[Prefix]) -> Result<(), String> {
    if serves.len() > SERVES_MAX {
        return Err(format!("it serves {} prefixes, more than {SERVES_MAX}", serves.len()));
    }
    serves.iter().try_for_each(|prefix| config::check_prefix(*prefix)).map_err(|why| format!("it serves {why}"))
}

/// Whether a peer that said that it has so many workers may name this one.
fn check_worker(worker: u32, workers: u32) -> Result<(), String> {
    if worker < workers { Ok(()) } else { Err(format!("it says where its worker {worker} listens, and has {workers}")) }
}

#[cfg(test)]
mod tests {
    use super::{SERVES_MAX, check_served, check_worker};
    use crate::config::ProxyConfig;
    use crate::control::{Control, ControlStart, PolicySource, QUEUED_MAX, RelayHandle};
    use crate::message::{CONTROL_VERSION, Command, ControlMessage, Introduction};
    use crate::sys::{EventFlags, Waker};
    use crate::tls::{ControlChannel, TURN_BYTES, TlsKeys};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    /// The control thread of a proxy named a with the peer b, and what its worker receives.
    fn control(place: &Path) -> (Control, Receiver<Command>, TlsKeys) {
        crate::keys::make(&place.join("keys"), &["a".into(), "b".into()]).expect("keys");
        let text = format!(
            "name='a'\nlisten='127.0.0.1:0'\nkeys='{0}/keys'\nadmin='{0}/admin'\nworkers=1\n[[peer]]\nname='b'\naddress='127.0.0.1:9'\n",
            place.display()
        );
        let ((commands, commanded), (_, reports)) = (channel(), channel());
        let waker = || Arc::new(Waker::new().expect("a descriptor"));
        let worker = RelayHandle { commands, wake: waker(), port: 0, queued: Arc::new(AtomicUsize::new(0)) };
        let own = Arc::new(std::fs::File::open("/proc/thread-self/ns/net").expect("a namespace").into());
        let signal = std::os::unix::net::UnixStream::pair().expect("descriptors").0.into();
        let keys = |name| TlsKeys::load(&place.join("keys"), name).expect("keys");
        let start = ControlStart {
            config: Arc::new(ProxyConfig::parse(&text).expect("sound")),
            keys: keys("a"),
            workers: vec![worker],
            reports,
            wake: waker(),
            interceptions: Vec::new(),
            policy: PolicySource::new(place.join("none"), Vec::new(), own),
            signal,
        };
        (Control::new(start).expect("started"), commanded, keys("b"))
    }

    /// A channel of the peer b that has introduced itself.
    fn introduced(control: &mut Control, keys: &TlsKeys) -> ControlChannel {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let dialling = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (accepted, from) = listener.accept().expect("connected");
        for socket in [&dialling, &accepted] {
            socket.set_nonblocking(true).expect("a socket");
        }
        let mut peer = ControlChannel::dial(dialling, keys, "a", 0, u64::MAX).expect("a channel");
        peer.connecting = false;
        let own = ControlChannel::accept(accepted, from.ip(), &control.keys, u64::MAX).expect("a channel");
        control.add_channel(own);
        let said = Introduction {
            version: CONTROL_VERSION,
            features: 0,
            name: "b".into(),
            session: 1,
            workers: 1,
            address: from,
            serves: Vec::new(),
            draining: false,
        };
        peer.push(&ControlMessage::Introduce(said)).expect("room");
        while control.peers[0].introduction.is_none() {
            peer.write().expect("the channel is open");
            control.channel_event(0, EventFlags::IN);
            peer.read(&mut Vec::new()).expect("the channel is open");
        }
        peer
    }

    #[test]
    fn a_peer_whose_worker_is_behind_is_not_read_on_and_nothing_is_lost() {
        let place = std::env::temp_dir().join(format!("burst-proxy-backlog-{}", std::process::id()));
        let (mut control, commanded, keys) = control(&place);
        let mut peer = introduced(&mut control, &keys);
        let (sent, bytes) = (2000, 16 << 10);
        for number in 0..sent {
            peer.push(&ControlMessage::Batch { link: 0, attempt: number, bytes: vec![0; bytes] }).expect("room");
        }
        let queued = control.workers[0].queued.clone();
        // The worker takes nothing.
        let (mut before, mut same) = (0, 0);
        while same < 100 {
            peer.write().expect("the channel is open");
            control.channel_event(0, EventFlags::IN);
            let now = queued.load(Ordering::Relaxed);
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
        assert!(before > QUEUED_MAX && before < QUEUED_MAX + 2 * TURN_BYTES, "{before} bytes wait");
        assert_eq!(control.unread, [0], "the channel is read later");
        // It goes on.
        let mut taken = 0;
        while taken < sent {
            peer.write().expect("the channel is open");
            control.channel_event(0, EventFlags::IN);
            while let Ok(command) = commanded.try_recv() {
                queued.fetch_sub(command.waiting_bytes(), Ordering::Relaxed);
                if let Command::Batch { attempt, .. } = command {
                    assert_eq!(attempt, taken, "in the order in which they were sent");
                    taken += 1;
                }
            }
        }
        assert_eq!(queued.load(Ordering::Relaxed), 0);
        std::fs::remove_dir_all(&place).expect("removed");
    }

    #[test]
    fn what_a_peer_says_that_it_serves_is_checked() {
        let prefix = |ip: &str, bits| (ip.parse().unwrap(), bits);
        assert!(check_served(&[prefix("10.0.0.0", 8), prefix("fd00::", 64), prefix("0.0.0.0", 0)]).is_ok());
        assert!(check_served(&[prefix("10.0.0.0", 33)]).is_err(), "more bits than an address has");
        assert!(check_served(&[prefix("fd00::", 129)]).is_err());
        assert!(check_served(&[prefix("10.0.0.1", 8)]).is_err(), "bits behind the prefix");
        assert!(check_served(&[prefix("::ffff:10.0.0.0", 104)]).is_err(), "IPv4 in another form");
        assert!(check_served(&vec![prefix("10.0.0.1", 32); SERVES_MAX + 1]).is_err());
    }

    #[test]
    fn a_peer_names_no_worker_that_it_does_not_have() {
        assert_eq!(check_worker(3, 4), Ok(()));
        assert_eq!(check_worker(4, 4).unwrap_err(), "it says where its worker 4 listens, and has 4");
        assert!(check_worker(u32::MAX, 4).is_err() && check_worker(0, 0).is_err());
    }
}
