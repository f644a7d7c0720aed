//! The safe API and both examples against a real daemon.

mod daemon;

use burst_client::*;
use daemon::{DEADLINE, socket};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

fn open() -> Option<ClientContext> {
    socket()?;
    Some(Device::by_name("burst0").unwrap().open().unwrap())
}

/// An example's program, built beside this test.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    // Newer cargo runs tests in a deeper folder.
    let mut programs = test.ancestors().map(|folder| folder.join("examples").join(name));
    let mut command = Command::new(programs.find(|path| path.exists()).expect("cargo build --examples"));
    command.stdin(Stdio::null());
    command
}

#[test]
fn the_write_example_runs() {
    if socket().is_none() {
        return;
    }
    let output = example("write").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("100000 bytes written"), "{output:?}");
}

#[test]
fn the_echo_example_runs() {
    if socket().is_none() {
        return;
    }
    let mut server = example("echo").args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening at ").unwrap().to_owned();
    let output = example("echo").args([&address, "one", "two words", "three"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo words\nthree\n", "{output:?}");
    assert!(output.status.success() && server.wait().unwrap().success());
}

#[test]
fn a_failed_request_tells_why_and_objects_end_in_any_order() {
    let Some(context) = open() else { return };
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let [a, b] = [0; 2].map(|_| pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap());
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
    let mr = pd.alloc_mr(64, access::LOCAL_WRITE).unwrap();
    // The peer's region has no right for remote writes.
    a.post_send(7, WorkRequest::Write(&[mr.slice(0..8).unwrap()], mr.remote(8..16).unwrap())).unwrap();
    let error = cq.wait(DEADLINE).unwrap().ok().unwrap_err();
    assert!(matches!(error, ClientError::WorkRequest { wr_id: 7, reason: Some(_), .. }), "{error}");
    // The queue pairs keep the domain, the completion queue and the context alive.
    drop((context, pd, cq, mr));
    assert!(a.query().is_ok());
}

#[test]
fn arguments_are_checked_before_anything_is_posted() {
    let Some(context) = open() else { return };
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    let mr = pd.alloc_mr(100, access::LOCAL_WRITE).unwrap();
    assert!(pd.alloc_mr(0, access::LOCAL_WRITE).is_err());
    assert!(pd.alloc_mr(8, access::REMOTE_WRITE).is_err(), "a remote right without the local one");
    assert!(mr.slice(90..101).is_err() && mr.remote(101..101).is_err() && mr.slice(100..100).is_ok());
    assert!(mr.read(99, &mut [0; 2]).is_err() && mr.write(usize::MAX, &[0]).is_err());
    assert!(mr.word(4).is_err() && mr.word(96).is_err() && mr.word(88).is_ok());
    let one = [mr.slice(0..8).unwrap()];
    assert_eq!(qp.post_send(1, WorkRequest::Send(&one)).unwrap_err().errno(), libc::EINVAL, "not connected");
    assert_eq!(qp.post_recv(1, &[mr.slice(0..8).unwrap(); 5]).unwrap_err().errno(), libc::EINVAL, "five SGEs of four");
    let other = open().unwrap();
    let foreign = other.create_cq(1).unwrap();
    assert!(pd.create_qp(&foreign, &cq, &QpOptions::default()).is_err());
    let timeout = Duration::from_millis(20);
    assert!(matches!(cq.wait(timeout), Err(ClientError::TimedOut(_))));
}

#[test]
fn memory_is_copied_whatever_its_alignment() {
    let Some(context) = open() else { return };
    let mr = context.alloc_pd().unwrap().alloc_mr(300, access::LOCAL_WRITE).unwrap();
    for (offset, len) in [(0, 300), (1, 7), (3, 29), (8, 8), (9, 0), (299, 1)] {
        let bytes: Vec<u8> = (0..len).map(|i| (i + offset) as u8 ^ 0x5a).collect();
        mr.write(offset, &bytes).unwrap();
        let mut back = vec![0; len];
        mr.read(offset, &mut back).unwrap();
        assert_eq!(back, bytes, "{len} bytes at {offset}");
    }
}

#[test]
fn a_refused_client_learns_it() {
    let Some(context) = open() else { return };
    let manager = context.connection_manager().unwrap();
    let listener = manager.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| manager.connect(addr, &qp, b"hello", DEADLINE));
        let request = listener.next_request(DEADLINE).unwrap();
        assert_eq!(&request.private_data()[..5], b"hello");
        assert!(request.peer().is_some());
        request.reject(b"no").unwrap();
        let error = client.join().unwrap().unwrap_err();
        assert!(matches!(&error, ClientError::Connection(text) if text.contains("Rejected")), "{error}");
    });
}

#[test]
fn tools_see_the_daemon_and_its_devices() {
    let Some(socket) = socket() else { return };
    let mut daemon = Daemon::connect(socket).unwrap();
    assert!(daemon.info().pid > 0 && daemon.info_now().unwrap().workers > 0);
    assert_eq!(daemon.devices().unwrap()[0].name, "burst0");
    assert!(!daemon.counters().unwrap().is_empty());
    daemon.cm_stats().unwrap();
    daemon.cm_connections().unwrap();
}
