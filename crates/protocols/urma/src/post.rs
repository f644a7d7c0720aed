//! Work requests: checks when they are posted, and the list of a Jetty's requests.

use crate::api::{
    JettyConfig, JettyState, JfsWr, RemoteJetty, RemoteSegment, TargetKind, TransMode, URMA_MESSAGE_MAX, UrmaEnv,
    UrmaError, WrData,
};
use crate::node::UrmaNode;
use crate::objects::records::{Jetty, TASSN_WINDOW};
use crate::pool::PoolRef;
use crate::records::{RequestPhase, SendRecord};
use burst_ubwire::{Cna, Maetah, Mtetah, NotifyTarget, OrderTag, ServiceMode, TaOpcode};

/// What a request reaches.
struct RequestReach {
    dest: Cna,
    target: Option<Mtetah>,
    token: Option<u32>,
    memory: Option<Maetah>,
    notify: Option<NotifyTarget>,
}

impl UrmaNode {
    /// Posts a work request to a Jetty or JFS. The answer comes as a completion record; a refusal has no effect.
    pub fn post_send(&mut self, jetty: u32, wr: &JfsWr, env: &mut UrmaEnv<'_>) -> Result<(), UrmaError> {
        let at = self.shared.objects.jetty_ref(jetty).ok_or(UrmaError::NoObject)?;
        let record = self.shared.objects.jetties.get(at).ok_or(UrmaError::NoObject)?;
        if record.state != JettyState::Ready {
            return Err(UrmaError::State);
        }
        // A request that waits for long keeps its number while others come and go.
        let oldest = self.requests.get(record.head).map_or(record.next_tassn, |request| request.tassn);
        if record.count >= record.config.depth || record.next_tassn.wrapping_sub(oldest) >= TASSN_WINDOW {
            return Err(UrmaError::Full);
        }
        UrmaNode::check_request(&record.config, self.shared.channels.config.mtu, wr)?;
        self.check_data(wr)?;
        let reach = self.reach(record, wr)?;
        let segment = match wr.data {
            WrData::Local(range) => self.shared.objects.segments.hold(range.token_id),
            WrData::Inline { .. } => PoolRef::NONE,
        };
        let mut request = new_request(at, record.next_tassn, wr, reach);
        request.err_timeout = record.config.err_timeout;
        request.segment = segment;
        let at_request = self.link(at, request)?;
        if self.shared.objects.jetties.get(at).is_some_and(|j| j.config.service == ServiceMode::Uno) {
            self.mark_issued(at, at_request);
            self.unreliable.push_back(at_request);
        } else {
            self.issue_at(at, env.now);
        }
        Ok(())
    }
    /// Whether a Jetty of this configuration may post a request, as far as it can be told without other objects. `mtu`: payload
    /// of a packet.
    pub fn check_request(config: &JettyConfig, mtu: u16, wr: &JfsWr) -> Result<(), UrmaError> {
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
            if !matches!(wr.opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::Write) {
                return Err(UrmaError::Unsupported);
            }
            if wr.data.len() > u32::from(mtu) {
                return Err(UrmaError::Value);
            }
        }
        if wr.data.len() > URMA_MESSAGE_MAX {
            return Err(UrmaError::Value);
        }
        match &wr.data {
            WrData::Local(range) if wr.opcode.is_atomic() && range.len != 8 => Err(UrmaError::Value),
            WrData::Local(_) => Ok(()),
            WrData::Inline { len, bytes } => {
                let is_source = !wr.opcode.is_atomic() && wr.opcode != TaOpcode::Read;
                if is_source && usize::from(*len) <= bytes.len() { Ok(()) } else { Err(UrmaError::Value) }
            }
        }
    }
    /// Whether a request names a receiver of messages.
    pub const fn needs_target(opcode: TaOpcode) -> bool {
        matches!(opcode, TaOpcode::Send | TaOpcode::SendImm | TaOpcode::WriteImm)
    }
    fn check_data(&self, wr: &JfsWr) -> Result<(), UrmaError> {
        match &wr.data {
            WrData::Local(range) => {
                if self.shared.objects.segments.is_local(range.token_id, range.addr, range.len) {
                    Ok(())
                } else {
                    Err(UrmaError::Access)
                }
            }
            WrData::Inline { .. } => Ok(()),
        }
    }
    fn reach(&self, jetty: &Jetty, wr: &JfsWr) -> Result<RequestReach, UrmaError> {
        let remote: Option<RemoteJetty> = match jetty.config.mode {
            TransMode::Rc => Some(jetty.bound.ok_or(UrmaError::State)?),
            _ => match wr.target {
                Some(target) => Some(*self.shared.objects.remote_jetties.at(target).ok_or(UrmaError::NoObject)?),
                None => None,
            },
        };
        let segment: Option<RemoteSegment> = match wr.segment {
            Some(segment) => Some(*self.shared.objects.remote_segments.at(segment).ok_or(UrmaError::NoObject)?),
            None => None,
        };
        let needs_target = UrmaNode::needs_target(wr.opcode);
        let target = remote.filter(|_| needs_target).map(|r| Mtetah {
            hint: wr.hint,
            kind: match r.kind {
                TargetKind::Jfr => Mtetah::JFR,
                TargetKind::Jetty => Mtetah::JETTY,
                TargetKind::Group => Mtetah::GROUP,
            },
            id: r.id,
        });
        if needs_target && target.is_none() {
            return Err(UrmaError::Value);
        }
        if !wr.opcode.has_memory() {
            let remote = remote.ok_or(UrmaError::Value)?;
            return Ok(RequestReach { dest: remote.cna, target, token: remote.token, memory: None, notify: None });
        }
        let segment = segment.ok_or(UrmaError::Value)?;
        if remote.is_some_and(|remote| remote.cna != segment.cna) {
            return Err(UrmaError::Value);
        }
        let notify = self.notify_target(wr, &segment)?;
        let memory = Maetah { addr: wr.remote_addr, token_id: segment.token_id, len: wr.data.len() };
        Ok(RequestReach { dest: segment.cna, target, token: segment.token, memory: Some(memory), notify })
    }
    fn notify_target(&self, wr: &JfsWr, data: &RemoteSegment) -> Result<Option<NotifyTarget>, UrmaError> {
        if wr.opcode != TaOpcode::WriteNotify {
            return Ok(None);
        }
        let (segment, addr) = wr.notify.ok_or(UrmaError::Value)?;
        let segment = self.shared.objects.remote_segments.at(segment).ok_or(UrmaError::NoObject)?;
        if segment.cna != data.cna {
            return Err(UrmaError::Value);
        }
        Ok(Some(NotifyTarget { addr, token_id: segment.token_id, token: segment.token }))
    }
    /// Adds a request to the end of its Jetty's list.
    fn link(&mut self, jetty: PoolRef, mut request: SendRecord) -> Result<PoolRef, UrmaError> {
        let Some(record) = self.shared.objects.jetties.get_mut(jetty) else { return Err(UrmaError::NoObject) };
        request.prev = record.tail;
        let is_silent = !request.complete;
        let at = self.requests.insert(request).map_err(|_| UrmaError::Full)?;
        match self.requests.get_mut(record.tail) {
            Some(tail) => tail.next = at,
            None => record.head = at,
        }
        record.tail = at;
        if record.cursor.is_none() {
            record.cursor = at;
        }
        record.count += 1;
        if is_silent {
            record.silents += 1;
            if record.oldest_silent.is_none() {
                record.oldest_silent = at;
            }
        }
        record.next_tassn = record.next_tassn.wrapping_add(1);
        Ok(at)
    }
    /// Removes a request and takes it from its Jetty's list.
    pub(crate) fn unlink(&mut self, at: PoolRef) {
        let Some(&SendRecord { jetty, prev, next, complete, .. }) = self.requests.get(at) else { return };
        self.requests.discard(at);
        if let Some(prev) = self.requests.get_mut(prev) {
            prev.next = next;
        }
        if let Some(record) = self.requests.get_mut(next) {
            record.prev = prev;
        }
        if let Some(jetty) = self.shared.objects.jetties.get_mut(jetty) {
            if jetty.head == at {
                jetty.head = next;
            }
            if jetty.tail == at {
                jetty.tail = prev;
            }
            if jetty.cursor == at {
                jetty.cursor = next;
            }
            jetty.count -= 1;
        }
        if !complete {
            self.unlink_silent(jetty, at, next);
        }
    }
    /// A request that asked for no completion has left its Jetty's list. The search for the next one goes forward only, so that
    /// each request is passed once.
    fn unlink_silent(&mut self, jetty: PoolRef, at: PoolRef, mut next: PoolRef) {
        let Some(record) = self.shared.objects.jetties.get_mut(jetty) else { return };
        record.silents -= 1;
        if record.oldest_silent != at {
            return;
        }
        if record.silents == 0 {
            next = PoolRef::NONE;
        }
        while let Some(request) = self.requests.get(next).filter(|request| request.complete) {
            next = request.next;
        }
        record.oldest_silent = next;
    }
    /// The outstanding request of a Jetty with this TASSN.
    pub(crate) fn find_request(&self, jetty: PoolRef, tassn: u16) -> Option<PoolRef> {
        let record = self.shared.objects.jetties.get(jetty)?;
        let mut at = record.head;
        let first = self.requests.get(at)?.tassn;
        let ahead = tassn.wrapping_sub(first);
        if ahead >= record.next_tassn.wrapping_sub(first) {
            return None;
        }
        // The list is in the order of the numbers.
        loop {
            let request = self.requests.get(at)?;
            if request.tassn.wrapping_sub(first) >= ahead {
                return (request.tassn == tassn).then_some(at);
            }
            at = request.next;
        }
    }
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
