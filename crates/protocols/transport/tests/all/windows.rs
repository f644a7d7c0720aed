//! Memory windows: work requests bind and invalidate them once, in order with other requests.
use crate::common::{LinkFaults, Pair, Setup};
use burst_base::verbs::{MwType, WcOpcode, WcStatus, WrOpcode, send_flags};
use burst_shm::layout::SendWqe;

fn request(opcode: WrOpcode, wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: opcode as u8, flags: send_flags::SIGNALED as u16, ..SendWqe::default() }
}

/// The next key of a window.
fn next(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

fn pair() -> Pair {
    Pair::new(&Setup::default(), 1, LinkFaults::default())
}

/// End 0 writes one byte through `rkey`; returns the status.
fn write(pair: &mut Pair, rkey: u32, addr: u64) -> WcStatus {
    let before = pair.ends[0].statuses().len();
    let wqe = SendWqe { rkey, remote_addr: addr, ..request(WrOpcode::RdmaWrite, 9) };
    pair.ends[0].post_inline(&wqe, b"x");
    pair.settle();
    pair.ends[0].statuses()[before]
}

#[test]
fn a_bound_window_grants_access_to_its_range_only() {
    for (addr, status) in [(0, WcStatus::Success), (99, WcStatus::Success), (100, WcStatus::RemAccessErr)] {
        let mut pair = pair();
        let (window, key) = (pair.ends[1].window(), pair.ends[1].lkey);
        pair.ends[1].post(&crate::common::bind(window, next(window), key, 100), &[]);
        pair.settle();
        assert_eq!(pair.ends[1].fx.sends[0].opcode, WcOpcode::BindMw as u8);
        assert_eq!(write(&mut pair, next(window), addr), status, "at {addr}");
    }
}

#[test]
fn an_old_key_and_an_unbound_window_grant_no_access() {
    for bound in [false, true] {
        let mut pair = pair();
        let (window, key) = (pair.ends[1].window(), pair.ends[1].lkey);
        if bound {
            pair.ends[1].post(&crate::common::bind(window, next(window), key, 100), &[]);
            pair.settle();
        }
        assert_eq!(write(&mut pair, window, 0), WcStatus::RemAccessErr);
    }
}

#[test]
fn a_type_1_window_is_rebound_and_closed_by_length_0() {
    let mut pair = pair();
    let (window, key) = (pair.ends[1].window_of(MwType::One), pair.ends[1].lkey);
    let (second, third) = (next(window), next(next(window)));
    pair.ends[1].post(&crate::common::bind(window, second, key, 100), &[]);
    pair.ends[1].post(&crate::common::bind(second, third, key, 100), &[]);
    pair.settle();
    assert_eq!(write(&mut pair, third, 0), WcStatus::Success);
    pair.ends[1].post(&crate::common::bind(third, next(third), key, 0), &[]);
    pair.settle();
    assert_eq!(pair.ends[1].statuses(), [WcStatus::Success; 3]);
    assert_eq!(write(&mut pair, third, 0), WcStatus::RemAccessErr);
}

#[test]
fn a_type_2_window_must_be_invalidated_before_it_is_bound_again() {
    let mut pair = pair();
    let (window, key) = (pair.ends[1].window(), pair.ends[1].lkey);
    let second = next(window);
    pair.ends[1].post(&crate::common::bind(window, second, key, 100), &[]);
    pair.ends[1].post(&SendWqe { imm: second, ..request(WrOpcode::LocalInv, 2) }, &[]);
    pair.ends[1].post(&crate::common::bind(window, next(second), key, 100), &[]);
    pair.ends[1].post(&crate::common::bind(window, window, key, 100), &[]);
    pair.settle();
    let want = [WcStatus::Success, WcStatus::Success, WcStatus::Success, WcStatus::MwBindErr];
    assert_eq!(pair.ends[1].statuses(), want);
}

#[test]
fn invalid_binds_fail() {
    let rights = burst_base::verbs::access::LOCAL_WRITE;
    let bad: [fn(&mut SendWqe); 5] = [
        |w| w.rkey ^= 0x100,
        |w| w.imm ^= 0x100,
        |w| w.swap ^= 0x100 << 32,
        |w| w.compare_add = (1 << 20) + 1,
        |w| w.compare_add = 0,
    ];
    for (index, spoil) in bad.iter().enumerate() {
        let mut pair = pair();
        let (window, key) = (pair.ends[1].window(), pair.ends[1].lkey);
        let mut wqe = crate::common::bind(window, next(window), key, 100);
        spoil(&mut wqe);
        pair.ends[1].post(&wqe, &[]);
        pair.settle();
        assert_eq!(pair.ends[1].statuses(), [WcStatus::MwBindErr], "case {index}");
    }
    let mut pair = pair();
    let (window, key) = (pair.ends[1].window(), pair.ends[1].register(4096, rights));
    pair.ends[1].post(&crate::common::bind(window, next(window), key, 100), &[]);
    pair.settle();
    assert_eq!(pair.ends[1].statuses(), [WcStatus::MwBindErr], "a region without MW_BIND");
}

#[test]
fn a_region_cannot_be_invalidated() {
    let mut pair = pair();
    let key = pair.ends[1].lkey;
    let to = [pair.ends[1].sge(0, 100)];
    pair.ends[1].post_receive(1, &to);
    pair.ends[0].post_inline(&SendWqe { imm: key, ..request(WrOpcode::SendWithInv, 3) }, b"");
    pair.settle();
    assert_eq!(pair.ends[0].statuses(), [WcStatus::RemAccessErr]);
}

#[test]
fn a_deregistered_region_closes_its_windows() {
    let mut pair = pair();
    let (window, key) = (pair.ends[1].window(), pair.ends[1].register(4096, crate::common::ALL_RIGHTS));
    pair.ends[1].post(&crate::common::bind(window, next(window), key, 100), &[]);
    pair.settle();
    drop(pair.ends[1].mem.remove(key));
    assert_eq!(write(&mut pair, next(window), 0), WcStatus::RemAccessErr);
}

#[test]
fn local_operations_complete_in_order_with_other_requests() {
    let faults = LinkFaults { loss: 200, duplication: 200, ..LinkFaults::default() };
    for seed in 0..20 {
        let mut pair = Pair::new(&Setup::default(), seed, faults);
        let (window, own, theirs) = (pair.ends[0].window(), pair.ends[0].lkey, pair.ends[1].lkey);
        let write = |wr_id| SendWqe { rkey: theirs, ..request(WrOpcode::RdmaWrite, wr_id) };
        pair.ends[0].post_inline(&write(0), b"a");
        pair.ends[0].post(&SendWqe { wr_id: 1, ..crate::common::bind(window, window, own, 8) }, &[]);
        pair.ends[0].post_inline(&write(2), b"b");
        pair.ends[0].post(&SendWqe { imm: window, ..request(WrOpcode::LocalInv, 3) }, &[]);
        pair.ends[0].post(&SendWqe { wr_id: 4, ..crate::common::bind(window, next(window), own, 8) }, &[]);
        pair.ends[0].post_inline(&write(5), b"c");
        pair.settle();
        let done: Vec<_> = pair.ends[0].fx.sends.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, (0..6).map(|i| (i, WcStatus::Success as u8)).collect::<Vec<_>>(), "seed {seed}");
    }
}
