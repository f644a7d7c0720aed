//! The ledger, the accounts in it, and charges.

use crate::busiest::{BusiestObjects, PlaceUse};
use crate::resource::{Capacities, Resource, Scope};
use crate::time::{TimeRecord, TimeSpent};
use crate::work::{WorkCount, WorkSum};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Maximum number of resources of one charge.
const ITEMS_MAX: usize = 4;
/// Maximum number of pools of one charge.
const PLACES_MAX: usize = 3;

/// How capacities are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The part of what others and the reserve leave that one account may use: 1 to 100.
    pub share_percent: u8,
    /// The part of each capacity that only privileged accounts may use: 0 to 99.
    pub reserve_percent: u8,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { share_percent: 50, reserve_percent: 10 }
    }
}

/// The owner of an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccountId {
    /// A user id.
    User(u32),
    /// A control group, by its path in the cgroup hierarchy.
    ControlGroup(String),
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountId::User(uid) => write!(f, "user {uid}"),
            AccountId::ControlGroup(path) => write!(f, "control group {path}"),
        }
    }
}

/// Amounts of each resource. Workers may charge and give back at the same time as the control thread.
#[derive(Debug)]
struct Amounts([AtomicU64; Resource::COUNT]);

impl Default for Amounts {
    fn default() -> Amounts {
        Amounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Amounts {
    fn of(&self, resource: Resource) -> u64 {
        self.0[resource as usize].load(Relaxed)
    }
    /// Adds an amount. Returns the sum.
    fn add(&self, resource: Resource, amount: u64) -> u64 {
        self.0[resource as usize].fetch_add(amount, Relaxed) + amount
    }
    fn subtract(&self, resource: Resource, amount: u64) {
        let before = self.0[resource as usize].fetch_sub(amount, Relaxed);
        assert!(before >= amount, "{} were given back that were not in use", resource.words());
    }
}

/// What all accounts share.
#[derive(Debug)]
struct Books {
    capacities: Capacities,
    policy: Policy,
    used: Amounts,
}

impl Books {
    /// What an account may use of a resource while the others use `others`.
    fn limit(&self, resource: Resource, others: u64, privileged: bool) -> u64 {
        let capacity = self.capacities.of(resource);
        if privileged && !resource.binds_privileged() {
            return capacity.saturating_sub(others);
        }
        let reserve = if privileged { 0 } else { percent(capacity, self.policy.reserve_percent) };
        let rest = capacity.saturating_sub(reserve).saturating_sub(others);
        // One of a few is more than the share. While there is one, a small capacity must not exclude a user.
        percent(rest, self.policy.share_percent).max(rest.min(1))
    }
}

/// `part` percent of `whole`, rounded down.
fn percent(whole: u64, part: u8) -> u64 {
    (u128::from(whole) * u128::from(part) / 100) as u64
}

/// The accounts of all users.
#[derive(Debug)]
pub struct Ledger {
    books: Arc<Books>,
    accounts: Mutex<KnownAccounts>,
}

/// The accounts that exist: someone holds them, or a charge does. Some that have gone are among them.
#[derive(Debug, Default)]
struct KnownAccounts {
    books: BTreeMap<AccountId, Weak<AccountBook>>,
    /// The last one at which [`KnownAccounts::forget_some`] has looked.
    looked: Option<AccountId>,
    /// Entries that were looked at.
    steps: u64,
}

/// Entries at which a new account looks. All are looked at while a quarter as many are opened. So there are fewer than three
/// times as many entries as there ever were accounts at once.
const LOOKS: usize = 4;

impl KnownAccounts {
    /// Forgets accounts that have gone, among the next few.
    fn forget_some(&mut self) {
        for _ in 0..LOOKS.min(self.books.len()) {
            let behind = (self.looked.take().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            // Behind the last one comes the first.
            let next = self.books.range(behind).next().or_else(|| self.books.iter().next());
            let Some((id, has_gone)) = next.map(|(id, book)| (id.clone(), book.strong_count() == 0)) else { return };
            self.steps += 1;
            if has_gone {
                self.books.remove(&id);
            }
            self.looked = Some(id);
        }
    }
}

/// The state of one account.
#[derive(Debug)]
struct AccountBook {
    id: AccountId,
    privileged: bool,
    used: Amounts,
    /// How many charges were refused.
    refused: AtomicU64,
    /// What it uses of single objects.
    busiest: Mutex<BusiestObjects>,
    /// Time that the control thread has spent.
    control: Mutex<TimeRecord>,
    /// What each worker has done, by its number.
    work: Mutex<Vec<Arc<WorkCount>>>,
    books: Arc<Books>,
}

/// What an account uses of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUse {
    /// The resource.
    pub resource: Resource,
    /// How much is in use.
    pub used: u64,
    /// How much the account may use while the other accounts use what they use now.
    pub limit: u64,
}

/// What an account uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountUse {
    /// The owner.
    pub id: AccountId,
    /// Whether the capacity is the account's only limit, but for [`Resource::binds_privileged`].
    pub privileged: bool,
    /// How many charges were refused since the account was opened.
    pub refused: u64,
    /// Time that the control thread has spent on the account's programs.
    pub control: TimeSpent,
    /// What all workers have done for the account's queue pairs.
    pub work: WorkSum,
    /// Every resource, in table order.
    pub resources: Vec<ResourceUse>,
    /// The most that is used of single objects, in table order.
    pub places: Vec<PlaceUse>,
}

impl Ledger {
    /// A ledger in which nothing is in use.
    ///
    /// # Panics
    /// If a percentage of the policy is out of range.
    pub fn new(capacities: Capacities, policy: Policy) -> Ledger {
        assert!((1..=100).contains(&policy.share_percent) && policy.reserve_percent < 100);
        let books = Books { capacities, policy, used: Amounts::default() };
        Ledger { books: Arc::new(books), accounts: Mutex::default() }
    }

