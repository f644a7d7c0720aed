//! Which packets of a requester were lost (selective repeat): what the peer has received behind the first missing packet, and the
//! holes between.
//!
//! A packet is *lost* if it is unacknowledged and
//! * it was never repeated, and a packet sent after it has arrived (and the tolerance for reordering has passed), or
//! * it was repeated, and a packet has arrived that was sent after the repetition: a new one (PSN at or behind the hole's
//!   *mark*, the first PSN never sent at that time; the bitmap has it, or it is the newest packet at the peer), the
//!   repetition of another hole, or a probe, or
//! * a time-out says so ([`Losses::mark_all`]).
//!
//! So a lost repetition is found without a clock as long as anything else arrives. A hole is repeated at most once for each such
//! proof. On a path that does not reorder, with a tolerance of 0, no packet is ever repeated that has arrived.
//!
//! **Limits.** Each PSN of the peer's window ([`WINDOW_PSNS`]) has a place of its own, so any number of packets of a flight may
//! be lost. Sets of PSNs are bitmaps, and an acknowledgement costs one look at each new gap and one at each word of a set.
//!
//! **Congestion.** Losses are one signal for each window of data (`recover` of RFC 6582): a loss is reported
//! ([`LossesFound::is_signal`]) if the lost transmission was sent after the last report, be it a first one or a repetition.
//!
//! A record exists only while packets are missing. It is borrowed from the pool of the worker ([`crate::records`]).

use crate::peer_shares::NO_PEER;
use crate::psn_bits::{PsnBits, WINDOW_PSNS};
use burst_base::heap::OutOfMemory;
use burst_base::{Nanos, Psn, heap};
use burst_wire::selective::{AckBitmap, BITMAP_WORDS_MAX, PSNS_PER_WORD, TRANSMISSION_MAX};
use std::net::IpAddr;

/// PSNs behind the first missing one of which an acknowledgement can say whether they have arrived.
const REPORTED_PSNS: u32 = BITMAP_WORDS_MAX as u32 * PSNS_PER_WORD;
/// Times at which gaps were noticed that are kept apart while the tolerance for reordering runs. Later gaps join the last.
const NOTICES_MAX: usize = 16;

/// The latest repetition of a missing packet.
#[derive(Clone, Copy, Debug, Default)]
struct Repetition {
    /// The first PSN that had never been sent at that time.
    mark: Psn,
    /// Number of the repetition, counted over all holes.
    order: u32,
    /// Transmission number; 0 if the packet was not repeated.
    transmission: u8,
    /// Its first transmission has arrived after it was repeated.
    is_needless: bool,
}

/// Gaps in front of `end` were noticed at `at`.
#[derive(Clone, Copy, Debug)]
struct Notice {
    end: Psn,
    at: Nanos,
}

/// A packet to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostPacket {
    pub(crate) psn: Psn,
    /// Transmission number of the repetition.
    pub(crate) transmission: u8,
}

/// The PSNs of the packet that one belongs to: the first, and their number. One PSN, except for READ requests.
pub(crate) type PacketPsns = (Psn, u32);

/// Packets that were found to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LossesFound {
    /// Packets that were not known to be lost.
    pub(crate) packets: u32,
    /// One of them was sent after the last loss that was reported to congestion control.
    pub(crate) is_signal: bool,
}

/// What was sent before the last report of a loss: PSNs before `psn`, and repetitions with numbers below `order`.
#[derive(Clone, Copy, Debug)]
struct Recover {
    psn: Psn,
    order: u32,
}

