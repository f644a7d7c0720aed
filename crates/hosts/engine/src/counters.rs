//! Counters of one worker and device: one per reason, and the traffic; and the pressure on the port's receive buffers, which
//! acknowledgements of the selective repeat family report. The worker writes them; any thread may read them.

use crate::probes;
use burst_base::Reason;
use burst_base::reason::Class;
use burst_control::monitor::TRAFFIC;
use burst_port::{PortCalls, ReceivePressure};
use burst_transport::HostPressure;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Index into the traffic counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Traffic {
    /// Packets received with a correct ICRC.
    RxPackets = 0,
    /// Their bytes from the BTH on.
    RxBytes = 1,
    /// Packets given to the port.
    TxPackets = 2,
    /// Their bytes from the BTH on.
    TxBytes = 3,
    /// Completions written.
    Completions = 4,
    /// Completion events written.
    Events = 5,
    /// Packets that the port looped back, which reached neither a wire nor the kernel. They count as received and as sent, too.
    LoopbackPackets = 6,
    /// Packets for queue pairs that arrived with the ECN codepoint CE; a train of middle packets counts once.
    MarkedPackets = 7,
    /// Congestion notification packets sent.
    CnpsSent = 8,
    /// Packets and management datagrams copied into another worker's inbox.
    HandedOver = 9,
    /// Workers woken for what was handed over to them.
    HandoverWakes = 10,
    /// System calls that have sent packets.
    SendCalls = 11,
    /// System calls that have received packets.
    ReceiveCalls = 12,
}

/// One worker's counters of one device.
#[derive(Debug)]
pub struct Counters {
    reasons: [AtomicU64; Reason::COUNT],
    traffic: [AtomicU64; TRAFFIC.len()],
    receive_level: AtomicU8,
    receive_losses: AtomicU32,
    notes: ReasonNotes,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            reasons: [const { AtomicU64::new(0) }; Reason::COUNT],
            traffic: [const { AtomicU64::new(0) }; TRAFFIC.len()],
            receive_level: AtomicU8::new(0),
            receive_losses: AtomicU32::new(0),
            notes: ReasonNotes::new(),
        }
    }
}

/// Reasons that [`ReasonNotes`] has room for: those of one train of packets, mostly one for each.
const NOTES: usize = 128;

/// Which reasons were counted of which packets of a train. A capture switches it on while it receives. Each entry is the count of
/// received packets and the number of the reason.
#[derive(Debug)]
struct ReasonNotes {
    on: AtomicBool,
    len: AtomicUsize,
    entries: [AtomicU64; NOTES],
}

impl ReasonNotes {
    const fn new() -> ReasonNotes {
        ReasonNotes {
            on: AtomicBool::new(false),
            len: AtomicUsize::new(0),
            entries: [const { AtomicU64::new(0) }; NOTES],
        }
    }
    /// Adds a note, if there is room.
    #[cold]
    fn add(&self, packets: u64, reason: Reason) {
        let len = self.len.load(Relaxed);
        if let Some(entry) = self.entries.get(len) {
            entry.store(packets << 8 | reason.index() as u64, Relaxed);
            self.len.store(len + 1, Relaxed);
        }
    }
    /// The reason of the packet that was the `packets`th: that of its drop or refusal, else the first one.
    fn find(&self, packets: u64) -> Option<Reason> {
        let len = self.len.load(Relaxed).min(NOTES);
        let entries = self.entries[..len].iter().map(|entry| entry.load(Relaxed));
        let mut found = entries.filter(|entry| entry >> 8 == packets & u64::MAX >> 8);
        let first = Reason::ALL.get((found.next()? & 0xff) as usize).copied();
        let is_end = |reason: &Reason| matches!(reason.class(), Class::Drop | Class::Nak);
        if first.as_ref().is_some_and(is_end) {
            return first;
        }
        found.filter_map(|entry| Reason::ALL.get((entry & 0xff) as usize).copied()).find(is_end).or(first)
    }
}

