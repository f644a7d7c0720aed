//! ARP, neighbour discovery and ICMP echo messages, read and written by smoltcp's wire types.
//!
//! Received messages are not trusted. A message that does not parse, has a wrong checksum, is for another host, or has a hop
//! limit below 255 where RFC 4861 section 7.1 demands 255, is not handled.

use super::host::{LanHost, multicast_mac_v6};
use burst_wire::MacAddr;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hop limit of echo replies.
const HOP_LIMIT: u8 = 64;
/// Hop limit of neighbour discovery: it proves that no router has forwarded the message.
const HOP_LIMIT_ND: u8 = 255;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// A received frame, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub enum LanMessage {
    /// The frame is for another host, or is not understood.
    NotForUs,
    /// The frame is for this host and needs no action.
    Ignored,
    /// A request; the reply has been written.
    Request {
        /// IP and MAC address of a neighbour that solicits an address of this host. They may be learnt, because packets to that
        /// neighbour will follow.
        from: Option<(IpAddr, MacAddr)>,
    },
    /// An ARP reply or a neighbour advertisement.
    Advertisement {
        /// IP address of the neighbour.
        ip: IpAddr,
        /// MAC address of the neighbour.
        mac: MacAddr,
    },
}

/// Reads a frame; the reply to a request is written to `out`.
pub fn receive(host: &LanHost, frame: &[u8], out: &mut Vec<u8>) -> LanMessage {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return LanMessage::NotForUs };
    if !super::is_for(host.mac, MacAddr(ethernet.dst_addr().0)) {
        return LanMessage::NotForUs;
    }
    let back = ethernet.src_addr();
    let message = match ethernet.ethertype() {
        EthernetProtocol::Arp => receive_arp(host, ethernet.payload(), out),
        EthernetProtocol::Ipv4 => receive_ipv4(host, back, ethernet.payload(), out),
        EthernetProtocol::Ipv6 => receive_ipv6(host, back, ethernet.payload(), out),
        _ => None,
    };
    message.unwrap_or(LanMessage::NotForUs)
}

fn receive_arp(host: &LanHost, bytes: &[u8], out: &mut Vec<u8>) -> Option<LanMessage> {
    let packet = ArpPacket::new_checked(bytes).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: ip,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let known = usable(ip.into(), mac);
    match operation {
        ArpOperation::Request if host.owns(target.into()) => {
            arp(host, ArpOperation::Reply, target, mac, ip, out);
            Some(LanMessage::Request { from: known })
        }
        // A gratuitous request, for the sender's own address, is equivalent to a reply.
        ArpOperation::Reply | ArpOperation::Request => {
            let (ip, mac) = known.filter(|(ip, _)| !host.owns(*ip))?;
            (operation == ArpOperation::Reply || ip == IpAddr::V4(target))
                .then_some(LanMessage::Advertisement { ip, mac })
        }
        ArpOperation::Unknown(_) => None,
    }
}

/// The addresses of a neighbour, if they are addresses of a single host.
fn usable(ip: IpAddr, mac: EthernetAddress) -> Option<(IpAddr, MacAddr)> {
    (!ip.is_unspecified() && !ip.is_multicast() && mac.is_unicast()).then_some((ip, MacAddr(mac.0)))
}

fn receive_ipv4(host: &LanHost, back: EthernetAddress, bytes: &[u8], out: &mut Vec<u8>) -> Option<LanMessage> {
    let all = ChecksumCapabilities::default();
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let ip = Ipv4Repr::parse(&packet, &all).ok()?;
    let fragment = packet.more_frags() || packet.frag_offset() != 0;
    if ip.next_header != IpProtocol::Icmp || fragment || !host.owns(ip.dst_addr.into()) {
        return None;
    }
    let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
    let Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) = Icmpv4Repr::parse(&icmp, &all) else {
        return Some(LanMessage::Ignored);
    };
    let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
    let header = Ipv4Repr {
        src_addr: ip.dst_addr,
        dst_addr: ip.src_addr,
        next_header: IpProtocol::Icmp,
        payload_len: reply.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let body = ethernet(host, back, EthernetProtocol::Ipv4, IPV4 + reply.buffer_len(), out);
    let (head, rest) = body.split_at_mut(IPV4);
    reply.emit(&mut Icmpv4Packet::new_unchecked(rest), &all);
    emit_ipv4(&header, head, &all);
    Some(LanMessage::Request { from: None })
}

/// Writes the IPv4 header only; its checksum covers nothing else.
fn emit_ipv4(header: &Ipv4Repr, head: &mut [u8], all: &ChecksumCapabilities) {
    header.emit(&mut Ipv4Packet::new_unchecked(head), all);
}

/// A link address of Ethernet's length.
fn ethernet_address(link: RawHardwareAddress) -> Option<EthernetAddress> {
    Some(EthernetAddress::from_bytes(link.as_bytes().first_chunk::<6>()?))
}

/// What a neighbour says of itself, and must not say of an address of this host.
fn receive_advertisement(host: &LanHost, target: Ipv6Addr, link: EthernetAddress) -> Option<LanMessage> {
    let (ip, mac) = usable(target.into(), link).filter(|(ip, _)| !host.owns(*ip))?;
    Some(LanMessage::Advertisement { ip, mac })
}

