//! The host of one address inside the program: node, UDP socket, and a thread that serves both while the program does
//! something else.

use burst_base::{Nanos, Reason};
use burst_ubwire::{Cna, UB_UDP_PORT, encap};
use burst_urma::{MemoryGone, UrmaConfig, UrmaEffects, UrmaEnv, UrmaEvent, UrmaMemory, UrmaNode};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Packets taken from the socket at once.
const BURST: usize = 64;
/// A program that has polled within this time serves the node itself.
const POLLING: Duration = Duration::from_millis(1);
/// Longest sleep of the thread.
const SLEEP_MS: i32 = 100;

/// The program's own memory. The node has checked that the range is registered.
struct OwnMemory;

impl UrmaMemory for OwnMemory {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        // SAFETY: the program has registered the range, and keeps it mapped until it deregisters it; bytes may change
        // meanwhile, as with an adapter.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        let Some((last, head)) = bytes.split_last() else { return Ok(()) };
        // SAFETY: as in `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), addr as *mut u8, head.len());
            // Programs poll the last byte: it appears after the others. Pairs with their load.
            let at = (addr as usize + head.len()) as *mut std::sync::atomic::AtomicU8;
            (*at).store(*last, Ordering::Release);
        }
        Ok(())
    }
    fn update(&mut self, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        // SAFETY: as in `read`; the node has checked that the address is a multiple of eight.
        let word = unsafe { &*(addr as *const AtomicU64) };
        let mut old = word.load(Ordering::Acquire);
        while let Err(now) = word.compare_exchange(old, change(old), Ordering::AcqRel, Ordering::Acquire) {
            old = now;
        }
        Ok(old)
    }
}

/// An event channel of completions: its queues with news. The descriptor is an eventfd.
#[derive(Default)]
pub struct ChannelNews {
    pub fd: i32,
    pub queues: VecDeque<u32>,
}

/// What the node reports.
#[derive(Default)]
pub struct Reports {
    /// Queues that are armed, and the number of their event channel.
    armed: HashMap<u32, usize>,
    pub channels: HashMap<usize, ChannelNews>,
    pub events: VecDeque<UrmaEvent>,
    pub event_fd: i32,
    counts: HashMap<Reason, u64>,
}

