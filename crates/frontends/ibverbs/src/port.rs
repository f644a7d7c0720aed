//! Queries of device limits, port attributes, GID and P_Key tables.
//!
//! Applications compiled with different headers pass structs of different lengths (`ibv_port_attr` has 48, 52 or 56 bytes). Each
//! answer is made in the newest layout; its first bytes, as many as the application's struct has, are copied.

use crate::attr;
use crate::boundary::{self, EINVAL, Errno, Outcome};
use crate::context::VerbsContext;
use crate::rates;
use crate::sys::*;
use burst_base::verbs::AhAttr;
use burst_control::{DeviceInfo, GidInfo, Request, Response};
use std::ffi::{c_int, c_uint, c_void};

/// Length of the GID table that a port reports; unused entries read as zero.
pub const GID_TABLE_LEN: u32 = 16;
/// The only P_Key: default partition, full member.
const PKEY: u16 = 0xffff;
/// Bytes that the exported `ibv_query_port` may write: the struct of rdma-core v17.
const PORT_ATTR_V17: usize = 48;
/// Length of the newest struct of port attributes; its last word is `active_speed_ex`.
const PORT_ATTR_MAX: usize = 56;

/// Vendor id of the device, "BUR", also in connection management messages. No company has this OUI.
const VENDOR: u32 = 0x0042_5552;
/// Vendor part id.
const PART: u32 = 1;
/// Frequency of the device's clock in kHz, as verbs report it: one tick per nanosecond.
const CLOCK_KHZ: u64 = 1_000_000;
/// Maximum moderation period and count of `ibv_modify_cq`.
const MODERATION_MAX: u16 = u16::MAX;

/// Port flag `IBV_QPF_GRH_REQUIRED`, a macro of the header.
const GRH_REQUIRED: u8 = 1;

/// Checks a port number: a device has port 1 only.
pub fn check_port(port: u32) -> Outcome<()> {
    if port == 1 { Ok(()) } else { Err(EINVAL) }
}

fn gid_at(device: &DeviceInfo, index: u32) -> Option<&GidInfo> {
    device.gids.get(index as usize).filter(|_| index < GID_TABLE_LEN)
}

/// Copies the first `len` bytes of `from`. If `len` is larger than `from`, the rest is zeroed.
///
/// # Safety
/// `to` must be writable for `len` bytes.
unsafe fn copy_limited<T: Copy>(from: &T, to: *mut c_void, len: usize) {
    let known = size_of::<T>().min(len);
    // SAFETY: the caller gives `len` writable bytes, and `known` is at most the size of either side.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast::<u8>(), to.cast(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, len - known);
    }
}

fn device_attr(device: &DeviceInfo) -> ibv_device_attr {
    let limits = &device.limits;
    let mut a = ibv_device_attr {
        node_guid: device.guid.to_be(),
        sys_image_guid: device.guid.to_be(),
        max_mr_size: limits.max_mr_size,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        hw_ver: 1,
        max_qp: limits.max_qp as c_int,
        max_qp_wr: limits.max_qp_wr as c_int,
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_N_NOTIFY_CQ
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_XRC
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: limits.max_sge as c_int,
        max_sge_rd: limits.max_sge as c_int,
        max_cq: limits.max_cq as c_int,
        max_cqe: limits.max_cqe as c_int,
        max_mr: limits.max_mr as c_int,
        max_mw: limits.max_mw as c_int,
        max_pd: limits.max_pd as c_int,
        max_qp_rd_atom: limits.max_rd_atomic as c_int,
        max_res_rd_atom: limits.max_rd_atomic.saturating_mul(limits.max_qp).min(c_int::MAX as u32) as c_int,
        max_qp_init_rd_atom: limits.max_rd_atomic as c_int,
        atomic_cap: IBV_ATOMIC_HCA,
        max_ah: limits.max_ah as c_int,
        max_mcast_grp: limits.max_mcast_grp as c_int,
        max_mcast_qp_attach: limits.max_mcast_qp_attach as c_int,
        max_total_mcast_qp_attach: limits.max_mcast_grp.saturating_mul(limits.max_mcast_qp_attach) as c_int,
        max_srq: limits.max_srq as c_int,
        max_srq_wr: limits.max_srq_wr as c_int,
        max_srq_sge: limits.max_sge as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..Default::default()
    };
    crate::device::copy_text(&mut a.fw_ver, env!("CARGO_PKG_VERSION"));
    a
}

