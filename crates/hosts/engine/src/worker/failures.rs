//! Calls for `burst why`: records of failures, and a queue pair as it is now.

use crate::failures::FailureView;
use crate::ring::{KeptPacket, OwnedSince, RingOwner, RingQuery, SCANNED};
use crate::worker::Worker;
use burst_base::{DeviceId, Nanos, Qpn};
use burst_control::failures::FailureRecord;

impl Worker {
    /// The records of failures, in no order. Their ages are replaced by what has become of them since; what the peers of
    /// their paths have said since is added.
    pub fn failures(&self, now: Nanos) -> Vec<FailureRecord> {
        let of_connections = self.agent.failures();
        let mut all: Vec<FailureRecord> = self.core.outbox.failures.iter().chain(of_connections).cloned().collect();
        for record in &mut all {
            let at = Nanos(record.ago_ns);
            record.ago_ns = now.since(at).0;
            let (device, peer, of_path) = match (&mut record.qp, &mut record.jetty) {
                (Some(qp), _) => (qp.device, Some(qp.peer), &mut qp.path),
                (None, Some(jetty)) => (jetty.device, jetty.peer, &mut jetty.path),
                (None, None) => continue,
            };
            let path = peer.and_then(|peer| self.core.paths.find(DeviceId(device as u16), peer));
            if let (Some(path), Some(of_path)) = (path, of_path) {
                of_path.hello = self.core.paths[path as usize].hello.record(now, at);
            }
        }
        all
    }

    /// Packets that the worker has written to its ring; `None` without a ring.
    pub fn packets_written(&self) -> Option<usize> {
        self.core.outbox.excerpts.as_ref().map(|excerpts| excerpts.ring().written())
    }

    /// The packets of a user's queue pair or Jetty up to its failure, if they were copied then.
    pub fn failed_packets(&mut self, of: RingOwner, uid: u32) -> Option<Vec<KeptPacket>> {
        let excerpts = self.core.outbox.excerpts.as_mut()?;
        excerpts.take_due(Nanos::NEVER);
        excerpts.find(of, uid).map(|excerpt| excerpt.packets.clone())
    }

    /// The packets of a queue pair or Jetty in a part of the ring: of the [`SCANNED`] packets before number `end` the last
    /// `most`.
    pub fn ring_packets(&self, of: RingQuery, end: usize, most: usize) -> Vec<KeptPacket> {
        let ring = self.core.outbox.excerpts.as_ref().map(|excerpts| excerpts.ring());
        ring.map_or_else(Vec::new, |ring| ring.packets_of(of, end, SCANNED, most))
    }

    /// Since when a queue pair has its number.
    pub fn owned_since(&self, qpn: Qpn) -> Option<OwnedSince> {
        let index = self.core.slot(qpn)?.index;
        self.core.outbox.excerpts.as_ref().map(|excerpts| excerpts.owned_since(index))
    }

    /// What a queue pair is now, and its context's user.
    pub fn present(&mut self, now: Nanos, qpn: Qpn) -> Option<FailureRecord> {
        let slot = self.core.slot(qpn)?;
        let device = slot.device;
        let index = slot.index;
        let core = &mut self.core;
        let slot = core.qps.get(index as usize)?.as_deref()?;
        let counters = &self.ports[device.index()].counters;
        let view = FailureView { now, contexts: &core.contexts, paths: &mut core.paths, mem: &core.mem, counters };
        let mut record = view.record(slot, None);
        record.ago_ns = 0;
        Some(record)
    }
}
