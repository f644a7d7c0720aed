//! Regions in the daemon: which descriptors are mapped and which are refused, how pieces are joined, and which addresses lie
//! inside a region.

use burst_base::verbs::access;
use burst_mem::region::{MapPiece, MapRefused, PIECES_MAX};
use burst_mem::{Backing, Mapping, ProcessMemory, Region};
use burst_span::Unreachable;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const PAGE: u64 = 4096;
const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;

fn memfd(len: u64, seal: bool) -> OwnedFd {
    // SAFETY: a constant name, and numbers; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0);
        if seal {
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        }
        OwnedFd::from_raw_fd(fd)
    }
}

fn piece(fd: &OwnedFd, offset: u64, len: u64) -> MapPiece<'_> {
    MapPiece { fd: fd.as_fd(), offset, len }
}

/// Why the pieces are refused; `None` if they are mapped.
fn refusal(pieces: &[MapPiece<'_>]) -> Option<MapRefused> {
    Region::map(pieces, ALL).err()
}

fn byte_of(fd: &OwnedFd, offset: u64) -> u8 {
    let mut byte = [0u8];
    // SAFETY: one writable byte.
    assert_eq!(unsafe { libc::pread(fd.as_raw_fd(), byte.as_mut_ptr().cast(), 1, offset as i64) }, 1);
    byte[0]
}

fn put(region: &Region, addr: u64, bytes: &[u8]) {
    region.span(addr, bytes.len() as u32).expect("inside").write_from(bytes).expect("there");
}

#[test]
fn files_that_could_shrink_are_refused() {
    let (unsealed, sealed) = (memfd(PAGE, false), memfd(4 * PAGE, true));
    assert_eq!(refusal(&[piece(&unsealed, 0, PAGE)]), Some(MapRefused::Unsealed));
    assert_eq!(refusal(&[piece(&sealed, 0, 5 * PAGE)]), Some(MapRefused::OutOfFile));
    assert_eq!(refusal(&[piece(&sealed, 0, 4 * PAGE + 1)]), Some(MapRefused::OutOfFile));
    assert_eq!(refusal(&[piece(&sealed, u64::MAX, 2)]), Some(MapRefused::OutOfFile));
    assert_eq!(refusal(&[piece(&sealed, 0, 0)]), Some(MapRefused::OutOfFile));
    assert_eq!(refusal(&[piece(&sealed, 100, PAGE)]), None);
    assert_eq!(refusal(&[piece(&sealed, 0, 4 * PAGE)]), None, "the whole file");
    let program = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("exe"));
    assert_eq!(refusal(&[piece(&program, 0, 1)]), Some(MapRefused::Unsealed));
}

#[test]
fn pieces_join_only_at_page_boundaries() {
    let sealed = memfd(16 * PAGE, true);
    assert_eq!(refusal(&[]), Some(MapRefused::NotContiguous));
    let two = |offset, len, second| [piece(&sealed, offset, len), piece(&sealed, second, 20)];
    assert_eq!(refusal(&two(10, 100, 2 * PAGE)), Some(MapRefused::NotContiguous), "the first ends inside a page");
    assert_eq!(
        refusal(&two(0, PAGE, 2 * PAGE + 8)),
        Some(MapRefused::NotContiguous),
        "the second begins inside a page"
    );
    assert_eq!(refusal(&two(10, PAGE - 10, 2 * PAGE)), None);
    let middle = [piece(&sealed, 0, PAGE), piece(&sealed, PAGE, 100), piece(&sealed, 4 * PAGE, PAGE)];
    assert_eq!(refusal(&middle), Some(MapRefused::NotContiguous), "a piece in the middle ends inside a page");
    // Pages of the file in another order, each at the offset of its piece.
    let most: Vec<_> = (0..PIECES_MAX as u64).map(|i| piece(&sealed, (15 - 2 * i) * PAGE, PAGE)).collect();
    let mapping = Region::map(&most, ALL).expect("as many as there may be");
    let region = Region::new(1, 1, 0x10_0000, PIECES_MAX as u64 * PAGE, ALL, mapping);
    for i in 0..PIECES_MAX as u64 {
        put(&region, 0x10_0000 + i * PAGE + 7, &[i as u8 + 1]);
        assert_eq!(byte_of(&sealed, (15 - 2 * i) * PAGE + 7), i as u8 + 1);
    }
    let more: Vec<_> = (0..=PIECES_MAX as u64).map(|i| piece(&sealed, i * PAGE, PAGE)).collect();
    assert_eq!(refusal(&more), Some(MapRefused::NotContiguous), "one more");
}

