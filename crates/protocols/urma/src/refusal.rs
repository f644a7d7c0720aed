//! Why a target refuses a request, and by which status of the wire it says so.

use burst_base::Reason;
use burst_ubwire::UbStatus;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UrmaRefusal {
    pub(crate) status: UbStatus,
    pub(crate) reason: Reason,
}

impl UrmaRefusal {
    pub(crate) const UNSUPPORTED: u8 = 1;
    pub(crate) const OPERATION: u8 = 2;
    pub(crate) const ACCESS: u8 = 3;
    pub(crate) const LENGTH: u8 = 4;
    pub(crate) const POISON: u8 = 5;
    /// In the timer code of an RNR answer: there is no room for the request, whether or not a receive is posted. Such refusals
    /// are not counted against `rnr_retry`.
    pub(crate) const BUSY: u8 = 16;

    pub(crate) const fn error(info: u8, reason: Reason) -> UrmaRefusal {
        UrmaRefusal { status: UbStatus { status: UbStatus::ERROR, info }, reason }
    }
    pub(crate) const fn rnr(timer: u8, reason: Reason) -> UrmaRefusal {
        UrmaRefusal { status: UbStatus { status: UbStatus::RNR, info: timer }, reason }
    }
    pub(crate) const fn is_final(&self) -> bool {
        self.status.status != UbStatus::RNR
    }
}
