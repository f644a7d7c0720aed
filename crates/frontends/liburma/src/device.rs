//! Library, devices, contexts, asynchronous events, log function.

use crate::abi::{
    AlignedAddress, DeviceAttr, EAGAIN, EINVAL, EPERM, Eid, EidInfo, FAIL, MUTEX, NetAddr, PriorityInfo, SUCCESS,
    Status, UrmaAsyncEvent, UrmaContext, UrmaDevice,
};
use crate::eids::{DEVICE_NAME, addresses};
use crate::host::UrmaHost;
use crate::log::explain;
use crate::macros::exported;
use crate::node::ProgramNode;
use crate::objects::set_errno;
use burst_base::gid::{gid_of, ip_of};
use burst_client::raw::ended_pipe::EventEnd;
use burst_control::AsyncRecord;
use burst_urma::{GROUP_MEMBERS_MAX, URMA_INLINE_MAX, URMA_MESSAGE_MAX};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A context with what the library keeps for it.
#[repr(C)]
pub struct OwnedContext {
    pub c: UrmaContext,
    pub host: Arc<UrmaHost>,
    /// Objects that live: the context cannot be deleted meanwhile.
    pub objects: AtomicUsize,
    /// Its number for events.
    pub number: u64,
    /// Threads that wait for its events, and what becomes of their descriptor when the daemon has ended.
    end: EventEnd<{ AsyncRecord::BYTES }>,
}

/// The table of a provider's functions. Programs look whether `import_jetty_ex` is there: it is not.
#[repr(C)]
struct Ops([usize; 100]);
const _: () = assert!(size_of::<Ops>() == 800);
static OPS: Ops = Ops([0; 100]);

/// The device that stands for all links of a machine where the Unified Bus has several. Programs look for it by its name, and
/// take its one EID for the machine's.
pub const BONDING_NAME: &CStr = c"bonding_dev_0";
/// Queue depth at most.
pub const DEPTH_MAX: u32 = 32_768;
/// Depth of a completion queue at most.
pub const JFC_DEPTH_MAX: u32 = 1 << 20;
/// Entries of a scatter/gather list at most. Two remote ones for WRITE with notification, one for all others.
pub const LOCAL_SGE_MAX: u32 = 1;
pub const REMOTE_SGE_MAX: u32 = 2;
const OBJECTS_MAX: u32 = 65_536;

struct StaticDevice(UrmaDevice);

// SAFETY: the device is never changed after it was made; its pointers are null.
unsafe impl Send for StaticDevice {}
// SAFETY: as for `Send`.
unsafe impl Sync for StaticDevice {}

/// A device that is never changed.
fn made(place: &'static OnceLock<StaticDevice>, called: &CStr) -> *mut UrmaDevice {
    let device = place.get_or_init(|| {
        let mut name = [0; 64];
        for (to, from) in name.iter_mut().zip(called.to_bytes()) {
            *to = *from as c_char;
        }
        StaticDevice(UrmaDevice { name, path: [0; 4096], kind: 0, ops: null_mut(), sysfs: null_mut() })
    });
    (&raw const device.0).cast_mut()
}

/// The device with all addresses.
fn device() -> *mut UrmaDevice {
    static DEVICE: OnceLock<StaticDevice> = OnceLock::new();
    made(&DEVICE, DEVICE_NAME)
}

/// The device with the first address only.
fn bonding_device() -> *mut UrmaDevice {
    static DEVICE: OnceLock<StaticDevice> = OnceLock::new();
    made(&DEVICE, BONDING_NAME)
}

/// The addresses of a device, by the index of their EIDs.
fn addresses_of(device: *mut UrmaDevice) -> Vec<IpAddr> {
    let mut found = addresses();
    if device == bonding_device() {
        found.truncate(1);
    }
    found
}

pub fn eid_of(address: IpAddr) -> Eid {
    Eid(gid_of(address))
}

