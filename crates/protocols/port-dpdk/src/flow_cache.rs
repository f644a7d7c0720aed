//! Caches the headers, the next hop's state and the seal of the flows that were sent last. A direct-mapped table: two flows with
//! the same hash replace each other.

use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use burst_port::Encapsulation;
use burst_port::ether::{HeaderTemplate, IcrcSeal, LinkHeader};
use burst_port::lan::{Lan, LanNeighbour, SendFrame};
use burst_wire::MacAddr;

/// Slots of the table: enough for the queue pairs of a busy port, each of which is a flow. The table takes 200 KB.
const SLOTS: usize = 1024;

/// A cached flow.
#[derive(Clone, Copy)]
pub struct CachedFlow {
    flow: Flow,
    /// [`Lan::version`] when the entry was made.
    version: u32,
    /// Headers; without the destination's MAC address while the next hop is incomplete.
    pub template: HeaderTemplate,
    /// Seal of the packets.
    pub seal: IcrcSeal,
    /// Whether the next hop is incomplete, so that frames must wait.
    pub is_incomplete: bool,
    /// Whether the neighbour table has noted this flow's use since the last [`FlowCache::report_use`].
    reported: bool,
}

/// The table of flows.
pub struct FlowCache {
    slots: Vec<Option<CachedFlow>>,
    encapsulation: Encapsulation,
}

impl FlowCache {
    /// An empty table.
    pub fn new(encapsulation: &Encapsulation) -> FlowCache {
        FlowCache { slots: vec![None; SLOTS], encapsulation: *encapsulation }
    }

    /// The entry of `flow`. It is made now if it is missing, if an address on the LAN has changed, or if its next hop was
    /// incomplete.
    ///
    /// # Errors
    /// The reason why no packet can be sent to the destination.
    #[inline]
    pub fn find(
        &mut self,
        now: Nanos,
        flow: &Flow,
        lan: &mut Lan,
        send: SendFrame<'_>,
    ) -> Result<&mut CachedFlow, Reason> {
        let encapsulation = &self.encapsulation;
        let slot = &mut self.slots[hash(flow)];
        let is_valid = |f: &CachedFlow| f.version == lan.version() && f.flow == *flow && !f.is_incomplete;
        if !slot.as_ref().is_some_and(is_valid) {
            *slot = Some(make(encapsulation, now, flow, lan, send)?);
        }
        let cached = slot.as_mut().ok_or(Reason::SendFailed)?;
        debug_assert!(cached.flow == *flow);
        if !cached.reported {
            cached.reported = true;
            lan.used(flow.dst);
        }
        Ok(cached)
    }

    /// Makes the next packet of each flow tell the neighbour table again that the next hop is in use.
    pub fn report_use(&mut self) {
        self.slots.iter_mut().flatten().for_each(|cached| cached.reported = false);
    }
}

/// Hash of a flow. The flows of many queue pairs to one peer differ in the source port.
#[inline]
fn hash(flow: &Flow) -> usize {
    let peer = match flow.dst {
        std::net::IpAddr::V4(ip) => u32::from(ip),
        std::net::IpAddr::V6(ip) => u128::from(ip) as u32,
    };
    let mixed = (peer ^ u32::from(flow.src_port) << 8 ^ u32::from(flow.tos)).wrapping_mul(0x9e37_79b1);
    mixed as usize >> 22 & (SLOTS - 1)
}

/// Makes the entry of a flow.
#[cold]
fn make(
    encapsulation: &Encapsulation,
    now: Nanos,
    flow: &Flow,
    lan: &mut Lan,
    send: SendFrame<'_>,
) -> Result<CachedFlow, Reason> {
    if !lan.host().owns(flow.src) {
        return Err(Reason::SendFailed);
    }
    let (dst, is_incomplete) = match lan.neighbour(now, flow.dst, send)? {
        LanNeighbour::Resolved(mac) => (mac, false),
        LanNeighbour::Incomplete => (MacAddr::default(), true),
        LanNeighbour::Failed => return Err(Reason::NoNeighbour),
    };
    let link = LinkHeader { src: lan.host().mac, dst, vlan: None };
    let src_port = encapsulation.src_port(flow.src_port);
    let template = HeaderTemplate::new(&link, flow, src_port, encapsulation.udp_port).ok_or(Reason::SendFailed)?;
    let seal = encapsulation.seal(flow.src, flow.dst, src_port).ok_or(Reason::SendFailed)?;
    Ok(CachedFlow { flow: *flow, version: lan.version(), template, seal, is_incomplete, reported: false })
}
