//! The mappings of this process, by `PROCMAP_QUERY` (Linux 6.11) or by reading `/proc/self/maps`.
//!
//! No function here allocates. The text form does not give the page size, so private huge pages are not recognised on
//! older kernels and are reached in the process there.

use super::pool::{MAPPING_NAME, PAGE};
use super::proc_files;
use core::mem::size_of;

/// `_IOWR('f', 17, struct procmap_query)` (linux/fs.h).
const PROCMAP_QUERY: libc::c_ulong = 0xC068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 0x10;
/// Longest name of a mapping in bytes; a mapping with a longer name counts as one without a name.
pub(crate) const NAME_MAX: usize = 64;
/// Most mappings that count as one range: those that a question about advice leaves, and objects of `malloc` that were divided.
const RANGE_PARTS_MAX: usize = 64;
/// Largest line of `/proc/self/maps`: addresses and a path of `PATH_MAX`.
const LINE_MAX: usize = 8192;

/// `struct procmap_query` (linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// A mapping (a virtual memory area of the kernel).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vma {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    executable: bool,
    pub(crate) shared: bool,
    /// Page size of the mapping in bytes.
    pub(crate) page: usize,
    /// File offset of `start`.
    pub(crate) offset: u64,
    pub(crate) device: (u32, u32),
    /// Inode number of the file; 0: no file.
    pub(crate) inode: u64,
    name: [u8; NAME_MAX],
    name_len: usize,
}

/// What the first page of a part of a mapping of a file is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedPart {
    /// Its offset in the file.
    pub(crate) offset: usize,
    /// `PROT_*` bits of the mapping.
    pub(crate) prot: i32,
}

impl Vma {
    /// Whether it has addresses outside of this range.
    pub fn reaches_beyond(&self, start: usize, end: usize) -> bool {
        self.start < start || end < self.end
    }

    /// The part of the mapping from `at` on.
    pub(crate) fn part_at(&self, at: usize) -> MappedPart {
        MappedPart { offset: self.offset_of(at) as usize, prot: self.prot() }
    }
    /// Whether the program may read and write the pages.
    pub(crate) fn is_read_and_written(&self) -> bool {
        self.readable && self.writable
    }
    /// `PROT_*` bits.
    pub(crate) fn prot(&self) -> i32 {
        let bit = |on, bit| if on { bit } else { 0 };
        bit(self.readable, libc::PROT_READ)
            | bit(self.writable, libc::PROT_WRITE)
            | bit(self.executable, libc::PROT_EXEC)
    }
    pub(crate) fn name(&self) -> &[u8] {
        &self.name[..self.name_len]
    }
    /// Whether the mapping is of a pool, of this library's or of another one's in the process.
    pub(crate) fn is_pools(&self) -> bool {
        self.inode != 0 && self.name().starts_with(MAPPING_NAME)
    }
    /// First and end address of those pages whose file offsets are in `[lo, hi)`.
    pub(crate) fn offsets_in(&self, lo: usize, hi: usize) -> Option<(usize, usize)> {
        let (from, len) = (self.offset as usize, self.end - self.start);
        let (first, last) = (lo.max(from), hi.min(from + len));
        (first < last).then(|| (self.start + (first - from), self.start + (last - from)))
    }
    /// Whether the mapping has the file of `other`, at the same distance from its addresses; or both are private memory.
    pub(crate) fn goes_on(&self, other: &Vma) -> bool {
        let distance = |vma: &Vma| vma.offset.wrapping_sub(vma.start as u64);
        let is_file = (self.shared, self.device, self.inode) == (other.shared, other.device, other.inode);
        is_file && (self.inode == 0 || distance(self) == distance(other))
    }
    /// File offset of `addr`.
    pub(crate) fn offset_of(&self, addr: usize) -> u64 {
        self.offset + (addr - self.start) as u64
    }
}

/// `/proc/self/maps`, open.
#[derive(Debug)]
pub(crate) struct Maps {
    fd: i32,
    text: bool,
    /// Whether the descriptor stays open.
    is_kept: bool,
}

impl Drop for Maps {
    fn drop(&mut self) {
        if !self.is_kept {
            // SAFETY: our own descriptor.
            unsafe { libc::close(self.fd) };
        }
    }
}

