//! Tests of the order of turns.

use super::*;
use burst_ledger::{Capacities, Ledger, Policy};

/// Adds contexts of the user `uid`.
fn add(s: &mut Scheduler, uid: u32, contexts: impl IntoIterator<Item = u32>) {
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    let account = ledger.account(AccountId::User(uid), false);
    contexts.into_iter().for_each(|context| s.add_context(context, &account, 0, None));
}

/// Gives `count` turns to queue pairs that are ready again at once. `cost` gives the requests and bytes of a turn. Returns
/// the contexts in order; a queue pair's number is 1000 times its context's, and more.
fn turns(s: &mut Scheduler, count: usize, cost: impl Fn(u32) -> (u32, u64)) -> Vec<u32> {
    let mut order = Vec::new();
    for _ in 0..count {
        let qp = s.take_turn(|_| true).expect("a turn");
        let (requests, bytes) = cost(qp / 1000);
        s.push(qp / 1000, 2, qp);
        s.charge(requests, bytes);
        order.push(qp / 1000);
    }
    order
}

fn count(order: &[u32], of: impl Fn(u32) -> bool) -> usize {
    order.iter().filter(|context| of(**context)).count()
}

#[test]
fn accounts_share_turns_whatever_their_numbers_of_contexts_and_queue_pairs() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, 0..64);
    add(&mut s, 1002, [64]);
    for qp in 0..64 * 16 {
        s.push(qp / 16, 2, qp / 16 * 1000 + qp % 16);
    }
    s.push(64, 2, 64_000);
    let order = turns(&mut s, 1000, |_| (64, 64 << 10));
    assert_eq!(count(&order, |context| context == 64), 500);
    // Within the account each context has its part.
    assert!((0..64).all(|one| (7..=8).contains(&count(&order, |context| context == one))), "{order:?}");
}

#[test]
fn short_turns_are_more_than_long_ones() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    add(&mut s, 1002, [1]);
    add(&mut s, 1003, [2]);
    (0..3).for_each(|context| assert_ne!(s.push(context, 2, context * 1000), NO_TICKET));
    // Many small requests, one large one, few small ones.
    let order = turns(&mut s, 1000, |context| [(64, 4096), (1, 64 << 10), (4, 100)][context as usize]);
    let each = [0, 1, 2].map(|one| count(&order, |context| context == one));
    assert!(each[0].abs_diff(each[1]) <= 1 && each[2].abs_diff(16 * each[0]) <= 16, "{each:?}");
    // The short turns of a round do not come one after the other while others wait for theirs.
    assert_ne!(order[..2], [2, 2]);
}

#[test]
fn an_idle_account_saves_nothing_and_leaves_nothing_behind() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    add(&mut s, 1002, [1]);
    s.push(0, 2, 0);
    turns(&mut s, 1000, |_| (64, 64 << 10));
    s.push(1, 2, 1000);
    let order = turns(&mut s, 101, |_| (64, 64 << 10));
    assert!((50..=51).contains(&count(&order, |context| context == 1)), "{order:?}");
    s.remove_context(1);
    assert_eq!(count(&turns(&mut s, 10, |_| (64, 64 << 10)), |context| context == 0), 10);
    s.remove_context(0);
    assert!(s.is_empty() && s.take_turn(|_| true).is_none());
    let accounts = s.accounts.len();
    s.shrink(0);
    s.remove_context(0);
    assert_eq!((accounts, s.accounts.len(), s.ready.len()), (2, 0, 0));
    add(&mut s, 1001, [0]);
    add(&mut s, 1002, [1]);
    s.remove_context(0);
    s.shrink(2);
    s.remove_context(1);
    add(&mut s, 1003, [0, 1]);
    assert_eq!((s.accounts.len(), s.this_round.len(), s.next_round.len(), s.queued), (2, 0, 0, 0));
    s.push(1, 2, 1000);
    assert_eq!(
        (s.take_turn(|_| true), s.accounts[0].contexts, s.accounts[0].id.clone()),
        (Some(1000), 2, AccountId::User(1003))
    );
}

#[test]
fn an_overdrawn_round_is_taken_off_the_next() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    add(&mut s, 1002, [1]);
    (0..2).for_each(|context| assert_ne!(s.push(context, 2, context * 1000), NO_TICKET));
    // 1.5 rounds in two turns, one round in four.
    let order = turns(&mut s, 3000, |context| (1, [48 << 10, 16 << 10][context as usize]));
    let each = [0, 1].map(|one| count(&order, |context| context == one));
    assert!(each[1].abs_diff(3 * each[0]) <= 4, "{each:?}");
}

