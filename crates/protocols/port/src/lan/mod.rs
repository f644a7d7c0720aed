//! A host on a LAN: what a port does that owns its interface, because no kernel does it there.
//!
//! - [`host`]: addresses with their prefixes, gateways, the way to a destination;
//! - [`neighbours`]: who has which MAC address: asking, retries, refresh, frames that wait for an answer;
//! - `message`: ARP (RFC 826), neighbour discovery (RFC 4861) and ICMP echo, by smoltcp's wire types.
//!
//! [`Lan`] puts them together for one worker. Workers of one port share what they learn ([`neighbours::Shared`]): an
//! answer arrives at whichever queue the device chooses. Not here: duplicate address detection, router advertisements,
//! redirects, multicast listener reports; addresses and gateways are told, not found.
#![forbid(unsafe_code)]

pub mod host;
mod message;
pub mod neighbours;

pub use host::{Host, Prefix};
pub use neighbours::{Neighbour, Shared};

use burst_base::{Nanos, Reason};
use burst_wire::MacAddr;
use message::Heard;
use neighbours::{Ask, Neighbours};
use std::net::IpAddr;
use std::sync::Arc;

/// Takes frames that the host wants to send.
pub type Send<'a> = &'a mut dyn FnMut(&[u8]);

/// One worker's view of the LAN.
pub struct Lan {
    host: Arc<Host>,
    neighbours: Neighbours,
    /// For a frame of our own.
    frame: Vec<u8>,
}

impl Lan {
    /// `frame_max`: longest frame that may have to wait for a neighbour.
    pub fn new(host: Arc<Host>, shared: Arc<Shared>, frame_max: usize) -> Lan {
        let neighbours = Neighbours::new(shared, frame_max);
        Lan { host, neighbours, frame: Vec::with_capacity(frame_max) }
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Changes whenever an answer of [`Lan::neighbour`] may have changed.
    #[inline]
    pub fn version(&self) -> u32 {
        self.neighbours.version()
    }

    /// The MAC address that leads to `dst`. While it is being asked for, frames may wait ([`Lan::hold`]).
    ///
    /// # Errors
    /// [`Reason::NoRoute`] without a prefix or gateway for it.
    pub fn neighbour(&mut self, now: Nanos, dst: IpAddr, send: Send<'_>) -> Result<Neighbour, Reason> {
        if let Some(mac) = host::multicast_mac(dst) {
            return Ok(Neighbour::Known(mac));
        }
        let hop = self.host.next_hop(dst).ok_or(Reason::NoRoute)?;
        let (found, ask) = self.neighbours.find(now, hop);
        if let Some(ask) = ask {
            self.ask(&ask, send);
        }
        Ok(found)
    }

    /// Somebody still sends to `dst` without asking for its address again.
    pub fn used(&mut self, dst: IpAddr) {
        if let Some(hop) = self.host.next_hop(dst) {
            self.neighbours.used(hop);
        }
    }

    /// Keeps a frame to `dst` until its neighbour answers. False if there is no room.
    #[must_use]
    pub fn hold(&mut self, dst: IpAddr, frame: &[u8]) -> bool {
        self.host.next_hop(dst).is_some_and(|hop| self.neighbours.hold(hop, frame))
    }

    /// A received frame that is not RoCEv2: learns from it, answers it. False if it was not for this host.
    pub fn hear(&mut self, now: Nanos, frame: &[u8], send: Send<'_>) -> bool {
        match message::hear(&self.host, frame, &mut self.frame) {
            Heard::Nothing => return false,
            Heard::Request { from: None } => send(&self.frame),
            Heard::Request { from: Some((ip, mac)) } => {
                send(&self.frame);
                self.neighbours.meet(now, ip, mac, send);
            }
            Heard::Answer { ip, mac } => self.neighbours.learn(now, ip, mac, send),
            Heard::Other => {}
        }
        true
    }

    /// Takes over what other workers have learnt. Cheap if that is nothing.
    #[inline]
    pub fn follow(&mut self, now: Nanos, send: Send<'_>) {
        self.neighbours.follow(now, send);
    }

    /// Asks again, refreshes, gives up; frames that waited in vain are reported.
    pub fn tick(&mut self, now: Nanos, send: Send<'_>, dropped: &mut dyn FnMut(Reason)) {
        while let Some(ask) = self.neighbours.due(now, dropped) {
            self.ask(&ask, send);
        }
    }

    /// When [`Lan::tick`] has something to do.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.neighbours.next_event()
    }

    /// Tells everybody which addresses are here (gratuitous ARP, unsolicited neighbour advertisements).
    pub fn announce(&mut self, send: Send<'_>) {
        for prefix in &self.host.addrs {
            message::announcement(&self.host, prefix.ip, &mut self.frame);
            send(&self.frame);
        }
    }

    fn ask(&mut self, ask: &Ask, send: Send<'_>) {
        if message::question(&self.host, ask.ip, ask.mac, &mut self.frame) {
            send(&self.frame);
        }
    }
}

/// Whether a frame with this destination is for a host with this MAC address.
#[inline]
pub fn is_for(own: MacAddr, dst: MacAddr) -> bool {
    dst == own || dst.is_multicast()
}

#[cfg(test)]
mod tests;
