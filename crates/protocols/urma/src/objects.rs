//! The objects of a node's programs: completion queues (JFC), receive queues (JFR), Jetties, groups, segments, imports.
//!
//! Programs name them by numbers, and every call checks the number: a deleted object is not found. Objects know no channel, no
//! packet and no request but as the ends of a Jetty's list.
//!
//! | file | what it holds |
//! |---|---|
//! | `records` | the record of each kind |
//! | `segment_table` | segments, and the checks of tokens, ranges and rights |
//! | `token_ids` | token ids, which no peer can foresee |
//! | `guesses` | how often a wrong token may be shown |
//! | `groups` | groups of Jetties, and the choice of a member |
//! | `check` | what must hold between two calls |

pub(crate) mod check;
pub(crate) mod groups;
pub(crate) mod guesses;
pub(crate) mod records;
pub(crate) mod segment_table;
pub(crate) mod token_ids;

use crate::api::{
    CompletionRecord, CrStatus, ERR_TIMEOUT_MAX, JETTY_ID_FIRST, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr,
    RemoteJetty, RemoteSegment, TargetKind, TransMode, UrmaEffects, UrmaError, UrmaEvent,
};
use crate::pool::{PoolRef, UrmaPool};
use burst_base::Reason;
use burst_base::rng::splitmix64;
use burst_ubwire::{ServiceMode, TaOpcode};
use guesses::Guesses;
use records::{Drain, Jetty, JettyGroup, Jfc, Jfr, PostedReceive};
use segment_table::SegmentTable;
use std::collections::VecDeque;

/// Objects of each kind at most.
pub const OBJECTS_MAX: usize = (1 << 20) - JETTY_ID_FIRST as usize;
/// Numbers of deleted Jetties, JFRs and groups that are not given to new ones yet: peers may still send to them.
const NUMBERS_REST: usize = 256;
/// Largest code of the delay that an RNR answer asks for.
const RNR_TIMER_MAX: u8 = 15;

/// The number by which programs and peers know a Jetty, JFR or group.
pub(crate) const fn id_of(at: PoolRef) -> u32 {
    at.index() + JETTY_ID_FIRST
}

/// All objects of a node.
pub(crate) struct Objects {
    pub(crate) jfcs: UrmaPool<Jfc>,
    pub(crate) jfrs: UrmaPool<Jfr>,
    pub(crate) jetties: UrmaPool<Jetty>,
    pub(crate) groups: UrmaPool<JettyGroup>,
    pub(crate) segments: SegmentTable,
    /// Wrong tokens that peers have shown.
    pub(crate) guesses: Guesses,
    pub(crate) remote_segments: UrmaPool<RemoteSegment>,
    pub(crate) remote_jetties: UrmaPool<RemoteJetty>,
    /// Abandoned Jetties that are drained.
    pub(crate) drained: VecDeque<PoolRef>,
    /// Owners of Jetties whose next end of a request was awaited, and has come.
    pub(crate) freed: Vec<u32>,
    /// Jetties and JFRs of which a completion was lost since the last call.
    pub(crate) overrun: Vec<(TargetKind, u32)>,
}