#[test]
fn contexts_alternate_whatever_their_number_of_queue_pairs() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0, 1]);
    for qp in 0..4 {
        s.push(0, 2, qp);
    }
    s.push(1, 2, 100);
    s.push(1, 2, 101);
    let order: Vec<_> = std::iter::from_fn(|| s.take_turn(|_| true)).collect();
    assert_eq!(order, [0, 100, 1, 101, 2, 3]);
    assert!(s.is_empty());
}

#[test]
fn void_places_are_skipped() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [3]);
    s.push(3, 2, 7);
    s.push(3, 2, 8);
    s.remove(3, |place| place.qp != 7);
    assert_eq!(s.take_turn(|place| place.qp != 7), Some(8));
    s.push(3, 2, 9);
    s.remove_context(3);
    assert_eq!(s.take_turn(|_| true), None);
    add(&mut s, 1001, [3]);
    s.push(3, 2, 10);
    assert_eq!(s.take_turn(|_| true), Some(10));
}

#[test]
fn the_next_queue_pair_in_a_slot_has_one_turn() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    let first = s.push(0, 2, 7);
    s.remove(0, |place| place.ticket != first);
    let second = s.push(0, 2, 7);
    let still = |place: ReadyPlace| (place.qp, place.ticket) == (7, second);
    assert_eq!((s.take_turn(still), s.take_turn(still)), (Some(7), None));
    s.tickets = u32::MAX;
    assert_ne!(s.push(0, 2, 7), NO_TICKET);
}

/// An account whose packets touch `pages` missing pages in each turn of 64 KiB runs `passes` passes of four turns at most.
/// Returns the bytes of its turns, and those of `other`, if that is ready in each pass.
fn passes_with_fills(passes: usize, pages: u64, other: bool) -> [u64; 2] {
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    let fills = Arc::new(FillAllowance::new(0, None));
    let (mut s, mut bytes) = (Scheduler::default(), [0; 2]);
    for (context, uid) in [(0, 1001), (1, 1002)] {
        let account = ledger.account(AccountId::User(uid), false);
        s.add_context(context, &account, 0, (context == 0).then(|| fills.clone()));
    }
    s.push(0, 2, 0);
    for pass in 0..passes {
        s.charge_fills();
        if other && (pass == 0 || s.ready[1].places() == 0) {
            s.push(1, 2, 1);
        }
        for _ in 0..4 {
            let Some(context) = s.take_turn(|_| true) else { break };
            s.charge(1, ROUND_COST);
            bytes[context as usize] += ROUND_COST;
            if context == 0 {
                fills.add_unpaid(pages);
                s.push(0, 2, 0);
            }
        }
    }
    bytes
}

#[test]
fn an_account_pays_for_missing_pages_before_its_next_turns() {
    // Without missing pages four turns in each pass, and three beside a turn of another account.
    assert_eq!(passes_with_fills(1000, 0, false), [4000 * ROUND_COST, 0]);
    assert_eq!(passes_with_fills(1000, 0, true), [3000 * ROUND_COST, 1000 * ROUND_COST]);
    // Sixteen pages in each turn: packets that others receive have most of the passes.
    let [alone, _] = passes_with_fills(1000, 16, false);
    assert!((200 * ROUND_COST..=300 * ROUND_COST).contains(&alone), "{alone}");
    let [owes, other] = passes_with_fills(1000, 16, true);
    assert!(owes >= other / 8 && owes <= other / 3 && other >= 990 * ROUND_COST, "{owes} {other}");
    // The debt has a limit.
    let [least, _] = passes_with_fills(1000, 1 << 40, false);
    assert!(least >= 1000 / 18 * ROUND_COST, "{least}");
}

/// What a queue pair receives in `packets` packets of 4 KiB.
fn received(packets: usize) -> ReceivedWork {
    let mut received = ReceivedWork::default();
    received.add_run(packets, packets * 4096);
    received
}

/// Passes of four turns at most, with two accounts of which the first receives `packets` packets of 4 KiB in each. Returns
/// the turns of each. `other` says in which passes the second account is ready.
fn passes_with_packets(passes: usize, packets: usize, other: impl Fn(usize) -> bool) -> [usize; 2] {
    let (mut s, mut turns) = (Scheduler::default(), [0; 2]);
    add(&mut s, 1001, [0]);
    add(&mut s, 1002, [1]);
    s.push(0, 2, 0);
    for pass in 0..passes {
        if other(pass) && s.ready[1].places() == 0 {
            s.push(1, 2, 1);
        }
        for _ in 0..4 {
            let context = s.take_turn(|_| true).expect("packets keep no account from a turn");
            s.charge(1, ROUND_COST);
            turns[context as usize] += 1;
            if context == 0 || other(pass) {
                s.push(context, 2, context);
            }
        }
        s.charge_received(0, received(packets));
    }
    turns
}

