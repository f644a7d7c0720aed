//! One registry for all libraries of a process.
//!
//! libibverbs and liburma each contain this module, with a registry of their own. Two registries would work against one another
//! where both have registered a page: the one that makes it private would take it away from the other's daemon. So each
//! library exports a table of functions ([`RegistryTable`]), and all use that of the library which the loader lists first: an
//! object keeps its place in the loader's list, so all find the same one whenever they look. Libraries whose tables have another
//! [`VERSION`] are passed over; pages of their pools are reached by the descriptors of these, as the program's shared memory.
//!
//! A library looks when it first registers memory or opens a device, and keeps what it has found loaded.

use super::fork::{self, MemoryHost};
use super::{RegisterError, Registration, SplitRoom, register_here, release_here};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::sync::atomic::{AtomicPtr, Ordering::*};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};

/// Version of [`RegistryTable`] and of what its functions take.
const VERSION: u32 = 1;
/// The function that gives a library's table.
const SYMBOL: &CStr = c"burst_memory_registry";
/// How the names of files begin in which such a function is looked for.
const LIBRARIES: [&[u8]; 2] = [b"libibverbs", b"liburma"];

/// A daemon that reaches memory of this process ([`MemoryHost`]), as functions of the library that talks to it.
#[derive(Debug)]
#[repr(C)]
pub struct HostHandle {
    /// A `Weak` of the library, by `Weak::into_raw`.
    host: *const c_void,
    begin_fork: extern "C" fn(*const c_void, bool),
    end_fork: extern "C" fn(*const c_void),
    is_gone: extern "C" fn(*const c_void) -> bool,
    end: extern "C" fn(*const c_void),
}

// SAFETY: the hosts are `Send` and `Sync` (`MemoryHost`).
unsafe impl Send for HostHandle {}

impl Drop for HostHandle {
    fn drop(&mut self) {
        (self.end)(self.host);
    }
}

impl HostHandle {
    fn new<T: MemoryHost>(host: &Arc<T>) -> HostHandle {
        HostHandle {
            host: Weak::into_raw(Arc::downgrade(host)).cast(),
            begin_fork: begin_fork::<T>,
            end_fork: end_fork::<T>,
            is_gone: is_gone::<T>,
            end: end::<T>,
        }
    }
    pub(super) fn begin_fork(&self, in_place: bool) {
        (self.begin_fork)(self.host, in_place);
    }
    pub(super) fn end_fork(&self) {
        (self.end_fork)(self.host);
    }
    pub(super) fn is_gone(&self) -> bool {
        (self.is_gone)(self.host)
    }
}

/// The host of a handle, which keeps its part of it.
///
/// # Safety
/// `host` is of [`HostHandle::new`] with this `T`, and has not ended.
unsafe fn of<T>(host: *const c_void) -> ManuallyDrop<Weak<T>> {
    // SAFETY: the caller's promise.
    ManuallyDrop::new(unsafe { Weak::from_raw(host.cast()) })
}

extern "C" fn begin_fork<T: MemoryHost>(host: *const c_void, in_place: bool) {
    // SAFETY: called with the handle's own pointer.
    if let Some(host) = unsafe { of::<T>(host) }.upgrade() {
        host.begin_fork(in_place);
    }
}

extern "C" fn end_fork<T: MemoryHost>(host: *const c_void) {
    // SAFETY: as above.
    if let Some(host) = unsafe { of::<T>(host) }.upgrade() {
        host.end_fork();
    }
}

extern "C" fn is_gone<T: MemoryHost>(host: *const c_void) -> bool {
    // SAFETY: as above.
    unsafe { of::<T>(host) }.strong_count() == 0
}

extern "C" fn end<T: MemoryHost>(host: *const c_void) {
    // SAFETY: as above, for the last time.
    drop(unsafe { Weak::<T>::from_raw(host.cast()) });
}

/// The functions of a library's registry. All libraries of one version agree on the layout.
#[derive(Debug)]
#[repr(C)]
pub struct RegistryTable {
    version: u32,
    /// Bytes of a [`Registration`].
    registration_bytes: usize,
    /// Registers a range: address, length, whether it is written, whether any number of mappings may be split. Writes a
    /// registration, or returns a code of [`code`].
    register: unsafe extern "C" fn(usize, usize, bool, bool, *mut MaybeUninit<Registration>) -> c_int,
    /// Ends a registration, and takes it.
    release: unsafe extern "C" fn(*mut ManuallyDrop<Registration>),
    /// Adds a daemon, and takes its handle.
    add_host: unsafe extern "C" fn(*mut ManuallyDrop<HostHandle>),
}

