//! Worker numbers that are lent to other processes: what the lender does for them, and what a borrower gets.
//!
//! A borrower is a process with an engine whose queue pairs have a worker number of the lender's addresses
//! ([`crate::WorkerOptions::first`]). The kernel steers their packets to it, but QP1 is the lender's. So the lender passes on the
//! answers to hellos that a borrower has sent (`mail`), which carry the number in their transaction id. When a borrower has died,
//! the lender answers for its connected queue pairs ([`crate::Worker::bury`]).

use crate::receive::handover::Inbox;
use burst_base::DeviceId;
use burst_base::gid::gid_of;
use burst_frame::{Flow, RxFrame};
use burst_wire::MAD_LEN;
use rustix::net::{SendFlags, send};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

/// Bytes before the packet: device, source and destination.
const MAIL_HEAD: usize = 2 + 16 + 16;
/// Bytes of the longest message: a management datagram with its headers and padding.
pub const MAIL_MAX: usize = MAIL_HEAD + 12 + 8 + MAD_LEN + 3;

/// Passes a packet on to the process that has a worker number. False if there is none, or if it does not read.
pub(crate) fn send_mail(sockets: &[(u32, OwnedFd)], number: u32, device: DeviceId, frame: &RxFrame<'_>) -> bool {
    let Some((_, socket)) = sockets.iter().find(|(of, _)| *of == number) else { return false };
    let Some(message) = mail_of(device, frame) else { return false };
    send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

fn mail_of(device: DeviceId, frame: &RxFrame<'_>) -> Option<Vec<u8>> {
    let head = [&device.0.to_le_bytes()[..], &gid_of(frame.flow.src), &gid_of(frame.flow.dst)].concat();
    let message = [&head, frame.bytes].concat();
    (message.len() <= MAIL_MAX).then_some(message)
}

/// Puts a message of the lender into the inbox of a borrower's worker, and wakes the worker. Messages that are too short, or name
/// a device of which there are only `devices`, are dropped.
pub fn receive_mail(message: &[u8], devices: usize, inbox: &Inbox) {
    let Some((head, bytes)) = message.split_at_checked(MAIL_HEAD) else { return };
    let device = DeviceId(u16::from_le_bytes([head[0], head[1]]));
    let ip = |at: usize| Ipv6Addr::from(std::array::from_fn(|i| head[at + i])).to_canonical();
    if device.index() < devices {
        let flow = Flow { src: ip(2), dst: ip(18), ..Flow::default() };
        // A full inbox drops it: the question is repeated.
        let _ = inbox.hand_over_mad(device, &RxFrame { flow, bytes });
        inbox.wake_sleeper();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_addresses_and_a_damaged_one_does_not() {
        let inbox = Inbox::new(1).expect("an inbox");
        let flow = Flow { src: "10.0.0.2".parse().unwrap(), dst: "fd00::1".parse().unwrap(), ..Flow::default() };
        let message = mail_of(DeviceId(1), &RxFrame { flow, bytes: &[7; 276] }).expect("short enough");
        receive_mail(&message, 1, &inbox);
        receive_mail(&message[..MAIL_HEAD - 1], 2, &inbox);
        receive_mail(&[0xff; 4096], 1 << 16, &inbox);
        assert!(inbox.is_empty(), "no such device, too short, too long");
        receive_mail(&message, 2, &inbox);
        let mut seen = Vec::new();
        inbox.drain(10, |device, frame| seen.push((device, frame.flow.src, frame.flow.dst, frame.bytes.len())));
        assert_eq!(seen, [(DeviceId(1), flow.src, flow.dst, 276)]);
        assert!(mail_of(DeviceId(1), &RxFrame { flow, bytes: &[7; 1000] }).is_none());
    }
}