#[test]
fn an_account_pays_for_received_packets_before_its_next_turns() {
    // Four turns in each pass are shared: 64 KiB received in each pass cost one of them.
    assert_eq!(passes_with_packets(1000, 0, |_| true), [2000, 2000]);
    let [receives, other] = passes_with_packets(1000, 16, |_| true);
    assert!(receives.abs_diff(1500) <= 4 && other.abs_diff(2500) <= 4, "{receives} {other}");
    // What is received above 1 MiB between two turns costs nothing: no flood keeps an account from its turns.
    let [receives, other] = passes_with_packets(1000, 1 << 14, |_| true);
    assert!((4000 / 18..=4000 / 8).contains(&receives) && receives + other == 4000, "{receives} {other}");
}

#[test]
fn received_packets_cost_nothing_while_no_other_account_is_ready() {
    assert_eq!(passes_with_packets(1000, 1 << 14, |_| false), [4000, 0]);
    // The other account is ready in one pass of 100: it has that pass, and no more.
    let [receives, other] = passes_with_packets(1000, 1 << 14, |pass| pass % 100 == 50);
    assert!(receives >= 3950 && (35..=50).contains(&other), "{receives} {other}");
}

#[test]
fn a_debt_for_packets_ends_with_the_rounds_of_others_and_with_the_workers_sleep() {
    for asleep in [false, true] {
        let mut s = Scheduler::default();
        add(&mut s, 1001, [0]);
        add(&mut s, 1002, [1]);
        s.push(1, 2, 1000);
        turns(&mut s, 10, |_| (1, ROUND_COST));
        s.charge_received(0, received(1 << 14));
        match asleep {
            true => s.forgive_received(),
            false => assert_eq!(count(&turns(&mut s, 20, |_| (1, ROUND_COST)), |context| context == 1), 20),
        }
        s.push(0, 2, 0);
        let order = turns(&mut s, 10, |_| (1, ROUND_COST));
        assert!(count(&order, |context| context == 0) >= 4, "{asleep} {order:?}");
    }
}

#[test]
fn rounds_that_are_skipped_for_packets_pay_for_no_missing_pages() {
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    let fills = Arc::new(FillAllowance::new(0, None));
    let mut s = Scheduler::default();
    for (context, uid) in [(0, 1001), (1, 1002)] {
        let account = ledger.account(AccountId::User(uid), false);
        s.add_context(context, &account, 0, (context == 0).then(|| fills.clone()));
        s.push(context, 2, context);
    }
    // 1 MiB each: without the pages' debt both have their turns at once.
    fills.add_unpaid(64);
    s.charge_fills();
    s.charge_received(1, received(256));
    assert_eq!(s.take_turn(|_| true), Some(1));
    s.charge(1, ROUND_COST);
    let owed = s.accounts[0].owed_fills;
    assert!(owed >= DEBT_MAX - 3 * ROUND_COST, "{owed}");
    // Alone it pays a round in each pass.
    let passes = std::iter::from_fn(|| s.take_turn(|_| true).is_none().then_some(())).count();
    assert!((13..=16).contains(&passes), "{passes}");
}

#[test]
fn refused_packets_are_taken_back_and_few_packets_wait() {
    let mut received = ReceivedWork::default();
    for _ in 1..CHARGED_FROM {
        received.add(100);
    }
    received.add(4096);
    received.refuse_last();
    // A second reason for the same packet.
    received.refuse_last();
    assert_eq!(received.take_due(), None);
    // A reason that no packet of this burst has caused.
    received.refuse_last();
    received.add(100);
    let due = received.take_due().expect("enough");
    assert_eq!((due.packets, due.bytes, received), (16, 1600, ReceivedWork::default()));
    assert_eq!(due.cost(), 16 * PACKET_COST);
}

#[test]
fn each_of_thousands_that_end_at_once_costs_a_few_looks() {
    use std::cell::Cell;
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    let count = 10_000;
    for qp in 0..count {
        s.push(0, 2, qp);
    }
    let looked = Cell::new(0u32);
    for end in 1..=count {
        s.remove(0, |place| {
            looked.set(looked.get() + 1);
            place.qp >= end
        });
    }
    assert!(looked.get() < 4 * count, "{}", looked.get());
    assert!(s.ready[0].queues[2].len() < 2 * SWEPT_FROM);
    s.push(0, 2, count);
    assert_eq!(s.take_turn(|place| place.qp >= count), Some(count));
    assert!(s.is_empty());
}

/// Contexts and classes of `count` turns of queue pairs that are ready again at once. A queue pair's number is ten times its
/// context's, and its class.
fn classed_turns(s: &mut Scheduler, count: usize, cost: impl Fn(u32) -> (u32, u64)) -> Vec<(u32, usize)> {
    let mut order = Vec::new();
    for _ in 0..count {
        let qp = s.take_turn(|_| true).expect("a turn");
        let (context, class) = (qp / 10, (qp % 10) as usize);
        s.push(context, class, qp);
        let (requests, bytes) = cost(qp);
        s.charge(requests, bytes);
        order.push((context, class));
    }
    order
}

