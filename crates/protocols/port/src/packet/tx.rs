//! Sending: frames to trains, trains to Ethernet frames of up to 64 KiB with a virtio header, these to one `sendmmsg`.
//!
//! Consecutive packets of one flow and one length (the last may be shorter) become a train that the kernel or the NIC
//! cuts, counting the IPv4 identification up from 0 as it does so. Headers and trailers are written into a scratch area,
//! payload is lent or copied ([`crate::sending`]). A packet that goes alone over IPv4 has no UDP checksum, which costs
//! nothing on any device; one over IPv6 has one that the kernel or the NIC completes, as in trains.
//!
//! The kernel cuts trains from Linux 6.2 on; before that they are refused once, and packets go one by one.

use super::home::Home;
use super::paths::{Paths, Way};
use super::slow::Slow;
use super::{Own, vnet};
use crate::ROCE_UDP_PORT;
use crate::ether::seal::{Seal, TRAIN_MAX};
use crate::ether::{Link, Template, UdpChecksum};
use crate::sending::{Progress, Train, append, transmit};
use crate::sys::send::SendRing;
use burst_base::Reason;
use burst_frame::{Flow, TxBatch, TxFrame};
use burst_netif::netlink::RequestSocket;
use burst_wire::MacAddr;
use core::ops::Range;
use std::os::fd::RawFd;

/// Most bytes of UDP payload in a train: with its headers it stays below the 64 KiB at which the kernel would cut it in
/// software (`gso_max_size`).
const PAYLOAD_MAX: usize = 65_000;
/// Messages of one `sendmmsg`.
const MESSAGES: usize = 128;
/// iovecs of one `sendmmsg`.
const IOVS: usize = 2048;
/// Scratch bytes of one `sendmmsg`; holds the longest train whole.
const SCRATCH: usize = 128 << 10;
/// Bytes of one `sendmmsg` after which no message is added: they should still be in the L2 cache when the kernel
/// copies them.
const HOT_BYTES: usize = 60 << 10;

const _: () = assert!(SCRATCH > PAYLOAD_MAX + HOT_BYTES && TRAIN_MAX <= 64);

/// The headers and the seal of the flow last sent.
#[derive(Clone, Copy)]
struct Last {
    flow: Flow,
    mac: MacAddr,
    template: Template,
    seal: Seal,
}

/// Whom the packets go through.
pub struct Outlets<'a> {
    /// The packet socket.
    pub fd: RawFd,
    /// What the port is.
    pub own: &'a Own,
    /// Destinations.
    pub paths: &'a mut Paths,
    /// The kernel's knowledge of them.
    pub netlink: &'a mut RequestSocket,
    /// Packets for ourselves.
    pub home: &'a mut Home,
    /// Packets that the kernel sends.
    pub slow: &'a mut Slow,
}

/// The sending half of the port.
pub struct Tx {
    ring: SendRing,
    trains: Vec<Train>,
    /// Packets of a train: [`TRAIN_MAX`], or 1 when the kernel refuses trains.
    train_max: usize,
    /// Bytes in the ring.
    bytes: usize,
    last: Option<Last>,
}

impl Tx {
    /// `gso`: use trains.
    pub fn new(gso: bool) -> Tx {
        Tx {
            ring: SendRing::new(MESSAGES, IOVS, SCRATCH),
            trains: Vec::with_capacity(MESSAGES),
            train_max: if gso { TRAIN_MAX } else { 1 },
            bytes: 0,
            last: None,
        }
    }

    /// The interface's own address may have changed.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Sends the whole batch.
    pub fn burst(&mut self, out: &mut Outlets<'_>, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let frames = batch.frames();
        // Frames below `singly_to` are sent one by one because their train was refused.
        let (mut at, mut singly_to, mut refused) = (0, 0, None);
        while at < frames.len() {
            let frame = &frames[at];
            let sent = match out.way(&frame.flow) {
                Way::Wire { .. } => {
                    let singly = at < singly_to;
                    let (end, train_max) = if singly { (singly_to, 1) } else { (frames.len(), self.train_max) };
                    let next = self.build(out, batch, at..end, train_max, dropped);
                    assert!(next > at, "an empty ring holds any frame");
                    match transmit(&mut self.ring, &self.trains, out.fd, no_complaints, dropped) {
                        Progress::Done => at = next,
                        Progress::Refused(train, errno) => {
                            (at, singly_to, refused) = (train.first, train.first + train.frames, Some(errno));
                        }
                    }
                    if singly && at >= singly_to {
                        self.give_up_trains(refused.take());
                    }
                    continue;
                }
                Way::Home => out.home.push(batch, frame),
                Way::Kernel => out.slow.send(batch, frame, out.own),
                Way::Nowhere(reason) => Err(reason),
            };
            if let Err(reason) = sent {
                dropped(reason);
            }
            at += 1;
        }
    }