    /// The account of an owner, opened if there is none. An account is privileged or not for as long as it exists.
    pub fn account(&self, id: AccountId, privileged: bool) -> Account {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = accounts.books.get(&id).and_then(Weak::upgrade) {
            return Account(known);
        }
        accounts.forget_some();
        let (used, refused) = (Amounts::default(), AtomicU64::new(0));
        let account = Arc::new(AccountBook {
            id: id.clone(),
            privileged,
            used,
            refused,
            busiest: Mutex::default(),
            control: Mutex::default(),
            work: Mutex::default(),
            books: self.books.clone(),
        });
        accounts.books.insert(id, Arc::downgrade(&account));
        Account(account)
    }

    /// What every account uses at `now_ns`, in the order of the owners.
    pub fn uses(&self, now_ns: u64) -> Vec<AccountUse> {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.books.values().filter_map(Weak::upgrade).map(|account| Account(account).uses(now_ns)).collect()
    }

    /// How much of a resource all accounts use.
    pub fn used(&self, resource: Resource) -> u64 {
        self.books.used.of(resource)
    }

    /// How capacities are shared.
    pub fn policy(&self) -> Policy {
        self.books.policy
    }

    /// The capacity of a resource.
    pub fn capacity(&self, resource: Resource) -> u64 {
        self.books.capacities.of(resource)
    }
}

/// The account of one owner.
#[derive(Clone, Debug)]
pub struct Account(Arc<AccountBook>);

impl Account {
    /// The owner.
    pub fn id(&self) -> &AccountId {
        &self.0.id
    }

    /// Whether the capacity is the account's only limit, but for [`Resource::binds_privileged`].
    pub fn is_privileged(&self) -> bool {
        self.0.privileged
    }

    /// How much of a resource the account uses.
    pub fn used(&self, resource: Resource) -> u64 {
        self.0.used.of(resource)
    }

    /// How much of a resource the account may use while the others use what they use now.
    pub fn limit(&self, resource: Resource) -> u64 {
        let books = &self.0.books;
        let others = books.used.of(resource).saturating_sub(self.used(resource));
        books.limit(resource, others, self.0.privileged)
    }

