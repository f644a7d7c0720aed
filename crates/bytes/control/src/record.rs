//! Records of fixed fields: the format of events in event channels and of one-way commands ([`crate::commands`]). Fields are
//! in the order of the structs, at their own width, without padding; an event is padded with zeros to [`CmEvent::BYTES`].
//!
//! Each connection setup writes and reads three events and two commands, and one worker serves all programs; records are
//! therefore not encoded by serde, which handles an address as sixteen numbers. An option is a byte 0 or 1 and the value; an
//! address is a byte 4 or 6 and sixteen bytes; private data is its length and its bytes. Both ends have the same version
//! (`burst_shm::layout::ABI_VERSION`) and run on one machine, so numbers are in its byte order. Bytes that do not decode are
//! refused.

use crate::cm::{
    CmAddr, CmCommand, CmData, CmEvent, CmEventKey, CmEventKind, CmIdOption, CmQp, CmRoute, ConnAttr, ConnParam, Ece,
    PortSpace,
};
use burst_base::conn::PeerClass;
use burst_base::verbs::{Mtu, QpType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Writes a record. Fields that do not fit are left out; a test shows that all records fit.
pub(crate) struct RecordWriter<'a> {
    pub record: &'a mut [u8],
    pub at: usize,
}

impl RecordWriter<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.record.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }
}

/// Reads a record.
pub(crate) struct RecordReader<'a> {
    pub rest: &'a [u8],
}

impl RecordReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }
}

/// A type that can be a field of a record.
pub(crate) trait RecordField: Sized {
    fn put(&self, writer: &mut RecordWriter<'_>);
    fn take(reader: &mut RecordReader<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty)+) => {
        $(impl RecordField for $number {
            #[inline]
            fn put(&self, writer: &mut RecordWriter<'_>) {
                writer.put(&self.to_ne_bytes());
            }
            #[inline]
            fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
                reader.take().map(<$number>::from_ne_bytes)
            }
        })+
    };
}

/// A struct is encoded as its fields in this order; the compiler checks that no field is missing.
macro_rules! structs {
    ($($name:ident { $($field:ident)+ })+) => {
        $(impl RecordField for $name {
            #[inline]
            fn put(&self, writer: &mut RecordWriter<'_>) {
                let $name { $($field),+ } = self;
                $($field.put(writer);)+
            }
            #[inline]
            fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
                Some($name { $($field: RecordField::take(reader)?),+ })
            }
        })+
    };
}

numbers! { u8 u16 u32 u64 i32 }

structs! {
    CmAddr { ip port scope }
    CmRoute { src dst device sgid dgid sgid_index mtu traffic_class hop_limit ack_timeout }
    Ece { vendor_id options }
    ConnAttr {
        remote_qpn sq_psn rq_psn responder_resources initiator_depth retry_count rnr_retry_count peer_rnr_retry_count
        ack_timeout flow_control srq qkey mtu ece peer
    }
    CmEvent { kind id listener status cookie route conn data }
    CmQp { token qpn }
    ConnParam {
        responder_resources initiator_depth flow_control retry_count rnr_retry_count srq qpn qkey ece
    }
}

/// An enumeration is encoded as the variant's number, one byte, and its fields; the compiler checks that no variant is missing.
macro_rules! choices {
    ($enum:ident { $($number:literal = $name:ident { $($field:ident)+ })+ }) => {
        impl RecordField for $enum {
            #[inline]
            fn put(&self, writer: &mut RecordWriter<'_>) {
                match self {
                    $($enum::$name { $($field),+ } => {
                        ($number as u8).put(writer);
                        $($field.put(writer);)+
                    })+
                }
            }
            #[inline]
            fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
                match u8::take(reader)? {
                    $($number => Some($enum::$name { $($field: RecordField::take(reader)?),+ }),)+
                    _ => None,
                }
            }
        }
    };
}

