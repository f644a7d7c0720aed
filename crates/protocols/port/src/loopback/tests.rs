//! Loopback around the port in memory: of one worker, and of several workers joined by queues.

use super::*;
use crate::ReceivePressure;
use crate::mem::{Hub, MemConfig, MemPort};
use crate::testing::{Collect, HEAD, batch_of, flow, push};
use burst_frame::RxFrame;
use burst_span::Span;
use proptest::prelude::*;
use std::os::fd::BorrowedFd;

const OWN: &str = "10.0.0.1";
const OWN6: &str = "fd00::1";
const PEER: &str = "10.0.0.2";

/// A single worker's port with two addresses, and its peer on the same wire.
fn wrapped() -> (Loopback, MemPort) {
    let (mut ports, peer) = joined(1);
    (ports.remove(0), peer)
}

/// The ports of `workers` workers, each on a link of its own, and the peer of the first.
fn joined(workers: usize) -> (Vec<Loopback>, MemPort) {
    let mut queues = if workers > 1 { WorkerQueues::between(workers).unwrap() } else { Vec::new() }.into_iter();
    let made: Vec<_> = (0..workers)
        .map(|_| {
            let hub = Hub::new(MemConfig { link_mtu: 9000, ..MemConfig::default() });
            let own = hub.port("own", &[OWN.parse().unwrap(), OWN6.parse().unwrap()]);
            (Loopback::new(Box::new(own), queues.next()), hub.port("peer", &[PEER.parse().unwrap()]))
        })
        .collect();
    let (ports, mut peers): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    (ports, peers.remove(0))
}

/// Appends a frame to a queue pair at [`OWN`]. The payload must live until the batch is sent.
fn push_qpn(batch: &mut TxBatch, qpn: u32, payload: &[u8]) {
    let mut head = [0; HEAD];
    head[4..8].copy_from_slice(&qpn.to_be_bytes());
    let pad = (4 - payload.len() % 4) as u8 % 4;
    head[1] = pad << 4;
    // SAFETY: the tests keep the payload alive until the batch is sent; nothing writes through the span.
    #[allow(unsafe_code)]
    let span = unsafe { Span::local(payload.as_ptr().cast_mut(), payload.len() as u32) };
    assert!(batch.push(&flow(OWN, OWN), &head, &[span], pad));
}

/// A batch of frames with these payloads to one queue pair.
fn batch_to(qpn: u32, payloads: &[Vec<u8>]) -> TxBatch {
    let mut batch = TxBatch::new(payloads.len().max(1));
    payloads.iter().for_each(|payload| push_qpn(&mut batch, qpn, payload));
    batch
}

/// The destination queue pairs of the frames.
fn qpns(sink: &Collect) -> Vec<u32> {
    sink.frames.iter().map(|(_, b)| u32::from_be_bytes([0, b[5], b[6], b[7]])).collect()
}

fn send(port: &mut Loopback, batch: &TxBatch) -> Vec<Reason> {
    let mut reasons = Vec::new();
    port.tx_burst(Nanos(0), batch, &mut |r| reasons.push(r));
    reasons
}

fn numbered(count: u32, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| i.to_be_bytes().into_iter().cycle().take(len).collect()).collect()
}

fn take(port: &mut Loopback) -> Collect {
    let mut sink = Collect::default();
    while port.rx_burst(Nanos(0), 64, &mut sink) > 0 {}
    sink
}

#[test]
fn frames_to_own_addresses_are_looped_back_and_others_are_sent() {
    let (mut own, mut peer) = wrapped();
    let payloads = numbered(30, 300);
    let mut batch = TxBatch::new(30);
    for (i, payload) in payloads.iter().enumerate() {
        let to = [flow(OWN, OWN), flow(OWN, PEER), flow(OWN6, OWN6)][i % 3];
        assert!(push(&mut batch, &Flow { tos: 0x6a, ..to }, payload));
    }
    own.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
    assert_eq!(own.next_event(), Nanos(0));
    assert!(own.before_sleep());
    let (came, mut left) = (take(&mut own), Collect::default());
    peer.rx_burst(Nanos(0), 64, &mut left);
    let every = |from: usize| payloads[from..].iter().step_by(3).cloned();
    assert_eq!(left.payloads(), every(1).collect::<Vec<_>>());
    let expected: Vec<_> = every(0).zip(every(2)).flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(came.payloads(), expected);
    assert!(came.frames.iter().all(|(f, _)| f.tos == 0x6a && f.src == f.dst));
    assert_eq!((own.next_event(), own.before_sleep()), (Nanos::NEVER, false));
}

