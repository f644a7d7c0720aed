//! Completions of work requests that the daemon can complete no more, because it has ended.
//!
//! The posted entries are in the program's own mapping, so the library makes a completion with the status IBV_WC_WR_FLUSH_ERR and
//! the reason `daemon_died` for each entry for which there is no completion yet. A send queue is flushed from the entry behind
//! the last completion that the daemon has written: requests without IBV_SEND_SIGNALED that follow may have been executed, but
//! no completion says so. A receive queue is flushed in the same way: a message may have been written to its buffer.

use super::completion::CompletionRing;
use super::cookies::NO_COOKIE;
use super::idle::monotonic;
use burst_base::Reason;
use burst_base::verbs::{WcOpcode, WcStatus, WrOpcode};
use burst_shm::Cqe;
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use std::collections::{HashMap, VecDeque};

/// A queue pair as its completions name it.
#[derive(Clone, Copy, Debug)]
pub struct FlushedQp {
    /// Cookie of the queue pair.
    pub cookie: u32,
    /// Its number.
    pub qpn: u32,
}

/// A work queue, as its completions name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlushedQueue {
    /// Cookie of the queue pair.
    pub cookie: u32,
    /// Whether it is the receive queue.
    pub is_recv: bool,
}

/// How far the queues of a queue pair are flushed: the indices of the next entries; `None` before the first flush.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushCursor {
    /// Next entry of the send queue.
    pub send: Option<u32>,
    /// Next entry of the receive queue.
    pub recv: Option<u32>,
}

impl CompletionRing {
    /// Takes all completions out of the ring, and returns how many entries of each work queue with a completion among them have
    /// completed.
    pub fn carry_all(&mut self) -> HashMap<FlushedQueue, u32> {
        self.carry(|_| true);
        let named = self.carried.iter().filter(|cqe| cqe.qp_cookie != NO_COOKIE);
        named.map(|cqe| (FlushedQueue { cookie: cqe.qp_cookie, is_recv: cqe.is_recv != 0 }, cqe.sq_consumer)).collect()
    }
}

fn completion(qp: FlushedQp, wr_id: u64, opcode: WcOpcode) -> Cqe {
    Cqe {
        wr_id,
        timestamp_ns: monotonic().0,
        qpn: qp.qpn,
        vendor_err: Reason::DaemonDied.index() as u32 + 1,
        qp_cookie: qp.cookie,
        status: WcStatus::WrFlushErr as u8,
        opcode: opcode as u8,
        ..Cqe::default()
    }
}

/// Completes the entries of a send queue from `from` on. Returns the index of the next entry.
pub fn flush_sends(qp: FlushedQp, queue: &SqProducer, from: u32, into: &mut VecDeque<Cqe>) -> u32 {
    let end = queue.written();
    // Not more than the queue has slots, whatever the indices are.
    let count = end.wrapping_sub(from).min(queue.spec().entries());
    for index in (0..count).map(|i| from.wrapping_add(i)) {
        let wqe = queue.entry(index);
        let opcode = WrOpcode::from_number(wqe.opcode.into()).unwrap_or(WrOpcode::Send);
        into.push_back(Cqe { sq_consumer: index.wrapping_add(1), ..completion(qp, wqe.wr_id, opcode.completion()) });
    }
    end
}

/// Completes the entries of a receive queue from `from` on. Returns the index of the next entry.
pub fn flush_receives(qp: FlushedQp, queue: &RqProducer, from: u32, into: &mut VecDeque<Cqe>) -> u32 {
    let end = queue.written();
    // The daemon frees a slot when it takes the receive: older ones than the queue has slots are overwritten, and lost.
    let count = end.wrapping_sub(from).min(queue.spec().entries());
    let from = end.wrapping_sub(count);
    for index in (0..count).map(|i| from.wrapping_add(i)) {
        let sq_consumer = index.wrapping_add(1);
        into.push_back(Cqe { is_recv: 1, sq_consumer, ..completion(qp, queue.wr_id(index), WcOpcode::Recv) });
    }
    queue.set_taken(end);
    end
}
