//! Order of turns: deficit round robin over accounts, priority classes in each account (`priority`), round robin over the
//! contexts of a class, and over the ready queue pairs of each context.
//!
//! Each context has a queue of ready queue pairs for each class. Each account has for each class a queue of its contexts with a
//! non-empty one, and accounts with a non-empty queue are queued themselves. One turn goes to the first queue pair of the first
//! context of a class of the first account; then all three go to the back. So a process with a thousand queue pairs gets no more
//! turns than one with a single queue pair, and a user with a thousand processes no more than a user with one (SRNIC's ready
//! queues, two levels higher).
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
//! A destroyed queue pair is not searched for in its queue. Its place becomes vacant, and [`Scheduler::take_turn`] skips vacant
//! places. A queue is swept only when more than half of its places are vacant, so each of thousands of queue pairs that end at
//! once costs constant time.

use crate::histograms::PassStamp;
use crate::transmit::priority::{CLASSES, ClassQueues};
use burst_base::heap::{self, OutOfMemory};
use burst_ledger::{Account, AccountId, WorkCount};
use burst_mem::holes::FillAllowance;
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue with fewer vacant places is not swept.
const SWEPT_FROM: usize = 64;

/// The entry of URMA's endpoint in the tables of a worker.
pub(crate) const URMA_ENTRY: u32 = 0;
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
    /// The packet that was added last was refused, and no account is charged for it. Otherwise any host could make a user pay, by
    /// packets that none of the user's programs has asked for.
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

/// A place in a ready queue. It is vacant when the slot's queue pair has another ticket or none, also if the slot has a new queue
/// pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyPlace {
    /// Slot of the queue pair.
    pub qp: u32,
    /// Ticket from [`Scheduler::push`].
    pub ticket: u32,
}

/// Places from one that is timed to the next one, at least.
const TIMED_SPACING: u32 = 16;
/// Places after which a timed one that had no turn counts as vacant.
const TIMED_STALE: u32 = 1 << 16;

/// The place whose wait for a turn is timed, one at a time: a stamp in each place would cost every idle queue pair as much.
#[derive(Clone, Copy, Debug, Default)]
struct TimedPlace {
    ticket: u32,
    since: PassStamp,
    /// How many places later the next one is timed: [`TIMED_STALE`] while it waits.
    spacing: u32,
}

/// Instead of an account's index: there is no such context.
const NO_ACCOUNT: u32 = u32::MAX;

/// The queue pairs of one context.
#[derive(Debug)]
struct ReadyQueue {
    /// By class. The context is in the queue of its account for each class in which it has places.
    queues: [VecDeque<ReadyPlace>; CLASSES],
    /// Upper bound on the number of vacant places.
    vacant: usize,
    /// The account that the context belongs to.
    account: u32,
}

impl Default for ReadyQueue {
    fn default() -> ReadyQueue {
        ReadyQueue { queues: Default::default(), vacant: 0, account: NO_ACCOUNT }
    }
}

