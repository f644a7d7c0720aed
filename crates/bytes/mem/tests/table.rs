//! Keys and translation: in range, at the limit, beyond it, stale, foreign.
use burst_base::verbs::MwType;
use burst_base::verbs::access::*;
use burst_base::{Lkey, Qpn, Reason, Rkey};
use burst_mem::key::INDEX_MAX;
use burst_mem::{Backing, BindRequest, KeySpace, MrTable, Peer, ProcessMemory, Region, Window};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn keys(seed: u64) -> KeySpace {
    let mut x = seed | 1;
    KeySpace::new(Box::new(move || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        x ^ x >> 29
    }))
}

/// A region at 0x1000 of `len` bytes, of protection domain 7, reached by system calls (no memory needed).
fn region(key: u32, len: u64, access: u32) -> Region {
    let own = Arc::new(ProcessMemory::own().expect("own memory"));
    Region::new(key, 7, 0x1000, len, access, Region::in_process(own, 0x5000))
}

fn peer(pd: u32, qpn: u32) -> Peer {
    Peer { pd, qpn: Qpn::new(qpn) }
}

fn table(len: u64, access: u32) -> (MrTable, u32) {
    let mut keys = keys(1);
    let key = keys.alloc().expect("key");
    let mut table = MrTable::new(keys.cipher());
    assert!(table.insert(Arc::new(region(key, len, access))));
    (table, key)
}

#[test]
fn local_checks() {
    let (table, key) = table(100, LOCAL_WRITE);
    let local = |pd, key, addr, len, access| table.local(pd, Lkey(key), addr, len, access).map(|s| s.as_ptr() as u64);
    let no = Err(Reason::LocalProtection);
    assert_eq!(local(7, key, 0x1000, 100, LOCAL_WRITE), Ok(0x5000));
    assert_eq!(local(7, key, 0x1063, 1, 0), Ok(0x5063));
    assert_eq!(local(7, key, 0x1063, 2, 0), no, "one byte beyond");
    assert_eq!(local(7, key, 0xfff, 1, 0), no, "one byte before");
    assert_eq!(local(7, key, u64::MAX, u32::MAX, 0), no);
    assert_eq!(local(8, key, 0x1000, 1, 0), no, "another protection domain");
    assert_eq!(local(7, key ^ 1, 0x1000, 1, 0), no, "another variant");
    assert_eq!(local(7, key ^ 0x100, 0x1000, 1, 0), no, "another key");
    assert_eq!(local(7, key, 0x1000, 1, REMOTE_READ), no, "a right it lacks");
    assert!(local(9, 0, 0, 0, LOCAL_WRITE).is_ok(), "a length of 0 is always allowed");
}

#[test]
fn remote_checks() {
    let (table, key) = table(u64::from(u32::MAX) * 4, REMOTE_READ | REMOTE_WRITE);
    let remote = |pd, key, addr, len, access| table.remote(peer(pd, 5), Rkey(key), addr, len, access).map(|s| s.len());
    let no = Err(Reason::RemoteAccess);
    assert_eq!(remote(7, key, 0x1000 + (3 << 32), 1 << 31, REMOTE_WRITE), Ok(1 << 31));
    assert_eq!(remote(7, key, 0x1000, 8, REMOTE_ATOMIC), no);
    assert_eq!(remote(6, key, 0x1000, 8, REMOTE_READ), no);
    assert_eq!(remote(6, 1, 0, 0, REMOTE_READ), Ok(0));
    assert_eq!(table.invalidate(peer(7, 5), Rkey(key)), Err(Reason::RemoteAccess), "a region is not a window");
    assert!(remote(7, key, 0x1000, 8, REMOTE_READ).is_ok());
}

