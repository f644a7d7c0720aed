//! Loads, stores and atomics without a channel (TP bypass, `docs/urma.md`): one packet asks, one answers. No work request, no
//! completion queue, no PSN; the caller waits for its answer, and an answer that does not come is asked for again.
//!
//! A load may be executed twice without harm. A store or an atomic may not: a late copy of a store would overwrite a newer value.
//! So each request to a peer has a number (its TASSN), and a target remembers of each initiator the newest [`ACCESS_WINDOW`]
//! numbers that it has executed, and what they returned. The initiator never has requests under way that are further apart, so
//! what is older than the window is a late copy. The requester context names the life of the initiator, because numbers begin
//! anew with it.

use crate::api::{
    ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag, CrStatus, RemoteSegment, UrmaEffects, UrmaEnv,
    UrmaError, UrmaMemory, access,
};
use crate::channels::Channels;
use crate::node_eid::NodeEid;
use crate::objects::Objects;
use crate::objects::segment_table::{PeerAccess, SegmentTable};
use crate::refusal::UrmaRefusal;
use crate::timers::UrmaTimer;
use crate::urma_target::checks::{check_tokens, guess_of};
use crate::urma_target::execution::changed;
use burst_base::{Nanos, Reason};
use burst_ubwire::{Atah, Btah, Dialect, Maetah, NextLayer, TaHeader, TaOpcode, TaRequest, UbHead, UbPacket, UbStatus};
use std::collections::{HashMap, VecDeque};

/// Initiators whose executed stores and atomics a target remembers. Of more, the one that was silent for longest is forgotten.
const INITIATORS_MAX: usize = 256;
/// Answers that wait to be sent; what more is asked for is asked for again.
const ANSWERS_MAX: usize = 1024;

/// An access under way, or with an outcome that nobody has taken.
#[derive(Clone, Copy, Debug)]
struct AccessRecord {
    number: u16,
    addr: u64,
    token_id: u32,
    token: Option<u32>,
    kind: AccessKind,
    /// Times that it was sent.
    sent: u8,
    /// When it is sent again.
    due: Nanos,
    outcome: Option<AccessOutcome>,
}

/// The accesses to one peer.
#[derive(Debug, Default)]
struct AccessStream {
    next: u16,
    records: VecDeque<AccessRecord>,
}

/// What a target remembers of an initiator.
#[derive(Debug)]
struct AccessHistory {
    life: u32,
    /// The life before: its late copies are not executed.
    former: u32,
    newest: u16,
    /// Which of the numbers up to the newest were executed; bit 0 is the newest.
    executed: u64,
    /// What they returned, by the low bits of the number.
    values: [u64; ACCESS_WINDOW as usize],
    used_at: Nanos,
}

/// What a number is to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberVerdict {
    New,
    /// Executed before, with this value.
    Executed(u64),
    /// A late copy of what has long been answered.
    Late,
}

impl AccessHistory {
    fn new(life: u32, number: u16) -> AccessHistory {
        AccessHistory { life, former: u32::MAX, newest: number, executed: 0, values: [0; 64], used_at: Nanos(0) }
    }
    fn judge(&mut self, life: u32, number: u16) -> NumberVerdict {
        if life == self.former {
            return NumberVerdict::Late;
        }
        if life != self.life {
            *self = AccessHistory { former: self.life, ..AccessHistory::new(life, number) };
        }
        let ahead = number.wrapping_sub(self.newest) as i16;
        if ahead > 0 {
            self.executed = self.executed.checked_shl(ahead as u32).unwrap_or(0);
            self.newest = number;
            return NumberVerdict::New;
        }
        let age = ahead.unsigned_abs();
        if age >= ACCESS_WINDOW {
            NumberVerdict::Late
        } else if self.executed >> age & 1 == 1 {
            NumberVerdict::Executed(self.values[usize::from(number % ACCESS_WINDOW)])
        } else {
            NumberVerdict::New
        }
    }
    fn note(&mut self, number: u16, value: u64) {
        let age = self.newest.wrapping_sub(number);
        debug_assert!(age < ACCESS_WINDOW);
        self.executed |= 1 << age;
        self.values[usize::from(number % ACCESS_WINDOW)] = value;
    }
}

