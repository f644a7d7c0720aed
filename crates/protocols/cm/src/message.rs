//! The messages of communication management (IBA 12.6, class 0x07 version 2), one table each: field, type, place.
//!
//! Offsets count from the end of the 24-byte MAD header. Reserved bits are sent as zero and ignored when received, so
//! that a message of a conforming sender is written again byte for byte (tests/all/golden.rs). Vendor ids are the fields
//! that the specification added for enhanced connection establishment; their options travel in the attribute modifier.

use crate::fields::{be16, be24, be32, be64, bits, byte, flag, raw, scattered24, top20};
use burst_base::Reason;
use burst_base::conn::BURST_VENDOR;
use burst_wire::{MAD_LEN, MadHeader, MgmtClass};

/// Bytes after the MAD header.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;
/// Most private data of any message.
pub const DATA_MAX: usize = 224;
/// Class version that is spoken.
pub const CLASS_VERSION: u8 = 2;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident, $attr:literal, data $data:literal {
        $($(#[$fdoc:meta])* $field:ident: $type:ty = $codec:ident($($at:literal),+);)+
    })+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type),+ }

        impl $name {
            /// Attribute id.
            pub const ATTR: u16 = $attr;
            /// Offset of the private data, which fills the rest.
            pub const DATA_AT: usize = $data;
            /// Most private data.
            pub const DATA_LEN: usize = BODY_LEN - $data;

            fn parse(b: &[u8; BODY_LEN]) -> $name {
                $name { $($field: $codec::get(b, $($at),+)),+ }
            }
            fn emit(&self, b: &mut [u8; BODY_LEN]) {
                $($codec::put(b, $($at),+, self.$field);)+
            }
        }

        impl Default for $name {
            fn default() -> $name { $name::parse(&[0; BODY_LEN]) }
        }

        impl From<$name> for CmMessage {
            fn from(message: $name) -> CmMessage { CmMessage::$name(message) }
        })+

        /// Any message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)] // lives on the stack between parse and handler
        pub enum CmMessage { $($(#[$doc])* $name($name)),+ }

        impl CmMessage {
            /// Attribute id.
            pub const fn attr(&self) -> u16 { match self { $(CmMessage::$name(_) => $attr),+ } }
            /// Name in capitals, as the specification writes it.
            pub const fn name(&self) -> &'static str { match self { $(CmMessage::$name(_) => stringify!($name)),+ } }
            const fn data_at(&self) -> usize { match self { $(CmMessage::$name(_) => $data),+ } }
            fn parse(attr: u16, b: &[u8; BODY_LEN]) -> Option<CmMessage> {
                match attr { $($attr => Some(CmMessage::$name($name::parse(b))),)+ _ => None }
            }
            fn emit(&self, b: &mut [u8; BODY_LEN]) { match self { $(CmMessage::$name(m) => m.emit(b)),+ } }
        }
    };
}

messages! {
    /// Request for communication.
    Req, 0x0010, data 140 {
        /// The active end's communication id.
        local_id: u32 = be32(0);
        /// Vendor id of the sender.
        vendor_id: u32 = be24(5);
        /// Requested service.
        service_id: u64 = be64(8);
        /// GUID of the sender's channel adapter.
        ca_guid: u64 = be64(16);
        /// Q_Key.
        qkey: u32 = be32(28);
        /// Queue pair number of the sender.
        qpn: u32 = be24(32);
        /// READs and atomics that the sender accepts at a time (responder resources).
        responder_resources: u8 = byte(35);
        /// READs and atomics that the sender keeps outstanding (initiator depth).
        initiator_depth: u8 = byte(39);
        /// Time in which the passive end should answer (code).
        remote_response_timeout: u8 = bits(43, 3, 5);
        /// Transport: 0 RC, 1 UC, 2 RD, 3 see the extended type.
        transport: u8 = bits(43, 1, 2);
        /// End-to-end flow control.
        flow_control: bool = flag(43, 0);
        /// First PSN that the other end shall send (IBA 12.7.31).
        psn: u32 = be24(44);
        /// Time in which the active end answers (code).
        local_response_timeout: u8 = bits(47, 3, 5);
        /// Retries of the transport.
        retry_count: u8 = bits(47, 0, 3);
        /// Partition.
        pkey: u16 = be16(48);
        /// Path MTU (code).
        mtu: u8 = bits(50, 4, 4);
        /// An RD channel exists.
        rdc_exists: bool = flag(50, 3);
        /// Retries on RNR NAK.
        rnr_retry_count: u8 = bits(50, 0, 3);
        /// Maximum number of retransmissions of CM messages.
        cm_retries: u8 = bits(51, 4, 4);
        /// The sender's queue pair has a shared receive queue.
        srq: bool = flag(51, 3);
        /// Extended transport type.
        extended_transport: u8 = bits(51, 0, 3);
        /// Primary path: local LID.
        local_lid: u16 = be16(52);
        /// Primary path: remote LID.
        remote_lid: u16 = be16(54);
        /// Primary path: local GID.
        local_gid: [u8; 16] = raw(56);
        /// Primary path: remote GID.
        remote_gid: [u8; 16] = raw(72);
        /// Primary path: flow label.
        flow_label: u32 = top20(88);
        /// Primary path: packet rate.
        packet_rate: u8 = bits(91, 0, 6);
        /// Primary path: traffic class.
        traffic_class: u8 = byte(92);
        /// Primary path: hop limit.
        hop_limit: u8 = byte(93);
        /// Primary path: service level.
        sl: u8 = bits(94, 4, 4);
        /// Primary path: within one subnet.
        subnet_local: bool = flag(94, 3);
        /// Primary path: local ACK timeout (code).
        ack_timeout: u8 = bits(95, 3, 5);
        /// Alternate path: LIDs, GIDs, flow label and the other fields, not decoded.
        alternate: [u8; 44] = raw(96);
    }
    /// Message receipt acknowledged: the answer takes longer.
    Mra, 0x0011, data 10 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
        /// Received message: 0 REQ, 1 REP, 2 LAP.
        message: u8 = bits(8, 6, 2);
        /// Maximum time until the answer (code).
        service_timeout: u8 = bits(9, 3, 5);
    }
    /// Reject.
    Rej, 0x0012, data 84 {
        /// Sender's id, 0 if it has none.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
        /// Rejected message: 0 REQ, 1 REP, 2 another.
        message: u8 = bits(8, 6, 2);
        /// Bytes of `info`.
        info_len: u8 = bits(9, 1, 7);
        /// Reason.
        reason: u16 = be16(10);
        /// Additional reject information.
        info: [u8; 72] = raw(12);
    }
    /// Reply to a request.
    Rep, 0x0013, data 36 {
        /// The passive end's id.
        local_id: u32 = be32(0);
        /// The active end's id.
        remote_id: u32 = be32(4);
        /// Q_Key.
        qkey: u32 = be32(8);
        /// Queue pair number of the sender.
        qpn: u32 = be24(12);
        /// Vendor id of the sender.
        vendor_id: u32 = scattered24(15, 19, 23);
        /// End-to-end context; queue pair number of an XRC target.
        eecn: u32 = be24(16);
        /// First PSN that the other end shall send (IBA 12.7.31).
        psn: u32 = be24(20);
        /// READs and atomics that the sender accepts at a time (responder resources).
        responder_resources: u8 = byte(24);
        /// READs and atomics that the sender keeps outstanding (initiator depth).
        initiator_depth: u8 = byte(25);
        /// Target ACK delay (code).
        ack_delay: u8 = bits(26, 3, 5);
        /// Whether the alternate path was taken.
        failover: u8 = bits(26, 1, 2);
        /// End-to-end flow control.
        flow_control: bool = flag(26, 0);
        /// Retries on RNR NAK.
        rnr_retry_count: u8 = bits(27, 5, 3);
        /// The sender's queue pair has a shared receive queue.
        srq: bool = flag(27, 4);
        /// GUID of the sender's channel adapter.
        ca_guid: u64 = be64(28);
    }
    /// Ready to use.
    Rtu, 0x0014, data 8 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
    }
    /// Request for communication release.
    Dreq, 0x0015, data 12 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
        /// Receiver's queue pair.
        remote_qpn: u32 = be24(8);
    }
    /// Reply to a request for communication release.
    Drep, 0x0016, data 8 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
    }
    /// Service id resolution request.
    SidrReq, 0x0017, data 16 {
        /// Sender's id of the request.
        request_id: u32 = be32(0);
        /// Partition.
        pkey: u16 = be16(4);
        /// Requested service.
        service_id: u64 = be64(8);
    }
    /// Service id resolution response.
    SidrRep, 0x0018, data 96 {
        /// Id of the request.
        request_id: u32 = be32(0);
        /// 0, or the reason of the refusal.
        status: u8 = byte(4);
        /// Bytes of `info`.
        info_len: u8 = byte(5);
        /// Vendor id, low half.
        vendor_low: u16 = be16(6);
        /// The queue pair.
        qpn: u32 = be24(8);
        /// Vendor id, high byte.
        vendor_high: u8 = byte(11);
        /// Requested service.
        service_id: u64 = be64(12);
        /// Q_Key.
        qkey: u32 = be32(20);
        /// Additional information.
        info: [u8; 72] = raw(24);
    }
    /// Load alternate path.
    Lap, 0x0019, data 64 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
        /// Receiver's queue pair.
        remote_qpn: u32 = be24(12);
        /// Time in which the receiver should answer (code).
        response_timeout: u8 = bits(15, 3, 5);
        /// The path, as it comes.
        path: [u8; 44] = raw(20);
    }
    /// Answer to it.
    Apr, 0x001a, data 84 {
        /// Sender's id.
        local_id: u32 = be32(0);
        /// Receiver's id.
        remote_id: u32 = be32(4);
        /// Bytes of `info`.
        info_len: u8 = byte(8);
        /// 0 loaded, or why not.
        status: u8 = byte(9);
        /// Additional information.
        info: [u8; 72] = raw(12);
    }
}

