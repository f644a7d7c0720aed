//! Programs that copy between a staging area and a device: late and in steps, all by seed; programs that lie, fail or stop.

use crate::harness::{AppQp, BASE, CAP, DEVICE_BASE, Host, poll, request};
use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, QpCap, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Reason};
use burst_control::events::EventPipe;
use burst_engine::copiers::{Copier, TRAILING_MAX};
use burst_mem::DeviceNumber;
use burst_port::impair::Impair;
use burst_port::mem::{MemConfig, pair};
use burst_port::spec::{ImpairSpec, Ppm};
use burst_shm::Sge;
use burst_shm::arena::Segment;
use burst_shm::copy_ring::{CopyDirection, CopyRingConsumer, CopyRingProducer};
use std::net::IpAddr;
use std::sync::Arc;

const BYTES: usize = 1 << 18;
/// Bytes of a request.
const MOST: u64 = 40_000;

/// The program's end: a device, and the ring.
struct Program {
    device: Vec<u8>,
    ring: CopyRingConsumer,
    rng: Rng,
    /// Whether it copies.
    works: bool,
}

impl Program {
    /// Opens a copier for the context of `host`, with the memory of a device, whose key is returned.
    fn open(host: &mut Host, seed: u64) -> (Program, u32) {
        let (segment, producer) = CopyRingProducer::create().expect("a ring");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        let ring = CopyRingConsumer::new(Segment::map(fd).expect("mapped")).expect("large enough");
        let number = DeviceNumber::new(host.context).expect("a number");
        host.worker.add_copier(host.context, Copier::new(number, producer).expect("memory")).expect("memory");
        let key = host.add_device_region(number, BYTES as u64);
        (Program { device: vec![0; BYTES], ring, rng: Rng::new(seed), works: true }, key)
    }

    /// Carries out some copies, perhaps none.
    fn step(&mut self) {
        for _ in 0..self.rng.below(4) {
            if !self.works {
                return;
            }
            let Some(record) = self.ring.take().expect("a record") else { return };
            let (at, len) = ((record.device - DEVICE_BASE) as usize, record.len as usize);
            let bytes = &mut self.device[at..at + len];
            let staged = self.ring.staging().wrapping_add(record.offset as usize);
            // SAFETY: inside the staging area, as `take` has checked; the worker runs in this thread.
            unsafe {
                match record.direction {
                    CopyDirection::ToDevice => bytes.copy_from_slice(std::slice::from_raw_parts(staged, len)),
                    CopyDirection::FromDevice => std::slice::from_raw_parts_mut(staged, len).copy_from_slice(bytes),
                }
            }
            self.ring.end(record.ticket);
        }
    }
}

/// Two hosts, each with a program that copies.
struct Pair {
    hosts: [Host; 2],
    programs: [Program; 2],
    keys: [u32; 2],
    qps: [AppQp; 2],
    now: Nanos,
}

