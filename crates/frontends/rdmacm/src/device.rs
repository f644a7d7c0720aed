//! Devices. All ids share one `ibv_context` of each device, because programs compare these pointers and use them as keys. It is
//! opened when an id first needs it, with a default protection domain.

use crate::boundary::{self, EIO, ENODEV, ENOMEM, EOPNOTSUPP, Errno, Outcome, errno, lock};
use crate::session::{DaemonSession, session};
use crate::sys::*;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

// SAFETY: as defined by crate `ibverbs`, which is loaded with this library.
unsafe extern "C" {
    /// Burst's libibverbs, version node BURST_PRIVATE_1.
    fn burst_context_token(context: *mut ibv_context, token: *mut u64) -> c_int;
}

/// An open device.
#[derive(Debug)]
pub struct RdmaDevice {
    /// The daemon's number of the device.
    index: u32,
    /// The context of all ids on the device.
    pub context: *mut ibv_context,
    /// The default protection domain of ids.
    pub pd: *mut ibv_pd,
    /// Token of `context`: it proves to the daemon that queue pairs of `context` are this program's.
    pub token: u64,
    /// Maximum number of READs and atomics in flight, as requester and as responder.
    pub max_rd_atomic: u8,
    /// The default XRC domain of ids, opened at the first use.
    xrcd: Mutex<Option<NonNull<ibv_xrcd>>>,
}

// SAFETY: the pointers are to objects of libibverbs that live for ever and that it protects itself.
unsafe impl Send for RdmaDevice {}
// SAFETY: as above.
unsafe impl Sync for RdmaDevice {}

impl RdmaDevice {
    /// Opens a device of a list.
    ///
    /// # Safety
    /// `device` must be in a list that is not freed yet.
    unsafe fn open(device: *mut ibv_device, index: u32) -> Outcome<&'static RdmaDevice> {
        // SAFETY: the caller's promise; each object is made from the one before.
        unsafe {
            let context = ibv_open_device(device);
            if context.is_null() {
                return Err(errno());
            }
            let mut token = 0;
            let pd = ibv_alloc_pd(context);
            let failed = if pd.is_null() { errno().0 } else { burst_context_token(context, &mut token) };
            if failed != 0 {
                // Closing the context destroys the objects made so far.
                ibv_close_device(context);
                return Err(Errno(failed));
            }
            let mut attr = ibv_device_attr::default();
            let failed = ibv_query_device(context, &mut attr);
            if failed != 0 {
                ibv_close_device(context);
                return Err(Errno(failed));
            }
            let max_rd_atomic = u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX);
            let xrcd = Mutex::default();
            Ok(Box::leak(Box::new(RdmaDevice { index, context, pd, token, max_rd_atomic, xrcd })))
        }
    }
}

impl RdmaDevice {
    /// An operation that is not an exported function of libibverbs, but a field of an open context.
    ///
    /// # Errors
    /// EOPNOTSUPP if the context lacks it.
    pub fn extended<F>(&self, choose: impl FnOnce(&verbs_context) -> Option<F>) -> Outcome<F> {
        // SAFETY: an open context lies in a `verbs_context`, and is never closed.
        unsafe {
            let whole = self.context.cast::<u8>().sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            choose(&*whole).ok_or(EOPNOTSUPP)
        }
    }

    /// The default XRC domain of ids; other processes have no access to it.
    ///
    /// # Errors
    /// The errno of `ibv_open_xrcd`.
    pub fn xrcd(&self) -> Outcome<*mut ibv_xrcd> {
        let mut own = lock(&self.xrcd);
        if let Some(xrcd) = *own {
            return Ok(xrcd.as_ptr());
        }
        let open = self.extended(|calls| calls.open_xrcd)?;
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: an open context and a valid struct.
        let made = NonNull::new(unsafe { open(self.context, &mut attr) }).ok_or_else(errno)?;
        Ok(own.insert(made).as_ptr())
    }
}

/// Maximum number of devices of a session.
const DEVICES_MAX: usize = 256;

/// The devices that a session has opened, by the daemon's numbers. A look-up takes no lock.
#[derive(Debug)]
pub struct Opened {
    all: [AtomicPtr<RdmaDevice>; DEVICES_MAX],
    /// Held while a device is opened, so that each device is opened once.
    opening: Mutex<()>,
}

