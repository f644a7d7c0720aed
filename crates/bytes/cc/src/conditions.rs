//! The automatic choice of an algorithm for one path, from what its peer is and what its packets have met.
//!
//! | what is known of the path | algorithm |
//! |---|---|
//! | nothing, or a Burst daemon | the default |
//! | the connection manager shows another implementation (BURST, section 4.5) | `dcqcn`, as the adapter uses then |
//! | marks that the peer's acknowledgements count | `dctcp` |
//! | congestion notification packets | `dcqcn` |
//! | packets were lost where the path did not mark | the default |
//!
//! **Evidence.** Time is divided into periods of [`PERIOD`] or longer. A period is marked if a notification came, or if one in
//! [`MARKED_SHARE`] of at least [`PACKETS_MIN`] reported packets was marked: queues that mark at a threshold mark many packets
//! when they mark at all. Rare marks, as of CoDel or RED, are meant for TCP, and `dctcp` would take the link from it. A period is
//! lossy if packets were lost in it, no packet was marked, and the peer did not say that they were lost in its own receive
//! buffers. [`MARKED_PERIODS`] marked periods, none more than [`MARK_MEMORY`] after the one before, show that the path marks;
//! [`LOST_PERIODS`] lossy periods without a marked one between, none more than [`LOSS_MEMORY`] after the one before, that it
//! drops where it does not mark. Silence shows nothing.
//!
//! **Hysteresis.** After losses without marks the default stays for [`HOLD`], doubled each time up to [`HOLD_MAX`], whatever
//! marks come. A path that has marked for longer than [`HOLD_MAX`] begins again with [`HOLD`].
//!
//! Each call takes constant time, and there is no timer: nothing changes unless packets meet something.

use crate::api::PRESSURE_LOST;
use burst_base::Nanos;

/// Shortest period of evidence.
pub const PERIOD: Nanos = Nanos::from_ms(10);
/// A period with fewer reported packets than [`PACKETS_MIN`] ends after this.
const PERIOD_MAX: Nanos = Nanos::from_ms(1_000);
/// Reported packets of which the marked share is taken.
pub const PACKETS_MIN: u32 = 64;
/// One marked packet in so many makes a period marked.
pub const MARKED_SHARE: u32 = 32;
/// Marked periods that show that the path marks.
pub const MARKED_PERIODS: u8 = 3;
/// Lossy periods that show that the path drops and does not mark.
pub const LOST_PERIODS: u8 = 3;
/// A marked period counts no longer if the next one is so much later.
pub const MARK_MEMORY: Nanos = Nanos::from_ms(1_000);
/// The same of lossy periods.
pub const LOSS_MEMORY: Nanos = Nanos::from_ms(10_000);
/// Time for which marks change nothing, after losses without marks.
pub const HOLD: Nanos = Nanos::from_ms(10_000);
/// The longest such time.
pub const HOLD_MAX: Nanos = Nanos::from_ms(640_000);

/// What a path is like, as far as its packets have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathNature {
    /// They have met nothing.
    #[default]
    Unknown,
    /// The peer is another implementation than Burst, as the connection manager has shown.
    Adapter,
    /// Marks, which the peer's acknowledgements count.
    Marks,
    /// Congestion notification packets.
    Notifications,
    /// Losses where the path did not mark.
    Losses,
}

/// The evidence of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConditions {
    nature: PathNature,
    /// The nature has changed since [`PathConditions::take_change`].
    is_new: bool,
    /// In the present period: a notification came, packets were lost, the peer has lost them itself.
    is_notified: bool,
    is_lossy: bool,
    is_overrun: bool,
    /// Marked and lossy periods that count.
    marked_periods: u8,
    lost_periods: u8,
    /// How often losses have ended the use of marks.
    holds: u8,
    /// How often the nature has changed.
    changes: u32,
    /// Packets reported in the present period, and those of them that were marked.
    packets: u32,
    ce_packets: u32,
    period_from: Nanos,
    marked_at: Nanos,
    lost_at: Nanos,
    changed_at: Nanos,
    held_until: Nanos,
}

impl PathConditions {
    /// Nothing is known at `now`.
    pub fn new(now: Nanos) -> PathConditions {
        PathConditions {
            nature: PathNature::Unknown,
            is_new: false,
            is_notified: false,
            is_lossy: false,
            is_overrun: false,
            marked_periods: 0,
            lost_periods: 0,
            holds: 0,
            changes: 0,
            packets: 0,
            ce_packets: 0,
            period_from: now,
            marked_at: Nanos(0),
            lost_at: Nanos(0),
            changed_at: now,
            held_until: Nanos(0),
        }
    }

    /// What the path is like.
    pub fn nature(&self) -> PathNature {
        self.nature
    }

