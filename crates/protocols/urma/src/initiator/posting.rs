//! Work requests: checks when they are posted, and the list of a Jetty's requests.

use crate::api::{
    JettyConfig, JettyState, JfsWr, RemoteJetty, RemoteSegment, TargetKind, TransMode, URMA_MESSAGE_MAX, UrmaEnv,
    UrmaError, WrData,
};
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::objects::Objects;
use crate::objects::records::{Jetty, TASSN_WINDOW};
use crate::pool::PoolRef;
use burst_ubwire::{Maetah, Mtetah, NotifyTarget, OrderTag, ServiceMode, TaOpcode};

/// What a request reaches.
struct RequestReach {
    dest: NodeEid,
    target: Option<Mtetah>,
    token: Option<u32>,
    memory: Option<Maetah>,
    notify: Option<NotifyTarget>,
}

impl Initiator {
    /// Posts a work request ([`crate::UrmaNode::post_send`]).
    pub(crate) fn post_send(
        &mut self,
        node: &mut NodeShared,
        jetty: u32,
        wr: &JfsWr,
        env: &mut UrmaEnv<'_>,
    ) -> Result<(), UrmaError> {
        let at = node.objects.jetty_ref(jetty).ok_or(UrmaError::NoObject)?;
        let record = node.objects.jetties.get(at).ok_or(UrmaError::NoObject)?;
        if record.state != JettyState::Ready {
            return Err(UrmaError::State);
        }
        // A request that waits for long keeps its number while others come and go.
        let oldest = self.requests.get(record.head).map_or(record.next_tassn, |request| request.tassn);
        if record.count >= record.config.depth || record.next_tassn.wrapping_sub(oldest) >= TASSN_WINDOW {
            return Err(UrmaError::Full);
        }
        check_request(&record.config, node.channels.config.mtu, wr)?;
        check_data(&node.objects, wr)?;
        let reach = reach(&node.objects, record, wr)?;
        let segment = match wr.data {
            WrData::Local(range) => node.objects.segments.hold(range.token_id),
            WrData::Inline { .. } => PoolRef::NONE,
        };
        let mut request = new_request(at, record.next_tassn, wr, reach);
        request.err_timeout = record.config.err_timeout;
        request.segment = segment;
        let at_request = self.link(node, at, request)?;
        if node.objects.jetties.get(at).is_some_and(|j| j.config.service == ServiceMode::Uno) {
            self.mark_issued(node, at, at_request);
            self.unreliable.push_back(at_request);
        } else {
            self.issue_at(node, at, env.now);
        }
        Ok(())
    }
}

/// The checks of a request that need no other objects ([`crate::UrmaNode::check_request`]).
pub(crate) fn check_request(config: &JettyConfig, mtu: u16, wr: &JfsWr) -> Result<(), UrmaError> {
    let is_known = matches!(wr.opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Read)
        || matches!(wr.opcode, TaOpcode::Write | TaOpcode::WriteImm | TaOpcode::WriteNotify)
        || wr.opcode.is_atomic();
    if !is_known {
        return Err(UrmaError::Unsupported);
    }
    let is_ordered = wr.order != OrderTag::None || wr.completion_order || wr.fence;
    let is_unreliable = config.mode == TransMode::Um;
    if is_ordered && (is_unreliable || config.outorder_comp) {
        return Err(UrmaError::Unsupported);
    }
    if is_unreliable {
        check_unreliable(mtu, wr)?;
    }
    check_length(wr)
}

/// What mode UM carries.
fn check_unreliable(mtu: u16, wr: &JfsWr) -> Result<(), UrmaError> {
    if !matches!(wr.opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Write) {
        return Err(UrmaError::Unsupported);
    }
    if wr.data.len() > u32::from(mtu) { Err(UrmaError::Value) } else { Ok(()) }
}

/// Whether an operation may have so many data, of this kind.
fn check_length(wr: &JfsWr) -> Result<(), UrmaError> {
    let is_sound = match &wr.data {
        _ if wr.data.len() > URMA_MESSAGE_MAX => false,
        WrData::Local(range) => !wr.opcode.is_atomic() || range.len == 8,
        WrData::Inline { len, bytes } => {
            let is_source = !wr.opcode.is_atomic() && wr.opcode != TaOpcode::Read;
            is_source && usize::from(*len) <= bytes.len()
        }
    };
    if is_sound { Ok(()) } else { Err(UrmaError::Value) }
}

