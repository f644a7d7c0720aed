//! The line of a path: who waits for its window or rate, and who is next.
//!
//! A path's users have shares as they have of the worker (`transmit::sched`): accounts equal ones, below them the contexts of an
//! account, below them the queue pairs of a context. Accounts and contexts are served by deficit round robin: each may use
//! [`ROUND`] bytes of the window in a round, and what it has used above that is taken off its next rounds. Bytes count that leave
//! while somebody waits, also those of queue pairs that do not wait: each may have a packet in flight whatever the window is, and
//! who has many of them has less of the rest. Queue pairs of a context take turns.
//!
//! A queue pair that leaves is not searched for: its place becomes vacant, because the queue pair has another ticket or is on
//! another path. Places are swept when more than half of a context's are vacant. A context that leaves while it is in the round
//! of its account stays there, vacant, in the same way, and so does an account. Entries are found by number ([`LineIndex`]): to
//! come and to leave cost the same on every path. Lists have room for all users of the path, which is made when they join it.
//!
//! Answers that wait for the rate are in a second line, in order: they need no room in the window, so that two hosts whose
//! requests fill the windows of both can answer each other. So do the repetitions without which nothing comes back of what fills
//! the window: missing parts of READs, probes, and the first missing packet.

use super::line_index::LineIndex;
use crate::transmit::sched::ReadyPlace;
use std::collections::VecDeque;

/// Vacant places of a list below which nothing is swept. There is room for twice as many in each: most contexts have one queue
/// pair on a path, and most accounts one context.
const SWEPT_FROM: usize = 8;
/// Ticket of a queue pair that waits in no line.
pub const NOT_WAITING: u32 = 0;
/// What an account may use of the window in a round, and a context: a piece of a READ.
const ROUND: i64 = 128 << 10;
/// What is taken off later rounds at most.
const DEBT_MAX: i64 = 4 * ROUND;
/// Account of the channels of URMA, and their context.
pub(crate) const CHANNELS: u32 = u32::MAX;

/// What may still be used in a round.
#[derive(Debug, Default)]
struct Credit {
    left: i64,
    round: u64,
    is_queued: bool,
}

/// Members that have something that waits, in order of their turns.
#[derive(Debug, Default)]
struct Ring {
    this_round: VecDeque<u32>,
    next_round: VecDeque<u32>,
    round: u64,
    /// Members that have left the path, whose entries are free when they are removed.
    vacant: u32,
    /// Members that sweeps have looked at.
    #[cfg(test)]
    looks: u64,
}

impl Credit {
    /// Gives what may be used in this round. Nothing is saved, and debts of rounds without it are paid, too.
    fn enter(&mut self, round: u64) {
        if self.round != round {
            let rounds = (round - self.round).min(DEBT_MAX as u64 / ROUND as u64 + 1) as i64;
            (self.left, self.round) = ((self.left + rounds * ROUND).min(ROUND), round);
        }
    }
    fn charge(&mut self, bytes: i64) {
        self.left = (self.left - bytes).max(-DEBT_MAX);
    }
    /// Its member comes to the path. If the member's place in the ring is vacant, it has that again, and its debts.
    fn join(&mut self, ring: &mut Ring) {
        match self.is_queued {
            true => ring.vacant -= 1,
            false => *self = Credit { left: ROUND, round: ring.round, is_queued: false },
        }
    }
}

