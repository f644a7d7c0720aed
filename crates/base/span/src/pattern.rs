//! Memory that is nowhere, with bytes that are known: each depends on its address alone.
//!
//! A reader gets these bytes. A writer stores nothing: what it writes is compared with the bytes that belong there, and noted for
//! this thread, until [`take_pattern_writes`] takes the notes. So a simulation in which each message has addresses of its own can
//! check every byte that is moved, and where to, without memory for any message. One that uses such spans must take the notes
//! now and then: they are not bounded.

use std::cell::RefCell;

/// A write to pattern memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternWrite {
    /// The first address.
    pub addr: u64,
    /// Number of bytes.
    pub len: u32,
    /// Place of the first byte, from 0, that is not the one which belongs there.
    pub wrong: Option<u32>,
}

thread_local! {
    static WRITES: RefCell<Vec<PatternWrite>> = const { RefCell::new(Vec::new()) };
}

/// Moves what this thread has written to pattern memory since the last call to the end of `to`, in order.
pub fn take_pattern_writes(to: &mut Vec<PatternWrite>) {
    WRITES.with_borrow_mut(|writes| to.append(writes));
}

/// The eight bytes of word `number`: the upper half of a product depends on all bits of the number.
fn word(number: u64) -> [u8; 8] {
    let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32).to_le_bytes()
}

/// Calls `f` for each piece of `bytes` that lies in one word, with that word's bytes.
fn by_words<'a>(addr: u64, bytes: &'a mut [u8], f: impl Fn(&'a mut [u8], &[u8])) {
    let skip = (addr % 8) as usize;
    let (first, rest) = bytes.split_at_mut(((8 - skip) % 8).min(bytes.len()));
    let number = addr / 8;
    if !first.is_empty() {
        let len = first.len();
        f(first, &word(number)[skip..skip + len]);
    }
    let number = if skip > 0 { number.wrapping_add(1) } else { number };
    for (at, piece) in rest.chunks_mut(8).enumerate() {
        let len = piece.len();
        f(piece, &word(number.wrapping_add(at as u64))[..len]);
    }
}

/// Fills `bytes` with those that belong to `addr` and the addresses behind it.
pub fn pattern_fill(addr: u64, bytes: &mut [u8]) {
    by_words(addr, bytes, |piece, word| piece.copy_from_slice(word));
}

/// Compares `bytes` with those that belong to `addr` and the addresses behind it; the place of the first that differs.
fn compare(addr: u64, bytes: &[u8]) -> Option<u32> {
    const STEP: usize = 512;
    let mut expected = [0; STEP];
    let mut at = 0;
    for piece in bytes.chunks(STEP) {
        let expected = &mut expected[..piece.len()];
        pattern_fill(addr.wrapping_add(at as u64), expected);
        if piece != expected {
            let differs = piece.iter().zip(expected.iter()).position(|(found, right)| found != right)?;
            return Some((at + differs) as u32);
        }
        at += piece.len();
    }
    None
}

/// Notes a write of `pieces`, one behind the other from `addr` on.
pub(crate) fn note<'a>(addr: u64, pieces: impl Iterator<Item = &'a [u8]>) {
    let (mut len, mut wrong) = (0, None);
    for piece in pieces {
        wrong = wrong.or_else(|| compare(addr.wrapping_add(u64::from(len)), piece).map(|at| at + len));
        len += piece.len() as u32;
    }
    WRITES.with_borrow_mut(|writes| writes.push(PatternWrite { addr, len, wrong }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, Span};

    fn taken() -> Vec<PatternWrite> {
        let mut all = Vec::new();
        take_pattern_writes(&mut all);
        all
    }

    #[test]
    fn a_byte_depends_on_its_address_alone() {
        let mut whole = vec![0; 2_000];
        pattern_fill(0x1_0000_0003, &mut whole);
        for (at, len) in [(0, 1), (1, 4), (4, 5), (5, 8), (6, 700), (13, 0), (1_999, 1)] {
            let mut part = vec![0; len];
            Span::pattern(0x1_0000_0003, 2_000).sub(at, len).read_to(&mut part).expect("it is always there");
            assert_eq!(part, whole[at..at + len], "{len} bytes at {at}");
        }
        let mut other = vec![0; 2_000];
        pattern_fill(0x1_0000_0103, &mut other);
        assert!(whole.iter().zip(&other).filter(|(a, b)| a == b).count() < 40, "other addresses, other bytes");
    }

    #[test]
    fn writes_are_compared_and_noted() {
        let mut bytes = vec![0; 1_500];
        pattern_fill(77, &mut bytes);
        let span = Span::pattern(77, 1_500);
        assert_eq!(span.backing(), Backing::Pattern);
        span.write_from(&bytes).expect("it is always there");
        span.sub(10, 90).write_pieces([&bytes[10..50], &bytes[50..100]].into_iter()).expect("it is always there");
        bytes[1_200] ^= 1;
        span.write_from(&bytes).expect("it is always there");
        span.sub(1_100, 400).write_pieces(bytes[1_100..].chunks(80)).expect("it is always there");
        span.sub(1, 3).write_from(&bytes[2..5]).expect("it is always there");
        let write = |addr, len, wrong| PatternWrite { addr, len, wrong };
        assert_eq!(
            taken(),
            [
                write(77, 1_500, None),
                write(87, 90, None),
                write(77, 1_500, Some(1_200)),
                write(1_177, 400, Some(100)),
                write(78, 3, Some(0)),
            ]
        );
        assert_eq!(taken(), []);
    }
}