/// The record of one queue pair.
pub(crate) struct Losses {
    pub(crate) peer: IpAddr,
    arrived: PsnBits,
    /// Missing packets, by their first PSN, and among them those that are to be repeated, and those that may only be late. The
    /// others were repeated.
    holes: PsnBits,
    lost: PsnBits,
    suspects: PsnBits,
    /// By PSN, modulo the window; valid for holes.
    repetition: Box<[Repetition]>,
    /// The first missing PSN: everything before it is acknowledged.
    base: Psn,
    /// The peer has said of each PSN before this one whether it has arrived.
    top: Psn,
    /// Holes are known in front of this PSN.
    searched: Psn,
    /// Everything before it has left the network, because a packet that was sent later has arrived. It may lie behind the end of
    /// the bitmap.
    latest: Psn,
    /// When suspects were noticed, in order of time and PSN.
    notices: Vec<Notice>,
    repetitions: u32,
    /// The highest number of a repetition that has arrived, plus one.
    newest: u32,
    /// `latest` and `newest` when repetitions were last compared with them.
    compared: (Psn, u32),
    recover: Recover,
    /// A loss was reported to congestion control.
    is_reported: bool,
    /// The latest probe: PSN and transmission number of the packet, and its number among the repetitions.
    probe: Option<(LostPacket, u32)>,
    /// Packets that were repeated, and those of which the first transmission has arrived.
    repeated: u32,
    needless: u32,
    /// Bytes that have left the network, and of which it is not known that the peer has them: congestion control counts them
    /// neither as in flight nor as acknowledged.
    pub(crate) gone_bytes: u32,
}

fn place(psn: Psn) -> usize {
    (psn.get() % WINDOW_PSNS) as usize
}

