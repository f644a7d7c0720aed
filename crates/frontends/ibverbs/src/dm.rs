//! Device memory. A software device has none: a sealed memfd takes its place, which registration and import treat as any shared
//! memory.
//!
//! A child after fork may allocate device memory too, as with kernel drivers, where it inherits the device's descriptor. Such
//! memory is for copies only: it cannot be registered, because the context is the parent's.

use crate::boundary::{self, EINVAL, EIO, ENOMEM, EOPNOTSUPP, Outcome};
use crate::context::VerbsContext;
use crate::pd_mr::{check_access, new_mr};
use crate::sys::*;
use burst_base::verbs::access;
use burst_client::raw::memory::MemoryRange;
use burst_control::{Request, Response};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

/// Unit in bytes of offsets and lengths of copies, as on adapters that have device memory.
const WORD: u64 = 4;

/// Device memory.
#[repr(C)]
struct VerbsDm {
    base: ibv_dm,
    memory: NonNull<u8>,
    len: usize,
    imported: bool,
}

impl Drop for VerbsDm {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the program has given the memory up.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

unsafe fn ours<'a>(dm: *mut ibv_dm) -> Outcome<&'a VerbsDm> {
    // SAFETY: `base` is the first field of a `VerbsDm`; the caller gives NULL or a live one.
    unsafe { dm.cast::<VerbsDm>().as_ref() }.ok_or(EINVAL)
}

/// Makes a memfd of `len` zero bytes whose size is sealed.
fn memfd(len: usize) -> Outcome<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string; then a descriptor that is ours alone.
    unsafe {
        let fd = libc::memfd_create(c"burst-dm".as_ptr(), flags);
        if fd < 0 {
            return Err(ENOMEM);
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let grown = libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) == 0;
        let sealed = libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) == 0;
        if grown && sealed { Ok(fd) } else { Err(ENOMEM) }
    }
}

fn map(fd: &OwnedFd, len: usize) -> Outcome<NonNull<u8>> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping of a descriptor that is at least so long.
    let at = unsafe { libc::mmap(null_mut(), len, rights, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(ENOMEM) } else { NonNull::new(at.cast()).ok_or(ENOMEM) }
}

fn object(context: *mut ibv_context, handle: u32, memory: NonNull<u8>, len: usize, imported: bool) -> *mut ibv_dm {
    let base = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle,
    };
    Box::into_raw(Box::new(VerbsDm { base, memory, len, imported })).cast()
}

/// `ibv_alloc_dm`.
///
/// # Safety
/// `context` must be open and `attr` valid.
pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context and a valid struct.
        let (ours, attr) = unsafe { (VerbsContext::even_dead(context)?, attr.as_ref().ok_or(EINVAL)?) };
        if attr.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        if attr.length == 0 || attr.log_align_req > 12 {
            return Err(EINVAL);
        }
        let fd = memfd(attr.length)?;
        if !ours.is_alive() {
            return Ok(object(context, 0, map(&fd, attr.length)?, attr.length, true));
        }
        let answer = ours.call(&Request::AllocDm { len: attr.length as u64 }, &[fd.as_fd()])?;
        let Response::Handle(handle) = answer.response else { return Err(EIO) };
        let memory = map(&fd, attr.length)?;
        Ok(object(context, handle, memory, attr.length, false))
    })
}

/// `ibv_free_dm`.
///
/// # Safety
/// `dm` must be alive; neither it nor its regions may be used afterwards.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives live device memory of an open context.
        let (this, context) = unsafe { (ours(dm)?, VerbsContext::even_dead((*dm).context)?) };
        if !this.imported {
            context.end_object(&Request::FreeDm { dm: this.base.handle })?;
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(dm.cast::<VerbsDm>()) });
        Ok(())
    })
}

/// `ibv_reg_dm_mr`: a region of device memory, whose addresses begin at 0.
///
/// # Safety
/// `pd` and `dm` must be alive.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        // SAFETY: the caller gives live device memory.
        let this = unsafe { ours(dm) }?;
        let access = check_access(access)?;
        if access & access::ZERO_BASED == 0 {
            return Err(EINVAL);
        }
        let place = this.place(offset, length)?;
        let range = MemoryRange { addr: place.as_ptr() as usize, len: length, iova: 0, access, replaces: None };
        // SAFETY: the caller's promise; the mapping lives as long as the device memory.
        unsafe { new_mr(pd, range, null_mut()) }
    })
}

impl VerbsDm {
    /// The address of a range; EINVAL unless the range is within the memory.
    fn place(&self, offset: u64, length: usize) -> Outcome<NonNull<u8>> {
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        if offset > self.len || length > self.len - offset {
            return Err(EINVAL);
        }
        // SAFETY: inside the mapping.
        Ok(unsafe { self.memory.add(offset) })
    }

    /// As [`VerbsDm::place`], and checks the alignment that copies need.
    fn words(&self, offset: u64, length: usize) -> Outcome<NonNull<u8>> {
        if !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
            return Err(EINVAL);
        }
        self.place(offset, length)
    }
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives live device memory and `length` readable bytes; `words` checks the target.
        unsafe {
            let to = ours(dm)?.words(offset, length)?;
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_ptr(), length);
        }
        Ok(())
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives live device memory and `length` writable bytes; `words` checks the source.
        unsafe {
            let from = ours(dm)?.words(offset, length)?;
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast::<u8>(), length);
        }
        Ok(())
    })
}

/// `ibv_import_dm`: imports device memory of another context, by its handle there.
///
/// # Safety
/// `context` must come from `ibv_import_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { VerbsContext::from_ibv(context) }?;
        let (answer, len) = ours.import(burst_control::ImportObject::Dm(handle))?;
        let fd = answer.fds.into_iter().next().ok_or(EIO)?;
        let len = usize::try_from(len).map_err(|_| EIO)?;
        Ok(object(context, handle, map(&fd, len)?, len, true))
    })
}

/// `ibv_unimport_dm`: ends an import; the memory of the exporting context is unaffected.
///
/// # Safety
/// `dm` must come from `ibv_import_dm`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller's promise.
    boundary::nothing(|| drop(unsafe { Box::from_raw(dm.cast::<VerbsDm>()) }));
}
