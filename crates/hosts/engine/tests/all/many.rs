//! Two whole workers with so many connected queue pairs that their memory is asked for ahead: all messages arrive once, and those
//! of different queue pairs leave as trains.
use crate::harness::{Host, request};
use burst_base::rng::Rng;
use burst_base::verbs::{Mtu, QpCap, QpType, WrOpcode};
use burst_base::{Nanos, Reason};
use burst_control::events::EventQueue;
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::{Port, PortCaps, RxSink};
use burst_shm::Cqe;
use burst_shm::cq::CqConsumer;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

const QUEUE_PAIRS: usize = 1100;
const CAP: QpCap = QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
const MESSAGE: u32 = 512;
/// Turns in a pass, and packets in a train of a kernel.
const TRAIN: usize = 64;
const ICRC: usize = 4;

/// A port that hands packets over as trains, and notes the numbers of packets of the trains that it sent.
struct Trains {
    port: MemPort,
    sent: Arc<Mutex<Vec<usize>>>,
    /// Whether received packets are handed over as trains.
    joins: bool,
}

/// Joins packets of one flow and one length.
struct Joiner<'a> {
    sink: &'a mut dyn RxSink,
    train: Option<(Flow, Vec<u8>, usize)>,
}

impl Joiner<'_> {
    fn flush(&mut self) {
        if let Some((flow, bytes, stride)) = self.train.take() {
            self.sink.train(&flow, &bytes, stride);
        }
    }
}

impl RxSink for Joiner<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        let stride = frame.bytes.len() + ICRC;
        if !self.train.as_ref().is_some_and(|(flow, _, of)| (*flow, *of) == (frame.flow, stride)) {
            self.flush();
        }
        let (_, bytes, _) = self.train.get_or_insert_with(|| (frame.flow, Vec::new(), stride));
        bytes.extend_from_slice(frame.bytes);
        bytes.extend_from_slice(&[0; ICRC]);
    }
    fn dropped(&mut self, reason: Reason) {
        panic!("{reason}");
    }
}

impl Port for Trains {
    fn caps(&self) -> &PortCaps {
        self.port.caps()
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        if !self.joins {
            return self.port.rx_burst(now, budget, sink);
        }
        let mut joiner = Joiner { sink, train: None };
        let taken = self.port.rx_burst(now, budget, &mut joiner);
        joiner.flush();
        taken
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        // As `port/udp` joins them: the source port of the first packet is that of all.
        let alike: Vec<_> =
            batch.frames().iter().map(|f| (Flow { src_port: 0, ..f.flow }, f.udp_payload_len())).collect();
        let trains = alike.chunk_by(|a, b| a == b).flat_map(|alike| alike.chunks(TRAIN)).map(<[_]>::len);
        self.sent.lock().expect("one thread").extend(trains);
        self.port.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.port.wait_fds()
    }
    fn next_event(&self) -> Nanos {
        self.port.next_event()
    }
}

/// One end of all queue pairs.
struct End {
    host: Host,
    cq: CqConsumer,
    queues: Vec<(burst_base::Qpn, u32, SqProducer, RqProducer)>,
    trains: Arc<Mutex<Vec<usize>>>,
}

impl End {
    fn new(port: MemPort, joins: bool) -> End {
        let trains = Arc::default();
        let mut host = Host::new(Box::new(Trains { port, sent: Arc::clone(&trains), joins }), 1 << 12);
        let (_, cq) = host.create_cq(4096, Arc::new(EventQueue::default()));
        let queues = (0..QUEUE_PAIRS).map(|_| host.create_on(QpType::Rc, CAP, 0)).collect();
        End { host, cq, queues, trains }
    }
    fn connect(&mut self, peer: &End) {
        for (own, peers) in self.queues.iter().zip(&peer.queues) {
            self.host.connect_qpn(own.0, peers.0, &peer.host.caps, Mtu::B1024);
        }
    }
    fn receive(&mut self, queue: usize) {
        let sge = self.host.sge(0, MESSAGE);
        self.queues[queue].3.write(queue as u64, &[sge]).expect("room");
        let _ = self.queues[queue].3.post();
    }
    fn send(&mut self, queue: usize) {
        let sge = self.host.sge(0, MESSAGE);
        let (_, doorbell, sq, _) = &mut self.queues[queue];
        sq.write(&request(WrOpcode::Send, queue as u64, 0, 0), &[sge]).expect("room");
        if sq.post() {
            self.host.bells[0].ring(0, *doorbell);
        }
    }
    /// Counts the completions of each queue pair.
    fn poll(&mut self, counts: &mut [usize]) -> usize {
        let (mut taken, mut cqe) = (0, Cqe::default());
        while self.cq.poll(&mut cqe) {
            assert_eq!((cqe.status, cqe.wr_id), (0, u64::from(cqe.qp_cookie)));
            counts[cqe.qp_cookie as usize] += 1;
            taken += 1;
            if cqe.is_recv == 0 {
                self.queues[cqe.qp_cookie as usize].2.free(cqe.sq_consumer);
            }
        }
        taken
    }
}

/// Sends two messages over each queue pair, in another order each time, in groups of [`TRAIN`]. Returns the trains that each end
/// has sent.
fn send_over_all(joins: bool) -> [Vec<usize>; 2] {
    let (pa, pb) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let [mut a, mut b] = [pa, pb].map(|port| End::new(port, joins));
    a.connect(&b);
    b.connect(&a);
    let (mut sent, mut received, mut now) = ([0; QUEUE_PAIRS], [0; QUEUE_PAIRS], Nanos(0));
    let (mut order, mut rng): (Vec<usize>, _) = ((0..QUEUE_PAIRS).collect(), Rng::new(7));
    for _ in 0..2 {
        (1..QUEUE_PAIRS).for_each(|at| order.swap(at, rng.below(at as u64 + 1) as usize));
        for group in order.chunks(TRAIN) {
            group.iter().for_each(|queue| b.receive(*queue));
            group.iter().for_each(|queue| a.send(*queue));
            let (mut done, end) = (0, now + Nanos::from_ms(1));
            while done < 2 * group.len() {
                now = now + Nanos(1_000);
                assert!(now < end, "{done} completions");
                a.host.worker.run_once(now);
                b.host.worker.run_once(now);
                done += a.poll(&mut sent) + b.poll(&mut received);
            }
        }
    }
    assert!(sent.iter().chain(&received).all(|count| *count == 2), "each message once");
    [a, b].map(|end| std::mem::take(&mut *end.trains.lock().expect("one thread")))
}

#[test]
fn messages_of_many_queue_pairs_and_their_acknowledgements_leave_as_trains() {
    let round = |_| (0..QUEUE_PAIRS).step_by(TRAIN).map(|at| TRAIN.min(QUEUE_PAIRS - at));
    let groups: Vec<usize> = (0..2).flat_map(round).collect();
    for trains in send_over_all(false) {
        assert_eq!(trains.iter().sum::<usize>(), 2 * QUEUE_PAIRS, "no packet is sent twice");
        // The window of the path opens in the first group.
        assert!(trains.ends_with(&groups[1..]), "{trains:?}");
    }
}

#[test]
fn packets_of_many_queue_pairs_in_one_train_find_them() {
    for trains in send_over_all(true) {
        assert_eq!(trains.iter().sum::<usize>(), 2 * QUEUE_PAIRS, "no packet is sent twice");
    }
}
