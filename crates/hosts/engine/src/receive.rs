//! Receive: from the port to the queue pair that a packet names.

use crate::calls::Egress;
use crate::core::Core;
use crate::counters::{Counters, Traffic};
use crate::data_path::DataPath;
use crate::objects::BurstState;
use crate::options::RX_BUDGET;
use crate::paths::ecn::{MarkedPacket, answer_mark, is_marked};
use crate::port_slot::PortSlot;
use crate::qpn::worker_of;
use crate::receive::multicast::GroupTable;
use crate::receive::prefetch::ExpectedPackets;
use crate::tap::TappedBurst;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_gsi::GsiAgent;
use burst_port::{ReceivePressure, RxSink};
use burst_transport::MiddleRun;
use burst_wire::{Bth, ICRC_LEN, Opcode, Packet, Position};

pub mod handover;
pub mod lent;
mod management;
pub mod multicast;
mod prefetch;

/// One port's burst, on its way into the tables.
pub(crate) struct RxBurst<'a> {
    pub now: Nanos,
    pub device: DeviceId,
    pub core: &'a mut Core,
    pub rx: &'a mut PacketReceiver,
    pub agent: &'a mut GsiAgent,
    pub batch: &'a mut TxBatch,
    pub counters: &'a Counters,
    /// Whether another worker handed the packets over.
    pub handed_over: bool,
}

/// What a worker keeps for its receive bursts.
#[derive(Debug, Default)]
pub(crate) struct PacketReceiver {
    /// Packets of this burst whose queue pairs are prefetched.
    expected: ExpectedPackets,
    pub groups: GroupTable,
    /// Queue pairs that got packets in this burst.
    touched: Vec<u32>,
    /// Workers that packets of this burst were handed over to, one bit each.
    handed_to: u32,
    /// Whether packets of queue pairs came since the agent ran.
    pub data_came: bool,
    /// Whether the last burst left packets in a port.
    pub unread: bool,
}

impl PacketReceiver {
    /// A receiver whose list of queue pairs has room for `room` entries.
    pub fn new(room: usize) -> PacketReceiver {
        PacketReceiver { touched: Vec::with_capacity(room.min(RX_BUDGET)), ..PacketReceiver::default() }
    }

    /// Takes a burst from each port; queue pairs that now have something to send become ready.
    pub fn run(&mut self, now: Nanos, data_path: &mut DataPath<'_>, agent: &mut GsiAgent) -> bool {
        let (mut taken, mut unread) = (0, false);
        let DataPath { core, ports } = data_path;
        let several = ports.len() > 1;
        for (index, PortSlot { port, batch, counters, attention, taps }) in ports.iter_mut().enumerate() {
            if several && attention.may_skip() && port.next_event() > now {
                continue;
            }
            let device = DeviceId::from_index(index);
            if self.expected.has_any() {
                self.expected.clear();
            }
            let mut sink = RxBurst { now, device, core, rx: self, agent, batch, counters, handed_over: false };
            let burst = match taps.is_empty() {
                true => port.rx_burst(now, RX_BUDGET, &mut sink),
                false => {
                    let counters: &Counters = counters;
                    taps.receive(now, TappedBurst { port: &mut **port, budget: RX_BUDGET, sink: &mut sink, counters })
                }
            };
            core.waited = Nanos(0);
            taken += burst;
            attention.note(burst);
            if burst > 0 {
                counters.count_calls(port.take_calls());
            }
            unread |= burst >= RX_BUDGET || port.next_event() <= now;
        }
        self.unread = unread;
        taken += self.take_inbox(now, data_path, agent);
        self.wake_workers_handed_to(data_path);
        let DataPath { core, ports } = data_path;
        core.show_completions(ports);
        debug_assert!(core.outbox.completions.is_empty() && self.handed_to == 0, "a burst has not ended");
        while let Some(qp) = self.touched.pop() {
            if let Some(slot) = core.qps.get_mut(qp as usize).and_then(Option::as_mut) {
                debug_assert_ne!(slot.burst, BurstState::Untouched, "a queue pair without packets is in the list");
                slot.burst = BurstState::Untouched;
                if let Some(received) = slot.received.take_due() {
                    core.sched.charge_received(slot.holder.context, received);
                }
            }
            core.settle(now, qp);
        }
        taken > 0
    }

    /// Takes the packets that other workers have handed over.
    fn take_inbox(&mut self, now: Nanos, data_path: &mut DataPath<'_>, agent: &mut GsiAgent) -> usize {
        let DataPath { core, ports } = data_path;
        let Some(inbox) = core.inbox_of(core.options.id).filter(|inbox| !inbox.is_empty()).cloned() else { return 0 };
        inbox.drain(RX_BUDGET, |device, frame| {
            let PortSlot { batch, counters, .. } = &mut ports[device.index()];
            let mut sink = RxBurst { now, device, core, rx: self, agent, batch, counters, handed_over: true };
            if let Ok(packet) = Packet::parse(frame.bytes) {
                sink.demux(frame, &packet);
            }
        })
    }

    /// Wakes the workers that packets of this burst were handed over to.
    fn wake_workers_handed_to(&mut self, data_path: &DataPath<'_>) {
        while self.handed_to != 0 {
            let worker = self.handed_to.trailing_zeros();
            self.handed_to &= self.handed_to - 1;
            if data_path.core.inbox_of(worker).is_some_and(|inbox| inbox.wake_sleeper()) {
                data_path.ports[0].counters.add(Traffic::HandoverWakes, 1);
            }
        }
    }
}

