//! Packet I/O benchmark: Gbit/s and Mpps of the `udp` and `packet` ports, one sending and one receiving thread, compared in the
//! same run with plain UDP_SEGMENT/UDP_GRO sockets that make no packets and no ICRC.
//!
//! ```text
//! cargo run --release -p burst-port --example pktbench -- [lo|veth] [seconds] [rounds] [payload,...]
//! ```
//! `veth` (default; needs root) makes two network namespaces that end with the process. Methods take turns within each
//! round; the table gives medians. The sender keeps at most a window of bytes on the way, so nothing is lost.
//! `tx ns` and `rx ns` are processor time per packet of the turns that did something (on veth the sender's includes the
//! kernel's receive path); `capacity` is the rate that the slower side would reach with a processor of its own: the
//! figure to compare on a busy machine.
//! - `plain`: one iovec per train, nothing computed: what the kernel can do
//! - `no-icrc`: the port, ICRC off
//! - `icrc`: the port as it is used
//! - `packet`: the `packet` port (on veth only, needs root)

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::{Encapsulation, Port, PortSpec, RxSink};
use burst_span::Span;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a BTH, the head of most packets of a WRITE.
const HEAD: usize = 12;
const TRAILER: usize = 4;
const WINDOW_BYTES: u64 = 768 << 10;
const BATCH: usize = 64;
const EVENTS_EVERY: u32 = 16;
const STALL: Duration = Duration::from_millis(200);
/// Bytes of the application's buffer from which the sender takes payload.
const AREA: usize = 1 << 20;
const PORT: u16 = 4791;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Method {
    Plain,
    NoIcrc,
    Icrc,
    Packet,
}
const METHODS: [(Method, &str); 4] =
    [(Method::Plain, "plain"), (Method::NoIcrc, "no-icrc"), (Method::Icrc, "icrc"), (Method::Packet, "packet")];

struct Shared {
    stop: AtomicBool,
    received: AtomicU64,
    barrier: Barrier,
}

#[derive(Clone)]
struct Setup {
    veth: bool,
    seconds: f64,
    payload: usize,
    method: Method,
}

#[derive(Default)]
struct Count<'a> {
    frames: u64,
    bytes: u64,
    dropped: u64,
    received: Option<&'a AtomicU64>,
}

impl RxSink for Count<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.frames += 1;
        self.bytes += (frame.bytes.len() - HEAD) as u64;
    }
    fn dropped(&mut self, reason: Reason) {
        self.dropped += 1;
        if self.dropped == 1 {
            eprintln!("dropped: {reason}");
        }
    }
}

fn main() {
    // Priority over other logins on a shared machine: `nice` alone acts within the login's autogroup only.
    let _ = std::fs::write("/proc/self/autogroup", "-15");
    let args: Vec<String> = std::env::args().skip(1).collect();
    let veth = args.first().is_none_or(|a| a != "lo");
    let seconds: f64 = args.get(1).map_or(0.5, |a| a.parse().expect("seconds"));
    let rounds: usize = args.get(2).map_or(3, |a| a.parse().expect("rounds"));
    let payloads = args.get(3).map_or("4096,1024,64".to_owned(), String::clone);
    let only = args.get(4).cloned();
    println!("{} {seconds} s, median of {rounds}", if veth { "veth" } else { "lo" });
    println!(" payload   method     Gbit/s     Mpps    tx ns    rx ns   capacity    ratio");
    for payload in payloads.split(',').map(|p| p.parse::<usize>().expect("payload sizes")) {
        let mut rates = [vec![], vec![], vec![], vec![]];
        for _ in 0..rounds {
            for (at, (method, name)) in METHODS.into_iter().enumerate() {
                if only.as_ref().is_none_or(|o| o == name) && (veth || method != Method::Packet) {
                    rates[at].push(measure(Setup { veth, seconds, payload, method }));
                }
            }
        }
        let median = |at: usize, of: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = rates[at].iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let bits = payload as f64 * 8.0;
        let capacity = |at: usize| bits / median(at, |s| s.tx_ns.max(s.rx_ns));
        for (at, (_, name)) in METHODS.iter().enumerate() {
            let (rate, tx, rx) = (median(at, |s| s.rate), median(at, |s| s.tx_ns), median(at, |s| s.rx_ns));
            print!("{payload:>8} {name:>8} {:>10.2} {:>8.3} {tx:>8.0} {rx:>8.0}", rate * 8e-9, rate * 8e-6 / bits);
            println!(" {:>10.2} {:>8.2}", capacity(at), capacity(at) / capacity(0));
        }
    }
}