fn receive_ipv6(host: &LanHost, back: EthernetAddress, bytes: &[u8], out: &mut Vec<u8>) -> Option<LanMessage> {
    let all = ChecksumCapabilities::default();
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    let ip = Ipv6Repr::parse(&packet).ok()?;
    if ip.next_header != IpProtocol::Icmpv6 {
        return None;
    }
    let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    match Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &icmp, &all).ok()? {
        Icmpv6Repr::EchoRequest { ident, seq_no, data } if host.owns(ip.dst_addr.into()) => {
            let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
            icmpv6(host, back, (ip.dst_addr, ip.src_addr), HOP_LIMIT, &reply, out);
            Some(LanMessage::Request { from: None })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) if ip.hop_limit == HOP_LIMIT_ND => {
            receive_solicitation(host, ip.src_addr, target_addr, lladdr.and_then(ethernet_address).unwrap_or(back), out)
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) if ip.hop_limit == HOP_LIMIT_ND => {
            receive_advertisement(host, target_addr, ethernet_address(lladdr?)?)
        }
        _ => host.owns(ip.dst_addr.into()).then_some(LanMessage::Ignored),
    }
}

/// Handles a neighbour solicitation for `target`. A probe from the unspecified address, which asks whether the address is free
/// (RFC 4862 section 5.4), is answered to all nodes.
fn receive_solicitation(
    host: &LanHost,
    src: Ipv6Addr,
    target: Ipv6Addr,
    link: EthernetAddress,
    out: &mut Vec<u8>,
) -> Option<LanMessage> {
    if !host.owns(target.into()) {
        return None;
    }
    let probe = src.is_unspecified();
    let flags =
        if probe { NdiscNeighborFlags::OVERRIDE } else { NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED };
    let advert = advertisement(host, target, flags);
    let (to, mac) = if probe { all_nodes() } else { (src, link) };
    icmpv6(host, mac, (target, to), HOP_LIMIT_ND, &advert, out);
    Some(LanMessage::Request { from: usable(src.into(), link).filter(|_| !probe) })
}

fn advertisement(host: &LanHost, target_addr: Ipv6Addr, flags: NdiscNeighborFlags) -> Icmpv6Repr<'static> {
    let lladdr = Some(own(host).into());
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })
}

fn all_nodes() -> (Ipv6Addr, EthernetAddress) {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    (ALL_NODES, EthernetAddress(multicast_mac_v6(ALL_NODES).0))
}

fn own(host: &LanHost) -> EthernetAddress {
    EthernetAddress(host.mac.0)
}

/// Writes a solicitation for a neighbour: by broadcast or multicast, or by unicast to the MAC address `known`. False if this host
/// has no address of the family.
pub fn solicitation(host: &LanHost, neighbour: IpAddr, known: Option<MacAddr>, out: &mut Vec<u8>) -> bool {
    match (neighbour, host.source_for(neighbour)) {
        (IpAddr::V4(target), Some(IpAddr::V4(source))) => {
            let to = known.map_or(EthernetAddress::BROADCAST, |mac| EthernetAddress(mac.0));
            arp_to(host, to, ArpOperation::Request, source, EthernetAddress([0; 6]), target, out);
            true
        }
        (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
            let [.., a, b, c] = target.octets();
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c));
            let multicast = (group, multicast_mac_v6(group));
            let (to, mac) = known.map_or(multicast, |mac| (target, mac));
            let solicit = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(own(host).into()) };
            icmpv6(host, EthernetAddress(mac.0), (source, to), HOP_LIMIT_ND, &Icmpv6Repr::Ndisc(solicit), out);
            true
        }
        _ => false,
    }
}

/// Writes an announcement of the address `ip` of this host.
pub fn announcement(host: &LanHost, ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => arp_to(host, EthernetAddress::BROADCAST, ArpOperation::Request, ip, own(host), ip, out),
        IpAddr::V6(ip) => {
            let (to, mac) = all_nodes();
            icmpv6(host, mac, (ip, to), HOP_LIMIT_ND, &advertisement(host, ip, NdiscNeighborFlags::OVERRIDE), out);
        }
    }
}

fn arp(host: &LanHost, op: ArpOperation, source: Ipv4Addr, mac: EthernetAddress, target: Ipv4Addr, out: &mut Vec<u8>) {
    arp_to(host, mac, op, source, mac, target, out);
}

fn arp_to(
    host: &LanHost,
    to: EthernetAddress,
    operation: ArpOperation,
    source: Ipv4Addr,
    target_mac: EthernetAddress,
    target: Ipv4Addr,
    out: &mut Vec<u8>,
) {
    let message = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: own(host),
        source_protocol_addr: source,
        target_hardware_addr: target_mac,
        target_protocol_addr: target,
    };
    let body = ethernet(host, to, EthernetProtocol::Arp, message.buffer_len(), out);
    message.emit(&mut ArpPacket::new_unchecked(body));
}

/// Writes an ICMPv6 frame from and to these addresses.
fn icmpv6(
    host: &LanHost,
    to: EthernetAddress,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    hops: u8,
    message: &Icmpv6Repr<'_>,
    out: &mut Vec<u8>,
) {
    let payload_len = message.buffer_len();
    let header =
        Ipv6Repr { src_addr: src, dst_addr: dst, next_header: IpProtocol::Icmpv6, payload_len, hop_limit: hops };
    let body = ethernet(host, to, EthernetProtocol::Ipv6, IPV6 + payload_len, out);
    header.emit(&mut Ipv6Packet::new_unchecked(&mut *body));
    let rest = &mut body[IPV6..];
    message.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(rest), &ChecksumCapabilities::default());
}

/// Writes an Ethernet header into `out`, and returns the `len` bytes after it.
fn ethernet<'a>(
    host: &LanHost,
    to: EthernetAddress,
    ethertype: EthernetProtocol,
    len: usize,
    out: &'a mut Vec<u8>,
) -> &'a mut [u8] {
    out.clear();
    out.resize(ETHERNET + len, 0);
    let header = EthernetRepr { src_addr: own(host), dst_addr: to, ethertype };
    header.emit(&mut EthernetFrame::new_unchecked(&mut out[..]));
    &mut out[ETHERNET..]
}
