//! Packets on the control socket: header, body, descriptors. Used by both ends.

use crate::{ControlError, FDS_MAX, MESSAGE_MAX};
use burst_shm::ABI_VERSION;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// "BCTL".
pub const MAGIC: u32 = 0x4243_544c;
/// "BCTB": the bell, a header without body. It wakes the daemon because there are commands in the ring ([`crate::commands`]).
pub const BELL_MAGIC: u32 = 0x4243_5442;
/// Maximum number of descriptors that the kernel passes in one packet (SCM_MAX_FD). A receiver with room for fewer would have the
/// kernel close the rest while it receives, which may block.
const SCM_MAX_FD: usize = 253;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;

/// The header before every body. Its format must never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlHeader {
    /// `ABI_VERSION` of the sender.
    pub version: u32,
    /// Number of the request; a reply repeats it.
    pub sequence: u32,
}

impl ControlHeader {
    /// A header of this version.
    pub fn new(sequence: u32) -> ControlHeader {
        ControlHeader { version: ABI_VERSION, sequence }
    }
    /// Its bytes.
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
        self.with_magic(MAGIC)
    }
    /// The bell: a header without body.
    pub fn to_bell(self) -> [u8; HEADER_BYTES] {
        self.with_magic(BELL_MAGIC)
    }
    fn with_magic(self, magic: u32) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[..4].copy_from_slice(&magic.to_le_bytes());
        b[4..8].copy_from_slice(&self.version.to_le_bytes());
        b[8..].copy_from_slice(&self.sequence.to_le_bytes());
        b
    }
    /// Parses a header; the flag says whether it is a bell.
    fn from_bytes(b: &[u8]) -> Option<(ControlHeader, bool)> {
        let word = |i: usize| Some(u32::from_le_bytes(b.get(i..i + 4)?.try_into().ok()?));
        let magic = word(0)?;
        (magic == MAGIC || magic == BELL_MAGIC).then_some(())?;
        Some((ControlHeader { version: word(4)?, sequence: word(8)? }, magic == BELL_MAGIC))
    }
}

/// A received packet.
#[derive(Debug)]
pub struct ControlPacket<'a> {
    /// Header.
    pub header: ControlHeader,
    /// Whether it is a bell.
    is_bell: bool,
    /// Body, not decoded.
    pub body: &'a [u8],
}

impl<'a> ControlPacket<'a> {
    /// The packet in the bytes of a message.
    ///
    /// # Errors
    /// `Malformed` if the bytes do not begin with a header.
    pub fn parse(bytes: &'a [u8]) -> Result<ControlPacket<'a>, ControlError> {
        let (header, is_bell) =
            ControlHeader::from_bytes(bytes).ok_or_else(|| ControlError::Malformed("not a control packet".into()))?;
        Ok(ControlPacket { header, is_bell, body: &bytes[HEADER_BYTES..] })
    }

    fn check_version(&self) -> Result<(), ControlError> {
        if self.header.version != ABI_VERSION {
            return Err(ControlError::Version {
                ours: ABI_VERSION,
                theirs: self.header.version,
                sentence: String::from_utf8_lossy(self.body).into_owned(),
            });
        }
        Ok(())
    }

    /// Whether it is a bell of this version.
    pub fn is_bell(&self) -> bool {
        self.is_bell && self.body.is_empty() && self.header.version == ABI_VERSION
    }

    /// Decodes the body. If the other end has another version, that is the error.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ControlError> {
        self.check_version()?;
        if self.is_bell {
            return Err(ControlError::Malformed("a bell where a message was expected".into()));
        }
        let (message, rest) =
            postcard::take_from_bytes(self.body).map_err(|e| ControlError::Malformed(e.to_string()))?;
        if rest.is_empty() { Ok(message) } else { Err(ControlError::Malformed("trailing bytes".into())) }
    }
}

/// The bytes of a message, header included, for a way other than a socket.
///
/// # Errors
/// `Malformed` if the message cannot be encoded.
pub fn encode<T: Serialize>(sequence: u32, message: &T) -> Result<Vec<u8>, ControlError> {
    let head = ControlHeader::new(sequence).bytes().to_vec();
    postcard::to_extend(message, head).map_err(|e| ControlError::Malformed(e.to_string()))
}

/// Sends one message.
pub fn send<T: Serialize>(
    socket: impl AsFd,
    sequence: u32,
    message: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), ControlError> {
    let body = postcard::to_stdvec(message).map_err(|e| ControlError::Malformed(e.to_string()))?;
    send_raw(socket, ControlHeader::new(sequence), &body, fds, flags)
}

/// Sends a header and a body as they are (a version refusal carries a plain sentence).
pub fn send_raw(
    socket: impl AsFd,
    header: ControlHeader,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), ControlError> {
    if body.len() + HEADER_BYTES > MESSAGE_MAX || fds.len() > FDS_MAX {
        return Err(ControlError::Malformed(format!(
            "{} bytes and {} descriptors are too many",
            body.len(),
            fds.len()
        )));
    }
    let head = header.bytes();
    let iov = [IoSlice::new(&head), IoSlice::new(body)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ControlError::Malformed("too many descriptors".into()));
    }
    loop {
        match sendmsg(&socket, &iov, &mut ancillary, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(ControlError::Io(e.into())),
        }
    }
}

/// Sends a whole packet, without descriptors.
pub(crate) fn send_bytes(socket: impl AsFd, packet: &[u8], flags: SendFlags) -> Result<(), ControlError> {
    loop {
        match rustix::net::send(&socket, packet, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(ControlError::Io(e.into())),
        }
    }
}

/// Receives one packet. `buffer` must be [`MESSAGE_MAX`] long. The descriptors that came along are added to `fds`, also if the
/// packet is refused: closing them can block, so the caller decides where. `Closed` if the other end has closed the connection.
pub fn receive<'a>(
    socket: impl AsFd,
    buffer: &'a mut [u8],
    flags: RecvFlags,
    fds: &mut Vec<OwnedFd>,
) -> Result<ControlPacket<'a>, ControlError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Err(ControlError::Closed),
            Err(e) => return Err(ControlError::Io(e.into())),
        }
    };
    let rights = ancillary.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(list) => Some(list),
        _ => None,
    });
    fds.extend(rights.flatten());
    if got.bytes == 0 {
        return Err(ControlError::Closed);
    }
    if fds.len() > FDS_MAX {
        return Err(ControlError::Malformed(format!("{} descriptors in one packet", fds.len())));
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(ControlError::Malformed("the packet is longer than a control message can be".into()));
    }
    ControlPacket::parse(&buffer[..got.bytes])
}
