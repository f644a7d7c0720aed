//! A server in virtual time: its time goes on only while the port of its device is asked for its state. So `ListDevices` is a
//! dear request, `DaemonInfo` takes no time, and its reply tells when it was answered.

use super::*;
use burst_base::Reason;
use burst_control::{Reply, Request, Response, frame};
use burst_frame::TxBatch;
use burst_host::{ClientProcess, Clock, WorkerMode};
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::{Port, PortCaps, RxSink};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
    connect, sendmsg, socket_with,
};
use std::ffi::OsString;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

/// Time that a look at the port takes.
const REFRESH: Nanos = Nanos::from_ms(500);

/// A port that costs virtual time.
struct SlowPort {
    port: MemPort,
    time: Arc<AtomicU64>,
}

impl Port for SlowPort {
    fn caps(&self) -> &PortCaps {
        self.port.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.port.rx_burst(now, budget, sink)
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.port.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.port.wait_fds()
    }
    fn refresh(&mut self) -> bool {
        self.time.fetch_add(REFRESH.0, Relaxed);
        self.port.refresh()
    }
}

/// A server that ends when its last client has left.
fn server(socket: &Path) -> Server {
    server_with(socket, WorkerMode::InPlace)
}

/// The same with threads, or without.
fn server_with(socket: &Path, mode: WorkerMode) -> Server {
    server_that_ends_with(socket, mode, None)
}

/// The same, that ends at the end of a descriptor's file, if there is one, and not without clients.
fn server_that_ends_with(socket: &Path, mode: WorkerMode, fd: Option<RawFd>) -> Server {
    let words = ["burstd", "--port", "udp:dev=lo", "--socket-mode", "0666", "--socket"].map(OsString::from);
    let words = words.into_iter().chain([socket.as_os_str().to_owned()]);
    let mut config = burst_config::read_from(words, &|_| None).expect("a configuration");
    config.idle_exit = fd.is_none().then_some(Duration::ZERO);
    config.end_with_fd = fd;
    config.host.worker_mode = mode;
    let time = Arc::new(AtomicU64::new(1));
    let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let port = SlowPort { port: pair(MemConfig::default(), a, b).0, time: time.clone() };
    let host = Host::with_ports(&config.host, Clock::Virtual(time), vec![vec![Box::new(port)]]).expect("a host");
    Server::bind(&config, host, None).expect("a server")
}

/// A program of a user that connects, sends its requests at once, and returns the replies. Waits at `sent` meanwhile.
fn program(socket: &Path, uid: u32, request: &Request, count: u32, sent: &Barrier) -> Vec<Response> {
    // SAFETY: the call changes the user of this thread alone, which ends with this function. It reads no memory.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0, "another user");
    let flags = SocketFlags::CLOEXEC;
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    connect(&client, &SocketAddrUnix::new(socket).expect("an address")).expect("connected");
    let hello = Request::Hello { program: "test".into() };
    let requests = std::iter::once(&hello).chain(std::iter::repeat_n(request, count as usize));
    for (number, request) in (burst_control::FIRST_SEQUENCE..).zip(requests) {
        frame::send(&client, number, request, &[], SendFlags::empty()).expect("sent");
    }
    sent.wait();
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut replies = Vec::new();
    for _ in 0..=count {
        let packet = frame::receive(&client, &mut buffer, RecvFlags::empty(), &mut Vec::new()).expect("a reply");
        let reply: Reply = packet.decode().expect("a reply");
        replies.push(reply.result.expect("no refusal"));
    }
    replies
}

#[test]
fn an_account_with_dear_requests_does_not_delay_cheap_ones() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: changing the user needs root");
        return;
    }
    let path = std::env::temp_dir().join(format!("burstd-rounds-{}.sock", std::process::id()));
    let mut server = server(&path);
    let (dear, cheap) = (60, 150);
    let sent = Barrier::new(3);
    let accounts = [1001, 1002].map(|uid| server.host.account_of(ClientProcess { pid: 0, uid }));
    let (listed, answered) = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| program(&path, 1001, &Request::ListDevices, dear, &sent));
        let bystander = scope.spawn(|| program(&path, 1002, &Request::DaemonInfo, cheap, &sent));
        sent.wait();
        server.serve().expect("served");
        (hostile.join().expect("replies"), bystander.join().expect("replies"))
    });
    assert!(server.host.now() > Nanos(u64::from(dear) * REFRESH.0) && listed.len() as u32 == dear + 1);
    let uptimes = answered.iter().map(|reply| match reply {
        Response::Daemon(info) => info.uptime_s,
        other => panic!("{other:?}"),
    });
    let now = server.host.now().0;
    let times = accounts.map(|account| account.control_time(now).total_ns);
    assert_eq!(times, [u64::from(dear) * REFRESH.0, 0], "each account's own requests");
    // The first dear request, and the periodic look at the port, may come before. 64 requests of one client are answered in a
    // turn: the last cheap one is answered in the third round, and a dear request has used up hundreds of turns.
    assert!(uptimes.clone().all(|s| s <= 2), "{:?}", uptimes.collect::<Vec<_>>());
}

