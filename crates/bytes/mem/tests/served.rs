//! Memory whose missing pages the program provides by a userfaultfd of its own: all are there when it is registered.

use burst_base::verbs::access;
use burst_mem::Region;
use burst_mem::region::MapPiece;
use burst_mem::swap::{PieceSource, register, release};
use burst_mem::userfaultfd::{self, REGISTER_MISSING, UFFDIO_COPY, UFFDIO_REGISTER};
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 32;

/// What the program puts into the page at an address.
fn contents(at: usize) -> u8 {
    (at / PAGE % 120) as u8 + 1
}

fn map(flags: i32, fd: i32) -> usize {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE, rights, flags, fd, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p as usize
}

/// Provides the missing pages of the memory at `at` in a thread, and counts them. `None`: the kernel gives no userfaultfd.
fn provide(at: usize) -> Option<Arc<AtomicUsize>> {
    let uffd = userfaultfd::open(0)?;
    userfaultfd::agree(uffd.as_fd(), 0)?;
    // SAFETY: memory of this test.
    let watched = unsafe {
        userfaultfd::call(uffd.as_fd(), UFFDIO_REGISTER, &mut [at as u64, (PAGES * PAGE) as u64, REGISTER_MISSING, 0])
    };
    assert!(watched, "{}", std::io::Error::last_os_error());
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    std::thread::spawn(move || {
        loop {
            let mut poll = libc::pollfd { fd: uffd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut message = [0u64; 4];
            // SAFETY: `poll` and `message` are writable.
            let n = unsafe {
                libc::poll(&raw mut poll, 1, -1);
                libc::read(uffd.as_raw_fd(), message.as_mut_ptr().cast(), 32)
            };
            if n == 32 {
                let page = message[2] as usize & !(PAGE - 1);
                let bytes = [contents(page); PAGE];
                // Before the thread that waits for the page goes on.
                count.fetch_add(1, Ordering::Relaxed);
                // SAFETY: a missing page of this test.
                unsafe {
                    let words = &mut [page as u64, bytes.as_ptr() as u64, PAGE as u64, 0, 0];
                    userfaultfd::call(uffd.as_fd(), UFFDIO_COPY, words);
                }
            }
        }
    });
    Some(served)
}

fn sealed() -> OwnedFd {
    // SAFETY: a constant name; then numbers only.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        let fd = OwnedFd::from_raw_fd(fd);
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), (PAGES * PAGE) as i64), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        fd
    }
}

#[test]
fn pages_that_the_program_provides_are_fetched_at_registration() {
    let file = sealed();
    let kinds = [
        ("private", map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)),
        ("shared", map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)),
        ("sealed", map(libc::MAP_SHARED, file.as_raw_fd())),
    ];
    for (kind, at) in kinds {
        let Some(served) = provide(at) else {
            let _ = writeln!(std::io::stderr(), "SKIP: the kernel gives no userfaultfd for system calls here");
            return;
        };
        let reg = register(at + PAGE, (PAGES - 2) * PAGE, true).expect("registered");
        assert_eq!(served.load(Ordering::Relaxed), PAGES - 2, "{kind}");
        if let PieceSource::Fd { fd, offset } = reg.pieces()[0].kind {
            let piece = MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: ((PAGES - 2) * PAGE) as u64 };
            let mapping = Region::map(&[piece], access::LOCAL_WRITE).expect("mapped");
            let (first, len) = ((at + PAGE) as u64, ((PAGES - 2) * PAGE) as u64);
            let region = Region::new(1, 1, first, len, access::LOCAL_WRITE, mapping);
            for page in 1..PAGES - 1 {
                let (place, mut byte) = (at + page * PAGE, [0]);
                region.span(place as u64 + 9, 1).expect("inside").read_to(&mut byte).expect("there");
                assert_eq!(byte[0], contents(place), "{kind}, page {page}");
            }
        }
        release(reg);
        // SAFETY: memory of this test.
        let first = unsafe { (at as *const u8).read_volatile() };
        assert_eq!(
            (first, served.load(Ordering::Relaxed)),
            (contents(at), PAGES - 1),
            "{kind}: the program goes on serving"
        );
    }
}
