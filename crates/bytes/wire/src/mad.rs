//! The common header of management datagrams (IBA 13.4.2), the 256 bytes that are sent on QP0 and QP1.
//! The management class defines the rest.

use crate::bytes::{be16, be32, be64, put};

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;

/// Management class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Communication management.
    pub const CM: MgmtClass = MgmtClass(0x07);
}

/// Common MAD header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MadHeader {
    /// Base version, 1.
    pub base_version: u8,
    /// Management class.
    pub mgmt_class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// Method; bit 7 marks a response. See the `METHOD_` constants.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Class specific.
    pub class_specific: u16,
    /// Transaction id.
    pub tid: u64,
    /// Attribute id.
    pub attr_id: u16,
    /// Attribute modifier.
    pub attr_mod: u32,
}

impl MadHeader {
    /// Length in bytes.
    pub const LEN: usize = 24;
    /// Get.
    pub const METHOD_GET: u8 = 0x01;
    /// Send: the method of all CM messages.
    pub const METHOD_SEND: u8 = 0x03;
    /// Response to Get or Set.
    pub const METHOD_GET_RESP: u8 = 0x81;

    /// Reads the header of a whole MAD: `None` unless there are [`MAD_LEN`] bytes and the base version is 1.
    pub fn parse(bytes: &[u8]) -> Option<MadHeader> {
        let b = bytes.first_chunk::<MAD_LEN>()?;
        (b[0] == 1).then(|| MadHeader {
            base_version: b[0],
            mgmt_class: MgmtClass(b[1]),
            class_version: b[2],
            method: b[3],
            status: be16(b, 4),
            class_specific: be16(b, 6),
            tid: be64(b, 8),
            attr_id: be16(b, 16),
            attr_mod: be32(b, 20),
        })
    }
    /// Writes the first [`MadHeader::LEN`] bytes.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, &[self.base_version, self.mgmt_class.0, self.class_version, self.method]);
        put(out, 4, &self.status.to_be_bytes());
        put(out, 6, &self.class_specific.to_be_bytes());
        put(out, 8, &self.tid.to_be_bytes());
        put(out, 16, &self.attr_id.to_be_bytes());
        put(out, 18, &[0, 0]);
        put(out, 20, &self.attr_mod.to_be_bytes());
    }
}
