//! Registrations of memory that other threads touch for the first time meanwhile.

use burst_base::verbs::access;
use burst_mem::Region;
use burst_mem::region::MapPiece;
use burst_mem::swap::{PieceSource, register, release};
use std::io::Write as _;

const PAGE: usize = 4096;

fn anon(len: usize) -> usize {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p as usize
}

fn byte(at: usize) -> u8 {
    // SAFETY: a page of this test.
    unsafe { (at as *const u8).read_volatile() }
}

/// A thread touches pages for the first time, in many runs or one, while another registers them.
#[test]
fn first_touches_meanwhile_are_not_lost() {
    const PAGES: usize = 64;
    for round in 0..400usize {
        let p = anon(PAGES * PAGE);
        let (step, ready) = ([1, 3, 13][round % 3], std::sync::Barrier::new(2));
        let touch = |from: usize, to: usize| {
            // SAFETY: pages of this test.
            (from..to).for_each(|i| unsafe { ((p + i * step % PAGES * PAGE) as *mut u8).write_volatile(i as u8 + 1) });
        };
        touch(0, round % 40);
        let reg = std::thread::scope(|scope| {
            scope.spawn(|| {
                ready.wait();
                touch(round % 40, PAGES);
            });
            ready.wait();
            register(p, PAGES * PAGE, true).expect("registered")
        });
        if reg.is_in_process() {
            let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
            return release(reg);
        }
        let PieceSource::Fd { fd, offset } = reg.pieces()[0].kind else { unreachable!("asked before") };
        let piece = MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: (PAGES * PAGE) as u64 };
        let mapping = Region::map(&[piece], access::LOCAL_WRITE).expect("mapped");
        let region = Region::new(1, 1, p as u64, (PAGES * PAGE) as u64, access::LOCAL_WRITE, mapping);
        for i in 0..PAGES {
            let at = p + i * step % PAGES * PAGE;
            let (span, mut seen) = (region.span(at as u64, 1).expect("inside"), [0]);
            span.read_to(&mut seen).expect("there");
            assert_eq!((byte(at), seen[0]), (i as u8 + 1, i as u8 + 1), "round {round}");
            span.write_from(&[200]).expect("there");
            assert_eq!(byte(at), 200);
        }
        drop(region);
        release(reg);
        // SAFETY: memory of this test, used no more.
        assert_eq!(unsafe { libc::munmap(p as *mut _, PAGES * PAGE) }, 0);
    }
}
