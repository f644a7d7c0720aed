//! Binding, resolution of addresses and routes, listening, ports.

use crate::addr;
use crate::boundary::{self, EINVAL, Outcome};
use crate::id::Id;
use crate::sys::*;
use burst_control::cm::{CmAddr, CmCommand};
use std::ffi::c_int;

/// Binds an id.
///
/// # Errors
/// The daemon's refusal: EADDRINUSE, EADDRNOTAVAIL, ENODEV.
pub fn bind(id: &Id, to: CmAddr) -> Outcome<()> {
    let reply = id.ask(vec![CmCommand::Bind { id: id.number, addr: to }])?;
    id.follow_reply(&reply)
}

/// Resolves a destination. For asynchronous ids an event has the result.
///
/// # Errors
/// EINVAL in a wrong state; EIO if the daemon has ended; for synchronous ids also the errno of the resolution.
pub fn resolve_addr(id: &Id, src: Option<CmAddr>, dst: CmAddr, timeout_ms: c_int) -> Outcome<()> {
    // As in Linux, a negative timeout is a very long one.
    let timeout_ms = timeout_ms as u32;
    id.send_command(CmCommand::ResolveAddr { id: id.number, src, dst, timeout_ms })?;
    // SAFETY: the field of a live struct, which has room for any address.
    unsafe { addr::write(&raw mut (*id.as_rdma()).route.addr.__bindgen_anon_2, &dst) };
    id.complete()
}

/// Resolves the route to the destination.
///
/// # Errors
/// As [`resolve_addr`].
pub fn resolve_route(id: &Id, timeout_ms: c_int) -> Outcome<()> {
    id.send_command(CmCommand::ResolveRoute { id: id.number, timeout_ms: timeout_ms.max(0) as u32 })?;
    id.complete()
}

/// `rdma_bind_addr`: the any-address and port 0 are allowed.
///
/// # Safety
/// `id` must be alive, `to` as long as its family demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, to: *mut sockaddr) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, to) = unsafe { (Id::from_rdma(id)?, addr::read(to)?) };
        bind(id, to)
    })
}

/// `rdma_resolve_addr`: resolves a destination, and binds the id to the source address of the route.
///
/// # Safety
/// `id` must be alive, `src` NULL or an address, `dst` an address, each as long as its family demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let src = if src.is_null() { None } else { Some(addr::read(src)?) };
            resolve_addr(Id::from_rdma(id)?, src, addr::read(dst)?, timeout_ms)
        }
    })
}

/// `rdma_resolve_route`: resolves the route to the destination of [`rdma_resolve_addr`].
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    boundary::status(|| resolve_route(unsafe { Id::from_rdma(id) }?, timeout_ms))
}

/// `rdma_listen`.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::from_rdma(id) }?;
        let listen = CmCommand::Listen { id: id.number, backlog: backlog.max(0) as u32 };
        // Listening binds an unbound id: get its port.
        let reply = id.ask(vec![listen, CmCommand::Query { id: id.number }])?;
        id.steps.listen();
        id.follow_reply(&reply)
    })
}

/// The port of one of the id's addresses, big-endian; 0 if there is none.
unsafe fn port_of(id: *mut rdma_cm_id, of: impl Fn(&mut rdma_addr) -> Outcome<CmAddr>) -> __be16 {
    let mut port = 0;
    boundary::nothing(|| {
        // SAFETY: the caller gives a live id.
        port = of(unsafe { &mut (*Id::from_rdma(id)?.as_rdma()).route.addr })?.port.to_be();
        Ok(())
    });
    port
}

/// `rdma_get_src_port`: the local port, big-endian.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the caller's promise; the union has room for any address.
    unsafe { port_of(id, |a| addr::read(&raw const a.__bindgen_anon_1)) }
}

/// `rdma_get_dst_port`: the peer's port, big-endian.
///
/// # Safety
/// `id` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the caller's promise; the union has room for any address.
    unsafe { port_of(id, |a| addr::read(&raw const a.__bindgen_anon_2)) }
}

/// Checks the length of an address against its family.
///
/// # Errors
/// EINVAL if it is shorter than its family demands.
///
/// # Safety
/// `from` must have `len` readable bytes.
pub unsafe fn read_sized(from: *const sockaddr, len: socklen_t) -> Outcome<CmAddr> {
    if from.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(EINVAL);
    }
    // SAFETY: at least the family is there.
    let family = i32::from(unsafe { from.cast::<libc::sa_family_t>().read_unaligned() });
    let needed = match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => 0,
    };
    // SAFETY: as long as its family demands.
    if (len as usize) < needed { Err(EINVAL) } else { unsafe { addr::read(from) } }
}