#[test]
fn joined_pieces_are_one_range_of_addresses() {
    let sealed = memfd(4 * PAGE, true);
    let pieces = [piece(&sealed, 10, PAGE - 10), piece(&sealed, 2 * PAGE, 20)];
    let mapping = Region::map(&pieces, ALL).expect("joined");
    assert!(matches!(mapping, Mapping::Local(_)));
    let region = Region::new(1, 1, 0, PAGE + 10, ALL, mapping);
    put(&region, PAGE - 10, &[7]);
    assert_eq!(byte_of(&sealed, 2 * PAGE), 7);
    put(&region, 0, &[8]);
    assert_eq!(byte_of(&sealed, 10), 8, "the first byte is where the first piece begins");
    assert!(region.span(PAGE + 10, 1).is_none() && region.span(PAGE + 9, 1).is_some());
    assert_eq!(
        (region.contains(PAGE, 10), region.contains(PAGE, 11), region.contains(PAGE + 10, 0)),
        (true, false, true)
    );
    assert!(!region.contains(PAGE + 11, 0) && region.span(PAGE + 11, 0).is_none());
}

#[test]
fn a_region_without_a_right_to_write_is_mapped_for_reading_only() {
    let sealed = memfd(PAGE, true);
    for (rights, writable) in
        [(0, false), (access::REMOTE_READ, false), (access::LOCAL_WRITE, true), (access::REMOTE_ATOMIC, true)]
    {
        let region =
            Region::new(1, 1, 0, PAGE, rights, Region::map(&[piece(&sealed, 0, PAGE)], rights).expect("mapped"));
        let at = region.span(0, 1).expect("inside").as_ptr() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-"))).expect("the mapping");
        assert_eq!(line.contains(" rw-s "), writable, "{line}");
    }
}

#[test]
fn dropping_a_mapping_unmaps_it() {
    let sealed = memfd(PAGE, true);
    let mapping = Region::map(&[piece(&sealed, 0, PAGE)], ALL).expect("mapped");
    let region = Region::new(1, 1, 0, PAGE, ALL, mapping);
    let at = region.span(0, 1).expect("inside").as_ptr() as u64;
    let inode = {
        // SAFETY: all zeroes is a valid `stat`, which the call writes.
        unsafe {
            let mut st: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(sealed.as_raw_fd(), &raw mut st), 0);
            st.st_ino
        }
    };
    // Another thread may map other memory there afterwards.
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().any(|line| line.starts_with(&format!("{at:x}-")) && line.contains(&format!(" {inode} ")))
    };
    assert!(is_mapped());
    drop(region);
    assert!(!is_mapped());
}

#[test]
fn a_region_is_not_longer_than_its_memory() {
    let sealed = memfd(PAGE, true);
    let mapping = || Region::map(&[piece(&sealed, 0, PAGE)], ALL).expect("mapped");
    assert!(std::panic::catch_unwind(|| Region::new(1, 1, 0, 16 * PAGE, ALL, mapping())).is_err());
    assert!(std::panic::catch_unwind(|| Region::new(1, 1, 0, 1, ALL, Mapping::Nothing)).is_err());
    let empty = Region::new(1, 1, 0x1000, 0, ALL, Mapping::Nothing);
    assert!(empty.span(0x1000, 0).is_some() && empty.span(0x1000, 1).is_none());
    let wrong = Region { len: 8, ..empty };
    assert!(wrong.span(0x1000, 0).is_some() && wrong.span(0x1000, 1).is_none(), "its length does not matter");
}

#[test]
fn a_held_region_has_its_range_and_is_late() {
    let own = Arc::new(ProcessMemory::own().expect("own memory"));
    let region = Region::new(7, 3, 0x1000, 100, ALL, Region::in_process(own, 0x5000));
    let held = region.held();
    assert_eq!((held.key, held.pd, held.iova, held.len, held.access), (7, 3, 0x1000, 100, ALL));
    let span = held.span(0x1010, 20).expect("inside");
    assert_eq!(span.read_to(&mut [0; 20]), Err(Unreachable::Late));
    assert!(held.span(0x1051, 20).is_none() && held.span(0xfff, 1).is_none());
}

#[test]
fn a_region_in_a_process_adds_the_offset_to_the_address_there() {
    let own = Arc::new(ProcessMemory::own().expect("own memory"));
    let region = Region::new(1, 1, 0x1000, 100, ALL, Region::in_process(own, 0x5000));
    let span = region.span(0x1010, 20).expect("inside");
    assert_eq!((span.as_ptr() as u64, span.len(), span.is_remote()), (0x5010, 20, true));
    assert!(region.span(0x1051, 20).is_none() && region.span(0xfff, 1).is_none() && region.span(u64::MAX, 2).is_none());
    assert_eq!(Region::null(1, 1).span(u64::MAX - 5, 5).map(|s| s.backing()), Some(Backing::Null));
    let pattern = Region::new(1, 1, 0x1000, 1 << 60, ALL, Mapping::Pattern).span(0x1007, 5).expect("inside");
    assert_eq!(
        (pattern.backing(), pattern.as_ptr() as u64),
        (Backing::Pattern, 7),
        "the offset is the address of the pattern"
    );
}
