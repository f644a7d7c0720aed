//! The hello: a management datagram by which two Burst daemons tell each other what they can do. `docs/protocol.md` has
//! the bytes.
//!
//! It is a MAD of a vendor class with an OUI (IBA 16.5), on QP1, by the methods Get and GetResp. A peer that does not know the
//! class does not answer. The OUI is the vendor id of Burst.

use crate::bytes::{be16, be24, be32, be64, put, put24};
use crate::mad::{MAD_LEN, MadHeader, MgmtClass};
use core::fmt;

/// Management class of hellos.
pub const HELLO_CLASS: MgmtClass = MgmtClass(0x32);
/// OUI of hellos: "BUR".
pub const HELLO_OUI: u32 = 0x0042_5552;
/// Attribute of hellos.
pub const HELLO_ATTRIBUTE: u16 = 0x0010;
/// Format of the data.
pub const HELLO_VERSION: u8 = 1;
/// Feature: requests of the selective repeat family are accepted on RC queue pairs.
pub const FEATURE_SELECTIVE: u32 = 1 << 0;
/// Feature: requests of the selective repeat family are accepted on XRC queue pairs.
pub const FEATURE_XRC_SELECTIVE: u32 = 1 << 1;
/// Feature: READ responses of the family are acknowledged, and acknowledgements of READ responses are expected.
pub const FEATURE_READ_ACKS: u32 = 1 << 2;
/// Feature: packets of UC that ask for it are answered by receipts.
pub const FEATURE_UC_RECEIPTS: u32 = 1 << 3;

/// Longest text of a congestion control in a hello.
pub const HELLO_CC_MAX: usize = 192;

const OUI_AT: usize = 37;
const DATA_AT: usize = 40;
const CC_AT: usize = DATA_AT + 20;
const _: () = assert!(CC_AT + 2 + HELLO_CC_MAX <= MAD_LEN);

/// The congestion control that a daemon has chosen for Burst daemons.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HelloCc {
    /// Who has chosen it: 0 no one, 1 the configuration, 2 a command to the running daemon.
    pub rank: u8,
    len: u8,
    text: [u8; HELLO_CC_MAX],
}

impl Default for HelloCc {
    fn default() -> HelloCc {
        HelloCc { rank: 0, len: 0, text: [0; HELLO_CC_MAX] }
    }
}

impl fmt::Debug for HelloCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelloCc").field("rank", &self.rank).field("text", &self.text()).finish()
    }
}

impl HelloCc {
    /// A choice, written as in the configuration: `dcqcn:rpg_ai_rate=100M`. One that is longer than [`HELLO_CC_MAX`] bytes is
    /// not sent to peers: the text is empty.
    pub fn new(rank: u8, written: &str) -> HelloCc {
        let mut cc = HelloCc { rank, ..HelloCc::default() };
        if written.len() <= HELLO_CC_MAX {
            cc.len = written.len() as u8;
            put(&mut cc.text, 0, written.as_bytes());
        }
        cc
    }
    /// The choice as written; empty if the sender tells none, or what it sent is no text.
    pub fn text(&self) -> &str {
        self.text.get(..usize::from(self.len)).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or("")
    }
}

/// A hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hello {
    /// Whether it answers a question.
    pub is_answer: bool,
    /// Transaction id; an answer has that of its question.
    pub tid: u64,
    /// Identifies the life of the daemon: another number after each start.
    pub boot_id: u64,
    /// Bits `FEATURE_…`.
    pub features: u32,
    /// PSNs that the receiver of the selective repeat family keeps track of.
    pub window: u32,
    /// Last bytes of a WRITE that are written in their turn.
    pub tail_bytes: u16,
    /// Code of the port's MTU, 1 (256 bytes) to 5 (4096).
    pub mtu: u8,
    /// Its congestion control towards Burst daemons.
    pub cc: HelloCc,
}

