//! Posts, packets, losses, duplicates, changed packets and time for a pair of URMA nodes: nothing panics, memory outside of
//! segments is not reached, and when the network is fair again, each request ends once and no record is left. Where a packet
//! was changed (a hostile peer, because the checksum is not checked here), requests end when the host ends the channel.
#![no_main]

use burst_base::{Nanos, Reason};
use burst_ubwire::{OrderTag, ServiceMode, TaOpcode};
use burst_urma::{
    ECHO_JETTY, JettyConfig, JettyState, JfrConfig, JfrWr, JfsWr, LocalRange, LossRecovery, MemoryGone, NoPaths,
    NodeEid, RemoteJetty, SegmentConfig, TargetKind, TransMode, UrmaConfig, UrmaEffects, UrmaEnv, UrmaMemory, UrmaNode,
    WrData, access,
};
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;

const BASE: u64 = 0x1000;
const BYTES: usize = 1 << 14;

struct Ram(Vec<u8>);

impl Ram {
    fn range(&self, addr: u64, len: usize) -> std::ops::Range<usize> {
        let from = addr.checked_sub(BASE).expect("the node has checked the range") as usize;
        assert!(from + len <= self.0.len(), "the node has checked the range");
        from..from + len
    }
}

impl UrmaMemory for Ram {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        out.copy_from_slice(&self.0[self.range(addr, out.len())]);
        Ok(())
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        let range = self.range(addr, bytes.len());
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }
    fn update(&mut self, _region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let range = self.range(addr, 8);
        let old = u64::from_le_bytes(self.0[range.clone()].try_into().expect("eight"));
        self.0[range].copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
}

struct Ignore;

impl UrmaEffects for Ignore {
    fn count(&mut self, _reason: Reason) {}
}

struct Side {
    node: UrmaNode,
    ram: Ram,
    token_id: u32,
    jfc: u32,
    jfr: u32,
    jetties: Vec<u32>,
    segment: u32,
    targets: Vec<u32>,
    echo: u32,
    posted: u64,
    ended: u64,
    arrivals: VecDeque<Vec<u8>>,
}

const SERVICES: [ServiceMode; 4] = [ServiceMode::Roi, ServiceMode::Rot, ServiceMode::Rol, ServiceMode::Uno];

fn side(index: u32, recovery: LossRecovery, lanes: u8) -> Side {
    let mut config = UrmaConfig::new(NodeEid::numbered(index + 1), u64::from(index) + 1);
    (config.mtu, config.recovery, config.lanes) = (256, recovery, lanes);
    (config.reorder_packets, config.inbound_max, config.responses_max, config.contexts_max) = (4, 6, 10, 2);
    let mut node = UrmaNode::new(config);
    let rights = access::READ | access::WRITE | access::ATOMIC;
    let segment = SegmentConfig { addr: BASE, len: BYTES as u64, token: None, access: rights };
    let token_id = node.register_segment(segment).expect("room");
    let jfc = node.create_jfc(1 << 16).expect("room");
    let jfr = JfrConfig { depth: 64, rnr_timer: 0, ..JfrConfig::new(jfc) };
    let jfr = node.create_jfr(jfr).expect("room");
    let jetties = SERVICES.iter().map(|service| {
        let mode = if *service == ServiceMode::Uno { TransMode::Um } else { TransMode::Rm };
        let config =
            JettyConfig { mode, service: *service, depth: 8, rnr_retry: 3, ..JettyConfig::new(jfc, Some(jfr)) };
        node.create_jetty(config).expect("sound")
    });
    let jetties: Vec<u32> = jetties.collect();
    let ram = Ram(vec![0; BYTES]);
    let none = Vec::new();
    Side {
        node,
        ram,
        token_id,
        jfc,
        jfr,
        jetties,
        segment: 0,
        targets: none,
        echo: 0,
        posted: 0,
        ended: 0,
        arrivals: VecDeque::new(),
    }
}

