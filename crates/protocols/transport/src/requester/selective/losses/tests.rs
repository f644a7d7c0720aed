//! Which packets are found to be lost, by hand and against a model.

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
    losses.take_bitmap(AckBitmap::of(&bytes).expect("whole words"), None, Psn::new(sent))
}
fn lost(losses: &Losses) -> Vec<u32> {
    let all = (0..WINDOW_PSNS).map(|k| losses.base.add(k)).filter(|psn| losses.is_lost(*psn));
    all.map(Psn::get).collect()
}
fn repeat(losses: &mut Losses, sent: u32) {
    while let Some(packet) = losses.first_lost() {
        losses.on_repeated(packet.psn, Psn::new(sent));
    }
}
fn losses_at(base: u32) -> Losses {
    let mut losses = Losses::new().expect("memory");
    losses.begin(Psn::new(base), Psn::new(base));
    losses
}

#[test]
fn gaps_are_lost_and_repeated_once() {
    let mut losses = losses_at(10);
    assert_eq!(take(&mut losses, 10, &[12, 13, 16], 20), 3);
    assert_eq!(losses.find(NOW, NONE, single).packets, 4);
    assert_eq!(lost(&losses), [10, 11, 14, 15]);
    assert_eq!(losses.find(NOW, NONE, single).packets, 0, "known");
    repeat(&mut losses, 20);
    assert_eq!((take(&mut losses, 10, &[17, 18, 19], 20), losses.find(NOW, NONE, single).packets), (3, 0));
    losses.advance(Psn::new(11));
    assert_eq!(losses.find(NOW, NONE, single).packets, 0);
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
    assert_eq!((losses.find(NOW, NONE, single).packets, lost(&losses)), (3, vec![10, 11, 13]));
    repeat(&mut losses, 16);
    assert_eq!(losses.find(NOW, NONE, single).packets, 0);
    // The second repetition of 13 arrives, which was sent after those of 10 and 11.
    assert!(!losses.on_trigger(Psn::new(13), 2));
    take(&mut losses, 10, &[13], 16);
    assert_eq!((losses.find(NOW, NONE, single).packets, lost(&losses)), (2, vec![10, 11]));
    assert_eq!(losses.first_lost().map(|packet| packet.transmission), Some(3));
}

#[test]
fn a_lost_repetition_is_found_by_a_new_packet_behind_the_end_of_the_bitmap() {
    let mut losses = losses_at(10);
    take(&mut losses, 10, &[12], 1_500);
    losses.find(NOW, NONE, single);
    repeat(&mut losses, 1_500);
    losses.on_newest(Psn::new(1_499));
    assert_eq!(losses.find(NOW, NONE, single).packets, 0, "sent before the repetitions");
    losses.on_newest(Psn::new(1_500));
    assert_eq!((losses.find(NOW, NONE, single).packets, lost(&losses)), (2, vec![10, 11]));
    losses.on_newest(Psn::new(20));
    losses.advance(Psn::new(1_600));
    assert!(losses.is_over() && losses.is_consistent());
}

