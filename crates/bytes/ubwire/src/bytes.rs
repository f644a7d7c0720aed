//! Big-endian numbers in byte slices. Callers index inside slices whose length they have checked.

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}
#[inline]
pub(crate) fn be24(b: &[u8], at: usize) -> u32 {
    // One load instead of three, where there is a byte before the number.
    if at > 0 { be32(b, at - 1) & 0xff_ffff } else { be32(&[0, b[0], b[1], b[2]], 0) }
}
pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
pub(crate) fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}
pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
/// Writes the low 24 bits.
pub(crate) fn put24(out: &mut [u8], at: usize, value: u32) {
    put(out, at, &value.to_be_bytes()[1..]);
}
