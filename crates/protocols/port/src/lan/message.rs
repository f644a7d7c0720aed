//! The LAN's messages: ARP, neighbour discovery, echo, read and made by smoltcp's wire types.
//!
//! Everything received is a stranger's: what does not parse, has a wrong checksum, a hop limit below 255 where
//! RFC 4861 7.1 demands it, or is for somebody else, is nothing.

use super::host::{Host, multicast_mac_v6};
use burst_wire::MacAddr;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hop limit of echo answers.
const HOPS: u8 = 64;
/// Hop limit of neighbour discovery: proof that no router has passed it on.
const HOPS_ND: u8 = 255;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// What a frame was.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Not for us, or not understood.
    Nothing,
    /// For us, without consequence.
    Other,
    /// A request; the answer has been written. Who asks for our address will talk to us: its own may be learnt.
    Request {
        /// Address and MAC of who asked for ours.
        from: Option<(IpAddr, MacAddr)>,
    },
    /// A neighbour says its address.
    Answer {
        /// Address.
        ip: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
}

/// Reads a frame; an answer to it is left in `out`.
pub fn hear(host: &Host, frame: &[u8], out: &mut Vec<u8>) -> Heard {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Heard::Nothing };
    if !super::is_for(host.mac, MacAddr(ethernet.dst_addr().0)) {
        return Heard::Nothing;
    }
    let back = ethernet.src_addr();
    let heard = match ethernet.ethertype() {
        EthernetProtocol::Arp => hear_arp(host, ethernet.payload(), out),
        EthernetProtocol::Ipv4 => hear_ipv4(host, back, ethernet.payload(), out),
        EthernetProtocol::Ipv6 => hear_ipv6(host, back, ethernet.payload(), out),
        _ => None,
    };
    heard.unwrap_or(Heard::Nothing)
}

fn hear_arp(host: &Host, bytes: &[u8], out: &mut Vec<u8>) -> Option<Heard> {
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
            Some(Heard::Request { from: known })
        }
        // A gratuitous request (its own address) says as much as an answer.
        ArpOperation::Reply | ArpOperation::Request => {
            let (ip, mac) = known.filter(|(ip, _)| !host.owns(*ip))?;
            (operation == ArpOperation::Reply || ip == IpAddr::V4(target)).then_some(Heard::Answer { ip, mac })
        }
        ArpOperation::Unknown(_) => None,
    }
}

/// A neighbour's address that may be believed: that of one host.
fn usable(ip: IpAddr, mac: EthernetAddress) -> Option<(IpAddr, MacAddr)> {
    (!ip.is_unspecified() && !ip.is_multicast() && mac.is_unicast()).then_some((ip, MacAddr(mac.0)))
}

fn hear_ipv4(host: &Host, back: EthernetAddress, bytes: &[u8], out: &mut Vec<u8>) -> Option<Heard> {
    let all = ChecksumCapabilities::default();
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let ip = Ipv4Repr::parse(&packet, &all).ok()?;
    let fragment = packet.more_frags() || packet.frag_offset() != 0;
    if ip.next_header != IpProtocol::Icmp || fragment || !host.owns(ip.dst_addr.into()) {
        return None;
    }
    let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
    let Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) = Icmpv4Repr::parse(&icmp, &all) else {
        return Some(Heard::Other);
    };
    let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
    let header = Ipv4Repr {
        src_addr: ip.dst_addr,
        dst_addr: ip.src_addr,
        next_header: IpProtocol::Icmp,
        payload_len: reply.buffer_len(),
        hop_limit: HOPS,
    };
    let body = ethernet(host, back, EthernetProtocol::Ipv4, IPV4 + reply.buffer_len(), out);
    let (head, rest) = body.split_at_mut(IPV4);
    reply.emit(&mut Icmpv4Packet::new_unchecked(rest), &all);
    emit_ipv4(&header, head, &all);
    Some(Heard::Request { from: None })
}

/// Writes the header alone: the checksum covers nothing else.
fn emit_ipv4(header: &Ipv4Repr, head: &mut [u8], all: &ChecksumCapabilities) {
    header.emit(&mut Ipv4Packet::new_unchecked(head), all);
}

