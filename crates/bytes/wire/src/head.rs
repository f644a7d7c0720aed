//! Builds the head of a packet to send on the stack: BTH and extension headers in the order of the calls.

use crate::aeth::Aeth;
use crate::bth::Bth;
use crate::ext::{AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth};
use crate::opcode::Opcode;
use crate::selective::{Saeth, Seth, Weth};

/// Room for the longest head: BTH 12 + XRCETH 4 + SETH 8 + AtomicETH 28 is 52.
pub const HEAD_MAX: usize = 56;

/// BTH and extension headers. Build it with [`HeadBuf::new`], then add the headers of the opcode in order.
#[derive(Clone, Copy, Debug)]
pub struct HeadBuf {
    bytes: [u8; HEAD_MAX],
    len: u8,
}

macro_rules! adders {
    ($($(#[$doc:meta])* $name:ident: $header:ident;)+) => {
        $($(#[$doc])*
        #[must_use]
        #[inline]
        pub fn $name(mut self, header: $header) -> Self {
            let at = usize::from(self.len);
            header.emit(&mut self.bytes[at..at + $header::LEN]);
            self.len += $header::LEN as u8;
            self
        })+
    };
}

impl HeadBuf {
    /// A head that begins with this BTH.
    #[inline]
    pub fn new(bth: &Bth) -> Self {
        let mut bytes = [0; HEAD_MAX];
        bth.emit(&mut bytes[..Bth::LEN]);
        HeadBuf { bytes, len: Bth::LEN as u8 }
    }
    /// A head of these words, in host order: for the most frequent packets, which are not built header by header.
    #[inline(always)]
    pub fn of_words<const WORDS: usize>(words: [u32; WORDS]) -> Self {
        const { assert!(4 * WORDS <= HEAD_MAX) };
        let mut bytes = [0; HEAD_MAX];
        for (k, word) in words.iter().enumerate() {
            bytes[4 * k..4 * k + 4].copy_from_slice(&word.to_be_bytes());
        }
        HeadBuf { bytes, len: 4 * WORDS as u8 }
    }
    adders! {
        /// Adds a DETH.
        deth: Deth;
        /// Adds an XRCETH.
        xrceth: XrcEth;
        /// Adds a RETH.
        reth: Reth;
        /// Adds an AtomicETH.
        atomic: AtomicEth;
        /// Adds an AETH.
        aeth: Aeth;
        /// Adds an AtomicAckETH.
        atomic_ack: AtomicAckEth;
        /// Adds immediate data.
        imm: ImmDt;
        /// Adds an IETH.
        ieth: Ieth;
        /// Adds a SETH.
        seth: Seth;
        /// Adds a WETH.
        weth: Weth;
        /// Adds a SAETH; its bitmap is payload.
        saeth: Saeth;
    }
    /// The bytes so far. In debug builds, panics unless their length is that of the opcode's headers.
    pub fn as_slice(&self) -> &[u8] {
        debug_assert_eq!(Opcode::from_number(self.bytes[0]).map(Opcode::head_len), Some(usize::from(self.len)));
        &self.bytes[..usize::from(self.len)]
    }
    /// Number of bytes so far.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len as usize
    }
}
