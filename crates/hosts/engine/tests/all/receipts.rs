//! UC and the receive buffer of the peer's host: two engines in virtual time, a flood of messages, and a receiver whose worker
//! runs once in five milliseconds. Between Burst daemons receipts bound what is in flight, by the window that the path's queue
//! pairs share.

use crate::harness::small_buffer::SmallBuffer;
use crate::harness::{AppQp, BASE, Host, poll, request};
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_base::{DeviceId, Nanos, Reason};
use burst_cc::Params;
use burst_engine::counters::Traffic;
use burst_port::Port;
use burst_port::mem::{MemConfig, pair};
use std::net::IpAddr;

const BYTES: u32 = 1 << 20;
const MESSAGE: u32 = 64 << 10;
/// Frames of the receive buffer.
const ROOM: usize = 700;
/// Time between two passes of the receiver.
const PAUSE: Nanos = Nanos::from_ms(5);

/// Two hosts and queue pairs of each.
struct Flood {
    a: Host,
    b: Host,
    senders: Vec<AppQp>,
    receivers: Vec<AppQp>,
    now: Nanos,
    /// When the receiver's worker runs first.
    receives_from: Nanos,
}

impl Flood {
    /// Connected, and what each can do is known to the other.
    fn new(services: &[QpType], cc: &str, selective: bool) -> Flood {
        let mut flood = Flood::connected(services, cc, selective);
        while flood.now < Nanos::from_ms(2) {
            flood.a.worker.run_once(flood.now);
            flood.b.worker.run_once(flood.now);
            flood.now = flood.now + Nanos(1_000);
        }
        flood
    }

    fn connected(services: &[QpType], cc: &str, selective: bool) -> Flood {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), depth: 1 << 16, ..MemConfig::default() }, ip(1), ip(2));
        let cc = Params::parse(cc, 1 << 20).expect("a valid specification");
        let host = |port: Box<dyn Port>| match selective {
            true => Host::with_selective(port, BYTES, cc),
            false => Host::with_cc(port, BYTES, cc),
        };
        let (mut a, mut b) = (host(Box::new(pa)), host(Box::new(SmallBuffer::new(pb, ROOM))));
        let (caps_a, caps_b) = (a.caps.clone(), b.caps.clone());
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for service in services {
            let (qa, qb) = (a.create(*service), b.create(*service));
            a.connect(&qa, qb.qpn, &caps_b, Mtu::B1024);
            b.connect(&qb, qa.qpn, &caps_a, Mtu::B1024);
            senders.push(qa);
            receivers.push(qb);
        }
        Flood { a, b, senders, receivers, now: Nanos(0), receives_from: Nanos(0) }
    }

    fn post_receives(&mut self, of: usize, count: u64) {
        let sge = self.b.sge(0, MESSAGE);
        let qp = &mut self.receivers[of];
        (0..count).for_each(|k| qp.rq.write(k, &[sge]).expect("room"));
        let _ = qp.rq.post();
    }

    /// Each queue pair sends so many messages; returns how many were received. The receiver's program posts each receive again
    /// when its worker runs.
    fn send(&mut self, messages: u64) -> u64 {
        let count = self.senders.len();
        (0..count).for_each(|of| self.post_receives(of, 64));
        let (mut posted, mut done, mut received) = (vec![0; count], vec![0; count], 0);
        let (mut end, mut receives_at) = (self.now + Nanos::from_ms(20_000), self.now.max(self.receives_from));
        while self.now < end {
            if done.iter().sum::<u64>() == messages * count as u64 {
                // What is under way arrives.
                end = end.min(self.now + Nanos(3 * PAUSE.0));
            }
            for (posted, sender) in posted.iter_mut().zip(&mut self.senders) {
                while *posted < messages && sender.sq.room() > 0 {
                    let sge = self.a.sge(0, MESSAGE);
                    self.a.post(sender, request(WrOpcode::Send, *posted, BASE, 0), &[sge]);
                    *posted += 1;
                }
            }
            self.a.worker.run_once(self.now);
            if self.now >= receives_at {
                self.b.worker.run_once(self.now);
                receives_at = self.now + PAUSE;
                for of in 0..count {
                    let mut again = 0;
                    while let Some(cqe) = poll(&mut self.receivers[of]) {
                        assert_eq!((cqe.status, cqe.byte_len), (WcStatus::Success as u8, MESSAGE));
                        again += 1;
                    }
                    received += again;
                    self.post_receives(of, again);
                }
            }
            for (done, sender) in done.iter_mut().zip(&mut self.senders) {
                while poll(sender).is_some() {
                    *done += 1;
                }
            }
            self.now = self.now + Nanos::from_us(20);
        }
        assert_eq!(done, vec![messages; count], "completions");
        received
    }

    fn lost(&self) -> u64 {
        let counters = self.b.worker.counters(DeviceId(0));
        counters.reason(Reason::ReceiveOverflow) + counters.reason(Reason::ReceiverNotReady)
    }
}

#[test]
fn a_flood_of_uc_does_not_overrun_the_receive_buffer() {
    for cc in ["cubic", "aimd", "dcqcn"] {
        let mut flood = Flood::new(&[QpType::Uc], cc, true);
        assert_eq!((flood.send(200), flood.lost()), (200, 0), "{cc}");
        // The window is used: a message or more goes with each pass of the receiver.
        println!("{cc}: {:?}", flood.now);
        assert!(flood.now < Nanos::from_ms(1_500), "{cc}: {:?}", flood.now);
    }
}

#[test]
fn a_flood_waits_for_the_answer_to_the_hello() {
    let mut flood = Flood::connected(&[QpType::Uc], "cubic", true);
    // The worker of the peer has not run: it answers nothing in the first 100 ms.
    flood.receives_from = Nanos::from_ms(100);
    assert_eq!((flood.send(200), flood.lost()), (200, 0));
}

#[test]
fn a_peer_that_answers_no_hello_is_waited_for_once() {
    let mut flood = Flood::connected(&[QpType::Uc], "cubic", true);
    flood.receives_from = Nanos::from_ms(10_000);
    flood.send(10);
    assert!(flood.now > Nanos::from_ms(250) && flood.now < Nanos::from_ms(300), "{:?}", flood.now);
}

#[test]
fn queue_pairs_of_all_services_share_the_window_of_the_path() {
    let mut flood = Flood::new(&[QpType::Uc, QpType::Rc, QpType::Uc], "aimd", true);
    assert_eq!((flood.send(60), flood.lost()), (180, 0));
}

#[test]
fn without_receipts_a_flood_of_uc_is_lost_and_counted() {
    let mut flood = Flood::new(&[QpType::Uc], "cubic", false);
    assert!(flood.send(200) < 100 && flood.lost() > 5_000, "{}", flood.lost());
    let sent = flood.a.worker.counters(DeviceId(0)).traffic(Traffic::TxPackets);
    assert!((200 * 64..200 * 64 + 10).contains(&sent), "no more than the messages: {sent}");
}
