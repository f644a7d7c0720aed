//! The relay by TCP alone: the program's socket and a second TCP connection to the server, joined by two buffers.
//!
//! It serves connections that no peer carries, before their first byte, and the policy `relay = "tcp"`, which is the
//! floor of the benchmark.

use super::conn::WATCHED;
use super::syn::{ClientEnd, HeldFor};
use super::{KIND_PAIR, RelayWorker, TURN_BYTES, listen};
use crate::counters::ProxyCounter;
use crate::hold::Verdict;
use crate::intercept::steer;
use crate::sys;
use burst_base::Reason;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Buffer of each direction when the configured memory is used up.
const PAIR_BYTES_LEAST: usize = 16 << 10;

/// Bytes on their way in one direction.
#[derive(Debug)]
struct RelayDirection {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    read_end: bool,
    told_end: bool,
    /// The kernel has announced an urgent byte that was not read yet.
    urgent_here: bool,
    /// An urgent byte that follows what is in the buffer.
    urgent: Option<u8>,
}

/// Two sockets.
#[derive(Debug)]
pub(super) struct TcpPair {
    generation: u32,
    /// The program's, `None` while its SYN is held, and the one to the server.
    sockets: [Option<OwnedFd>; 2],
    readable: [bool; 2],
    writable: [bool; 2],
    hung_up: [bool; 2],
    connected: bool,
    /// As in the place where the program is.
    keep_alive: bool,
    /// From socket 0 to 1, and back.
    directions: [RelayDirection; 2],
    queued: bool,
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) why: Reason,
}

impl RelayDirection {
    fn new(bytes: usize) -> Self {
        Self {
            buffer: vec![0; bytes],
            from: 0,
            to: 0,
            read_end: false,
            told_end: false,
            urgent_here: false,
            urgent: None,
        }
    }

    fn pending(&self) -> usize {
        self.to - self.from
    }
}

impl RelayWorker {
    /// Relays an accepted connection by TCP.
    pub(super) fn go_onward(
        &mut self,
        at: usize,
        end: ClientEnd,
        (client, server): (SocketAddr, SocketAddr),
        why: Reason,
    ) {
        self.counters.count(ProxyCounter::ConnectionsByTcp);
        self.decide(client, server, why);
        let made = self.in_place(at, |config| listen::connect_onward(client, server, config.config.mark as i32));
        let onward = match made {
            Ok(onward) => onward,
            Err(e) => {
                // Without descriptors the program's TCP tries again.
                let answer = if sys::no_descriptors(&e) { Verdict::Drop } else { Verdict::Refuse };
                self.end_syn((client, server), HeldFor::Nobody, answer);
                return crate::log(format_args!("{client} to {server} by TCP: {e}"));
            }
        };
        let (socket, is_held) = match end {
            ClientEnd::Accepted(socket) => (Some(socket), false),
            ClientEnd::Held => (None, true),
        };
        // Without memory left a connection goes on slowly rather than not at all.
        let share = self.config.memory / u64::from(self.config.workers);
        let full = self.paired() + 2 * u64::from(self.config.window) > share;
        let bytes = if full { PAIR_BYTES_LEAST.min(self.config.window as usize) } else { self.config.window as usize };
        let generation = self.next_generation();
        let place = self.free_pairs.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let pair = TcpPair {
            generation,
            sockets: [socket, Some(onward)],
            readable: [false; 2],
            writable: [false; 2],
            hung_up: [false; 2],
            connected: false,
            keep_alive: self.places[at].keep_alive,
            directions: [RelayDirection::new(bytes), RelayDirection::new(bytes)],
            queued: false,
            client,
            server,
            why,
        };
        let added = (0..2).try_for_each(|side| {
            let Some(socket) = &pair.sockets[side] else { return Ok(()) };
            self.poll.add(socket.as_raw_fd(), WATCHED, pair_token(place, generation, side))
        });
        self.pairs[place] = Some(pair);
        if is_held {
            self.hold_for((client, server), HeldFor::Pair(place, generation));
        }
        if let Err(e) = added {
            crate::log(format_args!("a connection cannot be watched: {e}"));
            self.drop_pair(place);
        }
    }

    /// Bytes of the buffers of connections that are relayed by TCP.
    pub(super) fn paired(&self) -> u64 {
        self.pairs
            .iter()
            .flatten()
            .flat_map(|pair| &pair.directions)
            .map(|direction| direction.buffer.len() as u64)
            .sum()
    }

    fn drop_pair(&mut self, place: usize) {
        self.end_pair(place, Verdict::Drop);
    }

    /// Ends a connection; `answer`: what its SYN gets if it is held.
    fn end_pair(&mut self, place: usize, answer: Verdict) {
        if let Some(pair) = self.pairs[place].take() {
            self.free_pairs.push(place);
            self.end_syn((pair.client, pair.server), HeldFor::Pair(place, pair.generation), answer);
        }
    }

