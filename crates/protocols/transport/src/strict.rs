//! Strict placement: early packets are kept as they are, and executed in their turn ([`crate::packet_store`]).

use crate::api::Env;
use crate::arrivals::{ArrivalKind, ArrivalNote, Arrivals};
use crate::packet_store::StoredPacket;
use crate::qp::Qp;
use crate::responder::RequestRefusal;
use burst_base::Reason;
use burst_frame::RxFrame;
use burst_wire::{OpKind, Packet, Seth};

impl Qp {
    /// Keeps an early packet until its turn.
    #[cold]
    pub(crate) fn keep_early(
        &mut self,
        frame: &RxFrame<'_>,
        pkt: &Packet<'_>,
        seth: &Seth,
        distance: u32,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<ArrivalNote, Reason> {
        self.check_length(pkt).map_err(|_| Reason::SrUnplaced)?;
        if !self.may_be_early(seth, distance) {
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
        packet: StoredPacket,
        early: &mut Arrivals,
        env: &mut Env<'_>,
    ) -> Result<bool, RequestRefusal> {
        let done = self.execute_kept(packet.bytes(), early, env);
        if let Some(pool) = env.fx.records() {
            pool.give_packet(packet);
        }
        done
    }

    #[cold]
    #[inline(never)]
    fn execute_kept(&mut self, bytes: &[u8], early: &mut Arrivals, env: &mut Env<'_>) -> Result<bool, RequestRefusal> {
        // It was parsed when it came.
        let Ok(pkt) = Packet::parse(bytes) else { return Ok(false) };
        let Some(seth) = pkt.seth() else { return Ok(false) };
        let psns = pkt.reth().filter(|_| pkt.info.kind == OpKind::ReadRequest).map_or(1, |reth| self.read_psns(&reth));
        // Its other PSNs have arrived with it, and are missing with it if it is refused.
        early.forget(pkt.bth.psn, psns);
        if self.id.qp_type == burst_base::verbs::QpType::XrcRecv && !self.prepare_named(&pkt, env) {
            return Ok(false);
        }
        self.execute_next(&pkt, (&seth, psns), env).map(|()| true)
    }
}
