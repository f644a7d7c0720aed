//! What the fuzz targets share: reading an input as a program, byte by byte, and a whole daemon on which programs do what it
//! says.

pub mod world;

/// Bytes of the input; zeros after its end.
#[derive(Debug)]
pub struct Tape<'a>(pub &'a [u8]);

impl<'a> Tape<'a> {
    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
    /// The next two bytes, little-endian.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
    /// The next four bytes, little-endian.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
    /// The next eight bytes, little-endian.
    pub fn long(&mut self) -> u64 {
        u64::from(self.word()) | u64::from(self.word()) << 32
    }
    /// Up to `len` of the next bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }
    /// A word that is often near a limit: small, a power of two or one beside it, or anything.
    pub fn limit(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=127 => u32::from(small),
            power @ 128..=159 => 1 << (power - 128),
            power @ 160..=191 => (1u32 << (power - 160)).wrapping_sub(1),
            power @ 192..=223 => (1u32 << (power - 192)).wrapping_neg(),
            _ => self.word(),
        }
    }
}
