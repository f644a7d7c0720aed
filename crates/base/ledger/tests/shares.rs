//! Shares of accounts, the reserve, and charges that come back.

use burst_ledger::{
    Account, AccountId, Capacities, Charge, Ledger, Meter, PlaceCharge, Policy, Resource, Scope, SharePool, WorkSum,
};
use proptest::prelude::*;

const CAPACITY: u64 = 1000;

fn ledger(share_percent: u8, reserve_percent: u8) -> Ledger {
    Ledger::new(Capacities::new(|_| CAPACITY), Policy { share_percent, reserve_percent })
}

fn user(ledger: &Ledger, uid: u32) -> Account {
    ledger.account(AccountId::User(uid), uid == 0)
}

/// Charges one unit at a time until that is refused.
fn fill(account: &Account, resource: Resource) -> Vec<Charge> {
    std::iter::from_fn(|| account.charge(&[(resource, 1)]).ok()).take(CAPACITY as usize + 1).collect()
}

#[test]
fn one_user_gets_the_share_of_what_the_reserve_leaves() {
    let ledger = ledger(50, 10);
    let hostile = user(&ledger, 1001);
    let held = fill(&hostile, Resource::Qp);
    assert_eq!(held.len(), 450);
    let refused = hostile.charge(&[(Resource::Qp, 1)]).expect_err("over the share");
    assert!(refused.over_share && refused.limit == 450 && refused.used == 450, "{refused}");
    let sentence = refused.to_string();
    assert!(sentence.contains("user 1001") && sentence.contains("450 queue pairs"), "{sentence}");
    assert_eq!(fill(&hostile, Resource::Cq).len(), 450, "each resource has a share of its own");
}

#[test]
fn later_users_get_a_share_of_the_rest_and_root_all_of_it() {
    let ledger = ledger(50, 10);
    let mut held: Vec<Charge> = Vec::new();
    let mut got = Vec::new();
    for uid in 1..=5 {
        let charges = fill(&user(&ledger, uid), Resource::Mr);
        got.push(charges.len());
        held.extend(charges);
    }
    assert_eq!(got, [450, 225, 112, 56, 28]);
    let root = user(&ledger, 0);
    let rest = fill(&root, Resource::Mr);
    assert_eq!(rest.len(), 1000 - 871);
    assert!(!root.charge(&[(Resource::Mr, 1)]).expect_err("full").over_share, "the daemon has no more");
    assert_eq!(ledger.used(Resource::Mr), CAPACITY);
}

#[test]
fn root_leaves_others_their_part_of_what_is_lost_and_not_refused() {
    let ledger = ledger(50, 10);
    let [root, other] = [0, 1001].map(|uid| Meter::new(&user(&ledger, uid), Resource::UnreadEvent));
    let fill = |meter: &Meter| {
        (0..).take_while(|used| meter.has_room().then(|| meter.change(*used, used + 1)).is_some()).count()
    };
    assert_eq!((fill(&root), fill(&other)), (500, 200), "half of all, and half of what that and the reserve leave");
    let held = user(&ledger, 0).charge(&[(Resource::Qp, CAPACITY)]);
    assert!(held.is_ok(), "what is refused is limited by the capacity alone");
}

#[test]
fn the_reserve_is_left_by_any_number_of_users() {
    for share in [1, 50, 99, 100] {
        let ledger = ledger(share, 10);
        let mut held: Vec<Charge> = Vec::new();
        // Again and again, because the limit of each changes with the use of the others, and some give back in between.
        for round in 0..4 {
            for uid in 1..=300 {
                held.extend(fill(&user(&ledger, uid), Resource::Descriptor));
                if uid % 7 == round {
                    held.truncate(held.len() / 2);
                }
            }
            let left = CAPACITY - ledger.used(Resource::Descriptor);
            assert!(left >= 100, "{share} percent, round {round}: {left} left");
            assert_eq!(fill(&user(&ledger, 0), Resource::Descriptor).len() as u64, left, "for root");
        }
    }
}

#[test]
fn a_pool_is_shared_whatever_the_daemon_has_of_the_resource() {
    let ledger = ledger(50, 10);
    let pools = [10, 100].map(|places| SharePool::new(Resource::GroupMember, Scope::Group, places, ledger.policy()));
    let take = |pool: &SharePool, account: &Account| -> Vec<PlaceCharge> {
        std::iter::from_fn(|| pool.charge(account).ok()).collect()
    };
    let users = [1, 2, 0].map(|uid| user(&ledger, uid));
    for (pool, expected) in pools.iter().zip([[4, 2, 4], [45, 22, 33]]) {
        let held = users.each_ref().map(|user| take(pool, user));
        assert_eq!(held.each_ref().map(Vec::len), expected, "two users and root");
        assert_eq!(pool.used(), expected.iter().sum::<usize>() as u64);
        let refused = pool.charge(&users[0]).expect_err("full");
        assert!(refused.to_string().contains("multicast groups"), "{refused}");
        drop(held);
        assert_eq!(pool.used(), 0);
    }
    assert_eq!(ledger.used(Resource::GroupMember), 0, "the pools' places are their own");
}

