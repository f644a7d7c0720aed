//! Bytes leave the memory of a device: SEND, WRITE, responses to READs.

use crate::daemon::socket;
use crate::fake::{cuda, lock};
use crate::pair::*;
use crate::receiving::{RIGHTS, device_mr, pattern};
use burst_client::Daemon;
use burst_ibverbs::boundary;
use burst_ibverbs::pd_mr::{ibv_dereg_mr, ibv_reg_dmabuf_mr, ibv_reg_mr};
use burst_ibverbs::sys::*;
use std::time::Duration;

const LENGTHS: [usize; 8] = [1, 100, 1024, 4097, 65_536, 65_537, 300_001, 1 << 20];

#[test]
fn sends_and_writes_leave_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    for len in LENGTHS {
        let device = cuda.alloc(2 * len);
        let source = device_mr(&open, device, 2 * len);
        let bytes = pattern(len, 2 * len);
        cuda.put(device, &bytes);
        let mut received = vec![0u8; 2 * len];
        let rm = open.mr(&mut received);
        assert_eq!(recv(b, 9, &mut [sge(rm, 0, len as u32)]), 0);
        assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(source, 0, len as u32)])).0, 0);
        assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(source, len, len as u32)]), rm, len as u64)).0, 0);
        complete_all(cq, 3);
        assert!(received == bytes, "{len} bytes");
        // SAFETY: live regions, used no more.
        unsafe { assert_eq!((ibv_dereg_mr(source), ibv_dereg_mr(rm)), (0, 0)) };
        cuda.free(device);
    }
}

#[test]
fn responses_to_reads_leave_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, _b) = open.pair(cq);
    for len in LENGTHS {
        let device = cuda.alloc(len);
        let source = device_mr(&open, device, len);
        let mut bytes = pattern(len, len);
        cuda.put(device, &bytes);
        let mut read = vec![0u8; len];
        let rm = open.mr(&mut read);
        for round in 0..3 {
            // What is read again is what is there then.
            bytes[len / 2] ^= round;
            cuda.put(device, &bytes);
            assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_READ, &mut [sge(rm, 0, len as u32)]), source, 0)).0, 0);
            complete_all(cq, 1);
            assert!(read == bytes, "{len} bytes, round {round}");
        }
        // SAFETY: live regions, used no more.
        unsafe { assert_eq!((ibv_dereg_mr(source), ibv_dereg_mr(rm)), (0, 0)) };
        cuda.free(device);
    }
}

#[test]
fn a_dma_buf_is_registered_by_the_address_on_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let reg = |iova: u64, len: usize, fd: i32| {
        // SAFETY: a live PD; the library checks the rest.
        let mr = unsafe { ibv_reg_dmabuf_mr(open.pd, 0, len, iova, fd, RIGHTS) };
        if mr.is_null() { Err(boundary::errno()) } else { Ok(mr) }
    };
    let (cq, len) = (open.cq(64), 9000);
    let (a, _b) = open.pair(cq);
    let device = cuda.alloc(len);
    let (bytes, mut written) = (pattern(11, len), vec![0u8; len]);
    cuda.put(device, &bytes);
    assert_eq!(reg(device, len, -1).err(), Some(boundary::EBADF), "what programs probe for");
    assert_eq!(reg(bytes.as_ptr() as u64, len, 0).err(), Some(boundary::EOPNOTSUPP), "not on a device");
    assert_eq!(reg(device, len + 1, 0).err(), Some(boundary::EOPNOTSUPP), "not all of it");
    let source = reg(device, len, 0).expect("a region");
    let wm = open.mr(&mut written);
    // SAFETY: a live region.
    let (lkey, shown) = unsafe { ((*source).lkey, (*source).addr) };
    assert!(shown.is_null(), "the offset, as rdma-core has it");
    let mut piece = [ibv_sge { addr: device, length: len as u32, lkey }];
    assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut piece), wm, 0)).0, 0);
    complete_all(cq, 1);
    assert!(written == bytes);
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(source) }, 0);
}

#[test]
fn atomics_to_a_device_are_refused() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, _b) = open.pair(cq);
    let device = cuda.alloc(64);
    cuda.put(device, &[7; 64]);
    // SAFETY: a live PD.
    let target = unsafe { ibv_reg_mr(open.pd, device as *mut _, 64, RIGHTS | IBV_ACCESS_REMOTE_ATOMIC as i32) };
    assert!(!target.is_null(), "{:?}", boundary::errno());
    let mut result = vec![0u8; 8];
    let rm = open.mr(&mut result);
    let mut piece = [sge(rm, 0, 8)];
    let mut request = wr(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut piece);
    // SAFETY: live regions.
    unsafe {
        request.wr.atomic.remote_addr = (*target).addr as u64;
        request.wr.atomic.rkey = (*target).rkey;
        request.wr.atomic.compare_add = 2;
    }
    assert_eq!(send(a, &mut request).0, 0);
    let end = complete(cq);
    assert!([IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR].contains(&end.status), "status {}", end.status);
    assert_eq!(cuda.get(device, 64), [7; 64]);
}

#[test]
fn a_header_in_host_memory_goes_before_bytes_of_the_device() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let len = 200_000;
    let device = cuda.alloc(len);
    let source = device_mr(&open, device, len);
    let bytes = pattern(8, len);
    cuda.put(device, &bytes);
    let (mut header, mut received) = (pattern(9, 77), vec![0u8; len + 77]);
    let (hm, rm) = (open.mr(&mut header), open.mr(&mut received));
    for _ in 0..3 {
        received.fill(0);
        assert_eq!(recv(b, 9, &mut [sge(rm, 0, len as u32 + 77)]), 0);
        let mut pieces = [sge(hm, 0, 77), sge(source, 0, len as u32)];
        assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut pieces)).0, 0);
        complete_all(cq, 2);
        assert!(received[..77] == header && received[77..] == bytes);
    }
}

#[test]
fn bytes_go_from_device_to_device_over_a_wire_that_loses_packets() {
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let mut daemon = match burst_control::in_process::is_chosen() {
        true => Daemon::in_process(),
        false => Daemon::connect(socket().expect("a daemon")),
    }
    .expect("a connection");
    daemon.impair(0, "loss=1%", Duration::from_secs(60)).expect("an impairment");
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let len = 300_000;
    let (from, into) = (cuda.alloc(len), cuda.alloc(len));
    let (source, target) = (device_mr(&open, from, len), device_mr(&open, into, len));
    for round in 0..10 {
        let bytes = pattern(100 + round, len);
        cuda.put(from, &bytes);
        cuda.put(into, &vec![0; len]);
        match round % 3 {
            0 => {
                assert_eq!(recv(b, 9, &mut [sge(target, 0, len as u32)]), 0);
                assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(source, 0, len as u32)])).0, 0);
                complete_all(cq, 2);
            }
            1 => {
                assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(source, 0, len as u32)]), target, 0)).0, 0);
                complete_all(cq, 1);
            }
            _ => {
                assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_READ, &mut [sge(target, 0, len as u32)]), source, 0)).0, 0);
                complete_all(cq, 1);
            }
        }
        assert!(cuda.get(into, len) == bytes, "round {round}");
    }
    daemon.impair(0, "", Duration::from_secs(1)).expect("no impairment");
    let counters = daemon.counters().expect("counters");
    let lost = counters.iter().filter(|counter| counter.name == "impaired").map(|counter| counter.value).sum::<u64>();
    assert!(lost > 0, "packets were lost");
}
