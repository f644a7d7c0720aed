//! Mappings of files: the descriptor of shared memory that the program has mapped itself, and device files, which are
//! refused.
//!
//! A mapping names its file by device and inode. The program usually still holds the descriptor; if not, and with
//! the privilege for it, `/proc/self/map_files` gives one. Only files sealed against shrinking are useful: the daemon
//! maps no others.
use super::vma::Vma;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor of the mapping's file, sealed against shrinking; writable if `write`.
pub(crate) fn descriptor(vma: &Vma, write: bool) -> Option<OwnedFd> {
    own_descriptor(vma, write).or_else(|| by_map_files(vma, write)).filter(is_sealed)
}

fn is_sealed(fd: &OwnedFd) -> bool {
    // SAFETY: numbers only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// A duplicate of a descriptor that the program has open for the file of the mapping.
fn own_descriptor(vma: &Vma, write: bool) -> Option<OwnedFd> {
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
            // SAFETY: a fresh descriptor, owned by no other value.
            return Some(unsafe { OwnedFd::from_raw_fd(copy) });
        }
    }
    None
}

/// `/dev/zero`: its private mappings are ordinary memory.
const ZERO: (u32, u32) = (1, 5);
/// `/dev/nvidiactl`: mappings of system memory that the driver has allocated (`cudaHostAlloc`), ordinary pages.
const NVIDIA_CONTROL: (u32, u32) = (195, 255);
/// Persistent memory mapped as a device: ordinary pages; the number of the device is not fixed.
const DEVICE_DAX: &[u8] = b"/dev/dax";

/// Whether a mapping is memory of a device that the daemon must not reach for.
///
/// `/proc/PID/mem` asks the driver for each page of such a mapping. NVIDIA's maps one page uncached per call, and its
/// versions 595.44.02 to 595.45.04 read through a NULL pointer there: an oops of the kernel in the thread that asks.
pub(crate) fn is_refused_device(vma: &Vma) -> bool {
    character_device(vma).is_some_and(|number| is_refused(number, vma.name()))
}

fn is_refused(number: (u32, u32), name: &[u8]) -> bool {
    number != ZERO && number != NVIDIA_CONTROL && !name.starts_with(DEVICE_DAX)
}

/// Major and minor number of the character device that is mapped, found by its name. `None`: no character device, or the
/// name is too long or gone.
fn character_device(vma: &Vma) -> Option<(u32, u32)> {
    let mut path = [0; super::vma::NAME_MAX + 1];
    if vma.inode == 0 || !vma.name().starts_with(b"/") {
        return None;
    }
    path[..vma.name().len()].copy_from_slice(vma.name());
    // SAFETY: all zeroes is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a terminated path (a name is shorter than `path`), and `st` is writable.
    let found = unsafe { libc::stat(path.as_ptr().cast(), &raw mut st) } == 0 && st.st_ino == vma.inode;
    (found && st.st_mode & libc::S_IFMT == libc::S_IFCHR).then(|| (libc::major(st.st_rdev), libc::minor(st.st_rdev)))
}

/// A new descriptor of the mapping's file; needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
fn by_map_files(vma: &Vma, write: bool) -> Option<OwnedFd> {
    let path = format!("/proc/self/map_files/{:x}-{:x}\0", vma.start, vma.end);
    let mode = if write { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: a terminated string.
    let fd = unsafe { libc::open(path.as_ptr().cast(), mode | libc::O_CLOEXEC) };
    // SAFETY: a fresh descriptor, owned by no other value.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::vma::Maps;
    use std::os::fd::AsRawFd;

    fn mapping_of(path: &str) -> Vma {
        let file = std::fs::File::open(path).expect("a file");
        let flags = libc::MAP_PRIVATE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let maps = Maps::open().expect("/proc/self/maps");
        let vma = maps.at_or_after(at as usize).expect("the mapping");
        // SAFETY: the mapping made above; only its description is used from here on.
        unsafe { libc::munmap(at, 4096) };
        vma
    }

    #[test]
    fn character_devices_are_known_by_number() {
        let zero = mapping_of("/dev/zero");
        assert_eq!(character_device(&zero), Some(ZERO));
        assert!(!is_refused_device(&zero), "ordinary memory");
        let program = std::env::current_exe().expect("own path");
        let file = mapping_of(program.to_str().expect("text"));
        assert_eq!((character_device(&file), is_refused_device(&file)), (None, false));
        // The BARs of a GPU, its managed memory, doorbells of an adapter, a frame buffer.
        for (number, name) in
            [((195, 0), "/dev/nvidia0"), ((511, 0), "/dev/nvidia-uvm"), ((231, 192), "/dev/infiniband/uverbs0")]
        {
            assert!(is_refused(number, name.as_bytes()), "{name}");
        }
        assert!(!is_refused((195, 255), b"/dev/nvidiactl") && !is_refused((250, 1), b"/dev/dax0.0"));
    }

    #[test]
    fn a_name_that_leads_to_another_file_by_now_is_no_device() {
        let name = std::env::temp_dir().join(format!("burst-foreign-{}", std::process::id()));
        std::fs::write(&name, [0; 4096]).expect("a file");
        let file = mapping_of(name.to_str().expect("text"));
        std::fs::remove_file(&name).expect("the file made above");
        assert_eq!(character_device(&file), None, "the name is gone");
        std::os::unix::fs::symlink("/dev/zero", &name).expect("the name is free");
        let device = character_device(&file);
        std::fs::remove_file(&name).expect("the link made above");
        assert_eq!(device, None, "the mapping is of the file");
    }
}
