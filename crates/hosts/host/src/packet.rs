//! Requests as they travel: a session answers the bytes of a control packet.
//!
//! A daemon receives packets from a socket; a simulation, or an engine inside a program, passes the same bytes by a call. Both
//! use [`Session::answer_packet`], so that both refuse the same packets.

use crate::foreign::ForeignFds;
use crate::host::Host;
use crate::session::{ReplyWithFds, Session};
use burst_control::frame::ControlPacket;
use burst_control::{ControlError, Request};

/// The answer to a packet.
#[derive(Debug)]
pub enum PacketAnswer {
    /// The packet has no reply.
    Nothing,
    /// The reply, and the descriptors to send with it.
    Reply(Box<ReplyWithFds>),
    /// The client's library is of another version: the client gets this sentence in place of a reply, and the connection ends.
    WrongVersion(String),
    /// The packet cannot be decoded: the connection ends.
    Disconnect(ControlError),
}

impl Session {
    /// Decodes a packet and carries its request out.
    pub fn answer_packet(&mut self, host: &mut Host, packet: &ControlPacket<'_>, fds: ForeignFds) -> PacketAnswer {
        if packet.is_bell() && self.has_said_hello() {
            return PacketAnswer::Nothing;
        }
        let request = match packet.decode::<Request>() {
            Ok(request) => request,
            Err(ControlError::Version { theirs, .. }) => {
                return PacketAnswer::WrongVersion(format!(
                    "burstd {} speaks version {}, your library version {theirs}; use the library that came with the daemon",
                    env!("CARGO_PKG_VERSION"),
                    burst_shm::ABI_VERSION
                ));
            }
            Err(e) => return PacketAnswer::Disconnect(e),
        };
        self.answer(host, request, fds).map_or(PacketAnswer::Nothing, |reply| PacketAnswer::Reply(Box::new(reply)))
    }
}
