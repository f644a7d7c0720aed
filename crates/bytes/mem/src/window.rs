//! Memory windows (IBA 10.6.7): a key that opens a part of a region, bound and closed by work requests.
//!
//! A window has a place in every worker's table from its allocation on; binding changes only the words inside
//! ([`SeqWords`]), so that the worker that carries out the request needs nobody's help. A bound window names its region by
//! key, not by address: the region is looked up at each use, and a region that was deregistered closes the window by being
//! gone.
//!
//! Type 1: bound again and again through any queue pair of the domain, each time with the next key; length 0 closes it.
//! Type 2 (2B): bound through one queue pair, obeys only that one, and must be invalidated before it is bound again.

use crate::seq::SeqWords;
use crate::table::Peer;
use burst_base::Qpn;
use burst_base::verbs::{MwType, access};

/// The bits of a key that never change; the low byte is the variant.
pub const KEY_BASE: u32 = !0xff;

/// A memory window. Shared by the workers' tables.
#[derive(Debug)]
pub struct Window {
    /// The key's bits that never change.
    pub base: u32,
    /// Protection domain.
    pub pd: u32,
    /// Kind.
    pub mw_type: MwType,
    words: SeqWords<5>,
}

/// What a bind request asks for, as the application wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// Any key that the window has had.
    pub window: u32,
    /// The key that it shall have.
    pub rkey: u32,
    /// Region.
    pub lkey: u32,
    /// First byte, in the region's addresses.
    pub addr: u64,
    /// Bytes; 0 closes a window of type 1.
    pub len: u64,
    /// `base::verbs::access` bits.
    pub access: u32,
}

/// What a window opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBinding {
    /// Key that peers use; 0: closed.
    pub rkey: u32,
    /// Key of the region.
    pub region: u32,
    /// Address that peers use for the first byte.
    pub iova: u64,
    /// First byte, in the region's addresses.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    pub access: u32,
    /// The queue pair that it obeys (type 2).
    pub qpn: Qpn,
}

impl WindowBinding {
    const CLOSED: WindowBinding =
        WindowBinding { rkey: 0, region: 0, iova: 0, addr: 0, len: 0, access: 0, qpn: Qpn::new(0) };

    fn of(request: &BindRequest, qpn: Qpn) -> WindowBinding {
        let &BindRequest { rkey, lkey, addr, len, access, .. } = request;
        let iova = if access & access::ZERO_BASED != 0 { 0 } else { addr };
        WindowBinding { rkey, region: lkey, iova, addr, len, access, qpn }
    }

    fn to_words(self) -> [u64; 5] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [pair(self.rkey, self.region), self.iova, self.addr, self.len, pair(self.access, self.qpn.get())]
    }

    fn from_words(w: [u64; 5]) -> WindowBinding {
        let (high, low) = (|x: u64| (x >> 32) as u32, |x: u64| x as u32);
        WindowBinding {
            rkey: high(w[0]),
            region: low(w[0]),
            iova: w[1],
            addr: w[2],
            len: w[3],
            access: high(w[4]),
            qpn: Qpn::new(low(w[4])),
        }
    }

    /// The address in the region of `len` bytes at `addr`, if they are all inside.
    fn place(&self, addr: u64, len: u32) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let fits = offset <= self.len && u64::from(len) <= self.len - offset;
        fits.then(|| self.addr.wrapping_add(offset))
    }
}

impl Window {
    /// A closed window with this key, whose low byte does not matter.
    pub fn new(key: u32, pd: u32, mw_type: MwType) -> Window {
        Window { base: key & KEY_BASE, pd, mw_type, words: SeqWords::default() }
    }

    fn obeys(&self, binding: &WindowBinding, by: Peer) -> bool {
        self.pd == by.pd && (self.mw_type == MwType::One || binding.qpn == by.qpn)
    }

    /// Where a peer's request of `len` bytes at `addr` leads: key of the region and address in it.
    pub(crate) fn open(&self, by: Peer, rkey: u32, addr: u64, len: u32, access: u32) -> Option<(u32, u64)> {
        let binding = WindowBinding::from_words(self.words.read()?);
        let fits = binding.rkey == rkey && binding.access & access == access && self.obeys(&binding, by);
        if !fits {
            return None;
        }
        Some((binding.region, binding.place(addr, len)?))
    }

    /// Binds it; the region has been checked. False: refused.
    pub(crate) fn bind(&self, by: Peer, request: &BindRequest) -> bool {
        if self.pd != by.pd || request.rkey & KEY_BASE != self.base || request.rkey == 0 {
            return false;
        }
        let bound = self.words.change(|words| {
            let now = WindowBinding::from_words(*words);
            if self.mw_type == MwType::Two && (now.rkey != 0 || request.len == 0) {
                return false;
            }
            let next = if request.len == 0 { WindowBinding::CLOSED } else { WindowBinding::of(request, by.qpn) };
            *words = next.to_words();
            true
        });
        bound == Some(true)
    }

    /// Closes a window of type 2 that is bound with this key. False: refused.
    pub(crate) fn invalidate(&self, by: Peer, rkey: u32) -> bool {
        let closed = self.words.change(|words| {
            let now = WindowBinding::from_words(*words);
            let may = self.mw_type == MwType::Two && now.rkey == rkey && self.obeys(&now, by);
            if may {
                *words = WindowBinding::CLOSED.to_words();
            }
            may
        });
        closed == Some(true)
    }
}
