//! Parent domains, device memory, imports, and re-registration.

use crate::pair::*;
use burst_ibverbs::sys::*;
use burst_ibverbs::{boundary, cq, dm, domain, import, ops, pd_mr, rereg};
use std::ptr::null_mut;

const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE;
const WRITE: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

#[test]
fn a_parent_domain_is_another_name_of_its_protection_domain() {
    let Some(open) = Open::new() else { return };
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let td = domain::alloc_td(open.context, &mut ibv_td_init_attr::default());
        let pd = pd_mr::ibv_alloc_pd(open.context);
        let mut attr = ibv_parent_domain_init_attr { pd, td, ..Default::default() };
        let parent = domain::alloc_parent_domain(open.context, &mut attr);
        assert!(!td.is_null() && !parent.is_null(), "{:?}", boundary::errno());
        let mut bytes = vec![0u8; 64];
        let mr = pd_mr::ibv_reg_mr(parent, bytes.as_mut_ptr().cast(), 64, LOCAL as i32);
        assert_eq!((*mr).pd, parent);
        assert_eq!(domain::ibv_dealloc_pd(pd), libc::EBUSY, "its parent domain lives");
        assert_eq!(domain::dealloc_td(td), libc::EBUSY);
        assert_eq!(pd_mr::ibv_dereg_mr(mr), 0);
        assert_eq!(domain::ibv_dealloc_pd(parent), 0);
        assert_eq!(domain::dealloc_td(td), 0);
        assert_eq!(domain::ibv_dealloc_pd(pd), 0);
        attr.pd = null_mut();
        assert!(domain::alloc_parent_domain(open.context, &mut attr).is_null());
        assert_eq!(boundary::errno(), boundary::EINVAL);
    }
}

#[test]
fn device_memory_is_registered_copied_and_checked() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(16);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![5u8; 64];
    let mr = open.mr(&mut bytes);
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let mut attr = ibv_alloc_dm_attr { length: 100, ..Default::default() };
        let memory = dm::alloc_dm(open.context, &mut attr);
        assert!(!memory.is_null(), "{:?}", boundary::errno());
        assert!(dm::reg_dm_mr(open.pd, memory, 0, 104, IBV_ACCESS_ZERO_BASED | WRITE).is_null(), "too long");
        assert!(dm::reg_dm_mr(open.pd, memory, 0, 100, WRITE).is_null(), "not zero-based");
        let region = dm::reg_dm_mr(open.pd, memory, 0, 100, IBV_ACCESS_ZERO_BASED | WRITE);
        assert!(!region.is_null(), "{:?}", boundary::errno());
        assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 64)]), region, 4)).0, 0);
        complete_all(cq, 1);
        let mut got = [0u8; 100];
        let copy = (*memory).memcpy_from_dm.unwrap();
        assert_eq!(copy(got.as_mut_ptr().cast(), memory, 0, 100), 0);
        assert_eq!((got[3], got[4], got[67], got[68]), (0, 5, 5, 0));
        for (offset, length) in [(3, 4), (4, 3), (104, 4), (0, 104), (u64::MAX - 3, 8)] {
            assert_eq!(copy(got.as_mut_ptr().cast(), memory, offset, length), libc::EINVAL, "{offset} {length}");
        }
        assert_eq!(pd_mr::ibv_dereg_mr(region), 0);
        assert_eq!(dm::free_dm(memory), 0);
        attr.length = 1 << 30;
        assert!(dm::alloc_dm(open.context, &mut attr).is_null());
    }
}

#[test]
fn a_process_with_the_descriptor_can_import_objects() {
    let Some(open) = Open::new() else { return };
    let mut bytes = vec![1u8; 4096];
    let mr = open.mr(&mut bytes);
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let mut attr = ibv_alloc_dm_attr { length: 64, ..Default::default() };
        let memory = dm::alloc_dm(open.context, &mut attr);
        let context = ops::ibv_import_device(libc::dup((*open.context).cmd_fd));
        if burst_control::in_process::is_chosen() {
            assert!(context.is_null(), "a context of an engine in another process");
            return assert_eq!(boundary::errno(), boundary::EOPNOTSUPP);
        }
        assert!(!context.is_null(), "{:?}", boundary::errno());
        let pd = import::ibv_import_pd(context, (*open.pd).handle);
        let region = import::ibv_import_mr(pd, (*mr).handle);
        let seen = dm::ibv_import_dm(context, (*memory).handle);
        assert!(!pd.is_null() && !region.is_null() && !seen.is_null(), "{:?}", boundary::errno());
        assert_eq!(((*region).lkey, (*region).length), ((*mr).lkey, 4096));
        // A queue pair of the importer uses the exporter's region.
        let other = std::mem::ManuallyDrop::new(Open { context, pd });
        let cq = other.cq(16);
        let (a, _b) = other.pair(cq);
        let at = (*mr).addr as u64;
        let mut from = [ibv_sge { addr: at, length: 8, lkey: (*region).lkey }];
        let mut request = wr(IBV_WR_RDMA_WRITE, &mut from);
        (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (at + 8, (*region).rkey);
        assert_eq!(send(a, &mut request).0, 0);
        complete_all(cq, 1);
        let put = (*memory).memcpy_to_dm.unwrap();
        assert_eq!(put(memory, 0, [7u8; 8].as_ptr().cast(), 8), 0);
        let mut got = [0u8; 8];
        assert_eq!((*seen).memcpy_from_dm.unwrap()(got.as_mut_ptr().cast(), seen, 0, 8), 0);
        assert_eq!(got, [7; 8]);
        // Objects that do not exist, and descriptors that are no names of contexts.
        assert!(import::ibv_import_pd(context, 999).is_null());
        assert!(import::ibv_import_pd(open.context, (*open.pd).handle).is_null(), "not an imported context");
        assert!(ops::ibv_import_device(-1).is_null());
        dm::ibv_unimport_dm(seen);
        import::ibv_unimport_mr(region);
        assert_eq!(ops::ibv_close_device(context), 0);
        assert_eq!(dm::free_dm(memory), 0);
    }
}

