//! Memory windows (IBA 10.6.7): a key that opens a part of a region, bound and closed by work requests.
//!
//! A window has a slot in the table of every worker from its allocation on. Binding changes only the words inside
//! ([`SeqWords`]), so the worker that carries out the request need not wait for others. A bound window names its region by
//! key, not by address: the region is looked up at each use, so a window on a deregistered region opens nothing.
//!
//! Type 1: bound again and again through any queue pair of the domain, each time with the next key; length 0 closes it.
//! Type 2 (2B): bound through one queue pair, open to that queue pair only; must be invalidated before it is bound again.

use crate::seq::SeqWords;
use crate::table::Peer;
use burst_base::Qpn;
use burst_base::verbs::{MwType, access};

/// The bits of a key that never change; the low byte is the variant.
pub const KEY_BASE: u32 = !0xff;

/// A memory window. Shared by the workers' tables.
#[derive(Debug)]
pub struct Window {
    /// The bits of the key that never change.
    pub base: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Type 1 or 2.
    pub mw_type: MwType,
    words: SeqWords<5>,
}

/// A bind request as the application wrote it; its fields are not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// Any key that the window has had: names the window.
    pub window: u32,
    /// The key that the window gets.
    pub rkey: u32,
    /// Key of the region.
    pub lkey: u32,
    /// First byte, in the region's addresses.
    pub addr: u64,
    /// Length in bytes; 0 closes a window of type 1.
    pub len: u64,
    /// Rights: `base::verbs::access` bits.
    pub access: u32,
}

/// The part of a region that a window opens.
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
    /// Length in bytes.
    pub len: u64,
    /// Rights: `base::verbs::access` bits.
    pub access: u32,
    /// The queue pair to which the window is open (type 2).
    pub qpn: Qpn,
}

/// The key of the region to which a window was bound, if it was.
pub(crate) type FormerRegion = Option<u32>;

impl WindowBinding {
    fn former_region(&self) -> FormerRegion {
        (self.rkey != 0).then_some(self.region)
    }

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
    fn region_addr(&self, addr: u64, len: u32) -> Option<u64> {
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

    /// Whether requests of `by` may use the window.
    fn is_open_to(&self, binding: &WindowBinding, by: Peer) -> bool {
        self.pd == by.pd && (self.mw_type == MwType::One || binding.qpn == by.qpn)
    }

    /// Key of the region, and address in it, for a request of `len` bytes at `addr`; `None` if the window does not open them.
    pub(crate) fn open(&self, by: Peer, rkey: u32, addr: u64, len: u32, access: u32) -> Option<(u32, u64)> {
        let binding = WindowBinding::from_words(self.words.read()?);
        let fits = binding.rkey == rkey && binding.access & access == access && self.is_open_to(&binding, by);
        if !fits {
            return None;
        }
        Some((binding.region, binding.region_addr(addr, len)?))
    }

    /// Binds the window; the caller has checked the region. Returns the region that it was bound to before; `None`: refused.
    pub(crate) fn bind(&self, by: Peer, request: &BindRequest) -> Option<FormerRegion> {
        if self.pd != by.pd || request.rkey & KEY_BASE != self.base || request.rkey == 0 {
            return None;
        }
        self.words.change(|words| {
            let now = WindowBinding::from_words(*words);
            if self.mw_type == MwType::Two && (now.rkey != 0 || request.len == 0) {
                return None;
            }
            let next = if request.len == 0 { WindowBinding::CLOSED } else { WindowBinding::of(request, by.qpn) };
            debug_assert!(
                next.rkey == 0 || next.rkey & KEY_BASE == self.base,
                "a window keeps its place in the tables"
            );
            *words = next.to_words();
            Some(now.former_region())
        })?
    }

    /// Closes a window of type 2 that is bound with this key. Returns its region; `None`: refused.
    pub(crate) fn invalidate(&self, by: Peer, rkey: u32) -> Option<FormerRegion> {
        self.words.change(|words| {
            let now = WindowBinding::from_words(*words);
            let may = self.mw_type == MwType::Two && now.rkey == rkey && self.is_open_to(&now, by);
            may.then(|| {
                *words = WindowBinding::CLOSED.to_words();
                now.former_region()
            })
        })?
    }

    /// Closes a window that ends, in whatever state it is. Returns its region.
    pub(crate) fn close(&self) -> FormerRegion {
        let close = |words: &mut [u64; 5]| {
            let now = WindowBinding::from_words(*words);
            *words = WindowBinding::CLOSED.to_words();
            now.former_region()
        };
        self.words.change(close).flatten()
    }
}
