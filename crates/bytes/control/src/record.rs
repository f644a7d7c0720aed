//! Records of fixed fields: events as they lie in an event channel, wishes as they travel ([`crate::wishes`]). Fields in the
//! order of the structs, at their own width, without padding between them; an event has zeros up to [`CmEvent::BYTES`].
//!
//! Three events are written and read for each connection, by two programs and a worker that serves them all; so they are not encoded
//! by serde, which takes an address apart into sixteen numbers. An option is a byte 0 or 1 and the value; an address is a
//! byte 4 or 6 and sixteen bytes; private data is its length and bytes. Both sides are of one version
//! (`burst_shm::layout::ABI_VERSION`), so the bytes are in this machine's order. Whatever does not decode is no event, and no wish.

use crate::cm::{
    CmAddr, CmConn, CmData, CmEvent, CmEventKind, CmOp, CmOption, CmParam, CmQp, CmRoute, CmWhose, PortSpace,
};
use burst_base::verbs::{Mtu, QpType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Writes a record. What has no room is left out, which a test shows not to happen.
pub(crate) struct Pen<'a> {
    pub record: &'a mut [u8],
    pub at: usize,
}

impl Pen<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.record.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}

/// Reads a record.
pub(crate) struct Eye<'a> {
    pub rest: &'a [u8],
}

impl Eye<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }
}

/// What a record is made of.
pub(crate) trait Field: Sized {
    fn put(&self, pen: &mut Pen<'_>);
    fn take(eye: &mut Eye<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty)+) => {
        $(impl Field for $number {
            #[inline]
            fn put(&self, pen: &mut Pen<'_>) {
                pen.put(&self.to_ne_bytes());
            }
            #[inline]
            fn take(eye: &mut Eye<'_>) -> Option<Self> {
                eye.take().map(<$number>::from_ne_bytes)
            }
        })+
    };
}

/// A struct is its fields, in this order; the compiler sees to it that none is missing.
macro_rules! structs {
    ($($name:ident { $($field:ident)+ })+) => {
        $(impl Field for $name {
            #[inline]
            fn put(&self, pen: &mut Pen<'_>) {
                let $name { $($field),+ } = self;
                $($field.put(pen);)+
            }
            #[inline]
            fn take(eye: &mut Eye<'_>) -> Option<Self> {
                Some($name { $($field: Field::take(eye)?),+ })
            }
        })+
    };
}

numbers! { u8 u16 u32 u64 i32 }

structs! {
    CmAddr { ip port scope }
    CmRoute { src dst device sgid dgid sgid_index mtu traffic_class hop_limit ack_timeout }
    CmConn {
        remote_qpn sq_psn rq_psn responder_resources initiator_depth retry_count rnr_retry_count peer_rnr_retry_count
        timeout flow_control srq qkey ece
    }
    CmEvent { kind id listener status cookie route conn data }
    CmQp { token qpn }
    CmParam {
        responder_resources initiator_depth flow_control retry_count rnr_retry_count srq qp_num qkey data ece
    }
}

/// An enumeration is a byte that says which, and its fields; the compiler sees to it that none is missing.
macro_rules! choices {
    ($enum:ident { $($number:literal = $name:ident { $($field:ident)+ })+ }) => {
        impl Field for $enum {
            #[inline]
            fn put(&self, pen: &mut Pen<'_>) {
                match self {
                    $($enum::$name { $($field),+ } => {
                        ($number as u8).put(pen);
                        $($field.put(pen);)+
                    })+
                }
            }
            #[inline]
            fn take(eye: &mut Eye<'_>) -> Option<Self> {
                match u8::take(eye)? {
                    $($number => Some($enum::$name { $($field: Field::take(eye)?),+ }),)+
                    _ => None,
                }
            }
        }
    };
}

choices! { CmOp {
    0 = Create { id channel ps qp_type }
    1 = Destroy { id read }
    2 = Migrate { id channel }
    3 = Bind { id addr }
    4 = ResolveAddr { id src dst timeout_ms }
    5 = ResolveRoute { id timeout_ms }
    6 = Connect { id qp param }
    7 = Listen { id backlog }
    8 = Accept { id qp param }
    9 = Reject { id reason data }
    10 = Establish { id }
    11 = Notify { id }
    12 = Disconnect { id }
    13 = SetOption { id option }
    14 = Join { id addr cookie }
    15 = Leave { id addr }
    16 = Query { id }
    17 = QueryConn { id }
} }

