//! The BTH opcodes (IBA table 38, annex A14 for XRC, annex A17 for CNP, and Burst's selective repeat family): one table, from
//! which the enum, the lookups, the names and the header layout are derived.
//!
//! Each row has the offset of each extension header, so that parsing decides by one indexed load per packet. RD, RESYNC, FLUSH
//! and ATOMIC WRITE are not supported. IBA leaves 0xC0 to 0xFF to manufacturers: `0xC0 | low five bits` of an RC opcode is its
//! form in the selective repeat family, `0xE0 | low five bits` that of XRC ([`crate::selective`]). 0xD9 and 0xDA are packets of
//! UC between Burst peers (`docs/protocol.md`, Receipts).

/// Transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification: no transport service, any queue pair.
    Cnp,
    /// Reliable connection, selective repeat.
    RcSr,
    /// Extended reliable connection, selective repeat.
    XrcSr,
}

impl Service {
    /// Whether it is Burst's own family between Burst peers.
    pub const fn is_selective(self) -> bool {
        matches!(self, Service::RcSr | Service::XrcSr)
    }
}

/// Operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// SEND, any variant.
    Send,
    /// RDMA WRITE, any variant.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge (ACK, NAK, RNR NAK); of UC, a receipt.
    Ack,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
    /// Atomic acknowledge.
    AtomicAck,
    /// Congestion notification packet.
    Cnp,
    /// Selective repeat: the requester acknowledges READ responses.
    ReadAck,
    /// Selective repeat and UC: the requester asks for an acknowledgement and sends nothing else.
    Probe,
}

impl OpKind {
    /// Whether it is a request, which a responder executes.
    pub const fn is_request(self) -> bool {
        matches!(self, OpKind::Send | OpKind::Write | OpKind::ReadRequest | OpKind::CmpSwap | OpKind::FetchAdd)
    }
    /// Whether a requester receives it.
    pub const fn is_response(self) -> bool {
        matches!(self, OpKind::ReadResponse | OpKind::Ack | OpKind::AtomicAck)
    }
    /// Whether it is an atomic request.
    pub const fn is_atomic(self) -> bool {
        matches!(self, OpKind::CmpSwap | OpKind::FetchAdd)
    }
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet.
    Only,
}

impl Position {
    /// Whether it begins a message.
    pub const fn is_start(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }
    /// Whether it ends a message.
    pub const fn is_end(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// What is to be checked of a packet beside its lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Check {
    /// Nothing: the most frequent packets.
    Nothing,
    /// That no payload follows.
    Empty,
    /// Selective repeat: the headers of a SEND of RC.
    Send,
    /// Selective repeat: the headers of a WRITE of RC.
    Write,
    /// Selective repeat: the headers of an acknowledgement.
    Ack,
    /// Selective repeat: other headers, those of XRC, and that no payload follows where none may. Receipts of UC.
    Other,
}

/// One row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Name in the style of the specification.
    pub name: &'static str,
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub kind: OpKind,
    /// Place in the message.
    pub position: Position,
    /// Whether payload may follow the headers. The bitmap of an acknowledgement counts as payload.
    pub has_payload: bool,
    /// What is to be checked beside the lengths.
    pub(crate) check: Check,
    /// Whether `position` begins a message.
    pub(crate) is_start: bool,
    /// Whether immediate data is carried.
    pub has_imm: bool,
    /// Whether an rkey to invalidate is carried.
    pub has_inv: bool,
    /// Bytes of BTH and extension headers.
    pub head_len: u8,
    /// Offset of each extension header, by `Ext` number; 0 if absent.
    at: [u8; EXT_COUNT],
}

/// Extension headers.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Ext {
    Deth,
    Xrc,
    Reth,
    Atomic,
    Aeth,
    AtomicAck,
    Imm,
    Ieth,
    Seth,
    Weth,
    Saeth,
}
const EXT_COUNT: usize = 11;
/// Bytes of each extension header.
const EXT_LEN: [u8; EXT_COUNT] = [8, 4, 16, 28, 4, 8, 4, 4, 8, 12, 12];
const BTH_LEN: u8 = 12;

