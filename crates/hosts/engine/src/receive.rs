//! Receive: from the port to the queue pair that a packet names.

use crate::calls::Egress;
use crate::congestion::{answer_mark, is_marked};
use crate::core::Core;
use crate::counters::{Counters, Traffic};
use crate::objects::BurstState;
use crate::options::RX_BUDGET;
use crate::port_slot::PortSlot;
use crate::qpn::worker_of;
use crate::worker::Worker;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_gsi::GsiAgent;
use burst_port::{ReceivePressure, RxSink};
use burst_transport::MiddleRun;
use burst_wire::hello::Hello;
use burst_wire::{Bth, ICRC_LEN, Opcode, Packet, Position};

/// One port's burst, on its way into the tables.
pub(crate) struct RxBurst<'a> {
    pub now: Nanos,
    pub device: DeviceId,
    pub core: &'a mut Core,
    pub agent: &'a mut GsiAgent,
    pub batch: &'a mut TxBatch,
    pub counters: &'a Counters,
    /// Whether another worker handed the packets over.
    pub handed_over: bool,
}

impl Worker {
    /// Takes a burst from each port; queue pairs that now have something to send become ready.
    pub(crate) fn receive(&mut self, now: Nanos) -> bool {
        let (mut taken, mut unread) = (0, false);
        let Worker { core, ports, agent, .. } = self;
        let several = ports.len() > 1;
        for (index, PortSlot { port, batch, counters, attention, taps }) in ports.iter_mut().enumerate() {
            if several && attention.may_skip() && port.next_event() > now {
                continue;
            }
            let device = DeviceId::from_index(index);
            if core.expected.has_any() {
                core.expected.clear();
            }
            let mut sink = RxBurst { now, device, core, agent, batch, counters, handed_over: false };
            let burst = match taps.is_empty() {
                true => port.rx_burst(now, RX_BUDGET, &mut sink),
                false => taps.receive(&mut **port, now, RX_BUDGET, &mut sink),
            };
            core.waited = Nanos(0);
            taken += burst;
            attention.note(burst);
            if burst > 0 {
                counters.count_calls(port.take_calls());
            }
            unread |= burst >= RX_BUDGET || port.next_event() <= now;
        }
        core.unread = unread;
        taken += self.take_inbox(now);
        self.wake_workers_handed_to();
        self.core.show_completions(&self.ports);
        debug_assert!(self.core.outbox.completions.is_empty() && self.core.handed_to == 0, "a burst has not ended");
        while let Some(qp) = self.core.touched.pop() {
            if let Some(slot) = self.core.qps.get_mut(qp as usize).and_then(Option::as_mut) {
                slot.burst = BurstState::Untouched;
                if let Some(received) = slot.received.take_due() {
                    self.core.sched.charge_received(slot.holder.context, received);
                }
            }
            self.core.settle(now, qp);
        }
        taken > 0
    }

    /// Takes the packets that other workers have handed over.
    fn take_inbox(&mut self, now: Nanos) -> usize {
        let Worker { core, ports, agent, .. } = self;
        let Some(inbox) = core.inbox_of(core.options.id).filter(|inbox| !inbox.is_empty()).cloned() else { return 0 };
        inbox.drain(RX_BUDGET, |device, frame| {
            let PortSlot { batch, counters, .. } = &mut ports[device.index()];
            let mut sink = RxBurst { now, device, core, agent, batch, counters, handed_over: true };
            if let Ok(packet) = Packet::parse(frame.bytes) {
                sink.demux(frame, &packet);
            }
        })
    }

    /// Wakes the workers that packets of this burst were handed over to.
    fn wake_workers_handed_to(&mut self) {
        while self.core.handed_to != 0 {
            let worker = self.core.handed_to.trailing_zeros();
            self.core.handed_to &= self.core.handed_to - 1;
            if self.core.inbox_of(worker).is_some_and(|inbox| inbox.wake_sleeper()) {
                self.ports[0].counters.add(Traffic::HandoverWakes, 1);
            }
        }
    }
}

