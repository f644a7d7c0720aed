//! Two contexts of one process over the loopback interface, by the C functions.
//!
//! SAFETY: all pointers are of objects that the tests have made and not deleted yet.

use crate::abi::*;
use crate::data::*;
use crate::device::{open, urma_delete_context, urma_get_device_by_name, urma_query_device};
use crate::objects::*;
use crate::queues::*;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

mod apertures;
mod devices;
mod owners;
mod refusals;

/// A context with a Jetty and a segment of 64 KiB.
struct End {
    ctx: *mut UrmaContext,
    jfce: *mut UrmaJfce,
    jfc: *mut UrmaJfc,
    jfr: *mut UrmaJfr,
    jetty: *mut UrmaJetty,
    memory: Vec<u64>,
    seg: *mut TargetSeg,
}

static TOKEN: u32 = 0xacfe;
const BYTES: usize = 1 << 16;

/// An address of the loopback network that no other process of this test uses.
fn address(last: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::V4(Ipv4Addr::new(127, (pid >> 8) as u8 | 1, pid as u8, last))
}

fn end(last: u8) -> End {
    // SAFETY: see the abstract.
    unsafe {
        let ctx = open(urma_get_device_by_name(c"burst0".as_ptr()), address(last), 0);
        assert!(!ctx.is_null());
        let jfce = urma_create_jfce(ctx);
        let mut cfg = JfcCfg { depth: 64, flag: 0, ceqn: 0, jfce, user_ctx: 0 };
        let jfc = urma_create_jfc(ctx, &raw mut cfg);
        let mut cfg = JfrCfg {
            id: 0,
            depth: 16,
            flag: 1,
            trans_mode: 1,
            max_sge: 1,
            min_rnr_timer: 3,
            jfc,
            token: TOKEN,
            user_ctx: 0,
        };
        let jfr = urma_create_jfr(ctx, &raw mut cfg);
        let jfs = JfsCfg {
            depth: 16,
            flag: 0,
            trans_mode: 1,
            priority: 0,
            max_sge: 1,
            max_rsge: 1,
            max_inline: 0,
            rnr_retry: 7,
            err_timeout: 17,
            jfc,
            user_ctx: 0,
        };
        let mut cfg = JettyCfg { id: 0, flag: 1, jfs, jfr, jfr_jfc: null_mut(), group: null_mut(), user_ctx: 0 };
        let jetty = urma_create_jetty(ctx, &raw mut cfg);
        let memory = vec![0u64; BYTES / 8];
        // Plain text token; read, write and atomic.
        let cfg = SegCfg {
            va: memory.as_ptr() as u64,
            len: BYTES as u64,
            token_id: null_mut(),
            token: TOKEN,
            flag: 1 | 0xe << 5,
            user_ctx: 0,
            iova: 0,
        };
        let seg = urma_register_seg(ctx, &raw const cfg);
        assert!(![jfc.is_null(), jfr.is_null(), jetty.is_null(), seg.is_null()].contains(&true));
        End { ctx, jfce, jfc, jfr, jetty, memory, seg }
    }
}

