//! Calls that UMDK's library refuses, with its errors.
//!
//! SAFETY: as for the other tests: all pointers are of objects that the tests have made and not deleted yet.

use super::*;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Whether an object was refused with EINVAL.
fn is_refused<T>(object: *mut T) -> bool {
    object.is_null() && errno() == EINVAL
}

const OT: u32 = 1;
const OL: u32 = 3;

#[test]
fn queues_beyond_the_capabilities_are_refused() {
    let a = end(40);
    // SAFETY: see the abstract.
    unsafe {
        let (jfs, jfr) = ((*a.jetty).cfg.jfs, (*a.jfr).cfg);
        for mut cfg in [
            JfsCfg { max_inline: 65, ..jfs },
            JfsCfg { max_sge: 2, ..jfs },
            JfsCfg { max_rsge: 3, ..jfs },
            JfsCfg { depth: 0, ..jfs },
            JfsCfg { err_timeout: 32, ..jfs },
            JfsCfg { jfc: null_mut(), ..jfs },
            JfsCfg { trans_mode: 3, ..jfs },
            JfsCfg { trans_mode: 4, flag: OT << 3, ..jfs },
            JfsCfg { flag: 4 << 3, ..jfs },
        ] {
            assert!(is_refused(urma_create_jfs(a.ctx, &raw mut cfg)), "{} {:#x}", cfg.depth, cfg.flag);
        }
        for mut cfg in [JfrCfg { max_sge: 2, ..jfr }, JfrCfg { depth: 0, ..jfr }, JfrCfg { trans_mode: 0, ..jfr }] {
            assert!(is_refused(urma_create_jfr(a.ctx, &raw mut cfg)));
        }
        let mut cfg = JfcCfg { depth: (1 << 20) + 1, ..(*a.jfc).cfg };
        assert!(is_refused(urma_create_jfc(a.ctx, &raw mut cfg)));
        assert!(is_refused(urma_create_jfs(a.ctx, null_mut())));
        let jetty = (*a.jetty).cfg;
        for mut cfg in [
            JettyCfg { jfs: JfsCfg { trans_mode: 2, ..jfs }, ..jetty },
            JettyCfg { jfs: JfsCfg { flag: OL << 3, ..jfs }, ..jetty },
            JettyCfg { flag: 0, ..jetty },
        ] {
            assert!(is_refused(urma_create_jetty(a.ctx, &raw mut cfg)), "other than its JFR");
        }
        for id in [5, 1, 1023, 1024] {
            let mut cfg = JettyCfg { id, ..jetty };
            assert!(is_refused(urma_create_jetty(a.ctx, &raw mut cfg)), "a number of the program's choice, {id}");
        }
        // The default of RM by its name.
        let mut cfg = JettyCfg { jfs: JfsCfg { flag: 2 << 3, ..jfs }, ..jetty };
        assert_eq!(urma_delete_jetty(urma_create_jetty(a.ctx, &raw mut cfg)), SUCCESS);
        let mut group = GroupCfg { name: [0; 64], flag: 1, token: TOKEN + 1, id: 0, policy: 0, user_ctx: 0 };
        let group = urma_create_jetty_grp(a.ctx, &raw mut group);
        let mut cfg = JettyCfg { group, ..jetty };
        assert!(is_refused(urma_create_jetty(a.ctx, &raw mut cfg)), "another token than the group's");
        assert_eq!((urma_delete_jetty_grp(group), urma_modify_jfc(a.jfc, null_mut())), (SUCCESS, EINVAL));
    }
    a.delete();
}

#[test]
fn segments_need_an_address_rights_that_fit_and_their_token_id() {
    let a = end(41);
    // SAFETY: see the abstract.
    unsafe {
        let good = SegCfg {
            va: a.memory.as_ptr() as u64,
            len: 8,
            token_id: null_mut(),
            token: TOKEN,
            flag: 1,
            user_ctx: 0,
            iova: 0,
        };
        let id = urma_alloc_token_id(a.ctx);
        for (va, flag, token_id) in [
            (0, 1, null_mut()),
            (good.va, 1 | 4 << 5, null_mut()),
            (good.va, 1 | 8 << 5, null_mut()),
            (good.va, 1 | 10 << 5, null_mut()),
            (good.va, 1 | 3 << 5, null_mut()),
            (good.va, 1 | 1 << 13, null_mut()),
            (good.va, 1, id),
        ] {
            let cfg = SegCfg { va, flag, token_id, ..good };
            assert!(is_refused(urma_register_seg(a.ctx, &raw const cfg)), "{va:#x} {flag:#x}");
        }
        assert!(is_refused(urma_register_seg(a.ctx, std::ptr::null())));
        let cfg = SegCfg { flag: 1 | 1 << 13, token_id: id, ..good };
        let seg = urma_register_seg(a.ctx, &raw const cfg);
        assert_eq!((urma_free_token_id(id), (*id).token_id), (EINVAL, (*seg).seg.token_id), "a segment has it");
        assert!(is_refused(urma_import_seg(a.ctx, &raw const (*seg).seg, std::ptr::null(), 0, 0)), "no token");
        assert!(is_refused(urma_import_seg(a.ctx, std::ptr::null(), std::ptr::null(), 0, 0)));
        assert_eq!((urma_unregister_seg(seg), urma_free_token_id(id)), (SUCCESS, SUCCESS));
        assert!(is_refused(crate::device::urma_get_eid_list(null_mut(), null_mut())));
    }
    a.delete();
}