impl Ring {
    /// Adds a member at the end of the round.
    fn push(&mut self, member: u32, credit: &mut Credit) {
        if !std::mem::replace(&mut credit.is_queued, true) {
            credit.enter(self.round);
            self.this_round.push_back(member);
        }
    }
    /// The member whose turn it is. Each charge of a round's bytes makes it look at a member once more.
    fn front(&mut self, mut with: impl FnMut(u32, &mut dyn FnMut(&mut Credit))) -> Option<u32> {
        loop {
            let Some(member) = self.this_round.front().copied() else {
                if self.next_round.is_empty() {
                    return None;
                }
                std::mem::swap(&mut self.this_round, &mut self.next_round);
                self.round += 1;
                continue;
            };
            let (round, mut may) = (self.round, false);
            with(member, &mut |credit| {
                credit.enter(round);
                may = credit.left > 0;
            });
            if may {
                return Some(member);
            }
            self.this_round.pop_front();
            self.next_round.push_back(member);
        }
    }
    /// The first member had its turn: it goes to the end, or leaves.
    fn end_turn(&mut self, stays: bool, credit: &mut Credit) {
        let Some(member) = self.this_round.pop_front() else { return };
        match stays {
            true => self.this_round.push_back(member),
            false => credit.is_queued = false,
        }
    }
    fn is_empty(&self) -> bool {
        self.this_round.is_empty() && self.next_round.is_empty()
    }
    /// A member has left the path. True: so many have that the ring is to be swept.
    fn vacate(&mut self) -> bool {
        self.vacant += 1;
        let (vacant, len) = (self.vacant as usize, self.this_round.len() + self.next_round.len());
        vacant >= SWEPT_FROM && vacant > len / 2
    }
    /// Removes vacant members.
    fn sweep(&mut self, mut is_vacant: impl FnMut(u32) -> bool) {
        for round in [&mut self.this_round, &mut self.next_round] {
            #[cfg(test)]
            (self.looks += round.len() as u64);
            round.retain(|member| !is_vacant(*member));
        }
        self.vacant = 0;
    }
    fn clear(&mut self) {
        self.this_round.clear();
        self.next_round.clear();
        self.vacant = 0;
    }
    /// Makes room for so many members, and for as many vacant ones.
    fn reserve(&mut self, members: usize) {
        reserve(&mut self.this_round, 2 * members.max(SWEPT_FROM));
        reserve(&mut self.next_round, 2 * members.max(SWEPT_FROM));
    }
}

/// Makes room for so many entries in all.
fn reserve<T>(list: &mut VecDeque<T>, entries: usize) {
    if list.capacity() < entries {
        list.reserve(entries - list.len());
    }
}

/// A context with queue pairs on the path; the channels of URMA are one.
#[derive(Debug, Default)]
struct LineContext {
    number: u32,
    account: u32,
    /// Queue pairs on the path; 0: the entry is free, or its place in the account's ring is vacant.
    users: u32,
    places: VecDeque<ReadyPlace>,
    /// Upper bound on the number of vacant places.
    vacant: usize,
    credit: Credit,
}

/// An account with contexts on the path.
#[derive(Debug, Default)]
struct LineAccount {
    number: u32,
    /// Its contexts on the path; 0: the entry is free, or its place in the ring is vacant.
    contexts: u32,
    ring: Ring,
    credit: Credit,
}

/// The queue pairs that wait for a path's window or rate, and its channels.
#[derive(Debug, Default)]
pub struct WindowLine {
    contexts: Vec<LineContext>,
    accounts: Vec<LineAccount>,
    ring: Ring,
    /// Not for the data path.
    index: Box<LineIndex>,
    /// Those that have answers or such repetitions, in order, which wait for the rate only.
    answerers: VecDeque<ReadyPlace>,
    /// Users that wait.
    waiting: u32,
    users: usize,
    tickets: u32,
}

impl WindowLine {
    /// A queue pair of a context comes to the path: the context's entry. Allocates: not for the data path.
    pub fn join(&mut self, number: u32, account: u32) -> u32 {
        self.users += 1;
        let known = self.index.context(number, account);
        let at = known.unwrap_or_else(|| self.add_context(number, account));
        let context = &mut self.contexts[at as usize];
        if context.users == 0 {
            self.enter_context(at);
        }
        let context = &mut self.contexts[at as usize];
        context.users += 1;
        reserve(&mut context.places, 2 * (context.users as usize).max(SWEPT_FROM));
        reserve(&mut self.answerers, 2 * self.users);
        at
    }