#[test]
fn charges_of_many_objects_become_one() {
    let ledger = ledger(50, 10);
    let account = user(&ledger, 1);
    let mut sum = account.charge(&[(Resource::Qp, 1), (Resource::QueueBytes, 7)]).expect("room");
    for bytes in 1..10 {
        sum.absorb(account.charge(&[(Resource::QueueBytes, bytes), (Resource::Srq, 1)]).expect("room"));
    }
    let used = || [Resource::Qp, Resource::Srq, Resource::QueueBytes].map(|resource| account.used(resource));
    assert_eq!(used(), [1, 9, 52]);
    drop(sum);
    assert_eq!(used(), [0, 0, 0]);
}

#[test]
fn a_small_share_of_a_few_is_one() {
    let ledger = ledger(1, 10);
    let pool = SharePool::new(Resource::Group, Scope::Port, 10, ledger.policy());
    let held: Vec<PlaceCharge> = (1..=20).filter_map(|uid| pool.charge(&user(&ledger, uid)).ok()).collect();
    assert_eq!(held.len(), 9, "one for each user, and the reserve stays");
    let first = user(&ledger, 1);
    assert!(pool.charge(&first).is_err(), "not two");
}

#[test]
fn the_work_of_all_workers_is_summed() {
    let ledger = ledger(50, 10);
    let account = user(&ledger, 1001);
    for worker in [3, 0, 3] {
        account.work_count(worker).add_turn(2, 1000);
        account.work_count(worker).add_received(16, 70_000);
    }
    let sum = WorkSum { turns: 3, requests: 6, bytes: 3000, packets_received: 48, bytes_received: 210_000 };
    assert_eq!((account.work(), ledger.uses(0)[0].work), (sum, sum));
}

#[test]
fn a_user_who_gives_back_makes_room_for_others() {
    let ledger = ledger(50, 0);
    let (one, two) = (user(&ledger, 1), user(&ledger, 2));
    let mut of_one = fill(&one, Resource::Channel);
    let of_two = fill(&two, Resource::Channel);
    assert_eq!((of_one.len(), of_two.len()), (500, 250));
    of_one.truncate(100);
    assert_eq!(fill(&two, Resource::Channel).len(), 450 - of_two.len());
}

#[test]
fn a_charge_of_several_resources_is_made_whole_or_not_at_all() {
    let ledger = ledger(50, 0);
    let account = user(&ledger, 7);
    let _mappings = account.charge(&[(Resource::Mapping, 499)]).expect("under the share");
    assert!(account.charge(&[(Resource::Mr, 1), (Resource::Mapping, 2)]).is_err());
    assert_eq!(account.used(Resource::Mr), 0);
    let charge = account.charge(&[(Resource::Mr, 1), (Resource::Mapping, 1)]).expect("room for both");
    assert_eq!((account.used(Resource::Mr), account.used(Resource::Mapping)), (1, 500));
    drop(charge);
    assert_eq!((account.used(Resource::Mr), account.used(Resource::Mapping)), (0, 499));
}

#[test]
fn the_accounts_in_use_are_listed_with_use_limit_and_refusals() {
    let ledger = ledger(50, 10);
    let account = user(&ledger, 42);
    let _held = account.charge(&[(Resource::Pd, 3)]).expect("room");
    assert!(account.charge(&[(Resource::Pd, 500)]).is_err());
    drop(user(&ledger, 43));
    let group = ledger.account(AccountId::ControlGroup("/system.slice/job".into()), false);
    let uses = ledger.uses(0);
    let ids: Vec<String> = uses.iter().map(|u| u.id.to_string()).collect();
    assert_eq!(ids, ["user 42", "control group /system.slice/job"], "user 43 holds nothing");
    let pds = uses[0].resources[Resource::Pd as usize];
    assert_eq!((pds.resource, pds.used, pds.limit, uses[0].refused), (Resource::Pd, 3, 450, 1));
    assert_eq!(group.limit(Resource::Pd), (900 - 3) / 2);
    assert!(user(&ledger, 0).uses(0).privileged);
}

