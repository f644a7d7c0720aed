//! A worker for fuzz targets (`--cfg fuzzing`) and tests: a peer that the configuration lists sends it whatever the input says,
//! while programs connect, write, read and go, and descriptors run out.
//!
//! Messages come as the control thread would pass them on. There is no RDMA device, so batches come by the control channel.

use super::sockets::TcpEnd;
use super::{NetworkPlace, RelayWorker, WorkerStart};
use crate::config::{Checked, ProxyConfig};
use crate::message::{Command, Introduction, PeerUp, Report};
use crate::peer_loss::PeerLoss;
use crate::socket_owner::SocketTable;
use crate::sys::Waker;
use burst_relay::{ChannelSecret, EXPORT_BYTES, Header, LinkHello, MessageKind, PeerWindow, WindowOf};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Programs that are connected at once.
const PROGRAMS_MAX: usize = 8;
/// Bytes of memory that the worker may use.
const MEMORY: u64 = 16 << 20;

/// The worker, its peer's state, and programs.
pub struct FuzzedWorker {
    pub(super) worker: RelayWorker,
    reports: Receiver<Report>,
    wake: Arc<Waker>,
    /// The worker ends without it.
    _commands: Sender<Command>,
    programs: Vec<TcpStream>,
    /// Of batches.
    seq: u64,
    attempt: u64,
    is_up: bool,
    encrypts: bool,
    /// Ports of programs that do not exist.
    port: u16,
}

fn configuration(memory: u64) -> Checked {
    let text = format!(
        "name='a'\nlisten='127.0.0.1:7400'\nkeys='k'\nworkers=1\nwindow='16KiB'\nwindow_max='64KiB'\nmemory='{memory}'\n\
         [[peer]]\nname='b'\naddress='127.0.0.1:7401'\n[[take]]\nto=['127.0.0.2']\nports='1-65535'\n[[serve]]\nto=['127.0.0.3']\n"
    );
    ProxyConfig::parse(&text).expect("sound")
}

impl FuzzedWorker {
    /// A worker whose peer is there. `None`: no descriptors.
    pub fn new(encrypts: bool) -> Option<Self> {
        Self::with_memory(encrypts, MEMORY)
    }

    /// The same with so many bytes for streams.
    pub(super) fn with_memory(encrypts: bool, memory: u64) -> Option<Self> {
        let place = NetworkPlace {
            namespace: None,
            listeners: Vec::new(),
            queue: None,
            sockets: SocketTable::open().ok(),
            keep_alive: false,
            takes: vec![0],
            serves: vec![0],
        };
        let ((commands, from), (reports, reported)) = (channel(), channel());
        let wake = Arc::new(Waker::new().ok()?);
        let start = WorkerStart {
            number: 0,
            config: Arc::new(configuration(memory)),
            places: vec![place],
            own_namespace: Arc::new(std::fs::File::open("/proc/thread-self/ns/net").ok()?.into()),
            commands: from,
            wake: wake.clone(),
            queued: Arc::new(AtomicUsize::new(0)),
            reports,
            wake_control: Arc::new(Waker::new().ok()?),
        };
        let worker = RelayWorker::new(start).ok()?;
        let mut fuzzed = Self {
            worker,
            reports: reported,
            wake,
            _commands: commands,
            programs: Vec::new(),
            seq: 0,
            attempt: 0,
            is_up: false,
            encrypts,
            port: 1024,
        };
        fuzzed.peer_up();
        Some(fuzzed)
    }

    /// The peer introduces itself, after it was given up.
    pub fn peer_up(&mut self) {
        if self.is_up {
            return;
        }
        let serves = vec![(Ipv4Addr::new(127, 0, 0, 2).into(), 32)];
        let address = SocketAddr::from(([127, 0, 0, 1], 7401));
        let introduction = Introduction {
            version: 1,
            features: 15,
            name: "b".into(),
            session: 1,
            workers: 1,
            address,
            serves,
            draining: false,
        };
        let (secret, encrypts) = (ChannelSecret::new(&[7; EXPORT_BYTES]), self.encrypts);
        let up = PeerUp { peer: 0, introduction, dials: false, token: [0; 16], encrypts, secret };
        self.worker.on_command(Command::PeerUp(up));
        (self.is_up, self.seq, self.attempt) = (true, 0, 0);
        self.hello(0, &[]);
    }

    /// The peer's hello for the next attempt, by the control channel.
    pub fn hello(&mut self, received: u64, windows: &[(u32, u64, u32)]) {
        self.attempt += 1;
        let window = |(stream, address, len): &(u32, u64, u32)| WindowOf {
            stream: *stream,
            window: PeerWindow { address: *address, rkey: 1, len: (*len).max(1) },
        };
        let hello = LinkHello {
            link: 0,
            attempt: self.attempt,
            received,
            windows: windows.iter().map(window).collect(),
            seal: None,
        };
        // What the control thread reads of its bytes.
        let bytes = hello.to_bytes();
        let read = Header::read(&bytes).and_then(|(header, body)| LinkHello::read(header, body));
        if let Ok(hello) = read {
            self.worker.on_command(Command::LinkHello { peer: 0, by_channel: true, hello });
        }
    }

