//! Order of turns: deficit round robin over accounts, round robin over the contexts of an account, and over the ready queue pairs
//! of each context.
//!
//! Each context has a queue of ready queue pairs, each account a queue of its contexts with a non-empty one, and accounts with a
//! non-empty queue are queued themselves. One turn goes to the first queue pair of the first context of the first account; then
//! all three go to the back. So a process with a thousand queue pairs gets no more turns than one with a single queue pair, and
//! a user with a thousand processes no more than a user with one (SRNIC's ready queues, two levels higher).
//!
//! Turns differ in cost: [`turn_cost`]. In each round an account may use [`ROUND_COST`], which is one full turn or many short
//! ones; accounts that have used it wait for the next round (Shreedhar and Varghese, IEEE/ACM ToN 1996). What the last turn took
//! above it is taken off the next round; what is left of it is not saved.
//!
//! Missing pages that a worker allocates for an account cost [`FILL_COST`] each, whatever packets touch them. That debt may be
//! longer than a round. So that others are served before it is paid, [`Scheduler::take_turn`] begins no second round in one call:
//! in each pass, an account that owes gets one round's credit, and packets of others are received.
//!
//! Packets that a queue pair receives are worker time of its account, too: [`ReceivedWork`]. An account pays for them out of
//! its next rounds, before it has turns. Unlike missing pages they cost nothing while no other account wants a turn: if all
//! accounts that do must pay for packets first, the rounds until the first has paid are skipped. An account without ready
//! queue pairs pays in each round, too, and debts for packets end when the worker goes to sleep.
//!
//! A destroyed queue pair is not searched for in its queue. Its place becomes void, and [`Scheduler::take_turn`] skips void
//! places. A queue is swept only when more than half of its places are void, so each of thousands of queue pairs that end at
//! once costs constant time.

use burst_base::heap::{self, OutOfMemory};
use burst_ledger::{Account, AccountId, WorkCount};
use burst_mem::holes::FillAllowance;
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue with fewer void places is not swept.
const SWEPT_FROM: usize = 64;

/// Ticket of a queue pair that is in no ready queue.
pub const NO_TICKET: u32 = 0;

/// What an account may use in one round: the cost of one full turn.
pub const ROUND_COST: u64 = 64 << 10;

/// What a work request costs at least, in bytes of payload: 64 requests, the limit of a turn, cost as much as its 64 KiB.
const REQUEST_COST: u64 = 1 << 10;

/// What a page costs that the worker allocates in a program's file, in bytes of payload. A lone page takes as long as 20 KiB of
/// payload, one of many that follow one another as long as 5 KiB (measured on Linux 6.18).
pub const FILL_COST: u64 = 16 << 10;

/// What a received packet costs at least, in bytes of payload sent: about as much as a work request.
const PACKET_COST: u64 = 1 << 10;

/// Received packets of one queue pair that are charged together at least.
const CHARGED_FROM: u32 = 16;

/// What an account owes at most for missing pages, and what it is charged at most for packets between two turns. Its
/// acknowledgements wait for 16 passes at most for the pages, and for 18 rounds for packets and the turn before.
const DEBT_MAX: u64 = 16 * ROUND_COST;

/// So many rounds pay any debt for packets, with a round's credit left.
const ROUNDS_MAX: u64 = DEBT_MAX / ROUND_COST + 2;

/// The cost of a turn, in bytes of payload: a turn of many small requests takes a worker about as long as one of large ones. A
/// turn that sends nothing costs as much as one request.
#[inline]
pub fn turn_cost(requests: u32, bytes: u64) -> u64 {
    (u64::from(requests) * REQUEST_COST).max(bytes).max(REQUEST_COST)
}

/// Received packets of a queue pair that have not been charged yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedWork {
    packets: u32,
    /// From the BTH on and without the ICRC.
    bytes: u32,
    /// Bytes of the last packet that was added singly.
    last: u32,
}

