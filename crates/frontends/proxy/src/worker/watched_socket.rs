//! A TCP socket that is registered edge-triggered once, and what it is ready for.
//!
//! A flag stays set until a call has found that the socket is not ready any more; only then does epoll report it again.

use crate::sys::{self, EventFlags};
use rustix::net::{self, SendFlags, Shutdown};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

/// The socket and its flags.
#[derive(Debug, Default)]
pub(super) struct WatchedSocket {
    /// `None`: there is none yet, or no more.
    socket: Option<OwnedFd>,
    readable: bool,
    writable: bool,
    /// The peer's FIN or RST has come: reading on finds it.
    hung_up: bool,
    /// The kernel has announced an urgent byte that was not read yet.
    urgent_here: bool,
}

/// What reading has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// The end of the direction.
    End,
    /// Nothing now.
    Nothing,
}

impl WatchedSocket {
    pub(super) fn new(socket: Option<OwnedFd>) -> Self {
        Self { socket, ..Self::default() }
    }

    /// The socket.
    pub(super) fn get(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// The socket has been made.
    pub(super) fn set(&mut self, socket: OwnedFd) {
        debug_assert!(self.socket.is_none(), "a connection has one socket");
        self.socket = Some(socket);
    }

    /// Takes the socket out.
    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    /// Whether there may be something to read.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether it may take bytes.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Notes the flags of an event.
    pub(super) fn on_event(&mut self, flags: EventFlags) {
        let ended = EventFlags::HUP | EventFlags::ERR;
        self.readable |= flags.intersects(ended | EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP);
        self.writable |= flags.intersects(ended | EventFlags::OUT);
        self.hung_up |= flags.intersects(ended | EventFlags::RDHUP);
        self.urgent_here |= flags.contains(EventFlags::PRI);
    }

    /// Sends; `None`: the socket takes nothing now.
    ///
    /// # Errors
    /// Of `send`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        let sent = unless_not_ready(sys::send(socket, bytes, SendFlags::empty()))?;
        self.writable = sent == Some(bytes.len());
        Ok(sent)
    }

    /// Sends an urgent byte; false: the socket does not take it now.
    ///
    /// # Errors
    /// Of `send`.
    pub(super) fn send_urgent(&mut self, byte: u8) -> Result<bool> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        self.writable = unless_not_ready(sys::send(socket, &[byte], SendFlags::OOB))?.is_some();
        Ok(self.writable)
    }

    /// Ends the outgoing direction.
    ///
    /// # Errors
    /// Of `shutdown`.
    pub(super) fn end(&self) -> Result<()> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        Ok(net::shutdown(socket, Shutdown::Write)?)
    }

    /// Receives.
    ///
    /// # Errors
    /// Of `recv`.
    pub(super) fn receive(&mut self, to: &mut [u8]) -> Result<Received> {
        debug_assert!(!to.is_empty(), "0 bytes would look like the end");
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        match unless_not_ready(sys::receive(socket, to))? {
            Some(0) => Ok(Received::End),
            Some(got) => {
                self.readable = got == to.len() || self.hung_up || self.urgent_here;
                Ok(Received::Bytes(got))
            }
            None => {
                self.readable = false;
                Ok(Received::Nothing)
            }
        }
    }

    /// Whether the urgent byte that was announced comes next.
    pub(super) fn is_at_urgent(&self) -> bool {
        self.urgent_here && self.socket.as_ref().is_some_and(|socket| matches!(sys::at_mark(socket), Ok(true)))
    }

    /// Receives the urgent byte; `None`: another one has replaced it.
    pub(super) fn receive_urgent(&mut self) -> Option<u8> {
        self.urgent_here = false;
        sys::receive_urgent(self.socket.as_ref()?).ok()
    }

    /// The pending error. Without a socket: it is not connected.
    ///
    /// # Errors
    /// Of `getsockopt`.
    pub(super) fn take_error(&self) -> Result<Option<Error>> {
        self.socket.as_ref().map_or(Err(ErrorKind::NotConnected.into()), sys::take_error)
    }
}

/// `None` if the call would have waited.
fn unless_not_ready(result: Result<usize>) -> Result<Option<usize>> {
    match result {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn connected() -> (WatchedSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (WatchedSocket::new(Some(listener.accept().unwrap().0.into())), other)
    }

    #[test]
    fn a_socket_stays_ready_until_a_call_finds_that_it_is_not() {
        let (mut socket, mut other) = connected();
        let mut to = [0; 8];
        socket.on_event(EventFlags::IN | EventFlags::OUT);
        other.write_all(b"12345678").unwrap();
        while socket.receive(&mut to).unwrap() == Received::Nothing {}
        assert_eq!((&to, socket.is_readable()), (b"12345678", true), "a full buffer: there may be more");
        assert_eq!(socket.receive(&mut to).unwrap(), Received::Nothing);
        assert!(!socket.is_readable());
        drop(other);
        socket.on_event(EventFlags::RDHUP);
        while socket.receive(&mut to).unwrap() == Received::Nothing {}
        assert_eq!(socket.receive(&mut to).unwrap(), Received::End);
        let bytes = vec![0; 64 << 20];
        let (mut socket, mut other) = connected();
        socket.on_event(EventFlags::OUT);
        while socket.is_writable() {
            socket.send(&bytes).unwrap();
        }
        assert_eq!(socket.send(&bytes).unwrap(), None, "the buffers are full");
        other.read_exact(&mut to).unwrap();
        assert!(!socket.is_writable(), "until the event");
    }

    #[test]
    fn without_a_socket_calls_fail() {
        let mut none = WatchedSocket::default();
        assert!(none.send(b"1").is_err() && none.receive(&mut [0]).is_err() && none.take_error().is_err());
        assert!(none.end().is_err() && !none.is_at_urgent() && none.receive_urgent().is_none());
    }
}