#[test]
fn windows_open_a_part_of_a_region_to_their_queue_pairs() {
    let mut keys = keys(2);
    let (key, window) = (keys.alloc().expect("key"), keys.alloc().expect("key"));
    for (mw_type, others) in [(MwType::One, true), (MwType::Two, false)] {
        let mut table = MrTable::new(keys.cipher());
        assert!(table.insert(Arc::new(region(key, 0x1000, LOCAL_WRITE | MW_BIND))));
        assert!(table.insert_window(Arc::new(Window::new(window, 7, mw_type))));
        let (addr, len) = (0x1800, 0x100);
        let ask = BindRequest { window, rkey: window, lkey: key, addr, len, access: REMOTE_WRITE };
        assert_eq!(table.bind(peer(8, 5), &ask), Err(Reason::WindowBind), "another protection domain");
        assert_eq!(table.bind(peer(7, 5), &ask), Ok(()));
        let remote = |qpn, addr, len| {
            table.remote(peer(7, qpn), Rkey(window), addr, len, REMOTE_WRITE).map(|s| s.as_ptr() as u64)
        };
        let no = Err(Reason::RemoteAccess);
        assert_eq!(remote(5, 0x1800, 0x100), Ok(0x5800));
        assert_eq!(remote(5, 0x18ff, 2), no, "one byte beyond");
        assert_eq!(remote(5, 0x17ff, 1), no, "one byte before");
        assert_eq!(remote(6, 0x1800, 1).is_ok(), others, "another queue pair");
        assert!(table.remote(peer(7, 5), Rkey(window), 0x1800, 1, REMOTE_READ).is_err(), "a right it lacks");
        assert!(table.remote(peer(7, 5), Rkey(window ^ 1), 0x1800, 1, REMOTE_WRITE).is_err(), "another variant");
        assert!(table.local(7, Lkey(window), 0x1800, 1, 0).is_err(), "windows are not for local use");
        assert_eq!(table.invalidate(peer(7, 5), Rkey(window)).is_ok(), mw_type == MwType::Two);
        assert_eq!(remote(5, 0x1800, 1).is_ok(), mw_type == MwType::One, "after invalidation");
        assert!(table.remove_window(window ^ 3).is_some() && table.remove_window(window).is_none());
        assert_eq!(remote_after(&table, window), no);
    }
}

#[test]
fn a_region_counts_the_windows_that_are_bound_to_it() {
    let mut keys = keys(4);
    let mut key = || keys.alloc().expect("key");
    let (first, second, one, two) = (key(), key(), key(), key());
    let mut table = MrTable::new(keys.cipher());
    for key in [first, second] {
        assert!(table.insert(Arc::new(region(key, 0x1000, LOCAL_WRITE | MW_BIND))));
    }
    for (window, mw_type) in [(one, MwType::One), (two, MwType::Two)] {
        assert!(table.insert_window(Arc::new(Window::new(window, 7, mw_type))));
    }
    let bind = |table: &MrTable, window: u32, lkey: u32, len: u64| {
        let ask = BindRequest { window, rkey: window, lkey, addr: 0x1800, len, access: REMOTE_WRITE };
        table.bind(peer(7, 5), &ask).is_ok()
    };
    let counts = |table: &MrTable| [first, second].map(|key| table.get(key).expect("a region").windows());
    assert!(bind(&table, one, first, 8) && bind(&table, two, first, 8));
    assert_eq!(counts(&table), [2, 0]);
    assert!(!bind(&table, two, second, 8), "type 2 is bound already");
    assert_eq!(counts(&table), [2, 0]);
    assert!(bind(&table, one, second, 8) && bind(&table, one, second, 16), "type 1 moves");
    assert_eq!(counts(&table), [1, 1]);
    assert!(bind(&table, one, second, 0));
    assert_eq!(counts(&table), [1, 0], "length 0 closes it");
    assert_eq!(table.invalidate(peer(7, 5), Rkey(two)), Ok(()));
    assert_eq!(counts(&table), [0, 0]);
    assert!(table.invalidate(peer(7, 5), Rkey(two)).is_err() && bind(&table, two, first, 8));
    let again = region(first, 0x2000, MW_BIND).with_windows(table.get(first).expect("a region").windows.clone());
    assert!(table.remove(first).is_some() && table.insert(Arc::new(again)));
    assert_eq!(counts(&table), [1, 0], "registered anew");
    assert!(table.remove_window(two).is_some());
    assert_eq!(counts(&table), [0, 0], "a window that ends");
    assert_eq!(region(9, 1, LOCAL_WRITE).windows(), 0);
}

/// A table with a region of each kind that a bind may name, and a window.
struct Binds {
    table: MrTable,
    window: u32,
    writable: u32,
    readable: u32,
    unbindable: u32,
    foreign: u32,
}

