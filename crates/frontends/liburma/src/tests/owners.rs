//! News, pointers and descriptors belong to one object each: those of an object that was deleted reach nobody else.
//!
//! SAFETY: as for the other tests: all pointers are of objects that the tests have made and not deleted yet.

use super::*;
use crate::device::urma_get_async_event;

fn jfc(a: &End, jfce: *mut UrmaJfce) -> *mut UrmaJfc {
    let mut cfg = JfcCfg { depth: 8, flag: 0, ceqn: 0, jfce, user_ctx: 0 };
    // SAFETY: see the abstract.
    let jfc = unsafe { urma_create_jfc(a.ctx, &raw mut cfg) };
    assert!(!jfc.is_null());
    jfc
}

/// Whether a descriptor is readable.
fn is_readable(fd: i32) -> bool {
    crate::descriptors::sleep(&[fd], burst_base::Nanos(0))
}

/// Moves a Jetty to ERROR, which is an event and a record.
fn fail(a: &End) {
    // SAFETY: see the abstract.
    assert_eq!(unsafe { urma_modify_jetty(a.jetty, &[2, 0, 3]) }, SUCCESS);
}

/// The next event of a context, whose descriptor must not block: status, kind, object.
fn event(ctx: *mut UrmaContext) -> (Status, u32, u64) {
    // SAFETY: see the abstract.
    unsafe {
        let fd = (*ctx).async_fd;
        libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
        let mut event: UrmaAsyncEvent = std::mem::zeroed();
        let status = urma_get_async_event(ctx, &raw mut event);
        (status, event.kind, event.element)
    }
}

#[test]
fn an_event_channel_is_in_use_while_a_jfc_has_it() {
    let a = end(20);
    // SAFETY: see the abstract.
    unsafe {
        let (first, second) = (urma_create_jfce(a.ctx), urma_create_jfce(a.ctx));
        let mut cfg = JfcCfg { depth: 8, flag: 0, ceqn: 0, jfce: first, user_ctx: 0 };
        let mut jfc = null_mut();
        assert_eq!(urma_alloc_jfc(a.ctx, &raw mut cfg, &raw mut jfc), SUCCESS);
        assert_eq!((urma_delete_jfce(first), urma_rearm_jfc(jfc, false)), (FAIL, EINVAL), "it is not active");
        let mut moved = second;
        assert_eq!(urma_set_jfc_opt(jfc, 0x2004, (&raw mut moved).cast(), 8), SUCCESS);
        assert_eq!((urma_delete_jfce(first), urma_delete_jfce(second)), (SUCCESS, FAIL));
        assert_eq!((urma_active_jfc(jfc), urma_delete_jfce(second)), (SUCCESS, FAIL));
        assert_eq!((urma_delete_jfc(jfc), urma_delete_jfce(second)), (SUCCESS, SUCCESS));
        let third = urma_create_jfce(a.ctx);
        cfg.jfce = third;
        cfg.depth = 0;
        assert!(urma_create_jfc(a.ctx, &raw mut cfg).is_null());
        assert_eq!(urma_delete_jfce(third), SUCCESS, "a JFC that was refused does not use it");
    }
    a.delete();
}

#[test]
fn a_new_jfc_is_not_armed_and_has_no_news_of_the_one_before() {
    let a = end(21);
    // SAFETY: see the abstract.
    unsafe {
        let jfce = urma_create_jfce(a.ctx);
        let old = jfc(&a, jfce);
        assert_eq!(urma_rearm_jfc(old, false), SUCCESS);
        let id = (*old).id.id;
        assert_eq!(urma_delete_jfc(old), SUCCESS);
        let new = jfc(&a, jfce);
        assert_eq!((*new).id.id, id, "the number is used again");
        let mut cfg = JfsCfg { jfc: new, ..(*a.jetty).cfg.jfs };
        let jfs = urma_create_jfs(a.ctx, &raw mut cfg);
        assert_eq!(urma_modify_jfs(jfs, &[1, 3]), SUCCESS);
        let mut news = null_mut();
        assert_eq!(urma_wait_jfc(jfce, 1, 20, &raw mut news), 0, "a record, but nobody has armed the queue");
        assert_eq!(urma_rearm_jfc(new, false), SUCCESS);
        assert_eq!((urma_delete_jfs(jfs), urma_delete_jfc(new)), (SUCCESS, SUCCESS));
        let newest = jfc(&a, jfce);
        assert!(!is_readable((*jfce).fd), "the news were of a queue that is gone");
        assert_eq!((urma_delete_jfc(newest), urma_delete_jfce(jfce)), (SUCCESS, SUCCESS));
    }
    a.delete();
}

