//! Tombstones of queue pairs whose process died: they answer the peers.
//!
//! IBA drops packets to unknown queue pairs silently, so a peer would notice the death only after all its retries. For
//! [`LINGER`] after an unclean death the worker answers requests to the dead number by NAK remote operational error (IBA
//! 9.7.5.2.8), which ends the peer's requests at once. A queue pair that its program destroyed leaves no tombstone.

use burst_base::{Nanos, Psn, Qpn};
use burst_frame::{Flow, TxBatch};
use burst_wire::{Aeth, Bth, HeadBuf, NakCode, Opcode, Packet, Service, Syndrome};
use std::collections::VecDeque;

/// Lifetime of a tombstone.
pub const LINGER: Nanos = Nanos::from_ms(10_000);
/// Most tombstones of one worker.
pub const TOMBSTONES_MAX: usize = 4096;

/// A dead connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Tombstone {
    /// Number of the dead queue pair.
    pub qpn: Qpn,
    /// Number of the peer's queue pair.
    pub peer: Qpn,
    /// Flow to the peer.
    pub flow: Flow,
    /// End of its lifetime.
    pub until: Nanos,
}

/// The tombstones of one worker.
#[derive(Debug, Default)]
pub struct Tombstones {
    stones: VecDeque<Tombstone>,
}

impl Tombstones {
    /// Adds a tombstone; the oldest goes when there are too many.
    pub fn add(&mut self, stone: Tombstone) {
        if self.stones.len() == TOMBSTONES_MAX {
            self.stones.pop_front();
        }
        self.stones.push_back(stone);
        debug_assert!(self.stones.len() <= TOMBSTONES_MAX);
    }

    /// Answers a request to a dead queue pair. True if there is a tombstone for the packet's destination.
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

/// Appends the NAK of a tombstone for the request with number `psn`. At the moment of death this is the request that the queue
/// pair expected next, so that the peer learns of the death at once if it has requests outstanding.
pub fn nak(stone: &Tombstone, psn: Psn, batch: &mut TxBatch) {
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperation), msn: 0 };
    let head = HeadBuf::new(&Bth::new(Opcode::RcAck, stone.peer, psn)).aeth(aeth);
    // If the batch is full, the peer learns of the death from the answer to its next request.
    let _ = batch.push(&stone.flow, head.as_slice(), &[], 0);
}
