//! Message rate with many queue pairs: `many_queue_pairs [ROUNDS] [QPS...]`.
//!
//! SRNIC's figure 9: two hosts with 128 to 32,768 connected RC queue pairs between them, and 512-byte SENDs that go over all of
//! them in turns. Both are whole workers over the `mem` port in one process, so the time of a message holds the work of both ends
//! and no kernel. The queue pairs are used in a shuffled order, because neighbours in memory would make the caches look larger.
//!
//! The program's part is that of a program written for many connections: one line for the producer of each queue, completions
//! taken [`POLLED`] at a time, and requests to the processor for the lines of the queues that it uses next. Otherwise a third of
//! the time would be the program's.
//!
//! Prints medians of ROUNDS (5) rounds, the numbers of queue pairs in turns, as JSON: `{"message_ns": {QPS: NS}, "connect_ns":
//! {QPS: NS}, "end_ns": {QPS: NS}}`. The times are processor time of this thread: of one message; of the creation and connection
//! of both ends of one queue pair; of their end. `ROUNDS` of 0 sends one message over each queue pair, for counting instructions.
#[path = "../tests/harness/mod.rs"]
mod harness;

use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, QpCap, QpType, WrOpcode};
use burst_base::{Nanos, Qpn};
use burst_control::events::EventQueue;
use burst_port::mem::{MemConfig, pair};
use burst_shm::cq::CqConsumer;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use burst_shm::{Cqe, Sge};
use burst_span::prefetch;
use harness::{Host, request};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ptr::from_ref;
use std::sync::Arc;

const QPS: [usize; 6] = [128, 1024, 4096, 10_240, 16_384, 32_768];
const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
const MESSAGE: u32 = 512;
/// Messages of one round: each queue pair of the largest number sends four.
const MESSAGES: usize = 1 << 17;
/// Messages that are posted before the workers run.
const WINDOW: usize = 64;

/// Completions that the program takes at a time.
const POLLED: usize = 16;
/// Sends between the request for a queue's lines and its use.
const AHEAD: usize = 4;

/// The program's end of a send queue, in a line of its own.
#[repr(align(64))]
struct Sender(SqProducer, u32);

/// The program's end of a receive queue, in a line of its own.
#[repr(align(64))]
struct Receiver(RqProducer);

const _: () = assert!(size_of::<Sender>() == 64 && size_of::<Receiver>() == 64);

/// One end of all queue pairs, which share a completion queue.
struct End {
    host: Host,
    cq: CqConsumer,
    qpns: Vec<Qpn>,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    sge: Sge,
}

/// Both ends and the virtual time.
struct Fabric {
    ends: [End; 2],
    now: Nanos,
    /// Order in which the queue pairs send.
    order: Vec<u32>,
    next: usize,
}

impl End {
    fn new(mut host: Host) -> End {
        let (_, cq) = host.create_cq(4 * WINDOW as u32, Arc::new(EventQueue::default()));
        let sge = host.sge(0, MESSAGE);
        End { host, cq, qpns: Vec::new(), senders: Vec::new(), receivers: Vec::new(), sge }
    }
    fn create(&mut self) {
        let (qpn, doorbell, sq, rq) = self.host.create_on(QpType::Rc, CAP, 0);
        self.qpns.push(qpn);
        self.senders.push(Sender(sq, doorbell));
        self.receivers.push(Receiver(rq));
    }
    fn receive(&mut self, queue: usize) {
        let Receiver(rq) = &mut self.receivers[queue];
        rq.write(0, &[self.sge]).expect("room");
        let _ = rq.post();
    }
    fn send(&mut self, queue: usize) {
        let Sender(sq, doorbell) = &mut self.senders[queue];
        sq.write(&request(WrOpcode::Send, queue as u64, 0, 0), &[self.sge]).expect("room");
        if sq.post() {
            self.host.bells[0].ring(0, *doorbell);
        }
    }
    /// Sends over each of these queue pairs.
    fn send_all(&mut self, queues: &[u32]) {
        for at in 0..queues.len() + 2 * AHEAD {
            if let Some(queue) = queues.get(at) {
                prefetch(from_ref(&self.senders[*queue as usize]).cast(), size_of::<Sender>());
            }
            if let Some(queue) = at.checked_sub(AHEAD).and_then(|at| queues.get(at)) {
                self.senders[*queue as usize].0.prefetch();
            }
            if let Some(queue) = at.checked_sub(2 * AHEAD).and_then(|at| queues.get(at)) {
                self.send(*queue as usize);
            }
        }
    }
    /// Takes the completions; frees the places of sends, posts a receive in place of each that was used.
    fn poll(&mut self) -> usize {
        let (mut taken, mut cqes) = (0, [Cqe::default(); POLLED]);
        loop {
            let count = cqes.iter_mut().map_while(|cqe| self.cq.poll(cqe).then_some(())).count();
            for cqe in &cqes[..count] {
                let queue = cqe.qp_cookie as usize;
                let line: *const u8 = match cqe.is_recv {
                    0 => from_ref(&self.senders[queue]).cast(),
                    _ => from_ref(&self.receivers[queue]).cast(),
                };
                prefetch(line, size_of::<Sender>());
            }
            for cqe in cqes[..count].iter().filter(|cqe| cqe.is_recv != 0) {
                self.receivers[cqe.qp_cookie as usize].0.prefetch();
            }
            for cqe in &cqes[..count] {
                assert_eq!(cqe.status, 0, "a completion with an error");
                let queue = cqe.qp_cookie as usize;
                if cqe.is_recv == 0 {
                    self.senders[queue].0.free(cqe.sq_consumer);
                } else {
                    self.receive(queue);
                }
            }
            taken += count;
            if count < POLLED {
                return taken;
            }
        }
    }
}