impl End {
    fn sge(&self, offset: u64, len: u32) -> UrmaSge {
        UrmaSge { addr: self.memory.as_ptr() as u64 + offset, len, tseg: self.seg, user_tseg: null_mut() }
    }
    /// Waits for a completion.
    fn wait(&self) -> UrmaCr {
        let until = Instant::now() + Duration::from_secs(20);
        // SAFETY: a record of numbers; see the abstract.
        unsafe {
            let mut cr: UrmaCr = std::mem::zeroed();
            while urma_poll_jfc(self.jfc, 1, &raw mut cr) == 0 {
                assert!(Instant::now() < until, "no completion");
            }
            cr
        }
    }
    fn post(&self, opcode: u32, target: *mut TargetJetty, body: WrBody) -> Status {
        let mut wr = UrmaJfsWr { opcode, flag: 1 << 5, tjetty: target, user_ctx: 7, body, next: null_mut() };
        // SAFETY: see the abstract.
        unsafe { urma_post_jetty_send_wr(self.jetty, &raw mut wr, &mut null_mut()) }
    }
    /// Posts a WRITE (0) or READ (0x10) and waits: the status of its completion.
    fn rw(&self, opcode: u32, far: *mut TargetSeg, far_addr: u64, len: u32) -> u32 {
        let mut near = self.sge(0, len);
        let mut far = UrmaSge { addr: far_addr, len, tseg: far, user_tseg: null_mut() };
        let (near, far) = (UrmaSg { sge: &raw mut near, num: 1 }, UrmaSg { sge: &raw mut far, num: 1 });
        let (src, dst) = if opcode == 0x10 { (far, near) } else { (near, far) };
        let rw = RwWr { src, dst, target_hint: 0, notify_data: 0 };
        assert_eq!(self.post(opcode, null_mut(), WrBody { rw }), SUCCESS);
        let cr = self.wait();
        assert_eq!((cr.user_ctx, cr.flag & 1, cr.local_id), (7, 0, self.id()));
        cr.status
    }
    fn id(&self) -> u32 {
        // SAFETY: see the abstract.
        unsafe { (*self.jetty).id.id }
    }
    fn delete(self) {
        // SAFETY: see the abstract; each object is deleted once.
        unsafe {
            assert_eq!(urma_delete_context(self.ctx), EAGAIN, "objects live");
            assert_eq!(urma_delete_jfc(self.jfc), EAGAIN, "a Jetty uses it");
            assert_eq!(urma_delete_jetty(self.jetty), SUCCESS);
            assert_eq!(urma_delete_jfr(self.jfr), SUCCESS);
            assert_eq!(urma_delete_jfc(self.jfc), SUCCESS);
            assert_eq!(urma_delete_jfce(self.jfce), SUCCESS);
            assert_eq!(urma_unregister_seg(self.seg), SUCCESS);
            assert_eq!(urma_delete_context(self.ctx), SUCCESS);
        }
    }
}

#[test]
fn two_contexts_exchange_bytes_messages_and_atomics_and_wrong_tokens_are_refused() {
    let (mut a, mut b) = (end(1), end(2));
    // SAFETY: see the abstract.
    unsafe {
        let (mut seg, mut remote, mut len) = (null_mut(), null_mut(), 0);
        assert_eq!(urma_get_seg_ctx(b.seg, &raw mut seg, &raw mut len), SUCCESS);
        assert_eq!(len, 48);
        assert_eq!(urma_get_rjetty(b.jetty, &raw mut remote, &raw mut len), SUCCESS);
        assert_eq!((len, (*remote).id.id), (48, b.id()));
        let far = urma_import_seg(a.ctx, seg, &raw const TOKEN, 0, 0);
        let wrong = urma_import_seg(a.ctx, seg, &raw const len, 0, 0);
        let target = urma_import_jetty(a.ctx, remote, &raw const TOKEN);
        let there = b.memory.as_ptr() as u64;

        for (i, word) in a.memory.iter_mut().enumerate() {
            *word = i as u64 * 3 + 1;
        }
        assert_eq!(a.rw(0, far, there, 50_000), 0);
        assert_eq!(a.memory[..6250], b.memory[..6250]);
        assert_eq!(a.rw(0, wrong, there, 8), 8, "access aborted");
        assert_eq!(a.rw(0, far, there + BYTES as u64 - 7, 8), 8, "out of range");
        b.memory[100] = 0x55;
        assert_eq!(a.rw(0x10, far, there + 800, 8), 0);
        assert_eq!(a.memory[0], 0x55);

        let mut near = b.sge(4096, 64);
        let mut wr = UrmaJfrWr { src: UrmaSg { sge: &raw mut near, num: 1 }, user_ctx: 9, next: null_mut() };
        assert_eq!(urma_post_jetty_recv_wr(b.jetty, &raw mut wr, &mut null_mut()), SUCCESS);
        assert_eq!(urma_rearm_jfc(b.jfc, false), SUCCESS);
        let mut near = a.sge(8, 64);
        let src = UrmaSg { sge: &raw mut near, num: 1 };
        let send = SendWr { src, target_hint: 0, imm_data: 0x1234, tseg: null_mut() };
        assert_eq!(a.post(0x41, target, WrBody { send }), SUCCESS);
        let mut news = null_mut();
        assert_eq!(urma_wait_jfc(b.jfce, 1, 20_000, &raw mut news), 1, "an event");
        assert_eq!(news, b.jfc);
        let (sent, got) = (a.wait(), b.wait());
        assert_eq!((sent.status, got.status, got.user_ctx, got.len, got.imm_data), (0, 0, 9, 64, 0x1234));
        assert_eq!((got.opcode, got.flag & 3, got.local_id, got.remote.id), (1, 3, b.id(), a.id()));
        assert_eq!(got.remote.eid.0[12..], [127, (*a.ctx).eid.0[13], (*a.ctx).eid.0[14], 1]);
        assert_eq!(a.memory[1..9], b.memory[512..520]);

        b.memory[0] = 40;
        let (mut near, mut dst) = (a.sge(16, 8), UrmaSge { addr: there, len: 8, tseg: far, user_tseg: null_mut() });
        let atomic = AtomicWr { dst: &raw mut dst, src: &raw mut near, first: 2, swap: 0 };
        assert_eq!(a.post(0x22, null_mut(), WrBody { atomic }), SUCCESS);
        assert_eq!((a.wait().status, a.memory[2], b.memory[0]), (0, 40, 42));
        assert_eq!(a.post(0x60, null_mut(), WrBody { atomic }), EINVAL, "not offered");

        for seg in [far, wrong] {
            assert_eq!(urma_unimport_seg(seg), SUCCESS);
        }
        assert_eq!(urma_unimport_jetty(target), SUCCESS);
        urma_put_seg_ctx(seg);
        urma_put_rjetty(remote);
    }
    a.delete();
    b.delete();
}

