//! How a program that links libdpdk makes ports of the kind `dpdk` possible.
//!
//! The crate `port-dpdk` depends on this one, so a function of this crate cannot call it. Features of cargo would do, but then
//! all crates above would be compiled twice, for programs with libdpdk and for those without.

use crate::spec::DpdkSpec;
use crate::{Encapsulation, Port, PortError};
use std::net::IpAddr;
use std::sync::OnceLock;

/// Opens one worker's part of a port: specification, encapsulation, the specification as the user wrote it, and the worker's
/// number with the number of workers.
pub type OpenDpdk = fn(&DpdkSpec, &Encapsulation, &str, (usize, usize)) -> Result<Box<dyn Port>, PortError>;

/// Opens a port of another transport, of this address, on a device that has ports; the last argument is the worker that runs it.
pub type OpenDpdkGuest = fn(&DpdkSpec, &Encapsulation, &str, IpAddr, usize) -> Result<Box<dyn Port>, PortError>;

/// How ports on devices of DPDK are opened.
#[derive(Clone, Copy, Debug)]
pub struct DpdkOpener {
    /// Opens a port of the device.
    pub open: OpenDpdk,
    /// Opens a port beside those of the device.
    pub open_guest: OpenDpdkGuest,
}

static OPENER: OnceLock<DpdkOpener> = OnceLock::new();

/// Ports of the kind `dpdk` are opened by `opener` from now on; the first call counts.
pub fn enable_dpdk(opener: DpdkOpener) {
    // Whoever calls again links the same crate, so the opener is the same.
    OPENER.get_or_init(|| opener);
}

/// The opener of a program that links libdpdk.
///
/// # Errors
/// [`PortError::Absent`]: this program does not.
pub(crate) fn dpdk_opener() -> Result<&'static DpdkOpener, PortError> {
    OPENER.get().ok_or(PortError::Absent { kind: "dpdk", cure: "install libdpdk-dev and run make build" })
}
