//! Receiving: one `recvmmsg` at a time; frames taken apart, trains split, each packet's ICRC checked while it is in the
//! cache.
//!
//! The identification of a single packet is in its header, so its ICRC is checked exactly. Of a train there is one header
//! for all: the packets behind the first are expected to count on from it, as they do when the train was never cut;
//! where GRO has made the train of packets with other identifications, these are recovered from the ICRC
//! ([`crate::ether::seal`]; `gro=off` refuses them).
//!
//! How many buffers are used follows the length of the frames seen last, so that what the kernel has just copied is
//! still in the L2 cache when it is checked.

use super::{Own, vnet};
use crate::ether::seal::{ICRC, check_unusual};
use crate::ether::{Checker, Checksums, Datagram, Seal, TRANSPORT_MAX, TRANSPORT_MIN, parse};
use crate::iface::is_link_local;
use crate::sys::recv::{Message, RecvRing};
use crate::{ROCE_UDP_PORT, RxSink};
use burst_base::Reason;
use burst_frame::{Flow, RxFrame};
use burst_wire::{Ethernet, Ipv4};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Buffers.
const MESSAGES: usize = 32;
/// Bytes that one `recvmmsg` should bring: a part of an L2 cache.
const HOT_BYTES: usize = 64 << 10;
/// Lost packets reported per message.
const LOST_REPORTED_MAX: u32 = 4096;
/// Bits of a tag that are the VLAN's number; 0 is a priority without a VLAN.
const VLAN_ID: u16 = 0xfff;

/// The receiving half of the port.
pub struct Rx {
    ring: RecvRing,
    checker: Checker,
    /// Messages to ask for.
    want: usize,
    /// Messages of the last `recvmmsg`, the one being split, and the byte of its UDP payload at which it goes on.
    have: usize,
    at: usize,
    offset: usize,
    /// Bytes of the messages split so far.
    bytes: usize,
    /// Of the flow last received.
    seal: Option<Seal>,
    /// The kernel's count of lost frames, as last reported.
    lost_seen: u32,
}

/// One frame: its datagram, and the length of the packets in it.
struct Arrival<'a> {
    datagram: Datagram<'a>,
    segment: usize,
}

impl Rx {
    /// `strict`: the packets of a train must count on from its header.
    pub fn new(strict: bool) -> Rx {
        Rx {
            ring: RecvRing::new(MESSAGES),
            checker: Checker::new(strict),
            want: MESSAGES,
            have: 0,
            at: 0,
            offset: 0,
            bytes: 0,
            seal: None,
            lost_seen: 0,
        }
    }

    /// Identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.checker.recovered
    }

    /// The socket is another one now.
    pub fn forget(&mut self) {
        (self.have, self.at, self.offset, self.lost_seen) = (0, 0, 0, 0);
    }

    /// Hands out what is left of the last messages; returns how many packets.
    pub fn leftover(&mut self, own: &Own, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while self.at < self.have && taken < budget {
            taken += self.split(own, budget - taken, sink);
        }
        taken
    }

    /// Receives until the socket is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, fd: RawFd, own: &Own, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while taken < budget {
            debug_assert!(self.at == self.have);
            let asked = self.want.min(budget - taken).max(1);
            match self.ring.recv(fd, asked) {
                Ok(have) => (self.have, self.at, self.offset, self.bytes) = (have, 0, 0, 0),
                Err(error) => {
                    // Kernels before 6.2 have no name for trains of UDP packets.
                    if error.raw_os_error() == Some(libc::EINVAL) {
                        sink.dropped(Reason::TrainUnknown);
                    }
                    return taken;
                }
            }
            taken += self.leftover(own, budget - taken, sink);
            self.adapt();
            if self.have < asked {
                return taken;
            }
        }
        taken
    }

    /// Asks for as many messages as should fit the cache.
    fn adapt(&mut self) {
        let average = (self.bytes / self.have.max(1)).max(1);
        self.want = (HOT_BYTES / average).clamp(1, MESSAGES);
    }

    /// Hands out packets of the current message, up to `budget`; goes on to the next message at its end.
    fn split(&mut self, own: &Own, budget: usize, sink: &mut dyn RxSink) -> usize {
        let message = self.ring.message(self.at);
        if self.offset == 0 {
            self.bytes += message.bytes.len();
            if let Some(lost) = message.facts.lost {
                let new = lost.wrapping_sub(self.lost_seen).min(LOST_REPORTED_MAX);
                self.lost_seen = lost;
                (0..new).for_each(|_| sink.dropped(Reason::ReceiveOverflow));
            }
        }
        let arrival = match arrive(&message, own, self.offset > 0) {
            Ok(arrival) => arrival,
            Err(reason) => {
                sink.dropped(reason);
                (self.at, self.offset) = (self.at + 1, 0);
                return 1;
            }
        };
        let datagram = &arrival.datagram;
        let Flow { src, dst, src_port, .. } = datagram.flow;
        self.seal = Seal::reuse(self.seal, src, dst, src_port, ROCE_UDP_PORT);
        let mut taken = 0;
        let mut rest = &datagram.payload[self.offset..];
        while taken < budget && !rest.is_empty() {
            let (packet, after) = rest.split_at(arrival.segment.min(rest.len()));
            let number = self.offset / arrival.segment;
            rest = after;
            self.offset += packet.len();
            taken += 1;
            match check(&mut self.checker, self.seal.as_mut(), datagram, packet, number) {
                Ok(bytes) => sink.frame(&RxFrame { flow: datagram.flow, bytes }),
                Err(reason) => sink.dropped(reason),
            }
        }
        if rest.is_empty() {
            (self.at, self.offset) = (self.at + 1, 0);
        }
        taken
    }
}

