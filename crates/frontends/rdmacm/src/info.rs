//! `rdma_getaddrinfo`: resolves names by the C library's resolver, for `rdma_create_ep`.
//!
//! A result and all parts that it points to are separate blocks of the C heap: programs replace parts, and pass lists that they
//! have allocated themselves to `rdma_freeaddrinfo` (libfabric does).

use crate::addr;
use crate::boundary::{self, EINVAL, ENOMEM, Errno, Outcome, errno};
use crate::resolve::read_sized;
use crate::sys::*;
use burst_control::cm::CmAddr;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

/// The caller's hints.
struct Hints {
    are_given: bool,
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    src: Option<CmAddr>,
    dst: Option<CmAddr>,
}

/// Port space and service of the hints. A missing one follows from the other; the default is RC.
fn service(hints: &mut Hints) {
    if hints.port_space == 0 {
        let datagram = hints.qp_type == IBV_QPT_UD as c_int;
        hints.port_space = if datagram { RDMA_PS_UDP } else { RDMA_PS_TCP } as c_int;
    }
    if hints.qp_type == 0 {
        let datagram = [RDMA_PS_UDP, RDMA_PS_IPOIB].contains(&(hints.port_space as rdma_port_space));
        hints.qp_type = if datagram { IBV_QPT_UD } else { IBV_QPT_RC } as c_int;
    }
}

unsafe fn hints_of(given: *const rdma_addrinfo) -> Outcome<Hints> {
    let are_given = !given.is_null();
    let mut hints = Hints { are_given, flags: 0, family: 0, qp_type: 0, port_space: 0, src: None, dst: None };
    // SAFETY: NULL, or a valid struct with addresses of the lengths stated.
    unsafe {
        if let Some(h) = given.as_ref() {
            (hints.flags, hints.qp_type, hints.port_space) = (h.ai_flags, h.ai_qp_type, h.ai_port_space);
            hints.family = h.ai_family;
            if h.ai_src_len != 0 {
                hints.src = Some(read_sized(h.ai_src_addr, h.ai_src_len)?);
            }
            if h.ai_dst_len != 0 {
                hints.dst = Some(read_sized(h.ai_dst_addr, h.ai_dst_len)?);
            }
        }
    }
    if hints.family == addr::AF_IB {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    service(&mut hints);
    Ok(hints)
}

/// Why the call fails.
#[derive(Debug, PartialEq)]
enum Failure {
    /// The resolver's code, for `gai_strerror`: the function's value, as in rdma-core.
    Resolver(c_int),
    Here(Errno),
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure::Here(error)
    }
}

/// The errno for a resolver's error.
fn resolver_error(code: c_int) -> Errno {
    match code {
        libc::EAI_SYSTEM => errno(),
        libc::EAI_MEMORY => ENOMEM,
        libc::EAI_AGAIN => Errno(libc::EAGAIN),
        libc::EAI_FAMILY => Errno(libc::EAFNOSUPPORT),
        libc::EAI_BADFLAGS | libc::EAI_SERVICE => EINVAL,
        _ => Errno(libc::ENODATA),
    }
}

/// A resolved address, and its canonical name.
type Found = (CmAddr, Option<CString>);