    /// Makes entries for a context, and for its account if it has none.
    fn add_context(&mut self, number: u32, account: u32) -> u32 {
        let of = self.index.account(account, self.accounts.len());
        if of as usize == self.accounts.len() {
            self.accounts.push(LineAccount::default());
        }
        let own = &mut self.accounts[of as usize];
        own.number = account;
        let at = self.index.add_context(number, account, self.contexts.len());
        if at as usize == self.contexts.len() {
            self.contexts.push(LineContext::default());
        }
        let context = &mut self.contexts[at as usize];
        (context.number, context.account) = (number, of);
        at
    }

    /// A context without queue pairs gets its first one. If its place in the ring is vacant, it has that again, and its debts.
    fn enter_context(&mut self, at: u32) {
        let context = &mut self.contexts[at as usize];
        let account = &mut self.accounts[context.account as usize];
        if account.contexts == 0 {
            account.credit.join(&mut self.ring);
        }
        account.contexts += 1;
        context.credit.join(&mut account.ring);
        account.ring.reserve(account.contexts as usize);
        self.ring.reserve(self.accounts.len());
    }

    /// A queue pair of context `at` leaves the path; it does not wait.
    pub fn leave(&mut self, at: u32) {
        let context = &mut self.contexts[at as usize];
        debug_assert!(context.users > 0, "a queue pair leaves a line on which it is not");
        (context.users, self.users) = (context.users - 1, self.users - 1);
        if context.users > 0 {
            return;
        }
        context.places.clear();
        context.vacant = 0;
        let (of, is_queued) = (context.account, context.credit.is_queued);
        let account = &mut self.accounts[of as usize];
        account.contexts -= 1;
        let is_last = account.contexts == 0;
        if !is_queued {
            self.free_context(at);
        } else if account.ring.vacate() {
            self.sweep_account(of);
        }
        if !is_last {
            return;
        }
        if !self.accounts[of as usize].credit.is_queued {
            self.free_account(of);
        } else if self.ring.vacate() {
            self.sweep();
        }
    }

    /// The entry of a context without queue pairs, which is in no ring, is free.
    fn free_context(&mut self, at: u32) {
        let context = &self.contexts[at as usize];
        debug_assert!(context.users == 0 && !context.credit.is_queued, "an entry that is in use is free");
        self.index.remove_context(context.number, self.accounts[context.account as usize].number);
    }

    /// The entry of an account without contexts, which is in no ring, is free.
    fn free_account(&mut self, of: u32) {
        let account = &self.accounts[of as usize];
        debug_assert!(account.contexts == 0 && !account.credit.is_queued, "an entry that is in use is free");
        debug_assert!(account.ring.is_empty(), "an account with contexts in turns is in the ring itself");
        self.index.remove_account(account.number);
    }

    /// Removes the contexts that have left from the ring of an account.
    fn sweep_account(&mut self, of: u32) {
        let WindowLine { accounts, contexts, index, .. } = self;
        let account = &mut accounts[of as usize];
        account.ring.sweep(|at| {
            let context = &mut contexts[at as usize];
            let is_vacant = context.users == 0;
            if is_vacant {
                context.credit.is_queued = false;
                index.remove_context(context.number, account.number);
            }
            is_vacant
        });
    }

    /// Removes the accounts that have left from the ring.
    fn sweep(&mut self) {
        let mut left = Vec::new();
        self.ring.sweep(|of| {
            let account = &mut self.accounts[of as usize];
            let is_vacant = account.contexts == 0;
            if is_vacant {
                account.credit.is_queued = false;
                left.push(of);
            }
            is_vacant
        });
        for of in left {
            self.sweep_account(of);
            self.free_account(of);
        }
    }

    /// Adds a queue pair of context `at`; its ticket.
    #[inline]
    pub fn push(&mut self, at: u32, qp: u32) -> u32 {
        let ticket = self.ticket();
        self.contexts[at as usize].places.push_back(ReadyPlace { qp, ticket });
        self.queue(at);
        ticket
    }

