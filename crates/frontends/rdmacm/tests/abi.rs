//! The linked librdmacm: symbols and versions, refused calls, programs without a daemon, fork.
//!
//! Comparisons with Debian's package are skipped, with a sentence, where it is not installed.

#[path = "../../ibverbs/tests/linked/mod.rs"]
mod linked;

use linked::{lib_dir, readelf, run};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::{Path, PathBuf};

const DEBIAN: &str = "/usr/lib/x86_64-linux-gnu/librdmacm.so.1";

fn library() -> PathBuf {
    lib_dir().join("librdmacm.so.1")
}

fn symbols(library: &Path) -> BTreeSet<String> {
    let mut symbols = linked::symbols(library);
    symbols.retain(|name| !name.starts_with("RDMACM_"));
    symbols
}

/// `name@version` of the table.
fn table() -> BTreeSet<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/public.txt"))
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (node, name) = line.split_once(' ').unwrap();
            format!("{name}@{node}")
        })
        .collect()
}

#[test]
fn nothing_of_debian_s_library_is_missing() {
    let theirs = Path::new(DEBIAN);
    if !theirs.exists() {
        eprintln!("skipped: {DEBIAN} is not installed");
        return;
    }
    let (ours, theirs) = (symbols(&library()), symbols(theirs));
    assert!(theirs.len() > 60, "readelf shows only {}", theirs.len());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_table_and_nothing_else_is_exported() {
    assert_eq!(symbols(&library()), table());
}

#[test]
fn the_library_names_burst_libibverbs_to_the_loader() {
    assert!(readelf("-d", &library()).contains("libibverbs.so.1"));
    assert!(readelf("--version-info", &library()).contains("BURST_PRIVATE_1"));
    // No verbs function of its own: one process, one set of contexts.
    assert!(symbols(&library()).iter().all(|s| !s.starts_with("ibv_") && !s.starts_with("burst_")));
}

#[test]
fn without_a_daemon_the_reason_is_printed_once() {
    let Some(out) = run("rping", &["-s", "-a", "127.0.0.1"], &[]) else { return };
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert_eq!(text.matches("burst run").count(), 1, "{text}");
    assert!(text.contains("/nonexistent/burstd.sock"), "{text}");
    let Some(out) = run("rping", &["-s", "-a", "127.0.0.1"], &[("BURST_QUIET", "1")]) else { return };
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!text.contains("burst"), "{text}");
}

/// The opened library. The folder of its libibverbs must be known to the loader from the start of the process, so the
/// tests that open it run in a child: this same test binary, with the environment that `run` gives.
struct Opened(*mut c_void);

impl Opened {
    fn new() -> Opened {
        let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a C string; the library's initialization does nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: without a handle there is an error text.
        assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        Opened(handle)
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: a live handle and a C string.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        unsafe { libc::dlclose(self.0) };
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Runs the ignored test of this name in a child with Burst's libraries first in the search path.
fn in_child(name: &str) {
    let me = std::env::current_exe().unwrap();
    let out = run(me.to_str().unwrap(), &["--exact", name, "--ignored", "--nocapture"], &[("BURST_QUIET", "1")]);
    let out = out.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn calls_refuse_without_a_daemon() {
    in_child("child_calls_refuse_without_a_daemon");
}

#[test]
#[ignore = "runs in a child of calls_refuse_without_a_daemon"]
fn child_calls_refuse_without_a_daemon() {
    type Any = extern "C" fn(*const c_void, *const c_void, *const c_void, *const c_void) -> isize;
    let lib = Opened::new();
    let null = std::ptr::null();
    let call = |name: &str| {
        // SAFETY: these functions look at no argument, or refuse NULL before they use it; all pass in registers.
        let f: Any = unsafe { std::mem::transmute(lib.symbol(name)) };
        f(null, null, null, null)
    };
    for symbol in table() {
        let name = symbol.split('@').next().unwrap();
        let expected = match name {
            "repoll_create" | "repoll_ctl" | "repoll_wait" => libc::ENOSYS,
            _ if !name.starts_with("rdma_") => libc::ENOSYS,
            "rdma_resolve_addrinfo" | "rdma_query_addrinfo" | "rdma_write_cm_event" => libc::EOPNOTSUPP,
            _ => continue,
        };
        let result = call(name);
        assert_eq!((result as i32, errno()), (-1, expected), "{name}");
    }
    // NULL in place of an object is EINVAL, and no crash.
    for name in [
        "rdma_bind_addr",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_connect",
        "rdma_accept",
        "rdma_reject",
        "rdma_reject_ece",
        "rdma_listen",
        "rdma_disconnect",
        "rdma_establish",
        "rdma_notify",
        "rdma_create_qp",
        "rdma_create_qp_ex",
        "rdma_create_srq",
        "rdma_create_srq_ex",
        "rdma_destroy_id",
        "rdma_create_id",
        "rdma_get_cm_event",
        "rdma_ack_cm_event",
        "rdma_migrate_id",
        "rdma_get_request",
        "rdma_create_ep",
        "rdma_getaddrinfo",
        "rdma_init_qp_attr",
        "rdma_join_multicast",
        "rdma_join_multicast_ex",
        "rdma_leave_multicast",
        "rdma_set_local_ece",
        "rdma_get_remote_ece",
    ] {
        let result = call(name);
        assert_eq!((result as i32, errno()), (-1, libc::EINVAL), "{name}");
    }
    for name in ["rdma_destroy_qp", "rdma_destroy_srq", "rdma_destroy_ep", "rdma_freeaddrinfo", "rdma_free_devices"] {
        call(name);
    }
    call("rdma_destroy_event_channel");
    for name in ["rdma_create_event_channel", "rdma_get_devices"] {
        let result = call(name);
        assert_eq!((result, errno()), (0, libc::ENODEV), "{name}");
    }
}

#[test]
fn it_can_be_opened_and_closed_from_threads() {
    in_child("child_opens_and_closes");
}

#[test]
#[ignore = "runs in a child of it_can_be_opened_and_closed_from_threads"]
fn child_opens_and_closes() {
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..50 {
                    let lib = Opened::new();
                    // SAFETY: the function has this type in `rdma_cma.h` and returns a C string.
                    unsafe {
                        let f: extern "C" fn(u32) -> *const libc::c_char =
                            std::mem::transmute(lib.symbol("rdma_event_str"));
                        assert_eq!(CStr::from_ptr(f(9)), c"RDMA_CM_EVENT_ESTABLISHED");
                    }
                }
            });
        }
    });
}