impl Losses {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let zero = Psn::new(0);
        let mut repetition = heap::with_room(WINDOW_PSNS as usize)?;
        repetition.resize(WINDOW_PSNS as usize, Repetition::default());
        let [arrived, holes, lost, suspects] = [const { PsnBits::new() }; 4];
        Ok(Losses {
            peer: NO_PEER,
            arrived,
            holes,
            lost,
            suspects,
            repetition: repetition.into_boxed_slice(),
            base: zero,
            top: zero,
            searched: zero,
            latest: zero,
            notices: heap::with_room(NOTICES_MAX)?,
            repetitions: 0,
            newest: 0,
            compared: (zero, 0),
            recover: Recover { psn: zero, order: 0 },
            is_reported: false,
            probe: None,
            repeated: 0,
            needless: 0,
            gone_bytes: 0,
        })
    }
    /// Begins with `base`, the first missing PSN. The loss of packets before `recover` was reported already.
    pub(crate) fn begin(&mut self, base: Psn, recover: Psn) {
        [&mut self.arrived, &mut self.holes, &mut self.lost, &mut self.suspects].into_iter().for_each(PsnBits::clear);
        self.notices.clear();
        (self.base, self.top, self.searched, self.latest) = (base, base, base, base);
        (self.repetitions, self.newest, self.probe) = (0, 0, None);
        (self.compared, self.recover) = ((base, 0), Recover { psn: recover, order: 0 });
        (self.repeated, self.needless, self.is_reported) = (0, 0, false);
        self.gone_bytes = 0;
    }
    /// Whether nothing is missing in front of anything that has arrived, nor to be repeated.
    pub(crate) fn is_over(&self) -> bool {
        self.arrived.is_empty() && self.holes.is_empty()
    }
    /// PSNs behind the first missing one that have arrived.
    pub(crate) fn arrived_within(&self, first: Psn, count: u32) -> u32 {
        self.arrived.count_within(first, count)
    }
    /// Packets to repeat among the `count` PSNs from `first` on.
    pub(crate) fn lost_within(&self, first: Psn, count: u32) -> u32 {
        self.lost.count_within(first, count)
    }
    /// Whether `psn` has arrived.
    pub(crate) fn has_arrived(&self, psn: Psn) -> bool {
        psn.is_before(self.base) || (psn.is_before(self.top) && self.arrived.has(psn))
    }
    /// PSNs among the `count` from `first` on that have left the network, and of which it is not known whether they have arrived:
    /// a packet that was sent later has. Where packets `may_be_late`, only those that acknowledgements have no room for.
    pub(crate) fn left_within(&self, first: Psn, count: u32, may_be_late: bool) -> u32 {
        let known = if self.top.is_before(self.searched) { self.searched } else { self.top };
        let unreported = if may_be_late { self.base.next().add(REPORTED_PSNS) } else { known };
        let begin = if known.is_before(unreported) { unreported } else { known };
        let from = if first.is_before(begin) { begin } else { first };
        let end = first.add(count);
        let end = if self.latest.is_before(end) { self.latest } else { end };
        end.diff(from).max(0) as u32
    }
    /// Whether `psn` is to be repeated.
    pub(crate) fn is_lost(&self, psn: Psn) -> bool {
        self.is_in_window(psn) && self.lost.has(psn)
    }
    /// Whether a bit of a set can stand for `psn`.
    fn is_in_window(&self, psn: Psn) -> bool {
        psn.is_within(self.base, WINDOW_PSNS)
    }
    /// The hole of `psn` and its latest repetition.
    fn hole(&mut self, psn: Psn) -> Option<&mut Repetition> {
        let exists = self.is_in_window(psn) && self.holes.has(psn);
        exists.then(|| &mut self.repetition[place(psn)])
    }
    /// The cumulative acknowledgement has come to `base`.
    pub(crate) fn advance(&mut self, base: Psn) {
        debug_assert!(!base.is_before(self.base));
        for set in [&mut self.arrived, &mut self.holes, &mut self.lost, &mut self.suspects] {
            set.remove_until(self.base, base);
        }
        self.base = base;
        // It is missing, whatever earlier acknowledgements have said.
        self.arrived.remove(base);
        for end in [&mut self.top, &mut self.searched, &mut self.latest, &mut self.recover.psn] {
            if end.is_before(base) {
                *end = base;
            }
        }
    }
    /// The newest packet that the peer has received: PSN and transmission number. To be called before the acknowledgement that
    /// reports it is taken. Returns whether it shows reordering: it is an earlier transmission of a packet that was repeated.
    pub(crate) fn on_trigger(&mut self, psn: Psn, transmission: u8) -> bool {
        if let Some((_, order)) = self.probe.filter(|(probe, _)| *probe == LostPacket { psn, transmission }) {
            self.newest = self.newest.max(order + 1);
            return false;
        }
        let is_waiting = self.is_repeated(psn);
        let Some(&mut hole) = self.hole(psn) else { return false };
        if hole.transmission == transmission && is_waiting {
            self.newest = self.newest.max(hole.order + 1);
            // What was sent before it has arrived, or is lost.
            if self.latest.is_before(hole.mark) {
                self.latest = hole.mark;
            }
        }
        transmission < hole.transmission
    }
    /// Whether the hole `psn` was repeated, and is not lost again.
    fn is_repeated(&self, psn: Psn) -> bool {
        self.is_in_window(psn) && self.holes.has(psn) && !self.lost.has(psn) && !self.suspects.has(psn)
    }
    /// The newest packet that the peer has received is `psn`, which was sent. A bitmap ends 960 PSNs behind the first missing
    /// one; a packet further on shows as well that repetitions before it were lost.
    pub(crate) fn on_newest(&mut self, psn: Psn) {
        if !psn.is_before(self.latest) {
            self.latest = psn.next();
        }
    }
    /// The peer has kept the first transmission of `psn`, which was repeated.
    pub(crate) fn on_needless(&mut self, psn: Psn) {
        if let Some(hole) = self.hole(psn).filter(|hole| !hole.is_needless) {
            hole.is_needless = true;
            self.needless += 1;
        }
    }
    /// Whether a loss was reported to congestion control, and nothing was lost: the first transmission of each packet that was
    /// repeated has arrived. A probe may have taken the place of a lost packet, so that it is not known.
    pub(crate) fn was_needless(&self) -> bool {
        self.is_reported && self.repeated == self.needless && self.probe.is_none()
    }
    /// Takes the bitmap of an acknowledgement whose first missing PSN is the present one, and whose newest packet is `newest`, if
    /// that is a first transmission. Bits of PSNs that were never sent are ignored. Returns how many PSNs have arrived that were
    /// missing.
    pub(crate) fn take_bitmap(&mut self, bitmap: AckBitmap<'_>, newest: Option<Psn>, sent: Psn) -> u32 {
        let before = self.arrived.len();
        let first = self.base.next();
        for w in 0..bitmap.words() as u32 {
            let begin = first.add(w * PSNS_PER_WORD);
            let mut word = bitmap.word(w as usize) & !self.arrived.word_from(begin);
            while word != 0 {
                let psn = begin.add(word.trailing_zeros());
                word &= word - 1;
                if !psn.is_before(sent) {
                    break;
                }
                self.arrived.add(psn);
                for set in [&mut self.holes, &mut self.lost, &mut self.suspects] {
                    set.remove(psn);
                }
                if !psn.is_before(self.top) {
                    self.top = psn.next();
                }
            }
        }
        if let Some(newest) = newest.filter(|newest| bitmap.words() > 0 && newest.is_before(sent)) {
            // What the bitmap has no room for is unknown.
            let end = if bitmap.words() == BITMAP_WORDS_MAX { first.add(REPORTED_PSNS) } else { newest.next() };
            let end = if newest.is_before(end) { newest.next() } else { end };
            self.top = if end.is_after(self.top) { end } else { self.top };
        }
        if self.latest.is_before(self.top) {
            self.latest = self.top;
        }
        self.arrived.len() - before
    }
    /// Finds packets that are lost now. `packet_of` gives the PSNs of a packet in flight.
    pub(crate) fn find(
        &mut self,
        now: Nanos,
        tolerance: Nanos,
        packet_of: impl Fn(Psn) -> Option<PacketPsns>,
    ) -> LossesFound {
        self.notice_gaps(now, packet_of);
        let mut found = LossesFound::default();
        while let Some(notice) = self.notices.first().filter(|notice| now >= notice.at + tolerance) {
            let mut psn = self.base;
            let end = notice.end;
            while let Some(late) = self.suspects.next_member(psn, end) {
                self.lose(late, &mut found);
                psn = late.next();
            }
            self.notices.remove(0);
        }
        let (latest, newest) = (self.latest, self.newest);
        if self.compared != (latest, newest) {
            self.compared = (latest, newest);
            self.lose_repeated(self.searched, &mut found, |hole| latest.is_after(hole.mark) || hole.order + 1 < newest);
        }
        found
    }
    /// Makes a hole of each packet that is missing in front of `top` and is none yet. All are suspects from `now` on.
    fn notice_gaps(&mut self, now: Nanos, packet_of: impl Fn(Psn) -> Option<PacketPsns>) {
        if self.suspects.is_empty() {
            self.notices.clear();
        }
        let mut is_new = false;
        // The rest of a READ whose beginning has arrived is a hole of its own.
        if self.base.is_before(self.searched)
            && let Some((first, _)) = packet_of(self.base)
        {
            is_new |= self.suspect(self.name_of(first, self.base));
        }
        while let Some(missing) = self.arrived.next_missing(self.searched, self.top) {
            let Some((first, count)) = packet_of(missing) else { break };
            is_new |= self.suspect(self.name_of(first, missing));
            self.searched = first.add(count.max(1));
        }
        if self.arrived.next_missing(self.searched, self.top).is_none() && self.searched.is_before(self.top) {
            self.searched = self.top;
        }
        if !is_new {
            return;
        }
        let notice = Notice { end: self.searched, at: now };
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop();
        }
        self.notices.push(notice);
    }
    /// Adds a hole that may only be late. False if it is known.
    fn suspect(&mut self, psn: Psn) -> bool {
        let is_new = self.holes.add(psn);
        if is_new {
            self.suspects.add(psn);
            self.repetition[place(psn)] = Repetition::default();
        }
        is_new
    }
    /// The hole `psn` is lost.
    fn lose(&mut self, psn: Psn, found: &mut LossesFound) {
        let hole = self.repetition[place(psn)];
        self.suspects.remove(psn);
        if self.lost.add(psn) {
            found.packets += 1;
            found.is_signal |= match hole.transmission {
                0 => !psn.is_before(self.recover.psn),
                _ => hole.order >= self.recover.order,
            };
        }
    }
    /// Packets in front of `end` that were repeated are lost again, if `is_lost` says so.
    fn lose_repeated(&mut self, end: Psn, found: &mut LossesFound, is_lost: impl Fn(&Repetition) -> bool) {
        let mut psn = self.base;
        while let Some(hole) = self.holes.next_member(psn, end) {
            if self.is_repeated(hole) && is_lost(&self.repetition[place(hole)]) {
                self.lose(hole, found);
            }
            psn = hole.next();
        }
    }
    /// A loss was reported to congestion control; `sent` is the first PSN that was never sent.
    pub(crate) fn on_signal(&mut self, sent: Psn) {
        self.recover = Recover { psn: sent, order: self.repetitions };
        self.is_reported = true;
    }
    /// The PSN of a hole: the first of its packet, unless the peer says that it has a part of the packet, which cannot be.
    fn name_of(&self, first: Psn, missing: Psn) -> Psn {
        if first.is_before(self.base) || self.arrived.has(first) { missing } else { first }
    }
    /// All that is missing before `end` is lost: a time-out, or the peer had no room for it.
    pub(crate) fn mark_all(&mut self, end: Psn, packet_of: impl Fn(Psn) -> Option<PacketPsns>) -> LossesFound {
        self.lose_missing(end, packet_of, |_| true)
    }
    /// The peer has dropped what arrived behind the first missing packet, up to transmission number `transmission` of `trigger`,
    /// because it had no room. What was repeated after that transmission may still arrive.
    pub(crate) fn refused(
        &mut self,
        trigger: Psn,
        transmission: u8,
        packet_of: impl Fn(Psn) -> Option<PacketPsns>,
    ) -> LossesFound {
        let was_waiting = self.is_repeated(trigger);
        let hole = self.hole(trigger).filter(|hole| was_waiting && hole.transmission == transmission);
        let order = hole.map(|hole| hole.order);
        self.lose_missing(trigger.next(), packet_of, |hole| {
            !trigger.is_before(hole.mark) || order.is_some_and(|order| hole.order <= order)
        })
    }
    /// What is missing before `end` is lost, if it was not repeated, or `is_lost` says so of its repetition.
    fn lose_missing(
        &mut self,
        end: Psn,
        packet_of: impl Fn(Psn) -> Option<PacketPsns>,
        is_lost: impl Fn(&Repetition) -> bool,
    ) -> LossesFound {
        let (mut found, mut psn) = (LossesFound::default(), self.base);
        while let Some(missing) = self.arrived.next_missing(psn, end) {
            let Some((first, count)) = packet_of(missing).filter(|_| self.is_in_window(missing)) else { break };
            psn = first.add(count.max(1));
            let name = self.name_of(first, missing);
            self.suspect(name);
            if !self.is_repeated(name) || is_lost(&self.repetition[place(name)]) {
                self.lose(name, &mut found);
            }
        }
        if self.searched.is_before(psn) {
            self.searched = psn;
        }
        found
    }
    /// Whether a packet is to be repeated.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }
    /// The packet that is to be repeated next: the lowest.
    pub(crate) fn first_lost(&self) -> Option<LostPacket> {
        let psn = self.lost.next_member(self.base, self.base.add(WINDOW_PSNS))?;
        let transmission = (self.repetition[place(psn)].transmission + 1).min(TRANSMISSION_MAX);
        Some(LostPacket { psn, transmission })
    }
    /// The packet `psn` was repeated; `sent` is the first PSN that was never sent.
    pub(crate) fn on_repeated(&mut self, psn: Psn, sent: Psn) {
        let order = self.repetitions;
        let Some(hole) = self.hole(psn) else { return };
        let is_first = hole.transmission == 0;
        hole.transmission = (hole.transmission + 1).min(TRANSMISSION_MAX);
        (hole.mark, hole.order) = (sent, order);
        self.repeated += u32::from(is_first);
        self.lost.remove(psn);
        self.repetitions += 1;
    }
    /// The packet `probe.psn` was sent as a probe, with a transmission number of its own.
    pub(crate) fn on_probe(&mut self, probe: LostPacket) {
        self.probe = Some((probe, self.repetitions));
        self.repetitions += 1;
    }
    /// When [`Losses::find`] should be called because the tolerance of a packet passes.
    pub(crate) fn deadline(&self, tolerance: Nanos) -> Nanos {
        match self.notices.first() {
            Some(notice) if !self.suspects.is_empty() => notice.at + tolerance,
            _ => Nanos::NEVER,
        }
    }
    /// The first missing PSN.
    pub(crate) fn base(&self) -> Psn {
        self.base
    }
    /// The peer has said of each PSN before this one whether it has arrived.
    pub(crate) fn top(&self) -> Psn {
        self.top
    }
    /// The invariant: base <= top, holes have not arrived, and those to be repeated and those that may be late are holes.
    pub(crate) fn is_consistent(&self) -> bool {
        let sets = (0..WINDOW_PSNS).step_by(64).all(|k| {
            let word = |set: &PsnBits| set.word_from(self.base.add(k));
            let (holes, lost, suspects) = (word(&self.holes), word(&self.lost), word(&self.suspects));
            holes & word(&self.arrived) == 0 && lost & suspects == 0 && (lost | suspects) & !holes == 0
        });
        sets && !self.top.is_before(self.base) && !self.arrived.has(self.base)
    }
}

#[cfg(test)]
mod tests;
