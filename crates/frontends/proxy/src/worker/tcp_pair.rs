//! One connection relayed by TCP alone: the program's socket and the one to the server, joined by two buffers.

use super::shares::ConnCharges;
use super::sockets::{Ends, TURN_BYTES, TcpEnd, close_in_order};
use super::watched_socket::{Received, WatchedSocket};
use crate::intercept::steer;
use crate::sys::EventFlags;
use burst_base::Reason;
use std::io::Result;
use std::os::fd::OwnedFd;

/// Bytes on their way in one direction.
#[derive(Debug)]
struct RelayDirection {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    /// The source has ended its direction.
    read_end: bool,
    /// The sink was shut down.
    sent_end: bool,
    /// An urgent byte that follows what is in the buffer.
    urgent: Option<u8>,
}

/// Two sockets: the program's 0, the one to the server 1.
#[derive(Debug)]
pub(super) struct TcpPair {
    sockets: [WatchedSocket; 2],
    /// From socket 0 to 1, and back.
    directions: [RelayDirection; 2],
    connected: bool,
    /// The program's socket has keepalives.
    keep_alive: bool,
    /// Bytes read from, and sent to, both sockets since they were last counted.
    moved: (u64, u64),
    /// It is in the list of those that have a turn.
    pub(super) queued: bool,
    pub(super) ends: Ends,
    pub(super) why: Reason,
    charges: Box<ConnCharges>,
}

impl RelayDirection {
    fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes], from: 0, to: 0, read_end: false, sent_end: false, urgent: None }
    }

    fn pending(&self) -> usize {
        self.to - self.from
    }

    /// Sends what is in the buffer, then the urgent byte, then the end; false if the urgent byte has to wait.
    fn write(&mut self, sink: &mut WatchedSocket) -> Result<bool> {
        if self.pending() > 0 && sink.is_writable() {
            self.from += sink.send(&self.buffer[self.from..self.to])?.unwrap_or(0);
        }
        if self.pending() > 0 {
            return Ok(true);
        }
        (self.from, self.to) = (0, 0);
        if let Some(byte) = self.urgent.filter(|_| sink.is_writable())
            && sink.send_urgent(byte)?
        {
            self.urgent = None;
        }
        if self.urgent.is_some() {
            return Ok(false);
        }
        if self.read_end && !self.sent_end {
            sink.end()?;
            self.sent_end = true;
        }
        Ok(true)
    }

    /// Whether nothing more can be read now.
    fn is_stopped(&self, source: &WatchedSocket) -> bool {
        !source.is_readable() || self.read_end || self.urgent.is_some() || self.to == self.buffer.len()
    }

    /// Reads once, at most `most` bytes; returns how many.
    fn read(&mut self, source: &mut WatchedSocket, most: usize) -> Result<usize> {
        if source.is_at_urgent() {
            self.urgent = source.receive_urgent();
            return Ok(0);
        }
        let room = (self.buffer.len() - self.to).min(most);
        match source.receive(&mut self.buffer[self.to..self.to + room])? {
            Received::Bytes(got) => {
                self.to += got;
                return Ok(got);
            }
            Received::End => self.read_end = true,
            Received::Nothing => {}
        }
        Ok(0)
    }
}

impl TcpPair {
    /// `bytes`: of each buffer. `onward`: to the server.
    pub(super) fn new(taken: TcpEnd, onward: OwnedFd, bytes: usize, keep_alive: bool, why: Reason) -> Self {
        let TcpEnd { socket, ends, charges, .. } = taken;
        Self {
            sockets: [socket, Some(onward)].map(WatchedSocket::new),
            directions: [RelayDirection::new(bytes), RelayDirection::new(bytes)],
            connected: false,
            keep_alive,
            moved: (0, 0),
            queued: false,
            ends,
            why,
            charges,
        }
    }

    /// Bytes of both buffers that count as memory of streams: small ones are a part of what a socket costs.
    pub(super) fn bytes(&self) -> u64 {
        if self.charges.memory.is_none() {
            return 0;
        }
        self.directions.iter().map(|direction| direction.buffer.len() as u64).sum()
    }

    /// A socket.
    pub(super) fn socket(&self, side: usize) -> Option<&OwnedFd> {
        self.sockets[side].get()
    }

    /// The program's socket, whose SYN was held.
    pub(super) fn set_program(&mut self, socket: OwnedFd) {
        self.sockets[0].set(socket);
    }

    /// Takes an event of a socket; whether the server has just accepted.
    ///
    /// # Errors
    /// A socket has failed, or the server has refused.
    pub(super) fn on_event(&mut self, side: usize, flags: EventFlags) -> Result<bool> {
        self.sockets[side].on_event(flags);
        if flags.contains(EventFlags::ERR)
            && let Some(error) = self.sockets[side].take_error()?
        {
            return Err(error);
        }
        let is_connected = side == 1 && flags.contains(EventFlags::OUT) && !flags.contains(EventFlags::HUP);
        Ok(is_connected && !std::mem::replace(&mut self.connected, true))
    }

    /// Bytes read and delivered since the last call.
    pub(super) fn take_moved(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.moved)
    }

    /// Moves bytes in both directions; whether there is more to do now. `None`: both have ended.
    ///
    /// # Errors
    /// A socket has failed.
    pub(super) fn turn(&mut self) -> Result<Option<bool>> {
        if !self.connected {
            return Ok(Some(false));
        }
        let (more, back) = (self.step(0)?, self.step(1)?);
        if self.directions.iter().all(|direction| direction.sent_end) {
            self.sockets.iter().filter_map(WatchedSocket::get).for_each(close_in_order);
            return Ok(None);
        }
        Ok(Some(more || back))
    }

    /// Moves bytes from socket `side` to the other; true if there is more to do now.
    fn step(&mut self, side: usize) -> Result<bool> {
        let [program, server] = &mut self.sockets;
        let (source, sink) = if side == 0 { (program, server) } else { (server, program) };
        if source.get().is_none() || sink.get().is_none() {
            return Ok(false);
        }
        let direction = &mut self.directions[side];
        let mut budget = TURN_BYTES;
        loop {
            let waiting = direction.pending();
            let goes_on = direction.write(sink)?;
            self.moved.1 += (waiting - direction.pending()) as u64;
            if !goes_on {
                return Ok(false);
            }
            if budget == 0 || direction.is_stopped(source) {
                return Ok(budget == 0);
            }
            let got = direction.read(source, budget)?;
            self.moved.0 += got as u64;
            budget -= got;
            if direction.read_end && side == 0 && self.keep_alive {
                source.get().into_iter().for_each(steer::keep_half_closed);
            }
        }
    }
}
