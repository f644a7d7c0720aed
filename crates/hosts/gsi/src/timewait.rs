//! Ends of time-wait, reported in portions.
//!
//! Ten thousand connections that end together leave time-wait together, a quarter of a second later, while their program is
//! destroying its ids. When an id is destroyed, its unread records are taken out of its channel, so a channel full of
//! TIMEWAIT_EXIT records would be searched ten thousand times. Therefore a channel with [`UNREAD_MAX`] unread records gets no
//! further TIMEWAIT_EXIT. The remaining ids wait here, where an id that was destroyed meanwhile is skipped at no cost. A program
//! that reads gets its events a millisecond later at worst; for a program that does not read, attempts become rare.
//!
//! Recipients are picked at random. Programs destroy ids in the order in which these left time-wait; reporting in that order
//! would leave an unread event for nearly every id about to be destroyed, and removing one is expensive.

use crate::channel::PendingEvent;
use crate::entry::CmEntry;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_control::cm::{CmEvent, CmEventKind, CmRoute};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Unread records with which a channel gets no further TIMEWAIT_EXIT.
const UNREAD_MAX: usize = 32;
/// Ids examined in one attempt.
const TRIED_AT_ONCE: usize = 1024;
/// Time between two attempts while programs read.
const TRY_AFTER: Nanos = Nanos::from_ms(1);
/// Longest time between two attempts while no program reads.
const TRY_AFTER_MAX: Nanos = Nanos::from_ms(128);

/// Ids that have left time-wait and whose programs have not been notified.
#[derive(Debug)]
pub(crate) struct TimewaitExits {
    waiting: VecDeque<Arc<CmEntry>>,
    /// When [`TimewaitExits::report`] is due; never while no id waits.
    pub due: Nanos,
    interval: Nanos,
    rng: Rng,
}

impl TimewaitExits {
    /// No ids. `seed` decides the order in which ids are picked.
    pub fn new(seed: u64) -> TimewaitExits {
        TimewaitExits { waiting: VecDeque::new(), due: Nanos::NEVER, interval: TRY_AFTER, rng: Rng::new(seed) }
    }

    /// Adds an id that has left time-wait.
    pub fn add(&mut self, now: Nanos, entry: &Arc<CmEntry>) {
        debug_assert_eq!(self.waiting.is_empty(), self.due == Nanos::NEVER, "ids wait without a time");
        self.waiting.push_back(entry.clone());
        if self.due == Nanos::NEVER {
            (self.due, self.interval) = (now, TRY_AFTER);
        }
    }

    /// Gives the events whose channels have room to `write`.
    pub fn report(&mut self, now: Nanos, mut write: impl FnMut(PendingEvent)) {
        let mut reported = false;
        // Room by channel: events given to `write` in this call are not in their channels yet.
        let mut rooms = BTreeMap::new();
        for _ in 0..self.waiting.len().min(TRIED_AT_ONCE) {
            let at = self.rng.below(self.waiting.len() as u64) as usize;
            let Some(entry) = self.waiting.swap_remove_back(at) else { break };
            if entry.is_over() || entry.session.is_over() {
                continue;
            }
            let channel = entry.channel();
            let left = rooms
                .entry(Arc::as_ptr(&channel).addr())
                .or_insert_with(|| UNREAD_MAX.saturating_sub(channel.unread()));
            if *left == 0 {
                self.waiting.push_back(entry);
                continue;
            }
            *left -= 1;
            reported = true;
            let event = event_of(&entry);
            write(PendingEvent { entry, channel, event });
        }
        self.interval = if reported { TRY_AFTER } else { Nanos(self.interval.0 * 2).min(TRY_AFTER_MAX) };
        self.due = if self.waiting.is_empty() { Nanos::NEVER } else { now + self.interval };
        debug_assert_eq!(self.waiting.is_empty(), self.due == Nanos::NEVER, "ids wait without a time");
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }
}

