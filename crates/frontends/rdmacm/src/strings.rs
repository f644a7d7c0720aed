//! `rdma_event_str`: names of events.

use crate::sys::*;
use std::ffi::{CStr, c_char};

/// Names by number.
const NAMES: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

const _: () = assert!(RDMA_CM_EVENT_TIMEWAIT_EXIT as usize + 1 == NAMES.len());

/// `rdma_event_str`: the event's name in `rdma_cma.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    NAMES.get(event as usize).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text() {
        // SAFETY: the function returns C strings.
        let text = |event| unsafe { CStr::from_ptr(rdma_event_str(event)) };
        assert_eq!(text(RDMA_CM_EVENT_ESTABLISHED), c"RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(text(RDMA_CM_EVENT_TIMEWAIT_EXIT), c"RDMA_CM_EVENT_TIMEWAIT_EXIT");
        assert_eq!(text(16), c"UNKNOWN EVENT");
        assert_eq!(text(u32::MAX), c"UNKNOWN EVENT");
    }
}