static OWN: RegistryTable = RegistryTable {
    version: VERSION,
    registration_bytes: size_of::<Registration>(),
    register: register_for,
    release: release_for,
    add_host: add_host_for,
};

/// The table of this library, for the function `burst_memory_registry` that it exports.
pub fn own_registry() -> &'static RegistryTable {
    &OWN
}

const DONE: c_int = 0;

const fn code(error: RegisterError) -> c_int {
    match error {
        RegisterError::Fault => 1,
        RegisterError::BadRange => 2,
        RegisterError::Device => 3,
    }
}

fn error_of(number: c_int) -> RegisterError {
    let all = [RegisterError::Fault, RegisterError::BadRange, RegisterError::Device];
    all.into_iter().find(|error| code(*error) == number).unwrap_or(RegisterError::Fault)
}

unsafe extern "C" fn register_for(
    addr: usize,
    len: usize,
    write: bool,
    splits: bool,
    to: *mut MaybeUninit<Registration>,
) -> c_int {
    let room = if splits { SplitRoom::Unlimited } else { SplitRoom::Limited };
    match register_here(addr, len, write, room) {
        Ok(registration) => {
            // SAFETY: a writable place of the caller.
            unsafe { (*to).write(registration) };
            DONE
        }
        Err(error) => code(error),
    }
}

unsafe extern "C" fn release_for(registration: *mut ManuallyDrop<Registration>) {
    // SAFETY: the caller's registration, which it uses no more.
    release_here(unsafe { ManuallyDrop::take(&mut *registration) });
}

unsafe extern "C" fn add_host_for(host: *mut ManuallyDrop<HostHandle>) {
    // SAFETY: the caller's handle, which it uses no more.
    fork::add_host_here(unsafe { ManuallyDrop::take(&mut *host) });
}

/// The table that this library uses, once it has looked.
static USED: AtomicPtr<RegistryTable> = AtomicPtr::new(core::ptr::null_mut());

fn used() -> &'static RegistryTable {
    let known = USED.load(Acquire);
    // SAFETY: a table of a library that stays loaded.
    if let Some(table) = unsafe { known.as_ref() } {
        return table;
    }
    let found = loaded_objects().iter().find_map(|name| table_of(name)).unwrap_or(&OWN);
    // Two threads that look at once find the same one.
    USED.store(core::ptr::from_ref(found).cast_mut(), Release);
    found
}

/// Whether the table is of this version.
fn is_usable(table: &RegistryTable) -> bool {
    table.version == VERSION && table.registration_bytes == size_of::<Registration>()
}

/// The table of a loaded library, if it has one that can be used.
fn table_of(name: &CStr) -> Option<&'static RegistryTable> {
    let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY | libc::RTLD_NODELETE;
    // SAFETY: a terminated name; the library is loaded, so no code of it runs. The handle is kept, so that it stays loaded.
    let found = unsafe {
        let handle = libc::dlopen(name.as_ptr(), flags);
        if handle.is_null() { core::ptr::null_mut() } else { libc::dlsym(handle, SYMBOL.as_ptr()) }
    };
    if found.is_null() {
        return None;
    }
    // SAFETY: a function of this name has this type, in each version.
    let table = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> *const RegistryTable>(found)() };
    // SAFETY: a static of that library, whose first field is the version.
    unsafe { table.as_ref() }.filter(|table| is_usable(table))
}

/// The names of the loaded objects that may have a table, in the loader's order.
fn loaded_objects() -> Vec<CString> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid entry, whose name is NULL or terminated; `to` is the list below.
        unsafe {
            let name: *const c_char = (*info).dlpi_name;
            if !name.is_null() {
                let (name, list) = (CStr::from_ptr(name), &mut *to.cast::<Vec<CString>>());
                let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
                let file = path.file_name().map_or(&[][..], |file| file.as_bytes());
                if LIBRARIES.iter().any(|library| file.starts_with(library)) {
                    list.push(name.to_owned());
                }
            }
        }
        0
    }
    let mut list: Vec<CString> = Vec::new();
    // SAFETY: a callback of the expected type, and the list that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut list).cast()) };
    list
}