/// On-demand paging: the daemon reaches the memory of the process, so all operations and implicit regions are supported.
fn odp_caps() -> ibv_odp_caps {
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagrams | IBV_ODP_SUPPORT_WRITE;
    let reliable = unreliable | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    ibv_odp_caps {
        general_caps: u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT),
        per_transport_caps: ibv_odp_caps__bindgen_ty_1 {
            rc_odp_caps: reliable,
            uc_odp_caps: unreliable,
            ud_odp_caps: datagrams,
        },
    }
}

fn port_attr(device: &DeviceInfo) -> [u8; PORT_ATTR_MAX] {
    let (active_width, active_speed) = rates::width_and_speed(device.speed_mbps);
    let a = ibv_port_attr {
        state: if device.up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: device.active_mtu as ibv_mtu,
        gid_tbl_len: GID_TABLE_LEN as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: device.limits.max_msg_sz,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        // Physical state: 5 is LinkUp, 3 is Disabled.
        phys_state: if device.up { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        flags: GRH_REQUIRED,
        ..Default::default()
    };
    let mut bytes = [0; PORT_ATTR_MAX];
    let known = size_of::<ibv_port_attr>();
    const { assert!(size_of::<ibv_port_attr>() >= 52 && size_of::<ibv_port_attr>() <= PORT_ATTR_MAX) };
    // SAFETY: the source is a plain struct of `known` bytes; the target has at least as many.
    unsafe { std::ptr::copy_nonoverlapping((&raw const a).cast::<u8>(), bytes.as_mut_ptr(), known) };
    bytes[52..56].copy_from_slice(&u32::from(active_speed).to_ne_bytes());
    bytes
}

/// `ibv_query_device`.
///
/// # Safety
/// `context` must be open and `attr` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context.
        let device = unsafe { VerbsContext::even_dead(context) }?.device_now()?;
        // SAFETY: the caller gives a writable place.
        unsafe { *attr = device_attr(&device) };
        Ok(())
    })
}

/// `ibv_query_device_ex`.
///
/// # Safety
/// `context` must be open and `attr` writable for `size` bytes.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives NULL or a valid input.
        if unsafe { input.as_ref() }.is_some_and(|i| i.comp_mask != 0) || size < size_of::<ibv_device_attr>() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an open context.
        let device = unsafe { VerbsContext::even_dead(context) }?.device_now()?;
        let orig_attr = device_attr(&device);
        let device_cap_flags_ex = orig_attr.device_cap_flags.into();
        let full = ibv_device_attr_ex {
            orig_attr,
            device_cap_flags_ex,
            phys_port_cnt_ex: 1,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            odp_caps: odp_caps(),
            xrc_odp_caps: odp_caps().per_transport_caps.rc_odp_caps,
            max_dm_size: device.limits.max_dm_size,
            cq_mod_caps: ibv_cq_moderation_caps { max_cq_count: MODERATION_MAX, max_cq_period: MODERATION_MAX },
            ..Default::default()
        };
        // SAFETY: the caller gives `size` writable bytes.
        unsafe { copy_limited(&full, attr.cast(), size) };
        Ok(())
    })
}

/// `ibv_query_port` for an attribute struct of `size` bytes.
///
/// # Safety
/// `context` must be open and `attr` writable for `size` bytes.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port.into())?;
        let bytes = port_attr(&context.device_now()?);
        // SAFETY: the caller gives `size` writable bytes.
        unsafe { copy_limited(&bytes, attr.cast(), size) };
        Ok(())
    })
}

/// The exported `ibv_query_port`, which applications compiled with old headers call with the 48-byte struct.
///
/// # Safety
/// `context` must be open and `attr` writable for 48 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise, for the length of the oldest layout.
    unsafe { query_port(context, port, attr.cast(), PORT_ATTR_V17) }
}

