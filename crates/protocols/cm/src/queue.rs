//! Requests of one worker that wait for a place in their listener's backlog.
//!
//! Each listener has a first-in-first-out line per source of requests ([`Source`]); a line holds the ids of connections in
//! `CmState::Queued`, and each of these keeps its REQ or SIDR_REQ. Sources take turns, those that have proved their address
//! before those that have not, so a source that floods a listener delays only itself. A request leaves its line when its listener
//! has a place, when the peer withdraws it (REJ) or has certainly given up (a timer), when the listener ends, and when another
//! source needs the room and has far fewer. Nothing is sent for a queued request except one MRA for each repetition of it, so a
//! queue amplifies nothing. The lines of a listener are bounded by [`Backlog::queue_limit`], all lines of a worker by
//! [`WORKER_QUEUE_MAX`].
//!
//! Listeners and requests are found by hash. A request that leaves from the middle of its line stays there as a dead id until it
//! comes to the front or the dead outnumber the living.
//!
//! A place that this worker frees is given away in the same or the next pass. A place may also be freed by another worker, by the
//! control thread, or because a program with a small backlog has read its events; none of these wakes this worker, so listeners
//! with requests are looked at in turn as well: all of them every [`LOOK_INTERVAL`], and of more than [`LOOKED_MAX`] so many in
//! each [`LOOK_SOON`], so that a user with thousands of full listeners takes little of the worker's time.

use crate::backlog::{Backlog, RequestPlace};
use crate::source::Source;
use burst_base::Nanos;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most queued requests of one worker.
pub const WORKER_QUEUE_MAX: usize = 16 << 10;
/// Longest time until a place that something else has freed is given away, if few listeners have requests.
pub(crate) const LOOK_INTERVAL: Nanos = Nanos::from_ms(10);
/// Most listeners that are looked at together because their turn has come.
pub(crate) const LOOKED_MAX: usize = 256;
/// Time until the next listeners are looked at, if there are more.
const LOOK_SOON: Nanos = Nanos::from_us(1250);
/// Lines that are compared to find a long one.
const COMPARED: usize = 8;
/// Dead entries that are kept, beside as many as there are living ones.
const DEAD_KEPT: usize = 32;

const _: () =
    assert!((crate::backlog::LISTENER_QUEUE_MAX as usize) < WORKER_QUEUE_MAX, "one listener leaves room for others");

/// Requests of one source to one listener, oldest first, dead ids among them.
#[derive(Debug, Default)]
struct Line {
    ids: VecDeque<u32>,
    living: usize,
    is_proven: bool,
}

/// Queued requests of one listener.
#[derive(Debug)]
struct ListenerLines {
    backlog: Arc<Backlog>,
    lines: HashMap<Source, Line>,
    /// Sources in order of their turns: those that have not proved their address, and those that have. Each living line is in the
    /// order that fits it.
    turns: [VecDeque<Source>; 2],
    living: usize,
    /// Whether the listener is in [`RequestQueue::freed`].
    is_freed: bool,
}

impl ListenerLines {
    /// The oldest request of the source whose turn it is.
    fn first(&mut self, is_living: impl Fn(u32) -> bool) -> Option<u32> {
        for proven in [true, false] {
            while let Some(source) = self.turns[usize::from(proven)].front().copied() {
                let line = self.lines.get_mut(&source).filter(|line| line.is_proven == proven);
                let Some(line) = line else {
                    self.turns[usize::from(proven)].pop_front();
                    continue;
                };
                while let Some(id) = line.ids.front().copied() {
                    if is_living(id) {
                        return Some(id);
                    }
                    line.ids.pop_front();
                }
                self.lines.remove(&source);
            }
        }
        None
    }

    /// The turn passes to the next source.
    fn pass_turn(&mut self) {
        let turns = &mut self.turns;
        let order = if turns[1].is_empty() { &mut turns[0] } else { &mut turns[1] };
        if !order.is_empty() {
            order.rotate_left(1);
        }
    }