#[test]
fn clients_that_connect_and_leave_at_once_leave_no_memory() {
    const CONNECTS: usize = 2000;
    let path = std::env::temp_dir().join(format!("burstd-server-{}-leave", std::process::id()));
    let mut server = server(&path);
    for _ in 0..CONNECTS {
        let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        connect(client.as_ref().expect("a socket"), &SocketAddrUnix::new(&path).expect("an address"))
            .expect("connected");
        server.accept();
        drop(client);
        let ready = server.wait();
        server.serve_clients(ready.accounts);
    }
    while !server.ending.is_empty() {
        server.serve_clients(Vec::new());
    }
    assert!(server.clients.all().is_empty());
    assert!(server.clients.greetings() <= 128, "{} of clients that have left", server.clients.greetings());
    assert!(server.host.trimmer.due_at().is_some(), "the server does not notice that many clients have left");
    server.close();
}

/// A Unix socket in which a TCP socket waits whose close blocks: SO_LINGER, unsent bytes, and a peer that does not read. Also the
/// peer.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60))).expect("SO_LINGER");
    ours.set_nonblocking(true).expect("non-blocking");
    let block = [0; 1 << 16];
    while std::io::Write::write(&mut &ours, &block).is_ok() {}
    ours.set_nonblocking(false).expect("blocking");
    let (carrier, sender) = UnixStream::pair().expect("a pair");
    send_fd(&sender, &ours);
    (carrier.into(), peer)
}

/// Sends a descriptor with a byte.
fn send_fd(socket: impl AsFd, fd: impl AsFd) {
    let rights = [fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
    let sent = sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(1));
}

/// A client of another user that has sent a socket whose close blocks, and waits to be accepted. Also the peer of that socket.
fn hostile_client(path: &Path) -> (OwnedFd, TcpStream) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            // SAFETY: the call changes the user of this thread alone, which ends with this closure. It reads no memory.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 1001, 1001, 1001) }, 0, "another user");
            let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let client = client.expect("a socket");
            connect(&client, &SocketAddrUnix::new(path).expect("an address")).expect("connected");
            let (carrier, peer) = lingering();
            send_fd(&client, &carrier);
            (client, peer)
        });
        client.join().expect("a client")
    })
}

/// Whether the kernel has not begun to close the other end of a connection: its state is ESTABLISHED.
fn is_open(peer: &TcpStream) -> bool {
    let port = peer.peer_addr().expect("connected").port();
    let all = std::fs::read_to_string("/proc/net/tcp").expect("proc");
    all.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[1].ends_with(&format!(":{port:04X}")) && words[3] == "01"
    })
}

#[test]
#[ignore = "limits the descriptors of its process: the test below runs it in one of its own"]
fn in_a_process_without_descriptors() {
    let path = std::env::temp_dir().join(format!("burstd-linger-{}.sock", std::process::id()));
    let mut server = server_with(&path, WorkerMode::Threads);
    let hostile = server.host.account_of(ClientProcess { pid: 0, uid: 1001 });
    // The one thread that the account may occupy is closing already: what comes now waits, and is open.
    let (blocks, first) = lingering();
    server.host.disposal.close(&hostile, blocks);
    let clients: Vec<(OwnedFd, TcpStream)> = (0..3).map(|_| hostile_client(&path)).collect();
    let mut all: Vec<std::fs::File> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    // One descriptor for the client's socket, and none to watch it with.
    all.pop();
    server.accept();
    assert!(server.clients.all().is_empty(), "the clients were not refused");
    for (_, peer) in &clients {
        assert!(is_open(peer), "the control thread has closed a socket of a program");
    }
    // When the threads go on they close all.
    drop(all);
    drop(first);
    let peers: Vec<TcpStream> = clients.into_iter().map(|(_, peer)| peer).collect();
    drop(peers);
    server.host.disposal.wait_until_idle();
    server.close();
}

