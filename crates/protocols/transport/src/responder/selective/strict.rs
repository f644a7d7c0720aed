//! Strict placement: early packets are kept as they are, and executed in their turn
//! ([`crate::responder::selective::packet_store`]).

use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::refusal::RequestRefusal;
use crate::responder::requests::{check_length, read_psns};
use crate::responder::selective::arrivals::{ArrivalKind, ArrivalNote, Arrivals};
use crate::responder::selective::packet_store::StoredPacket;
use crate::responder::selective::requests::EarlyPacket;
use burst_base::Reason;
use burst_wire::{OpKind, Packet};

impl Responder {
    /// Keeps an early packet until its turn.
    #[cold]
    pub(crate) fn keep_early(
        &mut self,
        qp: &QpShared,
        EarlyPacket { frame, pkt, seth, distance }: EarlyPacket<'_>,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<ArrivalNote, Reason> {
        check_length(qp, pkt).map_err(|_| Reason::SrUnplaced)?;
        if !self.may_be_early(qp, seth, distance) {
            return Err(Reason::SrIndex);
        }
        early.reserve_packets().map_err(|_| Reason::SrPoolEmpty)?;
        let pool = env.fx.records().ok_or(Reason::SrPoolEmpty)?;
        let packet = pool.keep_packet(frame.bytes).ok_or(Reason::SrPoolEmpty)?;
        if let Some(old) = early.hold_packet(pkt.bth.psn, packet) {
            pool.give_packet(old);
        }
        let flags = (pkt.info.position.is_start(), pkt.info.position.is_end());
        Ok(ArrivalNote::new(ArrivalKind::Operation, flags, seth.index))
    }

    /// Executes a kept packet whose turn it is, as if it had arrived now. False if it was refused and the refusal is pending.
    pub(crate) fn commit_packet(
        &mut self,
        qp: &mut QpShared,
        packet: StoredPacket,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<bool, RequestRefusal> {
        let done = self.execute_kept(qp, packet.bytes(), early, env);
        if let Some(pool) = env.fx.records() {
            pool.give_packet(packet);
        }
        done
    }

    #[cold]
    #[inline(never)]
    fn execute_kept(
        &mut self,
        qp: &mut QpShared,
        bytes: &[u8],
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<bool, RequestRefusal> {
        // It was parsed when it came.
        let Ok(pkt) = Packet::parse(bytes) else { return Ok(false) };
        let Some(seth) = pkt.seth() else { return Ok(false) };
        let psns = pkt.reth().filter(|_| pkt.info.kind == OpKind::ReadRequest).map_or(1, |reth| read_psns(qp, &reth));
        // Its other PSNs have arrived with it, and are missing with it if it is refused.
        early.forget(pkt.bth.psn, psns);
        if qp.id.qp_type == burst_base::verbs::QpType::XrcRecv && !self.prepare_named(qp, &pkt, env) {
            return Ok(false);
        }
        self.execute_next(qp, &pkt, (&seth, psns), env).map(|()| true)
    }
}