    /// Notes that the control thread has spent the time from `begin_ns` to `end_ns` on the account's programs.
    pub fn add_control_time(&self, begin_ns: u64, end_ns: u64) {
        self.0.control.lock().unwrap_or_else(PoisonError::into_inner).add(begin_ns, end_ns);
    }

    /// Time that the control thread has spent on the account's programs until `now_ns`.
    pub fn control_time(&self, now_ns: u64) -> TimeSpent {
        self.0.control.lock().unwrap_or_else(PoisonError::into_inner).spent(now_ns)
    }

    /// The count of what one worker does for the account.
    pub fn work_count(&self, worker: usize) -> Arc<WorkCount> {
        let mut counts = self.0.work.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() <= worker {
            counts.resize_with(worker + 1, Arc::default);
        }
        counts[worker].clone()
    }

    /// What all workers have done for the account's queue pairs.
    pub fn work(&self) -> WorkSum {
        let mut sum = WorkSum::default();
        let counts = self.0.work.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().for_each(|count| count.add_to(&mut sum));
        sum
    }

    /// What the account uses at `now_ns`.
    pub fn uses(&self, now_ns: u64) -> AccountUse {
        let resource_use = |resource: &Resource| ResourceUse {
            resource: *resource,
            used: self.used(*resource),
            limit: self.limit(*resource),
        };
        AccountUse {
            id: self.0.id.clone(),
            privileged: self.0.privileged,
            refused: self.0.refused.load(Relaxed),
            control: self.control_time(now_ns),
            work: self.work(),
            resources: Resource::ALL.iter().map(resource_use).collect(),
            places: self.0.busiest().uses(),
        }
    }

    /// Charges amounts of up to four resources: all of them, or none. The [`Charge`] gives them back when it is dropped.
    ///
    /// # Errors
    /// [`Exhausted`]: the account, or the daemon, would use more than it may.
    pub fn charge(&self, items: &[(Resource, u64)]) -> Result<Charge, Exhausted> {
        assert!(items.len() <= ITEMS_MAX, "a charge of more than {ITEMS_MAX} resources");
        let mut charge = Charge { account: self.clone(), items: ChargedItems::default(), places: Default::default() };
        for item in items {
            self.add(item.0, item.1).inspect_err(|_| self.note_refused())?;
            charge.items.push(*item);
        }
        Ok(charge)
    }

    /// Notes the use of an object that has changed.
    pub(crate) fn note_change(&self, resource: Resource, before: u64, after: u64) {
        for amounts in [&self.0.books.used, &self.0.used] {
            if after > before {
                amounts.add(resource, after - before);
            } else {
                amounts.subtract(resource, before - after);
            }
        }
    }

    /// Counts a charge that was refused.
    pub(crate) fn note_refused(&self) {
        self.0.refused.fetch_add(1, Relaxed);
    }

    /// Takes a place of the pool in which this account has the account `own`.
    pub(crate) fn take_place(&self, own: Account, row: (Resource, Scope)) -> Result<PlaceCharge, Exhausted> {
        let mut busiest = self.0.busiest();
        own.add(row.0, 1)?;
        let used = own.used(row.0);
        busiest.note(row, used - 1, used);
        busiest.note_limit(row, own.limit(row.0));
        drop(busiest);
        Ok(PlaceCharge { owner: self.clone(), account: own, row, amount: 1 })
    }

