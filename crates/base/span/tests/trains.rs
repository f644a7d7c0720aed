//! A train that is written together into the memory of a process must leave what its packets leave one by one, and fail if one of
//! them fails, wherever a page is missing.

use burst_span::{ProcessMemory, Span, TRAIN_BYTES, Unreachable};

const PAGE: usize = 4096;
const PAGES: usize = 40;

/// Memory of [`PAGES`] pages, of which one may be missing.
struct Pages {
    at: *mut u8,
    missing: Option<usize>,
}

impl Pages {
    fn new(missing: Option<usize>) -> Pages {
        // SAFETY: fresh memory at an address that the kernel chooses; the page that is taken away is only reached by the kernel.
        unsafe {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), PAGES * PAGE, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().write_bytes(OLD, PAGES * PAGE);
            if let Some(page) = missing {
                // A shared page without rights, and not an unmapped one, whose address another test could get: the kernel
                // refuses both.
                let (rights, flags) = (libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
                let hole = libc::mmap(at.byte_add(page * PAGE), PAGE, rights, flags, -1, 0);
                assert_ne!(hole, libc::MAP_FAILED);
            }
            Pages { at: at.cast(), missing }
        }
    }

    /// The bytes of the pages that are mapped, without the missing page.
    fn bytes(&self) -> Vec<u8> {
        let there = |page: &usize| Some(*page) != self.missing;
        // SAFETY: these pages are mapped and readable.
        let page = |page| unsafe { std::slice::from_raw_parts(self.at.add(page * PAGE), PAGE) };
        (0..PAGES).filter(there).flat_map(page).copied().collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: pages of this value.
        unsafe { libc::munmap(self.at.cast(), PAGES * PAGE) };
    }
}

const OLD: u8 = 0xee;

/// A generator of numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % most as u64) as usize
    }
}

/// Writes the pieces one by one, up to the first that fails.
fn one_by_one(span: &Span, pieces: &[&[u8]]) -> Result<(), Unreachable> {
    let mut at = 0;
    pieces.iter().try_for_each(|piece| {
        let part = span.sub(at, piece.len());
        at += piece.len();
        part.write_from(piece)
    })
}

#[test]
fn a_train_leaves_what_its_packets_leave_wherever_a_page_is_missing() {
    let own = ProcessMemory::own().expect("own memory");
    let (mut written, mut failed) = (0, 0);
    for round in 0..5 {
        for missing in (0..PAGES).map(Some).chain([None]) {
            let mut numbers = Numbers((round * PAGES + missing.unwrap_or(PAGES)) as u64);
            let len = [200, 1024, 4096, 5000][numbers.below(4)];
            let count = 1 + numbers.below((PAGES - 2) * PAGE / len);
            let packets: Vec<u8> = (0..count * (len + 12)).map(|i| ((i * 11) >> 3) as u8 | 1).collect();
            let pieces: Vec<&[u8]> = packets.chunks(len + 12).map(|packet| &packet[12..]).collect();
            let offset = numbers.below(PAGES * PAGE - count * len);
            let outcome = |write: &dyn Fn(&Span) -> Result<(), Unreachable>| {
                let pages = Pages::new(missing);
                let result = write(&own.span(pages.at as u64 + offset as u64, (count * len) as u32));
                (result, pages.bytes())
            };
            let (result, together) = outcome(&|span| span.write_pieces(pieces.iter().copied()));
            let (expected, single) = outcome(&|span| one_by_one(span, &pieces));
            assert_eq!(result, expected, "{round} {missing:?}: {count} of {len} at {offset}");
            if result.is_ok() {
                assert!(together == single, "{round} {missing:?}: {count} of {len} at {offset}");
                written += 1;
            } else {
                // What lies in front of the packet that fails has arrived either way, and nothing lies beside the train.
                let page = missing.expect("a missing page") * PAGE;
                let failing = (page.max(offset) - offset) / len * len;
                let whole = offset..offset + failing;
                assert!(together[whole.clone()] == single[whole], "{round} {missing:?}: {count} of {len} at {offset}");
                let end = (offset + count * len).max(page + PAGE) - PAGE;
                assert!(together[..offset].iter().chain(&together[end..]).all(|byte| *byte == OLD));
                failed += 1;
            }
        }
    }
    assert!(written > 50 && failed > 50, "{written} written, {failed} failed");
}

/// System calls of this thread that have written; `None` where the kernel does not count them.
fn writes() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok())
}

#[test]
fn a_train_costs_one_system_call_whatever_the_length_of_its_packets() {
    let own = ProcessMemory::own().expect("own memory");
    let mut memory = vec![0u8; TRAIN_BYTES];
    let span = own.span(memory.as_mut_ptr() as u64, TRAIN_BYTES as u32);
    let train: Vec<u8> = (0..TRAIN_BYTES).map(|i| (i >> 4) as u8).collect();
    for len in [256, 1024, 2048, 4096, TRAIN_BYTES] {
        memory.fill(0);
        let Some(before) = writes() else { return eprintln!("this kernel does not count system calls") };
        span.write_pieces(train.chunks(len)).expect("there");
        assert_eq!(writes().expect("as before") - before, 1, "packets of {len}");
        assert!(memory == train);
    }
}

#[test]
fn accesses_from_any_byte_of_a_page_move_all_bytes() {
    let own = ProcessMemory::own().expect("own memory");
    let bytes: Vec<u8> = (0..PAGES / 2 * PAGE).map(|i| ((i * 13) >> 4) as u8 | 1).collect();
    for offset in [0, 1, 12, 4095, 4096, 5000] {
        let pages = Pages::new(None);
        let span = own.span(pages.at as u64 + offset, bytes.len() as u32);
        span.write_from(&bytes).expect("there");
        let (start, there) = (offset as usize, pages.bytes());
        assert!(there[start..start + bytes.len()] == bytes && there[..start].iter().all(|byte| *byte == OLD));
        assert!(there[start + bytes.len()..].iter().all(|byte| *byte == OLD));
        let mut read = vec![0; bytes.len()];
        span.read_to(&mut read).expect("there");
        assert!(read == bytes, "{offset}");
    }
}