#[test]
fn imports_and_bindings_must_fit_the_mode_and_order() {
    let a = end(42);
    // SAFETY: see the abstract.
    unsafe {
        let good = RJetty { id: (*a.jetty).id, trans_mode: 2, policy: 0, kind: 1, flag: 1, tp_type: 0 };
        for remote in [
            RJetty { trans_mode: 0, ..good },
            RJetty { tp_type: 2, ..good },
            RJetty { trans_mode: 4, ..good },
            RJetty { flag: 1 | 4 << 3, ..good },
            RJetty { flag: 1 | 5 << 3, ..good },
        ] {
            assert!(is_refused(urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN)));
        }
        assert!(is_refused(urma_import_jetty(a.ctx, std::ptr::null(), &raw const TOKEN)));
        let jfr = RJfr { id: good.id, trans_mode: 1, flag: 1, tp_type: 0 };
        assert!(is_refused(urma_import_jfr(a.ctx, &raw const jfr, std::ptr::null())), "no token");
        let import = |remote: RJetty| {
            let target = urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN);
            assert!(!target.is_null());
            target
        };
        let targets = [
            import(good),
            import(RJetty { flag: 1 | OT << 3, ..good }),
            import(RJetty { flag: 1 | OL << 3, ..good }),
            import(RJetty { trans_mode: 1, ..good }),
        ];
        assert_eq!(urma_bind_jetty(a.jetty, targets[0]), EPERM, "a Jetty of mode RM");
        assert_eq!(urma_unbind_jetty(a.jetty), EPERM);
        let mut cfg = JfrCfg { trans_mode: 2, ..(*a.jfr).cfg };
        let jfr = urma_create_jfr(a.ctx, &raw mut cfg);
        let mut cfg = (*a.jetty).cfg;
        (cfg.jfs.trans_mode, cfg.jfr) = (2, jfr);
        let jetty = urma_create_jetty(a.ctx, &raw mut cfg);
        assert_eq!(urma_bind_jetty(jetty, targets[1]), EPERM, "another order");
        assert_eq!(urma_bind_jetty(jetty, targets[3]), EPERM, "another mode");
        assert_eq!(urma_bind_jetty(jetty, targets[2]), SUCCESS, "the default by its name");
        assert_eq!(urma_bind_jetty(jetty, targets[0]), EEXIST);
        assert_eq!(urma_delete_jetty(jetty), EPERM, "it is bound");
        assert_eq!(urma_advise_jetty(jetty, targets[2]), EINVAL, "of mode RM only");
        for target in targets {
            assert_eq!(urma_unimport_jetty(target), SUCCESS);
        }
        assert!((*jetty).remote.is_null(), "its target is gone");
        assert_eq!((urma_delete_jetty(jetty), urma_delete_jfr(jfr)), (SUCCESS, SUCCESS));
    }
    a.delete();
}

#[test]
fn work_requests_without_what_they_need_are_refused() {
    let a = end(43);
    // SAFETY: see the abstract.
    unsafe {
        let mut near = a.sge(0, 8);
        let src = UrmaSg { sge: &raw mut near, num: 1 };
        let send = SendWr { src, target_hint: 0, imm_data: 0, tseg: null_mut() };
        let body = WrBody { send };
        let mut wr = UrmaJfsWr { opcode: 0x40, flag: 0, tjetty: null_mut(), user_ctx: 0, body, next: null_mut() };
        assert_eq!(urma_post_jetty_send_wr(a.jetty, &raw mut wr, null_mut()), EINVAL, "nowhere to name a bad one");
        // Inline data: nothing is read before the length and the address are checked.
        for (addr, len) in [(0, 8), (8, u32::MAX), (8, 65)] {
            ((*src.sge).addr, (*src.sge).len, wr.flag) = (addr, len, 1 << 6);
            let mut bad = null_mut();
            assert_eq!(urma_post_jetty_send_wr(a.jetty, &raw mut wr, &raw mut bad), EINVAL);
            assert_eq!(bad, &raw mut wr);
        }
        let mut cfg = (*a.jetty).cfg.jfs;
        let jfs = urma_create_jfs(a.ctx, &raw mut cfg);
        let remote = RJetty { id: (*a.jetty).id, trans_mode: 1, policy: 0, kind: 1, flag: 1, tp_type: 0 };
        let target = urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN);
        let here = a.memory.as_ptr() as u64;
        assert_eq!(urma_write(jfs, null_mut(), a.seg, a.seg, here, here, 8, 0, 0), EINVAL);
        assert_eq!(urma_write(jfs, target, null_mut(), a.seg, here, here, 8, 0, 0), EINVAL);
        assert_eq!(urma_read(jfs, target, null_mut(), a.seg, here, here, 8, 0, 0), EINVAL);
        assert_eq!(urma_read(jfs, target, a.seg, null_mut(), here, here, 8, 0, 0), EINVAL);
        assert_eq!(urma_send(jfs, null_mut(), a.seg, here, 8, 0, 0), EINVAL);
        assert_eq!(urma_send(jfs, target, null_mut(), here, 8, 0, 0), EINVAL);
        assert_eq!(urma_recv(a.jfr, null_mut(), here, 8, 0), EINVAL);
        assert_eq!(urma_recv(a.jfr, a.seg, 0, 8, 0), FAIL);
        assert_eq!((urma_unimport_jetty(target), urma_delete_jfs(jfs)), (SUCCESS, SUCCESS));
    }
    a.delete();
}