/// A request of a peer.
struct AccessRequest<'a> {
    peer: NodeEid,
    request: &'a TaRequest,
    payload: &'a [u8],
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug)]
struct AccessAnswer {
    dest: NodeEid,
    header: Atah,
    len: u8,
    bytes: [u8; ACCESS_MAX],
}

/// The accesses of a node.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// Names this life of the node to its targets; 20 bits.
    life: u32,
    streams: HashMap<NodeEid, AccessStream>,
    /// Requests to be sent.
    asks: VecDeque<AccessTag>,
    initiators: HashMap<NodeEid, AccessHistory>,
    answers: VecDeque<AccessAnswer>,
}

impl Accesses {
    pub(crate) fn new(life: u32) -> Accesses {
        Accesses {
            life: life & 0xf_ffff,
            streams: HashMap::new(),
            asks: VecDeque::new(),
            initiators: HashMap::new(),
            answers: VecDeque::new(),
        }
    }
    pub(crate) fn wants_tx(&self) -> bool {
        !(self.asks.is_empty() && self.answers.is_empty())
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        let records: usize = self.streams.values().map(|s| s.records.capacity() * size_of::<AccessRecord>()).sum();
        self.streams.capacity() * size_of::<(NodeEid, AccessStream)>()
            + self.initiators.capacity() * size_of::<(NodeEid, AccessHistory)>()
            + self.answers.capacity() * size_of::<AccessAnswer>()
            + self.asks.capacity() * size_of::<AccessTag>()
            + records
    }
    fn record(&mut self, tag: AccessTag) -> Option<&mut AccessRecord> {
        self.streams.get_mut(&tag.peer)?.records.iter_mut().find(|record| record.number == tag.number)
    }
    /// What is remembered of an initiator; of a new one nothing.
    fn initiator(&mut self, peer: NodeEid, life: u32, number: u16, now: Nanos) -> &mut AccessHistory {
        if self.initiators.len() >= INITIATORS_MAX
            && !self.initiators.contains_key(&peer)
            && let Some(oldest) = self.initiators.iter().min_by_key(|(_, i)| i.used_at).map(|(peer, _)| *peer)
        {
            self.initiators.remove(&oldest);
        }
        let initiator = self.initiators.entry(peer).or_insert_with(|| AccessHistory::new(life, number));
        initiator.used_at = now;
        initiator
    }
}

