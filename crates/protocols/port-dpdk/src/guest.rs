//! The port of another transport on a device that has ports: URMA beside RoCE.
//!
//! It has one address and one UDP port of the device, and is run by one worker. It sends by the queue pair of that worker, as the
//! worker's first port does ([`crate::tx`]), with its own encapsulation. The ports that own the device receive its packets,
//! whichever queue they come to, and put them into its inbox ([`crate::inbox`]), which costs a second copy of each. They also
//! answer for the addresses, and poll the device: a guest has nothing to wait for but its inbox.
//!
//! Packets to another guest on the device go to its inbox directly, because no device returns them.

use crate::inbox::{GuestInbox, InboxBuffer};
use crate::rx::PacketCheck;
use crate::share::{DeviceShare, EthLine, lock};
use crate::tx::DpdkTx;
use burst_base::{Nanos, Reason};
use burst_frame::{RxFrame, TxBatch, TxFrame};
use burst_port::error::PortError;
use burst_port::loopback::copy_frame;
use burst_port::loopback::wakeup::{WorkerSleep, WorkerWakeup};
use burst_port::spec::DevArgs;
use burst_port::spec::DpdkSpec;
use burst_port::{Encapsulation, Port, PortCaps, RxSink};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A port of another transport on a device that has ports.
pub struct GuestPort {
    caps: PortCaps,
    encapsulation: Encapsulation,
    share: Arc<DeviceShare>,
    line: Arc<Mutex<EthLine>>,
    inbox: Arc<GuestInbox>,
    tx: DpdkTx,
    check: PacketCheck,
    /// Packets that were taken from the inbox; the first `delivered` are with the engine.
    taken: InboxBuffer,
    delivered: usize,
    sleep: WorkerSleep,
    loops_back: bool,
}

impl GuestPort {
    /// Opens the port of `address` on the device of `spec`, for the worker number `worker`. `name` is the specification as the
    /// user wrote it.
    ///
    /// # Errors
    /// [`PortError::Device`]: the device is closed. [`PortError::InUse`]: the address has a port of this transport.
    pub fn open(
        spec: &DpdkSpec,
        encapsulation: &Encapsulation,
        name: &str,
        address: IpAddr,
        worker: usize,
    ) -> Result<GuestPort, PortError> {
        let args = DevArgs::parse(&spec.dev).map_err(PortError::Device)?;
        let share = DeviceShare::find(args.name())?;
        let line = share.line(worker);
        let line =
            line.ok_or_else(|| PortError::Device(format!("DPDK device {} has no queue {worker}", args.name())))?;
        let wakeup = Arc::new(WorkerWakeup::new()?);
        let inbox = Arc::new(GuestInbox::new(address, encapsulation.udp_port, wakeup.clone()));
        let (mut caps, mtu, frame_max) = {
            let line = lock(&line);
            let device = line.queue.device();
            let caps = crate::port::caps_of(name, &args, line.lan.host(), device);
            (caps, usize::from(device.mtu()), line.queue.frame_max())
        };
        caps.addrs.retain(|addr| addr.ip == address);
        share.add_guest(inbox.clone())?;
        Ok(GuestPort {
            caps,
            encapsulation: *encapsulation,
            tx: DpdkTx::new(encapsulation, mtu, frame_max),
            check: PacketCheck::new(encapsulation),
            taken: InboxBuffer::new(),
            delivered: 0,
            sleep: WorkerSleep::new(wakeup),
            loops_back: spec.loopback,
            share,
            line,
            inbox,
        })
    }
}

impl Drop for GuestPort {
    fn drop(&mut self) {
        self.share.remove_guest(&self.inbox);
    }
}

/// Gives a packet to another address of the device to the guest that has it.
fn hand_over(share: &DeviceShare, udp_port: u16, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
    let flow = burst_frame::Flow {
        src_port: if frame.flow.src_port == 0 { udp_port } else { frame.flow.src_port },
        ..frame.flow
    };
    let guest = share.guest_of(&flow, udp_port).ok_or(Reason::NotOurs)?;
    guest.put(&flow, None, frame.udp_payload_len(), |room| copy_frame(batch, frame, room))
}

impl Port for GuestPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn rx_burst(&mut self, _now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.sleep.leave();
        let mut count = 0;
        while count < budget {
            let Some((packet, payload)) = self.taken.packet(self.delivered) else {
                if !self.inbox.is_filled() {
                    break;
                }
                let lost = self.inbox.take(&mut self.taken);
                self.delivered = 0;
                (0..lost).for_each(|_| sink.dropped(Reason::ReceiveOverflow));
                continue;
            };
            self.delivered += 1;
            count += 1;
            match self.check.check(&packet.flow, packet.header, payload) {
                Ok(bytes) => sink.frame(&RxFrame { flow: packet.flow, bytes }),
                Err(reason) => sink.refused(&RxFrame { flow: packet.flow, bytes: payload }, reason),
            }
        }
        count
    }

    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        let GuestPort { tx, share, line, loops_back, encapsulation, .. } = self;
        let EthLine { queue, lan } = &mut *lock(line);
        let host = lan.shared_host();
        let divert = |frame: &TxFrame| {
            let is_own = *loops_back && host.owns(frame.flow.dst);
            is_own.then(|| hand_over(share, encapsulation.udp_port, batch, frame))
        };
        tx.burst(now, (queue, lan), batch, divert, dropped);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.sleep.fd()]
    }

    fn next_event(&self) -> Nanos {
        let has_packets = self.taken.packet(self.delivered).is_some() || self.inbox.is_filled();
        if has_packets { Nanos(0) } else { Nanos::NEVER }
    }

    fn before_sleep(&mut self) -> bool {
        self.sleep.enter();
        self.next_event() == Nanos(0)
    }

    fn refresh(&mut self) -> bool {
        let link = lock(&self.line).queue.device().link();
        let changed = (self.caps.up, self.caps.speed_mbps) != (link.up, link.speed_mbps);
        (self.caps.up, self.caps.speed_mbps) = (link.up, link.speed_mbps);
        changed
    }
}