impl Binds {
    fn new(mw_type: MwType) -> Binds {
        let mut keys = keys(2);
        let [window, writable, readable, unbindable, foreign] = [(); 5].map(|()| keys.alloc().expect("key"));
        let mut table = MrTable::new(keys.cipher());
        let regions = [(writable, LOCAL_WRITE | MW_BIND), (readable, MW_BIND), (unbindable, LOCAL_WRITE)];
        for (key, access) in regions {
            assert!(table.insert(Arc::new(region(key, 0x1000, access))));
        }
        let other = Region { pd: 8, ..region(foreign, 0x1000, LOCAL_WRITE | MW_BIND) };
        assert!(table.insert(Arc::new(other)));
        assert!(table.insert_window(Arc::new(Window::new(window, 7, mw_type))));
        assert_eq!(table.len(), 5);
        Binds { table, window, writable, readable, unbindable, foreign }
    }
    /// A request that both types of windows accept.
    fn request(&self) -> BindRequest {
        let Binds { window, writable: lkey, .. } = *self;
        BindRequest { window, rkey: window, lkey, addr: 0x1800, len: 0x100, access: REMOTE_WRITE }
    }
    fn bind(&self, request: BindRequest) -> bool {
        self.table.bind(peer(7, 5), &request).is_ok()
    }
    /// Whether the window lets a peer write under `rkey`.
    fn is_open(&self, rkey: u32) -> bool {
        self.table.remote(peer(7, 5), Rkey(rkey), 0x1800, 0x100, REMOTE_WRITE).is_ok()
    }
}

#[test]
fn a_bind_needs_a_region_that_allows_it_and_holds_the_range() {
    let binds = Binds::new(MwType::One);
    let good = binds.request();
    for (request, what) in [
        (BindRequest { lkey: good.lkey ^ 0x100, ..good }, "no such region"),
        (BindRequest { lkey: binds.unbindable, ..good }, "a region without MW_BIND"),
        (BindRequest { lkey: binds.foreign, ..good }, "a region of another protection domain"),
        (BindRequest { lkey: binds.readable, ..good }, "writes to a region without LOCAL_WRITE"),
        (BindRequest { lkey: binds.readable, access: REMOTE_ATOMIC, ..good }, "atomics, as writes"),
        (BindRequest { addr: 0xfff, len: 1, ..good }, "one byte before the region"),
        (BindRequest { addr: 0x1fff, len: 2, ..good }, "one byte beyond the region"),
        (BindRequest { rkey: good.rkey ^ 0x100, ..good }, "a key of another window"),
        (BindRequest { window: good.window ^ 0x100, ..good }, "no such window"),
    ] {
        assert!(!binds.bind(request), "{what}");
        assert!(!binds.is_open(good.rkey), "{what}: nothing has changed");
    }
    assert!(binds.bind(BindRequest { lkey: binds.readable, access: REMOTE_READ, ..good }), "reads need no LOCAL_WRITE");
    assert!(binds.bind(BindRequest { addr: 0x1000, len: 0x1000, ..good }), "the whole region");
    assert!(binds.is_open(good.rkey));
}

#[test]
fn a_window_of_type_1_is_bound_again_and_closed_by_a_length_of_0() {
    let binds = Binds::new(MwType::One);
    let first = binds.request();
    let second = BindRequest { rkey: first.rkey ^ 1, ..first };
    assert!(binds.bind(first) && binds.is_open(first.rkey));
    assert!(binds.bind(second) && binds.is_open(second.rkey) && !binds.is_open(first.rkey));
    assert!(binds.bind(BindRequest { len: 0, lkey: 0, ..second }), "the region does not matter");
    assert!(!binds.is_open(second.rkey));
}

#[test]
fn a_window_of_type_2_is_bound_once_until_it_is_invalidated() {
    let binds = Binds::new(MwType::Two);
    let first = binds.request();
    let second = BindRequest { rkey: first.rkey ^ 1, ..first };
    assert!(!binds.bind(BindRequest { len: 0, ..first }), "a length of 0 closes windows of type 1 only");
    assert!(binds.bind(first) && !binds.bind(second));
    for (by, rkey) in [(peer(8, 5), first.rkey), (peer(7, 6), first.rkey), (peer(7, 5), second.rkey)] {
        assert_eq!(binds.table.invalidate(by, Rkey(rkey)), Err(Reason::RemoteAccess));
    }
    assert!(binds.is_open(first.rkey));
    assert_eq!(binds.table.invalidate(peer(7, 5), Rkey(first.rkey)), Ok(()));
    assert!(binds.bind(second) && binds.is_open(second.rkey) && !binds.is_open(first.rkey));
}

fn remote_after(table: &MrTable, window: u32) -> Result<u64, Reason> {
    table.remote(peer(7, 5), Rkey(window), 0x1800, 1, REMOTE_WRITE).map(|s| s.as_ptr() as u64)
}

