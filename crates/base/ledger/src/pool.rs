//! Places of one object, of which accounts have shares: the members of a multicast group, the queue pairs of a device.

use crate::account::{Account, Exhausted, Ledger, PlaceCharge, Policy};
use crate::resource::{Capacities, Resource, Scope};

/// The places of one object. They are shared among accounts as what the daemon has of a resource is, by the same policy, so that
/// no account takes all places of an object even if it has few of the daemon's.
#[derive(Debug)]
pub struct SharePool {
    ledger: Ledger,
    resource: Resource,
    scope: Scope,
}

impl SharePool {
    /// A pool of `capacity` places of a resource in an object.
    ///
    /// # Panics
    /// If the table of resources does not have the pair.
    pub fn new(resource: Resource, scope: Scope, capacity: u64, policy: Policy) -> SharePool {
        assert!(resource.scopes().contains(&scope), "{} of {} are not in the table", resource.words(), scope.words());
        let capacities = Capacities::new(|each| if each == resource { capacity } else { 0 });
        SharePool { ledger: Ledger::new(capacities, policy), resource, scope }
    }

    /// Charges one place to an account.
    ///
    /// # Errors
    /// [`Exhausted`]: the account has its share of the pool, or the pool is full.
    pub fn charge(&self, account: &Account) -> Result<PlaceCharge, Exhausted> {
        let own = self.ledger.account(account.id().clone(), account.is_privileged());
        account.take_place(own, (self.resource, self.scope)).map_err(|exhausted| {
            account.note_refused();
            Exhausted { scope: Some(self.scope), ..exhausted }
        })
    }

    /// How many places are taken.
    pub fn used(&self) -> u64 {
        self.ledger.used(self.resource)
    }
}