impl Hello {
    /// Whether a MAD is one of the class of hellos.
    pub fn is_hello(mad: &[u8; MAD_LEN]) -> bool {
        mad[1] == HELLO_CLASS.0 && be24(mad, OUI_AT) == HELLO_OUI
    }
    /// Reads a MAD of the class. `None` if method, attribute, version or status are others.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Option<Hello> {
        let header = MadHeader::parse(mad)?;
        let is_answer = match header.method {
            MadHeader::METHOD_GET => false,
            MadHeader::METHOD_GET_RESP => true,
            _ => return None,
        };
        let fits = header.attr_id == HELLO_ATTRIBUTE && header.status == 0 && mad[DATA_AT] == HELLO_VERSION;
        let text = mad[CC_AT + 2..].first_chunk::<HELLO_CC_MAX>().filter(|_| fits)?;
        Some(Hello {
            is_answer,
            tid: header.tid,
            mtu: mad[DATA_AT + 1],
            tail_bytes: be16(mad, DATA_AT + 2),
            boot_id: be64(mad, DATA_AT + 4),
            features: be32(mad, DATA_AT + 12),
            window: be32(mad, DATA_AT + 16),
            cc: HelloCc { rank: mad[CC_AT], len: mad[CC_AT + 1], text: *text },
        })
    }
    /// The MAD.
    pub fn to_mad(&self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader {
            base_version: 1,
            mgmt_class: HELLO_CLASS,
            class_version: 1,
            method: if self.is_answer { MadHeader::METHOD_GET_RESP } else { MadHeader::METHOD_GET },
            tid: self.tid,
            attr_id: HELLO_ATTRIBUTE,
            ..MadHeader::default()
        };
        header.emit(&mut mad);
        put24(&mut mad, OUI_AT, HELLO_OUI);
        put(&mut mad, DATA_AT, &[HELLO_VERSION, self.mtu]);
        put(&mut mad, DATA_AT + 2, &self.tail_bytes.to_be_bytes());
        put(&mut mad, DATA_AT + 4, &self.boot_id.to_be_bytes());
        put(&mut mad, DATA_AT + 12, &self.features.to_be_bytes());
        put(&mut mad, DATA_AT + 16, &self.window.to_be_bytes());
        put(&mut mad, CC_AT, &[self.cc.rank, self.cc.len]);
        put(&mut mad, CC_AT + 2, &self.cc.text);
        mad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written_and_others_are_refused() {
        let hello = Hello {
            is_answer: true,
            tid: 0x0102_0304_0506_0708,
            boot_id: 0x1112_1314_1516_1718,
            features: FEATURE_SELECTIVE,
            window: 2048,
            tail_bytes: 64,
            mtu: 5,
            cc: HelloCc::new(1, "dcqcn:rpg_ai_rate=100M"),
        };
        let mad = hello.to_mad();
        assert!(Hello::is_hello(&mad));
        assert_eq!(Hello::parse(&mad), Some(hello));
        assert_eq!(
            (mad[1], mad[3], &mad[8..16], &mad[37..42]),
            (0x32, 0x81, &[1, 2, 3, 4, 5, 6, 7, 8][..], &b"BUR\x01\x05"[..])
        );
        for (at, value) in [(0, 2), (3, 0x02), (5, 1), (17, 1), (DATA_AT, 2)] {
            let mut other = mad;
            other[at] = value;
            assert_eq!(Hello::parse(&other), None, "byte {at}");
        }
        let mut other = mad;
        other[OUI_AT] = 0;
        assert!(!Hello::is_hello(&other));
    }

    #[test]
    fn a_congestion_control_that_is_no_text_or_too_long_is_none() {
        let mut hello = Hello { cc: HelloCc::new(2, "swift"), ..Hello::default() };
        assert_eq!((hello.cc.rank, hello.cc.text()), (2, "swift"));
        let mad = hello.to_mad();
        assert_eq!(&mad[CC_AT..CC_AT + 8], b"\x02\x05swift\0");
        for (at, value, text) in
            [(CC_AT + 1, 255, ""), (CC_AT + 1, 193, ""), (CC_AT + 2, 0xff, ""), (CC_AT + 1, 2, "sw")]
        {
            let mut other = mad;
            other[at] = value;
            assert_eq!(Hello::parse(&other).map(|hello| hello.cc.text().to_owned()), Some(text.to_owned()));
        }
        hello.cc = HelloCc::new(1, &"x".repeat(HELLO_CC_MAX));
        assert_eq!(Hello::parse(&hello.to_mad()).map(|h| h.cc.text().len()), Some(HELLO_CC_MAX));
        assert_eq!(HelloCc::new(1, &"x".repeat(HELLO_CC_MAX + 1)).text(), "");
    }
}