fn hear_ipv6(host: &Host, back: EthernetAddress, bytes: &[u8], out: &mut Vec<u8>) -> Option<Heard> {
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
            icmpv6(host, back, (ip.dst_addr, ip.src_addr), HOPS, &reply, out);
            Some(Heard::Request { from: None })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) if ip.hop_limit == HOPS_ND => {
            let link = lladdr.and_then(|l| Some(EthernetAddress::from_bytes(l.as_bytes().first_chunk::<6>()?)));
            hear_solicitation(host, ip.src_addr, target_addr, link.unwrap_or(back), out)
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. }) if ip.hop_limit == HOPS_ND => {
            let link = EthernetAddress::from_bytes(lladdr?.as_bytes().first_chunk::<6>()?);
            let (ip, mac) = usable(target_addr.into(), link).filter(|(ip, _)| !host.owns(*ip))?;
            Some(Heard::Answer { ip, mac })
        }
        _ => host.owns(ip.dst_addr.into()).then_some(Heard::Other),
    }
}

/// Somebody asks for `target`. An unspecified source probes whether the address is free (RFC 4862 5.4): all are told.
fn hear_solicitation(
    host: &Host,
    src: Ipv6Addr,
    target: Ipv6Addr,
    link: EthernetAddress,
    out: &mut Vec<u8>,
) -> Option<Heard> {
    if !host.owns(target.into()) {
        return None;
    }
    let probe = src.is_unspecified();
    let flags =
        if probe { NdiscNeighborFlags::OVERRIDE } else { NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::SOLICITED };
    let advert = advertisement(host, target, flags);
    let (to, mac) = if probe { all_nodes() } else { (src, link) };
    icmpv6(host, mac, (target, to), HOPS_ND, &advert, out);
    Some(Heard::Request { from: usable(src.into(), link).filter(|_| !probe) })
}

fn advertisement(host: &Host, target_addr: Ipv6Addr, flags: NdiscNeighborFlags) -> Icmpv6Repr<'static> {
    let lladdr = Some(own(host).into());
    Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })
}

fn all_nodes() -> (Ipv6Addr, EthernetAddress) {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    (ALL_NODES, EthernetAddress(multicast_mac_v6(ALL_NODES).0))
}

fn own(host: &Host) -> EthernetAddress {
    EthernetAddress(host.mac.0)
}

/// Asks for a neighbour's address: everybody, or the neighbour itself if it is known already. False if there is no
/// address of ours to ask with.
pub fn question(host: &Host, neighbour: IpAddr, known: Option<MacAddr>, out: &mut Vec<u8>) -> bool {
    match (neighbour, host.source_for(neighbour)) {
        (IpAddr::V4(target), Some(IpAddr::V4(source))) => {
            let to = known.map_or(EthernetAddress::BROADCAST, |mac| EthernetAddress(mac.0));
            arp_to(host, to, ArpOperation::Request, source, EthernetAddress([0; 6]), target, out);
            true
        }
        (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
            let [.., a, b, c] = target.octets();
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c));
            let everybody = (group, multicast_mac_v6(group));
            let (to, mac) = known.map_or(everybody, |mac| (target, mac));
            let solicit = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(own(host).into()) };
            icmpv6(host, EthernetAddress(mac.0), (source, to), HOPS_ND, &Icmpv6Repr::Ndisc(solicit), out);
            true
        }
        _ => false,
    }
}

/// Says unasked that `ip` is here.
pub fn announcement(host: &Host, ip: IpAddr, out: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => arp_to(host, EthernetAddress::BROADCAST, ArpOperation::Request, ip, own(host), ip, out),
        IpAddr::V6(ip) => {
            let (to, mac) = all_nodes();
            icmpv6(host, mac, (ip, to), HOPS_ND, &advertisement(host, ip, NdiscNeighborFlags::OVERRIDE), out);
        }
    }
}

fn arp(host: &Host, op: ArpOperation, source: Ipv4Addr, mac: EthernetAddress, target: Ipv4Addr, out: &mut Vec<u8>) {
    arp_to(host, mac, op, source, mac, target, out);
}

fn arp_to(
    host: &Host,
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

/// A whole ICMPv6 frame from and to these addresses.
fn icmpv6(
    host: &Host,
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

/// An Ethernet header in `out`, and room for what follows.
fn ethernet<'a>(
    host: &Host,
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