impl Pair {
    fn new(seed: u64, loss: u32) -> Pair {
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, a, b);
        let spec = |seed| ImpairSpec { loss: Ppm(loss), seed, ..ImpairSpec::default() };
        let pa = Impair::new(Box::new(pa), spec(seed + 1));
        let pb = Impair::new(Box::new(pb), spec(seed + 2));
        let mut hosts = [Host::new(Box::new(pa), 1 << 16), Host::new(Box::new(pb), 1 << 16)];
        // One queue pair is older than the copier, the other one is newer.
        let first = hosts[0].create(QpType::Rc);
        let [(pa, ka), (pb, kb)] = [0, 1].map(|at| Program::open(&mut hosts[at], seed + 3 + at as u64));
        let mut qps = [first, hosts[1].create(QpType::Rc)];
        let pair = |hosts: &mut [Host; 2], qps: &mut [AppQp; 2], at: usize| {
            let caps = hosts[1 - at].caps.clone();
            let peer = qps[1 - at].qpn;
            hosts[at].connect(&qps[at], peer, &caps, Mtu::B1024);
        };
        pair(&mut hosts, &mut qps, 0);
        pair(&mut hosts, &mut qps, 1);
        Pair { hosts, programs: [pa, pb], keys: [ka, kb], qps, now: Nanos(0) }
    }

    fn sge(&self, at: usize, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.keys[at] }
    }

    /// Runs passes and programs until `done`; false after 60 seconds of simulated time.
    fn run(&mut self, mut done: impl FnMut(&mut [AppQp; 2]) -> bool) -> bool {
        let end = self.now + Nanos::from_ms(60_000);
        while self.now < end {
            let mut busy = false;
            for at in 0..2 {
                busy |= self.hosts[at].worker.run_once(self.now);
                self.programs[at].step();
                busy |= self.programs[at].works && self.hosts[at].worker.has_work();
            }
            if done(&mut self.qps) {
                return true;
            }
            let next = self.hosts.iter().map(|host| host.worker.next_deadline()).min().expect("two");
            self.now =
                if busy || next <= self.now { self.now + Nanos(1_000) } else { next.min(self.now + Nanos(20_000)) };
        }
        false
    }

    fn run_passes(&mut self, passes: u32) {
        let mut passed = 0;
        self.run(|_| {
            passed += 1;
            passed == passes
        });
    }

    /// One request of host 0, from its device to the other, or back; the bytes are compared when it has completed.
    fn request(&mut self, rng: &mut Rng, number: u64) {
        let (len, from, into) =
            (rng.below(MOST) as usize + 1, rng.below(1 << 17) as usize, rng.below(1 << 17) as usize);
        let opcode = [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead][rng.below(3) as usize];
        let source = usize::from(opcode == WrOpcode::RdmaRead);
        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        self.programs[source].device[from..from + len].copy_from_slice(&bytes);
        let (near, far) = if source == 0 { (from, into) } else { (into, from) };
        if opcode == WrOpcode::Send {
            let sge = self.sge(1, far as u64, len as u32);
            self.qps[1].rq.write(number, &[sge]).expect("room");
            let _ = self.qps[1].rq.post();
        }
        // In two entries, which meet inside a packet.
        let cut = rng.below(len as u64) as usize;
        let entries = [self.sge(0, near as u64, cut as u32), self.sge(0, (near + cut) as u64, (len - cut) as u32)];
        let wqe = request(opcode, number, BASE + far as u64, self.keys[1]);
        self.hosts[0].post(&mut self.qps[0], wqe, &entries);
        let mut left = 1 + usize::from(opcode == WrOpcode::Send);
        let done = self.run(|qps| {
            for qp in qps {
                while let Some(cqe) = poll(qp) {
                    assert_eq!((cqe.status, cqe.wr_id), (WcStatus::Success as u8, number), "{opcode:?}");
                    left -= 1;
                }
            }
            left == 0
        });
        assert!(done, "request {number}, {opcode:?} of {len} bytes, has no end");
        assert!(self.programs[1 - source].device[into..into + len] == bytes, "request {number}, {opcode:?} of {len}");
    }
}

#[test]
fn bytes_between_devices_are_there_when_requests_complete() {
    // BURST_SEEDS: how many.
    let seeds = std::env::var("BURST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, if seed % 2 == 0 { 0 } else { 10_000 });
        (0..40).for_each(|number| pair.request(&mut rng, number));
    }
}

#[test]
fn a_program_that_stops_or_lies_ends_its_own_queue_pairs_only() {
    for lie in 0..4 {
        let mut pair = Pair::new(7, 0);
        // A program without a device, at the same workers.
        let bystanders = [0, 1].map(|at| pair.hosts[at].create(QpType::Rc));
        for at in 0..2 {
            let caps = pair.hosts[1 - at].caps.clone();
            pair.hosts[at].connect(&bystanders[at], bystanders[1 - at].qpn, &caps, Mtu::B1024);
        }
        let [mut near, far] = bystanders;
        pair.programs[1].works = false;
        let entry = pair.hosts[0].sge(0, 5000);
        for number in 0..4 {
            let wqe = request(WrOpcode::RdmaWrite, number, BASE, pair.keys[1]);
            pair.hosts[0].post(&mut pair.qps[0], wqe, &[entry]);
        }
        let mut ended = Vec::new();
        let step = |pair: &mut Pair, ended: &mut Vec<u8>| {
            let mut passes = 0;
            pair.run(|qps| {
                ended.extend(std::iter::from_fn(|| poll(&mut qps[0])).map(|cqe| cqe.status));
                passes += 1;
                passes == 2000
            });
        };
        step(&mut pair, &mut ended);
        assert_eq!(ended, [], "nothing is acknowledged before its copies");
        let ring = &pair.programs[1].ring;
        match lie {
            0 => ring.end(u64::MAX),
            1 => ring.fail(u64::MAX),
            2 => ring.fail(1),
            _ => ring.end(0),
        }
        step(&mut pair, &mut ended);
        let (success, refused) = (WcStatus::Success as u8, WcStatus::RemOpErr as u8);
        match lie {
            0 => assert_eq!(ended, [success; 4], "its own loss"),
            1 | 2 => assert_eq!(ended.first(), Some(&refused), "{ended:?}"),
            _ => assert_eq!(ended, []),
        }
        let wqe = request(WrOpcode::RdmaWrite, 9, BASE, pair.hosts[1].key);
        pair.hosts[0].post(&mut near, wqe, &[entry]);
        let done = pair.run(|_| poll(&mut near).is_some_and(|cqe| cqe.status == success));
        assert!(done, "the bystander's request, lie {lie}");
        drop(far);
    }
}

