//! Objects that are deleted in parts when their program ends.

use crate::urma::endpoint::UrmaImport;
use crate::urma::endpoint_slot::EndpointSlot;
use burst_ubwire::Cna;

/// An object that ends with its program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UrmaLeaving {
    Segment(u32),
    RemoteSegment(u32, Cna),
    Target(u32, Cna),
}

impl UrmaLeaving {
    /// Deletes the object. What is under way keeps no reference to it: it finds that it is gone.
    pub fn end(self, context: u32, slot: &mut EndpointSlot) {
        let endpoint = &mut slot.endpoint;
        // None is refused, as they are the program's own.
        match self {
            UrmaLeaving::Segment(number) => _ = endpoint.node.unregister_segment(number),
            UrmaLeaving::RemoteSegment(number, cna) => {
                let _ = endpoint.node.unimport_segment(number);
                endpoint.end_import(cna, UrmaImport::Segment(context, number));
            }
            UrmaLeaving::Target(number, cna) => {
                let _ = endpoint.node.unimport_jetty(number);
                endpoint.end_import(cna, UrmaImport::Jetty(context, number));
            }
        }
    }
}
