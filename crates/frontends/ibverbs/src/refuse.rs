//! Functions for the symbols of `abi/legacy.txt` and `abi/private.txt`, and public functions that are not supported.
//!
//! The private version nodes connect rdma-core's libibverbs with its providers. Providers may be loaded into a process with this
//! library (perftest links libmlx5 and libefa): they find no device and make no other calls. If one does, the call fails.

use crate::context::VerbsContext;
use crate::sys::{ibv_context, ibv_wr_opcode};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// For private and legacy functions that return an errno value.
#[unsafe(no_mangle)]
pub extern "C" fn burst_refuse_int() -> c_int {
    crate::boundary::set_errno(crate::boundary::Errno(libc::ENOSYS));
    libc::ENOSYS
}

/// For private and legacy functions that return a pointer.
#[unsafe(no_mangle)]
pub extern "C" fn burst_refuse_ptr() -> *mut c_void {
    crate::boundary::set_errno(crate::boundary::Errno(libc::ENOSYS));
    std::ptr::null_mut()
}

/// For private and legacy functions that return nothing, such as the registration of drivers.
#[unsafe(no_mangle)]
pub extern "C" fn burst_refuse_none() {}

/// `ibv_query_gid_type` of the private nodes: the kind of a GID table entry, always RoCE v2 here (number 1 of that enum).
///
/// # Safety
/// `context` must be an open context, `kind` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn burst_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    const SYSFS_ROCE_V2: c_uint = 1;
    crate::boundary::number(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        crate::port::check_port(port.into())?;
        context.device_now()?;
        if index >= crate::port::GID_TABLE_LEN {
            return Err(crate::boundary::EINVAL);
        }
        // SAFETY: the caller gives a writable place.
        unsafe { *kind = SYSFS_ROCE_V2 };
        Ok(0)
    })
}

/// `ibv_read_ibdev_sysfs_file` of the private nodes: fails, because the device has no sysfs directory.
#[unsafe(no_mangle)]
pub extern "C" fn burst_read_ibdev_sysfs_file() -> c_int {
    crate::boundary::set_errno(crate::boundary::Errno(libc::ENOENT));
    -1
}

/// `ibv_wr_opcode_str` of the private nodes.
#[unsafe(no_mangle)]
pub extern "C" fn burst_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    crate::strings::wr_opcode(opcode).as_ptr()
}

macro_rules! absent {
    ($($name:ident -> $kind:ident,)+) => { $(absent!(@one $name $kind);)+
        /// Public functions that are not supported, for tests and documentation.
        pub const ABSENT: &[&str] = &[$(stringify!($name)),+];
    };
    (@one $name:ident value) => {
        /// Not supported: returns EOPNOTSUPP.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int { crate::boundary::value(|| Err(crate::boundary::EOPNOTSUPP)) }
    };
    (@one $name:ident pointer) => {
        /// Not supported: returns NULL with errno EOPNOTSUPP.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void { crate::boundary::pointer(|| Err(crate::boundary::EOPNOTSUPP)) }
    };
    (@one $name:ident number) => {
        /// Not supported: returns -1 with errno EOPNOTSUPP.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int { crate::boundary::number(|| Err(crate::boundary::EOPNOTSUPP)) }
    };
}

absent! {
    ibv_alloc_dmah -> pointer,
    ibv_dealloc_dmah -> value,
    ibv_reg_mr_ex -> pointer,
    ibv_dm_export_dmabuf_fd -> number,
    ibv_alloc_buf -> pointer,
    ibv_free_buf -> value,
    ibv_reg_buf_mr -> pointer,
    ibv_export_buf_dmabuf_fd -> number,
    _ibv_query_comp_cntr_caps -> value,
    ibv_create_comp_cntr -> pointer,
    ibv_destroy_comp_cntr -> value,
    ibv_set_comp_cntr -> value,
    ibv_set_err_comp_cntr -> value,
    ibv_inc_comp_cntr -> value,
    ibv_inc_err_comp_cntr -> value,
    ibv_read_comp_cntr -> value,
    ibv_read_err_comp_cntr -> value,
    ibv_qp_attach_comp_cntr -> value,
}