    /// How often that has changed.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Whether it has changed, and [`PathConditions::take_change`] was not asked since.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether it has changed since this was last asked.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// The connection manager has shown that the peer is another implementation than Burst. What packets have met says more.
    pub fn note_adapter(&mut self, now: Nanos) {
        if self.nature == PathNature::Unknown {
            self.become_nature(now, PathNature::Adapter);
        }
    }

    /// The peer has reported `packets`, of which `ce_packets` were marked, and the pressure of its receive buffers.
    #[inline]
    pub fn on_report(&mut self, now: Nanos, packets: u32, ce_packets: u32, pressure: u8) {
        if now.since(self.period_from) >= PERIOD {
            self.end_period(now);
        }
        self.packets = self.packets.saturating_add(packets);
        self.ce_packets = self.ce_packets.saturating_add(ce_packets);
        self.is_overrun |= pressure >= PRESSURE_LOST;
    }

    /// A congestion notification packet came.
    #[cold]
    pub fn on_cnp(&mut self, now: Nanos) {
        self.end_period(now);
        self.is_notified = true;
    }

    /// Packets were lost.
    #[cold]
    pub fn on_loss(&mut self, now: Nanos) {
        self.end_period(now);
        self.is_lossy = true;
    }

    /// Draws the conclusions of the present period, if it has ended.
    #[cold]
    #[inline(never)]
    fn end_period(&mut self, now: Nanos) {
        let lasted = now.since(self.period_from);
        let is_enough = self.packets == 0 || self.packets >= PACKETS_MIN;
        if lasted < PERIOD || (!is_enough && lasted < PERIOD_MAX) {
            return;
        }
        let counts =
            self.packets >= PACKETS_MIN && self.ce_packets >= self.packets / MARKED_SHARE && self.ce_packets > 0;
        if counts || self.is_notified {
            self.note_marked(now, if counts { PathNature::Marks } else { PathNature::Notifications });
        } else if self.is_lossy && !self.is_overrun && self.ce_packets == 0 {
            self.note_lossy(now);
        }
        (self.packets, self.ce_packets, self.period_from) = (0, 0, now);
        (self.is_notified, self.is_lossy, self.is_overrun) = (false, false, false);
    }

    fn note_marked(&mut self, now: Nanos, nature: PathNature) {
        let is_old = now.since(self.marked_at) > MARK_MEMORY + PERIOD_MAX;
        self.marked_periods = if is_old { 1 } else { self.marked_periods.saturating_add(1) };
        (self.marked_at, self.lost_periods) = (now, 0);
        if self.marked_periods >= MARKED_PERIODS && self.nature != nature && now >= self.held_until {
            // Both come where only some of the peer's queue pairs count marks: the counts say more.
            if self.nature != PathNature::Marks {
                self.become_nature(now, nature);
            }
        }
    }

    fn note_lossy(&mut self, now: Nanos) {
        let is_old = now.since(self.lost_at) > LOSS_MEMORY;
        self.lost_periods = if is_old { 1 } else { self.lost_periods.saturating_add(1) };
        (self.lost_at, self.marked_periods) = (now, 0);
        let used_marks = !matches!(self.nature, PathNature::Unknown | PathNature::Losses);
        if self.lost_periods >= LOST_PERIODS && used_marks {
            if now.since(self.changed_at) > HOLD_MAX {
                self.holds = 0;
            }
            self.held_until = now + Nanos(HOLD.0 << self.holds.min(6)).min(HOLD_MAX);
            self.holds = self.holds.saturating_add(1);
            self.become_nature(now, PathNature::Losses);
        }
    }

