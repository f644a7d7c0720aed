//! The `udp` port: packets by ordinary UDP sockets, on any interface, without privileges.
//!
//! - `socks`: one unconnected socket per address of the interface and per multicast group, on the encapsulation's UDP port;
//! - `tx`: trains by UDP_SEGMENT, all of a batch in one `sendmmsg`, payload not copied;
//! - `rx`: trains by UDP_GRO, verified whole or split (`crate::rx_train`);
//! - [`crate::ether::icrc`]: the ICRC and the IPv4 identification that it covers.
//!
//! Limits of a socket: the UDP source port is the port's own, one for each worker (so ECMP spreads workers, not flows), or one
//! of the few for which [`Port::open_source_ports`] opens sockets; the kernel chooses the IPv6 flow label when sending and does
//! not report it when receiving. RoCEv2 needs neither.
//!
//! Sending waits for room in the socket's send buffer, a few milliseconds at most, and then drops.
//!
//! Which socket has packets tells `watch`: the busy one is read without a question, the others are watched by one epoll
//! descriptor.

mod rx;
mod socks;
mod tx;
mod watch;

use crate::error::PortError;
use crate::spec::UdpSpec;
use crate::sys::socket;
use crate::{
    AddressSharing, Encapsulation, LentSocket, Port, PortAddr, PortCalls, PortCaps, RxSink, SOURCE_PORTS_MAX,
    WorkerShare, caps_of, choose, essence, wanted,
};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, TxBatch};
use burst_netif::netlink::RequestSocket;
use burst_netif::{NetifError, iface};
use socks::UdpSocket;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// Most addresses of an interface that get a socket.
pub const ADDRS_MAX: usize = 64;
/// Most multicast groups of a port.
pub const GROUPS_MAX: usize = 256;

/// A port of UDP sockets on an interface's addresses.
pub struct UdpPort {
    spec: UdpSpec,
    /// The encapsulation, with the UDP port and the checksum of the specification.
    encapsulation: Encapsulation,
    share: WorkerShare,
    /// UDP source ports of each address.
    source_ports: usize,
    caps: PortCaps,
    /// Sockets of addresses and of multicast groups.
    socks: Vec<UdpSocket>,
    ifindex: u32,
    watch: watch::SocketWatch,
    /// Requests to the kernel about the state of next hops; `None` in a sandbox that allows no netlink socket.
    netlink: Option<RequestSocket>,
    tx: tx::UdpTx,
    rx: rx::UdpRx,
    /// Whether the kernel notes when packets arrive.
    is_timed: bool,
}

fn stamp_arrivals(sock: &UdpSocket) {
    if let Err(error) = socket::stamp_arrivals(&sock.fd) {
        tracing::warn!("packets to {} have no times of arrival: {error}", sock.ip);
    }
}

impl UdpPort {
    /// Opens the sockets of worker `worker` of `workers`; `name` is the specification as the user wrote it.
    ///
    /// # Errors
    /// [`PortError`]: one sentence.
    pub fn open(
        spec: &UdpSpec,
        encapsulation: &Encapsulation,
        name: &str,
        worker: usize,
        workers: usize,
    ) -> Result<UdpPort, PortError> {
        let share = WorkerShare { worker, workers, ..WorkerShare::only() };
        UdpPort::open_share(spec, encapsulation, name, share)
    }

    pub(crate) fn open_share(
        spec: &UdpSpec,
        encapsulation: &Encapsulation,
        name: &str,
        share: WorkerShare,
    ) -> Result<UdpPort, PortError> {
        assert!(share.worker < share.workers, "worker index out of range");
        let interface = choose(spec.dev.as_deref(), spec.addr)?;
        // From here on the interface is fixed, even if the default route changes.
        let spec = UdpSpec { dev: Some(interface.name.clone()), ..spec.clone() };
        let encapsulation = spec.encapsulation(encapsulation);
        let watch = watch::SocketWatch::new().map_err(|e| PortError::from_io("make an epoll descriptor", e.into()))?;
        let mut port = UdpPort {
            tx: tx::UdpTx::new(spec.gso, &encapsulation),
            rx: rx::UdpRx::new(&encapsulation, spec.strict_id),
            encapsulation,
            share,
            source_ports: 1,
            caps: caps_of(name, &interface, Vec::new()),
            socks: Vec::with_capacity(ADDRS_MAX + GROUPS_MAX),
            ifindex: interface.index,
            watch,
            netlink: RequestSocket::open().ok(),
            is_timed: false,
            spec,
        };
        let mut addrs = wanted(port.spec.addr, &interface, ADDRS_MAX);
        if port.share.sharing == AddressSharing::Lent {
            addrs.retain(|addr| port.add(addr).is_ok());
        } else {
            addrs.iter().try_for_each(|addr| port.add(addr))?;
        }
        if port.socks.is_empty() {
            return Err(NetifError::NoAddress { name: interface.name }.into());
        }
        port.caps.addrs = addrs;
        Ok(port)
    }