impl RxSink for RxBurst<'_> {
    fn expects(&self) -> bool {
        self.core.has_many()
    }

    fn expect(&mut self, packet: &[u8]) {
        let Core { expected, directory, .. } = &mut *self.core;
        expected.add(packet, directory);
    }

    fn frame(&mut self, frame: &RxFrame<'_>) {
        if self.core.expected.has_any() {
            self.core.advance_expected();
        }
        self.counters.add(Traffic::RxPackets, 1);
        self.counters.add(Traffic::RxBytes, frame.bytes.len() as u64);
        match Packet::parse(frame.bytes) {
            Ok(packet) => self.demux(frame, &packet),
            Err(reason) => self.counters.count(reason),
        }
    }

    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let mut rest = train;
        let has_many = self.core.has_many();
        while rest.len() >= stride {
            let taken = self.middles(flow, &MiddleRun { bytes: rest, stride }) * stride;
            if taken == 0 {
                if has_many && !self.core.expected.has_any() {
                    let Core { expected, directory, .. } = &mut *self.core;
                    expected.add_train(rest, stride, directory);
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
        let (Some(slot), mut tables) = self.core.slot_and_tables(self.now, index) else { return 0 };
        if slot.endpoint.qp().qpn() != bth.dest_qpn || slot.device != self.device {
            return 0;
        }
        let completions = tables.touch(slot, index);
        let egress = Egress { batch: self.batch, counters: self.counters };
        let taken = tables.call_qp(slot, egress, completions, |qp, env| qp.on_middles(flow, run, env));
        if taken > 0 {
            let bytes = taken * (run.stride - ICRC_LEN);
            slot.received.add_run(taken, bytes);
            self.counters.add(Traffic::RxPackets, taken as u64);
            self.counters.add(Traffic::RxBytes, bytes as u64);
            self.core.data_came = true;
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
        self.core.data_came = true;
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
        let (slot, mut tables) = self.core.slot_and_tables(self.now, index);
        let Some(slot) = slot.filter(|slot| slot.endpoint.qp().qpn() == qpn && slot.device == self.device) else {
            if let Err(reason) = self.core.tombstones.answer(self.now, frame.flow.src, packet, self.batch) {
                self.counters.count(reason);
            }
            return;
        };
        let completions = tables.touch(slot, index);
        slot.received.add(frame.bytes.len());
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
        answer_mark(self.now, (flow.src, opcode), (slot, path), self.batch, self.counters);
    }

    /// Gives a management datagram to the worker that has the connection, or shall have it.
    fn management(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        if self.core.options.first > 0 && !self.handed_over {
            // QP1 is another process's, which passes on what is for this one.
            return self.counters.count(Reason::ForeignWorker);
        }
        let mad = match GsiAgent::parse(packet) {
            Ok(mad) => mad,
            Err(reason) => return self.counters.count(reason),
        };
        if Hello::is_hello(mad) {
            return self.on_hello(frame, mad);
        }
        if burst_cm::names_burst(mad) {
            self.core.on_vendor_id(self.now, self.device, frame.flow.src);
        }
        let workers = self.core.inboxes.len() as u32;
        if workers > 1 {
            match self.agent.owner_of(frame.flow.src, mad, workers) {
                Some(owner) if owner != self.core.options.id => return self.hand_over_mad(owner, frame),
                Some(_) => {}
                None => self.hand_to_all(frame),
            }
        }
        if let Err(reason) = self.agent.receive(self.device, &frame.flow, mad) {
            self.counters.count(reason);
        }
    }

    /// Hands a copy to each other worker, unless the packet was itself handed over.
    fn hand_to_all(&mut self, frame: &RxFrame<'_>) {
        if !self.handed_over {
            let (own, workers) = (self.core.options.id, self.core.inboxes.len() as u32);
            (0..workers).filter(|worker| *worker != own).for_each(|worker| self.hand_over_mad(worker, frame));
        }
    }

    /// Copies a management datagram into another worker's inbox.
    pub(crate) fn hand_over_mad(&mut self, owner: u32, frame: &RxFrame<'_>) {
        debug_assert_ne!(owner, self.core.options.id, "a datagram handed to its own worker");
        let Some(inbox) = self.core.inbox_of(owner) else { return };
        let handed = inbox.hand_over_mad(self.device, frame);
        self.handed(owner, handed);
    }

    /// Copies a packet into another worker's inbox.
    pub(crate) fn hand_over(&mut self, owner: u32, frame: &RxFrame<'_>) {
        debug_assert_ne!(owner, self.core.options.id, "a packet handed to its own worker");
        let Some(inbox) = self.core.inbox_of(owner) else { return };
        let handed = inbox.hand_over(self.device, frame);
        self.handed(owner, handed);
    }

    /// The owner of what was handed over is woken at the end of the burst.
    fn handed(&mut self, owner: u32, result: Result<(), Reason>) {
        match result {
            Ok(()) => {
                self.core.handed_to |= 1 << owner;
                self.counters.add(Traffic::HandedOver, 1);
            }
            Err(reason) => self.counters.count(reason),
        }
    }
}
