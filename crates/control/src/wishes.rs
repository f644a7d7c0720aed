//! Wishes: operations of the connection manager that have no answer.
//!
//! Two of them set up a connection, each in a packet of its own, and the daemon reads them all on one thread; so they are
//! records of fixed fields (`record.rs`) that neither end takes memory for. A packet of wishes has the header of other packets with a
//! magic of its own ([`frame::WISHES_MAGIC`](crate::frame::WISHES_MAGIC)); its body is one record after the other.

use crate::ControlError;
use crate::cm::{CM_OPS_MAX, CmOp};
use crate::frame::{HEADER_BYTES, Header};
use crate::record::{Eye, Field, Pen};
use rustix::net::{SendFlags, send};
use std::os::fd::AsFd;

/// No operation is longer.
const OP_BYTES_MAX: usize = 288;
/// A packet: an id's creation and what is done with it first.
const PACKET_BYTES: usize = HEADER_BYTES + 2 * OP_BYTES_MAX;

/// Sends wishes in order. Waits only while the daemon's socket is full.
///
/// # Errors
/// Any error means that the connection is unusable.
pub(crate) fn send_wishes(socket: impl AsFd, ops: &[CmOp]) -> Result<(), ControlError> {
    let mut packet = [0; PACKET_BYTES];
    // The number is repeated in replies only, so any will do.
    packet[..HEADER_BYTES].copy_from_slice(&Header::new(0).to_wishes());
    for some in ops.chunks(2) {
        let mut pen = Pen { record: &mut packet, at: HEADER_BYTES };
        some.iter().for_each(|op| op.put(&mut pen));
        let len = pen.at;
        let whole = packet.get(..len).ok_or_else(|| ControlError::Malformed("an operation is too long".into()))?;
        send_whole(&socket, whole)?;
    }
    Ok(())
}

fn send_whole(socket: impl AsFd, packet: &[u8]) -> Result<(), ControlError> {
    loop {
        match send(&socket, packet, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(ControlError::Io(e.into())),
        }
    }
}

/// The operations of a packet of wishes, one after the other; the last is an error if what is there is none, or are too many.
#[derive(Debug)]
pub struct Wishes<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Wishes<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Wishes<'a> {
        Wishes { rest: body, left: CM_OPS_MAX }
    }
}

impl Iterator for Wishes<'_> {
    type Item = Result<CmOp, ControlError>;

    #[inline]
    fn next(&mut self) -> Option<Result<CmOp, ControlError>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut eye = Eye { rest: self.rest };
        let op = if self.left == 0 { None } else { CmOp::take(&mut eye) };
        if op.is_none() {
            self.rest = &[];
            return Some(Err(ControlError::Malformed("not a wish".into())));
        }
        (self.rest, self.left) = (eye.rest, self.left - 1);
        op.map(Ok)
    }
}