fn event_of(entry: &CmEntry) -> CmEvent {
    let route = entry.route.get().copied().unwrap_or_else(CmRoute::default);
    CmEvent { route, ..CmEvent::new(CmEventKind::TimewaitExit, entry.id) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::CmChannel;
    use crate::entry::CmSession;
    use burst_base::verbs::QpType;
    use burst_control::cm::PortSpace;
    use std::os::fd::AsFd;

    fn entries(channel: &Arc<CmChannel>, count: u32) -> Vec<Arc<CmEntry>> {
        let session = Arc::new(CmSession::default());
        let one = |id| CmEntry::new(session.clone(), id, PortSpace::Tcp, QpType::Rc, channel.clone());
        (1..=count).map(|id| Arc::new(one(id))).collect()
    }

    fn read_all(channel: &CmChannel) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut records = vec![0; channel.unread() * CmEvent::BYTES];
        if !records.is_empty() {
            assert_eq!(rustix::io::read(channel.as_fd(), &mut records), Ok(records.len()));
        }
        for record in records.as_chunks().0 {
            ids.extend(CmEvent::from_bytes(record).map(|e| e.id));
        }
        ids
    }

    fn report(exits: &mut TimewaitExits, now: Nanos) {
        exits.report(now, |pending| pending.channel.write(&pending.event.to_bytes()).expect("kept"));
    }

    #[test]
    fn a_channel_that_is_not_read_gets_a_portion_and_one_that_is_read_gets_all() {
        let channel = Arc::new(CmChannel::new().expect("channel"));
        let mut exits = TimewaitExits::new(0);
        let all = entries(&channel, 100);
        all.iter().for_each(|e| exits.add(Nanos(1), e));
        assert_eq!(exits.due, Nanos(1), "the first portion at once");
        report(&mut exits, Nanos(1));
        assert_eq!(channel.unread(), UNREAD_MAX);
        assert_eq!(exits.due, Nanos(1) + TRY_AFTER);
        let mut now = exits.due;
        for _ in 0..20 {
            report(&mut exits, now);
            assert_eq!(channel.unread(), UNREAD_MAX);
            now = exits.due;
        }
        assert_eq!(exits.interval, TRY_AFTER_MAX, "attempts become rare");
        let mut seen = Vec::new();
        while exits.due != Nanos::NEVER {
            seen.extend(read_all(&channel));
            report(&mut exits, now);
        }
        seen.extend(read_all(&channel));
        seen.sort_unstable();
        assert_eq!(seen, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn each_of_two_channels_gets_its_portion() {
        let channels = [0; 2].map(|_| Arc::new(CmChannel::new().expect("channel")));
        let mut exits = TimewaitExits::new(0);
        let all = channels.each_ref().map(|channel| entries(channel, 200));
        all[0].iter().zip(&all[1]).for_each(|(a, b)| [a, b].map(|e| exits.add(Nanos(1), e)).into_iter().collect());
        // Written at the end of the pass, as the worker does.
        let mut events = Vec::new();
        exits.report(Nanos(1), |e| events.push(e));
        events.iter().for_each(|e| e.channel.write(&e.event.to_bytes()).expect("kept"));
        assert_eq!(channels.map(|channel| channel.unread()), [UNREAD_MAX; 2]);
    }

    #[test]
    fn a_program_that_destroys_its_ids_in_order_seldom_has_an_unread_event_of_the_next() {
        let channel = Arc::new(CmChannel::new().expect("channel"));
        let mut exits = TimewaitExits::new(0);
        let all = entries(&channel, 4000);
        all.iter().for_each(|e| exits.add(Nanos(1), e));
        let (mut now, mut met) = (Nanos(1), 0);
        for (n, entry) in all.iter().enumerate() {
            if n % 8 == 0 {
                report(&mut exits, now);
                now = now + TRY_AFTER_MAX;
            }
            entry.end();
            let taken = channel.take_records(usize::MAX, |e| e.id == entry.id);
            met += taken.len();
        }
        // UNREAD_MAX of those that are left, each time: about UNREAD_MAX * ln(4000 / UNREAD_MAX), 155.
        assert!(met < 320, "{met} of 4000");
    }

    #[test]
    fn destroyed_ids_are_skipped() {
        let channel = Arc::new(CmChannel::new().expect("channel"));
        let mut exits = TimewaitExits::new(0);
        let all = entries(&channel, 10);
        all.iter().for_each(|e| exits.add(Nanos(1), e));
        all[..9].iter().for_each(|e| e.end());
        report(&mut exits, Nanos(1));
        assert_eq!((read_all(&channel), exits.due), (vec![10], Nanos::NEVER));
        all.iter().for_each(|e| exits.add(Nanos(2), e));
        all[0].session.end();
        report(&mut exits, Nanos(2));
        assert_eq!((channel.unread(), exits.due), (0, Nanos::NEVER));
    }
}
