//! Connections of programs: accepted from the listeners to which interception steers them, and sent to a peer or on by
//! TCP.
//!
//! The accepted socket's own address is the server's, because the program's SYN was not rewritten. The program is
//! connected before the server has answered ("early accept"): a server that refuses is seen as a reset after the
//! connect.

use super::conn::{Phase, ProxyConn};
use super::credit_rounds::CreditRounds;
use super::syn::{ClientEnd, Ends, HeldFor};
use super::{ACCEPTS, KIND_LISTENER, KIND_SYNS, NetworkPlace, RelayWorker};
use crate::config::{Checked, RelayBy, within};
use crate::counters::ProxyCounter;
use crate::intercept::steer;
use crate::message::Report;
use crate::pool::{WindowPool, WindowSlot};
use crate::sys;
use burst_base::Reason;
use burst_relay::{Frame, Outcome, Stream};
use std::io::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Kernel buffer of each socket of the proxy and direction, in bytes: with the program's own buffers and the windows
/// it bounds what a stalled stream holds.
pub(super) const SOCKET_BUFFER: i32 = 1 << 20;
const IP_TRANSPARENT: i32 = 19;
const IPV6_TRANSPARENT: i32 = 75;
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;

/// The index of the place that serves an address, by longest prefix.
pub(super) fn serving(places: &[NetworkPlace], config: &Checked, ip: IpAddr) -> Option<usize> {
    let serves = places.iter().enumerate().flat_map(|(at, place)| place.serves.iter().map(move |serve| (at, *serve)));
    let prefixes = serves.flat_map(|(at, serve)| config.serves[serve].iter().map(move |prefix| (at, *prefix)));
    prefixes.filter(|(_, prefix)| within(ip, *prefix)).max_by_key(|(_, prefix)| prefix.1).map(|(at, _)| at)
}

/// Whether servers of a place have this address.
pub(super) fn serves(place: &NetworkPlace, config: &Checked, ip: IpAddr) -> bool {
    place.serves.iter().any(|serve| config.serves[*serve].iter().any(|prefix| within(ip, *prefix)))
}

/// Whether an address is one of this host, in the namespace of the calling thread: an ordinary socket can be bound to
/// no other.
pub(super) fn is_local(address: SocketAddr) -> bool {
    sys::tcp_socket(address.ip()).is_ok_and(|socket| sys::bind(&socket, SocketAddr::new(address.ip(), 0)).is_ok())
}

/// The first of these rules `[[take]]` that names an address.
pub(super) fn named(config: &Checked, takes: &[usize], server: SocketAddr) -> Option<usize> {
    takes.iter().copied().find(|take| {
        let (prefixes, ranges) = &config.takes[*take];
        let named = ranges.iter().any(|(first, last)| (*first..=*last).contains(&server.port()));
        named && prefixes.iter().any(|prefix| within(server.ip(), *prefix))
    })
}

/// The mark of the proxy's own connections, which no policy takes and no rule routes: the intercepted ones' plus 2^16.
pub fn own_mark(mark: i32) -> i32 {
    mark + (1 << 16)
}

/// A listener at all addresses of one family, to which connections of any address can be steered.
///
/// # Errors
/// CAP_NET_ADMIN is missing, or no descriptors.
pub fn listener(v6: bool) -> Result<OwnedFd> {
    let any: IpAddr = if v6 { std::net::Ipv6Addr::LOCALHOST.into() } else { std::net::Ipv4Addr::LOCALHOST.into() };
    let socket = sys::tcp_socket(any)?;
    set_transparent(&socket, v6)?;
    // Accepted sockets inherit it. They hold the server's port on the client's host, where a program may want to listen
    // at the same one.
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    sys::bind(&socket, SocketAddr::new(any, 0))?;
    sys::listen(&socket, 4096)?;
    Ok(socket)
}

fn set_transparent(socket: &OwnedFd, v6: bool) -> Result<()> {
    if v6 {
        sys::set_option(socket, libc::SOL_IPV6, IPV6_TRANSPARENT, 1)
    } else {
        sys::set_option(socket, libc::SOL_IP, IP_TRANSPARENT, 1)
    }
}