impl Accesses {
    /// Begins an access ([`crate::UrmaNode::begin_access`]).
    pub(crate) fn begin(
        &mut self,
        segment: RemoteSegment,
        addr: u64,
        kind: AccessKind,
    ) -> Result<AccessTag, UrmaError> {
        if !kind.is_sound(addr) {
            return Err(UrmaError::Value);
        }
        let offset = addr.checked_sub(segment.addr).ok_or(UrmaError::Access)?;
        if offset.checked_add(u64::from(kind.len())).is_none_or(|end| end > segment.len) {
            return Err(UrmaError::Access);
        }
        let stream = self.streams.entry(segment.eid).or_default();
        let spread = stream.records.front().map_or(0, |oldest| stream.next.wrapping_sub(oldest.number));
        if spread >= ACCESS_WINDOW {
            return Err(UrmaError::Full);
        }
        let number = stream.next;
        stream.next = stream.next.wrapping_add(1);
        let RemoteSegment { token_id, token, eid, .. } = segment;
        stream.records.push_back(AccessRecord {
            number,
            addr,
            token_id,
            token,
            kind,
            sent: 0,
            due: Nanos::NEVER,
            outcome: None,
        });
        let tag = AccessTag { peer: eid, number };
        self.asks.push_back(tag);
        Ok(tag)
    }
    /// The outcome of an access, once; `None` while there is none.
    pub(crate) fn take(&mut self, tag: AccessTag) -> Option<AccessOutcome> {
        let stream = self.streams.get_mut(&tag.peer)?;
        let at = stream.records.iter().position(|record| record.number == tag.number)?;
        let outcome = stream.records[at].outcome?;
        stream.records.remove(at);
        Some(outcome)
    }
    /// The next packet of an access: its head and payload in `out`, the peer and the length.
    pub(crate) fn poll(&mut self, channels: &mut Channels, now: Nanos, out: &mut [u8]) -> Option<(NodeEid, usize)> {
        if let Some(AccessAnswer { dest, header, len, bytes }) = self.answers.pop_front() {
            return Some((
                dest,
                write_access(channels, dest, TaHeader::Response(header), &bytes[..usize::from(len)], out),
            ));
        }
        while let Some(tag) = self.asks.pop_front() {
            let config = channels.config;
            let life = self.life;
            let Some(record) = self.record(tag).filter(|record| record.outcome.is_none()) else { continue };
            let wait = config.rto_base.0.checked_shl(u32::from(record.sent) * u32::from(config.rto_shift));
            record.due = now + Nanos(wait.unwrap_or(u64::MAX >> 1).min(Nanos::from_ms(60_000).0));
            record.sent += 1;
            let mut base = Btah::new(record.kind.opcode(), record.number, life);
            (base.has_token, base.retry) = (record.token.is_some(), record.sent > 1);
            let memory = Maetah { addr: record.addr, token_id: record.token_id, len: record.kind.len() };
            let mut request = TaRequest { memory: Some(memory), token: record.token, ..TaRequest::new(base) };
            let (due, kind) = (record.due, record.kind);
            if let AccessKind::Atomic { operand, swap, .. } = kind {
                request.operands = [operand, swap];
            }
            let payload: &[u8] = match &kind {
                AccessKind::Store { len, bytes } => &bytes[..usize::from(*len)],
                AccessKind::Load { .. } | AccessKind::Atomic { .. } => &[],
            };
            let len = write_access(channels, tag.peer, TaHeader::Request(request), payload, out);
            channels.timers.add(due, UrmaTimer::Access(tag));
            return Some((tag.peer, len));
        }
        None
    }
    /// An answer has not come in time.
    pub(crate) fn on_timer(&mut self, tag: AccessTag, due: Nanos, tries: u8, fx: &mut dyn UrmaEffects) {
        let Some(record) = self.record(tag).filter(|r| r.outcome.is_none() && r.due == due) else { return };
        if record.sent > tries {
            fx.count(Reason::UbTimeout);
            record.outcome = Some(AccessOutcome::failed(CrStatus::AckTimeout));
            return;
        }
        fx.count(Reason::UbRepeated);
        self.asks.push_back(tag);
    }
    /// A packet without transport header.
    pub(crate) fn on_packet(
        &mut self,
        objects: &mut Objects,
        env: &mut UrmaEnv<'_>,
        (peer, packet): (NodeEid, &UbPacket<'_>),
    ) -> Result<(), Reason> {
        match &packet.head.ta {
            Some(TaHeader::Request(request)) => {
                self.on_request(objects, env, &AccessRequest { peer, request, payload: packet.payload })
            }
            Some(TaHeader::Response(response)) => self.on_answer(peer, response, packet.payload),
            None => Err(Reason::UbNextLayer),
        }
    }
    fn on_request(
        &mut self,
        objects: &mut Objects,
        env: &mut UrmaEnv<'_>,
        access: &AccessRequest<'_>,
    ) -> Result<(), Reason> {
        let AccessRequest { peer, request, payload } = *access;
        let base = &request.base;
        let is_load = base.opcode == TaOpcode::Read;
        if !is_load && base.opcode != TaOpcode::Write && !base.opcode.is_atomic() {
            return Err(Reason::UbNextLayer);
        }
        if self.answers.len() >= ANSWERS_MAX {
            return Err(Reason::UbPoolFull);
        }
        // The token first: who has none changes nothing of what is remembered of the initiator in whose name the packet came.
        let guess = || guess_of(peer, request, false);
        let checked = check_tokens(objects, env, guess, |objects, _| check_access(&objects.segments, access));
        let result = match checked {
            Err(refusal) => Err(refusal),
            Ok(region) => match self.judge(peer, request, env.now) {
                NumberVerdict::Late => return Err(Reason::UbLate),
                NumberVerdict::Executed(value) => {
                    env.fx.count(Reason::UbDuplicate);
                    Ok(value)
                }
                NumberVerdict::New => {
                    let result = execute_access(region, env, request, payload);
                    if let (false, Ok(value)) = (is_load, result) {
                        env.fx.executed(peer, base.rc_id, base.tassn);
                        self.initiator(peer, base.rc_id, base.tassn, env.now).note(base.tassn, value);
                    }
                    result
                }
            },
        };
        if let Err(refusal) = result {
            env.fx.count(refusal.reason);
        }
        self.answers.push_back(answer_to(peer, request, result, env.mem));
        Ok(())
    }
    /// What the number of a request is. Loads are executed whenever they come.
    fn judge(&mut self, peer: NodeEid, request: &TaRequest, now: Nanos) -> NumberVerdict {
        let base = &request.base;
        if base.opcode != TaOpcode::Read {
            return self.initiator(peer, base.rc_id, base.tassn, now).judge(base.rc_id, base.tassn);
        }
        // Numbers go on with loads, so that those of stores that follow are not taken for old ones.
        if let Some(initiator) = self.initiators.get_mut(&peer) {
            initiator.judge(base.rc_id, base.tassn);
        }
        NumberVerdict::New
    }
    fn on_answer(&mut self, peer: NodeEid, response: &Atah, payload: &[u8]) -> Result<(), Reason> {
        if response.rc_id != self.life {
            return Err(Reason::UbLate);
        }
        let tag = AccessTag { peer, number: response.tassn };
        let record = self.record(tag).filter(|record| record.outcome.is_none()).ok_or(Reason::UbLate)?;
        let mut outcome = AccessOutcome::failed(CrStatus::Success);
        if response.status.status == UbStatus::ERROR {
            outcome.status = match response.status.info {
                UrmaRefusal::UNSUPPORTED => CrStatus::RemUnsupportedReq,
                UrmaRefusal::ACCESS => CrStatus::RemAccessAbort,
                UrmaRefusal::LENGTH => CrStatus::RemRespLen,
                _ => CrStatus::RemOperation,
            };
        } else {
            let len = if record.kind.answer() == TaOpcode::TaAck { 0 } else { record.kind.len() as usize };
            if response.opcode != record.kind.answer() || payload.len() != len {
                return Err(Reason::UbLength);
            }
            match (record.kind, payload.first_chunk()) {
                (AccessKind::Atomic { .. }, Some(value)) => {
                    outcome.bytes[..8].copy_from_slice(&u64::from_be_bytes(*value).to_ne_bytes());
                }
                _ => outcome.bytes[..len].copy_from_slice(payload),
            }
        }
        record.outcome = Some(outcome);
        Ok(())
    }
}

/// The answer to a request: a refusal, or its outcome; of a load that is the region, which is read now.
fn answer_to(
    peer: NodeEid,
    request: &TaRequest,
    result: Result<u64, UrmaRefusal>,
    mem: &dyn UrmaMemory,
) -> AccessAnswer {
    let base = &request.base;
    let header = Atah { mode: base.mode, ..Atah::new(TaOpcode::TaAck, base.tassn, base.rc_id) };
    let mut answer = AccessAnswer { dest: peer, header, len: 0, bytes: [0; ACCESS_MAX] };
    match result {
        Err(refusal) => answer.header.status = refusal.status,
        Ok(_) if base.opcode == TaOpcode::Write => {}
        Ok(region) if base.opcode == TaOpcode::Read => {
            let memory = request.memory.unwrap_or(Maetah { addr: 0, token_id: 0, len: 0 });
            if mem.read(region as u32, memory.addr, &mut answer.bytes[..memory.len as usize]).is_ok() {
                (answer.header.opcode, answer.len) = (TaOpcode::ReadResponse, memory.len as u8);
            } else {
                answer.header.status = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess).status;
            }
        }
        Ok(value) => {
            (answer.header.opcode, answer.len) = (TaOpcode::AtomicResponse, 8);
            answer.bytes[..8].copy_from_slice(&value.to_be_bytes());
        }
    }
    answer
}

