//! Calls for URMA: endpoints, programs in other processes, and their objects.

use crate::core::Core;
use crate::counters::Counters;
use crate::objects::is_ready;
use crate::transmit::sched::URMA_ENTRY;
use crate::urma::{EndpointSlot, TenantCall, UrmaEndpoint, UrmaEndpoints, UrmaTenant};
use crate::worker::Worker;
use burst_base::{DeviceId, Nanos};
use burst_control::urma_calls::UrmaAnswer;
use burst_ledger::{Account, Charge};
use burst_urma::{UrmaEnv, UrmaError, UrmaEvent, UrmaMemory, UrmaNode};
use std::net::IpAddr;
use std::sync::Arc;

impl Worker {
    /// Adds URMA's endpoint: its turns are those of `context`, its memory is the program's.
    ///
    /// # Panics
    /// If the worker has one already.
    pub fn add_urma(&mut self, context: u32, endpoint: UrmaEndpoint, memory: Box<dyn UrmaMemory + Send>) {
        assert!(self.urma.is_none(), "an endpoint of one program is the only one");
        let slot = EndpointSlot::new(endpoint, None, Some(memory));
        self.urma = Some(Box::new(UrmaEndpoints::new(context, slot)));
    }

    /// Adds the endpoint of an address, for programs that post from other processes. What it sends is paid for by the programs
    /// when they post, so its turns are those of a context of the host itself, number `context`, if it is the worker's first one.
    /// Returns whether it is.
    pub fn open_urma(&mut self, context: u32, device: DeviceId, account: &Account, endpoint: UrmaEndpoint) -> bool {
        let mut slot = EndpointSlot::new(endpoint, Some(device), None);
        if let Some(excerpts) = &self.core.outbox.excerpts {
            slot.endpoint.keep_packets(excerpts.ring().clone());
        }
        // Who captures the device's packets gets these, too.
        for tap in self.ports[device.index()].taps.copies() {
            slot.endpoint.add_tap(tap);
        }
        match &mut self.urma {
            Some(urma) => {
                urma.slots.push(slot);
                false
            }
            None => {
                self.core.sched.add_context(context, account, self.core.options.id as usize, None);
                self.urma = Some(Box::new(UrmaEndpoints::new(context, slot)));
                true
            }
        }
    }

    /// Removes the endpoint of an address, which no program uses any more. Returns the number of the context that the last one
    /// gives back.
    pub fn close_urma(&mut self, now: Nanos, address: IpAddr) -> Option<u32> {
        let urma = self.urma.as_deref_mut()?;
        if !urma.close(address, &mut self.core.urma_shared(now)) {
            return None;
        }
        let context = urma.context();
        if urma.is_queued() {
            self.core.sched.remove(context, |_| false);
        }
        self.core.timers.wheel.cancel(URMA_ENTRY);
        self.core.sched.remove_context(context);
        self.urma = None;
        Some(context)
    }

    /// URMA's first endpoint.
    pub fn urma(&mut self) -> Option<&mut UrmaEndpoint> {
        self.urma.as_mut()?.slots.first_mut().map(|slot| &mut slot.endpoint)
    }

    /// The endpoint of an address.
    pub fn urma_endpoint(&self, address: IpAddr) -> Option<&UrmaEndpoint> {
        let urma = self.urma.as_deref()?;
        urma.find(address).map(|at| &urma.slots[at].endpoint)
    }

    /// Counters of the endpoints of a device.
    pub fn urma_counters(&self, device: DeviceId) -> Vec<Arc<Counters>> {
        let of_device = self.urma.iter().flat_map(|urma| urma.of_device(device));
        of_device.map(|slot| slot.endpoint.counters().clone()).collect()
    }

    /// What the first node has reported since the last call; `None` without an endpoint.
    pub fn take_urma_reports(&mut self) -> Option<(Vec<u32>, Vec<UrmaEvent>)> {
        let reports = &mut self.urma.as_mut()?.slots.first_mut()?.reports;
        Some((reports.completions.take(), reports.events.take()))
    }

    /// Calls something of the first node; what it makes ready leaves in its turn. `None` without an endpoint.
    pub fn with_urma<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> Option<R> {
        let urma = self.urma.as_deref_mut()?;
        let slot = urma.slots.first_mut()?;
        let mut shared = self.core.urma_shared(now);
        let result = slot.call_node(&mut shared, call);
        urma.settle(&mut shared);
        Some(result)
    }

    /// Adds a program. Its context must have been added.
    pub fn add_urma_tenant(&mut self, mut tenant: UrmaTenant) {
        if let Some(context) = self.core.contexts.get_mut(tenant.context as usize).and_then(Option::as_mut) {
            context.set_queue(tenant.doorbell, URMA_ENTRY);
        }
        tenant.ring.try_idle();
        if let Some(urma) = &mut self.urma {
            urma.add_tenant(tenant);
        }
    }

    /// Whether a program uses the node of an address.
    pub fn has_urma_tenant(&self, address: IpAddr) -> bool {
        self.urma.as_ref().is_some_and(|urma| urma.has_tenant(address))
    }

    /// Deletes segments and imports of a program that has ended, `most` at most. Returns how many; 0: there are no more.
    pub fn leave_urma(&mut self, context: u32, most: usize) -> usize {
        self.urma.as_deref_mut().map_or(0, |urma| urma.leave(context, most))
    }

    /// Sets what the objects of a program cost that has ended: until nothing uses them any more.
    pub fn keep_urma_charges(&mut self, context: u32, charges: [Option<Charge>; 2]) {
        if let Some(urma) = &mut self.urma {
            urma.keep_charges(context, charges);
        }
    }

    /// Removes a program with all its objects: what it has not executed is dropped. Returns whether its node has no other one.
    pub fn remove_urma_tenant(&mut self, now: Nanos, context: u32) -> bool {
        let Some(urma) = self.urma.as_deref_mut() else { return false };
        let Some((tenant, is_queued)) = urma.remove_tenant(context) else { return false };
        if is_queued {
            let Core { sched, qps, .. } = &mut self.core;
            sched.remove(context, |place| place.qp != URMA_ENTRY && is_ready(qps, place));
        }
        if let Some(context) = self.core.contexts.get_mut(context as usize).and_then(Option::as_mut) {
            context.clear_queue(tenant.doorbell);
        }
        let address = tenant.address;
        urma.inherit(tenant, &mut self.core.urma_shared(now));
        !urma.has_tenant(address)
    }

    /// Carries out a call of a program for an object. `None`: the program has no node here.
    ///
    /// # Errors
    /// The node's refusal; [`UrmaError::NoObject`] also for objects of others.
    pub fn urma_call(&mut self, now: Nanos, context: u32, call: TenantCall) -> Option<Result<UrmaAnswer, UrmaError>> {
        self.urma.as_deref_mut()?.tenant_call(context, call, &mut self.core.urma_shared(now))
    }
}
