//! Use that goes up and down by itself, such as events that a program has not read: it is noted when it has changed.

use crate::account::Account;
use crate::resource::Resource;

/// What objects of an account use of a resource by and by. Nothing is refused: whoever is about to use more asks
/// [`Meter::has_room`] before, and notes the change by [`Meter::change`]. So the limit may be exceeded by what is under way.
#[derive(Clone, Debug)]
pub struct Meter {
    account: Account,
    resource: Resource,
}

impl Meter {
    /// The use of a resource by an account.
    pub fn new(account: &Account, resource: Resource) -> Meter {
        Meter { account: account.clone(), resource }
    }

    /// Whether the account may use more.
    pub fn has_room(&self) -> bool {
        self.account.used(self.resource) < self.account.limit(self.resource)
    }

    /// An object that used `before` uses `after`.
    pub fn change(&self, before: u64, after: u64) {
        self.account.note_change(self.resource, before, after);
    }
}
