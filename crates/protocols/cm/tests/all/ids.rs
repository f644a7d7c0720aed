//! Properties: parsing is the inverse of writing; a communication id finds its own connection only.

use burst_cm::Secret;
use burst_cm::message::{CmMessage, Mad};
use burst_cm::table::{CONNECTIONS_MAX, ConnKey, Table};
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #[test]
    fn what_was_parsed_is_written_so_that_it_parses_the_same(attr in 0x10u16..0x1b, body in prop::collection::vec(any::<u8>(), 232), tid: u64, modifier: u32) {
        let mut bytes = [0u8; 256];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[8..16].copy_from_slice(&tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&attr.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        bytes[24..].copy_from_slice(&body);
        let mad = Mad::parse(&bytes).expect("any body is a message");
        let mut again = [0u8; 256];
        mad.emit(&mut again);
        prop_assert_eq!(Mad::parse(&again), Ok(mad));
        prop_assert!(mad.data.len() <= burst_cm::message::DATA_MAX);
    }

    #[test]
    fn any_bytes_are_a_message_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(mad) = Mad::parse(&bytes) {
            prop_assert!(matches!(mad.message.attr(), 0x10..=0x1a));
            let _: (u32, u32) = (CmMessage::receiver_id(&mad.message), CmMessage::sender_id(&mad.message));
        }
    }

    #[test]
    fn ids_find_their_own(ops in prop::collection::vec(any::<u16>(), 1..600), worker in 0u32..16, key: [u64; 2]) {
        let secret = Secret::new(key);
        let mut table: Table<u16> = Table::new(worker, secret);
        let mut model: HashMap<u32, u16> = HashMap::new();
        let mut dead = Vec::new();
        for op in ops {
            if op % 3 == 0 && let Some(id) = model.keys().nth(usize::from(op) % model.len().max(1)).copied() {
                prop_assert_eq!(table.remove(id, [None, None]), model.remove(&id));
                dead.push(id);
                table.shrink();
            } else {
                let id = table.insert(op).expect("room");
                prop_assert!(id != 0 && secret.worker_of(id) == worker);
                prop_assert!(model.insert(id, op).is_none());
            }
        }
        prop_assert_eq!(table.len() as usize, model.len());
        for (id, value) in &model {
            prop_assert_eq!(table.get_mut(*id), Some(&mut value.clone()));
        }
        for id in dead.into_iter().filter(|id| !model.contains_key(id)) {
            prop_assert_eq!(table.get_mut(id), None);
        }
    }
}

#[test]
fn ids_of_one_slot_differ_and_those_of_two_secrets_too() {
    let mut seen = std::collections::HashSet::new();
    for key in 0..2 {
        let mut table: Table<()> = Table::new(0, Secret::new([key, 7]));
        for _ in 0..100 {
            let id = table.insert(()).expect("room");
            seen.insert(id);
            table.remove(id, [None, None]);
        }
    }
    assert!(seen.len() > 190, "{}", seen.len());
}

#[test]
fn ids_of_neighbouring_slots_tell_nothing_about_each_other() {
    let mut table: Table<()> = Table::new(3, Secret::new([5, 7]));
    let ids: Vec<u32> = (0..4096).map(|_| table.insert(()).expect("room")).collect();
    for bit in 0..32 {
        let flipped = ids.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
        assert!((1850..2250).contains(&flipped), "bit {bit} differs between {flipped} of 4095 pairs");
    }
    let differences: std::collections::HashSet<u32> = ids.windows(2).map(|w| w[0] ^ w[1]).collect();
    assert!(differences.len() > 4000, "{} different differences", differences.len());
}

#[test]
fn numbers_drawn_one_after_the_other_are_all_different() {
    let draw = |worker| {
        let mut table: Table<()> = Table::new(worker, Secret::new([1, 2]));
        (0..1000).map(|_| table.draw()).collect::<Vec<u32>>()
    };
    // 2,000 words of 32 bits: two are equal by chance with a probability of 1 in 2,000; with this secret none are.
    let mut drawn = [draw(0), draw(1)].concat();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 2000);
    for bit in 0..32 {
        let ones = drawn.iter().filter(|word| **word >> bit & 1 == 1).count();
        assert!((850..1150).contains(&ones), "bit {bit} is 1 in {ones} of 2000");
    }
}