#[test]
fn threads_that_charge_at_once_never_exceed_a_limit() {
    let ledger = ledger(50, 0);
    let account = user(&ledger, 9);
    let charge_many = |account: Account| move || fill(&account, Resource::QueueBytes);
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(charge_many(account.clone()))).collect();
    let held: Vec<Charge> = threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect();
    assert!(held.len() <= 500 && account.used(Resource::QueueBytes) == held.len() as u64, "{}", held.len());
    drop(held);
    assert_eq!(ledger.used(Resource::QueueBytes), 0);
}

#[test]
fn names_of_resources_are_unique() {
    let mut names: Vec<&str> = Resource::ALL.iter().map(|r| r.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Resource::COUNT);
}

proptest! {
    /// Whatever users do, the sums are right, no account exceeds the share, and the reserve stays free.
    #[test]
    fn sums_hold_after_any_sequence(
        share in 1u8..=100,
        reserve in 0u8..50,
        steps in prop::collection::vec((1u32..5, 1u64..200, any::<bool>()), 1..200),
    ) {
        let ledger = ledger(share, reserve);
        let accounts: Vec<Account> = (1..5).map(|uid| user(&ledger, uid)).collect();
        let mut held: Vec<(u32, u64, Charge)> = Vec::new();
        for (uid, amount, gives_back) in steps {
            if gives_back && !held.is_empty() {
                held.swap_remove(amount as usize % held.len());
            } else {
                let account = &accounts[uid as usize - 1];
                let limit = account.limit(Resource::Qp);
                match account.charge(&[(Resource::Qp, amount)]) {
                    Ok(charge) => {
                        prop_assert!(account.used(Resource::Qp) <= limit);
                        held.push((uid, amount, charge));
                    }
                    Err(refused) => prop_assert!(account.used(Resource::Qp) + amount > refused.limit),
                }
            }
            let sum: u64 = held.iter().map(|(_, amount, _)| amount).sum();
            prop_assert_eq!(ledger.used(Resource::Qp), sum);
            prop_assert!(sum <= CAPACITY - CAPACITY * u64::from(reserve) / 100);
            for (account, uid) in accounts.iter().zip(1u32..) {
                let own: u64 = held.iter().filter(|h| h.0 == uid).map(|h| h.1).sum();
                prop_assert_eq!(account.used(Resource::Qp), own);
            }
        }
    }
}

#[test]
fn joined_charges_end_together_and_once() {
    let ledger = ledger(50, 0);
    let account = ledger.account(AccountId::User(7), false);
    let a = account.charge(&[(Resource::Qp, 1)]).expect("room");
    let b = account.charge(&[(Resource::QueueBytes, 3), (Resource::Mr, 2)]).expect("room");
    let used = |resource| account.charge(&[(resource, u64::MAX / 2)]).expect_err("too much").used;
    let both = a.and(b);
    assert_eq!([Resource::Qp, Resource::QueueBytes, Resource::Mr].map(used), [1, 3, 2]);
    drop(both);
    assert_eq!([Resource::Qp, Resource::QueueBytes, Resource::Mr].map(used), [0, 0, 0]);
}

#[test]
fn the_most_that_an_account_uses_of_any_one_object_is_known() {
    let ledger = Ledger::new(Capacities::new(|_| 1000), Policy { share_percent: 50, reserve_percent: 10 });
    let (user, other) = (ledger.account(AccountId::User(1), false), ledger.account(AccountId::User(2), false));
    let pool = || SharePool::new(Resource::GroupMember, Scope::Group, 100, ledger.policy());
    let (few, many) = (pool(), pool());
    let seen = |account: &Account| {
        let of_groups =
            |place: &burst_ledger::PlaceUse| (place.resource, place.scope) == (Resource::GroupMember, Scope::Group);
        let found = account.uses(0).places.into_iter().find(of_groups).expect("a row");
        (found.used, found.limit)
    };
    assert_eq!((seen(&user), user.uses(0).places.len()), ((0, 0), Resource::places().count()));
    let charge = |pool: &SharePool| {
        user.charge(&[(Resource::GroupMember, 1)]).expect("a share").with_place(pool.charge(&user).expect("a place"))
    };
    let in_few: Vec<Charge> = (0..3).map(|_| charge(&few)).collect();
    let mut in_many: Vec<Charge> = (0..20).map(|_| charge(&many)).collect();
    assert_eq!((seen(&user), seen(&other)), ((20, 45), (0, 0)));
    // Charges that were joined end together.
    let both = in_many.pop().expect("one").and(in_many.pop().expect("another"));
    assert_eq!(seen(&user).0, 20);
    drop(both);
    assert_eq!(seen(&user).0, 18);
    drop(in_many);
    assert_eq!(seen(&user).0, 3, "the other group's");
    drop(in_few);
    assert_eq!(seen(&user).0, 0);
}
