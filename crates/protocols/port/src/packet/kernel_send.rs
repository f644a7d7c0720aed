//! Sends packets to unresolved next hops through the kernel, by raw IP sockets, with the port's own headers.
//!
//! The kernel solicits the neighbour, queues a few packets meanwhile, and takes its own route. A netlink event reports a
//! neighbour that has failed ([`super::route_cache`]).

use super::LocalLink;
use crate::PortError;
use crate::ether::{HEADERS_MAX, HeaderTemplate, LinkHeader, TRANSPORT_MAX, UdpChecksum};
use crate::sys::packet as sys;
use crate::sys::socket::SockAddr;
use crate::tx_train::write;
use burst_base::Reason;
use burst_frame::{TxBatch, TxFrame};
use burst_wire::MacAddr;
use std::io;
use std::os::fd::OwnedFd;

/// Send buffer of these sockets in bytes; few packets are sent through them.
const SNDBUF: u32 = 1 << 20;

/// The raw sockets.
pub struct KernelSender {
    v4: OwnedFd,
    /// `None` on a host without IPv6.
    v6: Option<OwnedFd>,
    /// Buffer for one packet.
    packet: Box<[u8]>,
}

impl KernelSender {
    /// Opens the sockets, bound to interface `device`.
    ///
    /// # Errors
    /// The kernel's error for IPv4.
    pub fn open(device: &str) -> Result<KernelSender, PortError> {
        let v4 = sys::open_raw(false, device, SNDBUF)
            .map_err(|e| PortError::from_io(format!("open a raw socket on {device}"), e))?;
        let v6 = sys::open_raw(true, device, SNDBUF).ok();
        Ok(KernelSender { v4, v6, packet: vec![0; HEADERS_MAX + TRANSPORT_MAX].into_boxed_slice() })
    }
    /// Sends one packet with IPv4 identification 0.
    ///
    /// # Errors
    /// The reason why the packet was dropped.
    pub fn send(&mut self, batch: &TxBatch, frame: &TxFrame, own: &LocalLink) -> Result<(), Reason> {
        let flow = &frame.flow;
        let (src_port, len) = (own.src_port(flow), frame.udp_payload_len());
        let link = LinkHeader { src: own.mac, dst: MacAddr::default(), vlan: None };
        let template =
            HeaderTemplate::new(&link, flow, src_port, own.encapsulation.udp_port).ok_or(Reason::SendFailed)?;
        let mut seal = own.encapsulation.seal(flow.src, flow.dst, src_port).ok_or(Reason::SendFailed)?;
        let head = template.header_len();
        let packet = self.packet.get_mut(..head + len).ok_or(Reason::SendTooLong)?;
        template.write(packet, 0, len, UdpChecksum::Zero);
        if !write(&mut packet[head..], batch, frame, own.encapsulation.is_sealed().then_some(&mut seal), 0) {
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

/// The drop reason for an error of `sendto`.
fn reason(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        Some(libc::EHOSTUNREACH | libc::EHOSTDOWN) => Reason::NoNeighbour,
        Some(libc::ENETUNREACH | libc::EACCES) => Reason::NoRoute,
        Some(libc::EMSGSIZE) => Reason::SendTooLong,
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Reason::SendQueueFull,
        _ => Reason::SendFailed,
    }
}