    /// Adds an amount, and takes it back if that is too much: two threads that charge at once may both be refused, but never
    /// both exceed a limit.
    fn add(&self, resource: Resource, amount: u64) -> Result<(), Exhausted> {
        let books = &self.0.books;
        let capacity = books.capacities.of(resource);
        if amount > capacity {
            // Sums with such amounts could overflow.
            let (used, limit, owner) = (self.used(resource), self.limit(resource), self.0.id.clone());
            let over_share = !self.0.privileged;
            return Err(Exhausted { owner, resource, amount, used, limit, capacity, over_share, scope: None });
        }
        let all = books.used.add(resource, amount);
        let own = self.0.used.add(resource, amount);
        let limit = books.limit(resource, all.saturating_sub(own), self.0.privileged);
        let (full, over_share) = (all > capacity, own > limit);
        if !full && !over_share {
            return Ok(());
        }
        books.used.subtract(resource, amount);
        self.0.used.subtract(resource, amount);
        let (used, owner) = (own - amount, self.0.id.clone());
        let over_share = over_share && !full;
        Err(Exhausted { owner, resource, amount, used, limit, capacity, over_share, scope: None })
    }
}

/// Places of a [`crate::SharePool`] that are taken. Dropping it gives them back.
#[derive(Debug)]
pub struct PlaceCharge {
    /// Whose place it is.
    owner: Account,
    /// The owner's account in the pool.
    account: Account,
    row: (Resource, Scope),
    amount: u32,
}

impl Drop for PlaceCharge {
    fn drop(&mut self) {
        // Its amount belongs to another charge of the pool.
        if self.amount == 0 {
            return;
        }
        let (resource, book) = (self.row.0, &self.account.0);
        let mut busiest = self.owner.0.busiest();
        let (used, amount) = (book.used.of(resource), u64::from(self.amount));
        book.used.subtract(resource, amount);
        book.books.used.subtract(resource, amount);
        busiest.note(self.row, used, used - amount);
    }
}

impl AccountBook {
    fn busiest(&self) -> MutexGuard<'_, BusiestObjects> {
        self.busiest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Amounts of up to four resources. Resources and amounts lie apart: each object of a program has a charge.
#[derive(Debug, Default)]
struct ChargedItems {
    resources: [Option<Resource>; ITEMS_MAX],
    amounts: [u64; ITEMS_MAX],
}

impl ChargedItems {
    fn iter(&self) -> impl Iterator<Item = (Resource, u64)> + '_ {
        self.resources.iter().zip(&self.amounts).filter_map(|(resource, amount)| resource.map(|r| (r, *amount)))
    }
    /// Adds an item at a place of its own.
    fn push(&mut self, (resource, amount): (Resource, u64)) {
        let at = self.resources.iter().position(Option::is_none).expect("room for four resources");
        (self.resources[at], self.amounts[at]) = (Some(resource), amount);
    }
    /// Adds an item to that of the same resource, if there is one.
    fn add(&mut self, item: (Resource, u64)) {
        match self.resources.iter().position(|known| *known == Some(item.0)) {
            Some(at) => self.amounts[at] += item.1,
            None => self.push(item),
        }
    }
    /// Takes all items out.
    fn take(&mut self) -> ChargedItems {
        std::mem::take(self)
    }
}

/// Amounts that are in use, in the daemon and in pools. Dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    items: ChargedItems,
    places: [Option<PlaceCharge>; PLACES_MAX],
}

impl Charge {
    /// The account that is charged.
    pub fn account(&self) -> &Account {
        &self.account
    }
    /// Whether something of a resource is charged.
    pub fn covers(&self, resource: Resource) -> bool {
        self.items.iter().any(|(each, amount)| each == resource && amount > 0)
    }

    /// The charge with a place of a pool.
    ///
    /// # Panics
    /// If it has places in three others, or nothing of the pool's resource.
    #[must_use]
    pub fn with_place(mut self, place: PlaceCharge) -> Charge {
        self.hold_place(place);
        self
    }

    /// As [`Charge::with_place`].
    pub fn hold_place(&mut self, place: PlaceCharge) {
        assert!(self.covers(place.row.0), "a place of {} without a charge", place.row.0.words());
        self.add_place(place);
    }

    /// Adds a place, to those of the same pool if there are any.
    fn add_place(&mut self, mut place: PlaceCharge) {
        let is_its = |known: &PlaceCharge| Arc::ptr_eq(&known.account.0, &place.account.0);
        if let Some(known) = self.places.iter_mut().flatten().find(|known| is_its(known)) {
            debug_assert!(known.row == place.row, "a pool of two resources");
            known.amount += std::mem::take(&mut place.amount);
            return;
        }
        let free = self.places.iter_mut().find(|known| known.is_none());
        *free.expect("room for the places of three pools") = Some(place);
    }

