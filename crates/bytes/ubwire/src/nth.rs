//! The network header (NTH, 12 bytes, form with 24-bit addresses) and its congestion field.

use crate::bytes::{be16, be24, put, put24};

/// Compact network address of a node, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Cna(u32);

impl Cna {
    /// The address whose value is the low 24 bits of `value`.
    pub const fn new(value: u32) -> Cna {
        Cna(value & 0xff_ffff)
    }
    /// The 24-bit value.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What follows the NTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLayer {
    /// The transaction header: no transport header (TP bypass).
    Bypass,
    /// A reliable transport header (RTPH).
    Reliable,
    /// An unreliable transport header (UTPH).
    Unreliable,
}

impl NextLayer {
    const fn from_number(n: u8) -> Option<NextLayer> {
        match n {
            1 => Some(NextLayer::Bypass),
            2 => Some(NextLayer::Reliable),
            3 => Some(NextLayer::Unreliable),
            _ => None,
        }
    }
    const fn number(self) -> u8 {
        match self {
            NextLayer::Bypass => 1,
            NextLayer::Reliable => 2,
            NextLayer::Unreliable => 3,
        }
    }
}

/// Congestion field in mode 0, C-AQM: location, enable, C, I and an 8-bit hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CongestionField {
    /// The other bits of the field (mode, location, reserved), as received.
    pub other: u16,
    /// The sender takes part in C-AQM.
    pub enable: bool,
    /// C: a switch is congested.
    pub congested: bool,
    /// I: the sender asks to send faster; a switch that refuses clears it.
    pub increase: bool,
    /// By how much, in units of [`CongestionField::HINT_BYTES`].
    pub hint: u8,
}

impl CongestionField {
    /// Bytes of one unit of the hint.
    pub const HINT_BYTES: u32 = 32;
    const ENABLE: u16 = 1 << 10;
    const CONGESTED: u16 = 1 << 9;
    const INCREASE: u16 = 1 << 8;
    const KNOWN: u16 = Self::ENABLE | Self::CONGESTED | Self::INCREASE | 0xff;
    /// Bits of the mode, and mode 0.
    const MODE: u16 = 0xe000;

    /// Reads the field.
    pub const fn parse(bits: u16) -> CongestionField {
        CongestionField {
            other: bits & !Self::KNOWN,
            enable: bits & Self::ENABLE != 0,
            congested: bits & Self::CONGESTED != 0,
            increase: bits & Self::INCREASE != 0,
            hint: bits as u8,
        }
    }
    /// The field's bits.
    pub fn bits(self) -> u16 {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        self.other & !Self::KNOWN
            | flag(self.enable, Self::ENABLE)
            | flag(self.congested, Self::CONGESTED)
            | flag(self.increase, Self::INCREASE)
            | u16::from(self.hint)
    }
    /// Whether a switch and the receiver may read the field as C-AQM's.
    pub const fn is_caqm(self) -> bool {
        self.enable && self.other & Self::MODE == 0
    }
}

/// Network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nth {
    /// Source.
    pub source: Cna,
    /// Destination.
    pub dest: Cna,
    /// Congestion field; switches change it, so that no checksum covers it.
    pub congestion: CongestionField,
    /// Load-balance factor: packets with one value take one path.
    pub balance: u8,
    /// Service level, 0..=15.
    pub service_level: u8,
    /// What follows.
    pub next: NextLayer,
}

impl Nth {
    /// Length in bytes.
    pub const LEN: usize = 12;
    /// Where the congestion field lies.
    pub const CONGESTION_AT: usize = 7;
    /// From node 0 to node 0.
    pub(crate) const NONE: Nth = Nth {
        source: Cna::new(0),
        dest: Cna::new(0),
        congestion: CongestionField { other: 0, enable: false, congested: false, increase: false, hint: 0 },
        balance: 0,
        service_level: 0,
        next: NextLayer::Bypass,
    };

    /// Reads the first [`Nth::LEN`] bytes: `None` if there are fewer or the next layer is unknown.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Nth> {
        let b = bytes.first_chunk::<{ Nth::LEN }>()?;
        Some(Nth {
            source: Cna::new(be24(b, 1)),
            dest: Cna::new(be24(b, 4)),
            congestion: CongestionField::parse(be16(b, Nth::CONGESTION_AT)),
            balance: b[9],
            service_level: b[10] >> 4,
            next: NextLayer::from_number(b[10] & 7)?,
        })
    }
    /// Writes the first [`Nth::LEN`] bytes; panics if there are fewer.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Nth::LEN];
        out[0] = 0;
        put24(out, 1, self.source.get());
        put24(out, 4, self.dest.get());
        put(out, Nth::CONGESTION_AT, &self.congestion.bits().to_be_bytes());
        out[9] = self.balance;
        out[10] = self.service_level << 4 | self.next.number();
        out[11] = 0;
    }
}