    /// Receive buffer that the kernel has granted to the sockets, in bytes of its own accounting (a 64 KiB train takes up to
    /// twice its length). Packets that arrive while this worker is busy and the buffer is full are lost.
    pub fn receive_buffer(&self) -> u32 {
        self.socks.iter().map(|s| socket::receive_buffer(&s.fd)).min().unwrap_or(0)
    }

    /// Number of IPv4 identifications that had to be recovered from the ICRC; not zero with peers that are not Burst.
    pub fn ids_recovered(&self) -> u64 {
        self.rx.recovered()
    }

    fn add(&mut self, addr: &PortAddr) -> Result<(), PortError> {
        let mut sock = socks::open(&self.spec, &self.encapsulation, addr, &self.share)?;
        sock.open_further(&self.spec, addr, self.source_ports)?;
        self.add_socket(sock)
    }

    fn add_socket(&mut self, sock: UdpSocket) -> Result<(), PortError> {
        if self.is_timed {
            stamp_arrivals(&sock);
        }
        self.watch.add(&sock.fd).map_err(|e| PortError::from_io("watch a socket", e.into()))?;
        self.socks.push(sock);
        Ok(())
    }

    /// Closes sockets of former addresses, opens sockets of new ones; returns the addresses that have a socket.
    fn update_sockets(&mut self, addrs: &[PortAddr]) -> Vec<PortAddr> {
        let stays = |s: &UdpSocket| s.ip.is_multicast() || addrs.iter().any(|a| a.ip == s.ip);
        if !self.socks.iter().all(stays) {
            self.rx.forget();
            if let Some(store) = &self.share.store {
                let gone = self.socks.iter().filter(|s| !stays(s));
                gone.flat_map(|s| s.names(&self.encapsulation, self.ifindex, &self.share))
                    .for_each(|name| store.remove(&name));
            }
            self.socks.retain(stays);
        }
        let mut have = Vec::new();
        for addr in addrs {
            let known = self.socks.iter().any(|s| s.ip == addr.ip);
            if !known && self.share.sharing == AddressSharing::Lent {
                // It came after the number was lent.
                continue;
            }
            if !known && let Err(error) = self.add(addr) {
                tracing::warn!("address {} is left out: {error}", addr.ip);
                continue;
            }
            have.push(addr.clone());
        }
        have
    }
}

impl UdpPort {
    /// Joins the groups again if the interface exists under another index.
    fn update_index(&mut self, index: u32) {
        if std::mem::replace(&mut self.ifindex, index) == index {
            return;
        }
        let groups: Vec<IpAddr> = self.socks.iter().map(|s| s.ip).filter(IpAddr::is_multicast).collect();
        for group in groups {
            self.leave(group);
            if let Err(error) = self.join(group) {
                tracing::warn!("multicast group {group} could not be joined again: {error}");
            }
        }
    }
}