fn with<R>(side: &mut Side, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> R {
    let mut env = UrmaEnv { now, mem: &mut side.ram, fx: &mut Ignore, paths: &mut NoPaths };
    let result = call(&mut side.node, &mut env);
    side.node.check().expect("what must hold between two calls");
    result
}

fn collect(side: &mut Side) {
    while let Some(cr) = side.node.poll_jfc(side.jfc) {
        side.ended += u64::from(!cr.is_receive);
        assert!(side.ended <= side.posted, "each request ends once");
    }
}

fn transmit(sides: &mut [Side; 2], now: Nanos, fate: &mut dyn FnMut() -> u8) {
    let mut out = vec![0; sides[0].node.packet_max()];
    for from in 0..2 {
        for _ in 0..64 {
            let Some(sent) = with(&mut sides[from], now, |node, env| node.poll_tx(env, &mut out)) else { break };
            let copy = out[..sent.len].to_vec();
            let queue = &mut sides[1 - from].arrivals;
            match fate() {
                0 => {}
                1 => queue.extend([copy.clone(), copy]),
                2 => queue.push_front(copy),
                _ => queue.push_back(copy),
            }
        }
    }
}

fn deliver(sides: &mut [Side; 2], now: Nanos) {
    for (index, side) in sides.iter_mut().enumerate() {
        let other = NodeEid::numbered(2 - index as u32);
        while let Some(bytes) = side.arrivals.pop_front() {
            with(side, now, |node, env| node.on_packet(env, other, &bytes));
        }
        with(side, now, |node, env| node.on_timer(env));
        collect(side);
    }
}

fn post(side: &mut Side, now: Nanos, a: u8, b: u8) {
    let opcodes = [
        TaOpcode::Write,
        TaOpcode::Read,
        TaOpcode::Send,
        TaOpcode::SendImm,
        TaOpcode::FetchAdd,
        TaOpcode::WriteImm,
        TaOpcode::WriteNotify,
        TaOpcode::Cas,
    ];
    let opcode = opcodes[usize::from(a & 7)];
    let which = usize::from(a >> 3 & 3);
    let len = if opcode.is_atomic() { 8 } else { [0, 8, 256, 257, 2000, 100, 512, 1][usize::from(b & 7)] };
    let range = LocalRange { token_id: side.token_id, addr: BASE + u64::from(b) * 16, len };
    let wr = JfsWr {
        target: Some(if a & 0x20 == 0 { side.targets[which] } else { side.echo }),
        segment: Some(side.segment),
        remote_addr: BASE + u64::from(b) * 8,
        notify: Some((side.segment, BASE + u64::from(a) * 8)),
        order: [OrderTag::None, OrderTag::Relaxed, OrderTag::Strong][usize::from(b >> 3 & 3).min(2)],
        completion_order: b & 0x40 != 0,
        fence: b & 0x80 != 0,
        ..JfsWr::new(opcode, WrData::Local(range), 0)
    };
    let jetty = side.jetties[which];
    side.posted += 1;
    if with(side, now, |node, env| node.post_send(jetty, &wr, env)).is_err() {
        side.posted -= 1;
    }
    collect(side);
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, script)) = bytes.split_first() else { return };
    let recovery = if first & 1 == 0 { LossRecovery::Selective } else { LossRecovery::GoBackN };
    let lanes = 1 + (first >> 1 & 7);
    let mut sides = [side(0, recovery, lanes), side(1, recovery, lanes)];
    for i in 0..2 {
        let (own, other) = if i == 0 { (0, 1) } else { (1, 0) };
        let echo = RemoteJetty {
            eid: NodeEid::numbered(other as u32 + 1),
            id: ECHO_JETTY,
            kind: TargetKind::Jetty,
            token: None,
        };
        sides[own].echo = sides[own].node.import_jetty(echo).expect("room");
        let segment = sides[other].node.export_segment(sides[other].token_id).expect("registered");
        sides[own].segment = sides[own].node.import_segment(segment).expect("room");
        let targets: Vec<u32> = sides[other].jetties.clone();
        for id in targets {
            let remote =
                RemoteJetty { eid: NodeEid::numbered(other as u32 + 1), id, kind: TargetKind::Jetty, token: None };
            let target = sides[own].node.import_jetty(remote).expect("room");
            sides[own].targets.push(target);
        }
    }
    let (mut now, mut is_changed) = (Nanos(1), false);
    for step in script.chunks(3) {
        let &[op, a, b] = step else { break };
        let who = usize::from(op >> 7);
        match op & 7 {
            0 | 1 => post(&mut sides[who], now, a, b),
            2 => {
                let side = &mut sides[who];
                let range =
                    LocalRange { token_id: side.token_id, addr: BASE + u64::from(a) * 8, len: u32::from(b) * 8 };
                // Refused if the queue is full.
                let _ = side.node.post_recv(side.jfr, JfrWr { range, user_ctx: 1 });
            }
            3 => {
                let mut n = a;
                transmit(&mut sides, now, &mut || {
                    n = n.wrapping_mul(5).wrapping_add(b | 1);
                    n >> 4
                });
            }
            4 => deliver(&mut sides, now),
            5 => now = now + Nanos(u64::from(a) << (b & 15)),
            6 => {
                // A packet is changed on its way, without regard to the checksum.
                if let Some(byte) = sides[who].arrivals.front_mut().and_then(|p| p.get_mut(usize::from(a))) {
                    *byte ^= b;
                    is_changed |= b != 0;
                }
            }
            _ => {
                now = sides[0]
                    .node
                    .next_deadline()
                    .min(sides[1].node.next_deadline())
                    .max(now)
                    .min(now + Nanos(10_000_000_000))
            }
        }
    }
    // The network is fair; receives are there; then all is over within the time-outs.
    for _ in 0..4000 {
        for side in &mut sides {
            let range = LocalRange { token_id: side.token_id, addr: BASE, len: 4096 };
            let _ = side.node.post_recv(side.jfr, JfrWr { range, user_ctx: 2 });
        }
        transmit(&mut sides, now, &mut || 9);
        deliver(&mut sides, now);
        // What comes back from an echo outlives the request.
        let is_quiet = |side: &Side| {
            let state = side.node.state();
            is_changed || (state.inbound, state.responses) == (0, 0)
        };
        if sides.iter().all(|side| side.ended == side.posted && is_quiet(side)) {
            break;
        }
        let next = sides[0].node.next_deadline().min(sides[1].node.next_deadline());
        now = if next == Nanos::NEVER { now + Nanos(1_000_000) } else { next.max(now + Nanos(1_000)) };
    }
    for (i, side) in sides.iter_mut().enumerate() {
        for jetty in side.jetties.clone() {
            assert_eq!(side.node.jetty_state(jetty), Some(JettyState::Ready), "no Jetty is harmed");
        }
        if is_changed {
            with(side, now, |node, _| node.end_channel(NodeEid::numbered(2 - i as u32)));
            // A request that another one held begins with a channel of its own.
            for _ in 0..200 {
                with(side, now, |node, env| while node.poll_tx(env, &mut [0; 4096]).is_some() {});
                // The other side may have gone on to a later time.
                now = side.node.next_deadline().max(now).min(now + Nanos(1_000_000_000));
                with(side, now, |node, env| node.on_timer(env));
                collect(side);
            }
        }
        assert_eq!(side.ended, side.posted, "each request ends");
        let state = side.node.state();
        assert_eq!((state.requests, is_changed || state.inbound + state.responses == 0), (0, true), "{state:?}");
    }
});
