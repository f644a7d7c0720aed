//! Peers and their channels: dialling, introductions, messages, loss and return.

use super::{Control, PAUSE, PeerState, STRANGERS, TOKEN_CHANNEL};
use crate::message::{CONTROL_VERSION, Command, ControlMessage, FEATURES, Introduction};
use crate::sys;
use crate::tls::ControlChannel;
use burst_relay::{Header, LinkHello};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

impl Control {
    pub(super) fn add_peer(&mut self, name: &str, address: Option<SocketAddr>, listed: bool) -> Result<usize, String> {
        if let Some(known) = self.peers.iter().position(|peer| peer.name == name) {
            let peer = &mut self.peers[known];
            if address.is_some() {
                peer.address = address;
            }
            peer.listed |= listed;
            return Ok(known);
        }
        self.peers.push(PeerState {
            name: name.to_owned(),
            address,
            channel: None,
            introduction: None,
            lost: None,
            retry: Instant::now(),
            links: BTreeSet::new(),
            alive: false,
            token: crate::random()?,
            complaint: String::new(),
            listed,
        });
        Ok(self.peers.len() - 1)
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
                    if let Err(why) = self.add_peer(&peer.name, Some(peer.address), true) {
                        crate::log(format_args!("peer {}: {why}", peer.name));
                    }
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
        let flags = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let added = self.poll.add(channel.socket().as_raw_fd(), flags, TOKEN_CHANNEL + at as u64);
        if let Err(e) = added {
            crate::log(format_args!("a control channel cannot be watched: {e}"));
            return None;
        }
        self.channels[at] = Some(channel);
        Some(at)
    }

