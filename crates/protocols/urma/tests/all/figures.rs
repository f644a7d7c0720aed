//! What the design promises in numbers: state of N Jetties and M channels, traffic without order beside ordered traffic
//! behind a loss, and throughput under loss. Times are virtual, so that the figures are the same on every machine.
//!
//! `cargo test -p burst-urma --test all figures -- --nocapture` prints them.

use crate::common::*;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Dialect, OrderTag, ServiceMode, TaHeader, TaOpcode, UbPacket};
use burst_urma::{CrStatus, JettyConfig, JfsWr, LossRecovery, UrmaConfig};

const SECOND: Nanos = Nanos(1_000_000_000);

/// Each of `jetties` Jetties of host 0 writes to each of `peers` hosts; then the bytes of Jetties and channels.
fn bytes_of(jetties: usize, peers: usize) -> (usize, usize) {
    let mut world = World::new(peers + 1, 1 << 16, 5, |_| ());
    let jfc = world.jfc(0);
    let segments: Vec<u32> = (1..=peers).map(|peer| world.import_all(0, peer)).collect();
    let services = [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol];
    let ids: Vec<u32> = (0..jetties)
        .map(|i| world.jetty(0, JettyConfig { service: services[i % 3], ..JettyConfig::new(jfc, None) }))
        .collect();
    let data = world.data(0, 0, 4096);
    for jetty in &ids {
        for segment in &segments {
            let wr = JfsWr { segment: Some(*segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Write, data, 0) };
            world.post(0, *jetty, wr).expect("accepted");
        }
        world.run_for(Nanos(100_000));
    }
    world.run_for(SECOND);
    let crs = world.poll(0, jfc);
    assert_eq!(crs.len(), jetties * peers);
    assert!(crs.iter().all(|cr| cr.status == CrStatus::Success));
    let state = world.hosts[0].node.state();
    assert_eq!((state.jetties, state.channels), (jetties, peers));
    (state.jetty_bytes, state.channel_bytes)
}

#[test]
fn state_grows_with_the_sum_of_jetties_and_channels_not_with_their_product() {
    println!("jetties channels bytes/jetty bytes/channel");
    let mut last = (0, 0);
    for (jetties, peers) in [(1000, 1), (1000, 64), (16, 64)] {
        let (a, b) = bytes_of(jetties, peers);
        let each = (a.div_ceil(jetties), b.div_ceil(peers));
        println!("{jetties:7} {peers:8} {:11} {:13}", each.0, each.1);
        assert!(each.0 <= 300, "{} bytes for each Jetty", each.0);
        assert!(peers == 1 || each.1 <= 2048, "{} bytes for each channel", each.1);
        if jetties == 1000 && peers == 64 {
            assert_eq!(a, last.0, "Jetties cost the same with 1 and with 64 peers");
            last.1 = b;
        }
        if jetties == 16 {
            assert!(b <= last.1, "channels do not cost more with fewer Jetties");
        }
        last.0 = a;
    }
}

