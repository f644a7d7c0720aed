//! Who looks at metrics, and what of a report each may see.
//!
//! A report names programs, processes, users and the addresses of their peers. Root and the user who runs the host see all of it.
//! Another user sees totals, and queue pairs and account of its own: as much as `burst stats` and `burst ls` show it. Over TCP a
//! scraper has no name, so that it sees totals only.

use burst_control::activity::HostReport;
use burst_ledger::AccountId;

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Root, or the user who runs the host.
    All,
    /// Another user.
    User(u32),
    /// Anybody.
    Anybody,
}

impl Audience {
    /// The audience of a user, for a host that `owner` runs.
    pub fn of_user(uid: u32, owner: u32) -> Audience {
        // The number of all users that this user namespace does not know.
        const UNKNOWN: u32 = u32::MAX;
        match uid {
            UNKNOWN => Audience::Anybody,
            uid if uid == 0 || uid == owner => Audience::All,
            uid => Audience::User(uid),
        }
    }

    /// Removes from a report what it may not see.
    pub fn restrict(self, report: &mut HostReport) {
        if self == Audience::All {
            return;
        }
        let own = |uid: u32| self == Audience::User(uid);
        let before = report.queue_pairs.len();
        report.queue_pairs.retain(|qp| own(qp.program.uid));
        report.hidden_queue_pairs += (before - report.queue_pairs.len()) as u64;
        report.peers.clear();
        let account = match self {
            Audience::User(uid) => Some(AccountId::User(uid).to_string()),
            _ => None,
        };
        report.users.retain(|user| account.as_ref() == Some(&user.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::report;

    #[test]
    fn root_and_the_owner_see_all() {
        for (uid, owner) in [(0, 1000), (1000, 1000), (0, 0)] {
            let mut seen = report();
            Audience::of_user(uid, owner).restrict(&mut seen);
            assert_eq!(seen, report());
        }
    }

    #[test]
    fn another_user_sees_its_own_and_totals() {
        let mut seen = report();
        Audience::of_user(1001, 1000).restrict(&mut seen);
        assert!(seen.queue_pairs.iter().all(|qp| qp.program.uid == 1001) && seen.queue_pairs.len() == 1);
        assert_eq!(seen.hidden_queue_pairs, report().queue_pairs.len() as u64 - 1);
        assert_eq!(seen.users.iter().map(|user| user.owner.as_str()).collect::<Vec<_>>(), ["user 1001"]);
        assert!(seen.peers.is_empty());
        assert_eq!(seen.counters, report().counters);
    }

    #[test]
    fn anybody_and_users_without_a_number_see_totals() {
        assert_eq!(Audience::of_user(u32::MAX, u32::MAX), Audience::Anybody);
        let mut seen = report();
        Audience::Anybody.restrict(&mut seen);
        assert!(seen.queue_pairs.is_empty() && seen.users.is_empty() && seen.peers.is_empty());
        assert_eq!((seen.workers.len(), seen.hidden_queue_pairs), (1, 2));
    }
}
