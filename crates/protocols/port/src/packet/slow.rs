//! Packets that the kernel sends for us, by raw IP sockets, with the headers that we wrote: to next hops that are not
//! resolved yet. The kernel asks for the neighbour, keeps a few packets meanwhile, and takes the route that it knows. That it found nobody is heard by netlink
//! ([`super::paths`]).

use super::Own;
use crate::ether::{HEADERS_MAX, Link, Seal, TRANSPORT_MAX, Template, UdpChecksum};
use crate::sending::write;
use crate::sys::packet as sys;
use crate::sys::socket::SockAddr;
use crate::{PortError, ROCE_UDP_PORT};
use burst_base::Reason;
use burst_frame::{TxBatch, TxFrame};
use burst_wire::MacAddr;
use std::io;
use std::os::fd::OwnedFd;

/// Buffer of these sockets, bytes: few packets go this way.
const SNDBUF: u32 = 1 << 20;

/// The sockets.
pub struct Slow {
    v4: OwnedFd,
    /// A host may be without IPv6.
    v6: Option<OwnedFd>,
    packet: Box<[u8]>,
}

impl Slow {
    /// Opens the sockets, bound to interface `device`.
    pub fn open(device: &str) -> Result<Slow, PortError> {
        let v4 = sys::open_raw(false, device, SNDBUF)
            .map_err(|e| PortError::from_io(format!("open a raw socket on {device}"), e))?;
        let v6 = sys::open_raw(true, device, SNDBUF).ok();
        Ok(Slow { v4, v6, packet: vec![0; HEADERS_MAX + TRANSPORT_MAX].into_boxed_slice() })
    }
    /// Sends one packet with identification 0, or says why it was dropped.
    pub fn send(&mut self, batch: &TxBatch, frame: &TxFrame, own: &Own) -> Result<(), Reason> {
        let flow = &frame.flow;
        let (src_port, len) = (own.src_port(flow), frame.udp_payload_len());
        let link = Link { src: own.mac, dst: MacAddr::default(), vlan: None };
        let template = Template::new(&link, flow, src_port, ROCE_UDP_PORT).ok_or(Reason::SendFailed)?;
        let mut seal = Seal::new(flow.src, flow.dst, src_port, ROCE_UDP_PORT).ok_or(Reason::SendFailed)?;
        let head = template.header_len();
        let packet = self.packet.get_mut(..head + len).ok_or(Reason::SendTooLong)?;
        template.write(packet, 0, len, UdpChecksum::Zero);
        if !write(&mut packet[head..], batch, frame, Some(&mut seal), 0) {
            return Err(Reason::SendFailed);
        }
        if template.is_v6() {
            template.complete_checksum(packet);
        }
        let fd = if template.is_v6() { self.v6.as_ref().ok_or(Reason::NoRoute)? } else { &self.v4 };
        let to = SockAddr::from_parts(&flow.dst, 0, flow.scope);
        sys::send_to(fd, &packet[template.ip_at()..], &to).map_err(|error| reason(&error))
    }
}

fn reason(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        Some(libc::EHOSTUNREACH | libc::EHOSTDOWN) => Reason::NoNeighbour,
        Some(libc::ENETUNREACH | libc::EACCES) => Reason::NoRoute,
        Some(libc::EMSGSIZE) => Reason::SendTooLong,
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Reason::SendQueueFull,
        _ => Reason::SendFailed,
    }
}
