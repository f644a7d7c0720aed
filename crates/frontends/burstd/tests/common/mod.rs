//! A daemon on the loopback interface, and programs that send control messages to it.
#![allow(dead_code)] // each test file uses its own part

use burst_base::verbs::QpType;
use burst_control::cm::{CmAddr, CmCommand, CmData, CmEvent, CmEventKind, CmId, CmReply, ConnParam, PortSpace};
use burst_control::{Client, CommandSender, Request, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A daemon of one test, killed at the end of the test.
pub struct Daemon {
    child: Child,
    pub socket: PathBuf,
}

impl Daemon {
    /// Serves `lo` with `workers`.
    pub fn start(name: &str, workers: usize) -> Daemon {
        Daemon::start_by(Command::new(env!("CARGO_BIN_EXE_burstd")), name, workers)
    }

    /// The same by `command`, which runs the daemon with the arguments that are added here.
    pub fn start_by(mut command: Command, name: &str, workers: usize) -> Daemon {
        let socket = std::env::temp_dir().join(format!("burstd-{name}-{}.sock", std::process::id()));
        // Every daemon has an address of its own: tests run at the same time, and there is one UDP port.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let port = format!("udp:dev=lo,addr=127.{}.{}.{}", 64 + process / 250 % 128, process % 250, number + 2);
        let mut child = command
            .arg("--socket")
            .arg(&socket)
            .args(["--port", &port, "--workers", &workers.to_string(), "--ready-fd", "1"])
            .args(["--log-level", "warn"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("burstd starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Daemon { child, socket }
    }

    pub fn program(&self) -> Program {
        let mut client = Client::connect(&self.socket, "test").expect("connects");
        let mut fds = client.call(&Request::CmChannel { channel: 1 }, &[]).expect("channel").fds;
        let sender = client.command_sender().expect("a command ring");
        Program { client, sender, events: fds.remove(0), next: 0 }
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.socket, "test").expect("connects")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A program with one event channel.
pub struct Program {
    pub client: Client,
    sender: CommandSender,
    pub events: OwnedFd,
    next: CmId,
}

impl Program {
    pub fn new_id(&mut self, ps: PortSpace, qp_type: QpType) -> CmId {
        self.next += 1;
        let id = self.next;
        assert_eq!(self.op(CmCommand::Create { id, channel: 1, ps, qp_type }), CmReply::Done);
        id
    }

    /// Number of ids created so far.
    pub fn ids(&self) -> u32 {
        self.next
    }

    pub fn ops(&mut self, ops: Vec<CmCommand>) -> Vec<CmReply> {
        match self.client.call(&Request::Cm { commands: ops }, &[]).expect("call").response {
            Response::Cm(replies) => replies,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn op(&mut self, op: CmCommand) -> CmReply {
        self.ops(vec![op]).remove(0)
    }

    pub fn errno(&mut self, op: CmCommand) -> i32 {
        match self.op(op) {
            CmReply::Failed { errno, .. } => errno,
            other => panic!("should fail: {other:?}"),
        }
    }

    pub fn without_reply(&mut self, ops: Vec<CmCommand>) {
        assert!(self.sender.send(&ops).expect("sent"), "the command ring is full");
    }

    /// The next event, which must come.
    pub fn event(&self) -> CmEvent {
        self.event_within(10).expect("an event in time")
    }

    pub fn event_within(&self, seconds: i64) -> Option<CmEvent> {
        let mut fds = [PollFd::new(&self.events, PollFlags::IN)];
        // In pieces: a machine that stands still for a while uses up one piece only.
        let piece = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
        if (0..4 * seconds).all(|_| poll(&mut fds, Some(&piece)).expect("poll") == 0) {
            return None;
        }
        let mut record = [0; CmEvent::BYTES];
        assert_eq!(rustix::io::read(&self.events, &mut record), Ok(CmEvent::BYTES), "records are whole");
        Some(CmEvent::from_bytes(&record).expect("an event"))
    }

    pub fn expect(&self, kind: CmEventKind, id: CmId) -> CmEvent {
        let event = self.event();
        assert_eq!((event.kind, event.id), (kind, id), "{event:?}");
        event
    }

    /// Makes an id that is bound and listens.
    pub fn listen(&mut self, ps: PortSpace, addr: CmAddr, backlog: u32) -> CmId {
        let id = self.new_id(ps, if ps == PortSpace::Udp { QpType::Ud } else { QpType::Rc });
        assert!(matches!(self.op(CmCommand::Bind { id, addr }), CmReply::Route(_)));
        assert!(matches!(self.op(CmCommand::Listen { id, backlog }), CmReply::Route(_)));
        id
    }

    /// Makes an id, resolves the destination and sends the request.
    pub fn connect(&mut self, ps: PortSpace, dst: CmAddr, param: ConnParam, data: CmData) -> CmId {
        let id = self.new_id(ps, if ps == PortSpace::Udp { QpType::Ud } else { QpType::Rc });
        let replies = self.ops(vec![
            CmCommand::ResolveAddr { id, src: None, dst, timeout_ms: 1000 },
            CmCommand::ResolveRoute { id, timeout_ms: 1000 },
            CmCommand::Connect { id, qp: None, param, data },
        ]);
        assert!(matches!(replies[..], [CmReply::Route(_), CmReply::Route(_), CmReply::Done]), "{replies:?}");
        assert_eq!(self.expect(CmEventKind::AddrResolved, id).status, 0);
        self.expect(CmEventKind::RouteResolved, id);
        id
    }
}

pub fn addr(ip: &str, port: u16) -> CmAddr {
    CmAddr { ip: ip.parse().expect("ip"), port, scope: 0 }
}

pub fn param(qpn: u32) -> ConnParam {
    ConnParam {
        qpn,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}
