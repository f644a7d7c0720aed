//! Middle packets of the selective repeat family, many at a time: as [`crate::middles`], for packets whose turn it is.
//!
//! Each packet says its index, and one of a WRITE its address. Both rise with the PSN; a packet of which one does not ends the
//! run, and is handled as a single packet. Request packets behind a gap are `early_middles`,
//! responses behind one `early_responses`.

use crate::api::{Env, READ_CHUNK_BYTES};
use crate::gather::{Keys, SgeCursor};
use crate::head::Work;
use crate::middles::{BTH_MASKS, DEFAULT_PARTITION};
use crate::qp::Qp;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::responder::Responder;
use burst_base::num::MASK_24;
use burst_base::verbs::{QpState, access};
use burst_base::{Psn, Qpn, Rkey};
use burst_frame::{Flow, MiddleRun};
use burst_wire::{Bth, ICRC_LEN, OpKind, Opcode, Seth, Weth};

/// Heads of SENDs and READ responses, and of WRITEs.
const HEAD: usize = Bth::LEN + Seth::LEN;
const WRITE_HEAD: usize = HEAD + Weth::LEN;
const WORDS: usize = HEAD / 4;
const WRITE_WORDS: usize = WRITE_HEAD / 4;
/// The bits of the heads by which a middle packet is known. The MSN of READ responses is not compared.
const SEND_MASKS: [u32; WORDS] = [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], u32::MAX, u32::MAX];
const READ_MASKS: [u32; WORDS] = [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], 0xff00_0000, u32::MAX];
const WRITE_MASKS: [u32; WRITE_WORDS] =
    [BTH_MASKS[0], BTH_MASKS[1], BTH_MASKS[2], u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX];

/// Where the first middle packet of a run belongs.
pub(crate) struct MiddlePlace {
    pub(crate) psn: Psn,
    pub(crate) rsn: u32,
    pub(crate) index: u32,
    /// Address and key of a WRITE.
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
}

/// The first words of middle packet `k`: of this opcode, destination, PSN, RSN and index.
#[inline(always)]
fn middle_words(opcode: Opcode, qpn: Qpn, psn: Psn, (rsn, index): (u32, u32), k: u32) -> [u32; WORDS] {
    let first = u32::from(opcode.number()) << 24 | DEFAULT_PARTITION;
    [first, qpn.get(), psn.add(k).get(), rsn, (index + k) & MASK_24]
}

impl Qp {
    /// Executes the packets at the beginning of `train` that are middle packets of the family and whose turn it is.
    #[inline(never)]
    pub(crate) fn on_selective_middles(&mut self, flow: &Flow, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let payload = self.shared.mtu as usize + ICRC_LEN;
        match train.bytes.first() {
            Some(&number) if number == Opcode::RcSrWriteMiddle.number() && train.stride == WRITE_HEAD + payload => {
                match self.resp.on_selective_request_middles(&self.shared, flow, train, OpKind::Write, env) {
                    0 => self.resp.on_early_middles(&self.shared, flow, train, OpKind::Write, env),
                    count => count,
                }
            }
            Some(&number) if number == Opcode::RcSrSendMiddle.number() && train.stride == HEAD + payload => {
                match self.resp.on_selective_request_middles(&self.shared, flow, train, OpKind::Send, env) {
                    0 => self.resp.on_early_middles(&self.shared, flow, train, OpKind::Send, env),
                    count => count,
                }
            }
            Some(&number) if number == Opcode::RcSrReadResponseMiddle.number() && train.stride == HEAD + payload => {
                match self.req.on_selective_response_middles(&mut self.shared, flow, train, env) {
                    0 => self.req.on_early_selective_responses(&mut self.shared, flow, train, env),
                    count => count,
                }
            }
            _ => 0,
        }
    }
}

