//! Management datagrams, and packets of other workers, on their way to the worker that has their connection or queue pair.

use crate::core::Core;
use crate::counters::Traffic;
use crate::paths::hello::{HelloQuestion, asker_of};
use crate::receive::RxBurst;
use crate::receive::lent::send_mail;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame};
use burst_gsi::GsiAgent;
use burst_wire::hello::Hello;
use burst_wire::{MAD_LEN, Packet};
use std::net::IpAddr;

impl RxBurst<'_> {
    /// Gives a management datagram to the worker that has the connection, or shall have it.
    pub(super) fn management(&mut self, frame: &RxFrame<'_>, packet: &Packet<'_>) {
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
            self.on_vendor_id(frame.flow.src);
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
    fn hand_over_mad(&mut self, owner: u32, frame: &RxFrame<'_>) {
        debug_assert_ne!(owner, self.core.options.id, "a datagram handed to its own worker");
        let Some(inbox) = self.core.inbox_of(owner) else { return };
        let handed = inbox.hand_over_mad(self.device, frame);
        self.handed(owner, handed);
    }

    /// Copies a packet into another worker's inbox.
    pub(super) fn hand_over(&mut self, owner: u32, frame: &RxFrame<'_>) {
        debug_assert_ne!(owner, self.core.options.id, "a packet handed to its own worker");
        let Some(inbox) = self.core.inbox_of(owner) else { return };
        let handed = inbox.hand_over(self.device, frame);
        self.handed(owner, handed);
    }

    /// The owner of what was handed over is woken at the end of the burst.
    fn handed(&mut self, owner: u32, result: Result<(), Reason>) {
        match result {
            Ok(()) => {
                self.rx.handed_to |= 1 << owner;
                self.counters.add(Traffic::HandedOver, 1);
            }
            Err(reason) => self.counters.count(reason),
        }
    }

    /// Passes a packet on to the process that has a worker number. False if there is none, or if it does not read.
    #[cold]
    fn mail(&mut self, number: u32, frame: &RxFrame<'_>) -> bool {
        send_mail(&self.core.mail, number, self.device, frame)
    }

    /// A message of the connection manager from `src` has Burst's vendor id.
    #[cold]
    fn on_vendor_id(&mut self, src: IpAddr) {
        let Core { paths, hellos, options, .. } = &mut *self.core;
        if options.asks_peers()
            && let Some(at) = paths.find(self.device, src)
        {
            hellos.on_vendor_id(self.now, at, &mut paths[at as usize]);
        }
    }

    /// A hello has arrived.
    #[cold]
    fn on_hello(&mut self, frame: &RxFrame<'_>, mad: &[u8; MAD_LEN]) {
        let Some(hello) = Hello::parse(mad) else { return self.counters.count(Reason::MadUnknown) };
        let owner = asker_of(hello.tid);
        if hello.is_answer && owner != self.core.options.id {
            return if self.core.inbox_of(owner).is_some() && !self.handed_over {
                self.hand_over_mad(owner, frame)
            } else if !self.mail(owner, frame) {
                self.counters.count(Reason::HelloUnexpected)
            };
        }
        let now = self.now;
        let at = self.core.paths.find(self.device, frame.flow.src);
        let own_boot_id = self.core.options.boot_id();
        let Core { paths, hellos, .. } = &mut *self.core;
        match (hello.is_answer, at) {
            (true, Some(at)) if paths[at as usize].hello.on_answer(now, &hello, own_boot_id) => {
                // The controller follows with the timers of this pass.
                hellos.times.note_change(now, at, &mut paths[at as usize]);
                self.core.set_families(&mut [at]);
            }
            (true, _) => self.counters.count(Reason::HelloUnexpected),
            // Before anything is read of it: a flood of questions costs no more than its packets.
            (false, _) if !hellos.may_answer(now) => self.counters.count(Reason::HelloWithheld),
            (false, at) => {
                if let Some(at) = at {
                    let path = &mut paths[at as usize];
                    path.hello.on_question(now, &hello);
                    hellos.times.note(at, path);
                }
                // The answer is due now, and with it what the question asks of the path.
                let back = Flow { src: frame.flow.dst, dst: frame.flow.src, tos: 0, ..frame.flow };
                hellos.answer(HelloQuestion { device: self.device, back, tid: hello.tid });
            }
        }
    }
}
