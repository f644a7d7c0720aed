//! `mem`: ports of one process, joined by a hub, without a kernel between them.
//!
//! A [`Hub`] knows the addresses of every port. Sending copies the frame into a slot of the sender's pool and puts the slot into
//! the receiver's bounded inbox; the receiver returns the slot to its owner. Pools and inboxes are allocated once. A frame is
//! delivered no earlier than `latency` after it was sent, in order of sending; with the caller's virtual clock two runs are
//! equal. A caller with several threads can ask for descriptors that wake a sleeping receiver.
//!
//! A port that joins a multicast group gets a copy of each frame to it, the sender's own port included.
//!
//! The pressure on a port's inbox is the number of frames that one burst finds in it. A burst that ends with its budget knows
//! only that many, so the level is right for hubs whose depth is not much more than the budget of a burst.
//!
//! Drop reasons: no port has the destination (`SendFailed`), the frame is longer than the link's MTU (`SendTooLong`), the sender
//! has no free slot (`SendQueueFull`), the inbox is full (`ReceiveOverflow`, reported to the sender; the receiver hears of
//! [`ReceivePressure::Lost`] with a burst of half the inbox).

use crate::{EXPECTED_MAX, Port, PortAddr, PortCaps, PortError, ReceivePressure, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame, TxBatch, TxFrame};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

/// Bytes of IP and UDP headers and ICRC that a frame would have on a link: `link_mtu` must hold them beside the frame.
const WIRE_OVERHEAD: u32 = 40 + 8 + 4;

/// Properties of a hub.
#[derive(Clone, Copy, Debug)]
pub struct MemConfig {
    /// Most frames of a port in flight, and most frames in its inbox.
    pub depth: usize,
    /// MTU of the link in bytes, as an interface would have it.
    pub link_mtu: u32,
    /// Time from sending to receiving.
    pub latency: Nanos,
    /// Whether ports have a descriptor on which a receiver can sleep; it costs a system call per burst and receiver.
    pub wake: bool,
}

impl Default for MemConfig {
    fn default() -> Self {
        MemConfig { depth: 1024, link_mtu: 4096 + 128, latency: Nanos(0), wake: false }
    }
}

/// A frame in flight.
struct MemFrame {
    flow: Flow,
    due: Nanos,
    bytes: Vec<u8>,
    owner: SyncSender<Box<MemFrame>>,
}

/// An address in the hub, and what is needed to send to its port.
#[derive(Clone)]
struct HubEntry {
    /// An address of the port, or a group that it has joined.
    ip: IpAddr,
    /// Number of the port in the hub.
    port: u32,
    inbox: SyncSender<Box<MemFrame>>,
    event: Option<Arc<ReceiveEvent>>,
    /// Whether frames found the inbox full since the port has looked.
    lost: Arc<AtomicBool>,
}

/// A descriptor that is readable while `signalled` is set.
struct ReceiveEvent {
    fd: OwnedFd,
    signalled: AtomicBool,
}

impl ReceiveEvent {
    /// Makes the descriptor readable; no system call if it is readable already.
    fn signal(&self) {
        // Pairs with the swap in `reset`: what was put into the inbox before this swap is seen after that one.
        if !self.signalled.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
    /// Makes the descriptor unreadable. The caller looks at the inbox afterwards.
    fn reset(&self) {
        if self.signalled.load(Ordering::Acquire) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.fd, &mut count);
            self.signalled.swap(false, Ordering::AcqRel);
        }
    }
}

/// Joins ports. Clones are the same hub.
#[derive(Clone)]
pub struct Hub {
    config: MemConfig,
    entries: Arc<Mutex<Vec<HubEntry>>>,
    ports: Arc<AtomicU32>,
    generation: Arc<AtomicU32>,
}

