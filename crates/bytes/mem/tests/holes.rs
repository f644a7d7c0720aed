//! Missing pages in mapped memory of programs: they are allocated within the allowance; beyond it the region gives nothing any
//! more, the kernel allocates nothing, and the process lives.

use burst_base::verbs::access;
use burst_base::{Lkey, Qpn, Reason, Rkey};
use burst_mem::holes::{self, FillAllowance};
use burst_mem::{KeySpace, MapPiece, Mapping, MrTable, Peer, Region};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const PAGE: u64 = 4096;
const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

fn memfd(len: u64, flags: u32) -> Option<OwnedFd> {
    // SAFETY: a constant name, and numbers; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags);
        let fd = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?;
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as i64), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        Some(fd)
    }
}

fn punch(fd: &OwnedFd, offset: u64, len: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset as i64, len as i64) }, 0);
}

/// Pages that the kernel has allocated for a file.
fn pages_of(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).expect("open").st_blocks as u64 * 512 / PAGE
}

fn piece(fd: &OwnedFd, len: u64) -> MapPiece<'_> {
    MapPiece { fd: fd.as_fd(), offset: 0, len }
}

/// A table with one region of `len` bytes, and the region's key.
fn table_of(mapping: Mapping, len: u64) -> (MrTable, u32) {
    let mut seed = 1u64;
    let mut keys = KeySpace::new(Box::new(move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed
    }));
    let key = keys.alloc().expect("a key");
    let mut table = MrTable::new(keys.cipher());
    assert!(table.insert(Arc::new(Region::new(key, 1, 0, len, ALL, mapping))));
    (table, key)
}

fn write(table: &MrTable, key: u32, addr: u64) -> Result<(), Reason> {
    table.local(1, Lkey(key), addr, 8, access::LOCAL_WRITE)?.write_from(&[7; 8]).expect("no system call");
    Ok(())
}

#[test]
fn missing_pages_are_allocated_within_the_allowance_only() {
    let fd = memfd(8 * PAGE, 0).expect("a memfd");
    // SAFETY: one byte of a live array.
    assert_eq!(unsafe { libc::pwrite(fd.as_raw_fd(), [5u8].as_ptr().cast(), 1, 0) }, 1);
    let allowance = Arc::new(FillAllowance::new(2 * PAGE, None));
    let (mut table, key) =
        table_of(Region::map_untrusted(&[piece(&fd, 8 * PAGE)], ALL, &allowance).expect("mapped"), 8 * PAGE);
    assert_eq!((write(&table, key, 16), pages_of(&fd)), (Ok(()), 1), "a page that is there costs nothing");
    assert_eq!((write(&table, key, PAGE), write(&table, key, 2 * PAGE + 9)), (Ok(()), Ok(())));
    assert_eq!((pages_of(&fd), allowance.left()), (3, 0));
    let mut out = [0; 8];
    table.local(1, Lkey(key), PAGE, 8, 0).expect("inside").read_to(&mut out).expect("there");
    assert_eq!(out, [7; 8]);
    // Beyond it: the write is lost, and the key gives nothing from the next turn on.
    assert_eq!(write(&table, key, 5 * PAGE), Ok(()));
    assert_eq!(pages_of(&fd), 3);
    table.reclaim();
    assert_eq!(write(&table, key, 0), Err(Reason::PageRemoved));
    let peer = Peer { pd: 1, qpn: Qpn::new(9) };
    assert_eq!(table.remote(peer, Rkey(key), 0, 8, access::REMOTE_READ).err(), Some(Reason::PageRemoved));
    assert!(table.remove(key).is_some_and(|region| region.is_broken()), "it can be deregistered");
    assert!(table.is_empty());
    table.reclaim();
    assert_eq!(pages_of(&fd), 3);
}

#[test]
fn pages_that_follow_one_another_are_allocated_together() {
    const PAGES: u64 = 256;
    let fd = memfd(PAGES * PAGE, 0).expect("a memfd");
    // SAFETY: one byte of a live array.
    assert_eq!(unsafe { libc::pwrite(fd.as_raw_fd(), [5u8].as_ptr().cast(), 1, 100 * PAGE as i64) }, 1);
    let total = Arc::new(FillAllowance::new(2 * PAGES * PAGE, None));
    let allowance = Arc::new(FillAllowance::new(PAGES * PAGE, Some(total.clone())));
    let map = Region::map_untrusted(&[piece(&fd, PAGES * PAGE)], ALL, &allowance).expect("mapped");
    let (mut table, key) = table_of(map, PAGES * PAGE);
    // Backwards, or one of two: one page each time.
    for (written, page) in [255u64, 254, 252, 250, 200].into_iter().enumerate() {
        assert_eq!((write(&table, key, page * PAGE), pages_of(&fd)), (Ok(()), 2 + written as u64));
    }
    assert!(table.reclaim(), "the worker learns of them");
    assert_eq!((allowance.take_unpaid(), allowance.take_unpaid()), (5, 0));
    // In order: twice as many each time, as far as the next page that is there.
    let (mut steps, mut before) = (Vec::new(), pages_of(&fd));
    for page in 0..PAGES {
        assert_eq!(write(&table, key, page * PAGE), Ok(()));
        let now = pages_of(&fd);
        steps.extend((now > before).then_some(now - before));
        before = now;
    }
    assert_eq!((steps[..6].to_vec(), before), (vec![1, 2, 4, 8, 16, 16], PAGES), "{steps:?}");
    assert!(steps.len() <= 30 && steps.iter().all(|pages| *pages <= 16), "{steps:?}");
    assert!(table.reclaim() && allowance.take_unpaid() == PAGES - 6);
    // What was taken for pages that were there has been given back.
    assert_eq!((allowance.left(), total.left()), (PAGE, (PAGES + 1) * PAGE));
    let mut out = [1; 8];
    table.local(1, Lkey(key), 100 * PAGE, 8, 0).expect("inside").read_to(&mut out).expect("there");
    assert_eq!(out, [7; 8], "a page that was there stays");
}