/// A flight longer than what acknowledgements can report, of which all has left: it takes no room, or nothing but the first
/// missing packet could be repeated (liveness seed 497).
#[test]
fn what_was_sent_before_a_repetition_that_has_arrived_has_left() {
    let mut losses = losses_at(10);
    take(&mut losses, 10, &[12, 900], 2_000);
    losses.find(NOW, NONE, single);
    assert_eq!((losses.left_within(Psn::new(11), 1_989, true), losses.left_within(Psn::new(901), 99, true)), (0, 0));
    losses.on_newest(Psn::new(1_499));
    assert_eq!(losses.left_within(Psn::new(11), 1_989, true), 529, "from 971 to 1499");
    assert_eq!(losses.left_within(Psn::new(11), 1_989, false), 599, "from 901 on, where none may be late");
    assert_eq!(
        (losses.left_within(Psn::new(1_000), 10, true), losses.left_within(Psn::new(1_490), 100, true)),
        (10, 10)
    );
    losses.on_repeated(Psn::new(10), Psn::new(2_000));
    assert_eq!(losses.left_within(Psn::new(11), 1_989, true), 529, "the repetition has not arrived");
    losses.on_trigger(Psn::new(10), 1);
    assert_eq!(losses.left_within(Psn::new(11), 1_989, true), 1_029);
    losses.mark_all(Psn::new(2_000), single);
    assert_eq!(losses.left_within(Psn::new(11), 1_989, true), 0, "all of it is in the sets");
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
    assert_eq!(losses.find(NOW, NONE, single).packets, 0);
    assert!(!losses.on_trigger(Psn::new(12), 8));
    assert_eq!((losses.find(NOW, NONE, single).packets, lost(&losses)), (1, vec![10]));
}

#[test]
fn with_a_tolerance_a_gap_is_lost_when_it_has_passed() {
    let mut losses = losses_at(10);
    let tolerance = Nanos(500);
    take(&mut losses, 10, &[12], 20);
    assert_eq!((losses.find(NOW, tolerance, single).packets, losses.deadline(tolerance)), (0, NOW + tolerance));
    take(&mut losses, 10, &[11], 20);
    assert_eq!((losses.find(NOW + tolerance, tolerance, single).packets, lost(&losses)), (1, vec![10]));
    assert_eq!(losses.deadline(tolerance), Nanos::NEVER);
}

#[test]
fn a_read_request_is_one_packet_of_many_psns() {
    let mut losses = losses_at(10);
    let read = |psn: Psn| Some(if psn.is_within(Psn::new(11), 5) { (Psn::new(11), 5) } else { (psn, 1) });
    take(&mut losses, 10, &[16], 30);
    assert_eq!((losses.find(NOW, NONE, read).packets, lost(&losses)), (2, vec![10, 11]));
    assert_eq!((losses.mark_all(Psn::new(30), read).packets, lost(&losses).len()), (13, 15));
}

#[test]
fn impossible_bitmaps_change_nothing_beyond_the_limits() {
    let mut losses = losses_at(0xff_ffff);
    let all = [0xff; 120];
    let bits = AckBitmap::of(&all).expect("whole words");
    assert_eq!(losses.take_bitmap(bits, None, Psn::new(5)), 5, "PSNs 0 to 4; others were never sent");
    assert!(losses.is_consistent());
    let mut losses = losses_at(0);
    let odd: Vec<u32> = (0..400).map(|k| 2 * k + 1).collect();
    take(&mut losses, 0, &odd, 900);
    assert_eq!(losses.find(NOW, NONE, single).packets, 400, "every gap has a place");
}

#[test]
fn what_the_peer_had_no_room_for_is_lost_and_what_was_repeated_since_is_not() {
    let mut losses = losses_at(10);
    assert_eq!((losses.refused(Psn::new(13), 0, single).packets, lost(&losses)), (4, vec![10, 11, 12, 13]));
    repeat(&mut losses, 14);
    assert_eq!(losses.refused(Psn::new(13), 0, single).packets, 0, "the first transmission of 13");
    assert_eq!((losses.refused(Psn::new(11), 1, single).packets, lost(&losses)), (2, vec![10, 11]));
    repeat(&mut losses, 14);
    assert_eq!(losses.refused(Psn::new(14), 0, single).packets, 5, "14 was sent after all repetitions");
}