#[test]
fn multicast_of_interface_local_scope_is_looped_back_and_not_sent() {
    // perftest's default group, and groups of wider scopes.
    let (local, link, global) = ("ff01:0:0:2:c985::", "ff02::c9", "ff0e::c9");
    let (mut ports, mut peer) = joined(2);
    assert!(ports[0].join(local.parse().unwrap()).is_ok(), "no port below is needed");
    let payloads = numbered(3, 300);
    let mut batch = TxBatch::new(3);
    for (dst, payload) in [local, link, global].iter().zip(&payloads) {
        assert!(push(&mut batch, &flow(OWN6, dst), payload));
    }
    assert!(!ports[0].is_resolving(Nanos(0), &flow(OWN6, local)));
    assert_eq!(ports[0].next_hop(Nanos(0), local.parse().unwrap()), NeighbourState::Resolved);
    assert_eq!(send(&mut ports[0], &batch), []);
    assert_eq!(take(&mut ports[0]).payloads(), payloads[..1]);
    assert_eq!(take(&mut ports[1]).frames.len(), 0, "the engine copies it to other workers");
    let mut sent = Collect::default();
    peer.rx_burst(Nanos(0), 64, &mut sent);
    assert!(sent.frames.iter().all(|(f, _)| f.dst != local.parse::<IpAddr>().unwrap()));
    ports[0].leave(local.parse().unwrap());
}

#[test]
fn a_run_is_delivered_as_a_train() {
    let (mut own, _peer) = wrapped();
    let mut memory: Vec<u8> = (0..20 * 1024u32).map(|i| (i / 7) as u8).collect();
    // SAFETY: the memory outlives the batch.
    #[allow(unsafe_code)]
    let span = unsafe { Span::local(memory.as_mut_ptr(), memory.len() as u32) };
    let mut batch = TxBatch::new(64);
    assert!(batch.push_run(&flow(OWN, OWN), &[0; HEAD], &span, 1024, |k, head| head[11] = k as u8));
    own.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
    let came = take(&mut own);
    assert_eq!(came.trains, [20]);
    assert_eq!(came.payloads().concat(), memory);
    assert!(came.frames.iter().enumerate().all(|(k, (_, bytes))| usize::from(bytes[11]) == k));
}

#[test]
fn the_memory_of_delivered_packets_is_given_back() {
    let resident =
        |port: &Loopback| port.store.resident_pages() + port.queues.as_ref().map_or(0, WorkerQueues::resident_pages);
    let (mut ports, _peer) = joined(2);
    ports.iter_mut().for_each(Port::shrink);
    let before = resident(&ports[0]);
    let payloads = numbered(500, 1024);
    for round in 1..=2 {
        // To the worker itself, and to the other one.
        (16..18).for_each(|qpn| assert_eq!(send(&mut ports[0], &batch_to(qpn, &payloads)), []));
        ports[0].shrink();
        let came: Vec<Vec<Vec<u8>>> = ports.iter_mut().map(|port| take(port).payloads()).collect();
        assert!(came.iter().all(|came| *came == payloads), "round {round}: packets that wait stay");
        let used = resident(&ports[0]);
        assert!(used >= before + 100, "round {round}: {used} pages");
        ports.iter_mut().for_each(Port::shrink);
        // The first and the last page of a buffer may hold other data, too.
        assert!(resident(&ports[0]) <= before + 2 * (1 + BLOCKS), "round {round}: {}", resident(&ports[0]));
    }
}

