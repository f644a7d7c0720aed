//! A hierarchical timing wheel: one timer per key, O(1) to set, move and cancel.
//!
//! Nine levels of 64 slots; a slot of level 0 is one tick of 8.192 us, a slot of level n is 64 slots of level n - 1,
//! so that the levels together span all of [`Nanos`] and no deadline is too far. A timer lies on the level of the
//! highest 6-bit digit in which its tick differs from the present tick. When time reaches its slot it moves down, at
//! most eight times in its life (Varghese and Lauck, SOSP 1987, scheme 7). One 64-bit word per level has a bit for each
//! occupied slot, so [`Wheel::advance`] costs time for the timers that it moves, not for the distance that time jumps.
//!
//! A timer never fires early, and at most one tick after its deadline if `advance` is called then. Timers fire in
//! order of their ticks, those of one tick in order of setting unless they came down from different levels. Lists are
//! intrusive, in an array indexed by key: only `new`, `grow` and `shrink` allocate.

use crate::Nanos;
use crate::heap::{self, OutOfMemory};

/// log2 of a tick in nanoseconds.
pub const TICK_SHIFT: u32 = 13;
/// Resolution of the wheel: 8.192 us.
pub const TICK: Nanos = Nanos(1 << TICK_SHIFT);

const LEVEL_BITS: u32 = 6;
const LEVEL_SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 9;
const _: () = assert!(LEVELS as u32 * LEVEL_BITS + TICK_SHIFT > 64);

/// The first of two lists of timers that are due, after the slots of all levels: by turns one is added to while the other is
/// fired.
const DUE: u16 = (LEVELS * LEVEL_SLOTS) as u16;
const LISTS: usize = LEVELS * LEVEL_SLOTS + 2;
/// `list` of a timer that is in no list.
const IDLE: u16 = u16::MAX;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct TimerList {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    deadline: Nanos,
    next: u32,
    prev: u32,
    /// The list it is in, or `IDLE`.
    list: u16,
}

const IDLE_TIMER: Timer = Timer { deadline: Nanos::NEVER, next: NONE, prev: NONE, list: IDLE };

/// Timers by key, `0..capacity`.
#[derive(Clone, Debug)]
pub struct Wheel {
    timers: Vec<Timer>,
    lists: [TimerList; LISTS],
    /// Bit s of word l: slot s of level l is not empty.
    occupied: [u64; LEVELS],
    /// The present, in ticks: every timer in a slot has a later tick.
    present: u64,
    armed: u32,
    /// Whether timers become due in the second list.
    is_second: bool,
}

/// The first tick at which a deadline has passed.
const fn tick_of(deadline: Nanos) -> u64 {
    deadline.0.div_ceil(TICK.0)
}

