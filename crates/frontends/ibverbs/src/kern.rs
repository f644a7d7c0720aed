//! Conversions between the kernel's and the verbs' layouts of address vectors, QP attributes and path records. rdma-core's
//! librdmacm calls them.

use crate::sys::*;
use std::ffi::c_int;

fn ah_attr(src: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let mut dst = ibv_ah_attr {
        dlid: src.dlid,
        sl: src.sl,
        src_path_bits: src.src_path_bits,
        static_rate: src.static_rate,
        is_global: src.is_global,
        port_num: src.port_num,
        ..Default::default()
    };
    dst.grh.dgid.raw = src.grh.dgid;
    dst.grh.flow_label = src.grh.flow_label;
    dst.grh.sgid_index = src.grh.sgid_index;
    dst.grh.hop_limit = src.grh.hop_limit;
    dst.grh.traffic_class = src.grh.traffic_class;
    dst
}

/// `ibv_copy_ah_attr_from_kern`: converts an address vector of the kernel.
///
/// # Safety
/// Both pointers must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const ib_uverbs_ah_attr) {
    // SAFETY: the caller gives valid places.
    unsafe { *dst = ah_attr(&*src) }
}

/// `ibv_copy_qp_attr_from_kern`: converts QP attributes of the kernel.
///
/// # Safety
/// Both pointers must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const ib_uverbs_qp_attr) {
    // SAFETY: the caller gives valid places.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = ibv_qp_attr {
        qp_state: src.qp_state as ibv_qp_state,
        cur_qp_state: src.cur_qp_state as ibv_qp_state,
        path_mtu: src.path_mtu as ibv_mtu,
        path_mig_state: src.path_mig_state as ibv_mig_state,
        qkey: src.qkey,
        rq_psn: src.rq_psn,
        sq_psn: src.sq_psn,
        dest_qp_num: src.dest_qp_num,
        qp_access_flags: src.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        },
        ah_attr: ah_attr(&src.ah_attr),
        alt_ah_attr: ah_attr(&src.alt_ah_attr),
        pkey_index: src.pkey_index,
        alt_pkey_index: src.alt_pkey_index,
        en_sqd_async_notify: src.en_sqd_async_notify,
        sq_draining: src.sq_draining,
        max_rd_atomic: src.max_rd_atomic,
        max_dest_rd_atomic: src.max_dest_rd_atomic,
        min_rnr_timer: src.min_rnr_timer,
        port_num: src.port_num,
        timeout: src.timeout,
        retry_cnt: src.retry_cnt,
        rnr_retry: src.rnr_retry,
        alt_port_num: src.alt_port_num,
        alt_timeout: src.alt_timeout,
        rate_limit: 0,
    };
}

/// `ibv_copy_path_rec_from_kern`: converts a path record of the kernel.
///
/// # Safety
/// Both pointers must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *const ib_user_path_rec) {
    // SAFETY: the caller gives valid places.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = ibv_sa_path_rec {
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic as c_int,
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible as c_int,
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        mtu: src.mtu as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}

/// `ibv_copy_path_rec_to_kern`: converts a path record for the kernel.
///
/// # Safety
/// Both pointers must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *const ibv_sa_path_rec) {
    // SAFETY: the caller gives valid places; every bit pattern of a GID is a valid `raw`.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    // SAFETY: as above.
    let (dgid, sgid) = unsafe { (src.dgid.raw, src.sgid.raw) };
    *dst = ib_user_path_rec {
        dgid,
        sgid,
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic as u32,
        flow_label: src.flow_label,
        reversible: src.reversible as u32,
        mtu: src.mtu.into(),
        pkey: src.pkey,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        numb_path: src.numb_path,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}
