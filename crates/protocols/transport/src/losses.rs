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
//! A record exists only while packets are missing. It is borrowed from the pool of the worker ([`crate::records`]).

use crate::psn_bits::{PsnBits, WINDOW_PSNS};
use crate::records::NO_PEER;
use burst_base::heap::{self, OutOfMemory};
use burst_base::{Nanos, Psn};
use burst_wire::selective::{AckBitmap, PSNS_PER_WORD, TRANSMISSION_MAX};
use std::net::IpAddr;

/// Missing packets that are kept track of. Others are found when some of these have arrived.
pub(crate) const HOLES_MAX: usize = 256;

/// What is known of a missing packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoleState {
    /// A packet sent after it has arrived; first noticed at this time.
    Suspect(Nanos),
    /// It shall be repeated.
    Lost,
    /// It was repeated.
    Repeated,
}

/// A missing packet.
#[derive(Clone, Copy, Debug)]
struct Hole {
    /// Its PSN; of a READ request, the first.
    psn: Psn,
    state: HoleState,
    /// Transmission number of the latest transmission.
    transmission: u8,
    /// The first PSN that had never been sent when it was repeated.
    mark: Psn,
    /// Number of the repetition, counted over all holes.
    order: u32,
    /// Its first transmission has arrived after it was repeated.
    is_needless: bool,
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

/// The record of one queue pair.
pub(crate) struct Losses {
    pub(crate) peer: IpAddr,
    arrived: PsnBits,
    /// The first missing PSN: everything before it is acknowledged.
    base: Psn,
    /// The PSN behind the last that has arrived.
    top: Psn,
    /// The PSN behind the newest packet that has arrived, which may lie behind the end of the bitmap.
    latest: Psn,
    /// Missing packets, in order.
    holes: Vec<Hole>,
    repetitions: u32,
    /// The highest number of a repetition that has arrived, plus one.
    newest: u32,
    /// The latest probe: PSN and transmission number of the packet, and its number among the repetitions.
    probe: Option<(LostPacket, u32)>,
    /// Packets that were repeated, and those of which the first transmission has arrived.
    repeated: u32,
    needless: u32,
}

impl Losses {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let zero = Psn::new(0);
        let holes = heap::with_room(HOLES_MAX)?;
        let arrived = PsnBits::new();
        let (probe, repetitions, newest, repeated, needless) = (None, 0, 0, 0, 0);
        Ok(Losses {
            peer: NO_PEER,
            arrived,
            base: zero,
            top: zero,
            latest: zero,
            holes,
            repetitions,
            newest,
            probe,
            repeated,
            needless,
        })
    }
    /// Begins with `base`, the first missing PSN.
    pub(crate) fn begin(&mut self, base: Psn) {
        self.arrived.clear();
        self.holes.clear();
        (self.base, self.top, self.latest) = (base, base, base);
        (self.repetitions, self.newest, self.probe) = (0, 0, None);
        (self.repeated, self.needless) = (0, 0);
    }
    /// Whether nothing is missing in front of anything that has arrived, nor to be repeated.
    pub(crate) fn is_over(&self) -> bool {
        self.arrived.is_empty() && self.holes.is_empty()
    }
    /// PSNs behind the first missing one that have arrived.
    pub(crate) fn arrived_within(&self, first: Psn, count: u32) -> u32 {
        self.arrived.count_within(first, count)
    }
    /// Whether `psn` has arrived.
    pub(crate) fn has_arrived(&self, psn: Psn) -> bool {
        psn.is_before(self.base) || (psn.is_before(self.top) && self.arrived.has(psn))
    }
    /// The cumulative acknowledgement has come to `base`.
    pub(crate) fn advance(&mut self, base: Psn) {
        debug_assert!(!base.is_before(self.base));
        while self.base.is_before(base) && !self.arrived.is_empty() {
            self.arrived.remove(self.base);
            self.base = self.base.next();
        }
        self.base = base;
        // It is missing, whatever earlier acknowledgements have said.
        self.arrived.remove(base);
        for end in [&mut self.top, &mut self.latest] {
            if end.is_before(base) {
                *end = base;
            }
        }
        self.holes.retain(|hole| !hole.psn.is_before(base));
    }
    /// The newest packet that the peer has received: PSN and transmission number. To be called before the acknowledgement that
    /// reports it is taken. Returns whether it shows reordering: it is an earlier transmission of a packet that was repeated.
    pub(crate) fn on_trigger(&mut self, psn: Psn, transmission: u8) -> bool {
        if let Some((_, order)) = self.probe.filter(|(probe, _)| *probe == LostPacket { psn, transmission }) {
            self.newest = self.newest.max(order + 1);
            return false;
        }
        let Some(hole) = self.holes.iter().find(|hole| hole.psn == psn) else { return false };
        if hole.transmission == transmission && hole.state == HoleState::Repeated {
            self.newest = self.newest.max(hole.order + 1);
        }
        transmission < hole.transmission
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
        let hole = self.holes.iter_mut().find(|hole| hole.psn == psn);
        if let Some(hole) = hole.filter(|hole| !hole.is_needless) {
            hole.is_needless = true;
            self.needless += 1;
        }
    }
    /// Whether nothing was lost: the first transmission of each packet that was repeated has arrived. A probe may have taken
    /// the place of a lost packet, so that it is not known.
    pub(crate) fn was_needless(&self) -> bool {
        self.repeated == self.needless && self.probe.is_none()
    }
    /// Takes the bitmap of an acknowledgement whose first missing PSN is the present one. Bits of PSNs that were never sent are
    /// ignored. Returns how many PSNs have arrived that were missing.
    pub(crate) fn take_bitmap(&mut self, bitmap: AckBitmap<'_>, sent: Psn) -> u32 {
        let before = self.arrived.len();
        let first = self.base.next();
        for w in 0..bitmap.words() as u32 {
            let mut word = bitmap.word(w as usize);
            while word != 0 {
                let psn = first.add(w * PSNS_PER_WORD + word.trailing_zeros());
                word &= word - 1;
                if !psn.is_before(sent) || psn.diff(self.base) >= WINDOW_PSNS as i32 {
                    break;
                }
                self.arrived.add(psn);
                if !psn.is_before(self.top) {
                    self.top = psn.next();
                }
            }
        }
        let arrived = &self.arrived;
        self.holes.retain(|hole| !arrived.has(hole.psn));
        self.arrived.len() - before
    }
    /// Finds packets that are lost now. `packet_of` gives the PSNs of a packet in flight. Returns the number of those that were
    /// not known to be lost.
    pub(crate) fn find(&mut self, now: Nanos, tolerance: Nanos, packet_of: impl Fn(Psn) -> Option<PacketPsns>) -> u32 {
        let (mut found, mut psn) = (0, self.base);
        while let Some(missing) = self.arrived.next_missing(psn, self.top) {
            let Some((first, count)) = packet_of(missing) else { break };
            psn = first.add(count.max(1));
            let Some(at) = self.hole_at(self.name_of(first, missing), now) else { break };
            let (top, newest) = (if self.latest.is_after(self.top) { self.latest } else { self.top }, self.newest);
            let hole = &mut self.holes[at];
            let is_lost = match hole.state {
                HoleState::Suspect(since) => now >= since + tolerance,
                HoleState::Lost => false,
                HoleState::Repeated => top.is_after(hole.mark) || hole.order + 1 < newest,
            };
            if is_lost {
                hole.state = HoleState::Lost;
                found += 1;
            }
        }
        found
    }
    /// The PSN of a hole: the first of its packet, unless the peer says that it has a part of the packet, which cannot be.
    fn name_of(&self, first: Psn, missing: Psn) -> Psn {
        if first.is_before(self.base) || self.arrived.has(first) { missing } else { first }
    }
    /// Index of the hole of `psn`, which is made unless it exists; `None` if there are too many.
    fn hole_at(&mut self, psn: Psn, now: Nanos) -> Option<usize> {
        let distance = psn.diff(self.base);
        match self.holes.binary_search_by_key(&distance, |hole| hole.psn.diff(self.base)) {
            Ok(at) => Some(at),
            Err(_) if self.holes.len() == HOLES_MAX => None,
            Err(at) => {
                let state = HoleState::Suspect(now);
                self.holes.insert(at, Hole { psn, state, transmission: 0, mark: psn, order: 0, is_needless: false });
                Some(at)
            }
        }
    }
    /// All that is missing before `end` is lost: a time-out, or the peer had no room for it. Returns the number of packets that
    /// were not known to be lost.
    pub(crate) fn mark_all(&mut self, end: Psn, packet_of: impl Fn(Psn) -> Option<PacketPsns>) -> u32 {
        let (mut found, mut psn) = (0, self.base);
        while let Some(missing) = self.arrived.next_missing(psn, end) {
            let Some((first, count)) = packet_of(missing) else { break };
            psn = first.add(count.max(1));
            let Some(at) = self.hole_at(self.name_of(first, missing), Nanos(0)) else { break };
            found += u32::from(self.holes[at].state != HoleState::Lost);
            self.holes[at].state = HoleState::Lost;
        }
        found
    }
    /// The peer has dropped what arrived behind the first missing packet, up to transmission number `transmission` of `trigger`,
    /// because it had no room. What was repeated after that transmission may still arrive. Returns the number of packets that
    /// were not known to be lost.
    pub(crate) fn refused(
        &mut self,
        trigger: Psn,
        transmission: u8,
        packet_of: impl Fn(Psn) -> Option<PacketPsns>,
    ) -> u32 {
        let order = self.holes.iter().find(|hole| hole.psn == trigger && hole.transmission == transmission);
        let order = order.filter(|hole| hole.state == HoleState::Repeated).map(|hole| hole.order);
        let (mut found, mut psn) = (0, self.base);
        while let Some(missing) = self.arrived.next_missing(psn, trigger.next()) {
            let Some((first, count)) = packet_of(missing) else { break };
            psn = first.add(count.max(1));
            let Some(at) = self.hole_at(self.name_of(first, missing), Nanos(0)) else { break };
            let hole = &mut self.holes[at];
            let is_lost = match hole.state {
                HoleState::Lost => false,
                HoleState::Suspect(_) => true,
                HoleState::Repeated => !trigger.is_before(hole.mark) || order.is_some_and(|order| hole.order <= order),
            };
            if is_lost {
                hole.state = HoleState::Lost;
                found += 1;
            }
        }
        found
    }
    /// Whether a packet is to be repeated.
    pub(crate) fn has_lost(&self) -> bool {
        self.holes.iter().any(|hole| hole.state == HoleState::Lost)
    }
    /// Packets that are to be repeated, lowest first.
    pub(crate) fn lost(&self) -> impl Iterator<Item = LostPacket> {
        let lost = self.holes.iter().filter(|hole| hole.state == HoleState::Lost);
        lost.map(|hole| LostPacket { psn: hole.psn, transmission: (hole.transmission + 1).min(TRANSMISSION_MAX) })
    }
    /// The packet `psn` was repeated; `sent` is the first PSN that was never sent.
    pub(crate) fn on_repeated(&mut self, psn: Psn, sent: Psn) {
        let Some(hole) = self.holes.iter_mut().find(|hole| hole.psn == psn) else { return };
        hole.state = HoleState::Repeated;
        self.repeated += u32::from(hole.transmission == 0);
        hole.transmission = (hole.transmission + 1).min(TRANSMISSION_MAX);
        (hole.mark, hole.order) = (sent, self.repetitions);
        self.repetitions += 1;
    }
    /// The packet `probe.psn` was sent as a probe, with a transmission number of its own.
    pub(crate) fn on_probe(&mut self, probe: LostPacket) {
        self.probe = Some((probe, self.repetitions));
        self.repetitions += 1;
    }
    /// When [`Losses::find`] should be called because the tolerance of a packet passes.
    pub(crate) fn deadline(&self, tolerance: Nanos) -> Nanos {
        let due = self.holes.iter().map(|hole| match hole.state {
            HoleState::Suspect(since) => since + tolerance,
            HoleState::Lost | HoleState::Repeated => Nanos::NEVER,
        });
        due.min().unwrap_or(Nanos::NEVER)
    }
    /// The first missing PSN.
    pub(crate) fn base(&self) -> Psn {
        self.base
    }
    /// The PSN behind the last that has arrived.
    pub(crate) fn top(&self) -> Psn {
        self.top
    }
    /// The invariant: base <= top, holes in order behind base and not arrived.
    pub(crate) fn is_consistent(&self) -> bool {
        let ordered = self.holes.windows(2).all(|pair| pair[0].psn.is_before(pair[1].psn));
        let missing = self.holes.iter().all(|hole| !hole.psn.is_before(self.base) && !self.arrived.has(hole.psn));
        ordered && missing && !self.top.is_before(self.base) && !self.arrived.has(self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;
    use std::collections::VecDeque;

    const NOW: Nanos = Nanos(1000);
    const NONE: Nanos = Nanos(0);

    fn single(psn: Psn) -> Option<PacketPsns> {
        Some((psn, 1))
    }
    fn bitmap(psns: &[u32], base: u32) -> Vec<u8> {
        let mut bytes = vec![0; 120];
        psns.iter().for_each(|psn| bytes[((psn - base - 1) / 8) as usize] |= 1 << ((psn - base - 1) % 8));
        bytes
    }
    fn take(losses: &mut Losses, base: u32, arrived: &[u32], sent: u32) -> u32 {
        let bytes = bitmap(arrived, base);
        losses.take_bitmap(AckBitmap::of(&bytes).expect("whole words"), Psn::new(sent))
    }
    fn lost(losses: &Losses) -> Vec<u32> {
        losses.lost().map(|packet| packet.psn.get()).collect()
    }
    fn repeat(losses: &mut Losses, sent: u32) {
        while let Some(packet) = { losses.lost().next() } {
            losses.on_repeated(packet.psn, Psn::new(sent));
        }
    }
    fn losses_at(base: u32) -> Losses {
        let mut losses = Losses::new().expect("memory");
        losses.begin(Psn::new(base));
        losses
    }

    #[test]
    fn gaps_are_lost_and_repeated_once() {
        let mut losses = losses_at(10);
        assert_eq!(take(&mut losses, 10, &[12, 13, 16], 20), 3);
        assert_eq!(losses.find(NOW, NONE, single), 4);
        assert_eq!(lost(&losses), [10, 11, 14, 15]);
        assert_eq!(losses.find(NOW, NONE, single), 0, "known");
        repeat(&mut losses, 20);
        assert_eq!((take(&mut losses, 10, &[17, 18, 19], 20), losses.find(NOW, NONE, single)), (3, 0));
        losses.advance(Psn::new(11));
        assert_eq!(losses.find(NOW, NONE, single), 0);
        assert!(losses.is_consistent() && !losses.is_over());
        losses.advance(Psn::new(20));
        assert!(losses.is_over());
    }

    #[test]
    fn a_lost_repetition_is_found_by_a_new_packet_or_by_a_later_repetition() {
        let mut losses = losses_at(10);
        take(&mut losses, 10, &[12, 14], 15);
        losses.find(NOW, NONE, single);
        repeat(&mut losses, 15);
        // 15 was sent after the repetitions of 10, 11 and 13.
        take(&mut losses, 10, &[15], 16);
        assert_eq!((losses.find(NOW, NONE, single), lost(&losses)), (3, vec![10, 11, 13]));
        repeat(&mut losses, 16);
        assert_eq!(losses.find(NOW, NONE, single), 0);
        // The second repetition of 13 arrives, which was sent after those of 10 and 11.
        assert!(!losses.on_trigger(Psn::new(13), 2));
        take(&mut losses, 10, &[13], 16);
        assert_eq!((losses.find(NOW, NONE, single), lost(&losses)), (2, vec![10, 11]));
        assert_eq!(losses.lost().next().map(|packet| packet.transmission), Some(3));
    }

    #[test]
    fn a_lost_repetition_is_found_by_a_new_packet_behind_the_end_of_the_bitmap() {
        let mut losses = losses_at(10);
        take(&mut losses, 10, &[12], 1_500);
        losses.find(NOW, NONE, single);
        repeat(&mut losses, 1_500);
        losses.on_newest(Psn::new(1_499));
        assert_eq!(losses.find(NOW, NONE, single), 0, "sent before the repetitions");
        losses.on_newest(Psn::new(1_500));
        assert_eq!((losses.find(NOW, NONE, single), lost(&losses)), (2, vec![10, 11]));
        losses.on_newest(Psn::new(20));
        losses.advance(Psn::new(1_600));
        assert!(losses.is_over() && losses.is_consistent());
    }

    #[test]
    fn an_earlier_transmission_of_a_repeated_packet_shows_reordering() {
        let mut losses = losses_at(10);
        take(&mut losses, 10, &[11], 12);
        losses.find(NOW, NONE, single);
        repeat(&mut losses, 12);
        assert!(losses.on_trigger(Psn::new(10), 0));
        assert!(!losses.on_trigger(Psn::new(10), 1) && !losses.on_trigger(Psn::new(11), 0));
    }

    #[test]
    fn a_probe_that_arrives_shows_that_the_repetitions_before_it_were_lost() {
        let mut losses = losses_at(10);
        take(&mut losses, 10, &[11, 12], 13);
        losses.find(NOW, NONE, single);
        repeat(&mut losses, 13);
        losses.on_probe(LostPacket { psn: Psn::new(12), transmission: 8 });
        assert!(!losses.on_trigger(Psn::new(12), 0));
        assert_eq!(losses.find(NOW, NONE, single), 0);
        assert!(!losses.on_trigger(Psn::new(12), 8));
        assert_eq!((losses.find(NOW, NONE, single), lost(&losses)), (1, vec![10]));
    }

    #[test]
    fn with_a_tolerance_a_gap_is_lost_when_it_has_passed() {
        let mut losses = losses_at(10);
        let tolerance = Nanos(500);
        take(&mut losses, 10, &[12], 20);
        assert_eq!((losses.find(NOW, tolerance, single), losses.deadline(tolerance)), (0, NOW + tolerance));
        take(&mut losses, 10, &[11], 20);
        assert_eq!((losses.find(NOW + tolerance, tolerance, single), lost(&losses)), (1, vec![10]));
        assert_eq!(losses.deadline(tolerance), Nanos::NEVER);
    }

    #[test]
    fn a_read_request_is_one_packet_of_many_psns() {
        let mut losses = losses_at(10);
        let read = |psn: Psn| Some(if psn.is_within(Psn::new(11), 5) { (Psn::new(11), 5) } else { (psn, 1) });
        take(&mut losses, 10, &[16], 30);
        assert_eq!((losses.find(NOW, NONE, read), lost(&losses)), (2, vec![10, 11]));
        assert_eq!((losses.mark_all(Psn::new(30), read), lost(&losses).len()), (13, 15));
    }

    #[test]
    fn impossible_bitmaps_and_too_many_holes_change_nothing_beyond_the_limits() {
        let mut losses = losses_at(0xff_ffff);
        let all = [0xff; 120];
        let bits = AckBitmap::of(&all).expect("whole words");
        assert_eq!(losses.take_bitmap(bits, Psn::new(5)), 5, "PSNs 0 to 4; others were never sent");
        assert!(losses.is_consistent());
        let mut losses = losses_at(0);
        let odd: Vec<u32> = (0..400).map(|k| 2 * k + 1).collect();
        take(&mut losses, 0, &odd, 900);
        assert_eq!((losses.find(NOW, NONE, single), losses.holes.len()), (256, HOLES_MAX));
    }

    #[test]
    fn what_the_peer_had_no_room_for_is_lost_and_what_was_repeated_since_is_not() {
        let mut losses = losses_at(10);
        assert_eq!((losses.refused(Psn::new(13), 0, single), lost(&losses)), (4, vec![10, 11, 12, 13]));
        repeat(&mut losses, 14);
        assert_eq!(losses.refused(Psn::new(13), 0, single), 0, "the first transmission of 13");
        assert_eq!((losses.refused(Psn::new(11), 1, single), lost(&losses)), (2, vec![10, 11]));
        repeat(&mut losses, 14);
        assert_eq!(losses.refused(Psn::new(14), 0, single), 5, "14 was sent after all repetitions");
    }

    /// A sender and a receiver over a path that loses packets and acknowledgements and keeps their order.
    struct Model {
        rng: Rng,
        losses: Losses,
        base: Psn,
        sent: Psn,
        /// Packets on the way: distance from `base`, transmission.
        data: VecDeque<(u32, u8)>,
        arrived: Vec<bool>,
        acks: VecDeque<(u32, Vec<u8>, (u32, u8))>,
        acked: u32,
    }

    impl Model {
        fn transmit(&mut self, index: u32, transmission: u8) {
            if self.rng.below(10) > 0 {
                self.data.push_back((index, transmission));
            }
        }
        fn arrive(&mut self) {
            let Some((index, transmission)) = self.data.pop_front() else { return };
            assert!(transmission == 0 || !self.arrived[index as usize], "{index} had arrived and was repeated");
            self.arrived[index as usize] = true;
            if self.rng.below(10) > 2 {
                self.answer((index, transmission));
            }
        }
        /// Whether something has arrived of which the sender does not know.
        fn is_behind(&self) -> bool {
            let known = |k: usize| self.losses.has_arrived(self.base.add(k as u32));
            self.arrived.iter().enumerate().any(|(k, there)| *there && !known(k))
        }
        fn answer(&mut self, trigger: (u32, u8)) {
            let expected = self.arrived.iter().position(|there| !there).unwrap_or(self.arrived.len()) as u32;
            let behind = (expected + 1..self.arrived.len() as u32).filter(|k| self.arrived[*k as usize]);
            let bits = bitmap(&behind.filter(|k| k - expected <= 960).collect::<Vec<_>>(), expected);
            self.acks.push_back((expected, bits, trigger));
        }
        fn acknowledge(&mut self) {
            let Some((expected, bits, (index, transmission))) = self.acks.pop_front() else { return };
            assert!(!self.losses.on_trigger(self.base.add(index), transmission));
            self.losses.advance(self.base.add(expected));
            self.acked = expected;
            self.losses.take_bitmap(AckBitmap::of(&bits).expect("whole words"), self.sent);
            self.losses.find(NOW, NONE, single);
            assert!(self.losses.is_consistent());
            let again: Vec<LostPacket> = self.losses.lost().collect();
            for packet in again {
                self.losses.on_repeated(packet.psn, self.sent);
                self.transmit(packet.psn.diff(self.base) as u32, packet.transmission);
            }
        }
    }

    #[test]
    fn on_a_path_that_keeps_order_everything_arrives_and_nothing_is_repeated_that_has() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let base = Psn::new(0xff_ff00 + rng.below(512) as u32);
            let mut losses = Losses::new().expect("memory");
            losses.begin(base);
            let (data, acks) = (VecDeque::new(), VecDeque::new());
            let mut model = Model { rng, losses, base, sent: base, data, arrived: Vec::new(), acks, acked: 0 };
            for step in 0..6000u32 {
                match model.rng.below(3) {
                    0 if model.arrived.len() as u32 - model.acked < 300 => {
                        let index = model.arrived.len() as u32;
                        model.arrived.push(false);
                        model.sent = model.sent.next();
                        model.transmit(index, 0);
                    }
                    1 => model.arrive(),
                    _ => model.acknowledge(),
                }
                if step % 1000 == 999 {
                    // Everything on the way has come, so a time-out is right about all that is missing.
                    model.answer((1 << 20, 0));
                    while !(model.data.is_empty() && model.acks.is_empty()) {
                        model.arrive();
                        model.acknowledge();
                        if model.data.is_empty() && model.acks.is_empty() && model.is_behind() {
                            model.answer((1 << 20, 0));
                        }
                    }
                    model.losses.mark_all(model.sent, single);
                    let again: Vec<LostPacket> = model.losses.lost().collect();
                    for packet in again {
                        model.losses.on_repeated(packet.psn, model.sent);
                        model.transmit(packet.psn.diff(base) as u32, packet.transmission);
                    }
                }
            }
            let there = model.arrived.iter().filter(|there| **there).count();
            assert!(
                there + 300 > model.arrived.len() && there > 500,
                "seed {seed}: {there} of {}",
                model.arrived.len()
            );
        }
    }
}
