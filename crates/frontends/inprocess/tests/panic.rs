//! A panic of the engine ends the engine, not the program: the pipes of its contexts hang up, by which the libraries learn of it.

use burst_control::in_process::{InProcessCalls, InProcessLink, InProcessPacket, InProcessReply, TURN_GONE};
use burst_control::{Client, ControlError, FDS_MAX, Request, Response};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session, by the library's table.
#[derive(Debug)]
struct TableLink(u64);

fn calls() -> &'static InProcessCalls {
    // SAFETY: the table lives as long as the library.
    unsafe { &*burst_inprocess::burst_inprocess_calls() }
}

impl InProcessLink for TableLink {
    fn call(
        &self,
        packet: &[u8],
        fds: &[BorrowedFd<'_>],
        reply: &mut [u8],
    ) -> Result<(usize, Vec<OwnedFd>), ControlError> {
        let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let (bytes, len, fds, fd_count) = (packet.as_ptr(), packet.len(), numbers.as_ptr(), numbers.len());
        let sent = InProcessPacket { bytes, len, fds, fd_count };
        let mut answer =
            InProcessReply { bytes: reply.as_mut_ptr(), len: reply.len(), fds: [-1; FDS_MAX], fd_count: 0 };
        // SAFETY: valid structs with room for the lengths in them; the descriptors are this caller's afterwards.
        unsafe {
            if (calls().call)(self.0, &sent, &mut answer) != 0 {
                return Err(ControlError::Closed);
            }
            Ok((answer.len, answer.fds[..answer.fd_count].iter().map(|fd| OwnedFd::from_raw_fd(*fd)).collect()))
        }
    }
    fn is_open(&self) -> bool {
        (calls().is_open)(self.0) != 0
    }
}

/// Puts this thread into a network namespace of its own, with the loopback interface.
fn enter_namespace() -> bool {
    // SAFETY: of all that threads may share, only the network changes, for the threads that this one starts.
    let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.is_ok();
    entered && std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success())
}

fn hangs_up(fd: &OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, 0) == 1 && entry.revents & libc::POLLHUP != 0 }
}

/// Waits until `holds`. The keeper may be the one that finds the worker gone, and polls do not wait for it.
fn wait_until(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "not within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn the_program_survives_and_its_pipes_hang_up() {
    if !enter_namespace() {
        eprintln!("skipped: no network namespace for this thread");
        return;
    }
    // SAFETY: no other thread of this test uses the environment.
    unsafe { std::env::set_var("BURST_PORT", "udp:dev=lo") };
    let mut why = [0u8; 512];
    // SAFETY: writable bytes.
    let number = unsafe { (calls().open)(why.as_mut_ptr(), why.len()) };
    assert_ne!(number, 0, "{}", String::from_utf8_lossy(&why));
    let link = Arc::new(TableLink(number));
    let mut client = Client::connect_in_process(link.clone(), "test").expect("a session");
    let answer = client.call(&Request::OpenContext { device: 0 }, &[]).expect("a context");
    assert!(matches!(answer.response, Response::Context { .. }));
    let pipe = &answer.fds[1];
    assert!(link.is_open() && !hangs_up(pipe));

    burst_inprocess::fall();
    wait_until(|| (calls().turn)() == TURN_GONE);
    (calls().posted)();
    assert!(!link.is_open());
    wait_until(|| hangs_up(pipe));
    assert!(client.call(&Request::Stats, &[]).is_err());
    // No second host takes its place: the program would mistake it for the first.
    // SAFETY: as above.
    assert_eq!(unsafe { (calls().open)(why.as_mut_ptr(), why.len()) }, 0);
    assert!(String::from_utf8_lossy(&why).starts_with("the host in this process has failed"));
}
