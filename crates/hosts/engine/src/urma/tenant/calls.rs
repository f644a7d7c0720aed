//! Calls of programs in other processes for their objects of URMA.

use crate::objects::EngineCq;
use crate::urma::orphans::delete_jetty;
use crate::urma::records::{cqe_of, words_of};
use crate::urma::tenant::{LeavingObjects, UrmaTenant};
use burst_base::Nanos;
use burst_control::urma_calls::{URMA_FLUSHED_MAX, UrmaAnswer, UrmaCall, UrmaJettyAttr};
use burst_ubwire::ServiceMode;
use burst_urma::{
    GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, NodeEid, RemoteJetty, RemoteSegment, TargetKind,
    TransMode, UrmaEnv, UrmaError, UrmaNode,
};
use std::sync::Arc;

/// Records of a node's own completion queue: programs' are rings, which are filled after each call to the node, so that this is
/// only what one burst can complete.
const NODE_JFC_DEPTH: u32 = 1 << 20;

/// Calls whose arguments are the host's own objects by now.
#[derive(Debug)]
pub enum TenantCall {
    /// As the program has asked.
    Plain(UrmaCall),
    /// A JFC of a completion queue: its number in the workers' tables, and the queue.
    CreateJfc(u32, Arc<EngineCq>),
    /// A segment of the region with this key.
    RegisterSegment(u32, burst_urma::SegmentConfig),
}

/// A call that begins or ends an import.
#[derive(Clone, Copy)]
pub(crate) enum ImportCall {
    /// An import from this node.
    Begins(NodeEid),
    /// The end of a segment's import with this number.
    EndsSegment(u32),
    /// The end of a Jetty's import with this number.
    EndsJetty(u32),
}

impl ImportCall {
    pub(crate) fn of(call: &TenantCall) -> Option<ImportCall> {
        let TenantCall::Plain(call) = call else { return None };
        Some(match call {
            UrmaCall::ImportSegment { eid, .. } | UrmaCall::ImportJetty { eid, .. } => {
                ImportCall::Begins(NodeEid::new(*eid))
            }
            UrmaCall::UnimportSegment { segment } => ImportCall::EndsSegment(*segment),
            UrmaCall::UnimportJetty { jetty } => ImportCall::EndsJetty(*jetty),
            _ => return None,
        })
    }

    /// The peer of the import that ends.
    pub(crate) fn ended(self, tenant: &UrmaTenant) -> Option<NodeEid> {
        match self {
            ImportCall::Begins(_) => None,
            ImportCall::EndsSegment(number) => tenant.remote_segments.get(&number).copied(),
            ImportCall::EndsJetty(number) => tenant.targets.get(&number).copied(),
        }
    }
}

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

/// Objects of others are treated as if they did not exist.
const fn check(is_own: bool) -> Result<(), UrmaError> {
    if is_own { Ok(()) } else { Err(UrmaError::NoObject) }
}

impl UrmaTenant {
    /// Segments, imports and completion queues that are left to delete. The program has ended: what it still posts names none of
    /// its own.
    pub(crate) fn take_leaving(&mut self) -> &mut LeavingObjects {
        let UrmaTenant { segments, remote_segments, targets, jfcs, leaving, .. } = self;
        leaving.get_or_insert_with(|| {
            let (segments, jfcs) = (std::mem::take(segments), std::mem::take(jfcs));
            LeavingObjects::new(segments, std::mem::take(remote_segments), std::mem::take(targets), jfcs)
        })
    }

    /// Carries out a call.
    ///
    /// # Errors
    /// The node's refusal; [`UrmaError::NoObject`] also for objects of others.
    pub(crate) fn carry_out(
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
            UrmaCall::CreateJetty(attr) => self.create_jetty(node, &attr, env.now),
            UrmaCall::DeleteJfc { .. } | UrmaCall::CreateGroup { .. } | UrmaCall::DeleteGroup { .. } => {
                self.use_group_or_jfc(node, call)
            }
            UrmaCall::UnregisterSegment { .. }
            | UrmaCall::ImportSegment { .. }
            | UrmaCall::UnimportSegment { .. }
            | UrmaCall::ImportJetty { .. }
            | UrmaCall::UnimportJetty { .. } => self.import(node, call),
            UrmaCall::CreateJfr { .. }
            | UrmaCall::DeleteJfr { .. }
            | UrmaCall::QueryJfr { .. }
            | UrmaCall::LimitJfr { .. }
            | UrmaCall::ModifyJfr { .. } => self.use_jfr(node, env, call),
            // Calls that are of their own by now are refused there.
            other => self.use_jetty(node, env, other),
        }
    }

    fn use_group_or_jfc(&mut self, node: &mut UrmaNode, call: UrmaCall) -> Result<UrmaAnswer, UrmaError> {
        match call {
            UrmaCall::DeleteJfc { jfc } => {
                check(self.jfcs.contains_key(&jfc))?;
                node.delete_jfc(jfc)?;
                self.jfcs.remove(&jfc);
                Ok(UrmaAnswer::Done)
            }
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
            _ => Err(UrmaError::Unsupported),
        }
    }

    fn use_jfr(&mut self, node: &mut UrmaNode, env: &mut UrmaEnv<'_>, call: UrmaCall) -> Result<UrmaAnswer, UrmaError> {
        match call {
            UrmaCall::CreateJfr { jfc, depth, token, rnr_timer, is_unreliable } => {
                check(self.jfcs.contains_key(&jfc))?;
                let jfr = node.create_jfr(JfrConfig { depth, jfc, token, rnr_timer, limit: 0, is_unreliable })?;
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

    fn create_jetty(&mut self, node: &mut UrmaNode, attr: &UrmaJettyAttr, now: Nanos) -> Result<UrmaAnswer, UrmaError> {
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
        self.add_jetty(jetty, (attr.jfc, attr.jfr), now);
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
                node.bind_jetty(jetty, target).map(|()| UrmaAnswer::Done)
            }
            _ => node.unbind_jetty(jetty).map(|()| UrmaAnswer::Done),
        }
    }

    fn import(&mut self, node: &mut UrmaNode, call: UrmaCall) -> Result<UrmaAnswer, UrmaError> {
        match call {
            UrmaCall::UnregisterSegment { token_id } => {
                check(self.segments.remove(&token_id))?;
                node.unregister_segment(token_id).map(|()| UrmaAnswer::Done)
            }
            UrmaCall::ImportSegment { eid, token_id, addr, len, token } => {
                let eid = NodeEid::new(eid);
                let number = node.import_segment(RemoteSegment { eid, token_id, addr, len, token })?;
                self.remote_segments.insert(number, eid);
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
                let eid = NodeEid::new(eid);
                let number = node.import_jetty(RemoteJetty { eid, id, kind, token })?;
                self.targets.insert(number, eid);
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