fn fill_attr(attr: &mut DeviceAttr) {
    // SAFETY: numbers only; zeros are valid.
    *attr = unsafe { std::mem::zeroed() };
    let cap = &mut attr.cap;
    // Selective retransmission (8), groups (11), suspension on errors (12), out-of-order completion (13).
    cap.feature = 1 << 8 | 1 << 11 | 1 << 12 | 1 << 13;
    (cap.max_jetty_grp, cap.max_jetty_in_grp) = (OBJECTS_MAX, GROUP_MEMBERS_MAX as u32);
    (cap.max_jfc, cap.max_jfs, cap.max_jfr, cap.max_jetty) = (OBJECTS_MAX, OBJECTS_MAX, OBJECTS_MAX, OBJECTS_MAX);
    (cap.max_jfc_depth, cap.max_jfs_depth, cap.max_jfr_depth) = (JFC_DEPTH_MAX, DEPTH_MAX, DEPTH_MAX);
    cap.max_inline = URMA_INLINE_MAX as u32;
    (cap.max_jfs_sge, cap.max_jfs_rsge, cap.max_jfr_sge) = (LOCAL_SGE_MAX, REMOTE_SGE_MAX, LOCAL_SGE_MAX);
    cap.max_msg_size = u64::from(URMA_MESSAGE_MAX);
    cap.max_sizes = [URMA_MESSAGE_MAX, URMA_MESSAGE_MAX, 8, 8, 8, 8, 8, 8, 8];
    cap.atomic_feature = 0x7f;
    cap.trans_mode = 7;
    (cap.ceq_cnt, cap.max_eid_cnt, cap.page_size_cap) = (1, 1024, 4096);
    // Target and initiator order and lower layers (OT, OI, OL); RTP, and UTP for UM.
    (cap.order_caps, cap.tp_caps) = ([7, 7], [1, 1, 4]);
    cap.priority = std::array::from_fn(|i| PriorityInfo { sl: i as u32, tp_type: 1 });
    attr.port_cnt = 1;
    // MTU 4096 (5), active (3), one lane, 10 Gbit/s, MTU 1024 (3).
    attr.ports[0] = [5, 3, 1, 4, 3];
    (attr.reserved_min, attr.reserved_max) = (0, 1023);
}

/// A context of an address of this machine; null if its UDP port cannot be used.
pub fn open(dev: *mut UrmaDevice, address: IpAddr, index: u32) -> *mut UrmaContext {
    let host = match UrmaHost::for_context(address) {
        Ok(host) => host,
        Err(error) => {
            explain(&error);
            return null_mut();
        }
    };
    let mut inner = host.lock();
    let async_fd = match &inner.node {
        // SAFETY: makes a descriptor; no memory is passed.
        ProgramNode::Own(_) => unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) },
        ProgramNode::Daemon(daemon) => daemon.async_fd().unwrap_or(-1),
    };
    if async_fd < 0 {
        explain("the system gives no descriptor for events");
        return null_mut();
    }
    let number = if inner.is_daemons() { 0 } else { inner.reports.open_context(async_fd) };
    drop(inner);
    let c = UrmaContext {
        dev,
        ops: (&raw const OPS).cast(),
        dev_fd: -1,
        async_fd,
        mutex: [0; MUTEX],
        eid: eid_of(address),
        eid_index: index,
        uasid: std::process::id(),
        refs: 1,
        aggr_mode: 0,
    };
    Box::into_raw(Box::new(OwnedContext { c, host, objects: AtomicUsize::new(0), number, end: EventEnd::default() }))
        .cast()
}

