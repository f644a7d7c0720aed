//! Whether a device has pinned memory, so that its pages must stay where they are.
//!
//! A driver that pins memory (`cudaHostRegister`, VFIO, io_uring's fixed buffers) keeps the pages that are mapped at that
//! moment. If other pages are mapped there later, the processor and the device see different memory, without an error.
//! The kernel does not say which pages are pinned, so three questions are asked before pages are swapped in or out:
//!
//! | pinned by | question | covers |
//! |---|---|---|
//! | io_uring, iommufd, RDMA adapters | `VmPin` in `/proc/self/status` is not 0 | the whole process |
//! | VFIO containers | `VmLck` is not 0 and the process has `/dev/vfio/...` open | the whole process |
//! | CUDA | `cuPointerGetAttribute(MEMORY_TYPE)` knows the address, if `libcuda.so.1` is loaded | the range |
//!
//! Where the answer covers the process, no page is swapped while it is yes. CUDA is asked at both ends of a range and once
//! per 2 MiB: a shorter pinned range in the middle of a longer registration goes unnoticed. AF_XDP, `vmsplice` and direct
//! I/O under way are counted nowhere. For programs that need them beside swapped memory there is `BURST_SWAP=off`.
use burst_cuda::CudaDriver;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// Bytes between two questions to CUDA.
const CUDA_STEP: usize = 2 << 20;
/// Longest `/proc/self/status` that is read; the lines looked for are in its first kilobyte.
const STATUS_BYTES: usize = 4096;

/// Whether the environment forbids swapping: `BURST_SWAP=off`. Read once.
pub(super) fn is_switched_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| {
        let word = std::env::var_os("BURST_SWAP");
        word.as_ref().and_then(|word| word.to_str()).and_then(burst_grammar::switch) == Some(false)
    })
}

/// Whether CUDA knows a part of `[lo, hi)`, as far as both ends and one address per [`CUDA_STEP`] tell.
fn knows_part(cuda: &CudaDriver, lo: usize, hi: usize) -> bool {
    debug_assert!(lo < hi, "a range of at least a page");
    cuda.knows(hi - 1) || (lo..hi).step_by(CUDA_STEP).any(|addr| cuda.knows(addr))
}

/// Pinned memory, and what else the kernel counts of the process, as found during one registration or deregistration.
#[derive(Debug)]
pub(super) struct Pins {
    cuda: Option<CudaDriver>,
    /// Whether a driver has pinned memory that may be anywhere in the process.
    anywhere: bool,
    /// Whether the process has locked memory (`mlock`).
    pub(super) has_locked: bool,
    /// Whether the process has no other thread than this one.
    pub(super) is_alone: bool,
}

impl Pins {
    /// Call it without the registry's lock: finding a library takes the loader's lock, under which constructors of the
    /// program may register memory.
    pub(super) fn look() -> Pins {
        Pins { cuda: CudaDriver::find(), ..Pins::without_cuda() }
    }
    /// What the kernel counts. Unreadable counters count as no pinned memory: without `/proc` nothing is swapped either.
    pub(super) fn without_cuda() -> Pins {
        let mut status = [0; STATUS_BYTES];
        let status = read_status(&mut status);
        let counted = |name| number_of(status, name).is_some_and(|number| number > 0);
        let has_locked = counted(b"VmLck:");
        let anywhere = counted(b"VmPin:") || (has_locked && has_vfio_open());
        Pins { cuda: None, anywhere, has_locked, is_alone: number_of(status, b"Threads:") == Some(1) }
    }
    /// Whether pages of `[lo, hi)` may be pinned.
    pub(super) fn may_hold(&self, lo: usize, hi: usize) -> bool {
        self.anywhere || self.cuda.as_ref().is_some_and(|cuda| knows_part(cuda, lo, hi))
    }
}

fn read_status(buffer: &mut [u8; STATUS_BYTES]) -> &[u8] {
    let fd = super::proc_files::open(c"/proc/self/status");
    if fd < 0 {
        return &[];
    }
    // SAFETY: the buffer is writable for its length; the descriptor is ours and closed once.
    let n = unsafe {
        let n = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(fd);
        n
    };
    &buffer[..usize::try_from(n).unwrap_or(0)]
}

/// The number in the line `NAME   123` or `NAME   123 kB` of `/proc/PID/status`.
fn number_of(status: &[u8], name: &[u8]) -> Option<u64> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.trim_ascii().split(|byte| *byte == b' ').next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether the process has a VFIO container or group open. Its pins are counted as locked memory, like `mlock`.
fn has_vfio_open() -> bool {
    let Ok(fds) = std::fs::read_dir("/proc/self/fd") else { return false };
    let target = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).ok();
    fds.flatten().filter_map(target).any(|path| path.as_os_str().as_bytes().starts_with(b"/dev/vfio/"))
}

#[cfg(test)]
mod tests {
    use super::super::pool::PAGE;
    use super::super::testing::{Memory, in_child, limit, open_count};
    use super::*;

    #[test]
    fn counters_are_found_in_the_status_file() {
        let status = b"Name:\tx VmPin: 9\nVmLck:\t      12 kB\nVmPin:\t       0 kB\nVmHWM:\t   1 kB\n";
        assert_eq!((number_of(status, b"VmLck:"), number_of(status, b"VmPin:")), (Some(12), Some(0)));
        assert_eq!((number_of(status, b"VmRSS:"), number_of(b"VmPin:\n", b"VmPin:")), (None, None));
        let mut own = [0; STATUS_BYTES];
        assert!(number_of(read_status(&mut own), b"VmPin:").is_some(), "the kernel has the counter");
    }

    #[test]
    fn descriptor_0_reads_the_status_file_as_well_as_others() {
        in_child(|| {
            // SAFETY: a descriptor that this child does not use.
            unsafe { libc::close(0) };
            let before = open_count();
            let mut own = [0; STATUS_BYTES];
            assert!(read_status(&mut own).starts_with(b"Name:"));
            assert!(!Pins::without_cuda().anywhere);
            assert_eq!(open_count(), before);
            // Without a descriptor for it there is no status, and no pin is known of.
            limit(libc::RLIMIT_NOFILE, 0);
            assert_eq!((read_status(&mut own), Pins::without_cuda().anywhere), (&[][..], false));
        });
    }

    #[test]
    fn locked_memory_is_no_pin_without_vfio() {
        in_child(|| {
            let memory = Memory::new(2);
            // By its number: AddressSanitizer's own mlock locks nothing.
            // SAFETY: memory of this test.
            if unsafe { libc::syscall(libc::SYS_mlock, memory.at, PAGE) } == 0 {
                let mut own = [0; STATUS_BYTES];
                assert_eq!(number_of(read_status(&mut own), b"VmLck:"), Some(4));
                assert!(!Pins::without_cuda().anywhere);
            }
        });
    }
}
