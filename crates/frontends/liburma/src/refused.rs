//! Functions that are not offered: they fail as the interface says.

use crate::abi::{FAIL, Status};
use crate::macros::exported;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

exported! {
    fn urma_import_jetty_ex(_ctx: *mut c_void, _remote: *mut c_void, _token: *mut c_void, _cfg: *mut c_void) -> *mut c_void { null_mut() }
    fn urma_import_jfr_ex(_ctx: *mut c_void, _remote: *mut c_void, _token: *mut c_void, _cfg: *mut c_void) -> *mut c_void { null_mut() }
    fn urma_bind_jetty_ex(_jetty: *mut c_void, _target: *mut c_void, _cfg: *mut c_void) -> Status { FAIL }
    fn urma_create_notifier(_ctx: *mut c_void) -> *mut c_void { null_mut() }
    fn urma_delete_notifier(_notifier: *mut c_void) -> Status { FAIL }
    fn urma_import_jetty_async(_notifier: *mut c_void, _remote: *const c_void, _token: *const c_void, _user_ctx: u64, _timeout: c_int) -> *mut c_void { null_mut() }
    fn urma_unimport_jetty_async(_target: *mut c_void) -> Status { FAIL }
    fn urma_bind_jetty_async(_notifier: *mut c_void, _jetty: *mut c_void, _target: *mut c_void, _user_ctx: u64, _timeout: c_int) -> Status { FAIL }
    fn urma_unbind_jetty_async(_jetty: *mut c_void) -> Status { FAIL }
    fn urma_wait_notify(_notifier: *mut c_void, _count: u32, _notify: *mut c_void, _timeout: c_int) -> c_int { -1 }
    fn urma_ack_notify(_ctx: *mut c_void, _count: u32, _notify: *mut c_void) -> Status { FAIL }
    fn urma_get_tp_list(_ctx: *mut c_void, _cfg: *mut c_void, _count: *mut u32, _list: *mut c_void) -> Status { FAIL }
    fn urma_set_tp_attr(_ctx: *const c_void, _handle: u64, _count: u8, _bitmap: u32, _value: *mut c_void) -> Status { FAIL }
    fn urma_modify_tp(_ctx: *mut c_void, _tpn: u32, _cfg: *mut c_void, _attr: *mut c_void, _mask: u32) -> c_int { -1 }
    fn urma_get_net_addr_list(_ctx: *mut c_void, _count: *mut u32) -> *mut c_void { null_mut() }
    fn urma_free_net_addr_list(_list: *mut c_void) {}
    fn urma_get_smac(_ctx: *const c_void, _mac: *mut u8) -> Status { FAIL }
    fn urma_get_dmac(_ctx: *const c_void, _addr: *const c_void, _mac: *mut u8) -> Status { FAIL }
}