#[test]
fn as_many_queue_pairs_wait_as_are_charged() {
    let mut pair = Pair::new(9, 0);
    pair.programs[1].works = false;
    let mut more = Vec::new();
    for _ in 0..TRAILING_MAX + 8 {
        let mut ends = [0, 1].map(|at| pair.hosts[at].create(QpType::Rc));
        for at in 0..2 {
            let caps = pair.hosts[1 - at].caps.clone();
            pair.hosts[at].connect(&ends[at], ends[1 - at].qpn, &caps, Mtu::B1024);
        }
        let entry = pair.hosts[0].sge(0, 100);
        let wqe = request(WrOpcode::RdmaWrite, 1, BASE, pair.keys[1]);
        pair.hosts[0].post(&mut ends[0], wqe, &[entry]);
        more.push(ends);
    }
    let mut passes = 0;
    pair.run(|_| {
        passes += 1;
        passes == 500
    });
    let late = pair.hosts[1].worker.counters(DeviceId(0)).reason(Reason::PageLate);
    assert!(late >= 8, "{late} requests of {} found no room", TRAILING_MAX + 8);
    // They are repeated.
    pair.programs[1].works = true;
    let mut done = vec![false; more.len()];
    let all = pair.run(|_| {
        for (at, ends) in more.iter_mut().enumerate() {
            while let Some(cqe) = poll(&mut ends[0]) {
                assert_eq!(cqe.status, WcStatus::Success as u8);
                done[at] = true;
            }
        }
        done.iter().all(|done| *done)
    });
    assert!(all, "{done:?}");
}

#[test]
fn more_queue_pairs_send_from_a_device_than_are_noted() {
    let mut pair = Pair::new(11, 10_000);
    let mut more = Vec::new();
    for _ in 0..2 * TRAILING_MAX + 3 {
        let ends = [0, 1].map(|at| pair.hosts[at].create(QpType::Rc));
        for at in 0..2 {
            let caps = pair.hosts[1 - at].caps.clone();
            pair.hosts[at].connect(&ends[at], ends[1 - at].qpn, &caps, Mtu::B1024);
        }
        more.push(ends);
    }
    let mut rng = Rng::new(1);
    pair.programs[0].device.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
    let entry = pair.sge(0, 0, 30_000);
    for ends in &mut more {
        let wqe = request(WrOpcode::RdmaWrite, 1, BASE, pair.keys[1]);
        pair.hosts[0].post(&mut ends[0], wqe, &[entry]);
    }
    let mut done = vec![false; more.len()];
    let all = pair.run(|_| {
        for (at, ends) in more.iter_mut().enumerate() {
            while let Some(cqe) = poll(&mut ends[0]) {
                assert_eq!(cqe.status, WcStatus::Success as u8);
                done[at] = true;
            }
        }
        done.iter().all(|done| *done)
    });
    assert!(all, "{} of {} ended", done.iter().filter(|done| **done).count(), done.len());
    assert!(pair.programs[0].device[..30_000] == pair.programs[1].device[..30_000]);
}

