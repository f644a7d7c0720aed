//! Bytes of the heap that a Jetty and a channel cost, counted by the allocator, not by the node. One test, so that nothing
//! else allocates.
//!
//! SAFETY: the allocator passes every call on to the system's unchanged and adds up sizes.

mod common;

use burst_base::{Nanos, Reason};
use burst_ubwire::ServiceMode;
use burst_urma::{JettyConfig, NoPaths, NodeEid, UrmaConfig, UrmaEnv, UrmaNode};
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

struct Counting;

static HEAP: AtomicIsize = AtomicIsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size() as isize, Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size() as isize, Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Management message REQUEST of a host that has this address.
fn open_request(world: &mut World, peer: u32) -> Vec<u8> {
    let mut node = UrmaNode::new(UrmaConfig::new(NodeEid::numbered(peer), u64::from(peer)));
    let jfc = node.create_jfc(16).expect("room");
    let jetty = node.create_jetty(JettyConfig::new(jfc, None)).expect("sound");
    let token_id = world.hosts[0].all;
    let segment = world.hosts[0].node.export_segment(token_id).expect("registered");
    let segment = node.import_segment(segment).expect("room");
    let mut ram =
        Ram { bytes: vec![0; 64], is_gone: false, own: burst_span::ProcessMemory::own().expect("own memory") };
    let mut log = Log::default();
    let mut env = UrmaEnv { now: Nanos(0), mem: &mut ram, fx: &mut log, paths: &mut NoPaths };
    let data = burst_urma::WrData::inline(&[1]).expect("short");
    let wr = burst_urma::JfsWr {
        segment: Some(segment),
        remote_addr: RAM_BASE,
        ..burst_urma::JfsWr::new(burst_ubwire::TaOpcode::Write, data, 0)
    };
    node.post_send(jetty, &wr, &mut env).expect("accepted");
    let mut out = vec![0; node.packet_max()];
    let sent = node.poll_tx(&mut env, &mut out).expect("a REQUEST");
    out.truncate(sent.len);
    out
}

#[test]
fn a_thousand_jetties_and_sixty_four_channels_cost_their_sum() {
    let mut world = World::new(1, 1 << 12, 1, |_| ());
    let jfc = world.jfc(0);
    let before = HEAP.load(Relaxed);
    for i in 0..1000 {
        let service = [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol][i % 3];
        world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc, None) });
    }
    let jetties = HEAP.load(Relaxed) - before;
    let requests: Vec<Vec<u8>> = (2..66).map(|peer| open_request(&mut world, peer)).collect();
    let before = HEAP.load(Relaxed);
    for request in &requests {
        world.with(0, |node, env| node.on_packet(env, crate::common::sender(request), request));
    }
    let mut buffer = [0; 8192];
    while world.with(0, |node, env| node.poll_tx(env, &mut buffer)).is_some() {}
    let channels = HEAP.load(Relaxed) - before;
    let state = world.hosts[0].node.state();
    assert_eq!((state.jetties, state.channels), (1000, 64));
    assert_eq!(world.count(0, Reason::UbManagement), 0);
    println!("heap: {} bytes for each of 1000 Jetties, {} for each of 64 channels", jetties / 1000, channels / 64);
    assert!(jetties / 1000 <= 300 && channels / 64 <= 2048);
    assert!(jetties > 100 * 1000 && channels > 500 * 64, "the allocator counts");
}