/// Whether a MAD is a REQ or a REP whose sender gives Burst's vendor id. Reads no more than these fields: all else is checked
/// when the message has its turn.
pub fn names_burst(mad: &[u8; MAD_LEN]) -> bool {
    let body = &mad[MadHeader::LEN..];
    let is_cm = MadHeader::parse(mad).filter(|header| header.mgmt_class == MgmtClass::CM);
    let vendor_id = match is_cm.map(|header| header.attr_id) {
        Some(Req::ATTR) => be24::get(body, 5),
        Some(Rep::ATTR) => scattered24::get(body, 15, 19, 23),
        _ => return false,
    };
    vendor_id == BURST_VENDOR
}

/// A message with its envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad<'a> {
    /// Transaction id.
    pub tid: u64,
    /// Attribute modifier: options of enhanced connection establishment.
    pub modifier: u32,
    /// The message.
    pub message: CmMessage,
    /// Private data, as long as the message has room.
    pub data: &'a [u8],
}

impl<'a> Mad<'a> {
    /// Parses a whole MAD.
    ///
    /// # Errors
    /// [`Reason::MadMalformed`], [`Reason::MadClass`], [`Reason::MadVersion`] or [`Reason::MadUnknown`].
    pub fn parse(bytes: &'a [u8]) -> Result<Mad<'a>, Reason> {
        let header = MadHeader::parse(bytes).ok_or(Reason::MadMalformed)?;
        if header.mgmt_class != MgmtClass::CM {
            return Err(Reason::MadClass);
        }
        if header.class_version != CLASS_VERSION {
            return Err(Reason::MadVersion);
        }
        let body = bytes.get(MadHeader::LEN..MAD_LEN).and_then(<[u8]>::first_chunk).ok_or(Reason::MadMalformed)?;
        if header.method != MadHeader::METHOD_SEND {
            return Err(Reason::MadUnknown);
        }
        let message = CmMessage::parse(header.attr_id, body).ok_or(Reason::MadUnknown)?;
        let data = body.get(message.data_at()..).ok_or(Reason::MadMalformed)?;
        Ok(Mad { tid: header.tid, modifier: header.attr_mod, message, data })
    }

    /// Writes a whole MAD. Private data that does not fit is cut off: callers check it against `DATA_LEN`.
    pub fn emit(&self, out: &mut [u8; MAD_LEN]) {
        out.fill(0);
        let header = MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::CM,
            class_version: CLASS_VERSION,
            method: MadHeader::METHOD_SEND,
            tid: self.tid,
            attr_id: self.message.attr(),
            attr_mod: self.modifier,
            ..MadHeader::default()
        };
        header.emit(out);
        let Some(body) = out.last_chunk_mut::<BODY_LEN>() else { return };
        self.message.emit(body);
        let room = &mut body[self.message.data_at()..];
        let len = self.data.len().min(room.len());
        room[..len].copy_from_slice(&self.data[..len]);
    }
}

