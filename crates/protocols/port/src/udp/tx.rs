//! Sending of the `udp` port: packets are joined to trains, a train becomes one message, and one `sendmmsg` sends the messages.
//!
//! Consecutive packets of one flow, one worker of the receiver and one length (the last may be shorter) become a train: one
//! message with `UDP_SEGMENT`, which the kernel or the NIC segments into packets again. Heads and trailers are written into
//! a scratch area. Payload is lent to the kernel where it lies, with two exceptions: short payload, which costs less to
//! copy than to describe, and payload of another process, which is read into the scratch area. The ICRC is computed in the
//! same loop. If the application changes its buffer between that and the kernel's copy, the receiver drops the packet and
//! it is sent again, as verbs allow.
//!
//! If an address has several sockets that send, consecutive frames of one source port leave by one of them.
//!
//! Errors of the kernel are handled in [`crate::tx_train`].

use super::socks::UdpSocket;
use crate::Encapsulation;
use crate::ether::icrc::{IcrcSeal, TRAIN_MAX};
use crate::sys::recv::take_error;
use crate::sys::send::SendRing;
use crate::sys::socket::{DEFAULT_HOPS, SockAddr};
use crate::tx_train::{TxProgress, TxTrain, append, same_worker, transmit};
use burst_base::Reason;
use burst_frame::{Flow, TxBatch, TxFrame};
use std::os::fd::{AsRawFd, RawFd};

/// Bytes of the longest message: the UDP payload of an IPv4 datagram.
const MESSAGE_MAX: usize = 65_507;
/// Most messages of one `sendmmsg`.
const MESSAGES: usize = 128;
/// Most iovecs of one `sendmmsg`.
const IOVS: usize = 2048;
/// Scratch bytes of one `sendmmsg`; the longest packet fits whole.
const SCRATCH: usize = 128 << 10;
/// Bytes of one `sendmmsg` after which no message is added, so that the bytes are still in the L2 cache, where computing the ICRC
/// has brought them, when the kernel copies them.
const HOT_BYTES: usize = 60 << 10;
/// Most entries taken off the error queue at once.
const ERRORS_MAX: usize = 64;

const _: () = assert!(SCRATCH > 2 * MESSAGE_MAX - 1 && TRAIN_MAX <= 64);

/// The sending half of the port.
pub struct UdpTx {
    ring: SendRing,
    trains: Vec<TxTrain>,
    /// Most packets of a train: [`TRAIN_MAX`], or 1 after the kernel has refused trains.
    train_max: usize,
    encapsulation: Encapsulation,
    /// The source port of the socket that sends.
    src_port: u16,
    /// UDP payload bytes in the ring.
    bytes: usize,
    /// Seal of the flow that was sent last.
    seal: Option<IcrcSeal>,
}

impl UdpTx {
    /// `gso`: whether to send trains.
    pub fn new(gso: bool, encapsulation: &Encapsulation) -> UdpTx {
        UdpTx {
            ring: SendRing::new(MESSAGES, IOVS, SCRATCH),
            trains: Vec::with_capacity(MESSAGES),
            train_max: if gso { TRAIN_MAX } else { 1 },
            encapsulation: *encapsulation,
            src_port: encapsulation.udp_port,
            bytes: 0,
            seal: None,
        }
    }

