//! The client against a daemon whose replies the test determines: distribution of descriptors, and replies that are refused.
use burst_control::cm::CmCommand;
use burst_control::commands::CommandReceiver;
use burst_control::frame::{self, ControlHeader};
use burst_control::{Client, ControlError, DaemonInfo, MESSAGE_MAX, Refusal, Reply, Request, Response};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

fn info() -> DaemonInfo {
    DaemonInfo { version: "1.2".into(), pid: 3, uid: 4, uptime_s: 5, workers: 6, contexts: 7 }
}

/// The daemon's end of a connection.
struct Daemon {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Daemon {
    /// The next request and its number.
    fn request(&mut self) -> (Request, u32) {
        let packet =
            frame::receive(&self.socket, &mut self.buffer, RecvFlags::empty(), &mut Vec::new()).expect("a packet");
        (packet.decode().expect("a request"), packet.header.sequence)
    }
    fn reply(&self, sequence: u32, new_segments: u32, result: Result<Response, Refusal>, fds: &[BorrowedFd<'_>]) {
        let reply = Reply { new_segments, result };
        frame::send(&self.socket, sequence, &reply, fds, SendFlags::empty()).expect("sent");
    }
    /// Replies to the next request with `fds`, of which the last `new_segments` are segments.
    fn serve(&mut self, new_segments: u32, result: Result<Response, Refusal>, fds: &[BorrowedFd<'_>]) -> Request {
        let (request, sequence) = self.request();
        self.reply(sequence, new_segments, result, fds);
        request
    }
}

/// A listening socket at its own path, which is removed at the end.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    fn new() -> Listener {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("burst-client-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&socket, &SocketAddrUnix::new(&path).expect("a short path")).expect("bound");
        listen(&socket, 4).expect("listening");
        Listener { socket, path }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The result of `program`, connected to a daemon that runs `daemon` after the `Hello`.
fn with_daemon<T>(daemon: impl FnOnce(Daemon) + Send, program: impl FnOnce(Client) -> T) -> T {
    let listener = Listener::new();
    std::thread::scope(|scope| {
        let socket = &listener.socket;
        let served = scope.spawn(move || {
            let mut end = Daemon { socket: accept(socket).expect("a program"), buffer: vec![0; MESSAGE_MAX] };
            let hello = end.serve(0, Ok(Response::Daemon(info())), &[]);
            assert_eq!(hello, Request::Hello { program: "test".into() });
            daemon(end);
        });
        let result = program(Client::connect(&listener.path, "test").expect("connected"));
        served.join().expect("the daemon's thread");
        result
    })
}

/// A file of one byte, to tell descriptors apart.
fn file(byte: u8) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    assert_eq!(rustix::io::pwrite(&fd, &[byte], 0), Ok(1));
    fd
}

fn bytes_of(fds: &[OwnedFd]) -> Vec<u8> {
    let mut byte = [0];
    fds.iter().map(|fd| rustix::io::pread(fd, &mut byte, 0).map(|_| byte[0]).expect("a byte")).collect()
}

#[test]
fn the_daemon_introduces_itself() {
    assert_eq!(with_daemon(drop, |client| client.daemon().clone()), info());
}

/// A daemon that refuses a connection replies and closes, before the hello is sent or without reading it.
#[test]
fn the_reason_of_a_refused_connection_arrives_although_the_daemon_has_closed_it() {
    for waits_for_hello in [false, true] {
        let listener = Listener::new();
        let error = std::thread::scope(|scope| {
            let socket = &listener.socket;
            scope.spawn(move || {
                let end = Daemon { socket: accept(socket).expect("a program"), buffer: Vec::new() };
                if waits_for_hello {
                    let mut first = [0];
                    rustix::net::recv(&end.socket, &mut first, RecvFlags::PEEK).expect("the hello, which stays unread");
                }
                end.reply(1, 0, Err(Refusal { errno: libc::ENOMEM, sentence: "full".into() }), &[]);
            });
            Client::connect(&listener.path, "test").expect_err("refused")
        });
        assert!(
            matches!(&error, ControlError::Refused { errno: libc::ENOMEM, sentence } if sentence == "full"),
            "{error}"
        );
    }
}

#[test]
fn a_path_without_daemon_is_an_error_that_names_it() {
    let path = PathBuf::from("/nonexistent/burstd.sock");
    let error = Client::connect(&path, "test").expect_err("no daemon");
    assert_eq!(error.errno(), libc::ENOENT);
    assert!(error.to_string().contains("/nonexistent/burstd.sock"), "{error}");
}

#[test]
fn the_last_descriptors_are_the_new_segments() {
    let daemon = |mut end: Daemon| {
        let files = [file(1), file(2), file(3), file(4), file(5)];
        let fds: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        for new_segments in [0, 2, 5] {
            end.serve(new_segments, Ok(Response::Done), &fds);
        }
    };
    let got = with_daemon(daemon, |mut client| {
        [(); 3].map(|()| {
            let reply = client.call(&Request::DaemonInfo, &[]).expect("a reply");
            assert_eq!(reply.response, Response::Done);
            (bytes_of(&reply.fds), bytes_of(&reply.segments))
        })
    });
    assert_eq!(got[0], (vec![1, 2, 3, 4, 5], vec![]));
    assert_eq!(got[1], (vec![1, 2, 3], vec![4, 5]));
    assert_eq!(got[2], (vec![], vec![1, 2, 3, 4, 5]));
}

#[test]
fn a_reply_that_does_not_fit_the_request_is_malformed() {
    let daemon = |mut end: Daemon| {
        let one = file(1);
        end.serve(2, Ok(Response::Done), &[one.as_fd()]);
        let (_, sequence) = end.request();
        end.reply(sequence + 1, 0, Ok(Response::Done), &[]);
    };
    with_daemon(daemon, |mut client| {
        for _ in 0..2 {
            assert!(matches!(client.call(&Request::DaemonInfo, &[]), Err(ControlError::Malformed(_))));
        }
    });
}

#[test]
fn a_refusal_has_errno_and_sentence_of_the_daemon() {
    let refusal = Refusal { errno: libc::ENOSPC, sentence: "the table is full".into() };
    let error = with_daemon(
        |mut end| drop(end.serve(0, Err(refusal), &[])),
        |mut client| client.call(&Request::DaemonInfo, &[]).expect_err("refused"),
    );
    assert_eq!((error.errno(), error.to_string()), (libc::ENOSPC, "the table is full".into()));
}

#[test]
fn requests_without_reply_arrive_and_flush_waits_for_a_reply() {
    let daemon = |mut end: Daemon| {
        assert_eq!(end.request().0, Request::DropQps { qps: vec![8] });
        assert_eq!(end.serve(0, Ok(Response::Done), &[]), Request::DaemonInfo);
    };
    with_daemon(daemon, |mut client| {
        client.send_without_reply(&Request::DropQps { qps: vec![8] }).expect("sent");
        client.flush_commands().expect("a reply");
        assert!(matches!(client.flush_commands(), Err(ControlError::Closed | ControlError::Io(_))), "it has ended");
    });
}

#[test]
fn a_hello_answered_by_something_else_is_malformed() {
    let listener = Listener::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = accept(&listener.socket).expect("a program");
            Daemon { socket, buffer: vec![0; MESSAGE_MAX] }.serve(0, Ok(Response::Done), &[]);
        });
        assert!(matches!(Client::connect(&listener.path, "test"), Err(ControlError::Malformed(_))));
    });
}

