//! [`DpdkPort`]: a port on one queue pair of a device.

use crate::device::{DeviceOptions, EthDev, RX_DESCRIPTORS};
use crate::share::{DeviceShare, EthLine, lock};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_port::error::PortError;
use burst_port::lan::{Lan, LanHost, LanNeighbour};
use burst_port::spec::{DevArgs, DpdkSpec};
use burst_port::{Encapsulation, NeighbourState, Port, PortAddr, PortCaps, Reach, ReceivePressure, RxSink};
use burst_wire::MacAddr;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A port on one queue pair of a DPDK device.
pub struct DpdkPort {
    caps: PortCaps,
    line: Arc<Mutex<EthLine>>,
    share: Arc<DeviceShare>,
    /// The descriptor of receive interrupts, if the driver has them; known since the first sleep.
    event_fd: Option<RawFd>,
    tx: crate::tx::DpdkTx,
    rx: crate::rx::DpdkRx,
    backoff: crate::poll_backoff::PollBackoff,
    level: ReceivePressure,
    /// Whether this worker announces the addresses when the link comes up.
    announces: bool,
    was_up: bool,
}

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
        let (device, share) = if worker == 0 {
            let options =
                DeviceOptions { args: args.clone(), queues: workers as u16, mtu: spec.mtu, pages: spec.pages };
            let device = EthDev::open(&options).map_err(PortError::Device)?;
            (device, DeviceShare::begin(args.name(), encapsulation.udp_port))
        } else {
            let gone = || PortError::Device(format!("DPDK device {} is closed", args.name()));
            (EthDev::find(args.name()).ok_or_else(gone)?, DeviceShare::find(args.name())?)
        };
        let mac = MacAddr(device.mac());
        let host = LanHost { mac, addrs: spec.addrs.clone(), gateways: spec.gateways.clone() };
        let queue = device.queue_pair(worker as u16);
        let frame_max = queue.frame_max();
        Ok(DpdkPort {
            caps: caps_of(name, &args, &host, &device),
            tx: crate::tx::DpdkTx::new(encapsulation, usize::from(device.mtu()), frame_max),
            rx: crate::rx::DpdkRx::new(encapsulation, frame_max),
            backoff: crate::poll_backoff::PollBackoff::default(),
            level: ReceivePressure::Free,
            announces: worker == 0,
            was_up: false,
            event_fd: None,
            line: share.add_line(EthLine { lan: Lan::new(Arc::new(host), share.neighbours.clone(), frame_max), queue }),
            share,
        })
    }
}

/// The link of a port, as it was when the port last looked.
struct LinkWatch<'a> {
    was_up: &'a mut bool,
    announces: bool,
}

impl LinkWatch<'_> {
    /// Work beside packets: the link's state, solicitations, addresses that other workers have learnt.
    #[inline]
    fn housekeeping(&mut self, now: Nanos, line: &mut EthLine, dropped: &mut dyn FnMut(Reason)) {
        let EthLine { lan, queue } = line;
        lan.follow(now, &mut |frame| EthLine::emit(queue, frame));
        if now >= lan.next_event() {
            lan.tick(now, &mut |frame| EthLine::emit(queue, frame), dropped);
        }
        let up = queue.device().link().up;
        if up != *self.was_up {
            *self.was_up = up;
            if up && self.announces {
                lan.announce(&mut |frame| EthLine::emit(queue, frame));
            }
        }
    }
}

/// What a port of `device` says of itself.
pub(crate) fn caps_of(name: &str, args: &DevArgs, host: &LanHost, device: &EthDev) -> PortCaps {
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
        let DpdkPort { line, share, rx, was_up, announces, .. } = self;
        let line = &mut *lock(line);
        LinkWatch { was_up, announces: *announces }.housekeeping(now, line, &mut |reason| sink.dropped(reason));
        let EthLine { queue, lan } = line;
        rx.begin(share);
        let taken = queue.receive(budget, |frame| rx.frame(lan.host(), frame, sink));
        rx.pass_to_lan(lan, now, sink, &mut |frame| EthLine::emit(queue, frame));
        crate::tx::report(queue.flush(), &mut |reason| sink.dropped(reason));
        self.backoff.polled(now, taken > 0);
        let level = ReceivePressure::of(taken as u64, RX_DESCRIPTORS.into());
        if level != self.level {
            self.level = level;
            sink.pressure(level);
        }
        taken
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let EthLine { queue, lan } = &mut *lock(&self.line);
        self.tx.burst(now, (queue, lan), batch, |_| None, dropped);
    }

    fn prepare(&mut self, flow: &Flow) {
        let EthLine { queue, lan } = &mut *lock(&self.line);
        if lan.host().owns(flow.src) {
            // A missing route is reported when a packet is sent.
            let _ = lan.neighbour(self.backoff.last(), flow.dst, &mut |frame| EthLine::emit(queue, frame));
            queue.flush();
        }
    }

    fn is_resolving(&mut self, now: Nanos, flow: &Flow) -> bool {
        let EthLine { queue, lan } = &mut *lock(&self.line);
        lan.host().owns(flow.src)
            && lan.neighbour(now, flow.dst, &mut |frame| EthLine::emit(queue, frame)) == Ok(LanNeighbour::Incomplete)
    }

    fn next_hop(&mut self, now: Nanos, dst: IpAddr) -> NeighbourState {
        let EthLine { queue, lan } = &mut *lock(&self.line);
        let found = lan.neighbour(now, dst, &mut |frame| EthLine::emit(queue, frame));
        queue.flush();
        match found {
            Ok(LanNeighbour::Incomplete) => NeighbourState::Incomplete,
            Ok(LanNeighbour::Failed) => NeighbourState::Failed,
            // A missing route is reported when a packet is sent.
            Ok(LanNeighbour::Resolved(_)) | Err(_) => NeighbourState::Resolved,
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.event_fd.into_iter().collect()
    }

    fn next_event(&self) -> Nanos {
        let poll = if self.event_fd.is_some() { Nanos::NEVER } else { self.backoff.next() };
        lock(&self.line).lan.next_event().min(poll)
    }

    fn before_sleep(&mut self) -> bool {
        let queue = &mut lock(&self.line).queue;
        let waiting = queue.arm();
        self.event_fd = queue.event_fd();
        self.backoff.grow();
        waiting
    }

    fn refresh(&mut self) -> bool {
        let link = lock(&self.line).queue.device().refresh();
        let changed = (self.caps.up, self.caps.speed_mbps) != (link.up, link.speed_mbps);
        (self.caps.up, self.caps.speed_mbps) = (link.up, link.speed_mbps);
        changed
    }
}