impl ReceivedWork {
    /// Adds a packet that is handled next. A burst has 256 packets at most, and trains of 64 KiB at most.
    #[inline]
    pub fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u32;
        self.last = bytes as u32;
    }
    /// Adds packets of a train that were carried out together.
    #[inline]
    pub fn add_run(&mut self, packets: usize, bytes: usize) {
        self.packets += packets as u32;
        self.bytes += bytes as u32;
    }
    /// The packet that was added last was refused: nobody pays for it. Otherwise anybody could make a user pay, by packets that
    /// none of the user's programs has asked for.
    #[cold]
    pub fn refuse_last(&mut self) {
        let last = std::mem::take(&mut self.last);
        if last > 0 {
            self.packets -= 1;
            self.bytes -= last;
        }
    }
    /// At the end of a burst: what is to be charged now. Fewer packets wait, so that a queue pair that receives few costs little.
    #[inline]
    pub fn take_due(&mut self) -> Option<ReceivedWork> {
        self.last = 0;
        (self.packets >= CHARGED_FROM).then(|| std::mem::take(self))
    }
    /// The cost, in bytes of payload sent.
    #[inline]
    fn cost(self) -> u64 {
        (u64::from(self.packets) * PACKET_COST).max(u64::from(self.bytes))
    }
}

/// A place in a ready queue. It is void when the slot's queue pair has another ticket or none, also if the slot has a new queue
/// pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyPlace {
    /// Slot of the queue pair.
    pub qp: u32,
    /// Ticket from [`Scheduler::push`].
    pub ticket: u32,
}

/// Instead of an account's index: there is no such context.
const NO_ACCOUNT: u32 = u32::MAX;

/// The queue pairs of one context.
#[derive(Debug)]
struct ReadyQueue {
    queue: VecDeque<ReadyPlace>,
    /// Upper bound on the number of void places.
    void: usize,
    /// The account that the context belongs to.
    account: u32,
    /// Whether it is in the queue of its account.
    is_queued: bool,
}

impl Default for ReadyQueue {
    fn default() -> ReadyQueue {
        ReadyQueue { queue: VecDeque::new(), void: 0, account: NO_ACCOUNT, is_queued: false }
    }
}

/// One account.
#[derive(Debug)]
struct ReadyAccount {
    id: AccountId,
    work: Arc<WorkCount>,
    /// Counts the pages that were allocated for it; none for a trusted account.
    fills: Option<Arc<FillAllowance>>,
    /// Number of its contexts; 0: the place is free.
    contexts: u32,
    /// Contexts with ready queue pairs, in order of their turns.
    queued: VecDeque<u32>,
    /// Whether it waits for this round's or the next round's turn.
    is_queued: bool,
    /// What it may still use in `round`; not above 0: it waits for the next one. It owes less than [`DEBT_MAX`] and a round.
    credit: i64,
    round: u64,
    /// What it owes for missing pages, [`DEBT_MAX`] at most.
    owed_fills: u64,
    /// What packets may cost it until its next turn: however much it receives, its turn comes.
    may_owe: u64,
}

/// The ready queues. Contexts and queue pairs are named by their indices in the worker's tables.
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: Vec<ReadyQueue>,
    accounts: Vec<ReadyAccount>,
    /// Number of contexts with ready queue pairs.
    queued: u32,
    /// Accounts that may have ready queue pairs, in order of their turns.
    this_round: VecDeque<u32>,
    /// Accounts that have used what they may in this round.
    next_round: VecDeque<u32>,
    round: u64,
    /// The account of the last turn.
    served: u32,
    tickets: u32,
}

