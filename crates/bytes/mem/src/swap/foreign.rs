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
        // -1 for a descriptor closed meanwhile, which is neither of the two modes below.
        // SAFETY: numbers only.
        let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE;
        let usable = mode == libc::O_RDWR || (!write && mode == libc::O_RDONLY);
        if !same || !usable {
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
    use crate::swap::testing::{Memory, in_child, is_root, memfd, open_count, reopened};
    use crate::swap::vma::{Maps, NAME_MAX, parse_line};
    use std::os::unix::fs::MetadataExt;

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

    #[test]
    fn a_device_is_named_by_a_path_from_the_root() {
        let inode = std::fs::metadata("/dev/zero").expect("/dev/zero").ino();
        let named =
            |name: &str| parse_line(format!("1000-3000 rw-p 0 00:05 {inode} {name}").as_bytes()).expect("a line");
        assert_eq!(character_device(&named("/dev/zero")), Some(ZERO));
        // Leads to the device from this directory.
        let depth = std::env::current_dir().expect("a directory").components().count();
        assert_eq!(character_device(&named(&format!("{}dev/zero", "../".repeat(depth)))), None);
        let longest = |len: usize| format!("{}dev/zero", "/".repeat(len - "dev/zero".len()));
        assert_eq!(character_device(&named(&longest(NAME_MAX))), Some(ZERO));
        assert_eq!(character_device(&named(&longest(NAME_MAX + 1))), None, "counts as one without a name");
    }

    #[test]
    fn only_a_seal_against_shrinking_counts() {
        let sealed = |seals| is_sealed(&memfd(1, seals));
        assert!(sealed(libc::F_SEAL_SHRINK) && sealed(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW));
        assert!(!sealed(libc::F_SEAL_GROW) && !sealed(0));
        let program = std::fs::File::open("/proc/self/exe").expect("exe");
        assert!(!is_sealed(&OwnedFd::from(program)), "a file without seals");
    }

    /// Access mode, inode and whether it is closed on `execve`.
    fn description(fd: &OwnedFd) -> (i32, u64, bool) {
        // SAFETY: numbers only.
        let (mode, flags) =
            unsafe { (libc::fcntl(fd.as_raw_fd(), libc::F_GETFL), libc::fcntl(fd.as_raw_fd(), libc::F_GETFD)) };
        (mode & libc::O_ACCMODE, rustix::fs::fstat(fd).expect("open").st_ino, flags == libc::FD_CLOEXEC)
    }

    #[test]
    fn a_descriptor_of_the_program_serves_if_it_has_the_rights() {
        // Its descriptors are looked through: other threads would open and close some.
        in_child(|| {
            let file = memfd(2, libc::F_SEAL_SHRINK);
            let inode = rustix::fs::fstat(&file).expect("open").st_ino;
            let memory = Memory::of(file.as_raw_fd(), 0, 2);
            let vma = Maps::open().expect("/proc/self/maps").at_or_after(memory.at).expect("the mapping");
            // Another file of the same file system, open all the time.
            let _other = memfd(1, libc::F_SEAL_SHRINK);
            let found = |write| own_descriptor(&vma, write).map(|fd| description(&fd));
            let before = open_count();
            assert_eq!(
                (found(true), found(false)),
                (Some((libc::O_RDWR, inode, true)), Some((libc::O_RDWR, inode, true)))
            );
            let read_only = reopened(&file, libc::O_RDONLY);
            let write_only = reopened(&file, libc::O_WRONLY);
            drop(file);
            assert_eq!((found(true), found(false)), (None, Some((libc::O_RDONLY, inode, true))));
            drop(read_only);
            assert_eq!((found(true), found(false)), (None, None), "written only");
            drop(write_only);
            assert_eq!((found(true), found(false)), (None, None), "no descriptor");
            // The kernel's list of mapped files, for those who may.
            if is_root() {
                for (write, mode) in [(true, libc::O_RDWR), (false, libc::O_RDONLY)] {
                    let fd = descriptor(&vma, write).expect("a mapped file");
                    assert_eq!(description(&fd), (mode, inode, true));
                }
            }
            assert_eq!(open_count(), before - 1, "each descriptor was closed");
        });
    }

    #[test]
    fn an_unsealed_file_has_no_descriptor_that_serves() {
        let file = memfd(2, libc::F_SEAL_GROW);
        let memory = Memory::of(file.as_raw_fd(), 0, 2);
        let vma = Maps::open().expect("/proc/self/maps").at_or_after(memory.at).expect("the mapping");
        assert!(own_descriptor(&vma, true).is_some() && descriptor(&vma, true).is_none());
    }
}