/// Takes a message apart. `again`: it was found good before.
fn arrive<'a>(message: &Message<'a>, own: &Own, again: bool) -> Result<Arrival<'a>, Reason> {
    let (header, frame) = message.bytes.split_first_chunk::<{ vnet::LEN }>().ok_or(Reason::Truncated)?;
    if message.facts.vlan.is_some_and(|tag| tag & VLAN_ID != 0) {
        return Err(Reason::ForeignVlan);
    }
    let link = Ethernet::parse(frame).ok_or(Reason::Truncated)?;
    if link.dst != own.mac && !link.dst.is_multicast() {
        return Err(Reason::NotOurs);
    }
    let vnet::Received { checksums, segment } = vnet::read(header)?;
    let mut datagram = parse::parse(frame, if again { Checksums::Trusted } else { checksums })?;
    let flow = &mut datagram.flow;
    let ours = if link.dst == own.mac { own.has(&flow.dst) } else { own.has_group(&flow.dst) };
    if !ours {
        return Err(Reason::NotOurs);
    }
    // Nobody else may speak in our name.
    if own.has(&flow.src) && !own.loopback {
        return Err(Reason::WrongSource);
    }
    if matches!(flow.src, IpAddr::V6(ip) if is_link_local(&ip)) {
        flow.scope = own.ifindex;
    }
    if datagram.payload.is_empty() {
        return Err(Reason::Truncated);
    }
    let segment = segment.unwrap_or(datagram.payload.len());
    Ok(Arrival { datagram, segment })
}

/// Packet `number` of a datagram without its ICRC, if it is good.
#[inline]
fn check<'a>(
    checker: &mut Checker,
    seal: Option<&mut Seal>,
    datagram: &Datagram<'_>,
    packet: &'a [u8],
    number: usize,
) -> Result<&'a [u8], Reason> {
    if packet.len() < TRANSPORT_MIN {
        return Err(Reason::Truncated);
    }
    if packet.len() > TRANSPORT_MAX {
        return Err(Reason::Oversize);
    }
    let Datagram { flow, id, flags_fragment, .. } = datagram;
    let usual = flow.dst.is_ipv6() || *flags_fragment == Ipv4::DONT_FRAGMENT;
    let good = match seal {
        None => false,
        Some(_) if !usual => check_unusual(flow, id.wrapping_add(number as u16), *flags_fragment, packet),
        Some(seal) if number == 0 => checker.check_exact(seal, packet, *id),
        Some(seal) => checker.check(seal, packet),
    };
    if good { Ok(&packet[..packet.len() - ICRC]) } else { Err(Reason::BadIcrc) }
}
