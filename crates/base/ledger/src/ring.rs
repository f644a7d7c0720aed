//! A bounded list of records in which no account pushes out another's while it has more of them.
//!
//! When the list is full, the account with the most records loses its oldest one: that of the new record if it has as many as any
//! other. So an account that makes records without end keeps at most what the others leave, and no other account loses one of
//! its records before both have the same number.

use crate::AccountId;
use std::collections::VecDeque;

/// The list.
///
/// `A`: what the accounts are known by.
#[derive(Debug)]
pub struct AccountRing<T, A = AccountId> {
    entries: VecDeque<(A, T)>,
    /// How many entries each account has; accounts without any are left out.
    counts: Vec<(A, usize)>,
    most: usize,
}

impl<T, A: Clone + PartialEq> AccountRing<T, A> {
    /// A list of at most `most` records, which takes no memory yet.
    pub const fn new(most: usize) -> AccountRing<T, A> {
        AccountRing { entries: VecDeque::new(), counts: Vec::new(), most }
    }

    /// Adds a record. Without memory for it, it is left out.
    pub fn push(&mut self, account: &A, record: T) {
        if self.most == 0 {
            return;
        }
        if self.entries.len() >= self.most {
            self.drop_one(account);
        }
        let (entries, counts) = (&mut self.entries, &mut self.counts);
        if entries.try_reserve(1).is_err() || counts.try_reserve(1).is_err() {
            return;
        }
        match counts.iter_mut().find(|(id, _)| id == account) {
            Some((_, count)) => *count += 1,
            None => counts.push((account.clone(), 1)),
        }
        entries.push_back((account.clone(), record));
    }

    /// Makes room for a record of `account`.
    fn drop_one(&mut self, account: &A) {
        let most = self.counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let own = self.counts.iter().position(|(id, count)| id == account && *count == most);
        let Some(at) = own.or_else(|| self.counts.iter().position(|(_, count)| *count == most)) else { return };
        let id = &self.counts[at].0;
        if let Some(oldest) = self.entries.iter().position(|(of, _)| of == id) {
            self.entries.remove(oldest);
        }
        self.counts[at].1 -= 1;
        if self.counts[at].1 == 0 {
            self.counts.swap_remove(at);
        }
    }

    /// The newest record of an account.
    pub fn last_of(&mut self, account: &A) -> Option<&mut T> {
        self.entries.iter_mut().rev().find(|(of, _)| of == account).map(|(_, record)| record)
    }

    /// The records, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.entries.iter().map(|(_, record)| record)
    }

    /// The records, the oldest first, to be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ring: &AccountRing<(u32, u32)>, user: u32) -> Vec<u32> {
        ring.iter().filter(|record| record.0 == user).map(|record| record.1).collect()
    }

    #[test]
    fn one_account_does_not_push_out_another() {
        let mut ring = AccountRing::new(8);
        (0..2).for_each(|n| ring.push(&AccountId::User(1), (1, n)));
        (0..1000).for_each(|n| ring.push(&AccountId::User(2), (2, n)));
        assert_eq!((of(&ring, 1), of(&ring, 2)), (vec![0, 1], (994..1000).collect()));
        // Others get room from who has the most, down to the same number.
        (0..6).for_each(|n| ring.push(&AccountId::User(1), (1, 10 + n)));
        assert_eq!((of(&ring, 1).len(), of(&ring, 2).len()), (4, 4));
        assert_eq!(of(&ring, 1), [12, 13, 14, 15], "its own oldest go when it has as many as any other");
        assert_eq!(ring.last_of(&AccountId::User(2)), Some(&mut (2, 999)));
        assert_eq!(ring.last_of(&AccountId::User(3)), None);
        assert_eq!(ring.iter().count(), 8);
    }

    #[test]
    fn many_accounts_keep_one_record_each() {
        let mut ring = AccountRing::new(4);
        for user in 0..100 {
            ring.push(&AccountId::User(user), (user, 0));
        }
        assert_eq!((ring.iter().count(), ring.counts.len()), (4, 4));
        assert_eq!(ring.iter().next_back(), Some(&(99, 0)));
        let mut none = AccountRing::new(0);
        none.push(&AccountId::User(1), (1, 1));
        assert_eq!(none.iter().count(), 0);
    }
}
