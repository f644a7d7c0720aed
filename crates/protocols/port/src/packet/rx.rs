//! Receiving of the `packet` port: one `recvmmsg` at a time; frames are parsed, trains split, and each packet's ICRC is verified
//! while the packet is in the cache ([`crate::rx_train`]).
//!
//! The IPv4 identification of a single packet is in its header, so its ICRC is verified exactly. A train has one header: the
//! identifications of its other packets are expected to count up from it, as they do in a train that was never segmented. Where
//! GRO has joined packets with other identifications, these are recovered from the ICRC ([`crate::ether::icrc`]; `gro=off`
//! refuses them).

use super::{LocalLink, vnet};
use crate::ether::{ChecksumState, Datagram, TRANSPORT_MAX, parse};
use crate::rx_train::{BufferLevel, PacketVerifier, RxMessages, RxTrain, report_lost};
use crate::sys::recv::Message;
use crate::{Encapsulation, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use burst_netif::is_link_local;
use burst_wire::Ethernet;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Bits of a tag that are the VLAN ID; 0 is a priority tag without a VLAN.
const VLAN_ID: u16 = 0xfff;

/// The receiving half of the port.
pub struct PacketRx {
    messages: RxMessages,
    verifier: PacketVerifier,
    level: BufferLevel,
    /// The kernel's count of dropped frames at the last report.
    lost_seen: u32,
}

/// A received frame: its datagram, and the length of each packet in it.
struct ReceivedFrame<'a> {
    datagram: Datagram<'a>,
    segment: usize,
}

impl PacketRx {
    /// `strict`: refuse packets of a train whose identification does not count up from its header.
    pub fn new(encapsulation: &Encapsulation, strict: bool) -> PacketRx {
        let verifier = PacketVerifier::new(encapsulation, TRANSPORT_MAX, strict);
        PacketRx { messages: RxMessages::new(), verifier, level: BufferLevel::default(), lost_seen: 0 }
    }

    /// Number of identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.verifier.recovered()
    }

    /// Number of calls that have received packets, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        self.messages.take_calls()
    }

    /// Discards the messages of the former socket.
    pub fn forget(&mut self) {
        self.messages.forget();
        self.lost_seen = 0;
    }

    /// The sockets note when packets arrive.
    pub fn time_arrivals(&mut self) {
        self.messages.time_arrivals();
    }

    /// Whether they do.
    pub fn is_timed(&self) -> bool {
        self.messages.is_timed()
    }

    /// A burst from the port begins.
    #[inline]
    pub fn begin_burst(&mut self, now: Nanos) {
        self.messages.begin_burst(now);
    }

    /// Delivers the rest of the last messages; returns how many packets.
    pub fn deliver_rest(&mut self, own: &LocalLink, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some(packets) = self.split(own, budget - taken, sink)
        {
            taken += packets;
        }
        taken
    }

    /// Receives until the socket is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, fd: RawFd, own: &LocalLink, budget: usize, sink: &mut dyn RxSink) -> usize {
        let (mut taken, mut more, mut first) = (0, true, true);
        while more && taken < budget {
            match self.messages.fill(fd, budget - taken) {
                Ok(waiting) => more = waiting,
                Err(error) => {
                    // Kernels before Linux 6.2 cannot describe trains of UDP packets.
                    if error.raw_os_error() == Some(libc::EINVAL) {
                        sink.dropped(Reason::TrainUnknown);
                    }
                    return taken;
                }
            }
            if more && std::mem::take(&mut first) {
                self.level.look(fd);
            }
            taken += self.deliver_rest(own, budget - taken, sink);
        }
        taken
    }

    /// The burst from the port ends.
    #[inline]
    pub fn end_burst(&mut self, sink: &mut dyn RxSink) {
        self.level.tell(sink);
    }

    /// Delivers packets of the current message, up to `budget`; `None` without a message.
    fn split(&mut self, own: &LocalLink, budget: usize, sink: &mut dyn RxSink) -> Option<usize> {
        let (message, offset) = self.messages.current()?;
        if offset == 0
            && let Some(lost) = message.facts.lost
        {
            report_lost(&mut self.lost_seen, lost, sink);
        }
        let ReceivedFrame { datagram, segment } = match parse_message(&message, own, offset > 0) {
            Ok(arrival) => arrival,
            Err(reason) => {
                sink.dropped(reason);
                self.messages.next();
                return Some(1);
            }
        };
        if offset == 0 {
            self.verifier.begin(&datagram.flow, datagram.header);
        }
        self.messages.tell_wait(sink);
        let train = RxTrain { flow: datagram.flow, bytes: &datagram.payload[offset..], segment };
        let (taken, bytes) = self.verifier.pass(&train, budget, sink);
        let all = bytes == train.bytes.len();
        self.messages.delivered(bytes, all);
        Some(taken)
    }
}

impl LocalLink {
    /// Refuses a packet that is not for this port, or says that it comes from it; gives a link-local source its interface.
    /// `is_unicast`: its link address is the port's.
    fn check_flow(&self, flow: &mut Flow, is_unicast: bool) -> Result<(), Reason> {
        let ours = if is_unicast { self.has(&flow.dst) } else { self.has_group(&flow.dst) };
        if !ours {
            return Err(Reason::NotOurs);
        }
        // A packet from the link must not carry an address of this port as its source.
        if self.has(&flow.src) && !self.loopback {
            return Err(Reason::WrongSource);
        }
        if matches!(flow.src, IpAddr::V6(ip) if is_link_local(&ip)) {
            flow.scope = self.ifindex;
        }
        Ok(())
    }
}

/// Parses a message. `again`: its UDP checksum was verified before.
fn parse_message<'a>(message: &Message<'a>, own: &LocalLink, again: bool) -> Result<ReceivedFrame<'a>, Reason> {
    let (header, frame) = message.bytes.split_first_chunk::<{ vnet::LEN }>().ok_or(Reason::Truncated)?;
    if message.facts.vlan.is_some_and(|tag| tag & VLAN_ID != 0) {
        return Err(Reason::ForeignVlan);
    }
    let link = Ethernet::parse(frame).ok_or(Reason::Truncated)?;
    if link.dst != own.mac && !link.dst.is_multicast() {
        return Err(Reason::NotOurs);
    }
    let vnet::VnetHeader { checksums, segment } = vnet::read(header)?;
    let mut datagram =
        parse::parse(frame, if again { ChecksumState::Trusted } else { checksums }, own.encapsulation.udp_port)?;
    own.check_flow(&mut datagram.flow, link.dst == own.mac)?;
    if datagram.payload.is_empty() {
        return Err(Reason::Truncated);
    }
    let segment = segment.unwrap_or(datagram.payload.len());
    Ok(ReceivedFrame { datagram, segment })
}