#[test]
fn a_table_gives_back_empty_chunks_and_finds_what_is_left() {
    const CHUNK: u32 = 1024;
    let mut table: Table<u32> = Table::new(3, Secret::new([5, 7]));
    assert!(table.is_empty() && table.next_slot(0).is_none());
    let ids: Vec<u32> = (0..3 * CHUNK).map(|value| table.insert(value).expect("room")).collect();
    assert_eq!((table.len(), table.worker(), table.ids().len()), (3 * CHUNK, 3, 3 * CHUNK as usize));
    // Slots are given in order; the middle chunk becomes empty, and the first half of the others.
    let is_kept = |slot: u32| slot / CHUNK != 1 && slot % CHUNK >= CHUNK / 2;
    for slot in (0..3 * CHUNK).filter(|slot| !is_kept(*slot)) {
        assert_eq!(table.remove(ids[slot as usize], [None; 2]), Some(slot));
        assert_eq!(table.remove(ids[slot as usize], [None; 2]), None, "removed once");
    }
    let kept: Vec<u32> = (0..3 * CHUNK).filter(|slot| is_kept(*slot)).collect();
    let check = |table: &mut Table<u32>| {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(slot) = table.next_slot(from) {
            let (id, value) = table.at_mut(slot).expect("an occupied slot");
            assert_eq!((id, *value), (ids[slot as usize], slot));
            assert_eq!(table.get_mut(id), Some(&mut { slot }));
            found.push(slot);
            from = slot + 1;
        }
        assert_eq!(found, kept);
        assert_eq!((table.len() as usize, table.ids().len()), (kept.len(), kept.len()));
        assert_eq!(table.at_mut(CHUNK + 5), None);
        assert_eq!(table.at_mut(9 * CHUNK), None);
    };
    check(&mut table);
    table.shrink();
    check(&mut table);
    // The free slots are used again before others are made.
    let again: Vec<u32> = (0..2 * CHUNK).map(|value| table.insert(value).expect("room")).collect();
    assert_eq!((table.len(), table.next_slot(3 * CHUNK)), (3 * CHUNK, None));
    again.into_iter().for_each(|id| assert!(table.remove(id, [None; 2]).is_some()));
    check(&mut table);
}

#[test]
fn a_table_is_full_with_its_last_slot() {
    let mut table: Table<()> = Table::new(0, Secret::new([5, 7]));
    let ids: Vec<u32> = (0..CONNECTIONS_MAX).map(|_| table.insert(()).expect("room")).collect();
    assert_eq!((table.insert(()), table.len()), (None, CONNECTIONS_MAX));
    assert!(ids.iter().all(|id| table.get_mut(*id).is_some()));
    table.remove(ids[77], [None; 2]);
    assert!(table.insert(()).is_some() && table.insert(()).is_none());
}

#[test]
fn a_key_belongs_to_the_connection_that_it_was_noted_for() {
    let mut table: Table<u32> = Table::new(0, Secret::new([5, 7]));
    let (a, b) = (table.insert(1).expect("room"), table.insert(2).expect("room"));
    let key = |id| ConnKey::Sidr { peer: std::net::IpAddr::from([10, 0, 0, 9]), id };
    assert!(table.know(key(1), a) && table.know(key(2), b) && !table.know(key(1), b));
    assert_eq!((table.find(&key(1)), table.find(&key(2)), table.find(&key(3))), (Some(a), Some(b), None));
    table.forget_key(&key(1));
    assert!(table.find(&key(1)).is_none() && table.know(key(1), b));
    // A key that belongs to another connection by now stays.
    table.remove(a, [Some(key(1)), None]);
    assert_eq!(table.find(&key(1)), Some(b));
    table.remove(b, [Some(key(1)), Some(key(2))]);
    assert_eq!((table.find(&key(1)), table.find(&key(2)), table.is_empty()), (None, None, true));
}

#[test]
fn requests_of_a_peer_are_spread_over_all_workers() {
    let secret = Secret::new([5, 7]);
    let peer = |n: u32| std::net::IpAddr::from(n.to_be_bytes());
    for workers in [1, 2, 3, 16] {
        let mut seen = vec![0; workers as usize];
        for n in 0..400 {
            seen[secret.worker_for(peer(n % 2), n, workers) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 200 / workers), "{seen:?}");
    }
}