impl Wheel {
    /// A wheel for the keys `0..capacity`, at time zero, nothing armed.
    pub fn new(capacity: u32) -> Self {
        assert!(capacity < NONE);
        Wheel {
            timers: vec![IDLE_TIMER; capacity as usize],
            lists: [TimerList { first: NONE, last: NONE }; LISTS],
            occupied: [0; LEVELS],
            present: 0,
            armed: 0,
            is_second: false,
        }
    }
    /// Makes room for the keys `0..capacity`. Allocates: not for the data path.
    pub fn grow(&mut self, capacity: u32) {
        assert!(capacity < NONE);
        if capacity as usize > self.timers.len() {
            self.timers.resize(capacity as usize, IDLE_TIMER);
        }
    }
    /// Makes room for [`Wheel::grow`] to `capacity`, which then does not allocate.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self, capacity: u32) -> Result<(), OutOfMemory> {
        heap::reserve(&mut self.timers, capacity as usize)
    }
    /// Frees the memory of keys from `capacity` on, except keys up to the last armed one. Allocates.
    pub fn shrink(&mut self, capacity: u32) {
        let used = self.timers.iter().rposition(|t| t.list != IDLE).map_or(0, |last| last + 1);
        self.timers.truncate(used.max(capacity as usize));
        self.timers.shrink_to_fit();
    }
    /// Number of keys.
    pub fn capacity(&self) -> u32 {
        self.timers.len() as u32
    }
    /// Number of armed timers.
    pub const fn len(&self) -> u32 {
        self.armed
    }
    /// Whether no timer is armed.
    pub const fn is_empty(&self) -> bool {
        self.armed == 0
    }
    /// Arms the timer of `key`, or moves it. [`Nanos::NEVER`] disarms it. Panics if the key is out of range.
    pub fn insert(&mut self, key: u32, deadline: Nanos) {
        self.cancel(key);
        if deadline == Nanos::NEVER {
            return;
        }
        self.timers[key as usize].deadline = deadline;
        self.armed += 1;
        self.place(key);
    }
    /// Disarms the timer of `key` and returns whether it was armed. Panics if the key is out of range.
    pub fn cancel(&mut self, key: u32) -> bool {
        if self.timers[key as usize].list == IDLE {
            return false;
        }
        self.unlink(key);
        self.timers[key as usize].deadline = Nanos::NEVER;
        self.armed -= 1;
        true
    }
    /// The deadline of the timer of `key`, if it is armed.
    pub fn deadline_of(&self, key: u32) -> Option<Nanos> {
        let timer = self.timers.get(key as usize)?;
        (timer.list != IDLE).then_some(timer.deadline)
    }
    /// Moves to `now`, and disarms and then passes to `fire` each timer that is due. Time never goes back: an earlier `now` than
    /// before only fires timers that are due already.
    pub fn advance(&mut self, now: Nanos, mut fire: impl FnMut(u32)) {
        self.move_to(now);
        for list in [self.firing(), self.due()] {
            while let Some(key) = self.take_first(list) {
                fire(key);
            }
        }
    }
    /// Moves to `now`, and begins to fire what is due: [`Wheel::pop_firing`] follows until nothing is left.
    #[inline]
    pub fn begin_firing(&mut self, now: Nanos) {
        self.move_to(now);
        if self.lists[self.firing()].first == NONE {
            self.is_second = !self.is_second;
        }
    }
    /// Disarms and returns one of the timers that were due at [`Wheel::begin_firing`]. One that is armed since then with a
    /// deadline in the past is not among them: it fires the next time, so that a caller who arms each timer again comes to an
    /// end.
    #[inline]
    pub fn pop_firing(&mut self) -> Option<u32> {
        self.take_first(self.firing())
    }
    /// Moves to `now`, and disarms and returns one timer that is due. A timer armed with a deadline in the past is returned
    /// again at once, so a caller who arms timers must bound its loop, or use [`Wheel::begin_firing`].
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        self.move_to(now);
        self.take_first(self.firing()).or_else(|| self.take_first(self.due()))
    }
    /// The time at which to call [`Wheel::advance`] next: at most one tick after the earliest deadline, and earlier if that
    /// deadline is far (the timer then moves to a finer level). [`Nanos::NEVER`] if no timer is armed.
    pub fn next_deadline(&self) -> Nanos {
        if self.armed == 0 {
            return Nanos::NEVER;
        }
        if self.lists[self.due()].first != NONE || self.lists[self.firing()].first != NONE {
            return Nanos(self.present << TICK_SHIFT);
        }
        self.next_slot().map_or(Nanos::NEVER, |(_, tick)| Nanos(tick.saturating_mul(TICK.0)))
    }

    /// List number of the occupied slot that time reaches first, and the tick at which it begins.
    fn next_slot(&self) -> Option<(u16, u64)> {
        let level = self.occupied.iter().position(|&word| word != 0)?;
        let slot = u64::from(self.occupied[level].trailing_zeros());
        let shift = level as u32 * LEVEL_BITS;
        let above = self.present >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS);
        Some(((level * LEVEL_SLOTS) as u16 + slot as u16, above | slot << shift))
    }
    /// Moves every timer whose tick has come to the due list.
    #[inline]
    fn move_to(&mut self, now: Nanos) {
        let target = now.0 >> TICK_SHIFT;
        if target > self.present {
            self.move_on(target);
        }
    }
    fn move_on(&mut self, target: u64) {
        while let Some((list, begin)) = self.next_slot().filter(|&(_, begin)| begin <= target) {
            debug_assert!(begin > self.present);
            self.present = begin;
            self.empty_slot(list);
        }
        self.present = target;
        debug_assert!(self.next_slot().is_none_or(|(_, begin)| begin > self.present), "no slot is behind the present");
    }
    /// Moves every timer of a slot that the present has reached to a finer level or to the due list.
    fn empty_slot(&mut self, list: u16) {
        let mut key =
            core::mem::replace(&mut self.lists[usize::from(list)], TimerList { first: NONE, last: NONE }).first;
        self.occupied[usize::from(list) / LEVEL_SLOTS] &= !(1 << (usize::from(list) % LEVEL_SLOTS));
        while key != NONE {
            let next = self.timers[key as usize].next;
            self.place(key);
            key = next;
        }
    }
    /// Appends a timer that is in no list to the list of its deadline.
    fn place(&mut self, key: u32) {
        let tick = tick_of(self.timers[key as usize].deadline);
        debug_assert!(self.timers[key as usize].deadline != Nanos::NEVER);
        let number = if tick <= self.present {
            self.due() as u16
        } else {
            let level = (63 - (tick ^ self.present).leading_zeros()) / LEVEL_BITS;
            let slot = (tick >> (level * LEVEL_BITS)) as usize % LEVEL_SLOTS;
            self.occupied[level as usize] |= 1 << slot;
            (level as usize * LEVEL_SLOTS + slot) as u16
        };
        debug_assert!(usize::from(number) < LISTS);
        let list = &mut self.lists[usize::from(number)];
        debug_assert_eq!(list.first == NONE, list.last == NONE, "a list has both ends or none");
        let last = core::mem::replace(&mut list.last, key);
        match self.timers.get_mut(last as usize) {
            Some(before) => before.next = key,
            None => list.first = key,
        }
        let timer = &mut self.timers[key as usize];
        (timer.prev, timer.next, timer.list) = (last, NONE, number);
    }
    /// Removes a timer from its list.
    fn unlink(&mut self, key: u32) {
        let Timer { next, prev, list: number, .. } = self.timers[key as usize];
        debug_assert!(number != IDLE && self.armed > 0);
        let list = &mut self.lists[usize::from(number)];
        match self.timers.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => list.first = next,
        }
        match self.timers.get_mut(next as usize) {
            Some(after) => after.prev = prev,
            None => list.last = prev,
        }
        if list.first == NONE && number < DUE {
            self.occupied[usize::from(number) / LEVEL_SLOTS] &= !(1 << (usize::from(number) % LEVEL_SLOTS));
        }
        debug_assert_eq!(list.first == NONE, list.last == NONE, "a list has both ends or none");
        self.timers[key as usize].list = IDLE;
    }
    /// The list in which timers become due.
    #[inline]
    fn due(&self) -> usize {
        usize::from(DUE) + usize::from(self.is_second)
    }
    /// The list of those that are fired.
    #[inline]
    fn firing(&self) -> usize {
        usize::from(DUE) + usize::from(!self.is_second)
    }
    #[inline]
    fn take_first(&mut self, list: usize) -> Option<u32> {
        let key = self.lists[list].first;
        (key != NONE).then(|| {
            self.cancel(key);
            key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fired(wheel: &mut Wheel, now: Nanos) -> Vec<u32> {
        let mut keys = Vec::new();
        wheel.advance(now, |key| keys.push(key));
        keys
    }

    #[test]
    fn shrinks_to_the_last_armed_key_and_grows_again() {
        let mut wheel = Wheel::new(1000);
        wheel.insert(70, Nanos::from_ms(1));
        wheel.shrink(10);
        assert_eq!((wheel.capacity(), wheel.len()), (71, 1));
        wheel.shrink(80);
        assert_eq!(wheel.capacity(), 71, "shrinking does not grow");
        wheel.grow(100);
        wheel.insert(99, Nanos::from_us(500));
        assert_eq!(fired(&mut wheel, Nanos::from_ms(2)), [99, 70]);
        wheel.shrink(10);
        assert_eq!(wheel.capacity(), 10);
    }

    #[test]
    fn fires_in_order_never_early_at_most_a_tick_late() {
        let mut wheel = Wheel::new(4);
        wheel.advance(Nanos::from_ms(77), |_| unreachable!());
        let start = Nanos::from_ms(77);
        for (key, us) in [(0, 5_000_000), (1, 30), (2, 900), (3, 31)] {
            wheel.insert(key, start + Nanos::from_us(us));
        }
        assert_eq!(fired(&mut wheel, start + Nanos::from_us(29)), []);
        assert_eq!(fired(&mut wheel, start + Nanos::from_us(31) + TICK), [1, 3]);
        assert_eq!(fired(&mut wheel, start + Nanos::from_us(900) + TICK), [2]);
        assert_eq!(fired(&mut wheel, start + Nanos::from_ms(4_999)), []);
        assert_eq!(fired(&mut wheel, start + Nanos::from_ms(5_001)), [0]);
        assert!(wheel.is_empty() && wheel.next_deadline() == Nanos::NEVER);
    }

    #[test]
    fn moved_cancelled_and_never() {
        let mut wheel = Wheel::new(3);
        wheel.insert(0, Nanos::from_us(100));
        wheel.insert(0, Nanos::from_ms(100));
        wheel.insert(1, Nanos::from_us(50));
        wheel.insert(2, Nanos::from_us(50));
        wheel.insert(2, Nanos::NEVER);
        assert!(wheel.cancel(1) && !wheel.cancel(1));
        assert_eq!((wheel.len(), wheel.deadline_of(0)), (1, Some(Nanos::from_ms(100))));
        assert_eq!(fired(&mut wheel, Nanos::from_ms(99)), []);
        assert_eq!(fired(&mut wheel, Nanos::from_ms(101)), [0]);
        assert_eq!(wheel.deadline_of(0), None);
    }

    #[test]
    fn a_past_deadline_is_due_at_once_even_if_time_goes_back() {
        let mut wheel = Wheel::new(1);
        wheel.advance(Nanos::from_ms(5), |_| ());
        wheel.insert(0, Nanos(1));
        assert!(wheel.next_deadline() <= Nanos::from_ms(5));
        assert_eq!(wheel.pop_due(Nanos::from_ms(4)), Some(0));
        assert_eq!(wheel.pop_due(Nanos::from_ms(4)), None);
    }

    #[test]
    fn a_timer_that_is_due_again_at_once_fires_once_in_a_turn() {
        let mut wheel = Wheel::new(3);
        let now = Nanos::from_ms(5);
        (0..3).for_each(|key| wheel.insert(key, Nanos::from_ms(1)));
        for turn in 0..4 {
            wheel.begin_firing(now);
            let mut fired = [0; 3];
            // Each is armed again, the second one by the first, too, and the last one is moved before its turn.
            while let Some(key) = wheel.pop_firing() {
                fired[key as usize] += 1;
                assert_eq!(fired[key as usize], 1, "turn {turn}: {fired:?}");
                wheel.insert(key, Nanos::from_ms(1));
                wheel.insert(2, Nanos::from_ms(2));
            }
            assert_eq!(fired, [1, 1, 0]);
            assert!(wheel.next_deadline() <= now && wheel.len() == 3);
        }
        let mut keys = Vec::new();
        wheel.advance(now, |key| keys.push(key));
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2]);
    }

    #[test]
    fn firing_that_was_left_goes_on() {
        let mut wheel = Wheel::new(3);
        (0..3).for_each(|key| wheel.insert(key, Nanos::from_ms(1)));
        wheel.begin_firing(Nanos::from_ms(2));
        assert_eq!(wheel.pop_firing(), Some(0));
        wheel.insert(0, Nanos::from_ms(1));
        assert!(wheel.next_deadline() <= Nanos::from_ms(2));
        wheel.begin_firing(Nanos::from_ms(2));
        assert_eq!([wheel.pop_firing(), wheel.pop_firing(), wheel.pop_firing()], [Some(1), Some(2), None]);
        wheel.begin_firing(Nanos::from_ms(2));
        assert_eq!([wheel.pop_firing(), wheel.pop_firing()], [Some(0), None]);
        assert!(wheel.is_empty() && wheel.next_deadline() == Nanos::NEVER);
    }

    #[test]
    fn farthest_deadline_and_a_jump_to_the_end_of_time() {
        let mut wheel = Wheel::new(2);
        wheel.insert(0, Nanos(u64::MAX - 1));
        wheel.insert(1, Nanos(0));
        assert_eq!(fired(&mut wheel, Nanos(0)), [1]);
        assert_eq!(fired(&mut wheel, Nanos(u64::MAX - TICK.0)), []);
        assert!(wheel.next_deadline() > Nanos(u64::MAX - TICK.0));
    }

    #[test]
    fn grows_without_touching_armed_timers() {
        let mut wheel = Wheel::new(1);
        wheel.insert(0, Nanos::from_ms(1));
        wheel.grow(10);
        wheel.insert(9, Nanos::from_us(10));
        assert_eq!(fired(&mut wheel, Nanos::from_ms(2)), [9, 0]);
    }

    /// Sleeps exactly as `next_deadline` says, as the engine does.
    #[test]
    fn sleeping_until_next_deadline_reaches_a_far_timer_in_few_steps() {
        let mut wheel = Wheel::new(1);
        wheel.insert(0, Nanos::from_ms(240_123));
        for step in 1..=LEVELS {
            let at = wheel.next_deadline();
            if !fired(&mut wheel, at).is_empty() {
                assert!(at >= Nanos::from_ms(240_123) && at <= Nanos::from_ms(240_123) + TICK);
                return;
            }
            assert!(step < LEVELS);
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let delay = (0u32..50).prop_flat_map(|bits| 0..(1u64 << bits));
        prop_oneof![
            3 => (0u32..16, delay.clone()).prop_map(|(k, d)| Op::Insert(k, d)),
            1 => (0u32..16).prop_map(Op::Cancel),
            3 => delay.prop_map(Op::Advance),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_list(ops in prop::collection::vec(op(), 1..300)) {
            let mut wheel = Wheel::new(16);
            let mut model = [None::<(u64, bool)>; 16];
            let mut now = 0u64;
            for op in ops {
                match op {
                    Op::Insert(key, delay) => {
                        let at = (now / 2).saturating_add(delay);
                        wheel.insert(key, Nanos(at));
                        model[key as usize] = Some((at, tick_of(Nanos(at)) <= now >> TICK_SHIFT));
                    }
                    Op::Cancel(key) => prop_assert_eq!(wheel.cancel(key), model[key as usize].take().is_some()),
                    Op::Advance(delay) => {
                        now += delay;
                        let keys = fired(&mut wheel, Nanos(now));
                        let of = |k: &u32| model[*k as usize].unwrap();
                        prop_assert!(keys.iter().all(|k| tick_of(Nanos(of(k).0)) <= now >> TICK_SHIFT));
                        // Those that were overdue when set come first, the others in order of ticks.
                        let rank = |k: &u32| if of(k).1 { 0 } else { tick_of(Nanos(of(k).0)) };
                        prop_assert!(keys.is_sorted_by_key(rank));
                        keys.iter().for_each(|&k| model[k as usize] = None);
                        prop_assert!(model.iter().flatten().all(|&(at, _)| tick_of(Nanos(at)) > now >> TICK_SHIFT));
                    }
                }
                prop_assert_eq!(wheel.len() as usize, model.iter().flatten().count());
                let earliest = model.iter().flatten().map(|&(at, _)| tick_of(Nanos(at))).min();
                let next = wheel.next_deadline();
                match earliest {
                    None => prop_assert_eq!(next, Nanos::NEVER),
                    Some(tick) => prop_assert!(next.0 >> TICK_SHIFT <= tick.max(now >> TICK_SHIFT)),
                }
            }
        }
    }
}
