//! What ports that send by `sendmmsg` share: packets of a batch appended to the message under construction, messages
//! sent in order, and what is done about what the kernel answers.
//!
//! A *train* is one message that the kernel or the NIC cuts into packets. Where a train is refused, the caller sends its
//! packets one by one; see [`SendErrorAction`].

use crate::ether::icrc::{ICRC, IcrcSeal};
use crate::sys::send::SendRing;
use crate::sys::socket::wait_writable;
use burst_base::Reason;
use burst_frame::{TxBatch, TxFrame};
use burst_wire::Icrc;
use std::os::fd::RawFd;

/// Payload up to here is copied rather than lent: at 512 bytes copying carried 1.2 to 2 times as many packets in four
/// alternating runs of `pktbench`, at 1024 neither was ahead.
const COPY_MAX: usize = 768;
/// Waits for room in the socket before a message is given up.
const WAITS_MAX: u32 = 4;
/// Length of one such wait.
const WAIT_MS: i32 = 1;

/// What to do about an error of `sendmmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendErrorAction {
    /// The socket's buffer or a queue below is full: wait, then try again.
    Wait,
    /// A signal came: try again.
    Again,
    /// Too long for the path, or trains are refused on it: send the packets one by one.
    Singly,
    /// An error of an earlier packet, or no route: empty the error queue, try once more, then drop.
    Failed,
}

fn answer(errno: i32) -> SendErrorAction {
    match errno {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => SendErrorAction::Wait,
        libc::EINTR => SendErrorAction::Again,
        libc::EINVAL | libc::EIO | libc::EMSGSIZE => SendErrorAction::Singly,
        _ => SendErrorAction::Failed,
    }
}

/// Frames `first .. first + frames` of the batch, of which `packets` are in the message.
#[derive(Clone, Copy, Debug)]
pub struct TxTrain {
    /// First frame.
    pub first: usize,
    /// Frames taken.
    pub frames: usize,
    /// Packets in the message: frames whose memory is gone are not among them.
    pub packets: usize,
}

/// How far the messages of the ring came.
pub enum TxProgress {
    /// All were sent or dropped.
    Done,
    /// The train was refused, with this error; it and those after it have not been sent.
    Refused(TxTrain, i32),
}

/// Appends one packet, from its head to its ICRC, to the message under construction. The ICRC is zero without a seal.
/// False, leaving nothing, if its memory is gone.
#[inline]
pub fn append(ring: &mut SendRing, batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let spans = batch.spans_of(frame);
    if let [span] = spans
        && span.is_local()
        && span.len() > COPY_MAX
        && frame.pad == 0
    {
        // Most packets of trains.
        let icrc = seal.map(|seal| seal.begin(id, frame.udp_payload_len(), frame.head()));
        let icrc = icrc.map(|icrc| icrc.update_span(span).unwrap_or(icrc));
        ring.packet(frame.head(), span, icrc.map_or([0; ICRC], Icrc::finish));
        return true;
    }
    if usize::from(frame.payload_len) <= COPY_MAX || spans.iter().any(|s| !s.is_local()) {
        return append_copy(ring, batch, frame, seal, id);
    }
    let len = frame.udp_payload_len();
    let head = frame.head();
    ring.scratch(head.len()).copy_from_slice(head);
    let mut icrc = seal.map(|seal| seal.begin(id, len, head));
    for span in spans {
        icrc = icrc.map(|icrc| icrc.update_span(span).unwrap_or(icrc));
        ring.lend(span);
    }
    let pad = usize::from(frame.pad);
    let tail = ring.scratch(pad + ICRC);
    tail[..pad].fill(0);
    let icrc = icrc.map_or([0; ICRC], |icrc| icrc.update(&tail[..pad]).finish());
    tail[pad..].copy_from_slice(&icrc);
    true
}

/// [`append`] by copying all of the packet.
fn append_copy(ring: &mut SendRing, batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let len = frame.udp_payload_len();
    if !write(ring.scratch(len), batch, frame, seal, id) {
        ring.unscratch(len);
        return false;
    }
    true
}

/// Writes one packet, from its head to its ICRC, into `packet`, which has its length. False if its memory is gone.
#[inline]
pub fn write(packet: &mut [u8], batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let len = packet.len();
    let head = frame.head();
    packet[..head.len()].copy_from_slice(head);
    let mut at = head.len();
    for span in batch.spans_of(frame) {
        if span.read_to(&mut packet[at..at + span.len()]).is_err() {
            return false;
        }
        at += span.len();
    }
    packet[at..].fill(0);
    if let Some(seal) = seal {
        let (body, trailer) = packet.split_at_mut(len - ICRC);
        trailer.copy_from_slice(&seal.begin(id, len, body).finish());
    }
    true
}

/// Sends the messages of the ring in order, dropping what cannot be sent, until a train is refused. `complain` takes
/// what the socket has to say about earlier packets, and tells whether there was anything.
pub fn transmit(
    ring: &mut SendRing,
    trains: &[TxTrain],
    fd: RawFd,
    complain: fn(RawFd, &mut dyn FnMut(Reason)) -> bool,
    dropped: &mut dyn FnMut(Reason),
) -> TxProgress {
    let (mut at, mut waits, mut failures) = (0, 0, 0);
    while at < ring.messages() {
        let errno = match ring.send(fd, at) {
            Ok(sent) => {
                (at, waits, failures) = (at + sent, 0, 0);
                continue;
            }
            Err(error) => error.raw_os_error().unwrap_or(0),
        };
        let train = trains[at];
        let reason = match answer(errno) {
            SendErrorAction::Again => continue,
            SendErrorAction::Wait if waits < WAITS_MAX => {
                waits += 1;
                wait_writable(fd, WAIT_MS);
                continue;
            }
            SendErrorAction::Wait => Reason::SendQueueFull,
            SendErrorAction::Singly if train.packets > 1 => return TxProgress::Refused(train, errno),
            SendErrorAction::Singly if errno == libc::EMSGSIZE => Reason::SendTooLong,
            SendErrorAction::Singly => Reason::SendFailed,
            SendErrorAction::Failed => {
                failures += 1;
                if complain(fd, dropped) && failures == 1 {
                    continue;
                }
                Reason::SendFailed
            }
        };
        (0..train.packets).for_each(|_| dropped(reason));
        (at, waits, failures) = (at + 1, 0, 0);
    }
    TxProgress::Done
}
