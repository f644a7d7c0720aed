//! Objects that are deleted in parts when their program ends.

use crate::urma::endpoint_slot::EndpointSlot;
use crate::urma::tenant::ByNumber;
use burst_urma::NodeEid;
use std::collections::{HashSet, hash_map, hash_set};

/// Segments and imports of a program that has ended. They are taken one by one: a list of them would be made in one step, however
/// many they are.
#[derive(Debug)]
pub(crate) struct LeavingObjects {
    segments: hash_set::IntoIter<u32>,
    remote_segments: hash_map::IntoIter<u32, NodeEid>,
    targets: hash_map::IntoIter<u32, NodeEid>,
}

impl LeavingObjects {
    pub fn new(
        segments: HashSet<u32>,
        remote_segments: ByNumber<NodeEid>,
        targets: ByNumber<NodeEid>,
    ) -> LeavingObjects {
        LeavingObjects {
            segments: segments.into_iter(),
            remote_segments: remote_segments.into_iter(),
            targets: targets.into_iter(),
        }
    }
}

impl Iterator for LeavingObjects {
    type Item = UrmaLeaving;

    fn next(&mut self) -> Option<UrmaLeaving> {
        let segment = self.segments.next().map(UrmaLeaving::Segment);
        let remote = || self.remote_segments.next().map(|(number, peer)| UrmaLeaving::RemoteSegment(number, peer));
        let target = || self.targets.next().map(|(number, peer)| UrmaLeaving::Target(number, peer));
        segment.or_else(remote).or_else(target)
    }
}

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