#[test]
fn a_window_closes_when_its_region_is_registered_anew_with_fewer_rights() {
    let mut keys = keys(2);
    let (key, window) = (keys.alloc().expect("key"), keys.alloc().expect("key"));
    let mut table = MrTable::new(keys.cipher());
    assert!(table.insert(Arc::new(region(key, 0x1000, LOCAL_WRITE | MW_BIND))));
    assert!(table.insert_window(Arc::new(Window::new(window, 7, MwType::One))));
    let access = REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
    let ask = BindRequest { window, rkey: window, lkey: key, addr: 0x1800, len: 0x100, access };
    assert_eq!(table.bind(peer(7, 5), &ask), Ok(()));
    let may = |table: &MrTable, access| table.remote(peer(7, 5), Rkey(window), 0x1800, 8, access).is_ok();
    assert!([REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC].iter().all(|access| may(&table, *access)));
    // The key stays; the new region is mapped for reading only, and a write would be a fault in the daemon.
    for (rights, readable) in [(MW_BIND, true), (0, false)] {
        assert!(table.remove(key).is_some());
        assert!(table.insert(Arc::new(region(key, 0x1000, rights))));
        assert_eq!(may(&table, REMOTE_READ), readable);
        assert!(!may(&table, REMOTE_WRITE) && !may(&table, REMOTE_ATOMIC));
    }
}

#[test]
fn a_zero_based_window_counts_from_its_own_start() {
    let mut keys = keys(2);
    let (key, window) = (keys.alloc().expect("key"), keys.alloc().expect("key"));
    let mut table = MrTable::new(keys.cipher());
    assert!(table.insert(Arc::new(region(key, 0x1000, LOCAL_WRITE | MW_BIND))));
    assert!(table.insert_window(Arc::new(Window::new(window, 7, MwType::Two))));
    let access = REMOTE_READ | ZERO_BASED;
    let ask = BindRequest { window, rkey: window, lkey: key, addr: 0x1800, len: 16, access };
    assert_eq!(table.bind(peer(7, 5), &ask), Ok(()));
    let read = |addr, len| table.remote(peer(7, 5), Rkey(window), addr, len, REMOTE_READ).map(|s| s.as_ptr() as u64);
    assert_eq!((read(0, 16), read(15, 1)), (Ok(0x5800), Ok(0x580f)));
    assert!(read(1, 16).is_err() && read(0x1800, 1).is_err());
}

#[test]
fn a_null_region_takes_any_address_and_lets_no_peer_in() {
    let mut keys = keys(5);
    let key = keys.alloc().expect("key");
    let mut table = MrTable::new(keys.cipher());
    assert!(table.insert(Arc::new(Region::null(key, 7))));
    for (addr, len) in [(0, 1), (0x1234_5678_9abc, 4096), (u64::MAX - 4096, 4096), (0, u32::MAX)] {
        let span = table.local(7, Lkey(key), addr, len, LOCAL_WRITE).expect("any range");
        assert_eq!((span.backing(), span.len()), (Backing::Null, len as usize));
    }
    let span = table.local(7, Lkey(key), 0x1000, 16, 0).expect("any range");
    span.write_from(&[9; 16]).expect("vanishes");
    let mut out = [1; 16];
    span.read_to(&mut out).expect("zeroes");
    assert_eq!(out, [0; 16]);
    assert_eq!(table.local(8, Lkey(key), 0, 1, 0).err(), Some(Reason::LocalProtection), "another protection domain");
    for access in [REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC] {
        assert_eq!(table.remote(peer(7, 5), Rkey(key), 0, 8, access).err(), Some(Reason::RemoteAccess));
    }
}

#[test]
fn removed_regions_live_until_reclaimed() {
    let (mut table, key) = table(100, 0);
    let weak = Arc::downgrade(table.get(key).expect("there"));
    assert!(!table.insert(Arc::new(region(key, 1, 0))), "the place is taken");
    assert!(table.remove(key ^ 1).is_none());
    drop(table.remove(key).expect("there"));
    assert!(table.remove(key).is_none() && table.get(key).is_none() && table.is_empty());
    assert!(weak.upgrade().is_some(), "spans of this turn are still good");
    table.reclaim();
    assert!(weak.upgrade().is_none());
}

