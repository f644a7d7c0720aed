//! The `dpdk` port: packets on any Ethernet device of DPDK, without the kernel.
//!
//! - `rx`: delivers a received frame to the engine or to the LAN;
//! - `tx`: makes a frame of the device from a packet of the engine, by one copy;
//! - `flow_cache`: headers, next hop and seal of the flows that were sent last;
//! - `poll_backoff`: when to poll next, on devices without receive interrupts.
//!
//! Each worker has a queue pair of its own. The device spreads received packets over the queues as it can (RSS by addresses and
//! ports; memif: the queue of the sender); the engine hands a packet that reaches the wrong worker over. No kernel answers for
//! the addresses: ARP, neighbour discovery and echo are done by [`crate::lan`]. Packets to an incomplete next hop wait until it
//! is resolved.
//!
//! A pass takes the packets that are there and continues ("run to completion"): bursts of 32, buffers that fit the L2 cache,
//! first cache lines prefetched, payload copied and its ICRC computed in one loop. The pressure on the receive queue is the
//! number of packets that one burst finds in it; what the device has lost is not asked for.

mod flow_cache;
mod poll_backoff;
mod rx;
mod tx;

use crate::error::PortError;
use crate::lan::{Lan, LanHost, LanNeighbour, SharedNeighbours};
use crate::spec::DpdkSpec;
use crate::{Encapsulation, NeighbourState, Port, PortAddr, PortCaps, Reach, ReceivePressure, RxSink};
use burst_base::{Nanos, Reason};
use burst_dpdk::{DevArgs, DeviceOptions, EthDev, EthQueue, RX_DESCRIPTORS};
use burst_frame::{Flow, TxBatch};
use burst_wire::MacAddr;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A port on one queue pair of a DPDK device.
pub struct DpdkPort {
    caps: PortCaps,
    queue: EthQueue,
    lan: Lan,
    tx: tx::DpdkTx,
    rx: rx::DpdkRx,
    backoff: poll_backoff::PollBackoff,
    level: ReceivePressure,
    /// Whether this worker announces the addresses when the link comes up.
    announces: bool,
    was_up: bool,
}

/// Learnt addresses that the workers' ports of one device share, by the device's name.
static SHARED: Mutex<Vec<(String, Weak<SharedNeighbours>)>> = Mutex::new(Vec::new());

impl DpdkPort {
    /// Opens the queue pair of worker `worker` of `workers`; worker 0 opens the device. `name` is the
    /// specification as the user wrote it.
    ///
    /// # Errors
    /// [`PortError::Device`]: one sentence.
    pub fn open(
        spec: &DpdkSpec,
        encapsulation: &Encapsulation,
        name: &str,
        worker: usize,
        workers: usize,
    ) -> Result<DpdkPort, PortError> {
        let args = DevArgs::parse(&spec.dev).map_err(PortError::Device)?;
        let device = if worker == 0 {
            let options =
                DeviceOptions { args: args.clone(), queues: workers as u16, mtu: spec.mtu, pages: spec.pages };
            EthDev::open(&options).map_err(PortError::Device)?
        } else {
            let gone = || PortError::Device(format!("DPDK device {} is closed", args.name()));
            EthDev::find(args.name()).ok_or_else(gone)?
        };
        let mac = MacAddr(device.mac());
        let host = LanHost { mac, addrs: spec.addrs.clone(), gateways: spec.gateways.clone() };
        let queue = device.queue_pair(worker as u16);
        let frame_max = queue.frame_max();
        Ok(DpdkPort {
            caps: caps_of(name, &args, &host, &device),
            lan: Lan::new(Arc::new(host), shared(args.name(), worker == 0), frame_max),
            tx: tx::DpdkTx::new(encapsulation, usize::from(device.mtu()), frame_max),
            rx: rx::DpdkRx::new(encapsulation, frame_max),
            backoff: poll_backoff::PollBackoff::default(),
            level: ReceivePressure::Free,
            announces: worker == 0,
            was_up: false,
            queue,
        })
    }

    /// Work beside packets: the link's state, solicitations, addresses that other workers have learnt.
    #[inline]
    fn housekeeping(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) {
        let DpdkPort { lan, queue, .. } = self;
        lan.follow(now, &mut |frame| emit(queue, frame));
        if now >= lan.next_event() {
            lan.tick(now, &mut |frame| emit(queue, frame), dropped);
        }
        let up = queue.device().link().up;
        if up != self.was_up {
            self.was_up = up;
            if up && self.announces {
                lan.announce(&mut |frame| emit(queue, frame));
            }
        }
    }
}