exported! {
    fn urma_init(_conf: *mut c_void) -> Status {
        burst_ffi::report::misspelt_variables();
        SUCCESS
    }
    fn urma_uninit() -> Status { SUCCESS }
    fn urma_get_uasid(uasid: *mut u32) -> Status {
        if uasid.is_null() {
            return EINVAL;
        }
        *uasid = std::process::id();
        SUCCESS
    }
    fn urma_get_device_list(count: *mut c_int) -> *mut *mut UrmaDevice {
        let list = libc::calloc(3, size_of::<*mut UrmaDevice>()).cast::<*mut UrmaDevice>();
        if list.is_null() {
            return null_mut();
        }
        // Who takes the first one has all addresses.
        (*list, *list.add(1)) = (device(), bonding_device());
        if !count.is_null() {
            *count = 2;
        }
        list
    }
    fn urma_free_device_list(list: *mut *mut UrmaDevice) { libc::free(list.cast()) }
    fn urma_get_device_by_name(name: *const c_char) -> *mut UrmaDevice {
        let named = |wanted: &CStr| !name.is_null() && CStr::from_ptr(name) == wanted;
        if named(DEVICE_NAME) {
            return device();
        }
        if named(BONDING_NAME) {
            return bonding_device();
        }
        explain("the devices are burst0 and bonding_dev_0");
        null_mut()
    }
    fn urma_get_device_by_eid(eid: Eid, _kind: c_int) -> *mut UrmaDevice {
        if addresses().contains(&ip_of(eid.0)) { device() } else { null_mut() }
    }
    fn urma_get_eid_list(device: *mut UrmaDevice, count: *mut u32) -> *mut EidInfo {
        let found = addresses_of(device);
        if count.is_null() {
            set_errno(EINVAL);
            return null_mut();
        }
        let list = libc::calloc(found.len().max(1), size_of::<EidInfo>()).cast::<EidInfo>();
        if list.is_null() {
            return null_mut();
        }
        for (i, address) in found.iter().enumerate() {
            list.add(i).write(EidInfo { eid: eid_of(*address), index: i as u32 });
        }
        *count = found.len() as u32;
        list
    }
    fn urma_free_eid_list(list: *mut EidInfo) { libc::free(list.cast()) }
    fn urma_query_device(dev: *mut UrmaDevice, attr: *mut DeviceAttr) -> Status {
        if dev.is_null() || attr.is_null() {
            return EINVAL;
        }
        fill_attr(&mut *attr);
        SUCCESS
    }
    fn urma_create_context(dev: *mut UrmaDevice, index: u32) -> *mut UrmaContext {
        let found = addresses_of(dev);
        let Some(address) = found.get(index as usize) else {
            explain(&format!("there is no EID with index {index}; there are {}", found.len()));
            return null_mut();
        };
        open(dev, *address, index)
    }
    fn urma_delete_context(ctx: *mut UrmaContext) -> Status {
        if ctx.is_null() {
            return EINVAL;
        }
        let context = ctx.cast::<OwnedContext>();
        // Pairs with the release of the thread that has deleted the last object.
        if (*context).objects.load(Ordering::Acquire) > 0 {
            return EAGAIN;
        }
        let Some(mut inner) = (*context).host.enter() else { return EPERM };
        inner.reports.close_context((*context).number);
        drop(inner);
        libc::close((*ctx).async_fd);
        drop(Box::from_raw(context));
        SUCCESS
    }
    fn urma_get_async_event(ctx: *mut UrmaContext, event: *mut UrmaAsyncEvent) -> Status {
        if ctx.is_null() || event.is_null() {
            return EINVAL;
        }
        let context = &*ctx.cast::<OwnedContext>();
        loop {
            let Some(mut inner) = context.host.enter() else { return EPERM };
            if let Some((kind, element)) = inner.next_event(context.number) {
                *event = UrmaAsyncEvent { ctx, element, kind, private: null_mut() };
                return SUCCESS;
            }
            if inner.has_ended() {
                context.end.rest((*ctx).async_fd);
                return FAIL;
            }
            drop(inner);
            if libc::fcntl((*ctx).async_fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 {
                return EAGAIN;
            }
            if !context.end.enter() {
                return FAIL;
            }
            let mut poll = libc::pollfd { fd: (*ctx).async_fd, events: libc::POLLIN, revents: 0 };
            let ready = libc::poll(&raw mut poll, 1, -1);
            context.end.leave();
            if ready < 0 {
                return FAIL;
            }
        }
    }
    fn urma_ack_async_event(_event: *mut UrmaAsyncEvent) {}
    /// EIDs are addresses, so both directions need no table.
    fn urma_get_eid_by_ip(ctx: *const UrmaContext, net: *const NetAddr, eid: *mut Eid) -> Status {
        if ctx.is_null() || net.is_null() || eid.is_null() {
            return EINVAL;
        }
        let bytes = (*net).address.0;
        let address = match c_int::from((*net).family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return EINVAL,
        };
        *eid = eid_of(address);
        SUCCESS
    }
    fn urma_get_ip_by_eid(ctx: *const UrmaContext, eid: *const Eid, net: *mut NetAddr) -> Status {
        if ctx.is_null() || net.is_null() || eid.is_null() {
            return EINVAL;
        }
        let mut address = [0; 16];
        let (family, prefix_len) = match ip_of((*eid).0) {
            IpAddr::V4(v4) => {
                address[..4].copy_from_slice(&v4.octets());
                (libc::AF_INET as u16, 32)
            }
            IpAddr::V6(v6) => {
                address = v6.octets();
                (libc::AF_INET6 as u16, 128)
            }
        };
        *net = NetAddr { family, address: AlignedAddress(address), vlan: 0, mac: [0; 6], prefix_len };
        SUCCESS
    }
    fn urma_u32_to_eid(ipv4: u32, eid: *mut Eid) {
        if !eid.is_null() {
            *eid = eid_of(IpAddr::V4(Ipv4Addr::from(ipv4)));
        }
    }
    /// An IPv6 or IPv4 address, or the number of an IPv4 address, decimal or hexadecimal.
    fn urma_str_to_eid(text: *const c_char, eid: *mut Eid) -> c_int {
        if text.is_null() || eid.is_null() {
            return -EINVAL;
        }
        let Ok(text) = CStr::from_ptr(text).to_str() else { return -EINVAL };
        let number = || {
            let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
            u32::from_str_radix(digits, radix).or_else(|_| u32::from_str_radix(digits, 16)).ok()
        };
        let address = text.parse().ok().or_else(|| number().map(|ipv4| IpAddr::V4(Ipv4Addr::from(ipv4))));
        let Some(address) = address else { return -EINVAL };
        *eid = eid_of(address);
        0
    }
}