/// Calls the C library's resolver.
unsafe fn look_up(node: *const c_char, service: *const c_char, hints: &Hints) -> Result<Vec<Found>, Failure> {
    // SAFETY: plain words, for which zero is a value.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    let has = |flag: u32| hints.flags & flag as c_int != 0;
    wanted.ai_socktype = libc::SOCK_STREAM;
    wanted.ai_family = if hints.family != 0 || has(RAI_FAMILY) { hints.family } else { libc::AF_UNSPEC };
    wanted.ai_flags |= if has(RAI_PASSIVE) { libc::AI_PASSIVE } else { 0 };
    wanted.ai_flags |= if has(RAI_NUMERICHOST) { libc::AI_NUMERICHOST } else { 0 };
    wanted.ai_flags |= if node.is_null() { 0 } else { libc::AI_CANONNAME };
    let mut list = null_mut();
    // SAFETY: C strings or NULL, and a writable place.
    let code = unsafe { libc::getaddrinfo(node, service, &wanted, &mut list) };
    if code != 0 {
        return Err(Failure::Resolver(code));
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: a list of the resolver's, given back at the end.
    unsafe {
        while let Some(entry) = at.as_ref() {
            let name = (!entry.ai_canonname.is_null()).then(|| CStr::from_ptr(entry.ai_canonname).to_owned());
            if let Ok(address) = addr::read(entry.ai_addr) {
                found.push((address, name));
            }
            at = entry.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    Ok(found)
}

/// Allocates zeroed memory that the program may pass to `free`.
fn zeroed<T>() -> Outcome<*mut T> {
    // SAFETY: no memory is touched by asking for some.
    let place = unsafe { libc::calloc(1, size_of::<T>()) };
    if place.is_null() { Err(ENOMEM) } else { Ok(place.cast()) }
}

/// Copies an address to a new block; returns it with its length and family.
fn address(of: &CmAddr) -> Outcome<(*mut libc::sockaddr_storage, socklen_t, c_int)> {
    let place = zeroed::<libc::sockaddr_storage>()?;
    // SAFETY: fresh, and storage has room for any address.
    let family = unsafe {
        addr::write(place, of);
        (*place).ss_family
    };
    Ok((place, addr::len_of(of) as socklen_t, family.into()))
}

/// Makes one result.
fn allocate(
    hints: &Hints,
    src: Option<CmAddr>,
    dst: Option<CmAddr>,
    name: Option<&CStr>,
) -> Outcome<*mut rdma_addrinfo> {
    let made = zeroed::<rdma_addrinfo>()?;
    // SAFETY: fresh, and of plain words for which zero is a value.
    let filled = fill(unsafe { &mut *made }, hints, src, dst, name);
    if let Err(error) = filled {
        // SAFETY: made above, and no other thread has seen it.
        unsafe { free_entry(made) };
        return Err(error);
    }
    Ok(made)
}

fn fill(
    base: &mut rdma_addrinfo,
    hints: &Hints,
    src: Option<CmAddr>,
    dst: Option<CmAddr>,
    name: Option<&CStr>,
) -> Outcome<()> {
    (base.ai_flags, base.ai_qp_type, base.ai_port_space) = (hints.flags, hints.qp_type, hints.port_space);
    if let Some(src) = src {
        let (place, len, family) = address(&src)?;
        (base.ai_src_addr, base.ai_src_len, base.ai_family) = (place.cast(), len, family);
    }
    if let Some(dst) = dst {
        let (place, len, family) = address(&dst)?;
        (base.ai_dst_addr, base.ai_dst_len, base.ai_family) = (place.cast(), len, family);
    }
    if let Some(name) = name {
        // SAFETY: a C string.
        let copy = unsafe { libc::strdup(name.as_ptr()) };
        let passive = hints.flags & RAI_PASSIVE as c_int != 0;
        *(if passive { &mut base.ai_src_canonname } else { &mut base.ai_dst_canonname }) = copy;
    }
    Ok(())
}

/// Frees one result and what it points to.
///
/// # Safety
/// The entry and all that it points to come from the C allocator and are given up.
unsafe fn free_entry(entry: *mut rdma_addrinfo) {
    // SAFETY: the caller's promise; freeing NULL does nothing.
    unsafe {
        let e = &*entry;
        let parts = [e.ai_src_canonname.cast(), e.ai_dst_canonname.cast(), e.ai_src_addr.cast(), e.ai_dst_addr.cast()];
        for part in parts.into_iter().chain([e.ai_route, e.ai_connect]) {
            libc::free(part);
        }
        libc::free(entry.cast());
    }
}

unsafe fn resolve(node: *const c_char, service: *const c_char, hints: &Hints) -> Result<*mut rdma_addrinfo, Failure> {
    let passive = hints.flags & RAI_PASSIVE as c_int != 0;
    let found = if node.is_null() && service.is_null() {
        // As in rdma-core, hints alone give an entry with the addresses that they have, if any.
        if !hints.are_given {
            return Err(EINVAL.into());
        }
        return Ok(allocate(hints, hints.src, hints.dst, None)?);
    } else {
        // SAFETY: the caller's promise.
        unsafe { look_up(node, service, hints) }?
    };
    let mut list = null_mut();
    for (address, name) in found.into_iter().rev() {
        let (src, dst) = if passive { (Some(address), hints.dst) } else { (hints.src, Some(address)) };
        let made = allocate(hints, src, dst, name.as_deref());
        let Ok(entry) = made else {
            // SAFETY: made here, and no other thread has seen it.
            unsafe { rdma_freeaddrinfo(list) };
            return Ok(made?);
        };
        // SAFETY: just made.
        unsafe { (*entry).ai_next = list };
        list = entry;
    }
    if list.is_null() { Err(Errno(libc::ENODATA).into()) } else { Ok(list) }
}

/// `rdma_getaddrinfo`: addresses of a node and service, for [`crate::ep::rdma_create_ep`]. If the resolver fails, returns the
/// resolver's code, for `gai_strerror`, and sets errno to an equivalent.
///
/// # Safety
/// `node` and `service` must be NULL or C strings, `hints` NULL or valid, `result` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut code = None;
    let status = boundary::status(|| {
        if result.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        match unsafe { resolve(node, service, &hints_of(hints)?) } {
            // SAFETY: as above.
            Ok(list) => unsafe { *result = list },
            Err(Failure::Here(error)) => return Err(error),
            Err(Failure::Resolver(said)) => {
                code = Some(said);
                return Err(resolver_error(said));
            }
        }
        Ok(())
    });
    code.unwrap_or(status)
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// `list` must be NULL, or come from [`rdma_getaddrinfo`] or, part by part, from `malloc`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    boundary::nothing(|| {
        let mut at = list;
        while !at.is_null() {
            // SAFETY: the caller's promise.
            unsafe {
                let next = (*at).ai_next;
                free_entry(at);
                at = next;
            }
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(node: Option<&CStr>, service: Option<&CStr>, hints: &rdma_addrinfo) -> Outcome<rdma_addrinfo> {
        let mut list = null_mut();
        let text = |s: Option<&CStr>| s.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: C strings, a valid struct and a writable place; the list is given back.
        unsafe {
            if rdma_getaddrinfo(text(node), text(service), hints, &mut list) != 0 {
                return Err(errno());
            }
            let first = *list;
            // The list owns the addresses: check them before it is freed.
            let address = if first.ai_dst_addr.is_null() { first.ai_src_addr } else { first.ai_dst_addr };
            assert_eq!(addr::read(address).unwrap().port, 7174);
            rdma_freeaddrinfo(list);
            Ok(first)
        }
    }

    #[test]
    fn active_lists_have_a_destination_and_passive_ones_a_source() {
        let hints = rdma_addrinfo { ai_port_space: RDMA_PS_TCP as c_int, ..Default::default() };
        let a = ask(Some(c"10.0.0.1"), Some(c"7174"), &hints).unwrap();
        assert_eq!((a.ai_dst_len, a.ai_src_len, a.ai_family), (16, 0, libc::AF_INET));
        assert_eq!((a.ai_qp_type, a.ai_port_space), (IBV_QPT_RC as c_int, RDMA_PS_TCP as c_int));
        let hints = rdma_addrinfo { ai_flags: RAI_PASSIVE as c_int, ai_port_space: 0x111, ..Default::default() };
        let p = ask(Some(c"::1"), Some(c"7174"), &hints).unwrap();
        assert_eq!((p.ai_src_len, p.ai_dst_len, p.ai_family), (28, 0, libc::AF_INET6));
        assert_eq!(p.ai_qp_type, IBV_QPT_UD as c_int);
        let any = ask(None, Some(c"7174"), &hints).unwrap();
        assert!(any.ai_src_len > 0);
    }

    #[test]
    fn lists_of_the_programs_own_making_are_freed() {
        let hints = rdma_addrinfo { ai_port_space: RDMA_PS_TCP as c_int, ..Default::default() };
        let mut list = null_mut();
        // SAFETY: C strings, valid structs; all parts come from the C allocator.
        unsafe {
            assert_eq!(rdma_getaddrinfo(c"10.0.0.1".as_ptr(), c"7174".as_ptr(), &hints, &mut list), 0);
            let own = zeroed::<rdma_addrinfo>().unwrap();
            (*own).ai_src_addr = libc::malloc(16).cast();
            (*own).ai_src_canonname = libc::strdup(c"name".as_ptr());
            (*own).ai_next = list;
            libc::free((*list).ai_dst_addr.cast());
            (*list).ai_dst_addr = libc::malloc(16).cast();
            rdma_freeaddrinfo(own);
        }
    }

    #[test]
    fn hints_alone_give_an_entry_without_addresses() {
        let hints = rdma_addrinfo { ai_port_space: RDMA_PS_UDP as c_int, ..Default::default() };
        let mut list = null_mut();
        // SAFETY: valid hints and a writable place; the list is given back.
        unsafe {
            assert_eq!(rdma_getaddrinfo(std::ptr::null(), std::ptr::null(), &hints, &mut list), 0);
            let only = *list;
            assert!(only.ai_src_addr.is_null() && only.ai_dst_addr.is_null() && only.ai_next.is_null());
            assert_eq!((only.ai_port_space, only.ai_qp_type), (RDMA_PS_UDP as c_int, IBV_QPT_UD as c_int));
            rdma_freeaddrinfo(list);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let hints = rdma_addrinfo { ai_flags: RAI_NUMERICHOST as c_int, ..Default::default() };
        assert!(ask(Some(c"no.address"), Some(c"7174"), &hints).is_err());
        let mut list = null_mut();
        // SAFETY: NULL is allowed, and the place is writable.
        assert_ne!(unsafe { rdma_getaddrinfo(std::ptr::null(), std::ptr::null(), std::ptr::null(), &mut list) }, 0);
        assert!(errno() == EINVAL && list.is_null());
        let ib = rdma_addrinfo { ai_flags: RAI_FAMILY as c_int, ai_family: addr::AF_IB, ..Default::default() };
        assert_eq!(ask(Some(c"::1"), Some(c"7174"), &ib).err(), Some(Errno(libc::EAFNOSUPPORT)));
    }
}