/// Latencies of requests without order of one Jetty, while the packets of an ordered Jetty on the same channel get lost.
fn latency_beside_losses(is_lossy: bool) -> (u64, u64, u64) {
    let mut world = World::new(2, 1 << 16, 9, |_| ());
    let (jfc_a, jfc_b) = (world.jfc(0), world.jfc(0));
    let ordered = world.jetty(0, JettyConfig { service: ServiceMode::Rot, ..JettyConfig::new(jfc_a, None) });
    let free = world.jetty(0, JettyConfig::new(jfc_b, None));
    let segment = world.import_all(0, 1);
    let data = world.data(0, 0, 256);
    let wr = JfsWr { segment: Some(segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Write, data, 0) };
    world.post(0, ordered, JfsWr { order: OrderTag::Strong, ..wr }).expect("accepted");
    world.run_for(SECOND);
    world.poll(0, jfc_a);
    let mut count = 0u32;
    world.filter = Some(Box::new(move |from, _, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        let is_ordered = matches!(packet.head.ta, Some(TaHeader::Request(r)) if r.base.rc_id == ordered);
        count += u32::from(is_ordered && from == 0);
        is_lossy && is_ordered && count % 10 == 1
    }));
    let (mut worst, mut sum, mut ordered_worst) = (0, 0, 0);
    for _ in 0..200 {
        let start = world.now;
        for _ in 0..4 {
            world.post(0, ordered, JfsWr { order: OrderTag::Strong, ..wr }).expect("accepted");
        }
        world.post(0, free, wr).expect("accepted");
        let (mut free_at, mut ordered_at, mut done) = (None, None, 0);
        while free_at.is_none() || ordered_at.is_none() {
            assert!(world.step(start + SECOND));
            if !world.poll(0, jfc_b).is_empty() {
                free_at = Some(world.now);
            }
            done += world.poll(0, jfc_a).len();
            if done == 4 && ordered_at.is_none() {
                ordered_at = Some(world.now);
            }
        }
        let latency = free_at.expect("done").since(start).0;
        worst = worst.max(latency);
        sum += latency;
        ordered_worst = ordered_worst.max(ordered_at.expect("done").since(start).0);
    }
    (sum / 200, worst, ordered_worst)
}

#[test]
fn requests_without_order_are_not_held_by_ordered_ones_behind_a_loss() {
    let (calm, stormy) = (latency_beside_losses(false), latency_beside_losses(true));
    println!("latency of requests without order, ns: mean {} worst {} without losses", calm.0, calm.1);
    println!("  beside an ordered Jetty that loses every tenth packet: mean {} worst {}", stormy.0, stormy.1);
    println!("  worst of four ordered requests: {} without losses, {} with", calm.2, stormy.2);
    assert_eq!((stormy.0, stormy.1), (calm.0, calm.1), "the same to the nanosecond");
    assert!(stormy.2 > calm.2, "the ordered ones wait for repetitions");
}

/// Time to write 32 MiB in messages of 64 KiB at 10 GB/s with this loss in millionths; also the packets sent.
fn time_to_write(loss: u64, recovery: LossRecovery) -> (Nanos, u64, u64) {
    let mut world = World::new(2, 1 << 17, 11, |config: &mut UrmaConfig| {
        config.recovery = recovery;
        config.window_max = 256 << 10;
        config.caqm = false;
    });
    world.weather = Weather { loss, ns_per_kb: 100, delay: Nanos(2_000), ..FAIR };
    let jfc = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc, None));
    let segment = world.import_all(0, 1);
    let data = world.data(0, 0, 65_536);
    let (mut posted, mut done) = (0, 0);
    while done < 512 {
        while posted < 512 && posted - done < 16 {
            let wr = JfsWr { segment: Some(segment), remote_addr: RAM_BASE, ..JfsWr::new(TaOpcode::Write, data, 0) };
            world.post(0, jetty, wr).expect("accepted");
            posted += 1;
        }
        assert!(world.step(Nanos(u64::MAX - 1)));
        done += world.poll(0, jfc).len();
    }
    (world.now, world.sent, world.count(0, Reason::UbRepeated))
}

#[test]
fn selective_repeat_keeps_four_fifths_of_the_throughput_at_one_percent_loss() {
    println!("loss  recovery   time_us  of_lossless packets repeated");
    for recovery in [LossRecovery::Selective, LossRecovery::GoBackN] {
        let base = time_to_write(0, recovery);
        for loss in [0, 1_000, 10_000] {
            let (time, packets, repeated) = time_to_write(loss, recovery);
            let share = base.0.0 as f64 / time.0 as f64;
            let percent = loss as f64 / 10_000.0;
            println!("{percent:4} {recovery:?} {:8} {share:10.3} {packets:8} {repeated:8}", time.0 / 1000);
            if recovery == LossRecovery::Selective {
                assert!(share >= 0.8, "{share}");
            }
        }
    }
}
