//! A held SYN under each order of what can happen to it, in virtual time: the program has an answer within the bound.

use super::RelayWorker;
use super::fuzzed_worker::FuzzedWorker;
use crate::hold::{Syn, Verdict};
use crate::message::Command;
use crate::worker::conn::Phase;
use burst_relay::{Frame, Outcome, PeerWindow};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Time between two SYNs of a program's TCP.
const SYN_RETRY_MS: u64 = 1000;
/// Time between two looks at a worker: that of its timer.
const STEP_MS: u64 = 250;
const OPEN_MS: u64 = 3000;

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    /// The peer accepts what waits for it.
    Accepts,
    /// The server refuses the peer.
    Refuses,
    /// The server does not answer the peer.
    Unreachable,
    /// The peer's process ends.
    PeerDies,
    /// The peer is there again.
    PeerReturns,
    /// The control channel breaks, and the link with it.
    ChannelBreaks,
    /// The channel is back.
    ChannelReturns,
    /// This proxy ends, and another one begins.
    ProxyDies,
    /// A second passes.
    Second,
}

use Happening::{
    Accepts, ChannelBreaks, ChannelReturns, PeerDies, PeerReturns, ProxyDies, Refuses, Second, Unreachable,
};

const ALL: [Happening; 9] =
    [Accepts, Refuses, Unreachable, PeerDies, PeerReturns, ChannelBreaks, ChannelReturns, ProxyDies, Second];

/// A program that connects to a server, and the worker in between.
struct SynCase<'a> {
    fuzzed: FuzzedWorker,
    server: &'a TcpListener,
    ends: (SocketAddr, SocketAddr),
    began: Instant,
    now_ms: u64,
    packet: u32,
    next_syn_ms: u64,
    /// Since when the bound counts.
    since_ms: u64,
    answer: Option<Verdict>,
}

impl<'a> SynCase<'a> {
    fn new(server: &'a TcpListener) -> Self {
        let ends = (([127, 0, 0, 1], 5).into(), server.local_addr().expect("bound"));
        let (fuzzed, began) = (FuzzedWorker::new(false).expect("descriptors"), Instant::now());
        let (now_ms, packet, next_syn_ms, since_ms, answer) = (0, 0, 0, 0, None);
        let mut case = Self { fuzzed, server, ends, began, now_ms, packet, next_syn_ms, since_ms, answer };
        case.step(0);
        case
    }

    /// So much time passes, at most [`STEP_MS`]; the program repeats its SYN when it is time.
    fn step(&mut self, ms: u64) {
        self.now_ms += ms;
        self.fuzzed.worker.env.timer.set = Some(self.began + Duration::from_millis(self.now_ms));
        if self.answer.is_none() && self.now_ms >= self.next_syn_ms {
            self.next_syn_ms = self.now_ms + SYN_RETRY_MS;
            self.packet += 1;
            self.fuzzed.worker.on_syn(0, Syn { packet: self.packet, client: self.ends.0, server: self.ends.1, seq: 1 });
        }
        self.fuzzed.work();
        while self.server.accept().is_ok() {}
        for (packet, verdict) in std::mem::take(&mut self.fuzzed.worker.env.decided) {
            assert!(packet <= self.packet, "a SYN that never was");
            if verdict != Verdict::Drop && self.answer.is_none() {
                self.answer = Some(verdict);
            }
        }
    }

    /// The id of the stream that waits for the peer.
    fn opening(&self) -> Option<u32> {
        let links = &self.fuzzed.worker.streams.links;
        links.iter().flat_map(|link| link.conns.iter()).find(|conn| conn.phase == Phase::Opening).map(|c| c.stream.id())
    }