fn ring(fd: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer has eight bytes. A full counter keeps the descriptor readable, so that a failure loses nothing.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

impl UrmaEffects for Reports {
    fn count(&mut self, reason: Reason) {
        *self.counts.entry(reason).or_default() += 1;
    }
    fn completion(&mut self, jfc: u32) {
        if let Some(channel) = self.armed.remove(&jfc).and_then(|number| self.channels.get_mut(&number)) {
            channel.queues.push_back(jfc);
            ring(channel.fd);
        }
    }
    fn event(&mut self, event: UrmaEvent) {
        self.events.push_back(event);
        ring(self.event_fd);
    }
}

/// What the lock covers.
pub struct Inner {
    pub node: UrmaNode,
    pub reports: Reports,
    peers: HashMap<Cna, SocketAddr>,
    buffer: Vec<u8>,
    /// Jetties that are no JFS.
    pub jetties: HashSet<u32>,
    /// The program's objects by kind of event (0 JFC, 1 JFS, 2 and 3 JFR, 4 Jetty) and number.
    pub pointers: HashMap<(u32, u32), u64>,
}

impl Inner {
    /// The entity id of a node that was heard of.
    pub fn eid_of(&self, cna: Cna) -> [u8; 16] {
        match self.peers.get(&cna).map(SocketAddr::ip) {
            Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
            Some(IpAddr::V6(v6)) => v6.octets(),
            None => [0; 16],
        }
    }
}

impl ChannelNews {
    /// Makes the descriptor readable if queues are left.
    pub fn remind(&self) {
        if !self.queues.is_empty() {
            ring(self.fd);
        }
    }
}

/// One address.
pub struct UrmaHost {
    inner: Mutex<Inner>,
    socket: UdpSocket,
    start: Instant,
    /// When the program last polled in vain.
    polled_at: AtomicU64,
    pub address: IpAddr,
}

/// The network address of a node: the last 24 bits of its IP address.
pub fn cna_of(address: IpAddr) -> Cna {
    let last = match address {
        IpAddr::V4(v4) => u32::from(v4),
        IpAddr::V6(v6) => u128::from(v6) as u32,
    };
    Cna::new(last)
}

/// Hosts of this process, by address.
static HOSTS: Mutex<Vec<Weak<UrmaHost>>> = Mutex::new(Vec::new());

impl UrmaHost {
    /// The host of an address: the present one, or a new one.
    pub fn of(address: IpAddr) -> io::Result<Arc<UrmaHost>> {
        let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|host| host.strong_count() > 0);
        if let Some(host) = hosts.iter().filter_map(Weak::upgrade).find(|host| host.address == address) {
            return Ok(host);
        }
        let host = Arc::new(UrmaHost::new(address)?);
        hosts.push(Arc::downgrade(&host));
        let weak = Arc::downgrade(&host);
        std::thread::Builder::new().name("urma".into()).spawn(move || serve(&weak))?;
        Ok(host)
    }
    fn new(address: IpAddr) -> io::Result<UrmaHost> {
        let socket = UdpSocket::bind(SocketAddr::new(address, UB_UDP_PORT))?;
        socket.set_nonblocking(true)?;
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            let bytes = 4 << 20;
            // SAFETY: the value is an int. The kernel limits it; a smaller buffer is no error.
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
        }
        let boot = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
        let mut seed = [0u8; 8];
        // SAFETY: the buffer has eight bytes.
        if unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) } != 8 {
            return Err(io::Error::last_os_error());
        }
        let mut config = UrmaConfig::new(cna_of(address), u64::from_ne_bytes(seed));
        config.incarnation = boot;
        config.mtu = payload_for(address);
        // The socket's buffer is the receiver's, of unknown size: the window stays below the usual one.
        (config.caqm, config.window_max, config.rto_base) = (false, 128 << 10, Nanos::from_ms(10));
        let node = UrmaNode::new(config);
        let buffer = vec![0; 65_536];
        let (reports, peers, jetties, pointers) = (Reports::default(), HashMap::new(), HashSet::new(), HashMap::new());
        let inner = Mutex::new(Inner { node, reports, peers, buffer, jetties, pointers });
        Ok(UrmaHost { inner, socket, start: Instant::now(), polled_at: AtomicU64::new(0), address })
    }
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64 + 1)
    }
    /// Remembers where a node is; false if its address clashes with another one's.
    pub fn learn(&self, inner: &mut Inner, address: IpAddr) -> bool {
        let place = SocketAddr::new(address, UB_UDP_PORT);
        *inner.peers.entry(cna_of(address)).or_insert(place) == place
    }
    /// Calls something of the node.
    pub fn with<R>(&self, inner: &mut Inner, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> R {
        let mut env = UrmaEnv { now: self.now(), mem: &mut OwnMemory, fx: &mut inner.reports };
        call(&mut inner.node, &mut env)
    }
    /// A poll of the program that found nothing: it has served the node, so that the thread need not.
    pub fn idle_poll(&self) {
        self.polled_at.store(self.now().0, Ordering::Relaxed);
        // Pollers that outnumber the processors would else wait for each other's time slices.
        std::thread::yield_now();
    }
    /// Takes what has arrived, handles what is due, sends what may be sent.
    pub fn turn(&self, inner: &mut Inner) {
        let mut buffer = std::mem::take(&mut inner.buffer);
        for _ in 0..BURST {
            let Ok((len, from)) = self.socket.recv_from(&mut buffer) else { break };
            let packet = match encap::open(&buffer[..len]) {
                Ok(packet) => packet,
                Err(reason) => {
                    inner.reports.count(reason);
                    continue;
                }
            };
            self.take(inner, from.ip(), packet);
        }
        if inner.node.next_deadline() <= self.now() {
            self.with(inner, |node, env| node.on_timer(env));
        }
        self.send(inner, &mut buffer);
        inner.buffer = buffer;
    }
    fn take(&self, inner: &mut Inner, from: IpAddr, packet: &[u8]) {
        // The packet's source must be the sender's own address.
        let is_its = packet.get(1..4).is_some_and(|b| cna_of(from).get().to_be_bytes()[1..] == *b);
        if !is_its || !self.learn(inner, from) {
            return inner.reports.count(Reason::UbForeign);
        }
        self.with(inner, |node, env| node.on_packet(env, packet));
    }
    fn send(&self, inner: &mut Inner, buffer: &mut [u8]) {
        while let Some(sent) = self.with(inner, |node, env| node.poll_tx(env, buffer)) {
            let len = encap::seal(buffer, sent.len);
            let Some(place) = inner.peers.get(&sent.dest) else { continue };
            if self.socket.send_to(&buffer[..len], place).is_err() {
                inner.reports.count(Reason::SendFailed);
            }
        }
    }
    /// Sends what a post has made ready.
    pub fn flush(&self, inner: &mut Inner) {
        let mut buffer = std::mem::take(&mut inner.buffer);
        self.send(inner, &mut buffer);
        inner.buffer = buffer;
    }
    /// Arms a completion queue; one that has records already reports at once.
    pub fn arm(&self, inner: &mut Inner, jfc: u32, channel: usize) {
        inner.reports.armed.insert(jfc, channel);
        if inner.node.has_completions(jfc) {
            inner.reports.completion(jfc);
        }
    }
}

/// Payload of packets that fit through the interface of an address: large ones on the loopback interface only.
fn payload_for(address: IpAddr) -> u16 {
    if address.is_loopback() { 4096 } else { 1024 }
}

/// The thread of a host; ends with it.
fn serve(host: &Weak<UrmaHost>) {
    loop {
        let Some(host) = host.upgrade() else { return };
        if host.now().0.saturating_sub(host.polled_at.load(Ordering::Relaxed)) < POLLING.as_nanos() as u64 {
            drop(host);
            std::thread::sleep(POLLING);
            continue;
        }
        let wait = {
            let mut inner = host.lock();
            host.turn(&mut inner);
            let wait = inner.node.next_deadline().since(host.now()).0.div_ceil(1_000_000);
            (wait as i64).min(i64::from(SLEEP_MS)) as i32
        };
        let mut poll = libc::pollfd { fd: host.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which lives while `host` does.
        unsafe { libc::poll(&raw mut poll, 1, wait) };
    }
}
