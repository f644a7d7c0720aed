//! Whether a program has the library, and what that knows of an address.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `CU_POINTER_ATTRIBUTE_CONTEXT`, `_MEMORY_TYPE`, `_SYNC_MEMOPS` and `_DEVICE_ORDINAL`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const SYNC_MEMOPS: c_int = 6;
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const TYPE_DEVICE: u32 = 2;
/// Results by which CUDA says that it does not know an address: `CUDA_ERROR_INVALID_VALUE`, and for a library without use or
/// device `NOT_INITIALIZED`, `DEINITIALIZED`, `NO_DEVICE`.
const NOT_KNOWN: [c_int; 4] = [1, 3, 4, 100];

/// `CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)`.
type PointerGetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;
/// `CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)`.
type PointerSetAttribute = unsafe extern "C" fn(*const c_void, c_int, u64) -> c_int;
/// `CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)`.
type PrimaryCtxRetain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// A `CUcontext`, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceContext(pub(crate) usize);

/// The CUDA driver library that the program has loaded.
#[derive(Debug)]
pub struct CudaDriver {
    library: NonNull<c_void>,
    pointer_get_attribute: PointerGetAttribute,
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // SAFETY: the handle of `find`.
        unsafe { libc::dlclose(self.library.as_ptr()) };
    }
}

impl CudaDriver {
    /// The library, if the program has it loaded; it is never loaded for this question. Takes the loader's lock.
    pub fn find() -> Option<CudaDriver> {
        const NAME: &CStr = c"libcuda.so.1";
        /// So many objects had been loaded when the library was not among them; 0: not looked yet. The loader looks for a library
        /// that is not loaded in each directory of its search path.
        static WITHOUT: AtomicU64 = AtomicU64::new(0);
        let loaded = objects_loaded();
        // Relaxed: a number for itself. Another thread's older one only asks again.
        if loaded == WITHOUT.load(Relaxed) && loaded > 0 {
            return None;
        }
        let found = CudaDriver::find_among_loaded(NAME);
        if found.is_none() {
            WITHOUT.store(loaded, Relaxed);
        }
        found
    }
    fn find_among_loaded(name: &CStr) -> Option<CudaDriver> {
        // SAFETY: a constant name; RTLD_NOLOAD runs no constructor.
        let library = NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })?;
        // SAFETY: an open library and a constant name.
        let symbol = unsafe { libc::dlsym(library.as_ptr(), c"cuPointerGetAttribute".as_ptr()) };
        if symbol.is_null() {
            // SAFETY: the handle opened above, used no more.
            unsafe { libc::dlclose(library.as_ptr()) };
            return None;
        }
        // SAFETY: cuda.h declares the function with this type.
        let pointer_get_attribute = unsafe { core::mem::transmute::<*mut c_void, PointerGetAttribute>(symbol) };
        Some(CudaDriver { library, pointer_get_attribute })
    }
    /// A function of the library; `None` if it has none of this name.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a name that ends.
        NonNull::new(unsafe { libc::dlsym(self.library.as_ptr(), name.as_ptr()) })
    }
    /// Asks for an attribute of an address.
    fn ask(&self, attribute: c_int, addr: u64) -> Result<u64, c_int> {
        // As wide as the widest attribute.
        let mut value = 0u64;
        // SAFETY: the result is writable; any number is allowed for the address.
        match unsafe { (self.pointer_get_attribute)((&raw mut value).cast(), attribute, addr) } {
            0 => Ok(value),
            error => Err(error),
        }
    }
    /// Whether CUDA knows `addr`: host memory that it knows is pinned. An error that says neither counts as yes.
    pub fn knows(&self, addr: usize) -> bool {
        self.ask(MEMORY_TYPE, addr as u64).map_or_else(|error| !NOT_KNOWN.contains(&error), |_| true)
    }
    /// The context in which `len` bytes at `addr` are copied, if they are in the memory of a device: both ends are asked for.
    pub fn device_context(&self, addr: u64, len: u64) -> Option<DeviceContext> {
        let is_on_device = |addr| self.ask(MEMORY_TYPE, addr).is_ok_and(|kind| kind as u32 == TYPE_DEVICE);
        if len == 0 || !is_on_device(addr) || !is_on_device(addr.checked_add(len - 1)?) {
            return None;
        }
        match self.ask(CONTEXT, addr) {
            Ok(context) if context != 0 => Some(DeviceContext(context as usize)),
            // Memory that was mapped (`cuMemMap`) belongs to no context.
            _ => self.primary_context(self.ask(DEVICE_ORDINAL, addr).ok()? as u32 as c_int),
        }
    }
    /// The primary context of a device, which stays for as long as the process.
    fn primary_context(&self, device: c_int) -> Option<DeviceContext> {
        let retain = self.symbol(c"cuDevicePrimaryCtxRetain")?;
        // SAFETY: cuda.h declares the function with this type.
        let retain = unsafe { core::mem::transmute::<*mut c_void, PrimaryCtxRetain>(retain.as_ptr()) };
        let mut context = core::ptr::null_mut();
        // SAFETY: the result is writable.
        let rc = unsafe { retain(&raw mut context, device) };
        (rc == 0 && !context.is_null()).then_some(DeviceContext(context as usize))
    }
    /// Has the program's own copies of this memory end before its calls return: otherwise one that is under way would be
    /// overtaken by a peer's bytes. Not for all kinds of memory: without it the order is the program's to keep.
    pub fn synchronize_copies(&self, addr: u64) {
        let Some(set) = self.symbol(c"cuPointerSetAttribute") else { return };
        // SAFETY: cuda.h declares the function with this type.
        let set = unsafe { core::mem::transmute::<*mut c_void, PointerSetAttribute>(set.as_ptr()) };
        let yes = 1u32;
        // SAFETY: the value is readable. Memory that has no such attribute gives an error.
        let _ = unsafe { set((&raw const yes).cast(), SYNC_MEMOPS, addr) };
    }
}

/// Number of objects that the loader has loaded since the process began; 0 where it does not count.
fn objects_loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, size: usize, count: *mut c_void) -> c_int {
        if size >= core::mem::offset_of!(libc::dl_phdr_info, dlpi_adds) + size_of::<u64>() {
            // SAFETY: the loader's record is as long as it says, and `count` is the caller's number.
            unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        }
        1
    }
    let mut count = 0u64;
    // SAFETY: the function ends at the first object, and writes the number.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}
