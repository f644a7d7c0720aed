//! Completion events: a program that does not read its channel loses none and costs the worker no passes; a queue in memory takes
//! the place of a pipe.
use crate::harness::{BASE, Host, poll, request};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WrOpcode};
use burst_control::events::EventQueue;
use burst_port::mem::{MemConfig, pair};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes of a record in a completion channel.
const RECORD: usize = 8;

fn read_all(channel: &std::os::fd::OwnedFd) -> usize {
    let mut buffer = [0; 4096];
    let mut bytes = 0;
    while let Ok(n) = rustix::io::read(channel, &mut buffer) {
        bytes += n;
    }
    bytes / RECORD
}

#[test]
fn events_beyond_the_room_of_a_channel_come_when_it_is_read() {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let caps = burst_port::Port::caps(&pb).clone();
    let mut host = Host::new(Box::new(pa), 1 << 16);
    let mut qp = host.create(QpType::Rc);
    host.connect(&qp, qp.qpn, &caps, Mtu::B1024);
    let size = rustix::pipe::fcntl_setpipe_size(&qp.channel, 4096).expect("a small pipe");
    rustix::io::ioctl_fionbio(&qp.channel, true).expect("non-blocking");
    let mut now = Nanos(0);
    assert!(host.fail_qp(now, &qp));
    // Each request is flushed, and each of its completions makes an event.
    let events = size / RECORD + 100;
    for i in 0..events as u64 {
        qp.cq.arm(false);
        host.post(&mut qp, request(WrOpcode::Send, i, BASE, 0), &[]);
        while poll(&mut qp).is_none() {
            host.worker.run_once(now);
            now = now + Nanos(1_000);
        }
    }
    while host.worker.run_once(now) {
        now = now + Nanos(1_000);
    }
    let due = host.worker.next_deadline();
    assert!(due > now, "a program that does not read must not keep the worker awake");
    assert!(due <= now + Nanos::from_ms(100), "the worker must retry now and then");
    let mut read = 0;
    for _ in 0..100 {
        read += read_all(&qp.channel);
        now = now + Nanos::from_ms(10);
        host.worker.run_once(now);
    }
    assert_eq!(read, events);
    assert_eq!(host.worker.next_deadline(), Nanos::NEVER, "there is no backlog any more");
}

/// A simulator, or an engine in the program's own process, has no pipes: events go into a queue in memory.
#[test]
fn events_go_into_a_queue_in_memory_as_into_a_pipe() {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let caps = burst_port::Port::caps(&pb).clone();
    let mut host = Host::new(Box::new(pa), 1 << 16);
    let queue = Arc::new(EventQueue::new());
    let mut qp = host.create_with_channel(QpType::Rc, queue.clone(), ());
    host.connect(&qp, qp.qpn, &caps, Mtu::B1024);
    assert!(host.fail_qp(Nanos(0), &qp));
    for i in 0..3 {
        qp.cq.arm(false);
        host.post(&mut qp, request(WrOpcode::Send, i, BASE, 0), &[]);
        host.worker.run_once(Nanos(i));
        assert_eq!(poll(&mut qp).expect("flushed").wr_id, i);
    }
    let cookie = 0xc0de_u64.to_ne_bytes().to_vec();
    assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), vec![cookie; 3]);
    assert_eq!(host.worker.next_deadline(), Nanos::NEVER, "a queue needs no retry");
}