/// One port of a [`Hub`].
pub struct MemPort {
    caps: PortCaps,
    config: MemConfig,
    hub: Hub,
    /// This port's entry in the hub.
    own: HubEntry,
    /// Copy of the hub's entries as of `generation`.
    entries: Vec<HubEntry>,
    generation: u32,
    /// Slots are boxed, so that a slot moves as one word.
    #[allow(clippy::vec_box)]
    pool: Vec<Box<MemFrame>>,
    returns: Receiver<Box<MemFrame>>,
    inbox: Receiver<Box<MemFrame>>,
    /// First frame of the inbox, taken out to read its time.
    head: RefCell<Option<Box<MemFrame>>>,
    event: Option<Arc<ReceiveEvent>>,
    level: ReceivePressure,
    /// Frames in one burst from which on the level is to be looked at.
    looked_at_from: usize,
    /// Frames that were taken out of the inbox and that the sink is told of before it gets them.
    expected: VecDeque<Box<MemFrame>>,
}

impl Hub {
    /// Makes a hub without ports.
    pub fn new(config: MemConfig) -> Hub {
        Hub { config, entries: Arc::default(), ports: Arc::default(), generation: Arc::default() }
    }
    /// Makes a port with these addresses. Panics on an address that the hub already has, and when the process is out of
    /// descriptors.
    pub fn port(&self, name: &str, addrs: &[IpAddr]) -> MemPort {
        let (inbox_in, inbox) = sync_channel(self.config.depth);
        let (owner, returns) = sync_channel(self.config.depth);
        let event = self.config.wake.then(|| {
            let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("a descriptor is free");
            Arc::new(ReceiveEvent { fd, signalled: AtomicBool::new(false) })
        });
        let port = self.ports.fetch_add(1, Ordering::Relaxed);
        let own = HubEntry {
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port,
            inbox: inbox_in,
            event: event.clone(),
            lost: Arc::default(),
        };
        let mut entries = self.entries.lock().expect("the lock is not poisoned");
        for &ip in addrs {
            assert!(entries.iter().all(|p| p.ip != ip), "{ip} is already on this hub");
            entries.push(HubEntry { ip, ..own.clone() });
        }
        self.generation.fetch_add(1, Ordering::Release);
        let frame_max = self.config.link_mtu as usize;
        let slot = || MemFrame {
            flow: Flow::default(),
            due: Nanos(0),
            bytes: Vec::with_capacity(frame_max),
            owner: owner.clone(),
        };
        let pool = (0..self.config.depth).map(|_| Box::new(slot())).collect();
        let port_addr = |&ip: &IpAddr| PortAddr { ip, ifindex: 0, ifname: name.to_owned(), reach: None };
        MemPort {
            caps: PortCaps {
                name: format!("mem:{name}"),
                addrs: addrs.iter().map(port_addr).collect(),
                link_mtu: self.config.link_mtu,
                up: true,
                speed_mbps: 0,
                ifname: name.to_owned(),
                mac: [0; 6],
            },
            config: self.config,
            hub: self.clone(),
            own,
            entries: Vec::new(),
            generation: 0,
            pool,
            returns,
            inbox,
            head: RefCell::new(None),
            event,
            level: ReceivePressure::Free,
            looked_at_from: self.config.depth.div_ceil(2),
            expected: VecDeque::with_capacity(EXPECTED_MAX),
        }
    }
}

/// Two ports with one address each.
pub fn pair(config: MemConfig, a: IpAddr, b: IpAddr) -> (MemPort, MemPort) {
    let hub = Hub::new(config);
    (hub.port("mem0", &[a]), hub.port("mem1", &[b]))
}