#[test]
fn frames_go_to_the_worker_of_their_queue_pair() {
    let (mut ports, _peer) = joined(3);
    let payload = numbered(1, 64);
    let mut batch = TxBatch::new(16);
    // The GSI queue pair has no worker of its own: the engine reads the datagram. There is no worker 9.
    let all = [0x100, 0x101, 0x102, 0x110, 0x111, 0x112, Qpn::GSI.get(), 0x109];
    all.iter().for_each(|qpn| push_qpn(&mut batch, *qpn, &payload[0]));
    assert_eq!(send(&mut ports[1], &batch), []);
    let came: Vec<_> = ports.iter_mut().map(|port| qpns(&take(port))).collect();
    assert_eq!(came, [vec![0x100, 0x110], vec![0x101, 0x111, Qpn::GSI.get(), 0x109], vec![0x102, 0x112]]);
    assert!(ports.iter_mut().all(|port| port.next_event() == Nanos::NEVER && !port.before_sleep()));
}

#[test]
fn a_run_through_a_queue_is_delivered_as_a_train_and_counted() {
    #[derive(Default)]
    struct CountingSink(Collect, usize);
    impl RxSink for CountingSink {
        fn frame(&mut self, frame: &RxFrame<'_>) {
            self.0.frame(frame);
        }
        fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
            self.0.train(flow, train, stride);
        }
        fn dropped(&mut self, reason: Reason) {
            self.0.dropped(reason);
        }
        fn looped_back(&mut self, packets: usize) {
            self.1 += packets;
        }
    }
    let (mut ports, _peer) = joined(2);
    let payloads = numbered(40, 4096);
    assert_eq!(send(&mut ports[0], &batch_to(0x101, &payloads)), []);
    let mut sink = CountingSink::default();
    assert_eq!(ports[1].rx_burst(Nanos(0), 20, &mut sink), 15);
    assert_eq!(ports[1].next_event(), Nanos(0));
    while ports[1].rx_burst(Nanos(0), 64, &mut sink) > 0 {}
    assert!(sink.0.payloads() == payloads && sink.1 == 40);
    // A block holds 31 of these packets; the budget of 15 has split the first block's train.
    assert_eq!(sink.0.trains, [15, 16, 9]);
}

#[test]
fn an_unread_queue_drops_with_a_reason_and_leaves_room_for_others() {
    let (mut ports, _peer) = joined(3);
    let payloads = numbered(250, 4096);
    let (to_1, to_2) = (batch_to(0x101, &payloads), batch_to(0x102, &payloads));
    let mut sent = 0;
    loop {
        let reasons = send(&mut ports[0], &to_1);
        sent += payloads.len() - reasons.len();
        if !reasons.is_empty() {
            assert!(reasons.iter().all(|r| *r == Reason::ReceiveOverflow));
            break;
        }
    }
    assert!(sent * 4112 > STORE_BYTES / 2 - BLOCK_BYTES && sent * 4112 <= STORE_BYTES / 2);
    assert_eq!(send(&mut ports[0], &to_2), []);
    // Before a sleep the open blocks are passed on.
    ports[0].before_sleep();
    assert!(take(&mut ports[2]).payloads() == payloads);
    let came = take(&mut ports[1]).payloads();
    assert!(came.len() == sent && came.iter().zip(payloads.iter().cycle()).all(|(a, b)| a == b));
    // All blocks are returned.
    for _ in 0..3 {
        assert_eq!(send(&mut ports[0], &to_1), []);
        ports[0].before_sleep();
        assert!(take(&mut ports[1]).payloads() == payloads);
    }
    let queues = ports[0].queues.as_mut().unwrap();
    queues.collect_all();
    assert_eq!(queues.free_blocks(), BLOCKS);
}

#[test]
fn many_small_bursts_share_blocks_while_the_reader_is_behind() {
    let (mut ports, _peer) = joined(2);
    let payloads = numbered(1000, 64);
    for payload in &payloads {
        assert_eq!(send(&mut ports[0], &batch_to(0x101, std::slice::from_ref(payload))), []);
    }
    // An open block is work of the sender, which must not sleep before it is passed on.
    assert_eq!(ports[0].next_event(), Nanos(0));
    let mut came = take(&mut ports[1]).payloads();
    assert_eq!(came.len(), 4);
    assert!(!ports[0].before_sleep(), "packets for other workers do not keep the sender awake");
    assert_eq!(ports[0].next_event(), Nanos::NEVER);
    came.extend(take(&mut ports[1]).payloads());
    assert_eq!(came, payloads);
}