impl Maps {
    pub(crate) fn open() -> Option<Maps> {
        Maps::of(proc_files::open(c"/proc/self/maps"), false)
    }
    fn of(fd: i32, is_kept: bool) -> Option<Maps> {
        let mut maps = (fd >= 0).then_some(Maps { fd, text: false, is_kept })?;
        maps.text = maps.query(0).is_none();
        Some(maps)
    }
    /// The mappings of this process, by the file that is kept open ([`proc_files`]), or else by one that is opened.
    pub(crate) fn kept() -> Option<Maps> {
        // A process has mappings; a file that has none is not that file.
        let kept = Maps::of(proc_files::maps(), true).filter(|maps| maps.any(|_| true));
        kept.or_else(Maps::open)
    }
    /// In a child: forgets the file that its parent has kept open. `closes`: the child has its own copy of the descriptor, and
    /// may have no other to open its file with.
    pub(crate) fn forget_parents(closes: bool) {
        let parents = Maps::of(proc_files::forget_maps(), true).filter(|maps| maps.any(|_| true));
        if let Some(parents) = parents.filter(|_| closes) {
            // SAFETY: a copy of the parent's descriptor, used no more.
            unsafe { libc::close(parents.fd) };
        }
    }
    #[cfg(test)]
    pub(crate) fn open_text() -> Option<Maps> {
        Maps::open().map(|mut maps| {
            maps.text = true;
            maps
        })
    }
    /// Whether the kernel answers for one mapping at a time, in no time that grows with their number.
    pub(crate) fn is_asked(&self) -> bool {
        !self.text
    }
    /// The mapping that has `[first, last)` now, if that still is of the file, or private memory, that `vma` was.
    pub(crate) fn still(&self, vma: &Vma, first: usize, last: usize) -> Option<Vma> {
        self.at_or_after(first).filter(|now| now.start <= first && last <= now.end && now.goes_on(vma))
    }
    /// The rights of `[first, last)`, if mappings of equal rights that all are as `is_part` asks cover it.
    pub(crate) fn rights_of(&self, first: usize, last: usize, is_part: impl Fn(&Vma) -> bool) -> Option<i32> {
        let (mut at, mut rights) = (first, None);
        for _ in 0..RANGE_PARTS_MAX {
            let vma = self.at_or_after(at).filter(|vma| vma.start <= at && is_part(vma))?;
            if *rights.get_or_insert(vma.prot()) != vma.prot() {
                return None;
            }
            at = vma.end;
            if at >= last {
                return rights;
            }
        }
        None
    }
    /// The mapping that contains `addr`, or the next one.
    pub(crate) fn at_or_after(&self, addr: usize) -> Option<Vma> {
        if self.text {
            let mut found = None;
            self.each_line(|vma| {
                found = (vma.end > addr).then_some(*vma);
                found.is_some()
            });
            return found;
        }
        self.query(addr)
    }
    /// Whether any mapping satisfies `f`.
    pub(crate) fn any(&self, mut f: impl FnMut(&Vma) -> bool) -> bool {
        if self.text {
            return self.each_line(f);
        }
        let mut at = 0;
        while let Some(vma) = self.query(at) {
            if f(&vma) {
                return true;
            }
            at = vma.end;
        }
        false
    }
    fn query(&self, addr: usize) -> Option<Vma> {
        let mut name = [0u8; NAME_MAX];
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: COVERING_OR_NEXT,
            query_addr: addr as u64,
            vma_name_size: NAME_MAX as u32,
            vma_name_addr: name.as_mut_ptr() as u64,
            ..ProcmapQuery::default()
        };
        // SAFETY: `query` and `name` are writable with the sizes given in it.
        let mut rc = unsafe { libc::ioctl(self.fd, PROCMAP_QUERY, &raw mut query) };
        if rc != 0 && errno() == libc::ENAMETOOLONG {
            (query.vma_name_size, query.vma_name_addr) = (0, 0);
            // SAFETY: as above, without the name.
            rc = unsafe { libc::ioctl(self.fd, PROCMAP_QUERY, &raw mut query) };
        }
        if rc != 0 {
            return None;
        }
        Some(Vma {
            start: query.vma_start as usize,
            end: query.vma_end as usize,
            readable: query.vma_flags & READABLE != 0,
            writable: query.vma_flags & WRITABLE != 0,
            executable: query.vma_flags & EXECUTABLE != 0,
            shared: query.vma_flags & SHARED != 0,
            page: (query.vma_page_size as usize).max(PAGE),
            offset: query.vma_offset,
            device: (query.dev_major, query.dev_minor),
            inode: query.inode,
            name,
            name_len: (query.vma_name_size as usize).saturating_sub(1).min(NAME_MAX),
        })
    }
    /// Calls `f` for each line until it returns true. Returns whether it did.
    fn each_line(&self, mut f: impl FnMut(&Vma) -> bool) -> bool {
        let mut buffer = [0u8; LINE_MAX];
        let (mut have, mut offset) = (0, 0);
        loop {
            let room = &mut buffer[have..];
            // SAFETY: `room` is writable for its length.
            let n = unsafe { libc::pread(self.fd, room.as_mut_ptr().cast(), room.len(), offset) };
            if n <= 0 {
                return false;
            }
            have += n as usize;
            offset += n as libc::off_t;
            let mut from = 0;
            while let Some(len) = buffer[from..have].iter().position(|b| *b == b'\n') {
                if parse_line(&buffer[from..from + len]).is_some_and(|vma| f(&vma)) {
                    return true;
                }
                from += len + 1;
            }
            buffer.copy_within(from..have, 0);
            have -= from;
        }
    }
}

