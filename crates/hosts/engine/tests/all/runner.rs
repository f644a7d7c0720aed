//! A worker on its own thread: requests posted before a command leave before it.
use crate::harness::{AppQp, BASE, Host, request};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_control::events::{EventPipe, EventSink};
use burst_engine::clock::monotonic;
use burst_engine::in_place::TurnOutcome;
use burst_engine::{RunnerOptions, WorkerHandle};
use burst_port::mem::{MemConfig, pair};
use burst_shm::status::StatusOwner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const BYTES: u32 = 4096;

#[test]
fn a_request_posted_while_a_command_runs_leaves_before_the_next_command() {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (mut a, mut b) = (Host::new(Box::new(pa), BYTES), Host::new(Box::new(pb), BYTES));
    let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
    a.memory.write_from(&[7; BYTES as usize]).expect("local");
    let (sge, bells, qpn) = (a.sge(0, BYTES), a.bells, qa.qpn);

    let status = StatusOwner::create().expect("a status page");
    let options = RunnerOptions { spin: Duration::from_millis(1), cpus: Vec::new() };
    let handle = WorkerHandle::start(a.worker, options, status.sleep_flag(0).expect("a sleep flag")).expect("a thread");
    let ((begun, has_begun), (end, may_end)) = (channel(), channel::<()>());
    let busy = move || {
        begun.send(()).expect("awaited");
        may_end.recv().expect("the sender is alive");
    };
    handle.post(move |_, _| busy()).expect("alive");
    has_begun.recv().expect("begun");
    // While the worker runs that command, a program posts and destroys its queue pair at once.
    qa.sq.write(&request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]).expect("room");
    assert!(qa.sq.post());
    bells[0].ring(0, qa.doorbell);
    handle.post(move |worker, now| drop(worker.destroy_qp(now, qpn, false))).expect("alive");
    end.send(()).expect("alive");
    handle.call(|_, _| ()).expect("alive");

    b.worker.run_once(monotonic() + Nanos::from_ms(60_000));
    let mut seen = [0; BYTES as usize];
    b.memory.read_to(&mut seen).expect("local");
    assert!(seen == [7; BYTES as usize], "posted before the command, and lost");
}