    pub(super) fn accept(&mut self) {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => return crate::log(format_args!("a control channel cannot be accepted: {e}")),
            };
            let strangers = self.channels.iter().flatten().filter(|channel| !channel.introduced).count();
            if strangers >= STRANGERS || socket.set_nonblocking(true).and(socket.set_nodelay(true)).is_err() {
                continue;
            }
            match ControlChannel::accept(socket, &self.keys) {
                Ok(channel) => {
                    self.add_channel(channel);
                }
                Err(why) => crate::log(format_args!("a control channel cannot be accepted: {why}")),
            }
        }
    }

    fn dials(&self, peer: usize) -> bool {
        self.config.config.name < self.peers[peer].name
    }

    /// Dials a peer without a channel, or finds out that it has ended.
    pub(super) fn look_after(&mut self, number: usize, now: Instant) {
        let dials = self.dials(number);
        let peer = &mut self.peers[number];
        if peer.channel.is_some() || now < peer.retry {
            return;
        }
        let patience = Duration::from_secs(self.config.config.resume_s);
        if peer.lost.is_some_and(|lost| now > lost + patience) {
            self.end_peer(number, "it has not come back in time");
        }
        let peer = &mut self.peers[number];
        let Some(address) = peer.address else { return };
        if !dials && peer.lost.is_none() {
            return;
        }
        let mark = crate::worker::own_mark(self.config.config.mark as i32);
        match sys::dial(address, mark) {
            Ok(socket) => {
                let name = peer.name.clone();
                match ControlChannel::dial(socket, &self.keys, &name, number) {
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

    fn complain(&mut self, number: usize, why: &str) {
        let peer = &mut self.peers[number];
        if peer.complaint != why {
            crate::log(format_args!("peer {}: {why}", peer.name));
            why.clone_into(&mut peer.complaint);
        }
    }

    fn dial_failed(&mut self, number: usize, error: &std::io::Error) {
        if error.kind() == ErrorKind::ConnectionRefused && self.peers[number].introduction.is_some() {
            self.end_peer(number, "its process has ended");
        }
        self.complain(number, &format!("{error}"));
    }

    /// The peer's streams end.
    pub(super) fn end_peer(&mut self, number: usize, why: &str) {
        let peer = &mut self.peers[number];
        let channel = peer.channel.take();
        peer.lost = None;
        peer.links.clear();
        let known = peer.introduction.take().is_some();
        if let Some(at) = channel {
            self.channels[at] = None;
        }
        if known {
            crate::log(format_args!("peer {} is gone: {why}", self.peers[number].name));
            self.tell_all(|| Command::PeerGone { peer: number, why: why.to_owned() });
        }
        self.update_alive();
    }

    pub(super) fn close_channel(&mut self, at: usize, why: &str) {
        let Some(channel) = self.channels[at].take() else { return };
        let Some(number) = channel.peer.or(channel.dialled) else {
            if !channel.introduced && why != "the peer closed it" {
                crate::log(format_args!("a control channel is refused: {why}"));
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
            self.tell_all(|| Command::ControlChannel { peer: number, up: false });
            self.update_alive();
            // At once, not with the next beat: if the process has ended, its programs' connections should end, too.
            self.look_after(number, Instant::now());
        } else if !channel.connecting {
            peer.retry = Instant::now() + PAUSE;
        }
    }

    pub(super) fn channel_event(&mut self, at: usize, flags: u32) {
        let Some(Some(channel)) = self.channels.get_mut(at) else { return };
        if channel.connecting {
            match sys::take_error(channel.socket()) {
                Ok(None) if flags & libc::EPOLLOUT as u32 != 0 => channel.connecting = false,
                Ok(None) => return,
                Ok(Some(e)) | Err(e) => {
                    let number = channel.dialled;
                    self.channels[at] = None;
                    if let Some(number) = number {
                        self.peers[number].channel = None;
                        self.dial_failed(number, &e);
                    }
                    return;
                }
            }
            self.introduce(at);
        }
        let mut messages = Vec::new();
        let Some(Some(channel)) = self.channels.get_mut(at) else { return };
        let read = channel.read(&mut messages);
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

    /// Says who this proxy is.
    fn introduce(&mut self, at: usize) {
        let introduction = Introduction {
            version: CONTROL_VERSION,
            features: FEATURES,
            name: self.config.config.name.clone(),
            boot: self.boot,
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
                let at = (address.port() != 0).then_some((address, token));
                self.tell_all(|| Command::Rdma { peer, worker, at });
            }
            ControlMessage::LinkHello { here, bytes } => {
                let (header, body) = Header::read(&bytes).map_err(|e| e.to_string())?;
                let hello = LinkHello::read(header, body).map_err(|e| e.to_string())?;
                self.tell(self.owner(hello.link), Command::LinkHello { peer, here, hello });
            }
            ControlMessage::Batch { link, attempt, bytes } => {
                self.tell(self.owner(link), Command::Batch { peer, link, attempt, bytes });
            }
            ControlMessage::Broken { link, attempt } => {
                self.tell(self.owner(link), Command::Broken { peer, link, attempt });
            }
            ControlMessage::Draining => {
                if let Some(introduction) = &mut self.peers[peer].introduction {
                    introduction.draining = true;
                }
                self.tell_all(|| Command::PeerDraining(peer));
                self.update_alive();
            }
        }
        Ok(())
    }

    fn on_introduction(&mut self, at: usize, said: Introduction) -> Result<(), String> {
        let Some(Some(channel)) = self.channels.get(at) else { return Ok(()) };
        if said.version != CONTROL_VERSION {
            return Err(format!("it speaks version {} of the control channel, not {CONTROL_VERSION}", said.version));
        }
        if !channel.shows(&said.name) {
            return Err(format!("it says that it is {}, but its certificate does not", said.name));
        }
        if said.name == self.config.config.name {
            return Err("it has this proxy's own name".into());
        }
        if said.workers == 0 || said.workers > crate::config::WORKERS_MAX {
            return Err(format!("it says that it has {} workers", said.workers));
        }
        let dialled = channel.dialled;
        let number = self.add_peer(&said.name, None, false)?;
        if dialled.is_some_and(|dialled| dialled != number) {
            return Err(format!("it is {}, another peer", said.name));
        }
        if self.peers[number].address.is_none() {
            self.peers[number].address = Some(said.address);
        }
        if self.peers[number].introduction.as_ref().is_some_and(|before| before.boot != said.boot) {
            let own = self.peers[number].channel.take_if(|open| *open == at);
            self.end_peer(number, "its process was started again");
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
            self.introduce(at);
        }
        let dials = self.dials(number);
        let peer = &mut self.peers[number];
        peer.lost = None;
        peer.complaint.clear();
        peer.introduction = Some(said.clone());
        let token = peer.token;
        crate::log(format_args!("peer {} is there", said.name));
        self.tell_all(|| Command::PeerUp { peer: number, introduction: said.clone(), dials, token });
        for worker in 0..self.config.workers {
            self.announce_worker(number, worker);
        }
        self.update_alive();
        Ok(())
    }
}
