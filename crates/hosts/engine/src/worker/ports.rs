//! Calls for the ports of a worker: state, impairments, captures, groups, worker numbers that are lent to other processes.

use crate::counters::Counters;
use crate::port_slot::PortSlot;
use crate::tap::PortTap;
use crate::worker::Worker;
use burst_base::{DeviceId, Nanos};
use burst_port::impair::Impair;
use burst_port::spec::ImpairSpec;
use burst_port::{LentSocket, NeighbourState, PortCaps, PortError};
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

impl Worker {
    /// The worker will have no queue pairs of the device, and looks at its port seldom.
    pub fn leave_port(&mut self, device: DeviceId) {
        self.ports[device.index()].attention.set_unused();
    }

    /// Counters of `device`.
    pub fn counters(&self, device: DeviceId) -> Arc<Counters> {
        self.ports[device.index()].counters.clone()
    }

    /// State of the next hop to `dst` at the port of `device`. The port begins to resolve an unknown next hop.
    pub fn next_hop(&mut self, now: Nanos, device: DeviceId, dst: IpAddr) -> NeighbourState {
        self.ports[device.index()].port.next_hop(now, dst)
    }

    /// Address, MTU and link state of the port of `device`, read again.
    pub fn refresh_port(&mut self, device: DeviceId) -> PortCaps {
        let slot = &mut self.ports[device.index()];
        slot.port.refresh();
        slot.port.caps().clone()
    }

    /// Bytes in the queue of the link that the port of `device` simulates for received frames; `None` if it simulates none.
    pub fn received_queue(&mut self, now: Nanos, device: DeviceId) -> Option<u64> {
        self.ports[device.index()].port.impairment().and_then(|wrapper| wrapper.received_queue(now))
    }

    /// From now on frames of the port of `device` have the fate that `spec` says, for `time`, beside the impairments of its
    /// specification; `None` ends this.
    pub fn impair(&mut self, now: Nanos, device: DeviceId, spec: Option<ImpairSpec>, time: Nanos) {
        let until = Nanos(now.0.saturating_add(time.0));
        if self.ports[device.index()].port.impairment().is_none() {
            let slot = self.ports.remove(device.index());
            let port = Box::new(Impair::changeable(slot.port));
            self.ports.insert(device.index(), PortSlot { port, ..slot });
        }
        let wrapper = self.ports[device.index()].port.impairment().expect("a wrapper that was just made");
        wrapper.set(spec.as_ref(), until);
    }

    /// Ends captures of the device whose readers have gone.
    pub fn end_captures(&mut self, device: DeviceId) {
        self.ports[device.index()].taps.remove_left();
        if let Some(urma) = &mut self.urma {
            urma.remove_left_taps(device);
        }
    }

    /// Packets of the device, those of URMA included, are captured. False if there are too many taps.
    pub fn capture(&mut self, device: DeviceId, tap: PortTap) -> bool {
        let endpoints = self.urma.as_ref().map_or(0, |urma| urma.of_device(device).count());
        let more: Vec<PortTap> = (0..endpoints).filter_map(|_| tap.try_clone().ok()).collect();
        let is_added = self.ports[device.index()].add_tap(tap);
        if is_added && let Some(urma) = &mut self.urma {
            urma.add_taps(device, more);
        }
        is_added
    }

    /// Descriptors to sleep on.
    pub fn wait_fds(&self) -> Vec<RawFd> {
        let urma = self.urma.iter().flat_map(|slot| slot.wait_fds());
        self.ports.iter().flat_map(|p| p.port.wait_fds()).chain(urma).collect()
    }

    /// Passes all descriptors of the ports (`Port::each_descriptor`).
    pub fn each_port_descriptor(&self, take: &mut dyn FnMut(RawFd)) {
        self.ports.iter().for_each(|p| p.port.each_descriptor(take));
        self.urma.iter().for_each(|slots| slots.each_descriptor(take));
    }

    /// Makes a port take part in a group.
    ///
    /// # Errors
    /// The port's error.
    pub fn join_group(&mut self, device: DeviceId, ip: IpAddr) -> Result<(), PortError> {
        self.ports[device.index()].port.join(ip)
    }

    /// Makes a port leave a group.
    pub fn leave_group(&mut self, device: DeviceId, ip: IpAddr) {
        self.ports[device.index()].port.leave(ip);
    }

    /// From now on answers to hellos with this number go to a socket; `None`: no process has the number any more.
    pub fn set_mail(&mut self, number: u32, socket: Option<OwnedFd>) {
        self.core.mail.retain(|(of, _)| *of != number);
        self.core.mail.extend(socket.map(|socket| (number, socket)));
    }

    /// Lends a worker number of a device's port: see [`burst_port::Port::lend`].
    ///
    /// # Errors
    /// The port's error.
    pub fn lend_number(&mut self, device: DeviceId, number: usize) -> Result<Vec<LentSocket>, PortError> {
        self.ports[device.index()].port.lend(number)
    }

    /// Packets to queue pairs of the number come to this process again.
    pub fn take_number_back(&mut self, number: usize) {
        self.ports.iter_mut().for_each(|slot| slot.port.take_back(number));
    }
}