#[test]
fn a_command_ring_comes_with_its_descriptor_and_knows_when_the_daemon_has_gone() {
    let daemon = |mut end: Daemon| {
        let (ring, mut commands) = CommandReceiver::create().expect("a ring");
        assert_eq!(end.serve(0, Ok(Response::Done), &[]), Request::CmCommandRing);
        end.serve(0, Ok(Response::Token(1)), &[ring.as_fd()]);
        end.serve(0, Ok(Response::Done), &[ring.as_fd()]);
        assert_eq!(end.serve(0, Ok(Response::Done), &[]), Request::DaemonInfo);
        let mut all = Vec::new();
        assert_eq!(commands.receive(|command| all.push(command)).ok(), Some(1));
        assert_eq!(all, [CmCommand::Query { id: 7 }]);
    };
    with_daemon(daemon, |mut client| {
        assert!(matches!(client.command_sender(), Err(ControlError::Malformed(_))), "without descriptor");
        assert!(matches!(client.command_sender(), Err(ControlError::Malformed(_))), "another reply");
        let sender = client.command_sender().expect("a ring");
        assert!(sender.is_connected());
        assert!(sender.send(&[CmCommand::Query { id: 7 }]).expect("sent"));
        client.flush_commands().expect("a reply");
        // The daemon closes its end of the connection after that.
        let mut tries = 0..1_000;
        while sender.is_connected() && tries.next().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!sender.is_connected());
    });
}

#[test]
fn errors_have_the_errno_that_a_verbs_call_reports() {
    let io = |errno: Errno| std::io::Error::from(errno);
    let connect = |source| ControlError::Connect { path: "/p".into(), source };
    for (error, errno) in [
        (connect(io(Errno::CONNREFUSED)), libc::ECONNREFUSED),
        (connect(std::io::Error::other("no errno")), libc::ENODEV),
        (ControlError::Io(io(Errno::PIPE)), libc::EPIPE),
        (ControlError::Io(std::io::Error::other("no errno")), libc::EIO),
        (ControlError::Closed, libc::EIO),
        (ControlError::Malformed("bad".into()), libc::EIO),
        (ControlError::Version { ours: 1, theirs: 2, sentence: String::new() }, libc::EPROTO),
        (ControlError::Refused { errno: libc::EBUSY, sentence: String::new() }, libc::EBUSY),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
    }
}

#[test]
fn only_requests_that_cannot_be_refused_have_no_reply() {
    assert!(Request::DropQps { qps: Vec::new() }.is_without_reply());
    assert!(!Request::DaemonInfo.is_without_reply());
    assert!(!Request::CmStats.is_without_reply());
}

#[test]
fn a_header_is_the_same_in_all_versions() {
    // "BCTB" as a number, version 2, sequence 3, all little-endian.
    let bell = ControlHeader { version: 2, sequence: 3 }.to_bell();
    assert_eq!(bell, [0x42, 0x54, 0x43, 0x42, 2, 0, 0, 0, 3, 0, 0, 0]);
}