impl MemPort {
    /// Takes over ports that were added to the hub. It allocates and locks only if there are any.
    fn follow(&mut self) {
        let generation = self.hub.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.entries = self.hub.entries.lock().expect("the lock is not poisoned").clone();
            self.generation = generation;
        }
    }

    /// A burst has taken `taken` frames.
    #[inline]
    fn end_burst(&mut self, taken: usize, sink: &mut dyn RxSink) -> usize {
        if taken >= self.looked_at_from {
            self.tell_pressure(taken, sink);
        }
        taken
    }

    /// Tells the level of the inbox, of which a burst has taken `taken` frames, if it has changed, and losses.
    #[cold]
    #[inline(never)]
    fn tell_pressure(&mut self, taken: usize, sink: &mut dyn RxSink) {
        debug_assert!(self.looked_at_from <= self.config.depth);
        let (level, depth) = (ReceivePressure::of(taken as u64, self.config.depth as u64), self.config.depth);
        if level != self.level {
            self.level = level;
            sink.pressure(level);
        }
        // A level is looked at again with each burst until it is free.
        self.looked_at_from = if level == ReceivePressure::Free { depth.div_ceil(2) } else { 0 };
        if self.own.lost.swap(false, Ordering::Relaxed) {
            sink.pressure(ReceivePressure::Lost);
        }
    }

    /// Takes the next frame out of the inbox, if there is one that is due.
    #[inline]
    fn take(&mut self, now: Nanos) -> Option<Box<MemFrame>> {
        let slot = self.head.take().or_else(|| self.inbox.try_recv().ok())?;
        if slot.due > now {
            self.head.replace(Some(slot));
            return None;
        }
        Some(slot)
    }

    /// Delivers the frame in `expected` and those behind it, up to `budget`. The sink is told of some before it gets them.
    #[inline(never)]
    fn deliver_expected(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut delivered = 0;
        loop {
            while self.expected.len() < EXPECTED_MAX.min(budget - delivered)
                && let Some(slot) = self.take(now)
            {
                self.expected.push_back(slot);
            }
            if self.expected.is_empty() {
                return delivered;
            }
            self.expected.iter().for_each(|slot| sink.expect(&slot.bytes));
            delivered += self.expected.len();
            debug_assert!(delivered <= budget && self.expected.len() <= EXPECTED_MAX);
            while let Some(slot) = self.expected.pop_front() {
                deliver(slot, sink);
            }
        }
    }

    /// Sends to the one port that has the destination's address, or to all members of the group; a group without members is no
    /// error.
    fn send(&mut self, now: Nanos, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let dst = frame.flow.dst;
        if frame.flow.src.is_unspecified() {
            return Err(Reason::SendFailed);
        }
        if dst.is_multicast() {
            for at in 0..self.entries.len() {
                if self.entries[at].ip == dst {
                    self.send_to(at, now, batch, frame)?;
                }
            }
            return Ok(());
        }
        let at = self.entries.iter().position(|p| p.ip == dst).ok_or(Reason::SendFailed)?;
        self.send_to(at, now, batch, frame)
    }

    fn send_to(&mut self, at: usize, now: Nanos, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        if frame.udp_payload_len() as u32 + WIRE_OVERHEAD - 4 > self.config.link_mtu {
            return Err(Reason::SendTooLong);
        }
        while let Ok(slot) = self.returns.try_recv() {
            self.pool.push(slot);
        }
        debug_assert!(self.pool.len() <= self.config.depth, "a slot was returned twice");
        let mut slot = self.pool.pop().ok_or(Reason::SendQueueFull)?;
        if !fill(&mut slot.bytes, batch, frame) {
            self.pool.push(slot);
            return Err(Reason::SendFailed);
        }
        debug_assert!(slot.bytes.len() + 4 == frame.udp_payload_len(), "head, payload and padding");
        slot.flow = frame.flow;
        slot.due = now + self.config.latency;
        match self.entries[at].inbox.try_send(slot) {
            Ok(()) => {
                if let Some(event) = &self.entries[at].event {
                    event.signal();
                }
                Ok(())
            }
            Err(TrySendError::Full(slot)) => {
                self.entries[at].lost.store(true, Ordering::Relaxed);
                self.pool.push(slot);
                Err(Reason::ReceiveOverflow)
            }
            Err(TrySendError::Disconnected(slot)) => {
                self.pool.push(slot);
                Err(Reason::SendFailed)
            }
        }
    }
}

/// Gives a frame to the sink and its slot back to its owner.
#[inline(always)]
fn deliver(slot: Box<MemFrame>, sink: &mut dyn RxSink) {
    sink.frame(&RxFrame { flow: slot.flow, bytes: &slot.bytes });
    let owner = slot.owner.clone();
    // The owner's channel has room for all its slots, so it is never full; an owner that has ended needs no slots.
    let _ = owner.try_send(slot);
}

/// Writes head, payload and padding, one after the other. False when the application's memory is gone.
fn fill(bytes: &mut Vec<u8>, batch: &TxBatch, frame: &TxFrame) -> bool {
    bytes.clear();
    bytes.extend_from_slice(frame.head());
    for span in batch.spans_of(frame) {
        let at = bytes.len();
        bytes.resize(at + span.len(), 0);
        if span.read_to(&mut bytes[at..]).is_err() {
            return false;
        }
    }
    bytes.resize(bytes.len() + usize::from(frame.pad), 0);
    true
}