    /// A train was refused: trains do not work here.
    fn give_up_trains(&mut self, errno: Option<i32>) {
        let Some(errno) = errno else { return };
        if self.train_max > 1 {
            let error = std::io::Error::from_raw_os_error(errno);
            tracing::warn!("the kernel refuses trains of packets ({error}): they are sent one by one from now on");
        }
        self.train_max = 1;
    }

    /// Fills the ring with trains of `range` as long as they go by the wire; returns the first frame that is not in it.
    fn build(
        &mut self,
        out: &mut Outlets<'_>,
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
            let Way::Wire { mac, mtu } = out.peek(&frames[at].flow) else { break };
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
                out.copy_home(batch, &frames[at..at + taken], dropped);
            }
            at += taken;
        }
        at
    }

    /// Headers and seal of `flow` to `mac`.
    #[inline]
    fn select(&mut self, own: &Own, flow: &Flow, mac: MacAddr) -> Option<Last> {
        if let Some(last) = self.last.filter(|l| l.flow == *flow && l.mac == mac) {
            return Some(last);
        }
        let src_port = own.src_port(flow);
        let link = Link { src: own.mac, dst: mac, vlan: None };
        let template = Template::new(&link, flow, src_port, ROCE_UDP_PORT)?;
        let seal = Seal::new(flow.src, flow.dst, src_port, ROCE_UDP_PORT)?;
        Some(Last { flow: *flow, mac, template, seal })
    }

    /// Makes one message of the frames that fit together; returns how many frames were taken.
    fn build_train(
        &mut self,
        mut last: Last,
        batch: &TxBatch,
        range: Range<usize>,
        train_max: usize,
        dropped: &mut dyn FnMut(Reason),
    ) -> usize {
        let frames = &batch.frames()[range.clone()];
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
            let fits = packets < train_max && len <= length && total + len <= PAYLOAD_MAX && frame.flow == last.flow;
            if packets > 0 && !fits || !self.has_room(batch, frame) {
                break;
            }
            taken += 1;
            if !append(&mut self.ring, batch, frame, Some(&mut last.seal), packets as u16) {
                dropped(Reason::SendFailed);
                continue;
            }
            packets += 1;
            total += len;
            if len < length {
                break;
            }
        }
        self.last = Some(last);
        if packets == 0 {
            self.ring.unscratch(head);
            return taken;
        }
        self.finish(start, &last.template, total, (packets > 1).then_some(length));
        self.trains.push(Train { first: range.start, frames: taken, packets });
        taken
    }

    fn has_room(&self, batch: &TxBatch, frame: &TxFrame) -> bool {
        self.ring.has_room(batch.spans_of(frame).len(), frame.udp_payload_len())
    }

    /// Writes the headers of the message that began at `start`, and ends it.
    fn finish(&mut self, start: usize, template: &Template, total: usize, segment: Option<usize>) {
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

impl Outlets<'_> {
    #[inline]
    fn way(&mut self, flow: &Flow) -> Way {
        self.paths.way(flow, self.own, self.netlink)
    }
    /// What goes to a group in which we take part comes home as well.
    fn copy_home(&mut self, batch: &TxBatch, frames: &[TxFrame], dropped: &mut dyn FnMut(Reason)) {
        for frame in frames {
            if let Err(reason) = self.home.push(batch, frame) {
                dropped(reason);
            }
        }
    }
    /// The way of a packet without taking note of it.
    #[inline]
    fn peek(&mut self, flow: &Flow) -> Way {
        self.paths.peek(flow, self.own, self.netlink)
    }
}

/// A packet socket has no error queue.
fn no_complaints(_: RawFd, _: &mut dyn FnMut(Reason)) -> bool {
    false
}
