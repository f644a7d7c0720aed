//! The acknowledge header (IBA 9.3.5) and its code tables: end-to-end credits (table 46), RNR
//! timer (table 45), and the local ACK timeout (9.7.6.1.3).

use crate::bytes::{be24, put24};
use burst_base::Nanos;
use burst_base::num::MASK_24;

/// Credit code of a responder without end-to-end credits.
pub const CREDIT_INVALID: u8 = 31;

/// Credits by code, 0..=30.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// RNR timer by code, in units of 10 us.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Number of receives that a credit code announces, `None` for [`CREDIT_INVALID`]. Only the low five bits count.
pub const fn credits_of_code(code: u8) -> Option<u32> {
    match code & 31 {
        CREDIT_INVALID => None,
        code => Some(CREDITS[code as usize]),
    }
}

/// The code of the largest number of receives up to `credits`.
pub fn code_of_credits(credits: u32) -> u8 {
    CREDITS.partition_point(|&c| c <= credits) as u8 - 1
}

/// The time of an RNR timer code: 10 us to 655.36 ms. Only the low five bits count.
pub const fn rnr_timer(code: u8) -> Nanos {
    Nanos(RNR_TIMER_10US[(code & 31) as usize] as u64 * 10_000)
}

/// The local ACK timeout 4.096 us * 2^code, [`Nanos::NEVER`] for 0. Only the low five bits count.
pub const fn ack_timeout(code: u8) -> Nanos {
    match code & 31 {
        0 => Nanos::NEVER,
        code => Nanos(4096 << code),
    }
}

/// Why a responder refuses a request (IBA table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error: a packet is missing.
    PsnSequence = 0,
    /// Invalid request.
    InvalidRequest = 1,
    /// Remote access error.
    RemoteAccess = 2,
    /// Remote operational error.
    RemoteOperation = 3,
    /// Invalid RD request.
    InvalidRdRequest = 4,
}

/// Meaning of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to its PSN is acknowledged.
    Ack {
        /// Credit code: see [`credits_of_code`].
        credit: u8,
    },
    /// Receiver not ready: send again after a time.
    Rnr {
        /// Timer code: see [`rnr_timer`].
        timer: u8,
    },
    /// The request of its PSN is refused.
    Nak(NakCode),
    /// A value that IBA reserves; a requester drops the packet.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without end-to-end credits.
    pub const ACK: Syndrome = Syndrome::Ack { credit: CREDIT_INVALID };

    /// From the byte on the wire.
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 31;
        match byte >> 5 {
            0 => Syndrome::Ack { credit: value },
            1 => Syndrome::Rnr { timer: value },
            3 => match value {
                0 => Syndrome::Nak(NakCode::PsnSequence),
                1 => Syndrome::Nak(NakCode::InvalidRequest),
                2 => Syndrome::Nak(NakCode::RemoteAccess),
                3 => Syndrome::Nak(NakCode::RemoteOperation),
                4 => Syndrome::Nak(NakCode::InvalidRdRequest),
                _ => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }
    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credit } => credit & 31,
            Syndrome::Rnr { timer } => 0x20 | timer & 31,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK, with its code.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: requests completed so far.
    pub msn: u32,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;
    /// Reads the first [`Aeth::LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Option<Aeth> {
        let b = bytes.first_chunk::<{ Aeth::LEN }>()?;
        Some(Aeth { syndrome: Syndrome::from_byte(b[0]), msn: be24(b, 1) })
    }
    /// The header as a word, in host order.
    #[inline]
    pub const fn word(&self) -> u32 {
        (self.syndrome.to_byte() as u32) << 24 | self.msn & MASK_24
    }
    /// Writes the first [`Aeth::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        out[0] = self.syndrome.to_byte();
        put24(out, 1, self.msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_byte(0x36), Syndrome::Rnr { timer: 22 });
        assert_eq!(Syndrome::from_byte(0x63), Syndrome::Nak(NakCode::RemoteOperation));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn credit_codes_round_down() {
        for code in 0..31 {
            assert_eq!(code_of_credits(credits_of_code(code).unwrap()), code);
        }
        assert_eq!((code_of_credits(5), code_of_credits(0), code_of_credits(u32::MAX)), (4, 0, 30));
        assert_eq!(credits_of_code(CREDIT_INVALID), None);
    }

    #[test]
    fn timer_codes_at_their_limits() {
        assert_eq!(rnr_timer(0), Nanos::from_us(655_360));
        assert_eq!(rnr_timer(1), Nanos::from_us(10));
        assert_eq!(rnr_timer(22), Nanos::from_us(20_480));
        assert_eq!(rnr_timer(31), Nanos::from_us(491_520));
        assert_eq!((1..31).filter(|&c| rnr_timer(c) >= rnr_timer(c + 1)).count(), 0);
        assert_eq!(ack_timeout(0), Nanos::NEVER);
        assert_eq!(ack_timeout(14), Nanos(67_108_864));
        assert_eq!(ack_timeout(31), Nanos(4096 << 31));
    }
}
