//! Gives the pages of a buffer back to the system while the buffer stays allocated.

use rustix::mm::{Advice, madvise};

const PAGE: usize = 4096;

/// Gives the whole pages of `buffer`'s memory back. Its length and capacity stay; the bytes may be lost: each keeps its value or
/// becomes zero.
pub fn give_back(buffer: &mut Vec<u8>) {
    let start = buffer.as_mut_ptr() as usize;
    let (first, end) = (start.next_multiple_of(PAGE), (start + buffer.capacity()) & !(PAGE - 1));
    if first >= end {
        return;
    }
    // SAFETY: the range lies in the buffer's allocation, which is private anonymous memory and borrowed for this call. Any value
    // is valid for a byte. A failure leaves the bytes as they are.
    let _ = unsafe { madvise(first as *mut _, end - first, Advice::LinuxDontNeed) };
}

/// Pages of `buffer`'s memory that are resident.
#[cfg(test)]
pub fn resident_pages(buffer: &Vec<u8>) -> usize {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    let pages = std::fs::File::open("/proc/self/pagemap").expect("this process");
    let start = buffer.as_ptr() as usize;
    let range = start / PAGE..(start + buffer.capacity()).div_ceil(PAGE);
    let mut entries = vec![0; range.len() * 8];
    pages.read_exact_at(&mut entries, range.start as u64 * 8).expect("an entry for each page");
    let entries = entries.chunks_exact(8).filter_map(|entry| entry.first_chunk::<8>());
    entries.filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_its_length_and_no_whole_page() {
        let mut buffer = vec![1u8; 100 * PAGE + 10];
        assert!(resident_pages(&buffer) >= 100);
        give_back(&mut buffer);
        // The first and the last page may hold other data, too.
        assert!(resident_pages(&buffer) <= 2 && buffer.len() == 100 * PAGE + 10);
        assert!(buffer.iter().all(|byte| *byte <= 1) && buffer[PAGE..99 * PAGE].iter().all(|byte| *byte == 0));
        let mut short = vec![1u8; 10];
        give_back(&mut short);
        assert_eq!(short, [1; 10], "no whole page");
    }
}