impl Default for Opened {
    fn default() -> Opened {
        Opened { all: [const { AtomicPtr::new(null_mut()) }; DEVICES_MAX], opening: Mutex::new(()) }
    }
}

impl Opened {
    fn get(&self, index: u32) -> Option<&'static RdmaDevice> {
        // Acquire pairs with the Release in `put`.
        let found = self.all.get(index as usize)?.load(Ordering::Acquire);
        // SAFETY: NULL, or a device that is never freed.
        unsafe { found.as_ref() }
    }

    fn put(&self, device: &'static RdmaDevice) {
        if let Some(place) = self.all.get(device.index as usize) {
            place.store(std::ptr::from_ref(device).cast_mut(), Ordering::Release);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &'static RdmaDevice> + '_ {
        (0..DEVICES_MAX as u32).filter_map(|index| self.get(index))
    }
}

/// A device list of libibverbs, freed on drop.
struct List {
    all: *mut *mut ibv_device,
    count: usize,
}

impl List {
    fn new() -> Outcome<List> {
        let mut count = 0;
        // SAFETY: a writable place.
        let all = unsafe { ibv_get_device_list(&mut count) };
        if all.is_null() { Err(errno()) } else { Ok(List { all, count: count.max(0) as usize }) }
    }

    fn iter(&self) -> impl Iterator<Item = (*mut ibv_device, u32)> + '_ {
        (0..self.count).filter_map(|i| {
            // SAFETY: the list has `count` devices.
            let (device, index) = unsafe {
                let device = *self.all.add(i);
                (device, ibv_get_device_index(device))
            };
            u32::try_from(index).ok().map(|index| (device, index))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`, once.
        unsafe { ibv_free_device_list(self.all) };
    }
}

impl DaemonSession {
    /// The open device with this number; opens it if necessary.
    ///
    /// # Errors
    /// ENODEV if there is no such device, or the errno of opening it.
    pub fn device(&self, index: u32) -> Outcome<&'static RdmaDevice> {
        if !self.is_alive() {
            return Err(EIO);
        }
        if let Some(found) = self.devices.get(index) {
            return Ok(found);
        }
        if index as usize >= DEVICES_MAX {
            return Err(ENODEV);
        }
        let _opening = lock(&self.devices.opening);
        if let Some(found) = self.devices.get(index) {
            return Ok(found);
        }
        let list = List::new()?;
        let (device, index) = list.iter().find(|(_, i)| *i == index).ok_or(ENODEV)?;
        // SAFETY: the list is not freed yet.
        let made = unsafe { RdmaDevice::open(device, index) }?;
        self.devices.put(made);
        Ok(made)
    }

    /// The device of a context.
    pub fn device_of(&self, context: *mut ibv_context) -> Option<&'static RdmaDevice> {
        self.devices.iter().find(|d| d.context == context)
    }
}

/// `rdma_get_devices`: the contexts of all devices, as a NULL-terminated array for `rdma_free_devices`.
///
/// # Safety
/// `count` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    boundary::pointer(|| {
        let session = session()?;
        let indices: Vec<u32> = List::new()?.iter().map(|(_, index)| index).collect();
        let mut contexts = Vec::with_capacity(indices.len() + 1);
        for index in indices {
            contexts.push(session.device(index)?.context);
        }
        if contexts.is_empty() {
            return Err(ENODEV);
        }
        if !count.is_null() {
            // SAFETY: the caller gives a writable place.
            unsafe { *count = contexts.len() as c_int };
        }
        contexts.push(null_mut());
        // From the C heap, because `rdma_free_devices` does not get the array's length.
        // SAFETY: the new block has room for all entries.
        unsafe {
            let array = libc::malloc(contexts.len() * size_of::<*mut ibv_context>()).cast::<*mut ibv_context>();
            if array.is_null() {
                return Err(ENOMEM);
            }
            std::ptr::copy_nonoverlapping(contexts.as_ptr(), array, contexts.len());
            Ok(array)
        }
    })
}

/// `rdma_free_devices`: frees the array; the devices stay open.
///
/// # Safety
/// `list` must be NULL or come from [`rdma_get_devices`], once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: allocated by `malloc` above.
    unsafe { libc::free(list.cast()) };
}