    fn peer_says(&mut self, frame: &Frame<'_>) {
        if let Some(id) = self.opening() {
            let mut bytes = Vec::new();
            frame.write(id, &mut bytes);
            self.fuzzed.batch(&bytes, 0, 0);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Accepts => self.peer_says(&Frame::Accept { window: PeerWindow { address: 0, rkey: 0, len: 16384 } }),
            Refuses => self.peer_says(&Frame::End { outcome: Outcome::Refused }),
            Unreachable => {
                // The server itself is silent: without a proxy the program would wait as well.
                self.since_ms = self.now_ms;
                self.peer_says(&Frame::End { outcome: Outcome::Unreachable });
            }
            PeerDies => self.fuzzed.peer_gone(),
            PeerReturns => self.fuzzed.peer_up(),
            ChannelBreaks => self.fuzzed.worker.on_command(Command::ControlChannel { peer: 0, up: false }),
            ChannelReturns => self.fuzzed.worker.on_command(Command::ControlChannel { peer: 0, up: true }),
            ProxyDies => {
                self.fuzzed = FuzzedWorker::new(false).expect("descriptors");
                self.since_ms = self.now_ms;
            }
            Second => (0..SYN_RETRY_MS / STEP_MS - 1).for_each(|_| self.step(STEP_MS)),
        }
        self.step(if what == Second { STEP_MS } else { 10 });
    }

    /// Nothing more happens: the program has an answer within the bound, and its socket finds what the answer came from.
    fn finish(mut self, order: &[Happening]) -> Verdict {
        let bound = self.since_ms + OPEN_MS + SYN_RETRY_MS + 2 * STEP_MS;
        while self.answer.is_none() && self.now_ms <= bound {
            self.step(STEP_MS);
        }
        let answer = self.answer.unwrap_or_else(|| panic!("{order:?}: no answer after {} ms", self.now_ms));
        let owner = self.fuzzed.worker.env.syns.take_passed(self.ends);
        assert!(order.contains(&ProxyDies) || owner.is_some() == (answer == Verdict::Pass), "{order:?}: {answer:?}");
        answer
    }
}

fn server() -> TcpListener {
    let server = TcpListener::bind("127.0.0.2:0").expect("a port");
    server.set_nonblocking(true).expect("a socket");
    server
}

fn run(server: &TcpListener, order: &[Happening]) -> Verdict {
    let mut case = SynCase::new(server);
    order.iter().for_each(|what| case.happen(*what));
    case.finish(order)
}

#[test]
fn a_program_has_an_answer_within_the_bound_in_each_order_of_three() {
    let server = server();
    for first in ALL {
        for second in ALL {
            for third in ALL {
                run(&server, &[first, second, third]);
            }
        }
    }
}

#[test]
fn and_in_random_long_orders() {
    let (server, mut seed) = (server(), 7u64);
    for _ in 0..100 {
        let order: Vec<Happening> = (0..12)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ALL[(seed >> 33) as usize % ALL.len()]
            })
            .collect();
        run(&server, &order);
    }
}

#[test]
fn a_refusal_is_refused_and_what_the_peer_carries_passes() {
    let server = server();
    assert_eq!(run(&server, &[Refuses]), Verdict::Refuse);
    assert_eq!(run(&server, &[Accepts]), Verdict::Pass);
    assert_eq!(run(&server, &[Second, Second, Accepts]), Verdict::Pass);
}

#[test]
fn a_silent_peer_costs_no_more_than_open_ms() {
    let server = server();
    let mut case = SynCase::new(&server);
    while case.answer.is_none() {
        case.step(STEP_MS);
        assert!(case.now_ms <= OPEN_MS + 2 * STEP_MS, "{} ms", case.now_ms);
    }
    assert!(case.now_ms >= OPEN_MS, "{} ms", case.now_ms);
    assert!(case.packet > 3, "the SYN was repeated meanwhile");
}

#[test]
fn a_syn_that_leads_to_no_listener_is_refused_after_its_copies() {
    let server = server();
    let mut case = SynCase::new(&server);
    case.happen(Accepts);
    assert_eq!(case.answer.take(), Some(Verdict::Pass));
    let mut verdicts = Vec::new();
    while verdicts.last() != Some(&Verdict::Refuse) {
        (0..SYN_RETRY_MS / STEP_MS).for_each(|_| case.step(STEP_MS));
        verdicts.extend(case.answer.take());
    }
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Pass, Verdict::Refuse]);
    let RelayWorker { streams, .. } = &case.fuzzed.worker;
    assert_eq!(streams.views().count(), 0, "its stream has ended");
}