fn number(text: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, radix).ok()
}

/// Two hexadecimal numbers.
fn pair(word: &[u8], separator: u8) -> Option<(u64, u64)> {
    let mut halves = word.split(|b| *b == separator);
    Some((number(halves.next()?, 16)?, number(halves.next()?, 16)?))
}

/// `start-end perms offset major:minor inode   name`
pub(super) fn parse_line(line: &[u8]) -> Option<Vma> {
    let mut words = line.splitn(5, |b| *b == b' ');
    let (start, end) = pair(words.next()?, b'-')?;
    let perms = words.next()?;
    let offset = number(words.next()?, 16)?;
    let (major, minor) = pair(words.next()?, b':')?;
    let rest = words.next()?;
    let inode_len = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
    let long_name = rest[inode_len..].trim_ascii();
    let long_name = if long_name.len() <= NAME_MAX { long_name } else { b"" };
    let mut name = [0; NAME_MAX];
    name[..long_name.len()].copy_from_slice(long_name);
    let has = |flag| perms.contains(&flag);
    Some(Vma {
        start: start as usize,
        end: end as usize,
        readable: has(b'r'),
        writable: has(b'w'),
        executable: has(b'x'),
        shared: has(b's'),
        page: PAGE,
        offset,
        device: (major as u32, minor as u32),
        inode: number(&rest[..inode_len], 10)?,
        name,
        name_len: long_name.len(),
    })
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::super::kernel;
    use super::super::testing::in_child;
    use super::*;
    use rustix::mm::MprotectFlags;
    use std::os::fd::AsRawFd;

    #[test]
    fn query_and_text_give_the_same_mapping() {
        let (Some(query), Some(text)) = (Maps::open(), Maps::open_text()) else { panic!("/proc/self/maps") };
        let here = &raw const query as usize;
        for addr in [here, errno as fn() -> i32 as usize, 0x1000] {
            let (a, b) = (query.at_or_after(addr).expect("a mapping"), text.at_or_after(addr).expect("a mapping"));
            assert_eq!((a.start, a.end, a.prot(), a.inode, a.device), (b.start, b.end, b.prot(), b.inode, b.device));
            assert_eq!((a.name(), a.offset, a.shared), (b.name(), b.offset, b.shared));
        }
        assert!(text.any(|v| v.name() == b"[stack]") && query.any(|v| v.name() == b"[stack]"));
    }

    /// Addresses, rights, whether it is shared, offset, device, inode and name.
    type LineFields = (usize, usize, i32, bool, u64, (u32, u32), u64, String);

    fn parsed(line: &str) -> Option<LineFields> {
        let vma = parse_line(line.as_bytes())?;
        let name = String::from_utf8(vma.name().to_vec()).expect("text");
        Some((vma.start, vma.end, vma.prot(), vma.shared, vma.offset, vma.device, vma.inode, name))
    }

    #[test]
    fn a_line_of_maps_gives_addresses_rights_offset_file_and_name() {
        use libc::{PROT_EXEC, PROT_READ, PROT_WRITE};
        let anonymous = parsed("7f12a000-7f12c000 rw-p 00000000 00:00 0 ");
        assert_eq!(
            anonymous,
            Some((0x7f12_a000, 0x7f12_c000, PROT_READ | PROT_WRITE, false, 0, (0, 0), 0, String::new()))
        );
        let shared = parsed("1000-3000 r-xs 00002000 08:1f 77                 /a file");
        assert_eq!(
            shared,
            Some((0x1000, 0x3000, PROT_READ | PROT_EXEC, true, 0x2000, (8, 0x1f), 77, "/a file".into()))
        );
        assert_eq!(parsed("1000-3000 ---p 0 00:00 0").map(|fields| fields.2), Some(0));
        // The longest name, and one that is longer.
        let named =
            |len: usize| parsed(&format!("1000-3000 rw-p 0 00:00 5   /{}", "n".repeat(len - 1))).map(|f| f.7.len());
        assert_eq!((named(NAME_MAX), named(NAME_MAX + 1)), (Some(NAME_MAX), Some(0)));
        for malformed in
            ["", "1000", "1000-xyz rw-p 0 00:00 0", "1000-3000", "1000-3000 rw-p 0 00:00", "1000-3000 rw-p 0 0 0"]
        {
            assert_eq!(parsed(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn both_ways_find_every_mapping_in_order_and_none_behind_the_last() {
        // So many that the text does not fit the buffer for one line: one page of three has no rights, nor has the last.
        const PAGES: usize = 601;
        let block = kernel::map_private(PAGES * PAGE, 0).expect("mapped");
        for at in (0..PAGES).step_by(3) {
            // SAFETY: a page of the block made above, not used.
            unsafe { rustix::mm::mprotect(block.add(at * PAGE).cast(), PAGE, MprotectFlags::empty()) }
                .expect("protected");
        }
        let inside = |vma: &Vma| vma.start > block as usize && vma.end < block as usize + PAGES * PAGE;
        for maps in [Maps::open().expect("/proc/self/maps"), Maps::open_text().expect("/proc/self/maps")] {
            let mut found = 0;
            assert!(!maps.any(|vma| {
                found += usize::from(inside(vma) && vma.readable && vma.end - vma.start == 2 * PAGE);
                false
            }));
            assert_eq!(found, PAGES / 3, "by text: {}", maps.text);
            assert!(maps.at_or_after(usize::MAX - PAGE).is_none_or(|vma| vma.name() == b"[vsyscall]"));
            let second = maps.at_or_after(block as usize + 5 * PAGE).expect("the second pair");
            assert_eq!((second.start, second.end), (block as usize + 4 * PAGE, block as usize + 6 * PAGE));
            assert_eq!(maps.at_or_after(second.start).map(|vma| vma.end), Some(second.end));
            assert_eq!(maps.at_or_after(second.end).map(|vma| (vma.start, vma.prot())), Some((second.end, 0)));
        }
        // SAFETY: the block made above, not used.
        unsafe { kernel::unmap(block, PAGES * PAGE) };
    }

    #[test]
    fn the_mappings_are_asked_for_where_the_kernel_answers() {
        in_child(|| {
            // A program that has closed its standard input: the file gets its number.
            // SAFETY: a descriptor that this child does not use.
            unsafe { libc::close(0) };
            let maps = Maps::open().expect("/proc/self/maps");
            // SAFETY: numbers only.
            assert_eq!((maps.fd, unsafe { libc::fcntl(0, libc::F_GETFD) }), (0, libc::FD_CLOEXEC));
            // `struct procmap_query`: its size, and the flag PROCMAP_QUERY_COVERING_OR_NEXT_VMA.
            let mut words = [0u64; 13];
            (words[0], words[1]) = (104, 0x10);
            // SAFETY: `words` is as long as the first of them says.
            let answers = unsafe { libc::ioctl(maps.fd, PROCMAP_QUERY, words.as_mut_ptr()) } == 0;
            assert_eq!(maps.text, !answers);
        });
    }

    #[test]
    fn a_mapping_with_a_long_name_is_found_without_it() {
        let dir = std::env::temp_dir().join(format!("burst-vma-{}-{}", std::process::id(), "d".repeat(NAME_MAX)));
        std::fs::write(&dir, [0; PAGE]).expect("a file");
        let file = std::fs::File::open(&dir).expect("the file");
        std::fs::remove_file(&dir).expect("removed");
        let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, rights, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        for maps in [Maps::open().expect("/proc/self/maps"), Maps::open_text().expect("/proc/self/maps")] {
            let vma = maps.at_or_after(at as usize).expect("the mapping");
            assert_eq!(
                (vma.start, vma.end, vma.prot(), vma.name()),
                (at as usize, at as usize + PAGE, rights, &b""[..])
            );
        }
        // SAFETY: the mapping made above, used no more.
        unsafe { kernel::unmap(at.cast(), PAGE) };
    }

    #[test]
    fn the_offset_of_an_address_is_counted_from_the_offset_of_its_mapping() {
        let vma = parse_line(b"10000-30000 rw-s 5000 00:00 7 /file").expect("a mapping");
        assert_eq!((vma.offset_of(0x10000), vma.offset_of(0x12345)), (0x5000, 0x7345));
    }
}
