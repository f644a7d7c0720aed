//! Packets that workers have kept of a queue pair or Jetty, for `burst why QPN --pcap`: a user gets those of its own only.

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_base::{DeviceId, Qpn};
use burst_control::capture::{CAPTURE_MESSAGE_HEAD, CAPTURED_HEAD};
use burst_control::failures::{FailureKind, FailureRecord, KeptPackets, PacketOwner};
use burst_control::{MESSAGE_MAX, Refusal, Response};
use burst_engine::qpn::worker_of;
use burst_engine::ring::{
    EXCERPT_PACKETS, KEPT_BYTES, KeptPacket, OwnedSince, RING_SLOTS, RingOwner, RingQuery, SCANNED,
};
use std::time::{SystemTime, UNIX_EPOCH};

const _: () = assert!(EXCERPT_PACKETS * (CAPTURED_HEAD + KEPT_BYTES) + 1024 < MESSAGE_MAX, "an excerpt fits a message");

/// A user's object whose packets are asked for.
struct KeptOf {
    worker: usize,
    device: DeviceId,
    owner: RingOwner,
    uid: u32,
    /// Since when it has its number, if it is a queue pair that is there now. Only then is the present ring asked, because a
    /// number may be another's now.
    since: Option<OwnedSince>,
}

impl Host {
    /// The packets of a queue pair or Jetty up to its failure; of a queue pair that is there as many as the ring has, if none
    /// were kept.
    ///
    /// # Errors
    /// EOPNOTSUPP if packets are not kept, ENOENT if the user has no such object and never had, or of a Jetty if none has failed.
    pub(crate) fn kept_packets(&mut self, viewer: u32, of: PacketOwner) -> Result<ReplyParts, Refusal> {
        let Some(KeptOf { worker, device, owner, uid, since }) = self.object_of(viewer, of) else {
            return match of {
                PacketOwner::QueuePair(number) => {
                    refuse(libc::ENOENT, format!("no queue pair of yours has or had the number {number:#x}"))
                }
                PacketOwner::Jetty(id) => {
                    refuse(libc::ENOENT, format!("no request of a Jetty of yours with the id {id} has failed"))
                }
            };
        };
        let Some(written) = self.on_worker(worker, |w, _| w.packets_written()) else {
            return refuse(
                libc::EOPNOTSUPP,
                "packets are not kept: set packet_ring to on (burstd --packet-ring, or BURST_PACKET_RING=on for a \
                 program with an engine of its own)",
            );
        };
        let failed = self.on_worker(worker, move |w, _| w.failed_packets(owner, uid));
        let is_failed = failed.is_some();
        let present = since.map(|since| RingQuery { device, owner, since });
        let packets = failed.or_else(|| present.map(|of| self.ring_packets(worker, of, written))).unwrap_or_default();
        debug_assert!(packets.len() <= EXCERPT_PACKETS, "more packets than a message holds");
        let real = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let offset = real.wrapping_sub(self.now().0);
        let mut message = vec![0; CAPTURE_MESSAGE_HEAD];
        packets.iter().for_each(|packet| packet.append_to(&mut message, offset));
        let device = device.index() as u32;
        Ok(Response::KeptPackets(KeptPackets { device, is_failed, message }).into())
    }

    /// The newest object with this number that the viewer may see. One that has failed comes first: only its user's packets
    /// were copied.
    fn object_of(&self, viewer: u32, of: PacketOwner) -> Option<KeptOf> {
        match of {
            PacketOwner::QueuePair(number) => {
                let first = self.on_worker(0, |w, _| w.id());
                let worker = worker_of(Qpn::new(number)).checked_sub(first).map(|at| at as usize)?;
                (worker < self.workers().len()).then(|| self.queue_pair_of(viewer, worker, number)).flatten()
            }
            PacketOwner::Jetty(id) => {
                (0..self.workers().len()).find_map(|worker| self.failed_jetty_of(viewer, worker, id))
            }
        }
    }

    fn queue_pair_of(&self, viewer: u32, worker: usize, number: u32) -> Option<KeptOf> {
        let qpn = Qpn::new(number);
        let mut records: Vec<FailureRecord> = self.on_worker(worker, |w, now| w.failures(now));
        records.extend(self.on_worker(worker, move |w, now| w.present(now, qpn)));
        let of_qp = |record: &FailureRecord| record.qp.as_ref().is_some_and(|qp| qp.qpn == number);
        records.retain(|record| of_qp(record) && self.authority.may_see(viewer, Some(record.program.uid)));
        let is_present = records.iter().any(|record| record.kind == FailureKind::Present);
        let newest = records.iter().min_by_key(|record| (record.kind == FailureKind::Present, record.ago_ns))?;
        let device = DeviceId::from_index(newest.qp.as_ref()?.device as usize);
        let since = is_present.then(|| self.on_worker(worker, move |w, _| w.owned_since(qpn))).flatten();
        Some(KeptOf { worker, device, owner: RingOwner::QueuePair(number), uid: newest.program.uid, since })
    }

    fn failed_jetty_of(&self, viewer: u32, worker: usize, id: u32) -> Option<KeptOf> {
        let records: Vec<FailureRecord> = self.on_worker(worker, |w, now| w.failures(now));
        let of_jetty = records.iter().filter(|record| record.jetty.as_ref().is_some_and(|jetty| jetty.jetty == id));
        let seen = of_jetty.filter(|record| self.authority.may_see(viewer, Some(record.program.uid)));
        let newest = seen.min_by_key(|record| record.ago_ns)?;
        let jetty = newest.jetty.as_ref()?;
        let (device, owner) = (DeviceId::from_index(jetty.device as usize), RingOwner::Jetty(id, jetty.local));
        Some(KeptOf { worker, device, owner, uid: newest.program.uid, since: None })
    }

    /// Its last packets in the ring. The worker looks at a part of the ring at a time and serves packets between.
    fn ring_packets(&self, worker: usize, of: RingQuery, written: usize) -> Vec<KeptPacket> {
        let mut parts = Vec::new();
        let (mut end, mut room) = (written, EXCERPT_PACKETS);
        for _ in 0..RING_SLOTS / SCANNED {
            let part = self.on_worker(worker, move |w, _| w.ring_packets(of, end, room));
            (end, room) = (end.saturating_sub(SCANNED), room - part.len());
            parts.push(part);
            if room == 0 || end == 0 {
                break;
            }
        }
        parts.into_iter().rev().flatten().collect()
    }
}
