//! READ responses that arrived before those in front of them.
//!
//! A gap in READ responses need not repeat the whole READ: IBA lets a requester ask for any part of a READ again (9.4.4,
//! 9.7.5.1.3). So responses behind a gap are placed at once and noted here, one bit for each PSN, and only the missing ranges are
//! requested again. `early_responses` notes, `messages` requests. Any peer understands that, because each repair is a READ
//! request.
//!
//! A range is requested again once. It is requested once more if a response arrives for a request that was sent after the
//! repair, be that a new READ or the repair of a later range: responders answer in the order in which requests arrive, so the
//! repair was lost. Otherwise the retransmission timer decides. If only READs are in flight, it requests all missing ranges; else
//! it goes back and forgets all bits.

use burst_base::heap::OutOfMemory;
use burst_base::{Psn, heap};

/// PSNs behind the oldest missing one of which responses are placed: 2 MiB in packets of 1 KiB. Responses further on are an
/// implied NAK, as without this record.
pub(crate) const AHEAD_MAX: u32 = 2048;
const WORDS: usize = (AHEAD_MAX / 64) as usize;

/// The record of one queue pair. The bit of a PSN is its number modulo [`AHEAD_MAX`].
#[derive(Default)]
pub(crate) struct ReadAhead {
    /// None until the first gap: most queue pairs never have one.
    notes: Option<Box<[AheadNotes; 1]>>,
}

/// What only queue pairs with gaps need.
struct AheadNotes {
    /// There may be ranges to request again.
    due: bool,
    /// Missing PSNs before this one were requested again.
    asked: Psn,
    /// The PSN after the newest one placed; after a time-out, after the last one requested.
    end: Psn,
    /// The first PSN that had never been sent when the latest range was requested again.
    mark: Psn,
    count: u32,
    bits: [u64; WORDS],
    /// Repairs of PSNs from here on were requested after those of all PSNs before them.
    ordered_from: Psn,
    /// Ranges from the first of these to the second were requested already: `asked` goes on behind them.
    skipped: Option<(Psn, Psn)>,
}

impl AheadNotes {
    fn new() -> AheadNotes {
        let zero = Psn::new(0);
        let (asked, end, mark, ordered_from) = (zero, zero, zero, zero);
        AheadNotes { due: false, asked, end, mark, count: 0, bits: [0; WORDS], ordered_from, skipped: None }
    }
    fn has(&self, psn: Psn) -> bool {
        let (word, bit) = ReadAhead::bit(psn);
        self.bits[word] & bit != 0
    }
}

