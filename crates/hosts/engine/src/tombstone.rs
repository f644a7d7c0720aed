//! Tombstones of queue pairs whose process died: they answer the peers.
//!
//! IBA drops packets to unknown queue pairs silently, so a peer would notice the death only after all its retries. For
//! [`LINGER`] after an unclean death the worker answers requests to the dead number by NAK remote operational error (IBA
//! 9.7.5.2.8), which ends the peer's requests at once. A queue pair that its program destroyed leaves no tombstone.

use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason, TokenBucket};
use burst_cm::CmIds;
use burst_frame::{Flow, TxBatch};
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Packet, Service, Syndrome};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Lifetime of a tombstone.
pub const LINGER: Nanos = Nanos::from_ms(10_000);
/// Most tombstones of one worker.
pub const TOMBSTONES_MAX: usize = 4096;

/// A dead connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Number of the dead queue pair.
    pub qpn: Qpn,
    /// Number of the peer's queue pair.
    pub peer: Qpn,
    /// It was an XRC target.
    pub is_xrc: bool,
    /// Communication ids of the connection, if it was set up by the connection manager.
    pub cm: Option<CmIds>,
    /// Device of the queue pair.
    pub device: DeviceId,
    /// Flow to the peer.
    pub flow: Flow,
    /// End of its lifetime.
    pub until: Nanos,
    /// The PSN that the dead queue pair expected next, if it is known.
    pub expected: Option<Psn>,
}

/// Answers of one tombstone: 256 at once and 1,000 per second. The first ends all requests of the peer.
type NakBudget = TokenBucket<256, 1_000_000>;

/// The tombstones of one worker.
#[derive(Debug, Default)]
pub struct Tombstones {
    stones: HashMap<Qpn, (Tombstone, NakBudget)>,
    /// Their numbers, the oldest first.
    order: VecDeque<(Nanos, Qpn)>,
}

impl Tombstones {
    /// Adds a tombstone; the oldest goes when there are too many.
    pub fn add(&mut self, stone: Tombstone) {
        if self.order.len() == TOMBSTONES_MAX {
            self.remove_oldest();
        }
        self.order.push_back((stone.until, stone.qpn));
        self.stones.insert(stone.qpn, (stone, NakBudget::default()));
        debug_assert!(self.stones.len() <= self.order.len() && self.order.len() <= TOMBSTONES_MAX);
    }

    /// Whether there is one of this number.
    pub fn has(&self, qpn: Qpn) -> bool {
        self.stones.contains_key(&qpn)
    }

    fn remove_oldest(&mut self) {
        let Some((until, qpn)) = self.order.pop_front() else { return };
        // A later tombstone may have the same number.
        if self.stones.get(&qpn).is_some_and(|(stone, _)| stone.until == until) {
            self.stones.remove(&qpn);
        }
    }

    /// Answers a request of the peer to a dead queue pair.
    ///
    /// # Errors
    /// The reason for which there is no answer: no tombstone for the packet's destination, no request, another sender, or too
    /// many answers.
    pub fn answer(&mut self, now: Nanos, src: IpAddr, packet: &Packet<'_>, batch: &mut TxBatch) -> Result<(), Reason> {
        while self.order.front().is_some_and(|(until, _)| *until < now) {
            self.remove_oldest();
        }
        if self.stones.is_empty() {
            return Err(Reason::UnknownQpn);
        }
        let stone = self.stones.get_mut(&packet.bth.dest_qpn).filter(|(stone, _)| stone.flow.dst == src);
        // The NAK is one of the standard family in any case: a requester takes it in either.
        let is_request = |stone: &Tombstone| {
            let fits = match packet.info.service {
                Service::Rc | Service::RcSr => !stone.is_xrc,
                Service::Xrc | Service::XrcSr => stone.is_xrc,
                _ => false,
            };
            fits && packet.info.kind.is_request()
        };
        let (stone, naks) = stone.filter(|(stone, _)| is_request(stone)).ok_or(Reason::UnknownQpn)?;
        if !naks.take(now) {
            return Err(Reason::AnswerWithheld);
        }
        nak(stone, packet.bth.psn, batch);
        Ok(())
    }
}

/// Appends NAKs that no request has asked for, so that a peer with requests outstanding learns of the death at once. Without
/// them a peer whose requests have all arrived, and were not acknowledged, would wait for its time-out (IBA 9.7.6.1.3: up to
/// hours, as its program chose). One NAK is for the request that was expected next. The one before it counts if all that the
/// peer has sent had arrived: a NAK for a PSN that was not sent yet is ignored, as one for a PSN that was acknowledged.
pub fn announce(stone: &Tombstone, batch: &mut TxBatch) {
    if let Some(expected) = stone.expected {
        nak(stone, expected.prev(), batch);
        nak(stone, expected, batch);
    }
}

