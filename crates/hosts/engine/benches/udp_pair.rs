//! Two workers on two threads over real UDP sockets on the loopback, against one TCP stream there, in one run.
//!
//! No application processes: this is what the engine and the `udp` port alone can carry. Figures are medians of three
//! rounds; compare the ratios, not the Gbit/s. `cargo bench -p burst-engine --bench udp_pair [-- SIZE…]`
#[path = "../tests/harness/mod.rs"]
// The tests use more of it than this benchmark.
mod harness;

use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_base::{DeviceId, Nanos};
use burst_port::{Encapsulation, PortSpec, open};
use harness::{BASE, Host, poll, request};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROUND: Duration = Duration::from_millis(1500);
const DEPTH: u64 = 64;
const BYTES: u32 = 8 << 20;

fn host(addr: &str) -> Host {
    let spec = PortSpec::parse(&format!("udp:dev=lo,addr={addr}")).expect("spec");
    Host::new(open(&spec, &Encapsulation::ROCE).expect("port"), BYTES)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Gbit/s of RDMA WRITEs of `size` bytes.
fn write_bandwidth(size: u32) -> f64 {
    let (mut a, mut b) = (host("127.0.0.1"), host("127.0.0.2"));
    let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B4096);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B4096);
    let rkey = b.key;
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let stopped = stop.clone();
    let responder = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            if !b.worker.run_once(Nanos(start.elapsed().as_nanos() as u64)) {
                std::thread::yield_now();
            }
        }
    });
    let slots = u64::from(BYTES / size).clamp(1, 16);
    let (mut posted, mut done) = (0u64, 0u64);
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        while posted - done < DEPTH {
            let sge = a.sge(posted % slots * u64::from(size), size);
            a.post(
                &mut qa,
                request(WrOpcode::RdmaWrite, posted, BASE + posted % slots * u64::from(size), rkey),
                &[sge],
            );
            posted += 1;
        }
        a.worker.run_once(Nanos(start.elapsed().as_nanos() as u64));
        while let Some(cqe) = poll(&mut qa) {
            assert_eq!(cqe.status, 0, "{cqe:?}");
            done += 1;
        }
    }
    let gbps = (done * u64::from(size) * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9;
    stop.store(true, Ordering::Relaxed);
    responder.join().expect("responder");
    for (name, value) in a.worker.counters(DeviceId(0)).snapshot().iter().filter(|(_, v)| *v > 0).skip(4) {
        eprintln!("    {name} {value}");
    }
    gbps
}

/// Gbit/s of one TCP stream.
fn tcp_bandwidth() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("addr");
    let reader = std::thread::spawn(move || {
        let (mut s, _) = listener.accept().expect("accept");
        let mut buffer = vec![0; 128 << 10];
        while s.read(&mut buffer).expect("read") > 0 {}
    });
    let mut s = TcpStream::connect(addr).expect("connect");
    let buffer = vec![7u8; 128 << 10];
    let (begun, mut sent) = (Instant::now(), 0u64);
    while begun.elapsed() < ROUND {
        s.write_all(&buffer).expect("write");
        sent += buffer.len() as u64;
    }
    let gbps = (sent * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9;
    drop(s);
    reader.join().expect("reader");
    gbps
}

fn main() {
    let asked: Vec<u32> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let sizes = if asked.is_empty() { vec![64, 4096, 65536, 1 << 20] } else { asked };
    let tcp = median((0..3).map(|_| tcp_bandwidth()).collect());
    println!("{:>10} {:>12} {:>12} {:>8}", "bytes", "write Gbit/s", "msg/s", "/ TCP");
    for size in sizes {
        let gbps = median((0..3).map(|_| write_bandwidth(size)).collect());
        println!("{size:>10} {gbps:>12.2} {:>12.0} {:>8.2}", gbps * 1e9 / 8.0 / f64::from(size), gbps / tcp);
    }
    println!("{:>10} {tcp:>12.2}", "TCP");
}
