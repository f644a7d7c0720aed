//! Messages between supervisor and daemon: one packet each on a SOCK_SEQPACKET pair, a word and its argument in text, with at
//! most one descriptor.
//!
//! The daemon begins with [`SupervisorMessage::Setup`]. The supervisor answers with one [`SupervisorMessage::Stored`] for each
//! descriptor that it keeps, and [`SupervisorMessage::End`]. From then on only the daemon sends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest message in bytes.
const MESSAGE_MAX: usize = 512;
/// How long a sender waits for room in the socket.
const ROOM_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorMessage {
    /// Daemon: the settings that decide which sockets there are. With other settings than its predecessor's, the daemon gets
    /// no socket of its predecessor.
    Setup(String),
    /// Supervisor: a descriptor of this name is kept; it comes along.
    Stored(String),
    /// Supervisor: that was all; the number of crashes so far.
    End(u64),
    /// Daemon: keep the descriptor that comes along under this name; an older one of the name is closed.
    Store(String),
    /// Daemon: close the descriptor of this name.
    Remove(String),
    /// Daemon: it serves.
    Serving,
}

impl SupervisorMessage {
    fn to_text(&self) -> String {
        match self {
            SupervisorMessage::Setup(settings) => format!("setup {settings}"),
            SupervisorMessage::Stored(name) => format!("stored {name}"),
            SupervisorMessage::End(crashes) => format!("end {crashes}"),
            SupervisorMessage::Store(name) => format!("store {name}"),
            SupervisorMessage::Remove(name) => format!("remove {name}"),
            SupervisorMessage::Serving => "serving -".to_owned(),
        }
    }

    fn from_text(text: &str) -> Option<SupervisorMessage> {
        let (word, argument) = text.split_once(' ')?;
        let argument = argument.to_owned();
        Some(match word {
            "setup" => SupervisorMessage::Setup(argument),
            "stored" => SupervisorMessage::Stored(argument),
            "end" => SupervisorMessage::End(argument.parse().ok()?),
            "store" => SupervisorMessage::Store(argument),
            "remove" => SupervisorMessage::Remove(argument),
            "serving" => SupervisorMessage::Serving,
            _ => return None,
        })
    }
}

/// Sends a message. Waits for room in the socket, but not for longer than [`ROOM_MAX`].
///
/// # Errors
/// The system's; EPIPE if the other end has ended, EAGAIN if it does not read.
pub fn send(socket: impl AsFd, message: &SupervisorMessage, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let text = message.to_text();
    if text.len() > MESSAGE_MAX {
        return Err(Errno::MSGSIZE);
    }
    match send_now(&socket, &text, fd) {
        Err(Errno::AGAIN) => {
            let mut room = [PollFd::new(&socket, PollFlags::OUT)];
            let _ = poll(&mut room, Some(&ROOM_MAX));
            send_now(&socket, &text, fd)
        }
        other => other,
    }
}

fn send_now(socket: impl AsFd, text: &str, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let rights: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !rights.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&rights)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut ancillary, flags).map(drop)
}

/// Receives a message. `Ok(None)`: the other end has ended, or sent what is no message.
///
/// # Errors
/// The system's; EAGAIN if nothing has come and the socket does not block.
pub fn receive(socket: impl AsFd) -> Result<Option<(SupervisorMessage, Option<OwnedFd>)>, Errno> {
    let mut bytes = [0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fd = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let text = std::str::from_utf8(&bytes[..got.bytes]).ok();
    Ok(text.and_then(SupervisorMessage::from_text).map(|message| (message, fd)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).expect("a pair")
    }

    #[test]
    fn each_message_arrives_as_it_was_sent() {
        let (a, b) = pair();
        let name = || "udp 10.0.0.1 4791 2 0/1".to_owned();
        let all = [
            SupervisorMessage::Setup("workers 2".into()),
            SupervisorMessage::Stored(name()),
            SupervisorMessage::End(7),
            SupervisorMessage::Store(name()),
            SupervisorMessage::Remove(name()),
            SupervisorMessage::Serving,
        ];
        for message in all {
            send(&a, &message, None).expect("sent");
            let (got, fd) = receive(&b).expect("received").expect("a message");
            assert_eq!((got, fd.is_none()), (message, true));
        }
        assert_eq!(receive(&b).expect_err("nothing more"), Errno::AGAIN);
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        send(&a, &SupervisorMessage::Store("pipe".into()), Some(write.as_fd())).expect("sent");
        drop(write);
        let (_, fd) = receive(&b).expect("received").expect("a message");
        rustix::io::write(fd.expect("a descriptor"), b"x").expect("written");
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read, &mut byte), Ok(1));
    }

    #[test]
    fn the_end_of_the_other_side_and_rubbish_are_no_messages() {
        for rubbish in [&b"fetch me"[..], b"end x", b"serving", b"\xff\xff x", b""] {
            let (a, b) = pair();
            rustix::net::send(&a, rubbish, SendFlags::empty()).expect("sent");
            assert!(receive(&b).expect("received").is_none(), "{rubbish:?}");
        }
        let (a, b) = pair();
        drop(a);
        assert!(receive(&b).expect("received").is_none());
        assert_eq!(send(&b, &SupervisorMessage::Serving, None), Err(Errno::PIPE));
        let long = SupervisorMessage::Store("x".repeat(MESSAGE_MAX));
        assert_eq!(send(&b, &long, None), Err(Errno::MSGSIZE));
    }
}