    fn push(&mut self, source: Source, is_proven: bool, id: u32) {
        // A line is in the order of turns as long as it is in the map.
        let is_new = !self.lines.contains_key(&source);
        let line = self.lines.entry(source).or_default();
        if is_new || (is_proven && !line.is_proven) {
            line.is_proven = is_proven;
            self.turns[usize::from(is_proven)].push_back(source);
        }
        line.ids.push_back(id);
        line.living += 1;
        self.living += 1;
    }

    /// Forgets dead entries if there are many.
    fn sweep(&mut self, source: Source, is_living: impl Fn(u32) -> bool) {
        if let Some(line) = self.lines.get_mut(&source)
            && line.ids.len() > 2 * line.living + DEAD_KEPT
        {
            line.ids.retain(|id| is_living(*id));
        }
        let entries = self.turns[0].len() + self.turns[1].len();
        if entries > 2 * self.living + DEAD_KEPT {
            self.lines.retain(|_, line| line.living > 0);
            for (proven, order) in [false, true].into_iter().zip(&mut self.turns) {
                let mut seen = std::collections::HashSet::new();
                let fits = |source: &Source| self.lines.get(source).is_some_and(|line| line.is_proven == proven);
                order.retain(|source| fits(source) && seen.insert(*source));
            }
        }
    }

    /// A source with more than one request more than `source` has: of a few, the one with most. With `is_proven`, any source that
    /// has not proved its address comes first.
    fn long_line(&self, source: Source, is_proven: bool, chance: usize) -> Option<Source> {
        let living = |other: &Source| self.lines.get(other).map_or(0, |line| line.living);
        let longest = |order: &VecDeque<Source>| {
            let few = (0..COMPARED.min(order.len())).map(|k| order[(chance + k) % order.len()]);
            few.filter(|other| *other != source && living(other) > 0).max_by_key(living)
        };
        let unproven = longest(&self.turns[0]);
        if is_proven && unproven.is_some() {
            return unproven;
        }
        let candidates = [unproven, longest(&self.turns[1])].into_iter().flatten();
        candidates.max_by_key(living).filter(|other| living(other) > living(&source) + 1)
    }
}

/// The lines of one worker.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    /// By address of the backlog, which lives as long as its entry.
    listeners: HashMap<usize, ListenerLines>,
    /// Listeners in order of their turns.
    turns: VecDeque<usize>,
    /// Listeners that have a place again or have ended, each once.
    freed: VecDeque<usize>,
    /// Listener and source of each queued request.
    queued: HashMap<u32, (usize, Source)>,
    /// When the lines are looked at.
    look_at: Nanos,
    /// Where the comparison of lines begins.
    chance: usize,
}

fn key_of(backlog: &Arc<Backlog>) -> usize {
    Arc::as_ptr(backlog).addr()
}

impl RequestQueue {
    pub fn new() -> RequestQueue {
        RequestQueue {
            listeners: HashMap::new(),
            turns: VecDeque::new(),
            freed: VecDeque::new(),
            queued: HashMap::new(),
            look_at: Nanos::NEVER,
            chance: 0,
        }
    }

    /// Queued requests of all listeners.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether a request of this listener is queued here: a later one must not overtake it.
    pub fn has(&self, backlog: &Arc<Backlog>) -> bool {
        backlog.queued() > 0 && self.listeners.get(&key_of(backlog)).is_some_and(|of| of.living > 0)
    }

    /// A place for another request, unless the listener's lines or the worker's store are full.
    pub fn reserve(&self, backlog: &Arc<Backlog>) -> Option<RequestPlace> {
        if self.len() < WORKER_QUEUE_MAX { RequestPlace::enter(backlog) } else { None }
    }

    /// A request that must make room for one of `source`, which has far fewer: the newest of a long line.
    pub fn victim(&mut self, backlog: &Arc<Backlog>, source: Source, is_proven: bool) -> Option<u32> {
        self.chance = self.chance.wrapping_add(COMPARED);
        let of = self.listeners.get_mut(&key_of(backlog))?;
        let long = of.long_line(source, is_proven, self.chance)?;
        of.lines.get(&long)?.ids.iter().rev().copied().find(|id| self.queued.contains_key(id))
    }

