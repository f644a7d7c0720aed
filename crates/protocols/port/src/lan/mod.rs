//! The network functions of a host, for ports that own their interface and so have no kernel that performs them.
//!
//! - [`host`]: addresses with their prefixes, gateways, the next hop to a destination;
//! - [`neighbours`]: the neighbour table: solicitations, retries, confirmation, frames that wait for a neighbour;
//! - `message`: ARP (RFC 826), neighbour discovery (RFC 4861) and ICMP echo, by smoltcp's wire types.
//!
//! [`Lan`] joins them for one worker. The workers of a port share the addresses that they learn
//! ([`neighbours::SharedNeighbours`]), because an advertisement arrives at whichever queue the device chooses. Not implemented:
//! duplicate address detection, router advertisements, redirects, multicast listener reports; addresses and gateways are
//! configured, not discovered.
#![forbid(unsafe_code)]

pub mod host;
mod message;
pub mod neighbours;

pub use host::{LanHost, Prefix};
pub use neighbours::{LanNeighbour, SharedNeighbours};

use burst_base::{Nanos, Reason};
use burst_wire::MacAddr;
use message::LanMessage;
use neighbours::{NeighbourTable, Solicitation};
use std::net::IpAddr;
use std::sync::Arc;

/// Takes a frame that the host sends.
pub type SendFrame<'a> = &'a mut dyn FnMut(&[u8]);

/// One worker's addresses, neighbours and messages on the LAN.
pub struct Lan {
    host: Arc<LanHost>,
    neighbours: NeighbourTable,
    /// Buffer for a message to send.
    frame: Vec<u8>,
}

impl Lan {
    /// `frame_max`: bytes of the longest frame that can wait for a neighbour.
    pub fn new(host: Arc<LanHost>, shared: Arc<SharedNeighbours>, frame_max: usize) -> Lan {
        let neighbours = NeighbourTable::new(shared, frame_max);
        Lan { host, neighbours, frame: Vec::with_capacity(frame_max) }
    }

    /// The addresses and gateways of this host.
    pub fn host(&self) -> &LanHost {
        &self.host
    }

    /// The same, for use beside the LAN.
    pub fn shared_host(&self) -> Arc<LanHost> {
        self.host.clone()
    }

    /// A number that changes whenever a result of [`Lan::neighbour`] may have changed.
    #[inline]
    pub fn version(&self) -> u32 {
        self.neighbours.version()
    }

    /// The state of the next hop to `dst`; an unknown next hop is solicited. While it is incomplete, frames can wait
    /// ([`Lan::enqueue`]).
    ///
    /// # Errors
    /// [`Reason::NoRoute`] when neither a prefix nor a gateway leads to `dst`.
    pub fn neighbour(&mut self, now: Nanos, dst: IpAddr, send: SendFrame<'_>) -> Result<LanNeighbour, Reason> {
        if let Some(mac) = host::multicast_mac(dst) {
            return Ok(LanNeighbour::Resolved(mac));
        }
        let hop = self.host.next_hop(dst).ok_or(Reason::NoRoute)?;
        let (state, solicitation) = self.neighbours.find(now, hop);
        if let Some(solicitation) = solicitation {
            self.solicit(&solicitation, send);
        }
        Ok(state)
    }

    /// Notes that packets are still sent to `dst`, so that its next hop is kept in the table.
    pub fn used(&mut self, dst: IpAddr) {
        if let Some(hop) = self.host.next_hop(dst) {
            self.neighbours.used(hop);
        }
    }

    /// Queues a frame to `dst` until its next hop is resolved. False if there is no room.
    #[must_use]
    pub fn enqueue(&mut self, dst: IpAddr, frame: &[u8]) -> bool {
        self.host.next_hop(dst).is_some_and(|hop| self.neighbours.enqueue(hop, frame))
    }

    /// Handles a received frame that is not of a transport: learns from it and answers it. False if it is not for this host.
    pub fn receive(&mut self, now: Nanos, frame: &[u8], send: SendFrame<'_>) -> bool {
        match message::receive(&self.host, frame, &mut self.frame) {
            LanMessage::NotForUs => return false,
            LanMessage::Request { from: None } => send(&self.frame),
            LanMessage::Request { from: Some((ip, mac)) } => {
                send(&self.frame);
                self.neighbours.learn_from_request(now, ip, mac, send);
            }
            LanMessage::Advertisement { ip, mac } => self.neighbours.learn(now, ip, mac, send),
            LanMessage::Ignored => {}
        }
        true
    }

    /// Takes over the addresses that other workers have learnt. One atomic load if there are none.
    #[inline]
    pub fn follow(&mut self, now: Nanos, send: SendFrame<'_>) {
        self.neighbours.follow(now, send);
    }

    /// Sends the solicitations that are due; `dropped` is called for each frame whose neighbour has failed.
    pub fn tick(&mut self, now: Nanos, send: SendFrame<'_>, dropped: &mut dyn FnMut(Reason)) {
        while let Some(solicitation) = self.neighbours.due(now, dropped) {
            self.solicit(&solicitation, send);
        }
    }

    /// When [`Lan::tick`] is to be called.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.neighbours.next_event()
    }

    /// Announces all addresses on the link (gratuitous ARP, unsolicited neighbour advertisements).
    pub fn announce(&mut self, send: SendFrame<'_>) {
        for prefix in &self.host.addrs {
            message::announcement(&self.host, prefix.ip, &mut self.frame);
            send(&self.frame);
        }
    }

    fn solicit(&mut self, solicitation: &Solicitation, send: SendFrame<'_>) {
        if message::solicitation(&self.host, solicitation.ip, solicitation.mac, &mut self.frame) {
            send(&self.frame);
        }
    }
}

/// Whether a frame to the MAC address `dst` is for the host with the MAC address `own`; multicast and broadcast are.
#[inline]
pub fn is_for(own: MacAddr, dst: MacAddr) -> bool {
    dst == own || dst.is_multicast()
}

#[cfg(test)]
mod tests;