    /// Puts a queue pair back that had its turn and could not use it; its ticket.
    #[cold]
    pub fn push_front(&mut self, at: u32, qp: u32) -> u32 {
        let ticket = self.ticket();
        self.contexts[at as usize].places.push_front(ReadyPlace { qp, ticket });
        self.queue(at);
        ticket
    }

    #[inline]
    fn ticket(&mut self) -> u32 {
        self.tickets = self.tickets.checked_add(1).unwrap_or(NOT_WAITING + 1);
        debug_assert_ne!(self.tickets, NOT_WAITING, "the ticket of no place");
        self.tickets
    }

    #[inline]
    fn queue(&mut self, at: u32) {
        self.waiting += 1;
        let context = &mut self.contexts[at as usize];
        let account = &mut self.accounts[context.account as usize];
        account.ring.push(at, &mut context.credit);
        self.ring.push(context.account, &mut account.credit);
    }

    /// Who is next. Removes vacant places before it.
    #[inline]
    pub fn first(&mut self, waits: impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        while self.waiting > 0 {
            let Some((of, at)) = self.front() else { break };
            let context = &mut self.contexts[at as usize];
            while let Some(place) = context.places.front() {
                if waits(*place) {
                    return Some(place.qp);
                }
                context.places.pop_front();
                context.vacant = context.vacant.saturating_sub(1);
            }
            self.end_turn(of, at);
        }
        None
    }

    /// Account and context whose turn it is.
    fn front(&mut self) -> Option<(u32, u32)> {
        let WindowLine { ring, accounts, contexts, index, .. } = self;
        loop {
            let of = ring.front(|of, take| take(&mut accounts[of as usize].credit))?;
            let LineAccount { ring: own, credit, .. } = &mut accounts[of as usize];
            if let Some(at) = own.front(|at, take| take(&mut contexts[at as usize].credit)) {
                return Some((of, at));
            }
            // Its last context that waited has left.
            ring.end_turn(false, credit);
            if accounts[of as usize].contexts == 0 {
                ring.vacant -= 1;
                index.remove_account(accounts[of as usize].number);
            }
        }
    }

    /// Removes the first place, which [`WindowLine::first`] has found.
    #[inline]
    pub fn pop(&mut self) {
        let Some((of, at)) = self.front() else { return };
        if self.contexts[at as usize].places.pop_front().is_some() {
            self.waiting -= 1;
        }
        self.end_turn(of, at);
    }

    fn end_turn(&mut self, of: u32, at: u32) {
        let (context, account) = (&mut self.contexts[at as usize], &mut self.accounts[of as usize]);
        account.ring.end_turn(!context.places.is_empty(), &mut context.credit);
        let has_left = context.users == 0;
        let stays = !account.ring.is_empty();
        self.ring.end_turn(stays, &mut account.credit);
        if has_left {
            self.end_vacant(of, at);
        }
    }

    /// A context that has left the path had its turn, and perhaps the last one of its account.
    #[cold]
    fn end_vacant(&mut self, of: u32, at: u32) {
        let account = &mut self.accounts[of as usize];
        account.ring.vacant -= 1;
        let account_has_left = account.contexts == 0 && !account.credit.is_queued;
        self.free_context(at);
        if account_has_left {
            self.ring.vacant -= 1;
            self.free_account(of);
        }
    }

    /// Bytes of a queue pair of context `at` have left.
    #[inline]
    pub fn charge(&mut self, at: u32, bytes: u64) {
        let Some(context) = self.contexts.get_mut(at as usize) else { return };
        let bytes = bytes.min(DEBT_MAX as u64) as i64;
        context.credit.charge(bytes);
        self.accounts[context.account as usize].credit.charge(bytes);
    }