#[test]
fn store_queues_and_link_share_a_pass() {
    let (mut ports, mut peer) = joined(3);
    let payloads = numbered(500, 64);
    for (port, qpn) in ports.iter_mut().zip([0x100, 0x110, 0x120]) {
        assert_eq!(send(port, &batch_to(qpn, &payloads)), []);
    }
    peer.tx_burst(Nanos(0), &batch_of(&flow(PEER, OWN), &payloads[..1]), &mut |r| panic!("{r}"));
    for _ in 0..3 {
        let mut sink = Collect::default();
        ports[0].rx_burst(Nanos(0), 64, &mut sink);
        let came = qpns(&sink);
        let counts = [0x100, 0x110, 0x120].map(|qpn| came.iter().filter(|q| **q == qpn).count());
        assert_eq!(counts, [16; 3]);
    }
    // The unused shares go to the queues that have packets.
    while ports[0].store.deliver(64, &mut Collect::default()) > 0 {}
    let mut sink = Collect::default();
    assert_eq!(ports[0].rx_burst(Nanos(0), 64, &mut sink), 48);
}

#[test]
fn a_worker_that_has_ended_loses_no_packets_of_others() {
    let (mut ports, _peer) = joined(2);
    let payloads = numbered(250, 4096);
    assert_eq!(send(&mut ports[1], &batch_to(0x100, &payloads)), []);
    ports[1].before_sleep();
    drop(ports.pop());
    assert!(take(&mut ports[0]).payloads() == payloads);
    let dropped: usize = (0..20).map(|_| send(&mut ports[0], &batch_to(0x101, &payloads)).len()).sum();
    assert!(dropped > 0);
    assert_eq!(send(&mut ports[0], &batch_to(0x100, &payloads)), []);
    assert!(take(&mut ports[0]).payloads() == payloads);
}

#[test]
fn a_sleeping_worker_is_woken() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (mut ports, _peer) = joined(2);
    let mut reader = ports.pop().unwrap();
    let mut sender = ports.pop().unwrap();
    const ROUNDS: u32 = 2000;
    let thread = std::thread::spawn(move || {
        let (mut sink, mut sleeps) = (Collect::default(), 0);
        while sink.frames.len() < ROUNDS as usize {
            if reader.rx_burst(Nanos(0), 64, &mut sink) > 0 || reader.before_sleep() {
                continue;
            }
            sleeps += 1;
            // SAFETY: the port, which owns the descriptors, lives to the end of the thread.
            #[allow(unsafe_code)]
            let fds: Vec<_> = reader.wait_fds().iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert!(
                poll(&mut fds, Some(&limit)).unwrap() > 0,
                "still asleep after {} of {ROUNDS} packets",
                sink.frames.len()
            );
        }
        (sink, sleeps)
    });
    let payloads = numbered(ROUNDS, 64);
    for (i, payload) in payloads.iter().enumerate() {
        while !send(&mut sender, &batch_to(0x101, std::slice::from_ref(payload))).is_empty() {
            std::thread::yield_now();
        }
        match i % 7 {
            0 => std::thread::sleep(std::time::Duration::from_micros(60)),
            1 => std::thread::yield_now(),
            _ => {}
        }
        // The sender's next pass passes its open block on.
        sender.rx_burst(Nanos(0), 64, &mut Collect::default());
    }
    sender.before_sleep();
    let (sink, sleeps) = thread.join().unwrap();
    assert!(sink.payloads() == payloads);
    assert!(sleeps > 0, "the reader never slept, so no wake was tested");
}

