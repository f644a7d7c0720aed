//! Calls of programs in other processes for their objects of URMA, and what they leave behind.

use crate::urma::{ImportVerdict, UrmaImport, cna_of};
use crate::urma_records::cqe_of;
use crate::urma_remains::{UrmaRemains, delete_jetty};
use crate::urma_tenants::{ByNumber, TenantCall, UrmaLeaving, UrmaTenant};
use crate::urma_turns::{UrmaEnd, UrmaSlot};
use crate::urma_view::eid_of;
use crate::worker::Worker;
use burst_base::Nanos;
use burst_control::urma_calls::{URMA_FLUSHED_MAX, UrmaAnswer, UrmaCall, UrmaJettyAttr};
use burst_mem::MrTable;
use burst_shm::Cqe;
use burst_ubwire::{Cna, ServiceMode};
use burst_urma::{
    GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind,
    TransMode, UrmaEffects, UrmaEnv, UrmaError, UrmaNode,
};
use std::net::{IpAddr, Ipv6Addr};

/// Records of a node's own completion queue: programs' are rings, which are filled after each call to the node, so that this is
/// only what one burst can complete.
const NODE_JFC_DEPTH: u32 = 1 << 20;

const fn jetty_state(number: u8) -> Result<JettyState, UrmaError> {
    Ok(match number {
        0 => JettyState::Reset,
        1 => JettyState::Ready,
        2 => JettyState::Suspended,
        3 => JettyState::Error,
        _ => return Err(UrmaError::Value),
    })
}

const fn jfr_state(number: u8) -> Result<JfrState, UrmaError> {
    Ok(match number {
        0 => JfrState::Reset,
        1 => JfrState::Ready,
        2 => JfrState::Error,
        _ => return Err(UrmaError::Value),
    })
}

