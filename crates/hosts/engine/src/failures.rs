//! Records of queue pairs that have ended in error, for `burst why`.
//!
//! A record is made when the call to the queue pair returns in which it failed: of what the queue pair says ([`QpFailure`]), of
//! what it, its path and its device know anyway, and of its [`crate::tally::ReasonTally`]. The worker keeps the records in a ring
//! ([`burst_ledger::AccountRing`]), with the name of the program, so that they outlive queue pair and context. A peer that does
//! not answer is asked for a hello, because whether its daemon answers is half of the cause.

use crate::counters::Counters;
use crate::objects::{ContextSlot, NO_PATH, QpSlot};
use crate::outbox::Outbox;
use crate::paths::hello_times::HelloTimes;
use crate::paths::path::Path;
use crate::ring::{RingOwner, RingQuery};
use crate::tally::device_counts;
use burst_base::verbs::access;
use burst_base::{Nanos, Reason};
use burst_control::failures::{
    FailedProgram, FailureKind, FailureRecord, MemoryFinding, MemoryRecord, PeerPathRecord, QpRecord, RequestRecord,
};
use burst_ledger::AccountId;
use burst_mem::{KeyFinding, MrTable, Peer};
use burst_transport::{FailedPart, NamedMemory, QpFailure};

/// What a record is made of besides the queue pair.
pub(crate) struct FailureView<'a> {
    pub now: Nanos,
    pub contexts: &'a [Option<ContextSlot>],
    pub paths: &'a mut [Path],
    pub mem: &'a MrTable,
    pub counters: &'a Counters,
}