impl Requester {
    fn on_selective_response_middles(
        &mut self,
        qp: &mut QpShared,
        flow: &Flow,
        train: &MiddleRun<'_>,
        env: &mut Env<'_>,
    ) -> usize {
        let recovery = &self.recovery;
        let can = matches!(qp.state, QpState::Rts | QpState::Sqd) && self.sel.active && !recovery.has_ahead();
        let Some(request) = recovery.oldest().filter(|request| can && request.work == Work::Read) else { return 0 };
        let (psn, una_packet) = (recovery.una_psn(), recovery.una_packet());
        let asked = recovery.sent_psn().diff(psn).max(0) as u32;
        let piece = READ_CHUNK_BYTES / qp.mtu;
        let most = (request.packets - una_packet - 1).min(asked).min(piece - una_packet % piece);
        let qpn = qp.id.qpn;
        let words = |k| middle_words(Opcode::RcSrReadResponseMiddle, qpn, psn, (0, una_packet % piece), k);
        let count = train.count(&READ_MASKS, words, most as usize);
        if count == 0 {
            return 0;
        }
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE };
        let sges = recovery.sges_of(request);
        let mut cursor = SgeCursor::at(sges, u64::from(una_packet * qp.mtu));
        let Some(span) = cursor.run(keys, sges, qp.mtu, count as u32) else { return 0 };
        if !train.write_to(&span, HEAD, qp.mtu as usize) {
            return 0;
        }
        let done = span.len() / qp.mtu as usize;
        let before = (psn, self.sel.acked);
        self.sel.answered = true;
        self.answers_measure(psn, done as u32, env.arrived_at());
        self.note_responses(flow, (psn.add(done as u32 - 1), 0), (done as u16, span.len() as u32), env.now);
        self.recovery.on_acked(done as u32);
        self.progressed(qp, env);
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.after_answer(qp, before, true, env);
        }
        done
    }

    /// Places middle packets of a response that are behind a gap.
    #[cold]
    #[inline(never)]
    fn on_early_selective_responses(
        &mut self,
        qp: &mut QpShared,
        flow: &Flow,
        train: &MiddleRun<'_>,
        env: &mut Env<'_>,
    ) -> usize {
        let Ok(Bth { psn, .. }) = Bth::parse(train.bytes) else { return 0 };
        let Some(run) = self.early_run(qp, psn).filter(|_| self.sel.active) else { return 0 };
        let (number, index) = (Opcode::RcSrReadResponseMiddle, run.index_in_piece(qp.mtu));
        let qpn = qp.id.qpn;
        let count = |most| train.count(&READ_MASKS, |k| middle_words(number, qpn, psn, (0, index), k), most);
        let before = (self.recovery.una_psn(), self.sel.acked);
        let done = self.place_early_run(qp, train, &run, HEAD, count, env) as u32;
        if done == 0 {
            return 0;
        }
        self.sel.answered = true;
        self.answers_measure(psn, done, env.arrived_at());
        self.note_responses(flow, (psn.add(done - 1), 0), (done as u16, done * qp.mtu), env.now);
        self.owe_read_ack();
        self.after_answer(qp, before, false, env);
        done as usize
    }
}

impl Responder {
    fn on_selective_request_middles(
        &mut self,
        qp: &QpShared,
        flow: &Flow,
        train: &MiddleRun<'_>,
        kind: OpKind,
        env: &mut Env<'_>,
    ) -> usize {
        let sel = &self.sel;
        let Some(message) = self.message.filter(|message| message.kind == kind) else { return 0 };
        if !sel.active || sel.early.is_some() || !self.accepts_selective || !self.receives_middles(qp) {
            return 0;
        }
        let room = match kind {
            OpKind::Send if self.recv.is_usable() => self.recv.room,
            OpKind::Write if qp.access_flags & access::REMOTE_WRITE != 0 => crate::api::MESSAGE_BYTES_MAX - 1,
            _ => return 0,
        };
        let most = (room.saturating_sub(message.received) / u64::from(qp.mtu)) as usize;
        let (psn, rsn) = (self.expected, self.recv.rsn());
        let index = (message.received / u64::from(qp.mtu)) as u32;
        let place =
            MiddlePlace { psn, rsn, index, addr: message.addr.wrapping_add(message.received), rkey: message.rkey };
        let (count, head) = count_selective_middles(qp, train, kind, &place, most);
        if count == 0 {
            return 0;
        }
        let Some(span) = self.middles_span(qp, count, env) else { return 0 };
        if !train.write_to(&span, head, qp.mtu as usize) {
            return 0;
        }
        let count = span.len() / qp.mtu as usize;
        self.expected = psn.add(count as u32);
        self.nak_given = false;
        if let Some(message) = &mut self.message {
            message.received += span.len() as u64;
        }
        self.note_arrivals(flow, (psn.add(count as u32 - 1), 0), count as u16, env.arrived_at());
        count
    }
}

/// Number of packets at the beginning of `train`, at most `most`, that continue each other from `place` on; and the length of
/// their heads.
#[inline(always)]
pub(crate) fn count_selective_middles(
    qp: &QpShared,
    train: &MiddleRun<'_>,
    kind: OpKind,
    place: &MiddlePlace,
    most: usize,
) -> (usize, usize) {
    let &MiddlePlace { psn, rsn, index, addr, rkey } = place;
    let qpn = qp.id.qpn;
    if kind == OpKind::Send {
        let words = |k| middle_words(Opcode::RcSrSendMiddle, qpn, psn, (rsn, index), k);
        return (train.count(&SEND_MASKS, words, most), HEAD);
    }
    let words = |k: u32| {
        let [a, b, c, d, e] = middle_words(Opcode::RcSrWriteMiddle, qpn, psn, (rsn, index), k);
        let addr = addr.wrapping_add(u64::from(k) * u64::from(qp.mtu));
        [a, b, c, d, e, (addr >> 32) as u32, addr as u32, rkey.0]
    };
    (train.count(&WRITE_MASKS, words, most), WRITE_HEAD)
}