/// The address in an entity id.
pub fn address_of(eid: &[u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(*eid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// An entry of a completion queue as words.
fn words_of(cqe: &Cqe) -> [u64; 8] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let last = u64::from_le_bytes([cqe.status, cqe.opcode, cqe.sl, cqe.is_recv, 0, 0, 0, 0]);
    [
        cqe.wr_id,
        cqe.timestamp_ns,
        pair(cqe.byte_len, cqe.imm),
        pair(cqe.qpn, cqe.src_qpn),
        pair(cqe.wc_flags, cqe.vendor_err),
        pair(cqe.qp_cookie, cqe.sq_consumer),
        last,
        0,
    ]
}

/// The entry that is in words, as in [`UrmaAnswer::Flushed`].
pub fn entry_of(words: &[u64; 8]) -> Cqe {
    let (low, high) = (|i: usize| words[i] as u32, |i: usize| (words[i] >> 32) as u32);
    let [status, opcode, sl, is_recv, ..] = words[6].to_le_bytes();
    Cqe {
        wr_id: words[0],
        timestamp_ns: words[1],
        byte_len: low(2),
        imm: high(2),
        qpn: low(3),
        src_qpn: high(3),
        wc_flags: low(4),
        vendor_err: high(4),
        qp_cookie: low(5),
        sq_consumer: high(5),
        status,
        opcode,
        sl,
        is_recv,
        ..Cqe::default()
    }
}

impl UrmaEnd {
    /// Takes the objects of a program that has ended.
    pub fn inherit(&mut self, tenant: UrmaTenant) {
        let mut tenant = tenant;
        let context = tenant.context;
        std::mem::take(tenant.take_leaving()).iter().for_each(|object| object.end(context, self));
        tenant.jfcs.keys().for_each(|jfc| _ = self.owners.remove(jfc));
        self.remains.add(UrmaRemains {
            jetties: tenant.jetties.into_keys().collect(),
            jfrs: tenant.jfrs.into_keys().collect(),
            groups: tenant.groups.into_iter().collect(),
            jfcs: tenant.jfcs.into_keys().collect(),
            _charges: tenant.charges,
            ..UrmaRemains::default()
        });
    }
    /// Deletes a part of what programs have left behind, as far as nothing uses it any more.
    pub fn bury(&mut self, now: Nanos, regions: &MrTable) {
        let mut remains = std::mem::take(&mut self.remains);
        self.call(regions, |endpoint, mem, news| {
            endpoint.with(now, mem, news, |node, env| {
                remains.delete_some(node, env);
            });
        });
        self.remains = remains;
    }
}

impl Worker {
    /// Carries out a call of a program for an object. `None`: the program has no node here.
    ///
    /// # Errors
    /// The node's refusal; [`UrmaError::NoObject`] also for objects of others.
    pub fn urma_call(&mut self, now: Nanos, context: u32, call: TenantCall) -> Option<Result<UrmaAnswer, UrmaError>> {
        let slot = self.urma.as_deref_mut()?;
        slot.is_answering = false;
        let UrmaSlot { ends, tenants, .. } = slot;
        let tenant = tenants.get_mut(&context)?;
        let end = ends.iter_mut().find(|end| end.endpoint.address() == tenant.address)?;
        match &call {
            TenantCall::RegisterSegment(key, config) if !reaches(&self.core.mem, *key, config) => {
                return Some(Err(UrmaError::Access));
            }
            TenantCall::Plain(UrmaCall::Remind { jfc }) => {
                tenant.remind(*jfc, &mut self.core.outbox.events);
                return Some(Ok(UrmaAnswer::Done));
            }
            TenantCall::Plain(UrmaCall::Peer { cna }) => {
                let address = end.endpoint.address_of(Cna::new(*cna));
                return Some(Ok(UrmaAnswer::Peer(address.map(eid_of))));
            }
            _ => {}
        }
        let import = ImportCall::of(&call);
        if let Some(ImportCall::Begins(_, address)) = import {
            let verdict = end.endpoint.admit_import(address, now);
            if let ImportVerdict::Displaced(imports) = &verdict {
                end.call(&self.core.mem, |endpoint, _, fx| displace(imports, tenants, &mut endpoint.node, fx));
            }
            if verdict == ImportVerdict::Refused {
                self.settle_urma(now);
                return Some(Err(UrmaError::Bound));
            }
        }
        let tenant = tenants.get_mut(&context)?;
        let ended = import.and_then(|import| import.ended(tenant));
        let result = end.call(&self.core.mem, |endpoint, mem, news| {
            endpoint.with(now, mem, news, |node, env| tenant.carry_out(node, env, call))
        });
        match (import, &result) {
            (Some(ImportCall::Begins(kind, address)), Ok(UrmaAnswer::Number(number))) => {
                end.endpoint.hold_import(cna_of(address), kind(context, *number));
            }
            (Some(ImportCall::Begins(_, address)), _) => end.endpoint.forget(cna_of(address)),
            (Some(ImportCall::Ends(kind, number)), Ok(_)) => {
                ended.into_iter().for_each(|cna| end.endpoint.end_import(cna, kind(context, number)));
            }
            _ => {}
        }
        if let Ok(UrmaAnswer::Number(number)) = result
            && tenant.jfcs.contains_key(&number)
        {
            end.owners.insert(number, context);
        }
        self.settle_urma(now);
        Some(result)
    }
}

/// A call that begins or ends an import: how an import is named by context and number, and the peer's address or the number.
#[derive(Clone, Copy)]
enum ImportCall {
    Begins(fn(u32, u32) -> UrmaImport, IpAddr),
    Ends(fn(u32, u32) -> UrmaImport, u32),
}

impl ImportCall {
    fn of(call: &TenantCall) -> Option<ImportCall> {
        let TenantCall::Plain(call) = call else { return None };
        Some(match call {
            UrmaCall::ImportSegment { eid, .. } => ImportCall::Begins(UrmaImport::Segment, address_of(eid)),
            UrmaCall::ImportJetty { eid, .. } => ImportCall::Begins(UrmaImport::Jetty, address_of(eid)),
            UrmaCall::UnimportSegment { segment } => ImportCall::Ends(UrmaImport::Segment, *segment),
            UrmaCall::UnimportJetty { jetty } => ImportCall::Ends(UrmaImport::Jetty, *jetty),
            _ => return None,
        })
    }

    /// The peer of the import that ends.
    fn ended(self, tenant: &UrmaTenant) -> Option<Cna> {
        let ImportCall::Ends(kind, number) = self else { return None };
        match kind(tenant.context, number) {
            UrmaImport::Segment(..) => tenant.remote_segments.get(&number).copied(),
            UrmaImport::Jetty(..) => tenant.targets.get(&number).copied(),
        }
    }
}

/// Whether a region has all bytes of a segment.
fn reaches(regions: &MrTable, key: u32, config: &SegmentConfig) -> bool {
    let region = regions.get(key);
    let last = config.addr.checked_add(config.len.saturating_sub(1));
    let reaches = |addr: u64| region.is_some_and(|region| region.span(addr, 1).is_some());
    config.len > 0 && reaches(config.addr) && last.is_some_and(reaches)
}

/// Ends imports from a node that has not answered, and whose place on the bus is another one's from now on. Jetties that are
/// bound to one of them move to ERROR: what is posted to them must not reach the other node.
fn displace(imports: &[UrmaImport], tenants: &mut ByNumber<UrmaTenant>, node: &mut UrmaNode, fx: &mut dyn UrmaEffects) {
    for import in imports {
        let (UrmaImport::Segment(context, number) | UrmaImport::Jetty(context, number)) = *import;
        let Some(tenant) = tenants.get_mut(&context) else { continue };
        // What is under way ends with its channel.
        if matches!(import, UrmaImport::Segment(..)) {
            tenant.remote_segments.remove(&number);
            let _ = node.unimport_segment(number);
            continue;
        }
        tenant.targets.remove(&number);
        let _ = node.unimport_jetty(number);
        for (jetty, _) in tenant.bindings.iter().filter(|(_, target)| **target == number) {
            let _ = node.modify_jetty(*jetty, JettyState::Error, fx);
        }
    }
}

/// Objects of others are treated as if they did not exist.
const fn check(is_own: bool) -> Result<(), UrmaError> {
    if is_own { Ok(()) } else { Err(UrmaError::NoObject) }
}

impl UrmaTenant {
    /// Segments and imports that are left to delete. The program has ended: what it still posts names none of its own.
    pub(crate) fn take_leaving(&mut self) -> &mut Vec<UrmaLeaving> {
        let UrmaTenant { segments, remote_segments, targets, leaving, .. } = self;
        leaving.get_or_insert_with(|| {
            let segments = std::mem::take(segments).into_iter().map(UrmaLeaving::Segment);
            let remote = std::mem::take(remote_segments).into_iter();
            let targets = std::mem::take(targets).into_iter();
            let remote = remote.map(|(number, cna)| UrmaLeaving::RemoteSegment(number, cna));
            segments.chain(remote).chain(targets.map(|(number, cna)| UrmaLeaving::Target(number, cna))).collect()
        })
    }

    fn carry_out(
        &mut self,
        node: &mut UrmaNode,
        env: &mut UrmaEnv<'_>,
        call: TenantCall,
    ) -> Result<UrmaAnswer, UrmaError> {
        let call = match call {
            TenantCall::Plain(call) => call,
            TenantCall::CreateJfc(number, shared) => {
                let jfc = node.create_jfc(NODE_JFC_DEPTH)?;
                self.add_jfc(jfc, number, shared);
                return Ok(UrmaAnswer::Number(jfc));
            }
            TenantCall::RegisterSegment(region, config) => {
                let token_id = node.register_segment_of(self.owner(), region, config)?;
                self.segments.insert(token_id);
                return Ok(UrmaAnswer::Number(token_id));
            }
        };
        match call {
            // They are calls of their own by now.
            UrmaCall::CreateJfc { .. }
            | UrmaCall::RegisterSegment { .. }
            | UrmaCall::Remind { .. }
            | UrmaCall::Peer { .. } => Err(UrmaError::Unsupported),
            UrmaCall::DeleteJfc { jfc } => {
                check(self.jfcs.contains_key(&jfc))?;
                node.delete_jfc(jfc)?;
                self.jfcs.remove(&jfc);
                Ok(UrmaAnswer::Done)
            }
            UrmaCall::CreateJetty(attr) => self.create_jetty(node, &attr),
            UrmaCall::CreateGroup { policy, token } => {
                let policy = match policy {
                    0 => GroupPolicy::RoundRobin,
                    1 => GroupPolicy::HashHint,
                    _ => return Err(UrmaError::Value),
                };
                let group = node.create_group(policy, token)?;
                self.groups.insert(group);
                Ok(UrmaAnswer::Number(group))
            }
            UrmaCall::DeleteGroup { group } => {
                check(self.groups.contains(&group))?;
                node.delete_group(group)?;
                self.groups.remove(&group);
                Ok(UrmaAnswer::Done)
            }
            other => match other {
                UrmaCall::UnregisterSegment { .. }
                | UrmaCall::ImportSegment { .. }
                | UrmaCall::UnimportSegment { .. }
                | UrmaCall::ImportJetty { .. }
                | UrmaCall::UnimportJetty { .. } => self.import(node, other),
                UrmaCall::CreateJfr { .. }
                | UrmaCall::DeleteJfr { .. }
                | UrmaCall::QueryJfr { .. }
                | UrmaCall::LimitJfr { .. }
                | UrmaCall::ModifyJfr { .. } => self.use_jfr(node, env, other),
                other => self.use_jetty(node, env, other),
            },
        }
    }

    fn use_jfr(&mut self, node: &mut UrmaNode, env: &mut UrmaEnv<'_>, call: UrmaCall) -> Result<UrmaAnswer, UrmaError> {
        match call {
            UrmaCall::CreateJfr { jfc, depth, token, rnr_timer } => {
                check(self.jfcs.contains_key(&jfc))?;
                let jfr = node.create_jfr(JfrConfig { depth, jfc, token, rnr_timer, limit: 0 })?;
                self.jfrs.insert(jfr, 0);
                Ok(UrmaAnswer::Number(jfr))
            }
            UrmaCall::DeleteJfr { jfr } => {
                check(self.jfrs.contains_key(&jfr))?;
                node.delete_jfr(jfr)?;
                self.jfrs.remove(&jfr);
                Ok(UrmaAnswer::Done)
            }
            UrmaCall::QueryJfr { jfr } => {
                check(self.jfrs.contains_key(&jfr))?;
                let (state, limit) = node.jfr_state(jfr).ok_or(UrmaError::NoObject)?;
                let state = state as u8;
                Ok(UrmaAnswer::State { state, limit, finished: self.finished_receives(jfr, node) })
            }
            UrmaCall::LimitJfr { jfr, limit } => {
                check(self.jfrs.contains_key(&jfr))?;
                node.set_jfr_limit(jfr, limit).map(|()| UrmaAnswer::Done)
            }
            UrmaCall::ModifyJfr { jfr, state } => {
                check(self.jfrs.contains_key(&jfr))?;
                node.modify_jfr(jfr, jfr_state(state)?, env.fx).map(|()| UrmaAnswer::Done)
            }
            _ => Err(UrmaError::Unsupported),
        }
    }

    fn create_jetty(&mut self, node: &mut UrmaNode, attr: &UrmaJettyAttr) -> Result<UrmaAnswer, UrmaError> {
        let mode = match attr.mode {
            1 => TransMode::Rm,
            2 => TransMode::Rc,
            4 => TransMode::Um,
            _ => return Err(UrmaError::Value),
        };
        let service = match attr.service {
            0 => ServiceMode::Roi,
            1 => ServiceMode::Rot,
            2 => ServiceMode::Rol,
            3 => ServiceMode::Uno,
            _ => return Err(UrmaError::Value),
        };
        let is_own = self.jfcs.contains_key(&attr.jfc)
            && attr.jfr.is_none_or(|jfr| self.jfrs.contains_key(&jfr))
            && attr.group.is_none_or(|group| self.groups.contains(&group));
        check(is_own)?;
        let jetty = node.create_jetty(JettyConfig {
            mode,
            service,
            depth: attr.depth,
            token: attr.token,
            error_suspend: attr.error_suspend,
            outorder_comp: attr.outorder_comp,
            rnr_retry: attr.rnr_retry,
            err_timeout: attr.err_timeout,
            group: attr.group,
            owner: self.owner(),
            ..JettyConfig::new(attr.jfc, attr.jfr)
        })?;
        self.add_jetty(jetty, attr.jfc, attr.jfr);
        Ok(UrmaAnswer::Number(jetty))
    }

    fn use_jetty(
        &mut self,
        node: &mut UrmaNode,
        env: &mut UrmaEnv<'_>,
        call: UrmaCall,
    ) -> Result<UrmaAnswer, UrmaError> {
        let (UrmaCall::DeleteJetty { jetty }
        | UrmaCall::QueryJetty { jetty }
        | UrmaCall::ModifyJetty { jetty, .. }
        | UrmaCall::FlushJetty { jetty, .. }
        | UrmaCall::BindJetty { jetty, .. }
        | UrmaCall::UnbindJetty { jetty }) = call
        else {
            return Err(UrmaError::Unsupported);
        };
        check(self.jetties.contains_key(&jetty))?;
        match call {
            UrmaCall::DeleteJetty { .. } => {
                delete_jetty(node, jetty, env)?;
                self.jetties.remove(&jetty);
                self.bindings.remove(&jetty);
                Ok(UrmaAnswer::Done)
            }
            UrmaCall::QueryJetty { .. } => {
                let state = node.jetty_state(jetty).ok_or(UrmaError::NoObject)? as u8;
                Ok(UrmaAnswer::State { state, limit: 0, finished: self.finished_sends(jetty, node) })
            }
            UrmaCall::ModifyJetty { state, .. } => {
                node.modify_jetty(jetty, jetty_state(state)?, env.fx).map(|()| UrmaAnswer::Done)
            }
            UrmaCall::FlushJetty { most, .. } => {
                let most = (most as usize).min(URMA_FLUSHED_MAX);
                let flushed: Vec<_> = std::iter::from_fn(|| node.flush_jetty(jetty)).take(most).collect();
                let finished = self.finished_sends(jetty, node);
                let records = flushed.iter().map(|cr| words_of(&cqe_of(cr, jetty, finished))).collect();
                Ok(UrmaAnswer::Flushed { records, finished })
            }
            UrmaCall::BindJetty { target, .. } => {
                check(self.targets.contains_key(&target))?;
                node.bind_jetty(jetty, target)?;
                self.bindings.insert(jetty, target);
                Ok(UrmaAnswer::Done)
            }
            _ => {
                node.unbind_jetty(jetty)?;
                self.bindings.remove(&jetty);
                Ok(UrmaAnswer::Done)
            }
        }
    }

    fn import(&mut self, node: &mut UrmaNode, call: UrmaCall) -> Result<UrmaAnswer, UrmaError> {
        let cna = |eid: &[u8; 16]| cna_of(address_of(eid));
        match call {
            UrmaCall::UnregisterSegment { token_id } => {
                check(self.segments.remove(&token_id))?;
                node.unregister_segment(token_id).map(|()| UrmaAnswer::Done)
            }
            UrmaCall::ImportSegment { eid, token_id, addr, len, token } => {
                let number = node.import_segment(RemoteSegment { cna: cna(&eid), token_id, addr, len, token })?;
                self.remote_segments.insert(number, cna(&eid));
                Ok(UrmaAnswer::Number(number))
            }
            UrmaCall::UnimportSegment { segment } => {
                check(self.remote_segments.remove(&segment).is_some())?;
                node.unimport_segment(segment).map(|()| UrmaAnswer::Done)
            }
            UrmaCall::ImportJetty { eid, id, kind, token } => {
                let kind = match kind {
                    0 => TargetKind::Jfr,
                    1 => TargetKind::Jetty,
                    2 => TargetKind::Group,
                    _ => return Err(UrmaError::Value),
                };
                let number = node.import_jetty(RemoteJetty { cna: cna(&eid), id, kind, token })?;
                self.targets.insert(number, cna(&eid));
                Ok(UrmaAnswer::Number(number))
            }
            UrmaCall::UnimportJetty { jetty } => {
                check(self.targets.remove(&jetty).is_some())?;
                node.unimport_jetty(jetty).map(|()| UrmaAnswer::Done)
            }
            _ => Err(UrmaError::Unsupported),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_out_of_its_words() {
        let cqe = Cqe {
            wr_id: 1,
            timestamp_ns: 2,
            byte_len: 3,
            imm: 4,
            qpn: 5,
            src_qpn: 6,
            wc_flags: 7,
            vendor_err: 8,
            qp_cookie: 9,
            sq_consumer: 10,
            status: 11,
            opcode: 12,
            sl: 13,
            is_recv: 14,
            ..Cqe::default()
        };
        assert_eq!(entry_of(&words_of(&cqe)), cqe);
    }
}