impl Fabric {
    fn new(queue_pairs: usize) -> Fabric {
        let [ip_a, ip_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (pa, pb) = pair(MemConfig::default(), ip_a, ip_b);
        let [mut a, mut b] = [Host::new(Box::new(pa), 1 << 12), Host::new(Box::new(pb), 1 << 12)].map(End::new);
        let (caps_a, caps_b) = (a.host.caps.clone(), b.host.caps.clone());
        for queue in 0..queue_pairs {
            a.create();
            b.create();
            let (qa, qb) = (a.qpns[queue], b.qpns[queue]);
            a.host.connect_qpn(qa, qb, &caps_b, Mtu::B1024);
            b.host.connect_qpn(qb, qa, &caps_a, Mtu::B1024);
        }
        for queue in 0..queue_pairs {
            b.receive(queue);
        }
        let (mut order, mut rng): (Vec<u32>, _) = ((0..queue_pairs as u32).collect(), Rng::new(1));
        for at in (1..queue_pairs).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        Fabric { ends: [a, b], now: Nanos(0), order, next: 0 }
    }
    /// Sends a message over each of the next [`WINDOW`] queue pairs, and waits for all completions.
    fn send(&mut self) {
        let Fabric { ends: [a, b], now, order, next } = self;
        let mut queues = [0; WINDOW];
        for queue in &mut queues {
            *queue = order[*next];
            *next = (*next + 1) % order.len();
        }
        a.send_all(&queues);
        let (mut sent, mut received) = (0, 0);
        while sent < WINDOW || received < WINDOW {
            *now = *now + Nanos(1_000);
            a.host.worker.run_once(*now);
            b.host.worker.run_once(*now);
            sent += a.poll();
            received += b.poll();
        }
    }
    /// Ends all queue pairs, in the order of sending.
    fn end(&mut self) {
        for &queue in &self.order {
            for end in &mut self.ends {
                let ended = end.host.worker.destroy_qp(self.now, end.qpns[queue as usize], false);
                assert!(ended.is_some(), "a queue pair that is there");
            }
        }
    }
}

/// Processor time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call. rustix would read the vDSO, which valgrind hides.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of processor time that `work` takes, for each of `count`, and its result.
fn cost<T>(count: usize, work: impl FnOnce() -> T) -> (f64, T) {
    let begin = cpu_ns();
    let result = work();
    ((cpu_ns() - begin) as f64 / count as f64, result)
}

/// The medians, as the members of a JSON object.
fn json(costs: &mut BTreeMap<usize, Vec<f64>>) -> String {
    let median = |of: &mut Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    let members: Vec<String> = costs.iter_mut().map(|(qps, of)| format!("\"{qps}\": {:.1}", median(of))).collect();
    format!("{{{}}}", members.join(", "))
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|n| n.parse::<usize>().expect("a number"));
    let rounds = numbers.next().unwrap_or(5);
    let wanted: Vec<usize> = numbers.collect();
    let sizes = if wanted.is_empty() { QPS.to_vec() } else { wanted };
    let (mut connect, mut message, mut end) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut fabrics: Vec<(usize, Fabric)> = Vec::new();
    for &queue_pairs in &sizes {
        let (ns, mut fabric) = cost(queue_pairs, || Fabric::new(queue_pairs));
        connect.entry(queue_pairs).or_insert_with(Vec::new).push(ns);
        // The first message of a queue pair touches its memory for the first time.
        (0..queue_pairs.div_ceil(WINDOW)).for_each(|_| fabric.send());
        fabrics.push((queue_pairs, fabric));
    }
    for _ in 0..rounds {
        for (queue_pairs, fabric) in &mut fabrics {
            let (ns, ()) = cost(MESSAGES, || (0..MESSAGES / WINDOW).for_each(|_| fabric.send()));
            message.entry(*queue_pairs).or_insert_with(Vec::new).push(ns);
        }
    }
    for (queue_pairs, mut fabric) in fabrics {
        end.entry(queue_pairs).or_insert_with(Vec::new).push(cost(queue_pairs, || fabric.end()).0);
    }
    let [message, connect, end] = [&mut message, &mut connect, &mut end].map(json);
    println!("{{\"message_ns\": {message}, \"connect_ns\": {connect}, \"end_ns\": {end}}}");
}
