//! Sending of the `packet` port: packets are joined to trains, trains become Ethernet frames of up to 64 KiB with a virtio
//! header, and one `sendmmsg` sends them.
//!
//! Consecutive packets of one flow and one length (the last may be shorter) become a train. The kernel or the NIC segments it,
//! and counts the IPv4 identification up from 0. Headers and trailers are written into a scratch area; payload is lent or copied
//! ([`crate::tx_train`]). A single packet over IPv4 has no UDP checksum, which saves work on every device; over IPv6 the kernel
//! or the NIC completes its UDP checksum, as in trains.
//!
//! The kernel segments such trains from Linux 6.2 on. An older kernel refuses the first train, and packets are then sent one by
//! one.

use super::kernel_send::KernelSender;
use super::local_ring::LocalRing;
use super::route_cache::{Forwarding, RouteCache};
use super::{LocalLink, vnet};
use crate::Encapsulation;
use crate::ether::icrc::{IcrcSeal, TRAIN_MAX};
use crate::ether::{HeaderTemplate, LinkHeader, UdpChecksum};
use crate::sys::send::SendRing;
use crate::tx_train::{TxProgress, TxTrain, append, same_worker, transmit};
use burst_base::Reason;
use burst_frame::{Flow, TxBatch, TxFrame};
use burst_netif::netlink::RequestSocket;
use burst_wire::MacAddr;
use core::ops::Range;
use std::os::fd::RawFd;

/// Most bytes of UDP payload in a train. With its headers the train stays below the 64 KiB (`gso_max_size`) above which the
/// kernel would segment it in software.
const PAYLOAD_MAX: usize = 65_000;
/// Most messages of one `sendmmsg`.
const MESSAGES: usize = 128;
/// Most iovecs of one `sendmmsg`.
const IOVS: usize = 2048;
/// Scratch bytes of one `sendmmsg`; the longest train fits.
const SCRATCH: usize = 128 << 10;
/// Bytes of one `sendmmsg` after which no message is added, so that the bytes are still in the L2 cache when the kernel copies
/// them.
const HOT_BYTES: usize = 60 << 10;

const _: () = assert!(SCRATCH > PAYLOAD_MAX + HOT_BYTES && TRAIN_MAX <= 64);

/// Headers and seal of the flow that was sent last.
#[derive(Clone, Copy)]
struct LastFlow {
    flow: Flow,
    mac: MacAddr,
    template: HeaderTemplate,
    seal: IcrcSeal,
}

/// Everything through which packets leave, and what decides which.
pub struct PacketOutputs<'a> {
    /// The packet socket.
    pub fd: RawFd,
    /// The port's addresses on its link.
    pub own: &'a LocalLink,
    /// Routes of destinations.
    pub routes: &'a mut RouteCache,
    /// Requests to the kernel about new destinations.
    pub netlink: &'a mut RequestSocket,
    /// Packets that the port delivers itself.
    pub local: &'a mut LocalRing,
    /// Packets to unresolved next hops.
    pub kernel: &'a mut KernelSender,
}

/// The sending half of the port.
pub struct PacketTx {
    ring: SendRing,
    trains: Vec<TxTrain>,
    /// Most packets of a train: [`TRAIN_MAX`], or 1 after the kernel has refused trains.
    train_max: usize,
    /// UDP payload bytes in the ring.
    bytes: usize,
    /// Whether packets get a checksum of their encapsulation.
    is_sealed: bool,
    worker_word_at: u32,
    last: Option<LastFlow>,
}

impl PacketTx {
    /// `gso`: whether to send trains.
    pub fn new(gso: bool, encapsulation: &Encapsulation) -> PacketTx {
        PacketTx {
            ring: SendRing::new(MESSAGES, IOVS, SCRATCH),
            trains: Vec::with_capacity(MESSAGES),
            train_max: if gso { TRAIN_MAX } else { 1 },
            is_sealed: encapsulation.is_sealed(),
            worker_word_at: encapsulation.worker_word_at,
            bytes: 0,
            last: None,
        }
    }

