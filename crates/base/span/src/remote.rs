//! Another process's memory, by its file `/proc/PID/mem`.
//!
//! The file belongs to the address space that the process has when it is opened, and rights are checked then. After the
//! process has ended, or runs another program by `exec`, the file reaches nothing any more. `process_vm_readv` would
//! reach whatever has the number at the time: a daemon with privileges could be led into a set-user-ID program that way, or
//! into a stranger's process.
//!
//! The kernel checks every address; a wrong one is an error and never a fault here. A call may move less than asked
//! when a later page is unmapped: it is repeated for the rest, so that the end of the mapped part shows as an error, and
//! any shortfall is [`Gone`].

use crate::{Gone, Span};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

/// The memory of a process. Spans of it are good for as long as it lives.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory of process `pid`, if it is `owner`'s to give: a process that runs a set-user-ID program, or has made
    /// itself untraceable, belongs to root there, whoever started it.
    ///
    /// # Errors
    /// When there is no such process, when it is not to be reached from here, or it is not the owner's.
    pub fn open(pid: u32, owner: u32) -> io::Result<ProcessMemory> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        // After opening: a program with more rights that came before it is seen here, one that comes later is not reached.
        if std::fs::metadata(&path)?.uid() != owner {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(ProcessMemory(file))
    }
    /// This process's own memory.
    ///
    /// # Errors
    /// Where there is no `/proc`.
    pub fn own() -> io::Result<ProcessMemory> {
        OpenOptions::new().read(true).write(true).open("/proc/self/mem").map(ProcessMemory)
    }
    /// `len` bytes at `addr`. Use it no longer than `self` lives: the descriptor's number may be another file's then.
    pub fn span(&self, addr: u64, len: u32) -> Span {
        Span { addr, len, memory: self.0.as_raw_fd() }
    }
}

/// Copies `dst.len()` bytes from `addr` of the process whose memory `fd` is.
pub(crate) fn read(fd: RawFd, addr: u64, dst: &mut [u8]) -> Result<(), Gone> {
    let mut done = 0;
    while done < dst.len() {
        let rest = &mut dst[done..];
        // SAFETY: `rest` is a live exclusive slice.
        let moved = unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), at(addr, done)?) };
        done += progress(moved)?;
    }
    Ok(())
}

/// Copies `src` to `addr` of the process whose memory `fd` is.
pub(crate) fn write(fd: RawFd, addr: u64, src: &[u8]) -> Result<(), Gone> {
    let mut done = 0;
    while done < src.len() {
        let rest = &src[done..];
        // SAFETY: the kernel only reads `rest`, a live slice.
        let moved = unsafe { libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), at(addr, done)?) };
        done += progress(moved)?;
    }
    Ok(())
}

fn at(addr: u64, offset: usize) -> Result<libc::off_t, Gone> {
    addr.checked_add(offset as u64).and_then(|a| libc::off_t::try_from(a).ok()).ok_or(Gone)
}

/// Bytes moved by one call; none at all would repeat for ever.
fn progress(moved: isize) -> Result<usize, Gone> {
    usize::try_from(moved).ok().filter(|&n| n > 0).ok_or(Gone)
}