impl Rej {
    /// The REJ of an active end that gives up before it knows the peer's id (IBA 12.6.7.2: the GUID says to which host the id
    /// belongs).
    pub(crate) fn timeout(id: u32, ca_guid: u64) -> Rej {
        let mut rej = Rej { local_id: id, reason: reject::TIMEOUT, info_len: 8, ..Rej::default() };
        rej.info[..8].copy_from_slice(&ca_guid.to_be_bytes());
        rej
    }
}

impl CmMessage {
    /// The id by which the receiver knows the connection: 0 in messages that begin one.
    pub fn receiver_id(&self) -> u32 {
        match self {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => 0,
            CmMessage::Mra(m) => m.remote_id,
            CmMessage::Rej(m) => m.remote_id,
            CmMessage::Rep(m) => m.remote_id,
            CmMessage::Rtu(m) => m.remote_id,
            CmMessage::Dreq(m) => m.remote_id,
            CmMessage::Drep(m) => m.remote_id,
            CmMessage::SidrRep(m) => m.request_id,
            CmMessage::Lap(m) => m.remote_id,
            CmMessage::Apr(m) => m.remote_id,
        }
    }
    /// The id by which the sender knows the connection.
    pub fn sender_id(&self) -> u32 {
        match self {
            CmMessage::Req(m) => m.local_id,
            CmMessage::SidrReq(m) => m.request_id,
            CmMessage::Mra(m) => m.local_id,
            CmMessage::Rej(m) => m.local_id,
            CmMessage::Rep(m) => m.local_id,
            CmMessage::Rtu(m) => m.local_id,
            CmMessage::Dreq(m) => m.local_id,
            CmMessage::Drep(m) => m.local_id,
            CmMessage::SidrRep(_) => 0,
            CmMessage::Lap(m) => m.local_id,
            CmMessage::Apr(m) => m.local_id,
        }
    }
}

