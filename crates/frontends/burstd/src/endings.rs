//! Clients that have left, whose sessions are being ended: a queue for each account, so that the many objects of one user's
//! programs delay that user's own requests only.

use crate::conversation::Conversation;
use burst_ledger::{Account, AccountId};
use std::collections::{BTreeMap, VecDeque};

/// Clients that have left.
#[derive(Default)]
pub struct Endings(BTreeMap<AccountId, VecDeque<Conversation>>);

impl Endings {
    /// Adds a client to the end of its account's queue.
    pub fn add(&mut self, gone: Conversation) {
        self.0.entry(gone.session().account().id().clone()).or_default().push_back(gone);
    }

    /// Takes the first client of an account.
    pub fn take(&mut self, account: &AccountId) -> Option<Conversation> {
        let queue = self.0.get_mut(account)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(account);
        }
        first
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The accounts of the clients.
    pub fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.0.values().filter_map(|queue| queue.front()).map(|gone| gone.session().account())
    }

    /// All clients.
    pub fn all(&self) -> impl Iterator<Item = &Conversation> {
        self.0.values().flatten()
    }

    /// Removes all clients.
    pub fn take_all(&mut self) -> impl Iterator<Item = Conversation> + use<> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}
