//! Where the fields of a message lie: numbers in network byte order at a byte offset, some of them a few bits wide.
//! Each codec is a pair of functions over the 232 bytes after the MAD header.

/// A number of `LEN` bits, `SHIFT` bits above the lowest of the byte at an offset.
pub mod bits {
    /// Reads it.
    pub fn get(b: &[u8], at: usize, shift: u8, len: u8) -> u8 {
        b[at] >> shift & mask(len)
    }
    /// Writes it; bits that do not fit are cut off.
    pub fn put(b: &mut [u8], at: usize, shift: u8, len: u8, value: u8) {
        b[at] = b[at] & !(mask(len) << shift) | (value & mask(len)) << shift;
    }
    const fn mask(len: u8) -> u8 {
        (0xffu16 >> (8 - len)) as u8
    }
}

/// One bit.
pub mod flag {
    /// Reads it.
    pub fn get(b: &[u8], at: usize, shift: u8) -> bool {
        b[at] >> shift & 1 != 0
    }
    /// Writes it.
    pub fn put(b: &mut [u8], at: usize, shift: u8, value: bool) {
        super::bits::put(b, at, shift, 1, u8::from(value));
    }
}

/// The upper 20 bits of three bytes: a flow label.
pub mod top20 {
    /// Reads it.
    pub fn get(b: &[u8], at: usize) -> u32 {
        super::be24::get(b, at) >> 4
    }
    /// Writes it, and zeros below it.
    pub fn put(b: &mut [u8], at: usize, value: u32) {
        super::be24::put(b, at, value << 4);
    }
}

/// Three bytes.
pub mod be24 {
    /// Reads them.
    pub fn get(b: &[u8], at: usize) -> u32 {
        u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
    }
    /// Writes the low 24 bits.
    pub fn put(b: &mut [u8], at: usize, value: u32) {
        b[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
    }
}

/// Three bytes, each at a place of its own: the vendor id of a REP.
pub mod scattered24 {
    /// Reads them, high byte first.
    pub fn get(b: &[u8], high: usize, middle: usize, low: usize) -> u32 {
        u32::from_be_bytes([0, b[high], b[middle], b[low]])
    }
    /// Writes the low 24 bits.
    pub fn put(b: &mut [u8], high: usize, middle: usize, low: usize, value: u32) {
        [_, b[high], b[middle], b[low]] = value.to_be_bytes();
    }
}

macro_rules! whole {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $bytes:literal;)+) => {
        $($(#[$doc])*
        pub mod $name {
            /// Reads it.
            pub fn get(b: &[u8], at: usize) -> $type {
                let mut raw = [0; $bytes];
                raw.copy_from_slice(&b[at..at + $bytes]);
                <$type>::from_be_bytes(raw)
            }
            /// Writes it.
            pub fn put(b: &mut [u8], at: usize, value: $type) {
                b[at..at + $bytes].copy_from_slice(&value.to_be_bytes());
            }
        })+
    };
}

whole! {
    /// One byte.
    byte: u8, 1;
    /// Two bytes.
    be16: u16, 2;
    /// Four bytes.
    be32: u32, 4;
    /// Eight bytes.
    be64: u64, 8;
}

/// Bytes as they are: GIDs, additional information.
pub mod raw {
    /// Reads them.
    pub fn get<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&b[at..at + N]);
        out
    }
    /// Writes them.
    pub fn put<const N: usize>(b: &mut [u8], at: usize, value: [u8; N]) {
        b[at..at + N].copy_from_slice(&value);
    }
}