#[test]
fn a_full_store_drops_with_a_reason_and_has_room_again() {
    let (mut own, _peer) = wrapped();
    let payloads = numbered(2100, 4096);
    let mut reasons = Vec::new();
    own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads), &mut |r| reasons.push(r));
    assert!(!reasons.is_empty() && reasons.iter().all(|r| *r == Reason::ReceiveOverflow));
    let fit = payloads.len() - reasons.len();
    assert!(fit * 4112 <= STORE_BYTES && (fit + 1) * 4112 > STORE_BYTES);
    let sink = take(&mut own);
    assert_eq!(sink.payloads(), payloads[..fit]);
    assert_eq!(sink.pressure, [ReceivePressure::Lost], "the receiver hears of it");
    own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads[..9]), &mut |r| panic!("{r}"));
    let sink = take(&mut own);
    assert!(sink.payloads() == payloads[..9] && sink.pressure.is_empty());
}

#[test]
fn memory_that_is_gone_drops_only_its_own_frame() {
    let (mut own, _peer) = wrapped();
    let payloads = numbered(2, 100);
    let memory = burst_span::ProcessMemory::own().expect("own memory");
    let mut batch = TxBatch::new(3);
    assert!(push(&mut batch, &flow(OWN, OWN), &payloads[0]));
    assert!(batch.push(&flow(OWN, OWN), &[0; HEAD], &[memory.span(8, 100)], 0));
    assert!(push(&mut batch, &flow(OWN, OWN), &payloads[1]));
    let mut reasons = Vec::new();
    own.tx_burst(Nanos(0), &batch, &mut |r| reasons.push(r));
    assert_eq!(reasons, [Reason::SendFailed]);
    assert_eq!(take(&mut own).payloads(), payloads);
}

#[test]
fn the_link_is_received_from_beside_looped_back_packets() {
    let (mut own, mut peer) = wrapped();
    let payloads = numbered(500, 64);
    own.tx_burst(Nanos(0), &batch_of(&flow(OWN, OWN), &payloads), &mut |r| panic!("{r}"));
    peer.tx_burst(Nanos(0), &batch_of(&flow(PEER, OWN), &payloads[..1]), &mut |r| panic!("{r}"));
    let mut sink = Collect::default();
    assert_eq!(own.rx_burst(Nanos(0), 64, &mut sink), 49);
    assert!(sink.frames.iter().any(|(f, _)| f.src == flow(PEER, OWN).src));
}

proptest! {
    /// For any lengths, any workers and any interleaving of sending, receiving and sleeping: the packets of one worker to one
    /// queue pair that are not dropped arrive whole and in order.
    #[test]
    fn queues_keep_order(
        steps in prop::collection::vec((0usize..3, 0u32..3, prop::collection::vec(0usize..5000, 0..12), 0usize..9, any::<bool>()), 1..80)
    ) {
        let (mut ports, _peer) = joined(3);
        let mut sent = vec![Vec::new(); 9];
        let mut sinks: Vec<_> = (0..3).map(|_| Collect::default()).collect();
        for (number, (from, to, lengths, budget, sleeps)) in steps.into_iter().enumerate() {
            // The queue pair number encodes the sender.
            let qpn = 0x100 + 16 * from as u32 + to;
            let payloads: Vec<_> = lengths.iter().map(|len| vec![number as u8; *len]).collect();
            prop_assert_eq!(send(&mut ports[from], &batch_to(qpn, &payloads)), []);
            sent[from * 3 + to as usize].extend(payloads);
            ports[to as usize].rx_burst(Nanos(0), budget, &mut sinks[to as usize]);
            if sleeps {
                ports[from].before_sleep();
            }
        }
        for _ in 0..2 {
            for port in &mut ports {
                port.before_sleep();
            }
            for (port, sink) in ports.iter_mut().zip(&mut sinks) {
                while port.rx_burst(Nanos(0), 64, sink) > 0 {}
            }
        }
        for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
            let qpn = 0x100 + 16 * from as u32 + to as u32;
            let came = sinks[to].payloads().into_iter().zip(qpns(&sinks[to]));
            let came: Vec<_> = came.filter(|(_, q)| *q == qpn).map(|(payload, _)| payload).collect();
            prop_assert!(came == sent[from * 3 + to]);
        }
        prop_assert!(ports.iter().all(|port| port.next_event() == Nanos::NEVER));
    }
}