#[test]
fn a_receive_that_is_half_full_says_that_its_copy_has_failed() {
    let mut pair = Pair::new(13, 0);
    pair.programs[1].works = false;
    let (near, far) = (pair.sge(0, 0, 250_000), pair.sge(1, 0, 250_000));
    pair.qps[1].rq.write(5, &[far]).expect("room");
    let _ = pair.qps[1].rq.post();
    pair.hosts[0].post(&mut pair.qps[0], request(WrOpcode::Send, 4, 0, 0), &[near]);
    while pair.programs[1].ring.take() == Ok(None) {
        let mut passes = 0;
        pair.run(|_| {
            passes += 1;
            passes == 2
        });
    }
    pair.programs[1].ring.fail(1);
    let mut ends = Vec::new();
    let done = pair.run(|qps| {
        let ended = qps.iter_mut().flat_map(|qp| std::iter::from_fn(|| poll(qp)));
        ends.extend(ended.map(|cqe| (cqe.wr_id, cqe.status, cqe.vendor_err)));
        ends.len() == 2
    });
    ends.sort_unstable();
    assert!(done, "{ends:?}");
    let failed = Reason::CopyFailed.index() as u32 + 1;
    assert_eq!((ends[0].0, ends[0].1), (4, WcStatus::RemOpErr as u8));
    assert_eq!(ends[1], (5, WcStatus::LocProtErr as u8, failed));
}

#[test]
fn a_program_that_sends_while_copies_never_end_stops_no_worker() {
    const REQUESTS: u64 = 6000;
    let mut pair = Pair::new(15, 0);
    let many = |host: &mut Host| {
        let (pipe, channel) = EventPipe::new().expect("pipe");
        let (number, cq) = host.create_cq(8192, Arc::new(pipe));
        let (qpn, doorbell, sq, rq) = host.create_on(QpType::Rc, QpCap { max_send_wr: 8192, ..CAP }, number);
        AppQp { qpn, context: host.context, doorbell, sq, rq, cq, channel }
    };
    let mut busy = [pair.hosts[0].create(QpType::Rc), many(&mut pair.hosts[1])];
    let mut others = [0, 1].map(|at| pair.hosts[at].create(QpType::Rc));
    for at in 0..2 {
        let caps = pair.hosts[1 - at].caps.clone();
        for ends in [&busy, &others] {
            pair.hosts[at].connect(&ends[at], ends[1 - at].qpn, &caps, Mtu::B1024);
        }
    }
    // A copy that does not end, and requests of the same queue pair, whose completions wait for it.
    pair.programs[1].works = false;
    let wqe = request(WrOpcode::RdmaWrite, 1, BASE, pair.keys[1]);
    let entry = pair.hosts[0].sge(0, 100);
    pair.hosts[0].post(&mut busy[0], wqe, &[entry]);
    pair.run_passes(100);
    assert_ne!(pair.programs[1].ring.take().expect("a record"), None);
    let entry = pair.hosts[1].sge(0, 8);
    let write = |number, key| request(WrOpcode::RdmaWrite, number, BASE, key);
    let key = pair.hosts[0].key;
    (0..REQUESTS).for_each(|number| pair.hosts[1].post(&mut busy[1], write(number, key), &[entry]));
    // Longer than all retries.
    for _ in 0..30 {
        pair.run_passes(200);
        pair.now = pair.now + Nanos::from_ms(10);
    }
    assert!(poll(&mut busy[1]).is_none(), "completions wait");
    pair.hosts[1].post(&mut others[1], write(9, key), &[entry]);
    let done = pair.run(|_| poll(&mut others[1]).is_some_and(|cqe| cqe.status == WcStatus::Success as u8));
    assert!(done, "the request of another queue pair");
    // The copy ends: all that waited completes, in order; the rest fails, because the peer has given up its WRITE.
    pair.programs[1].ring.end(1);
    let (mut ended, mut fine) = (0, 0);
    let done = pair.run(|_| {
        while let Some(cqe) = poll(&mut busy[1]) {
            assert_eq!(cqe.wr_id, ended);
            ended += 1;
            fine = if cqe.status == WcStatus::Success as u8 { ended } else { fine };
        }
        ended == REQUESTS
    });
    assert!(done && fine > 3500, "{ended} completed, {fine} of them well");
}