/// The shared addresses of a device; worker 0 begins with none.
fn shared(device: &str, new: bool) -> Arc<SharedNeighbours> {
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(name, shared)| shared.strong_count() > 0 && !(new && name == device));
    if let Some(shared) = all.iter().find(|(name, _)| name == device).and_then(|(_, shared)| shared.upgrade()) {
        return shared;
    }
    let shared = Arc::<SharedNeighbours>::default();
    all.push((device.to_owned(), Arc::downgrade(&shared)));
    shared
}

/// Stages a frame of the LAN. Without a free buffer the frame is lost, as it may be on any link, and is repeated later.
fn emit(queue: &mut EthQueue, frame: &[u8]) {
    if queue.is_full() {
        queue.flush();
    }
    if let Some(buffer) = queue.frame(frame.len()) {
        buffer.copy_from_slice(frame);
    }
}

fn caps_of(name: &str, args: &DevArgs, host: &LanHost, device: &EthDev) -> PortCaps {
    let link = device.link();
    let gateway = |v4: bool| host.gateways.iter().any(|g| g.is_ipv4() == v4);
    let addrs = host.addrs.iter().map(|p| PortAddr {
        ip: p.ip,
        ifindex: 0,
        ifname: args.name().to_owned(),
        reach: Some(Reach { prefix: *p, gateway: gateway(p.ip.is_ipv4()) }),
    });
    PortCaps {
        name: name.to_owned(),
        addrs: addrs.collect(),
        link_mtu: u32::from(device.mtu()),
        up: link.up,
        speed_mbps: link.speed_mbps,
        ifname: args.name().to_owned(),
        mac: device.mac(),
    }
}

impl Port for DpdkPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.housekeeping(now, &mut |reason| sink.dropped(reason));
        let DpdkPort { queue, lan, rx, .. } = self;
        let taken = queue.receive(budget, |frame| rx.frame(lan.host(), frame, sink));
        rx.pass_to_lan(lan, now, sink, &mut |frame| emit(queue, frame));
        tx::report(queue.flush(), &mut |reason| sink.dropped(reason));
        self.backoff.polled(now, taken > 0);
        let level = ReceivePressure::of(taken as u64, RX_DESCRIPTORS.into());
        if level != self.level {
            self.level = level;
            sink.pressure(level);
        }
        taken
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.tx.burst(now, &mut self.queue, &mut self.lan, batch, dropped);
    }

    fn prepare(&mut self, flow: &Flow) {
        let DpdkPort { queue, lan, backoff, .. } = self;
        if lan.host().owns(flow.src) {
            // A missing route is reported when a packet is sent.
            let _ = lan.neighbour(backoff.last(), flow.dst, &mut |frame| emit(queue, frame));
            queue.flush();
        }
    }

    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        let DpdkPort { queue, lan, .. } = self;
        lan.host().owns(flow.src)
            && lan.neighbour(now, flow.dst, &mut |frame| emit(queue, frame)) == Ok(LanNeighbour::Incomplete)
    }

    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        let DpdkPort { queue, lan, .. } = self;
        let found = lan.neighbour(now, dst, &mut |frame| emit(queue, frame));
        queue.flush();
        match found {
            Ok(LanNeighbour::Incomplete) => NeighbourState::Incomplete,
            Ok(LanNeighbour::Failed) => NeighbourState::Failed,
            // A missing route is reported when a packet is sent.
            Ok(LanNeighbour::Resolved(_)) | Err(_) => NeighbourState::Resolved,
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.queue.event_fd().into_iter().collect()
    }

    fn next_event(&self) -> Nanos {
        let poll = if self.queue.event_fd().is_some() { Nanos::NEVER } else { self.backoff.next() };
        self.lan.next_event().min(poll)
    }

    fn before_sleep(&mut self) -> bool {
        let waiting = self.queue.arm();
        self.backoff.grow();
        waiting
    }

    fn refresh(&mut self) -> bool {
        let link = self.queue.device().refresh();
        let changed = (self.caps.up, self.caps.speed_mbps) != (link.up, link.speed_mbps);
        (self.caps.up, self.caps.speed_mbps) = (link.up, link.speed_mbps);
        changed
    }
}
