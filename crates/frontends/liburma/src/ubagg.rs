//! The generic netlink family `UBAGG_GENL`, by which programs ask for the map of the network ([`crate::topology`]).
//!
//! On a machine with a Unified Bus the kernel's module `ubagg` has the family. A request has a pointer to a structure of the
//! program in an attribute; the kernel fills it and acknowledges the request. Here two functions of libnl that programs call for
//! that are exported, [`genl_ctrl_resolve`] and [`nl_send_auto`]. They do it for this family only, and pass everything else to
//! libnl, which is looked up when one is called first: this library does not need libnl, and a program that does not use it
//! notices nothing. The filled structure is acknowledged by the kernel: in place of the request it gets an empty message of type
//! `NLMSG_NOOP`, so whatever the program receives by needs no change.

use crate::device::eid_of;
use crate::eids::addresses;
use crate::log::explain;
use crate::macros::exported;
use crate::topology::{self, MapPlace};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, transmute};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The name of the family.
const FAMILY: &CStr = c"UBAGG_GENL";
/// Its number: behind those that the kernel gives (`GENL_MAX_ID`, 1023).
const FAMILY_ID: u16 = 0x4255;
/// The request for one node of the map, and the attribute with the address of the structure.
const GET_TOPO: u8 = 1;
const ARGS_ADDR: u16 = 4;
/// `NLMSG_NOOP`.
const NOOP: u16 = 1;
/// Errors of libnl (netlink/errno.h), negated as its functions return them: no memory or library, value, operation.
const NLE_FAILURE: c_int = -1;
const NLE_INVAL: c_int = -7;
const NLE_OPNOTSUPP: c_int = -10;

/// Sizes of the map in the interface of the family.
const NODES_MAX: usize = 1024;
const DEVICES: usize = 256;
const DIES: usize = 2;
const PORTS: usize = 9;

/// A die of a device: its place, and its addresses.
#[repr(C)]
struct TopologyDie {
    chip: u32,
    die: u32,
    /// Dies of one entity and chip are one to the program.
    entity: u32,
    primary_eid: [u8; 16],
    port_eids: [[u8; 16]; PORTS],
    cnas: [[u8; 16]; PORTS],
}

/// A device that aggregates dies.
#[repr(C)]
struct TopologyDevice {
    eid: [u8; 16],
    dies: [TopologyDie; DIES],
}

/// A node of the map.
#[repr(C)]
struct TopologyNode {
    kind: u32,
    super_node: u32,
    number: u32,
    is_current: u32,
    links: [[u8; DIES * PORTS]; DIES * PORTS],
    devices: [TopologyDevice; DEVICES],
}

/// The argument of [`GET_TOPO`].
#[repr(C)]
struct TopologyArg {
    index: c_int,
    count: u32,
    node: TopologyNode,
}

const _: () = assert!(size_of::<TopologyDie>() == 316 && size_of::<TopologyDevice>() == 648);
const _: () = assert!(size_of::<TopologyNode>() == 166_228 && offset_of!(TopologyNode, devices) == 340);
const _: () = assert!(size_of::<TopologyArg>() == 166_236);

