//! Receiving: one `recvmmsg` at a time; frames taken apart, trains split, each packet's ICRC checked while it is in the
//! cache ([`crate::receiving`]).
//!
//! The identification of a single packet is in its header, so its ICRC is checked exactly. Of a train there is one header
//! for all: the packets behind the first are expected to count on from it, as they do when the train was never cut;
//! where GRO has made the train of packets with other identifications, these are recovered from the ICRC
//! ([`crate::ether::seal`]; `gro=off` refuses them).

use super::{Own, vnet};
use crate::ether::{Checksums, Datagram, TRANSPORT_MAX, parse};
use crate::receiving::{Gate, Inbox, Train, report_lost};
use crate::sys::recv::Message;
use crate::{ROCE_UDP_PORT, RxSink};
use burst_base::Reason;
use burst_netif::is_link_local;
use burst_wire::Ethernet;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Bits of a tag that are the VLAN's number; 0 is a priority without a VLAN.
const VLAN_ID: u16 = 0xfff;

/// The receiving half of the port.
pub struct Rx {
    inbox: Inbox,
    gate: Gate,
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
        Rx { inbox: Inbox::new(), gate: Gate::new(TRANSPORT_MAX, true, strict), lost_seen: 0 }
    }

    /// Identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.gate.recovered()
    }

    /// The socket is another one now.
    pub fn forget(&mut self) {
        self.inbox.forget();
        self.lost_seen = 0;
    }

    /// Hands out what is left of the last messages; returns how many packets.
    pub fn leftover(&mut self, own: &Own, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some(packets) = self.split(own, budget - taken, sink)
        {
            taken += packets;
        }
        taken
    }

    /// Receives until the socket is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, fd: RawFd, own: &Own, budget: usize, sink: &mut dyn RxSink) -> usize {
        let (mut taken, mut more) = (0, true);
        while more && taken < budget {
            match self.inbox.fill(fd, budget - taken) {
                Ok(waiting) => more = waiting,
                Err(error) => {
                    // Kernels before 6.2 have no name for trains of UDP packets.
                    if error.raw_os_error() == Some(libc::EINVAL) {
                        sink.dropped(Reason::TrainUnknown);
                    }
                    return taken;
                }
            }
            taken += self.leftover(own, budget - taken, sink);
        }
        taken
    }

    /// Hands out packets of the current message, up to `budget`; `None` without a message.
    fn split(&mut self, own: &Own, budget: usize, sink: &mut dyn RxSink) -> Option<usize> {
        let (message, offset) = self.inbox.current()?;
        if offset == 0
            && let Some(lost) = message.facts.lost
        {
            report_lost(&mut self.lost_seen, lost, sink);
        }
        let Arrival { datagram, segment } = match arrive(&message, own, offset > 0) {
            Ok(arrival) => arrival,
            Err(reason) => {
                sink.dropped(reason);
                self.inbox.next();
                return Some(1);
            }
        };
        if offset == 0 {
            self.gate.begin(&datagram.flow, ROCE_UDP_PORT, datagram.header);
        }
        let train = Train { flow: datagram.flow, bytes: &datagram.payload[offset..], segment };
        let (taken, bytes) = self.gate.pass(&train, budget, sink);
        let all = bytes == train.bytes.len();
        self.inbox.handed_out(bytes, all);
        Some(taken)
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