impl RxSink for RxBurst<'_> {
    fn expects(&self) -> bool {
        self.core.has_many()
    }

    fn expect(&mut self, packet: &[u8]) {
        self.rx.expected.add(packet, &self.core.directory);
    }

    fn frame(&mut self, frame: &RxFrame<'_>) {
        if self.rx.expected.has_any() {
            self.rx.expected.advance(&self.core.directory, &self.core.qps, self.core.options.selective);
        }
        self.counters.add(Traffic::RxPackets, 1);
        self.counters.add(Traffic::RxBytes, frame.bytes.len() as u64);
        match Packet::parse(frame.bytes) {
            Ok(packet) => self.demux(frame, &packet),
            Err(reason) => self.counters.count(reason),
        }
    }

    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        debug_assert!(stride > ICRC_LEN && train.len().is_multiple_of(stride), "a train of parts of packets");
        let mut rest = train;
        let has_many = self.core.has_many();
        while rest.len() >= stride {
            let taken = self.middles(flow, &MiddleRun { bytes: rest, stride }) * stride;
            if taken == 0 {
                if has_many && !self.rx.expected.has_any() {
                    self.rx.expected.add_train(rest, stride, &self.core.directory);
                }
                self.frame(&RxFrame { flow: *flow, bytes: &rest[..stride - ICRC_LEN] });
            }
            rest = &rest[taken.max(stride)..];
        }
    }

    fn waited(&mut self, waited: Nanos) {
        self.core.waited = waited;
    }

    fn dropped(&mut self, reason: Reason) {
        self.counters.count(reason);
        if reason == Reason::ReceiveOverflow {
            self.counters.set_pressure(ReceivePressure::Lost);
        }
    }

    fn pressure(&mut self, pressure: ReceivePressure) {
        self.counters.set_pressure(pressure);
    }

    fn looped_back(&mut self, packets: usize) {
        self.counters.add(Traffic::LoopbackPackets, packets as u64);
    }
}

impl RxBurst<'_> {
    /// Carries out together the packets at the beginning of a train that only continue a message. Returns their number.
    fn middles(&mut self, flow: &Flow, run: &MiddleRun<'_>) -> usize {
        // The first byte tells it of most packets: those of short messages.
        let position = Opcode::from_number(run.bytes[0]).map(|opcode| opcode.info().position);
        if position != Some(Position::Middle) {
            return 0;
        }
        let Ok(bth) = Bth::parse(run.bytes) else { return 0 };
        if worker_of(bth.dest_qpn) != self.core.options.id {
            return 0;
        }
        self.core.pulse.serve_qp(bth.dest_qpn.get());
        let index = self.core.directory.find(bth.dest_qpn);
        let (Some(slot), tables) = self.core.slot_and_tables(self.now, index) else { return 0 };
        if slot.qp.qpn() != bth.dest_qpn || slot.device != self.device {
            return 0;
        }
        let completions = slot.touch(self.now, &mut self.rx.touched);
        slot.last.received(&bth);
        let egress = Egress { batch: self.batch, counters: self.counters };
        // Counted before, so that a capture finds the packet that a reason belongs to: the first one.
        self.counters.add(Traffic::RxPackets, 1);
        let taken = tables.call_qp(slot, egress, completions, |qp, env| qp.on_middles(flow, run, env));
        if taken != 1 {
            self.counters.add(Traffic::RxPackets, (taken as u64).wrapping_sub(1));
        }
        if taken > 0 {
            let bytes = taken * (run.stride - ICRC_LEN);
            slot.received.add_run(taken, bytes);
            self.counters.add(Traffic::RxBytes, bytes as u64);
            self.rx.data_came = true;
            if is_marked(flow) {
                self.on_mark(flow, index, bth.opcode);
            }
        }
        taken
    }

    /// Finds the queue pair that a packet names and lets it process the packet.
    pub(crate) fn demux(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        let qpn = packet.bth.dest_qpn;
        if qpn == Qpn::GSI {
            return self.management(frame, packet);
        }
        if qpn == Qpn::MULTICAST {
            return self.multicast(frame, packet);
        }
        self.rx.data_came = true;
        self.core.pulse.serve_qp(qpn.get());
        let owner = worker_of(qpn);
        if owner != self.core.options.id {
            if self.core.inbox_of(owner).is_some() {
                return self.hand_over(owner, frame);
            }
            if self.core.options.first > 0 {
                return self.counters.count(Reason::ForeignWorker);
            }
        }
        let index = self.core.directory.find(qpn);
        let (slot, tables) = self.core.slot_and_tables(self.now, index);
        let Some(slot) = slot.filter(|slot| slot.qp.qpn() == qpn && slot.device == self.device) else {
            if let Err(reason) = self.core.tombstones.answer(self.now, frame.flow.src, packet, self.batch) {
                self.counters.count(reason);
            }
            return;
        };
        let completions = slot.touch(self.now, &mut self.rx.touched);
        slot.received.add(frame.bytes.len());
        slot.last.received(&packet.bth);
        let egress = Egress { batch: self.batch, counters: self.counters };
        tables.call_qp(slot, egress, completions, |qp, env| qp.on_packet(frame, packet, env));
        if is_marked(&frame.flow) {
            self.on_mark(&frame.flow, index, packet.bth.opcode);
        }
    }

    /// Answers the mark of a packet for the queue pair in this slot.
    #[cold]
    fn on_mark(&mut self, flow: &Flow, index: u32, opcode: Opcode) {
        let (Some(slot), tables) = self.core.slot_and_tables(self.now, index) else { return };
        let path = tables.paths.get_mut(slot.path as usize);
        let egress = Egress { batch: self.batch, counters: self.counters };
        answer_mark(self.now, &MarkedPacket { src: flow.src, opcode }, slot, path, egress);
    }
}
