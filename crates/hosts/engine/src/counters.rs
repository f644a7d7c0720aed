//! Counters of one worker and device: one per reason, and the traffic; and the pressure on the port's receive buffers, which
//! acknowledgements of the selective repeat family report. The worker writes them; any thread may read them.

use burst_base::Reason;
use burst_control::monitor::TRAFFIC;
use burst_port::{PortCalls, ReceivePressure};
use burst_transport::HostPressure;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

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
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            reasons: [const { AtomicU64::new(0) }; Reason::COUNT],
            traffic: [const { AtomicU64::new(0) }; TRAFFIC.len()],
            receive_level: AtomicU8::new(0),
            receive_losses: AtomicU32::new(0),
        }
    }
}

/// Adds without a locked instruction, because there is one writer.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// Counts a reason.
    pub fn count(&self, reason: Reason) {
        add(&self.reasons[reason.index()], 1);
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