#[test]
fn a_worker_without_a_thread_runs_when_it_is_called_and_wakes_as_one_with_a_thread() {
    let (pa, _pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let a = Host::new(Box::new(pa), BYTES);
    let status = StatusOwner::create().expect("a status page");
    let flag = status.sleep_flag(0).expect("a sleep flag");
    let handle = WorkerHandle::in_place(a.worker, flag, Box::new(|| Nanos(7))).expect("an eventfd");
    assert!(handle.is_in_place() && handle.is_alive());
    let (done, order) = channel();
    let later = done.clone();
    handle.post(move |_, now| later.send(("posted", now)).expect("awaited")).expect("alive");
    assert!(order.try_recv().is_err(), "a posted command waits for a turn or a call");
    assert_eq!(handle.call(move |_, now| done.send(("called", now)).is_ok()), Ok(true));
    assert_eq!(order.iter().collect::<Vec<_>>(), [("posted", Nanos(7)), ("called", Nanos(7))]);
    assert_eq!(handle.turn(), Ok(false));

    let (wake, of_program) = handle.lend_wake().expect("a descriptor");
    assert!(handle.try_sleep() && !handle.is_woken());
    assert_eq!(rustix::io::write(&of_program, &1u64.to_ne_bytes()), Ok(8));
    assert!(handle.is_woken());
    handle.wake();
    assert!(!handle.is_woken(), "the wake-up is consumed");
    assert!(handle.try_sleep());
    handle.post(|_, _| ()).expect("alive");
    assert!(handle.is_woken(), "a command wakes a sleeping worker");
    handle.wake();
    assert!(!handle.try_sleep(), "there is a command");
    assert_eq!((handle.turn(), handle.try_sleep()), (Ok(true), true));
    drop(wake);
}

#[test]
fn a_worker_that_two_threads_sleep_on_is_asleep_until_both_are_awake() {
    let (pa, _pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let a = Host::new(Box::new(pa), BYTES);
    let status = StatusOwner::create().expect("a status page");
    let flag = status.sleep_flag(0).expect("a sleep flag");
    let handle = WorkerHandle::in_place(a.worker, flag, Box::new(|| Nanos(7))).expect("an eventfd");
    let worker = handle.in_place_worker().expect("it has no thread");
    assert!(worker.try_sleep().is_some() && worker.try_sleep().is_some());
    worker.end_sleep();
    handle.post(|_, _| ()).expect("alive");
    assert!(handle.is_woken(), "the other one sleeps");
    worker.end_sleep();
    assert!(!handle.is_woken(), "the wake-up is consumed");
    assert_eq!(handle.turn(), Ok(true));
    handle.post(|_, _| ()).expect("alive");
    assert!(!handle.is_woken(), "no worker sleeps");

    assert_eq!(handle.turn(), Ok(true));
    let plan = worker.try_sleep().expect("no work");
    handle.post(|_, _| ()).expect("alive");
    assert!(is_readable(*plan.fds.last().expect("that of commands")), "a command makes the last descriptor readable");
    worker.end_sleep_after(false);
    assert!(is_readable(plan.fds[plan.fds.len() - 1]), "the caller has not consumed the wake-up");
    worker.try_sleep();
    worker.end_sleep_after(true);
    assert!(!is_readable(plan.fds[plan.fds.len() - 1]), "the wake-up is consumed");
}

#[test]
fn a_sleep_ends_though_another_thread_has_the_worker() {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (mut a, mut b) = (Host::new(Box::new(pa), BYTES), Host::new(Box::new(pb), BYTES));
    let (mut qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let caps_b = b.caps.clone();
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    let (sge, bells) = (a.sge(0, BYTES), a.bells);
    let status = StatusOwner::create().expect("a status page");
    let flag = status.sleep_flag(0).expect("a sleep flag");
    let handle = WorkerHandle::in_place(a.worker, flag, Box::new(|| Nanos(7))).expect("an eventfd");
    let worker = handle.in_place_worker().expect("it has no thread");
    // A request that is never acknowledged: it must be repeated at some time.
    qa.sq.write(&request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]).expect("room");
    assert!(qa.sq.post());
    bells[0].ring(0, qa.doorbell);
    assert_eq!(worker.try_send_posted(), Some(Nanos::NEVER), "no sleeper must be awake then");
    let due = worker.try_due().expect("no other thread has it");
    assert!(due > Nanos(7) && due < Nanos::NEVER);
    assert!(worker.try_sleep().is_some());
    assert_eq!(worker.try_send_posted(), Some(due));

    let ((begun, has_begun), (end, may_end), (ended, has_ended)) = (channel(), channel::<()>(), channel());
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            handle.call(move |_, _| {
                begun.send(()).expect("awaited");
                may_end.recv().is_ok()
            })
        });
        has_begun.recv().expect("the holder runs");
        scope.spawn(|| {
            worker.end_sleep_after(true);
            ended.send(worker.try_turn()).expect("awaited");
        });
        let outcome = has_ended.recv_timeout(Duration::from_secs(60));
        end.send(()).expect("the holder waits");
        assert_eq!(outcome, Ok(TurnOutcome::Busy), "it has not waited for the holder");
        assert_eq!(holder.join().expect("no panic"), Ok(true));
    });
    worker.wait_for_others();
    handle.post(|_, _| ()).expect("alive");
    assert!(!handle.is_woken(), "no worker sleeps");
}

/// A queue pair in ERR, on a worker without a thread that has nothing to do.
struct FailedQp<P> {
    handle: WorkerHandle,
    qa: AppQp,
    /// Posts a request and rings; it is flushed.
    post: P,
    /// The page with the worker's flag, which must last as long as the worker.
    status: StatusOwner,
}

fn failed_qp() -> FailedQp<impl FnMut(&mut AppQp)> {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (mut a, mut b) = (Host::new(Box::new(pa), BYTES), Host::new(Box::new(pb), BYTES));
    let (qa, qb) = (a.create(QpType::Rc), b.create(QpType::Rc));
    let caps_b = b.caps.clone();
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    assert!(a.fail_qp(Nanos(7), &qa));
    let (sge, bells) = (a.sge(0, BYTES), a.bells);
    let status = StatusOwner::create().expect("a status page");
    let flag = status.sleep_flag(0).expect("a sleep flag");
    let handle = WorkerHandle::in_place(a.worker, flag, Box::new(|| Nanos(7))).expect("an eventfd");
    let worker = handle.in_place_worker().expect("it has no thread");
    while worker.try_turn() == TurnOutcome::Active {}
    let key = b.key;
    let post = move |qa: &mut AppQp| {
        qa.sq.write(&request(WrOpcode::RdmaWrite, 1, BASE, key), &[sge]).expect("room");
        assert!(qa.sq.post());
        bells[0].ring(0, qa.doorbell);
    };
    FailedQp { handle, qa, post, status }
}