impl Port for MemPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn join(&mut self, group: IpAddr) -> Result<(), PortError> {
        let mut entries = self.hub.entries.lock().expect("the lock is not poisoned");
        if !entries.iter().any(|p| p.ip == group && p.port == self.own.port) {
            entries.push(HubEntry { ip: group, ..self.own.clone() });
        }
        self.hub.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        let mut entries = self.hub.entries.lock().expect("the lock is not poisoned");
        entries.retain(|p| p.ip != group || p.port != self.own.port);
        self.hub.generation.fetch_add(1, Ordering::Release);
    }

    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        if let Some(event) = &self.event {
            event.reset();
        }
        for taken in 0..budget {
            let Some(slot) = self.take(now) else { return self.end_burst(taken, sink) };
            if taken == 0 && sink.expects() {
                self.expected.push_back(slot);
                let taken = self.deliver_expected(now, budget, sink);
                if taken < budget {
                    return self.end_burst(taken, sink);
                }
                break;
            }
            deliver(slot, sink);
        }
        if let Some(event) = &self.event {
            event.signal();
        }
        self.end_burst(budget, sink)
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.follow();
        for frame in batch.frames() {
            if let Err(reason) = self.send(now, batch, frame) {
                dropped(reason);
            }
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.event.iter().map(|event| event.fd.as_raw_fd()).collect()
    }

    fn next_event(&self) -> Nanos {
        let mut head = self.head.borrow_mut();
        if head.is_none() {
            *head = self.inbox.try_recv().ok();
        }
        head.as_ref().map_or(Nanos::NEVER, |slot| slot.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Collect, batch_of, flow};

    const A: &str = "10.0.0.1";
    const B: &str = "10.0.0.2";

    fn two(config: MemConfig) -> (MemPort, MemPort) {
        pair(config, A.parse().unwrap(), B.parse().unwrap())
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (mut a, mut b) = two(MemConfig::default());
        let payloads: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; usize::from(i) * 40]).collect();
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &payloads), &mut |r| panic!("{r}"));
        let mut sink = Collect::default();
        assert_eq!(b.rx_burst(Nanos(0), 64, &mut sink), 64);
        assert_eq!(b.rx_burst(Nanos(0), 64, &mut sink), 36);
        assert_eq!(sink.payloads(), payloads);
        assert!(sink.frames.iter().all(|(f, _)| f.src == a.caps().addrs[0].ip));
    }

    #[test]
    fn latency_is_kept_by_the_callers_clock() {
        let (mut a, mut b) = two(MemConfig { latency: Nanos(500), ..MemConfig::default() });
        assert_eq!(b.next_event(), Nanos::NEVER);
        a.tx_burst(Nanos(1000), &batch_of(&flow(A, B), &[vec![1; 8]]), &mut |r| panic!("{r}"));
        assert_eq!(b.next_event(), Nanos(1500));
        let mut sink = Collect::default();
        assert_eq!(b.rx_burst(Nanos(1499), 8, &mut sink), 0);
        assert_eq!(b.rx_burst(Nanos(1500), 8, &mut sink), 1);
        assert_eq!(b.next_event(), Nanos::NEVER);
    }

    #[test]
    fn limits_have_their_drop_reasons() {
        let (mut a, mut b) = two(MemConfig { depth: 4, ..MemConfig::default() });
        let mut reasons = Vec::new();
        a.tx_burst(Nanos(0), &batch_of(&flow(A, "10.9.9.9"), &[vec![0; 4]]), &mut |r| reasons.push(r));
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &[vec![0; 9000]]), &mut |r| reasons.push(r));
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &vec![vec![0; 4]; 5]), &mut |r| reasons.push(r));
        assert_eq!(reasons, [Reason::SendFailed, Reason::SendTooLong, Reason::SendQueueFull]);
        let mut sink = Collect::default();
        assert_eq!(b.rx_burst(Nanos(0), 64, &mut sink), 4);
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &[vec![0; 4]]), &mut |r| panic!("{r}"));
    }

    #[test]
    fn a_port_that_has_ended_is_a_failed_send() {
        let (mut a, b) = two(MemConfig::default());
        drop(b);
        let mut reasons = Vec::new();
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &[vec![0; 4]]), &mut |r| reasons.push(r));
        assert_eq!(reasons, [Reason::SendFailed]);
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_frames_wait() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let (mut a, mut b) = two(MemConfig { wake: true, ..MemConfig::default() });
        let readable = |p: &MemPort| {
            let event = p.event.as_ref().unwrap();
            let mut fds = [PollFd::new(&event.fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!readable(&b));
        a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &vec![vec![0; 4]; 3]), &mut |r| panic!("{r}"));
        assert!(readable(&b));
        let mut sink = Collect::default();
        assert_eq!(b.rx_burst(Nanos(0), 2, &mut sink), 2);
        assert!(readable(&b), "one frame is left");
        assert_eq!(b.rx_burst(Nanos(0), 2, &mut sink), 1);
        assert!(!readable(&b));
    }

    #[test]
    fn two_threads_lose_no_frame() {
        let (mut a, mut b) = two(MemConfig { depth: 64, ..MemConfig::default() });
        let sender = std::thread::spawn(move || {
            let mut sent = 0u32;
            while sent < 5000 {
                let mut refused = false;
                let payload = [sent.to_be_bytes().to_vec()];
                a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &payload), &mut |_| refused = true);
                if refused {
                    std::thread::yield_now();
                } else {
                    sent += 1;
                }
            }
            a
        });
        let mut sink = Collect::default();
        while sink.frames.len() < 5000 {
            if b.rx_burst(Nanos(0), 32, &mut sink) == 0 {
                std::thread::yield_now();
            }
        }
        drop(sender.join().unwrap());
        for (i, payload) in sink.payloads().iter().enumerate() {
            assert_eq!(payload[..], (i as u32).to_be_bytes());
        }
    }

    #[test]
    fn a_port_tells_how_full_its_inbox_was_and_what_found_no_room() {
        use ReceivePressure::{Free, Half, ThreeQuarters};
        let (mut a, mut b) = two(MemConfig { depth: 16, ..MemConfig::default() });
        let mut told = |frames: usize, budget| {
            let payloads = vec![vec![7; 64]; frames];
            let mut dropped = 0;
            a.tx_burst(Nanos(0), &batch_of(&flow(A, B), &payloads), &mut |_| dropped += 1);
            let mut sink = Collect::default();
            b.rx_burst(Nanos(0), budget, &mut sink);
            (sink.pressure, dropped)
        };
        assert_eq!(told(8, 64), (vec![], 0));
        assert_eq!(told(9, 64), (vec![Half], 0));
        assert_eq!(told(13, 64), (vec![ThreeQuarters], 0));
        assert_eq!(told(13, 64), (vec![], 0), "as before");
        assert_eq!(told(0, 64), (vec![Free], 0));
        assert_eq!(told(0, 64), (vec![], 0));
        assert_eq!(told(16, 64), (vec![ThreeQuarters], 0));
        assert_eq!(told(1, 64), (vec![Free], 0));
    }

    #[test]
    fn a_receiver_hears_of_frames_that_its_inbox_had_no_room_for() {
        let hub = Hub::new(MemConfig { depth: 8, ..MemConfig::default() });
        let [ip_a, ip_b, ip_c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let (mut a, mut b, mut c) = (hub.port("a", &[ip_a]), hub.port("b", &[ip_b]), hub.port("c", &[ip_c]));
        let mut reasons = Vec::new();
        for port in [&mut a, &mut c] {
            let payloads = vec![vec![7; 64]; 5];
            port.tx_burst(Nanos(0), &batch_of(&flow(A, B), &payloads), &mut |reason| reasons.push(reason));
        }
        assert_eq!(reasons, [Reason::ReceiveOverflow; 2]);
        let mut sink = Collect::default();
        assert_eq!(b.rx_burst(Nanos(0), 64, &mut sink), 8);
        assert_eq!(sink.pressure, [ReceivePressure::ThreeQuarters, ReceivePressure::Lost]);
        let mut sink = Collect::default();
        b.rx_burst(Nanos(0), 64, &mut sink);
        assert_eq!(sink.pressure, [ReceivePressure::Free]);
    }
}
