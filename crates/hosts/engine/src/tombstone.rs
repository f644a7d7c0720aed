//! Queue pairs whose process died: their peers are told.
//!
//! IBA drops packets to unknown queue pairs in silence, so a peer would find out only after all its retries. For
//! [`LINGER`] after an unclean death the worker answers requests to the dead number by NAK remote operational error,
//! which ends the peer's requests at once. A queue pair that its program destroyed leaves no tombstone.

use burst_base::{Nanos, Psn, Qpn};
use burst_frame::{Flow, TxBatch};
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Packet, Service, Syndrome};
use std::collections::VecDeque;

/// How long the dead answer.
pub const LINGER: Nanos = Nanos::from_ms(10_000);
/// How many are remembered.
pub const TOMBSTONES_MAX: usize = 4096;

/// A dead connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Tombstone {
    /// Its number.
    pub qpn: Qpn,
    /// Its peer's number.
    pub peer: Qpn,
    /// The way to its peer.
    pub flow: Flow,
    /// Until when it answers.
    pub until: Nanos,
}

/// The tombstones of one worker.
#[derive(Debug, Default)]
pub struct Tombstones {
    stones: VecDeque<Tombstone>,
}

impl Tombstones {
    /// Remembers a dead queue pair; the oldest is forgotten when there are too many.
    pub fn add(&mut self, stone: Tombstone) {
        if self.stones.len() == TOMBSTONES_MAX {
            self.stones.pop_front();
        }
        self.stones.push_back(stone);
    }

    /// Answers a request to a dead queue pair. True when the number is known here.
    pub fn answer(&mut self, now: Nanos, packet: &Packet<'_>, batch: &mut TxBatch) -> bool {
        while self.stones.front().is_some_and(|s| s.until < now) {
            self.stones.pop_front();
        }
        let Some(stone) = self.stones.iter().find(|s| s.qpn == packet.bth.dest_qpn) else {
            return false;
        };
        if packet.info.service == Service::Rc && packet.info.kind.is_request() {
            nak(stone, packet.bth.psn, batch);
        }
        true
    }
}

/// Tells the peer of a dying queue pair at once; `psn` is the one it would be asked next.
pub fn nak(stone: &Tombstone, psn: Psn, batch: &mut TxBatch) {
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperation), msn: 0 };
    let head = HeadBuf::new(&Bth::new(Opcode::RcAck, stone.peer, psn)).aeth(aeth);
    // A full batch only means that the peer learns it from its next request.
    let _ = batch.push(&stone.flow, head.as_slice(), &[], 0);
}