#[test]
fn further_remote_entries_are_ignored() {
    let (a, b) = (end(44), end(45));
    // SAFETY: see the abstract.
    unsafe {
        let far = urma_import_seg(a.ctx, &raw const (*b.seg).seg, &raw const TOKEN, 0, 0);
        let mut near = a.sge(0, 8);
        let place = UrmaSge { addr: b.memory.as_ptr() as u64, len: 8, tseg: far, user_tseg: null_mut() };
        let mut places = [place, UrmaSge { addr: 0, len: 8, tseg: null_mut(), user_tseg: null_mut() }];
        let near = UrmaSg { sge: &raw mut near, num: 1 };
        let far_list = UrmaSg { sge: places.as_mut_ptr(), num: 2 };
        for (opcode, src, dst) in [(0, near, far_list), (0x10, far_list, near)] {
            let rw = RwWr { src, dst, target_hint: 0, notify_data: 0 };
            assert_eq!(a.post(opcode, null_mut(), WrBody { rw }), SUCCESS);
            assert_eq!(a.wait().status, 0);
        }
        assert_eq!(urma_unimport_seg(far), SUCCESS);
    }
    a.delete();
    b.delete();
}

/// Sentences of the library's log.
static SENTENCES: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

extern "C" fn keep(_level: std::ffi::c_int, text: *mut std::ffi::c_char) {
    // SAFETY: the log gives a text.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
    SENTENCES.lock().expect("no test has failed in here").push(text);
}

#[test]
fn a_token_policy_that_would_not_be_kept_is_refused_and_the_sentence_says_so() {
    let a = end(46);
    // SAFETY: see the abstract.
    unsafe {
        assert_eq!(crate::log::urma_register_log_func(keep as *mut _), SUCCESS);
        for policy in [2, 3, 4, 7] {
            let mut jfr = JfrCfg { flag: policy, ..(*a.jfr).cfg };
            assert!(is_refused(urma_create_jfr(a.ctx, &raw mut jfr)), "{policy}");
            let seg = SegCfg {
                va: a.memory.as_ptr() as u64,
                len: 8,
                token_id: null_mut(),
                token: TOKEN,
                flag: policy,
                user_ctx: 0,
                iova: 0,
            };
            assert!(is_refused(urma_register_seg(a.ctx, &raw const seg)), "{policy}");
            let mut group = GroupCfg { name: [0; 64], flag: policy, token: TOKEN, id: 0, policy: 0, user_ctx: 0 };
            assert!(is_refused(urma_create_jetty_grp(a.ctx, &raw mut group)), "{policy}");
            let remote = RJetty { id: (*a.jetty).id, trans_mode: 1, policy: 0, kind: 1, flag: policy, tp_type: 0 };
            assert!(is_refused(urma_import_jetty(a.ctx, &raw const remote, &raw const TOKEN)), "{policy}");
            let mut seg = (*a.seg).seg;
            seg.attr = seg.attr & !7 | policy;
            assert!(is_refused(urma_import_seg(a.ctx, &raw const seg, &raw const TOKEN, 0, 0)), "{policy}");
        }
        crate::log::urma_unregister_log_func();
    }
    let sentences = SENTENCES.lock().expect("as above");
    for what in ["a JFR", "a segment", "a group of Jetties", "an imported Jetty, JFR or group"] {
        for why in ["SIGNED is not offered", "ALL_ENCRYPTED is not offered", "policy is unknown"] {
            let is_there = sentences.iter().any(|s| s.starts_with(what) && s.contains(why));
            assert!(is_there, "{what}: {why}: {sentences:?}");
        }
    }
    drop(sentences);
    a.delete();
}