#[test]
fn keys_are_distinct_unordered_and_return() {
    let mut keys = keys(3);
    let all: Vec<u32> = (0..INDEX_MAX).map(|_| keys.alloc().expect("key")).collect();
    assert_eq!(keys.alloc(), None, "the limit");
    assert_eq!(all.iter().map(|k| k >> 8).collect::<HashSet<_>>().len(), INDEX_MAX);
    assert!(all.iter().all(|k| *k != 0));
    // Neighbours in time are not neighbours in value: hardly any two differ by less than 2^16.
    let near = all.windows(2).filter(|w| w[0].abs_diff(w[1]) < 1 << 16).count();
    assert!(near < INDEX_MAX / 1000, "{near} near neighbours");
    assert!(keys.release(all[5]) && !keys.release(all[5]), "given back once");
    let again = keys.alloc().expect("key");
    assert_ne!(again >> 8, all[5] >> 8, "the same place has another generation");
    assert!(!keys.release(all[5]), "a stale key is not its successor");
    assert!(keys.release(again));
}

#[test]
fn a_register_deregister_loop_uses_few_places_and_no_key_twice_soon() {
    let mut keys = keys(4);
    let mut recent = std::collections::VecDeque::new();
    let mut places = HashSet::new();
    for _ in 0..10_000 {
        let key = keys.alloc().expect("key");
        assert!(!recent.contains(&(key >> 8)));
        places.insert(key >> 8);
        recent.push_back(key >> 8);
        if recent.len() > 1000 {
            recent.pop_front();
        }
        assert!(keys.release(key));
    }
    assert!(places.len() <= 65 * 128, "{} (index, generation) pairs", places.len());
}

#[test]
fn system_keys_differ_between_daemons() {
    let (mut a, mut b) = (KeySpace::from_system(), KeySpace::from_system());
    assert!((0..8).any(|_| a.alloc() != b.alloc()));
}

proptest! {
    #[test]
    fn any_key_and_range_is_answered(key in any::<u32>(), addr in any::<u64>(), len in 1u32.., seed in any::<u64>()) {
        let mut keys = keys(seed);
        let mut table = MrTable::new(keys.cipher());
        let live: Vec<u32> = (0..50).map(|_| keys.alloc().expect("key")).collect();
        live.iter().for_each(|k| assert!(table.insert(Arc::new(region(*k, 1 << 20, REMOTE_READ)))));
        let found = table.remote(peer(7, 5), Rkey(key), addr, len, REMOTE_READ);
        let inside = addr >= 0x1000 && u128::from(addr) + u128::from(len) <= 0x1000 + (1 << 20);
        prop_assert_eq!(found.is_ok(), inside && live.contains(&key));
        for k in live {
            prop_assert!(table.remote(peer(7, 5), Rkey(k), 0x1000, 1 << 20, REMOTE_READ).is_ok());
        }
    }
}

#[test]
fn keys_stay_unique_and_freed_ones_invalid_after_a_shrink() {
    let mut keys = keys(5);
    let first = keys.alloc().expect("a key");
    let many: Vec<u32> = (0..10_000).map(|_| keys.alloc().expect("a key")).collect();
    many.iter().for_each(|key| assert!(keys.release(*key)));
    assert!(format!("{keys:?}").contains("used: 10001"), "{keys:?}");
    keys.shrink();
    assert!(format!("{keys:?}").contains("used: 65, free: 64"), "some rest before they are used again: {keys:?}");
    assert!(many.iter().all(|key| !keys.release(*key)), "they are free");
    let mut seen: HashSet<u32> = many.iter().chain([&first]).map(|key| key >> 8).collect();
    for _ in 0..20_000 {
        let key = keys.alloc().expect("a key");
        assert!(seen.insert(key >> 8), "the key of an index has another generation, and no index is given twice");
    }
    assert!(keys.release(first) && !keys.release(first));
}

#[test]
fn a_table_finds_its_regions_after_a_shrink_and_grows_again() {
    let mut keys = keys(6);
    let mut table = MrTable::new(keys.cipher());
    let all: Vec<u32> = (0..5000).map(|_| keys.alloc().expect("a key")).collect();
    for key in &all {
        assert!(table.insert(Arc::new(region(*key, 100, 0))));
    }
    let (kept, gone) = all.split_at(10);
    gone.iter().for_each(|key| assert!(table.remove(*key).is_some()));
    table.reclaim();
    table.shrink();
    assert!(kept.iter().all(|key| table.get(*key).is_some()) && gone.iter().all(|key| table.get(*key).is_none()));
    assert!(table.len() == kept.len() && !table.is_empty());
    assert!(table.insert(Arc::new(region(gone[4000], 100, 0))) && table.get(gone[4000]).is_some());
}
