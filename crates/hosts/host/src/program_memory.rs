//! What each account may cost when the daemon reaches the memory of its programs: threads that may block, and pages that the
//! daemon allocates.
//!
//! A page that the daemon allocates in a program's file is charged to the daemon's control group for as long as the file exists,
//! which may be longer than any session. So an allowance is not given back when a region ends. All allowances are renewed
//! together, while the memory in use is far from its limit ([`ProgramMemory::renew`]).

use crate::accounts::{memory_bytes, memory_used};
use burst_ledger::AccountId;
use burst_mem::AccessThreads;
use burst_mem::holes::FillAllowance;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of the memory that the daemon allocates in programs' files before the allowances must be renewed: one in this many.
const FILL_PART: u64 = 8;
/// The part of that for one account: one in this many.
const ACCOUNT_PART: u64 = 2;
/// Allowances are renewed while at most one in this many bytes of the memory is in use.
const RENEW_PART: u64 = 2;

/// What one account may cost.
#[derive(Clone, Debug)]
pub(crate) struct AccountMemory {
    /// The threads that reach the memory of its processes.
    pub threads: AccessThreads,
    /// Pages that may be allocated in its files.
    pub allowance: Arc<FillAllowance>,
}

/// What all accounts may cost.
#[derive(Debug)]
pub(crate) struct ProgramMemory {
    accounts: BTreeMap<AccountId, AccountMemory>,
    /// Pages that may be allocated for all accounts together.
    total: Arc<FillAllowance>,
    fill_bytes: u64,
}

impl ProgramMemory {
    /// Full allowances, for the memory that this process may use.
    pub fn new() -> ProgramMemory {
        ProgramMemory::with_fill(memory_bytes() / FILL_PART)
    }

    fn with_fill(fill_bytes: u64) -> ProgramMemory {
        ProgramMemory { accounts: BTreeMap::new(), total: Arc::new(FillAllowance::new(fill_bytes, None)), fill_bytes }
    }

    /// What an account may cost.
    pub fn of(&mut self, account: &AccountId) -> AccountMemory {
        if !self.accounts.contains_key(account) {
            self.forget_unused();
        }
        let (total, bytes) = (&self.total, self.fill_bytes / ACCOUNT_PART);
        let open = || AccountMemory {
            threads: AccessThreads::default(),
            allowance: Arc::new(FillAllowance::new(bytes, Some(total.clone()))),
        };
        self.accounts.entry(account.clone()).or_insert_with(open).clone()
    }

    /// Forgets accounts that have no region and have used nothing of their allowances.
    fn forget_unused(&mut self) {
        let full = self.fill_bytes / ACCOUNT_PART;
        self.accounts.retain(|_, account| {
            account.threads.is_used() || Arc::strong_count(&account.allowance) > 1 || account.allowance.left() < full
        });
    }

    /// Gives back what accounts use no more: idle threads, and accounts without regions.
    pub fn shrink(&mut self) {
        self.forget_unused();
        self.accounts.values().for_each(|account| account.threads.shrink());
    }

    /// Renews the allowances if enough memory is free. To be called about once a second while there are clients.
    pub fn renew(&mut self) {
        if self.total.left() < self.fill_bytes && memory_used() <= memory_bytes() / RENEW_PART {
            self.renew_all();
        }
    }

    fn renew_all(&mut self) {
        self.total.renew(self.fill_bytes);
        self.accounts.values().for_each(|account| account.allowance.renew(self.fill_bytes / ACCOUNT_PART));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_outlives_the_regions_of_its_account_until_it_is_renewed() {
        let mut memory = ProgramMemory::with_fill(80);
        let (hostile, other) = (AccountId::User(1), AccountId::User(2));
        assert!(memory.of(&hostile).allowance.take(40));
        assert!(!memory.of(&hostile).allowance.take(1), "half of what there is");
        memory.forget_unused();
        assert_eq!(memory.of(&hostile).allowance.left(), 0, "remembered without a region");
        assert!(memory.of(&other).allowance.take(30));
        let third = memory.of(&AccountId::User(3)).allowance;
        assert!(!third.take(11) && third.take(10), "what others leave");
        assert_eq!(third.left(), 30);
        memory.renew_all();
        assert!(memory.of(&hostile).allowance.take(40));
        memory.renew_all();
        drop(third);
        memory.forget_unused();
        assert!(memory.accounts.is_empty());
    }
}