/// Options of every socket that leads to a program.
pub(super) fn prepare(socket: &OwnedFd) -> Result<()> {
    sys::set_reset_on_close(socket, true)?;
    sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, SOCKET_BUFFER)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER)
}

/// Begins to connect to a server of this host from the client's own address and port. The mark goes over to the
/// server's socket (`tcp_fwmark_accept`), so that its packets come back here.
///
/// # Errors
/// PermissionDenied if the client's address is one of this host, which its programs may trust; those of the calls.
pub(super) fn connect_as(client: SocketAddr, server: SocketAddr, mark: i32) -> Result<OwnedFd> {
    let local = client.ip().is_unspecified() || is_local(client);
    if local || client.ip().is_loopback() || client.ip().is_multicast() {
        return Err(Error::new(std::io::ErrorKind::PermissionDenied, "the client's address is one of this host"));
    }
    let socket = sys::tcp_socket(server.ip())?;
    prepare(&socket)?;
    set_transparent(&socket, server.is_ipv6())?;
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    sys::bind(&socket, client)?;
    sys::connect(&socket, server)?;
    Ok(socket)
}

/// Begins to connect to a server by TCP, from the client's address but another port.
pub(super) fn connect_onward(client: SocketAddr, server: SocketAddr, mark: i32) -> Result<OwnedFd> {
    let socket = sys::tcp_socket(server.ip())?;
    prepare(&socket)?;
    sys::set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, own_mark(mark))?;
    sys::set_option(&socket, libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)?;
    sys::bind(&socket, SocketAddr::new(client.ip(), 0))?;
    sys::connect(&socket, server)?;
    Ok(socket)
}

impl RelayWorker {
    pub(super) fn add_listeners(&mut self) -> Result<()> {
        for (at, place) in self.places.iter().enumerate() {
            if let Some(queue) = &place.queue {
                self.poll.add(queue.fd(), libc::EPOLLIN, KIND_SYNS << 56 | at as u64)?;
            }
        }
        self.each_listener(|poll, fd, token| poll.add(fd, libc::EPOLLIN, token))
    }

    fn each_listener(&self, change: impl Fn(&sys::Poll, RawFd, u64) -> Result<()>) -> Result<()> {
        for (at, place) in self.places.iter().enumerate() {
            for (which, listener) in place.listeners.iter().enumerate() {
                let token = KIND_LISTENER << 56 | (which as u64) << 16 | at as u64;
                change(&self.poll, listener.as_raw_fd(), token)?;
            }
        }
        Ok(())
    }

    /// Accepts nothing until the next tick: there are no descriptors.
    fn pause_listeners(&mut self, why: &Error) {
        if self.counters.get(ProxyCounter::AcceptsPaused).is_none() {
            crate::log(format_args!("connections wait to be accepted: {why} (limit of open files: ulimit -n)"));
        }
        self.counters.count(ProxyCounter::AcceptsPaused);
        self.listen_for(0);
        self.listeners_paused = true;
        self.tick_soon();
    }

    /// Accepts again after a pause.
    pub(super) fn resume_listeners(&mut self) {
        if std::mem::take(&mut self.listeners_paused) {
            self.listen_for(libc::EPOLLIN);
        }
    }

    fn listen_for(&self, events: i32) {
        if let Err(e) = self.each_listener(|poll, fd, token| poll.change(fd, events, token)) {
            crate::log(format_args!("a listener cannot be watched: {e}"));
        }
    }

    /// Runs `make` in a place's namespace.
    pub(super) fn in_place<T>(&self, at: usize, make: impl FnOnce(&Checked) -> Result<T>) -> Result<T> {
        let Some(namespace) = &self.places[at].namespace else { return make(&self.config) };
        sys::enter_namespace(namespace.as_ref())?;
        let made = make(&self.config);
        sys::enter_namespace(self.home.as_ref())?;
        made
    }