/// `ibv_query_port_speed`: in units of 100 Mbit/s.
///
/// # Safety
/// `context` must be open and `speed` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port)?;
        let device = context.device_now()?;
        // SAFETY: the caller gives a writable place.
        unsafe { *speed = u64::from(device.speed_mbps / 100) };
        Ok(())
    })
}

/// `ibv_query_gid`: unused entries read as zero.
///
/// # Safety
/// `context` must be open and `gid` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port.into())?;
        let index = u32::try_from(index).ok().filter(|i| *i < GID_TABLE_LEN).ok_or(EINVAL)?;
        let device = context.device_now()?;
        let raw = gid_at(&device, index).map_or([0; 16], |g| g.gid);
        // SAFETY: the caller gives a writable place. Programs keep GIDs in messages of their own, where they may lie unaligned.
        unsafe { gid.write_unaligned(ibv_gid { raw }) };
        Ok(0)
    })
}

fn gid_entry(index: u32, gid: &GidInfo) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.gid },
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: gid.ifindex,
    }
}

/// `_ibv_query_gid_ex`: a GID table entry with its type and interface.
///
/// # Safety
/// `context` must be open and `entry` writable for `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port)?;
        if flags != 0 || index >= GID_TABLE_LEN {
            return Err(EINVAL);
        }
        let device = context.device_now()?;
        let gid = gid_at(&device, index).ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the caller gives `entry_size` writable bytes.
        unsafe { copy_limited(&gid_entry(index, gid), entry.cast(), entry_size) };
        Ok(())
    })
}

/// `_ibv_query_gid_table`: writes all used entries. Returns their number, or a negative errno value.
///
/// # Safety
/// `context` must be open and `entries` writable for `max_entries` times `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut written = 0;
    let rc = boundary::value(|| {
        // SAFETY: the caller gives an open context.
        let context = unsafe { VerbsContext::from_ibv(context) }?;
        if flags != 0 || entry_size == 0 {
            return Err(EINVAL);
        }
        let device = context.device_now()?;
        let used = device.gids.iter().take(GID_TABLE_LEN as usize).enumerate();
        if used.len() > max_entries {
            return Err(EINVAL);
        }
        for (index, gid) in used {
            // SAFETY: `index` is below `max_entries`, for which the caller gave room.
            unsafe {
                let to = entries.cast::<u8>().add(index * entry_size);
                copy_limited(&gid_entry(index as u32, gid), to.cast(), entry_size);
            }
            written += 1;
        }
        Ok(())
    });
    if rc == 0 { written } else { -(rc as isize) }
}

/// `ibv_query_pkey`: the P_Key is big-endian.
///
/// # Safety
/// `context` must be open and `pkey` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller gives an open context.
        unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port.into())?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives a writable place.
        unsafe { *pkey = PKEY.to_be() };
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: -1 if the P_Key is not in the table.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller gives an open context.
        unsafe { VerbsContext::from_ibv(context) }?;
        check_port(port.into())?;
        if u16::from_be(pkey) == PKEY { Ok(0) } else { Err(EINVAL) }
    })
}

/// `ibv_resolve_eth_l2_from_gid`: next hop's Ethernet address and VLAN of an address vector; VLAN 0xffff means none.
///
/// # Safety
/// `context` must be open, `attr` valid, `mac` writable for 6 bytes, `vlan` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller gives an open context and a valid attribute.
        let (context, attr) = unsafe { (VerbsContext::from_ibv(context)?, &*attr) };
        let attr: AhAttr = attr::ah_from_ibv(attr);
        let Response::Mac(bytes) = context.ask(&Request::ResolveMac { attr })? else { return Err(boundary::EIO) };
        // SAFETY: the caller gives 6 writable bytes, and NULL or a writable place.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), mac, 6);
            if !vlan.is_null() {
                *vlan = 0xffff;
            }
        }
        Ok(0)
    })
}

/// Checks a GID table index of an address handle or QP.
pub fn check_gid_index(index: u8) -> Outcome<()> {
    if c_uint::from(index) < GID_TABLE_LEN { Ok(()) } else { Err(EINVAL) }
}