#[test]
fn each_worker_is_told_of_the_pages_that_its_thread_allocated() {
    let allowance = Arc::new(FillAllowance::new(100 * PAGE, None));
    let ready = Arc::new(std::sync::Barrier::new(2));
    let [first, second] = [(1, 3), (2, 5)].map(|(worker, pages)| {
        let (allowance, ready) = (allowance.clone(), ready.clone());
        std::thread::spawn(move || {
            holes::count_for_worker(worker);
            let fd = memfd(pages * PAGE, 0).expect("a memfd");
            let map = Region::map_untrusted(&[piece(&fd, pages * PAGE)], ALL, &allowance).expect("mapped");
            let (table, key) = table_of(map, pages * PAGE);
            (0..pages).for_each(|page| assert_eq!(write(&table, key, page * PAGE), Ok(())));
            // Both have allocated before either asks.
            ready.wait();
            allowance.take_unpaid()
        })
    });
    assert_eq!((first.join().expect("no panic"), second.join().expect("no panic")), (3, 5));
    assert_eq!(allowance.take_unpaid(), 0, "this thread has allocated none");
}

#[test]
fn punched_pages_are_missing_and_other_regions_stay() {
    let (punched, whole) = (memfd(2 * PAGE, 0).expect("a memfd"), memfd(PAGE, 0).expect("a memfd"));
    let none = Arc::new(FillAllowance::new(0, None));
    // SAFETY: bytes of a live array.
    let fill =
        |fd: &OwnedFd, len: u64| unsafe { libc::pwrite(fd.as_raw_fd(), [3u8; 8192].as_ptr().cast(), len as usize, 0) };
    assert_eq!((fill(&punched, 2 * PAGE), fill(&whole, PAGE)), (8192, 4096));
    let map = |fd, len| Region::map_untrusted(&[piece(fd, len)], ALL, &none).expect("mapped");
    let (mut table, key) = table_of(map(&punched, 2 * PAGE), 2 * PAGE);
    let (mut others, other) = table_of(map(&whole, PAGE), PAGE);
    assert_eq!((write(&table, key, 0), write(&table, key, PAGE), write(&others, other, 0)), (Ok(()), Ok(()), Ok(())));
    punch(&punched, PAGE, PAGE);
    assert_eq!(write(&table, key, 0), Ok(()));
    assert_eq!((write(&table, key, PAGE), pages_of(&punched)), (Ok(()), 1));
    table.reclaim();
    others.reclaim();
    assert_eq!((write(&table, key, 0), write(&others, other, 8)), (Err(Reason::PageRemoved), Ok(())));
}

#[test]
fn memory_of_a_trusted_program_is_allocated_without_limit() {
    let fd = memfd(4 * PAGE, 0).expect("a memfd");
    let (table, key) = table_of(Region::map(&[piece(&fd, 4 * PAGE)], ALL).expect("mapped"), 4 * PAGE);
    for page in 0..4 {
        assert_eq!(write(&table, key, page * PAGE), Ok(()));
    }
    assert_eq!(pages_of(&fd), 4);
}

#[test]
fn a_huge_page_that_cannot_be_allocated_costs_its_region_only() {
    const HUGE: u64 = 2 << 20;
    let Some(fd) = memfd(HUGE, libc::MFD_HUGETLB) else {
        eprintln!("SKIPPED: no huge pages");
        return;
    };
    let Ok(mapping) = Region::map(&[piece(&fd, HUGE)], ALL) else {
        eprintln!("SKIPPED: no free huge page");
        return;
    };
    let (mut table, key) = table_of(mapping, HUGE);
    assert_eq!(write(&table, key, 0), Ok(()));
    punch(&fd, 0, HUGE);
    // Another file takes every page that is free, for a moment.
    let taken = take_huge_pages();
    let written = write(&table, key, 4096);
    let broken = table.get(key).is_some_and(|region| region.is_broken());
    drop(taken);
    assert_eq!(written, Ok(()));
    if !broken {
        eprintln!("SKIPPED: huge pages became free");
        return;
    }
    table.reclaim();
    assert_eq!(write(&table, key, 0), Err(Reason::PageRemoved));
}

/// All free huge pages of this system.
fn take_huge_pages() -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    while let Some(fd) = memfd(2 << 20, libc::MFD_HUGETLB) {
        // SAFETY: numbers only.
        if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, 2 << 20) } != 0 {
            break;
        }
        taken.push(fd);
    }
    taken
}

/// A process without privileges gets a userfaultfd for faults in user mode only.
#[test]
fn missing_pages_are_allocated_without_privileges() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (nobody, dir) = (65534, std::env::temp_dir().join(format!("burst-holes-test-{}", std::process::id())));
    std::fs::create_dir(&dir).expect("directory");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let copy = dir.join("holes-test");
    std::fs::copy(std::env::current_exe().expect("own path"), &copy).expect("copied");
    let mut command = std::process::Command::new(&copy);
    command.args(["--exact", "missing_pages_are_allocated_within_the_allowance_only"]);
    let out = command.uid(nobody).gid(nobody).current_dir("/").output();
    std::fs::remove_dir_all(&dir).expect("removed");
    let out = out.expect("started");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