choices! { CmCommand {
    0 = Create { id channel ps qp_type }
    1 = Destroy { id read }
    2 = Migrate { id channel }
    3 = Bind { id addr }
    4 = ResolveAddr { id src dst timeout_ms }
    5 = ResolveRoute { id timeout_ms }
    6 = Connect { id qp param data }
    7 = Listen { id backlog }
    8 = Accept { id qp param data }
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

impl RecordField for CmIdOption {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        let (which, value) = match *self {
            CmIdOption::Tos(tos) => (0, tos),
            CmIdOption::ReuseAddr(on) => (1, on.into()),
            CmIdOption::AfOnly(on) => (2, on.into()),
            CmIdOption::AckTimeout(code) => (3, code),
        };
        writer.put(&[which, value]);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        match u8::take(reader)? {
            0 => u8::take(reader).map(CmIdOption::Tos),
            1 => bool::take(reader).map(CmIdOption::ReuseAddr),
            2 => bool::take(reader).map(CmIdOption::AfOnly),
            3 => u8::take(reader).map(CmIdOption::AckTimeout),
            _ => None,
        }
    }
}

impl RecordField for bool {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        u8::from(*self).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        match u8::take(reader)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl RecordField for [u8; 16] {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        writer.put(self);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        reader.take()
    }
}

impl<T: RecordField> RecordField for Option<T> {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        self.is_some().put(writer);
        if let Some(value) = self {
            value.put(writer);
        }
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        Some(if bool::take(reader)? { Some(T::take(reader)?) } else { None })
    }
}

impl RecordField for (u32, u32) {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        self.0.put(writer);
        self.1.put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        Some((u32::take(reader)?, u32::take(reader)?))
    }
}

impl RecordField for IpAddr {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        let (family, mut bytes) = (if self.is_ipv4() { 4u8 } else { 6 }, [0; 16]);
        match self {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes = v6.octets(),
        }
        family.put(writer);
        bytes.put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        let (family, bytes) = (u8::take(reader)?, <[u8; 16]>::take(reader)?);
        match family {
            4 => bytes.first_chunk::<4>().map(|v4| Ipv4Addr::from(*v4).into()),
            6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    }
}

impl RecordField for Mtu {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        (*self as u8).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        Mtu::from_number(u8::take(reader)?.into())
    }
}

impl RecordField for PeerClass {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        (*self == PeerClass::Burst).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        Some(if bool::take(reader)? { PeerClass::Burst } else { PeerClass::Standard })
    }
}

impl RecordField for QpType {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        (*self as u8).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        QpType::from_number(u8::take(reader)?.into())
    }
}

impl RecordField for PortSpace {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        (*self as u16).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        let number = u16::take(reader)?;
        [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib].into_iter().find(|ps| *ps as u16 == number)
    }
}

impl RecordField for CmEventKind {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        (*self as u8).put(writer);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        CmEventKind::ALL.get(usize::from(u8::take(reader)?)).copied()
    }
}

impl RecordField for CmData {
    fn put(&self, writer: &mut RecordWriter<'_>) {
        let data = self.as_slice();
        // At most CM_DATA_MAX, which is below 256.
        (data.len() as u8).put(writer);
        writer.put(data);
    }
    fn take(reader: &mut RecordReader<'_>) -> Option<Self> {
        let len = u8::take(reader)?;
        let (data, rest) = reader.rest.split_at_checked(len.into())?;
        reader.rest = rest;
        CmData::new(data)
    }
}

impl CmEventKey {
    /// The key of a record; `None` if the record is no event.
    pub fn of(record: &[u8; CmEvent::BYTES]) -> Option<CmEventKey> {
        let mut reader = RecordReader { rest: record };
        // The fields in the order of `CmEvent`.
        Some(CmEventKey {
            kind: RecordField::take(&mut reader)?,
            id: RecordField::take(&mut reader)?,
            listener: RecordField::take(&mut reader)?,
        })
    }
}

impl CmEvent {
    /// The record for the pipe, padded with zeros.
    pub fn to_bytes(&self) -> [u8; CmEvent::BYTES] {
        let mut record = [0; CmEvent::BYTES];
        self.write_to(&mut record);
        record
    }

    /// Writes the event over a record of zeros.
    pub fn write_to(&self, record: &mut [u8; CmEvent::BYTES]) {
        let mut writer = RecordWriter { record, at: 0 };
        self.put(&mut writer);
        // The longest event is shorter than a record, as a test checks.
        debug_assert!(writer.at <= CmEvent::BYTES);
    }

    /// Parses a record from the pipe; `None` for bytes that `to_bytes` does not write.
    pub fn from_bytes(record: &[u8; CmEvent::BYTES]) -> Option<CmEvent> {
        let mut reader = RecordReader { rest: record };
        CmEvent::take(&mut reader)
    }
}
