//! The kernel's own round trips, to compare verbs latency with: blocking TCP, or UDP that spins.
//!
//! ```text
//! pingpong tcp|udp serve ADDRESS:PORT
//! pingpong tcp|udp ADDRESS:PORT [ROUNDS [BYTES]]    prints {"p50_us": …, "p99_us": …, …}: half round trips
//! ```
//! TCP blocks in `read` on both ends (what a verbs program with completion events does); UDP spins on a socket that
//! does not block (what a program that polls does). The server ends when its client is done.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ROUNDS: usize = 10_000;
const BYTES: usize = 64;
const BYTES_MAX: usize = 1400;
/// Rounds before counting.
const WARM_UP: usize = 500;
/// A UDP message may be lost; nothing may hang.
const LIMIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tcp", "serve", address] => serve_tcp(address),
        ["udp", "serve", address] => serve_udp(address),
        [kind @ ("tcp" | "udp"), address, rest @ ..] => {
            let number = |i: usize, default| rest.get(i).and_then(|w| w.parse().ok()).unwrap_or(default);
            let (rounds, bytes) = (number(0, ROUNDS).max(1), number(1, BYTES).clamp(1, BYTES_MAX));
            let times = if *kind == "tcp" { ask_tcp(address, rounds, bytes) } else { ask_udp(address, rounds, bytes) };
            times.map(|t| report(kind, bytes, t))
        }
        _ => {
            eprintln!("usage: pingpong tcp|udp serve ADDRESS:PORT | pingpong tcp|udp ADDRESS:PORT [ROUNDS [BYTES]]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pingpong: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve_tcp(address: &str) -> io::Result<()> {
    let (mut peer, _) = TcpListener::bind(address)?.accept()?;
    peer.set_nodelay(true)?;
    let mut buffer = [0; BYTES_MAX];
    loop {
        match peer.read(&mut buffer)? {
            0 => return Ok(()),
            n => peer.write_all(&buffer[..n])?,
        }
    }
}

fn ask_tcp(address: &str, rounds: usize, bytes: usize) -> io::Result<Vec<Duration>> {
    let mut peer = TcpStream::connect(address)?;
    peer.set_nodelay(true)?;
    let mut buffer = vec![0; bytes];
    measure(rounds, || {
        peer.write_all(&buffer)?;
        peer.read_exact(&mut buffer)
    })
}

/// Echoes until an empty message comes.
fn serve_udp(address: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let mut buffer = [0; BYTES_MAX];
    let mut last = Instant::now();
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((0, _)) => return Ok(()),
            Ok((n, from)) => {
                socket.send_to(&buffer[..n], from)?;
                last = Instant::now();
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => check_limit(last)?,
            Err(e) => return Err(e),
        }
    }
}

fn ask_udp(address: &str, rounds: usize, bytes: usize) -> io::Result<Vec<Duration>> {
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    let mut buffer = vec![0; bytes];
    let times = measure(rounds, || {
        socket.send(&buffer)?;
        let sent = Instant::now();
        loop {
            match socket.recv(&mut buffer) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => check_limit(sent)?,
                Err(e) => return Err(e),
            }
        }
    })?;
    socket.send(&[])?;
    Ok(times)
}

fn check_limit(since: Instant) -> io::Result<()> {
    if since.elapsed() > LIMIT { Err(io::Error::from(ErrorKind::TimedOut)) } else { Ok(()) }
}

/// Times of whole round trips.
fn measure(rounds: usize, mut round: impl FnMut() -> io::Result<()>) -> io::Result<Vec<Duration>> {
    for _ in 0..WARM_UP {
        round()?;
    }
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let began = Instant::now();
        round()?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn report(kind: &str, bytes: usize, mut times: Vec<Duration>) {
    times.sort_unstable();
    let half_us = |share: f64| {
        let index = ((times.len() - 1) as f64 * share) as usize;
        times[index].as_secs_f64() * 1e6 / 2.0
    };
    println!(
        "{{\"kind\": \"{kind}\", \"bytes\": {bytes}, \"rounds\": {}, \"p50_us\": {:.3}, \"p99_us\": {:.3}}}",
        times.len(),
        half_us(0.5),
        half_us(0.99)
    );
}