    /// Number of calls that have sent packets, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        self.ring.take_calls()
    }

    /// Sends the whole batch.
    pub fn burst(&mut self, socks: &[UdpSocket], batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        // Packets with an index below `singly_to` are sent one by one, because the kernel has refused their train.
        let (mut at, mut singly_to, mut refused) = (0, 0, None);
        while at < frames.len() {
            let Some(sock) = socks.iter().find(|s| s.ip == frames[at].flow.src) else {
                dropped(Reason::SendFailed);
                at += 1;
                continue;
            };
            let (sender, src_port) = sock.sender_of(frames[at].flow.src_port, self.encapsulation.udp_port);
            self.src_port = src_port;
            let singly = at < singly_to;
            let (limit, train_max) = if singly { (singly_to, 1) } else { (frames.len(), self.train_max) };
            let end = if sock.has_further() { end_of_run(frames, at, limit) } else { limit };
            let next = self.build(batch, at..end, train_max, dropped);
            assert!(next > at, "an empty ring holds any frame");
            let mut too_long = false;
            let progress =
                transmit(&mut self.ring, &self.trains, sender.as_raw_fd(), empty_error_queue, &mut |reason| {
                    too_long |= reason == Reason::SendTooLong;
                    dropped(reason);
                });
            match progress {
                TxProgress::Done => at = next,
                TxProgress::Refused(train, errno) => {
                    (at, singly_to, refused) = (train.first, train.first + train.frames, Some(errno));
                }
            }
            if singly && at >= singly_to && !too_long {
                self.give_up_trains(refused.take());
            }
        }
    }

    /// After the packets of a refused train were sent one by one without an error: sends no trains any more.
    fn give_up_trains(&mut self, errno: Option<i32>) {
        // EFAULT: the program has unmapped the payload.
        if let Some(errno) = errno.filter(|e| !matches!(*e, libc::EMSGSIZE | libc::EFAULT)) {
            if self.train_max > 1 {
                let error = std::io::Error::from_raw_os_error(errno);
                tracing::warn!("the kernel refuses UDP_SEGMENT ({error}): packets are sent one by one from now on");
            }
            self.train_max = 1;
        }
    }

    /// Fills the ring with trains of the packets in `range` from one source address. Returns the index of the first packet that
    /// is not in the ring.
    fn build(
        &mut self,
        batch: &TxBatch,
        range: core::ops::Range<usize>,
        train_max: usize,
        dropped: &mut dyn FnMut(Reason),
    ) -> usize {
        self.ring.clear();
        self.trains.clear();
        let frames = &batch.frames()[..range.end];
        let src = frames[range.start].flow.src;
        let mut at = range.start;
        self.bytes = 0;
        while at < frames.len() && frames[at].flow.src == src && self.ring.has_message() && self.bytes < HOT_BYTES {
            let taken = self.build_train(batch, &frames[at..], train_max, at, dropped);
            if taken == 0 {
                break;
            }
            at += taken;
        }
        at
    }

    /// Makes one message of the packets that can share a train; returns how many packets of the batch were taken.
    fn build_train(
        &mut self,
        batch: &TxBatch,
        frames: &[TxFrame],
        train_max: usize,
        first: usize,
        dropped: &mut dyn FnMut(Reason),
    ) -> usize {
        let flow = frames[0].flow;
        let Encapsulation { udp_port, worker_word_at, .. } = self.encapsulation;
        let is_sealed = self.encapsulation.is_sealed();
        self.seal = self.encapsulation.reuse_seal(self.seal, flow.src, flow.dst, self.src_port);
        let Some(mut seal) = self.seal else {
            dropped(Reason::SendFailed);
            return 1;
        };
        let length = frames[0].udp_payload_len();
        let (mut taken, mut packets, mut total) = (0, 0, 0);
        for frame in frames {
            let len = frame.udp_payload_len();
            let alike = frame.continues || same(&frame.flow, &flow) && same_worker(frame, &frames[0], worker_word_at);
            let fits = packets < train_max && len <= length && total + len <= MESSAGE_MAX && alike;
            if packets > 0 && !fits || !self.ring.has_room(batch.spans_of(frame).len(), len) {
                break;
            }
            taken += 1;
            if !append(&mut self.ring, batch, frame, is_sealed.then_some(&mut seal), packets as u16) {
                dropped(Reason::SendFailed);
                continue;
            }
            packets += 1;
            total += len;
            if len < length {
                break;
            }
        }
        self.seal = Some(seal);
        self.bytes += total;
        if packets > 0 {
            let to = SockAddr::from_parts(&flow.dst, udp_port, flow.scope);
            let hops = Some(flow.hop_limit).filter(|h| *h != DEFAULT_HOPS && *h != 0);
            let segment = (packets > 1).then_some(length as u16);
            self.ring.end(&to, segment, Some(flow.tos).filter(|t| *t != 0), hops);
            self.trains.push(TxTrain { first, frames: taken, packets });
        }
        taken
    }
}

/// The end of the frames from `at` on, before `limit`, that have one source port.
fn end_of_run(frames: &[TxFrame], at: usize, limit: usize) -> usize {
    let src_port = frames[at].flow.src_port;
    at + frames[at..limit].iter().take_while(|frame| frame.flow.src_port == src_port).count()
}

/// Whether packets of the two flows, which one socket sends, may share a train: every field that the port sends is equal.
#[inline]
fn same(a: &Flow, b: &Flow) -> bool {
    a.dst == b.dst && a.src == b.src && a.tos == b.tos && a.hop_limit == b.hop_limit && a.scope == b.scope
}