#[test]
fn a_waiting_thread_goes_on_waiting_if_another_one_was_faster() {
    let a = end(22);
    // SAFETY: see the abstract; both threads end before the objects.
    unsafe {
        let (jfce, ctx) = (a.jfce as usize, a.ctx as usize);
        let wait = || {
            std::thread::spawn(move || {
                let mut news = null_mut();
                (urma_wait_jfc(jfce as *mut UrmaJfce, 1, -1, &raw mut news), news as usize)
            })
        };
        let waiters = [wait(), wait()];
        std::thread::sleep(Duration::from_millis(20));
        // Wakes both without news, then with news for each.
        crate::descriptors::ring((*a.jfce).fd);
        std::thread::sleep(Duration::from_millis(20));
        fail(&a);
        let id = (*a.jfc).handle as u32;
        let channel = (*a.jfce.cast::<OwnedJfce>()).number;
        let host = host_of(ctx as *mut UrmaContext);
        for _ in 0..2 {
            // The queue has a record: arming it reports at once.
            host.arm(&mut host.lock(), id, channel);
        }
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic"), (1, a.jfc as usize));
        }
    }
    a.delete();
}

#[test]
fn a_poll_after_an_event_finds_the_record_while_another_thread_has_the_node() {
    let a = end(60);
    // SAFETY: see the abstract.
    unsafe {
        assert_eq!(urma_rearm_jfc(a.jfc, false), SUCCESS);
        fail(&a);
        let mut news = null_mut();
        assert_eq!(urma_wait_jfc(a.jfce, 1, -1, &raw mut news), 1);
        let (has_it, ctx) = (std::sync::Barrier::new(2), a.ctx as usize);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let inner = host_of(ctx as *mut UrmaContext).lock();
                has_it.wait();
                std::thread::sleep(Duration::from_millis(20));
                drop(inner);
            });
            has_it.wait();
            let mut cr: UrmaCr = std::mem::zeroed();
            assert_eq!(urma_poll_jfc(news, 1, &raw mut cr), 1);
        });
    }
    a.delete();
}

#[test]
fn contexts_of_one_address_have_their_own_events() {
    let (a, b) = (end(23), end(23));
    let (first, second) = (a.jetty as u64, b.jetty as u64);
    fail(&a);
    fail(&b);
    assert_eq!(event(a.ctx), (SUCCESS, 4, first));
    assert_eq!(event(a.ctx).0, EAGAIN);
    assert_eq!(event(b.ctx), (SUCCESS, 4, second));
    b.delete();
    // SAFETY: see the abstract.
    unsafe {
        let mut cfg = (*a.jetty).cfg;
        let far = urma_create_jetty(a.ctx, &raw mut cfg);
        assert_eq!(urma_modify_jetty(far, &[2, 0, 3]), SUCCESS);
        assert_eq!(event(a.ctx), (SUCCESS, 4, far as u64), "the other context is gone");
        assert_eq!(urma_delete_jetty(far), SUCCESS);
    }
    a.delete();
}

#[test]
fn each_event_is_got_and_those_of_a_deleted_jetty_are_not() {
    let a = end(24);
    // SAFETY: see the abstract.
    unsafe {
        let mut cfg = (*a.jetty).cfg;
        let mut list = [(); 3].map(|()| urma_create_jetty(a.ctx, &raw mut cfg));
        for jetty in list {
            assert_eq!(urma_modify_jetty(jetty, &[2, 0, 3]), SUCCESS);
        }
        // One call each, although one read of the descriptor takes all three.
        assert_eq!(event(a.ctx), (SUCCESS, 4, list[0] as u64));
        assert!(is_readable((*a.ctx).async_fd));
        let gone = (*list[1]).id.id;
        assert_eq!(urma_delete_jetty(list[1]), SUCCESS);
        list[1] = urma_create_jetty(a.ctx, &raw mut cfg);
        assert_ne!((*list[1]).id.id, gone, "peers may still send to the one before");
        assert_eq!(event(a.ctx), (SUCCESS, 4, list[2] as u64), "the second one is gone");
        assert!(!is_readable((*a.ctx).async_fd));
        assert_eq!(event(a.ctx).0, EAGAIN, "a descriptor that does not block");
        let mut bad = null_mut();
        assert_eq!(urma_delete_jetty_batch(list.as_mut_ptr(), 3, &raw mut bad), SUCCESS);
        let mut cr: UrmaCr = std::mem::zeroed();
        assert_eq!(urma_poll_jfc(a.jfc, 1, &raw mut cr), 0, "nothing is told of a Jetty that is gone");
    }
    a.delete();
}

