//! The receiving half of a channel: which PSNs have arrived, and what the next acknowledgement says.
//!
//! A packet is delivered once, whenever it arrives; packets say where their payload belongs, so that none waits for an
//! earlier one here. With go-back-N only the expected PSN is accepted. Acknowledgements do not pass a *withheld* PSN: the
//! last packet of a ROL request that is not executed yet, because there a transport acknowledgement is the transaction's,
//! too.

use crate::pool::PoolRef;
use burst_base::Psn;
use burst_ubwire::{Atah, Rtph, SACK_WORDS_MAX, Saetph, TaHeader};

/// PSNs from the first unacknowledged one on that are accepted.
pub(crate) const RX_WINDOW: u32 = 1024;
const WORDS: usize = RX_WINDOW as usize / 64;
/// Withheld PSNs at most. Each is released a round trip later.
pub(crate) const WITHHELD_MAX: usize = 128;

/// Why a PSN is withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    /// The request waits.
    Waiting,
    /// It was refused, or its answer was deferred, and this response is not acknowledged yet.
    Refused(PoolRef),
}

/// What a PSN is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PsnVerdict {
    /// Not seen yet, and the expected one.
    Expected,
    /// Not seen yet, behind a gap.
    Early,
    /// Seen before.
    Duplicate,
    /// Neither seen before nor within the window.
    Outside,
}

/// What an acknowledgement has to say of packets of data that follow each other.
pub(crate) struct DeliveredPackets {
    /// The first one's number.
    pub(crate) psn: Psn,
    pub(crate) count: u8,
    /// One of them asks for an acknowledgement.
    pub(crate) ack_req: bool,
    /// It is an answer that acknowledges packets itself.
    pub(crate) is_carrier: bool,
}

impl DeliveredPackets {
    pub(crate) fn one(rtph: &Rtph, ta: Option<&TaHeader>) -> DeliveredPackets {
        // The acknowledgement of such an answer may wait: no request waits for it. Other answers without payload may ask whether
        // this end is alive.
        let is_carrier = matches!(ta, Some(TaHeader::Response(Atah { acknowledges: true, .. })));
        DeliveredPackets { psn: rtph.psn, count: 1, ack_req: rtph.ack_req, is_carrier }
    }
}

/// Arrived PSNs.
#[derive(Debug)]
pub(crate) struct RxWindow {
    expected: Psn,
    greatest: Psn,
    /// Bit `psn % RX_WINDOW` of each PSN in the window that has arrived.
    bits: [u64; WORDS],
    withheld: Vec<(Psn, Withheld)>,
}

