//! Objects that are deleted in parts when their program ends.

use crate::urma::endpoint_slot::EndpointSlot;
use crate::urma::tenant::{ByNumber, TenantJfc};
use burst_urma::NodeEid;
use std::collections::{HashSet, hash_map, hash_set};

/// Segments, imports and completion queues of a program that has ended. They are taken one by one: a list of them would be made
/// in one step, however many they are. A completion queue has no owner any more from then on, and is deleted after what uses it.
#[derive(Default)]
pub(crate) struct LeavingObjects {
    segments: hash_set::IntoIter<u32>,
    remote_segments: hash_map::IntoIter<u32, NodeEid>,
    targets: hash_map::IntoIter<u32, NodeEid>,
    jfcs: hash_map::IntoIter<u32, TenantJfc>,
    ended_jfcs: Vec<u32>,
}

impl LeavingObjects {
    pub fn new(
        segments: HashSet<u32>,
        remote_segments: ByNumber<NodeEid>,
        targets: ByNumber<NodeEid>,
        jfcs: ByNumber<TenantJfc>,
    ) -> LeavingObjects {
        LeavingObjects {
            segments: segments.into_iter(),
            remote_segments: remote_segments.into_iter(),
            targets: targets.into_iter(),
            jfcs: jfcs.into_iter(),
            ended_jfcs: Vec::new(),
        }
    }
    /// The completion queues that were taken, to be deleted.
    pub fn take_ended_jfcs(&mut self) -> Vec<u32> {
        debug_assert!(self.jfcs.len() == 0, "completion queues have owners");
        std::mem::take(&mut self.ended_jfcs)
    }
}

impl Iterator for LeavingObjects {
    type Item = UrmaLeaving;

    fn next(&mut self) -> Option<UrmaLeaving> {
        let segment = self.segments.next().map(UrmaLeaving::Segment);
        let remote = || self.remote_segments.next().map(|(number, peer)| UrmaLeaving::RemoteSegment(number, peer));
        let target = || self.targets.next().map(|(number, peer)| UrmaLeaving::Target(number, peer));
        let jfcs = &mut self.ended_jfcs;
        let jfc =
            || self.jfcs.next().map(|(number, _)| number).inspect(|number| jfcs.push(*number)).map(UrmaLeaving::Jfc);
        segment.or_else(remote).or_else(target).or_else(jfc)
    }
}

/// An object that ends with its program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UrmaLeaving {
    Segment(u32),
    RemoteSegment(u32, NodeEid),
    Target(u32, NodeEid),
    Jfc(u32),
}

impl UrmaLeaving {
    /// Deletes the object. What is under way keeps no reference to it: it finds that it is gone.
    pub fn end(self, slot: &mut EndpointSlot) {
        let endpoint = &mut slot.endpoint;
        // None is refused, as they are the program's own.
        match self {
            UrmaLeaving::Segment(number) => _ = endpoint.node.unregister_segment(number),
            UrmaLeaving::Jfc(number) => _ = slot.owners.remove(&number),
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
