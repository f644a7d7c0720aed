//! Conversions of `enum ibv_rate` to multiples of 2.5 Gbit/s and to Mbit/s; width and speed codes of a port.

use crate::sys::{ibv_rate, *};
use std::ffi::c_int;

struct RateRow {
    code: ibv_rate,
    /// Multiple of 2.5 Gbit/s; 0 if the API defines none.
    multiple: c_int,
    mbps: c_int,
}

const fn rate(code: ibv_rate, multiple: c_int, mbps: c_int) -> RateRow {
    RateRow { code, multiple, mbps }
}

/// Line rates of IBA and of its extended speeds (lanes of 14.0625, 25.78125, 53.125 and 106.25 Gbit/s, encoded).
const RATES: &[RateRow] = &[
    rate(IBV_RATE_2_5_GBPS, 1, 2_500),
    rate(IBV_RATE_5_GBPS, 2, 5_000),
    rate(IBV_RATE_10_GBPS, 4, 10_000),
    rate(IBV_RATE_20_GBPS, 8, 20_000),
    rate(IBV_RATE_30_GBPS, 12, 30_000),
    rate(IBV_RATE_40_GBPS, 16, 40_000),
    rate(IBV_RATE_60_GBPS, 24, 60_000),
    rate(IBV_RATE_80_GBPS, 32, 80_000),
    rate(IBV_RATE_120_GBPS, 48, 120_000),
    rate(IBV_RATE_14_GBPS, 0, 14_062),
    rate(IBV_RATE_56_GBPS, 0, 56_250),
    rate(IBV_RATE_112_GBPS, 0, 112_500),
    rate(IBV_RATE_168_GBPS, 0, 168_750),
    rate(IBV_RATE_25_GBPS, 0, 25_781),
    rate(IBV_RATE_100_GBPS, 0, 103_125),
    rate(IBV_RATE_200_GBPS, 0, 206_250),
    rate(IBV_RATE_300_GBPS, 0, 309_375),
    rate(IBV_RATE_28_GBPS, 11, 28_125),
    rate(IBV_RATE_50_GBPS, 20, 53_125),
    rate(IBV_RATE_400_GBPS, 160, 425_000),
    rate(IBV_RATE_600_GBPS, 240, 637_500),
    rate(IBV_RATE_800_GBPS, 320, 850_000),
    rate(IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// `ibv_rate_to_mult`: -1 if the rate is no multiple of 2.5 Gbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(code: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.code == code && r.multiple > 0).map_or(-1, |r| r.multiple)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` if no rate is `multiple` times 2.5 Gbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.multiple == multiple && multiple > 0).map_or(IBV_RATE_MAX, |r| r.code)
}

/// `ibv_rate_to_mbps`: -1 for an unknown rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(code: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.code == code).map_or(-1, |r| r.mbps)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` if no rate has `mbps` Mbit/s.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.mbps == mbps).map_or(IBV_RATE_MAX, |r| r.code)
}

/// Width and speed codes of a port: the combination whose product is the largest that is not above `mbps`. An unknown speed (0)
/// reads as 1x at 2.5 Gbit/s, as in Linux drivers.
pub fn width_and_speed(mbps: u32) -> (u8, u8) {
    // Width codes: 1 = 1x, 2 = 4x. Speed codes: per-lane Gbit/s, nominal.
    const TABLE: &[(u32, u8, u8)] = &[
        (2_500, 1, 1),
        (5_000, 1, 2),
        (10_000, 1, 4),
        (14_000, 1, 16),
        (25_000, 1, 32),
        (40_000, 2, 4),
        (50_000, 1, 64),
        (56_000, 2, 16),
        (100_000, 2, 32),
        (200_000, 2, 64),
        (400_000, 2, 128),
    ];
    TABLE.iter().rev().find(|row| row.0 <= mbps).map_or((1, 1), |row| (row.1, row.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_invert_each_other() {
        for r in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(r.code)), r.code);
            let multiple = ibv_rate_to_mult(r.code);
            assert!(multiple == -1 || mult_to_ibv_rate(multiple) == r.code);
        }
        assert_eq!(ibv_rate_to_mult(IBV_RATE_5_GBPS), 2);
        assert_eq!(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
        assert_eq!(mult_to_ibv_rate(0), IBV_RATE_MAX);
        assert_eq!(mult_to_ibv_rate(-1), IBV_RATE_MAX);
    }

    #[test]
    fn speeds() {
        assert_eq!(width_and_speed(0), (1, 1));
        assert_eq!(width_and_speed(10_000), (1, 4));
        assert_eq!(width_and_speed(100_000), (2, 32));
    }
}
