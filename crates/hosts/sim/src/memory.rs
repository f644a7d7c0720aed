//! Which parts of a program's memory messages use.

use std::collections::BTreeMap;

/// Parts are multiples of a cache line.
const LINE: u64 = 64;

/// The parts in use of a memory.
#[derive(Debug, Default)]
pub struct Parts {
    /// By offset: length.
    used: BTreeMap<u64, u64>,
}

impl Parts {
    /// Takes `len` bytes at the lowest free offset below `end`. What an earlier message has left is used again at once, so that
    /// packets which come too late are seen.
    pub fn take(&mut self, len: u64, end: u64) -> Option<u64> {
        let len = len.max(1).next_multiple_of(LINE);
        let mut at = 0;
        for (offset, used) in &self.used {
            if offset - at >= len {
                break;
            }
            at = offset + used;
        }
        (at + len <= end).then(|| {
            self.used.insert(at, len);
            at
        })
    }

    /// Gives a part back.
    pub fn free(&mut self, at: u64) {
        self.used.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_is_taken() {
        let mut parts = Parts::default();
        assert_eq!([10, 65, 64].map(|len| parts.take(len, 512)), [Some(0), Some(64), Some(192)]);
        assert_eq!(parts.take(300, 512), None);
        parts.free(64);
        assert_eq!([64, 65, 1].map(|len| parts.take(len, 512)), [Some(64), Some(256), Some(128)]);
    }
}
