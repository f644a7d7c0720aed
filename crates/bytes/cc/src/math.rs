//! Arithmetic that gives the same bits on every machine: products and sums of `f64` only.

/// `base` to the power of `exponent`, by squaring: at most 128 multiplications. (`f64::powi` may round differently from one
/// machine to another.)
pub(crate) fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

/// The cube root of a number from 0 to 10^18, by Newton's iteration.
pub(crate) fn cube_root(value: f64) -> f64 {
    if value <= 0.0 || value.is_nan() {
        return 0.0;
    }
    let mut root = if value < 1.0 { 1.0 } else { value.min(1e6) };
    // Each step takes a third off, and near the root doubles the digits.
    for _ in 0..64 {
        root -= (root - value / (root * root)) / 3.0;
    }
    root
}

/// `value` within `least` and `most`; `least` if the range is empty, or if `value` is no number.
pub(crate) fn bounded(value: f64, least: f64, most: f64) -> f64 {
    if value > least { value.min(most).max(least) } else { least }
}

/// The bytes of some seconds at `rate_bps`: at least one MTU, at most 64 KiB, which one GSO send carries.
pub(crate) fn burst_of(rate_bps: f64, seconds: f64, mtu: u64) -> u64 {
    ((rate_bps / 8.0 * seconds) as u64).clamp(mtu, (64 << 10).max(mtu))
}

/// Most bytes that may leave at once at `rate_bps`: those of 50 us, at least one MTU, at most 64 KiB, which one GSO send carries.
pub(crate) fn burst_bytes(rate_bps: f64, mtu: u64) -> u64 {
    burst_of(rate_bps, 50e-6, mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        assert_eq!((power(0.5, 0), power(0.5, 1), power(0.5, 10)), (1.0, 0.5, 1.0 / 1024.0));
        assert_eq!((power(2.0, 13), power(0.9, u64::MAX)), (8192.0, 0.0));
    }

    #[test]
    fn cube_roots() {
        for root in [0.001, 0.5, 1.0, 3.0, 12.5, 1000.0, 999_999.0] {
            let found = cube_root(root * root * root);
            assert!((found - root).abs() < root * 1e-12, "{root}: {found}");
        }
        assert_eq!([0.0, -8.0, f64::NAN].map(cube_root), [0.0; 3]);
    }

    #[test]
    fn what_is_no_number_is_the_least() {
        assert_eq!(bounded(5.0, 1.0, 3.0), 3.0);
        assert_eq!(bounded(0.0, 1.0, 3.0), 1.0);
        assert_eq!(bounded(2.0, 1.0, 3.0), 2.0);
        assert_eq!(bounded(f64::NAN, 1.0, 3.0), 1.0);
        assert_eq!(bounded(2.0, 3.0, 1.0), 3.0);
    }

    #[test]
    fn a_burst_is_50_us_within_one_mtu_and_64_kib() {
        assert_eq!(burst_bytes(1e9, 4096), 6250);
        assert_eq!(burst_bytes(1e6, 4096), 4096);
        assert_eq!(burst_bytes(100e9, 4096), 64 << 10);
        assert_eq!(burst_bytes(f64::NAN, 1024), 1024);
    }
}
