//! The device list: finding the host, and the `ibv_device` objects that applications hold.
//!
//! `ibv_get_device_list` queries the daemon each time. A device lives until the list is freed and no context made from it is
//! open; list and contexts have a reference each. Without a daemon the list is empty, and the process prints one sentence.

use crate::boundary::{self, EINVAL, Outcome};
use crate::sys::*;
use burst_client::raw::lock::HeldSignals;
use burst_client::raw::place::HostPlace;
use burst_client::raw::program_name;
use burst_control::{Client, ControlError, DeviceInfo, Request, Response, in_process, socket_path};
use burst_ffi::report;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// An `ibv_device`, followed by fields of this library.
#[repr(C)]
pub struct VerbsDevice {
    base: ibv_device,
    /// rdma-core's providers compare this word (`verbs_device.ops`) with their own table's address to recognise their devices.
    provider_ops: *const c_void,
    /// Zeros in place of the rest of rdma-core's private `verbs_device`, which a provider's code may read.
    provider_room: [usize; 8],
    references: AtomicUsize,
    /// Where the device's host is.
    pub place: HostPlace,
    /// The daemon's description, as of the list.
    pub info: DeviceInfo,
}

impl VerbsDevice {
    fn allocate(place: &HostPlace, info: DeviceInfo) -> *mut VerbsDevice {
        let mut base = ibv_device { node_type: IBV_NODE_CA, transport_type: IBV_TRANSPORT_IB, ..Default::default() };
        copy_text(&mut base.name, &info.name);
        let node = socket_path::device_node(&info.name);
        copy_text(&mut base.dev_name, &node);
        copy_text(&mut base.dev_path, &format!("/sys/class/infiniband_verbs/{node}"));
        copy_text(&mut base.ibdev_path, &format!("/sys/class/infiniband/{}", info.name));
        Box::into_raw(Box::new(VerbsDevice {
            base,
            provider_ops: std::ptr::null(),
            provider_room: [0; 8],
            references: AtomicUsize::new(1),
            place: place.clone(),
            info,
        }))
    }

    /// The device behind an application's pointer.
    ///
    /// # Safety
    /// `device` must come from this library's list and still be referenced.
    pub unsafe fn from_ibv<'a>(device: *mut ibv_device) -> Outcome<&'a VerbsDevice> {
        // SAFETY: `base` is the first field of a `VerbsDevice`.
        unsafe { device.cast::<VerbsDevice>().as_ref() }.ok_or(EINVAL)
    }

    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_device {
        (&raw const self.base).cast_mut()
    }

    /// Adds a reference.
    pub fn retain(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a reference; the last one frees the device.
    ///
    /// # Safety
    /// The caller owns one reference and does not use the device afterwards.
    pub unsafe fn release(device: *mut ibv_device) {
        let device = device.cast::<VerbsDevice>();
        // SAFETY: the caller's reference keeps the device alive up to here. AcqRel pairs with the other releases: the last
        // one sees all uses.
        if unsafe { &*device }.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: made by `Box::into_raw` in `allocate`, and this was the last reference.
            drop(unsafe { Box::from_raw(device) });
        }
    }
}

/// Copies `text` into a C array, cut to fit, zero-terminated.
pub fn copy_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// Connects to the first host that answers. If none does: the reason for each place.
fn find_host(held: &HeldSignals) -> Result<(HostPlace, Client), Vec<ControlError>> {
    let mut failures = Vec::new();
    for place in HostPlace::candidates() {
        match place.connect(&program_name(), held) {
            Ok(client) => return Ok((place, client)),
            Err(e) => failures.push(e),
        }
    }
    Err(failures)
}

/// Prints once per process why there is no device.
fn explain(failures: &[ControlError]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let tried = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let sentence = match in_process::is_chosen() {
        true => format!("no RDMA device: {tried}"),
        false => format!(
            "no RDMA device, because no daemon answers ({tried}): start one with `burst run -- PROGRAM` or `burstd`, or set \
             BURST_SOCKET to its socket"
        ),
    };
    report::once(&SAID, &sentence);
}