impl Port for UdpPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.rx.begin_burst(now);
        let mut taken = self.rx.deliver_rest(&mut self.socks, budget, sink);
        if taken >= budget {
            return taken;
        }
        let UdpPort { socks, watch, rx, .. } = self;
        let mut serve = |socks: &mut Vec<UdpSocket>, fd: RawFd, taken: usize| {
            // The socket may have been closed since the event.
            let index = socks.iter().position(|s| s.fd.as_raw_fd() == fd);
            index.filter(|_| taken < budget).map_or(0, |index| rx.burst(socks, index, budget - taken, sink))
        };
        if let Some(busy) = watch.busy() {
            let found = serve(socks, busy, taken);
            watch.found(found > 0);
            taken += found;
        }
        if watch.is_due(now) {
            let (ready, count) = watch.ready(now);
            let before = taken;
            for fd in &ready[..count] {
                taken += serve(socks, *fd, taken);
            }
            watch.looked(taken > before);
            if let Some(fd) = ready[..count].first()
                && let Some(sock) = socks.iter().find(|s| s.fd.as_raw_fd() == *fd)
            {
                watch.offer(&sock.fd, socks.iter().map(|s| &s.fd));
            }
        }
        self.rx.end_burst(sink);
        taken
    }

    fn tx_burst(&mut self, _now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.tx.burst(&self.socks, batch, dropped);
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        if !group.is_multicast() {
            return Err(PortError::Spec(format!("{group} is not a multicast address")));
        }
        if self.socks.iter().any(|s| s.ip == group) {
            return Ok(());
        }
        if self.socks.iter().filter(|s| s.ip.is_multicast()).count() == GROUPS_MAX {
            return Err(PortError::Spec(format!("a port joins at most {GROUPS_MAX} multicast groups")));
        }
        let sock = socks::open_group(&self.spec, &self.encapsulation, group, self.ifindex)?;
        self.add_socket(sock)
    }

    fn groups_max(&self) -> usize {
        GROUPS_MAX
    }

    fn leave(&mut self, group: IpAddr) {
        if group.is_multicast() && self.socks.iter().any(|s| s.ip == group) {
            self.rx.forget();
            self.socks.retain(|s| s.ip != group);
        }
    }

    fn open_source_ports(&mut self, count: usize) -> Result<(), PortError> {
        if count > SOURCE_PORTS_MAX {
            return Err(PortError::Spec(format!(
                "a port sends from at most {SOURCE_PORTS_MAX} source ports, not {count}"
            )));
        }
        let UdpPort { spec, socks, caps, source_ports, .. } = self;
        let mut senders = socks.iter_mut().filter_map(|sock| {
            let addr = caps.addrs.iter().find(|addr| addr.ip == sock.ip)?;
            Some((sock, addr))
        });
        let opened = senders.try_for_each(|(sock, addr)| sock.open_further(spec, addr, count));
        if opened.is_ok() {
            *source_ports = count.max(1);
        }
        socks.iter_mut().for_each(|sock| sock.close_further(self.source_ports));
        opened
    }

    fn source_port(&self, src: IpAddr, number: usize) -> Option<u16> {
        let sock = self.socks.iter().find(|sock| sock.ip == src)?;
        Some(sock.further_port(number).unwrap_or_else(|| sock.sender_of(0, self.encapsulation.udp_port).1))
    }

    fn is_resolving(&mut self, _now: Nanos, flow: &Flow) -> bool {
        let index = self.ifindex;
        self.netlink.as_mut().is_some_and(|netlink| netlink.is_resolving(flow.src, flow.dst, index))
    }

    fn each_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.socks.iter().flat_map(UdpSocket::descriptors).chain([self.watch.fd()]).for_each(take);
    }

    fn time_arrivals(&mut self) {
        if !std::mem::replace(&mut self.is_timed, true) {
            self.rx.time_arrivals();
            self.socks.iter().for_each(stamp_arrivals);
        }
    }

    fn before_sleep(&mut self) -> bool {
        // True keeps the worker awake.
        self.watch.before_sleep(self.socks.iter().map(|s| &s.fd)).is_err()
    }

    fn after_sleep(&mut self) {
        self.watch.after_sleep();
    }

    fn take_calls(&mut self) -> PortCalls {
        PortCalls { send: self.tx.take_calls(), receive: self.rx.take_calls() }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.watch.fd()]
    }

    fn lend(&mut self, number: usize) -> Result<Vec<LentSocket>, PortError> {
        if self.share.sharing != AddressSharing::Lends || self.share.worker != 0 {
            let kind = self.caps.name.clone();
            return Err(PortError::Unsupported { kind, what: "lend a worker number to a program" });
        }
        let mut lent = Vec::new();
        for addr in self.caps.addrs.clone() {
            let Some(sock) = self.socks.iter_mut().find(|s| s.ip == addr.ip) else { continue };
            match sock.lend((&self.spec, &self.encapsulation), &addr, &self.share, number) {
                Ok(socket) => lent.push(socket),
                Err(error) => {
                    self.take_back(number);
                    return Err(PortError::from_io(format!("lend a socket of {}", addr.ip), error));
                }
            }
        }
        Ok(lent)
    }

    fn take_back(&mut self, number: usize) {
        for sock in self.socks.iter_mut().filter(|s| !s.ip.is_multicast()) {
            sock.take_back(&self.encapsulation, self.ifindex, &self.share, number);
        }
    }

    fn refresh(&mut self) -> bool {
        let Ok(all) = iface::list() else { return false };
        let before = essence(&self.caps);
        match all.iter().find(|i| Some(&i.name) == self.spec.dev.as_ref()) {
            Some(interface) => {
                self.update_index(interface.index);
                let addrs = self.update_sockets(&wanted(self.spec.addr, interface, ADDRS_MAX));
                self.caps = caps_of(&self.caps.name, interface, addrs);
            }
            // The interface does not exist any more; it may come back under its name.
            None => {
                self.caps.addrs = self.update_sockets(&[]);
                self.caps.up = false;
            }
        }
        essence(&self.caps) != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::refuse_trains;
    use crate::testing::{Collect, batch_of, flow};

    fn lo(addr: &str) -> UdpPort {
        let addr = Some(addr.parse().unwrap());
        let spec = UdpSpec { dev: Some("lo".into()), addr, udp_port: Some(10_790), ..UdpSpec::default() };
        UdpPort::open(&spec, &Encapsulation::ROCE, "udp:dev=lo", 0, 1).unwrap()
    }

    #[test]
    fn where_the_kernel_refuses_trains_packets_go_one_by_one() {
        let (mut a, mut b) = (lo("127.0.0.1"), lo("127.0.0.2"));
        refuse_trains(&a.socks[0].fd);
        let payloads: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 1024]).collect();
        let flow = flow("127.0.0.1", "127.0.0.2");
        for _ in 0..2 {
            let mut sink = Collect::default();
            a.tx_burst(Nanos(0), &batch_of(&flow, &payloads), &mut |r| panic!("{r}"));
            while b.rx_burst(Nanos(0), 1000, &mut sink) > 0 {}
            assert_eq!(sink.dropped, []);
            assert_eq!(sink.payloads(), payloads);
        }
        assert_eq!(b.ids_recovered(), 0, "identifications are 0 without trains");
    }

    /// The source ports with which runs of five packets arrive that leave by `count` ones, their trains, and the ports offered.
    fn sources_seen(count: usize) -> (Vec<u16>, Vec<usize>, Vec<u16>) {
        let open = |addr: &str| {
            let addr = Some(addr.parse().unwrap());
            let spec = UdpSpec { dev: Some("lo".into()), addr, udp_port: Some(10_793), ..UdpSpec::default() };
            UdpPort::open(&spec, &Encapsulation::UNIFIED_BUS, "udp:dev=lo", 0, 1).unwrap()
        };
        let (mut a, mut b) = (open("127.0.0.7"), open("127.0.0.8"));
        a.open_source_ports(count).unwrap();
        let src: IpAddr = "127.0.0.7".parse().unwrap();
        let offered: Vec<u16> =
            (1..8).map(|number| a.source_port(src, number).expect("no other can be sent")).collect();
        let payload = vec![1; 1024];
        let mut batch = TxBatch::new(64);
        for src_port in std::iter::once(4792).chain(offered.iter().copied().take(count - 1)) {
            let flow = Flow { src_port, ..flow("127.0.0.7", "127.0.0.8") };
            (0..5).for_each(|_| assert!(crate::testing::push(&mut batch, &flow, &payload)));
        }
        a.tx_burst(Nanos(0), &batch, &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        while sink.frames.len() < 5 * count {
            b.rx_burst(Nanos(0), 1000, &mut sink);
        }
        assert_eq!(sink.dropped, []);
        (sink.frames.iter().map(|(flow, _)| flow.src_port).collect(), sink.trains, offered)
    }

    #[test]
    fn each_source_port_has_a_socket_and_its_packets_share_a_train() {
        let (seen, trains, offered) = sources_seen(4);
        let expected: Vec<u16> = std::iter::once(10_793).chain(offered[..3].iter().copied()).collect();
        assert_eq!(seen, expected.iter().flat_map(|port| [*port; 5]).collect::<Vec<_>>());
        assert_eq!(trains, [5; 4]);
        let mut sorted = expected;
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 4, "{sorted:?}");
        assert_eq!(offered[3..], [10_793; 4], "others are the usual one");
        assert_eq!(sources_seen(1).0, [10_793; 5]);
    }

    fn count_of(port: &UdpPort) -> usize {
        let mut count = 0;
        port.each_descriptor(&mut |_| count += 1);
        count
    }

    #[test]
    fn source_ports_cost_a_socket_each_and_have_a_limit() {
        let mut port = lo("127.0.0.9");
        let before = count_of(&port);
        let addr: IpAddr = "127.0.0.9".parse().unwrap();
        for (count, sockets) in [(1, 0), (8, 7), (8, 7), (3, 2), (0, 0)] {
            port.open_source_ports(count).unwrap();
            assert_eq!(count_of(&port), before + sockets, "{count}");
        }
        port.open_source_ports(2).unwrap();
        let second = port.source_port(addr, 1);
        let refused = port.open_source_ports(9).expect_err("more than eight");
        assert_eq!(refused.to_string(), "a port sends from at most 8 source ports, not 9");
        assert_eq!((count_of(&port), port.source_port(addr, 1)), (before + 1, second));
        // An address that goes and comes back has as many again.
        let addrs = port.caps.addrs.clone();
        port.update_sockets(&[]);
        assert_eq!(port.source_port(addr, 1), None);
        port.update_sockets(&addrs);
        assert!(port.source_port(addr, 1).is_some_and(|port| port != 10_790));
        assert_eq!(count_of(&port), before + 1);
    }

    #[test]
    fn how_long_packets_have_waited_is_told_if_it_is_asked_for() {
        let monotonic =
            || Nanos(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u64 * 1_000_000_000);
        let open = |addr: &str| {
            let addr = Some(addr.parse().unwrap());
            let spec = UdpSpec { dev: Some("lo".into()), addr, udp_port: Some(10_792), ..UdpSpec::default() };
            UdpPort::open(&spec, &Encapsulation::ROCE, "udp:dev=lo", 0, 1).unwrap()
        };
        let (mut a, mut b) = (open("127.0.0.5"), open("127.0.0.6"));
        let payloads = [vec![1; 1024], vec![2; 1024]];
        let flow = flow("127.0.0.5", "127.0.0.6");
        let mut waits = |b: &mut UdpPort, now: Nanos| {
            a.tx_burst(Nanos(0), &batch_of(&flow, &payloads), &mut |r| panic!("{r}"));
            let mut sink = Collect::default();
            while sink.frames.len() < 2 {
                b.rx_burst(now, 1000, &mut sink);
            }
            sink.waits
        };
        let hour = Nanos(3_600_000_000_000);
        assert_eq!(waits(&mut b, hour), [], "not asked for");
        b.time_arrivals();
        // Bursts that begin, by their caller's clock, before the packets have come and long after.
        let before = monotonic();
        assert!(waits(&mut b, before).iter().all(|wait| *wait == Nanos(0)));
        let long = waits(&mut b, before + hour);
        assert!(!long.is_empty() && long.iter().all(|wait| *wait == Nanos::from_ms(1_000)), "{long:?}");
    }

    #[test]
    fn a_socket_s_fill_and_losses_are_told_and_end() {
        use crate::ReceivePressure::{self, Free, ThreeQuarters};
        let open = |addr: &str| {
            let addr = Some(addr.parse().unwrap());
            let (dev, udp_port) = (Some("lo".into()), Some(10_791));
            let spec = UdpSpec { dev, addr, udp_port, rcvbuf: 200 << 10, ..UdpSpec::default() };
            UdpPort::open(&spec, &Encapsulation::ROCE, "udp:dev=lo", 0, 1).unwrap()
        };
        let (mut a, mut b) = (open("127.0.0.3"), open("127.0.0.4"));
        // Each is longer than the one before, so that no train joins them: the buffer holds more messages than a call takes.
        let payloads: Vec<Vec<u8>> = (0..500usize).map(|i| vec![i as u8; 512 + 4 * i]).collect();
        let flow = flow("127.0.0.3", "127.0.0.4");
        let mut send = |count: usize| {
            a.tx_burst(Nanos(0), &batch_of(&flow, &payloads[..count]), &mut |r| panic!("{r}"));
        };
        let mut burst = || {
            let mut sink = Collect::default();
            b.rx_burst(Nanos(0), 1000, &mut sink);
            sink
        };
        // A burst that one call takes costs no further one, and one that finds nothing neither.
        send(10);
        assert_eq!(burst().pressure, []);
        send(500);
        let sink = burst();
        assert_eq!(sink.pressure, [ThreeQuarters], "{} frames", sink.frames.len());
        assert!(sink.frames.len() < 500, "more than the buffer holds");
        // The kernel tells what was lost with the next packets.
        send(10);
        let sink = burst();
        assert!(sink.dropped.contains(&Reason::ReceiveOverflow));
        assert_eq!(sink.pressure, [Free]);
        assert_eq!(burst().pressure, Vec::<ReceivePressure>::new());
    }
}
