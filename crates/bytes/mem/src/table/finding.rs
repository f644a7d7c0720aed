//! Why a key did not give memory, in one word: looked for when a queue pair has failed, because the check itself says only no.

use super::{KeyEntry, MrTable, Peer};
use crate::window::KEY_BASE;
use burst_base::Rkey;

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFinding {
    /// No region or window has the key: it was never given out, or its region was deregistered.
    Unknown,
    /// The region belongs to another protection domain than the queue pair.
    OtherDomain,
    /// The region was registered without these rights (`base::verbs::access`).
    MissingRight(u32),
    /// The range lies outside the region, which begins at `iova` and has `len` bytes.
    OutOfRange {
        /// First address.
        iova: u64,
        /// Bytes.
        len: u64,
    },
    /// A memory window, which is closed, is another queue pair's, or does not allow this.
    Window,
    /// Nothing now.
    Nothing,
}

impl MrTable {
    /// What is wrong with a range that a peer has named.
    #[cold]
    pub fn explain_remote(&self, by: Peer, named: (Rkey, u64, u32), access: u32) -> KeyFinding {
        let (rkey, addr, len) = named;
        let region = match self.slots.get(self.cipher.index(rkey.0)) {
            Some(Some(KeyEntry::Region(region))) if region.key == rkey.0 => region,
            Some(Some(KeyEntry::Window(window))) if window.base == rkey.0 & KEY_BASE => {
                return match self.remote(by, rkey, addr, len, access) {
                    Ok(_) => KeyFinding::Nothing,
                    Err(_) => KeyFinding::Window,
                };
            }
            _ => return KeyFinding::Unknown,
        };
        let missing = access & !region.access;
        if region.pd != by.pd {
            KeyFinding::OtherDomain
        } else if missing != 0 {
            KeyFinding::MissingRight(missing)
        } else if !region.contains(addr, len.into()) {
            KeyFinding::OutOfRange { iova: region.iova, len: region.len }
        } else {
            KeyFinding::Nothing
        }
    }
}
