//! Receive: from the port to the queue pair that a packet names.

use crate::cm::GSI_QKEY;
use crate::counters::{Counters, Traffic};
use crate::effects::{Fx, SlotView};
use crate::objects::NO_PATH;
use crate::qpn::{slot_of, worker_of};
use crate::worker::{Core, PortSlot, RX_BUDGET, Worker};
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cm::Cm;
use burst_frame::{Flow, RxFrame, TxBatch};
use burst_port::RxSink;
use burst_transport::{Env, MiddleRun};
use burst_wire::{Bth, ICRC_LEN, MAD_LEN, Opcode, Packet, Position};

/// One port's burst on its way into the tables.
pub(crate) struct Walk<'a> {
    pub(crate) now: Nanos,
    pub(crate) device: DeviceId,
    pub(crate) core: &'a mut Core,
    pub(crate) batch: &'a mut TxBatch,
    pub(crate) counters: &'a Counters,
    /// The packets come from another worker.
    pub(crate) handed: bool,
}

impl Worker {
    /// Takes a burst from each port; queue pairs that now have something to say become ready.
    pub(crate) fn receive(&mut self, now: Nanos) -> bool {
        let (mut taken, mut unread) = (0, false);
        for (index, PortSlot { port, batch, counters }) in self.ports.iter_mut().enumerate() {
            let mut walk =
                Walk { now, device: DeviceId::from_index(index), core: &mut self.core, batch, counters, handed: false };
            let burst = port.rx_burst(now, RX_BUDGET, &mut walk);
            taken += burst;
            unread |= burst >= RX_BUDGET || port.next_event() <= now;
        }
        self.core.unread = unread;
        taken += self.take_inbox(now);
        self.wake_handed();
        while let Some(qp) = self.core.touched.pop() {
            if let Some(slot) = self.core.qps.get_mut(qp as usize).and_then(Option::as_mut) {
                slot.touched = false;
            }
            self.core.settle(now, qp);
        }
        taken > 0
    }
}

impl Worker {
    /// Packets that other workers have handed over.
    fn take_inbox(&mut self, now: Nanos) -> usize {
        let inbox = self.core.inboxes[self.core.options.id as usize].clone();
        if inbox.is_empty() {
            return 0;
        }
        inbox.drain(RX_BUDGET, |device, frame| {
            let PortSlot { batch, counters, .. } = &mut self.ports[device.index()];
            let mut walk = Walk { now, device, core: &mut self.core, batch, counters, handed: true };
            if let Ok(packet) = Packet::parse(frame.bytes) {
                walk.demux(frame, &packet);
            }
        })
    }

    /// Wakes the workers that were handed packets in this burst.
    fn wake_handed(&mut self) {
        while self.core.handed_to != 0 {
            let worker = self.core.handed_to.trailing_zeros();
            self.core.handed_to &= self.core.handed_to - 1;
            self.core.inboxes[worker as usize].wake();
        }
    }
}

impl RxSink for Walk<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.counters.add(Traffic::RxPackets, 1);
        self.counters.add(Traffic::RxBytes, frame.bytes.len() as u64);
        match Packet::parse(frame.bytes) {
            Ok(packet) => self.demux(frame, &packet),
            Err(reason) => self.counters.count(reason),
        }
    }

    fn train(&mut self, flow: &Flow, train: &[u8], stride: usize) {
        let mut rest = train;
        while rest.len() >= stride {
            let taken = self.middles(flow, &MiddleRun { bytes: rest, stride }) * stride;
            if taken == 0 {
                self.frame(&RxFrame { flow: *flow, bytes: &rest[..stride - ICRC_LEN] });
            }
            rest = &rest[taken.max(stride)..];
        }
    }

    fn dropped(&mut self, reason: Reason) {
        self.counters.count(reason);
    }

    fn looped_back(&mut self, packets: usize) {
        self.counters.add(Traffic::LoopbackPackets, packets as u64);
    }
}