impl Objects {
    /// `seed`: of token ids, which peers should not guess.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        Objects {
            jfcs: UrmaPool::new(OBJECTS_MAX),
            jfrs: UrmaPool::with_rest(OBJECTS_MAX, NUMBERS_REST),
            jetties: UrmaPool::with_rest(OBJECTS_MAX, NUMBERS_REST),
            groups: UrmaPool::with_rest(OBJECTS_MAX, NUMBERS_REST),
            segments: SegmentTable::new(splitmix64(&mut state)),
            guesses: Guesses::new(splitmix64(&mut state)),
            remote_segments: UrmaPool::new(OBJECTS_MAX),
            remote_jetties: UrmaPool::new(OBJECTS_MAX),
            drained: VecDeque::new(),
            freed: Vec::new(),
            overrun: Vec::new(),
        }
    }
    pub(crate) fn jfr_ref(&self, id: u32) -> Option<PoolRef> {
        self.jfrs.ref_of(id.checked_sub(JETTY_ID_FIRST)?)
    }
    pub(crate) fn jetty_ref(&self, id: u32) -> Option<PoolRef> {
        self.jetties.ref_of(id.checked_sub(JETTY_ID_FIRST)?)
    }
    /// The Jetty with a number.
    pub(crate) fn jetty(&self, id: u32) -> Option<&Jetty> {
        self.jetty_ref(id).and_then(|at| self.jetties.get(at))
    }
    /// The receive queue with a number.
    pub(crate) fn jfr(&self, id: u32) -> Option<&Jfr> {
        self.jfr_ref(id).and_then(|at| self.jfrs.get(at))
    }
    fn jetty_mut(&mut self, id: u32) -> Result<&mut Jetty, UrmaError> {
        self.jetty_ref(id).and_then(|at| self.jetties.get_mut(at)).ok_or(UrmaError::NoObject)
    }
    fn jfr_mut(&mut self, id: u32) -> Result<&mut Jfr, UrmaError> {
        self.jfr_ref(id).and_then(|at| self.jfrs.get_mut(at)).ok_or(UrmaError::NoObject)
    }
    pub(crate) fn create_jfc(&mut self, depth: u32) -> Result<u32, UrmaError> {
        if depth == 0 {
            return Err(UrmaError::Value);
        }
        let jfc = Jfc { depth, records: VecDeque::new(), is_broken: false, users: 0 };
        self.jfcs.insert(jfc).map(PoolRef::index).map_err(|_| UrmaError::Full)
    }
    pub(crate) fn delete_jfc(&mut self, jfc: u32) -> Result<(), UrmaError> {
        let at = self.jfcs.ref_of(jfc).ok_or(UrmaError::NoObject)?;
        if self.jfcs.get(at).is_some_and(|jfc| jfc.users > 0) {
            return Err(UrmaError::Busy);
        }
        self.jfcs.remove(at);
        Ok(())
    }
    fn release_jfc(&mut self, jfc: u32) {
        if let Some(jfc) = self.jfcs.at_mut(jfc) {
            debug_assert!(jfc.users > 0, "a completion queue is released that has no user");
            jfc.users -= 1;
        }
    }
    pub(crate) fn create_jfr(&mut self, config: JfrConfig) -> Result<u32, UrmaError> {
        if config.depth == 0 || config.rnr_timer > RNR_TIMER_MAX {
            return Err(UrmaError::Value);
        }
        let jfc = self.jfcs.at_mut(config.jfc).ok_or(UrmaError::NoObject)?;
        let jfr = Jfr {
            config,
            state: JfrState::Ready,
            receives: VecDeque::new(),
            users: 0,
            placing: 0,
            limit_reported: false,
        };
        let at = self.jfrs.insert(jfr).map_err(|_| UrmaError::Full)?;
        jfc.users += 1;
        Ok(id_of(at))
    }
    /// Removes a receive queue that no message is being placed into.
    pub(crate) fn delete_jfr(&mut self, at: PoolRef) -> Result<(), UrmaError> {
        if self.jfrs.get(at).is_some_and(|jfr| jfr.users > 0) {
            return Err(UrmaError::Busy);
        }
        if let Some(jfr) = self.jfrs.remove(at) {
            self.release_jfc(jfr.config.jfc);
        }
        Ok(())
    }
    pub(crate) fn set_jfr_limit(&mut self, jfr: u32, limit: u16) -> Result<(), UrmaError> {
        let queue = self.jfr_mut(jfr)?;
        (queue.config.limit, queue.limit_reported) = (limit, false);
        Ok(())
    }
    /// Changes the state of a receive queue, and returns its place.
    pub(crate) fn modify_jfr(&mut self, jfr: u32, state: JfrState) -> Result<PoolRef, UrmaError> {
        let at = self.jfr_ref(jfr).ok_or(UrmaError::NoObject)?;
        let queue = self.jfr_mut(jfr)?;
        match (queue.state, state) {
            (JfrState::Error, JfrState::Reset) => queue.receives.clear(),
            (JfrState::Ready, JfrState::Error) | (JfrState::Reset, JfrState::Ready) => {}
            _ => return Err(UrmaError::State),
        }
        queue.state = state;
        Ok(at)
    }
    pub(crate) fn create_jetty(&mut self, config: JettyConfig) -> Result<u32, UrmaError> {
        let is_unreliable = config.service == ServiceMode::Uno;
        if is_unreliable != (config.mode == TransMode::Um) {
            return Err(UrmaError::Unsupported);
        }
        if config.depth == 0 || config.rnr_retry > 7 || config.err_timeout > ERR_TIMEOUT_MAX {
            return Err(UrmaError::Value);
        }
        let jfr = config.jfr.map(|jfr| self.jfr_ref(jfr).ok_or(UrmaError::NoObject)).transpose()?;
        if self.jfcs.at(config.jfc).is_none() {
            return Err(UrmaError::NoObject);
        }
        self.check_group(&config)?;
        let at = self.jetties.insert(Jetty::new(config)).map_err(|_| UrmaError::Full)?;
        self.join_group(at, config.group);
        if let Some(jfc) = self.jfcs.at_mut(config.jfc) {
            jfc.users += 1;
        }
        if let Some(jfr) = jfr.and_then(|at| self.jfrs.get_mut(at)) {
            jfr.users += 1;
        }
        Ok(id_of(at))
    }
    /// A Jetty without outstanding requests; [`UrmaError::Busy`] for another one.
    pub(crate) fn idle_jetty(&self, jetty: u32) -> Result<PoolRef, UrmaError> {
        let at = self.jetty_ref(jetty).ok_or(UrmaError::NoObject)?;
        if self.jetties.get(at).is_some_and(|jetty| jetty.count > 0) { Err(UrmaError::Busy) } else { Ok(at) }
    }
    /// Removes a Jetty that has neither requests nor a sequence context.
    pub(crate) fn delete_jetty(&mut self, at: PoolRef) -> Result<(), UrmaError> {
        self.leave_group(at);
        let record = self.jetties.remove(at).ok_or(UrmaError::NoObject)?;
        debug_assert!(record.count == 0 && record.head.is_none(), "a Jetty is deleted with requests");
        if record.drain == Drain::Reported
            && let Some(jfc) = self.jfcs.at_mut(record.config.jfc)
        {
            // The program has no use for it any more, and the next Jetty may get the number.
            jfc.records.retain(|cr| !(cr.is_drain_end() && cr.local_id == id_of(at)));
        }
        self.release_jfc(record.config.jfc);
        if let Some(at) = record.config.jfr.and_then(|jfr| self.jfr_ref(jfr))
            && let Some(jfr) = self.jfrs.get_mut(at)
        {
            debug_assert!(jfr.users > 0, "a receive queue is released that has no user");
            jfr.users -= 1;
        }
        Ok(())
    }
    /// Notifies the program once that a stopped Jetty has nothing issued.
    pub(crate) fn check_drained(&mut self, at: PoolRef, fx: &mut dyn UrmaEffects) {
        let Some(jetty) = self.jetties.get_mut(at) else { return };
        if jetty.drain != Drain::Waiting || jetty.issued > 0 {
            return;
        }
        jetty.drain = Drain::Reported;
        if jetty.is_abandoned {
            return self.drained.push_back(at);
        }
        let status = if jetty.state == JettyState::Suspended { CrStatus::SuspendDone } else { CrStatus::FlushErrDone };
        let jfc = jetty.config.jfc;
        let record = CompletionRecord {
            status,
            user_ctx: 0,
            opcode: TaOpcode::Send,
            is_receive: false,
            len: 0,
            local_kind: TargetKind::Jetty,
            local_id: id_of(at),
            remote: None,
            immediate: 0,
        };
        self.complete(jfc, record, fx);
    }
    pub(crate) fn import_segment(&mut self, segment: RemoteSegment) -> Result<u32, UrmaError> {
        self.remote_segments.insert(segment).map(PoolRef::index).map_err(|_| UrmaError::Full)
    }
    pub(crate) fn unimport_segment(&mut self, segment: u32) -> Result<(), UrmaError> {
        let at = self.remote_segments.ref_of(segment).ok_or(UrmaError::NoObject)?;
        self.remote_segments.remove(at).map(|_| ()).ok_or(UrmaError::NoObject)
    }
    pub(crate) fn import_jetty(&mut self, jetty: RemoteJetty) -> Result<u32, UrmaError> {
        self.remote_jetties.insert(jetty).map(PoolRef::index).map_err(|_| UrmaError::Full)
    }
    pub(crate) fn unimport_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        let at = self.remote_jetties.ref_of(jetty).ok_or(UrmaError::NoObject)?;
        self.remote_jetties.remove(at).map(|_| ()).ok_or(UrmaError::NoObject)
    }
    pub(crate) fn bind_jetty(&mut self, jetty: u32, remote: u32) -> Result<(), UrmaError> {
        let remote = *self.remote_jetties.at(remote).ok_or(UrmaError::NoObject)?;
        let record = self.jetty_mut(jetty)?;
        if record.config.mode != TransMode::Rc || remote.kind != TargetKind::Jetty {
            return Err(UrmaError::Unsupported);
        }
        if record.bound.is_some() {
            return Err(UrmaError::Bound);
        }
        record.bound = Some(remote);
        Ok(())
    }
    /// Ends the binding of a Jetty without outstanding requests, and returns its place.
    pub(crate) fn unbind_jetty(&mut self, jetty: u32) -> Result<PoolRef, UrmaError> {
        let at = self.idle_jetty(jetty)?;
        self.jetty_mut(jetty)?.bound.take().map(|_| at).ok_or(UrmaError::State)
    }
    pub(crate) fn post_recv(&mut self, jfr: u32, wr: JfrWr) -> Result<(), UrmaError> {
        let at = self.jfr_ref(jfr).ok_or(UrmaError::NoObject)?;
        if !self.segments.is_local(wr.range.token_id, wr.range.addr, wr.range.len) {
            return Err(UrmaError::Access);
        }
        let queue = self.jfrs.get_mut(at).ok_or(UrmaError::NoObject)?;
        if queue.state != JfrState::Ready {
            return Err(UrmaError::State);
        }
        if queue.receives.len() >= usize::from(queue.config.depth) {
            return Err(UrmaError::Full);
        }
        queue.receives.push_back(PostedReceive { wr, segment: self.segments.hold(wr.range.token_id) });
        if queue.receives.len() >= usize::from(queue.config.limit) {
            queue.limit_reported = false;
        }
        Ok(())
    }
    /// A message begins or ends to be placed into a receive of a queue.
    pub(crate) fn count_placing(&mut self, jfr: Option<PoolRef>, begins: bool) {
        let Some(jfr) = jfr.and_then(|at| self.jfrs.get_mut(at)) else { return };
        debug_assert!(begins || jfr.placing > 0, "a message ends that was not counted");
        jfr.placing = if begins { jfr.placing + 1 } else { jfr.placing.saturating_sub(1) };
    }
    /// Takes the oldest receive of a queue for a message.
    pub(crate) fn take_receive(&mut self, jfr: PoolRef, fx: &mut dyn UrmaEffects) -> Option<PostedReceive> {
        let queue = self.jfrs.get_mut(jfr)?;
        let receive = queue.receives.pop_front()?;
        if queue.receives.len() < usize::from(queue.config.limit) && !queue.limit_reported {
            queue.limit_reported = true;
            fx.event(UrmaEvent::JfrLimit(id_of(jfr)));
        }
        Some(receive)
    }
    /// A receive that was taken is not used: it is the oldest one again.
    pub(crate) fn put_receive_back(&mut self, jfr: PoolRef, receive: PostedReceive) {
        if let Some(queue) = self.jfrs.get_mut(jfr).filter(|queue| queue.state == JfrState::Ready) {
            queue.receives.push_front(receive);
        }
    }
    /// Adds a record to the completion queue of a receive queue.
    pub(crate) fn complete_receive(&mut self, jfr: PoolRef, record: CompletionRecord, fx: &mut dyn UrmaEffects) {
        debug_assert!(record.is_receive);
        if let Some(jfc) = self.jfrs.get(jfr).map(|jfr| jfr.config.jfc) {
            self.complete(jfc, record, fx);
        }
    }
    /// Adds a record; a full queue breaks, and the record is lost. The Jetty or JFR that it is of moves to ERROR at the end of
    /// the call ([`crate::UrmaNode::completion_lost`]).
    pub(crate) fn complete(&mut self, jfc: u32, record: CompletionRecord, fx: &mut dyn UrmaEffects) {
        let Some(queue) = self.jfcs.at_mut(jfc) else { return };
        if queue.records.len() >= queue.depth as usize {
            fx.count(Reason::CqOverrun);
            if !queue.is_broken {
                queue.is_broken = true;
                fx.event(UrmaEvent::JfcError(jfc));
            }
            let owner = (record.local_kind, record.local_id);
            if self.overrun.last() != Some(&owner) {
                self.overrun.push(owner);
            }
            return;
        }
        queue.records.push_back(record);
        fx.completion(jfc);
    }
    /// Bytes on the heap, the Jetties not counted.
    pub(crate) fn heap_bytes(&self) -> usize {
        let queues: usize = self.jfcs.iter().map(|(_, q)| q.records.capacity() * size_of::<CompletionRecord>()).sum();
        let receives: usize = self.jfrs.iter().map(|(_, q)| q.receives.capacity() * size_of::<PostedReceive>()).sum();
        self.segments.heap_bytes()
            + self.guesses.heap_bytes()
            + self.jfcs.heap_bytes()
            + self.jfrs.heap_bytes()
            + queues
            + receives
    }
}
