//! Objects that are deleted in parts when their program ends.

use crate::urma::endpoint_slot::EndpointSlot;
use burst_urma::NodeEid;

/// An object that ends with its program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UrmaLeaving {
    Segment(u32),
    RemoteSegment(u32, NodeEid),
    Target(u32, NodeEid),
}

impl UrmaLeaving {
    /// Deletes the object. What is under way keeps no reference to it: it finds that it is gone.
    pub fn end(self, slot: &mut EndpointSlot) {
        let endpoint = &mut slot.endpoint;
        // None is refused, as they are the program's own.
        match self {
            UrmaLeaving::Segment(number) => _ = endpoint.node.unregister_segment(number),
            UrmaLeaving::RemoteSegment(number, peer) => {
                let _ = endpoint.node.unimport_segment(number);
                endpoint.end_import(peer);
            }
            UrmaLeaving::Target(number, peer) => {
                let _ = endpoint.node.unimport_jetty(number);
                endpoint.end_import(peer);
            }
        }
    }
}
