//! A worker on its own thread: requests posted before a command leave before it.
mod harness;

use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_engine::clock::monotonic;
use burst_engine::{RunnerOptions, WorkerHandle};
use burst_port::mem::{MemConfig, pair};
use burst_shm::status::StatusOwner;
use harness::{BASE, Host, request};
use std::net::IpAddr;
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
    let options = RunnerOptions { spin: Duration::from_millis(1) };
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
    bells.ring(0, qa.doorbell);
    handle.post(move |worker, now| drop(worker.destroy_qp(now, qpn, false))).expect("alive");
    end.send(()).expect("alive");
    handle.call(|_, _| ()).expect("alive");

    b.worker.run_once(monotonic() + Nanos::from_ms(60_000));
    let mut seen = [0; BYTES as usize];
    b.memory.read_to(&mut seen).expect("local");
    assert!(seen == [7; BYTES as usize], "posted before the command, and lost");
}