#[test]
fn a_reregistered_region_keeps_its_keys() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(16);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![1u8; 8192];
    let source = open.mr(&mut bytes[..4096]);
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let target = bytes[4096..].as_mut_ptr().cast();
        let mr = pd_mr::ibv_reg_mr(open.pd, target, 4096, LOCAL as i32);
        let keys = ((*mr).lkey, (*mr).rkey);
        let access = IBV_REREG_MR_CHANGE_ACCESS as i32;
        assert_eq!(rereg::ibv_rereg_mr(mr, access, null_mut(), null_mut(), 0, WRITE as i32), 0);
        assert_eq!(((*mr).lkey, (*mr).rkey), keys);
        assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(source, 0, 8)]), mr, 0)).0, 0);
        complete_all(cq, 1);
        let moved = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
        assert_eq!(rereg::ibv_rereg_mr(mr, moved, null_mut(), target.wrapping_add(64), 64, 0), 0);
        assert_eq!(((*mr).addr, (*mr).length), (target.wrapping_add(64), 64));
        assert_ne!(rereg::ibv_rereg_mr(mr, 1 << 9, null_mut(), null_mut(), 0, 0), 0);
        assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(source, 0, 8)]), mr, 64)).0, 0);
        assert_eq!(complete(cq).status, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(pd_mr::ibv_dereg_mr(mr), 0);
    }
}

#[test]
fn an_on_demand_region_is_the_whole_process() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(16);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![0u8; 8192];
    bytes[..8].copy_from_slice(b"on demnd");
    let access = (WRITE | IBV_ACCESS_ON_DEMAND) as i32;
    // SAFETY: live objects, used as verbs prescribe.
    unsafe {
        let all = pd_mr::ibv_reg_mr(open.pd, null_mut(), usize::MAX, access);
        assert!(!all.is_null(), "{:?}", boundary::errno());
        let at = bytes.as_ptr() as u64;
        let mut from = [ibv_sge { addr: at, length: 8, lkey: (*all).lkey }];
        let mut request = wr(IBV_WR_RDMA_WRITE, &mut from);
        (request.wr.rdma.remote_addr, request.wr.rdma.rkey) = (at + 5000, (*all).rkey);
        assert_eq!(send(a, &mut request).0, 0);
        complete_all(cq, 1);
        assert_eq!(&bytes[5000..5008], b"on demnd");
        assert_eq!(rereg::advise_mr(open.pd, 0, 0, from.as_mut_ptr(), 1), 0);
        assert_eq!(rereg::advise_mr(open.pd, 99, 0, from.as_mut_ptr(), 1), libc::EOPNOTSUPP);
        assert_eq!(rereg::advise_mr(open.pd, 0, 0, null_mut(), 0), libc::EINVAL);
        // Nothing is mapped at 8.
        request.wr.rdma.remote_addr = 8;
        assert_eq!(send(a, &mut request).0, 0);
        assert_eq!(complete(cq).status, IBV_WC_REM_ACCESS_ERR);
    }
}

#[test]
fn a_queue_is_resized_again_and_again() {
    let Some(open) = Open::new() else { return };
    let cq = open.cq(3);
    let (a, _b) = open.pair(cq);
    let mut bytes = vec![0u8; 64];
    let mr = open.mr(&mut bytes);
    for entries in [1, 7, 64, 2, 1024, 16] {
        for _ in 0..2 {
            assert_eq!(send(a, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(mr, 0, 8)]), mr, 8)).0, 0);
        }
        // SAFETY: a live CQ.
        assert_eq!(unsafe { cq::ibv_resize_cq(cq, entries.max(4)) }, 0);
        complete_all(cq, 2);
    }
}
