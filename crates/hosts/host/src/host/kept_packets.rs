//! Packets that workers have kept of a queue pair or Jetty, for `burst why QPN --pcap`: a user gets those of its own only.

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_base::{DeviceId, Qpn};
use burst_control::capture::{CAPTURE_MESSAGE_HEAD, CAPTURED_HEAD};
use burst_control::failures::{FailureKind, FailureRecord, KeptPackets, PacketOwner};
use burst_control::{MESSAGE_MAX, Refusal, Response};
use burst_engine::qpn::worker_of;
use burst_engine::ring::{EXCERPT_PACKETS, KEPT_BYTES, KeptPacket, RING_SLOTS, SCANNED};
use std::time::{SystemTime, UNIX_EPOCH};

const _: () = assert!(EXCERPT_PACKETS * (CAPTURED_HEAD + KEPT_BYTES) + 1024 < MESSAGE_MAX, "an excerpt fits a message");

/// Where the packets of a user's object are.
struct KeptAt {
    worker: usize,
    device: DeviceId,
    uid: u32,
}

impl Host {
    /// The packets of a queue pair up to its failure, or as many as the ring has now; those of a Jetty only if a request of it
    /// has failed.
    ///
    /// # Errors
    /// EOPNOTSUPP if packets are not kept, ENOENT if the user has no such object and never had, or of a Jetty if none has failed.
    pub(crate) fn kept_packets(&mut self, viewer: u32, of: PacketOwner) -> Result<ReplyParts, Refusal> {
        let Some(KeptAt { worker, device, uid }) = self.place_of(viewer, of) else {
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
        let failed = self.on_worker(worker, move |w, _| w.failed_packets(of, uid));
        let is_failed = failed.is_some();
        let packets = failed.unwrap_or_else(|| self.ring_packets(worker, (device, of), written));
        debug_assert!(packets.len() <= EXCERPT_PACKETS, "more packets than a message holds");
        let real = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let offset = real.wrapping_sub(self.now().0);
        let mut message = vec![0; CAPTURE_MESSAGE_HEAD];
        packets.iter().for_each(|packet| packet.append_to(&mut message, offset));
        let device = device.index() as u32;
        Ok(Response::KeptPackets(KeptPackets { device, is_failed, message }).into())
    }

    /// Where the newest object with this number is that the viewer may see. One that has failed comes first: only its user's
    /// packets were copied.
    fn place_of(&self, viewer: u32, of: PacketOwner) -> Option<KeptAt> {
        match of {
            PacketOwner::QueuePair(number) => {
                let qpn = Qpn::new(number);
                let first = self.on_worker(0, |w, _| w.id());
                let worker = worker_of(qpn).checked_sub(first).map(|at| at as usize)?;
                (worker < self.workers().len()).then(|| self.place_on(viewer, worker, of)).flatten()
            }
            PacketOwner::Jetty(_) => (0..self.workers().len()).find_map(|worker| self.place_on(viewer, worker, of)),
        }
    }

    fn place_on(&self, viewer: u32, worker: usize, of: PacketOwner) -> Option<KeptAt> {
        let device_of = |record: &FailureRecord| match of {
            PacketOwner::QueuePair(qpn) => record.qp.as_ref().filter(|qp| qp.qpn == qpn).map(|qp| qp.device),
            PacketOwner::Jetty(id) => record.jetty.as_ref().filter(|j| j.jetty == id).map(|jetty| jetty.device),
        };
        let mut records: Vec<FailureRecord> = self.on_worker(worker, |w, now| w.failures(now));
        if let PacketOwner::QueuePair(number) = of {
            records.extend(self.on_worker(worker, move |w, now| w.present(now, Qpn::new(number))));
        }
        records
            .retain(|record| device_of(record).is_some() && self.authority.may_see(viewer, Some(record.program.uid)));
        let newest = records.iter().min_by_key(|record| (record.kind == FailureKind::Present, record.ago_ns))?;
        let device = DeviceId::from_index(device_of(newest)? as usize);
        Some(KeptAt { worker, device, uid: newest.program.uid })
    }

    /// Its last packets in the ring. The worker looks at a part of the ring at a time and serves packets between.
    fn ring_packets(&self, worker: usize, of: (DeviceId, PacketOwner), written: usize) -> Vec<KeptPacket> {
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
