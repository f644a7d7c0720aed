//! Finding a descriptor for shared memory that the program mapped itself.
//!
//! A mapping names its file by device and inode. The program usually still holds the descriptor; if not, and with
//! the privilege for it, `/proc/self/map_files` gives one. Only files sealed against shrinking are of use: the
//! daemon maps no others.
use super::vma::Vma;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor of the mapping's file, sealed against shrinking; writable if `write`.
pub(crate) fn descriptor(vma: &Vma, write: bool) -> Option<OwnedFd> {
    held(vma, write).or_else(|| by_map_files(vma, write)).filter(is_sealed)
}

fn is_sealed(fd: &OwnedFd) -> bool {
    // SAFETY: numbers only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// One of the program's own descriptors.
fn held(vma: &Vma, write: bool) -> Option<OwnedFd> {
    let names = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers = names.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for fd in numbers {
        // SAFETY: all zeroes is a valid `stat`.
        let mut st: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `st` is writable; a descriptor closed meanwhile is an error.
        let same = unsafe { libc::fstat(fd, &raw mut st) } == 0
            && st.st_ino == vma.inode
            && (libc::major(st.st_dev), libc::minor(st.st_dev)) == vma.device;
        // SAFETY: numbers only.
        let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let usable = mode & libc::O_ACCMODE == libc::O_RDWR || (!write && mode & libc::O_ACCMODE == libc::O_RDONLY);
        if !same || mode < 0 || !usable {
            continue;
        }
        // SAFETY: numbers only.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy >= 0 {
            // SAFETY: a fresh descriptor that nobody else owns.
            return Some(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }
    None
}

fn by_map_files(vma: &Vma, write: bool) -> Option<OwnedFd> {
    let path = format!("/proc/self/map_files/{:x}-{:x}\0", vma.start, vma.end);
    let mode = if write { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: a terminated string.
    let fd = unsafe { libc::open(path.as_ptr().cast(), mode | libc::O_CLOEXEC) };
    // SAFETY: a fresh descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}