/// `struct nlmsghdr`.
#[repr(C)]
struct MessageHeader {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// Bytes of the header, of the generic one behind it (command, version, two reserved), and of an attribute's.
const HEADER: usize = size_of::<MessageHeader>();
const GENERIC: usize = 4;
const ATTRIBUTE: usize = 4;

/// A function of libnl.
struct LibnlFunction {
    name: &'static CStr,
    library: &'static CStr,
    found: OnceLock<usize>,
}

impl LibnlFunction {
    const fn new(name: &'static CStr, library: &'static CStr) -> LibnlFunction {
        LibnlFunction { name, library, found: OnceLock::new() }
    }
    /// Its address behind this library in the order of look-ups, or in the library itself: who loads that for itself alone
    /// (`dlopen` without RTLD_GLOBAL) still calls this one. `None`: there is none.
    fn find(&self) -> Option<*mut c_void> {
        let find = || {
            // SAFETY: names are C strings; the library is not loaded here, and stays loaded as its caller uses it.
            unsafe {
                let next = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
                if !next.is_null() {
                    return next as usize;
                }
                let library = libc::dlopen(self.library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if library.is_null() { 0 } else { libc::dlsym(library, self.name.as_ptr()) as usize }
            }
        };
        if let Some(found) = self.found.get() {
            return Some(*found as *mut c_void);
        }
        let found = find();
        // A library may be loaded later.
        (found != 0).then(|| *self.found.get_or_init(|| found) as *mut c_void)
    }
}

const LIBNL: &CStr = c"libnl-3.so.200";
static RESOLVE: LibnlFunction = LibnlFunction::new(c"genl_ctrl_resolve", c"libnl-genl-3.so.200");
static SEND: LibnlFunction = LibnlFunction::new(c"nl_send_auto", LIBNL);
static HEADER_OF: LibnlFunction = LibnlFunction::new(c"nlmsg_hdr", LIBNL);

/// A command of the family and the address that it gives, in the bytes of a message behind its header.
fn request_of(body: &[u8]) -> Option<(u8, u64)> {
    let (generic, mut rest) = body.split_at_checked(GENERIC)?;
    while rest.len() >= ATTRIBUTE {
        let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let value = rest.get(ATTRIBUTE..len)?;
        if u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff == ARGS_ADDR {
            return Some((generic[0], u64::from_ne_bytes(value.try_into().ok()?)));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// The map that the program reads node by node: one that is made when it asks for the first node. The machine's own addresses
/// come first.
struct ReadMap {
    places: Vec<MapPlace>,
    own: usize,
}

static MAP: Mutex<ReadMap> = Mutex::new(ReadMap { places: Vec::new(), own: 0 });
/// Whether the program has asked for the number of the family: only then may it send a message of it.
static IS_RESOLVED: AtomicBool = AtomicBool::new(false);

/// Fills the argument of [`GET_TOPO`]. An error of libnl.
///
/// # Safety
/// The argument is the program's, and nobody else uses it.
unsafe fn fill(arg: *mut TopologyArg) -> Result<(), c_int> {
    let mut map = MAP.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: as the caller promises.
    let index = usize::try_from(unsafe { (*arg).index }).map_err(|_| NLE_INVAL)?;
    if index == 0 {
        let own = addresses();
        let places = topology::places(&own).map_err(|sentence| {
            explain(&sentence);
            NLE_INVAL
        })?;
        *map = ReadMap { places, own: own.len() };
    }
    let count = nodes_of(map.places.len());
    if index >= count {
        return Err(NLE_INVAL);
    }
    // SAFETY: as above; numbers and bytes only.
    let arg = unsafe {
        (&raw mut (*arg).node).write_bytes(0, 1);
        &mut *arg
    };
    arg.count = count as u32;
    (arg.node.number, arg.node.is_current) = (index as u32, u32::from(index == 0));
    let first = index * DEVICES;
    for (i, (device, place)) in arg.node.devices.iter_mut().zip(map.places.iter().skip(first)).enumerate() {
        let number = first + i;
        // All addresses of this machine are one device, whose parts a program chooses by the chip.
        let aggregate = if number < map.own { map.places[0].address } else { place.address };
        device.eid = eid_of(aggregate).0;
        device.dies[0].primary_eid = eid_of(place.address).0;
        // The chip says by which of this machine's addresses a place is reached. No two places are one entity.
        (device.dies[0].chip, device.dies[0].entity) = (place.source + 1, number as u32 + 1);
    }
    Ok(())
}

/// Nodes of a map with so many addresses. Even an empty one has a node: a program takes none for an error of the family.
fn nodes_of(places: usize) -> usize {
    places.div_ceil(DEVICES).clamp(1, NODES_MAX)
}

/// Carries out a request of the family.
///
/// # Safety
/// A whole message of the program.
unsafe fn answer(header: *const MessageHeader) -> Result<(), c_int> {
    // SAFETY: the header says how long the message is.
    let body = unsafe {
        let len = ((*header).len as usize).checked_sub(HEADER).ok_or(NLE_INVAL)?;
        std::slice::from_raw_parts(header.cast::<u8>().add(HEADER), len)
    };
    match request_of(body) {
        // SAFETY: the program gives the address of its structure.
        Some((GET_TOPO, addr)) if addr != 0 => unsafe { fill(addr as *mut TopologyArg) },
        Some((GET_TOPO, _)) | None => Err(NLE_INVAL),
        Some(_) => Err(NLE_OPNOTSUPP),
    }
}

exported! {
    /// The number of a generic netlink family.
    fn genl_ctrl_resolve(socket: *mut c_void, name: *const c_char) -> c_int {
        if !name.is_null() && CStr::from_ptr(name) == FAMILY {
            IS_RESOLVED.store(true, Ordering::Relaxed);
            return c_int::from(FAMILY_ID);
        }
        let Some(function) = RESOLVE.find() else { return NLE_FAILURE };
        let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int = transmute(function);
        function(socket, name)
    }
    /// Completes a message and sends it.
    fn nl_send_auto(socket: *mut c_void, message: *mut c_void) -> c_int {
        let Some(send) = SEND.find() else { return NLE_FAILURE };
        let send: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int = transmute(send);
        if !IS_RESOLVED.load(Ordering::Relaxed) {
            return send(socket, message);
        }
        let Some(header_of) = HEADER_OF.find() else { return NLE_FAILURE };
        let header_of: unsafe extern "C" fn(*mut c_void) -> *mut MessageHeader = transmute(header_of);
        let header = if message.is_null() { std::ptr::null_mut() } else { header_of(message) };
        if header.is_null() || (*header).kind != FAMILY_ID {
            return send(socket, message);
        }
        if let Err(error) = answer(header) {
            return error;
        }
        (*header).kind = NOOP;
        let sent = send(socket, message);
        (*header).kind = FAMILY_ID;
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of the family with one attribute.
    fn message(command: u8, kind: u16, value: &[u8]) -> Vec<u8> {
        let mut body = vec![command, 1, 0, 0];
        body.extend(12u16.to_ne_bytes());
        body.extend(99u16.to_ne_bytes());
        body.extend([0; 8]);
        body.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
        body
    }

    #[test]
    fn requests_are_read_and_malformed_ones_refused() {
        assert_eq!(request_of(&message(1, ARGS_ADDR, &0x1234u64.to_ne_bytes())), Some((1, 0x1234)));
        assert_eq!(request_of(&message(1, ARGS_ADDR | 0x8000, &7u64.to_ne_bytes())), Some((1, 7)), "flags of the type");
        assert_eq!(request_of(&message(1, ARGS_ADDR, &[1, 2, 3, 4])), None);
        assert_eq!(request_of(&message(1, 5, &[0; 8])), None);
        let whole = message(1, ARGS_ADDR, &[1; 8]);
        for len in 0..whole.len() {
            assert_eq!(request_of(&whole[..len]), None, "{len}");
        }
        for fill in [0u8, 1, 3, 0xff] {
            assert_eq!(request_of(&[fill; 64]), None);
        }
    }

    #[test]
    fn the_map_is_read_node_by_node() {
        let mut arg: Box<TopologyArg> = {
            // SAFETY: numbers and bytes; all zero is valid.
            unsafe { Box::<TopologyArg>::new_zeroed().assume_init() }
        };
        let (mut found, mut index, mut count) = (Vec::new(), 0, 1);
        while index < count {
            arg.index = index;
            arg.node.links[17][17] = 1;
            // SAFETY: the test's own structure.
            unsafe { fill(&raw mut *arg) }.expect("a node");
            assert_eq!((arg.node.number, arg.node.is_current), (index as u32, u32::from(index == 0)));
            assert_eq!(arg.node.links[17][17], 0);
            let devices = arg.node.devices.iter().filter(|device| device.dies[0].primary_eid != [0; 16]);
            found.extend(devices.map(|device| (device.eid, device.dies[0].primary_eid, device.dies[0].chip)));
            (index, count) = (index + 1, arg.count as c_int);
        }
        let own = addresses();
        for (i, address) in own.iter().enumerate() {
            assert_eq!(found[i], (eid_of(own[0]).0, eid_of(*address).0, i as u32 + 1));
        }
        assert!(found.iter().all(|place| (1..=own.len() as u32).contains(&place.2)));
        for wrong in [-1, count, c_int::MAX] {
            arg.index = wrong;
            // SAFETY: as above.
            assert_eq!(unsafe { fill(&raw mut *arg) }, Err(NLE_INVAL), "{wrong}");
        }
        assert_eq!([0, 1, 256, 257, 1 << 16, 1 << 20].map(nodes_of), [1, 1, 1, 2, 256, 1024]);
    }

    #[test]
    fn other_commands_and_families_are_not_answered() {
        for (command, wanted) in [(0, NLE_OPNOTSUPP), (2, NLE_OPNOTSUPP), (GET_TOPO, NLE_INVAL)] {
            let mut bytes = vec![0u8; HEADER];
            bytes.extend(message(command, ARGS_ADDR, &[0; 8]));
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            let mut words = vec![0u32; bytes.len().div_ceil(4)];
            // SAFETY: as many bytes as there are; the copy is aligned.
            let result = unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len());
                answer(words.as_ptr().cast())
            };
            assert_eq!(result, Err(wanted), "{command}");
        }
        // SAFETY: a C string; no libnl is loaded, so only the own family has a number.
        unsafe {
            let resolve = |name: &CStr| genl_ctrl_resolve(std::ptr::null_mut(), name.as_ptr());
            assert_eq!((resolve(FAMILY), resolve(c"nlctrl")), (c_int::from(FAMILY_ID), NLE_FAILURE));
            assert_eq!(nl_send_auto(std::ptr::null_mut(), std::ptr::null_mut()), NLE_FAILURE);
        }
    }
}
