//! Several workers: which of them a queue pair gets, and that commands for all of them are waited for once.
use crate::common::{Program, host_of, queue_pair};
use burst_base::verbs::QpType;
use burst_control::{CqInitAttr, Request, Response};
use burst_host::Host;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const WORKERS: usize = 4;

/// A completion queue of this vector.
fn completion_queue(program: &mut Program, host: &mut Host, vector: u32) -> u32 {
    let request = Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector });
    match program.ask(host, request) {
        Ok(Response::Cq { cq, .. }) => cq,
        other => panic!("{other:?}"),
    }
}

/// The worker of a new queue pair on a completion queue.
fn worker_of_queue_pair(program: &mut Program, host: &mut Host, cq: u32) -> u32 {
    match program.ask(host, queue_pair(program.pd, cq, QpType::Rc)) {
        Ok(Response::Qps(grants)) => grants[0].worker,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_queue_pair_goes_to_the_worker_of_its_receive_queue_s_vector() {
    let mut host = host_of(WORKERS, 50);
    let mut program = Program::start(&mut host, 1000).expect("a program");
    for vector in [3, 1, 2, 5, u32::MAX] {
        let cq = completion_queue(&mut program, &mut host, vector);
        for _ in 0..3 {
            assert_eq!(worker_of_queue_pair(&mut program, &mut host, cq), vector % WORKERS as u32, "vector {vector}");
        }
    }
    program.end(&mut host);
}

#[test]
fn queues_of_programs_that_name_no_vector_are_spread_and_their_queue_pairs_are_not() {
    let mut host = host_of(WORKERS, 50);
    let mut program = Program::start(&mut host, 1000).expect("a program");
    let mut used = Vec::new();
    for _ in 0..WORKERS {
        // Many programs have one queue for what they send, and one for what they receive.
        completion_queue(&mut program, &mut host, 0);
        let cq = completion_queue(&mut program, &mut host, 0);
        let workers = [(); 3].map(|()| worker_of_queue_pair(&mut program, &mut host, cq));
        assert_eq!(workers, [workers[0]; 3]);
        used.push(workers[0]);
    }
    used.sort_unstable();
    assert_eq!(used, (0..WORKERS as u32).collect::<Vec<_>>());
    program.end(&mut host);
}

#[test]
fn a_command_for_all_workers_waits_for_the_slowest_and_not_for_each() {
    let host = host_of(WORKERS, 50);
    let (begun, least) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let seen = least.clone();
    host.on_all(move |_| {
        begun.fetch_add(1, Ordering::SeqCst);
        // Each waits until all have begun: one after the other they never would.
        let end = Instant::now() + Duration::from_secs(10);
        while begun.load(Ordering::SeqCst) < WORKERS && Instant::now() < end {
            std::thread::yield_now();
        }
        least.fetch_min(begun.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    assert_eq!(seen.load(Ordering::SeqCst), WORKERS);
}

#[test]
fn queue_pairs_of_a_port_stay_on_its_workers() {
    use burst_host::{Clock, HostOptions};
    let options = HostOptions {
        ports: vec!["udp:dev=lo,addr=127.0.0.9,udp_port=10796,workers=1+3".into()],
        ..crate::common::options(WORKERS, 50)
    };
    let mut host = Host::open(&options, Clock::Monotonic, None).expect("a host");
    let mut program = Program::start(&mut host, 1000).expect("a program");
    let mut used = Vec::new();
    for vector in [0, 0, 1, 2, 3, u32::MAX] {
        let cq = completion_queue(&mut program, &mut host, vector);
        used.push(worker_of_queue_pair(&mut program, &mut host, cq));
    }
    used[..2].sort_unstable();
    assert_eq!(used, [1, 3, 3, 1, 3, 3], "round robin, and vectors modulo the port's workers");
    program.end(&mut host);

    let ports = vec!["udp:dev=lo,addr=127.0.0.9,udp_port=10797,workers=2-4".into()];
    let refused = Host::open(&HostOptions { ports, ..options }, Clock::Monotonic, None).err().expect("no worker 4");
    assert!(refused.contains("worker 4") && refused.contains("workers 0 to 3"), "{refused}");
}

#[test]
fn the_resize_of_a_completion_queue_stops_no_worker() {
    let mut host = host_of(WORKERS, 50);
    let mut program = Program::start(&mut host, 1000).expect("a program");
    let cq = completion_queue(&mut program, &mut host, 0);
    // Workers that serve others for long. A command would wait for them.
    let (begun, resized) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let waited = Arc::new(AtomicUsize::new(0));
    for worker in 0..WORKERS {
        let (begun, resized, waited) = (begun.clone(), resized.clone(), waited.clone());
        host.post(worker, move |_, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            let end = Instant::now() + Duration::from_secs(10);
            while resized.load(Ordering::SeqCst) == 0 && Instant::now() < end {
                std::thread::yield_now();
            }
            waited.fetch_add(1 - resized.load(Ordering::SeqCst), Ordering::SeqCst);
        });
    }
    while begun.load(Ordering::SeqCst) < WORKERS {
        std::thread::yield_now();
    }
    let answer = program.ask(&mut host, Request::ResizeCq { cq, entries: 1 << 16 });
    assert!(matches!(answer, Ok(Response::CqResized { old_end: 0, .. })), "{answer:?}");
    resized.store(1, Ordering::SeqCst);
    host.on_all(|_| ());
    assert_eq!(waited.load(Ordering::SeqCst), 0, "workers for which the resize has waited");
    program.end(&mut host);
}