    /// Discards the headers of the last flow, because the interface's MAC address may have changed.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Number of calls that have sent packets, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        self.ring.take_calls()
    }

    /// Sends the whole batch.
    pub fn burst(&mut self, out: &mut PacketOutputs<'_>, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        // Packets with an index below `singly_to` are sent one by one, because the kernel has refused their train.
        let (mut at, mut singly_to, mut refused) = (0, 0, None);
        while at < frames.len() {
            let frame = &frames[at];
            let sent = match out.forward(&frame.flow) {
                Forwarding::Wire { .. } => {
                    let singly = at < singly_to;
                    let (end, train_max) = if singly { (singly_to, 1) } else { (frames.len(), self.train_max) };
                    let next = self.build(out, batch, at..end, train_max, dropped);
                    assert!(next > at, "an empty ring holds any frame");
                    match transmit(&mut self.ring, &self.trains, out.fd, no_error_queue, dropped) {
                        TxProgress::Done => at = next,
                        TxProgress::Refused(train, errno) => {
                            (at, singly_to, refused) = (train.first, train.first + train.frames, Some(errno));
                        }
                    }
                    if singly && at >= singly_to {
                        self.give_up_trains(refused.take());
                    }
                    continue;
                }
                Forwarding::Local => out.local.push(batch, frame),
                Forwarding::Kernel => out.kernel.send(batch, frame, out.own),
                Forwarding::Drop(reason) => Err(reason),
            };
            if let Err(reason) = sent {
                dropped(reason);
            }
            at += 1;
        }
    }

    /// After the packets of a refused train were sent one by one: sends no trains any more.
    fn give_up_trains(&mut self, errno: Option<i32>) {
        let Some(errno) = errno else { return };
        if self.train_max > 1 {
            let error = std::io::Error::from_raw_os_error(errno);
            tracing::warn!("the kernel refuses trains of packets ({error}): they are sent one by one from now on");
        }
        self.train_max = 1;
    }

    /// Fills the ring with trains of the packets in `range`, up to a packet that is not sent on the link. Returns the index of
    /// the first packet that is not in the ring.
    fn build(
        &mut self,
        out: &mut PacketOutputs<'_>,
        batch: &TxBatch,
        range: Range<usize>,
        train_max: usize,
        dropped: &mut dyn FnMut(Reason),
    ) -> usize {
        self.ring.clear();
        self.trains.clear();
        self.bytes = 0;
        let frames = &batch.frames()[..range.end];
        let mut at = range.start;
        while at < frames.len() && self.ring.has_message() && self.bytes < HOT_BYTES {
            let Forwarding::Wire { mac, mtu } = out.peek(&frames[at].flow) else { break };
            let Some(last) = self.select(out.own, &frames[at].flow, mac) else {
                dropped(Reason::SendFailed);
                at += 1;
                continue;
            };
            if last.template.ip_len(frames[at].udp_payload_len()) > mtu as usize {
                dropped(Reason::SendTooLong);
                at += 1;
                continue;
            }
            let taken = self.build_train(last, batch, at..frames.len(), train_max, dropped);
            if taken == 0 {
                break;
            }
            if out.own.has_group(&frames[at].flow.dst) {
                out.deliver_copies(batch, &frames[at..at + taken], dropped);
            }
            at += taken;
        }
        at
    }

    /// Makes or reuses the headers and the seal of `flow` to `mac`; `None` when its addresses are of different families.
    #[inline]
    fn select(&mut self, own: &LocalLink, flow: &Flow, mac: MacAddr) -> Option<LastFlow> {
        if let Some(last) = self.last.filter(|l| l.flow == *flow && l.mac == mac) {
            return Some(last);
        }
        let src_port = own.src_port(flow);
        let link = LinkHeader { src: own.mac, dst: mac, vlan: None };
        let template = HeaderTemplate::new(&link, flow, src_port, own.encapsulation.udp_port)?;
        let seal = own.encapsulation.seal(flow.src, flow.dst, src_port)?;
        Some(LastFlow { flow: *flow, mac, template, seal })
    }

    /// Makes one message of the packets that can share a train; returns how many packets of the batch were taken.
    fn build_train(
        &mut self,
        mut last: LastFlow,
        batch: &TxBatch,
        range: Range<usize>,
        train_max: usize,
        dropped: &mut dyn FnMut(Reason),
    ) -> usize {
        let frames = &batch.frames()[range.clone()];
        let is_sealed = self.is_sealed;
        let length = frames[0].udp_payload_len();
        let head = vnet::LEN + last.template.header_len();
        if !self.ring.has_room(batch.spans_of(&frames[0]).len(), head + length) {
            return 0;
        }
        let start = self.ring.mark();
        self.ring.scratch(head);
        let (mut taken, mut packets, mut total) = (0, 0, 0);
        for frame in frames {
            let len = frame.udp_payload_len();
            let alike =
                frame.continues || frame.flow == last.flow && same_worker(frame, &frames[0], self.worker_word_at);
            let fits = packets < train_max && len <= length && total + len <= PAYLOAD_MAX && alike;
            if packets > 0 && !fits || !self.has_room(batch, frame) {
                break;
            }
            taken += 1;
            if !append(&mut self.ring, batch, frame, is_sealed.then_some(&mut last.seal), packets as u16) {
                dropped(Reason::SendFailed);
                continue;
            }
            packets += 1;
            total += len;
            if len < length {
                break;
            }
        }
        debug_assert!((packets..=frames.len()).contains(&taken), "a message of packets that were taken");
        self.last = Some(last);
        if packets == 0 {
            self.ring.unscratch(head);
            return taken;
        }
        self.finish(start, &last.template, total, (packets > 1).then_some(length));
        self.trains.push(TxTrain { first: range.start, frames: taken, packets });
        debug_assert!(self.trains.len() == self.ring.messages(), "each message is one train");
        taken
    }

    fn has_room(&self, batch: &TxBatch, frame: &TxFrame) -> bool {
        self.ring.has_room(batch.spans_of(frame).len(), frame.udp_payload_len())
    }

    /// Writes the headers of the message that begins at `start`, and ends the message.
    fn finish(&mut self, start: usize, template: &HeaderTemplate, total: usize, segment: Option<usize>) {
        self.bytes += total;
        let partial = segment.is_some() || template.is_v6();
        let headers = self.ring.patch(start, vnet::LEN + template.header_len());
        let (virtio, headers) = headers.split_at_mut(vnet::LEN);
        vnet::write(virtio, template, segment, partial);
        let checksum = if partial { UdpChecksum::Partial } else { UdpChecksum::Zero };
        template.write(headers, 0, total, checksum);
        self.ring.end_bound();
    }
}

impl PacketOutputs<'_> {
    #[inline]
    fn forward(&mut self, flow: &Flow) -> Forwarding {
        self.routes.forward(flow, self.own, self.netlink)
    }
    /// Copies packets to a multicast group that the port has joined, so that the port delivers them too.
    fn deliver_copies(&mut self, batch: &TxBatch, frames: &[TxFrame], dropped: &mut dyn FnMut(Reason)) {
        for frame in frames {
            if let Err(reason) = self.local.push(batch, frame) {
                dropped(reason);
            }
        }
    }
    /// How a packet is forwarded, without counting it.
    #[inline]
    fn peek(&mut self, flow: &Flow) -> Forwarding {
        self.routes.peek(flow, self.own, self.netlink)
    }
}

/// A packet socket has no error queue.
fn no_error_queue(_: RawFd, _: &mut dyn FnMut(Reason)) -> bool {
    false
}