    pub(super) fn accept(&mut self, at: usize, which: usize) {
        for _ in 0..ACCEPTS {
            let accepted = sys::accept(&self.places[at].listeners[which]);
            let (socket, client, server) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                // The rest waits in the kernel: the listener stays readable, so its events would come without end.
                Err(e) if sys::no_descriptors(&e) => return self.pause_listeners(&e),
                Err(e) => {
                    // ECONNABORTED and the like concern one connection.
                    crate::log(format_args!("a connection cannot be accepted: {e}"));
                    return;
                }
            };
            self.counters.count(ProxyCounter::ConnectionsTaken);
            let keep_alive = self.places[at].keep_alive;
            let kept = || if keep_alive { steer::keep_alive(&socket, steer::KEEPALIVE_S) } else { Ok(()) };
            if let Err(e) = prepare(&socket).and_then(|()| kept()) {
                crate::log(format_args!("{client} to {server}: {e}"));
                continue;
            }
            // A listener is an ordinary socket to the programs of its namespace. Only what a policy took goes on: another
            // connection would lead to this listener again, or to addresses of the peer that no policy names.
            let own = sys::local_address(&self.places[at].listeners[which]).is_ok_and(|own| own == server);
            if own || named(&self.config, &self.places[at].takes, server).is_none() {
                self.counters.count(ProxyCounter::ConnectionsNotNamed);
                continue;
            }
            if let Some(socket) = self.join_accepted(socket, (client, server)) {
                self.dispatch(at, ClientEnd::Accepted(socket), client, server);
            }
        }
    }

    pub(super) fn dispatch(&mut self, at: usize, end: ClientEnd, client: SocketAddr, server: SocketAddr) {
        match self.choose(at, server) {
            Ok(link) => match self.take_slot(link) {
                Some(slot) => self.open(at, link, slot, (end, client, server)),
                None => self.go_onward(at, end, (client, server), Reason::ProxyNoMemory),
            },
            Err(why) => self.go_onward(at, end, (client, server), why),
        }
    }

    /// The link for a destination, or why there is none.
    fn choose(&self, at: usize, server: SocketAddr) -> std::result::Result<usize, Reason> {
        let take = named(&self.config, &self.places[at].takes, server);
        if take.is_some_and(|take| self.config.config.take[take].relay == RelayBy::Tcp) {
            return Err(Reason::ProxyPolicyTcp);
        }
        if self.draining {
            return Err(Reason::ProxyDraining);
        }
        let serves = self.peers.iter().flat_map(|(number, peer)| {
            let prefixes = peer.introduction.serves.iter().filter(|prefix| within(server.ip(), **prefix));
            prefixes.map(move |prefix| (prefix.1, *number, peer))
        });
        let Some((_, number, peer)) = serves.max_by_key(|(bits, number, _)| (*bits, *number)) else {
            return Err(Reason::ProxyNoPeer);
        };
        if peer.introduction.draining {
            return Err(Reason::ProxyDraining);
        }
        let links = self.links.iter().enumerate().filter_map(|(at, link)| link.as_ref().map(|link| (at, link)));
        let active = links.filter(|(_, link)| link.peer == number && link.active);
        active.min_by_key(|(_, link)| link.streams.len()).map(|(at, _)| at).ok_or(Reason::ProxyNoLink)
    }

    /// Memory for a stream of a link, if the worker's share allows it.
    pub(super) fn take_slot(&mut self, link: usize) -> Option<WindowSlot> {
        let share = self.config.memory / u64::from(self.config.workers);
        let first = WindowPool::region_bytes(self.config.window);
        let left = share.saturating_sub(self.paired() + first);
        if self.links[link].as_ref()?.pool.full() && self.mapped() > left {
            self.links.iter_mut().flatten().for_each(|link| link.pool.shrink());
        }
        let may_grow = self.mapped() <= left && self.paired() + first <= share;
        let device = self.rdma.as_ref().and_then(|rdma| rdma.known_device());
        self.links[link].as_mut()?.pool.take(device.as_ref(), may_grow).ok()
    }

    fn open(
        &mut self,
        at: usize,
        link: usize,
        slot: WindowSlot,
        (end, client, server): (ClientEnd, SocketAddr, SocketAddr),
    ) {
        let Some(state) = &mut self.links[link] else { return };
        let id = state.next_id;
        let Some(next) = id.checked_add(2) else {
            // The links begin anew.
            let peer = state.peer;
            state.pool.give(slot);
            self.report(Report::PeerFault(peer, "the stream ids of a link are used up".into()));
            return self.go_onward(at, end, (client, server), Reason::ProxyNoLink);
        };
        let (socket, is_held) = match end {
            ClientEnd::Accepted(socket) => (Some(socket), false),
            ClientEnd::Held => (None, true),
        };
        state.next_id = next;
        let (ring, window) = (state.pool.ring_len(), state.pool.window(slot));
        state.outbox.push(id, &Frame::Open { client, server, window });
        let place = self.add_conn(ProxyConn {
            generation: 0,
            link,
            phase: Phase::Opening,
            socket,
            stream: Stream::new(id, ring, ring, None),
            slot: Some(slot),
            client,
            server,
            place: at,
            readable: false,
            writable: false,
            hung_up: false,
            queued: false,
            waits: false,
            urgent_here: false,
            urgent: None,
            rounds: CreditRounds::default(),
            blocked_at: 0,
        });
        let generation = self.conns[place].as_ref().map_or(0, |conn| conn.generation);
        if is_held {
            self.hold_for((client, server), HeldFor::Stream(place, generation));
        }
        let deadline = Instant::now() + Duration::from_millis(self.config.config.open_ms);
        self.opening.push_back((deadline, place, generation));
        self.mark_dirty(link);
        self.tick_soon();
    }

    /// Streams whose peer does not answer go by TCP.
    pub(super) fn give_up_opening(&mut self, now: Instant) {
        while let Some((deadline, place, generation)) = self.opening.front().copied() {
            let waits = self.conns[place]
                .as_ref()
                .is_some_and(|conn| conn.generation == generation && conn.phase == Phase::Opening);
            if waits && deadline > now {
                break;
            }
            self.opening.pop_front();
            if waits {
                self.go_by_tcp(place, Outcome::Cancelled, Reason::ProxyPeerSilent);
            }
        }
        if !self.opening.is_empty() {
            self.tick_soon();
        }
    }

    /// A stream that the peer does not carry goes on by TCP: nothing was sent yet.
    pub(super) fn go_by_tcp(&mut self, place: usize, outcome: Outcome, why: Reason) {
        let Some(conn) = &mut self.conns[place] else { return };
        let (socket, at, ends) = (conn.socket.take(), conn.place, (conn.client, conn.server));
        let end = self.release_end(socket, ends, place);
        self.reset(place, outcome);
        if let Some(end) = end {
            self.go_onward(at, end, ends, why);
        }
    }

    /// The program's end of a stream that goes on by TCP: its socket, or its SYN, which is no longer the stream's.
    pub(super) fn release_end(&mut self, socket: Option<OwnedFd>, ends: Ends, place: usize) -> Option<ClientEnd> {
        if let Some(socket) = socket {
            // The old registration would report events under the old token; a duplicate is another entry of epoll.
            return socket.try_clone().ok().map(ClientEnd::Accepted);
        }
        let generation = self.conns[place].as_ref()?.generation;
        if !self.is_held(ends, HeldFor::Stream(place, generation)) {
            return None;
        }
        self.hold_for(ends, HeldFor::Nobody);
        Some(ClientEnd::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::{connect_as, named};
    use crate::config::ProxyConfig;

    #[test]
    fn only_what_a_policy_of_the_place_names_is_taken() {
        let config = ProxyConfig::parse(
            "name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\n[[take]]\nto=['10.0.0.0/8']\nports='80'\n\
             [[take]]\nto=['fd00::/64']\nports='1-65535'",
        )
        .unwrap();
        let take = |takes: &[usize], server: &str| named(&config, takes, server.parse().unwrap());
        assert_eq!(take(&[0, 1], "10.0.0.2:80"), Some(0));
        assert_eq!(take(&[0, 1], "[fd00::1]:9"), Some(1));
        assert_eq!(take(&[1], "10.0.0.2:80"), None, "another place");
        assert_eq!(take(&[0, 1], "10.0.0.2:81"), None, "another port");
        assert_eq!(take(&[0, 1], "127.0.0.1:80"), None, "the listener itself");
    }
    #[test]
    fn no_peer_speaks_for_a_client_of_this_host() {
        for client in ["127.0.0.1:5", "[::1]:5", "0.0.0.0:5", "224.0.0.1:5"] {
            let refused = connect_as(client.parse().unwrap(), "127.0.0.1:9".parse().unwrap(), 81).unwrap_err();
            assert_eq!(refused.to_string(), "the client's address is one of this host", "{client}");
        }
    }
}
