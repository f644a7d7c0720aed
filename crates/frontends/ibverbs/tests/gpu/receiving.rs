//! Bytes arrive in the memory of a device: SEND, WRITE, responses to READs.

use crate::fake::{FakeCuda, cuda, lock};
use crate::pair::*;
use burst_base::Reason;
use burst_ibverbs::boundary;
use burst_ibverbs::pd_mr::{ibv_dereg_mr, ibv_reg_mr};
use burst_ibverbs::sys::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const RIGHTS: i32 = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) as i32;

pub fn device_mr(open: &Open, device: u64, len: usize) -> *mut ibv_mr {
    // SAFETY: a live PD; the memory is checked by the library.
    let mr = unsafe { ibv_reg_mr(open.pd, device as *mut _, len, RIGHTS) };
    assert!(!mr.is_null(), "{:?}", boundary::errno());
    mr
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ (i.wrapping_add(seed)) as u8).collect()
}

/// A SEND of `len` bytes from host memory to the device, and a WRITE behind them.
fn send_and_write(open: &Open, cuda: &FakeCuda, len: usize) {
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let device = cuda.alloc(2 * len);
    let target = device_mr(open, device, 2 * len);
    let (mut sent, mut written) = (pattern(1, len), pattern(2, len));
    let (sm, wm) = (open.mr(&mut sent), open.mr(&mut written));
    assert_eq!(recv(b, 9, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(wm, 0, len as u32)]), target, len as u64)).0, 0);
    let received = complete_all(cq, 3).into_iter().find(|wc| wc.opcode == IBV_WC_RECV).expect("a receive");
    assert_eq!((received.wr_id, received.byte_len as usize), (9, len));
    // A completion says that the bytes are there.
    assert!(cuda.get(device, len) == sent && cuda.get(device + len as u64, len) == written, "{len} bytes");
    // SAFETY: a live region, used no more.
    assert_eq!(unsafe { ibv_dereg_mr(target) }, 0);
    cuda.free(device);
}

#[test]
fn sends_and_writes_arrive_on_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let before = cuda.copies();
    for len in [1, 100, 1024, 4097, 65_536, 300_001, 1 << 20] {
        send_and_write(&open, cuda, len);
    }
    assert!(cuda.copies() > before, "copies of the library");
}

#[test]
fn responses_to_reads_arrive_on_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, _b) = open.pair(cq);
    let len = 200_000;
    let device = cuda.alloc(len);
    let target = device_mr(&open, device, len);
    let mut source = pattern(3, len);
    let sm = open.mr(&mut source);
    for _ in 0..3 {
        cuda.put(device, &vec![0; len]);
        assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_READ, &mut [sge(target, 0, len as u32)]), sm, 0)).0, 0);
        complete_all(cq, 1);
        assert!(cuda.get(device, len) == source);
    }
}

#[test]
fn nothing_completes_before_the_copies_and_deregistration_waits() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let len = 5000;
    let device = cuda.alloc(len);
    let target = device_mr(&open, device, len);
    let mut source = pattern(4, len);
    let sm = open.mr(&mut source);
    cuda.hold(true);
    assert_eq!(recv(b, 1, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    // Other memory is not held up: a queue pair of another context ends its request.
    let other = Open::new().expect("another context");
    let other_cq = other.cq(8);
    let (c, d) = other.pair(other_cq);
    let mut bytes = vec![7u8; 64];
    let om = other.mr(&mut bytes);
    assert_eq!(recv(d, 2, &mut [sge(om, 32, 32)]), 0);
    assert_eq!(send(c, &mut wr(IBV_WR_SEND, &mut [sge(om, 0, 32)])).0, 0);
    complete_all(other_cq, 2);
    std::thread::sleep(Duration::from_millis(50));
    assert!(poll_once(cq).is_none(), "nothing ends before its bytes are there");
    let is_gone = AtomicBool::new(false);
    let region = target as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a live region; work requests that use it have been carried out, or fail.
            assert_eq!(unsafe { ibv_dereg_mr(region as *mut ibv_mr) }, 0);
            is_gone.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!is_gone.load(Ordering::SeqCst), "the region's copies have not ended");
        // Who waits keeps no other thread from the context.
        device_mr(&open, cuda.alloc(len), len);
        cuda.hold(false);
    });
    complete_all(cq, 2);
    assert!(cuda.get(device, len) == source);
}

#[test]
fn device_memory_that_is_freed_ends_its_queue_pairs_only() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let other = Open::new().expect("another context");
    let (cq, other_cq) = (open.cq(64), other.cq(8));
    let (a, b) = open.pair(cq);
    let (c, d) = other.pair(other_cq);
    let len = 20_000;
    let device = cuda.alloc(len);
    let target = device_mr(&open, device, len);
    let mut source = pattern(5, len);
    let sm = open.mr(&mut source);
    cuda.free(device);
    assert_eq!(recv(b, 1, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    let ends = [complete(cq), complete(cq)];
    let mut ends = ends.map(|wc| (wc.wr_id, wc.status, wc.vendor_err));
    ends.sort_unstable();
    let reason = |reason: Reason| reason.index() as u32 + 1;
    assert_eq!(ends[1], (1, IBV_WC_LOC_PROT_ERR, reason(Reason::CopyFailed)), "{ends:?}");
    assert_eq!((ends[0].0, ends[0].1), (0, IBV_WC_REM_OP_ERR), "{ends:?}");
    let mut bytes = vec![7u8; 64];
    let om = other.mr(&mut bytes);
    assert_eq!(recv(d, 2, &mut [sge(om, 32, 32)]), 0);
    assert_eq!(send(c, &mut wr(IBV_WR_SEND, &mut [sge(om, 0, 32)])).0, 0);
    complete_all(other_cq, 2);
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(target) }, 0);
}

#[test]
fn a_copy_that_fails_ends_what_waits_for_it_and_later_requests() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let (c, d) = open.pair(cq);
    let len = 3000;
    let device = cuda.alloc(len);
    let target = device_mr(&open, device, len);
    let mut source = pattern(6, len);
    let sm = open.mr(&mut source);
    cuda.fail_next(1);
    assert_eq!(recv(b, 1, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    let mut ends = [complete(cq), complete(cq)].map(|wc| (wc.wr_id, wc.status));
    ends.sort_unstable();
    assert_eq!(ends, [(0, IBV_WC_REM_OP_ERR), (1, IBV_WC_LOC_PROT_ERR)]);
    // The region is lost for the program's other queue pairs, too.
    assert_eq!(recv(d, 3, &mut [sge(target, 0, len as u32)]), 0);
    assert_eq!(send(c, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    let mut ends = [complete(cq), complete(cq)].map(|wc| (wc.wr_id, wc.status == IBV_WC_SUCCESS));
    ends.sort_unstable();
    assert_eq!(ends, [(0, false), (3, false)]);
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(target) }, 0);
}
