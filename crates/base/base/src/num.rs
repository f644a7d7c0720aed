//! Newtypes for numbers, so that one cannot be used in place of another.
//!
//! A [`Psn`] is a 24-bit serial number: it is compared and added only by the methods here, which wrap modulo
//! 2^24 (IBA 9.7.2). Keys and queue pair numbers are opaque 32- and 24-bit values.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Number of packet sequence numbers, 2^24.
pub const PSN_MODULUS: u32 = 1 << 24;
/// Mask that keeps the 24 bits of a PSN or QPN.
pub const MASK_24: u32 = PSN_MODULUS - 1;

/// Packet sequence number, 24 bits, serial arithmetic (IBA 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// The PSN whose value is the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & MASK_24)
    }
    /// The 24-bit value.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// `self + n` modulo 2^24.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub const fn add(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK_24)
    }
    /// `self - n` modulo 2^24.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub const fn sub(self, n: u32) -> Self {
        Psn(self.0.wrapping_sub(n) & MASK_24)
    }
    /// The next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }
    /// The PSN before this one.
    #[must_use]
    pub const fn prev(self) -> Self {
        self.sub(1)
    }
    /// Signed distance `self - other`, in `-2^23 .. 2^23`.
    pub const fn diff(self, other: Psn) -> i32 {
        let d = self.0.wrapping_sub(other.0) & MASK_24;
        ((d << 8) as i32) >> 8
    }
    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.diff(other) < 0
    }
    /// Whether `self` comes after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.diff(other) > 0
    }
    /// Whether `self` is one of the `count` PSNs from `first` on.
    pub const fn is_within(self, first: Psn, count: u32) -> bool {
        (self.0.wrapping_sub(first.0) & MASK_24) < count
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn:{:06x}", self.0)
    }
}

/// Queue pair number, 24 bits. 0 and 1 are the management queue pairs, 0xFFFFFF is multicast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services queue pair (CM and other MADs).
    pub const GSI: Qpn = Qpn(1);
    /// The destination of multicast packets.
    pub const MULTICAST: Qpn = Qpn(MASK_24);
    /// Bits of a QPN of this daemon that give the worker of the queue pair.
    pub const WORKER_MASK: u32 = 0xf;
    /// The QPN whose value is the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & MASK_24)
    }
    /// The 24-bit value.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// The worker of the queue pair, if the QPN belongs to this daemon.
    pub const fn worker(self) -> u32 {
        self.0 & Self::WORKER_MASK
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qpn:{:06x}", self.0)
    }
}

/// Number of a device: its place in the daemon's list of ports, from 0.
///
/// A worker's table of ports, queue pairs, paths and multicast groups all use this number. It is not a verbs port number
/// (each device has the one port 1), nor a UDP or service port. Control messages carry it as 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// The device at place `index` of a table.
    ///
    /// # Panics
    /// For a place beyond 65,535; a daemon has a handful of devices.
    pub fn from_index(index: usize) -> Self {
        DeviceId(u16::try_from(index).expect("a daemon has fewer than 65,536 devices"))
    }
    /// Its place in a table of devices.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<DeviceId> for u32 {
    fn from(device: DeviceId) -> u32 {
        u32::from(device.0)
    }
}

impl TryFrom<u32> for DeviceId {
    type Error = core::num::TryFromIntError;
    fn try_from(number: u32) -> Result<Self, Self::Error> {
        u16::try_from(number).map(DeviceId)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device:{}", self.0)
    }
}

macro_rules! opaque_key {
    ($(#[$doc:meta])* $name:ident, $tag:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, ":{:08x}"), self.0)
            }
        }
    };
}

opaque_key!(
    /// Local key of a memory region.
    Lkey,
    "lkey"
);
opaque_key!(
    /// Remote key of a memory region or window.
    Rkey,
    "rkey"
);
opaque_key!(
    /// Queue key of datagram queue pairs; bit 31 marks a privileged key.
    Qkey,
    "qkey"
);
