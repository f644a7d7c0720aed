//! Protection domains, completion channels and address handles.

use super::state::{Context, HostAh, InUse};
use crate::device::DeviceObject;
use crate::host::Host;
use crate::refusal::{busy, no_room, refuse, system, unknown};
use crate::reply::ReplyParts;
use burst_base::gid::ip_of;
use burst_base::verbs::AhAttr;
use burst_control::events::EventPipe;
use burst_control::{Refusal, Response};
use burst_engine::AddressHandle;
use burst_engine::flow::flow_of;
use burst_ledger::{Charge, Resource};
use std::sync::Arc;

impl Context {
    pub(super) fn alloc_pd(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Pd)?;
        let Some(number) = host.pds.take(&charge) else {
            host.uncount_object(self.device, DeviceObject::Pd);
            return no_room("protection domain");
        };
        Ok(Response::Handle(self.hold_pd(host, number, charge)).into())
    }

    pub(super) fn dealloc_pd(&mut self, host: &mut Host, pd: u32) -> Result<ReplyParts, Refusal> {
        match self.pds.get(pd) {
            None => unknown("protection domain", pd),
            Some(p) if p.users > 0 => busy("protection domain", p.users),
            Some(p) => {
                let number = p.object;
                self.close_null_regions(host, pd);
                self.pds.remove(pd);
                host.exports.of(self.id).pds.remove(&pd);
                release_pd_number(host, number);
                Ok(Response::Done.into())
            }
        }
    }

    /// Adds a protection domain, new or imported, to this context and to its exports. Returns its handle.
    pub(super) fn hold_pd(&mut self, host: &mut Host, number: u32, charge: Charge) -> u32 {
        let handle = self.pds.insert(InUse::new(number), charge);
        host.exports.hold_pd(number, self.device);
        host.exports.of(self.id).pds.insert(handle, number);
        handle
    }

    /// The number of a protection domain in the workers' tables.
    pub(super) fn pd_number(&self, pd: u32) -> Result<u32, Refusal> {
        self.pds.get(pd).map_or_else(|| unknown("protection domain", pd), |p| Ok(p.object))
    }

    pub(super) fn create_channel(&mut self, host: &Host) -> Result<ReplyParts, Refusal> {
        self.check_descriptor_share(host)?;
        let charge = self.caller.charge(&[(Resource::Channel, 1), (Resource::Descriptor, 1)])?;
        let (pipe, read) = EventPipe::new_editable().map_err(system("make a completion channel"))?;
        let channel = self.channels.insert(InUse::new(Arc::new(pipe)), charge);
        Ok(ReplyParts::with_fds(Response::Channel { channel }, vec![read]))
    }

    pub(super) fn destroy_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        match self.channels.get(channel) {
            None => unknown("completion channel", channel),
            Some(c) if c.users > 0 => busy("completion channel", c.users),
            Some(_) => {
                self.channels.remove(channel);
                Ok(Response::Done.into())
            }
        }
    }

    pub(super) fn create_ah(&mut self, host: &mut Host, pd: u32, attr: AhAttr) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(pd)?;
        let caps = &host.devices[self.device.index()].caps;
        let flow = flow_of(caps, &attr, pd).map_err(|e| Refusal { errno: libc::EINVAL, sentence: e.0 })?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Ah)?;
        let Some(ah) = host.ahs.take(&charge) else {
            host.uncount_object(self.device, DeviceObject::Ah);
            return no_room("address handle");
        };
        host.on_all(move |w| w.add_ah(ah, AddressHandle { pd: number, flow }));
        self.ahs.put(ah, HostAh { number: ah, pd }, charge);
        self.use_pd(pd);
        Ok(Response::Handle(ah).into())
    }

    pub(super) fn destroy_ah(&mut self, host: &mut Host, ah: u32) -> Result<ReplyParts, Refusal> {
        let Some(HostAh { number, pd }) = self.ahs.remove(ah) else { return unknown("address handle", ah) };
        host.on_all(move |w| w.remove_ah(number));
        host.ahs.put(number);
        host.uncount_object(self.device, DeviceObject::Ah);
        self.release_pd(pd);
        Ok(Response::Done.into())
    }

    /// The MAC address of an address, for `ibv_create_ah` in programs that ask for it. Only own addresses are known here.
    pub(super) fn resolve_mac(&self, host: &Host, attr: AhAttr) -> Result<ReplyParts, Refusal> {
        let caps = &host.devices[self.device.index()].caps;
        let ip = ip_of(attr.dgid);
        if caps.addrs.iter().any(|a| a.ip == ip) {
            return Ok(Response::Mac(caps.mac).into());
        }
        refuse(
            libc::EOPNOTSUPP,
            format!("the Ethernet address of {ip} is not known on this port: the kernel resolves it"),
        )
    }
}

/// Releases a context's hold on a protection domain. The last holder frees its number.
pub(super) fn release_pd_number(host: &mut Host, number: u32) {
    match host.exports.release_pd(number) {
        Some(device) => {
            host.pds.put(number);
            host.uncount_object(device, DeviceObject::Pd);
        }
        None => host.note_ended(1),
    }
}