impl ReadAhead {
    pub(crate) fn new() -> Self {
        ReadAhead::default()
    }
    #[inline]
    fn notes(&self) -> Option<&AheadNotes> {
        self.notes.as_deref().map(|[notes]| notes)
    }
    #[inline]
    fn notes_mut(&mut self) -> Option<&mut AheadNotes> {
        self.notes.as_deref_mut().map(|[notes]| notes)
    }
    /// Reserves the memory for notes, unless that was done.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn reserve(&mut self) -> Result<(), OutOfMemory> {
        if self.notes.is_none() {
            self.notes = Some(heap::boxed(AheadNotes::new())?);
        }
        Ok(())
    }
    /// Whether no response is noted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.notes().is_none_or(|notes| notes.count == 0)
    }
    /// Whether ranges may have to be requested again.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.notes().is_some_and(|notes| notes.due)
    }
    /// The PSNs in which missing ranges are to be requested again: from here to [`ReadAhead::end`].
    pub(crate) fn asked(&self) -> Psn {
        self.notes().map_or(Psn::new(0), |notes| notes.asked)
    }
    /// The PSN from which on missing ranges are to be requested again, at `psn` or behind it.
    pub(crate) fn unasked_from(&self, psn: Psn) -> Psn {
        match self.notes().and_then(|notes| notes.skipped) {
            Some((first, end)) if !psn.is_before(first) && psn.is_before(end) => end,
            _ => psn,
        }
    }
    /// The PSN after the newest one placed.
    pub(crate) fn end(&self) -> Psn {
        self.notes().map_or(Psn::new(0), |notes| notes.end)
    }
    fn bit(psn: Psn) -> (usize, u64) {
        let at = psn.get() % AHEAD_MAX;
        ((at / 64) as usize, 1 << (at % 64))
    }
    /// Whether the response of `psn` was placed.
    pub(crate) fn has(&self, psn: Psn) -> bool {
        self.notes().is_some_and(|notes| notes.has(psn))
    }
    /// The response of `psn` was placed; `una` is missing, and `sent` is the first PSN that was never sent. There must be
    /// memory ([`ReadAhead::reserve`]).
    pub(crate) fn note(&mut self, psn: Psn, una: Psn, sent: Psn) {
        debug_assert!(psn.is_after(una) && psn.diff(una) < AHEAD_MAX as i32 && !self.has(psn));
        let Some(notes) = self.notes_mut() else { return };
        if notes.count == 0 {
            (notes.asked, notes.end, notes.mark) = (una, una, sent);
            (notes.ordered_from, notes.skipped) = (una, None);
        } else if !psn.is_before(notes.mark) {
            // It answers a request that was sent after the repairs, so their answers should have come.
            (notes.asked, notes.mark, notes.due) = (una, sent, true);
            (notes.ordered_from, notes.skipped) = (notes.end, None);
        } else if psn.is_before(notes.asked)
            && una.is_before(notes.asked)
            && !psn.is_before(notes.ordered_from)
            && notes.skipped.is_none()
        {
            // It answers a repair that was requested after those of everything missing before it.
            (notes.skipped, notes.ordered_from) = (Some((psn, notes.asked)), notes.asked);
            (notes.asked, notes.due) = (una, true);
        }
        let (word, bit) = ReadAhead::bit(psn);
        notes.bits[word] |= bit;
        notes.count += 1;
        if psn.is_after(notes.end) {
            notes.due = true;
        }
        if !psn.is_before(notes.end) {
            notes.end = psn.next();
        }
    }
    /// Removes the note of `psn`; false if there is none.
    pub(crate) fn take(&mut self, psn: Psn) -> bool {
        let Some(notes) = self.notes_mut().filter(|notes| notes.has(psn)) else { return false };
        let (word, bit) = ReadAhead::bit(psn);
        notes.bits[word] &= !bit;
        notes.count -= 1;
        notes.due &= notes.count > 0;
        true
    }
    /// Missing PSNs before `end` were requested again; `sent` is the first PSN that was never sent.
    pub(crate) fn on_asked(&mut self, end: Psn, sent: Psn) {
        let Some(notes) = self.notes_mut() else { return };
        (notes.asked, notes.mark) = (end, sent);
        if let Some((first, behind)) = notes.skipped
            && !end.is_before(first)
        {
            (notes.asked, notes.skipped) = (behind, None);
        }
    }
    /// A time-out: all that is missing from `una` to `end` is to be requested again, whether it was already or not.
    pub(crate) fn ask_again(&mut self, una: Psn, end: Psn) {
        debug_assert!(!self.is_empty() && end.diff(una) <= AHEAD_MAX as i32);
        let Some(notes) = self.notes_mut() else { return };
        (notes.asked, notes.due) = (una, true);
        if end.is_after(notes.end) {
            notes.end = end;
        }
        (notes.ordered_from, notes.skipped) = (notes.end, None);
    }
    /// Nothing is left to request again.
    pub(crate) fn all_asked(&mut self) {
        let Some(notes) = self.notes_mut() else { return };
        (notes.due, notes.skipped) = (false, None);
        if notes.asked.is_before(notes.end) {
            notes.asked = notes.end;
        }
    }
    /// Forgets everything: all is requested anew. The memory stays.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if let Some(notes) = self.notes_mut().filter(|notes| notes.count > 0) {
            *notes = AheadNotes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_taken_once_and_wrap_with_the_psns() {
        let mut ahead = ReadAhead::new();
        assert!(!ahead.has(Psn::new(1)) && !ahead.take(Psn::new(1)), "no note before there is memory");
        ahead.reserve().expect("memory");
        let una = Psn::new(0xff_fffe);
        for d in [1, 3, AHEAD_MAX - 1] {
            ahead.note(una.add(d), una, una.add(3000));
        }
        assert!(ahead.has(una.add(3)) && !ahead.has(una.add(2)) && ahead.is_due());
        assert_eq!((ahead.asked(), ahead.end()), (una, una.add(AHEAD_MAX)));
        assert!(ahead.take(una.add(3)) && !ahead.take(una.add(3)) && !ahead.is_empty());
        assert!(ahead.take(una.add(1)) && ahead.take(una.add(AHEAD_MAX - 1)));
        assert!(ahead.is_empty() && !ahead.is_due());
        ahead.note(una.add(5), una, una.add(3000));
        ahead.clear();
        assert!(ahead.is_empty() && !ahead.has(una.add(5)), "forgotten");
        ahead.note(una.add(5), una, una.add(3000));
        assert!(ahead.has(una.add(5)), "the memory stays");
    }

    #[test]
    fn an_answered_repair_shows_that_those_before_it_were_lost() {
        let mut ahead = ReadAhead::new();
        ahead.reserve().expect("memory");
        let (una, sent) = (Psn::new(100), Psn::new(300));
        let psn = |d: u32| una.add(d);
        (1..40).filter(|d| ![10, 20].contains(d)).for_each(|d| ahead.note(psn(d), una, sent));
        for d in [0, 10, 20] {
            ahead.on_asked(psn(d + 1), sent);
        }
        ahead.all_asked();
        assert!(!ahead.is_due() && ahead.asked() == psn(40));
        // The repair of 10 comes without that of 0: 0 is asked for again, 20 is not.
        ahead.note(psn(10), una, sent);
        assert!(ahead.is_due());
        assert_eq!((ahead.asked(), ahead.unasked_from(una), ahead.unasked_from(psn(1))), (una, una, psn(1)));
        assert_eq!([10, 20, 39, 40].map(|d| ahead.unasked_from(psn(d))), [psn(40); 4]);
        ahead.on_asked(psn(1), sent);
        assert_eq!(ahead.asked(), psn(1), "more before 10 may be missing");
        ahead.all_asked();
        // The repair of 20 was asked for before 0 was again, so it shows nothing; one behind it does.
        ahead.note(psn(20), una, sent);
        assert!(!ahead.is_due());
        ahead.note(psn(45), una, sent);
        ahead.on_asked(psn(45), sent);
        ahead.all_asked();
        ahead.note(psn(42), una, sent);
        assert!(ahead.is_due() && ahead.asked() == una);
    }

    #[test]
    fn a_response_to_a_later_request_asks_again() {
        let mut ahead = ReadAhead::new();
        ahead.reserve().expect("memory");
        let (una, sent) = (Psn::new(100), Psn::new(120));
        ahead.note(Psn::new(101), una, sent);
        ahead.on_asked(Psn::new(101), sent);
        ahead.all_asked();
        ahead.note(Psn::new(102), una, Psn::new(140));
        assert!(!ahead.is_due(), "no new gap, and it was requested before the repair");
        ahead.note(Psn::new(120), una, Psn::new(140));
        assert!(ahead.is_due());
        assert_eq!(ahead.asked(), una);
    }
}