    /// A place of context `at` has become vacant.
    pub fn vacate(&mut self, at: u32, waits: impl Fn(ReadyPlace) -> bool) {
        self.waiting -= 1;
        let context = &mut self.contexts[at as usize];
        context.vacant += 1;
        if context.vacant >= SWEPT_FROM && context.vacant > context.places.len() / 2 {
            context.places.retain(|place| waits(*place));
            context.vacant = 0;
        }
    }

    /// A queue pair that has answers waits for the rate; its ticket.
    #[cold]
    pub fn push_answerer(&mut self, qp: u32, answers: impl Fn(ReadyPlace) -> bool) -> u32 {
        let ticket = self.ticket();
        if self.answerers.len() == self.answerers.capacity() {
            self.answerers.retain(|place| answers(*place));
        }
        self.answerers.push_back(ReadyPlace { qp, ticket });
        ticket
    }

    /// Takes the first queue pair that has answers.
    #[cold]
    pub fn pop_answerer(&mut self, answers: impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        while let Some(place) = self.answerers.pop_front() {
            if answers(place) {
                return Some(place.qp);
            }
        }
        None
    }

    /// Whether a queue pair may wait for the rate with answers.
    pub fn has_answerers(&self) -> bool {
        !self.answerers.is_empty()
    }

    /// How many wait for the window or the rate.
    #[inline]
    pub fn len(&self) -> u32 {
        self.waiting
    }