impl Field for CmOption {
    fn put(&self, pen: &mut Pen<'_>) {
        let (which, value) = match *self {
            CmOption::Tos(tos) => (0, tos),
            CmOption::ReuseAddr(on) => (1, on.into()),
            CmOption::AfOnly(on) => (2, on.into()),
            CmOption::AckTimeout(code) => (3, code),
        };
        pen.put(&[which, value]);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        match u8::take(eye)? {
            0 => u8::take(eye).map(CmOption::Tos),
            1 => bool::take(eye).map(CmOption::ReuseAddr),
            2 => bool::take(eye).map(CmOption::AfOnly),
            3 => u8::take(eye).map(CmOption::AckTimeout),
            _ => None,
        }
    }
}

impl Field for bool {
    fn put(&self, pen: &mut Pen<'_>) {
        u8::from(*self).put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        match u8::take(eye)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for [u8; 16] {
    fn put(&self, pen: &mut Pen<'_>) {
        pen.put(self);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        eye.take()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, pen: &mut Pen<'_>) {
        self.is_some().put(pen);
        if let Some(value) = self {
            value.put(pen);
        }
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        Some(if bool::take(eye)? { Some(T::take(eye)?) } else { None })
    }
}

impl Field for (u32, u32) {
    fn put(&self, pen: &mut Pen<'_>) {
        self.0.put(pen);
        self.1.put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        Some((u32::take(eye)?, u32::take(eye)?))
    }
}

impl Field for IpAddr {
    fn put(&self, pen: &mut Pen<'_>) {
        let (family, mut bytes) = (if self.is_ipv4() { 4u8 } else { 6 }, [0; 16]);
        match self {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes = v6.octets(),
        }
        family.put(pen);
        bytes.put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        let (family, bytes) = (u8::take(eye)?, <[u8; 16]>::take(eye)?);
        match family {
            4 => bytes.first_chunk::<4>().map(|v4| Ipv4Addr::from(*v4).into()),
            6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    }
}

impl Field for Mtu {
    fn put(&self, pen: &mut Pen<'_>) {
        (*self as u8).put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        Mtu::from_number(u8::take(eye)?.into())
    }
}

impl Field for QpType {
    fn put(&self, pen: &mut Pen<'_>) {
        (*self as u8).put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        QpType::from_number(u8::take(eye)?.into())
    }
}

impl Field for PortSpace {
    fn put(&self, pen: &mut Pen<'_>) {
        (*self as u16).put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        let number = u16::take(eye)?;
        [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib].into_iter().find(|ps| *ps as u16 == number)
    }
}

impl Field for CmEventKind {
    fn put(&self, pen: &mut Pen<'_>) {
        (*self as u8).put(pen);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        CmEventKind::ALL.get(usize::from(u8::take(eye)?)).copied()
    }
}

impl Field for CmData {
    fn put(&self, pen: &mut Pen<'_>) {
        let data = self.as_slice();
        // At most CM_DATA_MAX, which is below 256.
        (data.len() as u8).put(pen);
        pen.put(data);
    }
    fn take(eye: &mut Eye<'_>) -> Option<Self> {
        let len = u8::take(eye)?;
        let (data, rest) = eye.rest.split_at_checked(len.into())?;
        eye.rest = rest;
        CmData::new(data)
    }
}

impl CmWhose {
    /// Of a record; `None` if it is no event's.
    pub fn of(record: &[u8; CmEvent::BYTES]) -> Option<CmWhose> {
        let mut eye = Eye { rest: record };
        // The order of `CmEvent`.
        Some(CmWhose { kind: Field::take(&mut eye)?, id: Field::take(&mut eye)?, listener: Field::take(&mut eye)? })
    }
}

impl CmEvent {
    /// As written to the pipe, padded with zeros.
    pub fn to_bytes(&self) -> [u8; CmEvent::BYTES] {
        let mut record = [0; CmEvent::BYTES];
        self.write_to(&mut record);
        record
    }

    /// Writes it over a record of zeros.
    pub fn write_to(&self, record: &mut [u8; CmEvent::BYTES]) {
        let mut pen = Pen { record, at: 0 };
        self.put(&mut pen);
        // The longest event is shorter than a record; a test holds it to that.
        debug_assert!(pen.at <= CmEvent::BYTES);
    }

    /// As read from the pipe; `None` for anything that `to_bytes` does not write.
    pub fn from_bytes(record: &[u8; CmEvent::BYTES]) -> Option<CmEvent> {
        let mut eye = Eye { rest: record };
        CmEvent::take(&mut eye)
    }
}