/// Adds without a locked instruction, because there is one writer.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// Counts a reason.
    pub fn count(&self, reason: Reason) {
        self.count_of(reason, 0);
    }
    /// Counts a reason of a queue pair's packets.
    pub(crate) fn count_of(&self, reason: Reason, qpn: u32) {
        debug_assert!(qpn < 1 << 24, "{qpn:#x} is no number of a queue pair");
        probes::counted(reason, qpn);
        add(&self.reasons[reason.index()], 1);
        if self.notes.on.load(Relaxed) {
            self.notes.add(self.traffic(Traffic::RxPackets), reason);
        }
    }
    /// From now on reasons are noted with the packets that were being received, until this is called with false.
    pub(crate) fn note_reasons(&self, on: bool) {
        self.notes.on.store(on, Relaxed);
    }
    /// Forgets the noted reasons; returns the number of packets received before.
    #[inline]
    pub(crate) fn begin_notes(&self) -> u64 {
        self.notes.len.store(0, Relaxed);
        self.traffic(Traffic::RxPackets)
    }
    /// What was noted of the packet that was received as the `packets`th.
    #[inline]
    pub(crate) fn noted(&self, packets: u64) -> Option<Reason> {
        if self.notes.len.load(Relaxed) == 0 { None } else { self.notes.find(packets) }
    }
    /// Adds to a traffic counter.
    pub fn add(&self, what: Traffic, n: u64) {
        add(&self.traffic[what as usize], n);
    }
    /// Adds system calls of the port.
    pub fn count_calls(&self, calls: PortCalls) {
        self.add(Traffic::SendCalls, calls.send);
        self.add(Traffic::ReceiveCalls, calls.receive);
    }
    /// The count of a reason.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons[reason.index()].load(Relaxed)
    }
    /// The count of a traffic counter.
    pub fn traffic(&self, what: Traffic) -> u64 {
        self.traffic[what as usize].load(Relaxed)
    }
    /// The port's receive buffers are under this pressure. Losses are no level: the level of before stays.
    #[cold]
    pub fn set_pressure(&self, pressure: ReceivePressure) {
        match pressure {
            ReceivePressure::Lost => {
                self.receive_losses.store(self.receive_losses.load(Relaxed).wrapping_add(1), Relaxed);
            }
            level => self.receive_level.store(level as u8, Relaxed),
        }
    }
    /// Pressure on the port's receive buffers.
    pub fn host_pressure(&self) -> HostPressure {
        HostPressure { level: self.receive_level.load(Relaxed), lost: self.receive_losses.load(Relaxed) }
    }
    /// The traffic counters, in the order of their names.
    pub fn traffic_values(&self) -> impl Iterator<Item = u64> {
        self.traffic.iter().map(|counter| counter.load(Relaxed))
    }
    /// Every counter with its name.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let traffic = TRAFFIC.iter().zip(&self.traffic).map(|(name, c)| (*name, c.load(Relaxed)));
        let reasons = Reason::ALL.iter().map(|r| (r.name(), self.reason(*r)));
        traffic.chain(reasons).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_noted_with_their_packets_while_a_capture_receives() {
        let counters = Counters::default();
        counters.count(Reason::StaleAck);
        counters.note_reasons(true);
        let before = counters.begin_notes();
        for reasons in [&[][..], &[Reason::CqOverrun, Reason::UnknownQpn], &[Reason::CqOverrun, Reason::ProcessDied]] {
            counters.add(Traffic::RxPackets, 1);
            reasons.iter().for_each(|reason| counters.count(*reason));
        }
        let found = [1, 2, 3].map(|packet| counters.noted(before + packet));
        assert_eq!(found, [None, Some(Reason::UnknownQpn), Some(Reason::CqOverrun)]);
        counters.note_reasons(false);
        let before = counters.begin_notes();
        counters.add(Traffic::RxPackets, 1);
        counters.count(Reason::UnknownQpn);
        assert_eq!(counters.noted(before + 1), None);
        counters.note_reasons(true);
        (0..2 * NOTES).for_each(|_| counters.count(Reason::UnknownQpn));
        assert_eq!(counters.notes.len.load(Relaxed), NOTES, "a full list takes no more");
    }
}