/// Whether a request names a receiver of messages.
pub(crate) const fn needs_target(opcode: TaOpcode) -> bool {
    matches!(opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::WriteImm)
}

fn check_data(objects: &Objects, wr: &JfsWr) -> Result<(), UrmaError> {
    match &wr.data {
        WrData::Local(range) if !objects.segments.is_local(range.token_id, range.addr, range.len) => {
            Err(UrmaError::Access)
        }
        WrData::Local(_) | WrData::Inline { .. } => Ok(()),
    }
}

/// What a work request of a Jetty reaches, by the imports that it names.
fn reach(objects: &Objects, jetty: &Jetty, wr: &JfsWr) -> Result<RequestReach, UrmaError> {
    let remote = remote_jetty(objects, jetty, wr)?;
    let segment = match wr.segment {
        Some(segment) => Some(*objects.remote_segments.at(segment).ok_or(UrmaError::NoObject)?),
        None => None,
    };
    let target = match remote {
        Some(remote) if needs_target(wr.opcode) => Some(target_header(&remote, wr.hint)),
        None if needs_target(wr.opcode) => return Err(UrmaError::Value),
        _ => None,
    };
    if !wr.opcode.has_memory() {
        let remote = remote.ok_or(UrmaError::Value)?;
        return Ok(RequestReach { dest: remote.eid, target, token: remote.token, memory: None, notify: None });
    }
    let segment = segment.ok_or(UrmaError::Value)?;
    if remote.is_some_and(|remote| remote.eid != segment.eid) {
        return Err(UrmaError::Value);
    }
    let notify = notify_target(objects, wr, &segment)?;
    let memory = Maetah { addr: wr.remote_addr, token_id: segment.token_id, len: wr.data.len() };
    Ok(RequestReach { dest: segment.eid, target, token: segment.token, memory: Some(memory), notify })
}

/// The Jetty or JFR of a peer that a work request names; in mode RC the bound one.
fn remote_jetty(objects: &Objects, jetty: &Jetty, wr: &JfsWr) -> Result<Option<RemoteJetty>, UrmaError> {
    if jetty.config.mode == TransMode::Rc {
        return jetty.bound.map(Some).ok_or(UrmaError::State);
    }
    let Some(target) = wr.target else { return Ok(None) };
    objects.remote_jetties.at(target).copied().map(Some).ok_or(UrmaError::NoObject)
}

fn target_header(remote: &RemoteJetty, hint: u8) -> Mtetah {
    let kind = match remote.kind {
        TargetKind::Jfr => Mtetah::JFR,
        TargetKind::Jetty => Mtetah::JETTY,
        TargetKind::Group => Mtetah::GROUP,
    };
    Mtetah { hint, kind, id: remote.id }
}

fn notify_target(objects: &Objects, wr: &JfsWr, data: &RemoteSegment) -> Result<Option<NotifyTarget>, UrmaError> {
    if wr.opcode != TaOpcode::WriteNotify {
        return Ok(None);
    }
    let (segment, addr) = wr.notify.ok_or(UrmaError::Value)?;
    let segment = objects.remote_segments.at(segment).ok_or(UrmaError::NoObject)?;
    if segment.eid != data.eid {
        return Err(UrmaError::Value);
    }
    Ok(Some(NotifyTarget { addr, token_id: segment.token_id, token: segment.token }))
}

fn new_request(jetty: PoolRef, tassn: u16, wr: &JfsWr, reach: RequestReach) -> SendRecord {
    let operands = if wr.opcode == TaOpcode::Cas { [wr.operand, wr.swap] } else { [wr.operand, 0] };
    SendRecord {
        jetty,
        dest: reach.dest,
        tassn,
        opcode: wr.opcode,
        order: wr.order,
        completion_order: wr.completion_order,
        fence: wr.fence,
        complete: wr.complete,
        phase: RequestPhase::Posted,
        user_ctx: wr.user_ctx,
        data: wr.data,
        segment: PoolRef::NONE,
        target: reach.target,
        token: reach.token,
        memory: reach.memory,
        operands,
        immediate: wr.immediate,
        notify: reach.notify,
        channel: PoolRef::NONE,
        tpmsn: 0,
        sent: 0,
        all_sent: false,
        last_psn: None,
        is_deferred: false,
        attempt: 0,
        err_timeout: 0,
        rnr_tries: 0,
        busy_tries: 0,
        received: 0,
        fault: None,
        order_number: None,
        alloc: false,
        abandoned: None,
        prev: PoolRef::NONE,
        next: PoolRef::NONE,
    }
}
