//! What the receiver of a message learns by its completion.

use burst_base::Qpn;

/// The variable part of a receive completion.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReceivedMessage {
    pub(crate) byte_len: u32,
    /// Immediate data or invalidated key; `wc_flags` says which.
    pub(crate) imm: u32,
    pub(crate) wc_flags: u32,
    pub(crate) src_qpn: Qpn,
    pub(crate) with_write: bool,
    pub(crate) solicited: bool,
    /// Datagrams: code of the IP version ([`crate::responder::datagrams`]).
    pub(crate) sl: u8,
}