/// Queries device number `index` of a host. The caller owns the one reference.
pub fn device_at(place: &HostPlace, index: u32) -> Outcome<*mut ibv_device> {
    let held = HeldSignals::hold();
    let mut client = place.connect(&program_name(), &held)?;
    let Response::Devices(list) = client.call(&Request::ListDevices, &[])?.response else { return Err(boundary::EIO) };
    let info = list.into_iter().find(|d| d.index == index).ok_or(boundary::Errno(libc::ENODEV))?;
    Ok(VerbsDevice::allocate(place, info).cast())
}

fn list_devices() -> Vec<*mut ibv_device> {
    report::misspelt_variables();
    let held = HeldSignals::hold();
    let failures = match find_host(&held) {
        Ok((place, mut client)) => match client.call(&Request::ListDevices, &[]).map(|a| a.response) {
            Ok(Response::Devices(list)) => {
                return list.into_iter().map(|info| VerbsDevice::allocate(&place, info).cast()).collect();
            }
            Ok(_) => vec![ControlError::Malformed("unexpected answer to the list of devices".into())],
            Err(e) => vec![e],
        },
        Err(failures) => failures,
    };
    explain(&failures);
    Vec::new()
}

/// `ibv_get_device_list`: the daemon's devices, as a NULL-terminated array for `ibv_free_device_list`.
///
/// # Safety
/// `count` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    boundary::pointer(|| {
        let mut devices = list_devices();
        if !count.is_null() {
            // SAFETY: the caller gives NULL or a writable place.
            unsafe { *count = devices.len() as c_int };
        }
        devices.push(std::ptr::null_mut());
        Ok(Box::into_raw(devices.into_boxed_slice()).cast())
    })
}

/// `ibv_free_device_list`: devices with open contexts live until these are closed.
///
/// # Safety
/// `list` must be NULL or come from `ibv_get_device_list`, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    boundary::nothing(|| {
        let mut len = 0;
        // SAFETY: the list is NULL-terminated, each entry holds one reference, and the slice was made from a box of
        // exactly `len + 1` entries.
        unsafe {
            while !(*list.add(len)).is_null() {
                VerbsDevice::release(*list.add(len));
                len += 1;
            }
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len + 1)));
        }
    });
}

/// Version of the contract between this library and the daemon (`burst_shm::ABI_VERSION`), for tools that compare it.
#[unsafe(no_mangle)]
pub extern "C" fn burst_abi_version() -> u32 {
    burst_shm::ABI_VERSION
}

/// `ibv_get_device_name`: `burst0`.
///
/// # Safety
/// `device` must come from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller gives a device of ours; NULL is answered.
    unsafe { device.as_ref() }.map_or(std::ptr::null(), |d| d.name.as_ptr())
}

/// `ibv_get_device_index`: the daemon's number of the device.
///
/// # Safety
/// `device` must come from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller gives a device of ours.
    unsafe { VerbsDevice::from_ibv(device) }.map_or(-1, |d| d.info.index as c_int)
}

/// `ibv_get_device_guid`: the node GUID, big-endian.
///
/// # Safety
/// `device` must come from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    // SAFETY: the caller gives a device of ours.
    unsafe { VerbsDevice::from_ibv(device) }.map_or(0, |d| d.info.guid.to_be())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_terminated() {
        let mut field = [0 as c_char; 4];
        copy_text(&mut field, "burst0");
        assert_eq!(field, [b'b' as c_char, b'u' as c_char, b'r' as c_char, 0]);
    }

    #[test]
    fn a_device_is_also_a_private_verbs_device() {
        const { assert!(std::mem::offset_of!(VerbsDevice, provider_ops) == 664) };
    }
}
