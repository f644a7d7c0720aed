//! Packets that workers have kept of a queue pair, for `burst why QPN --pcap`: a user gets those of its own queue pairs only.

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_base::{DeviceId, Qpn};
use burst_control::capture::{CAPTURE_MESSAGE_HEAD, CAPTURED_HEAD};
use burst_control::failures::{FailureKind, FailureRecord, KeptPackets};
use burst_control::{MESSAGE_MAX, Refusal, Response};
use burst_engine::qpn::worker_of;
use burst_engine::ring::{EXCERPT_PACKETS, KEPT_BYTES, KeptPacket, RING_SLOTS, SCANNED};
use std::time::{SystemTime, UNIX_EPOCH};

const _: () = assert!(EXCERPT_PACKETS * (CAPTURED_HEAD + KEPT_BYTES) + 1024 < MESSAGE_MAX, "an excerpt fits a message");

impl Host {
    /// The packets of a queue pair up to its failure, or as many as the ring has now.
    ///
    /// # Errors
    /// EOPNOTSUPP if packets are not kept, ENOENT if the user has no such queue pair and never had.
    pub(crate) fn kept_packets(&mut self, viewer: u32, number: u32) -> Result<ReplyParts, Refusal> {
        let qpn = Qpn::new(number);
        let first = self.on_worker(0, |w, _| w.id());
        let worker = worker_of(qpn).checked_sub(first).map(|at| at as usize).filter(|at| *at < self.workers().len());
        let record = worker.and_then(|worker| self.owner_record(viewer, worker, qpn));
        let (Some(worker), Some((device, uid))) = (worker, record) else {
            return refuse(libc::ENOENT, format!("no queue pair of yours has or had the number {number:#x}"));
        };
        let Some(written) = self.on_worker(worker, |w, _| w.packets_written()) else {
            return refuse(
                libc::EOPNOTSUPP,
                "packets are not kept: set packet_ring to on (burstd --packet-ring, or BURST_PACKET_RING=on for a \
                 program with an engine of its own)",
            );
        };
        let failed = self.on_worker(worker, move |w, _| w.failed_packets(qpn, uid));
        let is_failed = failed.is_some();
        let packets = failed.unwrap_or_else(|| self.ring_packets(worker, (device, qpn), written));
        debug_assert!(packets.len() <= EXCERPT_PACKETS, "more packets than a message holds");
        let real = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let offset = real.wrapping_sub(self.now().0);
        let mut message = vec![0; CAPTURE_MESSAGE_HEAD];
        packets.iter().for_each(|packet| packet.append_to(&mut message, offset));
        let device = device.index() as u32;
        Ok(Response::KeptPackets(KeptPackets { device, is_failed, message }).into())
    }

    /// Device and user of the newest queue pair with this number that the viewer may see. One that has failed comes first: only
    /// its user's packets were copied.
    fn owner_record(&self, viewer: u32, worker: usize, qpn: Qpn) -> Option<(DeviceId, u32)> {
        let of_qp = |record: &FailureRecord| record.qp.as_ref().is_some_and(|qp| qp.qpn == qpn.get());
        let mut records: Vec<FailureRecord> = self.on_worker(worker, |w, now| w.failures(now));
        records.extend(self.on_worker(worker, move |w, now| w.present(now, qpn)));
        records.retain(|record| of_qp(record) && self.authority.may_see(viewer, Some(record.program.uid)));
        let newest = records.iter().min_by_key(|record| (record.kind == FailureKind::Present, record.ago_ns))?;
        let device = newest.qp.as_ref().map_or(0, |qp| qp.device);
        Some((DeviceId::from_index(device as usize), newest.program.uid))
    }

    /// The last packets of a queue pair in the ring. The worker looks at a part of the ring at a time and serves packets between.
    fn ring_packets(&self, worker: usize, of: (DeviceId, Qpn), written: usize) -> Vec<KeptPacket> {
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
