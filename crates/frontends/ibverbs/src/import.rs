//! Sharing a context's objects with another context, also of another process.
//!
//! `cmd_fd` of a context is a sealed file that names it: the daemon's socket, the device, and the context's token, which only
//! whoever has the descriptor knows. A program passes it on (`SCM_RIGHTS`), and `ibv_import_device` opens a context of its
//! own with it. Objects are then imported by their handles in the exporting context: a protection domain is held by
//! both, a region's keys are good as long as the exporter keeps it.

use crate::context::{Answer, Context};
use crate::device::{Device, device_at};
use crate::domain;
use crate::door::{self, EINVAL, EIO, ENOMEM, Errno, Outcome};
use crate::pd_mr::Mr;
use crate::sys::*;
use burst_control::{ImportObject, Response};
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// First bytes of the file.
const MAGIC: &[u8; 8] = b"BURSTCTX";
/// Most bytes of the file: the numbers and a path.
const FILE_MAX: u64 = 4096;

/// What the file says.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    token: u64,
    device: u32,
    socket: PathBuf,
}

impl Named {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.token.to_ne_bytes());
        bytes.extend(self.device.to_ne_bytes());
        bytes.extend(self.socket.as_os_str().as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Named> {
        let (token, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let (device, socket) = rest.split_first_chunk::<4>()?;
        Some(Named {
            token: u64::from_ne_bytes(*token),
            device: u32::from_ne_bytes(*device),
            socket: PathBuf::from(std::ffi::OsStr::from_bytes(socket)),
        })
    }
}

/// The file that names a context.
pub fn name_file(token: u64, device: u32, socket: &Path) -> Outcome<OwnedFd> {
    let bytes = Named { token, device, socket: socket.to_owned() }.to_bytes();
    // SAFETY: a C string; then a descriptor that is ours alone.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"burst-context".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(ENOMEM);
        }
        File::from_raw_fd(fd)
    };
    file.write_all(&bytes).map_err(|_| ENOMEM)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: seals on our own descriptor.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(ENOMEM);
    }
    Ok(file.into())
}

fn read_name(fd: c_int) -> Outcome<Named> {
    // SAFETY: borrowed for this function only; a bad number makes the read fail.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| (&*file).take(FILE_MAX).read_to_end(&mut bytes));
    read.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EINVAL)))?;
    Named::from_bytes(&bytes).ok_or(EINVAL)
}

/// A context of this process beside the one that `cmd_fd` names.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    door::pointer(|| {
        if cmd_fd < 0 {
            return Err(EINVAL);
        }
        let named = read_name(cmd_fd)?;
        let device = device_at(&named.socket, named.device)?;
        // SAFETY: `device_at` gives one reference, which is ours to release; the context holds its own.
        let opened = unsafe { Device::from_ibv(device).and_then(|d| Context::open_beside(d, Some(named.token))) };
        // SAFETY: as above.
        unsafe { Device::release(device) };
        // The descriptor is the library's from now on, as verbs say; the context has made one of its own.
        // SAFETY: the caller gives it up.
        opened.inspect(|_| unsafe { drop(OwnedFd::from_raw_fd(cmd_fd)) })
    })
}

/// A protection domain of the exporting context.
///
/// # Safety
/// `context` must come from `ibv_import_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    door::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { Context::from_ibv(context) }?;
        let (answer, _) = ours.import(ImportObject::Pd(handle))?;
        let Response::Imported { handle, .. } = answer.response else { return Err(EIO) };
        Ok(domain::new_pd(context, handle))
    })
}

/// Ends an import; the exporter keeps its protection domain.
///
/// # Safety
/// `pd` must come from `ibv_import_pd`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller's promise. A domain that is still in use stays, as there is nobody to tell.
    unsafe { domain::ibv_dealloc_pd(pd) };
}

/// A region of the exporting context: its keys and length.
///
/// # Safety
/// `pd` must come from `ibv_import_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    door::pointer(|| {
        // SAFETY: the caller gives a live PD.
        let (context, _) = unsafe { crate::pd_mr::pd_of(pd) }?;
        let (Answer { response, .. }, len) = context.import(ImportObject::Mr(handle))?;
        let Response::Imported { key, .. } = response else { return Err(EIO) };
        let base = ibv_mr {
            context: context.as_ibv(),
            pd,
            addr: null_mut(),
            length: usize::try_from(len).map_err(|_| EIO)?,
            handle,
            lkey: key,
            rkey: key,
        };
        Ok(Box::into_raw(Box::new(Mr { base, access: 0, iova: 0, registration: None })).cast())
    })
}

/// Ends an import; the exporter keeps its region.
///
/// # Safety
/// `mr` must come from `ibv_import_mr`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    door::nothing(|| drop(unsafe { Box::from_raw(mr.cast::<Mr>()) }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_file_and_others_are_refused() {
        let file = name_file(0x1234_5678_9abc_def0, 3, Path::new("/run/burst.sock")).unwrap();
        let want = Named { token: 0x1234_5678_9abc_def0, device: 3, socket: "/run/burst.sock".into() };
        assert_eq!(read_name(file.as_raw_fd()), Ok(want));
        let other = File::open("/dev/null").unwrap();
        assert_eq!(read_name(other.as_raw_fd()), Err(EINVAL));
        assert_eq!(read_name(1 << 20), Err(Errno(libc::EBADF)));
    }
}