#[test]
fn a_record_names_the_object_whose_it_is() {
    let (a, b) = (end(25), end(26));
    // SAFETY: see the abstract.
    unsafe {
        let (jetty, jfr) = ((*b.jetty).id, (*b.jfr).id);
        assert_eq!(jetty.id, jfr.id, "both are counted from the same number");
        let targets = [
            RJetty { id: jetty, trans_mode: 1, policy: 0, kind: 1, flag: 1, tp_type: 0 },
            RJetty { id: jfr, trans_mode: 1, policy: 0, kind: 0, flag: 1, tp_type: 0 },
        ];
        let mut cfg = (*a.jetty).cfg.jfs;
        let jfs = urma_create_jfs(a.ctx, &raw mut cfg);
        for (remote, is_jetty, object) in [(targets[0], 2, b.jetty as usize), (targets[1], 0, b.jfr as usize)] {
            let target = urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN);
            let mut near = b.sge(0, 64);
            let mut wr = UrmaJfrWr { src: UrmaSg { sge: &raw mut near, num: 1 }, user_ctx: 9, next: null_mut() };
            assert_eq!(urma_post_jfr_wr(b.jfr, &raw mut wr, &mut null_mut()), SUCCESS);
            assert_eq!(urma_send(jfs, target, a.seg, a.memory.as_ptr() as u64, 64, 1 << 5, 7), SUCCESS);
            // Where the peer's node has restarted it is a time-out: addresses are of one test only.
            let sent = a.wait();
            assert_eq!((sent.status, sent.flag & 2, sent.user_data), (0, 0, jfs as usize));
            let got = b.wait();
            assert_eq!((got.status, got.flag & 2, got.user_data), (0, is_jetty, object));
            assert_eq!(urma_unimport_jetty(target), SUCCESS);
        }
        assert_eq!(urma_delete_jfs(jfs), SUCCESS);
    }
    a.delete();
    b.delete();
}

#[test]
fn threads_that_make_and_delete_objects_lose_no_count() {
    let a = end(27);
    let ctx = a.ctx as usize;
    let churn = || {
        std::thread::spawn(move || {
            for _ in 0..2000 {
                // SAFETY: see the abstract.
                unsafe {
                    let id = urma_alloc_token_id(ctx as *mut UrmaContext);
                    assert_eq!(urma_free_token_id(id), SUCCESS);
                }
            }
        })
    };
    let threads = [churn(), churn(), churn()];
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    a.delete();
}

#[test]
fn a_child_of_the_process_is_refused_and_takes_nothing_from_its_parent() {
    let (a, b) = (end(28), end(29));
    // SAFETY: the child calls functions that take no lock of the parent's, and ends without running anything else.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut cr: UrmaCr = std::mem::zeroed();
            let mut near = a.sge(0, 8);
            let mut wr = UrmaJfrWr { src: UrmaSg { sge: &raw mut near, num: 1 }, user_ctx: 9, next: null_mut() };
            let is_refused = urma_poll_jfc(a.jfc, 1, &raw mut cr) == -1
                && urma_post_jfr_wr(a.jfr, &raw mut wr, &mut null_mut()) == EPERM
                && urma_delete_jetty(a.jetty) == EPERM
                && urma_delete_context(a.ctx) != SUCCESS;
            libc::_exit(i32::from(!is_refused));
        }
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0));
        let (mut seg, mut len) = (null_mut(), 0);
        assert_eq!(urma_get_seg_ctx(b.seg, &raw mut seg, &raw mut len), SUCCESS);
        let far = urma_import_seg(a.ctx, seg, &raw const TOKEN, 0, 0);
        assert_eq!(a.rw(0, far, b.memory.as_ptr() as u64, 8), 0, "the parent goes on");
        assert_eq!(urma_unimport_seg(far), SUCCESS);
        urma_put_seg_ctx(seg);
    }
    a.delete();
    b.delete();
}
