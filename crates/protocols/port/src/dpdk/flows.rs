//! The flows last sent: headers, whether the next hop is known, the ICRC's beginning. A table with one place per hash:
//! flows that collide make their headers again.

use crate::ROCE_UDP_PORT;
use crate::ether::{Link, Seal, Template};
use crate::lan::{Lan, Neighbour, Send};
use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use burst_wire::MacAddr;

/// Places: enough for the queue pairs of a busy port, each of which is a flow; 200 KB.
const PLACES: usize = 1024;

/// What is known of a flow.
#[derive(Clone, Copy)]
pub struct Place {
    flow: Flow,
    /// [`Lan::version`] when it was made.
    version: u32,
    /// Headers; without the destination's MAC while the neighbour is being asked.
    pub template: Template,
    /// ICRC.
    pub seal: Seal,
    /// Whether frames must wait for the neighbour's answer.
    pub waits: bool,
    /// Somebody has sent by it since the neighbour was last told.
    touched: bool,
}

/// See the module.
pub struct Flows {
    places: Vec<Option<Place>>,
}

impl Flows {
    /// An empty table.
    pub fn new() -> Flows {
        Flows { places: vec![None; PLACES] }
    }

    /// The place of `flow`, made now if it is not there or the LAN has changed.
    ///
    /// # Errors
    /// Why nothing can be sent to it.
    #[inline]
    pub fn find(&mut self, now: Nanos, flow: &Flow, lan: &mut Lan, send: Send<'_>) -> Result<&mut Place, Reason> {
        let place = &mut self.places[hash(flow)];
        let good = place.as_ref().is_some_and(|p| p.version == lan.version() && p.flow == *flow && !p.waits);
        if !good {
            *place = Some(make(now, flow, lan, send)?);
        }
        let place = place.as_mut().ok_or(Reason::SendFailed)?;
        if !place.touched {
            place.touched = true;
            lan.used(flow.dst);
        }
        Ok(place)
    }

    /// Neighbours want to know again who is in use.
    pub fn untouch(&mut self) {
        self.places.iter_mut().flatten().for_each(|p| p.touched = false);
    }
}

/// Flows of many queue pairs to one peer differ in the source port.
#[inline]
fn hash(flow: &Flow) -> usize {
    let peer = match flow.dst {
        std::net::IpAddr::V4(ip) => u32::from(ip),
        std::net::IpAddr::V6(ip) => u128::from(ip) as u32,
    };
    let mixed = (peer ^ u32::from(flow.src_port) << 8 ^ u32::from(flow.tos)).wrapping_mul(0x9e37_79b1);
    mixed as usize >> 22 & (PLACES - 1)
}

#[cold]
fn make(now: Nanos, flow: &Flow, lan: &mut Lan, send: Send<'_>) -> Result<Place, Reason> {
    if !lan.host().owns(flow.src) {
        return Err(Reason::SendFailed);
    }
    let (dst, waits) = match lan.neighbour(now, flow.dst, send)? {
        Neighbour::Known(mac) => (mac, false),
        Neighbour::Asked => (MacAddr::default(), true),
        Neighbour::Silent => return Err(Reason::NoNeighbour),
    };
    let link = Link { src: lan.host().mac, dst, vlan: None };
    let src_port = if flow.src_port == 0 { ROCE_UDP_PORT } else { flow.src_port };
    let template = Template::new(&link, flow, src_port, ROCE_UDP_PORT).ok_or(Reason::SendFailed)?;
    let seal = Seal::new(flow.src, flow.dst, src_port, ROCE_UDP_PORT).ok_or(Reason::SendFailed)?;
    Ok(Place { flow: *flow, version: lan.version(), template, seal, waits, touched: false })
}
