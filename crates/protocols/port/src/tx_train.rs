//! Messages and trains to send, for the ports that send by `sendmmsg`: packets are appended to the message under construction,
//! messages are sent in order, and errors of the kernel are handled.
//!
//! A *train* is one message that the kernel or the NIC segments into packets. When the kernel refuses a train, the caller sends
//! its packets one by one; see [`SendErrorAction`].

use crate::ether::icrc::{ICRC, IcrcSeal};
use crate::sys::send::SendRing;
use crate::sys::socket::wait_writable;
use burst_base::{Qpn, Reason};
use burst_frame::{HEAD_MAX, TxBatch, TxFrame};
use std::os::fd::RawFd;

/// Payload up to this length in bytes is copied even if it could be lent. At 512 bytes copying carried 1.2 to 2 times as many
/// packets in four alternating runs of `pktbench`; at 1024 bytes neither was ahead.
const COPY_MAX: usize = 2048;
/// Waits for room in the socket before a message is dropped.
const WAITS_MAX: u32 = 4;
/// Milliseconds of one such wait.
const WAIT_MS: i32 = 1;

/// The action after an error of `sendmmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendErrorAction {
    /// The socket's buffer or a queue below it is full: wait, then try again.
    Wait,
    /// A signal interrupted the call: try again.
    Again,
    /// The message is too long for the path, or the path refuses trains: send the packets one by one.
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

/// One message: packets `first .. first + frames` of the batch, of which `packets` are in the message.
#[derive(Clone, Copy, Debug)]
pub struct TxTrain {
    /// Index of the first packet in the batch.
    pub first: usize,
    /// Number of packets of the batch that were taken.
    pub frames: usize,
    /// Number of packets in the message; packets whose memory is gone were taken and are not in it.
    pub packets: usize,
}

/// How far the messages of the ring were sent.
pub enum TxProgress {
    /// All were sent or dropped.
    Done,
    /// The kernel refused this train, with this error number; it and the messages after it were not sent.
    Refused(TxTrain, i32),
}

/// Whether two packets are for one worker of a receiver that is Burst, as far as the low bits of the word at `word_at` tell. A
/// train is steered by its first packet, and what is for another worker has to be copied.
#[inline]
pub fn same_worker(a: &TxFrame, b: &TxFrame, word_at: u32) -> bool {
    let bits = |frame: &TxFrame| frame.head().get(word_at as usize + 3).map(|byte| u32::from(*byte) & Qpn::WORKER_MASK);
    bits(a) == bits(b)
}

/// Appends one packet, from its head to its trailer, to the message under construction. False, and nothing is appended, if the
/// payload's memory is gone.
///
/// With a seal the payload is copied. The application may write to it until its work request completes (a hypervisor that
/// migrates a running guest does), and a kernel that read it after the checksum was made would send packets that the receiver has
/// to drop. Without a seal the trailer is zero, and long payload is lent.
#[inline]
pub fn append(ring: &mut SendRing, batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let spans = batch.spans_of(frame);
    if seal.is_some() || usize::from(frame.payload_len) <= COPY_MAX || spans.iter().any(|s| !s.is_local()) {
        return append_copy(ring, batch, frame, seal, id);
    }
    let head = frame.head();
    ring.scratch(head.len()).copy_from_slice(head);
    spans.iter().for_each(|span| ring.lend(span));
    ring.scratch(usize::from(frame.pad) + ICRC).fill(0);
    true
}

/// [`append`] by copying the whole packet.
#[inline]
fn append_copy(ring: &mut SendRing, batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let len = frame.udp_payload_len();
    if !write(ring.scratch(len), batch, frame, seal, id) {
        ring.unscratch(len);
        return false;
    }
    true
}

/// Writes one packet, from its head to its trailer, into `packet`, which has its length. False if the payload's memory is gone.
#[inline]
pub fn write(packet: &mut [u8], batch: &TxBatch, frame: &TxFrame, seal: Option<&mut IcrcSeal>, id: u16) -> bool {
    let len = packet.len();
    debug_assert!(len == frame.udp_payload_len());
    let head = frame.head();
    match packet.first_chunk_mut::<HEAD_MAX>() {
        // A copy of fixed length needs no call. What it writes behind the head is overwritten.
        Some(place) => *place = frame.head,
        None => packet[..head.len()].copy_from_slice(head),
    }
    let mut at = head.len();
    for span in batch.spans_of(frame) {
        if span.read_to(&mut packet[at..at + span.len()]).is_err() {
            return false;
        }
        at += span.len();
    }
    debug_assert!(at + usize::from(frame.pad) + ICRC == len, "head, payload, pad and trailer are the packet");
    packet[at..].fill(0);
    if let Some(seal) = seal {
        let (body, trailer) = packet.split_at_mut(len - ICRC);
        trailer.copy_from_slice(&seal.begin(id, len, body).finish());
    }
    true
}

/// Sends the messages of the ring in order, dropping those that cannot be sent, until the kernel refuses a train. `complain`
/// reports the errors of earlier packets from the socket's error queue, and returns whether there were any.
pub fn transmit(
    ring: &mut SendRing,
    trains: &[TxTrain],
    fd: RawFd,
    complain: fn(RawFd, &mut dyn FnMut(Reason)) -> bool,
    dropped: &mut dyn FnMut(Reason),
) -> TxProgress {
    debug_assert!(trains.len() == ring.messages(), "each message is one train");
    let (mut at, mut waits, mut failures) = (0, 0, 0);
    while at < ring.messages() {
        let errno = match ring.send(fd, at) {
            Ok(sent) => {
                debug_assert!((1..=trains.len() - at).contains(&sent));
                (at, waits, failures) = (at + sent, 0, 0);
                continue;
            }
            Err(error) => error.raw_os_error().unwrap_or(0),
        };
        let train = trains[at];
        debug_assert!((1..=train.frames).contains(&train.packets));
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
