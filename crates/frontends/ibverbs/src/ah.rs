//! Address handles, and making one from a received datagram.
//!
//! The first 40 bytes of a UD receive are the GRH area. RoCE v2 over IPv6 fills it with the IPv6 header; over IPv4 the last 20
//! bytes are the IPv4 header and the first 20 are undefined (IBA annex A17.4.5.2).

use crate::attr;
use crate::boundary::{self, EINVAL, EIO, Outcome};
use crate::context::VerbsContext;
use crate::pd_mr::pd_of;
use crate::port::{check_gid_index, check_port};
use crate::sys::*;
use burst_control::{Request, Response};
use std::ffi::c_int;

/// Bytes of the GRH area of a UD receive.
const GRH_BYTES: usize = 40;
/// Offset of the IPv4 header in the GRH area.
const IPV4_AT: usize = 20;

/// The daemon's handle of an address handle.
///
/// # Safety
/// `ah` must be NULL or alive.
#[inline]
pub unsafe fn number_of(ah: *mut ibv_ah) -> Option<u32> {
    // SAFETY: the caller's promise.
    unsafe { ah.as_ref() }.map(|a| a.handle)
}

unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    // SAFETY: the caller gives a live PD.
    let (context, pd_handle) = unsafe { pd_of(pd) }?;
    // RoCE addresses are GIDs: an address vector without GRH has no address (IBA annex A16).
    if attr.is_global == 0 {
        return Err(EINVAL);
    }
    check_port(attr.port_num.into())?;
    check_gid_index(attr.grh.sgid_index)?;
    let request = Request::CreateAh { pd: pd_handle, attr: attr::ah_from_ibv(attr) };
    let Response::Handle(handle) = context.ask(&request)? else { return Err(EIO) };
    Ok(Box::into_raw(Box::new(ibv_ah { context: context.as_ibv(), pd, handle })))
}

/// `ibv_create_ah`: creates an address handle.
///
/// # Safety
/// `pd` must be alive and `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe { create(pd, attr.as_ref().ok_or(EINVAL)?) })
}

/// `ibv_destroy_ah`: destroys an address handle.
///
/// # Safety
/// `ah` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live handle of an open context.
        let ours = unsafe { ah.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.context) }?;
        context.end_object(&Request::DestroyAh { ah: ours.handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(ah) });
        Ok(())
    })
}

/// Addresses and traffic class of a received GRH.
#[derive(Debug, PartialEq, Eq)]
struct ReceivedHeaders {
    source: [u8; 16],
    destination: [u8; 16],
    traffic_class: u8,
    flow_label: u32,
}

fn mapped(v4: &[u8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(v4);
    gid
}

fn parse_grh(grh: &[u8; GRH_BYTES]) -> Outcome<ReceivedHeaders> {
    let array = |range: std::ops::Range<usize>| <[u8; 16]>::try_from(&grh[range]).map_err(|_| EINVAL);
    if grh[IPV4_AT] == 0x45 && grh[0] >> 4 != 6 {
        return Ok(ReceivedHeaders {
            source: mapped(&grh[IPV4_AT + 12..IPV4_AT + 16]),
            destination: mapped(&grh[IPV4_AT + 16..IPV4_AT + 20]),
            traffic_class: grh[IPV4_AT + 1],
            flow_label: 0,
        });
    }
    if grh[0] >> 4 != 6 {
        return Err(EINVAL);
    }
    let first = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    Ok(ReceivedHeaders {
        source: array(8..24)?,
        destination: array(24..40)?,
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
    })
}

unsafe fn attr_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<ibv_ah_attr> {
    // SAFETY: the caller gives an open context, a completion, and the GRH if the completion says so.
    let (context, wc) = unsafe { (VerbsContext::from_ibv(context)?, wc.as_ref().ok_or(EINVAL)?) };
    check_port(port.into())?;
    // `wc->sl` of a datagram encodes its IP version; it is not a service level for the reply.
    let mut attr =
        ibv_ah_attr { dlid: wc.slid, src_path_bits: wc.dlid_path_bits, port_num: port, ..Default::default() };
    if wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: a GRH area has 40 bytes; it need not be aligned.
    let received = parse_grh(&unsafe { grh.cast::<[u8; GRH_BYTES]>().read_unaligned() })?;
    let device = context.device_now()?;
    let index = device.gids.iter().position(|g| g.gid == received.destination).ok_or(EINVAL)?;
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: received.source },
        flow_label: received.flow_label,
        sgid_index: index as u8,
        // The reply gets the largest hop limit: the hop limit of the received datagram says nothing about the way back.
        hop_limit: 255,
        traffic_class: received.traffic_class,
    };
    Ok(attr)
}

/// `ibv_init_ah_from_wc`: the address vector of a datagram's sender.
///
/// # Safety
/// `context` must be open, `wc` and `attr` valid, `grh` the start of the receive buffer if the completion has a GRH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller's promise.
        unsafe { *attr = attr_from_wc(context, port, wc, grh)? };
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`: creates an address handle of a datagram's sender.
///
/// # Safety
/// As for `ibv_init_ah_from_wc`, and `pd` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let attr = attr_from_wc(pd.as_ref().ok_or(EINVAL)?.context, port, wc, grh)?;
            create(pd, &attr)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_headers_lie_in_the_second_half() {
        let mut grh = [0; GRH_BYTES];
        grh[20] = 0x45;
        grh[21] = 0x68;
        grh[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let got = parse_grh(&grh).unwrap();
        assert_eq!(got.source[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(got.destination[12..], [10, 0, 0, 2]);
        assert_eq!(got.traffic_class, 0x68);
    }

    #[test]
    fn ipv6_headers_fill_the_area() {
        let mut grh = [0; GRH_BYTES];
        grh[..4].copy_from_slice(&0x6081_2345u32.to_be_bytes());
        grh[8] = 0xfe;
        grh[24] = 0xfd;
        let got = parse_grh(&grh).unwrap();
        assert_eq!((got.source[0], got.destination[0]), (0xfe, 0xfd));
        assert_eq!((got.traffic_class, got.flow_label), (8, 0x1_2345));
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(parse_grh(&[0; GRH_BYTES]), Err(EINVAL));
    }
}
