//! Senders at a slow bottleneck, packet by packet in virtual time: a queue takes many times as long as the empty path, and what a
//! controller does is seen a round trip later.

use burst_base::Nanos;
use burst_cc::{AckSample, Controller, Params, RATE_UNPACED};
use std::collections::VecDeque;

const MTU: u64 = 1024;
/// Bytes of a packet on the link.
const PACKET: u64 = MTU + 94;
/// From the sender to the queue, and from there back to the sender, in nanoseconds.
const DELAY: u64 = 50_000;

struct Sender {
    controller: Controller,
    inflight: u64,
    /// When the next packet may leave.
    next: u64,
    /// What has arrived in the second half.
    arrived: u64,
}

struct Packet {
    flow: usize,
    sent: u64,
    marked: bool,
}

/// What a bottleneck has seen in the second half of a run.
struct Seen {
    used: f64,
    jain: f64,
    queue_mean: f64,
    queue_max: u64,
}

struct Bottleneck {
    link_bps: u64,
    threshold: u64,
    senders: Vec<Sender>,
    /// Packets on their way to the queue, in it, and acknowledgements, by their times.
    coming: VecDeque<(u64, Packet)>,
    queue: VecDeque<Packet>,
    acks: VecDeque<(u64, Packet)>,
    /// When the link is free.
    free: u64,
}

impl Bottleneck {
    fn new(spec: &str, flows: usize, link_bps: u64, threshold: u64) -> Bottleneck {
        let params = Params::parse(spec, 1 << 20).expect("a valid specification");
        let controller = Controller::new(&params, Nanos(0), 10_000_000_000, MTU as u32);
        let sender = |_| Sender { controller: controller.clone(), inflight: 0, next: 0, arrived: 0 };
        let senders = (0..flows).map(sender).collect();
        let (coming, queue, acks) = Default::default();
        Bottleneck { link_bps, threshold, senders, coming, queue, acks, free: 0 }
    }

    fn send(&mut self, now: u64, window_max: u64) {
        for (flow, sender) in self.senders.iter_mut().enumerate() {
            let limits = sender.controller.limits();
            let window = limits.window_bytes.min(window_max);
            while sender.next <= now && (sender.inflight + MTU <= window || sender.inflight == 0) {
                if sender.controller.limits().rate_bps != RATE_UNPACED {
                    sender.next = sender.next.max(now - 20_000.min(now)) + PACKET * 8_000_000_000 / limits.rate_bps;
                }
                sender.inflight += MTU;
                self.coming.push_back((now + DELAY, Packet { flow, sent: now, marked: false }));
            }
        }
    }

    fn serve(&mut self, now: u64, is_counted: bool) {
        while self.coming.front().is_some_and(|(at, _)| *at <= now) {
            let (_, mut packet) = self.coming.pop_front().expect("one");
            packet.marked = self.queue.len() as u64 * PACKET > self.threshold;
            self.queue.push_back(packet);
        }
        while self.free <= now && !self.queue.is_empty() {
            let packet = self.queue.pop_front().expect("one");
            self.free = self.free.max(now) + PACKET * 8_000_000_000 / self.link_bps;
            self.senders[packet.flow].arrived += if is_counted { PACKET } else { 0 };
            self.acks.push_back((self.free + DELAY, packet));
        }
    }

    fn acknowledge(&mut self, now: u64) {
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, packet) = self.acks.pop_front().expect("one");
            let sender = &mut self.senders[packet.flow];
            sender.inflight -= MTU;
            sender.controller.on_ack(
                Nanos(now),
                &AckSample {
                    acked_bytes: MTU,
                    rtt: Some(Nanos(now - packet.sent)),
                    packets: 1,
                    ce_packets: u32::from(packet.marked),
                    inflight_bytes: sender.inflight,
                    ..AckSample::default()
                },
            );
        }
        for sender in &mut self.senders {
            if sender.controller.next_deadline() <= Nanos(now) {
                sender.controller.on_timer(Nanos(now));
            }
        }
    }

    /// Runs for `ms`. For the first 10 ms the windows are ten packets, as below the window of `aimd`.
    fn run(&mut self, ms: u64) -> Seen {
        let (end, step) = (ms * 1_000_000, 1_000);
        let (mut sum, mut queue_max, mut count) = (0u64, 0, 0u64);
        for now in (1..=end / step).map(|k| k * step) {
            self.send(now, if now < 10_000_000 { 10 * MTU } else { u64::MAX });
            self.serve(now, now > end / 2);
            self.acknowledge(now);
            if now > end / 2 {
                let bytes = self.queue.len() as u64 * PACKET;
                (sum, count, queue_max) = (sum + bytes, count + 1, bytes.max(queue_max));
            }
        }
        let rates: Vec<f64> = self.senders.iter().map(|sender| sender.arrived as f64).collect();
        let total = rates.iter().sum::<f64>();
        let jain = total * total / (rates.len() as f64 * rates.iter().map(|rate| rate * rate).sum::<f64>());
        let used = total * 8.0 / (self.link_bps as f64 * end as f64 / 2e9);
        Seen { used, jain, queue_mean: sum as f64 / count as f64, queue_max }
    }
}

/// A queue of 30 KB takes 0.8 ms at 300 Mbit/s, as long as 15 periods of the publication.
#[test]
fn dcqcn_and_dctcp_keep_a_slow_bottleneck_full_and_its_queue_short() {
    for (spec, flows) in [("dcqcn", 1), ("dcqcn", 4), ("dcqcn", 16), ("dctcp", 4), ("dctcp", 16)] {
        let Seen { used, jain, queue_mean, queue_max } = Bottleneck::new(spec, flows, 300_000_000, 30_000).run(1_000);
        println!("{spec}, {flows} flows: used {used:.3}, Jain {jain:.3}, queue {queue_mean:.0}, at most {queue_max}");
        assert!(used > 0.95, "{spec}, {flows} flows: {used} of the link");
        assert!(queue_mean < 1.5 * 30_000.0, "{spec}, {flows} flows: queue {queue_mean}");
        assert!(queue_max < 3 * 30_000, "{spec}, {flows} flows: queue at most {queue_max}");
        assert!(jain > 0.95, "{spec}, {flows} flows: Jain's index {jain}");
    }
}
