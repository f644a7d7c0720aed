//! READ responses that arrive behind a gap: they are placed at once and noted ([`crate::ahead`]), and only what is missing is
//! requested again. Responses of either family.
//!
//! After a loss all responses up to that to the repair are early, a round trip of them. Middle packets of a train that continue
//! each other are placed with one check of key and overlaps. Whatever a single packet would be dropped or treated apart for (one
//! that has arrived before, a response that must wait, memory that cannot be written) ends the run before its first packet.

use crate::ahead::AHEAD_MAX;
use crate::api::{Env, READ_CHUNK_BYTES, Signal};
use crate::gather::{Keys, SgeCursor};
use crate::head::Work;
use crate::qp::Qp;
use crate::recovery::InflightWqe;
use burst_base::verbs::{QpState, access};
use burst_base::{Psn, Reason};
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

impl Qp {
    /// A READ response behind a gap: places it, so that only what is missing is requested again. False if it cannot be.
    #[cold]
    pub(crate) fn on_read_ahead(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) -> bool {
        let psn = pkt.bth.psn;
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return true;
        }
        let Some(request) = self.req.recovery.read_behind_gap(psn) else { return false };
        let offset = psn.diff(request.first_psn) as u32 * self.mtu;
        if pkt.payload.len() as u32 != (request.length - offset).min(self.mtu) {
            return false;
        }
        if self.req.recovery.is_noted(psn) {
            env.fx.count(Reason::UnexpectedResponse);
            return true;
        }
        if self.req.recovery.reserve_ahead().is_err() {
            return false;
        }
        if let Err(reason) = self.place_at(&request, offset, pkt.payload, env) {
            // It counts as lost; if the cause stays, the response in order meets it again.
            env.fx.count(reason);
            return true;
        }
        self.note_early_responses(psn, 1, env);
        true
    }

    /// The middle packets at the beginning of a train, the first with `psn`, if they are behind a gap and may be placed. Those of
    /// them that were sent, have not arrived before, and belong to one piece of a READ; never its last.
    pub(crate) fn early_run(&self, psn: Psn) -> Option<EarlyRun> {
        let recovery = &self.req.recovery;
        let distance = psn.diff(recovery.una_psn());
        let asked = recovery.sent_psn().diff(psn);
        if distance <= 0 || asked <= 0 || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let request = recovery.read_behind_gap(psn)?;
        let first = psn.diff(request.first_psn) as u32;
        let piece = READ_CHUNK_BYTES / self.mtu;
        let most = (request.packets - first - 1).min(piece - first % piece).min(asked as u32);
        let most = recovery.unnoted(psn, most.min(AHEAD_MAX - distance as u32));
        (most > 0).then_some(EarlyRun { request, psn, first, most })
    }

    /// Places the first packets of `train`, of which those that `count` counts continue each other; heads have `head_len` bytes.
    /// Returns how many.
    #[cold]
    #[inline(never)]
    pub(crate) fn place_early_run(
        &mut self,
        train: &MiddleRun<'_>,
        run: &EarlyRun,
        head_len: usize,
        count: impl FnOnce(usize) -> usize,
        env: &mut Env<'_>,
    ) -> usize {
        let count = count(run.most as usize);
        if count == 0 || self.req.recovery.reserve_ahead().is_err() {
            return 0;
        }
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE };
        let sges = self.req.recovery.sges_of(&run.request);
        let mut cursor = SgeCursor::at(sges, u64::from(run.first * self.mtu));
        let Some(span) = cursor.run(keys, sges, self.mtu, count as u32) else { return 0 };
        if !train.write_to(&span, head_len, self.mtu as usize) {
            return 0;
        }
        let done = span.len() / self.mtu as usize;
        debug_assert!(0 < done && done <= count);
        self.note_early_responses(run.psn, done as u32, env);
        done
    }

    /// The responses of `count` PSNs from `psn` on were placed.
    fn note_early_responses(&mut self, psn: Psn, count: u32, env: &mut Env<'_>) {
        if !self.req.recovery.has_ahead() {
            env.fx.count(Reason::ImpliedNak);
            env.fx.congestion(Signal::Loss);
        }
        (0..count).for_each(|k| self.req.recovery.note_ahead(psn.add(k)));
        // The peer works on these requests. Each PSN is noted once, so this does not put the time-out off for ever.
        if self.req.ack_deadline != burst_base::Nanos::NEVER {
            self.req.ack_deadline = env.now + self.ack_wait();
        }
        if self.req.recovery.wants_repair() {
            self.req.begin_repair();
        }
    }

    /// The gap in front of noted responses is filled: they are received now, and requests between them were executed.
    #[cold]
    pub(crate) fn take_ahead(&mut self, env: &mut Env<'_>) {
        while let Some(oldest) = self.req.recovery.oldest()
            && self.req.recovery.has_ahead()
        {
            let (work, packets, done) = (oldest.work, oldest.packets, oldest.done);
            match work {
                Work::Read => {
                    let left = packets - self.req.recovery.una_packet();
                    match self.req.recovery.take_noted(left) {
                        0 => break,
                        taken => self.req.recovery.on_acked(taken),
                    }
                    if self.req.recovery.una_packet() == packets {
                        self.retire_oldest(env);
                    }
                }
                // The peer executes requests in order: a response behind it shows that it was executed.
                Work::Send | Work::Write => self.retire_oldest(env),
                Work::Local | Work::Atomic if done => self.retire_oldest(env),
                _ => break,
            }
        }
    }
}