    /// Whether none waits for the window.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// All places of both lines, which are empty afterwards.
    pub fn take_all(&mut self) -> Vec<ReadyPlace> {
        let mut all: Vec<ReadyPlace> = self.answerers.drain(..).collect();
        for context in &mut self.contexts {
            all.extend(context.places.drain(..));
            context.vacant = 0;
            if std::mem::take(&mut context.credit.is_queued) && context.users == 0 {
                self.index.remove_context(context.number, self.accounts[context.account as usize].number);
            }
        }
        for account in &mut self.accounts {
            account.ring.clear();
            if std::mem::take(&mut account.credit.is_queued) && account.contexts == 0 {
                self.index.remove_account(account.number);
            }
        }
        self.ring.clear();
        self.waiting = 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;
    use std::collections::{HashMap, HashSet};

    fn alone() -> (WindowLine, u32) {
        let mut line = WindowLine::default();
        let at = line.join(3, 0);
        (line, at)
    }

    #[test]
    fn vacant_places_are_skipped_and_swept() {
        let (mut line, at) = alone();
        let mut waiting = HashSet::new();
        for qp in 0..1000 {
            waiting.insert((qp, line.push(at, qp)));
        }
        for qp in 0..999 {
            waiting.retain(|(of, _)| *of != qp);
            line.vacate(at, |place| waiting.contains(&(place.qp, place.ticket)));
        }
        assert!(line.contexts[0].places.len() < 2 * SWEPT_FROM, "{} places", line.contexts[0].places.len());
        assert_eq!(line.first(|place| waiting.contains(&(place.qp, place.ticket))), Some(999));
        line.pop();
        assert_eq!((line.first(|_| true), line.len()), (None, 0));
    }

    #[test]
    fn a_queue_pair_that_waits_again_goes_to_the_end_and_one_that_is_put_back_to_the_front() {
        let (mut line, at) = alone();
        let _left = line.push(at, 7);
        line.vacate(at, |_| true);
        let other = line.push(at, 8);
        let again = line.push(at, 7);
        let waits = |place: ReadyPlace| [(8, other), (7, again)].contains(&(place.qp, place.ticket));
        assert_eq!(line.first(waits), Some(8));
        line.pop();
        let back = line.push_front(at, 8);
        let waits = |place: ReadyPlace| [(8, back), (7, again)].contains(&(place.qp, place.ticket));
        assert_eq!(line.first(waits), Some(8));
        line.pop();
        assert_eq!(line.first(waits), Some(7));
    }

    /// Bytes that each queue pair gets, where all wait again and turns take what `bytes` says.
    fn shares(users: &[(u32, u32)], turns: usize, mut bytes: impl FnMut(usize) -> u64) -> Vec<u64> {
        let mut line = WindowLine::default();
        let places: Vec<u32> = users.iter().map(|(context, account)| line.join(*context, *account)).collect();
        (0..users.len()).for_each(|qp| {
            line.push(places[qp], qp as u32);
        });
        let mut got = vec![0; users.len()];
        for _ in 0..turns {
            let qp = line.first(|_| true).expect("all wait") as usize;
            line.pop();
            let sent = bytes(qp);
            got[qp] += sent;
            line.charge(places[qp], sent);
            line.push(places[qp], qp as u32);
        }
        got
    }

    #[test]
    fn accounts_contexts_and_queue_pairs_have_equal_shares() {
        let mut rng = Rng::new(3);
        // A user with one program; a user with a program of one queue pair, and one of eight.
        let users: Vec<(u32, u32)> = [(0, 0), (1, 1)].into_iter().chain([(2, 1); 8]).collect();
        for round in 0..3 {
            let got = shares(&users, 40_000, |qp| match round {
                0 => 1_024,
                1 => 1 + rng.below(64 << 10),
                // Who has little gets large turns.
                _ => {
                    if qp == 0 {
                        64 << 10
                    } else {
                        1_024
                    }
                }
            });
            let all: u64 = got.iter().sum();
            let part = |of: &[u64]| of.iter().sum::<u64>() as f64 / all as f64;
            assert!((part(&got[..1]) - 0.5).abs() < 0.02, "{round}: {got:?}");
            assert!((part(&got[1..2]) - 0.25).abs() < 0.02, "{round}: {got:?}");
            got[2..].iter().for_each(|one| assert!((part(&[*one]) - 0.25 / 8.0).abs() < 0.01, "{round}: {got:?}"));
        }
    }

    #[test]
    fn what_leaves_without_waiting_is_taken_off_the_rest() {
        let mut line = WindowLine::default();
        let [a, b] = [(0, 0), (1, 1)].map(|(context, account)| line.join(context, account));
        let mut got = [0u64; 2];
        line.push(a, 0);
        line.push(b, 1);
        for _ in 0..10_000 {
            let qp = line.first(|_| true).expect("both wait");
            line.pop();
            // The second has 512 bytes beside each turn of anyone.
            got[qp as usize] += 1_024;
            got[1] += 512;
            line.charge([a, b][qp as usize], 1_024);
            line.charge(b, 512);
            line.push([a, b][qp as usize], qp);
        }
        assert!((got[0] as f64 / got[1] as f64 - 1.0).abs() < 0.05, "{got:?}");
    }

    /// Members of rings that sweeps have looked at, in all.
    fn looks(line: &WindowLine) -> u64 {
        line.ring.looks + line.accounts.iter().map(|account| account.ring.looks).sum::<u64>()
    }

    /// Contexts of an account each, or all of one, that come, wait once, and leave again, in turns with others that stay.
    #[test]
    fn coming_and_leaving_cost_the_same_on_a_path_with_many_contexts() {
        for account_of in [|_| 0, |context| context] {
            for contexts in [256u32, 1024] {
                let mut line = WindowLine::default();
                let stay: Vec<u32> = (0..contexts).map(|context| line.join(context, account_of(context))).collect();
                let mut tickets: Vec<u32> = stay.iter().map(|at| line.push(*at, *at)).collect();
                for round in 0..4 * contexts {
                    let context = contexts + round;
                    let at = line.join(context, account_of(context));
                    line.push(at, u32::MAX);
                    line.vacate(at, |_| false);
                    line.leave(at);
                }
                let steps = looks(&line) / u64::from(4 * contexts);
                assert!(steps <= 4, "{steps} for each of {contexts} contexts");
                let entries = (line.contexts.len(), line.accounts.len());
                assert!(entries.0.max(entries.1) <= 3 * contexts as usize, "{entries:?} of {contexts}");
                // All that stay have their turns, each once.
                for _ in 0..contexts {
                    let qp = line.first(|_| true).expect("it waits");
                    line.pop();
                    assert_ne!(std::mem::take(&mut tickets[qp as usize]), NOT_WAITING, "twice");
                }
                assert_eq!((line.first(|_| true), line.len()), (None, 0));
            }
        }
    }

    #[test]
    fn entries_are_used_again_when_turns_lists_or_sweeps_have_removed_them() {
        for how in 0..3 {
            let mut line = WindowLine::default();
            for round in 0..100 {
                let joined: Vec<u32> = (0..40).map(|n| line.join(1000 * round + n, 100 * round + n / 4)).collect();
                assert!(
                    line.contexts.len() <= 80 && line.accounts.len() <= 20,
                    "{how}, {round}: {}",
                    line.contexts.len()
                );
                joined.iter().for_each(|at| _ = line.push(*at, 0));
                match how {
                    0 => {
                        while line.first(|_| true).is_some() {
                            line.pop();
                        }
                    }
                    1 => assert_eq!(line.take_all().len(), 40),
                    _ => joined.iter().for_each(|at| line.vacate(*at, |_| false)),
                }
                joined.iter().for_each(|at| line.leave(*at));
            }
        }
    }

    /// Against a set of those that wait: whoever waits is found, whatever comes, goes and leaves between.
    #[test]
    fn whoever_waits_has_a_turn() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut line = WindowLine::default();
            // Users by number: entry, ticket or 0.
            let mut users: HashMap<u32, (u32, u32)> = HashMap::new();
            for step in 0..2_000u32 {
                let some = |rng: &mut Rng, users: &HashMap<u32, (u32, u32)>| {
                    let mut all: Vec<u32> = users.keys().copied().collect();
                    all.sort_unstable();
                    (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize])
                };
                match rng.below(8) {
                    0 => {
                        let context = rng.below(6) as u32;
                        users.insert(step, (line.join(context, context / 2), NOT_WAITING));
                    }
                    1 => {
                        if let Some(qp) = some(&mut rng, &users) {
                            let (at, ticket) = users.remove(&qp).expect("there");
                            if ticket != NOT_WAITING {
                                line.vacate(at, |place| users.get(&place.qp).is_some_and(|(_, t)| *t == place.ticket));
                            }
                            line.leave(at);
                        }
                    }
                    2..=4 => {
                        if let Some(qp) = some(&mut rng, &users).filter(|qp| users[qp].1 == NOT_WAITING) {
                            let at = users[&qp].0;
                            let is_front = rng.below(4) == 0;
                            let ticket = if is_front { line.push_front(at, qp) } else { line.push(at, qp) };
                            users.insert(qp, (at, ticket));
                        }
                    }
                    5 => {
                        if let Some(qp) = some(&mut rng, &users) {
                            line.charge(users[&qp].0, rng.below(200 << 10));
                        }
                    }
                    _ => {
                        let waits = |place: ReadyPlace| users.get(&place.qp).is_some_and(|(_, t)| *t == place.ticket);
                        let first = line.first(waits);
                        let count = users.values().filter(|(_, ticket)| *ticket != NOT_WAITING).count();
                        assert_eq!((first.is_some(), line.len() as usize), (count > 0, count), "seed {seed}, {step}");
                        if let Some(qp) = first {
                            line.pop();
                            users.get_mut(&qp).expect("it waits").1 = NOT_WAITING;
                        }
                    }
                }
            }
            // All have their turns, each once.
            loop {
                let waits = |place: ReadyPlace| users.get(&place.qp).is_some_and(|(_, t)| *t == place.ticket);
                let Some(qp) = line.first(waits) else { break };
                line.pop();
                users.get_mut(&qp).expect("it waits").1 = NOT_WAITING;
            }
            assert!(users.values().all(|(_, ticket)| *ticket == NOT_WAITING) && line.is_empty(), "seed {seed}");
        }
    }
}