/// The region of the memory of an access, checked.
fn check_access(segments: &SegmentTable, access: &AccessRequest<'_>) -> Result<u32, UrmaRefusal> {
    let AccessRequest { request, payload, .. } = *access;
    let memory = request.memory.ok_or(UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused))?;
    let Maetah { addr, token_id, len } = memory;
    let (right, is_fit) = match request.base.opcode {
        TaOpcode::Read => (access::READ, payload.is_empty()),
        TaOpcode::Write => (access::WRITE, payload.len() == len as usize),
        _ => (access::ATOMIC, len == 8 && addr.is_multiple_of(8)),
    };
    if !is_fit || !(1..=ACCESS_MAX).contains(&(len as usize)) || request.base.poison {
        return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
    }
    let wanted = PeerAccess { token_id, token: request.token, addr, len, right, has_channel: false };
    segments.check(wanted).map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))
}

/// Executes a store or an atomic, whose old value it returns; of a load it returns the region, which is read for the answer.
fn execute_access(region: u32, env: &mut UrmaEnv<'_>, request: &TaRequest, payload: &[u8]) -> Result<u64, UrmaRefusal> {
    let gone = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess);
    let addr = request.memory.map_or(0, |memory| memory.addr);
    let opcode = request.base.opcode;
    match opcode {
        TaOpcode::Read => Ok(u64::from(region)),
        TaOpcode::Write => env.mem.write(region, addr, payload).map(|()| 0).map_err(|_| gone),
        _ => env.mem.update(region, addr, &|old| changed(opcode, request.operands, old)).map_err(|_| gone),
    }
}