#[test]
fn an_account_gains_nothing_on_others_by_its_classes() {
    // A hostile account has a thousand queue pairs of the strict class; others have one each, of the lowest and the default one.
    let mut s = Scheduler::default();
    add(&mut s, 1001, 0..4);
    add(&mut s, 1002, [4]);
    add(&mut s, 1003, [5]);
    for qp in 0..1000 {
        s.push(qp % 4, 0, qp % 4 * 10);
    }
    s.push(4, 3, 43);
    s.push(5, 2, 52);
    let order = classed_turns(&mut s, 3000, |_| (64, 64 << 10));
    let each = [(0..4), (4..5), (5..6)].map(|of| order.iter().filter(|(context, _)| of.contains(context)).count());
    assert_eq!(each, [1000; 3]);
    // Many short turns of the strict class are charged like others.
    let order = classed_turns(&mut s, 16 * 3000, |qp| if qp % 10 == 0 { (4, 100) } else { (64, 64 << 10) });
    let strict = order.iter().filter(|(context, _)| *context < 4).count();
    let others = order.len() - strict;
    assert!(strict.abs_diff(8 * others) <= others / 10, "{strict} {others}");
}

#[test]
fn classes_of_an_account_come_before_its_contexts() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, 0..3);
    // Two contexts in class 1, one of them in class 3, too; a third in class 3.
    for (context, class) in [(0, 1), (1, 1), (1, 3), (2, 3)] {
        s.push(context, class as usize, context * 10 + class);
    }
    let order = classed_turns(&mut s, 1000, |_| (64, 64 << 10));
    let turns = |wanted: (u32, usize)| order.iter().filter(|turn| **turn == wanted).count();
    assert_eq!([(0, 1), (1, 1), (1, 3), (2, 3)].map(turns), [400, 400, 100, 100]);
    // The strict class has its turns first, in each context.
    for context in [0, 1] {
        s.push(context, 0, context * 10);
    }
    let order = classed_turns(&mut s, 16, |_| (64, 64 << 10));
    assert!(
        order.iter().all(|(_, class)| *class == 0) && order.iter().filter(|(context, _)| *context == 0).count() == 8
    );
    // And no more than its share while others wait.
    let order = classed_turns(&mut s, 1700, |_| (64, 64 << 10));
    let strict = order.iter().filter(|(_, class)| *class == 0).count();
    assert!((1590..=1610).contains(&strict), "{strict}");
}

#[test]
fn void_places_of_all_classes_are_swept_and_leave_no_context_queued() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0, 1]);
    for qp in 0..200 {
        s.push(0, qp as usize % CLASSES, qp);
    }
    s.push(1, 1, 1000);
    for end in 1..=200 {
        s.remove(0, |place| place.qp >= end);
    }
    assert!(s.ready[0].places() < SWEPT_FROM, "{} places", s.ready[0].places());
    assert_eq!(s.take_turn(|place| place.qp >= 200), Some(1000));
    assert_eq!(s.take_turn(|place| place.qp >= 200), None);
    assert!(s.is_empty() && s.accounts[0].queued.is_empty());
    s.push(0, 3, 7);
    s.push(0, 0, 8);
    s.remove_context(0);
    assert!(s.is_empty() && s.take_turn(|_| true).is_none());
}

#[test]
fn one_wait_is_timed_at_a_time_and_one_that_never_ends_is_given_up() {
    let mut s = Scheduler::default();
    add(&mut s, 1001, [0]);
    let stamp = |units: u64| PassStamp::of(burst_base::Nanos(units << 6));
    s.begin_pass(stamp(7));
    let first = s.push(0, 2, 0);
    s.begin_pass(stamp(9));
    let others: Vec<u32> = (0..TIMED_SPACING).map(|_| s.push(0, 2, 1)).collect();
    assert!(others.iter().all(|ticket| s.end_timed(*ticket).is_none()), "the first is timed");
    assert_eq!((s.end_timed(first), s.end_timed(first)), (Some(stamp(7)), None), "once");
    // So many places have passed meanwhile.
    let next = s.push(0, 2, 2);
    assert!((1..TIMED_SPACING).all(|_| {
        let ticket = s.push(0, 2, 3);
        s.end_timed(ticket).is_none()
    }));
    assert_eq!(s.end_timed(next), Some(stamp(9)));
    // The next one is timed, its queue pair goes, and its place never has a turn.
    s.push(0, 2, 4);
    let mut timed = |places: u32| {
        (0..places)
            .filter(|_| {
                let ticket = s.push(0, 2, 5);
                s.end_timed(ticket).is_some()
            })
            .count()
    };
    assert_eq!((timed(TIMED_STALE - 1), timed(TIMED_SPACING)), (0, 1));
}
