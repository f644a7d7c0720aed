//! Order of completions in one queue: a request's completion comes before that of the answer to it, where ACK and answer travel
//! together.
use crate::harness::{AppQp, Host, poll, request, run};
use burst_base::Nanos;
use burst_base::verbs::{Mtu, QpType, WcStatus, WrOpcode};
use burst_port::mem::{MemConfig, pair};
use burst_shm::Cqe;
use std::net::IpAddr;

const ROUNDS: u64 = 200;

struct Peers {
    client: Host,
    server: Host,
    client_qp: AppQp,
    server_qp: AppQp,
    now: Nanos,
}

impl Peers {
    fn new() -> Peers {
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let (pa, pb) = pair(MemConfig { latency: Nanos(2_000), ..MemConfig::default() }, a, b);
        let (mut client, mut server) = (Host::new(Box::new(pa), 1 << 16), Host::new(Box::new(pb), 1 << 16));
        let (client_qp, server_qp) = (client.create(QpType::Rc), server.create(QpType::Rc));
        let (client_caps, server_caps) = (client.caps.clone(), server.caps.clone());
        client.connect(&client_qp, server_qp.qpn, &server_caps, Mtu::B1024);
        server.connect(&server_qp, client_qp.qpn, &client_caps, Mtu::B1024);
        Peers { client, server, client_qp, server_qp, now: Nanos(0) }
    }

    /// The client sends `length` bytes, the server answers with as many as soon as it has received them. Returns the completions
    /// that the client sees until both of its requests have completed.
    fn round(&mut self, wr_id: u64, length: u32) -> Vec<Cqe> {
        let Peers { client, server, client_qp, server_qp, now } = self;
        post_receive(client, client_qp);
        post_receive(server, server_qp);
        let sge = client.sge(0, length);
        client.post(client_qp, request(WrOpcode::Send, wr_id, 0, 0), &[sge]);
        let mut seen = Vec::new();
        let done = run(client, server, now, |_, server| {
            if std::iter::from_fn(|| poll(server_qp)).any(|cqe| cqe.is_recv == 1) {
                let sge = server.sge(0, length);
                server.post(server_qp, request(WrOpcode::Send, wr_id, 0, 0), &[sge]);
            }
            seen.extend(std::iter::from_fn(|| poll(client_qp)));
            seen.len() == 2
        });
        assert!(done, "round {wr_id} has no end: {seen:?}");
        seen
    }
}

fn post_receive(host: &Host, qp: &mut AppQp) {
    qp.rq.write(0, &[host.sge(8192, 8192)]).expect("room");
    let _ = qp.rq.post();
}

#[test]
fn a_request_completes_before_its_answer_in_each_round() {
    // Nothing, one packet, several packets.
    for length in [0, 64, 3000] {
        let mut peers = Peers::new();
        for wr_id in 0..ROUNDS {
            let seen = peers.round(wr_id, length);
            let order = seen.iter().map(|cqe| (cqe.is_recv, cqe.status)).collect::<Vec<_>>();
            let success = WcStatus::Success as u8;
            assert_eq!(order, [(0, success), (1, success)], "{length} bytes, round {wr_id}");
        }
    }
}

#[test]
fn receives_of_one_burst_keep_their_order_whatever_completes_between_them() {
    let mut peers = Peers::new();
    for wr_id in 0..50 {
        let Peers { client, server, client_qp, server_qp, now } = &mut peers;
        (0..8).for_each(|_| post_receive(client, client_qp));
        post_receive(server, server_qp);
        let sge = client.sge(0, 64);
        client.post(client_qp, request(WrOpcode::Send, wr_id, 0, 0), &[sge]);
        let (mut received, mut answered) = (Vec::new(), false);
        let done = run(client, server, now, |_, server| {
            if std::iter::from_fn(|| poll(server_qp)).any(|cqe| cqe.is_recv == 1) && !answered {
                answered = true;
                for n in 1..=8 {
                    let sge = server.sge(0, n * 10);
                    server.post(server_qp, request(WrOpcode::Send, wr_id, 0, 0), &[sge]);
                }
            }
            received
                .extend(std::iter::from_fn(|| poll(client_qp)).filter(|cqe| cqe.is_recv == 1).map(|cqe| cqe.byte_len));
            received.len() == 8
        });
        assert!(done);
        assert_eq!(received, (1..=8).map(|n| n * 10).collect::<Vec<u32>>());
        run(client, server, now, |_, _| poll(server_qp).is_none());
    }
}