    /// Joins the program's socket to a connection whose SYN was held.
    pub(super) fn join_pair(&mut self, place: usize, generation: u32, socket: OwnedFd) {
        let Some(Some(pair)) = self.pairs.get_mut(place) else { return };
        if pair.generation != generation {
            return;
        }
        let added = self.poll.add(socket.as_raw_fd(), WATCHED, pair_token(place, generation, 0));
        pair.sockets[0] = Some(socket);
        if let Err(e) = added {
            crate::log(format_args!("a connection cannot be watched: {e}"));
            self.drop_pair(place);
        }
    }

    /// Ends a connection by TCP whose socket never came.
    pub(super) fn drop_pair_of(&mut self, place: usize, generation: u32) {
        if self.pairs[place].as_ref().is_some_and(|pair| pair.generation == generation) {
            self.drop_pair(place);
        }
    }

    pub(super) fn pair_event(&mut self, place: usize, generation: u32, side: usize, flags: u32) {
        let Some(Some(pair)) = self.pairs.get_mut(place) else { return };
        if pair.generation != generation {
            return;
        }
        let has = |flag: i32| flags & flag as u32 != 0;
        pair.directions[side].urgent_here |= has(libc::EPOLLPRI);
        pair.readable[side] |= has(libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        pair.hung_up[side] |= has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        pair.writable[side] |= has(libc::EPOLLOUT);
        if has(libc::EPOLLERR)
            && let Some(socket) = &pair.sockets[side]
        {
            match sys::take_error(socket) {
                Ok(None) => {}
                Ok(Some(e)) if e.kind() == ErrorKind::ConnectionRefused => {
                    return self.end_pair(place, Verdict::Refuse);
                }
                Ok(Some(_)) | Err(_) => return self.drop_pair(place),
            }
        }
        let was_connected = pair.connected;
        pair.connected |= side == 1 && has(libc::EPOLLOUT) && !has(libc::EPOLLHUP);
        let (ends, connected) = ((pair.client, pair.server), pair.connected);
        if !pair.queued {
            pair.queued = true;
            self.ready_pairs.push_back(place);
        }
        if connected && !was_connected {
            self.pass_syn(ends, HeldFor::Pair(place, generation));
        }
    }

    pub(super) fn turn_pair(&mut self, place: usize) {
        let Some(pair) = &mut self.pairs[place] else { return };
        pair.queued = false;
        if !pair.connected {
            return;
        }
        let (Ok(more), Ok(back)) = (pair.step(0), pair.step(1)) else { return self.drop_pair(place) };
        if pair.directions.iter().all(|d| d.told_end) {
            for socket in pair.sockets.iter().flatten() {
                if let Err(e) = sys::set_reset_on_close(socket, false) {
                    crate::log(format_args!("a socket keeps its reset on close: {e}"));
                }
            }
            return self.drop_pair(place);
        }
        if more || back {
            pair.queued = true;
            self.ready_pairs.push_back(place);
        }
    }
}

/// The token of a socket of a pair.
fn pair_token(place: usize, generation: u32, side: usize) -> u64 {
    KIND_PAIR << 56 | u64::from(generation) << 32 | (side as u64) << 31 | place as u64
}

impl TcpPair {
    /// Moves bytes from socket `side` to the other; true if there is more to do now.
    fn step(&mut self, side: usize) -> std::io::Result<bool> {
        let mut budget = TURN_BYTES;
        let (Some(from), Some(to)) = (&self.sockets[side], &self.sockets[1 - side]) else { return Ok(false) };
        loop {
            let direction = &mut self.directions[side];
            if direction.pending() > 0 && self.writable[1 - side] {
                match sys::send(to, &direction.buffer[direction.from..direction.to], 0) {
                    Ok(sent) => {
                        self.writable[1 - side] = sent == direction.pending();
                        direction.from += sent;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable[1 - side] = false,
                    Err(e) => return Err(e),
                }
            }
            if direction.pending() == 0 {
                (direction.from, direction.to) = (0, 0);
                if let (Some(byte), true) = (direction.urgent, self.writable[1 - side]) {
                    match sys::send(to, &[byte], libc::MSG_OOB) {
                        Ok(_) => direction.urgent = None,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable[1 - side] = false,
                        Err(e) => return Err(e),
                    }
                }
                if direction.urgent.is_some() {
                    return Ok(false);
                }
                if direction.read_end && !direction.told_end {
                    sys::shutdown(to, Shutdown::Write)?;
                    direction.told_end = true;
                }
            }
            let room = (direction.buffer.len() - direction.to).min(budget);
            if !self.readable[side] || direction.read_end || room == 0 || direction.urgent.is_some() {
                return Ok(budget == 0);
            }
            if direction.urgent_here && matches!(sys::at_mark(from), Ok(true)) {
                direction.urgent_here = false;
                direction.urgent = sys::receive_urgent(from).ok();
                continue;
            }
            match sys::receive(from, &mut direction.buffer[direction.to..direction.to + room]) {
                Ok(0) => {
                    direction.read_end = true;
                    if side == 0 && self.keep_alive {
                        steer::keep_half_closed(from);
                    }
                }
                Ok(got) => {
                    self.readable[side] = got == room || self.hung_up[side] || direction.urgent_here;
                    direction.to += got;
                    budget -= got;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable[side] = false,
                Err(e) => return Err(e),
            }
        }
    }
}
