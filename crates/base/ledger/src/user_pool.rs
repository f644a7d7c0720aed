//! Places of a pool of the table [`crate::open`], shared among users by the rule of the accounts.
//!
//! An owner may use half of what the other owners and the reserve leave, so that as much as one owner has stays free for others,
//! whatever it does. Root, and the user who runs the process, are refused nothing here; what they use is counted, so that others
//! get no more than there is. The pool belongs to one thread: counts are plain numbers.

use crate::account::Policy;
use crate::open::{OpenPool, PlaceOwner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Whose places count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolOwner {
    /// Root, or the user who runs the process.
    Privileged,
    /// A user id.
    User(u32),
    /// Programs whose user cannot be found out: their sockets are closed.
    Unknown,
    /// A peer, by its number in the process.
    Peer(usize),
}

#[derive(Debug)]
struct PoolBook {
    capacity: u64,
    policy: Policy,
    /// Owners without places are left out.
    used: BTreeMap<PoolOwner, u64>,
    all: u64,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct UserPool(Rc<RefCell<PoolBook>>);

impl UserPool {
    /// A pool of a row, of `capacity` places if that is less than the row says.
    ///
    /// # Panics
    /// If the row's places belong to no users.
    pub fn new(row: OpenPool, capacity: u64, policy: Policy) -> UserPool {
        assert!(row.owner() == PlaceOwner::User, "{} have no users", row.words());
        let (capacity, used) = (capacity.min(row.places() as u64), BTreeMap::new());
        UserPool(Rc::new(RefCell::new(PoolBook { capacity, policy, used, all: 0 })))
    }

    /// Takes places for an owner; `None` if the owner has its share, or the pool is full. Dropping the charge gives them back.
    pub fn charge(&self, owner: PoolOwner, places: u64) -> Option<PoolCharge> {
        let mut book = self.0.borrow_mut();
        let own = book.used.get(&owner).copied().unwrap_or(0);
        if owner != PoolOwner::Privileged && own + places > book.limit(book.all - own) {
            return None;
        }
        book.all += places;
        book.used.insert(owner, own + places);
        Some(PoolCharge { pool: self.clone(), owner, places })
    }

    /// How many places an owner has.
    pub fn used(&self, owner: PoolOwner) -> u64 {
        self.0.borrow().used.get(&owner).copied().unwrap_or(0)
    }
}

impl PoolBook {
    /// What an owner may have while the others have `others`.
    fn limit(&self, others: u64) -> u64 {
        let Policy { share_percent, reserve_percent } = self.policy;
        let percent = |whole: u64, part: u8| (u128::from(whole) * u128::from(part) / 100) as u64;
        let rest = self.capacity.saturating_sub(percent(self.capacity, reserve_percent)).saturating_sub(others);
        percent(rest, share_percent)
    }
}

/// Places of an owner.
#[derive(Debug)]
pub struct PoolCharge {
    pool: UserPool,
    owner: PoolOwner,
    places: u64,
}

impl PoolCharge {
    /// Whose they are.
    pub fn owner(&self) -> PoolOwner {
        self.owner
    }
}

impl Drop for PoolCharge {
    fn drop(&mut self) {
        let mut book = self.pool.0.borrow_mut();
        book.all -= self.places;
        let left = book.used.get(&self.owner).map_or(0, |own| own - self.places);
        if left == 0 {
            book.used.remove(&self.owner);
        } else {
            book.used.insert(self.owner, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: PoolOwner = PoolOwner::User(1001);
    const BOB: PoolOwner = PoolOwner::User(1002);

    fn fill(pool: &UserPool, owner: PoolOwner) -> Vec<PoolCharge> {
        std::iter::from_fn(|| pool.charge(owner, 1)).take(10_000).collect()
    }

    #[test]
    fn each_owner_leaves_as_much_as_it_has() {
        let pool = UserPool::new(OpenPool::ProxySyn, 1000, Policy::default());
        let alice = fill(&pool, ALICE);
        assert_eq!(alice.len(), 450, "half of what the reserve leaves");
        assert_eq!(fill(&pool, BOB).len(), 225);
        assert_eq!((pool.used(ALICE), pool.used(BOB)), (450, 0), "what is dropped is given back");
        let bob = pool.charge(BOB, 200).expect("free");
        assert!(pool.charge(ALICE, 1).is_none() && pool.charge(BOB, 26).is_none() && bob.owner() == BOB);
        drop(alice);
        assert_eq!(fill(&pool, ALICE).len(), 350);
    }

    #[test]
    fn root_is_refused_nothing_and_counts() {
        let pool = UserPool::new(OpenPool::ProxySyn, 100, Policy::default());
        let root = pool.charge(PoolOwner::Privileged, 1000).expect("root");
        assert!(pool.charge(ALICE, 1).is_none(), "nothing is left");
        drop(root);
        assert!(pool.charge(ALICE, 45).is_some());
        let large = UserPool::new(OpenPool::ProxySyn, u64::MAX, Policy::default());
        assert_eq!(fill(&large, ALICE).len(), 3686, "the row says how many there are");
    }
}
