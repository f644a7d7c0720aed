//! Calls for `burst stats`, `burst top` and metrics: what the worker and its queue pairs do.

use crate::objects::QpSlot;
use crate::worker::Worker;
use burst_control::activity::{QpUse, WorkHistogram, WorkerUse};
use burst_control::monitor::TRAFFIC;

/// Most entries of the table at which a page looks, used or not: a user may ask as often as it likes, and packets wait meanwhile.
const LOOKED_MAX: usize = 1024;

impl Worker {
    /// Time, tables and traffic of the worker.
    pub fn activity(&self) -> WorkerUse {
        let of_port = |slot: &crate::port_slot::PortSlot| {
            let mut values = [0; TRAFFIC.len()];
            values.iter_mut().zip(slot.counters.traffic_values()).for_each(|(to, value)| *to = value);
            values
        };
        WorkerUse {
            worker: self.id(),
            time: self.core.pulse.time(),
            queue_pairs: self.core.directory.in_use(),
            paths: self.core.paths.in_use() as u32,
            traffic: self.ports.iter().map(of_port).collect(),
        }
    }

    /// What took how long, in the order of [`burst_control::activity::WORK_HISTOGRAMS`].
    pub fn histograms(&self) -> Vec<WorkHistogram> {
        self.core.outbox.histograms.to_list()
    }

    /// Queue pairs from an entry of the table on, at most `most`, and the entry at which the next page begins. After many unused
    /// entries a page may be short, or empty.
    pub fn queue_pair_page(&self, from: u32, most: usize) -> (Vec<QpUse>, Option<u32>) {
        let mut page = Vec::new();
        let end = (from as usize).saturating_add(LOOKED_MAX);
        for (entry, slot) in self.core.qps.iter().enumerate().skip(from as usize).take(LOOKED_MAX) {
            let Some(slot) = slot.as_deref() else { continue };
            if page.len() == most {
                return (page, Some(entry as u32));
            }
            page.push(self.use_of(slot));
        }
        (page, (end < self.core.qps.len()).then_some(end as u32))
    }

    fn use_of(&self, slot: &QpSlot) -> QpUse {
        let facts = slot.qp.facts();
        let context = self.core.contexts.get(slot.holder.context as usize).and_then(Option::as_ref);
        QpUse {
            worker: self.id(),
            device: slot.device.index() as u32,
            qpn: slot.qpn.get(),
            qp_type: facts.qp_type,
            state: facts.state,
            peer: facts.flow.dst,
            peer_qpn: facts.dest_qpn.get(),
            program: context.map(|context| context.program.clone()).unwrap_or_default(),
            requests: facts.requests,
            mtu: facts.mtu,
            sent_psn: facts.sent_psn.get(),
            expected_psn: facts.expected_psn.get(),
            inflight_bytes: slot.inflight_seen,
            rtt_ns: facts.rtt.0,
            counts: slot.tally.to_list(),
        }
    }
}