/// Makes `[addr, addr + len)` reachable for the daemon. `write`: the region has a right to write.
/// The range may be registered any number of times and overlap others.
///
/// # Errors
/// [`RegisterError`].
pub fn register(addr: usize, len: usize, write: bool) -> Result<Registration, RegisterError> {
    register_by(used(), (addr, len), write, false)
}

/// As [`register`], also if the process gets more mappings than a swap should take: for a daemon that cannot reach the memory
/// in the process.
///
/// # Errors
/// As [`register`].
pub fn register_swapped(addr: usize, len: usize, write: bool) -> Result<Registration, RegisterError> {
    register_by(used(), (addr, len), write, true)
}

fn register_by(
    table: &RegistryTable,
    (addr, len): (usize, usize),
    write: bool,
    splits: bool,
) -> Result<Registration, RegisterError> {
    let mut made = MaybeUninit::uninit();
    // SAFETY: the table is of this version; `made` is writable, and is written where the answer is `DONE`.
    unsafe {
        match (table.register)(addr, len, write, splits, &raw mut made) {
            DONE => Ok(made.assume_init()),
            error => Err(error_of(error)),
        }
    }
}

/// Ends a registration: pages that no other registration covers become private again. The daemon must have dropped
/// the region before; its later writes would be lost.
pub fn release(registration: Registration) {
    // SAFETY: the table is of this version, and takes the registration.
    unsafe { (used().release)(&mut ManuallyDrop::new(registration)) };
}

/// Adds a daemon that reaches memory of this process, for as long as the value lives.
pub fn add_host<T: MemoryHost + 'static>(host: &Arc<T>) {
    // SAFETY: the table is of this version, and takes the handle.
    unsafe { (used().add_host)(&mut ManuallyDrop::new(HostHandle::new(host))) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    #[derive(Debug, Default)]
    struct CountedForks([AtomicUsize; 3]);

    impl MemoryHost for CountedForks {
        fn begin_fork(&self, in_place: bool) {
            self.0[usize::from(in_place)].fetch_add(1, Relaxed);
        }
        fn end_fork(&self) {
            self.0[2].fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_handle_reaches_its_host_until_that_has_gone() {
        let host = Arc::new(CountedForks::default());
        let handle = HostHandle::new(&host);
        handle.begin_fork(true);
        handle.begin_fork(false);
        handle.begin_fork(true);
        handle.end_fork();
        assert_eq!([0, 1, 2].map(|i| host.0[i].load(Relaxed)), [1, 2, 1]);
        assert_eq!((Arc::strong_count(&host), Arc::weak_count(&host), handle.is_gone()), (1, 1, false));
        let second = HostHandle::new(&host);
        drop(second);
        assert_eq!(Arc::weak_count(&host), 1);
        drop(host);
        assert!(handle.is_gone());
        handle.begin_fork(true);
        handle.end_fork();
    }

    #[test]
    fn errors_pass_as_numbers() {
        for error in [RegisterError::Fault, RegisterError::BadRange, RegisterError::Device] {
            assert_ne!(code(error), DONE);
            assert_eq!(error_of(code(error)), error);
        }
        let refused = register_by(&OWN, (4096, 0), false, false);
        assert_eq!(refused.err(), Some(RegisterError::BadRange));
        assert_eq!(register_by(&OWN, (4096, 1), true, false).err(), Some(RegisterError::Fault));
    }

    #[test]
    fn only_tables_of_this_version_are_used() {
        assert!(is_usable(&OWN));
        let other = |version, registration_bytes| RegistryTable { version, registration_bytes, ..OWN };
        assert!(!is_usable(&other(VERSION + 1, OWN.registration_bytes)));
        assert!(!is_usable(&other(VERSION, OWN.registration_bytes + 8)));
    }

    #[test]
    fn without_other_libraries_the_own_registry_is_used() {
        assert!(table_of(c"libc.so.6").is_none() && table_of(c"libibverbs-that-is-not-there.so").is_none());
        assert!(core::ptr::eq(used(), own_registry()));
    }
}
