//! READ responses that arrive behind a gap: they are placed at once and noted ([`crate::requester::read_ahead`]), and only what
//! is missing is requested again. Responses of either family.
//!
//! After a loss all responses up to that to the repair are early, a round trip of them. Middle packets of a train that continue
//! each other are placed with one check of key and overlaps. Whatever a single packet would be dropped or treated apart for (one
//! that has arrived before, a response that must wait, memory that cannot be written) ends the run before its first packet.
//!
//! Programs read into one buffer again and again, so READs in flight write to the same bytes of memory, and the later must win. A
//! response that comes late, in front of noted ones, is written only where none of those was
//! ([`crate::requester::recovery::Recovery::place_response`]): the bytes in between belong to the later READ, whose completion
//! follows.

use crate::api::{Env, READ_CHUNK_BYTES, Signal};
use crate::copies::{copies_of, place_train};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::read_ahead::AHEAD_MAX;
use crate::requester::recovery::InflightWqe;
use crate::requester::recovery::placement::ResponseMemory;
use crate::sge_cursor::{Keys, SgeCursor};
use burst_base::verbs::{QpState, access};
use burst_base::{Nanos, Psn, Reason};
use burst_frame::MiddleRun;
use burst_wire::Packet;

/// Responses of a train that are behind a gap.
pub(crate) struct EarlyRun {
    request: InflightWqe,
    psn: Psn,
    /// Index, in the READ, of the first.
    first: u32,
    /// Most packets that may be placed together.
    most: u32,
}

impl EarlyRun {
    /// Index, in the piece in which it was requested, of the first packet.
    pub(crate) fn index_in_piece(&self, mtu: u32) -> u32 {
        self.first % (READ_CHUNK_BYTES / mtu)
    }
}

impl Requester {
    /// A READ response behind a gap: places it, so that only what is missing is requested again. False if it cannot be.
    #[cold]
    pub(crate) fn on_read_ahead(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> bool {
        let psn = pkt.bth.psn;
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return true;
        }
        let Some(request) = self.recovery.read_behind_gap(psn) else { return false };
        let offset = psn.diff(request.first_psn) as u32 * qp.mtu;
        if pkt.payload.len() as u32 != (request.length - offset).min(qp.mtu) {
            return false;
        }
        if self.recovery.is_noted(psn) {
            env.fx.count(Reason::UnexpectedResponse);
            return true;
        }
        if self.recovery.reserve_ahead().is_err() {
            return false;
        }
        if let Err(reason) =
            self.recovery.place_response(&mut ResponseMemory::of(qp, env), &request, offset, pkt.payload)
        {
            // It counts as lost; if the cause stays, the response in order meets it again.
            env.fx.count(reason);
            return true;
        }
        self.note_early_responses(qp, psn, 1, env);
        true
    }

    /// The middle packets at the beginning of a train, the first with `psn`, if they are behind a gap and may be placed. Those of
    /// them that were sent, have not arrived before, and belong to one piece of a READ; never its last.
    pub(crate) fn early_run(&self, qp: &QpShared, psn: Psn) -> Option<EarlyRun> {
        let recovery = &self.recovery;
        let distance = psn.diff(recovery.una_psn());
        let asked = recovery.sent_psn().diff(psn);
        if distance <= 0 || asked <= 0 || !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let request = recovery.read_behind_gap(psn)?;
        let first = psn.diff(request.first_psn) as u32;
        let piece = READ_CHUNK_BYTES / qp.mtu;
        let most = (request.packets - first - 1).min(piece - first % piece).min(asked as u32);
        if recovery.noted_reads_behind(&request).any(|other| self.recovery.shares_memory(&request, other)) {
            return None;
        }
        let most = recovery.unnoted(psn, most.min(AHEAD_MAX - distance as u32));
        (most > 0).then_some(EarlyRun { request, psn, first, most })
    }

    /// Places the first packets of `train`, of which those that `count` counts continue each other; heads have `head_len` bytes.
    /// Returns how many.
    #[cold]
    #[inline(never)]
    pub(crate) fn place_early_run(
        &mut self,
        qp: &QpShared,
        (train, head_len): (&MiddleRun<'_>, usize),
        (run, count): (&EarlyRun, impl FnOnce(usize) -> usize),
        env: &mut Env<'_>,
    ) -> usize {
        let count = count(run.most as usize);
        if count == 0 || self.recovery.reserve_ahead().is_err() {
            return 0;
        }
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE };
        let sges = self.recovery.sges_of(&run.request);
        let mut cursor = SgeCursor::at(sges, u64::from(run.first * qp.mtu));
        let Some(span) = cursor.run(keys, sges, qp.mtu, count as u32) else { return 0 };
        if !place_train(train, &span, (head_len, qp.mtu as usize), copies_of(qp, env)) {
            return 0;
        }
        let done = span.len() / qp.mtu as usize;
        debug_assert!(0 < done && done <= count);
        self.note_early_responses(qp, run.psn, done as u32, env);
        done
    }

    /// The responses of `count` PSNs from `psn` on were placed.
    fn note_early_responses(&mut self, qp: &QpShared, psn: Psn, count: u32, env: &mut Env<'_>) {
        if !self.recovery.has_ahead() {
            env.fx.count(Reason::ImpliedNak);
            // Once for each window of data: after a whole flight was lost its repairs have gaps, too.
            let una = self.recovery.una_psn();
            if self.recover_from(una) == una {
                env.fx.congestion(Signal::Loss);
                self.note_signal();
            }
        }
        (0..count).for_each(|k| self.recovery.note_ahead(psn.add(k)));
        // The peer works on these requests. Each PSN is noted once, so this does not put the time-out off for ever.
        if self.ack_deadline != Nanos::NEVER {
            self.ack_deadline = env.now + self.ack_wait(qp);
        }
        if self.recovery.wants_repair() {
            self.begin_repair();
        }
    }

    /// The gap in front of noted responses is filled: they are received now, and requests between them were executed.
    #[cold]
    pub(crate) fn take_ahead(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        while let Some(oldest) = self.recovery.oldest()
            && self.recovery.has_ahead()
        {
            let (work, packets, done) = (oldest.work, oldest.packets, oldest.done);
            match work {
                Work::Read => {
                    let left = packets - self.recovery.una_packet();
                    match self.recovery.take_noted(left) {
                        0 => break,
                        taken => self.recovery.on_acked(taken),
                    }
                    if self.recovery.una_packet() == packets {
                        self.retire_oldest(qp, env);
                    }
                }
                // The peer executes requests in order: a response behind it shows that it was executed.
                Work::Send | Work::Write => self.retire_oldest(qp, env),
                Work::Local | Work::Atomic if done => self.retire_oldest(qp, env),
                _ => break,
            }
        }
    }
}