    /// Both charges as one, which ends with whichever of the two would have ended last.
    ///
    /// # Panics
    /// If they are different accounts', or of more than four resources together.
    #[must_use]
    pub fn and(mut self, mut other: Charge) -> Charge {
        assert!(Arc::ptr_eq(&self.account.0, &other.account.0), "charges of two accounts");
        other.items.take().iter().for_each(|item| self.items.push(item));
        other.places.iter_mut().filter_map(Option::take).for_each(|place| self.add_place(place));
        self
    }

    /// Adds the amounts of another charge of the same account.
    ///
    /// # Panics
    /// If they are different accounts', or of more than four resources together.
    pub fn absorb(&mut self, mut other: Charge) {
        assert!(Arc::ptr_eq(&self.account.0, &other.account.0), "charges of two accounts");
        other.items.take().iter().for_each(|item| self.items.add(item));
        other.places.iter_mut().filter_map(Option::take).for_each(|place| self.add_place(place));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (resource, amount) in self.items.iter() {
            self.account.0.used.subtract(resource, amount);
            self.account.0.books.used.subtract(resource, amount);
        }
    }
}

/// A charge that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The owner of the account.
    pub owner: AccountId,
    /// The resource.
    pub resource: Resource,
    /// How much more was asked for.
    pub amount: u64,
    /// How much the account uses.
    pub used: u64,
    /// How much the account may use.
    pub limit: u64,
    /// How much there is for all.
    pub capacity: u64,
    /// True: the account has its share. False: the daemon has no more.
    pub over_share: bool,
    /// The object that has no more; `None`: the whole daemon.
    pub scope: Option<Scope>,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exhausted { owner, resource, amount, used, limit, capacity, over_share, scope } = self;
        let words = match scope {
            Some(scope) => format!("{} of {}", resource.words(), scope.words()),
            None => resource.words().to_owned(),
        };
        if *over_share {
            return write!(
                f,
                "{owner} uses {used} {words}, asks for {amount} more, and may use {limit} while other users use what they use now"
            );
        }
        write!(f, "{owner} asks for {amount} more {words}; there are {capacity} for all users, too few of them free")
    }
}

impl std::error::Error for Exhausted {}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(Capacities::new(|_| 1 << 20), Policy::default())
    }

    #[test]
    fn a_new_account_costs_the_same_however_many_there_are() {
        let steps = |count: u32| {
            let ledger = ledger();
            let _others: Vec<Account> = (0..count).map(|uid| ledger.account(AccountId::User(uid), false)).collect();
            let before = ledger.accounts.lock().expect("no panic").steps;
            // A user that comes and goes.
            (0..100).for_each(|_| drop(ledger.account(AccountId::User(u32::MAX), false)));
            ledger.accounts.lock().expect("no panic").steps - before
        };
        assert_eq!((steps(1000), steps(4000)), (400, 400));
    }

    #[test]
    fn accounts_that_have_gone_are_forgotten() {
        let ledger = ledger();
        let entries = || ledger.accounts.lock().expect("no panic").books.len();
        let mut live = std::collections::VecDeque::new();
        for uid in 0..20_000 {
            live.push_back(ledger.account(AccountId::User(uid), false));
            if live.len() > 100 {
                live.pop_front();
            }
            assert!(entries() < 300, "{} entries after {uid}", entries());
        }
        assert_eq!(ledger.uses(0).len(), 100, "those that have gone are not shown");
        // All at once, and others after them.
        live.clear();
        let _others: Vec<Account> = (0..100).map(|uid| ledger.account(AccountId::User(1 << 20 | uid), false)).collect();
        assert!(entries() < 300);
        assert_eq!(ledger.uses(0).len(), 100);
    }
}