#[test]
fn the_event_of_what_a_post_completes_comes_though_no_pass_follows() {
    let FailedQp { handle, mut qa, mut post, status: _status } = failed_qp();
    let worker = handle.in_place_worker().expect("it has no thread");
    assert!(worker.try_sleep().is_some(), "nothing to do");
    // As a thread of the program does whose other thread waits for the event: the request is flushed.
    qa.cq.arm(false);
    post(&mut qa);
    assert!(worker.try_send_posted().is_some());
    assert!(qa.cq.has_next() && is_readable(qa.channel.as_raw_fd()), "completed, and the program gets its event");
}

#[test]
fn what_is_completed_before_a_command_is_work_until_its_event_is_written() {
    let FailedQp { handle, mut qa, mut post, status: _status } = failed_qp();
    let worker = handle.in_place_worker().expect("it has no thread");
    // A thread of the program has posted and left the rest to the next pass; another one's command comes first.
    qa.cq.arm(false);
    post(&mut qa);
    assert_eq!(handle.call(|_, _| ()), Ok(()));
    assert!(qa.cq.has_next(), "flushed");
    assert_eq!(worker.try_due(), Some(Nanos(0)), "a pass must follow");
    assert!(worker.try_sleep().is_none(), "no thread sleeps before");
    assert_eq!(worker.try_turn(), TurnOutcome::Active);
    assert!(is_readable(qa.channel.as_raw_fd()) && worker.try_sleep().is_some());
}

#[test]
fn an_event_of_a_queue_that_has_ended_is_not_that_of_the_next_one_with_its_number() {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (mut a, mut b) = (Host::new(Box::new(pa), BYTES), Host::new(Box::new(pb), BYTES));
    let (pipe, channel) = EventPipe::new().expect("a pipe");
    let sink: Arc<dyn EventSink> = Arc::new(pipe);
    let mut qa = a.create_with_channel(QpType::Rc, sink.clone(), channel);
    let (qb, caps_b, number) = (b.create(QpType::Rc), b.caps.clone(), a.last_cq());
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    assert!(a.fail_qp(Nanos(7), &qa));
    while a.worker.run_once(Nanos(7)) {}
    // Flushed in the first half of a pass, whose second half does not come before the program ends the queue.
    qa.cq.arm(false);
    qa.sq.write(&request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[a.sge(0, BYTES)]).expect("room");
    assert!(qa.sq.post());
    a.bells[0].ring(0, qa.doorbell);
    a.worker.send_posted(Nanos(7));
    assert!(qa.cq.has_next() && !qa.cq.is_armed(), "its event is due");
    a.worker.remove_cq(number);
    let _next = a.create_cq_again(number, 512, sink);
    while a.worker.run_once(Nanos(7)) {}
    assert!(!is_readable(qa.channel.as_raw_fd()), "no queue that is there has completed anything");
}

#[test]
fn a_post_that_is_longer_than_a_pass_keeps_a_sleeper_from_sleeping_on() {
    const LONG: u32 = 4 << 20;
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let (mut a, mut b) = (Host::new(Box::new(pa), LONG), Host::new(Box::new(pb), LONG));
    let (mut qa, qb) = (a.create(QpType::Uc), b.create(QpType::Uc));
    let caps_b = b.caps.clone();
    a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
    let (sge, bells) = (a.sge(0, LONG), a.bells);
    let status = StatusOwner::create().expect("a status page");
    let flag = status.sleep_flag(0).expect("a sleep flag");
    let handle = WorkerHandle::in_place(a.worker, flag, Box::new(|| Nanos(7))).expect("an eventfd");
    let worker = handle.in_place_worker().expect("it has no thread");
    while worker.try_turn() == TurnOutcome::Active {}
    assert!(worker.try_sleep().is_some(), "nothing to do");
    qa.sq.write(&request(WrOpcode::RdmaWrite, 1, BASE, b.key), &[sge]).expect("room");
    assert!(qa.sq.post());
    bells[0].ring(0, qa.doorbell);
    let due = worker.try_send_posted();
    assert_eq!((worker.try_due(), due), (Some(Nanos(0)), Some(Nanos(0))), "the rest leaves in a pass that is due now");
}

/// Whether a descriptor of a sleeping worker is readable.
fn is_readable(fd: RawFd) -> bool {
    // SAFETY: the worker, which has opened it, is alive.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)) == Ok(1)
}
