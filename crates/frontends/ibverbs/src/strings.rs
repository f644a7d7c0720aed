//! Names of the values of enumerations: one table each, indexed by number.

use crate::sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};
use std::ffi::{CStr, c_char};

const NODE_TYPES: &[&CStr] = &[
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: &[&CStr] = &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENTS: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"device speed change",
];

const WC_STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const WR_OPCODES: &[&CStr] = &[
    c"RDMA write",
    c"RDMA write with immediate",
    c"send",
    c"send with immediate",
    c"RDMA read",
    c"atomic compare and swap",
    c"atomic fetch and add",
    c"local invalidate",
    c"bind MW",
    c"send with invalidate",
    c"TSO",
    c"driver specific",
];

fn word(table: &'static [&'static CStr], index: i64, otherwise: &'static CStr) -> &'static CStr {
    usize::try_from(index).ok().and_then(|i| table.get(i).copied()).unwrap_or(otherwise)
}

/// `ibv_wr_opcode_str`: the name of a send opcode.
pub fn wr_opcode(opcode: ibv_wr_opcode) -> &'static CStr {
    word(WR_OPCODES, opcode.into(), c"unknown")
}

/// `ibv_node_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    word(NODE_TYPES, node_type.into(), c"unknown").as_ptr()
}

/// `ibv_port_state_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    word(PORT_STATES, port_state.into(), c"unknown").as_ptr()
}

/// `ibv_event_type_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    word(EVENTS, event.into(), c"unknown").as_ptr()
}

/// `ibv_wc_status_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    word(WC_STATUSES, status.into(), c"unknown").as_ptr()
}