/// Received payload bytes per second, and nanoseconds of processor time per packet.
struct Sample {
    rate: f64,
    tx_ns: f64,
    rx_ns: f64,
}

fn measure(setup: Setup) -> Sample {
    let shared =
        Arc::new(Shared { stop: AtomicBool::new(false), received: AtomicU64::new(0), barrier: Barrier::new(2) });
    let (tid_in, tid) = std::sync::mpsc::channel();
    let (rx_setup, rx_shared) = (setup.clone(), shared.clone());
    let receiver = thread::spawn(move || {
        pin(1);
        if rx_setup.veth {
            new_namespace();
            // SAFETY: no arguments, no effect.
            tid_in.send(unsafe { libc::gettid() }).unwrap();
            rx_shared.barrier.wait();
            ip("addr add 10.78.0.2/24 dev pvb");
            ip("link set pvb mtu 9000 up");
        }
        receive(&rx_setup, &rx_shared)
    });
    let sender = thread::spawn(move || {
        pin(0);
        if setup.veth {
            new_namespace();
            ip("link add pva type veth peer name pvb");
            ip(&format!("link set pvb netns {}", tid.recv().unwrap()));
            ip("addr add 10.78.0.1/24 dev pva");
            ip("link set pva mtu 9000 up");
            shared.barrier.wait();
        }
        send(&setup, &shared)
    });
    let tx_ns = sender.join().unwrap();
    let [rate, rx_ns] = receiver.join().unwrap();
    Sample { rate, tx_ns, rx_ns }
}

fn addresses(setup: &Setup) -> (IpAddr, IpAddr) {
    let (a, b) = if setup.veth { ("10.78.0.1", "10.78.0.2") } else { ("127.0.0.1", "127.0.0.2") };
    (a.parse().unwrap(), b.parse().unwrap())
}

fn open(setup: &Setup, dev: &str, addr: IpAddr) -> Box<dyn Port> {
    let dev = if setup.veth { dev } else { "lo" };
    let icrc = if setup.method == Method::NoIcrc { ",no_icrc" } else { "" };
    let kind = if setup.method == Method::Packet { "packet" } else { "udp" };
    let spec = PortSpec::parse(&format!("{kind}:dev={dev},addr={addr}{icrc}")).unwrap();
    burst_port::open(&spec, &Encapsulation::ROCE).unwrap()
}

/// Processor time of this thread, in nanoseconds.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result lives during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn receive(setup: &Setup, shared: &Shared) -> [f64; 2] {
    let (_, dst) = addresses(setup);
    let mut start = None;
    let mut count = Count { received: Some(&shared.received), ..Count::default() };
    let (mut first, mut last) = (0, Instant::now());
    let mut turn: Box<dyn FnMut(&mut Count<'_>)> = if setup.method == Method::Plain {
        let socket = plain_socket(dst);
        let mut buffer = vec![0u8; 65_536];
        let packet = (setup.payload + HEAD + TRAILER) as u64;
        Box::new(move |count| {
            if let Ok((n, _)) = socket.recv_from(&mut buffer) {
                let packets = (n as u64).div_ceil(packet);
                count.frames += packets;
                count.bytes += packets * (packet - (HEAD + TRAILER) as u64);
                count.received.expect("set").store(count.bytes, Ordering::Release);
            }
        })
    } else {
        let mut port = open(setup, "pvb", dst);
        Box::new(move |count| {
            if port.rx_burst(Nanos(0), 256, count) > 0 {
                count.received.expect("set").store(count.bytes, Ordering::Release);
            }
        })
    };
    shared.barrier.wait();
    let mut busy_ns = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let (before, began) = (count.frames, cpu_ns());
        turn(&mut count);
        if count.frames > before {
            busy_ns += cpu_ns() - began;
            last = Instant::now();
            if start.is_none() {
                (start, first) = (Some(last), count.bytes);
            }
        }
    }
    let rate = (count.bytes - first) as f64 / last.duration_since(start.unwrap_or(last)).as_secs_f64().max(1e-9);
    [rate, busy_ns as f64 / count.frames.max(1) as f64]
}

