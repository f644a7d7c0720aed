//! Where the contexts and accounts of a path's line are: programs connect and end many queue pairs, and none of that may cost a
//! look at each context of the path.

use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Entries of contexts and accounts by their numbers, and entries that are free.
#[derive(Debug, Default)]
pub(super) struct LineIndex {
    /// By number of the context and of its account.
    contexts: HashMap<(u32, u32), u32, RandomState>,
    accounts: HashMap<u32, u32, RandomState>,
    free_contexts: Vec<u32>,
    free_accounts: Vec<u32>,
}

impl LineIndex {
    /// The entry of a context.
    pub(super) fn context(&self, number: u32, account: u32) -> Option<u32> {
        self.contexts.get(&(number, account)).copied()
    }

    /// An entry for a context that has none; `len`: how many entries there are, free ones included.
    pub(super) fn add_context(&mut self, number: u32, account: u32, len: usize) -> u32 {
        let at = self.free_contexts.pop().unwrap_or(len as u32);
        let before = self.contexts.insert((number, account), at);
        debug_assert!(before.is_none(), "a context with two entries");
        at
    }

    /// The entry of a context is free.
    pub(super) fn remove_context(&mut self, number: u32, account: u32) {
        let known = self.contexts.remove(&(number, account));
        debug_assert!(known.is_some(), "a context without an entry leaves");
        self.free_contexts.extend(known);
    }

    /// The entry of an account, made if it has none; `len`: how many entries there are, free ones included.
    pub(super) fn account(&mut self, number: u32, len: usize) -> u32 {
        let free = &mut self.free_accounts;
        *self.accounts.entry(number).or_insert_with(|| free.pop().unwrap_or(len as u32))
    }

    /// The entry of an account is free.
    pub(super) fn remove_account(&mut self, number: u32) {
        let known = self.accounts.remove(&number);
        debug_assert!(known.is_some(), "an account without an entry leaves");
        self.free_accounts.extend(known);
    }
}