impl OpcodeInfo {
    /// Offset of an extension header, 0 if absent.
    pub(crate) const fn offset(&self, ext: Ext) -> usize {
        self.at[ext as usize] as usize
    }
    const fn new(
        (opcode, name): (Opcode, &'static str),
        (service, kind, position): (Service, OpKind, Position),
        has_payload: bool,
        exts: &[Ext],
    ) -> Self {
        let mut at = [0; EXT_COUNT];
        let mut head_len = BTH_LEN;
        let mut i = 0;
        while i < exts.len() {
            let ext = exts[i] as usize;
            at[ext] = head_len;
            head_len += EXT_LEN[ext];
            i += 1;
        }
        let (has_imm, has_inv) = (at[Ext::Imm as usize] != 0, at[Ext::Ieth as usize] != 0);
        let check = match (service, kind) {
            (Service::RcSr, OpKind::Send) => Check::Send,
            (Service::RcSr, OpKind::Write) => Check::Write,
            (Service::RcSr | Service::XrcSr, OpKind::Ack) => Check::Ack,
            (Service::RcSr | Service::XrcSr, _) | (Service::Uc, OpKind::Ack) => Check::Other,
            _ if has_payload => Check::Nothing,
            _ => Check::Empty,
        };
        let is_start = position.is_start();
        OpcodeInfo {
            opcode,
            name,
            service,
            kind,
            position,
            has_payload,
            check,
            is_start,
            has_imm,
            has_inv,
            head_len,
            at,
        }
    }
}

macro_rules! opcodes {
    ($($number:literal $name:ident $text:literal, $service:ident $kind:ident $position:ident, $payload:literal, [$($ext:ident)*];)+) => {
        /// BTH opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode { $(#[doc = $text] $name = $number),+ }

        impl Opcode {
            /// Every opcode, in numeric order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),+];
        }

        /// Rows of the table by opcode number.
        static TABLE: [Option<OpcodeInfo>; 256] = {
            let mut table = [None; 256];
            $(table[$number] = Some(OpcodeInfo::new(
                (Opcode::$name, $text),
                (Service::$service, OpKind::$kind, Position::$position),
                $payload == 1,
                &[$(Ext::$ext),*],
            ));)+
            table
        };
    };
}

opcodes! {
    // number, variant, name, service, kind, position, payload, extension headers in order
    0x00 RcSendFirst "RC SEND First", Rc Send First, 1, [];
    0x01 RcSendMiddle "RC SEND Middle", Rc Send Middle, 1, [];
    0x02 RcSendLast "RC SEND Last", Rc Send Last, 1, [];
    0x03 RcSendLastImm "RC SEND Last with Immediate", Rc Send Last, 1, [Imm];
    0x04 RcSendOnly "RC SEND Only", Rc Send Only, 1, [];
    0x05 RcSendOnlyImm "RC SEND Only with Immediate", Rc Send Only, 1, [Imm];
    0x06 RcWriteFirst "RC RDMA WRITE First", Rc Write First, 1, [Reth];
    0x07 RcWriteMiddle "RC RDMA WRITE Middle", Rc Write Middle, 1, [];
    0x08 RcWriteLast "RC RDMA WRITE Last", Rc Write Last, 1, [];
    0x09 RcWriteLastImm "RC RDMA WRITE Last with Immediate", Rc Write Last, 1, [Imm];
    0x0a RcWriteOnly "RC RDMA WRITE Only", Rc Write Only, 1, [Reth];
    0x0b RcWriteOnlyImm "RC RDMA WRITE Only with Immediate", Rc Write Only, 1, [Reth Imm];
    0x0c RcReadRequest "RC RDMA READ Request", Rc ReadRequest Only, 0, [Reth];
    0x0d RcReadResponseFirst "RC RDMA READ Response First", Rc ReadResponse First, 1, [Aeth];
    0x0e RcReadResponseMiddle "RC RDMA READ Response Middle", Rc ReadResponse Middle, 1, [];
    0x0f RcReadResponseLast "RC RDMA READ Response Last", Rc ReadResponse Last, 1, [Aeth];
    0x10 RcReadResponseOnly "RC RDMA READ Response Only", Rc ReadResponse Only, 1, [Aeth];
    0x11 RcAck "RC Acknowledge", Rc Ack Only, 0, [Aeth];
    0x12 RcAtomicAck "RC ATOMIC Acknowledge", Rc AtomicAck Only, 0, [Aeth AtomicAck];
    0x13 RcCmpSwap "RC CmpSwap", Rc CmpSwap Only, 0, [Atomic];
    0x14 RcFetchAdd "RC FetchAdd", Rc FetchAdd Only, 0, [Atomic];
    0x16 RcSendLastInv "RC SEND Last with Invalidate", Rc Send Last, 1, [Ieth];
    0x17 RcSendOnlyInv "RC SEND Only with Invalidate", Rc Send Only, 1, [Ieth];

    0x20 UcSendFirst "UC SEND First", Uc Send First, 1, [];
    0x21 UcSendMiddle "UC SEND Middle", Uc Send Middle, 1, [];
    0x22 UcSendLast "UC SEND Last", Uc Send Last, 1, [];
    0x23 UcSendLastImm "UC SEND Last with Immediate", Uc Send Last, 1, [Imm];
    0x24 UcSendOnly "UC SEND Only", Uc Send Only, 1, [];
    0x25 UcSendOnlyImm "UC SEND Only with Immediate", Uc Send Only, 1, [Imm];
    0x26 UcWriteFirst "UC RDMA WRITE First", Uc Write First, 1, [Reth];
    0x27 UcWriteMiddle "UC RDMA WRITE Middle", Uc Write Middle, 1, [];
    0x28 UcWriteLast "UC RDMA WRITE Last", Uc Write Last, 1, [];
    0x29 UcWriteLastImm "UC RDMA WRITE Last with Immediate", Uc Write Last, 1, [Imm];
    0x2a UcWriteOnly "UC RDMA WRITE Only", Uc Write Only, 1, [Reth];
    0x2b UcWriteOnlyImm "UC RDMA WRITE Only with Immediate", Uc Write Only, 1, [Reth Imm];

    0x64 UdSendOnly "UD SEND Only", Ud Send Only, 1, [Deth];
    0x65 UdSendOnlyImm "UD SEND Only with Immediate", Ud Send Only, 1, [Deth Imm];

    0x81 Cnp "CNP", Cnp Cnp Only, 1, [];

    0xa0 XrcSendFirst "XRC SEND First", Xrc Send First, 1, [Xrc];
    0xa1 XrcSendMiddle "XRC SEND Middle", Xrc Send Middle, 1, [Xrc];
    0xa2 XrcSendLast "XRC SEND Last", Xrc Send Last, 1, [Xrc];
    0xa3 XrcSendLastImm "XRC SEND Last with Immediate", Xrc Send Last, 1, [Xrc Imm];
    0xa4 XrcSendOnly "XRC SEND Only", Xrc Send Only, 1, [Xrc];
    0xa5 XrcSendOnlyImm "XRC SEND Only with Immediate", Xrc Send Only, 1, [Xrc Imm];
    0xa6 XrcWriteFirst "XRC RDMA WRITE First", Xrc Write First, 1, [Xrc Reth];
    0xa7 XrcWriteMiddle "XRC RDMA WRITE Middle", Xrc Write Middle, 1, [Xrc];
    0xa8 XrcWriteLast "XRC RDMA WRITE Last", Xrc Write Last, 1, [Xrc];
    0xa9 XrcWriteLastImm "XRC RDMA WRITE Last with Immediate", Xrc Write Last, 1, [Xrc Imm];
    0xaa XrcWriteOnly "XRC RDMA WRITE Only", Xrc Write Only, 1, [Xrc Reth];
    0xab XrcWriteOnlyImm "XRC RDMA WRITE Only with Immediate", Xrc Write Only, 1, [Xrc Reth Imm];
    0xac XrcReadRequest "XRC RDMA READ Request", Xrc ReadRequest Only, 0, [Xrc Reth];
    0xad XrcReadResponseFirst "XRC RDMA READ Response First", Xrc ReadResponse First, 1, [Aeth];
    0xae XrcReadResponseMiddle "XRC RDMA READ Response Middle", Xrc ReadResponse Middle, 1, [];
    0xaf XrcReadResponseLast "XRC RDMA READ Response Last", Xrc ReadResponse Last, 1, [Aeth];
    0xb0 XrcReadResponseOnly "XRC RDMA READ Response Only", Xrc ReadResponse Only, 1, [Aeth];
    0xb1 XrcAck "XRC Acknowledge", Xrc Ack Only, 0, [Aeth];
    0xb2 XrcAtomicAck "XRC ATOMIC Acknowledge", Xrc AtomicAck Only, 0, [Aeth AtomicAck];
    0xb3 XrcCmpSwap "XRC CmpSwap", Xrc CmpSwap Only, 0, [Xrc Atomic];
    0xb4 XrcFetchAdd "XRC FetchAdd", Xrc FetchAdd Only, 0, [Xrc Atomic];
    0xb6 XrcSendLastInv "XRC SEND Last with Invalidate", Xrc Send Last, 1, [Xrc Ieth];
    0xb7 XrcSendOnlyInv "XRC SEND Only with Invalidate", Xrc Send Only, 1, [Xrc Ieth];

    0xc0 RcSrSendFirst "RC-SR SEND First", RcSr Send First, 1, [Seth];
    0xc1 RcSrSendMiddle "RC-SR SEND Middle", RcSr Send Middle, 1, [Seth];
    0xc2 RcSrSendLast "RC-SR SEND Last", RcSr Send Last, 1, [Seth];
    0xc3 RcSrSendLastImm "RC-SR SEND Last with Immediate", RcSr Send Last, 1, [Seth Imm];
    0xc4 RcSrSendOnly "RC-SR SEND Only", RcSr Send Only, 1, [Seth];
    0xc5 RcSrSendOnlyImm "RC-SR SEND Only with Immediate", RcSr Send Only, 1, [Seth Imm];
    0xc6 RcSrWriteFirst "RC-SR RDMA WRITE First", RcSr Write First, 1, [Seth Weth];
    0xc7 RcSrWriteMiddle "RC-SR RDMA WRITE Middle", RcSr Write Middle, 1, [Seth Weth];
    0xc8 RcSrWriteLast "RC-SR RDMA WRITE Last", RcSr Write Last, 1, [Seth Weth];
    0xc9 RcSrWriteLastImm "RC-SR RDMA WRITE Last with Immediate", RcSr Write Last, 1, [Seth Weth Imm];
    0xca RcSrWriteOnly "RC-SR RDMA WRITE Only", RcSr Write Only, 1, [Seth Weth];
    0xcb RcSrWriteOnlyImm "RC-SR RDMA WRITE Only with Immediate", RcSr Write Only, 1, [Seth Weth Imm];
    0xcc RcSrReadRequest "RC-SR RDMA READ Request", RcSr ReadRequest Only, 0, [Seth Reth];
    0xcd RcSrReadResponseFirst "RC-SR RDMA READ Response First", RcSr ReadResponse First, 1, [Seth];
    0xce RcSrReadResponseMiddle "RC-SR RDMA READ Response Middle", RcSr ReadResponse Middle, 1, [Seth];
    0xcf RcSrReadResponseLast "RC-SR RDMA READ Response Last", RcSr ReadResponse Last, 1, [Seth];
    0xd0 RcSrReadResponseOnly "RC-SR RDMA READ Response Only", RcSr ReadResponse Only, 1, [Seth];
    0xd1 RcSrAck "RC-SR Acknowledge", RcSr Ack Only, 1, [Aeth Saeth];
    0xd2 RcSrAtomicAck "RC-SR ATOMIC Acknowledge", RcSr AtomicAck Only, 0, [Seth Aeth AtomicAck];
    0xd3 RcSrCmpSwap "RC-SR CmpSwap", RcSr CmpSwap Only, 0, [Seth Atomic];
    0xd4 RcSrFetchAdd "RC-SR FetchAdd", RcSr FetchAdd Only, 0, [Seth Atomic];
    0xd5 RcSrReadAck "RC-SR RDMA READ Acknowledge", RcSr ReadAck Only, 0, [Saeth];
    0xd6 RcSrSendLastInv "RC-SR SEND Last with Invalidate", RcSr Send Last, 1, [Seth Ieth];
    0xd7 RcSrSendOnlyInv "RC-SR SEND Only with Invalidate", RcSr Send Only, 1, [Seth Ieth];
    0xd8 RcSrProbe "RC-SR Probe", RcSr Probe Only, 0, [Seth];
    0xd9 UcReceipt "UC Receipt", Uc Ack Only, 0, [Aeth Saeth];
    0xda UcProbe "UC Probe", Uc Probe Only, 0, [];

    0xe0 XrcSrSendFirst "XRC-SR SEND First", XrcSr Send First, 1, [Xrc Seth];
    0xe1 XrcSrSendMiddle "XRC-SR SEND Middle", XrcSr Send Middle, 1, [Xrc Seth];
    0xe2 XrcSrSendLast "XRC-SR SEND Last", XrcSr Send Last, 1, [Xrc Seth];
    0xe3 XrcSrSendLastImm "XRC-SR SEND Last with Immediate", XrcSr Send Last, 1, [Xrc Seth Imm];
    0xe4 XrcSrSendOnly "XRC-SR SEND Only", XrcSr Send Only, 1, [Xrc Seth];
    0xe5 XrcSrSendOnlyImm "XRC-SR SEND Only with Immediate", XrcSr Send Only, 1, [Xrc Seth Imm];
    0xe6 XrcSrWriteFirst "XRC-SR RDMA WRITE First", XrcSr Write First, 1, [Xrc Seth Weth];
    0xe7 XrcSrWriteMiddle "XRC-SR RDMA WRITE Middle", XrcSr Write Middle, 1, [Xrc Seth Weth];
    0xe8 XrcSrWriteLast "XRC-SR RDMA WRITE Last", XrcSr Write Last, 1, [Xrc Seth Weth];
    0xe9 XrcSrWriteLastImm "XRC-SR RDMA WRITE Last with Immediate", XrcSr Write Last, 1, [Xrc Seth Weth Imm];
    0xea XrcSrWriteOnly "XRC-SR RDMA WRITE Only", XrcSr Write Only, 1, [Xrc Seth Weth];
    0xeb XrcSrWriteOnlyImm "XRC-SR RDMA WRITE Only with Immediate", XrcSr Write Only, 1, [Xrc Seth Weth Imm];
    0xec XrcSrReadRequest "XRC-SR RDMA READ Request", XrcSr ReadRequest Only, 0, [Xrc Seth Reth];
    0xed XrcSrReadResponseFirst "XRC-SR RDMA READ Response First", XrcSr ReadResponse First, 1, [Seth];
    0xee XrcSrReadResponseMiddle "XRC-SR RDMA READ Response Middle", XrcSr ReadResponse Middle, 1, [Seth];
    0xef XrcSrReadResponseLast "XRC-SR RDMA READ Response Last", XrcSr ReadResponse Last, 1, [Seth];
    0xf0 XrcSrReadResponseOnly "XRC-SR RDMA READ Response Only", XrcSr ReadResponse Only, 1, [Seth];
    0xf1 XrcSrAck "XRC-SR Acknowledge", XrcSr Ack Only, 1, [Aeth Saeth];
    0xf2 XrcSrAtomicAck "XRC-SR ATOMIC Acknowledge", XrcSr AtomicAck Only, 0, [Seth Aeth AtomicAck];
    0xf3 XrcSrCmpSwap "XRC-SR CmpSwap", XrcSr CmpSwap Only, 0, [Xrc Seth Atomic];
    0xf4 XrcSrFetchAdd "XRC-SR FetchAdd", XrcSr FetchAdd Only, 0, [Xrc Seth Atomic];
    0xf5 XrcSrReadAck "XRC-SR RDMA READ Acknowledge", XrcSr ReadAck Only, 0, [Saeth];
    0xf6 XrcSrSendLastInv "XRC-SR SEND Last with Invalidate", XrcSr Send Last, 1, [Xrc Seth Ieth];
    0xf7 XrcSrSendOnlyInv "XRC-SR SEND Only with Invalidate", XrcSr Send Only, 1, [Xrc Seth Ieth];
    0xf8 XrcSrProbe "XRC-SR Probe", XrcSr Probe Only, 0, [Seth];
}

/// In place of `unreachable!` for a number that is an `Opcode` by construction.
static NO_INFO: OpcodeInfo =
    OpcodeInfo::new((Opcode::RcSendMiddle, "unassigned"), (Service::Rc, OpKind::Send, Position::Middle), true, &[]);

impl Opcode {
    /// The opcode with this number, if IBA defines it and Burst supports it, or if it is one of the selective repeat family.
    pub const fn from_number(number: u8) -> Option<Opcode> {
        match Self::lookup(number) {
            Some(info) => Some(info.opcode),
            None => None,
        }
    }
    /// Number of the opcode.
    pub const fn number(self) -> u8 {
        self as u8
    }
    /// Row of the opcode in the table.
    pub const fn info(self) -> &'static OpcodeInfo {
        match Self::lookup(self as u8) {
            Some(info) => info,
            None => &NO_INFO,
        }
    }
    /// The row of this number.
    pub const fn lookup(number: u8) -> Option<&'static OpcodeInfo> {
        TABLE[number as usize].as_ref()
    }
    /// Name in the style of the specification.
    pub const fn name(self) -> &'static str {
        self.info().name
    }
    /// Transport service.
    pub const fn service(self) -> Service {
        self.info().service
    }
    /// Operation.
    pub const fn kind(self) -> OpKind {
        self.info().kind
    }
    /// Place in the message.
    pub const fn position(self) -> Position {
        self.info().position
    }
    /// Bytes of BTH and extension headers.
    pub const fn head_len(self) -> usize {
        self.info().head_len as usize
    }
}

impl core::fmt::Display for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