fn write_access(channels: &Channels, dest: NodeEid, ta: TaHeader, payload: &[u8], out: &mut [u8]) -> usize {
    let nth = channels.network_header(dest, NextLayer::Bypass);
    let head = UbHead { nth, rtph: None, cetph: None, saetph: None, ta: Some(ta) };
    let len = head.emit(&Dialect::BURST, out);
    out[len..len + payload.len()].copy_from_slice(payload);
    len + payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_executed_once_in_any_order_and_forgotten_ones_never() {
        let mut initiator = AccessHistory::new(5, 65_530);
        for number in (0..40u16).map(|n| 65_530u16.wrapping_add(n ^ 1)) {
            assert_eq!(initiator.judge(5, number), NumberVerdict::New, "{number}");
            initiator.note(number, u64::from(number) + 1);
            assert_eq!(initiator.judge(5, number), NumberVerdict::Executed(u64::from(number) + 1));
        }
        let newest = 65_530u16.wrapping_add(39);
        assert_eq!(initiator.judge(5, newest.wrapping_add(63)), NumberVerdict::New);
        assert_eq!(
            initiator.judge(5, newest),
            NumberVerdict::Executed(u64::from(newest) + 1),
            "the last of the window"
        );
        assert_eq!(initiator.judge(5, newest.wrapping_sub(1)), NumberVerdict::Late);
        assert_eq!(initiator.judge(5, newest.wrapping_add(10_000)), NumberVerdict::New);
        assert_eq!(initiator.judge(5, newest), NumberVerdict::Late);
    }

    #[test]
    fn a_new_life_begins_anew_and_ends_the_old_one() {
        let mut initiator = AccessHistory::new(5, 700);
        initiator.note(700, 1);
        assert_eq!(initiator.judge(6, 3), NumberVerdict::New);
        initiator.note(3, 2);
        assert_eq!(initiator.judge(5, 701), NumberVerdict::Late);
        assert_eq!(initiator.judge(6, 3), NumberVerdict::Executed(2));
    }
}