impl ReadyQueue {
    fn places(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
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
    queued: ClassQueues,
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
    /// Number of contexts with ready queue pairs, for each class in which they have some.
    queued: u32,
    /// Accounts that may have ready queue pairs, in order of their turns.
    this_round: VecDeque<u32>,
    /// Accounts that have used what they may in this round.
    next_round: VecDeque<u32>,
    round: u64,
    /// Account and class of the last turn.
    served: u32,
    served_class: usize,
    tickets: u32,
    /// The present pass.
    pass: PassStamp,
    timed: TimedPlace,
}

impl ReadyAccount {
    fn new(id: AccountId, work: Arc<WorkCount>, fills: Option<Arc<FillAllowance>>) -> ReadyAccount {
        ReadyAccount {
            id,
            work,
            fills,
            contexts: 0,
            queued: ClassQueues::default(),
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
    /// The account of a context, as a number.
    pub fn account_of(&self, context: u32) -> u32 {
        self.ready.get(context as usize).map_or(NO_ACCOUNT, |ready| ready.account)
    }
    /// Empties the ready queue of context `context`, and forgets its account with its last context.
    pub fn remove_context(&mut self, context: u32) {
        let Some(ready) = self.ready.get_mut(context as usize).filter(|ready| ready.account != NO_ACCOUNT) else {
            return;
        };
        let ReadyQueue { account, queues, .. } = std::mem::take(ready);
        let of = &mut self.accounts[account as usize];
        for class in (0..CLASSES).filter(|class| !queues[*class].is_empty()) {
            self.queued -= 1;
            of.queued.remove(class, context);
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
        self.ready.iter_mut().flat_map(|ready| &mut ready.queues).for_each(VecDeque::shrink_to_fit);
        let accounts = self.accounts.iter().rposition(|account| account.contexts > 0).map_or(0, |last| last + 1);
        self.accounts.truncate(accounts);
        self.accounts.shrink_to_fit();
        self.accounts.iter_mut().for_each(|account| account.queued.shrink_to_fit());
        self.this_round.shrink_to_fit();
        self.next_round.shrink_to_fit();
    }
    /// A pass begins: places that are taken from now on have its stamp.
    #[inline]
    pub(crate) fn begin_pass(&mut self, pass: PassStamp) {
        self.pass = pass;
    }
    /// Since when the place of this ticket, which has its turn, has waited, if it is the one that is timed.
    #[inline]
    pub(crate) fn end_timed(&mut self, ticket: u32) -> Option<PassStamp> {
        if ticket != self.timed.ticket || self.timed.spacing != TIMED_STALE {
            return None;
        }
        self.timed.spacing = TIMED_SPACING;
        Some(self.timed.since)
    }
    /// Appends queue pair `qp` of `context`, which must not be queued, to a class (`priority::class_of`), and
    /// returns its ticket.
    pub fn push(&mut self, context: u32, class: usize, qp: u32) -> u32 {
        self.tickets = self.tickets.wrapping_add(1).max(NO_TICKET + 1);
        let place = ReadyPlace { qp, ticket: self.tickets };
        if self.tickets.wrapping_sub(self.timed.ticket) >= self.timed.spacing {
            self.timed = TimedPlace { ticket: self.tickets, since: self.pass, spacing: TIMED_STALE };
        }
        let ready = &mut self.ready[context as usize];
        debug_assert!(ready.account != NO_ACCOUNT, "context {context} was not added");
        let queue = &mut ready.queues[class];
        queue.push_back(place);
        if queue.len() == 1 {
            self.queued += 1;
            let account = &mut self.accounts[ready.account as usize];
            account.queued.push(class, context);
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
        let (class, contexts) = account.queued.next_contexts();
        let number = contexts.len();
        let (round, at) = if number == 1 { (count, 0) } else { (count / number.max(1), count % number.max(1)) };
        let context = contexts.get(at)?;
        self.ready[*context as usize].queues[class].get(round).copied()
    }
    /// The worker sleeps next, so no account waits for a turn: debts for packets end.
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
    /// All accounts of the next round owe. Each pays as much as the account that owes least for packets: rounds without a turn
    /// are skipped. False if all of them owe for missing pages.
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
        let class = account.queued.next_class();
        self.served_class = class;
        let context = account.queued.pop(class)?;
        let ReadyQueue { queues, vacant, .. } = &mut self.ready[context as usize];
        let queue = &mut queues[class];
        debug_assert!(!queue.is_empty(), "context {context} is queued without a place");
        let mut qp = queue.pop_front();
        while qp.is_some_and(|q| !still(q)) {
            *vacant = vacant.saturating_sub(1);
            qp = queue.pop_front();
        }
        if !queue.is_empty() {
            account.queued.push(class, context);
            return qp.map(|place| place.qp);
        }
        self.queued -= 1;
        if *vacant > 0 && queues.iter().all(VecDeque::is_empty) {
            *vacant = 0;
        }
        qp.map(|place| place.qp)
    }
    /// Charges the turn of the queue pair that [`Scheduler::take_turn`] returned last to its account.
    #[inline]
    pub fn charge(&mut self, requests: u32, bytes: u64) {
        let account = &mut self.accounts[self.served as usize];
        let cost = turn_cost(requests, bytes);
        account.credit -= cost as i64;
        account.queued.charge(self.served_class, cost);
        account.may_owe = DEBT_MAX;
        account.work.add_turn(requests, bytes);
    }
    /// Charges what a queue pair of `context` has received.
    #[inline(never)]
    pub fn charge_received(&mut self, context: u32, received: ReceivedWork) {
        let is_shared = self.accounts.len() > 1;
        let Some(ready) = self.ready.get(context as usize) else { return };
        let Some(account) = self.accounts.get_mut(ready.account as usize) else { return };
        // An account without others pays none.
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
    /// Removes the vacant places of a context.
    fn sweep(&mut self, context: u32, still: impl Fn(ReadyPlace) -> bool) {
        let Scheduler { ready, accounts, queued, .. } = self;
        let ReadyQueue { queues, vacant, account } = &mut ready[context as usize];
        for (class, queue) in queues.iter_mut().enumerate().filter(|(_, queue)| !queue.is_empty()) {
            queue.retain(|place| still(*place));
            if queue.is_empty() {
                *queued -= 1;
                accounts[*account as usize].queued.remove(class, context);
            }
        }
        *vacant = 0;
    }
    /// Whether no context is queued.
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }
    /// Notes that a place of `context` has become vacant. Places that are `still` valid keep their order.
    pub fn remove(&mut self, context: u32, still: impl Fn(ReadyPlace) -> bool) {
        let ready = &mut self.ready[context as usize];
        ready.vacant += 1;
        if ready.vacant >= SWEPT_FROM && ready.vacant > ready.places() / 2 {
            self.sweep(context, still);
        }
    }
}

#[cfg(test)]
mod tests;