/// Appends the NAK of a tombstone for the request with number `psn`.
fn nak(stone: &Tombstone, psn: Psn, batch: &mut TxBatch) {
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperation), msn: 0 };
    let opcode = if stone.is_xrc { Opcode::XrcAck } else { Opcode::RcAck };
    let head = HeadBuf::new(&Bth::new(opcode, stone.peer, psn)).aeth(aeth);
    // If the batch is full, the peer learns of the death from the answer to its next request.
    let _ = batch.push(&stone.flow, head.as_slice(), &[], 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_wire::{Seth, XrcEth};

    fn stone(qpn: u32, until: u64) -> Tombstone {
        let flow = Flow { dst: IpAddr::from([10, 0, 0, 2]), ..Flow::default() };
        let (qpn, peer, until) = (Qpn::new(qpn), Qpn::new(77), Nanos(until));
        Tombstone { qpn, peer, is_xrc: false, cm: None, device: DeviceId(0), flow, until, expected: None }
    }

    fn ask(stones: &mut Tombstones, now: u64, src: [u8; 4], opcode: Opcode, qpn: u32) -> Result<(), Reason> {
        let head = HeadBuf::new(&Bth::new(opcode, Qpn::new(qpn), Psn::new(5)));
        let head = if matches!(opcode.service(), Service::Xrc | Service::XrcSr) {
            head.xrceth(XrcEth { srqn: 1 })
        } else {
            head
        };
        let head = if opcode.service().is_selective() { head.seth(Seth::default()) } else { head };
        let packet = Packet::parse(head.as_slice()).expect("a packet");
        let mut batch = TxBatch::new(4);
        let result = stones.answer(Nanos(now), IpAddr::from(src), &packet, &mut batch);
        assert_eq!(result.is_ok(), !batch.frames().is_empty());
        result
    }

    #[test]
    fn only_requests_of_the_peer_are_answered_and_not_for_ever() {
        let mut stones = Tombstones::default();
        stones.add(stone(0x500, 1_000));
        let peer = [10, 0, 0, 2];
        assert_eq!(ask(&mut stones, 1, peer, Opcode::RcSendOnly, 0x500), Ok(()));
        assert_eq!(ask(&mut stones, 1, peer, Opcode::RcSendOnly, 0x510), Err(Reason::UnknownQpn));
        assert_eq!(
            ask(&mut stones, 1, [10, 0, 0, 3], Opcode::RcSendOnly, 0x500),
            Err(Reason::UnknownQpn),
            "another host"
        );
        assert_eq!(ask(&mut stones, 1, peer, Opcode::UcSendOnly, 0x500), Err(Reason::UnknownQpn));
        let answered = (0..1000).filter(|_| ask(&mut stones, 2, peer, Opcode::RcSendOnly, 0x500).is_ok()).count();
        assert_eq!(answered, 255, "256 with the first");
        assert_eq!(ask(&mut stones, 2, peer, Opcode::RcSendOnly, 0x500), Err(Reason::AnswerWithheld));
        assert_eq!(ask(&mut stones, 1_001, peer, Opcode::RcSendOnly, 0x500), Err(Reason::UnknownQpn), "expired");
    }

    #[test]
    fn an_xrc_target_is_answered_for_in_its_own_service() {
        let mut stones = Tombstones::default();
        stones.add(Tombstone { is_xrc: true, ..stone(0x500, 1_000) });
        stones.add(stone(0x510, 1_000));
        for (opcode, answers) in [
            (Opcode::XrcSendOnly, [true, false]),
            (Opcode::XrcSrSendOnly, [true, false]),
            (Opcode::RcSendOnly, [false, true]),
            (Opcode::RcSrSendOnly, [false, true]),
        ] {
            assert_eq!([0x500, 0x510].map(|qpn| ask(&mut stones, 1, [10, 0, 0, 2], opcode, qpn).is_ok()), answers);
        }
        let mut batch = TxBatch::new(4);
        announce(&Tombstone { is_xrc: true, expected: Some(Psn::new(7)), ..stone(0x500, 1_000) }, &mut batch);
        let heads = batch.frames().iter().map(|frame| Packet::parse(frame.head()).expect("a packet").bth);
        let heads: Vec<_> = heads.map(|bth| (bth.opcode, bth.psn.get())).collect();
        assert_eq!(heads, [(Opcode::XrcAck, 6), (Opcode::XrcAck, 7)]);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut stones = Tombstones::default();
        (0..=TOMBSTONES_MAX as u32).for_each(|n| stones.add(stone(n << 4, 10 + u64::from(n))));
        let mut answers = |n: u32| ask(&mut stones, 1, [10, 0, 0, 2], Opcode::RcSendOnly, n << 4).is_ok();
        assert_eq!([answers(0), answers(1), answers(TOMBSTONES_MAX as u32)], [false, true, true]);
    }
}