/// Empties the socket's error queue, and reports the network's errors about earlier packets. True if there was an entry.
pub fn empty_error_queue(fd: RawFd, dropped: &mut dyn FnMut(Reason)) -> bool {
    for taken in 0..ERRORS_MAX {
        let Some(error) = take_error(fd) else { return taken > 0 };
        // This host's own errors are also results of calls, and are counted there.
        if error.remote {
            dropped(match error.errno {
                libc::EMSGSIZE => Reason::SendTooLong,
                libc::ECONNREFUSED => Reason::PeerPortClosed,
                _ => Reason::SendFailed,
            });
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ether::ICRC;
    use crate::testing::{batch_of, flow, push};

    /// Numbers of packets of the trains that are made of packets with these payload lengths.
    fn trains(lengths: &[usize], train_max: usize) -> Vec<usize> {
        let payloads: Vec<Vec<u8>> = lengths.iter().map(|l| vec![1; *l]).collect();
        let batch = batch_of(&flow("10.0.0.1", "10.0.0.2"), &payloads);
        let mut tx = UdpTx::new(true, &Encapsulation::ROCE);
        let mut packets = Vec::new();
        let mut at = 0;
        while at < batch.len() {
            at = tx.build(&batch, at..batch.len(), train_max, &mut |r| panic!("{r}"));
            packets.extend(tx.trains.iter().map(|t| t.packets));
        }
        packets
    }

    #[test]
    fn equal_lengths_share_a_train_and_a_shorter_one_ends_it() {
        assert_eq!(trains(&[1024; 5], 64), [5]);
        assert_eq!(trains(&[1024, 1024, 100, 1024, 1024], 64), [3, 2]);
        assert_eq!(trains(&[100, 1024, 1024, 1024, 4, 4, 4], 64), [1, 4, 2]);
        assert_eq!(trains(&[0, 0, 0], 64), [3]);
    }

    #[test]
    fn a_train_keeps_the_kernels_limits() {
        assert_eq!(trains(&[4; 150], 64), [64, 64, 22]);
        // 4096 + 12 + 4 = 4112 bytes: 15 packets fit into 65,507 bytes.
        assert_eq!(trains(&[4096; 40], 64), [15, 15, 10]);
        assert_eq!(trains(&[4096; 3], 1), [1, 1, 1]);
    }

    #[test]
    fn payload_that_changes_before_the_kernel_reads_it_keeps_its_checksum() {
        for length in [256, 1024, 4096, 9000] {
            let mut payloads = vec![vec![1u8; length]; 3];
            let flow = flow("10.0.0.1", "10.0.0.2");
            let batch = batch_of(&flow, &payloads);
            let mut tx = UdpTx::new(true, &Encapsulation::ROCE);
            tx.build(&batch, 0..3, 64, &mut |r| panic!("{r}"));
            payloads.iter_mut().for_each(|p| p[length / 2] = 2);
            let message = tx.ring.bytes_of(0);
            let packets = message.chunks(batch.frames()[0].udp_payload_len());
            assert_eq!(packets.len(), 3);
            for (id, packet) in packets.enumerate() {
                let (body, trailer) = packet.split_at(packet.len() - ICRC);
                let mut seal = Encapsulation::ROCE.seal(flow.src, flow.dst, 4791).expect("one family");
                assert_eq!(seal.begin(id as u16, packet.len(), body).finish(), trailer, "{length} bytes, packet {id}");
            }
        }
    }

    #[test]
    fn many_frames_go_through_a_small_ring() {
        assert_eq!(trains(&[4096; 2000], 64).iter().sum::<usize>(), 2000);
        assert_eq!(trains(&[256; 2000], 1).iter().sum::<usize>(), 2000);
    }

    #[test]
    fn fields_on_the_wire_separate_trains_and_the_source_port_does_not() {
        let payload = vec![0u8; 512];
        let base = flow("10.0.0.1", "10.0.0.2");
        let flows = [
            base,
            Flow { src_port: 7, ..base },
            Flow { tos: 2, ..base },
            Flow { tos: 2, hop_limit: 1, ..base },
            Flow { tos: 2, hop_limit: 1, dst: "10.0.0.3".parse().unwrap(), ..base },
        ];
        let mut batch = TxBatch::new(8);
        flows.iter().for_each(|f| assert!(push(&mut batch, f, &payload)));
        let mut tx = UdpTx::new(true, &Encapsulation::ROCE);
        tx.build(&batch, 0..5, 64, &mut |r| panic!("{r}"));
        assert_eq!(tx.trains.iter().map(|t| t.packets).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }

    #[test]
    fn a_train_is_for_one_worker_of_the_receiver() {
        let (flow, payload) = (flow("10.0.0.1", "10.0.0.2"), vec![0u8; 512]);
        let memory = burst_span::ProcessMemory::own().expect("own memory");
        let span = memory.span(payload.as_ptr() as u64, 512);
        let mut batch = TxBatch::new(16);
        // Workers 1, 1 (another queue pair), 2, 2, 1.
        for qpn in [0x51, 0x71, 0x52, 0x32, 0x51] {
            let mut head = [0; 12];
            head[7] = qpn;
            assert!(batch.push(&flow, &head, &[span], 0));
        }
        let mut tx = UdpTx::new(true, &Encapsulation::ROCE);
        tx.build(&batch, 0..5, 64, &mut |r| panic!("{r}"));
        assert_eq!(tx.trains.iter().map(|t| t.packets).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn memory_that_is_gone_drops_only_its_own_packet() {
        let memory = burst_span::ProcessMemory::own().expect("own memory");
        let payload = vec![9u8; 300];
        let flow = flow("10.0.0.1", "10.0.0.2");
        let mut batch = TxBatch::new(3);
        assert!(push(&mut batch, &flow, &payload));
        assert!(batch.push(&flow, &[0; 12], &[memory.span(8, 300)], 0));
        assert!(push(&mut batch, &flow, &payload));
        let mut tx = UdpTx::new(true, &Encapsulation::ROCE);
        let mut reasons = Vec::new();
        assert_eq!(tx.build(&batch, 0..3, 64, &mut |r| reasons.push(r)), 3);
        assert_eq!(reasons, [Reason::SendFailed]);
        assert_eq!((tx.trains[0].packets, tx.trains[0].frames), (2, 3));
    }
}