#[test]
fn without_descriptors_the_control_thread_closes_no_socket_of_a_program() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: changing the user needs root");
        return;
    }
    let name = "server::tests::in_a_process_without_descriptors";
    let test = std::env::current_exe().expect("this program").display().to_string();
    let run = format!("ulimit -n 256; exec '{test}' --exact {name} --ignored --nocapture --test-threads=1");
    let run = std::process::Command::new("sh").args(["-c", &run]).output().expect("a process");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn a_daemon_ends_with_its_starter() {
    use std::os::fd::IntoRawFd;
    let path = std::env::temp_dir().join(format!("burstd-server-{}-starter", std::process::id()));
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let mut server = server_that_ends_with(&path, WorkerMode::InPlace, Some(read.into_raw_fd()));
    // What the starter writes is no end.
    rustix::io::write(&write, b"x").expect("written");
    assert!(server.wait().starter);
    server.look_at_starter();
    assert!(server.draining.is_none() && server.end_with.is_some() && path.exists());
    drop(write);
    server.serve().expect("served to the end");
    assert!(server.draining.is_some() && server.end_with.is_none() && !path.exists());
}

#[test]
fn a_descriptor_that_is_not_open_is_named() {
    let path = std::env::temp_dir().join(format!("burstd-server-{}-closed", std::process::id()));
    let words = ["burstd", "--end-with-fd", "1048575"].map(OsString::from);
    let config = burst_config::read_from(words, &|_| None).expect("a configuration");
    let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let port = pair(MemConfig::default(), a, b).0;
    let mut options = config.host.clone();
    options.worker_mode = WorkerMode::InPlace;
    let clock = Clock::Virtual(Arc::new(AtomicU64::new(1)));
    let host = Host::with_ports(&options, clock, vec![vec![Box::new(port)]]).expect("a host");
    let config = Config { socket: path, ..config };
    let why = Server::bind(&config, host, None).err().expect("refused");
    assert_eq!(why, "the descriptor 1048575 of end_with_fd is not open");
}

#[test]
fn an_mtu_without_room_for_a_packet_is_reported() {
    let sentence = small_mtu("burst0", 290).expect("too small");
    assert!(sentence.contains("burst0 is 290") && sentence.contains("needs 348"), "{sentence}");
    assert!(small_mtu("burst0", 347).is_some() && small_mtu("burst0", 348).is_none());
}

/// A hold of many regions goes on by itself, and what the program has sent behind it waits for its reply.
#[test]
fn a_request_of_many_steps_is_answered_after_the_last_and_before_the_next_request() {
    const REGIONS: u32 = 700;
    let path = std::env::temp_dir().join(format!("burstd-steps-{}.sock", std::process::id()));
    let mut server = server_with(&path, WorkerMode::Threads);
    // Before the server looks: it ends without clients.
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    connect(&client, &SocketAddrUnix::new(&path).expect("an address")).expect("connected");
    let kinds = std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            let region =
                |pd| Request::RegMr { pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
            let (mut number, mut buffer) = (burst_control::FIRST_SEQUENCE, vec![0; MESSAGE_MAX]);
            let mut ask = |requests: &[Request]| -> Vec<Response> {
                for (number, request) in (number..).zip(requests) {
                    frame::send(&client, number, request, &[], SendFlags::empty()).expect("sent");
                }
                number += requests.len() as u32;
                let mut receive = |_| {
                    let packet =
                        frame::receive(&client, &mut buffer, RecvFlags::empty(), &mut Vec::new()).expect("a reply");
                    packet.decode::<Reply>().expect("a reply").result.expect("no refusal")
                };
                (0..requests.len()).map(&mut receive).collect()
            };
            ask(&[Request::Hello { program: "test".into() }, Request::OpenContext { device: 0 }]);
            let Response::Handle(pd) = ask(&[Request::AllocPd])[0] else { panic!("no protection domain") };
            (0..REGIONS).for_each(|_| drop(ask(&[region(pd)])));
            let hold = |hold| Request::HoldMemory { hold, in_place: false };
            ask(&[hold(true), Request::DaemonInfo, hold(false), Request::DaemonInfo])
        });
        server.serve().expect("served");
        client.join().expect("replies")
    });
    let is = |reply: &Response| matches!(reply, Response::Daemon(_));
    assert_eq!(kinds.iter().map(is).collect::<Vec<_>>(), [false, true, false, true], "{kinds:?}");
}