    fn become_nature(&mut self, now: Nanos, nature: PathNature) {
        debug_assert_ne!(self.nature, nature, "a change that is none");
        (self.nature, self.is_new, self.changed_at) = (nature, true, now);
        (self.marked_periods, self.lost_periods) = (0, 0);
        self.changes = self.changes.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A path in virtual time: 100 packets each millisecond.
    struct Trial {
        path: PathConditions,
        now: Nanos,
    }

    /// What packets meet in a millisecond.
    #[derive(Clone, Copy)]
    enum Met {
        Nothing,
        Marks(u32),
        Notification,
        Loss,
        Overrun,
    }

    impl Trial {
        fn new() -> Trial {
            Trial { path: PathConditions::new(Nanos(0)), now: Nanos(0) }
        }
        fn pass(&mut self, ms: u64, met: Met) -> PathNature {
            for _ in 0..ms {
                self.now = self.now + Nanos(MS);
                match met {
                    Met::Nothing => self.path.on_report(self.now, 100, 0, 0),
                    Met::Marks(share) => self.path.on_report(self.now, 100, share, 0),
                    Met::Notification => self.path.on_cnp(self.now),
                    Met::Loss => self.path.on_loss(self.now),
                    Met::Overrun => {
                        self.path.on_report(self.now, 100, 0, PRESSURE_LOST);
                        self.path.on_loss(self.now);
                    }
                }
            }
            self.path.nature()
        }
    }

    #[test]
    fn marks_show_themselves_in_three_periods_and_rare_ones_never() {
        let mut trial = Trial::new();
        assert_eq!(trial.pass(29, Met::Marks(20)), PathNature::Unknown);
        assert!(!trial.path.is_new());
        assert_eq!(trial.pass(1, Met::Marks(20)), PathNature::Marks);
        assert!(trial.path.is_new() && trial.path.take_change() && !trial.path.take_change());
        assert_eq!(Trial::new().pass(60_000, Met::Marks(1)), PathNature::Unknown, "one in 100: a queue for TCP");
        // Marks of a moment are forgotten.
        let mut trial = Trial::new();
        for _ in 0..20 {
            trial.pass(15, Met::Marks(20));
            assert_eq!(trial.pass(3_000, Met::Nothing), PathNature::Unknown);
        }
    }

    #[test]
    fn notifications_show_marks_that_the_peer_does_not_count() {
        let mut trial = Trial::new();
        assert_eq!(trial.pass(45, Met::Notification), PathNature::Notifications);
        assert_eq!(trial.pass(45, Met::Marks(20)), PathNature::Marks, "counts say more");
        assert_eq!(trial.pass(100, Met::Notification), PathNature::Marks);
        assert_eq!(trial.path.changes(), 2);
    }

    #[test]
    fn an_adapter_keeps_its_algorithm_until_packets_are_lost_without_marks() {
        let mut trial = Trial::new();
        trial.path.note_adapter(trial.now);
        assert!(trial.path.take_change());
        assert_eq!(trial.pass(60_000, Met::Nothing), PathNature::Adapter);
        assert_eq!(trial.pass(15, Met::Loss), PathNature::Adapter, "two periods");
        // Single losses far from each other are none of congestion.
        trial.pass(20_000, Met::Nothing);
        assert_eq!(trial.pass(11, Met::Loss), PathNature::Adapter);
        trial.pass(20_000, Met::Nothing);
        assert_eq!(trial.pass(45, Met::Loss), PathNature::Losses);
        trial.path.note_adapter(trial.now);
        assert_eq!(trial.path.nature(), PathNature::Losses, "the next connection changes nothing");
        assert_eq!(trial.pass(9_900, Met::Notification), PathNature::Losses, "held for ten seconds");
        assert_eq!(trial.pass(200, Met::Notification), PathNature::Notifications);
    }

    #[test]
    fn losses_beside_marks_and_in_the_peers_buffers_do_not_count() {
        let mut trial = Trial::new();
        trial.pass(50, Met::Marks(20));
        for _ in 0..100 {
            trial.pass(11, Met::Loss);
            trial.pass(11, Met::Marks(20));
        }
        assert_eq!(trial.path.nature(), PathNature::Marks);
        assert_eq!(trial.pass(1_000, Met::Overrun), PathNature::Marks);
        assert_eq!(trial.pass(50, Met::Loss), PathNature::Losses);
    }

    /// Whatever packets meet, the algorithm changes seldom: each change begins with a controller in its first state.
    #[test]
    fn a_path_of_marks_and_losses_in_turn_changes_a_few_times_in_an_hour() {
        let mut trial = Trial::new();
        let mut natures = [0u32; 2];
        while trial.now < Nanos(3_600_000 * MS) {
            trial.pass(50, Met::Marks(20));
            natures[usize::from(trial.path.nature() == PathNature::Marks)] += 1;
            trial.pass(50, Met::Loss);
        }
        // Held for 10, 20, … 640 s: seven times in 1,270 s, then once in 640 s.
        assert_eq!(trial.path.changes(), 2 * (7 + 3 + 1), "{natures:?}");
        assert!(natures[1] > 0 && natures[0] > 100 * natures[1], "{natures:?}");
    }

    #[test]
    fn a_path_that_has_marked_for_long_is_held_as_at_first() {
        let mut trial = Trial::new();
        for _ in 0..4 {
            trial.pass(700_000, Met::Marks(20));
            assert_eq!(trial.path.nature(), PathNature::Marks);
            assert_eq!(trial.pass(50, Met::Loss), PathNature::Losses);
            trial.pass(9_900, Met::Marks(20));
            assert_eq!(trial.path.nature(), PathNature::Losses);
            assert_eq!(trial.pass(200, Met::Marks(20)), PathNature::Marks);
        }
    }

    #[test]
    fn a_clock_that_goes_back_and_counts_without_sense_do_no_harm() {
        let mut path = PathConditions::new(Nanos(77 * MS));
        for now in [Nanos(0), Nanos(u64::MAX), Nanos(5), Nanos(u64::MAX)] {
            path.on_report(now, u32::MAX, u32::MAX, 255);
            path.on_report(now, 0, u32::MAX, 0);
            path.on_cnp(now);
            path.on_loss(now);
        }
        assert!(path.changes() <= 4);
    }
}
