//! A program is killed while its copies are open: the daemon takes back what it had, and others notice nothing.

use crate::daemon::{DEADLINE, socket};
use crate::fake::{cuda, lock};
use crate::pair::*;
use crate::receiving::{device_mr, pattern};
use burst_client::Daemon;
use burst_ibverbs::sys::*;
use burst_ibverbs::{boundary, device, ops, pd_mr};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Set for the process that is killed.
const VICTIM: &str = "BURST_TEST_VICTIM";
/// What it says when its copies are open.
const READY: &str = "copies are open";

/// The first device of the daemon that another process has started.
fn open_there() -> Open {
    // SAFETY: the sequence that the API prescribes.
    unsafe {
        let list = device::ibv_get_device_list(null_mut());
        assert!(!list.is_null() && !(*list).is_null(), "the daemon has no device");
        let context = ops::ibv_open_device(*list);
        assert!(!context.is_null(), "{:?}", boundary::errno());
        device::ibv_free_device_list(list);
        let pd = pd_mr::ibv_alloc_pd(context);
        assert!(!pd.is_null());
        Open { context, pd }
    }
}

/// The process that is killed: requests in both directions whose copies never run.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let (cuda, open) = (cuda().expect("a compiler"), open_there());
    let cq = open.cq(64);
    let (a, b) = open.pair(cq);
    let (c, _d) = open.pair(cq);
    let len = 50_000;
    let device = cuda.alloc(len);
    let region = device_mr(&open, device, len);
    let mut source = pattern(1, len);
    let sm = open.mr(&mut source);
    cuda.hold(true);
    assert_eq!(recv(b, 1, &mut [sge(region, 0, len as u32)]), 0);
    assert_eq!(send(a, &mut wr(IBV_WR_SEND, &mut [sge(sm, 0, len as u32)])).0, 0);
    assert_eq!(send(c, &mut to(wr(IBV_WR_RDMA_WRITE, &mut [sge(region, 0, len as u32)]), sm, 0)).0, 0);
    std::thread::sleep(Duration::from_millis(200));
    assert!(poll_once(cq).is_none());
    println!("\n{READY}");
    std::thread::sleep(DEADLINE);
}

#[test]
fn a_program_that_is_killed_leaves_nothing() {
    let (_one, Some(_), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    if burst_control::in_process::is_chosen() {
        return;
    }
    let mut daemon = Daemon::connect(socket().expect("a daemon")).expect("a connection");
    let cq = open.cq(8);
    let (c, d) = open.pair(cq);
    let mut bytes = vec![7u8; 64];
    let mr = open.mr(&mut bytes);
    let used = |daemon: &mut Daemon| -> Vec<u64> {
        let users = daemon.users().expect("users").0;
        users.iter().flat_map(|user| user.resources.iter().map(|resource| resource.used)).collect()
    };
    let before = used(&mut daemon);
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "killing::victim", "--nocapture"])
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == READY), "the victim is ready");
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(recv(d, 2, &mut [sge(mr, 32, 32)]), 0);
        assert_eq!(send(c, &mut wr(IBV_WR_SEND, &mut [sge(mr, 0, 32)])).0, 0);
        complete_all(cq, 2);
        let begin = Instant::now();
        while used(&mut daemon) != before {
            assert!(begin.elapsed() < DEADLINE, "{:?} and not {before:?}", used(&mut daemon));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
