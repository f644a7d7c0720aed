//! C-AQM with hints: several senders share one switch port that speaks it; queue, utilisation and fairness in virtual time.

use crate::common::*;
use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_ubwire::{CongestionField, Nth, TaOpcode, encap};
use burst_urma::caqm::CaqmPort;
use burst_urma::{CrStatus, JettyConfig, JfsWr, NoPaths, UrmaConfig, UrmaEnv};
use std::collections::VecDeque;

/// Bytes per microsecond of the port.
const RATE: u64 = 10_000;
const SENDERS: usize = 4;
const MTU: u32 = 4096;

struct Outcome {
    /// Share of the port's capacity in the second half.
    utilisation: f64,
    /// Longest queue in the second half, bytes.
    queue_max: u64,
    /// Bytes that each sender completed in the second half.
    shares: Vec<u64>,
    drops: u64,
}

/// Keeps 16 writes of each sender outstanding; the bytes of those that have ended.
fn post_all(world: &mut World, setup: &[(u32, u32, u32)]) -> Vec<u64> {
    let mut ended = vec![0; setup.len()];
    for (i, (jfc, jetty, segment)) in setup.iter().enumerate() {
        for cr in world.poll(i + 1, *jfc) {
            assert_eq!(cr.status, CrStatus::Success);
            ended[i] += u64::from(cr.len);
        }
        let data = world.data(i + 1, 0, 65_536);
        let wr = JfsWr { segment: Some(*segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Write, data, 0) };
        while world.hosts[i + 1].node.state().requests < 16 {
            world.post(i + 1, *jetty, wr).expect("accepted");
        }
    }
    ended
}

/// Senders 1 to `SENDERS` write to host 0 through one port for 4 ms. Packets in the other direction take 2 us.
fn run(is_caqm: bool) -> Outcome {
    let mut world = World::new(SENDERS + 1, 1 << 17, 3, |config: &mut UrmaConfig| config.caqm = is_caqm);
    let (mut port, mut rng) = (CaqmPort::new(MTU, RATE * 1_000_000), Rng::new(5));
    let setup: Vec<(u32, u32, u32)> = (1..=SENDERS)
        .map(|host| {
            let jfc = world.jfc(host);
            (jfc, world.jetty(host, JettyConfig::new(jfc, None)), world.import_all(host, 0))
        })
        .collect();
    let mut queue: VecDeque<Vec<u8>> = VecDeque::new();
    let mut queued = 0u64;
    let mut back: VecDeque<(u64, usize, Vec<u8>)> = VecDeque::new();
    let mut outcome = Outcome { utilisation: 0.0, queue_max: 0, shares: vec![0; SENDERS], drops: 0 };
    let (mut credit, mut carried) = (0i64, 0u64);
    let mut buffer = vec![0u8; 16384];
    let limit = 2_000_000u64;
    // Steps of 100 ns; a period of the port is five of them.
    for step in 0..40_000u64 {
        world.now = Nanos(step * 100);
        let is_second_half = step >= 20_000;
        for (i, bytes) in post_all(&mut world, &setup).into_iter().enumerate() {
            outcome.shares[i] += bytes * u64::from(is_second_half);
        }
        while back.front().is_some_and(|b| b.0 <= step) {
            let Some((_, dest, bytes)) = back.pop_front() else { break };
            world.with(dest, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        }
        for host in 0..=SENDERS {
            world.with(host, |node, env| node.on_timer(env));
            while let Some(sent) = poll(&mut world, host, &mut buffer) {
                let mut bytes = buffer[..sent.1].to_vec();
                if sent.0 > 0 {
                    back.push_back((step + 20, sent.0, bytes));
                    continue;
                }
                let at = Nth::CONGESTION_AT;
                let field = CongestionField::parse(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
                let field = port.on_packet(field, bytes.len() as u32, &mut rng);
                bytes[at..at + 2].copy_from_slice(&field.bits().to_be_bytes());
                if queued + bytes.len() as u64 > limit {
                    outcome.drops += 1;
                    continue;
                }
                queued += bytes.len() as u64;
                queue.push_back(bytes);
            }
        }
        credit = (credit + RATE as i64 / 10).min(i64::from(MTU) * 2);
        while queue.front().is_some_and(|bytes| bytes.len() as i64 <= credit) {
            let Some(bytes) = queue.pop_front() else { break };
            credit -= bytes.len() as i64;
            queued -= bytes.len() as u64;
            carried += bytes.len() as u64 * u64::from(is_second_half);
            world.with(0, |node, env| node.on_packet(env, crate::common::sender(&bytes), &bytes));
        }
        if is_second_half {
            outcome.queue_max = outcome.queue_max.max(queued);
        }
        if step % 5 == 4 {
            port.on_period(queued);
        }
    }
    outcome.utilisation = carried as f64 / (RATE * 2_000) as f64;
    outcome
}

/// A packet of a host: destination host and length. Also checks that the checksum survives a change of the congestion field.
fn poll(world: &mut World, host: usize, buffer: &mut [u8]) -> Option<(usize, usize)> {
    let h = &mut world.hosts[host];
    let mut env = UrmaEnv { now: world.now, mem: &mut h.ram, fx: &mut h.log, paths: &mut NoPaths };
    let sent = h.node.poll_tx(&mut env, buffer)?;
    let sum = encap::checksum(&buffer[..sent.len]);
    buffer[Nth::CONGESTION_AT] ^= 0x02;
    assert_eq!(encap::checksum(&buffer[..sent.len]), sum);
    buffer[Nth::CONGESTION_AT] ^= 0x02;
    Some((sent.dest.cna().get() as usize - 1, sent.len))
}

#[test]
fn hints_keep_a_shared_port_busy_with_a_short_queue_and_share_it() {
    let (with, without) = (run(true), run(false));
    for (name, o) in [("C-AQM", &with), ("none", &without)] {
        let (least, most) = (o.shares.iter().min().expect("some"), o.shares.iter().max().expect("some"));
        println!(
            "{name:6} utilisation {:.3} queue_max {} kB, least/most share {:.2}, drops {}",
            o.utilisation,
            o.queue_max / 1000,
            *least as f64 / *most as f64,
            o.drops
        );
    }
    assert!(with.utilisation > 0.85, "{}", with.utilisation);
    assert!(with.queue_max < 40 * u64::from(MTU), "{}", with.queue_max);
    assert!(with.queue_max * 4 < without.queue_max);
    assert_eq!(with.drops, 0);
    let (least, most) = (with.shares.iter().min().expect("some"), with.shares.iter().max().expect("some"));
    assert!(least * 2 > *most, "{:?}", with.shares);
}
