//! Arithmetic of CRC-32 as a linear map: the change of a CRC that a change of one field makes.
//!
//! Polynomials over GF(2) modulo the Ethernet polynomial are kept in reflected order: bit 31 is x^0, bit 0 is x^31.
//! A CRC without its constant (initial and final inversion cancel in a difference) of a message M is M(x) * x^32. Two
//! messages that differ by D and agree in the n bytes that follow have CRCs that differ by D(x) * x^(8n + 32). Powers
//! of x^8 and of its inverse come from tables made by the compiler, two look-ups for any length to 65535.

/// The Ethernet polynomial, reflected, without x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;

/// `a * x`.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLYNOMIAL & (a & 1).wrapping_neg())
}
/// `a / x`.
const fn over_x(a: u32) -> u32 {
    let carry = a >> 31;
    ((a ^ (POLYNOMIAL & carry.wrapping_neg())) << 1) | carry
}
/// `a * b`.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= b & (((a << bit) as i32) >> 31) as u32;
        b = times_x(b);
        bit += 1;
    }
    product
}

/// `step^i` for i in 0..256.
const fn powers(step: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = times(table[i - 1], step);
        i += 1;
    }
    table
}
/// `x^bits`, or its inverse.
const fn x_to(bits: u32, inverse: bool) -> u32 {
    let mut a = ONE;
    let mut i = 0;
    while i < bits {
        a = if inverse { over_x(a) } else { times_x(a) };
        i += 1;
    }
    a
}

static FORWARD: [[u32; 256]; 2] = [powers(x_to(8, false)), powers(x_to(2048, false))];
static BACKWARD: [[u32; 256]; 2] = [powers(x_to(8, true)), powers(x_to(2048, true))];
const X_32: u32 = x_to(32, false);
const X_MINUS_32: u32 = x_to(32, true);

/// The change of a CRC by a 16-bit big-endian field that `n` bytes follow. Make one per length, not per packet.
#[derive(Clone, Debug)]
pub(crate) struct FieldDelta {
    /// By nibble of the field, least significant first.
    nibbles: [[u32; 16]; 4],
    /// x^-(8n + 32).
    inverse: u32,
}

impl FieldDelta {
    pub(crate) fn new(n: u16) -> FieldDelta {
        FieldDelta {
            nibbles: field_nibbles(times(power_of(&FORWARD, n), X_32)),
            inverse: times(power_of(&BACKWARD, n), X_MINUS_32),
        }
    }
    /// [`FieldDelta::new`] at compile time.
    pub(crate) const fn constant(n: u16) -> FieldDelta {
        let bits = 8 * n as u32 + 32;
        FieldDelta { nibbles: field_nibbles(x_to(bits, false)), inverse: x_to(bits, true) }
    }
    /// The value to exclusive-or to the CRC if the field changes from 0 to `value`.
    pub(crate) fn of(&self, value: u16) -> u32 {
        let v = usize::from(value);
        self.nibbles[0][v & 15] ^ self.nibbles[1][v >> 4 & 15] ^ self.nibbles[2][v >> 8 & 15] ^ self.nibbles[3][v >> 12]
    }
    /// The value whose `of` is `difference`, if there is one.
    pub(crate) fn explain(&self, difference: u32) -> Option<u16> {
        field_of(times(difference, self.inverse))
    }
}

/// [`FieldDelta::explain`] without preparation, for a length that is used once.
pub(crate) fn explain_once(difference: u32, n: u16) -> Option<u16> {
    field_of(times(times(difference, X_MINUS_32), power_of(&BACKWARD, n)))
}

/// The contributions of the nibbles of a field whose last bit on the wire stands for `power`.
const fn field_nibbles(mut power: u32) -> [[u32; 16]; 4] {
    // The first byte on the wire, low bit first, has the highest powers: bit j of the bytes as a little-endian number
    // stands for x^(15 - j).
    let mut basis = [0; 16];
    let mut bit = 16;
    while bit > 0 {
        bit -= 1;
        basis[bit] = power;
        power = times_x(power);
    }
    let mut nibbles = [[0; 16]; 4];
    let mut nibble = 0;
    while nibble < 4 {
        let mut value = 1usize;
        while value < 16 {
            let low = value.trailing_zeros() as usize;
            // Bit 4 * nibble + low of the field, in the little-endian view of its bytes.
            nibbles[nibble][value] = nibbles[nibble][value & (value - 1)] ^ basis[(4 * nibble + low) ^ 8];
            value += 1;
        }
        nibble += 1;
    }
    nibbles
}

/// The value to exclusive-or to the CRC at a point of a message, so that byte 4 after that point counts as ones. Indexed by the
/// value of that byte.
pub(crate) static MASK_BYTE_4: [u32; 256] = mask_byte(4);
/// As [`MASK_BYTE_4`], for bytes 7 and 8.
pub(crate) static MASK_BYTES_7_8: [[u32; 256]; 2] = [mask_byte(7), mask_byte(8)];

const fn mask_byte(offset: u32) -> [u32; 256] {
    let shift = x_to(8 * offset, true);
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        // A CRC with the difference D * x^-8n has, n bytes later, the difference D, which is the change by the byte.
        table[value] = times(value as u32 ^ 0xff, shift);
        value += 1;
    }
    table
}

fn power_of(tables: &[[u32; 256]; 2], n: u16) -> u32 {
    times(tables[0][usize::from(n & 0xff)], tables[1][usize::from(n >> 8)])
}

/// The field from its polynomial, which must have degree 15 or less.
fn field_of(polynomial: u32) -> Option<u16> {
    (polynomial & 0xffff == 0).then_some(((polynomial >> 16) as u16).swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_and_its_inverse_cancel() {
        for a in [ONE, 1, 0xdead_beef, u32::MAX] {
            assert_eq!(over_x(times_x(a)), a);
            assert_eq!(times(a, ONE), a);
            assert_eq!(times(times(a, X_32), X_MINUS_32), a);
        }
    }

    #[test]
    fn difference_is_that_of_the_whole_message() {
        for n in [0u16, 1, 22, 34, 1046, 4154, 65535] {
            let delta = FieldDelta::new(n);
            for value in [0u16, 1, 2, 0x8000, 0x1234, 0xffff] {
                let mut message = vec![0xa5; 6];
                message.extend([0; 2]);
                message.extend((0..n).map(|i| i as u8));
                let zero = crc32fast::hash(&message);
                message[6..8].copy_from_slice(&value.to_be_bytes());
                let difference = crc32fast::hash(&message) ^ zero;
                assert_eq!(delta.of(value), difference, "{n} {value}");
                assert_eq!(delta.explain(difference), Some(value));
                assert_eq!(explain_once(difference, n), Some(value));
            }
        }
    }

    #[test]
    fn most_differences_have_no_explanation() {
        let delta = FieldDelta::new(100);
        let explained = (0..200_000u32).filter(|i| delta.explain(i.wrapping_mul(0x9e37_79b9) | 1).is_some()).count();
        assert!(explained < 20, "{explained}");
    }
}