/// Reasons of a REJ (IBA 12.6.7.2).
pub mod reject {
    macro_rules! rejects {
        ($($name:ident = $n:literal, $what:literal;)+) => {
            $(#[doc = $what] pub const $name: u16 = $n;)+
            /// The meaning of a reason.
            pub const fn explain(reason: u16) -> &'static str {
                match reason { $($n => $what,)+ _ => "a reason that the specification does not know" }
            }
        };
    }
    rejects! {
        NO_QP = 1, "no queue pair available";
        NO_EEC = 2, "no end-to-end context available";
        NO_RESOURCES = 3, "no resources";
        TIMEOUT = 4, "no answer in time";
        UNSUPPORTED = 5, "unsupported request";
        INVALID_COMM_ID = 6, "no such communication id";
        INVALID_COMM_INSTANCE = 7, "wrong communication instance";
        INVALID_SERVICE_ID = 8, "the service has no listener";
        INVALID_TRANSPORT = 9, "transport not supported";
        STALE_CONNECTION = 10, "the queue pair is still connected";
        RDC_NOT_EXIST = 11, "no RD channel";
        INVALID_GID = 12, "primary GID not accepted";
        INVALID_LID = 13, "primary LID not accepted";
        INVALID_SL = 14, "service level not supported";
        INVALID_TRAFFIC_CLASS = 15, "traffic class not accepted";
        INVALID_HOP_LIMIT = 16, "hop limit not accepted";
        INVALID_PACKET_RATE = 17, "packet rate not supported";
        INVALID_ALT_GID = 18, "alternate GID not accepted";
        INVALID_ALT_LID = 19, "alternate LID not accepted";
        INVALID_ALT_SL = 20, "alternate service level not supported";
        INVALID_ALT_TRAFFIC_CLASS = 21, "alternate traffic class not accepted";
        INVALID_ALT_HOP_LIMIT = 22, "alternate hop limit not accepted";
        INVALID_ALT_PACKET_RATE = 23, "alternate packet rate not supported";
        CM_REDIRECT = 24, "ask another port's connection manager";
        PORT_REDIRECT = 25, "connect to another port";
        INVALID_MTU = 26, "path MTU not supported";
        INSUFFICIENT_RESOURCES = 27, "too many responder resources asked for";
        CONSUMER = 28, "the program refused";
        INVALID_RNR_RETRY = 29, "RNR retry count not accepted";
        DUPLICATE_COMM_ID = 30, "communication id is in use";
        INVALID_CLASS_VERSION = 31, "class version not supported";
        INVALID_FLOW_LABEL = 32, "flow label not accepted";
        INVALID_ALT_FLOW_LABEL = 33, "alternate flow label not accepted";
        VENDOR_OPTION = 35, "vendor option not supported";
    }
}
