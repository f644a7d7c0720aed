//! One id of a program (`rdma_cm_id`), and the wait for its next hop.

use super::hops::PendingHop;
use super::ports::PortBinding;
use burst_base::{DeviceId, Nanos};
use burst_control::cm::{CmAddr, CmRoute};
use burst_engine::gsi::CmEntry;
use burst_ledger::Charge;
use std::sync::Arc;

/// Maximum wait for a next hop, whatever the program allows. The kernel declares a neighbour failed after three seconds.
const WAIT_MAX: Nanos = Nanos::from_ms(30_000);

/// The state of an id on the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmIdStage {
    /// Created, perhaps bound.
    Idle,
    /// Waits for the next hop to its destination.
    Resolving,
    /// Device and destination are known.
    Addressed,
    /// Listens.
    Listening,
    /// A worker has its connection, or had it.
    Connected,
    /// Created for a connection request that the program has not answered.
    Requested,
}

/// Options of an id (`rdma_set_option`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CmIdOptions {
    /// Traffic class (RDMA_OPTION_ID_TOS).
    pub tos: u8,
    /// The address may be shared (RDMA_OPTION_ID_REUSEADDR).
    pub reuse: bool,
    /// `::` does not include IPv4 (RDMA_OPTION_ID_AFONLY).
    pub only_v6: bool,
    /// Local ACK timeout code (RDMA_OPTION_ID_ACK_TIMEOUT).
    pub ack_timeout: Option<u8>,
}

/// One id.
#[derive(Debug)]
pub(super) struct HostCmId {
    /// The part that workers share.
    pub entry: Arc<CmEntry>,
    /// Its state.
    pub stage: CmIdStage,
    /// Device, addresses and path, as far as they are known.
    pub route: CmRoute,
    /// Options that the program has set.
    pub options: CmIdOptions,
    /// The address that it is bound to.
    pub binding: Option<PortBinding>,
    /// The wait for its next hop, in state `Resolving`.
    pub wait: Option<Box<HopWait>>,
    /// Multicast groups that it has joined, by device.
    pub groups: Vec<(DeviceId, CmAddr)>,
    /// What the id costs.
    pub charge: Charge,
}

impl HostCmId {
    /// An id in state `stage`, without options and address.
    pub fn new(entry: Arc<CmEntry>, stage: CmIdStage, route: CmRoute, charge: Charge) -> HostCmId {
        let options = CmIdOptions::default();
        HostCmId { entry, stage, route, options, binding: None, wait: None, groups: Vec::new(), charge }
    }
}

/// The addresses of a resolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddrPair {
    /// Source, if the program or an earlier bind named one.
    pub src: Option<CmAddr>,
    /// Destination.
    pub dst: CmAddr,
}

/// An address that is being resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddrResolution {
    /// Source and destination.
    pub addrs: AddrPair,
    /// When the program asked.
    pub begun: Nanos,
    /// When the wait for the next hop ends.
    pub deadline: Nanos,
    /// The state of the id before.
    pub before: CmIdStage,
}

impl AddrResolution {
    /// A resolution that may take as long as the program's timeout, [`WAIT_MAX`] at most.
    pub fn new(addrs: AddrPair, timeout_ms: u32, begun: Nanos, before: CmIdStage) -> AddrResolution {
        let timeout = Nanos::from_ms(timeout_ms.into()).min(WAIT_MAX);
        AddrResolution { addrs, begun, deadline: begun + timeout, before }
    }
}

/// The wait of an id for a next hop.
#[derive(Clone, Copy, Debug)]
pub(super) struct HopWait {
    /// The next hop.
    pub hop: PendingHop,
    /// The resolution that needs it.
    pub resolution: AddrResolution,
    /// The device that packets would leave by.
    pub device: DeviceId,
    /// The number of the wait: later ones have greater numbers.
    pub number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_bounded_whatever_the_timeout() {
        let (now, dst) = (Nanos::from_ms(5), CmAddr { ip: "192.0.2.9".parse().expect("ip"), port: 1, scope: 0 });
        let deadline =
            |timeout_ms| AddrResolution::new(AddrPair { src: None, dst }, timeout_ms, now, CmIdStage::Idle).deadline;
        assert_eq!(deadline(1500), now + Nanos::from_ms(1500));
        assert_eq!(deadline(u32::MAX), now + WAIT_MAX);
    }
}
