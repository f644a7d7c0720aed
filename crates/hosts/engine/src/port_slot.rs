//! A port of a worker, what waits to leave by it, and how often it is looked at.

use crate::counters::{Counters, Traffic};
use crate::ring::PacketRing;
use crate::tap::{PortTap, PortTaps};
use burst_base::{DeviceId, Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::Port;
use std::sync::Arc;

/// A port and what waits to leave by it.
pub(crate) struct PortSlot {
    pub port: Box<dyn Port>,
    pub batch: TxBatch,
    pub counters: Arc<Counters>,
    pub attention: PortAttention,
    /// Who captures its packets.
    pub taps: PortTaps,
}

impl PortSlot {
    /// A port, whose packets go to a UDP port, with a batch of at most `frames` frames.
    pub fn new(port: Box<dyn Port>, udp_port: u16, frames: usize) -> PortSlot {
        let (batch, counters) = (TxBatch::new(frames), Arc::new(Counters::default()));
        PortSlot { port, batch, counters, attention: PortAttention::default(), taps: PortTaps::new(udp_port) }
    }

    /// From now on its packets are kept in the ring of the worker.
    pub fn keep_packets(&mut self, ring: Arc<PacketRing>, device: DeviceId) {
        self.taps.set_ring(ring, device);
        self.batch.set_captured(true);
    }

    /// Its packets are captured. False if there are too many taps.
    pub fn add_tap(&mut self, tap: PortTap) -> bool {
        let is_added = self.taps.add(tap);
        self.batch.set_captured(!self.taps.is_empty());
        is_added
    }

    /// Whether the port is still resolving the next hop of a flow. The batch leaves first, so that the port begins to resolve.
    pub fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        self.flush(now);
        self.port.is_resolving(now, flow)
    }

    /// Sends the batch.
    pub fn flush(&mut self, now: Nanos) {
        if self.batch.is_empty() {
            return;
        }
        let PortSlot { port, batch, counters, taps, .. } = self;
        let bytes: usize = batch.frames().iter().map(|f| f.udp_payload_len()).sum();
        counters.add(Traffic::TxPackets, batch.len() as u64);
        counters.add(Traffic::TxBytes, bytes as u64);
        for _ in 0..batch.fetch_remote() {
            counters.count(Reason::PageLate);
        }
        if !taps.is_empty() {
            taps.sent(now, batch);
            batch.set_captured(!taps.is_empty());
        }
        port.tx_burst(now, batch, &mut |reason: Reason| counters.count(reason));
        counters.count_calls(port.take_calls());
        batch.clear();
        debug_assert!(batch.is_empty());
    }
}

/// How often a worker of several ports looks at one of them: a port without packets costs each pass a system call. A port that
/// had none in [`PortAttention::QUIET`] passes is looked at in every [`PortAttention::LOOK_EVERY`]th, and in the first after a
/// sleep. A port whose queue pairs other workers have is looked at in every [`PortAttention::LOOK_UNUSED`]th.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortAttention {
    /// Whether the worker has no queue pairs of the port: only connection management comes by it.
    unused: bool,
    /// Passes without packets.
    quiet: u32,
    /// Passes since the last look.
    skipped: u32,
}

impl PortAttention {
    const QUIET: u32 = 64;
    const LOOK_EVERY: u32 = 8;
    const LOOK_UNUSED: u32 = 256;

    /// The worker will have no queue pairs of the port.
    pub fn set_unused(&mut self) {
        self.unused = true;
    }
    /// Whether this pass may leave the port out.
    #[inline]
    pub fn may_skip(&mut self) -> bool {
        self.skipped += 1;
        let every = if self.unused { PortAttention::LOOK_UNUSED } else { PortAttention::LOOK_EVERY };
        self.quiet >= PortAttention::QUIET && self.skipped < every
    }
    /// The port had so many packets.
    #[inline]
    pub fn note(&mut self, packets: usize) {
        self.quiet = if packets > 0 { 0 } else { self.quiet.saturating_add(1) };
        self.skipped = 0;
    }
    /// The next pass looks at the port.
    pub fn wake(&mut self) {
        self.skipped = PortAttention::LOOK_UNUSED;
    }
}

#[cfg(test)]
mod tests {
    use super::PortAttention;

    #[test]
    fn an_unused_port_is_looked_at_more_seldom_still() {
        let mut attention = PortAttention::default();
        attention.set_unused();
        assert_eq!(looks(&mut attention), 64);
        let seen: usize = (0..8).map(|_| looks(&mut attention)).sum();
        assert_eq!(seen, 2, "of 512 passes");
        attention.wake();
        assert!(!attention.may_skip(), "after a sleep");
    }

    /// Passes of 64 that look at the port.
    fn looks(attention: &mut PortAttention) -> usize {
        (0..64)
            .filter(|_| {
                let looks = !attention.may_skip();
                if looks {
                    attention.note(0);
                }
                looks
            })
            .count()
    }

    #[test]
    fn a_port_without_packets_is_looked_at_seldom_until_one_comes_or_the_worker_sleeps() {
        let mut attention = PortAttention::default();
        assert_eq!((looks(&mut attention), looks(&mut attention)), (64, 8));
        attention.note(1);
        assert_eq!((looks(&mut attention), looks(&mut attention)), (64, 8));
        attention.wake();
        assert!(!attention.may_skip());
        attention.note(0);
        assert!(attention.may_skip());
    }
}
