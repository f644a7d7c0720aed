//! Management datagrams, and packets of other workers, on their way to the worker that has their connection or queue pair.

use crate::counters::Traffic;
use crate::receive::RxBurst;
use crate::receive::lent::send_mail;
use burst_base::Reason;
use burst_frame::RxFrame;
use burst_gsi::GsiAgent;
use burst_wire::Packet;
use burst_wire::hello::Hello;

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
    pub(crate) fn mail(&mut self, number: u32, frame: &RxFrame<'_>) -> bool {
        send_mail(&self.core.mail, number, self.device, frame)
    }
}
