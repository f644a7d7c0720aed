//! Places of one object, of which accounts have shares: the members of a multicast group, the groups of a port.

use crate::account::{Account, Charge, Exhausted, Ledger, Policy};
use crate::resource::{Capacities, Resource};

/// The places of one object. They are shared among accounts as what the daemon has of a resource is, by the same policy, so that
/// no account takes all places of an object even if it has few of the daemon's.
#[derive(Debug)]
pub struct SharePool {
    ledger: Ledger,
    resource: Resource,
}

impl SharePool {
    /// A pool of `capacity` places, which a refusal names as those of `resource`.
    pub fn new(resource: Resource, capacity: u64, policy: Policy) -> SharePool {
        let capacities = Capacities::new(|each| if each == resource { capacity } else { 0 });
        SharePool { ledger: Ledger::new(capacities, policy), resource }
    }

    /// Charges one place to an account.
    ///
    /// # Errors
    /// [`Exhausted`]: the account has its share of the pool, or the pool is full.
    pub fn charge(&self, account: &Account) -> Result<Charge, Exhausted> {
        self.ledger.account(account.id().clone(), account.is_privileged()).charge(&[(self.resource, 1)])
    }

    /// How many places are taken.
    pub fn used(&self) -> u64 {
        self.ledger.used(self.resource)
    }
}