impl Walk<'_> {
    /// Packets at the beginning of a train that only go on with a message are carried out together; returns how many.
    fn middles(&mut self, flow: &Flow, train: &MiddleRun<'_>) -> usize {
        let bth = Bth::parse(train.bytes);
        let Ok(bth) = bth else { return 0 };
        if bth.opcode.info().position != Position::Middle || worker_of(bth.dest_qpn) != self.core.options.id {
            return 0;
        }
        let index = slot_of(bth.dest_qpn);
        let Core { qps, cqs, ahs, xrc, mem, outbox, touched, data_came, .. } = &mut *self.core;
        let Some(slot) = qps.get_mut(index as usize).and_then(Option::as_mut) else { return 0 };
        if slot.qpn != bth.dest_qpn || slot.device != self.device {
            return 0;
        }
        let view = SlotView { async_events: &slot.async_events, event_cookie: slot.event_cookie, others: &slot.others };
        let mut fx = Fx { cqs, ahs, xrc, counters: self.counters, outbox, slot: view, signal: None, defer: false };
        let mut env = Env { now: self.now, mem, tx: self.batch, fx: &mut fx };
        let taken = slot.qp.on_middles(flow, train, &mut env);
        if taken > 0 {
            self.counters.add(Traffic::RxPackets, taken as u64);
            self.counters.add(Traffic::RxBytes, (taken * (train.stride - ICRC_LEN)) as u64);
            *data_came = true;
            if !slot.touched {
                slot.touched = true;
                touched.push(index);
            }
        }
        taken
    }
}

impl Walk<'_> {
    /// Finds the queue pair and lets it work on the packet.
    fn demux(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        let qpn = packet.bth.dest_qpn;
        if qpn == Qpn::GSI {
            return self.mad(frame, packet);
        }
        if qpn == Qpn::MULTICAST {
            return self.multicast(frame, packet);
        }
        self.core.data_came = true;
        let owner = worker_of(qpn);
        if owner != self.core.options.id && (owner as usize) < self.core.inboxes.len() {
            return self.hand_over(owner, frame);
        }
        let index = slot_of(qpn);
        let Core { qps, cqs, ahs, xrc, mem, outbox, paths, touched, graves, .. } = &mut *self.core;
        let slot = match qps.get_mut(index as usize).and_then(Option::as_mut) {
            Some(slot) if slot.qpn == qpn && slot.device == self.device => slot,
            _ => {
                if !graves.answer(self.now, packet, self.batch) {
                    self.counters.count(Reason::UnknownQpn);
                }
                return;
            }
        };
        let view = SlotView { async_events: &slot.async_events, event_cookie: slot.event_cookie, others: &slot.others };
        let mut fx = Fx { cqs, ahs, xrc, counters: self.counters, outbox, slot: view, signal: None, defer: false };
        let mut env = Env { now: self.now, mem, tx: self.batch, fx: &mut fx };
        slot.qp.on_packet(frame, packet, &mut env);
        if let Some(signal) = fx.signal
            && slot.path != NO_PATH
        {
            paths[slot.path as usize].on_signal(self.now, signal);
        }
        if !slot.touched {
            slot.touched = true;
            touched.push(index);
        }
    }
}

impl Walk<'_> {
    /// A management datagram: to the worker that has the connection, or shall have it.
    fn mad(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
        let known = packet.deth().filter(|deth| deth.qkey == GSI_QKEY && packet.info.opcode == Opcode::UdSendOnly);
        let Some(bytes) = packet.payload.first_chunk::<MAD_LEN>().filter(|_| packet.payload.len() == MAD_LEN) else {
            return self.counters.count(Reason::MadMalformed);
        };
        if known.is_none() {
            return self.counters.count(Reason::BadQkey);
        }
        let Some(host) = &self.core.cm else { return };
        let workers = self.core.inboxes.len() as u32;
        if workers > 1 {
            match Cm::<()>::worker_of(&host.secret, frame.flow.src, bytes, workers) {
                Some(owner) if owner != self.core.options.id => return self.hand_over(owner, frame),
                Some(_) => {}
                None => self.hand_to_all(frame),
            }
        }
        if let Some(host) = &mut self.core.cm
            && let Err(reason) = host.arrive(self.device, &frame.flow, bytes)
        {
            self.counters.count(reason);
        }
    }

    /// A copy for each other worker, unless it is one.
    fn hand_to_all(&mut self, frame: &RxFrame<'_>) {
        if !self.handed {
            let (own, workers) = (self.core.options.id, self.core.inboxes.len() as u32);
            (0..workers).filter(|worker| *worker != own).for_each(|worker| self.hand_over(worker, frame));
        }
    }

    pub(crate) fn hand_over(&mut self, owner: u32, frame: &RxFrame<'_>) {
        match self.core.inboxes[owner as usize].hand(self.device, frame) {
            Ok(()) => self.core.handed_to |= 1 << owner,
            Err(reason) => self.counters.count(reason),
        }
    }
}