#[test]
fn the_device_says_what_it_offers() {
    // SAFETY: numbers; see the abstract.
    unsafe {
        assert!(urma_get_device_by_name(c"other".as_ptr()).is_null());
        let device = urma_get_device_by_name(c"burst0".as_ptr());
        let mut attr: DeviceAttr = std::mem::zeroed();
        assert_eq!(urma_query_device(device, &raw mut attr), SUCCESS);
        assert_eq!((attr.cap.trans_mode, attr.cap.max_jfs_sge, attr.port_cnt), (7, 1, 1));
        assert_eq!(attr.cap.max_msg_size, (1 << 24) - 1);
        assert_eq!(urma_query_device(null_mut(), &raw mut attr), EINVAL);
    }
}

#[test]
fn queues_are_made_in_two_steps_with_options_between() {
    let a = end(3);
    // SAFETY: see the abstract.
    unsafe {
        let mut cfg = JfcCfg { depth: 8, flag: 0, ceqn: 0, jfce: null_mut(), user_ctx: 5 };
        let mut jfc = null_mut();
        assert_eq!(urma_alloc_jfc(a.ctx, &raw mut cfg, &raw mut jfc), SUCCESS);
        let (mut depth, mut got) = (0u32, 0u32);
        let buffer = (&raw mut depth).cast::<u8>();
        assert_eq!(urma_set_jfc_opt(jfc, 0x2001, buffer, 4), SUCCESS);
        assert_eq!(urma_active_jfc(jfc), EINVAL, "of depth 0");
        *buffer.cast::<u32>() = 16;
        for (number, len) in [(0x2001, 8), (0x2006, 8), (0x9999, 4)] {
            assert_eq!(urma_set_jfc_opt(jfc, number, buffer, len), EINVAL, "{number:#x}");
        }
        assert_eq!(urma_set_jfc_opt(jfc, 0x2001, buffer, 4), SUCCESS);
        assert_eq!(urma_delete_jfc(jfc), EINVAL, "not active");
        assert_eq!((urma_active_jfc(jfc), urma_active_jfc(jfc)), (SUCCESS, EINVAL));
        assert_eq!(urma_set_jfc_opt(jfc, 0x2001, buffer, 4), EINVAL, "active");
        assert_eq!(urma_get_jfc_opt(jfc, 0x2001, (&raw mut got).cast(), 4), SUCCESS);
        assert_eq!((got, urma_free_jfc(jfc)), (16, EINVAL));

        let mut cfg = JfsCfg { jfc, ..(*a.jetty).cfg.jfs };
        let mut jfs = null_mut();
        assert_eq!(urma_alloc_jfs(a.ctx, &raw mut cfg, &raw mut jfs), SUCCESS);
        assert_eq!(urma_active_jfs(jfs), SUCCESS);
        assert_eq!(urma_deactive_jfc(jfc), EAGAIN, "a JFS uses it");
        let mut attr = [9; 2];
        assert_eq!((urma_query_jfs(jfs, &raw mut cfg, &raw mut attr), attr[1]), (SUCCESS, 1));
        assert_eq!((urma_deactive_jfs(jfs), urma_deactive_jfs(jfs)), (SUCCESS, EINVAL));
        let mut moved = a.jfc;
        assert_eq!(urma_set_jfs_opt(jfs, 0xa, (&raw mut moved).cast(), 8), SUCCESS);
        assert_eq!((urma_active_jfs(jfs), urma_delete_jfs(jfs)), (SUCCESS, SUCCESS), "on the other JFC");
        assert_eq!((urma_deactive_jfc(jfc), urma_free_jfc(jfc)), (SUCCESS, SUCCESS));

        let (mut jfrs, mut bad) = ([null_mut(); 3], null_mut());
        for jfr in &mut jfrs {
            *jfr = urma_create_jfr(a.ctx, &raw mut (*a.jfr).cfg);
        }
        let limit = QueueAttr { mask: 1, threshold: 3, state: 0 };
        assert_eq!(urma_modify_jfr(jfrs[0], &raw const limit), SUCCESS);
        let mut attr = QueueAttr { mask: 0, threshold: 0, state: 0 };
        let mut cfg = (*a.jfr).cfg;
        assert_eq!(urma_query_jfr(jfrs[0], &raw mut cfg, &raw mut attr), SUCCESS);
        assert_eq!((attr.mask, attr.threshold, attr.state), (3, 3, 1));
        let mut list = [jfrs[0], a.jfr, jfrs[1], jfrs[2]];
        assert_eq!(urma_delete_jfr_batch(list.as_mut_ptr(), 4, &raw mut bad), EAGAIN, "a Jetty uses the second one");
        assert_eq!(bad, a.jfr);
        assert_eq!(urma_delete_jfr_batch(list[2..].as_mut_ptr(), 2, &raw mut bad), SUCCESS);
        assert_eq!(urma_delete_jfr_batch(null_mut(), 2, &raw mut bad), EINVAL);
    }
    a.delete();
}