impl FailureView<'_> {
    /// Keeps the failure that lies in the outbox.
    #[cold]
    #[inline(never)]
    pub fn note(self, slot: &QpSlot, outbox: &mut Outbox, hello_times: &mut HelloTimes) {
        let Some(failure) = outbox.failure.take() else { return };
        if failure.reason == Reason::RetryExhausted
            && let Some(path) = self.paths.get_mut(slot.path as usize)
        {
            path.hello.ask_after_failure(self.now);
            hello_times.note(slot.path, path);
        }
        let context = self.contexts.get(slot.holder.context as usize).and_then(Option::as_ref);
        let unknown = AccountId::User(u32::MAX);
        let account = context.map_or(&unknown, |context| context.account.id());
        let record = self.record(slot, Some(&failure));
        if let Some(excerpts) = &mut outbox.excerpts {
            let owner = RingOwner::QueuePair(slot.qpn.get());
            let of = RingQuery { device: slot.device, owner, since: excerpts.owned_since(slot.index) };
            excerpts.note(self.now, of, record.program.uid, account);
            outbox.retry_at = outbox.retry_at.min(self.now + Nanos(1));
        }
        outbox.failures.push(account, record);
    }

    /// The record of a queue pair: with its failure, or as it is now.
    #[cold]
    pub fn record(&self, slot: &QpSlot, failure: Option<&QpFailure>) -> FailureRecord {
        let context = self.contexts.get(slot.holder.context as usize).and_then(Option::as_ref);
        let kind = match failure.map(|failure| failure.part) {
            Some(FailedPart::Request) => FailureKind::Request,
            Some(FailedPart::PeerRequest) => FailureKind::PeerRequest,
            Some(FailedPart::Queue) => FailureKind::Queue,
            None => FailureKind::Present,
        };
        FailureRecord {
            ago_ns: self.now.0,
            kind,
            program: context.map_or_else(FailedProgram::default, |context| context.program.clone()),
            reason: failure.map(|failure| failure.reason.index() as u16),
            status: failure.map_or(0, |failure| failure.status as u8),
            errno: 0,
            sentence: String::new(),
            repeats: 0,
            comm_id: 0,
            qp: Some(Box::new(self.qp_record(slot, failure))),
            jetty: None,
        }
    }

    fn qp_record(&self, slot: &QpSlot, failure: Option<&QpFailure>) -> QpRecord {
        let facts = slot.qp.facts();
        let path = self.paths.get(slot.path as usize).filter(|_| slot.path != NO_PATH);
        let una = failure.filter(|f| f.part == FailedPart::Request).map_or(facts.una_psn, |f| f.psn);
        QpRecord {
            device: slot.device.index() as u32,
            qpn: slot.qpn.get(),
            qp_type: facts.qp_type,
            state: facts.state,
            local: facts.flow.src,
            peer: facts.flow.dst,
            peer_qpn: facts.dest_qpn.get(),
            mtu: facts.mtu,
            port_mtu: facts.port_mtu,
            sent_psns: [facts.first_psn, una, facts.sent_psn].map(|psn| psn.get()),
            received_psns: [facts.first_expected_psn, facts.expected_psn].map(|psn| psn.get()),
            psn: failure.map_or(una, |failure| failure.psn).get(),
            request: failure.and_then(request_of),
            memory: failure.and_then(|failure| Some(self.memory_of(slot, failure, failure.memory?))),
            retries: [failure.map_or(facts.retry_cnt, |f| f.retries_left), facts.retry_cnt, facts.rnr_retry],
            timeout: facts.timeout,
            timeout_ns: if facts.timeout == 0 { 0 } else { facts.ack_timeout.0 },
            answered_bytes: failure.map_or(0, |failure| failure.answered_bytes),
            rtt_ns: facts.rtt.0,
            is_selective: facts.is_selective,
            counts: slot.tally.to_list(),
            last_packets: slot.last.records(self.now),
            path: path.map(|path| self.path_record(path)),
            next_hop: None,
        }
    }

    /// The memory that a request names, and what is wrong with it if it is this host's.
    fn memory_of(&self, slot: &QpSlot, failure: &QpFailure, named: NamedMemory) -> MemoryRecord {
        let NamedMemory { rkey, addr, len, right } = named;
        let attr = slot.qp.query();
        let finding = (failure.part == FailedPart::PeerRequest).then(|| {
            if attr.qp_access_flags & right == 0 && right != access::LOCAL_WRITE {
                return MemoryFinding::QueuePairRight;
            }
            let by = Peer { pd: slot.qp.domain(), qpn: slot.qpn };
            match self.mem.explain_remote(by, (rkey, addr, len), right) {
                KeyFinding::Unknown => MemoryFinding::Unknown,
                KeyFinding::OtherDomain => MemoryFinding::OtherDomain,
                KeyFinding::MissingRight(rights) => MemoryFinding::MissingRight(rights),
                KeyFinding::OutOfRange { iova, len } => MemoryFinding::OutOfRange { iova, len },
                KeyFinding::Window => MemoryFinding::Window,
                KeyFinding::Nothing => MemoryFinding::Nothing,
            }
        });
        MemoryRecord { rkey: rkey.0, addr, len, right, finding }
    }

    fn path_record(&self, path: &Path) -> PeerPathRecord {
        path_record(self.now, path, self.counters)
    }
}

/// What is known of a path, from its own state and from what its device has counted since it began.
#[cold]
pub(crate) fn path_record(at: Nanos, path: &Path, counters: &Counters) -> PeerPathRecord {
    let now = device_counts(counters);
    let since = |place: usize| now[place].saturating_sub(path.counts_before[place]);
    PeerPathRecord {
        is_own_address: path.is_own_address,
        acked_ago_ns: (path.acked_at() > Nanos(0)).then(|| at.since(path.acked_at()).0),
        hello: path.hello.record(at, at),
        unsent: since(0) + since(1) + since(2),
        too_long: since(3),
        corrupt: since(4) + since(5),
        overflowed: since(6),
        closed: since(7),
    }
}

fn request_of(failure: &QpFailure) -> Option<RequestRecord> {
    let QpFailure { opcode, length, packets, answered_packets, .. } = *failure;
    Some(RequestRecord { opcode: opcode?, length, packets, answered_packets })
}