/// Sends a batch of packets by a plain UDP socket: one iovec per train, and nothing is computed.
fn plain_turn(setup: &Setup, src: IpAddr, dst: IpAddr) -> Box<dyn FnMut()> {
    let socket = plain_socket(src);
    socket.connect((dst, PORT)).unwrap();
    let packet = setup.payload + HEAD + TRAILER;
    let train = (65_507 / packet).min(64);
    set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, packet as i32);
    let bytes: Vec<u8> = vec![7; AREA + (1 << 18)];
    let mut at = 0;
    Box::new(move || {
        let mut left = BATCH;
        while left > 0 {
            let n = left.min(train) * packet;
            at = if at > AREA { 0 } else { at };
            let _ = socket.send(&bytes[at..at + n]);
            at += n;
            left -= left.min(train);
        }
    })
}

/// Sends a batch of packets by a port.
fn port_turn(setup: &Setup, src: IpAddr, dst: IpAddr) -> Box<dyn FnMut()> {
    let payload = setup.payload;
    let area: Vec<u8> = (0..AREA).map(|i| (i * 31) as u8).collect();
    let mut at = 0;
    let mut port = open(setup, "pva", src);
    let flow = Flow { src, dst, ..Flow::default() };
    let mut batch = TxBatch::new(BATCH);
    let mut turns = 0u32;
    Box::new(move || {
        batch.clear();
        if at + BATCH * payload > AREA {
            at = 0;
        }
        for piece in area[at..at + BATCH * payload].chunks(payload) {
            // SAFETY: the closure owns the area, which outlives the call, and nothing writes to it.
            let span = unsafe { Span::local(piece.as_ptr().cast_mut(), piece.len() as u32) };
            assert!(batch.push(&flow, &[0x0a; HEAD], &[span], 0));
        }
        at += BATCH * payload;
        port.tx_burst(Nanos(0), &batch, &mut |reason| eprintln!("dropped: {reason}"));
        // Receiving lets the sender's port apply the kernel's events.
        turns += 1;
        if turns.is_multiple_of(EVENTS_EVERY) {
            port.rx_burst(Nanos(0), 1, &mut Count::default());
        }
    })
}

fn send(setup: &Setup, shared: &Shared) -> f64 {
    let (src, dst) = addresses(setup);
    // The kernel enables the queues some time after the command that sets the link up; until then it drops packets.
    let dev = if setup.veth { "pva" } else { "lo" };
    while !burst_netif::iface::find(dev).unwrap().up {
        thread::sleep(Duration::from_millis(1));
    }
    let payload = setup.payload;
    let mut turn = if setup.method == Method::Plain { plain_turn(setup, src, dst) } else { port_turn(setup, src, dst) };
    shared.barrier.wait();
    let start = Instant::now();
    let (mut busy_ns, mut packets) = (0, 0);
    let (mut sent, mut seen, mut stalled) = (0u64, 0, Instant::now());
    while start.elapsed() < Duration::from_secs_f64(setup.seconds) {
        let received = shared.received.load(Ordering::Acquire);
        if received != seen {
            (seen, stalled) = (received, Instant::now());
        }
        if sent.saturating_sub(received) < WINDOW_BYTES {
            let began = cpu_ns();
            turn();
            (busy_ns, packets) = (busy_ns + cpu_ns() - began, packets + BATCH as u64);
            sent += (BATCH * payload) as u64;
        } else if stalled.elapsed() > STALL {
            eprintln!("{} bytes lost, or the receiver got no processor for {STALL:?}", sent - received);
            (sent, stalled) = (received, Instant::now());
        } else {
            core::hint::spin_loop();
        }
    }
    thread::sleep(Duration::from_millis(5));
    shared.stop.store(true, Ordering::Relaxed);
    busy_ns as f64 / packets.max(1) as f64
}

fn plain_socket(addr: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(addr, PORT)).unwrap();
    socket.set_nonblocking(true).unwrap();
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    for option in [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
        set(&socket, libc::SOL_SOCKET, option, 4 << 20);
    }
    socket
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    // SAFETY: the option value is an int that lives during the call. Refusals only cost speed.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
}

fn pin(core: usize) {
    // SAFETY: plain data; affects this thread only. Refusals only cost steadiness.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn new_namespace() {
    // SAFETY: changes the network namespace of this thread only.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "veth needs root; try: pktbench lo");
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