#[test]
fn a_group_gives_each_message_to_one_member_by_the_hint() {
    let (a, b) = (end(4), end(5));
    // SAFETY: see the abstract.
    unsafe {
        let mut cfg = GroupCfg { name: [0; 64], flag: 1, token: TOKEN, id: 0, policy: 1, user_ctx: 0 };
        let group = urma_create_jetty_grp(b.ctx, &raw mut cfg);
        assert!(!group.is_null());
        let mut cfg = JettyCfg { group, ..(*b.jetty).cfg };
        let members = [urma_create_jetty(b.ctx, &raw mut cfg), urma_create_jetty(b.ctx, &raw mut cfg)];
        assert_eq!(((*group).count, *(*group).list), (2, members[0]));
        assert_eq!(urma_delete_jetty_grp(group), EAGAIN, "it has members");
        let remote = RJetty { id: (*group).id, trans_mode: 1, policy: 1, kind: 2, flag: 1, tp_type: 0 };
        let target = urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN);
        assert!(!target.is_null());
        for hint in [1, 0, 1] {
            let mut near = b.sge(0, 64);
            let mut wr = UrmaJfrWr { src: UrmaSg { sge: &raw mut near, num: 1 }, user_ctx: 9, next: null_mut() };
            assert_eq!(urma_post_jfr_wr(b.jfr, &raw mut wr, &mut null_mut()), SUCCESS);
            let mut near = a.sge(8, 64);
            let src = UrmaSg { sge: &raw mut near, num: 1 };
            let send = SendWr { src, target_hint: hint, imm_data: 0, tseg: null_mut() };
            assert_eq!(a.post(0x40, target, WrBody { send }), SUCCESS);
            let (sent, got) = (a.wait(), b.wait());
            assert_eq!((sent.status, got.local_id), (0, (*members[usize::from(hint)]).id.id));
        }
        assert_eq!(urma_unimport_jetty(target), SUCCESS);
        let (mut list, mut bad) = (members, null_mut());
        assert_eq!(urma_delete_jetty_batch(list.as_mut_ptr(), 2, &raw mut bad), SUCCESS);
        assert_eq!(((*group).count, urma_delete_jetty_grp(group)), (0, SUCCESS));
    }
    a.delete();
    b.delete();
}