impl ReadyAccount {
    fn new(id: AccountId, work: Arc<WorkCount>, fills: Option<Arc<FillAllowance>>) -> ReadyAccount {
        ReadyAccount {
            id,
            work,
            fills,
            contexts: 0,
            queued: VecDeque::new(),
            is_queued: false,
            credit: 0,
            round: 0,
            owed_fills: 0,
            may_owe: DEBT_MAX,
        }
    }
    /// Gives it what it may use in this round, less what it has used above it before. Rounds that passed without it count, too.
    #[inline]
    fn enter(&mut self, round: u64) {
        if self.round != round {
            let rounds = (round - self.round).min(ROUNDS_MAX);
            self.round = round;
            self.credit = (self.credit + (rounds * ROUND_COST) as i64).min(ROUND_COST as i64);
            if self.owed_fills > 0 {
                self.pay_fills();
            }
        }
    }
    /// Pays for missing pages with its credit.
    #[cold]
    fn pay_fills(&mut self) {
        let paid = self.owed_fills.min(self.credit.max(0) as u64);
        self.owed_fills -= paid;
        self.credit -= paid as i64;
    }
}

impl Scheduler {
    /// Makes room for the contexts below `contexts`.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self, contexts: usize) -> Result<(), OutOfMemory> {
        heap::reserve(&mut self.ready, contexts)?;
        // There are no more accounts than contexts.
        let accounts = (self.accounts.len() + 1).next_power_of_two().min(contexts);
        heap::reserve(&mut self.accounts, accounts)
    }
    /// Makes room for context `context` of an account, at worker number `worker`. `fills` counts the pages that are allocated for
    /// the account.
    pub fn add_context(&mut self, context: u32, account: &Account, worker: usize, fills: Option<Arc<FillAllowance>>) {
        let len = context as usize + 1;
        if self.ready.len() < len {
            self.ready.resize_with(len, ReadyQueue::default);
        }
        self.remove_context(context);
        let known = self.accounts.iter().position(|a| a.contexts > 0 && a.id == *account.id());
        let at = known.unwrap_or_else(|| {
            let new = ReadyAccount::new(account.id().clone(), account.work_count(worker), fills);
            match self.accounts.iter().position(|a| a.contexts == 0) {
                Some(free) => {
                    self.accounts[free] = new;
                    free
                }
                None => {
                    self.accounts.push(new);
                    self.accounts.len() - 1
                }
            }
        });
        self.accounts[at].contexts += 1;
        self.ready[context as usize].account = at as u32;
    }
    /// Empties the ready queue of context `context`, and forgets its account with its last context.
    pub fn remove_context(&mut self, context: u32) {
        let Some(ready) = self.ready.get_mut(context as usize).filter(|ready| ready.account != NO_ACCOUNT) else {
            return;
        };
        let ReadyQueue { account, is_queued, .. } = std::mem::take(ready);
        let of = &mut self.accounts[account as usize];
        if is_queued {
            self.queued -= 1;
            of.queued.retain(|queued| *queued != context);
        }
        assert!(of.contexts > 0, "a context of an account without contexts");
        of.contexts -= 1;
        if of.contexts == 0 {
            of.fills = None;
        }
        if of.contexts == 0 && std::mem::take(&mut of.is_queued) {
            self.this_round.retain(|queued| *queued != account);
            self.next_round.retain(|queued| *queued != account);
        }
    }
    /// Returns memory that is not in use. `contexts` is one more than the largest number of a context that exists.
    pub fn shrink(&mut self, contexts: usize) {
        // A removed context is in no queue.
        self.ready.truncate(contexts);
        self.ready.shrink_to_fit();
        self.ready.iter_mut().for_each(|ready| ready.queue.shrink_to_fit());
        let accounts = self.accounts.iter().rposition(|account| account.contexts > 0).map_or(0, |last| last + 1);
        self.accounts.truncate(accounts);
        self.accounts.shrink_to_fit();
        self.accounts.iter_mut().for_each(|account| account.queued.shrink_to_fit());
        self.this_round.shrink_to_fit();
        self.next_round.shrink_to_fit();
    }
    /// Appends queue pair `qp` of `context`, which must not be queued, and returns its ticket.
    pub fn push(&mut self, context: u32, qp: u32) -> u32 {
        self.tickets = self.tickets.wrapping_add(1).max(NO_TICKET + 1);
        let place = ReadyPlace { qp, ticket: self.tickets };
        let ready = &mut self.ready[context as usize];
        debug_assert!(ready.account != NO_ACCOUNT, "context {context} was not added");
        ready.queue.push_back(place);
        if !ready.is_queued {
            ready.is_queued = true;
            self.queued += 1;
            let account = &mut self.accounts[ready.account as usize];
            account.queued.push_back(context);
            if !account.is_queued {
                account.is_queued = true;
                self.this_round.push_back(ready.account);
            }
        }
        place.ticket
    }
    /// Takes the queue pair that has the next turn, of those that are `still` ready. [`Scheduler::charge`] must follow. `None`
    /// also when all accounts with ready queue pairs owe more than a round for missing pages: the next call is to come after
    /// other work.
    #[inline]
    pub fn take_turn(&mut self, still: impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        while self.queued > 0 {
            let account = self.next_account()?;
            if let Some(qp) = self.take_from(account, &still) {
                self.served = account;
                return Some(qp);
            }
        }
        None
    }
    /// A place that gets a turn about `count` turns after the next one.
    #[inline]
    pub fn after(&self, count: usize) -> Option<ReadyPlace> {
        let account = &self.accounts[*self.this_round.front()? as usize];
        let contexts = account.queued.len();
        let (round, at) = if contexts == 1 { (count, 0) } else { (count / contexts.max(1), count % contexts.max(1)) };
        let context = account.queued.get(at)?;
        self.ready[*context as usize].queue.get(round).copied()
    }
    /// The worker sleeps next, so nobody waits for a turn: nobody owes for packets any longer.
    pub fn forgive_received(&mut self) {
        self.round += ROUNDS_MAX;
    }
    /// The account that has the next turn; `None` if all owe more than a round for missing pages. Some context must be queued.
    #[inline]
    fn next_account(&mut self) -> Option<u32> {
        let mut began = false;
        loop {
            let Some(index) = self.this_round.front().copied() else {
                assert!(!self.next_round.is_empty(), "a context is queued and its account is not");
                // A round is more than any turn costs, so only an account with a debt has no credit in a new round.
                if std::mem::replace(&mut began, true) && !self.skip_rounds() {
                    return None;
                }
                std::mem::swap(&mut self.this_round, &mut self.next_round);
                self.round += 1;
                continue;
            };
            let account = &mut self.accounts[index as usize];
            debug_assert!(account.is_queued, "account {index} is queued without its mark");
            account.enter(self.round);
            if account.credit > 0 && !account.queued.is_empty() {
                // A single account stays in front.
                if self.this_round.len() > 1 {
                    self.this_round.pop_front();
                    self.this_round.push_back(index);
                }
                return Some(index);
            }
            // An account without ready queue pairs has stayed in its place until now, because most have one again at once.
            self.this_round.pop_front();
            if account.queued.is_empty() {
                account.is_queued = false;
            } else {
                self.next_round.push_back(index);
            }
        }
    }
    /// All accounts of the next round owe. Each pays as much as the account that owes least for packets: rounds in which nobody
    /// would have a turn are skipped. False if all of them owe for missing pages.
    #[cold]
    fn skip_rounds(&mut self) -> bool {
        let Scheduler { accounts, next_round, .. } = self;
        let owed = next_round.iter().map(|index| &accounts[*index as usize]).filter(|account| account.owed_fills == 0);
        let Some(most) = owed.map(|account| account.credit).max() else { return false };
        debug_assert!(most <= 0, "an account waits with credit");
        for index in next_round.iter() {
            let account = &mut accounts[*index as usize];
            if account.owed_fills == 0 {
                account.credit -= most;
            }
        }
        true
    }
    /// Takes the first queue pair that is `still` ready from the first context of an account.
    #[inline]
    fn take_from(&mut self, account: u32, still: &impl Fn(ReadyPlace) -> bool) -> Option<u32> {
        let account = &mut self.accounts[account as usize];
        let context = account.queued.pop_front()?;
        let ReadyQueue { queue, void, is_queued, .. } = &mut self.ready[context as usize];
        debug_assert!(*is_queued, "context {context} is queued without its mark");
        let mut qp = queue.pop_front();
        while qp.is_some_and(|q| !still(q)) {
            *void = void.saturating_sub(1);
            qp = queue.pop_front();
        }
        if queue.is_empty() {
            *void = 0;
            *is_queued = false;
            self.queued -= 1;
        } else {
            account.queued.push_back(context);
        }
        qp.map(|place| place.qp)
    }
    /// Charges the turn of the queue pair that [`Scheduler::take_turn`] returned last to its account.
    #[inline]
    pub fn charge(&mut self, requests: u32, bytes: u64) {
        let account = &mut self.accounts[self.served as usize];
        account.credit -= turn_cost(requests, bytes) as i64;
        account.may_owe = DEBT_MAX;
        account.work.add_turn(requests, bytes);
    }
    /// Charges what a queue pair of `context` has received.
    #[inline(never)]
    pub fn charge_received(&mut self, context: u32, received: ReceivedWork) {
        let is_shared = self.accounts.len() > 1;
        let Some(ready) = self.ready.get(context as usize) else { return };
        let Some(account) = self.accounts.get_mut(ready.account as usize) else { return };
        // An account without others pays nobody.
        if is_shared {
            let owed = received.cost().min(account.may_owe);
            account.may_owe -= owed;
            account.credit -= owed as i64;
        }
        account.work.add_received(received.packets, received.bytes);
    }
    /// Charges the pages that were allocated since the last call to their accounts.
    #[cold]
    pub fn charge_fills(&mut self) {
        for account in &mut self.accounts {
            let pages = account.fills.as_ref().map_or(0, |fills| fills.take_unpaid());
            if pages > 0 {
                let owed = pages.saturating_mul(FILL_COST);
                account.owed_fills = account.owed_fills.saturating_add(owed).min(DEBT_MAX);
                account.pay_fills();
            }
        }
    }
    /// Whether no context is queued.
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }
    /// Notes that a place of `context` has become void. Places that are `still` valid keep their order.
    pub fn remove(&mut self, context: u32, still: impl Fn(ReadyPlace) -> bool) {
        let ReadyQueue { queue, void, .. } = &mut self.ready[context as usize];
        *void += 1;
        if *void >= SWEPT_FROM && *void > queue.len() / 2 {
            queue.retain(|q| still(*q));
            *void = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::{Capacities, Ledger, Policy};

    /// Adds contexts of the user `uid`.
    fn add(s: &mut Scheduler, uid: u32, contexts: impl IntoIterator<Item = u32>) {
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        let account = ledger.account(AccountId::User(uid), false);
        contexts.into_iter().for_each(|context| s.add_context(context, &account, 0, None));
    }

    /// Gives `count` turns to queue pairs that are ready again at once. `cost` gives the requests and bytes of a turn. Returns
    /// the contexts in order; a queue pair's number is 1000 times its context's, and more.
    fn turns(s: &mut Scheduler, count: usize, cost: impl Fn(u32) -> (u32, u64)) -> Vec<u32> {
        let mut order = Vec::new();
        for _ in 0..count {
            let qp = s.take_turn(|_| true).expect("a turn");
            let (requests, bytes) = cost(qp / 1000);
            s.push(qp / 1000, qp);
            s.charge(requests, bytes);
            order.push(qp / 1000);
        }
        order
    }

    fn count(order: &[u32], of: impl Fn(u32) -> bool) -> usize {
        order.iter().filter(|context| of(**context)).count()
    }

    #[test]
    fn accounts_share_turns_whatever_their_numbers_of_contexts_and_queue_pairs() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, 0..64);
        add(&mut s, 1002, [64]);
        for qp in 0..64 * 16 {
            s.push(qp / 16, qp / 16 * 1000 + qp % 16);
        }
        s.push(64, 64_000);
        let order = turns(&mut s, 1000, |_| (64, 64 << 10));
        assert_eq!(count(&order, |context| context == 64), 500);
        // Within the account each context has its part.
        assert!((0..64).all(|one| (7..=8).contains(&count(&order, |context| context == one))), "{order:?}");
    }

    #[test]
    fn short_turns_are_more_than_long_ones() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        add(&mut s, 1003, [2]);
        (0..3).for_each(|context| assert_ne!(s.push(context, context * 1000), NO_TICKET));
        // Many small requests, one large one, few small ones.
        let order = turns(&mut s, 1000, |context| [(64, 4096), (1, 64 << 10), (4, 100)][context as usize]);
        let each = [0, 1, 2].map(|one| count(&order, |context| context == one));
        assert!(each[0].abs_diff(each[1]) <= 1 && each[2].abs_diff(16 * each[0]) <= 16, "{each:?}");
        // The short turns of a round do not come one after the other while others wait for theirs.
        assert_ne!(order[..2], [2, 2]);
    }

    #[test]
    fn an_idle_account_saves_nothing_and_leaves_nothing_behind() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        s.push(0, 0);
        turns(&mut s, 1000, |_| (64, 64 << 10));
        s.push(1, 1000);
        let order = turns(&mut s, 101, |_| (64, 64 << 10));
        assert!((50..=51).contains(&count(&order, |context| context == 1)), "{order:?}");
        s.remove_context(1);
        assert_eq!(count(&turns(&mut s, 10, |_| (64, 64 << 10)), |context| context == 0), 10);
        s.remove_context(0);
        assert!(s.is_empty() && s.take_turn(|_| true).is_none());
        let accounts = s.accounts.len();
        s.shrink(0);
        s.remove_context(0);
        assert_eq!((accounts, s.accounts.len(), s.ready.len()), (2, 0, 0));
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        s.remove_context(0);
        s.shrink(2);
        s.remove_context(1);
        add(&mut s, 1003, [0, 1]);
        assert_eq!((s.accounts.len(), s.this_round.len(), s.next_round.len(), s.queued), (2, 0, 0, 0));
        s.push(1, 1000);
        assert_eq!(
            (s.take_turn(|_| true), s.accounts[0].contexts, s.accounts[0].id.clone()),
            (Some(1000), 2, AccountId::User(1003))
        );
    }

    #[test]
    fn an_overdrawn_round_is_taken_off_the_next() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        (0..2).for_each(|context| assert_ne!(s.push(context, context * 1000), NO_TICKET));
        // 1.5 rounds in two turns, one round in four.
        let order = turns(&mut s, 3000, |context| (1, [48 << 10, 16 << 10][context as usize]));
        let each = [0, 1].map(|one| count(&order, |context| context == one));
        assert!(each[1].abs_diff(3 * each[0]) <= 4, "{each:?}");
    }

    #[test]
    fn contexts_alternate_whatever_their_number_of_queue_pairs() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0, 1]);
        for qp in 0..4 {
            s.push(0, qp);
        }
        s.push(1, 100);
        s.push(1, 101);
        let order: Vec<_> = std::iter::from_fn(|| s.take_turn(|_| true)).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3]);
        assert!(s.is_empty());
    }

    #[test]
    fn void_places_are_skipped() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [3]);
        s.push(3, 7);
        s.push(3, 8);
        s.remove(3, |place| place.qp != 7);
        assert_eq!(s.take_turn(|place| place.qp != 7), Some(8));
        s.push(3, 9);
        s.remove_context(3);
        assert_eq!(s.take_turn(|_| true), None);
        add(&mut s, 1001, [3]);
        s.push(3, 10);
        assert_eq!(s.take_turn(|_| true), Some(10));
    }

    #[test]
    fn the_next_queue_pair_in_a_slot_has_one_turn() {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        let first = s.push(0, 7);
        s.remove(0, |place| place.ticket != first);
        let second = s.push(0, 7);
        let still = |place: ReadyPlace| place == ReadyPlace { qp: 7, ticket: second };
        assert_eq!((s.take_turn(still), s.take_turn(still)), (Some(7), None));
        s.tickets = u32::MAX;
        assert_ne!(s.push(0, 7), NO_TICKET);
    }

    /// An account whose packets touch `pages` missing pages in each turn of 64 KiB runs `passes` passes of four turns at most.
    /// Returns the bytes of its turns, and those of `other`, if that is ready in each pass.
    fn passes_with_fills(passes: usize, pages: u64, other: bool) -> [u64; 2] {
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        let fills = Arc::new(FillAllowance::new(0, None));
        let (mut s, mut bytes) = (Scheduler::default(), [0; 2]);
        for (context, uid) in [(0, 1001), (1, 1002)] {
            let account = ledger.account(AccountId::User(uid), false);
            s.add_context(context, &account, 0, (context == 0).then(|| fills.clone()));
        }
        s.push(0, 0);
        for pass in 0..passes {
            s.charge_fills();
            if other && (pass == 0 || s.ready[1].queue.is_empty()) {
                s.push(1, 1);
            }
            for _ in 0..4 {
                let Some(context) = s.take_turn(|_| true) else { break };
                s.charge(1, ROUND_COST);
                bytes[context as usize] += ROUND_COST;
                if context == 0 {
                    fills.add_unpaid(pages);
                    s.push(0, 0);
                }
            }
        }
        bytes
    }

    #[test]
    fn an_account_pays_for_missing_pages_before_its_next_turns() {
        // Without missing pages four turns in each pass, and three beside a turn of another account.
        assert_eq!(passes_with_fills(1000, 0, false), [4000 * ROUND_COST, 0]);
        assert_eq!(passes_with_fills(1000, 0, true), [3000 * ROUND_COST, 1000 * ROUND_COST]);
        // Sixteen pages in each turn: packets that others receive have most of the passes.
        let [alone, _] = passes_with_fills(1000, 16, false);
        assert!((200 * ROUND_COST..=300 * ROUND_COST).contains(&alone), "{alone}");
        let [owes, other] = passes_with_fills(1000, 16, true);
        assert!(owes >= other / 8 && owes <= other / 3 && other >= 990 * ROUND_COST, "{owes} {other}");
        // The debt has a limit.
        let [least, _] = passes_with_fills(1000, 1 << 40, false);
        assert!(least >= 1000 / 18 * ROUND_COST, "{least}");
    }

    /// What a queue pair receives in `packets` packets of 4 KiB.
    fn received(packets: usize) -> ReceivedWork {
        let mut received = ReceivedWork::default();
        received.add_run(packets, packets * 4096);
        received
    }

    /// Passes of four turns at most, with two accounts of which the first receives `packets` packets of 4 KiB in each. Returns
    /// the turns of each. `other` says in which passes the second account is ready.
    fn passes_with_packets(passes: usize, packets: usize, other: impl Fn(usize) -> bool) -> [usize; 2] {
        let (mut s, mut turns) = (Scheduler::default(), [0; 2]);
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        s.push(0, 0);
        for pass in 0..passes {
            if other(pass) && s.ready[1].queue.is_empty() {
                s.push(1, 1);
            }
            for _ in 0..4 {
                let context = s.take_turn(|_| true).expect("packets keep nobody from a turn");
                s.charge(1, ROUND_COST);
                turns[context as usize] += 1;
                if context == 0 || other(pass) {
                    s.push(context, context);
                }
            }
            s.charge_received(0, received(packets));
        }
        turns
    }

    #[test]
    fn an_account_pays_for_received_packets_before_its_next_turns() {
        // Four turns in each pass are shared: 64 KiB received in each pass cost one of them.
        assert_eq!(passes_with_packets(1000, 0, |_| true), [2000, 2000]);
        let [receives, other] = passes_with_packets(1000, 16, |_| true);
        assert!(receives.abs_diff(1500) <= 4 && other.abs_diff(2500) <= 4, "{receives} {other}");
        // What is received above 1 MiB between two turns costs nothing: no flood keeps an account from its turns.
        let [receives, other] = passes_with_packets(1000, 1 << 14, |_| true);
        assert!((4000 / 18..=4000 / 8).contains(&receives) && receives + other == 4000, "{receives} {other}");
    }

    #[test]
    fn received_packets_cost_nothing_while_no_other_account_is_ready() {
        assert_eq!(passes_with_packets(1000, 1 << 14, |_| false), [4000, 0]);
        // The other account is ready in one pass of 100: it has that pass, and no more.
        let [receives, other] = passes_with_packets(1000, 1 << 14, |pass| pass % 100 == 50);
        assert!(receives >= 3950 && (35..=50).contains(&other), "{receives} {other}");
    }

    #[test]
    fn a_debt_for_packets_ends_with_the_rounds_of_others_and_with_the_workers_sleep() {
        for asleep in [false, true] {
            let mut s = Scheduler::default();
            add(&mut s, 1001, [0]);
            add(&mut s, 1002, [1]);
            s.push(1, 1000);
            turns(&mut s, 10, |_| (1, ROUND_COST));
            s.charge_received(0, received(1 << 14));
            match asleep {
                true => s.forgive_received(),
                false => assert_eq!(count(&turns(&mut s, 20, |_| (1, ROUND_COST)), |context| context == 1), 20),
            }
            s.push(0, 0);
            let order = turns(&mut s, 10, |_| (1, ROUND_COST));
            assert!(count(&order, |context| context == 0) >= 4, "{asleep} {order:?}");
        }
    }

    #[test]
    fn rounds_that_are_skipped_for_packets_pay_for_no_missing_pages() {
        let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
        let fills = Arc::new(FillAllowance::new(0, None));
        let mut s = Scheduler::default();
        for (context, uid) in [(0, 1001), (1, 1002)] {
            let account = ledger.account(AccountId::User(uid), false);
            s.add_context(context, &account, 0, (context == 0).then(|| fills.clone()));
            s.push(context, context);
        }
        // 1 MiB each: without the pages' debt both have their turns at once.
        fills.add_unpaid(64);
        s.charge_fills();
        s.charge_received(1, received(256));
        assert_eq!(s.take_turn(|_| true), Some(1));
        s.charge(1, ROUND_COST);
        let owed = s.accounts[0].owed_fills;
        assert!(owed >= DEBT_MAX - 3 * ROUND_COST, "{owed}");
        // Alone it pays a round in each pass.
        let passes = std::iter::from_fn(|| s.take_turn(|_| true).is_none().then_some(())).count();
        assert!((13..=16).contains(&passes), "{passes}");
    }

    #[test]
    fn refused_packets_are_taken_back_and_few_packets_wait() {
        let mut received = ReceivedWork::default();
        for _ in 1..CHARGED_FROM {
            received.add(100);
        }
        received.add(4096);
        received.refuse_last();
        // A second reason for the same packet.
        received.refuse_last();
        assert_eq!(received.take_due(), None);
        // A reason that no packet of this burst has caused.
        received.refuse_last();
        received.add(100);
        let due = received.take_due().expect("enough");
        assert_eq!((due.packets, due.bytes, received), (16, 1600, ReceivedWork::default()));
        assert_eq!(due.cost(), 16 * PACKET_COST);
    }

    #[test]
    fn each_of_thousands_that_end_at_once_costs_a_few_looks() {
        use std::cell::Cell;
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        let count = 10_000;
        for qp in 0..count {
            s.push(0, qp);
        }
        let looked = Cell::new(0u32);
        for end in 1..=count {
            s.remove(0, |place| {
                looked.set(looked.get() + 1);
                place.qp >= end
            });
        }
        assert!(looked.get() < 4 * count, "{}", looked.get());
        assert!(s.ready[0].queue.len() < 2 * SWEPT_FROM);
        s.push(0, count);
        assert_eq!(s.take_turn(|place| place.qp >= count), Some(count));
        assert!(s.is_empty());
    }
}