#[test]
fn a_whole_window_may_be_lost_and_is_repeated_in_order() {
    let mut losses = losses_at(0xff_fff0);
    let (base, end) = (Psn::new(0xff_fff0), Psn::new(0xff_fff0).add(WINDOW_PSNS));
    assert_eq!(losses.mark_all(end, single).packets, WINDOW_PSNS);
    for k in 0..WINDOW_PSNS {
        assert_eq!(losses.first_lost(), Some(LostPacket { psn: base.add(k), transmission: 1 }));
        losses.on_repeated(base.add(k), end);
    }
    assert!(losses.first_lost().is_none() && losses.is_consistent());
    // The last repetition has arrived alone: those before it were lost again.
    assert!(!losses.on_trigger(end.prev(), 1));
    assert_eq!(losses.find(NOW, NONE, single).packets, WINDOW_PSNS - 1);
    losses.advance(end);
    assert!(losses.is_over() && losses.is_consistent());
}

#[test]
fn what_a_full_bitmap_does_not_report_is_not_lost_and_what_it_reports_empty_is() {
    let (empty, sent) = ([0; 120], Psn::new(3_000));
    let bits = |words: usize| AckBitmap::of(&empty[..8 * words]).expect("whole words");
    let mut losses = losses_at(0);
    losses.take_bitmap(bits(BITMAP_WORDS_MAX), Some(Psn::new(1_500)), sent);
    assert_eq!(losses.find(NOW, NONE, single).packets, REPORTED_PSNS + 1);
    // A short bitmap has all that has arrived, so everything up to the newest packet is missing.
    let mut losses = losses_at(0);
    losses.take_bitmap(bits(1), Some(Psn::new(1_500)), sent);
    assert_eq!(losses.find(NOW, NONE, single).packets, 1_501);
    losses.take_bitmap(bits(1), Some(Psn::new(4_000)), sent);
    assert_eq!(losses.find(NOW, NONE, single).packets, 0, "never sent");
    assert!(losses.is_consistent());
}

#[test]
fn congestion_control_gets_one_signal_for_each_window_of_data() {
    let mut losses = losses_at(10);
    let find = |losses: &mut Losses, sent| {
        let found = losses.find(NOW, NONE, single);
        if found.is_signal {
            losses.on_signal(Psn::new(sent));
        }
        (found.packets, found.is_signal)
    };
    take(&mut losses, 10, &[12], 100);
    assert_eq!(find(&mut losses, 100), (2, true));
    take(&mut losses, 10, &[50, 99], 100);
    assert_eq!(find(&mut losses, 100), (85, false), "sent before the first report");
    repeat(&mut losses, 100);
    take(&mut losses, 10, &[100], 101);
    let (packets, is_signal) = find(&mut losses, 101);
    assert!(packets == 87 && is_signal, "the repetitions were lost, too: {packets}");
    repeat(&mut losses, 101);
    take(&mut losses, 10, &[102], 103);
    assert_eq!(find(&mut losses, 103), (88, true), "101 was sent after the report");
    // A time-out is a report of its own.
    repeat(&mut losses, 103);
    losses.mark_all(Psn::new(103), single);
    losses.on_signal(Psn::new(103));
    take(&mut losses, 10, &[20], 103);
    assert_eq!(find(&mut losses, 103), (0, false));
    // The next record begins with what was reported.
    losses.begin(Psn::new(60), Psn::new(103));
    take(&mut losses, 60, &[70], 120);
    assert_eq!(find(&mut losses, 120), (10, false));
    take(&mut losses, 60, &[110], 120);
    assert_eq!(find(&mut losses, 120), (39, true));
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
        self.losses.take_bitmap(AckBitmap::of(&bits).expect("whole words"), None, self.sent);
        self.losses.find(NOW, NONE, single);
        assert!(self.losses.is_consistent());
        while let Some(packet) = self.losses.first_lost() {
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
        losses.begin(base, base);
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
                while let Some(packet) = model.losses.first_lost() {
                    model.losses.on_repeated(packet.psn, model.sent);
                    model.transmit(packet.psn.diff(base) as u32, packet.transmission);
                }
            }
        }
        let there = model.arrived.iter().filter(|there| **there).count();
        assert!(there + 300 > model.arrived.len() && there > 500, "seed {seed}: {there} of {}", model.arrived.len());
    }
}