    /// Whether requests of several sources wait for this listener.
    pub fn has_several_sources(&self, backlog: &Arc<Backlog>) -> bool {
        let of = self.listeners.get(&key_of(backlog));
        of.is_some_and(|of| of.lines.values().filter(|line| line.living > 0).nth(1).is_some())
    }

    /// Appends a request to its source's line of its listener.
    pub fn push(&mut self, now: Nanos, backlog: &Arc<Backlog>, source: Source, is_proven: bool, id: u32) {
        debug_assert!(self.len() < WORKER_QUEUE_MAX);
        if self.queued.is_empty() {
            self.look_at = now + LOOK_INTERVAL;
        }
        let key = key_of(backlog);
        let of = self.listeners.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            let (backlog, lines) = (backlog.clone(), HashMap::new());
            ListenerLines { backlog, lines, turns: Default::default(), living: 0, is_freed: false }
        });
        of.push(source, is_proven, id);
        let before = self.queued.insert(id, (key, source));
        debug_assert!(before.is_none(), "a request is queued twice");
    }

    /// Takes out a request, wherever it stands in its line.
    pub fn remove(&mut self, id: u32) {
        let Some((key, source)) = self.queued.remove(&id) else { return };
        if let Some(of) = self.listeners.get_mut(&key) {
            of.living -= 1;
            if let Some(line) = of.lines.get_mut(&source) {
                line.living -= 1;
            }
            of.sweep(source, |id| self.queued.contains_key(&id));
        }
        self.check();
    }

    /// The listener with this backlog has a place, or has ended: it is looked at in the next pass.
    pub fn note_free(&mut self, backlog: &Arc<Backlog>) {
        let key = key_of(backlog);
        if let Some(of) = self.listeners.get_mut(&key)
            && !std::mem::replace(&mut of.is_freed, true)
        {
            self.freed.push_back(key);
        }
    }

    /// Listeners whose turn had come were not looked at: they are in the next pass.
    pub fn look(&mut self) {
        if !self.queued.is_empty() {
            self.look_at = Nanos(0);
        }
    }

    /// When [`RequestQueue::listeners_due`] has listeners.
    pub fn next_deadline(&self) -> Nanos {
        if self.freed.is_empty() { self.look_at } else { Nanos(0) }
    }

    /// How many listeners are to be looked at now.
    pub fn listeners_due(&mut self, now: Nanos) -> usize {
        if self.next_deadline() > now {
            return 0;
        }
        self.check();
        let freed = self.freed.len();
        if self.look_at > now {
            return freed;
        }
        let all = self.turns.len();
        self.look_at = now + if all > LOOKED_MAX { LOOK_SOON } else { LOOK_INTERVAL };
        freed + all.min(LOOKED_MAX)
    }

    /// The next listener to look at: those that have a place come before those whose turn it is.
    pub fn next_listener(&mut self) -> Option<Arc<Backlog>> {
        while let Some(key) = self.freed.pop_front() {
            if let Some(of) = self.listeners.get_mut(&key) {
                of.is_freed = false;
                return Some(of.backlog.clone());
            }
        }
        while let Some(key) = self.turns.pop_front() {
            if let Some(of) = self.listeners.get(&key).filter(|of| of.living > 0) {
                self.turns.push_back(key);
                return Some(of.backlog.clone());
            }
            self.listeners.remove(&key);
        }
        None
    }

    /// The request of a listener whose turn it is.
    pub fn first(&mut self, backlog: &Arc<Backlog>) -> Option<u32> {
        let of = self.listeners.get_mut(&key_of(backlog))?;
        of.first(|id| self.queued.contains_key(&id))
    }

    /// The turn passes to the listener's next source.
    pub fn pass_turn(&mut self, backlog: &Arc<Backlog>) {
        if let Some(of) = self.listeners.get_mut(&key_of(backlog)) {
            of.pass_turn();
        }
    }

    /// Gives back room that is not in use.
    pub fn shrink(&mut self) {
        self.check();
        self.queued.shrink_to_fit();
        self.listeners.shrink_to_fit();
        self.turns.shrink_to_fit();
        self.freed.shrink_to_fit();
    }

    fn check(&mut self) {
        if self.queued.is_empty() {
            self.look_at = Nanos::NEVER;
            self.listeners.clear();
            self.turns.clear();
            self.freed.clear();
        }
        debug_assert!(self.listeners.len() == self.turns.len(), "a listener without a turn");
        debug_assert!(
            self.listeners.len() > LOOKED_MAX
                || self.len() == self.listeners.values().map(|of| of.living).sum::<usize>()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::of(std::net::IpAddr::from([10, 0, 0, last]))
    }

    /// Takes all requests in order of their turns.
    fn order(queue: &mut RequestQueue) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(backlog) = queue.next_listener() {
            while let Some(id) = queue.first(&backlog) {
                queue.remove(id);
                queue.pass_turn(&backlog);
                order.push(id);
            }
        }
        order
    }

    #[test]
    fn requests_that_another_worker_has_queued_are_not_queued_here() {
        let (queue, backlog) = (RequestQueue::new(), Arc::new(Backlog::new(100)));
        let of_another = RequestPlace::enter(&backlog).expect("room");
        assert_eq!((backlog.queued(), queue.has(&backlog)), (1, false));
        drop(of_another);
    }

    #[test]
    fn sources_take_turns_and_proven_ones_come_first() {
        let (mut queue, backlog) = (RequestQueue::new(), Arc::new(Backlog::new(100)));
        (10..20).for_each(|id| queue.push(Nanos(0), &backlog, source(1), false, id));
        (20..22).for_each(|id| queue.push(Nanos(0), &backlog, source(2), false, id));
        (30..32).for_each(|id| queue.push(Nanos(0), &backlog, source(3), true, id));
        // A source that proves itself moves to the others that have.
        queue.push(Nanos(0), &backlog, source(4), false, 40);
        queue.push(Nanos(0), &backlog, source(4), true, 41);
        assert_eq!(order(&mut queue), [30, 40, 31, 41, 10, 20, 11, 21, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!((queue.len(), queue.next_deadline()), (0, Nanos::NEVER));
    }

    #[test]
    fn a_long_line_makes_room_for_a_short_one_and_not_the_other_way_round() {
        let (mut queue, backlog) = (RequestQueue::new(), Arc::new(Backlog::new(100)));
        (10..20).for_each(|id| queue.push(Nanos(0), &backlog, source(1), false, id));
        queue.push(Nanos(0), &backlog, source(2), false, 20);
        assert_eq!(queue.victim(&backlog, source(2), false), Some(19), "the newest of the longest");
        assert_eq!(queue.victim(&backlog, source(1), false), None);
        assert_eq!(queue.victim(&backlog, source(1), true), Some(20), "proven before unproven");
        assert!(queue.has_several_sources(&backlog));
        queue.remove(20);
        assert!(!queue.has_several_sources(&backlog));
    }

    #[test]
    fn lines_are_looked_at_ten_milliseconds_after_the_first_request_and_after_each_look() {
        let (mut queue, backlog) = (RequestQueue::new(), Arc::new(Backlog::new(100)));
        let at = Nanos::from_ms;
        queue.push(at(100), &backlog, source(1), false, 1);
        queue.push(at(105), &backlog, source(1), false, 2);
        assert_eq!(
            (queue.next_deadline(), queue.listeners_due(at(109))),
            (at(110), 0),
            "a later request changes nothing"
        );
        assert_eq!((queue.listeners_due(at(110)), queue.next_deadline()), (1, at(120)));
        queue.look();
        assert_eq!(queue.next_deadline(), Nanos(0));
        assert_eq!((queue.listeners_due(at(111)), queue.next_deadline()), (1, at(121)));
        // A listener with a place is looked at at once, and once however many places there are.
        (0..2).for_each(|_| queue.note_free(&backlog));
        assert_eq!((queue.next_deadline(), queue.listeners_due(at(112))), (Nanos(0), 1));
        assert!(queue.next_listener().is_some());
        assert_eq!(queue.next_deadline(), at(121));
        assert_eq!(order(&mut queue), [1, 2]);
        queue.look();
        assert_eq!((queue.next_deadline(), queue.listeners_due(at(999))), (Nanos::NEVER, 0), "no line is left");
    }

    #[test]
    fn listeners_take_turns_and_each_has_its_own_line() {
        let mut queue = RequestQueue::new();
        let backlogs = [1, 2, 3].map(|limit| Arc::new(Backlog::new(limit)));
        for (id, backlog) in (0..).zip(backlogs.iter().chain(&backlogs)) {
            queue.push(Nanos(0), backlog, source(1), false, id);
        }
        assert_eq!((queue.len(), queue.listeners_due(Nanos::from_ms(10))), (6, 3));
        assert!(!queue.has_several_sources(&backlogs[0]));
        let next = |queue: &mut RequestQueue| {
            let backlog = queue.next_listener().expect("a listener");
            queue.first(&backlog)
        };
        assert_eq!([0; 4].map(|_| next(&mut queue)), [0, 1, 2, 0].map(Some), "in turn");
        // One with a place comes first, and keeps its turn.
        queue.note_free(&backlogs[0]);
        assert_eq!([0; 3].map(|_| next(&mut queue)), [0, 1, 2].map(Some));
        // The lines of a listener end, and those of the others stay.
        [1, 4].into_iter().for_each(|id| queue.remove(id));
        assert_eq!(order(&mut queue), [0, 3, 2, 5]);
    }

    #[test]
    fn of_many_listeners_a_portion_is_looked_at_together() {
        let looks = |listeners: usize| {
            let mut queue = RequestQueue::new();
            let backlogs: Vec<_> = (0..listeners).map(|_| Arc::new(Backlog::new(1))).collect();
            (0..).zip(&backlogs).for_each(|(id, backlog)| queue.push(Nanos(0), backlog, source(1), false, id));
            let due = queue.listeners_due(Nanos::from_ms(10));
            queue.note_free(&backlogs[listeners - 1]);
            let soon = queue.listeners_due(Nanos::from_ms(10));
            let first = queue.next_listener().and_then(|backlog| queue.first(&backlog));
            (due, queue.next_deadline(), soon, first)
        };
        let (few, many) = (LOOKED_MAX, 4 * LOOKED_MAX);
        assert_eq!(looks(few), (few, Nanos::from_ms(20), 1, Some(few as u32 - 1)));
        assert_eq!(looks(many), (few, Nanos::from_ms(10) + LOOK_SOON, 1, Some(many as u32 - 1)), "no more work");
    }

    #[test]
    fn the_store_of_a_worker_has_a_last_place() {
        let mut queue = RequestQueue::new();
        let backlogs = [(); 2].map(|()| Arc::new(Backlog::new(1 << 20)));
        for id in 0..WORKER_QUEUE_MAX as u32 {
            assert!(queue.reserve(&backlogs[0]).is_some());
            queue.push(Nanos(0), &backlogs[0], source(1), false, id);
        }
        assert!(queue.reserve(&backlogs[0]).is_none() && queue.reserve(&backlogs[1]).is_none());
        queue.remove(5);
        assert!(queue.reserve(&backlogs[1]).is_some());
    }

    #[test]
    fn requests_that_come_and_go_leave_nothing() {
        let (mut queue, backlog) = (RequestQueue::new(), Arc::new(Backlog::new(100)));
        queue.push(Nanos(0), &backlog, source(0), false, 1);
        for id in 2..20_000u32 {
            queue.push(Nanos(0), &backlog, source(id as u8), id % 3 == 0, id);
            queue.remove(id);
        }
        let of = &queue.listeners[&key_of(&backlog)];
        let entries: usize = of.lines.values().map(|line| line.ids.len()).sum();
        assert!(entries < 4096 && of.turns.iter().map(VecDeque::len).sum::<usize>() < 100, "{entries} dead ids");
        assert_eq!(order(&mut queue), [1]);
    }
}
