//! The file that identifies a context: it has the path of the daemon's socket, the device number, and the context's token.
//!
//! `cmd_fd` of a context is the descriptor of this file, a sealed memfd. Only a process that has the descriptor knows the token.
//! A program passes the descriptor on (`SCM_RIGHTS`); the receiver's `ibv_import_device` opens another context by it.

use crate::boundary::{EINVAL, ENOMEM, EOPNOTSUPP, Errno, Outcome};
use burst_client::raw::place::HostPlace;
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// First bytes of the file.
const MAGIC: &[u8; 8] = b"BURSTCTX";
/// Most bytes of the file: the numbers and a path.
const FILE_MAX: u64 = 4096;

/// Contents of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct ContextName {
    /// The context's token.
    pub token: u64,
    /// The daemon's number of the device.
    pub device: u32,
    /// The daemon's socket; empty if the host is in the process.
    pub socket: PathBuf,
}

impl ContextName {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.token.to_ne_bytes());
        bytes.extend(self.device.to_ne_bytes());
        bytes.extend(self.socket.as_os_str().as_bytes());
        bytes
    }

    /// Where the context's host is.
    ///
    /// # Errors
    /// EOPNOTSUPP: it is in the process of the exporter, which alone can use its objects.
    pub fn place(&self) -> Outcome<HostPlace> {
        if self.socket.as_os_str().is_empty() { Err(EOPNOTSUPP) } else { Ok(HostPlace::Socket(self.socket.clone())) }
    }

    fn from_bytes(bytes: &[u8]) -> Option<ContextName> {
        let (token, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let (device, socket) = rest.split_first_chunk::<4>()?;
        Some(ContextName {
            token: u64::from_ne_bytes(*token),
            device: u32::from_ne_bytes(*device),
            socket: PathBuf::from(std::ffi::OsStr::from_bytes(socket)),
        })
    }
}

/// Makes the file.
pub fn name_file(token: u64, device: u32, socket: &Path) -> Outcome<OwnedFd> {
    let bytes = ContextName { token, device, socket: socket.to_owned() }.to_bytes();
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

/// Reads a file that `name_file` made.
pub fn read_name(fd: c_int) -> Outcome<ContextName> {
    // SAFETY: borrowed for this function only; a bad number makes the read fail.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| (&*file).take(FILE_MAX).read_to_end(&mut bytes));
    read.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EINVAL)))?;
    ContextName::from_bytes(&bytes).ok_or(EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_file_and_others_are_refused() {
        let file = name_file(0x1234_5678_9abc_def0, 3, Path::new("/run/burst.sock")).unwrap();
        let want = ContextName { token: 0x1234_5678_9abc_def0, device: 3, socket: "/run/burst.sock".into() };
        assert_eq!(read_name(file.as_raw_fd()), Ok(want));
        let other = File::open("/dev/null").unwrap();
        assert_eq!(read_name(other.as_raw_fd()), Err(EINVAL));
        assert_eq!(read_name(1 << 20), Err(Errno(libc::EBADF)));
    }
}