impl RxWindow {
    pub(crate) const fn new(first: Psn) -> Self {
        RxWindow { expected: first, greatest: first.prev(), bits: [0; WORDS], withheld: Vec::new() }
    }
    pub(crate) const fn expected(&self) -> Psn {
        self.expected
    }
    /// First PSN that acknowledgements do not cover.
    pub(crate) fn base(&self) -> Psn {
        self.withheld
            .iter()
            .map(|w| w.0)
            .fold(self.expected, |least, psn| if psn.is_before(least) { psn } else { least })
    }
    const fn place(psn: Psn) -> (usize, u64) {
        let at = psn.get() % RX_WINDOW;
        (at as usize / 64, 1 << (at % 64))
    }
    pub(crate) fn judge(&self, psn: Psn) -> PsnVerdict {
        if psn == self.expected {
            return if psn.is_within(self.base(), RX_WINDOW) { PsnVerdict::Expected } else { PsnVerdict::Outside };
        }
        if psn.is_before(self.expected) {
            return PsnVerdict::Duplicate;
        }
        if !psn.is_within(self.base(), RX_WINDOW) {
            return PsnVerdict::Outside;
        }
        let (word, bit) = Self::place(psn);
        if self.bits[word] & bit != 0 { PsnVerdict::Duplicate } else { PsnVerdict::Early }
    }
    /// A packet that was judged as expected or early has been delivered.
    pub(crate) fn received(&mut self, psn: Psn) {
        debug_assert!(!psn.is_before(self.expected), "a packet is delivered twice");
        debug_assert!(psn.is_within(self.expected, RX_WINDOW), "a packet outside of the window is delivered");
        if psn.is_after(self.greatest) {
            self.greatest = psn;
        }
        if psn == self.expected {
            self.expected = psn.next();
        } else {
            let (word, bit) = Self::place(psn);
            self.bits[word] |= bit;
        }
        while self.has_gap() {
            let (word, bit) = Self::place(self.expected);
            if self.bits[word] & bit == 0 {
                break;
            }
            self.bits[word] &= !bit;
            self.expected = self.expected.next();
        }
    }
    /// So many packets from the expected one on have been delivered, and none behind them has arrived.
    pub(crate) fn received_run(&mut self, first: Psn, count: u32) {
        debug_assert!(first == self.expected && !self.has_gap());
        debug_assert!(count > 0 && self.withheld.iter().all(|w| w.0.is_before(first)), "a run of packets that wait");
        (self.greatest, self.expected) = (first.add(count - 1), first.add(count));
    }
    /// Whether packets before the greatest PSN are missing.
    pub(crate) fn has_gap(&self) -> bool {
        self.expected != self.greatest.next()
    }
    /// The greatest PSN, if an acknowledgement of it says everything.
    pub(crate) fn all_arrived(&self) -> Option<Psn> {
        (self.withheld.is_empty() && !self.has_gap()).then(|| self.expected.prev())
    }
    pub(crate) fn can_withhold(&self) -> bool {
        self.withheld.len() < WITHHELD_MAX
    }
    /// A PSN that is being delivered is not acknowledged yet. One that acknowledgements have covered cannot be withheld any more.
    pub(crate) fn withhold(&mut self, psn: Psn) {
        debug_assert!(self.can_withhold());
        if !psn.is_before(self.expected) && self.withheld.iter().all(|w| w.0 != psn) {
            self.withheld.push((psn, Withheld::Waiting));
        }
    }
    /// The request of a withheld PSN was executed.
    pub(crate) fn release(&mut self, psn: Psn) {
        self.withheld.retain(|w| w.0 != psn);
    }
    /// The request was refused by this response.
    pub(crate) fn refuse(&mut self, psn: Psn, response: PoolRef) {
        for w in &mut self.withheld {
            if w.0 == psn {
                w.1 = Withheld::Refused(response);
            }
        }
    }
    /// The peer has a response: whether a PSN was released.
    pub(crate) fn response_arrived(&mut self, response: PoolRef) -> bool {
        let before = self.withheld.len();
        self.withheld.retain(|w| w.1 != Withheld::Refused(response));
        self.withheld.len() != before
    }
    /// The bitmap of a selective acknowledgement; `None` if nothing behind the base has arrived.
    pub(crate) fn sack(&self) -> Option<(Psn, Saetph)> {
        let base = self.base();
        let span = (self.greatest.diff(base) + 1).min(RX_WINDOW as i32);
        if span <= 0 {
            return None;
        }
        let mut bitmap = [0u64; SACK_WORDS_MAX];
        for i in 0..span as u32 {
            let psn = base.add(i);
            let (word, bit) = Self::place(psn);
            if psn.is_before(self.expected) || self.bits[word] & bit != 0 {
                bitmap[i as usize / 64] |= 1 << (i % 64);
            }
        }
        let words = (span as u32).div_ceil(64).next_power_of_two();
        Some((base, Saetph { max_psn: self.greatest, bitmap, size_code: words.trailing_zeros() as u8 }))
    }
    /// Whether the record begins with a PSN that has not arrived, and no more is withheld than may be.
    pub(crate) fn is_consistent(&self) -> bool {
        let (word, bit) = Self::place(self.expected);
        let has_expected = self.has_gap() && self.bits[word] & bit != 0;
        !has_expected && !self.greatest.next().is_before(self.expected) && self.withheld.len() <= WITHHELD_MAX
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.withheld.capacity() * size_of::<(Psn, Withheld)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_psn_is_new_once_over_the_wrap_of_24_bits() {
        let first = Psn::new(0xff_ff00);
        let mut rx = RxWindow::new(first);
        for block in 0..20u32 {
            for i in (0..64u32).rev() {
                let psn = first.add(block * 64 + i);
                let verdict = if i == 0 { PsnVerdict::Expected } else { PsnVerdict::Early };
                assert_eq!(rx.judge(psn), verdict);
                rx.received(psn);
                assert_eq!(rx.judge(psn), PsnVerdict::Duplicate);
            }
            assert_eq!((rx.expected(), rx.has_gap(), rx.sack()), (first.add(block * 64 + 64), false, None));
        }
        assert_eq!(rx.judge(rx.expected().add(RX_WINDOW - 1)), PsnVerdict::Early);
        assert_eq!(rx.judge(rx.expected().add(RX_WINDOW)), PsnVerdict::Outside);
        assert_eq!(rx.judge(first), PsnVerdict::Duplicate);
    }

    #[test]
    fn the_bitmap_shows_what_arrived_behind_the_base() {
        let mut rx = RxWindow::new(Psn::new(5));
        for n in [5, 7, 70] {
            rx.received(Psn::new(n));
        }
        let (base, saetph) = rx.sack().expect("a gap");
        assert_eq!((base, saetph.max_psn, saetph.size_code), (Psn::new(6), Psn::new(70), 1));
        let set: Vec<u32> = (0..128).filter(|i| saetph.has(*i)).collect();
        assert_eq!(set, [1, 64]);
    }

    #[test]
    fn acknowledgements_do_not_pass_a_withheld_psn() {
        let mut rx = RxWindow::new(Psn::new(0));
        rx.withhold(Psn::new(0));
        rx.received(Psn::new(0));
        rx.received(Psn::new(1));
        let (base, saetph) = rx.sack().expect("withheld");
        assert_eq!((base, saetph.has(0), saetph.has(1), rx.has_gap()), (Psn::new(0), true, true, false));
        rx.refuse(Psn::new(0), PoolRef::NONE);
        assert!(rx.response_arrived(PoolRef::NONE));
        assert_eq!((rx.base(), rx.sack()), (Psn::new(2), None));
        rx.withhold(Psn::new(1));
        assert_eq!(rx.base(), Psn::new(2), "never back behind what is acknowledged");
    }
}