    /// A batch of any frames. `ack` is what it acknowledges, `seq` how far its number is from the next one.
    pub fn batch(&mut self, frames: &[u8], ack: u64, skip: u64) {
        self.seq += 1 + skip;
        let mut bytes = vec![0; burst_relay::HEADER_BYTES];
        Header { kind: MessageKind::Batch, seq: self.seq, ack }.write(&mut bytes);
        bytes.extend(frames);
        self.message(bytes);
    }

    /// Bytes that should be a batch.
    pub fn message(&mut self, bytes: Vec<u8>) {
        self.worker.on_command(Command::Batch { peer: 0, link: 0, attempt: self.attempt, bytes });
    }

    /// What else the control thread passes on.
    pub fn event(&mut self, kind: u8) {
        let command = match kind % 6 {
            0 => Command::ControlChannel { peer: 0, up: false },
            1 => Command::ControlChannel { peer: 0, up: true },
            2 => Command::Rdma { peer: 0, worker: 0, at: None },
            3 => Command::Broken { peer: 0, link: 0, attempt: self.attempt },
            4 => Command::PeerDraining(0),
            _ => Command::BreakQueuePairs,
        };
        self.worker.on_command(command);
    }

    /// A program connects to a server of the peer.
    pub fn connect(&mut self) {
        if self.programs.len() >= PROGRAMS_MAX {
            return;
        }
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return };
        let Ok(program) = listener.local_addr().and_then(TcpStream::connect) else { return };
        let Ok((accepted, _)) = listener.accept() else { return };
        let nonblocking = accepted.set_nonblocking(true).and(program.set_nonblocking(true));
        let accepted = OwnedFd::from(accepted);
        if nonblocking.is_err() || super::sockets::prepare(&accepted).is_err() {
            return;
        }
        self.port = self.port.wrapping_add(1).max(1024);
        let ends = (([127, 0, 0, 1], self.port).into(), ([127, 0, 0, 2], 9).into());
        let RelayWorker { streams, pairs, env, .. } = &mut self.worker;
        let owner = env.shares.owner_of(&env.places, 0, ends);
        let Some(charges) = env.shares.connection(owner) else { return };
        let taken = TcpEnd { place: 0, socket: Some(accepted), ends, charges };
        let left = match streams.links.choose(ends.1) {
            Ok(link) => streams.open(env, link, taken),
            Err(why) => Err((taken, why)),
        };
        if let Err(by_tcp) = left {
            pairs.relay(env, by_tcp);
        }
        self.programs.push(program);
    }

    /// A program writes, reads, or goes.
    pub fn program(&mut self, which: usize, action: u8, count: usize) {
        let Some(program) = self.programs.get_mut(which) else { return };
        let mut bytes = vec![action; count.min(1 << 17)];
        // A program's own failures are no concern of the worker.
        match action % 4 {
            0 | 1 => drop(program.write(&bytes)),
            2 => drop(program.read(&mut bytes)),
            _ => drop(self.programs.swap_remove(which)),
        }
    }

    /// Some passes of the worker; then what the control thread would do with its reports.
    pub fn work(&mut self) {
        // `Poll::wait` fills what room there is.
        let mut events = Vec::with_capacity(super::EVENTS_MAX);
        for _ in 0..3 {
            self.wake.wake();
            assert!(self.worker.pass(&mut events).is_ok_and(|goes_on| goes_on), "the worker ends");
        }
        while let Ok(report) = self.reports.try_recv() {
            if let Report::PeerFault(..) = report {
                self.is_up = false;
            }
        }
        let snapshot = self.worker.snapshot();
        let memory: u64 = snapshot.links.iter().map(|link| link.memory).sum();
        assert!(memory <= MEMORY, "{memory} bytes");
    }

    /// Lets the process have so many descriptors more; `None`: as many as there may be.
    pub fn limit_descriptors(more: Option<u64>) {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = more.map(|more| open() + more).or(maximum);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("below the hard limit");
    }

    /// The peer's process ends.
    pub(super) fn peer_gone(&mut self) {
        self.worker.on_command(Command::PeerGone { peer: 0, why: PeerLoss::Ended });
        self.is_up = false;
    }

    /// The peer goes, and the programs: nothing is left of them.
    pub fn end(mut self) {
        self.peer_gone();
        self.programs.clear();
        self.work();
        self.work();
        let snapshot = self.worker.snapshot();
        assert!(snapshot.links.is_empty(), "{:?}", snapshot.links);
        assert!(snapshot.streams.iter().all(|stream| stream.peer.is_empty()), "{:?}", snapshot.streams);
    }
}

/// Reads a configuration and a directory of peers: nothing panics, a refusal is one line, and what is accepted lies within the
/// limits.
pub fn configurations(text: &str) {
    match ProxyConfig::parse(text) {
        Ok(checked) => {
            assert!((1..=crate::config::WORKERS_MAX).contains(&checked.workers));
            assert!(
                checked.window % 4096 == 0 && checked.window <= checked.window_max && checked.window_max <= 64 << 20
            );
            assert!(
                checked
                    .takes
                    .iter()
                    .all(|(prefixes, ports)| !prefixes.is_empty() && ports.len() <= crate::config::RANGES)
            );
        }
        Err(why) => assert!(!why.is_empty()),
    }
    if let Err(why) = crate::config::directory(text) {
        assert!(!why.is_empty());
    }
}