#[test]
fn imports_can_end_with_a_notification_and_addresses_are_eids() {
    let a = end(6);
    // SAFETY: see the abstract.
    unsafe {
        let notifier = crate::notify::urma_create_notifier(a.ctx);
        let mut notify = UrmaNotify { kind: 9, status: 9, user_ctx: 0, object: null_mut() };
        assert_eq!(crate::notify::urma_wait_notify(notifier, 1, &raw mut notify, 0), 0);
        let remote = RJetty { id: (*a.jetty).id, trans_mode: 1, policy: 0, kind: 1, flag: 1, tp_type: 0 };
        let target = crate::notify::urma_import_jetty_async(notifier, &raw const remote, &raw const TOKEN, 77, 1000);
        assert_eq!(crate::notify::urma_wait_notify(notifier, 1, &raw mut notify, 1000), 1);
        assert_eq!((notify.kind, notify.status, notify.user_ctx), (0, SUCCESS, 77));
        assert_eq!(notify.object, target.cast());
        assert_eq!(crate::notify::urma_unimport_jetty_async(target), SUCCESS);
        assert_eq!(crate::notify::urma_delete_notifier(notifier), SUCCESS);

        let (mut eid, mut net) = (Eid([0; 16]), std::mem::zeroed::<NetAddr>());
        let texts = [(c"10.1.2.3", [10, 1, 2, 3]), (c"0x0a010203", [10, 1, 2, 3]), (c"167838211", [10, 1, 2, 3])];
        for (text, bytes) in texts {
            assert_eq!(crate::device::urma_str_to_eid(text.as_ptr(), &raw mut eid), 0);
            assert_eq!((&eid.0[10..12], &eid.0[12..]), (&[0xff; 2][..], &bytes[..]));
            assert_eq!(crate::device::urma_get_ip_by_eid(a.ctx, &raw const eid, &raw mut net), SUCCESS);
            assert_eq!((net.family, &net.address.0[..4]), (2, &bytes[..]));
            let mut again = Eid([0; 16]);
            assert_eq!(crate::device::urma_get_eid_by_ip(a.ctx, &raw const net, &raw mut again), SUCCESS);
            assert_eq!(again.0, eid.0);
        }
        assert_eq!(crate::device::urma_str_to_eid(c"no address".as_ptr(), &raw mut eid), -EINVAL);
        assert_eq!(crate::provider::urma_cmd_create_jfs(), -EINVAL, "there are no plug-ins");
        assert!(crate::provider::urma_import_jetty_ex().is_null());
    }
    a.delete();
}

#[test]
fn posts_leave_although_the_program_never_polls() {
    let (a, mut b) = (end(7), end(8));
    // SAFETY: see the abstract.
    unsafe {
        let (mut seg, mut len) = (null_mut(), 0);
        assert_eq!(urma_get_seg_ctx(b.seg, &raw mut seg, &raw mut len), SUCCESS);
        let far = urma_import_seg(a.ctx, seg, &raw const TOKEN, 0, 0);
        for round in 1..=20u64 {
            // As a program that polls: the keeper watches, and only the first post sends.
            host_of(a.ctx).keeper_serves.store(false, std::sync::atomic::Ordering::Relaxed);
            for k in 0..4 {
                (a.memory.as_ptr() as *mut u64).add(k).write_volatile(round << 56);
                let mut near = a.sge(8 * k as u64, 8);
                let there = b.memory.as_ptr() as u64 + 8 * k as u64;
                let mut dst = UrmaSge { addr: there, len: 8, tseg: far, user_tseg: null_mut() };
                let (src, dst) = (UrmaSg { sge: &raw mut near, num: 1 }, UrmaSg { sge: &raw mut dst, num: 1 });
                let rw = RwWr { src, dst, target_hint: 0, notify_data: 0 };
                let mut wr = UrmaJfsWr {
                    opcode: 0,
                    flag: 1 << 5,
                    tjetty: null_mut(),
                    user_ctx: 0,
                    body: WrBody { rw },
                    next: null_mut(),
                };
                while urma_post_jetty_send_wr(a.jetty, &raw mut wr, &mut null_mut()) != SUCCESS {
                    std::thread::yield_now();
                }
            }
            let until = Instant::now() + Duration::from_secs(20);
            for k in 0..4 {
                // The last byte appears after the others.
                let last = b.memory.as_mut_ptr().add(k).cast::<std::sync::atomic::AtomicU8>().add(7);
                while u64::from((*last).load(std::sync::atomic::Ordering::Acquire)) != round {
                    assert!(Instant::now() < until, "round {round}, WRITE {k}");
                    std::thread::yield_now();
                }
                assert_eq!(b.memory[k], round << 56, "round {round}, WRITE {k}");
            }
            (0..4).for_each(|_| assert_eq!(a.wait().status, 0));
        }
        assert_eq!(urma_unimport_seg(far), SUCCESS);
        urma_put_seg_ctx(seg);
    }
    a.delete();
    b.delete();
}
